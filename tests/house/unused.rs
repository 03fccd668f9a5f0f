//! Public functions are called by the product, not by tests alone. The check goes by names, so two
//! functions of one name hide each other.

use std::collections::BTreeSet;

use crate::layering;

/// Seams: tests of other crates put something of their own there.
const SEAMS: [&str; 2] = ["over_service", "resolving_by"];

/// Whether a file is no part of the program.
fn is_double(file: &str) -> bool {
    let doubles = ["/fake", "/bed.rs"];
    layering::is_test_file(file) || doubles.iter().any(|double| file.contains(double))
}

/// Whether a line names functions without calling them; one that renames them is needed to find the call.
fn is_import(code: &str) -> bool {
    let code = code.trim_start().trim_start_matches("pub ");
    code.starts_with("use ") && !code.contains(" as ")
}

/// The public functions of these sources that nothing in them names.
fn unused(sources: &[(String, String)]) -> Vec<String> {
    let (mut offered, mut named) = (BTreeSet::new(), BTreeSet::new());
    for (_, text) in sources {
        // Attributes name functions in texts, which statements leave out.
        let attributes = text.lines().map(str::trim_start);
        let attributes = attributes.filter(|line| line.starts_with("#["));
        let statements = layering::statements(text).into_iter().map(|(_, code)| code);
        let code = statements.filter(|code| !is_import(code));
        for code in code.chain(attributes.map(str::to_owned)) {
            let is_public = code.trim_start().starts_with("pub");
            let mut is_definition = false;
            for word in code.split(|c: char| !c.is_alphanumeric() && c != '_') {
                if word.is_empty() {
                    continue;
                }
                if !is_definition {
                    named.insert(word.to_owned());
                } else if is_public {
                    offered.insert(word.to_owned());
                }
                is_definition = word == "fn";
            }
        }
    }
    offered.difference(&named).cloned().collect()
}

#[test]
fn every_public_function_is_called_by_the_product() {
    let mut sources = layering::sources();
    sources.extend(layering::sources_of(&["crates/apimachinery", "crates/dns"]));
    sources.retain(|(file, _)| !is_double(file));
    assert!(sources.len() > 300, "{} sources were read", sources.len());
    assert_eq!(unused(&sources), SEAMS);
}

#[test]
fn a_function_that_only_tests_call_is_noticed() {
    let of = |text: &str| unused(&[("src/a.rs".to_owned(), text.to_owned())]);
    for (text, found) in [
        ("pub fn a() {}", true),
        ("    pub(crate) async fn a(&self) {}", true),
        ("fn a() {}", false),
        ("pub fn a() {}\npub use own::a;", true),
        ("pub fn a() {}\n// a()", true),
        (
            "pub fn a() {}\n#[cfg(test)]\nmod tests {\n    fn f() { a(); }\n}",
            true,
        ),
        ("pub fn a() {}\nfn f() { a(); }", false),
        ("pub fn a() {}\nfn f() { it.map(Own::a) }", false),
        ("pub fn a() {}\npub use own::a as b;", false),
        (
            "pub fn a() {}\n#[serde(serialize_with = \"own::a\")]",
            false,
        ),
    ] {
        let expected: &[&str] = if found { &["a"] } else { &[] };
        assert_eq!(of(text), expected, "{text}");
    }
}
