//! Compares resources, mounts and users in statuses of containers with the API server's.
//!
//! An API server writes quantities in its own notation (`500m` for `0.5`), and one that doesn't know
//! these fields, or has their features disabled, drops them. Neither is a reason for a write.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use serde_json::{Map, Value};

use crate::api::core::{ContainerStatus, PodStatus, ResourceRequirements};
use crate::api::quantity::Quantity;
use crate::small::SmallCollect;

/// The fields of a container's status that API servers may drop.
const DROPPED: [&str; 4] = ["resources", "allocatedResources", "volumeMounts", "user"];

/// Copies missing fields of the same instance from the API server's status (for an ended pod only the
/// reduced form is known), and its notation of equal quantities.
pub(super) fn keep(new: &mut PodStatus, old: &PodStatus) {
    let of = |field: fn(&mut PodStatus) -> &mut Option<Vec<ContainerStatus>>,
              new: &mut PodStatus,
              old: Option<&Vec<ContainerStatus>>| {
        for new in field(new).iter_mut().flatten() {
            let mut olds = old.into_iter().flatten();
            let same = |old: &&ContainerStatus| {
                old.name == new.name && old.container_id == new.container_id
            };
            if let Some(old) = olds.find(same) {
                keep_of(new, old);
            }
        }
    };
    let (inits, added) = (
        old.init_container_statuses.as_ref(),
        old.ephemeral_container_statuses.as_ref(),
    );
    of(
        |s| &mut s.container_statuses,
        new,
        old.container_statuses.as_ref(),
    );
    of(|s| &mut s.init_container_statuses, new, inits);
    of(|s| &mut s.ephemeral_container_statuses, new, added);
    same_texts(new.resources.as_mut(), old.resources.as_ref());
}

fn keep_of(new: &mut ContainerStatus, old: &ContainerStatus) {
    if new.volume_mounts.is_none() {
        new.volume_mounts.clone_from(&old.volume_mounts);
    }
    if new.user.is_none() {
        new.user.clone_from(&old.user);
    }
    let none = ResourceRequirements::default();
    if new.resources.as_ref().is_none_or(|r| *r == none) && new.allocated_resources.is_none() {
        if old.resources.is_some() {
            new.resources.clone_from(&old.resources);
        }
        new.allocated_resources.clone_from(&old.allocated_resources);
        return;
    }
    same_text(&mut new.allocated_resources, &old.allocated_resources);
    same_texts(new.resources.as_mut(), old.resources.as_ref());
}

fn same_texts(new: Option<&mut ResourceRequirements>, old: Option<&ResourceRequirements>) {
    if let (Some(new), Some(old)) = (new, old) {
        same_text(&mut new.limits, &old.limits);
        same_text(&mut new.requests, &old.requests);
    }
}

type Quantities = Option<BTreeMap<String, ApiQuantity>>;

/// Writes quantities as `old` does where they are equal.
fn same_text(new: &mut Quantities, old: &Quantities) {
    let value = |quantity: &ApiQuantity| Quantity::try_from(quantity).ok();
    for (name, new) in new.iter_mut().flatten() {
        let known = old.as_ref().and_then(|old| old.get(name));
        if let Some(known) = known.filter(|known| value(known) == value(new)) {
            new.clone_from(known);
        }
    }
}

/// Whether two lists of containers' statuses differ only in fields that the API server may have dropped
/// from the old one.
pub(super) fn same_but_dropped(old: &Value, new: &Value) -> bool {
    let (Some(old), Some(new)) = (old.as_array(), new.as_array()) else {
        return false;
    };
    let same = |(old, new): (&Value, &Value)| {
        let (Some(old), Some(new)) = (old.as_object(), new.as_object()) else {
            return old == new;
        };
        let counts = |key: &str| !DROPPED.contains(&key) || old.contains_key(key);
        let counted: Map<String, Value> = new
            .iter()
            .filter(|(key, _)| counts(key))
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect_object();
        counted == *old
    };
    old.len() == new.len() && old.iter().zip(new).all(same)
}
