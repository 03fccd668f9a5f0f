//! Reads large JSON answers in little memory: keeps only wanted fields, and works byte by byte.
//!
//! The Engine includes all labels of an image in the answers about each of its containers, without any
//! limit. Decoded whole, they would cost several times their size.
//!
//! PURE: bytes in, bytes out. Only the structure is checked; invalid JSON stays invalid, and fails to
//! decode.

/// Maximum length of a kept string, in bytes; a longer one becomes empty. Names, paths and ids are far
/// shorter; the error of a start may quote a long command.
pub(super) const TEXT_MAX: usize = 64 << 10;
/// So many bytes kept, and of strings that follow only short ones are: all containers stay in a list,
/// whatever their labels say.
const AMPLE: usize = 16 << 20;
/// Maximum length of a kept string beyond [`AMPLE`], in bytes: that of the longest label with a
/// container's owner, the path of its log.
const SHORT_TEXT_MAX: usize = 1 << 10;
/// Longest key that is compared, in bytes; members with longer ones are dropped.
const KEY_MAX: usize = 256;

/// The wanted parts of a value. A string, a number, `true` or `null` is always kept whole.
#[derive(Debug)]
pub(super) enum Keep {
    /// Everything.
    All,
    /// Some members of an object as a whole, and these parts of others.
    Fields(&'static [&'static str], &'static [(&'static str, Keep)]),
    /// These parts of each element of an array, or of each member of an object.
    Each(&'static Keep),
}

/// Where in the text the next byte is.
#[derive(Debug, Clone, Copy)]
enum Mode {
    /// Between the members and elements of the innermost open value, or outside all values.
    Between,
    /// In a key of an object.
    Key { escaped: bool },
    /// In a string; `start` is its beginning in the output.
    Text {
        kept: bool,
        full: bool,
        start: usize,
        escaped: bool,
    },
    /// In a number, `true`, `false` or `null`.
    Scalar { kept: bool },
    /// In an object or array that is kept or dropped as a whole.
    Whole {
        kept: bool,
        depth: usize,
        in_string: bool,
        escaped: bool,
    },
}

/// An open object or array of which parts are kept.
#[derive(Debug)]
struct Open {
    keep: &'static Keep,
    is_object: bool,
    is_empty: bool,
}

/// Whether the value after a key is kept.
#[derive(Debug, Clone, Copy)]
enum Next {
    Kept(&'static Keep),
    Dropped,
}

/// More would be kept than the limit allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TooMuch;

/// Keeps the wanted parts of one JSON value.
#[derive(Debug)]
pub(super) struct Pruner {
    root: &'static Keep,
    max: usize,
    kept: Vec<u8>,
    open: Vec<Open>,
    mode: Mode,
    key: Vec<u8>,
    next: Option<Next>,
}

impl Pruner {
    /// Keeps at most `max` bytes.
    pub(super) fn new(root: &'static Keep, max: usize) -> Self {
        Self {
            root,
            max,
            kept: Vec::new(),
            open: Vec::new(),
            mode: Mode::Between,
            key: Vec::new(),
            next: None,
        }
    }

    /// The kept parts, as JSON.
    pub(super) fn into_kept(self) -> Vec<u8> {
        self.kept
    }

    /// Takes the next bytes.
    pub(super) fn push(&mut self, mut bytes: &[u8]) -> Result<(), TooMuch> {
        while let Some(&byte) = bytes.first() {
            let taken = match self.mode {
                Mode::Between => self.between(byte),
                Mode::Key { escaped } => self.in_key(byte, escaped),
                Mode::Text { .. } => self.in_text(bytes),
                Mode::Scalar { kept } => self.in_scalar(byte, kept),
                Mode::Whole { .. } => self.in_whole(bytes),
            };
            bytes = bytes.get(taken..).unwrap_or_default();
            if self.kept.len() > self.max {
                return Err(TooMuch);
            }
        }
        Ok(())
    }

    fn between(&mut self, byte: u8) -> usize {
        match (byte, self.open.last()) {
            (b' ' | b'\t' | b'\n' | b'\r', _) | (b',' | b':', Some(_)) => 1,
            (b'}' | b']', Some(_)) => {
                self.open.pop();
                self.kept.push(byte);
                1
            }
            (b'"', Some(open)) if open.is_object && self.next.is_none() => {
                self.key.clear();
                self.mode = Mode::Key { escaped: false };
                1
            }
            (_, Some(open)) => {
                let next = match (open.is_object, open.keep) {
                    (true, _) => self.next.take().unwrap_or(Next::Dropped),
                    (false, Keep::Each(each)) => Next::Kept(each),
                    (false, Keep::All | Keep::Fields(..)) => Next::Dropped,
                };
                self.begin(byte, next)
            }
            (_, None) => self.begin(byte, Next::Kept(self.root)),
        }
    }

    /// Begins a value.
    fn begin(&mut self, byte: u8, next: Next) -> usize {
        let Next::Kept(keep) = next else {
            return self.enter(byte, false);
        };
        if let Some(open) = self.open.last_mut() {
            if !std::mem::replace(&mut open.is_empty, false) {
                self.kept.push(b',');
            }
            if open.is_object {
                self.kept.push(b'"');
                self.kept.extend_from_slice(&self.key);
                self.kept.extend_from_slice(b"\":");
            }
        }
        let is_object = byte == b'{';
        match (byte, keep) {
            (b'{', Keep::Fields(..) | Keep::Each(_)) | (b'[', Keep::Each(_)) => {
                self.kept.push(byte);
                self.open.push(Open {
                    keep,
                    is_object,
                    is_empty: true,
                });
                1
            }
            // Not of the expected type.
            (b'[', Keep::Fields(..)) => {
                self.kept.extend_from_slice(b"null");
                self.enter(byte, false)
            }
            _ => self.enter(byte, true),
        }
    }

    /// Enters a value that is kept or dropped as a whole.
    fn enter(&mut self, byte: u8, kept: bool) -> usize {
        let escaped = false;
        self.mode = match byte {
            b'"' => Mode::Text {
                kept,
                full: false,
                start: self.kept.len().saturating_add(1),
                escaped,
            },
            b'{' | b'[' => Mode::Whole {
                kept,
                depth: 1,
                in_string: false,
                escaped,
            },
            _ => {
                self.mode = Mode::Scalar { kept };
                // The first byte is a part of it, whatever it is.
                if kept {
                    self.kept.push(byte);
                }
                return 1;
            }
        };
        if kept {
            self.kept.push(byte);
        }
        1
    }

    fn in_key(&mut self, byte: u8, escaped: bool) -> usize {
        if byte == b'"' && !escaped {
            self.mode = Mode::Between;
            self.next = Some(self.wanted());
            return 1;
        }
        let escaped = byte == b'\\' && !escaped;
        self.mode = Mode::Key { escaped };
        // One more byte marks it as too long.
        if self.key.len() <= KEY_MAX {
            self.key.push(byte);
        }
        1
    }

    /// Whether the member with this key is kept.
    fn wanted(&self) -> Next {
        let keep = self.open.last().map(|open| open.keep);
        let is = |name: &str| name.as_bytes() == self.key;
        let found = match keep {
            Some(Keep::Fields(whole, _)) if whole.iter().any(|name| is(name)) => Some(&Keep::All),
            Some(Keep::Fields(_, parts)) => {
                let mut parts = parts.iter();
                parts.find(|(name, _)| is(name)).map(|(_, keep)| keep)
            }
            Some(Keep::Each(each)) if self.key.len() <= KEY_MAX => Some(*each),
            Some(Keep::Each(_) | Keep::All) | None => None,
        };
        found.map_or(Next::Dropped, Next::Kept)
    }

    fn in_text(&mut self, bytes: &[u8]) -> usize {
        let Mode::Text {
            kept,
            full,
            start,
            escaped,
        } = self.mode
        else {
            return 0;
        };
        let (taken, end) = run(bytes, escaped);
        let taken_bytes = bytes.get(..taken).unwrap_or_default();
        let is_over = end == Some(b'"');
        let mut full = full;
        if kept && !full {
            self.kept.extend_from_slice(taken_bytes);
            let max = if start > AMPLE {
                SHORT_TEXT_MAX
            } else {
                TEXT_MAX
            };
            if self.kept.len() > start.saturating_add(max).saturating_add(1) {
                self.kept.truncate(start);
                full = true;
            }
        }
        if is_over && kept && full {
            self.kept.push(b'"');
        }
        self.mode = if is_over {
            Mode::Between
        } else {
            Mode::Text {
                kept,
                full,
                start,
                escaped: end == Some(b'\\'),
            }
        };
        taken
    }

    fn in_scalar(&mut self, byte: u8, kept: bool) -> usize {
        if matches!(byte, b',' | b'}' | b']' | b':' | b'"' | b'{' | b'[')
            || byte.is_ascii_whitespace()
        {
            self.mode = Mode::Between;
            return 0;
        }
        if kept {
            self.kept.push(byte);
        }
        1
    }

    fn in_whole(&mut self, bytes: &[u8]) -> usize {
        let Mode::Whole {
            kept,
            mut depth,
            mut in_string,
            mut escaped,
        } = self.mode
        else {
            return 0;
        };
        let taken = if in_string {
            let (taken, end) = run(bytes, escaped);
            in_string = end != Some(b'"');
            escaped = end == Some(b'\\');
            taken
        } else {
            match bytes.first() {
                Some(b'"') => in_string = true,
                Some(b'{' | b'[') => depth = depth.saturating_add(1),
                Some(b'}' | b']') => depth = depth.saturating_sub(1),
                _ => {}
            }
            1
        };
        if kept {
            self.kept
                .extend_from_slice(bytes.get(..taken).unwrap_or_default());
        }
        self.mode = if depth == 0 {
            Mode::Between
        } else {
            Mode::Whole {
                kept,
                depth,
                in_string,
                escaped,
            }
        };
        taken
    }
}

/// The length of the next piece of a string: up to its end or a backslash, which it includes. If
/// `escaped`, the first byte is neither.
fn run(bytes: &[u8], escaped: bool) -> (usize, Option<u8>) {
    let first = usize::from(escaped);
    let rest = bytes.get(first..).unwrap_or_default();
    let found = rest.iter().position(|byte| matches!(byte, b'"' | b'\\'));
    match found {
        Some(at) => (first + at + 1, rest.get(at).copied()),
        None => (bytes.len(), None),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Map, Value, json};

    use super::*;

    static LABELS: Keep = Keep::Fields(&["a", "b"], &[]);
    static EACH: Keep = Keep::Fields(
        &["a"],
        &[
            ("labels", Keep::Fields(&["a", "b"], &[])),
            ("each", Keep::Each(&LABELS)),
        ],
    );
    static LIST: Keep = Keep::Each(&EACH);

    fn pruned(keep: &'static Keep, text: &[u8], pieces: usize) -> Result<Vec<u8>, TooMuch> {
        let mut pruner = Pruner::new(keep, 1 << 20);
        for piece in text.chunks(pieces) {
            pruner.push(piece)?;
        }
        Ok(pruner.into_kept())
    }

    /// The same of a value in memory.
    fn picked(keep: &Keep, value: &Value) -> Value {
        let of = |name: &str| match keep {
            Keep::Fields(whole, _) if whole.contains(&name) => Some(&Keep::All),
            Keep::Fields(_, parts) => parts.iter().find(|(n, _)| *n == name).map(|(_, k)| k),
            Keep::Each(each) => Some(*each),
            Keep::All => Some(&Keep::All),
        };
        match (value, keep) {
            (Value::Object(members), _) => {
                let members = members
                    .iter()
                    .filter_map(|(name, value)| Some((name.clone(), picked(of(name)?, value))));
                Value::Object(members.collect::<Map<String, Value>>())
            }
            (Value::Array(elements), Keep::Each(each)) => {
                elements.iter().map(|value| picked(each, value)).collect()
            }
            (Value::Array(_), Keep::Fields(..)) => Value::Null,
            _ => value.clone(),
        }
    }

    fn values() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            "[a-c\"\\\\{}\\[\\],:\u{e4}\u{1f980}\n ]{0,9}".prop_map(Value::from),
        ];
        leaf.prop_recursive(5, 60, 5, |inner| {
            let key = prop_oneof![
                Just("a".to_owned()),
                Just("labels".to_owned()),
                Just("each".to_owned()),
                "[b\"\\\\]{0,3}",
            ];
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
                prop::collection::hash_map(key, inner, 0..5)
                    .prop_map(|members| members.into_iter().collect::<Map<_, _>>().into()),
            ]
        })
    }

    proptest! {
        #[test]
        fn what_is_kept_is_what_a_whole_decode_would_pick(
            value in values(), pretty: bool, pieces in 1_usize..40,
        ) {
            let text = if pretty { format!("{value:#}\n") } else { value.to_string() };
            for keep in [&LIST, &EACH, &LABELS, &Keep::All] {
                let kept = pruned(keep, text.as_bytes(), pieces).unwrap();
                let kept: Value = serde_json::from_slice(&kept).unwrap();
                prop_assert_eq!(kept, picked(keep, &value));
            }
        }

        #[test]
        fn no_bytes_make_it_hang_or_panic(
            bytes in "[\\[\\]{}\",:\\\\a1 ]{0,60}", pieces in 1_usize..9,
        ) {
            for keep in [&LIST, &Keep::All] {
                let whole = pruned(keep, bytes.as_bytes(), usize::MAX);
                prop_assert_eq!(pruned(keep, bytes.as_bytes(), pieces), whole);
            }
        }
    }

    #[test]
    fn what_is_dropped_takes_no_memory() {
        let mut pruner = Pruner::new(&LIST, 1 << 20);
        let piece = "x".repeat(1 << 16);
        for text in [
            "[{\"a\":1,\"other\":\"",
            "\",\"",
            "\":{\"",
            "\":[\"",
            "\"]},\"labels\":{\"a\":\"",
        ] {
            pruner.push(text.as_bytes()).unwrap();
            for _ in 0..64 {
                pruner.push(piece.as_bytes()).unwrap();
            }
            assert!(pruner.kept.capacity() + pruner.key.capacity() < 4 * TEXT_MAX);
        }
        pruner.push(b"\",\"b\":\"2\"}}]").unwrap();
        let kept: Value = serde_json::from_slice(&pruner.into_kept()).unwrap();
        assert_eq!(kept, json!([{"a": 1, "labels": {"a": "", "b": "2"}}]));
    }

    #[test]
    fn a_list_that_is_ample_keeps_its_short_strings_alone() {
        let mut pruner = Pruner::new(&LIST, AMPLE + (1 << 20));
        let container = json!({"a": "id", "labels": {"a": "y".repeat(TEXT_MAX - 1)}}).to_string();
        pruner.push(b"[").unwrap();
        for _ in 0..1000 {
            pruner.push(container.as_bytes()).unwrap();
            pruner.push(b",").unwrap();
        }
        pruner.push(container.as_bytes()).unwrap();
        pruner.push(b"]").unwrap();
        let kept: Vec<Value> = serde_json::from_slice(&pruner.into_kept()).unwrap();
        assert_eq!(kept.len(), 1001);
        assert!(kept.iter().all(|container| container["a"] == "id"));
        assert_eq!(kept[0]["labels"]["a"].as_str().unwrap().len(), TEXT_MAX - 1);
        assert_eq!(kept[1000]["labels"]["a"], "");
    }

    #[test]
    fn more_than_the_limit_is_an_error() {
        let mut pruner = Pruner::new(&LIST, 100);
        let pushed = (0..100).try_for_each(|_| pruner.push(b"[{\"a\":[1,2,3]}]"));
        assert_eq!(pushed, Err(TooMuch));
    }
}
