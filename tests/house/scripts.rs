//! Scripts of `hack` that decide whether the tests have passed.

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
