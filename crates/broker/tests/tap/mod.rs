//! Tests the events that a tap receives, and the acknowledgements that wait for it.

#![allow(clippy::unwrap_used)]

mod delayed;
mod fates;
pub mod recorder;
mod waiting;

use mqtt::ProtocolVersion::{V3_1_1, V5};
use mqtt::QoS::{AtLeastOnce, AtMostOnce, ExactlyOnce};
use tidewire_broker::tap::*;
use tidewire_broker::*;

use crate::world::{PublishFields, World};
use recorder::{Recorder, world};

#[test]
fn acknowledgement_waits_until_the_tap_persists_the_message() {
    let (mut w, tap) = world("kept/");
    tap.wants(&mut w, TapEventMask::MESSAGES);
    let client = w.connect(V5, "c", true, &[]);
    w.publish(client, "passed/1", "x", AtLeastOnce);
    assert_eq!(w.take(client), ["PUBACK 1 NoMatchingSubscribers"]);
    w.publish(client, "kept/1", "y", AtLeastOnce);
    // It waits for the first one, because acknowledgements keep their order [MQTT-4.6.0-2].
    w.publish(client, "passed/2", "z", AtLeastOnce);
    assert_eq!(w.take(client), [""; 0]);
    tap.keep(&mut w);
    assert_eq!(w.take(client).len(), 2);
    assert_eq!(tap.seen(), ["c passed/1 x", "c kept/1 y", "c passed/2 z"]);
}

#[test]
fn tap_without_interests_receives_no_events() {
    let (mut w, tap) = world("");
    let client = w.connect(V5, "c", true, &[]);
    w.publish(client, "t", "x", AtLeastOnce);
    assert_eq!(w.take(client), ["PUBACK 1 NoMatchingSubscribers"]);
    assert_eq!(tap.seen(), [""; 0]);
}

#[test]
fn full_tap_rejects_5_clients_and_delays_others() {
    let (mut w, tap) = world("kept/");
    let new = w.connect(V5, "new", true, &[]);
    let old = w.connect(V3_1_1, "old", true, &[]);
    tap.wants(&mut w, TapEventMask::MESSAGES | TapEventMask::CHECK_FULL);
    w.publish(new, "kept/1", "x", AtLeastOnce);
    assert_eq!(w.take(new), ["PUBACK 1 QuotaExceeded"]);
    w.publish(new, "other", "x", AtLeastOnce);
    assert_eq!(w.take(new), ["PUBACK 1 NoMatchingSubscribers"]);
    w.publish(old, "kept/2", "y", AtLeastOnce);
    assert_eq!(w.take(old), [""; 0]);
    assert_eq!(
        tap.seen(),
        ["new other x"],
        "the tap does not receive a rejected message"
    );
    tap.wants(&mut w, TapEventMask::MESSAGES);
    w.settle();
    tap.keep(&mut w);
    assert_eq!(w.take(old), ["PUBACK 1 Success"]);
    assert_eq!(tap.seen(), ["old kept/2 y"]);
    assert_eq!(w.stats().drops[DropReason::BufferFull as usize], 1);
}

#[test]
fn full_tap_check_uses_the_topic_of_a_delayed_message() {
    let (mut w, tap) = world("kept/");
    let old = w.connect(V3_1_1, "old", true, &[]);
    tap.wants(&mut w, TapEventMask::MESSAGES | TapEventMask::CHECK_FULL);
    w.publish(old, "$delayed/5/kept/1", "x", AtLeastOnce);
    assert_eq!(
        w.take(old),
        [""; 0],
        "the message is held back, not acknowledged and dropped"
    );
    assert_eq!(w.stats().drops[DropReason::BufferFull as usize], 0);
}

#[test]
fn tap_receives_wills_and_server_messages() {
    let (mut w, tap) = world("kept/");
    tap.wants(&mut w, TapEventMask::MESSAGES);
    let message = ServerMessage {
        topic: "from/api",
        payload: b"p",
        ..ServerMessage::default()
    };
    w.shards[0].server_publisher(w.now).publish(message);
    let message = ServerMessage {
        topic: "$SYS/broker/uptime",
        ..message
    };
    w.shards[0].server_publisher(w.now).publish(message);
    let client = w.connect(V5, "c", true, &[]);
    w.publish(client, "$delayed/5/later", "d", AtMostOnce);
    assert_eq!(
        tap.seen(),
        ["server from/api p"],
        "the tap receives neither $SYS nor delayed messages that are not due"
    );
    w.pass(6_000);
    assert_eq!(tap.seen(), ["c later d"]);
}

#[test]
fn tap_receives_the_client_events_of_its_interests() {
    let (mut w, tap) = world("kept/");
    let all = TapEventMask::CONNECTED | TapEventMask::DISCONNECTED | TapEventMask::CONNACK | TapEventMask::AUTHORIZED;
    tap.wants(
        &mut w,
        all | TapEventMask::SUBSCRIBED | TapEventMask::UNSUBSCRIBED | TapEventMask::DROPPED,
    );
    let client = w.connect(V5, "c", true, &[]);
    w.subscribe(client, "a/#", ExactlyOnce);
    w.publish(client, "unread", "x", AtMostOnce);
    w.unsubscribe(client, "a/#");
    w.disconnect(client);
    let expected = [
        "c: connack Success",
        "c: connected false",
        "c: authorized a/# true",
        "c: subscribed a/# 2",
        "c: authorized unread true",
        "c: dropped unread no_subscriber",
        "c: unsubscribed a/#",
        "c: disconnected by_client",
    ];
    assert_eq!(tap.seen(), expected);
}

#[test]
fn messages_created_by_a_tap_are_published_and_seen_by_it() {
    let (mut w, tap) = world("made");
    let client = w.connect(V5, "c", true, &[]);
    w.subscribe(client, "made", AtMostOnce);
    w.take(client);
    tap.wants(&mut w, TapEventMask::MESSAGES);
    w.publish(client, "again/1", "x", AtLeastOnce);
    assert_eq!(
        w.take(client),
        ["PUBLISH made x q0 id=0"],
        "the acknowledgement waits for the messages that the tap created from it"
    );
    assert_eq!(tap.seen(), ["c again/1 x", "server made x", "its own"]);
    tap.keep(&mut w);
    assert_eq!(w.take(client), ["PUBACK 1 NoMatchingSubscribers"]);
}

/// If the process ends at the wrong time, the journal has the message but the tap does not.
#[test]
fn unreleased_qos_2_message_is_passed_to_the_tap_again() {
    let mut w = World::new(1);
    w.shards[0].start_journaling(0);
    let client = w.connect(V5, "c", true, &[]);
    w.publish(client, "kept/1", "x", ExactlyOnce);
    assert_eq!(w.take(client).len(), 1);
    let tap = Recorder::keeping("kept/");
    w.shards[0].set_tap(Box::new(tap.clone()));
    tap.wants(&mut w, TapEventMask::MESSAGES);
    w.publish_with(
        client,
        "kept/1",
        "x",
        ExactlyOnce,
        PublishFields {
            dup: true,
            ..PublishFields::default()
        },
    );
    assert_eq!(w.take(client), [""; 0]);
    tap.keep(&mut w);
    assert_eq!(w.take(client), ["PUBREC 1 Success"]);
    assert_eq!(tap.seen(), ["c kept/1 x"]);
}
