//! MQTT 5 properties as validated wire bytes.
//!
//! `Properties` borrows the bytes after the Property Length. The bytes have been validated for their packet (allowed
//! identifiers, no forbidden duplicates, value ranges, UTF-8), so that iteration cannot fail.

use std::fmt;

use crate::error::{DecodeErrorKind, PacketField};
use crate::wire::{PacketReader, put_binary, put_string, put_variable_byte_integer};

/// One property, named as in MQTT 5 section 2.2.2.2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Property<'a> {
    PayloadFormatIndicator(u8),
    MessageExpiryInterval(u32),
    ContentType(&'a str),
    ResponseTopic(&'a str),
    CorrelationData(&'a [u8]),
    SubscriptionIdentifier(u32),
    SessionExpiryInterval(u32),
    AssignedClientIdentifier(&'a str),
    ServerKeepAlive(u16),
    AuthenticationMethod(&'a str),
    AuthenticationData(&'a [u8]),
    RequestProblemInformation(bool),
    WillDelayInterval(u32),
    RequestResponseInformation(bool),
    ResponseInformation(&'a str),
    ServerReference(&'a str),
    ReasonString(&'a str),
    ReceiveMaximum(u16),
    TopicAliasMaximum(u16),
    TopicAlias(u16),
    MaximumQoS(u8),
    RetainAvailable(bool),
    UserProperty(&'a str, &'a str),
    MaximumPacketSize(u32),
    WildcardSubscriptionAvailable(bool),
    SubscriptionIdentifierAvailable(bool),
    SharedSubscriptionAvailable(bool),
}

/// The packet that contains a property list. Determines the allowed identifiers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PropertyContext {
    Connect,
    Will,
    ConnAck,
    Publish,
    /// PUBACK, PUBREC, PUBREL, PUBCOMP, SUBACK, UNSUBACK: reason string and user properties.
    Ack,
    Subscribe,
    Unsubscribe,
    Disconnect,
    Auth,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PropertiesError {
    Malformed,
    /// Unknown identifier, identifier not allowed in the packet, duplicate, or value out of range.
    Protocol,
}

/// Validated property bytes without the preceding length. Empty in 3.1 and 3.1.1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Properties<'a>(&'a [u8]);

#[derive(Clone, Debug)]
pub struct UserProperties<'a>(PacketReader<'a>);

/// Row of table 2-4: constant, identifier, value of [`Property`], name in the specification.
macro_rules! properties {
    ($($constant:ident $id:literal $property:ident $name:literal,)*) => {
        mod id {
            $(pub(super) const $constant: u8 = $id;)*
        }

        /// Returns the name of a property in the specification.
        pub(crate) const fn property_name(id: u8) -> &'static str {
            match id { $($id => $name,)* _ => "unknown property" }
        }

        impl Property<'_> {
            /// Returns the identifier, table 2-4.
            pub const fn id(&self) -> u8 {
                match self { $(Property::$property { .. } => $id,)* }
            }

            /// Returns the name in the specification.
            pub const fn name(&self) -> &'static str {
                property_name(self.id())
            }
        }
    };
}

properties! {
    PAYLOAD_FORMAT_INDICATOR 0x01 PayloadFormatIndicator "Payload Format Indicator",
    MESSAGE_EXPIRY_INTERVAL 0x02 MessageExpiryInterval "Message Expiry Interval",
    CONTENT_TYPE 0x03 ContentType "Content Type",
    RESPONSE_TOPIC 0x08 ResponseTopic "Response Topic",
    CORRELATION_DATA 0x09 CorrelationData "Correlation Data",
    SUBSCRIPTION_IDENTIFIER 0x0B SubscriptionIdentifier "Subscription Identifier",
    SESSION_EXPIRY_INTERVAL 0x11 SessionExpiryInterval "Session Expiry Interval",
    ASSIGNED_CLIENT_IDENTIFIER 0x12 AssignedClientIdentifier "Assigned Client Identifier",
    SERVER_KEEP_ALIVE 0x13 ServerKeepAlive "Server Keep Alive",
    AUTHENTICATION_METHOD 0x15 AuthenticationMethod "Authentication Method",
    AUTHENTICATION_DATA 0x16 AuthenticationData "Authentication Data",
    REQUEST_PROBLEM_INFORMATION 0x17 RequestProblemInformation "Request Problem Information",
    WILL_DELAY_INTERVAL 0x18 WillDelayInterval "Will Delay Interval",
    REQUEST_RESPONSE_INFORMATION 0x19 RequestResponseInformation "Request Response Information",
    RESPONSE_INFORMATION 0x1A ResponseInformation "Response Information",
    SERVER_REFERENCE 0x1C ServerReference "Server Reference",
    REASON_STRING 0x1F ReasonString "Reason String",
    RECEIVE_MAXIMUM 0x21 ReceiveMaximum "Receive Maximum",
    TOPIC_ALIAS_MAXIMUM 0x22 TopicAliasMaximum "Topic Alias Maximum",
    TOPIC_ALIAS 0x23 TopicAlias "Topic Alias",
    MAXIMUM_QOS 0x24 MaximumQoS "Maximum QoS",
    RETAIN_AVAILABLE 0x25 RetainAvailable "Retain Available",
    USER_PROPERTY 0x26 UserProperty "User Property",
    MAXIMUM_PACKET_SIZE 0x27 MaximumPacketSize "Maximum Packet Size",
    WILDCARD_SUBSCRIPTION_AVAILABLE 0x28 WildcardSubscriptionAvailable "Wildcard Subscription Available",
    SUBSCRIPTION_IDENTIFIER_AVAILABLE 0x29 SubscriptionIdentifierAvailable "Subscription Identifier Available",
    SHARED_SUBSCRIPTION_AVAILABLE 0x2A SharedSubscriptionAvailable "Shared Subscription Available",
}

/// A set of property identifiers, one bit each.
type IdSet = u64;

const fn contains(set: IdSet, id: u8) -> bool {
    id < 64 && set >> id & 1 != 0
}

const fn id_set(ids: &[u8]) -> IdSet {
    let mut set = 0;
    let mut i = 0;
    while i < ids.len() {
        set |= 1 << ids[i];
        i += 1;
    }
    set
}

/// Properties that a server forwards unaltered [MQTT-3.3.2-4], [MQTT-3.3.2-15], [MQTT-3.3.2-16], [MQTT-3.3.2-17],
/// [MQTT-3.3.2-20].
const FORWARDED: IdSet = id_set(&[
    id::PAYLOAD_FORMAT_INDICATOR,
    id::CONTENT_TYPE,
    id::RESPONSE_TOPIC,
    id::CORRELATION_DATA,
    id::USER_PROPERTY,
]);

const ENHANCED_AUTHENTICATION: IdSet = id_set(&[id::AUTHENTICATION_METHOD, id::AUTHENTICATION_DATA]);

const DIAGNOSTICS: IdSet = id_set(&[id::REASON_STRING, id::USER_PROPERTY]);

impl PropertyContext {
    /// Returns the properties that are allowed, table 2-4 [MQTT-2.2.2-2].
    const fn allowed(self) -> IdSet {
        match self {
            PropertyContext::Connect => {
                ENHANCED_AUTHENTICATION
                    | const {
                        id_set(&[
                            id::SESSION_EXPIRY_INTERVAL,
                            id::RECEIVE_MAXIMUM,
                            id::MAXIMUM_PACKET_SIZE,
                            id::TOPIC_ALIAS_MAXIMUM,
                            id::REQUEST_RESPONSE_INFORMATION,
                            id::REQUEST_PROBLEM_INFORMATION,
                            id::USER_PROPERTY,
                        ])
                    }
            }
            PropertyContext::Will => {
                FORWARDED | const { id_set(&[id::WILL_DELAY_INTERVAL, id::MESSAGE_EXPIRY_INTERVAL]) }
            }
            PropertyContext::ConnAck => {
                ENHANCED_AUTHENTICATION
                    | DIAGNOSTICS
                    | const {
                        id_set(&[
                            id::SESSION_EXPIRY_INTERVAL,
                            id::RECEIVE_MAXIMUM,
                            id::MAXIMUM_QOS,
                            id::RETAIN_AVAILABLE,
                            id::MAXIMUM_PACKET_SIZE,
                            id::ASSIGNED_CLIENT_IDENTIFIER,
                            id::TOPIC_ALIAS_MAXIMUM,
                            id::WILDCARD_SUBSCRIPTION_AVAILABLE,
                            id::SUBSCRIPTION_IDENTIFIER_AVAILABLE,
                            id::SHARED_SUBSCRIPTION_AVAILABLE,
                            id::SERVER_KEEP_ALIVE,
                            id::RESPONSE_INFORMATION,
                            id::SERVER_REFERENCE,
                        ])
                    }
            }
            PropertyContext::Publish => {
                FORWARDED
                    | const {
                        id_set(&[
                            id::MESSAGE_EXPIRY_INTERVAL,
                            id::TOPIC_ALIAS,
                            id::SUBSCRIPTION_IDENTIFIER,
                        ])
                    }
            }
            PropertyContext::Ack => DIAGNOSTICS,
            PropertyContext::Subscribe => const { id_set(&[id::SUBSCRIPTION_IDENTIFIER, id::USER_PROPERTY]) },
            PropertyContext::Unsubscribe => const { id_set(&[id::USER_PROPERTY]) },
            PropertyContext::Disconnect => {
                DIAGNOSTICS | const { id_set(&[id::SESSION_EXPIRY_INTERVAL, id::SERVER_REFERENCE]) }
            }
            PropertyContext::Auth => DIAGNOSTICS | ENHANCED_AUTHENTICATION,
        }
    }

    /// Returns the properties that may occur more than once.
    const fn repeatable(self) -> IdSet {
        match self {
            PropertyContext::Publish => const { id_set(&[id::USER_PROPERTY, id::SUBSCRIPTION_IDENTIFIER]) },
            _ => const { id_set(&[id::USER_PROPERTY]) },
        }
    }
}

impl fmt::Display for PropertyContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PropertyContext::Connect => "CONNECT",
            PropertyContext::Will => "the will",
            PropertyContext::ConnAck => "CONNACK",
            PropertyContext::Publish => "PUBLISH",
            PropertyContext::Ack => "an acknowledgement",
            PropertyContext::Subscribe => "SUBSCRIBE",
            PropertyContext::Unsubscribe => "UNSUBSCRIBE",
            PropertyContext::Disconnect => "DISCONNECT",
            PropertyContext::Auth => "AUTH",
        })
    }
}

impl fmt::Display for PropertiesError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PropertiesError::Malformed => "properties cannot be parsed",
            PropertiesError::Protocol => "properties are not allowed in their packet",
        })
    }
}

impl std::error::Error for PropertiesError {}

impl From<DecodeErrorKind> for PropertiesError {
    fn from(kind: DecodeErrorKind) -> PropertiesError {
        match kind {
            DecodeErrorKind::Truncated(_)
            | DecodeErrorKind::VariableByteIntegerTooLong(_)
            | DecodeErrorKind::VariableByteIntegerNotMinimal(_)
            | DecodeErrorKind::InvalidUtf8(_)
            | DecodeErrorKind::NulCharacter(_) => PropertiesError::Malformed,
            _ => PropertiesError::Protocol,
        }
    }
}

/// Reads the next property, with all checks that do not depend on the packet.
fn read_property<'a>(reader: &mut PacketReader<'a>) -> Result<Property<'a>, DecodeErrorKind> {
    let id = read_id(reader)?;
    let field = PacketField::Property(id);
    Ok(match id {
        id::PAYLOAD_FORMAT_INDICATOR => Property::PayloadFormatIndicator(u8::from(read_bool(reader, id)?)),
        id::MESSAGE_EXPIRY_INTERVAL => Property::MessageExpiryInterval(reader.four_byte_integer(field)?),
        id::CONTENT_TYPE => Property::ContentType(reader.string(field)?),
        id::RESPONSE_TOPIC => Property::ResponseTopic(read_response_topic(reader)?),
        id::CORRELATION_DATA => Property::CorrelationData(reader.binary(field)?),
        id::SUBSCRIPTION_IDENTIFIER => {
            Property::SubscriptionIdentifier(not_zero(reader.variable_byte_integer(field)?, id)?)
        }
        id::SESSION_EXPIRY_INTERVAL => Property::SessionExpiryInterval(reader.four_byte_integer(field)?),
        id::ASSIGNED_CLIENT_IDENTIFIER => Property::AssignedClientIdentifier(reader.string(field)?),
        id::SERVER_KEEP_ALIVE => Property::ServerKeepAlive(reader.two_byte_integer(field)?),
        id::AUTHENTICATION_METHOD => Property::AuthenticationMethod(reader.string(field)?),
        id::AUTHENTICATION_DATA => Property::AuthenticationData(reader.binary(field)?),
        id::REQUEST_PROBLEM_INFORMATION => Property::RequestProblemInformation(read_bool(reader, id)?),
        id::WILL_DELAY_INTERVAL => Property::WillDelayInterval(reader.four_byte_integer(field)?),
        id::REQUEST_RESPONSE_INFORMATION => Property::RequestResponseInformation(read_bool(reader, id)?),
        id::RESPONSE_INFORMATION => Property::ResponseInformation(reader.string(field)?),
        id::SERVER_REFERENCE => Property::ServerReference(reader.string(field)?),
        id::REASON_STRING => Property::ReasonString(reader.string(field)?),
        id::RECEIVE_MAXIMUM => Property::ReceiveMaximum(not_zero(reader.two_byte_integer(field)?, id)?),
        id::TOPIC_ALIAS_MAXIMUM => Property::TopicAliasMaximum(reader.two_byte_integer(field)?),
        id::TOPIC_ALIAS => match reader.two_byte_integer(field)? {
            0 => return Err(DecodeErrorKind::TopicAliasZero), // [MQTT-3.3.2-8]
            alias => Property::TopicAlias(alias),
        },
        id::MAXIMUM_QOS => Property::MaximumQoS(u8::from(read_bool(reader, id)?)),
        id::RETAIN_AVAILABLE => Property::RetainAvailable(read_bool(reader, id)?),
        id::USER_PROPERTY => Property::UserProperty(reader.string(field)?, reader.string(field)?),
        id::MAXIMUM_PACKET_SIZE => Property::MaximumPacketSize(not_zero(reader.four_byte_integer(field)?, id)?),
        id::WILDCARD_SUBSCRIPTION_AVAILABLE => Property::WildcardSubscriptionAvailable(read_bool(reader, id)?),
        id::SUBSCRIPTION_IDENTIFIER_AVAILABLE => Property::SubscriptionIdentifierAvailable(read_bool(reader, id)?),
        id::SHARED_SUBSCRIPTION_AVAILABLE => Property::SharedSubscriptionAvailable(read_bool(reader, id)?),
        _ => return Err(DecodeErrorKind::UnknownProperty(u32::from(id))),
    })
}

/// Reads an identifier. It is a Variable Byte Integer, but all defined identifiers have one byte.
fn read_id(reader: &mut PacketReader<'_>) -> Result<u8, DecodeErrorKind> {
    let id = reader.variable_byte_integer(PacketField::PropertyIdentifier)?;
    u8::try_from(id).map_err(|_| DecodeErrorKind::UnknownProperty(id))
}

/// Reads a byte that must be 0 or 1.
fn read_bool(reader: &mut PacketReader<'_>, id: u8) -> Result<bool, DecodeErrorKind> {
    match reader.byte(PacketField::Property(id))? {
        0 => Ok(false),
        1 => Ok(true),
        other => Err(DecodeErrorKind::PropertyValue {
            property: id,
            found: u32::from(other),
        }),
    }
}

fn not_zero<T: PartialEq + Default>(value: T, id: u8) -> Result<T, DecodeErrorKind> {
    if value == T::default() {
        Err(DecodeErrorKind::PropertyValue { property: id, found: 0 })
    } else {
        Ok(value)
    }
}

/// Reads a Topic Name without wildcards [MQTT-3.3.2-14], which must not be empty [MQTT-4.7.3-1].
fn read_response_topic<'a>(reader: &mut PacketReader<'a>) -> Result<&'a str, DecodeErrorKind> {
    let field = PacketField::Property(id::RESPONSE_TOPIC);
    match reader.topic_name(field)? {
        "" => Err(DecodeErrorKind::TopicEmpty(field)),
        topic => Ok(topic),
    }
}

/// Returns the identifier and the value bytes of the next validated property, including the length prefix of the value.
/// `None` at the end.
fn next_raw<'a>(reader: &mut PacketReader<'a>) -> Option<(u8, &'a [u8])> {
    let id = reader.byte(PacketField::PropertyIdentifier).ok()?;
    let start = reader.rest();
    skip_value(reader, id).ok()?;
    let value = start.len() - reader.rest().len();
    Some((id, &start[..value]))
}

fn skip_value(reader: &mut PacketReader<'_>, id: u8) -> Result<(), DecodeErrorKind> {
    let field = PacketField::Property(id);
    match id {
        id::PAYLOAD_FORMAT_INDICATOR
        | id::REQUEST_PROBLEM_INFORMATION
        | id::REQUEST_RESPONSE_INFORMATION
        | id::MAXIMUM_QOS
        | id::RETAIN_AVAILABLE
        | id::WILDCARD_SUBSCRIPTION_AVAILABLE
        | id::SUBSCRIPTION_IDENTIFIER_AVAILABLE
        | id::SHARED_SUBSCRIPTION_AVAILABLE => reader.take(1, field)?,
        id::SERVER_KEEP_ALIVE | id::RECEIVE_MAXIMUM | id::TOPIC_ALIAS_MAXIMUM | id::TOPIC_ALIAS => {
            reader.take(2, field)?
        }
        id::MESSAGE_EXPIRY_INTERVAL
        | id::SESSION_EXPIRY_INTERVAL
        | id::WILL_DELAY_INTERVAL
        | id::MAXIMUM_PACKET_SIZE => reader.take(4, field)?,
        id::SUBSCRIPTION_IDENTIFIER => return reader.variable_byte_integer(field).map(|_| ()),
        id::USER_PROPERTY => {
            reader.binary(field)?;
            reader.binary(field)?
        }
        _ => reader.binary(field)?,
    };
    Ok(())
}

/// Validates a property list for its packet.
fn check(bytes: &[u8], context: PropertyContext) -> Result<(), DecodeErrorKind> {
    let mut reader = PacketReader::new(bytes);
    let mut seen: IdSet = 0;
    while !reader.is_empty() {
        let property = read_property(&mut reader)?.id();
        if !contains(context.allowed(), property) {
            return Err(DecodeErrorKind::PropertyNotAllowed { property, context });
        }
        if contains(seen & !context.repeatable(), property) {
            return Err(DecodeErrorKind::DuplicateProperty(property));
        }
        seen |= 1 << property;
    }
    if context == PropertyContext::Connect && seen & ENHANCED_AUTHENTICATION == 1 << id::AUTHENTICATION_DATA {
        return Err(DecodeErrorKind::AuthenticationDataWithoutMethod);
    }
    if context == PropertyContext::Auth && !contains(seen, id::AUTHENTICATION_METHOD) {
        return Err(DecodeErrorKind::AuthenticationMethodMissing);
    }
    Ok(())
}

/// Defines getters for properties that occur at most once. They skip over other properties without decoding them.
macro_rules! getters {
    ($($(#[$doc:meta])* $getter:ident: $id:ident => $variant:ident($type:ty);)*) => {
        $($(#[$doc])*
        pub fn $getter(self) -> Option<$type> {
            match self.find(id::$id)? {
                Property::$variant(value) => Some(value),
                _ => None,
            }
        })*
    };
}

impl<'a> Properties<'a> {
    pub const EMPTY: Properties<'static> = Properties(&[]);

    /// Validates `bytes` for `context`.
    pub fn parse(bytes: &'a [u8], context: PropertyContext) -> Result<Properties<'a>, PropertiesError> {
        Ok(Properties::parse_in(bytes, context)?)
    }

    /// As [`Properties::parse`], with the precise error.
    #[inline]
    pub(crate) fn parse_in(bytes: &'a [u8], context: PropertyContext) -> Result<Properties<'a>, DecodeErrorKind> {
        if !bytes.is_empty() || context == PropertyContext::Auth {
            check(bytes, context)?;
        }
        Ok(Properties(bytes))
    }

    /// Wraps property bytes that `parse` has accepted or a `PropertyWriter` has written. They are not validated again.
    pub const fn from_validated(bytes: &'a [u8]) -> Properties<'a> {
        Properties(bytes)
    }

    pub fn as_bytes(self) -> &'a [u8] {
        self.0
    }

    pub fn is_empty(self) -> bool {
        self.0.is_empty()
    }

    pub fn iter(self) -> impl Iterator<Item = Property<'a>> {
        let mut reader = PacketReader::new(self.0);
        // The bytes are validated, so the only error is the end.
        std::iter::from_fn(move || read_property(&mut reader).ok())
    }

    /// Returns the first property with this identifier.
    fn find(self, wanted: u8) -> Option<Property<'a>> {
        let mut reader = PacketReader::new(self.0);
        loop {
            let mut at = reader.clone();
            let (id, _) = next_raw(&mut reader)?;
            if id == wanted {
                return read_property(&mut at).ok();
            }
        }
    }

    getters! {
        session_expiry_interval: SESSION_EXPIRY_INTERVAL => SessionExpiryInterval(u32);
        receive_maximum: RECEIVE_MAXIMUM => ReceiveMaximum(u16);
        maximum_packet_size: MAXIMUM_PACKET_SIZE => MaximumPacketSize(u32);
        topic_alias_maximum: TOPIC_ALIAS_MAXIMUM => TopicAliasMaximum(u16);
        topic_alias: TOPIC_ALIAS => TopicAlias(u16);
        message_expiry_interval: MESSAGE_EXPIRY_INTERVAL => MessageExpiryInterval(u32);
        will_delay_interval: WILL_DELAY_INTERVAL => WillDelayInterval(u32);
        request_problem_information: REQUEST_PROBLEM_INFORMATION => RequestProblemInformation(bool);
        request_response_information: REQUEST_RESPONSE_INFORMATION => RequestResponseInformation(bool);
        authentication_method: AUTHENTICATION_METHOD => AuthenticationMethod(&'a str);
        authentication_data: AUTHENTICATION_DATA => AuthenticationData(&'a [u8]);
        response_topic: RESPONSE_TOPIC => ResponseTopic(&'a str);
        content_type: CONTENT_TYPE => ContentType(&'a str);
        correlation_data: CORRELATION_DATA => CorrelationData(&'a [u8]);
        payload_format_indicator: PAYLOAD_FORMAT_INDICATOR => PayloadFormatIndicator(u8);
        assigned_client_identifier: ASSIGNED_CLIENT_IDENTIFIER => AssignedClientIdentifier(&'a str);
        server_keep_alive: SERVER_KEEP_ALIVE => ServerKeepAlive(u16);
        response_information: RESPONSE_INFORMATION => ResponseInformation(&'a str);
        server_reference: SERVER_REFERENCE => ServerReference(&'a str);
        reason_string: REASON_STRING => ReasonString(&'a str);
        maximum_qos: MAXIMUM_QOS => MaximumQoS(u8);
        retain_available: RETAIN_AVAILABLE => RetainAvailable(bool);
        wildcard_subscription_available: WILDCARD_SUBSCRIPTION_AVAILABLE => WildcardSubscriptionAvailable(bool);
        subscription_identifier_available: SUBSCRIPTION_IDENTIFIER_AVAILABLE => SubscriptionIdentifierAvailable(bool);
        shared_subscription_available: SHARED_SUBSCRIPTION_AVAILABLE => SharedSubscriptionAvailable(bool);
        /// The first subscription identifier. SUBSCRIBE has at most one; PUBLISH may have several, see `iter`.
        subscription_identifier: SUBSCRIPTION_IDENTIFIER => SubscriptionIdentifier(u32);
    }

    pub fn user_properties(self) -> UserProperties<'a> {
        UserProperties(PacketReader::new(self.0))
    }

    /// Appends the leading user properties that fit into `bytes_max` bytes, in wire format.
    pub fn append_user_properties(self, bytes_max: usize, out: &mut Vec<u8>) {
        let mut reader = PacketReader::new(self.0);
        let mut room = bytes_max;
        while let Some((id, value)) = next_raw(&mut reader) {
            if id == id::USER_PROPERTY {
                let Some(left) = room.checked_sub(1 + value.len()) else {
                    return;
                };
                room = left;
                out.push(id);
                out.extend_from_slice(value);
            }
        }
    }

    /// Appends the properties of a PUBLISH or will that a server forwards unaltered, in order [MQTT-3.3.2-17],
    /// [MQTT-3.3.2-18]: payload format, content type, response topic, correlation data, user properties. Topic alias,
    /// message expiry, will delay and subscription identifier are left out.
    pub fn append_forwarded(self, out: &mut Vec<u8>) {
        let mut reader = PacketReader::new(self.0);
        while let Some((id, value)) = next_raw(&mut reader) {
            if contains(FORWARDED, id) {
                out.push(id);
                out.extend_from_slice(value);
            }
        }
    }

    /// Returns whether `append_forwarded` would copy every byte, so that the slice itself can be used.
    pub fn is_forwarded_whole(self) -> bool {
        let mut reader = PacketReader::new(self.0);
        std::iter::from_fn(|| next_raw(&mut reader)).all(|(id, _)| contains(FORWARDED, id))
    }
}

impl<'a> Iterator for UserProperties<'a> {
    type Item = (&'a str, &'a str);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let mut at = self.0.clone();
            let (id, _) = next_raw(&mut self.0)?;
            if id != id::USER_PROPERTY {
                continue;
            }
            match read_property(&mut at) {
                Ok(Property::UserProperty(name, value)) => return Some((name, value)),
                _ => return None,
            }
        }
    }
}

/// Appends properties to a buffer. The result can be borrowed as `Properties`.
pub struct PropertyWriter<'b> {
    pub out: &'b mut Vec<u8>,
    start: usize,
}

impl<'b> PropertyWriter<'b> {
    pub fn new(out: &'b mut Vec<u8>) -> PropertyWriter<'b> {
        let start = out.len();
        PropertyWriter { out, start }
    }

    /// Appends one property. Strings and binary data are truncated at 65535 bytes.
    pub fn put(&mut self, property: Property<'_>) -> &mut Self {
        let out = &mut *self.out;
        out.push(property.id());
        match property {
            Property::PayloadFormatIndicator(value) | Property::MaximumQoS(value) => out.push(value),
            Property::RequestProblemInformation(value)
            | Property::RequestResponseInformation(value)
            | Property::RetainAvailable(value)
            | Property::WildcardSubscriptionAvailable(value)
            | Property::SubscriptionIdentifierAvailable(value)
            | Property::SharedSubscriptionAvailable(value) => out.push(u8::from(value)),
            Property::ServerKeepAlive(value)
            | Property::ReceiveMaximum(value)
            | Property::TopicAliasMaximum(value)
            | Property::TopicAlias(value) => out.extend_from_slice(&value.to_be_bytes()),
            Property::MessageExpiryInterval(value)
            | Property::SessionExpiryInterval(value)
            | Property::WillDelayInterval(value)
            | Property::MaximumPacketSize(value) => out.extend_from_slice(&value.to_be_bytes()),
            Property::SubscriptionIdentifier(value) => put_variable_byte_integer(value as usize, out),
            Property::ContentType(value)
            | Property::ResponseTopic(value)
            | Property::AssignedClientIdentifier(value)
            | Property::AuthenticationMethod(value)
            | Property::ResponseInformation(value)
            | Property::ServerReference(value)
            | Property::ReasonString(value) => put_string(value, out),
            Property::CorrelationData(value) | Property::AuthenticationData(value) => put_binary(value, out),
            Property::UserProperty(name, value) => {
                put_string(name, out);
                put_string(value, out);
            }
        }
        self
    }

    /// Returns the properties written since `new`. The caller ensures that identifiers and values are allowed in the
    /// packet.
    pub fn finish(self) -> Properties<'b> {
        Properties(&self.out[self.start..])
    }
}
