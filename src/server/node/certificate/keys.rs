//! A certificate of our own.

use std::time::Duration;

use rcgen::{
    CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, KeyPair, KeyUsagePurpose,
};
use rustls::crypto::ring;
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::sign::CertifiedKey;

use super::Names;
use crate::certificate::{CertificateError, alternative_names};
use mirrorlet_core::api::Timestamp;

/// How long a certificate of our own is valid.
///
/// Upstream: `k8s.io/client-go/util/cert` (`GenerateSelfSignedCertKey`).
const SELF_SIGNED_FOR: Duration = Duration::from_hours(365 * 24);
/// How long before its end it is replaced.
const RENEWED_BEFORE: Duration = Duration::from_hours(30 * 24);
/// How far the clocks of clients may be behind ours.
const CLOCKS_APART: Duration = Duration::from_hours(1);

/// A self-signed certificate, and when to replace it.
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
    // Every name and address that a client may have called by.
    let mut hosts = vec![names.node.clone(), names.hostname.clone()];
    hosts.retain(|host| !host.is_empty());
    hosts.dedup();
    params.subject_alt_names =
        alternative_names(&hosts, &names.addresses).map_err(|error| unmade(&error))?;
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
    let chain = vec![certificate.der().clone()];
    let made = CertifiedKey::from_der(chain, secret.into(), &ring::default_provider());
    let renew_at = ends
        .saturating_sub(RENEWED_BEFORE)
        .map_err(|error| unmade(&error))?;
    made.map(|made| (made, renew_at))
        .map_err(|error| unmade(&error))
}
