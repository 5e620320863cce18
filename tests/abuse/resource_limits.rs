//! Group B: resource limits. Memory tests start their own server and measure the growth of its resident memory.

use std::thread;
use std::time::{Duration, Instant};

use super::{Growth, assert_within};
use crate::support::packet::{self, acknowledge, string, subscribe};
use crate::support::*;

/// Maximum lifetime of a connection without a CONNECT, on any broker.
const HALF_OPEN_MAX: Duration = Duration::from_secs(100);
const ONE_SECOND: Duration = Duration::from_secs(1);
/// If the socket accepts no bytes for this long, the server has stopped reading.
const STALL: Duration = Duration::from_secs(1);

fn plain_server() -> Server {
    Server::start(&Config::default())
}

fn impatient_server() -> Server {
    Server::start(&Config::new("[listeners.tcp.default]\nhandshake_timeout = \"2s\"\n"))
}

/// Checks that a new client can connect, publish and receive within a second. It has three attempts, because the
/// machine may be busy for a moment. An overloaded broker is slow in every attempt.
#[track_caller]
fn assert_served_within_a_second(server: &Server) {
    let attempts = (0..3).map(|_| {
        let start = Instant::now();
        let topic = unique("served");
        let mut peer = server.session(&Connect::new(V4, unique("served")));
        peer.subscribe(&topic, 1);
        peer.publish(&Publish::new(&topic, "x").qos(1));
        peer.receive();
        start.elapsed()
    });
    let mut slow = Vec::new();
    for taken in attempts {
        if taken < ONE_SECOND {
            return;
        }
        slow.push(taken);
    }
    panic!("serving a new client took {slow:?}, the limit is {ONE_SECOND:?}");
}

#[test]
fn b01_slowloris_is_closed_and_does_not_block_other_clients() {
    // 3.1.4
    let server = impatient_server();
    let mut peers: Vec<Peer> = (0..300).map(|_| server.connect()).collect();
    peers.iter_mut().for_each(|peer| peer.send(&[0x10]));
    assert_served_within_a_second(&server);
    let deadline = Instant::now() + HALF_OPEN_MAX;
    for mut peer in peers {
        assert!(
            peer.expect_closed(deadline.saturating_duration_since(Instant::now()))
                .packets
                .is_empty()
        );
    }
    server.assert_alive();
}

#[test]
fn b01_connect_sent_byte_by_byte_is_closed() {
    let server = impatient_server();
    let mut peer = server.connect();
    let connect = Connect::new(V4, "x".repeat(2000)).bytes();
    let start = Instant::now();
    for byte in connect {
        // One byte arrives every 100 ms. No single read is late, but the whole packet is.
        if peer.try_send(&[byte]).is_err() {
            break;
        }
        match peer.read(Duration::from_millis(100)) {
            Reading::Silence => assert!(start.elapsed() < HALF_OPEN_MAX, "still open"),
            Reading::Closed => break,
            Reading::Packet(packet) => panic!("{packet:?}"),
        }
    }
    server.assert_alive();
}

#[test]
fn b02_connection_that_sends_nothing_is_closed() {
    let server = impatient_server();
    let mut peer = server.connect();
    assert!(peer.expect_closed(HALF_OPEN_MAX).packets.is_empty());
    server.assert_alive();
}

#[test]
fn b03_declared_packet_length_allocates_no_memory() {
    let server = Server::start(&Config::new("[mqtt]\nmax_packet_size = \"256MiB\"\n"));
    let mut growth = Growth::of(&server);
    let mut peers: Vec<Peer> = (0..50)
        .map(|_| server.session(&Connect::new(V4, unique("b03"))))
        .collect();
    let start = [&[0x30, 0xFF, 0xFF, 0xFF, 0x7F][..], &string("b03"), &[b'x'; 1024]].concat();
    peers.iter_mut().for_each(|peer| peer.send(&start));
    // The same without a session.
    let connects: Vec<Peer> = (0..50).map(|_| server.connect()).collect();
    let start = [
        &[0x10, 0xFF, 0xFF, 0xFF, 0x7F][..],
        &string("MQTT"),
        &[4, 2, 0, 60, 4, 0],
        &[b'x'; 1024],
    ]
    .concat();
    for mut peer in connects {
        // The server may close the connection before it has read all bytes.
        let _ = peer.try_send(&start);
        growth.look();
    }
    (0..4).for_each(|_| server.assert_alive());
    growth.assert_below_mib(64);
}

#[test]
fn b04_rapid_connects_and_disconnects_do_not_slow_other_clients() {
    let server = plain_server();
    let mut growth = Growth::of(&server);
    for _ in 0..20 {
        let mut peers: Vec<Peer> = (0..100).map(|_| server.connect()).collect();
        for peer in &mut peers {
            let connect = Connect::new(V4, unique("b04")).bytes();
            peer.send(&[connect, packet::DISCONNECT.to_vec()].concat());
        }
        for mut peer in peers {
            let closed = peer.expect_closed(PATIENCE);
            assert_eq!(closed.connack_code(V4), Some(0), "{closed:?}");
        }
    }
    for _ in 0..2000 {
        drop(server.connect());
    }
    assert_served_within_a_second(&server);
    growth.assert_below_mib(50);
}

/// Opens a session for each CONNECT, many at a time, and returns the connections after all CONNACKs have arrived.
#[track_caller]
fn sessions(server: &Server, connects: &[Connect]) -> Vec<(Peer, Connack)> {
    let mut all = Vec::new();
    for some in connects.chunks(100) {
        let mut peers: Vec<Peer> = some
            .iter()
            .map(|connect| server.connect().speak(connect.version))
            .collect();
        peers
            .iter_mut()
            .zip(some)
            .for_each(|(peer, connect)| peer.send(&connect.bytes()));
        for mut peer in peers {
            let connack = peer.expect_packet().connack(peer.version());
            all.push((peer, connack));
        }
    }
    all
}

#[test]
fn b05_persistent_sessions_need_little_memory() {
    const SESSIONS: usize = 3000;
    let server = plain_server();
    let connects: Vec<_> = (0..SESSIONS)
        .map(|n| Connect::new(V4, format!("b05-{n}")).persistent())
        .collect();
    server.assert_alive();
    let mut growth = Growth::of(&server);
    for (number, (mut peer, connack)) in sessions(&server, &connects).into_iter().enumerate() {
        assert_eq!((connack.code, connack.session_present), (0, false));
        peer.subscribe(format!("b05/{number}"), 1);
        peer.disconnect();
    }
    let per_session = growth.look() * 1024 / SESSIONS as u64;
    println!("{per_session} bytes of resident memory per offline session");
    assert!(per_session < 20 * 1024, "{per_session} bytes per offline session");
    let present = sessions(&server, &connects);
    assert!(
        present.iter().all(|(_, connack)| connack.session_present),
        "a session was lost"
    );
    drop(present);
    let clean: Vec<_> = connects.iter().cloned().map(|connect| connect.clean(true)).collect();
    assert!(
        sessions(&server, &clean)
            .iter()
            .all(|(_, connack)| connack.code == 0 && !connack.session_present)
    );
    let gone = sessions(&server, &connects[..100]);
    assert!(
        gone.iter().all(|(_, connack)| !connack.session_present),
        "a session survived clean session 1"
    );
}

#[test]
fn b06_slow_consumer_is_bounded_and_does_not_block_others() {
    const MARKS: usize = 48;
    const MESSAGES_PER_MARK: usize = 100;
    let server = plain_server();
    let mut slow = server.session(&Connect::new(V4, "slow").keep_alive(0));
    slow.subscribe("b06", 0);
    let mut healthy = server.session(&Connect::new(V4, "healthy"));
    healthy.subscribe("b06", 0);
    healthy.subscribe("mark", 1);
    let mut growth = Growth::of(&server);
    let reader = thread::spawn(move || {
        let (mut marks, mut messages) = (0, 0);
        while marks < MARKS {
            let message = healthy.receive();
            if message.topic == b"mark" {
                marks += 1
            } else {
                messages += 1
            }
        }
        messages
    });
    let mut publisher = server.session(&Connect::new(V4, "publisher"));
    let bulk = Publish::new("b06", noise(6, 64 * 1024)).bytes(V4);
    for _ in 0..MARKS {
        (0..MESSAGES_PER_MARK).for_each(|_| publisher.send(&bulk));
        publisher.publish(&Publish::new("mark", "x").qos(1));
        growth.look();
    }
    let received = reader.join().expect("the healthy subscriber received every mark");
    println!(
        "the healthy subscriber received {received} of {} messages",
        MARKS * MESSAGES_PER_MARK
    );
    assert!(
        received > MARKS,
        "the healthy subscriber received too few messages: {received}"
    );
    growth.assert_below_mib(150);
    server.assert_alive();
}

/// Publishes numbered QoS 1 messages with at most a hundred in flight.
#[track_caller]
fn publish_numbered(peer: &mut Peer, topic: &str, count: u32, filling: &[u8]) {
    for first in (0..count).step_by(100) {
        let numbers = first..(first + 100).min(count);
        let burst: Vec<u8> = numbers
            .clone()
            .flat_map(|number| {
                let payload = [&number.to_be_bytes()[..], filling].concat();
                Publish::new(topic, payload)
                    .qos(1)
                    .id((number % 60_000) as u16 + 1)
                    .bytes(peer.version())
            })
            .collect();
        peer.send(&burst);
        for number in numbers {
            assert_eq!(peer.expect(kind::PUBACK).packet_id(), (number % 60_000) as u16 + 1);
        }
    }
}

fn number_of(message: &Delivery) -> u32 {
    u32::from_be_bytes(message.payload[..4].try_into().expect("a numbered message"))
}

#[test]
fn b07_offline_queue_is_bounded_and_delivered_in_order() {
    const COUNT: u32 = 20_000;
    let server = plain_server();
    let connect = Connect::new(V4, "b07").persistent();
    let mut subscriber = server.session(&connect);
    subscriber.subscribe("b07", 1);
    subscriber.disconnect();
    let mut growth = Growth::of(&server);
    let mut publisher = server.session(&Connect::new(V4, "b07-publisher"));
    publish_numbered(&mut publisher, "b07", COUNT, &[b'x'; 5 * 1024]);
    growth.assert_below_mib(150);
    let mut subscriber = server.session(&connect);
    publisher.publish(&Publish::new("b07", "sentinel").qos(1));
    let numbers: Vec<u32> = subscriber.receive_until("sentinel").iter().map(number_of).collect();
    println!("kept {} of {COUNT}", numbers.len());
    assert!(!numbers.is_empty(), "no queued message was delivered");
    assert!(
        numbers.is_sorted_by(|a, b| a < b),
        "messages are out of order or duplicated"
    );
    server.assert_alive();
}

fn receive_maximum(connack: &Connack) -> u16 {
    connack.properties.number(prop::RECEIVE_MAXIMUM).unwrap_or(65_535) as u16
}

#[test]
fn b08_qos_2_beyond_the_receive_maximum_closes() {
    // [MQTT-3.3.4-7], [MQTT-3.3.4-8]
    let server = plain_server();
    let mut growth = Growth::of(&server);
    let mut peer = server.connect();
    let maximum = receive_maximum(&peer.handshake(&Connect::new(V5, "b08")));
    let publish = |id| Publish::new("b08", [b'x'; 1024]).qos(2).id(id).bytes(V5);
    for id in 1..=maximum {
        peer.send(&publish(id));
        let pubrec = peer.expect(kind::PUBREC);
        assert_eq!((pubrec.packet_id(), pubrec.reason() < 0x80), (id, true));
    }
    assert!(
        maximum < 65_535,
        "no Receive Maximum is announced, so a client may have 65,535 messages in flight"
    );
    peer.send(&publish(maximum + 1));
    peer.expect_disconnect(0x93);
    growth.assert_below_mib(100);
    server.assert_alive();
}

#[test]
fn b08_qos_2_never_released_is_bounded_in_3_1_1() {
    let server = plain_server();
    let mut growth = Growth::of(&server);
    let mut peer = server.session(&Connect::new(V4, "b08"));
    for ids in (1..=60_000).collect::<Vec<u16>>().chunks(1000) {
        let burst: Vec<u8> = ids
            .iter()
            .flat_map(|id| Publish::new("b08", [b'x'; 1024]).qos(2).id(*id).bytes(V4))
            .collect();
        if peer.send_until_blocked(&burst, STALL) < burst.len() {
            break;
        }
        growth.look();
    }
    server.assert_alive();
    growth.assert_below_mib(100);
}

#[test]
fn b09_outstanding_messages_respect_the_clients_receive_maximum() {
    // [MQTT-3.3.4-9]
    let server = Server::shared();
    let topic = unique("b09");
    let connect = Connect::new(V5, unique("b09")).property(prop::u16(prop::RECEIVE_MAXIMUM, 5));
    let mut subscriber = server.session(&connect);
    subscriber.subscribe(&topic, 2);
    let mut publisher = server.session(&Connect::new(V4, unique("b09")));
    for number in 0..20 {
        publisher.publish(&Publish::new(&topic, number.to_string()).qos(1 + number % 2));
        publisher.publish(&Publish::new(&topic, "QoS 0"));
    }
    publisher.publish(&Publish::new(&topic, "sentinel"));
    let mut messages = Vec::new();
    while messages
        .last()
        .is_none_or(|message: &Delivery| message.payload != b"sentinel")
    {
        messages.push(subscriber.expect_publish());
    }
    let (outstanding, unacknowledged): (Vec<_>, Vec<_>) = messages.iter().partition(|message| message.qos > 0);
    assert_eq!(outstanding.len(), 5, "outstanding: {outstanding:?}");
    assert_eq!(unacknowledged.len(), 21, "QoS 0 messages were not delivered");
    // Each acknowledgement allows the next message, in order.
    subscriber.send(&acknowledge(kind::PUBACK, outstanding[0].packet_id.expect("QoS 1")));
    assert_eq!(subscriber.expect_publish().payload_str(), "5");
    subscriber.ping_alone();
}

#[test]
fn b10_topic_aliases_use_bounded_memory() {
    let server = Server::start(&Config::new("[mqtt]\nmax_topic_alias_in = 16\n"));
    let mut peer = server.connect();
    let connack = peer.handshake(&Connect::new(V5, "b10"));
    let maximum = connack.properties.number(prop::TOPIC_ALIAS_MAXIMUM).unwrap_or(0) as u16;
    assert!((1..=16).contains(&maximum), "Topic Alias Maximum {maximum}");
    let mut growth = Growth::of(&server);
    // The client repeatedly sets every alias to a new topic of 60 KB, 96 MB in total.
    for round in 0..100 {
        for alias in 1..=maximum {
            let topic = format!("b10/{round}/{alias}/{}", "x".repeat(60 * 1024));
            peer.send(
                &Publish::new(&topic, "x")
                    .property(prop::u16(prop::TOPIC_ALIAS, alias))
                    .bytes(V5),
            );
        }
        peer.ping_alone();
        growth.look();
    }
    growth.assert_below_mib(u64::from(maximum) * 64 / 1024 + 20);
    peer.send(
        &Publish::new("b10", "x")
            .property(prop::u16(prop::TOPIC_ALIAS, maximum + 1))
            .bytes(V5),
    );
    peer.expect_disconnect(0x94);
    server.assert_alive();
}

#[test]
fn b10_using_every_offered_topic_alias_uses_bounded_memory() {
    let server = plain_server();
    let mut peer = server.connect();
    let connack = peer.handshake(&Connect::new(V5, "b10"));
    let maximum = connack.properties.number(prop::TOPIC_ALIAS_MAXIMUM).unwrap_or(0) as u16;
    let mut growth = Growth::of(&server);
    // One client sends 180 MB of topics. A server without a limit would store all of them.
    for alias in 1..=maximum.min(3000) {
        let topic = format!("b10/{alias}/{}", "x".repeat(60 * 1024));
        if peer
            .try_send(
                &Publish::new(&topic, "x")
                    .property(prop::u16(prop::TOPIC_ALIAS, alias))
                    .bytes(V5),
            )
            .is_err()
        {
            break;
        }
    }
    server.assert_alive();
    growth.assert_below_mib(64);
}

#[test]
fn b11_topics_with_tens_of_thousands_of_levels_are_handled() {
    // The same kind of attack as CVE-2019-11779 of mosquitto.
    let deep = Server::start(&Config::new("[mqtt]\nmax_topic_levels = 65535\n"));
    let plus = format!("{}+", "+/".repeat(32_766));
    let filters = [
        "/".repeat(65_534),
        "/".repeat(65_535),
        plus.clone(),
        format!("{}#", "+/".repeat(32_766)),
    ];
    for server in [Server::shared(), &deep] {
        for version in [V4, V5] {
            for filter in &filters {
                let mut peer = server.session(&Connect::new(version, unique("b11")));
                // The server may accept or refuse it, but must answer.
                match peer.subscribe_answer(filter) {
                    Some(code) => assert!(code == 0 || code >= 0x80, "{code:#04x}"),
                    None => continue,
                }
                let topic = "/".repeat(65_534);
                peer.send(&Publish::new(&topic, "deep").retain().qos(1).id(9).bytes(version));
                peer.send(&Publish::new(&topic, "").retain().qos(1).id(10).bytes(version));
                peer.half_close();
                peer.expect_closed(PATIENCE);
            }
            let will = Will::new("/".repeat(65_534), "deep").retain();
            let connect = Connect::new(version, unique("b11")).will(will);
            let mut peer = server.connect();
            peer.send(&connect.bytes());
            peer.half_close();
            peer.expect_closed(PATIENCE);
        }
        server.assert_alive();
    }
}

/// Subscribes to all filters, several hundred per packet, and returns the reason codes.
#[track_caller]
fn subscribe_all(peer: &mut Peer, filters: &[String], options: u8) -> Vec<u8> {
    let mut codes = Vec::new();
    for some in filters.chunks(500) {
        let id = peer.packet_id();
        let list: Vec<_> = some.iter().map(|filter| (filter, options)).collect();
        peer.send(&subscribe(peer.version(), id, &list, &[]));
        codes.extend(peer.expect(kind::SUBACK).reason_codes(peer.version()));
    }
    assert_eq!(codes.len(), filters.len(), "expected one reason code per filter");
    codes
}

#[test]
fn b12_thousands_of_filters_of_one_client_are_fast_and_freed() {
    let server = Server::start(&Config::new("[mqtt]\nmax_subscriptions = \"unlimited\"\n"));
    let filters: Vec<String> = (0..20_000).map(|n| format!("b12/{}/{n}/+", n % 100)).collect();
    let mut growth = Growth::of(&server);
    let mut after_second = 0;
    for round in 0..5 {
        // Use the same client each time. Another client may be on another core with separate memory.
        let mut peer = server.session(&Connect::new(V4, "b12"));
        assert!(
            subscribe_all(&mut peer, &filters, 1).iter().all(|code| *code == 1),
            "a filter was refused"
        );
        let mut round_trips: Vec<Duration> = (0..100)
            .map(|number| {
                let topic = format!("b12/{number}/{}/x", number * 200 + number);
                let start = Instant::now();
                peer.publish(&Publish::new(&topic, "x").qos(1));
                assert_eq!(peer.receive().topic_str(), topic);
                start.elapsed()
            })
            .collect();
        round_trips.sort();
        assert!(
            round_trips[95] < ONE_SECOND,
            "the slowest round trips took {:?}",
            &round_trips[95..]
        );
        println!("{} KiB with 20,000 filters, round {round}", growth.look());
        peer.disconnect();
        server.assert_alive();
        if round == 1 {
            after_second = growth.peak_kib;
        }
    }
    let again = growth.peak_kib - after_second;
    assert!(
        again < 4 * 1024,
        "closing does not free the subscriptions: memory grew by {again} KiB in three more rounds"
    );
}

#[test]
fn b12_filters_beyond_the_limit_are_refused_one_by_one() {
    let server = Server::start(&Config::new("[mqtt]\nmax_subscriptions = 1000\n"));
    let filters: Vec<String> = (0..1500).map(|n| format!("b12/{n}")).collect();
    let mut peer = server.session(&Connect::new(V5, "b12"));
    let codes = subscribe_all(&mut peer, &filters, 0);
    assert!(codes[..1000].iter().all(|code| *code == 0), "refused below the limit");
    assert!(
        codes[1000..].iter().all(|code| *code == 0x97),
        "expected Quota exceeded: {:02x?}",
        &codes[1000..1010]
    );
    // Replacing an existing subscription does not count against the limit.
    assert_eq!(peer.subscribe_code("b12/7", 1), 1);
}

#[test]
fn b13_thousands_of_retained_messages_are_replayed_and_freed() {
    const COUNT: usize = 20_000;
    let server = plain_server();
    let before_kib = server.anonymous_kib();
    for round in 0..3u8 {
        let qos = round % 2;
        let mut publisher = server.session(&Connect::new(V4, unique("b13")));
        retain_all(&mut publisher, COUNT, &[b'x'; 1024]);
        let mut subscriber = server.session(&Connect::new(V4, unique("b13")));
        subscriber.subscribe("#", qos);
        let mut seen = vec![false; COUNT];
        for _ in 0..COUNT {
            let message = subscriber.receive();
            assert!(
                message.is_retained && message.payload.len() == 1024,
                "{:?}",
                message.topic_str()
            );
            let number: usize = message.topic_str()["b13/".len()..]
                .parse()
                .expect("a topic of this test");
            assert!(
                !std::mem::replace(&mut seen[number], true),
                "message {number} arrived twice"
            );
        }
        subscriber.disconnect();
        retain_all(&mut publisher, COUNT, b"");
        let mut subscriber = server.session(&Connect::new(V4, unique("b13")));
        subscriber.subscribe("#", 0);
        subscriber.ping_alone();
    }
    // The kernel decides which threads hold the messages, so the memory that their heaps retain varies.
    let limit_kib = before_kib + 8 * 1024;
    let deadline = Instant::now() + Duration::from_secs(90);
    while server.anonymous_kib() >= limit_kib {
        assert!(
            Instant::now() < deadline,
            "{} KiB are resident instead of at most {limit_kib} KiB after the messages were deleted; {before_kib} KiB before",
            server.anonymous_kib()
        );
        thread::sleep(Duration::from_millis(100));
    }
}

/// Sets the retained messages `b13/0`, `b13/1` and so on. An empty payload deletes them.
#[track_caller]
fn retain_all(peer: &mut Peer, count: usize, payload: &[u8]) {
    for number in 0..count {
        let message = Publish::new(format!("b13/{number}"), payload).retain();
        peer.send(&message.bytes(V4));
    }
    // The PUBACK arrives after all earlier messages are processed. Other shards receive the messages in the same order.
    peer.publish(&Publish::new("b13/0", payload).retain().qos(1));
}

#[test]
fn b14_duplicate_filters_in_one_packet_make_one_subscription() {
    for version in [V4, V5] {
        let server = plain_server();
        let mut publisher = server.session(&Connect::new(V4, "b14-publisher"));
        publisher.publish(&Publish::new("b14", "retained").retain().qos(1));
        let mut peer = server.session(&Connect::new(version, "b14"));
        let filters = vec![("#", 1); 1000];
        peer.send(&subscribe(version, 1, &filters, &[]));
        assert_eq!(peer.expect(kind::SUBACK).reason_codes(version), [1; 1000]);
        publisher.publish(&Publish::new("b14", "new").qos(1));
        publisher.publish(&Publish::new("b14", "sentinel").qos(1));
        let messages = peer.receive_until("sentinel");
        let count = |payload: &str| {
            messages
                .iter()
                .filter(|message| message.payload == payload.as_bytes())
                .count()
        };
        assert_eq!(count("new"), 1, "one subscription gets one delivery");
        assert!(
            (1..=2).contains(&count("retained")),
            "the retained message arrived {} times",
            count("retained")
        );
        server.assert_alive();
    }
}

#[test]
fn b15_wildcards_at_every_level_match_quickly() {
    let server = plain_server();
    let mixed = |mask: usize, other: &str| -> String {
        let levels = (0..11).map(|level| {
            if mask >> level & 1 == 1 {
                other.to_owned()
            } else {
                format!("l{level}")
            }
        });
        levels.collect::<Vec<_>>().join("/")
    };
    let filters: Vec<String> = (0..2000).map(|mask| mixed(mask, "+")).collect();
    for version in [V4, V5] {
        let mut peer = server.session(&Connect::new(version, unique("b15")));
        assert!(subscribe_all(&mut peer, &filters, 0).iter().all(|code| *code == 0));
        peer.subscribe("end", 0);
        assert_within(Duration::from_secs(5), "200 publishes", || {
            let burst: Vec<u8> = (0..200)
                .flat_map(|mask| Publish::new(mixed(mask * 10, "other"), "x").bytes(version))
                .collect();
            peer.send(&burst);
            peer.send(&Publish::new("end", "end").bytes(version));
            let messages = peer.receive_until("end");
            assert!(messages.len() >= 190, "{} messages", messages.len());
        });
    }
    server.assert_alive();
}

#[test]
fn b16_unread_ping_responses_use_bounded_memory() {
    let server = plain_server();
    let mut growth = Growth::of(&server);
    let mut peer = server.session(&Connect::new(V4, "b16"));
    let pings = packet::PINGREQ.repeat(2_000_000);
    thread::scope(|scope| {
        let flood = scope.spawn(move || peer.send_until_blocked(&pings, STALL));
        while !flood.is_finished() {
            assert_served_within_a_second(&server);
            growth.look();
        }
        println!(
            "the server read {} of 4,000,000 bytes",
            flood.join().expect("the flood ends")
        );
    });
    growth.assert_below_mib(64);
    server.assert_alive();
}

#[test]
fn b17_unread_subacks_use_bounded_memory() {
    let server = plain_server();
    let mut growth = Growth::of(&server);
    let mut peer = server.session(&Connect::new(V4, "b17"));
    let flood: Vec<u8> = (0..20_000)
        .flat_map(|n| subscribe(V4, (n % 60_000) as u16 + 1, &[(format!("b17/{n}"), 1)], &[]))
        .collect();
    peer.send_until_blocked(&flood, STALL);
    assert_served_within_a_second(&server);
    growth.assert_below_mib(64);
}

#[test]
fn b18_large_messages_arrive_intact() {
    const MIB: usize = 1024 * 1024;
    let server = Server::start(&Config::new("[mqtt]\nmax_packet_size = \"64MiB\"\n"));
    let mut subscriber = server.session(&Connect::new(V5, "b18-subscriber"));
    subscriber.subscribe("b18", 1);
    for version in [V4, V5] {
        let mut publisher = server.session(&Connect::new(version, "b18"));
        for megabytes in [1, 10, 50] {
            let payload = noise(megabytes as u64, megabytes * MIB);
            assert_eq!(publisher.publish(&Publish::new("b18", &payload).qos(1)), 0);
            assert!(
                subscriber.receive().payload == payload,
                "{megabytes} MiB were not delivered intact"
            );
        }
    }
    server.assert_alive();
}

#[test]
fn b18_messages_above_the_limit_close_without_being_delivered() {
    // [MQTT-3.2.2-15]
    let server =
        Server::start(&Config::new("[mqtt]\nmax_packet_size = \"1MiB\"\n").mosquitto("max_packet_size 1048576"));
    let mut subscriber = server.session(&Connect::new(V5, "b18-subscriber"));
    subscriber.subscribe("b18", 1);
    let too_large = Publish::new("b18", noise(18, 1024 * 1024)).qos(1);
    for version in [V4, V5] {
        let mut publisher = server.connect();
        let connack = publisher.handshake(&Connect::new(version, "b18"));
        if version == V5 {
            assert_eq!(connack.properties.number(prop::MAXIMUM_PACKET_SIZE), Some(1024 * 1024));
        }
        // The server may close the connection before it has read the whole message.
        let _ = publisher.try_send(&too_large.bytes(version));
        let closed = publisher.expect_closed(PATIENCE);
        let reason = closed.disconnect_reason();
        assert!(matches!(reason, None | Some(0x95)), "{reason:02x?}");
    }
    let mut publisher = server.session(&Connect::new(V4, "b18"));
    publisher.publish(&Publish::new("b18", "sentinel").qos(1));
    assert_eq!(subscriber.receive_until("sentinel"), []);
    server.assert_alive();
}

#[test]
fn b19_hundreds_of_large_wills_are_delivered_intact() {
    const COUNT: usize = 500;
    let server = plain_server();
    let mut watcher = server.session(&Connect::new(V4, "watcher"));
    watcher.subscribe("b19/+", 1);
    let will = noise(19, 16 * 1024);
    let connects: Vec<_> = (0..COUNT)
        .map(|n| Connect::new(V4, format!("b19-{n}")).will(Will::new(format!("b19/{n}"), &will).qos(1)))
        .collect();
    drop(sessions(&server, &connects));
    let mut topics: Vec<String> = (0..COUNT)
        .map(|_| {
            let message = watcher.receive();
            assert!(message.payload == will, "a will was not delivered intact");
            message.topic_str().to_owned()
        })
        .collect();
    topics.sort();
    topics.dedup();
    assert_eq!(topics.len(), COUNT);
    server.assert_alive();
}

#[test]
fn b19_burst_of_qos_0_wills_reaches_a_reading_client() {
    const COUNT: usize = 500;
    let server = plain_server();
    let mut watcher = server.session(&Connect::new(V4, "watcher"));
    watcher.subscribe("b19/+", 0);
    let will = noise(19, 16 * 1024);
    let connects: Vec<_> = (0..COUNT)
        .map(|n| Connect::new(V4, format!("b19-{n}")).will(Will::new(format!("b19/{n}"), &will)))
        .collect();
    let peers = sessions(&server, &connects);
    let reader = thread::spawn(move || {
        let mut topics: Vec<_> = (0..COUNT).map(|_| watcher.receive().topic_str().to_owned()).collect();
        topics.sort();
        topics.dedup();
        topics.len()
    });
    drop(peers);
    assert_eq!(reader.join().expect("the watcher receives every will"), COUNT);
}

#[test]
fn b20_takeover_storm_leaves_one_session() {
    // [MQTT-3.1.4-3]
    let server = plain_server();
    let connect = Connect::new(V5, "b20").persistent();
    let mut current = server.session(&connect);
    current.subscribe("b20", 1);
    for _ in 0..300 {
        let mut next = server.connect();
        let connack = next.handshake(&connect);
        assert_eq!((connack.code, connack.session_present), (0, true));
        current.expect_disconnect(0x8E);
        current = next;
    }
    let mut publisher = server.session(&Connect::new(V4, "publisher"));
    publisher.publish(&Publish::new("b20", "one").qos(1));
    publisher.publish(&Publish::new("b20", "sentinel").qos(1));
    assert_eq!(current.receive_until("sentinel").len(), 1);
    server.assert_alive();
}

#[test]
fn b20_concurrent_takeovers_leave_one_connection() {
    let server = plain_server();
    let connects = vec![Connect::new(V4, "b20"); 300];
    let peers: Vec<_> = connects
        .iter()
        .map(|connect| {
            let mut peer = server.connect();
            peer.send(&connect.bytes());
            peer
        })
        .collect();
    let mut open = 0;
    for mut peer in peers {
        // The server may process them in any order, but must close all except one.
        let _ = peer.try_send(&packet::PINGREQ);
        loop {
            match peer.read(PATIENCE) {
                Reading::Packet(packet) if packet.kind() == kind::PINGRESP => break open += 1,
                Reading::Packet(_) => {}
                Reading::Closed => break,
                Reading::Silence => panic!("the connection is neither served nor closed"),
            }
        }
    }
    println!("{open} were served before they were taken over");
    assert!(open >= 1, "no connection is open");
    server.assert_alive();
}

/// Opens a session with a keep alive of 2 s and a will, and a subscriber to the will's topic.
fn mortal(version: Version) -> (Peer, Peer) {
    let topic = unique("mortal");
    let mut watcher = Server::shared().session(&Connect::new(V4, unique("watcher")));
    watcher.subscribe(&topic, 0);
    let connect = Connect::new(version, unique("mortal"))
        .keep_alive(2)
        .will(Will::new(&topic, "timed out"));
    (Server::shared().session(&connect), watcher)
}

#[test]
fn b21_silent_client_is_closed_after_one_and_a_half_keep_alives() {
    // [MQTT-3.1.2-24] (3.1.1), [MQTT-3.1.2-22] (5.0)
    let mut mortals: Vec<_> = ALL_VERSIONS
        .into_iter()
        .map(|version| (mortal(version), Instant::now()))
        .collect();
    for ((peer, watcher), start) in &mut mortals {
        let closed = peer.expect_closed(Duration::from_secs(10));
        let lived = start.elapsed();
        assert!(
            lived > Duration::from_millis(2000),
            "{:?}: closed after {lived:?}",
            peer.version()
        );
        assert!(
            lived < Duration::from_millis(4500),
            "{:?}: closed after {lived:?}",
            peer.version()
        );
        let reason = closed.disconnect_reason();
        assert!(
            matches!((peer.version(), reason), (V3 | V4, None) | (V5, Some(0x8D))),
            "{reason:02x?}"
        );
        assert_eq!(watcher.expect_publish().payload_str(), "timed out");
    }
}

#[test]
fn b22_bytes_of_an_unfinished_packet_do_not_keep_a_client_alive() {
    // [MQTT-3.1.2-24]
    for version in [V4, V5] {
        let (mut peer, mut watcher) = mortal(version);
        let start = Instant::now();
        let unfinished = Publish::new("b22", [b'x'; 1000]).bytes(version);
        for byte in unfinished {
            if peer.try_send(&[byte]).is_err() {
                break;
            }
            match peer.read(Duration::from_millis(500)) {
                Reading::Silence => assert!(start.elapsed() < Duration::from_millis(5500), "still open"),
                _ => break,
            }
        }
        assert!(
            start.elapsed() < Duration::from_millis(5500),
            "closed after {:?}",
            start.elapsed()
        );
        assert_eq!(watcher.expect_publish().payload_str(), "timed out");
    }
}

#[test]
fn b23_message_expiry_counts_down_and_prevents_delivery() {
    // [MQTT-3.3.2-5], [MQTT-3.3.2-6]
    let server = Server::shared();
    let topic = unique("b23");
    let connect = Connect::new(V5, unique("b23")).persistent();
    let mut subscriber = server.session(&connect);
    subscriber.subscribe(&topic, 1);
    subscriber.disconnect();
    let mut publisher = server.session(&Connect::new(V5, unique("b23")));
    let expiring = |payload: &str, seconds| {
        Publish::new(&topic, payload)
            .qos(1)
            .property(prop::u32(prop::MESSAGE_EXPIRY_INTERVAL, seconds))
    };
    publisher.publish(&expiring("short", 1));
    publisher.publish(&expiring("long", 100));
    thread::sleep(Duration::from_millis(2500));
    let mut subscriber = server.session(&connect);
    let message = subscriber.receive();
    assert_eq!(message.payload_str(), "long", "the expired message was delivered");
    let left = message
        .properties
        .number(prop::MESSAGE_EXPIRY_INTERVAL)
        .expect("the expiry is passed on");
    assert!(
        (90..=98).contains(&left),
        "an expiry of 100 s became {left} s after 2.5 s"
    );
    subscriber.ping_alone();
}

#[test]
fn b24_idle_connections_need_little_memory_and_are_released() {
    const IDLE: usize = 1500;
    let server = plain_server();
    let mut existing = server.session(&Connect::new(V4, "existing"));
    existing.subscribe("b24", 1);
    let files = server.open_files();
    let mut growth = Growth::of(&server);
    let connects: Vec<_> = (0..IDLE)
        .map(|n| Connect::new(V4, format!("b24-{n}")).keep_alive(600))
        .collect();
    let peers = sessions(&server, &connects);
    println!(
        "{} bytes of resident memory per idle connection",
        growth.look() * 1024 / IDLE as u64
    );
    assert!(server.open_files() > IDLE, "not all connections are open");
    existing.publish(&Publish::new("b24", "x").qos(1));
    existing.receive();
    assert_served_within_a_second(&server);
    drop(peers);
    server.wait_until("the connections are released", |server| {
        server.open_files() <= files + 2
    });
    existing.ping_alone();
}

#[test]
fn b25_overlapping_filters_respect_the_maximum_qos() {
    // [MQTT-3.3.5-1]
    let server = Server::shared();
    for version in [V4, V5] {
        let root = unique("b25");
        let mut filters: Vec<String> = (0..196).map(|mask| overlapping(&root, mask)).collect();
        filters.extend([
            format!("{root}/#"),
            format!("{root}/+/#"),
            format!("{root}/a/#"),
            "+/#".to_owned(),
        ]);
        for granted in [2, 1, 0] {
            let mut peer = server.session(&Connect::new(version, unique("b25")));
            for (number, filter) in filters.iter().enumerate() {
                // One filter has the highest QoS.
                peer.subscribe(filter, if number == 77 { granted } else { 0 });
            }
            let mut publisher = server.session(&Connect::new(V4, unique("b25")));
            let topic = format!("{root}/a/a/a/a/a/a/a/a");
            publisher.publish(&Publish::new(&topic, "x").qos(2));
            publisher.publish(&Publish::new(&topic, "sentinel").qos(2));
            // The filter `+/#` also matches the messages of other tests on the shared server.
            let mut copies = Vec::new();
            loop {
                let copy = peer.receive();
                match copy.payload.as_slice() {
                    _ if copy.topic_str() != topic => {}
                    b"x" => copies.push(copy),
                    _ => break,
                }
            }
            println!("{version:?}: {} copies for {} filters", copies.len(), filters.len());
            assert!((1..=filters.len()).contains(&copies.len()), "{} copies", copies.len());
            assert_eq!(
                copies.iter().map(|copy| copy.qos).max(),
                Some(granted),
                "the maximum QoS of all filters"
            );
        }
    }
    server.assert_alive();
}

/// Returns one of 256 filters that match `root` followed by eight levels `a`.
fn overlapping(root: &str, mask: u32) -> String {
    let levels: Vec<_> = (0..8)
        .map(|level| if mask >> level & 1 == 1 { "+" } else { "a" })
        .collect();
    format!("{root}/{}", levels.join("/"))
}

#[test]
fn b26_burst_beyond_the_receive_maximum_uses_bounded_memory() {
    // [MQTT-3.3.4-7]
    let server = plain_server();
    let mut growth = Growth::of(&server);
    let mut peer = server.connect();
    let maximum = receive_maximum(&peer.handshake(&Connect::new(V5, "b26")));
    let burst: Vec<u8> = (0..u32::from(maximum) * 5)
        .flat_map(|n| {
            Publish::new("b26", [b'x'; 1024])
                .qos(1)
                .id((n % 65_535) as u16 + 1)
                .bytes(V5)
        })
        .collect();
    let taken = peer.send_until_blocked(&burst, STALL);
    println!("the server took {taken} of {} bytes", burst.len());
    server.assert_alive();
    growth.assert_below_mib(64);
    let _ = peer.stream().shutdown(std::net::Shutdown::Write);
    let closed = peer.expect_closed(PATIENCE);
    match closed.disconnect_reason() {
        Some(reason) => assert_eq!(reason, 0x93, "{closed:?}"),
        None => assert_eq!(
            closed.packets.len(),
            usize::from(maximum) * 5,
            "each PUBLISH is acknowledged"
        ),
    }
}
