//! Label selectors as `kubectl -l` accepts them.
//!
//! Upstream: `Parse` of `k8s.io/apimachinery/pkg/labels/selector.go`, without `>` and `<`.

use std::collections::BTreeMap;
use std::str::FromStr;

use crate::api::meta::LabelSelectorRequirement;
use crate::api::requirement::{DOES_NOT_EXIST, EXISTS, IN, NOT_IN, meets};
use crate::manifest::{is_label_value, is_qualified};

/// A set of requirements. A pod is selected if its labels meet all of them.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct LabelSelector(Vec<LabelSelectorRequirement>);

/// A text that is not a label selector.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not a requirement for labels; use key=value, key!=value, key, !key, key in (a,b) or key notin (a,b)"
)]
pub struct NotASelector(pub String);

impl LabelSelector {
    /// Whether the labels meet every requirement.
    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        self.is_met(|key| labels.get(key).map(String::as_str))
    }

    /// Whether labels meet every requirement; `value` returns the value of a label by its key.
    pub fn is_met<'a>(&self, value: impl Fn(&str) -> Option<&'a str>) -> bool {
        self.0.iter().all(|requirement| {
            let values = requirement.values.as_deref().unwrap_or_default();
            meets(&requirement.operator, values, value(&requirement.key))
        })
    }
}

impl FromStr for LabelSelector {
    type Err = NotASelector;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.trim().is_empty() {
            return Ok(Self::default());
        }
        let requirements = parts(text).into_iter().map(|part| {
            let requirement = requirement(part.trim());
            requirement.ok_or_else(|| NotASelector(part.trim().to_owned()))
        });
        requirements.collect::<Result<_, _>>().map(Self)
    }
}

/// The requirements of a selector: what commas separate, except those within parentheses.
fn parts(text: &str) -> Vec<&str> {
    let mut is_within = false;
    text.split(|c: char| {
        match c {
            '(' => is_within = true,
            ')' => is_within = false,
            _ => {}
        }
        c == ',' && !is_within
    })
    .collect()
}

fn requirement(text: &str) -> Option<LabelSelectorRequirement> {
    let (key, operator, values) = if let Some(key) = text.strip_prefix('!') {
        (key, DOES_NOT_EXIST, None)
    } else if let Some((head, values)) = text.split_once('(') {
        let values = values.strip_suffix(')')?.split(',');
        let values = values.map(value).collect::<Option<Vec<_>>>()?;
        let (key, operator) = head.trim_end().rsplit_once(char::is_whitespace)?;
        match operator {
            "in" => (key, IN, Some(values)),
            "notin" => (key, NOT_IN, Some(values)),
            _ => return None,
        }
    } else if let Some((key, one)) = text.split_once("!=") {
        (key, NOT_IN, Some(vec![value(one)?]))
    } else if let Some((key, one)) = text.split_once("==").or_else(|| text.split_once('=')) {
        (key, IN, Some(vec![value(one)?]))
    } else {
        (text, EXISTS, None)
    };
    let key = key.trim();
    is_qualified(key).then(|| LabelSelectorRequirement {
        key: key.to_owned(),
        operator: operator.to_owned(),
        values,
    })
}

fn value(text: &str) -> Option<String> {
    let text = text.trim();
    is_label_value(text).then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_selected_as_kubectl_selects_them() {
        let labels = [("app", "web"), ("tier", ""), ("example.com/zone", "a")];
        let labels = labels.map(|(key, value)| (key.to_owned(), value.to_owned()));
        let labels = BTreeMap::from(labels);
        for (text, expected) in [
            ("", true),
            ("app=web", true),
            ("app==web", true),
            (" app = web ", true),
            ("app=db", false),
            ("app!=db", true),
            ("app!=web", false),
            // A label that is not there differs from every value.
            ("other!=x", true),
            ("other=", false),
            ("tier=", true),
            ("tier", true),
            ("other", false),
            ("!other", true),
            ("! app", false),
            ("app in (web, db)", true),
            ("app in(db)", false),
            ("app notin (db,cache)", true),
            ("app notin (web)", false),
            ("other notin (web)", true),
            ("tier in (,x)", true),
            ("app=web,example.com/zone=a,!other", true),
            ("app in (web,db),tier=x", false),
        ] {
            let selector: LabelSelector = text.parse().unwrap();
            assert_eq!(selector.matches(&labels), expected, "{text:?}");
        }
    }

    #[test]
    fn what_is_no_selector_is_refused_by_its_requirement() {
        for (text, wrong) in [
            ("app=web,", ""),
            ("app=w b", "app=w b"),
            ("a=b,app web", "app web"),
            ("=web", "=web"),
            ("app in web", "app in web"),
            ("app in (web", "app in (web"),
            ("app of (web)", "app of (web)"),
            ("in (web)", "in (web)"),
            ("a b in (web)", "a b in (web)"),
            ("-app", "-app"),
            ("app=a=b", "app=a=b"),
            ("app>1", "app>1"),
        ] {
            let error = text.parse::<LabelSelector>().unwrap_err();
            assert_eq!(error, NotASelector(wrong.to_owned()), "{text:?}");
        }
    }

    proptest::proptest! {
        #[test]
        fn no_text_makes_the_parser_panic(text in ".{0,40}") {
            let _ = text.parse::<LabelSelector>();
        }
    }
}
