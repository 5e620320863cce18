//! Applies the mountpoint of a session to filters, topics and messages.

use mqtt::SubscribeFilter;

use crate::message::Publication;
use crate::mountpoint::Mountpoint;
use crate::parsed_filter::ParsedFilter;
use crate::session::Session;

impl Mountpoint {
    /// Returns the full filter, with `$share/{name}/`, `$queue/` or `$exclusive/` in front. A malformed filter is
    /// returned as it is: the caller rejects it.
    pub(crate) fn filter(&self, filter: &str) -> String {
        match ParsedFilter::parse(filter) {
            Ok(parsed) => self.insert_before(filter, parsed.filter()),
            Err(_) => filter.to_owned(),
        }
    }

    /// Returns whether a full filter selects only topics with the prefix, or is malformed.
    pub(crate) fn contains(&self, filter: &str) -> bool {
        ParsedFilter::parse(filter).is_ok_and(|parsed| self.strip(parsed.filter()).is_some())
    }
}

impl Session {
    /// Returns the full filter of a SUBSCRIBE. `None` if the session has no prefix.
    pub(crate) fn mounted_filter(&self, filter: &str) -> Option<String> {
        self.mountpoint().map(|mountpoint| mountpoint.filter(filter))
    }

    /// Returns the full topic of a PUBLISH. `None` if the session has no prefix.
    #[inline]
    pub(crate) fn mounted_topic(&self, topic: &str) -> Option<String> {
        self.mountpoint().map(|mountpoint| mountpoint.topic(topic))
    }

    /// Returns a message with the topic that the client sees. `None` if the client must not see it.
    pub(crate) fn shown<'p>(&self, p: &Publication<'p>) -> Option<Publication<'p>> {
        match self.mountpoint() {
            None => Some(*p),
            Some(mountpoint) => Some(Publication {
                topic: mountpoint.strip(p.topic)?,
                ..*p
            }),
        }
    }
}

/// Returns a requested subscription with its full filter.
pub(crate) fn mounted<'a>(asked: SubscribeFilter<'a>, filter: Option<&'a str>) -> SubscribeFilter<'a> {
    SubscribeFilter {
        filter: filter.unwrap_or(asked.filter),
        ..asked
    }
}
