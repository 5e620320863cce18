//! Decoding errors. Each kind has a text for the operator and the reason code for MQTT 5 clients.

use std::fmt;

use crate::property::property_name;
use crate::{PacketType, PropertyContext, ProtocolVersion, ReasonCode};

/// Error of decoding a packet. `reason` is the code for an MQTT 5 client; `kind` describes the error for the operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecodeError {
    pub kind: DecodeErrorKind,
    pub reason: ReasonCode,
}

/// Kind of decoding error. `Display` names the found and the expected value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecodeErrorKind {
    PacketTooLarge {
        size: usize,
        limit: usize,
    },
    /// The first packet of a connection is not CONNECT [MQTT-3.1.0-1].
    NotConnect,
    /// The protocol level in CONNECT; see [`connect_answer_version`](crate::connect_answer_version).
    UnsupportedProtocolVersion(u8),
    /// Neither `MQTT` nor `MQIsdp` [MQTT-3.1.2-1].
    ProtocolName,
    /// Packet type 0.
    ReservedPacketType,
    /// A packet type that the version does not have: AUTH before 5.0.
    PacketTypeNotInVersion {
        packet: PacketType,
        version: ProtocolVersion,
    },
    /// [MQTT-2.1.3-1]
    FixedHeaderFlags {
        packet: PacketType,
        found: u8,
    },
    /// [MQTT-3.3.1-4]
    PublishQoS,
    /// [MQTT-3.3.1-2]
    DupAtQoS0,
    RemainingLengthTooLong,
    /// [MQTT-1.5.5-1]
    RemainingLengthNotMinimal,
    /// The packet type has a fixed length, and the packet has another.
    PacketLength {
        packet: PacketType,
        found: usize,
        expected: usize,
    },
    /// The packet ends before the field does.
    Truncated(PacketField),
    /// Number of bytes after the last field.
    TrailingBytes(usize),
    VariableByteIntegerTooLong(PacketField),
    /// [MQTT-1.5.5-1]
    VariableByteIntegerNotMinimal(PacketField),
    /// [MQTT-1.5.4-1]
    InvalidUtf8(PacketField),
    /// [MQTT-1.5.4-2]
    NulCharacter(PacketField),
    /// [MQTT-2.2.1-3]
    PacketIdZero,
    /// [MQTT-3.1.2-3]
    ConnectFlagsReserved(u8),
    /// [MQTT-3.1.2-12]
    WillQoS,
    /// [MQTT-3.1.2-11]
    WillQoSWithoutWill,
    /// [MQTT-3.1.2-13]
    WillRetainWithoutWill,
    /// [MQTT-3.1.2-22] of 3.1.1
    PasswordWithoutUserName,
    /// [MQTT-4.7.3-1]
    TopicEmpty(PacketField),
    /// [MQTT-3.3.2-2], [MQTT-3.3.2-14]
    TopicWildcard(PacketField),
    /// [MQTT-3.8.3-2], [MQTT-3.10.3-2]
    NoTopicFilter(PacketType),
    /// [MQTT-3.8.3-5]
    SubscriptionOptionsReserved(u8),
    SubscriptionQoS,
    RetainHandling,
    /// [MQTT-3.8.3-4]
    NoLocalOnSharedSubscription,
    NoReasonCode(PacketType),
    /// Unknown reason code, or not allowed in this packet.
    ReasonCode {
        packet: PacketType,
        found: u8,
    },
    /// 6 and above are reserved in 3.1 and 3.1.1.
    ConnectReturnCode(u8),
    /// [MQTT-3.2.2-1]
    ConnAckFlags(u8),
    /// [MQTT-3.2.2-6]
    SessionPresentWithError(ReasonCode),
    UnknownProperty(u32),
    /// [MQTT-2.2.2-2] A known property that is not allowed in this packet.
    PropertyNotAllowed {
        property: u8,
        context: PropertyContext,
    },
    DuplicateProperty(u8),
    PropertyValue {
        property: u8,
        found: u32,
    },
    /// [MQTT-3.3.2-8]
    TopicAliasZero,
    AuthenticationDataWithoutMethod,
    AuthenticationMethodMissing,
}

/// The field being read, for the operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketField {
    ProtocolName,
    ProtocolLevel,
    ConnectFlags,
    KeepAlive,
    ClientId,
    WillTopic,
    WillPayload,
    UserName,
    Password,
    ConnAckFlags,
    ReasonCode,
    PacketId,
    TopicName,
    TopicFilter,
    SubscriptionOptions,
    PropertyLength,
    Properties,
    PropertyIdentifier,
    /// The value of the property with this identifier.
    Property(u8),
}

impl DecodeErrorKind {
    /// Returns the reason code of the CONNACK or DISCONNECT that reports this error.
    pub const fn reason(self) -> ReasonCode {
        match self {
            DecodeErrorKind::PacketTooLarge { .. } => ReasonCode::PacketTooLarge,
            DecodeErrorKind::UnsupportedProtocolVersion(_) | DecodeErrorKind::ProtocolName => {
                ReasonCode::UnsupportedProtocolVersion
            }
            DecodeErrorKind::TopicWildcard(_) => ReasonCode::TopicNameInvalid,
            DecodeErrorKind::TopicAliasZero => ReasonCode::TopicAliasInvalid,
            _ if self.is_protocol_error() => ReasonCode::ProtocolError,
            _ => ReasonCode::MalformedPacket,
        }
    }

    /// Returns whether the packet is parseable but violates the protocol. Other errors are malformed packets (section
    /// 1.2 of MQTT 5).
    const fn is_protocol_error(self) -> bool {
        matches!(
            self,
            DecodeErrorKind::NotConnect
                | DecodeErrorKind::PacketTypeNotInVersion { .. }
                | DecodeErrorKind::PacketIdZero
                | DecodeErrorKind::PasswordWithoutUserName
                | DecodeErrorKind::TopicEmpty(_)
                | DecodeErrorKind::NoTopicFilter(_)
                | DecodeErrorKind::SubscriptionQoS
                | DecodeErrorKind::RetainHandling
                | DecodeErrorKind::NoLocalOnSharedSubscription
                | DecodeErrorKind::NoReasonCode(_)
                | DecodeErrorKind::ReasonCode { .. }
                | DecodeErrorKind::ConnectReturnCode(_)
                | DecodeErrorKind::SessionPresentWithError(_)
                | DecodeErrorKind::DuplicateProperty(_)
                | DecodeErrorKind::PropertyValue { .. }
                | DecodeErrorKind::AuthenticationDataWithoutMethod
                | DecodeErrorKind::AuthenticationMethodMissing
        )
    }
}

impl From<DecodeErrorKind> for DecodeError {
    #[cold]
    fn from(kind: DecodeErrorKind) -> DecodeError {
        DecodeError {
            kind,
            reason: kind.reason(),
        }
    }
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.kind.fmt(f)
    }
}

impl std::error::Error for DecodeError {}

impl fmt::Display for DecodeErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use DecodeErrorKind as Kind;
        match *self {
            Kind::PacketTooLarge { size, limit } => {
                write!(f, "packet of {size} bytes is larger than the limit of {limit}")
            }
            Kind::NotConnect => f.write_str("first packet is not CONNECT"),
            Kind::UnsupportedProtocolVersion(level) => {
                write!(f, "protocol level {level} is not one of MQIsdp 3, MQTT 4, MQTT 5")
            }
            Kind::ProtocolName => f.write_str("protocol name is neither MQTT nor MQIsdp"),
            Kind::ReservedPacketType => f.write_str("packet type 0 is reserved"),
            Kind::PacketTypeNotInVersion { packet, version } => write!(f, "{packet} does not exist in MQTT {version}"),
            Kind::FixedHeaderFlags { packet, found } => {
                write!(
                    f,
                    "{packet} has flags {found:#06b} instead of {:#06b}",
                    packet.fixed_flags()
                )
            }
            Kind::PublishQoS => f.write_str("PUBLISH has QoS 3 instead of 0, 1 or 2"),
            Kind::DupAtQoS0 => f.write_str("PUBLISH has DUP set at QoS 0"),
            Kind::RemainingLengthTooLong => f.write_str("remaining length is longer than four bytes"),
            Kind::RemainingLengthNotMinimal => f.write_str("remaining length has more bytes than it needs"),
            Kind::PacketLength {
                packet,
                found,
                expected,
            } => {
                write!(f, "{packet} has a remaining length of {found} instead of {expected}")
            }
            Kind::Truncated(field) => write!(f, "packet ends within {field}"),
            Kind::TrailingBytes(count) => write!(f, "{count} bytes follow the last field of the packet"),
            Kind::VariableByteIntegerTooLong(field) => write!(f, "{field} is longer than four bytes"),
            Kind::VariableByteIntegerNotMinimal(field) => write!(f, "{field} has more bytes than it needs"),
            Kind::InvalidUtf8(field) => write!(f, "{field} is not UTF-8"),
            Kind::NulCharacter(field) => write!(f, "{field} contains U+0000"),
            Kind::PacketIdZero => f.write_str("packet identifier is 0"),
            Kind::ConnectFlagsReserved(flags) => write!(f, "connect flags {flags:#010b} have the reserved bit 0 set"),
            Kind::WillQoS => f.write_str("will QoS is 3 instead of 0, 1 or 2"),
            Kind::WillQoSWithoutWill => f.write_str("will QoS is not 0, but there is no will"),
            Kind::WillRetainWithoutWill => f.write_str("will retain is set, but there is no will"),
            Kind::PasswordWithoutUserName => f.write_str("password without user name is only allowed in MQTT 5.0"),
            Kind::TopicEmpty(field) => write!(f, "{field} is empty"),
            Kind::TopicWildcard(field) => write!(f, "{field} contains a wildcard (+ or #)"),
            Kind::NoTopicFilter(packet) => write!(f, "{packet} has no topic filter"),
            Kind::SubscriptionOptionsReserved(options) => {
                write!(f, "subscription options {options:#010b} have reserved bits set")
            }
            Kind::SubscriptionQoS => f.write_str("requested QoS is 3 instead of 0, 1 or 2"),
            Kind::RetainHandling => f.write_str("retain handling is 3 instead of 0, 1 or 2"),
            Kind::NoLocalOnSharedSubscription => f.write_str("No Local is set on a shared subscription"),
            Kind::NoReasonCode(packet) => write!(f, "{packet} has no reason code"),
            Kind::ReasonCode { packet, found } => write!(f, "{found:#04x} is not a reason code of {packet}"),
            Kind::ConnectReturnCode(code) => write!(f, "connect return code {code} is not one of 0 to 5"),
            Kind::ConnAckFlags(flags) => write!(f, "connect acknowledge flags {flags:#010b} have reserved bits set"),
            Kind::SessionPresentWithError(reason) => {
                write!(f, "session present is set together with an error ({reason})")
            }
            Kind::UnknownProperty(property) => write!(f, "property identifier {property} does not exist"),
            Kind::PropertyNotAllowed { property, context } => {
                write!(f, "{} is not a property of {context}", property_name(property))
            }
            Kind::DuplicateProperty(property) => write!(f, "{} occurs more than once", property_name(property)),
            Kind::PropertyValue { property, found } => {
                write!(f, "{} has the forbidden value {found}", property_name(property))
            }
            Kind::TopicAliasZero => f.write_str("topic alias is 0"),
            Kind::AuthenticationDataWithoutMethod => f.write_str("authentication data without authentication method"),
            Kind::AuthenticationMethodMissing => f.write_str("AUTH has no authentication method"),
        }
    }
}

impl fmt::Display for PacketField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match *self {
            PacketField::ProtocolName => "protocol name",
            PacketField::ProtocolLevel => "protocol level",
            PacketField::ConnectFlags => "connect flags",
            PacketField::KeepAlive => "keep alive",
            PacketField::ClientId => "client identifier",
            PacketField::WillTopic => "will topic",
            PacketField::WillPayload => "will payload",
            PacketField::UserName => "user name",
            PacketField::Password => "password",
            PacketField::ConnAckFlags => "connect acknowledge flags",
            PacketField::ReasonCode => "reason code",
            PacketField::PacketId => "packet identifier",
            PacketField::TopicName => "topic name",
            PacketField::TopicFilter => "topic filter",
            PacketField::SubscriptionOptions => "subscription options",
            PacketField::PropertyLength => "property length",
            PacketField::Properties => "properties",
            PacketField::PropertyIdentifier => "property identifier",
            PacketField::Property(id) => property_name(id),
        })
    }
}
