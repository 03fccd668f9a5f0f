//! The content of a URL, and the decision about it.

use std::path::Path;
use std::time::Instant;

use bytes::Bytes;

use crate::source::last_good::LastGoodStore;
use mirrorlet_core::api::{Diagnostic, NodeName};
use mirrorlet_core::desired::{PodSource, SourceObject, SourcePod, SourceSet, SourceWorkload};
use mirrorlet_core::hold::{Present, decide_file};
use mirrorlet_core::manifest::{ParseContext, Parsed, parse_manifest};

/// A URL's newest body and what it describes.
#[derive(Debug)]
pub(super) struct Content {
    location: String,
    node_name: NodeName,
    last_good: LastGoodStore,
    load_problems: Vec<Diagnostic>,
    save_problems: Vec<Diagnostic>,
    /// Why the newest attempt failed.
    failure: Option<Diagnostic>,
    /// The newest body, and when it was first seen.
    body: Option<(Bytes, Instant)>,
    pods: Vec<SourcePod>,
    objects: Vec<SourceObject>,
    workloads: Vec<SourceWorkload>,
    problems: Vec<Diagnostic>,
    again: Option<Instant>,
    /// Whether there is anything to deliver.
    synced: bool,
}

impl Content {
    /// Loads what an earlier agent saved. Blocks.
    pub(super) fn load(location: String, root: &Path, node_name: NodeName) -> Self {
        let (last_good, load_problems) =
            LastGoodStore::load(root, PodSource::Http, Some(&location), &node_name);
        Self {
            location,
            node_name,
            last_good,
            load_problems,
            save_problems: Vec::new(),
            failure: None,
            body: None,
            pods: Vec::new(),
            objects: Vec::new(),
            workloads: Vec::new(),
            problems: Vec::new(),
            again: None,
            synced: false,
        }
    }

    /// Processes a valid response: a body, or none if it is unchanged.
    pub(super) fn take(&mut self, body: Option<Bytes>) {
        let now = Instant::now();
        self.failure = None;
        let due = self.again.is_some_and(|again| again <= now);
        let is_news = match (body, &self.body) {
            (Some(body), Some((known, _))) if body == *known => false,
            (Some(body), _) => {
                self.body = Some((body, now));
                true
            }
            (None, _) => false,
        };
        if !is_news && !due {
            return;
        }
        let Some((body, since)) = self.body.clone() else {
            return;
        };
        let context = ParseContext {
            node_name: &self.node_name,
            source: PodSource::Http,
            location: &self.location,
        };
        let parsed = parse_manifest(&body, &context);
        self.decide(&body, &parsed, since, now);
    }

    /// Processes a failure. If there was no body yet, the stored one is used.
    pub(super) fn fail(&mut self, problem: Diagnostic) {
        if self.body.is_none() && self.last_good.get(&self.location).is_some() {
            let now = Instant::now();
            let parsed = Parsed {
                documents: Vec::new(),
                problems: vec![problem.clone()],
            };
            self.decide(&[], &parsed, now, now);
        }
        self.failure = Some(problem);
    }

    fn decide(&mut self, raw: &[u8], parsed: &Parsed, since: Instant, now: Instant) {
        let present = Present {
            source: PodSource::Http,
            location: &self.location,
            raw,
            parsed,
            seen_for: now.saturating_duration_since(since),
        };
        let decision = decide_file(present, self.last_good.get(&self.location));
        if let Some(good) = decision.last_good {
            self.last_good.put(&self.location, good);
        }
        self.pods = decision.pods;
        self.objects = decision.objects;
        self.workloads = decision.workloads;
        self.problems = decision.problems;
        self.again = decision.look_again.map(|wait| now + wait);
        self.synced = true;
    }

    /// When to repeat a request that began at `asked` at the latest, if sooner than usual. A body that
    /// was due by then waits for a valid response, and no failure hastens the next request.
    pub(super) fn again(&self, asked: Instant) -> Option<Instant> {
        self.again.filter(|again| *again > asked)
    }

    /// Writes the new last good version to disk. Blocks. Returns whether that changed the problems.
    pub(super) fn flush(&mut self) -> bool {
        let problems = self.last_good.flush();
        let changed = problems != self.save_problems;
        self.save_problems = problems;
        changed
    }

    /// The set to deliver; `None` before the first valid response, including those to earlier agents.
    pub(super) fn set(&self) -> Option<SourceSet> {
        let mut problems: Vec<_> = self.failure.iter().cloned().collect();
        problems.extend(self.load_problems.iter().cloned());
        problems.extend(self.save_problems.iter().cloned());
        problems.extend(self.problems.iter().cloned());
        self.synced.then(|| SourceSet {
            pods: self.pods.clone(),
            objects: self.objects.clone(),
            workloads: self.workloads.clone(),
            problems,
            ..SourceSet::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use mirrorlet_core::api::Code;
    use mirrorlet_core::hold::HALF_WRITTEN_HOLD;

    use super::*;

    fn pod(name: &str) -> String {
        format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec:\n  containers: [{{name: c, image: i}}]\n"
        )
    }

    fn names(content: &Content) -> Vec<String> {
        let pods = content.pods.iter();
        pods.map(|pod| pod.full_name().name.to_string()).collect()
    }

    #[test]
    fn a_failure_does_not_hurry_the_request_for_a_body_that_is_due() {
        const URL: &str = "http://localhost/pods";
        let root = tempfile::tempdir().unwrap();
        let mut content = Content::load(URL.to_owned(), root.path(), "node".into());
        let both = format!("{}---\n{}", pod("a"), pod("b"));
        let asked = Instant::now();
        content.take(Some(both.into()));
        assert_eq!(content.again(asked), None);
        // It looks half-written.
        content.take(Some(pod("a").into()));
        assert_eq!(names(&content), ["a-node", "b-node"]);
        let again = content.again(asked).unwrap();
        let failure = Diagnostic::error(Code::FetchFailed, URL, "503 Service Unavailable");
        content.fail(failure.clone());
        assert_eq!(content.again(asked), Some(again));

        // The hold has passed.
        let earlier = |at: Instant| at.checked_sub(HALF_WRITTEN_HOLD).unwrap();
        content.body = content.body.map(|(body, since)| (body, earlier(since)));
        content.again = content.again.map(earlier);
        let asked = Instant::now();
        content.fail(failure);
        // pods 10
        assert_eq!(content.again(asked), None);
        assert_eq!(names(&content), ["a-node", "b-node"]);
        content.take(None);
        // pods 10
        assert_eq!(names(&content), ["a-node"]);
        assert_eq!(content.again(asked), None);
    }
}
