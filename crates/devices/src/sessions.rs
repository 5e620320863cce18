//! Connected devices, their subscriptions, and the devices behind gateways.
//!
//! Shards write when devices connect, subscribe and disconnect. The platform reads when it has a message for a
//! device.

use std::sync::Mutex;

use hashbrown::HashMap;
use mqtt::QoS;
use platform::decode::{DeviceSubscription, TopicForm};
use platform::ids::{DeviceId, Uuid};

use crate::mutex::lock;

/// Devices behind gateways that are recorded.
const BEHIND_MAX: usize = 200_000;

type SessionMap<K, V> = HashMap<K, V, foldhash::fast::RandomState>;

/// Number of a connection of a device or gateway, counted since the start of the server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConnectionNumber(pub u64);

/// A connection of a device or gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionConnection {
    pub session: Uuid,
    pub connection: ConnectionNumber,
}

#[derive(Default)]
pub struct DeviceSessions(Mutex<SessionTable>);

#[derive(Default)]
struct SessionTable {
    online: SessionMap<Uuid, OnlineSession>,
    gateway_devices: SessionMap<DeviceId, GatewayDevice>,
    /// Per gateway, the devices by name; no inner map is empty. May still list a device that moved to another
    /// gateway.
    names: SessionMap<Uuid, SessionMap<Box<str>, DeviceId>>,
    last_connection: ConnectionNumber,
}

struct OnlineSession {
    connection: ConnectionNumber,
    shard: u16,
    is_v5: bool,
    /// True if devices have been behind it.
    is_gateway: bool,
    subscriptions: Vec<(DeviceSubscription, QoS)>,
}

struct GatewayDevice {
    gateway: Uuid,
    name: Box<str>,
}

/// A session that can receive a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionTarget {
    pub session: Uuid,
    pub connection: ConnectionNumber,
    pub shard: u16,
    pub qos: QoS,
}

/// A path by which a device can receive a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeliveryPath {
    Direct(SessionTarget, TopicForm),
    Gateway(SessionTarget, Box<str>),
}

/// Kind of message for a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DownlinkKind {
    Attributes,
    RpcRequest,
}

impl DownlinkKind {
    fn form(self, subscription: DeviceSubscription) -> Option<TopicForm> {
        match (self, subscription) {
            (DownlinkKind::Attributes, DeviceSubscription::Attributes(form))
            | (DownlinkKind::RpcRequest, DeviceSubscription::RpcRequest(form)) => Some(form),
            _ => None,
        }
    }

    fn of_gateway(self) -> DeviceSubscription {
        match self {
            DownlinkKind::Attributes => DeviceSubscription::GatewayAttributes,
            DownlinkKind::RpcRequest => DeviceSubscription::GatewayRpc,
        }
    }
}

impl DeviceSessions {
    pub fn connected(&self, session: Uuid, shard: u16, is_v5: bool) {
        let mut inner = lock(&self.0);
        inner.last_connection.0 += 1;
        let online = OnlineSession {
            connection: inner.last_connection,
            shard,
            is_v5,
            is_gateway: false,
            subscriptions: Vec::new(),
        };
        inner.online.insert(session, online);
    }

    pub fn disconnected(&self, session: Uuid) {
        let mut inner = lock(&self.0);
        let was_gateway = inner.online.remove(&session).is_some_and(|online| online.is_gateway);
        if was_gateway {
            inner.gateway_devices.retain(|_, behind| behind.gateway != session);
            inner.names.remove(&session);
        }
    }

    pub fn subscribed(&self, session: Uuid, subscription: DeviceSubscription, qos: QoS) {
        if let Some(online) = lock(&self.0).online.get_mut(&session) {
            online.subscriptions.retain(|(known, _)| *known != subscription);
            online.subscriptions.push((subscription, qos));
        }
    }

    /// Returns false if there was no such subscription.
    pub fn unsubscribed(&self, session: Uuid, subscription: DeviceSubscription) -> bool {
        let mut inner = lock(&self.0);
        let Some(online) = inner.online.get_mut(&session) else {
            return false;
        };
        let before = online.subscriptions.len();
        online.subscriptions.retain(|(known, _)| *known != subscription);
        online.subscriptions.len() < before
    }

    pub fn count(&self) -> usize {
        lock(&self.0).online.len()
    }

    pub fn is_online(&self, session: Uuid) -> bool {
        lock(&self.0).online.contains_key(&session)
    }

    pub fn connection_of(&self, session: Uuid) -> Option<ConnectionNumber> {
        Some(lock(&self.0).online.get(&session)?.connection)
    }

    /// Returns true if this is still the session's connection.
    pub fn is_open(&self, over: SessionConnection) -> bool {
        let inner = lock(&self.0);
        let online = inner.online.get(&over.session);
        online.is_some_and(|online| online.connection == over.connection)
    }

    /// Devices for which this gateway session speaks.
    pub fn gateway_devices(&self, gateway: Uuid) -> Vec<DeviceId> {
        let inner = lock(&self.0);
        if !inner.online.get(&gateway).is_some_and(|online| online.is_gateway) {
            return Vec::new();
        }
        let behind = inner
            .gateway_devices
            .iter()
            .filter(|(_, behind)| behind.gateway == gateway);
        behind.map(|(device, _)| *device).collect()
    }

    pub fn is_v5(&self, session: Uuid) -> bool {
        lock(&self.0).online.get(&session).is_some_and(|online| online.is_v5)
    }

    pub fn shard_of(&self, session: Uuid) -> Option<u16> {
        Some(lock(&self.0).online.get(&session)?.shard)
    }

    /// The session, if it has this subscription.
    pub fn target(&self, session: Uuid, subscription: DeviceSubscription) -> Option<SessionTarget> {
        lock(&self.0).target(session, subscription)
    }

    /// The recipient of a response: the requesting session, even without a subscription, as in ThingsBoard.
    pub fn requester(&self, session: Uuid, subscription: DeviceSubscription) -> Option<SessionTarget> {
        let inner = lock(&self.0);
        inner.target(session, subscription).or_else(|| {
            let online = inner.online.get(&session)?;
            Some(online.target(session, QoS::AtLeastOnce))
        })
    }

    /// All paths to a device: its own session in each subscribed form, and its gateway.
    pub fn delivery_paths(&self, device: DeviceId, wanted: DownlinkKind) -> Vec<DeliveryPath> {
        let inner = lock(&self.0);
        let mut ways = Vec::new();
        if let Some(online) = inner.online.get(&device.0) {
            ways.extend(online.subscriptions.iter().filter_map(|(subscription, qos)| {
                let form = wanted.form(*subscription)?;
                Some(DeliveryPath::Direct(online.target(device.0, *qos), form))
            }));
        }
        if let Some(behind) = inner.gateway_devices.get(&device)
            && let Some(target) = inner.target(behind.gateway, wanted.of_gateway())
        {
            ways.push(DeliveryPath::Gateway(target, behind.name.clone()));
        }
        ways
    }

    /// Records that a gateway speaks for this device. Does nothing if the gateway has disconnected.
    pub fn add_gateway_device(&self, gateway: Uuid, name: &str, device: DeviceId) {
        let mut inner = lock(&self.0);
        match inner.online.get_mut(&gateway) {
            Some(online) => online.is_gateway = true,
            None => return,
        }
        if inner.gateway_devices.len() >= BEHIND_MAX {
            inner.evict_half_of_largest();
        }
        let name: Box<str> = name.into();
        // The gateway used this name for another device before.
        let before = inner.names.entry(gateway).or_default().insert(name.clone(), device);
        if let Some(before) = before.filter(|before| *before != device) {
            inner.remove_if_of_gateway(gateway, before);
        }
        inner.gateway_devices.insert(device, GatewayDevice { gateway, name });
    }

    pub fn remove_gateway_device(&self, gateway: Uuid, name: &str) {
        let mut inner = lock(&self.0);
        let Some(names) = inner.names.get_mut(&gateway) else {
            return;
        };
        let device = names.remove(name);
        if names.is_empty() {
            inner.names.remove(&gateway);
        }
        if let Some(device) = device {
            inner.remove_if_of_gateway(gateway, device);
        }
    }

    pub fn gateway_device(&self, gateway: Uuid, name: &str) -> Option<DeviceId> {
        lock(&self.0).names.get(&gateway)?.get(name).copied()
    }
}

impl SessionTable {
    /// Frees half the entries of the largest gateway. Its removed devices get no messages until the gateway names
    /// them again.
    fn evict_half_of_largest(&mut self) {
        let most = self.names.iter().max_by_key(|(_, names)| names.len());
        let Some((gateway, count)) = most.map(|(gateway, names)| (*gateway, names.len())) else {
            return;
        };
        tracing::warn!(
            %gateway,
            devices = count,
            max = BEHIND_MAX,
            "too many devices behind gateways: removed half of those of the largest gateway"
        );
        let names = self.names.get_mut(&gateway).into_iter();
        let forgotten = names.flat_map(|names| names.extract_if(|_, _| true).take(count.div_ceil(2)));
        let forgotten: Vec<DeviceId> = forgotten.map(|(_, device)| device).collect();
        for device in forgotten {
            self.remove_if_of_gateway(gateway, device);
        }
        self.names.retain(|_, names| !names.is_empty());
    }

    /// Removes the device unless it moved to another gateway.
    fn remove_if_of_gateway(&mut self, gateway: Uuid, device: DeviceId) {
        if self
            .gateway_devices
            .get(&device)
            .is_some_and(|behind| behind.gateway == gateway)
        {
            self.gateway_devices.remove(&device);
        }
    }

    fn target(&self, session: Uuid, subscription: DeviceSubscription) -> Option<SessionTarget> {
        let online = self.online.get(&session)?;
        let (_, qos) = online.subscriptions.iter().find(|(known, _)| *known == subscription)?;
        Some(online.target(session, *qos))
    }
}

impl OnlineSession {
    fn target(&self, session: Uuid, qos: QoS) -> SessionTarget {
        SessionTarget {
            session,
            connection: self.connection,
            shard: self.shard,
            qos,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_behind_a_gateway_refers_to_one_device() {
        let sessions = DeviceSessions::default();
        let gateway = Uuid([9; 16]);
        let [first, second] = [1, 2].map(|n| DeviceId(Uuid([n; 16])));
        sessions.connected(gateway, 0, false);
        sessions.subscribed(gateway, DeviceSubscription::GatewayAttributes, QoS::AtLeastOnce);
        sessions.add_gateway_device(gateway, "A", first);
        assert_eq!(sessions.delivery_paths(first, DownlinkKind::Attributes).len(), 1);
        // The first device has another name now, so it must not receive messages for this name.
        sessions.add_gateway_device(gateway, "A", second);
        assert_eq!(sessions.gateway_device(gateway, "A"), Some(second));
        assert_eq!(sessions.gateway_devices(gateway), [second]);
        assert!(sessions.delivery_paths(first, DownlinkKind::Attributes).is_empty());
    }

    #[test]
    fn moved_device_stays_with_its_new_gateway() {
        let sessions = DeviceSessions::default();
        let [first, second] = [8, 9].map(|n| Uuid([n; 16]));
        let device = DeviceId(Uuid([1; 16]));
        for gateway in [first, second] {
            sessions.connected(gateway, 0, false);
            sessions.add_gateway_device(gateway, "A", device);
        }
        sessions.remove_gateway_device(first, "A");
        assert_eq!(sessions.gateway_devices(second), [device]);
        sessions.remove_gateway_device(second, "A");
        assert!(sessions.gateway_devices(second).is_empty());
    }

    #[test]
    fn largest_gateway_is_evicted_first() {
        let sessions = DeviceSessions::default();
        let [small, large] = [8, 9].map(|n| Uuid([n; 16]));
        let device = |gateway: u8, n: usize| {
            let mut id = [gateway; 16];
            id[..8].copy_from_slice(&n.to_le_bytes());
            DeviceId(Uuid(id))
        };
        sessions.connected(small, 0, false);
        sessions.connected(large, 0, false);
        sessions.add_gateway_device(small, "A", device(8, 0));
        for n in 0..BEHIND_MAX {
            sessions.add_gateway_device(large, &n.to_string(), device(9, n));
        }
        assert_eq!(sessions.gateway_devices(small).len(), 1);
        let left = sessions.gateway_devices(large).len();
        assert!((BEHIND_MAX / 2..BEHIND_MAX).contains(&left), "{left}");
        assert!(
            sessions.gateway_device(large, &(BEHIND_MAX - 1).to_string()).is_some(),
            "the last device"
        );
    }
}
