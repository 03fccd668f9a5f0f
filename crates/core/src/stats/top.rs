//! The CPU and memory that pods use, and their limits, for `mirrorlet top`.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{ContainerReading, PodReading, Reading, Usage};
use crate::api::core::Container;
use crate::api::quantity::Quantity;
use crate::api::report::{ContainerUsage, PodUsage, TopReport, UsageReport};
use crate::api::{Pod, PodUid};
use crate::resources::{CPU, MEMORY, limit, limit_in, of_pod};
use crate::spec;

/// The report of a reading; limits are those of the specs of `pods`. Of several versions of a pod it
/// contains the one that `serves`: the others are being stopped, or not judged yet.
pub fn top(
    reading: &Reading,
    pods: &BTreeMap<PodUid, Arc<Pod>>,
    serves: impl Fn(&PodUid) -> bool,
) -> TopReport {
    let node = &reading.node;
    let mut shown: BTreeMap<_, &PodReading> = BTreeMap::new();
    for pod in &reading.pods {
        let known = shown.entry((&pod.namespace, &pod.name)).or_insert(pod);
        if serves(&pod.uid) {
            *known = pod;
        }
    }
    TopReport {
        node: node.name.clone(),
        node_usage: UsageReport {
            cpu_limit_nanos: Some(node.cpus.saturating_mul(1_000_000_000)),
            memory_limit_bytes: Some(node.memory_bytes),
            ..used(&node.usage)
        },
        pods: shown
            .values()
            .map(|pod| pod_usage(pod, pods.get(&pod.uid)))
            .collect(),
    }
}

fn pod_usage(reading: &PodReading, pod: Option<&Arc<Pod>>) -> PodUsage {
    let spec_of = |name: &str| -> Option<&Container> {
        let mut all = pod.map(|pod| spec::containers(pod)).into_iter().flatten();
        all.find(|(_, c)| c.name == name).map(|(_, c)| c)
    };
    let containers: Vec<_> = reading
        .containers
        .iter()
        .map(|container| container_usage(container, spec_of(&container.name)))
        .collect();
    let own = |resource| limit_in(of_pod(pod?)?, resource);
    // Else a pod has a limit where each container that runs has one.
    let sum = |of: fn(&UsageReport) -> Option<u64>| -> Option<u64> {
        let limits: Option<Vec<u64>> = containers.iter().map(|c| of(&c.usage)).collect();
        limits
            .filter(|limits| !limits.is_empty())?
            .into_iter()
            .reduce(u64::saturating_add)
    };
    PodUsage {
        namespace: reading.namespace.to_string(),
        name: reading.name.to_string(),
        usage: UsageReport {
            cpu_limit_nanos: own(CPU)
                .and_then(cpu_nanos)
                .or_else(|| sum(|usage| usage.cpu_limit_nanos)),
            memory_limit_bytes: own(MEMORY)
                .and_then(bytes)
                .or_else(|| sum(|usage| usage.memory_limit_bytes)),
            ..used(&reading.usage)
        },
        containers,
    }
}

fn container_usage(reading: &ContainerReading, container: Option<&Container>) -> ContainerUsage {
    let limit = |resource| container.and_then(|container| limit(container, resource));
    ContainerUsage {
        name: reading.name.to_string(),
        usage: UsageReport {
            cpu_limit_nanos: limit(CPU).and_then(cpu_nanos),
            memory_limit_bytes: limit(MEMORY).and_then(bytes),
            ..used(&reading.usage)
        },
    }
}

fn cpu_nanos(limit: Quantity) -> Option<u64> {
    let milli = u64::try_from(limit.milli_ceil()).ok()?;
    Some(milli.saturating_mul(1_000_000))
}

fn bytes(limit: Quantity) -> Option<u64> {
    u64::try_from(limit.ceil()).ok()
}

fn used(usage: &Usage) -> UsageReport {
    UsageReport {
        cpu_nanos: usage.nano_cores,
        memory_bytes: usage.memory.map(|memory| memory.working_set),
        ..UsageReport::default()
    }
}
