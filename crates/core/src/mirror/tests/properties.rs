//! Invariants of mirrors: verdicts are carried out on a small model of the API server.

use proptest::prelude::*;

use super::*;

#[derive(Debug, Clone)]
enum Op {
    /// The manifest of a name is written in that version, or removed.
    Want(usize, Option<u8>),
    /// A worker of that version holds the name, or nobody does.
    Hold(usize, Option<u8>),
    /// A pod nobody knows holds the name.
    Strange(usize),
    /// Somebody deletes the mirror, gracefully or by force.
    Delete(usize, bool),
    /// Somebody creates an ordinary pod, if the name is free.
    Foreign(usize),
    /// Somebody deletes the ordinary pod.
    Free(usize),
    /// The Node goes, or comes with that UID.
    Node(Option<u8>),
    /// Whether everything is known.
    Known(bool),
    /// Our turn.
    Act,
}

const NAMES: [&str; 3] = ["a", "b", "c"];

fn op() -> impl Strategy<Value = Op> {
    let name = 0..NAMES.len();
    let version = proptest::option::weighted(0.8, 1..4u8);
    prop_oneof![
        1 => (name.clone(), version.clone()).prop_map(|(n, v)| Op::Want(n, v)),
        1 => (name.clone(), version.clone()).prop_map(|(n, v)| Op::Hold(n, v)),
        1 => name.clone().prop_map(Op::Strange),
        1 => (name.clone(), any::<bool>()).prop_map(|(n, force)| Op::Delete(n, force)),
        1 => name.clone().prop_map(Op::Foreign),
        1 => name.prop_map(Op::Free),
        1 => version.prop_map(Op::Node),
        1 => any::<bool>().prop_map(Op::Known),
        4 => Just(Op::Act),
    ]
}

#[derive(Default)]
struct World {
    wanted: BTreeMap<FullName, Arc<Pod>>,
    held: BTreeMap<FullName, Option<Arc<Pod>>>,
    api: BTreeMap<PodUid, Arc<Pod>>,
    node: Option<core::Node>,
    known: bool,
    next_uid: u32,
}

impl World {
    fn of_name(&self, name: &FullName) -> Option<Arc<Pod>> {
        let mut pods = self.api.values();
        pods.find(|pod| FullName::of(pod) == *name).cloned()
    }

    fn store(&mut self, mut pod: Pod) {
        self.next_uid += 1;
        let uid = format!("u{}", self.next_uid);
        pod.metadata.uid = Some(uid.clone());
        self.api.insert(uid.as_str().into(), Arc::new(pod));
    }

    fn table(&self) -> PodTable {
        table(self.wanted.values(), &self.api)
    }

    fn standings(&self) -> BTreeMap<FullName, Standing> {
        let at_work = self.held.iter().map(|(full_name, pod)| AtWork {
            full_name: full_name.clone(),
            pod: pod.clone(),
            waits: false,
        });
        standings(&self.table(), at_work)
    }

    fn verdicts(&self) -> BTreeMap<FullName, Verdict> {
        verdicts(&MirrorInput {
            node_name: &node_name(),
            node: self.node.as_ref(),
            standings: &self.standings(),
            pods: &self.table(),
            api: &self.api,
            orphans_may_go: self.known,
        })
    }

    fn act(&mut self) {
        for (name, verdict) in self.verdicts() {
            let uid = match &verdict {
                Verdict::Replace { uid, .. } | Verdict::Delete { uid, .. } => Some(uid.as_str()),
                Verdict::Create { .. }
                | Verdict::Synced { .. }
                | Verdict::Wait
                | Verdict::Blocked(_) => None,
            };
            if let Some(uid) = uid {
                let gone = self.api.remove(&PodUid::from(uid)).unwrap();
                assert!(is_ours(&gone, &node_name()), "only our mirrors are deleted");
                assert_eq!(FullName::of(&gone), name);
            }
            if let Some(pod) = verdict.pod() {
                assert!(self.of_name(&name).is_none(), "the name is free");
                let node = self.node.as_ref().unwrap().metadata.uid.clone().unwrap();
                self.store(mirror_copy(pod, &reference(&node)));
            }
        }
    }

    #[expect(
        clippy::needless_pass_by_value,
        reason = "tables read better with values"
    )]
    fn apply(&mut self, op: Op) {
        let pod = |n: usize, v: u8| static_pod(NAMES[n], &format!("{}{v}", NAMES[n]));
        let full = |n: usize| name(NAMES[n]);
        match op {
            Op::Want(n, None) => drop(self.wanted.remove(&full(n))),
            Op::Want(n, Some(v)) => drop(self.wanted.insert(full(n), pod(n, v))),
            Op::Hold(n, None) => drop(self.held.remove(&full(n))),
            Op::Hold(n, Some(v)) => drop(self.held.insert(full(n), Some(pod(n, v)))),
            Op::Strange(n) => drop(self.held.insert(full(n), None)),
            Op::Delete(n, force) => {
                let Some(mut there) = self.of_name(&full(n)) else {
                    return;
                };
                let uid = PodUid::of(&there);
                if force {
                    self.api.remove(&uid);
                } else {
                    let now = meta::Time(crate::api::Timestamp::UNIX_EPOCH);
                    Arc::make_mut(&mut there).metadata.deletion_timestamp = Some(now);
                    self.api.insert(uid, there);
                }
            }
            Op::Foreign(n) => {
                if self.of_name(&full(n)).is_none() {
                    let mut foreign = Pod::clone(&pod(n, 9));
                    foreign.metadata.annotations = None;
                    self.store(foreign);
                }
            }
            Op::Free(n) => {
                let name = full(n);
                self.api
                    .retain(|_, p| is_mirror_pod(p) || FullName::of(p) != name);
            }
            Op::Node(uid) => self.node = uid.map(|uid| node(&format!("node{uid}"))),
            Op::Known(known) => self.known = known,
            Op::Act => self.act(),
        }
    }
}

proptest! {
    #[test]
    fn it_converges_and_touches_nobody_else(ops in prop::collection::vec(op(), 1..60)) {
        let mut world = World::default();
        for op in ops {
            let foreign = |world: &World| -> Vec<PodUid> {
                let foreign = world.api.iter().filter(|(_, pod)| !is_mirror_pod(pod));
                foreign.map(|(uid, _)| uid.clone()).collect()
            };
            let before = foreign(&world);
            let acts = matches!(op, Op::Act);
            world.apply(op);
            if acts {
                prop_assert_eq!(before, foreign(&world));
            }
        }
        world.act();
        world.act();
        let verdicts = world.verdicts();
        // pods 27
        prop_assert!(verdicts.values().all(|verdict| !verdict.acts()), "{:?}", verdicts);
        let standings = world.standings();
        for (name, standing) in &standings {
            let there = world.of_name(name);
            if let (Standing::Holder(pod), Some(node)) = (standing, &world.node) {
                let there = there.expect("the name is taken by somebody");
                if is_mirror_pod(&there) {
                    prop_assert!(is_mirror_pod_of(&there, pod));
                    prop_assert!(!is_others(&there, node));
                }
            }
        }
        if world.known {
            for pod in world.api.values().filter(|pod| is_mirror_pod(pod)) {
                prop_assert!(standings.contains_key(&FullName::of(pod)));
            }
        }
    }
}
