//! Claiming: a device says that it may be claimed, for a while and with a secret; a user of a customer takes it with that.
//!
//! Who may be claimed is stored before the device is answered, so that a restart forgets none of it. It is known with its time until that is
//! over, also when it was used: what the log says again after a crash brings back no claim that somebody has taken or guessed wrong.
//!
//! Claims change while [`Entities::changing`] is held, on the disk first: their own lock is for a look into memory, and never held for the disk.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::MutexGuard;

use serde::{Deserialize, Serialize};

use super::{Entities, EntityError};
use crate::decode::Claim;
use crate::directory::Directory;
use crate::ids::{CustomerId, DeviceId, TenantId, Uuid};
use crate::model::{Device, DeviceCredentials};
use crate::repository::{Change, Repository, RepositoryError, StateKind};

/// How long a claim may wait for its user, if the device does not say.
const CLAIM_MS_DEFAULT: i64 = 86_400_000;
/// At most, whatever the device says.
const CLAIM_MS_MAX: i64 = 30 * 86_400_000;

/// Claims that are known, in all and of a tenant. More than these push out used ones, then those whose time is over first: of the tenant
/// itself, or of the one that has the most.
const CLAIMS_MAX: usize = 100_000;
const CLAIMS_OF_TENANT_MAX: usize = CLAIMS_MAX / 2;

/// In one transaction: others have their turn in between.
const FORGOTTEN_AT_ONCE: usize = 1000;

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
    /// All of them, in the order in which they may go.
    order: BTreeSet<Place>,
    /// Those of each tenant; none has none.
    of_tenants: HashMap<TenantId, BTreeSet<Place>>,
    /// How many each tenant has.
    crowds: BTreeSet<(usize, TenantId)>,
}

/// Used ones first, then those whose time is over first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    is_unused: bool,
    expiration_time: i64,
    device: DeviceId,
}

impl Place {
    fn of(device: DeviceId, claim: &WaitingClaim) -> Place {
        Place {
            is_unused: !claim.is_used,
            expiration_time: claim.expiration_time,
            device,
        }
    }

    /// Before all others that are as used and end at this time or later.
    fn first(is_unused: bool, expiration_time: i64) -> Place {
        Place {
            is_unused,
            expiration_time,
            device: DeviceId(Uuid([0; 16])),
        }
    }
}

/// As it is stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct WaitingClaim {
    /// The device's.
    #[serde(skip)]
    tenant: TenantId,
    secret_key: String,
    /// When the device said it.
    since: i64,
    expiration_time: i64,
    /// Somebody has taken it, or tried another secret.
    is_used: bool,
}

impl WaitingClaim {
    fn new(tenant: TenantId, claim: &Claim, since_ms: i64) -> WaitingClaim {
        let duration_ms = match claim.duration_ms {
            said if said > 0 => said.min(CLAIM_MS_MAX),
            _ => CLAIM_MS_DEFAULT,
        };
        WaitingClaim {
            tenant,
            secret_key: claim.secret_key.clone(),
            since: since_ms,
            expiration_time: since_ms.saturating_add(duration_ms),
            is_used: false,
        }
    }

    fn is_over(&self, now_ms: i64) -> bool {
        now_ms > self.expiration_time
    }

    /// Whether somebody can still take the device with it.
    fn is_open(&self, now_ms: i64) -> bool {
        !self.is_used && !self.is_over(now_ms)
    }

    /// Without its secret, which is worth nothing any more.
    fn used(&self) -> WaitingClaim {
        WaitingClaim {
            secret_key: String::new(),
            is_used: true,
            ..self.clone()
        }
    }
}

fn kept(device: DeviceId, claim: &WaitingClaim) -> Result<Change, EntityError> {
    let bytes = serde_json::to_vec(claim);
    Ok(Change::PutState {
        state: StateKind::Claim,
        id: device.0,
        bytes: Some(bytes.map_err(|error| EntityError::invalid(format!("the claim cannot be stored: {error}")))?),
    })
}

fn forgotten(device: DeviceId) -> Change {
    Change::PutState {
        state: StateKind::Claim,
        id: device.0,
        bytes: None,
    }
}

impl Claims {
    /// Those of the process before; what cannot be read is no claim. What is left of devices that are gone is removed.
    pub fn load(repository: &dyn Repository, directory: &Directory) -> Result<Claims, RepositoryError> {
        let mut claims = Claims::default();
        let mut gone = Vec::new();
        repository.for_each_state(StateKind::Claim, &mut |id, bytes| {
            let id = DeviceId(id);
            let Some(device) = directory.device(id) else {
                return gone.push(forgotten(id));
            };
            if let Ok(claim) = serde_json::from_slice::<WaitingClaim>(bytes) {
                let latest = claim.since.saturating_add(CLAIM_MS_MAX);
                let claim = WaitingClaim {
                    tenant: device.tenant,
                    expiration_time: claim.expiration_time.min(latest),
                    ..claim
                };
                claims.insert(id, claim);
            }
        })?;
        for piece in gone.chunks(FORGOTTEN_AT_ONCE) {
            repository.apply(piece)?;
        }
        Ok(claims)
    }

    fn insert(&mut self, device: DeviceId, claim: WaitingClaim) {
        self.remove(device);
        let place = Place::of(device, &claim);
        self.order.insert(place);
        self.change_tenant(claim.tenant, |own| own.insert(place));
        self.waiting.insert(device, claim);
    }

    pub fn remove(&mut self, device: DeviceId) {
        if let Some(claim) = self.waiting.remove(&device) {
            let place = Place::of(device, &claim);
            self.order.remove(&place);
            self.change_tenant(claim.tenant, |own| own.remove(&place));
        }
    }

    fn change_tenant(&mut self, tenant: TenantId, change: impl FnOnce(&mut BTreeSet<Place>) -> bool) {
        let own = self.of_tenants.entry(tenant).or_default();
        self.crowds.remove(&(own.len(), tenant));
        change(own);
        let count = own.len();
        if count == 0 {
            self.of_tenants.remove(&tenant);
        } else {
            self.crowds.insert((count, tenant));
        }
    }

    fn count_of(&self, tenant: TenantId) -> usize {
        self.of_tenants.get(&tenant).map_or(0, BTreeSet::len)
    }

    /// What has to be stored when the device goes.
    pub fn change_without(&self, device: DeviceId) -> Option<Change> {
        self.waiting.contains_key(&device).then(|| forgotten(device))
    }

    /// Some of those whose time is over.
    fn over(&self, now_ms: i64) -> Vec<DeviceId> {
        let over = [false, true].into_iter().flat_map(|is_unused| {
            self.order
                .range(Place::first(is_unused, i64::MIN)..Place::first(is_unused, now_ms))
        });
        over.map(|place| place.device).take(FORGOTTEN_AT_ONCE).collect()
    }

    /// Whether what is known of the device holds against what it says now.
    fn holds(&self, device: DeviceId, new: &WaitingClaim, said: Said, now_ms: i64) -> bool {
        self.waiting.get(&device).is_some_and(|known| match said {
            Said::Now => known.is_open(now_ms),
            Said::Again => known.since >= new.since || known.is_open(now_ms),
        })
    }

    /// What has to go for new ones, which are of one tenant.
    fn in_the_way(&self, new: &HashMap<DeviceId, WaitingClaim>, now_ms: i64) -> HashSet<DeviceId> {
        let mut gone = HashSet::new();
        let Some(tenant) = new.values().next().map(|claim| claim.tenant) else {
            return gone;
        };
        let added = new.keys().filter(|device| !self.waiting.contains_key(*device)).count();
        let too_many = (self.count_of(tenant) + added).saturating_sub(CLAIMS_OF_TENANT_MAX);
        let own = self.of_tenants.get(&tenant).into_iter().flatten();
        push_out(&mut gone, new, too_many, own);
        let too_many = (self.waiting.len() + added - gone.len()).saturating_sub(CLAIMS_MAX);
        let least = gone.len() + too_many;
        let useless = self.order.range(..Place::first(true, now_ms));
        push_out(&mut gone, new, too_many, useless);
        let rest = self
            .crowds
            .iter()
            .rev()
            .filter_map(|(_, tenant)| self.of_tenants.get(tenant));
        let too_many = least - gone.len();
        push_out(&mut gone, new, too_many, rest.flatten());
        gone
    }
}

/// So many more of these, but none that is said anew.
fn push_out<'a>(
    gone: &mut HashSet<DeviceId>,
    new: &HashMap<DeviceId, WaitingClaim>,
    count: usize,
    places: impl Iterator<Item = &'a Place>,
) {
    let wanted = gone.len() + count;
    for place in places {
        if gone.len() >= wanted {
            return;
        }
        if !new.contains_key(&place.device) {
            gone.insert(place.device);
        }
    }
}

impl Entities {
    pub(super) fn claims(&self) -> MutexGuard<'_, Claims> {
        self.claims.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// As [`Entities::allow_claims`], of one device.
    pub fn allow_claim(
        &self,
        device: DeviceId,
        claim: &Claim,
        said: (Said, i64),
        now_ms: i64,
    ) -> Result<(), EntityError> {
        self.allow_claims(&[(device, claim.clone())], said, now_ms)
    }

    /// Devices of one tenant say that they may be claimed, at `since_ms`. What a device said before holds until its time is over or it was
    /// used. All are stored at once, but for those that may not be claimed; the error is that of the first of these.
    pub fn allow_claims(
        &self,
        wanted: &[(DeviceId, Claim)],
        (said, since_ms): (Said, i64),
        now_ms: i64,
    ) -> Result<(), EntityError> {
        let _changing = self.changing();
        let mut new = HashMap::new();
        let mut refused = Ok(());
        for (device, claim) in wanted {
            match self.tenant_of_unclaimed(*device) {
                Ok(tenant) => {
                    let claim = WaitingClaim::new(tenant, claim, since_ms);
                    if !claim.is_over(now_ms) && !self.claims().holds(*device, &claim, said, now_ms) {
                        new.entry(*device).or_insert(claim);
                    }
                }
                Err(error) => refused = refused.and(Err(error)),
            }
        }
        self.put_claims(new, now_ms)?;
        refused
    }

    fn tenant_of_unclaimed(&self, device: DeviceId) -> Result<TenantId, EntityError> {
        let device: Device = self.get(device.0)?;
        if device.customer_id.unwrap_or_default() != CustomerId::NULL {
            return Err(EntityError::invalid(format!(
                "Device [{}] has been already claimed!",
                device.name
            )));
        }
        Ok(device.tenant_id)
    }

    fn put_claims(&self, new: HashMap<DeviceId, WaitingClaim>, now_ms: i64) -> Result<(), EntityError> {
        if new.is_empty() {
            return Ok(());
        }
        let gone = self.claims().in_the_way(&new, now_ms);
        let mut changes: Vec<Change> = gone.iter().map(|device| forgotten(*device)).collect();
        for (device, claim) in &new {
            changes.push(kept(*device, claim)?);
        }
        self.repository.apply(&changes)?;
        let mut claims = self.claims();
        for device in gone {
            claims.remove(device);
        }
        for (device, claim) in new {
            claims.insert(device, claim);
        }
        Ok(())
    }

    /// A user of the customer takes the device. A claim is used up by that, and by a wrong secret, in the same transaction.
    pub fn claim(
        &self,
        device: &Device,
        customer: CustomerId,
        secret: &str,
        now_ms: i64,
    ) -> Result<ClaimOutcome, EntityError> {
        let _changing = self.changing();
        let id = device.id.unwrap_or_default();
        let stored: Device = self.get(id.0)?;
        let is_owned = stored.customer_id.unwrap_or_default() != CustomerId::NULL;
        let known = self.claims().waiting.get(&id).cloned();
        let Some(claim) = known.filter(|claim| !claim.is_used) else {
            return Ok(match is_owned {
                true => ClaimOutcome::Claimed,
                false => ClaimOutcome::Failure,
            });
        };
        let outcome = if claim.is_over(now_ms) || claim.secret_key != secret {
            self.repository.apply(&[used_up(id, &claim, now_ms)?])?;
            ClaimOutcome::Failure
        } else if is_owned {
            self.repository.apply(&[used_up(id, &claim, now_ms)?])?;
            ClaimOutcome::Claimed
        } else {
            let device = Device {
                customer_id: Some(customer),
                version: None,
                ..stored
            };
            let along = vec![used_up(id, &claim, now_ms)?];
            let saved = self.save_device_along(device, DeviceCredentials::default(), along, now_ms)?;
            ClaimOutcome::Success(Box::new(saved))
        };
        match claim.is_over(now_ms) {
            true => self.claims().remove(id),
            false => self.claims().insert(id, claim.used()),
        }
        Ok(outcome)
    }

    /// The devices are gone, on the disk too.
    pub(super) fn forget_claims_of(&self, devices: &[DeviceId]) {
        let mut claims = self.claims();
        devices.iter().for_each(|device| claims.remove(*device));
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
        loop {
            let _changing = self.changing();
            let over = self.claims().over(now_ms);
            if over.is_empty() {
                return Ok(());
            }
            let changes: Vec<Change> = over.iter().map(|device| forgotten(*device)).collect();
            self.repository.apply(&changes)?;
            let mut claims = self.claims();
            over.into_iter().for_each(|device| claims.remove(device));
        }
    }
}

/// Nobody can use it again; it is known until its time is over.
fn used_up(device: DeviceId, claim: &WaitingClaim, now_ms: i64) -> Result<Change, EntityError> {
    match claim.is_over(now_ms) {
        true => Ok(forgotten(device)),
        false => kept(device, &claim.used()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = 1_700_000_000_000;

    fn device(of: u8, number: usize) -> DeviceId {
        let mut id = [of; 16];
        id[8..].copy_from_slice(&(number as u64).to_be_bytes());
        DeviceId(Uuid(id))
    }

    fn said(of: u8, duration_ms: i64) -> WaitingClaim {
        let claim = Claim {
            secret_key: "s".to_owned(),
            duration_ms,
        };
        WaitingClaim::new(TenantId(Uuid([of; 16])), &claim, NOW)
    }

    fn full(tenants: &[u8]) -> Claims {
        let mut claims = Claims::default();
        for number in 0..CLAIMS_MAX / 2 {
            for of in tenants {
                claims.insert(device(*of, number), said(*of, 1000 + number as i64));
            }
        }
        claims
    }

    fn gone(claims: &Claims, of: u8, numbers: std::ops::Range<usize>) -> Vec<DeviceId> {
        let new = numbers.map(|number| (device(of, number), said(of, 5)));
        let mut gone: Vec<_> = claims.in_the_way(&new.collect(), NOW).into_iter().collect();
        gone.sort_unstable_by_key(|device| device.0.0);
        gone
    }

    #[test]
    fn whoever_says_too_much_pushes_out_its_own_claims() {
        let mut claims = full(&[1]);
        let last = CLAIMS_OF_TENANT_MAX - 1;
        // Used ones first, then those whose time is over first; what is said anew takes no room.
        claims.insert(device(1, last), said(1, 9_000_000).used());
        assert_eq!(gone(&claims, 1, last + 1..last + 3), [device(1, 0), device(1, last)]);
        assert_eq!(gone(&claims, 1, 0..3), []);
        assert_eq!(gone(&claims, 2, 0..3), []);
        // All are full: another one's is pushed out only as long as it has more.
        let mut claims = full(&[1, 2]);
        claims.remove(device(1, 7));
        claims.insert(device(3, 0), said(3, 1));
        assert_eq!(gone(&claims, 3, 1..3), [device(2, 0), device(2, 1)]);
        claims.remove(device(3, 0));
        assert_eq!(claims.of_tenants.len(), 2);
    }

    #[test]
    fn used_ones_go_before_those_of_the_biggest_tenant_and_all_that_is_over_is_found() {
        let mut claims = full(&[1, 2]);
        claims.remove(device(2, 0));
        claims.insert(device(2, 9), said(2, 9).used());
        claims.insert(device(3, 0), said(3, 9_000_000));
        claims.insert(device(1, 8), said(1, 8));
        assert_eq!(gone(&claims, 3, 1..3), [device(1, 8), device(2, 9)]);
        let over = |claims: &Claims, after_ms| {
            let mut over = claims.over(NOW + after_ms);
            over.sort_unstable();
            over
        };
        assert_eq!(over(&claims, 8), []);
        assert_eq!(over(&claims, 9), [device(1, 8)]);
        assert_eq!(over(&claims, 10), [device(1, 8), device(2, 9)]);
        assert_eq!(over(&claims, i64::MAX - NOW).len(), FORGOTTEN_AT_ONCE);
        // What is known of the order is what is known of the claims, also when one is said anew or goes twice.
        claims.insert(device(2, 9), said(2, 7_000_000));
        claims.remove(device(1, 8));
        claims.remove(device(1, 8));
        let mut expected: Vec<Place> = claims.waiting.iter().map(|(id, claim)| Place::of(*id, claim)).collect();
        expected.sort_unstable();
        assert!(claims.order.iter().eq(&expected));
        let of_tenants: BTreeSet<Place> = claims.of_tenants.values().flatten().copied().collect();
        assert_eq!(of_tenants, claims.order);
        let crowds = claims.of_tenants.iter().map(|(tenant, own)| (own.len(), *tenant));
        assert_eq!(crowds.collect::<BTreeSet<_>>(), claims.crowds);
    }

    #[test]
    fn a_full_table_is_not_gone_through_for_each_claim() {
        let mut claims = full(&[1, 2]);
        let start = std::time::Instant::now();
        for number in CLAIMS_OF_TENANT_MAX..CLAIMS_OF_TENANT_MAX + 2000 {
            let new = HashMap::from([(device(3, number), said(3, 5_000_000))]);
            for device in claims.in_the_way(&new, NOW) {
                claims.remove(device);
            }
            new.into_iter().for_each(|(device, claim)| claims.insert(device, claim));
            assert!(claims.over(NOW).is_empty());
        }
        assert_eq!(claims.waiting.len(), CLAIMS_MAX);
        assert_eq!(claims.count_of(TenantId(Uuid([3; 16]))), 2000);
        // Looking at 100,000 claims twice, 2,000 times, takes longer than this on any machine.
        assert!(
            start.elapsed() < std::time::Duration::from_secs(2),
            "{:?}",
            start.elapsed()
        );
    }

    #[test]
    fn no_claim_waits_for_ever() {
        let ends = |duration_ms| said(1, duration_ms).expiration_time - NOW;
        let rows = [
            (0, CLAIM_MS_DEFAULT),
            (-1, CLAIM_MS_DEFAULT),
            (1, 1),
            (i64::MAX, CLAIM_MS_MAX),
        ];
        for (said, expected) in rows {
            assert_eq!(ends(said), expected, "{said}");
        }
    }
}
