//! The world: one node, its network and its clients, in one thread on virtual time.
//!
//! Every step is drawn from the seed. After each step the oracle checks that nothing forbidden has happened. At the end
//! all faults stop, all clients reconnect and read everything, and the oracle checks that nothing is missing.

mod acts;
mod finish;

use broker::{ClientFilter, DropReason, SessionSlot};

use crate::client::{ClientContext, ClientIndex, SimulatedClient};
use crate::network::Network;
use crate::node::{Clock, NodeSetup, SimulatedNode};
use crate::node_journal::{JournalConditions, SimulatedJournal};
use crate::oracle::Oracle;
use crate::plan::{PlannedDurability, STEP_KINDS, SimulationPlan, SimulationStep};
use crate::stats_check::check_owner;
use crate::tap::TapStore;
use crate::trace::Trace;
use crate::worker::SimulatedWorker;
use storage::model::Random;
use storage::model::{DiskFault, ModelDisk};

pub struct World {
    plan: SimulationPlan,
    random: Random,
    clock: Clock,
    network: Network,
    disk: ModelDisk,
    /// Messages stored by the taps of all processes.
    tap_store: TapStore,
    node: Option<SimulatedNode>,
    /// The last client is an observer of retained messages.
    clients: Vec<SimulatedClient>,
    oracle: Oracle,
    trace: Trace,
    step: usize,
    /// Number of records that former processes could not read.
    unreadable: u64,
}

/// Result of a run.
#[derive(Debug)]
pub struct RunOutcome {
    pub violation: Option<String>,
    pub hash: u64,
    /// The last events, if requested.
    pub lines: Vec<String>,
    pub steps: usize,
}

impl World {
    pub fn new(plan: SimulationPlan, trace: Trace) -> World {
        let mut random = Random::new(plan.seed ^ 0x51D0_11A7_E5EE_D000);
        let clock = Clock {
            ms: 1_000,
            unix_offset_ms: 0,
        };
        let everybody = plan.clients + 1;
        let mut world = World {
            // The server also publishes.
            oracle: Oracle::new(&plan, everybody + 1),
            plan,
            disk: ModelDisk::new(random.split()),
            random,
            clock,
            network: Network::default(),
            tap_store: TapStore::default(),
            node: None,
            clients: ClientIndex::first(everybody).map(SimulatedClient::new).collect(),
            trace,
            step: 0,
            unreadable: 0,
        };
        world.start();
        world
    }

    pub fn run(mut self) -> RunOutcome {
        self.oracle.now_ms = self.clock.ms;
        while self.step < self.plan.steps && self.oracle.violation.is_none() {
            self.step += 1;
            let kind = STEP_KINDS[self.random.weighted(&self.plan.weights)];
            self.trace.number(kind as u64);
            self.perform(kind);
            self.check_waits();
            self.detect_power_cut();
        }
        if self.oracle.violation.is_none() {
            self.finish();
        }
        RunOutcome {
            violation: self.oracle.violation.take(),
            hash: self.trace.hash(),
            lines: self.trace.lines(),
            steps: self.step,
        }
    }

    fn perform(&mut self, step: SimulationStep) {
        match step {
            SimulationStep::Tick if self.random.one_in(2) => {
                (0..usize::from(self.plan.shards)).for_each(|worker| self.tick(worker))
            }
            SimulationStep::Tick => {
                let worker = self.random.below(usize::from(self.plan.shards));
                self.tick(worker);
            }
            SimulationStep::Act => (0..self.random.between(1, 5)).for_each(|_| self.act()),
            SimulationStep::Read => self.read_some(),
            SimulationStep::Pass => self.pass(),
            SimulationStep::Crash => self.crash(),
            SimulationStep::Audit => self.audit(),
            SimulationStep::Jump => self.jump(),
            SimulationStep::Flush => self.flush(),
            SimulationStep::Disk => self.inject_disk_fault(),
            SimulationStep::Checkpoint => {
                if let Some(node) = &mut self.node
                    && let Some(journal) = &mut node.journal
                {
                    journal.begin_checkpoint(node.workers.len(), &mut self.random);
                }
            }
            SimulationStep::Tap => self.store_in_taps(),
            SimulationStep::Server => self.publish_as_server(),
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
            let client = self.network.links[link.index()].client;
            let is_current = self.clients[client.index()].link == Some(link);
            self.trace.line(|| format!("the node closes link {link} of c{client}"));
            self.oracle.link_closed(client, is_current);
        }
        self.report_server_messages(worker);
        self.check_bounds(worker);
        let journal = self.node.as_ref().and_then(|node| node.journal.as_ref());
        self.oracle.has_journal_failed |= journal.is_some_and(SimulatedJournal::has_failed);
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
        let unreadable = self.unreadable + node.journal.as_ref().map_or(0, |journal| journal.unreadable);
        let damaged = node.stats().drops[DropReason::Damaged as usize];
        // A record may belong to two entries of every session, also in the next process. Without power nothing is
        // readable.
        if damaged > 2 * self.plan.clients as u64 * unreadable && self.disk.has_power() {
            let text = format!("{damaged} messages dropped as damaged, {unreadable} records were unreadable");
            self.oracle.violated(|| text);
        }
        if worker == 0
            && let Err(text) = check_owner(&node.state, node.workers.iter().map(|worker| &worker.shard))
        {
            self.oracle.violated(|| text);
        }
        let worker = &mut node.workers[worker];
        if let Err(text) = worker.stats_check.check(&worker.shard, config) {
            self.oracle.violated(|| text);
        }
        let shard = &worker.shard;
        let (clients, _) = shard
            .inspect()
            .clients(&ClientFilter::default(), SessionSlot::FIRST, usize::MAX);
        // Dropped messages that a crash restores may exceed the limit, because they are in the journal.
        if self.oracle.crashes > 0 && self.plan.durability != PlannedDurability::None {
            return;
        }
        let queued_max = config.max_queued_messages;
        // Live messages held for retained ones have a separate limit of the same size.
        if let Some(client) = clients.iter().find(|client| client.queued > 2 * queued_max) {
            let text = format!("queue limit {queued_max} exceeded: {client:?}");
            self.oracle.violated(|| text);
        }
        let bytes_max = config.max_queued_bytes;
        if let Some(client) = clients.iter().find(|client| client.queued_bytes / 2 > bytes_max) {
            let text = format!("queue limit of {bytes_max} bytes exceeded: {client:?}");
            self.oracle.violated(|| text);
        }
        // Returned messages are not dropped, and up to twice the limit is accepted while members have space.
        let group_max = (2 * queued_max + usize::from(config.max_inflight)) * (self.plan.clients + 1);
        if let Some(group) = shard
            .inspect()
            .shared_groups(usize::MAX)
            .iter()
            .find(|group| group.queued > group_max)
        {
            let text = format!("group queue limit {group_max} exceeded: {group:?}");
            self.oracle.violated(|| text);
        }
    }

    /// Checks that no shard waits for a commit that it knows of. Without further events it would wait forever.
    fn check_waits(&mut self) {
        let Some(node) = &self.node else { return };
        let overdue =
            |(id, worker): (usize, &SimulatedWorker)| Some((id, worker.worker_journal.overdue(&worker.shard)?));
        if let Some((id, (end, reported))) = node.workers.iter().enumerate().find_map(overdue) {
            self.oracle.violated(|| {
                format!("shard {id} waits for a commit up to {end}, but knows of a commit up to {reported}")
            });
        }
    }

    fn ticked_ms(&self) -> u64 {
        self.node.as_ref().map_or(0, SimulatedNode::ticked_ms)
    }

    fn crash(&mut self) {
        let is_power_cut = self.plan.durability != PlannedDurability::Os && self.random.one_in(2);
        self.end_process(is_power_cut);
        if self.random.one_in(2) {
            self.restart();
        }
    }

    fn end_process(&mut self, is_power_cut: bool) {
        let Some(node) = self.node.take() else { return };
        self.trace.line(|| format!("crash, power cut {is_power_cut}"));
        self.oracle.drops += node.stats().drops.iter().sum::<u64>();
        self.unreadable += node.journal.as_ref().map_or(0, |journal| journal.unreadable);
        drop(node);
        self.disk.clear_faults();
        if is_power_cut {
            self.disk.power_cut();
        }
        self.network.node_ended();
        self.oracle.crashed(is_power_cut);
        // Most clients notice at once.
        for client in ClientIndex::first(self.clients.len()) {
            if self.random.one_in(2) {
                self.with(client, |client, context| client.read(usize::MAX, context));
            }
        }
    }

    fn restart(&mut self) {
        if self.node.is_some() {
            return;
        }
        if self.plan.durability != PlannedDurability::None && self.random.one_in(3) {
            self.plan.shards = self.random.between(1, 4) as u16;
        }
        if self.plan.is_disk_bad && self.plan.durability != PlannedDurability::Os && self.random.one_in(6) {
            // The disk fails soon.
            self.disk.fail(DiskFault::PowerCut, self.random.below(8) as u64);
        }
        self.start();
    }

    fn start(&mut self) {
        let shards = self.plan.shards;
        self.trace.line(|| format!("start with {shards} shards"));
        self.oracle.started();
        let has_journal = self.plan.durability != PlannedDurability::None;
        let setup = NodeSetup {
            shards,
            config: self.plan.config.clone(),
            clock: self.clock,
            seed: self.plan.seed ^ self.clock.ms.rotate_left(32),
            conditions: JournalConditions {
                has_unreadable_records: self.plan.has_unreadable_records,
                is_reader_busy: self.plan.is_reader_busy,
                has_little_space: self.plan.has_little_space,
                backlog_bytes_max: self.plan.backlog_bytes_max,
                replays_all: self.plan.replays_all,
                has_jumps: self.plan.has_jumps,
            },
            has_tap: self.plan.has_tap,
            has_mountpoint: self.plan.has_mountpoint,
            journal: has_journal.then(|| (&self.disk, self.plan.log.clone())),
        };
        match SimulatedNode::start(setup, &mut self.random) {
            Ok(node) => {
                self.node = Some(node);
                self.oracle.booted();
            }
            Err(_) if !self.disk.has_power() => self.disk.power_cut(),
            Err(reason) => self.oracle.violated(|| format!("the node failed to start: {reason}")),
        }
    }

    // --- the disk ---

    /// The commit thread runs.
    fn flush(&mut self) {
        let Some(node) = &mut self.node else { return };
        let Some(journal) = &mut node.journal else { return };
        match self.random.below(8) {
            0 if self.plan.durability == PlannedDurability::Os => journal.sync(),
            0..=5 => journal.flush(),
            // A finished sync is noticed late.
            _ => {}
        }
        if self.random.below(4) > 0 {
            journal.report_commit();
        }
        if journal.is_durable() {
            self.oracle.all_durable();
        }
        let committed = journal.log.committed();
        self.trace.number(committed.0);
        self.trace
            .line(|| format!("the journal is committed up to {committed}"));
    }

    fn store_in_taps(&mut self) {
        let Some(node) = &self.node else { return };
        if self.plan.may_tap_be_full && self.random.one_in(8) {
            self.tap_store.is_full = !self.tap_store.is_full;
        }
        for tap in node.taps() {
            tap.store_some(&mut self.tap_store, &mut self.random);
        }
        let stored = self.tap_store.stored.len();
        self.trace.number(stored as u64);
        self.trace.line(|| format!("taps have stored {stored} messages"));
    }

    /// A disk fault may have been a power cut.
    fn detect_power_cut(&mut self) {
        if !self.disk.has_power() {
            self.end_process(true);
        }
    }

    fn inject_disk_fault(&mut self) {
        if self.node.is_none() {
            return;
        }
        let calls = self.random.below(4) as u64;
        let fault = match self.random.below(8) {
            0 => return self.disk.clear_faults(),
            1 => DiskFault::Write,
            2 => DiskFault::Sync,
            3 | 4 if self.plan.durability != PlannedDurability::Os => DiskFault::PowerCut,
            _ => DiskFault::NoSpace,
        };
        self.trace
            .line(|| format!("the disk will fail: {fault:?} in {calls} calls"));
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

    /// One client or all clients read. The packets that they read are guarantees, so sometimes the process ends then,
    /// if not everything is durable.
    fn read_some(&mut self) {
        let has_read = if self.random.one_in(3) {
            ClientIndex::first(self.clients.len()).fold(false, |has_read, client| self.read(client) | has_read)
        } else {
            let client = ClientIndex(self.random.below(self.clients.len()));
            self.read(client)
        };
        let is_open = self
            .node
            .as_ref()
            .is_some_and(|node| !node.is_durable() || !node.is_tap_durable());
        let may_crash = self.plan.weights[SimulationStep::Crash as usize] > 0;
        if has_read && is_open && may_crash && self.random.one_in(10) {
            self.crash();
        }
    }

    fn read(&mut self, client: ClientIndex) -> bool {
        if self.clients[client.index()].is_not_reading {
            return false;
        }
        let limit = match self.random.below(3) {
            0 => 1 + self.random.below(40),
            _ => usize::MAX,
        };
        let has_read = self.with(client, |client, context| client.read(limit, context));
        if self.random.percent(self.plan.promptness) {
            self.with(client, |client, context| while client.answer(context) {});
        }
        has_read
    }

    /// Runs an action of a client with its context.
    fn with<T>(
        &mut self,
        client: ClientIndex,
        act: impl FnOnce(&mut SimulatedClient, &mut ClientContext<'_>) -> T,
    ) -> T {
        let ticked_ms = self.ticked_ms();
        let mut context = ClientContext {
            network: &mut self.network,
            oracle: &mut self.oracle,
            trace: &mut self.trace,
            ticked_ms,
        };
        act(&mut self.clients[client.index()], &mut context)
    }
}
