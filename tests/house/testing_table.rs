//! Holds `docs/testing.md` to the tree: each test that a row names is there, is not ignored, and has a
//! marker, the comment `// pods 48`, directly above the assertion of that row's fact.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// A row of the tables: its name (`pods 48`), and the tests that it names.
struct Row {
    name: String,
    tests: Vec<String>,
    /// Whether something else than a test holds it, such as `make bench`.
    is_made: bool,
}

/// The rows of the page's tables. The header of a table's first column is the table's name.
fn rows(page: &str) -> Vec<Row> {
    let (_, tables) = page.split_once("## Scenario → test").unwrap();
    let mut table = None;
    let mut rows = Vec::new();
    for line in tables.lines() {
        let Some(cells) = line.strip_prefix('|').and_then(|l| l.strip_suffix('|')) else {
            table = None;
            continue;
        };
        let cells: Vec<&str> = cells.split('|').map(str::trim).collect();
        match table {
            None => table = Some(cells[0]),
            Some(_) if cells[0].starts_with("---") => {}
            Some(table) => rows.push(Row {
                name: format!("{table} {}", cells[0]),
                tests: cells[2..].iter().flat_map(|cell| names(cell)).collect(),
                is_made: cells[2..].iter().any(|cell| cell.contains("`make ")),
            }),
        }
    }
    rows
}

/// The names of functions that a text gives between backquotes.
fn names(text: &str) -> Vec<String> {
    let is_name = |word: &&str| {
        word.contains('_')
            && word
                .bytes()
                .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
    };
    let quoted = text.split('`').skip(1).step_by(2);
    quoted.filter(is_name).map(str::to_owned).collect()
}

/// All Rust files below a directory.
fn sources(dir: &Path, into: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, into);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            into.push(path);
        }
    }
}

/// A function of a file.
#[derive(Debug, Default)]
struct Function {
    /// Whether it is a test that runs: one that is not ignored.
    is_test: bool,
    body: String,
    /// The rows whose markers are in it, each with the statement below it.
    markers: Vec<(String, String)>,
}

/// The name in a line that begins a function.
fn begins(line: &str) -> Option<&str> {
    let (before, rest) = line.split_once("fn ")?;
    let is_head = ["", "pub", "async", "pub async"].contains(&before.trim())
        || before.trim().starts_with("pub(");
    let end = rest.find(['(', '<'])?;
    is_head.then_some(&rest[..end])
}

/// Whether a line is a marker of rows of one of `tables`; then, the rows.
fn marked(line: &str, tables: &BTreeSet<&str>) -> Option<Vec<String>> {
    let rows: Vec<&str> = line.trim().strip_prefix("// ")?.split(", ").collect();
    let is_row = |row: &&str| {
        row.split_once(' ').is_some_and(|(table, number)| {
            tables.contains(table)
                && number.len() <= 4
                && number.bytes().any(|b| b.is_ascii_digit())
                && number.bytes().all(|b| b.is_ascii_alphanumeric())
        })
    };
    let all = rows.iter().all(is_row);
    all.then(|| rows.into_iter().map(str::to_owned).collect())
}

/// Whether the function that begins below these lines is a test that runs, by its attributes.
fn is_test(above: &[&str]) -> bool {
    let ends_other = |line: &str| line.is_empty() || line.ends_with(['{', '}', ';']);
    let head = above.iter().rev().map(|line| line.trim());
    let attributes = head
        .filter(|line| !line.starts_with("//"))
        .take_while(|line| !ends_other(line));
    let (mut is_test, mut is_ignored) = (false, false);
    for line in attributes {
        is_test |= line == "#[test]" || line.starts_with("#[tokio::test");
        is_ignored |= line.starts_with("#[ignore") || line.contains(", ignore");
    }
    is_test && !is_ignored
}

/// The functions of a file: by indentation, which rustfmt keeps.
fn functions(text: &str, tables: &BTreeSet<&str>) -> BTreeMap<String, Vec<Function>> {
    let lines: Vec<&str> = text.lines().collect();
    let mut functions: BTreeMap<String, Vec<Function>> = BTreeMap::new();
    for (at, line) in lines.iter().enumerate() {
        let Some(name) = begins(line) else { continue };
        let indent = &line[..line.len() - line.trim_start().len()];
        let end = format!("{indent}}}");
        let rest = &lines[at..];
        let length = if line.ends_with('}') {
            1
        } else {
            rest.iter().take_while(|line| **line != end).count()
        };
        let body = &rest[..length];
        let mut function = Function {
            is_test: is_test(&lines[..at]),
            body: body.join("\n"),
            ..Function::default()
        };
        for (at, line) in body.iter().enumerate() {
            let Some(rows) = marked(line, tables) else {
                continue;
            };
            let below = &body[at + 1..];
            let length = below
                .iter()
                .position(|line| line.ends_with([';', '{', '}']))
                .map_or(below.len(), |last| last + 1);
            let statement = below[..length].join(" ");
            for row in rows {
                function.markers.push((row, statement.clone()));
            }
        }
        functions.entry(name.to_owned()).or_default().push(function);
    }
    functions
}

/// The words that an assertion has: macros, and helpers that wait for a value or fail.
const ASSERTIONS: [&str; 5] = ["assert", "until", "eventually", "expect", "refuse"];

/// The functions of the file that a text calls.
fn called<'a>(
    text: &'a str,
    functions: &'a BTreeMap<String, Vec<Function>>,
) -> impl Iterator<Item = &'a str> {
    let ends = |c: char| !(c.is_ascii_alphanumeric() || c == '_');
    text.match_indices('(')
        .filter_map(move |(at, _)| text[..at].rsplit(ends).next())
        .filter(|name| functions.contains_key(*name))
}

/// Whether a statement is an assertion, or calls a function of its file that has one. A wait for anything
/// at all holds whatever happens.
fn asserts(statement: &str, functions: &BTreeMap<String, Vec<Function>>) -> bool {
    if statement.contains("|_| true") {
        return false;
    }
    let says = |text: &str| ASSERTIONS.iter().any(|word| text.contains(word));
    says(statement)
        || called(statement, functions).any(|name| functions[name].iter().any(|f| says(&f.body)))
}

/// The rows that a function or what it calls of its own file asserts.
fn holds(name: &str, functions: &BTreeMap<String, Vec<Function>>) -> BTreeSet<String> {
    let mut seen = BTreeSet::new();
    let mut next = vec![name];
    let mut rows = BTreeSet::new();
    while let Some(name) = next.pop() {
        if !seen.insert(name) {
            continue;
        }
        for function in &functions[name] {
            for (row, statement) in &function.markers {
                if asserts(statement, functions) {
                    rows.insert(row.clone());
                }
            }
            next.extend(called(&function.body, functions));
        }
    }
    rows
}

#[test]
fn a_wait_for_anything_at_all_is_no_assertion() {
    let file = "fn helper() {\n    assert!(x);\n}\nfn other() {\n    x();\n}\n";
    let functions = functions(file, &BTreeSet::new());
    for (statement, is_one) in [
        ("assert_eq!(a, b);", true),
        ("bed.until_pod(name, is_ready).await;", true),
        ("helper();", true),
        ("other();", false),
        ("let pod = bed.until_pod(name, |_| true).await;", false),
    ] {
        assert_eq!(asserts(statement, &functions), is_one, "{statement}");
    }
}

#[test]
fn a_helper_and_an_ignored_test_are_no_tests_that_run() {
    let file = r#"
#[test]
fn a_test() {}

/// Of a Node; that is ignored.
#[tokio::test(flavor = "multi_thread")]
#[cfg(unix)]
async fn with_a_runtime() {}

#[tokio::test(
    flavor = "multi_thread",
    worker_threads = 2
)]
async fn over_lines() {}

mod tests {
    #[test]
    #[should_panic]
    fn below() {}
}

#[test]
#[ignore = "slow"]
fn ignored() {}

#[cfg_attr(unix, ignore)]
#[test]
fn ignored_somewhere() {}

#[expect(dead_code, reason = "an example")]
fn helper() {}
"#;
    let functions = functions(file, &BTreeSet::new());
    let runs = |name: &&str| functions[*name].iter().all(|f| f.is_test);
    let names: Vec<&str> = functions.keys().map(String::as_str).filter(runs).collect();
    assert_eq!(names, ["a_test", "below", "over_lines", "with_a_runtime"]);
    assert_eq!(functions.len(), 7);
}

#[test]
fn each_row_is_asserted_by_every_test_it_names() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = fs::read_to_string(root.join("docs/testing.md")).unwrap();
    let rows = rows(&page);
    assert!(rows.len() > 150, "the tables were not read");
    let tables: BTreeSet<&str> = rows
        .iter()
        .filter_map(|row| Some(row.name.split_once(' ')?.0))
        .collect();
    let mut files = Vec::new();
    for dir in ["src", "crates", "tests"] {
        sources(&root.join(dir), &mut files);
    }
    let files: Vec<_> = files
        .iter()
        .map(|path| functions(&fs::read_to_string(path).unwrap(), &tables))
        .collect();

    let has_test = |file: &BTreeMap<String, Vec<Function>>, name: &str| {
        file.get(name)
            .is_some_and(|all| all.iter().any(|f| f.is_test))
    };
    let mut wrong = Vec::new();
    let mut named = BTreeSet::new();
    for row in &rows {
        if !named.insert(row.name.as_str()) {
            wrong.push(format!("{} stands twice", row.name));
        }
        if row.tests.is_empty() && !row.is_made {
            wrong.push(format!("{} names no test", row.name));
        }
        for test in &row.tests {
            let of_files: Vec<_> = files.iter().filter(|f| has_test(f, test)).collect();
            if of_files.is_empty() {
                wrong.push(format!(
                    "{} names {test}, which is no test that runs",
                    row.name
                ));
            } else if !of_files.iter().any(|f| holds(test, f).contains(&row.name)) {
                wrong.push(format!("{test} has no assertion below // {}", row.name));
            }
        }
    }
    let markers = files
        .iter()
        .flat_map(|file| file.values().flatten())
        .flat_map(|function| &function.markers);
    for (row, statement) in markers {
        if !named.contains(row.as_str()) {
            wrong.push(format!("// {row} is no row: {}", statement.trim()));
        }
    }
    assert!(wrong.is_empty(), "docs/testing.md: {wrong:#?}");
}
