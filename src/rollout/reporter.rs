//! Occurrences of rollouts: the changes since the previous decision.

use super::Rollouts;
use mirrorlet_core::api::FullName;
use mirrorlet_core::desired::SourcePod;
use mirrorlet_core::rollout::{Cause, Change, Decision, History, Outcome, Phase, Revision};
use mirrorlet_host::telemetry::occurrences::{self, RolloutSetback};

impl Rollouts {
    /// Reports the changes of a rollout, with the UID of the running pod.
    pub(super) fn report(&self, name: &FullName, newest: &SourcePod, decision: &Decision) {
        let telemetry = &self.options.telemetry;
        let history = &decision.history;
        let uid = history
            .current
            .as_ref()
            .map_or_else(|| newest.uid(), |(uid, _)| uid.clone());
        let known = self.phases.get(name);
        let succeeded = matches!(
            decision.change,
            Some(Change::Succeeded | Change::HandedOver)
        );
        if succeeded && history.revisions.len() > 1 {
            occurrences::rollout_succeeded(telemetry.pod(name, &uid));
        }
        if decision.change == Some(Change::FellBack) {
            self.report_fallen_back(name, decision);
        }
        // A version that failed and keeps running fails again and again, with varying messages.
        let failed = |phase: &Phase| matches!(phase, Phase::Failed(_));
        let fails_on = known.is_some_and(failed) && failed(&decision.phase);
        if known == Some(&decision.phase) || fails_on {
            return;
        }
        // Failures from before this agent's start are not reported.
        let (setback, cause) = match &decision.phase {
            Phase::Preparing => {
                occurrences::rollout_started(telemetry.pod(name, &uid), &newest.uid());
                return;
            }
            Phase::Held(cause) => (RolloutSetback::Held, cause),
            Phase::Failed(cause) if known.is_some() => (RolloutSetback::Failed, cause),
            Phase::Restored(cause) if known.is_some() => (RolloutSetback::Restored, cause),
            Phase::Settled
            | Phase::Judging
            | Phase::Waiting(_)
            | Phase::Paused
            | Phase::Failed(_)
            | Phase::FirstFailed(_)
            | Phase::Restored(_) => return,
        };
        let Cause {
            reason, message, ..
        } = cause;
        occurrences::rollout_setback(telemetry.pod(name, &uid), setback, reason, message);
    }

    /// Reports the failure of the version that ran so far, if it is no longer the newest.
    fn report_fallen_back(&self, name: &FullName, decision: &Decision) {
        let before = self.histories.get(name).and_then(History::current);
        let Some(uid) = before.map(Revision::uid) else {
            return;
        };
        if let Some(Outcome::Failed(cause)) = decision.history.get(&uid).map(|r| &r.outcome) {
            let (telemetry, setback) = (&self.options.telemetry, RolloutSetback::Restored);
            let (reason, message) = (&cause.reason, &cause.message);
            occurrences::rollout_setback(telemetry.pod(name, &uid), setback, reason, message);
        }
    }
}
