//! The node API's own certificate: from files, from the cluster, or self-signed; replaced while
//! connections go on.
//!
//! Upstream: `pkg/kubelet/certificate/kubelet.go`.

mod keys;
#[cfg(test)]
mod tests;

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustls::sign::CertifiedKey;
use sha2::{Digest, Sha256};
use tokio_util::sync::CancellationToken;

pub use self::keys::CertificateError;
use self::keys::{from_pem, self_signed};
use super::tls::Served;
use crate::api::Timestamp;
use crate::config::ServingCertificate;
use crate::telemetry::occurrences;

/// How often files are looked at: a few small ones, and certificates are replaced long before
/// they end.
const LOOK_PERIOD: Duration = Duration::from_secs(10);
/// Largest file that is read, in bytes; honest ones have a few thousand.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// For whom a certificate is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Names {
    /// Name of the Node.
    pub node: String,
    /// Name of the machine.
    pub hostname: String,
    /// Addresses of the Node.
    pub addresses: Vec<IpAddr>,
}

/// Keeps the certificate of the node API.
pub(super) struct CertificateTask {
    served: Arc<Served>,
    names: Names,
    from: ServingCertificate,
    /// Hash of what was taken from files last.
    seen: Option<[u8; 32]>,
    /// The problem that was told last.
    told: Option<String>,
    /// When a certificate of our own is to be replaced.
    renew_at: Timestamp,
}

impl CertificateTask {
    /// A certificate to begin with, and the task that keeps it.
    ///
    /// # Errors
    /// The files that were named can't be used; the system gives no random numbers.
    pub(super) fn begin(
        from: &ServingCertificate,
        names: Names,
    ) -> Result<(Arc<Served>, Self), CertificateError> {
        let now = Timestamp::now();
        let (first, seen, renew_at) = match from {
            ServingCertificate::Files { certificate, key } => {
                let (read, hash) = read(certificate, key)?;
                (read, Some(hash), Timestamp::MAX)
            }
            ServingCertificate::SelfSigned | ServingCertificate::Requested => {
                let (made, renew_at) = self_signed(&names, now)?;
                (made, None, renew_at)
            }
        };
        let served = Arc::new(Served::new(first));
        let task = Self {
            served: Arc::clone(&served),
            names,
            from: from.clone(),
            seen,
            told: None,
            renew_at,
        };
        Ok((served, task))
    }

    /// Runs until cancelled.
    pub(super) async fn run(mut self, cancel: CancellationToken) {
        loop {
            tokio::select! {
                () = cancel.cancelled() => return,
                () = tokio::time::sleep(LOOK_PERIOD) => {}
            }
            self = match tokio::task::spawn_blocking(move || self.looked(Timestamp::now())).await {
                Ok(task) => task,
                // The runtime ends.
                Err(_) => return,
            };
        }
    }

    /// Looks once whether there is a better certificate. Blocks on the disk.
    fn looked(mut self, now: Timestamp) -> Self {
        let better = match &self.from {
            ServingCertificate::Files { certificate, key } => read(certificate, key)
                .map(|(read, hash)| (self.seen.replace(hash) != Some(hash)).then_some(read)),
            ServingCertificate::SelfSigned | ServingCertificate::Requested => self.renewed(now),
        };
        match better {
            Ok(None) => {}
            Ok(Some(better)) => {
                self.served.replace(better);
                self.told = None;
                occurrences::node_certificate_replaced();
            }
            // Replaced files that don't fit together yet: those in use stay.
            Err(error) => {
                let words = error.to_string();
                if self.told.as_ref() != Some(&words) {
                    occurrences::node_certificate_unusable(&words);
                    self.told = Some(words);
                }
            }
        }
        self
    }

    fn renewed(&mut self, now: Timestamp) -> Result<Option<CertifiedKey>, CertificateError> {
        if now < self.renew_at {
            return Ok(None);
        }
        let (made, renew_at) = self_signed(&self.names, now)?;
        self.renew_at = renew_at;
        Ok(Some(made))
    }
}

/// A certificate with its key from two files, and the hash of both.
fn read(certificate: &Path, key: &Path) -> Result<(CertifiedKey, [u8; 32]), CertificateError> {
    let (chain, secret) = (read_small(certificate)?, read_small(key)?);
    let hash = Sha256::new().chain_update(&chain).chain_update(&secret);
    let read = from_pem(&chain, &secret).map_err(|cause| CertificateError::Unusable {
        path: certificate.to_owned(),
        cause,
    })?;
    Ok((read, hash.finalize().into()))
}

pub(super) fn read_small(path: &Path) -> Result<Vec<u8>, CertificateError> {
    let unreadable = |cause: String| CertificateError::Unreadable {
        path: PathBuf::from(path),
        cause,
    };
    let length = std::fs::metadata(path)
        .map_err(|error| unreadable(error.to_string()))?
        .len();
    if length > FILE_BYTES_MAX {
        return Err(unreadable("it is larger than 1 MiB".to_owned()));
    }
    std::fs::read(path).map_err(|error| unreadable(error.to_string()))
}
