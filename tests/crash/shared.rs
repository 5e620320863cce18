//! Shared subscriptions over crashes: what nobody takes waits with the group, and one member alone gets it in order.
//!
//! MQTT promises members no order, because what one gives back comes late to another; or late to itself, when it loses its
//! connection while something is on its way to it. Where nothing is given back there is one: that in which it was
//! published [MQTT-4.6.0-5].

use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::{Duration, Instant};

use crate::judge::{expected, judge};
use crate::load::Load;
use crate::publisher::{Publisher, all_sent};
use crate::random::Random;
use crate::rounds::Missing;
use crate::subscriber::{Habit, Subscriber, Want};
use crate::support::{Config, Connect, Server, V4, V5};

const SEED: u64 = 1;
const ROUNDS: u32 = 8;
const PROGRESS_MAX: u64 = 6_000;
const ROUND_MAX: Duration = Duration::from_secs(5);

const WANT: Want = Want {
    filter: "$share/workers/load/#",
    qos: 2,
};

/// Nothing is dropped, and nothing written once more: what that does to the order of a group is told in docs/durability.md.
fn config(random: &mut Random) -> Config {
    let workers = 1 + random.below(4);
    Config::new(format!(
        "node.workers = {workers}\n[mqtt]\nmax_queued_messages = \"unlimited\"\nmax_queued_bytes = \"unlimited\"\n"
    ))
}

/// Three members with sessions that stay, of which one comes in every second round, and in the others none.
#[test]
fn one_member_of_a_group_gets_what_waited_in_order_over_kills() {
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

/// The answer of the group's shard may come in the very moment in which what it waits for is kept.
#[test]
fn each_member_with_a_session_that_stays_gets_its_suback() {
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
