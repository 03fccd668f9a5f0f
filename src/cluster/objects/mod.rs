//! Objects that pods refer to, from the API server: the real [`Objects`].
//!
//! Every object that a pod holds is watched by its name, which is what a node may do; a watch is shared
//! by all pods that hold the object and ends with the last of them. Services are watched while there is
//! a pod that refers to them. Tokens are requested when they are needed, and kept until they must be
//! renewed. Claims and their volumes are read once for the pods that use them. So an idle pod costs no
//! requests except for the renewals of watches.
//!
//! The runtime holds objects and requests them. It is notified through [`Objects::subscribe`].
//!
//! Upstream: `pkg/kubelet/util/manager/watch_based_manager.go`,
//! `pkg/kubelet/token/token_manager.go`.

mod claims;
mod room;
mod tokens;
mod watches;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use futures::StreamExt as _;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore, watch};
use tokio_util::sync::CancellationToken;

use self::claims::Claims;
use self::room::room_for;
use self::tokens::Tokens;
use super::{ApiError, ApiReach, ClusterClient};
use crate::store::cell::Reader;
use mirrorlet_core::api::core::{ConfigMap, Node, Secret};
use mirrorlet_core::api::{ByteString, PodUid, Watched as Bounded};
use mirrorlet_core::objects::claims::Storage;
use mirrorlet_core::objects::{
    ObjectError, ObjectKey, ObjectKind, References, ServiceFacts, Token, TokenKey,
};
use mirrorlet_core::small::SmallCollect;
use mirrorlet_runtime::objects::{Holders, Objects};

/// Maximum wait for the first answer about an object. A list of one object takes milliseconds; a caller
/// that has timed out is notified when the answer arrives.
const FIRST_ANSWER: Duration = Duration::from_secs(10);

/// Pauses after a refusal that may be a moment too early: two further attempts, while the pod waits.
const REFUSED_PAUSES: [Duration; 2] = [Duration::from_millis(300), Duration::from_millis(900)];

/// The message of a timeout.
const NO_ANSWER: &str = "timed out waiting for the API server's answer";

/// Most objects that are got at a time: an answer is held as text and as an object.
const GETS_MAX: usize = 4;

/// Approximate overhead of an entry besides its text, in bytes: that of two strings in a map, and of
/// their allocations. A Secret of 1 MiB may have tens of thousands of empty ones.
const ENTRY_BYTES: usize = 150;

/// An object of either kind.
#[derive(Clone)]
enum Object {
    ConfigMap(Arc<ConfigMap>),
    Secret(Arc<Secret>),
}

impl Object {
    fn of_config_map(Bounded(map): Bounded<ConfigMap>) -> Self {
        Self::ConfigMap(Arc::new(map))
    }

    fn of_secret(Bounded(secret): Bounded<Secret>) -> Self {
        Self::Secret(Arc::new(secret))
    }

    /// The bytes that its data takes here, about.
    fn size(&self) -> usize {
        let text = |(key, text): (&String, &String)| ENTRY_BYTES + key.len() + text.len();
        let bytes = |(key, bytes): (&String, &ByteString)| ENTRY_BYTES + key.len() + bytes.0.len();
        match self {
            Self::ConfigMap(map) => {
                let texts = map.data.iter().flatten().map(text).sum::<usize>();
                texts + map.binary_data.iter().flatten().map(bytes).sum::<usize>()
            }
            Self::Secret(secret) => secret.data.iter().flatten().map(bytes).sum(),
        }
    }
}

/// The known state of a watched object; `None` before the first response.
type Known = Option<Result<Object, ObjectError>>;

/// A watched object.
struct Watched {
    /// Identifies the watch: an object that was released and is held again gets a new watch, with a new
    /// first answer.
    number: u64,
    known: watch::Sender<Known>,
    /// The bytes of the object that is known.
    bytes: usize,
}

/// Objects that pods refer to. Cheap to clone: clones share everything.
#[derive(Clone)]
pub struct ClusterObjects {
    shared: Arc<Shared>,
}

struct Shared {
    client: ClusterClient,
    holders: Holders,
    watched: Mutex<BTreeMap<ObjectKey, Watched>>,
    /// Number of the next watch.
    next: AtomicU64,
    services: Services,
    tokens: Tokens,
    claims: Claims,
    /// This machine's Node, once it is known: what local volumes are checked against.
    node: Reader<Option<Arc<Node>>>,
    /// Signals that the set of watched objects may have changed.
    changed: Notify,
    /// The permission to get an object.
    gets: Semaphore,
}

/// Services of all namespaces that have an address.
#[derive(Default)]
struct Services {
    by_name: Mutex<BTreeMap<(String, String), ServiceFacts>>,
    /// Whether they were listed; nothing before the first answer.
    listed: watch::Sender<Option<Result<(), ObjectError>>>,
}

/// Keeps the watches that [`ClusterObjects`] answers from.
pub struct ObjectsTask {
    shared: Arc<Shared>,
}

impl ClusterObjects {
    /// Returns the objects read through that client, and the task that watches them. Makes no request
    /// before a pod holds something. `node` is this machine's Node, once it is known.
    pub fn new(client: ClusterClient, node: Reader<Option<Arc<Node>>>) -> (Self, ObjectsTask) {
        let shared = Arc::new(Shared {
            client,
            holders: Holders::default(),
            watched: Mutex::default(),
            next: AtomicU64::new(0),
            services: Services::default(),
            tokens: Tokens::default(),
            claims: Claims::default(),
            node,
            changed: Notify::new(),
            gets: Semaphore::new(GETS_MAX),
        });
        let task = ObjectsTask {
            shared: Arc::clone(&shared),
        };
        (Self { shared }, task)
    }

    async fn object(&self, key: &ObjectKey) -> Result<Object, ObjectError> {
        let watched = self
            .shared
            .watched
            .lock()
            .get(key)
            .map(|watched| (watched.number, watched.known.subscribe()));
        let Some((number, known)) = watched else {
            return Err(away(key, "no pod on this node uses it"));
        };
        let answer = first_answer(known, self.shared.client.reach()).await;
        answer.unwrap_or_else(|| {
            // Remembered, so that the holders are notified when there is an answer.
            let error = away(key, NO_ANSWER);
            self.shared.learn(key, number, Err(error.clone()));
            Err(error)
        })
    }
}

/// Waits, within [`FIRST_ANSWER`], until something is known, and returns it. Doesn't wait while the API
/// server is away: that may take hours, and the pod's worker has other work.
async fn first_answer<T: Clone + Send + Sync>(
    mut known: watch::Receiver<Option<Result<T, ObjectError>>>,
    mut reach: Reader<ApiReach>,
) -> Option<Result<T, ObjectError>> {
    let answered = known.wait_for(Option::is_some);
    tokio::select! {
        biased;
        known = tokio::time::timeout(FIRST_ANSWER, answered) => known.ok()?.ok()?.clone(),
        Ok(_) = reach.wait_for(|reach| matches!(reach, ApiReach::Down { .. })) => None,
    }
}

fn is_watched(kind: ObjectKind) -> bool {
    match kind {
        ObjectKind::ConfigMap | ObjectKind::Secret => true,
        ObjectKind::Service | ObjectKind::Claim | ObjectKind::Volume => false,
    }
}

fn away(what: impl std::fmt::Display, cause: &str) -> ObjectError {
    ObjectError::Away {
        what: what.to_string(),
        cause: cause.to_owned(),
    }
}

/// Retries after a refusal: a node may read an object from the moment the server knows that one of its
/// pods refers to it, which may be a moment after the agent does.
async fn patiently<T, F>(ask: impl Fn() -> F) -> Result<T, ObjectError>
where
    F: Future<Output = Result<T, ObjectError>>,
{
    for pause in REFUSED_PAUSES {
        match ask().await {
            Err(ObjectError::Forbidden { .. }) => tokio::time::sleep(pause).await,
            other => return other,
        }
    }
    ask().await
}

/// Classifies a failed call for a named object.
fn object_error(
    error: &ApiError,
    what: impl std::fmt::Display,
    resource: &'static str,
    name: &str,
) -> ObjectError {
    match error {
        ApiError::NotFound(_) => ObjectError::NotFound {
            resource,
            name: name.to_owned(),
        },
        ApiError::Forbidden(answer) => ObjectError::Forbidden {
            what: what.to_string(),
            cause: answer.to_string(),
        },
        other => away(what, &other.to_string()),
    }
}

#[async_trait]
impl Objects for ClusterObjects {
    fn hold(&self, pod: &PodUid, references: &References) {
        self.shared.holders.hold(pod, references);
        self.shared.follow_holders();
    }

    fn release(&self, pod: &PodUid) {
        self.shared.holders.release(pod);
        self.shared.tokens.forget(pod);
        self.shared.follow_holders();
    }

    fn subscribe(&self, pod: &PodUid) -> watch::Receiver<u64> {
        self.shared.holders.subscribe(pod)
    }

    async fn config_map(&self, key: &ObjectKey) -> Result<Arc<ConfigMap>, ObjectError> {
        match self.object(key).await? {
            Object::ConfigMap(found) => Ok(found),
            Object::Secret(_) => Err(ObjectError::not_found(key)),
        }
    }

    async fn secret(&self, key: &ObjectKey) -> Result<Arc<Secret>, ObjectError> {
        match self.object(key).await? {
            Object::Secret(found) => Ok(found),
            Object::ConfigMap(_) => Err(ObjectError::not_found(key)),
        }
    }

    async fn storage(&self, key: &ObjectKey) -> Result<Arc<Storage>, ObjectError> {
        let node = Option::clone(&self.shared.node.get());
        self.shared.claims.get(&self.shared.client, key, node).await
    }

    async fn token(&self, key: &TokenKey) -> Result<Token, ObjectError> {
        self.shared.tokens.get(&self.shared.client, key).await
    }

    async fn services(&self) -> Result<Arc<[ServiceFacts]>, ObjectError> {
        let answer = {
            let (listed, reach) = (&self.shared.services.listed, self.shared.client.reach());
            first_answer(listed.subscribe(), reach).await
        };
        answer.unwrap_or_else(|| {
            let error = away("services", NO_ANSWER);
            self.shared.services.failed(error.clone());
            Err(error)
        })?;
        let by_name = self.shared.services.by_name.lock();
        Ok(by_name.values().cloned().collect())
    }
}

impl Shared {
    /// Watches what is held, and nothing else.
    fn follow_holders(&self) {
        let held = self.holders.held();
        {
            let mut watched = self.watched.lock();
            watched.retain(|key, _| held.objects.contains(key));
            self.claims.retain(&held.objects);
            // Claims are read when they are needed.
            for key in held.objects.into_iter().filter(|key| is_watched(key.kind)) {
                watched.entry(key).or_insert_with(|| Watched {
                    number: self.next.fetch_add(1, Ordering::Relaxed),
                    known: watch::channel(None).0,
                    bytes: 0,
                });
            }
        }
        self.changed.notify_one();
    }

    /// Processes a watch's result. An error doesn't replace known data, including the fact that an
    /// object doesn't exist: pods keep their data while the API server is away. A first answer causes
    /// no notification: the holders of the object wait for it. Returns whether there is room for it.
    fn learn(&self, key: &ObjectKey, number: u64, found: Result<Object, ObjectError>) -> bool {
        let mut has_room = true;
        let news = {
            let mut watched = self.watched.lock();
            let found = found.and_then(|object| {
                room_for(&watched, key, object.size())
                    .inspect_err(|_| has_room = false)
                    .map(|()| object)
            });
            let Some(watched) = watched.get_mut(key).filter(|w| w.number == number) else {
                return has_room;
            };
            let bytes = found.as_ref().map_or(0, Object::size);
            let mut was_known = false;
            watched.known.send_if_modified(|known| {
                was_known = known.is_some();
                let keep = match (&*known, &found) {
                    (Some(Ok(_)), Err(error)) => !error.is_not_found(),
                    (Some(Err(before)), Err(now)) => before == now || before.is_not_found(),
                    (Some(_) | None, _) => false,
                };
                if !keep {
                    *known = Some(found);
                    watched.bytes = bytes;
                }
                !keep
            }) && was_known
        };
        if news {
            self.holders
                .notify(|references| references.objects.contains(key));
        }
        has_room
    }
}

impl ObjectsTask {
    /// Watches until cancelled. All watches are polled in this task: a node has few, and they are
    /// silent most of the time.
    pub async fn run(self) {
        let mut running: FuturesUnordered<BoxFuture<'_, Subject>> = FuturesUnordered::new();
        let mut tokens: BTreeMap<Subject, CancellationToken> = BTreeMap::new();
        let mut reach = self.shared.client.reach();
        loop {
            let wanted = self.wanted();
            for (subject, token) in &tokens {
                if !wanted.contains(subject) {
                    token.cancel();
                }
            }
            for subject in wanted {
                // One that is still ending is begun again when it has ended.
                tokens.entry(subject).or_insert_with_key(|subject| {
                    let token = CancellationToken::new();
                    running.push(Box::pin(self.watch(subject.clone(), token.clone())));
                    token
                });
            }
            tokio::select! {
                () = self.shared.changed.notified() => {}
                Ok(reach) = reach.changed() => if reach.is_up() {
                    self.shared.forget_away();
                },
                Some(ended) = running.next(), if !running.is_empty() => {
                    tokens.remove(&ended);
                }
            }
        }
    }

    fn wanted(&self) -> BTreeSet<Subject> {
        let mut wanted: BTreeSet<Subject> = self
            .shared
            .watched
            .lock()
            .iter()
            .map(|(key, watched)| Subject::Object(key.clone(), watched.number))
            .collect_set();
        if self.shared.holders.held().services {
            wanted.insert(Subject::Services);
        }
        wanted
    }

    async fn watch(&self, subject: Subject, cancel: CancellationToken) -> Subject {
        let watching = async {
            match &subject {
                Subject::Services => watches::services(&self.shared).await,
                Subject::Object(key, number) => match key.kind {
                    ObjectKind::ConfigMap => {
                        watches::object(&self.shared, key, *number, Object::of_config_map).await;
                    }
                    ObjectKind::Secret => {
                        watches::object(&self.shared, key, *number, Object::of_secret).await;
                    }
                    // Services are watched all together, for variables; no pod names one.
                    ObjectKind::Service | ObjectKind::Claim | ObjectKind::Volume => {}
                },
            }
        };
        cancel.run_until_cancelled(watching).await;
        if subject == Subject::Services {
            self.shared.services.forget();
        }
        subject
    }
}

impl Services {
    /// They can't be listed. Of no interest once they were.
    fn failed(&self, error: ObjectError) {
        self.listed.send_if_modified(|listed| {
            let matters = !matches!(listed, Some(Ok(())));
            if matters {
                *listed = Some(Err(error));
            }
            matters
        });
    }

    fn forget(&self) {
        self.listed.send_replace(None);
        self.by_name.lock().clear();
    }
}

/// The subject of one watch.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Subject {
    Object(ObjectKey, u64),
    Services,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::cell::cell;
    use mirrorlet_core::api::Timestamp;

    #[tokio::test(start_paused = true)]
    async fn nobody_waits_for_a_server_that_is_away() {
        let (mut writer, reach) = cell(ApiReach::Unknown);
        let (sender, known) = watch::channel(None);
        let begun = tokio::time::Instant::now();
        let waiting = tokio::spawn(first_answer(known.clone(), reach.clone()));
        tokio::task::yield_now().await;
        writer.publish(ApiReach::Down {
            cause: "refused".to_owned(),
            since: Timestamp::now(),
        });
        // node 6e
        assert_eq!(waiting.await.unwrap(), None);
        assert_eq!(first_answer(known.clone(), reach.clone()).await, None);
        assert!(begun.elapsed() < FIRST_ANSWER);
        // What is known counts, wherever the server is.
        sender.send_replace(Some(Ok(1)));
        assert_eq!(first_answer(known, reach).await, Some(Ok(1)));
    }
}
