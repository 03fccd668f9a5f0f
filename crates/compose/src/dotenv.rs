//! Files of variables: `.env`, and those of `env_file`.
//!
//! Upstream: `dotenv/parser.go` of compose-go.

use std::collections::{BTreeMap, BTreeSet};

use crate::interpolate::{Variables, Wrong, substitute};

/// A line that is not a variable, by its number from 1. Never quotes its content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BadLine {
    pub(crate) line: usize,
    pub(crate) why: String,
}

impl BadLine {
    fn new(line: usize, why: &str) -> Self {
        let why = why.to_owned();
        Self { line, why }
    }
}

/// Parses a file of variables, in order. `known` are the variables that its values may refer to, and
/// that give a name without a value its value. `before` are those of the earlier files: values may
/// refer to them as well, but `known` takes precedence. Unset variables are added to `unset`, with the
/// line of the value that refers to them, from 1.
pub(crate) fn parse(
    text: &str,
    known: &Variables,
    before: &Variables,
    unset: &mut BTreeMap<usize, BTreeSet<String>>,
) -> Result<Vec<(String, String)>, BadLine> {
    let mut found: Vec<(String, String)> = Vec::new();
    let mut scope = before.clone();
    scope.extend(known.clone());
    let mut rest = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut line = 1;
    while !rest.is_empty() {
        let (current, next) = rest.split_once('\n').unwrap_or((rest, ""));
        let trimmed = current.trim();
        if trimmed.is_empty() || trimmed.starts_with('#') {
            rest = next;
            line += 1;
            continue;
        }
        let bad = |why: &str| BadLine::new(line, why);
        let start = trimmed
            .strip_prefix("export")
            .filter(|rest| rest.starts_with(char::is_whitespace))
            .map_or(trimmed, str::trim_start);
        let name_end = start.find(['=', ':']).unwrap_or(start.len());
        let name = start[..name_end].trim_end();
        if name.is_empty() || name.contains(char::is_whitespace) {
            return Err(bad("this is not a variable: write NAME=value"));
        }
        let written = start.get(name_end + 1..).map(str::trim_start);
        let (value, after, lines) = match written {
            // A name alone takes the value that is known, if any.
            None => {
                if let Some(value) = known.get(name) {
                    found.push((name.to_owned(), value.clone()));
                }
                rest = next;
                line += 1;
                continue;
            }
            Some(value) if value.starts_with(['"', '\'']) => {
                let offset = value.as_ptr() as usize - rest.as_ptr() as usize;
                quoted(&rest[offset..]).map_err(|(before, why)| BadLine::new(line + before, why))?
            }
            Some(value) => (Value::Open(unquoted(value).to_owned()), next, 1),
        };
        let value = match value {
            Value::Raw(value) => value,
            Value::Open(value) => {
                let mut missing = BTreeSet::new();
                let found = substitute(&value, &scope, &mut missing);
                if !missing.is_empty() {
                    unset.insert(line, missing);
                }
                found.map_err(|wrong| match wrong {
                    Wrong::Required { name, .. } => bad(&format!("the variable {name} isn't set")),
                    Wrong::Invalid => {
                        bad("this is not a valid variable expression: write $$ for a $")
                    }
                })?
            }
        };
        // The environment wins over the file, and of the file the last value.
        if !known.contains_key(name) {
            scope.insert(name.to_owned(), value.clone());
        }
        found.push((name.to_owned(), value));
        rest = after;
        line += lines;
    }
    Ok(found)
}

enum Value {
    /// As it is.
    Raw(String),
    /// With variables.
    Open(String),
}

/// A value without quotes ends at a comment, which only a space and `#` begin: as in compose, a tab
/// and the beginning of the value don't.
fn unquoted(value: &str) -> &str {
    let (value, _) = value.split_once(" #").unwrap_or((value, ""));
    value.trim_end()
}

/// The reason why a value in quotes can't be read, by the number of its lines before the wrong one.
type Unquotable = (usize, &'static str);

/// A quote that nothing closes.
const NOT_CLOSED: Unquotable = (0, "the quote is not closed");

/// The value in quotes that a text begins with, the text behind its last line, and how many lines
/// it takes.
fn quoted(text: &str) -> Result<(Value, &str, usize), Unquotable> {
    let quote = text.chars().next().ok_or(NOT_CLOSED)?;
    let inner = &text[1..];
    let mut value = String::new();
    let mut chars = inner.char_indices();
    let end = loop {
        let (at, c) = chars.next().ok_or(NOT_CLOSED)?;
        if c == quote {
            break at;
        }
        if c != '\\' {
            value.push(c);
            continue;
        }
        let (_, escaped) = chars.next().ok_or(NOT_CLOSED)?;
        match escaped {
            '\'' if quote == '\'' => value.push(escaped),
            other if quote == '\'' => value.extend(['\\', other]),
            'a' => value.push('\u{7}'),
            'b' => value.push('\u{8}'),
            'f' => value.push('\u{c}'),
            'n' => value.push('\n'),
            'r' => value.push('\r'),
            't' => value.push('\t'),
            'v' => value.push('\u{b}'),
            '"' | '\\' => value.push(escaped),
            '$' => value.push_str("$$"),
            '0' => {
                for _ in 0..octal(chars.as_str(), &mut value) {
                    chars.next();
                }
            }
            other => value.extend(['\\', other]),
        }
    };
    let behind = &inner[end + 1..];
    let (behind, next) = behind.split_once('\n').unwrap_or((behind, ""));
    let breaks = inner[..end].matches('\n').count();
    let behind = behind.trim_start();
    if !behind.is_empty() && !behind.starts_with('#') {
        let why = "text follows the closing quote: write it inside the quotes, or a # before it";
        return Err((breaks, why));
    }
    let value = if quote == '\'' {
        Value::Raw(value)
    } else {
        Value::Open(value)
    };
    Ok((value, next, breaks + 1))
}

/// Adds the character whose number in octal digits is behind `\0`; returns how many digits there are.
/// As in compose-go, it needs three of them, and with others the 0 is lost.
fn octal(behind: &str, value: &mut String) -> usize {
    let behind = behind.chars().take(3);
    let digits: String = behind.take_while(char::is_ascii_digit).collect();
    let number = u8::from_str_radix(&digits, 8).ok();
    if let Some(number) = number.filter(|_| digits.len() == 3) {
        value.push(char::from(number));
    } else {
        value.push('\\');
        value.push_str(&digits);
    }
    digits.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_variables_are_read_as_compose_reads_them() {
        let known: Variables = [("HOST".to_owned(), "h".to_owned())].into();
        let text = "# comment\n\nA=1\nexport B = two words # c\nC='raw $A #x'\nD=\"$A\\n${HOST}\"\nHOST\nNOT\n\
                    E=a#b\nF=\nG: yaml\nH=\"two\nlines\"\nI=${NONE:-d}$NONE\nJ=\"a\\$b\"\n";
        let mut unset = BTreeMap::new();
        let none = Variables::new();
        let found = parse(text, &known, &none, &mut unset).unwrap();
        let found: Vec<(&str, &str)> = found.iter().map(|(n, v)| (&**n, &**v)).collect();
        assert_eq!(
            found,
            [
                ("A", "1"),
                ("B", "two words"),
                ("C", "raw $A #x"),
                ("D", "1\nh"),
                ("HOST", "h"),
                ("E", "a#b"),
                ("F", ""),
                ("G", "yaml"),
                ("H", "two\nlines"),
                ("I", "d"),
                ("J", "a$b"),
            ]
        );
        assert_eq!(
            unset,
            BTreeMap::from([(14, BTreeSet::from(["NONE".to_owned()]))])
        );
        for (text, line) in [
            ("A=1\nB C=2", 2),
            ("\nA=\"x\n\n", 2),
            ("=x", 1),
            ("A=${", 1),
        ] {
            let bad = parse(text, &known, &none, &mut unset).unwrap_err();
            assert_eq!(bad.line, line);
        }
    }

    /// The last value of a file in which all variables are set.
    fn last(text: &str, known: &Variables) -> String {
        let mut unset = BTreeMap::new();
        let found = parse(text, known, &Variables::new(), &mut unset).unwrap();
        assert_eq!(unset, BTreeMap::new(), "{text}");
        found.last().unwrap().1.clone()
    }

    #[test]
    fn only_a_space_and_a_hash_begin_a_comment_behind_a_value() {
        for (text, value) in [
            ("A=#x", "#x"),
            ("A= #x", "#x"),
            ("A=x\t#y", "x\t#y"),
            ("A=1#2", "1#2"),
            ("A=1 #2", "1"),
            ("A=a b\t # c # d", "a b"),
        ] {
            assert_eq!(last(text, &Variables::new()), value, "{text}");
        }
    }

    #[test]
    fn a_reference_has_the_last_value_above_it_unless_the_environment_has_one() {
        let known = Variables::from([("HOST".to_owned(), "h".to_owned())]);
        for (text, value) in [
            ("A=1\nA=2\nB=$A", "2"),
            ("A=1\nB=$A\nA=2", "2"),
            ("A=1\nA=\nB=${A}x", "x"),
            ("A=1\nA=${A}2\nB=${A}3", "123"),
            ("HOST=1\nHOST=2\nB=$HOST", "h"),
        ] {
            assert_eq!(last(text, &known), value, "{text}");
        }
    }

    #[test]
    fn escapes_in_double_quotes_are_those_of_compose() {
        for (text, value) in [
            (r#"A="\a\b\f\n\r\t\v""#, "\u{7}\u{8}\u{c}\n\r\t\u{b}"),
            (r#"A="\"\\\$B""#, "\"\\$B"),
            (r#"A="\0101\01012""#, "AA2"),
            (r#"A="\0377""#, "\u{ff}"),
            // No characters: too few digits, too large a number, another digit.
            (r#"A="\012 \0400 \0189 \0""#, r"\12 \400 \189 \"),
            (r#"A="\c\q\'""#, r"\c\q\'"),
            ("export\tA=1", "1"),
            ("export \t A=1", "1"),
            ("exported=1", "1"),
        ] {
            assert_eq!(last(text, &Variables::new()), value, "{text}");
        }
        let none = Variables::new();
        let found = parse("export\tA=1", &none, &none, &mut BTreeMap::new());
        assert_eq!(found.unwrap(), [("A".to_owned(), "1".to_owned())]);
    }

    #[test]
    fn in_single_quotes_a_backslash_is_one_but_before_a_quote() {
        for (text, value) in [
            (r"A='it\'s'", "it's"),
            (r"A='a\n$B \$ \x'", r"a\n$B \$ \x"),
            (r#"A='say \"x\"'"#, r#"say \"x\""#),
            (r"A='a\\'", r"a\\"),
            ("A='x' # it's a comment", "x"),
            ("A=\"x\"#comment", "x"),
            ("A='two\nlines' \t\r\n", "two\nlines"),
        ] {
            assert_eq!(last(text, &Variables::new()), value, "{text}");
        }
        let behind = "text follows the closing quote";
        for (text, line, why) in [
            ("A='x' y", 1, behind),
            ("A=\"x\"y", 1, behind),
            (r"A='it'\''s'", 1, behind),
            ("B=1\nA='two\nlines' B=2", 3, behind),
            (r"A='C:\'", 1, "the quote is not closed"),
        ] {
            let none = Variables::new();
            let bad = parse(text, &none, &none, &mut BTreeMap::new()).unwrap_err();
            assert_eq!(bad.line, line, "{text}");
            assert!(bad.why.starts_with(why), "{text}: {}", bad.why);
        }
    }
}
