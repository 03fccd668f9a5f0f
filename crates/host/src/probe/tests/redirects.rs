//! Answers that send a request on.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;

/// A server that sends everybody on, as often as it is asked to.
async fn redirecting(times: usize, to: impl Fn(usize) -> String + Send + Sync + 'static) -> Server {
    let asked = AtomicUsize::new(0);
    let answer = move |_: &str| {
        let n = asked.fetch_add(1, Ordering::SeqCst);
        if n < times {
            let to = to(n);
            format!("HTTP/1.1 302 Found\r\nLocation: {to}\r\nContent-Length: 3\r\n\r\n<a>").into()
        } else {
            b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n".to_vec()
        }
    };
    serve("127.0.0.1:0", None, Arc::new(answer)).await
}

#[tokio::test]
async fn redirects_to_the_same_host_are_followed_ten_requests_long() {
    let mut server = redirecting(9, |n| format!("/{n}?q")).await;
    let request = HttpGet {
        headers: vec![("Host".to_owned(), "shop.example".to_owned())],
        ..get(server.address, "/start")
    };
    assert_eq!(ask(&request).await, Ok(200));
    let mut asked = Vec::new();
    while asked.len() < 10 {
        asked.push(server.heads.recv().await.unwrap());
    }
    assert!(asked[9].starts_with("GET /8?q "), "{}", asked[9]);
    assert!(asked[9].contains("Host: shop.example"), "{}", asked[9]);
    let server = redirecting(10, |n| format!("/{n}")).await;
    // pods 56a
    assert_eq!(
        ask(&get(server.address, "/")).await,
        Err(ProbeError::TooManyRedirects(10))
    );
}

#[tokio::test]
async fn a_redirect_to_another_port_of_the_host_is_followed_and_to_another_host_is_not() {
    let mut target = answering("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await;
    let port = target.address.port();
    let server = redirecting(1, move |_| format!("http://127.0.0.1:{port}/there")).await;
    let request = HttpGet {
        headers: vec![("Host".to_owned(), "shop.example".to_owned())],
        ..get(server.address, "/")
    };
    assert_eq!(ask(&request).await, Ok(200));
    let head = target.heads.recv().await.unwrap();
    assert!(
        head.contains(&format!("Host: {}\r\n", target.address)),
        "{head}"
    );
    let away = redirecting(1, move |_| format!("http://localhost:{port}/")).await;
    let answer = Client::new().http_get(&get(away.address, "/"), LONG).await;
    let answer = answer.unwrap();
    assert_eq!(
        (answer.status, answer.body.as_ref()),
        (302, b"<a>".as_ref())
    );
    // pods 56a
    assert!(target.heads.try_recv().is_err(), "somebody was asked");
    let elsewhere = redirecting(1, |_| "gopher://127.0.0.1/".to_owned()).await;
    let answer = ask(&get(elsewhere.address, "/")).await;
    assert!(matches!(answer, Err(ProbeError::Broken(_))), "{answer:?}");
}

/// The machine is short of something for the look-ups from `first` on.
#[tokio::test]
async fn a_request_that_was_sent_on_is_made_again_and_the_one_before_is_not() {
    for (first, shortages, pauses) in [(0, 2, 2), (1, 2, 2), (1, 1, 5), (0, 3, 2), (1, 3, 2)] {
        let mut server = redirecting(1, |_| "/next".to_owned()).await;
        let request = HttpGet {
            host: "db".to_owned(),
            ..get(server.address, "/start")
        };
        let looked_up = AtomicUsize::new(0);
        let short = first..first + shortages;
        let client = Client::resolving_by(move |_| {
            if short.contains(&looked_up.fetch_add(1, Ordering::SeqCst)) {
                Err(Errno::MFILE.into())
            } else {
                Ok(vec![[127, 0, 0, 1].into()])
            }
        });
        let mut left = vec![Duration::ZERO; pauses];
        let asked = client.http_get_again(&request, LONG, || left.pop()).await;
        let asked = asked.map(|answer| answer.status);
        let exhausted = ProbeError::Exhausted {
            address: format!("db:{}", request.port),
            why: io::Error::from(Errno::MFILE).to_string(),
        };
        let is_enough = shortages <= pauses;
        let expected = if is_enough { Ok(200) } else { Err(exhausted) };
        // pods 56a
        assert_eq!(asked, expected, "{first} {shortages}");
        assert_eq!(left.len(), pauses.saturating_sub(shortages));
        let paths = ["/start", "/next"];
        for path in &paths[..if is_enough { 2 } else { first }] {
            let head = server.heads.recv().await.unwrap();
            // pods 56a
            assert!(head.starts_with(&format!("GET {path} ")), "{head}");
        }
    }
}
