//! A shard's side of the device log. Device messages are collected per tick and appended at its end. Publishers wait
//! until they are durable. All other messages go to the tap of the rules, which never sees device messages.

use std::collections::VecDeque;
use std::sync::Arc;

use broker::tap::{
    DeviceConnectionEvent, DeviceMessage, DeviceMessageResult, OffloadedResult, Receipt, Tap, TapClient, TapEvent,
    TapEventMask, TapMessage, TapPublication, TapResult,
};
use broker::{DeviceKey, MessageLimits, Now};
use journal::{LogBatch, Lsn};
use mqtt::{QoS, ReasonCode};
use platform::decode::{DeviceSubscription, Uplink};
use platform::ids::Uuid;

use crate::entry::{EntryKind, IngestEntry};
use crate::hub::Hub;
use crate::session_id::is_provisioning;
use crate::stats::DeviceCounters;

/// Lane of the device log's receipts. Lanes of rules have far lower numbers.
const LANE: u16 = u16::MAX;

/// Largest batch. The rest of a tick goes into further batches.
const BATCH_BYTES: usize = 4 << 20;

pub struct DeviceTap {
    hub: Arc<Hub>,
    rules: Box<dyn Tap>,
    shard: u16,
    batch: LogBatch,
    /// Number of finished ticks.
    ticks: u64,
    /// Appended batches that are not known to be durable, by tick.
    in_flight: VecDeque<(u64, Lsn)>,
    is_full: bool,
    active: Vec<(Uuid, i64)>,
}

impl DeviceTap {
    pub(crate) fn new(hub: Arc<Hub>, shard: u16, rules: Box<dyn Tap>) -> DeviceTap {
        DeviceTap {
            hub,
            rules,
            shard,
            batch: LogBatch::new(),
            ticks: 0,
            in_flight: VecDeque::new(),
            is_full: false,
            active: Vec::new(),
        }
    }

    fn put(&mut self, entry: &IngestEntry<'_>) {
        self.batch.record(|out| entry.write(out));
        if self.batch.len() >= BATCH_BYTES {
            self.append();
        }
    }

    fn append(&mut self) {
        if self.batch.is_empty() {
            return;
        }
        let end = self.hub.log().append(&mut self.batch);
        self.in_flight.push_back((self.ticks + 1, end));
    }

    fn over_limit(&self, entry: &IngestEntry<'_>) -> Option<DeviceMessageResult> {
        let over = self.hub.limits().check(entry)?;
        Some(DeviceMessageResult::Disconnect {
            reason: over.reason(),
            detail: over.description(),
        })
    }

    /// Returns the subscription of the device API, or of the device's profile.
    fn subscription(&self, session: Uuid, filter: &str) -> Option<DeviceSubscription> {
        DeviceSubscription::parse(filter).or_else(|| self.hub.transports().own_subscription(session, filter))
    }

    fn record_activity(&mut self, session: Uuid, now: Now) {
        if !is_provisioning(session) {
            self.active.push((session, now.unix_ms as i64));
        }
    }
}

impl Drop for DeviceTap {
    /// Appends the messages of an unfinished tick.
    fn drop(&mut self) {
        self.append();
    }
}

fn uuid(key: DeviceKey) -> Uuid {
    Uuid(key.0.to_be_bytes())
}

impl Tap for DeviceTap {
    fn set_message_limits(&mut self, limits: MessageLimits) {
        self.rules.set_message_limits(limits);
    }

    fn begin_tick(&mut self, now: Now) -> TapEventMask {
        let wants = self.rules.begin_tick(now);
        self.is_full = self.hub.log().is_full();
        match self.is_full {
            true => wants | TapEventMask::CHECK_FULL,
            false => wants,
        }
    }

    fn is_full(&mut self, now: Now, message: &TapMessage<'_>) -> bool {
        self.rules.is_full(now, message)
    }

    fn message(&mut self, now: Now, message: &TapMessage<'_>) -> TapResult {
        self.rules.message(now, message)
    }

    fn client_event(&mut self, now: Now, client: TapClient<'_>, what: &TapEvent<'_>) {
        self.rules.client_event(now, client, what);
    }

    fn join(&mut self, one: Receipt, other: Receipt) -> Receipt {
        self.rules.join(one, other)
    }

    fn take_publications(&mut self) -> Vec<TapPublication> {
        self.rules.take_publications()
    }

    fn end_tick(&mut self) {
        self.rules.end_tick();
        self.append();
        self.ticks += 1;
        if !self.active.is_empty() {
            self.hub.activity().record(self.active.drain(..));
        }
    }

    fn stored_up_to(&mut self, lane: u16) -> u64 {
        if lane != LANE {
            return self.rules.stored_up_to(lane);
        }
        let committed = self.hub.log().committed();
        while self.in_flight.front().is_some_and(|(_, end)| *end <= committed) {
            self.in_flight.pop_front();
        }
        // Records in the batch belong to the tick that has not finished.
        self.in_flight.front().map_or(self.ticks, |(tick, _)| tick - 1)
    }

    fn is_offloading(&self) -> bool {
        self.rules.is_offloading()
    }

    fn take_offloaded(&mut self, now: Now) -> Option<OffloadedResult> {
        self.rules.take_offloaded(now)
    }

    fn is_full_for_devices(&mut self) -> bool {
        self.is_full
    }

    fn device_message(&mut self, now: Now, message: &DeviceMessage<'_>) -> DeviceMessageResult {
        let (session, received_ms) = (uuid(message.device), now.unix_ms as i64);
        let uplink = Uplink::parse(message.topic);
        let may = |uplink: &Uplink| is_provisioning(session) == matches!(uplink, Uplink::Provision);
        let mut of_chunk = Vec::new();
        let entry = uplink.filter(may).and_then(|uplink| match uplink {
            Uplink::Chunk { .. } => IngestEntry::of_chunk(uplink, session, received_ms, message.payload, &mut of_chunk),
            uplink => IngestEntry::of_uplink(uplink, session, received_ms, message.payload),
        });
        match entry {
            Some(entry) => {
                if let Some(over) = self.over_limit(&entry) {
                    return over;
                }
                self.put(&entry);
                if message.is_v5 && message.qos != QoS::AtMostOnce && !self.hub.transports().is_decodable(&entry) {
                    // The message is logged nevertheless, so that its effects are the same as before MQTT 5.
                    return DeviceMessageResult::Refused(ReasonCode::PayloadFormatInvalid);
                }
            }
            None if uplink.is_none() && !is_provisioning(session) && self.hub.transports().are_set() => {
                let mut body = message.topic.as_bytes().to_vec();
                body.push(0);
                body.extend_from_slice(message.payload);
                let entry = IngestEntry::new(EntryKind::OwnTopic, session, received_ms, &body);
                if let Some(over) = self.over_limit(&entry) {
                    return over;
                }
                self.put(&entry);
            }
            None => {
                DeviceCounters::add(&self.hub.counters().unknown_topics, 1);
                return DeviceMessageResult::Refused(ReasonCode::TopicNameInvalid);
            }
        }
        match message.qos {
            QoS::AtMostOnce => DeviceMessageResult::Accepted(None),
            _ => DeviceMessageResult::Accepted(Some(Receipt::new(LANE, self.ticks + 1))),
        }
    }

    fn device_subscribe(&mut self, now: Now, device: DeviceKey, filter: &str, qos: QoS) -> Option<QoS> {
        let session = uuid(device);
        let subscription = self.subscription(session, filter)?;
        if is_provisioning(session) != matches!(subscription, DeviceSubscription::Provision) {
            return None;
        }
        let granted = qos.min(QoS::AtLeastOnce);
        self.hub.sessions().subscribed(session, subscription, granted);
        if matches!(
            subscription,
            DeviceSubscription::RpcRequest(_) | DeviceSubscription::GatewayRpc
        ) {
            self.hub.rpcs().add_session(session);
        }
        self.record_activity(session, now);
        Some(granted)
    }

    fn device_unsubscribe(&mut self, now: Now, device: DeviceKey, filter: &str) -> bool {
        let session = uuid(device);
        self.record_activity(session, now);
        self.subscription(session, filter)
            .is_some_and(|known| self.hub.sessions().unsubscribed(session, known))
    }

    fn device_acked(&mut self, _: Now, device: DeviceKey, topic: &str, payload: &[u8]) {
        self.hub.rpcs().acknowledged(uuid(device), topic, payload);
    }

    fn device_event(&mut self, now: Now, device: DeviceKey, what: DeviceConnectionEvent) {
        let session = uuid(device);
        let kind = match what {
            DeviceConnectionEvent::Connected { is_v5 } => {
                self.hub.sessions().connected(session, self.shard, is_v5);
                EntryKind::Connected
            }
            DeviceConnectionEvent::Disconnected => {
                self.hub.sessions().disconnected(session);
                EntryKind::Disconnected
            }
            DeviceConnectionEvent::Pinged => {
                if self.hub.options().pings_are_activity {
                    self.record_activity(session, now);
                }
                return;
            }
        };
        if !is_provisioning(session) {
            self.put(&IngestEntry::new(kind, session, now.unix_ms as i64, &[]));
        }
    }
}
