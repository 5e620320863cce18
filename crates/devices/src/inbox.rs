//! A shard's side of the device log: the broker's inbox for messages of devices. Messages are collected per tick and
//! appended at its end. Publishers wait until they are durable.

use std::collections::VecDeque;
use std::sync::Arc;

use broker::Now;
use broker::inbox::{Inbox, InboxEvent, InboxKey, InboxMessage, InboxResult};
use journal::{LogBatch, Lsn};
use mqtt::{QoS, ReasonCode};
use platform::decode::{DeviceSubscription, Uplink};
use platform::ids::Uuid;

use crate::entry::{EntryKind, IngestEntry};
use crate::hub::Hub;
use crate::session_id::is_provisioning;
use crate::stats::DeviceCounters;

/// Largest batch. The rest of a tick goes into further batches.
const BATCH_BYTES: usize = 4 << 20;

pub struct DeviceInbox {
    hub: Arc<Hub>,
    shard: u16,
    batch: LogBatch,
    /// Number of finished ticks.
    ticks: u64,
    /// Appended batches that are not known to be durable, by tick.
    in_flight: VecDeque<(u64, Lsn)>,
    active: Vec<(Uuid, i64)>,
}

impl DeviceInbox {
    pub(crate) fn new(hub: Arc<Hub>, shard: u16) -> DeviceInbox {
        DeviceInbox {
            hub,
            shard,
            batch: LogBatch::new(),
            ticks: 0,
            in_flight: VecDeque::new(),
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

    fn over_limit(&self, entry: &IngestEntry<'_>) -> Option<InboxResult> {
        let over = self.hub.limits().check(entry)?;
        Some(InboxResult::Disconnect {
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

impl Drop for DeviceInbox {
    /// Appends the messages of an unfinished tick.
    fn drop(&mut self) {
        self.append();
    }
}

fn uuid(key: InboxKey) -> Uuid {
    Uuid(key.0.to_be_bytes())
}

impl Inbox for DeviceInbox {
    fn begin_tick(&mut self, _: Now) -> bool {
        self.hub.log().is_full()
    }

    fn end_tick(&mut self) {
        self.append();
        self.ticks += 1;
        if !self.active.is_empty() {
            self.hub.activity().record(self.active.drain(..));
        }
    }

    fn stored_up_to(&mut self) -> u64 {
        let committed = self.hub.log().committed();
        while self.in_flight.front().is_some_and(|(_, end)| *end <= committed) {
            self.in_flight.pop_front();
        }
        // Records in the batch belong to the tick that has not finished.
        self.in_flight.front().map_or(self.ticks, |(tick, _)| tick - 1)
    }

    fn message(&mut self, now: Now, message: &InboxMessage<'_>) -> InboxResult {
        let (session, received_ms) = (uuid(message.from), now.unix_ms as i64);
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
                    return InboxResult::Refused(ReasonCode::PayloadFormatInvalid);
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
                return InboxResult::Refused(ReasonCode::TopicNameInvalid);
            }
        }
        match message.qos {
            QoS::AtMostOnce => InboxResult::Accepted(None),
            _ => InboxResult::Accepted(Some(self.ticks + 1)),
        }
    }

    fn subscribe(&mut self, now: Now, client: InboxKey, filter: &str, qos: QoS) -> Option<QoS> {
        let session = uuid(client);
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

    fn unsubscribe(&mut self, now: Now, client: InboxKey, filter: &str) -> bool {
        let session = uuid(client);
        self.record_activity(session, now);
        self.subscription(session, filter)
            .is_some_and(|known| self.hub.sessions().unsubscribed(session, known))
    }

    fn acknowledged(&mut self, client: InboxKey, topic: &str, payload: &[u8]) {
        self.hub.rpcs().acknowledged(uuid(client), topic, payload);
    }

    fn connection_event(&mut self, now: Now, client: InboxKey, event: InboxEvent) {
        let session = uuid(client);
        let kind = match event {
            InboxEvent::Connected { is_v5 } => {
                self.hub.sessions().connected(session, self.shard, is_v5);
                EntryKind::Connected
            }
            InboxEvent::Disconnected => {
                self.hub.sessions().disconnected(session);
                EntryKind::Disconnected
            }
            InboxEvent::Pinged => {
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
