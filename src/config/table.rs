//! The table of all settings. [`Key`], [`Config`], flags, environment variables, keys of the config
//! file, `config show`, the schema and the docs are generated from it.
//!
//! A row: key and field, with the name of its flag if that differs; its type; its kind, which parses
//! and formats it; its default; its help.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::LazyLock;
use std::time::Duration;

use heck::{ToKebabCase as _, ToLowerCamelCase as _, ToShoutySnakeCase as _};
use serde_json::Value;

use super::eviction;
use super::kinds::{self, Arity, Kind, NONE, boolean, docker, number, one_of, path, period};
use super::node::{self, ApiAccess};
use super::resolve::{self, SettingSources};
use super::{DEFAULT_RESOLV_CONF, ImageGcMode, LogFormat};
use mirrorlet_core::amounts::Amounts;
use mirrorlet_core::api::NodeName;
use mirrorlet_core::api::core::Taint;
use mirrorlet_core::eviction::{Amount, Signal};
use mirrorlet_core::image_access::{AllowedImages, VerificationPolicy};
use mirrorlet_core::log_limits;

/// Bounds of counts where a negative number means no limit.
const ANY: RangeInclusive<i32> = i32::MIN..=i32::MAX;
const MILLISECOND: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_mins(1);
const HOUR: Duration = Duration::from_hours(1);
const DAY: Duration = Duration::from_hours(24);

/// The default of a setting.
#[derive(Clone, Copy)]
pub enum Fallback {
    /// This text.
    Text(&'static str),
    /// No value; the text describes what is used instead.
    Absent(Option<&'static str>),
    /// A value computed from other settings or the environment; the text describes it.
    Of(&'static str, fn(&SettingSources<'_>) -> String),
}

impl Fallback {
    /// The default as help and docs show it.
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
    /// The setting.
    pub key: Key,
    /// Key in the config file; error messages use it, too.
    pub name: &'static str,
    /// Flag, without its dashes.
    pub flag: &'static str,
    /// Environment variable.
    pub env: &'static str,
    /// Placeholder of the value in help.
    pub value: &'static str,
    /// Whether the setting takes one value or several.
    pub arity: Arity,
    /// JSON schema of the value, without its description and default.
    pub schema: Value,
    /// The default.
    pub fallback: Fallback,
    /// Description, in one or two sentences.
    pub help: &'static str,
}

/// The values given for one setting by one rung, in their text form.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Setting(pub Vec<String>);

macro_rules! settings {
    ($($key:ident $field:ident $(--$flag:literal)?: $type:ty = $kind:expr, $fallback:expr, $help:literal;)*) => {
        #[expect(clippy::doc_markdown, reason = "help is plain text")]
        /// A setting, in the order in which `config show` prints them.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Key { $(#[doc = $help] $key),* }

        #[expect(clippy::doc_markdown, reason = "help is plain text")]
        /// The resolved configuration: one value for every setting.
        #[derive(Debug, Clone, PartialEq)]
        pub struct Config { $(#[doc = $help] pub $field: $type),* }

        /// The table.
        pub static ROWS: LazyLock<Vec<SettingRow>> = LazyLock::new(|| {
            use Fallback::{Absent, Of, Text};
            vec![$({
                let flag: &[&str] = &[$($flag)?];
                let kind = Kinds::$field();
                row(Key::$key, stringify!($field), flag, (kind.value, kind.arity, kind.schema), $fallback, $help)
            }),*]
        });

        /// The kind of each setting.
        pub(super) struct Kinds;

        impl Kinds {
            $(pub(super) fn $field() -> Kind<$type> { $kind })*
        }

        impl Config {
            /// Takes each value from the first rung that sets it; `None` if one is invalid, which
            /// `rungs` records.
            pub(super) fn by(rungs: &mut SettingSources<'_>) -> Option<Self> {
                $(let $field = rungs.value(Key::$key, &Kinds::$field());)*
                Some(Self { $($field: $field?),* })
            }

            /// The values of one setting as printed by `config show`, without secrets.
            pub fn shown(&self, key: Key) -> Vec<String> {
                match key {
                    $(Key::$key => Kinds::$field().show(&self.$field)),*
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
        "Root directory of the agent: lock, socket, last good manifests, volumes of pods";
    Manifests manifests: PathBuf = path("DIR"), Of("<root>/manifests", resolve::manifests),
        "Directory of Pod manifests";
    ManifestUrls manifest_urls --"manifest-url": Vec<String> = kinds::url().list(' '), Absent(None),
        "URL that serves manifests; may be repeated";
    ManifestUrlHeaders manifest_url_headers --"manifest-url-header": Vec<(String, String)> = kinds::header().list('\n'), Absent(None),
        "HTTP header to send with every request to a manifest URL; may be repeated. Its value is never shown";
    ManifestUrlCa manifest_url_ca: Option<PathBuf> = path("FILE").optional(), Absent(None),
        "PEM file of additional CAs to trust for https manifest URLs";
    UrlPeriod url_period: Duration = period(SECOND, HOUR), Text("20s"),
        "How often to fetch each manifest URL";
    RescanPeriod rescan_period: Duration = period(SECOND, HOUR), Text("1m"),
        "How often to read the manifest directory when no change was noticed";
    // More than 50 ms would be felt between a save and its container.
    Settle settle: Duration = period(Duration::ZERO, 50 * MILLISECOND), Text("25ms"),
        "How long the manifest directory must be quiet before it is read, at most 50ms; a manifest that is renamed into it is read at once";
    Docker docker: String = docker(), Text("unix:///var/run/docker.sock"),
        "Address of the Docker Engine; DOCKER_HOST is used when MIRRORLET_DOCKER is not set";
    NodeName node_name: NodeName = kinds::domain("NAME").map(|name| Ok(NodeName::from(name)), NodeName::to_string),
        Of("<hostname>-docker", |rungs| kinds::default_node_name(&rungs.ambient.hostname)),
        "Name of the Node, and suffix of every static pod's name";
    NodeIps node_ips --"node-ip": Vec<IpAddr> = kinds::ip().list(','), Absent(Some("detected")),
        "IP address of the Node, the primary one first; may be repeated";
    Kubeconfig kubeconfig: ApiAccess = node::api_access(), Text(NONE),
        "Kubeconfig to connect to the API server with; in-cluster for the ServiceAccount of the agent's own pod, none for no API server";
    BootstrapKubeconfig bootstrap_kubeconfig: ApiAccess = node::api_access(), Text(NONE),
        "Kubeconfig to request a client certificate with when the file of --kubeconfig is missing or its certificate has expired; the agent then writes that file. in-cluster for the ServiceAccount of the agent's own pod";
    NodeLabels node_labels: BTreeMap<String, String> = node::labels(), Absent(None),
        "Label to add to the Node; may be repeated";
    RegisterWithTaints register_with_taints: Vec<Taint> = node::taints(), Text(node::DEFAULT_TAINT),
        "Taint to register the Node with; may be repeated; none for no taint";
    SystemReserved system_reserved: Amounts = node::reserved(), Absent(None),
        "cpu, memory or ephemeral-storage to reserve for the system, not allocatable to pods; may be repeated";
    // Ten times what a kubelet takes.
    MaxPods max_pods: usize = number("N", 1..=1100), Text("110"),
        "Maximum number of pods on the Node";
    PodInfraImage pod_infra_image: Option<String> = kinds::image().optional(), Absent(Some("embedded in mirrorlet")),
        "Image of the sandbox (pause) containers";
    ClusterDns cluster_dns: Vec<IpAddr> = kinds::ip().list(','), Absent(None),
        "IP address of the cluster's DNS server, for dnsPolicy ClusterFirst; may be repeated";
    ClusterDomain cluster_domain: String = kinds::domain("DOMAIN"), Text("cluster.local"),
        "DNS domain of the cluster";
    ResolvConf resolv_conf: PathBuf = path("FILE"), Text(DEFAULT_RESOLV_CONF),
        "Resolver configuration that pods inherit from the node";
    PodNames pod_names: bool = boolean(), Text("true"),
        "Write the names of pods and Services of manifests into the hosts files of pods; false to write none";
    Dns dns: bool = boolean(), Text("false"),
        "Serve the names of pods and Services of manifests by DNS, too, in a pod of its own on the gateway of the pods' network; pods with dnsPolicy ClusterFirst query it (only without --kubeconfig and --cluster-dns)";
    Network network: Option<String> = kinds::network(), Text("bridge"),
        "Existing Docker network to attach pods to; bridge for the Engine's default network";
    CgroupRoot cgroup_root: String = kinds::cgroup(), Text(""),
        "Parent cgroup of all pods, instead of the Engine's default";
    SeccompDefault seccomp_default: bool = boolean(), Text("true"),
        "Run containers that name no seccomp profile with the Engine's default one; false to run them unconfined";
    ContainerLogMaxSize container_log_max_size: Option<u64> = node::bytes(log_limits::SIZE_MIN).or(NONE), Text("10Mi"),
        "Size at which a container's log file is rotated, at least 32Ki; none for what the Engine does by default";
    ContainerLogMaxFiles container_log_max_files: u32 = number("N", log_limits::FILES_MIN..=log_limits::FILES_MAX), Text("5"),
        "Maximum number of log files to keep per container, including the current one, from 2 to 1000";
    PodLogsDir pod_logs_dir: Option<PathBuf> = path("DIR").or(NONE), Text(NONE),
        "Directory for links to container logs in the kubelet's layout, for log collectors: usually /var/log/pods; none for no links";
    HostRoot host_root: Option<PathBuf> = path("DIR").optional(), Absent(Some("the agent's own, if the Engine sees the same files")),
        "Where the host's root file system is mounted, for an agent in a container; used to check hostPath volumes. / if the agent runs on the host";
    MetricsAddress metrics_address: Option<SocketAddr> = kinds::address().or(NONE), Text("127.0.0.1:10351"),
        "Address and port to serve /metrics, /healthz and /readyz on; none to not serve them";
    // The most that --max-pods can be.
    PodMetricsMax pod_metrics_max: usize = number("N", 0..=1100), Text("0"),
        "Maximum number of pods with their own series on /metrics, static pods first; 0 for none";
    ApiAddress api_address: Option<SocketAddr> = kinds::loopback_address().or(NONE), Text("127.0.0.1:10352"),
        "Loopback address and port to serve the embedded API on, for kubectl without a cluster (only without --kubeconfig); port 0 for any free one, none to not serve it";
    NodeApiAddress node_api_address: IpAddr = kinds::ip(), Text("0.0.0.0"),
        "IP address to serve the node API on (kubectl logs, exec, top; only with an API server); :: for IPv4 and IPv6";
    // A kubelet's port plus 100, so that one can run beside us. Tests have the system choose: Some(0).
    NodeApiPort node_api_port: Option<u16> = kinds::port(), Text("10350"),
        "Port of the node API, published in the Node's status; 0 to not serve it";
    ClientCaFile client_ca_file: Option<PathBuf> = path("FILE").optional(), Absent(Some("the CAs that the API server publishes, if the agent may read them")),
        "PEM file of the CAs that sign client certificates for the node API";
    TlsCertFile tls_cert_file: Option<PathBuf> = path("FILE").optional(), Absent(Some("self-signed")),
        "PEM file of the node API's serving certificate with its intermediates; reloaded when it changes";
    TlsPrivateKeyFile tls_private_key_file: Option<PathBuf> = path("FILE").optional(), Absent(None),
        "PEM file of the private key for --tls-cert-file";
    RotateServerCertificates rotate_server_certificates: bool = boolean(), Text("false"),
        "Request the node API's serving certificate from the cluster (signer kubernetes.io/kubelet-serving); the request must be approved";
    // Upstream's bounds of maxContainerRestartPeriod.
    MaxContainerBackoff max_container_backoff: Duration = period(SECOND, 5 * MINUTE), Text("5m"),
        "Maximum delay before restarting a crashing container, 1s to 5m";
    MinimumContainerTtlDuration minimum_container_ttl_duration: Duration = period(Duration::ZERO, 365 * DAY), Text("0s"),
        "Minimum age of a dead container before it is removed";
    MaximumDeadContainersPerContainer maximum_dead_containers_per_container: i32 = number("N", ANY), Text("1"),
        "Maximum number of dead instances to keep per container; negative for no limit";
    MaximumDeadContainers maximum_dead_containers: i32 = number("N", ANY), Text("-1"),
        "Maximum number of dead containers to keep on the node; negative for no limit";
    EngineConcurrency engine_concurrency: usize = number("N", 1..=256), Text("16"),
        "Maximum number of concurrent Engine calls that change something";
    PullConcurrency pull_concurrency: usize = number("N", 1..=64), Text("4"),
        "Maximum number of concurrent image pulls";
    SerializeImagePulls serialize_image_pulls: bool = boolean(), Text("false"),
        "Pull one image at a time, regardless of --pull-concurrency";
    DockerConfig docker_config: Option<PathBuf> = path("DIR").or(NONE), Of("$HOME/.docker", resolve::docker_config),
        "Directory of the config.json with the node's registry credentials, or none; DOCKER_CONFIG is used when MIRRORLET_DOCKER_CONFIG is not set";
    ImagePullCredentialsVerificationPolicy image_pull_credentials_verification_policy: VerificationPolicy = one_of("POLICY", VerificationPolicy::WORDS), Text("NeverVerifyPreloadedImages"),
        "Which images on the machine a pod may use only with credentials that pulled them: NeverVerify (none), NeverVerifyPreloadedImages (those that mirrorlet pulled), NeverVerifyAllowlistedImages (all but those of --preloaded-images-verification-allowlist), AlwaysVerify (all)";
    PreloadedImagesVerificationAllowlist preloaded_images_verification_allowlist: Vec<AllowedImages> = kinds::allowed_images().list(','), Absent(None),
        "Images that are never verified with NeverVerifyAllowlistedImages: a full repository, or registry/path/* for all below it";
    ImageGc image_gc: ImageGcMode = one_of("MODE", ImageGcMode::WORDS), Text("pulled"),
        "Which unused images to remove: pulled (only images that mirrorlet pulled), all, or off";
    ImageGcHighThreshold image_gc_high_threshold: u8 = number("PERCENT", 0..=100), Text("85"),
        "Disk usage in percent at which image garbage collection starts; 100 for never";
    ImageGcLowThreshold image_gc_low_threshold: u8 = number("PERCENT", 0..=100), Of("80", resolve::low_threshold),
        "Disk usage in percent at which image garbage collection stops";
    MinimumImageTtlDuration minimum_image_ttl_duration: Duration = period(Duration::ZERO, DAY), Text("2m"),
        "Minimum age of an unused image before it is removed to free space";
    MaximumImageGcAge maximum_image_gc_age: Duration = period(Duration::ZERO, 366 * DAY), Text("0s"),
        "Maximum time an image may be unused before it is removed even if there is space; 0s for no limit";
    EvictionHard eviction_hard: Vec<(Signal, Amount)> = eviction::thresholds(),
        Text("memory.available<100Mi,nodefs.available<10%,nodefs.inodesFree<5%,imagefs.available<15%,imagefs.inodesFree<5%"),
        "Thresholds below which pods are evicted at once; may be repeated; none for no threshold. Signals: memory.available, nodefs.available, nodefs.inodesFree, imagefs.available, imagefs.inodesFree, pid.available";
    EvictionSoft eviction_soft: Vec<(Signal, Amount)> = eviction::thresholds(), Absent(None),
        "Thresholds below which pods are evicted after a grace period; may be repeated";
    EvictionSoftGracePeriod eviction_soft_grace_period: Vec<(Signal, Duration)> = eviction::periods(), Absent(None),
        "How long each soft eviction threshold may be met before pods are evicted; may be repeated";
    EvictionMaxPodGracePeriod eviction_max_pod_grace_period: u32 = number("SECONDS", 0..=86_400), Text("0"),
        "Maximum grace period of a pod that a soft eviction threshold evicts, in seconds";
    EvictionMinimumReclaim eviction_minimum_reclaim: Vec<(Signal, Amount)> = eviction::amounts(), Absent(None),
        "How much more than the threshold to reclaim of a signal before eviction ends; may be repeated";
    EvictionPressureTransitionPeriod eviction_pressure_transition_period: Duration = period(Duration::ZERO, HOUR), Text("5m"),
        "How long the node stays under pressure after a threshold was last met";
    RolloutRestore rollout_restore: bool = boolean(), Text("true"),
        "Restore the last healthy version of a static pod when a new version fails; false to keep the new version, as the kubelet does";
    SweepPeriod sweep_period: Duration = period(5 * SECOND, HOUR), Text("5m"),
        "How often to list all containers, in addition to following Engine events";
    LogFormat log_format: LogFormat = one_of("FORMAT", LogFormat::WORDS), Text("auto"),
        "Log format: text, json, or auto (text on a terminal, JSON elsewhere)";
    LogLevel log_level: String = kinds::log_filter(), Text("info"),
        "Log level: error, warn, info, debug, or target=level directives";
}

impl Key {
    /// The row of this setting.
    pub fn row(self) -> &'static SettingRow {
        // The rows are in the order of the keys.
        &ROWS[self as usize]
    }

    /// Key in the config file; error messages use it, too.
    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// Docker's variable, used when ours is not set.
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

    use super::super::{Ambient, duration};
    use super::*;
    use mirrorlet_core::api::quantity;

    #[test]
    fn help_has_the_least_size_of_container_logs() {
        let size = quantity::binary_text(log_limits::SIZE_MIN);
        let help = Key::ContainerLogMaxSize.row().help;
        assert!(help.contains(&format!("at least {size};")), "{help}");
    }

    /// The bounds of a setting, as its schema has them.
    fn bounds(schema: &Value) -> Option<(String, String)> {
        if let (Some(from), Some(to)) = (schema.get("minimum"), schema.get("maximum")) {
            return Some((from.to_string(), to.to_string()));
        }
        let comment = schema.get("$comment")?.as_str()?;
        let (from, to) = comment.strip_prefix("from ")?.split_once(" to ")?;
        Some((from.to_owned(), to.to_owned()))
    }

    #[test]
    fn help_schema_and_parser_have_the_same_limits() {
        let range = regex::Regex::new("([0-9]+[a-z]*) to ([0-9]+[a-z]*)$").unwrap();
        let most = regex::Regex::new("at most ([0-9]+[a-z]+)").unwrap();
        let mut with_limits = Vec::new();
        for row in &*ROWS {
            let Some((from, to)) = bounds(&row.schema) else {
                let has_limits = range.is_match(row.help) || most.is_match(row.help);
                assert!(!has_limits, "{}", row.name);
                continue;
            };
            if let Some(found) = range.captures(row.help) {
                assert_eq!((&found[1], &found[2]), (&*from, &*to), "{}", row.name);
                with_limits.push(row.name);
            }
            if let Some(found) = most.captures(row.help) {
                assert_eq!(&found[1], to, "{}", row.name);
                with_limits.push(row.name);
            }
            if row.value != "DURATION" {
                continue;
            }
            let parse = |text: &str| duration::parse(text).unwrap();
            let (from, to) = (parse(&from), parse(&to));
            let is_in = |value: Duration| {
                let text = Setting(vec![duration::render(value)]);
                let flags = BTreeMap::from([(row.key, text)]);
                let resolved = resolve::resolve(&flags, None, &Ambient::default());
                resolved.is_ok()
            };
            assert!(is_in(from) && is_in(to), "{}", row.name);
            assert!(!is_in(to + MILLISECOND), "{}", row.name);
            let below = from.checked_sub(MILLISECOND);
            assert!(!below.is_some_and(is_in), "{}", row.name);
        }
        let expected = ["settle", "containerLogMaxFiles", "maxContainerBackoff"];
        assert_eq!(with_limits, expected);
    }

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
