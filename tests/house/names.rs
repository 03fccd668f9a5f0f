//! Names of functions, types, modules, constants and fields in product code are the terms of Kubernetes,
//! Docker and Rust: none has a word that a reader has to decode.

use crate::layering::{is_test_file, sources, sources_of, statements};

/// Words that no name has, each with what to write.
const WORDS: [(&str, &str); 4] = [
    ("told", "reported, published or seen"),
    ("tell", "report or log"),
    ("lacks", "missing"),
    ("whom", "the noun itself"),
];

/// Keywords that come before the name in a declaration.
const KEYWORDS: [&str; 9] = [
    "fn", "struct", "enum", "union", "trait", "type", "mod", "const", "static",
];

/// Files that are compiled for tests alone, beside those of `is_test_file`.
const TEST_FILES: [&str; 2] = ["/bed.rs", "/fake.rs"];

/// The words of a name in snake or camel case, in lower case.
fn words(name: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut before = '_';
    for c in name.chars() {
        if c == '_' || (c.is_uppercase() && before.is_lowercase()) {
            words.push(String::new());
        }
        if let Some(word) = words.last_mut() {
            word.extend(c.to_lowercase().filter(|c| *c != '_'));
        }
        before = c;
    }
    words.retain(|word| !word.is_empty());
    words
}

/// The identifier at the start of a text.
fn ident(text: &str) -> Option<&str> {
    let end = text.find(|c: char| !(c.is_alphanumeric() || c == '_'));
    let name = &text[..end.unwrap_or(text.len())];
    (!name.is_empty()).then_some(name)
}

/// The names that a line of code declares with a keyword.
fn declared(code: &str) -> impl Iterator<Item = &str> {
    let mut rest = code;
    std::iter::from_fn(move || {
        loop {
            let start = rest.find(|c: char| c.is_alphabetic() || c == '_')?;
            let word = ident(&rest[start..])?;
            rest = &rest[start + word.len()..];
            if KEYWORDS.contains(&word) && rest.starts_with(' ') {
                return ident(rest.trim_start());
            }
        }
    })
}

/// The fields and variants in a line of the body of a type.
fn members(code: &str) -> Vec<&str> {
    let variant = ident(code.trim_start()).filter(|name| name.starts_with(char::is_uppercase));
    let fields = code.match_indices(':').filter_map(|(at, _)| {
        let is_path = code[at + 1..].starts_with(':') || code[..at].ends_with(':');
        let before = code[..at].trim_end();
        let start = before.rfind(|c: char| !(c.is_alphanumeric() || c == '_'));
        let name = &before[start.map_or(0, |start| start + 1)..];
        (!is_path && !name.is_empty()).then_some(name)
    });
    variant.into_iter().chain(fields).collect()
}

/// Whether a line begins the declaration of a struct, an enum or a union.
fn begins_type(code: &str) -> bool {
    let mut words = code.split_whitespace();
    let keyword = words.find(|word| *word != "pub" && !word.starts_with("pub("));
    keyword.is_some_and(|word| ["struct", "enum", "union"].contains(&word))
}

/// The names of a file that have one of the words: line, name, and what to write.
fn offenders(source: &str) -> Vec<(usize, String, &'static str)> {
    let mut found = Vec::new();
    // The open braces of the type in whose declaration the line is.
    let mut of_type: Option<usize> = None;
    for (line, code) in statements(source) {
        let mut names: Vec<&str> = declared(&code).collect();
        if of_type.is_some() || begins_type(&code) {
            let body = if of_type.is_some() {
                &code[..]
            } else {
                code.split_once('{').map_or("", |(_, body)| body)
            };
            names.extend(members(body));
            let open = of_type.unwrap_or(0) + code.matches('{').count();
            let open = open - code.matches('}').count().min(open);
            let ends = open == 0 && code.contains(['}', ';']);
            of_type = (!ends).then_some(open);
        }
        for name in names {
            let words = words(name);
            let bad = WORDS
                .iter()
                .find(|(bad, _)| words.iter().any(|word| word == bad));
            found.extend(bad.map(|(_, instead)| (line, name.to_owned(), *instead)));
        }
    }
    found
}

#[test]
fn names_are_the_fields_terms() {
    let others = sources_of(&["crates/apimachinery", "crates/dns", "crates/streaming"]);
    let all = sources().into_iter().chain(others);
    let is_product =
        |file: &str| !is_test_file(file) && !TEST_FILES.iter().any(|ending| file.ends_with(ending));
    let mut found = Vec::new();
    for (file, text) in all.filter(|(file, _)| is_product(file)) {
        let of_file = offenders(&text).into_iter();
        found.extend(
            of_file.map(|(line, name, instead)| format!("{file}:{line}: {name}: write {instead}")),
        );
    }
    assert!(
        found.is_empty(),
        "{} names:\n{}",
        found.len(),
        found.join("\n")
    );
}

#[test]
fn a_planted_name_is_found() {
    for (source, expected) in [
        ("pub(super) async fn tell_node() {", &["tell_node"][..]),
        ("fn untold(whomever: bool) {}", &[]),
        ("pub fn lacks<T>(told: T) -> bool {", &["lacks"]),
        ("mod tell;", &["tell"]),
        ("pub struct HasTold;", &["HasTold"]),
        ("struct Told(bool);\nfn x() {}", &["Told"]),
        (
            "struct Seen {\n    /// Told.\n    pub(super) told: Option<a::tell::B>,\n    at: u8,\n}\nlet told: u8 = 1;",
            &["told"],
        ),
        (
            "enum Ways {\n    ByWhom { lacks: bool },\n    Told(u8),\n}\nx { told: 1 }",
            &["ByWhom", "lacks", "Told"],
        ),
        ("struct Seen { tell: bool }\nfn x(tell: bool) {}", &["tell"]),
        ("const TOLD_MAX: u8 = 1;", &["TOLD_MAX"]),
        ("type Told = u8;\ntrait Tell {}", &["Told", "Tell"]),
        ("#[cfg(test)]\nmod tests {\n    fn tell() {}\n}", &[]),
        ("// fn tell()\nlet tell = \"fn tell()\";", &[]),
    ] {
        let found = offenders(source).into_iter();
        let names: Vec<String> = found.map(|(_, name, _)| name).collect();
        assert_eq!(names, expected, "{source}");
    }
}
