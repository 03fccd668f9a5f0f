//! A worker's rounds: plan, walk, remember.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::hold::{Held, images_from, retry_after};
use super::refresh::Refresh;
use super::state::State;
use super::task::{Shutdown, Worker};
use crate::store::cache::Entry;
use mirrorlet_core::admit::with_held_resources;
use mirrorlet_core::api::report::STOPPED;
use mirrorlet_core::api::{Pod, core};
use mirrorlet_core::ending::is_over;
use mirrorlet_core::observed::{ContainerState, PodStatus};
use mirrorlet_core::plan::{Plan, PlanInput, Step, Waiting, compute_pod_actions};
use mirrorlet_core::spec;
use mirrorlet_core::status::CONTAINER_CREATING;
use mirrorlet_host::telemetry::occurrences;
use mirrorlet_runtime::{PodSyncResult, RuntimeError, SyncAction, SyncErrorReason};

/// The result of a sync.
enum Round {
    /// Every container has done its work, or one has failed for good.
    Over,
    /// The next round is due after that time, though nothing happens.
    LookAgain(Option<Duration>),
}

impl Worker {
    /// Converges the pod, round after round, until it ends.
    pub(super) async fn sync_until_stopped(
        &mut self,
        cancel: &CancellationToken,
    ) -> Result<(), Shutdown> {
        let mut seen = self.context.cache.subscribe(&self.uid);
        let mut probed = self.context.probes.subscribe(&self.uid);
        let mut images = self.context.runtime.images_changed();
        let mut addresses = self.context.node_ips.clone();
        let mut refresh = Refresh::new();
        self.newer_than = Instant::now();
        self.context.looks.look(&self.uid).await;
        loop {
            let Some(pod) = self.pod_to_run() else {
                return Ok(());
            };
            refresh.listen(&self.context, &pod);
            seen.mark_unchanged();
            probed.mark_unchanged();
            let cache = self.context.cache.clone();
            let entry = tokio::select! {
                () = cancel.cancelled() => return Err(Shutdown),
                result = self.commands.changed() => {
                    if result.is_err() { return Err(Shutdown) }
                    continue;
                }
                entry = cache.get_newer_than(&self.uid, self.newer_than) => entry,
            };
            let mut look_again = if let Some(why) = self.unsupported(&pod) {
                self.hold_unsupported(&pod, &entry.status, &why);
                None
            } else if let Some(error) = &entry.error {
                self.leave_alone(&entry, error);
                None
            } else {
                match self.round(&pod, &entry.status, cancel).await {
                    Round::Over => return Ok(()),
                    Round::LookAgain(after) => after,
                }
            };
            if self.holds_nothing_needed() {
                let due = self
                    .refresh(&mut refresh, &pod, &entry.status, cancel)
                    .await;
                look_again = sooner(look_again, due);
            }
            let timer = tokio::time::sleep(look_again.unwrap_or(Duration::MAX));
            let away_since = self.held.as_ref().and_then(|held| held.away_since);
            let back = cache.wait_until_known(away_since.unwrap_or(self.newer_than));
            tokio::select! {
                () = cancel.cancelled() => return Err(Shutdown),
                result = self.commands.changed() => if result.is_err() { return Err(Shutdown) },
                changed = seen.changed() => if changed.is_err() {
                    seen = self.context.cache.subscribe(&self.uid);
                },
                // The store outlives the workers.
                _ = probed.changed() => {}
                // Not where they are configured.
                Ok(_) = addresses.changed() => {}
                () = timer, if look_again.is_some() => {}
                // Once: what is seen of the pod may have an error still.
                () = back, if away_since.is_some() => self.held = None,
                // The missing object may be there by now: try again at once.
                () = refresh.changed() => self.held = None,
                () = changed(&mut images), if self.waits_for_image() => self.try_images_soon(),
            }
        }
    }

    /// Leaves a pod with an unknown state alone. The observer lists again by itself.
    fn leave_alone(&mut self, entry: &Entry, error: &RuntimeError) {
        let words = error.to_string();
        if !error.is_unavailable() && *self.error != *words {
            occurrences::status_unknown(self.telemetry(), &words);
        }
        self.error = words.into();
        self.publish_entry(entry);
    }

    /// One round: plan, walk, remember.
    async fn round(
        &mut self,
        pod: &Arc<Pod>,
        status: &Arc<PodStatus>,
        cancel: &CancellationToken,
    ) -> Round {
        let now = self.context.clock.now();
        let plan = compute_pod_actions(&PlanInput {
            pod: &self.to_plan_for(pod),
            status,
            backoff: &self.backoff,
            probes: &self.context.probes.get(&self.uid),
            gc: self.context.gc,
            now,
        });
        self.forget_mended(status);
        self.note_waiting(status, &plan);
        if self.is_api && plan.finished {
            // An API pod has ended for good; a manifest's stays as it is, because its manifest may
            // change.
            self.publish(status);
            return Round::Over;
        }
        if let Some(left) = self.held_for(&plan) {
            self.publish(status);
            return Round::LookAgain(sooner(plan.look_again, Some(left)));
        }
        self.held = None;
        let release = self.release_if_done(status, &plan).await;
        if plan.is_empty() {
            self.error = "".into();
            self.publish(status);
            let done = plan.is_over(status) && is_over(self.status.as_deref());
            self.state = if done { State::Over } else { State::Syncing };
            return Round::LookAgain(sooner(plan.look_again, release));
        }
        self.note_failed_probe(&plan);
        self.publish(status);
        let began = Instant::now();
        let pod = &self.with_start_time(pod);
        let result = self.walk(pod, status, &plan, cancel).await;
        occurrences::sync_done(self.telemetry(), plan.steps.len(), &result, began.elapsed());
        self.newer_than = Instant::now();
        self.context.looks.look(&self.uid).await;
        self.remember(pod, status, &plan, &result);
        self.publish(status);
        let retry = retry_after(&result, &self.uid);
        if let Some(retry) = retry {
            let mut errors = result.errors().peekable();
            let away = errors.peek().is_some()
                && errors.all(|e| e.reason == SyncErrorReason::RuntimeUnavailable);
            self.held = Some(Held {
                plan: plan.clone(),
                until: Instant::now() + retry,
                away_since: away.then(Instant::now),
                images_from: images_from(&result, &self.uid),
            });
        }
        Round::LookAgain(sooner(retry, plan.look_again))
    }

    /// The newest version of the pod, with the resources that its containers hold, unless it is ending.
    fn pod_to_run(&mut self) -> Option<Arc<Pod>> {
        self.take_newest();
        if self.must_end() {
            None
        } else {
            let pod = self.pod.as_ref()?;
            let status = self.status.as_deref().or(pod.status.as_ref());
            Some(with_held_resources(pod, status))
        }
    }

    /// The unsupported fields of the pod; none for a manifest's, which its source would have refused.
    fn unsupported(&self, pod: &Pod) -> Option<Arc<str>> {
        if !self.is_api {
            return None;
        }
        let fields = (self.context.unsupported)(pod);
        (!fields.is_empty()).then(|| {
            let list = fields.join(", ");
            format!("not supported on this node: {list}").into()
        })
    }

    /// Starts nothing of a pod with unsupported fields, and reports that.
    fn hold_unsupported(&mut self, pod: &Pod, status: &Arc<PodStatus>, why: &Arc<str>) {
        for (_, container) in spec::containers(pod) {
            let waiting = Waiting {
                reason: "CreateContainerConfigError".into(),
                message: Arc::clone(why),
            };
            self.failures
                .insert(container.name.as_str().into(), waiting);
        }
        if self.error != *why {
            occurrences::note(self.telemetry(), "UnsupportedFields", why);
        }
        self.error = Arc::clone(why);
        self.publish(status);
    }

    /// The pod with the part of its status that the planner needs: for an ended pod the phase, so that
    /// it doesn't restart when its containers are removed; otherwise its start, which only a deadline
    /// needs, and most pods have none.
    ///
    /// Upstream: `pkg/kubelet/pod_workers.go` (`SyncPod` says that a pod is terminal, and its worker
    /// starts nothing of that UID again).
    fn to_plan_for(&self, pod: &Arc<Pod>) -> Arc<Pod> {
        if matches!(self.state, State::Over) {
            let mut over = Pod::clone(pod);
            let phase = self.status.as_deref().and_then(|s| s.phase.clone());
            over.status
                .get_or_insert_with(core::PodStatus::default)
                .phase = phase;
            return Arc::new(over);
        }
        match spec::spec(pod).active_deadline_seconds {
            Some(_) => self.with_start_time(pod),
            None => Arc::clone(pod),
        }
    }

    /// The pod with the start time in its status, from which its deadline counts and which its
    /// sandboxes store. The oldest remaining sandbox may be younger.
    fn with_start_time(&self, pod: &Arc<Pod>) -> Arc<Pod> {
        let of = |status: &core::PodStatus| status.start_time.clone();
        let start_time = self.status.as_deref().and_then(of);
        if start_time.is_none() || start_time == pod.status.as_ref().and_then(of) {
            return Arc::clone(pod);
        }
        let mut started = Pod::clone(pod);
        started
            .status
            .get_or_insert_with(core::PodStatus::default)
            .start_time = start_time;
        Arc::new(started)
    }

    /// Records for which probe a container is about to be ended.
    fn note_failed_probe(&mut self, plan: &Plan) {
        let reasons = plan.steps.iter().filter_map(|step| match step {
            Step::KillPod { reason } | Step::KillContainer { reason, .. } => Some(reason),
            _ => None,
        });
        let mut failed = reasons.filter(|reason| reason.failed_probe().is_some());
        if let Some(reason) = failed.next() {
            self.failed_probe = Some(reason.to_string().into());
        }
    }

    /// Records which containers are in back-off, and reports each once.
    fn note_waiting(&mut self, status: &PodStatus, plan: &Plan) {
        for (name, waiting) in &plan.waiting {
            self.failures.insert(Arc::clone(name), waiting.clone());
            if &*waiting.reason == STOPPED {
                continue;
            }
            let newest = status.find_container_status_by_name(name);
            let attempt = newest.map_or(0, |c| c.restart_count);
            if self.reported_backoff.insert(Arc::clone(name), attempt) != Some(attempt) {
                occurrences::backoff(
                    self.telemetry(),
                    name,
                    attempt,
                    plan.look_again.unwrap_or_default(),
                );
            }
        }
    }

    /// Has the runtime execute the plan. The pod's end cuts it short, also within a stop: the grace
    /// that the pod ends with may be shorter.
    ///
    /// Upstream: `pkg/kubelet/pod_workers.go` (`UpdatePod`, which cancels the sync under way).
    async fn walk(
        &mut self,
        pod: &Arc<Pod>,
        status: &Arc<PodStatus>,
        plan: &Plan,
        cancel: &CancellationToken,
    ) -> PodSyncResult {
        let token = cancel.child_token();
        let runtime = Arc::clone(&self.context.runtime);
        let mut probed = self.context.probes.subscribe(&self.uid);
        let mut walking = runtime.sync_pod(pod, status, plan, &token);
        loop {
            tokio::select! {
                result = &mut walking => return result,
                // A pull may take long: what runs meanwhile may become ready.
                _ = probed.changed() => self.publish(status),
                result = self.commands.changed() => {
                    if result.is_err() || self.must_end() {
                        token.cancel();
                        return walking.await;
                    }
                }
            }
        }
    }

    /// Brings the pod's volumes up to date if that is due, and says when to look again. The pod's
    /// end cuts it short.
    async fn refresh(
        &mut self,
        refresh: &mut Refresh,
        pod: &Arc<Pod>,
        status: &PodStatus,
        cancel: &CancellationToken,
    ) -> Option<Duration> {
        let token = cancel.child_token();
        let context = Arc::clone(&self.context);
        let mut running = std::pin::pin!(refresh.run(&context, pod, status, &token));
        let mut has_new_command = false;
        loop {
            tokio::select! {
                due = &mut running => return if has_new_command { Some(Duration::ZERO) } else { due },
                result = self.commands.changed() => {
                    has_new_command = true;
                    if result.is_err() || self.must_end() {
                        token.cancel();
                        running.await;
                        return Some(Duration::ZERO);
                    }
                }
            }
        }
    }

    /// Stores the data of a round that the planner and the status need: back-off steps of the restarted
    /// containers, and the reasons of those that could not be started.
    fn remember(&mut self, pod: &Pod, status: &PodStatus, plan: &Plan, result: &PodSyncResult) {
        let mut tried = plan.clone();
        tried.steps.retain(|step| was_tried(step, result));
        tried.record_backoff(pod, status, &mut self.backoff, self.context.clock.now());
        self.error = result.error().unwrap_or_default().into();
        for r in &result.sync_results {
            let starts = is_start(r.action);
            if let (true, Some(error)) = (starts, &r.error) {
                let waiting = Waiting {
                    reason: if error.passing {
                        CONTAINER_CREATING.into()
                    } else {
                        error.reason.to_string().into()
                    },
                    message: error.message.as_str().into(),
                };
                self.failures.insert(r.target.as_str().into(), waiting);
            } else if starts {
                self.failures.remove(r.target.as_str());
            }
        }
    }

    /// Drops the failures of containers that run by now.
    fn forget_mended(&mut self, status: &PodStatus) {
        self.failures.retain(|name, _| {
            status
                .find_container_status_by_name(name)
                .is_none_or(|c| c.state != ContainerState::Running)
        });
    }
}

/// Whether a step was tried, so that it counts for the back-off: not a start that an earlier failure
/// prevented (of a volume, a stop, the runtime), nor one whose container was not even created because a
/// referenced object is missing, or the runtime is away. That is not a crash, and must not delay a
/// container once its requirements are met. Nor a sandbox that could not be created or has no network:
/// it is retried after a pause anyway.
///
/// Upstream: `SyncPod` of `pkg/kubelet/kubelet.go` mounts volumes, and `SyncPod` of
/// `kuberuntime_manager.go` stops containers, before either comes to `doBackOff`.
fn was_tried(step: &Step, result: &PodSyncResult) -> bool {
    let mut results = result.sync_results.iter();
    match step {
        Step::StartContainer { name, .. } => results.any(|r| {
            let reason = r.error.as_ref().map(|error| error.reason);
            let missing_something = matches!(
                reason,
                Some(
                    SyncErrorReason::CreateContainerConfigError
                        | SyncErrorReason::RuntimeUnavailable
                )
            );
            is_start(r.action) && *r.target == **name && !missing_something
        }),
        Step::CreateSandbox { .. } => {
            let mut own = results.filter(|r| is_of_sandbox(r.action)).peekable();
            own.peek().is_some() && own.all(|r| r.error.is_none())
        }
        Step::KillPod { .. } | Step::KillContainer { .. } | Step::RemoveContainer { .. } => true,
    }
}

fn is_of_sandbox(action: SyncAction) -> bool {
    matches!(
        action,
        SyncAction::CreatePodSandbox | SyncAction::SetupNetwork
    )
}

fn is_start(action: SyncAction) -> bool {
    matches!(
        action,
        SyncAction::StartContainer | SyncAction::InitContainer
    )
}

/// Waits for a change; forever if there can't be any. Cancel safe.
async fn changed(news: &mut watch::Receiver<u64>) {
    if news.changed().await.is_err() {
        std::future::pending::<()>().await;
    }
}

fn sooner(a: Option<Duration>, b: Option<Duration>) -> Option<Duration> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}
