//! Maps client ids to session slots. The ids are not stored again; lookups compare them with those in the sessions.

use foldhash::quality::RandomState;

use crate::id_table::{IdMap, hash_text};
use crate::shard::Shard;
use crate::slots::SessionSlot;

pub struct ClientIds {
    slots: IdMap<SessionSlot>,
    /// Randomly seeded, because clients choose the ids.
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

    /// Requires that the client id is not in the map.
    pub fn insert(&mut self, client_id: &str, slot: SessionSlot) {
        self.slots.insert(self.hash(client_id), slot);
    }

    pub fn remove(&mut self, client_id: &str, slot: SessionSlot) {
        self.slots.remove(self.hash(client_id), |other| other == slot);
    }

    fn hash(&self, client_id: &str) -> u64 {
        hash_text(&self.hashing, client_id.as_bytes())
    }
}

impl Shard {
    /// Returns the slot of a client's session on this shard.
    pub(crate) fn slot_of(&self, client_id: &str) -> Option<SessionSlot> {
        let is_equal = |slot| *self.core.session(slot).client_id == *client_id;
        self.client_ids.slots.find(self.client_ids.hash(client_id), is_equal)
    }
}
