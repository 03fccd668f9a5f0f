//! The embedded API, wired: its authority, its kubeconfig, its port. Off where there is a cluster.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::{Parts, spawn};
use crate::certificate::{Authority, Credential};
use crate::config::{ApiAccess, Config};
use crate::server::embedded::{EmbeddedApi, EmbeddedParts};
use crate::server::health::Served;
use crate::source::files::embedded_directory;
use mirrorlet_core::api::Timestamp;
use mirrorlet_host::disk;
use mirrorlet_host::telemetry::occurrences;

/// Name of the kubeconfig under the root.
const KUBECONFIG: &str = "kubeconfig";
/// The first line of the kubeconfig: without it the file is somebody else's.
const HEAD: &str = "# Written by mirrorlet for its own API; it is replaced at each start.\n";
/// Pause after the port could not be had.
const BIND_PAUSE: Duration = Duration::from_secs(10);
/// The period after which the certificates are made anew: well before they end.
const RENEW_PERIOD: Duration = Duration::from_hours(30 * 24);

/// Whether the embedded API is served: a cluster has an API of its own.
pub(super) fn is_wanted(config: &Config) -> bool {
    config.api_address.is_some() && config.kubeconfig == ApiAccess::None
}

/// Starts the embedded API, if it is wanted.
pub(super) fn start(
    config: &Config,
    served: &Served,
    parts: &mut Parts,
    cancel: &CancellationToken,
) -> anyhow::Result<()> {
    let Some(address) = config.api_address.filter(|_| is_wanted(config)) else {
        return Ok(());
    };
    anyhow::ensure!(
        address.ip().is_loopback(),
        "failed to serve the embedded API on {address}: it listens on loopback addresses alone; use --api-address 127.0.0.1:PORT, or none"
    );
    let wiring = Wiring {
        address,
        root: config.root.clone(),
        node: config.node_name.clone(),
        view: Arc::clone(&served.view),
        stats: Arc::clone(&served.stats),
        metrics: served.metrics.clone(),
    };
    spawn(parts, "embedded API", wiring.run(cancel.clone()));
    Ok(())
}

struct Wiring {
    address: SocketAddr,
    root: PathBuf,
    node: mirrorlet_core::api::NodeName,
    view: Arc<dyn crate::server::AgentView>,
    stats: Arc<dyn crate::server::NodeStats>,
    metrics: mirrorlet_host::telemetry::Metrics,
}

impl Wiring {
    /// Serves until cancelled. Pods need no API: whatever fails is reported, and tried again.
    async fn run(self, cancel: CancellationToken) {
        let mut told = String::new();
        loop {
            let round = cancel.child_token();
            let served = tokio::select! {
                () = cancel.cancelled() => return,
                served = self.serve(round.clone()) => served,
            };
            let pause = match served {
                // The certificates are made anew.
                Ok(()) => Duration::ZERO,
                Err(error) => {
                    let words = format!("{error:#}");
                    if told != words {
                        occurrences::server_failed("the embedded API", &words);
                        told = words;
                    }
                    BIND_PAUSE
                }
            };
            tokio::select! {
                () = cancel.cancelled() => return,
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    /// Serves with new certificates, as long as they are used.
    async fn serve(&self, cancel: CancellationToken) -> anyhow::Result<()> {
        let listener = TcpListener::bind(self.address)
            .await
            .with_context(|| format!("failed to listen on {}", self.address))?;
        let address = listener.local_addr()?;
        let (root, parts) = (self.root.clone(), self.parts()?);
        let api = {
            let cancel = cancel.clone();
            disk::blocking(move || {
                let api = EmbeddedApi::new(parts, &cancel)?;
                Ok::<_, io::Error>(api)
            })
            .await
            .with_context(|| format!("failed to use {}", embedded_directory(&root).display()))?
        };
        self.write_kubeconfig(address)?;
        occurrences::embedded_api_served(address, &self.root.join(KUBECONFIG));
        let serving = api.serve(listener, cancel.clone());
        let mut serving = std::pin::pin!(serving);
        tokio::select! {
            () = serving.as_mut() => Ok(()),
            () = tokio::time::sleep(RENEW_PERIOD) => {
                cancel.cancel();
                serving.await;
                Ok(())
            }
        }
    }

    fn parts(&self) -> anyhow::Result<EmbeddedParts> {
        let now = Timestamp::now();
        let authority = Authority::of_root(&self.root, now)?;
        Ok(EmbeddedParts {
            view: Arc::clone(&self.view),
            stats: Arc::clone(&self.stats),
            metrics: self.metrics.clone(),
            node: self.node.clone(),
            directory: embedded_directory(&self.root),
            certificate: authority.server(now)?,
            authority: authority.certificate().as_bytes().to_vec(),
        })
    }

    fn write_kubeconfig(&self, address: SocketAddr) -> anyhow::Result<()> {
        let authority = Authority::of_root(&self.root, Timestamp::now())?;
        let client = authority.client(Timestamp::now())?;
        let path = self.root.join(KUBECONFIG);
        check_ours(&path)?;
        let text = kubeconfig(address, authority.certificate(), &client);
        disk::replace(&path, text.as_bytes())
            .with_context(|| format!("failed to write {}", path.display()))
    }
}

/// Checks that a kubeconfig may be replaced.
fn check_ours(path: &Path) -> anyhow::Result<()> {
    let known = match disk::read_small(path, 1) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => Err(error).with_context(|| format!("failed to read {}", path.display()))?,
        Ok(known) => known,
    };
    anyhow::ensure!(
        known.starts_with(HEAD.as_bytes()),
        "{} was not written by mirrorlet; move it away, or turn the API off with --api-address none",
        path.display()
    );
    Ok(())
}

/// The kubeconfig by which clients find the API.
fn kubeconfig(address: SocketAddr, authority: &str, client: &Credential) -> String {
    let data = |pem: &str| STANDARD.encode(pem);
    format!(
        "{HEAD}apiVersion: v1
kind: Config
clusters:
- name: mirrorlet
  cluster:
    server: https://{address}
    certificate-authority-data: {}
users:
- name: mirrorlet-admin
  user:
    client-certificate-data: {}
    client-key-data: {}
contexts:
- name: mirrorlet
  context:
    cluster: mirrorlet
    user: mirrorlet-admin
current-context: mirrorlet
",
        data(authority),
        data(&client.certificate),
        data(&client.key)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn somebody_elses_kubeconfig_is_left_alone() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join(KUBECONFIG);
        check_ours(&path).unwrap();
        std::fs::write(&path, format!("{HEAD}apiVersion: v1\n")).unwrap();
        check_ours(&path).unwrap();
        std::fs::write(&path, "apiVersion: v1\n").unwrap();
        let refused = check_ours(&path).unwrap_err().to_string();
        assert!(refused.contains("--api-address none"), "{refused}");
    }
}
