//! Each key of the table does what its row says.

use std::collections::BTreeSet;

use super::*;

mod examples;

use examples::EXAMPLES;

fn case(service: &str, beside: &str) -> Case {
    let compose = format!(
        "services:\n  web:\n    image: img:1\n    {service}\n  db:\n    image: db:1\n    volumes: ['dbdata:/var/lib/db']\nvolumes: {{dbdata: {{}}}}\n"
    );
    // What stands beside replaces the volumes of above.
    let other = format!("{beside}\nservices: {{}}\n");
    let mut case = Case::new(&[
        ("compose.yaml", &compose),
        ("beside.yaml", &other),
        ("s.txt", "in s.txt"),
        ("a.env", "FROM=file-value\nOWN=file\n"),
        ("raw.env", "RAW=${NAME}\n"),
        ("odd.env", "fine=x\n[odd]=y\n"),
        (
            "base.yaml",
            "services:\n  base:\n    image: base:1\n    environment: [BASE=1]\n    volumes: ['./data:/data']\n",
        ),
        (
            "sub/inc.yaml",
            "services:\n  included:\n    image: img:1\n    environment: {VALUE: $V}\n    volumes: [./here:/here]\n",
        ),
        ("sub/x.env", "V=of-sub\n"),
    ]);
    case.options.files.push("/srv/shop/beside.yaml".into());
    let variable = ("NAME".to_owned(), "value".to_owned());
    case.options.environment.extend([variable]);
    case
}

/// A text without the indentation of its lines.
fn squeezed(text: &str) -> String {
    let lines: Vec<&str> = text.split('\n').map(str::trim_start).collect();
    lines.join("\n")
}

#[test]
fn every_key_that_is_carried_over_is_in_the_manifests() {
    let mut shown: BTreeSet<&str> = BTreeSet::new();
    let mut wrong = Vec::new();
    for (rows, service, beside, pieces) in EXAMPLES {
        shown.extend(*rows);
        let imported = case(service, beside).import();
        let said = lines(&imported);
        let texts: Vec<&str> = imported.files.iter().map(|file| &*file.text).collect();
        let all = squeezed(&[texts.join("---\n"), said.join("\n")].concat());
        wrong.extend(
            rejected(&imported)
                .into_iter()
                .map(|why| format!("{service}: {why}")),
        );
        for piece in *pieces {
            let found = match piece.strip_prefix('!') {
                Some(piece) => !imported.has_errors() && !all.contains(&squeezed(piece)),
                None => all.contains(&squeezed(piece)),
            };
            if !found {
                wrong.push(format!("{service}: {piece:?} is not in:\n{all}"));
            }
        }
    }
    // box 14
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
    for key in KEYS {
        let is_carried = matches!(key.support, Support::Carried | Support::Partly);
        assert!(
            !is_carried || shown.contains(key.path),
            "no example of {}",
            key.path
        );
    }
    for path in shown {
        assert!(KEYS.iter().any(|key| key.path == path), "{path} has no row");
    }
}

/// A value at a path, as YAML in one line.
fn at(path: &str) -> String {
    value_at(path, "x")
}

fn value_at(path: &str, value: &str) -> String {
    let mut text = value.to_owned();
    for part in path.split('.').rev() {
        let (name, is_list) = match part.strip_suffix("[]") {
            Some(name) => (name, true),
            None => (part, false),
        };
        let name = if name == "*" { "web" } else { name };
        text = if is_list {
            format!("{{{name}: [{text}]}}")
        } else {
            format!("{{{name}: {text}}}")
        };
    }
    text
}

#[test]
fn every_key_that_is_not_carried_over_is_reported_with_its_line() {
    for key in KEYS.iter().filter(|key| key.support == Support::Lost) {
        let base = "services: {web: {image: 'img:1'}}\n";
        let mut case = Case::new(&[("compose.yaml", base), ("more.yaml", &at(key.path))]);
        case.options.files.push("/srv/shop/more.yaml".into());
        let said = lines(&case.import());
        let field = key.path.replace('*', "web").replace("[]", "");
        let words = format!("{field}: not carried over: ");
        let found = said
            .iter()
            .any(|line| line.starts_with("more.yaml:1:") && line.contains(&words));
        // box 14
        assert!(found, "{}: {said:#?}", key.path);
    }
}

/// Values that don't have a form, each of another type.
fn wrong_values(shape: Shape) -> &'static [&'static str] {
    match shape {
        Shape::Any => &[],
        Shape::Text => &["[a]", "{a: b}"],
        Shape::Flag => &["perhaps", "3", "1.5", "[true]", "{a: b}"],
        Shape::Whole => &["many", "1.5", "true", "[1]", "{a: b}"],
        Shape::Number | Shape::Size => &["many", "true", "[1]", "{a: b}"],
        Shape::Mode => &["rwx", "1.5", "true", "[1]", "{a: b}"],
        Shape::Words => &["{a: b}", "[[a]]", "[{a: b}]"],
        Shape::Texts => &["a", "3", "true", "{a: b}", "[[a]]", "[{a: b}]"],
        Shape::Pairs | Shape::Named => &["a", "3", "true", "[[a]]", "[{a: b}]"],
        Shape::Values => &["a", "3", "true", "[a]", "[[a]]", "{a: [b]}", "{a: }"],
        Shape::Hosts => &["a", "3", "true", "[[a]]", "{a: {b: c}}", "{a: [[b]]}"],
        Shape::Items => &["a", "3", "true", "{a: b}", "[[a]]"],
        Shape::Hooks => &["a", "3", "true", "{a: b}", "[a]", "[[a]]"],
        Shape::Files => &["{a: b}", "[[a]]"],
        Shape::Short => &["[a]"],
        Shape::External => &["perhaps", "3", "[a]"],
        Shape::Map => &["a", "3", "true", "[a]"],
    }
}

#[test]
fn every_value_of_a_wrong_type_is_an_error_with_its_line() {
    let mut wrong = Vec::new();
    for key in KEYS {
        let is_carried = matches!(key.support, Support::Carried | Support::Partly);
        // box 14
        assert!(
            !is_carried || key.shape != Shape::Any,
            "{} has no form",
            key.path
        );
        for value in wrong_values(key.shape) {
            let base = "services: {web: {image: 'img:1'}}\n";
            let text = value_at(key.path, value);
            let mut case = Case::new(&[("compose.yaml", base), ("more.yaml", &text)]);
            case.options.files.push("/srv/shop/more.yaml".into());
            let imported = case.import();
            let field = key.path.replace('*', "web").replace("[]", "");
            let is_found = |problem: &Diagnostic| {
                let line = problem.to_string();
                problem.is_error()
                    && line.starts_with("more.yaml:1:")
                    && line.contains(&field)
                    && line.contains(": must be ")
            };
            if !imported.problems.iter().any(is_found) || !imported.is_unreadable() {
                wrong.push(format!("{text}: {:#?}", lines(&imported)));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn an_error_of_a_type_says_what_is_wrong_alone() {
    for (key, error) in [
        (
            "command: {a: b}",
            "compose.yaml:4:14: services.web.command: must be a string or a list of strings",
        ),
        (
            "environment: {A: [1]}",
            "compose.yaml:4:22: services.web.environment.A: must be a string",
        ),
        (
            "networks: [nowhere]",
            "compose.yaml:4:16: services.web.networks: the network nowhere is not defined below networks",
        ),
        (
            "volumes: ['./a:/d']\n    tmpfs: /d/",
            "compose.yaml:2:3: services.web: duplicate mount point: /d/",
        ),
        (
            "expose: [http]",
            "compose.yaml:4:14: services.web.expose: this is not a port of the container",
        ),
        (
            "expose: [90-80]",
            "compose.yaml:4:14: services.web.expose: this is not a port of the container",
        ),
        (
            "expose: ['70000']",
            "compose.yaml:4:14: services.web.expose: this is not a port of the container",
        ),
    ] {
        let text = format!("services:\n  web:\n    image: i\n    {key}\n");
        let imported = Case::new(&[("compose.yaml", &text)]).import();
        let errors: Vec<String> = imported
            .problems
            .iter()
            .filter(|problem| problem.is_error())
            .map(ToString::to_string)
            .collect();
        assert_eq!(errors, [format!("{error} [invalid-value]")]);
    }
}

#[test]
fn keys_that_no_specification_knows_are_reported() {
    let text = "services:\n  web:\n    image: i\n    x-mine: {a: 1}\n    imagee: j\n    deploy: {replica: 2}\nvolume: {}\nx-top: 1\n";
    let said = lines(&Case::new(&[("compose.yaml", text)]).import());
    assert_eq!(said.len(), 3, "{said:#?}");
    for (line, field) in [
        (5, "services.web.imagee"),
        (6, "services.web.deploy.replica"),
        (7, "volume"),
    ] {
        let words = format!(" {field}: this is not a key of the compose specification");
        assert!(
            said.iter()
                .any(|s| s.starts_with(&format!("compose.yaml:{line}:")) && s.contains(&words)),
            "{said:#?}"
        );
    }
}
