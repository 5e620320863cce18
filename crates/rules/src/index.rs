//! Which rules a message or an event is for: a trie of topic filters, so that ten thousand rules with filters of their own cost
//! a message what one does.
//!
//! Looking up allocates nothing but room in the caller's buffer. A rule that several of its sources match is found once.

use std::collections::HashMap;

use foldhash::fast::RandomState;

use crate::event::EventKind;
use crate::rule::Source;

/// `T` is what stands for a rule: a number, a handle.
#[derive(Clone, Debug)]
pub struct RuleIndex<T> {
    topics: Level<T>,
    events: HashMap<EventKind, Vec<T>>,
    /// By name, and those with wildcards.
    bridges: HashMap<String, Vec<T>>,
    bridge_filters: Vec<(String, T)>,
}

#[derive(Clone, Debug)]
struct Level<T> {
    children: HashMap<Box<str>, Level<T>, RandomState>,
    /// Below `+`.
    any: Option<Box<Level<T>>>,
    /// Filters that end here.
    here: Vec<T>,
    /// Filters that end with `#` below this level; they match this level as well.
    all_below: Vec<T>,
}

impl<T> Default for Level<T> {
    fn default() -> Level<T> {
        Level {
            children: HashMap::default(),
            any: None,
            here: Vec::new(),
            all_below: Vec::new(),
        }
    }
}

impl<T> Default for RuleIndex<T> {
    fn default() -> RuleIndex<T> {
        RuleIndex {
            topics: Level::default(),
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

    pub fn insert(&mut self, source: &Source, rule: T) {
        match source {
            Source::Topic(filter) => self.topics.insert(filter.split('/'), rule),
            Source::Event(kind) => self.events.entry(*kind).or_default().push(rule),
            Source::Bridge(name) if is_pattern(name) => self.bridge_filters.push((name.clone(), rule)),
            Source::Bridge(name) => self.bridges.entry(name.clone()).or_default().push(rule),
        }
    }

    pub fn remove(&mut self, source: &Source, rule: T) {
        match source {
            Source::Topic(filter) => self.topics.remove(filter.split('/'), rule),
            Source::Event(kind) => remove_from(&mut self.events, kind, rule),
            Source::Bridge(name) if is_pattern(name) => {
                self.bridge_filters.retain(|entry| entry.0 != *name || entry.1 != rule);
            }
            Source::Bridge(name) => remove_from(&mut self.bridges, name.as_str(), rule),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.topics.is_empty() && self.events.is_empty() && self.bridges.is_empty() && self.bridge_filters.is_empty()
    }

    /// Whether any rule listens to this kind of event: if not, it need not be described.
    pub fn has_event(&self, kind: EventKind) -> bool {
        self.events.contains_key(&kind)
    }

    /// Whether any rule listens to published messages.
    pub fn has_topics(&self) -> bool {
        !self.topics.is_empty()
    }

    /// Rules for a published message, in order, each once; `out` is cleared first.
    pub fn publish(&self, topic: &str, out: &mut Vec<T>) {
        out.clear();
        // [MQTT-4.7.2-1]: what begins with $ is matched by no wildcard in front.
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

    /// Rules for an event, in order, each once; `out` is cleared first.
    pub fn event(&self, kind: EventKind, out: &mut Vec<T>) {
        out.clear();
        out.extend(self.events.get(&kind).into_iter().flatten());
        in_order(out);
    }

    /// Rules for a message of a source by its name (`$bridges/mqtt:name`), in order, each once; `out` is cleared first.
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

/// `$bridges/mqtt:*` and topic filters.
fn is_pattern(name: &str) -> bool {
    name.ends_with('*') || mqtt::has_wildcards(name)
}

fn pattern_matches(pattern: &str, name: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(prefix) => name.starts_with(prefix),
        None => mqtt::filter_matches(pattern, name),
    }
}

impl<T: Copy + PartialEq> Level<T> {
    fn is_empty(&self) -> bool {
        self.children.is_empty() && self.any.is_none() && self.here.is_empty() && self.all_below.is_empty()
    }

    fn insert<'f>(&mut self, filter: impl Iterator<Item = &'f str>, rule: T) {
        let mut level = self;
        for name in filter {
            level = match name {
                "#" => return level.all_below.push(rule),
                "+" => level.any.get_or_insert_default(),
                name => level.children.entry(name.into()).or_default(),
            };
        }
        level.here.push(rule);
    }

    fn remove<'f>(&mut self, mut filter: impl Iterator<Item = &'f str>, rule: T) {
        match filter.next() {
            None => self.here.retain(|other| *other != rule),
            Some("#") => self.all_below.retain(|other| *other != rule),
            Some("+") => {
                if let Some(any) = &mut self.any {
                    // Boxed iterators would nest; the rest of the filter is short.
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

    /// Recursion is as deep as the deepest filter.
    fn matching<'t>(&self, mut topic: impl Iterator<Item = &'t str> + Clone, out: &mut Vec<T>) {
        out.extend_from_slice(&self.all_below);
        let Some(name) = topic.next() else {
            return out.extend_from_slice(&self.here);
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
            index.insert(&Source::Topic((*filter).to_owned()), number as u32);
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
        index.insert(&Source::Topic("t/+".to_owned()), 0);
        let mut found = Vec::new();
        index.publish("t/a", &mut found);
        assert_eq!(found, [0]);
    }

    #[test]
    fn what_is_removed_leaves_nothing() {
        let filters = ["#", "a/+/c", "a/b", "+/#"];
        let mut index = index(&filters);
        index.insert(&Source::Event(EventKind::ClientConnected), 9);
        index.insert(&Source::Bridge("$bridges/mqtt:a".to_owned()), 9);
        index.insert(&Source::Bridge("$bridges/mqtt:*".to_owned()), 8);
        let mut found = Vec::new();
        index.bridge("$bridges/mqtt:a", &mut found);
        assert_eq!(found, [8, 9]);
        index.event(EventKind::ClientConnected, &mut found);
        assert_eq!(found, [9]);
        for (number, filter) in filters.iter().enumerate() {
            index.remove(&Source::Topic((*filter).to_owned()), number as u32);
        }
        index.remove(&Source::Event(EventKind::ClientConnected), 9);
        index.remove(&Source::Bridge("$bridges/mqtt:a".to_owned()), 9);
        index.remove(&Source::Bridge("$bridges/mqtt:*".to_owned()), 8);
        assert!(index.is_empty());
    }
}
