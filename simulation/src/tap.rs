//! A model tap on every shard: it receives all messages, and loses messages that it has not stored when the process
//! ends.
//!
//! It stores messages at its own pace, in two lanes selected by topic, independent of the journal, and is full at
//! times. All acknowledged messages must be in the store. The store never loses anything.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use broker::tap::{Receipt, Tap, TapClient, TapEvent, TapEventMask, TapMessage, TapPublication, TapResult};
use broker::{Now, Shard};

use crate::topics;
use storage::model::Random;

/// Messages that all taps of all processes have stored.
#[derive(Default)]
pub struct TapStore {
    /// Serial numbers in the order of storing.
    pub stored: Vec<u64>,
    /// Messages of the first lane are rejected.
    pub is_full: bool,
}

impl TapStore {
    /// Returns how often each message was stored.
    pub fn counts(&self) -> BTreeMap<u64, usize> {
        let mut counts = BTreeMap::new();
        for serial in &self.stored {
            *counts.entry(*serial).or_default() += 1;
        }
        counts
    }
}

const LANES: usize = 2;
/// Lane of receipts for messages of both lanes.
const JOINED: u16 = LANES as u16;

/// Messages that one tap has received, and how many it has stored. Lost with the process.
#[derive(Default)]
struct SimulatedTapState {
    lanes: [TapLane; LANES],
    joined: Vec<[Receipt; 2]>,
    is_full: bool,
}

#[derive(Default)]
struct TapLane {
    open: VecDeque<Option<u64>>,
    stored_count: u64,
}

/// The world's handle of a shard's tap.
pub struct TapHandle(Arc<Mutex<SimulatedTapState>>);

struct ModelTap(Arc<Mutex<SimulatedTapState>>);

impl TapHandle {
    pub fn of(shard: &mut Shard) -> TapHandle {
        let state = Arc::default();
        shard.set_tap(Box::new(ModelTap(Arc::clone(&state))));
        TapHandle(state)
    }

    pub fn is_durable(&self) -> bool {
        locked(&self.0).lanes.iter().all(|lane| lane.open.is_empty())
    }

    /// Stores some of the received messages.
    pub fn store_some(&self, store: &mut TapStore, random: &mut Random) {
        let mut state = locked(&self.0);
        state.is_full = store.is_full;
        let lane = &mut state.lanes[random.below(LANES)];
        let count = random.below(lane.open.len() + 1);
        lane.store_messages(count, store);
    }

    pub fn store_all(&self, store: &mut TapStore) {
        let mut state = locked(&self.0);
        state.is_full = store.is_full;
        for lane in &mut state.lanes {
            lane.store_messages(lane.open.len(), store);
        }
    }
}

impl TapLane {
    fn store_messages(&mut self, count: usize, store: &mut TapStore) {
        store.stored.extend(self.open.drain(..count).flatten());
        self.stored_count += count as u64;
    }
}

fn locked(state: &Mutex<SimulatedTapState>) -> MutexGuard<'_, SimulatedTapState> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

fn lane_of(topic: &str) -> usize {
    topic.bytes().map(usize::from).sum::<usize>() % LANES
}

impl Tap for ModelTap {
    fn begin_tick(&mut self, _: Now) -> TapEventMask {
        match locked(&self.0).is_full {
            true => TapEventMask::MESSAGES | TapEventMask::CHECK_FULL,
            false => TapEventMask::MESSAGES,
        }
    }

    fn is_full(&mut self, _: Now, message: &TapMessage<'_>) -> bool {
        lane_of(message.topic) == 0
    }

    fn message(&mut self, _: Now, message: &TapMessage<'_>) -> TapResult {
        let lane_index = lane_of(message.topic);
        let lane = &mut locked(&self.0).lanes[lane_index];
        lane.open.push_back(topics::serial_of(message.payload));
        let number = lane.stored_count + lane.open.len() as u64;
        TapResult::AckWhenStored(Receipt::new(lane_index as u16, number))
    }

    fn client_event(&mut self, _: Now, _: TapClient<'_>, _: &TapEvent<'_>) {}

    fn join(&mut self, one: Receipt, other: Receipt) -> Receipt {
        let joined = &mut locked(&self.0).joined;
        joined.push([one, other]);
        Receipt::new(JOINED, joined.len() as u64)
    }

    fn take_publications(&mut self) -> Vec<TapPublication> {
        Vec::new()
    }

    fn end_tick(&mut self) {}

    fn stored_up_to(&mut self, lane: u16) -> u64 {
        let state = locked(&self.0);
        match state.lanes.get(usize::from(lane)) {
            Some(lane) => lane.stored_count,
            None => {
                // A joined receipt may be joined with another one.
                let kept_of = |lane: u16, joined| {
                    state
                        .lanes
                        .get(usize::from(lane))
                        .map_or(joined, |lane| lane.stored_count)
                };
                let mut count = 0;
                for pair in &state.joined {
                    if pair
                        .iter()
                        .any(|receipt| receipt.number() > kept_of(receipt.lane(), count))
                    {
                        break;
                    }
                    count += 1;
                }
                count
            }
        }
    }
}
