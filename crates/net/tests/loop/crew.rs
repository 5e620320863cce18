//! Workers that share a thread and part again.

use std::thread;
use std::time::{Duration, Instant};

use broker::{ShardId, Transport};
use net::CrewPolicy;

use super::client::*;
use super::messages::{at_home_in, exchange};
use super::server::*;

const WORKERS: u16 = 4;

/// They move in as soon as they may, and part as soon as they may.
const RESTLESS: CrewPolicy = CrewPolicy {
    lodge_below: f64::INFINITY,
    lodge_after: Duration::from_millis(1),
    part_above: -1.0,
    part_after: Duration::from_millis(1),
};

/// They move in as soon as they may, and stay.
const SETTLED: CrewPolicy = CrewPolicy {
    part_above: f64::INFINITY,
    ..RESTLESS
};

fn start_with(crew: CrewPolicy) -> Running {
    let mut options = options(WORKERS);
    options.config.crew = crew;
    options.start()
}

#[test]
fn every_transport_works_while_workers_move_in_and_out() {
    let running = start_with(RESTLESS);
    exchange(&running);
    assert!(running.handle.counters().lodgings > 0, "nobody has moved");
}

#[test]
fn every_transport_works_on_a_shared_thread() {
    let running = start_with(SETTLED);
    exchange(&running);
    assert_eq!(running.handle.counters().lodgings, u64::from(WORKERS - 1));
}

#[test]
fn nothing_is_lost_or_reordered_by_moving() {
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
    let lodgings = running.handle.counters().lodgings;
    assert!(lodgings > 20, "they have moved {lodgings} times only");
}

/// Whoever lodges elsewhere is told, flushed and ended all the same.
#[test]
fn a_server_whose_workers_share_a_thread_shuts_down() {
    for crew in [SETTLED, RESTLESS] {
        let running = start_with(crew);
        let mut clients: Vec<Client> = (0..WORKERS)
            .map(|shard| running.client(Transport::Tcp, &at_home_in(shard, WORKERS)))
            .collect();
        for _ in 0..20 {
            clients.iter_mut().for_each(Client::ping);
            thread::sleep(Duration::from_millis(1));
        }
        assert!(running.handle.counters().lodgings > 0);
        let begun = Instant::now();
        running.handle.shutdown(Duration::from_secs(30));
        assert!(
            begun.elapsed() < Duration::from_secs(10),
            "a thread waited for its worker"
        );
        for client in &mut clients {
            assert_eq!(read_to_close(&mut client.0), b"", "3.1.1 has no goodbye");
        }
    }
}

#[test]
fn what_a_thread_is_asked_reaches_the_worker_wherever_it_is() {
    let running = start_with(RESTLESS);
    for n in 0..500 {
        let shard = ShardId(n % WORKERS);
        let found = running.handle.call(shard, PATIENCE, move |_, _| n).unwrap();
        assert_eq!(found, n);
    }
}
