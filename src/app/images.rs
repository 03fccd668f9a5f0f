//! The images in our Node's status.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::store::cell::Writer;
use mirrorlet_core::node::ImageSeen;
use mirrorlet_docker::ImagePuller;

/// Shortest time between two lists: a spree of pulls costs no more than the status it goes into.
const LIST_GAP: Duration = Duration::from_secs(10);

/// Lists all images at the start, and whenever they may have changed, until cancelled. While the
/// Engine doesn't answer, the last list stands; its return is an event.
pub(super) async fn keep(
    images: Arc<ImagePuller>,
    mut known: Writer<Vec<ImageSeen>>,
    cancel: CancellationToken,
) {
    let mut changes = images.changed();
    loop {
        changes.mark_unchanged();
        let listed = tokio::select! {
            () = cancel.cancelled() => return,
            listed = images.list() => listed,
        };
        if let Ok(listed) = listed {
            known.publish(listed);
        }
        let next = async {
            tokio::time::sleep(LIST_GAP).await;
            changes.changed().await
        };
        tokio::select! {
            () = cancel.cancelled() => return,
            told = next => if told.is_err() { return },
        }
    }
}
