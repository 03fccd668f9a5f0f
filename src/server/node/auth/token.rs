//! Reads the bearer token of a request.

use std::borrow::Cow;

use axum::http::header::{AUTHORIZATION, SEC_WEBSOCKET_PROTOCOL};
use axum::http::{HeaderMap, HeaderValue};
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use mirrorlet_streaming::{is_websocket, websocket_protocols};

/// Maximum length of a token, in bytes; real ones have about a thousand.
pub(super) const TOKEN_BYTES_MAX: usize = 16 << 10;
/// A protocol of this name is a token in base64 for URLs, without padding.
const PROTOCOL_PREFIX: &str = "base64url.bearer.authorization.k8s.io.";

/// The token that a request is made with.
pub(super) fn token(headers: &HeaderMap) -> Option<Cow<'_, str>> {
    let token = bearer(headers)
        .map(Cow::Borrowed)
        .or_else(|| offered(headers).map(Cow::Owned))?;
    (!token.is_empty() && token.len() <= TOKEN_BYTES_MAX).then_some(token)
}

/// The token of `Authorization: Bearer …`.
///
/// Upstream: `apiserver/pkg/authentication/request/bearertoken`.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let mut words = headers
        .get(AUTHORIZATION)?
        .to_str()
        .ok()?
        .trim()
        .splitn(3, ' ');
    let (scheme, token) = (words.next()?, words.next()?);
    scheme.eq_ignore_ascii_case("bearer").then_some(token)
}

/// The token in the protocols of a WebSocket, which browsers use because they can set no other header.
/// It needs another protocol beside it, because the answer can't name this one.
///
/// Upstream: `apiserver/pkg/authentication/request/websocket/protocol.go`.
fn offered(headers: &HeaderMap) -> Option<String> {
    if !is_websocket(headers) {
        return None;
    }
    let protocols = websocket_protocols(headers);
    let mut tokens = protocols
        .iter()
        .filter_map(|name| name.strip_prefix(PROTOCOL_PREFIX));
    let encoded = tokens.next()?;
    if tokens.next().is_some() || protocols.len() < 2 {
        return None;
    }
    String::from_utf8(BASE64_URL_SAFE_NO_PAD.decode(encoded).ok()?).ok()
}

/// Removes tokens from the offered protocols, so that the handler of the request neither selects nor
/// repeats one.
pub(super) fn strip(headers: &mut HeaderMap) {
    let protocols = websocket_protocols(headers);
    let rest: Vec<_> = protocols
        .iter()
        .filter(|name| !name.starts_with(PROTOCOL_PREFIX))
        .copied()
        .collect();
    if rest.len() == protocols.len() {
        return;
    }
    match HeaderValue::from_str(&rest.join(",")) {
        Ok(rest) => drop(headers.insert(SEC_WEBSOCKET_PROTOCOL, rest)),
        Err(_) => drop(headers.remove(SEC_WEBSOCKET_PROTOCOL)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn websocket(protocols: &[&str]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(
            "connection",
            HeaderValue::from_static("keep-alive, Upgrade"),
        );
        headers.insert("upgrade", HeaderValue::from_static("websocket"));
        for names in protocols {
            headers.append(
                SEC_WEBSOCKET_PROTOCOL,
                HeaderValue::from_str(names).unwrap(),
            );
        }
        headers
    }

    #[test]
    fn a_token_is_read_as_upstream_reads_it() {
        for (header, found) in [
            ("Bearer abc", Some("abc")),
            ("bearer abc ", Some("abc")),
            ("  BEARER abc", Some("abc")),
            ("Bearer abc def", Some("abc")),
            ("Bearer", None),
            ("Bearer  abc", None),
            ("Basic abc", None),
            ("", None),
        ] {
            let headers = HeaderMap::from_iter([(AUTHORIZATION, HeaderValue::from_static(header))]);
            assert_eq!(token(&headers).as_deref(), found, "{header:?}");
        }
        let long = format!("Bearer {}", "x".repeat(TOKEN_BYTES_MAX + 1));
        let long = HeaderValue::from_str(&long).unwrap();
        assert_eq!(token(&HeaderMap::from_iter([(AUTHORIZATION, long)])), None);
        assert_eq!(token(&HeaderMap::new()), None);
    }

    #[test]
    fn a_websocket_may_have_its_token_among_the_protocols() {
        const TOKEN: &str = "base64url.bearer.authorization.k8s.io.YWJj";
        for (protocols, found) in [
            (&[TOKEN, "v5.channel.k8s.io"][..], Some("abc")),
            (&["v5.channel.k8s.io", TOKEN], Some("abc")),
            (
                &["v5.channel.k8s.io, base64url.bearer.authorization.k8s.io.YWJj"],
                Some("abc"),
            ),
            // Nothing beside it, two of them, no base64, padded, no text, none at all.
            (&[TOKEN], None),
            (&[TOKEN, TOKEN, "v5.channel.k8s.io"], None),
            (
                &[
                    "base64url.bearer.authorization.k8s.io.!",
                    "v5.channel.k8s.io",
                ],
                None,
            ),
            (
                &[
                    "base64url.bearer.authorization.k8s.io.YQ==",
                    "v5.channel.k8s.io",
                ],
                None,
            ),
            (
                &[
                    "base64url.bearer.authorization.k8s.io._w",
                    "v5.channel.k8s.io",
                ],
                None,
            ),
            (
                &[
                    "base64url.bearer.authorization.k8s.io.",
                    "v5.channel.k8s.io",
                ],
                None,
            ),
            (&["v5.channel.k8s.io"], None),
        ] {
            assert_eq!(
                token(&websocket(protocols)).as_deref(),
                found,
                "{protocols:?}"
            );
        }
        // Only a WebSocket's.
        let mut headers = websocket(&[TOKEN, "v5.channel.k8s.io"]);
        headers.remove("upgrade");
        assert_eq!(token(&headers), None);
        // The usual header goes first.
        let mut headers = websocket(&[TOKEN, "v5.channel.k8s.io"]);
        headers.insert(AUTHORIZATION, HeaderValue::from_static("Bearer other"));
        assert_eq!(token(&headers).as_deref(), Some("other"));
    }

    #[test]
    fn nobody_behind_the_gate_sees_a_token() {
        let mut headers = websocket(&[
            "v5.channel.k8s.io",
            "base64url.bearer.authorization.k8s.io.YWJj, v4.channel.k8s.io",
        ]);
        strip(&mut headers);
        let left: Vec<_> = headers.get_all(SEC_WEBSOCKET_PROTOCOL).iter().collect();
        assert_eq!(left, ["v5.channel.k8s.io,v4.channel.k8s.io"]);
        let plain = websocket(&["v5.channel.k8s.io"]);
        let mut same = plain.clone();
        strip(&mut same);
        assert_eq!(same, plain);
    }
}
