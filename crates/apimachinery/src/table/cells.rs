//! The values of the cells of a row.

use mirrorlet_core::api::Timestamp;
use mirrorlet_core::clock::age;
use serde_json::Value;

/// The cell of a value that is missing.
pub(super) const NONE: &str = "<none>";
/// The cell of a value that isn't set.
pub(super) const UNSET: &str = "<unset>";
pub(super) const UNKNOWN: &str = "<unknown>";

/// The time since a moment of an object, in the format of kubectl's ages.
pub(super) fn since(moment: &Value, now: Timestamp) -> String {
    let moment = moment.as_str().and_then(|text| text.parse().ok());
    moment.map_or_else(|| UNKNOWN.to_owned(), |moment| age(moment, now))
}

/// A text, or another where it is empty.
pub(super) fn or(value: &Value, other: &str) -> Value {
    match value.as_str() {
        None | Some("") => other.into(),
        Some(text) => text.into(),
    }
}

pub(super) fn entries(map: &Value) -> usize {
    map.as_object().map_or(0, serde_json::Map::len)
}

pub(super) fn count(value: &Value) -> i64 {
    value.as_i64().unwrap_or(0)
}

pub(super) fn array(value: &Value) -> impl Iterator<Item = &Value> {
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

pub(super) fn owned(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// Labels as a selector is printed.
pub(super) fn selector(labels: &Value) -> Value {
    let labels = labels.as_object().into_iter().flatten();
    joined(labels.map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default())))
}

pub(super) fn node_status(node: &Value, _: Timestamp) -> Value {
    let ready = array(&node["status"]["conditions"]).find(|c| c["type"] == "Ready");
    let word = match ready.and_then(|c| c["status"].as_str()) {
        Some("True") => "Ready",
        Some("False") => "NotReady",
        _ => "Unknown",
    };
    if node["spec"]["unschedulable"] == true {
        return format!("{word},SchedulingDisabled").into();
    }
    word.into()
}

pub(super) fn roles(node: &Value, _: Timestamp) -> Value {
    let labels = node["metadata"]["labels"].as_object();
    joined(labels.into_iter().flatten().filter_map(|(key, _)| {
        let role = key.strip_prefix("node-role.kubernetes.io/")?;
        (!role.is_empty()).then(|| role.to_owned())
    }))
}

pub(super) fn address(node: &Value, kind: &str) -> Value {
    let mut all = array(&node["status"]["addresses"]);
    let found = all.find(|a| a["type"] == kind);
    found.map_or_else(|| NONE.into(), |a| a["address"].clone())
}

/// The object that an event is about.
pub(super) fn involved(event: &Value, _: Timestamp) -> Value {
    let involved = &event["involvedObject"];
    let kind = owned(&involved["kind"]).to_lowercase();
    format!("{kind}/{}", owned(&involved["name"])).into()
}

pub(super) fn source(event: &Value, _: Timestamp) -> Value {
    let source = [&event["source"]["component"], &event["source"]["host"]];
    let source: Vec<_> = source.into_iter().filter_map(Value::as_str).collect();
    source.join(", ").into()
}

pub(super) fn external(service: &Value, _: Timestamp) -> Value {
    let spec = &service["spec"];
    if spec["type"] == "ExternalName" {
        or(&spec["externalName"], NONE)
    } else {
        joined(array(&spec["externalIPs"]).map(owned))
    }
}

pub(super) fn ports(service: &Value, _: Timestamp) -> Value {
    joined(array(&service["spec"]["ports"]).map(|port| {
        let number = count(&port["port"]);
        let protocol = port["protocol"].as_str().unwrap_or("TCP");
        match port["nodePort"].as_i64() {
            Some(node_port) if node_port > 0 => format!("{number}:{node_port}/{protocol}"),
            Some(_) | None => format!("{number}/{protocol}"),
        }
    }))
}

/// The first of some texts, and how many more there are.
fn few(all: &[String], none: &str) -> Value {
    const SHOWN: usize = 3;
    let shown = all.get(..all.len().min(SHOWN)).unwrap_or_default();
    let shown = shown.join(",");
    match all.len() {
        0 => none.into(),
        count if count > SHOWN => format!("{shown} + {} more...", count - SHOWN).into(),
        _ => shown.into(),
    }
}

/// The addresses of `Endpoints` that are Ready, each with each port.
pub(super) fn endpoints(endpoints: &Value, _: Timestamp) -> Value {
    let mut all = Vec::new();
    for subset in array(&endpoints["subsets"]) {
        let addresses = || array(&subset["addresses"]).map(|address| owned(&address["ip"]));
        if array(&subset["ports"]).next().is_none() {
            all.extend(addresses());
        }
        for port in array(&subset["ports"]) {
            let port = count(&port["port"]);
            all.extend(addresses().map(|ip| {
                if ip.contains(':') {
                    format!("[{ip}]:{port}")
                } else {
                    format!("{ip}:{port}")
                }
            }));
        }
    }
    let is_empty = array(&endpoints["subsets"]).next().is_none();
    few(&all, if is_empty { NONE } else { "" })
}

/// The ports of an `EndpointSlice`.
pub(super) fn slice_ports(slice: &Value, _: Timestamp) -> Value {
    let all = array(&slice["ports"]).map(|port| match port["port"].as_i64() {
        Some(number) => number.to_string(),
        None => port["name"].as_str().unwrap_or("*").to_owned(),
    });
    few(&all.collect::<Vec<_>>(), UNSET)
}

/// The addresses of an `EndpointSlice`.
pub(super) fn slice_addresses(slice: &Value, _: Timestamp) -> Value {
    let all = array(&slice["endpoints"]).flat_map(|endpoint| array(&endpoint["addresses"]));
    few(&all.map(owned).collect::<Vec<_>>(), UNSET)
}

/// Access modes in kubectl's abbreviations.
pub(super) fn access_modes(modes: &Value) -> Value {
    let short = array(modes).map(|mode| match mode.as_str().unwrap_or_default() {
        "ReadWriteOnce" => "RWO".to_owned(),
        "ReadOnlyMany" => "ROX".to_owned(),
        "ReadWriteMany" => "RWX".to_owned(),
        "ReadWriteOncePod" => "RWOP".to_owned(),
        other => other.to_owned(),
    });
    short.collect::<Vec<_>>().join(",").into()
}

/// The access modes of a claim that is bound.
pub(super) fn claim_modes(claim: &Value, _: Timestamp) -> Value {
    if owned(&claim["spec"]["volumeName"]).is_empty() {
        return "".into();
    }
    access_modes(&claim["status"]["accessModes"])
}

/// The claim that a volume is bound to.
pub(super) fn claimed(volume: &Value, _: Timestamp) -> Value {
    let claim = &volume["spec"]["claimRef"];
    match (claim["namespace"].as_str(), claim["name"].as_str()) {
        (Some(namespace), Some(name)) => format!("{namespace}/{name}").into(),
        _ => "".into(),
    }
}

/// The number of ready pods of a workload, and the number wanted.
pub(super) fn ready(workload: &Value, _: Timestamp) -> Value {
    let wanted = workload["spec"]["replicas"].as_i64().unwrap_or(1);
    format!("{}/{wanted}", count(&workload["status"]["readyReplicas"])).into()
}

pub(super) fn controller(revision: &Value, _: Timestamp) -> Value {
    let owner = &revision["metadata"]["ownerReferences"][0];
    match (owner["kind"].as_str(), owner["name"].as_str()) {
        (Some(kind), Some(name)) => format!("{}.apps/{name}", kind.to_lowercase()).into(),
        _ => NONE.into(),
    }
}

pub(super) fn job_status(job: &Value, _: Timestamp) -> Value {
    let holds = |kind: &&str| {
        let mut all = array(&job["status"]["conditions"]);
        all.any(|c| c["type"] == *kind && c["status"] == "True")
    };
    let mut ends = ["Complete", "Failed", "Suspended"].into_iter();
    ends.find(holds).unwrap_or("Running").into()
}

pub(super) fn completions(job: &Value, _: Timestamp) -> Value {
    let succeeded = count(&job["status"]["succeeded"]);
    match job["spec"]["completions"].as_i64() {
        Some(completions) => format!("{succeeded}/{completions}"),
        None => match count(&job["spec"]["parallelism"]) {
            parallelism if parallelism > 1 => format!("{succeeded}/1 of {parallelism}"),
            _ => format!("{succeeded}/1"),
        },
    }
    .into()
}

pub(super) fn duration(job: &Value, now: Timestamp) -> Value {
    let moment = |key: &str| job["status"][key].as_str()?.parse::<Timestamp>().ok();
    let end = moment("completionTime").unwrap_or(now);
    moment("startTime")
        .map_or_else(String::new, |started| age(started, end))
        .into()
}

pub(super) fn suspended(cron_job: &Value, _: Timestamp) -> Value {
    let is_suspended = cron_job["spec"]["suspend"] == true;
    if is_suspended { "True" } else { "False" }.into()
}

pub(super) fn last_schedule(cron_job: &Value, now: Timestamp) -> Value {
    match &cron_job["status"]["lastScheduleTime"] {
        Value::Null => NONE.into(),
        last => since(last, now).into(),
    }
}
