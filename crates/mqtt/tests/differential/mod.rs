//! Compares our decoder with the independent crate `mqtt-protocol-core`: both give the same result and the same fields
//! for every packet of the table in 3.1.1 and 5.0, for every such packet with one byte changed, removed or added, and
//! for random mixtures.
//!
//! The other codec parses the body of a packet and leaves several rules to its connection or its builders. Where it is
//! more lenient or stricter than ours the difference is listed below with its justification, and a listed difference
//! that no longer occurs fails the test. Framing (remaining length) is not compared: the table covers it.

mod ours;
mod theirs;

use std::collections::BTreeMap;

use crate::table::{V3_1, cases, decode_any, framed};
use proptest::prelude::*;

use crate::scale::scaled;
use tidewire_mqtt::DecodeErrorKind as Kind;
use tidewire_mqtt::{Decoded, Packet, PacketField, ProtocolVersion, ReasonCode, SharedFilter};

/// The decoded fields of a packet, in a form that is independent of both decoders.
type Fields = Vec<(&'static str, String)>;

/// A packet that the other codec accepts and ours rejects.
struct Lenient {
    why: &'static str,
    is: fn(&Kind) -> bool,
}

const LENIENT: &[Lenient] = &[
    Lenient {
        why: "their parsers never see the flags of the fixed header",
        is: |kind| matches!(kind, Kind::FixedHeaderFlags { .. }),
    },
    Lenient {
        why: "DUP at QoS 0 is checked in their builder only [MQTT-3.3.1-2]",
        is: |kind| matches!(kind, Kind::DupAtQoS0),
    },
    Lenient {
        why: "3.1.1 packets of one length are not measured",
        is: |kind| matches!(kind, Kind::PacketLength { .. }),
    },
    Lenient {
        why: "the reserved connect flag is ignored [MQTT-3.1.2-3]",
        is: |kind| matches!(kind, Kind::ConnectFlagsReserved(_)),
    },
    Lenient {
        why: "will QoS 3 is not looked at [MQTT-3.1.2-12]",
        is: |kind| matches!(kind, Kind::WillQoS),
    },
    Lenient {
        why: "will QoS without will is ignored [MQTT-3.1.2-11]",
        is: |kind| matches!(kind, Kind::WillQoSWithoutWill),
    },
    Lenient {
        why: "will retain without will is ignored [MQTT-3.1.2-13]",
        is: |kind| matches!(kind, Kind::WillRetainWithoutWill),
    },
    Lenient {
        why: "U+0000 passes as valid UTF-8 [MQTT-1.5.4-2]",
        is: |kind| matches!(kind, Kind::NulCharacter(_)),
    },
    Lenient {
        why: "topic names are checked in their builder only [MQTT-3.3.2-2]",
        is: |kind| matches!(kind, Kind::TopicWildcard(_)),
    },
    Lenient {
        why: "empty topics are left to the connection [MQTT-4.7.3-1]",
        is: |kind| matches!(kind, Kind::TopicEmpty(_)),
    },
    Lenient {
        why: "packet id 0 passes in PUBLISH, SUBSCRIBE and UNSUBSCRIBE [MQTT-2.2.1-3]",
        is: |kind| matches!(kind, Kind::PacketIdZero),
    },
    Lenient {
        why: "one parser of subscription options for both versions [MQTT-3-8.3-4]",
        is: |kind| matches!(kind, Kind::SubscriptionOptionsReserved(_)),
    },
    Lenient {
        why: "No Local on a shared subscription is not looked at [MQTT-3.8.3-4]",
        is: |kind| matches!(kind, Kind::NoLocalOnSharedSubscription),
    },
    Lenient {
        why: "reserved CONNACK flags are ignored [MQTT-3.2.2-1]",
        is: |kind| matches!(kind, Kind::ConnAckFlags(_)),
    },
    Lenient {
        why: "session present on a refusal is not looked at [MQTT-3.2.2-6]",
        is: |kind| matches!(kind, Kind::SessionPresentWithError(_)),
    },
    Lenient {
        why: "variable byte integers need not be minimal [MQTT-1.5.5-1]",
        is: |kind| matches!(kind, Kind::VariableByteIntegerNotMinimal(_)),
    },
    Lenient {
        why: "PUBLISH and AUTH may end before the property length",
        is: |kind| matches!(kind, Kind::Truncated(PacketField::PropertyLength)),
    },
    Lenient {
        why: "authentication data without method passes in CONNECT (section 3.1.2.11.10)",
        is: |kind| matches!(kind, Kind::AuthenticationDataWithoutMethod),
    },
    Lenient {
        why: "SUBSCRIBE may hold several subscription identifiers (section 3.8.2.1.2)",
        is: |kind| matches!(kind, Kind::DuplicateProperty(0x0b)),
    },
    Lenient {
        why: "AUTH of success may have properties without the method (section 3.15.2.2.2)",
        is: |kind| matches!(kind, Kind::AuthenticationMethodMissing),
    },
];

/// A packet that ours accepts and the other codec rejects.
struct Strict {
    why: &'static str,
    is: fn(&Packet<'_>) -> bool,
}

const STRICT: &[Strict] = &[
    Strict {
        why: "they refuse a password without user name, which 5.0 allows (section 3.1.2.9)",
        is: |packet| matches!(packet, Packet::Connect(connect) if connect.user_name.is_none() && connect.password.is_some()),
    },
    Strict {
        why: "they refuse an invalid share name for the whole packet; ours leaves it to the answer per filter",
        is: |packet| match packet {
            Packet::Subscribe(subscribe) => subscribe
                .filters
                .iter()
                .any(|entry| SharedFilter::parse(entry.filter).is_err()),
            Packet::Unsubscribe(unsubscribe) => unsubscribe
                .filters
                .iter()
                .any(|filter| SharedFilter::parse(filter).is_err()),
            _ => false,
        },
    },
    Strict {
        why: "0x8C is missing in their DISCONNECT; section 2.4 lists it, section 3.14.2.1 does not",
        is: |packet| match packet {
            Packet::Disconnect(disconnect) => disconnect.reason == ReasonCode::BadAuthenticationMethod,
            _ => false,
        },
    },
    Strict {
        why: "they do not know the bridge bit",
        is: |packet| matches!(packet, Packet::Connect(connect) if connect.is_bridge),
    },
];

/// Number of occurrences of each difference.
#[derive(Default)]
struct Differences(BTreeMap<&'static str, usize>);

impl Differences {
    /// Compares one packet. Panics on a difference that is not listed.
    fn compare(&mut self, bytes: &[u8], version: ProtocolVersion) {
        let body = &bytes[bytes.len() - body_length(bytes)..];
        let Some(theirs) = theirs::fields(bytes[0], body, version) else {
            return;
        };
        let ours = match decode_any(bytes, version) {
            Ok(Decoded::Complete { packet, .. }) => Ok(packet),
            Ok(Decoded::Incomplete { .. }) => panic!("incomplete: {bytes:02x?}"),
            Err(error) => Err(error.kind),
        };
        match (&ours, theirs) {
            // The version selects the parser of the other codec. Ours reads the version from CONNECT.
            (Ok(Packet::Connect(connect)), _) if connect.version != version => {}
            (Ok(packet), Ok(fields)) => assert_eq!(ours::fields(packet, version), fields(), "{version} {bytes:02x?}"),
            (Err(kind), Ok(_)) => {
                let known = LENIENT.iter().find(|known| (known.is)(kind));
                self.count(known.map(|known| known.why), || {
                    format!("only ours refuses ({kind}): {version} {bytes:02x?}")
                });
            }
            (Ok(packet), Err(error)) => {
                let known = STRICT.iter().find(|known| (known.is)(packet));
                self.count(known.map(|known| known.why), || {
                    format!("only theirs refuses ({error:?}): {version} {bytes:02x?}")
                });
            }
            (Err(_), Err(_)) => {}
        }
    }

    fn count(&mut self, known: Option<&'static str>, unknown: impl FnOnce() -> String) {
        let why = known.unwrap_or_else(|| panic!("{}", unknown()));
        *self.0.entry(why).or_default() += 1;
    }
}

fn body_length(bytes: &[u8]) -> usize {
    bytes.len() - 1 - (1 + bytes[1..].iter().take_while(|byte| **byte >= 0x80).count())
}

fn text(value: impl ToString) -> String {
    value.to_string()
}

fn hex(bytes: &[u8]) -> String {
    format!("{bytes:02x?}")
}

/// Returns every packet of the table that the other codec supports, as first byte, body and version.
fn seeds() -> Vec<(u8, Vec<u8>, ProtocolVersion)> {
    let mut seeds = Vec::new();
    for case in cases().into_iter().filter(|case| case.bytes.len() < 150) {
        for &version in case.versions.iter().filter(|version| **version != V3_1) {
            let body = case.bytes[case.bytes.len() - body_length(&case.bytes)..].to_vec();
            // Packets with a malformed Remaining Length are not compared.
            if framed(case.bytes[0], &body) == case.bytes {
                seeds.push((case.bytes[0], body, version));
            }
        }
    }
    seeds
}

/// Returns replacements for a byte: all values in short packets, a selection in long packets.
fn replacements(byte: u8, body_length: usize) -> Vec<u8> {
    if body_length <= 32 {
        return (0..=255).collect();
    }
    let mut values = vec![0, 1, 2, 3, 4, 5, 0x22, b'#', b'+', b'/', 0x7f, 0x80, 0xc0, 0xed, 0xff];
    values.extend([byte.wrapping_add(1), byte.wrapping_sub(1), byte ^ 0x80]);
    values
}

#[test]
fn same_verdict_and_fields_up_to_the_listed_differences() {
    let mut differences = Differences::default();
    for (first, body, version) in seeds() {
        differences.compare(&framed(first, &body), version);
        for flags in 0..16 {
            differences.compare(&framed(first & 0xF0 | flags, &body), version);
        }
        for at in 0..body.len() {
            let mut changed = body.clone();
            for value in replacements(body[at], body.len()) {
                changed[at] = value;
                differences.compare(&framed(first, &changed), version);
            }
            differences.compare(&framed(first, &[&body[..at], &body[at + 1..]].concat()), version);
            differences.compare(&framed(first, &body[..at]), version);
            for value in [0, 1, b'a', 0xff] {
                differences.compare(&framed(first, &[&body[..at], &[value], &body[at..]].concat()), version);
            }
        }
    }
    let listed = LENIENT
        .iter()
        .map(|known| known.why)
        .chain(STRICT.iter().map(|known| known.why));
    let stale: Vec<&str> = listed.filter(|why| !differences.0.contains_key(why)).collect();
    assert!(stale.is_empty(), "listed, but does not occur: {stale:#?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(scaled(20_000) as u32))]

    /// Combines the head of one packet with the tail of another, and changes some bytes.
    #[test]
    fn same_on_mixtures(
        (first, second) in (any::<prop::sample::Index>(), any::<prop::sample::Index>()),
        (cut, resume) in (any::<prop::sample::Index>(), any::<prop::sample::Index>()),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
    ) {
        thread_local!(static SEEDS: Vec<(u8, Vec<u8>, ProtocolVersion)> = seeds());
        SEEDS.with(|seeds| {
            let (first_byte, head, version) = first.get(seeds);
            let (_, tail, _) = second.get(seeds);
            let mut body = [&head[..cut.index(head.len() + 1)], &tail[resume.index(tail.len() + 1)..]].concat();
            for (at, value) in changes {
                if !body.is_empty() {
                    let at = at.index(body.len());
                    body[at] = value;
                }
            }
            Differences::default().compare(&framed(*first_byte, &body), *version);
        });
    }
}
