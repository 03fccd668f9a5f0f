//! Accepts connections and serves a router on them, within limits, until cancelled.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::time::Duration;

use axum::Router;
use axum::serve::Listener;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::task::{AbortHandle, JoinSet};
use tokio_util::sync::CancellationToken;

/// Most connections at a time.
const CONNECTIONS_MAX: usize = 128;

/// Most tasks of connections, those that gave way a moment ago included.
const TASKS_MAX: usize = 2 * CONNECTIONS_MAX;

/// Longest life of a connection with one short answer: for the head of its request, and as long for
/// the answer.
const SHORT_MAX: Duration = Duration::from_mins(1);

/// How long a client may take to send the head of a request, or stay idle between two.
const HEAD_DEADLINE: Duration = Duration::from_secs(30);

/// Largest head of a request, in bytes; ours are a few hundred, unless they carry a command, of
/// which a script can be an argument.
const HEAD_BYTES_MAX: usize = 64 << 10;

/// How long answers in progress may continue after the agent began to stop. Streams end immediately by
/// themselves; this limits clients that don't read. Well below the second within which the agent must
/// exit.
const DRAIN_MAX: Duration = Duration::from_millis(300);

/// The kind of answers of a listener, which decides how much it trusts its clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answers {
    /// For anyone who reaches the port, with immediate answers: one for each connection, within
    /// [`SHORT_MAX`]. At the limit, the oldest connection is closed, so idle connections lock out
    /// nobody.
    Short,
    /// For users who may open the socket, with streams that may be endless. At the limit, further
    /// connections wait in the listener's queue.
    Streams,
}

/// Serves until `cancel`, then lets answers in progress end, for at most [`DRAIN_MAX`].
///
/// # Errors
/// None at present: a listener that can't accept for the moment retries.
pub async fn serve<L: Listener>(
    mut listener: L,
    router: Router,
    answers: Answers,
    cancel: CancellationToken,
) -> io::Result<()> {
    let tasks_max = match answers {
        Answers::Short => TASKS_MAX,
        // So none ever gives way.
        Answers::Streams => CONNECTIONS_MAX,
    };
    let mut connections = JoinSet::new();
    // By age, the oldest first.
    let mut open = VecDeque::new();
    loop {
        tokio::select! {
            () = cancel.cancelled() => break,
            // Cancel-safe: accept loses no connection.
            (io, _) = listener.accept(), if connections.len() < tasks_max => {
                make_room(&mut open);
                let serving = connection::<L>(io, router.clone(), answers, cancel.clone());
                open.push_back(connections.spawn(async move {
                    match answers {
                        Answers::Short => drop(tokio::time::timeout(SHORT_MAX, serving).await),
                        Answers::Streams => serving.await,
                    }
                }));
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

/// Forgets closed connections, and closes the oldest one if there are still too many.
fn make_room(open: &mut VecDeque<AbortHandle>) {
    if open.len() < CONNECTIONS_MAX {
        return;
    }
    open.retain(|connection| !connection.is_finished());
    if open.len() >= CONNECTIONS_MAX
        && let Some(oldest) = open.pop_front()
    {
        oldest.abort();
    }
}

/// One connection. How it ends is the client's business: answers carry no state.
async fn connection<L: Listener>(
    io: L::Io,
    router: Router,
    answers: Answers,
    cancel: CancellationToken,
) {
    let service = TowerToHyperService::new(router_service(router));
    let serving = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_DEADLINE)
        .max_buf_size(HEAD_BYTES_MAX)
        .keep_alive(answers == Answers::Streams)
        .serve_connection(TokioIo::new(io), service)
        .with_upgrades();
    let mut serving = std::pin::pin!(serving);
    tokio::select! {
        // Both arms only borrow the connection, which continues below.
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
        answers: Answers,
    ) -> (
        std::net::SocketAddr,
        CancellationToken,
        JoinSet<io::Result<()>>,
    ) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let cancel = CancellationToken::new();
        let mut tasks = JoinSet::new();
        tasks.spawn(serve(listener, router, answers, cancel.clone()));
        (address, cancel, tasks)
    }

    #[tokio::test]
    async fn a_head_without_end_is_cut_off() {
        let (address, _cancel, _tasks) = started(Router::new(), Answers::Streams).await;
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
        let (address, _cancel, _tasks) = started(Router::new(), Answers::Streams).await;
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
        let (address, cancel, mut tasks) = started(router, Answers::Streams).await;
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream
            .write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
            .await
            .unwrap();
        waiting.recv().await.unwrap();
        cancel.cancel();
        tasks.join_next().await.unwrap().unwrap().unwrap();
    }

    /// A connection that has sent a request for `path`, or nothing.
    async fn asking(address: std::net::SocketAddr, path: Option<&str>) -> TcpStream {
        let mut stream = TcpStream::connect(address).await.unwrap();
        if let Some(path) = path {
            let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n");
            stream.write_all(request.as_bytes()).await.unwrap();
        }
        stream
    }

    fn well_or_hanging() -> Router {
        Router::new()
            .route("/healthz", get(|| async { "ok\n" }))
            .route("/hangs", get(std::future::pending::<&'static str>))
    }

    #[tokio::test]
    async fn connections_that_somebody_keeps_open_lock_out_nobody() {
        for kept_with in [None, Some("/healthz"), Some("/hangs")] {
            let (address, _cancel, _tasks) = started(well_or_hanging(), Answers::Short).await;
            let mut kept = Vec::new();
            for _ in 0..CONNECTIONS_MAX {
                kept.push(asking(address, kept_with).await);
            }
            let mut answer = String::new();
            let mut stream = asking(address, Some("/healthz")).await;
            stream.read_to_string(&mut answer).await.unwrap();
            // agent 11
            assert!(answer.ends_with("\r\n\r\nok\n"), "{kept_with:?}: {answer}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_never_ends_is_cut_off() {
        let (address, _cancel, _tasks) = started(well_or_hanging(), Answers::Short).await;
        let mut stream = asking(address, Some("/hangs")).await;
        let mut answer = Vec::new();
        let ended = tokio::time::timeout(2 * SHORT_MAX, stream.read_to_end(&mut answer)).await;
        // agent 11
        assert!(ended.is_ok(), "still connected");
    }
}
