//! Decodes protobuf bodies, which kubectl and typed clients send, into the equivalent JSON.
//!
//! The numbers and types of the fields come from the types of `k8s.io/api` (`schemas/protobuf.txt`).
//!
//! Upstream: `apimachinery/pkg/runtime/serializer/protobuf`, `k8s.io/api/*/generated.proto`.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::OnceLock;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use mirrorlet_core::api::Timestamp;
use serde_json::{Map, Value, json};

use crate::bounds::{VALUES_MAX, json_values};
use crate::{meta, schemas};

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
    /// It is invalid, or newer than the schemas here.
    #[error(
        "the body is not protobuf, or has a field that is newer than this server; send JSON, as kubectl apply -f does"
    )]
    Malformed,
    /// The body is of a kind that is accepted as JSON only.
    #[error("{0} is only supported in JSON")]
    Kind(String),
    /// It has more than [`VALUES_MAX`] values.
    #[error("the body has more than {VALUES_MAX} values")]
    TooManyValues,
}

/// The limits that are left for the rest of a body.
#[derive(Clone, Copy)]
struct Left<'a> {
    /// The levels below.
    depth: usize,
    /// The values; none once there were more.
    values: &'a Cell<Option<usize>>,
}

impl Left<'_> {
    fn below(self) -> Option<Self> {
        let depth = self.depth.checked_sub(1)?;
        Some(Self { depth, ..self })
    }

    /// Counts values before they are made.
    fn count(self, values: usize) -> Option<()> {
        let left = self.values.get().and_then(|left| left.checked_sub(values));
        self.values.set(left);
        left.map(drop)
    }
}

/// Converts a body to JSON.
///
/// # Errors
/// The body is malformed, or of an unsupported kind.
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
    let values = Cell::new(Some(VALUES_MAX));
    let left = Left {
        depth: DEPTH_MAX,
        values: &values,
    };
    let mut object = message(raw, name, left).ok_or_else(|| match values.get() {
        Some(_) => malformed,
        None => ProtobufError::TooManyValues,
    })?;
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

fn message(bytes: &[u8], name: &str, left: Left<'_>) -> Option<Map<String, Value>> {
    let left = left.below()?;
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
        take(&mut object, field, wire, left)?;
    }
    Some(object)
}

fn take(
    object: &mut Map<String, Value>,
    field: &Field,
    wire: Wire<'_>,
    left: Left<'_>,
) -> Option<()> {
    let name = field.name.to_owned();
    if let Some(form) = field.form.strip_prefix("list:") {
        let value = value(form, wire, left)?;
        let list = object.entry(name).or_insert_with(|| json!([]));
        list.as_array_mut()?.push(value);
        return Some(());
    }
    if let Some(form) = field.form.strip_prefix("map:") {
        let (key, value) = entry(form, wire, left)?;
        let map = object.entry(name).or_insert_with(|| json!({}));
        map.as_object_mut()?.insert(key, value);
        return Some(());
    }
    let form = field.form.strip_prefix('*');
    let value = value(form.unwrap_or(field.form), wire, left)?;
    if field.name == "." {
        let Value::Object(fields) = value else {
            return None;
        };
        object.extend(fields);
    } else if !value.is_null() && (form.is_some() || !meta::is_zero(&value)) {
        object.insert(name, value);
    }
    Some(())
}

/// A value of a form that is neither a list nor a map; null for a time that isn't set.
fn value(form: &str, wire: Wire<'_>, left: Left<'_>) -> Option<Value> {
    left.count(1)?;
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
            bytes => {
                left.count(json_values(bytes))?;
                serde_json::from_slice(bytes).ok()?
            }
        },
        ("intorstring", Wire::Bytes(bytes)) => int_or_string(bytes)?,
        (form, Wire::Bytes(bytes)) => match form.strip_prefix("items:") {
            Some(form) => {
                let (mut rest, mut items) = (bytes, Vec::new());
                while !rest.is_empty() {
                    items.push(value(form, next(&mut rest)?.1, left)?);
                }
                items.into()
            }
            None => message(bytes, form, left)?.into(),
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
fn entry(form: &str, wire: Wire<'_>, left: Left<'_>) -> Option<(String, Value)> {
    left.count(1)?;
    let Wire::Bytes(mut rest) = wire else {
        return None;
    };
    // Of a map of texts or bytes; a value of another form is always written.
    let (mut key, mut found) = (String::new(), Value::from(""));
    while !rest.is_empty() {
        match next(&mut rest)? {
            (1, Wire::Bytes(bytes)) => str::from_utf8(bytes).ok()?.clone_into(&mut key),
            (2, wire) => found = value(form, wire, left)?,
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
mod tests;
