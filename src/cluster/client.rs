//! The one client of the API server, shared by all that call it.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::BodyExt;
use kube::client::Body;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tower::util::BoxCloneSyncService;
use tower::{BoxError, Service, ServiceExt};

use super::certificate::{ClientCertificateTask, IdentityStanding, NodeIdentity};
use super::connection::{Shared, Transport, Wire, no_wire, wire};
use super::error::{ApiError, chain};
use super::identity::{self, ConnectError, Identity};
use super::limit::WriteLimit;
use super::reach::{ApiReach, ReachTracker};
use crate::config::ApiAccess;
use crate::store::cell::{Reader, cell};
use mirrorlet_core::api::Timestamp;
use mirrorlet_core::certificate::Verdict;
use mirrorlet_host::telemetry::{Metrics, Telemetry, occurrences};

/// Deadline of a call that nobody has to wait for: upstream's API server answers in ms, and ends
/// a call that is stuck after 34 s or more; ten seconds tell a caller soon enough to try again.
pub const CALL_DEADLINE: Duration = Duration::from_secs(10);
/// How often the files that make our identity are compared with what is in use. A few small
/// files, so it costs nothing; certificates are replaced long before they end.
const CHECK_PERIOD: Duration = Duration::from_secs(10);
/// Shortest time between two checks, whatever is doubted: calls fail by the dozen while the
/// server is away.
const CHECK_MIN: Duration = Duration::from_secs(1);
/// Shortest time between two runs of a credential plugin whose credentials are refused.
const PLUGIN_MIN: Duration = Duration::from_mins(1);

/// The client of the API server. Cheap to clone: clones share connections, limit and reach.
///
/// Reads go through [`read`](Self::read), writes through [`write`](Self::write); the Node's
/// status and Lease through [`heartbeat`](Self::heartbeat), which waits for nobody. The
/// [`kube::Client`] stays the same for ever, whatever becomes of certificates: only watches end
/// once when they are replaced, and go on with the new ones.
#[derive(Clone)]
pub struct ClusterClient {
    client: kube::Client,
    limit: Arc<WriteLimit>,
    shared: Arc<Shared>,
    reach: Reader<ApiReach>,
    server: Arc<str>,
}

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

    fn with(
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

    /// A client as the node of a kubeconfig, whose certificate is requested and renewed where that
    /// is ours to do, and the tasks that keep its credentials. While there is no identity every
    /// call fails and says why. Nothing is called yet. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// The kubeconfig, or a file it names, can't be used, and there is none to get another with.
    pub fn open_node(
        options: NodeIdentity,
        telemetry: &Telemetry,
    ) -> Result<(Self, CredentialsTask, ClientCertificateTask), ConnectError> {
        let access = ApiAccess::Kubeconfig(options.kubeconfig.clone());
        let metrics = telemetry.metrics.clone();
        let (mut standing, reader) = cell(IdentityStanding::Given);
        let (client, mut credentials) = match (&options.bootstrap, options.verdict()) {
            (Some(bootstrap), Verdict::Needed(words)) => {
                let since = Timestamp::now();
                standing.publish(IdentityStanding::Needed { words, since });
                let (mut client, task) = Self::with(&access, no_wire(reader), None, metrics);
                // One that can't be read is complained of when it is needed.
                if let Ok(identity) = identity::read_bootstrap(bootstrap) {
                    client.server = identity.config.cluster_url.to_string().into();
                }
                (client, task)
            }
            _ => match Self::open(&access, metrics)? {
                Some(opened) => opened,
                None => unreachable!("a kubeconfig is no lack of one"),
            },
        };
        let certificate = ClientCertificateTask::new(
            options.clone(),
            client.clone(),
            standing,
            telemetry.clone(),
        );
        credentials.own = Some(options);
        Ok((client, credentials, certificate))
    }

    /// A client that asks for a first certificate, as whom that identity is.
    pub(super) fn as_bootstrap(
        path: &Path,
        identity: &Identity,
        metrics: Metrics,
    ) -> Result<Self, ConnectError> {
        let wire = wire(&identity.config).map_err(|error| ConnectError::Bootstrap {
            path: path.to_owned(),
            cause: chain(&error),
        })?;
        Ok(Self::over(wire, metrics))
    }

    /// The files of our identity were replaced just now.
    pub(super) fn credentials_changed(&self) {
        self.shared.doubts.notify_one();
    }

    /// A client over any HTTP service; tests inject faults there.
    pub fn over_service<S, B>(service: S, metrics: Metrics) -> Self
    where
        S: Service<Request<Body>, Response = Response<B>> + Clone + Send + Sync + 'static,
        S::Error: Into<BoxError>,
        S::Future: Send + 'static,
        B: hyper::body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        Self::over(boxed(service), metrics)
    }

    /// Has new requests take another service.
    #[cfg(test)]
    pub(super) fn replace_service<S, B>(&self, service: S)
    where
        S: Service<Request<Body>, Response = Response<B>> + Clone + Send + Sync + 'static,
        S::Error: Into<BoxError>,
        S::Future: Send + 'static,
        B: hyper::body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        self.shared.replace(boxed(service));
    }

    fn over(wire: Wire, metrics: Metrics) -> Self {
        let (tracker, reach) = ReachTracker::new(metrics.clone());
        let shared = Shared::new(wire, tracker, metrics);
        let transport = Transport {
            shared: Arc::clone(&shared),
        };
        Self {
            client: kube::Client::new(transport, "default"),
            limit: Arc::default(),
            shared,
            reach,
            server: "".into(),
        }
    }

    /// Address of the API server, for people; empty for one over a service.
    #[must_use]
    pub fn server(&self) -> &str {
        &self.server
    }

    /// kube's client, for typed [`kube::Api`]s and watches.
    #[must_use]
    pub fn client(&self) -> kube::Client {
        self.client.clone()
    }

    /// Whether the API server answers.
    #[must_use]
    pub fn reach(&self) -> Reader<ApiReach> {
        self.reach.clone()
    }

    /// Makes a call that changes nothing. It ends within `deadline`.
    ///
    /// # Errors
    /// As the API server says; [`ApiError::Away`] after the deadline.
    pub async fn read<T>(
        &self,
        deadline: Duration,
        call: impl Future<Output = kube::Result<T>>,
    ) -> Result<T, ApiError> {
        self.bounded(deadline, call).await
    }

    /// Makes a call that changes something, when its turn has come: all writes but heartbeats
    /// share one limit, 50 a second after a burst of 100. The deadline counts from its turn.
    ///
    /// # Errors
    /// As the API server says; [`ApiError::Away`] after the deadline.
    pub async fn write<T>(
        &self,
        deadline: Duration,
        call: impl Future<Output = kube::Result<T>>,
    ) -> Result<T, ApiError> {
        self.limit.turn().await;
        self.bounded(deadline, call).await
    }

    /// As [`write`](Self::write), under a limit of its own.
    ///
    /// # Errors
    /// As the API server says; [`ApiError::Away`] after the deadline.
    pub(super) async fn write_within<T>(
        &self,
        limit: &WriteLimit,
        deadline: Duration,
        call: impl Future<Output = kube::Result<T>>,
    ) -> Result<T, ApiError> {
        limit.turn().await;
        self.bounded(deadline, call).await
    }

    /// Makes a call that tells we live. It waits for no turn, so that no burst of other writes
    /// makes the Node look dead; its caller keeps it seldom.
    ///
    /// # Errors
    /// As the API server says; [`ApiError::Away`] after the deadline.
    pub async fn heartbeat<T>(
        &self,
        deadline: Duration,
        call: impl Future<Output = kube::Result<T>>,
    ) -> Result<T, ApiError> {
        self.bounded(deadline, call).await
    }

    async fn bounded<T>(
        &self,
        deadline: Duration,
        call: impl Future<Output = kube::Result<T>>,
    ) -> Result<T, ApiError> {
        let began = Instant::now();
        if let Ok(outcome) = tokio::time::timeout(deadline, call).await {
            return outcome.map_err(ApiError::from);
        }
        let error = ApiError::deadline(deadline);
        if let ApiError::Away { cause } = &error {
            self.shared.reach.silent(began, cause);
        }
        Err(error)
    }
}

impl std::fmt::Debug for ClusterClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClusterClient").finish_non_exhaustive()
    }
}

fn boxed<S, B>(service: S) -> Wire
where
    S: Service<Request<Body>, Response = Response<B>> + Clone + Send + Sync + 'static,
    S::Error: Into<BoxError>,
    S::Future: Send + 'static,
    B: hyper::body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    let wire = service
        .map_response(|answer: Response<B>| {
            answer.map(|body| body.map_err(Into::into).boxed_unsync())
        })
        .map_err(Into::into);
    BoxCloneSyncService::new(wire)
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

/// What a look at credentials and connections brings.
enum Looked {
    /// They can go on.
    Fine,
    /// The same credentials on new connections.
    Stalled(Wire),
    /// New credentials.
    Replaced(Box<Identity>, Wire),
}

/// Keeps the credentials of a [`ClusterClient`] fresh, and gives connections up that have died
/// without a word: looks every few seconds, and when they
/// were refused, whether their files were replaced, and has new requests use the new ones.
/// Replaced files that don't fit together yet (a new certificate beside the old key) change
/// nothing until they do.
pub struct CredentialsTask {
    access: ApiAccess,
    /// None until there is one.
    identity: Option<Arc<Identity>>,
    /// What the first one is judged by; none where there was one from the beginning.
    own: Option<NodeIdentity>,
    shared: Arc<Shared>,
    /// The problem that was told last.
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
                // Whoever gets it tells what is missing.
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
