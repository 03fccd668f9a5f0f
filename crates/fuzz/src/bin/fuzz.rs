//! The program that libFuzzer drives; `FUZZ_TARGET` names the target. See `hack/fuzz.sh`.

#![no_main]

use std::sync::OnceLock;

use mirrorlet_fuzz::{TARGETS, Target};

/// Environment variable with the name of the target.
const FUZZ_TARGET: &str = "FUZZ_TARGET";

fn target() -> &'static Target {
    let name = std::env::var(FUZZ_TARGET).unwrap_or_default();
    let found = TARGETS.iter().find(|target| target.name == name);
    found.unwrap_or_else(|| {
        let names: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
        eprintln!(
            "error: {FUZZ_TARGET} is {name:?}; it is one of: {}",
            names.join(" ")
        );
        std::process::exit(2);
    })
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    static CHOSEN: OnceLock<&Target> = OnceLock::new();
    (CHOSEN.get_or_init(target).run)(bytes);
});
