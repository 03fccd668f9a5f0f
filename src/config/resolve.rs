//! Flags, environment, file and defaults → one [`Config`], with the origin of every value.
//!
//! Pure: what the process sees of its surroundings is an argument. All faults are reported at
//! once, each with the place it has to be mended at.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;

use super::file::LocatedFile;
use super::key::{Arity, Key, Setting};
use super::{
    ApiAccess, Config, ContainerGc, DEFAULT_RESOLV_CONF, DEFAULT_ROOT, ImageGcMode, LogFormat,
    NodeApi, ServingCertificate, node, parse,
};
use mirrorlet_core::api::NodeName;
use mirrorlet_core::api::core::Taint;

/// Environment variable that names the Engine when ours does not: Docker's own.
const DOCKER_HOST: &str = "DOCKER_HOST";

/// Longest time that dead containers may be asked to be kept: a year.
const TTL_MAX: Duration = Duration::from_hours(365 * 24);
/// Environment variable that names the client's configuration when ours does not: Docker's own.
const DOCKER_CONFIG: &str = "DOCKER_CONFIG";

/// Where root is at home, when nobody says.
const ROOT_HOME: &str = "/root";

/// Port of the node API: a kubelet's, plus 100, so that one can run beside us.
const NODE_API_PORT: u16 = 10350;

/// Largest number of pods a Node may say it takes: ten times what a kubelet takes.
const MAX_PODS_MAX: usize = 1100;

/// What the process sees around itself.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Ambient {
    /// Environment variables.
    pub env: BTreeMap<String, String>,
    /// Name of the host.
    pub hostname: String,
    /// Current directory, which relative paths count from.
    pub cwd: PathBuf,
}

/// Where a value came from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Origin {
    /// A flag on the command line.
    Flag,
    /// This environment variable.
    Env(String),
    /// The config file, as `path:line`.
    File(String),
    /// Nobody set it.
    Default,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag => f.write_str("flag"),
            Self::Env(name) => write!(f, "env {name}"),
            Self::File(place) => write!(f, "file {place}"),
            Self::Default => f.write_str("default"),
        }
    }
}

/// A configuration, and where each of its values came from.
#[derive(Debug, Clone, PartialEq)]
pub struct Resolved {
    /// The values.
    pub config: Config,
    /// Where they came from; every key is in it.
    pub provenance: BTreeMap<Key, Origin>,
}

/// Everything wrong with a configuration, one line a fault.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.join("\n"))]
pub struct ConfigFaults(pub Vec<String>);

/// Decides every value: flag, else environment, else file, else default.
///
/// # Errors
/// Any value given on the rung that counts is not valid; all such faults together.
pub fn resolve(
    flags: &BTreeMap<Key, Setting>,
    file: Option<&LocatedFile>,
    ambient: &Ambient,
) -> Result<Resolved, ConfigFaults> {
    let mut rungs = Rungs::new(flags, file, ambient);
    let config = rungs.config();
    let Rungs {
        provenance, faults, ..
    } = rungs;
    if faults.is_empty() {
        Ok(Resolved { config, provenance })
    } else {
        Err(ConfigFaults(faults))
    }
}

/// The root directory alone, for commands that only talk to an agent.
pub fn resolve_root(
    flags: &BTreeMap<Key, Setting>,
    file: Option<&LocatedFile>,
    ambient: &Ambient,
) -> Result<PathBuf, ConfigFaults> {
    let mut rungs = Rungs::new(flags, file, ambient);
    let root = rungs.root();
    if rungs.faults.is_empty() {
        Ok(root)
    } else {
        Err(ConfigFaults(rungs.faults))
    }
}

struct Rungs<'a> {
    flags: &'a BTreeMap<Key, Setting>,
    file: Option<&'a LocatedFile>,
    file_settings: BTreeMap<Key, Setting>,
    ambient: &'a Ambient,
    provenance: BTreeMap<Key, Origin>,
    faults: Vec<String>,
}

impl<'a> Rungs<'a> {
    fn new(
        flags: &'a BTreeMap<Key, Setting>,
        file: Option<&'a LocatedFile>,
        ambient: &'a Ambient,
    ) -> Self {
        Self {
            flags,
            file,
            file_settings: file.map(|f| f.file.settings()).unwrap_or_default(),
            ambient,
            provenance: BTreeMap::new(),
            faults: Vec::new(),
        }
    }

    /// The setting of the highest rung that has one.
    fn pick(&self, key: Key) -> (Option<Setting>, Origin) {
        if let Some(setting) = self.flags.get(&key) {
            return (Some(setting.clone()), Origin::Flag);
        }
        if let Some((setting, name)) = self.env_setting(key) {
            return (Some(setting), Origin::Env(name));
        }
        if let (Some(file), Some(setting)) = (self.file, self.file_settings.get(&key)) {
            let place = file
                .lines
                .get(&key)
                .map_or_else(|| file.path.clone(), |line| format!("{}:{line}", file.path));
            return (Some(setting.clone()), Origin::File(place));
        }
        (None, Origin::Default)
    }

    /// An empty variable counts as not set, as is the habit of unit files and container specs;
    /// only `cgroupRoot` can be set to nothing, and for it the empty text has a meaning.
    fn env_setting(&self, key: Key) -> Option<(Setting, String)> {
        let row = key.row();
        let names: &[&str] = match key {
            Key::Docker => &[row.env, DOCKER_HOST],
            Key::DockerConfig => &[row.env, DOCKER_CONFIG],
            _ => &[row.env],
        };
        names.iter().find_map(|name| {
            let text = self.ambient.env.get(*name)?;
            if text.is_empty() && key != Key::CgroupRoot {
                return None;
            }
            let values = match row.arity {
                Arity::One => vec![text.clone()],
                Arity::Many(separator) => text
                    .split(separator)
                    .map(str::trim)
                    .filter(|part| !part.is_empty())
                    .map(str::to_owned)
                    .collect(),
            };
            Some((Setting(values), (*name).to_owned()))
        })
    }

    fn fault(&mut self, key: Key, origin: &Origin, words: &str) {
        let place = match origin {
            Origin::Flag => format!("--{}", key.row().flag),
            Origin::Env(name) => name.clone(),
            Origin::File(place) => format!("{place}: {}", key.name()),
            Origin::Default => format!("the default of {}", key.name()),
        };
        self.faults.push(format!("{place}: {words}"));
    }

    /// One value; `default` when no rung has one, or the one that counts is not valid.
    fn one<T>(&mut self, key: Key, default: T, parse: impl Fn(&str) -> Result<T, String>) -> T {
        let (setting, origin) = self.pick(key);
        let parsed = setting.map(|setting| match setting.0.last() {
            Some(text) => parse(text),
            None => Err("no value".to_owned()),
        });
        let value = match parsed {
            None => default,
            Some(Ok(value)) => value,
            Some(Err(words)) => {
                self.fault(key, &origin, &words);
                default
            }
        };
        self.provenance.insert(key, origin);
        value
    }

    /// Any number of values; those that are not valid are left out and reported.
    fn many<T>(&mut self, key: Key, parse: impl Fn(&str) -> Result<T, String>) -> Vec<T> {
        let (setting, origin) = self.pick(key);
        let mut values = Vec::new();
        let texts = setting.unwrap_or_default().0;
        // Lists of the kubelet's flags are written with commas, and nothing in them has one.
        let parts = texts.iter().flat_map(|text| match key.row().arity {
            Arity::Many(',') => text.split(',').collect(),
            Arity::Many(_) | Arity::One => vec![text.as_str()],
        });
        for text in parts {
            match parse(text.trim()) {
                Ok(value) => values.push(value),
                Err(words) => self.fault(key, &origin, &words),
            }
        }
        self.provenance.insert(key, origin);
        values
    }

    fn taints(&mut self) -> Vec<Taint> {
        let key = Key::RegisterWithTaints;
        let given = self.pick(key).0.is_some();
        let taints: Vec<Taint> = self.many(key, node::taint).into_iter().flatten().collect();
        if let Some(doubled) = node::doubled_taint(&taints) {
            let (_, origin) = self.pick(key);
            self.fault(key, &origin, &format!("the taint {doubled} is given twice"));
        }
        if given {
            taints
        } else {
            node::default_taints()
        }
    }

    fn duration(&mut self, key: Key, default: Duration, from: Duration, to: Duration) -> Duration {
        self.one(key, default, |text| parse::duration_in(text, &(from..=to)))
    }

    /// The low threshold, which is not above the high one. One that nobody gave follows a high one
    /// that is below it.
    fn low_threshold(&mut self) -> u8 {
        let high = self
            .pick(Key::ImageGcHighThreshold)
            .0
            .and_then(|setting| parse::percent(setting.0.last()?).ok())
            .unwrap_or(85);
        self.one(Key::ImageGcLowThreshold, high.min(80), |text| {
            let low = parse::percent(text)?;
            if low > high {
                return Err(format!("{low} is above the high threshold, {high}"));
            }
            Ok(low)
        })
    }

    /// As Docker's own client has it: in the home of who runs it, unless something else is said.
    fn docker_config(&mut self) -> Option<PathBuf> {
        let home = self.ambient.env.get("HOME").filter(|home| !home.is_empty());
        let home = PathBuf::from(home.map_or(ROOT_HOME, String::as_str)).join(".docker");
        let cwd = self.ambient.cwd.clone();
        self.one(Key::DockerConfig, Some(home), |text| match text {
            "none" => Ok(None),
            _ => parse::path(text, &cwd).map(Some),
        })
    }

    fn node_api(&mut self) -> NodeApi {
        let cwd = self.ambient.cwd.clone();
        let file = |text: &str| parse::path(text, &cwd).map(Some);
        let certificate = self.one(Key::TlsCertFile, None, file);
        let key = self.one(Key::TlsPrivateKeyFile, None, file);
        let requested = self.one(Key::RotateServerCertificates, false, parse::boolean);
        let certificate = match (certificate, key) {
            (Some(certificate), Some(key)) => ServingCertificate::Files { certificate, key },
            (Some(_), None) => {
                let (_, origin) = self.pick(Key::TlsCertFile);
                self.fault(
                    Key::TlsCertFile,
                    &origin,
                    "its key has to be named too, with tlsPrivateKeyFile",
                );
                ServingCertificate::default()
            }
            (None, Some(_)) => {
                let (_, origin) = self.pick(Key::TlsPrivateKeyFile);
                self.fault(
                    Key::TlsPrivateKeyFile,
                    &origin,
                    "its certificate has to be named too, with tlsCertFile",
                );
                ServingCertificate::default()
            }
            (None, None) if requested => ServingCertificate::Requested,
            (None, None) => ServingCertificate::SelfSigned,
        };
        if requested && certificate != ServingCertificate::Requested {
            let (_, origin) = self.pick(Key::RotateServerCertificates);
            self.fault(
                Key::RotateServerCertificates,
                &origin,
                "a certificate is either requested or named with tlsCertFile",
            );
        }
        NodeApi {
            address: self.one(Key::NodeApiAddress, IpAddr::from([0, 0, 0, 0]), parse::ip),
            port: self.one(Key::NodeApiPort, Some(NODE_API_PORT), parse::port),
            client_ca_file: self.one(Key::ClientCaFile, None, file),
            certificate,
        }
    }

    fn kubeconfig(&mut self) -> ApiAccess {
        let cwd = self.ambient.cwd.clone();
        self.one(Key::Kubeconfig, ApiAccess::None, |text| {
            node::api_access(text, &cwd)
        })
    }

    fn bootstrap_kubeconfig(&mut self) -> Option<PathBuf> {
        let cwd = self.ambient.cwd.clone();
        let file = self.one(Key::BootstrapKubeconfig, None, |text| {
            parse::path(text, &cwd).map(Some)
        })?;
        if !matches!(self.kubeconfig(), ApiAccess::Kubeconfig(_)) {
            let (_, origin) = self.pick(Key::BootstrapKubeconfig);
            self.fault(
                Key::BootstrapKubeconfig,
                &origin,
                "the kubeconfig that is to be written has to be named too, with kubeconfig",
            );
        }
        Some(file)
    }

    fn root(&mut self) -> PathBuf {
        let cwd = self.ambient.cwd.clone();
        self.one(Key::Root, PathBuf::from(DEFAULT_ROOT), |text| {
            parse::path(text, &cwd)
        })
    }

    fn config(&mut self) -> Config {
        const HOUR: Duration = Duration::from_hours(1);
        const SECOND: Duration = Duration::from_secs(1);
        let secs = Duration::from_secs;
        let cwd = self.ambient.cwd.clone();
        let root = self.root();
        let node_name = parse::default_node_name(&self.ambient.hostname);
        let metrics = ([127, 0, 0, 1], 10351).into();
        Config {
            manifests: self.one(Key::Manifests, root.join("manifests"), |text| {
                parse::path(text, &cwd)
            }),
            root,
            manifest_urls: self.many(Key::ManifestUrls, parse::url),
            manifest_url_headers: self.many(Key::ManifestUrlHeaders, parse::header),
            manifest_url_ca: self.one(Key::ManifestUrlCa, None, |text| {
                parse::path(text, &cwd).map(Some)
            }),
            url_period: self.duration(Key::UrlPeriod, secs(20), SECOND, HOUR),
            rescan_period: self.duration(Key::RescanPeriod, secs(60), SECOND, HOUR),
            // More than 50 ms would be felt between a save and its container.
            settle: self.duration(
                Key::Settle,
                Duration::from_millis(25),
                Duration::ZERO,
                Duration::from_millis(50),
            ),
            docker: self.one(
                Key::Docker,
                "unix:///var/run/docker.sock".to_owned(),
                parse::docker,
            ),
            node_name: self.one(Key::NodeName, NodeName::from(node_name), |text| {
                parse::subdomain(text).map(NodeName::from)
            }),
            node_ips: self.many(Key::NodeIps, parse::ip),
            kubeconfig: self.kubeconfig(),
            bootstrap_kubeconfig: self.bootstrap_kubeconfig(),
            node_labels: self
                .many(Key::NodeLabels, node::label)
                .into_iter()
                .collect(),
            register_with_taints: self.taints(),
            system_reserved: self
                .many(Key::SystemReserved, node::reservation)
                .into_iter()
                .collect(),
            max_pods: self.one(Key::MaxPods, 110, |text| {
                parse::number_in(text, &(1..=MAX_PODS_MAX))
            }),
            pod_infra_image: self.one(Key::PodInfraImage, None, |text| parse::word(text).map(Some)),
            cluster_dns: self.many(Key::ClusterDns, parse::ip),
            cluster_domain: self.one(
                Key::ClusterDomain,
                "cluster.local".to_owned(),
                parse::subdomain,
            ),
            resolv_conf: self.one(
                Key::ResolvConf,
                PathBuf::from(DEFAULT_RESOLV_CONF),
                |text| parse::path(text, &cwd),
            ),
            network: self.one(Key::Network, None, parse::network),
            cgroup_root: self.one(Key::CgroupRoot, String::new(), parse::cgroup),
            pod_logs_dir: self.one(Key::PodLogsDir, None, |text| match text {
                "none" => Ok(None),
                _ => parse::path(text, &cwd).map(Some),
            }),
            host_root: self.one(Key::HostRoot, None, |text| {
                parse::path(text, &cwd).map(Some)
            }),
            metrics_address: self.one(Key::MetricsAddress, Some(metrics), parse::address),
            node_api: self.node_api(),
            // Upstream's bounds of maxContainerRestartPeriod.
            max_container_backoff: self.duration(
                Key::MaxContainerBackoff,
                secs(300),
                SECOND,
                secs(300),
            ),
            container_gc: ContainerGc {
                minimum_container_ttl_duration: self.duration(
                    Key::MinimumContainerTtlDuration,
                    Duration::ZERO,
                    Duration::ZERO,
                    TTL_MAX,
                ),
                maximum_dead_containers_per_container: self.one(
                    Key::MaximumDeadContainersPerContainer,
                    1,
                    parse::signed,
                ),
                maximum_dead_containers: self.one(Key::MaximumDeadContainers, -1, parse::signed),
            },
            engine_concurrency: self.one(Key::EngineConcurrency, 16, |text| {
                parse::number_in(text, &(1..=256))
            }),
            pull_concurrency: self.one(Key::PullConcurrency, 3, |text| {
                parse::number_in(text, &(1..=64))
            }),
            serialize_image_pulls: self.one(Key::SerializeImagePulls, false, parse::boolean),
            docker_config: self.docker_config(),
            image_gc: self.one(Key::ImageGc, ImageGcMode::Pulled, parse::image_gc),
            image_gc_high_threshold: self.one(Key::ImageGcHighThreshold, 85, parse::percent),
            image_gc_low_threshold: self.low_threshold(),
            minimum_image_ttl: self.duration(
                Key::MinimumImageTtlDuration,
                secs(120),
                Duration::ZERO,
                24 * HOUR,
            ),
            maximum_image_gc_age: self.duration(
                Key::MaximumImageGcAge,
                Duration::ZERO,
                Duration::ZERO,
                366 * 24 * HOUR,
            ),
            sweep_period: self.duration(Key::SweepPeriod, secs(300), secs(5), HOUR),
            log_format: self.one(Key::LogFormat, LogFormat::Auto, parse::log_format),
            log_level: self.one(Key::LogLevel, "info".to_owned(), parse::word),
        }
    }
}

#[cfg(test)]
mod tests;
