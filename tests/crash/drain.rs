//! Live traffic beside an application that comes back to a long queue: who publishes meanwhile does not wait for that to end.

use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use crate::number;
use crate::support::{Config, Connect, PATIENCE, Peer, Publish, Reading, Server, V4, V5, kind, packet};

/// Unless `TIDEWIRE_DRAIN_MESSAGES` says otherwise.
const MESSAGES: u64 = 1_000_000;
const PUBLISHERS: u64 = 4;
/// Sent before their acknowledgements are read.
const WINDOW: u64 = 500;
/// Acknowledged together.
const ACKS: usize = 100;
/// How long live traffic is measured with nothing beside it.
const ALONE: Duration = Duration::from_secs(2);
/// Waiting for the end of the drain would be seconds. A machine that is busy with other things has tails of its own.
const P99_MAX: Duration = Duration::from_millis(250);
const P50_MAX: Duration = Duration::from_millis(50);
/// A tenth of what a release build does with a machine of its own. The queue itself is no part of the memory.
const RATE_MIN: f64 = 20_000.0;
const MORE_RESIDENT_MAX_KIB: u64 = 96 * 1024;

#[test]
fn live_messages_are_acknowledged_while_a_long_queue_is_drained() {
    let messages = number("TIDEWIRE_DRAIN_MESSAGES", MESSAGES) / PUBLISHERS * PUBLISHERS;
    let server = Server::start(&Config::new(
        "[mqtt]\nmax_queued_messages = \"unlimited\"\nmax_queued_bytes = \"unlimited\"\n[durability]\nmax_bytes = \"4GiB\"\n",
    ));
    let application = Connect::new(V5, "application").persistent();
    let mut peer = server.session(&application);
    peer.subscribe("cold/#", 1);
    peer.disconnect();
    fill(server.mqtt(), messages / PUBLISHERS);

    let mut live = Live::begin(&server);
    let resident_kib = server.rss_kib();
    server.forget_rss_peak();
    let until = Instant::now() + ALONE;
    let alone = live.measure(|| Instant::now() < until);
    let is_drained = AtomicBool::new(false);
    let (beside, took) = thread::scope(|scope| {
        let drain = scope.spawn(|| {
            let begun = Instant::now();
            // Also when it fails: the other one looks at this.
            let result = catch_unwind(AssertUnwindSafe(|| drain(server.mqtt(), &application, messages)));
            is_drained.store(true, Relaxed);
            result.map(|()| begun.elapsed())
        });
        let beside = live.measure(|| !is_drained.load(Relaxed));
        let took = drain.join().expect("it catches panics");
        (beside, took.unwrap_or_else(|panic| resume_unwind(panic)))
    });
    let rate = messages as f64 / took.as_secs_f64();
    let more_kib = server.rss_peak_kib().saturating_sub(resident_kib);
    println!("{messages} messages drained in {took:?}, {rate:.0}/s; PUBACK alone {alone}, beside it {beside}");
    println!("{resident_kib} KiB resident with the queue waiting, {more_kib} KiB more at most");
    assert!(rate >= RATE_MIN, "{rate} messages/s");
    assert!(
        more_kib <= MORE_RESIDENT_MAX_KIB,
        "{more_kib} KiB more than {resident_kib} KiB"
    );
    assert!(
        beside.p99 <= P99_MAX && beside.p50 <= P50_MAX,
        "PUBACK beside the drain {beside}, alone {alone}"
    );
}

/// So many messages of each publisher, all of them acknowledged.
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

/// Takes all of it: every message once, those of each publisher in their order.
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
            panic!("{delivery:?} is none of this test");
        };
        let expected = &mut next[publisher as usize];
        assert_eq!(number, *expected, "the next message of publisher {publisher}");
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

/// A publisher and a subscriber with a session that stays, one message after the other.
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

    /// From PUBLISH to PUBACK, which waits for the disk.
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
