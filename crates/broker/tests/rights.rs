//! Tests the read rights of clients: which member of a share group receives a message, and messages that wait while a
//! right is revoked.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use crate::world::World;
use mqtt::ProtocolVersion::V5;
use mqtt::QoS::{AtLeastOnce, AtMostOnce, ExactlyOnce};
use mqtt::*;
use tidewire_broker::*;

/// Filters that a client may read, by client id. Other clients may read everything.
#[derive(Default)]
pub struct ReadRules(Mutex<HashMap<String, Vec<&'static str>>>);

struct SessionRules(Vec<&'static str>);

impl ReadRules {
    pub fn set(&self, client_id: &str, filters: &[&'static str]) {
        self.0.lock().unwrap().insert(client_id.into(), filters.to_vec());
    }
}

impl AccessControl for ReadRules {
    fn authenticate_now(&self, _: &ConnectCredentials) -> Option<AuthOutcome> {
        Some(AuthOutcome::Allow(Box::default()))
    }

    fn supports_auth_method(&self, _: &str) -> bool {
        false
    }

    fn session(&self, who: &ClientIdentity) -> Option<Arc<dyn SessionAccess>> {
        let filters = self.0.lock().unwrap().get(&*who.client_id).cloned()?;
        Some(Arc::new(SessionRules(filters)))
    }
}

impl SessionAccess for SessionRules {
    fn can_publish(&self, _: &str, _: QoS, _: bool) -> bool {
        true
    }

    fn can_subscribe(&self, filter: &str) -> SubscribeAccess {
        match self.0.contains(&filter) {
            true => SubscribeAccess::Allowed,
            false if self.0.is_empty() => SubscribeAccess::Denied,
            false => SubscribeAccess::AllowedInPart,
        }
    }

    fn can_receive(&self, topic: &str) -> bool {
        self.0.iter().any(|filter| filter_matches(filter, topic))
    }
}

const STRATEGIES: [ShareStrategy; 6] = [
    ShareStrategy::RoundRobin,
    ShareStrategy::Sticky,
    ShareStrategy::Random,
    ShareStrategy::HashClient,
    ShareStrategy::HashTopic,
    ShareStrategy::LeastInflight,
];

fn world(shards: u16, config: ShardConfig) -> (World, Arc<ReadRules>) {
    let rules = Arc::new(ReadRules::default());
    (World::with(shards, config, rules.clone()), rules)
}

fn session_for(seconds: u32) -> Property<'static> {
    Property::SessionExpiryInterval(seconds)
}

fn drops(w: &World, reason: DropReason) -> u64 {
    w.stats().drops[reason as usize]
}

fn all_drops(w: &World) -> u64 {
    w.stats().drops.iter().sum()
}

fn access_changed(w: &mut World) {
    let now = w.now;
    w.shards
        .iter_mut()
        .for_each(|shard| shard.operator(now).access_changed());
    w.settle();
}

/// Returns a client id of each shard, which begins with `prefix`.
fn one_per_shard(prefix: &str, shards: u16) -> Vec<String> {
    let of_shard = |shard| {
        let mut names = (0..).map(|number| format!("{prefix}{number}"));
        names.find(|name| tidewire_broker::home_shard(name, shards) == Some(ShardId(shard)))
    };
    (0..shards).map(|shard| of_shard(shard).unwrap()).collect()
}

#[test]
fn share_group_selects_members_that_may_read_the_topic() {
    for (shards, qos) in [(1, AtMostOnce), (1, AtLeastOnce), (3, AtMostOnce), (3, AtLeastOnce)] {
        for shared_strategy in STRATEGIES {
            let config = ShardConfig {
                shared_strategy,
                ..ShardConfig::default()
            };
            let (mut w, rules) = world(shards, config);
            let join = |w: &mut World, name: &str, filters: &[&'static str]| {
                rules.set(name, filters);
                let member = w.connect(V5, name, true, &[]);
                w.subscribe(member, "$share/g/#", qos);
                member
            };
            let limited = one_per_shard("limited", shards);
            let limited: Vec<_> = limited.iter().map(|name| join(&mut w, name, &["a/#"])).collect();
            let full = one_per_shard("full", shards);
            let full: Vec<_> = full.iter().map(|name| join(&mut w, name, &["a/#", "b/#"])).collect();
            for publisher in one_per_shard("publisher", shards) {
                let publisher = w.connect(V5, &publisher, true, &[]);
                for number in 0..6 {
                    w.publish(publisher, &format!("a/{number}"), "x", qos);
                    w.publish(publisher, &format!("b/{number}"), "x", qos);
                }
            }
            let context = format!("{shards} shards, {qos:?}, {shared_strategy:?}");
            let mut received = Vec::new();
            for member in limited {
                received.extend(w.messages(member));
                assert!(received.iter().all(|m| m.topic.starts_with("a/")), "{context}");
            }
            full.iter().for_each(|member| received.extend(w.messages(*member)));
            assert_eq!(received.len(), 12 * usize::from(shards), "{context}");
            assert_eq!(all_drops(&w), 0, "{context}");
        }
    }
}

#[test]
fn message_that_no_member_may_read_is_dropped_once() {
    for (shards, is_connected) in [(1, true), (1, false), (3, true), (3, false)] {
        let (mut w, rules) = world(shards, ShardConfig::default());
        for name in one_per_shard("limited", shards) {
            rules.set(&name, &["a/#"]);
            let member = w.connect(V5, &name, true, &[session_for(1000)]);
            w.subscribe(member, "$share/g/#", AtLeastOnce);
            if !is_connected {
                w.cut(member);
            }
        }
        let publisher = w.connect(V5, "publisher", true, &[]);
        for qos in [AtMostOnce, AtLeastOnce, ExactlyOnce] {
            w.publish(publisher, "b/1", "x", qos);
        }
        let context = format!("{shards} shards, connected: {is_connected}");
        assert_eq!(drops(&w, DropReason::NotAuthorizedToReceive), 3, "{context}");
        assert_eq!((all_drops(&w), w.stats().queued_messages), (3, 0), "{context}");
    }
}

#[test]
fn message_for_a_disconnected_reader_delays_no_other() {
    for shards in [1, 3] {
        for (limited, full) in one_per_shard("limited", shards)
            .iter()
            .zip(one_per_shard("full", shards))
        {
            let (mut w, rules) = world(shards, ShardConfig::default());
            rules.set(limited, &["a/#"]);
            let reader = w.connect(V5, &full, true, &[session_for(1000)]);
            w.subscribe(reader, "$share/g/#", AtLeastOnce);
            w.cut(reader);
            let publisher = w.connect(V5, "publisher", true, &[]);
            w.publish(publisher, "b/1", "before", AtLeastOnce);
            let member = w.connect(V5, limited, true, &[]);
            w.subscribe(member, "$share/g/#", AtLeastOnce);
            w.publish(publisher, "b/2", "for the reader", AtLeastOnce);
            w.publish(publisher, "a/1", "for both", AtLeastOnce);
            assert_eq!(w.payloads(member), ["for both"]);
            // The member that disconnects returns its messages to the group, and these stay with the reader.
            w.cut(member);
            let (_, mut payloads) = resume(&mut w, &full);
            payloads.sort();
            assert_eq!(payloads, ["before", "for both", "for the reader"]);
            assert_eq!(all_drops(&w), 0);
        }
    }
}

#[test]
fn full_reader_delays_no_other_member() {
    for shards in [1, 3] {
        let config = ShardConfig {
            max_inflight: 1,
            max_queued_messages: 2,
            ..ShardConfig::default()
        };
        let (mut w, rules) = world(shards, config);
        for name in one_per_shard("limited", shards) {
            rules.set(&name, &["a/#"]);
        }
        let limited = &one_per_shard("limited", shards)[0];
        let member = w.connect(V5, limited, true, &[]);
        w.subscribe(member, "$share/g/#", AtLeastOnce);
        let reader = w.connect(V5, "reader", true, &[]);
        w.subscribe(reader, "$share/g/#", AtLeastOnce);
        let publisher = w.connect(V5, "publisher", true, &[]);
        for _ in 0..10 {
            w.publish(publisher, "b/1", "x", AtLeastOnce);
        }
        w.publish(publisher, "a/1", "y", AtLeastOnce);
        w.pass(1000);
        let received = w.payloads(member).len() + w.messages(reader).iter().filter(|m| m.payload == "y").count();
        assert_eq!(received, 1, "{shards} shards");
        // One in flight, two queued.
        assert_eq!(all_drops(&w), 7, "{shards} shards");
    }
}

#[test]
fn share_group_follows_changed_rights() {
    for shards in [1, 3] {
        let (mut w, rules) = world(shards, ShardConfig::default());
        let names = one_per_shard("member", shards);
        let members: Vec<_> = names
            .iter()
            .map(|name| {
                let member = w.connect(V5, name, true, &[]);
                w.subscribe(member, "$share/g/#", AtLeastOnce);
                member
            })
            .collect();
        let publisher = w.connect(V5, "publisher", true, &[]);
        names.iter().for_each(|name| rules.set(name, &["a/#"]));
        access_changed(&mut w);
        w.publish(publisher, "b/1", "forbidden", AtLeastOnce);
        assert_eq!(drops(&w, DropReason::NotAuthorizedToReceive), 1);
        rules.set(&names[0], &["#"]);
        access_changed(&mut w);
        for _ in 0..4 {
            w.publish(publisher, "b/1", "x", AtLeastOnce);
        }
        assert_eq!(w.payloads(members[0]).len(), 4);
        assert_eq!(all_drops(&w), 1);
    }
}

#[test]
fn message_in_transit_to_a_member_without_right_returns_to_the_group() {
    for is_left in [false, true] {
        let (mut w, rules) = world(3, ShardConfig::default());
        let home = tidewire_broker::group_home_shard("g", "#", 3);
        let other = ShardId((home.0 + 1) % 3);
        let name = |prefix: &str, shard: ShardId| one_per_shard(prefix, 3)[usize::from(shard.0)].clone();
        let limited = w.connect(V5, &name("limited", other), true, &[]);
        w.subscribe(limited, "$share/g/#", AtLeastOnce);
        let publisher = w.connect(V5, &name("publisher", home), true, &[]);
        w.is_mail_held = true;
        w.publish(publisher, "b/1", "x", AtLeastOnce);
        let reader = w.connect(V5, &name("reader", home), true, &[]);
        w.subscribe(reader, "$share/g/#", AtLeastOnce);
        rules.set(&name("limited", other), if is_left { &[] } else { &["a/#"] });
        access_changed(&mut w);
        w.release_mail();
        assert_eq!(w.payloads(limited), [""; 0]);
        assert_eq!(w.payloads(reader), ["x"]);
        assert_eq!(all_drops(&w), 0);
    }
}

/// Connects a client again. Returns the connection and the received payloads.
fn resume(w: &mut World, client_id: &str) -> (usize, Vec<String>) {
    let client = w.open();
    let mut expiry = Vec::new();
    PropertyWriter::new(&mut expiry).put(session_for(1000));
    let properties = Properties::from_validated(&expiry);
    let connect = crate::world::connect_packet(V5, client_id, false, properties, None);
    w.send(client, &Packet::Connect(connect));
    let payloads = w.payloads(client);
    (client, payloads)
}

#[test]
fn queued_message_is_dropped_after_its_right_was_revoked() {
    for (qos, is_announced) in [
        (AtMostOnce, true),
        (AtLeastOnce, true),
        (ExactlyOnce, true),
        (AtLeastOnce, false),
    ] {
        let config = ShardConfig {
            queue_qos0: true,
            ..ShardConfig::default()
        };
        let (mut w, rules) = world(1, config);
        rules.set("reader", &["a/#", "b/#"]);
        let reader = w.connect(V5, "reader", true, &[session_for(1000)]);
        w.subscribe(reader, "a/#", qos);
        w.subscribe(reader, "b/#", qos);
        w.cut(reader);
        let publisher = w.connect(V5, "publisher", true, &[]);
        for topic in ["a/1", "b/1", "a/2", "b/2"] {
            w.publish(publisher, topic, topic, qos);
            w.ack(publisher, PacketType::PubRel, 1);
        }
        rules.set("reader", &["a/#"]);
        if is_announced {
            access_changed(&mut w);
        }
        let (_, payloads) = resume(&mut w, "reader");
        assert_eq!(payloads, ["a/1", "a/2"], "{qos:?}");
        assert_eq!(drops(&w, DropReason::NotAuthorizedToReceive), 2, "{qos:?}");
        assert_eq!((all_drops(&w), w.stats().queued_messages), (2, 0), "{qos:?}");
    }
}

#[test]
fn live_queue_is_checked_after_a_right_was_revoked() {
    let config = ShardConfig {
        max_inflight: 1,
        ..ShardConfig::default()
    };
    let (mut w, rules) = world(1, config);
    rules.set("reader", &["#"]);
    let reader = w.connect(V5, "reader", true, &[]);
    w.subscribe(reader, "#", AtLeastOnce);
    let publisher = w.connect(V5, "publisher", true, &[]);
    for topic in ["b/1", "b/2", "a/1", "b/3"] {
        w.publish(publisher, topic, topic, AtLeastOnce);
    }
    assert_eq!(w.payloads(reader), ["b/1"]);
    rules.set("reader", &["a/#"]);
    access_changed(&mut w);
    w.ack(reader, PacketType::PubAck, 1);
    assert_eq!(w.payloads(reader), ["a/1"]);
    w.ack(reader, PacketType::PubAck, 3);
    assert_eq!(w.payloads(reader), [""; 0]);
    assert_eq!((all_drops(&w), w.stats().inflight_messages), (2, 0));
    rules.set("reader", &["#"]);
    access_changed(&mut w);
    w.publish(publisher, "b/4", "b/4", AtLeastOnce);
    assert_eq!(w.payloads(reader), ["b/4"]);
}

#[test]
fn message_in_flight_is_not_redelivered_after_its_right_was_revoked() {
    for qos in [AtLeastOnce, ExactlyOnce] {
        let (mut w, rules) = world(1, ShardConfig::default());
        rules.set("reader", &["a/#", "b/#"]);
        let reader = w.connect(V5, "reader", true, &[session_for(1000)]);
        w.subscribe(reader, "a/#", qos);
        w.subscribe(reader, "b/#", qos);
        let publisher = w.connect(V5, "publisher", true, &[]);
        for topic in ["b/1", "a/1"] {
            w.publish(publisher, topic, topic, qos);
            w.ack(publisher, PacketType::PubRel, 1);
        }
        w.cut(reader);
        rules.set("reader", &["a/#"]);
        access_changed(&mut w);
        let (_, payloads) = resume(&mut w, "reader");
        assert_eq!(payloads, ["a/1"], "{qos:?}");
        assert_eq!((all_drops(&w), w.stats().inflight_messages), (1, 1), "{qos:?}");
    }
}

#[test]
fn retained_message_is_dropped_after_its_right_was_revoked() {
    for (shards, left) in [(1, &[][..]), (1, &["a/#"]), (3, &[]), (3, &["a/#"])] {
        let config = ShardConfig {
            max_inflight: 1,
            ..ShardConfig::default()
        };
        let (mut w, rules) = world(shards, config);
        let publisher = w.connect(V5, "publisher", true, &[]);
        for number in 0..20 {
            let topic = format!("b/{number}");
            w.publish_with(
                publisher,
                &topic,
                "x",
                AtLeastOnce,
                crate::world::PublishFields::RETAINED,
            );
        }
        rules.set("reader", &["b/#"]);
        let reader = w.connect(V5, "reader", true, &[]);
        w.subscribe(reader, "b/#", AtLeastOnce);
        assert_eq!(w.payloads(reader).len(), 1);
        rules.set("reader", left);
        access_changed(&mut w);
        for id in 1..=20 {
            w.ack(reader, PacketType::PubAck, id);
        }
        assert_eq!(w.payloads(reader), [""; 0], "{shards} shards, {left:?}");
        assert_eq!(w.stats().queued_messages, 0);
    }
}

#[test]
fn message_behind_a_replay_is_dropped_after_its_right_was_revoked() {
    for left in [&[][..], &["a/#"]] {
        let (mut w, rules) = world(3, ShardConfig::default());
        let publisher = w.connect(V5, "publisher", true, &[]);
        for number in 0..9 {
            let topic = format!("b/{number}");
            w.publish_with(
                publisher,
                &topic,
                "x",
                AtLeastOnce,
                crate::world::PublishFields::RETAINED,
            );
        }
        for name in one_per_shard("reader", 3) {
            rules.set(&name, &["b/#"]);
            let reader = w.connect(V5, &name, true, &[]);
            let local = name.replace("reader", "local");
            let locals = (0..).map(|number| format!("{local}{number}"));
            let home = tidewire_broker::home_shard(&name, 3);
            let mut locals = locals.filter(|local| tidewire_broker::home_shard(local, 3) == home);
            let local = w.connect(V5, &locals.next().unwrap(), true, &[]);
            w.is_mail_held = true;
            w.subscribe(reader, "b/#", AtLeastOnce);
            w.publish(local, "b/live", "live", AtLeastOnce);
            w.take(reader);
            rules.set(&name, left);
            access_changed(&mut w);
            w.release_mail();
            assert_eq!(w.payloads(reader), [""; 0], "{left:?}");
            assert_eq!(w.stats().queued_messages, 0);
        }
    }
}
