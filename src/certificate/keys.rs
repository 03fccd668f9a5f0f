//! Certificates, keys and requests, made and read.

use std::net::IpAddr;
use std::path::PathBuf;

use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, PublicKeyData as _, SanType};
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use sha2::{Digest, Sha256};

use super::{CertificateRequest, Order};
use mirrorlet_core::api::hex;
use mirrorlet_core::certificate::{NODES_GROUP, node_user};

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
    /// The files' content is unusable.
    #[error("the certificate {} can't be used: {cause}", .path.display())]
    Unusable {
        /// The file of the certificate.
        path: PathBuf,
        /// The problem.
        cause: String,
    },
    /// None could be made.
    #[error("failed to create a certificate: {0}")]
    Unmade(String),
    /// The cluster did not sign one.
    #[error("the cluster did not sign the certificate: {0}")]
    Unsigned(String),
    /// The signed certificate can't be saved for the next start.
    #[error("failed to save the certificate that the cluster has signed: {0}")]
    Unkept(String),
}

/// Parses a certificate, its intermediates and its key from PEM.
///
/// # Errors
/// They are invalid, or the key is not that of the certificate; the message says which.
pub fn from_pem(chain: &[u8], key: &[u8]) -> Result<CertifiedKey, String> {
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(chain).collect();
    let chain = chain.map_err(|error| format!("it is not PEM: {error}"))?;
    if chain.is_empty() {
        return Err("it contains no certificate".to_owned());
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

/// Splits a PEM file into the certificates and the rest, which is the key.
pub fn split_pem(both: &str) -> (String, String) {
    let (mut chain, mut rest) = (String::new(), String::new());
    let mut is_certificate = false;
    for line in both.lines() {
        if line.starts_with("-----BEGIN ") {
            is_certificate = line.starts_with("-----BEGIN CERTIFICATE-----");
        }
        let part = if is_certificate {
            &mut chain
        } else {
            &mut rest
        };
        part.push_str(line);
        part.push('\n');
    }
    (chain, rest)
}

/// Names and addresses in a certificate, in the form of its extension.
///
/// # Errors
/// A name is not ASCII.
pub fn alternative_names(
    names: &[String],
    addresses: &[IpAddr],
) -> Result<Vec<SanType>, rcgen::Error> {
    let names = names
        .iter()
        .map(|name| Ok(SanType::DnsName(name.as_str().try_into()?)));
    let addresses = addresses
        .iter()
        .map(|address| Ok(SanType::IpAddress(*address)));
    names.chain(addresses).collect()
}

/// A new key, in PEM.
pub(super) fn new_key() -> Result<String, CertificateError> {
    let key = KeyPair::generate().map_err(|error| unmade(&error))?;
    Ok(pem("PRIVATE KEY", key.serialized_der()))
}

/// Whether the PEM is a key that can sign requests.
pub(super) fn is_key(key: &str) -> bool {
    key_pair(key).is_ok()
}

fn key_pair(key: &str) -> Result<KeyPair, CertificateError> {
    let secret = PrivateKeyDer::from_pem_slice(key.as_bytes())
        .map_err(|error| CertificateError::Unmade(error.to_string()))?;
    KeyPair::try_from(&secret).map_err(|error| unmade(&error))
}

/// Creates a request for an order, with that key (PEM).
///
/// Its name is a hash of the key and of the whole order: a requester that repeats a request without
/// knowing finds its first one.
///
/// Upstream: `digestedName` and `requestNodeCertificate` of
/// `pkg/kubelet/certificate/bootstrap/bootstrap.go`; `newGetTemplateFn` of
/// `pkg/kubelet/certificate/kubelet.go`.
pub(super) fn request(order: &Order, key: &str) -> Result<CertificateRequest, CertificateError> {
    let key = key_pair(key)?;
    let user = node_user(&order.node);
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    let organization = DnType::OrganizationName;
    params.distinguished_name.push(organization, NODES_GROUP);
    params
        .distinguished_name
        .push(DnType::CommonName, user.as_str());
    params.subject_alt_names =
        alternative_names(&order.hosts, &order.addresses).map_err(|error| unmade(&error))?;
    let request = params
        .serialize_request(&key)
        .map_err(|error| unmade(&error))?;
    let addresses = order.addresses.iter().map(ToString::to_string);
    let mut hash = Sha256::new_with_prefix(key.subject_public_key_info());
    for part in [format!("{:?}", order.purpose), user]
        .into_iter()
        .chain(order.hosts.iter().cloned())
        .chain(addresses)
    {
        // A byte that is in no name keeps two parts apart.
        hash.update([0]);
        hash.update(part);
    }
    Ok(CertificateRequest {
        name: format!("node-csr-{}", hex(&hash.finalize()[..NAME_BYTES])),
        purpose: order.purpose,
        pem: pem("CERTIFICATE REQUEST", request.der()),
    })
}

/// How much of its hash names a request, in bytes: no two are ever the same, and a name can still
/// be read out.
const NAME_BYTES: usize = 16;

pub(super) fn unmade(error: &rcgen::Error) -> CertificateError {
    CertificateError::Unmade(error.to_string())
}

/// RFC 7468.
pub(super) fn pem(label: &str, der: &[u8]) -> String {
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
