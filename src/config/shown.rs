//! What `config show` prints of the settings.

use std::path::Path;

use serde::Serialize;

use super::key::{Key, ROWS};
use super::{Config, Origin, Resolved, ServingCertificate, duration, node, parse};

impl Config {
    /// The values of one setting, as `config show` prints them: what may be secret is not shown.
    #[must_use]
    pub fn shown(&self, key: Key) -> Vec<String> {
        let path = |path: &Path| vec![path.display().to_string()];
        let list = |ips: &[std::net::IpAddr]| ips.iter().map(ToString::to_string).collect();
        match key {
            Key::Root => path(&self.root),
            Key::Manifests => path(&self.manifests),
            Key::ManifestUrls => self.manifest_urls.clone(),
            Key::ManifestUrlHeaders => self
                .manifest_url_headers
                .iter()
                .map(|(name, _)| format!("{name}: <redacted>"))
                .collect(),
            Key::ManifestUrlCa => self
                .manifest_url_ca
                .as_deref()
                .map(path)
                .unwrap_or_default(),
            Key::UrlPeriod => vec![duration::render(self.url_period)],
            Key::RescanPeriod => vec![duration::render(self.rescan_period)],
            Key::Settle => vec![duration::render(self.settle)],
            Key::Docker => vec![self.docker.clone()],
            Key::NodeName => vec![self.node_name.to_string()],
            Key::NodeIps => list(&self.node_ips),
            Key::Kubeconfig => vec![self.kubeconfig.to_string()],
            Key::BootstrapKubeconfig => self
                .bootstrap_kubeconfig
                .as_deref()
                .map(path)
                .unwrap_or_default(),
            Key::NodeLabels => self
                .node_labels
                .iter()
                .map(|(key, value)| format!("{key}={value}"))
                .collect(),
            Key::RegisterWithTaints => match self.register_with_taints.as_slice() {
                [] => vec!["none".to_owned()],
                taints => taints.iter().map(node::taint_text).collect(),
            },
            Key::SystemReserved => self.system_reserved.shown(),
            Key::MaxPods => vec![self.max_pods.to_string()],
            Key::PodInfraImage => self.pod_infra_image.iter().cloned().collect(),
            Key::ClusterDns => list(&self.cluster_dns),
            Key::ClusterDomain => vec![self.cluster_domain.clone()],
            Key::ResolvConf => path(&self.resolv_conf),
            Key::Network => vec![
                self.network
                    .clone()
                    .unwrap_or_else(|| parse::DEFAULT_NETWORK.to_owned()),
            ],
            Key::CgroupRoot => vec![self.cgroup_root.clone()],
            Key::PodLogsDir => vec![
                self.pod_logs_dir
                    .as_deref()
                    .map_or_else(|| "none".to_owned(), |dir| dir.display().to_string()),
            ],
            Key::HostRoot => self.host_root.as_deref().map(path).unwrap_or_default(),
            Key::MetricsAddress => vec![
                self.metrics_address
                    .map_or_else(|| "none".to_owned(), |address| address.to_string()),
            ],
            Key::NodeApiAddress => vec![self.node_api.address.to_string()],
            Key::NodeApiPort => vec![self.node_api.port.unwrap_or(0).to_string()],
            Key::ClientCaFile => self
                .node_api
                .client_ca_file
                .as_deref()
                .map(path)
                .unwrap_or_default(),
            Key::TlsCertFile => match &self.node_api.certificate {
                ServingCertificate::Files { certificate, .. } => path(certificate),
                ServingCertificate::SelfSigned | ServingCertificate::Requested => Vec::new(),
            },
            Key::TlsPrivateKeyFile => match &self.node_api.certificate {
                ServingCertificate::Files { key, .. } => path(key),
                ServingCertificate::SelfSigned | ServingCertificate::Requested => Vec::new(),
            },
            Key::RotateServerCertificates => {
                let requested = self.node_api.certificate == ServingCertificate::Requested;
                vec![requested.to_string()]
            }
            Key::MaxContainerBackoff => vec![duration::render(self.max_container_backoff)],
            Key::MinimumContainerTtlDuration => {
                vec![duration::render(
                    self.container_gc.minimum_container_ttl_duration,
                )]
            }
            Key::MaximumDeadContainersPerContainer => {
                vec![
                    self.container_gc
                        .maximum_dead_containers_per_container
                        .to_string(),
                ]
            }
            Key::MaximumDeadContainers => {
                vec![self.container_gc.maximum_dead_containers.to_string()]
            }
            Key::EngineConcurrency => vec![self.engine_concurrency.to_string()],
            Key::PullConcurrency => vec![self.pull_concurrency.to_string()],
            Key::SerializeImagePulls => vec![self.serialize_image_pulls.to_string()],
            Key::DockerConfig => match &self.docker_config {
                Some(directory) => path(directory),
                None => vec!["none".to_owned()],
            },
            Key::ImageGc => vec![self.image_gc.as_str().to_owned()],
            Key::ImageGcHighThreshold => vec![self.image_gc_high_threshold.to_string()],
            Key::ImageGcLowThreshold => vec![self.image_gc_low_threshold.to_string()],
            Key::MinimumImageTtlDuration => vec![duration::render(self.minimum_image_ttl)],
            Key::MaximumImageGcAge => vec![duration::render(self.maximum_image_gc_age)],
            Key::SweepPeriod => vec![duration::render(self.sweep_period)],
            Key::LogFormat => vec![self.log_format.as_str().to_owned()],
            Key::LogLevel => vec![self.log_level.clone()],
        }
    }
}

/// One row of `config show`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ShownSetting {
    /// Which setting.
    pub key: Key,
    /// Its values; empty when it has none.
    pub values: Vec<String>,
    /// Where they came from.
    pub origin: String,
}

impl Resolved {
    /// Every setting with its values and origin, nothing secret among them.
    #[must_use]
    pub fn show(&self) -> Vec<ShownSetting> {
        ROWS.iter()
            .map(|row| ShownSetting {
                key: row.key,
                values: self.config.shown(row.key),
                origin: self
                    .provenance
                    .get(&row.key)
                    .unwrap_or(&Origin::Default)
                    .to_string(),
            })
            .collect()
    }
}
