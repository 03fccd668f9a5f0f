//! The config file: YAML or JSON, every key optional, unknown keys refused.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::key::{Key, ROWS, Setting, SettingRow};
use super::{ImageGcMode, LogFormat};

/// Largest config file that is read, in bytes; an honest one has a few hundred.
pub const CONFIG_FILE_MAX: usize = 1 << 20;

/// What a config file may say. Durations are texts such as `20s` or `1m30s`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(title = "mirrorlet config file")]
pub struct ConfigFile {
    /// Root directory: lock, socket, last good manifests, pod directories.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root: Option<String>,
    /// Manifest directory; `<root>/manifests` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub manifests: Option<String>,
    /// URLs that serve manifests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub manifest_urls: Option<Vec<String>>,
    /// Headers sent with every request to a manifest URL, each as `Name: value`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub manifest_url_headers: Option<Vec<String>>,
    /// PEM file of the CAs trusted for https manifest URLs, beside the system's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub manifest_url_ca: Option<String>,
    /// How often a manifest URL is asked, for example `20s`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url_period: Option<String>,
    /// How often the manifest directory is read though nothing changed, for example `1m`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rescan_period: Option<String>,
    /// How long the manifest directory must be quiet before it is read, at most `50ms`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub settle: Option<String>,
    /// Address of the Docker Engine, for example `unix:///var/run/docker.sock`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub docker: Option<String>,
    /// Name of the node; `<hostname>-docker` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_name: Option<String>,
    /// Addresses of the node, primary first; found out when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_ips: Option<Vec<String>>,
    /// Kubeconfig of the API server; `in-cluster` for the account of the agent's own pod; `none`
    /// for no API server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kubeconfig: Option<String>,
    /// Kubeconfig that a first client certificate is requested with, where that of `kubeconfig` is
    /// missing or its certificate has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bootstrap_kubeconfig: Option<String>,
    /// Labels of the Node in the API server, each as `key=value`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_labels: Option<Vec<String>>,
    /// Taints the Node is registered with, each as `key=value:Effect`; `none` for no taint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub register_with_taints: Option<Vec<String>>,
    /// What of the machine is not for pods, each as `resource=quantity`, of `cpu`, `memory` and
    /// `ephemeral-storage`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system_reserved: Option<Vec<String>>,
    /// Most pods the Node takes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_pods: Option<u32>,
    /// Image of the pods' sandbox containers; the embedded one when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_infra_image: Option<String>,
    /// DNS servers of the cluster, for `dnsPolicy: ClusterFirst`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster_dns: Option<Vec<String>>,
    /// DNS domain of the cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster_domain: Option<String>,
    /// File of the resolver settings that pods have from the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resolv_conf: Option<String>,
    /// Docker network of the pods, which must exist; `bridge` for the Engine's default one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<String>,
    /// cgroup under which pods live; empty for the Engine's own default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cgroup_root: Option<String>,
    /// Where links to the containers' logs are made in kubelet's layout; `none` for nowhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_logs_dir: Option<String>,
    /// Where the host's file system is mounted for an agent in a container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_root: Option<String>,
    /// Where metrics, health and readiness are served, as `IP:PORT`; `none` for nowhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metrics_address: Option<String>,
    /// Where the node API is served; `::` for IPv6 too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_api_address: Option<String>,
    /// Port of the node API; 0 for no node API.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_api_port: Option<u32>,
    /// PEM file of the CAs whose client certificates the node API believes; those that the API
    /// server publishes when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_ca_file: Option<String>,
    /// PEM file of the node API's certificate and its intermediates; self-signed when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls_cert_file: Option<String>,
    /// PEM file of the private key of `tlsCertFile`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls_private_key_file: Option<String>,
    /// Whether the node API's certificate is requested from the cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rotate_server_certificates: Option<bool>,
    /// Longest wait before a crashing container is restarted, `1s` to `5m`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_container_backoff: Option<String>,
    /// Least age of a dead container before it is removed, for example `1h`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub minimum_container_ttl_duration: Option<String>,
    /// Most dead instances kept of each container of a pod; negative for any number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub maximum_dead_containers_per_container: Option<i32>,
    /// Most dead instances kept on the node; negative for any number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub maximum_dead_containers: Option<i32>,
    /// Most Engine calls that change something at a time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub engine_concurrency: Option<u32>,
    /// Most image pulls at a time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pull_concurrency: Option<u32>,
    /// Whether images are pulled one after the other, whatever `pullConcurrency` says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serialize_image_pulls: Option<bool>,
    /// Directory of the `config.json` with the node's registry credentials; `none` for none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub docker_config: Option<String>,
    /// Which images are removed when nobody needs them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_gc: Option<ImageGcMode>,
    /// From which share of the Engine's disk on images are removed, in percent; 100 for never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_gc_high_threshold: Option<u32>,
    /// Down to which share of the disk they are removed, in percent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_gc_low_threshold: Option<u32>,
    /// An image known for less is not removed for its space, for example `2m`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub minimum_image_ttl_duration: Option<String>,
    /// An image unused for longer is removed though there is space; `0s` for no such age.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub maximum_image_gc_age: Option<String>,
    /// How often all containers are listed though the event stream is whole, for example `5m`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sweep_period: Option<String>,
    /// How log lines look.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log_format: Option<LogFormat>,
    /// Which log lines are written: a level, or target=level directives.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log_level: Option<String>,
}

/// Why a config file can't be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigFileError {
    /// It can't be read.
    #[error("failed to read the config file {path}: {cause}")]
    Unreadable {
        /// The file.
        path: String,
        /// The system's words.
        cause: String,
    },
    /// It is larger than [`CONFIG_FILE_MAX`].
    #[error("the config file {path} is larger than 1 MiB")]
    TooLarge {
        /// The file.
        path: String,
    },
    /// It is not YAML, or holds an unknown key or a value of the wrong type.
    #[error("{path}{}: {message}", .line.map(|line| format!(":{line}")).unwrap_or_default())]
    Invalid {
        /// The file.
        path: String,
        /// The line, from 1, where known.
        line: Option<u64>,
        /// What is wrong, with the key.
        message: String,
    },
}

/// A parsed config file that still knows where each key stood.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct LocatedFile {
    /// Path as given.
    pub path: String,
    /// What it says.
    pub file: ConfigFile,
    /// Line of each top-level key, from 1.
    pub lines: BTreeMap<Key, u64>,
}

impl LocatedFile {
    /// Parses the text of the file at `path`. An empty file says nothing.
    pub fn parse(path: &str, text: &str) -> Result<Self, ConfigFileError> {
        if text.len() > CONFIG_FILE_MAX {
            return Err(ConfigFileError::TooLarge {
                path: path.to_owned(),
            });
        }
        let file = if is_blank(text) {
            ConfigFile::default()
        } else {
            parse_yaml(path, text)?
        };
        let lines = ROWS
            .iter()
            .filter_map(|row| Some((row.key, line_of(text, row.name)?)))
            .collect();
        Ok(Self {
            path: path.to_owned(),
            file,
            lines,
        })
    }
}

/// Reads and parses the file at `path`.
pub fn read(path: &std::path::Path) -> Result<LocatedFile, ConfigFileError> {
    let shown = path.display().to_string();
    let text = std::fs::read_to_string(path).map_err(|e| ConfigFileError::Unreadable {
        path: shown.clone(),
        cause: e.to_string(),
    })?;
    LocatedFile::parse(&shown, &text)
}

/// Whether a text is only white space, comments and document markers.
fn is_blank(text: &str) -> bool {
    text.lines()
        .map(str::trim)
        .all(|line| line.is_empty() || line.starts_with('#') || line == "---" || line == "...")
}

fn parse_yaml(path: &str, text: &str) -> Result<ConfigFile, ConfigFileError> {
    serde_saphyr::from_str(text).map_err(|error| {
        let error = error.without_snippet();
        let line = error.location().map(|l| l.line()).filter(|line| *line > 0);
        // The parser's words may end with the place, which goes in front here.
        let words = error.to_string();
        let words = words
            .split(" at line ")
            .next()
            .unwrap_or(&words)
            .trim_end_matches([',', ' ']);
        let key = line.and_then(|line| {
            let stands_there = |row: &&SettingRow| line_of(text, row.name) == Some(line);
            ROWS.iter().find(stands_there)
        });
        ConfigFileError::Invalid {
            path: path.to_owned(),
            line,
            message: key.map_or_else(|| words.to_owned(), |row| format!("{}: {words}", row.name)),
        }
    })
}

/// The line on which a top-level key stands, in block YAML or in JSON.
fn line_of(text: &str, key: &str) -> Option<u64> {
    let at = text.lines().position(|line| {
        let line = line.trim_start_matches([' ', '{', '\t', ',']);
        line.trim_start_matches(['"', '\''])
            .strip_prefix(key)
            .is_some_and(|rest| {
                rest.trim_start_matches(['"', '\''])
                    .trim_start()
                    .starts_with(':')
            })
    })?;
    u64::try_from(at + 1).ok()
}

impl ConfigFile {
    /// The settings it makes, in their text form.
    #[must_use]
    pub fn settings(&self) -> BTreeMap<Key, Setting> {
        let one = |value: &Option<String>| value.clone().map(|v| Setting(vec![v]));
        let many = |value: &Option<Vec<String>>| value.clone().map(Setting);
        let number = |value: Option<u32>| value.map(|v| Setting(vec![v.to_string()]));
        let signed = |value: Option<i32>| value.map(|v| Setting(vec![v.to_string()]));
        let flag = |value: Option<bool>| value.map(|v| Setting(vec![v.to_string()]));
        // Taken apart in full, so that a new field can't be forgotten.
        let Self {
            root,
            manifests,
            manifest_urls,
            manifest_url_headers,
            manifest_url_ca,
            url_period,
            rescan_period,
            settle,
            docker,
            node_name,
            node_ips,
            kubeconfig,
            bootstrap_kubeconfig,
            node_labels,
            register_with_taints,
            system_reserved,
            max_pods,
            pod_infra_image,
            cluster_dns,
            cluster_domain,
            resolv_conf,
            network,
            cgroup_root,
            pod_logs_dir,
            host_root,
            metrics_address,
            node_api_address,
            node_api_port,
            client_ca_file,
            tls_cert_file,
            tls_private_key_file,
            rotate_server_certificates,
            max_container_backoff,
            minimum_container_ttl_duration,
            maximum_dead_containers_per_container,
            maximum_dead_containers,
            engine_concurrency,
            pull_concurrency,
            serialize_image_pulls,
            docker_config,
            image_gc,
            image_gc_high_threshold,
            image_gc_low_threshold,
            minimum_image_ttl_duration,
            maximum_image_gc_age,
            sweep_period,
            log_format,
            log_level,
        } = self;
        [
            (Key::Root, one(root)),
            (Key::Manifests, one(manifests)),
            (Key::ManifestUrls, many(manifest_urls)),
            (Key::ManifestUrlHeaders, many(manifest_url_headers)),
            (Key::ManifestUrlCa, one(manifest_url_ca)),
            (Key::UrlPeriod, one(url_period)),
            (Key::RescanPeriod, one(rescan_period)),
            (Key::Settle, one(settle)),
            (Key::Docker, one(docker)),
            (Key::NodeName, one(node_name)),
            (Key::NodeIps, many(node_ips)),
            (Key::Kubeconfig, one(kubeconfig)),
            (Key::BootstrapKubeconfig, one(bootstrap_kubeconfig)),
            (Key::NodeLabels, many(node_labels)),
            (Key::RegisterWithTaints, many(register_with_taints)),
            (Key::SystemReserved, many(system_reserved)),
            (Key::MaxPods, number(*max_pods)),
            (Key::PodInfraImage, one(pod_infra_image)),
            (Key::ClusterDns, many(cluster_dns)),
            (Key::ClusterDomain, one(cluster_domain)),
            (Key::ResolvConf, one(resolv_conf)),
            (Key::Network, one(network)),
            (Key::CgroupRoot, one(cgroup_root)),
            (Key::PodLogsDir, one(pod_logs_dir)),
            (Key::HostRoot, one(host_root)),
            (Key::MetricsAddress, one(metrics_address)),
            (Key::NodeApiAddress, one(node_api_address)),
            (Key::NodeApiPort, number(*node_api_port)),
            (Key::ClientCaFile, one(client_ca_file)),
            (Key::TlsCertFile, one(tls_cert_file)),
            (Key::TlsPrivateKeyFile, one(tls_private_key_file)),
            (
                Key::RotateServerCertificates,
                flag(*rotate_server_certificates),
            ),
            (Key::MaxContainerBackoff, one(max_container_backoff)),
            (
                Key::MinimumContainerTtlDuration,
                one(minimum_container_ttl_duration),
            ),
            (
                Key::MaximumDeadContainersPerContainer,
                signed(*maximum_dead_containers_per_container),
            ),
            (Key::MaximumDeadContainers, signed(*maximum_dead_containers)),
            (Key::EngineConcurrency, number(*engine_concurrency)),
            (Key::PullConcurrency, number(*pull_concurrency)),
            (Key::SerializeImagePulls, flag(*serialize_image_pulls)),
            (Key::DockerConfig, one(docker_config)),
            (
                Key::ImageGc,
                image_gc.map(|mode| Setting(vec![mode.as_str().to_owned()])),
            ),
            (Key::ImageGcHighThreshold, number(*image_gc_high_threshold)),
            (Key::ImageGcLowThreshold, number(*image_gc_low_threshold)),
            (
                Key::MinimumImageTtlDuration,
                one(minimum_image_ttl_duration),
            ),
            (Key::MaximumImageGcAge, one(maximum_image_gc_age)),
            (Key::SweepPeriod, one(sweep_period)),
            (
                Key::LogFormat,
                log_format.map(|f| Setting(vec![f.as_str().to_owned()])),
            ),
            (Key::LogLevel, one(log_level)),
        ]
        .into_iter()
        .filter_map(|(key, setting)| Some((key, setting?)))
        .collect()
    }

    /// The JSON schema of the file, pretty-printed.
    #[must_use]
    pub fn schema() -> String {
        let schema = schemars::schema_for!(Self);
        let mut text = serde_json::to_string_pretty(&schema).unwrap_or_default();
        text.push('\n');
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_is_in_the_schema_and_every_schema_key_is_in_the_table() {
        let schema: serde_json::Value = serde_json::from_str(&ConfigFile::schema()).unwrap();
        let mut in_schema: Vec<&str> = schema["properties"]
            .as_object()
            .unwrap()
            .keys()
            .map(String::as_str)
            .collect();
        let mut in_table: Vec<&str> = ROWS.iter().map(|r| r.name).collect();
        in_schema.sort_unstable();
        in_table.sort_unstable();
        assert_eq!(in_schema, in_table);
    }

    /// Regenerate with `mirrorlet config schema > docs/config-schema.json`, or by running this
    /// test with `UPDATE_SCHEMA=1`.
    #[test]
    fn the_committed_schema_is_current() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/config-schema.json");
        if std::env::var_os("UPDATE_SCHEMA").is_some() {
            std::fs::write(path, ConfigFile::schema()).unwrap();
        }
        let committed = std::fs::read_to_string(path).unwrap();
        assert_eq!(
            committed,
            ConfigFile::schema(),
            "run: mirrorlet config schema > docs/config-schema.json"
        );
    }

    #[test]
    fn yaml_and_json_say_the_same() {
        let yaml = LocatedFile::parse("c", "# mine\nsettle: 10ms\nnodeIps: [10.0.0.1]\n").unwrap();
        let json = LocatedFile::parse(
            "c",
            "{\n\n  \"settle\": \"10ms\", \"nodeIps\": [\"10.0.0.1\"]}",
        )
        .unwrap();
        assert_eq!(yaml.file, json.file);
        assert_eq!(yaml.lines[&Key::Settle], 2);
        assert_eq!(json.lines[&Key::Settle], 3);
        assert_eq!(
            LocatedFile::parse("c", "").unwrap().file,
            ConfigFile::default()
        );
        assert_eq!(
            LocatedFile::parse("c", "# x\n---\n").unwrap().file,
            ConfigFile::default()
        );
    }

    #[test]
    fn faults_name_file_line_and_key() {
        for (text, line, word) in [
            ("root: /x\nsetle: 10ms\n", 2, "setle"),
            (
                "root: /x\nengineConcurrency: many\n",
                2,
                "engineConcurrency",
            ),
            ("root: /x\nlogFormat: xml\n", 2, "xml"),
            ("root: [\n", 1, "root"),
        ] {
            let error = LocatedFile::parse("/etc/m.yaml", text).unwrap_err();
            let words = error.to_string();
            assert!(
                words.starts_with(&format!("/etc/m.yaml:{line}: ")) && words.contains(word),
                "{words}"
            );
        }
    }
}
