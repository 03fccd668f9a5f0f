//! `$(VAR)` expansion of commands, arguments and env values.
//!
//! Upstream: `third_party/forked/golang/expansion/expand.go` and `ExpandContainerCommandAndArgs`
//! of `pkg/kubelet/container/helpers.go`, which have no bound.

use std::collections::BTreeMap;

/// Variables by name.
pub type Variables = BTreeMap<String, String>;

/// Maximum length of an expanded string: Linux's limit for one argument (`MAX_ARG_STRLEN` with pages of
/// 4 KiB). Otherwise a manifest of 2 KB could expand to gigabytes.
pub const STRING_MAX: usize = 128 << 10;

/// Maximum total size of a container's environment and command in bytes: Linux's limit with the usual
/// stack of 8 MiB (a quarter of it).
pub const TOTAL_MAX: usize = 2 << 20;

/// The kernel's overhead per string: its terminator, and a pointer to it.
const STRING_OVERHEAD: usize = 1 + size_of::<u64>();

/// Most missing variables that an error names.
const MISSING_MAX: usize = 8;

/// A string would be longer than [`STRING_MAX`] once expanded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooLong;

/// An expansion that exceeds the limits for a process. Names positions, never values.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ExpandError {
    /// One string is too long.
    #[error("{place} is longer than {STRING_MAX} bytes once expanded")]
    String {
        /// For example `args[2]`.
        place: String,
    },
    /// All of them together are.
    #[error("environment and command exceed {TOTAL_MAX} bytes in total at {place}")]
    Total {
        /// The first that is too much.
        place: String,
    },
}

/// Bytes that a container's environment and command may still take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget(usize);

impl Default for Budget {
    fn default() -> Self {
        Self(TOTAL_MAX)
    }
}

impl Budget {
    /// Takes the bytes of a string of that length at position `place`.
    ///
    /// # Errors
    /// There is no room for it.
    pub fn take(
        &mut self,
        bytes: usize,
        place: impl FnOnce() -> String,
    ) -> Result<(), ExpandError> {
        let left = self.0.checked_sub(bytes.saturating_add(STRING_OVERHEAD));
        self.0 = left.ok_or_else(|| ExpandError::Total { place: place() })?;
        Ok(())
    }

    /// Releases the bytes of a string of that length.
    pub fn give_back(&mut self, bytes: usize) {
        self.0 = (self.0 + bytes + STRING_OVERHEAD).min(TOTAL_MAX);
    }
}

/// Replaces every `$(NAME)` of a known name by its value, once; `$$` becomes `$`. Everything else,
/// including unknown names and an unclosed `$(`, stays as it is.
///
/// # Errors
/// The result would be longer than [`STRING_MAX`].
pub fn expand<'v>(
    text: &str,
    mut value_of: impl FnMut(&str) -> Option<&'v str>,
) -> Result<String, TooLong> {
    let mut out = String::with_capacity(text.len().min(STRING_MAX));
    let mut push = |piece: &str| {
        if piece.len() > STRING_MAX - out.len() {
            return Err(TooLong);
        }
        out.push_str(piece);
        Ok(())
    };
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        push(&rest[..at])?;
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix('$') {
            push("$")?;
            rest = after;
        } else if let Some(after) = rest.strip_prefix('(') {
            if let Some(end) = after.find(')') {
                let name = &after[..end];
                if let Some(value) = value_of(name) {
                    push(value)?;
                } else {
                    push("$(")?;
                    push(name)?;
                    push(")")?;
                }
                rest = &after[end + 1..];
            } else {
                // No later one is closed, either.
                push("$(")?;
                push(&after.replace("$$", "$"))?;
                rest = "";
            }
        } else {
            push("$")?;
        }
    }
    push(rest)?;
    Ok(out)
}

/// Like [`expand`] for `subPathExpr`: an unknown or empty variable is an error.
///
/// # Errors
/// The first missing variables.
pub fn expand_strict(text: &str, variables: &Variables) -> Result<String, String> {
    let mut missing = Vec::new();
    let expanded = expand(text, |name| {
        let value = variables.get(name).filter(|value| !value.is_empty());
        if value.is_none() && missing.len() < MISSING_MAX {
            missing.push(name.to_owned());
        }
        value.map(String::as_str)
    });
    if !missing.is_empty() {
        return Err(format!("missing value for {}", missing.join(", ")));
    }
    expanded.map_err(|TooLong| format!("it is longer than {STRING_MAX} bytes once expanded"))
}

/// Expands the arguments of a command. `field` is their position.
///
/// # Errors
/// An argument is too long, or all of them exceed the budget.
pub fn expand_words<'v>(
    words: Option<&[String]>,
    field: &str,
    budget: &mut Budget,
    mut value_of: impl FnMut(&str) -> Option<&'v str>,
) -> Result<Vec<String>, ExpandError> {
    let words = words.unwrap_or_default().iter().enumerate();
    words
        .map(|(index, word)| {
            let place = || format!("{field}[{index}]");
            let expanded = expand(word, &mut value_of)
                .map_err(|TooLong| ExpandError::String { place: place() })?;
            budget.take(expanded.len(), place)?;
            Ok(expanded)
        })
        .collect()
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

    fn expanded(text: &str) -> Result<String, TooLong> {
        let known = variables();
        expand(text, |name| known.get(name).map(String::as_str))
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
            ("$(A)$(A$$$($$$x$", "a$(A$$($$x$"),
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
            // docker 3
            assert_eq!(expanded(text).as_deref(), Ok(expected), "{text:?}");
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
            Err("missing value for NO, EMPTY".to_owned())
        );
        let many = (0..99).map(|n| format!("$(N{n})")).collect::<Vec<_>>();
        assert_eq!(
            expand_strict(&many.concat(), &variables()),
            Err("missing value for N0, N1, N2, N3, N4, N5, N6, N7".to_owned())
        );
    }

    #[test]
    fn a_string_is_as_long_as_an_argument_may_be() {
        let value = "x".repeat(STRING_MAX / 4);
        let known = Variables::from([("V".to_owned(), value)]);
        for (text, fits) in [
            ("$(V)$(V)$(V)$(V)", true),
            ("$(V)$(V)$(V)$(V).", false),
            (".$(V)$(V)$(V)$(V)", false),
        ] {
            let expanded = expand(text, |name| known.get(name).map(String::as_str));
            // tenants H1
            assert_eq!(expanded.is_ok(), fits, "{text}");
            assert_eq!(expand_strict(text, &known).is_ok(), fits, "{text}");
        }
        // An expansion to terabytes ends at the first string that is too long.
        let mut budget = Budget::default();
        let words = vec!["$(V)".repeat(1 << 18); 1 << 10];
        let failed = expand_words(Some(&words), "args", &mut budget, |_| Some(&known["V"]));
        let problem = "args[0] is longer than 131072 bytes once expanded";
        assert_eq!(failed.unwrap_err().to_string(), problem);
    }

    #[test]
    fn words_share_a_budget() {
        let value = "x".repeat(STRING_MAX - STRING_OVERHEAD);
        let words = vec!["$(V)".to_owned(); 17];
        let all = |count: usize| {
            let mut budget = Budget::default();
            expand_words(Some(&words[..count]), "args", &mut budget, |_| Some(&value))
        };
        assert_eq!(all(16).unwrap().len(), 16);
        let problem = "environment and command exceed 2097152 bytes in total at args[16]";
        // tenants H1
        assert_eq!(all(17).unwrap_err().to_string(), problem);
    }

    proptest! {
        #[test]
        fn texts_without_a_dollar_stay(text in "[^$]{0,40}") {
            prop_assert_eq!(expanded(&text), Ok(text));
        }

        #[test]
        fn doubling_every_dollar_quotes_any_text(text in "[$()ABx]{0,40}") {
            let quoted = text.replace('$', "$$");
            // docker 3
            prop_assert_eq!(expanded(&quoted), Ok(text));
        }
    }
}
