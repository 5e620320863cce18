//! The crash test run. Each round of load ends with the end of the server. After the last round the clients complete
//! all exchanges and the results are compared.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::{Duration, Instant};

use super::judge::{count, expected, judge};
use super::load::Load;
use super::message::{Id, RETAINED};
use super::publisher::{Publisher, all_sent};
use super::random::Random;
use super::subscriber::{Got, Habit, Subscriber, Want};
use super::wire::{Heard, hear};
use crate::support::{Config, Connect, Peer, Server, V4, V5};

/// Returns the server configuration. Small files and frequent checkpoints make every run rotate files often. The queues
/// drop no messages. The number of shards and the durability policy are chosen again at every start, because a kill
/// must lose no message with any of them.
fn config(random: &mut Random, rounds: u32) -> Config {
    let workers = 1 + random.below(4);
    // The backlog of slow subscribers grows with the number of rounds.
    let max_mib = rounds.saturating_mul(8).max(128);
    let policy = if random.one_in(3) { "os" } else { "fsync" };
    Config::new(format!(
        r#"
[node]
workers = {workers}
[durability]
policy = "{policy}"
segment_bytes = "256KiB"
max_bytes = "{max_mib}MiB"
reserve_bytes = "0B"
[mqtt]
max_queued_messages = 10000000
max_queued_bytes = "16GiB"
[limits]
shutdown_grace = "200ms"
"#
    ))
}

/// Maximum duration of a round that does not reach its progress.
const ROUND_MAX: Duration = Duration::from_secs(5);
const PROGRESS_MAX: u64 = 20_000;
/// Wait time for a retained message that may not arrive.
const RETAINED_PATIENCE: Duration = Duration::from_secs(5);

pub fn run(seed: u64, rounds: u32) {
    println!("seed {seed}, {rounds} kills");
    let mut random = Random::new(seed, 1);
    let mut server = Server::start(&config(&mut random, rounds));
    let mut clients = Clients::new(seed, rounds);
    for subscriber in &clients.subscribers {
        subscriber.subscribe(server.mqtt());
    }
    let load = Load::default();
    let (mut round, mut kills) = (0, 0);
    while kills < rounds {
        round += 1;
        load.begin_round(round);
        let end = End::choose(&mut random);
        kills += u32::from(!matches!(end, End::Stop(_)));
        clients.round(&mut server, &load, &end, &mut random);
        clients.check_retained(server.mqtt(), &load);
        load.assert_no_faults(seed);
    }
    load.begin_round(round + 1);
    clients.drain(server.mqtt(), &load);
    clients.judge(&load);
    clients.check_retained(server.mqtt(), &load);
    load.assert_no_faults(seed);
    let sent = all_sent(&clients.publishers).count();
    let (received, repeated) = count(&clients.subscribers);
    println!(
        "{kills} kills in {round} rounds: {sent} messages, {received} deliveries, {repeated} of them redelivered at QoS 1"
    );
}

/// Describes how a round ends. The number is the progress at which it ends.
#[derive(Debug)]
enum End {
    /// SIGKILL.
    Kill(u64),
    /// SIGSTOP, and SIGKILL after the duration.
    Freeze(u64, Duration),
    /// SIGTERM.
    Stop(u64),
}

impl End {
    fn choose(random: &mut Random) -> End {
        let progress = random.below(PROGRESS_MAX);
        match random.below(6) {
            0 => End::Freeze(progress, Duration::from_millis(50 + random.below(250))),
            1 => End::Stop(progress),
            // Kill early more often, because recovery and startup are most likely to have bugs.
            2 => End::Kill(progress / 20),
            _ => End::Kill(progress),
        }
    }

    fn bring(&self, server: &mut Server, load: &Load) {
        let begun = Instant::now();
        let (End::Kill(progress) | End::Freeze(progress, _) | End::Stop(progress)) = self;
        while load.progress.load(Relaxed) < *progress && begun.elapsed() < ROUND_MAX {
            thread::sleep(Duration::from_micros(200));
        }
        match self {
            End::Kill(_) => {}
            End::Freeze(_, how_long) => {
                server.freeze();
                thread::sleep(*how_long);
            }
            End::Stop(_) => server.terminate(Duration::from_secs(20)),
        }
        server.kill();
    }
}

struct Clients {
    /// Number of rounds of the whole run.
    rounds: u32,
    publishers: Vec<Publisher>,
    subscribers: Vec<Subscriber>,
}

impl Clients {
    fn new(seed: u64, rounds: u32) -> Clients {
        let publishers = (0..6).map(|index| Publisher::new(index, [V5, V4][usize::from(index / 2 % 2)], seed));
        let subscriber = |name, version, filter, qos, habit| {
            let want = Want { filter, qos };
            Subscriber::new(name, version, want, habit, seed)
        };
        let subscribers = vec![
            subscriber("all-online", V5, "load/#", 2, Habit::Online),
            subscriber("all-3.1.1", V4, "load/#", 2, Habit::Online),
            subscriber("all-sometimes", V4, "load/#", 2, Habit::Sometimes),
            subscriber("all-slow", V5, "load/#", 2, Habit::Slow),
            subscriber("level", V5, "load/+/t1", 1, Habit::Sometimes),
            subscriber("level-3.1.1", V4, "load/+/t2", 2, Habit::Slow),
            subscriber("one", V4, "load/p0/t0", 2, Habit::Online),
            subscriber("one-sometimes", V5, "load/p1/t1", 1, Habit::Sometimes),
            subscriber("member-online", V5, SHARED, 2, Habit::Online),
            subscriber("member-sometimes", V4, SHARED, 2, Habit::Sometimes),
            subscriber("member-slow", V5, SHARED, 2, Habit::Slow),
        ];
        Clients {
            rounds,
            publishers: publishers.collect(),
            subscribers,
        }
    }

    /// Runs the load until the server ends, then restarts the server.
    fn round(&mut self, server: &mut Server, load: &Load, end: &End, random: &mut Random) {
        let address = server.mqtt();
        thread::scope(|scope| {
            for publisher in &mut self.publishers {
                scope.spawn(|| publisher.run(address, load));
            }
            for subscriber in &mut self.subscribers {
                scope.spawn(|| subscriber.run(address, load));
            }
            end.bring(server, load);
        });
        server.set_config(config(random, self.rounds));
        server.spawn_again();
        // Sometimes the kill interrupts recovery or the first work after it.
        while random.one_in(3) {
            thread::sleep(Duration::from_millis(random.below(60)));
            server.kill();
            server.set_config(config(random, self.rounds));
            server.spawn_again();
        }
        server.wait_until_ready();
    }

    /// Lets publishers complete their open messages, then lets subscribers receive everything.
    fn drain(&mut self, address: SocketAddr, load: &Load) {
        load.drain();
        thread::scope(|scope| {
            for publisher in &mut self.publishers {
                scope.spawn(|| publisher.run(address, load));
            }
        });
        for publisher in self.publishers.iter().filter(|publisher| !publisher.is_done()) {
            load.report(format!("publisher {} could not complete its messages", publisher.index));
        }
        let shared = Mutex::new(Missing::new(expected(SHARED_WANT, &self.publishers)));
        let publishers = &self.publishers;
        thread::scope(|scope| {
            for subscriber in &mut self.subscribers {
                let shared = &shared;
                let missing = expected(subscriber.want, publishers);
                scope.spawn(move || {
                    let mut own = Missing::new(missing);
                    let mut taken = 0;
                    let is_shared = subscriber.want.filter == SHARED;
                    subscriber.drain(address, load, |got| match is_shared {
                        false => own.is_none_after(got, &mut taken),
                        true => {
                            let mut shared = shared.lock().expect("the mutex is not poisoned");
                            shared.is_none_after(got, &mut taken)
                        }
                    });
                });
            }
        });
    }

    fn judge(&self, load: &Load) {
        let (members, others): (Vec<_>, Vec<_>) = self
            .subscribers
            .iter()
            .partition(|subscriber| subscriber.want.filter == SHARED);
        judge(&members, &self.publishers, load);
        for subscriber in others {
            judge(&[subscriber], &self.publishers, load);
        }
    }

    /// Checks the retained messages of a new subscriber. Several shards send them, some after the PINGRESP.
    fn check_retained(&self, address: SocketAddr, load: &Load) {
        let mut peer = Peer::session(address, &Connect::new(V5, "retained"));
        peer.subscribe("retained/#", 1);
        let mut found: HashMap<u8, u32> = HashMap::new();
        let is_right = |found: &HashMap<u8, u32>, publisher: &Publisher| {
            is_retained_right(publisher, found.get(&publisher.index).copied())
        };
        while !self.publishers.iter().all(|publisher| is_right(&found, publisher)) {
            let Heard::Packet(packet) = hear(&mut peer, RETAINED_PATIENCE) else {
                break;
            };
            let delivery = packet.delivery(V5);
            let id = Id::of_payload(&delivery.payload);
            peer.acknowledge(&delivery);
            if !delivery.is_retained || id.lane.topic_name() != delivery.topic_str() {
                load.report(format!(
                    "{id} arrived as retained message on {}: {delivery:?}",
                    delivery.topic_str()
                ));
            }
            found.insert(id.lane.publisher, id.number);
        }
        peer.disconnect();
        for publisher in self.publishers.iter().filter(|publisher| !is_right(&found, publisher)) {
            let (acknowledged, sent) = publisher.retained_bounds().unwrap_or((0, 0));
            load.report(format!(
                "{} retains {:?}; {acknowledged} messages are acknowledged, {sent} are sent",
                publisher.retained_lane().topic_name(),
                found.get(&publisher.index)
            ));
        }
    }
}

/// Returns whether the retained message is the last acknowledged one or a later one. `None` is a message that clears
/// the topic.
fn is_retained_right(publisher: &Publisher, found: Option<u32>) -> bool {
    let (acknowledged, sent) = publisher.retained_bounds().unwrap_or((0, 0));
    let lane = publisher.retained_lane();
    let clears = |number: u32| number == 0 || Id { lane, number }.payload().is_empty();
    match found {
        Some(number) => (acknowledged..=sent).contains(&number),
        None => (acknowledged..=sent).any(clears),
    }
}

const SHARED: &str = "$share/group/load/#";
const SHARED_WANT: Want = Want { filter: SHARED, qos: 2 };

/// Messages that have not arrived yet.
pub struct Missing(HashSet<Id>);

impl Missing {
    pub fn new(expected: HashSet<Id>) -> Missing {
        assert!(expected.iter().all(|id| id.lane.topic != RETAINED));
        Missing(expected)
    }

    /// Returns whether all messages have arrived, counting those received since the first `taken`.
    pub fn is_none_after(&mut self, got: &[Got], taken: &mut usize) -> bool {
        for message in &got[*taken..] {
            self.0.remove(&message.id);
        }
        *taken = got.len();
        self.0.is_empty()
    }
}
