//! The usage of cgroups: read, cached for a while, with the rate since the previous reading.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use super::cgroups::{Buffer, Cgroups};
use super::look::Asked;
use crate::store::board::PodView;
use mirrorlet_core::api::Timestamp;
use mirrorlet_core::clock::elapsed;
use mirrorlet_core::resources::container_shares;
use mirrorlet_core::spec;
use mirrorlet_core::stats::{Scope, Usage, cgroup, nano_cores};

/// How long a reading of a sandbox, whose only process sleeps, is served again.
const SANDBOX_FRESH: Duration = Duration::from_mins(1);

/// The owner of a cgroup that is read.
#[derive(Clone, Copy)]
pub(super) enum Owner<'a> {
    /// A sandbox.
    Sandbox,
    /// The container of this name.
    Container(&'a PodView, &'a str),
    /// A pod or a service.
    Other,
}

impl Owner<'_> {
    /// The CPU shares that a container is created with, by its pod as it is now.
    fn shares(self) -> Option<u64> {
        let Self::Container(view, name) = self else {
            return None;
        };
        let pod = view.pod.as_deref()?;
        let (_, container) = spec::containers(pod).find(|(_, known)| known.name == name)?;
        u64::try_from(container_shares(pod, container)).ok()
    }
}

/// The last reading of a cgroup.
struct Kept {
    usage: Usage,
    scope: Scope,
    /// The start of the next rate's window.
    base: Option<Edge>,
    /// The look that it was last a part of.
    look: u64,
}

/// The end of a window: when, and how many nanoseconds had been used by then.
type Edge = (Timestamp, u64);

/// The last readings of cgroups, by path.
pub(super) struct Usages {
    kept: HashMap<Arc<str>, Kept>,
    look: u64,
    /// How long a reading is served again, and the shortest window of a rate.
    fresh: Duration,
}

impl Usages {
    pub(super) fn new(fresh: Duration) -> Self {
        Self {
            kept: HashMap::new(),
            look: 0,
            fresh,
        }
    }

    /// Begins a look.
    pub(super) fn begin(&mut self) {
        self.look += 1;
    }

    /// Forgets the cgroups that were not part of the reading.
    pub(super) fn forget_unread(&mut self) {
        self.kept.retain(|_, kept| kept.look == self.look);
    }

    /// The usage of a cgroup, read now or cached; `None` if it is gone. A sandbox is read infrequently
    /// once it has a rate, which its pod needs.
    pub(super) fn read(
        &mut self,
        cgroups: &mut Cgroups,
        buffer: &mut Buffer,
        path: &Arc<str>,
        asked: &Asked<'_>,
        owner: Owner<'_>,
    ) -> Option<Usage> {
        let usual = self.fresh;
        let fresh = |kept: &Kept| match kept.usage.nano_cores {
            Some(_) if matches!(owner, Owner::Sandbox) => SANDBOX_FRESH,
            Some(_) | None => usual,
        };
        if let Some(kept) = self.kept.get_mut(path)
            && kept.scope >= asked.scope
            && kept.usage.time <= asked.now
            && elapsed(kept.usage.time, asked.now) < fresh(kept)
        {
            kept.look = self.look;
            return Some(kept.usage.clone());
        }
        let version = cgroups.version();
        let mut files = cgroups.open(path, buffer);
        let detailed = asked.scope == Scope::Detailed;
        let mut usage = Usage {
            time: asked.now,
            cpu: cgroup::cpu(version, &mut files, detailed),
            memory: cgroup::memory(version, &mut files),
            ..Usage::default()
        };
        if usage.cpu.is_none() && usage.memory.is_none() {
            return None;
        }
        if asked.scope > Scope::CpuAndMemory {
            usage.processes = cgroup::processes(&mut files);
        }
        if detailed {
            usage.detail = Some(cgroup::detail(version, &mut files, owner.shares()));
        }
        Some(self.rated(Arc::clone(path), usage, asked))
    }

    /// Stores the reading of a cgroup, and adds its rate.
    pub(super) fn rated(&mut self, path: Arc<str>, mut usage: Usage, asked: &Asked<'_>) -> Usage {
        let (base, rate) = rate(self.kept.get(&path), &usage, self.fresh);
        usage.nano_cores = rate;
        let kept = Kept {
            usage: usage.clone(),
            scope: asked.scope,
            base,
            look: self.look,
        };
        self.kept.insert(path, kept);
        usage
    }
}

/// The window of the next rate, and the rate of this one. A window that is too short is extended.
fn rate(before: Option<&Kept>, usage: &Usage, fresh: Duration) -> (Option<Edge>, Option<u64>) {
    let now = usage.cpu.map(|cpu| (usage.time, cpu.usage_nanos));
    let Some((kept, now)) = before.zip(now) else {
        return (now, None);
    };
    let known = kept.usage.nano_cores;
    match kept.base {
        Some(base) if base.0 <= now.0 && elapsed(base.0, now.0) < fresh && base.1 <= now.1 => {
            (Some(base), known)
        }
        Some(base) => (Some(now), nano_cores(base, now)),
        None => (Some(now), None),
    }
}
