//! Tests limits of MQTT over QUIC: handshakes of forged addresses, and memory.

use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, Instant};

use broker::{TokenRate, Transport};
use bytes::BytesMut;
use net::EarlyCloseReason;
use quinn_proto::{Connection, DatagramEvent, Endpoint};

use super::client::*;
use super::quic_wire::{QuicWire, with_protocol};
use super::server::*;

const KIB: usize = 1024;

/// Memory of a window of 512 KiB that counts in `max_quic_windows`: without the 16 KiB of the start.
const RECEIVE_WINDOW: usize = 496 * KIB * 5 / 2;
const SEND_WINDOW: usize = 496 * KIB * 3 / 2;

/// Sends the first datagram of a handshake from `count` sockets, as a client with a spoofed address could.
fn begin_handshakes(running: &Running, count: usize) -> Vec<UdpSocket> {
    let address = running.address(Transport::Quic);
    let config = with_protocol(&running.authority.client_config(), b"mqtt");
    // Creating a datagram takes longer than sending it, and the handshakes must not time out before the last one.
    let initials: Vec<_> = (0..count).map(|_| initial(address, config.clone())).collect();
    let sockets = initials.iter().map(|datagram| {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        socket.send_to(datagram, address).unwrap();
        socket
    });
    sockets.collect()
}

pub fn initial(address: SocketAddr, config: Arc<rustls::ClientConfig>) -> Vec<u8> {
    next_datagram(&mut handshake(address, config).1)
}

fn handshake(address: SocketAddr, config: Arc<rustls::ClientConfig>) -> (Endpoint, Connection) {
    let crypto = quinn_proto::crypto::rustls::QuicClientConfig::try_from(config).unwrap();
    let client = quinn_proto::ClientConfig::new(Arc::new(crypto));
    let mut endpoint = Endpoint::new(Arc::new(quinn_proto::EndpointConfig::default()), None, true, None);
    let (_, connection) = endpoint.connect(Instant::now(), client, address, "localhost").unwrap();
    (endpoint, connection)
}

fn next_datagram(connection: &mut Connection) -> Vec<u8> {
    let mut datagram = Vec::new();
    let transmit = connection.poll_transmit(Instant::now(), 1, &mut datagram).unwrap();
    datagram.truncate(transmit.size);
    datagram
}

/// Begins a handshake, shows with the token of a Retry packet that it receives at its address, and does not continue.
fn begin_validated_handshake(running: &Running, from: Ipv4Addr) -> UdpSocket {
    let address = running.address(Transport::Quic);
    let config = with_protocol(&running.authority.client_config(), b"mqtt");
    let (mut endpoint, mut connection) = handshake(address, config);
    let socket = UdpSocket::bind((from, 0)).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket.send_to(&next_datagram(&mut connection), address).unwrap();
    let mut buffer = [0; 2048];
    let size = socket.recv(&mut buffer).unwrap();
    let retry = BytesMut::from(&buffer[..size]);
    let event = endpoint.handle(Instant::now(), address, None, None, retry, &mut Vec::new());
    let Some(DatagramEvent::ConnectionEvent(_, event)) = event else {
        panic!("the first answer is not for the connection");
    };
    connection.handle_event(event);
    socket.send_to(&next_datagram(&mut connection), address).unwrap();
    socket
}

#[test]
fn unfinished_handshakes_are_bounded_and_delay_no_client() {
    const ATTEMPTS: usize = 1000;
    let mut options = options(2);
    options.listener(Transport::Quic).handshake_timeout = Duration::from_secs(4);
    let running = options.start();
    let mut client = running.client(Transport::Quic, "early");
    let _sockets = begin_handshakes(&running, ATTEMPTS);
    eventually("the server has answered all", || {
        let counters = running.handle.counters();
        counters.accepted + counters.quic_retries > ATTEMPTS as u64
    });
    assert!(running.handle.connections() <= 65, "{}", running.handle.connections());
    client.ping();
    running.client(Transport::Quic, "late").ping();
    let timeouts = running.refused(Transport::Quic, EarlyCloseReason::HandshakeTimeout);
    assert_eq!(timeouts, 0, "served only when the others were gone");
    eventually("unfinished handshakes are gone", || running.handle.connections() == 1);
    assert_eq!(running.refused(Transport::Quic, EarlyCloseReason::HandshakeTimeout), 64);
    client.ping();
}

/// In IPv6, a /64 is a network (`client_network`). The machine has one IPv6 address only, so this test uses IPv4.
#[test]
fn unfinished_handshakes_of_one_network_are_bounded() {
    const UNVALIDATED: u64 = 64;
    const PER_NETWORK: u64 = 256;
    let mut options = options(1);
    options.listener(Transport::Quic).handshake_timeout = Duration::from_secs(600);
    let running = options.start();
    let accepted = || running.handle.counters().accepted;
    let refused = || running.refused(Transport::Quic, EarlyCloseReason::HandshakeMemory);
    // All others must repeat a token.
    let _forged = begin_handshakes(&running, UNVALIDATED as usize);
    eventually("all are accepted", || accepted() == UNVALIDATED);
    let begin = |from| begin_validated_handshake(&running, from);
    let mut sockets: Vec<_> = (0..PER_NETWORK + 9).map(|_| begin(Ipv4Addr::LOCALHOST)).collect();
    eventually("the server has answered all", || {
        refused() == 9 && accepted() == UNVALIDATED + PER_NETWORK
    });
    sockets.push(begin(Ipv4Addr::new(127, 0, 0, 2)));
    eventually("another network is accepted", || {
        accepted() == UNVALIDATED + PER_NETWORK + 1
    });
    assert_eq!(refused(), 9);
}

/// An attacker can forge the addresses of the first datagrams.
#[test]
fn forged_addresses_use_up_no_rate_of_honest_clients() {
    const RATE: usize = 20;
    let mut options = options(2);
    let listener = options.listener(Transport::Quic);
    listener.max_connection_rate = Some(TokenRate {
        amount: RATE as u64,
        period_ms: 3_600_000,
    });
    let running = options.start();
    let _sockets = begin_handshakes(&running, 10 * RATE);
    eventually("the server has answered all", || {
        let counters = running.handle.counters();
        counters.accepted + counters.quic_retries >= 10 * RATE as u64
    });
    assert!(running.handle.counters().quic_retries > 0);
    let clients: Vec<_> = (0..RATE)
        .map(|n| running.client(Transport::Quic, &format!("honest-{n}")))
        .collect();
    assert_eq!(running.refused(Transport::Quic, EarlyCloseReason::ConnectionRate), 0);
    // The rate still applies to clients that receive at their address.
    let config = with_protocol(&running.authority.client_config(), b"mqtt");
    if let Ok(wire) = QuicWire::try_connect(running.address(Transport::Quic), config) {
        wire.wait_until_lost();
    }
    assert_eq!(running.refused(Transport::Quic, EarlyCloseReason::ConnectionRate), 1);
    drop(clients);
}

#[test]
fn forged_addresses_leave_connections_to_honest_clients() {
    const CONNECTIONS: usize = 20;
    let mut options = options(2);
    options.listener(Transport::Quic).max_connections = CONNECTIONS;
    let running = options.start();
    let _sockets = begin_handshakes(&running, 10 * CONNECTIONS);
    eventually("the server has answered all", || {
        let counters = running.handle.counters();
        counters.accepted + counters.quic_retries >= 10 * CONNECTIONS as u64
    });
    assert_eq!(running.handle.connections(), CONNECTIONS / 2);
    let mut clients: Vec<_> = (0..CONNECTIONS / 2)
        .map(|n| running.client(Transport::Quic, &format!("honest-{n}")))
        .collect();
    for client in &mut clients {
        client.ping();
    }
    assert_eq!(running.refused(Transport::Quic, EarlyCloseReason::ListenerFull), 0);
}

#[test]
fn windows_of_a_fast_client_grow_and_are_counted() {
    let mut options = options(1);
    options.shard.max_packet_size = 4 * 1024 * KIB as u32;
    let running = options.start();
    let mut publisher = running.client(Transport::Quic, "publisher");
    assert_eq!(running.handle.quic_window_bytes(), 0);
    let payload = vec![7; 1024 * KIB];
    for _ in 0..8 {
        publisher.send(&publish_qos1(9, "bulk", &payload));
        assert_eq!(publisher.read().first, 0x40);
    }
    let bytes = running.handle.quic_window_bytes();
    assert!(bytes > 0 && bytes <= RECEIVE_WINDOW, "{bytes}");
    drop(publisher);
    eventually("the memory is free", || running.handle.quic_window_bytes() == 0);
}

#[test]
fn output_window_of_a_silent_client_grows_to_its_limit_and_is_counted() {
    let running = start(2);
    let mut wire = QuicWire::connect(running.address(Transport::Quic), &running.authority.client_config());
    wire.write_all(&connect("silent")).unwrap();
    assert_eq!(read_packet(&mut wire).unwrap().first, 0x20);
    wire.write_all(&subscribe(1, "bulk", 0)).unwrap();
    assert_eq!(read_packet(&mut wire).unwrap().first, 0x90);
    // It acknowledges nothing any more, so that the output stays in the memory of the server.
    wire.vanish();
    let mut publisher = running.client(Transport::Tcp, "publisher");
    for _ in 0..40 {
        publisher.send(&publish("bulk", &[7; 32 * KIB]));
    }
    publisher.ping();
    eventually("the window is at its limit", || {
        let bytes = running.handle.quic_window_bytes();
        assert!(bytes <= SEND_WINDOW, "{bytes}");
        bytes == SEND_WINDOW
    });
}

#[test]
fn windows_of_all_connections_stay_within_their_memory() {
    let mut options = options(2);
    options.config.max_quic_windows = 400 * KIB;
    options.shard.max_packet_size = 4 * 1024 * KIB as u32;
    let running = options.start();
    let payload = vec![7; 512 * KIB];
    let mut subscriber = running.client(Transport::Quic, "subscriber");
    subscriber.subscribe("bulk");
    let mut publishers: Vec<_> = (0..4)
        .map(|n| running.client(Transport::Quic, &format!("publisher-{n}")))
        .collect();
    for publisher in &mut publishers {
        publisher.send(&publish_qos1(9, "bulk", &payload));
        assert_eq!(publisher.read().first, 0x40);
        assert!(subscriber.read().message() == ("bulk", payload.as_slice()));
        let bytes = running.handle.quic_window_bytes();
        assert!(bytes <= 400 * KIB, "{bytes}");
    }
}

#[test]
fn clients_with_large_windows_leave_memory_for_later_ones() {
    let mut options = options(2);
    options.config.max_quic_windows = 2048 * KIB;
    options.shard.max_packet_size = 4 * 1024 * KIB as u32;
    let running = options.start();
    let packet = publish_qos1(9, "bulk", &[7; 512 * KIB]);
    let mut publishers: Vec<_> = (0..8)
        .map(|n| running.client(Transport::Quic, &format!("publisher-{n}")))
        .collect();
    // Each client keeps its window, because it sends nothing more.
    for publisher in &mut publishers {
        let before = running.handle.quic_window_bytes();
        // On a busy machine a client may be too slow to need a larger window.
        eventually("the window grows", || {
            publisher.send(&packet);
            assert_eq!(publisher.read().first, 0x40);
            running.handle.quic_window_bytes() > before
        });
    }
}

#[test]
fn windows_do_not_grow_before_the_login() {
    let mut options = options(1);
    options.config.maximum_connect_size = 1024 * KIB as u32;
    let running = options.start();
    let mut wire = QuicWire::connect(running.address(Transport::Quic), &running.authority.client_config());
    // A CONNECT whose will is not complete.
    let connect = connect_with_will("slow", "last/will", &"x".repeat(60 * KIB));
    wire.write_all(&connect[..connect.len() - 1]).unwrap();
    eventually("the server has read it", || {
        running.handle.counters().bytes_in > connect.len() as u64
    });
    assert_eq!(running.handle.quic_window_bytes(), 0);
    wire.write_all(&connect[connect.len() - 1..]).unwrap();
    assert_eq!(read_packet(&mut wire).unwrap().first, 0x20);
}
