//! Topic prefix of a client: the mountpoint of EMQX.
//!
//! The authenticator gives a login its prefix. The shard adds it to the topics and filters of packets from the client,
//! and removes it from the topics of packets to the client. Everything between sees full topics: access rules, the
//! router, retained messages, taps, the journal and operators.
//!
//! The prefix precedes the topic, not `$share/{name}/`, `$queue/`, `$exclusive/` or `$delayed/{seconds}/`, which are
//! not part of it. No topic is exempt, so the client cannot reach `$SYS`. A session never receives a topic that does
//! not begin with its prefix, and ends if its client returns with another prefix (`accept.rs`).
//!
//! A session without a prefix has no cost in memory. It costs a check of one pointer per received PUBLISH.

use std::fmt;
use std::sync::Arc;

use mqtt::MAXIMUM_TOPIC_BYTES;

use crate::publish_delay::{PublishDelay, strip_delay};

/// Maximum length of a prefix, so that prefixed topics need little memory.
pub const MOUNTPOINT_BYTES_MAX: usize = 1024;

/// Prefix of all topics of a client. It consists of whole levels, so that it ends with `/`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mountpoint(Arc<str>);

/// Why a text cannot be a prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MountpointError {
    /// A prefix such as `site` would make the topic `1/t` of one client equal to `t` of a client with `site1/`.
    PartOfLevel,
    /// The prefix would be interpreted as `$share/` or `$SYS/`.
    Dollar,
    ForbiddenCharacter,
    TooLong,
}

impl fmt::Display for MountpointError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MountpointError::PartOfLevel => f.write_str("the prefix must end with `/`"),
            MountpointError::Dollar => f.write_str("the prefix must not begin with `$`"),
            MountpointError::ForbiddenCharacter => f.write_str("the prefix must not contain `+`, `#` or U+0000"),
            MountpointError::TooLong => write!(f, "the prefix has more than {MOUNTPOINT_BYTES_MAX} bytes"),
        }
    }
}

impl std::error::Error for MountpointError {}

impl Mountpoint {
    pub fn new(prefix: &str) -> Result<Mountpoint, MountpointError> {
        if !prefix.ends_with('/') {
            return Err(MountpointError::PartOfLevel);
        }
        if prefix.starts_with('$') {
            return Err(MountpointError::Dollar);
        }
        if prefix.contains(['+', '#', '\0']) {
            return Err(MountpointError::ForbiddenCharacter);
        }
        if prefix.len() > MOUNTPOINT_BYTES_MAX {
            return Err(MountpointError::TooLong);
        }
        Ok(Mountpoint(prefix.into()))
    }

    /// Wraps a prefix that the journal has stored.
    pub(crate) fn restored(prefix: &str) -> Mountpoint {
        Mountpoint(prefix.into())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the full topic of a PUBLISH. It keeps a `$delayed/{seconds}/` in front, and can be longer than MQTT
    /// allows. A malformed `$delayed/` is returned as it is: the caller rejects it.
    pub(crate) fn topic(&self, topic: &str) -> String {
        let bare = match strip_delay(topic) {
            PublishDelay::Seconds(_, bare) => bare,
            PublishDelay::None => topic,
            PublishDelay::Malformed => return topic.to_owned(),
        };
        self.insert_before(topic, bare)
    }

    /// Returns the full topic of a will, for which `$delayed/` has no meaning.
    pub(crate) fn will_topic(&self, topic: &str) -> String {
        self.prefixed(topic)
    }

    /// Returns the full topic or filter of one that has nothing in front.
    pub(crate) fn prefixed(&self, bare: &str) -> String {
        self.insert_before(bare, bare)
    }

    /// `bare` is the end of `whole`.
    pub(crate) fn insert_before(&self, whole: &str, bare: &str) -> String {
        let (front, bare) = whole.split_at(whole.len() - bare.len());
        format!("{front}{}{bare}", self.0)
    }

    /// Returns the topic that the client sees. `None` if the client must not see it. `tenants/a/#` also matches
    /// `tenants/a` and `tenants/a/`, which have no topic name without the prefix.
    pub(crate) fn strip<'t>(&self, topic: &'t str) -> Option<&'t str> {
        topic.strip_prefix(&*self.0).filter(|rest| !rest.is_empty())
    }
}

/// Returns whether a full topic is a valid topic name, as far as the prefix matters.
#[inline]
pub(crate) fn is_short_enough(topic: &str) -> bool {
    topic.len() <= MAXIMUM_TOPIC_BYTES
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn prefix_consists_of_whole_levels() {
        for (prefix, expected) in [
            ("", Err(MountpointError::PartOfLevel)),
            ("a", Err(MountpointError::PartOfLevel)),
            ("$share/g/", Err(MountpointError::Dollar)),
            ("a/+/", Err(MountpointError::ForbiddenCharacter)),
            ("a/#/", Err(MountpointError::ForbiddenCharacter)),
            ("a\0/", Err(MountpointError::ForbiddenCharacter)),
            ("a/", Ok("a/")),
            ("/", Ok("/")),
            ("tenants/a b/", Ok("tenants/a b/")),
        ] {
            let made = Mountpoint::new(prefix);
            assert_eq!(made.as_ref().map(Mountpoint::as_str).map_err(|error| *error), expected);
        }
        let longest = format!("{}/", "x".repeat(MOUNTPOINT_BYTES_MAX - 1));
        assert!(Mountpoint::new(&longest).is_ok());
        assert_eq!(Mountpoint::new(&format!("x{longest}")), Err(MountpointError::TooLong));
    }

    #[test]
    fn prefix_precedes_topic_and_filter() {
        let mountpoint = Mountpoint::new("t/a/").unwrap();
        for (topic, full) in [
            ("x", "t/a/x"),
            ("/x", "t/a//x"),
            ("$SYS/x", "t/a/$SYS/x"),
            ("$delayed/5/x/y", "$delayed/5/t/a/x/y"),
            ("$delayed", "t/a/$delayed"),
            ("$delayed/x/y", "$delayed/x/y"),
        ] {
            assert_eq!(mountpoint.topic(topic), full);
        }
        assert_eq!(mountpoint.will_topic("$delayed/5/x"), "t/a/$delayed/5/x");
        for (filter, full) in [
            ("#", "t/a/#"),
            ("+/x", "t/a/+/x"),
            ("$SYS/#", "t/a/$SYS/#"),
            ("$share/g/x/#", "$share/g/t/a/x/#"),
            ("$queue/x", "$queue/t/a/x"),
            ("$exclusive/x", "$exclusive/t/a/x"),
            ("$share/g/$exclusive/x", "$share/g/t/a/$exclusive/x"),
            ("$share/x", "$share/x"),
        ] {
            assert_eq!(mountpoint.filter(filter), full);
        }
    }

    #[test]
    fn only_topics_below_the_prefix_are_shown() {
        let mountpoint = Mountpoint::new("t/a/").unwrap();
        for (topic, shown) in [
            ("t/a/x", Some("x")),
            ("t/a//", Some("/")),
            ("t/a/", None),
            ("t/a", None),
            ("t/ab/x", None),
            ("x", None),
        ] {
            assert_eq!(mountpoint.strip(topic), shown);
        }
        for (filter, is_contained) in [
            ("t/a/#", true),
            ("$share/g/t/a/x", true),
            ("t/+/x", false),
            ("$share/t/a/x", false),
            ("#", false),
        ] {
            assert_eq!(mountpoint.contains(filter), is_contained, "{filter}");
        }
    }
}
