//! The node API's certificate: from files, from the cluster, or self-signed; replaced without closing
//! connections.
//!
//! Upstream: `pkg/kubelet/certificate/kubelet.go`.

mod keys;
#[cfg(test)]
pub(in crate::server::node) mod tests;

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustls::sign::CertifiedKey;
use sha2::{Digest, Sha256};

use self::keys::self_signed;
use super::tls::Served;
use crate::certificate::{
    CertificateError, FILE_MIB_MAX, Leaf, Order, Progress, Purpose, Requested, Signer, from_pem,
    renewal,
};
use crate::store::cell::Reader;
use mirrorlet_core::api::Timestamp;
use mirrorlet_core::certificate as decide;
use mirrorlet_host::disk;
use mirrorlet_host::telemetry::{Metrics, occurrences};

/// Interval of checks of files: they are few and small, and certificates are replaced long before they
/// expire.
const LOOK_PERIOD: Duration = Duration::from_secs(10);

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

/// The origin of the certificate, with the data that it requires.
pub enum Origin {
    /// Made by ourselves.
    Own,
    /// Files.
    Files {
        /// Certificate and intermediates.
        certificate: PathBuf,
        /// Private key.
        key: PathBuf,
    },
    /// Signed by the cluster.
    Cluster {
        /// The signer of requests.
        signer: Arc<dyn Signer>,
        /// Where it is kept.
        directory: PathBuf,
    },
}

/// Where the certificate is from, and what is remembered of that.
enum Source {
    Own,
    Files {
        certificate: PathBuf,
        key: PathBuf,
        /// Hash of what was taken last.
        seen: [u8; 32],
    },
    Cluster {
        signer: Arc<dyn Signer>,
        requested: Box<Requested>,
        /// When to renew the current one; immediately if there is none.
        renew_at: Timestamp,
    },
}

/// Keeps the certificate of the node API.
pub(super) struct CertificateTask {
    served: Arc<Served>,
    names: Names,
    /// The addresses among the names, where they may change.
    addresses: Option<Reader<Vec<IpAddr>>>,
    source: Source,
    /// The problem reported last.
    reported: Option<String>,
    /// When to replace a self-signed certificate, if one is in use.
    renew_at: Timestamp,
    metrics: Metrics,
}

impl CertificateTask {
    /// Returns the first certificate, and the task that maintains it.
    ///
    /// # Errors
    /// The configured files can't be used; the system provides no random numbers.
    pub(super) fn begin(
        origin: Origin,
        names: Names,
        metrics: Metrics,
    ) -> Result<(Arc<Served>, Self), CertificateError> {
        let now = Timestamp::now();
        let (first, source) = match origin {
            Origin::Own => (None, Source::Own),
            Origin::Files { certificate, key } => {
                let (read, seen) = read(&certificate, &key)?;
                let files = Source::Files {
                    certificate,
                    key,
                    seen,
                };
                (Some(read), files)
            }
            Origin::Cluster { signer, directory } => {
                let requested = Requested::new(order(&names), &directory);
                let kept = requested.kept(now);
                let renew_at = match &kept {
                    Some(kept) if requested.fits(&kept.certified) => renewal(&kept.validity),
                    // Better than a self-signed one.
                    Some(_) => {
                        occurrences::node_certificate_outdated();
                        Timestamp::MIN
                    }
                    None => Timestamp::MIN,
                };
                let cluster = Source::Cluster {
                    signer,
                    requested: Box::new(requested),
                    renew_at,
                };
                (kept.map(|kept| kept.certified), cluster)
            }
        };
        let (first, renew_at) = match first {
            Some(first) => (first, Timestamp::MAX),
            None => self_signed(&names, now)?,
        };
        let served = Arc::new(Served::new(first));
        set_end_metrics(&metrics, &served.get());
        let task = Self {
            served: Arc::clone(&served),
            names,
            addresses: None,
            source,
            reported: None,
            renew_at,
            metrics,
        };
        Ok((served, task))
    }

    /// The same, for a Node whose addresses may change.
    #[must_use]
    pub(super) fn following(self, addresses: Reader<Vec<IpAddr>>) -> Self {
        Self {
            addresses: Some(addresses),
            ..self
        }
    }

    /// Runs until cancelled.
    pub(super) async fn run(mut self) {
        let mut pause = Duration::ZERO;
        loop {
            let mut addresses = self.addresses.take();
            let changed = async {
                match &mut addresses {
                    Some(addresses) => addresses.changed().await.ok(),
                    None => None,
                }
            };
            tokio::select! {
                () = tokio::time::sleep(pause) => pause = self.look(Timestamp::now()).await,
                // Not where they are configured.
                Some(now) = changed => {
                    self.readdress(&now);
                    // The Node's status has them first: an approver compares them.
                    pause = LOOK_PERIOD;
                }
            }
            self.addresses = addresses;
        }
    }

    /// Switches to other addresses: the next check creates or requests a certificate for them.
    fn readdress(&mut self, addresses: &[IpAddr]) {
        if self.names.addresses == addresses {
            return;
        }
        self.names.addresses = addresses.to_vec();
        if let Source::Cluster {
            requested,
            renew_at,
            ..
        } = &mut self.source
        {
            requested.reorder(order(&self.names));
            if !requested.fits(&self.served.get()) {
                occurrences::node_certificate_outdated();
                *renew_at = Timestamp::MIN;
            }
        }
        // One of our own, if it is in use.
        if self.renew_at != Timestamp::MAX {
            self.renew_at = Timestamp::MIN;
        }
    }

    /// Checks once whether there is a better certificate; returns how long to wait for the next check.
    async fn look(&mut self, now: Timestamp) -> Duration {
        let (better, pause) = match &mut self.source {
            Source::Own => (Ok(None), LOOK_PERIOD),
            Source::Files {
                certificate,
                key,
                seen,
            } => {
                let paths = (certificate.clone(), key.clone());
                let read = disk::blocking(move || read(&paths.0, &paths.1)).await;
                let better = read
                    .map(|(read, hash)| (std::mem::replace(seen, hash) != hash).then_some(read));
                (better, LOOK_PERIOD)
            }
            Source::Cluster {
                signer,
                requested,
                renew_at,
            } => from_cluster(&**signer, requested, renew_at, now).await,
        };
        match better {
            // The files are valid again: a further failure is reported.
            Ok(None) if matches!(self.source, Source::Files { .. }) => self.reported = None,
            Ok(None) => {}
            Ok(Some(better)) => {
                self.reported = None;
                self.show(better, Timestamp::MAX);
            }
            // Replaced files that don't match yet, or no signer: the current one stays.
            Err(error) => self.report(&error),
        }
        if now >= self.renew_at {
            match self_signed(&self.names, now) {
                Ok((made, renew_at)) => self.show(made, renew_at),
                Err(error) => self.report(&error),
            }
        }
        pause
    }

    /// Shows another one from now on.
    fn show(&mut self, certificate: CertifiedKey, renew_at: Timestamp) {
        set_end_metrics(&self.metrics, &certificate);
        self.served.replace(certificate);
        self.renew_at = renew_at;
        occurrences::node_certificate_replaced();
    }

    fn report(&mut self, error: &CertificateError) {
        let words = error.to_string();
        if self.reported.as_ref() != Some(&words) {
            occurrences::node_certificate_unusable(&words);
            self.reported = Some(words);
        }
    }
}

/// Sets its end and its lifetime in the metrics.
fn set_end_metrics(metrics: &Metrics, certificate: &CertifiedKey) {
    let leaf = certificate.cert.first().and_then(|der| Leaf::read(der));
    if let Some(leaf) = leaf {
        metrics.set_serving_certificate(&leaf.validity());
    }
}

/// A certificate with its key from two files, and the hash of both.
fn read(certificate: &Path, key: &Path) -> Result<(CertifiedKey, [u8; 32]), CertificateError> {
    let bytes = |path: &Path| {
        disk::read_small(path, FILE_MIB_MAX).map_err(|error| CertificateError::Unreadable {
            path: path.to_owned(),
            cause: error.to_string(),
        })
    };
    let (chain, secret) = (bytes(certificate)?, bytes(key)?);
    let hash = Sha256::new().chain_update(&chain).chain_update(&secret);
    let read = from_pem(&chain, &secret).map_err(|cause| CertificateError::Unusable {
        path: certificate.to_owned(),
        cause,
    })?;
    Ok((read, hash.finalize().into()))
}

/// Returns the request to the cluster: a certificate for the Node's own addresses and name, which
/// the approver compares.
///
/// Upstream: `newGetTemplateFn` of `pkg/kubelet/certificate/kubelet.go`.
fn order(names: &Names) -> Order {
    let mut hosts = vec![names.hostname.clone()];
    hosts.retain(|host| !host.is_empty());
    Order {
        purpose: Purpose::Serving,
        node: names.node.clone(),
        hosts,
        addresses: names.addresses.clone(),
    }
}

/// Takes one step towards a certificate of the cluster, if one is due. Each request must be approved;
/// until then, and after a certificate has expired, the API is served with a self-signed one.
async fn from_cluster(
    signer: &dyn Signer,
    requested: &mut Requested,
    renew_at: &mut Timestamp,
    now: Timestamp,
) -> (Result<Option<CertifiedKey>, CertificateError>, Duration) {
    if now < *renew_at {
        return (Ok(None), decide::idle_pause());
    }
    let (progress, pause) = requested.step(signer, now).await;
    let better = match progress {
        Progress::Waiting { name, waited } if decide::is_overdue(waited) => {
            Err(CertificateError::Unsigned(decide::waiting_words(&name)))
        }
        Progress::Away(_) | Progress::Waiting { .. } => Ok(None),
        Progress::Failed(error) => Err(error),
        Progress::Issued(issued) => match requested.keep(&issued).await {
            Ok(()) => {
                // Also if the signer has left out a name: it would do so again.
                *renew_at = renewal(&issued.validity);
                Ok(Some(issued.certified))
            }
            Err(error) => Err(error),
        },
    };
    (better, pause)
}
