//! The record of the credentials that pulled each image, in a small file in the root directory. It
//! decides which pods may use the images on the machine.
//!
//! A pull is recorded before it begins. If the agent is killed during a pull, or the pull is abandoned,
//! the image counts as pulled with unknown credentials.
//!
//! Upstream: `pkg/kubelet/images/pullmanager`.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::PathBuf;

use bollard::models::ImageSummary;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::SANDBOX_IMAGE;
use super::noted::NotedFile;
use super::pulled::named;
use crate::engine::SharedEngine;
use mirrorlet_core::api::Timestamp;
use mirrorlet_core::credentials::{PullSecrets, RegistryAuth, SecretUse, credential_hash};
use mirrorlet_core::image_access::{Access, Known, PulledRecord, Verdict, Verification, verdict};
use mirrorlet_core::reference::Reference;
use mirrorlet_core::small::SmallCollect;
use mirrorlet_host::telemetry::occurrences;

/// Most pulls without a known end that are remembered; those of all pods of a full node fit in.
const PULLS_MAX: usize = 1024;
/// So many records, and those of images that are gone are looked for. Image garbage collection
/// does it long before, unless it is off.
const RECORDS_MAX: usize = 4096;

/// The contents of the file.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Remembered {
    /// By the Engine's id.
    records: BTreeMap<String, PulledRecord>,
    /// Full names of images with a pull that was begun and has no known end.
    pulls: BTreeSet<String>,
    /// Whether earlier records were lost, so that any image may have been pulled.
    lost: bool,
}

/// The record of pulls.
pub(super) struct ImageAccess {
    verification: Verification,
    engine: SharedEngine,
    remembered: NotedFile<Remembered>,
    /// Pulls by full name: those in progress and those with an unknown end.
    pulls: Mutex<BTreeMap<String, Pulls>>,
    /// Whether pulls of an agent before this one were looked for.
    begun: tokio::sync::OnceCell<()>,
}

/// The pulls of one name.
#[derive(Debug, Default)]
struct Pulls {
    under_way: usize,
    /// Whether the outcome of one is unknown, so that the image may be here. The failure of another
    /// pull doesn't change that.
    unseen: bool,
}

/// A pull in progress. If it is dropped without a recorded outcome, the outcome is unknown.
pub(super) struct Pull<'a> {
    access: &'a ImageAccess,
    name: String,
    /// Whether its outcome was recorded.
    ended: bool,
}

impl Drop for Pull<'_> {
    fn drop(&mut self) {
        let mut all = self.access.pulls.lock();
        if let Some(pulls) = all.get_mut(&self.name) {
            pulls.under_way = pulls.under_way.saturating_sub(1);
            pulls.unseen |= !self.ended;
            if pulls.under_way == 0 && !pulls.unseen {
                all.remove(&self.name);
            }
        }
    }
}

impl ImageAccess {
    pub(super) fn new(
        verification: Verification,
        engine: SharedEngine,
        path: Option<PathBuf>,
    ) -> Self {
        Self {
            verification,
            engine,
            remembered: NotedFile::new(path),
            pulls: Mutex::default(),
            begun: tokio::sync::OnceCell::new(),
        }
    }

    /// Whether a pod with these secrets may use a local image under that name.
    pub(super) async fn may_use(&self, id: &str, name: &Reference, secrets: &PullSecrets) -> bool {
        self.begin_life().await;
        let (repository, full) = (name.repository(), name.full());
        // It is part of this program, and there is nothing in it.
        if Reference::parse(SANDBOX_IMAGE).is_ok_and(|ours| ours.full() == full) {
            return true;
        }
        let uses = secrets.uses(&repository);
        let is_being_pulled = self.pulls.lock().contains_key(&full);
        let now = Timestamp::now();
        let (may, written) = self
            .change(|remembered| {
                let known = match remembered.records.get(id) {
                    Some(record) => Known::Record(record),
                    None if is_being_pulled || remembered.lost => Known::Pulled,
                    None => Known::Preloaded,
                };
                match verdict(&self.verification, &repository, known, &uses) {
                    Verdict::Use => true,
                    Verdict::Pull => false,
                    Verdict::UseAndNote(secret) => {
                        if let Some(record) = remembered.records.get_mut(id) {
                            record.add(&repository, Access::Secrets(vec![secret]), now);
                        }
                        true
                    }
                }
            })
            .await;
        not_noted(written);
        may
    }

    /// Records that a pull begins. If the image is known to be absent, no earlier pull brought it.
    ///
    /// # Errors
    /// It can't be recorded. Then nothing may be pulled: after a restart all pods could use the image.
    pub(super) async fn begin(&self, name: &Reference, is_absent: bool) -> io::Result<Pull<'_>> {
        self.begin_life().await;
        let full = name.full();
        {
            let mut pulls = self.pulls.lock();
            if pulls.len() >= PULLS_MAX {
                pulls.retain(|_, pulls| pulls.under_way > 0);
            }
            let pulls = pulls.entry(full.clone()).or_default();
            pulls.unseen &= !is_absent;
            pulls.under_way += 1;
        }
        let mut pull = Pull {
            access: self,
            name: full,
            // Until it is noted, nothing is pulled.
            ended: true,
        };
        let ((), written) = self.change(|_| ()).await;
        written?;
        pull.ended = false;
        Ok(pull)
    }

    /// Records that a pull brought an image, with these credentials or without any.
    pub(super) async fn succeeded(
        &self,
        mut pull: Pull<'_>,
        id: &str,
        name: &Reference,
        with: Option<&RegistryAuth>,
        secrets: &PullSecrets,
    ) {
        let (repository, now) = (name.repository(), Timestamp::now());
        let hash = with.map(credential_hash);
        let uses = secrets.uses(&repository).into_iter();
        let uses: Vec<SecretUse> = uses
            .filter(|secret| Some(&secret.credential_hash) == hash.as_ref())
            .collect();
        // Without credentials, or with the node's, it is for all.
        let access = if uses.is_empty() {
            Access::Node
        } else {
            Access::Secrets(uses)
        };
        let (count, written) = self
            .change(|remembered| {
                let records = &mut remembered.records;
                let record = records
                    .entry(id.to_owned())
                    .or_insert_with(|| PulledRecord::new(now));
                record.add(&repository, access, now);
                records.len()
            })
            .await;
        if let Err(error) = written {
            // The pull stays recorded as one with an unknown end.
            not_noted(Err(error));
            return;
        }
        if let Some(pulls) = self.pulls.lock().get_mut(&pull.name) {
            pulls.unseen = false;
        }
        pull.ended = true;
        self.end(pull).await;
        if count > RECORDS_MAX
            && let Ok(listed) = self.engine.list_images(true).await
        {
            self.prune(&listed, now).await;
        }
    }

    /// Notes that a pull brought nothing.
    pub(super) async fn failed(&self, mut pull: Pull<'_>) {
        pull.ended = true;
        self.end(pull).await;
    }

    async fn end(&self, pull: Pull<'_>) {
        drop(pull);
        let ((), written) = self.change(|_| ()).await;
        not_noted(written);
    }

    /// Forgets removed images, unless they were pulled after `listed_at`.
    pub(super) async fn prune(&self, listed: &[ImageSummary], listed_at: Timestamp) {
        let there: BTreeSet<&str> = listed.iter().map(|image| image.id.as_str()).collect_set();
        let ((), written) = self
            .change(|remembered| {
                let stays = |id: &String, record: &mut PulledRecord| {
                    there.contains(id.as_str()) || record.at >= listed_at
                };
                remembered.records.retain(stays);
            })
            .await;
        not_noted(written);
    }

    /// Retries a failed write of the file, if there was one.
    pub(super) async fn write_due(&self) {
        not_noted(self.remembered.write_due().await);
    }

    /// Settles the pulls that an earlier agent did not see end: images that exist under these names
    /// were pulled.
    async fn begin_life(&self) {
        let look = async {
            let (left, written) = self.change_only(|known| known.pulls.clone()).await;
            not_noted(written);
            if left.is_empty() {
                return;
            }
            {
                let mut pulls = self.pulls.lock();
                for name in &left {
                    pulls.entry(name.clone()).or_default().unseen = true;
                }
            }
            let Ok(listed) = self.engine.list_images(true).await else {
                return;
            };
            let has_left = |image: &&ImageSummary| {
                let names = named(&image.repo_tags).chain(named(&image.repo_digests));
                let mut full = names.filter_map(|name| Some(Reference::parse(name).ok()?.full()));
                full.any(|name| left.contains(&name))
            };
            let now = Timestamp::now();
            let ((), written) = self
                .change(|remembered| {
                    for image in listed.iter().filter(has_left) {
                        let records = &mut remembered.records;
                        let record = records.entry(image.id.clone());
                        record.or_insert_with(|| PulledRecord::new(now));
                    }
                })
                .await;
            not_noted(written);
        };
        self.begun.get_or_init(|| look).await;
    }

    /// Changes the record, including pulls in progress.
    async fn change<R>(&self, change: impl FnOnce(&mut Remembered) -> R) -> (R, io::Result<()>) {
        self.change_only(|remembered| {
            remembered.pulls = self.pulls.lock().keys().cloned().collect_set();
            change(remembered)
        })
        .await
    }

    async fn change_only<R>(
        &self,
        change: impl FnOnce(&mut Remembered) -> R,
    ) -> (R, io::Result<()>) {
        let unreadable = |error: &io::Error| {
            occurrences::image_access_lost(&error.to_string());
            Remembered {
                lost: true,
                ..Remembered::default()
            }
        };
        self.remembered.change(unreadable, change).await
    }
}

fn not_noted(written: io::Result<()>) {
    if let Err(error) = written {
        occurrences::image_access_not_noted(&error.to_string());
    }
}
