use http::Request;
use proptest::prelude::*;

use super::*;

fn headers(all: &[(&str, &str)]) -> HeaderMap {
    let mut request = Request::builder();
    for (name, value) in all {
        request = request.header(*name, *value);
    }
    request.body(()).unwrap().headers().clone()
}

fn spdy_request(offered: &[&str]) -> HeaderMap {
    let mut all = vec![("connection", "Upgrade"), ("upgrade", "SPDY/3.1")];
    all.extend(
        offered
            .iter()
            .map(|name| ("x-stream-protocol-version", *name)),
    );
    headers(&all)
}

fn websocket_request(offered: Option<&str>) -> HeaderMap {
    let mut all = vec![
        ("connection", "keep-alive, Upgrade"),
        ("upgrade", "WebSocket"),
        ("sec-websocket-version", "13"),
        ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
    ];
    all.extend(offered.map(|names| ("sec-websocket-protocol", names)));
    headers(&all)
}

fn answered(negotiated: &Negotiated, name: &str) -> Option<String> {
    let value = negotiated.headers.get(name)?;
    Some(value.to_str().unwrap().to_owned())
}

#[test]
fn the_first_protocol_of_a_spdy_client_that_we_have_is_taken() {
    let v = |name: &'static str, version| (vec![name], name, version);
    for (offered, chosen, version) in [
        v("channel.k8s.io", Version::V1),
        v("v2.channel.k8s.io", Version::V1),
        v("v3.channel.k8s.io", Version::V3),
        v("v4.channel.k8s.io", Version::V4),
        // As kubectl does.
        (
            vec![
                "v5.channel.k8s.io",
                "v4.channel.k8s.io",
                "v3.channel.k8s.io",
            ],
            "v4.channel.k8s.io",
            Version::V4,
        ),
        (
            vec!["nonsense, v3.channel.k8s.io,v4.channel.k8s.io"],
            "v3.channel.k8s.io",
            Version::V3,
        ),
    ] {
        let negotiated = RemoteCommand::negotiate(&spdy_request(&offered)).unwrap();
        assert_eq!(negotiated.carrier, Carrier::Spdy);
        // streams 1
        assert_eq!(negotiated.version, version, "{offered:?}");
        let said = answered(&negotiated, "x-stream-protocol-version");
        assert_eq!(said.as_deref(), Some(chosen));
        assert_eq!(
            answered(&negotiated, "upgrade").as_deref(),
            Some("SPDY/3.1")
        );
        assert_eq!(
            answered(&negotiated, "connection").as_deref(),
            Some("Upgrade")
        );
    }
}

#[test]
fn a_spdy_client_that_we_have_nothing_for_is_refused_as_upstream_does() {
    let refusal = RemoteCommand::negotiate(&spdy_request(&["v9.channel.k8s.io"])).unwrap_err();
    assert_eq!(refusal.status, StatusCode::FORBIDDEN);
    let accepted: Vec<_> = refusal.headers.get_all(ACCEPTED_VERSIONS).iter().collect();
    assert_eq!(
        accepted,
        [
            "v4.channel.k8s.io",
            "v3.channel.k8s.io",
            "v2.channel.k8s.io",
            "channel.k8s.io"
        ]
    );
    // streams 1
    assert_eq!(
        refusal.message,
        "unable to upgrade: unable to negotiate protocol: client supports [v9.channel.k8s.io], \
         server accepts [v4.channel.k8s.io v3.channel.k8s.io v2.channel.k8s.io channel.k8s.io]"
    );
    let version = ("x-stream-protocol-version", "v4.channel.k8s.io");
    for (request, words) in [
        (headers(&[]), "Upgrade request required"),
        (headers(&[version]), "Upgrade request required"),
        (
            headers(&[("connection", "upgrade"), ("upgrade", "SPDY/3.1")]),
            "unable to upgrade: header X-Stream-Protocol-Version does not exist in request with 2 headers",
        ),
        (
            spdy_request(&[" , "]),
            "unable to upgrade: header X-Stream-Protocol-Version contains no valid protocols",
        ),
        (
            headers(&[("connection", "upgrade"), ("upgrade", "h2c"), version]),
            "unable to upgrade: missing upgrade headers in request",
        ),
    ] {
        let refusal = RemoteCommand::negotiate(&request).unwrap_err();
        assert_eq!(refusal.status, StatusCode::BAD_REQUEST, "{words}");
        assert_eq!(refusal.message, words);
    }
}

#[test]
fn the_first_protocol_of_a_websocket_that_we_have_is_taken() {
    let (binary, base64) = (
        Carrier::WebSocket(Codec::Binary),
        Carrier::WebSocket(Codec::Base64),
    );
    for (offered, chosen, carrier, version) in [
        (None, None, binary, Version::V3),
        (Some(""), None, binary, Version::V3),
        (
            Some("channel.k8s.io"),
            Some("channel.k8s.io"),
            binary,
            Version::V3,
        ),
        (
            Some("base64.channel.k8s.io"),
            Some("base64.channel.k8s.io"),
            base64,
            Version::V3,
        ),
        (
            Some("v4.channel.k8s.io"),
            Some("v4.channel.k8s.io"),
            binary,
            Version::V4,
        ),
        (
            Some("v4.base64.channel.k8s.io"),
            Some("v4.base64.channel.k8s.io"),
            base64,
            Version::V4,
        ),
        // As kube-rs does.
        (
            Some("v5.channel.k8s.io, v4.channel.k8s.io"),
            Some("v5.channel.k8s.io"),
            binary,
            Version::V5,
        ),
        (
            Some("v6.channel.k8s.io,v4.channel.k8s.io"),
            Some("v4.channel.k8s.io"),
            binary,
            Version::V4,
        ),
    ] {
        let negotiated = RemoteCommand::negotiate(&websocket_request(offered)).unwrap();
        assert_eq!(negotiated.carrier, carrier, "{offered:?}");
        // streams 1
        assert_eq!(negotiated.version, version, "{offered:?}");
        let said = answered(&negotiated, "sec-websocket-protocol");
        assert_eq!(said.as_deref(), chosen);
        // The example of RFC 6455.
        let accept = answered(&negotiated, "sec-websocket-accept");
        assert_eq!(accept.as_deref(), Some("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="));
    }
    let refusal = RemoteCommand::negotiate(&websocket_request(Some("chat"))).unwrap_err();
    assert_eq!(refusal.status, StatusCode::FORBIDDEN);
    let mut request = websocket_request(None);
    request.remove(SEC_WEBSOCKET_KEY);
    let refusal = RemoteCommand::negotiate(&request).unwrap_err();
    assert_eq!(refusal.status, StatusCode::BAD_REQUEST);
    let mut request = websocket_request(None);
    request.insert(SEC_WEBSOCKET_VERSION, HeaderValue::from_static("8"));
    let refusal = RemoteCommand::negotiate(&request).unwrap_err();
    assert_eq!(refusal.status, StatusCode::BAD_REQUEST);
    assert_eq!(refusal.headers[SEC_WEBSOCKET_VERSION], "13");
}

#[test]
fn ports_are_forwarded_over_each_carrier() {
    let request = spdy_request(&["portforward.k8s.io"]);
    let spdy = PortForward::negotiate(&request, "").unwrap();
    assert_eq!(
        (spdy.negotiated.carrier, spdy.ports),
        (Carrier::Spdy, vec![])
    );
    let request = websocket_request(Some("SPDY/3.1+portforward.k8s.io"));
    let tunnel = PortForward::negotiate(&request, "").unwrap();
    assert_eq!(tunnel.negotiated.carrier, Carrier::Tunnel);
    let said = answered(&tunnel.negotiated, "sec-websocket-protocol");
    assert_eq!(said.as_deref(), Some("SPDY/3.1+portforward.k8s.io"));
    let refusal = RemoteCommand::negotiate(&request).unwrap_err();
    assert_eq!(
        refusal.status,
        StatusCode::FORBIDDEN,
        "commands have no tunnel"
    );
    for (query, ports) in [
        ("port=80", vec![80]),
        ("port=80,443&port=1", vec![80, 443, 1]),
        ("x=1&port=65535", vec![65535]),
    ] {
        let request = websocket_request(Some("v4.channel.k8s.io"));
        let channels = PortForward::negotiate(&request, query).unwrap();
        // streams 1
        assert_eq!(channels.ports, ports, "{query}");
    }
    let many: Vec<String> = (1..=129).map(|port| format!("port={port}")).collect();
    let many = many.join("&");
    for query in [
        "",
        "port=",
        "port=0",
        "port=65536",
        "port=a",
        "port=1,,2",
        &*many,
    ] {
        let refusal = PortForward::negotiate(&websocket_request(None), query).unwrap_err();
        assert_eq!(refusal.status, StatusCode::BAD_REQUEST, "{query}");
    }
    let refusal = PortForward::negotiate(&spdy_request(&["v4.channel.k8s.io"]), "").unwrap_err();
    assert_eq!(refusal.status, StatusCode::FORBIDDEN);
}

#[test]
fn a_query_says_command_and_streams() {
    let asked = RemoteCommand::parse("command=sh&command=-c&command=a+b&input=1&output=1&error=1");
    let asked = asked.unwrap();
    // streams 1
    assert_eq!(asked.command, ["sh", "-c", "a b"]);
    let streams = asked.streams;
    assert!(streams.stdin && streams.stdout && streams.stderr && !streams.tty);
    assert!(!format!("{asked:?}").contains("a b"));
    // A terminal has no standard error, and no flag but 1 is on.
    let asked = RemoteCommand::parse("output=1&error=1&tty=1&input=true&output=0").unwrap();
    let streams = asked.streams;
    assert!(!streams.stdin && streams.stdout && !streams.stderr && streams.tty);
    for query in ["", "tty=1", "tty=1&error=1", "output=true"] {
        let refusal = RemoteCommand::parse(query).unwrap_err();
        assert_eq!(refusal.status, StatusCode::BAD_REQUEST, "{query}");
        assert_eq!(
            refusal.message,
            "you must specify at least 1 of stdin, stdout, stderr"
        );
    }
}

proptest! {
    #[test]
    fn no_head_makes_it_panic(
        names in prop::collection::vec(0usize..8, 0..12), value in "[ -~]{0,40}", query in "[ -~]{0,40}",
    ) {
        let all = [
            "connection", "upgrade", "x-stream-protocol-version", "sec-websocket-protocol",
            "sec-websocket-key", "sec-websocket-version", "host", "x",
        ];
        let mut request = websocket_request(None);
        for name in names {
            request.append(all[name], HeaderValue::from_str(&value).unwrap());
        }
        let _ = RemoteCommand::negotiate(&request);
        let _ = PortForward::negotiate(&request, &query);
        let _ = RemoteCommand::parse(&query);
    }
}
