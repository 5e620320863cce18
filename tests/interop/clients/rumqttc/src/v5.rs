//! Uses rumqttc's client for MQTT 5.

use std::time::Duration;

use rumqttc::v5::mqttbytes::v5::{
    ConnAckProperties, ConnectProperties, ConnectReturnCode, DisconnectReasonCode, Filter, LastWill, LastWillProperties,
    Packet, PubAckReason, PubCompReason, PublishProperties, RetainForwardRule, SubscribeProperties, SubscribeReasonCode,
    UnsubAckReason,
};
use rumqttc::v5::mqttbytes::{qos as quality, QoS};
use rumqttc::v5::{AsyncClient, ConnectionError, Event, EventLoop, MqttOptions, StateError};
use rumqttc::Outgoing;
use serde_json::{json, Map, Value};

use crate::{base64, bytes, number, text, Client, Notice, Pending, Reporter, PACKET_MAX};

pub fn open(request: &Value) -> (Box<dyn Client>, EventLoop) {
    let port = number(request, "port").expect("the suite names a port");
    let mut options = MqttOptions::new(text(request, "client_id"), text(request, "host"), port);
    options.set_keep_alive(Duration::from_secs(number(request, "keep_alive").unwrap_or(30)));
    options.set_clean_start(request["clean"] == true);
    let fields = &request["properties"];
    let mut properties = ConnectProperties::new();
    properties.session_expiry_interval = number(fields, "session_expiry_interval");
    properties.receive_maximum = number(fields, "receive_maximum");
    properties.max_packet_size = number(fields, "maximum_packet_size").or(Some(PACKET_MAX));
    properties.topic_alias_max = number(fields, "topic_alias_maximum");
    options.set_connect_properties(properties);
    if request["username"].is_string() {
        options.set_credentials(text(request, "username"), text(request, "password"));
    }
    let will = &request["will"];
    if will.is_object() {
        options.set_last_will(last_will(will));
    }
    let (client, events) = AsyncClient::new(options, 16);
    (Box::new(client), events)
}

fn last_will(will: &Value) -> LastWill {
    let fields = &will["properties"];
    let properties = LastWillProperties {
        delay_interval: number(fields, "will_delay_interval"),
        payload_format_indicator: number(fields, "payload_format_indicator"),
        message_expiry_interval: number(fields, "message_expiry_interval"),
        content_type: fields["content_type"].as_str().map(Into::into),
        response_topic: fields["response_topic"].as_str().map(Into::into),
        correlation_data: None,
        user_properties: pairs(fields),
    };
    LastWill::new(text(will, "topic"), bytes(will, "payload"), qos(will), will["retain"] == true, Some(properties))
}

fn pairs(fields: &Value) -> Vec<(String, String)> {
    let pairs: Option<Vec<(String, String)>> = serde_json::from_value(fields["user_properties"].clone()).ok();
    pairs.unwrap_or_default()
}

fn qos(value: &Value) -> QoS {
    quality(number(value, "qos").unwrap_or(0)).expect("0, 1 or 2")
}

impl Client for AsyncClient {
    fn subscribe(&self, request: &Value) -> Pending<'_> {
        let mut filter = Filter::new(text(request, "filter"), qos(request));
        filter.nolocal = request["no_local"] == true;
        filter.preserve_retain = request["retain_as_published"] == true;
        filter.retain_forward_rule = match request["retain_handling"].as_u64() {
            Some(1) => RetainForwardRule::OnNewSubscribe,
            Some(2) => RetainForwardRule::Never,
            _ => RetainForwardRule::OnEverySubscribe,
        };
        let properties = SubscribeProperties { id: number(request, "identifier"), user_properties: Vec::new() };
        Box::pin(async move {
            let sent = self.subscribe_many_with_properties([filter], properties).await;
            sent.map_err(|e| e.to_string())
        })
    }

    fn unsubscribe(&self, request: &Value) -> Pending<'_> {
        let filter = text(request, "filter");
        Box::pin(async move { AsyncClient::unsubscribe(self, filter).await.map_err(|e| e.to_string()) })
    }

    fn publish(&self, request: &Value) -> Pending<'_> {
        let fields = &request["properties"];
        let properties = PublishProperties {
            payload_format_indicator: number(fields, "payload_format_indicator"),
            message_expiry_interval: number(fields, "message_expiry_interval"),
            topic_alias: number(fields, "topic_alias"),
            response_topic: fields["response_topic"].as_str().map(Into::into),
            correlation_data: fields["correlation_data"].is_string().then(|| bytes(fields, "correlation_data").into()),
            user_properties: pairs(fields),
            subscription_identifiers: Vec::new(),
            content_type: fields["content_type"].as_str().map(Into::into),
        };
        let topic = if request["alias_is_known"] == true { String::new() } else { text(request, "topic") };
        let (qos, retain, payload) = (qos(request), request["retain"] == true, bytes(request, "payload"));
        Box::pin(async move {
            let sent = self.publish_with_properties(topic, qos, retain, payload, properties).await;
            sent.map_err(|e| e.to_string())
        })
    }

    fn disconnect(&self) -> Pending<'_> {
        Box::pin(async move { AsyncClient::disconnect(self).await.map_err(|e| e.to_string()) })
    }
}

/// Polls until the connection ends. Another poll would open a new connection.
pub async fn run(mut events: EventLoop, reporter: Reporter) {
    loop {
        match events.poll().await {
            Ok(event) => {
                if let Some(notice) = notice(event) {
                    reporter.report(notice);
                }
            }
            Err(ConnectionError::ConnectionRefused(code)) => {
                let code = refusal(code);
                return reporter.report(Notice::Connected(json!({ "refused": true, "reason_code": code })));
            }
            Err(ConnectionError::MqttState(StateError::ServerDisconnect { reason_code, .. })) => {
                return reporter.report(Notice::Closed(Some(disconnection(reason_code))));
            }
            Err(error) => {
                eprintln!("{error}");
                return reporter.report(Notice::Closed(None));
            }
        }
    }
}

fn notice(event: Event) -> Option<Notice> {
    Some(match event {
        Event::Incoming(Packet::ConnAck(ack)) => Notice::Connected(json!({
            "session_present": ack.session_present,
            "properties": ack.properties.map(|p| connack(&p)).unwrap_or_default(),
        })),
        Event::Incoming(Packet::PubAck(ack)) => Notice::Acknowledged(match ack.reason {
            PubAckReason::Success => 0,
            PubAckReason::NoMatchingSubscribers => 0x10,
            PubAckReason::NotAuthorized => 0x87,
            _ => 0x80,
        }),
        Event::Incoming(Packet::PubComp(ack)) => Notice::Acknowledged(match ack.reason {
            PubCompReason::Success => 0,
            PubCompReason::PacketIdentifierNotFound => 0x92,
        }),
        // QoS 0 has no acknowledgement, so a sent message counts as acknowledged.
        Event::Outgoing(Outgoing::Publish(0)) => Notice::Acknowledged(0),
        Event::Incoming(Packet::UnsubAck(ack)) => Notice::Acknowledged(match ack.reasons[0] {
            UnsubAckReason::Success => 0,
            UnsubAckReason::NoSubscriptionExisted => 0x11,
            _ => 0x80,
        }),
        Event::Incoming(Packet::SubAck(ack)) => Notice::Acknowledged(match ack.return_codes[0] {
            SubscribeReasonCode::Success(qos) => qos as u8,
            SubscribeReasonCode::NotAuthorized => 0x87,
            _ => 0x80,
        }),
        Event::Incoming(Packet::Publish(publish)) => {
            let mut message = Map::new();
            message.insert("topic".into(), json!(String::from_utf8_lossy(&publish.topic)));
            message.insert("payload".into(), json!(base64(&publish.payload)));
            message.insert("qos".into(), json!(publish.qos as u8));
            message.insert("retain".into(), json!(publish.retain));
            message.insert("dup".into(), json!(publish.dup));
            message.insert("properties".into(), publish.properties.map(|p| received(&p)).unwrap_or_default());
            Notice::Message(message)
        }
        Event::Outgoing(Outgoing::Disconnect) => Notice::Closed(None),
        _ => return None,
    })
}

fn received(properties: &PublishProperties) -> Value {
    json!({
        "payload_format_indicator": properties.payload_format_indicator,
        "message_expiry_interval": properties.message_expiry_interval,
        "topic_alias": properties.topic_alias,
        "response_topic": properties.response_topic,
        "correlation_data": properties.correlation_data.as_deref().map(base64),
        "user_properties": properties.user_properties,
        "subscription_identifiers": properties.subscription_identifiers,
        "content_type": properties.content_type,
    })
}

fn connack(properties: &ConnAckProperties) -> Value {
    json!({ "assigned_client_identifier": properties.assigned_client_identifier })
}

fn refusal(code: ConnectReturnCode) -> u8 {
    match code {
        ConnectReturnCode::BadUserNamePassword => 0x86,
        ConnectReturnCode::NotAuthorized => 0x87,
        _ => 0x80,
    }
}

fn disconnection(code: DisconnectReasonCode) -> u8 {
    match code {
        DisconnectReasonCode::ServerShuttingDown => 0x8B,
        DisconnectReasonCode::SessionTakenOver => 0x8E,
        _ => 0x80,
    }
}
