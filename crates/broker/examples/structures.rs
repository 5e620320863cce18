//! Measures the data structures of the shard: bytes and nanoseconds per element at a thousand and a million elements.
//!
//! `cargo run --release -p tidewire-broker --example structures`. "bytes" is the memory requested from the allocator,
//! "malloc" the memory that glibc uses for it (8 bytes of header, rounded up to 16, at least 32), both after insertion
//! in random order. Times are CPU times, averaged over all elements in another random order, with topics read from a
//! packed buffer.

#![allow(unsafe_code)]
#![allow(clippy::print_stdout)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::hint::black_box;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Instant;

use tidewire_broker::interest::{Interest, InterestCounts};
use tidewire_broker::retained::{RetainedLimits, RetainedStore, ScanBudget};
use tidewire_broker::subscriptions::{SubscriberKey, SubscriptionTree};
use tidewire_broker::timer::TimerWheel;

const MILLION: usize = 1_000_000;

struct Counting;

static ASKED: AtomicUsize = AtomicUsize::new(0);
static TAKEN: AtomicUsize = AtomicUsize::new(0);

fn malloc_bytes(bytes: usize) -> usize {
    (bytes + 8).next_multiple_of(16).max(32)
}

// SAFETY: every call is forwarded to the system allocator unchanged; counting does not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ASKED.fetch_add(layout.size(), Relaxed);
        TAKEN.fetch_add(malloc_bytes(layout.size()), Relaxed);
        // SAFETY: the caller upholds the contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        ASKED.fetch_sub(layout.size(), Relaxed);
        TAKEN.fetch_sub(malloc_bytes(layout.size()), Relaxed);
        // SAFETY: the caller upholds the contract.
        unsafe { System.dealloc(block, layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        ASKED.fetch_add(bytes.wrapping_sub(layout.size()), Relaxed);
        TAKEN.fetch_add(malloc_bytes(bytes).wrapping_sub(malloc_bytes(layout.size())), Relaxed);
        // SAFETY: the caller upholds the contract.
        unsafe { System.realloc(block, layout, bytes) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Texts of the numbers below `count`, in random order, consecutive in memory.
struct Texts {
    text: String,
    ends: Vec<usize>,
}

impl Texts {
    fn new(count: usize, seed: u64, write: impl Fn(usize) -> String) -> Self {
        let mut texts = Self {
            text: String::new(),
            ends: Vec::with_capacity(count),
        };
        for n in shuffled(count, seed) {
            texts.text.push_str(&write(n));
            texts.ends.push(texts.text.len());
        }
        texts
    }

    fn iter(&self) -> impl Iterator<Item = &str> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(start, &end)| &self.text[start..end])
    }

    fn len(&self) -> usize {
        self.ends.len()
    }
}

fn shuffled(count: usize, mut seed: u64) -> Vec<usize> {
    let mut numbers: Vec<usize> = (0..count).collect();
    for n in (1..count).rev() {
        numbers.swap(n, random(&mut seed) as usize % (n + 1));
    }
    numbers
}

/// splitmix64
fn random(seed: &mut u64) -> u64 {
    *seed = seed.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mixed = (*seed ^ (*seed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}

/// Returns nanoseconds per element. Repeats `work` for at least a tenth of a second.
fn repeated(elements: usize, mut work: impl FnMut()) -> f64 {
    let (start, start_ns, mut rounds) = (Instant::now(), running_ns(), 0);
    while start.elapsed().as_millis() < 100 {
        work();
        rounds += 1;
    }
    (running_ns() - start_ns) as f64 / (rounds * elements) as f64
}

fn once(elements: usize, work: impl FnOnce()) -> f64 {
    let start_ns = running_ns();
    work();
    (running_ns() - start_ns) as f64 / elements as f64
}

/// Returns the CPU time of this thread, which other load affects less than the wall clock.
fn running_ns() -> u64 {
    std::thread::yield_now();
    let schedstat = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux");
    schedstat
        .split(' ')
        .next()
        .and_then(|ns| ns.parse().ok())
        .expect("the file starts with nanoseconds")
}

fn memory() -> (usize, usize) {
    (ASKED.load(Relaxed), TAKEN.load(Relaxed))
}

/// Returns the growth in bytes per element since `before`.
fn grown(before: (usize, usize), elements: usize) -> (f64, f64) {
    let (asked, taken) = memory();
    let each = |now: usize, before: usize| (now - before) as f64 / elements as f64;
    (each(asked, before.0), each(taken, before.1))
}

fn main() {
    println!("subscriptions                              bytes malloc insert    hit   miss remove  left(KB)");
    for count in [1000, MILLION] {
        let filter = |n: usize| format!("sensors/{n}/temperature");
        subscriptions("sensors/<n>/temperature", count, filter, filter, |n| {
            format!("sensors/{n}/humidity")
        });
    }
    for count in [1000, MILLION] {
        let topic = |n: usize| format!("europe/ua/kyiv/{n}/7");
        subscriptions(
            "europe/ua/kyiv/<n>/+",
            count,
            |n| format!("europe/ua/kyiv/{n}/+"),
            topic,
            |n| format!("europe/ua/kyiv/{n}/7/8"),
        );
    }
    for count in [1000, MILLION] {
        let topic = |n: usize| format!("tenant/{}/device/{}/up", n / 1000, n % 1000);
        subscriptions(
            "tenant/<n>/device/<n>/#",
            count,
            |n| format!("tenant/{}/device/{}/#", n / 1000, n % 1000),
            topic,
            |n| format!("tenant/{}/gateway/{}/up", n / 1000, n % 1000),
        );
    }
    plus_everywhere();
    fan_out();
    retained();
    timers();
    interest();
}

fn subscriptions(
    name: &str,
    count: usize,
    filter: impl Fn(usize) -> String,
    hit: impl Fn(usize) -> String,
    miss: impl Fn(usize) -> String,
) {
    let filters = Texts::new(count, 1, &filter);
    let (hits, misses, removals) = (
        Texts::new(count, 2, hit),
        Texts::new(count, 3, miss),
        Texts::new(count, 4, &filter),
    );
    let before = memory();
    let mut tree = SubscriptionTree::<[u32; 2]>::new();
    let insert = once(count, || {
        for (key, filter) in filters.iter().enumerate() {
            tree.insert(filter, SubscriberKey(key as u32), [1, 2]);
        }
    });
    let (bytes, malloc) = grown(before, count);
    let mut lists = Vec::new();
    let mut found = 0;
    let mut matching = |topics: &Texts| {
        repeated(topics.len(), || {
            for topic in topics.iter() {
                lists.clear();
                tree.matching(black_box(topic), &mut lists);
                found += lists.iter().map(|&list| tree.entries(list).len()).sum::<usize>();
            }
        })
    };
    let (hit, miss) = (matching(&hits), matching(&misses));
    assert!(found >= count);
    let keys: std::collections::HashMap<&str, SubscriberKey> = filters.iter().zip((0..).map(SubscriberKey)).collect();
    let keys: Vec<SubscriberKey> = removals.iter().map(|filter| keys[filter]).collect();
    let remove = once(count, || {
        for (filter, &key) in removals.iter().zip(&keys) {
            tree.remove(filter, key).expect("was inserted");
        }
    });
    drop(keys);
    let left = tree_bytes(tree);
    println!(
        "{name:30} {count:>10} {bytes:7.1} {malloc:6.1} {insert:6.0} {hit:6.0} {miss:6.0} {remove:6.0} {:8}",
        left / 1024
    );
}

/// Returns the memory of a tree after all entries have been removed.
fn tree_bytes(tree: SubscriptionTree<[u32; 2]>) -> usize {
    let with = ASKED.load(Relaxed);
    drop(tree);
    with - ASKED.load(Relaxed)
}

fn plus_everywhere() {
    let mut tree = SubscriptionTree::<[u32; 2]>::new();
    let masked = |mask: u32| {
        let level = |at: u32| {
            if mask >> at & 1 == 1 {
                "+".to_owned()
            } else {
                format!("l{at}")
            }
        };
        (0..11).map(level).collect::<Vec<_>>().join("/")
    };
    for mask in 0..2048 {
        tree.insert(&masked(mask), SubscriberKey(mask), [0; 2]);
    }
    let (topic, mut lists) = (masked(0), Vec::new());
    let each = repeated(1, || {
        lists.clear();
        tree.matching(black_box(&topic), &mut lists);
    });
    println!(
        "2048 filters, + at any of 11 levels: one topic matches all in {:.1} us",
        each / 1000.0
    );
}

fn fan_out() {
    let before = memory();
    let mut tree = SubscriptionTree::<[u32; 2]>::new();
    let keys = shuffled(100_000, 5);
    let insert = once(keys.len(), || {
        for &key in &keys {
            tree.insert("fan/out", SubscriberKey(key as u32), [0; 2]);
        }
    });
    let (bytes, malloc) = grown(before, keys.len());
    let keys = shuffled(100_000, 6);
    let remove = once(keys.len(), || {
        for &key in &keys {
            tree.remove("fan/out", SubscriberKey(key as u32)).expect("was inserted");
        }
    });
    println!(
        "100,000 keys of one filter: {bytes:.1} bytes ({malloc:.1} malloc), insert {insert:.0} ns, remove {remove:.0} ns"
    );
}

fn retained() {
    println!("\nretained, 8-byte values                    bytes malloc    set replace    get remove  left(KB)");
    for count in [1000, MILLION] {
        retained_topics("sensors/<n>/temperature", count, |n| format!("sensors/{n}/temperature"));
    }
    retained_topics("site/<n>/device/<n>", MILLION, |n| {
        format!("site/{}/device/{}", n / 1000, n % 1000)
    });
}

fn retained_topics(name: &str, count: usize, topic: impl Fn(usize) -> String) {
    let (topics, others) = (Texts::new(count, 1, &topic), Texts::new(count, 2, &topic));
    let before = memory();
    let mut store = RetainedStore::new(RetainedLimits {
        count_max: count,
        bytes_max: u64::MAX,
    });
    let mut set_all = |topics: &Texts, value: u64| {
        for topic in topics.iter() {
            store.set(topic, value, 100, None).expect("within the limits");
        }
    };
    let set = once(count, || set_all(&topics, 1));
    let (bytes, malloc) = grown(before, count);
    let replace = repeated(count, || set_all(&others, 2));
    let mut sum = 0;
    let get = repeated(count, || {
        sum = others
            .iter()
            .map(|topic| store.get(topic, 0).expect("was set"))
            .sum::<u64>()
    });
    assert_eq!(sum, 2 * count as u64);
    let filters = [
        "#",
        "sensors/+/temperature",
        "sensors/+/humidity",
        "site/+/device/7",
        "site/7/#",
        "site/+/nothing",
    ];
    filters.iter().for_each(|filter| scan(&store, filter));
    let remove = once(count, || {
        others.iter().for_each(|topic| assert!(store.remove(topic).is_some()))
    });
    let with = ASKED.load(Relaxed);
    drop(store);
    let left = with - ASKED.load(Relaxed);
    println!(
        "{name:30} {count:>10} {bytes:7.1} {malloc:6.1} {set:6.0} {replace:7.0} {get:6.0} {remove:6.0} {:9}",
        left / 1024
    );
}

fn scan(store: &RetainedStore<u64>, filter: &str) {
    let budget = ScanBudget {
        matches_max: usize::MAX,
        steps_max: usize::MAX,
    };
    let mut matches = 0usize;
    let time = once(1, || {
        assert!(
            store
                .scan(filter, None, 0, budget, |topic, _| matches += topic.len().min(1))
                .is_none()
        )
    });
    println!("    {filter:24} {matches:8} matches in {:10.1} us", time / 1000.0);
}

fn timers() {
    let before = memory();
    let mut wheel = TimerWheel::<u64>::new(0);
    let mut seed = 1;
    let deadlines: Vec<u64> = (0..MILLION).map(|_| random(&mut seed) % 3_600_000).collect();
    let own = MILLION * 8;
    let insert = once(MILLION, || {
        deadlines.iter().for_each(|&deadline| wheel.insert(deadline, deadline))
    });
    let (bytes, malloc) = grown((before.0 + own, before.1 + own), MILLION);
    let mut fired = Vec::with_capacity(MILLION);
    let advance = once(MILLION, || {
        (0..=36_001).for_each(|step| wheel.advance(step * 100, &mut fired))
    });
    assert!(fired.len() == MILLION && wheel.is_empty());
    println!(
        "\ntimers, 8-byte values, 1,000,000 within an hour: {bytes:.1} bytes ({malloc:.1} malloc), insert {insert:.0} ns, fire {advance:.0} ns"
    );
}

fn interest() {
    let topics = Texts::new(100_000, 1, |n| format!("sensors/{n}/temperature"));
    let interest = Interest::new(2, 1);
    let mut counts = InterestCounts::new(1);
    let mask = |interest: &Interest| {
        repeated(topics.len(), || {
            topics
                .iter()
                .map(|topic| interest.mask(topic))
                .for_each(|mask| assert!(mask < 4))
        })
    };
    let empty = mask(&interest);
    let add = once(topics.len(), || {
        topics.iter().for_each(|topic| counts.add(&interest, topic))
    });
    counts.add(&interest, "sensors/+/humidity");
    counts.add(&interest, "#");
    let full = mask(&interest);
    println!(
        "interest: mask {empty:.0} ns of an empty table, {full:.0} ns with 100,000 literal filters and 2 with wildcards; add {add:.0} ns"
    );
}
