//! Wires the embedded API: its authority, its kubeconfig, its port. Off if there is a cluster.

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

use super::{Parts, spawn_until};
use crate::certificate::{Authority, CLOCKS_APART, Credential, SIGNED_FOR};
use crate::config::{ApiAccess, Config};
use crate::server::embedded::{EmbeddedApi, EmbeddedParts, Renewal};
use crate::server::health::Served;
use crate::source::files::embedded_directory;
use mirrorlet_core::api::Timestamp;
use mirrorlet_host::disk;
use mirrorlet_host::telemetry::occurrences;

/// Name of the kubeconfig under the root.
const KUBECONFIG: &str = "kubeconfig";
/// The first line of the kubeconfig: without it the file is not ours.
const HEAD: &str = "# Written by mirrorlet for its own API; it is replaced at each start.\n";
/// Pause after the port could not be bound. It doesn't grow: an attempt is a few system calls, and a
/// failure that repeats is reported once.
const BIND_PAUSE: Duration = Duration::from_secs(10);
/// The part of their life after which certificates are replaced: a twelfth, a month of a year.
const RENEWED_AFTER: u32 = 12;
/// Interval of checks of the clock for that: it may have been set.
const LOOK_PERIOD: Duration = Duration::from_mins(1);

/// Whether the embedded API is served: not if there is a cluster, which has its own.
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
        "failed to serve the embedded API on {address}: it listens only on loopback addresses; use --api-address 127.0.0.1:PORT, or none"
    );
    let wiring = Wiring {
        address,
        root: config.root.clone(),
        node: config.node_name.clone(),
        view: Arc::clone(&served.view),
        metrics: served.metrics.clone(),
        life: SIGNED_FOR,
    };
    spawn_until(parts, cancel, "embedded API", wiring.run(cancel.clone()));
    Ok(())
}

struct Wiring {
    address: SocketAddr,
    root: PathBuf,
    node: mirrorlet_core::api::NodeName,
    view: Arc<dyn crate::server::AgentView>,
    metrics: mirrorlet_host::telemetry::Metrics,
    /// The validity of certificates.
    life: Duration,
}

impl Wiring {
    /// Serves until cancelled. Pods need no API: whatever fails is reported, and tried again.
    async fn run(self, cancel: CancellationToken) {
        let mut reported = String::new();
        loop {
            if let Err(error) = Box::pin(self.serve(cancel.child_token())).await {
                let words = format!("{error:#}");
                if reported != words {
                    occurrences::server_failed("the embedded API", &words);
                    reported = words;
                }
            }
            tokio::time::sleep(BIND_PAUSE).await;
        }
    }

    /// Serves, and replaces the certificates long before they end.
    async fn serve(&self, cancel: CancellationToken) -> anyhow::Result<()> {
        let listener = TcpListener::bind(self.address)
            .await
            .with_context(|| format!("failed to listen on {}", self.address))?;
        let address = listener.local_addr()?;
        let now = Timestamp::now();
        let (root, parts) = (self.root.clone(), self.parts(now)?);
        let api = {
            let cancel = cancel.clone();
            disk::blocking(move || {
                let api = EmbeddedApi::new(parts, &cancel)?;
                Ok::<_, io::Error>(api)
            })
            .await
            .with_context(|| format!("failed to use {}", embedded_directory(&root).display()))?
        };
        let written = self.write_kubeconfig(address, now);
        let issued = written.is_ok().then_some(now);
        if let Err(error) = written {
            // On a disk that takes nothing, clients have that of an earlier start.
            if !self.has_kubeconfig(address, now) {
                return Err(error);
            }
            occurrences::embedded_api_kubeconfig_kept(&format!("{error:#}"));
        }
        occurrences::embedded_api_served(address, &self.root.join(KUBECONFIG));
        let renewal = api.renewal();
        tokio::select! {
            () = api.serve(listener, cancel) => {}
            () = self.renew(&renewal, address, issued) => {}
        }
        Ok(())
    }

    /// Replaces the certificates whenever they are due; never returns. `issued` is when the current
    /// ones were issued; none if they are not in the kubeconfig. Failures are retried: the current ones
    /// are valid for most of their lifetime then.
    async fn renew(&self, renewal: &Renewal, address: SocketAddr, mut issued: Option<Timestamp>) {
        let period = LOOK_PERIOD.min(self.life / RENEWED_AFTER);
        let mut reported = String::new();
        loop {
            tokio::time::sleep(period).await;
            let now = Timestamp::now();
            if issued.is_some_and(|issued| !is_due(issued, self.life, now)) {
                continue;
            }
            let renewed = self.parts(now).and_then(|parts| {
                renewal.replace(parts.certificate, &parts.authority)?;
                self.write_kubeconfig(address, now)
            });
            match renewed {
                Ok(()) => {
                    issued = Some(now);
                    reported.clear();
                    occurrences::embedded_api_renewed(&self.root.join(KUBECONFIG));
                }
                Err(error) => {
                    let words = format!("{error:#}");
                    if reported != words {
                        occurrences::embedded_api_not_renewed(&words);
                        reported = words;
                    }
                }
            }
        }
    }

    fn authority(&self, now: Timestamp) -> anyhow::Result<Authority> {
        Ok(Authority::of_root(&self.root, now)?.signing_for(self.life))
    }

    fn parts(&self, now: Timestamp) -> anyhow::Result<EmbeddedParts> {
        let authority = self.authority(now)?;
        Ok(EmbeddedParts {
            view: Arc::clone(&self.view),
            metrics: self.metrics.clone(),
            node: self.node.clone(),
            directory: embedded_directory(&self.root),
            certificate: authority.server(now)?,
            authority: authority.certificate().as_bytes().to_vec(),
        })
    }

    /// Whether there is a kubeconfig by which clients find the API that is served now.
    fn has_kubeconfig(&self, address: SocketAddr, now: Timestamp) -> bool {
        let authority = self.authority(now);
        let known = disk::read_small(&self.root.join(KUBECONFIG), 1);
        let (Ok(authority), Ok(known)) = (authority, known) else {
            return false;
        };
        let known = String::from_utf8_lossy(&known);
        leads_to(&known, address, authority.certificate())
    }

    fn write_kubeconfig(&self, address: SocketAddr, now: Timestamp) -> anyhow::Result<()> {
        let authority = self.authority(now)?;
        let client = authority.client(now)?;
        let path = self.root.join(KUBECONFIG);
        check_ours(&path)?;
        let text = kubeconfig(address, authority.certificate(), &client);
        disk::replace(&path, text.as_bytes())
            .with_context(|| format!("failed to write {}", path.display()))
    }
}

/// Whether certificates issued at `issued` with lifetime `life` must be replaced: a part of it is over,
/// or the clock was set to a time before their validity.
fn is_due(issued: Timestamp, life: Duration, now: Timestamp) -> bool {
    let begin = issued.saturating_sub(CLOCKS_APART).unwrap_or(issued);
    let due = issued.saturating_add(life / RENEWED_AFTER);
    now < begin || now >= due.unwrap_or(issued)
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

/// Whether a file is a kubeconfig of ours for the API with that address and authority.
fn leads_to(kubeconfig: &str, address: SocketAddr, authority: &str) -> bool {
    let authority = STANDARD.encode(authority);
    kubeconfig.starts_with(HEAD)
        && kubeconfig.contains(&format!("server: https://{address}\n"))
        && kubeconfig.contains(&format!("certificate-authority-data: {authority}\n"))
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
    use mirrorlet_host::telemetry::Metrics;

    use super::*;
    use crate::server::fake::FakeView;

    /// Whether the API takes a client with that kubeconfig.
    async fn is_taken(kubeconfig: &str) -> bool {
        let parsed = kube::config::Kubeconfig::from_yaml(kubeconfig).unwrap();
        let options = kube::config::KubeConfigOptions::default();
        let config = kube::Config::from_custom_kubeconfig(parsed, &options).await;
        let client = kube::Client::try_from(config.unwrap()).unwrap();
        client.apiserver_version().await.is_ok()
    }

    /// An embedded API that is served.
    struct Serving {
        parts: Parts,
        cancel: CancellationToken,
    }

    impl Serving {
        fn begin(root: &Path, address: SocketAddr, life: Duration) -> Self {
            std::fs::create_dir_all(embedded_directory(root)).unwrap();
            let wiring = Wiring {
                address,
                root: root.to_owned(),
                node: "box".into(),
                view: Arc::new(FakeView::new()),
                metrics: Metrics::default(),
                life,
            };
            let (mut parts, cancel) = (Parts::new(), CancellationToken::new());
            let serving = wiring.run(cancel.clone());
            spawn_until(&mut parts, &cancel, "embedded API", serving);
            Self { parts, cancel }
        }

        async fn end(mut self) {
            self.cancel.cancel();
            self.parts.join_next().await.unwrap().unwrap();
        }
    }

    #[tokio::test]
    async fn certificates_are_replaced_before_they_end_and_nothing_is_cut_off() {
        let root = tempfile::tempdir().unwrap();
        let address = ([127, 0, 0, 1], 0).into();
        let serving = Serving::begin(root.path(), address, Duration::from_secs(2));
        let path = root.path().join(KUBECONFIG);
        let read = || std::fs::read_to_string(&path).ok();
        let first = loop {
            match read() {
                Some(text) => break text,
                None => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        };
        let server = |text: &str| {
            let mut lines = text.lines();
            let line = lines.find(|line| line.contains("server:"));
            line.unwrap().to_owned()
        };
        // The first certificates end; those of the day are taken all the time, at one address.
        let mut seen = std::collections::BTreeSet::new();
        loop {
            let newest = read().unwrap();
            assert_eq!(server(&newest), server(&first));
            // embedded 32
            assert!(is_taken(&newest).await);
            seen.insert(newest);
            if !is_taken(&first).await {
                break;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        assert!(seen.len() > 2, "{}", seen.len());
        serving.end().await;
    }

    #[tokio::test]
    async fn the_api_is_served_where_the_disk_takes_no_kubeconfig() {
        let root = tempfile::tempdir().unwrap();
        let life = Duration::from_hours(24);
        // Of an earlier start, at a port that is free.
        let address = {
            let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
            listener.local_addr().unwrap()
        };
        let now = Timestamp::now();
        let authority = Authority::of_root(root.path(), now).unwrap();
        let client = authority.client(now).unwrap();
        let earlier = kubeconfig(address, authority.certificate(), &client);
        let path = root.path().join(KUBECONFIG);
        std::fs::write(&path, &earlier).unwrap();
        let obstacle = root
            .path()
            .join(format!("{KUBECONFIG}{}", disk::TEMP_SUFFIX));
        std::fs::create_dir_all(obstacle.join("x")).unwrap();
        let serving = Serving::begin(root.path(), address, life);
        while !is_taken(&earlier).await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        // embedded 68
        assert_eq!(std::fs::read_to_string(&path).unwrap(), earlier);
        serving.end().await;
    }

    #[test]
    fn a_kubeconfig_leads_to_one_address_with_one_authority() {
        let root = tempfile::tempdir().unwrap();
        let now = Timestamp::now();
        let authority = Authority::of_root(root.path(), now).unwrap();
        let client = authority.client(now).unwrap();
        let at = |port: u16| SocketAddr::from(([127, 0, 0, 1], port));
        let own = authority.certificate();
        let ours = kubeconfig(at(10), own, &client);
        let theirs = ours.replace(HEAD, "");
        for (text, port, authority, expected) in [
            (&ours, 10, own, true),
            (&ours, 1, own, false),
            (&ours, 10, "another", false),
            (&theirs, 10, own, false),
        ] {
            let leads = leads_to(text, at(port), authority);
            // embedded 68
            assert_eq!(leads, expected, "{port} {authority}");
        }
    }

    #[test]
    fn certificates_are_due_by_the_clock_whichever_way_it_is_set() {
        const DAY: i64 = 24 * 60;
        let issued: Timestamp = "2026-01-02T03:04:05Z".parse().unwrap();
        for (minutes, expected) in [
            (0, false),
            (1, false),
            (30 * DAY, false),
            (31 * DAY, true),
            // The agent started with a clock that was behind, or ahead.
            (50 * 365 * DAY, true),
            (-59, false),
            (-61, true),
            (-50 * 365 * DAY, true),
        ] {
            let now = Timestamp::from_second(issued.as_second() + minutes * 60).unwrap();
            // embedded 32
            assert_eq!(is_due(issued, SIGNED_FOR, now), expected, "{minutes}");
        }
    }

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
