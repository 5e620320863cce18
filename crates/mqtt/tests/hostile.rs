//! Tests the decoder with arbitrary bytes: it does not panic, reads no byte behind the packet and allocates no memory,
//! and every error has a message.

use crate::table::{ALL, cases, decode_any, framed};
use proptest::prelude::*;

use crate::scale::scaled;
use tidewire_mqtt::{
    Decoded, Packet, ProtocolVersion, connect_answer_version, decode, decode_connect, filter_matches, validate_filter,
    validate_topic_name,
};

fn version() -> impl Strategy<Value = ProtocolVersion> {
    prop::sample::select(ALL)
}

/// Visits all values that a decoded packet provides.
fn walk(packet: &Packet<'_>, version: ProtocolVersion) {
    let properties = match packet {
        Packet::Connect(packet) => {
            packet
                .will
                .iter()
                .flat_map(|will| will.properties.iter())
                .for_each(drop);
            packet.properties
        }
        Packet::Publish(packet) => {
            validate_topic_name(packet.topic).unwrap_or_default();
            packet.properties
        }
        Packet::Subscribe(packet) => {
            assert_eq!(packet.filters.iter().count(), packet.filters.len());
            assert!(!packet.filters.is_empty());
            for entry in packet
                .filters
                .iter()
                .filter(|entry| validate_filter(entry.filter).is_ok())
            {
                filter_matches(entry.filter, "a/b");
            }
            packet.properties
        }
        Packet::Unsubscribe(packet) => {
            assert_eq!(packet.filters.iter().count(), packet.filters.len());
            packet.properties
        }
        Packet::Disconnect(packet) => packet.properties,
        Packet::Auth(packet) => packet.properties,
        _ => Default::default(),
    };
    properties.iter().for_each(drop);
    assert_eq!(
        properties.user_properties().count(),
        properties.iter().filter(|property| property.id() == 38).count()
    );
    let mut again = Vec::new();
    packet.encode(version, &mut again);
    // CONNECT contains its own version, in which it has the same length.
    assert!(!again.is_empty());
}

/// Checks the guarantees for any bytes.
fn check(bytes: &[u8], version: ProtocolVersion) {
    match decode_any(bytes, version) {
        Ok(Decoded::Incomplete { needed }) => assert!(needed > bytes.len()),
        Ok(Decoded::Complete { packet, size }) => {
            assert!(size <= bytes.len());
            assert_eq!(
                decode_any(&bytes[..size], version),
                Ok(Decoded::Complete {
                    packet: packet.clone(),
                    size
                })
            );
            walk(&packet, version);
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    connect_answer_version(bytes);
    match decode_connect(bytes, 4096) {
        Ok(Decoded::Incomplete { needed }) => assert!(needed > bytes.len() && needed <= 4096),
        Ok(Decoded::Complete { size, .. }) => assert!(size <= bytes.len() && size <= 4096),
        Err(_) => {}
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(scaled(20_000) as u32))]

    #[test]
    fn random_bytes(bytes in prop::collection::vec(any::<u8>(), 0..200), version in version()) {
        check(&bytes, version);
    }

    #[test]
    fn random_bodies(first in any::<u8>(), body in prop::collection::vec(prop_oneof![0..4u8, any::<u8>()], 0..60), version in version()) {
        check(&framed(first, &body), version);
    }

    #[test]
    fn damaged_packets(
        index in any::<prop::sample::Index>(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        version in version(),
    ) {
        thread_local!(static SEEDS: Vec<Vec<u8>> = cases().into_iter().map(|case| case.bytes).collect());
        let mut bytes = SEEDS.with(|seeds| index.get(seeds).clone());
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        check(&bytes, version);
    }
}

#[test]
fn decoding_allocates_no_memory() {
    let cases = cases();
    let declared: [&[u8]; 3] = [
        b"\x30\xff\xff\xff\x7f\xff\xff",
        b"\x10\xff\xff\xff\x7f\0\x04MQTT",
        b"\x82\x80\x80\x80\x01\0",
    ];
    let allocated = allocation_counter::measure(|| {
        for version in ALL {
            for case in &cases {
                std::hint::black_box(decode(&case.bytes, *version, usize::MAX))
                    .map(drop)
                    .unwrap_or_default();
                std::hint::black_box(decode_connect(&case.bytes, usize::MAX))
                    .map(drop)
                    .unwrap_or_default();
            }
            for bytes in declared {
                assert!(matches!(
                    decode(bytes, *version, usize::MAX),
                    Ok(Decoded::Incomplete { .. })
                ));
            }
        }
    });
    assert_eq!((allocated.count_total, allocated.bytes_total), (0, 0));
}

#[test]
fn strings_of_65535_bytes() {
    let long = "x".repeat(65535);
    let string = [b"\xff\xff", long.as_bytes()].concat();
    let connect = framed(0x10, &[b"\0\x04MQTT\x04\xc2\0\0", &*string, &string, &string].concat());
    let Ok(Decoded::Complete { packet, .. }) = decode_connect(&connect, usize::MAX) else {
        panic!("refused")
    };
    assert_eq!(
        (packet.client_id, packet.user_name, packet.password),
        (&*long, Some(&*long), Some(long.as_bytes()))
    );
    let publish = framed(0x30, &string);
    assert!(matches!(
        decode_any(&publish, ProtocolVersion::V3_1_1),
        Ok(Decoded::Complete { .. })
    ));
}
