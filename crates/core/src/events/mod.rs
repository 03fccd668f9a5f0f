//! Events about pods for a cluster's users, built and correlated like upstream's.
//!
//! `kubectl describe pod` finds them by the involved object's UID. For a mirror pod it uses the value
//! of `kubernetes.io/config.mirror`, which is the static pod's UID; so that is the UID in an event,
//! never the mirror's.
//!
//! Upstream: `client-go/tools/record`, `pkg/kubelet/container/{ref,helpers}.go`.

mod correlate;
mod recent;
mod refs;
mod spool;
#[cfg(test)]
mod tests;
mod words;
mod workloads;

pub use correlate::{Correlator, Write};
pub use refs::{field_path, node_ref, pod_ref, workload_ref};
pub use spool::{EventQueue, SPOOL_MAX};
pub use words::without_ids;
pub use workloads::{WorkloadEvent, of_begun_run, of_cron_job, of_deleted_run, of_job, of_pods};

use crate::api::meta::{ObjectMeta, Time};
use crate::api::{Timestamp, core, keys};

/// The component that reports our events.
pub const COMPONENT: &str = "mirrorlet";

/// Maximum length of an event's message in characters. Upstream's older events have no limit, its newer
/// ones this one; an error of an Engine may quote whole configurations.
const MESSAGE_MAX: usize = 1024;

/// Longest name of an object.
const NAME_MAX: usize = 253;

crate::words! {
    /// Type of an event.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum EventType {
        /// Something happened as it should.
        Normal = "Normal",
        /// Something is wrong.
        Warning = "Warning",
    }
    /// As the API spells it.
    pub fn as_str;
}

/// Something to report about an object.
#[derive(Debug, Clone, PartialEq)]
pub struct Happening {
    /// The object.
    pub involved: core::ObjectReference,
    /// Type of the event.
    pub event_type: EventType,
    /// Why, in one word.
    pub reason: String,
    /// One sentence.
    pub message: String,
    /// When.
    pub at: Timestamp,
}

/// Builds the first event of its kind. `stamp` is the time in nanoseconds from which its name is built,
/// and must be unique for an object.
///
/// Upstream: `makeEvent` and `generateEvent` of `client-go/tools/record/event.go`.
fn make_event(happening: &Happening, node: &str, stamp: i128) -> core::Event {
    let involved = happening.involved.clone();
    let name = event_name(involved.name.as_deref().unwrap_or_default(), stamp);
    // Objects without namespace have their events in the default one.
    let namespace = involved
        .namespace
        .clone()
        .unwrap_or_else(|| keys::DEFAULT_NAMESPACE.to_owned());
    core::Event {
        metadata: ObjectMeta {
            name: Some(name),
            namespace: Some(namespace),
            ..ObjectMeta::default()
        },
        involved_object: involved,
        type_: Some(happening.event_type.as_str().to_owned()),
        reason: Some(happening.reason.clone()),
        message: Some(shortened(&happening.message)),
        count: Some(1),
        first_timestamp: Some(Time(happening.at)),
        last_timestamp: Some(Time(happening.at)),
        source: Some(core::EventSource {
            component: Some(COMPONENT.to_owned()),
            host: Some(node.to_owned()),
        }),
        reporting_component: Some(COMPONENT.to_owned()),
        reporting_instance: Some(node.to_owned()),
        ..core::Event::default()
    }
}

/// `<object>.<hex of the nanoseconds>`. A name too long to have that appended is cut.
///
/// Upstream: `GenerateEventName` of `client-go/tools/record/util/util.go`.
fn event_name(object: &str, stamp: i128) -> String {
    let suffix = format!(".{stamp:x}");
    let room = NAME_MAX.saturating_sub(suffix.len());
    let cut: String = object.chars().take(room).collect();
    let cut = cut.trim_end_matches(|c: char| !c.is_ascii_alphanumeric());
    format!("{cut}{suffix}")
}

fn shortened(message: &str) -> String {
    if message.chars().count() <= MESSAGE_MAX {
        return message.to_owned();
    }
    let cut: String = message.chars().take(MESSAGE_MAX - 1).collect();
    format!("{cut}…")
}
