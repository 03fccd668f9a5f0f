//! The users of the node API, and the rights that requests need.
//!
//! Upstream: `pkg/kubelet/server/auth.go` (`GetRequestAttributes`).

use std::collections::BTreeMap;

/// Group of all authenticated users.
pub const AUTHENTICATED: &str = "system:authenticated";

/// An authenticated user.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct User {
    /// Name, for example `kube-apiserver-kubelet-client`.
    pub name: String,
    /// UID; empty if there is none.
    pub uid: String,
    /// Groups.
    pub groups: Vec<String>,
    /// Additional attributes.
    pub extra: BTreeMap<String, Vec<String>>,
}

/// The permission that a request needs: `verb` on one of these subresources of our Node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Needed {
    /// API verb; empty for a method without one, which only users with all permissions may use.
    pub verb: &'static str,
    /// Subresources of `nodes`, in the order of the checks. A permission for any of them is enough.
    pub subresources: &'static [&'static str],
}

/// Paths with their own permissions, which also apply below them. The first match counts.
///
/// `proxy` is everything that is not listed here: it gives access to containers.
const TABLE: &[(&str, &[&str])] = &[
    ("/pods", &["pods", "proxy"]),
    ("/healthz", &["healthz", "proxy"]),
    ("/configz", &["configz", "proxy"]),
    ("/runningpods", &["pods", "proxy"]),
    ("/stats", &["stats"]),
    ("/metrics", &["metrics"]),
    ("/logs", &["log"]),
    ("/checkpoint", &["checkpoint"]),
    ("/statusz", &["statusz"]),
    ("/flagz", &["configz"]),
];

/// Returns the right that a request needs.
pub fn needed(method: &str, path: &str) -> Needed {
    let verb = match method {
        "POST" => "create",
        "GET" => "get",
        "PUT" => "update",
        "PATCH" => "patch",
        "DELETE" => "delete",
        _ => "",
    };
    let found = TABLE.iter().find(|(prefix, _)| {
        path.strip_prefix(prefix)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    });
    let subresources = found.map_or(&["proxy"][..], |(_, subresources)| subresources);
    Needed { verb, subresources }
}

impl Needed {
    /// The message for a user without this right.
    pub fn refusal(&self, user: &str) -> String {
        format!(
            "Forbidden (user={user}, verb={}, resource=nodes, subresource(s)=[{}])\n",
            self.verb,
            self.subresources.join(" ")
        )
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn paths_and_methods_need_what_they_need_upstream() {
        for (method, path, verb, subresources) in [
            ("GET", "/pods", "get", &["pods", "proxy"][..]),
            ("GET", "/pods/", "get", &["pods", "proxy"]),
            ("GET", "/podsx", "get", &["proxy"]),
            ("GET", "/runningpods/", "get", &["pods", "proxy"]),
            ("GET", "/healthz/ping", "get", &["healthz", "proxy"]),
            ("GET", "/configz", "get", &["configz", "proxy"]),
            ("GET", "/flagz", "get", &["configz"]),
            ("GET", "/statusz", "get", &["statusz"]),
            ("GET", "/stats/summary", "get", &["stats"]),
            ("GET", "/metrics", "get", &["metrics"]),
            ("GET", "/metrics/cadvisor", "get", &["metrics"]),
            ("GET", "/logs/", "get", &["log"]),
            ("POST", "/checkpoint/a/b/c", "create", &["checkpoint"]),
            ("GET", "/containerLogs/a/b/c", "get", &["proxy"]),
            ("GET", "/exec/a/b/c", "get", &["proxy"]),
            ("POST", "/exec/a/b/c", "create", &["proxy"]),
            ("POST", "/run/a/b/c", "create", &["proxy"]),
            ("PUT", "/debug/flags/v", "update", &["proxy"]),
            ("PATCH", "/", "patch", &["proxy"]),
            ("DELETE", "/nowhere", "delete", &["proxy"]),
            ("OPTIONS", "/exec/a/b/c", "", &["proxy"]),
            ("get", "/pods", "", &["pods", "proxy"]),
            ("GET", "//pods", "get", &["proxy"]),
            ("GET", "/Pods", "get", &["proxy"]),
            ("GET", "", "get", &["proxy"]),
        ] {
            let needed = needed(method, path);
            // node-api 5
            assert_eq!(
                (needed.verb, needed.subresources),
                (verb, subresources),
                "{method} {path}"
            );
        }
    }

    #[test]
    fn a_refusal_says_what_upstreams_says() {
        assert_eq!(
            needed("GET", "/pods").refusal("alice"),
            "Forbidden (user=alice, verb=get, resource=nodes, subresource(s)=[pods proxy])\n"
        );
    }

    proptest! {
        /// Only what is one of the names, or below it, can be had without the right to everything.
        #[test]
        fn every_other_path_needs_the_right_to_everything(
            method in "[A-Za-z]{0,8}",
            path in "(/(pods|stats|metrics|logs|configz))?[/.%a-z0-9]{0,24}",
        ) {
            let first = path.strip_prefix('/').and_then(|rest| rest.split('/').next());
            let is_named = |(name, _): &(&str, &[&str])| Some(&name[1..]) == first;
            if !TABLE.iter().any(is_named) {
                prop_assert_eq!(needed(&method, &path).subresources, ["proxy"]);
            }
        }
    }
}
