//! A shard's side of the log: what devices say is gathered per tick and appended at its end; publishers wait until it is kept. Everything
//! else goes to the tap of rules, which never sees devices.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use broker::tap::{
    DeviceHappening, DeviceMessage, DeviceTaken, Happening, MadeMessage, Receipt, Tap, TapClient, TapMessage, Tapped,
    Wants,
};
use broker::{DeviceKey, Now};
use journal::{Batch, Lsn};
use mqtt::{QoS, ReasonCode};
use platform::decode::{Subscription, Uplink};
use platform::ids::Uuid;

use crate::entry::{Entry, Kind};
use crate::hub::{Hub, is_provisioning, lock};
use crate::stats::Counters;

/// The lane of receipts; those of rules are far below.
const LANE: u16 = u16::MAX;

/// Of one tick; the rest of a tick goes into further batches.
const BATCH_BYTES: usize = 4 << 20;

pub struct DeviceTap {
    hub: Arc<Hub>,
    rules: Box<dyn Tap>,
    shard: u16,
    batch: Batch,
    /// Of ticks that have ended.
    ticks: u64,
    /// What was appended and is not known to be kept, by tick.
    in_flight: VecDeque<(u64, Lsn)>,
    is_full: bool,
    heard: Vec<(Uuid, i64)>,
}

impl DeviceTap {
    pub(crate) fn new(hub: Arc<Hub>, shard: u16, rules: Box<dyn Tap>) -> DeviceTap {
        DeviceTap {
            hub,
            rules,
            shard,
            batch: Batch::new(),
            ticks: 0,
            in_flight: VecDeque::new(),
            is_full: false,
            heard: Vec::new(),
        }
    }

    fn put(&mut self, entry: &Entry<'_>) {
        self.batch.record(|out| entry.write(out));
        if self.batch.len() >= BATCH_BYTES {
            self.append();
        }
    }

    fn append(&mut self) {
        if self.batch.is_empty() {
            return;
        }
        Counters::add(&self.hub.counters.appended, u64::from(self.batch.records()));
        let end = self.hub.log.append(&mut self.batch);
        self.in_flight.push_back((self.ticks + 1, end));
    }

    fn over_limit(&self, entry: &Entry<'_>) -> Option<DeviceTaken> {
        if !self.hub.limits.are_set() {
            return None;
        }
        let over = self.hub.over_limit(entry)?;
        Some(DeviceTaken::Ends {
            reason: over.reason(),
            because: over.because(),
        })
    }

    /// That of the device interface, or of the device's profile.
    fn subscription(&self, session: Uuid, filter: &str) -> Option<Subscription> {
        Subscription::parse(filter).or_else(|| self.hub.own_subscription(session, filter))
    }

    fn heard(&mut self, session: Uuid, now: Now) {
        if !is_provisioning(session) {
            self.heard.push((session, now.unix_ms as i64));
        }
    }
}

impl Drop for DeviceTap {
    /// What was said in a tick that did not end.
    fn drop(&mut self) {
        self.append();
    }
}

fn uuid(key: DeviceKey) -> Uuid {
    Uuid(key.0.to_be_bytes())
}

impl Tap for DeviceTap {
    fn begin_tick(&mut self, now: Now) -> Wants {
        let wants = self.rules.begin_tick(now);
        self.is_full = self.hub.log.is_full();
        match self.is_full {
            true => wants | Wants::TO_BE_ASKED,
            false => wants,
        }
    }

    fn is_full(&mut self, now: Now, message: &TapMessage<'_>) -> bool {
        self.rules.is_full(now, message)
    }

    fn message(&mut self, now: Now, message: &TapMessage<'_>) -> Tapped {
        self.rules.message(now, message)
    }

    fn happened(&mut self, now: Now, client: TapClient<'_>, what: &Happening<'_>) {
        self.rules.happened(now, client, what);
    }

    fn join(&mut self, one: Receipt, other: Receipt) -> Receipt {
        self.rules.join(one, other)
    }

    fn take_made(&mut self) -> Vec<MadeMessage> {
        self.rules.take_made()
    }

    fn end_tick(&mut self) {
        self.rules.end_tick();
        self.append();
        self.ticks += 1;
        if !self.heard.is_empty() {
            self.hub.heard(&mut self.heard);
        }
    }

    fn kept(&mut self, lane: u16) -> u64 {
        if lane != LANE {
            return self.rules.kept(lane);
        }
        let committed = self.hub.log.committed();
        while self.in_flight.front().is_some_and(|(_, end)| *end <= committed) {
            self.in_flight.pop_front();
        }
        // What is still in the batch is of the tick that has not ended.
        self.in_flight.front().map_or(self.ticks, |(tick, _)| tick - 1)
    }

    fn holds_devices(&mut self) -> bool {
        self.is_full
    }

    fn device_message(&mut self, now: Now, message: &DeviceMessage<'_>) -> DeviceTaken {
        let (session, received_ms) = (uuid(message.device), now.unix_ms as i64);
        let uplink = Uplink::parse(message.topic);
        let may = |uplink: &Uplink| is_provisioning(session) == matches!(uplink, Uplink::Provision);
        let mut of_chunk = Vec::new();
        let entry = uplink.filter(may).and_then(|uplink| match uplink {
            Uplink::Chunk { .. } => Entry::of_chunk(uplink, session, received_ms, message.payload, &mut of_chunk),
            uplink => Entry::of_uplink(uplink, session, received_ms, message.payload),
        });
        match entry {
            Some(entry) => {
                if let Some(over) = self.over_limit(&entry) {
                    return over;
                }
                self.put(&entry);
                if message.is_v5 && message.qos != QoS::AtMostOnce && !self.hub.is_understood(&entry) {
                    // In the log all the same: what follows of it is the same as before MQTT 5.
                    return DeviceTaken::Refused(ReasonCode::PayloadFormatInvalid);
                }
            }
            None if uplink.is_none() && !is_provisioning(session) && self.hub.has_own_topics.load(Relaxed) => {
                let mut body = message.topic.as_bytes().to_vec();
                body.push(0);
                body.extend_from_slice(message.payload);
                let entry = Entry::new(Kind::OwnTopic, session, received_ms, &body);
                if let Some(over) = self.over_limit(&entry) {
                    return over;
                }
                self.put(&entry);
            }
            None => {
                Counters::add(&self.hub.counters.unknown_topics, 1);
                return DeviceTaken::Refused(ReasonCode::TopicNameInvalid);
            }
        }
        match message.qos {
            QoS::AtMostOnce => DeviceTaken::Taken(None),
            _ => DeviceTaken::Taken(Some(Receipt::new(LANE, self.ticks + 1))),
        }
    }

    fn device_subscribe(&mut self, now: Now, device: DeviceKey, filter: &str, qos: QoS) -> Option<QoS> {
        let session = uuid(device);
        let subscription = self.subscription(session, filter)?;
        if is_provisioning(session) != matches!(subscription, Subscription::Provision) {
            return None;
        }
        let granted = qos.min(QoS::AtLeastOnce);
        self.hub.sessions.subscribed(session, subscription, granted);
        if matches!(subscription, Subscription::RpcRequest(_) | Subscription::GatewayRpc) {
            self.hub.can_be_called(session);
        }
        self.heard(session, now);
        Some(granted)
    }

    fn device_unsubscribe(&mut self, now: Now, device: DeviceKey, filter: &str) -> bool {
        let session = uuid(device);
        self.heard(session, now);
        self.subscription(session, filter)
            .is_some_and(|known| self.hub.sessions.unsubscribed(session, known))
    }

    fn device_acked(&mut self, _: Now, device: DeviceKey, topic: &str, payload: &[u8]) {
        if let Some(report) = self.hub.call_acked(uuid(device), topic, payload) {
            lock(&self.hub.reports).push(report);
        }
    }

    fn device_happened(&mut self, now: Now, device: DeviceKey, what: DeviceHappening) {
        let session = uuid(device);
        let kind = match what {
            DeviceHappening::Connected { is_v5 } => {
                self.hub.sessions.connected(session, self.shard, is_v5);
                Kind::Connected
            }
            DeviceHappening::Disconnected => {
                self.hub.sessions.disconnected(session);
                Kind::Disconnected
            }
            DeviceHappening::Pinged => {
                if self.hub.options.pings_are_activity {
                    self.heard(session, now);
                }
                return;
            }
        };
        if !is_provisioning(session) {
            self.put(&Entry::new(kind, session, now.unix_ms as i64, &[]));
        }
    }
}
