//! Why bytes are not a packet: one value per thing that can be wrong, each with a text for the operator and the reason
//! code that MQTT 5 answers with.

use std::fmt;

use crate::property::property_name;
use crate::{PacketType, PropertyContext, ProtocolVersion, ReasonCode};

/// Why bytes are not a packet. `reason` is what MQTT 5 answers with; `kind` says what was found and where, for the operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecodeError {
    pub kind: DecodeErrorKind,
    pub reason: ReasonCode,
}

/// One value per thing that can be wrong, each with a `Display` that names what was found and what was expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecodeErrorKind {
    PacketTooLarge {
        size: usize,
        limit: usize,
    },
    /// The first packet of a connection is something else [MQTT-3.1.0-1].
    NotConnect,
    /// The level as it stands in CONNECT; see [`connect_answer_version`](crate::connect_answer_version).
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
    /// The packet has one possible length, and this is another.
    PacketLength {
        packet: PacketType,
        found: usize,
        expected: usize,
    },
    /// The packet ends before the field does.
    Truncated(Field),
    /// Bytes are left after the last field.
    TrailingBytes(usize),
    VariableByteIntegerTooLong(Field),
    /// [MQTT-1.5.5-1]
    VariableByteIntegerNotMinimal(Field),
    /// [MQTT-1.5.4-1]
    InvalidUtf8(Field),
    /// [MQTT-1.5.4-2]
    NulCharacter(Field),
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
    TopicEmpty(Field),
    /// [MQTT-3.3.2-2], [MQTT-3.3.2-14]
    TopicWildcard(Field),
    /// [MQTT-3.8.3-2], [MQTT-3.10.3-2]
    NoTopicFilter(PacketType),
    /// [MQTT-3.8.3-5]
    SubscriptionOptionsReserved(u8),
    SubscriptionQoS,
    RetainHandling,
    /// [MQTT-3.8.3-4]
    NoLocalOnSharedSubscription,
    NoReasonCode(PacketType),
    /// A number that is no reason code, or not one of this packet.
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
    /// [MQTT-2.2.2-2] Known, but not in this packet.
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

/// What was being read, for the operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
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
    /// The reason code of a CONNACK or DISCONNECT that answers this.
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

    /// Parsed, but not allowed by the protocol; the rest cannot be parsed (section 1.2 of MQTT 5).
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
            Kind::SessionPresentWithError(reason) => write!(f, "session present is set on a refusal ({reason})"),
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

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match *self {
            Field::ProtocolName => "protocol name",
            Field::ProtocolLevel => "protocol level",
            Field::ConnectFlags => "connect flags",
            Field::KeepAlive => "keep alive",
            Field::ClientId => "client identifier",
            Field::WillTopic => "will topic",
            Field::WillPayload => "will payload",
            Field::UserName => "user name",
            Field::Password => "password",
            Field::ConnAckFlags => "connect acknowledge flags",
            Field::ReasonCode => "reason code",
            Field::PacketId => "packet identifier",
            Field::TopicName => "topic name",
            Field::TopicFilter => "topic filter",
            Field::SubscriptionOptions => "subscription options",
            Field::PropertyLength => "property length",
            Field::Properties => "properties",
            Field::PropertyIdentifier => "property identifier",
            Field::Property(id) => property_name(id),
        })
    }
}
