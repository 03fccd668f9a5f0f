//! Accepts connections and serves a router on them, within limits, until cancelled.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::serve::Listener;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// Most connections at a time; further ones wait in the listener's queue.
const CONNECTIONS_MAX: usize = 128;

/// How long a client may take to send the head of a request, or stay idle between two.
const HEAD_DEADLINE: Duration = Duration::from_secs(30);

/// Largest head of a request, in bytes; ours are a few hundred, unless they carry a command, of
/// which a script can be an argument.
const HEAD_BYTES_MAX: usize = 64 << 10;

/// How long answers under way may go on after the agent began to stop. Streams end by
/// themselves at once; this bounds a client that does not read. Well below the second within
/// which the agent has to be gone.
const DRAIN_MAX: Duration = Duration::from_millis(300);

/// Serves until `cancel`, then lets answers under way end, for [`DRAIN_MAX`] at most.
///
/// # Errors
/// None at present: a listener that can't accept for the moment tries again.
pub async fn serve<L: Listener>(
    mut listener: L,
    router: Router,
    cancel: CancellationToken,
) -> io::Result<()> {
    let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let mut connections = JoinSet::new();
    loop {
        let accepted = async {
            // Never closed, so a permit always comes.
            let permit = Arc::clone(&room).acquire_owned().await.ok();
            (permit, listener.accept().await.0)
        };
        tokio::select! {
            () = cancel.cancelled() => break,
            // Cancel-safe: a permit that was taken is given back, accept loses no connection.
            (permit, io) = accepted => {
                let (router, cancel) = (router.clone(), cancel.clone());
                connections.spawn(async move {
                    connection::<L>(io, router, cancel).await;
                    drop(permit);
                });
            }
            Some(_) = connections.join_next() => {}
        }
    }
    drop(listener);
    let drained = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(DRAIN_MAX, drained).await.is_err() {
        connections.shutdown().await;
    }
    Ok(())
}

/// One connection. How it ends is the client's business: answers carry no state.
async fn connection<L: Listener>(io: L::Io, router: Router, cancel: CancellationToken) {
    let service = TowerToHyperService::new(router_service(router));
    let serving = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_DEADLINE)
        .max_buf_size(HEAD_BYTES_MAX)
        .serve_connection(TokioIo::new(io), service)
        .with_upgrades();
    let mut serving = std::pin::pin!(serving);
    tokio::select! {
        // Both arms only borrow the connection, which goes on below.
        _ = serving.as_mut() => return,
        () = cancel.cancelled() => serving.as_mut().graceful_shutdown(),
    }
    let _ = serving.await;
}

/// The router as a service of hyper's bodies.
fn router_service(
    router: Router,
) -> impl tower::Service<
    hyper::Request<hyper::body::Incoming>,
    Response = axum::response::Response,
    Error = Infallible,
    Future = impl Future<Output = Result<axum::response::Response, Infallible>> + Send,
> + Clone
+ Send {
    tower::service_fn(move |request: hyper::Request<hyper::body::Incoming>| {
        tower::ServiceExt::oneshot(router.clone(), request.map(axum::body::Body::new))
    })
}

#[cfg(test)]
mod tests {
    use axum::routing::get;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    async fn started(
        router: Router,
    ) -> (
        std::net::SocketAddr,
        CancellationToken,
        JoinSet<io::Result<()>>,
    ) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let cancel = CancellationToken::new();
        let mut tasks = JoinSet::new();
        tasks.spawn(serve(listener, router, cancel.clone()));
        (address, cancel, tasks)
    }

    #[tokio::test]
    async fn a_head_without_end_is_cut_off() {
        let (address, _cancel, _tasks) = started(Router::new()).await;
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\nx: ").await.unwrap();
        let flood = vec![b'a'; 4 * HEAD_BYTES_MAX];
        // The server may close while the flood is on its way.
        let _ = stream.write_all(&flood).await;
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer).await;
        assert!(
            answer.is_empty() || answer.starts_with(b"HTTP/1.1 431"),
            "{}",
            String::from_utf8_lossy(&answer)
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_sends_nothing_is_let_go() {
        let (address, _cancel, _tasks) = started(Router::new()).await;
        let mut stream = TcpStream::connect(address).await.unwrap();
        let mut answer = Vec::new();
        let ended = tokio::time::timeout(2 * HEAD_DEADLINE, stream.read_to_end(&mut answer)).await;
        assert!(ended.is_ok(), "still connected");
    }

    #[tokio::test(start_paused = true)]
    async fn stopping_does_not_wait_for_an_answer_for_ever() {
        let (reached, mut waiting) = tokio::sync::mpsc::channel::<()>(1);
        let router = Router::new().route(
            "/",
            get(|| async move {
                let _ = reached.send(()).await;
                std::future::pending::<()>().await;
            }),
        );
        let (address, cancel, mut tasks) = started(router).await;
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream
            .write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
            .await
            .unwrap();
        waiting.recv().await.unwrap();
        cancel.cancel();
        tasks.join_next().await.unwrap().unwrap().unwrap();
    }
}
