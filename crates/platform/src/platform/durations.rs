//! Alarm rules that fire after a duration, even if the device sends no further message. After a start, each tick loads
//! the saved counters of some devices from the repository.

use super::host::PlatformCall;
use super::ingest::SendingDevice;
use crate::alarm_rules::{AlarmEffect, AlarmRuleEvent};
use crate::chain::{ChainMessage, MessageData, Metadata, NodeError, alarm_message};
use crate::ids::{CustomerId, DeviceId};

/// Devices whose counters are loaded per tick. Each needs some look-ups, which delay messages.
const LOADED_MAX: usize = 200;

impl PlatformCall<'_> {
    /// Loads the saved counters of rules with durations. Other rules load theirs at the device's next message. Nothing
    /// is loaded during a replay, because then the stored values may be newer than the replayed messages.
    pub fn load_durations(&mut self) {
        if self.core.replayed < self.core.applied {
            return;
        }
        for _ in 0..LOADED_MAX {
            let Some(id) = self.core.unloaded.pop_front() else {
                return;
            };
            if self.load_duration(id).is_err() {
                // The stores are unavailable. The device goes to the end of the queue, in case only its data cannot
                // be read.
                return self.core.unloaded.push_back(id);
            }
        }
    }

    fn load_duration(&mut self, id: DeviceId) -> Result<(), NodeError> {
        let has_durations = self.rules_of(id).is_some_and(|rules| rules.has_durations());
        let known = self.core.devices.get(&id);
        if !has_durations || known.is_some_and(|device| device.alarms.is_some()) {
            return Ok(());
        }
        // Also loads the device's inactivity timeout.
        self.activity(id);
        self.device_state(id).alarms = self.device_alarms(id)?;
        Ok(())
    }

    /// Fires duration rules that are due. Their alarms follow the chain as if its device profile node had created them.
    pub fn check_durations(&mut self) {
        let devices = self.core.devices.iter();
        let waiting = devices.filter(|(_, device)| {
            device
                .alarms
                .as_ref()
                .is_some_and(|alarms| alarms.rules.has_durations())
        });
        let waiting: Vec<DeviceId> = waiting.map(|(id, _)| *id).collect();
        for id in waiting {
            let Ok(effects) = self.apply_event(id.entity(), AlarmRuleEvent::Tick) else {
                continue;
            };
            let Ok(sender) = self.sender(id) else { continue };
            self.run_effects(&sender, effects);
        }
    }

    /// Runs the chain for each effect of rules that fired without a message.
    pub fn run_effects(&mut self, sender: &SendingDevice, effects: Vec<AlarmEffect>) {
        for effect in effects {
            let cause = ChainMessage {
                kind: "".into(),
                originator: sender.id.entity(),
                customer: CustomerId::NULL,
                metadata: Metadata::default(),
                data: MessageData::Json(serde_json::Value::Null),
                ts_ms: self.now_ms,
            };
            if let Ok(message) = alarm_message(&effect, &cause) {
                self.run_from_rules(sender, effect.action.label(), message);
            }
        }
    }
}
