//! Which devices are connected, what they have subscribed to, and behind which gateway others are.
//!
//! Written by the shards when devices come, subscribe and go; read when the platform has something to tell a device.

use std::sync::{Mutex, MutexGuard, PoisonError};

use hashbrown::HashMap;
use mqtt::QoS;
use platform::decode::{Form, Subscription};
use platform::ids::{DeviceId, Uuid};

use crate::calls::Over;

/// Devices behind gateways that are remembered.
const BEHIND_MAX: usize = 200_000;

type Map<K, V> = HashMap<K, V, foldhash::fast::RandomState>;

#[derive(Default)]
pub struct Sessions(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    online: Map<Uuid, Online>,
    behind: Map<DeviceId, Behind>,
    /// Of each gateway, by name; none is empty. One that came behind another gateway since is here too.
    names: Map<Uuid, Map<Box<str>, DeviceId>>,
    connections: u64,
}

struct Online {
    /// Which of all connections it is.
    connection: u64,
    shard: u16,
    is_v5: bool,
    /// Others have been behind it.
    is_gateway: bool,
    subscriptions: Vec<(Subscription, QoS)>,
}

struct Behind {
    gateway: Uuid,
    name: Box<str>,
}

/// A session that can be sent to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    pub session: Uuid,
    pub connection: u64,
    pub shard: u16,
    pub qos: QoS,
}

/// How a device can be told something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Way {
    Direct(Target, Form),
    Gateway(Target, Box<str>),
}

/// What a device is to be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Wanted {
    Attributes,
    RpcRequest,
}

impl Wanted {
    fn form(self, subscription: Subscription) -> Option<Form> {
        match (self, subscription) {
            (Wanted::Attributes, Subscription::Attributes(form))
            | (Wanted::RpcRequest, Subscription::RpcRequest(form)) => Some(form),
            _ => None,
        }
    }

    fn of_gateway(self) -> Subscription {
        match self {
            Wanted::Attributes => Subscription::GatewayAttributes,
            Wanted::RpcRequest => Subscription::GatewayRpc,
        }
    }
}

impl Sessions {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn connected(&self, session: Uuid, shard: u16, is_v5: bool) {
        let mut inner = self.lock();
        inner.connections += 1;
        let online = Online {
            connection: inner.connections,
            shard,
            is_v5,
            is_gateway: false,
            subscriptions: Vec::new(),
        };
        inner.online.insert(session, online);
    }

    pub fn disconnected(&self, session: Uuid) {
        let mut inner = self.lock();
        let was_gateway = inner.online.remove(&session).is_some_and(|online| online.is_gateway);
        if was_gateway {
            inner.behind.retain(|_, behind| behind.gateway != session);
            inner.names.remove(&session);
        }
    }

    pub fn subscribed(&self, session: Uuid, subscription: Subscription, qos: QoS) {
        if let Some(online) = self.lock().online.get_mut(&session) {
            online.subscriptions.retain(|(known, _)| *known != subscription);
            online.subscriptions.push((subscription, qos));
        }
    }

    /// False if it had not.
    pub fn unsubscribed(&self, session: Uuid, subscription: Subscription) -> bool {
        let mut inner = self.lock();
        let Some(online) = inner.online.get_mut(&session) else {
            return false;
        };
        let before = online.subscriptions.len();
        online.subscriptions.retain(|(known, _)| *known != subscription);
        online.subscriptions.len() < before
    }

    pub fn count(&self) -> usize {
        self.lock().online.len()
    }

    pub fn is_online(&self, session: Uuid) -> bool {
        self.lock().online.contains_key(&session)
    }

    pub fn connection_of(&self, session: Uuid) -> Option<u64> {
        Some(self.lock().online.get(&session)?.connection)
    }

    /// The connection is still the session's.
    pub fn is_open(&self, over: Over) -> bool {
        let inner = self.lock();
        let online = inner.online.get(&over.session);
        online.is_some_and(|online| online.connection == over.connection)
    }

    /// Devices that this session speaks for.
    pub fn all_behind(&self, gateway: Uuid) -> Vec<DeviceId> {
        let inner = self.lock();
        if !inner.online.get(&gateway).is_some_and(|online| online.is_gateway) {
            return Vec::new();
        }
        let behind = inner.behind.iter().filter(|(_, behind)| behind.gateway == gateway);
        behind.map(|(device, _)| *device).collect()
    }

    pub fn is_v5(&self, session: Uuid) -> bool {
        self.lock().online.get(&session).is_some_and(|online| online.is_v5)
    }

    pub fn shard_of(&self, session: Uuid) -> Option<u16> {
        Some(self.lock().online.get(&session)?.shard)
    }

    /// The session, if it has subscribed to this.
    pub fn target(&self, session: Uuid, subscription: Subscription) -> Option<Target> {
        self.lock().target(session, subscription)
    }

    /// Where the answer to a request goes: to the session that has asked, whether it has subscribed or not, as ThingsBoard has it.
    pub fn asker(&self, session: Uuid, subscription: Subscription) -> Option<Target> {
        let inner = self.lock();
        inner.target(session, subscription).or_else(|| {
            let online = inner.online.get(&session)?;
            Some(online.target(session, QoS::AtLeastOnce))
        })
    }

    /// All ways to tell a device: by its own session, in each form that it has subscribed to, and by its gateway.
    pub fn ways(&self, device: DeviceId, wanted: Wanted) -> Vec<Way> {
        let inner = self.lock();
        let mut ways = Vec::new();
        if let Some(online) = inner.online.get(&device.0) {
            ways.extend(online.subscriptions.iter().filter_map(|(subscription, qos)| {
                let form = wanted.form(*subscription)?;
                Some(Way::Direct(online.target(device.0, *qos), form))
            }));
        }
        if let Some(behind) = inner.behind.get(&device)
            && let Some(target) = inner.target(behind.gateway, wanted.of_gateway())
        {
            ways.push(Way::Gateway(target, behind.name.clone()));
        }
        ways
    }

    /// A gateway speaks for this device; of one that has gone meanwhile nothing is remembered.
    pub fn put_behind(&self, gateway: Uuid, name: &str, device: DeviceId) {
        let mut inner = self.lock();
        match inner.online.get_mut(&gateway) {
            Some(online) => online.is_gateway = true,
            None => return,
        }
        if inner.behind.len() >= BEHIND_MAX {
            inner.forget_half_of_most();
        }
        let name: Box<str> = name.into();
        // Another one had this name before.
        let before = inner.names.entry(gateway).or_default().insert(name.clone(), device);
        if let Some(before) = before.filter(|before| *before != device) {
            inner.remove_if_behind(gateway, before);
        }
        inner.behind.insert(device, Behind { gateway, name });
    }

    pub fn remove_behind(&self, gateway: Uuid, name: &str) {
        let mut inner = self.lock();
        let Some(names) = inner.names.get_mut(&gateway) else {
            return;
        };
        let device = names.remove(name);
        if names.is_empty() {
            inner.names.remove(&gateway);
        }
        if let Some(device) = device {
            inner.remove_if_behind(gateway, device);
        }
    }

    pub fn behind(&self, gateway: Uuid, name: &str) -> Option<DeviceId> {
        self.lock().names.get(&gateway)?.get(name).copied()
    }
}

impl Inner {
    /// Room for others. A device that is forgotten is told nothing until its gateway speaks for it again.
    fn forget_half_of_most(&mut self) {
        let most = self.names.iter().max_by_key(|(_, names)| names.len());
        let Some((gateway, count)) = most.map(|(gateway, names)| (*gateway, names.len())) else {
            return;
        };
        tracing::warn!(
            %gateway,
            devices = count,
            max = BEHIND_MAX,
            "too many devices are behind gateways: half of those of the gateway that has most are forgotten"
        );
        let names = self.names.get_mut(&gateway).into_iter();
        let forgotten = names.flat_map(|names| names.extract_if(|_, _| true).take(count.div_ceil(2)));
        let forgotten: Vec<DeviceId> = forgotten.map(|(_, device)| device).collect();
        for device in forgotten {
            self.remove_if_behind(gateway, device);
        }
        self.names.retain(|_, names| !names.is_empty());
    }

    /// It may have come behind another one since.
    fn remove_if_behind(&mut self, gateway: Uuid, device: DeviceId) {
        if self.behind.get(&device).is_some_and(|behind| behind.gateway == gateway) {
            self.behind.remove(&device);
        }
    }

    fn target(&self, session: Uuid, subscription: Subscription) -> Option<Target> {
        let online = self.online.get(&session)?;
        let (_, qos) = online.subscriptions.iter().find(|(known, _)| *known == subscription)?;
        Some(online.target(session, *qos))
    }
}

impl Online {
    fn target(&self, session: Uuid, qos: QoS) -> Target {
        Target {
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
    fn a_name_behind_a_gateway_is_one_device() {
        let sessions = Sessions::default();
        let gateway = Uuid([9; 16]);
        let [first, second] = [1, 2].map(|n| DeviceId(Uuid([n; 16])));
        sessions.connected(gateway, 0, false);
        sessions.subscribed(gateway, Subscription::GatewayAttributes, QoS::AtLeastOnce);
        sessions.put_behind(gateway, "A", first);
        assert_eq!(sessions.ways(first, Wanted::Attributes).len(), 1);
        // The first has another name now: what it is told does not go to this one.
        sessions.put_behind(gateway, "A", second);
        assert_eq!(sessions.behind(gateway, "A"), Some(second));
        assert_eq!(sessions.all_behind(gateway), [second]);
        assert!(sessions.ways(first, Wanted::Attributes).is_empty());
    }

    #[test]
    fn a_device_that_went_to_another_gateway_stays_there() {
        let sessions = Sessions::default();
        let [first, second] = [8, 9].map(|n| Uuid([n; 16]));
        let device = DeviceId(Uuid([1; 16]));
        for gateway in [first, second] {
            sessions.connected(gateway, 0, false);
            sessions.put_behind(gateway, "A", device);
        }
        sessions.remove_behind(first, "A");
        assert_eq!(sessions.all_behind(second), [device]);
        sessions.remove_behind(second, "A");
        assert!(sessions.all_behind(second).is_empty());
    }

    #[test]
    fn the_gateway_with_most_devices_makes_room_for_others() {
        let sessions = Sessions::default();
        let [small, large] = [8, 9].map(|n| Uuid([n; 16]));
        let device = |gateway: u8, n: usize| {
            let mut id = [gateway; 16];
            id[..8].copy_from_slice(&n.to_le_bytes());
            DeviceId(Uuid(id))
        };
        sessions.connected(small, 0, false);
        sessions.connected(large, 0, false);
        sessions.put_behind(small, "A", device(8, 0));
        for n in 0..BEHIND_MAX {
            sessions.put_behind(large, &n.to_string(), device(9, n));
        }
        assert_eq!(sessions.all_behind(small).len(), 1);
        let left = sessions.all_behind(large).len();
        assert!((BEHIND_MAX / 2..BEHIND_MAX).contains(&left), "{left}");
        assert!(
            sessions.behind(large, &(BEHIND_MAX - 1).to_string()).is_some(),
            "the last"
        );
    }
}
