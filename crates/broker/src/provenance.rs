//! Provenance of a message: its identifier and publisher, for delivery events.
//!
//! Stored with a message in memory, in mail and in the journal, but only while a tap requests such events. Messages
//! received before that have none. The bytes are opaque until an event is reported.
//!
//! ```text
//! provenance := id u128, received_at_ms u64, mark u64, kind u8, [client]
//! client     := version u8, address (4 or 16 bytes), port u16, client id bytes u32, client id, user name (the rest)
//! ```
//! Integers are big-endian. `kind` consists of the bits below.

use std::net::{IpAddr, SocketAddr};

use mqtt::ProtocolVersion;

use crate::access::LoginGrant;
use crate::tap::TapClient;

const HAS_CLIENT: u8 = 1;
const HAS_USER_NAME: u8 = 1 << 1;
const IS_V6: u8 = 1 << 2;

/// Encoded provenance; empty if it is unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Provenance<'a>(&'a [u8]);

/// Decoded provenance.
#[derive(Clone, Copy, Debug)]
pub struct DecodedProvenance<'a> {
    pub id: u128,
    /// Unix milliseconds.
    pub received_at_ms: u64,
    /// `MadeMessage::mark`, or 0.
    pub mark: u64,
    /// `None` for messages of the server, an operator or a tap.
    pub client: Option<TapClient<'a>>,
}

impl<'a> Provenance<'a> {
    pub const NONE: Provenance<'static> = Provenance(&[]);

    /// Wraps bytes that `DecodedProvenance::put` has written.
    pub fn from_written(bytes: &'a [u8]) -> Provenance<'a> {
        Provenance(bytes)
    }

    pub fn as_bytes(self) -> &'a [u8] {
        self.0
    }

    #[inline]
    pub fn is_none(self) -> bool {
        self.0.is_empty()
    }

    /// Decodes the provenance. `None` if there is none, or if the bytes are invalid, which is possible after recovery.
    pub fn source(self) -> Option<DecodedProvenance<'a>> {
        let mut rest = self.0;
        let id = u128::from_be_bytes(cut(&mut rest)?);
        let received_at_ms = u64::from_be_bytes(cut(&mut rest)?);
        let mark = u64::from_be_bytes(cut(&mut rest)?);
        let [kind] = cut(&mut rest)?;
        let client = match kind & HAS_CLIENT {
            0 => None,
            _ => Some(client(kind, rest)?),
        };
        Some(DecodedProvenance {
            id,
            received_at_ms,
            mark,
            client,
        })
    }
}

fn client(kind: u8, mut rest: &[u8]) -> Option<TapClient<'_>> {
    let [level] = cut(&mut rest)?;
    let version = [ProtocolVersion::V3_1, ProtocolVersion::V3_1_1, ProtocolVersion::V5]
        .into_iter()
        .find(|version| *version as u8 == level)?;
    let ip: IpAddr = match kind & IS_V6 {
        0 => cut::<4>(&mut rest)?.into(),
        _ => cut::<16>(&mut rest)?.into(),
    };
    let port = u16::from_be_bytes(cut(&mut rest)?);
    let length = u32::from_be_bytes(cut(&mut rest)?);
    let (client_id, user_name) = rest.split_at_checked(length as usize)?;
    Some(TapClient {
        client_id: std::str::from_utf8(client_id).ok()?,
        user_name: match kind & HAS_USER_NAME {
            0 => None,
            _ => Some(std::str::from_utf8(user_name).ok()?),
        },
        address: SocketAddr::new(ip, port),
        listener: None,
        version,
        grant: &LoginGrant::None,
        mountpoint: None,
    })
}

fn cut<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (first, behind) = rest.split_first_chunk()?;
    *rest = behind;
    Some(*first)
}

impl DecodedProvenance<'_> {
    pub fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.id.to_be_bytes());
        out.extend_from_slice(&self.received_at_ms.to_be_bytes());
        out.extend_from_slice(&self.mark.to_be_bytes());
        let Some(client) = &self.client else {
            return out.push(0);
        };
        let flag = |is_set: bool, flag: u8| if is_set { flag } else { 0 };
        let (has_user_name, is_v6) = (client.user_name.is_some(), client.address.is_ipv6());
        out.push(HAS_CLIENT | flag(has_user_name, HAS_USER_NAME) | flag(is_v6, IS_V6));
        out.push(client.version as u8);
        match client.address.ip() {
            IpAddr::V4(ip) => out.extend_from_slice(&ip.octets()),
            IpAddr::V6(ip) => out.extend_from_slice(&ip.octets()),
        }
        out.extend_from_slice(&client.address.port().to_be_bytes());
        out.extend_from_slice(&(client.client_id.len() as u32).to_be_bytes());
        out.extend_from_slice(client.client_id.as_bytes());
        out.extend_from_slice(client.user_name.unwrap_or_default().as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source<'a>(address: &str, user_name: Option<&'a str>) -> DecodedProvenance<'a> {
        DecodedProvenance {
            id: 7 << 64 | 9,
            received_at_ms: 1_700_000_000_000,
            mark: 1 << 32 | 5,
            client: Some(TapClient {
                client_id: "pump-1",
                user_name,
                address: address.parse().unwrap(),
                listener: None,
                version: ProtocolVersion::V5,
                grant: &LoginGrant::None,
                mountpoint: None,
            }),
        }
    }

    #[test]
    fn source_survives_a_round_trip() {
        let server = DecodedProvenance {
            client: None,
            ..source("127.0.0.1:1", None)
        };
        let cases = [
            server,
            source("10.0.0.7:50123", Some("farm")),
            source("[2001:db8::1]:1883", Some("")),
            source("[2001:db8::1]:1883", None),
        ];
        for case in cases {
            let mut bytes = Vec::new();
            case.put(&mut bytes);
            let read = Provenance::from_written(&bytes).source().unwrap();
            assert_eq!(format!("{read:?}"), format!("{case:?}"));
        }
    }

    #[test]
    fn invalid_bytes_decode_to_none() {
        assert!(Provenance::NONE.source().is_none());
        let mut bytes = Vec::new();
        source("10.0.0.7:50123", Some("farm")).put(&mut bytes);
        let names_start = bytes.len() - "farm".len();
        for length in 0..names_start {
            assert!(
                Provenance::from_written(&bytes[..length]).source().is_none(),
                "{length}"
            );
        }
        bytes[32] |= IS_V6;
        assert!(Provenance::from_written(&bytes).source().is_none());
    }
}
