//! What a tap is told, and what waits for it.

#![allow(clippy::unwrap_used)]

#[path = "../world/mod.rs"]
mod world;

mod delayed;
mod fates;
mod recorder;
mod waiting;

use mqtt::ProtocolVersion::{V3_1_1, V5};
use mqtt::QoS::{AtLeastOnce, AtMostOnce, ExactlyOnce};
use tidewire_broker::tap::*;
use tidewire_broker::*;

use recorder::{Recorder, world};
use world::World;

#[test]
fn an_acknowledgement_waits_until_the_tap_has_kept_the_message() {
    let (mut w, tap) = world("kept/");
    tap.wants(&mut w, Wants::MESSAGES);
    let client = w.connect(V5, "c", true, &[]);
    w.publish(client, "passed/1", "x", AtLeastOnce);
    assert_eq!(w.take(client), ["PUBACK 1 NoMatchingSubscribers"]);
    w.publish(client, "kept/1", "y", AtLeastOnce);
    // Behind the first one: acknowledgements keep their order [MQTT-4.6.0-2].
    w.publish(client, "passed/2", "z", AtLeastOnce);
    assert_eq!(w.take(client), [""; 0]);
    tap.keep(&mut w);
    assert_eq!(w.take(client).len(), 2);
    assert_eq!(tap.seen(), ["c passed/1 x", "c kept/1 y", "c passed/2 z"]);
}

#[test]
fn a_tap_that_wants_nothing_is_told_nothing() {
    let (mut w, tap) = world("");
    let client = w.connect(V5, "c", true, &[]);
    w.publish(client, "t", "x", AtLeastOnce);
    assert_eq!(w.take(client), ["PUBACK 1 NoMatchingSubscribers"]);
    assert_eq!(tap.seen(), [""; 0]);
}

#[test]
fn a_full_tap_is_told_to_5_clients_and_holds_others() {
    let (mut w, tap) = world("kept/");
    let new = w.connect(V5, "new", true, &[]);
    let old = w.connect(V3_1_1, "old", true, &[]);
    tap.wants(&mut w, Wants::MESSAGES | Wants::TO_BE_ASKED);
    w.publish(new, "kept/1", "x", AtLeastOnce);
    assert_eq!(w.take(new), ["PUBACK 1 QuotaExceeded"]);
    w.publish(new, "other", "x", AtLeastOnce);
    assert_eq!(w.take(new), ["PUBACK 1 NoMatchingSubscribers"]);
    w.publish(old, "kept/2", "y", AtLeastOnce);
    assert_eq!(w.take(old), [""; 0]);
    assert_eq!(tap.seen(), ["new other x"], "what is refused is not given");
    tap.wants(&mut w, Wants::MESSAGES);
    w.settle();
    tap.keep(&mut w);
    assert_eq!(w.take(old), ["PUBACK 1 Success"]);
    assert_eq!(tap.seen(), ["old kept/2 y"]);
    assert_eq!(w.stats().drops[DropReason::BufferFull as usize], 1);
}

#[test]
fn a_full_tap_is_asked_for_the_topic_on_which_a_delayed_message_will_be_published() {
    let (mut w, tap) = world("kept/");
    let old = w.connect(V3_1_1, "old", true, &[]);
    tap.wants(&mut w, Wants::MESSAGES | Wants::TO_BE_ASKED);
    w.publish(old, "$delayed/5/kept/1", "x", AtLeastOnce);
    assert_eq!(w.take(old), [""; 0], "it is held, not acknowledged and dropped");
    assert_eq!(w.stats().drops[DropReason::BufferFull as usize], 0);
}

#[test]
fn wills_and_messages_of_the_server_are_messages_too() {
    let (mut w, tap) = world("kept/");
    tap.wants(&mut w, Wants::MESSAGES);
    let message = ServerMessage {
        topic: "from/api",
        payload: b"p",
        ..ServerMessage::default()
    };
    w.shards[0].publish_from_server(w.now, message);
    let message = ServerMessage {
        topic: "$SYS/broker/uptime",
        ..message
    };
    w.shards[0].publish_from_server(w.now, message);
    let client = w.connect(V5, "c", true, &[]);
    w.publish(client, "$delayed/5/later", "d", AtMostOnce);
    assert_eq!(tap.seen(), ["server from/api p"], "neither $SYS nor what is not due");
    w.pass(6_000);
    assert_eq!(tap.seen(), ["c later d"]);
}

#[test]
fn clients_are_told_of_as_far_as_that_is_wanted() {
    let (mut w, tap) = world("kept/");
    let all = Wants::CONNECTED | Wants::DISCONNECTED | Wants::CONNACK | Wants::AUTHORIZED;
    tap.wants(&mut w, all | Wants::SUBSCRIBED | Wants::UNSUBSCRIBED | Wants::DROPPED);
    let client = w.connect(V5, "c", true, &[]);
    w.subscribe(client, "a/#", ExactlyOnce);
    w.publish(client, "nobody", "x", AtMostOnce);
    w.unsubscribe(client, "a/#");
    w.disconnect(client);
    let expected = [
        "c: connack Success",
        "c: connected false",
        "c: authorized a/# true",
        "c: subscribed a/# 2",
        "c: authorized nobody true",
        "c: dropped nobody no_subscriber",
        "c: unsubscribed a/#",
        "c: disconnected by_client",
    ];
    assert_eq!(tap.seen(), expected);
}

#[test]
fn what_a_tap_makes_is_published_and_told_to_it() {
    let (mut w, tap) = world("made");
    let client = w.connect(V5, "c", true, &[]);
    w.subscribe(client, "made", AtMostOnce);
    w.take(client);
    tap.wants(&mut w, Wants::MESSAGES);
    w.publish(client, "again/1", "x", AtLeastOnce);
    assert_eq!(
        w.take(client),
        ["PUBLISH made x q0 id=0"],
        "its acknowledgement waits for what was made of it"
    );
    assert_eq!(tap.seen(), ["c again/1 x", "server made x", "its own"]);
    tap.keep(&mut w);
    assert_eq!(w.take(client), ["PUBACK 1 NoMatchingSubscribers"]);
}

/// The journal may have the message and the tap not: the process ended between the two.
#[test]
fn a_qos_2_message_of_a_session_from_before_is_given_to_the_tap_again() {
    let mut w = World::new(1);
    w.shards[0].keep_journal(0);
    let client = w.connect(V5, "c", true, &[]);
    w.publish(client, "kept/1", "x", ExactlyOnce);
    assert_eq!(w.take(client).len(), 1);
    let tap = Recorder::keeping("kept/");
    w.shards[0].set_tap(Box::new(tap.clone()));
    tap.wants(&mut w, Wants::MESSAGES);
    w.publish_with(client, "kept/1", "x", ExactlyOnce, false, 1, true, &[]);
    assert_eq!(w.take(client), [""; 0]);
    tap.keep(&mut w);
    assert_eq!(w.take(client), ["PUBREC 1 Success"]);
    assert_eq!(tap.seen(), ["c kept/1 x"]);
}
