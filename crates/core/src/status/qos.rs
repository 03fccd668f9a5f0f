//! The quality of service class of a pod.
//!
//! Upstream: `pkg/apis/core/v1/helper/qos/qos.go` (`ComputePodQOS`).

use std::collections::BTreeMap;

use crate::api::Pod;
use crate::api::quantity::Quantity;
use crate::spec;

/// The resources that decide.
const RESOURCES: [&str; 2] = ["cpu", "memory"];

/// `Guaranteed` when every container limits CPU and memory and the pod requests just that,
/// `BestEffort` when no container requests or limits either, else `Burstable`.
#[must_use]
pub fn qos_class(pod: &Pod) -> &'static str {
    let mut requests: BTreeMap<&str, Quantity> = BTreeMap::new();
    let mut limits: BTreeMap<&str, Quantity> = BTreeMap::new();
    let mut all_limited = true;
    for (_, container) in spec::containers(pod) {
        let resources = container.resources.as_ref();
        for name in RESOURCES {
            let requested = resources.and_then(|r| amount(r.requests.as_ref(), name));
            let limited = resources.and_then(|r| amount(r.limits.as_ref(), name));
            add(&mut requests, name, requested);
            add(&mut limits, name, limited);
            all_limited &= limited.is_some();
        }
    }
    if requests.is_empty() && limits.is_empty() {
        "BestEffort"
    } else if all_limited && requests == limits {
        "Guaranteed"
    } else {
        "Burstable"
    }
}

/// A resource's amount, if it is a positive one.
fn amount(
    of: Option<&BTreeMap<String, k8s_openapi::apimachinery::pkg::api::resource::Quantity>>,
    name: &str,
) -> Option<Quantity> {
    let quantity: Quantity = of?.get(name)?.0.parse().ok()?;
    (!quantity.is_zero() && !quantity.is_negative()).then_some(quantity)
}

fn add(sums: &mut BTreeMap<&'static str, Quantity>, name: &'static str, more: Option<Quantity>) {
    if let Some(more) = more {
        sums.entry(name)
            .and_modify(|sum| *sum = sum.saturating_add(more))
            .or_insert(more);
    }
}
