//! Tests sessions on virtual time: delivery, acknowledgement, reconnect, takeover, wills, shared subscriptions and
//! limits. Each test runs with one shard and with three.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use crate::world::{PublishFields, World, connect_packet};
use mqtt::ProtocolVersion::{V3_1_1, V5};
use mqtt::QoS::{AtLeastOnce, AtMostOnce, ExactlyOnce};
use mqtt::*;
use tidewire_broker::*;

fn each(test: impl Fn(World)) {
    for shards in [1, 3] {
        test(World::new(shards));
    }
}

fn session_for(seconds: u32) -> Property<'static> {
    Property::SessionExpiryInterval(seconds)
}

#[test]
fn a_message_reaches_every_version_at_the_lower_qos() {
    each(|mut w| {
        let publisher = w.connect(V5, "pub", true, &[]);
        let old = w.connect(V3_1_1, "old", true, &[]);
        let new = w.connect(V5, "new", true, &[]);
        w.subscribe(old, "a/+", AtMostOnce);
        w.subscribe(new, "a/#", ExactlyOnce);
        w.publish_with(
            publisher,
            "a/b",
            "x",
            AtLeastOnce,
            PublishFields {
                id: 9,
                properties: &[Property::UserProperty("k", "v")],
                ..PublishFields::default()
            },
        );
        assert_eq!(w.take(publisher), ["PUBACK 9 Success"]);
        assert_eq!(w.take(old), ["SUBACK 7 [00]", "PUBLISH a/b x q0 id=0"]);
        assert_eq!(
            w.take(new),
            ["SUBACK 7 [02]", "PUBLISH a/b x q1 id=1 UserProperty(\"k\", \"v\")"]
        );
    });
}

#[test]
fn no_matching_subscribers_is_reported_to_5_clients() {
    each(|mut w| {
        let publisher = w.connect(V5, "pub", true, &[]);
        w.publish(publisher, "no/one", "x", AtLeastOnce);
        assert_eq!(w.take(publisher), ["PUBACK 1 NoMatchingSubscribers"]);
        assert_eq!(w.stats().drops[DropReason::NoSubscriber as usize], 1);
    });
}

#[test]
fn qos2_is_delivered_once_however_often_it_is_sent() {
    each(|mut w| {
        let publisher = w.connect(V3_1_1, "pub", false, &[]);
        let subscriber = w.connect(V3_1_1, "sub", true, &[]);
        w.subscribe(subscriber, "t", ExactlyOnce);
        w.publish_with(
            publisher,
            "t",
            "x",
            ExactlyOnce,
            PublishFields {
                id: 5,
                ..PublishFields::default()
            },
        );
        w.publish_with(
            publisher,
            "t",
            "x",
            ExactlyOnce,
            PublishFields {
                id: 5,
                dup: true,
                ..PublishFields::default()
            },
        );
        w.cut(publisher);
        let publisher = w.connect(V3_1_1, "pub", false, &[]);
        w.publish_with(
            publisher,
            "t",
            "x",
            ExactlyOnce,
            PublishFields {
                id: 5,
                dup: true,
                ..PublishFields::default()
            },
        );
        assert_eq!(w.take(publisher), ["PUBREC 5 Success"]);
        w.ack(publisher, PacketType::PubRel, 5);
        w.ack(publisher, PacketType::PubRel, 5);
        assert_eq!(w.take(publisher), ["PUBCOMP 5 Success", "PUBCOMP 5 Success"]);
        assert_eq!(w.payloads(subscriber), ["x"]);
        w.ack(subscriber, PacketType::PubRec, 1);
        assert_eq!(w.take(subscriber), ["PUBREL 1 Success"]);
        w.ack(subscriber, PacketType::PubComp, 1);
        assert_eq!(w.stats().inflight_messages, 0);
    });
}

#[test]
fn inflight_messages_are_resent_in_order_before_the_queue() {
    each(|mut w| {
        let subscriber = w.connect(V5, "sub", true, &[session_for(100), Property::ReceiveMaximum(2)]);
        w.subscribe(subscriber, "t", ExactlyOnce);
        let publisher = w.connect(V5, "pub", true, &[]);
        for (payload, qos) in [("1", AtLeastOnce), ("2", ExactlyOnce), ("3", AtLeastOnce)] {
            w.publish(publisher, "t", payload, qos);
        }
        assert_eq!(w.payloads(subscriber), ["1", "2"], "the window is 2");
        w.ack(subscriber, PacketType::PubRec, 2);
        w.cut(subscriber);
        w.publish(publisher, "t", "4", AtLeastOnce);
        w.publish(publisher, "t", "lost", AtMostOnce);
        let subscriber = w.open();
        let mut properties = Vec::new();
        PropertyWriter::new(&mut properties).put(session_for(100));
        let connect = connect_packet(V5, "sub", false, Properties::from_validated(&properties), None);
        w.send(subscriber, &Packet::Connect(connect));
        let got = w.take(subscriber);
        assert!(got[0].starts_with("CONNACK Success present=true"), "{got:?}");
        assert_eq!(
            got[1..],
            [
                "PUBLISH t 1 q1 id=1 dup",
                "PUBREL 2 Success",
                "PUBLISH t 3 q1 id=3",
                "PUBLISH t 4 q1 id=4"
            ]
        );
    });
}

#[test]
fn second_connection_takes_over_and_clean_start_discards() {
    each(|mut w| {
        let first = w.connect(V5, "me", true, &[session_for(100)]);
        w.subscribe(first, "t", AtLeastOnce);
        w.take(first);
        let second = w.connect(V5, "me", false, &[session_for(100)]);
        assert_eq!(w.take(first), ["DISCONNECT SessionTakenOver"]);
        assert!(w.is_closed(first));
        let publisher = w.connect(V3_1_1, "pub", true, &[]);
        w.publish(publisher, "t", "x", AtMostOnce);
        assert_eq!(w.payloads(second), ["x"]);
        let third = w.connect(V5, "me", true, &[]);
        w.publish(publisher, "t", "y", AtMostOnce);
        assert_eq!(w.payloads(third), [""; 0]);
        assert_eq!(w.stats().sessions, 2);
    });
}

#[test]
fn wills_are_published_only_when_due() {
    each(|mut w| {
        let watcher = w.connect(V5, "watcher", true, &[]);
        w.subscribe(watcher, "will/#", AtLeastOnce);
        let with_will = |w: &mut World, id: &str, delay_s: u32, expiry_s: u32| {
            let client = w.open();
            let (mut properties, mut will_properties) = (Vec::new(), Vec::new());
            PropertyWriter::new(&mut properties).put(session_for(expiry_s));
            PropertyWriter::new(&mut will_properties).put(Property::WillDelayInterval(delay_s));
            let topic = format!("will/{id}");
            let will = Will {
                qos: AtLeastOnce,
                retain: false,
                properties: Properties::from_validated(&will_properties),
                topic: &topic,
                payload: id.as_bytes(),
            };
            let connect = connect_packet(V5, id, false, Properties::from_validated(&properties), Some(will));
            w.send(client, &Packet::Connect(connect));
            client
        };
        let polite = with_will(&mut w, "polite", 0, 0);
        w.disconnect(polite);
        let broken = with_will(&mut w, "broken", 0, 0);
        w.cut(broken);
        assert_eq!(w.payloads(watcher), ["broken"]);
        let delayed = with_will(&mut w, "delayed", 5, 60);
        w.cut(delayed);
        w.pass(4900);
        assert_eq!(w.payloads(watcher), [""; 0]);
        w.pass(300);
        assert_eq!(w.payloads(watcher), ["delayed"]);
        let back = with_will(&mut w, "back", 5, 60);
        w.cut(back);
        w.pass(3000);
        let back = with_will(&mut w, "back", 5, 60);
        w.pass(10_000);
        assert_eq!(w.payloads(watcher), [""; 0], "the client reconnected in time");
        w.cut(back);
        let short = with_will(&mut w, "short", 60, 2);
        w.cut(short);
        w.pass(2100);
        assert_eq!(w.payloads(watcher), ["short"], "the session ends before the will delay");
    });
}

#[test]
fn retained_messages_of_all_shards_are_sent_and_cleared() {
    each(|mut w| {
        let publisher = w.connect(V5, "pub", true, &[]);
        for n in 0..500 {
            w.publish_with(
                publisher,
                &format!("r/{n}/v"),
                &n.to_string(),
                AtLeastOnce,
                PublishFields::RETAINED,
            );
        }
        w.publish_with(publisher, "r/7/v", "", AtLeastOnce, PublishFields::RETAINED);
        assert_eq!(w.stats().retained_messages, 499);
        let subscriber = w.connect(V3_1_1, "sub", true, &[]);
        w.subscribe(subscriber, "r/+/v", AtMostOnce);
        let got = w.messages(subscriber);
        assert_eq!(got.len(), 499);
        assert!(got.iter().all(|m| m.retain && m.payload != "7"));
        let one = w.connect(V5, "one", true, &[]);
        w.subscribe_with(one, "r/9/v", Default::default(), Some(33));
        let got = w.messages(one);
        assert_eq!(
            (got.len(), &got[0].identifiers[..], got[0].retain),
            (1, &[33][..], true)
        );
        w.publish_with(publisher, "r/9/v", "live", AtMostOnce, PublishFields::RETAINED);
        assert!(!w.messages(one)[0].retain, "a live message without Retain As Published");
    });
}

#[test]
fn a_long_replay_at_qos1_follows_the_acknowledgements() {
    each(|mut w| {
        let publisher = w.connect(V5, "pub", true, &[]);
        for n in 0..1000 {
            w.publish_with(publisher, &format!("r/{n}"), "x", AtLeastOnce, PublishFields::RETAINED);
        }
        let subscriber = w.connect(V5, "sub", true, &[Property::ReceiveMaximum(10)]);
        w.subscribe(subscriber, "#", AtLeastOnce);
        let mut total = 0;
        for _ in 0..1000 {
            let got = w.messages(subscriber);
            if got.is_empty() {
                break;
            }
            assert!(got.len() <= 10);
            total += got.len();
            for m in got {
                w.ack(subscriber, PacketType::PubAck, m.id.unwrap());
            }
        }
        assert_eq!(total, 1000);
    });
}

#[test]
fn group_message_goes_to_one_member_and_is_redispatched() {
    each(|mut w| {
        let publisher = w.connect(V5, "pub", true, &[]);
        let names = ["m1", "m2", "m3"];
        let members = names.map(|name| {
            let member = w.connect(V5, name, true, &[session_for(100)]);
            w.subscribe(member, "$share/g/t/#", AtLeastOnce);
            w.take(member);
            member
        });
        for n in 0..30 {
            w.publish(publisher, &format!("t/{n}"), &n.to_string(), AtLeastOnce);
        }
        let counts = members.map(|m| w.messages(m).len());
        assert_eq!(counts, [10, 10, 10]);
        w.cut(members[0]);
        let moved = w.messages(members[1]).len() + w.messages(members[2]).len();
        assert_eq!(moved, 10, "unacknowledged messages go to the other members");
        w.cut(members[1]);
        w.cut(members[2]);
        w.publish(publisher, "t/away", "away", AtLeastOnce);
        let back = w.open();
        w.send(
            back,
            &Packet::Connect(connect_packet(V5, "m2", false, Properties::EMPTY, None)),
        );
        let got = w.payloads(back);
        assert!(got.contains(&"away".to_owned()), "{got:?}");
    });
}

#[test]
fn message_after_a_shared_suback_is_delivered() {
    // The shards run one after the other here. The message to the shard that owns the group is still in transit when
    // the SUBACK could be sent, and the SUBACK must wait for it.
    for name in ["a", "b", "c", "d", "e", "f"] {
        let mut w = World::new(3);
        let subscriber = w.connect(V5, name, true, &[]);
        w.subscribe(subscriber, "$share/g/t", AtLeastOnce);
        assert_eq!(w.take(subscriber), ["SUBACK 7 [01]"]);
        let publisher = w.connect(V5, "pub", true, &[]);
        w.publish(publisher, "t", "x", AtLeastOnce);
        assert_eq!(w.take(publisher), ["PUBACK 1 Success"]);
        assert_eq!(w.payloads(subscriber), ["x"]);
    }
}

#[test]
fn overlapping_filters_make_one_copy_with_all_identifiers() {
    each(|mut w| {
        let publisher = w.connect(V5, "pub", true, &[]);
        let new = w.connect(V5, "new", true, &[]);
        w.subscribe_with(
            new,
            "a/#",
            SubscriptionOptions {
                maximum_qos: AtMostOnce,
                ..Default::default()
            },
            Some(1),
        );
        w.subscribe_with(
            new,
            "a/+",
            SubscriptionOptions {
                maximum_qos: AtLeastOnce,
                ..Default::default()
            },
            Some(2),
        );
        w.subscribe_with(
            new,
            "a/b",
            SubscriptionOptions {
                maximum_qos: ExactlyOnce,
                ..Default::default()
            },
            None,
        );
        let old = w.connect(V3_1_1, "old", true, &[]);
        w.subscribe(old, "a/#", AtMostOnce);
        w.subscribe(old, "a/b", AtLeastOnce);
        w.publish(publisher, "a/b", "x", ExactlyOnce);
        let got = w.messages(new);
        let mut identifiers = got[0].identifiers.clone();
        identifiers.sort_unstable();
        assert_eq!((got.len(), got[0].qos, identifiers), (1, ExactlyOnce, vec![1, 2]));
        let got = w.messages(old);
        assert_eq!((got.len(), got[0].qos), (1, AtLeastOnce));
    });
}

#[test]
fn no_local_and_retain_as_published_are_kept() {
    each(|mut w| {
        let me = w.connect(V5, "me", true, &[]);
        w.subscribe_with(
            me,
            "t",
            SubscriptionOptions {
                no_local: true,
                ..Default::default()
            },
            None,
        );
        let other = w.connect(V5, "other", true, &[]);
        w.subscribe_with(
            other,
            "t",
            SubscriptionOptions {
                retain_as_published: true,
                ..Default::default()
            },
            None,
        );
        w.publish_with(me, "t", "x", AtMostOnce, PublishFields::RETAINED);
        assert_eq!(w.payloads(me), [""; 0]);
        assert!(w.messages(other)[0].retain);
    });
}

#[test]
fn message_expiry_counts_down_and_ends() {
    each(|mut w| {
        let subscriber = w.connect(V5, "sub", true, &[session_for(1000)]);
        w.subscribe(subscriber, "t", AtLeastOnce);
        w.cut(subscriber);
        let publisher = w.connect(V5, "pub", true, &[]);
        for (payload, expiry_s) in [("short", 2), ("long", 100)] {
            w.publish_with(
                publisher,
                "t",
                payload,
                AtLeastOnce,
                PublishFields {
                    properties: &[Property::MessageExpiryInterval(expiry_s)],
                    ..PublishFields::default()
                },
            );
        }
        w.pass(10_000);
        let back = w.open();
        w.send(
            back,
            &Packet::Connect(connect_packet(V5, "sub", false, Properties::EMPTY, None)),
        );
        let got = w.take(back);
        assert_eq!(got[1..], ["PUBLISH t long q1 id=2 MessageExpiryInterval(90)"]);
    });
}

#[test]
fn slow_reader_is_bounded_and_loses_only_qos0() {
    let config = ShardConfig {
        output_buffer_bytes: 10_000,
        max_queued_messages: 5000,
        ..Default::default()
    };
    let mut w = World::with(1, config, std::sync::Arc::new(OpenAccess));
    let slow = w.connect(V5, "slow", true, &[Property::ReceiveMaximum(60_000)]);
    w.subscribe(slow, "t/#", AtLeastOnce);
    w.take(slow);
    w.blocked.push(slow);
    let publisher = w.connect(V5, "pub", true, &[]);
    let payload = "x".repeat(1000);
    for n in 0..100 {
        w.publish(publisher, "t/0", &payload, AtMostOnce);
        w.publish(publisher, "t/1", &format!("{n}"), AtLeastOnce);
    }
    assert!(
        w.stats().output_backlog_bytes <= 12_000,
        "{}",
        w.stats().output_backlog_bytes
    );
    assert!(w.stats().drops[DropReason::SlowConsumer as usize] >= 88);
    w.unblock(slow);
    let mut seen = Vec::new();
    loop {
        let got: Vec<_> = w.messages(slow).into_iter().filter(|m| m.qos == AtLeastOnce).collect();
        if got.is_empty() {
            break;
        }
        for m in got {
            w.ack(slow, PacketType::PubAck, m.id.unwrap());
            seen.push(m.payload);
        }
    }
    assert_eq!(seen, (0..100).map(|n| n.to_string()).collect::<Vec<_>>());
}

#[test]
fn keep_alive_ends_a_silent_connection_and_only_that() {
    each(|mut w| {
        let silent = w.connect(V5, "silent", true, &[]);
        let lively = w.connect(V5, "lively", true, &[]);
        for _ in 0..9 {
            w.pass(10_000);
            w.send(lively, &Packet::PingReq);
        }
        w.pass(100);
        assert!(w.is_closed(silent) && !w.is_closed(lively));
        assert_eq!(w.take(silent), ["DISCONNECT KeepAliveTimeout"]);
    });
}

#[test]
fn paused_reads_do_not_count_as_keep_alive_silence() {
    each(|mut w| {
        let client = w.connect(V5, "c", true, &[]);
        for _ in 0..9 {
            for shard in &mut w.shards {
                shard.is_not_reading(w.now);
            }
            w.pass(10_000);
        }
        assert!(!w.is_closed(client));
        w.pass(100_000);
        assert!(w.is_closed(client), "the Keep Alive time restarts when reading resumes");
    });
}

#[test]
fn expired_sessions_free_their_memory() {
    each(|mut w| {
        let client = w.connect(V5, "me", true, &[session_for(10)]);
        w.subscribe(client, "t", AtLeastOnce);
        w.cut(client);
        assert_eq!((w.stats().sessions, w.stats().subscriptions), (1, 1));
        let publisher = w.connect(V3_1_1, "pub", true, &[]);
        w.publish(publisher, "t", "x", AtLeastOnce);
        assert_eq!(w.stats().queued_messages, 1);
        w.pass(10_100);
        assert_eq!(
            (w.stats().sessions, w.stats().subscriptions, w.stats().queued_messages),
            (1, 0, 0)
        );
        assert_eq!(w.stats().drops[DropReason::SessionEnded as usize], 1);
    });
}

#[test]
fn topic_aliases_work_in_both_directions() {
    each(|mut w| {
        let publisher = w.connect(V5, "pub", true, &[]);
        let subscriber = w.connect(V5, "sub", true, &[Property::TopicAliasMaximum(1)]);
        w.subscribe(subscriber, "#", AtMostOnce);
        w.take(subscriber);
        w.publish_with(
            publisher,
            "long/topic",
            "1",
            AtMostOnce,
            PublishFields {
                properties: &[Property::TopicAlias(3)],
                ..PublishFields::default()
            },
        );
        w.publish_with(
            publisher,
            "",
            "2",
            AtMostOnce,
            PublishFields {
                properties: &[Property::TopicAlias(3)],
                ..PublishFields::default()
            },
        );
        w.publish_with(publisher, "other/topic", "3", AtMostOnce, PublishFields::default());
        assert_eq!(
            w.take(subscriber),
            [
                "PUBLISH long/topic 1 q0 id=0 TopicAlias(1)",
                "PUBLISH  2 q0 id=0 TopicAlias(1)",
                "PUBLISH other/topic 3 q0 id=0",
            ]
        );
        w.publish_with(
            publisher,
            "",
            "4",
            AtMostOnce,
            PublishFields {
                properties: &[Property::TopicAlias(4)],
                ..PublishFields::default()
            },
        );
        assert_eq!(w.take(publisher), ["DISCONNECT ProtocolError"]);
    });
}

#[test]
fn delayed_and_exclusive_topics() {
    each(|mut w| {
        let first = w.connect(V5, "first", true, &[]);
        let second = w.connect(V5, "second", true, &[]);
        w.subscribe(first, "$exclusive/t", AtMostOnce);
        w.subscribe(second, "$exclusive/t", AtMostOnce);
        assert_eq!(
            (w.take(first), w.take(second)),
            (vec!["SUBACK 7 [00]".to_owned()], vec!["SUBACK 7 [97]".to_owned()])
        );
        w.publish(second, "$delayed/5/t", "later", AtMostOnce);
        w.pass(4900);
        assert_eq!(w.payloads(first), [""; 0]);
        w.pass(200);
        assert_eq!(w.payloads(first), ["later"]);
        w.cut(first);
        w.subscribe(second, "$exclusive/t", AtMostOnce);
        assert_eq!(w.take(second), ["SUBACK 7 [00]"]);
    });
}

#[test]
fn offline_session_loses_its_exclusive_subscription() {
    for shards in [1, 3] {
        let config = ShardConfig {
            exclusive_release_ms: Some(60_000),
            ..ShardConfig::default()
        };
        let mut w = World::with(shards, config, Arc::new(OpenAccess));
        let endless = [Property::SessionExpiryInterval(u32::MAX)];
        let holder = w.connect(V5, "holder", true, &endless);
        w.subscribe(holder, "$exclusive/t", AtLeastOnce);
        w.subscribe(holder, "plain", AtLeastOnce);
        w.take(holder);
        w.cut(holder);
        let other = w.connect(V5, "other", true, &[]);
        w.pass(40_000);
        // A return restarts the time.
        let holder = w.connect(V5, "holder", false, &endless);
        w.publish(other, "t", "held", AtMostOnce);
        assert_eq!(w.payloads(holder), ["held"]);
        w.cut(holder);
        w.pass(59_000);
        w.take(other);
        w.subscribe(other, "$exclusive/t", AtMostOnce);
        assert_eq!(w.take(other), ["SUBACK 7 [97]"]);
        w.pass(2_000);
        w.take(other);
        w.subscribe(other, "$exclusive/t", AtMostOnce);
        assert_eq!(w.take(other), ["SUBACK 7 [00]"]);
        w.publish(other, "t", "taken over", AtLeastOnce);
        assert_eq!(w.payloads(other), ["taken over"]);
        let holder = w.connect(V5, "holder", false, &endless);
        w.subscribe(holder, "$exclusive/t", AtMostOnce);
        assert_eq!(w.take(holder), ["SUBACK 7 [97]"]);
        w.publish(other, "plain", "still subscribed", AtMostOnce);
        assert_eq!(w.payloads(holder), ["still subscribed"]);
    }
}

#[test]
fn malformed_filters_close_the_connection() {
    for filter in ["", "a/#/b", "a#", "+a"] {
        let mut w = World::new(1);
        let new = w.connect(V5, "new", true, &[]);
        w.subscribe(new, filter, AtMostOnce);
        assert!(w.take(new)[0].starts_with("DISCONNECT MalformedPacket"), "{filter:?}");
        let new = w.connect(V5, "new", true, &[]);
        w.unsubscribe(new, filter);
        assert!(w.take(new)[0].starts_with("DISCONNECT MalformedPacket"), "{filter:?}");
        let old = w.connect(V3_1_1, "old", true, &[]);
        w.subscribe(old, filter, AtMostOnce);
        assert!(w.take(old).is_empty() && w.is_closed(old), "{filter:?}");
    }
}

#[test]
fn invalid_shared_filter_is_malformed_in_5_only() {
    let mut w = World::new(1);
    let new = w.connect(V5, "new", true, &[]);
    w.subscribe(new, "$share//a", AtMostOnce);
    assert!(w.take(new)[0].starts_with("DISCONNECT MalformedPacket"));
    let old = w.connect(V3_1_1, "old", true, &[]);
    w.subscribe(old, "$share//a", AtMostOnce);
    assert_eq!(w.take(old), ["SUBACK 7 [80]"]);
    // Not valid without shared subscriptions either [MQTT-4.7.1-3].
    w.subscribe(old, "$share/g+/a", AtMostOnce);
    assert!(w.take(old).is_empty() && w.is_closed(old));
}

#[test]
fn unavailable_subscriptions_disconnect_5_clients() {
    let config = ShardConfig {
        wildcard_subscription: false,
        shared_subscription: false,
        ..ShardConfig::default()
    };
    for (filter, code) in [
        ("a/+", "WildcardSubscriptionsNotSupported"),
        ("$share/g/a", "SharedSubscriptionsNotSupported"),
    ] {
        let mut w = World::with(1, config.clone(), std::sync::Arc::new(OpenAccess));
        let new = w.connect(V5, "new", true, &[]);
        w.subscribe(new, filter, AtMostOnce);
        assert!(w.take(new)[0].starts_with(&format!("DISCONNECT {code}")), "{filter}");
        let old = w.connect(V3_1_1, "old", true, &[]);
        w.subscribe(old, filter, AtMostOnce);
        assert_eq!(w.take(old), ["SUBACK 7 [80]"]);
    }
}
