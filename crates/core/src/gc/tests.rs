//! Decisions of the garbage collection of containers.

use proptest::prelude::*;

use super::*;
use crate::observed::{ContainerHash, Role, SandboxStatus};

const NOW: i64 = 1_700_000_000;
const DAY: i64 = 24 * 60 * 60;

fn now() -> Timestamp {
    Timestamp::from_second(NOW).unwrap()
}

fn created(seconds_ago: i64) -> Timestamp {
    Timestamp::from_second(NOW - seconds_ago).unwrap()
}

/// An instance of a container, created that many seconds ago.
fn instance(pod: &str, name: &str, state: ContainerState, seconds_ago: i64) -> ContainerStatus {
    ContainerStatus {
        by_hand: None,
        id: ContainerId::docker(format!("{pod}-{name}-{seconds_ago}")),
        name: name.into(),
        role: Role::App,
        state,
        created_at: created(seconds_ago),
        started_at: None,
        finished_at: None,
        exit_code: None,
        image: "".into(),
        image_id: "".into(),
        hash: ContainerHash::default(),
        restart_count: 0,
        pod_restarts: 0,
        reason: "".into(),
        message: "".into(),
    }
}

fn sandbox(pod: &str, state: ContainerState, seconds_ago: i64) -> SandboxStatus {
    SandboxStatus {
        by_hand: None,
        id: ContainerId::docker(format!("{pod}-sandbox-{seconds_ago}")),
        attempt: 0,
        state,
        created_at: created(seconds_ago),
        pod_started_at: None,
        host_network: false,
        ips: Vec::new(),
    }
}

/// A pod of instances in short: `a:x3` is an exited instance of `a`, created three seconds ago;
/// `r` runs, `c` was only created, `u` is in an unknown state. `POD` is its sandbox.
fn pod(uid: &str, instances: &str) -> PodStatus {
    let mut status = PodStatus {
        full_name: FullName::new(uid, "ns"),
        ..PodStatus::empty(uid.into())
    };
    for word in instances.split_whitespace() {
        let (name, rest) = word.split_once(':').unwrap();
        let (state, age) = rest.split_at(1);
        let age: i64 = age.parse().unwrap();
        let state = match state {
            "r" => ContainerState::Running,
            "x" => ContainerState::Exited,
            "c" => ContainerState::Created,
            "u" => ContainerState::Unknown,
            other => panic!("{other}"),
        };
        if name == SANDBOX_NAME {
            status.sandboxes.push(sandbox(uid, state, age));
        } else {
            status.containers.push(instance(uid, name, state, age));
        }
    }
    status
        .containers
        .sort_by_key(|c| std::cmp::Reverse(c.created_at));
    status
        .sandboxes
        .sort_by_key(|s| std::cmp::Reverse(s.created_at));
    status
}

#[derive(Debug)]
struct Case {
    policy: ContainerGcPolicy,
    pods: Vec<PodStatus>,
    lives: BTreeMap<PodUid, PodLife>,
    ready: bool,
    evict: bool,
}

impl Case {
    /// Pods that are known, under a policy of those maxima.
    fn of(per_container: i32, total: i32, pods: &[(&str, &str)]) -> Self {
        Self {
            policy: ContainerGcPolicy::new(Duration::ZERO, per_container, total),
            pods: pods.iter().map(|(uid, seen)| pod(uid, seen)).collect(),
            lives: pods
                .iter()
                .map(|(uid, _)| ((*uid).into(), PodLife::Known))
                .collect(),
            ready: true,
            evict: false,
        }
    }

    fn life(mut self, uid: &str, life: PodLife) -> Self {
        self.lives.insert(uid.into(), life);
        self
    }

    fn removals(&self) -> Vec<Removal> {
        compute_container_gc(&GcInput {
            policy: self.policy,
            pods: &self.pods,
            lives: &self.lives,
            all_sources_ready: self.ready,
            evict_non_deleted: self.evict,
            now: now(),
        })
    }

    /// Returns the removals and their reasons, in short.
    fn gone(&self) -> Vec<String> {
        let shown = |r: &Removal| {
            let stop = if r.stop_first { "stop " } else { "" };
            format!("{stop}{} {}", r.id.id, r.cause.as_str())
        };
        self.removals().iter().map(shown).collect()
    }
}

#[test]
fn each_container_keeps_as_many_dead_instances_as_it_may() {
    let seen = "a:r1 a:x2 a:x3 a:x4 b:x1 b:x2 b:x3 POD:r9";
    for (keep, gone) in [
        (-1, vec![]),
        (3, vec![]),
        (2, vec!["p-a-4", "p-b-3"]),
        (1, vec!["p-a-4", "p-a-3", "p-b-3", "p-b-2"]),
        // The newest one stays: what became of b is known by it alone.
        (0, vec!["p-a-4", "p-a-3", "p-a-2", "p-b-3", "p-b-2"]),
    ] {
        let case = Case::of(keep, -1, &[("p", seen)]);
        let expected: Vec<String> = gone
            .iter()
            .map(|id| format!("{id} per_container"))
            .collect();
        // docker 56
        assert_eq!(case.gone(), expected, "keep {keep}");
    }
}

#[test]
fn what_may_show_that_all_containers_are_restarted_stays_until_a_regular_one_was() {
    for (total, seen, gone) in [
        (
            -1,
            "side:r1 side:x2 side:x3 app:x4",
            vec!["p-side-2 per_container"],
        ),
        (
            0,
            "side:r1 side:x2 side:x3 app:x4",
            vec!["p-side-2 per_container"],
        ),
        (
            -1,
            "app:r1 side:r1 side:x2 side:x3 app:x4",
            vec![
                "p-app-4 per_container",
                "p-side-3 per_container",
                "p-side-2 per_container",
            ],
        ),
    ] {
        let mut case = Case::of(0, total, &[("p", seen)]);
        for seen in &mut case.pods[0].containers {
            if &*seen.name == "side" {
                seen.role = Role::Sidecar;
            }
            seen.pod_restarts = u32::from(seen.created_at > created(3));
        }
        assert_eq!(case.gone(), gone, "{total} {seen}");
    }
}

#[test]
fn what_was_only_created_is_left_to_its_starter_unless_it_was_overtaken() {
    let case = Case::of(1, -1, &[("p", "a:c1 a:x2 a:x3 b:r1 b:c2 b:x3")]);
    assert_eq!(case.gone(), ["p-a-3 per_container", "p-b-2 per_container"]);
}

#[test]
fn age_counts_from_the_creation() {
    let mut case = Case::of(0, -1, &[("p", "a:r1 a:x60 a:x61"), ("q", "a:x59 a:x62")]);
    case.policy.min_age = Duration::from_secs(61);
    assert_eq!(
        case.gone(),
        ["p-a-61 per_container", "q-a-62 per_container"]
    );
    let mut gone = Case::of(1, -1, &[("p", "a:x60 b:x62 POD:x70")]).life("p", PodLife::Gone);
    gone.policy.min_age = Duration::from_secs(61);
    // Its sandbox waits for its last container.
    assert_eq!(gone.gone(), ["p-b-62 pod_gone"]);
}

#[test]
fn what_is_left_of_a_pod_that_is_gone_goes_once_every_source_has_delivered() {
    let seen = "a:x1 a:x2 b:c1 POD:x8 POD:x9";
    let mut case = Case::of(1, -1, &[("p", seen)]).life("p", PodLife::Gone);
    // docker 56
    assert_eq!(
        case.gone(),
        [
            "p-a-2 pod_gone",
            "p-a-1 pod_gone",
            "p-b-1 pod_gone",
            "p-sandbox-9 pod_gone",
            "p-sandbox-8 pod_gone"
        ]
    );
    case.ready = false;
    assert_eq!(case.gone(), ["p-a-2 per_container", "p-sandbox-9 replaced"]);
    // A running container that nobody wants is stopped by its worker, with its grace.
    let running = Case::of(1, -1, &[("p", "a:r1 b:x2 POD:r9")]).life("p", PodLife::Gone);
    assert_eq!(running.gone(), ["p-b-2 pod_gone"]);
}

#[test]
fn pods_that_are_over_keep_their_logs_until_space_is_needed() {
    let over = || Case::of(1, -1, &[("p", "a:x1 POD:x9"), ("q", "a:x1 POD:x9")]);
    let mut case = over().life("p", PodLife::Over);
    assert_eq!(case.gone(), Vec::<String>::new());
    case.evict = true;
    // docker 56
    assert_eq!(case.gone(), ["p-a-1 pod_over", "p-sandbox-9 pod_over"]);
    case.ready = false;
    assert_eq!(case.gone(), Vec::<String>::new());
}

#[test]
fn the_node_keeps_a_fair_share_of_each_container_and_then_the_newest() {
    let busy = ("p", "a:r1 a:x10 a:x11 a:x12 a:x13");
    let calm = ("q", "a:r1 a:x20");
    // Five dead ones: two each at most, which is one less than there are.
    let gone = Case::of(-1, 4, &[busy, calm]).gone();
    // docker 56
    assert_eq!(gone, ["p-a-13 total", "p-a-12 total"]);
    // One each is more than there may be: the oldest of all goes.
    let gone = Case::of(-1, 1, &[busy, calm]).gone();
    assert_eq!(
        gone,
        [
            "p-a-13 total",
            "p-a-12 total",
            "p-a-11 total",
            "q-a-20 total"
        ]
    );
    // Under the maximum nothing goes.
    assert_eq!(Case::of(-1, 5, &[busy, calm]).gone(), Vec::<String>::new());
    // The newest instance, the only one with that result, is kept even over the maximum.
    let ended = ("r", "a:x30 b:x31");
    let gone = Case::of(-1, 0, &[ended, calm]).gone();
    assert_eq!(gone, ["q-a-20 total"]);
}

#[test]
fn an_instance_in_an_unknown_state_is_stopped_first() {
    let case = Case::of(0, -1, &[("p", "a:r1 a:u2 POD:r8 POD:u9")]);
    assert_eq!(
        case.gone(),
        ["stop p-a-2 per_container", "stop p-sandbox-9 replaced"]
    );
}

#[test]
fn sandboxes_go_when_they_have_a_successor_or_their_pod_has_none_of_its_containers_left() {
    for (seen, life, gone) in [
        (
            "a:r1 POD:r8 POD:x9",
            PodLife::Known,
            vec!["p-sandbox-9 replaced"],
        ),
        ("a:x1 POD:x9", PodLife::Known, vec![]),
        ("POD:x9", PodLife::Known, vec![]),
        (
            "POD:c8 POD:c9",
            PodLife::Known,
            vec!["p-sandbox-9 replaced"],
        ),
        ("POD:x9", PodLife::Gone, vec!["p-sandbox-9 pod_gone"]),
        ("POD:r9", PodLife::Gone, vec![]),
        ("a:r1 POD:x9", PodLife::Gone, vec![]),
    ] {
        let case = Case::of(1, -1, &[("p", seen)]).life("p", life);
        // docker 56
        assert_eq!(case.gone(), gone, "{seen} {life:?}");
    }
}

#[test]
fn negative_maxima_are_no_maxima() {
    let policy = ContainerGcPolicy::new(Duration::ZERO, -1, -7);
    assert_eq!(policy.max_per_pod_container, None);
    assert_eq!(policy.max_containers, None);
    let default = ContainerGcPolicy::default();
    assert_eq!(default.max_per_pod_container, Some(1));
    assert_eq!(default.max_containers, None);
    assert_eq!(default.min_age, Duration::ZERO);
}

fn states() -> impl Strategy<Value = ContainerState> {
    prop_oneof![
        2 => Just(ContainerState::Running),
        6 => Just(ContainerState::Exited),
        1 => Just(ContainerState::Created),
        1 => Just(ContainerState::Unknown),
    ]
}

fn pods() -> impl Strategy<Value = Vec<PodStatus>> {
    let containers = prop::collection::vec((0..3_usize, states()), 0..12);
    let sandboxes = prop::collection::vec(states(), 0..4);
    let seen = (containers, sandboxes, 0..2 * DAY);
    prop::collection::vec(seen, 0..5).prop_map(|pods| {
        let mut made = Vec::new();
        for (index, (containers, sandboxes, age)) in pods.into_iter().enumerate() {
            let uid = format!("pod{index}");
            let mut status = pod(&uid, "");
            for (number, (name, state)) in (0_i64..).zip(containers) {
                let name = ["a", "b", "c"][name];
                status
                    .containers
                    .push(instance(&uid, name, state, age + number));
            }
            for (number, state) in (0_i64..).zip(sandboxes) {
                status.sandboxes.push(sandbox(&uid, state, age + number));
            }
            made.push(status);
        }
        made
    })
}

fn cases() -> impl Strategy<Value = Case> {
    let life = prop_oneof![
        Just(PodLife::Known),
        Just(PodLife::Over),
        Just(PodLife::Gone)
    ];
    let lives = prop::collection::vec(life, 5);
    let policy = (0..2 * DAY, -1..4_i32, -1..12_i32);
    (pods(), lives, policy, any::<bool>(), any::<bool>()).prop_map(
        |(pods, lives, (age, each, all), ready, evict)| {
            let age = Duration::from_secs(age.unsigned_abs());
            let lives = pods.iter().map(|pod| pod.uid.clone()).zip(lives);
            Case {
                policy: ContainerGcPolicy::new(age, each, all),
                lives: lives.collect(),
                pods,
                ready,
                evict,
            }
        },
    )
}

proptest! {
    #[test]
    fn collection_is_careful_and_comes_to_rest(mut case in cases()) {
        let removals = case.removals();
        let mut ids = BTreeSet::new();
        for removal in &removals {
            prop_assert!(ids.insert(removal.id.clone()), "twice: {:?}", removal.id);
            let pod = case.pods.iter().find(|pod| pod.uid == removal.uid).unwrap();
            let life = case.lives[&pod.uid];
            let goes_whole = case.ready
                && (life == PodLife::Gone || (life == PodLife::Over && case.evict));
            if let Some(sandbox) = pod.sandboxes.iter().find(|s| s.id == removal.id) {
                prop_assert_ne!(sandbox.state, ContainerState::Running);
                prop_assert!(goes_whole || pod.sandboxes[0].id != removal.id);
                continue;
            }
            let seen = pod.containers.iter().find(|c| c.id == removal.id).unwrap();
            // docker 56
            prop_assert_ne!(seen.state, ContainerState::Running);
            prop_assert!(case.policy.is_old_enough(seen.created_at, now()));
            let newest = pod.find_container_status_by_name(&seen.name).unwrap();
            prop_assert!(goes_whole || newest.id != seen.id, "the newest of a pod that stays");
        }
        // The rest stays, and is no more than may stay.
        for pod in &mut case.pods {
            pod.containers.retain(|c| !ids.contains(&c.id));
            pod.sandboxes.retain(|s| !ids.contains(&s.id));
        }
        prop_assert_eq!(case.gone(), Vec::<String>::new());
    }

    #[test]
    fn the_planner_prunes_what_the_collector_would(case in cases()) {
        let mut case = case;
        case.policy.max_containers = None;
        for life in case.lives.values_mut() {
            *life = PodLife::Known;
        }
        let collected: BTreeSet<ContainerId> = case
            .removals()
            .into_iter()
            .filter(|r| *r.name != *SANDBOX_NAME && !r.stop_first)
            .map(|r| r.id)
            .collect();
        let mut pruned = BTreeSet::new();
        for pod in &case.pods {
            for name in ["a", "b", "c"] {
                let of_name = |c: &&ContainerStatus| &*c.name == name;
                let instances: Vec<_> = pod.containers.iter().filter(of_name).collect();
                pruned.extend(to_prune(&instances, case.policy, now()).map(|c| c.id.clone()));
            }
        }
        // docker 56
        prop_assert_eq!(pruned, collected);
    }
}
