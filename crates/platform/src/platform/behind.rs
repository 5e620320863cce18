//! Which devices are connected because their gateway speaks for them: from the first word about them until the gateway leaves them, or goes
//! itself. In memory only: a gateway that comes back after a restart speaks for them anew.

use super::{HashMap, HashSet};
use crate::ids::DeviceId;

/// Over all gateways. Beyond it all are forgotten, and connected again when a gateway speaks for them.
const BEHIND_MAX: usize = 200_000;

#[derive(Default)]
pub(super) struct Behind {
    /// None is empty.
    of_gateways: HashMap<DeviceId, HashSet<DeviceId>>,
    count: usize,
}

impl Behind {
    /// False: the gateway spoke for it before.
    pub fn came(&mut self, gateway: DeviceId, device: DeviceId) -> bool {
        if self.is_there(gateway, device) {
            return false;
        }
        if self.count >= BEHIND_MAX {
            *self = Behind::default();
        }
        self.of_gateways.entry(gateway).or_default().insert(device);
        self.count += 1;
        true
    }

    fn is_there(&self, gateway: DeviceId, device: DeviceId) -> bool {
        let devices = self.of_gateways.get(&gateway);
        devices.is_some_and(|devices| devices.contains(&device))
    }

    /// False: the gateway did not speak for it.
    pub fn went(&mut self, gateway: DeviceId, device: DeviceId) -> bool {
        let Some(devices) = self.of_gateways.get_mut(&gateway) else {
            return false;
        };
        let was_there = devices.remove(&device);
        self.count -= usize::from(was_there);
        if devices.is_empty() {
            self.of_gateways.remove(&gateway);
        }
        was_there
    }

    /// The gateway has gone, or is there anew.
    pub fn all_went(&mut self, gateway: DeviceId) -> HashSet<DeviceId> {
        let gone = self.of_gateways.remove(&gateway).unwrap_or_default();
        self.count -= gone.len();
        gone
    }

    pub fn of(&self, gateway: DeviceId) -> impl Iterator<Item = DeviceId> {
        self.of_gateways.get(&gateway).into_iter().flatten().copied()
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
    fn devices_come_and_go_once() {
        let mut behind = Behind::default();
        assert!(behind.came(id(1), id(10)) && !behind.came(id(1), id(10)));
        assert!(behind.came(id(1), id(11)) && behind.came(id(2), id(10)));
        assert!(behind.went(id(2), id(10)) && !behind.went(id(2), id(10)));
        assert_eq!(behind.of(id(1)).count(), 2);
        assert_eq!(behind.all_went(id(1)).len(), 2);
        assert!(behind.all_went(id(1)).is_empty() && !behind.went(id(1), id(11)));
        assert_eq!((behind.count, behind.of_gateways.len()), (0, 0));
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut behind = Behind::default();
        (0..BEHIND_MAX).for_each(|n| assert!(behind.came(id(1), id(n))));
        assert!(behind.came(id(2), id(0)));
        assert_eq!((behind.count, behind.of(id(1)).count()), (1, 0));
    }
}
