//! The credentials of a client: read, and taken up anew when their files are replaced.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::client::ClusterClient;
use super::connection::{Shared, Wire, wire};
use super::error::chain;
use super::identity::{self, ConnectError, Identity, NodeIdentity};
use crate::config::ApiAccess;
use mirrorlet_core::certificate::Verdict;
use mirrorlet_host::telemetry::{Metrics, occurrences};

/// How often the files that make our identity are compared with what is in use. A few small
/// files, so it costs nothing; certificates are replaced long before they end.
const CHECK_PERIOD: Duration = Duration::from_secs(10);
/// Shortest time between two checks, whatever is doubted: calls fail by the dozen while the
/// server is away.
const CHECK_MIN: Duration = Duration::from_secs(1);
/// Shortest time between two runs of a credential plugin whose credentials are refused.
const PLUGIN_MIN: Duration = Duration::from_mins(1);

impl ClusterClient {
    /// A client for that access, and the task that keeps its credentials fresh; none when no API
    /// server is configured. Nothing is called yet. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// The kubeconfig, or a file it names, can't be used; there is no in-cluster account.
    pub fn open(
        access: &ApiAccess,
        metrics: Metrics,
    ) -> Result<Option<(Self, CredentialsTask)>, ConnectError> {
        let Some(identity) = identity::read(access)? else {
            return Ok(None);
        };
        let wire = connect(access, &identity)?;
        Ok(Some(Self::with(access, wire, Some(identity), metrics)))
    }

    pub(super) fn with(
        access: &ApiAccess,
        wire: Wire,
        identity: Option<Identity>,
        metrics: Metrics,
    ) -> (Self, CredentialsTask) {
        let mut client = Self::over(wire, metrics);
        if let Some(identity) = &identity {
            client.server = identity.config.cluster_url.to_string().into();
        }
        let task = CredentialsTask {
            access: access.clone(),
            identity: identity.map(Arc::new),
            own: None,
            shared: Arc::clone(&client.shared),
            told: None,
            plugin_ran: Instant::now(),
        };
        (client, task)
    }
}

fn connect(access: &ApiAccess, identity: &Identity) -> Result<Wire, ConnectError> {
    wire(&identity.config).map_err(|error| {
        let cause = chain(&error);
        match access {
            ApiAccess::Kubeconfig(path) => ConnectError::Kubeconfig {
                path: path.clone(),
                cause,
            },
            ApiAccess::InCluster | ApiAccess::None => ConnectError::InCluster(cause),
        }
    })
}

/// The result of checking credentials and connections.
enum Looked {
    /// They can go on.
    Fine,
    /// The same credentials on new connections.
    Stalled(Wire),
    /// New credentials.
    Replaced(Box<Identity>, Wire),
}

/// Keeps the credentials of a [`ClusterClient`] fresh, and gives connections up that have died
/// without a word: looks every few seconds, and when they were refused, whether their files were
/// replaced, and has new requests use the new ones. Replaced files that don't fit together yet (a
/// new certificate beside the old key) change nothing until they do.
pub struct CredentialsTask {
    access: ApiAccess,
    /// None until there is one.
    identity: Option<Arc<Identity>>,
    /// The identity that the first certificate is judged by; `None` if there was one from the start.
    pub(super) own: Option<NodeIdentity>,
    shared: Arc<Shared>,
    /// The problem reported last.
    told: Option<String>,
    plugin_ran: Instant,
}

impl CredentialsTask {
    /// Runs until cancelled.
    pub async fn run(mut self, cancel: CancellationToken) {
        loop {
            tokio::select! {
                () = cancel.cancelled() => return,
                () = tokio::time::sleep(CHECK_PERIOD) => {}
                () = self.shared.doubts.notified() => {}
            }
            self.check().await;
            tokio::select! {
                () = cancel.cancelled() => return,
                () = tokio::time::sleep(CHECK_MIN) => {}
            }
        }
    }

    async fn check(&mut self) {
        let refused = self.shared.refused.swap(false, Ordering::Relaxed);
        let has_plugin = self.identity.as_ref().is_some_and(|one| one.has_plugin);
        let runs_plugin = refused && has_plugin && self.plugin_ran.elapsed() > PLUGIN_MIN;
        if runs_plugin {
            self.plugin_ran = Instant::now();
        }
        let (access, before) = (self.access.clone(), self.identity.clone());
        let own = self.own.clone();
        let stalled = self.shared.take_stalled();
        // Reads a few small files, and runs the kubeconfig's plugin if there is one.
        let looked = tokio::task::spawn_blocking(move || {
            let is_same = |known: &identity::Fingerprint| {
                identity::fingerprint(known.keys().cloned()) == *known
            };
            if let Some(before) = &before {
                let is_fresh = is_same(&before.fingerprint) && (!refused || is_same(&before.token));
                if is_fresh && !runs_plugin {
                    return Ok(if stalled {
                        Looked::Stalled(connect(&access, before)?)
                    } else {
                        Looked::Fine
                    });
                }
            } else if let Some(own) = own
                && matches!(own.verdict(), Verdict::Needed(_))
            {
                // Whoever gets it reports what is missing.
                return Ok(Looked::Fine);
            }
            let Some(identity) = identity::read(&access)? else {
                return Ok(Looked::Fine);
            };
            let wire = connect(&access, &identity)?;
            Ok::<_, ConnectError>(Looked::Replaced(Box::new(identity), wire))
        });
        match looked.await {
            Ok(Ok(Looked::Fine)) | Err(_) => {}
            Ok(Ok(Looked::Stalled(wire))) => {
                self.shared.replace(wire);
                occurrences::api_connections_given_up();
            }
            Ok(Ok(Looked::Replaced(identity, wire))) => {
                self.shared.replace(wire);
                self.identity = Some(Arc::new(*identity));
                self.told = None;
                occurrences::credentials_replaced();
            }
            Ok(Err(error)) => {
                let words = error.to_string();
                if self.told.as_ref() != Some(&words) {
                    occurrences::credentials_unusable(&words);
                    self.told = Some(words);
                }
            }
        }
    }
}
