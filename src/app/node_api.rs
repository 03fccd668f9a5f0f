//! Wires the node API: the server calls the API server through the cluster's client, and trusts the
//! client certificates of the authorities that are maintained here.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use async_trait::async_trait;
use sha2::{Digest, Sha256};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::{Parts, spawn, spawn_until};
use crate::certificate;
use crate::cluster::{ApiError, CertificateRequests, ClusterClient, Reviews};
use crate::config::{ApiAccess, Config, Key};
use crate::server::health::Served;
use crate::server::node::auth::{ClientAuthorities, ReviewError, Reviewer};
use crate::server::node::certificate::{Names, Origin};
use crate::server::node::{NodeApi, NodeApiParts};
use crate::store::cell::{Reader, Writer, cell};
use mirrorlet_core::access::User;
use mirrorlet_core::backoff::ExponentialBackoff;
use mirrorlet_core::node::NodeFacts;
use mirrorlet_core::small::SmallCollect;
use mirrorlet_host::disk;
use mirrorlet_host::random::spread;
use mirrorlet_host::telemetry::occurrences;

/// Interval of checks of a file of authorities: it is small.
const FILE_PERIOD: Duration = Duration::from_secs(10);
/// How often the published authorities are read from the API server: they change once in years, and new
/// ones are published well before they are used.
const PUBLISHED_PERIOD: Duration = Duration::from_mins(10);
/// Pause after the API server could not be asked.
const PUBLISHED_PAUSE: Duration = Duration::from_secs(5);
/// Pauses after a refusal while no authorities are known: until then, no client with a certificate can
/// call the node API. The server may have just started, or throttle the requests of all nodes that did.
const UNKNOWN_PAUSES: ExponentialBackoff =
    ExponentialBackoff::new(Duration::from_secs(5), Duration::from_mins(1));

/// Reviews permissions with the API server.
struct ClusterReviewer(Reviews);

fn unknown(error: &ApiError) -> ReviewError {
    ReviewError(error.to_string())
}

#[async_trait]
impl Reviewer for ClusterReviewer {
    async fn review_token(&self, token: &str) -> Result<Option<User>, ReviewError> {
        self.0.token(token).await.map_err(|error| unknown(&error))
    }

    async fn review_access(
        &self,
        user: &User,
        verb: &str,
        subresource: &str,
    ) -> Result<bool, ReviewError> {
        let access = self.0.access(user, verb, subresource);
        access.await.map_err(|error| unknown(&error))
    }
}

/// The bound port of the node API, before it is served.
pub(super) struct Listening {
    listener: TcpListener,
    /// The address of the port.
    pub(super) address: SocketAddr,
    problem: Writer<Option<String>>,
}

impl Listening {
    /// Why the API server can't call the node API.
    pub(super) fn problem(&self) -> Reader<Option<String>> {
        self.problem.reader()
    }
}

/// Binds the port of the node API, unless it is disabled. Called before the Node publishes it.
pub(super) async fn listen(config: &Config) -> anyhow::Result<Option<Listening>> {
    let Some(address) = config.node_api() else {
        return Ok(None);
    };
    let listener = TcpListener::bind(address).await.with_context(|| {
        format!(
            "failed to serve the node API on {address}; choose another port with --node-api-port, or 0 for none"
        )
    })?;
    Ok(Some(Listening {
        address: listener.local_addr()?,
        listener,
        problem: cell(None).0,
    }))
}

/// The origin of the node API's certificate.
fn origin(config: &Config, client: &ClusterClient) -> Origin {
    match (&config.tls_cert_file, &config.tls_private_key_file) {
        (Some(certificate), Some(key)) => Origin::Files {
            certificate: certificate.clone(),
            key: key.clone(),
        },
        _ if config.rotate_server_certificates => Origin::Cluster {
            signer: Arc::new(CertificateRequests::new(client.clone())),
            directory: config.root.join(certificate::DIRECTORY),
        },
        _ => Origin::Own,
    }
}

/// Our settings that a kubelet has, under the kubelet's names.
fn configz(config: &Config, port: u16) -> serde_json::Value {
    serde_json::json!({
        "enableServer": true,
        "staticPodPath": config.manifests,
        "address": config.node_api_address,
        "port": port,
        "rotateCertificates": config.bootstrap_kubeconfig != ApiAccess::None,
        "serverTLSBootstrap": config.rotate_server_certificates,
        "authentication": {
            "x509": {"clientCAFile": config.client_ca_file},
            "webhook": {"enabled": true, "cacheTTL": "2m0s"},
            "anonymous": {"enabled": false},
        },
        "authorization": {
            "mode": "Webhook",
            "webhook": {"cacheAuthorizedTTL": "5m0s", "cacheUnauthorizedTTL": "30s"},
        },
        "clusterDomain": config.cluster_domain,
        "clusterDNS": config.cluster_dns,
        "resolvConf": config.resolv_conf,
        "cgroupRoot": config.cgroup_root,
        "maxPods": config.max_pods,
        "seccompDefault": config.seccomp_default,
        "containerLogMaxSize": config.shown(Key::ContainerLogMaxSize).first(),
        "containerLogMaxFiles": config.container_log_max_files,
        "podLogsDir": config.pod_logs_dir,
        "serializeImagePulls": config.serialize_image_pulls,
        "imagePullCredentialsVerificationPolicy":
            config.shown(Key::ImagePullCredentialsVerificationPolicy).first(),
        "preloadedImagesVerificationAllowlist":
            config.shown(Key::PreloadedImagesVerificationAllowlist),
        "imageGCHighThresholdPercent": config.image_gc_high_threshold,
        "imageGCLowThresholdPercent": config.image_gc_low_threshold,
        "evictionHard": by_signal(config, Key::EvictionHard),
        "evictionSoft": by_signal(config, Key::EvictionSoft),
        "evictionSoftGracePeriod": by_signal(config, Key::EvictionSoftGracePeriod),
        "evictionMaxPodGracePeriod": config.eviction_max_pod_grace_period,
        "evictionMinimumReclaim": by_signal(config, Key::EvictionMinimumReclaim),
        "evictionPressureTransitionPeriod":
            config.shown(Key::EvictionPressureTransitionPeriod).first(),
        "containerRuntimeEndpoint": config.docker,
    })
}

/// A setting with a value for each signal, as a kubelet has it: a map.
fn by_signal(config: &Config, key: Key) -> BTreeMap<String, String> {
    let shown = config.shown(key);
    let pairs = shown.iter().filter_map(|pair| pair.split_once(['<', '=']));
    pairs
        .map(|(signal, value)| (signal.to_owned(), value.to_owned()))
        .collect_map()
}

/// Starts the node API on that port.
pub(super) fn start(
    config: &Config,
    listening: Listening,
    (facts, addresses): (&NodeFacts, Reader<Vec<IpAddr>>),
    client: &ClusterClient,
    served: &Served,
    parts: &mut Parts,
    cancel: &CancellationToken,
) -> anyhow::Result<()> {
    let Listening {
        listener,
        address,
        problem,
    } = listening;
    let authorities = Arc::new(ClientAuthorities::default());
    if let Some(file) = &config.client_ca_file {
        let mut file = AuthoritiesFile::new(file);
        file.look(&authorities)
            .with_context(|| format!("--client-ca-file {} is unusable", file.path.display()))?;
        let keeping = file.keep(Arc::clone(&authorities), problem);
        spawn_until(parts, cancel, "client authorities", keeping);
    } else {
        let authorities = Arc::clone(&authorities);
        let keeping = keep_published(client.clone(), authorities, problem);
        spawn_until(parts, cancel, "client authorities", keeping);
    }
    let reviews = Reviews::new(client.clone(), config.node_name.clone());
    let node_api = NodeApi::new(NodeApiParts {
        view: Arc::clone(&served.view),
        stats: Arc::clone(&served.stats),
        metrics: served.metrics.clone(),
        configz: configz(config, address.port()),
        reviewer: Arc::new(ClusterReviewer(reviews)),
        authorities,
        certificate: origin(config, client),
        names: Names {
            node: config.node_name.to_string(),
            hostname: facts.hostname.clone(),
            addresses: (*addresses.get()).clone(),
        },
        addresses,
    })?;
    occurrences::node_api_served(address);
    spawn(parts, "node API", node_api.serve(listener, cancel.clone()));
    Ok(())
}

/// A file of authorities.
struct AuthoritiesFile {
    path: PathBuf,
    /// Hash of what is believed.
    seen: Option<[u8; 32]>,
}

impl AuthoritiesFile {
    fn new(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            seen: None,
        }
    }

    /// Reads the file, and believes what is in it from now on if that has changed. Blocks on the
    /// disk.
    fn look(&mut self, authorities: &ClientAuthorities) -> anyhow::Result<()> {
        let pem = disk::read_small(&self.path, certificate::FILE_MIB_MAX)?;
        let hash: [u8; 32] = Sha256::digest(&pem).into();
        if self.seen != Some(hash) {
            authorities.replace(&pem)?;
            self.seen = Some(hash);
            occurrences::client_authorities_replaced(&self.path.display().to_string());
        }
        Ok(())
    }

    /// Follows the file until cancelled. Where it is unusable, those that were believed stay.
    async fn keep(
        mut self,
        authorities: Arc<ClientAuthorities>,
        mut problem: Writer<Option<String>>,
    ) {
        loop {
            tokio::time::sleep(FILE_PERIOD).await;
            let authorities = Arc::clone(&authorities);
            let (file, words) = disk::blocking(move || {
                let words = self
                    .look(&authorities)
                    .err()
                    .map(|error| format!("{error:#}"));
                (self, words)
            })
            .await;
            self = file;
            publish_problem(
                &self.path.display().to_string(),
                words.as_deref(),
                &mut problem,
            );
        }
    }
}

/// Publishes why the authorities can't be read, if they can't, and logs that when it is new.
fn publish_problem(from: &str, words: Option<&str>, problem: &mut Writer<Option<String>>) {
    let message = words
        .map(|words| format!("failed to read the CAs of client certificates from {from}: {words}"));
    if problem.publish(message)
        && let Some(words) = words
    {
        occurrences::client_authorities_unusable(from, words);
    }
}

/// Follows the authorities that the API server publishes, until cancelled.
async fn keep_published(
    client: ClusterClient,
    authorities: Arc<ClientAuthorities>,
    mut problem: Writer<Option<String>>,
) {
    let mut seen = None;
    let mut backoff = UNKNOWN_PAUSES;
    loop {
        let asked = client.published_client_authorities().await;
        let wished = match &asked {
            Err(ApiError::TooManyRequests { retry_after, .. }) => *retry_after,
            Ok(_) | Err(_) => None,
        };
        let (pause, words) = match asked {
            Ok(pem) if seen.as_ref() == Some(&pem) => (PUBLISHED_PERIOD, None),
            Ok(pem) => match authorities.replace(pem.as_bytes()) {
                Ok(()) => {
                    seen = Some(pem);
                    occurrences::client_authorities_replaced("the API server");
                    (PUBLISHED_PERIOD, None)
                }
                Err(error) => (PUBLISHED_PERIOD, Some(error.to_string())),
            },
            // It is away, or rejects the credentials: the client reports that.
            Err(ApiError::Away { .. } | ApiError::Unauthorized(_)) => {
                backoff.reset();
                (PUBLISHED_PAUSE, None)
            }
            Err(error) => (PUBLISHED_PERIOD, Some(error.to_string())),
        };
        let pause = if seen.is_none() && words.is_some() {
            let wished = wished.unwrap_or_default().min(UNKNOWN_PAUSES.longest());
            spread(backoff.pause()).max(wished)
        } else {
            pause
        };
        publish_problem("the API server", words.as_deref(), &mut problem);
        tokio::time::sleep(pause).await;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use bytes::Bytes;
    use http::Response;
    use http_body_util::Full;
    use kube::client::Body;
    use serde_json::json;
    use tokio::time::Instant;

    use super::*;
    use mirrorlet_host::telemetry::Metrics;

    /// When the authorities were asked for, since the start.
    type Asked = Arc<Mutex<Vec<Duration>>>;

    /// An API server that refuses so often with that answer, and then publishes an authority.
    fn server(refusals: usize, code: u16, reason: &'static str) -> (ClusterClient, Asked) {
        let key = rcgen::KeyPair::generate().unwrap();
        let authority = rcgen::CertificateParams::default()
            .self_signed(&key)
            .unwrap();
        let map = json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": {},
            "data": {"client-ca-file": authority.pem()}});
        let refusal = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure",
            "code": code, "reason": reason, "message": "no",
            "details": {"retryAfterSeconds": 20}});
        let asked = Asked::default();
        let began = Instant::now();
        let asks = Arc::clone(&asked);
        let service = tower::service_fn(move |_: http::Request<Body>| {
            let mut asks = asks.lock().unwrap();
            asks.push(began.elapsed());
            let (code, body) = if asks.len() <= refusals {
                (code, refusal.to_string())
            } else {
                (200, map.to_string())
            };
            let mut answer = Response::new(Full::new(Bytes::from(body)));
            *answer.status_mut() = code.try_into().unwrap();
            async move { Ok::<_, std::io::Error>(answer) }
        });
        (ClusterClient::over_service(service, Metrics::new()), asked)
    }

    #[tokio::test(start_paused = true)]
    async fn authorities_that_are_not_known_yet_are_asked_for_again_soon() {
        for (refusals, code, reason) in [
            (1, 403, "Forbidden"),
            (1, 404, "NotFound"),
            (1, 429, "TooManyRequests"),
            (1, 500, "InternalError"),
            (1, 503, "ServiceUnavailable"),
            (9, 403, "Forbidden"),
        ] {
            let (client, asked) = server(refusals, code, reason);
            let authorities = Arc::new(ClientAuthorities::default());
            let (problem, told) = cell(None);
            let keeping = tokio::spawn(keep_published(client, authorities, problem));
            let is_known = || asked.lock().unwrap().len() > refusals;
            let began = Instant::now();
            while !is_known() {
                assert!(began.elapsed() < Duration::from_hours(1), "{code}");
                tokio::time::sleep(Duration::from_secs(1)).await;
                let is_told = told.get().is_some();
                assert_eq!(is_told, code != 503 && !is_known(), "{code}");
            }
            let times = asked.lock().unwrap().clone();
            let pauses = times.windows(2).map(|pair| pair[1].saturating_sub(pair[0]));
            // As long as the server asks for, and never longer than a minute and a half.
            let least = Duration::from_secs(if code == 429 { 20 } else { 5 });
            let mut pauses = pauses.map(|pause| (least..=Duration::from_secs(90)).contains(&pause));
            // node-api 8
            assert!(pauses.all(|fits| fits), "{code}: {times:?}");
            // Those that are known are asked for seldom.
            tokio::time::sleep(Duration::from_mins(9)).await;
            assert_eq!(asked.lock().unwrap().len(), refusals + 1);
            keeping.abort();
        }
    }
}
