//! Tests a disk that cannot be read for a while: messages are delayed, but not lost.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use broker::Transport;
use net::{Server, StartError};

use super::client::*;
use super::disk::{Scene, stay};
use super::server::*;

/// Publishes five messages while the subscriber is offline.
fn leave_with_messages(running: &Running) {
    let (mut client, _) = stay(running);
    client.send(&subscribe(1, "t", 1));
    assert_eq!(client.read().first, 0x90);
    client.send(&DISCONNECT);
    assert!(read_to_close(&mut client.0).is_empty());
    let mut publisher = running.client(Transport::Tcp, "p");
    for number in 1..=5 {
        publisher.send(&publish_qos1(number, "t", &[number as u8]));
        assert_eq!(publisher.read().first, 0x40);
    }
}

fn assert_has_all(client: &mut Client) {
    let payloads: Vec<u8> = (0..5).map(|_| *client.read().body.last().unwrap()).collect();
    assert_eq!(payloads, [1, 2, 3, 4, 5]);
}

#[test]
fn messages_are_delivered_after_a_read_failure() {
    let scene = Scene::new();
    let running = scene.start();
    leave_with_messages(&running);
    scene.is_broken.store(true, Ordering::Release);
    let (mut client, was_there) = stay(&running);
    assert!(was_there);
    // The server has tried to read at least once if a second read finds the disk broken.
    client.ping();
    client.ping();
    scene.is_broken.store(false, Ordering::Release);
    assert_has_all(&mut client);
}

#[test]
fn start_with_an_unreadable_journal_loses_nothing() {
    let scene = Scene::new();
    {
        let running = scene.start();
        let mut publisher = running.client(Transport::Tcp, "p");
        publisher.send(&packet(0x33, b"\x00\x01r\x00\x01kept"));
        assert_eq!(publisher.read().first, 0x40);
    }
    let options = options(1);
    let started = Server::start(
        options.config,
        Arc::new(options.shard),
        options.access,
        options.authenticator,
        Arc::new(Unobserved),
        Some(scene.restart(true)),
    );
    assert!(matches!(started, Err(StartError::Unreadable(_))));
    scene.is_broken.store(false, Ordering::Release);
    let running = scene.start();
    let mut subscriber = running.client(Transport::Tcp, "s");
    subscriber.subscribe("r");
    assert_eq!(subscriber.read().body, b"\x00\x01rkept");
}
