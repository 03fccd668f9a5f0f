//! Keeps the names of pods and Services of manifests up to date in the hosts files of pods, and in the
//! table of the DNS server if there is one.
//!
//! A change of the desired pods or of a pod's state wakes the task; files are written only when a name,
//! an address or the set of running pods changes. [`mirrorlet_core::names`] decides the names, the
//! runtime writes them to the files.

mod dns;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use crate::store::board::{Board, Phase, PodView};
use crate::store::cell::{Closed, Reader, cell};
use mirrorlet_core::api::core::{PodStatus, Service};
use mirrorlet_core::api::{FullName, PodUid};
use mirrorlet_core::ending::is_over;
use mirrorlet_core::merge::Merged;
use mirrorlet_core::names::{NamedPod, Names};
use mirrorlet_core::objects::{Object, is_static};
use mirrorlet_core::observed::{self, ContainerState, Pods};
use mirrorlet_core::small::SmallCollect;
use mirrorlet_core::status::is_ready;
use mirrorlet_host::telemetry::occurrences;
use mirrorlet_runtime::Runtime;

pub use dns::DnsTable;

/// How long the names in the files of an earlier agent's pods stay, once the running pods are known,
/// while a source of manifests has not delivered or the status of one of these pods is unknown: such
/// pods would lose theirs.
const SOURCES_WAIT: Duration = Duration::from_secs(10);
/// How long writing all files may take.
const SERVE_DEADLINE: Duration = Duration::from_secs(30);
/// Pause after files could not be written. It doesn't grow: pods have outdated names until then, and a
/// failure that repeats is reported once.
const RETRY: Duration = Duration::from_secs(10);

/// Inputs of the task.
pub struct PodNames {
    /// Writes the files.
    pub runtime: Arc<dyn Runtime>,
    /// The desired pods and Services.
    pub merged: Reader<Merged>,
    /// Addresses and readiness of pods.
    pub board: Board,
    /// The pods of the runtime's most recent list.
    pub listed: watch::Receiver<Option<Arc<Pods>>>,
    /// The ending of the longest names.
    pub cluster_domain: String,
    /// Whether names are written to hosts files; otherwise those of an earlier agent are removed.
    pub in_hosts_files: bool,
    /// The table of the DNS server, if there is one.
    pub dns: Option<DnsTable>,
}

/// The names that are in the files, and the pods that have them.
#[derive(PartialEq)]
struct Served {
    names: Arc<Names>,
    /// The pods that have a file with names.
    pods: Vec<PodUid>,
    /// The servers that the DNS server forwards to.
    forwarders: Arc<Vec<IpAddr>>,
}

impl PodNames {
    /// Keeps the files right until cancelled.
    pub async fn run(self) {
        let (mut merged, mut changed) = (self.merged.clone(), self.board.changed());
        // Before, nothing is started, and nothing is known of what runs.
        let mut listed = self.listed.clone();
        if listed.wait_for(Option::is_some).await.is_err() {
            return;
        }
        if let Ok(Err(_)) = tokio::time::timeout(SOURCES_WAIT, self.all_seen()).await {
            return;
        }
        let (_never, mut forwarders) = cell(Vec::new());
        let is_dns = self.dns.is_some();
        if let Some(dns) = &self.dns {
            forwarders = dns.forwarders.clone();
        }
        let mut served = None;
        let mut reported = None;
        let mut retry_at = None;
        loop {
            changed.mark_unchanged();
            let (wanted, pods) = self.wanted();
            if served.as_ref() != Some(&wanted) || retry_at.is_some_and(|at| at <= Instant::now()) {
                let failure = self.serve(&wanted, pods).await.err();
                retry_at = failure.is_some().then(|| Instant::now() + RETRY);
                if failure != reported {
                    reported = failure;
                    if let Some(error) = &reported {
                        occurrences::names_not_written(error);
                    }
                }
                served = Some(wanted);
            }
            let due = retry_at.unwrap_or_else(|| Instant::now() + SERVE_DEADLINE);
            let is_open = tokio::select! {
                changed = changed.changed() => changed.is_ok(),
                changed = merged.changed() => changed.is_ok(),
                changed = forwarders.changed(), if is_dns => changed.is_ok(),
                () = tokio::time::sleep_until(due), if retry_at.is_some() => true,
            };
            if !is_open {
                return;
            }
        }
    }

    /// Waits until the sources of manifests have delivered and the status of each of their running pods
    /// is known: before that, its names would be missing in the files of the others.
    async fn all_seen(&self) -> Result<(), Closed> {
        let (mut merged, mut listed) = (self.merged.clone(), self.listed.clone());
        let mut changed = self.board.changed();
        let have_delivered = |merged: &Merged| merged.delivered.manifests;
        merged.wait_for(have_delivered).await?;
        loop {
            changed.mark_unchanged();
            let ran = listed.borrow_and_update().clone();
            if ran.is_some_and(|ran| self.has_seen(&ran)) {
                return Ok(());
            }
            let is_open = tokio::select! {
                changed = changed.changed() => changed.is_ok(),
                changed = merged.changed() => changed.is_ok(),
                changed = listed.changed() => changed.is_ok(),
            };
            if !is_open {
                return Err(Closed);
            }
        }
    }

    /// Whether each of these pods that is wanted has a status on the board. If another version of it is
    /// wanted, as while the merge doesn't know yet which one runs, the status of either counts.
    fn has_seen(&self, ran: &Pods) -> bool {
        let merged = self.merged.get();
        let views = self.board.all();
        let seen = || views.iter().filter(|view| view.status.is_some());
        let uids: BTreeSet<&PodUid> = seen().map(|view| &view.uid).collect_set();
        let names: BTreeSet<&FullName> = seen().map(|view| &view.full_name).collect_set();
        let of_manifests = merged.pods.values().filter(|pod| is_static(&pod.pod));
        let wanted: BTreeSet<FullName> =
            of_manifests.map(|pod| FullName::of(&pod.pod)).collect_set();
        ran.0.iter().all(|pod| match merged.pods.get(&pod.uid) {
            Some(known) => !is_static(&known.pod) || uids.contains(&pod.uid),
            None => !wanted.contains(&pod.full_name) || names.contains(&pod.full_name),
        })
    }

    /// The current names, and the pods whose files contain them.
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
        let names = if self.in_hosts_files || self.dns.is_some() {
            Names::new(&known, services.into_iter(), &self.cluster_domain)
        } else {
            Names::default()
        };
        let (uids, pods) = running.into_iter().unzip();
        let forwarders = self.dns.as_ref().map(|dns| dns.forwarders.get());
        let wanted = Served {
            names: Arc::new(names),
            pods: uids,
            forwarders: forwarders.unwrap_or_default(),
        };
        (wanted, pods)
    }

    async fn serve(&self, wanted: &Served, pods: Vec<NamedPod>) -> Result<(), String> {
        let names = if self.in_hosts_files {
            Arc::clone(&wanted.names)
        } else {
            Arc::default()
        };
        let serving = self.runtime.serve_names(names, pods.clone());
        let serving = tokio::time::timeout(SERVE_DEADLINE, serving);
        let writing = async {
            match &self.dns {
                Some(dns) => dns.write(&wanted.names, &pods, &wanted.forwarders).await,
                None => Ok(()),
            }
        };
        let (served, written) = tokio::join!(serving, writing);
        match served {
            Ok(served) => served.map_err(|error| error.message).and(written),
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
    use crate::store::board::board;
    use crate::store::cell::cell;
    use mirrorlet_core::api::{ContainerId, Pod, Timestamp};
    use mirrorlet_core::desired::{Delivered, Origin, PodSource, SourcePod};
    use mirrorlet_core::observed::{RunningPod, SandboxStatus};
    use mirrorlet_testing::fake_runtime::FakeRuntime;

    fn view(name: &str, status: Value, sandbox: ContainerState) -> PodView {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {
                "name": name, "namespace": "default", "uid": name,
                "annotations": {"kubernetes.io/config.source": "file"},
            },
            "spec": {"containers": []},
        }))
        .unwrap();
        let mut observed = observed::PodStatus::empty(name.into());
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
            uid: name.into(),
            full_name: FullName::of(&pod),
            pod: Some(Arc::new(pod)),
            phase: Phase::Syncing,
            status: Some(Arc::new(serde_json::from_value(status).unwrap())),
            observed: Arc::new(observed),
            error: "".into(),
            failed_probe: None,
            awaits: Arc::default(),
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
            // Stopped by a user.
            ("Running", ContainerState::Exited, false),
            ("Succeeded", ContainerState::Running, false),
            ("Failed", ContainerState::Exited, false),
        ] {
            let named = named(view("web", address(phase), sandbox));
            // names 8
            assert_eq!(named.is_some(), is_named, "{phase} {sandbox:?}");
        }
        let without = view("web", json!({"phase": "Running"}), ContainerState::Running);
        assert!(named(without).is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn names_are_written_once_what_ran_before_the_agent_was_looked_at() {
        for is_seen in [true, false] {
            let fake = FakeRuntime::new();
            let address = json!({"phase": "Running", "podIPs": [{"ip": "10.0.0.1"}]});
            let of = |name: &str| view(name, address.clone(), ContainerState::Running);
            let (a, b) = (of("a"), of("b"));
            let wanted = [&a, &b].map(|view| {
                let pod = Arc::clone(view.pod.as_ref().unwrap());
                let origin = Origin::whole(PodSource::File, "/manifests/all.yaml");
                (view.uid.clone(), SourcePod::new(pod, origin))
            });
            let (_merges, merged) = cell(Merged {
                pods: wanted.into(),
                delivered: Delivered::ALL,
                ..Merged::default()
            });
            let ran = [&a, &b].map(|view| RunningPod {
                uid: view.uid.clone(),
                full_name: view.full_name.clone(),
                ..RunningPod::default()
            });
            let (workers, board) = board();
            let (lists, listed) = watch::channel(None);
            let names = PodNames {
                runtime: Arc::new(fake.clone()),
                merged,
                board,
                listed,
                cluster_domain: "cluster.local".to_owned(),
                in_hosts_files: true,
                dns: None,
            };
            let task = tokio::spawn(names.run());
            workers.publish(a);
            // An Engine that is away leaves the names as they are.
            tokio::time::sleep(SOURCES_WAIT * 2).await;
            // names 9
            assert!(fake.named_pods().is_empty());
            lists.send_replace(Some(Arc::new(Pods(ran.into()))));
            tokio::time::sleep(SOURCES_WAIT / 2).await;
            // names 9
            assert!(fake.named_pods().is_empty(), "b would lose its name");
            if is_seen {
                workers.publish(b);
            }
            fake.wait_until(|fake| !fake.named_pods().is_empty()).await;
            let known: &[&str] = if is_seen { &["a", "b"] } else { &["a"] };
            let known: Vec<PodUid> = known.iter().map(|uid| PodUid::from(*uid)).collect();
            // names 9
            assert_eq!(fake.named_pods(), [known]);
            task.abort();
        }
    }
}
