//! Certificates and keys, made and read.

use std::path::PathBuf;
use std::time::Duration;

use rcgen::{
    CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, KeyPair,
    KeyUsagePurpose, SanType,
};
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::sign::CertifiedKey;

use super::Names;
use crate::api::Timestamp;

/// How long a certificate of our own is valid.
///
/// Upstream: `k8s.io/client-go/util/cert` (`GenerateSelfSignedCertKey`).
const SELF_SIGNED_FOR: Duration = Duration::from_hours(365 * 24);
/// How long before its end it is replaced.
const RENEWED_BEFORE: Duration = Duration::from_hours(30 * 24);
/// How far the clocks of clients may be behind ours.
const CLOCKS_APART: Duration = Duration::from_hours(1);

/// Why there is no certificate.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CertificateError {
    /// A file can't be read.
    #[error("failed to read {}: {cause}", .path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's words.
        cause: String,
    },
    /// What is in the files can't be used.
    #[error("the certificate {} can't be used: {cause}", .path.display())]
    Unusable {
        /// The file of the certificate.
        path: PathBuf,
        /// What is wrong.
        cause: String,
    },
    /// None could be made.
    #[error("failed to make a certificate: {0}")]
    Unmade(String),
}

/// A certificate, its intermediates and its key out of their PEM forms.
pub(super) fn from_pem(chain: &[u8], key: &[u8]) -> Result<CertifiedKey, String> {
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(chain).collect();
    let chain = chain.map_err(|error| format!("it is no PEM: {error}"))?;
    if chain.is_empty() {
        return Err("there is no certificate in it".to_owned());
    }
    let key = PrivateKeyDer::from_pem_slice(key).map_err(|error| format!("its key: {error}"))?;
    certified(chain, key)
}

fn certified(
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<CertifiedKey, String> {
    // Refuses a key that is not that of the certificate.
    CertifiedKey::from_der(chain, key, &ring::default_provider()).map_err(|error| error.to_string())
}

/// A certificate of our own, and when it is to be replaced.
pub(super) fn self_signed(
    names: &Names,
    now: Timestamp,
) -> Result<(CertifiedKey, Timestamp), CertificateError> {
    let unmade = |error: &dyn std::fmt::Display| CertificateError::Unmade(error.to_string());
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params
        .distinguished_name
        .push(DnType::CommonName, names.node.as_str());
    params.subject_alt_names = alternative_names(names).map_err(|error| unmade(&error))?;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let ends = now
        .saturating_add(SELF_SIGNED_FOR)
        .map_err(|error| unmade(&error))?;
    let begins = now
        .saturating_sub(CLOCKS_APART)
        .map_err(|error| unmade(&error))?;
    params.not_before = std::time::SystemTime::from(begins).into();
    params.not_after = std::time::SystemTime::from(ends).into();
    let key = KeyPair::generate().map_err(|error| unmade(&error))?;
    let certificate = params.self_signed(&key).map_err(|error| unmade(&error))?;
    let secret = PrivatePkcs8KeyDer::from(key.serialize_der());
    let made = certified(vec![certificate.der().clone()], secret.into());
    let renew_at = ends
        .saturating_sub(RENEWED_BEFORE)
        .map_err(|error| unmade(&error))?;
    made.map(|made| (made, renew_at))
        .map_err(CertificateError::Unmade)
}

/// Every name and address that a client may have called by.
pub(super) fn alternative_names(names: &Names) -> Result<Vec<SanType>, rcgen::Error> {
    let mut texts = vec![names.node.clone(), names.hostname.clone()];
    texts.retain(|text| !text.is_empty());
    texts.dedup();
    let texts = texts
        .into_iter()
        .map(|text| Ok(SanType::DnsName(text.try_into()?)));
    let addresses = names
        .addresses
        .iter()
        .map(|address| Ok(SanType::IpAddress(*address)));
    texts.chain(addresses).collect()
}
