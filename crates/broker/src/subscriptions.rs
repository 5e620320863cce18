//! A shard's subscriptions: topic filter -> entries of (key, value), found by the topics that match.
//!
//! Filters without wildcards are looked up by the whole topic in one hash table, so their number does not matter; filters
//! with wildcards are in a trie. A filter has one list of entries, contiguous in memory, under an id that stays the same
//! for as long as the filter has an entry. A caller may keep `topic -> lists` for as long as [`SubscriptionTree::generation`]
//! does not change; entries may come and go meanwhile.
//!
//! Knows neither sessions nor shared groups: keys and values are the caller's. Filters are taken as they are: whether one
//! is valid and permitted, and how many there may be, is decided before. A `+` or `#` that is not a whole level, and a
//! `#` that is not the last level, is an ordinary character here, so no input is wrong.
//!
//! Hash seeds are random per tree and show in no result: what iteration and matching return depends on the order of
//! calls only. Nothing recurses; nothing allocates while matching, once the scratch buffers have grown.

mod lists;
mod slab;
#[cfg(test)]
pub(crate) mod tests;
mod texts;
mod trie;

use foldhash::quality::RandomState;

use crate::id_table::{IdMap, hash_text};
use lists::Lists;
use texts::Texts;
use trie::Trie;

/// The entries of one filter. Valid until the filter's last entry is removed; then it may come to mean another filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ListId(u32);

/// One subscription of a filter: at most one per key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<T> {
    pub key: u32,
    pub value: T,
}

/// What [`SubscriptionTree::insert`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inserted<T> {
    /// Keep it instead of the filter's text: [`SubscriptionTree::remove_from`] and [`SubscriptionTree::write_filter`] take it.
    pub list: ListId,
    /// The key's former value.
    pub replaced: Option<T>,
    /// No other key had this filter.
    pub is_new_filter: bool,
}

/// What [`SubscriptionTree::remove`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Removed<T> {
    pub value: T,
    /// No other key has this filter: its list is gone.
    pub was_last: bool,
}

/// Where a listing goes on; the default is the beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FilterCursor(u32);

pub struct SubscriptionTree<T> {
    literals: Literals,
    trie: Trie,
    lists: Lists<T>,
    generation: u64,
    wildcard_generation: u64,
}

/// Where a list is referred to from.
#[derive(Clone, Copy)]
enum Place {
    Literal(u32),
    Node(u32),
    Plus(u32),
    Hash(u32),
}

impl<T: Copy> Default for SubscriptionTree<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: Copy> SubscriptionTree<T> {
    pub fn new() -> Self {
        Self {
            literals: Literals::new(),
            trie: Trie::new(),
            lists: Lists::new(),
            generation: 0,
            wildcard_generation: 0,
        }
    }

    /// Adds an entry, or replaces the one of the same key [MQTT-3.8.4-3].
    pub fn insert(&mut self, filter: &str, key: u32, value: T) -> Inserted<T> {
        let entry = Entry { key, value };
        if !is_wildcard(filter) {
            return match self.literals.find(filter) {
                Some(list) => self.insert_into(list, entry),
                None => self.insert_literal(filter, entry),
            };
        }
        let place = self.trie.make_place(filter, &mut self.lists);
        match self.trie.list_at(place) {
            Some(list) => self.insert_into(list, entry),
            None => self.insert_wildcard(place, entry),
        }
    }

    pub fn remove(&mut self, filter: &str, key: u32) -> Option<Removed<T>> {
        self.remove_from(self.find(filter)?, key)
    }

    /// As [`SubscriptionTree::remove`], without the filter's text. `list` must be live.
    pub fn remove_from(&mut self, list: ListId, key: u32) -> Option<Removed<T>> {
        let taken = self.lists.remove(list, key)?;
        match taken.abandoned {
            None => {}
            Some(Place::Literal(text)) => {
                self.literals.remove(text);
                self.generation += 1;
            }
            Some(place) => {
                self.trie.detach(place, &mut self.lists);
                self.generation += 1;
                self.wildcard_generation += 1;
            }
        }
        Some(Removed {
            value: taken.value,
            was_last: taken.abandoned.is_some(),
        })
    }

    pub fn get(&self, filter: &str, key: u32) -> Option<T> {
        self.lists.get(self.find(filter)?, key)
    }

    pub fn get_in(&self, list: ListId, key: u32) -> Option<T> {
        self.lists.get(list, key)
    }

    /// The list of exactly this filter.
    pub fn find(&self, filter: &str) -> Option<ListId> {
        if is_wildcard(filter) {
            self.trie.find(filter)
        } else {
            self.literals.find(filter)
        }
    }

    /// Pushes the list of every filter that matches `topic`, each once, the literal one first.
    pub fn matching(&self, topic: &str, out: &mut Vec<ListId>) {
        out.extend(self.matching_literal(topic));
        self.matching_wildcards(topic, out);
    }

    /// The list of the filter that is the topic itself.
    pub fn matching_literal(&self, topic: &str) -> Option<ListId> {
        self.literals.find(topic)
    }

    /// The other lists; the same for as long as [`SubscriptionTree::wildcard_generation`] is.
    pub fn matching_wildcards(&self, topic: &str, out: &mut Vec<ListId>) {
        if self.wildcard_filters() > 0 {
            self.trie.matching(topic, out);
        }
    }

    /// In no particular order; never empty for a live list.
    pub fn entries(&self, list: ListId) -> &[Entry<T>] {
        self.lists.entries(list)
    }

    /// Changes whenever a filter gets its first entry or loses its last.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// As [`SubscriptionTree::generation`], for filters with wildcards only.
    pub fn wildcard_generation(&self) -> u64 {
        self.wildcard_generation
    }

    /// Distinct filters.
    pub fn filters(&self) -> usize {
        self.lists.len()
    }

    pub fn literal_filters(&self) -> usize {
        self.literals.ids.len()
    }

    pub fn wildcard_filters(&self) -> usize {
        self.filters() - self.literal_filters()
    }

    /// Entries over all filters.
    pub fn subscriptions(&self) -> usize {
        self.lists.entry_count()
    }

    /// Appends the text of a live list's filter.
    pub fn write_filter(&self, list: ListId, filter: &mut String) {
        match self.lists.place(list) {
            Place::Literal(text) => filter.push_str(self.literals.texts.text(text)),
            place => self.trie.write_filter(place, filter),
        }
    }

    /// Visits up to `filters_max` filters from `cursor` on; returns where to go on, or None after the last.
    /// The tree may change between calls: a filter that lives throughout is visited exactly once.
    pub fn for_each_filter(
        &self,
        cursor: FilterCursor,
        filters_max: usize,
        mut visit: impl FnMut(ListId, &str, &[Entry<T>]),
    ) -> Option<FilterCursor> {
        let mut filter = String::new();
        let mut next = self.lists.next(cursor.0);
        for _ in 0..filters_max {
            let list = next?;
            filter.clear();
            self.write_filter(list, &mut filter);
            visit(list, &filter, self.lists.entries(list));
            next = self.lists.next(list.0 + 1);
        }
        next.map(|list| FilterCursor(list.0))
    }

    #[cfg(test)]
    fn trie_nodes(&self) -> usize {
        self.trie.node_count()
    }

    #[cfg(test)]
    fn text_page_bytes(&self) -> usize {
        self.literals.texts.page_bytes() + self.trie.symbol_page_bytes()
    }

    fn insert_into(&mut self, list: ListId, entry: Entry<T>) -> Inserted<T> {
        Inserted {
            list,
            replaced: self.lists.insert(list, entry),
            is_new_filter: false,
        }
    }

    fn insert_literal(&mut self, filter: &str, entry: Entry<T>) -> Inserted<T> {
        let text = self.literals.insert(filter);
        let list = self.lists.create(Place::Literal(text), entry);
        self.literals.texts.set_tag(text, list.0);
        self.generation += 1;
        Inserted {
            list,
            replaced: None,
            is_new_filter: true,
        }
    }

    fn insert_wildcard(&mut self, place: Place, entry: Entry<T>) -> Inserted<T> {
        let list = self.lists.create(place, entry);
        self.trie.attach(place, list);
        self.generation += 1;
        self.wildcard_generation += 1;
        Inserted {
            list,
            replaced: None,
            is_new_filter: true,
        }
    }
}

/// Filters without wildcards: their texts, each tagged with its list, and a hash table to find them.
struct Literals {
    texts: Texts,
    ids: IdMap,
    hashing: RandomState,
}

impl Literals {
    fn new() -> Self {
        Self {
            texts: Texts::default(),
            ids: IdMap::new(),
            hashing: RandomState::default(),
        }
    }

    fn find(&self, filter: &str) -> Option<ListId> {
        let filter = filter.as_bytes();
        let text = self
            .ids
            .find(hash_text(&self.hashing, filter), |id| self.texts.is_text(id, filter))?;
        Some(ListId(self.texts.tag(text)))
    }

    fn insert(&mut self, filter: &str) -> u32 {
        let text = self.texts.insert(filter.as_bytes(), u32::MAX);
        self.ids.insert(hash_text(&self.hashing, filter.as_bytes()), text);
        text
    }

    fn remove(&mut self, text: u32) {
        let hash = hash_text(&self.hashing, self.texts.text(text).as_bytes());
        self.ids.remove(hash, |id| id == text);
        self.texts.remove(text);
    }
}

/// The levels of a topic or filter, each with whether it is the last.
fn levels(text: &str) -> impl Iterator<Item = (&[u8], bool)> {
    let mut rest = Some(text.as_bytes());
    std::iter::from_fn(move || {
        let text = rest?;
        match text.iter().position(|&byte| byte == b'/') {
            Some(end) => {
                rest = Some(&text[end + 1..]);
                Some((&text[..end], false))
            }
            None => {
                rest = None;
                Some((text, true))
            }
        }
    })
}

fn is_wildcard(filter: &str) -> bool {
    let has_wildcard_character = filter.bytes().any(|byte| byte == b'+' || byte == b'#');
    has_wildcard_character && levels(filter).any(|(level, is_last)| level == b"+" || (is_last && level == b"#"))
}
