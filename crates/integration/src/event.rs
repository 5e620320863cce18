//! Messages and events of a shard's tap, as the events that rules read. Names follow EMQX.

use std::net::SocketAddr;
use std::sync::Arc;

use broker::DropReason;
use broker::tap::{TapClient, TapEvent, TapMessage};
use mqtt::{Properties, Property, ProtocolVersion};
use rules::{Column, EventKind, Map, RuleEvent, Text, Value};

use crate::reasons::{disconnect_reason, reason_code};

/// Values that all events of a tick share.
#[derive(Clone, Debug)]
pub struct EventContext {
    pub node: Text,
    /// Addresses of the listeners by index. Empty if no client is involved.
    pub listeners: Arc<[Text]>,
    pub unix_ms: u64,
}

impl EventContext {
    pub fn new(node: &str) -> EventContext {
        EventContext {
            node: Text::from(node),
            listeners: Arc::default(),
            unix_ms: 0,
        }
    }

    pub fn column(&self, kind: EventKind, column: Column) -> Value {
        match column {
            Column::Event => Value::text(kind.name()),
            Column::Node => Value::Text(self.node.clone()),
            Column::Timestamp => Value::Int(self.unix_ms.into()),
            _ => Value::Undefined,
        }
    }
}

/// A published message.
pub struct PublishedEvent<'a> {
    pub context: &'a EventContext,
    pub message: &'a TapMessage<'a>,
}

impl RuleEvent for PublishedEvent<'_> {
    fn kind(&self) -> EventKind {
        EventKind::MessagePublish
    }

    fn column(&self, column: Column) -> Value {
        let of_message = message_column(self.message, column);
        of_message.unwrap_or_else(|| {
            match &self.message.client {
                Some(client) => client_column(client, column),
                None => Value::Undefined,
            }
            .or_else(|| self.context.column(EventKind::MessagePublish, column))
        })
    }

    fn payload(&self) -> &[u8] {
        self.message.payload
    }
}

/// An event of a client.
pub struct LifecycleEvent<'a> {
    pub context: &'a EventContext,
    pub client: TapClient<'a>,
    pub event: &'a TapEvent<'a>,
}

impl LifecycleEvent<'_> {
    pub fn kind_of(happening: &TapEvent<'_>) -> EventKind {
        match happening {
            TapEvent::Connected { .. } => EventKind::ClientConnected,
            TapEvent::Disconnected { .. } => EventKind::ClientDisconnected,
            TapEvent::ConnAck { .. } => EventKind::ClientConnack,
            TapEvent::Authorized { .. } => EventKind::AuthzComplete,
            TapEvent::Subscribed { .. } => EventKind::SessionSubscribed,
            TapEvent::Unsubscribed { .. } => EventKind::SessionUnsubscribed,
            TapEvent::Authenticated { .. } => EventKind::AuthnComplete,
            TapEvent::Ping { .. } => EventKind::ClientPing,
            TapEvent::Dropped { .. } => EventKind::MessageDropped,
            TapEvent::Delivered { .. } => EventKind::MessageDelivered,
            TapEvent::Acked { .. } => EventKind::MessageAcked,
            TapEvent::DeliveryDropped { .. } => EventKind::DeliveryDropped,
        }
    }
}

impl RuleEvent for LifecycleEvent<'_> {
    fn kind(&self) -> EventKind {
        LifecycleEvent::kind_of(self.event)
    }

    fn column(&self, column: Column) -> Value {
        let own = match *self.event {
            TapEvent::Connected {
                clean_start,
                keep_alive_s,
                expiry_s,
                is_bridge,
                connected_at_ms,
                properties,
                ..
            } => match column {
                Column::IsBridge => Some(Value::Bool(is_bridge)),
                Column::ConnProps => Some(properties_value(properties)),
                Column::ReceiveMaximum => receive_maximum(properties),
                Column::ConnectedAt => Some(Value::Int(connected_at_ms.into())),
                _ => connect_column(clean_start, keep_alive_s, expiry_s, column),
            },
            TapEvent::Disconnected {
                reason,
                code,
                is_discarded,
                connected_at_ms,
                properties,
                ..
            } => match column {
                Column::DisconnProps => Some(properties_value(properties)),
                Column::Reason => Some(Value::text(disconnect_reason(reason, code, is_discarded))),
                Column::ConnectedAt => Some(Value::Int(connected_at_ms.into())),
                Column::DisconnectedAt => Some(Value::Int(self.context.unix_ms.into())),
                _ => None,
            },
            TapEvent::ConnAck {
                reason,
                granted,
                properties,
            } => match column {
                Column::ReasonCode => Some(Value::text(reason_code(reason))),
                Column::ConnProps => Some(properties_value(properties)),
                Column::ConnectedAt => Some(Value::Int(self.context.unix_ms.into())),
                _ => granted.and_then(|g| connect_column(g.clean_start, g.keep_alive_s, g.expiry_s, column)),
            },
            TapEvent::Authorized {
                is_publish,
                topic,
                is_allowed,
            } => match column {
                Column::Action => Some(Value::text(if is_publish { "publish" } else { "subscribe" })),
                Column::Topic => Some(Value::text(topic)),
                Column::Result => Some(Value::text(if is_allowed { "allow" } else { "deny" })),
                Column::AuthzSource => Some(Value::text("rules")),
                _ => None,
            },
            TapEvent::Subscribed {
                filter,
                qos,
                properties,
            }
            | TapEvent::Unsubscribed {
                filter,
                qos,
                properties,
            } => match column {
                Column::Topic => Some(Value::text(filter)),
                Column::QoS => Some(Value::Int(qos as i128)),
                Column::SubProps | Column::UnsubProps if self.kind().has(column) => Some(properties_value(properties)),
                _ => None,
            },
            TapEvent::Authenticated {
                reason,
                is_superuser,
                is_anonymous,
            } => match column {
                Column::ReasonCode => Some(Value::text(reason_code(reason))),
                Column::IsSuperuser => Some(Value::Bool(is_superuser)),
                Column::IsAnonymous => Some(Value::Bool(is_anonymous)),
                _ => None,
            },
            TapEvent::Ping {
                clean_start,
                keep_alive_s,
                expiry_s,
                connected_at_ms,
            } => match column {
                Column::ConnectedAt => Some(Value::Int(connected_at_ms.into())),
                _ => connect_column(clean_start, keep_alive_s, expiry_s, column),
            },
            TapEvent::Dropped { ref message, reason } => match column {
                Column::Reason => Some(Value::text(drop_reason(reason))),
                _ => message_column(message, column),
            },
            TapEvent::Delivered { ref message } => delivery_column(message, column),
            TapEvent::Acked {
                ref message,
                properties,
            } => match column {
                Column::PubackProps => Some(properties_value(properties)),
                _ => delivery_column(message, column),
            },
            TapEvent::DeliveryDropped { ref message, reason } => match column {
                Column::Reason => Some(Value::text(delivery_drop_reason(reason))),
                _ => message.as_ref().and_then(|message| delivery_column(message, column)),
            },
        };
        own.unwrap_or_else(|| match column {
            Column::SockName => self.listener(),
            _ => client_column(&self.client, column).or_else(|| self.context.column(self.kind(), column)),
        })
    }

    fn payload(&self) -> &[u8] {
        self.event.message().map_or(&[], |message| message.payload)
    }
}

impl LifecycleEvent<'_> {
    fn listener(&self) -> Value {
        let address = self
            .client
            .listener
            .and_then(|index| self.context.listeners.get(usize::from(index)));
        address.cloned().map_or(Value::Undefined, Value::Text)
    }
}

/// Returns the first defined value.
trait OrElse {
    fn or_else(self, other: impl FnOnce() -> Value) -> Value;
}

impl OrElse for Value {
    fn or_else(self, other: impl FnOnce() -> Value) -> Value {
        match self {
            Value::Undefined => other(),
            value => value,
        }
    }
}

/// Returns `None` for a column that messages do not have.
fn message_column(message: &TapMessage<'_>, column: Column) -> Option<Value> {
    Some(match column {
        Column::Topic => Value::text(message.topic),
        Column::QoS => Value::Int(message.qos as i128),
        Column::Id if message.id != 0 => Value::text(format!("{:032X}", message.id)),
        Column::Flags => flags(message),
        Column::PubProps => message_properties(message.properties, message.expiry_s),
        Column::PublishReceivedAt if message.received_at_ms != 0 => Value::Int(message.received_at_ms.into()),
        Column::Retain => Value::Bool(message.retain),
        Column::Dup => Value::Bool(message.is_duplicate),
        _ => return None,
    })
}

/// Returns a column of a message in delivery. The client columns of such an event describe the receiver.
fn delivery_column(message: &TapMessage<'_>, column: Column) -> Option<Value> {
    match column {
        Column::FromClientId => message.client.map(|publisher| Value::text(publisher.client_id)),
        Column::FromUsername => message
            .client
            .and_then(|publisher| publisher.user_name)
            .map(Value::text),
        _ => message_column(message, column),
    }
}

fn client_column(client: &TapClient<'_>, column: Column) -> Value {
    match column {
        Column::ClientId => Value::text(client.client_id),
        Column::Username => client.user_name.map_or(Value::Undefined, Value::text),
        Column::PeerHost => Value::text(client.address.ip().to_string()),
        Column::PeerName => Value::text(peer_name(client.address)),
        Column::ProtoVer => Value::Int(client.version as u8 as i128),
        Column::ProtoName => Value::text(match client.version {
            ProtocolVersion::V3_1 => "MQIsdp",
            _ => "MQTT",
        }),
        Column::ClientAttrs => attributes(client),
        Column::Mountpoint => client.mountpoint.map_or(Value::Undefined, Value::text),
        _ => Value::Undefined,
    }
}

/// Returns the attributes that an authentication provider has returned for the client.
fn attributes(client: &TapClient<'_>) -> Value {
    let attributes = client.grant.attributes().into_iter();
    let entries = attributes.map(|(name, value)| (Text::from(name), Value::text(value)));
    Value::Map(Map::from_entries(entries.collect()))
}

fn connect_column(clean_start: bool, keep_alive_s: u16, expiry_s: u32, column: Column) -> Option<Value> {
    Some(match column {
        Column::CleanStart => Value::Bool(clean_start),
        Column::KeepAlive => Value::Int(keep_alive_s.into()),
        Column::ExpiryInterval => Value::Int(expiry_s.into()),
        _ => return None,
    })
}

/// Returns Receive Maximum, or its default of the standard. MQTT 5 only.
fn receive_maximum(properties: &[u8]) -> Option<Value> {
    let given = Properties::from_validated(properties).receive_maximum();
    Some(Value::Int(given.unwrap_or(u16::MAX).into()))
}

/// Formats an address like EMQX: IPv6 without brackets.
pub fn peer_name(address: SocketAddr) -> String {
    format!("{}:{}", address.ip(), address.port())
}

fn flags(message: &TapMessage<'_>) -> Value {
    let flag = |name: &str, value: bool| (Text::from(name), Value::Bool(value));
    Value::Map(Map::from_entries(vec![
        flag("dup", message.is_duplicate),
        flag("retain", message.retain),
        flag("sys", false),
    ]))
}

/// Returns MQTT 5 properties by the names of EMQX.
pub fn properties_value(bytes: &[u8]) -> Value {
    message_properties(bytes, None)
}

/// The broker stores the expiry interval separately from the other properties.
fn message_properties(bytes: &[u8], expiry_s: Option<u32>) -> Value {
    let expiry = expiry_s.map(|seconds| (Text::from("Message-Expiry-Interval"), Value::Int(seconds.into())));
    let mut entries = Vec::from_iter(expiry);
    let (mut user, mut pairs) = (Vec::new(), Vec::new());
    for property in Properties::from_validated(bytes).iter() {
        let (name, value) = match property {
            Property::PayloadFormatIndicator(is_text) => ("Payload-Format-Indicator", Value::Int(is_text as i128)),
            Property::MessageExpiryInterval(seconds) => ("Message-Expiry-Interval", Value::Int(seconds.into())),
            Property::ContentType(text) => ("Content-Type", Value::text(text)),
            Property::ResponseTopic(text) => ("Response-Topic", Value::text(text)),
            Property::CorrelationData(bytes) => ("Correlation-Data", Value::text(bytes)),
            Property::ReasonString(text) => ("Reason-String", Value::text(text)),
            Property::ServerReference(text) => ("Server-Reference", Value::text(text)),
            Property::SubscriptionIdentifier(number) => ("Subscription-Identifier", Value::Int(number.into())),
            Property::SessionExpiryInterval(seconds) => ("Session-Expiry-Interval", Value::Int(seconds.into())),
            Property::ReceiveMaximum(number) => ("Receive-Maximum", Value::Int(number.into())),
            Property::MaximumPacketSize(bytes) => ("Maximum-Packet-Size", Value::Int(bytes.into())),
            Property::TopicAliasMaximum(number) => ("Topic-Alias-Maximum", Value::Int(number.into())),
            Property::RequestResponseInformation(is_asked) => {
                ("Request-Response-Information", Value::Int(is_asked.into()))
            }
            Property::RequestProblemInformation(is_asked) => {
                ("Request-Problem-Information", Value::Int(is_asked.into()))
            }
            // The authentication data may be a secret and is omitted.
            Property::AuthenticationMethod(name) => ("Authentication-Method", Value::text(name)),
            Property::UserProperty(key, value) => {
                user.push((Text::from(key), Value::text(value)));
                let pair = [("key", key), ("value", value)].map(|(name, text)| (Text::from(name), Value::text(text)));
                pairs.push(Value::Map(Map::from_entries(pair.into())));
                continue;
            }
            _ => continue,
        };
        entries.push((Text::from(name), value));
    }
    entries.push((Text::from("User-Property"), Value::Map(Map::from_entries(user))));
    if !pairs.is_empty() {
        entries.push((Text::from("User-Property-Pairs"), Value::array(pairs)));
    }
    Value::Map(Map::from_entries(entries))
}

fn drop_reason(reason: DropReason) -> &'static str {
    match reason {
        DropReason::NoSubscriber => "no_subscribers",
        other => other.name(),
    }
}

/// Uses the names of EMQX where they exist.
fn delivery_drop_reason(reason: DropReason) -> &'static str {
    match reason {
        DropReason::OfflineQoS0 => "qos0_msg",
        DropReason::QueueFullByCount | DropReason::QueueFullByBytes | DropReason::UserQueueFull => "queue_full",
        DropReason::TooLargeForClient => "too_large",
        other => other.name(),
    }
}
