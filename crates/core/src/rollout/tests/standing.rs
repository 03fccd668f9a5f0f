//! Users' orders for a pod in its present state: waiting for its Node, and a container for debugging.

use super::*;
use crate::api::core::EphemeralContainer;

#[test]
fn a_pod_waits_until_its_node_is_uncordoned() {
    let orders = |decision: &Decision, story: &Story| {
        let pod = decision.pod(&story.wanted).pod;
        spec::orders(&pod).map(|order| order.map(str::to_owned))
    };
    let cordoned = || Some("cordoned".to_owned());
    // A new one, which nothing was started of.
    let mut story = Story::new("a");
    let mut decision = story.decide(None);
    decision.history.hold_back();
    assert_eq!(orders(&decision, &story), [cordoned(), None]);
    story.history = decision.history;
    // It waits on through edits and the agent's restarts; nobody judges it.
    story.edit("b");
    story.preparation = Preparation::Done;
    story.now = 10_000;
    let decision = story.decide(None);
    assert_eq!(orders(&decision, &story), [cordoned(), None]);
    let kept = serde_json::to_string(&story.history).unwrap();
    assert_eq!(
        serde_json::from_str::<History>(&kept).unwrap(),
        story.history
    );
    story.history.uncordon(at(story.now));
    let decision = story.decide(None);
    // embedded 30
    assert_eq!(orders(&decision, &story), [None, None]);

    // One that ran, whose containers are replaced then.
    let mut story = two_healthy();
    let instances = BTreeSet::from([ContainerId::docker("1")]);
    let evict = Command::Evict { instances };
    story.history.obey(evict.clone()).unwrap();
    let ids = Some("docker://1".to_owned());
    let decision = story.decide(Some(&ready(61)));
    assert_eq!(orders(&decision, &story), [cordoned(), ids.clone()]);
    // A second eviction finds it so.
    story.history.obey(evict).unwrap();
    story.history.uncordon(at(70));
    let decision = story.decide(Some(&ready(61)));
    assert_eq!(orders(&decision, &story), [None, ids]);
    // A pod that a user stopped is unaffected by the Node's cordon.
    story.history.obey(Command::Stop).unwrap();
    story.history.uncordon(at(80));
    assert!(story.history.stopped);
}

#[test]
fn a_container_is_added_to_the_version_that_runs() {
    let added = |decision: &Decision, story: &Story| {
        let pod = decision.pod(&story.wanted).pod;
        let names = spec::ephemeral_containers(&pod).map(|container| container.name);
        names.collect::<Vec<_>>()
    };
    let debug = |name: &str| {
        Command::Debug(Box::new(EphemeralContainer {
            name: name.to_owned(),
            ..EphemeralContainer::default()
        }))
    };
    let mut story = two_healthy();
    for name in ["look", "again"] {
        story.history.obey(debug(name)).unwrap();
    }
    let decision = story.decide(Some(&ready(61)));
    // embedded 31
    assert_eq!(added(&decision, &story), ["look", "again"]);
    let name = "look".to_owned();
    let refused = story.history.obey(debug("look"));
    assert_eq!(refused, Err(Refused::ContainerExists { name }));
    for number in 2..32 {
        story.history.obey(debug(&number.to_string())).unwrap();
    }
    let refused = story.history.obey(debug("more"));
    assert_eq!(refused, Err(Refused::TooManyAdded));
    // The next version has none, and its own are its own.
    story.edit("c");
    story.preparation = Preparation::Done;
    let decision = story.decide(Some(&ready(61)));
    assert_eq!(added(&decision, &story), [""; 0]);
    story.history.obey(debug("look")).unwrap();
    let decision = story.decide(Some(&ready(61)));
    assert_eq!(added(&decision, &story), ["look"]);
    story.history.end(at(90));
    assert_eq!(story.history.obey(debug("x")), Err(Refused::NotStarted));
}
