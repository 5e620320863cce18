//! What kind of run a seed is: how large the node is, which limits it has, what may go wrong and how often things happen.
//!
//! Every run has its own mixture, because what all runs do a little of is never done much of in any.

use broker::{ShardConfig, ShareStrategy};
use journal::{LogConfig, Policy};

use crate::words::{FILTERS, TOPICS};
use storage::model::Random;

/// What survives the end of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// There is no journal: nothing.
    None,
    /// What was acknowledged, whatever ends the process.
    Fsync,
    /// What was acknowledged, unless the power fails.
    Os,
}

impl Durability {
    pub const ALL: [Durability; 3] = [Durability::None, Durability::Fsync, Durability::Os];

    /// As the command line has it.
    pub const fn name(self) -> &'static str {
        match self {
            Durability::None => "none",
            Durability::Fsync => "fsync",
            Durability::Os => "os",
        }
    }
}

#[derive(Clone, Debug)]
pub struct Plan {
    pub seed: u64,
    pub steps: usize,
    pub shards: u16,
    pub clients: usize,
    pub config: ShardConfig,
    pub durability: Durability,
    pub log: LogConfig,
    /// How many of `words::TOPICS` and `words::FILTERS` are used: few, so that messages meet subscriptions, or all.
    pub topics: usize,
    pub filters: usize,
    /// Queues are so short that messages are dropped.
    pub is_limited: bool,
    /// The wall clock jumps.
    pub has_jumps: bool,
    pub is_disk_bad: bool,
    /// Single records of waiting messages cannot be read back.
    pub has_rot: bool,
    /// Shards have a tap, which may be full at times.
    pub has_tap: bool,
    pub may_tap_be_full: bool,
    /// With more in the journal that is not committed, workers read from nobody.
    pub backlog_bytes_max: u64,
    /// The journal's reader turns questions away.
    pub is_reader_busy: bool,
    /// Checkpoints move a part of what they would, as on a disk with little free.
    pub has_little_room: bool,
    /// Every start replays all that is there, as after a repair.
    pub replays_all: bool,
    /// Messages are published to `$delayed/…`. Not where the wall clock jumps, which is what tells after a restart how long is left.
    pub has_delays: bool,
    pub weights: [u32; STEPS],
    pub acts: [u32; ACTS],
    /// In percent: clients that acknowledge at once, that read at once.
    pub promptness: u32,
    /// In percent: how many of every second client come back to their subscriptions when they may.
    pub returning: u32,
    /// Nobody subscribes at QoS 0, so that no member of a group may lose what it was given.
    pub is_surely_shared: bool,
    /// Every second client subscribes to `words::GROUP_FILTER` and nothing else, and the others do not.
    pub are_members_apart: bool,
    /// Socket buffers of clients, in bytes.
    pub link_capacity: usize,
}

/// What may happen next; an index into `Plan::weights`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
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
    /// Somebody publishes over the API.
    Server,
}

pub const STEPS: usize = 12;

pub const STEP_KINDS: [Step; STEPS] = [
    Step::Tick,
    Step::Act,
    Step::Read,
    Step::Pass,
    Step::Crash,
    Step::Audit,
    Step::Jump,
    Step::Flush,
    Step::Disk,
    Step::Checkpoint,
    Step::Tap,
    Step::Server,
];

/// What a client that is connected may do; an index into `Plan::acts`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    Publish,
    Subscribe,
    Unsubscribe,
    Answer,
    Disconnect,
    Cut,
    TakeOver,
    Dawdle,
    Ping,
}

pub const ACTS: usize = 9;

pub const ACT_KINDS: [Act; ACTS] = [
    Act::Publish,
    Act::Subscribe,
    Act::Unsubscribe,
    Act::Answer,
    Act::Disconnect,
    Act::Cut,
    Act::TakeOver,
    Act::Dawdle,
    Act::Ping,
];

impl Plan {
    pub fn of(seed: u64, steps: usize, durability: Durability) -> Plan {
        let mut random = Random::new(seed);
        let r = &mut random;
        let is_limited = r.percent(10);
        let has_jumps = r.percent(10);
        let has_rot = durability != Durability::None && r.percent(10);
        let is_disk_bad = durability != Durability::None && r.percent(25);
        let (topics, filters) = *r.pick(&[(1, 1), (2, 4), (2, 4), (4, 8), (TOPICS.len(), FILTERS.len())]);
        let mut plan = Plan {
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
            has_rot,
            has_tap: false,
            may_tap_be_full: false,
            has_delays: false,
            backlog_bytes_max: u64::MAX,
            is_reader_busy: false,
            has_little_room: false,
            replays_all: durability != Durability::None && seed % 5 == 2,
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
        } else if durability != Durability::None && r.percent(30) {
            plan.let_wait(r);
        }
        plan.has_little_room = matches!(seed % 11, 3 | 4);
        if seed % 12 == 6 {
            plan.share_queues();
        } else if seed % 6 == 3 {
            plan.leave_to_group();
            // It is about what checkpoints write: where all is replayed they may forget some.
            plan.replays_all = false;
        }
        plan.config.is_all_kept = seed.is_multiple_of(5);
        plan.has_tap = r.percent(30);
        plan.may_tap_be_full = plan.has_tap && r.percent(25);
        plan.has_delays = !has_jumps && r.percent(15);
        if plan.has_tap {
            plan.weights[Step::Tap as usize] = *r.pick(&[5, 20, 60]);
        }
        if durability != Durability::None && r.percent(15) {
            plan.backlog_bytes_max = *r.pick(&[0, 300, 3_000]);
        }
        plan.is_reader_busy = r.percent(15);
        if r.percent(25) {
            plan.weights[Step::Server as usize] = *r.pick(&[3, 10, 30]);
        }
        plan
    }

    /// Members of a group have queues of their own, too, and leave it with what they have not been sent.
    fn share_queues(&mut self) {
        (self.topics, self.filters) = (2, 2);
        self.is_surely_shared = true;
        self.clients = self.clients.max(3);
        self.config.inflight_max = 1;
        self.weights[Step::Crash as usize] = self.weights[Step::Crash as usize].min(1);
        self.acts[Act::Publish as usize] = 80;
        self.acts[Act::Answer as usize] = 8;
        self.acts[Act::Unsubscribe as usize] = 0;
        self.acts[Act::Cut as usize] = 6;
        self.promptness = 10;
    }

    /// Every second client is in a group, and mostly away, while the others publish to it: the queue of the group is in the journal only,
    /// is given out in many parts, and has been moved before.
    fn leave_to_group(&mut self) {
        (self.topics, self.filters) = (2, 1);
        self.are_members_apart = true;
        self.is_surely_shared = true;
        self.is_limited = false;
        self.clients = self.clients.max(4);
        self.returning = [1, 3, 10][(self.seed / 12 % 3) as usize];
        self.config.group_window = 1 + (self.seed / 36 % 3) as usize;
        self.config.queued_messages_max = 100_000;
        self.log.segment_bytes = 512;
        self.acts[Act::Publish as usize] = 60;
        self.acts[Act::Unsubscribe as usize] = 0;
        self.acts[Act::Cut as usize] = 4;
        if self.durability != Durability::None {
            self.weights[Step::Crash as usize] = 1;
            self.weights[Step::Checkpoint as usize] = 8;
            self.weights[Step::Flush as usize] = 60;
        }
    }

    /// Who leaves stays away, and much is published for it: its queue is in pages, and has been moved before it is read.
    fn lengthen_queues(&mut self, r: &mut Random) {
        self.returning = *r.pick(&[1, 3, 10]);
        self.config.inflight_max = *r.pick(&[1, 2]);
        self.config.page_entries = 2;
        self.config.group_window = 1;
        self.config.queued_messages_max = 100_000;
        self.is_limited = false;
        (self.topics, self.filters) = (1, 1);
        self.log.segment_bytes = 512;
        self.acts[Act::Publish as usize] = 60;
        self.acts[Act::Cut as usize] = r.between(2, 6) as u32;
        if self.durability != Durability::None {
            self.weights[Step::Crash as usize] = 1;
            self.weights[Step::Checkpoint as usize] = *r.pick(&[6, 12]);
            self.weights[Step::Flush as usize] = 60;
        }
    }

    /// When the process ends, much has been read by clients and is not on the disk, or checkpoints have been made of much that nobody has read.
    fn let_wait(&mut self, r: &mut Random) {
        (self.topics, self.filters) = (1, 1);
        self.acts[Act::Publish as usize] = 60;
        if r.percent(50) {
            self.weights[Step::Crash as usize] = 3;
            self.weights[Step::Flush as usize] = 12;
            self.weights[Step::Read as usize] = 60;
        } else {
            self.weights[Step::Crash as usize] = 2;
            self.weights[Step::Checkpoint as usize] = 12;
            self.weights[Step::Flush as usize] = 60;
            self.weights[Step::Read as usize] = 4;
        }
    }
}

/// Segments so small that a run fills many.
fn log_config(r: &mut Random, durability: Durability) -> LogConfig {
    LogConfig {
        policy: match durability {
            Durability::Os => Policy::Os,
            Durability::None | Durability::Fsync => Policy::Fsync,
        },
        segment_bytes: *r.pick(&[512, 2_048, 8_192, 65_536]),
        max_bytes: 1 << 26,
        reserve_bytes: 0,
    }
}

fn step_weights(r: &mut Random, durability: Durability, has_jumps: bool, is_disk_bad: bool) -> [u32; STEPS] {
    let has_journal = durability != Durability::None;
    let journal = |weight: u32| if has_journal { weight } else { 0 };
    let mut weights = [0; STEPS];
    weights[Step::Tick as usize] = r.between(20, 60) as u32;
    weights[Step::Act as usize] = r.between(20, 60) as u32;
    weights[Step::Read as usize] = r.between(15, 50) as u32;
    weights[Step::Pass as usize] = *r.pick(&[1, 2, 5]);
    weights[Step::Crash as usize] = if has_journal {
        *r.pick(&[0, 1, 1, 2])
    } else {
        *r.pick(&[0, 0, 1, 2])
    };
    weights[Step::Audit as usize] = u32::from(r.percent(50));
    weights[Step::Jump as usize] = u32::from(has_jumps);
    weights[Step::Flush as usize] = journal(*r.pick(&[12, 30, 60]));
    weights[Step::Disk as usize] = u32::from(is_disk_bad);
    weights[Step::Checkpoint as usize] = journal(*r.pick(&[0, 2, 6]));
    weights
}

fn act_weights(r: &mut Random) -> [u32; ACTS] {
    let mut acts = [0; ACTS];
    acts[Act::Publish as usize] = r.between(20, 60) as u32;
    acts[Act::Subscribe as usize] = r.between(4, 12) as u32;
    acts[Act::Unsubscribe as usize] = r.between(0, 3) as u32;
    acts[Act::Answer as usize] = r.between(15, 40) as u32;
    acts[Act::Disconnect as usize] = r.between(0, 4) as u32;
    acts[Act::Cut as usize] = r.between(0, 6) as u32;
    acts[Act::TakeOver as usize] = r.between(0, 3) as u32;
    acts[Act::Dawdle as usize] = r.between(0, 3) as u32;
    acts[Act::Ping as usize] = 1;
    acts
}

fn config(r: &mut Random, is_limited: bool) -> ShardConfig {
    use ShareStrategy::{HashClient, HashTopic, LeastInflight, Random as AnyMember, RoundRobin, Sticky};
    let share_strategy = *r.pick(&[RoundRobin, AnyMember, Sticky, HashClient, HashTopic, LeastInflight]);
    let inflight_max = *r.pick(&[1, 2, 16, 128]);
    ShardConfig {
        share_strategy,
        inflight_max,
        // Queues are longest where little is in flight.
        page_entries: if inflight_max <= 2 { 2 } else { 4096 },
        group_window: if inflight_max <= 2 { 1 } else { 512 },
        receive_maximum: *r.pick(&[2, 8, 128]),
        queued_messages_max: if is_limited { r.between(1, 8) as usize } else { 100_000 },
        output_buffer_bytes: *r.pick(&[300, 4_000, 1024 * 1024]),
        topic_alias_maximum_outgoing: *r.pick(&[0, 2, 32]),
        is_qos0_queued: r.percent(10),
        ..ShardConfig::default()
    }
}
