//! Renders a diagnostic for a user who has access to the file anyway.

use annotate_snippets::{AnnotationKind, Group, Level, Renderer, Snippet};

use crate::api::diagnostic::Position;
use crate::api::{Diagnostic, Severity};

/// Longest line drawn, in bytes; of a longer one nothing is shown.
const LINE_BYTES_MAX: usize = 400;

/// Before the place of a diagnostic.
const ARROW: &str = "--> ";

/// Renders a diagnostic with the affected line of `source`. The text ends without a newline.
///
/// The line may contain secrets: this is for `mirrorlet validate` only, never for logs.
pub fn render(diagnostic: &Diagnostic, source: Option<&str>, colour: bool) -> String {
    let level = match diagnostic.severity {
        Severity::Error => Level::ERROR,
        Severity::Warning => Level::WARNING,
    };
    let title = match &diagnostic.field {
        Some(field) => format!("{field}: {}", diagnostic.message),
        None => diagnostic.message.clone(),
    };
    let line = diagnostic
        .position
        .zip(source)
        .and_then(|(position, source)| Line::find(source, position));
    let title = level.primary_title(title).id(diagnostic.code.as_str());
    let place = match (diagnostic.position, &line) {
        (Some(at), None) => format!("{}:{}:{}", diagnostic.file, at.line, at.column),
        (Some(_) | None, _) => diagnostic.file.clone(),
    };
    let group = match &line {
        Some(line) => title.element(
            Snippet::source(line.text)
                .line_start(line.number)
                .path(place.as_str())
                .annotation(AnnotationKind::Primary.span(line.start..line.end)),
        ),
        None => title.element(annotate_snippets::Origin::path(place.as_str())),
    };
    let mut report = vec![group];
    if let Some(help) = &diagnostic.help {
        report.push(Group::with_title(
            Level::HELP.secondary_title(help.as_str()),
        ));
    }
    let renderer = if colour {
        Renderer::styled()
    } else {
        Renderer::plain()
    };
    let drawn = renderer.render(&report);
    match line {
        Some(_) => drawn,
        None => with_margin(&drawn),
    }
}

/// Indents the line of the place as it is where a source line is drawn below it: without one, the
/// renderer leaves no margin for its number.
fn with_margin(drawn: &str) -> String {
    // Below the title.
    let title = drawn.find('\n').unwrap_or_default();
    let Some(arrow) = drawn[title..].find(ARROW).map(|at| title + at) else {
        return drawn.to_owned();
    };
    // The style of the arrow begins before it.
    let begin = drawn[..arrow].rfind('\n').map_or(0, |newline| newline + 1);
    let (before, rest) = drawn.split_at(begin);
    format!("{before} {rest}")
}

/// The part of a source that is drawn.
struct Line<'a> {
    text: &'a str,
    number: usize,
    start: usize,
    end: usize,
}

impl<'a> Line<'a> {
    fn find(source: &'a str, position: Position) -> Option<Self> {
        let offset = position.offset.min(source.len());
        let before = source.get(..offset)?;
        let begin = before.rfind('\n').map_or(0, |newline| newline + 1);
        let text = source.get(begin..)?.lines().next().unwrap_or_default();
        if text.len() > LINE_BYTES_MAX || text.trim().is_empty() {
            return None;
        }
        let start = (offset - begin).min(text.len());
        let mut end = (start + position.length).min(text.len());
        if !text.is_char_boundary(end) || end == start {
            end = text[start..]
                .chars()
                .next()
                .map_or(start, |c| start + c.len_utf8());
        }
        Some(Self {
            text,
            number: usize::try_from(position.line).ok()?,
            start,
            end,
        })
    }
}
