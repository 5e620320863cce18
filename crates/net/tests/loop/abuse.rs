//! Tests hostile peers. The ids in the names are those of the catalogue of abuse cases.

use std::io::Write;
use std::net::Shutdown;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use broker::{ShardId, Transport};
use net::EarlyCloseReason;

use super::client::*;
use super::server::*;

const MIB: usize = 1024 * 1024;

fn with_handshake_timeout(timeout: Duration) -> Running {
    let mut options = options(2);
    for listener in &mut options.config.listeners {
        listener.handshake_timeout = timeout;
    }
    options.start()
}

#[test]
fn b01_slowloris_is_closed_and_delays_no_client() {
    let running = with_handshake_timeout(Duration::from_secs(1));
    for transport in TRANSPORTS {
        let first_byte: &[u8] = match transport {
            Transport::Tcp => b"\x10",
            Transport::WebSocket => b"G",
            Transport::Tls | Transport::SecureWebSocket => b"\x16",
            Transport::Quic => unreachable!("not a TCP stream"),
        };
        let mut sockets: Vec<_> = (0..75).map(|_| tcp(running.address(transport))).collect();
        for socket in &mut sockets {
            socket.write_all(first_byte).unwrap();
        }
        let begin = Instant::now();
        running.client(transport, "legitimate").ping();
        assert!(begin.elapsed() < Duration::from_secs(1), "{transport:?} served late");
        for socket in &mut sockets {
            assert_eq!(read_to_close(socket), b"", "{transport:?}");
        }
        assert_eq!(
            running.refused(transport, EarlyCloseReason::HandshakeTimeout),
            75,
            "{transport:?}"
        );
    }
}

#[test]
fn b02_a_silent_connection_is_closed() {
    let running = with_handshake_timeout(Duration::from_millis(200));
    for transport in TRANSPORTS {
        assert_eq!(read_to_close(&mut tcp(running.address(transport))), b"");
        assert_eq!(running.refused(transport, EarlyCloseReason::HandshakeTimeout), 1);
    }
    eventually("nothing is left", || running.handle.connections() == 0);
}

#[test]
fn oversized_connect_is_rejected_before_it_is_read() {
    let running = start(1);
    let mut stream = running.tcp();
    stream.write_all(b"\x10\xFF\xFF\xFF\x7F").unwrap();
    assert_eq!(read_to_close(&mut stream), b"");
    assert_eq!(running.refused(Transport::Tcp, EarlyCloseReason::ConnectTooLarge), 1);
}

#[test]
fn large_connects_share_a_budget() {
    let running = start(1);
    // 20 peers send 500 KB of an unfinished CONNECT each, which exceeds the shared budget.
    let mut hoarders = Vec::new();
    for _ in 0..20 {
        let mut stream = running.tcp();
        let mut bytes = b"\x10\xFF\xFF\x1E\x00\x04MQTT\x04\x06\x00\x00\x00\x01c\x00\x01t\xFF\xFF".to_vec();
        bytes.resize(500_000, 0);
        // The server may have closed the connection already.
        let _ = stream.write_all(&bytes);
        hoarders.push(stream);
    }
    eventually("some are refused", || {
        running.refused(Transport::Tcp, EarlyCloseReason::HandshakeMemory) > 0
    });
    drop(hoarders);
    eventually("all are gone", || running.handle.connections() == 0);
    let mut stream = running.tcp();
    stream
        .write_all(&connect_with_will("big", "last", &"x".repeat(65_000)))
        .unwrap();
    assert_eq!(read_packet(&mut stream).unwrap().body, [0, 0]);
}

#[test]
fn a38_a_half_closed_connection_publishes_its_will() {
    let running = start(2);
    for transport in [Transport::Tcp, Transport::WebSocket] {
        let mut watcher = running.client(transport, "watcher");
        watcher.subscribe("last");
        let mut stream = running.open(transport);
        stream.write_all(&connect_with_will("dying", "last", "words")).unwrap();
        read_packet(&mut stream).unwrap();
        stream.tcp().shutdown(Shutdown::Write).unwrap();
        assert_eq!(watcher.read().message(), ("last", &b"words"[..]));
        assert_eq!(read_to_close(&mut stream), b"");
    }
}

/// The end may be a WebSocket close, a TLS close or a FIN, and the client may belong to any worker.
#[test]
fn packets_received_with_the_fin_are_handled() {
    const CLIENTS: usize = 12;
    let running = start(4);
    for transport in ALL_TRANSPORTS {
        let mut watcher = running.client(transport, "watcher");
        watcher.subscribe("last/#");
        for n in 0..CLIENTS {
            let mut bytes = connect_with_will(&format!("{transport:?}-{n}"), "last/will", "words");
            bytes.extend(publish("last/message", b"before"));
            let mut stream = running.open(transport);
            stream.end_with(&bytes);
            assert_eq!(
                watcher.read().message(),
                ("last/message", &b"before"[..]),
                "{transport:?} {n}"
            );
            assert_eq!(
                watcher.read().message(),
                ("last/will", &b"words"[..]),
                "{transport:?} {n}"
            );
        }
    }
}

/// If a client closes with unread bytes, its system sends a reset directly after its last packets.
#[test]
fn packets_received_before_a_reset_are_handled() {
    let running = start(1);
    for transport in TRANSPORTS {
        for says_goodbye in [true, false] {
            let mut watcher = running.client(transport, "watcher");
            watcher.subscribe("last/#");
            let mut leaving = running.open(transport);
            leaving
                .write_all(&connect_with_will("leaving", "last/will", "words"))
                .unwrap();
            assert_eq!(read_packet(&mut leaving).unwrap().body, [0, 0]);
            // The worker receives everything at once.
            let (release, released) = channel::<()>();
            let (enter, entered) = channel();
            let stuck = running.handle.call_async(ShardId(0), move |_, _| {
                enter.send(()).unwrap();
                released.recv()
            });
            entered.recv_timeout(PATIENCE).unwrap();
            let mut bytes = publish("last/message", b"before");
            if says_goodbye {
                bytes.extend(packet(0xE0, b""));
            }
            leaving.write_all(&bytes).unwrap();
            socket2::SockRef::from(leaving.tcp())
                .set_linger(Some(Duration::ZERO))
                .unwrap();
            drop(leaving);
            drop(release);
            stuck.unwrap().wait(PATIENCE).unwrap().unwrap_err();
            assert_eq!(
                watcher.read().message(),
                ("last/message", &b"before"[..]),
                "{transport:?}"
            );
            if !says_goodbye {
                assert_eq!(watcher.read().message(), ("last/will", &b"words"[..]), "{transport:?}");
            }
            eventually("it is gone", || running.handle.connections() == 1);
            // [MQTT-3.14.4-3]: no other message arrived before this one.
            watcher.send(&publish("last/fence", b""));
            assert_eq!(watcher.read().message(), ("last/fence", &b""[..]), "{transport:?}");
            drop(watcher);
            eventually("all are gone", || running.handle.connections() == 0);
        }
    }
}

#[test]
fn a39_other_protocols_on_the_plain_port_get_no_mqtt_answer() {
    let running = start(2);
    let hello = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 and so on, as a TLS ClientHello would";
    for bytes in [
        &hello[..],
        b"GET / HTTP/1.1\r\nHost: broker\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.6\r\n",
    ] {
        let mut stream = running.tcp();
        stream.write_all(bytes).unwrap();
        assert_eq!(read_to_close(&mut stream), b"");
    }
    running.client(Transport::Tcp, "alive").ping();
}

#[test]
fn a40_packets_after_disconnect_are_ignored() {
    let running = start(1);
    let mut watcher = running.client(Transport::Tcp, "watcher");
    watcher.subscribe("#");
    let mut client = running.client(Transport::Tcp, "leaver");
    client.send(&[&DISCONNECT[..], &publish("late", b"x")].concat());
    assert_eq!(read_to_close(&mut client.0), b"");
    // The server discards even a flood after DISCONNECT, up to a limit.
    let _ = client.0.write_all(&vec![0; 2 * MIB]);
    watcher.ping();
}

#[test]
fn last_packet_reaches_a_client_that_still_sends() {
    let running = start(1);
    for transport in ALL_TRANSPORTS {
        let mut old = running.open(transport);
        old.write_all(&connect_v5("same")).unwrap();
        assert_eq!(read_packet(&mut old).unwrap().first, 0x20);
        old.write_all(&publish_v5_burst()).unwrap();
        let mut new = running.open(transport);
        new.write_all(&connect_v5("same")).unwrap();
        assert_eq!(read_packet(&mut new).unwrap().first, 0x20);
        // [MQTT-3.1.4-3]: the old connection gets a DISCONNECT, and a reset must not overtake it.
        let last = read_packet(&mut old).unwrap();
        assert_eq!((last.first, last.body[0]), (0xE0, 0x8E), "{transport:?}");
        assert_eq!(read_packet(&mut old), None);
    }
}

fn publish_v5_burst() -> Vec<u8> {
    packet(0x30, b"\x00\x01t\x00payload").repeat(1000)
}
