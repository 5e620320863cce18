//! Room that tenants share: how much of it is taken, and by whom. A tenant may have as much as is free beside it, so that one alone has
//! half of it and many have equal parts, and whoever comes finds room.

use hashbrown::HashMap;

use crate::ids::TenantId;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    pub count: usize,
    pub bytes: usize,
}

#[derive(Debug)]
pub struct Shares {
    most: Load,
    used: Load,
    of: HashMap<TenantId, Load, foldhash::fast::RandomState>,
}

impl Shares {
    pub fn new(most: Load) -> Shares {
        Shares {
            most,
            used: Load::default(),
            of: HashMap::default(),
        }
    }

    /// For one more of so many bytes.
    pub fn has_room(&self, tenant: TenantId, bytes: usize) -> bool {
        let own = self.of.get(&tenant).copied().unwrap_or_default();
        let free = Load {
            count: self.most.count.saturating_sub(self.used.count),
            bytes: self.most.bytes.saturating_sub(self.used.bytes),
        };
        own.count < free.count && own.bytes.saturating_add(bytes) <= free.bytes
    }

    /// Nothing of it is there.
    pub fn is_first(&self, tenant: TenantId) -> bool {
        !self.of.contains_key(&tenant)
    }

    pub fn add(&mut self, tenant: TenantId, bytes: usize) {
        let own = self.of.entry(tenant).or_default();
        for load in [own, &mut self.used] {
            load.count += 1;
            load.bytes += bytes;
        }
    }

    pub fn remove(&mut self, tenant: TenantId, bytes: usize) {
        let Some(own) = self.of.get_mut(&tenant) else { return };
        for load in [&mut *own, &mut self.used] {
            load.count -= 1;
            load.bytes -= bytes;
        }
        if own.count == 0 {
            self.of.remove(&tenant);
        }
    }

    pub fn clear(&mut self) {
        self.used = Load::default();
        self.of.clear();
    }

    pub fn used(&self) -> Load {
        self.used
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Uuid;

    #[test]
    fn a_tenant_leaves_as_much_as_it_takes() {
        let [one, other] = [1, 2].map(|n| TenantId(Uuid([n; 16])));
        let mut shares = Shares::new(Load { count: 9, bytes: 100 });
        let fill = |shares: &mut Shares, tenant| {
            while shares.has_room(tenant, 1) {
                shares.add(tenant, 1);
            }
        };
        fill(&mut shares, one);
        assert_eq!(shares.used(), Load { count: 5, bytes: 5 });
        fill(&mut shares, other);
        assert_eq!(shares.used().count, 7);
        assert!(!shares.has_room(other, 1) && !shares.has_room(one, 1));
        for _ in 0..5 {
            shares.remove(one, 1);
        }
        assert!(shares.has_room(other, 93 / 2 - 2));
        assert!(!shares.has_room(other, 97), "of bytes");
        shares.remove(other, 1);
        shares.remove(other, 1);
        assert_eq!(shares.used(), Load::default());
        assert!(shares.of.is_empty());
    }
}
