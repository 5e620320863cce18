//! The live tail of a rule: what goes in, what comes out, what goes wrong, for whoever debugs it.
//!
//! Nobody listening costs one relaxed load per message. Whoever listens gets a sample: no more than so many a second, cut where it is
//! long. Entries are numbered as they happen, so that a listener knows how many it has not seen, for whatever reason.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::Value;
use tokio::sync::broadcast;

/// Entries a second that a listener can have.
pub const PER_SECOND_MAX: u32 = 1000;

/// That a listener may be behind.
const QUEUE: usize = 256;

/// Bytes of text in the inputs and outputs of an entry; what is beyond is cut and marked with `…`.
const ENTRY_BYTES_MAX: usize = 32 * 1024;

/// One message or event that a rule looked at.
#[derive(Clone, Debug, Serialize)]
pub struct Entry {
    pub unix_ms: u64,
    pub input: Value,
    /// Empty if the rule did not match.
    pub outputs: Vec<Value>,
    pub error: Option<String>,
    /// That the rule has looked at since the entry before, and that are not shown.
    pub left_out: u64,
}

#[derive(Debug)]
pub struct Tail {
    /// The highest rate that a listener wants; 0: there is none.
    per_second: AtomicU32,
    rates: Mutex<Vec<u32>>,
    number: AtomicU64,
    second: Mutex<Budget>,
    sender: broadcast::Sender<Told>,
}

#[derive(Clone, Debug)]
enum Told {
    Entry { number: u64, entry: Arc<Entry> },
    End,
}

impl Default for Tail {
    fn default() -> Tail {
        Tail {
            per_second: AtomicU32::new(0),
            rates: Mutex::default(),
            number: AtomicU64::new(0),
            second: Mutex::default(),
            sender: broadcast::channel(QUEUE).0,
        }
    }
}

/// So many a second, from the beginning of a second on.
#[derive(Debug, Default)]
struct Budget {
    since: Option<Instant>,
    taken: u32,
}

impl Budget {
    fn take(&mut self, per_second: u32, now: Instant) -> bool {
        if self
            .since
            .is_none_or(|since| now.duration_since(since) >= Duration::from_secs(1))
        {
            *self = Budget {
                since: Some(now),
                taken: 0,
            };
        }
        self.taken += 1;
        self.taken <= per_second
    }
}

/// Ends when it is dropped.
pub struct Listener {
    tail: Arc<Tail>,
    per_second: u32,
    budget: Budget,
    receiver: broadcast::Receiver<Told>,
    /// The last entry that was shown, or that was there before.
    number: u64,
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.tail.with_rates(|rates| {
            if let Some(at) = rates.iter().position(|rate| *rate == self.per_second) {
                rates.swap_remove(at);
            }
        });
    }
}

impl Listener {
    /// The next entry of the sample. None: the rule is gone.
    pub async fn next(&mut self) -> Option<Entry> {
        loop {
            match self.receiver.recv().await {
                Ok(Told::Entry { number, entry }) => {
                    if !self.budget.take(self.per_second, Instant::now()) {
                        continue;
                    }
                    let left_out = number.saturating_sub(self.number + 1);
                    self.number = self.number.max(number);
                    return Some(Entry {
                        left_out,
                        ..Entry::clone(&entry)
                    });
                }
                Ok(Told::End) | Err(broadcast::error::RecvError::Closed) => return None,
                // The numbers tell how many.
                Err(broadcast::error::RecvError::Lagged(_)) => {}
            }
        }
    }
}

impl Tail {
    /// `per_second`: how many entries at most.
    pub fn listen(self: &Arc<Self>, per_second: u32) -> Listener {
        let per_second = per_second.clamp(1, PER_SECOND_MAX);
        let receiver = self.sender.subscribe();
        let number = self.number.load(Ordering::Acquire);
        self.with_rates(|rates| rates.push(per_second));
        Listener {
            tail: self.clone(),
            per_second,
            budget: Budget::default(),
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
    pub fn is_heard(&self) -> bool {
        self.per_second.load(Ordering::Relaxed) > 0
    }

    /// The rule is gone.
    pub fn end(&self) {
        // An error: nobody listens.
        let _ = self.sender.send(Told::End);
    }

    /// Tells of one, if it is in the sample.
    pub fn tell(&self, _unix_ms: u64, entry: impl FnOnce() -> Entry) {
        let number = self.number.fetch_add(1, Ordering::AcqRel) + 1;
        let per_second = self.per_second.load(Ordering::Relaxed);
        {
            let mut second = self.second.lock().unwrap_or_else(PoisonError::into_inner);
            if !second.take(per_second, Instant::now()) {
                return;
            }
        }
        let mut entry = entry();
        abridge(&mut entry);
        let entry = Arc::new(entry);
        // An error: the last listener has just gone.
        let _ = self.sender.send(Told::Entry { number, entry });
    }
}

fn abridge(entry: &mut Entry) {
    let mut left = ENTRY_BYTES_MAX;
    cut(&mut entry.input, &mut left);
    entry.outputs.iter_mut().for_each(|output| cut(output, &mut left));
}

/// Takes what a value needs from `left`, and cuts it where there is no more.
fn cut(value: &mut Value, left: &mut usize) {
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
            items.iter_mut().for_each(|item| cut(item, left));
        }
        Value::Object(fields) => {
            let surplus: Vec<String> = fields.keys().skip(*left / SMALLEST).cloned().collect();
            surplus.iter().for_each(|name| _ = fields.remove(name));
            fields.values_mut().for_each(|value| cut(value, left));
        }
        _ => *left = left.saturating_sub(SMALLEST),
    }
}

/// What a number or an element counts as.
const SMALLEST: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(input: &str) -> Entry {
        Entry {
            unix_ms: 0,
            input: input.into(),
            outputs: Vec::new(),
            error: None,
            left_out: 0,
        }
    }

    #[tokio::test]
    async fn a_listener_is_told_how_many_it_has_not_seen() {
        let tail = Arc::new(Tail::default());
        assert!(!tail.is_heard());
        let mut listener = tail.listen(2);
        assert!(tail.is_heard());
        for number in 0..10 {
            tail.tell(0, || entry(&number.to_string()));
        }
        for expected in ["0", "1"] {
            let entry = listener.next().await.expect("an entry");
            assert_eq!((entry.input, entry.left_out), (expected.into(), 0));
        }
        // A listener that wants more lifts the rate for both, and each keeps its own.
        let mut other = tail.listen(PER_SECOND_MAX);
        tail.tell(0, || entry("10"));
        let shown = other.next().await.expect("an entry");
        assert_eq!((shown.input, shown.left_out), ("10".into(), 0));
        drop((listener, other));
        assert!(!tail.is_heard());
    }

    #[tokio::test]
    async fn a_slow_listener_loses_entries_and_the_end_is_told() {
        let tail = Arc::new(Tail::default());
        let mut listener = tail.listen(PER_SECOND_MAX);
        for _ in 0..QUEUE + 5 {
            tail.tell(0, || entry("x"));
        }
        let first = listener.next().await.expect("an entry");
        assert_eq!(first.left_out, 5);
        tail.end();
        while let Some(entry) = listener.next().await {
            assert_eq!(entry.left_out, 0);
        }
    }

    #[test]
    fn long_texts_are_cut() {
        let mut long = entry(&"ü".repeat(ENTRY_BYTES_MAX));
        long.outputs.push(vec!["x"; ENTRY_BYTES_MAX].into());
        abridge(&mut long);
        let text = serde_json::to_string(&long).expect("plain data");
        assert!(
            text.len() < ENTRY_BYTES_MAX + 1000 && text.contains('…'),
            "{}",
            text.len()
        );
    }
}
