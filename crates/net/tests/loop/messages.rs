//! Tests messages through one and several workers, over every transport, with bytes split at any position.

use std::io::{Read, Write};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use broker::{Now, ServerMessage, Shard, ShardId, Transport};
use mqtt::QoS;

use super::client::*;
use super::disk::{Scene, stay_as};
use super::server::*;

/// Enough clients for each of four workers to own at least one of them.
const CLIENTS: usize = 12;

#[test]
fn every_transport_connects_subscribes_and_publishes_through_one_worker() {
    exchange(&start(1));
}

#[test]
fn every_transport_connects_subscribes_and_publishes_through_four_workers() {
    let running = start(4);
    exchange(&running);
    assert!(running.handle.counters().moved > 0, "no connection moved to its worker");
}

pub fn exchange(running: &Running) {
    for transport in ALL_TRANSPORTS {
        let mut clients: Vec<Client> = (0..CLIENTS)
            .map(|n| running.client(transport, &format!("{transport:?}-{n}")))
            .collect();
        for client in &mut clients {
            client.subscribe("news/#");
        }
        for (n, publisher) in (0..CLIENTS).zip(["first", "second"].iter().cycle()) {
            let topic = format!("news/{n}");
            clients[n].send(&publish_qos1(7, &topic, publisher.as_bytes()));
            for (receiver, client) in clients.iter_mut().enumerate() {
                let mut packets = vec![client.read()];
                if receiver == n {
                    packets.push(client.read());
                    packets.sort_by_key(|packet| packet.first);
                    assert_eq!(
                        packets.pop().unwrap(),
                        Packet {
                            first: 0x40,
                            body: vec![0, 7]
                        }
                    );
                }
                assert_eq!(
                    packets[0].message(),
                    (topic.as_str(), publisher.as_bytes()),
                    "{transport:?}"
                );
            }
        }
        for client in &mut clients {
            client.send(&DISCONNECT);
            assert_eq!(read_to_close(&mut client.0), b"");
        }
    }
    eventually("all connections are gone", || running.handle.connections() == 0);
}

/// Abuse case A36.
#[test]
fn a_session_delivered_one_byte_at_a_time_works() {
    let running = start(4);
    for transport in ALL_TRANSPORTS {
        for n in 0..4 {
            let mut stream = running.open(transport);
            let session = [
                connect(&format!("drip-{n}")),
                subscribe(1, "drip", 0),
                publish("drip", b"drop"),
                PINGREQ.to_vec(),
                DISCONNECT.to_vec(),
            ];
            for byte in session.concat() {
                stream.write_all(&[byte]).unwrap();
                stream.flush().unwrap();
            }
            let expected = [
                &CONNACK[..],
                &[0x90, 3, 0, 1, 0],
                &publish("drip", b"drop"),
                &[PINGRESP, 0],
            ]
            .concat();
            assert_eq!(read_to_close(&mut stream), expected, "{transport:?}");
        }
    }
}

/// Abuse case A37. Most of these connections move to another worker with the bytes received so far.
#[test]
fn packets_pipelined_behind_connect_are_handled_in_order_after_the_move() {
    let running = start(4);
    for transport in ALL_TRANSPORTS {
        for n in 0..16 {
            let mut stream = running.open(transport);
            let topic = format!("pipe/{n}");
            let large = vec![n; 100_000];
            let session = [
                connect(&format!("pipe-{n}")),
                subscribe(1, &topic, 0),
                publish(&topic, b"small"),
                publish(&topic, &large),
                PINGREQ.to_vec(),
                DISCONNECT.to_vec(),
            ];
            stream.write_all(&session.concat()).unwrap();
            stream.flush().unwrap();
            let expected = [
                &CONNACK[..],
                &[0x90, 3, 0, 1, 0],
                &publish(&topic, b"small"),
                &publish(&topic, &large),
                &[PINGRESP, 0],
            ];
            assert!(read_to_close(&mut stream) == expected.concat(), "{transport:?} {n}");
        }
    }
    assert!(running.handle.counters().moved > 0);
}

#[test]
fn large_messages_pass_through_small_socket_buffers_intact() {
    let mut options = options(2);
    options.shard.max_packet_size = 8 * 1024 * 1024;
    // With a smaller buffer the server would drop the second message.
    options.shard.output_buffer_bytes = 8 * 1024 * 1024;
    for listener in &mut options.config.listeners {
        listener.send_buffer_bytes = Some(16 * 1024);
        listener.receive_buffer_bytes = Some(16 * 1024);
    }
    let running = options.start();
    for transport in ALL_TRANSPORTS {
        let mut subscriber = running.client(transport, "subscriber");
        subscriber.subscribe("large");
        let mut publisher = running.client(transport, "publisher");
        let payload: Vec<u8> = (0..3_000_000u32).map(|n| (n % 251) as u8).collect();
        let sender = {
            let packet = [publish("large", &payload), publish("large", b"after")].concat();
            thread::spawn(move || {
                publisher.send(&packet);
                publisher.ping();
            })
        };
        assert!(
            subscriber.read().message() == ("large", payload.as_slice()),
            "{transport:?}"
        );
        assert_eq!(subscriber.read().message(), ("large", &b"after"[..]), "{transport:?}");
        sender.join().unwrap();
    }
    assert!(running.handle.counters().writes_blocked > 0, "no write was partial");
}

#[test]
fn messages_from_one_publisher_keep_their_order_across_workers() {
    const MESSAGES: u32 = 20_000;
    let running = start(4);
    let mut subscribers: Vec<Client> = (0..6)
        .map(|n| running.client(Transport::Tcp, &format!("order-{n}")))
        .collect();
    for subscriber in &mut subscribers {
        subscriber.subscribe("order");
    }
    let mut publisher = running.client(Transport::Tcp, "publisher");
    let readers: Vec<_> = subscribers
        .into_iter()
        .map(|mut subscriber| {
            thread::spawn(move || {
                let mut stream = std::io::BufReader::new(&mut subscriber.0);
                for n in 0..MESSAGES {
                    let packet = read_packet(&mut stream).unwrap();
                    assert_eq!(packet.message().1, n.to_be_bytes());
                }
            })
        })
        .collect();
    let numbers: Vec<u32> = (0..MESSAGES).collect();
    for chunk in numbers.chunks(500) {
        let packets: Vec<u8> = chunk.iter().flat_map(|n| publish("order", &n.to_be_bytes())).collect();
        publisher.send(&packets);
    }
    for reader in readers {
        reader.join().unwrap();
    }
}

#[test]
fn a_flooding_publisher_does_not_starve_others() {
    let running = start(1);
    let mut flooder = running.client(Transport::Tcp, "flooder");
    let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let flood = {
        let stop = stop.clone();
        let packets = publish("nobody", &[0; 100]).repeat(2000);
        thread::spawn(move || {
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                flooder.send(&packets);
            }
        })
    };
    for n in 0..50 {
        running.client(Transport::Tcp, &format!("polite-{n}")).ping();
    }
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    flood.join().unwrap();
}

/// Each worker always runs on its own thread.
fn apart(workers: u16) -> Running {
    let mut options = options(workers);
    options.config.thread_sharing.share_below = 0.0;
    options.start()
}

/// Returns a client id that belongs to `shard`.
pub fn at_home_in(shard: u16, shards: u16) -> String {
    (0..)
        .map(|n| format!("client-{n}"))
        .find(|id| broker::home_shard(id, shards) == Some(ShardId(shard)))
        .unwrap()
}

/// If the message were acknowledged and then lost with its worker, the publisher would not resend it.
#[test]
fn message_with_delayed_mail_is_not_acknowledged() {
    const BYTES: usize = 100_000;
    const MAILBOX_BYTES: usize = 16 * 1024 * 1024;
    let running = apart(2);
    let mut subscriber = running.client(Transport::Tcp, &at_home_in(1, 2));
    subscriber.subscribe("t");
    let publisher = running.client(Transport::Tcp, &at_home_in(0, 2));
    let mut acknowledgements = publisher.0.tcp().try_clone().unwrap();
    let mut input = publisher.0.tcp().try_clone().unwrap();
    let (release, released) = channel::<()>();
    let stuck = running
        .handle
        .call_async(ShardId(1), move |_, _| released.recv())
        .unwrap();
    let sending = thread::spawn(move || {
        input.set_write_timeout(Some(PATIENCE)).unwrap();
        for id in 1..=400 {
            input.write_all(&publish_qos1(id, "t", &[7; BYTES])).unwrap();
        }
    });
    let mut pubacks = Vec::new();
    acknowledgements
        .set_read_timeout(Some(Duration::from_millis(500)))
        .unwrap();
    let silence = acknowledgements.read_to_end(&mut pubacks).unwrap_err();
    assert_eq!(silence.kind(), std::io::ErrorKind::WouldBlock);
    assert!(running.handle.counters().mail_held > 0);
    let early = pubacks.len() / 4;
    assert!(
        early <= MAILBOX_BYTES / BYTES,
        "{early} are acknowledged, more than the mailbox holds"
    );
    drop(release);
    stuck.wait(PATIENCE).unwrap().unwrap_err();
    acknowledgements.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut others = vec![0; 4 * (400 - early)];
    acknowledgements.read_exact(&mut others).unwrap();
    assert_eq!(
        others[others.len() - 4..],
        [0x40, 2, 1, 144],
        "the last message arrives last"
    );
    sending.join().unwrap();
}

/// The worker that owns a share group forwards messages of another worker's clients to a member on a third worker.
#[test]
fn too_much_delayed_mail_stops_all_reads() {
    const BYTES: usize = 100_000;
    const MOST: usize = 1500;
    let group = (0..).map(|n| format!("group-{n}"));
    let mut group = group.filter(|name| broker::group_home_shard(name, "t", 3) == ShardId(0));
    let running = apart(3);
    let mut member = running.client(Transport::Tcp, &at_home_in(1, 3));
    member.subscribe(&format!("$share/{}/t", group.next().unwrap()));
    let publisher = running.client(Transport::Tcp, &at_home_in(2, 3));
    let mut input = publisher.0.tcp().try_clone().unwrap();
    let (release, released) = channel::<()>();
    let stuck = running
        .handle
        .call_async(ShardId(1), move |_, _| released.recv())
        .unwrap();
    input.set_write_timeout(Some(Duration::from_secs(2))).unwrap();
    let message = publish("t", &[7; BYTES]);
    let mut sent = 0;
    let refused = (0..MOST).find_map(|_| {
        sent += 1;
        // A partly written message does not count.
        input.write_all(&message).err()
    });
    assert!(refused.is_some(), "{sent} messages of {BYTES} bytes were read");
    drop(release);
    stuck.wait(PATIENCE).unwrap().unwrap_err();
    // All clients are read again.
    let mut other = running.client(Transport::Tcp, &at_home_in(2, 3));
    other.send(&PINGREQ);
    assert_eq!(other.read().first, PINGRESP);
}

/// The journal position of a message follows from its batch, and its mail is sent with that batch.
#[test]
fn delayed_mail_has_the_right_journal_positions() {
    let scene = Scene::new();
    let start = || {
        let mut options = options(2);
        options.config.thread_sharing.share_below = 0.0;
        options.restart = Some(scene.restart(false));
        options.start()
    };
    let running = start();
    let away = at_home_in(1, 2);
    let (mut client, _) = stay_as(&running, &away);
    client.send(&subscribe(1, "kept/#", 1));
    assert_eq!(client.read().first, 0x90);
    client.send(&DISCONNECT);
    assert!(read_to_close(&mut client.0).is_empty());

    let online = (0..).map(|n| format!("online-{n}"));
    let mut online = online.filter(|id| broker::home_shard(id, 2) == Some(ShardId(1)));
    let mut subscriber = running.client(Transport::Tcp, &online.next().unwrap());
    subscriber.subscribe("t");
    let mut publisher = running.client(Transport::Tcp, &at_home_in(0, 2));
    let (release, released) = channel::<()>();
    let stuck = running
        .handle
        .call_async(ShardId(1), move |_, _| released.recv())
        .unwrap();
    let limit = Some(Duration::from_millis(500));
    publisher.0.tcp().set_write_timeout(limit).unwrap();
    let large = publish("t", &[7; 100_000]);
    while publisher.0.write_all(&large).is_ok() {}
    assert!(running.handle.counters().mail_held > 0);
    // Each message is the first of its batch.
    for number in 0..3 {
        let publish = move |shard: &mut Shard, now: Now| {
            let message = ServerMessage {
                topic: &format!("kept/{number}"),
                payload: &[b'0' + number],
                properties: &[],
                qos: QoS::AtLeastOnce,
                retain: false,
                expiry_s: None,
                mark: 0,
            };
            shard.server_publisher(now).publish(message)
        };
        assert!(running.handle.call(ShardId(0), PATIENCE, publish).unwrap());
    }
    drop(release);
    stuck.wait(PATIENCE).unwrap().unwrap_err();
    let queued = |running: &Running| {
        let call = |shard: u16| {
            running.handle.call(ShardId(shard), PATIENCE, |shard, _| {
                shard.inspect().stats().queued_messages
            })
        };
        call(0).unwrap() + call(1).unwrap()
    };
    eventually("they are queued", || queued(&running) >= 3);
    drop(publisher);
    drop(running);

    // The subscriber's worker reads the messages from the journal.
    let running = start();
    let (mut client, was_there) = stay_as(&running, &away);
    assert!(was_there);
    for number in 0..3 {
        let message = client.read();
        let topic = format!("kept/{number}");
        assert_eq!(&message.body[2..2 + topic.len()], topic.as_bytes());
        assert_eq!(message.body.last(), Some(&(b'0' + number)));
        client.send(&packet(0x40, &message.body[2 + topic.len()..4 + topic.len()]));
    }
    client.ping();
}

/// The mailbox of a blocked worker fills up. The sending worker stops reading from the publisher and continues its
/// other work.
#[test]
fn full_mailbox_delays_only_its_publishers() {
    let running = apart(2);
    let mut subscriber = running.client(Transport::Tcp, &at_home_in(1, 2));
    subscriber.subscribe("t");
    let mut publisher = running.client(Transport::Tcp, &at_home_in(0, 2));
    let (release, released) = channel::<()>();
    let stuck = running
        .handle
        .call_async(ShardId(1), move |_, _| released.recv())
        .unwrap();
    publisher
        .0
        .tcp()
        .set_write_timeout(Some(Duration::from_millis(500)))
        .unwrap();
    let packet = publish("t", &[7; 100_000]);
    let mut sent = 0;
    // This is far more than mailbox, socket buffers and output buffer hold.
    while sent < packet.len() * 1000 {
        match publisher.0.write(&packet[sent % packet.len()..]) {
            Ok(bytes) => sent += bytes,
            Err(_) => break,
        }
    }
    assert!(sent < packet.len() * 1000, "no back-pressure on the publisher");
    assert!(running.handle.counters().mail_held > 0);
    running
        .handle
        .call(ShardId(0), PATIENCE, |_, _| ())
        .expect("the other worker continues");
    drop(release);
    stuck.wait(PATIENCE).unwrap().unwrap_err();
    publisher.0.tcp().set_write_timeout(Some(PATIENCE)).unwrap();
    if sent % packet.len() > 0 {
        publisher.send(&packet[sent % packet.len()..]);
    }
    publisher.ping();
    assert_eq!(subscriber.read().message(), ("t", &[7; 100_000][..]));
}

/// The new connection arrives in the mailbox, the DISCONNECT of the old one on its socket. Packets are handled in
/// order: the session ends as DISCONNECT requests, and is not taken over.
#[test]
fn disconnect_is_handled_before_the_next_connect() {
    let running = apart(2);
    let client_id = at_home_in(1, 2);
    let connect = packet(
        0x10,
        &[
            b"\x00\x04MQTT\x05\x00\x00\x00\x05\x11\x00\x00\x01\x2C\x00\x08",
            client_id.as_bytes(),
        ]
        .concat(),
    );
    assert_eq!(client_id.len(), 8);
    let mut first = running.tcp();
    first.write_all(&connect).unwrap();
    assert_eq!(read_packet(&mut first).unwrap().body[..2], [0, 0]);
    let (release, released) = channel::<()>();
    let (enter, entered) = channel();
    let stuck = running.handle.call_async(ShardId(1), move |_, _| {
        enter.send(()).unwrap();
        released.recv()
    });
    entered.recv_timeout(PATIENCE).unwrap();
    let moved = running.handle.counters().moved;
    // DISCONNECT sets the Session Expiry Interval to 0.
    first.write_all(&packet(0xE0, b"\x00\x05\x11\x00\x00\x00\x00")).unwrap();
    drop(first);
    let mut second = running.tcp();
    second.write_all(&connect).unwrap();
    eventually("the second connection is on its way", || {
        running.handle.counters().moved > moved
    });
    drop(release);
    stuck.unwrap().wait(PATIENCE).unwrap().unwrap_err();
    let connack = read_packet(&mut second).unwrap();
    assert_eq!(
        (connack.first, &connack.body[..2]),
        (0x20, &[0, 0][..]),
        "the session outlives an expiry of 0"
    );
}
