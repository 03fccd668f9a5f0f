//! The order of eviction, and its messages.

use std::cmp::Reverse;
use std::fmt::Write as _;

use super::{Observations, Signal, Threshold};
use crate::admit::{held_request, is_system_critical, pod_requests};
use crate::api::Pod;
use crate::api::quantity::{Quantity, binary_text};
use crate::ending::is_api_pod;
use crate::small::SmallSort;
use crate::spec;
use crate::stats::{ContainerReading, Disk, PodReading};

/// The minimum share of the short resource that a static pod must use to be evicted: one in so many.
/// Evicting smaller ones would stop their service and free hardly anything.
const STATIC_SHARE: u64 = 100;

/// A pod that may be evicted, and its usage; none if it could not be read.
#[derive(Debug, Clone, Copy)]
pub struct Candidate<'a> {
    /// The pod.
    pub pod: &'a Pod,
    /// Its usage.
    pub reading: Option<&'a PodReading>,
}

/// Whether a pod is never evicted because it has system priority.
pub fn is_spared(pod: &Pod) -> bool {
    is_system_critical(pod)
}

/// The candidates in the order of eviction for a signal, without pods that are not evicted. Ordinary
/// pods come before static ones. Within each, pods above their requests come first, then those with
/// lower priority, then those furthest above their requests.
///
/// Upstream: `rankMemoryPressure`, `rankDiskPressureFunc`, `rankPIDPressure`.
pub fn rank<'a>(
    signal: Signal,
    has_image_fs: bool,
    capacity: u64,
    candidates: &[Candidate<'a>],
) -> Vec<Candidate<'a>> {
    let used = |candidate: &Candidate<'a>| {
        let reading = candidate.reading?;
        Some(usage(signal, has_image_fs, reading))
    };
    let may_go = |candidate: &&Candidate<'a>| {
        let is_large = || used(candidate).unwrap_or_default() >= capacity / STATIC_SHARE;
        !is_spared(candidate.pod) && (is_api_pod(candidate.pod) || is_large())
    };
    let mut order: Vec<Candidate<'a>> = candidates.iter().filter(may_go).copied().collect();
    order.small_sort_by_cached_key(|candidate| {
        let used = used(candidate);
        let requested = requested(signal, candidate.pod);
        // Process ids can't be requested, and that a pod uses some means nothing.
        let exceeds = signal != Signal::PidAvailable && used.is_some_and(|used| used > requested);
        let beyond = used.map(|used| i128::from(used) - i128::from(requested));
        (
            !is_api_pod(candidate.pod),
            used.is_some(),
            !exceeds,
            spec::spec(candidate.pod).priority.unwrap_or_default(),
            Reverse(beyond),
        )
    });
    order
}

/// Returns a pod's use of a signal's resource, where that is short.
fn usage(signal: Signal, has_image_fs: bool, reading: &PodReading) -> u64 {
    let bytes = |disk: &Disk| disk.used_bytes;
    let inodes = |disk: &Disk| disk.inodes_used;
    match signal {
        Signal::MemoryAvailable => reading.usage.memory.map_or(0, |memory| memory.working_set),
        Signal::PidAvailable => reading.usage.processes.unwrap_or_default(),
        Signal::NodeFsAvailable => disk(reading, (!has_image_fs, true), bytes),
        Signal::NodeFsInodesFree => disk(reading, (!has_image_fs, true), inodes),
        Signal::ImageFsAvailable => disk(reading, (true, !has_image_fs), bytes),
        Signal::ImageFsInodesFree => disk(reading, (true, !has_image_fs), inodes),
    }
}

/// The sum of a pod's writable layers, logs and volumes; each counts only if it is on the disk in
/// question.
pub(super) fn disk(
    reading: &PodReading,
    (rootfs, rest): (bool, bool),
    of: impl Fn(&Disk) -> Option<u64>,
) -> u64 {
    let containers = || reading.containers.iter();
    let written = containers()
        .filter(|_| rootfs)
        .filter_map(|c| c.rootfs.as_ref());
    let logs = containers()
        .filter(|_| rest)
        .filter_map(|c| c.logs.as_ref());
    let volumes = reading
        .volumes
        .iter()
        .filter(|volume| rest && volume.is_ephemeral);
    let volumes = volumes.map(|volume| &volume.disk);
    let all = written.chain(logs).chain(volumes);
    all.filter_map(of).fold(0, u64::saturating_add)
}

fn requested(signal: Signal, pod: &Pod) -> u64 {
    let requests = pod_requests(pod);
    requests.get(signal.resource()).map_or(0, |q| whole(*q))
}

fn whole(quantity: Quantity) -> u64 {
    u64::try_from(quantity.ceil()).unwrap_or_default()
}

/// The message of a pod that is evicted for a threshold, with the measurements.
///
/// Upstream: `evictionMessage`.
pub fn evicted_message(
    threshold: &Threshold,
    observations: &Observations,
    candidate: &Candidate<'_>,
) -> String {
    let resource = threshold.signal.resource();
    let mut message = format!("The node was low on resource: {resource}. ");
    if let Some(seen) = observations.get(&threshold.signal) {
        let (value, available) = (threshold.value.of(seen.capacity), seen.available);
        let (value, available) = (binary_text(value), binary_text(available));
        let _ = write!(
            message,
            "Threshold quantity: {value}, available: {available}. "
        );
    }
    let containers = candidate.reading.into_iter().flat_map(|r| &r.containers);
    for container in containers {
        let Some((_, wanted)) = spec::find_container(candidate.pod, &container.name) else {
            continue;
        };
        let requested = held_request(candidate.pod, wanted, resource).map_or(0, whole);
        if let Some(used) = container_usage(threshold.signal, container)
            && used > requested
        {
            let (name, used) = (&container.name, binary_text(used));
            let requested = binary_text(requested);
            let _ = write!(
                message,
                "Container {name} was using {used}, request is {requested}, has larger consumption of {resource}. "
            );
        }
    }
    message
}

fn container_usage(signal: Signal, container: &ContainerReading) -> Option<u64> {
    let bytes = |disk: Option<&Disk>| disk?.used_bytes;
    match signal {
        Signal::MemoryAvailable => container.usage.memory.map(|memory| memory.working_set),
        Signal::NodeFsAvailable | Signal::ImageFsAvailable => {
            let (rootfs, logs) = (container.rootfs.as_ref(), container.logs.as_ref());
            Some(bytes(rootfs)?.saturating_add(bytes(logs)?))
        }
        Signal::NodeFsInodesFree | Signal::ImageFsInodesFree | Signal::PidAvailable => None,
    }
}
