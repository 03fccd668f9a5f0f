//! Scripts of `hack`: whether tests have passed, which tests a script runs, and a sample of our sentences.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

/// Runs `hack/left.sh` on a machine without interfaces, rules and reapers, where the Engine has nothing and
/// fails at the command `fails`. Directories of tests are below `temporary`.
fn left(args: &[&Path], temporary: &Path, fails: &str) -> Output {
    let script = r#"
        docker() { [ "$1" != "$FAILS" ] || { echo "no Engine" >&2; return 1; }; }
        pgrep() { return 1; }
        ip() { :; }
        nft() { :; }
        export -f docker pgrep ip nft
        exec hack/left.sh "$@"
    "#;
    Command::new("bash")
        .args(["-c", script, "left"])
        .args(args)
        .env("FAILS", fails)
        .env("TMPDIR", temporary)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap()
}

#[test]
fn the_look_at_what_tests_left_fails_if_the_engine_is_away() {
    let dir = tempfile::tempdir().unwrap();
    let left = |step: &str, name: &str, fails: &str| {
        let file = dir.path().join(name);
        left(&[Path::new(step), &file], dir.path(), fails)
    };
    let before = left("before", "before", "");
    assert!(before.status.success(), "{before:?}");
    for (step, name) in [("after", "before"), ("before", "other")] {
        for fails in ["ps", "network", "volume", "images"] {
            let looked = left(step, name, fails);
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

/// A run of the tests has a TMPDIR of its own, which goes with it, or before the next run.
#[test]
fn the_temporary_directory_of_a_run_is_removed() {
    let dir = tempfile::tempdir().unwrap();
    let mut ended = Command::new("true").spawn().unwrap();
    assert!(ended.wait().unwrap().success());
    let make = |run: u32| {
        let temporary = dir.path().join(format!("mt.{run}.abc"));
        for inside in ["mirrorlet-test-a/pods/uid", ".tmpb/root"] {
            std::fs::create_dir_all(temporary.join(inside)).unwrap();
        }
        std::fs::write(temporary.join("mirrorlet-test-a/owner"), "o-1\n").unwrap();
        temporary
    };
    let (gone, own) = (make(ended.id()), make(std::process::id()));
    let left = |args: &[&Path]| left(args, dir.path(), "");
    let swept = left(&[Path::new("sweep")]);
    assert!(swept.status.success(), "{swept:?}");
    assert!(!gone.exists(), "its process has ended");
    assert!(own.exists(), "its process still runs");

    let file = dir.path().join("before");
    let before = left(&[Path::new("before"), &file]);
    assert!(before.status.success(), "{before:?}");
    // The bed is named, and not the directory of a test that was cut off.
    let after = left(&[Path::new("after"), &file, &own]);
    assert_eq!(after.status.code(), Some(1), "{after:?}");
    let said = String::from_utf8_lossy(&after.stderr);
    let bed = own.join("mirrorlet-test-a");
    assert!(
        said.contains(&format!("\ndirectory {}\n", bed.display())),
        "{said}"
    );
    let cut_off = own.join(".tmpb").display().to_string();
    assert!(!said.contains(&cut_off), "{said}");
    let removed = left(&[Path::new("remove"), &own]);
    assert!(removed.status.success(), "{removed:?}");
    assert!(!own.exists());
}
