//! Holds that product code sorts, and makes sorted collections, by `mirrorlet_core::small`: the
//! standard library compiles some KiB for each type that it sorts.
//!
//! Found by their text: calls of sorts, collections made from arrays, and `collect` where a `let` or
//! the call itself has the type. The type of a field, of an argument or of a return value isn't seen.

use crate::layering::{is_test_file, sources, sources_of, statements};

/// The module that sorts for all others.
const HOME: &str = "crates/core/src/small.rs";

/// Calls that sort, each compiled for its types.
const CALLS: &[&str] = &[
    ".sort(",
    ".sort_by(",
    ".sort_by_key(",
    ".sort_by_cached_key(",
    ".sort_unstable(",
    ".sort_unstable_by(",
    ".sort_unstable_by_key(",
    "BTreeMap::from(",
    "BTreeSet::from(",
    "collect::<BTreeMap<",
    "collect::<BTreeSet<",
    "collect::<Map<",
];

/// Types whose `collect` sorts.
const SORTED: &[&str] = &["BTreeMap<", "BTreeSet<", "Map<", "serde_json::Map<"];

/// Whether a line begins the `let` of a sorted collection.
fn begins_sorted(code: &str) -> bool {
    let of = code
        .strip_prefix("let ")
        .and_then(|code| code.split_once(": "));
    of.is_some_and(|(_, of)| SORTED.iter().any(|sorted| of.starts_with(sorted)))
}

/// The lines of a source that sort by themselves.
fn strays(source: &str) -> Vec<usize> {
    let mut found = Vec::new();
    // Of the `let` of a sorted collection that has begun: how many of its brackets are open.
    let mut open: Option<usize> = None;
    for (line, code) in statements(source) {
        let code = code.trim();
        if CALLS.iter().any(|call| code.contains(call)) {
            found.push(line);
        }
        if begins_sorted(code) {
            open = Some(0);
        }
        let Some(before) = open else {
            continue;
        };
        let count = |brackets: &[char]| code.matches(brackets).count();
        let depth = (before + count(&['(', '[', '{'])).saturating_sub(count(&[')', ']', '}']));
        let ends = depth == 0 && code.ends_with(';');
        if ends && code.ends_with(".collect();") {
            found.push(line);
        }
        open = (!ends).then_some(depth);
    }
    found
}

#[test]
fn product_code_sorts_by_what_is_compiled_once() {
    let sources = sources().into_iter();
    let sources = sources.chain(sources_of(&["crates/apimachinery"]));
    let product = sources.filter(|(file, _)| file != HOME && !is_test_file(file));
    let mut found: Vec<String> = Vec::new();
    for (file, text) in product {
        let lines = strays(&text).into_iter();
        found.extend(lines.map(|line| format!("{file}:{line}")));
    }
    assert!(
        found.is_empty(),
        "use small_sort…, collect_map, collect_set or collect_object of mirrorlet_core::small at:\n{}",
        found.join("\n")
    );
}

#[test]
fn a_planted_sort_is_found() {
    for (source, expected) in [
        ("names.sort();", &[1_usize][..]),
        ("names\n    .sort_by_key(|name| name.len());", &[2]),
        ("let labels = BTreeMap::from([(a, b)]);", &[1]),
        ("let names = all.collect::<BTreeSet<_>>();", &[1]),
        ("let names: BTreeSet<&str> = all.collect();", &[1]),
        (
            "let mut names: BTreeMap<_, _> = all\n    .map(|one| {\n        (one.name, one)\n    })\n    .collect();",
            &[5],
        ),
        ("let fields: Map<_, _> = all.collect();", &[1]),
        ("names.small_sort();\nnames.small_sort_by(by_name);", &[]),
        ("let names: BTreeSet<&str> = all.collect_set();", &[]),
        ("let names: Vec<&str> = all.collect();", &[]),
        (
            "let names: BTreeMap<_, _> = all\n    .map(|one| {\n        let of: Vec<_> = one.of.collect();\n        (one.name, of)\n    })\n    .collect_map();",
            &[],
        ),
        (
            "let known: BTreeSet<_> = told();\nlet all = told.collect();",
            &[],
        ),
        ("// names.sort() would do", &[]),
        ("#[cfg(test)]\nmod tests {\n    names.sort();\n}", &[]),
    ] {
        assert_eq!(strays(source), expected, "{source}");
    }
}
