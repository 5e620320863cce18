//! Tests data streams of MQTT over QUIC.

use std::io::Write;
use std::time::{Duration, Instant};

use broker::{ShardId, Transport};

use super::client::*;
use super::quic_wire::{QuicStream, QuicWire};
use super::server::*;

const STREAMS: u16 = 4;

fn start_with_streams(workers: u16) -> Running {
    let mut options = options(workers);
    options.listener(Transport::Quic).max_data_streams = STREAMS;
    options.shard.max_packet_size = 4 * 1024 * 1024;
    options.start()
}

fn wire(running: &Running) -> QuicWire {
    QuicWire::connect(running.address(Transport::Quic), &running.authority.client_config())
}

fn connected(running: &Running, client_id: &str) -> QuicWire {
    let mut wire = wire(running);
    wire.write_all(&connect(client_id)).unwrap();
    assert_eq!(read_packet(&mut wire).unwrap().first, CONNACK[0]);
    wire
}

fn ping(wire: &mut QuicWire) {
    wire.write_all(&PINGREQ).unwrap();
    assert_eq!(read_packet(wire).unwrap().first, PINGRESP);
}

/// Opens a data stream with a subscription.
fn subscribed(wire: &QuicWire, filter: &str) -> QuicStream {
    let mut stream = wire.open_stream();
    stream.write_all(&subscribe(1, filter, 0)).unwrap();
    assert_eq!(read_packet(&mut stream).unwrap().first, 0x90);
    stream
}

fn subscriptions(running: &Running) -> u64 {
    let count = running
        .handle
        .call(ShardId(0), PATIENCE, |shard, _| shard.inspect().stats().subscriptions);
    count.unwrap()
}

#[test]
fn packets_leave_on_the_stream_of_their_request() {
    let running = start_with_streams(4);
    for n in 0..8 {
        let mut wire = connected(&running, &format!("streams-{n}"));
        let mut one = subscribed(&wire, &format!("one/{n}"));
        let mut two = subscribed(&wire, &format!("two/{n}"));
        two.write_all(&publish_qos1(7, &format!("one/{n}"), b"from two"))
            .unwrap();
        assert_eq!(read_packet(&mut two).unwrap().first, 0x40);
        assert_eq!(read_packet(&mut one).unwrap().message().1, b"from two");
        wire.write_all(&publish(&format!("two/{n}"), b"from the control stream"))
            .unwrap();
        assert_eq!(read_packet(&mut two).unwrap().message().1, b"from the control stream");
        ping(&mut wire);
    }
    assert!(running.handle.counters().moved > 0, "no connection moved to its worker");
    eventually("the connections are gone", || running.handle.connections() == 0);
}

#[test]
fn incomplete_packet_on_a_stream_does_not_block_others() {
    let running = start_with_streams(1);
    let mut wire = connected(&running, "client");
    let mut subscriber = subscribed(&wire, "t");
    let mut slow = wire.open_stream();
    let packet = publish("t", b"slow");
    slow.write_all(&packet[..5]).unwrap();
    let mut fast = wire.open_stream();
    fast.write_all(&publish("t", b"fast")).unwrap();
    assert_eq!(read_packet(&mut subscriber).unwrap().message().1, b"fast");
    ping(&mut wire);
    slow.write_all(&packet[5..]).unwrap();
    assert_eq!(read_packet(&mut subscriber).unwrap().message().1, b"slow");
}

#[test]
fn large_messages_pass_through_streams() {
    let running = start_with_streams(2);
    let wire = connected(&running, "client");
    let mut subscriber = subscribed(&wire, "bulk");
    let mut publisher = wire.open_stream();
    let payload: Vec<u8> = (0..1024 * 1024u32).map(|n| (n % 253) as u8).collect();
    for _ in 0..3 {
        publisher.write_all(&publish_qos1(9, "bulk", &payload)).unwrap();
        assert!(read_packet(&mut subscriber).unwrap().message() == ("bulk", payload.as_slice()));
        assert_eq!(read_packet(&mut publisher).unwrap().first, 0x40);
    }
}

#[test]
fn stream_opened_before_connack_waits() {
    let running = start_with_streams(2);
    let mut wire = wire(&running);
    let mut stream = wire.open_stream();
    stream.write_all(&subscribe(1, "t", 0)).unwrap();
    wire.write_all(&connect("client")).unwrap();
    assert_eq!(read_packet(&mut wire).unwrap().first, CONNACK[0]);
    assert_eq!(read_packet(&mut stream).unwrap().first, 0x90);
}

#[test]
fn client_may_open_few_streams_before_connack() {
    let running = start_with_streams(1);
    let mut wire = wire(&running);
    let early: Vec<QuicStream> = (1..STREAMS).map(|_| wire.open_stream()).collect();
    assert!(wire.try_open_stream().is_none());
    wire.write_all(&connect("client")).unwrap();
    assert_eq!(read_packet(&mut wire).unwrap().first, CONNACK[0]);
    let _last = subscribed(&wire, "t");
    assert_eq!(early.len(), 3);
}

#[test]
fn ended_streams_can_always_be_replaced() {
    const MAX: u16 = 64;
    let mut options = options(1);
    options.listener(Transport::Quic).max_data_streams = MAX;
    let running = options.start();
    let wire = connected(&running, "client");
    let mut streams: Vec<QuicStream> = (0..MAX).map(|_| subscribed(&wire, "t")).collect();
    for _ in 0..12 {
        let mut ended = streams.remove(0);
        ended.finish();
        assert!(read_packet(&mut ended).is_none(), "the server ends its side");
        streams.push(subscribed(&wire, "t"));
    }
    assert_eq!(running.handle.counters().quic_streams_rejected, 0);
}

/// A client resets its streams, or ends them inside a packet.
#[test]
fn ended_streams_leave_nothing() {
    const ENDED: u64 = 60;
    let running = start_with_streams(1);
    let mut wire = connected(&running, "client");
    let mut subscriber = subscribed(&wire, "t");
    for n in 0..ENDED {
        let mut stream = subscribed(&wire, "other");
        match n % 3 {
            0 => stream.reset(),
            1 => {
                stream.write_all(&publish("t", b"incomplete")[..5]).unwrap();
                stream.finish();
            }
            _ => {
                stream.stop();
                stream.reset();
                continue;
            }
        }
        assert!(read_packet(&mut stream).is_none(), "the server ends its side");
    }
    eventually("the subscriptions are gone", || subscriptions(&running) == 1);
    wire.write_all(&publish("t", b"complete")).unwrap();
    assert_eq!(read_packet(&mut subscriber).unwrap().message().1, b"complete");
    ping(&mut wire);
    let counters = running.handle.counters();
    assert_eq!((counters.quic_streams, counters.quic_streams_rejected), (ENDED + 1, 0));
}

#[test]
fn further_streams_are_reset_until_one_has_ended() {
    let running = start_with_streams(1);
    let mut wire = connected(&running, "client");
    let mut streams: Vec<QuicStream> = (0..STREAMS).map(|n| subscribed(&wire, &format!("t/{n}"))).collect();
    for _ in 0..10 {
        assert_eq!(wire.code_of_another_stream(&publish("other", b"stream")), 3);
    }
    let mut ended = streams.remove(0);
    ended.finish();
    assert!(read_packet(&mut ended).is_none(), "the server ends its side");
    let mut reset = streams.remove(0);
    reset.reset();
    assert!(read_packet(&mut reset).is_none(), "the server ends its side");
    let mut next = subscribed(&wire, "t/0");
    wire.write_all(&publish("t/0", b"once")).unwrap();
    assert_eq!(read_packet(&mut next).unwrap().message().1, b"once");
    ping(&mut wire);
}

#[test]
fn forbidden_packet_ends_only_its_stream() {
    let running = start_with_streams(1);
    let mut wire = connected(&running, "client");
    for bytes in [&PINGREQ[..], &DISCONNECT, &connect("again"), &[0, 0]] {
        let mut stream = wire.open_stream();
        stream.write_all(bytes).unwrap();
        assert!(read_packet(&mut stream).is_none());
        ping(&mut wire);
    }
}

#[test]
fn end_of_the_control_stream_ends_the_streams() {
    let running = start_with_streams(2);
    let mut watcher = running.client(Transport::Tcp, "watcher");
    watcher.subscribe("last/will");
    let mut wire = wire(&running);
    wire.write_all(&connect_with_will("client", "last/will", "words"))
        .unwrap();
    assert_eq!(read_packet(&mut wire).unwrap().first, CONNACK[0]);
    let _stream = subscribed(&wire, "t");
    wire.end_with(&[]);
    assert_eq!(watcher.read().message(), ("last/will", &b"words"[..]));
    eventually("the connection is gone", || running.handle.connections() == 1);
}

#[test]
fn shutdown_does_not_wait_for_data_streams() {
    let running = start_with_streams(2);
    let mut wire = connected(&running, "client");
    let mut stream = subscribed(&wire, "t");
    let begin = Instant::now();
    running.handle.shutdown(Duration::from_secs(60));
    assert!(begin.elapsed() < Duration::from_secs(30), "{:?}", begin.elapsed());
    assert!(read_packet(&mut stream).is_none());
    assert!(read_packet(&mut wire).is_none());
}
