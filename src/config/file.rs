//! The config file: YAML or JSON, every key optional, unknown keys refused; its schema.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::json;
use serde_saphyr::Spanned;

use super::kinds::Arity;
use super::table::{Fallback, Key, ROWS, Setting, SettingRow};
use mirrorlet_core::small::SmallCollect;

/// Largest config file that is read, in bytes; an honest one has a few hundred.
pub const CONFIG_FILE_MAX: usize = 1 << 20;

/// Why a config file can't be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigFileError {
    /// It can't be read.
    #[error("failed to read the config file {path}: {cause}")]
    Unreadable {
        /// The file.
        path: String,
        /// The system's words.
        cause: String,
    },
    /// It is larger than [`CONFIG_FILE_MAX`].
    #[error("the config file {path} is larger than 1 MiB")]
    TooLarge {
        /// The file.
        path: String,
    },
    /// It is not YAML, or no map of settings.
    #[error("{path}{}: {message}", .line.map(|line| format!(":{line}")).unwrap_or_default())]
    Invalid {
        /// The file.
        path: String,
        /// The line, from 1, where known.
        line: Option<u64>,
        /// The problem.
        message: String,
    },
}

/// A config file, taken apart.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct LocatedFile {
    /// Path as given.
    pub path: String,
    /// Its settings, each with its line, from 1.
    pub settings: BTreeMap<Key, (u64, Setting)>,
    /// Unknown keys and values of another form, each with its line.
    pub faults: Vec<(u64, String)>,
}

impl LocatedFile {
    /// Parses the text of the file at `path`. An empty file sets nothing.
    ///
    /// # Errors
    /// It can't be taken apart. What is wrong with single keys is in `faults`.
    pub fn parse(path: &str, text: &str) -> Result<Self, ConfigFileError> {
        if text.len() > CONFIG_FILE_MAX {
            return Err(ConfigFileError::TooLarge {
                path: path.to_owned(),
            });
        }
        let mut file = Self {
            path: path.to_owned(),
            ..Self::default()
        };
        // `imageGc: off` is a word.
        let options = serde_saphyr::options! { strict_booleans: true };
        let entries: Option<Entries> = serde_saphyr::from_str_with_options(text, options)
            .map_err(|error| invalid(path, &error))?;
        for (key, value) in entries.unwrap_or_default().0 {
            let line = key.referenced.line();
            let key = key.value;
            let place = format!("{path}:{line}: {key}");
            let Some(row) = ROWS.iter().find(|row| row.name == key) else {
                let similar = super::similar("", &key, ROWS.iter().map(|row| row.name));
                file.faults
                    .push((line, format!("{place}: unknown setting{similar}")));
                continue;
            };
            match value.texts(row) {
                // As a key that isn't there.
                Ok(None) => {}
                Ok(Some(texts)) => {
                    file.settings.insert(row.key, (line, Setting(texts)));
                }
                Err(words) => file.faults.push((line, format!("{place}: {words}"))),
            }
        }
        Ok(file)
    }
}

/// Reads and parses the file at `path`.
pub fn read(path: &Path) -> Result<LocatedFile, ConfigFileError> {
    let shown = path.display().to_string();
    let text = std::fs::read_to_string(path).map_err(|e| ConfigFileError::Unreadable {
        path: shown.clone(),
        cause: e.to_string(),
    })?;
    LocatedFile::parse(&shown, &text)
}

/// The parser's words about a file that is a list or a single value.
const NO_MAP: &str = "expected mapping start";

fn invalid(path: &str, error: &serde_saphyr::Error) -> ConfigFileError {
    let error = error.without_snippet();
    let words = error.to_string();
    // The parser's words may end with the place, which goes in front here.
    let words = words.split(" at line ").next().unwrap_or(&words);
    ConfigFileError::Invalid {
        path: path.to_owned(),
        line: error.location().map(|l| l.line()).filter(|line| *line > 0),
        message: match words.trim_end_matches([',', ' ']) {
            NO_MAP => "expected a map of settings: write one KEY: VALUE a line, for example logLevel: debug"
                .to_owned(),
            words => words.to_owned(),
        },
    }
}

/// The map that a file is, in its order.
#[derive(Default)]
struct Entries(Vec<(Spanned<String>, Raw)>);

/// A value of the file.
enum Raw {
    Nothing,
    One(String),
    Many(Vec<Raw>),
    Map(Vec<(String, Raw)>),
}

impl Raw {
    /// The text form of a row's values; nothing where the key stands alone.
    fn texts(self, row: &SettingRow) -> Result<Option<Vec<String>>, String> {
        let (name, value) = (row.name, row.value);
        let one = |raw| match raw {
            Self::One(text) => Some(text),
            Self::Nothing | Self::Many(_) | Self::Map(_) => None,
        };
        let forms = row.schema["anyOf"].as_array();
        let is_map = forms.is_some_and(|forms| forms.iter().any(|form| form["type"] == "object"));
        let texts = match (row.arity, self) {
            (_, Self::Nothing) => return Ok(None),
            (Arity::One, raw) => {
                let text = one(raw).map(|text| vec![text]);
                text.ok_or_else(|| format!("expected a single value: write {name}: {value}"))?
            }
            (Arity::Many(_), Self::Many(values)) => {
                let texts = values.into_iter().map(one).collect::<Option<_>>();
                let words = || format!("expected a single value in each entry: write - {value}");
                texts.ok_or_else(words)?
            }
            // As the kubelet's configuration has its labels and reservations.
            (Arity::Many(_), Self::Map(pairs)) if is_map => {
                let pair = |(key, raw): (String, Self)| match one(raw) {
                    Some(text) => Ok(format!("{key}={text}")),
                    None => Err(format!(
                        "expected a single value of {key}: write {key}: VALUE"
                    )),
                };
                pairs.into_iter().map(pair).collect::<Result<_, _>>()?
            }
            (Arity::Many(_), Self::One(_) | Self::Map(_)) => {
                return Err(format!("expected a list: write {name}: [{value}]"));
            }
        };
        Ok(Some(texts))
    }
}

impl<'de> Deserialize<'de> for Entries {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Root;
        impl<'de> Visitor<'de> for Root {
            type Value = Entries;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map of settings")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entries, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(Entries(entries))
            }
        }
        deserializer.deserialize_map(Root)
    }
}

impl<'de> Deserialize<'de> for Raw {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;
        impl<'de> Visitor<'de> for Any {
            type Value = Raw;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a value")
            }
            fn visit_unit<E>(self) -> Result<Raw, E> {
                Ok(Raw::Nothing)
            }
            fn visit_bool<E>(self, value: bool) -> Result<Raw, E> {
                Ok(Raw::One(value.to_string()))
            }
            fn visit_i64<E>(self, value: i64) -> Result<Raw, E> {
                Ok(Raw::One(value.to_string()))
            }
            fn visit_u64<E>(self, value: u64) -> Result<Raw, E> {
                Ok(Raw::One(value.to_string()))
            }
            fn visit_f64<E>(self, value: f64) -> Result<Raw, E> {
                Ok(Raw::One(value.to_string()))
            }
            fn visit_str<E>(self, value: &str) -> Result<Raw, E> {
                Ok(Raw::One(value.to_owned()))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Raw, A::Error> {
                let mut values = Vec::new();
                while let Some(value) = seq.next_element()? {
                    values.push(value);
                }
                Ok(Raw::Many(values))
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Raw, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(Raw::Map(entries))
            }
        }
        deserializer.deserialize_any(Any)
    }
}

/// The JSON schema of the file, pretty-printed.
pub fn schema() -> String {
    let properties: serde_json::Map<_, _> = ROWS
        .iter()
        .map(|row| {
            let mut property = row.schema.clone();
            property["description"] = json!(row.help);
            match row.fallback {
                Fallback::Text(default) => property["default"] = default_of(row, default),
                Fallback::Absent(Some(words)) | Fallback::Of(words, _) => {
                    property["description"] = json!(format!("{} [default: {words}]", row.help));
                }
                Fallback::Absent(None) => {}
            }
            (row.name.to_owned(), property)
        })
        .collect_object();
    let schema = json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "https://mirrorlet.dev/schemas/config-file.json",
        "title": "mirrorlet config file",
        "type": ["object", "null"],
        "additionalProperties": false,
        "properties": properties,
    });
    format!("{schema:#}\n")
}

/// A default in the form the file has it in.
fn default_of(row: &SettingRow, words: &str) -> serde_json::Value {
    match (row.schema["type"].as_str(), row.arity) {
        (Some("integer" | "boolean"), _) => {
            serde_json::from_str(words).unwrap_or_else(|_| json!(words))
        }
        (_, Arity::Many(separator)) => json!(words.split(separator).collect::<Vec<_>>()),
        _ => json!(words),
    }
}

#[cfg(test)]
mod tests;
