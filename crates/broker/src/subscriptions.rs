//! Subscriptions of a shard: topic filter -> entries of (key, value), found by matching topics.
//!
//! A filter without wildcards is found by a hash of the whole topic, whatever their number. Filters with wildcards are
//! in a trie. Each filter has one list of entries, contiguous in memory, with an id that is stable while the filter has
//! an entry. A caller may cache `topic -> lists` while [`SubscriptionTree::generation`] is unchanged; its entries
//! may change.
//!
//! Independent of sessions and shared groups: the caller defines keys and values, and checks filters (validity,
//! permission, number) before. A `+` or `#` that is not a whole level, and a `#` that is not the last level, is an
//! ordinary character here, so every input is accepted.
//!
//! Hash seeds are random per tree and do not affect results: what iteration and matching return depends only on the
//! order of calls. There is no recursion, and matching does not allocate once the scratch buffers have grown.

mod lists;
mod slab;
#[cfg(test)]
pub(crate) mod tests;
mod texts;
mod trie;

use foldhash::quality::RandomState;

use crate::id_table::{IdMap, hash_text, raw_ids};
use lists::Lists;
use texts::{TextId, Texts};
use trie::{NodeId, Trie};

/// Id of the entries of one filter. Valid until the last entry is removed; afterwards another filter may use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ListId(u32);

raw_ids!(ListId);

/// Number of a subscriber, which the caller assigns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SubscriberKey(pub u32);

/// One subscription of a filter. Keys are unique per filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubscriptionEntry<T> {
    pub key: SubscriberKey,
    pub value: T,
}

/// Result of [`SubscriptionTree::insert`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InsertedSubscription<T> {
    /// Can be stored instead of the filter's text; see [`SubscriptionTree::remove_from`] and
    /// [`SubscriptionTree::write_filter`].
    pub list: ListId,
    /// The previous value of the key.
    pub replaced: Option<T>,
    /// The filter had no entry before.
    pub is_new_filter: bool,
}

/// Result of [`SubscriptionTree::remove`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemovedSubscription<T> {
    pub value: T,
    /// The filter has no entry left.
    pub was_last: bool,
}

/// Position in a listing. The default is the beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FilterCursor(u32);

pub struct SubscriptionTree<T> {
    literals: LiteralFilters,
    trie: Trie,
    lists: Lists<T>,
    generation: u64,
    wildcard_generation: u64,
}

/// Where the tree stores the id of a list.
#[derive(Clone, Copy)]
enum ListLocation {
    Literal(TextId),
    Node(NodeId),
    Plus(NodeId),
    Hash(NodeId),
}

impl<T: Copy> Default for SubscriptionTree<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: Copy> SubscriptionTree<T> {
    pub fn new() -> Self {
        Self {
            literals: LiteralFilters::new(),
            trie: Trie::new(),
            lists: Lists::new(),
            generation: 0,
            wildcard_generation: 0,
        }
    }

    /// Adds an entry, or replaces the one with the same key [MQTT-3.8.4-3].
    pub fn insert(&mut self, filter: &str, key: SubscriberKey, value: T) -> InsertedSubscription<T> {
        let entry = SubscriptionEntry { key, value };
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

    pub fn remove(&mut self, filter: &str, key: SubscriberKey) -> Option<RemovedSubscription<T>> {
        self.remove_from(self.find(filter)?, key)
    }

    /// Like [`SubscriptionTree::remove`], by list id. `list` must be live.
    pub fn remove_from(&mut self, list: ListId, key: SubscriberKey) -> Option<RemovedSubscription<T>> {
        let taken = self.lists.remove(list, key)?;
        match taken.abandoned {
            None => {}
            Some(ListLocation::Literal(text)) => {
                self.literals.remove(text);
                self.generation += 1;
            }
            Some(place) => {
                self.trie.detach(place, &mut self.lists);
                self.generation += 1;
                self.wildcard_generation += 1;
            }
        }
        Some(RemovedSubscription {
            value: taken.value,
            was_last: taken.abandoned.is_some(),
        })
    }

    pub fn get(&self, filter: &str, key: SubscriberKey) -> Option<T> {
        self.lists.get(self.find(filter)?, key)
    }

    pub fn get_in(&self, list: ListId, key: SubscriberKey) -> Option<T> {
        self.lists.get(list, key)
    }

    /// Returns the list of exactly this filter.
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

    /// Returns the list of the filter that equals the topic.
    pub fn matching_literal(&self, topic: &str) -> Option<ListId> {
        self.literals.find(topic)
    }

    /// Pushes the lists of matching filters with wildcards. The result is stable while
    /// [`SubscriptionTree::wildcard_generation`] is.
    pub fn matching_wildcards(&self, topic: &str, out: &mut Vec<ListId>) {
        if self.wildcard_filters() > 0 {
            self.trie.matching(topic, out);
        }
    }

    /// Returns the entries in no particular order. Never empty for a live list.
    pub fn entries(&self, list: ListId) -> &[SubscriptionEntry<T>] {
        self.lists.entries(list)
    }

    /// Changes whenever a filter gets its first entry or loses its last.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Like [`SubscriptionTree::generation`], for filters with wildcards only.
    pub fn wildcard_generation(&self) -> u64 {
        self.wildcard_generation
    }

    /// Returns the number of distinct filters.
    pub fn filters(&self) -> usize {
        self.lists.len()
    }

    pub fn literal_filters(&self) -> usize {
        self.literals.ids.len()
    }

    pub fn wildcard_filters(&self) -> usize {
        self.filters() - self.literal_filters()
    }

    /// Returns the number of entries of all filters.
    pub fn subscriptions(&self) -> usize {
        self.lists.entry_count()
    }

    /// Appends the text of a live list's filter.
    pub fn write_filter(&self, list: ListId, filter: &mut String) {
        match self.lists.place(list) {
            ListLocation::Literal(text) => filter.push_str(self.literals.texts.text(text)),
            place => self.trie.write_filter(place, filter),
        }
    }

    /// Visits up to `filters_max` filters from `cursor` on. Returns the cursor to continue at, or `None` after the
    /// last. The tree may change between calls: a filter that exists throughout is visited exactly once.
    pub fn for_each_filter(
        &self,
        cursor: FilterCursor,
        filters_max: usize,
        mut visit: impl FnMut(ListId, &str, &[SubscriptionEntry<T>]),
    ) -> Option<FilterCursor> {
        let mut filter = String::new();
        let mut next = self.lists.next(ListId(cursor.0));
        for _ in 0..filters_max {
            let list = next?;
            filter.clear();
            self.write_filter(list, &mut filter);
            visit(list, &filter, self.lists.entries(list));
            next = self.lists.next(ListId(list.0 + 1));
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

    fn insert_into(&mut self, list: ListId, entry: SubscriptionEntry<T>) -> InsertedSubscription<T> {
        InsertedSubscription {
            list,
            replaced: self.lists.insert(list, entry),
            is_new_filter: false,
        }
    }

    fn insert_literal(&mut self, filter: &str, entry: SubscriptionEntry<T>) -> InsertedSubscription<T> {
        let text = self.literals.insert(filter);
        let list = self.lists.create(ListLocation::Literal(text), entry);
        self.literals.texts.set_tag(text, list.0);
        self.generation += 1;
        InsertedSubscription {
            list,
            replaced: None,
            is_new_filter: true,
        }
    }

    fn insert_wildcard(&mut self, place: ListLocation, entry: SubscriptionEntry<T>) -> InsertedSubscription<T> {
        let list = self.lists.create(place, entry);
        self.trie.attach(place, list);
        self.generation += 1;
        self.wildcard_generation += 1;
        InsertedSubscription {
            list,
            replaced: None,
            is_new_filter: true,
        }
    }
}

/// Filters without wildcards: their texts, each tagged with its list, and a hash table to find them.
struct LiteralFilters {
    texts: Texts,
    ids: IdMap<TextId>,
    hashing: RandomState,
}

impl LiteralFilters {
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

    fn insert(&mut self, filter: &str) -> TextId {
        let text = self.texts.insert(filter.as_bytes(), u32::MAX);
        self.ids.insert(hash_text(&self.hashing, filter.as_bytes()), text);
        text
    }

    fn remove(&mut self, text: TextId) {
        let hash = hash_text(&self.hashing, self.texts.text(text).as_bytes());
        self.ids.remove(hash, |id| id == text);
        self.texts.remove(text);
    }
}

/// Returns the levels of a topic or filter, each with whether it is the last.
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
