//! Alarm rules that fire because time passed, of devices that say nothing more as well: after a start what their rules had
//! counted is read from the repository, some devices a tick.

use super::host::Visit;
use super::ingest::Sender;
use crate::alarm_rules::{Effect, Event};
use crate::chain::{Data, Message, Metadata, NodeError, alarm_message};
use crate::ids::{CustomerId, DeviceId};

/// Devices whose counters are read in one tick: each costs some look-ups while messages wait.
const LOADED_MAX: usize = 200;

impl Visit<'_> {
    /// What was counted before the start, of rules with durations. The others wait for the device's next message, and so does everything until
    /// a replay is over: rules begin with the newest values that are stored.
    pub fn load_durations(&mut self) {
        if self.core.replayed < self.core.applied {
            return;
        }
        for _ in 0..LOADED_MAX {
            let Some(id) = self.core.unloaded.pop_front() else {
                return;
            };
            if self.load_duration(id).is_err() {
                // The stores are not there now. Behind the others, in case that it is this one.
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
        // Whoever is met like this has a timeout, too.
        self.activity(id);
        self.device_state(id).alarms = self.device_alarms(id)?;
        Ok(())
    }

    /// Rules that fire because time passed; the alarm goes along the chain as if the node had said it.
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
            let Ok(effects) = self.tell_rules(id.entity(), Event::Tick) else {
                continue;
            };
            let Ok(sender) = self.sender(id) else { continue };
            self.run_effects(&sender, effects);
        }
    }

    /// Of rules that fired without a message.
    pub fn run_effects(&mut self, sender: &Sender, effects: Vec<Effect>) {
        for effect in effects {
            let cause = Message {
                kind: "".into(),
                originator: sender.id.entity(),
                customer: CustomerId::NULL,
                metadata: Metadata::default(),
                data: Data::Json(serde_json::Value::Null),
                ts_ms: self.now_ms,
            };
            if let Ok(said) = alarm_message(&effect, &cause) {
                self.run_from_rules(sender, effect.action.label(), said);
            }
        }
    }
}
