//! Applies the Engine's events to the index, and passes changes on to the observer.

use std::sync::Arc;

use bollard::models::EventMessage;
use futures::stream::BoxStream;
use futures::{Stream, StreamExt as _, future, stream};

use super::engine::{OtherEvent, Result};
use super::image::ImagePuller;
use super::index::Index;
use super::translate::parse_ours;
use mirrorlet_core::api::Timestamp;
use mirrorlet_core::observed::UserAction;
use mirrorlet_runtime::{PodEvent, PodEventKind};

/// The signal that ends a stop, in the form of events, if the container has not ended before.
const SIGKILL: &str = "9";

/// Applies an event to the index, and returns the pod that it concerns. Events of containers that are
/// not ours are ignored, whatever their labels say.
pub(super) fn apply(index: &Index, owner: &str, message: &EventMessage) -> Option<PodEvent> {
    let actor = message.actor.as_ref()?;
    let id = actor.id.as_deref()?;
    // The Engine sends a container's labels among the attributes.
    let attributes = actor.attributes.as_ref()?;
    let name = attributes.get("name").map(String::as_str);
    let ours = parse_ours(owner, name, attributes)?;
    let uid = ours.uid.clone();
    let at = time(message);
    let image = attributes
        .get("image")
        .map(String::as_str)
        .unwrap_or_default();
    let what = match message.action.as_deref()? {
        "create" => {
            index.note_created(id, ours, image, at);
            PodEventKind::ContainerCreated
        }
        "start" => {
            // The create may have been missed.
            index.note_created(id, ours, image, at);
            index.started(id, at);
            PodEventKind::ContainerStarted
        }
        "die" => {
            index.note_created(id, ours, image, at);
            let exit_code = attributes
                .get("exitCode")
                .and_then(|code| code.parse().ok());
            index.died(id, exit_code, at);
            PodEventKind::ContainerDied
        }
        // Of a stop of ours nothing is new in them.
        action @ ("kill" | "stop") => {
            let what = if action == "kill" {
                UserAction::Signalled
            } else {
                UserAction::Stopped
            };
            let signal = attributes.get("signal").map(String::as_str);
            let begins = what == UserAction::Signalled && signal != Some(SIGKILL);
            if !index.handled(id, what, begins) {
                return None;
            }
            PodEventKind::ContainerChanged
        }
        "destroy" => {
            index.removed(id);
            PodEventKind::ContainerRemoved
        }
        // An inspect shows which one.
        "oom" | "pause" | "unpause" => {
            index.doubt(id);
            PodEventKind::ContainerChanged
        }
        _ => return None,
    };
    Some(PodEvent::Changed { uid, what })
}

/// The changes of pods in the events of containers, up to the first failure.
pub(super) fn container_changes(
    messages: BoxStream<'static, Result<EventMessage>>,
    index: Index,
    owner: &str,
) -> BoxStream<'static, PodEvent> {
    let owner = owner.to_owned();
    let changes = until_failure(messages)
        .filter_map(move |message| future::ready(apply(&index, &owner, &message)));
    changes.boxed()
}

/// The changes of pods in the events of images and networks, up to the first failure.
pub(super) fn other_changes(
    events: BoxStream<'static, Result<OtherEvent>>,
    index: Index,
    images: Arc<ImagePuller>,
) -> BoxStream<'static, PodEvent> {
    let changes = until_failure(events).filter_map(move |event| {
        future::ready(match event {
            // A name may refer to another image now: facts about images are read again.
            OtherEvent::Image => {
                images.forget_all();
                None
            }
            OtherEvent::Disconnected(id) => index.disconnected(&id).map(|uid| PodEvent::Changed {
                uid,
                what: PodEventKind::ContainerChanged,
            }),
        })
    });
    changes.boxed()
}

/// The changes from both streams, until either ends: each has changes that the other one doesn't.
pub(super) fn until_either_ends(
    changes: BoxStream<'static, PodEvent>,
    others: BoxStream<'static, PodEvent>,
    index: &Index,
) -> BoxStream<'static, PodEvent> {
    let end = |index: Index| {
        stream::once(async move {
            index.events_ended();
            None::<PodEvent>
        })
    };
    let changes = changes.map(Some).chain(end(index.clone()));
    let others = others.map(Some).chain(end(index.clone()));
    stream::select(changes, others)
        .take_while(|change| future::ready(change.is_some()))
        .filter_map(future::ready)
        .boxed()
}

fn until_failure<T: Send + 'static>(
    events: BoxStream<'static, Result<T>>,
) -> impl Stream<Item = T> + Send + 'static {
    let good = events.take_while(|event| future::ready(event.is_ok()));
    good.filter_map(|event| future::ready(event.ok()))
}

/// When it happened, by the Engine's clock.
fn time(message: &EventMessage) -> Timestamp {
    message
        .time_nano
        .and_then(|nanos| Timestamp::from_nanosecond(i128::from(nanos)).ok())
        .or_else(|| {
            message
                .time
                .and_then(|seconds| Timestamp::from_second(seconds).ok())
        })
        .unwrap_or(Timestamp::UNIX_EPOCH)
}
