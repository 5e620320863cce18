//! The plan of a run: size of the node, limits, possible faults, and frequencies of actions, all derived from the seed.
//!
//! Every run has its own mixture, because rare actions would never accumulate if all runs had the same mixture.

use broker::owners::{OwnerLimits, ShareLimits};
use broker::{ShardConfig, ShareStrategy};
use journal::{FlushPolicy, LogConfig};

use crate::topics::{FILTERS, TOPICS};
use storage::model::Random;

/// Data that survives the end of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlannedDurability {
    /// Nothing, because there is no journal.
    None,
    /// Acknowledged messages, however the process ends.
    Fsync,
    /// Acknowledged messages, unless the power fails.
    Os,
}

impl PlannedDurability {
    pub const ALL: [PlannedDurability; 3] = [PlannedDurability::None, PlannedDurability::Fsync, PlannedDurability::Os];

    /// Returns the name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            PlannedDurability::None => "none",
            PlannedDurability::Fsync => "fsync",
            PlannedDurability::Os => "os",
        }
    }
}

#[derive(Clone, Debug)]
pub struct SimulationPlan {
    pub seed: u64,
    pub steps: usize,
    pub shards: u16,
    pub clients: usize,
    pub config: ShardConfig,
    pub durability: PlannedDurability,
    pub log: LogConfig,
    /// Number of `topics::TOPICS` and `topics::FILTERS` in use: few, so that messages match subscriptions often, or
    /// all.
    pub topics: usize,
    pub filters: usize,
    /// Queues are so short that messages are dropped.
    pub is_limited: bool,
    /// The wall clock jumps.
    pub has_jumps: bool,
    pub is_disk_bad: bool,
    /// Single records of queued messages cannot be read.
    pub has_unreadable_records: bool,
    /// Shards have a tap, which may be full at times.
    pub has_tap: bool,
    pub may_tap_be_full: bool,
    /// Workers stop reading from clients while more journal bytes than this are uncommitted.
    pub backlog_bytes_max: u64,
    /// The journal's reader rejects some requests.
    pub is_reader_busy: bool,
    /// Checkpoints move only a part of the old messages, as on a disk with little free space.
    pub has_little_space: bool,
    /// Every restart replays all segments, as after a repair.
    pub replays_all: bool,
    /// Messages are published to `$delayed/…`. Not combined with jumps of the wall clock, which determines the
    /// remaining delay after a restart.
    pub has_delays: bool,
    /// All clients have the same mountpoint. Not combined with `is_limited`, whose limits fit the bare topics.
    pub has_mountpoint: bool,
    pub weights: [u32; STEPS],
    pub acts: [u32; ACTS],
    /// Percentage of clients that read and acknowledge immediately.
    pub promptness: u32,
    /// Percentage of disconnected odd-numbered clients with subscriptions that reconnect when they may.
    pub returning: u32,
    /// No client subscribes at QoS 0, so that no group member loses messages.
    pub is_surely_shared: bool,
    /// Every second client subscribes only to `topics::GROUP_FILTER`, and the others never do.
    pub are_members_apart: bool,
    /// Socket buffer size of clients, in bytes.
    pub link_capacity: usize,
}

/// A kind of step; an index into `SimulationPlan::weights`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SimulationStep {
    Tick,
    Act,
    Read,
    Pass,
    Crash,
    Audit,
    Jump,
    Flush,
    Disk,
    Checkpoint,
    Tap,
    /// The server publishes a message, as over the API.
    Server,
}

pub const STEPS: usize = 12;

pub const STEP_KINDS: [SimulationStep; STEPS] = [
    SimulationStep::Tick,
    SimulationStep::Act,
    SimulationStep::Read,
    SimulationStep::Pass,
    SimulationStep::Crash,
    SimulationStep::Audit,
    SimulationStep::Jump,
    SimulationStep::Flush,
    SimulationStep::Disk,
    SimulationStep::Checkpoint,
    SimulationStep::Tap,
    SimulationStep::Server,
];

/// An action of a connected client; an index into `SimulationPlan::acts`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientAction {
    Publish,
    Subscribe,
    Unsubscribe,
    Answer,
    Disconnect,
    Cut,
    TakeOver,
    PauseReading,
    Ping,
}

pub const ACTS: usize = 9;

pub const ACT_KINDS: [ClientAction; ACTS] = [
    ClientAction::Publish,
    ClientAction::Subscribe,
    ClientAction::Unsubscribe,
    ClientAction::Answer,
    ClientAction::Disconnect,
    ClientAction::Cut,
    ClientAction::TakeOver,
    ClientAction::PauseReading,
    ClientAction::Ping,
];

impl SimulationPlan {
    pub fn of(seed: u64, steps: usize, durability: PlannedDurability) -> SimulationPlan {
        let mut random = Random::new(seed);
        let r = &mut random;
        let is_limited = r.percent(10);
        let has_jumps = r.percent(10);
        let has_unreadable_records = durability != PlannedDurability::None && r.percent(10);
        let is_disk_bad = durability != PlannedDurability::None && r.percent(25);
        let (topics, filters) = *r.pick(&[(1, 1), (2, 4), (2, 4), (4, 8), (TOPICS.len(), FILTERS.len())]);
        let mut plan = SimulationPlan {
            seed,
            steps,
            shards: *r.pick(&[1, 1, 2, 2, 3, 4]),
            clients: r.between(2, 6) as usize,
            config: config(r, is_limited),
            durability,
            log: log_config(r, durability),
            topics,
            filters,
            is_limited,
            has_jumps,
            is_disk_bad,
            has_unreadable_records,
            has_tap: false,
            may_tap_be_full: false,
            has_delays: false,
            // No draw: the other properties of a seed stay the same.
            has_mountpoint: !is_limited && seed % 8 == 5,
            backlog_bytes_max: u64::MAX,
            is_reader_busy: false,
            has_little_space: false,
            replays_all: durability != PlannedDurability::None && seed % 5 == 2,
            weights: step_weights(r, durability, has_jumps, is_disk_bad),
            acts: act_weights(r),
            promptness: *r.pick(&[10, 40, 60, 95]),
            returning: *r.pick(&[75, 75, 20]),
            is_surely_shared: false,
            are_members_apart: false,
            link_capacity: *r.pick(&[64, 1_000, 1_000, 64_000, 64_000]),
        };
        if r.percent(25) {
            plan.lengthen_queues(r);
        } else if durability != PlannedDurability::None && r.percent(30) {
            plan.delay_acknowledgements(r);
        }
        plan.has_little_space = matches!(seed % 11, 3 | 4);
        if seed % 12 == 6 {
            plan.share_queues();
        } else if seed % 6 == 3 {
            plan.leave_to_group();
            // The run checks checkpoints. A full replay would hide records that they omit.
            plan.replays_all = false;
        }
        plan.config.journals_all_messages = seed.is_multiple_of(5);
        plan.has_tap = r.percent(30);
        plan.may_tap_be_full = plan.has_tap && r.percent(25);
        plan.has_delays = !has_jumps && r.percent(15);
        if plan.has_tap {
            plan.weights[SimulationStep::Tap as usize] = *r.pick(&[5, 20, 60]);
        }
        if durability != PlannedDurability::None && r.percent(15) {
            plan.backlog_bytes_max = *r.pick(&[0, 300, 3_000]);
        }
        plan.is_reader_busy = r.percent(15);
        if r.percent(25) {
            plan.weights[SimulationStep::Server as usize] = *r.pick(&[3, 10, 30]);
        }
        plan
    }

    /// Group members have queues of their own, and leave the group with undelivered messages.
    fn share_queues(&mut self) {
        (self.topics, self.filters) = (2, 2);
        self.is_surely_shared = true;
        self.clients = self.clients.max(3);
        self.config.max_inflight = 1;
        self.weights[SimulationStep::Crash as usize] = self.weights[SimulationStep::Crash as usize].min(1);
        self.acts[ClientAction::Publish as usize] = 80;
        self.acts[ClientAction::Answer as usize] = 8;
        self.acts[ClientAction::Unsubscribe as usize] = 0;
        self.acts[ClientAction::Cut as usize] = 6;
        self.promptness = 10;
    }

    /// Every second client is a group member and mostly offline while the others publish. The queue of the group is
    /// only in the journal, is dispatched in many parts, and has been moved before.
    fn leave_to_group(&mut self) {
        (self.topics, self.filters) = (2, 1);
        self.are_members_apart = true;
        self.is_surely_shared = true;
        self.is_limited = false;
        self.clients = self.clients.max(4);
        self.returning = [1, 3, 10][(self.seed / 12 % 3) as usize];
        self.config.group_window = 1 + (self.seed / 36 % 3) as usize;
        self.config.max_queued_messages = 100_000;
        self.config.max_queued_bytes = ShardConfig::default().max_queued_bytes;
        self.log.segment_bytes = 512;
        self.acts[ClientAction::Publish as usize] = 60;
        self.acts[ClientAction::Unsubscribe as usize] = 0;
        self.acts[ClientAction::Cut as usize] = 4;
        if self.durability != PlannedDurability::None {
            self.weights[SimulationStep::Crash as usize] = 1;
            self.weights[SimulationStep::Checkpoint as usize] = 8;
            self.weights[SimulationStep::Flush as usize] = 60;
        }
    }

    /// Clients stay offline for long while many messages are published for them. Their queues are in pages, and are
    /// moved before they are read.
    fn lengthen_queues(&mut self, r: &mut Random) {
        self.returning = *r.pick(&[1, 3, 10]);
        self.config.max_inflight = *r.pick(&[1, 2]);
        self.config.page_entries = 2;
        self.config.group_window = 1;
        self.config.max_queued_messages = 100_000;
        self.config.max_queued_bytes = ShardConfig::default().max_queued_bytes;
        self.is_limited = false;
        (self.topics, self.filters) = (1, 1);
        self.log.segment_bytes = 512;
        self.acts[ClientAction::Publish as usize] = 60;
        self.acts[ClientAction::Cut as usize] = r.between(2, 6) as u32;
        if self.durability != PlannedDurability::None {
            self.weights[SimulationStep::Crash as usize] = 1;
            self.weights[SimulationStep::Checkpoint as usize] = *r.pick(&[6, 12]);
            self.weights[SimulationStep::Flush as usize] = 60;
        }
    }

    /// When the process ends, either clients have read much that is not on disk, or checkpoints contain much that
    /// clients have not read.
    fn delay_acknowledgements(&mut self, r: &mut Random) {
        (self.topics, self.filters) = (1, 1);
        self.acts[ClientAction::Publish as usize] = 60;
        if r.percent(50) {
            self.weights[SimulationStep::Crash as usize] = 3;
            self.weights[SimulationStep::Flush as usize] = 12;
            self.weights[SimulationStep::Read as usize] = 60;
        } else {
            self.weights[SimulationStep::Crash as usize] = 2;
            self.weights[SimulationStep::Checkpoint as usize] = 12;
            self.weights[SimulationStep::Flush as usize] = 60;
            self.weights[SimulationStep::Read as usize] = 4;
        }
    }
}

/// Segments are so small that a run fills many.
fn log_config(r: &mut Random, durability: PlannedDurability) -> LogConfig {
    LogConfig {
        policy: match durability {
            PlannedDurability::Os => FlushPolicy::Os,
            PlannedDurability::None | PlannedDurability::Fsync => FlushPolicy::Fsync,
        },
        segment_bytes: *r.pick(&[512, 2_048, 8_192, 65_536]),
        max_bytes: 1 << 26,
        reserve_bytes: 0,
        ..LogConfig::default()
    }
}

fn step_weights(r: &mut Random, durability: PlannedDurability, has_jumps: bool, is_disk_bad: bool) -> [u32; STEPS] {
    let has_journal = durability != PlannedDurability::None;
    let journal = |weight: u32| if has_journal { weight } else { 0 };
    let mut weights = [0; STEPS];
    weights[SimulationStep::Tick as usize] = r.between(20, 60) as u32;
    weights[SimulationStep::Act as usize] = r.between(20, 60) as u32;
    weights[SimulationStep::Read as usize] = r.between(15, 50) as u32;
    weights[SimulationStep::Pass as usize] = *r.pick(&[1, 2, 5]);
    weights[SimulationStep::Crash as usize] = if has_journal {
        *r.pick(&[0, 1, 1, 2])
    } else {
        *r.pick(&[0, 0, 1, 2])
    };
    weights[SimulationStep::Audit as usize] = u32::from(r.percent(50));
    weights[SimulationStep::Jump as usize] = u32::from(has_jumps);
    weights[SimulationStep::Flush as usize] = journal(*r.pick(&[12, 30, 60]));
    weights[SimulationStep::Disk as usize] = u32::from(is_disk_bad);
    weights[SimulationStep::Checkpoint as usize] = journal(*r.pick(&[0, 2, 6]));
    weights
}

fn act_weights(r: &mut Random) -> [u32; ACTS] {
    let mut acts = [0; ACTS];
    acts[ClientAction::Publish as usize] = r.between(20, 60) as u32;
    acts[ClientAction::Subscribe as usize] = r.between(4, 12) as u32;
    acts[ClientAction::Unsubscribe as usize] = r.between(0, 3) as u32;
    acts[ClientAction::Answer as usize] = r.between(15, 40) as u32;
    acts[ClientAction::Disconnect as usize] = r.between(0, 4) as u32;
    acts[ClientAction::Cut as usize] = r.between(0, 6) as u32;
    acts[ClientAction::TakeOver as usize] = r.between(0, 3) as u32;
    acts[ClientAction::PauseReading as usize] = r.between(0, 3) as u32;
    acts[ClientAction::Ping as usize] = 1;
    acts
}

/// The queues of a user are counted, and have a limit that they never reach.
fn counting_shares() -> ShareLimits {
    let user = OwnerLimits {
        queued_bytes: u64::MAX - 1,
        ..OwnerLimits::NONE
    };
    ShareLimits {
        user,
        ..ShareLimits::NONE
    }
}

fn config(r: &mut Random, is_limited: bool) -> ShardConfig {
    use ShareStrategy::{HashClient, HashTopic, LeastInflight, Random as AnyMember, RoundRobin, Sticky};
    let shared_strategy = *r.pick(&[RoundRobin, AnyMember, Sticky, HashClient, HashTopic, LeastInflight]);
    let max_inflight = *r.pick(&[1, 2, 16, 128]);
    let receive_maximum = *r.pick(&[2, 8, 128]);
    let queue_limits = |messages, bytes| ShardConfig {
        max_queued_messages: messages,
        max_queued_bytes: bytes,
        ..ShardConfig::default()
    };
    let unlimited_bytes = ShardConfig::default().max_queued_bytes;
    let limits = match is_limited.then(|| r.between(1, 8) as usize) {
        // Twice the largest message, so that a replay of retained messages fits.
        Some(messages) if messages.is_multiple_of(2) => queue_limits(1000, 8000),
        Some(messages) => queue_limits(messages, unlimited_bytes),
        None => queue_limits(100_000, unlimited_bytes),
    };
    ShardConfig {
        shared_strategy,
        max_inflight,
        // Queues grow longest when few messages are in flight.
        page_entries: if max_inflight <= 2 { 2 } else { 4096 },
        group_window: if max_inflight <= 2 { 1 } else { 512 },
        receive_maximum,
        output_buffer_bytes: *r.pick(&[300, 4_000, 1024 * 1024]),
        max_topic_alias_out: *r.pick(&[0, 2, 32]),
        queue_qos0: r.percent(10),
        shares: counting_shares(),
        ..limits
    }
}
