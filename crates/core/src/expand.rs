//! `$(VAR)` expansion of commands, arguments and env values.
//!
//! Upstream: `third_party/forked/golang/expansion/expand.go` and `ExpandContainerCommandAndArgs`
//! of `pkg/kubelet/container/helpers.go`.

use std::collections::BTreeMap;

use crate::api::core::Container;

/// Variables by name.
pub type Variables = BTreeMap<String, String>;

/// Replaces every `$(NAME)` of a known name by its value, once; `$$` becomes `$`. Anything else,
/// an unknown name and an unclosed `$(` included, stays as it is.
#[must_use]
pub fn expand(text: &str, variables: &Variables) -> String {
    expand_with(text, |name| variables.get(name).cloned())
}

/// Like [`expand`] for `subPathExpr`: an unknown or empty variable is an error, which lists the
/// names of all of them.
pub fn expand_strict(text: &str, variables: &Variables) -> Result<String, Vec<String>> {
    let mut missing = Vec::new();
    let expanded = expand_with(text, |name| {
        let value = variables.get(name).filter(|value| !value.is_empty());
        if value.is_none() {
            missing.push(name.to_owned());
        }
        value.cloned()
    });
    if missing.is_empty() {
        Ok(expanded)
    } else {
        Err(missing)
    }
}

/// A container's `command` and `args`, expanded.
#[must_use]
pub fn expand_container_command_and_args(
    container: &Container,
    variables: &Variables,
) -> (Vec<String>, Vec<String>) {
    let all = |texts: &Option<Vec<String>>| {
        texts
            .iter()
            .flatten()
            .map(|text| expand(text, variables))
            .collect()
    };
    (all(&container.command), all(&container.args))
}

/// Like [`expand`], with values from wherever they are.
pub(crate) fn expand_with(text: &str, mut value_of: impl FnMut(&str) -> Option<String>) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix('$') {
            out.push('$');
            rest = after;
        } else if let Some(after) = rest.strip_prefix('(') {
            if let Some(end) = after.find(')') {
                let name = &after[..end];
                if let Some(value) = value_of(name) {
                    out.push_str(&value);
                } else {
                    out.push_str("$(");
                    out.push_str(name);
                    out.push(')');
                }
                rest = &after[end + 1..];
            } else {
                out.push_str("$(");
                rest = after;
            }
        } else {
            out.push('$');
        }
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn variables() -> Variables {
        [
            ("A", "a"),
            ("B", "$(A)"),
            ("EMPTY", ""),
            ("VAR_A", "A"),
            ("D.d-1", "x"),
        ]
        .into_iter()
        .map(|(k, v)| (k.to_owned(), v.to_owned()))
        .collect()
    }

    #[test]
    fn expansion_follows_upstream() {
        for (text, expected) in [
            ("", ""),
            ("$(A)", "a"),
            ("_$(A)_", "_a_"),
            ("$(A)$(A)", "aa"),
            ("$$(A)", "$(A)"),
            ("$$$(A)", "$a"),
            ("$$$$(A)", "$$(A)"),
            ("$(MISSING)", "$(MISSING)"),
            ("$(B)", "$(A)"),
            ("$(", "$("),
            ("$(A", "$(A"),
            ("$(A $(A)", "$(A $(A)"),
            ("$A", "$A"),
            ("$", "$"),
            ("x$", "x$"),
            ("$$", "$"),
            ("$()", "$()"),
            ("$(EMPTY)!", "!"),
            ("$(D.d-1)", "x"),
            ("$x$(A)", "$xa"),
            ("é$(A)é", "éaé"),
            ("$($(A))", "$($(A))"),
            ("$(VAR_A))", "A)"),
        ] {
            assert_eq!(expand(text, &variables()), expected, "{text:?}");
        }
    }

    #[test]
    fn strict_expansion_names_what_is_missing_or_empty() {
        assert_eq!(
            expand_strict("x/$(A)/$$(B)", &variables()).as_deref(),
            Ok("x/a/$(B)")
        );
        assert_eq!(
            expand_strict("$(NO)/$(A)/$(EMPTY)", &variables()),
            Err(vec!["NO".to_owned(), "EMPTY".to_owned()])
        );
    }

    #[test]
    fn command_and_args_are_expanded() {
        let container = Container {
            command: Some(vec!["$(A)".into(), "$(NO)".into()]),
            args: Some(vec!["$$(A)".into()]),
            ..Container::default()
        };
        assert_eq!(
            expand_container_command_and_args(&container, &variables()),
            (
                vec!["a".to_owned(), "$(NO)".to_owned()],
                vec!["$(A)".to_owned()]
            )
        );
    }

    proptest! {
        #[test]
        fn texts_without_a_dollar_stay(text in "[^$]{0,40}") {
            prop_assert_eq!(expand(&text, &variables()), text);
        }

        #[test]
        fn doubling_every_dollar_quotes_any_text(text in "[$()ABx]{0,40}") {
            let quoted = text.replace('$', "$$");
            prop_assert_eq!(expand(&quoted, &variables()), text);
        }
    }
}
