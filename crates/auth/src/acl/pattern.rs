//! One topic filter of a resolved rule, classified so that the common shapes cost one comparison.

use std::sync::Arc;

use super::cover::{filter_covers, filters_overlap, starts_with_wildcard};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pattern {
    kind: Kind,
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
        Pattern {
            kind,
            filter: filter.into(),
        }
    }

    pub fn verbatim(filter: &str) -> Pattern {
        let kind = if filter.contains(['+', '#']) {
            Kind::Verbatim
        } else {
            Kind::Literal
        };
        Pattern {
            kind,
            filter: filter.into(),
        }
    }

    pub fn everything() -> Pattern {
        Pattern {
            kind: Kind::Everything,
            filter: "".into(),
        }
    }

    /// Matches a topic that is published to.
    #[inline]
    pub fn matches(&self, topic: &str) -> bool {
        match self.kind {
            Kind::Literal => *self.filter == *topic,
            Kind::All => !topic.starts_with('$'),
            Kind::Subtree => is_in_subtree(&self.filter, topic),
            Kind::Wildcards => wildcards_match(&self.filter, topic),
            Kind::Verbatim => false,
            Kind::Everything => true,
        }
    }

    /// Matches every topic that the subscription `filter` can match.
    pub fn covers(&self, filter: &str) -> bool {
        match self.kind {
            Kind::Literal | Kind::Verbatim => *self.filter == *filter,
            Kind::Everything => true,
            _ => filter_covers(&self.filter, filter),
        }
    }

    /// Matches some topic that the subscription `filter` can match. A verbatim pattern speaks about one subscription, not
    /// about its topics, so it overlaps no other.
    pub fn overlaps(&self, filter: &str) -> bool {
        match self.kind {
            Kind::Verbatim => *self.filter == *filter,
            Kind::Everything => true,
            _ => filters_overlap(&self.filter, filter),
        }
    }

    /// Like [`Pattern::matches`], for a topic that is delivered under a verbatim grant.
    pub fn matches_as_filter(&self, topic: &str) -> bool {
        match self.kind {
            Kind::Verbatim => wildcards_match(&self.filter, topic),
            _ => self.matches(topic),
        }
    }
}

/// `filter` is `a/b/#`: matches `a/b` and all below it.
#[inline]
fn is_in_subtree(filter: &str, topic: &str) -> bool {
    let parent = &filter.as_bytes()[..filter.len() - 2];
    match topic.as_bytes().strip_prefix(parent) {
        Some(rest) => rest.is_empty() || rest[0] == b'/',
        None => false,
    }
}

fn wildcards_match(filter: &str, topic: &str) -> bool {
    if starts_with_wildcard(filter) && topic.starts_with('$') {
        return false; // [MQTT-4.7.2-1]
    }
    let mut topic_levels = topic.split('/');
    for level in filter.split('/') {
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

    #[test]
    fn every_kind_matches_as_the_protocol_says() {
        let filters = [
            "a", "a/b", "#", "a/#", "a/b/#", "/#", "+", "+/b", "a/+", "a/+/c", "+/+", "a/+/#", "+/#", "$s/#", "$s/+",
            "/", "a//b",
        ];
        let topics = [
            "a", "b", "ab", "a/b", "a/bc", "a/b/c", "a/x/c", "/", "/a", "a/", "a//b", "$s", "$s/a", "$s/a/b",
            "a/b/c/d", "é", "a/é/c",
        ];
        for filter in filters {
            for topic in topics {
                let expected = mqtt::filter_matches(filter, topic);
                assert_eq!(
                    Pattern::new(filter).matches(topic),
                    expected,
                    "{filter} against {topic}"
                );
                // A topic is a filter that matches itself only.
                assert_eq!(Pattern::new(filter).covers(topic), expected, "{filter} covers {topic}");
                assert_eq!(
                    Pattern::new(filter).overlaps(topic),
                    expected,
                    "{filter} overlaps {topic}"
                );
            }
        }
    }

    #[test]
    fn verbatim_speaks_about_the_subscription_only() {
        let all = Pattern::verbatim("#");
        assert!(all.covers("#") && !all.covers("a") && !all.overlaps("a/#") && !all.matches("a"));
        let literal = Pattern::verbatim("a/b");
        assert!(literal.matches("a/b") && literal.covers("a/b") && literal.overlaps("a/#"));
    }
}
