//! After an undo, an edit that fails leads back to the healthy revision that ran last.

use super::*;
use crate::api::keys;

/// A history as an agent has kept it that didn't note which revisions have run.
fn kept_before(history: &History) -> History {
    let mut history = history.clone();
    for revision in &mut history.revisions {
        revision.ran = 0;
    }
    let kept = serde_json::to_string(&history).unwrap();
    assert!(!kept.contains("\"ran\""), "{kept}");
    serde_json::from_str(&kept).unwrap()
}

/// A story whose revisions `a` and `b` were healthy, and whose `b` was undone: `a` runs.
fn undone() -> Story {
    let mut story = two_healthy();
    story.history.obey(UNDO).unwrap();
    story.preparation = Preparation::Done;
    story.decide(Some(&ready(61)));
    assert_eq!(story.runs(), "a");
    story
}

#[test]
fn an_undo_of_a_workloads_pod_names_templates() {
    let mut story = two_healthy();
    for revision in &mut story.history.revisions {
        let hash = format!("{}0123456789abcdef", revision.uid());
        let pod = Arc::make_mut(&mut revision.pod);
        let annotations = pod.metadata.annotations.get_or_insert_default();
        annotations.insert(keys::TEMPLATE.to_owned(), hash);
        if *pod.metadata.uid.as_ref().unwrap() == story.wanted.uid().to_string() {
            story.wanted.pod = Arc::clone(&revision.pod);
        }
    }
    story.history.obey(UNDO).unwrap();
    story.preparation = Preparation::Done;
    story.decide(Some(&ready(61)));
    let pod = story.decide(Some(&ready(61))).pod(&story.wanted);
    // rollouts 22
    assert_eq!(
        pod.problems[0].message,
        "a user ran `mirrorlet rollout undo` for pod web-box_default: template a012345678 runs instead of template b012345678 of the manifest"
    );
}

#[test]
fn an_edit_that_fails_after_an_undo_leads_back_to_what_ran() {
    type Step = fn(&mut Story);
    let redo = |story: &mut Story| {
        story.history.obey(UNDO).unwrap();
        story.decide(Some(&ready(61)));
        assert_eq!(story.runs(), "b");
    };
    for (what, step, runs) in [
        ("nothing", (|_| ()) as Step, "a"),
        (
            "a file of an older agent",
            |story| story.history = kept_before(&story.history),
            "a",
        ),
        ("an undo of the undo", redo, "b"),
        (
            "a manifest that is moved away and back",
            |story| story.history.end(at(story.now)),
            "a",
        ),
        (
            "a switch that was not noted",
            |story| {
                story.history.take_running(&"b".into());
                story.history.undone_to = None;
            },
            "b",
        ),
    ] {
        for start_first in [false, true] {
            let mut story = undone();
            step(&mut story);
            story.strategy = if start_first {
                "StartFirst"
            } else {
                "Recreate"
            };
            story.edit("c");
            story.preparation = Preparation::Done;
            let has_run = story.history.current.is_some();
            story.decide(Some(&ready(61)).filter(|_| has_run));
            let decision = if start_first && has_run {
                story.decide_with(Some(&ready(61)), Some(&crashing(3)))
            } else {
                story.decide(Some(&crashing(3)))
            };
            // rollouts 22a
            assert_eq!(decision.change, Some(Change::Restored), "{what}");
            assert_eq!(story.runs(), runs, "{what}");
            assert!(
                story
                    .history
                    .needed_images()
                    .contains(&format!("web:{runs}"))
            );
        }
    }
}
