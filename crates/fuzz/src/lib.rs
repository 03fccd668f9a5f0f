//! Fuzz targets for untrusted input that mirrorlet parses. Each target takes any bytes.
//!
//! A target panics if the code under test does, or if a rule is broken that holds for every input.
//! `hack/fuzz.sh` has libFuzzer look for such inputs; the unit tests run each target over its corpus,
//! which keeps every input that was found.
//!
//! `tests/upstream.rs` compares the agent's and the kubelet's results for the manifests of the corpus.

#![expect(clippy::unwrap_used, reason = "a target fails loudly, as tests do")]

mod targets;
#[cfg(test)]
mod tests;

/// One target.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// Its name, and that of its corpus.
    pub name: &'static str,
    /// Reads an input.
    pub run: fn(&[u8]),
}

/// All targets.
pub const TARGETS: &[Target] = &[
    target("answers", targets::answers),
    target("certificates", targets::certificates),
    target("cgroups", targets::cgroups),
    target("compose", targets::compose),
    target("crons", targets::crons),
    target("dns", targets::dns),
    target("kubeconfig", targets::kubeconfig),
    target("labels", targets::labels),
    target("manifests", targets::manifests),
    target("patches", targets::patches),
    target("protobuf", targets::protobuf),
    target("selectors", targets::selectors),
    target("streams", targets::streams),
    target("tars", targets::tars),
    target("words", targets::words),
];

const fn target(name: &'static str, run: fn(&[u8])) -> Target {
    Target { name, run }
}
