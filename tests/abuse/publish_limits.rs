//! A user that publishes as fast as it can over several connections: it gets the rate of one user, and another user is
//! not delayed. `crates/broker/tests/publish_limits.rs` has the other limits, in virtual time.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::access::access_control::PASSWORDS;
use super::shares::connect_as;
use crate::support::api::Api;
use crate::support::*;

const RATE: u32 = 500;
const TCP_CONNECTIONS: usize = 5;
const MESSAGES_PER_CONNECTION: u16 = 400;

fn start(options: &str) -> Server {
    let toml =
        format!("[node]\nworkers = 2\n[access]\nanonymous = \"never\"\npassword_file = \"{{dir}}/users\"\n{options}");
    Server::start(&Config::new(toml).file("users", PASSWORDS))
}

/// Publishes at QoS 1 until `is_over`, and returns the longest time to a PUBACK.
fn longest_puback(peer: &mut Peer, is_over: &AtomicBool) -> Duration {
    let mut longest = Duration::ZERO;
    while !is_over.load(Ordering::Relaxed) {
        let sent = Instant::now();
        assert!(peer.publish(&Publish::new("bob", "x").qos(1)) < 0x80);
        longest = longest.max(sent.elapsed());
        // Below the limit of this user, which is the same.
        thread::sleep(Duration::from_millis(10));
    }
    longest
}

#[test]
fn flood_over_many_connections_gets_the_rate_of_one_user() {
    let server = start(&format!("[limits]\npublish_rate_per_user = \"{RATE}/s\"\n"));
    let mut peers: Vec<Peer> = (0..TCP_CONNECTIONS)
        .map(|_| server.session(&connect_as("alice")))
        .collect();
    let mut socket = server.web_socket();
    socket.send(&connect_as("alice").bytes());
    assert_eq!(socket.expect_packet().connack(V5).code, 0);
    let mut bob = server.session(&connect_as("bob"));
    let one = |id| Publish::new("flood", "x").qos(1).id(id).bytes(V5);
    let flood: Vec<u8> = (1..=MESSAGES_PER_CONNECTION).flat_map(one).collect();
    let is_over = AtomicBool::new(false);
    let (elapsed, longest) = thread::scope(|scope| {
        let bystander = scope.spawn(|| longest_puback(&mut bob, &is_over));
        let started = Instant::now();
        peers.iter_mut().for_each(|peer| peer.send(&flood));
        socket.send(&flood);
        server.wait_until("the API shows a client that waits", |server| {
            let clients = Api::of(server).get("/api/v1/clients").to_string();
            clients.contains(r#""throttled_by":"user_messages""#)
        });
        for _ in 0..MESSAGES_PER_CONNECTION {
            peers.iter_mut().for_each(|peer| _ = peer.expect(kind::PUBACK));
            assert_eq!(socket.expect_packet().kind(), kind::PUBACK);
        }
        let elapsed = started.elapsed();
        is_over.store(true, Ordering::Relaxed);
        (
            elapsed,
            bystander.join().expect("the other user's thread has not failed"),
        )
    });
    let messages = (TCP_CONNECTIONS as u32 + 1) * u32::from(MESSAGES_PER_CONNECTION);
    let expected = Duration::from_secs(1) * (messages - RATE) / RATE;
    println!("{messages} messages in {elapsed:?}, expected {expected:?}; PUBACK of the other user {longest:?}");
    assert!(elapsed >= expected.mul_f64(0.9), "{elapsed:?}: faster than the limit");
    // A busy machine may add some time.
    assert!(
        elapsed <= expected.mul_f64(1.1) + Duration::from_secs(1),
        "{elapsed:?}: slower than the limit"
    );
    assert!(
        longest < Duration::from_secs(1),
        "{longest:?}: the other user was delayed"
    );
    let (_, metrics) = server.http_get("/metrics");
    let slowed = metrics
        .lines()
        .find(|line| line.starts_with(r#"tidewire_broker_publishers_slowed_total{limit="user_messages"}"#));
    assert!(slowed.is_some_and(|line| !line.ends_with(" 0")), "{slowed:?}");
    server.wait_until("the log names the user and the option", |server| {
        let log = server.log();
        let names = ["user_name=\"alice\"", "user:alice", "limits.publish_rate_per_user"];
        names.into_iter().all(|name| log.contains(name))
    });
}
