//! Keeps the names of pods and Services of manifests right in the hosts files of pods.
//!
//! A change of the desired pods or of a pod's state wakes the task; files are written only when a
//! name, an address or the set of running pods is another one. What the names are is decided in
//! [`mirrorlet_core::names`], how they get into the files is the runtime's.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::store::board::{Board, Phase, PodView};
use crate::store::cell::Reader;
use mirrorlet_core::api::PodUid;
use mirrorlet_core::api::core::{PodStatus, Service};
use mirrorlet_core::ending::is_over;
use mirrorlet_core::merge::Merged;
use mirrorlet_core::names::{NamedPod, Names};
use mirrorlet_core::objects::{Object, is_static};
use mirrorlet_core::observed::{self, ContainerState};
use mirrorlet_core::status::is_ready;
use mirrorlet_host::telemetry::occurrences;
use mirrorlet_runtime::Runtime;

/// How long the names in the files of an earlier agent's pods stand while a source of manifests has
/// not delivered: its pods would lose theirs.
const SOURCES_WAIT: Duration = Duration::from_secs(10);
/// How long writing all files may take.
const SERVE_DEADLINE: Duration = Duration::from_secs(30);
/// Pause after files could not be written.
const RETRY: Duration = Duration::from_secs(10);

/// Inputs of the task.
pub struct PodNames {
    /// Writes the files.
    pub runtime: Arc<dyn Runtime>,
    /// The desired pods and Services.
    pub merged: Reader<Merged>,
    /// Addresses and readiness of pods.
    pub board: Board,
    /// The ending of the longest names; none writes no names at all, and removes those that an
    /// earlier agent wrote.
    pub cluster_domain: Option<String>,
}

/// The names that are in the files, and the pods that have them.
#[derive(PartialEq)]
struct Served {
    names: Arc<Names>,
    /// The pods that have a file with names.
    pods: Vec<PodUid>,
}

impl PodNames {
    /// Keeps the files right until cancelled.
    pub async fn run(self) {
        let (mut merged, mut changed) = (self.merged.clone(), self.board.changed());
        let delivered = merged.wait_for(|merged| merged.delivered.manifests);
        if let Ok(Err(_)) = tokio::time::timeout(SOURCES_WAIT, delivered).await {
            return;
        }
        let mut served = None;
        let mut told = None;
        let mut retry_at = None;
        loop {
            changed.mark_unchanged();
            let (wanted, pods) = self.wanted();
            if served.as_ref() != Some(&wanted) || retry_at.is_some_and(|at| at <= Instant::now()) {
                let failure = self.serve(&wanted, pods).await.err();
                retry_at = failure.is_some().then(|| Instant::now() + RETRY);
                if failure != told {
                    told = failure;
                    if let Some(error) = &told {
                        occurrences::names_not_written(error);
                    }
                }
                served = Some(wanted);
            }
            let due = retry_at.unwrap_or_else(|| Instant::now() + SERVE_DEADLINE);
            let is_open = tokio::select! {
                changed = changed.changed() => changed.is_ok(),
                changed = merged.changed() => changed.is_ok(),
                () = tokio::time::sleep_until(due), if retry_at.is_some() => true,
            };
            if !is_open {
                return;
            }
        }
    }

    /// The names as they have to be, and the pods whose files have them.
    fn wanted(&self) -> (Served, Vec<NamedPod>) {
        let merged = self.merged.get();
        let running = self.board.all();
        let running: Vec<(PodUid, NamedPod)> = running.into_iter().filter_map(named).collect();
        let is_wanted = |uid: &PodUid| merged.pods.contains_key(uid);
        let known = running.iter().filter(|(uid, _)| is_wanted(uid));
        let known: Vec<NamedPod> = known.map(|(_, named)| named.clone()).collect();
        let objects = merged.objects.values();
        let services: Vec<&Service> = objects
            .filter_map(|known| {
                let Object::Service(service) = &known.object else {
                    return None;
                };
                Some(&**service)
            })
            .collect();
        let names = match &self.cluster_domain {
            Some(domain) => Names::new(&known, services.into_iter(), domain),
            None => Names::default(),
        };
        let (uids, pods) = running.into_iter().unzip();
        let names = Arc::new(names);
        (Served { names, pods: uids }, pods)
    }

    async fn serve(&self, wanted: &Served, pods: Vec<NamedPod>) -> Result<(), String> {
        let serving = self.runtime.serve_names(Arc::clone(&wanted.names), pods);
        match tokio::time::timeout(SERVE_DEADLINE, serving).await {
            Ok(served) => served.map_err(|error| error.message),
            Err(_) => Err(format!("no answer within {} s", SERVE_DEADLINE.as_secs())),
        }
    }
}

/// A pod of a manifest that runs and has an address.
fn named(view: PodView) -> Option<(PodUid, NamedPod)> {
    let pod = view.pod.filter(|pod| is_static(pod))?;
    let status = view.status.filter(|_| view.phase == Phase::Syncing)?;
    // Its address may be that of another pod already.
    if is_over(Some(&status)) || !has_sandbox(&view.observed) {
        return None;
    }
    let addresses = addresses(&status);
    let named = NamedPod {
        pod,
        ready: is_ready(&status),
        addresses,
    };
    (!named.addresses.is_empty()).then_some((view.uid, named))
}

/// Whether the pod has a sandbox that runs, or about which nothing is known at the moment.
fn has_sandbox(observed: &observed::PodStatus) -> bool {
    let may_run = |state| matches!(state, ContainerState::Running | ContainerState::Unknown);
    let mut all = observed.sandboxes.iter();
    all.any(|sandbox| may_run(sandbox.state))
}

fn addresses(status: &PodStatus) -> Vec<std::net::IpAddr> {
    let ips = status.pod_ips.iter().flatten();
    ips.filter_map(|ip| ip.ip.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use mirrorlet_core::api::{ContainerId, FullName, Pod, Timestamp};
    use mirrorlet_core::observed::SandboxStatus;

    fn view(status: Value, sandbox: ContainerState) -> PodView {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {
                "name": "web", "namespace": "default", "uid": "u",
                "annotations": {"kubernetes.io/config.source": "file"},
            },
            "spec": {"containers": []},
        }))
        .unwrap();
        let mut observed = observed::PodStatus::empty("u".into());
        observed.sandboxes.push(SandboxStatus {
            id: ContainerId::new("fake", "s"),
            attempt: 0,
            state: sandbox,
            created_at: Timestamp::UNIX_EPOCH,
            pod_started_at: None,
            host_network: false,
            ips: Vec::new(),
            by_hand: None,
        });
        PodView {
            uid: "u".into(),
            full_name: FullName::of(&pod),
            pod: Some(Arc::new(pod)),
            phase: Phase::Syncing,
            status: Some(Arc::new(serde_json::from_value(status).unwrap())),
            observed: Arc::new(observed),
            error: "".into(),
            failed_probe: None,
        }
    }

    #[test]
    fn a_pod_that_ended_or_was_stopped_has_no_name() {
        let address = |phase: &str| json!({"phase": phase, "podIPs": [{"ip": "10.0.0.1"}]});
        for (phase, sandbox, is_named) in [
            ("Running", ContainerState::Running, true),
            ("Pending", ContainerState::Running, true),
            // The Engine did not say.
            ("Running", ContainerState::Unknown, true),
            // Stopped by a person.
            ("Running", ContainerState::Exited, false),
            ("Succeeded", ContainerState::Running, false),
            ("Failed", ContainerState::Exited, false),
        ] {
            let named = named(view(address(phase), sandbox));
            // names 8
            assert_eq!(named.is_some(), is_named, "{phase} {sandbox:?}");
        }
        assert!(named(view(json!({"phase": "Running"}), ContainerState::Running)).is_none());
    }
}
