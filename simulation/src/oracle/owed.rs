//! What sessions and groups are owed, and what makes it be owed no longer.

use mqtt::QoS;

use super::session::Session;
use super::{Message, Oracle, is_at_least_once};
use crate::words::FILTERS;

impl Oracle {
    /// A message has been accepted: from now on it is owed to whoever surely wants it.
    pub(super) fn owe(&mut self, serial: u64) {
        let Some(message) = self.message(serial).cloned() else {
            return;
        };
        if !is_at_least_once(message.qos) || message.is_empty {
            return;
        }
        for session in &mut self.sessions {
            let is_there = session.is_online || session.is_mortal_only_by_time();
            if is_there && session.surely_wants(&message, None) && !session.has_seen(serial) {
                session.owed.push(serial);
            }
        }
        for group in groups() {
            // Whoever has left meanwhile may have been chosen before.
            let has_lost = self.has_lost(group, &message);
            if !message.has_group_got_it && !has_lost && self.group_surely_wants(&message, group, None) {
                self.group_owed.push((serial, group));
            }
        }
    }

    /// Whether somebody other than `leaver` does.
    fn group_surely_wants(&self, message: &Message, group: &'static str, leaver: Option<usize>) -> bool {
        // Any member may be chosen, also one that takes it at QoS 0 and loses it.
        let is_certain = self
            .sessions
            .iter()
            .flat_map(Session::groups)
            .filter(|s| s.filter == group)
            .all(|s| is_at_least_once(s.qos));
        let wants = |session: &Session| {
            let is_there = session.is_online || session.is_mortal_only_by_time();
            Some(session.client) != leaver && is_there && session.surely_wants(message, Some(group))
        };
        is_certain && self.sessions.iter().any(wants)
    }

    /// The client has changed its subscriptions.
    pub(super) fn still_owed(&mut self, client: usize) {
        let mut owed = std::mem::take(&mut self.sessions[client].owed);
        owed.retain(|serial| {
            self.message(*serial)
                .is_some_and(|message| self.sessions[client].surely_wants(message, None))
        });
        self.sessions[client].owed = owed;
        let mut owed = std::mem::take(&mut self.group_owed);
        owed.retain(|(serial, group)| {
            self.message(*serial)
                .is_some_and(|message| self.group_surely_wants(message, group, None))
        });
        self.group_owed = owed;
    }

    /// A member leaves a group, perhaps with a message in flight that then goes to nobody else [MQTT-4.8.2-5].
    pub(super) fn member_leaves(&mut self, client: usize, group: &'static str) {
        let granted = self.sessions[client]
            .subscriptions
            .iter()
            .filter(|s| s.filter == group)
            .map(|s| s.qos);
        let (least, granted) = (granted.clone().min(), granted.max());
        self.member_left.insert(group, self.at);
        if least == Some(QoS::AtMostOnce) {
            self.careless_member_left.insert(group, self.at);
        }
        let mut owed = std::mem::take(&mut self.group_owed);
        owed.retain(|(serial, of)| {
            let stays = self.message(*serial).is_some_and(|m| {
                let is_exact = granted.is_some_and(|granted| granted.min(m.qos) == QoS::ExactlyOnce);
                !is_exact && self.group_surely_wants(m, group, Some(client))
            });
            *of != group || stays
        });
        self.group_owed = owed;
    }

    /// A member that has left since the message was sent may have been the one that was chosen.
    fn has_lost(&self, group: &'static str, message: &Message) -> bool {
        let since = Some(&message.sent);
        let is_exact = message.qos == QoS::ExactlyOnce;
        (is_exact && self.member_left.get(group) > since) || self.careless_member_left.get(group) > since
    }

    pub(super) fn session_leaves_groups(&mut self, client: usize) {
        for group in groups() {
            if self.sessions[client].subscriptions.iter().any(|s| s.filter == group) {
                self.member_leaves(client, group);
            }
        }
    }

    /// After a crash: a member whose session ended with it may have been the one that was chosen. At QoS 1 the message is owed to another
    /// member, if there is one [MQTT-4.8.2-5].
    pub(super) fn forget_groups_of_clean_members(&mut self) {
        for client in 0..self.sessions.len() {
            self.ghosts_are_gone(client);
            if !self.sessions[client].is_mortal_only_by_time() {
                let memberships: Vec<_> = self.sessions[client].memberships().collect();
                memberships
                    .into_iter()
                    .for_each(|membership| self.was_chosen_and_lost(membership));
            }
        }
    }

    /// After a crash: what the node has not answered for, and what only sessions knew that have ended with the process, it may know
    /// nothing of. Sent again it is another message, as for a receiver that has not stored the packet identifier (4.3.3).
    pub(super) fn forget_unanswered(&mut self) {
        for at in 0..self.messages.len() {
            let message = &self.messages[at];
            let by = message.group_exactly_by.filter(|_| message.acked.is_none());
            if by.is_some_and(|client| !self.sessions[client].is_mortal_only_by_time()) {
                self.messages[at].group_exactly = 0;
            }
        }
    }

    /// A connection that the client has left before it began its session anew has been closed: until then it was a member.
    pub(super) fn ghosts_are_gone(&mut self, client: usize) {
        for (group, qos) in std::mem::take(&mut self.sessions[client].ghosts) {
            self.member_left.insert(group, self.at);
            if qos == QoS::AtMostOnce {
                self.careless_member_left.insert(group, self.at);
            }
            self.was_chosen_and_lost((group, qos));
        }
    }

    /// Whoever took messages of a group at this QoS may have been given any of them, and nobody else gets it.
    fn was_chosen_and_lost(&mut self, (group, granted): (&'static str, QoS)) {
        let mut owed = std::mem::take(&mut self.group_owed);
        owed.retain(|(serial, of)| {
            let qos = self.message(*serial).map(|message| message.qos.min(granted));
            *of != group || qos == Some(QoS::AtLeastOnce)
        });
        self.group_owed = owed;
    }

    pub(super) fn group_got(&mut self, serial: u64) {
        if let Some(message) = self.message_mut(serial) {
            message.has_group_got_it = true;
        }
        self.group_owed.retain(|(owed, _)| *owed != serial);
    }

    /// What did not come although everybody has been there and read everything.
    pub fn missing(&self) -> Vec<String> {
        let is_alive = |serial: &u64| {
            self.message(*serial)
                .is_some_and(|m| !m.may_be_expired(self.now_ms, self.has_jumps))
        };
        let own = self.sessions.iter().flat_map(|session| {
            let owed = session.owed.iter().filter(|serial| is_alive(serial));
            owed.map(|serial| format!("client {} was never sent {:?}", session.client, self.message(*serial)))
        });
        let shared = self.group_owed.iter().filter(|(serial, _)| is_alive(serial));
        let shared = shared.map(|(serial, group)| format!("nobody of {group} was sent {:?}", self.message(*serial)));
        let retained = self.sessions.iter().flat_map(|session| {
            let owed = session.retained_owed.iter();
            owed.map(|(topic, filter)| {
                format!(
                    "client {} was never sent what {topic} retains, for {filter} [MQTT-3.3.1-9]",
                    session.client
                )
            })
        });
        own.chain(shared)
            .chain(retained)
            .chain(self.missing_at_most_once())
            .collect()
    }

    /// A message that need not come again: its time may be over.
    pub fn may_be_gone(&self, serial: u64) -> bool {
        self.message(serial)
            .is_none_or(|m| m.may_be_expired(self.now_ms, self.has_jumps))
    }

    /// QoS 0 between connections that have been there all the time. One that is to be retained or delayed needs the journal, which may have been
    /// full: nobody can be told that it was refused [MQTT-3.3.1-5]. One that has waited for its reader may have expired [MQTT-3.3.2-5].
    fn missing_at_most_once(&self) -> impl Iterator<Item = String> {
        let connected = |session: &&Session| session.is_online;
        self.sessions.iter().filter(connected).flat_map(move |session| {
            let was_sent = |m: &&Message| {
                m.qos == QoS::AtMostOnce
                    && !m.is_will
                    && !m.is_empty
                    && self.sessions[m.publisher].connection == m.connection
                    && self.sessions[m.publisher].is_online
                    && m.sent > session.connected
                    && !m.may_be_expired(self.now_ms, self.has_jumps)
                    && !((m.retain || m.delay_ms.is_some()) && self.has_refused(|at| at > m.sent))
            };
            self.messages
                .iter()
                .filter(was_sent)
                .filter(|m| session.has_wanted_at_most_once(m) && !session.has_seen(m.serial))
                .map(|m| format!("client {} was never sent {m:?}", session.client))
        })
    }
}

fn groups() -> impl Iterator<Item = &'static str> {
    let mut shared: Vec<&'static str> = FILTERS.into_iter().filter(|f| f.starts_with("$share/")).collect();
    shared.dedup();
    shared.into_iter()
}
