//! Arguments of `approve-certificates`.

use std::net::SocketAddr;
use std::path::Path;

use clap::Args;

use crate::config::kinds::{self, Kind, NONE};
use crate::config::table::Kinds;
use crate::config::{ApiAccess, Key, LogFormat, node};

/// Arguments of `approve-certificates`.
#[expect(clippy::doc_markdown, reason = "it is the help")]
#[derive(Debug, Clone, Args)]
pub struct ApproveArgs {
    /// ServiceAccount of the agents. Its requests for a first certificate are decided.
    #[arg(long, value_name = "NAMESPACE/NAME", value_parser = namespaced)]
    pub service_account: (String, String),
    /// Suffix of the names of the agents' Nodes: the Node of host `a` is `a-docker`.
    #[arg(long, value_name = "SUFFIX", default_value = "docker", value_parser = suffix)]
    pub node_name_suffix: String,
    /// Kubeconfig to connect to the API server with; in-cluster for the ServiceAccount of this pod.
    #[arg(long, value_name = "FILE", default_value = "in-cluster", value_parser = access,
        value_hint = clap::ValueHint::FilePath)]
    pub kubeconfig: ApiAccess,
    /// Lease for leader election [default: mirrorlet-approver in the ServiceAccount's namespace].
    #[arg(long, value_name = "NAMESPACE/NAME", value_parser = namespaced)]
    pub lease: Option<(String, String)>,
    /// As the setting of that name.
    #[arg(long, value_name = "IP:PORT|none", default_value = NONE, value_parser = address,
        help = Key::MetricsAddress.row().help)]
    pub metrics_address: OptionalAddress,
    /// As the setting of that name.
    #[arg(long, value_name = Key::LogFormat.row().value, default_value = default_of(Key::LogFormat),
        value_parser = log_format, help = Key::LogFormat.row().help)]
    pub log_format: LogFormat,
    /// As the setting of that name.
    #[arg(long, value_name = Key::LogLevel.row().value, default_value = default_of(Key::LogLevel),
        value_parser = log_level, help = Key::LogLevel.row().help)]
    pub log_level: String,
}

/// An address, or none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OptionalAddress(pub Option<SocketAddr>);

/// The default of a setting.
fn default_of(key: Key) -> &'static str {
    key.row().fallback.words().unwrap_or_default()
}

fn namespaced(text: &str) -> Result<(String, String), String> {
    match text.split_once('/') {
        Some((namespace, name))
            if !namespace.is_empty() && !name.is_empty() && !name.contains('/') =>
        {
            Ok((namespace.to_owned(), name.to_owned()))
        }
        _ => Err("expected NAMESPACE/NAME".to_owned()),
    }
}

fn suffix(text: &str) -> Result<String, String> {
    parsed(&kinds::domain("SUFFIX"), text)
}

fn access(text: &str) -> Result<ApiAccess, String> {
    match parsed(&node::api_access(), text)? {
        ApiAccess::None => Err("there are no requests without an API server".to_owned()),
        access => Ok(access),
    }
}

fn address(text: &str) -> Result<OptionalAddress, String> {
    parsed(&Kinds::metrics_address(), text).map(OptionalAddress)
}

fn log_format(text: &str) -> Result<LogFormat, String> {
    parsed(&Kinds::log_format(), text)
}

fn log_level(text: &str) -> Result<String, String> {
    parsed(&Kinds::log_level(), text)
}

/// A value as the setting of that kind has it.
fn parsed<T: 'static>(kind: &Kind<T>, text: &str) -> Result<T, String> {
    let parsed = kind.parse(&[text.to_owned()], Path::new(""));
    parsed.map_err(|faults| faults.join("; "))
}
