//! Between the Engine and a real registry: what can go wrong on the way.

use std::convert::Infallible;
use std::future::Ready;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{Response, StatusCode, Uri};
use axum::response::IntoResponse as _;
use futures::StreamExt as _;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::registry::Registry;

/// From which size on a blob is a layer with something in it, in bytes.
const LARGE: usize = 1 << 20;
/// How much of a slow blob comes at a time, in bytes.
const PIECE: usize = 256 << 10;

/// A fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Nothing.
    None,
    /// Every answer is 503.
    Busy,
    /// Large blobs come in pieces, with a pause before each, as long as this is so.
    Slow(Duration),
    /// The next large blob ends in its middle, with the connection.
    CutOnce,
    /// Large blobs have one byte that is not theirs.
    WrongDigest,
}

struct Shared {
    client: Client<HttpConnector, Body>,
    target: String,
    fault: Mutex<Fault>,
}

/// A way to a registry.
pub struct Proxy {
    /// Host and port: what the names of images that come this way begin with.
    pub host: String,
    shared: Arc<Shared>,
    _serving: DropGuard,
}

impl Proxy {
    /// A way on which nothing goes wrong yet.
    pub async fn to(registry: &Registry) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let host = listener.local_addr().unwrap().to_string();
        let shared = Arc::new(Shared {
            client: Client::builder(TokioExecutor::new()).build_http(),
            target: registry.host.clone(),
            fault: Mutex::new(Fault::None),
        });
        let router = Router::new()
            .fallback(forward)
            .with_state(Arc::clone(&shared));
        let cancel = CancellationToken::new();
        let told = cancel.clone();
        tokio::spawn(async move {
            tokio::select! {
                () = told.cancelled() => {}
                served = axum::serve(listener, router) => served.unwrap(),
            }
        });
        Self {
            host,
            shared,
            _serving: cancel.drop_guard(),
        }
    }

    /// From now on that goes wrong.
    pub fn set(&self, fault: Fault) {
        *self.shared.fault.lock().unwrap() = fault;
    }

    /// The full name of an image that comes this way.
    pub fn image(&self, name: &str) -> String {
        format!("{}/{name}", self.host)
    }
}

async fn forward(
    State(shared): State<Arc<Shared>>,
    mut request: Request,
) -> Result<Response<Body>, Infallible> {
    let fault = *shared.fault.lock().unwrap();
    if fault == Fault::Busy {
        return Ok((StatusCode::SERVICE_UNAVAILABLE, "later").into_response());
    }
    let path = request.uri().path_and_query().unwrap().as_str();
    *request.uri_mut() = format!("http://{}{path}", shared.target)
        .parse::<Uri>()
        .unwrap();
    let answer = match shared.client.request(request).await {
        Ok(answer) => answer,
        Err(error) => return Ok((StatusCode::BAD_GATEWAY, error.to_string()).into_response()),
    };
    let (head, body) = answer.into_parts();
    let length = head.headers.get("content-length");
    let length: Option<usize> = length.and_then(|text| text.to_str().ok()?.parse().ok());
    if fault == Fault::None || length.is_none_or(|length| length < LARGE) {
        return Ok(Response::from_parts(head, Body::new(body)));
    }
    let whole = axum::body::to_bytes(Body::new(body), usize::MAX).await;
    let Ok(whole) = whole else {
        return Ok(StatusCode::BAD_GATEWAY.into_response());
    };
    // One that asked for the head alone gets no more.
    if whole.is_empty() {
        return Ok(Response::from_parts(head, Body::empty()));
    }
    let body = match fault {
        Fault::None | Fault::Busy => Body::from(whole),
        Fault::Slow(pause) => {
            let pieces: Vec<Bytes> = whole.chunks(PIECE).map(Bytes::copy_from_slice).collect();
            Body::from_stream(futures::stream::iter(pieces).then(move |piece| {
                let is_slow = matches!(*shared.fault.lock().unwrap(), Fault::Slow(_));
                async move {
                    if is_slow {
                        tokio::time::sleep(pause).await;
                    }
                    Ok::<_, Infallible>(piece)
                }
            }))
        }
        Fault::CutOnce => {
            *shared.fault.lock().unwrap() = Fault::None;
            let half = Ok(whole.slice(..whole.len() / 2));
            let cut = Err(std::io::Error::other("cut"));
            let cut = futures::stream::iter([half, cut]);
            Body::from_stream(cut.then(|item| -> Ready<_> { std::future::ready(item) }))
        }
        Fault::WrongDigest => {
            let mut wrong = whole.to_vec();
            let middle = wrong.len() / 2;
            wrong[middle] ^= 1;
            Body::from(wrong)
        }
    };
    Ok(Response::from_parts(head, body))
}
