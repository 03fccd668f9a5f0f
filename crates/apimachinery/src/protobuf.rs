//! Bodies in protobuf, which kubectl and typed clients send, as the JSON that they would be.
//!
//! The numbers and forms of the fields come from the types of `k8s.io/api` (`schemas/protobuf.txt`).
//!
//! Upstream: `apimachinery/pkg/runtime/serializer/protobuf`, `k8s.io/api/*/generated.proto`.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use mirrorlet_core::api::Timestamp;
use serde_json::{Map, Value, json};

use crate::schemas;

/// Content type of protobuf.
pub const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

/// The first bytes of every body.
const MAGIC: &[u8] = b"k8s\0";
/// Deepest nesting of messages; a CronJob's deepest field is at 13.
const DEPTH_MAX: usize = 32;

/// A field of a message.
struct Field {
    number: u64,
    /// Its name in JSON; `.` for a message with fields that are its owner's.
    name: &'static str,
    /// Its form, as `schemas/README.md` says.
    form: &'static str,
}

/// The fields of messages by the messages' names. Read at the first body.
fn messages() -> &'static BTreeMap<&'static str, Vec<Field>> {
    static TEXT: OnceLock<String> = OnceLock::new();
    static MESSAGES: OnceLock<BTreeMap<&'static str, Vec<Field>>> = OnceLock::new();
    MESSAGES.get_or_init(|| {
        let text = TEXT.get_or_init(schemas::protobuf_text);
        let mut messages: BTreeMap<&'static str, Vec<Field>> = BTreeMap::new();
        let mut current = "";
        for line in text.lines() {
            let Some(line) = line.strip_prefix(' ') else {
                current = line;
                messages.insert(line, Vec::new());
                continue;
            };
            let mut parts = line.splitn(3, ' ');
            let number = parts.next().and_then(|number| number.parse().ok());
            if let (Some(number), Some(name), Some(form)) = (number, parts.next(), parts.next()) {
                let fields = messages.entry(current).or_default();
                fields.push(Field { number, name, form });
            }
        }
        messages
    })
}

/// Why a body can't be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProtobufError {
    /// It is none, or newer than the schemas here.
    #[error(
        "the body is not protobuf, or has a field that is newer than this server; send JSON, as kubectl apply -f does"
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
    let malformed = ProtobufError::Malformed;
    let body = body.strip_prefix(MAGIC).ok_or(malformed.clone())?;
    let (type_meta, raw) = envelope(body).ok_or(malformed.clone())?;
    let [api_version, kind] = type_meta;
    let name = match kind.as_str() {
        "DeleteOptions" => "meta/v1.DeleteOptions".to_owned(),
        kind => message_of(&api_version, kind),
    };
    let known = messages().get_key_value(name.as_str());
    let (name, _) = known.ok_or_else(|| ProtobufError::Kind(format!("a {kind}")))?;
    let mut object = message(raw, name, DEPTH_MAX).ok_or(malformed)?;
    object.insert("apiVersion".to_owned(), api_version.into());
    object.insert("kind".to_owned(), kind.into());
    Ok(Value::Object(object))
}

/// The name of the message of a kind: that of its Go type, with the first word of the group.
fn message_of(api_version: &str, kind: &str) -> String {
    match api_version.split_once('/') {
        Some((group, version)) => {
            let first = group.split('.').next().unwrap_or_default();
            format!("{first}/{version}.{kind}")
        }
        None => format!("core/{api_version}.{kind}"),
    }
}

/// The type and the message in the envelope of a body, `runtime.Unknown`.
fn envelope(mut rest: &[u8]) -> Option<([String; 2], &[u8])> {
    let (mut type_meta, mut raw) = (<[String; 2]>::default(), &[][..]);
    while !rest.is_empty() {
        match next(&mut rest)? {
            (1, Wire::Bytes(mut bytes)) => {
                while !bytes.is_empty() {
                    let (number, Wire::Bytes(text)) = next(&mut bytes)? else {
                        return None;
                    };
                    let place = usize::try_from(number).ok()?.checked_sub(1)?;
                    str::from_utf8(text)
                        .ok()?
                        .clone_into(type_meta.get_mut(place)?);
                }
            }
            (2, Wire::Bytes(bytes)) => raw = bytes,
            // Encoding and type of the content, which is never anything else.
            _ => {}
        }
    }
    Some((type_meta, raw))
}

/// The value of a field on the wire.
#[derive(Clone, Copy)]
enum Wire<'a> {
    Number(u64),
    Bytes(&'a [u8]),
    /// Of a type that no field here has.
    Other,
}

fn message(bytes: &[u8], name: &str, depth: usize) -> Option<Map<String, Value>> {
    let depth = depth.checked_sub(1)?;
    let fields = messages().get(name)?;
    let mut rest = bytes;
    let mut object = Map::new();
    while !rest.is_empty() {
        let (number, wire) = next(&mut rest)?;
        let Some(field) = fields.iter().find(|field| field.number == number) else {
            // A part of the object would be lost; Go writes parts that are empty.
            if matches!(wire, Wire::Bytes([]) | Wire::Number(0)) {
                continue;
            }
            return None;
        };
        take(&mut object, field, wire, depth)?;
    }
    Some(object)
}

fn take(
    object: &mut Map<String, Value>,
    field: &Field,
    wire: Wire<'_>,
    depth: usize,
) -> Option<()> {
    let name = field.name.to_owned();
    if let Some(form) = field.form.strip_prefix("list:") {
        let value = value(form, wire, depth)?;
        let list = object.entry(name).or_insert_with(|| json!([]));
        list.as_array_mut()?.push(value);
        return Some(());
    }
    if let Some(form) = field.form.strip_prefix("map:") {
        let (key, value) = entry(form, wire, depth)?;
        let map = object.entry(name).or_insert_with(|| json!({}));
        map.as_object_mut()?.insert(key, value);
        return Some(());
    }
    let form = field.form.strip_prefix('*');
    let value = value(form.unwrap_or(field.form), wire, depth)?;
    if field.name == "." {
        let Value::Object(fields) = value else {
            return None;
        };
        object.extend(fields);
    } else if !value.is_null() && (form.is_some() || !is_empty(&value)) {
        object.insert(name, value);
    }
    Some(())
}

/// Whether a value is the same as none, in a field that has no pointer in Go: there all are written.
fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Bool(true) => false,
        Value::Number(number) => number.as_i64() == Some(0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
    }
}

/// A value of a form that is neither a list nor a map; null for a time that isn't set.
fn value(form: &str, wire: Wire<'_>, depth: usize) -> Option<Value> {
    let text = |bytes| str::from_utf8(bytes).ok().map(Value::from);
    Some(match (form, wire) {
        // A negative number is the two's complement of 64 bits.
        ("int", Wire::Number(number)) => json!(i64::from_ne_bytes(number.to_ne_bytes())),
        ("bool", Wire::Number(number)) => json!(number != 0),
        ("string", Wire::Bytes(bytes)) => text(bytes)?,
        ("bytes", Wire::Bytes(bytes)) => STANDARD.encode(bytes).into(),
        ("time", Wire::Bytes(bytes)) => time(bytes, false)?,
        ("microtime", Wire::Bytes(bytes)) => time(bytes, true)?,
        ("quantity", Wire::Bytes(bytes)) => match only(bytes)? {
            [] => "0".into(),
            bytes => text(bytes)?,
        },
        ("json", Wire::Bytes(bytes)) => match only(bytes)? {
            [] => Value::Null,
            bytes => serde_json::from_slice(bytes).ok()?,
        },
        ("intorstring", Wire::Bytes(bytes)) => int_or_string(bytes)?,
        (form, Wire::Bytes(bytes)) => match form.strip_prefix("items:") {
            Some(form) => {
                let (mut rest, mut items) = (bytes, Vec::new());
                while !rest.is_empty() {
                    items.push(value(form, next(&mut rest)?.1, depth)?);
                }
                items.into()
            }
            None => message(bytes, form, depth)?.into(),
        },
        (_, Wire::Number(_) | Wire::Other) => return None,
    })
}

/// The bytes of a message with a single field; empty where it isn't set.
fn only(mut bytes: &[u8]) -> Option<&[u8]> {
    let mut found: &[u8] = &[];
    while !bytes.is_empty() {
        let (1, Wire::Bytes(bytes)) = next(&mut bytes)? else {
            return None;
        };
        found = bytes;
    }
    Some(found)
}

/// The seconds and nanoseconds of a time; null for none.
fn time(mut bytes: &[u8], micro: bool) -> Option<Value> {
    if bytes.is_empty() {
        return Some(Value::Null);
    }
    let (mut seconds, mut nanos) = (0_i64, 0_i32);
    while !bytes.is_empty() {
        match next(&mut bytes)? {
            (1, Wire::Number(number)) => seconds = i64::from_ne_bytes(number.to_ne_bytes()),
            (2, Wire::Number(number)) => nanos = i32::try_from(number).ok()?,
            _ => return None,
        }
    }
    let at = Timestamp::new(seconds, nanos).ok()?;
    let form = if micro { "%FT%T%.6fZ" } else { "%FT%TZ" };
    Some(at.strftime(form).to_string().into())
}

fn int_or_string(mut bytes: &[u8]) -> Option<Value> {
    let (mut is_text, mut number, mut text) = (false, 0, "");
    while !bytes.is_empty() {
        match next(&mut bytes)? {
            (1, Wire::Number(kind)) => is_text = kind == 1,
            (2, Wire::Number(value)) => number = i64::from_ne_bytes(value.to_ne_bytes()),
            (3, Wire::Bytes(value)) => text = str::from_utf8(value).ok()?,
            _ => return None,
        }
    }
    Some(if is_text { text.into() } else { number.into() })
}

/// Key and value of an entry of a map.
fn entry(form: &str, wire: Wire<'_>, depth: usize) -> Option<(String, Value)> {
    let Wire::Bytes(mut rest) = wire else {
        return None;
    };
    // Of a map of texts or bytes; a value of another form is always written.
    let (mut key, mut found) = (String::new(), Value::from(""));
    while !rest.is_empty() {
        match next(&mut rest)? {
            (1, Wire::Bytes(bytes)) => str::from_utf8(bytes).ok()?.clone_into(&mut key),
            (2, wire) => found = value(form, wire, depth)?,
            _ => return None,
        }
    }
    Some((key, found))
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
        let api_version = match kind {
            "Job" => "batch/v1",
            "SelfSubjectReview" => "authentication.k8s.io/v1",
            "Lease" => "coordination.k8s.io/v1",
            _ => "v1",
        };
        let type_meta = [field(1, api_version.as_bytes()), field(2, kind.as_bytes())].concat();
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
            json!({"containers": [{"name": "c", "image": "i", "command": ["true"]}], "restartPolicy": "Never"})
        );
        // A field that isn't known is never dropped.
        assert_eq!(
            to_json(&body("Job", &job(&[0xfa, 0x06, 1, b'x']))),
            Err(ProtobufError::Malformed)
        );
        assert_eq!(to_json(b"{}"), Err(ProtobufError::Malformed));
    }

    #[test]
    fn forms_of_go_are_those_of_json() {
        // A Service with a port by its name, an empty type and a status.
        let port = [
            vec![3 << 3, 80],
            field(4, &[vec![1 << 3, 1], field(3, b"web")].concat()),
        ]
        .concat();
        let spec = [field(1, &port), field(4, b"")].concat();
        let service = [field(2, &spec), field(3, &field(1, b""))].concat();
        // embedded 13
        assert_eq!(
            to_json(&body("Service", &service)).unwrap()["spec"],
            json!({"ports": [{"port": 80, "targetPort": "web"}]})
        );
        // Of pointers, nothing and zero are two things; a source of a volume belongs to the volume.
        let empty_dir = field(2, &field(2, b""));
        let volume = [field(1, b"v"), empty_dir].concat();
        let limits = field(
            1,
            &[field(1, b"cpu"), field(2, &field(1, b"500m"))].concat(),
        );
        let container = [field(1, b"c"), field(8, &limits), vec![0x90, 1, 0]].concat();
        let spec = [field(1, &volume), field(2, &container), vec![4 << 3, 0]].concat();
        assert_eq!(
            to_json(&body("Pod", &field(2, &spec))).unwrap()["spec"],
            json!({
                "volumes": [{"name": "v", "emptyDir": {}}],
                "containers": [{"name": "c", "resources": {"limits": {"cpu": "500m"}}}],
                "terminationGracePeriodSeconds": 0,
            })
        );
        let renewed = [vec![1 << 3, 1], vec![2 << 3, 0xd0, 0x0f]].concat();
        assert_eq!(
            to_json(&body("Lease", &field(2, &field(4, &renewed)))).unwrap()["spec"],
            json!({"renewTime": "1970-01-01T00:00:01.000002Z"})
        );
    }

    #[test]
    fn every_message_that_a_field_names_is_there() {
        let plain = [
            "string",
            "bool",
            "int",
            "bytes",
            "time",
            "microtime",
            "quantity",
            "intorstring",
            "json",
        ];
        assert!(messages().len() > 200, "{}", messages().len());
        for (message, fields) in messages() {
            for field in fields {
                let form = field
                    .form
                    .trim_start_matches('*')
                    .rsplit(':')
                    .next()
                    .unwrap();
                let form = form.trim_start_matches('*');
                assert!(
                    plain.contains(&form) || messages().contains_key(form),
                    "{message}: {form}"
                );
            }
        }
    }

    proptest! {
        /// No bytes do harm.
        #[test]
        fn any_bytes_give_an_answer(raw in prop::collection::vec(any::<u8>(), 0..100), kind in 0..6_usize) {
            let kind = ["ConfigMap", "Secret", "DeleteOptions", "Job", "Lease", "SelfSubjectReview"][kind];
            let _ = to_json(&body(kind, &raw));
            let _ = to_json(&[MAGIC, &raw].concat());
        }
    }
}
