//! Uses rumqttc's client for MQTT 3.1.1.

use std::time::Duration;

use rumqttc::{
    AsyncClient, ConnectReturnCode, ConnectionError, Event, EventLoop, LastWill, MqttOptions, Outgoing, Packet, QoS,
    SubscribeReasonCode,
};
use serde_json::{json, Map, Value};

use crate::{base64, bytes, number, text, Client, Notice, Pending, Reporter, PACKET_MAX};

pub fn open(request: &Value) -> (Box<dyn Client>, EventLoop) {
    let port = number(request, "port").expect("the suite names a port");
    let mut options = MqttOptions::new(text(request, "client_id"), text(request, "host"), port);
    options.set_keep_alive(Duration::from_secs(number(request, "keep_alive").unwrap_or(30)));
    options.set_clean_session(request["clean"] == true);
    options.set_max_packet_size(PACKET_MAX as usize, PACKET_MAX as usize);
    if request["username"].is_string() {
        options.set_credentials(text(request, "username"), text(request, "password"));
    }
    let will = &request["will"];
    if will.is_object() {
        let retain = will["retain"] == true;
        options.set_last_will(LastWill::new(text(will, "topic"), bytes(will, "payload"), qos(will), retain));
    }
    let (client, events) = AsyncClient::new(options, 16);
    (Box::new(client), events)
}

fn qos(value: &Value) -> QoS {
    rumqttc::qos(number(value, "qos").unwrap_or(0)).expect("0, 1 or 2")
}

impl Client for AsyncClient {
    fn subscribe(&self, request: &Value) -> Pending<'_> {
        let (filter, qos) = (text(request, "filter"), qos(request));
        Box::pin(async move { AsyncClient::subscribe(self, filter, qos).await.map_err(|e| e.to_string()) })
    }

    fn unsubscribe(&self, request: &Value) -> Pending<'_> {
        let filter = text(request, "filter");
        Box::pin(async move { AsyncClient::unsubscribe(self, filter).await.map_err(|e| e.to_string()) })
    }

    fn publish(&self, request: &Value) -> Pending<'_> {
        let (topic, qos, retain) = (text(request, "topic"), qos(request), request["retain"] == true);
        let payload = bytes(request, "payload");
        Box::pin(async move { AsyncClient::publish(self, topic, qos, retain, payload).await.map_err(|e| e.to_string()) })
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
            Err(error) => {
                eprintln!("{error}");
                return reporter.report(Notice::Closed(None));
            }
        }
    }
}

fn notice(event: Event) -> Option<Notice> {
    Some(match event {
        Event::Incoming(Packet::ConnAck(ack)) => Notice::Connected(json!({ "session_present": ack.session_present })),
        Event::Incoming(Packet::PubAck(_) | Packet::PubComp(_) | Packet::UnsubAck(_)) => Notice::Acknowledged(0),
        // QoS 0 has no acknowledgement, so a sent message counts as acknowledged.
        Event::Outgoing(Outgoing::Publish(0)) => Notice::Acknowledged(0),
        Event::Incoming(Packet::SubAck(ack)) => Notice::Acknowledged(match ack.return_codes[0] {
            SubscribeReasonCode::Success(qos) => qos as u8,
            SubscribeReasonCode::Failure => 0x80,
        }),
        Event::Incoming(Packet::Publish(publish)) => {
            let mut message = Map::new();
            message.insert("topic".into(), json!(publish.topic));
            message.insert("payload".into(), json!(base64(&publish.payload)));
            message.insert("qos".into(), json!(publish.qos as u8));
            message.insert("retain".into(), json!(publish.retain));
            message.insert("dup".into(), json!(publish.dup));
            Notice::Message(message)
        }
        Event::Outgoing(Outgoing::Disconnect) => Notice::Closed(None),
        _ => return None,
    })
}

fn refusal(code: ConnectReturnCode) -> u8 {
    match code {
        ConnectReturnCode::Success => 0,
        ConnectReturnCode::RefusedProtocolVersion => 1,
        ConnectReturnCode::BadClientId => 2,
        ConnectReturnCode::ServiceUnavailable => 3,
        ConnectReturnCode::BadUserNamePassword => 4,
        ConnectReturnCode::NotAuthorized => 5,
    }
}
