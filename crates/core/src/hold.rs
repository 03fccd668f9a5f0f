//! A bad edit never hurts: what a source location's present text means for the pods it described.
//!
//! Only removing a file, or a document from a file that is otherwise sound, takes a pod away.
//! Everything else that is wrong with a text leaves the pods it described before running, as their
//! *last good* version, with the problems attached. The caller keeps the last good version (also on
//! disk, `source::last_good`) and says for how long it has seen the present text.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use crate::api::{Code, Diagnostic, FullName, Pod, PodUid};
use crate::desired::{Origin, PodSource, SourcePod};
use crate::manifest::{Document, Parsed};

/// How long a text that looks cut off must stay the same until it is believed: longer than any
/// editor or copy of a manifest takes between two writes, short enough not to puzzle an author who
/// did remove the end of the file. A guess.
pub const HALF_WRITTEN_HOLD: Duration = Duration::from_secs(10);

/// The last good version of one pod.
#[derive(Debug, Clone, PartialEq)]
pub struct LastGoodPod {
    /// Number of its document.
    pub number: u32,
    /// Its full name.
    pub full_name: FullName,
    /// Its UID.
    pub uid: PodUid,
    /// The manifest as its author wrote it.
    pub canonical: Value,
    /// The pod.
    pub pod: Arc<Pod>,
}

/// The last good version of everything one location describes.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct LastGood {
    /// The text last acted upon: what a half-written one is recognised against.
    pub raw: Arc<str>,
    /// Its pods, by document.
    pub pods: Vec<LastGoodPod>,
}

/// The current state of one location.
#[derive(Debug, Clone, Copy)]
pub struct Present<'a> {
    /// Kind of source.
    pub source: PodSource,
    /// File path or URL.
    pub location: &'a str,
    /// The present bytes; empty when they can't be read, which `parsed` then says.
    pub raw: &'a [u8],
    /// Their parsed form.
    pub parsed: &'a Parsed,
    /// For how long the bytes have been the same.
    pub seen_for: Duration,
}

/// The decision for one location.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct FileDecision {
    /// The pods to run, by document.
    pub pods: Vec<SourcePod>,
    /// Problems that belong to none of the pods.
    pub problems: Vec<Diagnostic>,
    /// The new last good version; none when it stays as it was.
    pub last_good: Option<LastGood>,
    /// When to decide again though nothing changes: the text looks half-written.
    pub look_again: Option<Duration>,
}

/// Decides what runs for one location.
///
/// - The text as a whole can't be used, or has become empty: all last good pods are held.
/// - It looks cut off: all are held until it has stayed so for [`HALF_WRITTEN_HOLD`], and for as
///   long as anything else is wrong with it.
/// - A document is rejected: the last good pod of its full name is held; when there is none, it may
///   be any of them under a broken name, so each one that no accepted document provides is held.
/// - Accepted documents run, and become the last good version.
#[must_use]
pub fn decide_file(present: Present<'_>, last_good: Option<&LastGood>) -> FileDecision {
    let parsed = present.parsed;
    let known = last_good.map_or(&[][..], |good| &good.pods);
    if parsed.problems.iter().any(Diagnostic::is_error) {
        return hold_all(present, known, parsed.problems.clone(), None);
    }
    if let Some(good) = last_good
        && let Some(cut) = looks_cut_off(present, good)
    {
        let has_errors = parsed.documents.iter().any(|doc| doc.accepted.is_none());
        let remaining = HALF_WRITTEN_HOLD.saturating_sub(present.seen_for);
        if has_errors || !remaining.is_zero() {
            let documents = parsed.documents.iter();
            let errors = documents.flat_map(|doc| doc.problems.iter().cloned());
            let problems = std::iter::once(cut).chain(errors).collect();
            let look_again = (!has_errors).then_some(remaining);
            return hold_all(present, known, problems, look_again);
        }
    }
    decide_documents(present, known)
}

/// All last good pods, with everything that is wrong attached to each.
fn hold_all(
    present: Present<'_>,
    known: &[LastGoodPod],
    problems: Vec<Diagnostic>,
    look_again: Option<Duration>,
) -> FileDecision {
    let pods: Vec<_> = known
        .iter()
        .map(|good| held(present, good, &problems))
        .collect();
    FileDecision {
        problems: if pods.is_empty() {
            problems
        } else {
            Vec::new()
        },
        pods,
        last_good: None,
        look_again,
    }
}

fn held(present: Present<'_>, good: &LastGoodPod, problems: &[Diagnostic]) -> SourcePod {
    SourcePod {
        pod: Arc::clone(&good.pod),
        origin: Origin {
            source: present.source,
            location: present.location.to_owned(),
            document: good.number,
            position: None,
        },
        held: true,
        problems: problems.to_vec(),
        rollout: None,
    }
}

/// Whether the text looks like the beginning of a longer one: it is a strict prefix of the last
/// good text with other pods in it, or it is shorter and ends in the middle of a line where the
/// last good one did not.
fn looks_cut_off(present: Present<'_>, good: &LastGood) -> Option<Diagnostic> {
    let before = good.raw.as_bytes();
    if present.raw.len() >= before.len() || same_pods(present.parsed, &good.pods) {
        return None;
    }
    let is_prefix = before.starts_with(present.raw);
    let ends_mid_line = before.ends_with(b"\n") && !present.raw.ends_with(b"\n");
    (is_prefix || ends_mid_line).then(|| {
        let message = format!(
            "the text ends after {} of {} bytes and looks half-written; the previous version keeps running",
            present.raw.len(),
            before.len()
        );
        Diagnostic::error(Code::HalfWritten, present.location, message).help(format!(
            "save the complete file; if its end was removed on purpose, the change takes effect after {} s",
            HALF_WRITTEN_HOLD.as_secs()
        ))
    })
}

/// Whether the documents are exactly the last good ones.
fn same_pods(parsed: &Parsed, known: &[LastGoodPod]) -> bool {
    let present = parsed.documents.iter().map(|doc| {
        let accepted = doc.accepted.as_ref()?;
        Some((doc.number, &accepted.canonical))
    });
    present.eq(known
        .iter()
        .map(|good| Some((good.number, &good.canonical))))
}

/// Runs what is accepted and holds what is rejected.
fn decide_documents(present: Present<'_>, known: &[LastGoodPod]) -> FileDecision {
    let documents = &present.parsed.documents;
    let mut decision = FileDecision {
        problems: present.parsed.problems.clone(),
        ..FileDecision::default()
    };
    let mut good: Vec<LastGoodPod> = documents.iter().filter_map(as_last_good).collect();
    let provided =
        |good: &[LastGoodPod], name: &FullName| good.iter().any(|g| g.full_name == *name);
    let accepted = good.clone();

    for document in documents {
        if let Some(pod) = &document.accepted {
            decision
                .pods
                .push(accepted_pod(present, document, &pod.pod));
            continue;
        }
        let free = |g: &&LastGoodPod| !provided(&accepted, &g.full_name);
        let named = |g: &&LastGoodPod| document.full_name.as_ref() == Some(&g.full_name);
        let mut stand_ins: Vec<_> = known.iter().filter(free).filter(named).collect();
        let is_known_name = document.full_name.as_ref().is_some_and(|name| {
            provided(&accepted, name) || known.iter().any(|g| g.full_name == *name)
        });
        if !is_known_name {
            stand_ins = known.iter().filter(free).collect();
        }
        if stand_ins.is_empty() {
            decision.problems.extend(document.problems.iter().cloned());
        }
        for stand_in in stand_ins {
            hold_one(
                &mut decision.pods,
                held(present, stand_in, &document.problems),
            );
            if !provided(&good, &stand_in.full_name) {
                good.push(stand_in.clone());
            }
        }
    }
    decision.pods.sort_by(|a, b| a.origin.cmp(&b.origin));
    good.sort_by_key(|g| g.number);
    decision.last_good = std::str::from_utf8(present.raw).ok().map(|raw| LastGood {
        raw: raw.into(),
        pods: good,
    });
    decision
}

/// Adds a held pod, or only its problems when it is there already.
fn hold_one(pods: &mut Vec<SourcePod>, held: SourcePod) {
    let same = |pod: &&mut SourcePod| pod.held && pod.uid() == held.uid();
    match pods.iter_mut().find(same) {
        Some(present) => present.problems.extend(held.problems),
        None => pods.push(held),
    }
}

fn accepted_pod(present: Present<'_>, document: &Document, pod: &Arc<Pod>) -> SourcePod {
    SourcePod {
        pod: Arc::clone(pod),
        origin: Origin {
            source: present.source,
            location: present.location.to_owned(),
            document: document.number,
            position: document.position,
        },
        held: false,
        problems: document.problems.clone(),
        rollout: None,
    }
}

fn as_last_good(document: &Document) -> Option<LastGoodPod> {
    let accepted = document.accepted.as_ref()?;
    Some(LastGoodPod {
        number: document.number,
        full_name: FullName::of(&accepted.pod),
        uid: PodUid::of(&accepted.pod),
        canonical: accepted.canonical.clone(),
        pod: Arc::clone(&accepted.pod),
    })
}

mod overlay;
#[cfg(test)]
mod tests;

pub use overlay::{NewFile, with_files};
