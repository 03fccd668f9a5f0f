//! Parses the few fields of a certificate that are needed: its subject, and its validity.
//!
//! webpki verifies certificates; this only reads their fields afterwards. A full parser would be the
//! largest dependency of the node API for three fields.
//!
//! X.690 (DER), RFC 5280 section 4.1.

use mirrorlet_core::api::Timestamp;
use mirrorlet_core::certificate::Validity;

pub(super) const SEQUENCE: u8 = 0x30;
pub(super) const SET: u8 = 0x31;
pub(super) const OID: u8 = 0x06;
const UTF8_STRING: u8 = 0x0c;
const PRINTABLE_STRING: u8 = 0x13;
const IA5_STRING: u8 = 0x16;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
/// `[0] EXPLICIT`: the version.
const VERSION: u8 = 0xa0;

/// `2.5.4.3`.
pub(super) const COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];
/// `2.5.4.10`.
pub(super) const ORGANIZATION: &[u8] = &[0x55, 0x04, 0x0a];

/// The fields of a certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leaf {
    /// The last common name of the subject; empty if it has none.
    pub common_name: String,
    /// Its organizations, in order.
    pub organizations: Vec<String>,
    /// From when it is valid.
    pub not_before: Timestamp,
    /// Until when it is valid.
    pub not_after: Timestamp,
}

impl Leaf {
    /// How long it is valid.
    pub fn validity(&self) -> Validity {
        Validity {
            not_before: self.not_before,
            not_after: self.not_after,
        }
    }

    /// Parses a certificate; none if it is invalid, or a name in it is not text.
    pub fn read(certificate: &[u8]) -> Option<Self> {
        let mut certificate = Reader(Reader(certificate).take(SEQUENCE)?);
        let mut body = Reader(certificate.take(SEQUENCE)?);
        if body.peek() == Some(VERSION) {
            body.take(VERSION)?;
        }
        body.next()?; // serial number
        body.next()?; // signature algorithm
        body.next()?; // issuer
        let mut validity = Reader(body.take(SEQUENCE)?);
        let not_before = time(validity.next()?)?;
        let not_after = time(validity.next()?)?;
        let mut leaf = Self {
            common_name: String::new(),
            organizations: Vec::new(),
            not_before,
            not_after,
        };
        let mut subject = Reader(body.take(SEQUENCE)?);
        while !subject.0.is_empty() {
            let mut set = Reader(subject.take(SET)?);
            while !set.0.is_empty() {
                let mut attribute = Reader(set.take(SEQUENCE)?);
                let kind = attribute.take(OID)?;
                let value = attribute.next()?;
                if kind == COMMON_NAME {
                    leaf.common_name = text(value)?;
                } else if kind == ORGANIZATION {
                    leaf.organizations.push(text(value)?);
                }
            }
        }
        Some(leaf)
    }
}

/// A reader of DER.
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl<'a> Reader<'a> {
    fn peek(&self) -> Option<u8> {
        self.0.first().copied()
    }

    /// The next element: its tag and its content.
    pub(super) fn next(&mut self) -> Option<(u8, &'a [u8])> {
        let (&[tag, first], rest) = self.0.split_first_chunk::<2>()?;
        let (length, rest) = match first {
            short @ ..=0x7f => (usize::from(short), rest),
            // Nothing that is read here comes near to 64 KiB.
            0x81 => {
                let (byte, rest) = rest.split_first()?;
                (usize::from(*byte), rest)
            }
            0x82 => {
                let (bytes, rest) = rest.split_first_chunk::<2>()?;
                (usize::from(u16::from_be_bytes(*bytes)), rest)
            }
            _ => return None,
        };
        let (content, rest) = rest.split_at_checked(length)?;
        self.0 = rest;
        Some((tag, content))
    }

    /// The content of the next element, which must have that tag.
    pub(super) fn take(&mut self, tag: u8) -> Option<&'a [u8]> {
        self.next()
            .filter(|(found, _)| *found == tag)
            .map(|(_, content)| content)
    }
}

pub(super) fn text((tag, content): (u8, &[u8])) -> Option<String> {
    let is_text = matches!(tag, UTF8_STRING | PRINTABLE_STRING | IA5_STRING);
    let text = std::str::from_utf8(content).ok()?;
    is_text.then(|| text.to_owned())
}

/// `YYMMDDHHMMSSZ` or `YYYYMMDDHHMMSSZ`: DER has no other forms.
fn time((tag, content): (u8, &[u8])) -> Option<Timestamp> {
    let digits = std::str::from_utf8(content).ok()?.strip_suffix('Z')?;
    if !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let whole = match (tag, digits.len()) {
        // RFC 5280 section 4.1.2.5.1.
        (UTC_TIME, 12) if digits < "50" => format!("20{digits}"),
        (UTC_TIME, 12) => format!("19{digits}"),
        (GENERALIZED_TIME, 14) => digits.to_owned(),
        _ => return None,
    };
    let (date, clock) = whole.split_at_checked(8)?;
    format!("{date}T{clock}Z").parse().ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rcgen::{CertificateParams, DnType, DnValue, KeyPair, date_time_ymd};

    use super::*;

    fn certificate(change: impl FnOnce(&mut CertificateParams)) -> Vec<u8> {
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        change(&mut params);
        let key = KeyPair::generate().unwrap();
        params.self_signed(&key).unwrap().der().to_vec()
    }

    #[test]
    fn subject_and_validity_are_read() {
        let der = certificate(|params| {
            let name = &mut params.distinguished_name;
            name.push(DnType::CountryName, "CH");
            name.push(DnType::OrganizationName, "system:masters");
            name.push(DnType::CommonName, "kube-apiserver-kubelet-client");
            params.not_before = date_time_ymd(2026, 1, 2);
            params.not_after = date_time_ymd(2050, 3, 4);
        });
        // node-api 6
        assert_eq!(
            Leaf::read(&der),
            Some(Leaf {
                common_name: "kube-apiserver-kubelet-client".to_owned(),
                organizations: vec!["system:masters".to_owned()],
                not_before: "2026-01-02T00:00:00Z".parse().unwrap(),
                not_after: "2050-03-04T00:00:00Z".parse().unwrap(),
            })
        );
        let nameless = Leaf::read(&certificate(|_| {})).unwrap();
        assert_eq!(
            (nameless.common_name.as_str(), nameless.organizations.len()),
            ("", 0)
        );
    }

    #[test]
    fn a_name_in_an_old_encoding_is_not_guessed() {
        let der = certificate(|params| {
            let teletex = rcgen::string::TeletexString::try_from("admin").unwrap();
            let value = DnValue::TeletexString(teletex);
            params.distinguished_name.push(DnType::CommonName, value);
        });
        assert_eq!(Leaf::read(&der), None);
    }

    proptest! {
        #[test]
        fn nothing_makes_the_reader_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            // node-api 6
            prop_assert!(Leaf::read(&bytes).is_none_or(|leaf| leaf.common_name.len() <= bytes.len()));
        }

        /// A broken part of a certificate is either noticed, or not among the fields that are read.
        #[test]
        fn a_broken_certificate_makes_no_panic(at in any::<prop::sample::Index>(), byte: u8) {
            let mut der = certificate(|params| {
                params.distinguished_name.push(DnType::CommonName, "alice");
            });
            let at = at.index(der.len());
            der[at] = byte;
            let _ = Leaf::read(&der);
            let _ = Leaf::read(&der[..at]);
        }

        #[test]
        fn names_are_read_as_they_were_written(name in "\\PC{1,40}", group in "\\PC{1,40}") {
            let der = certificate(|params| {
                params.distinguished_name.push(DnType::CommonName, name.as_str());
                params.distinguished_name.push(DnType::OrganizationName, group.as_str());
            });
            let leaf = Leaf::read(&der).unwrap();
            // node-api 6
            prop_assert_eq!(leaf.common_name, name);
            prop_assert_eq!(leaf.organizations, vec![group]);
        }
    }
}
