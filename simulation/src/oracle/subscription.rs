//! Subscriptions of a session: from when to when they were certainly, and possibly, in force.

use mqtt::{QoS, RetainHandling, SubscriptionOptions, filter_matches};

use super::session::Session;
use super::{Message, Oracle, is_at_least_once};
use crate::words::taken_apart;

/// One SUBSCRIBE, from then on. Another one for the same filter makes another of these.
#[derive(Clone, Debug)]
pub struct Subscription {
    pub filter: &'static str,
    pub bare: &'static str,
    pub share: Option<&'static str>,
    pub qos: QoS,
    pub no_local: bool,
    /// Retained messages are to be sent for it, and the node has no other choice.
    pub wants_retained: bool,
    pub sent: u64,
    pub acked: Option<u64>,
    pub acked_ms: u64,
    /// UNSUBSCRIBE.
    pub unsent: Option<u64>,
    pub unacked: Option<u64>,
}

impl Subscription {
    pub fn covers(&self, message: &Message, client: usize) -> bool {
        self.is_about(message) && !(self.no_local && message.publisher == client)
    }

    pub fn is_about(&self, message: &Message) -> bool {
        filter_matches(self.bare, &message.topic)
    }

    /// Whether it was there before the message was sent, and has not been given up.
    fn was_there(&self, message: &Message) -> bool {
        let before = if message.is_will {
            // `sent` is the CONNECT; what counts is when the will may first have been published.
            self.acked_ms + super::SLACK_MS < message.sent_ms
        } else {
            true
        };
        before && self.unsent.is_none() && self.acked.is_some_and(|at| message.is_will || at < message.sent)
    }

    pub fn may_have_been_there(&self, message: &Message) -> bool {
        self.unacked.is_none_or(|at| at > message.sent || message.is_will)
    }
}

impl Session {
    /// Whether the message is certainly for this session at QoS 1 or 2: by a subscription of its own, or by that of `group`.
    pub fn surely_wants(&self, message: &Message, group: Option<&'static str>) -> bool {
        let is_meant = |s: &&Subscription| match group {
            Some(group) => s.filter == group,
            None => s.share.is_none(),
        };
        self.is_sure
            && self.subscriptions.iter().filter(is_meant).any(|s| {
                s.covers(message, self.client) && s.was_there(message) && self.is_at_least_once_since(s, message)
            })
    }

    /// A later SUBSCRIBE may have lowered the QoS.
    fn is_at_least_once_since(&self, first: &Subscription, message: &Message) -> bool {
        self.subscriptions
            .iter()
            .filter(|s| s.filter == first.filter && s.sent >= first.sent)
            .all(|s| is_at_least_once(s.qos.min(message.qos)) && !(s.no_local && message.publisher == self.client))
    }

    /// The groups it may be a member of, now.
    pub fn groups(&self) -> impl Iterator<Item = &Subscription> {
        self.subscriptions
            .iter()
            .filter(|s| s.share.is_some() && s.unacked.is_none())
    }
}

impl Oracle {
    pub fn subscribing(&mut self, client: usize, filter: &'static str, options: SubscriptionOptions) -> u64 {
        let sent = self.event();
        let (bare, share) = taken_apart(filter);
        let session = &mut self.sessions[client];
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
        self.sessions[client].subscriptions.push(Subscription {
            filter,
            bare,
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
        self.still_owed(client);
        sent
    }

    pub fn subscribed(&mut self, client: usize, sent: u64) {
        let (at, now_ms) = (self.event(), self.now_ms);
        let session = &mut self.sessions[client];
        if let Some(subscription) = session.subscriptions.iter_mut().find(|s| s.sent == sent) {
            subscription.acked = Some(at);
            subscription.acked_ms = now_ms;
        }
        self.owe_retained(client, sent);
    }

    pub fn unsubscribing(&mut self, client: usize, filter: &'static str) -> u64 {
        let sent = self.event();
        for subscription in &mut self.sessions[client].subscriptions {
            if subscription.filter == filter && subscription.unsent.is_none() {
                subscription.unsent = Some(sent);
            }
        }
        self.sessions[client].retained_owed.retain(|(_, by)| *by != filter);
        self.still_owed(client);
        self.member_leaves(client, filter);
        sent
    }

    pub fn unsubscribed(&mut self, client: usize, filter: &'static str, sent: u64) {
        let at = self.event();
        self.member_leaves(client, filter);
        for subscription in &mut self.sessions[client].subscriptions {
            if subscription.filter == filter && subscription.sent < sent && subscription.unacked.is_none() {
                subscription.unacked = Some(at);
            }
        }
    }
}
