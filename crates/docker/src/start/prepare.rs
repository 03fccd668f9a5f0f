//! Prepares all of a pod's start that is possible without starting anything.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::path::PathBuf;
use std::sync::Arc;

use futures::future::try_join_all;
use tokio_util::sync::CancellationToken;

use super::super::files::{check_mounts, config_error};
use super::super::image::{EnsuredImage, PullPolicy};
use super::super::kill::reason_of;
use super::super::translate::{
    ContainerInput, EngineFacts, ImageFacts, SandboxInput, check_image_volume, container_request,
    sandbox_request, with_host_ports,
};
use super::images::of_image;
use super::sandbox::sandbox_error;
use super::{Starter, runtime_error};
use mirrorlet_core::api::core::Container;
use mirrorlet_core::api::{Pod, PodUid, Timestamp};
use mirrorlet_core::credentials::{PullSecrets, pull_secrets};
use mirrorlet_core::fields;
use mirrorlet_core::objects::ObjectSet;
use mirrorlet_core::observed::Role;
use mirrorlet_core::resources::of_pod;
use mirrorlet_core::rollout::is_beside;
use mirrorlet_core::small::{SmallCollect, SmallSort};
use mirrorlet_core::spec;
use mirrorlet_core::volumes::{VolumeMap, has_sub_path};
use mirrorlet_runtime::{PodCheck, PullWhen, SyncError, SyncErrorReason};

/// Placeholder for a path, the id of a sandbox or its image, if that does not exist yet.
const NOT_MADE: &str = "/";
/// Stand-in for the pod's address.
const NO_ADDRESS: [IpAddr; 1] = [IpAddr::V4(Ipv4Addr::UNSPECIFIED)];

impl Starter {
    /// See [`Runtime::prepare_pod`](mirrorlet_runtime::Runtime::prepare_pod).
    pub(crate) async fn prepare_start(
        &self,
        pod: &Arc<Pod>,
        stops: &[Arc<Pod>],
        cancel: &CancellationToken,
    ) -> Result<(), SyncError> {
        tokio::select! {
            prepared = self.prepared(pod, stops) => prepared,
            () = cancel.cancelled() => Err(super::container::cancelled()),
        }
    }

    async fn prepared(&self, pod: &Arc<Pod>, stops: &[Arc<Pod>]) -> Result<(), SyncError> {
        let objects = self.files.objects_now(pod).await;
        let facts = self.check_all_but_images(pod, stops, &objects).await?;
        self.facts.sandbox_image().await.map_err(|error| {
            let reason = reason_of(&error, SyncErrorReason::CreatePodSandboxError);
            SyncError::new(reason, error.to_string())
        })?;
        let secrets = pull_secrets(pod, &objects);
        let images = spec::containers(pod).map(|(role, container)| {
            let (secrets, objects, facts) = (&secrets, &objects, &facts);
            async move {
                let images = self.images(pod, container, None, secrets).await?;
                self.check_container(pod, role, container, &images.own, objects, facts)
                    .await
            }
        });
        try_join_all(images).await.map(|_| ())
    }

    /// See [`Runtime::pull_images`](mirrorlet_runtime::Runtime::pull_images).
    pub(crate) async fn pull_images(
        &self,
        pod: &Arc<Pod>,
        containers: &[String],
        when: PullWhen,
    ) -> Result<(), SyncError> {
        let objects = self.files.objects_now(pod).await;
        let secrets = pull_secrets(pod, &objects);
        let wanted = spec::containers(pod).filter(|(_, c)| containers.contains(&c.name));
        let ordered = match when {
            PullWhen::Policy => None,
            PullWhen::Now => Some(PullPolicy::Ordered),
        };
        let pulls = wanted.map(|(_, container)| self.images(pod, container, ordered, &secrets));
        try_join_all(pulls).await.map(|_| ())
    }

    /// See [`Runtime::check_pod`](mirrorlet_runtime::Runtime::check_pod).
    pub(crate) async fn check_start(
        &self,
        pod: &Arc<Pod>,
        stops: &[Arc<Pod>],
        objects: &ObjectSet,
    ) -> Result<PodCheck, SyncError> {
        let facts = self.check_all_but_images(pod, stops, objects).await?;
        let secrets = pull_secrets(pod, objects);
        let mut check = PodCheck::default();
        let uid = PodUid::of(pod);
        for (role, container) in spec::containers(pod) {
            for (volume, source) in spec::mounted_images(pod, container) {
                let of_volume = || fields::volume(pod, volume);
                check_image_volume(volume, &facts)
                    .map_err(|error| config_error(error).of_field(of_volume))?;
                let name = source.reference.as_deref().unwrap_or_default();
                let policy = PullPolicy::of_volume(source);
                let there = self.look_for(&uid, name, policy, &secrets, &mut check);
                if there.await.map_err(|e| e.of_field(of_volume))?.is_none() {
                    let unknown = format!("whether image {name} can be pulled");
                    check.unknown.push(unknown);
                }
            }
            let name = container.image.as_deref().unwrap_or_default();
            let policy = PullPolicy::of(container);
            let image = self.look_for(&uid, name, policy, &secrets, &mut check);
            let image = image.await.map_err(|e| of_image(e, pod, container))?;
            let Some(image) = image else {
                let container = &container.name;
                check.unknown.push(format!(
                    "whether image {name} can be pulled, and the user of container {container}"
                ));
                continue;
            };
            self.check_container(pod, role, container, &image, objects, &facts)
                .await?;
        }
        for list in [&mut check.pulls, &mut check.unknown] {
            list.small_sort();
            list.dedup();
        }
        Ok(check)
    }

    /// Looks for an image without pulling it: whether it is present, and its facts. Notes that it would
    /// be pulled. None if it is missing, but can be pulled.
    async fn look_for(
        &self,
        uid: &PodUid,
        name: &str,
        policy: PullPolicy,
        secrets: &PullSecrets,
        check: &mut PodCheck,
    ) -> Result<Option<EnsuredImage>, SyncError> {
        let (never, now) = (PullPolicy::Never, Timestamp::now());
        let there = self
            .images
            .ensure_image(uid, name, never, secrets, now, || {});
        let is_pulled = policy != PullPolicy::Never;
        match there.await {
            Ok(image) => {
                if policy == PullPolicy::Always {
                    let what = format!("whether the registry has a newer image for {name}");
                    check.unknown.push(what);
                    check.pulls.push(name.to_owned());
                }
                Ok(Some(image))
            }
            Err(error) if is_pulled && error.reason == SyncErrorReason::ErrImageNeverPull => {
                check.pulls.push(name.to_owned());
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Fails where the host or the Engine would refuse the pod, whatever its images are. Returns what
    /// the check of its containers needs.
    async fn check_all_but_images(
        &self,
        pod: &Arc<Pod>,
        stops: &[Arc<Pod>],
        objects: &ObjectSet,
    ) -> Result<EngineFacts, SyncError> {
        self.check_host(pod, stops, objects).await?;
        let facts = self.facts.engine_facts().await;
        let facts = facts.map_err(|error| runtime_error(&error))?;
        self.check_sandbox(pod, &facts).await?;
        Ok(facts)
    }

    /// Fails if the host doesn't meet the pod's requirements.
    async fn check_host(
        &self,
        pod: &Arc<Pod>,
        stops: &[Arc<Pod>],
        objects: &ObjectSet,
    ) -> Result<(), SyncError> {
        check_mounts(pod)?;
        self.files.check_volumes(pod, objects).await?;
        let for_disk = Arc::clone(pod);
        let checked = self
            .files
            .on_disk(move |volumes| Ok(volumes.check_host_paths(&for_disk)));
        let checked = checked.await.map_err(config_error)?;
        checked.map_err(|(volume, error)| {
            SyncError::new(SyncErrorReason::FailedMount, error.to_string())
                .of_field(|| fields::volume(pod, &volume))
        })?;
        self.check_host_ports(pod, &ports_to_bind(pod, stops)).await
    }

    /// Fails where one of the host's ports is taken, with its holder.
    async fn check_host_ports(
        &self,
        pod: &Pod,
        ports: &BTreeSet<HostPort>,
    ) -> Result<(), SyncError> {
        let Some((at, protocol)) = taken(ports) else {
            return Ok(());
        };
        let in_use = self.networks.port_in_use(at.port(), protocol).await;
        let field = || fields::host_port(pod, i32::from(at.port()), protocol);
        Err(sandbox_error(in_use).of_field(field))
    }

    /// Fails where the pod's sandbox could not be created.
    async fn check_sandbox(&self, pod: &Arc<Pod>, facts: &EngineFacts) -> Result<(), SyncError> {
        self.networks.check_network(pod).await?;
        if is_beside(pod) {
            self.networks.host_ports.check(pod).await?;
        }
        if of_pod(pod).is_some() {
            self.limit_cgroup(pod, facts.cgroup_driver).await?;
            self.remains.remove_cgroups(&PodUid::of(pod)).await;
        }
        let gateway = self.gateway_of(pod).await?;
        let node = self.networks.node_now(pod).await?;
        let request = sandbox_request(&SandboxInput {
            owner: &self.containers.owner,
            pod,
            attempt: 0,
            network_mode: self.networks.network.sandbox_mode(),
            gateway,
            image: NOT_MADE,
            node: &node,
            engine: facts,
        });
        request
            .map(|_| ())
            .map_err(|error| sandbox_error(error.to_string()))
    }

    /// Fails where a container of the pod could not be created from that image.
    async fn check_container(
        &self,
        pod: &Arc<Pod>,
        role: Role,
        container: &Container,
        image: &EnsuredImage,
        objects: &ObjectSet,
        facts: &EngineFacts,
    ) -> Result<(), SyncError> {
        let seccomp = self.seccomp_profile(pod, container).await;
        let request = container_request(&ContainerInput {
            owner: &self.containers.owner,
            pod,
            container,
            role,
            restart_count: 0,
            pod_restarts: 0,
            sandbox_id: NOT_MADE,
            target: None,
            pod_ips: &NO_ADDRESS,
            volumes: &volumes_of(pod, container),
            objects,
            env_files: None,
            image: Some(ImageFacts {
                id: &image.facts.id,
                name: &image.reference,
                user: image.facts.user.as_deref().unwrap_or_default(),
                status_id: NOT_MADE,
            }),
            seccomp_json: seccomp.as_deref(),
            termination_log: None,
            etc_hosts: None,
            node: &self.files.node,
            engine: facts,
        });
        let of_container = || fields::container(pod, &container.name);
        request
            .map(|_| ())
            .map_err(|error| config_error(error).of_field(of_container))
    }
}

/// The container's volumes as if they were made.
fn volumes_of(pod: &Pod, container: &Container) -> VolumeMap {
    let mut map = VolumeMap::default();
    for volume in spec::spec(pod).volumes.iter().flatten() {
        for map in [&mut map.volumes, &mut map.devices] {
            map.insert(volume.name.clone(), PathBuf::from(NOT_MADE));
        }
    }
    for (volume, _) in spec::mounted_images(pod, container) {
        map.images.insert(volume.to_owned(), NOT_MADE.to_owned());
    }
    let mounts = container.volume_mounts.iter().flatten().enumerate();
    for (index, _) in mounts.filter(|(_, mount)| has_sub_path(mount)) {
        let key = (container.name.clone(), index);
        map.subpaths.insert(key, PathBuf::from(NOT_MADE));
    }
    map
}

/// A port of the host, with its protocol.
type HostPort = (SocketAddr, String);

/// The host ports that a pod needs beside those of the pods that stop before it starts.
fn ports_to_bind(pod: &Pod, stops: &[Arc<Pod>]) -> BTreeSet<HostPort> {
    let ports = |pod: &Pod| -> BTreeSet<HostPort> {
        let all = with_host_ports(pod).flat_map(|c| c.ports.iter().flatten());
        all.filter_map(|port| {
            let number = u16::try_from(port.host_port?).ok().filter(|n| *n > 0)?;
            let ip = port.host_ip.as_deref().and_then(|ip| ip.parse().ok());
            let ip = ip.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
            let protocol = port.protocol.clone().unwrap_or_else(|| "TCP".to_owned());
            Some((SocketAddr::new(ip, number), protocol))
        })
        .collect_set()
    };
    let held: BTreeSet<HostPort> = stops.iter().flat_map(|pod| ports(pod)).collect_set();
    // On whatever address it holds the port: it goes first.
    let is_held = |(at, protocol): &HostPort| {
        held.iter()
            .any(|(held, of)| held.port() == at.port() && of == protocol)
    };
    ports(pod)
        .into_iter()
        .filter(|port| !is_held(port))
        .collect_set()
}

/// The first of the host's ports that is taken, as far as this process sees the host's network.
fn taken(ports: &BTreeSet<HostPort>) -> Option<&HostPort> {
    ports.iter().find(|(at, protocol)| {
        let bound = match protocol.as_str() {
            "TCP" => TcpListener::bind(at).map(|_| ()),
            "UDP" => UdpSocket::bind(at).map(|_| ()),
            _ => Ok(()),
        };
        bound.is_err_and(|error| error.kind() == io::ErrorKind::AddrInUse)
    })
}
