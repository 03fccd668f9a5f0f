//! Refused pods of manifests, and edits of them.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::{Command, PodWorkers, Wanted};
use mirrorlet_core::admit::{Failure, FailureCause};
use mirrorlet_core::api::{Pod, PodUid};
use mirrorlet_core::desired::is_same;
use mirrorlet_core::ending::is_api_pod;
use mirrorlet_core::small::SmallCollect;
use mirrorlet_host::telemetry::occurrences;

impl PodWorkers {
    /// The pods of manifests that ended as failed and have a new version.
    pub(super) fn edited_failed(&self, wanted: &Wanted) -> BTreeSet<PodUid> {
        let edited = self.workers.iter().filter(|(uid, handle)| {
            let command = handle.commands.borrow();
            let Command::Fail(known, _) = &*command else {
                return false;
            };
            let pod = wanted.pods.get(*uid);
            !is_api_pod(known) && pod.is_some_and(|pod| !is_same(known, pod))
        });
        edited.map(|(uid, _)| uid.clone()).collect_set()
    }

    /// Handles a refused pod that is refused again. Reports it if the reason differs, or if the pod was
    /// edited: otherwise each end of another pod would change the figures in the message.
    pub(super) fn refuse_again(&self, uid: &PodUid, failure: &Failure, is_edited: bool) {
        let Some(handle) = self.workers.get(uid) else {
            return;
        };
        let is_news = handle.commands.send_if_modified(|command| match command {
            // The status of a pod that ran keeps the reason of its end.
            Command::Fail(_, known)
                if known.cause == FailureCause::Refused
                    && *known != *failure
                    && (is_edited || known.reason != failure.reason) =>
            {
                *known = failure.clone();
                true
            }
            Command::Run(_) | Command::Fail(..) | Command::Stop { .. } => false,
        });
        if is_news {
            let of = self.context.telemetry.pod(&handle.full_name, uid);
            occurrences::note(of, &failure.reason, &failure.message);
        }
    }

    /// Refuses an admitted pod that was edited while it waited for preempted pods to stop.
    pub(super) fn refuse_waiting(&self, pod: &Arc<Pod>, failure: Failure) {
        let uid = PodUid::of(pod);
        self.locks.await_room(&uid, Vec::new());
        if let Some(handle) = self.workers.get(&uid) {
            let of = self.context.telemetry.pod(&handle.full_name, &uid);
            occurrences::note(of, &failure.reason, &failure.message);
            let command = Command::Fail(Arc::clone(pod), failure);
            handle.commands.send_replace(command);
        }
    }
}
