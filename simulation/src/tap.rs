//! A tap on every shard: it takes all messages, and what it has not kept when the process ends is lost.
//!
//! It keeps at its own pace, in two lanes by topic, whatever the journal does, and now and then it is full. What clients were told has to
//! be in the store, which nothing ever takes anything out of.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use broker::tap::{Happening, MadeMessage, Receipt, Tap, TapClient, TapMessage, Tapped, Wants};
use broker::{Now, Shard};

use crate::words;
use storage::model::Random;

/// What all taps of all processes have kept.
#[derive(Default)]
pub struct TapStore {
    /// Serial numbers, in the order in which they were kept.
    pub kept: Vec<u64>,
    /// Nothing more is taken of the first lane.
    pub is_full: bool,
}

impl TapStore {
    /// How often each message is in it.
    pub fn counts(&self) -> BTreeMap<u64, usize> {
        let mut counts = BTreeMap::new();
        for serial in &self.kept {
            *counts.entry(*serial).or_default() += 1;
        }
        counts
    }
}

const LANES: usize = 2;
/// Of receipts for messages of both lanes.
const JOINED: u16 = LANES as u16;

/// What one tap has taken and how much of it is kept; gone with the process.
#[derive(Default)]
struct Book {
    lanes: [Lane; LANES],
    joined: Vec<[Receipt; 2]>,
    is_full: bool,
}

#[derive(Default)]
struct Lane {
    open: VecDeque<Option<u64>>,
    kept: u64,
}

/// The world's side of the tap of one shard.
pub struct TapEnd(Arc<Mutex<Book>>);

struct ModelTap(Arc<Mutex<Book>>);

impl TapEnd {
    pub fn of(shard: &mut Shard) -> TapEnd {
        let book = Arc::default();
        shard.set_tap(Box::new(ModelTap(Arc::clone(&book))));
        TapEnd(book)
    }

    pub fn is_level(&self) -> bool {
        locked(&self.0).lanes.iter().all(|lane| lane.open.is_empty())
    }

    /// Some of what has been taken is kept.
    pub fn keep_some(&self, store: &mut TapStore, random: &mut Random) {
        let mut book = locked(&self.0);
        book.is_full = store.is_full;
        let lane = &mut book.lanes[random.below(LANES)];
        let count = random.below(lane.open.len() + 1);
        lane.keep(count, store);
    }

    pub fn keep_all(&self, store: &mut TapStore) {
        let mut book = locked(&self.0);
        book.is_full = store.is_full;
        for lane in &mut book.lanes {
            lane.keep(lane.open.len(), store);
        }
    }
}

impl Lane {
    fn keep(&mut self, count: usize, store: &mut TapStore) {
        store.kept.extend(self.open.drain(..count).flatten());
        self.kept += count as u64;
    }
}

fn locked(book: &Mutex<Book>) -> MutexGuard<'_, Book> {
    book.lock().unwrap_or_else(PoisonError::into_inner)
}

fn lane_of(topic: &str) -> usize {
    topic.bytes().map(usize::from).sum::<usize>() % LANES
}

impl Tap for ModelTap {
    fn begin_tick(&mut self, _: Now) -> Wants {
        match locked(&self.0).is_full {
            true => Wants::MESSAGES | Wants::TO_BE_ASKED,
            false => Wants::MESSAGES,
        }
    }

    fn is_full(&mut self, _: Now, message: &TapMessage<'_>) -> bool {
        lane_of(message.topic) == 0
    }

    fn message(&mut self, _: Now, message: &TapMessage<'_>) -> Tapped {
        let lane_index = lane_of(message.topic);
        let lane = &mut locked(&self.0).lanes[lane_index];
        lane.open.push_back(words::serial_of(message.payload));
        let number = lane.kept + lane.open.len() as u64;
        Tapped::Kept(Receipt::new(lane_index as u16, number))
    }

    fn happened(&mut self, _: Now, _: TapClient<'_>, _: &Happening<'_>) {}

    fn join(&mut self, one: Receipt, other: Receipt) -> Receipt {
        let joined = &mut locked(&self.0).joined;
        joined.push([one, other]);
        Receipt::new(JOINED, joined.len() as u64)
    }

    fn take_made(&mut self) -> Vec<MadeMessage> {
        Vec::new()
    }

    fn end_tick(&mut self) {}

    fn kept(&mut self, lane: u16) -> u64 {
        let book = locked(&self.0);
        match book.lanes.get(usize::from(lane)) {
            Some(lane) => lane.kept,
            None => {
                // One that has been joined before may be joined with another.
                let kept_of = |lane: u16, joined| book.lanes.get(usize::from(lane)).map_or(joined, |lane| lane.kept);
                let mut count = 0;
                for pair in &book.joined {
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
