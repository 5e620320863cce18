//! The kinds of topic filters: plain, shared and exclusive.

use mqtt::{FilterError, SharedFilter};

use crate::exclusive::EXCLUSIVE;
use crate::session::SubscriptionKind;

/// A parsed filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ParsedFilter<'a> {
    Plain(&'a str),
    Shared(SharedFilter<'a>),
    Exclusive(&'a str),
}

impl<'a> ParsedFilter<'a> {
    /// Parses `$share/{name}/{filter}`, `$queue/{filter}` (a share name of its own), `$exclusive/{topic}`, or a plain
    /// filter.
    pub(crate) fn parse(filter: &'a str) -> Result<ParsedFilter<'a>, FilterError> {
        let target = if let Some(shared) = SharedFilter::parse(filter)? {
            ParsedFilter::Shared(shared)
        } else if let Some(rest) = filter.strip_prefix("$queue/") {
            ParsedFilter::Shared(SharedFilter {
                share_name: "$queue",
                filter: rest,
            })
        } else if let Some(rest) = filter.strip_prefix(EXCLUSIVE) {
            ParsedFilter::Exclusive(rest)
        } else {
            ParsedFilter::Plain(filter)
        };
        mqtt::validate_filter(target.filter())?;
        Ok(target)
    }

    /// Returns the filter that is matched with topics.
    pub(crate) fn filter(self) -> &'a str {
        match self {
            ParsedFilter::Plain(filter) | ParsedFilter::Exclusive(filter) => filter,
            ParsedFilter::Shared(shared) => shared.filter,
        }
    }

    pub(crate) fn kind(self) -> SubscriptionKind {
        match self {
            ParsedFilter::Plain(_) => SubscriptionKind::Plain,
            ParsedFilter::Shared(_) => SubscriptionKind::Shared,
            ParsedFilter::Exclusive(_) => SubscriptionKind::Exclusive,
        }
    }
}
