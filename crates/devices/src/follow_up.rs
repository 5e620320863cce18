//! Work that follows from entity changes: send new OTA packages to devices, delete the points of deleted entities.
//!
//! Each task is stored in the same transaction as its change, and retried until it succeeds; see
//! `platform::entities::Entities::deleted`.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use journal::Lsn;
use platform::entities::EntityError;
use platform::ids::{DeviceId, DeviceProfileId, EntityType, Uuid};
use platform::model::OtaPackageType;
use timeseries::{Delete, LatestAfterDelete};

use crate::clock::unix_ms;
use crate::entry::{EntryKind, IngestEntry, entity_type_number};
use crate::error_chain::error_chain;
use crate::hub::Hub;
use crate::log::LogFull;

/// Devices per batch. Keeps a batch short, so that device messages are not delayed.
const DEVICES_PER_BATCH: usize = 100;
/// Interval between searches for pending notifications. Usually the request that changes an entity notifies the
/// devices itself.
const SEARCH_INTERVAL: Duration = Duration::from_secs(10);

/// Only one in so many failed attempts to delete points is logged. There is one attempt per second.
const FAILURES_PER_LOG_LINE: u32 = 60;

/// Follow-up work that was found, and is done in the next round.
pub struct FollowUps {
    hub: Arc<Hub>,
    /// Deleted entities, with the log position up to which devices may have sent points for them.
    deleted: Option<(Lsn, Vec<Uuid>)>,
    /// Failed attempts in a row.
    failures: u32,
    unnotified: Option<Vec<Uuid>>,
    next_search: Instant,
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

impl FollowUps {
    pub fn new(hub: Arc<Hub>) -> FollowUps {
        FollowUps {
            hub,
            deleted: None,
            failures: 0,
            unnotified: None,
            next_search: Instant::now(),
        }
    }

    /// Does the work that is due.
    pub fn run(&mut self) {
        match self.delete_points().map_err(|error| error_chain(&*error)) {
            Ok(()) => self.failures = 0,
            Err(error) => {
                if self.failures.is_multiple_of(FAILURES_PER_LOG_LINE) {
                    tracing::warn!(
                        error,
                        "deleting the points of deleted entities failed, retrying every second"
                    );
                }
                self.failures = self.failures.wrapping_add(1);
            }
        }
        let now = Instant::now();
        if now >= self.next_search {
            self.next_search = now + SEARCH_INTERVAL;
            if let Err(error) = self.notify_pending() {
                tracing::warn!(error = %error_chain(&error), "storing OTA notifications failed, retrying");
            }
        }
    }

    /// Waits until messages received before the deletion are stored, so that their points are deleted too.
    fn delete_points(&mut self) -> Result<(), Box<dyn std::error::Error>> {
        let platform = self.hub.platform();
        let entities = platform.entities();
        let Some((upto, ids)) = &self.deleted else {
            let ids = entities.deleted()?;
            if !ids.is_empty() {
                self.deleted = Some((self.hub.log().committed(), ids));
            }
            return Ok(());
        };
        if !self.hub.processed().has_reached(*upto) {
            return Ok(());
        }
        let store = platform.store();
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
        platform.finish_deleted(&done)?;
        self.deleted = None;
        Ok(deleted?)
    }

    /// Notifies devices found in the previous search, or at the start. Newer changes are left to the request that
    /// made them.
    fn notify_pending(&mut self) -> Result<(), OtaNotificationError> {
        let pending = self.hub.platform().entities().pending_ota_notifications()?;
        let before = self.unnotified.replace(pending.clone());
        let is_due = |id: &Uuid| before.as_ref().is_none_or(|before| before.contains(id));
        pending
            .into_iter()
            .filter(is_due)
            .try_for_each(|id| notify_ota(&self.hub, id, true))
    }
}

/// Notifies devices whose packages differ after a device or a device profile was saved. `is_again`: includes devices
/// that already know the package, but whose telemetry does not show it.
pub fn notify_ota(hub: &Hub, id: Uuid, is_again: bool) -> Result<(), OtaNotificationError> {
    let entities = hub.platform().entities();
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
            notify_batch_of_ota(hub, devices, kind, is_again)?;
        }
    }
    Ok(entities.ota_notified(id)?)
}

/// Uses one transaction for all devices, and waits for the log once.
fn notify_batch_of_ota(
    hub: &Hub,
    devices: &[DeviceId],
    kind: OtaPackageType,
    is_again: bool,
) -> Result<(), OtaNotificationError> {
    let now_ms = unix_ms();
    let mut out = hub.outlet(now_ms);
    let targets = hub.platform().notify_ota(devices, (kind, is_again), now_ms, &mut out)?;
    drop(out);
    let mut appended = Vec::with_capacity(targets.len());
    for (device, target) in targets {
        let body = target.to_string();
        let entry = IngestEntry {
            id: entity_type_number(EntityType::Device),
            ..IngestEntry::new(EntryKind::SaveTexts, device.0, now_ms, body.as_bytes())
        };
        appended.push(hub.log().append_entry(&entry)?);
    }
    for pending in appended {
        pending.wait()?;
    }
    Ok(())
}
