//! The reports of pods.

use std::sync::Arc;

use super::{ClusterView, View};
use crate::store::board::{Phase, PodView};
use mirrorlet_core::api::report::{
    ContainerReport, LastInstance, PAUSED, PodReport, PortReport, RESTARTING, STARTING, STOPPED,
    STOPPING, TERMINATING, UNKNOWN,
};
use mirrorlet_core::api::{FullName, Pod, PodUid, core, keys};
use mirrorlet_core::desired::SourcePod;
use mirrorlet_core::merge::Merged;
use mirrorlet_core::names::manifest_name;
use mirrorlet_core::node::RuntimeReach;
use mirrorlet_core::observed::{PodStatus, Role, UserAction};
use mirrorlet_core::order::{Outstanding, outstanding};
use mirrorlet_core::select::choose_container;
use mirrorlet_core::small::SmallSort;
use mirrorlet_core::spec::{self, annotation};
use mirrorlet_core::status::trouble::with_troubles;
use mirrorlet_core::status::{all_container_statuses, ended_and_failing, is_ready, printed_status};
use mirrorlet_core::workload::WorkloadKey;

/// The wanted pods: those to run, those beside them, and those that wait for their turn to start.
pub(super) fn wanted(merged: &Merged) -> impl Iterator<Item = &SourcePod> {
    let run = merged.pods.values().chain(merged.beside.values());
    let queued = merged.waits.values();
    run.chain(queued.filter_map(|queued| queued.pod.as_ref()))
}

impl View {
    /// Wanted pods, pods that are being stopped, and running pods that no source has. A version that
    /// runs beside another until it is judged is a part of the other's rollout.
    pub(super) fn pods(&self, merged: &Merged) -> Vec<PodReport> {
        let mut pods: Vec<PodReport> = merged
            .pods
            .values()
            .map(|wanted| {
                let view = self.board.get(&wanted.uid());
                report(
                    &wanted.pod,
                    Some(wanted),
                    view.as_ref(),
                    &self.reach.borrow(),
                )
            })
            .collect();
        let queued = merged.waits.values().filter_map(|queued| {
            let pod = queued.pod.as_ref()?;
            let report = report(&pod.pod, Some(pod), None, &self.reach.borrow());
            Some(waiting(report, &queued.message))
        });
        pods.extend(queued);
        for view in self.board.all() {
            if !merged.pods.contains_key(&view.uid) && !merged.beside.contains_key(&view.uid) {
                let node = &self.resolved.config.node_name;
                let unknown = || Arc::new(named(&view, node.as_str()));
                let pod = view.pod.clone().unwrap_or_else(unknown);
                pods.push(report(&pod, None, Some(&view), &self.reach.borrow()));
            }
        }
        for (pod, view) in self.finished_views(merged) {
            let reach = &self.reach.borrow();
            pods.push(report(&pod.pod, Some(&pod), Some(&view), reach));
        }
        let adopted = self.adopted(merged, &pods);
        pods.extend(adopted);
        for pod in &mut pods {
            self.add_troubles(pod);
            let uid = &pod.uid;
            let name = FullName::new(pod.name.as_str(), pod.namespace.as_str());
            let is_static = |pod: &SourcePod| !pod.is_api();
            if let Some(cluster) = &self.cluster
                && merged.pods.get(uid).is_some_and(is_static)
            {
                pod.mirror = Some(cluster.mirror(&name));
            }
            let is_left = || {
                let is_api = merged.pods.get(uid).is_some_and(SourcePod::is_api);
                is_api && self.board.get(uid).is_none()
            };
            if let Some(why) = self.cluster.as_ref().and_then(ClusterView::left_to_another)
                && is_left()
            {
                why.clone_into(&mut pod.message);
            }
            let stays = merged
                .waits
                .get(&name)
                .filter(|waiting| waiting.pod.is_none());
            if let Some(waiting) = stays.filter(|_| pod.message.is_empty()) {
                pod.message.clone_from(&waiting.message);
            }
        }
        pods.small_sort_by(|a, b| {
            (&a.namespace, &a.name, &a.uid).cmp(&(&b.namespace, &b.name, &b.uid))
        });
        pods
    }

    /// Adds the failed probe or hook that keeps a pod from being Ready.
    fn add_troubles(&self, pod: &mut PodReport) {
        let view = self.board.get(&pod.uid);
        let view = view.filter(|view| view.phase == Phase::Syncing);
        let Some((name, status)) = view.and_then(|view| Some((view.full_name, view.status?)))
        else {
            return;
        };
        if !is_ready(&status) {
            let troubles = self.journal.troubles(&name, &pod.uid);
            let message = std::mem::take(&mut pod.message);
            pod.message = with_troubles(&status, message, &troubles);
        }
    }
}

/// A pod of which only the name is known: it runs on this node, but no source has it.
pub(super) fn named(view: &PodView, node: &str) -> Pod {
    Pod {
        spec: Some(core::PodSpec {
            node_name: Some(node.to_owned()),
            ..core::PodSpec::default()
        }),
        metadata: mirrorlet_core::api::meta::ObjectMeta {
            name: Some(view.full_name.name.to_string()),
            namespace: Some(view.full_name.namespace.to_string()),
            uid: Some(view.uid.to_string()),
            ..Default::default()
        },
        ..Pod::default()
    }
}

/// Returns the report of a pod; `wanted` if a source has it, `view` if a worker has it.
pub(super) fn report(
    pod: &Pod,
    wanted: Option<&SourcePod>,
    view: Option<&PodView>,
    reach: &RuntimeReach,
) -> PodReport {
    let empty = core::PodStatus::default();
    let status = view
        .and_then(|view| view.status.as_deref())
        .unwrap_or(&empty);
    let (printed, message) = printed_status(pod, status);
    let (printed, message) = over(pod, status, printed, message);
    let phase = view.map(|view| view.phase);
    let syncing = view.filter(|view| view.phase == Phase::Syncing);
    let failing = syncing.filter(|view| !view.error.is_empty());
    let message = failing
        .and_then(|view| ended_and_failing(status, &view.error))
        .unwrap_or(message);
    let (printed, message) = match syncing {
        Some(view) => ordered(pod, &view.observed, printed, message),
        None => (printed, message),
    };
    let (printed, message) = waits_for(phase, view, reach, printed, message);
    let name = pod.metadata.name.clone().unwrap_or_default();
    let manifest_name = manifest_name(pod).to_owned();
    let containers = containers(pod, status);
    let counted = || {
        containers.iter().filter(|c| {
            let uncounted = [Role::Init, Role::Ephemeral].map(Role::as_str);
            !uncounted.contains(&c.role.as_str())
        })
    };
    PodReport {
        manifest_name,
        namespace: pod.metadata.namespace.clone().unwrap_or_default(),
        workload: WorkloadKey::of(pod).map(|key| key.owner()),
        cron_job: annotation(&pod.metadata, keys::CRON_JOB).map(str::to_owned),
        uid: PodUid::of(pod),
        source: wanted
            .map(|wanted| wanted.origin.location.clone())
            .unwrap_or_default(),
        status: printed,
        phase: status.phase.clone().unwrap_or_else(|| "Pending".to_owned()),
        labels: pod.metadata.labels.clone().unwrap_or_default(),
        message,
        ready: counted().filter(|c| c.ready).count(),
        containers_total: counted().count(),
        restarts: containers.iter().map(|c| c.restarts).sum(),
        started_at: status.start_time.as_ref().map(|time| time.0),
        ips: status
            .pod_ips
            .iter()
            .flatten()
            .filter_map(|pod_ip| pod_ip.ip.parse().ok())
            .collect(),
        ports: spec::containers(pod)
            .flat_map(|(_, container)| container.ports.iter().flatten())
            .map(PortReport::from)
            .collect(),
        mirror: None,
        held: wanted.is_some_and(|wanted| wanted.held),
        rollout: wanted.and_then(|wanted| wanted.rollout.clone()),
        problems: wanted
            .map(|wanted| wanted.problems.clone())
            .unwrap_or_default(),
        default_container: choose_container(pod, None).ok(),
        containers,
        name,
    }
}

/// The report of a pod that waits for its turn to start.
fn waiting(report: PodReport, message: &str) -> PodReport {
    PodReport {
        status: "Pending".to_owned(),
        message: message.to_owned(),
        ..report
    }
}

/// Describes the outcome of an ended pod of a Job whose containers are removed.
fn over(pod: &Pod, status: &core::PodStatus, printed: String, message: String) -> (String, String) {
    let ended = |container: &core::ContainerStatus| {
        let state = container.state.as_ref();
        state.is_some_and(|state| state.terminated.is_some())
    };
    let own = pod.status.as_ref();
    let phase = own.and_then(|status| status.phase.as_deref());
    let reason = own.and_then(|status| status.reason.clone());
    let gone = !status.container_statuses.iter().flatten().any(ended);
    match phase {
        Some("Succeeded") if gone => ("Completed".to_owned(), String::new()),
        Some("Failed") if gone => {
            let message = own.and_then(|status| status.message.clone());
            // Its Job had a reason to stop it.
            let words = reason.map(|reason| (reason, message.unwrap_or_default()));
            words.unwrap_or_else(|| ("Error".to_owned(), String::new()))
        }
        _ => (printed, message),
    }
}

/// Shows a user's order for the pod that is not executed yet or still holds; the pod's status may be
/// older.
fn ordered(pod: &Pod, observed: &PodStatus, printed: String, message: String) -> (String, String) {
    let (printed, message) = match outstanding(pod, observed) {
        Some(Outstanding::Stop) => (STOPPING, spec::why_stopped(pod)),
        None if spec::is_stopped(pod) => (STOPPED, spec::why_stopped(pod)),
        Some(Outstanding::Restart) => (
            RESTARTING,
            "a user restarted it: instances of its containers are being replaced".to_owned(),
        ),
        Some(Outstanding::Start) if printed == STOPPED => {
            (STARTING, "a user started it".to_owned())
        }
        None if printed == "Running" && message.is_empty() => {
            let words = paused(observed).map(|words| (PAUSED.to_owned(), words));
            return words.unwrap_or((printed, message));
        }
        // It is being started, or can't be.
        Some(Outstanding::Start) | None => return (printed, message),
    };
    (printed.to_owned(), message)
}

/// Names the container or sandbox that a user paused, and how to unpause it.
fn paused(observed: &PodStatus) -> Option<String> {
    let mut all = observed.by_hand();
    let (id, container, by_hand) = all.find(|(_, _, by)| by.what == UserAction::Paused)?;
    let what = container.map_or_else(
        || "the sandbox".to_owned(),
        |container| format!("container {container}"),
    );
    let (at, id) = (by_hand.at, id.short());
    Some(format!(
        "a user paused {what} with docker at {at:.0}; unpause it with: docker unpause {id}"
    ))
}

/// Says what a pod that isn't simply running waits for.
fn waits_for(
    phase: Option<Phase>,
    view: Option<&PodView>,
    reach: &RuntimeReach,
    printed: String,
    message: String,
) -> (String, String) {
    let printed = if printed.is_empty() {
        UNKNOWN.to_owned()
    } else {
        printed
    };
    if let RuntimeReach::Down(cause) = reach {
        return (printed, format!("waiting for the Docker Engine: {cause}"));
    }
    let error = view.map(|view| view.error.to_string()).unwrap_or_default();
    let or_error = |message: String| {
        if message.is_empty() {
            error.clone()
        } else {
            message
        }
    };
    match phase {
        None => (
            "Pending".to_owned(),
            "waiting for the first response of the Engine".to_owned(),
        ),
        Some(Phase::WaitingToStart) => (
            "Pending".to_owned(),
            if error.is_empty() {
                "waiting for the previous pod of this name to stop".to_owned()
            } else {
                error
            },
        ),
        Some(Phase::Terminating | Phase::Terminated) => (TERMINATING.to_owned(), error),
        Some(Phase::Syncing | Phase::Finished) => (printed, or_error(message)),
    }
}

fn containers(pod: &Pod, status: &core::PodStatus) -> Vec<ContainerReport> {
    let report = |role: Role, container: &core::Container| {
        let found = all_container_statuses(status).find(|s| s.name == container.name);
        container_report(role, container, found)
    };
    let regular = spec::containers(pod).map(|(role, container)| report(role, container));
    let added = spec::ephemeral_containers(pod);
    let added = added.map(|container| report(Role::Ephemeral, &container));
    regular.chain(added).collect()
}

/// How the instance before the present one ended.
fn last_instance(status: &core::ContainerStatus) -> Option<LastInstance> {
    let ended = status.last_state.as_ref()?.terminated.as_ref()?;
    Some(LastInstance {
        exit_code: ended.exit_code,
        reason: ended.reason.clone().unwrap_or_default(),
        message: ended.message.clone().unwrap_or_default(),
        finished_at: ended.finished_at.as_ref().map(|time| time.0),
    })
}

fn container_report(
    role: Role,
    container: &core::Container,
    found: Option<&core::ContainerStatus>,
) -> ContainerReport {
    let mut report = ContainerReport {
        name: container.name.clone(),
        role: role.as_str().to_owned(),
        image: container.image.clone().unwrap_or_default(),
        state: "waiting".to_owned(),
        reason: String::new(),
        message: String::new(),
        exit_code: None,
        last: found.and_then(last_instance),
        ready: found.is_some_and(|s| s.ready),
        restarts: found.map_or(0, |s| u32::try_from(s.restart_count).unwrap_or(0)),
        id: found.and_then(|s| s.container_id.clone()),
        started_at: None,
    };
    let Some(state) = found.and_then(|s| s.state.as_ref()) else {
        return report;
    };
    if let Some(running) = &state.running {
        "running".clone_into(&mut report.state);
        report.started_at = running.started_at.as_ref().map(|time| time.0);
    } else if let Some(ended) = &state.terminated {
        "terminated".clone_into(&mut report.state);
        report.reason = ended.reason.clone().unwrap_or_default();
        report.message = ended.message.clone().unwrap_or_default();
        report.exit_code = Some(ended.exit_code);
        report.started_at = ended.started_at.as_ref().map(|time| time.0);
    } else if let Some(waiting) = &state.waiting {
        report.reason = waiting.reason.clone().unwrap_or_default();
        report.message = waiting.message.clone().unwrap_or_default();
    }
    report
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_that_nobody_has_seen_is_unknown() {
        let view = PodView {
            uid: "u".into(),
            full_name: FullName::new("web", "default"),
            pod: None,
            phase: Phase::Syncing,
            status: None,
            observed: Arc::new(PodStatus::empty("u".into())),
            error: "no answer".into(),
            failed_probe: None,
            awaits: Arc::default(),
        };
        let away = "waiting for the Docker Engine: refused";
        for (reach, message) in [
            (RuntimeReach::Up, "no answer"),
            (RuntimeReach::Down("refused".into()), away),
        ] {
            let report = report(&named(&view, "n"), None, Some(&view), &reach);
            assert_eq!((&*report.status, &*report.message), ("Unknown", message));
        }
    }

    #[test]
    fn a_pod_of_a_job_says_why_it_is_over_when_its_containers_are_gone() {
        for (own, expected) in [
            (serde_json::json!({"phase": "Succeeded"}), ["Completed", ""]),
            (serde_json::json!({"phase": "Failed"}), ["Error", ""]),
            (
                serde_json::json!({"phase": "Failed", "reason": "DeadlineExceeded", "message": "late"}),
                ["DeadlineExceeded", "late"],
            ),
        ] {
            let pod = serde_json::json!({"metadata": {"name": "work-0"}, "status": own});
            let pod: Pod = serde_json::from_value(pod).unwrap();
            let empty = core::PodStatus::default();
            let (word, message) = over(&pod, &empty, String::new(), String::new());
            assert_eq!([word.as_str(), message.as_str()], expected);
        }
    }

    /// The exit code alone would look like the cause.
    #[test]
    fn what_keeps_a_container_from_starting_again_goes_before_its_exit_code() {
        let status = |phase: &str| -> core::PodStatus {
            let status = serde_json::json!({
                "phase": phase,
                "containerStatuses": [{
                    "name": "main", "image": "i", "imageID": "", "ready": false, "restartCount": 0,
                    "state": {"terminated": {"exitCode": 137, "reason": "Error"}},
                }],
            });
            serde_json::from_value(status).unwrap()
        };
        let error = "FailedMount: volume data: no such directory";
        let both = "FailedMount: volume data: no such directory; last exit code 137 (Error)";
        let code = "container main exited with 137";
        for (phase, error, message) in [
            ("Running", error, both),
            ("Running", "", code),
            ("Failed", error, code),
        ] {
            let view = PodView {
                uid: "u".into(),
                full_name: FullName::new("web", "default"),
                pod: None,
                phase: Phase::Syncing,
                status: Some(Arc::new(status(phase))),
                observed: Arc::new(PodStatus::empty("u".into())),
                error: error.into(),
                failed_probe: None,
                awaits: Arc::default(),
            };
            let report = report(&named(&view, "n"), None, Some(&view), &RuntimeReach::Up);
            assert_eq!(report.message, message, "{phase} {error}");
        }
    }

    #[test]
    fn the_end_of_the_last_instance_is_reported() {
        let finished_at: mirrorlet_core::api::Timestamp = "2026-03-01T10:00:00Z".parse().unwrap();
        let status = serde_json::json!({"containerStatuses": [
            {
                "name": "main", "image": "i", "imageID": "", "ready": false, "restartCount": 3,
                "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 40s"}},
                "lastState": {"terminated": {
                    "exitCode": 137, "reason": "OOMKilled", "message": "loading\nlast words",
                    "finishedAt": finished_at,
                }},
            },
            {
                "name": "beside", "image": "i", "imageID": "", "ready": true, "restartCount": 0,
                "state": {"running": {}},
            },
        ]});
        let status: core::PodStatus = serde_json::from_value(status).unwrap();
        let spec = serde_json::json!({"containers": [{"name": "main"}, {"name": "beside"}]});
        let pod: Pod = serde_json::from_value(serde_json::json!({"spec": spec})).unwrap();
        let reports = containers(&pod, &status);
        let last = LastInstance {
            exit_code: 137,
            reason: "OOMKilled".to_owned(),
            message: "loading\nlast words".to_owned(),
            finished_at: Some(finished_at),
        };
        // tenants A8
        assert_eq!(
            reports
                .iter()
                .map(|report| &report.last)
                .collect::<Vec<_>>(),
            [&Some(last), &None]
        );
        assert_eq!(
            (&*reports[0].reason, reports[0].restarts),
            ("CrashLoopBackOff", 3)
        );
    }
}
