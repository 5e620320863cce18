//! Reason codes of MQTT 5 and Connect Return codes of 3.1 and 3.1.1.

use std::fmt;

use crate::PacketType;

/// Declares the enum, its codes and the names of the specification in one place.
macro_rules! reason_codes {
    ($($variant:ident = $code:literal, $name:literal;)*) => {
        /// Reason codes of MQTT 5, section 2.4. `Success` is also Normal disconnection and Granted QoS 0.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub enum ReasonCode {
            $($variant = $code,)*
        }

        impl ReasonCode {
            /// All codes in ascending order.
            pub const ALL: &'static [ReasonCode] = &[$(ReasonCode::$variant),*];

            /// Returns `None` for a number that the specification does not define.
            pub const fn from_u8(code: u8) -> Option<ReasonCode> {
                match code {
                    $($code => Some(ReasonCode::$variant),)*
                    _ => None,
                }
            }

            /// Returns the name in section 2.4.
            pub const fn name(self) -> &'static str {
                match self {
                    $(ReasonCode::$variant => $name,)*
                }
            }
        }
    };
}

reason_codes! {
    Success = 0x00, "Success";
    GrantedQoS1 = 0x01, "Granted QoS 1";
    GrantedQoS2 = 0x02, "Granted QoS 2";
    DisconnectWithWillMessage = 0x04, "Disconnect with Will Message";
    NoMatchingSubscribers = 0x10, "No matching subscribers";
    NoSubscriptionExisted = 0x11, "No subscription existed";
    ContinueAuthentication = 0x18, "Continue authentication";
    ReAuthenticate = 0x19, "Re-authenticate";
    UnspecifiedError = 0x80, "Unspecified error";
    MalformedPacket = 0x81, "Malformed Packet";
    ProtocolError = 0x82, "Protocol Error";
    ImplementationSpecificError = 0x83, "Implementation specific error";
    UnsupportedProtocolVersion = 0x84, "Unsupported Protocol Version";
    ClientIdentifierNotValid = 0x85, "Client Identifier not valid";
    BadUserNameOrPassword = 0x86, "Bad User Name or Password";
    NotAuthorized = 0x87, "Not authorized";
    ServerUnavailable = 0x88, "Server unavailable";
    ServerBusy = 0x89, "Server busy";
    Banned = 0x8A, "Banned";
    ServerShuttingDown = 0x8B, "Server shutting down";
    BadAuthenticationMethod = 0x8C, "Bad authentication method";
    KeepAliveTimeout = 0x8D, "Keep Alive timeout";
    SessionTakenOver = 0x8E, "Session taken over";
    TopicFilterInvalid = 0x8F, "Topic Filter invalid";
    TopicNameInvalid = 0x90, "Topic Name invalid";
    PacketIdentifierInUse = 0x91, "Packet Identifier in use";
    PacketIdentifierNotFound = 0x92, "Packet Identifier not found";
    ReceiveMaximumExceeded = 0x93, "Receive Maximum exceeded";
    TopicAliasInvalid = 0x94, "Topic Alias invalid";
    PacketTooLarge = 0x95, "Packet too large";
    MessageRateTooHigh = 0x96, "Message rate too high";
    QuotaExceeded = 0x97, "Quota exceeded";
    AdministrativeAction = 0x98, "Administrative action";
    PayloadFormatInvalid = 0x99, "Payload format invalid";
    RetainNotSupported = 0x9A, "Retain not supported";
    QoSNotSupported = 0x9B, "QoS not supported";
    UseAnotherServer = 0x9C, "Use another server";
    ServerMoved = 0x9D, "Server moved";
    SharedSubscriptionsNotSupported = 0x9E, "Shared Subscriptions not supported";
    ConnectionRateExceeded = 0x9F, "Connection rate exceeded";
    MaximumConnectTime = 0xA0, "Maximum connect time";
    SubscriptionIdentifiersNotSupported = 0xA1, "Subscription Identifiers not supported";
    WildcardSubscriptionsNotSupported = 0xA2, "Wildcard Subscriptions not supported";
}

impl ReasonCode {
    pub const fn to_u8(self) -> u8 {
        self as u8
    }

    /// Returns whether the operation failed: 0x80 and above.
    pub const fn is_error(self) -> bool {
        self as u8 >= 0x80
    }

    /// Returns whether a packet of this type may contain the code, in either direction. See the tables of sections
    /// 3.2.2.2, 3.4.2.1, 3.5.2.1, 3.6.2.1, 3.7.2.1, 3.9.3, 3.11.3, 3.14.2.1 and 3.15.2.1, and section 2.4 for 0x8C in
    /// DISCONNECT.
    pub const fn is_allowed_in(self, packet: PacketType) -> bool {
        match packet {
            PacketType::ConnAck => is_allowed_in_connack(self as u8),
            PacketType::PubAck | PacketType::PubRec => {
                matches!(self as u8, 0x00 | 0x10 | 0x80 | 0x83 | 0x87 | 0x90 | 0x91 | 0x97 | 0x99)
            }
            PacketType::PubRel | PacketType::PubComp => matches!(self as u8, 0x00 | 0x92),
            PacketType::SubAck => {
                matches!(
                    self as u8,
                    0..=2 | 0x80 | 0x83 | 0x87 | 0x8F | 0x91 | 0x97 | 0x9E | 0xA1 | 0xA2
                )
            }
            PacketType::UnsubAck => matches!(self as u8, 0x00 | 0x11 | 0x80 | 0x83 | 0x87 | 0x8F | 0x91),
            PacketType::Disconnect => is_allowed_in_disconnect(self as u8),
            PacketType::Auth => matches!(self as u8, 0x00 | 0x18 | 0x19),
            _ => false,
        }
    }

    /// Returns the code for a 3.1 or 3.1.1 client. Errors that the client must fix become 5 (or 1, 2, 4 where they
    /// apply); errors that may be temporary become 3.
    pub const fn to_connect_return_code(self) -> ConnectReturnCode {
        match self {
            ReasonCode::UnsupportedProtocolVersion => ConnectReturnCode::UnacceptableProtocolVersion,
            ReasonCode::ClientIdentifierNotValid => ConnectReturnCode::IdentifierRejected,
            ReasonCode::BadUserNameOrPassword => ConnectReturnCode::BadUserNameOrPassword,
            ReasonCode::NotAuthorized
            | ReasonCode::Banned
            | ReasonCode::BadAuthenticationMethod
            | ReasonCode::TopicNameInvalid
            | ReasonCode::PacketTooLarge
            | ReasonCode::PayloadFormatInvalid
            | ReasonCode::RetainNotSupported
            | ReasonCode::QoSNotSupported => ConnectReturnCode::NotAuthorized,
            _ if self.is_error() => ConnectReturnCode::ServerUnavailable,
            _ => ConnectReturnCode::Accepted,
        }
    }
}

const fn is_allowed_in_connack(code: u8) -> bool {
    matches!(code, 0x00 | 0x80..=0x8A | 0x8C | 0x90 | 0x95 | 0x97 | 0x99..=0x9D | 0x9F)
}

const fn is_allowed_in_disconnect(code: u8) -> bool {
    matches!(code, 0x00 | 0x04 | 0x80..=0x83 | 0x87 | 0x89 | 0x8B..=0x90 | 0x93..=0xA2)
}

impl From<ReasonCode> for u8 {
    fn from(code: ReasonCode) -> u8 {
        code as u8
    }
}

impl fmt::Display for ReasonCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// CONNACK return codes of 3.1 and 3.1.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ConnectReturnCode {
    Accepted = 0,
    UnacceptableProtocolVersion = 1,
    IdentifierRejected = 2,
    ServerUnavailable = 3,
    BadUserNameOrPassword = 4,
    NotAuthorized = 5,
}

impl ConnectReturnCode {
    /// Returns `None` for 6 and above, which are reserved.
    pub const fn from_u8(code: u8) -> Option<ConnectReturnCode> {
        Some(match code {
            0 => ConnectReturnCode::Accepted,
            1 => ConnectReturnCode::UnacceptableProtocolVersion,
            2 => ConnectReturnCode::IdentifierRejected,
            3 => ConnectReturnCode::ServerUnavailable,
            4 => ConnectReturnCode::BadUserNameOrPassword,
            5 => ConnectReturnCode::NotAuthorized,
            _ => return None,
        })
    }

    pub const fn to_reason_code(self) -> ReasonCode {
        match self {
            ConnectReturnCode::Accepted => ReasonCode::Success,
            ConnectReturnCode::UnacceptableProtocolVersion => ReasonCode::UnsupportedProtocolVersion,
            ConnectReturnCode::IdentifierRejected => ReasonCode::ClientIdentifierNotValid,
            ConnectReturnCode::ServerUnavailable => ReasonCode::ServerUnavailable,
            ConnectReturnCode::BadUserNameOrPassword => ReasonCode::BadUserNameOrPassword,
            ConnectReturnCode::NotAuthorized => ReasonCode::NotAuthorized,
        }
    }

    /// Returns the text of table 3.1 in MQTT 3.1.1.
    pub const fn name(self) -> &'static str {
        match self {
            ConnectReturnCode::Accepted => "Connection Accepted",
            ConnectReturnCode::UnacceptableProtocolVersion => "Connection Refused, unacceptable protocol version",
            ConnectReturnCode::IdentifierRejected => "Connection Refused, identifier rejected",
            ConnectReturnCode::ServerUnavailable => "Connection Refused, Server unavailable",
            ConnectReturnCode::BadUserNameOrPassword => "Connection Refused, bad user name or password",
            ConnectReturnCode::NotAuthorized => "Connection Refused, not authorized",
        }
    }
}

impl From<ReasonCode> for ConnectReturnCode {
    fn from(code: ReasonCode) -> ConnectReturnCode {
        code.to_connect_return_code()
    }
}

impl From<ConnectReturnCode> for ReasonCode {
    fn from(code: ConnectReturnCode) -> ReasonCode {
        code.to_reason_code()
    }
}

impl fmt::Display for ConnectReturnCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
