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
    /// The cluster did not sign one.
    #[error("the cluster has signed no certificate: {0}")]
    Unsigned(String),
    /// What was signed can't be kept for the next start.
    #[error("failed to keep the certificate that the cluster has signed: {0}")]
    Unkept(String),
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

/// A request for a certificate, and the key that goes with what is signed.
pub(super) struct Request {
    /// The request, in PEM.
    pub(super) pem: String,
    /// The key, in PEM.
    pub(super) key: String,
}

/// A request for a serving certificate of our Node, for the addresses that the Node tells: who
/// approves it compares them.
///
/// Upstream: `newGetTemplateFn` of `pkg/kubelet/certificate/kubelet.go`.
pub(super) fn request(names: &Names) -> Result<Request, CertificateError> {
    let unmade = |error: rcgen::Error| CertificateError::Unmade(error.to_string());
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    let organization = DnType::OrganizationName;
    params.distinguished_name.push(organization, "system:nodes");
    let name = format!("system:node:{}", names.node);
    params.distinguished_name.push(DnType::CommonName, name);
    let told = Names {
        node: String::new(),
        ..names.clone()
    };
    params.subject_alt_names = alternative_names(&told).map_err(unmade)?;
    let key = KeyPair::generate().map_err(unmade)?;
    let request = params.serialize_request(&key).map_err(unmade)?;
    Ok(Request {
        pem: pem("CERTIFICATE REQUEST", request.der()),
        key: pem("PRIVATE KEY", key.serialized_der()),
    })
}

/// RFC 7468.
fn pem(label: &str, der: &[u8]) -> String {
    use base64::Engine as _;
    let text = base64::engine::general_purpose::STANDARD.encode(der);
    let mut pem = format!("-----BEGIN {label}-----\n");
    for (at, character) in text.chars().enumerate() {
        if at > 0 && at % 64 == 0 {
            pem.push('\n');
        }
        pem.push(character);
    }
    pem + "\n-----END " + label + "-----\n"
}
