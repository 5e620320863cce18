//! Messages owed to sessions and groups, and events that end the obligation.

use mqtt::QoS;

use super::session::OracleSession;
use super::{Oracle, OracleMessage, is_at_least_once};
use crate::client::ClientIndex;
use crate::topics::FILTERS;

impl Oracle {
    /// A message has been accepted. It is now owed to every session and group that certainly has a matching
    /// subscription.
    pub(super) fn expect_deliveries(&mut self, serial: u64) {
        let Some(message) = self.message(serial).cloned() else {
            return;
        };
        if !is_at_least_once(message.qos) || message.is_empty {
            return;
        }
        for session in &mut self.sessions {
            let is_there = session.is_online || session.outlives_connection();
            if is_there && session.must_receive(&message, None) && !session.has_seen(serial) {
                session.owed.push(serial);
            }
        }
        for group in groups() {
            // A member that has left may have been selected before.
            let has_lost = self.has_lost(group, &message);
            if !message.has_group_got_it && !has_lost && self.group_must_receive(&message, group, None) {
                self.group_owed.push((serial, group));
            }
        }
    }

    /// Returns whether the group, without `leaver`, certainly has a matching member.
    fn group_must_receive(&self, message: &OracleMessage, group: &'static str, leaver: Option<ClientIndex>) -> bool {
        // Any member may be selected, also one that receives it at QoS 0 and loses it.
        let is_certain = self
            .sessions
            .iter()
            .flat_map(OracleSession::groups)
            .filter(|s| s.filter == group)
            .all(|s| is_at_least_once(s.qos));
        let wants = |session: &OracleSession| {
            let is_there = session.is_online || session.outlives_connection();
            Some(session.client) != leaver && is_there && session.must_receive(message, Some(group))
        };
        is_certain && self.sessions.iter().any(wants)
    }

    /// The client has changed its subscriptions.
    pub(super) fn update_expected(&mut self, client: ClientIndex) {
        let mut owed = std::mem::take(&mut self.sessions[client.index()].owed);
        owed.retain(|serial| {
            self.message(*serial)
                .is_some_and(|message| self.sessions[client.index()].must_receive(message, None))
        });
        self.sessions[client.index()].owed = owed;
        let mut owed = std::mem::take(&mut self.group_owed);
        owed.retain(|(serial, group)| {
            self.message(*serial)
                .is_some_and(|message| self.group_must_receive(message, group, None))
        });
        self.group_owed = owed;
    }

    /// A member leaves a group. A message in flight to it may go to no other member [MQTT-4.8.2-5].
    pub(super) fn member_leaves(&mut self, client: ClientIndex, group: &'static str) {
        let granted = self.sessions[client.index()]
            .subscriptions
            .iter()
            .filter(|s| s.filter == group)
            .map(|s| s.qos);
        let (least, granted) = (granted.clone().min(), granted.max());
        self.member_left.insert(group, self.at);
        if least == Some(QoS::AtMostOnce) {
            self.qos0_member_left.insert(group, self.at);
        }
        let mut owed = std::mem::take(&mut self.group_owed);
        owed.retain(|(serial, of)| {
            let stays = self.message(*serial).is_some_and(|m| {
                let is_exact = granted.is_some_and(|granted| granted.min(m.qos) == QoS::ExactlyOnce);
                !is_exact && self.group_must_receive(m, group, Some(client))
            });
            *of != group || stays
        });
        self.group_owed = owed;
    }

    /// Returns whether a member that has left since the message was sent may have been selected.
    fn has_lost(&self, group: &'static str, message: &OracleMessage) -> bool {
        let since = Some(&message.sent);
        let is_exact = message.qos == QoS::ExactlyOnce;
        (is_exact && self.member_left.get(group) > since) || self.qos0_member_left.get(group) > since
    }

    pub(super) fn session_leaves_groups(&mut self, client: ClientIndex) {
        for group in groups() {
            if self.sessions[client.index()]
                .subscriptions
                .iter()
                .any(|s| s.filter == group)
            {
                self.member_leaves(client, group);
            }
        }
    }

    /// After a crash: a member whose session ended may have been selected. At QoS 1 the message is owed to another
    /// member, if there is one [MQTT-4.8.2-5].
    pub(super) fn forget_groups_of_clean_members(&mut self) {
        for client in ClientIndex::first(self.sessions.len()) {
            self.former_memberships_ended(client);
            if !self.sessions[client.index()].outlives_connection() {
                let memberships: Vec<_> = self.sessions[client.index()].memberships().collect();
                memberships
                    .into_iter()
                    .for_each(|membership| self.cancel_group_expectations(membership));
            }
        }
    }

    /// After a crash the node may have lost unanswered messages and the knowledge of sessions that ended. When sent
    /// again, such a message is a new one, as for a receiver that has not stored the packet identifier (section 4.3.3).
    pub(super) fn forget_unanswered(&mut self) {
        for at in 0..self.messages.len() {
            let message = &self.messages[at];
            let by = message.group_exactly_by.filter(|_| message.acked.is_none());
            if by.is_some_and(|client| !self.sessions[client.index()].outlives_connection()) {
                self.messages[at].group_exactly = 0;
            }
        }
    }

    /// A connection that the client left before it started a new session has been closed. Until then it was a member.
    pub(super) fn former_memberships_ended(&mut self, client: ClientIndex) {
        for (group, qos) in std::mem::take(&mut self.sessions[client.index()].former_memberships) {
            self.member_left.insert(group, self.at);
            if qos == QoS::AtMostOnce {
                self.qos0_member_left.insert(group, self.at);
            }
            self.cancel_group_expectations((group, qos));
        }
    }

    /// A former member may have received any message of the group at this QoS. Those messages are no longer owed.
    fn cancel_group_expectations(&mut self, (group, granted): (&'static str, QoS)) {
        let mut owed = std::mem::take(&mut self.group_owed);
        owed.retain(|(serial, of)| {
            let qos = self.message(*serial).map(|message| message.qos.min(granted));
            *of != group || qos == Some(QoS::AtLeastOnce)
        });
        self.group_owed = owed;
    }

    pub(super) fn record_group_delivery(&mut self, serial: u64) {
        if let Some(message) = self.message_mut(serial) {
            message.has_group_got_it = true;
        }
        self.group_owed.retain(|(owed, _)| *owed != serial);
    }

    /// Returns descriptions of messages that were not delivered although all clients have connected and read
    /// everything.
    pub fn missing(&self) -> Vec<String> {
        let is_alive = |serial: &u64| {
            self.message(*serial)
                .is_some_and(|m| !m.may_be_expired(self.now_ms, self.may_expire_early))
        };
        let own = self.sessions.iter().flat_map(|session| {
            let owed = session.owed.iter().filter(|serial| is_alive(serial));
            owed.map(|serial| format!("client {} did not receive {:?}", session.client, self.message(*serial)))
        });
        let shared = self.group_owed.iter().filter(|(serial, _)| is_alive(serial));
        let shared = shared.map(|(serial, group)| format!("no member of {group} received {:?}", self.message(*serial)));
        let retained = self.sessions.iter().flat_map(|session| {
            let owed = session.retained_owed.iter();
            owed.map(|(topic, filter)| {
                format!(
                    "client {} did not receive the retained message of {topic} for {filter} [MQTT-3.3.1-9]",
                    session.client
                )
            })
        });
        own.chain(shared)
            .chain(retained)
            .chain(self.missing_at_most_once())
            .collect()
    }

    /// Returns whether a message need not be delivered because it may have expired.
    pub fn may_have_expired(&self, serial: u64) -> bool {
        self.message(serial)
            .is_none_or(|m| m.may_be_expired(self.now_ms, self.may_expire_early))
    }

    /// Returns missing QoS 0 messages between connections that existed all the time. A retained or delayed message
    /// needs the journal, which may have been full; QoS 0 publishers are not informed of that [MQTT-3.3.1-5]. A message
    /// that waited for its reader may have expired [MQTT-3.3.2-5].
    fn missing_at_most_once(&self) -> impl Iterator<Item = String> {
        let connected = |session: &&OracleSession| session.is_online;
        self.sessions.iter().filter(connected).flat_map(move |session| {
            let was_sent = |m: &&OracleMessage| {
                m.qos == QoS::AtMostOnce
                    && !m.is_will
                    && !m.is_empty
                    && self.sessions[m.publisher.index()].connection == m.connection
                    && self.sessions[m.publisher.index()].is_online
                    && m.sent > session.connected
                    && !m.may_be_expired(self.now_ms, self.may_expire_early)
                    && !((m.retain || m.delay_ms.is_some()) && self.has_refused(|at| at > m.sent))
            };
            self.messages
                .iter()
                .filter(was_sent)
                .filter(|m| session.has_wanted_at_most_once(m) && !session.has_seen(m.serial))
                .map(|m| format!("client {} did not receive {m:?}", session.client))
        })
    }
}

fn groups() -> impl Iterator<Item = &'static str> {
    let mut shared: Vec<&'static str> = FILTERS.into_iter().filter(|f| f.starts_with("$share/")).collect();
    shared.dedup();
    shared.into_iter()
}
