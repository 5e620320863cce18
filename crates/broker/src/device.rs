//! Sessions of devices: on the listeners of all clients, but with a namespace of their own.
//!
//! What a device publishes goes to the tap and nowhere else; what it subscribes to is the tap's matter, and it gets what
//! [`Shard::send_to_device`] is given for it. It has no will, no retained messages, no rights to look up, and nothing of its session outlives
//! its connection: whoever is behind the tap keeps what has to be kept. Its client id is not the one of CONNECT but one that says
//! which device it is, so a device has one connection at a time, and devices do not take each other over.

use mqtt::{Connect, ProtocolVersion, Publish, QoS, ReasonCode, Subscribe, Unsubscribe};

use crate::accept::Admitted;
use crate::access::{SessionAccess, SubscribeAccess};
use crate::deliver::{Core, Delivered, Forms, Terms};
use crate::durable::keep::Wait;
use crate::effect::{ConnSlot, DisconnectReason, DropReason, Now};
use crate::message::Publication;
use crate::outgoing::Delivery;
use crate::session::Session;
use crate::shard::Shard;
use crate::tap::{DeviceHappening, DeviceMessage, DeviceTaken, Tap};

/// Which device, as the tap and the authenticator name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeviceKey(pub u128);

/// What a device was sent and has not taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceBacklog {
    /// Its socket has not taken it, or it is queued.
    pub unsent_bytes: usize,
    /// In flight, whether it has been sent or not.
    pub unacknowledged_bytes: usize,
}

/// A client that the authenticator found to be a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    pub key: DeviceKey,
    /// Of its session. No other client may have it: the authenticator sees to that.
    pub client_id: Box<str>,
    /// For operators, in place of the user name, which may be a secret.
    pub name: Box<str>,
}

/// The rights of a device among plain clients: none.
pub(crate) struct DeviceAccess(pub DeviceKey);

impl SessionAccess for DeviceAccess {
    fn may_publish(&self, _: &str, _: QoS, _: bool) -> bool {
        false
    }

    fn may_subscribe(&self, _: &str) -> SubscribeAccess {
        SubscribeAccess::Denied
    }

    /// What it is sent is meant for it.
    fn may_receive(&self, _: &str) -> bool {
        true
    }

    fn device(&self) -> Option<DeviceKey> {
        Some(self.0)
    }
}

impl Shard {
    /// The terms of a device's CONNECT, whatever it asked for.
    pub(crate) fn accept_device(&mut self, now: Now, conn: ConnSlot, connect: &Connect<'_>, device: &Device) {
        let connect = Connect {
            clean_start: true,
            will: None,
            user_name: Some(&device.name),
            password: None,
            ..connect.clone()
        };
        let who = Admitted {
            client_id: &device.client_id,
            is_superuser: false,
            device: Some(device.key),
        };
        self.admit(now, conn, &connect, who, None);
    }

    pub(crate) fn device_of(&self, slot: u32) -> Option<DeviceKey> {
        self.core.sessions.get(slot as usize)?.as_deref()?.device()
    }

    /// A device is not read from while the tap can take nothing, except where MQTT 5 can be told so.
    pub(crate) fn must_hold_device(&mut self) -> bool {
        self.is_tap_full() && self.core.tap.tap.as_mut().is_some_and(|tap| tap.holds_devices())
    }

    pub(crate) fn take_device_publish(
        &mut self,
        now: Now,
        slot: u32,
        device: DeviceKey,
        publish: &Publish<'_>,
    ) -> (ReasonCode, Wait) {
        let session = self.core.session_mut(slot);
        let is_v5 = session.version == ProtocolVersion::V5;
        session.messages_received += 1;
        session.bytes_received += publish.payload.len() as u64;
        self.core.stats.messages_received[publish.qos as usize] += 1;
        self.core.stats.publish_bytes_received += publish.payload.len() as u64;
        if self.must_hold_device() {
            // Only MQTT 5 at QoS 1 and 2 comes here: all others are not read from.
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
            Some(DeviceTaken::Taken(receipt)) => {
                let wait = Wait {
                    for_journal: false,
                    receipt,
                };
                (ReasonCode::Success, wait)
            }
            Some(DeviceTaken::Refused(reason @ ReasonCode::PayloadFormatInvalid)) => {
                self.reject(now, slot, DropReason::NotUnderstood, reason)
            }
            Some(DeviceTaken::Refused(reason)) => self.reject(now, slot, DropReason::NotAuthorizedToPublish, reason),
            Some(DeviceTaken::Ends { reason, because }) => {
                let conn = self.core.session(slot).conn;
                let rejected = self.reject(now, slot, DropReason::OverLimit, reason);
                if let Some(conn) = conn {
                    self.end_connection(now, conn, DisconnectReason::QuotaExceeded, reason, because);
                }
                rejected
            }
            None => self.reject(
                now,
                slot,
                DropReason::NotAuthorizedToPublish,
                ReasonCode::ServerUnavailable,
            ),
        }
    }

    /// The reasons for a SUBACK.
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

    /// The reasons for an UNSUBACK.
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

    /// A message for a device that is connected here; false if it is not, or if it cannot be given the message.
    pub fn send_to_device(&mut self, now: Now, client_id: &str, topic: &str, payload: &[u8], qos: QoS) -> bool {
        let Some(slot) = self.slot_of(client_id).filter(|slot| self.device_of(*slot).is_some()) else {
            return false;
        };
        let p = Publication {
            qos,
            ..Publication::of_server(topic, payload)
        };
        let terms = Terms {
            qos,
            retain: false,
            identifiers: &[],
            group: None,
        };
        let delivered = self.core.deliver(now, slot, &p, terms, &mut Forms::default());
        !matches!(delivered, Delivered::Dropped(_))
    }

    /// `None`: it has no connection here.
    pub fn device_backlog(&self, client_id: &str) -> Option<DeviceBacklog> {
        let slot = self.slot_of(client_id).filter(|slot| self.device_of(*slot).is_some())?;
        let session = self.core.session(slot);
        let out = &session.outgoing;
        let in_flight = out.inflight.iter().filter_map(|message| message.delivery.as_ref());
        Some(DeviceBacklog {
            unsent_bytes: self.core.outbox.queued_bytes(session.conn?) + out.queued_bytes,
            unacknowledged_bytes: in_flight.map(Delivery::kept_bytes).sum(),
        })
    }

    /// Ends the connection of a device, if it has one here.
    pub fn close_device(&mut self, now: Now, client_id: &str, because: &str) -> bool {
        let Some(slot) = self.slot_of(client_id).filter(|slot| self.device_of(*slot).is_some()) else {
            return false;
        };
        let Some(conn) = self.core.session(slot).conn else {
            return false;
        };
        let reason = ReasonCode::AdministrativeAction;
        self.end_connection(now, conn, DisconnectReason::Kicked, reason, because);
        true
    }
}

impl Core {
    /// The tap, to be told of a device.
    fn device_tap(&mut self) -> Option<&mut dyn Tap> {
        self.tap.used()
    }

    /// Tells the tap what happened to the device of a session, if it is one of a device.
    pub fn tap_device(&mut self, now: Now, slot: u32, what: DeviceHappening) {
        let session = self.sessions.get(slot as usize).and_then(Option::as_deref);
        let Some(device) = session.and_then(Session::device) else {
            return;
        };
        if let Some(tap) = self.device_tap() {
            tap.device_happened(now, device, what);
        }
    }

    /// Tells the tap that a message has reached the device of a session, if it is one of a device.
    pub fn tap_device_acked(&mut self, now: Now, slot: u32, delivery: &Delivery) {
        let session = self.sessions.get(slot as usize).and_then(Option::as_deref);
        let Some(device) = session.and_then(Session::device) else {
            return;
        };
        if let Some(tap) = self.device_tap() {
            let message = delivery.publication();
            tap.device_acked(now, device, message.topic, message.payload);
        }
    }
}
