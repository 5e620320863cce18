//! Device sessions: they share the listeners with other clients, but have a namespace of their own.
//!
//! Messages of a device go only to the tap. The tap also handles its subscriptions, and the device receives the
//! messages of [`Shard::send_to_device`]. A device has no will, no retained messages and no access rules, and its
//! session ends with the connection; the component behind the tap stores all persistent state. The authenticator
//! assigns the client id, which identifies the device. So a device has one connection at a time, and one device cannot
//! take over another's session.

use mqtt::{Connect, ProtocolVersion, Publish, QoS, ReasonCode, Subscribe, Unsubscribe};

use crate::accept::AcceptedClient;
use crate::access::{DeviceKey, IdentifiedDevice, SessionAccess, SubscribeAccess};
use crate::deliver::{DeliverResult, DeliveryOptions, EncodedForms, ShardCore};
use crate::durable::journaling::PendingCommits;
use crate::effect::{DisconnectReason, DropReason, Now};
use crate::message::Publication;
use crate::outgoing::Delivery;
use crate::session::Session;
use crate::shard::Shard;
use crate::slots::{ConnSlot, SessionSlot};
use crate::tap::{DeviceConnectionEvent, DeviceMessage, DeviceMessageResult, Tap};

/// Bytes of messages that a device has not received or acknowledged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceBacklog {
    /// Queued, or in the output buffer.
    pub unsent_bytes: usize,
    /// In flight, whether sent or not.
    pub unacknowledged_bytes: usize,
}

/// Access rules of a device: it may not use topics of other clients.
pub(crate) struct DeviceAccess(pub DeviceKey);

impl SessionAccess for DeviceAccess {
    fn can_publish(&self, _: &str, _: QoS, _: bool) -> bool {
        false
    }

    fn can_subscribe(&self, _: &str) -> SubscribeAccess {
        SubscribeAccess::Denied
    }

    /// Messages for a device are addressed to it.
    fn can_receive(&self, _: &str) -> bool {
        true
    }

    fn device(&self) -> Option<DeviceKey> {
        Some(self.0)
    }
}

impl Shard {
    /// Accepts the CONNECT of a device. Overrides clean start, will and user name.
    pub(crate) fn accept_device(&mut self, now: Now, conn: ConnSlot, connect: &Connect<'_>, device: &IdentifiedDevice) {
        let connect = Connect {
            clean_start: true,
            will: None,
            user_name: Some(&device.name),
            password: None,
            ..connect.clone()
        };
        let client = AcceptedClient {
            client_id: &device.client_id,
            is_superuser: false,
            device: Some(device.key),
        };
        self.admit(now, conn, &connect, client, None);
    }

    pub(crate) fn device_of(&self, slot: SessionSlot) -> Option<DeviceKey> {
        self.core.sessions.get(slot)?.device()
    }

    /// Returns whether reading from a device must stop because the tap is full. MQTT 5 devices get a reason code
    /// instead.
    pub(crate) fn must_pause_device(&mut self) -> bool {
        self.core.taps.is_full_for_devices()
    }

    pub(crate) fn publish_from_device(
        &mut self,
        now: Now,
        slot: SessionSlot,
        device: DeviceKey,
        publish: &Publish<'_>,
    ) -> (ReasonCode, PendingCommits) {
        let session = self.core.sessions.at_mut(slot);
        let is_v5 = session.version == ProtocolVersion::V5;
        session.messages_received += 1;
        session.bytes_received += publish.payload.len() as u64;
        self.core.stats.messages_received[publish.qos as usize] += 1;
        self.core.stats.publish_bytes_received += publish.payload.len() as u64;
        if self.must_pause_device() {
            // Only MQTT 5 at QoS 1 and 2 reaches this point. Reading is paused for all others.
            return self.reject(now, slot, DropReason::BufferFull, ReasonCode::QuotaExceeded);
        }
        let message = DeviceMessage {
            device,
            topic: publish.topic,
            payload: publish.payload,
            qos: publish.qos,
            is_v5,
        };
        let taken = self.core.device_tap().map(|tap| tap.device_message(now, &message));
        match taken {
            Some(DeviceMessageResult::Accepted(receipt)) => {
                let commits = PendingCommits {
                    journal: false,
                    tap: receipt,
                };
                (ReasonCode::Success, commits)
            }
            Some(DeviceMessageResult::Refused(reason @ ReasonCode::PayloadFormatInvalid)) => {
                self.reject(now, slot, DropReason::NotUnderstood, reason)
            }
            Some(DeviceMessageResult::Refused(reason @ ReasonCode::TopicNameInvalid)) => {
                self.reject(now, slot, DropReason::TopicInvalid, reason)
            }
            Some(DeviceMessageResult::Refused(reason)) => {
                self.reject(now, slot, DropReason::NotAuthorizedToPublish, reason)
            }
            Some(DeviceMessageResult::Disconnect { reason, detail }) => {
                let conn = self.core.sessions.at(slot).conn;
                let rejected = self.reject(now, slot, DropReason::OverLimit, reason);
                if let Some(conn) = conn {
                    self.end_connection(now, conn, DisconnectReason::QuotaExceeded, reason, detail);
                }
                rejected
            }
            None => self.reject(now, slot, DropReason::BufferFull, ReasonCode::ServerUnavailable),
        }
    }

    /// Returns the reason codes of a SUBACK.
    pub(crate) fn device_subscribed(
        &mut self,
        now: Now,
        device: DeviceKey,
        subscribe: &Subscribe<'_>,
    ) -> Vec<ReasonCode> {
        let mut reasons = Vec::new();
        for asked in subscribe.filters.iter() {
            let (filter, qos) = (asked.filter, asked.options.maximum_qos);
            let tap = self.core.device_tap();
            let granted = tap.and_then(|tap| tap.device_subscribe(now, device, filter, qos));
            reasons.push(match granted {
                Some(QoS::AtMostOnce) => ReasonCode::Success,
                Some(QoS::AtLeastOnce) => ReasonCode::GrantedQoS1,
                Some(QoS::ExactlyOnce) => ReasonCode::GrantedQoS2,
                None => ReasonCode::TopicFilterInvalid,
            });
        }
        reasons
    }

    /// Returns the reason codes of an UNSUBACK.
    pub(crate) fn device_unsubscribed(
        &mut self,
        now: Now,
        device: DeviceKey,
        unsubscribe: &Unsubscribe<'_>,
    ) -> Vec<ReasonCode> {
        let mut reasons = Vec::new();
        for filter in unsubscribe.filters.iter() {
            let tap = self.core.device_tap();
            reasons.push(
                match tap.is_some_and(|tap| tap.device_unsubscribe(now, device, filter)) {
                    true => ReasonCode::Success,
                    false => ReasonCode::NoSubscriptionExisted,
                },
            );
        }
        reasons
    }

    /// Sends a message to a device. Returns false if the device is not connected to this shard or the message is
    /// dropped.
    pub fn send_to_device(&mut self, now: Now, client_id: &str, topic: &str, payload: &[u8], qos: QoS) -> bool {
        let Some(slot) = self
            .core
            .sessions
            .slot_of(client_id)
            .filter(|slot| self.device_of(*slot).is_some())
        else {
            return false;
        };
        let p = Publication {
            qos,
            ..Publication::from_server(topic, payload)
        };
        let terms = DeliveryOptions {
            qos,
            retain: false,
            identifiers: &[],
            group: None,
        };
        let delivered = self.core.deliver(now, slot, &p, terms, &mut EncodedForms::default());
        !matches!(delivered, DeliverResult::Dropped(_))
    }

    /// Returns the backlog of a device; `None` if it is not connected to this shard.
    pub fn device_backlog(&self, client_id: &str) -> Option<DeviceBacklog> {
        let slot = self
            .core
            .sessions
            .slot_of(client_id)
            .filter(|slot| self.device_of(*slot).is_some())?;
        let session = self.core.sessions.at(slot);
        let out = &session.outgoing;
        let in_flight = out.inflight.iter().filter_map(|message| message.delivery.as_ref());
        Some(DeviceBacklog {
            unsent_bytes: self.core.outbox.queued_bytes(session.conn?) + out.queued_bytes,
            unacknowledged_bytes: in_flight.map(Delivery::stored_bytes).sum(),
        })
    }

    /// Closes the connection of a device. Returns false if it is not connected to this shard.
    pub fn close_device(&mut self, now: Now, client_id: &str, detail: &str) -> bool {
        let Some(slot) = self
            .core
            .sessions
            .slot_of(client_id)
            .filter(|slot| self.device_of(*slot).is_some())
        else {
            return false;
        };
        let Some(conn) = self.core.sessions.at(slot).conn else {
            return false;
        };
        let reason = ReasonCode::AdministrativeAction;
        self.end_connection(now, conn, DisconnectReason::Kicked, reason, detail);
        true
    }
}

impl ShardCore {
    /// Returns the tap for device events.
    fn device_tap(&mut self) -> Option<&mut dyn Tap> {
        self.taps.used()
    }

    /// Reports an event of a device to the tap. Does nothing for other sessions.
    pub fn tap_device(&mut self, now: Now, slot: SessionSlot, what: DeviceConnectionEvent) {
        let session = self.sessions.get(slot);
        let Some(device) = session.and_then(Session::device) else {
            return;
        };
        if let Some(tap) = self.device_tap() {
            tap.device_event(now, device, what);
        }
    }

    /// Reports to the tap that a device has acknowledged a message. Does nothing for other sessions.
    pub fn tap_device_acked(&mut self, now: Now, slot: SessionSlot, delivery: &Delivery) {
        let session = self.sessions.get(slot);
        let Some(device) = session.and_then(Session::device) else {
            return;
        };
        if let Some(tap) = self.device_tap() {
            let message = delivery.publication();
            tap.device_acked(now, device, message.topic, message.payload);
        }
    }
}
