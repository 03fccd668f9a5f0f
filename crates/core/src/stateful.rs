//! `StatefulSet`s: the data that all pods of one share.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use crate::api::core::PersistentVolumeClaim;

mod steps;
mod turns;

pub use steps::{Steps, steps};
pub use turns::{Member, Turns, Wait, turns};

/// A `StatefulSet`, but for the pods that it wants.
#[derive(Debug, Clone, PartialEq)]
pub struct StatefulSet {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The numbers of its pods.
    pub ordinals: Range<i32>,
    /// Whether its pods start and stop one after the other.
    pub ordered: bool,
    /// How long a pod must be Ready before the next one's turn.
    pub min_ready: Duration,
    /// The claims of its pods.
    pub claims: Vec<Arc<PersistentVolumeClaim>>,
    /// The claim from each of its templates, without its name, by template name.
    pub claim_templates: Vec<(String, Arc<PersistentVolumeClaim>)>,
}

impl StatefulSet {
    /// The ordinal of the pod with this manifest name.
    pub fn ordinal(&self, manifest_name: &str) -> Option<i32> {
        let number = manifest_name.strip_prefix(self.name.as_str())?;
        let number: i32 = number.strip_prefix('-')?.parse().ok()?;
        let is_one = number >= 0 && self.pod_name(number) == manifest_name;
        is_one.then_some(number)
    }

    /// The claim with that name, if it is one of its pods', whether that pod currently exists or not.
    pub fn claim(&self, name: &str) -> Option<PersistentVolumeClaim> {
        let of = |template: &str| {
            let pod = name.strip_prefix(template)?.strip_prefix('-')?;
            self.ordinal(pod)
        };
        let mut templates = self.claim_templates.iter();
        let (_, claim) = templates.find(|(template, _)| of(template).is_some())?;
        let mut claim = PersistentVolumeClaim::clone(claim);
        claim.metadata.name = Some(name.to_owned());
        Some(claim)
    }

    /// Name of the pod with an ordinal, without the node's suffix.
    pub fn pod_name(&self, ordinal: i32) -> String {
        format!("{}-{ordinal}", self.name)
    }
}
