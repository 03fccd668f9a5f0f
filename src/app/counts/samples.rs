//! The values of the per-pod series.

use std::collections::BTreeMap;

use super::state;
use crate::store::board::PodView;
use mirrorlet_core::api::{FullName, PodUid};
use mirrorlet_core::ending::is_api_pod;
use mirrorlet_core::merge::Merged;
use mirrorlet_core::small::{SmallCollect, SmallSort};
use mirrorlet_core::status::{container_statuses, is_ready};
use mirrorlet_host::telemetry::{PodSample, PodSamples, PodState};

/// The values of at most `max` pods: static pods by name, then API pods by name, last ended ones
/// without a worker. Of several pods with one name, the wanted one is used, and a static pod before an
/// API pod.
pub(in crate::app) fn pod_samples(
    mut views: Vec<PodView>,
    merged: &Merged,
    max: usize,
) -> PodSamples {
    let working = views.iter().map(|view| view.uid.clone()).collect_set();
    let preference = |view: &PodView| {
        let is_wanted = merged.pods.contains_key(&view.uid);
        let is_stopping = state(view) == PodState::Terminating;
        (!is_wanted, is_stopping, !is_static(view))
    };
    views.small_sort_by(|a, b| (&a.full_name, preference(a)).cmp(&(&b.full_name, preference(b))));
    views.dedup_by(|next, kept| next.full_name == kept.full_name);
    let names = views.iter().map(|view| &view.full_name).collect_set();
    let is_other = |uid: &PodUid, name: &FullName| !working.contains(uid) && !names.contains(name);
    let finished = merged.finished.iter();
    let finished: BTreeMap<&FullName, bool> = finished
        .filter(|(uid, pod)| is_other(uid, pod.name()))
        .map(|(_, pod)| (pod.name(), pod.has_succeeded()))
        .collect_map();
    let (of_manifests, others): (Vec<_>, Vec<_>) = views.iter().partition(|view| is_static(view));
    let number = views.len() + finished.len();
    let with_worker = of_manifests.into_iter().chain(others).map(sample);
    let without = finished
        .into_iter()
        .map(|(name, succeeded)| finished_sample(name, succeeded));
    let pods: Vec<PodSample> = with_worker.chain(without).take(max).collect();
    PodSamples {
        left_out: number - pods.len(),
        pods,
    }
}

/// Whether it is a static pod. Unknown for a pod that only the runtime knows, because it has no spec.
fn is_static(view: &PodView) -> bool {
    view.pod.as_deref().is_some_and(|pod| !is_api_pod(pod))
}

fn sample(view: &PodView) -> PodSample {
    let (state, status) = (state(view), view.status.as_deref());
    let containers = status.into_iter().flat_map(container_statuses);
    let restarts = containers.map(|container| {
        let restarts = u64::try_from(container.restart_count).unwrap_or_default();
        (container.name.clone(), restarts)
    });
    PodSample {
        name: view.full_name.clone(),
        state,
        // The status of a pod that is being stopped may be older than the stop.
        is_ready: state == PodState::Running && status.is_some_and(is_ready),
        started_at: status
            .and_then(|status| status.start_time.as_ref())
            .map(|time| time.0),
        restarts: restarts.collect(),
    }
}

/// The values of an ended pod without a worker. Its status is not decoded for them.
fn finished_sample(name: &FullName, has_succeeded: bool) -> PodSample {
    PodSample {
        name: name.clone(),
        state: if has_succeeded {
            PodState::Succeeded
        } else {
            PodState::Failed
        },
        is_ready: false,
        started_at: None,
        restarts: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::tests::{annotated, set_of, view_of};
    use super::*;
    use crate::store::board::Phase;
    use mirrorlet_core::api::{Pod, Timestamp, keys};
    use mirrorlet_core::finished::FinishedPod;

    fn pods(names: &[&str]) -> String {
        let pod = |name: &&str| {
            format!(
                "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec: {{containers: [{{name: c, image: i}}]}}\n---\n"
            )
        };
        names.iter().map(pod).collect()
    }

    fn running(ready: &str) -> serde_json::Value {
        serde_json::json!({
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": ready}],
        })
    }

    /// The names, and how many are left out.
    fn named(samples: &PodSamples) -> (Vec<&str>, usize) {
        let names = samples.pods.iter().map(|pod| &*pod.name.name);
        (names.collect(), samples.left_out)
    }

    #[test]
    fn a_pod_that_crash_loops_has_its_restarts_and_is_not_ready() {
        let set = set_of(&pods(&["a"]));
        let container = |name: &str, restarts: i32| {
            serde_json::json!({
                "name": name, "image": "i", "imageID": "", "ready": false,
                "restartCount": restarts, "state": {"waiting": {"reason": "CrashLoopBackOff"}},
            })
        };
        let mut status = running("False");
        status["startTime"] = "1970-01-01T00:01:00Z".into();
        status["initContainerStatuses"] = serde_json::json!([container("init", 1)]);
        status["containerStatuses"] = serde_json::json!([container("c", 7)]);
        status["ephemeralContainerStatuses"] = serde_json::json!([container("debug", 0)]);
        let view = view_of(&set, 0, status);
        let expected = PodSample {
            name: view.full_name.clone(),
            state: PodState::Running,
            is_ready: false,
            started_at: Some(Timestamp::from_second(60).unwrap()),
            restarts: vec![("init".to_owned(), 1), ("c".to_owned(), 7)],
        };
        let samples = pod_samples(vec![view], &Merged::default(), 1);
        // agent 15
        assert_eq!(samples.pods, [expected]);
    }

    #[test]
    fn only_a_pod_that_runs_is_ready() {
        let set = set_of(&pods(&["a"]));
        for (phase, ready, state, is_ready) in [
            (Phase::Syncing, "True", PodState::Running, true),
            (Phase::Syncing, "False", PodState::Running, false),
            (Phase::Terminating, "True", PodState::Terminating, false),
        ] {
            let view = PodView {
                phase,
                ..view_of(&set, 0, running(ready))
            };
            let samples = pod_samples(vec![view], &Merged::default(), 1);
            let pod = &samples.pods[0];
            assert_eq!((pod.state, pod.is_ready), (state, is_ready), "{phase:?}");
        }
        let new = PodView {
            status: None,
            ..view_of(&set, 0, running("True"))
        };
        let samples = pod_samples(vec![new], &Merged::default(), 1);
        let pod = &samples.pods[0];
        assert_eq!((pod.state, pod.is_ready), (PodState::Pending, false));
        assert_eq!((pod.started_at, pod.restarts.len()), (None, 0));
    }

    #[test]
    fn static_pods_come_first_and_what_is_left_out_is_counted() {
        let set = set_of(&pods(&["c", "b", "d", "a"]));
        let set = annotated(&set, 3, keys::CONFIG_SOURCE, "api");
        let set = annotated(&set, 1, keys::CONFIG_SOURCE, "api");
        let views: Vec<PodView> = (0..4)
            .map(|at| view_of(&set, at, running("True")))
            .collect();
        let mut merged = Merged::default();
        for (uid, phase) in [("over", "Failed"), ("gone", "Succeeded")] {
            let pod = serde_json::json!({
                "metadata": {"name": uid, "namespace": "default", "uid": uid},
                "status": {"phase": phase},
            });
            let pod: Pod = serde_json::from_value(pod).unwrap();
            let kept = FinishedPod::of(&pod).unwrap();
            merged.finished.insert(PodUid::of(&pod), kept);
        }
        let all = ["c-box", "d-box", "a-box", "b-box", "gone", "over"];
        for max in 1..8 {
            let samples = pod_samples(views.clone(), &merged, max);
            let shown = max.min(all.len());
            let expected = (all[..shown].to_vec(), all.len() - shown);
            // agent 15
            assert_eq!(named(&samples), expected, "{max}");
        }
        let samples = pod_samples(views, &merged, 6);
        let ends = [samples.pods[4].state, samples.pods[5].state];
        assert_eq!(ends, [PodState::Succeeded, PodState::Failed]);
    }

    #[test]
    fn of_pods_with_one_name_the_wanted_one_is_shown() {
        let set = set_of(&pods(&["a"]));
        let old = PodView {
            uid: "0".into(),
            phase: Phase::Terminating,
            ..view_of(&set, 0, running("True"))
        };
        let new = PodView {
            phase: Phase::WaitingToStart,
            status: None,
            ..view_of(&set, 0, running("False"))
        };
        let beside = PodView {
            uid: "1".into(),
            ..view_of(&set, 0, running("True"))
        };
        let mut merged = Merged::default();
        merged.pods.insert(new.uid.clone(), set.pods[0].clone());
        let shown = |views: &[&PodView], merged: &Merged| {
            let views = views.iter().map(|view| (*view).clone()).collect();
            let samples = pod_samples(views, merged, 9);
            assert_eq!((samples.pods.len(), samples.left_out), (1, 0));
            samples.pods[0].state
        };
        // agent 15
        assert_eq!(shown(&[&old, &beside, &new], &merged), PodState::Pending);
        // A version that is judged beside it is not shown, though it is Ready first.
        let version = set.pods[0].clone();
        merged.beside.insert(beside.uid.clone(), version);
        for views in [[&beside, &new], [&new, &beside]] {
            // agent 15
            assert_eq!(shown(&views, &merged), PodState::Pending);
        }
        // No source wants either.
        let none = Merged::default();
        assert_eq!(shown(&[&old, &beside], &none), PodState::Running);
        let api = Arc::clone(&annotated(&set, 0, keys::CONFIG_SOURCE, "api").pods[0].pod);
        let api = PodView {
            uid: "2".into(),
            pod: Some(api),
            status: None,
            ..beside.clone()
        };
        assert_eq!(shown(&[&api, &beside], &none), PodState::Running);
        assert_eq!(shown(&[&api, &old], &none), PodState::Pending);
    }
}
