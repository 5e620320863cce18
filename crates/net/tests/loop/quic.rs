//! Tests MQTT over QUIC: what differs from a TCP connection.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, UdpSocket};
use std::sync::mpsc::channel;
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use broker::{ConnectionEvent, ShardId, Transport, home_shard};
use net::{ConnectionObserver, EarlyCloseLine, EarlyCloseReason};
use quinn_proto::ConnectionError;

use super::client::*;
use super::quic_limits::initial;
use super::quic_wire::{QuicWire, with_protocol};
use super::server::*;
use super::tls::Witness;

fn wire(running: &Running) -> QuicWire {
    QuicWire::connect(running.address(Transport::Quic), &running.authority.client_config())
}

fn code(error: &ConnectionError) -> u64 {
    match error {
        ConnectionError::ConnectionClosed(close) => close.error_code.into(),
        ConnectionError::ApplicationClosed(close) => close.error_code.into_inner(),
        other => panic!("not closed by the server: {other:?}"),
    }
}

fn connect_with_keep_alive(client_id: &str, seconds: u8) -> Vec<u8> {
    let mut bytes = connect_with_will(client_id, "last/will", "words");
    bytes[11] = seconds;
    bytes
}

#[test]
fn client_without_the_protocol_name_is_rejected() {
    let running = start(2);
    let config = with_protocol(&running.authority.client_config(), b"h3");
    let Err(error) = QuicWire::try_connect(running.address(Transport::Quic), config) else {
        panic!("accepted")
    };
    // no_application_protocol
    assert_eq!(code(&error), 0x178);
    eventually("the rejection is counted", || {
        running.refused(Transport::Quic, EarlyCloseReason::TlsHandshake) == 1
    });
    let [close] = &running.handle.early_closes(10)[..] else {
        panic!("one entry")
    };
    assert_eq!(close.detail, "the client does not offer the protocol mqtt (ALPN)");
    assert_eq!(close.transport, Transport::Quic);
    assert_eq!(running.handle.connections(), 0);
}

#[test]
fn client_certificate_is_required_and_reaches_authentication() {
    let witness = Arc::new(Witness::default());
    let mut options = options(4);
    options.access = witness.clone();
    let mutual = options.authority.mutual_config();
    options.listener(Transport::Quic).tls = Some(for_quic(&mutual));
    let running = options.start();
    let address = running.address(Transport::Quic);
    for n in 0..4 {
        let name = format!("meter-{n}");
        let config = running.authority.client_config_as(&running.authority, &name);
        Client::connect(QuicWire::connect(address, &config), &name).ping();
        let seen = witness.seen.lock().unwrap().pop().unwrap();
        assert_eq!(seen.0.as_deref(), Some(name.as_str()));
        assert_eq!(seen.1, Ipv4Addr::LOCALHOST);
    }
    // In TLS 1.3 the client may believe that the handshake is complete before the server has rejected it.
    let stranger = Authority::new();
    for (config, alert) in [
        // certificate_required, and decrypt_error: both authorities have the same name.
        (running.authority.client_config(), 116),
        (running.authority.client_config_as(&stranger, "meter-1"), 51),
    ] {
        let error = match QuicWire::try_connect(address, with_protocol(&config, b"mqtt")) {
            Ok(wire) => wire.wait_until_lost(),
            Err(error) => error,
        };
        assert_eq!(code(&error), 0x100 + alert);
    }
    eventually("the rejections are counted", || {
        running.refused(Transport::Quic, EarlyCloseReason::TlsHandshake) == 2
    });
}

#[test]
fn client_that_changes_its_address_stays_connected() {
    let running = start(4);
    let mut watcher = running.client(Transport::Tcp, "watcher");
    watcher.subscribe("from/#");
    for n in 0..8 {
        let mut wire = wire(&running);
        wire.write_all(&connect(&format!("mover-{n}"))).unwrap();
        assert_eq!(read_packet(&mut wire).unwrap().first, 0x20);
        wire.write_all(&subscribe(1, &format!("to/{n}"), 0)).unwrap();
        assert_eq!(read_packet(&mut wire).unwrap().first, 0x90);
        wire.migrate();
        wire.write_all(&publish(&format!("from/{n}"), b"another port")).unwrap();
        assert_eq!(watcher.read().message().1, b"another port");
        watcher.send(&publish(&format!("to/{n}"), b"to another port"));
        assert_eq!(read_packet(&mut wire).unwrap().message().1, b"to another port");
    }
    assert!(running.handle.counters().moved > 0, "no connection moved to its worker");
}

#[test]
fn new_address_is_shown_when_the_client_receives_there() {
    let running = start(4);
    let mut wire = wire(&running);
    wire.write_all(&connect("mover")).unwrap();
    assert_eq!(read_packet(&mut wire).unwrap().first, 0x20);
    let shown = || {
        let clients = running.handle.call_all(PATIENCE, |shard, _| {
            shard.inspect().client("mover").map(|client| client.address)
        });
        clients.unwrap().into_iter().flatten().next().unwrap()
    };
    let ping = |wire: &mut QuicWire| {
        wire.write_all(&PINGREQ).unwrap();
        assert_eq!(read_packet(wire).unwrap().first, PINGRESP);
    };
    for _ in 0..3 {
        let address = wire.migrate();
        eventually("the new address is shown", || {
            ping(&mut wire);
            shown() == address
        });
        wire.send_from_another_address(&PINGREQ);
        assert_eq!(read_packet(&mut wire).unwrap().first, PINGRESP);
        ping(&mut wire);
        assert_eq!(shown(), address, "the client does not receive there");
    }
}

/// Blocks the worker that reports an early close.
#[derive(Default)]
struct Gate {
    /// Whether a worker waits, and whether it may continue.
    state: Mutex<(bool, bool)>,
    changed: Condvar,
}

impl ConnectionObserver for Gate {
    fn event(&self, _: &ConnectionEvent, _: bool) {}

    fn early_close(&self, _: &EarlyCloseLine) {
        let mut state = self.state.lock().unwrap();
        state.0 = true;
        self.changed.notify_all();
        drop(self.changed.wait_while(state, |state| !state.1).unwrap());
    }
}

#[test]
fn shutdown_ends_with_a_connection_that_moves_to_a_worker_without_connections() {
    let gate = Arc::new(Gate::default());
    let mut options = options(3);
    options.observer = gate.clone();
    let running = options.start();
    let (handle, address) = (running.handle.clone(), running.address(Transport::Quic));
    // Worker 1 reads the socket of the listener with the index 4.
    let mut ids = (0..).map(|n| format!("mover-{n}"));
    let client_id = ids.find(|id| home_shard(id, 3) == Some(ShardId(0))).unwrap();
    let mut wire = wire(&running);
    // While worker 1 is busy, its socket receives the first datagram of a client that it rejects, and the CONNECT.
    let (release, released) = channel();
    let _busy = handle.call_async(ShardId(1), move |_, _| released.recv()).unwrap();
    let rejected = with_protocol(&running.authority.client_config(), b"h3");
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    socket.send_to(&initial(address, rejected), address).unwrap();
    wire.write_all(&connect(&client_id)).unwrap();
    release.send(()).unwrap();
    let state = gate.state.lock().unwrap();
    drop(gate.changed.wait_while(state, |state| !state.0).unwrap());
    // It is rejecting that client, and will move the connection to worker 0 before it reads its mailbox again.
    let stopping = handle.clone();
    let shutdown = thread::spawn(move || {
        let begin = Instant::now();
        stopping.shutdown(Duration::from_secs(60));
        begin.elapsed()
    });
    // Worker 0 has no connections, and must not end because of that.
    let until = Instant::now() + Duration::from_millis(500);
    while Instant::now() < until && handle.call(ShardId(0), PATIENCE, |_, _| ()).is_ok() {
        thread::sleep(Duration::from_millis(2));
    }
    gate.state.lock().unwrap().1 = true;
    gate.changed.notify_all();
    let duration = shutdown.join().unwrap();
    assert!(duration < Duration::from_secs(30), "{duration:?}");
}

#[test]
fn further_streams_are_reset_and_the_connection_stays() {
    let running = start(1);
    let mut wire = wire(&running);
    wire.write_all(&connect("streams")).unwrap();
    assert_eq!(read_packet(&mut wire).unwrap().first, 0x20);
    // More than a client may have at once.
    for _ in 0..20 {
        assert_eq!(wire.code_of_another_stream(&publish("other", b"stream")), 3);
    }
    wire.write_all(&PINGREQ).unwrap();
    assert_eq!(read_packet(&mut wire).unwrap().first, PINGRESP);
}

#[test]
fn vanished_client_is_closed_by_its_keep_alive() {
    let running = start(2);
    let mut watcher = running.client(Transport::Tcp, "watcher");
    watcher.subscribe("last/will");
    let mut wire = wire(&running);
    wire.write_all(&connect_with_keep_alive("vanishing", 1)).unwrap();
    assert_eq!(read_packet(&mut wire).unwrap().first, 0x20);
    let begin = Instant::now();
    wire.vanish();
    assert_eq!(watcher.read().message(), ("last/will", &b"words"[..]));
    assert!(begin.elapsed() >= Duration::from_secs(1));
}

#[test]
fn closed_connection_publishes_the_will() {
    let running = start(2);
    let mut watcher = running.client(Transport::Tcp, "watcher");
    watcher.subscribe("last/will");
    let mut wire = wire(&running);
    wire.write_all(&connect_with_will("closing", "last/will", "words"))
        .unwrap();
    assert_eq!(read_packet(&mut wire).unwrap().first, 0x20);
    wire.close(0);
    assert_eq!(watcher.read().message(), ("last/will", &b"words"[..]));
    eventually("the connection is gone", || running.handle.connections() == 1);
}

#[test]
fn silent_connection_is_closed_with_the_reason() {
    let mut options = options(2);
    options.listener(Transport::Quic).handshake_timeout = Duration::from_secs(2);
    let running = options.start();
    let wire = wire(&running);
    let close = match wire.wait_until_lost() {
        ConnectionError::ApplicationClosed(close) => close,
        other => panic!("not closed by the server: {other:?}"),
    };
    assert_eq!(
        (close.error_code.into_inner(), &close.reason[..]),
        (2, &b"handshake_timeout"[..])
    );
    assert_eq!(running.refused(Transport::Quic, EarlyCloseReason::HandshakeTimeout), 1);
    assert_eq!(running.handle.connections(), 0);
}

#[test]
fn paused_connection_stops_the_client_and_loses_nothing() {
    let mut options = options(1);
    options.listener(Transport::Quic).receive_buffer_bytes = Some(16 * 1024);
    options.shard.max_packet_size = 4 * 1024 * 1024;
    let running = options.start();
    let mut subscriber = running.client(Transport::Quic, "subscriber");
    subscriber.subscribe("bulk");
    let mut publisher = running.client(Transport::Quic, "publisher");
    let payload: Vec<u8> = (0..1024 * 1024u32).map(|n| (n % 253) as u8).collect();
    for _ in 0..3 {
        publisher.send(&publish_qos1(9, "bulk", &payload));
        assert_eq!(publisher.read().first, 0x40);
        assert!(subscriber.read().message() == ("bulk", payload.as_slice()));
    }
}

#[test]
fn garbage_is_ignored() {
    let running = start(2);
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = running.address(Transport::Quic);
    for size in [0, 1, 20, 100, 1200, 1400] {
        for first in [0x00, 0x10, 0x40, 0xC0, 0xFF] {
            let mut datagram = vec![7; size];
            if let Some(byte) = datagram.first_mut() {
                *byte = first;
            }
            socket.send_to(&datagram, address).unwrap();
        }
    }
    running.client(Transport::Quic, "client").ping();
}

/// The client of a server that has restarted learns from a stateless reset that its connection has ended.
#[test]
fn client_learns_at_once_that_the_server_has_restarted() {
    let mut first = options(2);
    first.listener(Transport::Quic).stateless_reset_secret = Some(b"secret".to_vec().into());
    let (authority, tls) = (first.authority.clone(), first.listener(Transport::Quic).tls.clone());
    let running = first.start();
    let address = running.address(Transport::Quic);
    let mut wire = QuicWire::connect(address, &authority.client_config());
    wire.write_all(&connect("client")).unwrap();
    assert_eq!(read_packet(&mut wire).unwrap().first, 0x20);
    // The client does not receive that the first server stops.
    wire.set_deaf(true);
    running.handle.shutdown(Duration::ZERO);
    drop(running);
    let mut second = options(2);
    second.listener(Transport::Quic).stateless_reset_secret = Some(b"secret".to_vec().into());
    second.listener(Transport::Quic).tls = tls;
    second.listener(Transport::Quic).bind = address;
    let _running = second.start();
    // Datagrams of the first server are lost with the old socket.
    wire.migrate();
    wire.set_deaf(false);
    wire.write_all(&PINGREQ).unwrap();
    assert_eq!(wire.wait_until_lost(), ConnectionError::Reset);
    assert!(wire.read(&mut [0]).is_err());
}
