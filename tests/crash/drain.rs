//! Tests live traffic while an application drains a long queue. Publishers do not wait until the queue is drained.

use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use super::number;
use crate::support::{Config, Connect, PATIENCE, Peer, Publish, Reading, Server, V4, V5, kind, packet};

/// Default queue length. `TIDEWIRE_DRAIN_MESSAGES` overrides it.
const MESSAGES: u64 = 1_000_000;
const PUBLISHERS: u64 = 4;
/// Messages that a publisher sends before it reads their acknowledgements.
const WINDOW: u64 = 500;
/// Deliveries that the application acknowledges together.
const ACKS: usize = 100;
/// Duration of the measurement of live traffic without a draining client.
const ALONE: Duration = Duration::from_secs(2);
/// A publisher that waited for the whole drain would wait for seconds.
const P99_MAX: Duration = Duration::from_millis(250);
const P50_MAX: Duration = Duration::from_millis(50);
/// Minimum drain rate, a tenth of the rate of a release build on an idle machine.
const RATE_MIN: f64 = 20_000.0;
/// On a busy machine, all takes longer. There, the limits depend on the duration of the drain and of the filling.
const P99_SHARE_OF_DRAIN: u32 = 40;
const P50_SHARE_OF_DRAIN: u32 = 200;
const RATE_SHARE_OF_FILLING: f64 = 0.2;
/// Maximum growth of resident memory during the drain. The measurement starts after the queue is filled.
const MORE_RESIDENT_MAX_KIB: u64 = 96 * 1024;

#[test]
fn live_messages_are_acknowledged_while_a_queue_drains() {
    let messages = number("TIDEWIRE_DRAIN_MESSAGES", MESSAGES) / PUBLISHERS * PUBLISHERS;
    let server = Server::start(&Config::new(
        "[mqtt]\nmax_queued_messages = \"unlimited\"\nmax_queued_bytes = \"unlimited\"\n[durability]\nmax_bytes = \"4GiB\"\n",
    ));
    let application = Connect::new(V5, "application").persistent();
    let mut peer = server.session(&application);
    peer.subscribe("cold/#", 1);
    peer.disconnect();
    let begun = Instant::now();
    fill(server.mqtt(), messages / PUBLISHERS);
    let filling_rate = messages as f64 / begun.elapsed().as_secs_f64();

    let mut live = Live::begin(&server);
    let resident_kib = server.rss_kib();
    server.forget_rss_peak();
    let until = Instant::now() + ALONE;
    let alone = live.measure(|| Instant::now() < until);
    let is_drained = AtomicBool::new(false);
    let (during, took) = thread::scope(|scope| {
        let drain = scope.spawn(|| {
            let begun = Instant::now();
            // Set the flag also if this thread fails, because the other thread waits for it.
            let result = catch_unwind(AssertUnwindSafe(|| drain(server.mqtt(), &application, messages)));
            is_drained.store(true, Relaxed);
            result.map(|()| begun.elapsed())
        });
        let during = live.measure(|| !is_drained.load(Relaxed));
        let took = drain.join().expect("the drain thread catches panics");
        (during, took.unwrap_or_else(|panic| resume_unwind(panic)))
    });
    let rate = messages as f64 / took.as_secs_f64();
    let more_kib = server.rss_peak_kib().saturating_sub(resident_kib);
    println!(
        "{messages} messages filled at {filling_rate:.0}/s and drained in {took:?}, {rate:.0}/s; PUBACK without drain {alone}, during the drain {during}"
    );
    println!("{resident_kib} KiB of resident memory before the drain, at most {more_kib} KiB more during the drain");
    let rate_min = RATE_MIN.min(filling_rate * RATE_SHARE_OF_FILLING);
    assert!(rate >= rate_min, "{rate} messages/s, expected at least {rate_min}");
    assert!(
        more_kib <= MORE_RESIDENT_MAX_KIB,
        "resident memory grew by {more_kib} KiB from {resident_kib} KiB"
    );
    assert!(
        during.p99 <= P99_MAX.max(took / P99_SHARE_OF_DRAIN) && during.p50 <= P50_MAX.max(took / P50_SHARE_OF_DRAIN),
        "PUBACK during the drain {during}, without a drain {alone}"
    );
}

/// Publishes this many messages from each publisher and waits for all acknowledgements.
fn fill(address: SocketAddr, messages: u64) {
    thread::scope(|scope| {
        for publisher in 0..PUBLISHERS {
            scope.spawn(move || {
                let mut peer = Peer::session(address, &Connect::new(V4, format!("publisher-{publisher}")));
                let mut sent = 0;
                while sent < messages {
                    let count = WINDOW.min(messages - sent);
                    let bytes: Vec<u8> = (sent..sent + count)
                        .flat_map(|number| {
                            let payload = format!("{publisher} {number:<60}");
                            let message = Publish::new(format!("cold/{publisher}"), payload).qos(1);
                            message.id((number % WINDOW) as u16 + 1).bytes(V4)
                        })
                        .collect();
                    peer.send(&bytes);
                    for _ in 0..count {
                        assert_eq!(peer.expect_packet().kind(), kind::PUBACK);
                    }
                    sent += count;
                }
                peer.disconnect();
            });
        }
    });
}

/// Receives the whole queue: every message once, and the messages of each publisher in order.
fn drain(address: SocketAddr, application: &Connect, messages: u64) {
    let mut peer = Peer::session(address, application);
    let mut next = [0; PUBLISHERS as usize];
    let mut acks = Vec::new();
    let mut waiting = 0;
    for _ in 0..messages {
        let packet = match peer.read(Duration::ZERO) {
            Reading::Packet(packet) => packet,
            _ => {
                peer.send(&std::mem::take(&mut acks));
                waiting = 0;
                match peer.read(PATIENCE) {
                    Reading::Packet(packet) => packet,
                    other => panic!("{other:?} after {next:?} messages"),
                }
            }
        };
        let delivery = packet.delivery(V5);
        let mut numbers = delivery.payload_str().split_whitespace().map(str::parse::<u64>);
        let (Some(Ok(publisher)), Some(Ok(number))) = (numbers.next(), numbers.next()) else {
            panic!("{delivery:?} is not a message of this test");
        };
        let expected = &mut next[publisher as usize];
        assert_eq!(number, *expected, "publisher {publisher}: unexpected message number");
        *expected += 1;
        acks.extend(packet::acknowledge(kind::PUBACK, delivery.packet_id.expect("QoS 1")));
        waiting += 1;
        if waiting == ACKS {
            peer.send(&std::mem::take(&mut acks));
            waiting = 0;
        }
    }
    peer.send(&acks);
    peer.disconnect();
}

/// Live traffic: a publisher and a subscriber with a durable session exchange one message at a time.
struct Live {
    publisher: Peer,
    subscriber: Peer,
}

struct Latency {
    p50: Duration,
    p99: Duration,
    count: usize,
}

impl std::fmt::Display for Latency {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Latency { p50, p99, count } = self;
        write!(f, "{p50:?} (p50), {p99:?} (p99) of {count}")
    }
}

impl Live {
    fn begin(server: &Server) -> Live {
        let mut subscriber = server.session(&Connect::new(V5, "live").persistent());
        subscriber.subscribe("live", 1);
        Live {
            publisher: server.session(&Connect::new(V5, "live-publisher")),
            subscriber,
        }
    }

    /// Measures the time from PUBLISH to PUBACK, including the sync to disk.
    fn measure(&mut self, mut goes_on: impl FnMut() -> bool) -> Latency {
        let mut times = Vec::new();
        while goes_on() || times.is_empty() {
            let begun = Instant::now();
            assert_eq!(self.publisher.publish(&Publish::new("live", "now").qos(1)), 0);
            times.push(begun.elapsed());
            assert_eq!(self.subscriber.receive().payload, b"now");
        }
        times.sort_unstable();
        let at = |percent: usize| times[(times.len() - 1) * percent / 100];
        Latency {
            p50: at(50),
            p99: at(99),
            count: times.len(),
        }
    }
}
