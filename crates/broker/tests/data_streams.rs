//! Tests data streams of MQTT over QUIC: each has a session of its own that ends with it.

use std::sync::Arc;

use mqtt::ProtocolVersion::{V3_1_1, V5};
use mqtt::QoS::{AtLeastOnce, AtMostOnce};
use mqtt::*;
use tidewire_broker::*;

use crate::world::{World, connect_packet};

/// The login of a client, or of one of its data streams.
struct OwnLogin {
    is_of_stream: bool,
}

impl LoginData for OwnLogin {
    fn for_data_stream(&self) -> Option<LoginGrant> {
        Some(LoginGrant::Of(Arc::new(OwnLogin { is_of_stream: true })))
    }
}

/// Only data streams may subscribe and receive.
struct StreamsOnly;

struct Nothing;

impl AccessControl for StreamsOnly {
    fn authenticate_now(&self, _: &ConnectCredentials) -> Option<AuthOutcome> {
        Some(AuthOutcome::Allow(Box::new(ClientLogin {
            grant: LoginGrant::Of(Arc::new(OwnLogin { is_of_stream: false })),
            ..ClientLogin::default()
        })))
    }

    fn supports_auth_method(&self, _: &str) -> bool {
        false
    }

    fn session(&self, who: &ClientIdentity) -> Option<Arc<dyn SessionAccess>> {
        let login: &OwnLogin = who.grant.data()?;
        match login.is_of_stream {
            true => None,
            false => Some(Arc::new(Nothing)),
        }
    }
}

impl SessionAccess for Nothing {
    fn can_publish(&self, _: &str, _: QoS, _: bool) -> bool {
        false
    }

    fn can_subscribe(&self, _: &str) -> SubscribeAccess {
        SubscribeAccess::Denied
    }

    fn can_receive(&self, _: &str) -> bool {
        false
    }
}

/// Connects a client, and opens two data streams.
fn with_streams(w: &mut World, client_id: &str) -> (usize, usize, usize) {
    let client = w.connect(V5, client_id, true, &[]);
    let one = w.open_stream(client).expect("a logged-in client");
    let two = w.open_stream(client).expect("a logged-in client");
    (client, one, two)
}

/// Returns why the server has ended or rejected data streams.
fn ended_streams(w: &World) -> Vec<DisconnectReason> {
    let reasons = w.events.iter().filter_map(|event| match event {
        ConnectionEvent::StreamEnded { reason, .. } => Some(*reason),
        _ => None,
    });
    reasons.collect()
}

#[test]
fn acknowledgements_and_messages_leave_on_their_stream() {
    let mut w = World::new(1);
    let (client, one, two) = with_streams(&mut w, "client");
    w.subscribe(one, "a", AtLeastOnce);
    w.subscribe(two, "b", AtLeastOnce);
    assert_eq!(w.take(one), ["SUBACK 7 [01]"]);
    assert_eq!(w.take(two), ["SUBACK 7 [01]"]);
    w.publish(two, "a", "for one", AtLeastOnce);
    assert_eq!(w.take(one), ["PUBLISH a for one q1 id=1"]);
    assert_eq!(w.take(two), ["PUBACK 1 Success"]);
    w.publish(one, "b", "for two", AtLeastOnce);
    assert_eq!(w.take(one), ["PUBACK 1 Success"]);
    // Packet identifiers are per stream.
    assert_eq!(w.take(two), ["PUBLISH b for two q1 id=1"]);
    assert!(w.take(client).is_empty());
}

#[test]
fn subscriptions_belong_to_their_stream_and_end_with_it() {
    let mut w = World::new(1);
    let (client, one, two) = with_streams(&mut w, "client");
    w.subscribe(one, "t", AtMostOnce);
    w.subscribe(two, "t", AtMostOnce);
    w.publish(client, "t", "first", AtMostOnce);
    assert_eq!(w.payloads(one), ["first"]);
    assert_eq!(w.payloads(two), ["first"]);
    w.unsubscribe(client, "t");
    assert_eq!(w.take(client), ["UNSUBACK 8 [11]"]);
    w.cut(one);
    w.publish(client, "t", "second", AtMostOnce);
    assert_eq!(w.payloads(two), ["second"]);
    assert_eq!(w.shards[0].inspect().stats().subscriptions, 1);
    w.cut(client);
    assert_eq!(w.shards[0].inspect().stats().subscriptions, 0);
    // The stream has ended with its connection.
    w.publish(two, "t", "third", AtMostOnce);
    w.cut(two);
    assert!(w.take(two).is_empty());
}

#[test]
fn session_that_continues_has_no_subscriptions_of_streams() {
    let mut w = World::new(1);
    let client = w.connect(V3_1_1, "durable", false, &[]);
    let stream = w.open_stream(client).unwrap();
    w.subscribe(client, "own", AtLeastOnce);
    w.subscribe(stream, "of the stream", AtLeastOnce);
    w.cut(client);
    w.cut(stream);
    let again = w.connect(V3_1_1, "durable", false, &[]);
    w.publish(again, "of the stream", "lost", AtMostOnce);
    w.publish(again, "own", "received", AtMostOnce);
    assert_eq!(w.payloads(again), ["received"]);
}

#[test]
fn takeover_ends_the_streams_of_the_old_connection() {
    let mut w = World::new(1);
    let (old, one, _) = with_streams(&mut w, "client");
    w.subscribe(one, "t", AtMostOnce);
    w.take(one);
    let new = w.connect(V5, "client", false, &[]);
    let stream = w.open_stream(new).unwrap();
    w.publish(stream, "t", "lost", AtLeastOnce);
    assert_eq!(w.take(stream), ["PUBACK 1 NoMatchingSubscribers"]);
    assert!(w.is_closed(old) && w.take(one).is_empty());
    // The driver closes the streams of the old connection later.
    w.publish(one, "t", "too late", AtMostOnce);
    w.cut(one);
    w.subscribe(stream, "t", AtMostOnce);
    w.publish(new, "t", "received", AtMostOnce);
    assert_eq!(w.payloads(stream), ["received"]);
    assert_eq!(w.shards[0].inspect().stats().subscriptions, 1);
}

#[test]
fn packet_for_the_control_stream_ends_only_the_stream() {
    let mut w = World::new(1);
    let (client, one, two) = with_streams(&mut w, "client");
    w.send(one, &Packet::PingReq);
    assert!(w.is_closed(one));
    assert!(w.take(one).is_empty(), "DISCONNECT belongs to the control stream");
    w.send_bytes(two, &[0, 0]);
    assert!(w.is_closed(two));
    assert_eq!(
        ended_streams(&w),
        [DisconnectReason::ProtocolError, DisconnectReason::MalformedPacket]
    );
    w.send(client, &Packet::PingReq);
    assert_eq!(w.take(client), ["PINGRESP"]);
}

/// Decisions of another system about a subscription belong to the session that has it.
#[test]
fn data_stream_has_a_grant_of_its_own() {
    let mut w = World::with(1, ShardConfig::default(), Arc::new(StreamsOnly));
    let (client, stream, _) = with_streams(&mut w, "client");
    w.subscribe(client, "t", AtMostOnce);
    assert_eq!(w.take(client), ["SUBACK 7 [87]"]);
    w.subscribe(stream, "t", AtMostOnce);
    assert_eq!(w.take(stream), ["SUBACK 7 [00]"]);
    w.shards[0].operator(w.now).access_changed();
    w.settle();
    w.publish(stream, "t", "received", AtMostOnce);
    assert_eq!(w.payloads(stream), ["received"]);
}

#[test]
fn no_local_applies_to_all_streams_of_a_client() {
    let mut w = World::new(1);
    let (client, one, two) = with_streams(&mut w, "client");
    let other = w.connect(V5, "other", true, &[]);
    let options = SubscriptionOptions {
        no_local: true,
        ..SubscriptionOptions::default()
    };
    w.subscribe_with(one, "t", options, None);
    w.publish(client, "t", "own", AtMostOnce);
    w.publish(two, "t", "own", AtMostOnce);
    w.publish(other, "t", "of the other", AtMostOnce);
    assert_eq!(w.payloads(one), ["of the other"]);
}

#[test]
fn packets_on_a_stream_keep_the_client_alive() {
    let mut w = World::new(1);
    let client = w.open();
    let connect = Connect {
        keep_alive: 10,
        ..connect_packet(V5, "client", true, Properties::EMPTY, None)
    };
    w.send(client, &Packet::Connect(connect));
    let stream = w.open_stream(client).unwrap();
    for _ in 0..5 {
        w.pass(8_000);
        w.publish(stream, "t", "alive", AtMostOnce);
    }
    assert!(!w.is_closed(client));
    w.pass(16_000);
    assert!(w.is_closed(client));
}

#[test]
fn streams_share_the_publish_rate_of_their_client() {
    let client = PublishRates {
        messages: Some(TokenRate {
            amount: 1,
            period_ms: 1000,
        }),
        bytes: None,
    };
    let config = ShardConfig {
        publish_limits: PublishLimits {
            client,
            ..PublishLimits::default()
        },
        ..ShardConfig::default()
    };
    let mut w = World::with(1, config, Arc::new(OpenAccess));
    let watcher = w.connect(V5, "watcher", true, &[]);
    w.subscribe(watcher, "t", AtMostOnce);
    let (_, one, two) = with_streams(&mut w, "client");
    w.publish(one, "t", "first", AtMostOnce);
    w.publish(two, "t", "second", AtMostOnce);
    assert_eq!(w.payloads(watcher), ["first"]);
    w.pass(2_000);
    assert_eq!(w.payloads(watcher), ["second"]);
}

#[test]
fn stream_is_no_client_and_counts_as_a_session() {
    let config = ShardConfig {
        max_sessions: 3,
        ..ShardConfig::default()
    };
    let mut w = World::with(1, config, Arc::new(OpenAccess));
    let client = w.connect(V5, "client", true, &[]);
    let stream = w.open_stream(client).unwrap();
    assert_eq!(w.open_stream(stream), None, "a data stream has no data streams");
    w.open_stream(client).unwrap();
    assert_eq!(w.open_stream(client), None);
    w.settle();
    assert_eq!(ended_streams(&w), [DisconnectReason::QuotaExceeded]);
    let (clients, _) = w.shards[0]
        .inspect()
        .clients(&ClientFilter::default(), SessionSlot(0), 10);
    assert_eq!(clients.len(), 1);
    w.cut(stream);
    w.open_stream(client).unwrap();
}
