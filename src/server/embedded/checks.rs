//! Requests that are refused because of their headers.

use std::net::IpAddr;

use axum::http::{HeaderMap, header};
use mirrorlet_apimachinery::status::Status;

/// Refuses requests that a browser sends for a foreign page, though it has no certificate of ours.
pub(super) fn check_host(headers: &HeaderMap) -> Result<(), Status> {
    let refused = |what: &str| {
        Err(Status::bad_request(format!(
            "{what} is not a name of this server"
        )))
    };
    if let Some(host) = headers.get(header::HOST) {
        let host = host.to_str().unwrap_or_default();
        let name = match host.strip_prefix('[') {
            Some(rest) => rest.split(']').next().unwrap_or_default(),
            None => host.split(':').next().unwrap_or_default(),
        };
        let address = name.parse::<IpAddr>();
        if name != "localhost" && !address.is_ok_and(|address| address.is_loopback()) {
            return refused("the Host header");
        }
    }
    if headers.contains_key(header::ORIGIN) {
        return refused("the Origin header");
    }
    Ok(())
}

/// Refuses impersonation, as with `kubectl --as`: the request would be answered as one of `user`.
pub(super) fn check_impersonation(headers: &HeaderMap, user: &str) -> Result<(), Status> {
    const PREFIX: &str = "impersonate-";
    let mut asked = headers.iter().filter_map(|(name, value)| {
        let what = match name.as_str().strip_prefix(PREFIX)? {
            "user" => "users",
            "group" => "groups",
            "uid" => "uids",
            _ => "userextras",
        };
        Some((what, value.to_str().unwrap_or_default()))
    });
    // A client that names a group names a user, too.
    let first = asked.by_ref().max_by_key(|(what, _)| *what == "users");
    first.map_or(Ok(()), |(what, name)| {
        Err(Status::impersonation(what, name, user))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_of_others_and_names_of_others_are_refused() {
        let check = |name: header::HeaderName, value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(name, value.parse().unwrap());
            check_host(&headers).map_err(|status| status.code)
        };
        for (host, expected) in [
            ("127.0.0.1:10352", Ok(())),
            ("127.0.0.2", Ok(())),
            ("localhost:1", Ok(())),
            ("[::1]:10352", Ok(())),
            ("evil.example", Err(400)),
            ("evil.example:10352", Err(400)),
            ("127.evil.example", Err(400)),
            ("[::2]:10352", Err(400)),
            ("", Err(400)),
        ] {
            // embedded 26
            assert_eq!(check(header::HOST, host), expected, "{host}");
        }
        assert_eq!(check(header::ORIGIN, "https://evil.example"), Err(400));
        assert_eq!(check(header::ACCEPT, "*/*"), Ok(()));
    }

    #[test]
    fn nobody_is_impersonated() {
        let check = |headers: &[(&'static str, &str)]| {
            let headers = headers.iter().map(|(name, value)| {
                let name = header::HeaderName::from_static(name);
                (name, value.parse().unwrap())
            });
            check_impersonation(&headers.collect(), "admin")
        };
        assert_eq!(check(&[("accept", "*/*")]), Ok(()));
        for (headers, about) in [
            (&[("impersonate-user", "bob")][..], "users \"bob\""),
            (&[("impersonate-group", "g")], "groups \"g\""),
            (
                &[("impersonate-group", "g"), ("impersonate-user", "bob")],
                "users \"bob\"",
            ),
            (&[("impersonate-extra-a", "x")], "userextras \"x\""),
        ] {
            let refused = check(headers).unwrap_err();
            assert_eq!((refused.code, refused.reason), (403, "Forbidden"));
            let begin = format!("{about} is forbidden: User \"admin\" cannot impersonate ");
            assert!(refused.message.starts_with(&begin), "{}", refused.message);
        }
    }
}
