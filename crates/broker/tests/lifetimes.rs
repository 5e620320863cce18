//! What outlives what: slots that are used again, timers and answers for who was there before, wills of sessions that end,
//! and mail that arrives after the world has changed.

#![allow(clippy::unwrap_used)]

mod world;

use std::sync::Arc;

use mqtt::ProtocolVersion::{V3_1_1, V5};
use mqtt::QoS::{AtLeastOnce, AtMostOnce, ExactlyOnce};
use mqtt::*;
use tidewire_broker::*;
use world::{World, connect_packet};

fn session_for(seconds: u32) -> Property<'static> {
    Property::SessionExpiryInterval(seconds)
}

/// Connects and leaves what was received untouched.
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

/// A client id whose home is that shard of three.
fn id_on(shard: u16, name: &str) -> String {
    let mut ids = (0..).map(|n| format!("{name}{n}"));
    ids.find(|id| Shard::home(id, 3) == Some(ShardId(shard))).unwrap()
}

#[test]
fn a_session_in_a_used_slot_is_not_ended_by_the_expiry_of_the_one_before() {
    let mut w = World::new(1);
    let first = w.connect(V5, "first", true, &[session_for(10)]);
    w.cut(first);
    let clean = w.connect(V5, "first", true, &[]);
    w.disconnect(clean);
    let second = w.connect(V5, "second", true, &[session_for(1000)]);
    w.cut(second);
    w.pass(11_000);
    assert_eq!(w.stats().sessions, 1, "it has 1000 seconds");
}

#[test]
fn a_will_is_not_published_by_the_delay_of_the_one_before_in_the_slot() {
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
    assert_eq!(w.payloads(watcher), [""; 0], "it has 50 seconds");
    w.pass(40_000);
    assert_eq!(w.payloads(watcher), ["will"]);
}

#[test]
fn a_take_over_of_a_session_that_ends_with_its_connection_publishes_the_will_whatever_its_delay() {
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
fn a_take_over_of_a_session_that_goes_on_cancels_a_delayed_will_only() {
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

struct Slow;

impl Access for Slow {
    fn authenticate_now(&self, _: &Credentials) -> Option<AuthOutcome> {
        None
    }

    fn knows_method(&self, _: &str) -> bool {
        false
    }

    fn session(&self, _: &Identity) -> Option<Arc<dyn SessionAccess>> {
        None
    }
}

#[test]
fn an_answer_of_the_authenticator_is_not_taken_for_a_later_connection_in_the_slot() {
    let mut w = World::with(1, ShardConfig::default(), Arc::new(Slow));
    let honest = connect(&mut w, "honest", true, &[], None);
    let (_, first_attempt, _) = w.authentications.pop().unwrap();
    w.cut(honest);
    let other = connect(&mut w, "other", true, &[], None);
    w.decide(
        other,
        first_attempt,
        AuthOutcome::Allow {
            is_superuser: false,
            data: None,
        },
    );
    assert_eq!(w.take(other), [""; 0], "its own password was not looked at");
    assert_eq!(w.stats().connections, 0);
}

#[test]
fn no_local_does_not_hide_a_delayed_message_of_the_one_before_in_the_slot() {
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
fn a_message_that_an_alias_would_make_too_large_is_sent_without_one() {
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
fn a_will_of_a_group_member_that_ends_goes_to_another_member() {
    let config = ShardConfig {
        inflight_max: 1,
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
fn an_expired_message_that_comes_back_to_its_group_is_not_given_to_another_member() {
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
            false,
            1,
            false,
            &[Property::MessageExpiryInterval(2)],
        );
    }
    let second = w.connect(V5, "second", true, &[]);
    w.subscribe(second, "$share/g/t", AtLeastOnce);
    w.pass(3000);
    w.cut(first);
    assert_eq!(w.payloads(second), [""; 0]);
}

#[test]
fn what_all_members_left_undone_goes_to_the_first_that_is_there() {
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
fn the_least_busy_member_is_told_from_the_others_after_drops_and_returns() {
    let config = ShardConfig {
        share_strategy: ShareStrategy::LeastInflight,
        queued_messages_max: 2,
        inflight_max: 2,
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
    // What the group has kept meanwhile because nobody had space for it.
    w.pass(1000);
    drain(&mut w, first);
    drain(&mut w, second);
    for n in 0..20 {
        w.publish(publisher, "t", &n.to_string(), AtLeastOnce);
        if n % 2 == 1 {
            assert_eq!((drain(&mut w, first), drain(&mut w, second)), (1, 1), "both are idle");
        }
    }
}

#[test]
fn a_take_over_in_the_middle_of_a_replay_from_other_shards_loses_nothing() {
    let mut w = World::new(3);
    let publisher = w.connect(V5, "pub", true, &[]);
    for n in 0..600 {
        w.publish_with(
            publisher,
            &format!("r/{n}"),
            &n.to_string(),
            AtLeastOnce,
            true,
            1,
            false,
            &[],
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
fn an_unsubscribe_while_a_replay_waits_does_not_stop_the_next_one() {
    let mut w = World::new(3);
    let publisher = w.connect(V5, "pub", true, &[]);
    for n in 0..30 {
        w.publish_with(publisher, &format!("r/{n}"), "x", AtLeastOnce, true, 1, false, &[]);
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
fn large_retained_messages_at_qos0_all_reach_a_client_that_reads() {
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
                true,
                1,
                false,
                &[],
            );
        }
        let subscriber = w.connect(V5, "sub", true, &[]);
        w.subscribe(subscriber, "r/#", AtMostOnce);
        assert_eq!(w.payloads(subscriber).len(), 50, "{shards} shards");
    }
}

#[test]
fn a_replay_is_not_cut_short_by_a_small_queue() {
    for shards in [1, 3] {
        let config = ShardConfig {
            queued_messages_max: 5,
            ..Default::default()
        };
        let mut w = World::with(shards, config, Arc::new(OpenAccess));
        let publisher = w.connect(V5, "pub", true, &[]);
        for n in 0..100 {
            w.publish_with(publisher, &format!("r/{n}"), "x", AtLeastOnce, true, 1, false, &[]);
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
fn qos0_messages_stay_in_order_behind_those_kept_for_an_absent_client() {
    let config = ShardConfig {
        is_qos0_queued: true,
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
fn a_subscription_on_its_way_gets_a_retained_message_either_kept_or_live() {
    // The publisher's shard knows of no subscription yet, and the subscriber asks the topic's owner before the message is there.
    let mut w = World::new(3);
    for n in 0..20 {
        let topic = format!("fresh/{n}");
        let publisher = connect(&mut w, &id_on(0, "pub"), true, &[], None);
        let subscriber = connect(&mut w, &id_on(1, "sub"), true, &[], None);
        w.is_mail_held = true;
        w.publish_with(publisher, &topic, "x", AtLeastOnce, true, 1, false, &[]);
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
fn a_session_of_many_filters_takes_the_same_course_each_time() {
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
fn live_messages_wait_for_the_retained_ones_before_them() {
    for n in 0..20 {
        let mut w = World::new(3);
        let topic = format!("state/{n}");
        let publisher = connect(&mut w, &id_on(0, "pub"), true, &[], None);
        w.publish_with(publisher, &topic, "old", AtMostOnce, true, 1, false, &[]);
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

/// Every shard is worth asking for retained messages.
fn retain_everywhere(w: &mut World, publisher: usize) {
    for n in 0..20 {
        w.publish_with(publisher, &format!("z/{n}"), "x", AtMostOnce, true, 1, false, &[]);
    }
}

#[test]
fn held_messages_are_let_go_when_their_replay_ends_without_an_answer() {
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
        assert_eq!(w.stats().queued_messages, 1, "it waits for what `a/#` may bring");
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
fn an_unsubscribed_replay_holds_nothing_up() {
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
fn a_publisher_that_is_slowed_is_not_taken_for_silent() {
    let config = ShardConfig {
        publish_bytes: Some(PublishRate {
            amount: 1000,
            period_ms: 1000,
        }),
        ..ShardConfig::default()
    };
    let mut w = World::with(1, config, Arc::new(OpenAccess));
    let publisher = w.connect(V5, "publisher", true, &[]);
    // Five minutes' worth, with a keep alive of one.
    w.publish(publisher, "t", &"p".repeat(300_000), AtMostOnce);
    for _ in 0..6 {
        w.send(publisher, &Packet::PingReq);
        w.pass(50_000);
        assert!(!w.is_closed(publisher));
    }
    assert_eq!(
        w.take(publisher).len(),
        6,
        "each PINGREQ is answered when it is its turn"
    );
    w.pass(91_000);
    assert!(w.is_closed(publisher), "now it is silent");
}

#[test]
fn a_subscriber_that_reads_slowly_is_not_taken_for_silent_and_one_that_does_not_read_is() {
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
                // Never enough for its own packets to be read.
                w.unblock_partly(slow, 5);
            }
        }
        assert_eq!(w.is_closed(slow), !reads);
    }
}

fn expiring(w: &mut World, publisher: usize, topic: &str, payload: &str, expiry_s: u32) {
    let properties = [Property::MessageExpiryInterval(expiry_s)];
    w.publish_with(publisher, topic, payload, AtLeastOnce, false, 1, false, &properties);
}

#[test]
fn a_queue_full_of_expired_messages_has_room() {
    for queue_drop in [QueueDrop::Newest, QueueDrop::Oldest] {
        let config = ShardConfig {
            queued_messages_max: 3,
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
fn a_message_that_expires_before_it_is_routed_is_counted() {
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
fn what_a_group_keeps_is_counted_and_expired_messages_make_room() {
    for shards in [1, 3] {
        let config = ShardConfig {
            queued_messages_max: 3,
            queue_drop: QueueDrop::Newest,
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

/// 4.9: the quota is that of a connection and no part of the session.
#[test]
fn what_is_open_from_an_earlier_connection_takes_nothing_of_the_receive_maximum() {
    let mut w = World::new(1);
    let config = ShardConfig {
        receive_maximum: 2,
        ..ShardConfig::default()
    };
    w.shards[0].reconfigure(Arc::new(config));
    let first = w.connect(V5, "me", true, &[session_for(100)]);
    for id in [1, 2] {
        w.publish_with(first, "t", "x", ExactlyOnce, false, id, false, &[]);
    }
    w.cut(first);
    let second = w.connect(V5, "me", false, &[session_for(100)]);
    for id in [3, 4] {
        w.publish_with(second, "t", "x", ExactlyOnce, false, id, false, &[]);
    }
    assert!(!w.is_closed(second));
    w.publish_with(second, "t", "x", ExactlyOnce, false, 5, false, &[]);
    assert!(w.is_closed(second));
}

#[test]
fn a_client_is_held_to_what_its_connack_said() {
    let mut w = World::new(1);
    let before = w.connect(V5, "before", true, &[]);
    let config = ShardConfig {
        receive_maximum: 1,
        topic_alias_maximum: 0,
        ..ShardConfig::default()
    };
    w.shards[0].reconfigure(Arc::new(config));
    let after = w.connect(V5, "after", true, &[]);
    for client in [before, after] {
        w.publish_with(client, "t", "x", ExactlyOnce, false, 1, false, &[]);
        w.publish_with(client, "t", "x", ExactlyOnce, false, 2, false, &[]);
    }
    assert!(!w.is_closed(before) && w.is_closed(after));
    let after = w.connect(V5, "after", true, &[]);
    for client in [before, after] {
        w.publish_with(
            client,
            "t",
            "x",
            AtMostOnce,
            false,
            1,
            false,
            &[Property::TopicAlias(5)],
        );
    }
    assert!(!w.is_closed(before) && w.is_closed(after));
}

/// Events that nobody wants are not even written down.
#[test]
fn client_events_are_wanted_as_long_as_somebody_subscribes_to_them() {
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
    assert!(w.node.are_client_events_wanted(), "the other's session waits for them");
    w.cut(other);
    w.pass(11_000);
    assert!(!w.node.are_client_events_wanted());
}
