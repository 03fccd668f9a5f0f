//! A certificate of the cluster's: requested, waited for, kept on disk, renewed.
//!
//! Upstream: `k8s.io/client-go/util/certificate` (`certificate_manager.go`), signer
//! `kubernetes.io/kubelet-serving`. Somebody has to approve each request; until then, and after a
//! certificate has ended unrenewed, the API is served with one of our own.

use std::hash::{BuildHasher as _, RandomState};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use rustls::sign::CertifiedKey;

use super::keys::{CertificateError, Request, from_pem, request};
use super::{Names, read_small};
use crate::api::Timestamp;
use crate::server::node::auth::der::Leaf;

/// Name of the file below the directory of certificates: the chain, then its key.
const CURRENT: &str = "node-api-current.pem";
/// Pause between two looks whether a fresh request was signed, and for how long it is fresh: an
/// approver that is a program takes seconds.
const FRESH_PAUSE: Duration = Duration::from_secs(2);
const FRESH_FOR: Duration = Duration::from_mins(1);
/// Pause after that: people take longer.
const PAUSE: Duration = Duration::from_secs(30);
/// How long a request is waited for before another is made.
///
/// Upstream: `certificateWaitTimeout`.
const WAIT_MAX: Duration = Duration::from_mins(15);
/// Pause after a request was denied, or could not be made.
const REFUSED_PAUSE: Duration = Duration::from_mins(5);
/// Pause while the API server is away.
const AWAY_PAUSE: Duration = Duration::from_secs(10);

/// What became of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Nobody has decided yet, or it isn't signed yet.
    Pending,
    /// It was signed: the chain, in PEM.
    Issued(String),
    /// It was denied, or could not be signed, in these words.
    Refused(String),
    /// There is no such request any more.
    Gone,
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
    /// Makes a request (PEM), and says its name.
    ///
    /// # Errors
    /// The API server did not answer, or refused.
    async fn request(&self, request: &str) -> Result<String, SignError>;

    /// What became of the request of that name.
    ///
    /// # Errors
    /// The API server did not answer, or refused.
    async fn outcome(&self, name: &str) -> Result<Outcome, SignError>;
}

/// A request that was made.
struct Pending {
    name: String,
    key: String,
    since: Timestamp,
}

/// Keeps a certificate of the cluster's.
pub(super) struct Requested {
    signer: Arc<dyn Signer>,
    names: Names,
    file: PathBuf,
    pending: Option<Pending>,
    /// When the one in use is to be renewed; at once, where there is none.
    renew_at: Timestamp,
}

/// What a look brings: a certificate, or none, and when to look again.
pub(super) type Look = (Result<Option<CertifiedKey>, CertificateError>, Duration);

impl Requested {
    /// The certificate that was kept, if it is still good, and what renews it.
    pub(super) fn begin(
        signer: Arc<dyn Signer>,
        names: Names,
        directory: &Path,
        now: Timestamp,
    ) -> (Option<CertifiedKey>, Self) {
        let file = directory.join(CURRENT);
        let kept = kept(&file, now);
        let renew_at = kept
            .as_ref()
            .map_or(Timestamp::MIN, |(_, leaf)| renewal(leaf));
        let requested = Self {
            signer,
            names,
            file,
            pending: None,
            renew_at,
        };
        (kept.map(|(certificate, _)| certificate), requested)
    }

    /// Goes one step on: makes a request where one is due, or sees what became of it.
    ///
    /// # Cancel safety
    /// A request that was on its way is made again.
    pub(super) async fn look(&mut self, now: Timestamp) -> Look {
        let Some(pending) = &self.pending else {
            if now < self.renew_at {
                return (Ok(None), PAUSE);
            }
            return self.ask(now).await;
        };
        let waited = Duration::try_from(now.duration_since(pending.since)).unwrap_or_default();
        match self.signer.outcome(&pending.name).await {
            Ok(Outcome::Issued(chain)) => {
                let taken = self.take(&chain, now);
                self.pending = None;
                match taken {
                    Ok(certificate) => (Ok(Some(certificate)), PAUSE),
                    Err(error) => (Err(error), REFUSED_PAUSE),
                }
            }
            Ok(Outcome::Pending) if waited < FRESH_FOR => (Ok(None), FRESH_PAUSE),
            Ok(Outcome::Pending) if waited < WAIT_MAX => {
                let words = format!(
                    "request {} waits for approval (kubectl certificate approve {})",
                    pending.name, pending.name
                );
                (Err(CertificateError::Unsigned(words)), PAUSE)
            }
            Ok(Outcome::Pending | Outcome::Gone) => {
                self.pending = None;
                (Ok(None), Duration::ZERO)
            }
            Ok(Outcome::Refused(words)) => {
                let words = format!("request {}: {words}", pending.name);
                self.pending = None;
                (Err(CertificateError::Unsigned(words)), REFUSED_PAUSE)
            }
            Err(error) => unanswered(error),
        }
    }

    async fn ask(&mut self, now: Timestamp) -> Look {
        let Request { pem, key } = match request(&self.names) {
            Ok(made) => made,
            Err(error) => return (Err(error), REFUSED_PAUSE),
        };
        match self.signer.request(&pem).await {
            Ok(name) => {
                self.pending = Some(Pending {
                    name,
                    key,
                    since: now,
                });
                (Ok(None), FRESH_PAUSE)
            }
            Err(error) => unanswered(error),
        }
    }

    /// Takes what was signed, and keeps it: the next start needs nobody's approval.
    fn take(&mut self, chain: &str, now: Timestamp) -> Result<CertifiedKey, CertificateError> {
        let key = self
            .pending
            .as_ref()
            .map(|pending| pending.key.as_str())
            .unwrap_or_default();
        let unsigned = CertificateError::Unsigned;
        let certificate = from_pem(chain.as_bytes(), key.as_bytes()).map_err(unsigned)?;
        let leaf = certificate.cert.first().and_then(|der| Leaf::read(der));
        let leaf = leaf.ok_or_else(|| unsigned("what was signed can't be read".to_owned()))?;
        if leaf.not_after <= now {
            return Err(unsigned("what was signed has ended already".to_owned()));
        }
        self.renew_at = renewal(&leaf);
        let kept = format!("{}\n{key}", chain.trim_end());
        write_secret(&self.file, kept.as_bytes())
            .map_err(|error| CertificateError::Unkept(error.to_string()))?;
        Ok(certificate)
    }
}

fn unanswered(error: SignError) -> Look {
    // That the API server is away, somebody else tells.
    if error.is_away {
        (Ok(None), AWAY_PAUSE)
    } else {
        (Err(CertificateError::Unsigned(error.cause)), REFUSED_PAUSE)
    }
}

/// When seven to nine tenths of a certificate's time are over; nodes that started together don't
/// come together.
///
/// Upstream: `jitteryDuration`.
fn renewal(leaf: &Leaf) -> Timestamp {
    let whole = leaf.not_after.duration_since(leaf.not_before);
    let tenths = u32::try_from(RandomState::new().hash_one(0) % 1000).unwrap_or_default();
    let share = 0.7 + 0.2 * f64::from(tenths) / 1000.0;
    let after = Duration::try_from(whole).unwrap_or_default().mul_f64(share);
    leaf.not_before
        .saturating_add(after)
        .unwrap_or(leaf.not_after)
}

/// What was kept, if it is still good.
fn kept(file: &Path, now: Timestamp) -> Option<(CertifiedKey, Leaf)> {
    let pem = read_small(file).ok()?;
    let certificate = from_pem(&pem, &pem).ok()?;
    let leaf = Leaf::read(certificate.cert.first()?)?;
    (now < leaf.not_after).then_some((certificate, leaf))
}

/// Writes a file that only we can read, next door, and renames it in.
fn write_secret(file: &Path, bytes: &[u8]) -> std::io::Result<()> {
    if let Some(directory) = file.parent() {
        std::fs::create_dir_all(directory)?;
    }
    let next_door = file.with_extension("new");
    match std::fs::remove_file(&next_door) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let mut options = std::fs::OpenOptions::new();
    let mut written = options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&next_door)?;
    written.write_all(bytes)?;
    written.sync_all()?;
    std::fs::rename(next_door, file)
}
