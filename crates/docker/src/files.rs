//! The inputs of a pod's containers from outside the Engine: referenced objects, volumes, the hosts
//! file.

mod volumes;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use super::engine::SharedEngine;
use super::node_ips::NodeIps;
use super::room::{Room, Taken};
use super::translate::{ContainerInput, HostFacts, ResolvConf, hosts_file};
use mirrorlet_core::api::core::{Container, FileKeySelector};
use mirrorlet_core::api::{FullName, Pod, PodUid, Timestamp};
use mirrorlet_core::credentials::{PullSecrets, pull_secrets};
use mirrorlet_core::env::{EnvFiles, FILES_BYTES_MAX as ENV_FILES_BYTES_MAX, env_files};
use mirrorlet_core::fields;
use mirrorlet_core::names::{NamedPod, Names};
use mirrorlet_core::objects::{ObjectSet, is_static, references};
use mirrorlet_core::payload::{Payload, PayloadContext, Payloads, payloads};
use mirrorlet_core::spec;
use mirrorlet_core::volumes::{VolumeMap, check_sub_paths, has_sub_path};
use mirrorlet_host::disk;
use mirrorlet_host::telemetry::{Telemetry, occurrences};
use mirrorlet_host::volume::{VolumeError, VolumeManager};
use mirrorlet_runtime::objects::PodObjects;
use mirrorlet_runtime::{Result as RuntimeResult, RuntimeError, SyncError, SyncErrorReason};

/// Largest resolv.conf and hosts file of the node that are read, in MiB: each pod has a copy.
const NODE_FILE_MIB_MAX: u64 = 1;
/// Maximum number of bytes of all pods' files that are held until they are written: those of two pods
/// of maximum size, beside small ones. Usual pods have some 10 KB and wait only if hundreds of them are
/// written.
pub(super) const FILES_BYTES_MAX: u32 = 48 << 20;
/// Maximum number of bytes of variables' files that are held until their request is made, for usual
/// ones and for large ones: those of four containers of maximum size.
pub(super) const ENV_ROOM_BYTES: [u32; 2] = [8 << 20, 8 << 20];
/// The bytes that a file takes beside its path and its content, about.
const FILE_BYTES: usize = 150;
/// Reason of the note that a volume could not be brought up to date.
const FAILED_MOUNT: &str = "FailedMount";
/// Minimum time to the next check of a token, so that one that can't be renewed is not requested in a
/// loop.
const TOKEN_LOOK_MIN: Duration = Duration::from_secs(10);

/// The pod's files on disk, and the sources of its containers' environments.
pub(super) struct Files {
    pub(super) volumes: VolumeMap,
    pub(super) etc_hosts: PathBuf,
    /// Restart counts of the last starts, by container.
    pub(super) restarts: BTreeMap<String, u32>,
    pub(super) objects: ObjectSet,
    /// Credentials for its images.
    pub(super) pull_secrets: PullSecrets,
}

/// A failure to make the pod's files.
pub(super) enum FilesError {
    /// A volume's error: no container of the pod can start, but its sandbox is not affected.
    Volume(SyncError),
    /// Of something else.
    Other(SyncError),
}

/// Makes the files of pods.
pub(super) struct PodFiles {
    pub(super) volumes: VolumeManager,
    pub(super) objects: PodObjects,
    pub(super) node: HostFacts,
    pub(super) hosts: HostsFiles,
    pub(super) telemetry: Telemetry,
    pub(super) engine: SharedEngine,
    /// The value of our ownership label.
    pub(super) owner: String,
    /// Limits the files that are held until they are written.
    pub(super) room: Room,
    /// Limits the files of variables that are held until their request is made. That may wait for the
    /// Engine, which volumes must not.
    pub(super) env_room: Room,
}

/// Writes the hosts files of pods: one at a time, so that no file is left with outdated names.
#[derive(Clone, Default)]
pub(super) struct HostsFiles {
    /// The names of pods and Services; none before they are known.
    names: Arc<Mutex<Option<Arc<Names>>>>,
}

impl HostsFiles {
    /// Writes a pod's hosts file, of which `text` is everything except the names, and returns its path.
    /// Before names are known, an existing file keeps its names. Blocks.
    pub(super) fn write(
        &self,
        volumes: &VolumeManager,
        pod: &Pod,
        text: String,
    ) -> Result<PathBuf, VolumeError> {
        let names = self.names.lock();
        let uid = PodUid::of(pod);
        if names.is_none() && is_static(pod) && volumes.has_hosts(&uid)? {
            return volumes.hosts_path(&uid);
        }
        volumes.write_hosts(&uid, &with_names(pod, text, names.as_deref()))
    }

    /// Has `names` in the files of these pods and of all that start from now on; a file that is gone
    /// with its pod is not made again. Blocks.
    fn serve(
        &self,
        volumes: &VolumeManager,
        names: Arc<Names>,
        files: Vec<(Arc<Pod>, String)>,
    ) -> Result<(), VolumeError> {
        let mut known = self.names.lock();
        let mut result = Ok(());
        for (pod, text) in files {
            let content = with_names(&pod, text, Some(&names));
            let written = volumes.rewrite_hosts(&PodUid::of(&pod), &content);
            result = result.and(written);
        }
        *known = Some(names);
        result
    }
}

/// Adds the names to a pod's hosts file: only pods of manifests get the names of each other.
fn with_names(pod: &Pod, mut text: String, names: Option<&Names>) -> String {
    if let Some(names) = names.filter(|_| is_static(pod)) {
        let lines = names.lines(&FullName::of(pod).namespace, &text);
        text.push_str(&lines);
    }
    text
}

impl PodFiles {
    /// Fetches everything the pod refers to, which is held from now on. Makes no request for a pod
    /// without references.
    pub(super) async fn pod_objects(&self, pod: &Pod) -> ObjectSet {
        let references = references(pod);
        if references.is_empty() {
            return ObjectSet::default();
        }
        self.objects.of(pod).hold(&PodUid::of(pod), &references);
        self.objects.fetch(pod, &references).await
    }

    /// Fetches everything that a static pod refers to without holding it: the pod may never run.
    pub(super) async fn objects_now(&self, pod: &Pod) -> ObjectSet {
        self.objects.fetch(pod, &references(pod)).await
    }

    /// The node's present addresses, primary first.
    pub(super) fn node_ips(&self) -> Vec<IpAddr> {
        let now = self.node.node_ips_now.as_ref();
        now.map_or_else(|| self.node.node_ips.clone(), NodeIps::get)
    }

    /// The node's facts, with its present addresses.
    pub(super) fn node_with_ips(&self) -> HostFacts {
        HostFacts {
            node_ips: self.node_ips(),
            ..self.node.clone()
        }
    }

    /// The node's facts, with the current content of its resolver and hosts files. The earlier content
    /// is used for an unreadable file.
    pub(super) async fn node_now(&self) -> HostFacts {
        let mut node = self.node.clone();
        let (resolv_conf, hosts) = (node.resolv_conf_path.clone(), node.hosts_path.clone());
        let read = |path: Option<PathBuf>| {
            let bytes = disk::read_small(&path?, NODE_FILE_MIB_MAX).ok()?;
            String::from_utf8(bytes).ok()
        };
        let reading = self.on_disk(move |_| Ok((read(resolv_conf), read(hosts))));
        if let Ok((resolv_conf, hosts)) = reading.await {
            if let Some(text) = resolv_conf {
                node.resolv_conf = ResolvConf::parse(&text);
            }
            node.hosts_file = hosts.unwrap_or(node.hosts_file);
        }
        node
    }

    /// Makes volumes and the hosts file.
    pub(super) async fn pod_files(
        &self,
        pod: &Arc<Pod>,
        objects: ObjectSet,
        ips: &[IpAddr],
    ) -> Result<Files, FilesError> {
        let memory = self.node.memory_bytes;
        let hosts = hosts_file(pod, ips, &self.node_now().await)
            .map_err(|error| FilesError::Other(config_error(error)))?;
        let (for_disk, files) = (Arc::clone(pod), self.hosts.clone());
        let claims = self.claim_volumes(pod, &objects).await;
        let claims = claims.map_err(FilesError::Volume)?;
        let (payloads, room) = self.payloads(pod, &objects).await;
        let made = self.on_disk(move |volumes| {
            // An error here has another cause than one below.
            let made = volumes.ensure(&for_disk, &payloads, memory);
            // Directories of claims may hang.
            drop((payloads, room));
            let map = match made.and_then(|mut map| {
                volumes.ensure_claims(&for_disk, &claims, &mut map)?;
                Ok(map)
            }) {
                Ok(map) => map,
                Err(error) => return Ok(Err(error)),
            };
            let etc_hosts = files.write(volumes, &for_disk, hosts)?;
            Ok(Ok((map, etc_hosts, volumes.noted_restarts(&for_disk)?)))
        });
        match made.await {
            Ok(Ok((volumes, etc_hosts, restarts))) => {
                report_kept_volumes(&self.telemetry, pod, &volumes);
                let pull_secrets = pull_secrets(pod, &objects);
                if !pull_secrets.unreadable.is_empty() {
                    let names = &pull_secrets.unreadable;
                    self.telemetry
                        .about(pod, |of| occurrences::pull_secrets_unreadable(of, names));
                }
                Ok(Files {
                    volumes,
                    etc_hosts,
                    restarts,
                    objects,
                    pull_secrets,
                })
            }
            Ok(Err(error)) => Err(FilesError::Volume(mount_error(&error))),
            Err(error) => Err(FilesError::Other(config_error(error))),
        }
    }

    /// See [`Runtime::serve_names`](mirrorlet_runtime::Runtime::serve_names).
    pub(super) async fn serve_names(
        &self,
        names: Arc<Names>,
        pods: Vec<NamedPod>,
    ) -> Result<(), SyncError> {
        let node = self.node_now().await;
        let text = |named: NamedPod| {
            let text = hosts_file(&named.pod, &named.addresses, &node).ok()?;
            Some((named.pod, text))
        };
        let texts = pods.into_iter().filter_map(text).collect();
        let files = self.hosts.clone();
        let served = self.on_disk(move |volumes| files.serve(volumes, names, texts));
        served.await.map_err(config_error)
    }

    /// Fails if volumes can't be set up because referenced objects are missing, and names them all,
    /// before a sandbox is created in vain.
    pub(super) async fn check_volumes(
        &self,
        pod: &Arc<Pod>,
        objects: &ObjectSet,
    ) -> Result<(), SyncError> {
        let claims = self.claims(pod, objects).await.map(drop);
        let failures = self.payload_failures(pod, objects);
        if failures.is_empty() {
            return claims;
        }
        let for_disk = Arc::clone(pod);
        let checked = self.on_disk(move |volumes| Ok(volumes.check(&for_disk, &failures)));
        let checked = checked.await.map_err(config_error)?;
        let checked = checked.map_err(|error| {
            let volume = error.volume();
            mount_error(&error).of_field(|| fields::volume(pod, volume?))
        });
        match (claims, checked) {
            (Err(first), Err(second)) => Err(SyncError {
                message: format!("{}; {}", first.message, second.message),
                ..first
            }),
            (claims, checked) => claims.and(checked),
        }
    }

    /// The files of the pod's volumes, once there is room for them in memory.
    async fn payloads(&self, pod: &Pod, objects: &ObjectSet) -> (Payloads, Taken) {
        let context = self.payload_context(pod, objects);
        self.room.made(|| payloads(&context), bytes_of).await
    }

    /// The volumes whose files can't be computed.
    fn payload_failures(&self, pod: &Pod, objects: &ObjectSet) -> Payloads {
        let context = self.payload_context(pod, objects);
        self.room.alone(|| {
            let mut made = payloads(&context);
            made.retain(|_, made| made.is_err());
            made
        })
    }

    fn payload_context<'a>(&self, pod: &'a Pod, objects: &'a ObjectSet) -> PayloadContext<'a> {
        PayloadContext {
            pod,
            objects,
            allocatable: self.node.allocatable,
        }
    }

    /// See [`Runtime::refresh_volumes`](mirrorlet_runtime::Runtime::refresh_volumes).
    pub(super) async fn refresh(
        &self,
        pod: &Arc<Pod>,
        cancel: &CancellationToken,
    ) -> Result<Option<Duration>, SyncError> {
        let objects = tokio::select! {
            objects = self.pod_objects(pod) => objects,
            () = cancel.cancelled() => return Ok(None),
        };
        let (payloads, room) = tokio::select! {
            made = self.payloads(pod, &objects) => made,
            () = cancel.cancelled() => return Ok(None),
        };
        let (for_disk, memory) = (Arc::clone(pod), self.node.memory_bytes);
        let refreshed = self.on_disk(move |volumes| {
            let refreshed = volumes.refresh(&for_disk, &payloads, memory);
            drop((payloads, room));
            Ok(refreshed)
        });
        match refreshed.await {
            Ok(Ok(written)) if written.is_empty() => {}
            Ok(Ok(written)) => {
                self.telemetry
                    .about(pod, |of| occurrences::volumes_refreshed(of, &written));
            }
            Ok(Err(error)) => return Err(mount_error(&error)),
            Err(error) => return Err(config_error(error)),
        }
        self.look_for_volumes(pod, &objects).await;
        let now = Timestamp::now();
        Ok(objects.refresh_at().map(|at| {
            let left = Duration::try_from(at.duration_since(now)).unwrap_or_default();
            left.max(TOKEN_LOOK_MIN)
        }))
    }

    /// Runs disk I/O on a thread that may block.
    pub(super) async fn on_disk<T: Send + 'static>(
        &self,
        f: impl FnOnce(&VolumeManager) -> Result<T, VolumeError> + Send + 'static,
    ) -> RuntimeResult<T> {
        let volumes = self.volumes.clone();
        tokio::task::spawn_blocking(move || f(&volumes))
            .await
            .map_err(|_| RuntimeError::Local("the agent is shutting down".to_owned()))?
            .map_err(|error| RuntimeError::Local(error.to_string()))
    }

    /// Creates and bind-mounts the container's sub-paths, and returns the pod's volumes with them.
    /// Reads the files of its variables itself.
    pub(super) async fn subpaths(
        &self,
        input: &ContainerInput<'_>,
        mut map: VolumeMap,
    ) -> Result<VolumeMap, SyncError> {
        let mounts = input.container.volume_mounts.iter().flatten();
        if !mounts.clone().any(has_sub_path) {
            return Ok(map);
        }
        let environment = {
            // Not held below, where the disk may hang.
            let (env_files, _room) = self.env_files(input.pod, input.container).await?;
            let input = ContainerInput {
                env_files: Some(&env_files),
                ..*input
            };
            input.environment().map_err(config_error)?.by_name()
        };
        let (pod, name) = (input.pod.clone(), input.container.name.clone());
        self.on_disk(move |volumes| {
            volumes.ensure_subpaths(&pod, &name, &environment, &mut map)?;
            Ok(map)
        })
        .await
        .map_err(config_error)
    }

    /// Reads the files of a container's variables, and the room that they take.
    pub(super) async fn env_files(
        &self,
        pod: &Pod,
        container: &Container,
    ) -> Result<(EnvFiles, Taken), SyncError> {
        let wanted: Vec<FileKeySelector> = env_files(container).cloned().collect();
        if wanted.is_empty() {
            return Ok((EnvFiles::new(), None));
        }
        let uid = PodUid::of(pod);
        let read = || {
            let (uid, wanted) = (uid.clone(), wanted.clone());
            self.on_disk(move |volumes| volumes.env_files(&uid, &wanted))
        };
        let read = self.env_room.read(ENV_FILES_BYTES_MAX, read, env_bytes_of);
        read.await.map_err(config_error)
    }
}

/// Fails if a pod that does not exist yet has too many sub-paths.
pub(super) fn check_mounts(pod: &Pod) -> Result<(), SyncError> {
    check_sub_paths(pod).map_err(|error| {
        SyncError::new(SyncErrorReason::FailedMount, error.to_string())
            .of_field(|| fields::container(pod, &error.container))
    })
}

/// The approximate memory of files in bytes.
fn bytes_of(payloads: &Payloads) -> usize {
    let made = payloads.values().flatten();
    let files = made.flat_map(Payload::files);
    let bytes = files.map(|(path, file)| FILE_BYTES + path.len() + file.data.len());
    bytes.sum()
}

/// The approximate memory of files of variables in bytes.
fn env_bytes_of(files: &EnvFiles) -> usize {
    let texts = files
        .values()
        .map(|text| text.as_ref().map_or(0, String::len));
    let bytes = texts.map(|text| FILE_BYTES + text);
    bytes.sum()
}

fn has_claims(pod: &Pod) -> bool {
    let mut volumes = spec::spec(pod).volumes.iter().flatten();
    volumes.any(|volume| spec::claim_name(pod, volume).is_some())
}

/// Logs the volumes that keep their old content.
fn report_kept_volumes(telemetry: &Telemetry, pod: &Pod, volumes: &VolumeMap) {
    for (volume, error) in &volumes.kept {
        let message = format!(
            "failed to update volume {volume:?}, which keeps its previous content: {error}"
        );
        telemetry.about(pod, |of| occurrences::note(of, FAILED_MOUNT, &message));
    }
}

fn mount_error(error: &VolumeError) -> SyncError {
    let reason = if error.is_of_device() {
        SyncErrorReason::FailedMapVolume
    } else {
        SyncErrorReason::FailedMount
    };
    SyncError::new(reason, error.to_string())
}

pub(super) fn config_error(error: impl std::fmt::Display) -> SyncError {
    SyncError::new(
        SyncErrorReason::CreateContainerConfigError,
        error.to_string(),
    )
}
