//! The fields of a client certificate that can name a client.
//!
//! A field is used only if the certificate has it exactly once and in a clear form: a name that a rule does not see as
//! its owner meant it is refused, not repaired.

use std::fmt;
use std::fmt::Write;

use ring::digest::{SHA256, digest};

use super::{
    ATTRIBUTES, BMP_STRING, COMMON_NAME, DNS_NAME, Der, EMAIL_NAME, EXPLICIT_VERSION, IA5_STRING, INTEGER,
    OBJECT_IDENTIFIER, PRINTABLE_STRING, SEQUENCE, SET, TELETEX_STRING, URI_NAME, UTF8_STRING, alternative_name_list,
    hexadecimal, text,
};

/// A field of a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CertificateField {
    /// Common name of the subject.
    CommonName,
    /// The subject as text [RFC 4514].
    Subject,
    /// Hexadecimal, in lower case.
    SerialNumber,
    /// SHA-256 of the certificate, hexadecimal, in lower case.
    Fingerprint,
    /// Alternative names of these kinds.
    DnsName,
    Uri,
    Email,
}

/// Why a certificate does not name a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CertificateFieldError {
    Missing,
    /// The certificate has the field more than once, and nothing says which one is meant.
    Several,
    /// The field has a control character, a wrong encoding, or is empty.
    Unreadable,
}

impl fmt::Display for CertificateFieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

impl std::error::Error for CertificateFieldError {}

impl CertificateFieldError {
    /// Returns the text for the log.
    pub fn text(self) -> &'static str {
        match self {
            CertificateFieldError::Missing => "the client certificate does not have the field that names the client",
            CertificateFieldError::Several => {
                "the client certificate has the field that names the client several times"
            }
            CertificateFieldError::Unreadable => {
                "the field of the client certificate that names the client is empty, too long, not text, or has \
                 characters that are not allowed"
            }
        }
    }
}

impl CertificateField {
    /// Returns the value of the field in a certificate (DER) that the TLS library has verified.
    pub fn of(self, certificate: &[u8]) -> Result<Box<str>, CertificateFieldError> {
        let unreadable = CertificateFieldError::Unreadable;
        let (serial, subject, rest) = parts(certificate).ok_or(unreadable)?;
        match self {
            CertificateField::CommonName => only(common_names(subject).ok_or(unreadable)?),
            CertificateField::Subject if subject.is_empty() => Err(CertificateFieldError::Missing),
            CertificateField::Subject => rfc_4514(subject).map(Box::from).ok_or(unreadable),
            CertificateField::SerialNumber => Ok(hexadecimal(serial.strip_prefix(&[0]).unwrap_or(serial)).into()),
            CertificateField::Fingerprint => Ok(hexadecimal(digest(&SHA256, certificate).as_ref()).into()),
            CertificateField::DnsName => only(alternative_names(rest, DNS_NAME).ok_or(unreadable)?),
            CertificateField::Uri => only(alternative_names(rest, URI_NAME).ok_or(unreadable)?),
            CertificateField::Email => only(alternative_names(rest, EMAIL_NAME).ok_or(unreadable)?),
        }
    }
}

/// Returns serial number, subject, and the fields after it.
fn parts(certificate: &[u8]) -> Option<(&[u8], &[u8], Der<'_>)> {
    let mut certificate = Der(certificate).enter(SEQUENCE)?;
    let mut tbs = certificate.enter(SEQUENCE)?;
    tbs.skip(EXPLICIT_VERSION);
    let serial = tbs.next().filter(|(tag, _)| *tag == INTEGER)?.1;
    for _algorithm_issuer_validity in 0..3 {
        tbs.next()?;
    }
    let Der(subject) = tbs.enter(SEQUENCE)?;
    Some((serial, subject, tbs))
}

/// Returns the only value. `None` in the list is a value that is not clear text.
fn only(mut values: Vec<Option<Box<str>>>) -> Result<Box<str>, CertificateFieldError> {
    match (values.pop(), values.is_empty()) {
        (None, _) => Err(CertificateFieldError::Missing),
        (Some(_), false) => Err(CertificateFieldError::Several),
        (Some(value), true) => value.ok_or(CertificateFieldError::Unreadable),
    }
}

fn common_names(subject: &[u8]) -> Option<Vec<Option<Box<str>>>> {
    let mut names = Vec::new();
    let mut subject = Der(subject);
    while !subject.0.is_empty() {
        let mut set = subject.enter(SET)?;
        while !set.0.is_empty() {
            let mut attribute = set.enter(SEQUENCE)?;
            let oid = attribute.next()?;
            let (tag, value) = attribute.next()?;
            if oid == (OBJECT_IDENTIFIER, COMMON_NAME) {
                names.push(clear_text(tag, value));
            }
        }
    }
    Some(names)
}

/// `None`: the extension has an unexpected structure. A certificate without the extension has no names.
fn alternative_names(tbs: Der<'_>, kind: u8) -> Option<Vec<Option<Box<str>>>> {
    let Some(mut list) = alternative_name_list(tbs) else {
        return Some(Vec::new());
    };
    let mut names = Vec::new();
    while !list.0.is_empty() {
        let (tag, value) = list.next()?;
        if tag == kind {
            names.push(clear_text(IA5_STRING, value));
        }
    }
    Some(names)
}

/// Decodes a string. Strings of ASCII types with other bytes are refused: programs read them in different ways.
fn clear_text(tag: u8, value: &[u8]) -> Option<Box<str>> {
    let is_clear = match tag {
        UTF8_STRING | BMP_STRING => true,
        PRINTABLE_STRING | IA5_STRING | TELETEX_STRING => value.is_ascii(),
        _ => false,
    };
    text(tag, value).filter(|_| is_clear)
}

/// Writes a distinguished name as RFC 4514 prescribes: the last part first, and special characters escaped, so that
/// different names are different texts.
fn rfc_4514(mut name: &[u8]) -> Option<String> {
    let mut parts = Vec::new();
    while !name.is_empty() {
        let mut rest = Der(name);
        let mut set = rest.enter(SET)?;
        let mut part = String::new();
        while !set.0.is_empty() {
            let mut attribute = set.enter(SEQUENCE)?;
            let (tag, oid) = attribute.next()?;
            let (value_tag, value) = attribute.next()?;
            if tag != OBJECT_IDENTIFIER || !attribute.0.is_empty() {
                return None;
            }
            if !part.is_empty() {
                part.push('+');
            }
            match ATTRIBUTES.iter().find(|(known, _)| *known == oid) {
                Some((_, word)) => part.push_str(word),
                None => dotted(oid, &mut part)?,
            }
            part.push('=');
            escape(&clear_text(value_tag, value)?, &mut part);
        }
        parts.push(part);
        name = rest.0;
    }
    parts.reverse();
    Some(parts.join(","))
}

fn escape(value: &str, out: &mut String) {
    let last = value.chars().count().saturating_sub(1);
    for (at, character) in value.chars().enumerate() {
        let is_special = match character {
            '"' | '+' | ',' | ';' | '<' | '>' | '\\' => true,
            '#' => at == 0,
            ' ' => at == 0 || at == last,
            _ => false,
        };
        if is_special {
            out.push('\\');
        }
        out.push(character);
    }
}

/// Writes an object identifier: `1.2.840`.
fn dotted(oid: &[u8], out: &mut String) -> Option<()> {
    let mut arcs = Vec::new();
    let mut arc: u64 = 0;
    for byte in oid {
        arc = arc.checked_mul(128)?.checked_add(u64::from(byte & 0x7F))?;
        if byte & 0x80 == 0 {
            arcs.push(std::mem::take(&mut arc));
        }
    }
    let is_complete = oid.last().is_some_and(|byte| byte & 0x80 == 0);
    let (first, rest) = arcs.split_first().filter(|_| is_complete)?;
    let top = (*first / 40).min(2);
    let _ = write!(out, "{top}.{}", first - 40 * top);
    for arc in rest {
        let _ = write!(out, ".{arc}");
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, DistinguishedName, DnType, DnValue, KeyPair, SanType};

    fn utf8(text: &str) -> DnValue {
        DnValue::Utf8String(text.to_owned())
    }

    fn certificate(attributes: &[(DnType, DnValue)], names: Vec<SanType>) -> Vec<u8> {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        for (kind, value) in attributes {
            params.distinguished_name.push(kind.clone(), value.clone());
        }
        params.subject_alt_names = names;
        params.serial_number = Some(vec![0x0A, 0xFF].into());
        let made = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
        made.der().to_vec()
    }

    fn dns(name: &str) -> SanType {
        SanType::DnsName(name.try_into().unwrap())
    }

    #[test]
    fn fields_that_occur_once_are_found() {
        let names = vec![
            dns("meter-17.example"),
            SanType::URI("urn:uuid:17".try_into().unwrap()),
            SanType::Rfc822Name("meter@example.com".try_into().unwrap()),
            SanType::IpAddress([192, 0, 2, 1].into()),
        ];
        let made = certificate(
            &[
                (DnType::OrganizationName, utf8("Example")),
                (DnType::CommonName, utf8("Zähler 17")),
            ],
            names,
        );
        for (field, expected) in [
            (CertificateField::CommonName, "Zähler 17"),
            (CertificateField::Subject, "CN=Zähler 17,O=Example"),
            (CertificateField::SerialNumber, "0aff"),
            (CertificateField::DnsName, "meter-17.example"),
            (CertificateField::Uri, "urn:uuid:17"),
            (CertificateField::Email, "meter@example.com"),
        ] {
            assert_eq!(field.of(&made).as_deref(), Ok(expected), "{field:?}");
        }
    }

    #[test]
    fn missing_and_repeated_fields_are_refused() {
        let empty = certificate(&[], vec![]);
        let other = certificate(&[(DnType::OrganizationName, utf8("Example"))], vec![dns("a"), dns("b")]);
        for field in [
            CertificateField::CommonName,
            CertificateField::Subject,
            CertificateField::DnsName,
        ] {
            assert_eq!(field.of(&empty), Err(CertificateFieldError::Missing), "{field:?}");
        }
        assert_eq!(
            CertificateField::CommonName.of(&other),
            Err(CertificateFieldError::Missing)
        );
        assert_eq!(
            CertificateField::DnsName.of(&other),
            Err(CertificateFieldError::Several)
        );
        assert_eq!(CertificateField::Uri.of(&other), Err(CertificateFieldError::Missing));
        // Two common names: a second kind with the same object identifier.
        let custom = DnType::CustomDnType(vec![2, 5, 4, 3]);
        let two = certificate(&[(DnType::CommonName, utf8("a")), (custom, utf8("admin"))], vec![]);
        if CertificateField::Subject
            .of(&two)
            .is_ok_and(|subject| subject.matches("CN=").count() == 2)
        {
            assert_eq!(
                CertificateField::CommonName.of(&two),
                Err(CertificateFieldError::Several)
            );
        }
    }

    #[test]
    fn unclear_texts_are_refused() {
        for value in [
            utf8("admin\0.evil"),
            utf8("admin\n"),
            utf8(""),
            DnValue::TeletexString("x".try_into().unwrap()),
        ] {
            let made = certificate(&[(DnType::CommonName, value.clone())], vec![]);
            let expected = match value {
                DnValue::TeletexString(_) => Ok("x"),
                _ => Err(CertificateFieldError::Unreadable),
            };
            let found = CertificateField::CommonName.of(&made);
            assert_eq!(found.as_deref().map_err(|error| *error), expected, "{value:?}");
        }
        // The same bytes as UTF-8 that is too long for its character, and as ASCII type with other bytes.
        assert_eq!(clear_text(UTF8_STRING, b"\xC1\xA1dmin"), None);
        assert_eq!(clear_text(UTF8_STRING, b"\xff"), None);
        assert_eq!(clear_text(PRINTABLE_STRING, "Zähler".as_bytes()), None);
        assert_eq!(clear_text(IA5_STRING, "a\u{430}".as_bytes()), None);
        assert_eq!(clear_text(BMP_STRING, b"\xD8\x00\x00a"), None);
        assert_eq!(clear_text(BMP_STRING, b"\0a\0"), None);
        assert_eq!(clear_text(SEQUENCE, b"a"), None);
    }

    #[test]
    fn subjects_that_imitate_others_are_escaped() {
        let whole = certificate(&[(DnType::CommonName, utf8("a,O=Example"))], vec![]);
        assert_eq!(CertificateField::Subject.of(&whole).as_deref(), Ok("CN=a\\,O=Example"));
        let mut out = String::new();
        escape(" #\"+,;<>\\= ", &mut out);
        assert_eq!(out, "\\ #\\\"\\+\\,\\;\\<\\>\\\\=\\ ");
        let mut out = String::new();
        escape("#a", &mut out);
        assert_eq!(out, "\\#a");
        let custom = DnType::CustomDnType(vec![1, 3, 6, 1, 4, 1, 311, 1]);
        let made = certificate(&[(custom, utf8("x"))], vec![]);
        assert_eq!(
            CertificateField::Subject.of(&made).as_deref(),
            Ok("1.3.6.1.4.1.311.1=x")
        );
    }

    #[test]
    fn damaged_certificate_does_not_panic() {
        let der = certificate(&[(DnType::CommonName, utf8("meter-17"))], vec![dns("a.example")]);
        let fields = [
            CertificateField::CommonName,
            CertificateField::Subject,
            CertificateField::DnsName,
        ];
        for index in 0..der.len() {
            let mut damaged = der.clone();
            damaged[index] ^= 0xFF;
            for field in fields {
                let _ = field.of(&damaged);
                let _ = field.of(&der[..index]);
            }
        }
    }
}
