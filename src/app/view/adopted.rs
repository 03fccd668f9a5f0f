//! Running pods that no source has delivered: those of an earlier agent, after a start.

use std::sync::Arc;

use super::View;
use super::pods::{named, report};
use crate::store::board::{Phase, PodView};
use mirrorlet_core::api::report::{PodReport, UNKNOWN};
use mirrorlet_core::api::{Pod, PodUid};
use mirrorlet_core::merge::Merged;
use mirrorlet_core::node::RuntimeReach;
use mirrorlet_core::observed::PodStatus;
use mirrorlet_core::small::SmallCollect;

/// Why a pod that runs is unknown.
const UNWANTED: &str = "no source contains it";
/// The same while a source that was not read yet may want it.
const UNREAD: &str =
    "no source contains it so far; it keeps running until all sources have been read";

impl View {
    /// Returns the reports of running pods that no source has delivered. They are left alone until
    /// every source was read. `others` are the reports of all other pods.
    pub(super) fn adopted(&self, merged: &Merged, others: &[PodReport]) -> Vec<PodReport> {
        let reported = others.iter().map(|pod| &pod.uid);
        let known = reported.chain(merged.beside.keys()).collect_set();
        let is_known = |uid: &PodUid| known.contains(uid) || merged.finished.contains(uid);
        let node = self.resolved.config.node_name.as_str();
        let entries = self.cache.all().into_iter().map(|entry| entry.status);
        entries
            .filter(|status| !status.is_empty() && !is_known(&status.uid))
            .map(|status| {
                let version = self.rollouts.version(&status.full_name, &status.uid);
                let may_stop = merged.delivered.may_stop(&status.uid);
                adopted(status, version, node, may_stop, &self.reach.borrow())
            })
            .collect()
    }
}

/// Returns the report of a pod that no source has delivered. `version` is its last wanted version, if
/// known; it `may_stop` once every source that it may come from was read.
fn adopted(
    observed: Arc<PodStatus>,
    version: Option<Arc<Pod>>,
    node: &str,
    may_stop: bool,
    reach: &RuntimeReach,
) -> PodReport {
    let view = PodView {
        uid: observed.uid.clone(),
        full_name: observed.full_name.clone(),
        pod: version,
        phase: Phase::Syncing,
        status: None,
        observed,
        error: "".into(),
        failed_probe: None,
        awaits: Arc::default(),
    };
    let unknown = || Arc::new(named(&view, node));
    let pod = view.pod.clone().unwrap_or_else(unknown);
    let report = report(&pod, None, Some(&view), reach);
    let message = match reach {
        RuntimeReach::Down(_) => report.message,
        RuntimeReach::Up | RuntimeReach::Unknown => {
            let words = if may_stop { UNWANTED } else { UNREAD };
            words.to_owned()
        }
    };
    PodReport {
        status: UNKNOWN.to_owned(),
        phase: UNKNOWN.to_owned(),
        message,
        ..report
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mirrorlet_core::api::{FullName, keys};

    #[test]
    fn a_pod_that_no_source_has_is_reported() {
        let observed = || PodStatus {
            full_name: FullName::new("web-n", "default"),
            ..PodStatus::empty("u".into())
        };
        let version = serde_json::json!({
            "metadata": {
                "name": "web-n", "namespace": "default", "uid": "u",
                "annotations": {keys::WORKLOAD: "Deployment/web"},
            },
            "spec": {"nodeName": "n", "containers": [{"name": "app"}]},
        });
        let version: Arc<Pod> = Arc::new(serde_json::from_value(version).unwrap());
        let down = || RuntimeReach::Down("refused".into());
        let away = "waiting for the Docker Engine: refused";
        let owner = Some("Deployment/web");
        for (version, may_stop, reach, owner, message) in [
            (None, false, RuntimeReach::Up, None, UNREAD),
            (None, true, RuntimeReach::Up, None, UNWANTED),
            (Some(version), true, down(), owner, away),
        ] {
            let report = adopted(Arc::new(observed()), version, "n", may_stop, &reach);
            let words = [&report.manifest_name, &report.status, &report.phase];
            // box 13
            assert_eq!(words, ["web", UNKNOWN, UNKNOWN]);
            assert_eq!(report.workload.as_deref(), owner);
            assert_eq!((&*report.message, report.is_well()), (message, false));
            assert!(report.is_adopted());
        }
    }
}
