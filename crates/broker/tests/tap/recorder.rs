//! A tap that records the events that it receives.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use mqtt::QoS::AtLeastOnce;
use tidewire_broker::tap::*;
use tidewire_broker::*;

use crate::world::World;

pub const BOTH: u16 = 0;
const FAST: u16 = 1;
/// Used for messages on topics below `slow/`.
const SLOW: u16 = 2;

/// Describes the message of a delivery: its publisher, topic, payload, QoS and flags.
fn whence(message: &TapMessage<'_>) -> String {
    let known = match (message.id, message.received_at_ms) {
        (0, 0) => "?",
        _ => message.client.map_or("server", |client| client.client_id),
    };
    let user = message.client.and_then(|client| client.user_name).unwrap_or("-");
    let payload = String::from_utf8_lossy(message.payload);
    let flags = [(message.retain, " retained"), (message.is_duplicate, " again")];
    let flags: String = flags.iter().filter(|flag| flag.0).map(|flag| flag.1).collect();
    format!(
        "{known}/{user} {} {payload} q{}{flags}",
        message.topic, message.qos as u8
    )
}

#[derive(Default)]
pub struct Script {
    pub wants: TapEventMask,
    /// The tap persists messages on topics below this prefix.
    pub keeps: &'static str,
    seen: Vec<String>,
    /// Message IDs, in the order of the events.
    pub ids: Vec<u128>,
    made: Vec<TapPublication>,
    /// Results of work on other threads, each with a message that it publishes.
    offloaded: VecDeque<(OffloadedResult, TapPublication)>,
    ticks: u64,
    /// Progress of the two lanes.
    kept: [u64; 2],
}

impl Script {
    pub fn keep_all(&mut self) {
        self.kept = [self.ticks; 2];
    }
}

#[derive(Clone, Default)]
pub struct Recorder(pub Arc<Mutex<Script>>);

impl Tap for Recorder {
    fn begin_tick(&mut self, _: Now) -> TapEventMask {
        self.0.lock().unwrap().wants
    }

    fn is_full(&mut self, _: Now, message: &TapMessage<'_>) -> bool {
        message.topic.starts_with(self.0.lock().unwrap().keeps)
    }

    fn message(&mut self, _: Now, message: &TapMessage<'_>) -> TapResult {
        let mut script = self.0.lock().unwrap();
        script.ids.push(message.id);
        let payload = String::from_utf8_lossy(message.payload);
        let by = message.client.map_or("server", |client| client.client_id);
        script.seen.push(format!("{by} {} {payload}", message.topic));
        if message.topic.starts_with("again/") {
            script.made.push(TapPublication {
                topic: "made".into(),
                payload: message.payload.into(),
                properties: Vec::new(),
                qos: AtLeastOnce,
                retain: false,
                expiry_s: None,
                mark: 7,
            });
        }
        if message.mark == 7 {
            script.seen.push("its own".into());
        }
        let number = script.ticks + 1;
        if message.topic.starts_with("slow/") {
            return TapResult::AckWhenStored(Receipt::new(SLOW, number));
        }
        match message.topic.starts_with(script.keeps) {
            true => TapResult::AckWhenStored(Receipt::new(FAST, number)),
            false => TapResult::AckNow,
        }
    }

    fn client_event(&mut self, _: Now, client: TapClient<'_>, what: &TapEvent<'_>) {
        let id = what.message().map(|message| message.id);
        self.0.lock().unwrap().ids.extend(id);
        let what = match what {
            TapEvent::Connected { session_present, .. } => format!("connected {session_present}"),
            TapEvent::Disconnected { reason, .. } => format!("disconnected {}", reason.name()),
            TapEvent::ConnAck { reason, .. } => format!("connack {reason:?}"),
            TapEvent::Authorized { topic, is_allowed, .. } => format!("authorized {topic} {is_allowed}"),
            TapEvent::Subscribed { filter, qos, .. } => format!("subscribed {filter} {}", *qos as u8),
            TapEvent::Unsubscribed { filter, .. } => format!("unsubscribed {filter}"),
            TapEvent::Authenticated {
                reason,
                is_superuser,
                is_anonymous,
            } => format!("authenticated {reason:?} {is_superuser} {is_anonymous}"),
            TapEvent::Ping { keep_alive_s, .. } => format!("ping {keep_alive_s}"),
            TapEvent::Dropped { message, reason } => format!("dropped {} {}", message.topic, reason.name()),
            TapEvent::Delivered { message } => format!("delivered {}", whence(message)),
            TapEvent::Acked { message, properties } => format!("acked {} {}", whence(message), properties.len()),
            TapEvent::DeliveryDropped { message, reason } => {
                let message = message.as_ref().map_or("what the journal has".to_owned(), whence);
                format!("missed {message} {}", reason.name())
            }
        };
        self.0
            .lock()
            .unwrap()
            .seen
            .push(format!("{}: {what}", client.client_id));
    }

    fn take_publications(&mut self) -> Vec<TapPublication> {
        std::mem::take(&mut self.0.lock().unwrap().made)
    }

    fn is_offloading(&self) -> bool {
        !self.0.lock().unwrap().offloaded.is_empty()
    }

    fn take_offloaded(&mut self, _: Now) -> Option<OffloadedResult> {
        let mut script = self.0.lock().unwrap();
        let (result, made) = script.offloaded.pop_front()?;
        script.made.push(made);
        Some(result)
    }

    fn join(&mut self, one: Receipt, other: Receipt) -> Receipt {
        Receipt::new(BOTH, one.number().max(other.number()))
    }

    fn end_tick(&mut self) {
        self.0.lock().unwrap().ticks += 1;
    }

    fn stored_up_to(&mut self, lane: u16) -> u64 {
        let kept = self.0.lock().unwrap().kept;
        match lane {
            FAST => kept[0],
            SLOW => kept[1],
            _ => kept[0].min(kept[1]),
        }
    }
}

impl Recorder {
    /// Sets the prefix of the topics whose messages the tap persists.
    pub fn keeping(keeps: &'static str) -> Recorder {
        let recorder = Recorder::default();
        recorder.0.lock().unwrap().keeps = keeps;
        recorder
    }

    pub fn wants(&self, w: &mut World, wants: TapEventMask) {
        self.0.lock().unwrap().wants = wants;
        w.shards[0].begin_tick(w.now);
    }

    pub fn seen(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap().seen)
    }

    /// Completes work on another thread, which publishes a message on this topic.
    pub fn offload(&self, topic: &str, when_durable: impl FnOnce() + Send + 'static) {
        let made = TapPublication {
            topic: topic.into(),
            payload: b"made".into(),
            properties: Vec::new(),
            qos: AtLeastOnce,
            retain: false,
            expiry_s: None,
            mark: 9,
        };
        let result = OffloadedResult {
            receipt: None,
            on_durable: Some(Box::new(when_durable)),
        };
        self.0.lock().unwrap().offloaded.push_back((result, made));
    }

    /// Ends the tick.
    pub fn end_tick(&self, w: &mut World) {
        w.shards[0].tap(w.now).end_tick();
        if let Some(batch) = w.shards[0].journal(w.now).batch() {
            assert!(batch.is_empty(), "these tests write no durable records");
        }
    }

    /// Marks all messages that the tap has accepted as persisted.
    pub fn keep(&self, w: &mut World) {
        self.end_tick(w);
        let ticks = self.0.lock().unwrap().ticks;
        self.keep_up_to(w, [ticks, ticks]);
    }

    /// Sets the progress of the lanes.
    pub fn keep_up_to(&self, w: &mut World, kept: [u64; 2]) {
        self.0.lock().unwrap().kept = kept;
        w.shards[0].tap(w.now).run_stored_actions();
        w.settle();
    }
}

/// One shard with a journal and a tap.
pub fn world(keeps: &'static str) -> (World, Recorder) {
    let mut w = World::new(1);
    let recorder = Recorder::keeping(keeps);
    w.shards[0].start_journaling(0);
    w.shards[0].set_tap(Box::new(recorder.clone()));
    (w, recorder)
}
