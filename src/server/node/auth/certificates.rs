//! Authentication with client certificates.
//!
//! Upstream: `apiserver/pkg/authentication/request/x509/x509.go` (`CommonNameUserConversion`).

use std::sync::Arc;

use parking_lot::RwLock;
use rustls::RootCertStore;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use sha2::{Digest, Sha256};

use crate::certificate::Leaf;
use mirrorlet_core::access::User;
use mirrorlet_core::api::hex;
use mirrorlet_core::small::SmallCollect;

/// The attribute that distinguishes certificates of the same user.
const CREDENTIAL_ID: &str = "authentication.kubernetes.io/credential-id";

/// Why authorities can't be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadAuthorities(pub String);

/// The trusted authorities of client certificates: none at first, and then those of the last
/// [`replace`](Self::replace).
#[derive(Debug, Default)]
pub struct ClientAuthorities {
    verifier: RwLock<Option<Arc<dyn ClientCertVerifier>>>,
}

impl ClientAuthorities {
    /// Trusts exactly these authorities (PEM) from now on. Certificates that were trusted are verified
    /// again at their next request.
    ///
    /// # Errors
    /// It contains no certificate, or an invalid one; nothing has changed then.
    pub fn replace(&self, pem: &[u8]) -> Result<(), BadAuthorities> {
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(pem) {
            let bad = |error: &dyn std::fmt::Display| BadAuthorities(error.to_string());
            let certificate = certificate.map_err(|error| bad(&error))?;
            roots.add(certificate).map_err(|error| bad(&error))?;
        }
        if roots.is_empty() {
            return Err(BadAuthorities("it contains no certificate".to_owned()));
        }
        let provider = Arc::new(ring::default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
            .build()
            .map_err(|error| BadAuthorities(error.to_string()))?;
        *self.verifier.write() = Some(verifier);
        Ok(())
    }

    /// Returns the user of a certificate chain, whose leaf is first; none unless a trusted authority
    /// has issued it.
    pub(super) fn user(&self, shown: &[CertificateDer<'static>]) -> Option<User> {
        let (own, between) = shown.split_first()?;
        let verifier = {
            let verifier = self.verifier.read();
            verifier.clone()
        }?;
        verifier
            .verify_client_cert(own, between, UnixTime::now())
            .ok()?;
        let leaf = Leaf::read(own)?;
        if leaf.common_name.is_empty() {
            return None;
        }
        let id = hex(&Sha256::digest(own));
        Some(User {
            name: leaf.common_name,
            uid: String::new(),
            groups: leaf.organizations,
            extra: [(CREDENTIAL_ID.to_owned(), vec![format!("X509SHA256={id}")])].collect_map(),
        })
    }
}
