//! Moves the outputs of rules to the buffers of actions, and tracks which outputs publishers wait for.
//!
//! Records are collected per action and appended once per tick. A publisher waits for the actions that received its
//! message, and for the slow rules that evaluate it. A set of such actions and slow rules is a *lane*, and they are its
//! *members*. A receipt consists of a lane and the number of a tick: it is fulfilled when all members of the lane have
//! committed everything up to this tick. An action is tracked (`ActionTrack`) until it has committed its records, even
//! if the current rules no longer use it.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Acquire};

use broker::tap::Receipt;
use connectors::{Action, AppendTicket, Records};
use rules::Map;

use crate::cause::{EventCause, OutputContext};
use crate::output::{OutputLoss, render_diverted, render_record};
use crate::set::LiveAction;

/// Maximum size of the records that the collector holds for an action with a full buffer. Further records are dropped
/// and counted. Only QoS 0 messages, events and messages of the server can reach the limit, because publishers at QoS 1
/// and 2 are held back as soon as the buffer is full.
const OVERFLOW_BYTES_MAX: usize = 4 << 20;

/// Publishers have to wait if more than this size of records waits for an action that is being changed.
const CHANGING_MAX: usize = 1 << 20;

/// How long records of a removed action wait until an action with the same name is created. Then they are dropped.
const REMOVED_MAX_MS: u64 = 30_000;

/// The lane of all members. It is used for further sets when there are `LANES_MAX` lanes.
const EVERYTHING: u16 = 0;

/// Maximum number of lanes.
const LANES_MAX: usize = 1024;

/// Numbers of members: this number plus the number of a slow rule, or the index of a track.
const SLOW_RULES: u32 = 1 << 31;

#[derive(Default)]
pub struct RecordCollector {
    tracks: Vec<ActionTrack>,
    /// Index of the track by index of the action in the current rules.
    by_action: Vec<u32>,
    /// Tracks with records to append, or whose buffer was full at the last check.
    pending_tracks: Vec<u32>,
    lanes: Lanes,
    /// By number of the slow rule: evaluations that publishers wait for, with the tick of their messages.
    evaluations: Vec<VecDeque<(u64, Arc<AtomicBool>)>>,
    /// Numbers of slow rules by their mark.
    slow_rules: HashMap<u32, u32>,
    /// Members that the current message waits for, sorted.
    awaited: Vec<u32>,
    /// Number of completed ticks.
    ticks: u64,
    scratch: Vec<u8>,
    /// Outputs dropped since `take_abandoned`, because their action was disabled or deleted.
    discarded: u64,
}

/// Records of one action that are not appended yet, and appends that are not committed yet. A track survives a change
/// of its action, because the action keeps its disk buffer.
struct ActionTrack {
    id: String,
    action: Arc<Action>,
    free_bytes_min: Option<u64>,
    records: Records,
    /// Records that only the fallback actions receive.
    diverted: Records,
    is_pending: bool,
    is_full: bool,
    /// Uncommitted appends, with the first tick of their records.
    in_flight: VecDeque<(u64, AppendTicket)>,
    /// The first tick in `records`, if a publisher waits for it.
    pending_since: Option<u64>,
    /// False while the action is being changed.
    is_open: bool,
    /// When the action was disabled or deleted, in Unix milliseconds.
    removed_since_ms: Option<u64>,
    discarded: u64,
}

/// The members of each lane, sorted. The first set is empty and stands for all members (`EVERYTHING`).
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

impl RecordCollector {
    /// Replaces the set of actions.
    pub fn set_actions(&mut self, actions: &[LiveAction], unix_ms: u64) {
        let is_idle = self.tracks.iter().all(ActionTrack::is_empty);
        if is_idle && self.oldest_uncommitted(EVERYTHING).is_none() {
            // Nothing is outstanding. `oldest_uncommitted` treats receipts of unknown lanes as fulfilled.
            self.tracks.clear();
            self.pending_tracks.clear();
            self.evaluations.clear();
            self.slow_rules.clear();
            self.lanes = Lanes::default();
        }
        for track in &mut self.tracks {
            track.removed_since_ms.get_or_insert(unix_ms);
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
            self.tracks[index as usize].update(live);
            return index;
        }
        self.tracks.push(ActionTrack {
            id: live.id.clone(),
            action: live.action.clone(),
            free_bytes_min: live.free_bytes_min,
            records: Records::new(),
            diverted: Records::new(),
            is_pending: false,
            is_full: false,
            in_flight: VecDeque::new(),
            pending_since: None,
            is_open: live.is_open,
            removed_since_ms: None,
            discarded: 0,
        });
        self.tracks.len() as u32 - 1
    }

    /// Returns whether publishers for the action have to wait.
    pub fn is_full(&self, action: usize) -> bool {
        self.tracks[self.by_action[action] as usize].is_full
    }

    /// Renders an output and adds it to the records of an action.
    pub fn add(
        &mut self,
        actions: &[LiveAction],
        index: usize,
        output: &Map,
        cause: EventCause<'_>,
        stamp: OutputContext<'_>,
    ) -> Result<(), OutputLoss> {
        let live = &actions[index];
        if live.bridge.has_own_mark(stamp.bridges) {
            return Err(OutputLoss::Loop);
        }
        let at = self.by_action[index];
        let result = match self.tracks[at as usize].is_overflowing(cause) {
            true => Err(OutputLoss::Discarded),
            false => self.render(live, at, output, cause, stamp),
        };
        if result.is_err() && !self.tracks[at as usize].divert(live, output, cause, stamp) {
            return result;
        }
        self.mark_pending(at, live, cause);
        result
    }

    /// Adds a record that the slow lane has rendered. With `is_for_fallbacks`, only the fallback actions receive it.
    pub fn add_rendered(
        &mut self,
        actions: &[LiveAction],
        index: usize,
        records: &mut Records,
        is_for_fallbacks: bool,
        cause: EventCause<'_>,
    ) -> Result<(), OutputLoss> {
        let (live, at) = (&actions[index], self.by_action[index]);
        let track = &mut self.tracks[at as usize];
        let is_discarded = is_for_fallbacks || track.is_overflowing(cause);
        if !is_discarded {
            track.records.append(records);
        } else if !track.divert_rendered(live, records) {
            return Err(OutputLoss::Discarded);
        }
        self.mark_pending(at, live, cause);
        match is_discarded {
            true => Err(OutputLoss::Discarded),
            false => Ok(()),
        }
    }

    /// Schedules the action for the next append.
    fn mark_pending(&mut self, at: u32, live: &LiveAction, cause: EventCause<'_>) {
        let track = &mut self.tracks[at as usize];
        if !std::mem::replace(&mut track.is_pending, true) {
            self.pending_tracks.push(at);
        }
        // Set only after a record was added. Otherwise a publisher would wait for a record that is never appended.
        if cause.delays_acknowledgement && live.is_awaited {
            track.pending_since.get_or_insert(self.ticks + 1);
            self.wait_for(at);
        }
    }

    /// Makes the publisher of the current message wait for the evaluation of a slow rule. The wait ends when the
    /// returned flag is set.
    pub fn await_evaluation(&mut self, mark: u32) -> Arc<AtomicBool> {
        let number = *self.slow_rules.entry(mark).or_insert_with(|| {
            self.evaluations.push(VecDeque::new());
            self.evaluations.len() as u32 - 1
        });
        let is_durable = Arc::new(AtomicBool::new(false));
        self.evaluations[number as usize].push_back((self.ticks + 1, Arc::clone(&is_durable)));
        self.wait_for(SLOW_RULES | number);
        is_durable
    }

    fn wait_for(&mut self, member: u32) {
        if let Err(position) = self.awaited.binary_search(&member) {
            self.awaited.insert(position, member);
        }
    }

    fn render(
        &mut self,
        live: &LiveAction,
        at: u32,
        output: &Map,
        cause: EventCause<'_>,
        stamp: OutputContext<'_>,
    ) -> Result<(), OutputLoss> {
        let records = &mut self.tracks[at as usize].records;
        render_record(records, live, output, cause, stamp, &mut self.scratch)
    }

    /// Returns the receipt of the current message, or `None` if its publisher need not wait.
    pub fn take_receipt(&mut self) -> Option<Receipt> {
        if self.awaited.is_empty() {
            return None;
        }
        let lane = self.lanes.of(&self.awaited);
        self.awaited.clear();
        Some(Receipt::new(lane, self.ticks + 1))
    }

    /// Combines two receipts.
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

    /// Appends records to the buffers with space. Returns whether publishers for any action have to wait.
    pub fn append(&mut self, unix_ms: u64) -> bool {
        let mut is_any_full = false;
        let tracks = &mut self.tracks;
        self.pending_tracks.retain(|&index| {
            let track = &mut tracks[index as usize];
            track.append(unix_ms);
            self.discarded += std::mem::take(&mut track.discarded);
            is_any_full |= track.is_full;
            track.is_pending = track.is_full || !track.is_empty();
            track.is_pending
        });
        is_any_full
    }

    /// Returns and resets the number of dropped outputs: their action was disabled or deleted.
    pub fn take_discarded(&mut self) -> u64 {
        std::mem::take(&mut self.discarded)
    }

    /// Ends a tick and returns its number.
    pub fn end_tick(&mut self) -> u64 {
        self.ticks += 1;
        self.ticks
    }

    /// Returns the tick up to which everything in a lane is committed.
    pub fn committed_tick(&mut self, lane: u16) -> u64 {
        self.oldest_uncommitted(lane).map_or(self.ticks, |tick| tick - 1)
    }

    /// Like [`Self::committed_tick`], for all lanes.
    pub fn committed_tick_of_all(&mut self) -> u64 {
        self.committed_tick(EVERYTHING)
    }

    fn oldest_uncommitted(&mut self, lane: u16) -> Option<u64> {
        match self.lanes.sets.get(usize::from(lane)) {
            Some(set) if !set.is_empty() => {
                let (tracks, evaluations) = (&mut self.tracks, &mut self.evaluations);
                set.iter()
                    .filter_map(|member| match member.checked_sub(SLOW_RULES) {
                        Some(rule) => oldest_evaluation(&mut evaluations[rule as usize]),
                        None => tracks[*member as usize].oldest_uncommitted(),
                    })
                    .min()
            }
            Some(_) => {
                let evaluations = self.evaluations.iter_mut().filter_map(oldest_evaluation);
                let tracks = self.tracks.iter_mut().filter_map(ActionTrack::oldest_uncommitted);
                evaluations.chain(tracks).min()
            }
            // The lane was removed in `set_actions`, when everything was committed.
            None => None,
        }
    }
}

impl ActionTrack {
    fn is_empty(&self) -> bool {
        self.records.is_empty() && self.diverted.is_empty()
    }

    /// Returns whether the limit for outputs without a waiting publisher is reached.
    fn is_overflowing(&self, cause: EventCause<'_>) -> bool {
        self.is_full && !cause.delays_acknowledgement && self.records.len() > OVERFLOW_BYTES_MAX
    }

    /// Passes an output only to the fallback actions. Returns false if there are none or their queue is full.
    fn divert(&mut self, live: &LiveAction, output: &Map, cause: EventCause<'_>, stamp: OutputContext<'_>) -> bool {
        if live.fallbacks.is_empty() {
            return false;
        }
        if self.is_diversion_full() {
            return false;
        }
        render_diverted(&mut self.diverted, live, output, cause, stamp);
        true
    }

    /// Like [`Self::divert`], with a rendered record.
    fn divert_rendered(&mut self, live: &LiveAction, records: &mut Records) -> bool {
        if live.fallbacks.is_empty() || self.is_diversion_full() {
            return false;
        }
        self.diverted.append(records);
        true
    }

    fn is_diversion_full(&self) -> bool {
        let is_full = self.diverted.len() > OVERFLOW_BYTES_MAX;
        if is_full {
            self.action.buffer().count_rejected_diversions(1);
        }
        is_full
    }

    /// Updates the track after a change of the action, which has the same or a new buffer.
    fn update(&mut self, live: &LiveAction) {
        self.removed_since_ms = None;
        self.free_bytes_min = live.free_bytes_min;
        self.is_open = live.is_open;
        if !Arc::ptr_eq(&self.action, &live.action) {
            self.action = live.action.clone();
            let buffer = self.action.buffer();
            // A change of the mode loses the records of a memory buffer, as the end of the process does.
            self.in_flight = std::mem::take(&mut self.in_flight)
                .into_iter()
                .filter_map(|(tick, ticket)| Some((tick, buffer.ticket_of_previous(ticket)?)))
                .collect();
        }
    }

    fn append(&mut self, unix_ms: u64) {
        if let Some(since_ms) = self.removed_since_ms {
            self.is_full = false;
            if unix_ms.saturating_sub(since_ms) >= REMOVED_MAX_MS && !self.is_empty() {
                let (action, records) = (&self.id, self.records.count() + self.diverted.count());
                self.discarded += records as u64;
                tracing::warn!(%action, records, "records of a removed action were dropped; its buffer had no space for them");
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
        let has_space = |bytes| self.records.is_empty() && self.diverted.is_empty() && buffer.has_space_for(bytes);
        let was_full = std::mem::take(&mut self.is_full);
        self.is_full = self.free_bytes_min.is_some_and(|bytes| !has_space(bytes));
        // The buffer has counted records that it refused.
        if self.is_full && !was_full && self.records.is_empty() {
            buffer.count_held_back();
        }
        if let (Some(ticket), true) = (ticket, self.is_empty())
            && let Some(tick) = self.pending_since.take()
        {
            self.in_flight.push_back((tick, ticket));
        }
    }

    fn oldest_uncommitted(&mut self) -> Option<u64> {
        let buffer = self.action.buffer();
        let committed = match self.is_open && self.removed_since_ms.is_none() {
            true => buffer.committed(),
            // This track no longer learns what the target has confirmed, so storage in the buffer is enough.
            false => buffer.stored(),
        };
        while self.in_flight.front().is_some_and(|(_, ticket)| *ticket <= committed) {
            self.in_flight.pop_front();
        }
        self.in_flight.front().map(|(tick, _)| *tick).or(self.pending_since)
    }
}

/// Returns the tick of the oldest message with an unfinished evaluation.
fn oldest_evaluation(evaluations: &mut VecDeque<(u64, Arc<AtomicBool>)>) -> Option<u64> {
    while evaluations
        .front()
        .is_some_and(|(_, is_durable)| is_durable.load(Acquire))
    {
        evaluations.pop_front();
    }
    evaluations.front().map(|(tick, _)| *tick)
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::sync::atomic::{AtomicU32, Ordering};

    use connectors::{ActionBuffer, BufferConfig, QueryMode};

    use super::*;
    use crate::loops::MarkPolicy;

    /// Creates an action with a buffer in its own directory.
    fn action() -> (Arc<Action>, PathBuf) {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let directory = std::env::temp_dir().join(format!("tidewire-collector-{}-{number}", std::process::id()));
        let buffer = ActionBuffer::open(&directory, &BufferConfig::default(), QueryMode::Async, || ());
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
            is_awaited: true,
            free_bytes_min: None,
            is_open,
            bridge: MarkPolicy::default(),
        }
    }

    /// Accepts three outputs for an action that is being changed. Returns the tick that their publisher waits for.
    fn accept(collector: &mut RecordCollector, action: &Arc<Action>) -> u64 {
        let actions: Arc<[LiveAction]> = Arc::new([live(action, false)]);
        collector.set_actions(&actions, 0);
        let cause = EventCause {
            delays_acknowledgement: true,
            ..EventCause::default()
        };
        let stamp = OutputContext {
            unix_ms: 0,
            mark: 0,
            bridges: &[],
        };
        for _ in 0..3 {
            let result = collector.add(&actions, 0, &Map::new(), cause, stamp);
            assert!(result.is_ok());
        }
        assert!(collector.take_receipt().is_some());
        let tick = collector.end_tick();
        collector.append(0);
        assert!(collector.committed_tick_of_all() < tick, "the publisher waits");
        tick
    }

    #[test]
    fn records_for_a_removed_action_are_counted_as_dropped() {
        let mut collector = RecordCollector::default();
        let (action, directory) = action();
        let tick = accept(&mut collector, &action);
        collector.set_actions(&[], 1000);
        collector.append(1000 + REMOVED_MAX_MS - 1);
        assert_eq!(
            (collector.take_discarded(), collector.committed_tick_of_all() < tick),
            (0, true)
        );
        collector.append(1000 + REMOVED_MAX_MS);
        assert_eq!(
            (collector.take_discarded(), collector.committed_tick_of_all()),
            (3, tick)
        );
        assert_eq!(collector.take_discarded(), 0, "once");
        drop((collector, action));
        let _ = std::fs::remove_dir_all(directory);
    }

    #[test]
    fn wait_for_space_is_counted_once() {
        let mut collector = RecordCollector::default();
        let (action, directory) = action();
        let large = LiveAction {
            free_bytes_min: Some(1 << 40),
            ..live(&action, true)
        };
        let actions: Arc<[LiveAction]> = Arc::new([large]);
        collector.set_actions(&actions, 0);
        let stamp = OutputContext {
            unix_ms: 0,
            mark: 0,
            bridges: &[],
        };
        let result = collector.add(&actions, 0, &Map::new(), EventCause::default(), stamp);
        assert!(result.is_ok() && !collector.is_full(0));
        for _ in 0..3 {
            assert!(collector.append(0) && collector.is_full(0));
        }
        assert_eq!(action.stats().publishers_held_back, 1);
        assert!(action.buffer().wait_reason(1 << 40).is_some());
        drop((collector, action));
        let _ = std::fs::remove_dir_all(directory);
    }

    #[test]
    fn a_reenabled_action_receives_its_waiting_records() {
        let mut collector = RecordCollector::default();
        let (action, directory) = action();
        accept(&mut collector, &action);
        collector.set_actions(&[], 1000);
        collector.set_actions(&[live(&action, true)], 20_000);
        collector.append(1000 + REMOVED_MAX_MS);
        assert_eq!(collector.take_discarded(), 0);
        assert_eq!(action.stats().matched, 3);
        drop((collector, action));
        let _ = std::fs::remove_dir_all(directory);
    }
}
