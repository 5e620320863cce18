//! Packet identifiers of QoS 2 messages that a client has sent and not yet released: what makes a duplicate a duplicate.

/// A set of packet identifiers; a few sorted ones, or a bitmap when a client keeps many open.
#[derive(Debug, Default)]
pub struct ReceivedIds {
    few: Vec<u16>,
    many: Option<Box<[u64; 1024]>>,
    len: usize,
}

const FEW_MAX: usize = 64;

impl ReceivedIds {
    pub fn len(&self) -> usize {
        self.len
    }

    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub fn contains(&self, id: u16) -> bool {
        match &self.many {
            Some(bits) => bits[usize::from(id) / 64] >> (id % 64) & 1 == 1,
            None => self.few.binary_search(&id).is_ok(),
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = u16> {
        let many = self.many.is_some();
        let bitmap = (1..=u16::MAX).filter(move |id| many && self.contains(*id));
        self.few.iter().copied().filter(move |_| !many).chain(bitmap)
    }

    /// False when it was there already.
    pub fn insert(&mut self, id: u16) -> bool {
        if self.contains(id) {
            return false;
        }
        self.len += 1;
        if let Some(bits) = &mut self.many {
            bits[usize::from(id) / 64] |= 1 << (id % 64);
            return true;
        }
        let at = self.few.partition_point(|have| *have < id);
        self.few.insert(at, id);
        if self.few.len() > FEW_MAX {
            self.spread();
        }
        true
    }

    /// False when it was not there.
    pub fn remove(&mut self, id: u16) -> bool {
        if !self.contains(id) {
            return false;
        }
        self.len -= 1;
        match &mut self.many {
            Some(bits) => bits[usize::from(id) / 64] &= !(1 << (id % 64)),
            None => self.few.retain(|have| *have != id),
        }
        if self.len == 0 {
            *self = ReceivedIds::default();
        }
        true
    }

    fn spread(&mut self) {
        let mut bits = Box::new([0u64; 1024]);
        for id in self.few.drain(..) {
            bits[usize::from(id) / 64] |= 1 << (id % 64);
        }
        self.few = Vec::new();
        self.many = Some(bits);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_identifier_can_be_open_and_each_only_once() {
        let mut ids = ReceivedIds::default();
        for id in (1..=u16::MAX).rev() {
            assert!(ids.insert(id));
            assert!(!ids.insert(id));
        }
        assert_eq!(ids.len(), 65535);
        for id in 1..=u16::MAX {
            assert!(ids.contains(id) && ids.remove(id) && !ids.remove(id));
        }
        assert!(ids.is_empty() && ids.many.is_none());
    }
}
