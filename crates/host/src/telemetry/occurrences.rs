//! Occurrences, one function each: log line and metric.
//!
//! Levels: info when something changed, warn when the agent will try again, error when a user
//! should look. Functions called again and again in a quiet node log at debug or not at all.

/// Logs an occurrence of a pod: `log!(LEVEL: of, FIELDS…, MESSAGE)`, where `of` is its [`PodTelemetry`].
macro_rules! log {
    ($level:ident: $of:ident, $($rest:tt)*) => {
        tracing::$level!(pod = %Shown($of.name), uid = %$of.uid, $($rest)*)
    };
}

mod access;
mod cluster;
mod containers;
mod gc;
mod images;
mod pods;
mod probes;
mod stats;

use std::io;
use std::path::Path;
use std::time::Duration;

use super::{Metrics, PodTelemetry, Telemetry};
use crate::telemetry::journal::Kind;
use mirrorlet_core::api::report::CredentialsFault;
use mirrorlet_core::api::{Diagnostic, FullName, VALUES_MAX};
use mirrorlet_core::host_access::{MissingAccess, Need};

pub use access::*;
pub use cluster::*;
pub use containers::*;
pub use gc::*;
pub use images::*;
pub use pods::*;
pub use probes::*;
pub use stats::*;

/// A pod as its log field shows it: `namespace/name`.
struct Shown<'a>(&'a FullName);

impl std::fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.0.namespace, self.0.name)
    }
}

fn millis(took: Duration) -> u64 {
    u64::try_from(took.as_millis()).unwrap_or(u64::MAX)
}

/// The agent has started.
pub fn agent_started(root: &Path, node_name: &str, docker: &str) {
    tracing::info!(
        "mirrorlet {} started: node {node_name}, root {}, Docker Engine {docker}",
        env!("CARGO_PKG_VERSION"),
        root.display()
    );
}

/// The limit of open files could not be raised, and stays as it was.
pub fn open_files_limited(limit: Option<u64>, error: &str) {
    let limit = limit.map_or_else(|| "unlimited".to_owned(), |limit| limit.to_string());
    tracing::warn!(
        error,
        "failed to raise the limit of open files (RLIMIT_NOFILE) from {limit} to the hard limit"
    );
}

/// Pods run in a different Engine network than new ones: `--network` was changed. Call it once.
pub fn pods_in_another_network(pods: usize, network: &str, of_new: &str) {
    tracing::warn!(
        "running pods in the Docker network {network}: {pods}; they keep it, and new pods are started in \
         {of_new} (--network)"
    );
}

/// The agent stops; containers keep running.
pub fn agent_stopping(reason: &str) {
    tracing::info!(reason, "stopping; containers keep running");
}

/// A source can't be read. Call it when that begins, or its cause changes.
pub fn source_failed(location: &str, error: &str) {
    tracing::warn!(
        source = location,
        error,
        "can't read the source; its pods keep running"
    );
}

/// Pods of the API server start to wait for admission, or none waits any more.
pub fn api_pods_wait(any: bool) {
    if any {
        tracing::warn!(
            "the API server has bound more pods to this node than it can run; some wait until others \
             are rejected or have ended"
        );
    } else {
        tracing::info!("no pods of the API server are waiting any more");
    }
}

/// Mirrors in the API server start to be ignored, or none is ignored any more.
pub fn api_mirrors_ignored(any: bool) {
    if any {
        tracing::warn!(
            "the API server has thousands of mirror pods on this node without a static pod; some are \
             ignored until others are deleted"
        );
    } else {
        tracing::info!("no mirror pods are ignored any more");
    }
}

/// The object of a running pod of the API server has become too large to be held.
pub fn api_pod_too_large(name: &FullName) {
    tracing::warn!(
        pod = %Shown(name),
        "the pod's object has more than {VALUES_MAX} values in lists and mappings; the pod keeps \
         running, and edits of its spec, labels and annotations are ignored until the object is smaller"
    );
}

/// A source can be read again.
pub fn source_back(location: &str) {
    tracing::info!(source = location, "the source can be read again");
}

/// A manifest has a problem that it did not have at the last check.
pub fn manifest_problem(problem: &Diagnostic) {
    if problem.is_error() {
        tracing::error!(
            source = problem.file,
            reason = problem.code.as_str(),
            "{problem}"
        );
    } else {
        tracing::warn!(
            source = problem.file,
            reason = problem.code.as_str(),
            "{problem}"
        );
    }
}

/// A problem with a manifest is gone.
pub fn manifest_mended(problem: &Diagnostic) {
    tracing::info!(
        source = problem.file,
        reason = problem.code.as_str(),
        "resolved: {problem}"
    );
}

/// A server of the agent ended by itself.
pub fn server_failed(server: &str, error: &str) {
    tracing::error!(error, "{server} stopped unexpectedly");
}

/// The host lacks something that the agent needs. Call it when that is found.
pub fn host_access_missing(telemetry: &Telemetry, missing: &MissingAccess) {
    let message = format!("{}; {}", missing.message, missing.help);
    telemetry.node_event(Kind::Warning, "MissingHostAccess", message.as_str());
    tracing::error!(reason = missing.need.as_str(), "{message}");
}

/// Reports that missing access to the host is available again.
pub fn host_access_had(need: Need) {
    tracing::info!(
        reason = need.as_str(),
        "access to the host is available again"
    );
}

/// Copies of our own volumes in the mounted host files can't be unmounted: the directories of pods that
/// use them can't be removed until the next start.
pub fn host_files_not_forgotten(error: &str) {
    tracing::warn!(
        error,
        "failed to unmount copies of volumes below the host's root file system"
    );
}

/// The names of pods and Services could not be written into every hosts file; the agent retries.
pub fn names_not_written(error: &str) {
    tracing::warn!(error, "failed to write names into hosts files of pods");
}

/// The DNS server can't be started; the agent retries.
pub fn dns_failed(error: &str) {
    tracing::warn!(error, "failed to start the DNS server of pods");
}

/// The rules that forward the host ports of a pod were missing or changed, and are restored.
pub fn host_ports_restored(of: PodTelemetry<'_>) {
    note(
        of,
        "HostPortsRestored",
        "the kernel's rules for its host ports were removed or changed by another program, and are restored",
    );
}

/// Rules for host ports that another program may have removed can't be checked or restored; the agent
/// retries.
pub fn host_ports_not_restored(error: &str) {
    tracing::warn!(error, "failed to restore rules for host ports");
}

/// The root directory was accessible to other users; its mode is corrected.
pub fn root_closed(root: &Path, mode: u32) {
    tracing::warn!(
        "the root directory {} was accessible to others (mode {mode:04o}); its mode is 0700 now",
        root.display()
    );
}

/// The agent holds the lock of its root directory, but the lock file doesn't have its process id.
pub fn pid_not_written(path: &Path, error: &io::Error) {
    tracing::warn!(
        %error,
        "failed to write the process id into the lock file {}; the lock is held without it",
        path.display()
    );
}

/// The owner id of the previous agent was lost, and its containers keep running.
pub fn owner_lost(message: &str, help: &str) {
    tracing::warn!("{message}; {help}");
}

/// The root directory doesn't record which Engine has the agent's containers.
pub fn engine_not_kept(error: &str) {
    tracing::warn!(
        error = error,
        "failed to save which Docker Engine is used; mirrorlet cleanup can't check it"
    );
}

/// The root directory was used as another Node before.
pub fn node_renamed(before: &str, now: &str) {
    tracing::warn!(
        "the Node's name changed from {before} to {now}: the Node {before} and its mirror pods stay in the cluster; remove them with: kubectl delete node {before}"
    );
}

/// Reports that the Engine's view of the agent's files is unknown.
pub fn host_access_unknown(error: &str) {
    tracing::debug!(
        error,
        "can't determine which of the agent's files the Engine sees"
    );
}

/// The Engine can't give OOM scores below 0. Logged once.
pub fn negative_oom_score_refused() {
    tracing::warn!(
        "the Docker Engine can't set OOM scores below 0 (it lacks CAP_SYS_RESOURCE): sandboxes and guaranteed pods are not protected from the OOM killer"
    );
}

/// Pods can't be given a network, though the Engine answers.
pub fn network_not_ready(telemetry: &Telemetry, error: &str) {
    telemetry.node_event(Kind::Warning, "NetworkNotReady", error);
    tracing::error!(error, "pod network is not ready");
}

/// The Engine at that address can't be used. Call it when that begins.
pub fn engine_lost(telemetry: &Telemetry, endpoint: &str, error: &str) {
    telemetry.metrics.engine_up.set(0);
    tracing::error!(
        error,
        "the Docker Engine at {endpoint} can't be used; retrying; see docker -H {endpoint} version"
    );
}

/// The Engine answers: at the start (`away` is none), or again.
pub fn engine_back(telemetry: &Telemetry, version: &str, away: Option<Duration>) {
    telemetry.metrics.engine_up.set(1);
    match away {
        None => tracing::info!("connected to Docker Engine {version}"),
        Some(away) => tracing::info!(elapsed_ms = millis(away), "Docker Engine {version} is back"),
    }
}

/// Engine events may have been missed; everything is listed. Logged except for the first time, which
/// happens at every start.
pub fn gap(telemetry: &Telemetry, cause: &str, first: bool) {
    telemetry.metrics.event_gaps.inc();
    if first {
        tracing::debug!(reason = cause, "listening to Engine events");
    } else {
        tracing::warn!(
            reason = cause,
            "Engine events may have been missed; listing all containers"
        );
    }
}

/// The API server answers, for the first time or after an outage.
pub fn api_reached(metrics: &Metrics, away: Option<Duration>) {
    metrics.set_api_up(true);
    match away {
        None => tracing::info!("the API server answers"),
        Some(away) => tracing::info!(elapsed_ms = millis(away), "the API server answers again"),
    }
}

/// The API server no longer answers.
pub fn api_lost(metrics: &Metrics, error: &str) {
    metrics.set_api_up(false);
    tracing::warn!(
        error,
        "the API server is unreachable; running pods continue"
    );
}

/// The API server answers requests with 401 only.
pub fn api_rejects(metrics: &Metrics) {
    metrics.set_api_up(false);
    tracing::error!("the API server rejects the credentials; running pods continue");
}

/// The API server accepts the credentials again.
pub fn api_accepts_again(metrics: &Metrics) {
    metrics.set_api_up(true);
    tracing::info!("the API server accepts the credentials again");
}

/// Requests and watches switch to new connections, because the API server answers again.
pub fn api_connections_given_up() {
    tracing::debug!("the API server answers again; closing old connections");
}

/// New requests to the API server at that address use replaced credentials.
pub fn credentials_replaced(server: &str) {
    tracing::info!("credentials for the API server were replaced; using the new ones for {server}");
}

/// A problem with the credentials for the API server has begun.
pub fn credentials_failed(fault: CredentialsFault, error: &str) {
    tracing::error!(error, "{}", consequence(fault));
}

/// The sentence of the log about what the agent does while it has that problem with its credentials.
fn consequence(fault: CredentialsFault) -> &'static str {
    match fault {
        CredentialsFault::Missing => "no credentials for the API server; retrying",
        CredentialsFault::Replaced => {
            "new credentials for the API server are unusable; keeping the old ones"
        }
        CredentialsFault::Plugin => {
            "no new credentials for the API server; the credential plug-in is run again"
        }
    }
}

#[cfg(test)]
mod tests;
