//! The images in our Node's status, and those of workloads.

use std::sync::Arc;
use std::time::Duration;

use crate::source::SourceReader;
use crate::store::cell::Writer;
use mirrorlet_core::backoff::ExponentialBackoff;
use mirrorlet_core::node::ImageSeen;
use mirrorlet_core::workload::images::NamedImages;
use mirrorlet_docker::ImagePuller;
use mirrorlet_docker::image::WorkloadImages;

/// Shortest time between two lists: a spree of pulls costs no more than the status it goes into.
const LIST_GAP: Duration = Duration::from_secs(10);
/// Pauses after a failed list, unless something changes before: nothing waits for it, and the return of
/// an Engine is reported.
const LIST_AGAIN: ExponentialBackoff = ExponentialBackoff::new(LIST_GAP, Duration::from_mins(5));

/// Returns the images that the workloads of these sources refer to.
pub(super) fn of_workloads(sources: Vec<SourceReader>) -> WorkloadImages {
    Box::new(move || {
        let states = sources.iter().map(|source| source.state.get());
        NamedImages::of(&states.collect::<Vec<_>>())
    })
}

/// Lists all images at the start, and whenever they may have changed, until cancelled. While the Engine
/// doesn't answer, the last list is kept; its return is an event. A list that fails otherwise is
/// retried without one.
pub(super) async fn keep(images: Arc<ImagePuller>, mut known: Writer<Vec<ImageSeen>>) {
    let mut changes = images.changed();
    let mut again = LIST_AGAIN;
    loop {
        changes.mark_unchanged();
        let pause = match images.list().await {
            Ok(listed) => {
                known.publish(listed);
                again.reset();
                None
            }
            Err(_) => Some(again.pause()),
        };
        tokio::time::sleep(LIST_GAP).await;
        let change = changes.changed();
        let ended = match pause {
            None => change.await.is_err(),
            Some(pause) => {
                let left = pause.saturating_sub(LIST_GAP);
                let result = tokio::time::timeout(left, change).await;
                result.is_ok_and(|result| result.is_err())
            }
        };
        if ended {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::cell::cell;
    use mirrorlet_docker::engine::EngineError;
    use mirrorlet_docker::{Operation, PullerOptions};
    use mirrorlet_testing::FakeEngine;
    use mirrorlet_testing::fake_engine::{FakeImage, FaultPoint};

    #[tokio::test(start_paused = true)]
    async fn a_list_that_fails_is_tried_again_without_an_event() {
        let engine = Arc::new(FakeEngine::new());
        engine.add_image("app:1", FakeImage::default());
        for _ in 0..3 {
            let busy = EngineError::Api {
                status: 500,
                message: "not now".to_owned(),
            };
            engine.fail(Operation::ListImages, None, FaultPoint::Before, busy);
        }
        let images = Arc::new(ImagePuller::new(engine.clone(), PullerOptions::default()));
        let (writer, mut reader) = cell(Vec::new());
        let listed = async {
            let listed = reader.wait_for(|images| !images.is_empty());
            let listed = tokio::time::timeout(Duration::from_mins(2), listed).await;
            listed.unwrap().unwrap()
        };
        let listed = tokio::select! {
            () = keep(images, writer) => panic!("it ended"),
            listed = listed => listed,
        };
        // node 6g
        assert_eq!(listed[0].names, ["app:1"]);
        assert_eq!(engine.count(Operation::ListImages), 4);
    }
}
