//! The content of a YAML document, with the position of each of its parts.
//!
//! Typed decoding directly from YAML would turn `app: yes` into the text `yes`, which Kubernetes
//! refuses: scalars get their type here, before any schema is known.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserialize, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Number, Value};
use serde_saphyr::{Location, Spanned};

use crate::api::diagnostic::Position;

/// Largest magnitude below which every integral float is exactly one integer.
const EXACT_FLOAT_MAX: f64 = 9_007_199_254_740_992.0;

/// The content of a node, whose children are nodes of type `N`.
#[derive(Debug, Clone)]
pub enum Kind<N> {
    /// Null, boolean, number or text.
    Scalar(Value),
    /// Items in order.
    Sequence(Vec<N>),
    /// Entries in order, duplicates included; the last of equal keys counts.
    Mapping(Vec<Entry<N>>),
}

/// A key of a mapping with its value.
#[derive(Debug, Clone)]
pub struct Entry<N> {
    /// The key, as text whatever it is written as.
    pub key: String,
    /// Where the key is written.
    pub key_position: Option<Position>,
    /// The value.
    pub value: N,
}

/// Converts the parser's location; none if it is unknown.
pub fn position(location: Location) -> Option<Position> {
    if location.line() == 0 {
        return None;
    }
    let span = location.span();
    Some(Position {
        line: u32::try_from(location.line()).unwrap_or(u32::MAX),
        column: u32::try_from(location.column()).unwrap_or(u32::MAX),
        offset: usize::try_from(span.byte_offset()?).unwrap_or(usize::MAX),
        length: usize::try_from(span.byte_len()?).unwrap_or(0),
    })
}

impl<'de, N: Deserialize<'de>> Deserialize<'de> for Kind<N> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(KindVisitor(PhantomData))
    }
}

struct KindVisitor<N>(PhantomData<N>);

impl<'de, N: Deserialize<'de>> Visitor<'de> for KindVisitor<N> {
    type Value = Kind<N>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a YAML value")
    }

    fn visit_unit<E>(self) -> Result<Kind<N>, E> {
        Ok(Kind::Scalar(Value::Null))
    }

    fn visit_none<E>(self) -> Result<Kind<N>, E> {
        Ok(Kind::Scalar(Value::Null))
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Kind<N>, D::Error> {
        Kind::deserialize(deserializer)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Kind<N>, E> {
        Ok(Kind::Scalar(Value::Bool(value)))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Kind<N>, E> {
        Ok(Kind::Scalar(Value::from(value)))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Kind<N>, E> {
        Ok(Kind::Scalar(Value::from(value)))
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Kind<N>, E> {
        // Go prints a whole number without a fraction, so that it decodes as an integer.
        #[expect(
            clippy::cast_possible_truncation,
            reason = "the bound makes the conversion exact"
        )]
        if value.fract() == 0.0 && value.abs() < EXACT_FLOAT_MAX {
            return Ok(Kind::Scalar(Value::from(value as i64)));
        }
        Number::from_f64(value)
            .map(|number| Kind::Scalar(Value::Number(number)))
            .ok_or_else(|| E::custom("a number must be finite"))
    }

    fn visit_str<E>(self, value: &str) -> Result<Kind<N>, E> {
        Ok(Kind::Scalar(Value::String(value.to_owned())))
    }

    fn visit_string<E>(self, value: String) -> Result<Kind<N>, E> {
        Ok(Kind::Scalar(Value::String(value)))
    }

    fn visit_bytes<E: serde::de::Error>(self, _: &[u8]) -> Result<Kind<N>, E> {
        Err(E::custom("binary values are not allowed"))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Kind<N>, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = access.next_element()? {
            items.push(item);
        }
        Ok(Kind::Sequence(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Kind<N>, A::Error> {
        let mut entries = Vec::new();
        while let Some(key) = access.next_key::<Spanned<KeyText>>()? {
            let value = access.next_value()?;
            entries.push(Entry {
                key: key.value.0,
                key_position: position(key.defined),
                value,
            });
        }
        Ok(Kind::Mapping(entries))
    }
}

/// A mapping's key, as text whatever it is written as.
struct KeyText(String);

impl<'de> Deserialize<'de> for KeyText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Kind::<IgnoredAny>::deserialize(deserializer)? {
            Kind::Scalar(Value::String(text)) => Ok(Self(text)),
            Kind::Scalar(Value::Number(number)) => Ok(Self(number.to_string())),
            Kind::Scalar(Value::Bool(value)) => Ok(Self(value.to_string())),
            Kind::Scalar(_) | Kind::Sequence(_) | Kind::Mapping(_) => {
                Err(D::Error::custom("a key must be a string"))
            }
        }
    }
}
