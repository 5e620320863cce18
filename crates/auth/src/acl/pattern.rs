//! One topic filter of a resolved rule, classified so that common shapes need a single comparison.

use std::fmt;
use std::sync::Arc;

use mqtt::{filter_covers, filters_overlap, starts_with_wildcard};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TopicPattern {
    kind: TopicPatternKind,
    /// Length of [`literal_prefix`], which excludes most patterns early.
    prefix_len: u32,
    filter: Arc<str>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TopicPatternKind {
    /// No wildcard.
    Literal,
    /// `#`
    All,
    /// `a/b/#` without another wildcard.
    Subtree,
    /// Any other combination of wildcards.
    Wildcards,
    /// `eq a/#`: a subscription to exactly this filter.
    Verbatim,
    /// Every topic, including those with `$`. No filter can express that, but deny rules need it.
    Everything,
}

impl fmt::Display for TopicPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            TopicPatternKind::Verbatim => write!(f, "eq {}", self.filter),
            TopicPatternKind::Everything => f.write_str("all topics"),
            _ => f.write_str(&self.filter),
        }
    }
}

impl TopicPattern {
    /// Creates a pattern. `filter` must be well-formed.
    pub fn new(filter: &str) -> TopicPattern {
        let kind = match filter {
            "#" => TopicPatternKind::All,
            _ if !filter.contains(['+', '#']) => TopicPatternKind::Literal,
            _ if filter.ends_with("/#") && !filter.contains('+') => TopicPatternKind::Subtree,
            _ => TopicPatternKind::Wildcards,
        };
        TopicPattern::of_kind(kind, filter)
    }

    pub fn literal_filter(filter: &str) -> TopicPattern {
        let has_wildcards = filter.contains(['+', '#']);
        TopicPattern::of_kind(
            if has_wildcards {
                TopicPatternKind::Verbatim
            } else {
                TopicPatternKind::Literal
            },
            filter,
        )
    }

    pub fn match_all() -> TopicPattern {
        TopicPattern::of_kind(TopicPatternKind::Everything, "")
    }

    fn of_kind(kind: TopicPatternKind, filter: &str) -> TopicPattern {
        // A filter has at most 65535 bytes.
        let prefix_len = literal_prefix(filter).len() as u32;
        TopicPattern {
            kind,
            prefix_len,
            filter: filter.into(),
        }
    }

    /// Returns whether a published topic matches.
    #[inline]
    pub fn matches(&self, topic: &str) -> bool {
        match self.kind {
            TopicPatternKind::Literal => *self.filter == *topic,
            TopicPatternKind::All => !topic.starts_with('$'),
            TopicPatternKind::Subtree => is_in_subtree(self.prefix(), topic),
            TopicPatternKind::Wildcards => wildcards_match(&self.filter, self.prefix_len as usize, topic),
            TopicPatternKind::Verbatim => false,
            TopicPatternKind::Everything => true,
        }
    }

    /// As [`TopicPattern::matches`], for a topic delivered under a verbatim grant.
    pub fn matches_as_filter(&self, topic: &str) -> bool {
        match self.kind {
            TopicPatternKind::Verbatim => mqtt::filter_matches(&self.filter, topic),
            _ => self.matches(topic),
        }
    }

    /// Returns how the pattern relates to the topics that a subscription matches.
    pub fn relation(&self, subscription: &SubscriptionFilter<'_>) -> PatternRelation {
        if !prefixes_agree(self.prefix(), subscription.prefix) {
            return PatternRelation::Disjoint;
        }
        let filter = subscription.filter;
        match self.kind {
            TopicPatternKind::Everything => PatternRelation::Covers,
            TopicPatternKind::Verbatim if *self.filter == *filter => PatternRelation::Covers,
            // It applies to one subscription and not to its topics, so it overlaps no other subscription.
            TopicPatternKind::Verbatim => PatternRelation::Disjoint,
            _ if filter_covers(&self.filter, filter) => PatternRelation::Covers,
            _ if filters_overlap(&self.filter, filter) => PatternRelation::Overlaps,
            _ => PatternRelation::Disjoint,
        }
    }

    fn prefix(&self) -> &str {
        &self.filter[..self.prefix_len as usize]
    }
}

/// The filter of a subscription, analysed once for all patterns.
pub(super) struct SubscriptionFilter<'a> {
    filter: &'a str,
    prefix: &'a str,
}

impl<'a> SubscriptionFilter<'a> {
    pub fn new(filter: &'a str) -> SubscriptionFilter<'a> {
        let prefix = literal_prefix(filter);
        SubscriptionFilter { filter, prefix }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PatternRelation {
    /// The pattern matches every topic of the subscription.
    Covers,
    /// The pattern matches some topics of the subscription.
    Overlaps,
    Disjoint,
}

/// Returns the common prefix of all topics that `filter` matches. `a/#` matches `a`, so the prefix is `a`.
fn literal_prefix(filter: &str) -> &str {
    match filter.find(['+', '#']) {
        None => filter,
        Some(at) if filter[at..].starts_with('#') => filter[..at].strip_suffix('/').unwrap_or_default(),
        Some(at) => &filter[..at],
    }
}

/// Returns `false` if no topic can begin with both.
fn prefixes_agree(a: &str, b: &str) -> bool {
    let len = a.len().min(b.len());
    a.as_bytes()[..len] == b.as_bytes()[..len]
}

/// Returns whether the topic is `parent` or below it.
#[inline]
fn is_in_subtree(parent: &str, topic: &str) -> bool {
    match topic.as_bytes().strip_prefix(parent.as_bytes()) {
        Some(rest) => rest.is_empty() || rest[0] == b'/',
        None => false,
    }
}

/// Matches a filter whose first `prefix_len` bytes are whole levels without wildcards.
fn wildcards_match(filter: &str, prefix_len: usize, topic: &str) -> bool {
    let (prefix, rest) = filter.split_at(prefix_len);
    let Some(topic_rest) = topic.strip_prefix(prefix) else {
        return false;
    };
    if starts_with_wildcard(filter) && topic.starts_with('$') {
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
    fn pattern_kinds_match_like_the_protocol() {
        let topics = [
            "a", "b", "ab", "a/b", "a/bc", "a/b/c", "a/x/c", "/", "/a", "a/", "a//b", "a//", "$s", "$s/a", "$s/a/b",
            "a/b/c/d", "é", "a/é/c", "$",
        ];
        for filter in FILTERS {
            for topic in topics {
                let expected = mqtt::filter_matches(filter, topic);
                assert_eq!(
                    TopicPattern::new(filter).matches(topic),
                    expected,
                    "{filter} against {topic}"
                );
                // A topic is a filter that matches only itself.
                let relation = if expected {
                    PatternRelation::Covers
                } else {
                    PatternRelation::Disjoint
                };
                assert_eq!(
                    relation_of(&TopicPattern::new(filter), topic),
                    relation,
                    "{filter} and {topic}"
                );
            }
        }
    }

    /// The prefix is an optimization and must not change a result.
    #[test]
    fn relations_equal_those_of_the_filters() {
        for a in FILTERS {
            for b in FILTERS {
                let expected = match (filter_covers(a, b), filters_overlap(a, b)) {
                    (true, _) => PatternRelation::Covers,
                    (false, true) => PatternRelation::Overlaps,
                    (false, false) => PatternRelation::Disjoint,
                };
                assert_eq!(relation_of(&TopicPattern::new(a), b), expected, "{a} and {b}");
                assert_eq!(relation_of(&TopicPattern::match_all(), b), PatternRelation::Covers);
            }
        }
    }

    #[test]
    fn verbatim_applies_to_the_subscription_only() {
        let all = TopicPattern::literal_filter("#");
        assert_eq!(relation_of(&all, "#"), PatternRelation::Covers);
        assert_eq!(relation_of(&all, "a"), PatternRelation::Disjoint);
        assert_eq!(relation_of(&all, "a/#"), PatternRelation::Disjoint);
        assert!(!all.matches("a") && all.matches_as_filter("a") && !all.matches_as_filter("$s"));
        let literal = TopicPattern::literal_filter("a/b");
        assert!(literal.matches("a/b"));
        assert_eq!(relation_of(&literal, "a/b"), PatternRelation::Covers);
        assert_eq!(relation_of(&literal, "a/#"), PatternRelation::Overlaps);
    }

    fn relation_of(pattern: &TopicPattern, filter: &str) -> PatternRelation {
        pattern.relation(&SubscriptionFilter::new(filter))
    }
}
