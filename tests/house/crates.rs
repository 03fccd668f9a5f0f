//! Holds the crates to what their manifests promise, as Cargo itself reads them: which depend on what,
//! which stand alone and could be published, and how few test programs there are.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::layering::PURE;

/// Crates that `core` and `compose` must not depend on, however indirectly: no async runtime, no wire.
const PURE_FORBIDS: &[&str] = &[
    "tokio", "futures", "bollard", "kube", "hyper", "http", "axum", "tracing", "notify",
];

/// Crates for programs of others too, which depend on no other crate of the workspace.
const ALONE: [&str; 2] = ["mirrorlet-dns", "mirrorlet-streaming"];

/// Most integration test programs: each links its crate, and most of them the whole agent.
const TEST_PROGRAMS_MAX: usize = 12;

/// Most keywords, and most categories, of a crate that crates.io takes.
const WORDS_MAX: usize = 5;

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// Runs Cargo without network, and returns its output.
fn cargo(args: &[&str]) -> String {
    let output = Command::new(env!("CARGO"))
        .args(args)
        .args(["--locked", "--offline"])
        .current_dir(root())
        .output()
        .unwrap();
    assert!(output.status.success(), "{args:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// All that a package depends on, itself included, one a line.
fn tree(package: &str, edges: &str, format: &str) -> String {
    cargo(&[
        "tree",
        "--package",
        package,
        "--edges",
        edges,
        "--prefix",
        "none",
        "--format",
        format,
    ])
}

/// The packages of the workspace.
fn packages() -> Vec<Value> {
    let metadata = cargo(&["metadata", "--no-deps", "--format-version", "1"]);
    let mut metadata: Value = serde_json::from_str(&metadata).unwrap();
    serde_json::from_value(metadata["packages"].take()).unwrap()
}

/// The items of an array.
fn items(value: &Value) -> &[Value] {
    value.as_array().unwrap()
}

/// Cargo only warns of a patch that applies to nothing any more.
#[test]
fn no_patch_is_unused() {
    let lock = fs::read_to_string(root().join("Cargo.lock")).unwrap();
    // tenants L7
    assert!(
        !lock.contains("[[patch.unused]]"),
        "see the end of Cargo.lock"
    );
}

#[test]
fn pure_crates_depend_on_no_runtime_and_no_wire() {
    for (name, _) in PURE {
        let package = format!("mirrorlet-{name}");
        let tree = tree(&package, "normal,dev", "{lib}");
        assert!(tree.lines().any(|lib| lib == "serde"), "not read: {tree}");
        for forbidden in PURE_FORBIDS {
            assert!(
                !tree.lines().any(|lib| lib == *forbidden),
                "{package} depends on {forbidden}"
            );
        }
    }
}

#[test]
fn crates_for_others_depend_on_none_of_ours() {
    for package in ALONE {
        let tree = tree(package, "normal,build,dev", "{p}");
        let names = tree.lines().filter_map(|line| line.split(' ').next());
        let mut ours: Vec<&str> = names.filter(|name| name.starts_with("mirrorlet")).collect();
        ours.dedup();
        assert_eq!(ours, [package], "{tree}");
    }
}

#[test]
fn only_the_dns_crate_speaks_dns() {
    for package in packages() {
        let dependencies = items(&package["dependencies"]).iter();
        let mut names = dependencies.map(|dependency| dependency["name"].as_str().unwrap());
        let speaks = names.any(|name| name.starts_with("hickory"));
        let name = &package["name"];
        assert_eq!(speaks, name == "mirrorlet-dns", "{name}");
    }
}

#[test]
fn crates_for_others_have_what_a_registry_asks_for() {
    let packages = packages();
    for name in ALONE {
        let package = packages.iter().find(|package| package["name"] == name);
        let package = package.unwrap();
        for field in ["description", "license", "repository", "readme"] {
            let text = package[field].as_str().unwrap_or_default();
            assert!(!text.is_empty(), "{name} has no {field}");
        }
        let manifest = Path::new(package["manifest_path"].as_str().unwrap());
        let readme = package["readme"].as_str().unwrap();
        assert!(manifest.with_file_name(readme).is_file(), "{name}");
        assert!(
            package["publish"].is_null(),
            "{name}: {}",
            package["publish"]
        );
        for field in ["keywords", "categories"] {
            let words = items(&package[field]).len();
            assert!((1..=WORDS_MAX).contains(&words), "{name}: {field}");
        }
        // Neither a directory nor just any version.
        for dependency in items(&package["dependencies"]) {
            let source = dependency["source"].as_str().unwrap_or_default();
            let is_published = source.starts_with("registry+") && dependency["req"] != "*";
            assert!(is_published, "{name}: {dependency}");
        }
    }
}

#[test]
fn there_are_few_integration_test_programs() {
    let packages = packages();
    let targets = packages.iter().flat_map(|package| {
        let targets = items(&package["targets"]).iter();
        targets.map(move |target| (&package["name"], target))
    });
    let tests =
        targets.filter(|(_, target)| items(&target["kind"]).iter().any(|kind| kind == "test"));
    let tests: Vec<String> = tests
        .map(|(package, target)| format!("{package}: {}", target["name"]))
        .collect();
    assert!(!tests.is_empty(), "not read: {packages:?}");
    assert!(
        tests.len() <= TEST_PROGRAMS_MAX,
        "{} test programs: put the new one's modules into another: {tests:#?}",
        tests.len()
    );
}
