//! Columns, aligned by what a terminal shows.

use anstyle::{AnsiColor, Style};
use unicode_width::UnicodeWidthStr;

/// Style of titles.
pub const BOLD: Style = Style::new().bold();
/// Style of secondary text.
pub const DIM: Style = Style::new().dimmed();
/// Style of a good state.
pub const GOOD: Style = AnsiColor::Green.on_default();
/// Style of a state that is still in progress.
pub const PENDING: Style = AnsiColor::Yellow.on_default();
/// Style of a failure.
pub const BAD: Style = AnsiColor::Red.on_default();

/// Columns are this many spaces apart.
const GAP: usize = 2;

/// One cell: text without control characters, and its style on a terminal.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Cell {
    text: String,
    style: Style,
}

impl Cell {
    /// A cell in a style.
    pub fn styled(text: &str, style: Style) -> Self {
        Self {
            text: one_line(text),
            style,
        }
    }
}

impl Cell {
    /// A cell that keeps the spaces before its text.
    pub fn indented(text: &str) -> Self {
        let indent = text.len() - text.trim_start().len();
        Self {
            text: " ".repeat(indent) + &one_line(text),
            style: Style::new(),
        }
    }
}

impl<T: AsRef<str>> From<T> for Cell {
    fn from(text: T) -> Self {
        Self::styled(text.as_ref(), Style::new())
    }
}

/// The row of titles.
pub fn titles<'a>(titles: impl IntoIterator<Item = &'a str>) -> Vec<Cell> {
    let title = |title| Cell::styled(title, BOLD);
    titles.into_iter().map(title).collect()
}

/// Rows below their titles, as rendered by [`render`]; nothing without rows.
pub fn titled<'a>(
    names: impl IntoIterator<Item = &'a str>,
    rows: impl IntoIterator<Item = Vec<Cell>>,
) -> String {
    let mut all = vec![titles(names)];
    all.extend(rows);
    if all.len() == 1 {
        return String::new();
    }
    render(&all)
}

/// Converts text to one line without control characters: a container's text must not control the user's
/// terminal.
pub fn one_line(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.trim().chars() {
        match c {
            '\n' | '\r' | '\t' => out.push(' '),
            c if c.is_control() => out.push(char::REPLACEMENT_CHARACTER),
            c => out.push(c),
        }
    }
    out
}

/// A number with its noun.
pub fn counted(number: usize, noun: &str) -> String {
    let ending = if number == 1 { "" } else { "s" };
    format!("{number} {noun}{ending}")
}

/// Renders rows as text, each column as wide as its widest cell, without padding after the last one.
/// Styles are written as ANSI sequences.
pub fn render(rows: &[Vec<Cell>]) -> String {
    render_aligned(rows, &mut Vec::new())
}

/// Renders rows as [`render`] does, below others whose columns are at least `widths` wide; wider cells
/// widen their columns.
pub fn render_aligned(rows: &[Vec<Cell>], widths: &mut Vec<usize>) -> String {
    for row in rows {
        widths.resize(row.len().max(widths.len()), 0);
        for (cell, width) in row.iter().zip(&mut *widths) {
            *width = cell.text.width().max(*width);
        }
    }
    let mut out = String::new();
    for row in rows {
        let mut pending = 0;
        for (cell, width) in row.iter().zip(&*widths) {
            if !cell.text.is_empty() {
                out.extend(std::iter::repeat_n(' ', pending));
                pending = 0;
                let style = cell.style;
                out.push_str(&style.render().to_string());
                out.push_str(&cell.text);
                out.push_str(&style.render_reset().to_string());
            }
            pending += width - cell.text.width() + GAP;
        }
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_align_by_width_and_nothing_trails() {
        let rows = vec![
            vec!["名前".into(), "B".into(), "C".into()],
            vec!["a".into(), "".into(), "c".into()],
            vec!["aaaaaa".into(), "b\u{1b}[2J\nb".into(), "".into()],
        ];
        assert_eq!(
            render(&rows),
            "名前    B        C\na                c\naaaaaa  b\u{fffd}[2J b\n"
        );
    }
}
