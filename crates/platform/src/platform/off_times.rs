//! From which message on, and to which, a tenant might not use something: what is replayed after a crash meets what it met the first
//! time, neither less nor more. By positions of the caller's log; kept in the transaction that has the position.

use timeseries::Position;

use super::HashMap;
use crate::ids::{TenantId, Uuid};
use crate::limits::ApiFeature;
use crate::repository::{Change, StateKind};

/// Of one tenant; beyond it the oldest is forgotten.
const KEPT_MAX: usize = 100;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct OffTime {
    feature: usize,
    from: u64,
    /// Before this one; `u64::MAX`: it goes on.
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
        self.was_off(tenant, feature, Position(u64::MAX - 1))
    }

    pub fn was_off(&self, tenant: TenantId, feature: ApiFeature, at: Position) -> bool {
        let all = self.tenants.get(&tenant);
        all.is_some_and(|all| {
            all.iter()
                .any(|time| time.feature == feature as usize && (time.from..time.to).contains(&at.0))
        })
    }

    /// From this message on it is the other way round. What is durable is not replayed, and forgotten.
    pub fn turn(&mut self, tenant: TenantId, feature: ApiFeature, at: Position, durable: Position) -> Change {
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
        if all.len() > KEPT_MAX {
            all.remove(0);
        }
        let bytes = (!all.is_empty()).then(|| to_bytes(all));
        if bytes.is_none() {
            self.tenants.remove(&tenant);
        }
        Change::PutState {
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
    fn what_was_off_is_known_after_a_restart() {
        let tenant = TenantId(Uuid([1; 16]));
        let mut times = OffTimes::default();
        let storage = ApiFeature::Storage;
        times.turn(tenant, storage, Position(10), Position(0));
        assert!(times.is_open(tenant, storage) && !times.is_open(tenant, ApiFeature::Scripts));
        let Change::PutState { bytes, .. } = times.turn(tenant, storage, Position(20), Position(0)) else {
            panic!("a state")
        };
        let mut restarted = OffTimes::default();
        restarted.restore(tenant.0, &bytes.unwrap());
        let off = |at| restarted.was_off(tenant, storage, Position(at));
        assert_eq!([9, 10, 19, 20].map(off), [false, true, true, false]);
        // All of it is durable: nothing is left to know.
        restarted.turn(tenant, storage, Position(30), Position(25));
        restarted.turn(tenant, storage, Position(31), Position(31));
        assert!(restarted.is_empty());
    }
}
