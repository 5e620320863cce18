//! Sessions: whether they are there, with which content, and until when.

use std::collections::BTreeMap;

use mqtt::QoS;

use super::delivery::Seen;
use super::subscription::Subscription;
use super::will::Will;
use super::{Message, Oracle, SLACK_MS};
use crate::plan::Durability;
use crate::speak::Terms;

/// What the oracle knows of one client's session.
#[derive(Clone, Debug)]
pub struct Session {
    pub client: usize,
    pub exists: Exists,
    /// A CONNECT that was never answered may have emptied it, or may not: what it holds cannot be judged.
    pub is_sure: bool,
    pub is_online: bool,
    /// Counts the client's connections, so that a message can name one.
    pub connection: u64,
    /// When the last one was accepted.
    pub connected: u64,
    /// Connections of the client that the node has not let go of.
    pub links: usize,
    /// In seconds; two where it is not known which of two CONNECTs counts.
    expiry_s: (u32, u32),
    /// What a DISCONNECT said of it that the node may not have read.
    goodbye_expiry_s: Option<u32>,
    is_goodbye_heard: bool,
    /// From when on the node may have closed the connection for silence.
    pub silent_ms: u64,
    /// From when on nobody may have been connected.
    pub gone_ms: Option<u64>,
    /// When surely nobody was any more.
    pub surely_gone_ms: Option<u64>,
    /// And the journal knows.
    pub is_gone_kept: bool,
    /// The CONNECT that is not answered.
    pending: Option<Terms>,
    /// When that was sent.
    connecting_ms: u64,
    /// Up to when the node had done what was due when that was sent.
    ticked_ms: u64,
    pub will: Option<Will>,
    pub subscriptions: Vec<Subscription>,
    /// What it was a member of before it began anew, as long as the node may not know.
    pub ghosts: Vec<(&'static str, QoS)>,
    pub owed: Vec<u64>,
    /// Topics of which a new subscription, the filter, has still to be told what is retained.
    pub retained_owed: Vec<(String, &'static str)>,
    /// When something last came of a topic.
    pub heard: BTreeMap<String, u64>,
    pub seen: BTreeMap<u64, Seen>,
    /// The last serial that came first, by publisher, topic, and QoS as published and as delivered.
    pub order: BTreeMap<(usize, String, QoS, QoS), u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exists {
    No,
    Maybe,
    Yes,
}

/// How a client leaves a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    /// DISCONNECT and FIN; with another Session Expiry Interval perhaps, and wanting its will perhaps.
    Goodbye { expiry_s: Option<u32>, with_will: bool },
    /// Without a word, or the node has ended it.
    Lost,
}

impl Session {
    pub fn new(client: usize) -> Session {
        Session {
            client,
            exists: Exists::No,
            is_sure: true,
            is_online: false,
            connection: 0,
            connected: 0,
            links: 0,
            expiry_s: (0, 0),
            goodbye_expiry_s: None,
            is_goodbye_heard: false,
            silent_ms: u64::MAX,
            gone_ms: None,
            surely_gone_ms: None,
            is_gone_kept: false,
            pending: None,
            connecting_ms: 0,
            ticked_ms: 0,
            will: None,
            subscriptions: Vec::new(),
            ghosts: Vec::new(),
            owed: Vec::new(),
            retained_owed: Vec::new(),
            heard: BTreeMap::new(),
            seen: BTreeMap::new(),
            order: BTreeMap::new(),
        }
    }

    /// It outlives its connection, for a while at least.
    pub fn is_mortal_only_by_time(&self) -> bool {
        self.exists == Exists::Yes && self.expiry_s.0 > 0
    }

    pub fn shortest_expiry_ms(&self) -> u64 {
        lifetime_ms(self.expiry_s.0)
    }

    pub fn longest_expiry_ms(&self) -> u64 {
        lifetime_ms(self.expiry_s.1)
    }

    pub fn has_seen(&self, serial: u64) -> bool {
        self.seen.contains_key(&serial)
    }

    pub fn has_wanted_at_most_once(&self, message: &Message) -> bool {
        self.is_sure
            && self.subscriptions.iter().any(|s| {
                let is_unchanged = |other: &Subscription| other.filter != s.filter || other.sent == s.sent;
                s.share.is_none()
                    && s.covers(message, self.client)
                    && s.acked.is_some_and(|at| at < message.sent)
                    && s.unsent.is_none()
                    && self.subscriptions.iter().all(is_unchanged)
            })
    }

    /// The groups that it may be a member of, and at which QoS.
    pub fn memberships(&self) -> impl Iterator<Item = (&'static str, QoS)> {
        self.subscriptions
            .iter()
            .filter(|s| s.share.is_some())
            .map(|s| (s.filter, s.qos))
    }

    fn forget_owed(&mut self) {
        self.owed.clear();
        self.retained_owed.clear();
    }

    fn begin_anew(&mut self) {
        self.is_sure = true;
        self.subscriptions.clear();
        self.forget_owed();
        self.seen.clear();
        self.order.clear();
    }

    /// A CONNECT is under way.
    pub fn is_coming_back(&self) -> bool {
        self.pending.is_some()
    }

    pub fn connecting_ms(&self) -> u64 {
        self.connecting_ms
    }

    /// A CONNECT that ends the session is under way.
    pub fn may_be_ending(&self) -> bool {
        self.pending.as_ref().is_some_and(|terms| terms.clean_start)
    }

    /// Whether the CONNACK may, and may not, say that the session is there.
    fn may_be_present(&self, now_ms: u64, slop_ms: u64) -> (bool, bool) {
        match self.exists {
            Exists::No => (false, true),
            Exists::Maybe => (true, true),
            // A take-over: the end of the old connection has been the end of the session.
            Exists::Yes if self.expiry_s == (0, 0) => (false, true),
            Exists::Yes => {
                let Some(gone_ms) = self.gone_ms else {
                    return (true, self.expiry_s.0 == 0);
                };
                let may_be_over = now_ms + slop_ms >= gone_ms.saturating_add(self.shortest_expiry_ms());
                let is_over = self.surely_gone_ms.is_some_and(|at| {
                    self.ticked_ms
                        >= at
                            .saturating_add(self.longest_expiry_ms())
                            .saturating_add(SLACK_MS + slop_ms)
                });
                (!is_over, may_be_over)
            }
        }
    }

    /// Whoever was there when the process ended, as far as the journal knows, is gone now.
    pub fn booted(&mut self, now_ms: u64) {
        if self.gone_ms.is_some() && (self.surely_gone_ms.is_none() || !self.is_gone_kept) {
            self.surely_gone_ms = Some(now_ms);
        }
    }
}

fn lifetime_ms(expiry_s: u32) -> u64 {
    match expiry_s {
        u32::MAX => u64::MAX / 4,
        seconds => u64::from(seconds) * 1000,
    }
}

impl Oracle {
    /// A connection has been opened, and the CONNECT been written. `ticked_ms`: what was due before that has been done.
    pub fn connecting(&mut self, client: usize, terms: &Terms, ticked_ms: u64) {
        self.event();
        if self.sessions[client].exists == Exists::No {
            self.session_leaves_groups(client);
            let session = &mut self.sessions[client];
            if session.links > 0 {
                session.ghosts = session.memberships().collect();
            }
            session.begin_anew();
        }
        let now_ms = self.now_ms;
        let session = &mut self.sessions[client];
        session.connecting_ms = now_ms;
        session.links += 1;
        session.connection += 1;
        session.goodbye_expiry_s = None;
        session.is_goodbye_heard = false;
        session.pending = Some(terms.clone());
        session.ticked_ms = ticked_ms;
        if terms.clean_start {
            self.session_leaves_groups(client);
        }
    }

    /// CONNACK with success.
    pub fn connected(&mut self, client: usize, is_present: bool) {
        let at = self.event();
        let (now_ms, slop_ms) = (self.now_ms, self.slop_ms);
        let session = &mut self.sessions[client];
        let Some(terms) = session.pending.take() else {
            return self.violated(|| format!("client {client} got a second CONNACK"));
        };
        let (may, may_not) = if terms.clean_start {
            (false, true)
        } else {
            session.may_be_present(now_ms, slop_ms)
        };
        let text = format!("client {client}: session present {is_present} [MQTT-3.2.2-2], {session:?}");
        if (is_present && !may) || (!is_present && !may_not) {
            self.violated(|| text);
        }
        self.will_of_the_last_connection(client, &terms, is_present);
        if !is_present {
            self.session_leaves_groups(client);
            self.sessions[client].begin_anew();
        }
        let session = &mut self.sessions[client];
        session.exists = Exists::Yes;
        session.is_online = true;
        session.connected = at;
        session.expiry_s = (terms.expiry_s, terms.expiry_s);
        session.gone_ms = None;
        session.surely_gone_ms = None;
        session.is_gone_kept = false;
        let armed = |will| Will::armed(will, terms.expiry_s > 0);
        session.will = terms.will.as_ref().map(armed);
    }

    /// The client gives a connection up before CONNACK: whether the server saw the CONNECT is not known. Returns whether
    /// there may be a session of which the client does not know what it holds.
    pub fn gave_up(&mut self, client: usize) -> bool {
        self.event();
        let (now_ms, slop_ms) = (self.now_ms, self.slop_ms);
        self.loosen_will(client);
        let session = &mut self.sessions[client];
        let Some(terms) = session.pending.take() else {
            return false;
        };
        let may_be_new = terms.clean_start || session.may_be_present(now_ms, slop_ms).1;
        if may_be_new && session.exists != Exists::No {
            session.is_sure = false;
            session.forget_owed();
        }
        let before = if session.exists == Exists::No {
            terms.expiry_s
        } else {
            session.expiry_s.0
        };
        if terms.expiry_s > 0 || session.exists == Exists::Yes {
            let is_there = session.exists == Exists::Yes && terms.expiry_s > 0 && session.expiry_s.0 > 0;
            session.exists = if is_there { Exists::Yes } else { Exists::Maybe };
        }
        session.expiry_s = (before.min(terms.expiry_s), session.expiry_s.1.max(terms.expiry_s));
        session.gone_ms = Some(session.gone_ms.unwrap_or(now_ms));
        session.surely_gone_ms = (session.links == 0).then_some(now_ms);
        let may_have_new_will = terms.will.as_ref().map(|will| Will::loose(will.serial));
        session.will = session.will.take().or(may_have_new_will);
        may_be_new
    }

    /// The client has left an accepted connection, or found that the node has.
    pub fn left(&mut self, client: usize, how: Left) {
        self.event();
        let now_ms = self.now_ms;
        let session = &mut self.sessions[client];
        session.is_online = false;
        session.gone_ms = Some(session.gone_ms.unwrap_or(now_ms.min(session.silent_ms)));
        if session.links == 0 && session.surely_gone_ms.is_none() {
            session.surely_gone_ms = Some(now_ms);
        }
        if let Left::Goodbye {
            expiry_s: Some(expiry_s),
            ..
        } = how
        {
            // The goodbye may be lost with the process.
            let (low, high) = session.expiry_s;
            session.expiry_s = (low.min(expiry_s), high.max(expiry_s));
            session.goodbye_expiry_s = Some(expiry_s);
        }
        self.will_of_who_left(client, how);
        let session = &mut self.sessions[client];
        if session.expiry_s.0 == 0 {
            // It ends with its connection.
            session.forget_owed();
            if session.expiry_s.1 == 0 {
                session.exists = Exists::No;
            } else if session.exists == Exists::Yes {
                session.exists = Exists::Maybe;
            }
            self.session_leaves_groups(client);
        }
    }

    /// The node has let go of one of the client's connections.
    pub fn link_closed(&mut self, client: usize, is_current: bool) {
        self.event();
        let now_ms = self.now_ms;
        let session = &mut self.sessions[client];
        session.links = session.links.saturating_sub(1);
        if is_current && session.is_online {
            session.gone_ms = Some(session.gone_ms.unwrap_or(now_ms.min(session.silent_ms)));
        }
        if session.links == 0 && session.gone_ms.is_some() {
            session.surely_gone_ms = Some(now_ms);
            // The node may have read a later CONNECT before it, or have closed the connection for silence.
            let is_in_time = session.gone_ms.is_some_and(|at| at < session.silent_ms);
            session.is_goodbye_heard = session.pending.is_none() && is_in_time;
        }
        if self.durability == Durability::None {
            self.goodbye_kept(client);
        }
        if !self.sessions[client].is_mortal_only_by_time() {
            self.session_leaves_groups(client);
        }
        let session = &self.sessions[client];
        // The one that was a member may be older than this one, which the client has given up, too.
        if !is_current && session.links <= usize::from(session.is_online || session.pending.is_some()) {
            self.ghosts_are_gone(client);
        }
    }

    /// The client does not know what the session that it has got holds.
    pub fn unsure(&mut self, client: usize) {
        self.sessions[client].is_sure = false;
        self.sessions[client].forget_owed();
    }

    /// What the client said last has been read, and survives the process.
    pub(super) fn goodbye_kept(&mut self, client: usize) {
        let session = &mut self.sessions[client];
        session.is_gone_kept = session.surely_gone_ms.is_some() && session.links == 0;
        if !std::mem::take(&mut session.is_goodbye_heard) {
            return;
        }
        if let Some(expiry_s) = session.goodbye_expiry_s.take() {
            session.expiry_s = (expiry_s, expiry_s);
        }
        self.will_goodbye_kept(client);
    }

    pub(super) fn session_crashed(&mut self, client: usize, keeps_acknowledged: bool) {
        let now_ms = self.now_ms;
        self.will_crashed(client, keeps_acknowledged);
        let session = &mut self.sessions[client];
        if session.exists != Exists::No && session.gone_ms.is_none() {
            session.gone_ms = Some(now_ms.min(session.silent_ms));
        }
        if session.links > 0 {
            session.surely_gone_ms = None;
            session.is_gone_kept = false;
        }
        session.links = 0;
        session.is_goodbye_heard = false;
        if session.goodbye_expiry_s.take() == Some(0) {
            // The client believes that it has ended.
            session.is_sure = false;
        }
        if !keeps_acknowledged {
            session.exists = Exists::No;
            session.begin_anew();
        } else if session.expiry_s.0 == 0 {
            session.exists = if session.expiry_s.1 == 0 {
                Exists::No
            } else {
                Exists::Maybe
            };
            session.forget_owed();
        }
    }

    /// What QoS 2 promises can be judged.
    pub(super) fn is_exact(&self, client: usize, qos: QoS) -> bool {
        qos == QoS::ExactlyOnce && self.sessions[client].is_sure
    }
}
