//! Pulls through a real Docker Engine from a registry that this test plays.
//!
//! The registry listens on loopback, which an Engine trusts without TLS. What is proven here is
//! the Engine's side of every failure: in which words and codes it arrives at the puller.

use crate::common::{docker_host, reaper};
use std::collections::HashMap;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::{AUTHORIZATION, CONTENT_TYPE, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, Response, StatusCode};
use base64::Engine as _;
use futures::StreamExt;
use mirrorlet_core::api::Timestamp;
use mirrorlet_core::credentials::PullSecrets;
use mirrorlet_docker::BollardEngine;
use mirrorlet_docker::engine::{Engine, EngineError, RegistryAuth};
use mirrorlet_docker::image::{ImagePuller, PullPolicy, PullerOptions, digest};
use mirrorlet_runtime::SyncErrorReason;

/// A password whose base64 differs between the two alphabets.
const PASSWORD: &str = "~~~???>>>ÿÿÿ";

const MANIFEST: &str = "application/vnd.docker.distribution.manifest.v2+json";

/// The content of the registry: one image, under every name it knows.
struct Registry {
    manifest: Vec<u8>,
    blobs: HashMap<String, Vec<u8>>,
    layer: String,
    /// Whether it asks for credentials.
    private: bool,
}

impl Registry {
    /// An image that no other run has, so that the Engine must ask for it.
    fn new(port: u16, private: bool) -> Self {
        let mut tar = tar::Builder::new(Vec::new());
        let data = format!("{port} {}", Timestamp::now());
        let mut header = tar::Header::new_ustar();
        header.set_size(data.len() as u64);
        header.set_mode(0o644);
        tar.append_data(&mut header, "unique", data.as_bytes())
            .unwrap();
        let layer = tar.into_inner().unwrap();
        let config = serde_json::json!({
            "architecture": if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" },
            "os": "linux",
            "config": { "User": "4711" },
            "rootfs": { "type": "layers", "diff_ids": [digest(&layer)] },
        })
        .to_string()
        .into_bytes();
        let descriptor = |kind: &str, data: &[u8]| serde_json::json!({ "mediaType": kind, "size": data.len(), "digest": digest(data) });
        let manifest = serde_json::json!({
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": descriptor("application/vnd.docker.container.image.v1+json", &config),
            "layers": [descriptor("application/vnd.docker.image.rootfs.diff.tar.gzip", &layer)],
        })
        .to_string()
        .into_bytes();
        Self {
            manifest,
            private,
            layer: digest(&layer),
            blobs: HashMap::from([(digest(&config), config), (digest(&layer), layer)]),
        }
    }
}

fn reply(status: StatusCode, kind: &str, data: &[u8]) -> Response<Body> {
    Response::builder()
        .status(status)
        .header(CONTENT_TYPE, kind)
        .body(data.to_vec().into())
        .unwrap()
}

fn refuse(status: StatusCode, code: &str) -> Response<Body> {
    let errors = serde_json::json!({ "errors": [{ "code": code, "message": code }] });
    reply(status, "application/json", errors.to_string().as_bytes())
}

async fn serve(State(registry): State<Arc<Registry>>, request: Request) -> Response<Body> {
    let path = request.uri().path();
    if registry.private && !is_known(&request) {
        let mut answer = refuse(StatusCode::UNAUTHORIZED, "UNAUTHORIZED");
        let challenge = HeaderValue::from_static("Basic realm=\"test\"");
        answer.headers_mut().insert(WWW_AUTHENTICATE, challenge);
        return answer;
    }
    if path == "/v2/" {
        return reply(StatusCode::OK, "application/json", b"{}");
    }
    if path.starts_with("/v2/busy/") {
        return reply(StatusCode::SERVICE_UNAVAILABLE, "text/plain", b"later");
    }
    if path.contains("/manifests/") {
        if path.starts_with("/v2/absent/") {
            return refuse(StatusCode::NOT_FOUND, "MANIFEST_UNKNOWN");
        }
        return reply(StatusCode::OK, MANIFEST, &registry.manifest);
    }
    let wanted = path.rsplit_once("/blobs/").map_or("", |(_, digest)| digest);
    let broken = path.starts_with("/v2/broken/") && wanted == registry.layer;
    match registry.blobs.get(wanted) {
        Some(data) if !broken => reply(StatusCode::OK, "application/octet-stream", data),
        Some(_) | None => refuse(StatusCode::NOT_FOUND, "BLOB_UNKNOWN"),
    }
}

/// Whether a request carries the right credentials.
fn is_known(request: &Request) -> bool {
    let credentials = base64::engine::general_purpose::STANDARD.encode(format!("me:{PASSWORD}"));
    let expected = format!("Basic {credentials}");
    let sent = request.headers().get(AUTHORIZATION);
    sent.is_some_and(|sent| sent.as_bytes() == expected.as_bytes())
}

/// A registry on a free port, and an Engine to pull with.
struct Bed {
    engine: Arc<BollardEngine>,
    host: String,
}

async fn bed(private: bool) -> Bed {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let router = Router::new()
        .fallback(serve)
        .with_state(Arc::new(Registry::new(port, private)));
    tokio::spawn(axum::serve(listener, router).into_future());
    let endpoint =
        std::env::var("DOCKER_HOST").unwrap_or_else(|_| "unix:///var/run/docker.sock".to_owned());
    let engine = Arc::new(BollardEngine::connect(&endpoint).unwrap());
    engine.version().await.expect("a Docker Engine is needed");
    Bed {
        engine,
        host: format!("127.0.0.1:{port}"),
    }
}

impl Bed {
    fn auth(&self, password: &str) -> RegistryAuth {
        RegistryAuth {
            username: "me".to_owned(),
            password: password.to_owned(),
            server: self.host.clone(),
            ..RegistryAuth::default()
        }
    }

    fn image(&self, repository: &str) -> String {
        let image = format!("{}/{repository}:1", self.host);
        reaper::remember("image", &[&docker_host(), &image]);
        image
    }

    /// Pulls to the end of the stream.
    async fn pull(&self, repository: &str, auth: Option<&RegistryAuth>) -> Result<(), EngineError> {
        let image = self.image(repository);
        let mut messages = self.engine.pull_image(&image, auth).await?;
        while let Some(message) = messages.next().await {
            message?;
        }
        Ok(())
    }

    async fn ensure(&self, repository: &str) -> Result<String, (SyncErrorReason, String)> {
        let puller = ImagePuller::new(self.engine.clone(), PullerOptions::default());
        let image = self.image(repository);
        let pod = "u".into();
        let secrets = PullSecrets::default();
        let ensured = puller.ensure_image(
            &pod,
            &image,
            PullPolicy::IfNotPresent,
            &secrets,
            Timestamp::now(),
            || {},
        );
        match ensured.await {
            Ok(ensured) => {
                assert_eq!(ensured.facts.user.as_deref(), Some("4711"));
                assert!(ensured.pulled);
                Ok(ensured.facts.image_id())
            }
            Err(error) => Err((error.reason, error.message)),
        }
    }

    /// Removes what was pulled: the seam itself never removes images.
    async fn remove(&self, repository: &str) {
        let docker = bollard::Docker::connect_with_defaults().unwrap();
        let image = self.image(repository);
        let options = None::<bollard::query_parameters::RemoveImageOptions>;
        docker.remove_image(&image, options, None).await.unwrap();
    }
}

#[tokio::test]
async fn an_image_comes_with_its_digest_and_user() {
    let bed = bed(false).await;
    let id = bed.ensure("good/app").await.unwrap();
    let prefix = format!("docker-pullable://{}/good/app@sha256:", bed.host);
    assert!(id.starts_with(&prefix), "{id}");
    bed.remove("good/app").await;
}

#[tokio::test]
async fn every_failure_arrives_with_its_reason() {
    let bed = bed(false).await;
    for (repository, reason, words) in [
        (
            "absent/app",
            SyncErrorReason::ErrImagePull,
            // The registry's words, or those of a current Engine for them.
            &["manifest unknown", "not found"][..],
        ),
        ("broken/app", SyncErrorReason::ErrImagePull, &[""]),
        (
            "busy/app",
            SyncErrorReason::RegistryUnavailable,
            &["registryunavailable: "],
        ),
    ] {
        let (seen, message) = bed.ensure(repository).await.unwrap_err();
        let start = format!("Failed to pull image {:?}: ", bed.image(repository));
        assert_eq!(seen, reason, "{message}");
        assert!(message.starts_with(&start), "{message}");
        let told = message.to_lowercase();
        assert!(words.iter().any(|words| told.contains(words)), "{message}");
    }
    let nobody = Bed {
        engine: bed.engine.clone(),
        host: "127.0.0.1:1".to_owned(),
    };
    let (seen, message) = nobody.ensure("good/app").await.unwrap_err();
    assert_eq!(seen, SyncErrorReason::ErrImagePull);
    assert!(message.contains("connection refused"), "{message}");
}

#[tokio::test]
async fn credentials_arrive_byte_for_byte() {
    let bed = bed(true).await;
    assert!(bed.pull("app", None).await.is_err());
    assert!(bed.pull("app", Some(&bed.auth("wrong"))).await.is_err());
    bed.pull("app", Some(&bed.auth(PASSWORD))).await.unwrap();
    bed.remove("app").await;
}
