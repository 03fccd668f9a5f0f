//! The targets, by what is read.

mod api;
mod dns;
mod documents;
mod engine;
mod host;
mod streams;

pub(crate) use api::{patches, protobuf, selectors};
pub(crate) use dns::dns;
pub(crate) use documents::{compose, crons, manifests, words};
pub(crate) use engine::{answers, labels};
pub(crate) use host::{certificates, cgroups, kubeconfig, tars};
pub(crate) use streams::streams;

/// The first byte, which chooses among the forms of an input, and the rest.
fn choice(bytes: &[u8]) -> (u8, &[u8]) {
    let (first, rest) = bytes.split_first().unwrap_or((&0, &[]));
    (*first, rest)
}

/// The text of an input; empty if it is not UTF-8.
fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap_or_default()
}

/// The parts of an input, which a line of its own, `---8<---`, separates.
fn parts(text: &str) -> impl Iterator<Item = &str> {
    text.split("\n---8<---\n")
}
