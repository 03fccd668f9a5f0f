//! Answers of the fake Engine, in the models of the real one.

use std::collections::{BTreeMap, HashMap};

use bollard::models::{
    ContainerConfig, ContainerInspectResponse, ContainerState, ContainerSummary,
    ContainerSummaryHostConfig, ContainerSummaryStateEnum, ContainerdInfo, EndpointSettings,
    ImageConfig, ImageInspect, ImageSummary, MountPoint, NetworkSettings, PortSummary, SystemInfo,
};

use super::super::engine::EngineVersion;
use super::super::image::digest;
use super::state::{FakeContainer, FakeImage, Phase, State};
use mirrorlet_core::api::Timestamp;

/// The Engine's text for a time that is not set.
const ZERO_TIME: &str = "0001-01-01T00:00:00Z";

pub(super) fn version() -> EngineVersion {
    EngineVersion {
        version: "20.10.24+dfsg1".to_owned(),
        api_version: (1, 41),
    }
}

pub(super) fn info(state: &State) -> SystemInfo {
    let count = |n: usize| i64::try_from(n).ok();
    let running = state
        .containers
        .iter()
        .filter(|c| c.phase == Phase::Running);
    SystemInfo {
        id: Some("FAKE".to_owned()),
        containers: count(state.containers.len()),
        containers_running: count(running.count()),
        images: count(state.images.len()),
        server_version: Some(version().version),
        docker_root_dir: Some(state.root_dir.clone()),
        logging_driver: Some("json-file".to_owned()),
        driver_status: state.containerd.as_ref().map(|_| {
            let pair = ["driver-type", "io.containerd.snapshotter.v1"];
            vec![pair.map(str::to_owned).to_vec()]
        }),
        containerd: state.containerd.as_ref().map(|address| ContainerdInfo {
            address: Some(address.clone()),
            ..ContainerdInfo::default()
        }),
        ..SystemInfo::default()
    }
}

/// The id of an image: the configured one, or a hash of its name.
pub(super) fn image_id(name: &str, image: &FakeImage) -> String {
    if image.id.is_empty() {
        digest(name.as_bytes())
    } else {
        image.id.clone()
    }
}

/// All images, each with all its names.
pub(super) fn images(state: &State) -> Vec<ImageSummary> {
    let mut by_id: BTreeMap<String, ImageSummary> = BTreeMap::new();
    for (name, image) in &state.images {
        let id = image_id(name, image);
        let summary = by_id.entry(id.clone()).or_insert_with(|| ImageSummary {
            id,
            parent_id: image.parent.clone(),
            size: image.size,
            ..ImageSummary::default()
        });
        summary.repo_tags.push(name.clone());
        summary.repo_digests.extend(image.repo_digest.clone());
    }
    by_id.into_values().collect()
}

fn id_of(state: &State, container: &FakeContainer) -> String {
    let found = state.image(container.image());
    found.map_or_else(
        || digest(container.image().as_bytes()),
        |(name, image)| image_id(name, image),
    )
}

/// Newest first, as the real one lists.
pub(super) fn list(state: &State, owner: &str) -> Vec<ContainerSummary> {
    let all = state.containers.iter().rev();
    all.filter(|c| c.is_owned_by(owner))
        .map(|c| summary(state, c))
        .collect()
}

/// Running containers that publish a port.
pub(super) fn publishers(state: &State, port: u16) -> Vec<ContainerSummary> {
    let all = state
        .containers
        .iter()
        .filter(|c| c.phase == Phase::Running);
    all.filter_map(|container| {
        let ports: Vec<PortSummary> = published(container)
            .filter(|published| published.public_port == Some(port))
            .collect();
        (!ports.is_empty()).then(|| ContainerSummary {
            ports: Some(ports),
            ..summary(state, container)
        })
    })
    .collect()
}

/// The ports of the host that a container was to publish; the protocol is left out.
fn published(container: &FakeContainer) -> impl Iterator<Item = PortSummary> {
    let host = container.body.host_config.as_ref();
    let bindings = host.and_then(|host| host.port_bindings.as_ref());
    let bindings = bindings.into_iter().flat_map(|all| all.values().flatten());
    bindings.flatten().filter_map(|binding| {
        Some(PortSummary {
            public_port: Some(binding.host_port.as_deref()?.parse().ok()?),
            ..PortSummary::default()
        })
    })
}

fn summary(state: &State, container: &FakeContainer) -> ContainerSummary {
    let image_id = id_of(state, container);
    let (state, status) = match container.phase {
        Phase::Created => (ContainerSummaryStateEnum::CREATED, "Created".to_owned()),
        Phase::Running => (
            ContainerSummaryStateEnum::RUNNING,
            "Up Less than a second".to_owned(),
        ),
        Phase::Exited => (
            ContainerSummaryStateEnum::EXITED,
            format!("Exited ({}) 1 second ago", container.exit_code),
        ),
    };
    ContainerSummary {
        id: Some(container.id.clone()),
        names: Some(vec![format!("/{}", container.name)]),
        image: Some(container.image().to_owned()),
        image_id: Some(image_id),
        created: Some(container.created.as_second()),
        labels: container.body.labels.clone(),
        state: Some(state),
        status: Some(status),
        host_config: Some(ContainerSummaryHostConfig {
            network_mode: Some(container.network_mode().to_owned()),
            ..ContainerSummaryHostConfig::default()
        }),
        network_settings: Some(bollard::models::ContainerSummaryNetworkSettings {
            networks: Some(networks(container)),
        }),
        ..ContainerSummary::default()
    }
}

fn networks(container: &FakeContainer) -> HashMap<String, EndpointSettings> {
    if container.network_mode().starts_with("container:") {
        return HashMap::new();
    }
    let name = match container.network_mode() {
        "default" => "bridge",
        other => other,
    };
    let endpoint = EndpointSettings {
        ip_address: Some(container.ip.clone().unwrap_or_default()),
        ..EndpointSettings::default()
    };
    HashMap::from([(name.to_owned(), endpoint)])
}

/// The mounts of the request.
fn mounts(container: &FakeContainer) -> Vec<MountPoint> {
    let host = container.body.host_config.as_ref();
    let asked = host.and_then(|h| h.mounts.as_deref()).unwrap_or_default();
    asked
        .iter()
        .map(|mount| MountPoint {
            source: mount.source.clone(),
            destination: mount.target.clone(),
            ..MountPoint::default()
        })
        .collect()
}

pub(super) fn inspect(state: &State, container: &FakeContainer) -> ContainerInspectResponse {
    let time = |t: Option<Timestamp>| t.map_or(ZERO_TIME.to_owned(), |t| t.to_string());
    let running = container.phase == Phase::Running;
    ContainerInspectResponse {
        id: Some(container.id.clone()),
        created: Some(container.created.to_string()),
        name: Some(format!("/{}", container.name)),
        image: Some(id_of(state, container)),
        state: Some(ContainerState {
            status: Some(container.status()),
            running: Some(running),
            paused: Some(false),
            restarting: Some(false),
            oom_killed: Some(container.oom_killed),
            dead: Some(false),
            pid: Some(container.pid),
            exit_code: Some(container.exit_code),
            error: Some(container.error.clone()),
            started_at: Some(time(container.started)),
            finished_at: Some(time(container.finished)),
            health: None,
        }),
        restart_count: Some(0),
        mounts: Some(mounts(container)),
        log_path: Some(format!(
            "/var/lib/docker/containers/{0}/{0}-json.log",
            container.id
        )),
        resolv_conf_path: Some(format!(
            "/var/lib/docker/containers/{}/resolv.conf",
            container.id
        )),
        host_config: container.body.host_config.clone(),
        config: Some(ContainerConfig {
            hostname: container.body.hostname.clone(),
            user: container.body.user.clone(),
            env: container.body.env.clone(),
            cmd: container.body.cmd.clone(),
            entrypoint: container.body.entrypoint.clone(),
            image: container.body.image.clone(),
            tty: Some(container.body.tty.unwrap_or(false)),
            labels: container.body.labels.clone(),
            working_dir: container.body.working_dir.clone(),
            ..ContainerConfig::default()
        }),
        network_settings: Some(NetworkSettings {
            networks: Some(networks(container)),
            ..NetworkSettings::default()
        }),
        ..ContainerInspectResponse::default()
    }
}

pub(super) fn image(state: &State, name: &str, image: &FakeImage) -> ImageInspect {
    let id = image_id(name, image);
    let names = state.images.iter().filter(|(n, i)| image_id(n, i) == id);
    ImageInspect {
        repo_tags: Some(names.map(|(name, _)| name.clone()).collect()),
        id: Some(id),
        repo_digests: Some(image.repo_digest.iter().cloned().collect()),
        size: Some(image.size),
        config: Some(ImageConfig {
            user: Some(image.user.clone()),
            ..ImageConfig::default()
        }),
        ..ImageInspect::default()
    }
}
