//! Wires the approver of certificates: of several running ones, the holder of the Lease decides.

use std::net::SocketAddr;

use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::{descriptors, drain, serve, spawn, spawn_until, until_stopped};
use crate::cluster::{ApproverTask, ClusterClient, Election};
use crate::config::ApiAccess;
use crate::server::health;
use mirrorlet_core::certificate::approval::Approver;
use mirrorlet_host::random;
use mirrorlet_host::telemetry::{Metrics, occurrences};

/// The options of an approver.
#[derive(Debug, Clone)]
pub struct ApproveOptions {
    /// How the API server is reached.
    pub access: ApiAccess,
    /// The agents whose requests it decides.
    pub approver: Approver,
    /// Namespace and name of the Lease.
    pub lease: (String, String),
    /// Address of metrics and health checks; none to not serve them.
    pub metrics_address: Option<SocketAddr>,
    /// Name of this machine; in a container, of the pod.
    pub hostname: String,
}

/// Runs an approver until it is stopped.
///
/// # Errors
/// It can't start, or an essential part of it failed.
pub async fn approve(options: ApproveOptions) -> anyhow::Result<()> {
    descriptors::raise_limit();
    let cancel = CancellationToken::new();
    let metrics = Metrics::of_approver();
    let Some((client, credentials)) = ClusterClient::open(&options.access, metrics.clone())? else {
        anyhow::bail!("--kubeconfig none: there are no requests without an API server");
    };
    let mut parts = JoinSet::new();
    spawn_until(&mut parts, &cancel, "credentials", credentials.run());
    if let Some(address) = options.metrics_address {
        let listener = serve::bind_metrics(address).await?;
        let serving = health::serve_metrics(listener, metrics.clone(), cancel.clone());
        spawn(&mut parts, "metrics", async move {
            if let Err(error) = serving.await {
                occurrences::server_failed("metrics", &error.to_string());
            }
        });
    }
    let (namespace, name) = &options.lease;
    let candidate = format!("{}_{:016x}", options.hostname, random::number());
    let election = Election::new(client.clone(), namespace, name, candidate);
    let task = ApproverTask::new(client, options.approver, metrics);
    let lease = format!("{namespace}/{name}");
    let deciding = decide(election, task, lease, cancel.clone());
    spawn(&mut parts, "approver", deciding);
    let outcome = until_stopped(&mut parts).await;
    cancel.cancel();
    drain(&mut parts).await;
    outcome
}

/// Decides requests while the Lease is ours, until cancelled.
async fn decide(
    mut election: Election,
    mut task: ApproverTask,
    lease: String,
    cancel: CancellationToken,
) {
    loop {
        let mut reported = None;
        let won = election.won(|error| {
            let words = error.to_string();
            if reported.as_ref() != Some(&words) {
                occurrences::approver_kept_waiting(&lease, &words);
                reported = Some(words);
            }
        });
        tokio::select! {
            () = cancel.cancelled() => return,
            () = won => {}
        }
        occurrences::approver_leads(&lease);
        tokio::select! {
            () = cancel.cancelled() => {
                election.resign().await;
                return;
            }
            () = task.run() => return,
            () = election.lost() => occurrences::approver_lost(&lease),
        }
    }
}
