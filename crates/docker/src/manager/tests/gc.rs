//! Garbage collection of containers on the Engine in memory.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use super::*;
use mirrorlet_core::gc::{Cause, PodLife};
use mirrorlet_runtime::gc::PodStateProvider;

/// States of pods; those that aren't named are unknown.
#[derive(Default)]
struct Known {
    lives: Mutex<HashMap<PodUid, PodLife>>,
    not_ready: AtomicBool,
    /// Pods that are back as soon as they were asked for once.
    back: Mutex<Vec<PodUid>>,
}

impl Known {
    fn of(pods: &[&Arc<Pod>]) -> Self {
        let known = Self::default();
        for pod in pods {
            known.set(pod, PodLife::Known);
        }
        known
    }

    fn set(&self, pod: &Arc<Pod>, life: PodLife) {
        self.lives.lock().unwrap().insert(PodUid::of(pod), life);
    }
}

impl PodStateProvider for Known {
    fn life(&self, uid: &PodUid) -> PodLife {
        let mut lives = self.lives.lock().unwrap();
        let life = lives.get(uid).copied().unwrap_or(PodLife::Gone);
        if self.back.lock().unwrap().contains(uid) {
            lives.insert(uid.clone(), PodLife::Known);
        }
        life
    }

    fn all_sources_ready(&self) -> bool {
        !self.not_ready.load(Ordering::Relaxed)
    }
}

impl Bed {
    /// Lets the pod's container die and restarts it, without tidying up after it.
    async fn restart(&self, pod: &Arc<Pod>, times: u32) {
        let everything = ContainerGcPolicy::new(Duration::ZERO, -1, -1);
        for number in 0..times {
            let name = container_name("app", &FullName::of(pod), &PodUid::of(pod), number);
            self.engine.exit(&name, 1);
            self.manager.get_pods(true).await.unwrap();
            let status = self.status(pod).await;
            let plan = compute_pod_actions(&PlanInput {
                pod,
                status: &status,
                backoff: &Backoff::default(),
                probes: &ProbeResults::default(),
                gc: everything,
                now: Timestamp::now(),
            });
            let cancel = CancellationToken::new();
            let result = self.manager.sync_pod(pod, &status, &plan, &cancel).await;
            assert_eq!(result.error(), None);
        }
        self.engine.clear_calls();
    }

    async fn collect(&self, known: &Known, evict: bool) -> GcOutcome {
        let policy = ContainerGcPolicy::default();
        self.manager.garbage_collect(policy, known, evict).await
    }

    fn names(&self) -> Vec<String> {
        self.containers()
            .into_iter()
            .map(|(name, _)| name)
            .collect()
    }
}

fn instance(pod: &Arc<Pod>, number: u32) -> String {
    container_name("app", &FullName::of(pod), &PodUid::of(pod), number)
}

#[tokio::test(start_paused = true)]
async fn dead_instances_are_collected_and_the_count_goes_on() {
    let bed = Bed::warm().await;
    let pod = pod("a", &json!({}));
    bed.up(&pod).await;
    bed.restart(&pod, 3).await;
    let known = Known::of(&[&pod]);
    let outcome = bed.collect(&known, false).await;
    // docker 56
    assert_eq!(outcome.removed[&Cause::PerContainer], 2);
    assert_eq!(outcome.failed, []);
    let left = [pause_name(&pod), instance(&pod, 2), instance(&pod, 3)];
    assert_eq!(bed.names(), left);
    assert_eq!(bed.operations(), [Operation::RemoveContainer; 2]);
    let status = bed.status(&pod).await;
    let counts: Vec<_> = status.containers.iter().map(|c| c.restart_count).collect();
    assert_eq!(counts, [3, 2]);
    // A second pass has nothing to do, and asks nobody.
    bed.engine.clear_calls();
    assert_eq!(bed.collect(&known, true).await, GcOutcome::default());
    assert_eq!(bed.operations(), []);
}

#[tokio::test(start_paused = true)]
async fn what_can_not_be_removed_is_told_and_holds_up_nothing() {
    let bed = Bed::warm().await;
    let pod = pod("a", &json!({}));
    bed.up(&pod).await;
    bed.restart(&pod, 4).await;
    let refused = api_error(500, "device busy");
    bed.engine.fail(
        Operation::RemoveContainer,
        None,
        FaultPoint::Before,
        refused,
    );
    let known = Known::of(&[&pod]);
    let outcome = bed.collect(&known, false).await;
    assert_eq!(outcome.removed[&Cause::PerContainer], 2);
    assert_eq!(outcome.failed.len(), 1);
    // docker 56
    assert!(outcome.error().unwrap().contains("device busy"));
    // It is tried again.
    let outcome = bed.collect(&known, false).await;
    assert_eq!(outcome.removed[&Cause::PerContainer], 1);
    assert_eq!(bed.names().len(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_round_says_that_a_dead_instance_is_left() {
    let bed = Bed::warm().await;
    let pod = pod("a", &json!({}));
    bed.up(&pod).await;
    bed.restart(&pod, 3).await;
    let busy = api_error(500, "device or resource busy");
    bed.engine
        .fail(Operation::RemoveContainer, None, FaultPoint::Before, busy);
    let round = bed.round(&pod).await;
    // pods 48
    assert!(round.left_behind);
    assert_eq!(round.error(), None);
    // The other one is removed all the same.
    assert_eq!(bed.engine.count(Operation::RemoveContainer), 2);
    assert_eq!(bed.names().len(), 4);
    let round = bed.round(&pod).await;
    assert!(!round.left_behind);
    let left = [pause_name(&pod), instance(&pod, 2), instance(&pod, 3)];
    assert_eq!(bed.names(), left);
}

#[tokio::test(start_paused = true)]
async fn the_remains_of_pods_that_are_gone_go_and_what_runs_does_not() {
    let bed = Bed::warm().await;
    let (gone, unwanted, known) = (
        pod("a", &json!({})),
        pod("b", &json!({})),
        pod("c", &json!({})),
    );
    for pod in [&gone, &unwanted, &known] {
        bed.up(pod).await;
    }
    bed.kill(&gone, None).await;
    bed.kill(&known, None).await;
    let states = Known::of(&[&known]);
    states.not_ready.store(true, Ordering::Relaxed);
    assert_eq!(bed.collect(&states, true).await, GcOutcome::default());
    states.not_ready.store(false, Ordering::Relaxed);
    let outcome = bed.collect(&states, false).await;
    assert_eq!(outcome.removed[&Cause::PodGone], 2);
    let left = [
        pause_name(&unwanted),
        instance(&unwanted, 0),
        pause_name(&known),
        instance(&known, 0),
    ];
    assert_eq!(bed.names(), left);
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_is_back_meanwhile_keeps_its_remains() {
    let bed = Bed::warm().await;
    let pod = pod("a", &json!({}));
    bed.up(&pod).await;
    bed.kill(&pod, None).await;
    let states = Known::default();
    states.back.lock().unwrap().push(PodUid::of(&pod));
    assert_eq!(bed.collect(&states, false).await, GcOutcome::default());
    assert_eq!(bed.names(), [pause_name(&pod), instance(&pod, 0)]);
}

#[tokio::test(start_paused = true)]
async fn all_unused_containers_are_those_of_pods_that_are_over() {
    let bed = Bed::warm().await;
    let (over, job) = (
        pod("a", &json!({})),
        pod("b", &json!({"restartPolicy": "Never"})),
    );
    for pod in [&over, &job] {
        bed.up(pod).await;
        bed.kill(pod, None).await;
    }
    let states = Known::of(&[&job]);
    states.set(&over, PodLife::Over);
    assert_eq!(bed.collect(&states, false).await, GcOutcome::default());
    let outcome = bed.collect(&states, true).await;
    assert_eq!(outcome.removed[&Cause::PodOver], 2);
    // A manifest's job that is done is known to be by its containers alone.
    assert_eq!(bed.names(), [pause_name(&job), instance(&job, 0)]);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_collected_before_everything_was_listed() {
    let bed = Bed::warm().await;
    let pod = pod("a", &json!({}));
    bed.up(&pod).await;
    bed.kill(&pod, None).await;
    bed.engine.clear_calls();
    bed.manager.containers.index.begin_gap();
    assert_eq!(
        bed.collect(&Known::default(), false).await,
        GcOutcome::default()
    );
    // docker 56
    assert_eq!(bed.operations(), []);
}
