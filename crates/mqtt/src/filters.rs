//! The filter lists of SUBSCRIBE and UNSUBSCRIBE, stored as wire bytes.
//!
//! `decode` validates a list completely, so that iteration cannot fail. `encode` writes a list into a buffer of the
//! caller and borrows from it.

use crate::error::{DecodeErrorKind, PacketField};
use crate::wire::{PacketReader, put_string};
use crate::{PacketType, ProtocolVersion, QoS, RetainHandling, SubscriptionOptions};

/// The filters of a SUBSCRIBE: never empty, each well-formed UTF-8 with valid option bits. `validate_filter` checks a
/// filter later, because the SUBACK reports invalid filters individually.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubscribeFilters<'a>(&'a [u8]);

/// The filters of an UNSUBSCRIBE, never empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnsubscribeFilters<'a>(&'a [u8]);

/// One filter of a SUBSCRIBE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubscribeFilter<'a> {
    pub filter: &'a str,
    pub options: SubscriptionOptions,
}

impl<'a> SubscribeFilters<'a> {
    /// Validates the rest of a SUBSCRIBE.
    pub(crate) fn parse(bytes: &'a [u8], version: ProtocolVersion) -> Result<SubscribeFilters<'a>, DecodeErrorKind> {
        if bytes.is_empty() {
            return Err(DecodeErrorKind::NoTopicFilter(PacketType::Subscribe)); // [MQTT-3.8.3-2]
        }
        let mut reader = PacketReader::new(bytes);
        while !reader.is_empty() {
            let filter = reader.string(PacketField::TopicFilter)?;
            let options = reader.byte(PacketField::SubscriptionOptions)?;
            check_options(filter, options, version)?;
        }
        Ok(SubscribeFilters(bytes))
    }

    /// Appends `filters` in the format of `version`. At least one is required. Filters are truncated at 65535 bytes.
    pub fn encode<'f>(
        filters: impl IntoIterator<Item = SubscribeFilter<'f>>,
        version: ProtocolVersion,
        out: &'a mut Vec<u8>,
    ) -> SubscribeFilters<'a> {
        let start = out.len();
        for SubscribeFilter { filter, options } in filters {
            put_string(filter, out);
            out.push(options.to_byte(version));
        }
        SubscribeFilters(&out[start..])
    }

    pub fn iter(self) -> impl Iterator<Item = SubscribeFilter<'a>> {
        let mut reader = PacketReader::new(self.0);
        // The bytes are validated, so the only error is the end.
        std::iter::from_fn(move || {
            let filter = reader.string(PacketField::TopicFilter).ok()?;
            let options = SubscriptionOptions::from_byte(reader.byte(PacketField::SubscriptionOptions).ok()?)?;
            Some(SubscribeFilter { filter, options })
        })
    }

    pub fn len(self) -> usize {
        let mut reader = PacketReader::new(self.0);
        let mut next = || {
            reader.binary(PacketField::TopicFilter).ok()?;
            reader.byte(PacketField::SubscriptionOptions).ok()
        };
        std::iter::from_fn(&mut next).count()
    }

    pub fn is_empty(self) -> bool {
        self.0.is_empty()
    }

    /// Returns the wire bytes.
    pub fn as_bytes(self) -> &'a [u8] {
        self.0
    }
}

fn check_options(filter: &str, options: u8, version: ProtocolVersion) -> Result<(), DecodeErrorKind> {
    let reserved = if version.has_properties() {
        0b1100_0000
    } else {
        0b1111_1100
    };
    if options & reserved != 0 {
        return Err(DecodeErrorKind::SubscriptionOptionsReserved(options)); // [MQTT-3.8.3-5]
    }
    if QoS::from_bits(options & 0b11).is_none() {
        return Err(DecodeErrorKind::SubscriptionQoS);
    }
    if RetainHandling::from_bits(options >> 4).is_none() {
        return Err(DecodeErrorKind::RetainHandling);
    }
    // [MQTT-3.8.3-4]
    if options & 0b0100 != 0 && filter.starts_with("$share/") {
        return Err(DecodeErrorKind::NoLocalOnSharedSubscription);
    }
    Ok(())
}

impl<'a> UnsubscribeFilters<'a> {
    /// Validates the rest of an UNSUBSCRIBE.
    pub(crate) fn parse(bytes: &'a [u8]) -> Result<UnsubscribeFilters<'a>, DecodeErrorKind> {
        if bytes.is_empty() {
            return Err(DecodeErrorKind::NoTopicFilter(PacketType::Unsubscribe)); // [MQTT-3.10.3-2]
        }
        let mut reader = PacketReader::new(bytes);
        while !reader.is_empty() {
            reader.string(PacketField::TopicFilter)?;
        }
        Ok(UnsubscribeFilters(bytes))
    }

    /// Appends `filters`. At least one is required. Filters are truncated at 65535 bytes.
    pub fn encode<'f>(filters: impl IntoIterator<Item = &'f str>, out: &'a mut Vec<u8>) -> UnsubscribeFilters<'a> {
        let start = out.len();
        for filter in filters {
            put_string(filter, out);
        }
        UnsubscribeFilters(&out[start..])
    }

    pub fn iter(self) -> impl Iterator<Item = &'a str> {
        let mut reader = PacketReader::new(self.0);
        std::iter::from_fn(move || reader.string(PacketField::TopicFilter).ok())
    }

    pub fn len(self) -> usize {
        let mut reader = PacketReader::new(self.0);
        std::iter::from_fn(|| reader.binary(PacketField::TopicFilter).ok()).count()
    }

    pub fn is_empty(self) -> bool {
        self.0.is_empty()
    }

    /// Returns the wire bytes.
    pub fn as_bytes(self) -> &'a [u8] {
        self.0
    }
}
