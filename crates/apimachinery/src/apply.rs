//! Server-side apply: field ownership, the fields that an apply takes over or gives up, and conflicts.
//!
//! Upstream: `sigs.k8s.io/structured-merge-diff`, `apimachinery/pkg/util/managedfields`. Upstream's
//! atomic maps are merged field by field here.

mod fields;
mod merge;

use mirrorlet_core::small::SmallSort;
use serde_json::{Map, Value, json};

use self::fields::{
    Path, delete, fields_of_object, has, leaves, look_up, put_in, take_out, with_all_keys, words,
};
use self::merge::merge;
use crate::meta;
use crate::status::Status;

/// Content type of an apply.
pub const APPLY: &str = "application/apply-patch+yaml";

/// An operation of a manager, as `managedFields` name it.
const APPLIED: &str = "Apply";
const UPDATED: &str = "Update";
/// Most managers of one object; the oldest update goes first.
const MANAGERS_MAX: usize = 20;

/// The manager of kubectl's server-side apply.
const KUBECTL: &str = "kubectl";
/// The annotation with what kubectl's older form of `apply` set.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// The fields that kubectl set by its older form of `apply`, which leaves them in an annotation.
///
/// Upstream: `apimachinery/pkg/util/managedfields/internal/lastappliedmanager.go`.
fn last_applied(object: &Value) -> Option<Value> {
    let text = object["metadata"]["annotations"][LAST_APPLIED].as_str()?;
    let config: Value = serde_json::from_str(text).ok()?;
    Some(fields_of_object(&config))
}

/// The entries of `managedFields`.
fn entries(object: &Value) -> Vec<Value> {
    let entries = object["metadata"]["managedFields"].as_array();
    let mut entries = entries.cloned().unwrap_or_default();
    for entry in entries.iter_mut().filter_map(Value::as_object_mut) {
        if let Some(tree) = entry.get_mut("fieldsV1") {
            *tree = with_all_keys(tree, Some(object));
        }
    }
    entries
}

fn is_of(entry: &Value, manager: &str, operation: &str) -> bool {
    entry["manager"] == manager && entry["operation"] == operation
}

/// Sets the fields of one manager, and drops entries that have none.
fn set_entries(
    object: &mut Value,
    mut entries: Vec<Value>,
    own: Option<(&str, &str, Value, &str)>,
) {
    if let Some((manager, operation, tree, now)) = own {
        let version = object["apiVersion"].clone();
        entries.retain(|entry| !is_of(entry, manager, operation));
        entries.push(json!({
            "manager": manager,
            "operation": operation,
            "apiVersion": version,
            "time": now,
            "fieldsType": "FieldsV1",
            "fieldsV1": tree,
        }));
    }
    let is_empty = |entry: &Value| {
        let fields = entry["fieldsV1"].as_object();
        fields.is_none_or(Map::is_empty)
    };
    entries.retain(|entry| !is_empty(entry));
    // Upstream: `sortEncodedManagedFields` of `managedfields/internal/managedfields.go`.
    entries.small_sort_by_cached_key(|entry| {
        ["operation", "time", "manager", "apiVersion"]
            .map(|key| entry[key].as_str().unwrap_or_default().to_owned())
    });
    while entries.len() > MANAGERS_MAX {
        let oldest = entries
            .iter()
            .position(|entry| entry["operation"] == UPDATED);
        entries.remove(oldest.unwrap_or(0));
    }
    let metadata = meta::metadata(object);
    if entries.is_empty() {
        metadata.remove("managedFields");
    } else {
        metadata.insert("managedFields".to_owned(), entries.into());
    }
}

/// Notes the fields that a manager changed by a create, an update or a patch. It owns them from then
/// on, and other managers that had set them to another value lose them.
pub fn note_update(object: &mut Value, before: Option<&Value>, manager: &str, now: &str) {
    let manager = if manager.is_empty() {
        "unknown"
    } else {
        manager
    };
    let mut entries = before.map(entries).unwrap_or_default();
    let tree = fields_of_object(object);
    let changed: Vec<Path> = leaves(&tree)
        .into_iter()
        .filter(|path| !path.is_empty())
        .filter(|path| {
            let old = before.and_then(|before| look_up(before, path));
            old != look_up(object, path)
        })
        .collect();
    let gone = |path: &Path| look_up(object, path).is_none();
    let own = entries.iter().find(|entry| is_of(entry, manager, UPDATED));
    let mut own = own.map_or_else(|| json!({}), |entry| entry["fieldsV1"].clone());
    for entry in &mut entries {
        for path in &changed {
            take_out(&mut entry["fieldsV1"], path);
        }
        for path in leaves(&entry["fieldsV1"]) {
            if !path.is_empty() && gone(&path) {
                take_out(&mut entry["fieldsV1"], &path);
            }
        }
    }
    if changed.is_empty() {
        return set_entries(object, entries, None);
    }
    for path in leaves(&own) {
        if gone(&path) {
            take_out(&mut own, &path);
        }
    }
    for path in &changed {
        put_in(&mut own, path);
    }
    set_entries(object, entries, Some((manager, UPDATED, own, now)));
}

/// Returns the object after an apply: the fields that the manager applies are set; those that it
/// applied before and applies no more are removed, unless others own them too.
///
/// # Errors
/// The manager has no name, or others own a field with another value and the apply isn't forced.
pub fn apply(
    before: Option<&Value>,
    applied: &Value,
    manager: &str,
    force: bool,
    now: &str,
) -> Result<Value, Status> {
    if manager.is_empty() {
        return Err(Status::bad_request(
            "PatchOptions.meta.k8s.io \"\" is invalid: fieldManager: Required value: is required for apply patch",
        ));
    }
    if !applied["metadata"]["managedFields"].is_null() {
        return Err(Status::bad_request("metadata.managedFields must be nil"));
    }
    let wanted = fields_of_object(applied);
    let nothing = json!({"apiVersion": applied["apiVersion"], "kind": applied["kind"]});
    let live = before.unwrap_or(&nothing);
    let mut entries = entries(live);
    let older = (manager == KUBECTL).then(|| last_applied(live)).flatten();
    let mut conflicts = Vec::new();
    for path in leaves(&wanted).iter().filter(|path| !path.is_empty()) {
        if look_up(live, path) == look_up(applied, path) {
            continue;
        }
        for entry in &mut entries {
            let is_own = is_of(entry, manager, APPLIED);
            if is_own || !has(&entry["fieldsV1"], path) {
                continue;
            }
            // kubectl itself had set it by its older form of `apply`.
            let is_handed_over = older.as_ref().is_some_and(|older| has(older, path));
            if force || is_handed_over {
                take_out(&mut entry["fieldsV1"], path);
            } else {
                let of = |key: &str| entry[key].as_str().unwrap_or_default();
                let mut message = format!("conflict with {:?}", of("manager"));
                if of("operation") == UPDATED {
                    message = format!("{message} using {}", of("apiVersion"));
                }
                conflicts.push((message, words(path)));
            }
        }
    }
    if !conflicts.is_empty() {
        return Err(Status::apply_conflict(&conflicts));
    }
    let mut object = live.clone();
    let own = entries.iter().find(|entry| is_of(entry, manager, APPLIED));
    let own = own.map_or_else(|| json!({}), |entry| entry["fieldsV1"].clone());
    for path in leaves(&own).iter().filter(|path| !path.is_empty()) {
        let others = entries.iter().filter(|e| !is_of(e, manager, APPLIED));
        let is_shared = others
            .into_iter()
            .any(|entry| has(&entry["fieldsV1"], path));
        if has(&wanted, path) || is_shared {
            continue;
        }
        // An element of a list goes as a whole, unless it is still wanted.
        let element = path.iter().rposition(|part| part.starts_with("k:"));
        let element = element.and_then(|at| path.get(..=at));
        match element.filter(|element| !has(&wanted, element)) {
            Some(element) => delete(&mut object, element),
            None => delete(&mut object, path),
        }
    }
    let mut plain = applied.clone();
    meta::metadata(&mut plain).remove("resourceVersion");
    merge(&mut object, &plain)?;
    set_entries(&mut object, entries, Some((manager, APPLIED, wanted, now)));
    Ok(object)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: &str = "2026-01-02T03:04:05Z";

    fn config(replicas: Option<u32>, image: &str, more: &Value) -> Value {
        let mut spec =
            json!({"template": {"spec": {"containers": [{"name": "web", "image": image}]}}});
        if let Some(replicas) = replicas {
            spec["replicas"] = replicas.into();
        }
        if !more.is_null() {
            spec["template"]["spec"]["containers"]
                .as_array_mut()
                .unwrap()
                .push(more.clone());
        }
        json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": spec})
    }

    fn by(
        before: Option<&Value>,
        applied: &Value,
        manager: &str,
        force: bool,
    ) -> Result<Value, Status> {
        apply(before, applied, manager, force, NOW)
    }

    fn containers(object: &Value) -> &Value {
        &object["spec"]["template"]["spec"]["containers"]
    }

    fn containers_mut(object: &mut Value) -> &mut Value {
        &mut object["spec"]["template"]["spec"]["containers"]
    }

    #[test]
    fn what_is_no_longer_applied_is_removed() {
        let side = json!({"name": "side", "image": "b"});
        let first = by(None, &config(Some(2), "a", &side), "ci", false).unwrap();
        assert_eq!(containers(&first).as_array().unwrap().len(), 2);
        let second = by(Some(&first), &config(None, "a2", &Value::Null), "ci", false).unwrap();
        // embedded 24
        assert_eq!(
            *containers(&second),
            json!([{"name": "web", "image": "a2"}])
        );
        assert_eq!(second["spec"]["replicas"], Value::Null);
        // The same once more changes nothing.
        let third = by(
            Some(&second),
            &config(None, "a2", &Value::Null),
            "ci",
            false,
        )
        .unwrap();
        assert_eq!(third, second);
    }

    #[test]
    fn a_field_of_another_manager_is_a_conflict_unless_it_is_forced() {
        let first = by(None, &config(Some(2), "a", &Value::Null), "ci", false).unwrap();
        let mut scaled = first.clone();
        scaled["spec"]["replicas"] = 5.into();
        note_update(&mut scaled, Some(&first), "scaler", NOW);
        let again = config(Some(2), "a", &Value::Null);
        let refused = by(Some(&scaled), &again, "ci", false).unwrap_err();
        // embedded 25
        assert_eq!(
            refused.to_string(),
            r#"Apply failed with 1 conflict: conflict with "scaler" using apps/v1: .spec.replicas"#
        );
        let causes = &refused.details.as_ref().unwrap()["causes"];
        assert_eq!(causes[0]["reason"], "FieldManagerConflict");
        let forced = by(Some(&scaled), &again, "ci", true).unwrap();
        assert_eq!(forced["spec"]["replicas"], 2);
        // Without the field there is no conflict, and the scaler's number stays.
        let without = by(Some(&scaled), &config(None, "b", &Value::Null), "ci", false).unwrap();
        assert_eq!(without["spec"]["replicas"], 5);
        assert_eq!(containers(&without)[0]["image"], "b");
        // Fields that kubectl applied in its older form are its own.
        let mut older = first.clone();
        let text = serde_json::to_string(&config(Some(5), "a", &Value::Null)).unwrap();
        older["metadata"]["annotations"] = json!({LAST_APPLIED: text});
        older["spec"]["replicas"] = 5.into();
        note_update(&mut older, Some(&first), "kubectl-client-side-apply", NOW);
        let newer = by(
            Some(&older),
            &config(Some(7), "a", &Value::Null),
            KUBECTL,
            false,
        )
        .unwrap();
        assert_eq!(newer["spec"]["replicas"], 7);
        // Two who want the same agree.
        let other = by(
            Some(&first),
            &config(Some(2), "a", &Value::Null),
            "other",
            false,
        )
        .unwrap();
        let left = by(Some(&other), &config(None, "a", &Value::Null), "ci", false).unwrap();
        assert_eq!(left["spec"]["replicas"], 2);
    }

    /// A Deployment with those ports of its container, or a Service with them.
    fn with_ports(kind: &str, ports: &Value) -> Value {
        let spec = match kind {
            "Service" => json!({"ports": ports}),
            _ => json!({"template": {"spec": {"containers": [{"name": "dns", "ports": ports}]}}}),
        };
        json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": "dns"}, "spec": spec})
    }

    #[test]
    fn ports_of_one_number_and_two_protocols_are_two() {
        for (kind, key, at) in [
            (
                "Deployment",
                "containerPort",
                "/spec/template/spec/containers/0/ports",
            ),
            ("Service", "port", "/spec/ports"),
        ] {
            let ports =
                json!([{key: 53, "name": "dns"}, {key: 53, "name": "dns-udp", "protocol": "UDP"}]);
            let mut first = by(None, &with_ports(kind, &ports), "ci", false).unwrap();
            // embedded 24
            assert_eq!(first.pointer(at), Some(&ports), "{kind}");
            let tree = first["metadata"]["managedFields"][0]["fieldsV1"].to_string();
            let part = json!({key: 53, "protocol": "TCP"}).to_string();
            let part = serde_json::to_string(&format!("k:{part}")).unwrap();
            assert!(tree.contains(&part), "{tree}");
            // It is shown with its protocol.
            let list = first.pointer_mut(at).unwrap();
            list[0]["protocol"] = "TCP".into();
            let again = by(Some(&first), &with_ports(kind, &ports), "ci", false).unwrap();
            assert_eq!(again, first);
            let one = json!([{key: 53, "name": "dns-udp", "protocol": "UDP"}]);
            let second = by(Some(&first), &with_ports(kind, &one), "ci", false).unwrap();
            assert_eq!(second.pointer(at), Some(&one), "{kind}");
            let twice = json!([{key: 53}, {key: 53, "protocol": "TCP"}]);
            for ports in [twice, json!([{"name": "dns"}])] {
                let refused = by(None, &with_ports(kind, &ports), "ci", false).unwrap_err();
                assert_eq!(refused.code, 400, "{refused}");
            }
        }
    }

    #[test]
    fn managers_of_ports_that_were_noted_by_the_number_alone_stay() {
        let ports = json!([{"containerPort": 53, "protocol": "UDP"}]);
        let first = by(None, &with_ports("Deployment", &ports), "ci", false).unwrap();
        let mut older = first.clone();
        let managed = older["metadata"]["managedFields"].to_string();
        let managed = managed.replace(r#",\"protocol\":\"UDP\""#, "");
        older["metadata"]["managedFields"] = serde_json::from_str(&managed).unwrap();
        assert_ne!(older, first);
        let again = by(Some(&older), &with_ports("Deployment", &ports), "ci", false).unwrap();
        // embedded 24
        assert_eq!(again, first);
        let mut named = older.clone();
        containers_mut(&mut named)[0]["ports"][0]["name"] = "a".into();
        note_update(&mut named, Some(&older), "other", NOW);
        let entries = named["metadata"]["managedFields"].as_array().unwrap();
        assert_eq!(entries.len(), 2, "{entries:?}");
        assert_eq!(entries[0], first["metadata"]["managedFields"][0]);
    }

    #[test]
    fn paths_are_as_upstream_writes_them() {
        let object = config(Some(1), "a", &Value::Null);
        let tree = fields_of_object(&object);
        // embedded 24
        assert_eq!(
            tree,
            json!({"f:spec": {"f:replicas": {}, "f:template": {"f:spec": {"f:containers": {
                "k:{\"name\":\"web\"}": {".": {}, "f:name": {}, "f:image": {}}}}}}})
        );
        let texts: Vec<_> = leaves(&tree).iter().map(|path| words(path)).collect();
        assert!(
            texts.contains(&r#".spec.template.spec.containers[name="web"].image"#.to_owned()),
            "{texts:?}"
        );
        assert_eq!(by(None, &object, "", false).unwrap_err().code, 400);
    }
}
