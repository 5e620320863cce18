//! The subject common name of an X.509 certificate, and nothing else of it.
//!
//! The certificate has been verified by the TLS library before; this only walks its DER as far as the subject. Whatever does not
//! look as expected has no common name.
//!
//! ```text
//! Certificate { TBSCertificate { [0] version?, serial, algorithm, issuer, validity, subject, … }, … }
//! subject     SEQUENCE OF SET OF SEQUENCE { OBJECT IDENTIFIER, string }
//! ```

const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const OBJECT_IDENTIFIER: u8 = 0x06;
const EXPLICIT_VERSION: u8 = 0xA0;
const UTF8_STRING: u8 = 0x0C;
const PRINTABLE_STRING: u8 = 0x13;
const TELETEX_STRING: u8 = 0x14;
const IA5_STRING: u8 = 0x16;
const BMP_STRING: u8 = 0x1E;

/// 2.5.4.3
const COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];

pub(crate) fn common_name(certificate: &[u8]) -> Option<Box<str>> {
    let mut certificate = Der(certificate).enter(SEQUENCE)?;
    let mut tbs = certificate.enter(SEQUENCE)?;
    if tbs.0.first() == Some(&EXPLICIT_VERSION) {
        tbs.next()?;
    }
    for _serial_algorithm_issuer_validity in 0..4 {
        tbs.next()?;
    }
    let mut subject = tbs.enter(SEQUENCE)?;
    while !subject.0.is_empty() {
        let mut set = subject.enter(SET)?;
        while !set.0.is_empty() {
            let mut attribute = set.enter(SEQUENCE)?;
            let (tag, oid) = attribute.next()?;
            if tag == OBJECT_IDENTIFIER && oid == COMMON_NAME {
                let (tag, value) = attribute.next()?;
                return text(tag, value);
            }
        }
    }
    None
}

/// A name with control characters could pass for another one in logs and rules.
fn text(tag: u8, value: &[u8]) -> Option<Box<str>> {
    let text = match tag {
        UTF8_STRING | PRINTABLE_STRING | IA5_STRING | TELETEX_STRING => std::str::from_utf8(value).ok()?.to_owned(),
        BMP_STRING => {
            let (pairs, rest) = value.as_chunks::<2>();
            let units: Vec<u16> = pairs.iter().map(|pair| u16::from_be_bytes(*pair)).collect();
            String::from_utf16(&units).ok().filter(|_| rest.is_empty())?
        }
        _ => return None,
    };
    (!text.is_empty() && !text.chars().any(char::is_control)).then(|| text.into())
}

struct Der<'a>(&'a [u8]);

impl<'a> Der<'a> {
    /// Tag and content of the next element.
    fn next(&mut self) -> Option<(u8, &'a [u8])> {
        let (&[tag, first], rest) = self.0.split_first_chunk::<2>()?;
        let (length, rest) = match first {
            0..=0x7F => (usize::from(first), rest),
            0x81..=0x84 => {
                let (bytes, rest) = rest.split_at_checked(usize::from(first & 0x7F))?;
                (
                    bytes.iter().fold(0, |length, byte| length << 8 | usize::from(*byte)),
                    rest,
                )
            }
            _ => return None,
        };
        let (content, rest) = rest.split_at_checked(length)?;
        self.0 = rest;
        Some((tag, content))
    }

    fn enter(&mut self, wanted: u8) -> Option<Der<'a>> {
        self.next()
            .filter(|(tag, _)| *tag == wanted)
            .map(|(_, content)| Der(content))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, DistinguishedName, DnType, DnValue, KeyPair};

    fn certificate(attributes: &[(DnType, DnValue)]) -> Vec<u8> {
        let mut params = CertificateParams::new(vec!["host.example".to_owned()]).unwrap();
        params.distinguished_name = DistinguishedName::new();
        for (kind, value) in attributes {
            params.distinguished_name.push(kind.clone(), value.clone());
        }
        params
            .self_signed(&KeyPair::generate().unwrap())
            .unwrap()
            .der()
            .to_vec()
    }

    fn utf8(text: &str) -> DnValue {
        DnValue::Utf8String(text.to_owned())
    }

    #[test]
    fn the_subject_common_name_is_found() {
        let org = (DnType::OrganizationName, utf8("Example"));
        type Case<'a> = (&'a str, Vec<(DnType, DnValue)>, Option<&'a str>);
        let cases: &[Case<'_>] = &[
            ("alone", vec![(DnType::CommonName, utf8("meter-17"))], Some("meter-17")),
            (
                "after others",
                vec![org.clone(), (DnType::CommonName, utf8("Zähler"))],
                Some("Zähler"),
            ),
            (
                "printable",
                vec![(DnType::CommonName, DnValue::PrintableString("p1".try_into().unwrap()))],
                Some("p1"),
            ),
            (
                "bmp",
                vec![(DnType::CommonName, DnValue::BmpString("b1".try_into().unwrap()))],
                Some("b1"),
            ),
            ("none", vec![org], None),
            (
                "control character",
                vec![(DnType::CommonName, utf8("admin\0.evil"))],
                None,
            ),
        ];
        for (name, attributes, expected) in cases {
            assert_eq!(common_name(&certificate(attributes)).as_deref(), *expected, "{name}");
        }
    }

    #[test]
    fn no_damage_panics() {
        let der = certificate(&[(DnType::CommonName, utf8("meter-17"))]);
        for end in 0..der.len().min(200) {
            assert_eq!(common_name(&der[..end]), None);
        }
        for index in 0..der.len() {
            let mut damaged = der.clone();
            damaged[index] ^= 0xFF;
            let _ = common_name(&damaged);
        }
    }
}
