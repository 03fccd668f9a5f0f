//! A certificate from the cluster: requested, awaited, stored on disk.
//!
//! The key is on disk before the request is created, and the request is named after its key: an agent
//! that restarts in between finds its own request when it asks again, and no second approval is needed.
//!
//! Upstream: `k8s.io/client-go/util/certificate` (`certificate_manager.go`,
//! `certificate_store.go`), `pkg/kubelet/certificate/bootstrap/bootstrap.go` (`LoadClientCert`).

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use async_trait::async_trait;
use rustls::client::verify_server_name;
use rustls::pki_types::ServerName;
use rustls::server::ParsedCertificate;
use rustls::sign::CertifiedKey;

use super::keys::{CertificateError, from_pem, new_key, request};
use super::{FILE_MIB_MAX, Leaf, keys};
use mirrorlet_core::api::Timestamp;
use mirrorlet_core::certificate::{self as decide, Next, Outcome, Validity, node_user};
use mirrorlet_host::disk;

/// The purpose of a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// To call the API server with.
    Client,
    /// To be called by it.
    Serving,
}

/// The requested certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Order {
    /// Its purpose.
    pub purpose: Purpose,
    /// Name of the Node.
    pub node: String,
    /// Names in it. The approver of a serving certificate compares them with the Node's status.
    pub hosts: Vec<String>,
    /// Addresses in it.
    pub addresses: Vec<IpAddr>,
}

/// A request for a certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateRequest {
    /// The name that it gets.
    pub name: String,
    /// The purpose.
    pub purpose: Purpose,
    /// The request itself, in PEM.
    pub pem: String,
}

/// Why nothing is known of a request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{cause}")]
pub struct SignError {
    /// Why.
    pub cause: String,
    /// Whether the API server was away: it will be back.
    pub is_away: bool,
}

/// Has certificates signed by the cluster.
#[async_trait]
pub trait Signer: Send + Sync + 'static {
    /// Makes a request, unless there is one of its name.
    ///
    /// # Errors
    /// The API server did not answer, or refused.
    async fn request(&self, request: &CertificateRequest) -> Result<(), SignError>;

    /// Returns the outcome of the request of that name.
    ///
    /// # Errors
    /// The API server did not answer, or refused.
    async fn outcome(&self, name: &str) -> Result<Outcome, SignError>;
}

/// A certificate that was signed.
#[derive(Debug, Clone)]
pub struct Issued {
    /// Chain and key.
    pub certified: CertifiedKey,
    /// How long it is valid.
    pub validity: Validity,
    /// As it is kept: the chain, then its key, in PEM.
    pem: String,
}

impl Issued {
    fn read(pem: String) -> Result<Self, CertificateError> {
        let unsigned = CertificateError::Unsigned;
        let certified = from_pem(pem.as_bytes(), pem.as_bytes()).map_err(unsigned)?;
        let leaf = certified.cert.first().and_then(|der| Leaf::read(der));
        let leaf =
            leaf.ok_or_else(|| unsigned("the signed certificate can't be parsed".to_owned()))?;
        Ok(Self {
            certified,
            validity: leaf.validity(),
            pem,
        })
    }
}

/// The progress of a certificate request.
#[derive(Debug)]
pub enum Progress {
    /// The API server is unreachable, which is reported elsewhere.
    Away(String),
    /// The request of that name waits for approval, or to be signed.
    Waiting {
        /// Its name.
        name: String,
        /// For how long it waits, as far as this agent knows.
        waited: Duration,
    },
    /// The certificate can't be obtained now.
    Failed(CertificateError),
    /// It was signed. Nothing is stored before [`Requested::keep`].
    Issued(Box<Issued>),
}

/// A request that was made.
#[derive(Debug)]
struct Pending {
    name: String,
    key: String,
    since: Timestamp,
}

/// Requests one certificate from the cluster, and its renewals.
#[derive(Debug)]
pub struct Requested {
    order: Order,
    /// The file of the certificate and its key.
    current: PathBuf,
    /// The file of the next certificate's key until it is signed.
    next_key: PathBuf,
    pending: Option<Pending>,
    /// Refusals on end.
    refusals: u32,
}

impl Requested {
    /// Requests that certificate and stores it in that directory.
    pub fn new(order: Order, directory: &Path) -> Self {
        let name = match order.purpose {
            Purpose::Client => "client",
            Purpose::Serving => "node-api",
        };
        Self {
            order,
            current: directory.join(format!("{name}-current.pem")),
            next_key: directory.join(format!("{name}-next.key")),
            pending: None,
            refusals: 0,
        }
    }

    /// The file of the certificate and its key. It does not exist before the first was stored.
    pub fn file(&self) -> &Path {
        &self.current
    }

    /// Returns the stored certificate if it is still valid. Blocks on the disk.
    pub fn kept(&self, now: Timestamp) -> Option<Issued> {
        let pem = String::from_utf8(disk::read_small(&self.current, FILE_MIB_MAX).ok()?).ok()?;
        let issued = Issued::read(pem).ok()?;
        (now < issued.validity.not_after).then_some(issued)
    }

    /// Whether a certificate matches the whole order: it may have been ordered by an agent with another
    /// name or other addresses.
    ///
    /// Upstream: `certSatisfiesTemplateLocked` of `certificate_manager.go`.
    pub fn fits(&self, certified: &CertifiedKey) -> bool {
        let Some(own) = certified.cert.first() else {
            return false;
        };
        let user = node_user(&self.order.node);
        if Leaf::read(own).is_none_or(|leaf| leaf.common_name != user) {
            return false;
        }
        let Ok(parsed) = ParsedCertificate::try_from(own) else {
            return false;
        };
        let hosts = self.order.hosts.iter();
        // No client can request an invalid name.
        let hosts = hosts.filter_map(|host| ServerName::try_from(host.as_str()).ok());
        let addresses = self.order.addresses.iter();
        let addresses = addresses.map(|address| ServerName::IpAddress((*address).into()));
        hosts
            .chain(addresses)
            .all(|name| verify_server_name(&parsed, &name).is_ok())
    }

    /// Orders a different certificate from now on. A request for the previous one is abandoned.
    pub fn reorder(&mut self, order: Order) {
        self.order = order;
        self.pending = None;
    }

    /// Takes one step: creates a request, or checks its outcome. Returns how long to wait before the
    /// next step.
    ///
    /// # Cancel safety
    /// A request in progress is repeated.
    pub async fn step(&mut self, signer: &dyn Signer, now: Timestamp) -> (Progress, Duration) {
        let Some(pending) = &self.pending else {
            return self.ask(signer, now).await;
        };
        let waited = Duration::try_from(now.duration_since(pending.since)).unwrap_or_default();
        let outcome = match signer.outcome(&pending.name).await {
            Ok(outcome) => outcome,
            Err(error) => return self.unanswered(error),
        };
        let name = pending.name.clone();
        match decide::next(outcome, waited) {
            Next::Wait(pause) => (Progress::Waiting { name, waited }, pause),
            Next::AskAgain => {
                self.pending = None;
                self.ask(signer, now).await
            }
            Next::Refused(words) => {
                self.refused(CertificateError::Unsigned(format!(
                    "request {name}: {words}"
                )))
                .await
            }
            Next::Take(chain) => match self.take(&chain, now) {
                Ok(issued) => (Progress::Issued(Box::new(issued)), decide::idle_pause()),
                Err(error) => self.refused(error).await,
            },
        }
    }

    async fn ask(&mut self, signer: &dyn Signer, now: Timestamp) -> (Progress, Duration) {
        let next_key = self.next_key.clone();
        let key = match disk::blocking(move || key_on_disk(&next_key)).await {
            Ok(key) => key,
            Err(error) => return self.failed(error),
        };
        let request = match request(&self.order, &key) {
            Ok(request) => request,
            Err(error) => return self.failed(error),
        };
        if let Err(error) = signer.request(&request).await {
            return self.unanswered(error);
        }
        let name = request.name;
        self.pending = Some(Pending {
            name: name.clone(),
            key,
            since: now,
        });
        let waited = Duration::ZERO;
        (Progress::Waiting { name, waited }, decide::asked_pause())
    }

    fn take(&self, chain: &str, now: Timestamp) -> Result<Issued, CertificateError> {
        let key = self.pending.as_ref();
        let key = key.map(|pending| pending.key.as_str()).unwrap_or_default();
        let issued = Issued::read(format!("{}\n{key}", chain.trim_end()))?;
        if issued.validity.not_after <= now {
            let words = "the signed certificate has already expired".to_owned();
            return Err(CertificateError::Unsigned(words));
        }
        Ok(issued)
    }

    /// Stores the signed certificate, so that the next start needs no approval.
    ///
    /// # Errors
    /// The disk refuses. The request stays, and the next step finds it again.
    ///
    /// # Cancel safety
    /// It is stored, or nothing has changed.
    pub async fn keep(&mut self, issued: &Issued) -> Result<(), CertificateError> {
        let (current, next_key) = (self.current.clone(), self.next_key.clone());
        let pem = issued.pem.clone();
        disk::blocking(move || {
            disk::replace(&current, pem.as_bytes())
                .and_then(|()| disk::remove(&next_key))
                .map_err(|error| CertificateError::Unkept(error.to_string()))
        })
        .await?;
        self.pending = None;
        self.refusals = 0;
        Ok(())
    }

    /// The request is refused for good: the next one has another key, and so another name.
    async fn refused(&mut self, error: CertificateError) -> (Progress, Duration) {
        let next_key = self.next_key.clone();
        let forgotten = disk::blocking(move || disk::remove(&next_key)).await;
        self.pending = None;
        match forgotten {
            Ok(()) => self.failed(error),
            Err(disk) => self.failed(CertificateError::Unkept(disk.to_string())),
        }
    }

    fn failed(&mut self, error: CertificateError) -> (Progress, Duration) {
        self.refusals = self.refusals.saturating_add(1);
        let pause = decide::refused_pause(self.refusals);
        (Progress::Failed(error), pause)
    }

    fn unanswered(&mut self, error: SignError) -> (Progress, Duration) {
        let progress = if error.is_away {
            Progress::Away(error.cause)
        } else {
            self.failed(CertificateError::Unsigned(error.cause)).0
        };
        let pause = decide::unanswered_pause(error.is_away, self.refusals);
        (progress, pause)
    }
}

/// The key that a request was made with, or is about to be. Blocks on the disk.
fn key_on_disk(file: &Path) -> Result<String, CertificateError> {
    let known = disk::read_small(file, FILE_MIB_MAX)
        .ok()
        .and_then(|key| String::from_utf8(key).ok());
    if let Some(known) = known
        && keys::is_key(&known)
    {
        return Ok(known);
    }
    let key = new_key()?;
    disk::replace(file, key.as_bytes()).map_err(|error| {
        CertificateError::Unmade(format!(
            "failed to write its key to {}: {error}",
            file.display()
        ))
    })?;
    Ok(key)
}
