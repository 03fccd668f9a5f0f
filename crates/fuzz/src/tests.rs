//! Every target over its corpus: seeds, and every input that a fuzzer found.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::TARGETS;

/// Environment variables that name an input more, and its target: how a finding is played again.
const FUZZ_INPUT: &str = "FUZZ_INPUT";
const FUZZ_TARGET: &str = "FUZZ_TARGET";

fn corpus() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus")
}

fn files(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).unwrap_or_else(|error| panic!("{}: {error}", dir.display()));
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

#[test]
fn every_target_reads_its_corpus() {
    for target in TARGETS {
        let files = files(&corpus().join(target.name));
        assert!(!files.is_empty(), "{} has no corpus", target.name);
        for file in files {
            // Shown when one fails.
            println!("{} {}", target.name, file.display());
            (target.run)(&fs::read(&file).unwrap());
        }
        (target.run)(&[]);
    }
}

#[test]
fn every_corpus_has_its_target() {
    let dirs = files(&corpus());
    let dirs: BTreeSet<_> = dirs
        .iter()
        .filter_map(|dir| dir.file_name()?.to_str())
        .collect();
    let names: BTreeSet<_> = TARGETS.iter().map(|target| target.name).collect();
    assert_eq!(dirs, names);
}

#[test]
fn an_input_named_by_the_environment_is_read() {
    let Some(input) = std::env::var_os(FUZZ_INPUT) else {
        return;
    };
    let name = std::env::var(FUZZ_TARGET).unwrap_or_default();
    let target = TARGETS.iter().find(|target| target.name == name);
    let target = target.unwrap_or_else(|| panic!("{FUZZ_TARGET} names no target: {name:?}"));
    (target.run)(&fs::read(input).unwrap());
}
