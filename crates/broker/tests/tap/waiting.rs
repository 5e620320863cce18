//! Tests that acknowledgements wait until the tap has persisted the message, and that no other packet waits.

use mqtt::PacketType::PubRel;
use mqtt::Property;
use mqtt::ProtocolVersion::{V3_1_1, V5};
use mqtt::QoS::{AtLeastOnce, ExactlyOnce};
use tidewire_broker::tap::*;
use tidewire_broker::*;

use super::recorder::{Recorder, world};
use crate::world::{PublishFields, World};

#[test]
fn slow_action_delays_only_its_messages() {
    let (mut w, tap) = world("kept/");
    tap.wants(&mut w, TapEventMask::MESSAGES);
    let patient = w.connect(V5, "patient", true, &[]);
    let quick = w.connect(V5, "quick", true, &[]);
    let other = w.connect(V3_1_1, "other", true, &[]);
    w.publish_with(patient, "slow/1", "x", AtLeastOnce, PublishFields::default());
    w.publish_with(
        patient,
        "kept/1",
        "x",
        AtLeastOnce,
        PublishFields {
            id: 2,
            ..PublishFields::default()
        },
    );
    w.publish_with(
        patient,
        "passed",
        "x",
        AtLeastOnce,
        PublishFields {
            id: 3,
            ..PublishFields::default()
        },
    );
    w.publish(quick, "kept/2", "x", AtLeastOnce);
    w.publish(other, "passed", "x", AtLeastOnce);
    assert_eq!(w.take(other), ["PUBACK 1 Success"]);
    tap.end_tick(&mut w);
    tap.keep_up_to(&mut w, [1, 0]);
    assert_eq!(w.take(quick), ["PUBACK 1 NoMatchingSubscribers"]);
    assert_eq!(w.take(patient), [""; 0], "in order [MQTT-4.6.0-2]");
    tap.keep_up_to(&mut w, [1, 1]);
    let acks = [1, 2, 3].map(|id| format!("PUBACK {id} NoMatchingSubscribers"));
    assert_eq!(w.take(patient), acks);
    assert!(!w.shards[0].inspect().taps().is_waiting());
}

#[test]
fn later_acknowledgement_also_waits_for_its_own_receipt() {
    let (mut w, tap) = world("kept/");
    tap.wants(&mut w, TapEventMask::MESSAGES);
    let client = w.connect(V5, "c", true, &[]);
    w.publish_with(client, "slow/1", "x", AtLeastOnce, PublishFields::default());
    tap.end_tick(&mut w);
    w.publish_with(
        client,
        "kept/1",
        "x",
        AtLeastOnce,
        PublishFields {
            id: 2,
            ..PublishFields::default()
        },
    );
    w.publish_with(
        client,
        "slow/2",
        "x",
        AtLeastOnce,
        PublishFields {
            id: 3,
            ..PublishFields::default()
        },
    );
    tap.end_tick(&mut w);
    tap.keep_up_to(&mut w, [0, 1]);
    assert_eq!(w.take(client), ["PUBACK 1 NoMatchingSubscribers"]);
    tap.keep_up_to(&mut w, [2, 1]);
    assert_eq!(w.take(client), ["PUBACK 2 NoMatchingSubscribers"]);
    tap.keep_up_to(&mut w, [2, 2]);
    assert_eq!(w.take(client), ["PUBACK 3 NoMatchingSubscribers"]);
}

/// A disk buffer is durable by itself.
#[test]
fn acknowledgements_wait_for_the_tap_without_a_journal() {
    let mut w = World::new(1);
    let tap = Recorder::keeping("kept/");
    w.shards[0].set_tap(Box::new(tap.clone()));
    tap.wants(&mut w, TapEventMask::MESSAGES);
    let client = w.connect(V5, "c", true, &[]);
    w.publish(client, "kept/1", "x", ExactlyOnce);
    assert_eq!(w.take(client), [""; 0]);
    tap.keep(&mut w);
    assert_eq!(w.take(client), ["PUBREC 1 NoMatchingSubscribers"]);
    w.ack(client, PubRel, 1);
    assert_eq!(w.take(client), ["PUBCOMP 1 Success"]);
}

#[test]
fn resent_qos_2_message_waits_for_the_same_receipt() {
    let mut w = World::new(1);
    let tap = Recorder::keeping("kept/");
    w.shards[0].set_tap(Box::new(tap.clone()));
    tap.wants(&mut w, TapEventMask::MESSAGES);
    let expiry = [Property::SessionExpiryInterval(100)];
    let client = w.connect(V5, "c", false, &expiry);
    w.publish(client, "kept/1", "x", ExactlyOnce);
    tap.end_tick(&mut w);
    w.cut(client);
    let client = w.connect(V5, "c", false, &expiry);
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
    assert_eq!(tap.seen(), ["c kept/1 x"], "once");
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
    assert_eq!(w.take(client), ["PUBREC 1 Success"]);
}

#[test]
fn acknowledgements_of_a_closed_connection_are_dropped() {
    let (mut w, tap) = world("kept/");
    tap.wants(&mut w, TapEventMask::MESSAGES);
    let gone = w.connect(V5, "c", true, &[]);
    for n in 1..=3 {
        w.publish_with(
            gone,
            "kept/1",
            "x",
            AtLeastOnce,
            PublishFields {
                id: n,
                ..PublishFields::default()
            },
        );
    }
    w.cut(gone);
    let next = w.connect(V5, "d", true, &[]);
    tap.keep(&mut w);
    assert_eq!(w.take(next), [""; 0]);
    assert!(!w.shards[0].inspect().taps().is_waiting());
}

/// A republished message may match another rule with a slow action.
#[test]
fn offloaded_result_is_durable_when_its_messages_are() {
    let (mut w, tap) = world("kept/");
    tap.wants(&mut w, TapEventMask::MESSAGES);
    let subscriber = w.connect(V5, "subscriber", true, &[]);
    w.subscribe(subscriber, "#", AtLeastOnce);
    w.take(subscriber);
    let (told, hears) = std::sync::mpsc::channel();
    for topic in ["passed", "kept/1"] {
        let told = told.clone();
        tap.offload(topic, move || told.send(topic).unwrap());
    }
    assert!(w.shards[0].inspect().taps().is_offloading());
    w.shards[0].tap(w.now).take_offloaded();
    w.settle();
    assert_eq!(w.take(subscriber).len(), 2, "both messages are published");
    assert_eq!(hears.try_iter().collect::<Vec<_>>(), ["passed"]);
    tap.keep(&mut w);
    assert_eq!(hears.try_iter().collect::<Vec<_>>(), ["kept/1"]);
}

/// The tap completes the receipt of the first message in the callback of a result.
#[test]
fn acknowledgement_follows_a_result_without_another_tick() {
    let (mut w, tap) = world("kept/");
    tap.wants(&mut w, TapEventMask::MESSAGES);
    let client = w.connect(V5, "c", true, &[]);
    w.publish(client, "slow/1", "x", AtLeastOnce);
    tap.end_tick(&mut w);
    let script = std::sync::Arc::clone(&tap.0);
    tap.offload("kept/1", move || script.lock().unwrap().keep_all());
    w.shards[0].tap(w.now).take_offloaded();
    tap.end_tick(&mut w);
    assert_eq!(w.take(client), [""; 0]);
    // The republished message is durable now.
    tap.keep_up_to(&mut w, [2, 0]);
    assert_eq!(w.take(client), ["PUBACK 1 NoMatchingSubscribers"]);
}

#[test]
fn outside_publisher_is_notified_when_the_message_is_durable() {
    let (mut w, tap) = world("kept/");
    tap.wants(&mut w, TapEventMask::MESSAGES);
    let (told, hears) = std::sync::mpsc::channel();
    for topic in ["slow/1", "kept/1", "passed"] {
        tap.wants(&mut w, TapEventMask::MESSAGES);
        let message = ServerMessage {
            topic,
            qos: AtLeastOnce,
            ..ServerMessage::default()
        };
        w.shards[0].server_publisher(w.now).publish(message);
        let told = told.clone();
        w.shards[0]
            .server_publisher(w.now)
            .call_when_stored(Box::new(move || told.send(topic).unwrap()));
    }
    let heard = |hears: &std::sync::mpsc::Receiver<&'static str>| hears.try_iter().collect::<Vec<_>>();
    assert_eq!(heard(&hears), ["passed"]);
    tap.end_tick(&mut w);
    tap.keep_up_to(&mut w, [1, 0]);
    assert_eq!(heard(&hears), ["kept/1"]);
    tap.keep_up_to(&mut w, [1, 1]);
    assert_eq!(heard(&hears), ["slow/1"]);
}
