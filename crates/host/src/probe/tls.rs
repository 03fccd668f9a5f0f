//! TLS without verification: a probe checks whether a server is healthy, not its identity.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, Error, SignatureScheme};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::ProbeError;

/// A connector that offers these protocols.
pub(super) fn connector(protocols: &[&[u8]]) -> TlsConnector {
    let provider = Arc::new(ring::default_provider());
    let verifier = Arc::new(Anybody(Arc::clone(&provider)));
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(rustls::DEFAULT_VERSIONS)
        .unwrap_or_else(|error| unreachable!("the provider has the default versions: {error}"))
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_no_client_auth();
    config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
    // A session would only be resumed by the same probe, of a server that shall show that it
    // still answers from scratch.
    config.resumption = rustls::client::Resumption::disabled();
    TlsConnector::from(Arc::new(config))
}

/// Begins TLS on a connection.
pub(super) async fn begin(
    connector: &TlsConnector,
    host: &str,
    stream: TcpStream,
) -> Result<TlsStream<TcpStream>, ProbeError> {
    let name = ServerName::try_from(host.to_owned()).map_err(|_| {
        ProbeError::Request("the host is not a DNS name or an IP address".to_owned())
    })?;
    connector.connect(name, stream).await.map_err(|error| {
        let fault = error.get_ref().and_then(|inner| inner.downcast_ref());
        let plain = Error::InvalidMessage(rustls::InvalidMessage::InvalidContentType);
        if fault == Some(&plain) {
            ProbeError::PlainAnswer
        } else {
            ProbeError::Broken(format!("tls: {error}"))
        }
    })
}

/// Believes every certificate, one that can't even be parsed included, as upstream's
/// `InsecureSkipVerify` does.
#[derive(Debug)]
struct Anybody(Arc<CryptoProvider>);

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
