//! The plan for the objects that pods of manifests refer to.

use std::collections::{BTreeMap, BTreeSet};

use crate::api::report::{ObjectAction, PlannedObject};
use crate::api::{FullName, Pod};
use crate::desired::SourceObject;
use crate::objects::{Object, ObjectKey, uses};
use crate::small::SmallCollect;

/// The objects that would be created, changed or removed, with the pods of `pods` that refer to each.
/// Contains no value of an object.
pub fn plan<'a>(
    newest: &BTreeMap<ObjectKey, SourceObject>,
    present: &BTreeMap<ObjectKey, SourceObject>,
    pods: impl Iterator<Item = &'a Pod>,
) -> Vec<PlannedObject> {
    let keys: BTreeSet<&ObjectKey> = newest.keys().chain(present.keys()).collect_set();
    let changes = keys.into_iter().filter_map(|key| {
        let before = present.get(key).map(|known| &known.object);
        let after = newest.get(key).map(|known| &known.object);
        let (action, changed) = match (before, after) {
            (None, Some(_)) => (ObjectAction::Create, Vec::new()),
            (Some(_), None) => (ObjectAction::Remove, Vec::new()),
            (Some(before), Some(after)) if before != after => {
                (ObjectAction::Change, changed_keys(before, after))
            }
            _ => return None,
        };
        Some(PlannedObject {
            kind: key.kind.as_str().to_owned(),
            namespace: key.namespace.clone(),
            name: key.name.clone(),
            action,
            changed,
            pods: Vec::new(),
        })
    });
    let mut changes: Vec<PlannedObject> = changes.collect();
    if changes.is_empty() {
        return changes;
    }
    for pod in pods {
        let name = FullName::of(pod);
        for used in uses(pod) {
            let is_it = |change: &&mut PlannedObject| {
                let key = &used.key;
                (change.kind.as_str(), &change.namespace, &change.name)
                    == (key.kind.as_str(), &key.namespace, &key.name)
            };
            if let Some(change) = changes.iter_mut().find(is_it) {
                let name = format!("{}/{}", name.namespace, name.name);
                if !change.pods.contains(&name) {
                    change.pods.push(name);
                }
            }
        }
    }
    changes
}

/// The keys of data that differ, without their values.
fn changed_keys(before: &Object, after: &Object) -> Vec<String> {
    let (before, after) = (data(before), data(after));
    let keys: BTreeSet<&str> = before.keys().chain(after.keys()).copied().collect_set();
    let changed = keys
        .into_iter()
        .filter(|key| before.get(key) != after.get(key));
    changed.map(str::to_owned).collect()
}

fn data(object: &Object) -> BTreeMap<&str, &[u8]> {
    let mut all = BTreeMap::new();
    match object {
        Object::ConfigMap(map) => {
            for (key, text) in map.data.iter().flatten() {
                all.insert(key.as_str(), text.as_bytes());
            }
            for (key, data) in map.binary_data.iter().flatten() {
                all.insert(key.as_str(), data.0.as_slice());
            }
        }
        Object::Secret(secret) => {
            for (key, data) in secret.data.iter().flatten() {
                all.insert(key.as_str(), data.0.as_slice());
            }
        }
        _ => {}
    }
    all
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::{Value, json};

    use super::*;
    use crate::desired::{Origin, Places, PodSource};

    fn config_map(name: &str, data: &Value) -> (ObjectKey, SourceObject) {
        let map = json!({"metadata": {"name": name, "namespace": "default"}, "data": data});
        let object = Object::ConfigMap(Arc::new(serde_json::from_value(map).unwrap()));
        let origin = Origin::whole(PodSource::File, "/m/a.yaml");
        let held = false;
        (
            object.key(),
            SourceObject {
                object,
                origin,
                held,
                places: Places::default(),
            },
        )
    }

    #[test]
    fn a_change_names_keys_and_the_pods_that_refer_to_it() {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "web", "namespace": "default"},
            "spec": {"containers": [{"name": "c"}], "volumes": [
                {"name": "a", "configMap": {"name": "edited"}},
                {"name": "b", "configMap": {"name": "same"}},
            ]},
        }))
        .unwrap();
        let same = config_map("same", &json!({"k": "v"}));
        let edited = |data| config_map("edited", &data);
        let present = [
            same.clone(),
            edited(json!({"a": "1", "b": "1", "c": "1"})),
            config_map("gone", &json!({})),
        ];
        let newest = [
            same,
            edited(json!({"a": "1", "b": "2", "d": "1"})),
            config_map("new", &json!({})),
        ];
        let planned = plan(&newest.into(), &present.into(), std::iter::once(&pod));
        let told: Vec<_> = planned
            .iter()
            .map(|one| {
                (
                    one.name.as_str(),
                    one.action,
                    one.changed.join(" "),
                    one.pods.join(" "),
                )
            })
            .collect();
        // rollouts 35
        assert_eq!(
            told,
            [
                (
                    "edited",
                    ObjectAction::Change,
                    "b c d".to_owned(),
                    "default/web".to_owned()
                ),
                ("gone", ObjectAction::Remove, String::new(), String::new()),
                ("new", ObjectAction::Create, String::new(), String::new()),
            ]
        );
    }
}
