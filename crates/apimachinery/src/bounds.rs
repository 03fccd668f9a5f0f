//! Limits on the memory that a request may cost: a few kilobytes of a patch, or three megabytes of
//! tiny values, can take hundreds of megabytes once they are decoded.

use serde_json::Value;

use crate::status::Status;

/// The maximum number of values in a body.
///
/// An object of a single field takes 8 bytes as JSON and 650 in memory.
pub const VALUES_MAX: usize = 100_000;
/// Most bytes that all `copy` operations of a JSON patch may copy together.
///
/// Upstream: `JSONPatchMaxCopyBytes` of `staging/src/k8s.io/apiserver/pkg/server/config.go`.
const COPIED_BYTES_MAX: usize = 3 << 20;
/// Most values that all `copy` and `move` operations of a JSON patch may copy or move together.
const COPIED_VALUES_MAX: usize = VALUES_MAX;

/// Refuses JSON with too many values, before it is decoded. The name of a field counts as a value,
/// as it does in YAML.
///
/// # Errors
/// The body has more than [`VALUES_MAX`] values.
pub fn check_json(body: &[u8]) -> Result<(), Status> {
    if json_values(body) > VALUES_MAX {
        return Err(too_many_values());
    }
    Ok(())
}

/// The maximum length of a list in an object that is written. Recording the managers of fields scans a
/// list once for each field of its elements.
pub const LIST_MAX: usize = 2_000;

/// Refuses an object with a list that is too long.
///
/// # Errors
/// A list has more than [`LIST_MAX`] elements.
pub fn check_lists(object: &Value) -> Result<(), Status> {
    match object {
        Value::Array(items) if items.len() > LIST_MAX => Err(Status::too_costly(format!(
            "Request entity too large: a list has more than {LIST_MAX} elements"
        ))),
        Value::Array(items) => items.iter().try_for_each(check_lists),
        Value::Object(map) => map.values().try_for_each(check_lists),
        _ => Ok(()),
    }
}

/// The refusal of a body with more than [`VALUES_MAX`] values.
pub fn too_many_values() -> Status {
    Status::too_costly(format!(
        "Request entity too large: the body has more than {VALUES_MAX} values and field names"
    ))
}

/// The approximate number of values and field names in a JSON text, which need not be valid: its
/// brackets, colons and commas outside of strings.
pub(crate) fn json_values(text: &[u8]) -> usize {
    let (mut is_in_string, mut is_escaped, mut count) = (false, false, 0);
    for byte in text {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if is_in_string => is_escaped = true,
            b'"' => is_in_string = !is_in_string,
            b'{' | b'[' | b':' | b',' if !is_in_string => count += 1,
            _ => {}
        }
    }
    count
}

/// The bytes and values that the remaining operations of a JSON patch may copy and move.
pub(crate) struct CopyBudget {
    bytes: usize,
    values: usize,
}

impl Default for CopyBudget {
    fn default() -> Self {
        Self {
            bytes: COPIED_BYTES_MAX,
            values: COPIED_VALUES_MAX,
        }
    }
}

impl CopyBudget {
    /// Charges a value that is about to be copied. Reads no more of the value than the budget allows.
    ///
    /// # Errors
    /// The operations would copy too much.
    pub(crate) fn copy(&mut self, value: &Value) -> Result<(), Status> {
        self.charge(value, true).ok_or_else(copies_too_much)
    }

    /// Charges a value that is about to be moved: it takes no more memory, but its depth must be
    /// measured.
    ///
    /// # Errors
    /// The operations would move too much.
    pub(crate) fn shift(&mut self, value: &Value) -> Result<(), Status> {
        self.charge(value, false).ok_or_else(copies_too_much)
    }

    fn charge(&mut self, value: &Value, with_bytes: bool) -> Option<()> {
        self.values = self.values.checked_sub(1)?;
        if with_bytes {
            self.bytes = self.bytes.checked_sub(own_bytes(value))?;
        }
        match value {
            Value::Array(items) => items
                .iter()
                .try_for_each(|item| self.charge(item, with_bytes)),
            Value::Object(fields) => fields
                .values()
                .try_for_each(|field| self.charge(field, with_bytes)),
            _ => Some(()),
        }
    }
}

fn copies_too_much() -> Status {
    Status::too_costly(format!(
        "the copy and move operations of the JSON patch exceed the limit of {COPIED_BYTES_MAX} bytes or {COPIED_VALUES_MAX} values"
    ))
}

/// The length of a value as JSON, without the values in it; a number counts as one digit.
fn own_bytes(value: &Value) -> usize {
    match value {
        Value::Null | Value::Bool(_) => 4,
        Value::Number(_) => 1,
        Value::String(text) => text.len() + 2,
        Value::Array(items) => items.len() + 2,
        Value::Object(fields) => fields.keys().map(|key| key.len() + 4).sum::<usize>() + 2,
    }
}

/// Whether a value is nested deeper than `levels`. Doesn't look deeper than that.
pub(crate) fn is_deeper(value: &Value, levels: usize) -> bool {
    let deeper = |below: &Value| match levels.checked_sub(1) {
        Some(left) => is_deeper(below, left),
        None => true,
    };
    match value {
        Value::Array(items) => items.iter().any(deeper),
        Value::Object(fields) => fields.values().any(deeper),
        _ => false,
    }
}

/// The approximate memory that a value takes: a map node has room for 11 fields and holds 6 on average.
pub(crate) fn memory(value: &Value) -> usize {
    const ALLOCATION: usize = 16;
    const NODE: usize = 650;
    let own = size_of::<Value>();
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => own,
        Value::String(text) => own + ALLOCATION + text.len(),
        Value::Array(items) => own + ALLOCATION + items.iter().map(memory).sum::<usize>(),
        Value::Object(fields) => {
            let nodes = fields.len().div_ceil(6) * NODE;
            let fields = fields.iter();
            let fields = fields.map(|(key, value)| ALLOCATION + key.len() + memory(value));
            own + nodes + fields.sum::<usize>()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_counted_outside_of_strings() {
        for (text, expected) in [
            ("1", 0),
            (r#"{"a": "b,{[:"}"#, 2),
            (r#"{"a\"": ["\\", "\\\",[", {}], "b": 1}"#, 8),
            (r#"["never ended,,,"#, 1),
        ] {
            assert_eq!(json_values(text.as_bytes()), expected, "{text}");
        }
        let text = |values: usize| format!("[{}0]", "{},".repeat(values));
        assert_eq!(check_json(text(10_000).as_bytes()), Ok(()));
        let refused = check_json(text(VALUES_MAX).as_bytes()).unwrap_err();
        assert_eq!(
            (refused.code, refused.reason),
            (413, "RequestEntityTooLarge")
        );
    }

    #[test]
    fn objects_with_long_lists_are_refused() {
        let object = |length: usize| serde_json::json!({"a": [{"b": vec![1; length]}]});
        assert!(check_lists(&object(LIST_MAX)).is_ok());
        // embedded 59
        assert_eq!(check_lists(&object(LIST_MAX + 1)).unwrap_err().code, 413);
    }
}
