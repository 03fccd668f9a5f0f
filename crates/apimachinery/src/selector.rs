//! Label and field selectors.
//!
//! Upstream: `apimachinery/pkg/fields/selector.go`.

use mirrorlet_core::labels::{LabelSelector, NotASelector};
use serde_json::Value;

use crate::resources::Resource;
use crate::status::Status;

/// A condition on one field.
#[derive(Debug, Clone, PartialEq, Eq)]
struct FieldRequirement {
    field: String,
    value: String,
    equal: bool,
}

/// Which objects are meant.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Selector {
    labels: LabelSelector,
    fields: Vec<FieldRequirement>,
}

impl Selector {
    /// Parses a label and a field selector; an empty one selects every object.
    ///
    /// # Errors
    /// A selector is malformed, or the resource has no such field.
    pub fn parse(labels: &str, fields: &str, resource: &Resource) -> Result<Self, Status> {
        Ok(Self {
            labels: parse_labels(labels)?,
            fields: parse_fields(fields, resource)?,
        })
    }

    /// Whether that object is meant.
    pub fn matches(&self, object: &Value) -> bool {
        let labels = &object["metadata"]["labels"];
        let value = |key: &str| labels.get(key).and_then(Value::as_str);
        self.labels.is_met(value)
            && self.fields.iter().all(|requirement| {
                let is = field(object, &requirement.field) == requirement.value;
                is == requirement.equal
            })
    }
}

/// Parses a label selector; the error names the invalid requirement.
fn parse_labels(text: &str) -> Result<LabelSelector, Status> {
    text.parse::<LabelSelector>().map_err(|NotASelector(part)| {
        Status::bad_request(format!("unable to parse requirement: {part:?}"))
    })
}

/// The field by which Jobs are selected: the number of their pods that have succeeded, which is
/// `status.succeeded` of the object.
const SUCCESSFUL: &str = "status.successful";

/// The words about a field that objects can't be selected by.
///
/// Upstream: those of resources with fields of their own, and `DefaultMetaV1FieldSelectorConversion`
/// of `apimachinery/pkg/runtime/conversion.go`.
fn unknown(field: &str, resource: &Resource) -> String {
    if fields_of(resource).is_empty() {
        format!(
            "{field:?} is not a known field selector: only \"metadata.name\", \"metadata.namespace\""
        )
    } else {
        format!("field label not supported: {field}")
    }
}

/// The fields that objects can be selected by, besides name and namespace.
///
/// Upstream: `pkg/apis/core/v1/conversion.go`, `pkg/registry/core/event/strategy.go`,
/// `pkg/registry/batch/job/strategy.go`.
fn fields_of(resource: &Resource) -> &'static [&'static str] {
    match (resource.group, resource.plural) {
        ("", "pods") => &[
            "spec.nodeName",
            "spec.restartPolicy",
            "spec.schedulerName",
            "spec.serviceAccountName",
            "spec.hostNetwork",
            "status.phase",
            "status.podIP",
            "status.podIPs",
            "status.nominatedNodeName",
        ],
        ("", "events") => &[
            "involvedObject.kind",
            "involvedObject.namespace",
            "involvedObject.name",
            "involvedObject.uid",
            "involvedObject.apiVersion",
            "involvedObject.resourceVersion",
            "involvedObject.fieldPath",
            "reason",
            "reportingComponent",
            "source",
            "type",
        ],
        ("", "nodes") => &["spec.unschedulable"],
        ("", "namespaces") => &["status.phase"],
        ("", "secrets") => &["type"],
        ("batch", "jobs") => &[SUCCESSFUL],
        _ => &[],
    }
}

fn parse_fields(text: &str, resource: &Resource) -> Result<Vec<FieldRequirement>, Status> {
    let mut requirements = Vec::new();
    for part in text.split(',').map(str::trim).filter(|p| !p.is_empty()) {
        let parsed = part
            .split_once("!=")
            .map(|(field, value)| (field, value, false))
            .or_else(|| part.split_once("==").map(|(f, v)| (f, v, true)))
            .or_else(|| part.split_once('=').map(|(f, v)| (f, v, true)));
        let Some((field, value, equal)) = parsed else {
            let message = format!("invalid selector: {text:?}; can't understand {part:?}");
            return Err(Status::bad_request(message));
        };
        let of_all = ["metadata.name", "metadata.namespace"];
        if !of_all.contains(&field) && !fields_of(resource).contains(&field) {
            return Err(Status::bad_request(unknown(field, resource)));
        }
        requirements.push(FieldRequirement {
            field: field.to_owned(),
            value: value.to_owned(),
            equal,
        });
    }
    Ok(requirements)
}

/// The value of a field as selectors see it; empty where the object has none.
fn field(object: &Value, path: &str) -> String {
    // The component that reports, of an event of either form.
    if path == "source" {
        let old = object["source"]["component"].as_str().unwrap_or_default();
        let new = object["reportingComponent"].as_str().unwrap_or_default();
        return if old.is_empty() { new } else { old }.to_owned();
    }
    let written = match path {
        SUCCESSFUL => "status.succeeded",
        path => path,
    };
    let mut value = object;
    for part in written.split('.') {
        value = &value[part];
    }
    match value {
        Value::String(text) => text.clone(),
        Value::Bool(value) => value.to_string(),
        Value::Number(number) => number.to_string(),
        Value::Null if ["spec.hostNetwork", "spec.unschedulable"].contains(&path) => {
            "false".to_owned()
        }
        Value::Null if path == SUCCESSFUL => "0".to_owned(),
        Value::Null | Value::Array(_) | Value::Object(_) => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::resources::{CONFIG_MAPS, EVENTS, JOBS, PODS};

    #[test]
    fn labels_select_as_upstream() {
        let object = json!({"metadata": {"labels": {"app": "web", "tier": "front", "empty": ""}}});
        for (text, expected) in [
            ("", true),
            ("app=web", true),
            ("app==web", true),
            ("app=db", false),
            ("app!=db", true),
            ("missing!=x", true),
            ("app", true),
            ("!app", false),
            ("!missing", true),
            ("app in (web,db)", true),
            ("app in (db)", false),
            ("app notin (db, cache)", true),
            ("missing notin (a)", true),
            ("app=web,tier=front", true),
            ("app=web,tier=back", false),
            ("app in (web, db),tier", true),
            ("empty=", true),
        ] {
            let selector = Selector::parse(text, "", &PODS).unwrap();
            // embedded 18
            assert_eq!(selector.matches(&object), expected, "{text}");
        }
        for text in ["=x", "a b", "app in web", "app=web,", "app=w b"] {
            assert_eq!(
                Selector::parse(text, "", &PODS).unwrap_err().code,
                400,
                "{text}"
            );
        }
    }

    #[test]
    fn jobs_are_selected_by_the_pods_that_have_succeeded() {
        for (status, text, expected) in [
            (json!({"succeeded": 2}), "status.successful=2", true),
            (json!({"succeeded": 2}), "status.successful=0", false),
            (json!({"succeeded": 2}), "status.successful!=1", true),
            (json!({"active": 1}), "status.successful=0", true),
            (json!(null), "status.successful=0", true),
            (json!(null), "status.successful!=0", false),
        ] {
            let job = json!({"metadata": {"name": "seed"}, "status": status});
            let selector = Selector::parse("", text, &JOBS).unwrap();
            // embedded 18
            assert_eq!(selector.matches(&job), expected, "{text} {job}");
        }
    }

    #[test]
    fn fields_select_what_the_resource_has() {
        let pod = json!({
            "metadata": {"name": "web", "namespace": "a"},
            "spec": {"nodeName": "n"},
            "status": {"phase": "Running"},
        });
        for (text, expected) in [
            ("metadata.name=web", true),
            ("metadata.name==web,metadata.namespace=a", true),
            (
                "spec.nodeName=n,status.phase!=Succeeded,status.phase!=Failed",
                true,
            ),
            ("status.phase=Failed", false),
            ("spec.hostNetwork=false", true),
        ] {
            let selector = Selector::parse("", text, &PODS).unwrap();
            // embedded 18
            assert_eq!(selector.matches(&pod), expected, "{text}");
        }
        for (text, resource) in [
            ("spec.image=x", &PODS),
            ("status.phase=x", &CONFIG_MAPS),
            ("x", &PODS),
            ("status.successful=1", &PODS),
            ("status.succeeded=1", &JOBS),
        ] {
            let refused = Selector::parse("", text, resource).unwrap_err();
            // embedded 18
            assert_eq!(refused.code, 400, "{text}");
        }
        let event = json!({"reportingComponent": "mirrorlet", "involvedObject": {"uid": "u"}});
        let both = Selector::parse("", "source=mirrorlet,involvedObject.uid=u", &EVENTS).unwrap();
        assert!(both.matches(&event));
    }
}
