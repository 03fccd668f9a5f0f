//! The credentials of a client: read, and taken up anew when their files are replaced.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::Instant;

use super::client::ClusterClient;
use super::connection::{Shared, Wire, wire};
use super::error::chain;
use super::identity::{self, ConnectError, Identity, NodeIdentity};
use crate::config::ApiAccess;
use crate::store::cell::{Reader, Writer, cell};
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
        let client = Self::over(wire, metrics);
        if let Some(identity) = &identity {
            client.shared.set_server(&server(identity));
        }
        let task = CredentialsTask {
            access: access.clone(),
            identity: identity.map(Arc::new),
            own: None,
            shared: Arc::clone(&client.shared),
            problem: cell(None).0,
            plugin_ran: Instant::now(),
        };
        (client, task)
    }
}

/// The address of the API server of that identity.
pub(super) fn server(identity: &Identity) -> String {
    identity.config.cluster_url.to_string()
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
enum CheckResult {
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
    /// Why the replaced files can't be used.
    problem: Writer<Option<String>>,
    plugin_ran: Instant,
}

impl CredentialsTask {
    /// Why the credentials on disk can't be used, while those from before are still in use.
    pub fn problem(&self) -> Reader<Option<String>> {
        self.problem.reader()
    }

    /// Runs until cancelled.
    pub async fn run(mut self) {
        loop {
            tokio::select! {
                () = tokio::time::sleep(CHECK_PERIOD) => {}
                () = self.shared.doubts.notified() => {}
            }
            self.check().await;
            tokio::time::sleep(CHECK_MIN).await;
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
                        CheckResult::Stalled(connect(&access, before)?)
                    } else {
                        CheckResult::Fine
                    });
                }
            } else if let Some(own) = own
                && matches!(own.verdict(), Verdict::Needed(_))
            {
                // Whoever gets it reports what is missing.
                return Ok(CheckResult::Fine);
            }
            let Some(identity) = identity::read(&access)? else {
                return Ok(CheckResult::Fine);
            };
            let wire = connect(&access, &identity)?;
            Ok::<_, ConnectError>(CheckResult::Replaced(Box::new(identity), wire))
        });
        match looked.await {
            Ok(Ok(CheckResult::Fine)) => {
                self.problem.publish(None);
            }
            Err(_) => {}
            Ok(Ok(CheckResult::Stalled(wire))) => {
                self.shared.replace(wire, &self.shared.server());
                self.problem.publish(None);
                occurrences::api_connections_given_up();
            }
            Ok(Ok(CheckResult::Replaced(identity, wire))) => {
                let server = server(&identity);
                self.shared.replace(wire, &server);
                self.identity = Some(Arc::new(*identity));
                self.problem.publish(None);
                occurrences::credentials_replaced(&server);
                self.shared.renewed.notify_one();
            }
            Ok(Err(error)) => {
                let words = error.to_string();
                if self.problem.publish(Some(words.clone())) {
                    occurrences::credentials_unusable(&words);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_address_of_a_replaced_kubeconfig_is_named_and_a_bad_one_reported() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("kubeconfig");
        let write = |port: u16| {
            let text = format!(
                "current-context: x\ncontexts: [{{name: x, context: {{cluster: c, user: u}}}}]\nclusters: [{{name: c, cluster: {{server: 'http://127.0.0.1:{port}'}}}}]\nusers: [{{name: u, user: {{token: t}}}}]\n"
            );
            std::fs::write(&path, text).unwrap();
        };
        write(1);
        let access = ApiAccess::Kubeconfig(path.clone());
        let (client, mut task) = ClusterClient::open(&access, Metrics::new())
            .unwrap()
            .unwrap();
        assert_eq!(&*client.server(), "http://127.0.0.1:1/");
        write(2);
        task.check().await;
        // node 6c
        assert_eq!(&*client.server(), "http://127.0.0.1:2/");
        let problem = task.problem();
        std::fs::write(&path, "a: [").unwrap();
        task.check().await;
        let words = (*problem.get()).clone().unwrap();
        assert!(words.contains(path.to_str().unwrap()), "{words}");
        assert_eq!(&*client.server(), "http://127.0.0.1:2/");
        write(2);
        task.check().await;
        assert_eq!(*problem.get(), None, "it is what is in use");
    }
}
