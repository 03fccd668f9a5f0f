//! The templates of workloads, in stored and in shown form. Pure.
//!
//! A pod's version follows the text of its template. Clients that decode an object to types write empty
//! fields into it (`resources: {}`, `creationTimestamp: null`) whenever they change another one: these
//! are not stored, so that they replace no pod.

use std::sync::Arc;

use mirrorlet_apimachinery::cache::Key;
use mirrorlet_core::workload::revisions::WorkloadRevision;
use serde_json::{Map, Value};

/// Fields of a pod's spec that are as if they were not there where they are empty lists or maps.
const OF_SPEC: [&str; 11] = [
    "hostAliases",
    "imagePullSecrets",
    "initContainers",
    "nodeSelector",
    "overhead",
    "readinessGates",
    "schedulingGates",
    "securityContext",
    "tolerations",
    "topologySpreadConstraints",
    "volumes",
];
/// Those of a container.
const OF_CONTAINER: [&str; 9] = [
    "args",
    "command",
    "env",
    "envFrom",
    "ports",
    "resources",
    "securityContext",
    "volumeDevices",
    "volumeMounts",
];
/// Those of metadata.
const OF_METADATA: [&str; 2] = ["annotations", "labels"];

/// The templates of a workload that pods run.
#[derive(Debug, Clone)]
pub(super) struct Templates {
    document: Arc<Value>,
    versions: Vec<Arc<Value>>,
}

impl Templates {
    /// The templates of a document, and of its known versions.
    pub(super) fn new(document: &Arc<Value>, versions: Option<&Vec<WorkloadRevision>>) -> Self {
        let versions = versions.into_iter().flatten().rev();
        Self {
            document: Arc::clone(document),
            versions: versions.map(|v| Arc::clone(&v.template)).collect(),
        }
    }

    /// All of them: that of the document first, then the newest version.
    fn all(&self) -> impl Iterator<Item = &Value> {
        let of_document = self.document.pointer(place(&self.document));
        let versions = self.versions.iter().map(|template| &**template);
        of_document.into_iter().chain(versions)
    }
}

/// Where the template of a workload is.
fn place(object: &Value) -> &'static str {
    if object["kind"] == "CronJob" {
        "/spec/jobTemplate/spec/template"
    } else {
        "/spec/template"
    }
}

/// Whether objects of a resource have a template.
fn has_template(key: &Key) -> bool {
    let kinds = ["Deployment", "StatefulSet", "DaemonSet", "Job", "CronJob"];
    kinds.contains(&key.resource.kind)
}

/// Removes empty fields from the template of a workload that a client wrote. A template that only
/// differs in those is stored in its known form, so that its pods stay.
pub(super) fn store(object: &mut Value, key: &Key, known: Option<&Templates>) {
    if !has_template(key) {
        return;
    }
    let place = place(object);
    let Some(template) = object.pointer_mut(place) else {
        return;
    };
    clean(template);
    let same = known.into_iter().flat_map(Templates::all).find(|known| {
        let mut known = (*known).clone();
        clean(&mut known);
        known == *template
    });
    if let Some(same) = same {
        *template = same.clone();
    }
}

/// Fills in defaults of a workload's template that kubectl prints.
pub(super) fn show(object: &mut Value) {
    let place = place(object);
    if let Some(template) = object.pointer_mut(place) {
        show_template(template);
    }
}

/// The same, of a template.
pub(super) fn show_template(template: &mut Value) {
    for container in containers(template) {
        for port in container.get_mut("ports").into_iter().flat_map(items) {
            if let Some(port) = port.as_object_mut()
                && port.get("protocol").is_none_or(Value::is_null)
            {
                port.insert("protocol".to_owned(), "TCP".into());
            }
        }
    }
}

fn items(list: &mut Value) -> impl Iterator<Item = &mut Value> {
    list.as_array_mut().into_iter().flatten()
}

fn containers(template: &mut Value) -> impl Iterator<Item = &mut Value> {
    let spec = template.get_mut("spec").and_then(Value::as_object_mut);
    let lists = spec.into_iter().flatten();
    let lists = lists.filter(|(key, _)| ["containers", "initContainers"].contains(&key.as_str()));
    lists.flat_map(|(_, list)| items(list))
}

fn clean(template: &mut Value) {
    drop_nulls(template);
    for container in containers(template) {
        for port in container.get_mut("ports").into_iter().flat_map(items) {
            if let Some(port) = port.as_object_mut()
                && port
                    .get("protocol")
                    .is_some_and(|protocol| protocol == "TCP")
            {
                port.remove("protocol");
            }
        }
        drop_empty(container.as_object_mut(), &OF_CONTAINER);
    }
    for (key, fields) in [("metadata", &OF_METADATA[..]), ("spec", &OF_SPEC)] {
        drop_empty(template.get_mut(key).and_then(Value::as_object_mut), fields);
    }
    drop_empty(template.as_object_mut(), &["metadata"]);
}

fn drop_nulls(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.retain(|_, value| !value.is_null());
            map.values_mut().for_each(drop_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(drop_nulls),
        _ => {}
    }
}

fn drop_empty(map: Option<&mut Map<String, Value>>, fields: &[&str]) {
    let is_empty = |value: &Value| match value {
        Value::Object(map) => map.is_empty(),
        Value::Array(items) => items.is_empty(),
        _ => false,
    };
    if let Some(map) = map {
        map.retain(|key, value| !(fields.contains(&key.as_str()) && is_empty(value)));
    }
}

#[cfg(test)]
mod tests {
    use mirrorlet_apimachinery::resources::{CRON_JOBS, DEPLOYMENTS};
    use serde_json::json;

    use super::*;

    /// A template as a typed client writes it.
    fn typed(image: &str) -> Value {
        json!({
            "metadata": {"creationTimestamp": null, "labels": {"app": "web"}, "annotations": {}},
            "spec": {
                "containers": [{
                    "name": "web", "image": image, "resources": {}, "securityContext": {}, "args": [],
                    "env": [{"name": "A", "value": ""}],
                    "ports": [{"containerPort": 80, "protocol": "TCP"}, {"containerPort": 53, "protocol": "UDP"}],
                }],
                "volumes": [{"name": "v", "emptyDir": {}}],
                "securityContext": {},
                "tolerations": null,
            },
        })
    }

    /// The same template as a user writes it.
    fn written(image: &str) -> Value {
        json!({
            "metadata": {"labels": {"app": "web"}},
            "spec": {
                "containers": [{
                    "name": "web", "image": image,
                    "env": [{"name": "A", "value": ""}],
                    "ports": [{"containerPort": 80}, {"containerPort": 53, "protocol": "UDP"}],
                }],
                "volumes": [{"name": "v", "emptyDir": {}}],
            },
        })
    }

    fn deployment(template: &Value) -> Value {
        json!({"kind": "Deployment", "spec": {"template": template}})
    }

    fn stored(template: &Value, known: Option<&Templates>) -> Value {
        let mut object = deployment(template);
        store(&mut object, &Key::new(&DEPLOYMENTS, "a", "web"), known);
        object["spec"]["template"].clone()
    }

    fn templates(of_document: &Value, versions: &[Value]) -> Templates {
        Templates {
            document: deployment(of_document).into(),
            versions: versions.iter().cloned().map(Arc::new).collect(),
        }
    }

    #[test]
    fn what_says_nothing_is_not_stored() {
        assert_eq!(stored(&typed("a"), None), written("a"));
        assert_eq!(stored(&written("a"), None), written("a"));
        let mut object =
            json!({"kind": "CronJob", "spec": {"jobTemplate": {"spec": {"template": typed("a")}}}});
        store(&mut object, &Key::new(&CRON_JOBS, "a", "web"), None);
        assert_eq!(
            object["spec"]["jobTemplate"]["spec"]["template"],
            written("a")
        );
    }

    #[test]
    fn a_template_that_pods_run_is_stored_as_it_was() {
        // An earlier release stored what clients sent.
        type Make = fn(&str) -> Value;
        let forms: [(Make, Make); 3] = [(typed, written), (written, typed), (typed, typed)];
        for (old, new) in forms {
            let known = templates(&old("a"), &[old("a"), written("b")]);
            assert_eq!(stored(&new("a"), Some(&known)), old("a"));
            // An undo.
            let known = templates(&written("b"), &[written("b"), old("a")]);
            assert_eq!(stored(&new("a"), Some(&known)), old("a"));
            assert_eq!(stored(&typed("c"), Some(&known)), written("c"));
        }
    }

    #[test]
    fn a_template_is_shown_with_the_protocols_of_ports() {
        let mut object = deployment(&written("a"));
        show(&mut object);
        let template = &object["spec"]["template"];
        let ports = &template["spec"]["containers"][0]["ports"];
        assert_eq!(ports[0], json!({"containerPort": 80, "protocol": "TCP"}));
        assert_eq!(ports[1]["protocol"], "UDP");
        // What is read and written again is the same.
        assert_eq!(stored(template, None), written("a"));
        let mut none = json!({"kind": "Deployment", "spec": {}});
        show(&mut none);
        assert_eq!(none, json!({"kind": "Deployment", "spec": {}}));
    }
}
