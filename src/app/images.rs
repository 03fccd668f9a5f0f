//! The images in our Node's status, and those that workloads name.

use std::sync::Arc;
use std::time::Duration;

use crate::source::SourceReader;
use crate::store::cell::Writer;
use mirrorlet_core::node::ImageSeen;
use mirrorlet_core::workload::images::NamedImages;
use mirrorlet_docker::ImagePuller;
use mirrorlet_docker::image::WorkloadImages;

/// Shortest time between two lists: a spree of pulls costs no more than the status it goes into.
const LIST_GAP: Duration = Duration::from_secs(10);

/// Says which images the workloads of these sources name.
pub(super) fn of_workloads(sources: Vec<SourceReader>) -> WorkloadImages {
    Box::new(move || {
        let states = sources.iter().map(|source| source.state.get());
        NamedImages::of(&states.collect::<Vec<_>>())
    })
}

/// Lists all images at the start, and whenever they may have changed, until cancelled. While the
/// Engine doesn't answer, the last list stands; its return is an event.
pub(super) async fn keep(images: Arc<ImagePuller>, mut known: Writer<Vec<ImageSeen>>) {
    let mut changes = images.changed();
    loop {
        changes.mark_unchanged();
        if let Ok(listed) = images.list().await {
            known.publish(listed);
        }
        tokio::time::sleep(LIST_GAP).await;
        if changes.changed().await.is_err() {
            return;
        }
    }
}
