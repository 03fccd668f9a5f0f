use std::path::Path;

use serde_json::{Value, json};

use super::*;
use mirrorlet_core::api::Pod;
use mirrorlet_core::log_limits::LogLimits;
use mirrorlet_core::objects::ObjectSet;
use mirrorlet_core::observed::Role;
use mirrorlet_core::spec;
use mirrorlet_core::volumes::VolumeMap;

mod containers;
mod devices;
mod dns;
mod naming;
mod requests;
mod sandboxes;

const OWNER: &str = "owner-1";
const SANDBOX: &str = "5a0dbox";

fn node() -> HostFacts {
    HostFacts {
        node_ips: vec!["192.0.2.1".parse().unwrap()],
        memory_bytes: 8 << 30,
        allocatable: Amounts {
            cpu_milli: 4000,
            memory_bytes: 8 << 30,
            ephemeral_storage_bytes: 64 << 30,
        },
        resolv_conf: ResolvConf::parse("nameserver 192.0.2.53\nsearch example.org\n"),
        hosts_file: "127.0.0.1 localhost\n192.0.2.1 box\n".to_owned(),
        cluster_dns: vec![],
        cluster_domain: "cluster.local".to_owned(),
        cgroup_root: "mirrorlet".to_owned(),
        seccomp_default: true,
        log_limits: Some(LogLimits::default()),
        ..HostFacts::default()
    }
}

fn engine() -> EngineFacts {
    EngineFacts {
        cgroup_driver: CgroupDriver::Cgroupfs,
        api_version: (1, 44),
        negative_oom_score: true,
        log_driver: Some("json-file"),
        app_armor: true,
        cdi: true,
    }
}

/// A pod `web` in `prod` with that spec.
fn pod(spec: &Value) -> Pod {
    serde_json::from_value(json!({
        "metadata": {"name": "web", "namespace": "prod", "uid": "u1"}, "spec": spec,
    }))
    .unwrap()
}

/// A pod with one container `c` of those fields, and those of the pod's spec.
fn one(container: &Value, more: &Value) -> Pod {
    let mut container = container.clone();
    container["name"] = json!("c");
    container["image"] = json!("web:1");
    let mut spec = json!({"containers": [container]});
    for (key, value) in more.as_object().into_iter().flatten() {
        spec[key] = value.clone();
    }
    pod(&spec)
}

fn sandbox_of(pod: &Pod) -> Result<Request, ConfigError> {
    sandbox_on(pod, &engine())
}

fn sandbox_on(pod: &Pod, engine: &EngineFacts) -> Result<Request, ConfigError> {
    sandbox_request(&SandboxInput {
        network_mode: "default",
        gateway: None,
        owner: OWNER,
        pod,
        attempt: 0,
        image: "pause:1",
        node: &node(),
        engine,
    })
}

/// The request of the pod's first container, with the input changed as wanted.
fn container_with(
    pod: &Pod,
    change: impl for<'a> FnOnce(ContainerInput<'a>) -> ContainerInput<'a>,
) -> Result<Request, ConfigError> {
    let (node, engine, volumes) = (node(), engine(), volumes());
    let objects = ObjectSet::default();
    container_request(&change(ContainerInput {
        owner: OWNER,
        pod,
        container: &spec::spec(pod).containers[0],
        role: Role::App,
        restart_count: 0,
        pod_restarts: 0,
        sandbox_id: SANDBOX,
        target: None,
        pod_ips: &["172.17.0.2".parse().unwrap()],
        volumes: &volumes,
        objects: &objects,
        env_files: None,
        image: Some(ImageFacts {
            id: "sha256:5678",
            name: "sha256:1234",
            user: "",
            status_id: "docker://sha256:5678",
        }),
        seccomp_json: None,
        termination_log: Some(Path::new("/root/pods/u1/containers/c/0a1b2c3d")),
        etc_hosts: Some(Path::new("/root/pods/u1/etc-hosts")),
        node: &node,
        engine: &engine,
    }))
}

fn container_of(pod: &Pod) -> Result<Request, ConfigError> {
    container_with(pod, |input| input)
}

fn volumes() -> VolumeMap {
    VolumeMap {
        volumes: [("data", "/srv/data"), ("cache", "/srv/cache")]
            .map(|(name, path)| (name.to_owned(), path.into()))
            .into(),
        subpaths: [(("c".to_owned(), 1), "/root/pods/u1/sub".into())].into(),
        ..VolumeMap::default()
    }
}

/// The request's JSON, keys in order.
fn json_of(request: &Request) -> Value {
    serde_json::to_value(&request.body).unwrap()
}

/// A value of the request's `HostConfig`.
fn host_config(request: &Request, key: &str) -> Value {
    json_of(request)["HostConfig"][key].clone()
}
