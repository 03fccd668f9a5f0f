//! Watches the obstacles to mirrors: a missing namespace, a name that is taken. The removal of one
//! wakes the mirror task; if the agent may not watch it, the task retries periodically.

use std::collections::{BTreeMap, BTreeSet};

use futures::StreamExt;
use kube::Api;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, watch_object};
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet};

use crate::cluster::client::ClusterClient;
use mirrorlet_core::api::{FullName, Pod, Watched, core};

/// Objects watched at a time; each is one connection. Beyond, pauses alone must do.
const WATCHES_MAX: usize = 16;
/// Maximum number of pending wake-ups: each object has at most one, and it only means "check again".
const WOKEN_MAX: usize = WATCHES_MAX;

/// A cause that may be resolved.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Cause {
    /// A namespace is missing, or its labels forbid something.
    Namespace(std::sync::Arc<str>),
    /// A pod has the name.
    Pod(FullName),
}

/// The watches in progress.
pub(super) struct Causes {
    cluster: ClusterClient,
    watches: BTreeMap<Cause, AbortHandle>,
    /// Causes that the agent may not watch, while they are obstacles.
    forbidden: BTreeSet<Cause>,
    tasks: JoinSet<(Cause, End)>,
    woken: mpsc::Sender<Cause>,
    wakes: mpsc::Receiver<Cause>,
}

/// Why a watch has ended.
enum End {
    Forbidden,
}

impl Causes {
    pub(super) fn new(cluster: ClusterClient) -> Self {
        let (woken, wakes) = mpsc::channel(WOKEN_MAX);
        Self {
            cluster,
            watches: BTreeMap::new(),
            forbidden: BTreeSet::new(),
            tasks: JoinSet::new(),
            woken,
            wakes,
        }
    }

    /// Watches these and nothing else.
    pub(super) fn watch(&mut self, wanted: &BTreeSet<Cause>) {
        self.forbidden.retain(|cause| wanted.contains(cause));
        self.watches.retain(|cause, task| {
            let keep = wanted.contains(cause);
            if !keep {
                task.abort();
            }
            keep
        });
        for cause in wanted {
            if self.watches.len() >= WATCHES_MAX {
                return;
            }
            if self.watches.contains_key(cause) || self.forbidden.contains(cause) {
                continue;
            }
            let client = self.cluster.client();
            let (watched_cause, woken) = (cause.clone(), self.woken.clone());
            let task = self.tasks.spawn(async move {
                let end = match &watched_cause {
                    Cause::Namespace(name) => {
                        let api: Api<Watched<core::Namespace>> = Api::all(client);
                        follow(api, name, &watched_cause, &woken, |Watched(namespace)| {
                            namespace.metadata.deletion_timestamp.is_none()
                        })
                        .await
                    }
                    Cause::Pod(name) => {
                        let api: Api<Watched<Pod>> = Api::namespaced(client, &name.namespace);
                        follow(api, &name.name, &watched_cause, &woken, |_| false).await
                    }
                };
                (watched_cause, end)
            });
            self.watches.insert(cause.clone(), task);
        }
    }

    /// Whether the agent is notified when that cause is resolved.
    pub(super) fn watches(&self, cause: &Cause) -> bool {
        self.watches.contains_key(cause)
    }

    /// The next cause that has changed, or that can't be watched. Safe to cancel.
    pub(super) async fn changed(&mut self) -> Cause {
        loop {
            tokio::select! {
                Some(cause) = self.wakes.recv() => {
                    if self.watches.contains_key(&cause) {
                        return cause;
                    }
                }
                Some(ended) = self.tasks.join_next() => {
                    let Ok((cause, End::Forbidden)) = ended else { continue };
                    self.watches.remove(&cause);
                    self.forbidden.insert(cause.clone());
                    return cause;
                }
                else => std::future::pending::<()>().await,
            }
        }
    }

    /// Ends all watches.
    pub(super) async fn stop(&mut self) {
        self.tasks.shutdown().await;
    }
}

/// Notifies each time the object changes so that a retry may help: by default when it is removed,
/// otherwise when `helps` returns true. Returns only if watching isn't allowed.
async fn follow<K>(
    api: Api<K>,
    name: &str,
    cause: &Cause,
    woken: &mpsc::Sender<Cause>,
    helps: fn(&K) -> bool,
) -> End
where
    K: kube::Resource<DynamicType = ()>
        + Clone
        + std::fmt::Debug
        + serde::de::DeserializeOwned
        + Send
        + 'static,
{
    let is_pod = matches!(cause, Cause::Pod(_));
    // kube's pauses, which are random in part: agents that lost the API server together don't come back
    // together.
    let mut stream = std::pin::pin!(watch_object(api, name).default_backoff());
    while let Some(seen) = stream.next().await {
        let may_help = match &seen {
            Ok(Some(object)) => helps(object),
            // A removed pod frees its name; a removed namespace doesn't help.
            Ok(None) => is_pod,
            Err(error) if is_forbidden(error) => return End::Forbidden,
            Err(_) => false,
        };
        if may_help {
            // A full queue wakes the task anyway, which then checks everything.
            let _ = woken.try_send(cause.clone());
        }
    }
    End::Forbidden
}

fn is_forbidden(error: &watcher::Error) -> bool {
    let status = match error {
        watcher::Error::InitialListFailed(kube::Error::Api(status))
        | watcher::Error::WatchStartFailed(kube::Error::Api(status))
        | watcher::Error::WatchError(status) => status,
        watcher::Error::InitialListFailed(_)
        | watcher::Error::WatchStartFailed(_)
        | watcher::Error::WatchFailed(_)
        | watcher::Error::NoResourceVersion => return false,
    };
    status.code == 403
}
