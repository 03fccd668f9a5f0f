//! State of the fake Engine, and the effect of each call on it.
//!
//! In one file: containers, images, networks and volumes refer to one another, and each call may change
//! several of them.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use bollard::models::{
    ContainerCreateBody, ContainerStateStatusEnum, EventActor, EventMessage, EventMessageTypeEnum,
    Volume, VolumeCreateRequest,
};
use tokio::sync::mpsc;

use super::super::engine::{EngineError, OtherEvent, PullProgress, RegistryAuth, Result};
use mirrorlet_core::api::{Timestamp, keys};
use mirrorlet_runtime::LogChunk;

/// How many past events a subscriber can request, as in the real Engine.
const KEPT_EVENTS: usize = 256;

/// An image of the fake.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FakeImage {
    /// `USER` of its configuration; empty for root.
    pub user: String,
    /// Its size in bytes.
    pub size: i64,
    /// Its repository digest, if it came from a registry.
    pub repo_digest: Option<String>,
    /// Its id; a hash of its name if empty. Names with the same id are names of one image.
    pub id: String,
    /// Id of its parent image; empty for none.
    pub parent: String,
}

/// The behaviour of a pull.
#[derive(Debug, Clone, Default)]
pub struct PullScript {
    /// The messages of its stream.
    pub messages: Vec<Result<PullProgress>>,
    /// The pause before the last message.
    pub silence: Duration,
    /// Whether the stream never ends after them.
    pub stalls: bool,
    /// The image it leaves behind.
    pub image: Option<FakeImage>,
    /// The required password; none accepts any password, or none.
    pub password: Option<String>,
}

/// The behaviour of a start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StartScript {
    /// The container runs.
    Runs,
    /// It runs and ends at once with this code.
    Exits(i64),
    /// The start fails: the container stays created, with the code and the message in its state.
    Fails {
        /// HTTP status of the answer.
        status: u16,
        /// Exit code left behind, for example 127.
        exit_code: i64,
        /// The Engine's words.
        message: String,
    },
}

/// Where a container of the fake is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    Created,
    Running,
    Exited,
}

/// A container of the fake.
#[derive(Debug, Clone)]
pub(super) struct FakeContainer {
    pub(super) id: String,
    pub(super) name: String,
    pub(super) body: ContainerCreateBody,
    pub(super) phase: Phase,
    pub(super) created: Timestamp,
    pub(super) started: Option<Timestamp>,
    pub(super) finished: Option<Timestamp>,
    pub(super) exit_code: i64,
    pub(super) oom_killed: bool,
    pub(super) error: String,
    pub(super) ip: Option<String>,
    pub(super) pid: i64,
    pub(super) logs: Vec<LogChunk>,
    /// Whether its log never ends after those.
    pub(super) log_hangs: bool,
}

impl FakeContainer {
    pub(super) fn image(&self) -> &str {
        self.body.image.as_deref().unwrap_or_default()
    }

    pub(super) fn network_mode(&self) -> &str {
        let host = self.body.host_config.as_ref();
        host.and_then(|h| h.network_mode.as_deref())
            .unwrap_or("default")
    }

    pub(super) fn status(&self) -> ContainerStateStatusEnum {
        match self.phase {
            Phase::Created => ContainerStateStatusEnum::CREATED,
            Phase::Running => ContainerStateStatusEnum::RUNNING,
            Phase::Exited => ContainerStateStatusEnum::EXITED,
        }
    }

    pub(super) fn is_owned_by(&self, owner: &str) -> bool {
        let labels = self.body.labels.as_ref();
        labels.and_then(|l| l.get(keys::OWNER)).map(String::as_str) == Some(owner)
    }
}

/// A subscriber of events.
#[derive(Debug)]
pub(super) struct Subscriber {
    owner: String,
    pub(super) sender: mpsc::UnboundedSender<Result<EventMessage>>,
}

/// The whole state of the fake. Containers are in order of creation.
#[derive(Debug)]
pub(super) struct State {
    pub(super) available: bool,
    pub(super) now: Timestamp,
    pub(super) containers: Vec<FakeContainer>,
    pub(super) images: BTreeMap<String, FakeImage>,
    pub(super) pulls: BTreeMap<String, PullScript>,
    pub(super) starts: BTreeMap<String, StartScript>,
    /// Drivers of user-defined networks, by name.
    pub(super) networks: BTreeMap<String, String>,
    /// Whether networks give what starts no address.
    pub(super) without_addresses: bool,
    /// Its root directory.
    pub(super) root_dir: String,
    /// Address of the containerd that has the images, if there is one.
    pub(super) containerd: Option<String>,
    pub(super) volumes: BTreeMap<String, Volume>,
    pub(super) execs: super::execs::Execs,
    pub(super) subscribers: Vec<Subscriber>,
    /// The subscribers of events of images and networks.
    others: Vec<mpsc::UnboundedSender<Result<OtherEvent>>>,
    pub(super) drop_events: usize,
    events: Vec<EventMessage>,
    made: u64,
    addresses: u64,
}

/// An answer that reports an error.
pub(super) fn api_error(status: u16, message: impl Into<String>) -> EngineError {
    EngineError::Api {
        status,
        message: message.into(),
    }
}

fn no_such_container(id: &str) -> EngineError {
    api_error(404, format!("No such container: {id}"))
}

impl State {
    pub(super) fn new() -> Self {
        Self {
            available: true,
            now: Timestamp::UNIX_EPOCH + Duration::from_hours(490_896),
            containers: Vec::new(),
            images: BTreeMap::new(),
            pulls: BTreeMap::new(),
            starts: BTreeMap::new(),
            networks: BTreeMap::new(),
            without_addresses: false,
            root_dir: "/var/lib/docker".to_owned(),
            containerd: None,
            volumes: BTreeMap::new(),
            execs: super::execs::Execs::default(),
            subscribers: Vec::new(),
            others: Vec::new(),
            drop_events: 0,
            events: Vec::new(),
            made: 0,
            addresses: 0,
        }
    }

    pub(super) fn create_volume(&mut self, request: VolumeCreateRequest) -> Volume {
        let name = request.name.unwrap_or_default();
        let made = Volume {
            mountpoint: format!("/fake/volumes/{name}/_data"),
            driver: request.driver.unwrap_or_default(),
            options: request.driver_opts.unwrap_or_default(),
            labels: request.labels.unwrap_or_default(),
            name: name.clone(),
            ..Volume::default()
        };
        self.volumes.entry(name).or_insert(made).clone()
    }

    fn tick(&mut self) -> Timestamp {
        self.now += Duration::from_millis(1);
        self.now
    }

    /// Index of a container by id, the beginning of an id, or name.
    fn index(&self, id: &str) -> Option<usize> {
        let bare = id.strip_prefix('/').unwrap_or(id);
        let mut all = self.containers.iter();
        all.position(|c| c.id == bare || c.name == bare)
            .or_else(|| {
                let long = bare.len() >= 12;
                let mut all = self.containers.iter();
                all.position(|c| long && c.id.starts_with(bare))
            })
    }

    pub(super) fn find(&self, id: &str) -> Option<&FakeContainer> {
        self.index(id).map(|i| &self.containers[i])
    }

    pub(super) fn find_mut(&mut self, id: &str) -> Option<&mut FakeContainer> {
        self.index(id).map(|i| &mut self.containers[i])
    }

    pub(super) fn known(&self, id: &str) -> Result<&FakeContainer> {
        self.find(id).ok_or_else(|| no_such_container(id))
    }

    fn known_index(&self, id: &str) -> Result<usize> {
        self.index(id).ok_or_else(|| no_such_container(id))
    }

    /// An image by name, or by the id the fake gave it.
    pub(super) fn image(&self, name: &str) -> Option<(&str, &FakeImage)> {
        let tagged = self.images.get_key_value(name);
        let by_id = || {
            let mut all = self.images.iter();
            all.find(|(n, image)| super::answers::image_id(n, image) == name)
        };
        tagged.or_else(by_id).map(|(n, i)| (n.as_str(), i))
    }

    pub(super) fn create(&mut self, name: &str, body: ContainerCreateBody) -> Result<String> {
        if let Some(holder) = self.containers.iter().find(|c| c.name == name) {
            return Err(api_error(
                409,
                format!(
                    "Conflict. The container name \"/{name}\" is already in use by container \
                     \"{}\". You have to remove (or rename) that container to be able to reuse \
                     that name.",
                    holder.id
                ),
            ));
        }
        let image = body.image.clone().unwrap_or_default();
        if self.image(&image).is_none() {
            return Err(api_error(404, format!("No such image: {image}")));
        }
        self.made += 1;
        let id = format!(
            "{:064x}",
            u128::from(self.made) << 96 | u128::from(self.made)
        );
        let created = self.tick();
        self.containers.push(FakeContainer {
            id: id.clone(),
            name: name.to_owned(),
            body,
            phase: Phase::Created,
            created,
            started: None,
            finished: None,
            exit_code: 0,
            oom_killed: false,
            error: String::new(),
            ip: None,
            pid: 0,
            logs: Vec::new(),
            log_hangs: false,
        });
        self.emit(self.containers.len() - 1, "create", &[]);
        Ok(id)
    }

    pub(super) fn start(&mut self, id: &str) -> Result<()> {
        let index = self.known_index(id)?;
        if self.containers[index].phase == Phase::Running {
            return Ok(());
        }
        self.check_joined_network(index)?;
        let image = self.containers[index].image().to_owned();
        let script = self.starts.get(&image).cloned();
        match script.unwrap_or(StartScript::Runs) {
            StartScript::Runs => self.run(index),
            StartScript::Exits(code) => {
                self.run(index);
                let id = self.containers[index].id.clone();
                self.end(&id, code, false, true);
            }
            StartScript::Fails {
                status,
                exit_code,
                message,
            } => {
                let container = &mut self.containers[index];
                container.exit_code = exit_code;
                container.error.clone_from(&message);
                return Err(api_error(status, message));
            }
        }
        Ok(())
    }

    /// A container that joins another's network needs that one to run.
    fn check_joined_network(&self, index: usize) -> Result<()> {
        let Some(joined) = self.containers[index]
            .network_mode()
            .strip_prefix("container:")
        else {
            return Ok(());
        };
        match self.find(joined) {
            None => Err(no_such_container(joined)),
            Some(sandbox) if sandbox.phase != Phase::Running => Err(api_error(
                409,
                format!(
                    "cannot join network of a non running container: {}",
                    sandbox.id
                ),
            )),
            Some(_) => Ok(()),
        }
    }

    fn run(&mut self, index: usize) {
        let started = self.tick();
        let own_network = !matches!(self.containers[index].network_mode(), "host" | "none")
            && !self.containers[index]
                .network_mode()
                .starts_with("container:");
        let is_addressed = own_network && !self.without_addresses;
        self.addresses += u64::from(is_addressed);
        let (third, fourth) = (self.addresses / 250, self.addresses % 250 + 2);
        let container = &mut self.containers[index];
        container.phase = Phase::Running;
        container.started = Some(started);
        container.finished = None;
        container.exit_code = 0;
        container.oom_killed = false;
        container.error.clear();
        container.pid = 1000 + i64::try_from(index).unwrap_or_default();
        container.ip = is_addressed.then(|| format!("172.17.{third}.{fourth}"));
        self.emit(index, "start", &[]);
    }

    /// Ends a running container; one that doesn't run is left alone.
    pub(super) fn end(&mut self, id: &str, code: i64, oom: bool, emits_events: bool) {
        let Some(index) = self.index(id) else { return };
        if self.containers[index].phase != Phase::Running {
            return;
        }
        let finished = self.tick();
        let container = &mut self.containers[index];
        container.phase = Phase::Exited;
        container.finished = Some(finished);
        container.exit_code = code;
        container.oom_killed = oom;
        container.pid = 0;
        container.ip = None;
        let id = container.id.clone();
        self.end_execs(&id);
        if emits_events {
            if oom {
                self.emit(index, "oom", &[]);
            }
            let code = code.to_string();
            self.emit(index, "die", &[("exitCode", &code)]);
        }
    }

    pub(super) fn lose_all_running(&mut self) {
        let running = self.containers.iter().filter(|c| c.phase == Phase::Running);
        let ids: Vec<String> = running.map(|c| c.id.clone()).collect();
        for id in ids {
            self.end(&id, 255, false, false);
        }
    }

    /// Sandboxes end well, as the pause program does; everything else is assumed to ignore SIGTERM.
    pub(super) fn stop(&mut self, id: &str) -> Result<()> {
        let index = self.known_index(id)?;
        let container = &self.containers[index];
        let labels = container.body.labels.as_ref();
        let sandbox =
            labels.and_then(|l| l.get(keys::KIND)).map(String::as_str) == Some(keys::KIND_SANDBOX);
        let id = container.id.clone();
        self.end(&id, if sandbox { 0 } else { 137 }, false, true);
        Ok(())
    }

    pub(super) fn remove(&mut self, id: &str, force: bool) -> Result<()> {
        let index = self.known_index(id)?;
        if self.containers[index].phase == Phase::Running {
            let id = self.containers[index].id.clone();
            if !force {
                return Err(api_error(
                    409,
                    format!(
                        "You cannot remove a running container {id}. Stop the container before \
                         attempting removal or force remove"
                    ),
                ));
            }
            self.end(&id, 137, false, true);
        }
        self.tick();
        self.emit(index, "destroy", &[]);
        self.containers.remove(index);
        Ok(())
    }

    /// Ids of the images of all containers.
    pub(super) fn images_in_use(&self) -> BTreeSet<String> {
        let of = |container: &FakeContainer| {
            let (name, image) = self.image(container.image())?;
            Some(super::answers::image_id(name, image))
        };
        self.containers.iter().filter_map(of).collect()
    }

    /// Removes a name, or an image by its id, which must have at most one name then.
    pub(super) fn remove_image(&mut self, name: &str) -> Result<()> {
        let Some((found, image)) = self.image(name) else {
            return Err(api_error(404, format!("No such image: {name}")));
        };
        let (id, found) = (super::answers::image_id(found, image), found.to_owned());
        let names = self.images.iter();
        let names = names.filter(|(n, image)| super::answers::image_id(n, image) == id);
        let is_last = names.count() == 1;
        if found != name && !is_last {
            let words = format!(
                "conflict: unable to delete {name} (must be forced) - image is referenced in \
                 multiple repositories"
            );
            return Err(api_error(409, words));
        }
        if is_last && self.images_in_use().contains(&id) {
            let words = format!(
                "conflict: unable to remove repository reference {name:?} (must force) - \
                 container 0123 is using its referenced image"
            );
            return Err(api_error(409, words));
        }
        if is_last && self.images.values().any(|image| image.parent == id) {
            let words = format!(
                "conflict: unable to delete {name} (cannot be forced) - image has dependent child \
                 images"
            );
            return Err(api_error(409, words));
        }
        self.images.remove(&found);
        Ok(())
    }

    pub(super) fn pull(&mut self, image: &str, auth: Option<&RegistryAuth>) -> Result<PullScript> {
        let Some(script) = self.pulls.get(image).cloned() else {
            return Err(api_error(
                404,
                format!(
                    "pull access denied for {image}, repository does not exist or may require \
                     'docker login': denied: requested access to the resource is denied"
                ),
            ));
        };
        let shown = auth.map(|auth| &auth.password);
        if script.password.is_some() && script.password.as_ref() != shown {
            let message = format!("unauthorized: {image}: authentication required");
            return Err(api_error(500, message));
        }
        if let Some(pulled) = &script.image {
            self.images.insert(image.to_owned(), pulled.clone());
        }
        Ok(script)
    }

    /// Reads the tags from the archive's manifest.
    pub(super) fn load(&mut self, tar: &[u8]) -> Result<()> {
        #[derive(serde::Deserialize)]
        struct Entry {
            #[serde(rename = "RepoTags")]
            tags: Vec<String>,
        }
        let bad = |text: String| api_error(500, text);
        let mut archive = tar::Archive::new(tar);
        let entries = archive.entries().map_err(|e| bad(e.to_string()))?;
        for file in entries {
            let file = file.map_err(|e| bad(e.to_string()))?;
            if file.path_bytes().as_ref() == b"manifest.json" {
                let images: Vec<Entry> =
                    serde_json::from_reader(file).map_err(|e| bad(e.to_string()))?;
                for tag in images.into_iter().flat_map(|i| i.tags) {
                    self.images.insert(tag, FakeImage::default());
                }
                return Ok(());
            }
        }
        Err(bad("no manifest.json in the archive".to_owned()))
    }

    pub(super) fn subscribe(
        &mut self,
        owner: &str,
        since: Option<Timestamp>,
    ) -> mpsc::UnboundedReceiver<Result<EventMessage>> {
        let (sender, receiver) = mpsc::unbounded_channel();
        let subscriber = Subscriber {
            owner: owner.to_owned(),
            sender,
        };
        if let Some(since) = since {
            let wanted = |e: &&EventMessage| {
                i128::from(e.time_nano.unwrap_or_default()) >= since.as_nanosecond()
            };
            for event in self.events.iter().filter(wanted) {
                subscriber.send(event);
            }
        }
        self.subscribers.push(subscriber);
        receiver
    }

    pub(super) fn cut_events(&mut self, error: &EngineError) {
        for subscriber in self.subscribers.drain(..) {
            // One that has gone needs no event.
            let _ = subscriber.sender.send(Err(error.clone()));
        }
        self.cut_other_events(error);
    }

    pub(super) fn subscribe_others(&mut self) -> mpsc::UnboundedReceiver<Result<OtherEvent>> {
        let (sender, receiver) = mpsc::unbounded_channel();
        self.others.push(sender);
        receiver
    }

    pub(super) fn cut_other_events(&mut self, error: &EngineError) {
        for sender in self.others.drain(..) {
            let _ = sender.send(Err(error.clone()));
        }
    }

    pub(super) fn repeat_last_event(&mut self) {
        if let Some(event) = self.events.last() {
            for subscriber in &self.subscribers {
                subscriber.send(event);
            }
        }
    }

    /// Sends an event to all subscribers: all labels, image and name are attributes, as with the real
    /// Engine.
    fn emit(&mut self, index: usize, action: &str, extra: &[(&str, &str)]) {
        let container = &self.containers[index];
        let mut attributes: HashMap<String, String> =
            container.body.labels.clone().unwrap_or_default();
        attributes.insert("image".to_owned(), container.image().to_owned());
        attributes.insert("name".to_owned(), container.name.clone());
        attributes.extend(
            extra
                .iter()
                .map(|(k, v)| ((*k).to_owned(), (*v).to_owned())),
        );
        let event = EventMessage {
            typ: Some(EventMessageTypeEnum::CONTAINER),
            action: Some(action.to_owned()),
            actor: Some(EventActor {
                id: Some(container.id.clone()),
                attributes: Some(attributes),
            }),
            scope: None,
            time: Some(self.now.as_second()),
            time_nano: i64::try_from(self.now.as_nanosecond()).ok(),
        };
        if self.drop_events > 0 {
            self.drop_events -= 1;
        } else {
            for subscriber in &self.subscribers {
                subscriber.send(&event);
            }
        }
        if self.events.len() == KEPT_EVENTS {
            self.events.remove(0);
        }
        self.events.push(event);
    }
}

impl Subscriber {
    fn send(&self, event: &EventMessage) {
        let attributes = event.actor.as_ref().and_then(|a| a.attributes.as_ref());
        let owner = attributes.and_then(|a| a.get(keys::OWNER));
        if owner == Some(&self.owner) {
            // One that has gone needs no event.
            let _ = self.sender.send(Ok(event.clone()));
        }
    }
}
