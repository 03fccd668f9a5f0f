//! The embedded API, for kubectl and any other client of Kubernetes, without a cluster.
//!
//! It shows the agent's state: the pods and objects of manifests, this Node, events. Objects created
//! through it are stored in files below the root, which are a source like the manifest directory; there
//! is no database. It listens on a loopback address, and only accepts clients with a certificate of its
//! own authority.
//!
//! The crate `mirrorlet_apimachinery` implements paths, parameters, patches and tables.

mod answer;
#[cfg(test)]
mod bed;
mod body;
mod checks;
mod debug;
mod deletes;
mod endpoints;
mod events;
mod files;
mod garbage;
mod happened;
mod held;
mod jobs;
mod leases;
mod namespace_files;
mod namespaces;
mod node;
mod openapi;
mod pods;
mod prepare;
mod project;
mod reads;
mod reviews;
mod revisions;
mod store;
mod stored;
mod streams;
mod templates;
mod texts;
mod times;
mod turns;
mod workloads;
mod writes;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, Method, StatusCode, header};
use axum::middleware;
use axum::response::{IntoResponse, Response};
use mirrorlet_apimachinery::apply::APPLY;
use mirrorlet_apimachinery::cache::Key;
use mirrorlet_apimachinery::discovery;
use mirrorlet_apimachinery::options::{Query, check_timeout};
use mirrorlet_apimachinery::resources::{NODES, PODS, Resource, Target, target};
use mirrorlet_apimachinery::status::Status;
use mirrorlet_core::access::User;
use mirrorlet_core::api::NodeName;
use mirrorlet_core::node::{KUBERNETES_VERSION, go_arch, kubelet_version};
use mirrorlet_host::telemetry::Metrics;
use rustls::sign::CertifiedKey;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::OnceCell;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use self::answer::Form;
use self::body::Bodies;
use self::checks::{check_host, check_impersonation};
use self::events::Watches;
use self::store::Store;
use self::turns::Turns;
use super::node::auth::{ClientAuthorities, Gate, ReviewError, Reviewer, guard};
use super::node::{Shared, listen, tls};
use super::view::AgentView;

/// How long a request waits at the start for state that is not known yet, before its client is asked to
/// retry: as long as it takes to list some hundred containers.
const KNOWN_WAIT: Duration = Duration::from_secs(2);

/// The parts of the embedded API.
pub struct EmbeddedParts {
    /// The agent.
    pub view: Arc<dyn AgentView>,
    /// Metrics.
    pub metrics: Metrics,
    /// Name of the Node.
    pub node: NodeName,
    /// Where objects are stored.
    pub directory: PathBuf,
    /// The certificate that clients see.
    pub certificate: CertifiedKey,
    /// The authority (PEM) of clients' certificates.
    pub authority: Vec<u8>,
}

/// The embedded API, ready to be served.
pub struct EmbeddedApi {
    api: Api,
    gate: Arc<Gate>,
    tls: Arc<rustls::ServerConfig>,
    metrics: Metrics,
    renewal: Renewal,
}

/// Replaces certificates while the API is served; open connections stay.
#[derive(Clone)]
pub struct Renewal {
    served: Arc<tls::Served>,
    authorities: Arc<ClientAuthorities>,
}

impl Renewal {
    /// Shows another certificate to clients, and authenticates theirs by that authority (PEM).
    ///
    /// # Errors
    /// The authority is invalid; nothing has changed then.
    pub fn replace(&self, certificate: CertifiedKey, authority: &[u8]) -> io::Result<()> {
        let replaced = self.authorities.replace(authority);
        replaced.map_err(|error| io::Error::other(error.to_string()))?;
        self.served.replace(certificate);
        Ok(())
    }
}

/// The state that requests are answered from.
#[derive(Clone)]
struct Api {
    store: Arc<Store>,
    node: NodeName,
    /// Set once the agent has read manifests and stored objects: before, a list would be incomplete.
    known: Arc<OnceCell<()>>,
    /// One write at a time, which begins with [`Api::turn`].
    writing: Turns,
    bodies: Bodies,
    watches: Watches,
    /// The state of the node API's streams.
    streams: Shared,
}

/// A request for objects, without its body.
struct Call {
    target: Target,
    method: String,
    query: Vec<(String, String)>,
    headers: HeaderMap,
    user: User,
}

impl Call {
    /// The name in the path; empty if there is none.
    fn name(&self) -> &str {
        self.target.name.as_deref().unwrap_or_default()
    }

    /// The key of the object that the path names.
    fn key(&self) -> Key {
        let target = &self.target;
        Key::new(target.resource, target.namespace.as_str(), self.name())
    }

    /// An object as the answer, in that form.
    fn object(
        &self,
        code: u16,
        resource: &Resource,
        object: impl Into<Arc<Value>>,
        form: Form,
    ) -> Response {
        let value = answer::one(resource, &object.into(), form);
        answer::json(code, &value, &self.headers)
    }
}

/// Clients with a certificate of the authority have all permissions; there are no tokens.
struct OwnClients;

#[async_trait]
impl Reviewer for OwnClients {
    async fn review_token(&self, _token: &str) -> Result<Option<User>, ReviewError> {
        Ok(None)
    }

    async fn review_access(&self, _: &User, _: &str, _: &str) -> Result<bool, ReviewError> {
        Ok(true)
    }
}

impl EmbeddedApi {
    /// Creates the API. Blocks on the disk.
    ///
    /// # Errors
    /// The directory can't be written to, or the authority is invalid.
    pub fn new(parts: EmbeddedParts, cancel: &CancellationToken) -> io::Result<Self> {
        let authorities = ClientAuthorities::default();
        let replaced = authorities.replace(&parts.authority);
        replaced.map_err(|error| io::Error::other(error.to_string()))?;
        let node = parts.node.as_str();
        let store = Store::new(Arc::clone(&parts.view), parts.directory, node)?;
        let (reviewer, authorities) = (Arc::new(OwnClients), Arc::new(authorities));
        let served = Arc::new(tls::Served::new(parts.certificate));
        let renewal = Renewal {
            served: Arc::clone(&served),
            authorities: Arc::clone(&authorities),
        };
        Ok(Self {
            renewal,
            gate: Arc::new(Gate::new(reviewer, authorities, parts.metrics.clone())),
            tls: Arc::new(tls::config(served)),
            metrics: parts.metrics.clone(),
            api: Api {
                store: Arc::new(store),
                node: parts.node,
                known: Arc::default(),
                writing: Turns::new(cancel.clone()),
                bodies: Bodies::default(),
                watches: Watches::new(cancel.clone()),
                streams: Shared::new(parts.view, parts.metrics, cancel.clone()),
            },
        })
    }

    /// Replaces its certificates.
    pub fn renewal(&self) -> Renewal {
        self.renewal.clone()
    }

    /// Serves until `cancel`; watches, streams and writes end then.
    pub async fn serve(self, listener: TcpListener, cancel: CancellationToken) {
        let (streams, writing) = (self.api.streams.clone(), self.api.writing.clone());
        let collecting = garbage::collect(self.api.clone(), cancel.clone());
        let router = router(self.api, Arc::clone(&self.gate));
        let serving = listen::serve(listener, self.tls, router, self.gate, self.metrics, cancel);
        tokio::join!(serving, collecting);
        streams.ended().await;
        writing.ended().await;
    }
}

/// The routes behind their gate; can be called without a socket.
fn router(api: Api, gate: Arc<Gate>) -> Router {
    Router::new()
        .fallback(answer)
        .with_state(api)
        .layer(middleware::from_fn_with_state(gate, guard))
}

async fn answer(State(api): State<Api>, request: Request) -> Response {
    let user = request.extensions().get::<User>();
    let user = user.map(|user| user.name.as_str()).unwrap_or_default();
    let headers = request.headers();
    let checked = check_host(headers).and_then(|()| check_impersonation(headers, user));
    if let Err(status) = checked {
        return answer::refused(&status);
    }
    let answered = api.answer(request).await;
    answered.unwrap_or_else(|status| answer::refused(&status))
}

impl Api {
    async fn answer(&self, request: Request) -> Result<Response, Status> {
        let path = request.uri().path().to_owned();
        let query = request.uri().query().unwrap_or_default();
        let query = form_urlencoded::parse(query.as_bytes());
        let query: Vec<_> = query.into_owned().collect();
        check_timeout(&query)?;
        if path == "/readyz" {
            self.check_known().await?;
        }
        if request.method() == Method::GET
            && let Some(answer) = document(&path, &query, request.headers())
        {
            return Ok(answer);
        }
        let target = target(&path)?;
        self.check_known().await?;
        let user = request.extensions().get::<User>();
        let call = Arc::new(Call {
            target,
            method: request.method().as_str().to_owned(),
            query,
            headers: request.headers().clone(),
            user: user.cloned().unwrap_or_default(),
        });
        self.of_target(&call, request).await
    }

    /// Waits until the agent has read the manifest directory and stored objects, and knows the running
    /// pods: a client that lists before would take missing objects for deleted ones.
    ///
    /// # Errors
    /// It hasn't, or a manifest URL or the runtime hasn't answered in the first seconds.
    async fn check_known(&self) -> Result<(), Status> {
        let read = || async {
            let is_read = self.store.view().refresh().await && self.have_delivered().await;
            let message = "the agent has not loaded all manifests and stored objects yet; try again in a moment";
            is_read
                .then_some(())
                .ok_or_else(|| Status::unavailable_for(message, 1))
        };
        self.known.get_or_try_init(read).await?;
        Ok(())
    }

    /// Waits a moment until everything that exists is known. Returns whether it is, or the time is
    /// over.
    async fn have_delivered(&self) -> bool {
        let mut changes = self.store.changes();
        let delivered = async {
            while !self.store.has_delivered() {
                changes.changed().await;
            }
        };
        timeout(KNOWN_WAIT, delivered).await.is_ok() || self.store.has_delivered()
    }

    async fn of_target(&self, call: &Arc<Call>, request: Request) -> Result<Response, Status> {
        let (target, resource) = (&call.target, call.target.resource);
        let name = target.name.as_deref();
        let may = |verb: &str| {
            if resource.verbs.contains(&verb) {
                Ok(())
            } else {
                Err(Status::not_allowed(verb, resource))
            }
        };
        if let (Some(_), Some(subresource)) = (name, target.subresource.as_deref()) {
            return self.of_subresource(subresource, call, request).await;
        }
        if !resource.is_stored() {
            return match call.method.as_str() {
                "GET" if may("list").is_ok() => self.metrics(call).await,
                "POST" if name.is_none() => {
                    may("create")?;
                    let bytes = self.bodies.read(request.into_body()).await?;
                    reviews::review(call, &bytes)
                }
                _ => Err(Status::not_allowed(&call.method.to_lowercase(), resource)),
            };
        }
        match (call.method.as_str(), name) {
            ("GET", None) => reads::list(&self.store, call, &self.watches),
            ("GET", Some(_)) => {
                let watches = call
                    .query
                    .iter()
                    .any(|(key, value)| key == "watch" && !matches!(value.as_str(), "false" | "0"));
                if watches {
                    return reads::list(&self.store, call, &self.watches);
                }
                reads::get(&self.store, call)
            }
            _ => {
                let bytes = self.bodies.read(request.into_body()).await?;
                self.write(call, bytes).await
            }
        }
    }

    /// Answers a request that changes an object, or a collection of them.
    async fn write(&self, call: &Arc<Call>, bytes: body::Held) -> Result<Response, Status> {
        let (resource, method) = (call.target.resource, call.method.as_str());
        let verb = match (method, &call.target.name) {
            ("POST", None) => "create",
            ("PUT", Some(_)) => "update",
            ("PATCH", Some(_)) => "patch",
            ("DELETE", Some(_)) => "delete",
            ("DELETE", None) => "deletecollection",
            _ => return Err(Status::not_allowed(&method.to_lowercase(), resource)),
        };
        if !resource.verbs.contains(&verb) {
            return Err(Status::not_allowed(verb, resource));
        }
        match verb {
            "delete" => return self.delete(call, &bytes).await,
            "deletecollection" => return self.delete_collection(call, &bytes).await,
            _ => {}
        }
        let call = Arc::clone(call);
        let write = move |api: Self| async move {
            match verb {
                "create" => api.create(&call, &bytes).await,
                "patch" if body::content_type(&call.headers) == APPLY => {
                    api.apply(&call, &bytes).await
                }
                _ if resource == &NODES => api.change_node(&call, &bytes).await,
                _ => api.change(&call, &bytes).await,
            }
        };
        self.in_turn(resource, write).await
    }

    async fn of_subresource(
        &self,
        subresource: &str,
        call: &Arc<Call>,
        request: Request,
    ) -> Result<Response, Status> {
        let resource = call.target.resource;
        match (call.method.as_str(), subresource) {
            ("GET", "status" | "ephemeralcontainers") => reads::get(&self.store, call),
            ("GET", "scale") => self.get_scale(call),
            ("PUT" | "PATCH", "scale") => {
                let bytes = self.bodies.read(request.into_body()).await?;
                let call = Arc::clone(call);
                let write = move |api: Self| async move { api.change(&call, &bytes).await };
                self.in_turn(resource, write).await
            }
            ("PUT" | "PATCH", "ephemeralcontainers") => {
                let bytes = self.bodies.read(request.into_body()).await?;
                let call = Arc::clone(call);
                let write = move |api: Self| async move { api.debug(&call, &bytes).await };
                self.in_turn(resource, write).await
            }
            ("POST", "eviction") => {
                let bytes = self.bodies.read(request.into_body()).await?;
                self.evict(call, &bytes).await
            }
            ("GET", "log") | ("GET" | "POST", "exec" | "attach" | "portforward")
                if resource == &PODS =>
            {
                self.stream(call, request).await
            }
            ("PUT", "status") => Err(Status::status_is_read_only("update", resource)),
            ("PATCH", "status") => Err(Status::status_is_read_only("patch", resource)),
            (method, _) => Err(Status::not_allowed(&method.to_lowercase(), resource)),
        }
    }
}

/// The value of a header; empty if it is missing or not a string.
fn header_text(headers: &HeaderMap, name: HeaderName) -> &str {
    let value = headers.get(name).and_then(|value| value.to_str().ok());
    value.unwrap_or_default()
}

/// The documents that say what there is.
fn document(path: &str, query: &Query, headers: &HeaderMap) -> Option<Response> {
    let json = |value: &Value| answer::json(200, value, headers);
    let accept = header_text(headers, header::ACCEPT);
    let aggregated = |core: bool| {
        let mut answer = json(&discovery::aggregated(core));
        let kind = header::HeaderValue::from_static(discovery::AGGREGATED);
        answer.headers_mut().insert(header::CONTENT_TYPE, kind);
        let vary = header::HeaderValue::from_static("Accept");
        answer.headers_mut().insert(header::VARY, vary);
        answer
    };
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
    Some(match parts[..] {
        [] => json(&discovery::root()),
        ["api"] if discovery::wants_aggregated(accept) => aggregated(true),
        ["apis"] if discovery::wants_aggregated(accept) => aggregated(false),
        ["api"] => json(&discovery::core_versions()),
        ["apis"] => json(&discovery::group_list()),
        ["api", version] => json(&discovery::resource_list("", version)?),
        ["apis", group] => json(&discovery::group(group)?),
        ["apis", group, version] => json(&discovery::resource_list(group, version)?),
        ["openapi", ..] => openapi::answer(&parts, query, headers)?,
        ["version"] => json(&version()),
        ["healthz" | "livez" | "readyz"] => (StatusCode::OK, "ok").into_response(),
        _ => return None,
    })
}

/// The version that we behave as.
fn version() -> Value {
    let bare = KUBERNETES_VERSION.trim_start_matches('v');
    let mut numbers = bare.split('.');
    let mut number = || numbers.next().unwrap_or_default().to_owned();
    json!({
        "major": number(),
        "minor": number(),
        "gitVersion": kubelet_version(),
        "gitCommit": "",
        "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "",
        "compiler": "rustc",
        "platform": format!("linux/{}", go_arch(std::env::consts::ARCH)),
    })
}
