//! Resolves flags, environment, file and defaults to one [`Config`], with the origin of every value.
//!
//! Pure: the process's environment is an argument. All faults are reported at once, each with the place
//! to correct.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::Config;
use super::args::CONFIG_ENV;
use super::file::LocatedFile;
use super::kinds::{self, Arity, Kind};
use super::table::{Fallback, Key, Kinds, ROWS, Setting};
use mirrorlet_core::small::SmallSort;

/// The home directory of root if `HOME` is not set.
const ROOT_HOME: &str = "/root";
/// Variable that has Docker's client use TLS for addresses of the network.
const DOCKER_TLS_VERIFY: &str = "DOCKER_TLS_VERIFY";
/// Beginning of all our environment variables.
const OURS: &str = "MIRRORLET_";

/// The environment of this process.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Ambient {
    /// Environment variables.
    pub env: BTreeMap<String, String>,
    /// Name of the host.
    pub hostname: String,
    /// Current directory, which relative paths count from.
    pub cwd: PathBuf,
}

/// The origin of a value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Origin {
    /// A flag on the command line.
    Flag,
    /// This environment variable.
    Env(String),
    /// The config file, as `path:line`.
    File(String),
    /// It is not set.
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

/// A configuration, with the origin of each value.
#[derive(Debug, Clone, PartialEq)]
pub struct Resolved {
    /// The values.
    pub config: Config,
    /// The origin of each value; every key is in it.
    pub provenance: BTreeMap<Key, Origin>,
}

/// One row of `config show`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShownSetting {
    /// Its key in the config file.
    pub key: String,
    /// Its values; empty when it has none.
    pub values: Vec<String>,
    /// Their origin.
    pub origin: String,
}

impl Resolved {
    /// Every setting with its values and origin, without secrets.
    pub fn show(&self) -> Vec<ShownSetting> {
        let shown = |(key, origin): (&Key, &Origin)| ShownSetting {
            key: key.name().to_owned(),
            values: self.config.shown(*key),
            origin: origin.to_string(),
        };
        self.provenance.iter().map(shown).collect()
    }
}

/// Everything wrong with a configuration, one line a fault.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.join("\n"))]
pub struct ConfigFaults(pub Vec<String>);

/// Resolves every value: flag, otherwise environment, otherwise file, otherwise default.
///
/// # Errors
/// An effective value is invalid, a key of the file or one of our variables is unknown, or two settings
/// contradict each other; all faults together.
pub fn resolve(
    flags: &BTreeMap<Key, Setting>,
    file: Option<&LocatedFile>,
    ambient: &Ambient,
) -> Result<Resolved, ConfigFaults> {
    let mut rungs = SettingSources::new(flags, file, ambient);
    let of_file = file.iter().flat_map(|file| file.faults.clone());
    let of_file = of_file.map(|(line, words)| (Some(line), words));
    rungs.faults.extend(of_file);
    let unknown = unknown_variables(ambient).map(|words| (None, words));
    rungs.faults.extend(unknown);
    let config = Config::by(&mut rungs);
    rungs.check_pairs();
    match config {
        Some(config) if rungs.faults.is_empty() => Ok(Resolved {
            config,
            provenance: rungs.provenance,
        }),
        _ => Err(rungs.into_faults()),
    }
}

/// Resolves only the root directory, for commands that only call an agent. Faults of other settings
/// don't matter to them.
pub fn resolve_root(
    flags: &BTreeMap<Key, Setting>,
    file: Option<&LocatedFile>,
    ambient: &Ambient,
) -> Result<PathBuf, ConfigFaults> {
    let mut rungs = SettingSources::new(flags, file, ambient);
    let root = rungs.value(Key::Root, &Kinds::root());
    root.ok_or_else(|| rungs.into_faults())
}

/// Resolves only the Node's name, for commands that need no agent.
pub fn resolve_node_name(
    file: Option<&LocatedFile>,
    ambient: &Ambient,
) -> Result<String, ConfigFaults> {
    let flags = BTreeMap::new();
    let mut rungs = SettingSources::new(&flags, file, ambient);
    let name = rungs.value(Key::NodeName, &Kinds::node_name());
    name.map(|name| name.to_string())
        .ok_or_else(|| rungs.into_faults())
}

/// A fault for each unknown variable with our prefix.
fn unknown_variables(ambient: &Ambient) -> impl Iterator<Item = String> {
    let known = |name: &str| name == CONFIG_ENV || ROWS.iter().any(|row| row.env == name);
    let unknown = ambient.env.iter().filter(move |(name, value)| {
        name.starts_with(OURS) && !known(name) && !is_service_link(name, value)
    });
    unknown.map(|(name, _)| {
        let similar = super::similar(OURS, name, ROWS.iter().map(|row| row.env));
        format!("{name}: unknown setting{similar}")
    })
}

/// Whether a variable is one of those that Kubernetes gives containers for a Service named mirrorlet
/// or mirrorlet-…, as Docker's links once did (`pkg/kubelet/envvars/envvars.go`).
fn is_service_link(name: &str, value: &str) -> bool {
    let is_address = || {
        let schemes = ["tcp://", "udp://", "sctp://"];
        schemes.iter().any(|scheme| value.starts_with(scheme))
    };
    let digits = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    let parts: Vec<&str> = name.split('_').collect();
    match parts.as_slice() {
        [.., "SERVICE", "HOST" | "PORT"]
        | [_, "PORT"]
        | [.., "PORT", _, "TCP" | "UDP" | "SCTP"] => true,
        // Settings end in PORT, too: the value distinguishes them.
        [.., "PORT"] if is_address() => true,
        [
            ..,
            "PORT",
            port,
            "TCP" | "UDP" | "SCTP",
            "PROTO" | "PORT" | "ADDR",
        ] => digits(port),
        parts => parts.windows(2).any(|pair| pair == ["SERVICE", "PORT"]),
    }
}

/// The sources of settings, and the values found in each.
pub struct SettingSources<'a> {
    /// The environment of this process.
    pub ambient: &'a Ambient,
    flags: &'a BTreeMap<Key, Setting>,
    file: Option<&'a LocatedFile>,
    provenance: BTreeMap<Key, Origin>,
    /// Each with its line, if it is one of the file.
    faults: Vec<(Option<u64>, String)>,
}

impl<'a> SettingSources<'a> {
    fn new(
        flags: &'a BTreeMap<Key, Setting>,
        file: Option<&'a LocatedFile>,
        ambient: &'a Ambient,
    ) -> Self {
        Self {
            ambient,
            flags,
            file,
            provenance: BTreeMap::new(),
            faults: Vec::new(),
        }
    }

    /// The setting of the highest rung that has one.
    fn given(&self, key: Key) -> Option<(Setting, Origin)> {
        if let Some(setting) = self.flags.get(&key) {
            return Some((setting.clone(), Origin::Flag));
        }
        if let Some((setting, name)) = self.env_setting(key) {
            return Some((setting, Origin::Env(name)));
        }
        let file = self.file?;
        let (line, setting) = file.settings.get(&key)?;
        let place = format!("{}:{line}", file.path);
        Some((setting.clone(), Origin::File(place)))
    }

    /// An empty variable counts as not set, as is the habit of unit files and container specs;
    /// only `cgroupRoot` can be set to nothing, and for it the empty text has a meaning.
    fn env_setting(&self, key: Key) -> Option<(Setting, String)> {
        let row = key.row();
        let names = [Some(row.env), key.variable_of_docker()];
        names.into_iter().flatten().find_map(|name| {
            let text = self.ambient.env.get(name)?;
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
            Some((Setting(values), name.to_owned()))
        })
    }

    /// Everything wrong: by line in the file, then the rest in the order of the settings.
    fn into_faults(mut self) -> ConfigFaults {
        self.faults
            .small_sort_by_key(|(line, _)| line.unwrap_or(u64::MAX));
        ConfigFaults(self.faults.into_iter().map(|(_, words)| words).collect())
    }

    fn fault(&mut self, key: Key, origin: &Origin, words: &str) {
        let place = match origin {
            Origin::Flag => format!("--{}", key.row().flag),
            Origin::Env(name) => name.clone(),
            Origin::File(place) => format!("{place}: {}", key.name()),
            Origin::Default => format!("the default of {}", key.name()),
        };
        let line = self.file.and_then(|file| file.settings.get(&key));
        let line = line.filter(|_| matches!(origin, Origin::File(_)));
        let line = line.map(|(line, _)| *line);
        self.faults.push((line, format!("{place}: {words}")));
    }

    /// The value of one setting, from the first source that sets it; none if that is invalid.
    pub fn value<T: 'static>(&mut self, key: Key, kind: &Kind<T>) -> Option<T> {
        let (texts, origin) = match (self.given(key), key.row().fallback) {
            (Some((Setting(texts), origin)), _) => (texts, origin),
            (None, Fallback::Text(text)) => (vec![text.to_owned()], Origin::Default),
            (None, Fallback::Of(_, text)) => (vec![text(self)], Origin::Default),
            (None, Fallback::Absent(_)) => (Vec::new(), Origin::Default),
        };
        let value = kind.parse(&texts, &self.ambient.cwd);
        for words in value.as_ref().err().into_iter().flatten() {
            self.fault(key, &origin, words);
        }
        self.provenance.insert(key, origin);
        value.ok()
    }

    /// The last text given for a setting.
    fn text(&self, key: Key) -> Option<String> {
        self.given(key)
            .and_then(|(Setting(texts), _)| texts.last().cloned())
    }

    /// The name of a setting in the form in which it was given, otherwise in the form of the source of
    /// the setting that requires it.
    fn name(&self, key: Key, beside: Key) -> String {
        let given = self.given(key).or_else(|| self.given(beside));
        match given.map(|(_, origin)| origin) {
            Some(Origin::Flag) => format!("--{}", key.row().flag),
            Some(Origin::Env(_)) => key.row().env.to_owned(),
            Some(Origin::File(_) | Origin::Default) | None => key.name().to_owned(),
        }
    }

    /// Records a fault about the combination of two settings, at a given one.
    fn contradicts(&mut self, key: Key, words: &str) {
        if let Some((_, origin)) = self.given(key) {
            self.fault(key, &origin, words);
        }
    }

    /// Checks pairs of settings that depend on each other.
    fn check_pairs(&mut self) {
        let certificate = self.text(Key::TlsCertFile).is_some();
        let key = self.text(Key::TlsPrivateKeyFile).is_some();
        let requested = self.text(Key::RotateServerCertificates).as_deref() == Some("true");
        if certificate && !key {
            let missing = self.name(Key::TlsPrivateKeyFile, Key::TlsCertFile);
            self.contradicts(Key::TlsCertFile, &format!("requires {missing}"));
        }
        if key && !certificate {
            let missing = self.name(Key::TlsCertFile, Key::TlsPrivateKeyFile);
            self.contradicts(Key::TlsPrivateKeyFile, &format!("requires {missing}"));
        }
        if requested && (certificate || key) {
            let other = if certificate {
                Key::TlsCertFile
            } else {
                Key::TlsPrivateKeyFile
            };
            let other = self.name(other, Key::RotateServerCertificates);
            let words = format!("can't be combined with {other}");
            self.contradicts(Key::RotateServerCertificates, &words);
        }
        let kubeconfig = self.text(Key::Kubeconfig);
        let bootstrap = self.text(Key::BootstrapKubeconfig);
        if bootstrap.is_some_and(|text| text != kinds::NONE)
            && kubeconfig.is_none_or(|text| [kinds::NONE, "in-cluster"].contains(&text.as_str()))
        {
            let missing = self.name(Key::Kubeconfig, Key::BootstrapKubeconfig);
            let words = format!("requires {missing}, the file to write");
            self.contradicts(Key::BootstrapKubeconfig, &words);
        }
        self.check_docker();
        self.check_dns();
        self.check_verification();
        self.check_grace_periods();
        let low = self
            .text(Key::ImageGcLowThreshold)
            .and_then(|text| text.trim().parse::<u8>().ok());
        let high = self.percent(Key::ImageGcHighThreshold);
        if let (Some(low), Some(high)) = (low, high)
            && low <= 100
            && low > high
        {
            let words = format!("{low} is above the high threshold, {high}");
            self.contradicts(Key::ImageGcLowThreshold, &words);
        }
    }

    /// Docker's own client would encrypt what it sends to such an address.
    fn check_docker(&mut self) {
        let of_client = Key::Docker.variable_of_docker();
        let is_network = |(Setting(texts), origin): &(Setting, Origin)| {
            let is_its = matches!(origin, Origin::Env(name) if Some(name.as_str()) == of_client);
            is_its && texts.iter().any(|text| !text.starts_with("unix://"))
        };
        let verify = self.ambient.env.get(DOCKER_TLS_VERIFY);
        if verify.is_some_and(|value| !value.is_empty())
            && self.given(Key::Docker).as_ref().is_some_and(is_network)
        {
            let words = format!("{DOCKER_TLS_VERIFY} is set: {}", kinds::UNENCRYPTED);
            self.contradicts(Key::Docker, &words);
        }
    }

    /// A cluster has a DNS server of its own.
    fn check_dns(&mut self) {
        let dns = self.text(Key::Dns);
        if dns.is_none_or(|text| text.trim() != "true") {
            return;
        }
        let kubeconfig = self.text(Key::Kubeconfig);
        let has_cluster = kubeconfig.is_some_and(|text| text != kinds::NONE);
        for (is_given, other) in [
            (has_cluster, Key::Kubeconfig),
            (self.text(Key::ClusterDns).is_some(), Key::ClusterDns),
        ] {
            if is_given {
                let other = self.name(other, Key::Dns);
                self.contradicts(Key::Dns, &format!("can't be combined with {other}"));
            }
        }
    }

    fn check_verification(&mut self) {
        let policy = self.text(Key::ImagePullCredentialsVerificationPolicy);
        if policy.as_deref() != Some("NeverVerifyAllowlistedImages") {
            let list = Key::PreloadedImagesVerificationAllowlist;
            let missing = self.name(Key::ImagePullCredentialsVerificationPolicy, list);
            let words = format!("requires {missing} NeverVerifyAllowlistedImages");
            self.contradicts(list, &words);
        }
    }

    fn check_grace_periods(&mut self) {
        let signals = |rungs: &Self, key| -> Vec<String> {
            let texts = rungs.given(key).map(|(Setting(texts), _)| texts);
            let parts = texts.into_iter().flatten();
            let parts =
                parts.flat_map(|text| text.split(',').map(str::to_owned).collect::<Vec<_>>());
            let signal = |part: String| {
                part.split(['<', '='])
                    .next()
                    .map(|name| name.trim().to_owned())
            };
            parts
                .filter_map(signal)
                .filter(|name| name != kinds::NONE)
                .collect()
        };
        let given = signals(self, Key::EvictionSoftGracePeriod);
        for signal in signals(self, Key::EvictionSoft) {
            if !given.contains(&signal) {
                let missing = self.name(Key::EvictionSoftGracePeriod, Key::EvictionSoft);
                let words = format!("requires {missing} with a time for {signal}");
                self.contradicts(Key::EvictionSoft, &words);
            }
        }
    }

    /// The percentage that is given for a setting, or else that of its row.
    fn percent(&self, key: Key) -> Option<u8> {
        let given = self.text(key).and_then(|text| text.trim().parse().ok());
        given.or_else(|| key.row().fallback.words()?.parse().ok())
    }
}

/// The default of the low threshold: at most the high one.
pub(super) fn low_threshold(rungs: &SettingSources<'_>) -> String {
    let [low, high] =
        [Key::ImageGcLowThreshold, Key::ImageGcHighThreshold].map(|key| rungs.percent(key));
    low.min(high)
        .map_or_else(String::new, |percent| percent.to_string())
}

/// The default manifest directory, in the root directory.
pub(super) fn manifests(rungs: &SettingSources<'_>) -> String {
    let root = match (rungs.text(Key::Root), Key::Root.row().fallback) {
        (None, Fallback::Text(text)) => text.to_owned(),
        (text, _) => text.unwrap_or_default(),
    };
    Path::new(&root).join("manifests").display().to_string()
}

/// The same default as Docker's own client: in the user's home.
pub(super) fn docker_config(rungs: &SettingSources<'_>) -> String {
    let home = rungs.ambient.env.get("HOME");
    let home = home.filter(|home| !home.is_empty());
    let home = home.map_or(ROOT_HOME, String::as_str);
    format!("{home}/.docker")
}

#[cfg(test)]
mod tests;
