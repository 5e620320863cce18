//! The index of rules: a trie of topic filters. With ten thousand rules with different filters, a lookup costs the same
//! as with one rule.
//!
//! A lookup allocates nothing except space in the caller's buffer. If several sources of a rule match, the rule is
//! returned once.

use std::collections::HashMap;

use foldhash::fast::RandomState;

use crate::event::EventKind;
use crate::rule::FromEntry;

/// `T` identifies a rule, for example a number or a handle.
#[derive(Clone, Debug)]
pub struct RuleIndex<T> {
    topics: IndexLevel<T>,
    events: HashMap<EventKind, Vec<T>>,
    /// Rules by the name of the source, and rules with wildcard names.
    bridges: HashMap<String, Vec<T>>,
    bridge_filters: Vec<(String, T)>,
}

#[derive(Clone, Debug)]
struct IndexLevel<T> {
    children: HashMap<Box<str>, IndexLevel<T>, RandomState>,
    /// The level below `+`.
    any: Option<Box<IndexLevel<T>>>,
    /// Rules with a filter that ends at this level.
    exact: Vec<T>,
    /// Rules with a filter that ends with `#` below this level. The filter matches this level as well.
    multi_level: Vec<T>,
}

impl<T> Default for IndexLevel<T> {
    fn default() -> IndexLevel<T> {
        IndexLevel {
            children: HashMap::default(),
            any: None,
            exact: Vec::new(),
            multi_level: Vec::new(),
        }
    }
}

impl<T> Default for RuleIndex<T> {
    fn default() -> RuleIndex<T> {
        RuleIndex {
            topics: IndexLevel::default(),
            events: HashMap::new(),
            bridges: HashMap::new(),
            bridge_filters: Vec::new(),
        }
    }
}

impl<T: Copy + Ord> RuleIndex<T> {
    pub fn new() -> RuleIndex<T> {
        RuleIndex::default()
    }

    pub fn insert(&mut self, source: &FromEntry, rule: T) {
        match source {
            FromEntry::Topic(filter) => self.topics.insert(filter.split('/'), rule),
            FromEntry::Event(kind) => self.events.entry(*kind).or_default().push(rule),
            FromEntry::Bridge(name) if is_pattern(name) => self.bridge_filters.push((name.clone(), rule)),
            FromEntry::Bridge(name) => self.bridges.entry(name.clone()).or_default().push(rule),
        }
    }

    pub fn remove(&mut self, source: &FromEntry, rule: T) {
        match source {
            FromEntry::Topic(filter) => self.topics.remove(filter.split('/'), rule),
            FromEntry::Event(kind) => remove_from(&mut self.events, kind, rule),
            FromEntry::Bridge(name) if is_pattern(name) => {
                self.bridge_filters.retain(|entry| entry.0 != *name || entry.1 != rule);
            }
            FromEntry::Bridge(name) => remove_from(&mut self.bridges, name.as_str(), rule),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.topics.is_empty() && self.events.is_empty() && self.bridges.is_empty() && self.bridge_filters.is_empty()
    }

    /// Returns whether any rule listens to this kind of event. If not, the caller need not create the event.
    pub fn has_event(&self, kind: EventKind) -> bool {
        self.events.contains_key(&kind)
    }

    /// Returns whether any rule listens to published messages.
    pub fn has_topics(&self) -> bool {
        !self.topics.is_empty()
    }

    /// Finds the rules for a published message, in order and without duplicates. Clears `out` first.
    pub fn publish(&self, topic: &str, out: &mut Vec<T>) {
        out.clear();
        // [MQTT-4.7.2-1]: a topic that begins with $ is not matched by a filter that begins with a wildcard.
        if topic.starts_with('$') {
            let mut levels = topic.split('/');
            if let Some(level) = levels.next().and_then(|first| self.topics.children.get(first)) {
                level.matching(levels, out);
            }
        } else {
            self.topics.matching(topic.split('/'), out);
        }
        in_order(out);
    }

    /// Finds the rules for an event, in order and without duplicates. Clears `out` first.
    pub fn event(&self, kind: EventKind, out: &mut Vec<T>) {
        out.clear();
        out.extend(self.events.get(&kind).into_iter().flatten());
        in_order(out);
    }

    /// Finds the rules for a message from the source with this name (`$bridges/mqtt:name`), in order and without
    /// duplicates. Clears `out` first.
    pub fn bridge(&self, name: &str, out: &mut Vec<T>) {
        out.clear();
        out.extend(self.bridges.get(name).into_iter().flatten());
        let matching = self
            .bridge_filters
            .iter()
            .filter(|entry| pattern_matches(&entry.0, name));
        out.extend(matching.map(|entry| entry.1));
        in_order(out);
    }
}

fn in_order<T: Ord>(out: &mut Vec<T>) {
    if out.len() > 1 {
        out.sort_unstable();
        out.dedup();
    }
}

fn remove_from<K, Q, T>(map: &mut HashMap<K, Vec<T>>, key: &Q, rule: T)
where
    K: std::hash::Hash + Eq + std::borrow::Borrow<Q>,
    Q: std::hash::Hash + Eq + ?Sized,
    T: PartialEq,
{
    if let Some(rules) = map.get_mut(key) {
        rules.retain(|other| *other != rule);
        if rules.is_empty() {
            map.remove(key);
        }
    }
}

/// Returns true for `$bridges/mqtt:*` and for topic filters.
fn is_pattern(name: &str) -> bool {
    name.ends_with('*') || mqtt::has_wildcards(name)
}

fn pattern_matches(pattern: &str, name: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(prefix) => name.starts_with(prefix),
        None => mqtt::filter_matches(pattern, name),
    }
}

impl<T: Copy + PartialEq> IndexLevel<T> {
    fn is_empty(&self) -> bool {
        self.children.is_empty() && self.any.is_none() && self.exact.is_empty() && self.multi_level.is_empty()
    }

    fn insert<'f>(&mut self, filter: impl Iterator<Item = &'f str>, rule: T) {
        let mut level = self;
        for name in filter {
            level = match name {
                "#" => return level.multi_level.push(rule),
                "+" => level.any.get_or_insert_default(),
                name => level.children.entry(name.into()).or_default(),
            };
        }
        level.exact.push(rule);
    }

    fn remove<'f>(&mut self, mut filter: impl Iterator<Item = &'f str>, rule: T) {
        match filter.next() {
            None => self.exact.retain(|other| *other != rule),
            Some("#") => self.multi_level.retain(|other| *other != rule),
            Some("+") => {
                if let Some(any) = &mut self.any {
                    // Collect the rest: boxed iterators would nest, and the rest of the filter is short.
                    any.remove(filter.collect::<Vec<_>>().into_iter(), rule);
                }
                self.any.take_if(|any| any.is_empty());
            }
            Some(name) => {
                if let Some(child) = self.children.get_mut(name) {
                    child.remove(filter.collect::<Vec<_>>().into_iter(), rule);
                    if child.is_empty() {
                        self.children.remove(name);
                    }
                }
            }
        }
    }

    /// The recursion is at most as deep as the deepest filter.
    fn matching<'t>(&self, mut topic: impl Iterator<Item = &'t str> + Clone, out: &mut Vec<T>) {
        out.extend_from_slice(&self.multi_level);
        let Some(name) = topic.next() else {
            return out.extend_from_slice(&self.exact);
        };
        if let Some(child) = self.children.get(name) {
            child.matching(topic.clone(), out);
        }
        if let Some(any) = &self.any {
            any.matching(topic, out);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn index(filters: &[&str]) -> RuleIndex<u32> {
        let mut index = RuleIndex::new();
        for (number, filter) in filters.iter().enumerate() {
            index.insert(&FromEntry::Topic((*filter).to_owned()), number as u32);
        }
        index
    }

    #[test]
    fn agrees_with_the_definition_of_matching() {
        let filters = [
            "#", "+", "+/+", "a/#", "a/+/c", "a/b", "a/b/c", "+/b/#", "$SYS/#", "$SYS/+", "/", "+/", "/+", "a//b",
            "a/b/",
        ];
        let topics = [
            "a", "b", "a/b", "a/b/c", "a/x/c", "x/b", "/", "", "$SYS", "$SYS/a", "$SYS/a/b", "a//b", "a/b/", "/a",
        ];
        let index = index(&filters);
        let mut found = Vec::new();
        for topic in topics {
            index.publish(topic, &mut found);
            let expected: Vec<u32> = (0..filters.len() as u32)
                .filter(|number| mqtt::filter_matches(filters[*number as usize], topic))
                .collect();
            assert_eq!(found, expected, "{topic:?}");
        }
    }

    #[test]
    fn a_rule_with_two_matching_filters_is_found_once() {
        let mut index = index(&["t/#"]);
        index.insert(&FromEntry::Topic("t/+".to_owned()), 0);
        let mut found = Vec::new();
        index.publish("t/a", &mut found);
        assert_eq!(found, [0]);
    }

    #[test]
    fn removing_all_rules_leaves_an_empty_index() {
        let filters = ["#", "a/+/c", "a/b", "+/#"];
        let mut index = index(&filters);
        index.insert(&FromEntry::Event(EventKind::ClientConnected), 9);
        index.insert(&FromEntry::Bridge("$bridges/mqtt:a".to_owned()), 9);
        index.insert(&FromEntry::Bridge("$bridges/mqtt:*".to_owned()), 8);
        let mut found = Vec::new();
        index.bridge("$bridges/mqtt:a", &mut found);
        assert_eq!(found, [8, 9]);
        index.event(EventKind::ClientConnected, &mut found);
        assert_eq!(found, [9]);
        for (number, filter) in filters.iter().enumerate() {
            index.remove(&FromEntry::Topic((*filter).to_owned()), number as u32);
        }
        index.remove(&FromEntry::Event(EventKind::ClientConnected), 9);
        index.remove(&FromEntry::Bridge("$bridges/mqtt:a".to_owned()), 9);
        index.remove(&FromEntry::Bridge("$bridges/mqtt:*".to_owned()), 8);
        assert!(index.is_empty());
    }
}
