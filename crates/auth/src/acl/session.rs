//! The rules resolved for one session. Used by the data plane.

use std::fmt;
use std::sync::Arc;

use mqtt::QoS;

use super::pattern::{PatternRelation, SubscriptionFilter, TopicPattern};
use super::rule::{AccessAction, Permission};
use super::{AclOptions, PartialSubscriptionPolicy};

/// Access rules of one session. 24 bytes; the list is shared by sessions that resolve to the same rules.
#[derive(Clone, Debug)]
pub struct SessionAcl {
    entries: Arc<[AccessEntry]>,
    options: AclOptions,
    is_unrestricted: bool,
}

/// Result of checking a subscription.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SubscriptionGrant {
    Denied,
    Allowed {
        /// Check [`SessionAcl::can_receive`] before each delivery: live, retained or queued.
        filter_deliveries: bool,
    },
}

/// The decision of a list of rules about a subscription.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SubscriptionDecision {
    /// The decision of the first rule that covers the filter.
    pub decision: Option<bool>,
    /// A rule before it denies some of the topics.
    pub is_partly_denied: bool,
    /// A rule before it allows some of the topics.
    pub is_partly_allowed: bool,
}

impl SubscriptionDecision {
    /// Adds what a later list says.
    pub fn then(self, later: SubscriptionDecision) -> SubscriptionDecision {
        match self.decision {
            Some(_) => self,
            None => SubscriptionDecision {
                decision: later.decision,
                is_partly_denied: self.is_partly_denied || later.is_partly_denied,
                is_partly_allowed: self.is_partly_allowed || later.is_partly_allowed,
            },
        }
    }

    /// Returns the grant of a subscription. `is_allowed` decides if no rule does.
    pub fn grant(self, is_allowed: bool, options: AclOptions) -> SubscriptionGrant {
        let grants_parts = options.partial_subscription == PartialSubscriptionPolicy::Filter;
        match self.decision.unwrap_or(is_allowed) {
            true => SubscriptionGrant::Allowed {
                filter_deliveries: self.is_partly_denied,
            },
            false if grants_parts && self.is_partly_allowed => SubscriptionGrant::Allowed {
                filter_deliveries: true,
            },
            false => SubscriptionGrant::Denied,
        }
    }
}

/// One filter of one rule. [`PacketScope`] says to which packets it applies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AccessEntry {
    pub scope: PacketScope,
    pub pattern: TopicPattern,
}

impl fmt::Display for AccessEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let permission = if self.scope.is_allow() { "allow" } else { "deny" };
        write!(f, "{permission} {}", self.pattern)
    }
}

/// Bit 7: allow. Bit 6: subscribe. Bits 0 to 5: publish, one bit for each QoS without and with RETAIN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PacketScope(u8);

impl PacketScope {
    const ALLOW: u8 = 1 << 7;
    const SUBSCRIBE: u8 = 1 << 6;
    const PUBLISH: u8 = 0b11_1111;
    const EVERY_ACTION: u8 = PacketScope::SUBSCRIBE | PacketScope::PUBLISH;

    /// `qos` empty means any. Both conditions apply only to publishing.
    pub fn new(permission: Permission, action: AccessAction, qos: &[QoS], retain: Option<bool>) -> PacketScope {
        let mut bits = match action {
            AccessAction::Publish => PacketScope::PUBLISH,
            AccessAction::Subscribe => PacketScope::SUBSCRIBE,
            AccessAction::All => PacketScope::EVERY_ACTION,
            // `ConnectRule` has these rules.
            AccessAction::Connect => 0,
        };
        for level in [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce] {
            for is_retained in [false, true] {
                let is_excluded = (!qos.is_empty() && !qos.contains(&level)) || retain == Some(!is_retained);
                if is_excluded {
                    bits &= !PacketScope::publish_bit(level, is_retained);
                }
            }
        }
        PacketScope(if permission == Permission::Allow {
            bits | PacketScope::ALLOW
        } else {
            bits
        })
    }

    fn publish_bit(qos: QoS, retain: bool) -> u8 {
        1 << (qos as u8 * 2 + u8::from(retain))
    }

    fn applies_to(self, action_bit: u8) -> bool {
        self.0 & action_bit != 0
    }

    pub fn is_allow(self) -> bool {
        self.0 & PacketScope::ALLOW != 0
    }
}

impl SessionAcl {
    /// Returns full access, for superusers and for servers without authorization.
    pub fn unrestricted() -> SessionAcl {
        let options = AclOptions {
            no_match: Permission::Allow,
            ..AclOptions::default()
        };
        SessionAcl::new(Arc::new([]), options)
    }

    pub(super) fn new(entries: Arc<[AccessEntry]>, options: AclOptions) -> SessionAcl {
        let is_unrestricted =
            options.no_match == Permission::Allow && entries.iter().all(|entry| entry.scope.is_allow());
        SessionAcl {
            entries,
            options,
            is_unrestricted,
        }
    }

    /// Returns whether every check succeeds, so that checks can be skipped.
    #[inline]
    pub fn is_unrestricted(&self) -> bool {
        self.is_unrestricted
    }

    /// Returns whether the session may publish to this bare topic, or register a will for it.
    #[inline]
    pub fn publish(&self, topic: &str, qos: QoS, retain: bool) -> bool {
        if self.is_unrestricted {
            return true;
        }
        self.decide_publish(topic, qos, retain)
            .unwrap_or(self.allows_unmatched())
    }

    /// Returns the decision of the first rule that matches.
    #[inline]
    pub fn decide_publish(&self, topic: &str, qos: QoS, retain: bool) -> Option<bool> {
        let bit = PacketScope::publish_bit(qos, retain);
        let mut entries = self.entries.iter();
        let decisive = entries.find(|entry| entry.scope.applies_to(bit) && entry.pattern.matches(topic));
        decisive.map(|entry| entry.scope.is_allow())
    }

    /// Checks a subscription to this bare filter.
    pub fn subscribe(&self, filter: &str) -> SubscriptionGrant {
        if self.is_unrestricted {
            return SubscriptionGrant::Allowed {
                filter_deliveries: false,
            };
        }
        self.decide_subscribe(filter)
            .grant(self.allows_unmatched(), self.options)
    }

    /// Returns the decision of the first rule that covers this bare filter, and of the rules before it that overlap.
    pub fn decide_subscribe(&self, filter: &str) -> SubscriptionDecision {
        let mut found = SubscriptionDecision::default();
        let subscription = SubscriptionFilter::new(filter);
        for entry in self
            .entries
            .iter()
            .filter(|entry| entry.scope.applies_to(PacketScope::SUBSCRIBE))
        {
            match entry.pattern.relation(&subscription) {
                PatternRelation::Disjoint => {}
                PatternRelation::Overlaps if entry.scope.is_allow() => found.is_partly_allowed = true,
                PatternRelation::Overlaps => found.is_partly_denied = true,
                PatternRelation::Covers => {
                    found.decision = Some(entry.scope.is_allow());
                    break;
                }
            }
        }
        found
    }

    /// Returns whether a message with this topic may be delivered to the session. Needed only if the grant of the
    /// subscription has `filter_deliveries`; correct in any case.
    pub fn can_receive(&self, topic: &str) -> bool {
        if self.is_unrestricted {
            return true;
        }
        self.decide_receive(topic).unwrap_or(self.allows_unmatched())
    }

    /// Returns the decision of the first rule that matches the topic of a message.
    pub fn decide_receive(&self, topic: &str) -> Option<bool> {
        let decisive = self.entries.iter().find(|entry| {
            // A denied verbatim subscription does not restrict topics; a granted one allows its topics.
            let is_match = match entry.scope.is_allow() {
                true => entry.pattern.matches_as_filter(topic),
                false => entry.pattern.matches(topic),
            };
            entry.scope.applies_to(PacketScope::SUBSCRIBE) && is_match
        });
        decisive.map(|entry| entry.scope.is_allow())
    }

    /// Returns the options of the rules.
    pub fn options(&self) -> AclOptions {
        self.options
    }

    /// Returns whether both sessions share one resolved list.
    #[cfg(test)]
    pub(super) fn shares_list_with(&self, other: &SessionAcl) -> bool {
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
