//! Ended API pods without a worker: shown like those with one.

use std::sync::Arc;

use super::View;
use crate::source::apiserver::ApiSource;
use crate::store::board::{Phase, PodView};
use mirrorlet_core::api::{FullName, Pod, PodUid};
use mirrorlet_core::desired::{Origin, PodSource, SourcePod};
use mirrorlet_core::finished::FinishedPod;
use mirrorlet_core::merge::Merged;
use mirrorlet_core::observed::PodStatus;

/// The last view that the worker of a finished pod published.
fn view_of(finished: &FinishedPod) -> Option<PodView> {
    let pod = finished.pod()?;
    let uid = PodUid::of(&pod);
    Some(PodView {
        full_name: finished.name().clone(),
        phase: Phase::Finished,
        status: pod.status.clone().map(Arc::new),
        observed: Arc::new(PodStatus::empty(uid.clone())),
        error: "".into(),
        failed_probe: None,
        awaits: Arc::default(),
        pod: Some(Arc::new(pod)),
        uid,
    })
}

impl View {
    /// An ended pod without a worker.
    pub(super) fn finished_pod(&self, uid: &PodUid) -> Option<Pod> {
        self.merged.get().finished.get(uid)?.pod()
    }

    /// The one of that name.
    pub(super) fn finished_named(&self, name: &FullName) -> Option<Arc<Pod>> {
        let merged = self.merged.get();
        merged.finished.find(name)?.pod().map(Arc::new)
    }

    /// The view of a pod, from its worker or from its stored form.
    pub(super) fn pod_view(&self, uid: &PodUid) -> Option<PodView> {
        let view = self.board.get(uid);
        view.or_else(|| view_of(self.merged.get().finished.get(uid)?))
    }

    /// The ended pods without a worker, as their source delivered them.
    pub(super) fn finished_views(&self, merged: &Merged) -> Vec<(SourcePod, PodView)> {
        let finished = merged.finished.iter();
        let without_worker = finished.filter(|(uid, _)| self.board.get(uid).is_none());
        let location = ApiSource::name().location;
        let views = without_worker.filter_map(|(_, pod)| {
            let view = view_of(pod)?;
            let origin = Origin::whole(PodSource::Api, &*location);
            Some((SourcePod::new(Arc::clone(view.pod.as_ref()?), origin), view))
        });
        views.collect()
    }
}
