//! Claiming: a device says that it may be claimed, for a while and with a secret; a user of a customer takes it with that.
//!
//! Who may be claimed is stored before the device is answered, so that a restart forgets none of it. It is known with its time until that is
//! over, also when it was used: what the log says again after a crash brings back no claim that somebody has taken or guessed wrong.

use std::collections::HashMap;
use std::sync::MutexGuard;

use serde::{Deserialize, Serialize};

use super::{Entities, EntityError};
use crate::decode::Claim;
use crate::ids::{CustomerId, DeviceId, Uuid};
use crate::model::Device;
use crate::repository::{Change, Repository, RepositoryError, StateKind};

/// How long a claim may wait for its user, if the device does not say.
const CLAIM_MS_DEFAULT: i64 = 86_400_000;

/// Devices that wait to be claimed; more than these push out the one whose time is over first.
const CLAIMS_MAX: usize = 100_000;

#[derive(Clone, Debug, PartialEq)]
pub enum ClaimOutcome {
    Success(Box<Device>),
    /// A wrong or old secret, or the device never asked.
    Failure,
    /// It has an owner already.
    Claimed,
}

/// Whether a device says it now, or the log says it once more after a crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Said {
    Now,
    Again,
}

#[derive(Debug, Default)]
pub(super) struct Claims {
    waiting: HashMap<DeviceId, WaitingClaim>,
}

/// As it is stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct WaitingClaim {
    secret_key: String,
    /// When the device said it.
    since: i64,
    expiration_time: i64,
    /// Somebody has taken it, or tried another secret.
    is_used: bool,
}

impl WaitingClaim {
    fn is_over(&self, now_ms: i64) -> bool {
        now_ms > self.expiration_time
    }
}

fn keep(device: DeviceId, claim: Option<&WaitingClaim>) -> Result<Change, EntityError> {
    let bytes = claim.map(serde_json::to_vec).transpose();
    Ok(Change::PutState {
        state: StateKind::Claim,
        id: device.0,
        bytes: bytes.map_err(|error| EntityError::invalid(format!("the claim cannot be stored: {error}")))?,
    })
}

impl Claims {
    /// Those of the process before; what cannot be read is no claim.
    pub fn load(repository: &dyn Repository) -> Result<Claims, RepositoryError> {
        let mut waiting = HashMap::new();
        repository.for_each_state(StateKind::Claim, &mut |device, bytes| {
            if let Ok(claim) = serde_json::from_slice(bytes) {
                waiting.insert(DeviceId(device), claim);
            }
        })?;
        Ok(Claims { waiting })
    }

    /// What has to go for one more.
    fn in_the_way(&self, now_ms: i64) -> Vec<DeviceId> {
        if self.waiting.len() < CLAIMS_MAX {
            return Vec::new();
        }
        let over = self.waiting.iter().filter(|(_, claim)| claim.is_over(now_ms));
        let over: Vec<DeviceId> = over.map(|(id, _)| *id).collect();
        if !over.is_empty() {
            return over;
        }
        let first = self.waiting.iter().min_by_key(|(_, claim)| claim.expiration_time);
        first.map(|(id, _)| *id).into_iter().collect()
    }
}

impl Entities {
    fn claims(&self) -> MutexGuard<'_, Claims> {
        self.claims.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// The device says that it may be claimed, at `since_ms`. What it said before holds until its time is over or it was used.
    pub fn allow_claim(
        &self,
        device: DeviceId,
        claim: &Claim,
        (said, since_ms): (Said, i64),
        now_ms: i64,
    ) -> Result<(), EntityError> {
        let stored: Device = self.get(device.0)?;
        if stored.customer_id.unwrap_or_default() != CustomerId::NULL {
            return Err(EntityError::invalid(format!(
                "Device [{}] has been already claimed!",
                stored.name
            )));
        }
        let duration_ms = if claim.duration_ms > 0 {
            claim.duration_ms
        } else {
            CLAIM_MS_DEFAULT
        };
        let new = WaitingClaim {
            secret_key: claim.secret_key.clone(),
            since: since_ms,
            expiration_time: since_ms.saturating_add(duration_ms),
            is_used: false,
        };
        let mut claims = self.claims();
        let holds = claims.waiting.get(&device).is_some_and(|known| match said {
            Said::Now => !known.is_used && !known.is_over(now_ms),
            Said::Again => known.since >= since_ms || (!known.is_used && !known.is_over(now_ms)),
        });
        if holds || new.is_over(now_ms) {
            return Ok(());
        }
        let gone = claims.in_the_way(now_ms);
        let mut changes = vec![keep(device, Some(&new))?];
        for other in gone.iter().filter(|other| **other != device) {
            changes.push(keep(*other, None)?);
        }
        self.repository.apply(&changes)?;
        for other in gone {
            claims.waiting.remove(&other);
        }
        claims.waiting.insert(device, new);
        Ok(())
    }

    /// A user of the customer takes the device that has this name.
    pub fn claim(
        &self,
        device: &Device,
        customer: CustomerId,
        secret: &str,
        now_ms: i64,
    ) -> Result<ClaimOutcome, EntityError> {
        let id = device.id.unwrap_or_default();
        let is_owned = device.customer_id.unwrap_or_default() != CustomerId::NULL;
        match self.use_claim(id, now_ms)? {
            Some(claim) if claim.is_over(now_ms) || claim.secret_key != secret => Ok(ClaimOutcome::Failure),
            Some(_) if is_owned => Ok(ClaimOutcome::Claimed),
            Some(_) => {
                let device = Device {
                    customer_id: Some(customer),
                    version: None,
                    ..device.clone()
                };
                Ok(ClaimOutcome::Success(Box::new(self.save_device(device, None, now_ms)?)))
            }
            None if is_owned => Ok(ClaimOutcome::Claimed),
            None => Ok(ClaimOutcome::Failure),
        }
    }

    /// The claim that waits, which nobody can use again.
    fn use_claim(&self, device: DeviceId, now_ms: i64) -> Result<Option<WaitingClaim>, EntityError> {
        let mut claims = self.claims();
        let Some(claim) = claims.waiting.get(&device).filter(|claim| !claim.is_used).cloned() else {
            return Ok(None);
        };
        let used = WaitingClaim {
            secret_key: String::new(),
            is_used: true,
            ..claim.clone()
        };
        let is_over = used.is_over(now_ms);
        self.repository
            .apply(&[keep(device, Some(&used).filter(|_| !is_over))?])?;
        if is_over {
            claims.waiting.remove(&device);
        } else {
            claims.waiting.insert(device, used);
        }
        Ok(Some(claim))
    }

    /// The device is deleted.
    pub(super) fn forget_claim(&self, device: DeviceId) -> Option<Change> {
        self.claims().waiting.remove(&device)?;
        keep(device, None).ok()
    }

    /// Gives the device back; it may be claimed again.
    pub fn reclaim(&self, device: &Device, now_ms: i64) -> Result<Device, EntityError> {
        let device = Device {
            customer_id: None,
            version: None,
            ..device.clone()
        };
        self.save_device(device, None, now_ms)
    }

    /// Claims whose time is over are forgotten.
    pub fn forget_old_claims(&self, now_ms: i64) -> Result<(), EntityError> {
        let mut claims = self.claims();
        let over = claims.waiting.iter().filter(|(_, claim)| claim.is_over(now_ms));
        let over: Vec<Uuid> = over.map(|(id, _)| id.0).collect();
        if over.is_empty() {
            return Ok(());
        }
        let gone = over.iter().map(|id| keep(DeviceId(*id), None));
        self.repository.apply(&gone.collect::<Result<Vec<_>, _>>()?)?;
        claims.waiting.retain(|_, claim| !claim.is_over(now_ms));
        Ok(())
    }
}
