//! What a tap is told, and what waits for it.

#![allow(clippy::unwrap_used)]

mod world;

use std::sync::{Arc, Mutex};

use mqtt::ProtocolVersion::{V3_1_1, V5};
use mqtt::QoS::{AtLeastOnce, AtMostOnce, ExactlyOnce};
use tidewire_broker::tap::*;
use tidewire_broker::*;
use world::World;

#[derive(Default)]
struct Script {
    wants: Wants,
    /// Messages on topics below this are kept.
    keeps: &'static str,
    seen: Vec<String>,
    made: Vec<MadeMessage>,
    ticks: u64,
    kept: u64,
}

#[derive(Clone, Default)]
struct Recorder(Arc<Mutex<Script>>);

impl Tap for Recorder {
    fn begin_tick(&mut self, _: Now) -> Wants {
        self.0.lock().unwrap().wants
    }

    fn is_full(&mut self, _: Now, message: &TapMessage<'_>) -> bool {
        message.topic.starts_with(self.0.lock().unwrap().keeps)
    }

    fn message(&mut self, _: Now, message: &TapMessage<'_>) -> Tapped {
        let mut script = self.0.lock().unwrap();
        let payload = String::from_utf8_lossy(message.payload);
        let by = message.client.map_or("server", |client| client.client_id);
        script.seen.push(format!("{by} {} {payload}", message.topic));
        if message.topic.starts_with("again/") {
            script.made.push(MadeMessage {
                topic: "made".into(),
                payload: message.payload.into(),
                properties: Vec::new(),
                qos: AtLeastOnce,
                retain: false,
                mark: 7,
            });
        }
        if message.mark == 7 {
            script.seen.push("its own".into());
        }
        match message.topic.starts_with(script.keeps) {
            true => Tapped::Kept,
            false => Tapped::Passed,
        }
    }

    fn happened(&mut self, _: Now, client: TapClient<'_>, what: &Happening<'_>) {
        let what = match what {
            Happening::Connected { session_present, .. } => format!("connected {session_present}"),
            Happening::Disconnected { reason, .. } => format!("disconnected {}", reason.name()),
            Happening::ConnAck { reason, .. } => format!("connack {reason:?}"),
            Happening::Authorized { topic, is_allowed, .. } => format!("authorized {topic} {is_allowed}"),
            Happening::Subscribed { filter, qos } => format!("subscribed {filter} {}", *qos as u8),
            Happening::Unsubscribed { filter } => format!("unsubscribed {filter}"),
            Happening::Dropped { message, reason } => format!("dropped {} {}", message.topic, reason.name()),
        };
        self.0
            .lock()
            .unwrap()
            .seen
            .push(format!("{}: {what}", client.client_id));
    }

    fn take_made(&mut self) -> Vec<MadeMessage> {
        std::mem::take(&mut self.0.lock().unwrap().made)
    }

    fn end_tick(&mut self) -> u64 {
        let mut script = self.0.lock().unwrap();
        script.ticks += 1;
        script.ticks
    }

    fn kept(&mut self) -> u64 {
        self.0.lock().unwrap().kept
    }
}

impl Recorder {
    fn wants(&self, w: &mut World, wants: Wants) {
        self.0.lock().unwrap().wants = wants;
        w.shards[0].begin_tap_tick(w.now);
    }

    fn seen(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap().seen)
    }

    /// All that it has taken is kept.
    fn keep(&self, w: &mut World) {
        w.shards[0].end_tap_tick(w.now);
        assert!(w.shards[0].journal_batch().is_none(), "nothing here is durable");
        let mut script = self.0.lock().unwrap();
        script.kept = script.ticks;
        drop(script);
        w.shards[0].look_at_tap(w.now);
        w.settle();
    }
}

fn world(keeps: &'static str) -> (World, Recorder) {
    let mut w = World::new(1);
    let recorder = Recorder::default();
    recorder.0.lock().unwrap().keeps = keeps;
    w.shards[0].keep_journal(0);
    w.shards[0].set_tap(Box::new(recorder.clone()));
    (w, recorder)
}

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
    assert_eq!(tap.seen(), ["server later d"]);
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
    let tap = Recorder::default();
    tap.0.lock().unwrap().keeps = "kept/";
    w.shards[0].set_tap(Box::new(tap.clone()));
    tap.wants(&mut w, Wants::MESSAGES);
    w.publish_with(client, "kept/1", "x", ExactlyOnce, false, 1, true, &[]);
    assert_eq!(w.take(client), [""; 0]);
    tap.keep(&mut w);
    assert_eq!(w.take(client), ["PUBREC 1 Success"]);
    assert_eq!(tap.seen(), ["c kept/1 x"]);
}
