//! Reasons of refused and closed connections, in the words of EMQX: the columns `reason` and `reason_code`.

use broker::DisconnectReason;
use mqtt::ReasonCode;

/// Returns the column `reason_code`.
pub fn reason_code(code: ReasonCode) -> &'static str {
    match code {
        ReasonCode::Success => "success",
        ReasonCode::GrantedQoS1 => "granted_qos1",
        ReasonCode::GrantedQoS2 => "granted_qos2",
        ReasonCode::DisconnectWithWillMessage => "disconnect_with_will_message",
        ReasonCode::NoMatchingSubscribers => "no_matching_subscribers",
        ReasonCode::NoSubscriptionExisted => "no_subscription_existed",
        ReasonCode::ContinueAuthentication => "continue_authentication",
        ReasonCode::ReAuthenticate => "re_authenticate",
        ReasonCode::UnspecifiedError => "unspecified_error",
        ReasonCode::MalformedPacket => "malformed_packet",
        ReasonCode::ProtocolError => "protocol_error",
        ReasonCode::ImplementationSpecificError => "implementation_specific_error",
        ReasonCode::UnsupportedProtocolVersion => "unsupported_protocol_version",
        ReasonCode::ClientIdentifierNotValid => "client_identifier_not_valid",
        ReasonCode::BadUserNameOrPassword => "bad_username_or_password",
        ReasonCode::NotAuthorized => "not_authorized",
        ReasonCode::ServerUnavailable => "server_unavailable",
        ReasonCode::ServerBusy => "server_busy",
        ReasonCode::Banned => "banned",
        ReasonCode::ServerShuttingDown => "server_shutting_down",
        ReasonCode::BadAuthenticationMethod => "bad_authentication_method",
        ReasonCode::KeepAliveTimeout => "keepalive_timeout",
        ReasonCode::SessionTakenOver => "session_taken_over",
        ReasonCode::TopicFilterInvalid => "topic_filter_invalid",
        ReasonCode::TopicNameInvalid => "topic_name_invalid",
        ReasonCode::PacketIdentifierInUse => "packet_identifier_inuse",
        ReasonCode::PacketIdentifierNotFound => "packet_identifier_not_found",
        ReasonCode::ReceiveMaximumExceeded => "receive_maximum_exceeded",
        ReasonCode::TopicAliasInvalid => "topic_alias_invalid",
        ReasonCode::PacketTooLarge => "packet_too_large",
        ReasonCode::MessageRateTooHigh => "message_rate_too_high",
        ReasonCode::QuotaExceeded => "quota_exceeded",
        ReasonCode::AdministrativeAction => "administrative_action",
        ReasonCode::PayloadFormatInvalid => "payload_format_invalid",
        ReasonCode::RetainNotSupported => "retain_not_supported",
        ReasonCode::QoSNotSupported => "qos_not_supported",
        ReasonCode::UseAnotherServer => "use_another_server",
        ReasonCode::ServerMoved => "server_moved",
        ReasonCode::SharedSubscriptionsNotSupported => "shared_subscriptions_not_supported",
        ReasonCode::ConnectionRateExceeded => "connection_rate_exceeded",
        ReasonCode::MaximumConnectTime => "maximum_connect_time",
        ReasonCode::SubscriptionIdentifiersNotSupported => "subscription_identifiers_not_supported",
        ReasonCode::WildcardSubscriptionsNotSupported => "wildcard_subscriptions_not_supported",
    }
}

/// Returns the column `reason` of `client.disconnected`: EMQX's word, or else the name of the reason code in
/// DISCONNECT.
pub fn disconnect_reason(reason: DisconnectReason, code: Option<ReasonCode>, is_discarded: bool) -> &'static str {
    match reason {
        DisconnectReason::ByClient => "normal",
        DisconnectReason::ConnectionLost => "tcp_closed",
        DisconnectReason::Kicked => "kicked",
        DisconnectReason::TakenOver if is_discarded => "discarded",
        DisconnectReason::TakenOver => "takenover",
        other => code.map_or(other.name(), reason_code),
    }
}
