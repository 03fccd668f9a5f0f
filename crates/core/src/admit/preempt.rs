//! Selects the pods to preempt for a critical pod, and the pods whose end it waits for.
//!
//! Upstream: `pkg/kubelet/preemption/preemption.go`.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::api::{Pod, PodUid};
use crate::resources::{CPU, MEMORY, QosClass, qos_class};
use crate::small::SmallCollect;
use crate::spec;

use super::fit::{PODS, Shortage, pod_requests, shortages, units};
use super::{AdmitInput, is_critical};

/// How much of each resource is missing.
type Missing = BTreeMap<String, i64>;

/// The pods to preempt so that `pod` fits; none if all of them together free too little. By `QoS` class
/// from best effort upwards, in each as few and as small pods as possible.
pub(super) fn victims(
    pod: &Pod,
    others: &[Arc<Pod>],
    shortages: &[Shortage],
) -> Option<Vec<PodUid>> {
    let missing: Missing = shortages
        .iter()
        .map(|s| (s.resource.clone(), s.missing()))
        .collect_map();
    let of_class = |class: QosClass| -> Vec<&Pod> {
        others
            .iter()
            .map(Arc::as_ref)
            .filter(|other| is_preemptable(pod, other) && qos_class(other) == class)
            .collect()
    };
    let [best_effort, burstable, guaranteed] = [
        of_class(QosClass::BestEffort),
        of_class(QosClass::Burstable),
        of_class(QosClass::Guaranteed),
    ];
    // Higher classes are not needed where evicting lower ones frees enough.
    let without = without_pods(&missing, best_effort.iter().chain(&burstable));
    let of_guaranteed = nearest(guaranteed, without)?;
    let without = without_pods(&missing, best_effort.iter().chain(&of_guaranteed));
    let of_burstable = nearest(burstable, without)?;
    let without = without_pods(&missing, of_burstable.iter().chain(&of_guaranteed));
    let of_best_effort = nearest(best_effort, without)?;
    let all = of_best_effort
        .into_iter()
        .chain(of_burstable)
        .chain(of_guaranteed);
    Some(all.map(PodUid::of).collect())
}

/// The pods of `stopping` that an admitted critical pod has to wait for. They were preempted, for any
/// pod, and some of their containers may still run. A pod that fits beside all of them waits for none.
///
/// Upstream: `evictPodsToFreeRequests`, which returns once the pods have stopped.
pub fn awaited(input: &AdmitInput<'_>, stopping: &[Arc<Pod>]) -> Vec<PodUid> {
    if stopping.is_empty() || !is_critical(input.pod) {
        return Vec::new();
    }
    let own = PodUid::of(input.pod);
    let others = input.others.iter().filter(|pod| PodUid::of(pod) != own);
    let others: Vec<Arc<Pod>> = others.cloned().collect();
    let counts = |pod: &Pod| {
        let uid = PodUid::of(pod);
        uid == own || others.iter().any(|other| PodUid::of(other) == uid)
    };
    let stopping: Vec<_> = stopping.iter().filter(|pod| !counts(pod)).collect();
    let all: Vec<Arc<Pod>> = others
        .iter()
        .chain(stopping.iter().copied())
        .cloned()
        .collect();
    let short = shortages(&AdmitInput {
        others: &all,
        ..*input
    });
    let has_room = |pod: &&Arc<Pod>| short.iter().any(|it| frees(pod, &it.resource) > 0);
    stopping
        .into_iter()
        .filter(has_room)
        .map(|pod| PodUid::of(pod))
        .collect()
}

fn is_preemptable(by: &Pod, pod: &Pod) -> bool {
    let priority = |pod: &Pod| spec::spec(pod).priority;
    (is_critical(by) && !is_critical(pod))
        || priority(by)
            .zip(priority(pod))
            .is_some_and(|(by, pod)| by > pod)
}

fn frees(pod: &Pod, resource: &str) -> i64 {
    if resource == PODS {
        return 1;
    }
    let requests = pod_requests(pod);
    requests.get(resource).map_or(0, |q| units(resource, *q))
}

fn without_pods<'a>(missing: &Missing, pods: impl Iterator<Item = &'a &'a Pod>) -> Missing {
    let mut left = missing.clone();
    for pod in pods {
        for (resource, amount) in &mut left {
            *amount = amount.saturating_sub(frees(pod, resource));
        }
    }
    left.retain(|_, amount| *amount > 0);
    left
}

/// Selects pods that free the missing resources, by how close each alone comes; of two equally close
/// pods, the smaller one.
fn nearest(mut pods: Vec<&Pod>, mut missing: Missing) -> Option<Vec<&Pod>> {
    let mut taken = Vec::new();
    while !missing.is_empty() {
        let best = (0..pods.len()).min_by(|a, b| {
            let of = |index: &usize| {
                let pod = pods.get(*index);
                let distance = pod.map_or(f64::MAX, |pod| distance(pod, &missing));
                let size = pod.map_or((0, 0), |pod| (frees(pod, MEMORY), frees(pod, CPU)));
                (distance, size)
            };
            let (a, b) = (of(a), of(b));
            a.0.total_cmp(&b.0).then(a.1.cmp(&b.1))
        })?;
        let pod = pods.swap_remove(best);
        missing = without_pods(&missing, std::iter::once(&pod));
        taken.push(pod);
    }
    Some(taken)
}

/// Each missing resource weighs the same, whatever its unit.
#[expect(
    clippy::cast_precision_loss,
    reason = "a share that only orders pods; upstream computes it in the same way"
)]
fn distance(pod: &Pod, missing: &Missing) -> f64 {
    let share = |(resource, amount): (&String, &i64)| {
        let left = amount.saturating_sub(frees(pod, resource)).max(0);
        (left as f64 / *amount as f64).powi(2)
    };
    missing.iter().map(share).sum()
}
