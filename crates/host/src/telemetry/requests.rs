//! The labels of a request to the API server: a verb, a resource and an outcome, each from a closed
//! set.

/// Resources counted by name; a path that names any other counts as `other`.
const RESOURCES: [&str; 16] = [
    "nodes",
    "leases",
    "pods",
    "events",
    "configmaps",
    "secrets",
    "services",
    "namespaces",
    "serviceaccounts",
    "persistentvolumeclaims",
    "persistentvolumes",
    "runtimeclasses",
    "tokenreviews",
    "subjectaccessreviews",
    "certificatesigningrequests",
    "priorityclasses",
];
/// Sub-resources counted apart from their resource.
const SUBRESOURCES: [(&str, &str, &str); 6] = [
    ("nodes", "status", "nodes/status"),
    ("pods", "status", "pods/status"),
    ("pods", "eviction", "pods/eviction"),
    ("pods", "binding", "pods/binding"),
    ("serviceaccounts", "token", "serviceaccounts/token"),
    (
        "certificatesigningrequests",
        "approval",
        "certificatesigningrequests/approval",
    ),
];
/// Outcomes counted by code; any other counts by its class.
const CODES: [(u16, &str); 17] = [
    (200, "200"),
    (201, "201"),
    (202, "202"),
    (400, "400"),
    (401, "401"),
    (403, "403"),
    (404, "404"),
    (409, "409"),
    (410, "410"),
    (415, "415"),
    (422, "422"),
    (429, "429"),
    (500, "500"),
    (501, "501"),
    (502, "502"),
    (503, "503"),
    (504, "504"),
];

/// A request to the API server, classified for its metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ApiRequest {
    verb: &'static str,
    resource: &'static str,
}

impl ApiRequest {
    /// The request with that HTTP method, path and query.
    pub fn of(method: &str, path: &str, query: &str) -> Self {
        let mut parts = path.split('/').filter(|part| !part.is_empty());
        let mut rest: Vec<&str> = match parts.next() {
            Some("api") => parts.skip(1).collect(),
            Some("apis") => parts.skip(2).collect(),
            _ => Vec::new(),
        };
        if rest.first() == Some(&"namespaces") && rest.len() > 2 {
            rest.drain(..2);
        }
        let plural = rest.first().copied().unwrap_or_default();
        let named = rest.len() > 1;
        let below = rest.get(2).copied().unwrap_or_default();
        let resource = SUBRESOURCES
            .iter()
            .find(|(resource, sub, _)| *resource == plural && *sub == below)
            .map(|(_, _, both)| *both)
            .or_else(|| RESOURCES.into_iter().find(|known| *known == plural))
            .unwrap_or("other");
        let watches = query
            .split('&')
            .any(|pair| matches!(pair, "watch" | "watch=1" | "watch=true"));
        let verb = match (method, named, watches) {
            ("GET", _, true) => "watch",
            ("GET", true, false) => "get",
            ("GET", false, false) => "list",
            ("POST", _, _) => "create",
            ("PUT", _, _) => "update",
            ("PATCH", _, _) => "patch",
            ("DELETE", _, _) => "delete",
            (_, _, _) => "other",
        };
        Self { verb, resource }
    }

    /// Whether its answer continues until one side ends it.
    pub fn is_watch(self) -> bool {
        self.verb == "watch"
    }

    /// The labels it is counted under; without a code if there was no answer.
    pub(super) fn labels(self, code: Option<u16>) -> [(&'static str, &'static str); 3] {
        let code = match code {
            None => "none",
            Some(code) => CODES
                .iter()
                .find(|(known, _)| *known == code)
                .map_or_else(|| class(code), |(_, text)| *text),
        };
        [
            ("verb", self.verb),
            ("resource", self.resource),
            ("code", code),
        ]
    }
}

fn class(code: u16) -> &'static str {
    match code / 100 {
        1 => "1xx",
        2 => "2xx",
        3 => "3xx",
        4 => "4xx",
        _ => "5xx",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_counted_by_verb_and_resource() {
        for (method, path, query, verb, resource) in [
            (
                "GET",
                "/api/v1/nodes",
                "fieldSelector=x&watch=true",
                "watch",
                "nodes",
            ),
            ("GET", "/api/v1/nodes/n1", "", "get", "nodes"),
            ("GET", "/api/v1/pods", "limit=500", "list", "pods"),
            (
                "PATCH",
                "/api/v1/nodes/n1/status",
                "",
                "patch",
                "nodes/status",
            ),
            (
                "PUT",
                "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n1",
                "",
                "update",
                "leases",
            ),
            (
                "POST",
                "/api/v1/namespaces/default/pods",
                "",
                "create",
                "pods",
            ),
            (
                "DELETE",
                "/api/v1/namespaces/default/pods/web",
                "",
                "delete",
                "pods",
            ),
            (
                "POST",
                "/api/v1/namespaces/a/serviceaccounts/default/token",
                "",
                "create",
                "serviceaccounts/token",
            ),
            ("GET", "/api/v1/namespaces/default", "", "get", "namespaces"),
            (
                "GET",
                "/api/v1/namespaces",
                "watch=1",
                "watch",
                "namespaces",
            ),
            ("GET", "/apis/example.com/v1/widgets", "", "list", "other"),
            ("GET", "/version", "", "list", "other"),
        ] {
            assert_eq!(
                ApiRequest::of(method, path, query),
                ApiRequest { verb, resource },
                "{method} {path}?{query}"
            );
        }
    }

    #[test]
    fn outcomes_are_a_closed_set() {
        let request = ApiRequest::of("GET", "/version", "");
        for (code, label) in [
            (None, "none"),
            (Some(409), "409"),
            (Some(418), "4xx"),
            (Some(299), "2xx"),
            (Some(599), "5xx"),
        ] {
            assert_eq!(request.labels(code)[2], ("code", label));
        }
    }
}
