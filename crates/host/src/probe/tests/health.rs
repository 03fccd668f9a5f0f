//! The gRPC health service.

use bytes::Bytes;

use super::*;

/// A gRPC server with one answer for all.
async fn grpc_server(tls: Option<TlsAcceptor>, answer: GrpcAnswer) -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (told, heads) = mpsc::unbounded_channel();
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            match &tls {
                Some(tls) => {
                    if let Ok(stream) = tls.accept(stream).await {
                        answer_grpc(stream, &answer, &told).await;
                    }
                }
                None => answer_grpc(stream, &answer, &told).await,
            }
        }
    });
    Server {
        address,
        heads,
        _tasks: tasks,
    }
}

#[derive(Clone)]
enum GrpcAnswer {
    /// This message, then trailers with status 0.
    Message(&'static [u8]),
    /// A refusal with that status and message, and nothing else.
    Refusal(&'static str, &'static str),
}

async fn answer_grpc<S>(stream: S, answer: &GrpcAnswer, told: &mpsc::UnboundedSender<String>)
where
    S: AsyncRead + tokio::io::AsyncWrite + Unpin,
{
    let Ok(mut connection) = h2::server::handshake(stream).await else {
        return;
    };
    while let Some(Ok((mut request, mut respond))) = connection.accept().await {
        let mut body = Vec::new();
        while let Some(Ok(chunk)) = request.body_mut().data().await {
            body.extend_from_slice(&chunk);
        }
        let agent = request.headers()["user-agent"].to_str().unwrap();
        let _ = told.send(format!("{} {agent} {body:?}", request.uri().path()));
        let head = ::http::Response::builder().header("content-type", "application/grpc");
        match answer {
            GrpcAnswer::Message(message) => {
                let mut send = respond
                    .send_response(head.body(()).unwrap(), false)
                    .unwrap();
                send.send_data(Bytes::from_static(message), false).unwrap();
                let mut trailers = ::http::HeaderMap::new();
                trailers.insert("grpc-status", "0".parse().unwrap());
                send.send_trailers(trailers).unwrap();
            }
            GrpcAnswer::Refusal(status, message) => {
                let head = head
                    .header("grpc-status", *status)
                    .header("grpc-message", *message);
                respond.send_response(head.body(()).unwrap(), true).unwrap();
            }
        }
    }
}

fn check(server: &Server, service: &str, tls: bool) -> GrpcCheck {
    GrpcCheck {
        host: server.address.ip().to_string(),
        port: server.address.port(),
        service: service.to_owned(),
        tls,
    }
}

#[tokio::test]
async fn a_grpc_health_service_is_asked_and_understood() {
    let serving = GrpcAnswer::Message(&[0, 0, 0, 0, 2, 8, 1]);
    for tls in [false, true] {
        let acceptor = tls.then(|| tls_config(&[b"h2"]));
        let mut server = grpc_server(acceptor, serving.clone()).await;
        let asked = Client::new().grpc(&check(&server, "db", tls), LONG).await;
        // pods 56a
        assert_eq!(asked, Ok(Health::Serving));
        assert_eq!(
            server.heads.recv().await.unwrap(),
            "/grpc.health.v1.Health/Check kube-probe/1.35 [0, 0, 0, 0, 4, 10, 2, 100, 98]"
        );
    }
    let sick = grpc_server(None, GrpcAnswer::Message(&[0, 0, 0, 0, 2, 8, 2])).await;
    let asked = Client::new().grpc(&check(&sick, "", false), LONG).await;
    assert_eq!(asked, Ok(Health::NotServing));
}

#[tokio::test]
async fn what_is_no_grpc_health_service_is_told() {
    let refused = |status, message| grpc_server(None, GrpcAnswer::Refusal(status, message));
    for (server, words) in [
        (
            refused("12", "unknown service").await,
            "this server does not implement the grpc health protocol (grpc.health.v1.Health): unknown service",
        ),
        (
            refused("5", "unknown").await,
            "health rpc failed: rpc error: code = 5 desc = unknown",
        ),
    ] {
        let asked = Client::new().grpc(&check(&server, "", false), LONG).await;
        assert_eq!(asked, Err(ProbeError::Broken(words.to_owned())));
    }
    let http = answering("HTTP/1.1 200 OK\r\n\r\n").await;
    let asked = Client::new().grpc(&check(&http, "", false), LONG).await;
    assert!(matches!(asked, Err(ProbeError::Broken(_))), "{asked:?}");
}

/// Kinds of frames of HTTP/2, and one that is unknown.
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const PUSH_PROMISE: u8 = 5;
const GOAWAY: u8 = 7;
const UNKNOWN: u8 = 0xff;
/// Their flags.
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let stream = stream.to_be_bytes();
    [&length[1..], &[kind, flags][..], &stream[..], payload].concat()
}

/// The kind of the next frame; none at the end.
async fn read_frame(stream: &mut (impl AsyncRead + Unpin)) -> Option<u8> {
    let mut head = [0; 9];
    stream.read_exact(&mut head).await.ok()?;
    let [high, middle, low, kind, ..] = head;
    let mut payload = vec![0; usize::try_from(u32::from_be_bytes([0, high, middle, low])).unwrap()];
    stream.read_exact(&mut payload).await.ok()?;
    Some(kind)
}

/// The result of a probe whose server sends these frames when it is asked, and then an answer with
/// those headers that it is well; and the kinds of frames that the server got.
async fn asked_of(frames: &[u8], headers: &[u8]) -> (Result<Health, ProbeError>, Vec<u8>) {
    let answer = [
        frame(SETTINGS, 0, 0, &[]),
        frames.to_vec(),
        frame(HEADERS, END_HEADERS, 1, headers),
        frame(DATA, END_STREAM, 1, &[0, 0, 0, 0, 2, 8, 1]),
    ];
    let answer = answer.concat();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut preface = [0; b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".len()];
        stream.read_exact(&mut preface).await.unwrap();
        let mut kinds = Vec::new();
        while let Some(kind) = read_frame(&mut stream).await {
            kinds.push(kind);
            if kind == HEADERS {
                // The client may have gone away.
                let _ = stream.write_all(&answer).await;
            }
        }
        kinds
    });
    let check = GrpcCheck {
        host: address.ip().to_string(),
        port: address.port(),
        service: String::new(),
        tls: false,
    };
    let asked = Client::new().grpc(&check, LONG).await;
    (asked, tasks.join_next().await.unwrap().unwrap())
}

#[tokio::test]
async fn a_grpc_server_that_sends_more_than_an_answer_is_refused() {
    // `:status: 200`.
    let ok = [0x88];
    let (asked, _) = asked_of(&[], &ok).await;
    assert_eq!(asked, Ok(Health::Serving));

    // Stream 2, `:method: GET`, `:scheme: http`, `:path: /`, `:authority: x`.
    let promise = [0, 0, 0, 2, 0x82, 0x86, 0x84, 0x41, 1, b'x'];
    let promise = frame(PUSH_PROMISE, END_HEADERS, 1, &promise);
    let (asked, kinds) = asked_of(&promise, &ok).await;
    // pods 56a
    assert!(matches!(asked, Err(ProbeError::Broken(_))), "{asked:?}");
    assert!(kinds.contains(&GOAWAY), "{kinds:?}");

    // `a: b`, and 3,000 times the same by its number: 100 KiB, as HTTP/2 counts them.
    let repeated = [&ok[..], &[0x40, 1, b'a', 1, b'b'], &[0xbe; 3000]].concat();
    let (asked, _) = asked_of(&[], &repeated).await;
    // pods 56a
    assert!(matches!(asked, Err(ProbeError::Broken(_))), "{asked:?}");

    let ignored = frame(UNKNOWN, 0, 0, &[0; 1 << 14]).repeat(9);
    let (asked, _) = asked_of(&ignored, &ok).await;
    // pods 56a
    assert!(matches!(asked, Err(ProbeError::Broken(_))), "{asked:?}");
}
