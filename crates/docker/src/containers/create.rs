//! Creating a container exactly once, and starting it.

use std::collections::BTreeMap;
use std::time::Duration;

use bollard::models::ContainerCreateBody;
use sha2::{Digest as _, Sha256};
use tokio::time::Instant;

use super::{Containers, Since, Turn};
use crate::engine::EngineError;
use crate::index::Created;
use crate::translate::{Kind, OurContainer, Request, names, parse_ours};
use mirrorlet_core::api::{PodUid, Timestamp, keys};
use mirrorlet_core::observed::ContainerState;

/// Times a create is tried again after it collided with something of ours that was in its way.
const CREATE_ATTEMPTS: usize = 3;

/// How long a name may be taken without a container that can be inspected before another name is used,
/// and how often that is checked: a create in progress reserves its name before the container can be
/// inspected, and there must not be two containers. Longer than a create takes on slow storage.
const GHOST_WAIT: Duration = Duration::from_secs(5);
const GHOST_POLL: Duration = Duration::from_millis(100);

/// Most names of a pod that are noted as unanswered: more than it has containers.
const UNANSWERED_MAX: usize = 512;

/// SHA-256 of what a container was to be made of.
type Digest = [u8; 32];

/// The names and configurations of containers, by pod, that the Engine did not create within the
/// deadline of the call. It may create them later.
#[derive(Debug, Default)]
pub(crate) struct Unanswered(parking_lot::Mutex<BTreeMap<PodUid, BTreeMap<String, Digest>>>);

impl Unanswered {
    fn note(&self, uid: &PodUid, name: &str, digest: Digest) {
        let mut pods = self.0.lock();
        let names = pods.entry(uid.clone()).or_default();
        if names.len() < UNANSWERED_MAX {
            names.insert(name.to_owned(), digest);
        }
    }

    /// Forgets a name, and returns the digest that it was noted with.
    fn take(&self, uid: &PodUid, name: &str) -> Option<Digest> {
        let mut pods = self.0.lock();
        let names = pods.get_mut(uid)?;
        let noted = names.remove(name);
        if names.is_empty() {
            pods.remove(uid);
        }
        noted
    }

    /// Forgets the names of a pod that is gone.
    pub(crate) fn forget(&self, uid: &PodUid) {
        self.0.lock().remove(uid);
    }
}

impl Containers {
    /// Starts a container and records the result in the index. The wait for a turn doesn't count
    /// towards the enclosing turn `within`.
    pub(crate) async fn start(&self, id: &str, within: Option<&Since>) -> Result<(), EngineError> {
        let mut turn = Turn::begin_within(&self.changes, within).await;
        let started = turn.bound(self.engine.start_container(id)).await;
        drop(turn);
        match &started {
            Ok(()) => self.index.started(id, Timestamp::now()),
            // It may have been started none the less, or hold the reason why not.
            Err(_) => self.index.doubt(id),
        }
        started
    }

    /// Creates a container exactly once: if the name is taken, its container is inspected. Waits for
    /// turns don't count towards the enclosing turn.
    ///
    /// An existing container ([late](Made::Late), [found](Made::Found)) has the labels of the request.
    /// The rest of its configuration may be older if it was found.
    pub(crate) async fn create(
        &self,
        request: Request,
        image: &str,
        within: Option<&Since>,
    ) -> Result<Made, EngineError> {
        let Some(ours) = identity(&self.owner, &request) else {
            return Err(EngineError::api(
                0_u16,
                format!(
                    "the name {:?} is not a container name of mirrorlet",
                    request.name
                ),
            ));
        };
        let mut name = request.name.clone();
        let mut attempt = 0;
        let began = Instant::now();
        loop {
            attempt += 1;
            let mut turn = Turn::begin_within(&self.changes, within).await;
            let creating = self.engine.create_container(&name, request.body.clone());
            let created = turn.bound(creating).await;
            drop(turn);
            match created {
                Ok(id) => {
                    self.unanswered.take(&ours.uid, &request.name);
                    self.index.created(Created {
                        id: id.as_str().into(),
                        ours,
                        image: image.into(),
                        at: Timestamp::now(),
                    });
                    return Ok(Made::New(id));
                }
                Err(error) if error.is_conflict() && attempt < CREATE_ATTEMPTS => {
                    match self.holder(&error, &ours, &request.body).await? {
                        Holder::Identical(id) => {
                            let asked = self.unanswered.take(&ours.uid, &request.name);
                            let is_late =
                                asked.is_some() && asked == digest(&request.body, &ours.kind);
                            let made = if is_late { Made::Late } else { Made::Found };
                            return Ok(made(id));
                        }
                        Holder::Removed => {}
                        Holder::Ghost if began.elapsed() < GHOST_WAIT => {
                            attempt -= 1;
                            tokio::time::sleep(GHOST_POLL).await;
                        }
                        Holder::Twin => {
                            self.twins.lock().insert(ours.uid.clone());
                            name = names::conflict_name(&request.name, fresh_suffix());
                        }
                        Holder::Ghost | Holder::Foreign => {
                            name = names::conflict_name(&request.name, fresh_suffix());
                        }
                    }
                }
                Err(error) => {
                    if matches!(error, EngineError::Timeout { .. })
                        && let Some(digest) = digest(&request.body, &ours.kind)
                    {
                        self.unanswered.note(&ours.uid, &request.name, digest);
                    }
                    return Err(error);
                }
            }
        }
    }

    /// Finds out what holds a name that a create needs, and clears the way where that is ours
    /// to do.
    async fn holder(
        &self,
        conflict: &EngineError,
        wanted: &OurContainer,
        body: &ContainerCreateBody,
    ) -> Result<Holder, EngineError> {
        let Some(id) = holder_id(&conflict.to_string()) else {
            return Err(conflict.clone());
        };
        let found = match self.engine.inspect_container(&id).await {
            Ok(found) => found,
            Err(error) if error.is_not_found() => return Ok(Holder::Ghost),
            Err(error) => return Err(error),
        };
        let name = found.name.clone().unwrap_or_default();
        let labels = found
            .config
            .as_ref()
            .and_then(|c| c.labels.clone())
            .unwrap_or_default();
        let Some(ours) = parse_ours(&self.owner, [name.as_str()], &labels) else {
            let runs = found.state.as_ref().and_then(|state| state.running);
            let theirs = labels.get(keys::OWNER);
            let theirs = theirs.and_then(|owner| parse_ours(owner, [name.as_str()], &labels));
            let is_twin = theirs.is_some_and(|theirs| theirs.uid == wanted.uid);
            let is_sandbox = matches!(wanted.kind, Kind::Sandbox { .. });
            return Ok(if is_twin && is_sandbox && runs == Some(true) {
                Holder::Twin
            } else {
                Holder::Foreign
            });
        };
        let network = |mode: Option<&bollard::models::HostConfig>| {
            mode.and_then(|host| host.network_mode.clone())
        };
        let same_sandbox =
            network(found.host_config.as_ref()) == network(body.host_config.as_ref());
        let image = found
            .config
            .as_ref()
            .and_then(|c| c.image.clone())
            .unwrap_or_default();
        self.index
            .note_created(&id, ours.clone(), &image, Timestamp::now());
        self.index.inspected(&id, u64::MAX, &found, "");
        let state = self.index.get(&id).map(|record| record.state);
        let is_sandbox = matches!(ours.kind, Kind::Sandbox { .. });
        if ours == *wanted
            && (is_sandbox || same_sandbox)
            && matches!(
                state,
                Some(ContainerState::Created | ContainerState::Running)
            )
        {
            return Ok(Holder::Identical(id));
        }
        // A container that ran, because a call took effect late, is new to the plan that needed its
        // name: the plan must be made again with that knowledge.
        if matches!(
            state,
            Some(ContainerState::Running | ContainerState::Exited)
        ) {
            return Err(conflict.clone());
        }
        match self.engine.remove_container(&id, false).await {
            Ok(()) => {}
            Err(error) if error.is_not_found() => {}
            Err(_) => return Err(conflict.clone()),
        }
        self.index.removed(&id);
        Ok(Holder::Removed)
    }
}

/// The container with which a create ends.
#[derive(Debug)]
pub(crate) enum Made {
    /// It was created.
    New(String),
    /// It existed: created by an identical call of this agent that took longer than its deadline.
    Late(String),
    /// It existed: created by another unanswered call, or by an earlier agent.
    Found(String),
}

impl Made {
    /// Its id.
    pub(crate) fn into_id(self) -> String {
        match self {
            Self::New(id) | Self::Late(id) | Self::Found(id) => id,
        }
    }
}

/// The holder of a name.
enum Holder {
    /// The very container that was to be created.
    Identical(String),
    /// It was removed.
    Removed,
    /// Unknown to the Engine: it was just removed, it is being created by a call of an earlier agent,
    /// or its name is stuck in the Engine's state.
    Ghost,
    /// A container that is not ours.
    Foreign,
    /// The same pod's sandbox, which another agent runs.
    Twin,
}

/// The identity of the request's container.
fn identity(owner: &str, request: &Request) -> Option<OurContainer> {
    parse_ours(
        owner,
        [request.name.as_str()],
        request.body.labels.as_ref()?,
    )
}

/// Digest of a container's configuration, without the file of its termination message: each request has
/// a new one.
fn digest(body: &ContainerCreateBody, kind: &Kind) -> Option<Digest> {
    let mut body = body.clone();
    if let Kind::Container {
        termination_path, ..
    } = kind
    {
        let host_config = body.host_config.as_mut();
        let mounts = host_config.and_then(|host| host.mounts.as_mut());
        for mount in mounts.into_iter().flatten() {
            if mount.target.as_ref() == Some(termination_path) {
                mount.source = None;
            }
        }
    }
    // A value has its keys in order, which the maps of the body don't.
    let value = serde_json::to_value(body).ok()?;
    Some(Sha256::digest(value.to_string()).into())
}

/// The id in `Conflict. The container name "/x" is already in use by container "<id>". …`
fn holder_id(message: &str) -> Option<String> {
    let (_, rest) = message.split_once("is already in use by container ")?;
    let id: String = rest
        .chars()
        .skip_while(|c| *c == '"')
        .take_while(char::is_ascii_hexdigit)
        .collect();
    (id.len() >= 12).then_some(id)
}

/// A suffix no other container is likely to have.
fn fresh_suffix() -> u32 {
    let nanos = Timestamp::now().as_nanosecond();
    u32::try_from(nanos.rem_euclid(i128::from(u32::MAX))).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_holder_of_a_name_is_read_from_the_conflict() {
        let id = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
        let message = format!(
            "Conflict. The container name \"/k8s_POD_a_b_c_0\" is already in use by container \"{id}\". You have to remove (or rename) that container to be able to reuse that name."
        );
        assert_eq!(holder_id(&message).as_deref(), Some(id));
        assert_eq!(
            holder_id("removal of container x is already in progress"),
            None
        );
    }
}
