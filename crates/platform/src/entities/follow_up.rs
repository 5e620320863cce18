//! Work that follows from a change of an entity: deletion of points and states, and notification about packages. The
//! work is recorded in the same transaction as the change. It is retried until it succeeds, also after a restart.

use super::{Entities, EntityError};
use crate::ids::{EntityId, EntityType, Uuid};
use crate::model::{Device, DeviceProfile};
use crate::repository::{RepositoryChange, StateKind};

/// States of an entity.
const STATES: [StateKind; 3] = [StateKind::AlarmRules, StateKind::Activity, StateKind::EntityEvents];

/// Marks an entity for cleanup, unless its type has neither points nor states.
pub(super) fn mark_deleted(id: EntityId) -> Option<RepositoryChange> {
    let has_nothing = matches!(id.kind, EntityType::AuditLog | EntityType::Rpc);
    (!has_nothing).then(|| mark(StateKind::Deleted, id.id))
}

fn mark(state: StateKind, id: Uuid) -> RepositoryChange {
    RepositoryChange::PutState {
        state,
        id,
        bytes: Some(vec![1]),
    }
}

fn unmark(state: StateKind, id: Uuid) -> RepositoryChange {
    RepositoryChange::PutState { state, id, bytes: None }
}

impl Entities {
    /// Deleted entities whose points and states are not deleted yet.
    pub fn deleted(&self) -> Result<Vec<Uuid>, EntityError> {
        self.marked(StateKind::Deleted)
    }

    /// Finishes deleted entities after their points: deletes their states, and attributes and alarms that a running
    /// batch added.
    pub fn finish_deleted(&self, ids: &[Uuid]) -> Result<(), EntityError> {
        let states = STATES.into_iter().chain([StateKind::Deleted]);
        let late = |id: &Uuid| {
            [
                RepositoryChange::DeleteAttributesOf(*id),
                RepositoryChange::DeleteAlarmsOf(*id),
            ]
        };
        let late = ids.iter().flat_map(late);
        let of_all = states.flat_map(|state| ids.iter().map(move |id| unmark(state, *id)));
        let changes: Vec<RepositoryChange> = late.chain(of_all).collect();
        Ok(self.repository.apply(&changes)?)
    }

    /// Devices and device profiles with changed packages, of which not all devices have been notified.
    pub fn pending_ota_notifications(&self) -> Result<Vec<Uuid>, EntityError> {
        self.marked(StateKind::OtaPending)
    }

    pub fn is_ota_notification_pending(&self, id: Uuid) -> Result<bool, EntityError> {
        Ok(self.repository.state(StateKind::OtaPending, id)?.is_some())
    }

    pub fn ota_notified(&self, id: Uuid) -> Result<(), EntityError> {
        Ok(self.repository.apply(&[unmark(StateKind::OtaPending, id)])?)
    }

    fn marked(&self, state: StateKind) -> Result<Vec<Uuid>, EntityError> {
        let mut all = Vec::new();
        self.repository.for_each_state(state, &mut |id, _| all.push(id))?;
        Ok(all)
    }

    /// Marks the device if its package may have changed.
    pub(super) fn mark_device_for_ota(&self, saved: &Device, stored: Option<&Device>) -> Option<RepositoryChange> {
        let ids = |device: &Device| (device.firmware_id, device.software_id, device.device_profile_id);
        let is_changed = match stored {
            Some(stored) => ids(stored) != ids(saved),
            None => {
                let directory = self.directory();
                let profile = saved.device_profile_id.and_then(|id| directory.profile(id));
                let of_profile = |profile: &DeviceProfile| [profile.firmware_id, profile.software_id];
                let of_profile = profile.map(|profile| of_profile(profile)).unwrap_or_default();
                let own = [saved.firmware_id, saved.software_id];
                own.iter().chain(&of_profile).any(Option::is_some)
            }
        };
        is_changed.then(|| mark(StateKind::OtaPending, saved.id.unwrap_or_default().0))
    }

    pub(super) fn mark_profile_for_ota(
        saved: &DeviceProfile,
        stored: Option<&DeviceProfile>,
    ) -> Option<RepositoryChange> {
        let stored = stored?;
        let is_changed = (stored.firmware_id, stored.software_id) != (saved.firmware_id, saved.software_id);
        is_changed.then(|| mark(StateKind::OtaPending, saved.id.unwrap_or_default().0))
    }
}
