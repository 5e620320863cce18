//! Tests workers that share a thread and separate again.

use std::thread;
use std::time::{Duration, Instant};

use broker::{ShardId, Transport};
use net::ThreadSharingPolicy;

use super::client::*;
use super::messages::{at_home_in, exchange};
use super::server::*;

const WORKERS: u16 = 4;

/// Workers share a thread as soon as possible, and separate as soon as possible.
const RESTLESS: ThreadSharingPolicy = ThreadSharingPolicy {
    share_below: f64::INFINITY,
    share_after: Duration::from_millis(1),
    separate_above: -1.0,
    separate_after: Duration::from_millis(1),
};

/// Workers share a thread as soon as possible, and never separate.
const SETTLED: ThreadSharingPolicy = ThreadSharingPolicy {
    separate_above: f64::INFINITY,
    ..RESTLESS
};

fn start_with(crew: ThreadSharingPolicy) -> Running {
    let mut options = options(WORKERS);
    options.config.thread_sharing = crew;
    options.start()
}

#[test]
fn every_transport_works_while_workers_change_threads() {
    let running = start_with(RESTLESS);
    exchange(&running);
    assert!(
        running.handle.counters().worker_moves > 0,
        "no worker has moved to another thread"
    );
}

#[test]
fn every_transport_works_on_a_shared_thread() {
    let running = start_with(SETTLED);
    exchange(&running);
    assert_eq!(running.handle.counters().worker_moves, u64::from(WORKERS - 1));
}

#[test]
fn thread_changes_lose_and_reorder_no_message() {
    const ROUNDS: u16 = 300;
    const BURST: u16 = 10;
    let running = start_with(RESTLESS);
    let subscribers: Vec<Client> = (0..WORKERS)
        .map(|shard| {
            let mut client = running.client(Transport::Tcp, &format!("s-{}", at_home_in(shard, WORKERS)));
            client.subscribe("t/#");
            client
        })
        .collect();
    let publishers: Vec<_> = (0..WORKERS)
        .map(|shard| {
            let mut client = running.client(Transport::Tcp, &at_home_in(shard, WORKERS));
            thread::spawn(move || {
                for round in 0..ROUNDS {
                    for number in round * BURST..(round + 1) * BURST {
                        client.send(&publish_qos1(number + 1, &format!("t/{shard}"), &number.to_be_bytes()));
                    }
                    for number in round * BURST..(round + 1) * BURST {
                        assert_eq!(client.read().body, (number + 1).to_be_bytes());
                    }
                }
            })
        })
        .collect();
    let readers: Vec<_> = subscribers
        .into_iter()
        .map(|mut client| {
            thread::spawn(move || {
                let mut next = [0_u16; WORKERS as usize];
                while next != [ROUNDS * BURST; WORKERS as usize] {
                    let packet = client.read();
                    let (topic, payload) = packet.message();
                    let publisher: usize = topic["t/".len()..].parse().unwrap();
                    assert_eq!(payload, next[publisher].to_be_bytes());
                    next[publisher] += 1;
                }
            })
        })
        .collect();
    for thread in publishers.into_iter().chain(readers) {
        thread.join().unwrap();
    }
    let lodgings = running.handle.counters().worker_moves;
    assert!(lodgings > 20, "workers have changed threads only {lodgings} times");
}

/// A worker on a shared thread handles calls, flushes and the shutdown like other workers.
#[test]
fn server_with_a_shared_thread_shuts_down() {
    for crew in [SETTLED, RESTLESS] {
        let running = start_with(crew);
        let mut clients: Vec<Client> = (0..WORKERS)
            .map(|shard| running.client(Transport::Tcp, &at_home_in(shard, WORKERS)))
            .collect();
        for _ in 0..20 {
            clients.iter_mut().for_each(Client::ping);
            thread::sleep(Duration::from_millis(1));
        }
        assert!(running.handle.counters().worker_moves > 0);
        let begun = Instant::now();
        running.handle.shutdown(Duration::from_secs(30));
        assert!(
            begun.elapsed() < Duration::from_secs(10),
            "a thread waited for its worker"
        );
        for client in &mut clients {
            assert_eq!(
                read_to_close(&mut client.0),
                b"",
                "MQTT 3.1.1 has no DISCONNECT from the server"
            );
        }
    }
}

#[test]
fn calls_reach_a_worker_on_any_thread() {
    let running = start_with(RESTLESS);
    for n in 0..500 {
        let shard = ShardId(n % WORKERS);
        let found = running.handle.call(shard, PATIENCE, move |_, _| n).unwrap();
        assert_eq!(found, n);
    }
}
