//! Tests limits of the resident memory that hostile peers can use. Memory is measured per process, so these tests have
//! their own process and run one after the other.

// Helpers of tests are tests, too; not all of them are needed here.
#![allow(clippy::unwrap_used, dead_code)]

extern crate tidewire_net as net;

#[path = "../loop/client.rs"]
mod client;
#[path = "../loop/quic_wire.rs"]
mod quic_wire;
#[path = "../loop/server.rs"]
mod server;

use std::io::{ErrorKind, Read, Write};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use broker::Transport;
use net::EarlyCloseReason;

use client::*;
use server::*;

const MIB: usize = 1024 * 1024;

/// Returns the resident memory of this process.
fn resident_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_ascii_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 1024
}

fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

#[test]
fn b03_a_declared_size_reserves_no_memory() {
    let _alone = alone();
    const DECLARED: u32 = 256 * MIB as u32 - 1;
    let mut options = options(1);
    options.shard.max_packet_size = DECLARED + 5;
    options.config.maximum_connect_size = DECLARED + 5;
    let running = options.start();
    let before = resident_bytes();
    let mut beginnings = Vec::new();
    for n in 0..50 {
        // Half of the peers declare the size before CONNECT, half of them as connected clients.
        let mut stream = running.tcp();
        if n % 2 == 0 {
            stream
                .write_all(b"\x10\xFF\xFF\xFF\x7F\x00\x04MQTT\x04\x02\x00\x00")
                .unwrap();
        } else {
            stream.write_all(&connect(&format!("b03-{n}"))).unwrap();
            read_packet(&mut stream).unwrap();
            stream.write_all(b"\x30\xFF\xFF\xFF\x7F\x00\x01t").unwrap();
        }
        stream.write_all(&[0; 1024]).unwrap();
        beginnings.push(stream);
    }
    running.client(Transport::Tcp, "other").ping();
    eventually("all bytes are read", || running.handle.counters().bytes_in > 50 * 1024);
    assert!(resident_bytes().saturating_sub(before) < 64 * MIB);
}

#[test]
fn b16_unread_answers_are_bounded_and_none_is_lost() {
    let _alone = alone();
    const PINGS: usize = 2_000_000;
    let running = start(1);
    let before = resident_bytes();
    let mut client = running.client(Transport::Tcp, "pinger");
    let packets = PINGREQ.repeat(PINGS);
    client
        .0
        .tcp()
        .set_write_timeout(Some(Duration::from_millis(500)))
        .unwrap();
    let mut sent = 0;
    while sent < packets.len() {
        match client.0.write(&packets[sent..]) {
            Ok(bytes) => sent += bytes,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => break,
            Err(error) => panic!("{error}"),
        }
    }
    running.client(Transport::Tcp, "other").ping();
    let grown = resident_bytes().saturating_sub(before);
    assert!(grown < 64 * MIB, "{grown}");
    let answered = read_pings(&mut client, sent / 2);
    assert_eq!(answered, sent / 2);
}

#[test]
fn b17_a_subscribe_flood_without_reading_is_bounded() {
    let _alone = alone();
    let running = start(1);
    let before = resident_bytes();
    let mut client = running.client(Transport::Tcp, "subscriber");
    client
        .0
        .tcp()
        .set_write_timeout(Some(Duration::from_millis(500)))
        .unwrap();
    let packets: Vec<u8> = (0..20_000u32)
        .flat_map(|n| subscribe((n % 65_535) as u16 + 1, "flood", 0))
        .collect();
    let mut sent = 0;
    while sent < packets.len() {
        match client.0.write(&packets[sent..]) {
            Ok(bytes) => sent += bytes,
            Err(_) => break,
        }
    }
    running.client(Transport::Tcp, "other").ping();
    assert!(resident_bytes().saturating_sub(before) < 64 * MIB);
}

fn read_pings(client: &mut Client, count: usize) -> usize {
    let mut bytes = vec![0; count * 2];
    client.0.read_exact(&mut bytes).unwrap();
    bytes.chunks(2).filter(|pair| pair[0] == PINGRESP).count()
}

#[test]
fn w06_a_ping_flood_and_a_huge_head_are_bounded() {
    let _alone = alone();
    let running = start(1);
    let before = resident_bytes();
    let mut flooder = WebSocket::upgrade(tcp(running.address(Transport::WebSocket)));
    flooder.write_all(&connect("flooder")).unwrap();
    assert_eq!(read_packet(&mut flooder).unwrap().first, 0x20);
    let pings = frame(0x89, &[b'p'; 125]).repeat(1000);
    for _ in 0..100 {
        flooder.stream.write_all(&pings).unwrap();
    }
    flooder.write_all(&PINGREQ).unwrap();
    assert_eq!(read_packet(&mut flooder).unwrap().first, PINGRESP);
    assert!(!flooder.pongs.is_empty() && flooder.pongs.len() <= 100_000);
    let mut long = tcp(running.address(Transport::WebSocket));
    // The server may close the connection before it has read all bytes.
    let _ = long.write_all(&[&b"GET /mqtt HTTP/1.1\r\nX: "[..], &vec![b'a'; 100_000]].concat());
    let _ = read_to_close(&mut long);
    eventually("the head is refused", || {
        running.refused(Transport::WebSocket, EarlyCloseReason::WebSocketHandshake) == 1
    });
    assert!(resident_bytes().saturating_sub(before) < 32 * MIB);
}

/// Measures the total cost of an idle connection with its session.
#[test]
fn an_idle_connection_costs_less_than_a_kibibyte() {
    const CONNECTIONS: usize = 3000;
    let _alone = alone();
    let running = start(2);
    let mut streams = Vec::with_capacity(CONNECTIONS);
    let mut before = 0;
    for n in 0..CONNECTIONS + 200 {
        if n == 200 {
            // The first connections allocate the shared memory, so they are not measured.
            before = resident_bytes();
        }
        let mut stream = std::net::TcpStream::connect(running.address(Transport::Tcp)).unwrap();
        stream.write_all(&connect(&format!("idle-{n:06}"))).unwrap();
        read_packet(&mut stream).unwrap();
        streams.push(stream);
    }
    let each = resident_bytes().saturating_sub(before) / CONNECTIONS;
    assert!(each <= 1024, "{each} bytes");
}
