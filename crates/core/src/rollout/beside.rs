//! Whether two revisions of a pod can run at the same time, as `StartFirst` requires.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::{
    Cause, Change, Decision, History, Outcome, Phase, Settings, progress_deadline, ready_since,
};
use crate::api::core::{ContainerPort, PodStatus, Volume};
use crate::api::{Pod, Timestamp, keys};
use crate::{clock, spec};

/// Reason of a revision that can't run beside another.
const REFUSED: &str = "StartFirstRefused";
/// Reason of a revision to which host ports can't be switched.
pub const HAND_OVER_FAILED: &str = "HandOverFailed";

/// The pod of a revision while it runs beside the one that it will replace.
pub fn beside_pod(pod: &Arc<Pod>) -> Arc<Pod> {
    let mut pod = Pod::clone(pod);
    let annotations = pod.metadata.annotations.get_or_insert_default();
    annotations.insert(keys::BESIDE.to_owned(), "true".to_owned());
    Arc::new(pod)
}

/// Whether a pod runs beside the one that it will replace.
pub fn is_beside(pod: &Pod) -> bool {
    let annotations = pod.metadata.annotations.as_ref();
    annotations.is_some_and(|annotations| annotations.contains_key(keys::BESIDE))
}

/// A pod in the form for admission: one that runs beside another binds no host ports.
pub fn admitted_pod(pod: &Arc<Pod>) -> Arc<Pod> {
    if is_beside(pod) {
        without_host_ports(pod)
    } else {
        Arc::clone(pod)
    }
}

/// A pod with the same requirements, except for host ports.
pub fn without_host_ports(pod: &Pod) -> Arc<Pod> {
    let mut pod = pod.clone();
    if let Some(spec) = &mut pod.spec {
        let init = spec.init_containers.iter_mut().flatten();
        for container in spec.containers.iter_mut().chain(init) {
            for port in container.ports.iter_mut().flatten() {
                port.host_port = None;
            }
        }
    }
    Arc::new(pod)
}

/// Decides the consequences of a failed hand-over, because of `why`. The old revision stays, and the
/// hand-over is retried after `retry`, until the new revision, with that status, has been ready for its
/// deadline. Then it has failed.
pub fn not_handed_over(
    history: &History,
    status: Option<&PodStatus>,
    why: &str,
    now: Timestamp,
    retry: Duration,
) -> Decision {
    let mut history = history.clone();
    history.take_clock(now);
    let ready = status.and_then(ready_since).filter(|ready| *ready <= now);
    let late = history.beside.as_ref().and_then(|(uid, since)| {
        let since = ready.map_or(*since, |ready| ready.max(*since));
        let deadline = progress_deadline(&history.get(uid)?.pod);
        (clock::since(since, now) >= deadline).then(|| (uid.clone(), deadline))
    });
    let Some((uid, deadline)) = late else {
        return Decision {
            history,
            phase: Phase::Judging,
            change: None,
            look_again: Some(retry),
        };
    };
    let message = format!("{why}; retries ended after {} s", deadline.as_secs());
    let cause = Cause::new(HAND_OVER_FAILED, message);
    history.set_outcome(&uid, Outcome::Failed(cause.clone()));
    history.beside = None;
    Decision {
        history,
        phase: Phase::Restored(cause),
        change: Some(Change::Restored),
        look_again: Some(Duration::ZERO),
    }
}

/// Why a revision can't run beside the one that it will replace, if it can't.
pub fn beside_refused(running: &Pod, revision: &Pod, settings: &Settings) -> Option<Cause> {
    let message = port_refused(revision).or_else(|| {
        let shared = shared_volume(running, revision).filter(|_| !settings.share_volumes)?;
        Some(format!(
            "two versions of the pod would use volume {shared} while one of them writes to it; to allow this, set mirrorlet.dev/rollout-share-volumes: \"true\""
        ))
    })?;
    Some(Cause::new(REFUSED, message))
}

/// Why the ports of a revision can't be handed over, if they can't.
fn port_refused(revision: &Pod) -> Option<String> {
    let ports = || spec::containers(revision).flat_map(|(_, c)| c.ports.iter().flatten());
    if spec::is_host_network(revision) {
        let port = ports().next()?.container_port;
        return Some(format!(
            "two versions of the pod would both bind port {port} in the host's network"
        ));
    }
    let unfit = |port: &&ContainerPort| {
        let host_ip = port.host_ip.as_deref().unwrap_or_default();
        port.protocol.as_deref() == Some("SCTP") || host_ip.contains(':')
    };
    let port = ports()
        .filter(|port| port.host_port.is_some_and(|number| number != 0))
        .find(unfit)?;
    let (number, protocol) = (port.host_port?, port.protocol.as_deref().unwrap_or("TCP"));
    Some(format!(
        "host port {number}/{protocol} can't be handed over: only TCP and UDP ports of IPv4 addresses can"
    ))
}

/// A volume of `revision` that `running` uses too, and that one of them may write to.
fn shared_volume<'a>(running: &Pod, revision: &'a Pod) -> Option<&'a str> {
    let others: Vec<(Place<'_>, bool)> = places(running)
        .map(|(_, place, writes)| (place, writes))
        .collect();
    let mut shared = places(revision).filter(|(_, place, writes)| {
        others
            .iter()
            .any(|(other, other_writes)| (*writes || *other_writes) && place.overlaps(other))
    });
    shared.next().map(|(name, ..)| name)
}

/// Where a volume keeps its files, if two pods can share it.
enum Place<'a> {
    HostPath(&'a Path),
    Claim(&'a str),
}

impl Place<'_> {
    fn of(volume: &Volume) -> Option<Place<'_>> {
        let host_path = volume.host_path.as_ref();
        let claim = volume.persistent_volume_claim.as_ref();
        host_path
            .map(|source| Place::HostPath(Path::new(&source.path)))
            .or_else(|| claim.map(|source| Place::Claim(&source.claim_name)))
    }

    fn overlaps(&self, other: &Place<'_>) -> bool {
        match (self, other) {
            (Self::HostPath(a), Place::HostPath(b)) => a.starts_with(b) || b.starts_with(a),
            (Self::Claim(a), Place::Claim(b)) => a == b,
            (Self::HostPath(_), Place::Claim(_)) | (Self::Claim(_), Place::HostPath(_)) => false,
        }
    }
}

/// The volumes of containers that two pods can share: name, place, and whether a container may write.
fn places(pod: &Pod) -> impl Iterator<Item = (&str, Place<'_>, bool)> {
    let volumes = spec::spec(pod).volumes.iter().flatten();
    volumes.filter_map(|volume| {
        let place = Place::of(volume)?;
        let claim = volume.persistent_volume_claim.as_ref();
        let read_only = claim.is_some_and(|claim| claim.read_only == Some(true));
        let mut writes = None;
        for (_, container) in spec::containers(pod) {
            let mounts = container.volume_mounts.iter().flatten();
            let mounts = mounts.map(|mount| (&mount.name, mount.read_only == Some(true)));
            let devices = container.volume_devices.iter().flatten();
            let devices = devices.map(|device| (&device.name, false));
            for (_, reads) in mounts
                .chain(devices)
                .filter(|(name, _)| **name == volume.name)
            {
                let is_written = !read_only && !reads;
                writes = Some(writes == Some(true) || is_written);
            }
        }
        Some((volume.name.as_str(), place, writes?))
    })
}
