//! A strict parser of certificate requests. It refuses a request with any unknown field: the signer has
//! another parser, which must not find more in it than the approver saw.
//!
//! RFC 2986, RFC 5280 section 4.2.1.6.

use std::net::IpAddr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::der::{COMMON_NAME, OID, ORGANIZATION, Reader, SEQUENCE, SET, text};
use mirrorlet_core::certificate::approval::Wanted;

const INTEGER: u8 = 0x02;
const OCTET_STRING: u8 = 0x04;
const BOOLEAN: u8 = 0x01;
/// `[0]`: the attributes.
const ATTRIBUTES: u8 = 0xa0;
/// `[2]`: a name of the DNS.
const DNS_NAME: u8 = 0x82;
/// `[7]`: an IP address.
const IP_ADDRESS: u8 = 0x87;
/// `1.2.840.113549.1.9.14`.
const EXTENSION_REQUEST: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x09, 0x0e];
/// `2.5.29.17`.
const ALTERNATIVE_NAMES: &[u8] = &[0x55, 0x1d, 0x11];

const BEGIN: &str = "-----BEGIN CERTIFICATE REQUEST-----";
const END: &str = "-----END CERTIFICATE REQUEST-----";

/// Longest request that is read, in bytes of PEM: one of a node has less than a thousand.
const REQUEST_BYTES_MAX: usize = 16 << 10;

/// Parses a certificate request in PEM.
///
/// # Errors
/// It doesn't ask for exactly a node's certificate; the message says why.
pub fn wanted(pem: &[u8]) -> Result<Wanted, String> {
    if pem.len() > REQUEST_BYTES_MAX {
        return Err(format!("it is larger than {REQUEST_BYTES_MAX} bytes"));
    }
    let der = der(pem).ok_or("it is not one PEM block of a certificate request")?;
    let parts = parts(&der).ok_or("it is not a certificate request")?;
    let mut wanted = Wanted::default();
    subject(parts.subject, &mut wanted)?;
    if let Some(extensions) = extensions(parts.attributes)? {
        alternative_names(extensions, &mut wanted)?;
    }
    Ok(wanted)
}

/// The bytes of the one block that the text is.
fn der(pem: &[u8]) -> Option<Vec<u8>> {
    let text = std::str::from_utf8(pem).ok()?.trim_end();
    let body = text.strip_prefix(BEGIN)?.strip_suffix(END)?;
    let body: String = body.split('\n').map(str::trim_end).collect();
    // Nothing but base64: no headers, and no second block.
    STANDARD.decode(body).ok()
}

struct Parts<'a> {
    subject: &'a [u8],
    attributes: &'a [u8],
}

fn parts(der: &[u8]) -> Option<Parts<'_>> {
    let mut outer = Reader(der);
    let mut request = Reader(outer.take(SEQUENCE)?);
    let mut body = Reader(request.take(SEQUENCE)?);
    body.take(INTEGER)?;
    let subject = body.take(SEQUENCE)?;
    body.take(SEQUENCE)?; // key
    let attributes = body.take(ATTRIBUTES)?;
    (outer.0.is_empty() && body.0.is_empty()).then_some(Parts {
        subject,
        attributes,
    })
}

fn subject(subject: &[u8], wanted: &mut Wanted) -> Result<(), String> {
    const UNREADABLE: &str = "its subject can't be read";
    let (mut subject, mut names) = (Reader(subject), 0);
    while !subject.0.is_empty() {
        let mut set = Reader(subject.take(SET).ok_or(UNREADABLE)?);
        while !set.0.is_empty() {
            let mut attribute = Reader(set.take(SEQUENCE).ok_or(UNREADABLE)?);
            let kind = attribute.take(OID).ok_or(UNREADABLE)?;
            let value = attribute.next().and_then(text).ok_or(UNREADABLE)?;
            match kind {
                COMMON_NAME => {
                    names += 1;
                    wanted.common_name = value;
                }
                ORGANIZATION => wanted.organizations.push(value),
                _ => {
                    return Err(
                        "its subject has attributes other than common names and organizations"
                            .to_owned(),
                    );
                }
            }
            if !attribute.0.is_empty() {
                return Err(UNREADABLE.to_owned());
            }
        }
    }
    if names == 1 {
        Ok(())
    } else {
        Err("its subject must have exactly one common name".to_owned())
    }
}

/// The requested extensions, if any.
fn extensions(attributes: &[u8]) -> Result<Option<&[u8]>, String> {
    const UNREADABLE: &str = "its attributes can't be read";
    let mut attributes = Reader(attributes);
    if attributes.0.is_empty() {
        return Ok(None);
    }
    let mut attribute = Reader(attributes.take(SEQUENCE).ok_or(UNREADABLE)?);
    let kind = attribute.take(OID).ok_or(UNREADABLE)?;
    if kind != EXTENSION_REQUEST || !attributes.0.is_empty() {
        return Err("it has attributes other than one extension request".to_owned());
    }
    let mut values = Reader(attribute.take(SET).ok_or(UNREADABLE)?);
    let extensions = values.take(SEQUENCE).ok_or(UNREADABLE)?;
    if values.0.is_empty() && attribute.0.is_empty() {
        Ok(Some(extensions))
    } else {
        Err(UNREADABLE.to_owned())
    }
}

fn alternative_names(extensions: &[u8], wanted: &mut Wanted) -> Result<(), String> {
    const UNREADABLE: &str = "its extensions can't be read";
    let mut extensions = Reader(extensions);
    if extensions.0.is_empty() {
        return Ok(());
    }
    let mut extension = Reader(extensions.take(SEQUENCE).ok_or(UNREADABLE)?);
    let kind = extension.take(OID).ok_or(UNREADABLE)?;
    if kind != ALTERNATIVE_NAMES || !extensions.0.is_empty() {
        return Err("it requests extensions other than subject alternative names".to_owned());
    }
    let mut value = extension.next().ok_or(UNREADABLE)?;
    if value.0 == BOOLEAN {
        value = extension.next().ok_or(UNREADABLE)?;
    }
    let mut outer = match value {
        (OCTET_STRING, bytes) if extension.0.is_empty() => Reader(bytes),
        _ => return Err(UNREADABLE.to_owned()),
    };
    let mut names = Reader(outer.take(SEQUENCE).ok_or(UNREADABLE)?);
    if !outer.0.is_empty() {
        return Err(UNREADABLE.to_owned());
    }
    while !names.0.is_empty() {
        let (tag, bytes) = names.next().ok_or(UNREADABLE)?;
        match tag {
            DNS_NAME if bytes.is_ascii() && !bytes.is_empty() => {
                wanted
                    .names
                    .push(String::from_utf8_lossy(bytes).into_owned());
            }
            IP_ADDRESS => wanted.addresses.push(ip(bytes).ok_or(UNREADABLE)?),
            _ => return Err("it requests names other than DNS names and IP addresses".to_owned()),
        }
    }
    Ok(())
}

fn ip(bytes: &[u8]) -> Option<IpAddr> {
    <[u8; 4]>::try_from(bytes)
        .map(IpAddr::from)
        .or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from))
        .ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rcgen::{
        Attribute, CertificateParams, CertificateSigningRequest, CustomExtension,
        DistinguishedName, DnType, DnValue, KeyPair, SanType,
    };

    use super::*;
    use crate::certificate::keys::{new_key, request};
    use crate::certificate::{Order, Purpose};

    fn params(change: impl FnOnce(&mut CertificateParams)) -> CertificateParams {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        let name = &mut params.distinguished_name;
        name.push(DnType::OrganizationName, "system:nodes");
        name.push(DnType::CommonName, "system:node:a-docker");
        change(&mut params);
        params
    }

    fn pem(request: &CertificateSigningRequest) -> String {
        request.pem().unwrap()
    }

    fn made(change: impl FnOnce(&mut CertificateParams)) -> String {
        let request = params(change).serialize_request(&KeyPair::generate().unwrap());
        pem(&request.unwrap())
    }

    #[test]
    fn what_a_node_asks_for_is_read() {
        let key = new_key().unwrap();
        for (purpose, hosts, addresses) in [
            (Purpose::Client, vec![], vec![]),
            (
                Purpose::Serving,
                vec!["a".to_owned(), "a.example".to_owned()],
                vec!["10.0.0.1".parse().unwrap(), "fd00::1".parse().unwrap()],
            ),
        ] {
            let order = Order {
                purpose,
                node: "a-docker".to_owned(),
                hosts: hosts.clone(),
                addresses: addresses.clone(),
            };
            let expected = Wanted {
                common_name: "system:node:a-docker".to_owned(),
                organizations: vec!["system:nodes".to_owned()],
                names: hosts,
                addresses,
            };
            let request = request(&order, &key).unwrap();
            // identity 7
            assert_eq!(wanted(request.pem.as_bytes()), Ok(expected));
        }
    }

    #[test]
    fn a_request_with_more_in_it_is_not_understood() {
        let email = SanType::Rfc822Name("a@example".try_into().unwrap());
        let uri = SanType::URI("spiffe://a/b".try_into().unwrap());
        let usage = rcgen::KeyUsagePurpose::KeyCertSign;
        let key = KeyPair::generate().unwrap();
        let challenge = Attribute {
            // challengePassword
            oid: &[1, 2, 840, 113_549, 1, 9, 7],
            values: vec![0x31, 0x03, 0x0c, 0x01, b'x'],
        };
        let challenged = params(|_| {}).serialize_request_with_attributes(&key, vec![challenge]);
        let good = made(|_| {});
        let cases = [
            (
                made(|p| p.subject_alt_names = vec![email]),
                "names other than",
            ),
            (
                made(|p| p.subject_alt_names = vec![uri]),
                "names other than",
            ),
            (
                made(|p| p.key_usages = vec![usage]),
                "extensions other than",
            ),
            (
                made(|p| {
                    let oid = [1, 3, 6, 1, 4, 1, 99];
                    let one = CustomExtension::from_oid_content(&oid, vec![0x05, 0x00]);
                    p.custom_extensions = vec![one];
                }),
                "extensions other than",
            ),
            (pem(&challenged.unwrap()), "attributes other than"),
            (
                made(|p| p.distinguished_name.push(DnType::CountryName, "CH")),
                "other than common names",
            ),
            (
                made(|p| p.distinguished_name = DistinguishedName::new()),
                "one common name",
            ),
            (
                made(|p| {
                    let teletex = rcgen::string::TeletexString::try_from("a").unwrap();
                    let value = DnValue::TeletexString(teletex);
                    p.distinguished_name.push(DnType::CommonName, value);
                }),
                "subject can't be read",
            ),
            (format!("{good}{good}"), "one PEM block"),
            (format!("words\n{good}"), "one PEM block"),
            (good.replacen('\n', "\na: b\n\n", 1), "one PEM block"),
            (
                good.replace("CERTIFICATE REQUEST", "CERTIFICATE"),
                "one PEM block",
            ),
            ("x".repeat(REQUEST_BYTES_MAX + 1), "larger than"),
        ];
        for (pem, words) in cases {
            let error = wanted(pem.as_bytes()).unwrap_err();
            // identity 7
            assert!(error.contains(words), "{words}: {error}");
        }
        assert!(wanted(good.as_bytes()).is_ok());
    }

    proptest! {
        /// A broken part of a request is noticed, or not among the fields that are read.
        #[test]
        fn a_broken_request_makes_no_panic(at in any::<prop::sample::Index>(), byte: u8) {
            let good = made(|p| p.subject_alt_names = vec![SanType::DnsName("a".try_into().unwrap())]);
            let mut der = der(good.as_bytes()).unwrap();
            let at = at.index(der.len());
            let cut = format!("{BEGIN}\n{}\n{END}\n", STANDARD.encode(&der[..at]));
            // identity 7
            prop_assert!(wanted(cut.as_bytes()).is_err());
            der[at] = byte;
            let _ = wanted(format!("{BEGIN}\n{}\n{END}\n", STANDARD.encode(&der)).as_bytes());
        }
    }
}
