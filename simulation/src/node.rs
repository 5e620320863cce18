//! The node: shards in one thread, their mail, their journal, and the connections whose CONNECT has not been read
//! completely.
//!
//! Only this file, `worker.rs`, `mounted_clients.rs` and `node_journal.rs` use the interfaces of the broker and the
//! journal.

use std::sync::Arc;

use broker::durable::record::RecordPosition;
use broker::durable::recovery::{RecoveredState, Recovery};
use broker::durable::restore::{RestoreCounts, restore};
use broker::{NodeState, Now, Shard, ShardConfig, ShardId, ShardStats};
use journal::inspect::replay_all;
use journal::{LogBatch, LogConfig, Lsn, RecordLog, ReplayError};
use mqtt::Decoded;

use crate::mounted_clients::access;
use crate::network::{ClientEnd, LinkIndex, Network, take_chunk};
use crate::node_journal::{JournalConditions, SimulatedJournal};
use crate::tap::TapHandle;
use crate::worker::{InboxItem, SimulatedWorker, TickContext};
use storage::model::ModelDisk;
use storage::model::Random;

pub struct SimulatedNode {
    pub workers: Vec<SimulatedWorker>,
    pub journal: Option<SimulatedJournal>,
    /// Connections that have no shard yet, with the bytes of their CONNECT read so far.
    handshakes: Vec<(LinkIndex, Vec<u8>)>,
    /// State that the shards share.
    pub state: Arc<NodeState>,
    /// World time at the start of this process. Its monotonic clock starts at another number.
    started_ms: u64,
    /// Time of the journal at the start.
    journal_start_ms: u64,
    random: Random,
}

/// The clocks of the world.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    /// True time since the world began.
    pub ms: u64,
    /// Difference of the wall clock to true time.
    pub unix_offset_ms: i64,
}

/// Parameters of a start.
pub struct NodeSetup<'a> {
    pub shards: u16,
    pub config: ShardConfig,
    pub clock: Clock,
    /// Seed of the workers' own random choices.
    pub seed: u64,
    pub conditions: JournalConditions,
    pub has_tap: bool,
    /// Clients have a mountpoint.
    pub has_mountpoint: bool,
    /// `None` without durability.
    pub journal: Option<(&'a ModelDisk, LogConfig)>,
}

const UNIX_BEGIN_MS: u64 = 1_700_000_000_000;
/// As in `net`: times before the start of the process can be expressed.
const MONOTONIC_BEGIN_MS: u64 = 1 << 42;

impl SimulatedNode {
    /// Starts a process, restoring its state from the journal if there is one. The error says why it cannot start.
    pub fn start(setup: NodeSetup<'_>, random: &mut Random) -> Result<SimulatedNode, String> {
        let mut now = now_at(setup.clock, setup.clock.ms, unix_ms(setup.clock));
        let output_buffer_bytes = setup.config.output_buffer_bytes;
        let state = Arc::new(NodeState::new(setup.shards, random.next()));
        let mut shards = new_shards(&setup, &state, now, random);
        let journal = match setup.journal {
            Some((disk, config)) => {
                let JournalConditions {
                    has_unreadable_records,
                    has_jumps,
                    replays_all,
                    ..
                } = setup.conditions;
                if replays_all {
                    // A disk failure here occurs again in `recover`.
                    let _ = replay_all(&*disk.storage());
                }
                let (log, restored) = recover(disk, config, &mut shards, &mut now)?;
                // Messages whose unreadable records were moved are lost, as are expired ones.
                if restored.damaged > 0 && !has_unreadable_records && !(replays_all && has_jumps) {
                    return Err(format!("the journal has lost messages that it refers to: {restored:?}"));
                }
                Some(SimulatedJournal::new(log, setup.conditions))
            }
            None => None,
        };
        let has_tap = setup.has_tap;
        let workers = shards.into_iter().enumerate();
        Ok(SimulatedNode {
            workers: workers
                .map(|(id, shard)| {
                    SimulatedWorker::new(id, setup.shards, shard, output_buffer_bytes, has_tap, setup.seed)
                })
                .collect(),
            journal,
            handshakes: Vec::new(),
            state,
            started_ms: setup.clock.ms,
            journal_start_ms: now.journal_ms,
            random: random.split(),
        })
    }

    pub fn now(&self, clock: Clock) -> Now {
        now_at(clock, self.started_ms, self.journal_start_ms)
    }

    /// A client has connected.
    pub fn accept(&mut self, link: LinkIndex) {
        self.handshakes.push((link, Vec::new()));
    }

    /// Runs one tick of one worker. Returns the links that it has closed.
    pub fn tick(&mut self, worker: usize, clock: Clock, network: &mut Network) -> Vec<LinkIndex> {
        let mut closed = Vec::new();
        let now = self.now(clock);
        if worker == 0 {
            self.read_handshakes(network, &mut closed);
        }
        let mut surroundings = TickContext {
            now,
            network,
            random: &mut self.random,
            closed: &mut closed,
            journal: self.journal.as_mut(),
        };
        self.workers[worker].begin_tick(&mut surroundings);
        self.workers[worker].append(&mut surroundings);
        for (to, mail) in std::mem::take(&mut self.workers[worker].outgoing_mail) {
            self.workers[to].inbox.push_back(InboxItem::Mail(mail));
        }
        self.workers[worker].finish_tick(&mut surroundings);
        closed
    }

    /// Returns the world time up to which every worker has handled all due timers.
    pub fn ticked_ms(&self) -> u64 {
        let last = self.workers.iter().map(|w| w.last_tick_ms).min().unwrap_or(0);
        last.saturating_sub(MONOTONIC_BEGIN_MS) + self.started_ms
    }

    pub fn is_busy(&self, clock: Clock) -> bool {
        let now = self.now(clock);
        let is_reading = |journal: &SimulatedJournal| (0..self.workers.len()).any(|worker| journal.has_fetches(worker));
        self.workers.iter().any(|w| w.is_busy(now)) || self.journal.as_ref().is_some_and(is_reading)
    }

    /// Returns whether everything that was appended is committed, or the journal has failed.
    pub fn is_durable(&self) -> bool {
        self.journal
            .as_ref()
            .is_none_or(|journal| journal.is_durable() || journal.has_failed())
    }

    /// Returns whether the taps have stored all messages that they received.
    pub fn is_tap_durable(&self) -> bool {
        self.taps().all(TapHandle::is_durable)
    }

    pub fn taps(&self) -> impl Iterator<Item = &TapHandle> {
        self.workers.iter().filter_map(|worker| worker.tap.as_ref())
    }

    pub fn stats(&self) -> ShardStats {
        let mut sum = ShardStats::default();
        for worker in &self.workers {
            sum.add(&worker.shard.inspect().stats());
        }
        sum
    }

    fn read_handshakes(&mut self, network: &mut Network, closed: &mut Vec<LinkIndex>) {
        for (index, mut bytes) in std::mem::take(&mut self.handshakes) {
            let link = &mut network.links[index.index()];
            if link.client_end == ClientEnd::Reset {
                link.is_closed_by_node = true;
                closed.push(index);
                continue;
            }
            bytes.extend(take_chunk(&mut link.to_node, &mut self.random));
            match home(&bytes, self.workers.len() as u16) {
                Some(home) => self.workers[usize::from(home.0)]
                    .inbox
                    .push_back(InboxItem::Arrival { link: index, bytes }),
                None => self.handshakes.push((index, bytes)),
            }
        }
    }
}

fn new_shards(setup: &NodeSetup<'_>, state: &Arc<NodeState>, now: Now, random: &mut Random) -> Vec<Shard> {
    let config = Arc::new(setup.config.clone());
    let access = access(setup.has_mountpoint);
    let new = |id| {
        Shard::new(
            now,
            ShardId(id),
            config.clone(),
            access.clone(),
            state.clone(),
            random.next(),
        )
    };
    (0..setup.shards).map(new).collect()
}

/// Opens the log and restores the shards from it.
fn recover(
    disk: &ModelDisk,
    config: LogConfig,
    shards: &mut [Shard],
    now: &mut Now,
) -> Result<(RecordLog, RestoreCounts), String> {
    let mut recovery = Recovery::new();
    let mut replay = |position: Lsn, bytes: &[u8]| {
        recovery
            .record(RecordPosition(position.0), bytes)
            .map_err(|error| ReplayError {
                reason: format!("{error}: {:?}", error.source),
            })
    };
    let opened = RecordLog::open(disk.storage(), config, &mut replay, &mut |_, _| {});
    let (mut log, _) = opened.map_err(|error| format!("opening the journal failed: {error:?}"))?;
    let recovered = recovery.finish();
    now.journal_ms = recovered.journal_ms_at_start(now.unix_ms);
    let restored = fill(&mut log, recovered, shards, *now);
    Ok((log, restored))
}

fn fill(log: &mut RecordLog, recovered: RecoveredState, shards: &mut [Shard], now: Now) -> RestoreCounts {
    for shard in &mut *shards {
        shard.start_journaling(recovered.last_key);
    }
    let reader = log.reader();
    let mut read = |positions: &[RecordPosition], each: &mut dyn FnMut(usize, Option<&[u8]>)| {
        let positions: Vec<Lsn> = positions.iter().map(|position| Lsn(position.0)).collect();
        reader.read_many(&positions, |index, record| each(index, record.ok()));
    };
    let mut append = |batch: &mut LogBatch| {
        let at = log.append(batch);
        (at.base.0, at.end.0)
    };
    restore(now, shards, recovered, &mut read, &mut append)
}

fn now_at(clock: Clock, started_ms: u64, journal_start_ms: u64) -> Now {
    let since_start_ms = clock.ms - started_ms;
    Now {
        monotonic_ms: since_start_ms + MONOTONIC_BEGIN_MS,
        unix_ms: unix_ms(clock),
        journal_ms: journal_start_ms + since_start_ms,
    }
}

fn unix_ms(clock: Clock) -> u64 {
    (UNIX_BEGIN_MS + clock.ms).saturating_add_signed(clock.unix_offset_ms)
}

/// Returns the shard of a connection once its CONNECT is complete.
fn home(bytes: &[u8], shards: u16) -> Option<ShardId> {
    match mqtt::decode_connect(bytes, 1 << 20) {
        Ok(Decoded::Incomplete { .. }) => None,
        Ok(Decoded::Complete { packet, .. }) => {
            Some(broker::home_shard(packet.client_id, shards).unwrap_or(ShardId(0)))
        }
        Err(_) => Some(ShardId(0)),
    }
}
