//! Requests over HTTP, with and without TLS, and their answers.

use super::*;

#[tokio::test]
async fn the_request_is_the_authors_and_nothing_is_kept_open() {
    let mut server = answering("HTTP/1.1 204 No Content\r\n\r\n").await;
    let request = HttpGet {
        headers: vec![
            ("Host".to_owned(), "shop.example".to_owned()),
            ("X-Twice".to_owned(), "1".to_owned()),
            ("X-Twice".to_owned(), "2".to_owned()),
        ],
        ..get(server.address, "/a b?x=1&y=%20#part")
    };
    assert_eq!(ask(&request).await, Ok(204));
    let head = server.heads.recv().await.unwrap();
    let mut lines: Vec<&str> = head.trim_end().lines().collect();
    assert_eq!(lines.remove(0), "GET /a%20b?x=1&y=%20 HTTP/1.1");
    lines.sort_unstable();
    assert_eq!(
        lines,
        [
            "Connection: close",
            "Host: shop.example",
            "X-Twice: 1",
            "X-Twice: 2"
        ]
    );
    // Without a leading slash, and without a host of its own.
    assert_eq!(ask(&get(server.address, "health")).await, Ok(204));
    let head = server.heads.recv().await.unwrap();
    assert!(head.starts_with("GET /health HTTP/1.1\r\n"), "{head}");
    assert!(
        head.contains(&format!("Host: {}\r\n", server.address)),
        "{head}"
    );
}

#[tokio::test]
async fn statuses_are_returned_as_they_are() {
    for (answer, status) in [
        ("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", 200),
        ("HTTP/1.0 200 OK\r\n\r\nuntil the end", 200),
        ("HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", 404),
        ("HTTP/1.1 503 \r\nContent-Length: 0\r\n\r\n", 503),
        // A redirect to nowhere.
        ("HTTP/1.1 302 Found\r\nContent-Length: 0\r\n\r\n", 302),
        ("HTTP/1.1 304 Not Modified\r\nLocation: /x\r\n\r\n", 304),
    ] {
        let server = answering(answer).await;
        assert_eq!(ask(&get(server.address, "/")).await, Ok(status));
    }
}

#[tokio::test]
async fn an_answer_may_have_many_headers() {
    let headers = "Link: </a>\r\n".repeat(200);
    let answer = format!("HTTP/1.1 200 OK\r\n{headers}Content-Length: 0\r\n\r\n");
    let answer = Arc::new(move |_: &str| answer.clone().into_bytes());
    let server = serve("127.0.0.1:0", None, answer).await;
    // pods 56a
    assert_eq!(ask(&get(server.address, "/")).await, Ok(200));
}

#[tokio::test]
async fn of_a_long_answer_only_the_beginning_is_read() {
    const BODY: usize = 10 << 20;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        read_head(&mut stream).await.unwrap();
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {BODY}\r\n\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut sent = 0;
        while sent < BODY && stream.write_all(&[b'x'; 4096]).await.is_ok() {
            sent += 4096;
        }
        sent
    });
    assert_eq!(ask(&get(address, "/")).await, Ok(200));
    // The rest is what the kernel buffers for two sockets.
    let sent = server.await.unwrap();
    // pods 56a
    assert!(sent < BODY, "all {sent} bytes were taken");
}

#[tokio::test]
async fn a_server_that_never_answers_costs_its_timeout_and_no_more() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let mut held = Vec::new();
    let timeout = Duration::from_millis(100);
    let client = Client::new();
    for request in [get(address, "/"), over_tls(get(address, "/"))] {
        let (answer, accepted) =
            tokio::join!(client.http_get(&request, timeout), listener.accept());
        // pods 56a
        assert_eq!(answer, Err(ProbeError::Timeout(timeout)));
        held.push(accepted.unwrap());
    }
    let check = GrpcCheck {
        host: address.ip().to_string(),
        port: address.port(),
        service: String::new(),
        tls: false,
    };
    assert_eq!(
        client.grpc(&check, timeout).await,
        Err(ProbeError::Timeout(timeout))
    );
    // One that stops in the middle of its body, too.
    let stalls = serve(
        "127.0.0.1:0",
        None,
        Arc::new(|_| b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhal".to_vec()),
    )
    .await;
    let ended = ask(&get(stalls.address, "/")).await;
    assert!(matches!(ended, Err(ProbeError::Broken(_))), "{ended:?}");
}

#[tokio::test]
async fn senseless_answers_and_requests_are_told_without_their_values() {
    let server = answering("hello\r\n\r\n").await;
    let answer = ask(&get(server.address, "/")).await;
    assert!(matches!(answer, Err(ProbeError::Broken(_))), "{answer:?}");
    let silent = answering("").await;
    let answer = ask(&get(silent.address, "/")).await;
    assert!(matches!(answer, Err(ProbeError::Broken(_))), "{answer:?}");
    let request = HttpGet {
        headers: vec![("X-Key".to_owned(), "secret\n".to_owned())],
        ..get(server.address, "/")
    };
    let error = ask(&request).await.unwrap_err().to_string();
    assert_eq!(error, "invalid request: header \"X-Key\" is invalid");
}

#[tokio::test]
async fn nobodys_certificate_is_verified() {
    let server = serve(
        "127.0.0.1:0",
        Some(tls_config(&[])),
        Arc::new(|_| b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n".to_vec()),
    )
    .await;
    let request = over_tls(get(server.address, "/"));
    // pods 56a
    assert_eq!(ask(&request).await, Ok(200));
    let by_name = HttpGet {
        host: "localhost".to_owned(),
        ..request
    };
    assert_eq!(ask(&by_name).await, Ok(200));
}

#[tokio::test]
async fn plain_http_where_tls_was_asked_for_is_recognised() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let serving = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut hello = [0; 16];
        stream.read_exact(&mut hello).await.unwrap();
        let answer = b"HTTP/1.1 400 Bad Request\r\n\r\n";
        stream.write_all(answer).await.unwrap();
        stream
    });
    let answer = ask(&over_tls(get(address, "/"))).await;
    assert_eq!(answer, Err(ProbeError::PlainAnswer));
    serving.await.unwrap();
}
