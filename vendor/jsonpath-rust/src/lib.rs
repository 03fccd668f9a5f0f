//! The part of JSONPath (RFC 9535) that a kubeconfig's `auth-provider` needs: plain members.

use std::fmt;

use serde_json::Value;

/// A path that asks for more than members, or for none.
#[derive(Debug, PartialEq, Eq)]
pub struct Unsupported(String);

impl fmt::Display for Unsupported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:?} is more than members, as in $.credential.access_token",
            self.0
        )
    }
}

impl std::error::Error for Unsupported {}

/// Values by path.
pub trait JsonPath {
    /// The value at that path, or none.
    ///
    /// # Errors
    ///
    /// If the path is not `$` followed by members, each a dot and a name.
    fn query(&self, path: &str) -> Result<Vec<&Value>, Unsupported>;
}

impl JsonPath for Value {
    fn query(&self, path: &str) -> Result<Vec<&Value>, Unsupported> {
        let unsupported = || Unsupported(path.to_owned());
        let mut found = Some(self);
        let members = path.strip_prefix("$.").ok_or_else(unsupported)?;
        for member in members.split('.') {
            let plain = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-');
            if member.is_empty() || !member.chars().all(plain) {
                return Err(unsupported());
            }
            found = found.and_then(|value| value.get(member));
        }
        Ok(found.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn members_are_followed_and_more_is_refused() {
        let answer = json!({"credential": {"access_token": "t"}, "list": [1]});
        let query = |path| answer.query(path);
        assert_eq!(query("$.credential.access_token"), Ok(vec![&json!("t")]));
        assert_eq!(query("$.credential.none.at-all"), Ok(vec![]));
        for more in [
            "",
            "$",
            "credential",
            "$.",
            "$.a..b",
            "$.list[0]",
            "$.*",
            "$.list[?@ > 0]",
        ] {
            assert_eq!(query(more), Err(Unsupported(more.into())));
        }
    }
}
