//! From client ids to the slots of their sessions, without a second copy of the names: they are compared in the sessions.

use foldhash::quality::RandomState;

use crate::id_table::{IdMap, hash_text};
use crate::shard::Shard;

pub struct ClientIds {
    slots: IdMap,
    /// With a seed that nobody knows: clients choose the names.
    hashing: RandomState,
}

impl Default for ClientIds {
    fn default() -> Self {
        ClientIds {
            slots: IdMap::new(),
            hashing: RandomState::default(),
        }
    }
}

impl ClientIds {
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// The name must not be there yet.
    pub fn insert(&mut self, client_id: &str, slot: u32) {
        self.slots.insert(self.hash(client_id), slot);
    }

    pub fn remove(&mut self, client_id: &str, slot: u32) {
        self.slots.remove(self.hash(client_id), |other| other == slot);
    }

    fn hash(&self, client_id: &str) -> u64 {
        hash_text(&self.hashing, client_id.as_bytes())
    }
}

impl Shard {
    /// Where the session of a client is, if it has one here.
    pub(crate) fn slot_of(&self, client_id: &str) -> Option<u32> {
        let is_equal = |slot| *self.core.session(slot).client_id == *client_id;
        self.client_ids.slots.find(self.client_ids.hash(client_id), is_equal)
    }
}
