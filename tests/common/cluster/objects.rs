//! Objects of a cluster, by its API: tests look and write often, and kubectl is a program to start.

use http::Method;
use http::header::CONTENT_TYPE;
use kube::api::{ApiResource, GroupVersionKind};
use serde_json::{Value, json};

use super::super::eventually;
use super::Cluster;

/// Kinds that are looked at: kubectl's words for each, where the API has it, and whether it belongs to a
/// namespace.
static KINDS: [(&[&str], &str, bool); 12] = [
    (&["pod", "pods"], "/api/v1 pods", true),
    (&["events"], "/api/v1 events", true),
    (&["service"], "/api/v1 services", true),
    (&["quota"], "/api/v1 resourcequotas", true),
    (&["configmap"], "/api/v1 configmaps", true),
    (&["secret"], "/api/v1 secrets", true),
    (&["pvc"], "/api/v1 persistentvolumeclaims", true),
    (&["serviceaccount"], "/api/v1 serviceaccounts", true),
    (&["node"], "/api/v1 nodes", false),
    (&["job"], "/apis/batch/v1 jobs", true),
    (&["lease"], "/apis/coordination.k8s.io/v1 leases", true),
    (
        &["csr"],
        "/apis/certificates.k8s.io/v1 certificatesigningrequests",
        false,
    ),
];

/// Kinds that are applied and belong to no namespace.
const OF_NO_NAMESPACE: [&str; 9] = [
    "APIService",
    "ClusterRole",
    "ClusterRoleBinding",
    "Namespace",
    "Node",
    "PersistentVolume",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
    "ValidatingWebhookConfiguration",
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

/// The path of an object that is to be there.
pub fn place(object: &Value) -> Option<String> {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let (version, kind) = (text(&object["apiVersion"])?, text(&object["kind"])?);
    let (group, of_group) = version.split_once('/').unwrap_or(("", &version));
    let plural = ApiResource::from_gvk(&GroupVersionKind::gvk(group, of_group, &kind)).plural;
    let root = if group.is_empty() { "/api" } else { "/apis" };
    let mut path = vec![root.to_owned(), version];
    if !OF_NO_NAMESPACE.contains(&kind.as_str()) {
        let namespace = object["metadata"]["namespace"].as_str();
        path.push(format!("namespaces/{}", namespace.unwrap_or("default")));
    }
    path.extend([plural, text(&object["metadata"]["name"])?]);
    Some(path.join("/"))
}

/// The objects of a manifest. JSON is read as such: it may be larger than YAML may be.
fn documents(manifest: &str) -> Vec<Value> {
    match serde_json::from_str(manifest) {
        Ok(object) => vec![object],
        Err(_) => serde_saphyr::from_multiple(manifest).unwrap(),
    }
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
        let request = http::Request::get(&path).body(Vec::new()).unwrap();
        match self.ask(request) {
            Ok(found) => (found["items"] != json!([])).then_some(found),
            Err(kube::Error::Api(status)) if status.is_not_found() => None,
            Err(error) => panic!("{args:?}: {error}"),
        }
    }

    /// Sends a body of that media type as an administrator: the answer. Fails when it is refused.
    pub fn send(&self, method: Method, uri: &str, kind: &str, body: &Value) -> Value {
        let request = http::Request::builder()
            .method(method)
            .uri(uri)
            .header(CONTENT_TYPE, kind)
            .body(body.to_string().into_bytes())
            .unwrap();
        match self.ask(request) {
            Ok(answer) => answer,
            Err(error) => panic!("{uri}: {error}; sent was {body}"),
        }
    }

    /// Makes the objects of a manifest (YAML or JSON), or brings them up to it: what an earlier one
    /// of the same object had and this one hasn't goes.
    pub fn apply(&self, manifest: &str) {
        for object in documents(manifest) {
            let place = place(&object).unwrap_or_else(|| panic!("no object: {object}"));
            let uri = format!("{place}?fieldManager=test&force=true&fieldValidation=Strict");
            self.send(Method::PATCH, &uri, "application/apply-patch+yaml", &object);
        }
    }

    /// Lays that over the status of a Node.
    pub fn node_status(&self, node: &str, status: &Value) {
        let (uri, patch) = (
            format!("/api/v1/nodes/{node}/status"),
            json!({"status": status}),
        );
        let kind = "application/strategic-merge-patch+json";
        self.send(Method::PATCH, &uri, kind, &patch);
    }

    /// A namespace of that name, in which no pods can be made for a moment.
    pub fn bare_namespace(&self, name: &str) {
        let metadata = json!({"name": name});
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata});
        self.apply(&namespace.to_string());
    }

    /// A new namespace in which pods can be made: it has its `ServiceAccount` and root certificate.
    pub async fn namespace(&self, prefix: &str) -> String {
        let name = super::unique(prefix);
        self.bare_namespace(&name);
        let account = ["serviceaccount", "default", "-n", &name];
        let certificate = ["configmap", "kube-root-ca.crt", "-n", &name];
        for wanted in [account, certificate] {
            eventually(&wanted.join(" "), || self.object(&wanted)).await;
        }
        name
    }

    /// Makes a claim and a `PersistentVolume` with those fields of its spec, and waits until the two
    /// are bound.
    pub async fn bound_claim(&self, namespace: &str, name: &str, source: &Value) {
        let (modes, size) = (json!(["ReadWriteOnce"]), json!({"storage": "1Mi"}));
        let volume = format!("{namespace}-{name}");
        let mut spec = json!({
            "accessModes": modes, "capacity": size, "storageClassName": "by-hand",
            "claimRef": {"namespace": namespace, "name": name},
        });
        for (key, value) in source.as_object().unwrap() {
            spec[key] = value.clone();
        }
        for object in [
            json!({"kind": "PersistentVolume", "metadata": {"name": volume}, "spec": spec}),
            json!({
                "kind": "PersistentVolumeClaim", "metadata": {"name": name, "namespace": namespace},
                "spec": {
                    "accessModes": modes, "resources": {"requests": size},
                    "storageClassName": "by-hand", "volumeName": volume,
                    "volumeMode": source.get("volumeMode").unwrap_or(&json!("Filesystem")),
                },
            }),
        ] {
            let mut object = object;
            object["apiVersion"] = json!("v1");
            self.apply(&object.to_string());
        }
        eventually(&format!("claim {name} to be bound"), || {
            let claim = self.object(&["pvc", name, "-n", namespace])?;
            (claim["status"]["phase"] == "Bound").then_some(())
        })
        .await;
    }
}
