//! Objects of a cluster, by its API: tests look often, and kubectl is a program to start.

use serde_json::{Value, json};
use tokio::runtime::Handle;
use tokio::task::block_in_place;

use super::Cluster;

/// Kinds that are looked at: kubectl's words for each, where the API has it, and whether it belongs to a
/// namespace.
static KINDS: [(&[&str], &str, bool); 8] = [
    (&["pod", "pods"], "/api/v1 pods", true),
    (&["events"], "/api/v1 events", true),
    (&["service"], "/api/v1 services", true),
    (&["quota"], "/api/v1 resourcequotas", true),
    (&["node"], "/api/v1 nodes", false),
    (&["job"], "/apis/batch/v1 jobs", true),
    (&["lease"], "/apis/coordination.k8s.io/v1 leases", true),
    (
        &["csr"],
        "/apis/certificates.k8s.io/v1 certificatesigningrequests",
        false,
    ),
];

/// The path of what `kubectl get` would show: of one of those kinds, with a name, `-n` and a namespace,
/// or a field selector.
pub fn path(args: &[&str]) -> Option<String> {
    let (mut words, mut namespace, mut selector) = (Vec::new(), "default", None);
    let mut args = args.iter();
    while let Some(&arg) = args.next() {
        if arg == "-n" {
            namespace = *args.next()?;
        } else if let Some(fields) = arg.strip_prefix("--field-selector=") {
            selector = Some(fields);
        } else if arg.starts_with('-') || arg.contains(['/', ',']) {
            return None;
        } else {
            words.push(arg);
        }
    }
    let (kind, name) = match words[..] {
        [kind] => (kind, None),
        [kind, name] => (kind, Some(name)),
        _ => return None,
    };
    let found = KINDS.iter().find(|(words, ..)| words.contains(&kind));
    let (_, place, is_namespaced) = found?;
    let (base, plural) = place.split_once(' ')?;
    let mut path = vec![base.to_owned()];
    if *is_namespaced {
        path.push(format!("namespaces/{namespace}"));
    }
    path.push(plural.to_owned());
    path.extend(name.map(str::to_owned));
    let path = path.join("/");
    let Some(selector) = selector else {
        return Some(path);
    };
    let mut query = form_urlencoded::Serializer::new(String::new());
    query.append_pair("fieldSelector", selector);
    Some(format!("{path}?{}", query.finish()))
}

impl Cluster {
    /// An object or a list as JSON, or nothing if the server says that there is none, or none in the list.
    /// Fails on any other answer. The arguments are those of `kubectl get`, which is run for those that
    /// have no [`path`].
    pub fn object(&self, args: &[&str]) -> Option<Value> {
        let Some(path) = path(args) else {
            let get = ["get", "-o", "json", "--ignore-not-found"];
            let text = self.kubectl(&[&get[..], args].concat());
            return (!text.is_empty()).then(|| serde_json::from_str(&text).unwrap());
        };
        let asking = async {
            let request = http::Request::get(&path).body(Vec::new()).unwrap();
            self.admin().await.request::<Value>(request).await
        };
        match block_in_place(|| Handle::current().block_on(asking)) {
            Ok(found) => (found["items"] != json!([])).then_some(found),
            Err(kube::Error::Api(status)) if status.is_not_found() => None,
            Err(error) => panic!("{args:?}: {error}"),
        }
    }
}
