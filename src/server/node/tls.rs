//! TLS of the node API: its certificate, and the request for clients' certificates.

use std::sync::Arc;

use parking_lot::RwLock;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{DigitallySignedStruct, DistinguishedName, Error, ServerConfig, SignatureScheme};

/// The current certificate; it can be replaced at any time, without an effect on open connections.
#[derive(Debug)]
pub(in crate::server) struct Served(RwLock<Arc<CertifiedKey>>);

impl Served {
    pub(in crate::server) fn new(certificate: CertifiedKey) -> Self {
        Self(RwLock::new(Arc::new(certificate)))
    }

    pub(in crate::server) fn replace(&self, certificate: CertifiedKey) {
        *self.0.write() = Arc::new(certificate);
    }

    pub(super) fn get(&self) -> Arc<CertifiedKey> {
        Arc::clone(&self.0.read())
    }
}

impl ResolvesServerCert for Served {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.get())
    }
}

/// TLS 1.2 and 1.3, HTTP/2 and HTTP/1.1 on offer.
pub(in crate::server) fn config(served: Arc<Served>) -> ServerConfig {
    let provider = Arc::new(ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(rustls::DEFAULT_VERSIONS)
        .unwrap_or_else(|error| unreachable!("the provider has the default versions: {error}"))
        .with_client_cert_verifier(Arc::new(AnyHolder(provider)))
        .with_cert_resolver(served);
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    config
}

/// Requests a certificate from clients, and accepts any for which they have the key. It is verified
/// with each request, so that authorities can be replaced, and a client with a token can show a useless
/// certificate as well, as with Go's `tls.RequestClientCert`.
#[derive(Debug)]
struct AnyHolder(Arc<CryptoProvider>);

impl ClientCertVerifier for AnyHolder {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(
            message,
            cert,
            dss,
            &self.0.signature_verification_algorithms,
        )
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(
            message,
            cert,
            dss,
            &self.0.signature_verification_algorithms,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
