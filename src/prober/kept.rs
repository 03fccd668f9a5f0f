//! Probe results saved for the next agent: which containers were ready and had started.
//!
//! Without them, every pod with probes would be unready for a moment after each restart of the agent,
//! though nothing has happened to it. A loss, for example by a `kill -9` right after a change, has only
//! that effect.
//!
//! Upstream: since 1.35 a kubelet keeps these two over its restarts, as the API server has them
//! (`ChangeContainerStatusOnKubeletRestart`); here there may be none.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use mirrorlet_core::api::PodUid;
use mirrorlet_core::probe::ProbeResults;
use mirrorlet_core::small::SmallCollect;
use mirrorlet_host::disk::{blocking, replace};

/// The file, under the root.
pub const KEPT_FILE: &str = "probes.json";

/// Results by pod.
pub(super) type StoredResults = BTreeMap<PodUid, ProbeResults>;

/// Reads what the last agent saved; nothing if there is no readable file.
pub(super) fn read(path: &Path) -> StoredResults {
    let found = std::fs::read(path).map_err(|error| error.to_string());
    let read = found.and_then(|bytes| {
        serde_json::from_slice::<StoredResults>(&bytes).map_err(|error| error.to_string())
    });
    match read {
        Ok(kept) => kept
            .into_iter()
            .map(|(uid, results)| (uid, results.kept()))
            .collect_map(),
        Err(error) => {
            tracing::debug!(error = error, "failed to read the saved probe results");
            StoredResults::default()
        }
    }
}

/// Saves results for the next agent, atomically.
pub(super) async fn write(path: PathBuf, kept: &StoredResults) -> io::Result<()> {
    let text = serde_json::to_vec(kept)?;
    blocking(move || replace(&path, &text)).await
}
