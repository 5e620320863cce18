//! From the outputs of rules to the buffers of actions: records gather per action and are appended once per tick; and which
//! of them somebody waits for.
//!
//! A publisher waits for the actions that its own message went to. What is waited for together is a *lane*: an action, or a set
//! of actions that one message went to; its numbers are ticks. Actions are followed (`Track`) also when the rules in force are others
//! by now, until they have kept what they were given.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use broker::tap::Receipt;
use connectors::{Action, Records, Ticket};
use rules::{Map, Missing};

use crate::fallback::{carry, write_fields};
use crate::loops::carry_marks;
use crate::runner::{Cause, hash};
use crate::set::{LiveAction, LiveFallback, RuleSet};

/// Bytes that may wait here for one action whose buffer is full; more is given up and counted. Only QoS 0, events and messages of
/// the server come to that: publishers of QoS 1 and 2 are held back before.
const LEFT_OVER_MAX: usize = 4 << 20;

/// Bytes that wait here for one action that is being changed, before publishers are held back.
const CHANGING_MAX: usize = 1 << 20;

/// How long what an action has had no room for waits for an action of the same name, after that has gone.
const GONE_MAX_MS: u64 = 30_000;

/// The lane of everything: waited for by messages whose set of actions has no lane of its own.
const EVERYTHING: u16 = 0;

/// Sets of actions that have one.
const LANES_MAX: usize = 1024;

#[derive(Default)]
pub struct Handover {
    tracks: Vec<Track>,
    /// By index of action in the set in force.
    by_action: Vec<u32>,
    /// Tracks with something to append, or that were full when last looked at.
    touched: Vec<u32>,
    lanes: Lanes,
    /// Tracks that the message at hand waits for, sorted.
    awaited: Vec<u32>,
    /// Of ticks that have ended.
    ticks: u64,
    scratch: Vec<u8>,
    /// Outputs that nobody takes any more, since this was asked.
    abandoned: u64,
}

/// One action: what it is still to be given, and what it has been given and has not kept. It outlives a change of the action, which
/// has the same buffer on the disk afterwards.
struct Track {
    id: String,
    action: Arc<Action>,
    headroom: Option<u64>,
    records: Records,
    /// What the action is not given, for its fallback actions.
    diverted: Records,
    is_touched: bool,
    is_full: bool,
    /// By the first tick that each has something of.
    in_flight: VecDeque<(u64, Ticket)>,
    /// The first tick of what is in `records`, if somebody waits for it.
    pending_since: Option<u64>,
    /// It is not being changed.
    is_open: bool,
    /// Since when no rule knows the action: it has been disabled or deleted. Unix milliseconds.
    gone_since_ms: Option<u64>,
    abandoned: u64,
}

/// Sets of tracks, sorted; the first one is empty and means all.
struct Lanes {
    sets: Vec<Box<[u32]>>,
    numbers: HashMap<Box<[u32]>, u16, foldhash::fast::RandomState>,
}

impl Default for Lanes {
    fn default() -> Lanes {
        Lanes {
            sets: vec![Box::default()],
            numbers: HashMap::default(),
        }
    }
}

impl Lanes {
    fn of(&mut self, tracks: &[u32]) -> u16 {
        if let Some(lane) = self.numbers.get(tracks) {
            return *lane;
        }
        if tracks.is_empty() || self.sets.len() > LANES_MAX {
            return EVERYTHING;
        }
        let lane = self.sets.len() as u16;
        self.sets.push(tracks.into());
        self.numbers.insert(tracks.into(), lane);
        lane
    }
}

/// Of the outputs of one rule for one event.
#[derive(Clone, Copy, Debug)]
pub struct Stamp<'a> {
    pub unix_ms: u64,
    /// `MadeMessage::mark` of what is made of them.
    pub mark: u64,
    /// Of the bridges that the message has gone through.
    pub bridges: &'a [&'a str],
}

/// Why an output did not reach its action.
pub enum Lost {
    Discarded,
    /// It has gone out there before.
    CameBack,
    OutOfService(String),
    Failed(String),
}

impl Handover {
    /// The actions are these now.
    pub fn renew(&mut self, actions: &[LiveAction], unix_ms: u64) {
        let is_idle = self.tracks.iter().all(Track::is_empty);
        if is_idle && self.oldest_unkept(EVERYTHING).is_none() {
            // Whoever still has a receipt finds that it is kept, whatever its lane is called now.
            self.tracks.clear();
            self.touched.clear();
            self.lanes = Lanes::default();
        }
        for track in &mut self.tracks {
            track.gone_since_ms.get_or_insert(unix_ms);
        }
        let ids = self.tracks.iter().zip(0..);
        let known: HashMap<String, u32> = ids.map(|(track, index)| (track.id.clone(), index)).collect();
        self.by_action.clear();
        for live in actions {
            let track = self.track_of(live, known.get(&live.id).copied());
            self.by_action.push(track);
        }
    }

    fn track_of(&mut self, live: &LiveAction, known: Option<u32>) -> u32 {
        if let Some(index) = known {
            self.tracks[index as usize].go_on(live);
            return index;
        }
        self.tracks.push(Track {
            id: live.id.clone(),
            action: live.action.clone(),
            headroom: live.headroom,
            records: Records::new(),
            diverted: Records::new(),
            is_touched: false,
            is_full: false,
            in_flight: VecDeque::new(),
            pending_since: None,
            is_open: live.is_open,
            gone_since_ms: None,
            abandoned: 0,
        });
        self.tracks.len() as u32 - 1
    }

    /// Whether an action holds publishers back.
    pub fn is_full(&self, action: usize) -> bool {
        self.tracks[self.by_action[action] as usize].is_full
    }

    /// Adds a record for an action, with its templates filled in.
    pub fn record(
        &mut self,
        set: &RuleSet,
        index: usize,
        output: &Map,
        cause: Cause<'_>,
        stamp: Stamp<'_>,
    ) -> Result<(), Lost> {
        let live = &set.actions[index];
        if live.bridge.has_sent(stamp.bridges) {
            return Err(Lost::CameBack);
        }
        let at = self.by_action[index];
        let given = match self.tracks[at as usize].is_overdue(cause) {
            true => Err(Lost::Discarded),
            false => self.give(live, at, output, cause, stamp),
        };
        if given.is_err() && !self.tracks[at as usize].divert(live, output, cause, stamp) {
            return given;
        }
        let track = &mut self.tracks[at as usize];
        if !std::mem::replace(&mut track.is_touched, true) {
            self.touched.push(at);
        }
        // Not before there is something: a publisher would wait for what is never appended.
        if cause.is_waited_for && live.is_kept {
            track.pending_since.get_or_insert(self.ticks + 1);
            if let Err(place) = self.awaited.binary_search(&at) {
                self.awaited.insert(place, at);
            }
        }
        given
    }

    fn give(
        &mut self,
        live: &LiveAction,
        at: u32,
        output: &Map,
        cause: Cause<'_>,
        stamp: Stamp<'_>,
    ) -> Result<(), Lost> {
        let key = match &live.ordering_key {
            None => cause.key,
            Some(template) => {
                self.scratch.clear();
                let rendered = template.render(output, Missing::Empty, &mut self.scratch);
                rendered.map_err(|error| Lost::Failed(error.to_string()))?;
                hash(&self.scratch)
            }
        };
        fill_in(&mut self.tracks[at as usize].records, live, output, stamp, key)
    }

    /// The receipt for what has been recorded of a message that its publisher waits for; none if nothing has to be kept.
    pub fn take_receipt(&mut self) -> Option<Receipt> {
        if self.awaited.is_empty() {
            return None;
        }
        let lane = self.lanes.of(&self.awaited);
        self.awaited.clear();
        Some(Receipt::new(lane, self.ticks + 1))
    }

    /// For both.
    pub fn join(&mut self, one: Receipt, other: Receipt) -> Receipt {
        let number = one.number().max(other.number());
        let of = |receipt: Receipt| self.lanes.sets.get(usize::from(receipt.lane()));
        let lane = match (of(one), of(other)) {
            (Some(one), Some(other)) if !one.is_empty() && !other.is_empty() => {
                let mut both = [&one[..], &other[..]].concat();
                both.sort_unstable();
                both.dedup();
                self.lanes.of(&both)
            }
            _ => EVERYTHING,
        };
        Receipt::new(lane, number)
    }

    /// Appends what there is room for, and looks which actions hold publishers back. True if any does.
    pub fn append(&mut self, unix_ms: u64) -> bool {
        let mut is_any_full = false;
        let tracks = &mut self.tracks;
        self.touched.retain(|&index| {
            let track = &mut tracks[index as usize];
            track.append(unix_ms);
            self.abandoned += std::mem::take(&mut track.abandoned);
            is_any_full |= track.is_full;
            track.is_touched = track.is_full || !track.is_empty();
            track.is_touched
        });
        is_any_full
    }

    /// Outputs that waited for actions that have been disabled or deleted, or whose buffers could not be opened, and that were given up.
    pub fn take_abandoned(&mut self) -> u64 {
        std::mem::take(&mut self.abandoned)
    }

    /// The end of a tick, which is kept when this number is.
    pub fn end_tick(&mut self) -> u64 {
        self.ticks += 1;
        self.ticks
    }

    /// Up to which tick all that is waited for in a lane is kept.
    pub fn kept(&mut self, lane: u16) -> u64 {
        self.oldest_unkept(lane).map_or(self.ticks, |tick| tick - 1)
    }

    /// Of all lanes.
    pub fn kept_by_all(&mut self) -> u64 {
        self.kept(EVERYTHING)
    }

    fn oldest_unkept(&mut self, lane: u16) -> Option<u64> {
        match self.lanes.sets.get(usize::from(lane)) {
            Some(set) if !set.is_empty() => {
                let tracks = &mut self.tracks;
                set.iter()
                    .filter_map(|track| tracks[*track as usize].oldest_unkept())
                    .min()
            }
            Some(_) => self.tracks.iter_mut().filter_map(Track::oldest_unkept).min(),
            // Of before a change of the rules, when all had been kept.
            None => None,
        }
    }
}

impl Track {
    fn is_empty(&self) -> bool {
        self.records.is_empty() && self.diverted.is_empty()
    }

    /// So much waits already that nobody is waited for.
    fn is_overdue(&self, cause: Cause<'_>) -> bool {
        self.is_full && !cause.is_waited_for && self.records.len() > LEFT_OVER_MAX
    }

    /// What the action is not given goes to its fallback actions. False: there are none, or there is no room.
    fn divert(&mut self, live: &LiveAction, output: &Map, cause: Cause<'_>, stamp: Stamp<'_>) -> bool {
        if live.fallbacks.is_empty() {
            return false;
        }
        if self.diverted.len() > LEFT_OVER_MAX {
            self.action.buffer().could_not_divert(1);
            return false;
        }
        self.diverted.write(stamp.unix_ms, cause.key, 0, |_| ());
        if live.fallbacks.iter().any(LiveFallback::is_bridge) {
            carry_marks(&mut self.diverted, stamp.bridges);
        }
        carry(&mut self.diverted, &live.fallbacks, output, stamp);
        true
    }

    /// The action is as this says, and has the buffer that it had, or a new one.
    fn go_on(&mut self, live: &LiveAction) {
        self.gone_since_ms = None;
        self.headroom = live.headroom;
        self.is_open = live.is_open;
        if !Arc::ptr_eq(&self.action, &live.action) {
            self.action = live.action.clone();
            let stored = self.action.buffer().stored();
            // A buffer in memory begins anew: what was in it is lost with the change, as it is with the end of the process.
            self.in_flight.retain(|(_, ticket)| *ticket <= stored);
        }
    }

    fn append(&mut self, unix_ms: u64) {
        if let Some(since_ms) = self.gone_since_ms {
            self.is_full = false;
            if unix_ms.saturating_sub(since_ms) >= GONE_MAX_MS && !self.is_empty() {
                let (action, records) = (&self.id, self.records.count() + self.diverted.count());
                self.abandoned += records as u64;
                tracing::warn!(%action, records, "an action that exists no more does not get what had no room in its buffer");
                self.records.clear();
                self.diverted.clear();
                self.pending_since = None;
            }
            return;
        }
        if !self.is_open {
            self.is_full = self.records.len() > CHANGING_MAX;
            return;
        }
        let buffer = self.action.buffer();
        let mut ticket = None;
        if !self.diverted.is_empty() {
            ticket = buffer.divert(&mut self.diverted).ok();
        }
        if !self.records.is_empty() {
            ticket = buffer.append(&mut self.records).ok().max(ticket);
        }
        let has_room = |bytes| self.records.is_empty() && self.diverted.is_empty() && buffer.has_room_for(bytes);
        self.is_full = self.headroom.is_some_and(|bytes| !has_room(bytes));
        if let (Some(ticket), true) = (ticket, self.is_empty())
            && let Some(tick) = self.pending_since.take()
        {
            self.in_flight.push_back((tick, ticket));
        }
    }

    fn oldest_unkept(&mut self) -> Option<u64> {
        let buffer = self.action.buffer();
        let kept = match self.is_open && self.gone_since_ms.is_none() {
            true => buffer.committed(),
            // Its target confirms nothing more to us.
            false => buffer.stored(),
        };
        while self.in_flight.front().is_some_and(|(_, ticket)| *ticket <= kept) {
            self.in_flight.pop_front();
        }
        self.in_flight.front().map(|(tick, _)| *tick).or(self.pending_since)
    }
}

fn fill_in(records: &mut Records, live: &LiveAction, output: &Map, stamp: Stamp<'_>, key: u64) -> Result<(), Lost> {
    let mut problem = None;
    records.write(stamp.unix_ms, key, live.templates.len(), |writer| {
        problem = write_fields(writer, &live.templates, output);
    });
    if let Some(problem) = problem {
        records.take_back();
        return Err(Lost::Failed(problem.to_string()));
    }
    if live.bridge.is_bridge || live.fallbacks.iter().any(LiveFallback::is_bridge) {
        carry_marks(records, stamp.bridges);
    }
    carry(records, &live.fallbacks, output, stamp);
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::sync::atomic::{AtomicU32, Ordering};

    use connectors::{Buffer, BufferConfig, QueryMode};

    use super::*;
    use crate::loops::Bridge;

    /// With a buffer in a directory of its own.
    fn action() -> (Arc<Action>, PathBuf) {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let directory = std::env::temp_dir().join(format!("tidewire-handover-{}-{number}", std::process::id()));
        let buffer = Buffer::open(&directory, &BufferConfig::default(), QueryMode::Async, || ());
        let buffer = buffer.expect("a directory that can be written to");
        (Arc::new(Action::new("file:a", buffer)), directory)
    }

    fn live(action: &Arc<Action>, is_open: bool) -> LiveAction {
        LiveAction {
            id: "file:a".to_owned(),
            action: action.clone(),
            templates: Vec::new(),
            ordering_key: None,
            fallbacks: Vec::new(),
            is_kept: true,
            headroom: None,
            is_open,
            bridge: Bridge::default(),
        }
    }

    /// Accepts three outputs for an action that is being changed. Returns the tick that their publisher waits for.
    fn accept(handover: &mut Handover, action: &Arc<Action>) -> u64 {
        let actions: Arc<[LiveAction]> = Arc::new([live(action, false)]);
        let set = RuleSet::new(Vec::new(), Arc::clone(&actions));
        handover.renew(&actions, 0);
        let cause = Cause {
            is_waited_for: true,
            ..Cause::default()
        };
        let stamp = Stamp {
            unix_ms: 0,
            mark: 0,
            bridges: &[],
        };
        for _ in 0..3 {
            let given = handover.record(&set, 0, &Map::new(), cause, stamp);
            assert!(given.is_ok());
        }
        assert!(handover.take_receipt().is_some());
        let tick = handover.end_tick();
        handover.append(0);
        assert!(handover.kept_by_all() < tick, "it waits");
        tick
    }

    #[test]
    fn what_an_action_that_is_gone_does_not_get_is_counted() {
        let mut handover = Handover::default();
        let (action, directory) = action();
        let tick = accept(&mut handover, &action);
        handover.renew(&[], 1000);
        handover.append(1000 + GONE_MAX_MS - 1);
        assert_eq!((handover.take_abandoned(), handover.kept_by_all() < tick), (0, true));
        handover.append(1000 + GONE_MAX_MS);
        assert_eq!((handover.take_abandoned(), handover.kept_by_all()), (3, tick));
        assert_eq!(handover.take_abandoned(), 0, "once");
        drop((handover, action));
        let _ = std::fs::remove_dir_all(directory);
    }

    #[test]
    fn an_action_that_is_back_in_time_gets_all() {
        let mut handover = Handover::default();
        let (action, directory) = action();
        accept(&mut handover, &action);
        handover.renew(&[], 1000);
        handover.renew(&[live(&action, true)], 20_000);
        handover.append(1000 + GONE_MAX_MS);
        assert_eq!(handover.take_abandoned(), 0);
        assert_eq!(action.stats().matched, 3);
        drop((handover, action));
        let _ = std::fs::remove_dir_all(directory);
    }
}
