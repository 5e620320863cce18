//! The world: one node, its network and its clients, in one thread on virtual time.
//!
//! Every step is drawn from the seed. After each, the oracle says whether anything happened that must not; at the end all faults
//! stop, everybody comes back and reads everything, and it says whether anything did not happen that must.

mod acts;
mod finish;

use broker::{ClientFilter, DropReason};

use crate::client::{Client, Scene};
use crate::keeper::{Keeper, Temper};
use crate::network::Network;
use crate::node::{Clock, Node, Setup};
use crate::oracle::Oracle;
use crate::plan::{Durability, Plan, STEP_KINDS, Step};
use crate::tap::TapStore;
use crate::trace::Trace;
use crate::worker::Worker;
use storage::model::Random;
use storage::model::{Fault, ModelDisk};

pub struct World {
    plan: Plan,
    random: Random,
    clock: Clock,
    network: Network,
    disk: ModelDisk,
    /// What taps have kept, in all processes.
    tap_store: TapStore,
    node: Option<Node>,
    /// The last one looks only: at what is retained.
    clients: Vec<Client>,
    oracle: Oracle,
    trace: Trace,
    step: usize,
    /// Records that were not given back, by processes before this one.
    rotten: u64,
}

/// How a run ended.
#[derive(Debug)]
pub struct Outcome {
    pub violation: Option<String>,
    pub hash: u64,
    /// The last events, if they were asked for.
    pub lines: Vec<String>,
    pub steps: usize,
}

impl World {
    pub fn new(plan: Plan, trace: Trace) -> World {
        let mut random = Random::new(plan.seed ^ 0x51D0_11A7_E5EE_D000);
        let clock = Clock {
            ms: 1_000,
            unix_offset_ms: 0,
        };
        let everybody = plan.clients + 1;
        let mut world = World {
            // The server publishes, too.
            oracle: Oracle::new(&plan, everybody + 1),
            plan,
            disk: ModelDisk::new(random.split()),
            random,
            clock,
            network: Network::default(),
            tap_store: TapStore::default(),
            node: None,
            clients: (0..everybody).map(Client::new).collect(),
            trace,
            step: 0,
            rotten: 0,
        };
        world.start();
        world
    }

    pub fn run(mut self) -> Outcome {
        self.oracle.now_ms = self.clock.ms;
        while self.step < self.plan.steps && self.oracle.violation.is_none() {
            self.step += 1;
            let kind = STEP_KINDS[self.random.weighted(&self.plan.weights)];
            self.trace.number(kind as u64);
            self.perform(kind);
            self.check_waits();
            self.notice_power_cut();
        }
        if self.oracle.violation.is_none() {
            self.finish();
        }
        Outcome {
            violation: self.oracle.violation.take(),
            hash: self.trace.hash(),
            lines: self.trace.lines(),
            steps: self.step,
        }
    }

    fn perform(&mut self, step: Step) {
        match step {
            Step::Tick if self.random.one_in(2) => {
                (0..usize::from(self.plan.shards)).for_each(|worker| self.tick(worker))
            }
            Step::Tick => {
                let worker = self.random.below(usize::from(self.plan.shards));
                self.tick(worker);
            }
            Step::Act => (0..self.random.between(1, 5)).for_each(|_| self.act()),
            Step::Read => self.read_some(),
            Step::Pass => self.pass(),
            Step::Crash => self.crash(),
            Step::Audit => self.audit(),
            Step::Jump => self.jump(),
            Step::Flush => self.flush(),
            Step::Disk => self.spoil_disk(),
            Step::Checkpoint => {
                if let Some(node) = &mut self.node
                    && let Some(keeper) = &mut node.keeper
                {
                    keeper.begin_checkpoint(node.workers.len(), &mut self.random);
                }
            }
            Step::Tap => self.keep_in_taps(),
            Step::Server => self.publish_as_server(),
        }
    }

    // --- the node ---

    fn tick(&mut self, worker: usize) {
        let Some(node) = &mut self.node else {
            return self.restart();
        };
        let worker = worker % node.workers.len();
        let closed = node.tick(worker, self.clock, &mut self.network);
        for link in closed {
            let client = self.network.links[link].client;
            let is_current = self.clients[client].link == Some(link);
            self.trace.line(|| format!("the node closes link {link} of c{client}"));
            self.oracle.link_closed(client, is_current);
        }
        self.hear_what_is_kept(worker);
        self.check_bounds(worker);
        let keeper = self.node.as_ref().and_then(|node| node.keeper.as_ref());
        self.oracle.has_journal_failed |= keeper.is_some_and(Keeper::has_failed);
        let drops = self.node.as_ref().map(|node| node.stats().drops);
        if let Some(drops) = drops {
            let by_tap = drops[DropReason::BufferFull as usize];
            self.oracle.refused(drops[DropReason::JournalFull as usize] + by_tap);
        }
        let ticked_ms = self.ticked_ms();
        self.oracle.ticked(ticked_ms);
    }

    fn check_bounds(&mut self, worker: usize) {
        let Some(node) = &mut self.node else { return };
        let config = &self.plan.config;
        let rotten = self.rotten + node.keeper.as_ref().map_or(0, |keeper| keeper.rotten);
        let damaged = node.stats().drops[DropReason::Damaged as usize];
        // A record may be that of two entries of every session, also in the next process; without power nothing can be read.
        if damaged > 2 * self.plan.clients as u64 * rotten && self.disk.has_power() {
            let text = format!("{damaged} dropped as damaged, and {rotten} were");
            self.oracle.violated(|| text);
        }
        let worker = &mut node.workers[worker];
        if let Err(text) = worker.accounts.check(&worker.shard, config) {
            self.oracle.violated(|| text);
        }
        let shard = &worker.shard;
        let (clients, _) = shard.clients(&ClientFilter::default(), 0, usize::MAX);
        // What was dropped and is back after a crash may be beyond the limit: it is in the journal already.
        if self.oracle.crashes > 0 && self.plan.durability != Durability::None {
            return;
        }
        let queued_max = config.queued_messages_max;
        // Live messages that wait for retained ones are held besides, within the same limit.
        if let Some(client) = clients.iter().find(|client| client.queued > 2 * queued_max) {
            let text = format!("{queued_max} may be queued: {client:?}");
            self.oracle.violated(|| text);
        }
        // What members give back is not dropped, and twice as much is taken while some of them have space: it goes with the next tick.
        let group_max = (2 * queued_max + usize::from(config.inflight_max)) * (self.plan.clients + 1);
        if let Some(group) = shard
            .shared_groups(usize::MAX)
            .iter()
            .find(|group| group.queued > group_max)
        {
            let text = format!("{group_max} may be queued: {group:?}");
            self.oracle.violated(|| text);
        }
    }

    /// Nobody waits for what the journal has, once the shard knows: if nothing else happened, it would be for ever.
    fn check_waits(&mut self) {
        let Some(node) = &self.node else { return };
        let overdue = |(id, worker): (usize, &Worker)| Some((id, worker.follower.overdue(&worker.shard)?));
        if let Some((id, (end, told))) = node.workers.iter().enumerate().find_map(overdue) {
            self.oracle.violated(|| {
                format!("shard {id} waits for {end}, and knows that the journal has what is before {told}")
            });
        }
    }

    fn ticked_ms(&self) -> u64 {
        self.node.as_ref().map_or(0, Node::ticked_ms)
    }

    fn crash(&mut self) {
        let is_power_cut = self.plan.durability != Durability::Os && self.random.one_in(2);
        self.end_process(is_power_cut);
        if self.random.one_in(2) {
            self.restart();
        }
    }

    fn end_process(&mut self, is_power_cut: bool) {
        let Some(node) = self.node.take() else { return };
        self.trace.line(|| format!("crash, power cut {is_power_cut}"));
        self.oracle.drops += node.stats().drops.iter().sum::<u64>();
        self.rotten += node.keeper.as_ref().map_or(0, |keeper| keeper.rotten);
        drop(node);
        self.disk.heal();
        if is_power_cut {
            self.disk.power_cut();
        }
        self.network.node_gone();
        self.oracle.crashed(is_power_cut);
        // Most notice at once.
        for client in 0..self.clients.len() {
            if self.random.one_in(2) {
                self.with(client, |client, scene| client.read(usize::MAX, scene));
            }
        }
    }

    fn restart(&mut self) {
        if self.node.is_some() {
            return;
        }
        if self.plan.durability != Durability::None && self.random.one_in(3) {
            self.plan.shards = self.random.between(1, 4) as u16;
        }
        if self.plan.is_disk_bad && self.plan.durability != Durability::Os && self.random.one_in(6) {
            // It does not get far.
            self.disk.fail(Fault::PowerCut, self.random.below(8) as u64);
        }
        self.start();
    }

    fn start(&mut self) {
        let shards = self.plan.shards;
        self.trace.line(|| format!("start with {shards} shards"));
        let has_journal = self.plan.durability != Durability::None;
        let setup = Setup {
            shards,
            config: self.plan.config.clone(),
            clock: self.clock,
            seed: self.plan.seed ^ self.clock.ms.rotate_left(32),
            temper: Temper {
                has_rot: self.plan.has_rot,
                is_reader_busy: self.plan.is_reader_busy,
                has_little_room: self.plan.has_little_room,
                backlog_bytes_max: self.plan.backlog_bytes_max,
                replays_all: self.plan.replays_all,
                has_jumps: self.plan.has_jumps,
            },
            has_tap: self.plan.has_tap,
            journal: has_journal.then(|| (&self.disk, self.plan.log.clone())),
        };
        match Node::start(setup, &mut self.random) {
            Ok(node) => {
                self.node = Some(node);
                self.oracle.booted();
            }
            Err(_) if !self.disk.has_power() => self.disk.power_cut(),
            Err(because) => self.oracle.violated(|| format!("the node does not start: {because}")),
        }
    }

    // --- the disk ---

    /// The commit thread's turn.
    fn flush(&mut self) {
        let Some(node) = &mut self.node else { return };
        let Some(keeper) = &mut node.keeper else { return };
        match self.random.below(8) {
            0 if self.plan.durability == Durability::Os => keeper.sync(),
            0..=5 => keeper.flush(),
            // A sync that has ended is noticed late.
            _ => {}
        }
        if self.random.below(4) > 0 {
            keeper.tell();
        }
        if keeper.is_level() {
            self.oracle.kept();
        }
        let committed = keeper.log.committed();
        self.trace.number(committed.0);
        self.trace
            .line(|| format!("the journal has kept what is before {committed}"));
    }

    fn keep_in_taps(&mut self) {
        let Some(node) = &self.node else { return };
        if self.plan.may_tap_be_full && self.random.one_in(8) {
            self.tap_store.is_full = !self.tap_store.is_full;
        }
        for tap in node.taps() {
            tap.keep_some(&mut self.tap_store, &mut self.random);
        }
        let kept = self.tap_store.kept.len();
        self.trace.number(kept as u64);
        self.trace.line(|| format!("taps have kept {kept}"));
    }

    /// A fault of the disk may have been that the power went.
    fn notice_power_cut(&mut self) {
        if !self.disk.has_power() {
            self.end_process(true);
        }
    }

    fn spoil_disk(&mut self) {
        if self.node.is_none() {
            return;
        }
        let calls = self.random.below(4) as u64;
        let fault = match self.random.below(8) {
            0 => return self.disk.heal(),
            1 => Fault::Write,
            2 => Fault::Sync,
            3 | 4 if self.plan.durability != Durability::Os => Fault::PowerCut,
            _ => Fault::NoSpace,
        };
        self.trace
            .line(|| format!("the disk is to fail: {fault:?} in {calls} calls"));
        self.disk.fail(fault, calls);
    }

    // --- time ---

    fn pass(&mut self) {
        let ms = match self.random.below(8) {
            0 => self.random.between(1_000, 20_000),
            1..=3 => self.random.between(20, 1_000),
            _ => self.random.between(1, 20),
        };
        self.wait(ms);
    }

    fn wait(&mut self, ms: u64) {
        self.clock.ms += ms;
        self.oracle.now_ms = self.clock.ms;
        self.trace.number(ms);
        self.trace.line(|| format!("{ms} ms pass, it is {}", self.clock.ms));
    }

    fn jump(&mut self) {
        let by_ms = *self.random.pick(&[-3_600_000, -5_000, -100, 100, 5_000, 3_600_000]);
        self.clock.unix_offset_ms += by_ms;
        self.oracle.jumped(by_ms);
        self.trace.line(|| format!("the wall clock jumps by {by_ms} ms"));
    }

    // --- clients ---

    /// One client or all of them. What they have read was promised: now and then that is when the process ends, if it has not
    /// kept everything.
    fn read_some(&mut self) {
        let has_read = if self.random.one_in(3) {
            (0..self.clients.len()).fold(false, |has_read, client| self.read(client) | has_read)
        } else {
            let client = self.random.below(self.clients.len());
            self.read(client)
        };
        let is_open = self
            .node
            .as_ref()
            .is_some_and(|node| !node.is_level() || !node.is_tap_level());
        let may_crash = self.plan.weights[Step::Crash as usize] > 0;
        if has_read && is_open && may_crash && self.random.one_in(10) {
            self.crash();
        }
    }

    fn read(&mut self, client: usize) -> bool {
        if self.clients[client].is_dawdling {
            return false;
        }
        let limit = match self.random.below(3) {
            0 => 1 + self.random.below(40),
            _ => usize::MAX,
        };
        let has_read = self.with(client, |client, scene| client.read(limit, scene));
        if self.random.percent(self.plan.promptness) {
            self.with(client, |client, scene| while client.answer(scene) {});
        }
        has_read
    }

    /// Lets a client do something in its surroundings.
    fn with<T>(&mut self, client: usize, act: impl FnOnce(&mut Client, &mut Scene<'_>) -> T) -> T {
        let ticked_ms = self.ticked_ms();
        let mut scene = Scene {
            network: &mut self.network,
            oracle: &mut self.oracle,
            trace: &mut self.trace,
            ticked_ms,
        };
        act(&mut self.clients[client], &mut scene)
    }
}
