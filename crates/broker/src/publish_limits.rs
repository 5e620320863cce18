//! Limits of the rate at which clients publish: per client, per user, per address and per listener.
//!
//! All four have the same two rates. The shard takes tokens of every limit that is set before it handles a PUBLISH
//! (`throttle.rs`).

use crate::token_bucket::TokenRate;

/// A limit that can slow a publisher down. Each has a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum PublishLimit {
    ClientMessages,
    ClientBytes,
    UserMessages,
    UserBytes,
    AddressMessages,
    AddressBytes,
    ListenerMessages,
    ListenerBytes,
}

impl PublishLimit {
    pub const COUNT: usize = 8;

    pub const ALL: [PublishLimit; Self::COUNT] = [
        PublishLimit::ClientMessages,
        PublishLimit::ClientBytes,
        PublishLimit::UserMessages,
        PublishLimit::UserBytes,
        PublishLimit::AddressMessages,
        PublishLimit::AddressBytes,
        PublishLimit::ListenerMessages,
        PublishLimit::ListenerBytes,
    ];

    /// Name in metrics, logs and the API.
    pub const fn name(self) -> &'static str {
        match self {
            PublishLimit::ClientMessages => "client_messages",
            PublishLimit::ClientBytes => "client_bytes",
            PublishLimit::UserMessages => "user_messages",
            PublishLimit::UserBytes => "user_bytes",
            PublishLimit::AddressMessages => "address_messages",
            PublishLimit::AddressBytes => "address_bytes",
            PublishLimit::ListenerMessages => "listener_messages",
            PublishLimit::ListenerBytes => "listener_bytes",
        }
    }

    /// Returns the option that sets the limit.
    pub const fn option(self) -> &'static str {
        match self {
            PublishLimit::ClientMessages => "limits.publish_rate",
            PublishLimit::ClientBytes => "limits.publish_bytes",
            PublishLimit::UserMessages => "limits.publish_rate_per_user",
            PublishLimit::UserBytes => "limits.publish_bytes_per_user",
            PublishLimit::AddressMessages => "limits.publish_rate_per_address",
            PublishLimit::AddressBytes => "limits.publish_bytes_per_address",
            PublishLimit::ListenerMessages => "max_publish_rate of the listener",
            PublishLimit::ListenerBytes => "max_publish_bytes of the listener",
        }
    }

    pub(crate) const fn is_of_bytes(self) -> bool {
        self as usize % 2 == 1
    }
}

/// Rates of a client, a user, an address or a listener. `None`: not limited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PublishRates {
    pub messages: Option<TokenRate>,
    /// Bytes of PUBLISH packets.
    pub bytes: Option<TokenRate>,
}

impl PublishRates {
    pub(crate) fn is_unlimited(&self) -> bool {
        self.messages.is_none() && self.bytes.is_none()
    }
}

/// Rates of all connections of a listener together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListenerRates {
    /// Kind and name of the listener, for reports.
    pub label: Box<str>,
    pub rates: PublishRates,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PublishLimits {
    pub client: PublishRates,
    /// All connections of a user together. Clients without a user name count by their address.
    pub user: PublishRates,
    /// All connections from an address together, IPv6 by its /64.
    pub address: PublishRates,
    /// By `Peer::listener`. Listeners that are missing are not limited.
    pub listeners: Vec<ListenerRates>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_have_their_own_names_and_kinds() {
        for (index, limit) in PublishLimit::ALL.into_iter().enumerate() {
            assert_eq!(limit as usize, index);
            assert_eq!(limit.name().ends_with("_bytes"), limit.is_of_bytes());
            assert_eq!(limit.option().contains("publish_bytes"), limit.is_of_bytes());
        }
    }
}
