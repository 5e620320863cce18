//! The publishers whose messages a subscription receives: topics in a tree of levels, in which filters are looked up.
//!
//! Only wildcards match a level that depends on the message (`%s`, `%{rand:N}`). It is unknown whether a literal level
//! of a filter ever equals it, so no messages are expected there.

use std::collections::HashMap;

use super::pattern::TopicTemplate;
use super::truth::SenderNumber;

/// Ascending sender numbers as ranges: most subscriptions receive from one publisher or from a whole group.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct SenderRanges {
    ranges: Vec<SourceRange>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SourceRange {
    first: SenderNumber,
    length: u32,
    /// The position of `first` among all senders.
    position: u32,
}

impl SenderRanges {
    /// Creates a set from numbers that are sorted and distinct.
    fn new(senders: &[SenderNumber]) -> SenderRanges {
        let mut ranges: Vec<SourceRange> = Vec::new();
        for (position, &sender) in senders.iter().enumerate() {
            match ranges.last_mut() {
                Some(last) if last.first.0 + last.length == sender.0 => last.length += 1,
                _ => ranges.push(SourceRange {
                    first: sender,
                    length: 1,
                    position: position as u32,
                }),
            }
        }
        ranges.shrink_to_fit();
        SenderRanges { ranges }
    }

    /// Returns the position of a sender among all.
    #[inline]
    pub fn position(&self, sender: SenderNumber) -> Option<usize> {
        let range = match &*self.ranges {
            [only] => only,
            ranges => &ranges[ranges.partition_point(|range| range.first <= sender).checked_sub(1)?],
        };
        let offset = sender.0.checked_sub(range.first.0)?;
        (offset < range.length).then_some((range.position + offset) as usize)
    }

    pub fn len(&self) -> usize {
        self.ranges
            .last()
            .map_or(0, |last| (last.position + last.length) as usize)
    }

    pub fn iter(&self) -> impl Iterator<Item = SenderNumber> {
        self.ranges
            .iter()
            .flat_map(|range| range.first.0..range.first.0 + range.length)
            .map(SenderNumber)
    }
}

/// The topics of a scenario.
#[derive(Default)]
pub struct TopicTree {
    nodes: Vec<SourceTreeNode>,
    children: HashMap<(u32, Box<str>), u32>,
}

#[derive(Default)]
struct SourceTreeNode {
    senders: Vec<SenderNumber>,
    /// The child for a level that depends on the message.
    changing: Option<u32>,
    /// All other children, for wildcards.
    literal: Vec<(Box<str>, u32)>,
}

impl TopicTree {
    pub fn new() -> TopicTree {
        TopicTree {
            nodes: vec![SourceTreeNode::default()],
            children: HashMap::new(),
        }
    }

    pub fn add(&mut self, topic: &TopicTemplate, sender: SenderNumber) {
        let mut node = 0;
        for level in topic.levels() {
            node = self.child_or_new(node, level);
        }
        self.nodes[node as usize].senders.push(sender);
    }

    fn child_or_new(&mut self, parent: u32, level: Option<&str>) -> u32 {
        let next = self.nodes.len() as u32;
        let child = match level {
            None => *self.nodes[parent as usize].changing.get_or_insert(next),
            Some(level) => match self.children.get(&(parent, level.into())) {
                Some(child) => *child,
                None => {
                    self.children.insert((parent, level.into()), next);
                    self.nodes[parent as usize].literal.push((level.into(), next));
                    next
                }
            },
        };
        if child == next {
            self.nodes.push(SourceTreeNode::default());
        }
        child
    }

    /// Returns all senders from which one of `filters` receives.
    pub fn senders_for<'f>(&self, filters: impl Iterator<Item = &'f str>) -> SenderRanges {
        let mut senders = Vec::new();
        for filter in filters {
            let levels: Vec<&str> = filter.split('/').collect();
            self.collect(0, &levels, true, &mut senders);
        }
        senders.sort_unstable();
        senders.dedup();
        SenderRanges::new(&senders)
    }

    fn collect(&self, node: u32, filter: &[&str], is_first: bool, senders: &mut Vec<SenderNumber>) {
        let here = &self.nodes[node as usize];
        // [MQTT-4.7.2-1]
        let hides = |level: &str| is_first && level.starts_with('$');
        match filter.split_first() {
            None => senders.extend(&here.senders),
            Some((&"#", _)) => {
                senders.extend(&here.senders);
                for (_, child) in here.literal.iter().filter(|(level, _)| !hides(level)) {
                    self.collect(*child, filter, false, senders);
                }
                if let Some(child) = here.changing {
                    self.collect(child, filter, false, senders);
                }
            }
            Some((&"+", rest)) => {
                for (_, child) in here.literal.iter().filter(|(level, _)| !hides(level)) {
                    self.collect(*child, rest, false, senders);
                }
                if let Some(child) = here.changing {
                    self.collect(child, rest, false, senders);
                }
            }
            Some((&level, rest)) => {
                if let Some(child) = self.children.get(&(node, level.into())) {
                    self.collect(*child, rest, false, senders);
                }
            }
        }
    }

    /// Returns a sender that publishes to exactly this topic; a changing level matches any text.
    pub fn first_publisher_of(&self, topic: &str) -> Option<SenderNumber> {
        let levels: Vec<&str> = topic.split('/').collect();
        self.find(0, &levels)
    }

    /// Counts the senders that publish to exactly this topic.
    pub fn publishers_of(&self, topic: &str) -> usize {
        let mut node = 0;
        for level in topic.split('/') {
            match self.children.get(&(node, level.into())) {
                Some(child) => node = *child,
                None => return 0,
            }
        }
        self.nodes[node as usize].senders.len()
    }

    fn find(&self, node: u32, levels: &[&str]) -> Option<SenderNumber> {
        let here = &self.nodes[node as usize];
        let Some((&level, rest)) = levels.split_first() else {
            return here.senders.first().copied();
        };
        let literal = self.children.get(&(node, level.into()));
        literal
            .and_then(|child| self.find(*child, rest))
            .or_else(|| here.changing.and_then(|child| self.find(child, rest)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::pattern::PatternValues;

    fn tree(topics: &[&str]) -> TopicTree {
        let mut tree = TopicTree::new();
        for (sender, topic) in topics.iter().enumerate() {
            let topic = TopicTemplate::new(topic, &PatternValues::default());
            tree.add(&topic, SenderNumber(sender as u32));
        }
        tree
    }

    #[test]
    fn heard_by_returns_senders_of_matching_topics() {
        let tree = tree(&["a/b", "a/c", "a", "$SYS/x", "a/b/%s", "d/m%s/e", "a/b"]);
        for (filters, senders) in [
            (&["a/b"][..], &[0, 6][..]),
            (&["a/+"], &[0, 1, 6]),
            (&["a/#"], &[0, 1, 2, 4, 6]),
            (&["#"], &[0, 1, 2, 4, 5, 6]),
            (&["+/x"], &[]),
            (&["$SYS/x"], &[3]),
            (&["a/b/+"], &[4]),
            (&["a/b/7"], &[]),
            (&["d/+/e"], &[5]),
            (&["a/c", "a/#"], &[0, 1, 2, 4, 6]),
        ] {
            let sources = tree.senders_for(filters.iter().copied());
            let senders: Vec<SenderNumber> = senders.iter().copied().map(SenderNumber).collect();
            assert_eq!(sources.iter().collect::<Vec<_>>(), senders, "{filters:?}");
            for (position, &sender) in senders.iter().enumerate() {
                assert_eq!(sources.position(sender), Some(position));
            }
            assert_eq!(
                (sources.len(), sources.position(SenderNumber(99))),
                (senders.len(), None)
            );
        }
        assert_eq!(tree.first_publisher_of("a/b/5"), Some(SenderNumber(4)));
        assert_eq!(tree.first_publisher_of("nothing"), None);
    }
}
