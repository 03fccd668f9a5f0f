//! Values of manifests that keep the order of insertion.

use serde::{Serialize, Serializer};

/// A value of a manifest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub(crate) enum Value {
    Bool(bool),
    Int(i64),
    Text(String),
    List(Vec<Value>),
    Map(Map),
}

/// A mapping of a manifest.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Map(pub(crate) Vec<(String, Value)>);

impl Map {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Returns the mapping with an entry; an entry with the same key is replaced.
    #[must_use]
    pub(crate) fn with(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.put(key, value);
        self
    }

    /// Returns the mapping with an entry, if there is a value and it isn't empty.
    #[must_use]
    pub(crate) fn with_some(mut self, key: &str, value: Option<impl Into<Value>>) -> Self {
        if let Some(value) = value {
            self.put_filled(key, value);
        }
        self
    }

    pub(crate) fn put(&mut self, key: &str, value: impl Into<Value>) {
        let value = value.into();
        match self.0.iter_mut().find(|(known, _)| known == key) {
            Some((_, old)) => *old = value,
            None => self.0.push((key.to_owned(), value)),
        }
    }

    /// Adds an entry, unless its value is an empty list or mapping.
    pub(crate) fn put_filled(&mut self, key: &str, value: impl Into<Value>) {
        let value = value.into();
        let is_empty = match &value {
            Value::List(items) => items.is_empty(),
            Value::Map(map) => map.is_empty(),
            Value::Bool(_) | Value::Int(_) | Value::Text(_) => false,
        };
        if !is_empty {
            self.put(key, value);
        }
    }

    pub(crate) fn get(&self, key: &str) -> Option<&Value> {
        let found = self.0.iter().find(|(known, _)| known == key);
        found.map(|(_, value)| value)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

macro_rules! value_from {
    ($($from:ty => $variant:ident),+) => {$(
        impl From<$from> for Value {
            fn from(value: $from) -> Self {
                Self::$variant(value.into())
            }
        }
    )+};
}

value_from!(bool => Bool, i64 => Int, &str => Text, String => Text, Map => Map);

impl<T: Into<Value>> From<Vec<T>> for Value {
    fn from(value: Vec<T>) -> Self {
        Self::List(value.into_iter().map(Into::into).collect())
    }
}

impl Serialize for Map {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(key, value)| (key, value)))
    }
}
