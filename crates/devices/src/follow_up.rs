//! Work that follows from entity changes: send new OTA packages to devices, delete the points of deleted entities.
//!
//! Each task is stored in the same transaction as its change, and retried until it succeeds; see
//! `platform::entities::Entities::deleted`.

use std::fmt;

use journal::Lsn;
use platform::entities::EntityError;
use platform::ids::{DeviceId, DeviceProfileId, EntityType, Uuid};
use platform::model::OtaPackageType;
use timeseries::{Delete, LatestAfterDelete};

use crate::devices::Devices;
use crate::entry::{EntryKind, IngestEntry, entity_type_number};
use crate::hub::{Hub, unix_ms};
use crate::ingest::error_chain;
use crate::log::LogFull;
use crate::stats::DeviceCounters;

/// Devices per batch. Keeps a batch short, so that device messages are not delayed.
const DEVICES_PER_BATCH: usize = 100;
/// Interval between searches for pending notifications. Usually the request that changes an entity notifies the
/// devices itself.
const SEARCH_MS: i64 = 10_000;

/// Only one in so many failed attempts to delete points is logged. There is one attempt per second.
const FAILURES_PER_LOG_LINE: u32 = 60;

/// Follow-up work that was found, and is done in the next round.
#[derive(Default)]
pub struct FollowUps {
    /// Deleted entities, with the log position up to which devices may have sent points for them.
    deleted: Option<(Lsn, Vec<Uuid>)>,
    /// Failed attempts in a row.
    failures: u32,
    unnotified: Option<Vec<Uuid>>,
    next_check_ms: i64,
}

/// Devices have not been notified of their packages yet. The notification is retried.
#[derive(Debug)]
pub enum OtaNotificationError {
    Entities(EntityError),
    Log(LogFull),
}

impl fmt::Display for OtaNotificationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("cannot store the OTA notification")
    }
}

impl std::error::Error for OtaNotificationError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            OtaNotificationError::Entities(error) => Some(error),
            OtaNotificationError::Log(error) => Some(error),
        }
    }
}

impl From<EntityError> for OtaNotificationError {
    fn from(error: EntityError) -> OtaNotificationError {
        OtaNotificationError::Entities(error)
    }
}

impl From<LogFull> for OtaNotificationError {
    fn from(error: LogFull) -> OtaNotificationError {
        OtaNotificationError::Log(error)
    }
}

impl Devices {
    /// Notifies devices whose packages differ after a device or a device profile was saved.
    pub fn notify_ota(&self, id: Uuid) -> Result<(), OtaNotificationError> {
        self.hub.notify_ota(id, false)
    }
}

impl Hub {
    pub fn run_follow_ups(&self, follow_ups: &mut FollowUps) {
        let finished = self
            .delete_points(&mut follow_ups.deleted)
            .map_err(|error| error_chain(&*error));
        match finished {
            Ok(()) => follow_ups.failures = 0,
            Err(error) => {
                if follow_ups.failures.is_multiple_of(FAILURES_PER_LOG_LINE) {
                    tracing::warn!(
                        error,
                        "deleting the points of deleted entities failed, retrying every second"
                    );
                }
                follow_ups.failures = follow_ups.failures.wrapping_add(1);
            }
        }
        let now_ms = unix_ms();
        if now_ms >= follow_ups.next_check_ms {
            follow_ups.next_check_ms = now_ms.saturating_add(SEARCH_MS);
            if let Err(error) = self.notify_pending(&mut follow_ups.unnotified) {
                tracing::warn!(error = %error_chain(&error), "storing OTA notifications failed, retrying");
            }
        }
    }

    /// Waits until messages received before the deletion are stored, so that their points are deleted too.
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
        entities.finish_deleted(&done)?;
        *found = None;
        Ok(deleted?)
    }

    /// Notifies devices found in the previous search, or at the start. Newer changes are left to the request that
    /// made them.
    fn notify_pending(&self, found: &mut Option<Vec<Uuid>>) -> Result<(), OtaNotificationError> {
        let pending = self.platform.entities().pending_ota_notifications()?;
        let before = found.replace(pending.clone());
        let is_due = |id: &Uuid| before.as_ref().is_none_or(|before| before.contains(id));
        pending
            .into_iter()
            .filter(is_due)
            .try_for_each(|id| self.notify_ota(id, true))
    }

    /// `is_again`: includes devices that already know the package, but whose telemetry does not show it.
    fn notify_ota(&self, id: Uuid, is_again: bool) -> Result<(), OtaNotificationError> {
        let entities = self.platform.entities();
        let devices: Vec<DeviceId> = {
            let directory = entities.directory();
            match directory.device(DeviceId(id)) {
                Some(_) => vec![DeviceId(id)],
                None => {
                    let all = directory.devices();
                    let of_profile = all.filter(|(_, entry)| entry.profile == DeviceProfileId(id));
                    of_profile.map(|(id, _)| id).collect()
                }
            }
        };
        for devices in devices.chunks(DEVICES_PER_BATCH) {
            for kind in [OtaPackageType::Firmware, OtaPackageType::Software] {
                self.notify_batch_of_ota(devices, kind, is_again)?;
            }
        }
        Ok(entities.ota_notified(id)?)
    }

    /// Uses one transaction for all devices, and waits for the log once.
    fn notify_batch_of_ota(
        &self,
        devices: &[DeviceId],
        kind: OtaPackageType,
        is_again: bool,
    ) -> Result<(), OtaNotificationError> {
        let now_ms = unix_ms();
        let mut out = self.outlet(now_ms);
        let targets = self.platform.notify_ota(devices, (kind, is_again), now_ms, &mut out)?;
        drop(out);
        let mut appended = Vec::with_capacity(targets.len());
        for (device, target) in targets {
            let body = target.to_string();
            let entry = IngestEntry {
                id: entity_type_number(EntityType::Device),
                ..IngestEntry::new(EntryKind::SaveTexts, device.0, now_ms, body.as_bytes())
            };
            DeviceCounters::add(&self.counters.appended, 1);
            appended.push(self.log.append_entry(&entry)?);
        }
        for pending in appended {
            pending.wait()?;
        }
        Ok(())
    }
}
