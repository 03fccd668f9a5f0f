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
