//! The images in our Node's status.

use std::sync::Arc;
use std::time::Duration;

use crate::store::cell::Writer;
use mirrorlet_core::node::ImageSeen;
use mirrorlet_docker::ImagePuller;

/// Shortest time between two lists: a spree of pulls costs no more than the status it goes into.
const LIST_GAP: Duration = Duration::from_secs(10);

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
