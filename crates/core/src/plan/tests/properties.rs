//! Invariants of every plan: plans are applied to a small model of a runtime in which things fail,
//! end and get lost.

use proptest::prelude::*;

use super::*;
use crate::ending::is_over;
use crate::probe::{ProbeKind, ProbeResult};
use crate::restart::should_restart;
use crate::status::{StatusInput, compute_pod_status};
use ContainerState::{Created, Exited, Running, Unknown};

/// How a step can go wrong.
#[derive(Debug, Clone, Copy)]
enum Fault {
    /// Nothing happens.
    Refused,
    /// It happens, and is reported as failed: an answer that got lost.
    Lied,
    /// A container is created and not started.
    Half,
    /// A container is created, and its command can't be run.
    CannotRun,
}

/// An operation on a pod.
#[derive(Debug, Clone, Copy)]
enum Op {
    /// Plan and carry out, with a fault in one of the steps.
    Round(Option<(usize, Fault)>),
    /// The n-th running container exits.
    Exit(usize, i32),
    /// The Engine can't tell what the n-th running container does.
    Confuse(usize),
    /// Somebody removes the n-th dead container.
    Forget(usize),
    /// A probe of the n-th running container comes to a result.
    Probe(usize, ProbeKind, ProbeResult),
    /// All sandboxes die.
    LoseSandbox,
    /// Somebody removes all sandboxes.
    RemoveSandboxes,
    /// The image of the n-th regular container is edited.
    Edit(usize),
    /// The agent restarts: back-off is forgotten.
    Restart,
    /// Time passes.
    Sleep(i64),
}

fn fault() -> impl Strategy<Value = Fault> {
    prop_oneof![
        Just(Fault::Refused),
        Just(Fault::Lied),
        Just(Fault::Half),
        Just(Fault::CannotRun),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        8 => Just(Op::Round(None)),
        4 => (0..6usize, fault()).prop_map(|f| Op::Round(Some(f))),
        5 => (0..4usize, prop_oneof![Just(0), Just(1)]).prop_map(|(n, code)| Op::Exit(n, code)),
        1 => (0..4usize).prop_map(Op::Confuse),
        1 => (0..4usize).prop_map(Op::Forget),
        3 => (0..4usize, probe_kind(), probe_result())
            .prop_map(|(n, kind, result)| Op::Probe(n, kind, result)),
        2 => Just(Op::LoseSandbox),
        1 => Just(Op::RemoveSandboxes),
        1 => (0..3usize).prop_map(Op::Edit),
        1 => Just(Op::Restart),
        3 => (1..700i64).prop_map(Op::Sleep),
    ]
}

fn probe_kind() -> impl Strategy<Value = ProbeKind> {
    prop::sample::select(ProbeKind::ALL.as_slice())
}

fn probe_result() -> impl Strategy<Value = ProbeResult> {
    use ProbeResult::{Failure, Success, Unknown};
    prop::sample::select([Failure, Success, Unknown].as_slice())
}

fn any_pod() -> impl Strategy<Value = Pod> {
    let policy = prop_oneof![Just("Always"), Just("OnFailure"), Just("Never")];
    let inits = prop::collection::vec(any::<bool>(), 0..4);
    let own = prop::collection::vec(own_policy(), 3);
    let of_inits = prop::collection::vec(prop::bool::weighted(0.2), 4);
    let probed = any::<bool>();
    let all = (policy, inits, 1..4usize, own, of_inits, probed);
    all.prop_map(|(policy, inits, apps, own, of_inits, probed)| {
        let inits = inits
            .into_iter()
            .enumerate()
            .map(|(index, is_sidecar)| {
                let name = format!("init{index}");
                if is_sidecar {
                    sidecar(&name)
                } else {
                    container(&name)
                }
            })
            .collect();
        let mut pod = pod(policy, inits, &["app0", "app1", "app2"][..apps]);
        for (container, (policy, rule)) in spec_of(&mut pod).containers.iter_mut().zip(own) {
            container.restart_policy = policy.map(str::to_owned);
            container.restart_policy_rules = rule.map(|rule| vec![rule]);
        }
        let spec = spec_of(&mut pod);
        for (container, restarts_all) in spec.init_containers.iter_mut().flatten().zip(of_inits) {
            if restarts_all {
                // One that restarts all when it ends well would never let them run.
                container.restart_policy.get_or_insert("OnFailure".into());
                let action = crate::restart::ACTION_RESTART_ALL;
                container.restart_policy_rules = Some(vec![rule(action, "NotIn", 0)]);
            }
        }
        let sidecars = spec.init_containers.iter_mut().flatten();
        let sidecars = sidecars.filter(|c| spec::init_role(c) == Role::Sidecar);
        for container in sidecars.chain(&mut spec.containers).filter(|_| probed) {
            container.liveness_probe = Some(core::Probe::default());
            container.readiness_probe = Some(core::Probe::default());
            container.startup_probe = Some(core::Probe::default());
        }
        pod
    })
}

/// A regular container's own restart policy, and a rule before it; mostly neither.
fn own_policy() -> impl Strategy<Value = (Option<&'static str>, Option<core::ContainerRestartRule>)>
{
    let policy = prop_oneof![
        3 => Just(None),
        1 => prop_oneof![Just("Always"), Just("OnFailure"), Just("Never")].prop_map(Some),
    ];
    let action = prop_oneof![Just("Restart"), Just("RestartAllContainers")];
    let operator = prop_oneof![Just("In"), Just("NotIn")];
    let rule =
        (action, operator, 0..2).prop_map(|(action, operator, code)| rule(action, operator, code));
    (policy, prop::option::weighted(0.3, rule))
}

/// A runtime with one pod.
#[derive(Debug)]
struct World {
    pod: Pod,
    status: PodStatus,
    backoff: Backoff,
    /// Results of its probes.
    probes: ProbeResults,
    /// How many dead instances are kept.
    gc: ContainerGcPolicy,
    now: i64,
    ids: u32,
    /// Starts by container and sandbox.
    started: BTreeMap<(String, u32), usize>,
}

impl World {
    fn new(pod: Pod) -> Self {
        Self {
            pod,
            status: PodStatus::empty("12345678".into()),
            backoff: Backoff::default(),
            probes: ProbeResults::default(),
            gc: ContainerGcPolicy::default(),
            now: 0,
            ids: 0,
            started: BTreeMap::new(),
        }
    }

    fn plan(&self) -> Plan {
        let input = PlanInput {
            pod: &self.pod,
            status: &self.status,
            backoff: &self.backoff,
            probes: &self.probes,
            gc: self.gc,
            now: at(self.now),
        };
        let plan = compute_pod_actions(&input);
        assert_eq!(plan, compute_pod_actions(&input), "equal input, equal plan");
        plan
    }

    /// One round: plan and carry out. Whether there was anything to do.
    fn round(&mut self, fault: Option<(usize, Fault)>) -> Plan {
        self.now += 1;
        let plan = self.plan();
        plan.record_backoff(&self.pod, &self.status, &mut self.backoff, at(self.now));
        for (index, step) in plan.steps.iter().enumerate() {
            let fault = fault.filter(|(at, _)| *at == index).map(|(_, f)| f);
            let independent = matches!(
                step,
                Step::StartContainer {
                    role: Role::App | Role::Sidecar,
                    ..
                }
            );
            let failed = self.carry_out(step, fault).is_err() || fault.is_some();
            if failed && !independent {
                break;
            }
        }
        plan
    }

    /// The status that the API shows, of an agent that has just started.
    fn api_status(&self) -> core::PodStatus {
        compute_pod_status(&StatusInput {
            pod: &self.pod,
            observed: &self.status,
            previous: None,
            waiting: &BTreeMap::new(),
            probes: &self.probes,
            host_ips: &[],
            terminating: false,
            is_static: true,
            now: at(self.now),
        })
    }

    fn carry_out(&mut self, step: &Step, fault: Option<Fault>) -> Result<(), String> {
        if matches!(fault, Some(Fault::Refused)) {
            return Err("refused".into());
        }
        let now = at(self.now);
        match step {
            Step::KillPod { .. } => {
                for seen in &mut self.status.containers {
                    end(seen, 143, now);
                }
                for seen in &mut self.status.sandboxes {
                    seen.state = Exited;
                    seen.ips.clear();
                }
            }
            Step::KillContainer { id, .. } => {
                let seen = self.status.containers.iter_mut().find(|c| c.id == *id);
                end(seen.expect("what is killed is there"), 143, now);
            }
            Step::CreateSandbox { attempt, .. } => {
                // One that was only created is taken over under its name.
                let others = &mut self.status.sandboxes;
                others.retain(|s| s.attempt != *attempt || s.state != Created);
                assert!(
                    others
                        .iter()
                        .all(|s| s.state == Exited || s.state == Created)
                );
                assert!(others.iter().all(|s| s.attempt != *attempt), "name in use");
                let mut new = sandbox(*attempt, Running);
                if matches!(fault, Some(Fault::Half | Fault::CannotRun)) {
                    new = sandbox(*attempt, Created);
                }
                new.created_at = now;
                self.status.ips.clone_from(&new.ips);
                self.status.sandboxes.insert(0, new);
            }
            Step::StartContainer {
                name,
                restart_count,
                pod_restarts,
                ..
            } => return self.start(name, (*restart_count, *pod_restarts), fault),
            Step::RemoveContainer { id, .. } => {
                let runs = |c: &&ContainerStatus| c.id == *id && c.may_be_running();
                assert!(self.status.containers.iter().find(runs).is_none());
                let runs = |s: &&SandboxStatus| s.id == *id && s.state == Running;
                assert!(self.status.sandboxes.iter().find(runs).is_none());
                self.status.containers.retain(|c| c.id != *id);
                self.status.sandboxes.retain(|s| s.id != *id);
            }
        }
        Ok(())
    }

    /// `counts`: how often the container was restarted before, and all of its pod.
    fn start(
        &mut self,
        name: &str,
        counts: (u32, u32),
        fault: Option<Fault>,
    ) -> Result<(), String> {
        let (count, pod_restarts) = counts;
        let sandbox = self.status.sandboxes.first().ok_or("no sandbox")?;
        if sandbox.state != Running {
            return Err("the sandbox does not run".into());
        }
        let attempt = sandbox.attempt;
        let (role, _) = spec::find_container(&self.pod, name).expect("it is in the spec");
        let namesakes: Vec<&ContainerStatus> = self
            .status
            .containers
            .iter()
            .filter(|c| &*c.name == name)
            .collect();
        // Only a kill that failed can leave one running; the round has ended then.
        assert!(
            namesakes.iter().all(|c| !c.may_be_running()),
            "{name} was started while a namesake may run"
        );
        let same = namesakes.iter().find(|c| c.restart_count == count);
        assert!(
            same.is_none_or(|c| c.state == Created),
            "the name of {name} #{count} is in use"
        );
        let mut new = instance(&self.pod, name, count, Running);
        self.ids += 1;
        new.id = ContainerId::docker(format!("{name}-{count}-{}", self.ids));
        new.created_at = at(self.now);
        new.started_at = Some(at(self.now));
        let namesakes = namesakes.iter();
        let older = namesakes.filter(|c| c.restart_count < count);
        assert!(
            older.map(|c| c.pod_restarts).max() <= Some(pod_restarts),
            "{name} #{count} counts fewer restarts of the pod than the instance before"
        );
        new.pod_restarts = pod_restarts;
        match fault {
            Some(Fault::Half) => {
                new.state = Created;
                new.started_at = None;
            }
            Some(Fault::CannotRun) => end(&mut new, 127, at(self.now)),
            Some(Fault::Lied | Fault::Refused) | None => {}
        }
        if new.state != Created && role != Role::Sidecar {
            let seen = self.started.entry((name.to_owned(), attempt)).or_default();
            *seen += 1;
        }
        self.status
            .containers
            .retain(|c| &*c.name != name || c.restart_count != count);
        self.status.containers.insert(0, new);
        Ok(())
    }

    fn happen(&mut self, op: Op) {
        let now = at(self.now);
        match op {
            Op::Round(fault) => {
                self.round(fault);
            }
            Op::Exit(n, code) => {
                if let Some(seen) = self.running(n) {
                    end(seen, code, now);
                }
            }
            Op::Confuse(n) => {
                if let Some(seen) = self.running(n) {
                    seen.state = Unknown;
                }
            }
            Op::Probe(n, kind, result) => {
                if let Some(id) = self.running(n).map(|seen| seen.id.clone()) {
                    self.probes.set(&id, kind, result);
                }
            }
            Op::Forget(n) => {
                let dead = self.status.containers.iter().filter(|c| c.state == Exited);
                if let Some(id) = dead.map(|c| c.id.clone()).nth(n) {
                    self.status.containers.retain(|c| c.id != id);
                }
            }
            Op::LoseSandbox => {
                for seen in &mut self.status.sandboxes {
                    seen.state = Exited;
                    seen.ips.clear();
                }
            }
            Op::RemoveSandboxes => self.status.sandboxes.clear(),
            Op::Edit(n) => {
                let apps = &mut spec_of(&mut self.pod).containers;
                let index = n % apps.len();
                let image = apps[index].image.get_or_insert_default();
                image.push('x');
            }
            Op::Restart => self.backoff = Backoff::default(),
            Op::Sleep(seconds) => self.now += seconds,
        }
    }

    fn running(&mut self, n: usize) -> Option<&mut ContainerStatus> {
        let running = self.status.containers.iter_mut();
        running.filter(|c| c.state == Running).nth(n)
    }

    /// Lets everything go well until there is nothing left to do: init containers end well, what
    /// runs starts up, nothing else happens. Returns how many rounds that took.
    fn settle(&mut self) -> usize {
        const FAR_TOO_MANY: usize = 100;
        for rounds in 0..FAR_TOO_MANY {
            let plan = self.round(None);
            if let Some(wait) = plan.look_again {
                self.now += i64::try_from(wait.as_secs()).unwrap() + 1;
            }
            let mut started_up = false;
            for seen in self.status.running_containers() {
                let undecided = !matches!(
                    self.probes.get(&seen.id, ProbeKind::Startup),
                    Some(ProbeResult::Success | ProbeResult::Failure)
                );
                if undecided {
                    self.probes
                        .set(&seen.id, ProbeKind::Startup, ProbeResult::Success);
                    started_up = true;
                }
            }
            let now = at(self.now);
            let init = self
                .status
                .containers
                .iter_mut()
                .find(|c| c.role == Role::Init && c.state == Running);
            if let Some(init) = init {
                end(init, 0, now);
            } else if plan.is_empty() && plan.look_again.is_none() && !started_up {
                return rounds;
            }
        }
        panic!("it never settles: {:#?}", self.plan());
    }
}

fn end(seen: &mut ContainerStatus, code: i32, now: Timestamp) {
    if seen.state == Exited || seen.state == Created {
        return;
    }
    seen.state = Exited;
    seen.exit_code = Some(code);
    seen.finished_at = Some(now);
    seen.reason = if code == 0 { "Completed" } else { "Error" }.into();
}

/// A pod that settled is over with nothing running, or everything of it runs or is done.
fn assert_settled(world: &World) {
    let plan = world.plan();
    if plan.finished {
        assert!(!world.status.anything_running(), "{:#?}", world.status);
        return;
    }
    assert_eq!(sandbox::sandbox_changed(&world.pod, &world.status), None);
    for (role, container) in spec::containers(&world.pod) {
        let newest = world.status.find_container_status_by_name(&container.name);
        let newest = newest.map(|c| (c.state, c.exit_code));
        let fine = match (role, newest) {
            // After initialisation, what became of them doesn't matter.
            (Role::Init, _) | (Role::Sidecar | Role::App, Some((Running, _))) => true,
            (Role::App, Some((Exited, code))) => {
                !should_restart(&world.pod, container, code.unwrap_or_default())
            }
            (Role::Sidecar | Role::App | Role::Ephemeral, _) => false,
        };
        assert!(fine, "{} is {newest:?}", container.name);
    }
}

#[test]
fn a_crash_loop_slows_down_and_forgets_after_ten_stable_minutes() {
    let mut world = World::new(pod("Always", Vec::new(), &["app0"]));
    world.round(None);
    let mut crash = |after: i64| {
        world.now += after;
        world.happen(Op::Exit(0, 0));
        let wait = world.plan().look_again.unwrap_or_default();
        world.now += i64::try_from(wait.as_secs()).unwrap();
        assert!(!world.round(None).is_empty());
        wait.as_secs()
    };
    let delays: Vec<u64> = (0..8).map(|_| crash(0)).collect();
    assert_eq!(delays, [0, 10, 20, 40, 80, 160, 300, 300]);
    assert_eq!(
        [crash(600), crash(601), crash(0), crash(0)],
        [300, 0, 10, 20]
    );
}

#[test]
fn a_sandbox_that_dies_slows_down_and_is_replaced_at_once_after_that_time() {
    let mut world = World::new(pod("Always", Vec::new(), &["app0"]));
    world.settle();
    let mut lose = |after: i64| {
        world.now += after;
        world.happen(Op::LoseSandbox);
        let mut waited = 0;
        // One round stops what runs on without it.
        for _ in 0..3 {
            let plan = world.round(None);
            if plan.steps.iter().any(creates_sandbox) {
                return waited;
            }
            let wait = plan.look_again.unwrap_or_default().as_secs();
            world.now += i64::try_from(wait).unwrap();
            waited += wait;
        }
        panic!("no sandbox: {:#?}", world.plan());
    };
    let delays: Vec<u64> = (0..8).map(|_| lose(0)).collect();
    // A round takes a second.
    // pods 57a
    assert_eq!(delays, [0, 9, 19, 39, 79, 159, 299, 299]);
    assert_eq!([lose(300), lose(0), lose(601), lose(0)], [0, 299, 0, 9]);
}

fn creates_sandbox(step: &Step) -> bool {
    matches!(step, Step::CreateSandbox { .. })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// A pod comes to rest within few rounds of any operations, and its invariants hold on the way.
    #[test]
    fn every_pod_settles(pod in any_pod(), ops in prop::collection::vec(op(), 0..40)) {
        let mut world = World::new(pod);
        for op in ops {
            world.happen(op);
        }
        let inits = spec::spec(&world.pod).init_containers.as_ref().map_or(0, Vec::len);
        let rounds = world.settle();
        prop_assert!(rounds <= 8 + 3 * inits, "{rounds} rounds");
        assert_settled(&world);
        // At rest, each container has at most one dead instance beside its newest.
        for (_, container) in spec::containers(&world.pod) {
            let named = world.status.containers.iter().filter(|c| *c.name == *container.name);
            prop_assert!(named.count() <= 2);
        }
        prop_assert!(world.status.sandboxes.len() <= 1);
    }

    /// A pod that is being deleted is never added to.
    #[test]
    fn an_unwanted_pod_only_shrinks(
        pod in any_pod(),
        ops in prop::collection::vec(op(), 0..30),
    ) {
        let mut world = World::new(pod);
        for op in ops {
            world.happen(op);
        }
        world.pod.metadata.deletion_timestamp = Some(meta::Time(at(world.now)));
        let adds = world.plan().steps.into_iter().find(|step| {
            matches!(step, Step::StartContainer { .. } | Step::CreateSandbox { .. })
        });
        prop_assert_eq!(adds, None);
        let before = world.status.containers.len();
        world.settle();
        prop_assert!(world.status.containers.len() <= before);
    }

    /// A container of a pod that is never restarted runs once in a sandbox, and a pod that is over has
    /// a phase that says so.
    #[test]
    fn never_means_never(pod in any_pod(), ops in prop::collection::vec(op(), 0..40)) {
        let mut world = World::new(pod);
        let spec = spec_of(&mut world.pod);
        spec.restart_policy = Some("Never".into());
        for container in &mut spec.containers {
            container.restart_policy = None;
        }
        for container in spec.init_containers.iter_mut().flatten() {
            container.restart_policy_rules = None;
            container.restart_policy.take_if(|policy| policy != "Always");
        }
        for op in ops {
            match op {
                // These make another container of it, or hide that it ran.
                Op::Edit(_) | Op::Confuse(_) | Op::Forget(_) | Op::RemoveSandboxes => {}
                Op::Round(_)
                | Op::Exit(..)
                | Op::Probe(..)
                | Op::LoseSandbox
                | Op::Restart
                | Op::Sleep(_) => {
                    world.happen(op);
                }
            }
        }
        world.settle();
        for ((name, attempt), count) in &world.started {
            prop_assert!(*count <= 1, "{name} ran {count} times in sandbox {attempt}");
        }
        if world.plan().finished {
            prop_assert!(is_over(Some(&world.api_status())), "{:#?}", world.status);
        }
    }

    /// Once a pod is over, it stays so.
    #[test]
    fn a_finished_pod_stays_finished(
        pod in any_pod(),
        ops in prop::collection::vec(op(), 0..40),
        later in 0..100_000i64,
    ) {
        let mut world = World::new(pod);
        for op in ops {
            world.happen(op);
        }
        world.settle();
        if world.plan().finished {
            world.now += later;
            world.happen(Op::Restart);
            let plan = world.plan();
            prop_assert!(plan.finished && plan.is_empty());
        }
    }

    /// An exit that asks for it restarts every container exactly once, in the same sandbox, wherever an
    /// agent is killed, and whatever becomes of the containers that are to be stopped.
    #[test]
    fn all_containers_are_restarted_exactly_once(
        pod in restarting_pod(),
        keep in 0..2usize,
        asks in 0..4usize,
        turns in prop::collection::vec(turn(), 0..16),
    ) {
        let mut world = World::new(pod);
        world.gc.max_per_pod_container = Some(keep);
        world.settle();
        ask(&mut world, asks);
        for turn in turns {
            turn.happen(&mut world);
        }
        world.settle();
        assert_settled(&world);
        for (_, container) in spec::containers(&world.pod) {
            let newest = world.status.find_container_status_by_name(&container.name).unwrap();
            // docker 5b
            prop_assert_eq!((newest.restart_count, newest.pod_restarts), (1, 1), "{}", container.name);
        }
        prop_assert_eq!(world.status.sandboxes[0].attempt, 0);
    }

    /// A restart that was asked for isn't forgotten when the sandbox is lost in the midst of it.
    #[test]
    fn a_lost_sandbox_takes_no_restart_along(
        pod in restarting_pod(),
        keep in 0..2usize,
        asks in 0..4usize,
        turns in prop::collection::vec(turn(), 0..12),
        more in prop::collection::vec(turn(), 0..12),
    ) {
        let mut world = World::new(pod);
        world.gc.max_per_pod_container = Some(keep);
        world.settle();
        ask(&mut world, asks);
        for turn in turns {
            turn.happen(&mut world);
        }
        // What has no policy that restarts it ends with its sandbox.
        let is_new = |c: &ContainerStatus| c.role == Role::App && c.pod_restarts > 0;
        if world.status.containers.iter().any(is_new) {
            return Ok(());
        }
        world.happen(Op::LoseSandbox);
        for turn in more {
            turn.happen(&mut world);
        }
        world.settle();
        prop_assert!(!world.plan().finished);
        for container in &spec::spec(&world.pod).containers {
            let newest = world.status.find_container_status_by_name(&container.name).unwrap();
            prop_assert_eq!(newest.state, Running, "{}", container.name);
            // docker 5b
            prop_assert!(newest.pod_restarts >= 1, "{}", container.name);
        }
    }
}

/// A pod whose containers restart all when they exit with 1, and are not restarted otherwise.
fn restarting_pod() -> impl Strategy<Value = Pod> {
    let inits = prop::collection::vec(any::<bool>(), 0..4);
    (inits, 1..4usize).prop_map(|(inits, apps)| {
        let init = |(index, is_sidecar): (usize, bool)| {
            let name = format!("init{index}");
            let plain = container(&name);
            if is_sidecar { sidecar(&name) } else { plain }
        };
        let inits = inits.into_iter().enumerate().map(init).collect();
        let mut pod = pod("OnFailure", inits, &["app0", "app1", "app2"][..apps]);
        let spec = spec_of(&mut pod);
        for container in spec.init_containers.iter_mut().flatten() {
            if spec::init_role(container) == Role::Sidecar {
                let all = rule(crate::restart::ACTION_RESTART_ALL, "In", 1);
                container.restart_policy_rules = Some(vec![all]);
            }
        }
        for container in &mut spec.containers {
            let all = rule(crate::restart::ACTION_RESTART_ALL, "In", 1);
            container.restart_policy = Some("Never".into());
            container.restart_policy_rules = Some(vec![all]);
        }
        pod
    })
}

/// One of the running containers exits, and asks for a restart of all.
fn ask(world: &mut World, n: usize) {
    let running = world.status.running_containers().count();
    world.happen(Op::Exit(n % running, 1));
}

/// A turn in the midst of a restart of all containers.
#[derive(Debug, Clone, Copy)]
enum Turn {
    /// A round that an agent doesn't survive, or whose answers get lost.
    Killed(usize, Fault),
    Round,
    /// The n-th running container that is to be stopped exits by itself.
    Exit(usize, i32),
    /// The n-th running regular init container ends well.
    Init,
    Sleep(i64),
}

fn turn() -> impl Strategy<Value = Turn> {
    let fault = prop_oneof![Just(Fault::Refused), Just(Fault::Lied), Just(Fault::Half)];
    prop_oneof![
        4 => (0..5usize, fault).prop_map(|(at, fault)| Turn::Killed(at, fault)),
        3 => Just(Turn::Round),
        2 => (0..4usize, 0..3).prop_map(|(n, code)| Turn::Exit(n, code)),
        3 => Just(Turn::Init),
        1 => (1..700i64).prop_map(Turn::Sleep),
    ]
}

impl Turn {
    fn happen(self, world: &mut World) {
        match self {
            Self::Killed(at, fault) => {
                world.round(Some((at, fault)));
                world.happen(Op::Restart);
            }
            Self::Round => {
                world.round(None);
            }
            Self::Exit(n, code) => {
                world.now += 1;
                let now = at(world.now);
                let all = world.status.containers.iter_mut();
                let mut old = all.filter(|c| c.state == Running && c.pod_restarts == 0);
                if let Some(seen) = old.nth(n) {
                    end(seen, code, now);
                }
            }
            Self::Init => {
                let now = at(world.now);
                let mut all = world.status.containers.iter_mut();
                if let Some(init) = all.find(|c| c.role == Role::Init && c.state == Running) {
                    end(init, 0, now);
                }
            }
            Self::Sleep(seconds) => world.now += seconds,
        }
    }
}
