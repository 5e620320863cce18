//! Reads X.509 certificates for display and for rules: names and validity.
//!
//! Nothing is verified here; the TLS library does that. This module only parses the DER. Unexpected fields are omitted,
//! and a certificate with an unexpected structure has no common name.
//!
//! ```text
//! Certificate {
//!     TBSCertificate { [0] version?, serial, algorithm, issuer, validity, subject, key, …, [3] extensions? }, …
//! }
//! subject     SEQUENCE OF SET OF SEQUENCE { OBJECT IDENTIFIER, string }
//! validity    SEQUENCE { time, time }
//! extensions  SEQUENCE OF SEQUENCE { OBJECT IDENTIFIER, BOOLEAN?, OCTET STRING }
//! ```

mod identity;
mod ocsp;
mod revocation_list;
mod signature;

use std::fmt::Write;
use std::net::IpAddr;

pub use identity::{CertificateField, CertificateFieldError};
pub use ocsp::{OcspError, OcspSubject, OcspValidity};
pub use revocation_list::{RevocationListDescription, SignatureCheck, check_list_signature, describe_list};

const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const OBJECT_IDENTIFIER: u8 = 0x06;
const INTEGER: u8 = 0x02;
const OCTET_STRING: u8 = 0x04;
const EXPLICIT_VERSION: u8 = 0xA0;
const EXPLICIT_EXTENSIONS: u8 = 0xA3;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
const UTF8_STRING: u8 = 0x0C;
const PRINTABLE_STRING: u8 = 0x13;
const TELETEX_STRING: u8 = 0x14;
const IA5_STRING: u8 = 0x16;
const BMP_STRING: u8 = 0x1E;

/// 2.5.4.3
const COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];
/// 2.5.29.17
const SUBJECT_ALTERNATIVE_NAME: &[u8] = &[0x55, 0x1D, 0x11];
/// GeneralName: rfc822Name, dNSName, uniformResourceIdentifier, iPAddress.
const EMAIL_NAME: u8 = 0x81;
const DNS_NAME: u8 = 0x82;
const URI_NAME: u8 = 0x86;
const IP_NAME: u8 = 0x87;

/// Short attribute names [RFC 4514].
const ATTRIBUTES: [(&[u8], &str); 10] = [
    (COMMON_NAME, "CN"),
    (&[0x55, 0x04, 0x05], "serialNumber"),
    (&[0x55, 0x04, 0x06], "C"),
    (&[0x55, 0x04, 0x07], "L"),
    (&[0x55, 0x04, 0x08], "ST"),
    (&[0x55, 0x04, 0x0A], "O"),
    (&[0x55, 0x04, 0x0B], "OU"),
    (&[0x09, 0x92, 0x26, 0x89, 0x93, 0xF2, 0x2C, 0x64, 0x01, 0x01], "UID"),
    (&[0x09, 0x92, 0x26, 0x89, 0x93, 0xF2, 0x2C, 0x64, 0x01, 0x19], "DC"),
    (&[0x2A, 0x86, 0x48, 0x86, 0xF7, 0x0D, 0x01, 0x09, 0x01], "emailAddress"),
];

/// Contents of a certificate for display.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CertificateDescription {
    /// `CN=meter-17, O=Example`. Empty if the certificate has only alternative names.
    pub subject: String,
    pub issuer: String,
    /// Host names and addresses for which the certificate is valid.
    pub names: Vec<String>,
    /// Hexadecimal.
    pub serial: String,
    pub not_before_unix_s: i64,
    pub not_after_unix_s: i64,
}

/// Parses a certificate. `None` if the structure is not that of a certificate.
pub fn describe(certificate: &[u8]) -> Option<CertificateDescription> {
    let mut certificate = Der(certificate).enter(SEQUENCE)?;
    let mut tbs = certificate.enter(SEQUENCE)?;
    tbs.skip(EXPLICIT_VERSION);
    let serial = tbs.next().filter(|(tag, _)| *tag == INTEGER)?.1;
    let _algorithm = tbs.next()?;
    let issuer = tbs.enter(SEQUENCE)?;
    let mut validity = tbs.enter(SEQUENCE)?;
    let subject = tbs.enter(SEQUENCE)?;
    Some(CertificateDescription {
        subject: distinguished_name(subject)?,
        issuer: distinguished_name(issuer)?,
        names: alternative_names(tbs).unwrap_or_default(),
        // A leading zero byte only marks the number as positive.
        serial: hexadecimal(serial.strip_prefix(&[0]).unwrap_or(serial)),
        not_before_unix_s: time(validity.next()?)?,
        not_after_unix_s: time(validity.next()?)?,
    })
}

fn distinguished_name(mut name: Der<'_>) -> Option<String> {
    let mut parts = Vec::new();
    while !name.0.is_empty() {
        let mut set = name.enter(SET)?;
        while !set.0.is_empty() {
            let mut attribute = set.enter(SEQUENCE)?;
            let (_, oid) = attribute.next()?;
            let (tag, value) = attribute.next()?;
            let known = ATTRIBUTES.iter().find(|(known, _)| *known == oid);
            let kind = known.map_or_else(|| hexadecimal(oid), |(_, word)| (*word).to_owned());
            let value = text(tag, value).map_or_else(|| format!("#{}", hexadecimal(value)), String::from);
            parts.push(format!("{kind}={value}"));
        }
    }
    Some(parts.join(", "))
}

/// Reads the alternative names from the fields after the subject.
fn alternative_names(tbs: Der<'_>) -> Option<Vec<String>> {
    let mut list = alternative_name_list(tbs)?;
    let mut names = Vec::new();
    while !list.0.is_empty() {
        names.extend(general_name(list.next()?));
    }
    Some(names)
}

/// Returns the list of alternative names in the fields after the subject.
fn alternative_name_list(tbs: Der<'_>) -> Option<Der<'_>> {
    Der(extension(tbs, SUBJECT_ALTERNATIVE_NAME)?).enter(SEQUENCE)
}

/// Returns the value of an extension in the fields after the subject.
fn extension<'a>(mut tbs: Der<'a>, wanted: &[u8]) -> Option<&'a [u8]> {
    let extensions = loop {
        let (tag, content) = tbs.next()?;
        if tag == EXPLICIT_EXTENSIONS {
            break content;
        }
    };
    let mut extensions = Der(extensions).enter(SEQUENCE)?;
    while !extensions.0.is_empty() {
        let mut extension = extensions.enter(SEQUENCE)?;
        if extension.next()? != (OBJECT_IDENTIFIER, wanted) {
            continue;
        }
        let mut value = extension.next()?;
        if value.0 != OCTET_STRING {
            // The value just read was the `critical` flag.
            value = extension.next()?;
        }
        return Some(value.1);
    }
    None
}

fn general_name((tag, value): (u8, &[u8])) -> Option<String> {
    match tag {
        EMAIL_NAME | DNS_NAME | URI_NAME => text(IA5_STRING, value).map(String::from),
        IP_NAME => match value.len() {
            4 => Some(IpAddr::from(<[u8; 4]>::try_from(value).ok()?).to_string()),
            _ => Some(IpAddr::from(<[u8; 16]>::try_from(value).ok()?).to_string()),
        },
        _ => None,
    }
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// `YYMMDDHHMMSSZ` or `YYYYMMDDHHMMSSZ` [RFC 5280 4.1.2.5].
fn time((tag, value): (u8, &[u8])) -> Option<i64> {
    let digits = std::str::from_utf8(value).ok()?.strip_suffix('Z')?;
    let years = match tag {
        UTC_TIME => 2,
        GENERALIZED_TIME => 4,
        _ => return None,
    };
    if digits.len() != years + 10 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let number = |from: usize, length: usize| digits.get(from..from + length)?.parse::<i64>().ok();
    let year = match number(0, years)? {
        year if tag == GENERALIZED_TIME => year,
        year if year >= 50 => 1900 + year,
        year => 2000 + year,
    };
    let [month, day, hour, minute, second] = [0, 2, 4, 6, 8].map(|at| number(years + at, 2));
    let (month, day) = (month?, day?);
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    Some(days_since_1970(year, month, day) * 86_400 + hour? * 3_600 + minute? * 60 + second?)
}

/// Converts a Gregorian date. Years are counted from March, so that a leap day is the last day of its year.
fn days_since_1970(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let (era, of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

pub(crate) fn common_name(certificate: &[u8]) -> Option<Box<str>> {
    let mut certificate = Der(certificate).enter(SEQUENCE)?;
    let mut tbs = certificate.enter(SEQUENCE)?;
    tbs.skip(EXPLICIT_VERSION);
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

/// Decodes a string. Rejects control characters, with which a name could imitate another one in logs and rules.
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

#[derive(Clone, Copy)]
struct Der<'a>(&'a [u8]);

impl<'a> Der<'a> {
    /// Returns the tag and content of the next element.
    fn next(&mut self) -> Option<(u8, &'a [u8])> {
        let (&[tag, first], rest) = self.0.split_first_chunk::<2>()?;
        let (length, rest) = match first {
            0..=0x7F => (usize::from(first), rest),
            0x81..=0x84 => {
                let (bytes, rest) = rest.split_at_checked(usize::from(first & 0x7F))?;
                let length = bytes.iter().fold(0, |length, byte| length << 8 | usize::from(*byte));
                // DER has only the shortest form of a length.
                if bytes.first() == Some(&0) || length <= 0x7F {
                    return None;
                }
                (length, rest)
            }
            _ => return None,
        };
        let (content, rest) = rest.split_at_checked(length)?;
        self.0 = rest;
        Some((tag, content))
    }

    /// Returns the next element with its tag and length.
    fn whole(&mut self) -> Option<&'a [u8]> {
        let before = self.0;
        self.next()?;
        before.get(..before.len() - self.0.len())
    }

    /// Skips the next element if it has this tag.
    fn skip(&mut self, tag: u8) {
        if self.0.first() == Some(&tag) {
            // An unreadable element fails when the next one is read.
            let _ = self.next();
        }
    }

    fn enter(&mut self, wanted: u8) -> Option<Der<'a>> {
        self.next()
            .filter(|(tag, _)| *tag == wanted)
            .map(|(_, content)| Der(content))
    }

    /// Enters the next element, which must be the last one.
    fn enter_last(&mut self, wanted: u8) -> Option<Der<'a>> {
        self.enter(wanted).filter(|_| self.0.is_empty())
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
    fn subject_common_name_is_found() {
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
    fn certificate_description_has_all_fields() {
        let mut params = CertificateParams::new(vec!["host.example".to_owned(), "192.0.2.7".to_owned()]).unwrap();
        params.distinguished_name = DistinguishedName::new();
        params
            .distinguished_name
            .push(DnType::OrganizationName, utf8("Example"));
        params.distinguished_name.push(DnType::CommonName, utf8("host.example"));
        params.serial_number = Some(vec![0x0A, 0xFF].into());
        params.not_before = rcgen::date_time_ymd(2024, 2, 29);
        params.not_after = rcgen::date_time_ymd(2051, 1, 1);
        let made = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
        let description = describe(made.der()).unwrap();
        assert_eq!(description.subject, "O=Example, CN=host.example");
        assert_eq!(description.issuer, description.subject);
        assert_eq!(description.names, ["host.example", "192.0.2.7"]);
        assert_eq!(description.serial, "0aff");
        // The first date is a UTCTime, the second, after 2049, a GeneralizedTime.
        assert_eq!(
            (description.not_before_unix_s, description.not_after_unix_s),
            (1_709_164_800, 2_556_144_000)
        );
    }

    #[test]
    fn lengths_have_the_shortest_form() {
        let read = |head: &[u8], length: usize| Der(&[head, &vec![7; length][..]].concat()).next().is_some();
        for (head, length) in [
            (&[OCTET_STRING, 0x7F][..], 0x7F),
            (&[OCTET_STRING, 0x81, 0x80][..], 0x80),
            (&[OCTET_STRING, 0x82, 1, 0][..], 0x100),
        ] {
            assert!(read(head, length), "{head:?}");
            assert!(!read(head, length - 1), "{head:?}");
        }
        for (head, length) in [
            (&[OCTET_STRING, 0x81, 0x7F][..], 0x7F),
            (&[OCTET_STRING, 0x82, 0, 0x80][..], 0x80),
            (&[OCTET_STRING, 0x80][..], 0),
            (&[OCTET_STRING, 0x85, 0, 0, 0, 0, 1][..], 1),
            (&[OCTET_STRING, 0x84, 0xFF, 0xFF, 0xFF, 0xFF][..], 9),
        ] {
            assert!(!read(head, length), "{head:?}");
        }
    }

    #[test]
    fn damaged_certificate_does_not_panic() {
        let der = certificate(&[(DnType::CommonName, utf8("meter-17"))]);
        for end in 0..der.len().min(200) {
            assert_eq!(common_name(&der[..end]), None);
            let _ = describe(&der[..end]);
        }
        for index in 0..der.len() {
            let mut damaged = der.clone();
            damaged[index] ^= 0xFF;
            let _ = common_name(&damaged);
            let _ = describe(&damaged);
        }
    }
}
