//! One probe of one container: when to attempt it, and its result.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};
use tokio_util::sync::CancellationToken;

use super::attempt::attempt;
use super::{Key, Shared};
use crate::store::board::{Phase, PodView};
use mirrorlet_core::api::core::Container;
use mirrorlet_core::api::{Pod, core};
use mirrorlet_core::ending::is_over;
use mirrorlet_core::observed::{ContainerStatus, Role};
use mirrorlet_core::probe::{
    Action, Observation, ProbeKind, ProbeSpec, ProbeState, conclude, decide, first_delay,
};
use mirrorlet_core::restart::{could_restart_all, should_restart};
use mirrorlet_core::spec;
use mirrorlet_core::status::container_statuses;
use mirrorlet_host::telemetry::occurrences;

/// One probe's worker.
pub(super) struct Worker {
    shared: Arc<Shared>,
    view: watch::Receiver<Arc<PodView>>,
    container: Arc<str>,
    kind: ProbeKind,
    state: ProbeState,
}

/// Why a worker looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cause {
    /// It is its time.
    Tick,
    /// Its pod has changed.
    News,
}

/// The result of a check.
enum Looked {
    /// The worker has nothing left to do.
    Over,
    /// There is nothing to do before its pod changes.
    Rests,
    /// It was not its turn.
    Idle,
    /// The probe was attempted.
    Probed,
}

impl Worker {
    pub(super) fn new(
        shared: Arc<Shared>,
        view: watch::Receiver<Arc<PodView>>,
        (container, kind): &Key,
    ) -> Self {
        Self {
            shared,
            view,
            container: Arc::clone(container),
            kind: *kind,
            state: ProbeState::default(),
        }
    }

    /// Probes until there is nothing left to probe, or cancelled.
    pub(super) async fn run(mut self, cancel: CancellationToken) {
        tokio::select! {
            () = cancel.cancelled() => {}
            () = self.probe_on() => {}
        }
        self.not_counted();
    }

    /// Drops the series of the probe: it isn't attempted any more, or not for a while.
    fn not_counted(&self) {
        let view = self.view.borrow();
        let metrics = &self.shared.telemetry.metrics;
        metrics.probe_gone(&view.full_name, &view.uid, &self.container, self.kind);
    }

    async fn probe_on(&mut self) {
        let view = self.view.borrow().clone();
        let Some(mut spec) = self.spec(&view) else {
            return;
        };
        let delay = first_delay(&spec, self.shared.began.elapsed(), self.share(&view));
        let mut ticker = ticker(Instant::now() + delay, spec.period);
        let mut rests = false;
        loop {
            let cause = tokio::select! {
                _ = ticker.tick(), if !rests => Cause::Tick,
                changed = self.view.changed() => {
                    if changed.is_err() { return }
                    Cause::News
                }
            };
            let view = self.view.borrow_and_update().clone();
            let Some(now) = self.spec(&view) else { return };
            if now.period != spec.period {
                ticker = self::ticker(Instant::now() + now.period, now.period);
            }
            spec = now;
            let looked = self.look(&view, &spec, cause).await;
            let rested = std::mem::replace(&mut rests, matches!(looked, Looked::Rests));
            match looked {
                Looked::Over => return,
                Looked::Rests if !rested => self.not_counted(),
                Looked::Probed if cause == Cause::News => ticker.reset(),
                Looked::Rests | Looked::Probed | Looked::Idle => {}
            }
        }
    }

    /// The probe's current settings; none if the pod no longer has the probe.
    fn spec(&self, view: &PodView) -> Option<ProbeSpec> {
        let pod = view.pod.as_deref()?;
        let (_, container) = spec::find_container(pod, &self.container)?;
        self.kind.of(container).map(ProbeSpec::of)
    }

    /// A share of the period that differs from probe to probe.
    fn share(&self, view: &PodView) -> f64 {
        let kind = self.kind.as_str();
        let text = [view.uid.as_str(), &self.container, kind];
        let bytes = text.iter().flat_map(|part| part.bytes());
        let hash = bytes.fold(0x811c_9dc5_u32, |hash, byte| {
            (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
        });
        f64::from(hash % 1000) / 1000.0
    }

    /// Checks the container, publishes the result, and attempts the probe if it is due.
    async fn look(&mut self, view: &PodView, spec: &ProbeSpec, cause: Cause) -> Looked {
        let Some(pod) = view.pod.clone() else {
            return Looked::Over;
        };
        let Some((role, container)) = spec::find_container(&pod, &self.container) else {
            return Looked::Over;
        };
        let instance = view.observed.find_container_status_by_name(&self.container);
        let seen = self.observation(view, &pod, role, container, instance);
        let now = (self.shared.now)();
        let (state, decision) = decide(self.state.clone(), self.kind, spec, &seen, now);
        self.state = state;
        self.shared.results.change(&view.uid, |results| {
            let forgotten = decision
                .forget
                .is_some_and(|id| results.remove(&id, self.kind));
            let published = instance
                .zip(decision.publish)
                .is_some_and(|(instance, result)| results.set(&instance.id, self.kind, result));
            forgotten || published
        });
        let due = match decision.action {
            Action::End => return Looked::Over,
            Action::Rest => return Looked::Rests,
            Action::Wait => false,
            Action::Probe => cause == Cause::Tick || self.cannot_wait(view),
        };
        let Some(instance) = instance.filter(|_| due) else {
            return Looked::Idle;
        };
        self.probe(view, &pod, container, instance, spec).await;
        Looked::Probed
    }

    fn observation<'a>(
        &self,
        view: &PodView,
        pod: &Pod,
        role: Role,
        container: &Container,
        instance: Option<&'a ContainerStatus>,
    ) -> Observation<'a> {
        let results = self.shared.results.reader().get(&view.uid);
        Observation {
            instance,
            has_started: instance.is_some_and(|seen| results.has_started(container, seen)),
            terminating: view.phase != Phase::Syncing || pod.metadata.deletion_timestamp.is_some(),
            over: is_over(view.status.as_deref()),
            restarts: role == Role::Sidecar
                || could_restart_all(pod)
                || instance
                    .and_then(|seen| seen.exit_code)
                    .is_none_or(|code| should_restart(pod, container, code)),
            kept: instance.and_then(|seen| results.get(&seen.id, self.kind)),
        }
    }

    /// Whether to probe a container that isn't ready yet immediately, because something about its pod
    /// has changed.
    ///
    /// Upstream: `UpdatePodStatus` of `pkg/kubelet/prober/prober_manager.go`.
    fn cannot_wait(&self, view: &PodView) -> bool {
        let is_unready = |status: &core::ContainerStatus| {
            *status.name == *self.container && status.started == Some(true) && !status.ready
        };
        let status = view.status.as_deref();
        let mut all = status.into_iter().flat_map(container_statuses);
        self.kind == ProbeKind::Readiness && all.any(is_unready)
    }

    async fn probe(
        &mut self,
        view: &PodView,
        pod: &Arc<Pod>,
        container: &Container,
        instance: &ContainerStatus,
        spec: &ProbeSpec,
    ) {
        let Some(probe) = self.kind.of(container) else {
            return;
        };
        let began = Instant::now();
        let done = attempt(&self.shared, view, container, instance, probe, spec.timeout).await;
        super::attempt::report(&self.shared, pod, &self.container, self.kind, &done, began);
        let Ok(outcome) = done else { return };
        let (state, result) = conclude(
            std::mem::take(&mut self.state),
            self.kind,
            spec,
            outcome.result(),
        );
        self.state = state;
        // An instance that ended meanwhile has had the last word: the next look takes it back.
        let Some(result) = result else { return };
        let kind = self.kind;
        self.shared.results.change(&view.uid, |results| {
            let is_news = results.set(&instance.id, kind, result);
            if is_news {
                let pod = &view.full_name;
                occurrences::probe_decided(pod, &view.uid, &self.container, kind, result);
            }
            is_news
        });
    }
}

/// A ticker that, like upstream's, makes up for no tick that it missed.
fn ticker(first: Instant, period: Duration) -> Interval {
    let mut ticker = interval_at(first, period);
    ticker.set_missed_tick_behavior(MissedTickBehavior::Skip);
    ticker
}
