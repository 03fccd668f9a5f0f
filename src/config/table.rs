//! The table of everything that can be set, and what is made of it: [`Key`], [`Config`], the flags,
//! environment names and keys of the file, what `config show` prints, the schema and the docs.
//!
//! A row: key and field, with the name of its flag where that isn't the field's; its type; its kind,
//! which reads and shows it; what counts when nobody sets it; its help.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::LazyLock;
use std::time::Duration;

use heck::{ToKebabCase as _, ToLowerCamelCase as _, ToShoutySnakeCase as _};
use serde_json::Value;

use super::kinds::{self, Arity, Kind, NONE, boolean, docker, number, one_of, path, period};
use super::node::{self, ApiAccess, SystemReserved};
use super::resolve::{self, Rungs};
use super::{DEFAULT_RESOLV_CONF, ImageGcMode, LogFormat};
use mirrorlet_core::api::NodeName;
use mirrorlet_core::api::core::Taint;

/// Bounds of counts of which a negative one means any number.
const ANY: RangeInclusive<i32> = i32::MIN..=i32::MAX;
const MILLISECOND: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_mins(1);
const HOUR: Duration = Duration::from_hours(1);
const DAY: Duration = Duration::from_hours(24);

/// What counts where no rung sets a value.
#[derive(Clone, Copy)]
pub enum Fallback {
    /// This text.
    Text(&'static str),
    /// No value; with words where something else is found then.
    Absent(Option<&'static str>),
    /// A text that hangs on other settings or the surroundings, told by these words.
    Of(&'static str, fn(&Rungs<'_>) -> String),
}

impl Fallback {
    /// The words that help and docs have for it.
    #[must_use]
    pub fn words(self) -> Option<&'static str> {
        match self {
            Self::Text("") => None,
            Self::Text(words) | Self::Of(words, _) => Some(words),
            Self::Absent(words) => words,
        }
    }
}

/// One row of the table.
pub struct SettingRow {
    /// Which setting.
    pub key: Key,
    /// Key in the config file, which is also how messages name the setting.
    pub name: &'static str,
    /// Flag, without its dashes.
    pub flag: &'static str,
    /// Environment variable.
    pub env: &'static str,
    /// What the value is called in help.
    pub value: &'static str,
    /// How many values there may be.
    pub arity: Arity,
    /// JSON schema of the value, without its description and default.
    pub schema: Value,
    /// What counts where nobody sets it.
    pub fallback: Fallback,
    /// What it does, in one or two sentences.
    pub help: &'static str,
}

/// The values given for one setting by one rung, in their text form.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Setting(pub Vec<String>);

macro_rules! settings {
    ($($key:ident $field:ident $(--$flag:literal)?: $type:ty = $kind:expr, $fallback:expr, $help:literal;)*) => {
        #[expect(clippy::doc_markdown, reason = "help is plain text")]
        /// Everything that can be set, in the order `config show` prints.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Key { $(#[doc = $help] $key),* }

        #[expect(clippy::doc_markdown, reason = "help is plain text")]
        /// What the agent runs with: every value decided.
        #[derive(Debug, Clone, PartialEq)]
        pub struct Config { $(#[doc = $help] pub $field: $type),* }

        /// The table.
        pub static ROWS: LazyLock<Vec<SettingRow>> = LazyLock::new(|| {
            use Fallback::{Absent, Of, Text};
            vec![$({
                let flag: &[&str] = &[$($flag)?];
                let kind: Kind<$type> = $kind;
                row(Key::$key, stringify!($field), flag, (kind.value, kind.arity, kind.schema), $fallback, $help)
            }),*]
        });

        impl Config {
            /// Every value, by the rung that counts; none when one is faulty, which `rungs` notes.
            pub(super) fn by(rungs: &mut Rungs<'_>) -> Option<Self> {
                $(let $field = rungs.value(Key::$key, &$kind);)*
                Some(Self { $($field: $field?),* })
            }

            /// The values of one setting, as `config show` prints them: what may be secret is not
            /// shown.
            #[must_use]
            pub fn shown(&self, key: Key) -> Vec<String> {
                match key {
                    $(Key::$key => { let kind: Kind<$type> = $kind; kind.show(&self.$field) }),*
                }
            }
        }
    };
}

/// A row; its names follow from the field's, but for the flag of one that is given there in the
/// singular. They are kept as long as the program runs.
fn row(
    key: Key,
    field: &str,
    flag: &[&'static str],
    (value, arity, schema): (&'static str, Arity, Value),
    fallback: Fallback,
    help: &'static str,
) -> SettingRow {
    let flag = flag
        .first()
        .map_or_else(|| field.to_kebab_case(), |flag| (*flag).to_owned());
    SettingRow {
        key,
        name: field.to_lower_camel_case().leak(),
        env: format!("MIRRORLET_{}", flag.to_shouty_snake_case()).leak(),
        flag: flag.leak(),
        value,
        arity,
        schema,
        fallback,
        help,
    }
}

settings! {
    Root root: PathBuf = path("DIR"), Text("/var/lib/mirrorlet"),
        "Root directory: lock, socket, last good manifests, pod directories";
    Manifests manifests: PathBuf = path("DIR"), Of("<root>/manifests", resolve::manifests),
        "Manifest directory";
    ManifestUrls manifest_urls --"manifest-url": Vec<String> = kinds::url().list(' '), Absent(None),
        "URL that serves manifests; may be repeated";
    ManifestUrlHeaders manifest_url_headers --"manifest-url-header": Vec<(String, String)> = kinds::header().list('\n'), Absent(None),
        "Header sent with every request to a manifest URL; may be repeated. Its value is never shown";
    ManifestUrlCa manifest_url_ca: Option<PathBuf> = path("FILE").optional(), Absent(None),
        "PEM file of the CAs trusted for https manifest URLs, beside the system's";
    UrlPeriod url_period: Duration = period(SECOND, HOUR), Text("20s"),
        "How often a manifest URL is asked";
    RescanPeriod rescan_period: Duration = period(SECOND, HOUR), Text("1m"),
        "How often the manifest directory is read though nothing changed";
    // More than 50 ms would be felt between a save and its container.
    Settle settle: Duration = period(Duration::ZERO, 50 * MILLISECOND), Text("25ms"),
        "How long the manifest directory must be quiet before it is read, at most 50ms";
    Docker docker: String = docker(), Text("unix:///var/run/docker.sock"),
        "Docker Engine; DOCKER_HOST counts when MIRRORLET_DOCKER is not set";
    NodeName node_name: NodeName = kinds::domain("NAME").map(|name| Ok(NodeName::from(name)), NodeName::to_string),
        Of("<hostname>-docker", |rungs| kinds::default_node_name(&rungs.ambient.hostname)),
        "Name of the node, the suffix of every pod name";
    NodeIps node_ips --"node-ip": Vec<IpAddr> = kinds::ip().list(','), Absent(Some("found out")),
        "Address of the node, primary first; may be repeated";
    Kubeconfig kubeconfig: ApiAccess = node::api_access(), Text(NONE),
        "Kubeconfig of the API server; in-cluster for the account of the agent's own pod";
    BootstrapKubeconfig bootstrap_kubeconfig: Option<PathBuf> = path("FILE").optional(), Absent(None),
        "Kubeconfig that a first client certificate is requested with, where the one of --kubeconfig is missing or its certificate has ended; it is written then";
    NodeLabels node_labels: BTreeMap<String, String> = node::labels(), Absent(None),
        "Label of the Node in the API server; may be repeated";
    RegisterWithTaints register_with_taints: Vec<Taint> = node::taints(), Text(node::DEFAULT_TAINT),
        "Taint the Node is registered with; may be repeated; none for no taint";
    SystemReserved system_reserved: SystemReserved = node::reserved(), Absent(None),
        "cpu, memory or ephemeral-storage of the machine that is not for pods; may be repeated";
    // Ten times what a kubelet takes.
    MaxPods max_pods: usize = number("N", 1..=1100), Text("110"),
        "Most pods the Node takes";
    PodInfraImage pod_infra_image: Option<String> = kinds::word("IMAGE").optional(), Absent(Some("embedded in this program")),
        "Image of the pods' sandbox containers";
    ClusterDns cluster_dns: Vec<IpAddr> = kinds::ip().list(','), Absent(None),
        "DNS server of the cluster, for dnsPolicy ClusterFirst; may be repeated";
    ClusterDomain cluster_domain: String = kinds::domain("DOMAIN"), Text("cluster.local"),
        "DNS domain of the cluster";
    ResolvConf resolv_conf: PathBuf = path("FILE"), Text(DEFAULT_RESOLV_CONF),
        "Resolver settings that pods have from the node";
    Network network: Option<String> = kinds::network(), Text("bridge"),
        "Docker network of the pods, which must exist; bridge for the Engine's default one";
    CgroupRoot cgroup_root: String = kinds::cgroup(), Text(""),
        "cgroup under which pods live, instead of the Engine's own";
    PodLogsDir pod_logs_dir: Option<PathBuf> = path("DIR").or(NONE), Text(NONE),
        "Where links to the containers' logs are made in kubelet's layout, /var/log/pods for collectors that look there; none for nowhere";
    HostRoot host_root: Option<PathBuf> = path("DIR").optional(), Absent(Some("the agent's own, where the Engine has the same")),
        "Where the host's file system is mounted for an agent in a container, to check hostPath volumes; / says that it is the agent's own";
    MetricsAddress metrics_address: Option<SocketAddr> = kinds::address().or(NONE), Text("127.0.0.1:10351"),
        "Where /metrics, /healthz and /readyz are served; none for nowhere";
    NodeApiAddress node_api_address: IpAddr = kinds::ip(), Text("0.0.0.0"),
        "Where the node API is served, with an API server: kubectl logs, exec and top come there; :: for IPv6 too";
    // A kubelet's port plus 100, so that one can run beside us. Tests have the system choose: Some(0).
    NodeApiPort node_api_port: Option<u16> = kinds::port(), Text("10350"),
        "Port of the node API, told in the Node; 0 for no node API";
    ClientCaFile client_ca_file: Option<PathBuf> = path("FILE").optional(), Absent(Some("those that the API server publishes, if we may read them")),
        "PEM file of the CAs whose client certificates the node API believes";
    TlsCertFile tls_cert_file: Option<PathBuf> = path("FILE").optional(), Absent(Some("self-signed")),
        "PEM file of the node API's certificate and its intermediates; read again when it changes";
    TlsPrivateKeyFile tls_private_key_file: Option<PathBuf> = path("FILE").optional(), Absent(None),
        "PEM file of the private key of --tls-cert-file";
    RotateServerCertificates rotate_server_certificates: bool = boolean(), Text("false"),
        "true: the node API's certificate is requested from the cluster, signer kubernetes.io/kubelet-serving, once somebody approves it";
    // Upstream's bounds of maxContainerRestartPeriod.
    MaxContainerBackoff max_container_backoff: Duration = period(SECOND, 5 * MINUTE), Text("5m"),
        "Longest wait before a crashing container is restarted, 1s to 5m";
    MinimumContainerTtlDuration minimum_container_ttl_duration: Duration = period(Duration::ZERO, 365 * DAY), Text("0s"),
        "Least age of a dead container before it is removed";
    MaximumDeadContainersPerContainer maximum_dead_containers_per_container: i32 = number("N", ANY), Text("1"),
        "Most dead instances kept of each container of a pod; negative for any number";
    MaximumDeadContainers maximum_dead_containers: i32 = number("N", ANY), Text("-1"),
        "Most dead instances kept on the node; negative for any number";
    EngineConcurrency engine_concurrency: usize = number("N", 1..=256), Text("16"),
        "Most Engine calls that change something at a time";
    PullConcurrency pull_concurrency: usize = number("N", 1..=64), Text("3"),
        "Most image pulls at a time";
    SerializeImagePulls serialize_image_pulls: bool = boolean(), Text("false"),
        "true: one image pull at a time, whatever --pull-concurrency says";
    DockerConfig docker_config: Option<PathBuf> = path("DIR").or(NONE), Of("$HOME/.docker", resolve::docker_config),
        "Directory of the config.json with the node's registry credentials, none for none; DOCKER_CONFIG counts when MIRRORLET_DOCKER_CONFIG is not set";
    ImageGc image_gc: ImageGcMode = one_of("MODE", ImageGcMode::WORDS), Text("pulled"),
        "Which images are removed when nobody needs them: pulled (those that mirrorlet pulled), all, or off";
    ImageGcHighThreshold image_gc_high_threshold: u8 = number("PERCENT", 0..=100), Text("85"),
        "From which share of the Engine's disk on images are removed; 100 for never";
    ImageGcLowThreshold image_gc_low_threshold: u8 = number("PERCENT", 0..=100), Of("80", resolve::low_threshold),
        "Down to which share of the disk they are removed";
    MinimumImageTtlDuration minimum_image_ttl_duration: Duration = period(Duration::ZERO, DAY), Text("2m"),
        "An image known for less is not removed for its space";
    MaximumImageGcAge maximum_image_gc_age: Duration = period(Duration::ZERO, 366 * DAY), Text("0s"),
        "An image unused for longer is removed though there is space; 0s for no such age";
    SweepPeriod sweep_period: Duration = period(5 * SECOND, HOUR), Text("5m"),
        "How often all containers are listed though the event stream is whole";
    LogFormat log_format: LogFormat = one_of("FORMAT", LogFormat::WORDS), Text("auto"),
        "auto (text on a terminal, JSON elsewhere), text or json";
    LogLevel log_level: String = kinds::word("FILTER"), Text("info"),
        "error, warn, info, debug, or target=level directives";
}

impl Key {
    /// The row of this setting.
    #[must_use]
    pub fn row(self) -> &'static SettingRow {
        // The rows stand in the order of the keys.
        &ROWS[self as usize]
    }

    /// The key in the config file, which is also how messages name the setting.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// Docker's own variable, which counts where ours isn't set.
    pub(super) fn variable_of_docker(self) -> Option<&'static str> {
        match self {
            Self::Docker => Some("DOCKER_HOST"),
            Self::DockerConfig => Some("DOCKER_CONFIG"),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_are_regular_and_unique() {
        let (mut names, mut flags, mut envs) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        for row in &*ROWS {
            assert!(std::ptr::eq(row.key.row(), row));
            let plain = |text: &str| text.replace('-', "").to_lowercase();
            assert_eq!(
                plain(row.name).trim_end_matches('s'),
                plain(row.flag).trim_end_matches('s')
            );
            assert!(names.insert(row.name) && flags.insert(row.flag) && envs.insert(row.env));
            assert!(!row.help.ends_with('.'), "{}", row.flag);
        }
    }
}
