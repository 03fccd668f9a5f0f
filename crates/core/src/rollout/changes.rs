//! Which fields two versions of a pod differ in.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::api::{Pod, keys};
use crate::objects::Config;
use crate::small::SmallCollect;

/// A pod, with the data of the objects that are part of its version.
pub type Version<'a> = (&'a Pod, Option<&'a Config>);

/// Annotations that the kubelet's sources set themselves.
const CONFIG_PREFIX: &str = "kubernetes.io/config.";
/// Annotations that follow from the workload's document.
const OF_WORKLOAD: [&str; 2] = [keys::TEMPLATE, keys::UPDATES];
/// The field of [`Config::fields`] with the values of Secrets.
const SECRETS: &str = "secrets";

/// The paths of the fields in which two versions of a pod differ, in order, for example
/// `spec.containers[web].image`. Fields that an agent sets are skipped; values are not included.
pub fn changed_fields(old: Version<'_>, new: Version<'_>) -> Vec<String> {
    let mut paths = BTreeSet::new();
    let (old, new) = (author_fields(old), author_fields(new));
    differ(&mut paths, "", Some(&old), Some(&new));
    paths.into_iter().collect()
}

/// The fields of two versions for users: a Secret's values are hidden, and only marked as different.
pub fn compared_fields(
    old: Option<Version<'_>>,
    new: Option<Version<'_>>,
) -> (Option<Value>, Option<Value>) {
    let (mut old, mut new) = (old.map(author_fields), new.map(author_fields));
    let before = old.clone();
    mask(&mut old, new.as_ref(), "*** (before)");
    mask(&mut new, before.as_ref(), "*** (after)");
    (old, new)
}

fn mask(fields: &mut Option<Value>, other: Option<&Value>, differs: &str) {
    let secrets = fields.as_mut().and_then(|fields| fields.get_mut(SECRETS));
    for (name, secret) in secrets.and_then(Value::as_object_mut).into_iter().flatten() {
        for (key, value) in secret.as_object_mut().into_iter().flatten() {
            let other = other.and_then(|other| other.get(SECRETS)?.get(name)?.get(key));
            let same = other == Some(&*value);
            *value = Value::from(if same { "***" } else { differs });
        }
    }
}

/// The fields that a pod's author sets: labels, annotations and spec; and the objects that are a
/// part of the version, values of Secrets included.
fn author_fields((pod, config): Version<'_>) -> Value {
    let annotations = pod.metadata.annotations.iter().flatten();
    let annotations: BTreeMap<_, _> = annotations
        .filter(|(key, _)| !key.starts_with(CONFIG_PREFIX) && !OF_WORKLOAD.contains(&key.as_str()))
        .collect_map();
    let mut metadata = serde_json::Map::new();
    if !annotations.is_empty() {
        metadata.insert("annotations".to_owned(), json(&annotations));
    }
    if let Some(labels) = &pod.metadata.labels {
        metadata.insert("labels".to_owned(), json(labels));
    }
    let mut fields = serde_json::Map::new();
    fields.insert("metadata".to_owned(), Value::Object(metadata));
    fields.insert("spec".to_owned(), json(&pod.spec));
    fields.extend(config.map(Config::fields).unwrap_or_default());
    Value::Object(fields)
}

fn json(value: &impl serde::Serialize) -> Value {
    serde_json::to_value(value).unwrap_or_default()
}

fn differ(paths: &mut BTreeSet<String>, path: &str, old: Option<&Value>, new: Option<&Value>) {
    if old == new {
        return;
    }
    match (old, new) {
        (Some(Value::Object(old)), Some(Value::Object(new))) => {
            let keys: BTreeSet<_> = old.keys().chain(new.keys()).collect_set();
            for key in keys {
                let path = match (path, key.contains(['.', '/'])) {
                    (path, true) => format!("{path}[{key}]"),
                    ("", false) => key.clone(),
                    (path, false) => format!("{path}.{key}"),
                };
                differ(paths, &path, old.get(key), new.get(key));
            }
        }
        (Some(Value::Array(old)), Some(Value::Array(new))) => {
            let (old, new) = (by_name(old), by_name(new));
            match (old, new) {
                (Some(old), Some(new)) => {
                    let known = paths.len();
                    let names: BTreeSet<_> = old.keys().chain(new.keys()).collect_set();
                    for name in names {
                        let path = format!("{path}[{name}]");
                        let (old, new) = (old.get(name), new.get(name));
                        differ(paths, &path, old.copied(), new.copied());
                    }
                    // The same elements in another order.
                    if paths.len() == known {
                        paths.insert(path.to_owned());
                    }
                }
                _ => {
                    paths.insert(path.to_owned());
                }
            }
        }
        _ => {
            paths.insert(path.to_owned());
        }
    }
}

/// The elements of a list by their names; none if one has none, or two have the same.
fn by_name(list: &[Value]) -> Option<BTreeMap<&str, &Value>> {
    let mut named = BTreeMap::new();
    for element in list {
        named.insert(element.get("name")?.as_str()?, element);
    }
    (named.len() == list.len()).then_some(named)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(change: impl FnOnce(&mut Value)) -> Pod {
        let mut pod = json!({
            "metadata": {
                "name": "web", "labels": {"app": "web"},
                "annotations": {"kubernetes.io/config.hash": "1", "example.com/a": "x"},
            },
            "spec": {"containers": [
                {"name": "web", "image": "web:1", "args": ["a"], "env": [
                    {"name": "A", "value": "1"}, {"name": "B", "value": "2"},
                ]},
                {"name": "log", "image": "log:1"},
            ]},
        });
        change(&mut pod);
        serde_json::from_value(pod).unwrap()
    }

    #[test]
    fn each_changed_field_is_named() {
        type Case = (fn(&mut Value), &'static [&'static str]);
        let cases: [Case; 10] = [
            (|_| {}, &[]),
            (
                |pod| pod["metadata"]["annotations"]["kubernetes.io/config.hash"] = json!("2"),
                &[],
            ),
            (
                |pod| pod["metadata"]["annotations"]["example.com/a"] = json!("y"),
                &["metadata.annotations[example.com/a]"],
            ),
            (
                |pod| pod["spec"]["containers"][0]["image"] = json!("web:2"),
                &["spec.containers[web].image"],
            ),
            (
                |pod| pod["spec"]["containers"][0]["args"] = json!(["b"]),
                &["spec.containers[web].args"],
            ),
            (
                |pod| pod["spec"]["containers"][0]["env"][0]["value"] = json!("2"),
                &["spec.containers[web].env[A].value"],
            ),
            (
                |pod| {
                    pod["spec"]["containers"].as_array_mut().unwrap().remove(1);
                },
                &["spec.containers[log]"],
            ),
            (
                |pod| pod["spec"]["containers"].as_array_mut().unwrap().reverse(),
                &["spec.containers"],
            ),
            (
                |pod| {
                    let web = &mut pod["spec"]["containers"][0];
                    web["env"].as_array_mut().unwrap().reverse();
                    web["envFrom"] = json!([{"configMapRef": {"name": "c"}}]);
                },
                &["spec.containers[web].env", "spec.containers[web].envFrom"],
            ),
            (
                |pod| pod["spec"]["hostNetwork"] = json!(true),
                &["spec.hostNetwork"],
            ),
        ];
        for (change, expected) in cases {
            let (old, new) = (pod(|_| {}), pod(change));
            assert_eq!(changed_fields((&old, None), (&new, None)), expected);
        }
    }
}
