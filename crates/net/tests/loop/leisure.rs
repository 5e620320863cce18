//! What waits for a commit and what does not. What nobody waits for is kept all the same, and whoever begins to wait for it later is told as soon
//! as it is.

use std::time::Duration;

use broker::Transport;

use super::client::*;
use super::disk::{Scene, stay};
use super::server::*;

/// A worker that spins turns thousands of times meanwhile.
const LONG: Duration = Duration::from_millis(100);
const TICKS_MAX: u64 = 40;

/// A subscriber with a session that stays, which has received two messages at QoS 1 and acknowledged none.
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
    eventually("all of it is kept", || is_kept(running));
    (subscriber, pubacks)
}

fn is_kept(running: &Running) -> bool {
    let stats = running.handle.journal().unwrap().stats;
    stats.committed == stats.next
}

fn appended(running: &Running) -> u64 {
    running.handle.journal().unwrap().stats.next.0
}

/// Commits that somebody waited for.
fn hurried_commits(running: &Running) -> u64 {
    running.handle.journal().unwrap().commit_latency_us.count
}

fn ticks(running: &Running) -> u64 {
    running.handle.counters().ticks
}

#[test]
fn what_nobody_waits_for_is_committed_and_wakes_nobody() {
    let scene = Scene::new();
    let running = scene.start();
    let (mut subscriber, [puback, _]) = with_two_messages(&running);
    let (before, hurried) = (appended(&running), hurried_commits(&running));
    subscriber.send(&puback);
    subscriber.ping();
    let turned = ticks(&running);
    assert!(appended(&running) > before, "a client has acknowledged a message");
    eventually("it is kept", || is_kept(&running));
    assert_eq!(hurried_commits(&running), hurried);
    std::thread::sleep(LONG);
    assert!(ticks(&running) - turned < TICKS_MAX);
}

/// The commit before it is held until both have happened, so that nothing here is a matter of time.
#[test]
fn who_begins_to_wait_for_what_was_appended_at_leisure_has_it_committed_at_once() {
    let scene = Scene::new();
    let running = scene.start();
    let (mut subscriber, [first, second]) = with_two_messages(&running);
    let once = |flags: u8| packet(0x34 | flags, b"\x00\x01q\x00\x09once");
    subscriber.send(&once(0));
    assert_eq!(subscriber.read().first, 0x50);
    eventually("it is kept", || is_kept(&running));
    scene.gate.close();
    subscriber.send(&first);
    scene.gate.wait_for_sync();
    subscriber.send(&second);
    subscriber.ping();
    let (appended_before, hurried) = (appended(&running), hurried_commits(&running));
    // That it has come is known: only the answer waits, for all that is on its way.
    subscriber.send(&once(0x08));
    let turned = ticks(&running);
    std::thread::sleep(LONG);
    assert!(ticks(&running) - turned < TICKS_MAX, "it spins");
    // PUBREC would have come before PINGRESP.
    subscriber.ping();
    assert_eq!(
        appended(&running),
        appended_before,
        "it waits without a record of its own"
    );
    scene.gate.open();
    assert_eq!(subscriber.read().first, 0x50);
    assert!(is_kept(&running));
    assert_eq!(hurried_commits(&running), hurried + 1, "it was not left for later");
}

#[test]
fn a_checkpoint_is_finished_though_nothing_else_happens() {
    let scene = Scene::new();
    let mut options = options(1);
    // Nothing else wakes the worker.
    options.listener(Transport::Tcp).handshake_timeout = Duration::from_secs(3600);
    let mut restart = scene.restart(false);
    // One is due after a kilobyte.
    restart.quota_bytes = 64 << 10;
    options.restart = Some(restart);
    let running = options.start();
    let replay_from = || running.handle.journal().unwrap().stats.replay_from;
    let before = replay_from();
    let mut publisher = running.client(Transport::Tcp, "p");
    // The checkpoint begins where the journal has got to when the second one is appended.
    for bytes in [100, 4096] {
        publisher.send(&packet(0x33, &[&b"\x00\x01r\x00\x01"[..], &vec![7; bytes]].concat()));
        assert_eq!(publisher.read().first, 0x40);
    }
    eventually("the next start begins later", || replay_from() > before);
}

/// A subscriber whose session ends with its connection, and a publisher that has sent it a message at QoS 1 while nothing can be kept.
fn with_one_message(scene: &Scene, is_all_kept: bool) -> (Running, Client) {
    let mut options = options(1);
    options.shard.is_all_kept = is_all_kept;
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
fn what_only_passing_sessions_get_is_acknowledged_at_once() {
    let scene = Scene::new();
    let (running, mut publisher) = with_one_message(&scene, false);
    let before = appended(&running);
    assert_eq!(publisher.read().first, 0x40);
    assert_eq!(appended(&running), before, "nothing has to be kept");
}

#[test]
fn what_only_passing_sessions_get_waits_too_where_everything_shall() {
    let scene = Scene::new();
    let (running, mut publisher) = with_one_message(&scene, true);
    scene.gate.wait_for_sync();
    assert!(!is_kept(&running));
    // In its order, which is that of the packets: PUBACK would have come before PINGRESP.
    publisher.ping();
    scene.gate.open();
    assert_eq!(publisher.read().first, 0x40);
    assert!(is_kept(&running));
}
