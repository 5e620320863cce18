//! The rules as they stand for one session: what the data plane asks.

use std::sync::Arc;

use mqtt::QoS;

use super::pattern::{Pattern, Relation, Subscription};
use super::rule::{Action, Permission};
use super::{AclOptions, PartialSubscription};

/// Answers for one session. 24 bytes; the list behind it is shared among sessions that resolve to the same rules.
#[derive(Clone, Debug)]
pub struct SessionAcl {
    entries: Arc<[Entry]>,
    options: AclOptions,
    is_unrestricted: bool,
}

/// The answer to a subscription.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Grant {
    Denied,
    Allowed {
        /// Ask [`SessionAcl::may_receive`] before each delivery, live, retained or queued.
        filter_deliveries: bool,
    },
}

/// One filter of one rule. Which packets it concerns is one byte, see [`Scope`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub scope: Scope,
    pub pattern: Pattern,
}

/// Bit 7: allow. Bit 6: subscribe. Bits 0 to 5: publish, one bit for each QoS without and with RETAIN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Scope(u8);

impl Scope {
    const ALLOW: u8 = 1 << 7;
    const SUBSCRIBE: u8 = 1 << 6;
    const PUBLISH: u8 = 0b11_1111;
    const EVERY_ACTION: u8 = Scope::SUBSCRIBE | Scope::PUBLISH;

    /// `qos` empty means any; both conditions concern publishing only.
    pub fn new(permission: Permission, action: Action, qos: &[QoS], retain: Option<bool>) -> Scope {
        let mut bits = match action {
            Action::Publish => Scope::PUBLISH,
            Action::Subscribe => Scope::SUBSCRIBE,
            Action::All => Scope::EVERY_ACTION,
        };
        for level in [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce] {
            for is_retained in [false, true] {
                let is_excluded = (!qos.is_empty() && !qos.contains(&level)) || retain == Some(!is_retained);
                if is_excluded {
                    bits &= !Scope::publish_bit(level, is_retained);
                }
            }
        }
        Scope(if permission == Permission::Allow {
            bits | Scope::ALLOW
        } else {
            bits
        })
    }

    fn publish_bit(qos: QoS, retain: bool) -> u8 {
        1 << (qos as u8 * 2 + u8::from(retain))
    }

    fn concerns(self, action_bit: u8) -> bool {
        self.0 & action_bit != 0
    }

    pub fn is_allow(self) -> bool {
        self.0 & Scope::ALLOW != 0
    }
}

impl SessionAcl {
    /// For superusers, and for servers without rules that want none.
    pub fn unrestricted() -> SessionAcl {
        let options = AclOptions {
            no_match: Permission::Allow,
            ..AclOptions::default()
        };
        SessionAcl::new(Arc::new([]), options)
    }

    pub(super) fn new(entries: Arc<[Entry]>, options: AclOptions) -> SessionAcl {
        let is_unrestricted =
            options.no_match == Permission::Allow && entries.iter().all(|entry| entry.scope.is_allow());
        SessionAcl {
            entries,
            options,
            is_unrestricted,
        }
    }

    /// True when every answer is yes and none has to be asked for.
    #[inline]
    pub fn is_unrestricted(&self) -> bool {
        self.is_unrestricted
    }

    /// May the session publish to this bare topic, or have a will for it?
    #[inline]
    pub fn publish(&self, topic: &str, qos: QoS, retain: bool) -> bool {
        if self.is_unrestricted {
            return true;
        }
        let bit = Scope::publish_bit(qos, retain);
        let mut entries = self.entries.iter();
        let decisive = entries.find(|entry| entry.scope.concerns(bit) && entry.pattern.matches(topic));
        decisive.map_or(self.allows_unmatched(), |entry| entry.scope.is_allow())
    }

    /// May the session subscribe to this bare filter?
    pub fn subscribe(&self, filter: &str) -> Grant {
        if self.is_unrestricted {
            return Grant::Allowed {
                filter_deliveries: false,
            };
        }
        let (mut is_partly_denied, mut is_partly_allowed) = (false, false);
        let mut decision = self.allows_unmatched();
        let subscription = Subscription::new(filter);
        for entry in self
            .entries
            .iter()
            .filter(|entry| entry.scope.concerns(Scope::SUBSCRIBE))
        {
            match entry.pattern.relation(&subscription) {
                Relation::Disjoint => {}
                Relation::Overlaps if entry.scope.is_allow() => is_partly_allowed = true,
                Relation::Overlaps => is_partly_denied = true,
                Relation::Covers => {
                    decision = entry.scope.is_allow();
                    break;
                }
            }
        }
        let grants_parts = self.options.partial_subscription == PartialSubscription::Filter;
        match decision {
            true => Grant::Allowed {
                filter_deliveries: is_partly_denied,
            },
            false if grants_parts && is_partly_allowed => Grant::Allowed {
                filter_deliveries: true,
            },
            false => Grant::Denied,
        }
    }

    /// May a message on this topic be delivered to the session? Only to be asked when the grant of the subscription said
    /// `filter_deliveries`; it is right in any case.
    pub fn may_receive(&self, topic: &str) -> bool {
        if self.is_unrestricted {
            return true;
        }
        let decisive = self.entries.iter().find(|entry| {
            // A denied verbatim subscription says nothing about topics, a granted one allows its topics.
            let is_match = match entry.scope.is_allow() {
                true => entry.pattern.matches_as_filter(topic),
                false => entry.pattern.matches(topic),
            };
            entry.scope.concerns(Scope::SUBSCRIBE) && is_match
        });
        decisive.map_or(self.allows_unmatched(), |entry| entry.scope.is_allow())
    }

    /// True when both share one resolved list.
    #[cfg(test)]
    pub(super) fn shares_with(&self, other: &SessionAcl) -> bool {
        Arc::ptr_eq(&self.entries, &other.entries)
    }

    #[cfg(test)]
    pub(super) fn entries_len(&self) -> usize {
        self.entries.len()
    }

    fn allows_unmatched(&self) -> bool {
        self.options.no_match == Permission::Allow
    }
}
