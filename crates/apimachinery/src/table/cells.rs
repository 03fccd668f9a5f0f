//! The cells of a row.

use mirrorlet_core::api::Timestamp;
use mirrorlet_core::clock::age;
use serde_json::{Value, json};

use super::pods::pod_cells;
use crate::meta;
use crate::resources::Resource;

/// The cell of a value that an object doesn't have.
pub(super) const NONE: &str = "<none>";
/// The cell of a value that isn't set.
const UNSET: &str = "<unset>";

/// The cells of an object's row, in the order of its columns.
pub(super) fn cells(resource: &Resource, object: &Value, now: Timestamp) -> Vec<Value> {
    let name = || json!(meta::name(object));
    let old = || json!(since(&object["metadata"]["creationTimestamp"], now));
    match resource.plural {
        _ if !resource.is_stored() => vec![name(), old()],
        "pods" => pod_cells(object, now),
        "nodes" => node(object, now),
        "events" => event(object, now),
        "namespaces" => vec![name(), or(&object["status"]["phase"], "Active"), old()],
        "configmaps" => {
            let count = entries(&object["data"]) + entries(&object["binaryData"]);
            vec![name(), json!(count), old()]
        }
        "leases" => vec![
            name(),
            json!(
                object["spec"]["holderIdentity"]
                    .as_str()
                    .unwrap_or_default()
            ),
            old(),
        ],
        "secrets" => vec![
            name(),
            or(&object["type"], "Opaque"),
            json!(entries(&object["data"])),
            old(),
        ],
        "services" => service(object, now),
        "persistentvolumeclaims" => claim(object, now),
        "persistentvolumes" => volume(object, now),
        "deployments" => deployment(object, now),
        "replicasets" | "replicationcontrollers" => replica_set(object, now),
        "controllerrevisions" => controller_revision(object, now),
        "statefulsets" => stateful_set(object, now),
        "daemonsets" => daemon_set(object, now),
        "jobs" => job(object, now),
        "cronjobs" => cron_job(object, now),
        "scales" => vec![
            name(),
            json!(object["spec"]["replicas"].as_i64().unwrap_or(0)),
            json!(object["status"]["replicas"].as_i64().unwrap_or(0)),
            old(),
        ],
        _ => vec![name(), old()],
    }
}

/// Time since a moment of an object, as kubectl prints ages.
pub(super) fn since(moment: &Value, now: Timestamp) -> String {
    let moment = moment.as_str().and_then(|text| text.parse().ok());
    moment.map_or_else(|| "<unknown>".to_owned(), |moment| age(moment, now))
}

/// A text, or another where it is empty.
fn or(value: &Value, other: &str) -> Value {
    match value.as_str() {
        None | Some("") => other.into(),
        Some(text) => text.into(),
    }
}

fn entries(map: &Value) -> usize {
    map.as_object().map_or(0, serde_json::Map::len)
}

fn array(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

/// Texts, joined; `<none>` without any.
fn joined(texts: impl Iterator<Item = String>) -> Value {
    let texts: Vec<_> = texts.collect();
    if texts.is_empty() {
        NONE.into()
    } else {
        texts.join(",").into()
    }
}

fn owned(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// Labels as a selector is printed.
fn selector(labels: &Value) -> Value {
    let labels = labels.as_object().into_iter().flatten();
    joined(labels.map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default())))
}

fn node(object: &Value, now: Timestamp) -> Vec<Value> {
    let ready = array(&object["status"]["conditions"]).find(|c| c["type"] == "Ready");
    let mut status = match ready.and_then(|c| c["status"].as_str()) {
        Some("True") => "Ready",
        Some("False") => "NotReady",
        _ => "Unknown",
    }
    .to_owned();
    if object["spec"]["unschedulable"] == true {
        status.push_str(",SchedulingDisabled");
    }
    let labels = object["metadata"]["labels"].as_object();
    let roles = labels.into_iter().flatten().filter_map(|(key, _)| {
        let role = key.strip_prefix("node-role.kubernetes.io/")?;
        (!role.is_empty()).then(|| role.to_owned())
    });
    let address = |kind: &str| {
        let mut all = array(&object["status"]["addresses"]);
        let found = all.find(|a| a["type"] == kind);
        found.map_or_else(|| NONE.into(), |a| a["address"].clone())
    };
    let info = &object["status"]["nodeInfo"];
    vec![
        json!(meta::name(object)),
        json!(status),
        joined(roles),
        json!(since(&object["metadata"]["creationTimestamp"], now)),
        or(&info["kubeletVersion"], "<unknown>"),
        address("InternalIP"),
        address("ExternalIP"),
        or(&info["osImage"], "<unknown>"),
        or(&info["kernelVersion"], "<unknown>"),
        or(&info["containerRuntimeVersion"], "<unknown>"),
    ]
}

fn event(object: &Value, now: Timestamp) -> Vec<Value> {
    let involved = &object["involvedObject"];
    let kind = involved["kind"].as_str().unwrap_or_default().to_lowercase();
    let name = involved["name"].as_str().unwrap_or_default();
    let source = [&object["source"]["component"], &object["source"]["host"]];
    let source: Vec<_> = source.into_iter().filter_map(Value::as_str).collect();
    vec![
        json!(since(&object["lastTimestamp"], now)),
        or(&object["type"], ""),
        or(&object["reason"], ""),
        json!(format!("{kind}/{name}")),
        or(&involved["fieldPath"], ""),
        json!(source.join(", ")),
        json!(object["message"].as_str().unwrap_or_default().trim()),
        json!(since(&object["firstTimestamp"], now)),
        json!(object["count"].as_i64().unwrap_or(1)),
        json!(meta::name(object)),
    ]
}

fn service(object: &Value, now: Timestamp) -> Vec<Value> {
    let spec = &object["spec"];
    let kind = spec["type"].as_str().unwrap_or("ClusterIP");
    let external = if kind == "ExternalName" {
        or(&spec["externalName"], NONE)
    } else {
        joined(array(&spec["externalIPs"]).map(owned))
    };
    let ports = array(&spec["ports"]).map(|port| {
        let number = port["port"].as_i64().unwrap_or_default();
        let protocol = port["protocol"].as_str().unwrap_or("TCP");
        match port["nodePort"].as_i64() {
            Some(node_port) if node_port > 0 => format!("{number}:{node_port}/{protocol}"),
            Some(_) | None => format!("{number}/{protocol}"),
        }
    });
    vec![
        json!(meta::name(object)),
        json!(kind),
        or(&spec["clusterIP"], NONE),
        external,
        joined(ports),
        json!(since(&object["metadata"]["creationTimestamp"], now)),
        selector(&spec["selector"]),
    ]
}

/// Access modes in kubectl's abbreviations.
fn access_modes(modes: &Value) -> Value {
    let short = array(modes).map(|mode| match mode.as_str().unwrap_or_default() {
        "ReadWriteOnce" => "RWO".to_owned(),
        "ReadOnlyMany" => "ROX".to_owned(),
        "ReadWriteMany" => "RWX".to_owned(),
        "ReadWriteOncePod" => "RWOP".to_owned(),
        other => other.to_owned(),
    });
    short.collect::<Vec<_>>().join(",").into()
}

fn claim(object: &Value, now: Timestamp) -> Vec<Value> {
    let (spec, status) = (&object["spec"], &object["status"]);
    let is_bound = !owned(&spec["volumeName"]).is_empty();
    vec![
        json!(meta::name(object)),
        or(&status["phase"], "Pending"),
        or(&spec["volumeName"], ""),
        or(&status["capacity"]["storage"], ""),
        if is_bound {
            access_modes(&status["accessModes"])
        } else {
            "".into()
        },
        or(&spec["storageClassName"], ""),
        or(&spec["volumeAttributesClassName"], UNSET),
        json!(since(&object["metadata"]["creationTimestamp"], now)),
        or(&spec["volumeMode"], "<unset>"),
    ]
}

fn volume(object: &Value, now: Timestamp) -> Vec<Value> {
    let (spec, status) = (&object["spec"], &object["status"]);
    let claim = &spec["claimRef"];
    let claimed = match (claim["namespace"].as_str(), claim["name"].as_str()) {
        (Some(namespace), Some(name)) => format!("{namespace}/{name}"),
        _ => String::new(),
    };
    vec![
        json!(meta::name(object)),
        or(&spec["capacity"]["storage"], ""),
        access_modes(&spec["accessModes"]),
        or(&spec["persistentVolumeReclaimPolicy"], "Retain"),
        or(&status["phase"], "Available"),
        json!(claimed),
        or(&spec["storageClassName"], ""),
        or(&spec["volumeAttributesClassName"], UNSET),
        or(&status["reason"], ""),
        json!(since(&object["metadata"]["creationTimestamp"], now)),
        or(&spec["volumeMode"], "<unset>"),
    ]
}

/// Names and images of a template's containers.
fn template(object: &Value) -> [Value; 2] {
    let containers = || array(&object["spec"]["template"]["spec"]["containers"]);
    let each = |key: &str| containers().map(|c| owned(&c[key])).collect::<Vec<_>>();
    [
        each("name").join(",").into(),
        each("image").join(",").into(),
    ]
}

fn count(value: &Value) -> i64 {
    value.as_i64().unwrap_or(0)
}

fn deployment(object: &Value, now: Timestamp) -> Vec<Value> {
    let status = &object["status"];
    let wanted = object["spec"]["replicas"].as_i64().unwrap_or(1);
    let [containers, images] = template(object);
    vec![
        json!(meta::name(object)),
        json!(format!("{}/{wanted}", count(&status["readyReplicas"]))),
        json!(count(&status["updatedReplicas"])),
        json!(count(&status["availableReplicas"])),
        json!(since(&object["metadata"]["creationTimestamp"], now)),
        containers,
        images,
        selector(&object["spec"]["selector"]["matchLabels"]),
    ]
}

fn replica_set(object: &Value, now: Timestamp) -> Vec<Value> {
    let [containers, images] = template(object);
    vec![
        json!(meta::name(object)),
        json!(count(&object["spec"]["replicas"])),
        json!(count(&object["status"]["replicas"])),
        json!(count(&object["status"]["readyReplicas"])),
        json!(since(&object["metadata"]["creationTimestamp"], now)),
        containers,
        images,
        selector(&object["spec"]["selector"]["matchLabels"]),
    ]
}

fn controller_revision(object: &Value, now: Timestamp) -> Vec<Value> {
    let owner = &object["metadata"]["ownerReferences"][0];
    let controller = match (owner["kind"].as_str(), owner["name"].as_str()) {
        (Some(kind), Some(name)) => format!("{}.apps/{name}", kind.to_lowercase()),
        _ => NONE.to_owned(),
    };
    vec![
        json!(meta::name(object)),
        json!(controller),
        json!(count(&object["revision"])),
        json!(since(&object["metadata"]["creationTimestamp"], now)),
    ]
}

fn stateful_set(object: &Value, now: Timestamp) -> Vec<Value> {
    let wanted = object["spec"]["replicas"].as_i64().unwrap_or(1);
    let ready = count(&object["status"]["readyReplicas"]);
    let [containers, images] = template(object);
    vec![
        json!(meta::name(object)),
        json!(format!("{ready}/{wanted}")),
        json!(since(&object["metadata"]["creationTimestamp"], now)),
        containers,
        images,
    ]
}

fn daemon_set(object: &Value, now: Timestamp) -> Vec<Value> {
    let status = &object["status"];
    let [containers, images] = template(object);
    vec![
        json!(meta::name(object)),
        json!(count(&status["desiredNumberScheduled"])),
        json!(count(&status["currentNumberScheduled"])),
        json!(count(&status["numberReady"])),
        json!(count(&status["updatedNumberScheduled"])),
        json!(count(&status["numberAvailable"])),
        selector(&object["spec"]["template"]["spec"]["nodeSelector"]),
        json!(since(&object["metadata"]["creationTimestamp"], now)),
        containers,
        images,
        selector(&object["spec"]["selector"]["matchLabels"]),
    ]
}

fn job(object: &Value, now: Timestamp) -> Vec<Value> {
    let (spec, status) = (&object["spec"], &object["status"]);
    let holds = |kind: &str| {
        let mut all = array(&status["conditions"]);
        all.any(|c| c["type"] == kind && c["status"] == "True")
    };
    let word = if holds("Complete") {
        "Complete"
    } else if holds("Failed") {
        "Failed"
    } else if holds("Suspended") {
        "Suspended"
    } else {
        "Running"
    };
    let succeeded = count(&status["succeeded"]);
    let completions = match spec["completions"].as_i64() {
        Some(completions) => format!("{succeeded}/{completions}"),
        None => match count(&spec["parallelism"]) {
            parallelism if parallelism > 1 => format!("{succeeded}/1 of {parallelism}"),
            _ => format!("{succeeded}/1"),
        },
    };
    let moment = |value: &Value| {
        value
            .as_str()
            .and_then(|text| text.parse::<Timestamp>().ok())
    };
    let duration = moment(&status["startTime"]).map_or_else(String::new, |started| {
        age(started, moment(&status["completionTime"]).unwrap_or(now))
    });
    let [containers, images] = template(object);
    vec![
        json!(meta::name(object)),
        json!(word),
        json!(completions),
        json!(duration),
        json!(since(&object["metadata"]["creationTimestamp"], now)),
        containers,
        images,
        selector(&spec["selector"]["matchLabels"]),
    ]
}

fn cron_job(object: &Value, now: Timestamp) -> Vec<Value> {
    let (spec, status) = (&object["spec"], &object["status"]);
    let last = match &status["lastScheduleTime"] {
        Value::Null => NONE.to_owned(),
        last => since(last, now),
    };
    let suspended = spec["suspend"] == true;
    let [containers, images] = template(&spec["jobTemplate"]);
    vec![
        json!(meta::name(object)),
        or(&spec["schedule"], ""),
        or(&spec["timeZone"], NONE),
        json!(if suspended { "True" } else { "False" }),
        json!(array(&status["active"]).count()),
        json!(last),
        json!(since(&object["metadata"]["creationTimestamp"], now)),
        containers,
        images,
        selector(&spec["jobTemplate"]["spec"]["selector"]["matchLabels"]),
    ]
}
