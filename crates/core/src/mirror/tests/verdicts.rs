use super::*;

/// A change to a mirror.
type Change = fn(&mut Pod);

#[expect(
    clippy::needless_pass_by_value,
    reason = "tables read better with values"
)]
fn judged(
    standing: Option<Standing>,
    api: Vec<Pod>,
    node: Option<core::Node>,
    orphans_may_go: bool,
) -> Option<Verdict> {
    let standings = standing.map(|standing| (name("web"), standing));
    let api = api.into_iter().map(|pod| (PodUid::of(&pod), Arc::new(pod)));
    let api = api.collect();
    let mut verdicts = verdicts(&MirrorInput {
        node_name: &node_name(),
        node: node.as_ref(),
        standings: &standings.into_iter().collect(),
        pods: &table([], &api),
        api: &api,
        orphans_may_go,
    });
    let verdict = verdicts.remove(&name("web"));
    assert!(verdicts.is_empty(), "{verdicts:?}");
    verdict
}

fn changed(change: Change) -> Vec<Pod> {
    let mut mirror = mirror("web", "v1", "m", "nu");
    change(&mut mirror);
    vec![mirror]
}

fn deleting(pod: &mut Pod) {
    pod.metadata.deletion_timestamp = Some(meta::Time(crate::api::Timestamp::UNIX_EPOCH));
}

/// Deleted with no grace, and kept by a finalizer.
fn kept(pod: &mut Pod) {
    deleting(pod);
    pod.metadata.deletion_grace_period_seconds = Some(0);
    pod.metadata.finalizers = Some(vec!["example.com/f".into()]);
}

fn deleted_node() -> core::Node {
    let mut node = node("nu");
    node.metadata.deletion_timestamp = Some(meta::Time(crate::api::Timestamp::UNIX_EPOCH));
    node
}

#[expect(clippy::large_stack_arrays, reason = "a table of cases")]
#[test]
fn each_case_has_its_verdict() {
    let v1 = || static_pod("web", "v1");
    let holder = || Some(Standing::Holder(v1()));
    let next = || Some(Standing::Successor(static_pod("web", "v2")));
    let node_there = || Some(node("nu"));
    let create = || Some(Verdict::Create { pod: v1() });
    let synced = || Some(Verdict::Synced { uid: "m".into() });
    let missing = || Some(Verdict::Blocked(Obstacle::NodeMissing));
    let replace = |why| {
        Some(Verdict::Replace {
            uid: "m".into(),
            why,
            pod: v1(),
        })
    };
    let delete = |why| {
        Some(Verdict::Delete {
            uid: "m".into(),
            why,
        })
    };
    let none = Vec::new;
    let fits = || changed(|_| {});
    let going = || changed(deleting);
    let other_version = || vec![mirror("web", "v0", "m", "nu")];
    let other_node = || vec![mirror("web", "v1", "m", "old")];
    let elsewhere = || changed(|m| m.spec.as_mut().unwrap().node_name = Some("n2".into()));
    let foreign = || {
        changed(|m| {
            m.metadata
                .annotations
                .as_mut()
                .unwrap()
                .remove(keys::CONFIG_MIRROR);
        })
    };
    let taken = || Some(Verdict::Blocked(Obstacle::NameTaken { by: "m".into() }));
    let with_empty_uid = || Some(node(""));
    for (case, standing, api, node, expected) in [
        ("no mirror", holder(), none(), node_there(), create()),
        ("its mirror", holder(), fits(), node_there(), synced()),
        (
            "deleted gracefully",
            holder(),
            going(),
            node_there(),
            replace(DeleteReason::BeingDeleted),
        ),
        (
            "the old version's",
            holder(),
            other_version(),
            node_there(),
            replace(DeleteReason::OtherVersion),
        ),
        (
            "of a Node before this one",
            holder(),
            other_node(),
            node_there(),
            replace(DeleteReason::OtherNode),
        ),
        (
            "its owner taken off",
            holder(),
            changed(|m| m.metadata.owner_references = None),
            node_there(),
            synced(),
        ),
        (
            "bound to another node: not seen at all",
            holder(),
            elsewhere(),
            node_there(),
            create(),
        ),
        (
            "an ordinary pod",
            holder(),
            foreign(),
            node_there(),
            taken(),
        ),
        (
            "an ordinary pod and nobody of ours",
            None,
            foreign(),
            node_there(),
            None,
        ),
        ("no Node", holder(), none(), None, missing()),
        (
            "a Node without UID",
            holder(),
            none(),
            with_empty_uid(),
            missing(),
        ),
        (
            "a Node being deleted",
            holder(),
            none(),
            Some(deleted_node()),
            missing(),
        ),
        ("no Node, its mirror", holder(), fits(), None, synced()),
        (
            "no Node, old version's",
            holder(),
            other_version(),
            None,
            missing(),
        ),
        (
            "no Node, being deleted",
            holder(),
            going(),
            None,
            delete(DeleteReason::BeingDeleted),
        ),
        (
            "an edit whose predecessor still stops",
            next(),
            fits(),
            node_there(),
            Some(Verdict::Wait),
        ),
        (
            "a predecessor nobody knows, still stopping",
            Some(Standing::Unknown),
            fits(),
            node_there(),
            Some(Verdict::Wait),
        ),
        (
            "the same, its mirror deleted",
            Some(Standing::Unknown),
            going(),
            node_there(),
            delete(DeleteReason::BeingDeleted),
        ),
        (
            "the same, without a mirror",
            Some(Standing::Unknown),
            none(),
            node_there(),
            Some(Verdict::Wait),
        ),
        (
            "an orphan",
            None,
            fits(),
            node_there(),
            delete(DeleteReason::Orphaned),
        ),
        (
            "an orphan, being deleted",
            None,
            going(),
            node_there(),
            delete(DeleteReason::BeingDeleted),
        ),
        (
            "an orphan, being deleted with a grace, with a finalizer",
            None,
            changed(|m| {
                kept(m);
                m.metadata.deletion_grace_period_seconds = Some(30);
            }),
            node_there(),
            delete(DeleteReason::BeingDeleted),
        ),
        (
            "an orphan, deleted without grace",
            None,
            changed(|m| {
                kept(m);
                m.metadata.finalizers = Some(Vec::new());
            }),
            node_there(),
            delete(DeleteReason::BeingDeleted),
        ),
        (
            "an orphan that a finalizer keeps",
            None,
            changed(kept),
            node_there(),
            None,
        ),
        (
            "a mirror that a finalizer keeps",
            holder(),
            changed(kept),
            node_there(),
            replace(DeleteReason::BeingDeleted),
        ),
        (
            "an orphan without a Node",
            None,
            fits(),
            None,
            delete(DeleteReason::Orphaned),
        ),
        ("nobody's, elsewhere", None, elsewhere(), node_there(), None),
    ] {
        // pods 24, pods 27, pods 29
        assert_eq!(judged(standing, api, node, true), expected, "{case}");
    }
}

#[test]
fn orphans_stay_until_everything_is_known() {
    for api in [changed(|_| {}), changed(deleting)] {
        // pods 29
        assert_eq!(judged(None, api, Some(node("nu")), false), None);
    }
    // A known mirror doesn't wait for an unknown one.
    let standing = Some(Standing::Holder(static_pod("web", "v2")));
    let verdict = judged(standing, changed(|_| {}), Some(node("nu")), false);
    assert!(matches!(verdict, Some(Verdict::Replace { .. })));
}

#[test]
fn a_name_stands_for_its_holder() {
    let (v1, v2) = (static_pod("web", "v1"), static_pod("web", "v2"));
    let work = |pod: Option<&Arc<Pod>>, waits| AtWork {
        full_name: name("web"),
        pod: pod.cloned(),
        waits,
    };
    let mut of_api = Pod::clone(&v1);
    let annotations = of_api.metadata.annotations.as_mut().unwrap();
    annotations.insert(keys::CONFIG_SOURCE.into(), "api".into());
    let of_api = Arc::new(of_api);
    let holds = |pod: &Arc<Pod>| Some(Standing::Holder(Arc::clone(pod)));
    let next = |pod: &Arc<Pod>| Some(Standing::Successor(Arc::clone(pod)));
    for (case, wanted, at_work, expected) in [
        ("new", Some(&v1), vec![], next(&v1)),
        (
            "at work",
            Some(&v1),
            vec![work(Some(&v1), false)],
            holds(&v1),
        ),
        (
            "edited, the old one runs",
            Some(&v2),
            vec![work(Some(&v1), false), work(Some(&v2), true)],
            holds(&v1),
        ),
        (
            "edited, in the other order",
            Some(&v2),
            vec![work(Some(&v2), true), work(Some(&v1), false)],
            holds(&v1),
        ),
        (
            "edited, the old one is done",
            Some(&v2),
            vec![work(Some(&v2), true)],
            next(&v2),
        ),
        (
            "edited while the agent was away",
            Some(&v2),
            vec![work(None, false), work(Some(&v2), true)],
            Some(Standing::Unknown),
        ),
        ("removed", None, vec![work(Some(&v1), false)], holds(&v1)),
        (
            "removed while the agent was away",
            None,
            vec![work(None, false)],
            Some(Standing::Unknown),
        ),
        ("gone", None, vec![], None),
        (
            "a pod of the API server",
            Some(&of_api),
            vec![work(Some(&of_api), false)],
            None,
        ),
    ] {
        let standings = standings(&table(wanted, &BTreeMap::new()), at_work);
        // pods 31, pods 33
        assert_eq!(standings.get(&name("web")).cloned(), expected, "{case}");
    }
}
