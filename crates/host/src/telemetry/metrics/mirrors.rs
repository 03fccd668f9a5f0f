//! The series about mirror pods.

use std::collections::BTreeMap;

use super::{Metrics, set};
use mirrorlet_core::api::FullName;
use mirrorlet_core::mirror::MirrorState;
use mirrorlet_core::small::SmallCollect;

impl Metrics {
    /// Sets how static pods stand with their mirrors.
    pub fn set_mirrors(&self, states: &BTreeMap<FullName, MirrorState>) {
        let mut counts = [("synced", 0_i64), ("pending", 0), ("problem", 0)].collect_map();
        let mut problems: BTreeMap<&'static str, i64> = BTreeMap::new();
        for state in states.values() {
            let label = match state {
                MirrorState::Synced { .. } => "synced",
                MirrorState::Pending => "pending",
                MirrorState::Problem(problem) => {
                    *problems.entry(problem.kind.as_str()).or_default() += 1;
                    "problem"
                }
            };
            *counts.entry(label).or_default() += 1;
        }
        for (state, count) in counts {
            set(&self.mirrors, "state", state, count);
        }
        self.mirror_problems.clear();
        for (kind, count) in problems {
            set(&self.mirror_problems, "kind", kind, count);
        }
    }
}
