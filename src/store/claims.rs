//! The bindings of claims, on disk: one small file per claim under `<root>/claims/`. It stays when the
//! claim's document is removed, so that the claim finds its data once the document is back.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, oneshot};

use super::kept::{Claim, StateDir, file_name};
use mirrorlet_core::api::{Code, Diagnostic};
use mirrorlet_core::objects::claims::{Bindings, Bound, ClaimName, VolumeSeen};
use mirrorlet_host::telemetry::occurrences;

/// Name of the directory under the root.
const DIRECTORY: &str = "claims";
/// Version of the file format. A file of another version is set aside.
const FORMAT_VERSION: u32 = 1;
/// Largest file that is read, in bytes: names and driver options, which are part of a manifest.
const STORED_BYTES_MAX: u64 = 1 << 20;

/// Most claims that wait for their release.
const RELEASES_MAX: usize = 16;

#[derive(Serialize, Deserialize)]
struct Stored {
    version: u32,
    claim: ClaimName,
    bound: Bound,
}

/// A claim that is to lose its binding.
#[derive(Debug)]
pub struct Release {
    claim: ClaimName,
    done: oneshot::Sender<bool>,
}

/// Releases claims.
#[derive(Debug, Clone)]
pub struct ClaimHandle(mpsc::Sender<Release>);

impl ClaimHandle {
    /// Removes the binding of a claim: the claim is bound again when a pod next uses it. Returns
    /// whether it is unbound, once the merge without it is published.
    pub async fn release(&self, claim: ClaimName) -> bool {
        let (done, released) = oneshot::channel();
        let sent = self.0.send(Release { claim, done }).await.is_ok();
        sent && released.await == Ok(true)
    }
}

/// The receiving end of a [`ClaimHandle`].
pub type Releases = mpsc::Receiver<Release>;

/// A way to release claims, and its receiving end.
pub fn releases() -> (ClaimHandle, Releases) {
    let (sender, receiver) = mpsc::channel(RELEASES_MAX);
    (ClaimHandle(sender), receiver)
}

/// The bindings, and the directory that holds them.
#[derive(Debug, Default)]
pub struct ClaimStore {
    kept: StateDir,
    saved: Bindings,
    /// Answers to release requests: whether the claim has no binding.
    answers: Vec<(oneshot::Sender<bool>, bool)>,
}

impl ClaimStore {
    /// Reads the bindings. Blocks.
    pub fn load(root: &Path) -> Self {
        let kept = StateDir {
            dir: root.join(DIRECTORY),
            what: "binding of a claim",
            version: FORMAT_VERSION,
            bytes_max: STORED_BYTES_MAX,
            ..StateDir::default()
        };
        let header = |stored: &Stored| Claim {
            version: stored.version,
            name: Some(file_name(&stored.claim)),
        };
        let mut saved = Bindings::new();
        let problems = kept.read_all(header, |stored: Stored, _| {
            saved.insert(stored.claim, stored.bound);
        });
        for problem in &problems {
            occurrences::manifest_problem(problem);
        }
        Self {
            kept,
            saved,
            answers: Vec::new(),
        }
    }

    /// The bindings on disk.
    pub fn bindings(&self) -> &Bindings {
        &self.saved
    }

    /// Writes new bindings, and removes dropped ones. Returns the bindings on disk: a claim whose
    /// binding can't be written isn't bound, until a later call.
    pub async fn keep(&mut self, bindings: &Bindings) -> &Bindings {
        let new = bindings
            .iter()
            .filter(|(name, bound)| self.saved.get(*name) != Some(*bound));
        let new: Vec<_> = new
            .map(|(name, bound)| (name.clone(), Some(bound.clone())))
            .collect();
        let gone = self
            .saved
            .keys()
            .filter(|name| !bindings.contains_key(*name));
        let changes: Vec<_> = gone.map(|name| (name.clone(), None)).chain(new).collect();
        if changes.is_empty() {
            return &self.saved;
        }
        let written = self.kept.keep_named(changes, |claim, bound| Stored {
            version: FORMAT_VERSION,
            claim,
            bound,
        });
        for (name, bound, result) in written.await {
            match (result, bound) {
                (Ok(()), Some(bound)) => {
                    self.saved.insert(name, bound);
                }
                (Ok(()), None) => {
                    self.saved.remove(&name);
                }
                (Err(error), _) => {
                    let dir = self.kept.dir.display().to_string();
                    let message = format!("failed to write the binding of claim {name}: {error}");
                    let problem = Diagnostic::warning(Code::Unreadable, dir, message);
                    occurrences::manifest_problem(&problem);
                }
            }
        }
        &self.saved
    }

    /// Records what the Engine reported about the volumes of claims.
    pub async fn saw(&mut self, volumes: &BTreeMap<ClaimName, VolumeSeen>) {
        let mut bindings = self.saved.clone();
        for (claim, seen) in volumes {
            if let Some(bound) = bindings.get_mut(claim) {
                bound.saw(seen);
            }
        }
        self.keep(&bindings).await;
    }

    /// Removes the binding of a claim. The caller waits for [`answer`](Self::answer).
    pub async fn release(&mut self, release: Release) {
        let mut bindings = self.saved.clone();
        bindings.remove(&release.claim);
        let kept = self.keep(&bindings).await;
        let is_released = !kept.contains_key(&release.claim);
        self.answers.push((release.done, is_released));
    }

    /// Answers the release requests. The merge without their bindings is published by then.
    pub fn answer(&mut self) {
        for (done, is_released) in self.answers.drain(..) {
            // The receiver is gone if the client has disconnected.
            let _ = done.send(is_released);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_release_is_answered_after_the_merge_without_the_binding() {
        let root = tempfile::tempdir().unwrap();
        let claim = ClaimName::new("default", "db");
        let mut store = ClaimStore::load(root.path());
        let bound = Bound::Volume("disk".to_owned());
        store.keep(&Bindings::from([(claim.clone(), bound)])).await;
        let (handle, mut releases) = releases();
        let asking = tokio::spawn(async move { handle.release(claim).await });
        let release = releases.recv().await.unwrap();
        store.release(release).await;
        assert!(store.bindings().is_empty());
        tokio::task::yield_now().await;
        // box 7
        assert!(!asking.is_finished(), "answered before the merge");
        store.answer();
        assert!(asking.await.unwrap());
    }
}
