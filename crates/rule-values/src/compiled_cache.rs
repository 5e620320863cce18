//! Cache of the latest regular expressions or jq programs that came from messages.

use crate::text::Text;

const ENTRIES_MAX: usize = 16;

#[derive(Debug)]
pub struct CompiledCache<T> {
    entries: Vec<(Text, T)>,
    /// The entry that the next new one replaces.
    next: usize,
}

impl<T> Default for CompiledCache<T> {
    fn default() -> CompiledCache<T> {
        CompiledCache {
            entries: Vec::new(),
            next: 0,
        }
    }
}

impl<T: Clone> CompiledCache<T> {
    /// Returns the result of compiling this text, if it is cached.
    pub fn find(&self, text: &[u8]) -> Option<T> {
        let known = self.entries.iter().find(|entry| *entry.0 == *text);
        known.map(|(_, compiled)| compiled.clone())
    }

    pub fn insert(&mut self, text: &[u8], compiled: T) {
        let entry = (Text::new(text), compiled);
        match self.entries.get_mut(self.next) {
            Some(oldest) => *oldest = entry,
            None => self.entries.push(entry),
        }
        self.next = (self.next + 1) % ENTRIES_MAX;
    }
}
