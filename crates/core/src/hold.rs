//! Protects running pods from bad edits: the effect of a source location's current text on the pods,
//! workloads and objects it described.
//!
//! Only removing a file, or a document from an otherwise valid file, removes a pod or an object. For
//! every other problem with a text, its previous content stays in force, as its *last good* version,
//! with the problems attached. The caller stores the last good version (also on disk,
//! `source::last_good`) and passes how long it has seen the current text.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use crate::api::diagnostic::Position;
use crate::api::{Code, Diagnostic, PodUid};
use crate::desired::{Origin, Places, PodSource, SourceObject, SourcePod, SourceWorkload};
use crate::manifest::{Accepted, Document, DocumentKey, Parsed};
use crate::sizes::{DocumentValues, Size};
use crate::small::{SmallCollect, SmallSort};

/// How long a text that looks truncated must stay the same until it is accepted: longer than any editor
/// or copy of a manifest takes between two writes, short enough not to puzzle an author who did remove
/// the end of the file. A guess.
pub const HALF_WRITTEN_HOLD: Duration = Duration::from_secs(10);

/// The last good version of one document.
#[derive(Debug, Clone, PartialEq)]
pub struct LastGoodDocument {
    /// Its number.
    pub number: u32,
    /// Its key.
    pub key: DocumentKey,
    /// The number of values in its lists and mappings, multiplied by the number of its pods.
    pub values: usize,
    /// Its content.
    pub content: Accepted,
}

/// The last good version of everything in one location. Its `Debug` text doesn't contain the text,
/// which may contain secrets.
#[derive(Clone, PartialEq, Default)]
pub struct LastGood {
    /// The last accepted text, which a half-written one is compared with.
    pub raw: Arc<str>,
    /// Whether the text may contain a Secret: it is then kept in memory only.
    pub may_hold_secret: bool,
    /// Its documents, in their order.
    pub documents: Vec<LastGoodDocument>,
}

crate::partial_debug!(LastGood, documents);

impl LastGood {
    /// The number of values of each document.
    pub fn values(&self) -> DocumentValues {
        let documents = self.documents.iter();
        let values = documents.map(|document| (kind_and_name(&document.key), document.values));
        values.collect_map()
    }
}

/// The kind and name of a document as text.
fn kind_and_name(key: &DocumentKey) -> String {
    match key {
        DocumentKey::Pod(name) => format!("Pod {name}"),
        DocumentKey::Object(key) => key.to_string(),
        DocumentKey::Workload(key) => key.to_string(),
    }
}

/// The current state of one location.
#[derive(Clone, Copy)]
pub struct Present<'a> {
    /// Kind of source.
    pub source: PodSource,
    /// File path or URL.
    pub location: &'a str,
    /// The current bytes; empty if they can't be read, in which case `parsed` is the error.
    pub raw: &'a [u8],
    /// Their parsed form.
    pub parsed: &'a Parsed,
    /// How long the bytes have been the same.
    pub seen_for: Duration,
}

/// The decision for one location.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct FileDecision {
    /// The pods to run, by document.
    pub pods: Vec<SourcePod>,
    /// The objects, by document.
    pub objects: Vec<SourceObject>,
    /// The workloads, by document.
    pub workloads: Vec<SourceWorkload>,
    /// Problems that belong to none of the pods.
    pub problems: Vec<Diagnostic>,
    /// The number of values in lists and mappings of the content in force, multiplied by the number of
    /// its pods.
    pub values: usize,
    /// The new last good version; none if it stays as it was.
    pub last_good: Option<LastGood>,
    /// When to decide again though nothing changes, because the text looks half-written.
    pub look_again: Option<Duration>,
}

/// Decides which content is in force for one location.
///
/// - The text as a whole can't be used, or has become empty: everything last good is held.
/// - It looks cut off: everything is held until it has stayed so for [`HALF_WRITTEN_HOLD`], and for as
///   long as anything else is wrong with it.
/// - A document is rejected: the last good version of its key is held; when there is none, it may
///   be any of them under a broken name, and where there are fewer documents than before, it may hold
///   the rest of another one: each one that no accepted document provides is held then.
/// - Accepted documents are in force, and become the last good version. One that changes an immutable
///   object is rejected.
pub fn decide_file(present: Present<'_>, last_good: Option<&LastGood>) -> FileDecision {
    let parsed = present.parsed;
    let known = last_good.map_or(&[][..], |good| &good.documents);
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

/// Everything last good, with what is wrong attached to each pod.
fn hold_all(
    present: Present<'_>,
    known: &[LastGoodDocument],
    problems: Vec<Diagnostic>,
    look_again: Option<Duration>,
) -> FileDecision {
    let mut decision = FileDecision {
        look_again,
        values: known.iter().map(|good| good.values).sum(),
        ..FileDecision::default()
    };
    for good in known {
        decision.hold(present, good, &problems);
    }
    if decision.pods.is_empty() {
        decision.problems = problems;
    }
    decision
}

impl FileDecision {
    /// Whether a part of the last good version is in force in place of a rejected one.
    pub fn holds(&self) -> bool {
        self.pods.iter().any(|pod| pod.held)
            || self.objects.iter().any(|object| object.held)
            || self.workloads.iter().any(|workload| workload.held)
    }

    /// Whether everything in force was in force before.
    pub fn is_former(&self) -> bool {
        self.holds() && self.last_good.is_none()
    }

    /// The size of the content in force, for a text of `bytes` bytes where `former` bytes were in
    /// force.
    pub fn size(&self, bytes: usize, former: usize) -> Size {
        let bytes = if self.is_former() {
            former
        } else if self.holds() {
            bytes.max(former)
        } else {
            bytes
        };
        Size {
            values: self.values,
            bytes,
        }
    }

    /// Puts a document's last good version in force, or only adds its problems if it already is. Those
    /// of an object belong to no pod.
    fn hold(&mut self, present: Present<'_>, good: &LastGoodDocument, problems: &[Diagnostic]) {
        let origin = origin(present, good.number, None);
        self.add_workload(&good.content, &origin, true);
        match &good.content {
            Accepted::Pod(_) | Accepted::Workload(_) => {
                for pod in good.content.pods() {
                    let held = SourcePod {
                        held: true,
                        problems: problems.to_vec(),
                        template: good.content.template().cloned(),
                        runs: good.content.runs().cloned(),
                        ..SourcePod::new(Arc::clone(pod), origin.clone())
                    };
                    self.hold_pod(held);
                }
            }
            Accepted::Object(object) => {
                let same = |known: &SourceObject| known.held && known.object.key() == object.key();
                if !self.objects.iter().any(same) {
                    let object = object.clone();
                    self.objects.push(SourceObject {
                        object,
                        origin,
                        held: true,
                        places: Places::default(),
                    });
                }
            }
            Accepted::Namespace => {}
        }
    }

    /// Adds the workload of a document, if it is one.
    fn add_workload(&mut self, content: &Accepted, origin: &Origin, held: bool) {
        let Accepted::Workload(workload) = content else {
            return;
        };
        let (namespace, owner) = (workload.key.namespace.clone(), workload.key.owner());
        let is_it = |known: &SourceWorkload| {
            let is_named = known.namespace == namespace && known.owner == owner;
            is_named && known.origin.is_same_document(origin)
        };
        if !self.workloads.iter().any(is_it) {
            self.workloads.push(SourceWorkload {
                namespace,
                owner,
                document: Arc::new(workload.canonical.clone()),
                pods: workload
                    .pods
                    .iter()
                    .map(|pod| PodUid::of(pod))
                    .collect_set(),
                set: workload.set.clone(),
                template_hash: workload.template_hash.clone(),
                origin: origin.clone(),
                held,
            });
        }
    }

    fn hold_pod(&mut self, pod: SourcePod) {
        let same = |held: &&mut SourcePod| held.held && held.pod == pod.pod;
        match self.pods.iter_mut().find(same) {
            Some(held) => held.problems.extend(pod.problems),
            None => self.pods.push(pod),
        }
    }

    /// Puts an accepted document in force.
    fn accept(&mut self, present: Present<'_>, document: &Document, content: &Accepted) {
        let origin = origin(present, document.number, document.position);
        let problems = document.problems.iter().cloned();
        self.add_workload(content, &origin, false);
        match content {
            // Nowhere else would a workload without pods show them.
            Accepted::Workload(workload) if workload.pods.is_empty() => {
                self.problems.extend(problems);
            }
            Accepted::Pod(_) | Accepted::Workload(_) => {
                let pods = content.pods().iter().map(|pod| SourcePod {
                    problems: document.problems.clone(),
                    places: Arc::clone(&document.places),
                    template: content.template().cloned(),
                    runs: content.runs().cloned(),
                    ..SourcePod::new(Arc::clone(pod), origin.clone())
                });
                self.pods.extend(pods);
            }
            Accepted::Object(object) => {
                self.problems.extend(problems);
                let object = object.clone();
                self.objects.push(SourceObject {
                    object,
                    origin,
                    held: false,
                    places: Arc::clone(&document.places),
                });
            }
            Accepted::Namespace => self.problems.extend(problems),
        }
    }
}

fn origin(present: Present<'_>, document: u32, position: Option<Position>) -> Origin {
    Origin {
        source: present.source,
        location: present.location.to_owned(),
        document,
        position,
    }
}

/// Whether the text looks like the beginning of a longer one: it is a strict prefix of the last good
/// text with different pods in it, or it is shorter and ends in the middle of a line although the last
/// good one did not.
fn looks_cut_off(present: Present<'_>, good: &LastGood) -> Option<Diagnostic> {
    let before = good.raw.as_bytes();
    if present.raw.len() >= before.len() || same_documents(present.parsed, &good.documents) {
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
fn same_documents(parsed: &Parsed, known: &[LastGoodDocument]) -> bool {
    let present = parsed.documents.iter().filter_map(|doc| {
        let is_kept = doc.accepted.as_ref().is_none_or(|a| a.key().is_some());
        is_kept.then_some((doc.number, doc.accepted.as_ref()))
    });
    present.eq(known.iter().map(|good| (good.number, Some(&good.content))))
}

/// Puts in force what is accepted and holds what is rejected.
fn decide_documents(present: Present<'_>, known: &[LastGoodDocument]) -> FileDecision {
    let documents: Vec<Cow<'_, Document>> = present
        .parsed
        .documents
        .iter()
        .map(|document| unless_immutable(document, known, present.location))
        .collect();
    let mut decision = FileDecision {
        problems: present.parsed.problems.clone(),
        ..FileDecision::default()
    };
    let accepted: Vec<_> = documents.iter().filter_map(|d| as_last_good(d)).collect();
    let provided =
        |good: &[LastGoodDocument], key: &DocumentKey| good.iter().any(|g| g.key == *key);
    let mut good = accepted.clone();
    // Where the line between two documents is lost, one of them has swallowed the other.
    let left = documents.iter().filter(|d| d.accepted.is_none()).count() + accepted.len();
    let is_short = left < known.len();

    for document in &documents {
        if let Some(content) = &document.accepted {
            decision.values += document.values;
            decision.accept(present, document, content);
            continue;
        }
        let free = |g: &&LastGoodDocument| !provided(&accepted, &g.key);
        let named = |g: &&LastGoodDocument| document.key.as_ref() == Some(&g.key);
        let mut stand_ins: Vec<_> = known.iter().filter(free).filter(named).collect();
        let is_known_name = document
            .key
            .as_ref()
            .is_some_and(|key| provided(&accepted, key) || known.iter().any(|g| g.key == *key));
        if !is_known_name || is_short {
            stand_ins = known.iter().filter(free).collect();
        }
        let has_pods = |g: &&LastGoodDocument| !g.content.pods().is_empty();
        if !stand_ins.iter().any(has_pods) {
            decision.problems.extend(document.problems.iter().cloned());
        }
        for stand_in in stand_ins {
            decision.hold(present, stand_in, &document.problems);
            if !provided(&good, &stand_in.key) {
                decision.values += stand_in.values;
                good.push(stand_in.clone());
            }
        }
    }
    decision.pods.small_sort_by(|a, b| a.origin.cmp(&b.origin));
    decision
        .objects
        .small_sort_by(|a, b| a.origin.cmp(&b.origin));
    good.small_sort_by_key(|g| g.number);
    decision.last_good = std::str::from_utf8(present.raw).ok().map(|raw| LastGood {
        raw: raw.into(),
        may_hold_secret: present.parsed.may_hold_secret(),
        documents: good,
    });
    decision
}

/// The document, rejected if it changes an object that is immutable.
fn unless_immutable<'a>(
    document: &'a Document,
    known: &[LastGoodDocument],
    location: &str,
) -> Cow<'a, Document> {
    let (Some(Accepted::Object(new)), Some(key)) = (&document.accepted, &document.key) else {
        return Cow::Borrowed(document);
    };
    let forbids = |good: &LastGoodDocument| match &good.content {
        Accepted::Object(old) => good.key == *key && old.forbids(new),
        Accepted::Pod(_) | Accepted::Workload(_) | Accepted::Namespace => false,
    };
    if !known.iter().any(forbids) {
        return Cow::Borrowed(document);
    }
    let message = format!("{} is immutable; the change is ignored", new.key().words());
    let problem = Diagnostic::error(Code::Immutable, location, message)
        .help("give the changed object another name, or remove this document for a moment and add it again");
    let mut document = document.clone();
    document.accepted = None;
    document.problems.push(Diagnostic {
        position: document.position,
        ..problem
    });
    Cow::Owned(document)
}

fn as_last_good(document: &Document) -> Option<LastGoodDocument> {
    let content = document.accepted.as_ref()?;
    Some(LastGoodDocument {
        number: document.number,
        key: content.key()?,
        values: document.values,
        content: content.clone(),
    })
}

mod overlay;
#[cfg(test)]
mod tests;

pub use overlay::{NewFile, with_files};
