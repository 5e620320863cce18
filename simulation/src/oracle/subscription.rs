//! Subscriptions of a session: from when to when they were certainly, and possibly, in force.

use mqtt::{QoS, RetainHandling, SubscriptionOptions, filter_matches};

use super::session::OracleSession;
use super::{Oracle, OracleMessage, is_at_least_once};
use crate::client::ClientIndex;
use crate::topics::parse_filter;

/// A SUBSCRIBE. A later one for the same filter is a separate entry.
#[derive(Clone, Debug)]
pub struct OracleSubscription {
    pub filter: &'static str,
    pub topic_filter: &'static str,
    pub share: Option<&'static str>,
    pub qos: QoS,
    pub no_local: bool,
    /// Retained messages must be sent for it.
    pub wants_retained: bool,
    pub sent: u64,
    pub acked: Option<u64>,
    pub acked_ms: u64,
    /// Event at which UNSUBSCRIBE was sent.
    pub unsent: Option<u64>,
    pub unacked: Option<u64>,
}

impl OracleSubscription {
    pub fn covers(&self, message: &OracleMessage, client: ClientIndex) -> bool {
        self.matches_topic(message) && !(self.no_local && message.publisher == client)
    }

    pub fn matches_topic(&self, message: &OracleMessage) -> bool {
        filter_matches(self.topic_filter, &message.topic)
    }

    /// Returns whether it was in force before the message was sent, and has not been removed.
    fn was_active(&self, message: &OracleMessage) -> bool {
        let before = if message.is_will {
            // For a will, `sent` is the CONNECT. The time at which it may first have been published counts.
            self.acked_ms + super::SLACK_MS < message.sent_ms
        } else {
            true
        };
        before && self.unsent.is_none() && self.acked.is_some_and(|at| message.is_will || at < message.sent)
    }

    pub fn may_have_been_active(&self, message: &OracleMessage) -> bool {
        self.unacked.is_none_or(|at| at > message.sent || message.is_will)
    }
}

impl OracleSession {
    /// Returns whether the session must receive the message at QoS 1 or 2, by its own subscription or by that of
    /// `group`.
    pub fn must_receive(&self, message: &OracleMessage, group: Option<&'static str>) -> bool {
        let is_meant = |s: &&OracleSubscription| match group {
            Some(group) => s.filter == group,
            None => s.share.is_none(),
        };
        self.is_sure
            && self.subscriptions.iter().filter(is_meant).any(|s| {
                s.covers(message, self.client) && s.was_active(message) && self.is_at_least_once_since(s, message)
            })
    }

    /// A later SUBSCRIBE may have lowered the QoS.
    fn is_at_least_once_since(&self, first: &OracleSubscription, message: &OracleMessage) -> bool {
        self.subscriptions
            .iter()
            .filter(|s| s.filter == first.filter && s.sent >= first.sent)
            .all(|s| is_at_least_once(s.qos.min(message.qos)) && !(s.no_local && message.publisher == self.client))
    }

    /// Returns the groups of which it may be a member now.
    pub fn groups(&self) -> impl Iterator<Item = &OracleSubscription> {
        self.subscriptions
            .iter()
            .filter(|s| s.share.is_some() && s.unacked.is_none())
    }
}

impl Oracle {
    pub fn subscribing(&mut self, client: ClientIndex, filter: &'static str, options: SubscriptionOptions) -> u64 {
        let sent = self.event();
        let (bare, share) = parse_filter(filter);
        let session = &mut self.sessions[client.index()];
        let is_new = session
            .subscriptions
            .iter()
            .all(|s| s.filter != filter || s.unacked.is_some());
        let wants_retained = match options.retain_handling {
            RetainHandling::SendAtSubscribe => true,
            RetainHandling::SendIfNew => is_new,
            RetainHandling::DoNotSend => false,
        };
        session.retained_owed.retain(|(_, by)| *by != filter);
        self.sessions[client.index()].subscriptions.push(OracleSubscription {
            filter,
            topic_filter: bare,
            share,
            qos: options.maximum_qos,
            no_local: options.no_local && share.is_none(),
            wants_retained: wants_retained && share.is_none() && is_at_least_once(options.maximum_qos),
            sent,
            acked: None,
            acked_ms: 0,
            unsent: None,
            unacked: None,
        });
        self.update_expected(client);
        sent
    }

    pub fn subscribed(&mut self, client: ClientIndex, sent: u64) {
        let (at, now_ms) = (self.event(), self.now_ms);
        let session = &mut self.sessions[client.index()];
        if let Some(subscription) = session.subscriptions.iter_mut().find(|s| s.sent == sent) {
            subscription.acked = Some(at);
            subscription.acked_ms = now_ms;
        }
        self.expect_retained(client, sent);
    }

    pub fn unsubscribing(&mut self, client: ClientIndex, filter: &'static str) -> u64 {
        let sent = self.event();
        for subscription in &mut self.sessions[client.index()].subscriptions {
            if subscription.filter == filter && subscription.unsent.is_none() {
                subscription.unsent = Some(sent);
            }
        }
        self.sessions[client.index()]
            .retained_owed
            .retain(|(_, by)| *by != filter);
        self.update_expected(client);
        self.member_leaves(client, filter);
        sent
    }

    pub fn unsubscribed(&mut self, client: ClientIndex, filter: &'static str, sent: u64) {
        let at = self.event();
        self.member_leaves(client, filter);
        for subscription in &mut self.sessions[client.index()].subscriptions {
            if subscription.filter == filter && subscription.sent < sent && subscription.unacked.is_none() {
                subscription.unacked = Some(at);
            }
        }
    }
}
