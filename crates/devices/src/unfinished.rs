//! What follows from changes of entities: devices are told of their packages, points of what was deleted go. Each is noted with its change,
//! and done until it succeeds; see `platform::entities::Entities::deleted`.

use std::fmt;

use journal::Lsn;
use platform::entities::EntityError;
use platform::ids::{DeviceId, DeviceProfileId, EntityType, Uuid};
use platform::model::OtaPackageType;
use timeseries::{Delete, LatestAfterDelete};

use crate::devices::Devices;
use crate::entry::{Entry, Kind, entity_type_number};
use crate::hub::{Hub, unix_ms};
use crate::ingest::error_chain;
use crate::log::Full;
use crate::stats::Counters;

/// Devices that are told together: bounded, so that what devices say has its turn in between.
const TOLD_AT_ONCE: usize = 100;
/// Between looks for devices that have not been told: whoever makes a change tells them at once.
const LOOK_MS: i64 = 10_000;

/// Every so many failures to delete points are told; one comes each second.
const FAILURES_TOLD: u32 = 60;

/// What was found, and is done at the next look.
#[derive(Default)]
pub struct Unfinished {
    /// With the place up to which devices may have spoken of them.
    deleted: Option<(Lsn, Vec<Uuid>)>,
    /// In a row.
    failures: u32,
    untold: Option<Vec<Uuid>>,
    next_look_ms: i64,
}

/// Devices are not told of their packages yet: they will be.
#[derive(Debug)]
pub enum Untold {
    Entities(EntityError),
    Log(Full),
}

impl fmt::Display for Untold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("what devices are told of their packages cannot be stored now")
    }
}

impl std::error::Error for Untold {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Untold::Entities(error) => Some(error),
            Untold::Log(error) => Some(error),
        }
    }
}

impl From<EntityError> for Untold {
    fn from(error: EntityError) -> Untold {
        Untold::Entities(error)
    }
}

impl From<Full> for Untold {
    fn from(error: Full) -> Untold {
        Untold::Log(error)
    }
}

impl Devices {
    /// After a device or a profile of devices was saved: those are told whose packages have become others.
    pub fn tell_of_ota(&self, of: Uuid) -> Result<(), Untold> {
        self.hub.tell_of_ota(of, false)
    }
}

impl Hub {
    pub fn finish(&self, unfinished: &mut Unfinished) {
        let finished = self
            .delete_points(&mut unfinished.deleted)
            .map_err(|error| error_chain(&*error));
        match finished {
            Ok(()) => unfinished.failures = 0,
            Err(error) => {
                if unfinished.failures.is_multiple_of(FAILURES_TOLD) {
                    tracing::warn!(
                        error,
                        "points of entities that were deleted cannot be deleted; it is tried again"
                    );
                }
                unfinished.failures = unfinished.failures.wrapping_add(1);
            }
        }
        let now_ms = unix_ms();
        if now_ms >= unfinished.next_look_ms {
            unfinished.next_look_ms = now_ms.saturating_add(LOOK_MS);
            if let Err(error) = self.tell_untold(&mut unfinished.untold) {
                tracing::warn!(error = %error_chain(&error), "devices are not told of their packages yet");
            }
        }
    }

    /// What devices said before is stored, so that it goes too.
    fn delete_points(&self, found: &mut Option<(Lsn, Vec<Uuid>)>) -> Result<(), Box<dyn std::error::Error>> {
        let entities = self.platform.entities();
        let Some((upto, ids)) = found else {
            let ids = entities.deleted()?;
            if !ids.is_empty() {
                *found = Some((self.log.committed(), ids));
            }
            return Ok(());
        };
        if !self.processed.has_reached(*upto) {
            return Ok(());
        }
        let store = self.platform.store();
        let mut done = Vec::new();
        let mut deleted = Ok(());
        for id in ids.iter() {
            deleted = store.delete(&Delete {
                entity: (*id).into(),
                keys: None,
                range: i64::MIN..i64::MAX,
                latest: LatestAfterDelete::Remove,
            });
            if deleted.is_err() {
                break;
            }
            done.push(*id);
        }
        entities.forget_deleted(&done)?;
        *found = None;
        Ok(deleted?)
    }

    /// Of what was found at the last look, or is there at the start; whoever made the change since tells devices himself.
    fn tell_untold(&self, found: &mut Option<Vec<Uuid>>) -> Result<(), Untold> {
        let untold = self.platform.entities().untold_of_ota()?;
        let before = found.replace(untold.clone());
        let is_due = |id: &Uuid| before.as_ref().is_none_or(|before| before.contains(id));
        untold
            .into_iter()
            .filter(is_due)
            .try_for_each(|id| self.tell_of_ota(id, true))
    }

    /// `is_again`: those too that know of the package, and whose telemetry does not show it.
    fn tell_of_ota(&self, of: Uuid, is_again: bool) -> Result<(), Untold> {
        let entities = self.platform.entities();
        let devices: Vec<DeviceId> = {
            let directory = entities.directory();
            match directory.device(DeviceId(of)) {
                Some(_) => vec![DeviceId(of)],
                None => {
                    let all = directory.devices();
                    let of_profile = all.filter(|(_, entry)| entry.profile == DeviceProfileId(of));
                    of_profile.map(|(id, _)| id).collect()
                }
            }
        };
        for devices in devices.chunks(TOLD_AT_ONCE) {
            for kind in [OtaPackageType::Firmware, OtaPackageType::Software] {
                self.tell_these_of_ota(devices, kind, is_again)?;
            }
        }
        Ok(entities.told_of_ota(of)?)
    }

    /// One transaction for what is stored of all of them, and one wait for the log.
    fn tell_these_of_ota(&self, devices: &[DeviceId], kind: OtaPackageType, is_again: bool) -> Result<(), Untold> {
        let now_ms = unix_ms();
        let mut out = self.out(now_ms);
        let targets = self.platform.tell_of_ota(devices, (kind, is_again), now_ms, &mut out)?;
        drop(out);
        let mut kept = Vec::with_capacity(targets.len());
        for (device, target) in targets {
            let body = target.to_string();
            let entry = Entry {
                id: entity_type_number(EntityType::Device),
                ..Entry::new(Kind::SaveTexts, device.0, now_ms, body.as_bytes())
            };
            Counters::add(&self.counters.appended, 1);
            kept.push(self.log.append_entry(&entry)?);
        }
        for kept in kept {
            kept.wait()?;
        }
        Ok(())
    }
}
