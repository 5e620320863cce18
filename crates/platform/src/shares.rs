//! Divides a capacity among tenants. A tenant may use at most as much as is still free for all tenants. So a single
//! tenant can use half of the capacity, and a new tenant always finds free capacity.

use hashbrown::HashMap;

use crate::ids::TenantId;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TenantLoad {
    pub count: usize,
    pub bytes: usize,
}

#[derive(Debug)]
pub struct TenantShares {
    capacity: TenantLoad,
    used: TenantLoad,
    by_tenant: HashMap<TenantId, TenantLoad, foldhash::fast::RandomState>,
}

impl TenantShares {
    pub fn new(most: TenantLoad) -> TenantShares {
        TenantShares {
            capacity: most,
            used: TenantLoad::default(),
            by_tenant: HashMap::default(),
        }
    }

    /// Whether one more item of this size fits.
    pub fn has_capacity(&self, tenant: TenantId, bytes: usize) -> bool {
        let own = self.by_tenant.get(&tenant).copied().unwrap_or_default();
        let free = TenantLoad {
            count: self.capacity.count.saturating_sub(self.used.count),
            bytes: self.capacity.bytes.saturating_sub(self.used.bytes),
        };
        own.count < free.count && own.bytes.saturating_add(bytes) <= free.bytes
    }

    /// Whether the tenant uses more than three quarters of its share, with additional bytes that the load of all
    /// tenants does not include.
    pub fn is_near_limit(&self, tenant: TenantId, bytes: usize) -> bool {
        let own = self.by_tenant.get(&tenant).copied().unwrap_or_default();
        let of_others = TenantLoad {
            count: self.used.count - own.count,
            bytes: self.used.bytes - own.bytes,
        };
        // A tenant may use half of what the others leave.
        let is_near = |own: usize, others: usize, capacity: usize| own > capacity.saturating_sub(others) / 8 * 3;
        is_near(own.count, of_others.count, self.capacity.count)
            || is_near(own.bytes.saturating_add(bytes), of_others.bytes, self.capacity.bytes)
    }

    /// Whether the tenant, with additional bytes, uses at most an equal part of the capacity, and at most half of it.
    pub fn is_within_equal_part(&self, tenant: TenantId, bytes: usize) -> bool {
        let own = self.by_tenant.get(&tenant).copied().unwrap_or_default();
        let parts = self.by_tenant.len().max(2);
        own.count <= self.capacity.count / parts && own.bytes.saturating_add(bytes) <= self.capacity.bytes / parts
    }

    /// Whether the tenant uses nothing.
    pub fn uses_nothing(&self, tenant: TenantId) -> bool {
        !self.by_tenant.contains_key(&tenant)
    }

    pub fn add(&mut self, tenant: TenantId, bytes: usize) {
        let own = self.by_tenant.entry(tenant).or_default();
        for load in [own, &mut self.used] {
            load.count += 1;
            load.bytes += bytes;
        }
    }

    pub fn remove(&mut self, tenant: TenantId, bytes: usize) {
        let Some(own) = self.by_tenant.get_mut(&tenant) else {
            return;
        };
        for load in [&mut *own, &mut self.used] {
            load.count -= 1;
            load.bytes -= bytes;
        }
        if own.count == 0 {
            self.by_tenant.remove(&tenant);
        }
    }

    pub fn clear(&mut self) {
        self.used = TenantLoad::default();
        self.by_tenant.clear();
    }

    pub fn used(&self) -> TenantLoad {
        self.used
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Uuid;

    #[test]
    fn equal_part_depends_on_the_number_of_tenants() {
        let tenants = [1, 2, 3].map(|n| TenantId(Uuid([n; 16])));
        let mut shares = TenantShares::new(TenantLoad { count: 9, bytes: 90 });
        let is_within = |shares: &TenantShares| tenants.map(|tenant| shares.is_within_equal_part(tenant, 0));
        shares.add(tenants[0], 45);
        assert_eq!(is_within(&shares), [true; 3]);
        assert!(!shares.is_within_equal_part(tenants[0], 1) && shares.is_within_equal_part(tenants[1], 45));
        (0..3).for_each(|_| shares.add(tenants[1], 1));
        assert_eq!(is_within(&shares), [true; 3]);
        shares.add(tenants[2], 30);
        assert_eq!(is_within(&shares), [false, true, true]);
        shares.add(tenants[1], 1);
        assert_eq!(is_within(&shares), [false, false, true]);
    }

    #[test]
    fn tenant_leaves_as_much_free_as_it_uses() {
        let [one, other] = [1, 2].map(|n| TenantId(Uuid([n; 16])));
        let mut shares = TenantShares::new(TenantLoad { count: 9, bytes: 100 });
        let fill = |shares: &mut TenantShares, tenant| {
            while shares.has_capacity(tenant, 1) {
                shares.add(tenant, 1);
            }
        };
        fill(&mut shares, one);
        assert_eq!(shares.used(), TenantLoad { count: 5, bytes: 5 });
        fill(&mut shares, other);
        assert_eq!(shares.used().count, 7);
        assert!(!shares.has_capacity(other, 1) && !shares.has_capacity(one, 1));
        for _ in 0..5 {
            shares.remove(one, 1);
        }
        assert!(shares.has_capacity(other, 93 / 2 - 2));
        assert!(!shares.has_capacity(other, 97), "too many bytes");
        shares.remove(other, 1);
        shares.remove(other, 1);
        assert_eq!(shares.used(), TenantLoad::default());
        assert!(shares.by_tenant.is_empty());
    }
}
