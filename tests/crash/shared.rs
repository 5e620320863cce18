//! Tests shared subscriptions over crashes. Undelivered messages stay in the queue of the share group, and a single
//! member receives them in order.
//!
//! MQTT promises no order to members of a share group. A message that one member returns reaches another member late,
//! or the same member after a lost connection. Without returned messages the order is the publishing order
//! [MQTT-4.6.0-5].

use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::{Duration, Instant};

use super::judge::{expected, judge};
use super::load::Load;
use super::publisher::{Publisher, all_sent};
use super::random::Random;
use super::rounds::Missing;
use super::subscriber::{Habit, Subscriber, Want};
use crate::support::{Config, Connect, Server, V4, V5};

const SEED: u64 = 1;
const ROUNDS: u32 = 8;
const PROGRESS_MAX: u64 = 6_000;
const ROUND_MAX: Duration = Duration::from_secs(5);

const WANT: Want = Want {
    filter: "$share/workers/load/#",
    qos: 2,
};

/// The limits exclude drops and compaction: both may change the order within a group after a crash
/// (docs/concepts/durability.md).
fn config(random: &mut Random) -> Config {
    let workers = 1 + random.below(4);
    Config::new(format!(
        "node.workers = {workers}\n[mqtt]\nmax_queued_messages = \"unlimited\"\nmax_queued_bytes = \"unlimited\"\n"
    ))
}

/// The share group has three members with durable sessions. One member connects in every second round, the others
/// never.
// fault: Process killed; Journal
#[test]
fn single_member_receives_queued_messages_in_order_over_kills() {
    let mut random = Random::new(SEED, 7);
    let mut server = Server::start(&config(&mut random));
    let mut publishers: Vec<Publisher> = (0..4)
        .map(|index| Publisher::new(index, [V5, V4][usize::from(index % 2)], SEED))
        .collect();
    let mut worker = Subscriber::new("worker", V5, WANT, Habit::Steady, SEED);
    for absent in ["absent-5", "absent-3.1.1"] {
        let version = if absent == "absent-5" { V5 } else { V4 };
        Subscriber::new(absent, version, WANT, Habit::Online, SEED).subscribe(server.mqtt());
    }
    worker.subscribe(server.mqtt());
    let load = Load::default();
    for round in 1..=ROUNDS {
        load.begin_round(round);
        let (address, progress) = (server.mqtt(), random.below(PROGRESS_MAX));
        thread::scope(|scope| {
            for publisher in &mut publishers {
                scope.spawn(|| publisher.run(address, &load));
            }
            if round % 2 == 0 {
                scope.spawn(|| worker.run(address, &load));
            }
            let begun = Instant::now();
            while load.progress.load(Relaxed) < progress && begun.elapsed() < ROUND_MAX {
                thread::sleep(Duration::from_micros(200));
            }
            server.kill();
        });
        server.set_config(config(&mut random));
        server.spawn_again();
        server.wait_until_ready();
        load.assert_no_faults(SEED);
    }
    load.begin_round(ROUNDS + 1);
    load.drain();
    let address = server.mqtt();
    thread::scope(|scope| {
        for publisher in &mut publishers {
            scope.spawn(|| publisher.run(address, &load));
        }
    });
    assert!(
        publishers.iter().all(Publisher::is_done),
        "a publisher could not complete its messages"
    );
    let mut missing = Missing::new(expected(WANT, &publishers));
    let mut taken = 0;
    worker.drain(address, &load, |got| missing.is_none_after(got, &mut taken));
    judge(&[&worker], &publishers, &load);
    load.assert_no_faults(SEED);
    println!(
        "{} messages, {} deliveries",
        all_sent(&publishers).count(),
        worker.got.len()
    );
}

/// The reply of the group's shard may arrive at the same time as the commit of the record that the SUBACK waits for.
#[test]
fn members_with_durable_sessions_get_a_suback() {
    for _ in 0..5 {
        let server = Server::start(&Config::new("node.workers = 2\n"));
        for number in 0..50 {
            let version = [V5, V4][number % 2];
            let mut peer = server.session(&Connect::new(version, format!("member-{number}")).persistent());
            peer.subscribe(WANT.filter, WANT.qos);
            peer.disconnect();
        }
    }
}
