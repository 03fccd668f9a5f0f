//! The table of everything that can be set.
//!
//! One row a setting: flag, environment name, config-file key, help. Arguments, environment, file
//! schema check, `config show` and the precedence test all walk this table, so none can forget a
//! row.

use serde::{Serialize, Serializer};

/// Everything that can be set, in the order `config show` prints.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(missing_docs, reason = "each is documented by its row's help")]
pub enum Key {
    Root,
    Manifests,
    ManifestUrls,
    ManifestUrlHeaders,
    ManifestUrlCa,
    UrlPeriod,
    RescanPeriod,
    Settle,
    Docker,
    NodeName,
    NodeIps,
    Kubeconfig,
    BootstrapKubeconfig,
    NodeLabels,
    RegisterWithTaints,
    SystemReserved,
    MaxPods,
    PodInfraImage,
    ClusterDns,
    ClusterDomain,
    ResolvConf,
    Network,
    CgroupRoot,
    PodLogsDir,
    HostRoot,
    MetricsAddress,
    NodeApiAddress,
    NodeApiPort,
    ClientCaFile,
    TlsCertFile,
    TlsPrivateKeyFile,
    RotateServerCertificates,
    MaxContainerBackoff,
    MinimumContainerTtlDuration,
    MaximumDeadContainersPerContainer,
    MaximumDeadContainers,
    EngineConcurrency,
    PullConcurrency,
    SerializeImagePulls,
    DockerConfig,
    ImageGc,
    ImageGcHighThreshold,
    ImageGcLowThreshold,
    MinimumImageTtlDuration,
    MaximumImageGcAge,
    SweepPeriod,
    LogFormat,
    LogLevel,
}

/// How many values a setting has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arity {
    /// One.
    One,
    /// Any number: the flag is repeated, the file has a list, and the environment variable
    /// separates them by this character.
    Many(char),
}

/// One row of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SettingRow {
    /// Which setting.
    pub key: Key,
    /// Key in the config file.
    pub name: &'static str,
    /// Flag, without its dashes.
    pub flag: &'static str,
    /// Environment variable.
    pub env: &'static str,
    /// What the value is called in help.
    pub value: &'static str,
    /// How many values there may be.
    pub arity: Arity,
    /// What it does, with its default, in one or two sentences.
    pub help: &'static str,
}

/// The values given for one setting by one rung, in their text form.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Setting(pub Vec<String>);

macro_rules! rows {
    ($($key:ident $name:literal $flag:literal $env:literal $value:literal $arity:expr, $help:literal;)*) => {
        /// The table.
        pub const ROWS: &[SettingRow] = &[$(SettingRow {
            key: Key::$key,
            name: $name,
            flag: $flag,
            env: $env,
            value: $value,
            arity: $arity,
            help: $help,
        }),*];

        impl Key {
            /// The row of this setting.
            #[must_use]
            pub fn row(self) -> &'static SettingRow {
                match self {
                    $(Self::$key => {
                        const ROW: SettingRow = SettingRow {
                            key: Key::$key, name: $name, flag: $flag, env: $env, value: $value,
                            arity: $arity, help: $help,
                        };
                        &ROW
                    })*
                }
            }
        }
    };
}

rows! {
    Root "root" "root" "MIRRORLET_ROOT" "DIR" Arity::One,
        "Root directory: lock, socket, last good manifests, pod directories [default: /var/lib/mirrorlet]";
    Manifests "manifests" "manifests" "MIRRORLET_MANIFESTS" "DIR" Arity::One,
        "Manifest directory [default: <root>/manifests]";
    ManifestUrls "manifestUrls" "manifest-url" "MIRRORLET_MANIFEST_URL" "URL" Arity::Many(' '),
        "URL that serves manifests; may be repeated";
    ManifestUrlHeaders "manifestUrlHeaders" "manifest-url-header" "MIRRORLET_MANIFEST_URL_HEADER" "NAME: VALUE" Arity::Many('\n'),
        "Header sent with every request to a manifest URL; may be repeated. Its value is never shown";
    ManifestUrlCa "manifestUrlCa" "manifest-url-ca" "MIRRORLET_MANIFEST_URL_CA" "FILE" Arity::One,
        "PEM file of the CAs trusted for https manifest URLs, beside the system's";
    UrlPeriod "urlPeriod" "url-period" "MIRRORLET_URL_PERIOD" "DURATION" Arity::One,
        "How often a manifest URL is asked [default: 20s]";
    RescanPeriod "rescanPeriod" "rescan-period" "MIRRORLET_RESCAN_PERIOD" "DURATION" Arity::One,
        "How often the manifest directory is read though nothing changed [default: 1m]";
    Settle "settle" "settle" "MIRRORLET_SETTLE" "DURATION" Arity::One,
        "How long the manifest directory must be quiet before it is read, at most 50ms [default: 25ms]";
    Docker "docker" "docker" "MIRRORLET_DOCKER" "URL" Arity::One,
        "Docker Engine; DOCKER_HOST counts when MIRRORLET_DOCKER is not set [default: unix:///var/run/docker.sock]";
    NodeName "nodeName" "node-name" "MIRRORLET_NODE_NAME" "NAME" Arity::One,
        "Name of the node, the suffix of every pod name [default: <hostname>-docker]";
    NodeIps "nodeIps" "node-ip" "MIRRORLET_NODE_IP" "IP" Arity::Many(','),
        "Address of the node, primary first; may be repeated [default: found out]";
    Kubeconfig "kubeconfig" "kubeconfig" "MIRRORLET_KUBECONFIG" "FILE" Arity::One,
        "Kubeconfig of the API server; in-cluster for the account of the agent's own pod [default: none]";
    BootstrapKubeconfig "bootstrapKubeconfig" "bootstrap-kubeconfig" "MIRRORLET_BOOTSTRAP_KUBECONFIG" "FILE" Arity::One,
        "Kubeconfig that a first client certificate is requested with, where the one of --kubeconfig is missing or its certificate has ended; it is written then";
    NodeLabels "nodeLabels" "node-labels" "MIRRORLET_NODE_LABELS" "KEY=VALUE" Arity::Many(','),
        "Label of the Node in the API server; may be repeated";
    RegisterWithTaints "registerWithTaints" "register-with-taints" "MIRRORLET_REGISTER_WITH_TAINTS" "KEY=VALUE:EFFECT" Arity::Many(','),
        "Taint the Node is registered with; may be repeated; none for no taint [default: mirrorlet.dev/docker:NoSchedule]";
    SystemReserved "systemReserved" "system-reserved" "MIRRORLET_SYSTEM_RESERVED" "RESOURCE=QUANTITY" Arity::Many(','),
        "cpu, memory or ephemeral-storage of the machine that is not for pods; may be repeated";
    MaxPods "maxPods" "max-pods" "MIRRORLET_MAX_PODS" "N" Arity::One,
        "Most pods the Node takes [default: 110]";
    PodInfraImage "podInfraImage" "pod-infra-image" "MIRRORLET_POD_INFRA_IMAGE" "IMAGE" Arity::One,
        "Image of the pods' sandbox containers [default: embedded in this program]";
    ClusterDns "clusterDns" "cluster-dns" "MIRRORLET_CLUSTER_DNS" "IP" Arity::Many(','),
        "DNS server of the cluster, for dnsPolicy ClusterFirst; may be repeated";
    ClusterDomain "clusterDomain" "cluster-domain" "MIRRORLET_CLUSTER_DOMAIN" "DOMAIN" Arity::One,
        "DNS domain of the cluster [default: cluster.local]";
    ResolvConf "resolvConf" "resolv-conf" "MIRRORLET_RESOLV_CONF" "FILE" Arity::One,
        "Resolver settings that pods have from the node [default: /etc/resolv.conf]";
    Network "network" "network" "MIRRORLET_NETWORK" "NAME" Arity::One,
        "Docker network of the pods, which must exist; bridge for the Engine's default one [default: bridge]";
    CgroupRoot "cgroupRoot" "cgroup-root" "MIRRORLET_CGROUP_ROOT" "CGROUP" Arity::One,
        "cgroup under which pods live, instead of the Engine's own";
    PodLogsDir "podLogsDir" "pod-logs-dir" "MIRRORLET_POD_LOGS_DIR" "DIR" Arity::One,
        "Where links to the containers' logs are made in kubelet's layout, /var/log/pods for collectors that look there; none for nowhere [default: none]";
    HostRoot "hostRoot" "host-root" "MIRRORLET_HOST_ROOT" "DIR" Arity::One,
        "Where the host's file system is mounted for an agent in a container, to check hostPath volumes; / says that it is the agent's own [default: the agent's own, where the Engine has the same]";
    MetricsAddress "metricsAddress" "metrics-address" "MIRRORLET_METRICS_ADDRESS" "IP:PORT" Arity::One,
        "Where /metrics, /healthz and /readyz are served; none for nowhere [default: 127.0.0.1:10351]";
    NodeApiAddress "nodeApiAddress" "node-api-address" "MIRRORLET_NODE_API_ADDRESS" "IP" Arity::One,
        "Where the node API is served, with an API server: kubectl logs, exec and top come there; :: for IPv6 too [default: 0.0.0.0]";
    NodeApiPort "nodeApiPort" "node-api-port" "MIRRORLET_NODE_API_PORT" "PORT" Arity::One,
        "Port of the node API, told in the Node; 0 for no node API [default: 10350]";
    ClientCaFile "clientCaFile" "client-ca-file" "MIRRORLET_CLIENT_CA_FILE" "FILE" Arity::One,
        "PEM file of the CAs whose client certificates the node API believes [default: those that the API server publishes, if we may read them]";
    TlsCertFile "tlsCertFile" "tls-cert-file" "MIRRORLET_TLS_CERT_FILE" "FILE" Arity::One,
        "PEM file of the node API's certificate and its intermediates; read again when it changes [default: self-signed]";
    TlsPrivateKeyFile "tlsPrivateKeyFile" "tls-private-key-file" "MIRRORLET_TLS_PRIVATE_KEY_FILE" "FILE" Arity::One,
        "PEM file of the private key of --tls-cert-file";
    RotateServerCertificates "rotateServerCertificates" "rotate-server-certificates" "MIRRORLET_ROTATE_SERVER_CERTIFICATES" "BOOL" Arity::One,
        "true: the node API's certificate is requested from the cluster, signer kubernetes.io/kubelet-serving, once somebody approves it [default: false]";
    MaxContainerBackoff "maxContainerBackoff" "max-container-backoff" "MIRRORLET_MAX_CONTAINER_BACKOFF" "DURATION" Arity::One,
        "Longest wait before a crashing container is restarted, 1s to 5m [default: 5m]";
    MinimumContainerTtlDuration "minimumContainerTtlDuration" "minimum-container-ttl-duration" "MIRRORLET_MINIMUM_CONTAINER_TTL_DURATION" "DURATION" Arity::One,
        "Least age of a dead container before it is removed [default: 0s]";
    MaximumDeadContainersPerContainer "maximumDeadContainersPerContainer" "maximum-dead-containers-per-container" "MIRRORLET_MAXIMUM_DEAD_CONTAINERS_PER_CONTAINER" "N" Arity::One,
        "Most dead instances kept of each container of a pod; negative for any number [default: 1]";
    MaximumDeadContainers "maximumDeadContainers" "maximum-dead-containers" "MIRRORLET_MAXIMUM_DEAD_CONTAINERS" "N" Arity::One,
        "Most dead instances kept on the node; negative for any number [default: -1]";
    EngineConcurrency "engineConcurrency" "engine-concurrency" "MIRRORLET_ENGINE_CONCURRENCY" "N" Arity::One,
        "Most Engine calls that change something at a time [default: 16]";
    PullConcurrency "pullConcurrency" "pull-concurrency" "MIRRORLET_PULL_CONCURRENCY" "N" Arity::One,
        "Most image pulls at a time [default: 3]";
    SerializeImagePulls "serializeImagePulls" "serialize-image-pulls" "MIRRORLET_SERIALIZE_IMAGE_PULLS" "BOOL" Arity::One,
        "true: one image pull at a time, whatever --pull-concurrency says [default: false]";
    DockerConfig "dockerConfig" "docker-config" "MIRRORLET_DOCKER_CONFIG" "DIR" Arity::One,
        "Directory of the config.json with the node's registry credentials, none for none; DOCKER_CONFIG counts when MIRRORLET_DOCKER_CONFIG is not set [default: $HOME/.docker]";
    ImageGc "imageGc" "image-gc" "MIRRORLET_IMAGE_GC" "MODE" Arity::One,
        "Which images are removed when nobody needs them: pulled (those that mirrorlet pulled), all, or off [default: pulled]";
    ImageGcHighThreshold "imageGcHighThreshold" "image-gc-high-threshold" "MIRRORLET_IMAGE_GC_HIGH_THRESHOLD" "PERCENT" Arity::One,
        "From which share of the Engine's disk on images are removed; 100 for never [default: 85]";
    ImageGcLowThreshold "imageGcLowThreshold" "image-gc-low-threshold" "MIRRORLET_IMAGE_GC_LOW_THRESHOLD" "PERCENT" Arity::One,
        "Down to which share of the disk they are removed [default: 80]";
    MinimumImageTtlDuration "minimumImageTtlDuration" "minimum-image-ttl-duration" "MIRRORLET_MINIMUM_IMAGE_TTL_DURATION" "DURATION" Arity::One,
        "An image known for less is not removed for its space [default: 2m]";
    MaximumImageGcAge "maximumImageGcAge" "maximum-image-gc-age" "MIRRORLET_MAXIMUM_IMAGE_GC_AGE" "DURATION" Arity::One,
        "An image unused for longer is removed though there is space; 0s for no such age [default: 0s]";
    SweepPeriod "sweepPeriod" "sweep-period" "MIRRORLET_SWEEP_PERIOD" "DURATION" Arity::One,
        "How often all containers are listed though the event stream is whole [default: 5m]";
    LogFormat "logFormat" "log-format" "MIRRORLET_LOG_FORMAT" "FORMAT" Arity::One,
        "auto (text on a terminal, JSON elsewhere), text or json [default: auto]";
    LogLevel "logLevel" "log-level" "MIRRORLET_LOG_LEVEL" "FILTER" Arity::One,
        "error, warn, info, debug, or target=level directives [default: info]";
}

impl Key {
    /// The key in the config file, which is also how messages name the setting.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.row().name
    }
}

impl Serialize for Key {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_are_regular_and_unique() {
        let (mut names, mut flags, mut envs) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        for row in ROWS {
            assert_eq!(row.key.row(), row);
            let from_flag = format!("MIRRORLET_{}", row.flag.replace('-', "_").to_uppercase());
            assert_eq!(row.env, from_flag);
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
