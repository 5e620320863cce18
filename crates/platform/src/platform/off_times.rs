//! Ranges of messages during which a feature was off for a tenant, so that a replay after a crash gives the same
//! results. Ranges are positions in the caller's log, saved in the same transaction as the position.

use timeseries::LogPosition;

use super::HashMap;
use crate::ids::{TenantId, Uuid};
use crate::limits::ApiFeature;
use crate::repository::{RepositoryChange, StateKind};

/// Ranges per tenant. Beyond that the oldest is removed.
const RANGES_MAX: usize = 100;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct OffTime {
    feature: usize,
    from: u64,
    /// Exclusive; `u64::MAX` while the feature is off.
    to: u64,
}

#[derive(Default)]
pub(super) struct OffTimes {
    tenants: HashMap<TenantId, Vec<OffTime>>,
}

impl OffTimes {
    pub fn is_empty(&self) -> bool {
        self.tenants.is_empty()
    }

    pub fn is_open(&self, tenant: TenantId, feature: ApiFeature) -> bool {
        self.was_off(tenant, feature, LogPosition(u64::MAX - 1))
    }

    pub fn was_off(&self, tenant: TenantId, feature: ApiFeature, at: LogPosition) -> bool {
        let all = self.tenants.get(&tenant);
        all.is_some_and(|all| {
            all.iter()
                .any(|time| time.feature == feature as usize && (time.from..time.to).contains(&at.0))
        })
    }

    /// Turns the feature off or on from this message on. Removes ranges before `durable`, which are not replayed.
    pub fn turn(
        &mut self,
        tenant: TenantId,
        feature: ApiFeature,
        at: LogPosition,
        durable: LogPosition,
    ) -> RepositoryChange {
        let all = self.tenants.entry(tenant).or_default();
        let open = all
            .iter_mut()
            .find(|time| time.feature == feature as usize && time.to == u64::MAX);
        match open {
            Some(time) => time.to = at.0,
            None => all.push(OffTime {
                feature: feature as usize,
                from: at.0,
                to: u64::MAX,
            }),
        }
        all.retain(|time| time.to > durable.0 && time.from != time.to);
        if all.len() > RANGES_MAX {
            all.remove(0);
        }
        let bytes = (!all.is_empty()).then(|| to_bytes(all));
        if bytes.is_none() {
            self.tenants.remove(&tenant);
        }
        RepositoryChange::PutState {
            state: StateKind::OffTimes,
            id: tenant.0,
            bytes,
        }
    }

    pub fn restore(&mut self, tenant: Uuid, bytes: &[u8]) {
        let all: Vec<OffTime> = bytes.chunks_exact(17).filter_map(from_bytes).collect();
        self.tenants.insert(TenantId(tenant), all);
    }
}

fn to_bytes(all: &[OffTime]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(all.len() * 17);
    for time in all {
        bytes.push(time.feature as u8);
        bytes.extend_from_slice(&time.from.to_le_bytes());
        bytes.extend_from_slice(&time.to.to_le_bytes());
    }
    bytes
}

fn from_bytes(bytes: &[u8]) -> Option<OffTime> {
    Some(OffTime {
        feature: usize::from(*bytes.first()?),
        from: u64::from_le_bytes(bytes.get(1..9)?.try_into().ok()?),
        to: u64::from_le_bytes(bytes.get(9..17)?.try_into().ok()?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn off_times_survive_a_restart() {
        let tenant = TenantId(Uuid([1; 16]));
        let mut times = OffTimes::default();
        let storage = ApiFeature::Storage;
        times.turn(tenant, storage, LogPosition(10), LogPosition(0));
        assert!(times.is_open(tenant, storage) && !times.is_open(tenant, ApiFeature::Scripts));
        let RepositoryChange::PutState { bytes, .. } = times.turn(tenant, storage, LogPosition(20), LogPosition(0))
        else {
            panic!("a state")
        };
        let mut restarted = OffTimes::default();
        restarted.restore(tenant.0, &bytes.unwrap());
        let off = |at| restarted.was_off(tenant, storage, LogPosition(at));
        assert_eq!([9, 10, 19, 20].map(off), [false, true, true, false]);
        // Everything is durable, so no range is needed.
        restarted.turn(tenant, storage, LogPosition(30), LogPosition(25));
        restarted.turn(tenant, storage, LogPosition(31), LogPosition(31));
        assert!(restarted.is_empty());
    }
}
