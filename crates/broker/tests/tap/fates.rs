//! Tests delivery events of a tap: sent, acknowledged and dropped messages, each with its publisher.

use mqtt::PacketType::{PubAck, PubRec};
use mqtt::ProtocolVersion::{V3_1_1, V5};
use mqtt::QoS::{AtLeastOnce, AtMostOnce, ExactlyOnce};
use mqtt::{Packet, Properties, Property};
use tidewire_broker::tap::*;
use tidewire_broker::*;

use super::recorder::{Recorder, world};
use crate::world::{PublishFields, World, connect_packet};

fn all() -> TapEventMask {
    TapEventMask::DELIVERED | TapEventMask::ACKED | TapEventMask::DELIVERY_DROPPED
}

#[test]
fn tap_receives_delivery_and_acknowledgement_with_publisher() {
    let (mut w, tap) = world("kept/");
    tap.wants(&mut w, all());
    let source = w.open();
    let mut connect = connect_packet(V5, "source", true, Properties::EMPTY, None);
    connect.user_name = Some("farm");
    w.send(source, &Packet::Connect(connect));
    let sink = w.connect(V5, "sink", true, &[]);
    w.subscribe(sink, "t/#", ExactlyOnce);
    for (n, qos) in [AtMostOnce, AtLeastOnce, ExactlyOnce].into_iter().enumerate() {
        w.publish(source, &format!("t/{n}"), "x", qos);
    }
    let expected = [
        "sink: delivered source/farm t/0 x q0",
        "sink: delivered source/farm t/1 x q1",
        "sink: delivered source/farm t/2 x q2",
    ];
    assert_eq!(tap.seen(), expected);
    let ids: Vec<u16> = w.messages(sink).iter().filter_map(|message| message.id).collect();
    w.ack(sink, PubAck, ids[0]);
    w.ack(sink, PubRec, ids[1]);
    w.ack(sink, PubRec, ids[1]);
    assert_eq!(
        tap.seen(),
        [
            "sink: acked source/farm t/1 x q1 0",
            "sink: acked source/farm t/2 x q2 0"
        ]
    );
}

#[test]
fn delivery_event_has_the_granted_qos() {
    let (mut w, tap) = world("kept/");
    tap.wants(&mut w, all());
    let source = w.connect(V3_1_1, "source", true, &[]);
    let first = w.connect(V5, "first", true, &[]);
    let second = w.connect(V5, "second", true, &[]);
    w.subscribe(first, "t", AtMostOnce);
    w.subscribe(second, "t", AtMostOnce);
    for payload in ["1", "2", "3"] {
        w.publish(source, "t", payload, AtMostOnce);
    }
    let seen = tap.seen();
    assert_eq!(
        seen.len(),
        6,
        "also for a batch with the same bytes for all subscribers: {seen:?}"
    );
    assert_eq!(w.payloads(first), ["1", "2", "3"]);
}

#[test]
fn message_before_the_first_interest_has_no_publisher() {
    let (mut w, tap) = world("kept/");
    let source = w.connect(V5, "source", true, &[]);
    let sink = w.connect(V5, "sink", true, &[]);
    w.publish_with(
        source,
        "t",
        "old",
        AtMostOnce,
        PublishFields {
            retain: true,
            id: 0,
            ..PublishFields::default()
        },
    );
    tap.wants(&mut w, all());
    w.subscribe(sink, "t", AtMostOnce);
    w.publish_with(
        source,
        "t",
        "new",
        AtMostOnce,
        PublishFields {
            retain: true,
            id: 0,
            ..PublishFields::default()
        },
    );
    let late = w.connect(V5, "late", true, &[]);
    w.subscribe(late, "t", AtMostOnce);
    let expected = [
        "sink: delivered ?/- t old q0 retained",
        "sink: delivered source/- t new q0",
        "late: delivered source/- t new q0 retained",
    ];
    assert_eq!(tap.seen(), expected);
}

#[test]
fn resent_message_is_another_delivery_event() {
    let (mut w, tap) = world("kept/");
    tap.wants(&mut w, all());
    let source = w.connect(V5, "source", true, &[]);
    let sink = w.connect(V5, "sink", false, &[Property::SessionExpiryInterval(100)]);
    w.subscribe(sink, "t", AtLeastOnce);
    w.publish(source, "t", "x", AtLeastOnce);
    w.cut(sink);
    let _again = w.connect(V5, "sink", false, &[Property::SessionExpiryInterval(100)]);
    let expected = [
        "sink: delivered source/- t x q1",
        "sink: delivered source/- t x q1 again",
    ];
    assert_eq!(tap.seen(), expected);
}

#[test]
fn tap_receives_dropped_deliveries_with_reason() {
    let mut w = World::with(
        1,
        ShardConfig {
            max_queued_messages: 1,
            queue_drop: QueueDropPolicy::Oldest,
            ..ShardConfig::default()
        },
        std::sync::Arc::new(OpenAccess),
    );
    let tap = Recorder::keeping("kept/");
    w.shards[0].set_tap(Box::new(tap.clone()));
    tap.wants(&mut w, all());
    let source = w.connect(V5, "source", true, &[]);
    let away = w.connect(V5, "away", false, &[Property::SessionExpiryInterval(100)]);
    w.subscribe(away, "t", AtLeastOnce);
    w.subscribe(away, "zero", AtMostOnce);
    w.cut(away);
    w.publish(source, "t", "1", AtLeastOnce);
    w.publish(source, "t", "2", AtLeastOnce);
    w.publish(source, "zero", "3", AtMostOnce);
    let small = w.connect(V5, "small", true, &[Property::MaximumPacketSize(30)]);
    w.subscribe(small, "big", AtLeastOnce);
    w.publish(source, "big", "a payload of more than thirty bytes", AtLeastOnce);
    let expected = [
        "away: missed source/- t 1 q1 queue_full_by_count",
        "away: missed source/- zero 3 q0 offline_qos0",
        "small: missed source/- big a payload of more than thirty bytes q1 too_large_for_client",
    ];
    assert_eq!(tap.seen(), expected);
    w.pass(200_000);
    assert_eq!(tap.seen(), ["away: missed source/- t 2 q1 session_ended"]);
}

/// Messages from other shards carry the metadata of their publisher.
#[test]
fn delivery_event_names_a_publisher_of_another_shard() {
    let mut w = World::new(2);
    let taps = [Recorder::keeping("kept/"), Recorder::keeping("kept/")];
    for (shard, tap) in taps.iter().enumerate() {
        w.shards[shard].set_tap(Box::new(tap.clone()));
        tap.0.lock().unwrap().wants = all();
        w.shards[shard].begin_tick(w.now);
    }
    let on = |shard: u16| {
        (0..)
            .map(|n| format!("client-{n}"))
            .find(move |id| tidewire_broker::home_shard(id, 2) == Some(ShardId(shard)))
    };
    let (here, there) = (on(0).unwrap(), on(1).unwrap());
    let source = w.connect(V5, &here, true, &[]);
    let sink = w.connect(V5, &there, true, &[]);
    w.subscribe(sink, "t", AtLeastOnce);
    w.publish(source, "t", "x", AtLeastOnce);
    assert_eq!(taps[0].seen(), [""; 0]);
    assert_eq!(taps[1].seen(), [format!("{there}: delivered {here}/- t x q1")]);
}

#[test]
fn a_delivered_message_has_the_identifier_that_it_was_published_with() {
    let (mut w, tap) = world("kept/");
    tap.wants(&mut w, all() | TapEventMask::MESSAGES);
    let client = w.connect(V5, "c", true, &[]);
    w.subscribe(client, "t", AtMostOnce);
    w.publish(client, "t", "x", AtMostOnce);
    assert_eq!(tap.seen(), ["c t x", "c: delivered c/- t x q0"]);
    let ids = std::mem::take(&mut tap.0.lock().unwrap().ids);
    assert_eq!((ids.len(), ids[0]), (2, ids[1]));
}

#[test]
fn tap_receives_logins_and_pings() {
    let (mut w, tap) = world("kept/");
    tap.wants(&mut w, TapEventMask::AUTHENTICATED | TapEventMask::PING);
    let client = w.open();
    let mut connect = connect_packet(V5, "c", true, Properties::EMPTY, None);
    connect.user_name = Some("farm");
    connect.keep_alive = 40;
    w.send(client, &Packet::Connect(connect));
    w.send(client, &Packet::PingReq);
    w.connect(V3_1_1, "d", true, &[]);
    let expected = [
        "c: authenticated Success false false",
        "c: ping 40",
        "d: authenticated Success false true",
    ];
    assert_eq!(tap.seen(), expected);
}
