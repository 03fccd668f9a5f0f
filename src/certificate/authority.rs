//! Our own certificate authority: it signs the certificates of the embedded API and of its clients.
//!
//! Its key and certificate stay in the root directory; its certificates are issued again at each start.

use std::io;
use std::path::Path;
use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;

use super::keys::{alternative_names, from_pem, pem, split_pem, unmade};
use super::{CertificateError, DIRECTORY, FILE_MIB_MAX, Leaf};
use mirrorlet_core::api::Timestamp;
use mirrorlet_host::disk;

/// The file with the certificate and the key, below the root's directory of certificates.
const FILE: &str = "embedded-api-ca.pem";
/// The validity of the authority.
const VALID_FOR: Duration = Duration::from_hours(10 * 365 * 24);
/// The time before its end at which it is replaced: longer than the validity of all that it signs.
const RENEWED_BEFORE: Duration = Duration::from_hours(2 * 365 * 24);
/// The validity of the certificates that it signs.
pub const SIGNED_FOR: Duration = Duration::from_hours(365 * 24);
/// Tolerated clock difference of clients that are behind: certificates are valid from that long ago.
pub const CLOCKS_APART: Duration = Duration::from_hours(1);
/// The start of 2026, when this was written: a clock that is behind it is wrong. Machines without a
/// clock of their own start so, and have the time of the network a moment later.
const CLOCK_FROM: Timestamp = Timestamp::constant(1_767_225_600, 0);
/// The group that may do everything, as in a cluster.
const ADMINS: &str = "system:masters";

/// The authority.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: String,
    /// The validity of what it signs.
    life: Duration,
}

/// A certificate with its key, both PEM.
pub struct Credential {
    /// The certificate.
    pub certificate: String,
    /// Its key.
    pub key: String,
}

impl Authority {
    /// The authority of that root; created if there is none, if it expires soon, or if it was created
    /// while the clock was wrong and isn't valid yet. Blocks on the disk.
    ///
    /// # Errors
    /// Its file can't be written, or an existing one can't be used.
    pub fn of_root(root: &Path, now: Timestamp) -> Result<Self, CertificateError> {
        let path = root.join(DIRECTORY).join(FILE);
        let unreadable = |error: &io::Error| CertificateError::Unreadable {
            path: path.clone(),
            cause: error.to_string(),
        };
        match disk::read_small(&path, FILE_MIB_MAX) {
            Ok(bytes) => {
                let text = String::from_utf8_lossy(&bytes);
                let unusable = |cause: &str| CertificateError::Unusable {
                    path: path.clone(),
                    cause: format!("{cause}; remove the file to create a new one"),
                };
                let kept = Self::read(&text)
                    .ok_or_else(|| unusable("it contains no certificate authority"))?;
                if kept.holds(now) {
                    return Ok(kept);
                }
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(unreadable(&error)),
        }
        let (made, text) = Self::make(now)?;
        disk::replace(&path, text.as_bytes()).map_err(|error| unreadable(&error))?;
        Ok(made)
    }

    /// The same, with another lifetime of its certificates.
    #[must_use]
    pub fn signing_for(self, life: Duration) -> Self {
        Self { life, ..self }
    }

    fn params() -> CertificateParams {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params
            .distinguished_name
            .push(DnType::CommonName, "mirrorlet embedded API");
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![
            KeyUsagePurpose::KeyCertSign,
            KeyUsagePurpose::DigitalSignature,
        ];
        params
    }

    fn read(text: &str) -> Option<Self> {
        let (certificate, key) = split_pem(text);
        CertificateDer::from_pem_slice(certificate.as_bytes()).ok()?;
        let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).ok()?;
        let key = KeyPair::try_from(&key).ok()?;
        Some(Self {
            issuer: Issuer::new(Self::params(), key),
            certificate,
            life: SIGNED_FOR,
        })
    }

    fn make(now: Timestamp) -> Result<(Self, String), CertificateError> {
        let mut params = Self::params();
        set_validity(&mut params, now, VALID_FOR);
        let key = KeyPair::generate().map_err(|error| unmade(&error))?;
        let certificate = params.self_signed(&key).map_err(|error| unmade(&error))?;
        let certificate = pem("CERTIFICATE", certificate.der());
        let text = certificate.clone() + &pem("PRIVATE KEY", key.serialized_der());
        let made = Self {
            issuer: Issuer::new(Self::params(), key),
            certificate,
            life: SIGNED_FOR,
        };
        Ok((made, text))
    }

    /// Whether it holds, and will as long as all that it signs. With a clock that is wrong for certain
    /// it stays: another one would be of no use, and copies of the kubeconfig would be lost.
    fn holds(&self, now: Timestamp) -> bool {
        let der = CertificateDer::from_pem_slice(self.certificate.as_bytes());
        let leaf = der.ok().and_then(|der| Leaf::read(&der));
        let until = now.saturating_add(RENEWED_BEFORE).unwrap_or(now);
        leaf.is_some_and(|leaf| {
            leaf.not_after > until && (leaf.not_before <= now || now < CLOCK_FROM)
        })
    }

    /// Its certificate, PEM.
    pub fn certificate(&self) -> &str {
        &self.certificate
    }

    /// Issues a certificate for a server on this machine.
    ///
    /// # Errors
    /// The system gives no random numbers.
    pub fn server(&self, now: Timestamp) -> Result<CertifiedKey, CertificateError> {
        let names = ["localhost", "kubernetes", "kubernetes.default.svc"].map(str::to_owned);
        let addresses = [[127, 0, 0, 1].into(), std::net::Ipv6Addr::LOCALHOST.into()];
        let mut params = CertificateParams::default();
        params.subject_alt_names =
            alternative_names(&names, &addresses).map_err(|error| unmade(&error))?;
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let made = self.sign(params, "mirrorlet", now)?;
        from_pem(made.certificate.as_bytes(), made.key.as_bytes()).map_err(CertificateError::Unmade)
    }

    /// Issues a certificate for a client with all permissions.
    ///
    /// # Errors
    /// The system gives no random numbers.
    pub fn client(&self, now: Timestamp) -> Result<Credential, CertificateError> {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params
            .distinguished_name
            .push(DnType::OrganizationName, ADMINS);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.sign(params, "mirrorlet-admin", now)
    }

    fn sign(
        &self,
        mut params: CertificateParams,
        name: &str,
        now: Timestamp,
    ) -> Result<Credential, CertificateError> {
        params.distinguished_name.push(DnType::CommonName, name);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        set_validity(&mut params, now, self.life);
        let key = KeyPair::generate().map_err(|error| unmade(&error))?;
        let certificate = params
            .signed_by(&key, &self.issuer)
            .map_err(|error| unmade(&error))?;
        Ok(Credential {
            certificate: pem("CERTIFICATE", certificate.der()),
            key: pem("PRIVATE KEY", key.serialized_der()),
        })
    }
}

fn set_validity(params: &mut CertificateParams, now: Timestamp, valid_for: Duration) {
    let begins = now.saturating_sub(CLOCKS_APART).unwrap_or(now);
    let ends = now.saturating_add(valid_for).unwrap_or(now);
    params.not_before = std::time::SystemTime::from(begins).into();
    params.not_after = std::time::SystemTime::from(ends).into();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(years: u64) -> Timestamp {
        let now: Timestamp = "2026-01-02T03:04:05Z".parse().unwrap();
        now + Duration::from_hours(years * 365 * 24)
    }

    #[test]
    fn an_authority_that_was_made_while_the_clock_was_wrong_is_replaced() {
        let root = tempfile::tempdir().unwrap();
        let of = |now| {
            let authority = Authority::of_root(root.path(), now).unwrap();
            authority.certificate().to_owned()
        };
        let late = of(at(20));
        // A machine that has not asked for the time yet.
        let unset = Timestamp::UNIX_EPOCH + Duration::from_hours(1);
        // embedded 32
        assert_eq!(of(unset), late);
        let right = of(at(0));
        assert_ne!(right, late);
        assert_eq!(of(unset), right);
        // A clock that was set back a little.
        assert_eq!(of(at(0) - Duration::from_mins(30)), right);
        // embedded 32
        assert_eq!(of(at(1)), right);
    }

    #[test]
    fn an_authority_stays_until_its_end_is_near() {
        let root = tempfile::tempdir().unwrap();
        let first = Authority::of_root(root.path(), at(0)).unwrap();
        let later = Authority::of_root(root.path(), at(7)).unwrap();
        assert_eq!(later.certificate(), first.certificate());
        let next = Authority::of_root(root.path(), at(9)).unwrap();
        assert_ne!(next.certificate(), first.certificate());
        next.server(at(9)).unwrap();
        let client = next.client(at(9)).unwrap();
        let der = CertificateDer::from_pem_slice(client.certificate.as_bytes()).unwrap();
        let leaf = Leaf::read(&der).unwrap();
        assert_eq!(
            (leaf.common_name.as_str(), &*leaf.organizations),
            ("mirrorlet-admin", &[ADMINS.to_owned()][..])
        );

        let file = root.path().join(DIRECTORY).join(FILE);
        std::fs::write(&file, "nonsense").unwrap();
        let refused = Authority::of_root(root.path(), at(9))
            .err()
            .unwrap()
            .to_string();
        assert!(refused.contains("remove the file"), "{refused}");
    }
}
