//! The live tail of a rule: samples of its inputs, outputs and errors, for debugging.
//!
//! Without listeners it costs one relaxed load per message. A listener receives a sample: a limited number of entries
//! per second, with long values truncated. Events are numbered, so that a listener can show how many are missing
//! between two entries.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rules::{EvalError, EvalOutcome, JsonForm, Map, RuleEvent};
use serde::Serialize;
use serde_json::Value;
use tokio::sync::broadcast;

/// Maximum number of entries per second and listener.
pub const PER_SECOND_MAX: u32 = 1000;

/// Maximum number of entries that a listener may lag behind.
const QUEUE: usize = 256;

/// Maximum size of the texts in an entry. Longer texts are truncated and marked with `…`.
const ENTRY_BYTES_MAX: usize = 32 * 1024;

/// One event that a rule has evaluated.
#[derive(Clone, Debug, Serialize)]
pub struct TailEntry {
    #[serde(rename = "at_unix_ms")]
    pub unix_ms: u64,
    pub input: Value,
    /// Empty if the rule has no output.
    pub outputs: Vec<Value>,
    pub error: Option<String>,
    /// Number of evaluated events since the previous entry that are not shown.
    pub omitted: u64,
}

#[derive(Debug)]
pub struct RuleTail {
    /// The highest rate of all listeners; 0 without listeners.
    per_second: AtomicU32,
    rates: Mutex<Vec<u32>>,
    number: AtomicU64,
    second: Mutex<EntryRate>,
    sender: broadcast::Sender<TailNotice>,
}

#[derive(Clone, Debug)]
enum TailNotice {
    Entry { number: u64, entry: Arc<TailEntry> },
    End,
}

impl Default for RuleTail {
    fn default() -> RuleTail {
        RuleTail {
            per_second: AtomicU32::new(0),
            rates: Mutex::default(),
            number: AtomicU64::new(0),
            second: Mutex::default(),
            sender: broadcast::channel(QUEUE).0,
        }
    }
}

/// Limits entries per second.
#[derive(Debug, Default)]
struct EntryRate {
    since: Option<Instant>,
    taken: u32,
}

impl EntryRate {
    fn take(&mut self, per_second: u32, now: Instant) -> bool {
        if self
            .since
            .is_none_or(|since| now.duration_since(since) >= Duration::from_secs(1))
        {
            *self = EntryRate {
                since: Some(now),
                taken: 0,
            };
        }
        self.taken += 1;
        self.taken <= per_second
    }
}

/// A listener of a tail. Dropping it ends it.
pub struct TailListener {
    tail: Arc<RuleTail>,
    per_second: u32,
    budget: EntryRate,
    receiver: broadcast::Receiver<TailNotice>,
    /// The last entry that was shown, or that preceded the listener.
    number: u64,
}

impl Drop for TailListener {
    fn drop(&mut self) {
        self.tail.with_rates(|rates| {
            if let Some(at) = rates.iter().position(|rate| *rate == self.per_second) {
                rates.swap_remove(at);
            }
        });
    }
}

impl TailListener {
    /// Returns the next entry of the sample, or `None` if the rule was deleted.
    pub async fn next(&mut self) -> Option<TailEntry> {
        loop {
            match self.receiver.recv().await {
                Ok(TailNotice::Entry { number, entry }) => {
                    if !self.budget.take(self.per_second, Instant::now()) {
                        continue;
                    }
                    let omitted = number.saturating_sub(self.number + 1);
                    self.number = self.number.max(number);
                    return Some(TailEntry {
                        omitted,
                        ..TailEntry::clone(&entry)
                    });
                }
                Ok(TailNotice::End) | Err(broadcast::error::RecvError::Closed) => return None,
                // The next entry counts the lost entries as left out, because of its number.
                Err(broadcast::error::RecvError::Lagged(_)) => {}
            }
        }
    }
}

impl RuleTail {
    /// Adds a listener with at most `per_second` entries per second.
    pub fn listen(self: &Arc<Self>, per_second: u32) -> TailListener {
        let per_second = per_second.clamp(1, PER_SECOND_MAX);
        let receiver = self.sender.subscribe();
        let number = self.number.load(Ordering::Acquire);
        self.with_rates(|rates| rates.push(per_second));
        TailListener {
            tail: self.clone(),
            per_second,
            budget: EntryRate::default(),
            receiver,
            number,
        }
    }

    fn with_rates(&self, change: impl FnOnce(&mut Vec<u32>)) {
        let mut rates = self.rates.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut rates);
        let highest = rates.iter().copied().max().unwrap_or(0);
        self.per_second.store(highest, Ordering::Relaxed);
    }

    #[inline]
    pub fn has_listeners(&self) -> bool {
        self.per_second.load(Ordering::Relaxed) > 0
    }

    /// Sends an evaluation to the listeners.
    #[inline]
    pub fn show(&self, event: &dyn RuleEvent, outputs: &[Map], result: &Result<EvalOutcome, EvalError>) {
        if self.has_listeners() {
            let error = result.as_ref().err().map(ToString::to_string);
            self.send(event_time(event), || tail_entry(event, outputs, error));
        }
    }

    /// Ends all listeners, because the rule was deleted.
    pub fn end(&self) {
        // An error means that there are no listeners.
        let _ = self.sender.send(TailNotice::End);
    }

    /// Sends an entry if it is in the sample.
    pub fn send(&self, _unix_ms: u64, entry: impl FnOnce() -> TailEntry) {
        let number = self.number.fetch_add(1, Ordering::AcqRel) + 1;
        let per_second = self.per_second.load(Ordering::Relaxed);
        {
            let mut second = self.second.lock().unwrap_or_else(PoisonError::into_inner);
            if !second.take(per_second, Instant::now()) {
                return;
            }
        }
        let mut entry = entry();
        truncate_entry(&mut entry);
        let entry = Arc::new(entry);
        // An error means that the last listener has just ended.
        let _ = self.sender.send(TailNotice::Entry { number, entry });
    }
}

fn event_time(event: &dyn RuleEvent) -> u64 {
    match event.column(rules::Column::Timestamp) {
        rules::Value::Int(unix_ms) => unix_ms as u64,
        _ => 0,
    }
}

fn tail_entry(event: &dyn RuleEvent, outputs: &[Map], error: Option<String>) -> TailEntry {
    let columns = event.kind().columns().map(|column| {
        let value = match column {
            rules::Column::Payload => rules::Value::text(event.payload()),
            column => event.column(column),
        };
        (rules::Text::from(column.name()), value)
    });
    let input = columns
        .filter(|(_, value)| *value != rules::Value::Undefined)
        .collect::<Map>();
    TailEntry {
        unix_ms: event_time(event),
        input: to_json(&input),
        outputs: outputs.iter().map(to_json).collect(),
        error,
        omitted: 0,
    }
}

/// Returns an output as JSON.
pub fn to_json(map: &Map) -> Value {
    let bytes = rules::encode_json(&rules::Value::Map(map.clone()), JsonForm::UndefinedAsString);
    serde_json::from_slice(&bytes).unwrap_or_else(|_| String::from_utf8_lossy(&bytes).into_owned().into())
}

fn truncate_entry(entry: &mut TailEntry) {
    let mut left = ENTRY_BYTES_MAX;
    truncate_value(&mut entry.input, &mut left);
    entry
        .outputs
        .iter_mut()
        .for_each(|output| truncate_value(output, &mut left));
}

/// Subtracts the size of a value from `left`, and truncates the value if it is larger.
fn truncate_value(value: &mut Value, left: &mut usize) {
    match value {
        Value::String(text) if text.len() > *left => {
            let end = (0..=*left).rev().find(|&end| text.is_char_boundary(end)).unwrap_or(0);
            text.truncate(end);
            text.push('…');
            *left = 0;
        }
        Value::String(text) => *left -= text.len(),
        Value::Array(items) => {
            items.truncate(*left / SMALLEST);
            items.iter_mut().for_each(|item| truncate_value(item, left));
        }
        Value::Object(fields) => {
            let surplus: Vec<String> = fields.keys().skip(*left / SMALLEST).cloned().collect();
            surplus.iter().for_each(|name| _ = fields.remove(name));
            fields.values_mut().for_each(|value| truncate_value(value, left));
        }
        _ => *left = left.saturating_sub(SMALLEST),
    }
}

/// Size that a number or an element counts as.
const SMALLEST: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(input: &str) -> TailEntry {
        TailEntry {
            unix_ms: 0,
            input: input.into(),
            outputs: Vec::new(),
            error: None,
            omitted: 0,
        }
    }

    #[tokio::test]
    async fn a_listener_knows_how_many_entries_it_missed() {
        let tail = Arc::new(RuleTail::default());
        assert!(!tail.has_listeners());
        let mut listener = tail.listen(2);
        assert!(tail.has_listeners());
        for number in 0..10 {
            tail.send(0, || entry(&number.to_string()));
        }
        for expected in ["0", "1"] {
            let entry = listener.next().await.expect("an entry");
            assert_eq!((entry.input, entry.omitted), (expected.into(), 0));
        }
        // A listener with a higher rate raises the common rate, but each listener has its own limit.
        let mut other = tail.listen(PER_SECOND_MAX);
        tail.send(0, || entry("10"));
        let shown = other.next().await.expect("an entry");
        assert_eq!((shown.input, shown.omitted), ("10".into(), 0));
        drop((listener, other));
        assert!(!tail.has_listeners());
    }

    #[tokio::test]
    async fn a_slow_listener_loses_entries_and_sees_the_end() {
        let tail = Arc::new(RuleTail::default());
        let mut listener = tail.listen(PER_SECOND_MAX);
        for _ in 0..QUEUE + 5 {
            tail.send(0, || entry("x"));
        }
        let first = listener.next().await.expect("an entry");
        assert_eq!(first.omitted, 5);
        tail.end();
        while let Some(entry) = listener.next().await {
            assert_eq!(entry.omitted, 0);
        }
    }

    #[test]
    fn long_texts_are_truncated() {
        let mut long = entry(&"ü".repeat(ENTRY_BYTES_MAX));
        long.outputs.push(vec!["x"; ENTRY_BYTES_MAX].into());
        truncate_entry(&mut long);
        let text = serde_json::to_string(&long).expect("plain data");
        assert!(
            text.len() < ENTRY_BYTES_MAX + 1000 && text.contains('…'),
            "{}",
            text.len()
        );
    }
}
