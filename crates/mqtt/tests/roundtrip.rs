//! Tests that random packets survive encoding and decoding in every version.

use crate::arbitrary::{Buffers, seed};
use proptest::prelude::*;

use crate::scale::scaled;
use tidewire_mqtt::{
    Decoded, Packet, PacketId, Property, ProtocolVersion, PublishExtras, QoS, decode, encode_publish, publish_size,
};

fn encoded(packet: &Packet<'_>, version: ProtocolVersion) -> Vec<u8> {
    let mut bytes = Vec::new();
    packet.encode(version, &mut bytes);
    bytes
}

/// Encodes and decodes the packet. Fields that the version does not support are lost.
fn decoded_in(packet: &Packet<'_>, version: ProtocolVersion) -> Vec<u8> {
    let bytes = encoded(packet, version);
    match decode(&bytes, version, usize::MAX) {
        Ok(Decoded::Complete { packet, size }) if size == bytes.len() => encoded(&packet, version),
        other => panic!("{version} {bytes:02x?}: {other:?}"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(scaled(2_000) as u32))]

    #[test]
    fn a_packet_decodes_to_itself(seed in seed()) {
        let mut buffers = Buffers::default();
        let Some(packet) = seed.packet(&mut buffers) else { return Ok(()) };
        let bytes = encoded(&packet, seed.version);
        prop_assert_eq!(decode(&bytes, seed.version, usize::MAX), Ok(Decoded::Complete { packet, size: bytes.len() }));
    }

    #[test]
    fn a_packet_of_one_version_is_well_formed_in_the_others(seed in seed(), version in prop::sample::select(&ProtocolVersion::ALL[..])) {
        let mut buffers = Buffers::default();
        let Some(packet) = seed.packet(&mut buffers) else { return Ok(()) };
        // Some versions cannot express an alias without topic, AUTH, or the reason codes of UNSUBACK.
        let is_alias = matches!(&packet, Packet::Publish(publish) if publish.topic.is_empty());
        let has_reasons_of_3 = matches!(packet, Packet::UnsubAck(_)) && seed.version != ProtocolVersion::V5;
        let own = if let Packet::Connect(connect) = &packet { connect.version } else { version };
        if !is_alias && !has_reasons_of_3 && !matches!(packet, Packet::Auth(_)) {
            prop_assert_eq!(decoded_in(&packet, own), encoded(&packet, own));
        }
    }

    #[test]
    fn publish_extras_stand_before_the_properties(
        seed in seed(),
        expiry in prop::option::of(any::<u32>()),
        alias in prop::option::of(1..=u16::MAX),
        subscription_identifiers in prop::collection::vec(1..=268_435_455u32, 0..6),
        version in prop::sample::select(&ProtocolVersion::ALL[..]),
    ) {
        let mut buffers = Buffers::default();
        let Some(Packet::Publish(publish)) = seed.packet(&mut buffers) else { return Ok(()) };
        prop_assume!(!publish.topic.is_empty());
        let mut forwarded = Vec::new();
        publish.properties.append_forwarded(&mut forwarded);
        let properties = tidewire_mqtt::Properties::parse(&forwarded, tidewire_mqtt::PropertyContext::Publish).unwrap();
        let publish = tidewire_mqtt::Publish { properties, ..publish };
        let extras = PublishExtras {
            message_expiry_interval: expiry,
            topic_alias: alias,
            subscription_identifiers: &subscription_identifiers,
        };
        let mut bytes = vec![0xAA; 3];
        let at = encode_publish(&publish, extras, version, &mut bytes);
        let bytes = bytes.split_off(3);
        prop_assert_eq!(bytes.len(), publish_size(&publish, extras, version));
        let Ok(Decoded::Complete { packet: Packet::Publish(decoded), .. }) = decode(&bytes, version, usize::MAX) else {
            panic!("{version} {bytes:02x?}");
        };
        if let Some(id) = publish.packet_id {
            prop_assert_eq!(&bytes[at..at + 2], id.get().to_be_bytes());
        }
        prop_assert_eq!((decoded.topic, decoded.payload, decoded.packet_id), (publish.topic, publish.payload, publish.packet_id));
        if version != ProtocolVersion::V5 {
            prop_assert!(decoded.properties.is_empty());
            return Ok(());
        }
        let mut expected: Vec<Property<'_>> = expiry.map(Property::MessageExpiryInterval).into_iter().collect();
        expected.extend(alias.map(Property::TopicAlias));
        expected.extend(subscription_identifiers.iter().copied().map(Property::SubscriptionIdentifier));
        expected.extend(properties.iter());
        prop_assert_eq!(decoded.properties.iter().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn one_encoding_serves_many_packet_ids(seed in seed(), id in 1..=u16::MAX) {
        let mut buffers = Buffers::default();
        let Some(Packet::Publish(publish)) = seed.packet(&mut buffers) else { return Ok(()) };
        prop_assume!(publish.qos != QoS::AtMostOnce);
        let without_id = tidewire_mqtt::Publish { packet_id: None, ..publish.clone() };
        let mut bytes = Vec::new();
        let at = encode_publish(&without_id, PublishExtras::default(), seed.version, &mut bytes);
        bytes[at..at + 2].copy_from_slice(&id.to_be_bytes());
        let expected = Packet::Publish(tidewire_mqtt::Publish { packet_id: PacketId::new(id), ..publish });
        prop_assert_eq!(decode(&bytes, seed.version, usize::MAX), Ok(Decoded::Complete { packet: expected, size: bytes.len() }));
    }
}
