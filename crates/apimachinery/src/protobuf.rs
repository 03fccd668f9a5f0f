//! The few bodies that kubectl sends in protobuf, as the JSON that it sends for all others.
//!
//! Upstream: `apimachinery/pkg/runtime/serializer/protobuf`, `k8s.io/api/*/generated.proto`.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};

/// Content type of protobuf.
pub const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

/// The first bytes of every body.
const MAGIC: &[u8] = b"k8s\0";
/// Deepest nesting of messages.
const DEPTH_MAX: usize = 16;

/// The form of a field of a message.
#[derive(Clone, Copy)]
enum Form {
    Text,
    Number,
    Bool,
    /// Bytes, in JSON base64.
    Bytes,
    Texts,
    /// A map of texts.
    TextMap,
    /// A map of bytes.
    BytesMap,
    Message(&'static [Field]),
    /// A field that the server sets.
    Ignored,
    Messages(&'static [Field]),
}

/// Number, name and form of a field.
type Field = (u64, &'static str, Form);

static OWNER_REFERENCE: &[Field] = &[
    (1, "kind", Form::Text),
    (3, "name", Form::Text),
    (4, "uid", Form::Text),
    (5, "apiVersion", Form::Text),
    (6, "controller", Form::Bool),
    (7, "blockOwnerDeletion", Form::Bool),
];
static META: &[Field] = &[
    (1, "name", Form::Text),
    (2, "generateName", Form::Text),
    (3, "namespace", Form::Text),
    (5, "uid", Form::Text),
    (6, "resourceVersion", Form::Text),
    (8, "creationTimestamp", Form::Ignored),
    (11, "labels", Form::TextMap),
    (12, "annotations", Form::TextMap),
    (13, "ownerReferences", Form::Messages(OWNER_REFERENCE)),
    (14, "finalizers", Form::Texts),
];
static PRECONDITIONS: &[Field] = &[(1, "uid", Form::Text), (2, "resourceVersion", Form::Text)];
static DELETE_OPTIONS: &[Field] = &[
    (1, "gracePeriodSeconds", Form::Number),
    (2, "preconditions", Form::Message(PRECONDITIONS)),
    (3, "orphanDependents", Form::Bool),
    (4, "propagationPolicy", Form::Text),
    (5, "dryRun", Form::Texts),
];
static EVICTION: &[Field] = &[
    (1, "metadata", Form::Message(META)),
    (2, "deleteOptions", Form::Message(DELETE_OPTIONS)),
];
static CONFIG_MAP: &[Field] = &[
    (1, "metadata", Form::Message(META)),
    (2, "data", Form::TextMap),
    (3, "binaryData", Form::BytesMap),
    (4, "immutable", Form::Bool),
];
static SECRET: &[Field] = &[
    (1, "metadata", Form::Message(META)),
    (2, "data", Form::BytesMap),
    (3, "type", Form::Text),
    (4, "stringData", Form::TextMap),
    (5, "immutable", Form::Bool),
];
static NAMESPACE: &[Field] = &[
    (1, "metadata", Form::Message(META)),
    (2, "spec", Form::Ignored),
    (3, "status", Form::Ignored),
];
static RESOURCE_ATTRIBUTES: &[Field] = &[
    (1, "namespace", Form::Text),
    (2, "verb", Form::Text),
    (3, "group", Form::Text),
    (4, "version", Form::Text),
    (5, "resource", Form::Text),
    (6, "subresource", Form::Text),
    (7, "name", Form::Text),
];
static NON_RESOURCE_ATTRIBUTES: &[Field] = &[(1, "path", Form::Text), (2, "verb", Form::Text)];
static REVIEW_SPEC: &[Field] = &[
    (1, "resourceAttributes", Form::Message(RESOURCE_ATTRIBUTES)),
    (
        2,
        "nonResourceAttributes",
        Form::Message(NON_RESOURCE_ATTRIBUTES),
    ),
];
static ACCESS_REVIEW: &[Field] = &[
    (1, "metadata", Form::Message(META)),
    (2, "spec", Form::Message(REVIEW_SPEC)),
    (3, "status", Form::Ignored),
];
static SUBJECT_REVIEW: &[Field] = &[
    (1, "metadata", Form::Message(META)),
    (2, "status", Form::Ignored),
];
static LABEL_SELECTOR: &[Field] = &[(1, "matchLabels", Form::TextMap)];
static CONTAINER_PORT: &[Field] = &[
    (1, "name", Form::Text),
    (2, "hostPort", Form::Number),
    (3, "containerPort", Form::Number),
    (4, "protocol", Form::Text),
    (5, "hostIP", Form::Text),
];
static ENV_VAR: &[Field] = &[(1, "name", Form::Text), (2, "value", Form::Text)];
static NOTHING: &[Field] = &[];
static CONTAINER: &[Field] = &[
    (1, "name", Form::Text),
    (2, "image", Form::Text),
    (3, "command", Form::Texts),
    (4, "args", Form::Texts),
    (5, "workingDir", Form::Text),
    (6, "ports", Form::Messages(CONTAINER_PORT)),
    (7, "env", Form::Messages(ENV_VAR)),
    (8, "resources", Form::Message(NOTHING)),
    (13, "terminationMessagePath", Form::Text),
    (14, "imagePullPolicy", Form::Text),
    (16, "stdin", Form::Bool),
    (17, "stdinOnce", Form::Bool),
    (18, "tty", Form::Bool),
    (20, "terminationMessagePolicy", Form::Text),
];
static POD_SPEC: &[Field] = &[
    (2, "containers", Form::Messages(CONTAINER)),
    (3, "restartPolicy", Form::Text),
    (4, "terminationGracePeriodSeconds", Form::Number),
    (5, "activeDeadlineSeconds", Form::Number),
    (6, "dnsPolicy", Form::Text),
    (7, "nodeSelector", Form::TextMap),
    (8, "serviceAccountName", Form::Text),
    (9, "serviceAccount", Form::Text),
    (10, "nodeName", Form::Text),
    (11, "hostNetwork", Form::Bool),
    (12, "hostPID", Form::Bool),
    (13, "hostIPC", Form::Bool),
    (14, "securityContext", Form::Message(NOTHING)),
    (19, "schedulerName", Form::Text),
];
static TEMPLATE: &[Field] = &[
    (1, "metadata", Form::Message(META)),
    (2, "spec", Form::Message(POD_SPEC)),
];
static DEPLOYMENT_SPEC: &[Field] = &[
    (1, "replicas", Form::Number),
    (2, "selector", Form::Message(LABEL_SELECTOR)),
    (3, "template", Form::Message(TEMPLATE)),
    (4, "strategy", Form::Message(NOTHING)),
    (5, "minReadySeconds", Form::Number),
];
static DEPLOYMENT: &[Field] = &[
    (1, "metadata", Form::Message(META)),
    (2, "spec", Form::Message(DEPLOYMENT_SPEC)),
    (3, "status", Form::Ignored),
];
static JOB_SPEC: &[Field] = &[
    (1, "parallelism", Form::Number),
    (2, "completions", Form::Number),
    (3, "activeDeadlineSeconds", Form::Number),
    (6, "template", Form::Message(TEMPLATE)),
    (7, "backoffLimit", Form::Number),
    (8, "ttlSecondsAfterFinished", Form::Number),
    (9, "completionMode", Form::Text),
    (10, "suspend", Form::Bool),
];
static JOB: &[Field] = &[
    (1, "metadata", Form::Message(META)),
    (2, "spec", Form::Message(JOB_SPEC)),
    (3, "status", Form::Ignored),
];
static JOB_TEMPLATE: &[Field] = &[
    (1, "metadata", Form::Message(META)),
    (2, "spec", Form::Message(JOB_SPEC)),
];
static CRON_JOB_SPEC: &[Field] = &[
    (1, "schedule", Form::Text),
    (2, "startingDeadlineSeconds", Form::Number),
    (3, "concurrencyPolicy", Form::Text),
    (4, "suspend", Form::Bool),
    (5, "jobTemplate", Form::Message(JOB_TEMPLATE)),
    (6, "successfulJobsHistoryLimit", Form::Number),
    (7, "failedJobsHistoryLimit", Form::Number),
    (8, "timeZone", Form::Text),
];
static CRON_JOB: &[Field] = &[
    (1, "metadata", Form::Message(META)),
    (2, "spec", Form::Message(CRON_JOB_SPEC)),
    (3, "status", Form::Ignored),
];
static TYPE_META: &[Field] = &[(1, "apiVersion", Form::Text), (2, "kind", Form::Text)];
static UNKNOWN: &[Field] = &[
    (1, "typeMeta", Form::Message(TYPE_META)),
    (2, "raw", Form::Bytes),
    (3, "contentEncoding", Form::Text),
    (4, "contentType", Form::Text),
];

/// Why a body can't be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProtobufError {
    /// It is none.
    #[error(
        "the body is not protobuf, or has a field that is read in JSON alone; use kubectl apply -f"
    )]
    Malformed,
    /// It is of a kind that is read in JSON alone.
    #[error("{0} is read in JSON alone")]
    Kind(String),
}

/// The JSON of a body.
///
/// # Errors
/// It is malformed, or of a kind that isn't read.
pub fn to_json(body: &[u8]) -> Result<Value, ProtobufError> {
    let body = body.strip_prefix(MAGIC).ok_or(ProtobufError::Malformed)?;
    let envelope = message(body, UNKNOWN, DEPTH_MAX).ok_or(ProtobufError::Malformed)?;
    let type_meta = envelope.get("typeMeta").cloned().unwrap_or_default();
    let kind = type_meta["kind"].as_str().unwrap_or_default();
    let fields = match kind {
        "ConfigMap" => CONFIG_MAP,
        "Secret" => SECRET,
        "Namespace" => NAMESPACE,
        "DeleteOptions" => DELETE_OPTIONS,
        "Eviction" => EVICTION,
        "SelfSubjectAccessReview" => ACCESS_REVIEW,
        "SelfSubjectReview" => SUBJECT_REVIEW,
        "Deployment" => DEPLOYMENT,
        "Job" => JOB,
        "CronJob" => CRON_JOB,
        other => return Err(ProtobufError::Kind(format!("a {other}"))),
    };
    let raw = envelope.get("raw").and_then(Value::as_str);
    let raw = STANDARD.decode(raw.unwrap_or_default());
    let raw = raw.map_err(|_| ProtobufError::Malformed)?;
    let mut object = message(&raw, fields, DEPTH_MAX).ok_or(ProtobufError::Malformed)?;
    object.insert("apiVersion".to_owned(), type_meta["apiVersion"].clone());
    object.insert("kind".to_owned(), kind.into());
    Ok(Value::Object(object))
}

/// The value of a field on the wire.
enum Wire<'a> {
    Number(u64),
    Bytes(&'a [u8]),
    /// Of a type that no field here has.
    Other,
}

fn message(bytes: &[u8], fields: &[Field], depth: usize) -> Option<Map<String, Value>> {
    let depth = depth.checked_sub(1)?;
    let mut rest = bytes;
    let mut object = Map::new();
    while !rest.is_empty() {
        let (number, wire) = next(&mut rest)?;
        let Some((_, name, form)) = fields.iter().find(|(known, ..)| *known == number) else {
            // A part of the object would be lost; Go writes parts that are empty.
            if matches!(wire, Wire::Bytes([]) | Wire::Number(0)) {
                continue;
            }
            return None;
        };
        take(&mut object, name, *form, &wire, depth)?;
    }
    Some(object)
}

fn take(
    object: &mut Map<String, Value>,
    name: &str,
    form: Form,
    wire: &Wire<'_>,
    depth: usize,
) -> Option<()> {
    let value = match (form, wire) {
        (Form::Ignored, _) => return Some(()),
        (Form::Number, Wire::Number(number)) => {
            // A negative number is the two's complement of 64 bits.
            json!(i64::from_ne_bytes(number.to_ne_bytes()))
        }
        (Form::Bool, Wire::Number(number)) => json!(*number != 0),
        (Form::Text, Wire::Bytes(bytes)) => {
            let text = str::from_utf8(bytes).ok()?;
            // Go writes texts that are empty.
            if text.is_empty() {
                return Some(());
            }
            text.into()
        }
        (Form::Bytes, Wire::Bytes(bytes)) => STANDARD.encode(bytes).into(),
        (Form::Message(fields), Wire::Bytes(bytes)) => message(bytes, fields, depth)?.into(),
        (Form::Texts, Wire::Bytes(bytes)) => {
            return push(object, name, str::from_utf8(bytes).ok()?.into());
        }
        (Form::Messages(fields), Wire::Bytes(bytes)) => {
            return push(object, name, message(bytes, fields, depth)?.into());
        }
        (Form::TextMap, Wire::Bytes(bytes)) => {
            return insert(object, name, bytes, (2, "value", Form::Text), depth);
        }
        (Form::BytesMap, Wire::Bytes(bytes)) => {
            return insert(object, name, bytes, (2, "value", Form::Bytes), depth);
        }
        _ => return None,
    };
    object.insert(name.to_owned(), value);
    Some(())
}

fn push(object: &mut Map<String, Value>, name: &str, value: Value) -> Option<()> {
    let list = object.entry(name).or_insert_with(|| json!([]));
    list.as_array_mut()?.push(value);
    Some(())
}

fn insert(
    object: &mut Map<String, Value>,
    name: &str,
    bytes: &[u8],
    value: Field,
    depth: usize,
) -> Option<()> {
    let entry = message(bytes, &[(1, "key", Form::Text), value], depth)?;
    let key = entry.get("key").and_then(Value::as_str).unwrap_or_default();
    let value = entry.get("value").cloned().unwrap_or_else(|| "".into());
    let map = object.entry(name).or_insert_with(|| json!({}));
    map.as_object_mut()?.insert(key.to_owned(), value);
    Some(())
}

/// The next field: its number and its value.
fn next<'a>(rest: &mut &'a [u8]) -> Option<(u64, Wire<'a>)> {
    let tag = varint(rest)?;
    let wire = match tag & 7 {
        0 => Wire::Number(varint(rest)?),
        1 => skip(rest, 8)?,
        2 => {
            let length = usize::try_from(varint(rest)?).ok()?;
            let (bytes, after) = rest.split_at_checked(length)?;
            *rest = after;
            Wire::Bytes(bytes)
        }
        5 => skip(rest, 4)?,
        _ => return None,
    };
    Some((tag >> 3, wire))
}

fn skip<'a>(rest: &mut &'a [u8], bytes: usize) -> Option<Wire<'a>> {
    *rest = rest.split_at_checked(bytes)?.1;
    Some(Wire::Other)
}

fn varint(rest: &mut &[u8]) -> Option<u64> {
    let mut number = 0_u64;
    for shift in (0..64).step_by(7) {
        let (first, after) = rest.split_first()?;
        *rest = after;
        number |= u64::from(first & 0x7f) << shift;
        if first & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
        let mut out = vec![number << 3 | 2, u8::try_from(bytes.len()).unwrap()];
        out.extend(bytes);
        out
    }

    fn body(kind: &str, raw: &[u8]) -> Vec<u8> {
        let type_meta = [field(1, b"v1"), field(2, kind.as_bytes())].concat();
        [MAGIC.to_vec(), field(1, &type_meta), field(2, raw)].concat()
    }

    #[test]
    fn kubectls_bodies_are_read() {
        let meta = field(
            1,
            &[field(1, b"web"), field(2, b""), field(3, b"a")].concat(),
        );
        let entry = [field(1, b"key"), field(2, b"value")].concat();
        let map = [meta.clone(), field(2, &entry)].concat();
        // embedded 13
        assert_eq!(
            to_json(&body("ConfigMap", &map)).unwrap(),
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "web", "namespace": "a"}, "data": {"key": "value"}})
        );
        assert_eq!(
            to_json(&body("Secret", &map)).unwrap()["data"]["key"],
            "dmFsdWU="
        );
        // A grace period of 5 seconds, and a policy.
        let options = [vec![1 << 3, 5], field(4, b"Background")].concat();
        assert_eq!(
            to_json(&body("DeleteOptions", &options)).unwrap(),
            json!({"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 5, "propagationPolicy": "Background"})
        );
        assert_eq!(
            to_json(&body("Ingress", b"")),
            Err(ProtobufError::Kind("a Ingress".to_owned()))
        );
        // A Job of one container with an empty time, empty resources and an empty status.
        let container = [
            field(1, b"c"),
            field(2, b"i"),
            field(3, b"true"),
            field(8, b""),
        ]
        .concat();
        let spec = [field(2, &container), field(3, b"Never")].concat();
        let template = [field(1, &field(8, b"")), field(2, &spec)].concat();
        let job = |more: &[u8]| {
            let spec = [&field(6, &template)[..], more].concat();
            [meta.clone(), field(2, &spec), field(3, b"")].concat()
        };
        let read = to_json(&body("Job", &job(b""))).unwrap();
        assert_eq!(
            read["spec"]["template"]["spec"],
            json!({"containers": [{"name": "c", "image": "i", "command": ["true"], "resources": {}}], "restartPolicy": "Never"})
        );
        // A field that isn't read is never dropped.
        assert_eq!(
            to_json(&body("Job", &job(&field(11, b"x")))),
            Err(ProtobufError::Malformed)
        );
        assert_eq!(to_json(b"{}"), Err(ProtobufError::Malformed));
    }

    proptest! {
        /// No bytes do harm.
        #[test]
        fn any_bytes_give_an_answer(raw in prop::collection::vec(any::<u8>(), 0..100), kind in 0..3_usize) {
            let kind = ["ConfigMap", "Secret", "DeleteOptions"][kind];
            let _ = to_json(&body(kind, &raw));
            let _ = to_json(&[MAGIC, &raw].concat());
        }
    }
}
