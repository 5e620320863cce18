//! Compares received packets with the deliveries that the model expects. An error panics and cites the MQTT statement.

use mqtt::*;

use super::client::{Came, Conn, Held};
use super::node::{GroupOwed, Message, Node, Owed, Source, Taker};

/// The properties of a copy that its receiver saw.
#[derive(Clone, Debug)]
pub struct Copied {
    qos: QoS,
    retain: bool,
    /// Only MQTT 5 clients receive them.
    identifiers: Option<Vec<u32>>,
}

impl GroupOwed {
    fn fits(&self, client: usize, copy: &Copied) -> bool {
        self.terms.iter().any(|(c, options, identifier)| {
            *c == client
                && options.maximum_qos.min(self.message.qos) == copy.qos
                && (self.message.retain && options.retain_as_published) == copy.retain
                && copy
                    .identifiers
                    .as_ref()
                    .is_none_or(|have| have == identifier.as_slice())
        })
    }
}

impl Node {
    /// Checks a message that a client received. Panics if the delivery is not allowed.
    pub fn came(&mut self, client: usize, came: &Came) {
        let session = self.session(client);
        let held = came.id.and_then(|id| session.held.get(&id).copied());
        let serial = serial_of(&came.payload);
        if let Some(held) = held {
            assert!(came.dup, "the identifier is in use [MQTT-2.2.1-4]: {came:?} {held:?}");
            assert_eq!(
                (held.serial, held.qos),
                (serial, came.qos),
                "another message under the identifier: {came:?}"
            );
            assert!(!held.is_received, "[MQTT-4.3.3-6]: {came:?} again after PUBREC");
            return;
        }
        assert!(
            !came.dup || session.has_lost_bytes,
            "DUP is set on a message that the client has never received: {came:?}"
        );
        let source = if serial == 0 {
            Source::Nameless
        } else {
            self.take(client, serial, came)
        };
        if let Some(id) = came.id {
            let held = Held {
                serial,
                qos: came.qos,
                source,
                is_received: false,
            };
            self.session(client).held.insert(id, held);
        }
    }

    fn take(&mut self, client: usize, serial: u64, came: &Came) -> Source {
        let now = self.now;
        let session = self.session(client);
        let is_v5 = session.version == ProtocolVersion::V5;
        let alike = |o: &Owed| o.message.serial == serial && (o.qos, o.retain) == (came.qos, came.retain);
        let is_exact = |o: &Owed| alike(o) && (!is_v5 || o.identifiers == came.identifiers);
        let same = |o: &Owed| !o.is_seen && is_exact(o);
        let find = |wanted: &dyn Fn(&Owed) -> bool| session.owed.iter().position(wanted);
        let twin = find(&|o| o.is_seen_blindly && is_exact(o)).and_then(|_| find(&|o| !o.is_seen && alike(o)));
        let at = find(&|o| o.must && same(o)).or(find(&same)).or(twin);
        let Some(at) = at else {
            return self.take_shared(client, serial, came);
        };
        let owed = &mut session.owed[at];
        owed.is_seen = true;
        owed.is_seen_blindly = !is_v5;
        let (is_replay, expires_at) = (owed.replay.is_some(), owed.message.expires_at);
        let key = (
            owed.message.publisher,
            owed.message.topic.clone(),
            came.qos == QoS::AtMostOnce,
        );
        assert_eq!(owed.message.topic, came.topic);
        let is_late = came.dup || session.conn.as_ref().is_some_and(|c| c.is_blocked);
        check_expiry(now, expires_at, came, is_v5, is_late);
        if !is_replay && !session.is_member(&came.topic) {
            let last = session.last_serial.entry(key).or_default();
            assert!(*last <= serial, "[MQTT-4.6.0-5]: {serial} after {last}");
            *last = serial;
        }
        Source::Own
    }

    fn take_shared(&mut self, client: usize, serial: u64, came: &Came) -> Source {
        let now = self.now;
        let is_v5 = self.session(client).version == ProtocolVersion::V5;
        let copy = Copied {
            qos: came.qos,
            retain: came.retain,
            identifiers: is_v5.then(|| came.identifiers.clone()),
        };
        let fits = |o: &GroupOwed| o.message.serial == serial && o.fits(client, &copy);
        let candidates: Vec<usize> = (0..self.shared.len()).filter(|at| fits(&self.shared[*at])).collect();
        let untaken = candidates
            .iter()
            .find(|at| self.shared[**at].takers.is_empty())
            .copied();
        let at = untaken.or_else(|| candidates.into_iter().find(|at| self.make_free(*at, &mut vec![])));
        if at.is_none() && self.is_twin(client, serial, came) {
            return Source::Own;
        }
        let Some(at) = at else {
            let own: Vec<_> = self
                .session(client)
                .owed
                .iter()
                .filter(|o| o.message.serial == serial)
                .cloned()
                .collect();
            let takers: Vec<_> = self
                .shared
                .iter()
                .filter(|o| o.message.serial == serial)
                .map(|o| &o.takers)
                .collect();
            panic!("client {client} is not owed {came:?}; owed {own:?}; taken {takers:?}");
        };
        let is_late = came.dup || self.conn(client).is_some_and(|c| c.is_blocked);
        let owed = &mut self.shared[at];
        check_expiry(now, owed.message.expires_at, came, is_v5, is_late);
        owed.takers.push(Taker {
            client,
            copy,
            is_acknowledged: false,
            has_left: false,
        });
        Source::Group(at)
    }

    /// Returns whether this is the client's own copy. The copy that was matched as its own then belonged to a group,
    /// and was sent to another member.
    fn is_twin(&self, client: usize, serial: u64, came: &Came) -> bool {
        let is_tangled =
            |o: &GroupOwed| o.is_tangled && o.message.serial == serial && o.terms.iter().any(|(c, ..)| *c == client);
        let mut own = self.sessions[client].iter().flat_map(|s| &s.owed);
        let is_own = own.any(|o| o.message.serial == serial && (o.qos, o.retain) == (came.qos, came.retain));
        is_own && came.qos == QoS::AtLeastOnce && self.shared.iter().any(is_tangled)
    }

    /// Returns whether the copy is free or can be freed. If its receiver is a member of several groups, the delivery
    /// can also be matched to the copy of another group, because the client cannot distinguish them.
    fn make_free(&mut self, at: usize, visited: &mut Vec<usize>) -> bool {
        visited.push(at);
        let is_tangled = self.shared[at].is_tangled;
        let is_free = |t: &Taker| t.copy.qos == QoS::AtLeastOnce && (is_tangled || (!t.is_acknowledged && t.has_left));
        let Some(holder) = self.shared[at].takers.iter().position(|t| !is_free(t)) else {
            return true;
        };
        for other in 0..self.shared.len() {
            let Taker { client, copy, .. } = &self.shared[at].takers[holder];
            let is_same = self.shared[other].message.serial == self.shared[at].message.serial;
            let client = *client;
            if !is_same
                || visited.contains(&other)
                || !self.shared[other].fits(client, copy)
                || !self.make_free(other, visited)
            {
                continue;
            }
            let taker = self.shared[at].takers.remove(holder);
            self.shared[other].takers.push(taker);
            for held in self.sessions[client].iter_mut().flat_map(|s| s.held.values_mut()) {
                if held.source == Source::Group(at) {
                    held.source = Source::Group(other);
                }
            }
            return self.shared[at].takers.iter().all(is_free);
        }
        false
    }

    /// The client has sent an answer.
    pub fn answered(&mut self, client: usize, kind: PacketType, id: u16, with_failure: bool) {
        let session = self.session(client);
        let is_last = with_failure || kind != PacketType::PubRec;
        if let Some(held) = session.held.get_mut(&id) {
            held.is_received = true;
            if let Source::Group(at) = held.source {
                for taker in self.shared[at].takers.iter_mut().filter(|t| t.client == client) {
                    taker.is_acknowledged = true;
                }
            }
        }
        if is_last {
            let session = self.session(client);
            session.held.remove(&id);
            if let Some(conn) = &mut session.conn {
                conn.completed(id);
            }
        }
    }

    /// Checks that each client that reads and has acknowledged all packets has received all its messages.
    pub fn check_nothing_withheld(&mut self) {
        let now = self.now;
        let is_alive = |m: &Message| m.expires_at.is_none_or(|at| at > now);
        for (client, session) in self.sessions.iter_mut().enumerate() {
            let Some(session) = session else { continue };
            if session.conn.as_ref().is_none_or(|c| !c.is_idle()) {
                continue;
            }
            let missing = session
                .owed
                .iter()
                .find(|o| o.must && !o.is_seen && is_alive(&o.message));
            assert!(missing.is_none(), "client {client} did not receive {missing:?}");
            session.replays.clear();
            session.owed.retain(|o| o.replay.is_none() || o.must);
        }
        let is_all_idle = self
            .sessions
            .iter()
            .flatten()
            .all(|s| s.conn.as_ref().is_some_and(Conn::is_idle));
        if is_all_idle {
            let missing = self
                .shared
                .iter()
                .find(|o| o.must && o.takers.is_empty() && is_alive(&o.message));
            assert!(
                missing.is_none(),
                "no member of the group received {:?}",
                missing.map(|o| (&o.message, o.group, &o.terms))
            );
        }
    }
}

/// Checks the Message Expiry Interval. A late message was sent in time: it is a retransmission, or it waited for its
/// socket.
fn check_expiry(now: u64, expires_at: Option<u64>, came: &Came, is_v5: bool, is_late: bool) {
    let Some(at) = expires_at else {
        return assert_eq!(came.expiry_s, None);
    };
    assert!(
        is_late || now < at,
        "[MQTT-3.3.2-5]: {came:?} at {now}, expired at {at}"
    );
    if is_v5 {
        // [MQTT-3.3.2-6], in whole seconds.
        let left = at.saturating_sub(now).div_ceil(1000).max(1) as u32;
        assert!(
            came.expiry_s.is_some_and(|s| s == left || (is_late && s > left)),
            "{came:?}, {left} s are left"
        );
    }
}

/// 0 for a message without a payload.
fn serial_of(payload: &[u8]) -> u64 {
    let text = std::str::from_utf8(payload).unwrap();
    text.split('.')
        .next()
        .filter(|digits| !digits.is_empty())
        .map_or(0, |digits| digits.parse().unwrap())
}
