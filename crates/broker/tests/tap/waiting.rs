//! Who waits for what a tap has to keep, and for nothing else.

use mqtt::PacketType::PubRel;
use mqtt::Property;
use mqtt::ProtocolVersion::{V3_1_1, V5};
use mqtt::QoS::{AtLeastOnce, ExactlyOnce};
use tidewire_broker::tap::*;
use tidewire_broker::*;

use crate::recorder::{Recorder, world};
use crate::world::World;

#[test]
fn only_those_whose_message_waits_for_a_slow_action_wait_for_it() {
    let (mut w, tap) = world("kept/");
    tap.wants(&mut w, Wants::MESSAGES);
    let patient = w.connect(V5, "patient", true, &[]);
    let quick = w.connect(V5, "quick", true, &[]);
    let other = w.connect(V3_1_1, "other", true, &[]);
    w.publish_with(patient, "slow/1", "x", AtLeastOnce, false, 1, false, &[]);
    w.publish_with(patient, "kept/1", "x", AtLeastOnce, false, 2, false, &[]);
    w.publish_with(patient, "passed", "x", AtLeastOnce, false, 3, false, &[]);
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
    assert!(!w.shards[0].is_waiting_for_tap());
}

#[test]
fn what_is_behind_a_slow_one_waits_for_its_own_receipt_too() {
    let (mut w, tap) = world("kept/");
    tap.wants(&mut w, Wants::MESSAGES);
    let client = w.connect(V5, "c", true, &[]);
    w.publish_with(client, "slow/1", "x", AtLeastOnce, false, 1, false, &[]);
    tap.end_tick(&mut w);
    w.publish_with(client, "kept/1", "x", AtLeastOnce, false, 2, false, &[]);
    w.publish_with(client, "slow/2", "x", AtLeastOnce, false, 3, false, &[]);
    tap.end_tick(&mut w);
    tap.keep_up_to(&mut w, [0, 1]);
    assert_eq!(w.take(client), ["PUBACK 1 NoMatchingSubscribers"]);
    tap.keep_up_to(&mut w, [2, 1]);
    assert_eq!(w.take(client), ["PUBACK 2 NoMatchingSubscribers"]);
    tap.keep_up_to(&mut w, [2, 2]);
    assert_eq!(w.take(client), ["PUBACK 3 NoMatchingSubscribers"]);
}

/// A buffer on the disk is a promise of its own.
#[test]
fn without_a_journal_acknowledgements_wait_for_the_tap_as_well() {
    let mut w = World::new(1);
    let tap = Recorder::keeping("kept/");
    w.shards[0].set_tap(Box::new(tap.clone()));
    tap.wants(&mut w, Wants::MESSAGES);
    let client = w.connect(V5, "c", true, &[]);
    w.publish(client, "kept/1", "x", ExactlyOnce);
    assert_eq!(w.take(client), [""; 0]);
    tap.keep(&mut w);
    assert_eq!(w.take(client), ["PUBREC 1 NoMatchingSubscribers"]);
    w.ack(client, PubRel, 1);
    assert_eq!(w.take(client), ["PUBCOMP 1 Success"]);
}

#[test]
fn a_qos_2_message_that_comes_again_waits_for_what_it_waited_for() {
    let mut w = World::new(1);
    let tap = Recorder::keeping("kept/");
    w.shards[0].set_tap(Box::new(tap.clone()));
    tap.wants(&mut w, Wants::MESSAGES);
    let expiry = [Property::SessionExpiryInterval(100)];
    let client = w.connect(V5, "c", false, &expiry);
    w.publish(client, "kept/1", "x", ExactlyOnce);
    tap.end_tick(&mut w);
    w.cut(client);
    let client = w.connect(V5, "c", false, &expiry);
    w.publish_with(client, "kept/1", "x", ExactlyOnce, false, 1, true, &[]);
    assert_eq!(w.take(client), [""; 0]);
    tap.keep(&mut w);
    assert_eq!(w.take(client), ["PUBREC 1 Success"]);
    assert_eq!(tap.seen(), ["c kept/1 x"], "once");
    w.publish_with(client, "kept/1", "x", ExactlyOnce, false, 1, true, &[]);
    assert_eq!(w.take(client), ["PUBREC 1 Success"]);
}

#[test]
fn acknowledgements_of_a_connection_that_is_gone_are_forgotten() {
    let (mut w, tap) = world("kept/");
    tap.wants(&mut w, Wants::MESSAGES);
    let gone = w.connect(V5, "c", true, &[]);
    for n in 1..=3 {
        w.publish_with(gone, "kept/1", "x", AtLeastOnce, false, n, false, &[]);
    }
    w.cut(gone);
    let next = w.connect(V5, "d", true, &[]);
    tap.keep(&mut w);
    assert_eq!(w.take(next), [""; 0]);
    assert!(!w.shards[0].is_waiting_for_tap());
}

#[test]
fn whoever_publishes_from_outside_hears_when_it_is_kept() {
    let (mut w, tap) = world("kept/");
    tap.wants(&mut w, Wants::MESSAGES);
    let (told, hears) = std::sync::mpsc::channel();
    for topic in ["slow/1", "kept/1", "passed"] {
        tap.wants(&mut w, Wants::MESSAGES);
        let message = ServerMessage {
            topic,
            qos: AtLeastOnce,
            ..ServerMessage::default()
        };
        w.shards[0].publish_from_server(w.now, message);
        let told = told.clone();
        w.shards[0].when_kept(Box::new(move || told.send(topic).unwrap()));
    }
    let heard = |hears: &std::sync::mpsc::Receiver<&'static str>| hears.try_iter().collect::<Vec<_>>();
    assert_eq!(heard(&hears), ["passed"]);
    tap.end_tick(&mut w);
    tap.keep_up_to(&mut w, [1, 0]);
    assert_eq!(heard(&hears), ["kept/1"]);
    tap.keep_up_to(&mut w, [1, 1]);
    assert_eq!(heard(&hears), ["slow/1"]);
}
