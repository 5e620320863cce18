//! Tests commits of records with and without a waiting acknowledgement. Records without one are committed later. An
//! acknowledgement that starts to wait for them triggers the commit.

use std::time::Duration;

use broker::Transport;

use super::client::*;
use super::disk::{Scene, stay};
use super::server::*;

/// A spinning worker would run thousands of ticks in this time.
const LONG: Duration = Duration::from_millis(100);
const TICKS_MAX: u64 = 40;

/// Returns a durable subscriber that has received two QoS 1 messages and acknowledged none, and both PUBACK packets.
fn with_two_messages(running: &Running) -> (Client, [Vec<u8>; 2]) {
    let (mut subscriber, _) = stay(running);
    subscriber.send(&subscribe(1, "t", 1));
    assert_eq!(subscriber.read().first, 0x90);
    let mut publisher = running.client(Transport::Tcp, "p");
    let pubacks = [1, 2].map(|number| {
        publisher.send(&publish_qos1(number, "t", b"m"));
        assert_eq!(publisher.read().first, 0x40);
        let message = subscriber.read();
        assert_eq!(message.first & 0xF6, 0x32);
        packet(0x40, &message.body[3..5])
    });
    publisher.send(&DISCONNECT);
    assert!(read_to_close(&mut publisher.0).is_empty());
    eventually("all records are committed", || is_kept(running));
    (subscriber, pubacks)
}

fn is_kept(running: &Running) -> bool {
    let stats = running.handle.journal().unwrap().stats;
    stats.committed == stats.next
}

fn appended(running: &Running) -> u64 {
    running.handle.journal().unwrap().stats.next.0
}

/// Returns the number of commits that an acknowledgement waited for.
fn hurried_commits(running: &Running) -> u64 {
    running.handle.journal().unwrap().commit_latency_us.count
}

fn ticks(running: &Running) -> u64 {
    running.handle.counters().ticks
}

#[test]
fn records_without_waiters_commit_without_a_wakeup() {
    let scene = Scene::new();
    let running = scene.start();
    let (mut subscriber, [puback, _]) = with_two_messages(&running);
    let (before, hurried) = (appended(&running), hurried_commits(&running));
    subscriber.send(&puback);
    subscriber.ping();
    let turned = ticks(&running);
    assert!(appended(&running) > before, "a client has acknowledged a message");
    eventually("all records are committed", || is_kept(&running));
    assert_eq!(hurried_commits(&running), hurried);
    std::thread::sleep(LONG);
    assert!(ticks(&running) - turned < TICKS_MAX);
}

/// The test delays the previous commit until both packets are handled, so the result does not depend on timing.
#[test]
fn later_acknowledgement_commits_pending_records_at_once() {
    let scene = Scene::new();
    let running = scene.start();
    let (mut subscriber, [first, second]) = with_two_messages(&running);
    let once = |flags: u8| packet(0x34 | flags, b"\x00\x01q\x00\x09once");
    subscriber.send(&once(0));
    assert_eq!(subscriber.read().first, 0x50);
    eventually("all records are committed", || is_kept(&running));
    scene.gate.close();
    subscriber.send(&first);
    scene.gate.wait_for_sync();
    subscriber.send(&second);
    subscriber.ping();
    let (appended_before, hurried) = (appended(&running), hurried_commits(&running));
    // The message is stored already: only the answer waits for all earlier records.
    subscriber.send(&once(0x08));
    let turned = ticks(&running);
    std::thread::sleep(LONG);
    assert!(ticks(&running) - turned < TICKS_MAX, "the worker spins");
    // A PUBREC would have arrived before PINGRESP.
    subscriber.ping();
    assert_eq!(
        appended(&running),
        appended_before,
        "the acknowledgement needs no record of its own"
    );
    scene.gate.open();
    assert_eq!(subscriber.read().first, 0x50);
    assert!(is_kept(&running));
    assert_eq!(hurried_commits(&running), hurried + 1, "the commit was not delayed");
}

#[test]
fn checkpoint_finishes_on_an_idle_server() {
    let scene = Scene::new();
    let mut options = options(1);
    // A long handshake timeout, so that no timer wakes the worker.
    options.listener(Transport::Tcp).handshake_timeout = Duration::from_secs(3600);
    let mut restart = scene.restart(false);
    // A checkpoint is due after a kilobyte.
    restart.quota_bytes = 64 << 10;
    options.restart = Some(restart);
    let running = options.start();
    let replay_from = || running.handle.journal().unwrap().stats.replay_from;
    let before = replay_from();
    let mut publisher = running.client(Transport::Tcp, "p");
    // The checkpoint begins at the end of the journal when the second one is appended.
    for bytes in [100, 4096] {
        publisher.send(&packet(0x33, &[&b"\x00\x01r\x00\x01"[..], &vec![7; bytes]].concat()));
        assert_eq!(publisher.read().first, 0x40);
    }
    eventually("the next start begins later", || replay_from() > before);
}

/// Returns a subscriber whose session ends with its connection, and a publisher that has sent it a QoS 1 message while
/// the journal cannot commit.
fn with_one_message(scene: &Scene, is_all_kept: bool) -> (Running, Client) {
    let mut options = options(1);
    options.shard.journals_all_messages = is_all_kept;
    options.restart = Some(scene.restart(false));
    let running = options.start();
    let mut subscriber = running.client(Transport::Tcp, "s");
    subscriber.subscribe("t");
    let mut publisher = running.client(Transport::Tcp, "p");
    scene.gate.close();
    publisher.send(&publish_qos1(1, "t", b"m"));
    assert_eq!(subscriber.read().message(), ("t", &b"m"[..]));
    (running, publisher)
}

#[test]
fn messages_for_transient_sessions_are_acknowledged_at_once() {
    let scene = Scene::new();
    let (running, mut publisher) = with_one_message(&scene, false);
    let before = appended(&running);
    assert_eq!(publisher.read().first, 0x40);
    assert_eq!(appended(&running), before, "no record is appended");
}

#[test]
fn configured_policy_waits_for_all_messages() {
    let scene = Scene::new();
    let (running, mut publisher) = with_one_message(&scene, true);
    scene.gate.wait_for_sync();
    assert!(!is_kept(&running));
    // Answers follow the order of the packets: a PUBACK would have arrived before PINGRESP.
    publisher.ping();
    scene.gate.open();
    assert_eq!(publisher.read().first, 0x40);
    assert!(is_kept(&running));
}
