//! Packet identifiers of QoS 2 messages that a client has sent and not released. They identify duplicates.

/// A set of packet identifiers: inline while there are few, then a list, then a bitmap.
#[derive(Debug)]
pub struct ReceivedIds(Ids);

// The list is boxed because its three words would enlarge every set.
#[allow(clippy::box_collection)]
#[derive(Debug)]
enum Ids {
    Few { len: u8, ids: [u16; FEW_MAX] },
    Some(Box<Vec<u16>>),
    Many(Box<Bitmap>),
}

#[derive(Debug)]
struct Bitmap {
    bits: [u64; 1024],
    len: usize,
}

/// As many as fit without enlarging the other forms.
const FEW_MAX: usize = 6;

const SOME_MAX: usize = 64;

impl Default for ReceivedIds {
    fn default() -> Self {
        ReceivedIds(Ids::Few {
            len: 0,
            ids: [0; FEW_MAX],
        })
    }
}

impl ReceivedIds {
    pub fn len(&self) -> usize {
        match &self.0 {
            Ids::Many(bitmap) => bitmap.len,
            _ => self.listed().len(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the identifiers in no particular order; empty if the set is a bitmap.
    fn listed(&self) -> &[u16] {
        match &self.0 {
            Ids::Few { len, ids } => &ids[..usize::from(*len)],
            Ids::Some(ids) => ids,
            Ids::Many(_) => &[],
        }
    }

    pub fn contains(&self, id: u16) -> bool {
        match &self.0 {
            Ids::Many(bitmap) => bitmap.contains(id),
            _ => self.listed().contains(&id),
        }
    }

    /// Iterates in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = u16> {
        let bitmap = match &self.0 {
            Ids::Many(bitmap) => Some(bitmap),
            _ => None,
        };
        let spread = bitmap
            .into_iter()
            .flat_map(|bitmap| (1..=u16::MAX).filter(|id| bitmap.contains(*id)));
        self.listed().iter().copied().chain(spread)
    }

    /// Returns false if the identifier was in the set.
    pub fn insert(&mut self, id: u16) -> bool {
        if self.contains(id) {
            return false;
        }
        match &mut self.0 {
            Ids::Few { len, ids } if usize::from(*len) < FEW_MAX => {
                ids[usize::from(*len)] = id;
                *len += 1;
            }
            Ids::Few { ids, .. } => self.0 = Ids::Some(Box::new(ids.iter().copied().chain([id]).collect())),
            Ids::Some(ids) if ids.len() < SOME_MAX => ids.push(id),
            Ids::Some(ids) => self.0 = Ids::Many(Bitmap::of(ids.iter().copied().chain([id]))),
            Ids::Many(bitmap) => bitmap.set(id),
        }
        true
    }

    /// Returns false if the identifier was not in the set.
    pub fn remove(&mut self, id: u16) -> bool {
        if !self.contains(id) {
            return false;
        }
        let is_this = |have: &u16| *have == id;
        match &mut self.0 {
            Ids::Few { len, ids } => {
                let at = ids.iter().position(is_this).expect("`contains` returned true");
                *len -= 1;
                ids[at] = ids[usize::from(*len)];
            }
            Ids::Some(ids) => ids.retain(|have| *have != id),
            Ids::Many(bitmap) => bitmap.clear(id),
        }
        if self.is_empty() {
            *self = ReceivedIds::default();
        }
        true
    }
}

impl Bitmap {
    fn of(ids: impl Iterator<Item = u16>) -> Box<Bitmap> {
        let mut bitmap = Box::new(Bitmap {
            bits: [0; 1024],
            len: 0,
        });
        ids.for_each(|id| bitmap.set(id));
        bitmap
    }

    fn contains(&self, id: u16) -> bool {
        self.bits[usize::from(id) / 64] >> (id % 64) & 1 == 1
    }

    fn set(&mut self, id: u16) {
        self.bits[usize::from(id) / 64] |= 1 << (id % 64);
        self.len += 1;
    }

    fn clear(&mut self, id: u16) {
        self.bits[usize::from(id) / 64] &= !(1 << (id % 64));
        self.len -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_identifier_can_be_inserted_once() {
        let mut ids = ReceivedIds::default();
        for id in (1..=u16::MAX).rev() {
            assert!(ids.insert(id));
            assert!(!ids.insert(id));
        }
        assert_eq!(ids.len(), 65535);
        for id in 1..=u16::MAX {
            assert!(ids.contains(id) && ids.remove(id) && !ids.remove(id));
        }
        assert!(ids.is_empty() && matches!(ids.0, Ids::Few { .. }));
    }

    #[test]
    fn set_keeps_its_identifiers_when_the_form_changes() {
        let mut ids = ReceivedIds::default();
        assert_eq!(size_of_val(&ids), 16);
        for n in 1..=2 * SOME_MAX as u16 {
            assert!(ids.insert(n * 7));
            let mut have: Vec<u16> = ids.iter().collect();
            have.sort_unstable();
            assert_eq!(have, (1..=n).map(|n| n * 7).collect::<Vec<_>>());
        }
        assert!(ids.remove(7) && ids.remove(14) && !ids.contains(7));
        assert_eq!(ids.len(), 2 * SOME_MAX - 2);
    }
}
