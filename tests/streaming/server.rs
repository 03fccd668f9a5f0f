//! A loopback server of the streaming protocols: commands are processes of this machine, forwarded
//! ports are this machine's.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use mirrorlet_streaming::{
    Chunk, Kind, Limits, PortForward, Refusal, RemoteCommand, Session, TerminalSize,
    serve_port_forward, serve_session,
};
use tokio::io::AsyncRead;
use tokio::net::{TcpListener, TcpStream};
use tokio::process::{Child, Command};
use tokio::task::JoinSet;
use tokio_util::io::ReaderStream;

/// So that a client that is gone is noticed soon.
fn limits() -> Limits {
    Limits {
        idle: Some(Duration::from_hours(1)),
        stream_creation: Duration::from_mins(1),
        ping: Duration::from_millis(50),
        ..Limits::default()
    }
}

/// The server; dropping it ends it.
pub struct Server {
    pub address: SocketAddr,
    /// Sizes that terminals were given.
    pub sizes: Arc<Mutex<Vec<TerminalSize>>>,
    _tasks: JoinSet<()>,
}

impl Server {
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let sizes: Arc<Mutex<Vec<TerminalSize>>> = Arc::default();
        let mut tasks = JoinSet::new();
        let shared = Arc::clone(&sizes);
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                connections.spawn(connection(stream, Arc::clone(&shared)));
                while connections.try_join_next().is_some() {}
            }
        });
        Self {
            address,
            sizes,
            _tasks: tasks,
        }
    }

    /// Where to run a shell command; `streams` as the API server asks for them.
    pub fn command(&self, kind: &str, script: &str, streams: &str) -> String {
        let script: String = form_urlencoded::byte_serialize(script.as_bytes()).collect();
        let address = self.address;
        format!("http://{address}/{kind}?command=sh&command=-c&command={script}&{streams}")
    }

    pub fn forward(&self) -> String {
        format!("http://{}/portForward", self.address)
    }
}

async fn connection(stream: TcpStream, sizes: Arc<Mutex<Vec<TerminalSize>>>) {
    stream.set_nodelay(true).unwrap();
    // Upgraded connections are served here, so that they end with the server.
    let (upgraded, mut sessions) = tokio::sync::mpsc::channel(1);
    let service = service_fn(move |request| answer(request, Arc::clone(&sizes), upgraded.clone()));
    let serving = hyper::server::conn::http1::Builder::new()
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades();
    let served = async {
        let _ = serving.await;
    };
    let session = async {
        if let Some(session) = sessions.recv().await {
            Pin::from(session).await;
        }
    };
    tokio::join!(served, session);
}

type Work = Box<dyn Future<Output = ()> + Send>;

async fn answer(
    mut request: Request<Incoming>,
    sizes: Arc<Mutex<Vec<TerminalSize>>>,
    upgraded: tokio::sync::mpsc::Sender<Work>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let on = hyper::upgrade::on(&mut request);
    let query = request.uri().query().unwrap_or_default().to_owned();
    let headers = request.headers();
    let decided: Result<_, Refusal> = match request.uri().path() {
        "/portForward" => PortForward::negotiate(headers, &query).map(|asked| {
            let answer = asked.negotiated.headers.clone();
            let work: Work = Box::new(async move {
                let stream = TokioIo::new(on.await.unwrap());
                serve_port_forward(stream, &asked, connect, limits()).await;
            });
            (answer, work)
        }),
        path => {
            let kind = if path == "/attach" {
                Kind::Attach
            } else {
                Kind::Exec
            };
            RemoteCommand::negotiate(headers).and_then(|negotiated| {
                let asked = RemoteCommand::parse(&query)?;
                let answer = negotiated.headers.clone();
                let work: Work = Box::new(async move {
                    let stream = TokioIo::new(on.await.unwrap());
                    let start = || async { start(&asked, sizes) };
                    serve_session(stream, &negotiated, asked.streams, kind, start, limits()).await;
                });
                Ok((answer, work))
            })
        }
    };
    let (status, headers, body) = match decided {
        Ok((headers, work)) => {
            upgraded.send(work).await.ok().unwrap();
            (
                http::StatusCode::SWITCHING_PROTOCOLS,
                headers,
                String::new(),
            )
        }
        Err(refusal) => (refusal.status, *refusal.headers, refusal.message),
    };
    let mut response = Response::new(Full::from(body));
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    Ok(response)
}

async fn connect(port: u16) -> std::io::Result<TcpStream> {
    let stream = TcpStream::connect(("127.0.0.1", port)).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Starts a process, whose streams are pipes even where it is said to have a terminal.
fn start(
    options: &RemoteCommand,
    sizes: Arc<Mutex<Vec<TerminalSize>>>,
) -> Result<Session<Process>, String> {
    if options.command.iter().any(|argument| argument == "refuse") {
        return Err("container not running".to_owned());
    }
    let mut child = Command::new(&options.command[0])
        .args(&options.command[1..])
        .stdin(if options.streams.stdin {
            Stdio::piped()
        } else {
            Stdio::null()
        })
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let stdin = child.stdin.take();
    let stdout = chunks(child.stdout.take().unwrap()).map(|read| read.map(Chunk::Stdout));
    let stderr = chunks(child.stderr.take().unwrap()).map(|read| read.map(Chunk::Stderr));
    Ok(Session {
        stdin: stdin.map(|stdin| Box::pin(stdin) as _),
        output: futures::stream::select(stdout, stderr).boxed(),
        process: Process {
            child: tokio::sync::Mutex::new(child),
            sizes,
        },
    })
}

fn chunks(
    pipe: impl AsyncRead + Send + 'static,
) -> impl futures::Stream<Item = Result<Bytes, String>> + Send {
    ReaderStream::with_capacity(pipe, 64 << 10).map(|read| read.map_err(|error| error.to_string()))
}

struct Process {
    child: tokio::sync::Mutex<Child>,
    sizes: Arc<Mutex<Vec<TerminalSize>>>,
}

impl mirrorlet_streaming::Process for Process {
    type Error = String;

    async fn resize(&self, size: TerminalSize) {
        self.sizes.lock().unwrap().push(size);
    }

    async fn exit_code(&self) -> Result<Option<i32>, String> {
        let ended = self.child.lock().await.wait().await;
        let ended: ExitStatus = ended.map_err(|error| error.to_string())?;
        Ok(ended.code())
    }
}
