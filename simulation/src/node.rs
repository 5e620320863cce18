//! The node: shards in one thread, their mail, their journal, and the connections whose CONNECT is being read.
//!
//! Everything the simulation knows of the broker's and the journal's interface is here, in `worker.rs` and in `keeper.rs`.

use std::sync::Arc;

use broker::durable::record::Position;
use broker::durable::recovery::{Recovered, Recovery};
use broker::durable::restore::{Restored, restore};
use broker::{NodeState, Now, OpenAccess, Shard, ShardConfig, ShardId, Stats};
use journal::inspect::replay_all;
use journal::{Batch, Log, LogConfig, Lsn, ReplayError};
use mqtt::Decoded;

use crate::keeper::{Keeper, Temper};
use crate::network::{ClientEnd, Network, take_piece};
use crate::tap::TapEnd;
use crate::worker::{Letter, Surroundings, Worker};
use storage::model::ModelDisk;
use storage::model::Random;

pub struct Node {
    pub workers: Vec<Worker>,
    pub keeper: Option<Keeper>,
    /// Connections that nobody's shard knows yet, with what was read of their CONNECT.
    handshakes: Vec<(usize, Vec<u8>)>,
    /// The world's time when this process began; its monotonic clock begins at some other number.
    started_ms: u64,
    random: Random,
}

/// The clocks of the world.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    /// True time since the world began.
    pub ms: u64,
    /// What the wall clock is ahead.
    pub unix_offset_ms: i64,
}

/// What a node is started with.
pub struct Setup<'a> {
    pub shards: u16,
    pub config: ShardConfig,
    pub clock: Clock,
    /// Of what the workers draw by themselves.
    pub seed: u64,
    pub temper: Temper,
    pub has_tap: bool,
    /// Of a node that keeps something.
    pub journal: Option<(&'a ModelDisk, LogConfig)>,
}

const UNIX_BEGIN_MS: u64 = 1_700_000_000_000;
/// As in `net`: what was before the process has a time too.
const MONOTONIC_BEGIN_MS: u64 = 1 << 42;

impl Node {
    /// Starts a process, from what the journal has if there is one. The error says why it cannot.
    pub fn start(setup: Setup<'_>, random: &mut Random) -> Result<Node, String> {
        let now = now_at(setup.clock, setup.clock.ms);
        let output_buffer_bytes = setup.config.output_buffer_bytes;
        let mut shards = new_shards(setup.shards, setup.config, now, random);
        let keeper = match setup.journal {
            Some((disk, config)) => {
                let Temper {
                    has_rot,
                    has_jumps,
                    replays_all,
                    ..
                } = setup.temper;
                if replays_all {
                    // A disk that fails here is met again at once.
                    let _ = replay_all(&*disk.storage());
                }
                let (log, restored) = recover(disk, config, &mut shards, now)?;
                // What was rotten when it was to be written once more is gone for good; so is what had expired.
                if restored.damaged > 0 && !has_rot && !(replays_all && has_jumps) {
                    return Err(format!("the journal has lost what it refers to: {restored:?}"));
                }
                Some(Keeper::new(log, setup.temper))
            }
            None => None,
        };
        let has_tap = setup.has_tap;
        let workers = shards.into_iter().enumerate();
        Ok(Node {
            workers: workers
                .map(|(id, shard)| Worker::new(id, setup.shards, shard, output_buffer_bytes, has_tap, setup.seed))
                .collect(),
            keeper,
            handshakes: Vec::new(),
            started_ms: setup.clock.ms,
            random: random.split(),
        })
    }

    pub fn now(&self, clock: Clock) -> Now {
        now_at(clock, self.started_ms)
    }

    /// A client has connected.
    pub fn accept(&mut self, link: usize) {
        self.handshakes.push((link, Vec::new()));
    }

    /// One tick of one worker. Returns the links that it has let go of.
    pub fn tick(&mut self, worker: usize, clock: Clock, network: &mut Network) -> Vec<usize> {
        let mut closed = Vec::new();
        let now = self.now(clock);
        if worker == 0 {
            self.read_handshakes(network, &mut closed);
        }
        let mut surroundings = Surroundings {
            now,
            network,
            random: &mut self.random,
            closed: &mut closed,
            keeper: self.keeper.as_mut(),
        };
        self.workers[worker].begin_tick(&mut surroundings);
        self.workers[worker].append(&mut surroundings);
        for (to, mail) in std::mem::take(&mut self.workers[worker].post) {
            self.workers[to].inbox.push_back(Letter::Mail(mail));
        }
        self.workers[worker].finish_tick(&mut surroundings);
        closed
    }

    /// Up to when every worker has done what was due, on the world's clock.
    pub fn ticked_ms(&self) -> u64 {
        let last = self.workers.iter().map(|w| w.last_tick_ms).min().unwrap_or(0);
        last.saturating_sub(MONOTONIC_BEGIN_MS) + self.started_ms
    }

    pub fn is_busy(&self, clock: Clock) -> bool {
        let now = self.now(clock);
        let is_reading = |keeper: &Keeper| (0..self.workers.len()).any(|worker| keeper.has_fetches(worker));
        self.workers.iter().any(|w| w.is_busy(now)) || self.keeper.as_ref().is_some_and(is_reading)
    }

    /// Everything that was appended is committed, or never will be.
    pub fn is_level(&self) -> bool {
        self.keeper
            .as_ref()
            .is_none_or(|keeper| keeper.is_level() || keeper.has_failed())
    }

    /// The taps have kept everything that they have taken.
    pub fn is_tap_level(&self) -> bool {
        self.taps().all(TapEnd::is_level)
    }

    pub fn taps(&self) -> impl Iterator<Item = &TapEnd> {
        self.workers.iter().filter_map(|worker| worker.tap.as_ref())
    }

    pub fn stats(&self) -> Stats {
        let mut sum = Stats::default();
        for worker in &self.workers {
            sum.add(&worker.shard.stats());
        }
        sum
    }

    fn read_handshakes(&mut self, network: &mut Network, closed: &mut Vec<usize>) {
        for (link_index, mut bytes) in std::mem::take(&mut self.handshakes) {
            let link = &mut network.links[link_index];
            if link.client_end == ClientEnd::Reset {
                link.is_closed_by_node = true;
                closed.push(link_index);
                continue;
            }
            bytes.extend(take_piece(&mut link.to_node, &mut self.random));
            match home(&bytes, self.workers.len() as u16) {
                Some(home) => self.workers[usize::from(home.0)].inbox.push_back(Letter::Arrival {
                    link: link_index,
                    bytes,
                }),
                None => self.handshakes.push((link_index, bytes)),
            }
        }
    }
}

fn new_shards(count: u16, config: ShardConfig, now: Now, random: &mut Random) -> Vec<Shard> {
    let shared = Arc::new(NodeState::new(count, random.next()));
    let config = Arc::new(config);
    let new = |id| {
        Shard::new(
            now,
            ShardId(id),
            count,
            config.clone(),
            Arc::new(OpenAccess),
            shared.clone(),
            random.next(),
        )
    };
    (0..count).map(new).collect()
}

/// Opens the log and fills the shards with what it says.
fn recover(disk: &ModelDisk, config: LogConfig, shards: &mut [Shard], now: Now) -> Result<(Log, Restored), String> {
    let mut recovery = Recovery::new();
    let mut replay = |position: Lsn, bytes: &[u8]| {
        recovery
            .record(Position(position.0), bytes)
            .map_err(|error| ReplayError {
                because: format!("{error}: {:?}", error.source),
            })
    };
    let opened = Log::open(disk.storage(), config, &mut replay, &mut |_, _| {});
    let (mut log, _) = opened.map_err(|error| format!("the journal does not open: {error:?}"))?;
    let restored = fill(&mut log, recovery.finish(), shards, now);
    Ok((log, restored))
}

fn fill(log: &mut Log, recovered: Recovered, shards: &mut [Shard], now: Now) -> Restored {
    for shard in &mut *shards {
        shard.keep_journal(recovered.last_key);
    }
    let reader = log.reader();
    let mut read = |positions: &[Position], each: &mut dyn FnMut(usize, Option<&[u8]>)| {
        let positions: Vec<Lsn> = positions.iter().map(|position| Lsn(position.0)).collect();
        reader.read_many(&positions, |index, record| each(index, record.ok()));
    };
    let mut append = |batch: &mut Batch| {
        let at = log.append(batch);
        (at.base.0, at.end.0)
    };
    restore(now, shards, recovered, &mut read, &mut append)
}

fn now_at(clock: Clock, started_ms: u64) -> Now {
    Now {
        monotonic_ms: clock.ms - started_ms + MONOTONIC_BEGIN_MS,
        unix_ms: (UNIX_BEGIN_MS + clock.ms).saturating_add_signed(clock.unix_offset_ms),
    }
}

/// The shard that a connection goes to, once its CONNECT is there.
fn home(bytes: &[u8], shards: u16) -> Option<ShardId> {
    match mqtt::decode_connect(bytes, 1 << 20) {
        Ok(Decoded::Incomplete { .. }) => None,
        Ok(Decoded::Complete { packet, .. }) => Some(Shard::home(packet.client_id, shards).unwrap_or(ShardId(0))),
        Err(_) => Some(ShardId(0)),
    }
}
