//! Tests against real servers on loopback.

mod connections;
mod health;
mod lookups;
mod redirects;
mod requests;

use std::net::SocketAddr;
use std::sync::Arc;

use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use super::*;
use mirrorlet_core::handler::Scheme;

/// Longer than anything that answers needs.
const LONG: Duration = Duration::from_mins(2);

/// A server that is gone with its test.
struct Server {
    address: SocketAddr,
    /// The heads of the requests it got.
    heads: mpsc::UnboundedReceiver<String>,
    _tasks: JoinSet<()>,
}

/// The answer of a server to a connection whose request's head was read.
type Answer = Arc<dyn Fn(&str) -> Vec<u8> + Send + Sync>;

fn tls_config(protocols: &[&[u8]]) -> TlsAcceptor {
    let made = rcgen::generate_simple_self_signed(vec!["nobody.example".to_owned()]).unwrap();
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(made.signing_key.serialize_der()));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .unwrap();
    config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
    TlsAcceptor::from(Arc::new(config))
}

async fn read_head(stream: &mut (impl AsyncRead + Unpin)) -> Option<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }
    String::from_utf8(head).ok()
}

/// An HTTP server that answers one request per connection.
async fn serve(on: &str, tls: Option<TlsAcceptor>, answer: Answer) -> Server {
    let listener = TcpListener::bind(on).await.unwrap();
    let address = listener.local_addr().unwrap();
    let (told, heads) = mpsc::unbounded_channel();
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let Some(tls) = &tls else {
                if let Some(head) = read_head(&mut stream).await {
                    let _ = stream.write_all(&answer(&head)).await;
                    let _ = told.send(head);
                }
                continue;
            };
            if let Ok(mut stream) = tls.accept(stream).await
                && let Some(head) = read_head(&mut stream).await
            {
                let _ = stream.write_all(&answer(&head)).await;
                let _ = stream.shutdown().await;
                let _ = told.send(head);
            }
        }
    });
    Server {
        address,
        heads,
        _tasks: tasks,
    }
}

async fn answering(text: &'static str) -> Server {
    serve("127.0.0.1:0", None, Arc::new(|_| text.into())).await
}

fn get(address: SocketAddr, path: &str) -> HttpGet {
    HttpGet {
        scheme: Scheme::Http,
        host: address.ip().to_string(),
        port: address.port(),
        path: path.to_owned(),
        headers: Vec::new(),
    }
}

fn over_tls(get: HttpGet) -> HttpGet {
    HttpGet {
        scheme: Scheme::Https,
        ..get
    }
}

async fn ask(get: &HttpGet) -> Result<u16, ProbeError> {
    let answer = Client::new().http_get(get, LONG).await?;
    Ok(answer.status)
}
