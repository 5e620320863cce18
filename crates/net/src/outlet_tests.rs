//! Queues of every shape through sockets that take little at a time: what arrives is what was queued, in order.

use std::io::Read;
use std::net::{SocketAddr, TcpListener};
use std::thread::{self, JoinHandle};

use broker::CloseCause;
use socket2::SockRef;

use super::*;
use crate::connection::{Handshake, Layer, Stage, Step};

const SLOT: ConnSlot = ConnSlot(0);

/// A connection with a small kernel buffer, and a thread that reads the other end to its end.
fn connection() -> (Connection, JoinHandle<Vec<u8>>) {
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
        step: Step::Connect,
        address: peer,
        certificate_common_name: None,
        certificate: None,
        reserved_bytes: 0,
    };
    let mut connection = Connection::new(TcpStream::from_std(socket), 0, handshake);
    connection.stage = Stage::Closing {
        cause: CloseCause::Requested,
        is_open: true,
    };
    (connection, reader)
}

/// Queues slices of these lengths so that no two touch in the arena.
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

/// Writes until all is taken, ending the outbox' tick whenever the socket is full, as the worker does.
fn write_all(connection: &mut Connection, outbox: &mut Outbox) -> NetCounters {
    let (mut scratch, mut counters) = (Scratch::default(), NetCounters::default());
    loop {
        match write_out(connection, Some((outbox, SLOT)), &mut scratch, &mut counters).unwrap() {
            Flushed::All => return counters,
            Flushed::Blocked | Flushed::Yield => {
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
fn a_plain_queue_arrives_as_it_was_queued() {
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

#[test]
fn a_websocket_queue_arrives_in_whole_binary_frames_with_pongs_between_them() {
    for (name, lengths) in shapes() {
        let (mut connection, reader) = connection();
        connection.layer = Some(Box::new(Layer {
            websocket: Some(WebSocket::default()),
            ..Layer::default()
        }));
        let mut outbox = outbox();
        let mut expected = queue(&mut outbox, &lengths);
        let (mut scratch, mut counters) = (Scratch::default(), NetCounters::default());
        // The first write happens before the ping comes, so that the pong finds a frame half written.
        write_out(&mut connection, Some((&mut outbox, SLOT)), &mut scratch, &mut counters).unwrap();
        connection
            .websocket()
            .unwrap()
            .decoder
            .decode(&mut [0x89, 0x81, 0, 0, 0, 0, b'?']);
        write_all(&mut connection, &mut outbox);
        outbox.end_tick();
        expected.extend(queue(&mut outbox, &[300]));
        write_all(&mut connection, &mut outbox);
        drop(connection);
        let (payload, pongs) = unframe(&reader.join().unwrap());
        assert!(payload == expected, "{name}");
        assert_eq!(pongs, [b"?".to_vec()], "{name}");
    }
}

/// Payload of binary frames, and the pongs.
fn unframe(mut bytes: &[u8]) -> (Vec<u8>, Vec<Vec<u8>>) {
    let (mut payload, mut pongs) = (Vec::new(), Vec::new());
    while !bytes.is_empty() {
        let (length, header) = match bytes[1] {
            126 => (u64::from(u16::from_be_bytes([bytes[2], bytes[3]])), 4),
            127 => (u64::from_be_bytes(bytes[2..10].try_into().unwrap()), 10),
            length => (u64::from(length), 2),
        };
        let (frame, rest) = bytes.split_at(header + length as usize);
        match frame[0] {
            0x82 => payload.extend_from_slice(&frame[header..]),
            0x8A => pongs.push(frame[header..].to_vec()),
            other => panic!("unexpected frame {other:#x}"),
        }
        bytes = rest;
    }
    (payload, pongs)
}

#[test]
fn an_idle_websocket_owns_no_buffer() {
    let (mut connection, reader) = connection();
    connection.layer = Some(Box::new(Layer {
        websocket: Some(WebSocket::default()),
        ..Layer::default()
    }));
    let mut outbox = outbox();
    queue(&mut outbox, &[10; 3]);
    write_all(&mut connection, &mut outbox);
    assert!(connection.websocket().unwrap().is_between_frames());
    drop(connection);
    reader.join().unwrap();
}

#[test]
fn many_small_slices_leave_in_few_writes() {
    let (mut connection, reader) = connection();
    SockRef::from(&connection.socket)
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
