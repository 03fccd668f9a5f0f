//! Scripts of `hack`: whether tests have passed, which tests a script runs, and a sample of our sentences.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

/// Runs `hack/left.sh` on a machine without interfaces and reapers, where the Engine has nothing, and fails at
/// the command `fails`.
fn left(step: &str, file: &Path, fails: &str) -> Output {
    let script = r#"
        docker() { [ "$1" != "$FAILS" ] || { echo "no Engine" >&2; return 1; }; }
        pgrep() { return 1; }
        ip() { :; }
        export -f docker pgrep ip
        exec hack/left.sh "$@"
    "#;
    Command::new("bash")
        .args(["-c", script, "left", step])
        .arg(file)
        .env("FAILS", fails)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap()
}

#[test]
fn the_look_at_what_tests_left_fails_if_the_engine_is_away() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str| dir.path().join(name);
    let before = left("before", &file("before"), "");
    assert!(before.status.success(), "{before:?}");
    for (step, name) in [("after", "before"), ("before", "other")] {
        for fails in ["ps", "network", "volume", "images"] {
            let looked = left(step, &file(name), fails);
            assert!(!looked.status.success(), "{step} {fails}");
            let said = String::from_utf8_lossy(&looked.stderr);
            assert_eq!(said, "no Engine\n", "{step} {fails}");
        }
    }
}

/// Runs `run_test` of `hack/lib.sh` with a cargo that prints that.
fn run_test(printed: &str, code: &str) -> Output {
    let script = r#"
        cargo() { printf '%s\n' "$PRINTED"; return "$CODE"; }
        . hack/lib.sh
        run_test mirrorlet-core the_page
    "#;
    Command::new("bash")
        .args(["-euo", "pipefail", "-c", script])
        .env("PRINTED", printed)
        .env("CODE", code)
        .env_remove("CARGO")
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap()
}

#[test]
fn a_script_that_runs_a_test_fails_if_there_is_none_of_that_name() {
    for (printed, code, fails) in [
        ("running 1 test\ntest a::tests::the_page ... ok", "0", None),
        ("test the_page ... ok", "0", None),
        ("running 0 tests", "0", Some("has no test the_page")),
        (
            "test the_page_of_another ... ok",
            "0",
            Some("has no test the_page"),
        ),
        (
            "test the_page ... FAILED",
            "101",
            Some("the test the_page of mirrorlet-core failed"),
        ),
    ] {
        let ran = run_test(printed, code);
        let said = String::from_utf8_lossy(&ran.stderr);
        assert_eq!(ran.status.success(), fails.is_none(), "{printed}: {said}");
        assert!(
            said.contains(fails.unwrap_or_default()),
            "{printed}: {said}"
        );
    }
}

#[test]
fn the_test_that_writes_the_pod_spec_page_is_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let script = fs::read_to_string(root.join("hack/pod-spec.sh")).unwrap();
    let (_, test) = script.split_once("run_test mirrorlet-core ").unwrap();
    let head = format!("fn {}()", test.lines().next().unwrap());
    let tests = root.join("crates/core/src/manifest/support/tests.rs");
    assert!(fs::read_to_string(tests).unwrap().contains(&head), "{head}");
}

fn sentences(seed: &str) -> Output {
    Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/hack/sentences.sh"))
        .arg(seed)
        .env("MIRRORLET", env!("CARGO_BIN_EXE_mirrorlet"))
        .output()
        .unwrap()
}

#[test]
fn a_seed_draws_twenty_sentences_of_all_kinds() {
    let [first, again, other] = ["13", "13", "14"].map(sentences);
    let text = String::from_utf8(first.stdout).unwrap();
    let drawn = |kind: &str| text.lines().filter(|line| line.starts_with(kind)).count();
    let kinds = ["- help, mirrorlet", "- message, ", "- docs, "].map(drawn);
    let said = String::from_utf8_lossy(&first.stderr);
    assert_eq!(kinds, [6, 7, 7], "{text}{said}");
    assert_eq!(text.lines().count(), 20, "{text}");
    assert_eq!(again.stdout, text.as_bytes());
    assert!(other.status.success() && other.stdout != again.stdout);
    assert!(!sentences("thirteen").status.success());
}
