//! The parameters of requests: their valid values, and the combinations that are allowed.
//!
//! Upstream: `apimachinery/pkg/apis/meta/internalversion/validation`,
//! `apiserver/pkg/storage/cacher`.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Map, Value, json};

use crate::status::{Cause, Status};

/// Longest name of a field manager, in characters.
const FIELD_MANAGER_MAX: usize = 128;

/// The meaning of a list's revision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VersionMatch {
    /// Exactly this one.
    Exact,
    /// This or a newer one.
    NotOlderThan,
}

/// The parameters of a list or a watch.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ListOptions {
    /// Selector of labels, as text.
    pub label_selector: String,
    /// Selector of fields, as text.
    pub field_selector: String,
    /// Whether changes are wanted instead of a list.
    pub watch: bool,
    /// The revision; none if it isn't set, and 0 for any.
    pub resource_version: Option<u64>,
    /// The meaning of a list's revision.
    pub version_match: Option<VersionMatch>,
    /// Most objects of one answer; 0 for all.
    pub limit: usize,
    /// The continue token of a paged list.
    pub token: Option<Token>,
    /// The duration of a watch in seconds; none if it isn't set, or 0.
    pub timeout_seconds: Option<u64>,
    /// Whether a watch sends bookmarks, which have the current revision.
    pub bookmarks: bool,
    /// Whether a watch begins with the objects that exist.
    pub initial_events: bool,
}

/// The parameters of a write.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct WriteOptions {
    /// Whether nothing is stored.
    pub dry_run: bool,
    /// The manager of the fields that are written, for server-side apply.
    pub field_manager: String,
    /// Whether fields of other managers may be taken over.
    pub force: bool,
    /// The meaning of unknown fields.
    pub validation: FieldValidation,
}

/// How unknown and duplicate fields of a body are treated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FieldValidation {
    /// Nothing.
    Ignore,
    /// A warning.
    #[default]
    Warn,
    /// An error.
    Strict,
}

/// The first value of each key, decoded.
pub type Query = [(String, String)];

fn value<'a>(query: &'a Query, key: &str) -> Option<&'a str> {
    let mut found = query.iter().filter(|(name, _)| name == key);
    found.next().map(|(_, value)| value.as_str())
}

fn boolean(query: &Query, key: &str) -> bool {
    value(query, key).is_some_and(|value| !matches!(value, "false" | "0" | "f" | "F" | "False"))
}

/// The limit of a list; as upstream, a negative one means none.
fn limit(query: &Query) -> Result<usize, Status> {
    let text = value(query, "limit").filter(|text| !text.is_empty());
    let number = text.map_or(Ok(0), str::parse::<i64>);
    let number = number.map_err(|_| {
        let text = text.unwrap_or_default();
        Status::invalid_option("limit", &format!("Invalid value: {text:?}: invalid number"))
    })?;
    Ok(usize::try_from(number).unwrap_or(0))
}

/// Checks the parameter `timeout` of any request: a duration in Go's format (`1m30s`).
///
/// Upstream: `apiserver/pkg/endpoints/filters/request_deadline.go`.
///
/// # Errors
/// The value is not a duration.
pub fn check_timeout(query: &Query) -> Result<(), Status> {
    let text = value(query, "timeout").unwrap_or_default();
    let mut rest = text.trim_start_matches(['+', '-']);
    let is_number = |c: char| c.is_ascii_digit() || c == '.';
    while !matches!(rest, "" | "0") {
        let number = rest.trim_start_matches(is_number);
        let unit = number.trim_start_matches(|c: char| !is_number(c));
        let digits = rest.len() - number.len();
        let name = number.strip_suffix(unit).unwrap_or_default();
        let is_unit = ["ns", "us", "µs", "μs", "ms", "s", "m", "h"].contains(&name);
        let has_digits = rest
            .get(..digits)
            .is_some_and(|number| number.parse::<f64>().is_ok());
        if !has_digits || !is_unit {
            return Err(Status::bad_request(
                "invalid timeout specified in the request URL",
            ));
        }
        rest = unit;
    }
    Ok(())
}

/// Converts the delete options in a request's parameters to the form of a body.
///
/// Upstream: `Convert_url_Values_To_v1_DeleteOptions` of
/// `apimachinery/pkg/apis/meta/v1/conversion.go`, which takes any text but `false` and `0` for true.
///
/// # Errors
/// A parameter is malformed.
pub fn of_deletion(query: &Query) -> Result<Value, Status> {
    let malformed = |key: &str, text: &str, form: &str| {
        let message = format!("the parameter {key} is invalid: {text:?} is not {form}");
        Err(Status::bad_request(message))
    };
    let mut options = Map::new();
    if let Some(text) = value(query, "gracePeriodSeconds") {
        let Ok(seconds) = text.parse::<i64>() else {
            return malformed("gracePeriodSeconds", text, "an integer");
        };
        options.insert("gracePeriodSeconds".to_owned(), seconds.into());
    }
    if let Some(text) = value(query, "orphanDependents") {
        let orphans = match text.to_ascii_lowercase().as_str() {
            "true" | "1" => true,
            "false" | "0" => false,
            _ => return malformed("orphanDependents", text, "true or false"),
        };
        options.insert("orphanDependents".to_owned(), orphans.into());
    }
    if let Some(policy) = value(query, "propagationPolicy") {
        options.insert("propagationPolicy".to_owned(), policy.into());
    }
    for key in ["uid", "resourceVersion"] {
        if let Some(text) = value(query, key).filter(|text| !text.is_empty()) {
            let preconditions = options.entry("preconditions").or_insert_with(|| json!({}));
            preconditions[key] = text.into();
        }
    }
    Ok(options.into())
}

impl ListOptions {
    /// Reads the parameters.
    ///
    /// # Errors
    /// A parameter is malformed, or two can't be combined.
    pub fn parse(query: &Query) -> Result<Self, Status> {
        let text = |key: &str| value(query, key).unwrap_or_default().to_owned();
        let number = |key: &str| match value(query, key) {
            None | Some("") => Ok(None),
            Some(text) => text.parse::<u64>().map(Some).map_err(|_| {
                Status::invalid_option(key, &format!("Invalid value: {text:?}: invalid number"))
            }),
        };
        let version_match = match value(query, "resourceVersionMatch") {
            None | Some("") => None,
            Some("Exact") => Some(VersionMatch::Exact),
            Some("NotOlderThan") => Some(VersionMatch::NotOlderThan),
            Some(other) => {
                let message = format!(
                    "Unsupported value: {other:?}: supported values: \"Exact\", \"NotOlderThan\""
                );
                return Err(Status::invalid_option("resourceVersionMatch", &message));
            }
        };
        let options = Self {
            label_selector: text("labelSelector"),
            field_selector: text("fieldSelector"),
            watch: boolean(query, "watch"),
            resource_version: number("resourceVersion")?,
            version_match,
            limit: limit(query)?,
            token: match value(query, "continue") {
                None | Some("") => None,
                Some(text) => Some(Token::parse(text)?),
            },
            timeout_seconds: number("timeoutSeconds")?.filter(|seconds| *seconds > 0),
            bookmarks: boolean(query, "allowWatchBookmarks"),
            initial_events: boolean(query, "sendInitialEvents"),
        };
        options.check(value(query, "sendInitialEvents").is_some())?;
        Ok(options)
    }

    fn check(&self, says_initial_events: bool) -> Result<(), Status> {
        let field = "resourceVersionMatch";
        let forbidden = |field, why: &str| {
            let message = format!("Forbidden: {why}");
            Err(Status::invalid_option(field, &message))
        };
        if self.watch {
            return match (says_initial_events, self.version_match) {
                (true, Some(VersionMatch::NotOlderThan)) | (false, None) => Ok(()),
                (true, _) => forbidden(
                    field,
                    "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan",
                ),
                (false, Some(_)) => forbidden(
                    field,
                    "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided",
                ),
            };
        }
        if says_initial_events {
            return forbidden(
                "sendInitialEvents",
                "sendInitialEvents is forbidden for list",
            );
        }
        if self.token.is_some() {
            if self.version_match.is_some() {
                return forbidden(
                    field,
                    "resourceVersionMatch is forbidden when continue is provided",
                );
            }
            if self.resource_version.is_some_and(|version| version != 0) {
                return Err(Status::bad_request(
                    "specifying resource version is not allowed when using continue",
                ));
            }
        }
        match (self.version_match, self.resource_version) {
            (Some(_), None) => forbidden(
                field,
                "resourceVersionMatch is forbidden unless resourceVersion is provided",
            ),
            (Some(VersionMatch::Exact), Some(0)) => forbidden(
                field,
                "resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"",
            ),
            _ => Ok(()),
        }
    }
}

/// The continue token of a paged list. Clients return it unchanged.
///
/// Upstream: `apiserver/pkg/storage/continue.go`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Token {
    /// The revision of the first page; none to continue with the current objects.
    pub revision: Option<u64>,
    /// Namespace and name of the last object that was returned.
    pub after: (String, String),
}

/// The form of tokens; another program may have others.
const TOKEN_VERSION: &str = "meta.k8s.io/v1";

impl Token {
    /// The text that clients hand back.
    pub fn text(&self) -> String {
        let revision = match self.revision {
            Some(revision) => json!(revision),
            None => json!(-1),
        };
        let (namespace, name) = &self.after;
        let token =
            json!({"v": TOKEN_VERSION, "rv": revision, "start": format!("{namespace}/{name}")});
        URL_SAFE_NO_PAD.encode(token.to_string())
    }

    fn parse(text: &str) -> Result<Self, Status> {
        let invalid = |why: &str| Status::bad_request(format!("continue key is not valid: {why}"));
        let bytes = URL_SAFE_NO_PAD
            .decode(text)
            .map_err(|error| invalid(&error.to_string()))?;
        let token: Value =
            serde_json::from_slice(&bytes).map_err(|error| invalid(&error.to_string()))?;
        if token["v"] != TOKEN_VERSION {
            return Err(invalid("server does not recognize this encoded version"));
        }
        let revision = match token["rv"].as_i64() {
            Some(-1) => None,
            Some(revision) if revision > 0 => u64::try_from(revision).ok(),
            Some(_) | None => return Err(invalid("incorrect encoded start resourceVersion")),
        };
        let start = token["start"].as_str().and_then(|s| s.split_once('/'));
        let (namespace, name) = start.ok_or_else(|| invalid("the start is missing"))?;
        Ok(Self {
            revision,
            after: (namespace.to_owned(), name.to_owned()),
        })
    }
}

impl WriteOptions {
    /// Reads the parameters.
    ///
    /// # Errors
    /// A parameter has an unknown value.
    pub fn parse(query: &Query) -> Result<Self, Status> {
        let dry_run = match value(query, "dryRun") {
            None | Some("") => false,
            Some("All") => true,
            Some(other) => {
                let cause = Cause {
                    reason: "FieldValueNotSupported",
                    message: format!("Unsupported value: {other:?}: supported values: \"All\""),
                    field: "dryRun".to_owned(),
                };
                return Err(Status::invalid_options("WriteOptions", cause));
            }
        };
        let validation = match value(query, "fieldValidation") {
            None | Some("" | "Warn") => FieldValidation::Warn,
            Some("Strict") => FieldValidation::Strict,
            Some("Ignore") => FieldValidation::Ignore,
            Some(other) => {
                let message = format!("Unsupported value: {other:?}");
                return Err(Status::invalid_option("fieldValidation", &message));
            }
        };
        let field_manager = value(query, "fieldManager").unwrap_or_default().to_owned();
        if field_manager.chars().count() > FIELD_MANAGER_MAX {
            let message = format!("Too long: may not be more than {FIELD_MANAGER_MAX} characters");
            return Err(Status::invalid_option("fieldManager", &message));
        }
        Ok(Self {
            dry_run,
            field_manager,
            force: boolean(query, "force"),
            validation,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(text: &str) -> Result<ListOptions, u16> {
        let query: Vec<_> = text
            .split('&')
            .filter_map(|pair| pair.split_once('='))
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .collect();
        ListOptions::parse(&query).map_err(|status| status.code)
    }

    #[test]
    fn a_timeout_is_a_duration_of_go() {
        for (text, is_one) in [
            ("", true),
            ("0", true),
            ("0s", true),
            ("34s", true),
            ("1m30.5s", true),
            ("-1.5h", true),
            ("10µs", true),
            ("invalid", false),
            ("30", false),
            ("s", false),
            ("1d", false),
            ("1m30", false),
            ("..s", false),
        ] {
            let query = vec![("timeout".to_owned(), text.to_owned())];
            let code = check_timeout(&query).map_err(|status| status.code);
            assert_eq!(code, if is_one { Ok(()) } else { Err(400) }, "{text:?}");
        }
    }

    #[test]
    fn a_watch_of_no_seconds_has_the_length_of_one_that_says_none() {
        for (text, seconds) in [
            ("watch=true", None),
            ("watch=true&timeoutSeconds=", None),
            ("watch=true&timeoutSeconds=0", None),
            ("watch=true&timeoutSeconds=7", Some(7)),
        ] {
            assert_eq!(list(text).map(|o| o.timeout_seconds), Ok(seconds), "{text}");
        }
    }

    #[test]
    fn the_options_of_a_deletion_may_be_parameters() {
        for (text, expected) in [
            ("", Ok(json!({}))),
            ("dryRun=All&labelSelector=a", Ok(json!({}))),
            (
                "gracePeriodSeconds=0&propagationPolicy=Orphan",
                Ok(json!({"gracePeriodSeconds": 0, "propagationPolicy": "Orphan"})),
            ),
            (
                "orphanDependents=True",
                Ok(json!({"orphanDependents": true})),
            ),
            ("orphanDependents=0", Ok(json!({"orphanDependents": false}))),
            (
                "uid=u-1&resourceVersion=7",
                Ok(json!({"preconditions": {"uid": "u-1", "resourceVersion": "7"}})),
            ),
            ("gracePeriodSeconds=soon", Err(400)),
            ("gracePeriodSeconds=", Err(400)),
            ("gracePeriodSeconds=1.5", Err(400)),
            ("orphanDependents=maybe", Err(400)),
        ] {
            let query: Vec<_> = text
                .split('&')
                .filter_map(|pair| pair.split_once('='))
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .collect();
            let options = of_deletion(&query).map_err(|status| status.code);
            // embedded 62
            assert_eq!(options, expected, "{text}");
        }
    }

    #[test]
    fn what_does_not_go_together_is_refused() {
        let token = Token {
            revision: Some(7),
            after: ("a".to_owned(), "web".to_owned()),
        };
        for (text, expected) in [
            ("limit=500", Ok(None)),
            ("resourceVersion=0&limit=500", Ok(Some(0))),
            (
                "resourceVersion=12&resourceVersionMatch=Exact",
                Ok(Some(12)),
            ),
            ("resourceVersionMatch=Exact", Err(422)),
            ("resourceVersion=0&resourceVersionMatch=Exact", Err(422)),
            ("resourceVersion=1&resourceVersionMatch=Other", Err(422)),
            ("resourceVersion=x", Err(422)),
            ("sendInitialEvents=true", Err(422)),
            ("watch=true&sendInitialEvents=true", Err(422)),
            (
                "watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan",
                Ok(None),
            ),
            ("watch=1&resourceVersionMatch=NotOlderThan", Err(422)),
            ("continue=abc", Err(400)),
            ("limit=x", Err(422)),
            ("limit=-1", Ok(None)),
            ("continue=TOKEN&limit=1", Ok(None)),
            ("continue=TOKEN&resourceVersion=0", Ok(Some(0))),
            ("continue=TOKEN&resourceVersion=7", Err(400)),
            (
                "continue=TOKEN&resourceVersion=0&resourceVersionMatch=NotOlderThan",
                Err(422),
            ),
        ] {
            let text = &text.replace("TOKEN", &token.text());
            // embedded 19
            assert_eq!(list(text).map(|o| o.resource_version), expected, "{text}");
        }
        for token in [
            token.clone(),
            Token {
                revision: None,
                ..token
            },
        ] {
            // embedded 28
            assert_eq!(Token::parse(&token.text()).unwrap(), token);
        }
        let dry = |value: &str| {
            let query = [("dryRun".to_owned(), value.to_owned())];
            WriteOptions::parse(&query)
                .map(|o| o.dry_run)
                .map_err(|e| e.code)
        };
        assert_eq!(dry("All"), Ok(true));
        assert_eq!(dry("Some"), Err(422));
    }
}
