//! Values that are written as words: commands, durations, sizes.

use std::time::Duration;

use mirrorlet_core::api::quantity::{binary_text, milli_text};

/// The words of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Words {
    pub(crate) words: Vec<String>,
    /// The shell operator that ended the command. The text after it is not part of the command.
    pub(crate) operator: Option<char>,
}

/// The reason why a command can't be split.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unsplit {
    /// A quote, a backtick or a `$(` is not closed, or a backslash ends the text.
    Open,
    /// A parenthesis without quotes that isn't that of `$(…)`.
    Parenthesis,
}

impl Unsplit {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Open => "a quote of the command is not closed",
            Self::Parenthesis => "a parenthesis of the command is not in quotes",
        }
    }
}

/// The quoting or substitution that contains a character of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Within {
    Nothing,
    Single,
    Double,
    Backtick,
    /// `$(…)`
    Substitution,
}

/// Splits a command into arguments. Nothing is expanded or run: `$(…)` and backticks stay as they are,
/// each within one argument, and a shell operator ends the command.
///
/// Upstream: `ShellCommand` of compose-go, which is `Parse` of `mattn/go-shellwords` 1.0.12.
pub(crate) fn split(command: &str) -> Result<Words, Unsplit> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut within = Within::Nothing;
    let mut operator = None;
    let mut chars = command.chars();
    while let Some(c) = chars.next() {
        match (within, c) {
            (Within::Nothing, ' ' | '\t' | '\r' | '\n') => {
                words.extend(word.take());
                continue;
            }
            (Within::Nothing, ';' | '&' | '|' | '<' | '>') => {
                // `2>` is an operator, too.
                let is_number = |word: &String| word.starts_with(|c: char| c.is_ascii_digit());
                word = word.filter(|word| c != '>' || !is_number(word));
                operator = Some(c);
                break;
            }
            (Within::Nothing | Within::Double | Within::Backtick | Within::Substitution, '\\') => {
                let c = match chars.next().ok_or(Unsplit::Open)? {
                    't' => '\t',
                    'n' => '\n',
                    c => c,
                };
                word.get_or_insert_default().push(c);
                continue;
            }
            (Within::Nothing, '\'' | '"') => {
                let is_single = c == '\'';
                within = if is_single {
                    Within::Single
                } else {
                    Within::Double
                };
                word.get_or_insert_default();
                continue;
            }
            (Within::Single, '\'') | (Within::Double, '"') => {
                within = Within::Nothing;
                continue;
            }
            (Within::Nothing, '(') if word.as_ref().is_some_and(|word| word.ends_with('$')) => {
                within = Within::Substitution;
            }
            (Within::Nothing, '(' | ')') | (Within::Substitution, '(') => {
                return Err(Unsplit::Parenthesis);
            }
            (Within::Nothing, '`') => within = Within::Backtick,
            (Within::Substitution, ')') | (Within::Backtick, '`') => within = Within::Nothing,
            _ => {}
        }
        word.get_or_insert_default().push(c);
    }
    words.extend(word);
    if within == Within::Nothing {
        Ok(Words { words, operator })
    } else {
        Err(Unsplit::Open)
    }
}

/// Parses a duration, `1m30s` or `500ms`; a number without a unit is in seconds.
pub(crate) fn duration(text: &str) -> Option<Duration> {
    let text = text.trim();
    if let Ok(seconds) = text.parse::<u64>() {
        return Some(Duration::from_secs(seconds));
    }
    let mut total = 0.0_f64;
    let mut rest = text;
    while !rest.is_empty() {
        let number = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let value: f64 = rest[..number].parse().ok()?;
        let unit_end = rest[number..]
            .find(|c: char| c.is_ascii_digit())
            .map_or(rest.len(), |end| number + end);
        let seconds = match &rest[number..unit_end] {
            "w" => 604_800.0,
            "d" => 86_400.0,
            "h" => 3600.0,
            "m" => 60.0,
            "s" => 1.0,
            "ms" => 1e-3,
            "us" | "µs" => 1e-6,
            "ns" => 1e-9,
            _ => return None,
        };
        total += value * seconds;
        rest = &rest[unit_end..];
    }
    (!text.is_empty()).then(|| Duration::try_from_secs_f64(total).ok())?
}

/// Reads a duration as whole seconds, rounded up.
pub(crate) fn seconds(text: &str) -> Option<i64> {
    let duration = duration(text)?;
    let whole = duration.as_secs() + u64::from(duration.subsec_nanos() > 0);
    i64::try_from(whole).ok()
}

/// Parses a size, `512m` or `1.5gb`, into bytes. Units are powers of 1024.
pub(crate) fn bytes(text: &str) -> Option<i64> {
    let text = text.trim().to_ascii_lowercase();
    let end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let number: f64 = text[..end].parse().ok()?;
    let factor = match text[end..].trim() {
        "" | "b" => 1.0,
        "k" | "kb" | "kib" => 1024.0,
        "m" | "mb" | "mib" => 1024.0 * 1024.0,
        "g" | "gb" | "gib" => 1024.0 * 1024.0 * 1024.0,
        "t" | "tb" | "tib" => 1024.0 * 1024.0 * 1024.0 * 1024.0,
        _ => return None,
    };
    #[expect(clippy::cast_possible_truncation, reason = "the bound is checked")]
    (number * factor < 9e15).then_some((number * factor) as i64)
}

/// A size as a quantity: `512Mi` where it is a whole number of units.
pub(crate) fn quantity(bytes: i64) -> String {
    binary_text(bytes.unsigned_abs())
}

/// A number of CPUs in thousandths.
pub(crate) fn milli(number: f64) -> Option<i64> {
    if !(0.0..1e6).contains(&number) {
        return None;
    }
    #[expect(clippy::cast_possible_truncation, reason = "the bound is checked")]
    Some((number * 1000.0).round() as i64)
}

/// Thousandths of a CPU as a quantity: `500m`, `2`.
pub(crate) fn cpus(milli: i64) -> String {
    milli_text(milli.unsigned_abs())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Cases of go-shellwords' own tests, and of its escapes and operators.
    #[test]
    fn commands_are_split_as_compose_splits_them() {
        for (command, words) in [
            ("", &[][..]),
            ("a b  c", &["a", "b", "c"]),
            ("a\tb\r\nc\u{a0}d", &["a", "b", "c\u{a0}d"]),
            ("var --bar=\"baz\"", &["var", "--bar=baz"]),
            ("var \"--bar='baz'\"", &["var", "--bar='baz'"]),
            ("var --bar=`baz`", &["var", "--bar=`baz`"]),
            (r#"var "--bar=\"baz'""#, &["var", "--bar=\"baz'"]),
            (r#"var "--bar=\'baz\'""#, &["var", "--bar='baz'"]),
            (r"var --bar='\'", &["var", r"--bar=\"]),
            ("var  --\"bar baz\"", &["var", "--bar baz"]),
            ("a \"   \" '   '", &["a", "   ", "   "]),
            ("foo \"\" bar ''", &["foo", "", "bar", ""]),
            (r"foo bar\  ", &["foo", "bar "]),
            (r#"a\tb "c\nd" 'e\tf' \g"#, &["a\tb", "c\nd", r"e\tf", "g"]),
            (r#"echo $(echo "foo")"#, &["echo", r#"$(echo "foo")"#]),
            ("echo $(`echo1)", &["echo", "$(`echo1)"]),
            ("echo `go version`x", &["echo", "`go version`x"]),
            (
                "echo \"a;b\" 'c|d' $(e && f) \\;",
                &["echo", "a;b", "c|d", "$(e && f)", ";"],
            ),
            ("echo \"(a)\" '(b)'", &["echo", "(a)", "(b)"]),
        ] {
            let found = split(command).unwrap();
            assert_eq!(found.words, words, "{command}");
            assert_eq!(found.operator, None, "{command}");
        }
        for (command, words, operator) in [
            ("echo foo; seq 1 10", &["echo", "foo"][..], ';'),
            ("ls -la 2>foo", &["ls", "-la"], '>'),
            ("ls x>foo", &["ls", "x"], '>'),
            ("a&&b", &["a"], '&'),
            ("| b 'c", &[], '|'),
            ("a < b", &["a"], '<'),
        ] {
            let found = split(command).unwrap();
            assert_eq!(found.words, words, "{command}");
            assert_eq!(found.operator, Some(operator), "{command}");
        }
        for (command, error) in [
            ("foo '", Unsplit::Open),
            ("foo \"", Unsplit::Open),
            ("foo `", Unsplit::Open),
            ("echo $(echo1", Unsplit::Open),
            ("foo \\", Unsplit::Open),
            ("echo $ (echo1", Unsplit::Parenthesis),
            ("echo (echo1", Unsplit::Parenthesis),
            ("echo )echo1", Unsplit::Parenthesis),
        ] {
            assert_eq!(split(command), Err(error), "{command}");
        }
    }

    #[test]
    fn durations_and_sizes_are_read() {
        for (text, found) in [
            ("1m30s", Some(90)),
            ("500ms", Some(1)),
            ("2h", Some(7200)),
            ("1.5s", Some(2)),
            ("10", Some(10)),
            ("", None),
            ("5x", None),
        ] {
            assert_eq!(seconds(text), found, "{text}");
        }
        for (text, found) in [
            ("512m", Some("512Mi")),
            ("1.5gb", Some("1536Mi")),
            ("64M", Some("64Mi")),
            ("1t", Some("1Ti")),
            ("1000", Some("1000")),
            ("x", None),
        ] {
            assert_eq!(bytes(text).map(quantity).as_deref(), found, "{text}");
        }
        assert_eq!(milli(0.5).map(cpus).as_deref(), Some("500m"));
        assert_eq!(milli(2.0).map(cpus).as_deref(), Some("2"));
        assert_eq!(milli(-1.0), None);
    }
}
