//! Claiming: a device allows a claim for a limited time and with a secret, and a user of a customer then claims it.
//!
//! A claim is stored before the device gets a response, so it survives a restart. It stays stored until it expires,
//! even after a user has used it. So a log replay after a crash does not make a used or failed claim valid again.
//!
//! A change of claims holds [`Entities::changing`], and writes to disk before it changes the memory. The lock of the
//! claims guards only the memory, and is never held during disk access.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::MutexGuard;

use serde::{Deserialize, Serialize};

use super::{Entities, EntityError};
use crate::decode::Claim;
use crate::directory::DeviceDirectory;
use crate::ids::{CustomerId, DeviceId, TenantId, Uuid};
use crate::model::{Device, DeviceCredentials};
use crate::repository::{Repository, RepositoryChange, RepositoryError, StateKind};

/// Lifetime of a claim if the device sets none.
const CLAIM_MS_DEFAULT: i64 = 86_400_000;
/// Longest lifetime, whatever the device sets.
const CLAIM_MS_MAX: i64 = 30 * 86_400_000;

/// Largest number of claims, in all and per tenant. Beyond that, used claims are removed first, then those that
/// expire first: of the same tenant, or of the tenant with the most.
pub(super) const CLAIMS_MAX: usize = 100_000;
pub(super) const CLAIMS_OF_TENANT_MAX: usize = CLAIMS_MAX / 2;

/// Maximum number of claims that one transaction removes, so that it does not delay other changes.
const REMOVED_AT_ONCE: usize = 1000;

#[derive(Clone, Debug, PartialEq)]
pub enum ClaimOutcome {
    Success(Box<Device>),
    /// A wrong secret, an expired claim, or no claim.
    Failure,
    /// The device already has an owner.
    Claimed,
}

/// Whether a message was just received, or is replayed from the log after a crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReceptionMode {
    Live,
    Replay,
}

#[derive(Debug, Default)]
pub(super) struct PendingClaims {
    waiting: HashMap<DeviceId, WaitingClaim>,
    /// All claims, in the order of removal.
    order: BTreeSet<ClaimOrderKey>,
    /// Claims per tenant; no set is empty.
    of_tenants: HashMap<TenantId, BTreeSet<ClaimOrderKey>>,
    /// Number of claims of each tenant.
    counts: BTreeSet<(usize, TenantId)>,
}

/// Used claims first, then by expiration time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct ClaimOrderKey {
    is_unused: bool,
    expiration_time: i64,
    device: DeviceId,
}

impl ClaimOrderKey {
    fn of(device: DeviceId, claim: &WaitingClaim) -> ClaimOrderKey {
        ClaimOrderKey {
            is_unused: !claim.is_used,
            expiration_time: claim.expiration_time,
            device,
        }
    }

    /// The position before all claims with this state that expire at this time or later.
    fn first(is_unused: bool, expiration_time: i64) -> ClaimOrderKey {
        ClaimOrderKey {
            is_unused,
            expiration_time,
            device: DeviceId(Uuid([0; 16])),
        }
    }
}

/// The stored form.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct WaitingClaim {
    /// The device's tenant.
    #[serde(skip)]
    tenant: TenantId,
    secret_key: String,
    /// When the device allowed the claim.
    since: i64,
    expiration_time: i64,
    /// A user claimed the device, or tried a wrong secret.
    is_used: bool,
}

impl WaitingClaim {
    fn new(tenant: TenantId, claim: &Claim, since_ms: i64) -> WaitingClaim {
        let duration_ms = match claim.duration_ms {
            requested if requested > 0 => requested.min(CLAIM_MS_MAX),
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

    /// Whether a user can still claim the device with it.
    fn is_open(&self, now_ms: i64) -> bool {
        !self.is_used && !self.is_over(now_ms)
    }

    /// Marks it as used and removes the secret, which is no longer needed.
    fn used(&self) -> WaitingClaim {
        WaitingClaim {
            secret_key: String::new(),
            is_used: true,
            ..self.clone()
        }
    }
}

fn put_change(device: DeviceId, claim: &WaitingClaim) -> Result<RepositoryChange, EntityError> {
    let bytes = serde_json::to_vec(claim);
    Ok(RepositoryChange::PutState {
        state: StateKind::Claim,
        id: device.0,
        bytes: Some(bytes.map_err(|error| EntityError::invalid(format!("cannot store the claim: {error}")))?),
    })
}

fn delete_change(device: DeviceId) -> RepositoryChange {
    RepositoryChange::PutState {
        state: StateKind::Claim,
        id: device.0,
        bytes: None,
    }
}

impl PendingClaims {
    /// Loads the claims of the previous process. Skips those that cannot be decoded, and removes those of deleted
    /// devices.
    pub fn load(repository: &dyn Repository, directory: &DeviceDirectory) -> Result<PendingClaims, RepositoryError> {
        let mut claims = PendingClaims::default();
        let mut orphaned = Vec::new();
        repository.for_each_state(StateKind::Claim, &mut |id, bytes| {
            let id = DeviceId(id);
            let Some(device) = directory.device(id) else {
                return orphaned.push(delete_change(id));
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
        for piece in orphaned.chunks(REMOVED_AT_ONCE) {
            repository.apply(piece)?;
        }
        Ok(claims)
    }

    fn insert(&mut self, device: DeviceId, claim: WaitingClaim) {
        self.remove(device);
        let place = ClaimOrderKey::of(device, &claim);
        self.order.insert(place);
        self.change_tenant(claim.tenant, |own| own.insert(place));
        self.waiting.insert(device, claim);
    }

    pub fn remove(&mut self, device: DeviceId) {
        if let Some(claim) = self.waiting.remove(&device) {
            let place = ClaimOrderKey::of(device, &claim);
            self.order.remove(&place);
            self.change_tenant(claim.tenant, |own| own.remove(&place));
        }
    }

    fn change_tenant(&mut self, tenant: TenantId, change: impl FnOnce(&mut BTreeSet<ClaimOrderKey>) -> bool) {
        let own = self.of_tenants.entry(tenant).or_default();
        self.counts.remove(&(own.len(), tenant));
        change(own);
        let count = own.len();
        if count == 0 {
            self.of_tenants.remove(&tenant);
        } else {
            self.counts.insert((count, tenant));
        }
    }

    fn count_of(&self, tenant: TenantId) -> usize {
        self.of_tenants.get(&tenant).map_or(0, BTreeSet::len)
    }

    /// The change to store when the device is deleted.
    pub fn change_without(&self, device: DeviceId) -> Option<RepositoryChange> {
        self.waiting.contains_key(&device).then(|| delete_change(device))
    }

    /// Some of the expired claims.
    fn over(&self, now_ms: i64) -> Vec<DeviceId> {
        let over = [false, true].into_iter().flat_map(|is_unused| {
            self.order
                .range(ClaimOrderKey::first(is_unused, i64::MIN)..ClaimOrderKey::first(is_unused, now_ms))
        });
        over.map(|place| place.device).take(REMOVED_AT_ONCE).collect()
    }

    /// Whether the stored claim of the device stays valid, so that the new one is ignored.
    fn keeps_existing(&self, device: DeviceId, new: &WaitingClaim, origin: ReceptionMode, now_ms: i64) -> bool {
        self.waiting.get(&device).is_some_and(|known| match origin {
            ReceptionMode::Live => known.is_open(now_ms),
            ReceptionMode::Replay => known.since >= new.since || known.is_open(now_ms),
        })
    }

    /// Claims to remove for new ones, which are of one tenant.
    fn claims_to_evict(&self, new: &HashMap<DeviceId, WaitingClaim>, now_ms: i64) -> HashSet<DeviceId> {
        let mut evicted = HashSet::new();
        let Some(tenant) = new.values().next().map(|claim| claim.tenant) else {
            return evicted;
        };
        let added = new.keys().filter(|device| !self.waiting.contains_key(*device)).count();
        let too_many = (self.count_of(tenant) + added).saturating_sub(CLAIMS_OF_TENANT_MAX);
        let own = self.of_tenants.get(&tenant).into_iter().flatten();
        evict(&mut evicted, new, too_many, own);
        let too_many = (self.waiting.len() + added - evicted.len()).saturating_sub(CLAIMS_MAX);
        let least = evicted.len() + too_many;
        let useless = self.order.range(..ClaimOrderKey::first(true, now_ms));
        evict(&mut evicted, new, too_many, useless);
        let rest = self
            .counts
            .iter()
            .rev()
            .filter_map(|(_, tenant)| self.of_tenants.get(tenant));
        let too_many = least - evicted.len();
        evict(&mut evicted, new, too_many, rest.flatten());
        evicted
    }
}

/// Adds `count` of these claims to `evicted`, except those that are renewed.
fn evict<'a>(
    evicted: &mut HashSet<DeviceId>,
    new: &HashMap<DeviceId, WaitingClaim>,
    count: usize,
    places: impl Iterator<Item = &'a ClaimOrderKey>,
) {
    let wanted = evicted.len() + count;
    for place in places {
        if evicted.len() >= wanted {
            return;
        }
        if !new.contains_key(&place.device) {
            evicted.insert(place.device);
        }
    }
}

impl Entities {
    pub(super) fn claims(&self) -> MutexGuard<'_, PendingClaims> {
        self.claims.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// As [`Entities::allow_claims`], for one device.
    pub fn allow_claim(
        &self,
        device: DeviceId,
        claim: &Claim,
        origin: (ReceptionMode, i64),
        now_ms: i64,
    ) -> Result<(), EntityError> {
        self.allow_claims(&[(device, claim.clone())], origin, now_ms)
    }

    /// Allows claims for devices of one tenant, as of `since_ms`. An earlier claim stays in force until it expires or
    /// is used. Stores all at once, except for devices that may not be claimed. Returns the first error of these.
    pub fn allow_claims(
        &self,
        wanted: &[(DeviceId, Claim)],
        (origin, since_ms): (ReceptionMode, i64),
        now_ms: i64,
    ) -> Result<(), EntityError> {
        let _changing = self.changing();
        let mut new = HashMap::new();
        let mut refused = Ok(());
        for (device, claim) in wanted {
            match self.tenant_of_unclaimed(*device) {
                Ok(tenant) => {
                    let claim = WaitingClaim::new(tenant, claim, since_ms);
                    if !claim.is_over(now_ms) && !self.claims().keeps_existing(*device, &claim, origin, now_ms) {
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
        let evicted = self.claims().claims_to_evict(&new, now_ms);
        let mut changes: Vec<RepositoryChange> = evicted.iter().map(|device| delete_change(*device)).collect();
        for (device, claim) in &new {
            changes.push(put_change(*device, claim)?);
        }
        self.repository.apply(&changes)?;
        let mut claims = self.claims();
        for device in evicted {
            claims.remove(device);
        }
        for (device, claim) in new {
            claims.insert(device, claim);
        }
        Ok(())
    }

    /// Claims the device for a user of the customer. A success or a wrong secret uses up the claim, in the same
    /// transaction.
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
            self.repository.apply(&[mark_used(id, &claim, now_ms)?])?;
            ClaimOutcome::Failure
        } else if is_owned {
            self.repository.apply(&[mark_used(id, &claim, now_ms)?])?;
            ClaimOutcome::Claimed
        } else {
            let device = Device {
                customer_id: Some(customer),
                version: None,
                ..stored
            };
            let along = vec![mark_used(id, &claim, now_ms)?];
            let saved = self.save_device_along(device, DeviceCredentials::default(), along, now_ms)?;
            ClaimOutcome::Success(Box::new(saved))
        };
        match claim.is_over(now_ms) {
            true => self.claims().remove(id),
            false => self.claims().insert(id, claim.used()),
        }
        Ok(outcome)
    }

    /// Removes the claims of deleted devices from memory. They are already deleted from disk.
    pub(super) fn remove_claims_of(&self, devices: &[DeviceId]) {
        let mut claims = self.claims();
        devices.iter().for_each(|device| claims.remove(*device));
    }

    /// Removes the device's owner, so that it may be claimed again.
    pub fn reclaim(&self, device: &Device, now_ms: i64) -> Result<Device, EntityError> {
        let device = Device {
            customer_id: None,
            version: None,
            ..device.clone()
        };
        self.save_device(device, None, now_ms)
    }

    /// Removes expired claims.
    pub fn remove_expired_claims(&self, now_ms: i64) -> Result<(), EntityError> {
        loop {
            let _changing = self.changing();
            let over = self.claims().over(now_ms);
            if over.is_empty() {
                return Ok(());
            }
            let changes: Vec<RepositoryChange> = over.iter().map(|device| delete_change(*device)).collect();
            self.repository.apply(&changes)?;
            let mut claims = self.claims();
            over.into_iter().for_each(|device| claims.remove(device));
        }
    }
}

/// Marks a claim as used. It is stored until it expires.
fn mark_used(device: DeviceId, claim: &WaitingClaim, now_ms: i64) -> Result<RepositoryChange, EntityError> {
    match claim.is_over(now_ms) {
        true => Ok(delete_change(device)),
        false => put_change(device, &claim.used()),
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

    fn claim_of(of: u8, duration_ms: i64) -> WaitingClaim {
        let claim = Claim {
            secret_key: "s".to_owned(),
            duration_ms,
        };
        WaitingClaim::new(TenantId(Uuid([of; 16])), &claim, NOW)
    }

    fn full(tenants: &[u8]) -> PendingClaims {
        let mut claims = PendingClaims::default();
        for number in 0..CLAIMS_MAX / 2 {
            for of in tenants {
                claims.insert(device(*of, number), claim_of(*of, 1000 + number as i64));
            }
        }
        claims
    }

    fn evicted(claims: &PendingClaims, of: u8, numbers: std::ops::Range<usize>) -> Vec<DeviceId> {
        let new = numbers.map(|number| (device(of, number), claim_of(of, 5)));
        let mut evicted: Vec<_> = claims.claims_to_evict(&new.collect(), NOW).into_iter().collect();
        evicted.sort_unstable_by_key(|device| device.0.0);
        evicted
    }

    #[test]
    fn tenant_over_its_limit_evicts_its_own_claims() {
        let mut claims = full(&[1]);
        let last = CLAIMS_OF_TENANT_MAX - 1;
        // Used claims are evicted first, then those that expire first. A renewed claim needs no space.
        claims.insert(device(1, last), claim_of(1, 9_000_000).used());
        assert_eq!(evicted(&claims, 1, last + 1..last + 3), [device(1, 0), device(1, last)]);
        assert_eq!(evicted(&claims, 1, 0..3), []);
        assert_eq!(evicted(&claims, 2, 0..3), []);
        // All are full: claims of another tenant are evicted only while it has more.
        let mut claims = full(&[1, 2]);
        claims.remove(device(1, 7));
        claims.insert(device(3, 0), claim_of(3, 1));
        assert_eq!(evicted(&claims, 3, 1..3), [device(2, 0), device(2, 1)]);
        claims.remove(device(3, 0));
        assert_eq!(claims.of_tenants.len(), 2);
    }

    #[test]
    fn used_claims_are_evicted_before_the_largest_tenants() {
        let mut claims = full(&[1, 2]);
        claims.remove(device(2, 0));
        claims.insert(device(2, 9), claim_of(2, 9).used());
        claims.insert(device(3, 0), claim_of(3, 9_000_000));
        claims.insert(device(1, 8), claim_of(1, 8));
        assert_eq!(evicted(&claims, 3, 1..3), [device(1, 8), device(2, 9)]);
        let over = |claims: &PendingClaims, after_ms| {
            let mut over = claims.over(NOW + after_ms);
            over.sort_unstable();
            over
        };
        assert_eq!(over(&claims, 8), []);
        assert_eq!(over(&claims, 9), [device(1, 8)]);
        assert_eq!(over(&claims, 10), [device(1, 8), device(2, 9)]);
        assert_eq!(over(&claims, i64::MAX - NOW).len(), REMOVED_AT_ONCE);
        // All indexes agree with the claims, also after a renewal or a repeated removal.
        claims.insert(device(2, 9), claim_of(2, 7_000_000));
        claims.remove(device(1, 8));
        claims.remove(device(1, 8));
        let mut expected: Vec<ClaimOrderKey> = claims
            .waiting
            .iter()
            .map(|(id, claim)| ClaimOrderKey::of(*id, claim))
            .collect();
        expected.sort_unstable();
        assert!(claims.order.iter().eq(&expected));
        let of_tenants: BTreeSet<ClaimOrderKey> = claims.of_tenants.values().flatten().copied().collect();
        assert_eq!(of_tenants, claims.order);
        let counts = claims.of_tenants.iter().map(|(tenant, own)| (own.len(), *tenant));
        assert_eq!(counts.collect::<BTreeSet<_>>(), claims.counts);
    }

    #[test]
    fn eviction_does_not_scan_a_full_table() {
        let mut claims = full(&[1, 2]);
        let start = std::time::Instant::now();
        for number in CLAIMS_OF_TENANT_MAX..CLAIMS_OF_TENANT_MAX + 2000 {
            let new = HashMap::from([(device(3, number), claim_of(3, 5_000_000))]);
            for device in claims.claims_to_evict(&new, NOW) {
                claims.remove(device);
            }
            new.into_iter().for_each(|(device, claim)| claims.insert(device, claim));
            assert!(claims.over(NOW).is_empty());
        }
        assert_eq!(claims.waiting.len(), CLAIMS_MAX);
        assert_eq!(claims.count_of(TenantId(Uuid([3; 16]))), 2000);
        // Scanning 100,000 claims twice, 2,000 times, takes longer than this on any machine.
        assert!(
            start.elapsed() < std::time::Duration::from_secs(2),
            "{:?}",
            start.elapsed()
        );
    }

    #[test]
    fn claims_have_a_bounded_lifetime() {
        let ends = |duration_ms| claim_of(1, duration_ms).expiration_time - NOW;
        let rows = [
            (0, CLAIM_MS_DEFAULT),
            (-1, CLAIM_MS_DEFAULT),
            (1, 1),
            (i64::MAX, CLAIM_MS_MAX),
        ];
        for (requested, expected) in rows {
            assert_eq!(ends(requested), expected, "{requested}");
        }
    }
}
