//! The volumes of claims, as `mirrorlet volumes` lists them.

use std::collections::{BTreeMap, BTreeSet};

use super::{Bound, ClaimName, Claims, EngineVolume, Place, Presence};
use crate::api::report::{VolumeReport, VolumeState};
use crate::small::SmallSort;

/// The users of a claim.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClaimUsers {
    /// The pods, as `namespace/name`.
    pub pods: BTreeSet<String>,
    /// The workloads that use it and currently have no pod that does, as `cronjob/namespace/name`.
    pub workloads: BTreeSet<String>,
}

impl Claims<'_> {
    /// Reports each volume that a claim is bound to, and each that was `created` for a claim that isn't
    /// bound to it: bindings can be lost. `users` are those of each claim.
    pub fn volumes_report(
        self,
        users: &BTreeMap<ClaimName, ClaimUsers>,
        created: &[(ClaimName, EngineVolume)],
    ) -> Vec<VolumeReport> {
        let names = |names: Option<&BTreeSet<String>>| -> Vec<String> {
            names.into_iter().flatten().cloned().collect()
        };
        let is_created = |name: &str| created.iter().any(|(_, volume)| volume.name == name);
        let report = |claim: &ClaimName, name: &str| VolumeReport {
            name: name.to_owned(),
            namespace: claim.namespace.clone(),
            claim: claim.name.clone(),
            state: match (self.claim(claim), self.bindings.get(claim)) {
                (Some(_), Some(bound)) if bound.presence() == Presence::Missing => {
                    VolumeState::Lost
                }
                (Some(_), _) => VolumeState::Bound,
                (None, _) => VolumeState::Released,
            },
            driver: None,
            path: None,
            created: false,
            pods: names(users.get(claim).map(|users| &users.pods)),
            workloads: names(users.get(claim).map(|users| &users.workloads)),
        };
        let bound = self.bindings.iter().map(|(claim, bound)| match bound {
            Bound::Engine(volume) => VolumeReport {
                driver: Some(volume.driver.clone()),
                created: is_created(&volume.name),
                ..report(claim, &volume.name)
            },
            Bound::Volume(name) => {
                let found = self.volume(name).map(|found| found.place(name.clone()));
                VolumeReport {
                    path: match found {
                        Some(Ok(Place::Host { path, .. } | Place::Device { path, .. })) => {
                            Some(path)
                        }
                        Some(Ok(Place::Engine(_)) | Err(_)) | None => None,
                    },
                    ..report(claim, name)
                }
            }
        });
        let is_bound = |volume: &EngineVolume| {
            let mut bound = self.bindings.values();
            bound.any(|bound| matches!(bound, Bound::Engine(other) if other.name == volume.name))
        };
        let unbound = created.iter().filter(|(_, volume)| !is_bound(volume));
        let unbound = unbound.map(|(claim, volume)| VolumeReport {
            driver: Some(volume.driver.clone()),
            created: true,
            // Another volume, or none, is the claim's now.
            state: VolumeState::Released,
            pods: Vec::new(),
            workloads: Vec::new(),
            ..report(claim, &volume.name)
        });
        let mut volumes: Vec<VolumeReport> = bound.chain(unbound).collect();
        volumes.small_sort_by(|a, b| {
            let key = |v: &VolumeReport| (v.namespace.clone(), v.claim.clone(), v.name.clone());
            key(a).cmp(&key(b))
        });
        volumes
    }
}
