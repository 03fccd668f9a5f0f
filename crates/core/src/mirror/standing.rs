//! The pod behind each full name: the pod that holds it, or the next wanted one.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::api::{FullName, Pod};
use crate::manager::{PodTable, is_static_pod};
use crate::small::SmallCollect;

/// A pod that has a worker.
#[derive(Debug, Clone, PartialEq)]
pub struct AtWork {
    /// Its full name.
    pub full_name: FullName,
    /// The pod; none for one that an earlier agent left running.
    pub pod: Option<Arc<Pod>>,
    /// Whether it only waits for another pod with its full name to finish.
    pub waits: bool,
}

/// The pod that the mirror of a full name shows.
#[derive(Debug, Clone, PartialEq)]
pub enum Standing {
    /// This pod, which holds the name.
    Holder(Arc<Pod>),
    /// This pod, which has no worker yet: another one may still hold the name. An existing mirror
    /// stays; otherwise a mirror of this pod is created.
    Successor(Arc<Pod>),
    /// An unknown pod that is being stopped: an existing mirror stays.
    Unknown,
}

impl Standing {
    /// The pod whose mirror must exist.
    pub fn pod(&self) -> Option<&Arc<Pod>> {
        match self {
            Self::Holder(pod) | Self::Successor(pod) => Some(pod),
            Self::Unknown => None,
        }
    }
}

/// Decides which pod is behind each full name, from the wanted pods and those with a worker, in any
/// order. API pods are ignored.
pub fn standings(
    wanted: &PodTable,
    at_work: impl IntoIterator<Item = AtWork>,
) -> BTreeMap<FullName, Standing> {
    let statics = wanted.get_static_pod_to_mirror_pod_map().into_iter();
    let mut standings: BTreeMap<FullName, Standing> = statics
        .map(|(pod, _)| (FullName::of(&pod), Standing::Successor(pod)))
        .collect_map();
    for AtWork {
        full_name,
        pod,
        waits,
    } in at_work
    {
        match pod {
            _ if waits => {}
            Some(pod) if is_static_pod(&pod) => {
                standings.insert(full_name, Standing::Holder(pod));
            }
            Some(_) => {}
            None => {
                let held = standings.get(&full_name);
                if !matches!(held, Some(Standing::Holder(_))) {
                    standings.insert(full_name, Standing::Unknown);
                }
            }
        }
    }
    standings
}
