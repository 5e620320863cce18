//! Checks of the fuzz targets: invariants of the codec that hold for any bytes and any text. The module `journal_open`
//! has those of the journal.

mod journal_open;

pub use journal_open::check_journal;

use mqtt::{
    DecodeError, Decoded, FilterError, Packet, ProtocolVersion, PublishExtras, SharedFilter, decode, decode_connect,
    filter_matches, has_wildcards, levels, publish_size, validate_filter, validate_topic_name,
};

/// Larger than any input of the fuzzer.
const MAXIMUM_PACKET_SIZE: usize = 1 << 20;

/// Checks the bytes unchanged, and with the Remaining Length corrected. Without the correction nearly every change
/// of length makes the packet incomplete, and the fuzzer hardly gets beyond the fixed header.
pub fn check_both(bytes: &[u8], check: impl Fn(&[u8])) {
    check(bytes);
    check(&reframed(bytes));
}

/// Returns the packet with its Remaining Length set to the real length.
pub fn reframed(bytes: &[u8]) -> Vec<u8> {
    let Some((first, rest)) = bytes.split_first() else {
        return Vec::new();
    };
    let length_size = rest.iter().take(3).take_while(|byte| **byte >= 0x80).count() + 1;
    let body = rest.get(length_size..).unwrap_or_default();
    let mut packet = vec![*first];
    let mut length = body.len();
    while length >= 0x80 {
        packet.push(length as u8 | 0x80);
        length >>= 7;
    }
    packet.push(length as u8);
    packet.extend_from_slice(body);
    packet
}

/// Decodes the bytes. A valid packet survives encoding, is incomplete without its last byte, and does not depend on
/// later bytes.
pub fn check_decode(bytes: &[u8], version: ProtocolVersion) {
    match decode(bytes, version, MAXIMUM_PACKET_SIZE) {
        Ok(Decoded::Incomplete { needed }) => check_needed(needed, bytes),
        Ok(Decoded::Complete { packet, size }) => {
            check_packet(&packet, version);
            assert_eq!(
                decode(&bytes[..size], version, size),
                Ok(Decoded::Complete { packet, size })
            );
            let cut = decode(&bytes[..size - 1], version, MAXIMUM_PACKET_SIZE);
            assert!(matches!(cut, Ok(Decoded::Incomplete { .. })), "{cut:?}");
        }
        Err(error) => {
            check_error(error);
            let longer = [bytes, &[0xFF; 8]].concat();
            assert_eq!(decode(&longer, version, MAXIMUM_PACKET_SIZE).map(drop), Err(error));
        }
    }
}

/// Checks the first packet of a connection in the same way.
pub fn check_decode_connect(bytes: &[u8]) {
    match decode_connect(bytes, MAXIMUM_PACKET_SIZE) {
        Ok(Decoded::Incomplete { needed }) => check_needed(needed, bytes),
        Ok(Decoded::Complete { packet, size }) => {
            let version = packet.version;
            assert_eq!(mqtt::connect_answer_version(bytes), Some(version));
            let packet = Packet::Connect(packet);
            check_packet(&packet, version);
            assert_eq!(
                decode(bytes, version, MAXIMUM_PACKET_SIZE),
                Ok(Decoded::Complete { packet, size })
            );
        }
        Err(error) => check_error(error),
    }
}

fn check_needed(needed: usize, bytes: &[u8]) {
    assert!(needed > bytes.len() && needed <= MAXIMUM_PACKET_SIZE);
}

fn check_error(error: DecodeError) {
    assert!(error.reason.is_error());
    assert!(!error.to_string().is_empty());
}

fn check_packet(packet: &Packet<'_>, version: ProtocolVersion) {
    let mut encoded = Vec::new();
    packet.encode(version, &mut encoded);
    let again = decode(&encoded, version, MAXIMUM_PACKET_SIZE + 8);
    assert_eq!(
        again,
        Ok(Decoded::Complete {
            packet: packet.clone(),
            size: encoded.len()
        })
    );
    match packet {
        Packet::Publish(publish) => {
            assert_eq!(validate_topic_name(publish.topic).is_ok(), !publish.topic.is_empty());
            assert_eq!(publish_size(publish, PublishExtras::default(), version), encoded.len());
            let mut forwarded = Vec::new();
            publish.properties.append_forwarded(&mut forwarded);
            assert_eq!(
                publish.properties.is_forwarded_whole(),
                forwarded == publish.properties.as_bytes()
            );
        }
        Packet::Subscribe(subscribe) => assert_eq!(subscribe.filters.iter().count(), subscribe.filters.len()),
        Packet::Unsubscribe(unsubscribe) => assert_eq!(unsubscribe.filters.iter().count(), unsubscribe.filters.len()),
        _ => {}
    }
}

/// Compares validation and matching of a filter and a topic with their definitions.
pub fn check_topic(filter: &str, topic: &str) {
    let is_name = validate_topic_name(topic).is_ok();
    assert_eq!(
        is_name,
        !topic.is_empty() && topic.len() <= 65535 && !topic.contains(['\0', '+', '#'])
    );
    if is_name {
        assert_eq!(validate_filter(topic), Ok(()));
        assert!(filter_matches(topic, topic));
        assert_eq!(filter_matches("#", topic), !topic.starts_with('$'));
    }
    let is_filter = validate_filter(filter).is_ok();
    assert_eq!(is_filter, is_valid_by_level(filter));
    if is_filter && is_name {
        let (filter_levels, topic_levels): (Vec<&str>, Vec<&str>) = (levels(filter).collect(), levels(topic).collect());
        let is_hidden = topic.starts_with('$') && matches!(filter_levels[0], "+" | "#");
        let expected = !is_hidden && matches_by_level(&filter_levels, &topic_levels);
        assert_eq!(filter_matches(filter, topic), expected, "{filter} {topic}");
    }
    check_shared(filter);
}

fn is_valid_by_level(filter: &str) -> bool {
    let last = levels(filter).count() - 1;
    let is_valid = |(i, level): (usize, &str)| match level {
        "+" => true,
        "#" => i == last,
        level => !has_wildcards(level),
    };
    !filter.is_empty() && filter.len() <= 65535 && !filter.contains('\0') && levels(filter).enumerate().all(is_valid)
}

fn matches_by_level(filter: &[&str], topic: &[&str]) -> bool {
    match filter.strip_suffix(&["#"]) {
        Some(filter) => topic.len() >= filter.len() && are_equal(filter, &topic[..filter.len()]),
        None => topic.len() == filter.len() && are_equal(filter, topic),
    }
}

fn are_equal(filter: &[&str], topic: &[&str]) -> bool {
    filter
        .iter()
        .zip(topic)
        .all(|(filter, level)| *filter == "+" || filter == level)
}

fn check_shared(filter: &str) {
    match SharedFilter::parse(filter) {
        Ok(Some(shared)) => {
            assert!(!shared.share_name.is_empty() && !shared.share_name.contains(['/', '+', '#']));
            assert!(!shared.filter.is_empty());
            assert_eq!(format!("$share/{}/{}", shared.share_name, shared.filter), filter);
        }
        Ok(None) => assert!(!filter.starts_with("$share/")),
        Err(error) => {
            assert_eq!(error, FilterError::Shared);
            assert!(filter.starts_with("$share/"));
        }
    }
}
