//! Limits in a pod's own spec: of an emptyDir, and of ephemeral storage in total.

use super::rank::disk;
use crate::admit::is_system_critical;
use crate::api::quantity::{Quantity, binary_text};
use crate::api::{Pod, core};
use crate::observed::Role;
use crate::resources::{limit, requests_together};
use crate::spec;
use crate::stats::PodReading;

/// The resource that limits are of.
const EPHEMERAL_STORAGE: &str = "ephemeral-storage";

crate::words! {
    /// The limit that a pod exceeds.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub enum LocalLimit {
        /// `sizeLimit` of an emptyDir.
        EmptyDir = "emptydirfs.limit",
        /// The sum of its containers' limits.
        Pod = "ephemeralpodfs.limit",
        /// The limit of one container.
        Container = "ephemeralcontainerfs.limit",
    }
    /// The name in metrics: upstream's.
    pub fn as_str;
}

/// A pod over a limit of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Overuse {
    /// The limit.
    pub limit: LocalLimit,
    /// The message of its eviction.
    pub message: String,
}

/// Whether a pod limits its ephemeral storage; the usage of others need not be measured.
pub fn has_local_limits(pod: &Pod) -> bool {
    let limited =
        |(_, container): (Role, &core::Container)| limit(container, EPHEMERAL_STORAGE).is_some();
    !is_system_critical(pod)
        && (size_limits(pod).next().is_some() || spec::containers(pod).any(limited))
}

/// The first of its own limits that a pod exceeds.
///
/// Upstream: `localStorageEviction`.
pub fn local_storage(pod: &Pod, reading: &PodReading, has_image_fs: bool) -> Option<Overuse> {
    if is_system_critical(pod) {
        return None;
    }
    let over = |limit, message| Some(Overuse { limit, message });
    for (name, size, text) in size_limits(pod) {
        let used = reading.volumes.iter().find(|volume| volume.name == name);
        if exceeds(used.and_then(|volume| volume.disk.used_bytes), size) {
            let message = format!("Usage of EmptyDir volume {name:?} exceeds the limit {text:?}. ");
            return over(LocalLimit::EmptyDir, message);
        }
    }
    if let Some(all) = pod_limit(pod) {
        let used = disk(reading, (true, true), |disk| disk.used_bytes);
        if exceeds(Some(used), all) {
            let all = binary_text(u64::try_from(all.ceil()).unwrap_or_default());
            let message = format!(
                "Pod ephemeral local storage usage exceeds the total limit of containers {all}. "
            );
            return over(LocalLimit::Pod, message);
        }
    }
    for container in &reading.containers {
        let wanted = spec::spec(pod).containers.iter();
        let Some(wanted) = wanted
            .into_iter()
            .find(|wanted| *wanted.name == *container.name)
        else {
            continue;
        };
        let Some(most) = limit(wanted, EPHEMERAL_STORAGE) else {
            continue;
        };
        let logs = container.logs.and_then(|disk| disk.used_bytes);
        let rootfs = container.rootfs.filter(|_| !has_image_fs);
        let rootfs = rootfs.and_then(|disk| disk.used_bytes);
        let used = logs
            .unwrap_or_default()
            .saturating_add(rootfs.unwrap_or_default());
        if exceeds(Some(used), most) {
            let name = &container.name;
            let text = written(wanted.resources.as_ref());
            let message =
                format!("Container {name} exceeded its local ephemeral storage limit {text:?}. ");
            return over(LocalLimit::Container, message);
        }
    }
    None
}

fn exceeds(used: Option<u64>, most: Quantity) -> bool {
    u64::try_from(most.ceil()).is_ok_and(|most| used.is_some_and(|used| used > most))
}

/// Names and size limits of a pod's emptyDirs on disk. Those in memory are as large as they may be.
fn size_limits(pod: &Pod) -> impl Iterator<Item = (&str, Quantity, &str)> {
    let volumes = spec::spec(pod).volumes.iter().flatten();
    volumes.filter_map(|volume| {
        let size = volume.empty_dir.as_ref()?.size_limit.as_ref()?;
        let quantity = Quantity::try_from(size).ok()?;
        let is_positive = !quantity.is_zero() && !quantity.is_negative();
        is_positive.then_some((volume.name.as_str(), quantity, size.0.as_str()))
    })
}

fn written(resources: Option<&core::ResourceRequirements>) -> &str {
    let limits = resources.and_then(|resources| resources.limits.as_ref());
    let limit = limits.and_then(|limits| limits.get(EPHEMERAL_STORAGE));
    limit.map_or("", |limit| limit.0.as_str())
}

/// The pod's limit of local storage, from those of its containers; `None` if no container has one.
///
/// Upstream: `PodLimits` of `k8s.io/component-helpers/resource/helpers.go`.
fn pod_limit(pod: &Pod) -> Option<Quantity> {
    let of = |container: &core::Container| limit(container, EPHEMERAL_STORAGE);
    spec::containers(pod).find_map(|(_, container)| of(container))?;
    Some(requests_together(pod, of))
}
