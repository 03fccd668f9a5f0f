//! Pods with the objects that are part of their version.

use std::sync::Arc;

use serde_json::json;

use crate::api::{Pod, PodUid, keys};
use crate::desired::SourcePod;
use crate::manifest::uid_of;
use crate::objects::{Config, Object, ObjectKey, has_config, restarts_on_config};

/// First line of the hashed bytes, which must never change: a changed UID restarts the pod.
const ENCODING: &str = "mirrorlet pod with its objects 1";

/// Returns a pod of a manifest with its objects, if they should be part of its version: its UID is a
/// hash of both. While an object is missing, the pod keeps its last objects according to `known`;
/// without any it is the pod of its manifest alone, and waits for them.
pub fn with_config(
    pod: &SourcePod,
    salt: &str,
    find: impl Fn(&ObjectKey) -> Option<Object>,
    complete: bool,
    known: impl FnOnce(&PodUid) -> Option<(Arc<Pod>, Arc<Config>)>,
) -> Option<SourcePod> {
    if !restarts_on_config(&pod.pod) || !has_config(&pod.pod) {
        return None;
    }
    let (pod_with, config) = match Config::of(&pod.pod, find, complete) {
        Some(config) => {
            let uid = uid(&config, salt);
            let mut pod_with = Pod::clone(&pod.pod);
            pod_with.metadata.uid = Some(uid.to_string());
            let annotations = pod_with.metadata.annotations.get_or_insert_default();
            annotations.insert(keys::CONFIG_HASH.to_owned(), uid.to_string());
            (Arc::new(pod_with), Arc::new(config))
        }
        None => known(&pod.uid())?,
    };
    Some(SourcePod {
        pod: pod_with,
        config: Some(config),
        ..pod.clone()
    })
}

/// The UID of a pod with these objects. `salt` is only known on this machine, so that the UID can't be
/// used to guess a Secret's value.
fn uid(config: &Config, salt: &str) -> PodUid {
    let value = json!({"data": config.fields(), "manifest": config.manifest, "salt": salt});
    uid_of(ENCODING, &value)
}

#[cfg(test)]
mod tests;
