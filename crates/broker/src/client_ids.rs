//! Maps client ids to session slots. The ids are not stored again; lookups compare them with those in the sessions.

use foldhash::quality::RandomState;

use crate::id_table::{IdMap, hash_text};
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

    /// Returns the slot of a client id. `is_equal` compares it with that of a session.
    pub fn find(&self, client_id: &str, is_equal: impl FnMut(SessionSlot) -> bool) -> Option<SessionSlot> {
        self.slots.find(self.hash(client_id), is_equal)
    }

    fn hash(&self, client_id: &str) -> u64 {
        hash_text(&self.hashing, client_id.as_bytes())
    }
}
