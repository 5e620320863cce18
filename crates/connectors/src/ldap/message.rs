//! The messages that a login needs [RFC 4511, 4.2, 4.5, 4.14].
//!
//! [`decode`] accepts any bytes. A message that is not understood as a whole is an error: a missing or changed part
//! could turn a denial into a success.

use std::fmt;

use super::ber::{self, BOOLEAN, BerReader, ENUMERATED, INTEGER, OCTET_STRING, SEQUENCE, SET};
use super::filter::LdapFilter;

/// Maximum length of a message of the server.
const MESSAGE_BYTES_MAX: usize = 1 << 20;
/// Maximum number of characters of a server's message in an error.
const DIAGNOSTIC_CHARS_MAX: usize = 200;

const START_TLS: &str = "1.3.6.1.4.1.1466.20037";

const BIND_REQUEST: u8 = 0x60;
const BIND_RESPONSE: u8 = 0x61;
const SEARCH_REQUEST: u8 = 0x63;
const SEARCH_ENTRY: u8 = 0x64;
const SEARCH_DONE: u8 = 0x65;
const SEARCH_REFERENCE: u8 = 0x73;
const EXTENDED_REQUEST: u8 = 0x77;
const EXTENDED_RESPONSE: u8 = 0x78;
const SIMPLE_PASSWORD: u8 = 0x80;

/// Result codes.
pub mod codes {
    pub const SUCCESS: u32 = 0;
    pub const OPERATIONS_ERROR: u32 = 1;
    pub const SIZE_LIMIT_EXCEEDED: u32 = 4;
    pub const STRONGER_AUTHENTICATION_REQUIRED: u32 = 8;
    pub const REFERRAL: u32 = 10;
    pub const CONFIDENTIALITY_REQUIRED: u32 = 13;
    pub const NO_SUCH_OBJECT: u32 = 32;
    pub const INVALID_DN_SYNTAX: u32 = 34;
    pub const INAPPROPRIATE_AUTHENTICATION: u32 = 48;
    pub const INVALID_CREDENTIALS: u32 = 49;
    pub const BUSY: u32 = 51;
    pub const UNAVAILABLE: u32 = 52;
    pub const OTHER: u32 = 80;
}

/// A message of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LdapMessage {
    /// ID of the request; 0 for a notification.
    pub id: u32,
    pub response: LdapResponse,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LdapResponse {
    Bind(LdapResult),
    Entry(LdapEntry),
    /// A part of the directory that is on another server.
    Reference,
    SearchDone(LdapResult),
    Extended(LdapResult),
}

/// Result of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LdapResult {
    pub code: u32,
    /// The server's words, shortened.
    pub diagnostic: String,
}

/// An entry that a search has found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LdapEntry {
    pub dn: String,
    /// Names as the server writes them, with their values.
    pub attributes: Vec<(String, Vec<Vec<u8>>)>,
}

/// Result of a search.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LdapSearchResult {
    /// At most as many as the limit of the search, and one more.
    pub entries: Vec<LdapEntry>,
    pub result: LdapResult,
}

/// A search.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LdapSearch {
    pub base: String,
    pub scope: SearchScope,
    pub filter: LdapFilter<Vec<u8>>,
    pub attributes: Vec<String>,
    /// Maximum number of entries. The server reports [`codes::SIZE_LIMIT_EXCEEDED`] if there are more.
    pub limit: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SearchScope {
    /// The base entry only.
    Base,
    /// The base entry and all entries below it.
    Subtree,
}

/// Why bytes are not a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MalformedLdap(pub(super) &'static str);

impl fmt::Display for MalformedLdap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the answer is not valid LDAP: {}", self.0)
    }
}

impl std::error::Error for MalformedLdap {}

impl LdapResult {
    pub fn is_success(&self) -> bool {
        self.code == codes::SUCCESS
    }

    fn name(&self) -> &'static str {
        match self.code {
            0 => "success",
            1 => "operations error",
            2 => "protocol error",
            3 => "time limit exceeded",
            4 => "size limit exceeded",
            8 => "stronger authentication required",
            10 => "referral",
            11 => "administrative limit exceeded",
            13 => "confidentiality required",
            19 => "constraint violation",
            32 => "no such object",
            34 => "invalid DN syntax",
            48 => "inappropriate authentication",
            49 => "invalid credentials",
            50 => "insufficient access rights",
            51 => "busy",
            52 => "unavailable",
            53 => "unwilling to perform",
            _ => "error",
        }
    }
}

impl fmt::Display for LdapResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name(), self.code)?;
        if !self.diagnostic.is_empty() {
            write!(f, ": {}", self.diagnostic)?;
        }
        Ok(())
    }
}

impl LdapEntry {
    /// Returns the values of an attribute. Names of attributes have no case.
    pub fn values(&self, name: &str) -> &[Vec<u8>] {
        let found = self
            .attributes
            .iter()
            .find(|(found, _)| found.eq_ignore_ascii_case(name));
        found.map_or(&[], |(_, values)| values.as_slice())
    }
}

/// Returns the length of the message at the start of `bytes`. `None`: more bytes are needed to know it.
pub fn message_length(bytes: &[u8]) -> Result<Option<usize>, MalformedLdap> {
    let Some(header) = ber::header(bytes)? else {
        return Ok(None);
    };
    if header.tag != SEQUENCE {
        return Err(MalformedLdap("a message begins with another type"));
    }
    match header.header_bytes.checked_add(header.content_bytes) {
        Some(length) if length <= MESSAGE_BYTES_MAX => Ok(Some(length)),
        _ => Err(MalformedLdap("a message is longer than 1 MiB")),
    }
}

/// Decodes one whole message.
pub fn decode(bytes: &[u8]) -> Result<LdapMessage, MalformedLdap> {
    let mut outer = BerReader::new(bytes);
    let mut message = outer.constructed(SEQUENCE)?;
    if !outer.is_empty() {
        return Err(MalformedLdap("bytes follow the message"));
    }
    let id = message.number(INTEGER)?;
    let (tag, content) = message.element()?;
    let mut body = BerReader::new(content);
    let response = match tag {
        BIND_RESPONSE => LdapResponse::Bind(result(&mut body)?),
        SEARCH_ENTRY => LdapResponse::Entry(entry(&mut body)?),
        SEARCH_DONE => LdapResponse::SearchDone(result(&mut body)?),
        SEARCH_REFERENCE => {
            body.skip_rest()?;
            LdapResponse::Reference
        }
        EXTENDED_RESPONSE => LdapResponse::Extended(result(&mut body)?),
        _ => return Err(MalformedLdap("the message is no answer")),
    };
    // Controls, and the name of a notification, which Active Directory writes here.
    message.skip_rest()?;
    Ok(LdapMessage { id, response })
}

/// Reads the components of LDAPResult. Those that follow, such as referrals, are not used.
fn result(body: &mut BerReader<'_>) -> Result<LdapResult, MalformedLdap> {
    let code = body.number(ENUMERATED)?;
    body.expect(OCTET_STRING)?;
    let diagnostic = body.expect(OCTET_STRING)?;
    body.skip_rest()?;
    Ok(LdapResult {
        code,
        diagnostic: printable(diagnostic),
    })
}

fn entry(body: &mut BerReader<'_>) -> Result<LdapEntry, MalformedLdap> {
    let dn = body.text(OCTET_STRING)?.to_owned();
    let mut list = body.constructed(SEQUENCE)?;
    body.skip_rest()?;
    let mut attributes = Vec::new();
    while !list.is_empty() {
        let mut attribute = list.constructed(SEQUENCE)?;
        let name = attribute.text(OCTET_STRING)?.to_owned();
        let mut set = attribute.constructed(SET)?;
        attribute.skip_rest()?;
        let mut values = Vec::new();
        while !set.is_empty() {
            values.push(set.expect(OCTET_STRING)?.to_vec());
        }
        attributes.push((name, values));
    }
    Ok(LdapEntry { dn, attributes })
}

/// One line of text. Some servers end it with NUL.
fn printable(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let shown = text.trim_end_matches('\0').chars().take(DIAGNOSTIC_CHARS_MAX);
    shown
        .map(|character| if character.is_control() { ' ' } else { character })
        .collect()
}

pub(super) fn bind_request(id: u32, dn: &str, password: &[u8]) -> Vec<u8> {
    message(id, BIND_REQUEST, |body| {
        ber::push_number(body, INTEGER, 3);
        ber::push(body, OCTET_STRING, dn.as_bytes());
        ber::push(body, SIMPLE_PASSWORD, password);
    })
}

pub(super) fn start_tls_request(id: u32) -> Vec<u8> {
    message(id, EXTENDED_REQUEST, |body| ber::push(body, 0x80, START_TLS.as_bytes()))
}

pub(super) fn search_request(id: u32, search: &LdapSearch) -> Vec<u8> {
    message(id, SEARCH_REQUEST, |body| {
        ber::push(body, OCTET_STRING, search.base.as_bytes());
        let scope = match search.scope {
            SearchScope::Base => 0,
            SearchScope::Subtree => 2,
        };
        ber::push_number(body, ENUMERATED, scope);
        // Aliases are not followed: they could lead out of the base.
        ber::push_number(body, ENUMERATED, 0);
        ber::push_number(body, INTEGER, search.limit);
        // The caller limits the time.
        ber::push_number(body, INTEGER, 0);
        ber::push(body, BOOLEAN, &[0]);
        search.filter.write(body);
        ber::push_with(body, SEQUENCE, |names| {
            // Without a name, the server would return all attributes. `1.1` stands for none.
            if search.attributes.is_empty() {
                ber::push(names, OCTET_STRING, b"1.1");
            }
            for name in &search.attributes {
                ber::push(names, OCTET_STRING, name.as_bytes());
            }
        });
    })
}

fn message(id: u32, tag: u8, write: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = Vec::new();
    ber::push_with(&mut out, SEQUENCE, |message| {
        ber::push_number(message, INTEGER, id);
        ber::push_with(message, tag, write);
    });
    out
}
