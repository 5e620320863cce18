//! Devices that are connected through a gateway: from the gateway's first message about them until it disconnects
//! them or itself. In memory only; after a restart a gateway connects its devices again.

use super::{HashMap, HashSet};
use crate::ids::DeviceId;

/// Largest number of devices over all gateways. Beyond it all entries are removed; a device is added again with its
/// gateway's next message about it.
const BEHIND_MAX: usize = 200_000;

#[derive(Default)]
pub(super) struct GatewayDevices {
    /// A gateway without devices has no entry, so no set is empty.
    by_gateway: HashMap<DeviceId, HashSet<DeviceId>>,
    count: usize,
}

impl GatewayDevices {
    /// Returns false if the gateway already had the device.
    pub fn connect(&mut self, gateway: DeviceId, device: DeviceId) -> bool {
        if self.contains(gateway, device) {
            return false;
        }
        if self.count >= BEHIND_MAX {
            *self = GatewayDevices::default();
        }
        self.by_gateway.entry(gateway).or_default().insert(device);
        self.count += 1;
        true
    }

    fn contains(&self, gateway: DeviceId, device: DeviceId) -> bool {
        let devices = self.by_gateway.get(&gateway);
        devices.is_some_and(|devices| devices.contains(&device))
    }

    /// Returns false if the gateway did not have the device.
    pub fn disconnect(&mut self, gateway: DeviceId, device: DeviceId) -> bool {
        let Some(devices) = self.by_gateway.get_mut(&gateway) else {
            return false;
        };
        let was_connected = devices.remove(&device);
        self.count -= usize::from(was_connected);
        if devices.is_empty() {
            self.by_gateway.remove(&gateway);
        }
        was_connected
    }

    /// Removes all devices of a gateway that has disconnected or connected again.
    pub fn disconnect_all(&mut self, gateway: DeviceId) -> HashSet<DeviceId> {
        let removed = self.by_gateway.remove(&gateway).unwrap_or_default();
        self.count -= removed.len();
        removed
    }

    pub fn of(&self, gateway: DeviceId) -> impl Iterator<Item = DeviceId> {
        self.by_gateway.get(&gateway).into_iter().flatten().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Uuid;

    fn id(n: usize) -> DeviceId {
        DeviceId(Uuid((n as u128).to_be_bytes()))
    }

    #[test]
    fn devices_connect_and_disconnect_once() {
        let mut behind = GatewayDevices::default();
        assert!(behind.connect(id(1), id(10)) && !behind.connect(id(1), id(10)));
        assert!(behind.connect(id(1), id(11)) && behind.connect(id(2), id(10)));
        assert!(behind.disconnect(id(2), id(10)) && !behind.disconnect(id(2), id(10)));
        assert_eq!(behind.of(id(1)).count(), 2);
        assert_eq!(behind.disconnect_all(id(1)).len(), 2);
        assert!(behind.disconnect_all(id(1)).is_empty() && !behind.disconnect(id(1), id(11)));
        assert_eq!((behind.count, behind.by_gateway.len()), (0, 0));
    }

    #[test]
    fn devices_behind_gateways_are_bounded() {
        let mut behind = GatewayDevices::default();
        (0..BEHIND_MAX).for_each(|n| assert!(behind.connect(id(1), id(n))));
        assert!(behind.connect(id(2), id(0)));
        assert_eq!((behind.count, behind.of(id(1)).count()), (1, 0));
    }
}
