//! The oracle: what clients must receive. It knows only the packets that they sent and received, and when connections
//! and processes ended, but nothing of the implementation.
//!
//! Where the standard or a loss leaves a choice, a message may be delivered but is not owed. A delivery that is not
//! allowed is a violation immediately; a missing delivery is one at the end of a run. Only the first violation is
//! recorded.

mod delivery;
mod message;
mod owed;
mod retained;
mod session;
mod subscription;
mod will;

use std::collections::BTreeMap;

use mqtt::QoS;

use crate::client::ClientIndex;
use crate::plan::{PlannedDurability, SimulationPlan};

pub use delivery::ReceivedMessage;
pub use message::{OracleMessage, PublishDraft};
pub use session::LeaveMode;

use retained::RetainedTopic;
use session::OracleSession;

/// Tolerance for late timers and rounded seconds.
const SLACK_MS: u64 = 1_500;

pub struct Oracle {
    /// True time.
    pub now_ms: u64,
    /// Event counter; orders events.
    pub at: u64,
    pub durability: PlannedDurability,
    pub sessions: Vec<OracleSession>,
    messages: Vec<OracleMessage>,
    /// Messages owed to share groups: serial and filter.
    group_owed: Vec<(u64, &'static str)>,
    /// Event at which a group last lost a member.
    member_left: BTreeMap<&'static str, u64>,
    /// The same for members that subscribed at QoS 0.
    qos0_member_left: BTreeMap<&'static str, u64>,
    retained: BTreeMap<String, RetainedTopic>,
    /// Tolerance for deadlines after jumps of the wall clock.
    slop_ms: u64,
    /// The wall clock has jumped forward.
    has_jumped_forward: bool,
    /// A process has started after such a jump. Until then the jump has no effect.
    may_expire_early: bool,
    queue_qos0: bool,
    /// Messages may be dropped because of short queues or unreadable records.
    may_drop: bool,
    /// Event at which the last process ended.
    crashed_at: u64,
    /// Number of processes that have ended.
    pub crashes: u64,
    /// The journal of this process has failed.
    pub has_journal_failed: bool,
    /// Events at which the node rejected messages because its journal was full.
    refused: Vec<u64>,
    /// Number of these in this process.
    refused_here: u64,
    /// Messages that the node reports as dropped although they were owed, in all processes.
    pub drops: u64,
    pub violation: Option<String>,
}

impl Oracle {
    /// `clients` includes the observers.
    pub fn new(plan: &SimulationPlan, clients: usize) -> Oracle {
        Oracle {
            now_ms: 0,
            at: 0,
            durability: plan.durability,
            sessions: ClientIndex::first(clients).map(OracleSession::new).collect(),
            messages: Vec::new(),
            group_owed: Vec::new(),
            member_left: BTreeMap::new(),
            qos0_member_left: BTreeMap::new(),
            retained: BTreeMap::new(),
            slop_ms: 0,
            has_jumped_forward: false,
            may_expire_early: false,
            queue_qos0: plan.config.queue_qos0,
            may_drop: plan.is_limited || plan.has_unreadable_records,
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

    /// Returns the number of a new event.
    fn event(&mut self) -> u64 {
        self.at += 1;
        self.at
    }

    pub fn message(&self, serial: u64) -> Option<&OracleMessage> {
        self.messages.get((serial as usize).checked_sub(1)?)
    }

    fn message_mut(&mut self, serial: u64) -> Option<&mut OracleMessage> {
        self.messages.get_mut((serial as usize).checked_sub(1)?)
    }

    pub fn jumped(&mut self, by_ms: i64) {
        self.slop_ms += by_ms.unsigned_abs();
        self.has_jumped_forward |= by_ms > 0;
    }

    pub fn started(&mut self) {
        self.may_expire_early |= self.has_jumped_forward;
    }

    /// The process has ended. `is_power_cut` means that unsynced data is lost.
    pub fn crashed(&mut self, is_power_cut: bool) {
        self.crashed_at = self.event();
        self.crashes += 1;
        self.refused_here = 0;
        self.has_journal_failed = false;
        let keeps_acknowledged = match self.durability {
            PlannedDurability::None => false,
            PlannedDurability::Fsync => true,
            PlannedDurability::Os => !is_power_cut,
        };
        for client in ClientIndex::first(self.sessions.len()) {
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

    /// The process reports how many messages it has rejected because its journal was full.
    pub fn refused(&mut self, count: u64) {
        let at = self.event();
        let news = count.saturating_sub(self.refused_here);
        self.refused.extend((0..news).map(|_| at));
        self.refused_here = count;
    }

    /// Returns whether the message may have been rejected before it was sent again.
    fn may_have_been_refused(&self, message: &OracleMessage) -> bool {
        message
            .repeated
            .is_some_and(|again| self.has_refused(|at| message.sent < at && at < again))
    }

    fn has_refused(&self, mut when: impl FnMut(u64) -> bool) -> bool {
        self.refused.iter().any(|at| when(*at))
    }

    /// All changes in the node so far are durable.
    pub fn all_durable(&mut self) {
        for client in ClientIndex::first(self.sessions.len()) {
            self.disconnect_durable(client);
        }
    }

    /// A process has started. No client is connected.
    pub fn booted(&mut self) {
        self.event();
        let now_ms = self.now_ms;
        for session in &mut self.sessions {
            session.booted(now_ms);
        }
        self.cancel_wills_of_ended_sessions();
    }

    /// Every worker has handled the timers due up to this time.
    pub fn ticked(&mut self, ticked_ms: u64) {
        for client in ClientIndex::first(self.sessions.len()) {
            self.will_overdue(client, ticked_ms);
        }
    }
}

fn is_at_least_once(qos: QoS) -> bool {
    qos != QoS::AtMostOnce
}
