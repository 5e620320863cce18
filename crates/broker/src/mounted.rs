//! Applies the mountpoint of a session to filters, topics and messages.

use std::borrow::Cow;

use mqtt::SubscribeFilter;

use crate::message::Publication;
use crate::mountpoint::Mountpoint;
use crate::parsed_filter::ParsedFilter;
use crate::session::Session;
use crate::sessions::Sessions;
use crate::slots::SessionSlot;

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
}

impl Sessions {
    /// Returns a message with the topic that the client of a connected session sees. `None` if the client must not see
    /// it.
    #[inline]
    pub(crate) fn shown<'s, 'p>(&self, slot: SessionSlot, p: &'s Publication<'p>) -> Option<Cow<'s, Publication<'p>>> {
        // The link says so without reading the session, and most clients have no mountpoint.
        if !self.link(slot).has_own_form() {
            return Some(Cow::Borrowed(p));
        }
        match self.at(slot).mountpoint() {
            None => Some(Cow::Borrowed(p)),
            Some(mountpoint) => Some(Cow::Owned(Publication {
                topic: mountpoint.strip(p.topic)?,
                ..*p
            })),
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
