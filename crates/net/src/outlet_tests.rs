//! Tests that queues of every shape arrive complete and in order through sockets that accept little at a time.

use std::io::Read;
use std::net::{SocketAddr, TcpListener};
use std::thread::{self, JoinHandle};

use broker::CloseCause;
use mio::net::TcpStream;
use socket2::SockRef;

use super::*;
use crate::connection::{ConnectionLayers, ConnectionStage, Handshake, HandshakeStep};

const SLOT: ConnSlot = ConnSlot(0);

/// Creates a connection with a small kernel buffer, and a thread that reads the other end to its end.
fn connection() -> (SocketConnection, JoinHandle<Vec<u8>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let reader = thread::spawn(move || {
        let mut stream = std::net::TcpStream::connect(address).unwrap();
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).unwrap();
        bytes
    });
    let (socket, peer): (_, SocketAddr) = listener.accept().unwrap();
    SockRef::from(&socket).set_send_buffer_size(64 * 1024).unwrap();
    socket.set_nonblocking(true).unwrap();
    let handshake = Handshake {
        step: HandshakeStep::Connect,
        address: peer,
        certificate_common_name: None,
        certificate: None,
        reserved_bytes: 0,
    };
    let mut connection = SocketConnection::new(TcpStream::from_std(socket), 0, handshake);
    connection.stage = ConnectionStage::Closing {
        cause: CloseCause::Requested,
        is_open: true,
    };
    (connection, reader)
}

/// Queues slices of these lengths that are not adjacent in the arena.
fn queue(outbox: &mut Outbox, lengths: &[usize]) -> Vec<u8> {
    let mut expected = Vec::new();
    for (index, length) in lengths.iter().enumerate() {
        let mark = outbox.mark();
        let bytes: Vec<u8> = (0..*length).map(|n| (n * 7 + index * 13) as u8).collect();
        outbox.arena.extend_from_slice(&bytes);
        let range = outbox.range_from(mark);
        outbox.push(SLOT, range);
        outbox.arena.push(0xEE);
        expected.extend(bytes);
    }
    expected
}

fn outbox() -> Outbox {
    let mut outbox = Outbox::default();
    outbox.open(SLOT);
    outbox
}

/// Writes the whole queue, and ends the outbox's tick whenever the socket is full, as the worker does.
fn write_all(connection: &mut SocketConnection, outbox: &mut Outbox) -> NetCounters {
    let (mut scratch, mut counters) = (WriteBuffers::default(), NetCounters::default());
    loop {
        match write_out(connection, Some((outbox, SLOT)), &mut scratch, &mut counters).unwrap() {
            FlushResult::All => return counters,
            FlushResult::Blocked | FlushResult::Yield => {
                outbox.end_tick();
                thread::yield_now();
            }
        }
    }
}

fn shapes() -> Vec<(&'static str, Vec<usize>)> {
    vec![
        ("one small", vec![5]),
        ("one large", vec![3_000_000]),
        ("few", vec![100, 1, 70_000, 3]),
        ("many small", vec![40; 5_000]),
        ("many middling", vec![1_000; 500]),
        ("more than a vector of large ones", vec![20_000; 150]),
        ("beyond one turn", vec![1_500_000; 6]),
    ]
}

#[test]
fn plain_queue_arrives_unchanged() {
    for (name, lengths) in shapes() {
        let (mut connection, reader) = connection();
        let mut outbox = outbox();
        let mut expected = queue(&mut outbox, &lengths);
        let mut counters = write_all(&mut connection, &mut outbox);
        outbox.end_tick();
        expected.extend(queue(&mut outbox, &[9, 9]));
        counters.bytes_out += write_all(&mut connection, &mut outbox).bytes_out;
        drop(connection);
        assert!(reader.join().unwrap() == expected, "{name}");
        assert_eq!(
            (counters.bytes_out, outbox.queued_bytes(SLOT)),
            (expected.len() as u64, 0),
            "{name}"
        );
    }
}

/// Queues PUBLISH packets of about these lengths, each in up to three slices. Returns the packets.
fn queue_packets(outbox: &mut Outbox, lengths: &[usize]) -> Vec<Vec<u8>> {
    let packet = |(index, length): (usize, &usize)| {
        let mut packet = vec![0x30];
        let mut remaining = *length;
        while remaining >= 0x80 {
            packet.push(remaining as u8 | 0x80);
            remaining >>= 7;
        }
        packet.push(remaining as u8);
        packet.extend((0..*length).map(|n| (n * 7 + index * 13) as u8));
        packet
    };
    let packets: Vec<Vec<u8>> = lengths.iter().enumerate().map(packet).collect();
    for packet in &packets {
        let (header, payload) = packet.split_at(1);
        let (first, second) = payload.split_at(payload.len() / 2);
        for part in [header, first, second].into_iter().filter(|part| !part.is_empty()) {
            let mark = outbox.mark();
            outbox.arena.extend_from_slice(part);
            let range = outbox.range_from(mark);
            outbox.push(SLOT, range);
            outbox.arena.push(0xEE);
        }
    }
    packets
}

#[test]
fn websocket_packets_arrive_in_own_frames_with_pongs_between() {
    for (name, lengths) in shapes() {
        let (mut connection, reader) = connection();
        connection.layer = Some(Box::new(ConnectionLayers {
            websocket: Some(WebSocketState::default()),
            ..ConnectionLayers::default()
        }));
        let mut outbox = outbox();
        let mut expected = queue_packets(&mut outbox, &lengths);
        let (mut scratch, mut counters) = (WriteBuffers::default(), NetCounters::default());
        // Write once before the ping arrives, so that the pong has to wait for a partly written frame.
        write_out(&mut connection, Some((&mut outbox, SLOT)), &mut scratch, &mut counters).unwrap();
        connection
            .websocket()
            .unwrap()
            .decoder
            .decode(&mut [0x89, 0x81, 0, 0, 0, 0, b'?']);
        write_all(&mut connection, &mut outbox);
        outbox.end_tick();
        expected.extend(queue_packets(&mut outbox, &[300]));
        write_all(&mut connection, &mut outbox);
        drop(connection);
        let (payloads, pongs) = unframe(&reader.join().unwrap());
        assert!(payloads == expected, "{name}");
        assert_eq!(pongs, [b"?".to_vec()], "{name}");
    }
}

#[test]
fn packet_of_more_slices_than_one_write_gets_one_frame() {
    let (mut connection, reader) = connection();
    connection.layer = Some(Box::new(ConnectionLayers {
        websocket: Some(WebSocketState::default()),
        ..ConnectionLayers::default()
    }));
    let mut outbox = outbox();
    let body = [7; 6_000];
    let mut packet = vec![0x30, 0xF0, 0x2E];
    packet.extend(body);
    for part in packet.chunks(3) {
        let mark = outbox.mark();
        outbox.arena.extend_from_slice(part);
        let range = outbox.range_from(mark);
        outbox.push(SLOT, range);
        outbox.arena.push(0xEE);
    }
    write_all(&mut connection, &mut outbox);
    drop(connection);
    assert_eq!(unframe(&reader.join().unwrap()).0, [packet]);
}

/// Returns the payloads of the binary frames, and the pongs.
fn unframe(mut bytes: &[u8]) -> (Vec<Vec<u8>>, Vec<Vec<u8>>) {
    let (mut payloads, mut pongs) = (Vec::new(), Vec::new());
    while !bytes.is_empty() {
        let (length, header) = match bytes[1] {
            126 => (u64::from(u16::from_be_bytes([bytes[2], bytes[3]])), 4),
            127 => (u64::from_be_bytes(bytes[2..10].try_into().unwrap()), 10),
            length => (u64::from(length), 2),
        };
        let (frame, rest) = bytes.split_at(header + length as usize);
        match frame[0] {
            0x82 => payloads.push(frame[header..].to_vec()),
            0x8A => pongs.push(frame[header..].to_vec()),
            other => panic!("unexpected frame {other:#x}"),
        }
        bytes = rest;
    }
    (payloads, pongs)
}

#[test]
fn idle_websocket_owns_no_buffer() {
    let (mut connection, reader) = connection();
    connection.layer = Some(Box::new(ConnectionLayers {
        websocket: Some(WebSocketState::default()),
        ..ConnectionLayers::default()
    }));
    let mut outbox = outbox();
    queue_packets(&mut outbox, &[10; 3]);
    write_all(&mut connection, &mut outbox);
    assert!(connection.websocket().unwrap().is_between_frames());
    drop(connection);
    reader.join().unwrap();
}

#[test]
fn many_small_slices_are_sent_in_few_writes() {
    let (mut connection, reader) = connection();
    SockRef::from(&*connection.socket.tcp().unwrap())
        .set_send_buffer_size(1024 * 1024)
        .unwrap();
    let mut outbox = outbox();
    queue(&mut outbox, &[40; 1000]);
    let counters = write_all(&mut connection, &mut outbox);
    assert!(
        counters.writes < 1000 / VECTOR_SLICES as u64 || counters.writes_blocked > 0,
        "{}",
        counters.writes
    );
    drop(connection);
    assert_eq!(reader.join().unwrap().len(), 40_000);
}
