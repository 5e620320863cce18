//! Activity of devices that sent nothing that is stored, for example a PINGREQ. The platform receives it once per tick.

use std::collections::HashMap;
use std::sync::Mutex;

use platform::ids::{DeviceId, Uuid};

use crate::mutex::lock;

/// Devices with unreported activity. Beyond that, activity of further devices is not recorded.
const ACTIVE_MAX: usize = 1_000_000;

#[derive(Default)]
pub struct ActiveDevices {
    last_ms: Mutex<HashMap<Uuid, i64, foldhash::fast::RandomState>>,
}

impl ActiveDevices {
    /// Records sessions and the times of their activity.
    pub fn record(&self, sessions: impl IntoIterator<Item = (Uuid, i64)>) {
        let mut last_ms = lock(&self.last_ms);
        for (session, at_ms) in sessions {
            if last_ms.len() < ACTIVE_MAX || last_ms.contains_key(&session) {
                last_ms.insert(session, at_ms);
            }
        }
    }

    /// Returns the devices that were active since the last call.
    pub fn take(&self) -> Vec<(DeviceId, i64)> {
        let active = std::mem::take(&mut *lock(&self.last_ms));
        active
            .into_iter()
            .map(|(session, at_ms)| (DeviceId(session), at_ms))
            .collect()
    }
}
