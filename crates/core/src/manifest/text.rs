//! Converts bytes to YAML documents, or returns the reason why the file can't be read.

use std::borrow::Cow;

use serde_saphyr::Error as YamlError;
use serde_saphyr::options::DuplicateKeyPolicy;

use crate::api::diagnostic::Position;
use crate::api::{Code, Diagnostic};

use super::MANIFEST_BYTES_MAX;
use super::tree::Node;
use crate::yaml::position;

/// Limits on the size of a parsed manifest: far above any real one, and small enough that a hostile one
/// costs milliseconds.
const NODES_MAX: usize = 50_000;
/// Events replayed by all aliases of a file together.
const ALIAS_EVENTS_MAX: usize = 20_000;
/// Aliases inside aliases.
const ALIAS_DEPTH_MAX: usize = 8;
/// Sequences and mappings inside one another.
const DEPTH_MAX: usize = 48;
/// Documents in one file.
const DOCUMENTS_MAX: usize = 1024;
/// Merge keys (`<<`) in one file.
const MERGE_KEYS_MAX: usize = 1000;

/// Texts with `\'` in one file: each costs another reading of it.
const ESCAPED_MAX: usize = 64;
/// Replaces `\'` where the parser refuses it: a character of the same length that no language uses.
const STAND_IN: char = '\u{7fb}';

/// The prefix of every syntax error.
const NOT_YAML: &str = "this is not valid YAML";

/// Reads the documents of a file; blank ones and those with only comments are skipped.
///
/// The diagnostics contain `location`; those that don't prevent reading go to `warnings`.
pub(super) fn documents(
    bytes: &[u8],
    location: &str,
    warnings: &mut Vec<Diagnostic>,
) -> Result<Vec<Node>, Box<Diagnostic>> {
    let mut text = Cow::Borrowed(checked_text(bytes, location)?);
    let is_taken = text.contains(STAND_IN);
    let documents = loop {
        let error = match parse(&text) {
            Ok(documents) => break documents,
            Err(error) => error,
        };
        // By line and column: the parser's own offsets count stand-ins as one byte.
        let found = error.without_snippet().location();
        let place = found.and_then(|found| position_from_line(&text, found));
        let readable = place
            .filter(|_| warnings.len() < ESCAPED_MAX && !is_taken)
            .and_then(|place| with_stand_ins(&text, place.offset));
        let Some(readable) = readable else {
            return Err(Box::new(syntax(&error, &text, location)));
        };
        let message = "\\' is not a valid escape in a double-quoted string";
        let warning = Diagnostic::warning(Code::Syntax, location, message)
            .help("write ' without the backslash; kubectl and the kubelet accept both");
        warnings.push(match place {
            Some(place) => warning.at(place),
            None => warning,
        });
        text = Cow::Owned(readable);
    };
    let mut documents: Vec<Node> = documents.into_iter().filter(|d| !d.is_null()).collect();
    if documents.is_empty() {
        return Err(Box::new(empty(location, "contains only comments")));
    }
    if !warnings.is_empty() {
        for document in &mut documents {
            document.replace(STAND_IN, "'");
        }
    }
    Ok(documents)
}

/// The text with a [`STAND_IN`] for each `\'` of the double-quoted scalar that begins at `offset`; none
/// if there is none. All later bytes keep their offsets.
///
/// Upstream: `yaml_parser_scan_flow_scalar` of `go.yaml.in/yaml/v2/scannerc.go` takes that escape.
fn with_stand_ins(text: &str, offset: usize) -> Option<String> {
    let scalar = text.get(offset..)?.strip_prefix('"')?;
    let (mut found, mut escaped) = (Vec::new(), false);
    for (at, byte) in scalar.bytes().enumerate() {
        match byte {
            b'\'' if escaped => found.push(offset + at),
            b'"' if !escaped => break,
            _ => {}
        }
        escaped = byte == b'\\' && !escaped;
    }
    if found.is_empty() {
        return None;
    }
    let mut readable = text.to_owned();
    let stand_in = STAND_IN.to_string();
    for at in found {
        readable.replace_range(at..at + stand_in.len(), &stand_in);
    }
    Some(readable)
}

fn parse(text: &str) -> Result<Vec<Node>, YamlError> {
    let options = serde_saphyr::options! {
        legacy_octal_numbers: true,
        duplicate_keys: DuplicateKeyPolicy::LastWins,
        with_snippet: false,
        alias_limits: serde_saphyr::alias_limits! {
            max_total_replayed_events: ALIAS_EVENTS_MAX,
            max_replay_stack_depth: ALIAS_DEPTH_MAX,
        },
        budget: serde_saphyr::budget! {
            max_depth: DEPTH_MAX,
            flow_nesting_limit: DEPTH_MAX,
            max_nodes: NODES_MAX,
            max_documents: DOCUMENTS_MAX,
            max_merge_keys: MERGE_KEYS_MAX,
            max_recorded_anchor_events: NODES_MAX,
        },
    };
    serde_saphyr::from_multiple_with_options(text, options)
}

fn checked_text<'a>(bytes: &'a [u8], location: &str) -> Result<&'a str, Box<Diagnostic>> {
    if bytes.len() > MANIFEST_BYTES_MAX {
        let message = format!(
            "the file is {} bytes long; at most {MANIFEST_BYTES_MAX} are read",
            bytes.len()
        );
        return Err(Box::new(Diagnostic::error(
            Code::TooLarge,
            location,
            message,
        )));
    }
    if bytes.iter().all(u8::is_ascii_whitespace) {
        return Err(Box::new(empty(location, "is empty")));
    }
    if let Some(offset) = bytes.iter().position(|byte| *byte == 0) {
        return Err(Box::new(
            Diagnostic::error(
                Code::NulByte,
                location,
                format!("the file has a NUL byte at offset {offset}"),
            )
            .at(position_of(bytes, offset, 1))
            .help("a manifest is UTF-8 text; NUL bytes come from UTF-16, binary files or a crash while writing"),
        ));
    }
    std::str::from_utf8(bytes).map_err(|error| {
        let offset = error.valid_up_to();
        Box::new(
            Diagnostic::error(
                Code::NotUtf8,
                location,
                format!("the bytes from offset {offset} on are not UTF-8"),
            )
            .at(position_of(bytes, offset, 1))
            .help("save the file as UTF-8"),
        )
    })
}

fn empty(location: &str, how: &str) -> Diagnostic {
    Diagnostic::error(
        Code::Empty,
        location,
        format!("the file {how} and defines no pod"),
    )
    .help("to stop the pod, remove the file")
}

/// Line and column of an offset in bytes that need not be UTF-8.
pub(super) fn position_of(bytes: &[u8], offset: usize, length: usize) -> Position {
    let before = &bytes[..offset.min(bytes.len())];
    let line_start = before
        .iter()
        .rposition(|b| *b == b'\n')
        .map_or(0, |n| n + 1);
    let line = before.split(|byte| *byte == b'\n').count();
    let column = String::from_utf8_lossy(&before[line_start..])
        .chars()
        .count()
        + 1;
    Position {
        line: u32::try_from(line).unwrap_or(u32::MAX),
        column: u32::try_from(column).unwrap_or(u32::MAX),
        offset,
        length,
    }
}

/// Place of an error of which the parser only knows line and column.
fn position_from_line(text: &str, location: serde_saphyr::Location) -> Option<Position> {
    let line = usize::try_from(location.line()).ok()?.checked_sub(1)?;
    let column = usize::try_from(location.column()).ok()?.checked_sub(1)?;
    let mut lines = text.split_inclusive('\n');
    let start: usize = lines.by_ref().take(line).map(str::len).sum();
    let row = lines.next().unwrap_or_default();
    let within = row
        .char_indices()
        .nth(column)
        .map_or(row.len(), |(at, _)| at);
    Some(position_of(text.as_bytes(), start + within, 0))
}

fn syntax(error: &YamlError, text: &str, location: &str) -> Diagnostic {
    let error = error.without_snippet();
    let place = error
        .location()
        .and_then(|location| position(location).or_else(|| position_from_line(text, location)));
    let (code, message, help) = explain(error);
    let at_end = is_cut_off(text, place, &message);
    let mut diagnostic = if code == Code::Syntax && at_end {
        let help = if message.contains("unclosed") {
            "close the bracket or quote that opens here, and save the complete file"
        } else {
            "save the complete file"
        };
        Diagnostic::error(
            Code::HalfWritten,
            location,
            format!("the text ends too early; {message}"),
        )
        .help(help)
    } else {
        Diagnostic::error(code, location, message)
    };
    if code == Code::Syntax && diagnostic.help.is_none() {
        diagnostic.help = tab_help(text, place).or(help.map(str::to_owned));
    } else if diagnostic.help.is_none() {
        diagnostic.help = help.map(str::to_owned);
    }
    if let Some(mut place) = place {
        // The parser may point behind the last line, where there is nothing to show.
        if place.offset > text.len() {
            place = position_of(text.as_bytes(), text.len(), 0);
        }
        diagnostic = diagnostic.at(place);
    }
    diagnostic
}

/// Explains the problem without quoting the text, which may be the value of a secret.
fn explain(error: &YamlError) -> (Code, String, Option<&'static str>) {
    match error {
        YamlError::AliasError { error, .. } => explain(error),
        YamlError::AliasReplayCounterOverflow { .. }
        | YamlError::AliasReplayLimitExceeded { .. }
        | YamlError::AliasExpansionLimitExceeded { .. }
        | YamlError::AliasReplayStackDepthExceeded { .. } => (
            Code::AliasBomb,
            "the aliases expand to more than the maximum size of a manifest".to_owned(),
            Some("write the repeated parts out, or use fewer aliases (`*name`)"),
        ),
        YamlError::Budget { breach, .. } => budget(breach),
        YamlError::UnknownAnchor { .. } => (
            Code::Syntax,
            "an alias (`*name`) refers to an anchor (`&name`) that does not exist".to_owned(),
            Some("a string that begins with `*` must be quoted"),
        ),
        YamlError::RecursiveReferencesRequireWeakTypes { .. } => (
            Code::AliasBomb,
            "an alias refers to a value that contains it".to_owned(),
            None,
        ),
        YamlError::Eof { .. } => (Code::Syntax, "a value is missing".to_owned(), None),
        YamlError::NonFiniteFloat { .. } => (
            Code::Syntax,
            "a number must be finite".to_owned(),
            Some("quote the value if it is a string"),
        ),
        YamlError::Message { msg, .. } | YamlError::ExternalMessage { msg, .. } => {
            (Code::Syntax, unquoted(msg), None)
        }
        _ => (Code::Syntax, NOT_YAML.to_owned(), None),
    }
}

fn budget(breach: &serde_saphyr::budget::BudgetBreach) -> (Code, String, Option<&'static str>) {
    use serde_saphyr::budget::BudgetBreach as Breach;
    match breach {
        Breach::Depth { .. } => (
            Code::Syntax,
            format!("values are nested deeper than {DEPTH_MAX} levels"),
            None,
        ),
        Breach::Documents { .. } => (
            Code::TooLarge,
            format!("the file has more than {DOCUMENTS_MAX} documents"),
            None,
        ),
        Breach::Nodes { .. } | Breach::Events { .. } => (
            Code::TooLarge,
            format!("the file has more than {NODES_MAX} values"),
            None,
        ),
        _ => (
            Code::AliasBomb,
            "the anchors and aliases expand to more than the maximum size of a manifest".to_owned(),
            Some("write the repeated parts out, or use fewer aliases (`*name`)"),
        ),
    }
}

/// The parser's words, without what it quotes of the text; single signs stay.
fn unquoted(message: &str) -> String {
    let mut rest = message.lines().next().unwrap_or_default();
    let mut clean = String::from(NOT_YAML);
    clean.push_str(": ");
    while let Some(start) = rest.find(['"', '`', '\'']) {
        let (before, quoted) = rest.split_at(start);
        let mark = quoted.chars().next().unwrap_or('"');
        let inner = &quoted[mark.len_utf8()..];
        clean.push_str(before);
        clean.push(mark);
        rest = inner;
        if mark == '\'' && before.ends_with(char::is_alphanumeric) {
            continue;
        }
        let end = inner.rfind(mark).unwrap_or(inner.len());
        let is_sign = end == 1 && inner.starts_with(|c: char| c.is_ascii_punctuation());
        clean.push_str(if is_sign { &inner[..end] } else { "…" });
        rest = &inner[end..];
        if !rest.is_empty() {
            clean.push(mark);
            rest = &rest[mark.len_utf8()..];
        }
    }
    clean.push_str(rest);
    clean
}

/// Whether an error looks like that of a truncated text.
fn is_cut_off(text: &str, place: Option<Position>, message: &str) -> bool {
    let last_line = text.rfind('\n').map_or(0, |newline| newline + 1);
    // A finished file ends with a newline, so that its last line is empty.
    let in_last_line = last_line < text.len() && place.is_some_and(|at| at.offset >= last_line);
    let behind = place.is_some_and(|at| at.offset >= text.trim_end().len());
    message.contains("unclosed") || (in_last_line && last_line > 0) || behind
}

fn tab_help(text: &str, place: Option<Position>) -> Option<String> {
    let line = usize::try_from(place?.line).ok()?;
    let near = text.lines().skip(line.saturating_sub(2)).take(2);
    let indented_by_tab = near
        .map(|l| l.trim_start_matches(' '))
        .any(|l| l.starts_with('\t'));
    indented_by_tab.then(|| "YAML is indented by spaces; a tab can't be used".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Go's parser takes that escape, and so manifests of others have it.
    #[test]
    fn an_escaped_apostrophe_is_read_with_a_warning() {
        let read = |text: &str| {
            let mut warnings = Vec::new();
            let read = documents(text.as_bytes(), "f.yaml", &mut warnings);
            let values = read.map(|all| all.iter().map(Node::to_json).collect::<Vec<_>>());
            (values.map_err(|problem| problem.code), warnings)
        };
        let text = "a: \"it\\'s \\\\ \\\"it\\'s\\\"\"\nb: 'x\\'\nc: [\"k\\'\", d]\n";
        let (values, warnings) = read(text);
        let expected = serde_json::json!({"a": "it's \\ \"it's\"", "b": "x\\", "c": ["k'", "d"]});
        // tenants A5
        assert_eq!(values, Ok(vec![expected]));
        let lines: Vec<_> = warnings.iter().map(|w| w.position.unwrap().line).collect();
        assert_eq!(lines, [1, 3]);
        assert!(
            warnings
                .iter()
                .all(|w| w.severity == crate::api::Severity::Warning)
        );
        for bad in ["a: \"\\q\"", "a: \"\\' \\q\"", "a: \"\\'"] {
            assert!(read(bad).0.is_err(), "{bad}");
        }
        let many = "- \"\\'\"\n".repeat(ESCAPED_MAX + 1);
        assert_eq!(read(&many).0, Err(Code::Syntax));
    }
}
