//! The credentials of a client: read, and replaced when their files change or their plug-in returns new
//! ones.

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::future::BoxFuture;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::client::ClusterClient;
use super::connection::{Shared, Wire, no_wire, wire};
use super::error::chain;
use super::identity::{self, ConnectError, Identity, NodeIdentity};
use super::plugin::{Credentials, Plugin};
use crate::config::ApiAccess;
use crate::store::cell::{Reader, Writer, cell};
use mirrorlet_core::api::Timestamp;
use mirrorlet_core::api::report::CredentialsFault;
use mirrorlet_core::backoff::ExponentialBackoff;
use mirrorlet_core::certificate::Verdict;
use mirrorlet_host::disk;
use mirrorlet_host::telemetry::{Metrics, occurrences};

/// How often the files that make our identity are compared with what is in use. A few small
/// files, so it costs nothing; certificates are replaced long before they end.
const CHECK_PERIOD: Duration = Duration::from_secs(10);
/// Shortest time between two checks, whatever is doubted: calls fail by the dozen while the
/// server is away.
const CHECK_MIN: Duration = Duration::from_secs(1);
/// Minimum time between two runs of a credential plug-in whose credentials are rejected.
const PLUGIN_MIN: Duration = Duration::from_mins(1);
/// How long before the end of its credentials a plug-in is run again, as in kube.
const PLUGIN_AHEAD: Duration = Duration::from_mins(1);
/// Pauses after failed runs of a plug-in.
const PLUGIN_RETRY: ExponentialBackoff =
    ExponentialBackoff::new(CHECK_PERIOD, Duration::from_mins(1));

impl ClusterClient {
    /// Returns a client for that access, and the task that updates its credentials; none if no API
    /// server is configured. Makes no calls, and runs no plug-in: without credentials every call fails
    /// with the reason. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// The kubeconfig, or a file it refers to, can't be used; there is no in-cluster account.
    pub fn open(
        access: &ApiAccess,
        metrics: Metrics,
    ) -> Result<Option<(Self, CredentialsTask)>, ConnectError> {
        let Some(identity) = identity::read(access)? else {
            return Ok(None);
        };
        let plugin = plugin_of(access, &identity)?;
        // With a plug-in that is no way yet, but shows what else can't be used.
        let mut wire = connect(access, &identity, None)?;
        let (problem, reader) = cell(None::<CredentialsProblem>);
        if let Some(plugin) = &plugin {
            let unanswered = unusable(access, plugin.unanswered()).to_string();
            wire = no_wire(move || {
                let problem = reader.get();
                let words = (*problem).as_ref().map(|problem| &problem.words);
                words.unwrap_or(&unanswered).clone()
            });
        }
        let (client, mut task) = Self::with(access, wire, Some(identity), metrics);
        task.problem = problem;
        task.is_identified = plugin.is_none();
        task.plugin = plugin;
        Ok(Some((client, task)))
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
            is_identified: identity.is_some(),
            identity: identity.map(Arc::new),
            own: None,
            shared: Arc::clone(&client.shared),
            of_files: None,
            problem: cell(None).0,
            plugin: None,
            runs: PluginRuns::default(),
        };
        (client, task)
    }
}

/// The address of the API server of that identity.
pub(super) fn server(identity: &Identity) -> String {
    identity.config.cluster_url.to_string()
}

fn connect(
    access: &ApiAccess,
    identity: &Identity,
    made: Option<&Credentials>,
) -> Result<Wire, ConnectError> {
    wire(&identity.config, made).map_err(|error| unusable(access, chain(&error)))
}

fn plugin_of(access: &ApiAccess, identity: &Identity) -> Result<Option<Plugin>, ConnectError> {
    Plugin::of(&identity.config).map_err(|cause| unusable(access, cause))
}

fn unusable(access: &ApiAccess, cause: String) -> ConnectError {
    match access {
        ApiAccess::Kubeconfig(path) => ConnectError::Kubeconfig {
            path: path.clone(),
            cause,
        },
        ApiAccess::InCluster | ApiAccess::None => ConnectError::InCluster(cause),
    }
}

/// The result of checking credentials and connections.
enum CheckResult {
    /// They can be used.
    Fine,
    /// The same credentials on new connections.
    Stalled(Wire),
    /// New credentials.
    Replaced(Box<Identity>, Wire),
    /// New credentials, which this plug-in has yet to provide.
    Planned(Box<Identity>, Box<Plugin>),
}

/// Credentials that a plug-in made, and the way with them.
struct Made {
    credentials: Arc<Credentials>,
    wire: Wire,
    /// The address of the API server.
    server: String,
}

/// A run of a plug-in. Dropping it kills the program.
type PluginRun = BoxFuture<'static, Result<Made, ConnectError>>;

/// How the plug-in of the present identity fares.
#[derive(Default)]
struct PluginRuns {
    /// The credentials that it made last.
    made: Option<Arc<Credentials>>,
    /// The run that has not ended yet.
    under_way: Option<PluginRun>,
    /// When its last run ended.
    ran: Option<Instant>,
    failures: u32,
    /// Why the last run failed.
    problem: Option<String>,
}

impl PluginRuns {
    /// Whether it is to be run: there are no credentials, or they are about to end, or were refused.
    fn is_due(&self, refused: bool, now: Timestamp) -> bool {
        let soon = now.checked_add(PLUGIN_AHEAD).unwrap_or(now);
        let ends = self.made.as_ref().map(|made| made.ends);
        let end_soon = ends.is_none_or(|ends| ends.is_some_and(|ends| ends <= soon));
        let pause = if self.failures > 0 {
            PLUGIN_RETRY.after(self.failures)
        } else if end_soon {
            CHECK_PERIOD
        } else if refused {
            PLUGIN_MIN
        } else {
            return false;
        };
        self.ran.is_none_or(|ran| ran.elapsed() >= pause)
    }
}

/// A problem with the credentials for the API server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CredentialsProblem {
    /// Its kind.
    pub fault: CredentialsFault,
    /// Its cause, for users.
    pub words: String,
}

/// Updates the credentials of a [`ClusterClient`], and abandons connections that have died silently:
/// every few seconds, and after a rejection, it checks whether the files were replaced, and switches
/// new requests to the new ones. Replaced files that don't match yet (a new certificate beside the old
/// key) change nothing until they do.
pub struct CredentialsTask {
    access: ApiAccess,
    /// None until there is one.
    identity: Option<Arc<Identity>>,
    /// The expected identity of the first certificate; `None` if there was one from the start.
    pub(super) own: Option<NodeIdentity>,
    shared: Arc<Shared>,
    /// Whether requests are sent with credentials.
    is_identified: bool,
    /// Why the files on disk can't be used.
    of_files: Option<String>,
    /// The problem with the files on disk, else with the plug-in.
    problem: Writer<Option<CredentialsProblem>>,
    /// The plug-in of the identity, if that has one.
    plugin: Option<Plugin>,
    runs: PluginRuns,
}

impl CredentialsTask {
    /// Why the credentials on disk can't be used, or why the plug-in failed.
    pub fn problem(&self) -> Reader<Option<CredentialsProblem>> {
        self.problem.reader()
    }

    /// Runs until cancelled. A running plug-in is killed then.
    pub async fn run(mut self) {
        let (mut checked, mut quiet) = (Instant::now(), Duration::ZERO);
        if self.plugin.is_some() {
            self.check().await;
        }
        loop {
            // Both arms are cancel-safe.
            tokio::select! {
                () = next_check(&self.shared.doubts, checked, quiet) => {
                    self.check().await;
                    (checked, quiet) = (Instant::now(), CHECK_MIN);
                }
                made = end_of(&mut self.runs.under_way) => self.end_plugin(made),
            }
        }
    }

    /// Checks the files, and starts the plug-in if it must be run. Doesn't wait for it.
    async fn check(&mut self) {
        let refused = self.shared.refused.swap(false, Ordering::Relaxed);
        let of_files = self.look(refused).await.err();
        self.of_files = of_files.map(|error| error.to_string());
        self.start_plugin(refused);
        self.report();
    }

    /// Reports the problem with the files, else the one with the plug-in.
    fn report(&mut self) {
        let of_files = self.of_files.clone().map(|words| CredentialsProblem {
            fault: if self.is_identified {
                CredentialsFault::Replaced
            } else {
                CredentialsFault::Missing
            },
            words,
        });
        let problem = of_files.or_else(|| {
            self.runs.problem.clone().map(|words| CredentialsProblem {
                fault: CredentialsFault::Plugin,
                words,
            })
        });
        if self.problem.publish(problem.clone())
            && let Some(problem) = problem
        {
            occurrences::credentials_failed(problem.fault, &problem.words);
        }
    }

    /// Switches to replaced files, and abandons connections that have died.
    async fn look(&mut self, refused: bool) -> Result<(), ConnectError> {
        let (access, before) = (self.access.clone(), self.identity.clone());
        let (made, own) = (self.runs.made.clone(), self.own.clone());
        let waits = self.plugin.is_some() && made.is_none();
        let stalled = self.shared.take_stalled() && !waits;
        let result = disk::blocking(move || {
            let is_same = |known: &identity::Fingerprint| {
                identity::fingerprint(known.keys().cloned()) == *known
            };
            if let Some(before) = &before {
                let is_fresh = is_same(&before.fingerprint) && (!refused || is_same(&before.token));
                if is_fresh {
                    return Ok(if stalled {
                        CheckResult::Stalled(connect(&access, before, made.as_deref())?)
                    } else {
                        CheckResult::Fine
                    });
                }
            } else if let Some(own) = own
                && matches!(own.verdict(), Verdict::Needed(_))
            {
                // The user of the credentials reports what is missing.
                return Ok(CheckResult::Fine);
            }
            let Some(identity) = identity::read(&access)? else {
                return Ok(CheckResult::Fine);
            };
            let plugin = plugin_of(&access, &identity)?;
            let wire = connect(&access, &identity, None)?;
            let identity = Box::new(identity);
            Ok::<_, ConnectError>(match plugin {
                Some(plugin) => CheckResult::Planned(identity, Box::new(plugin)),
                None => CheckResult::Replaced(identity, wire),
            })
        });
        match result.await? {
            CheckResult::Fine => {}
            CheckResult::Stalled(wire) => {
                self.shared.replace(wire, &self.shared.server());
                occurrences::api_connections_given_up();
            }
            CheckResult::Replaced(identity, wire) => {
                let server = server(&identity);
                self.take_up(*identity, None);
                self.is_identified = true;
                self.shared.replace(wire, &server);
                occurrences::credentials_replaced(&server);
                self.shared.renewed.notify_one();
            }
            CheckResult::Planned(identity, plugin) => self.take_up(*identity, Some(*plugin)),
        }
        Ok(())
    }

    /// Switches to another identity. A run for the previous one is killed.
    fn take_up(&mut self, identity: Identity, plugin: Option<Plugin>) {
        self.identity = Some(Arc::new(identity));
        self.plugin = plugin;
        self.runs = PluginRuns::default();
    }

    /// Starts the plug-in, if it is to be run.
    fn start_plugin(&mut self, refused: bool) {
        let (Some(plugin), Some(identity)) = (&self.plugin, &self.identity) else {
            return;
        };
        if self.runs.under_way.is_some() || !self.runs.is_due(refused, Timestamp::now()) {
            return;
        }
        let (plugin, identity) = (plugin.clone(), Arc::clone(identity));
        let run = run_plugin(plugin, self.access.clone(), identity);
        self.runs.under_way = Some(Box::pin(run));
    }

    /// Handles the end of a run, and makes new requests use its credentials.
    fn end_plugin(&mut self, made: Result<Made, ConnectError>) {
        self.runs.under_way = None;
        self.runs.ran = Some(Instant::now());
        match made {
            Ok(made) => {
                let is_first = self.runs.made.is_none();
                // Requests in progress with a token continue after its expiry; a connection with a
                // certificate belongs to that certificate.
                if is_first || made.credentials.has_certificate() {
                    self.shared.replace(made.wire, &made.server);
                } else {
                    self.shared.renew(made.wire);
                }
                self.runs.made = Some(made.credentials);
                self.is_identified = true;
                self.runs.failures = 0;
                self.runs.problem = None;
                if is_first {
                    self.shared.renewed.notify_one();
                }
            }
            Err(error) => {
                self.runs.failures = self.runs.failures.saturating_add(1);
                self.runs.problem = Some(error.to_string());
            }
        }
        self.report();
    }
}

/// Waits for the next check: for [`CHECK_PERIOD`] from the last one, or for a doubt, `quiet` after it.
///
/// # Cancel safety
/// A doubt that was not answered stays one.
async fn next_check(doubts: &Notify, checked: Instant, quiet: Duration) {
    tokio::time::sleep_until(checked + quiet).await;
    tokio::select! {
        () = tokio::time::sleep_until(checked + CHECK_PERIOD) => {}
        () = doubts.notified() => {}
    }
}

/// Runs a plug-in, and makes the way with its credentials.
async fn run_plugin(
    plugin: Plugin,
    access: ApiAccess,
    identity: Arc<Identity>,
) -> Result<Made, ConnectError> {
    let made = plugin.run().await;
    let made = made.map_err(|cause| unusable(&access, cause))?;
    disk::blocking(move || {
        let wire = connect(&access, &identity, Some(&made));
        wire.map(|wire| Made {
            credentials: Arc::new(made),
            wire,
            server: server(&identity),
        })
    })
    .await
}

/// The end of a run; never without one.
///
/// # Cancel safety
/// The run goes on when the end is waited for again.
async fn end_of(run: &mut Option<PluginRun>) -> Result<Made, ConnectError> {
    match run {
        Some(run) => run.await,
        None => std::future::pending().await,
    }
}
