//! What clients are owed, known from the packets that they sent and got and from when connections and processes ended; nothing
//! of the implementation.
//!
//! Where the standard or what was lost on the way leaves a choice, nothing is owed, but it may come. What comes without being
//! possible is a violation at once; what is owed and does not come is one at the end of a run. The first violation stays.

mod delivery;
mod message;
mod owed;
mod retained;
mod session;
mod subscription;
mod will;

use std::collections::BTreeMap;

use mqtt::QoS;

use crate::plan::{Durability, Plan};

pub use delivery::Came;
pub use message::{Draft, Message};
pub use session::Left;

use retained::RetainedTopic;
use session::Session;

/// Timers may be late, and seconds are rounded.
const SLACK_MS: u64 = 1_500;

pub struct Oracle {
    /// True time.
    pub now_ms: u64,
    /// Counts what happens, so that before and after can be told.
    pub at: u64,
    pub durability: Durability,
    pub sessions: Vec<Session>,
    messages: Vec<Message>,
    /// What groups are owed: the serial and the filter.
    group_owed: Vec<(u64, &'static str)>,
    /// When a group last lost a member.
    member_left: BTreeMap<&'static str, u64>,
    /// The same of members that took messages at QoS 0.
    careless_member_left: BTreeMap<&'static str, u64>,
    retained: BTreeMap<String, RetainedTopic>,
    /// By how much deadlines may be off since the wall clock jumped.
    slop_ms: u64,
    has_jumps: bool,
    is_qos0_queued: bool,
    /// By short queues, or because they could not be read back.
    may_drop: bool,
    /// When the last process ended.
    crashed_at: u64,
    /// Processes that have ended.
    pub crashes: u64,
    /// That of this process.
    pub has_journal_failed: bool,
    /// When the node has refused messages because its journal was full.
    refused: Vec<u64>,
    /// How many of them in this process.
    refused_here: u64,
    /// Messages that the node says it has dropped although they were owed, in all its lives.
    pub drops: u64,
    pub violation: Option<String>,
}

impl Oracle {
    /// `clients` includes those that only look.
    pub fn new(plan: &Plan, clients: usize) -> Oracle {
        Oracle {
            now_ms: 0,
            at: 0,
            durability: plan.durability,
            sessions: (0..clients).map(Session::new).collect(),
            messages: Vec::new(),
            group_owed: Vec::new(),
            member_left: BTreeMap::new(),
            careless_member_left: BTreeMap::new(),
            retained: BTreeMap::new(),
            slop_ms: 0,
            has_jumps: plan.has_jumps,
            is_qos0_queued: plan.config.is_qos0_queued,
            may_drop: plan.is_limited || plan.has_rot,
            crashed_at: 0,
            crashes: 0,
            has_journal_failed: false,
            refused: Vec::new(),
            refused_here: 0,
            drops: 0,
            violation: None,
        }
    }

    pub fn violated(&mut self, what: impl FnOnce() -> String) {
        if self.violation.is_none() {
            self.violation = Some(what());
        }
    }

    /// The number of this event.
    fn event(&mut self) -> u64 {
        self.at += 1;
        self.at
    }

    pub fn message(&self, serial: u64) -> Option<&Message> {
        self.messages.get((serial as usize).checked_sub(1)?)
    }

    fn message_mut(&mut self, serial: u64) -> Option<&mut Message> {
        self.messages.get_mut((serial as usize).checked_sub(1)?)
    }

    pub fn jumped(&mut self, by_ms: i64) {
        self.slop_ms += by_ms.unsigned_abs();
    }

    /// The process has ended. `is_power_cut`: what was not synced is lost.
    pub fn crashed(&mut self, is_power_cut: bool) {
        self.crashed_at = self.event();
        self.crashes += 1;
        self.refused_here = 0;
        self.has_journal_failed = false;
        let keeps_acknowledged = match self.durability {
            Durability::None => false,
            Durability::Fsync => true,
            Durability::Os => !is_power_cut,
        };
        for client in 0..self.sessions.len() {
            self.session_crashed(client, keeps_acknowledged);
        }
        if !keeps_acknowledged {
            self.group_owed.clear();
            self.retained.clear();
            self.forget_delayed();
        }
        self.forget_groups_of_clean_members();
        self.forget_unanswered();
    }

    /// The process says how many messages it has refused because its journal was full.
    pub fn refused(&mut self, count: u64) {
        let at = self.event();
        let news = count.saturating_sub(self.refused_here);
        self.refused.extend((0..news).map(|_| at));
        self.refused_here = count;
    }

    /// When it first came, before it was sent again.
    fn may_have_been_refused(&self, message: &Message) -> bool {
        message
            .repeated
            .is_some_and(|again| self.has_refused(|at| message.sent < at && at < again))
    }

    fn has_refused(&self, mut when: impl FnMut(u64) -> bool) -> bool {
        self.refused.iter().any(|at| when(*at))
    }

    /// Everything that has happened in the node so far survives its process.
    pub fn kept(&mut self) {
        for client in 0..self.sessions.len() {
            self.goodbye_kept(client);
        }
    }

    /// A process has begun, with nobody connected.
    pub fn booted(&mut self) {
        self.event();
        let now_ms = self.now_ms;
        for session in &mut self.sessions {
            session.booted(now_ms);
        }
        self.cancel_mortal_wills();
    }

    /// Every worker has done what was due up to then.
    pub fn ticked(&mut self, ticked_ms: u64) {
        for client in 0..self.sessions.len() {
            self.will_overdue(client, ticked_ms);
        }
    }
}

fn is_at_least_once(qos: QoS) -> bool {
    qos != QoS::AtMostOnce
}
