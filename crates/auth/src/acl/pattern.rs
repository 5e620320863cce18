//! One topic filter of a resolved rule, classified so that the common shapes cost one comparison.

use std::sync::Arc;

use mqtt::{filter_covers, filters_overlap};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pattern {
    kind: Kind,
    /// Length of [`literal_prefix`], which rules most patterns out.
    prefix_len: u32,
    filter: Arc<str>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// No wildcard.
    Literal,
    /// `#`
    All,
    /// `a/b/#` without any other wildcard.
    Subtree,
    /// Any other wildcards.
    Wildcards,
    /// `eq a/#`: the subscription to this very filter.
    Verbatim,
    /// Every topic, those with `$` included. No filter can say that; deny rules need it.
    Everything,
}

impl Pattern {
    /// `filter` is well-formed.
    pub fn new(filter: &str) -> Pattern {
        let kind = match filter {
            "#" => Kind::All,
            _ if !filter.contains(['+', '#']) => Kind::Literal,
            _ if filter.ends_with("/#") && !filter.contains('+') => Kind::Subtree,
            _ => Kind::Wildcards,
        };
        Pattern::of_kind(kind, filter)
    }

    pub fn verbatim(filter: &str) -> Pattern {
        let has_wildcards = filter.contains(['+', '#']);
        Pattern::of_kind(if has_wildcards { Kind::Verbatim } else { Kind::Literal }, filter)
    }

    pub fn everything() -> Pattern {
        Pattern::of_kind(Kind::Everything, "")
    }

    fn of_kind(kind: Kind, filter: &str) -> Pattern {
        // A filter has at most 65535 bytes.
        let prefix_len = literal_prefix(filter).len() as u32;
        Pattern {
            kind,
            prefix_len,
            filter: filter.into(),
        }
    }

    /// Matches a topic that is published to.
    #[inline]
    pub fn matches(&self, topic: &str) -> bool {
        match self.kind {
            Kind::Literal => *self.filter == *topic,
            Kind::All => !topic.starts_with('$'),
            Kind::Subtree => is_in_subtree(self.prefix(), topic),
            Kind::Wildcards => wildcards_match(&self.filter, self.prefix_len as usize, topic),
            Kind::Verbatim => false,
            Kind::Everything => true,
        }
    }

    /// Like [`Pattern::matches`], for a topic that is delivered under a verbatim grant.
    pub fn matches_as_filter(&self, topic: &str) -> bool {
        match self.kind {
            Kind::Verbatim => mqtt::filter_matches(&self.filter, topic),
            _ => self.matches(topic),
        }
    }

    /// How the pattern relates to the topics that a subscription can match.
    pub fn relation(&self, subscription: &Subscription<'_>) -> Relation {
        if !prefixes_agree(self.prefix(), subscription.prefix) {
            return Relation::Disjoint;
        }
        let filter = subscription.filter;
        match self.kind {
            Kind::Everything => Relation::Covers,
            Kind::Verbatim if *self.filter == *filter => Relation::Covers,
            // It speaks about one subscription, not about its topics, so it overlaps no other.
            Kind::Verbatim => Relation::Disjoint,
            _ if filter_covers(&self.filter, filter) => Relation::Covers,
            _ if filters_overlap(&self.filter, filter) => Relation::Overlaps,
            _ => Relation::Disjoint,
        }
    }

    fn prefix(&self) -> &str {
        &self.filter[..self.prefix_len as usize]
    }
}

/// A subscription's filter, looked at once for all patterns.
pub(super) struct Subscription<'a> {
    filter: &'a str,
    prefix: &'a str,
}

impl<'a> Subscription<'a> {
    pub fn new(filter: &'a str) -> Subscription<'a> {
        let prefix = literal_prefix(filter);
        Subscription { filter, prefix }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Relation {
    /// The pattern matches every topic of the subscription.
    Covers,
    /// It matches some of them.
    Overlaps,
    Disjoint,
}

/// What every topic that `filter` matches begins with. `a/#` matches `a`, so it is `a`.
fn literal_prefix(filter: &str) -> &str {
    match filter.find(['+', '#']) {
        None => filter,
        Some(at) if filter[at..].starts_with('#') => filter[..at].strip_suffix('/').unwrap_or_default(),
        Some(at) => &filter[..at],
    }
}

/// False when no topic can begin with both.
fn prefixes_agree(a: &str, b: &str) -> bool {
    let len = a.len().min(b.len());
    a.as_bytes()[..len] == b.as_bytes()[..len]
}

/// Matches `parent` and all below it.
#[inline]
fn is_in_subtree(parent: &str, topic: &str) -> bool {
    match topic.as_bytes().strip_prefix(parent.as_bytes()) {
        Some(rest) => rest.is_empty() || rest[0] == b'/',
        None => false,
    }
}

/// The first `prefix_len` bytes of `filter` are whole levels without wildcards.
fn wildcards_match(filter: &str, prefix_len: usize, topic: &str) -> bool {
    let (prefix, rest) = filter.split_at(prefix_len);
    let Some(topic_rest) = topic.strip_prefix(prefix) else {
        return false;
    };
    if filter.starts_with(['+', '#']) && topic.starts_with('$') {
        return false; // [MQTT-4.7.2-1]
    }
    let mut topic_levels = topic_rest.split('/');
    for level in rest.split('/') {
        if level == "#" {
            return true;
        }
        match topic_levels.next() {
            Some(topic_level) if level == "+" || level == topic_level => {}
            _ => return false,
        }
    }
    topic_levels.next().is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILTERS: [&str; 23] = [
        "a", "ab", "a/b", "#", "a/#", "ab/#", "a/b/#", "/#", "+", "+/b", "a/+", "a/+/c", "+/+", "a/+/#", "a/b/+",
        "+/#", "$s/#", "$s/+", "$s", "/", "/+", "a//b", "a//#",
    ];

    #[test]
    fn every_kind_matches_as_the_protocol_says() {
        let topics = [
            "a", "b", "ab", "a/b", "a/bc", "a/b/c", "a/x/c", "/", "/a", "a/", "a//b", "a//", "$s", "$s/a", "$s/a/b",
            "a/b/c/d", "é", "a/é/c", "$",
        ];
        for filter in FILTERS {
            for topic in topics {
                let expected = mqtt::filter_matches(filter, topic);
                assert_eq!(
                    Pattern::new(filter).matches(topic),
                    expected,
                    "{filter} against {topic}"
                );
                // A topic is a filter that matches itself only.
                let relation = if expected { Relation::Covers } else { Relation::Disjoint };
                assert_eq!(
                    relation_of(&Pattern::new(filter), topic),
                    relation,
                    "{filter} and {topic}"
                );
            }
        }
    }

    /// The prefix is a shortcut and must not change an answer.
    #[test]
    fn relations_are_those_of_the_filters() {
        for a in FILTERS {
            for b in FILTERS {
                let expected = match (filter_covers(a, b), filters_overlap(a, b)) {
                    (true, _) => Relation::Covers,
                    (false, true) => Relation::Overlaps,
                    (false, false) => Relation::Disjoint,
                };
                assert_eq!(relation_of(&Pattern::new(a), b), expected, "{a} and {b}");
                assert_eq!(relation_of(&Pattern::everything(), b), Relation::Covers);
            }
        }
    }

    #[test]
    fn verbatim_speaks_about_the_subscription_only() {
        let all = Pattern::verbatim("#");
        assert_eq!(relation_of(&all, "#"), Relation::Covers);
        assert_eq!(relation_of(&all, "a"), Relation::Disjoint);
        assert_eq!(relation_of(&all, "a/#"), Relation::Disjoint);
        assert!(!all.matches("a") && all.matches_as_filter("a") && !all.matches_as_filter("$s"));
        let literal = Pattern::verbatim("a/b");
        assert!(literal.matches("a/b"));
        assert_eq!(relation_of(&literal, "a/b"), Relation::Covers);
        assert_eq!(relation_of(&literal, "a/#"), Relation::Overlaps);
    }

    fn relation_of(pattern: &Pattern, filter: &str) -> Relation {
        pattern.relation(&Subscription::new(filter))
    }
}
