//! Holds `docs/testing.md` to the tree: every test it names exists.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Reads all Rust files below a directory.
fn sources(dir: &Path, into: &mut String) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, into);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            into.push_str(&fs::read_to_string(&path).unwrap());
        }
    }
}

/// The names of functions that a line gives between backquotes.
fn names(line: &str) -> impl Iterator<Item = &str> {
    let quoted = line.split('`').skip(1).step_by(2);
    quoted.filter(|word| {
        word.contains('_')
            && word
                .bytes()
                .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
    })
}

#[test]
fn every_test_the_table_names_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = fs::read_to_string(root.join("docs/testing.md")).unwrap();
    let (_, table) = page.split_once("## Scenario → test").unwrap();
    let mut code = String::new();
    sources(&root.join("src"), &mut code);
    sources(&root.join("crates"), &mut code);
    sources(&root.join("tests"), &mut code);
    sources(&root.join("crates"), &mut code);
    // The last column of a row names tests; the one before says what they hold.
    let named: BTreeSet<&str> = table
        .lines()
        .filter_map(|line| line.strip_suffix('|')?.rsplit_once('|'))
        .flat_map(|(_, tests)| names(tests))
        .collect();
    assert!(named.len() > 50, "the table was not read: {named:?}");
    let missing: Vec<&str> = named
        .into_iter()
        .filter(|name| {
            // A test takes no argument; one of proptest does.
            !code.contains(&format!("fn {name}("))
        })
        .collect();
    assert!(
        missing.is_empty(),
        "docs/testing.md names tests that don't exist: {missing:#?}"
    );
}
