//! Runs the table of raw packets through the decoder and the encoder: whole, truncated at every byte, split at every
//! position, and above the size limit.

use std::collections::HashSet;

use crate::table::{ALL, Case, Expected, cases, decode_any, framed, title};
use tidewire_mqtt::{
    DecodeErrorKind, Decoded, Packet, ProtocolVersion, connect_answer_version, decode, decode_connect,
};

fn each(mut check: impl FnMut(&Case, ProtocolVersion, &str)) {
    for case in cases() {
        for &version in case.versions {
            check(&case, version, &title(&case, version));
        }
    }
}

fn encoded(packet: &Packet<'_>, version: ProtocolVersion) -> Vec<u8> {
    let mut bytes = Vec::new();
    packet.encode(version, &mut bytes);
    bytes
}

#[test]
fn names_are_unique() {
    let mut seen = HashSet::new();
    for case in cases() {
        assert!(seen.insert(case.name), "{} occurs twice", case.name);
    }
}

#[test]
fn decodes_as_the_table_says() {
    each(
        |case, version, title| match (&case.expected, decode_any(&case.bytes, version)) {
            (Expected::Packet(expected) | Expected::OtherForm(expected), Ok(Decoded::Complete { packet, size })) => {
                assert_eq!(&packet, expected, "{title}");
                assert_eq!(size, case.bytes.len(), "{title}");
            }
            (Expected::Error(expected), Err(error)) => {
                assert_eq!(error.kind, *expected, "{title}");
                assert_eq!(error.reason, error.kind.reason(), "{title}");
            }
            (_, other) => panic!("{title}: {other:?}"),
        },
    );
}

#[test]
fn first_packet_decodes_like_any_other() {
    each(|case, version, title| {
        let first = decode_connect(&case.bytes, usize::MAX);
        if case.bytes[0] >> 4 != 1 {
            assert_eq!(first.unwrap_err().kind, DecodeErrorKind::NotConnect, "{title}");
            return;
        }
        match (first, decode_any(&case.bytes, version)) {
            (Ok(Decoded::Complete { packet, size }), Ok(later)) => {
                assert_eq!(
                    Decoded::Complete {
                        packet: Packet::Connect(packet),
                        size
                    },
                    later,
                    "{title}"
                );
                assert_eq!(connect_answer_version(&case.bytes), Some(version), "{title}");
            }
            (first, later) => assert_eq!(first.unwrap_err(), later.unwrap_err(), "{title}"),
        }
    });
}

#[test]
fn encodes_to_the_same_bytes() {
    each(|case, version, title| {
        let Some(packet) = case.packet() else { return };
        let bytes = encoded(packet, version);
        if let Expected::Packet(_) = case.expected {
            assert_eq!(bytes, case.bytes, "{title}");
        }
        let decoded = decode_any(&bytes, version);
        assert_eq!(
            decoded,
            Ok(Decoded::Complete {
                packet: packet.clone(),
                size: bytes.len()
            }),
            "{title}"
        );
    });
}

#[test]
fn encoding_appends() {
    each(|case, version, title| {
        let Some(packet) = case.packet() else { return };
        let mut bytes = b"before".to_vec();
        packet.encode(version, &mut bytes);
        assert_eq!(
            bytes.strip_prefix(b"before"),
            Some(&*encoded(packet, version)),
            "{title}"
        );
    });
}

#[test]
fn truncated_packet_is_incomplete() {
    each(|case, version, title| {
        if case.packet().is_none() {
            return;
        }
        for end in 0..case.bytes.len().min(300) {
            match decode_any(&case.bytes[..end], version) {
                Ok(Decoded::Incomplete { needed }) => {
                    assert!(needed > end && needed <= case.bytes.len(), "{title}: {needed} at {end}");
                }
                other => panic!("{title} cut at {end}: {other:?}"),
            }
        }
    });
}

#[test]
fn an_error_is_found_early_or_at_the_end() {
    each(|case, version, title| {
        let Expected::Error(kind) = case.expected else { return };
        let mut is_certain = false;
        for end in 0..case.bytes.len() {
            match decode_any(&case.bytes[..end], version) {
                Ok(Decoded::Incomplete { needed }) => assert!(needed > end && !is_certain, "{title} cut at {end}"),
                Err(error) => {
                    assert_eq!(error.kind, kind, "{title} cut at {end}");
                    is_certain = true;
                }
                Ok(other) => panic!("{title} cut at {end}: {other:?}"),
            }
        }
    });
}

#[test]
fn first_byte_is_enough_to_reject() {
    for version in ALL {
        assert_eq!(
            decode_any(b"\0", *version).unwrap_err().kind,
            DecodeErrorKind::ReservedPacketType
        );
        assert_eq!(
            decode_any(b"\x36", *version).unwrap_err().kind,
            DecodeErrorKind::PublishQoS
        );
        assert_eq!(decode_any(b"", *version), Ok(Decoded::Incomplete { needed: 2 }));
    }
    for first in (0u8..=255).filter(|first| first >> 4 != 1) {
        assert_eq!(
            decode_connect(&[first], 100).unwrap_err().kind,
            DecodeErrorKind::NotConnect
        );
    }
    assert_eq!(decode_connect(b"\x10", 100), Ok(Decoded::Incomplete { needed: 2 }));
}

/// Decodes a stream of all packets of a version, in chunks of every relevant size.
#[test]
fn every_split_gives_the_same_packets() {
    for &version in ALL {
        let all = cases();
        let valid: Vec<&Case> = all
            .iter()
            .filter(|case| case.versions.contains(&version) && case.bytes.len() < 300)
            .collect();
        let expected: Vec<&Packet<'_>> = valid.iter().filter_map(|case| case.packet()).collect();
        let stream: Vec<u8> = valid
            .iter()
            .filter(|case| case.packet().is_some())
            .flat_map(|case| case.bytes.clone())
            .collect();
        for chunk_size in 1..=stream.len() {
            assert_eq!(
                deliver(&stream, chunk_size, version, &expected),
                expected.len(),
                "chunks of {chunk_size}"
            );
        }
    }
}

/// Feeds the stream in chunks and decodes only when `needed` bytes are available. Returns the number of packets that
/// were decoded as expected.
fn deliver(stream: &[u8], chunk_size: usize, version: ProtocolVersion, expected: &[&Packet<'_>]) -> usize {
    let (mut start, mut needed, mut count) = (0, 0, 0);
    for end in (1..=stream.len()).filter(|end| end % chunk_size == 0 || *end == stream.len()) {
        while end - start >= needed.max(1) {
            match decode_any(&stream[start..end], version).expect("the stream is valid") {
                Decoded::Incomplete { needed: more } => needed = more,
                Decoded::Complete { packet, size } => {
                    assert_eq!(&packet, expected[count]);
                    (start, needed, count) = (start + size, 0, count + 1);
                }
            }
        }
    }
    count
}

#[test]
fn size_limit_is_exact_and_needs_only_the_header() {
    each(|case, version, title| {
        if case.packet().is_none() {
            return;
        }
        let size = case.bytes.len();
        assert!(
            matches!(decode(&case.bytes, version, size), Ok(Decoded::Complete { .. })),
            "{title}"
        );
        let header_size = 1 + case.bytes[1..].iter().position(|byte| *byte < 0x80).unwrap() + 1;
        let error = decode(&case.bytes[..header_size], version, size - 1).unwrap_err();
        assert_eq!(
            error.kind,
            DecodeErrorKind::PacketTooLarge { size, limit: size - 1 },
            "{title}"
        );
    });
}

#[test]
fn declared_size_reserves_no_memory() {
    let header = b"\x30\xff\xff\xff\x7f";
    let size = 5 + 268_435_455;
    for &version in ALL {
        assert_eq!(decode_any(header, version), Ok(Decoded::Incomplete { needed: size }));
        let error = decode(header, version, 1 << 20).unwrap_err();
        assert_eq!(error.kind, DecodeErrorKind::PacketTooLarge { size, limit: 1 << 20 });
    }
}

/// Truncates the body at every byte and corrects the Remaining Length. The packet is never incomplete. CONNECT is never
/// accepted, except in MQTT 3.1, which allows announced credentials to be missing.
#[test]
fn truncated_body_with_a_matching_length_is_checked() {
    each(|case, version, title| {
        let Some(packet) = case.packet() else { return };
        if case.bytes.len() > 130 || case.bytes[1] >= 0x80 {
            return;
        }
        for end in 0..case.bytes.len() - 2 {
            let cut = framed(case.bytes[0], &case.bytes[2..2 + end]);
            match decode_any(&cut, version) {
                Err(_) => {}
                Ok(Decoded::Complete { packet: shorter, size }) => {
                    assert_eq!(size, cut.len(), "{title} cut to {end}");
                    let is_shortest = matches!(case.expected, Expected::Packet(_));
                    assert!(!is_shortest || &shorter != packet, "{title} cut to {end}");
                    let is_connect = matches!(packet, Packet::Connect(_));
                    assert!(
                        !is_connect || version == ProtocolVersion::V3_1,
                        "{title} cut to {end}: {shorter:?}"
                    );
                }
                Ok(Decoded::Incomplete { .. }) => panic!("{title} cut to {end}"),
            }
        }
    });
}

#[test]
fn trailing_bytes_belong_to_the_next_packet() {
    each(|case, version, title| {
        let Some(packet) = case.packet() else { return };
        let with_more = [&case.bytes[..], b"\xff\xff\xff\xff\xff"].concat();
        let expected = Ok(Decoded::Complete {
            packet: packet.clone(),
            size: case.bytes.len(),
        });
        assert_eq!(decode_any(&with_more, version), expected, "{title}");
    });
}

#[test]
fn every_error_has_its_own_message() {
    let mut texts = HashSet::new();
    let mut kinds = HashSet::new();
    each(|case, version, _| {
        if let Err(error) = decode_any(&case.bytes, version) {
            let text = error.to_string();
            assert!(text.len() > 10 && !text.contains("unknown"), "{text}");
            kinds.insert(format!("{:?}", error.kind));
            texts.insert(text);
        }
    });
    assert_eq!(kinds.len(), texts.len(), "two error kinds have the same message");
}

#[test]
fn refusal_has_the_format_of_the_client_version() {
    let connect = |name_and_level: &[u8]| connect_answer_version(&framed(0x10, name_and_level));
    assert_eq!(connect(b"\0\x04MQTT\x05"), Some(ProtocolVersion::V5));
    assert_eq!(connect(b"\0\x04MQTT\x06"), Some(ProtocolVersion::V3_1_1));
    assert_eq!(connect(b"\0\x04MQTT\x63"), Some(ProtocolVersion::V3_1_1));
    assert_eq!(connect(b"\0\x04MQTT\x02"), Some(ProtocolVersion::V3_1_1));
    assert_eq!(connect(b"\0\x06MQIsdp\x04"), Some(ProtocolVersion::V3_1_1));
    assert_eq!(connect(b"\0\x04MQTT\x84"), Some(ProtocolVersion::V3_1_1));
    assert_eq!(connect(b"\0\x06MQIsdp\x83"), Some(ProtocolVersion::V3_1));
    assert_eq!(connect(b"\0\x05MQTTX\x04"), None);
    assert_eq!(connect(b"\0\x04MQTT"), None);
    assert_eq!(connect_answer_version(b""), None);
    assert_eq!(connect_answer_version(b"GET / HTTP/1.1"), None);
    assert_eq!(connect_answer_version(b"\x16\x03\x01\x02\x00"), None);
}

#[test]
fn flags_of_connect_are_ignored_by_3_1_only() {
    let v3_1 = b"\0\x06MQIsdp\x03\x02\0\0\0\x01c";
    let others: [&[u8]; 2] = [b"\0\x04MQTT\x04\x02\0\0\0\x01c", b"\0\x04MQTT\x05\x02\0\0\0\0\x01c"];
    for flags in 0..16 {
        let first = 0x10 | flags;
        let bytes = framed(first, v3_1);
        let is_qos_3 = flags & 0b0110 == 0b0110;
        assert_eq!(decode_connect(&bytes, usize::MAX).is_ok(), !is_qos_3, "3.1 {first:#x}");
        for body in others {
            let bytes = framed(first, body);
            let decoded = decode_connect(&bytes, usize::MAX);
            assert_eq!(decoded.is_ok(), flags == 0, "{first:#x}: {decoded:?}");
        }
    }
}
