//! Tests lifetimes: reused connection slots, timers and answers for the previous user of a slot, wills, and
//! messages between shards that arrive after the state has changed.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use crate::world::{PublishFields, World, connect_packet};
use mqtt::ProtocolVersion::{V3_1_1, V5};
use mqtt::QoS::{AtLeastOnce, AtMostOnce, ExactlyOnce};
use mqtt::*;
use tidewire_broker::*;

fn session_for(seconds: u32) -> Property<'static> {
    Property::SessionExpiryInterval(seconds)
}

/// Connects without reading the received packets.
fn connect(
    w: &mut World,
    id: &str,
    clean_start: bool,
    properties: &[Property<'_>],
    will: Option<(&str, u32)>,
) -> usize {
    let client = w.open();
    let (mut bytes, mut will_bytes) = (Vec::new(), Vec::new());
    let mut writer = PropertyWriter::new(&mut bytes);
    for property in properties {
        writer.put(*property);
    }
    let properties = writer.finish();
    let will = will.map(|(topic, delay_s)| {
        PropertyWriter::new(&mut will_bytes).put(Property::WillDelayInterval(delay_s));
        Will {
            qos: AtLeastOnce,
            retain: false,
            properties: Properties::from_validated(&will_bytes),
            topic,
            payload: b"will",
        }
    });
    w.send(
        client,
        &Packet::Connect(connect_packet(V5, id, clean_start, properties, will)),
    );
    client
}

/// Returns a client id that belongs to this shard of three.
fn id_on(shard: u16, name: &str) -> String {
    let mut ids = (0..).map(|n| format!("{name}{n}"));
    ids.find(|id| tidewire_broker::home_shard(id, 3) == Some(ShardId(shard)))
        .unwrap()
}

#[test]
fn old_session_expiry_does_not_end_a_reused_slot() {
    let mut w = World::new(1);
    let first = w.connect(V5, "first", true, &[session_for(10)]);
    w.cut(first);
    let clean = w.connect(V5, "first", true, &[]);
    w.disconnect(clean);
    let second = w.connect(V5, "second", true, &[session_for(1000)]);
    w.cut(second);
    w.pass(11_000);
    assert_eq!(w.stats().sessions, 1, "the session expires after 1000 seconds");
}

#[test]
fn old_will_delay_does_not_affect_a_reused_slot() {
    let mut w = World::new(1);
    let watcher = w.connect(V5, "watcher", true, &[]);
    w.subscribe(watcher, "will", AtMostOnce);
    let first = connect(&mut w, "first", true, &[session_for(100)], Some(("other", 10)));
    w.cut(first);
    let clean = w.connect(V5, "first", true, &[]);
    w.disconnect(clean);
    let second = connect(&mut w, "second", true, &[session_for(1000)], Some(("will", 50)));
    w.cut(second);
    w.pass(11_000);
    assert_eq!(w.payloads(watcher), [""; 0], "the will delay is 50 seconds");
    w.pass(40_000);
    assert_eq!(w.payloads(watcher), ["will"]);
}

#[test]
fn takeover_of_a_transient_session_publishes_the_will() {
    // 3.1.4: "it will be sent because the original Session is ended on the takeover".
    for clean_start in [false, true] {
        let mut w = World::new(1);
        let watcher = w.connect(V5, "watcher", true, &[]);
        w.subscribe(watcher, "will", AtMostOnce);
        connect(&mut w, "me", true, &[session_for(0)], Some(("will", 30)));
        connect(&mut w, "me", clean_start, &[session_for(0)], None);
        assert_eq!(w.payloads(watcher), ["will"], "clean start {clean_start}");
    }
}

#[test]
fn takeover_of_a_durable_session_cancels_a_delayed_will() {
    for (delay_s, expected) in [(0, vec!["will"]), (30, vec![])] {
        let mut w = World::new(1);
        let watcher = w.connect(V5, "watcher", true, &[]);
        w.subscribe(watcher, "will", AtMostOnce);
        connect(&mut w, "me", true, &[session_for(100)], Some(("will", delay_s)));
        let me = connect(&mut w, "me", false, &[session_for(100)], None);
        assert!(w.take(me)[0].contains("present=true"));
        w.pass(60_000);
        assert_eq!(w.payloads(watcher), expected);
    }
}

#[test]
fn will_of_a_banned_client_is_published_only_if_configured() {
    for is_published in [false, true] {
        let config = ShardConfig {
            publish_will_of_banned: is_published,
            ..ShardConfig::default()
        };
        let mut w = World::with(1, config, Arc::new(OpenAccess));
        let watcher = w.connect(V5, "watcher", true, &[]);
        w.subscribe(watcher, "will", AtMostOnce);
        let bad = connect(&mut w, "bad", true, &[session_for(100)], Some(("will", 0)));
        let now = w.now;
        assert_eq!(
            w.shards[0]
                .operator(now)
                .kick_banned(SessionSlot::FIRST, |who| &*who.client_id == "bad"),
            None
        );
        w.settle();
        w.pass(200_000);
        assert_eq!(w.payloads(watcher).len(), usize::from(is_published));
        assert!(w.is_closed(bad));
    }
}

struct Slow;

impl AccessControl for Slow {
    fn authenticate_now(&self, _: &ConnectCredentials) -> Option<AuthOutcome> {
        None
    }

    fn supports_auth_method(&self, _: &str) -> bool {
        false
    }

    fn session(&self, _: &ClientIdentity) -> Option<Arc<dyn SessionAccess>> {
        None
    }
}

#[test]
fn late_authentication_answer_ignores_a_reused_slot() {
    let mut w = World::with(1, ShardConfig::default(), Arc::new(Slow));
    let honest = connect(&mut w, "honest", true, &[], None);
    let (_, first_attempt, _) = w.authentications.pop().unwrap();
    w.cut(honest);
    let other = connect(&mut w, "other", true, &[], None);
    w.decide(other, first_attempt, AuthOutcome::Allow(Box::default()));
    assert_eq!(w.take(other), [""; 0], "its own password has not been checked");
    assert_eq!(w.stats().connections, 0);
}

#[test]
fn no_local_ignores_the_previous_client_of_a_slot() {
    let mut w = World::new(1);
    let publisher = w.connect(V5, "pub", true, &[]);
    w.publish(publisher, "$delayed/5/t", "x", AtLeastOnce);
    w.disconnect(publisher);
    let other = w.connect(V5, "other", true, &[]);
    w.subscribe_with(
        other,
        "t",
        SubscriptionOptions {
            no_local: true,
            ..Default::default()
        },
        None,
    );
    w.pass(6000);
    assert_eq!(w.payloads(other), ["x"]);
}

#[test]
fn message_too_large_with_an_alias_is_sent_without_one() {
    let mut w = World::new(1);
    let topic = "a/rather/long/topic";
    let publish = Publish {
        dup: false,
        qos: AtLeastOnce,
        retain: false,
        topic,
        packet_id: PacketId::new(1),
        properties: Properties::EMPTY,
        payload: &[b'x'; 80],
    };
    let size = publish_size(&publish, PublishExtras::default(), V5) as u32;
    let properties = [Property::MaximumPacketSize(size), Property::TopicAliasMaximum(5)];
    let subscriber = w.connect(V5, "sub", true, &properties);
    w.subscribe(subscriber, topic, AtLeastOnce);
    let publisher = w.connect(V5, "pub", true, &[]);
    for qos in [AtMostOnce, AtLeastOnce] {
        w.publish(publisher, topic, &"x".repeat(80), qos);
    }
    assert_eq!(w.payloads(subscriber).len(), 2);
}

#[test]
fn will_of_an_ended_group_member_goes_to_another_member() {
    let config = ShardConfig {
        max_inflight: 1,
        ..Default::default()
    };
    let mut w = World::with(1, config, Arc::new(OpenAccess));
    let other = w.connect(V5, "other", true, &[]);
    w.subscribe(other, "$share/g/will", AtLeastOnce);
    let me = connect(&mut w, "me", true, &[session_for(0)], Some(("will", 0)));
    w.subscribe(me, "$share/g/will", AtLeastOnce);
    let publisher = w.connect(V5, "pub", true, &[]);
    for n in 0..2 {
        w.publish(publisher, "will", &n.to_string(), AtLeastOnce);
    }
    w.cut(me);
    let mut seen = Vec::new();
    for _ in 0..5 {
        for m in w.messages(other) {
            w.ack(other, PacketType::PubAck, m.id.unwrap());
            seen.push(m.payload);
        }
    }
    seen.sort();
    assert_eq!(seen, ["0", "1", "will"]);
}

#[test]
fn expired_returned_message_is_not_redispatched() {
    let mut w = World::new(1);
    let publisher = w.connect(V5, "pub", true, &[]);
    let first = w.connect(V5, "first", true, &[session_for(100), Property::ReceiveMaximum(1)]);
    w.subscribe(first, "$share/g/t", AtLeastOnce);
    for payload in ["in flight", "queued"] {
        w.publish_with(
            publisher,
            "t",
            payload,
            AtLeastOnce,
            PublishFields {
                properties: &[Property::MessageExpiryInterval(2)],
                ..PublishFields::default()
            },
        );
    }
    let second = w.connect(V5, "second", true, &[]);
    w.subscribe(second, "$share/g/t", AtLeastOnce);
    w.pass(3000);
    w.cut(first);
    assert_eq!(w.payloads(second), [""; 0]);
}

#[test]
fn undelivered_group_messages_go_to_the_first_member() {
    for shards in [1, 3] {
        let mut w = World::new(shards);
        let publisher = w.connect(V5, "pub", true, &[]);
        let first = w.connect(V5, "first", true, &[session_for(100)]);
        w.subscribe(first, "$share/g/t", AtLeastOnce);
        w.publish(publisher, "t", "x", AtLeastOnce);
        w.cut(first);
        let second = w.connect(V5, "second", true, &[]);
        w.subscribe(second, "$share/g/t", AtLeastOnce);
        assert_eq!(w.payloads(second), ["x"], "{shards} shards");
    }
}

#[test]
fn least_busy_member_is_found_after_drops_and_returns() {
    let config = ShardConfig {
        shared_strategy: ShareStrategy::LeastInflight,
        max_queued_messages: 2,
        max_inflight: 2,
        ..Default::default()
    };
    let mut w = World::with(1, config, Arc::new(OpenAccess));
    let publisher = w.connect(V5, "pub", true, &[]);
    let first = w.connect(V5, "first", true, &[session_for(100)]);
    w.subscribe(first, "$share/g/t", AtLeastOnce);
    for n in 0..20 {
        w.publish(publisher, "t", &n.to_string(), AtLeastOnce);
    }
    let second = w.connect(V5, "second", true, &[session_for(100)]);
    w.subscribe(second, "$share/g/t", AtLeastOnce);
    let drain = |w: &mut World, client: usize| {
        let mut n = 0;
        for _ in 0..20 {
            for m in w.messages(client) {
                w.ack(client, PacketType::PubAck, m.id.unwrap());
                n += 1;
            }
        }
        n
    };
    drain(&mut w, first);
    // The group queued these messages because no member had space for them.
    w.pass(1000);
    drain(&mut w, first);
    drain(&mut w, second);
    for n in 0..20 {
        w.publish(publisher, "t", &n.to_string(), AtLeastOnce);
        if n % 2 == 1 {
            assert_eq!(
                (drain(&mut w, first), drain(&mut w, second)),
                (1, 1),
                "both members are idle"
            );
        }
    }
}

#[test]
fn takeover_during_a_retained_replay_loses_nothing() {
    let mut w = World::new(3);
    let publisher = w.connect(V5, "pub", true, &[]);
    for n in 0..600 {
        w.publish_with(
            publisher,
            &format!("r/{n}"),
            &n.to_string(),
            AtLeastOnce,
            PublishFields::RETAINED,
        );
    }
    let id = id_on(0, "sub");
    let mut seen = std::collections::HashSet::new();
    let mut subscriber = w.connect(V5, &id, true, &[session_for(100)]);
    w.is_mail_held = true;
    w.subscribe(subscriber, "r/#", AtMostOnce);
    for round in 0..400 {
        seen.extend(w.payloads(subscriber));
        if round < 60 && round % 2 == 0 {
            subscriber = connect(&mut w, &id, false, &[session_for(100)], None);
        }
        w.deliver_mail(round);
    }
    w.release_mail();
    seen.extend(w.payloads(subscriber));
    assert_eq!(seen.len(), 600);
}

#[test]
fn unsubscribe_does_not_stop_the_next_replay() {
    let mut w = World::new(3);
    let publisher = w.connect(V5, "pub", true, &[]);
    for n in 0..30 {
        w.publish_with(publisher, &format!("r/{n}"), "x", AtLeastOnce, PublishFields::RETAINED);
    }
    let subscriber = w.connect(V5, &id_on(1, "sub"), true, &[]);
    w.is_mail_held = true;
    w.subscribe(subscriber, "none/#", AtMostOnce);
    w.subscribe(subscriber, "r/#", AtMostOnce);
    let mut bytes = Vec::new();
    let filters = UnsubscribeFilters::encode(["none/#"], &mut bytes);
    let packet = Unsubscribe {
        packet_id: PacketId::new(9).unwrap(),
        properties: Properties::EMPTY,
        filters,
    };
    w.send(subscriber, &Packet::Unsubscribe(packet));
    w.release_mail();
    assert_eq!(w.payloads(subscriber).len(), 30);
}

#[test]
fn large_retained_qos0_messages_reach_a_reading_client() {
    for shards in [1, 3] {
        let config = ShardConfig {
            output_buffer_bytes: 10_000,
            ..Default::default()
        };
        let mut w = World::with(shards, config, Arc::new(OpenAccess));
        let publisher = w.connect(V5, "pub", true, &[]);
        for n in 0..50 {
            w.publish_with(
                publisher,
                &format!("r/{n}"),
                &"x".repeat(3000),
                AtLeastOnce,
                PublishFields::RETAINED,
            );
        }
        let subscriber = w.connect(V5, "sub", true, &[]);
        w.subscribe(subscriber, "r/#", AtMostOnce);
        assert_eq!(w.payloads(subscriber).len(), 50, "{shards} shards");
    }
}

#[test]
fn small_queue_does_not_truncate_a_replay() {
    for shards in [1, 3] {
        let config = ShardConfig {
            max_queued_messages: 5,
            ..Default::default()
        };
        let mut w = World::with(shards, config, Arc::new(OpenAccess));
        let publisher = w.connect(V5, "pub", true, &[]);
        for n in 0..100 {
            w.publish_with(publisher, &format!("r/{n}"), "x", AtLeastOnce, PublishFields::RETAINED);
        }
        let subscriber = w.connect(V5, "sub", true, &[Property::ReceiveMaximum(3)]);
        w.subscribe(subscriber, "r/#", AtLeastOnce);
        let mut n = 0;
        for _ in 0..200 {
            for m in w.messages(subscriber) {
                w.ack(subscriber, PacketType::PubAck, m.id.unwrap());
                n += 1;
            }
        }
        assert_eq!(n, 100, "{shards} shards");
    }
}

#[test]
fn qos0_messages_follow_the_queued_messages() {
    let config = ShardConfig {
        queue_qos0: true,
        ..Default::default()
    };
    let mut w = World::with(1, config, Arc::new(OpenAccess));
    let properties = [session_for(100), Property::ReceiveMaximum(1)];
    let subscriber = w.connect(V5, "sub", true, &properties);
    w.subscribe(subscriber, "t", ExactlyOnce);
    w.cut(subscriber);
    let publisher = w.connect(V3_1_1, "pub", true, &[]);
    for (payload, qos) in [("1", AtLeastOnce), ("2", AtLeastOnce), ("3", AtMostOnce)] {
        w.publish(publisher, "t", payload, qos);
    }
    let subscriber = connect(&mut w, "sub", false, &properties, None);
    w.publish(publisher, "t", "4", AtMostOnce);
    let mut seen = Vec::new();
    for _ in 0..5 {
        for m in w.messages(subscriber) {
            if let Some(id) = m.id {
                w.ack(subscriber, PacketType::PubAck, id);
            }
            seen.push(m.payload);
        }
    }
    assert_eq!(seen, ["1", "2", "3", "4"]);
}

#[test]
fn concurrent_subscription_gets_a_retained_message() {
    // The publisher's shard has no subscription yet, and the subscriber's request reaches the topic's owner before the
    // message.
    let mut w = World::new(3);
    for n in 0..20 {
        let topic = format!("fresh/{n}");
        let publisher = connect(&mut w, &id_on(0, "pub"), true, &[], None);
        let subscriber = connect(&mut w, &id_on(1, "sub"), true, &[], None);
        w.is_mail_held = true;
        w.publish_with(publisher, &topic, "x", AtLeastOnce, PublishFields::RETAINED);
        w.subscribe(subscriber, &topic, AtMostOnce);
        // The subscriber's request overtakes the publisher's mail.
        while w.mail_waiting() > 0 {
            w.deliver_mail(w.mail_waiting() - 1);
        }
        w.release_mail();
        assert_eq!(w.payloads(subscriber), ["x"], "{topic}");
    }
}

#[test]
fn session_with_many_filters_is_deterministic() {
    let course = || {
        let mut w = World::new(1);
        let publisher = w.connect(V5, "pub", true, &[]);
        let member = w.connect(V5, "me", true, &[session_for(100)]);
        let options = SubscriptionOptions {
            maximum_qos: AtLeastOnce,
            ..Default::default()
        };
        for n in 1..60 {
            w.subscribe_with(member, &format!("$share/g{n}/t"), options, Some(n));
        }
        w.cut(member);
        w.publish(publisher, "t", "x", AtLeastOnce);
        let back = connect(&mut w, "me", false, &[session_for(100)], None);
        w.take_bytes(back)
    };
    let first = course();
    for _ in 0..5 {
        assert!(course() == first);
    }
}

#[test]
fn live_messages_follow_the_retained_replay() {
    for n in 0..20 {
        let mut w = World::new(3);
        let topic = format!("state/{n}");
        let publisher = connect(&mut w, &id_on(0, "pub"), true, &[], None);
        w.publish_with(publisher, &topic, "old", AtMostOnce, PublishFields::RETAINED);
        let subscriber = connect(&mut w, &id_on(1, "sub"), true, &[], None);
        w.is_mail_held = true;
        w.subscribe(subscriber, "state/#", AtMostOnce);
        w.publish(publisher, &topic, "new", AtMostOnce);
        w.publish(publisher, "state/other", "newer", AtLeastOnce);
        // The publisher's mail overtakes the answers of the stores.
        while w.mail_waiting() > 0 {
            w.deliver_mail(w.mail_waiting() - 1);
        }
        w.release_mail();
        assert_eq!(w.payloads(subscriber), ["old", "new", "newer"], "{topic}");
        assert_eq!(w.stats().queued_messages, 0);
        assert_eq!(w.stats().queued_bytes, 0);
    }
}

/// Every shard has retained messages to ask for.
fn retain_everywhere(w: &mut World, publisher: usize) {
    for n in 0..20 {
        w.publish_with(publisher, &format!("z/{n}"), "x", AtMostOnce, PublishFields::RETAINED);
    }
}

#[test]
fn held_messages_are_released_when_a_replay_fails() {
    for is_kept in [true, false] {
        let mut w = World::new(3);
        let publisher = connect(&mut w, &id_on(0, "pub"), true, &[], None);
        retain_everywhere(&mut w, publisher);
        let expiry = [session_for(if is_kept { 100 } else { 0 })];
        let subscriber = connect(&mut w, &id_on(1, "sub"), true, &expiry, None);
        w.subscribe(subscriber, "+/other", AtLeastOnce);
        w.is_mail_held = true;
        w.subscribe(subscriber, "a/#", AtLeastOnce);
        w.publish(publisher, "a/other", "held", AtLeastOnce);
        while w.mail_waiting() > 0 && w.stats().queued_messages == 0 {
            w.deliver_mail(w.mail_waiting() - 1);
        }
        assert_eq!(
            w.stats().queued_messages,
            1,
            "the message waits for the retained messages of `a/#`"
        );
        w.cut(subscriber);
        w.release_mail();
        if is_kept {
            let back = connect(&mut w, &id_on(1, "sub"), false, &expiry, None);
            assert_eq!(w.payloads(back), ["held"]);
        } else {
            assert_eq!(w.stats().sessions, 1);
        }
        assert_eq!((w.stats().queued_messages, w.stats().queued_bytes), (0, 0));
    }
}

#[test]
fn cancelled_replay_delays_no_message() {
    let mut w = World::new(3);
    let publisher = connect(&mut w, &id_on(0, "pub"), true, &[], None);
    retain_everywhere(&mut w, publisher);
    let subscriber = connect(&mut w, &id_on(1, "sub"), true, &[], None);
    w.subscribe(subscriber, "+/other", AtMostOnce);
    w.is_mail_held = true;
    w.subscribe(subscriber, "a/#", AtMostOnce);
    w.publish(publisher, "a/other", "held", AtMostOnce);
    while w.mail_waiting() > 0 && w.stats().queued_messages == 0 {
        w.deliver_mail(w.mail_waiting() - 1);
    }
    let mut bytes = Vec::new();
    let filters = UnsubscribeFilters::encode(["a/#"], &mut bytes);
    let packet_id = PacketId::new(9).unwrap();
    w.send(
        subscriber,
        &Packet::Unsubscribe(Unsubscribe {
            packet_id,
            properties: Properties::EMPTY,
            filters,
        }),
    );
    assert_eq!(w.payloads(subscriber), ["held"]);
}

#[test]
fn throttled_publisher_keeps_its_connection() {
    let config = ShardConfig {
        publish_limits: PublishLimits {
            client: PublishRates {
                messages: None,
                bytes: Some(TokenRate {
                    amount: 1000,
                    period_ms: 1000,
                }),
            },
            ..PublishLimits::default()
        },
        ..ShardConfig::default()
    };
    let mut w = World::with(1, config, Arc::new(OpenAccess));
    let publisher = w.connect(V5, "publisher", true, &[]);
    // The data lasts five minutes, and the Keep Alive is one minute.
    w.publish(publisher, "t", &"p".repeat(300_000), AtMostOnce);
    // Waits, with the packets behind it.
    w.publish(publisher, "t", "p", AtMostOnce);
    for _ in 0..6 {
        w.send(publisher, &Packet::PingReq);
        w.pass(50_000);
        assert!(!w.is_closed(publisher));
    }
    assert_eq!(w.take(publisher).len(), 6, "each PINGREQ is answered in order");
    w.pass(91_000);
    assert!(w.is_closed(publisher), "now the publisher exceeds its Keep Alive");
}

#[test]
fn slow_reader_stays_connected_and_stalled_reader_does_not() {
    let config = ShardConfig {
        output_buffer_bytes: 10_000,
        ..ShardConfig::default()
    };
    for reads in [true, false] {
        let mut w = World::with(1, config.clone(), Arc::new(OpenAccess));
        let publisher = w.connect(V5, "publisher", true, &[]);
        let slow = w.connect(V5, "slow", true, &[]);
        w.subscribe(slow, "t", AtMostOnce);
        w.blocked.push(slow);
        for _ in 0..10 {
            w.send(publisher, &Packet::PingReq);
            for _ in 0..30 {
                w.publish(publisher, "t", &"p".repeat(1000), AtMostOnce);
            }
            w.send(slow, &Packet::PingReq);
            w.pass(30_000);
            if reads && !w.is_closed(slow) {
                // The subscriber never reads enough for the server to read its packets.
                w.unblock_partly(slow, 5);
            }
        }
        assert_eq!(w.is_closed(slow), !reads);
    }
}

fn expiring(w: &mut World, publisher: usize, topic: &str, payload: &str, expiry_s: u32) {
    let properties = [Property::MessageExpiryInterval(expiry_s)];
    w.publish_with(
        publisher,
        topic,
        payload,
        AtLeastOnce,
        PublishFields {
            properties: &properties,
            ..PublishFields::default()
        },
    );
}

#[test]
fn expired_messages_do_not_fill_a_queue() {
    for queue_drop in [QueueDropPolicy::Newest, QueueDropPolicy::Oldest] {
        let config = ShardConfig {
            max_queued_messages: 3,
            queue_drop,
            ..ShardConfig::default()
        };
        let mut w = World::with(1, config, Arc::new(OpenAccess));
        let away = w.connect(V5, "away", true, &[session_for(1000)]);
        w.subscribe(away, "t", AtLeastOnce);
        w.cut(away);
        let publisher = w.connect(V5, "publisher", true, &[]);
        for payload in ["1", "2", "3"] {
            expiring(&mut w, publisher, "t", payload, 5);
        }
        w.pass(6_000);
        for payload in ["4", "5", "6"] {
            w.publish(publisher, "t", payload, AtLeastOnce);
        }
        let away = connect(&mut w, "away", false, &[session_for(1000)], None);
        assert_eq!(w.payloads(away), ["4", "5", "6"], "{queue_drop:?}");
        let drops = w.stats().drops;
        assert_eq!(drops[DropReason::Expired as usize], 3);
        assert_eq!(drops[DropReason::QueueFullByCount as usize], 0);
    }
}

#[test]
fn message_expired_before_routing_is_counted() {
    let mut w = World::new(1);
    let publisher = w.connect(V5, "publisher", true, &[]);
    w.subscribe(publisher, "t", AtLeastOnce);
    expiring(&mut w, publisher, "t", "at once", 0);
    expiring(&mut w, publisher, "$delayed/5/t", "in time", 10);
    expiring(&mut w, publisher, "$delayed/5/t", "too late", 3);
    w.pass(6_000);
    assert_eq!(w.payloads(publisher), ["in time"]);
    assert_eq!(w.stats().drops[DropReason::Expired as usize], 2);
}

#[test]
fn group_queue_is_counted_and_drops_expired_messages() {
    for shards in [1, 3] {
        let config = ShardConfig {
            max_queued_messages: 3,
            queue_drop: QueueDropPolicy::Newest,
            ..ShardConfig::default()
        };
        let mut w = World::with(shards, config, Arc::new(OpenAccess));
        let member = w.connect(V5, "member", true, &[session_for(1000)]);
        w.subscribe(member, "$share/g/t", AtLeastOnce);
        w.cut(member);
        let publisher = w.connect(V5, "publisher", true, &[]);
        for payload in ["1", "2", "3"] {
            expiring(&mut w, publisher, "t", payload, 5);
        }
        assert_eq!(w.stats().queued_messages, 3);
        w.pass(6_000);
        for payload in ["4", "5", "6", "7"] {
            w.publish(publisher, "t", payload, AtLeastOnce);
        }
        let stats = w.stats();
        assert_eq!(
            (stats.queued_messages, stats.drops[DropReason::Expired as usize]),
            (3, 3)
        );
        assert_eq!(stats.drops[DropReason::QueueFullByCount as usize], 1);
        let member = connect(&mut w, "member", false, &[session_for(0)], None);
        assert_eq!(w.payloads(member), ["4", "5", "6"]);
        let stats = w.stats();
        assert_eq!(
            (stats.queued_messages, stats.queued_bytes, stats.inflight_messages),
            (0, 0, 3)
        );
    }
}

/// MQTT 5, section 4.9: the send quota belongs to the connection, not to the session.
#[test]
fn earlier_inflight_messages_do_not_use_receive_maximum() {
    let mut w = World::new(1);
    let config = ShardConfig {
        receive_maximum: 2,
        ..ShardConfig::default()
    };
    w.shards[0].reconfigure(w.now, Arc::new(config));
    let first = w.connect(V5, "me", true, &[session_for(100)]);
    for id in [1, 2] {
        w.publish_with(
            first,
            "t",
            "x",
            ExactlyOnce,
            PublishFields {
                id,
                ..PublishFields::default()
            },
        );
    }
    w.cut(first);
    let second = w.connect(V5, "me", false, &[session_for(100)]);
    for id in [3, 4] {
        w.publish_with(
            second,
            "t",
            "x",
            ExactlyOnce,
            PublishFields {
                id,
                ..PublishFields::default()
            },
        );
    }
    assert!(!w.is_closed(second));
    w.publish_with(
        second,
        "t",
        "x",
        ExactlyOnce,
        PublishFields {
            id: 5,
            ..PublishFields::default()
        },
    );
    assert!(w.is_closed(second));
}

#[test]
fn limits_announced_in_connack_are_enforced() {
    let mut w = World::new(1);
    let before = w.connect(V5, "before", true, &[]);
    let config = ShardConfig {
        receive_maximum: 1,
        max_topic_alias_in: 0,
        ..ShardConfig::default()
    };
    w.shards[0].reconfigure(w.now, Arc::new(config));
    let after = w.connect(V5, "after", true, &[]);
    for client in [before, after] {
        w.publish_with(client, "t", "x", ExactlyOnce, PublishFields::default());
        w.publish_with(
            client,
            "t",
            "x",
            ExactlyOnce,
            PublishFields {
                id: 2,
                ..PublishFields::default()
            },
        );
    }
    assert!(!w.is_closed(before) && w.is_closed(after));
    let after = w.connect(V5, "after", true, &[]);
    for client in [before, after] {
        w.publish_with(
            client,
            "t",
            "x",
            AtMostOnce,
            PublishFields {
                properties: &[Property::TopicAlias(5)],
                ..PublishFields::default()
            },
        );
    }
    assert!(!w.is_closed(before) && w.is_closed(after));
}

/// Client events without a subscriber are not recorded.
#[test]
fn client_events_are_recorded_only_while_subscribed() {
    let mut w = World::new(3);
    let one = w.connect(V5, "one", true, &[]);
    let other = w.connect(V5, "other", true, &[session_for(10)]);
    w.subscribe(one, "#", AtMostOnce);
    w.subscribe(one, "$SYS/broker/uptime", AtMostOnce);
    assert!(!w.node.are_client_events_wanted());
    w.subscribe(one, "$SYS/brokers/#", AtMostOnce);
    w.subscribe(one, "$SYS/brokers/#", AtLeastOnce);
    w.subscribe(other, "$share/g/$SYS/#", AtMostOnce);
    assert!(w.node.are_client_events_wanted());
    w.disconnect(one);
    assert!(
        w.node.are_client_events_wanted(),
        "the other session still subscribes to them"
    );
    w.cut(other);
    w.pass(11_000);
    assert!(!w.node.are_client_events_wanted());
}
