//! Tests limits of the load that one client can cause: memory after its session, work, and buffered bytes.

#![allow(clippy::unwrap_used)]

use crate::world::{PublishFields, World, connect_packet};
use mqtt::ProtocolVersion::V5;
use mqtt::QoS::{AtLeastOnce, AtMostOnce};
use mqtt::*;
use tidewire_broker::*;

const YEAR_S: u32 = 365 * 86_400;

/// Advances the time in one step, as on an idle machine.
fn skip(w: &mut World, ms: u64) {
    w.now.monotonic_ms += ms;
    w.now.unix_ms += ms;
    w.settle();
}

fn connect_for(w: &mut World, expiry_s: u32, will_delay_s: u32) -> usize {
    let (mut properties, mut will_properties) = (Vec::new(), Vec::new());
    PropertyWriter::new(&mut properties).put(Property::SessionExpiryInterval(expiry_s));
    PropertyWriter::new(&mut will_properties).put(Property::WillDelayInterval(will_delay_s));
    let will = Will {
        qos: AtMostOnce,
        retain: false,
        properties: Properties::from_validated(&will_properties),
        topic: "will",
        payload: b"will",
    };
    let connect = Connect {
        keep_alive: u16::MAX,
        ..connect_packet(V5, "me", false, Properties::from_validated(&properties), Some(will))
    };
    let client = w.open();
    w.send(client, &Packet::Connect(connect));
    client
}

#[test]
fn reconnecting_client_leaves_no_timers() {
    let mut w = World::new(1);
    for _ in 0..500 {
        let client = connect_for(&mut w, YEAR_S, YEAR_S / 2);
        w.cut(client);
        skip(&mut w, 10_000);
    }
    assert!(w.stats().timers < 200, "{} timers are set", w.stats().timers);
}

#[test]
fn distant_session_expiry_and_will_delay_are_exact() {
    let mut w = World::new(1);
    let client = connect_for(&mut w, 100_000, 50_000);
    w.cut(client);
    for (until_s, wills, sessions) in [(49_999, 0, 1), (50_001, 1, 1), (99_999, 1, 1), (100_001, 1, 0)] {
        let start = 1_000_000;
        let passed = w.now.monotonic_ms - start;
        skip(&mut w, until_s * 1000 - passed);
        assert_eq!(
            (w.stats().wills_published, w.stats().sessions),
            (wills, sessions),
            "after {until_s} s"
        );
    }
}

#[test]
fn retained_message_expiries_share_one_timer() {
    let mut w = World::new(1);
    let publisher = w.connect(V5, "publisher", true, &[Property::SessionExpiryInterval(u32::MAX)]);
    let retain = |w: &mut World, topic: &str, expiry_s: u32| {
        let expiry = [Property::MessageExpiryInterval(expiry_s)];
        w.publish_with(
            publisher,
            topic,
            "x",
            AtMostOnce,
            PublishFields {
                retain: true,
                properties: &expiry,
                ..PublishFields::default()
            },
        );
    };
    retain(&mut w, "far", 10_000);
    for _ in 0..500 {
        retain(&mut w, "near", 10);
        skip(&mut w, 11_000);
        assert_eq!(w.stats().retained_messages, 1);
    }
    assert!(w.stats().timers < 100, "{} timers are set", w.stats().timers);
    skip(&mut w, 10_000 * 1000);
    assert_eq!((w.stats().retained_messages, w.stats().timers), (0, 0));
}

/// Returns a SUBSCRIBE with all of these filters at QoS 0.
fn subscribe_to_all(w: &mut World, client: usize, filters: &[String]) {
    let mut bytes = Vec::new();
    let options = SubscriptionOptions::default();
    let filters = filters.iter().map(|filter| SubscribeFilter { filter, options });
    let packet = Subscribe {
        packet_id: PacketId::new(7).unwrap(),
        properties: Properties::EMPTY,
        filters: SubscribeFilters::encode(filters, V5, &mut bytes),
    };
    w.send(client, &Packet::Subscribe(packet));
}

fn unsubscribe_from_all(w: &mut World, client: usize, filters: &[String]) {
    let mut bytes = Vec::new();
    let packet = Unsubscribe {
        packet_id: PacketId::new(8).unwrap(),
        properties: Properties::EMPTY,
        filters: UnsubscribeFilters::encode(filters.iter().map(String::as_str), &mut bytes),
    };
    w.send(client, &Packet::Unsubscribe(packet));
}

fn retain(w: &mut World, client: usize, topic: &str) {
    w.publish_with(client, topic, "x", AtMostOnce, PublishFields::RETAINED);
}

#[test]
fn retained_replay_cost_is_linear_in_the_filters() {
    for shards in [1, 3] {
        let mut w = World::new(shards);
        let publisher = w.connect(V5, "publisher", true, &[]);
        for n in 0..20 {
            retain(&mut w, publisher, &format!("{n}"));
        }
        let client = w.connect(V5, "client", true, &[]);
        let filters: Vec<String> = (0..40_000).map(|n| format!("{n}")).collect();
        let start = std::time::Instant::now();
        subscribe_to_all(&mut w, client, &filters);
        assert_eq!(w.messages(client).len(), 20);
        w.is_mail_held = true;
        subscribe_to_all(&mut w, client, &filters);
        unsubscribe_from_all(&mut w, client, &filters);
        assert_eq!(w.stats().subscriptions, 0);
        // The linear search takes a tenth of a second. A quadratic one took fifteen seconds.
        assert!(
            start.elapsed().as_secs() < 7,
            "{:?} on {shards} shards",
            start.elapsed()
        );
    }
}

/// Live messages wait until the other shards have answered.
#[test]
fn one_request_asks_for_the_retained_messages_of_many_filters() {
    const FILTERS: usize = 5_000;
    let mut w = World::new(3);
    let publisher = w.connect(V5, "publisher", true, &[]);
    for n in (0..FILTERS).step_by(100) {
        retain(&mut w, publisher, &format!("{n}/a"));
        retain(&mut w, publisher, &format!("{n}/b"));
    }
    let client = w.connect(V5, "client", true, &[]);
    let filters: Vec<String> = (0..FILTERS).map(|n| format!("{n}/#")).collect();
    let before = w.delivered_mails;
    subscribe_to_all(&mut w, client, &filters);
    let mails = w.delivered_mails - before;
    let mut topics: Vec<String> = w.messages(client).into_iter().map(|message| message.topic).collect();
    topics.dedup();
    assert_eq!(topics.len(), 2 * FILTERS / 100);
    // A request and an answer for each filter and each other shard would be 20,000.
    assert!(mails < 1_000, "{mails} mails");
}

#[test]
fn retained_search_is_spread_over_ticks() {
    let mut w = World::new(1);
    let publisher = w.connect(V5, "publisher", true, &[]);
    for n in 0..5_000 {
        retain(&mut w, publisher, &format!("{n}/here"));
    }
    let (shard, conn) = (&mut w.shards[0], ConnSlot(7));
    let now = w.now;
    let address = "10.0.0.1:1".parse().unwrap();
    let peer = Peer {
        address,
        transport: Transport::Tcp,
        listener: 0,
        maximum_packet_size: None,
        certificate_common_name: None,
        certificate: None,
    };
    shard.open(now, conn, peer);
    let mut bytes = Vec::new();
    Packet::Connect(connect_packet(V5, "client", true, Properties::EMPTY, None)).encode(V5, &mut bytes);
    let (mut filter_bytes, options) = (Vec::new(), SubscriptionOptions::default());
    let names: Vec<String> = (0..200)
        .map(|n| format!("+/elsewhere/{n}"))
        .chain(["+/here".into()])
        .collect();
    let filters = names.iter().map(|filter| SubscribeFilter { filter, options });
    let packet = Subscribe {
        packet_id: PacketId::new(7).unwrap(),
        properties: Properties::EMPTY,
        filters: SubscribeFilters::encode(filters, V5, &mut filter_bytes),
    };
    Packet::Subscribe(packet).encode(V5, &mut bytes);
    let received = shard.receive(now, conn, &bytes);
    assert_eq!(received.consumed, bytes.len());
    let mut ticks = 0;
    while shard.inspect().next_deadline() == Some(0) {
        let waiting = shard.outbox().queued_bytes(conn);
        shard.outbox().record_written(conn, waiting);
        shard.outbox().end_tick();
        shard.run_timers(now);
        ticks += 1;
    }
    // 200 filters search at least 5,000 topics each: a million steps, about ten thousand per tick.
    assert!(ticks > 50, "all in {ticks} ticks");
    assert_eq!(shard.inspect().stats().messages_sent[0], 5_000);
}

#[test]
fn large_payload_is_stored_once_for_all_subscribers() {
    const MEMBERS: usize = 300;
    let mut w = World::new(1);
    let publisher = w.connect(V5, "publisher", true, &[]);
    let payload = "p".repeat(500_000);
    for qos in [AtMostOnce, AtLeastOnce] {
        let mut members = Vec::new();
        for n in 0..MEMBERS {
            let properties = [Property::TopicAliasMaximum((n % 2) as u16)];
            let member = w.connect(V5, &format!("{n}"), true, &properties);
            let options = SubscriptionOptions {
                maximum_qos: qos,
                ..Default::default()
            };
            w.subscribe_with(member, "topic", options, Some(n as u32 + 1));
            w.take(member);
            members.push(member);
        }
        w.blocked.clone_from(&members);
        w.publish(publisher, "topic", &payload, qos);
        // No member has read yet. The backlog counts the payload for each member, but memory holds it only once.
        assert!(w.stats().output_backlog_bytes > (MEMBERS * payload.len()) as u64);
        assert!(w.largest_arena_bytes < 10_000_000, "{} bytes", w.largest_arena_bytes);
        for (n, member) in members.iter().enumerate() {
            w.unblock(*member);
            let got = w.messages(*member);
            assert_eq!(
                (got.len(), &got[0].topic[..], got[0].identifiers[..].to_vec()),
                (1, "topic", vec![n as u32 + 1])
            );
            assert!(got[0].payload == payload, "the payload of {n}");
            w.disconnect(*member);
        }
    }
}

#[test]
fn delayed_messages_have_a_byte_limit() {
    let mut w = World::new(1);
    let publisher = w.connect(V5, "publisher", true, &[]);
    let payload = "p".repeat(1_000_000);
    let mut refused = 0;
    for _ in 0..80 {
        w.publish(publisher, "$delayed/1/t", &payload, AtLeastOnce);
        refused += usize::from(w.take(publisher)[0].contains("QuotaExceeded"));
    }
    assert!((10..20).contains(&refused), "{refused} of 80 MB refused");
    assert_eq!(w.stats().drops[DropReason::DelayedFull as usize], refused as u64);
    skip(&mut w, 1_100);
    w.publish(publisher, "$delayed/1/t", &payload, AtLeastOnce);
    assert!(
        w.take(publisher)[0].contains("Success"),
        "the limit allows messages again"
    );
}

#[test]
fn invalid_topics_are_not_counted_as_unauthorized() {
    let mut w = World::new(1);
    let publisher = w.connect(V5, "publisher", true, &[]);
    let deep = ["a"; 129].join("/");
    for topic in ["$delayed/x/t", "$delayed/99999999999/t", &deep] {
        w.publish(publisher, topic, "x", AtLeastOnce);
        assert!(w.take(publisher)[0].contains("TopicNameInvalid"), "{topic}");
    }
    let drops = w.stats().drops;
    assert_eq!(drops[DropReason::TopicInvalid as usize], 3);
    assert_eq!(drops[DropReason::NotAuthorizedToPublish as usize], 0);
}

#[test]
fn subscription_identifiers_count_against_the_queue_limit() {
    const LEVELS: usize = 8;
    let config = ShardConfig {
        max_queued_bytes: 10_000,
        ..ShardConfig::default()
    };
    let mut w = World::with(1, config, std::sync::Arc::new(OpenAccess));
    let client = w.connect(V5, "client", true, &[Property::SessionExpiryInterval(1000)]);
    for n in 0..1u32 << LEVELS {
        let filter: Vec<&str> = (0..LEVELS)
            .map(|level| if n >> level & 1 == 1 { "+" } else { "x" })
            .collect();
        let options = SubscriptionOptions {
            maximum_qos: AtLeastOnce,
            ..Default::default()
        };
        w.subscribe_with(client, &filter.join("/"), options, Some(n + 1));
    }
    w.cut(client);
    let publisher = w.connect(V5, "publisher", true, &[]);
    let topic = ["x"; LEVELS].join("/");
    for _ in 0..20 {
        w.publish(publisher, &topic, "payload", AtLeastOnce);
    }
    let view = w.shards[0].inspect().client("client").unwrap();
    assert!(
        (5..10).contains(&view.queued),
        "{} messages of a kilobyte of identifiers",
        view.queued
    );
    assert!(view.queued_bytes > view.queued * 1024 && view.queued_bytes <= 10_000);
}
