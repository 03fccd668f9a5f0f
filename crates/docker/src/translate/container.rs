//! The create request of an app or init container.
//!
//! Upstream: `generateContainerConfig` of `pkg/kubelet/kuberuntime/kuberuntime_container.go`,
//! cri-dockerd `core/container_create.go`.

use std::net::IpAddr;
use std::path::Path;

use bollard::models::{ContainerCreateBody, HostConfig, HostConfigLogConfig};

use mirrorlet_core::api::core::Container;
use mirrorlet_core::api::{FullName, Pod, PodUid};
use mirrorlet_core::env::{self, EnvContext, EnvError, EnvFiles, Environment};
use mirrorlet_core::log_limits::log_limits;
use mirrorlet_core::objects::ObjectSet;
use mirrorlet_core::observed::Role;
use mirrorlet_core::resources::QUOTA_PERIOD;
use mirrorlet_core::spec;
use mirrorlet_core::volumes::VolumeMap;

use super::sandbox::{SHM_SIZE, never_restart, no_healthcheck};
use super::{
    ConfigError, EngineFacts, HostFacts, Note, Request, devices, labels, mounts, names, resources,
    security,
};

/// Reason of the note that keys of `envFrom` were left out.
const INVALID_NAMES: &str = "InvalidEnvironmentVariableNames";

/// The facts about a container's image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImageFacts<'a> {
    /// The Engine's id of it.
    pub id: &'a str,
    /// The name by which it was found, as in `docker ps`.
    pub name: &'a str,
    /// `Config.User` of the image; empty for root.
    pub user: &'a str,
    /// How the container's status names it (`imageID`).
    pub status_id: &'a str,
}

/// The inputs of a container's creation request.
#[derive(Debug, Clone, Copy)]
pub struct ContainerInput<'a> {
    /// Our owner id.
    pub owner: &'a str,
    /// The pod.
    pub pod: &'a Pod,
    /// The container.
    pub container: &'a Container,
    /// Its role.
    pub role: Role,
    /// How many instances of that name came before.
    pub restart_count: u32,
    /// How many times all containers of the pod were restarted in place before.
    pub pod_restarts: u32,
    /// Full id of the sandbox.
    pub sandbox_id: &'a str,
    /// Full id of the target container whose processes it should see.
    pub target: Option<&'a str>,
    /// Addresses of the pod; those of the node for a pod in the host's network.
    pub pod_ips: &'a [IpAddr],
    /// The paths to which its mounts are bound.
    pub volumes: &'a VolumeMap,
    /// The API server's objects that the pod refers to.
    pub objects: &'a ObjectSet,
    /// The files with its variables; none before the pod runs.
    pub env_files: Option<&'a EnvFiles>,
    /// Its image; if none, the spec's reference is sent and the Engine chooses the user.
    pub image: Option<ImageFacts<'a>>,
    /// Content of the profile's file if [`security::seccomp_wanted`] is `Localhost`; none if it can't
    /// be read.
    pub seccomp_json: Option<&'a str>,
    /// File its termination message is written to.
    pub termination_log: Option<&'a Path>,
    /// File to mount at `/etc/hosts`; none while the pod has no address.
    pub etc_hosts: Option<&'a Path>,
    /// The node.
    pub node: &'a HostFacts,
    /// The Engine.
    pub engine: &'a EngineFacts,
}

impl ContainerInput<'_> {
    /// The container's environment. `subPathExpr` is expanded against it.
    pub fn environment(&self) -> Result<Environment, ConfigError> {
        Ok(env::resolve(self.container, &self.env_context())?)
    }

    fn env_context(&self) -> EnvContext<'_> {
        let in_host = spec::is_host_network(self.pod) && self.pod_ips.is_empty();
        EnvContext {
            pod: self.pod,
            host_ips: &self.node.node_ips,
            pod_ips: if in_host {
                &self.node.node_ips
            } else {
                self.pod_ips
            },
            allocatable: self.node.allocatable,
            objects: self.objects,
            files: self.env_files,
        }
    }
}

/// A note of the keys that can't be variables, if there are any.
///
/// Upstream, until 1.33: `InvalidEnvironmentVariableNames` of `pkg/kubelet/kubelet_pods.go`.
fn skipped_names(container: &Container, environment: &Environment) -> Option<Note> {
    let skipped: Vec<&str> = environment.skipped.iter().map(String::as_str).collect();
    (!skipped.is_empty()).then(|| Note {
        reason: INVALID_NAMES,
        message: format!(
            "keys of envFrom in container {} are not valid variable names and were skipped: {}",
            container.name,
            skipped.join(", ")
        ),
    })
}

/// Builds the create request of an app or init container.
pub fn container_request(input: &ContainerInput<'_>) -> Result<Request, ConfigError> {
    let (pod, container) = (input.pod, input.container);
    if spec::spec(pod).host_users == Some(false) {
        return Err(ConfigError::UserNamespace);
    }
    let image_user = input.image.map(|image| image.user);
    security::verify_run_as_non_root(pod, container, image_user)?;
    security::verify_groups(pod, container)?;
    let environment = input.environment()?;
    let (command, args) = environment
        .command_and_args(container)
        .map_err(EnvError::from)?;
    let image = match input.image {
        // The image that runs must be the one that was verified, although its tag may move
        // meanwhile.
        Some(image) if security::relies_on_image_user(pod, container) => image.id,
        Some(image) => image.name,
        None => container.image.as_deref().unwrap_or_default(),
    };
    let body = ContainerCreateBody {
        user: security::container_user(pod, container, image_user),
        attach_stdin: Some(false),
        attach_stdout: Some(false),
        attach_stderr: Some(false),
        tty: Some(container.tty.unwrap_or(false)),
        open_stdin: Some(container.stdin.unwrap_or(false)),
        stdin_once: Some(container.stdin_once.unwrap_or(false)),
        env: Some(
            environment
                .variables()
                .iter()
                .map(|(name, value)| format!("{name}={value}"))
                .collect(),
        ),
        entrypoint: (!command.is_empty()).then_some(command),
        cmd: (!args.is_empty()).then_some(args),
        image: Some(image.to_owned()),
        working_dir: container.working_dir.clone().filter(|dir| !dir.is_empty()),
        stop_signal: container
            .lifecycle
            .as_ref()
            .and_then(|l| l.stop_signal.clone()),
        healthcheck: Some(no_healthcheck()),
        labels: Some(labels::container_labels(
            input.owner,
            pod,
            container,
            input.role,
            labels::Restarts {
                own: input.restart_count,
                of_pod: input.pod_restarts,
            },
            input.sandbox_id,
            input.image.map(|i| i.status_id).unwrap_or_default(),
        )),
        host_config: Some(host_config(input)?),
        ..ContainerCreateBody::default()
    };
    let name = names::container_name(
        &container.name,
        &FullName::of(pod),
        &PodUid::of(pod),
        input.restart_count,
    );
    Ok(Request {
        name,
        body,
        notes: skipped_names(container, &environment)
            .into_iter()
            .chain(devices::ignored_annotation(pod))
            .collect(),
    })
}

fn host_config(input: &ContainerInput<'_>) -> Result<HostConfig, ConfigError> {
    let (pod, container) = (input.pod, input.container);
    let sandbox = format!("container:{}", input.sandbox_id);
    let limits = resources::container_limits(pod, container);
    let score = resources::oom_score_adj(pod, container, input.role, input.node);
    let own = container.security_context.as_ref();
    let capabilities = own.and_then(|s| s.capabilities.as_ref());
    let masked_paths = security::masked_paths(container);
    Ok(HostConfig {
        network_mode: Some(sandbox.clone()),
        ipc_mode: Some(sandbox.clone()),
        uts_mode: spec::is_host_network(pod).then(|| "host".to_owned()),
        pid_mode: input
            .target
            .map(|id| format!("container:{id}"))
            .or_else(|| pid_mode(pod, sandbox)),
        cgroup_parent: resources::cgroup_parent(
            pod,
            &input.node.cgroup_root,
            input.engine.cgroup_driver,
        ),
        cpu_shares: Some(limits.cpu_shares),
        cpu_period: limits.cpu_quota.map(|_| QUOTA_PERIOD),
        cpu_quota: limits.cpu_quota,
        memory: limits.memory,
        memory_swap: limits.memory,
        oom_score_adj: Some(resources::allowed_oom_score(score, input.engine)),
        shm_size: Some(SHM_SIZE),
        mounts: Some(mounts::mounts(
            container,
            input.volumes,
            input.etc_hosts,
            input.termination_log,
            input.engine,
        )?),
        devices: devices::devices(container, input.volumes)?,
        device_requests: devices::cdi_requests(pod, input.engine)?,
        binds: Some(mounts::binds(container, input.volumes, input.engine)?)
            .filter(|binds| !binds.is_empty()),
        cap_add: capabilities.and_then(|c| c.add.clone()),
        cap_drop: capabilities.and_then(|c| c.drop.clone()),
        group_add: security::group_add(pod),
        privileged: Some(security::is_privileged(container)),
        readonly_rootfs: Some(
            own.and_then(|s| s.read_only_root_filesystem)
                .unwrap_or(false),
        ),
        security_opt: Some(security::security_opts(
            pod,
            container,
            input.node.seccomp_default,
            input.seccomp_json,
            input.engine,
        )?),
        readonly_paths: masked_paths.clone(),
        masked_paths,
        restart_policy: Some(never_restart()),
        log_config: log_config(input)?,
        ..HostConfig::default()
    })
}

/// Log driver and options; none leaves both to the Engine. Drivers that don't rotate files would
/// refuse the options.
///
/// Upstream: `containerLogManager` of `pkg/kubelet/logs/container_log_manager.go`.
fn log_config(input: &ContainerInput<'_>) -> Result<Option<HostConfigLogConfig>, ConfigError> {
    let limits = log_limits(input.pod, input.node.log_limits).map_err(ConfigError::LogLimits)?;
    let (Some(limits), Some(driver)) = (limits, input.engine.log_driver) else {
        return Ok(None);
    };
    let options = [
        ("max-size", limits.max_size.to_string()),
        ("max-file", limits.max_files.to_string()),
    ];
    Ok(Some(HostConfigLogConfig {
        typ: Some(driver.to_owned()),
        config: Some(options.map(|(key, value)| (key.to_owned(), value)).into()),
    }))
}

fn pid_mode(pod: &Pod, sandbox: String) -> Option<String> {
    let pod_spec = spec::spec(pod);
    if pod_spec.host_pid == Some(true) {
        Some("host".to_owned())
    } else if pod_spec.share_process_namespace == Some(true) {
        Some(sandbox)
    } else {
        None
    }
}
