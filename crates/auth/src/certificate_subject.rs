//! Reads the subject of an X.509 certificate as text (RFC 4514).
//!
//! The TLS library has verified the certificate; this module only parses the DER. A subject with an unexpected
//! structure or a value that is not text has no representation.
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

/// Attributes with names, by OID [RFC 4514, 3; RFC 5280, appendix A.1].
const ATTRIBUTES: [(&[u8], &str); 11] = [
    (&[0x55, 4, 3], "CN"),
    (&[0x55, 4, 5], "serialNumber"),
    (&[0x55, 4, 6], "C"),
    (&[0x55, 4, 7], "L"),
    (&[0x55, 4, 8], "ST"),
    (&[0x55, 4, 9], "street"),
    (&[0x55, 4, 10], "O"),
    (&[0x55, 4, 11], "OU"),
    (&[0x09, 0x92, 0x26, 0x89, 0x93, 0xF2, 0x2C, 0x64, 1, 1], "UID"),
    (&[0x09, 0x92, 0x26, 0x89, 0x93, 0xF2, 0x2C, 0x64, 1, 25], "DC"),
    (&[0x2A, 0x86, 0x48, 0x86, 0xF7, 0x0D, 1, 9, 1], "emailAddress"),
];

/// Returns the subject of a certificate in DER, such as `CN=meter-17,O=Example`: the last attribute comes first.
pub(crate) fn certificate_subject(certificate: &[u8]) -> Option<String> {
    let (certificate, _) = enter(certificate, SEQUENCE)?;
    let (mut tbs, _) = enter(certificate, SEQUENCE)?;
    if tbs.first() == Some(&EXPLICIT_VERSION) {
        tbs = element(tbs)?.2;
    }
    for _serial_algorithm_issuer_validity in 0..4 {
        tbs = element(tbs)?.2;
    }
    let (mut subject, _) = enter(tbs, SEQUENCE)?;
    let mut names = Vec::new();
    while !subject.is_empty() {
        let (mut set, rest) = enter(subject, SET)?;
        subject = rest;
        let mut attributes = Vec::new();
        while !set.is_empty() {
            let (attribute, rest) = enter(set, SEQUENCE)?;
            set = rest;
            attributes.push(self::attribute(attribute)?);
        }
        names.push(attributes.join("+"));
    }
    names.reverse();
    (!names.is_empty()).then(|| names.join(","))
}

fn attribute(attribute: &[u8]) -> Option<String> {
    let (oid, rest) = enter(attribute, OBJECT_IDENTIFIER)?;
    let (tag, value, _) = element(rest)?;
    let known = ATTRIBUTES.iter().find(|(known, _)| *known == oid);
    let name = known.map_or_else(|| dotted(oid), |(_, name)| (*name).to_owned());
    Some(format!("{name}={}", escaped(&text(tag, value)?)))
}

/// Decodes a string. Rejects control characters, with which a name could imitate another one.
fn text(tag: u8, value: &[u8]) -> Option<String> {
    let text = match tag {
        UTF8_STRING | PRINTABLE_STRING | IA5_STRING | TELETEX_STRING => std::str::from_utf8(value).ok()?.to_owned(),
        BMP_STRING => {
            let (pairs, rest) = value.as_chunks::<2>();
            let units: Vec<u16> = pairs.iter().map(|pair| u16::from_be_bytes(*pair)).collect();
            String::from_utf16(&units).ok().filter(|_| rest.is_empty())?
        }
        _ => return None,
    };
    (!text.chars().any(char::is_control)).then_some(text)
}

/// Escapes the characters that separate names [RFC 4514, 2.4].
fn escaped(text: &str) -> String {
    let last = text.chars().count().saturating_sub(1);
    let mut escaped = String::new();
    for (index, character) in text.chars().enumerate() {
        let is_special = "\"+,;<>\\".contains(character)
            || (index == 0 && "# ".contains(character))
            || (index == last && character == ' ');
        if is_special {
            escaped.push('\\');
        }
        escaped.push(character);
    }
    escaped
}

/// An OID in dotted form.
fn dotted(oid: &[u8]) -> String {
    let mut numbers = Vec::new();
    let mut number: u128 = 0;
    for byte in oid {
        number = number.wrapping_shl(7) | u128::from(byte & 0x7F);
        if byte & 0x80 == 0 {
            if numbers.is_empty() {
                let first = (number / 40).min(2);
                numbers.push(first.to_string());
                number -= first * 40;
            }
            numbers.push(number.to_string());
            number = 0;
        }
    }
    numbers.join(".")
}

/// Returns the content of the next element, if it has this tag, and the bytes after it.
fn enter(bytes: &[u8], wanted: u8) -> Option<(&[u8], &[u8])> {
    let (tag, content, rest) = element(bytes)?;
    (tag == wanted).then_some((content, rest))
}

/// Returns the tag and the content of the next element, and the bytes after it.
fn element(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&[tag, first], rest) = bytes.split_first_chunk::<2>()?;
    let (length, rest) = match first {
        0..=0x7F => (usize::from(first), rest),
        0x81..=0x84 => {
            let (digits, rest) = rest.split_at_checked(usize::from(first & 0x7F))?;
            (
                digits.iter().fold(0, |length, byte| length << 8 | usize::from(*byte)),
                rest,
            )
        }
        _ => return None,
    };
    let (content, rest) = rest.split_at_checked(length)?;
    Some((tag, content, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn der(tag: u8, contents: &[&[u8]]) -> Vec<u8> {
        let content = contents.concat();
        let length = match u8::try_from(content.len()).expect("short content") {
            short @ 0..=0x7F => vec![short],
            long => vec![0x81, long],
        };
        [&[tag], length.as_slice(), &content].concat()
    }

    fn attribute(oid: &[u8], tag: u8, value: &[u8]) -> Vec<u8> {
        der(SEQUENCE, &[&der(OBJECT_IDENTIFIER, &[oid]), &der(tag, &[value])])
    }

    /// A certificate with the fields before the subject, and the subject.
    fn certificate(sets: &[&[Vec<u8>]]) -> Vec<u8> {
        let sets: Vec<u8> = sets.iter().flat_map(|set| der(SET, &[&set.concat()])).collect();
        let version = der(EXPLICIT_VERSION, &[&der(0x02, &[&[2]])]);
        let empty = der(SEQUENCE, &[]);
        let serial = der(0x02, &[&[1]]);
        let tbs = der(
            SEQUENCE,
            &[&version, &serial, &empty, &empty, &empty, &der(SEQUENCE, &[&sets])],
        );
        der(SEQUENCE, &[&tbs])
    }

    #[test]
    fn subject_begins_with_its_last_name() {
        let (organization, name) = (attribute(&[0x55, 4, 10], UTF8_STRING, b"Ex, Inc."), b"meter-17");
        let serial = attribute(&[0x55, 4, 5], PRINTABLE_STRING, b"7");
        let der = certificate(&[
            &[attribute(&[0x55, 4, 6], PRINTABLE_STRING, b"SE")],
            &[organization],
            &[attribute(&[0x55, 4, 3], UTF8_STRING, name), serial],
        ]);
        let subject = certificate_subject(&der);
        assert_eq!(subject.as_deref(), Some("CN=meter-17+serialNumber=7,O=Ex\\, Inc.,C=SE"));
        for end in 0..der.len() {
            assert_eq!(certificate_subject(&der[..end]), None);
        }
        for at in 0..der.len() {
            let mut damaged = der.clone();
            damaged[at] ^= 0xFF;
            let _ = certificate_subject(&damaged);
        }
    }

    #[test]
    fn values_are_escaped_and_decoded() {
        let common_name =
            |tag, value: &[u8]| certificate_subject(&certificate(&[&[attribute(&[0x55, 4, 3], tag, value)]]));
        for (value, expected) in [
            ("a+b=c", "CN=a\\+b=c"),
            ("# a ", "CN=\\# a\\ "),
            (" ", "CN=\\ "),
            ("\"<\\>;", "CN=\\\"\\<\\\\\\>\\;"),
            ("Zähler", "CN=Zähler"),
        ] {
            assert_eq!(common_name(UTF8_STRING, value.as_bytes()).as_deref(), Some(expected));
        }
        assert_eq!(common_name(BMP_STRING, &[0, b'b', 0, b'1']).as_deref(), Some("CN=b1"));
        assert_eq!(common_name(UTF8_STRING, b"admin\0x"), None);
        assert_eq!(common_name(0x03, b"a"), None);
        let other = certificate(&[&[attribute(&[0x2B, 6, 1, 4, 1, 0x82, 0x37, 1], UTF8_STRING, b"x")]]);
        assert_eq!(certificate_subject(&other).as_deref(), Some("1.3.6.1.4.1.311.1=x"));
    }
}
