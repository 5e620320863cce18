//! What follows from a change and is done after it, noted in the same transaction: if the process ends in between, or it cannot be done
//! then, it is done later.

use super::{Entities, EntityError};
use crate::ids::{EntityId, EntityType, Uuid};
use crate::model::{Device, DeviceProfile};
use crate::repository::{Change, StateKind};

/// What machines keep of an entity.
const STATES: [StateKind; 3] = [StateKind::AlarmRules, StateKind::Activity, StateKind::EntityEvents];

/// Nothing is left of what has neither points nor states.
pub(super) fn is_deleted(id: EntityId) -> Option<Change> {
    let has_nothing = matches!(id.kind, EntityType::AuditLog | EntityType::Rpc);
    (!has_nothing).then(|| note(StateKind::Deleted, id.id))
}

fn note(state: StateKind, id: Uuid) -> Change {
    Change::PutState {
        state,
        id,
        bytes: Some(vec![1]),
    }
}

fn forget(state: StateKind, id: Uuid) -> Change {
    Change::PutState { state, id, bytes: None }
}

impl Entities {
    /// Entities that were deleted, of which points and states are left.
    pub fn deleted(&self) -> Result<Vec<Uuid>, EntityError> {
        self.noted(StateKind::Deleted)
    }

    /// Their points are gone: so are their states, and attributes and alarms of a batch that was under way when they were deleted.
    pub fn forget_deleted(&self, ids: &[Uuid]) -> Result<(), EntityError> {
        let states = STATES.into_iter().chain([StateKind::Deleted]);
        let late = |id: &Uuid| [Change::DeleteAttributesOf(*id), Change::DeleteAlarmsOf(*id)];
        let late = ids.iter().flat_map(late);
        let of_all = states.flat_map(|state| ids.iter().map(move |id| forget(state, *id)));
        let changes: Vec<Change> = late.chain(of_all).collect();
        Ok(self.repository.apply(&changes)?)
    }

    /// Devices, and profiles of devices, whose packages were changed: not all devices have been told.
    pub fn untold_of_ota(&self) -> Result<Vec<Uuid>, EntityError> {
        self.noted(StateKind::OtaUntold)
    }

    pub fn is_untold_of_ota(&self, id: Uuid) -> Result<bool, EntityError> {
        Ok(self.repository.state(StateKind::OtaUntold, id)?.is_some())
    }

    pub fn told_of_ota(&self, id: Uuid) -> Result<(), EntityError> {
        Ok(self.repository.apply(&[forget(StateKind::OtaUntold, id)])?)
    }

    fn noted(&self, state: StateKind) -> Result<Vec<Uuid>, EntityError> {
        let mut all = Vec::new();
        self.repository.for_each_state(state, &mut |id, _| all.push(id))?;
        Ok(all)
    }

    /// If the device may have to be told of another package.
    pub(super) fn untold_device(&self, saved: &Device, stored: Option<&Device>) -> Option<Change> {
        let ids = |device: &Device| (device.firmware_id, device.software_id, device.device_profile_id);
        let is_untold = match stored {
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
        is_untold.then(|| note(StateKind::OtaUntold, saved.id.unwrap_or_default().0))
    }

    pub(super) fn untold_profile(saved: &DeviceProfile, stored: Option<&DeviceProfile>) -> Option<Change> {
        let stored = stored?;
        let is_untold = (stored.firmware_id, stored.software_id) != (saved.firmware_id, saved.software_id);
        is_untold.then(|| note(StateKind::OtaUntold, saved.id.unwrap_or_default().0))
    }
}
