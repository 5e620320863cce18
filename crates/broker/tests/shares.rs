//! Tests the limits of a user and of a client: one client cannot use what all clients need.

use std::sync::Arc;

use mqtt::ProtocolVersion::{V3_1_1, V5};
use mqtt::*;
use tidewire_broker::owners::{Holding, OwnerLimit, OwnerLimits, ShareLimits};
use tidewire_broker::*;

use crate::world::{PublishFields, World, connect_packet};

const SHARDS: u16 = 3;
const DAY_S: u32 = 86_400;
const REJECTED: &str = "PUBACK 1 QuotaExceeded";

fn world(user: OwnerLimits) -> World {
    world_of(ShareLimits {
        user,
        client: OwnerLimits::NONE,
    })
}

fn world_of(shares: ShareLimits) -> World {
    let config = ShardConfig {
        shares,
        ..ShardConfig::default()
    };
    World::with(SHARDS, config, Arc::new(OpenAccess))
}

/// Connects a client with a session that does not end, and returns it with the reason code of CONNACK.
fn connect_as(w: &mut World, user: Option<&str>, client_id: &str, will: &[u8]) -> (usize, String) {
    let client = w.open();
    let mut properties = Vec::new();
    PropertyWriter::new(&mut properties).put(Property::SessionExpiryInterval(DAY_S));
    let will = (!will.is_empty()).then_some(Will {
        qos: QoS::AtLeastOnce,
        retain: false,
        properties: Properties::EMPTY,
        topic: "w",
        payload: will,
    });
    let connect = Connect {
        user_name: user,
        ..connect_packet(V5, client_id, false, Properties::from_validated(&properties), will)
    };
    w.send(client, &Packet::Connect(connect));
    let connack = w.take(client).remove(0);
    let reason = connack.split(' ').nth(1).unwrap().to_owned();
    (client, reason)
}

fn client(w: &mut World, user: &str, client_id: &str) -> usize {
    let (client, reason) = connect_as(w, Some(user), client_id, b"");
    assert_eq!(reason, "Success");
    client
}

/// Publishes at QoS 1 and returns the acknowledgement.
fn publish(w: &mut World, client: usize, topic: &str, payload: &str, retain: bool) -> String {
    let fields = PublishFields {
        retain,
        ..PublishFields::default()
    };
    w.publish_with(client, topic, payload, QoS::AtLeastOnce, fields);
    w.take(client).remove(0)
}

fn retain(w: &mut World, client: usize, topic: &str, payload: &str) -> bool {
    let ack = publish(w, client, topic, payload, true);
    assert!(ack.starts_with("PUBACK 1 "), "{ack}");
    ack != REJECTED
}

/// Number and bytes of what the owner holds.
fn usage(w: &World, owner: &str, holding: Holding) -> (u64, u64) {
    let user = w.node.owners.user(owner);
    (user.usage().count(holding), user.usage().bytes(holding))
}

fn rejections(w: &World, limit: OwnerLimit) -> u64 {
    w.stats().limit_rejections[limit as usize]
}

#[test]
fn user_over_its_share_is_rejected_and_others_are_not() {
    let mut w = world(OwnerLimits {
        retained_bytes: 10_000,
        ..OwnerLimits::NONE
    });
    let payload = "x".repeat(1000);
    let (greedy, other) = (client(&mut w, "greedy", "a"), client(&mut w, "other", "b"));
    let stored = (0..40)
        .filter(|n| retain(&mut w, greedy, &format!("t/{n}"), &payload))
        .count();
    assert!((8..=9).contains(&stored), "{stored}");
    let (messages, bytes) = usage(&w, "user:greedy", Holding::Retained);
    assert_eq!(messages, stored as u64);
    assert!(bytes <= 10_000, "{bytes}");
    assert_eq!(rejections(&w, OwnerLimit::RetainedBytes), 40 - stored as u64);
    assert_eq!(w.stats().drops[DropReason::OverShare as usize], 40 - stored as u64);
    // A second client of the user has no share of its own.
    let second = client(&mut w, "greedy", "c");
    assert!(!retain(&mut w, second, "t/second", &payload));
    assert!(retain(&mut w, other, "t/other", &payload));
    // Messages that are not stored are not affected.
    assert!(publish(&mut w, greedy, "live", "x", false).contains("NoMatchingSubscribers"));
}

#[test]
fn user_at_its_share_can_replace_and_delete() {
    let mut w = world(OwnerLimits {
        retained_messages: 3,
        ..OwnerLimits::NONE
    });
    let user = client(&mut w, "a", "a");
    for topic in ["t/1", "t/2", "t/3"] {
        assert!(retain(&mut w, user, topic, "1"));
    }
    assert!(!retain(&mut w, user, "t/4", "1"));
    for topic in ["t/1", "t/2", "t/3"] {
        assert!(retain(&mut w, user, topic, "2"), "{topic} is replaced");
    }
    assert!(retain(&mut w, user, "t/2", ""));
    assert_eq!(usage(&w, "user:a", Holding::Retained).0, 2);
    assert!(retain(&mut w, user, "t/4", "1"));
    assert!(!retain(&mut w, user, "t/2", "1"), "the topic is a new one again");
    let reader = w.connect(V3_1_1, "reader", true, &[]);
    w.subscribe(reader, "t/#", QoS::AtMostOnce);
    let mut payloads = w.payloads(reader);
    payloads.sort();
    assert_eq!(payloads, ["1", "2", "2"]);
}

#[test]
fn replacing_moves_the_bytes_to_the_new_owner() {
    let mut w = world(OwnerLimits {
        retained_messages: 2,
        ..OwnerLimits::NONE
    });
    let (one, other) = (client(&mut w, "one", "a"), client(&mut w, "other", "b"));
    assert!(retain(&mut w, one, "t/1", "1"));
    assert!(retain(&mut w, one, "t/2", "1"));
    assert!(retain(&mut w, other, "t/1", &"longer".repeat(50)));
    let counts = |w: &World| ["user:one", "user:other"].map(|name| usage(w, name, Holding::Retained).0);
    assert_eq!(counts(&w), [1, 1]);
    assert!(usage(&w, "user:other", Holding::Retained).1 > usage(&w, "user:one", Holding::Retained).1);
    assert!(retain(&mut w, one, "t/3", "1"), "the user has space again");
    assert!(!retain(&mut w, one, "t/1", "1"), "the topic is the other user's");
    assert_eq!(counts(&w), [2, 1]);
    assert_eq!(w.stats().retained_messages, 3);
}

/// Subscribes at QoS 1 and returns the reason codes of SUBACK.
fn subscribe(w: &mut World, client: usize, filter: &str) -> String {
    w.subscribe(client, filter, QoS::AtLeastOnce);
    let suback = w.take(client).remove(0);
    suback.split_once('[').unwrap().1.trim_end_matches(']').to_owned()
}

#[test]
fn subscriptions_of_all_sessions_of_a_user_have_a_limit() {
    let mut w = world(OwnerLimits {
        subscriptions: 3,
        ..OwnerLimits::NONE
    });
    let (one, other) = (client(&mut w, "a", "a1"), client(&mut w, "a", "a2"));
    let foreign = client(&mut w, "b", "b1");
    assert_eq!(subscribe(&mut w, one, "t/1"), "01");
    assert_eq!(subscribe(&mut w, one, "$share/g/t"), "01");
    assert_eq!(subscribe(&mut w, other, "$exclusive/t/2"), "01");
    assert_eq!(subscribe(&mut w, other, "t/3"), "97");
    assert_eq!(
        subscribe(&mut w, one, "t/1"),
        "01",
        "a replaced subscription is not a new one"
    );
    assert_eq!(subscribe(&mut w, foreign, "t/3"), "01");
    assert_eq!(rejections(&w, OwnerLimit::Subscriptions), 1);
    assert!(w.events.iter().any(|event| match event {
        ConnectionEvent::OverLimit { owner, exceeded, .. } =>
            &**owner == "user:a" && exceeded.option == "limits.max_subscriptions_per_user",
        _ => false,
    }));
    // MQTT 3.1.1 has one failure code.
    let old = w.open();
    let connect = Connect {
        user_name: Some("a"),
        ..connect_packet(V3_1_1, "a3", true, Properties::EMPTY, None)
    };
    w.send(old, &Packet::Connect(connect));
    w.take(old);
    assert_eq!(subscribe(&mut w, old, "t/4"), "80");
    w.unsubscribe(one, "t/1");
    w.take(one);
    assert_eq!(subscribe(&mut w, old, "t/4"), "01", "UNSUBSCRIBE frees the quota");
    w.cut(old);
    assert_eq!(subscribe(&mut w, one, "t/5"), "01", "so does the end of a session");
    w.cut(other);
    assert_eq!(subscribe(&mut w, one, "t/6"), "97", "an offline session counts");
    let (back, _) = connect_as(&mut w, Some("a"), "a2", b"");
    assert_eq!(subscribe(&mut w, back, "t/6"), "97");
    w.unsubscribe(back, "$exclusive/t/2");
    w.take(back);
    assert_eq!(subscribe(&mut w, foreign, "$exclusive/t/6"), "01");
    assert_eq!(subscribe(&mut w, one, "$exclusive/t/6"), "97", "another session has it");
    assert_eq!(
        subscribe(&mut w, one, "t/6"),
        "01",
        "a rejected subscription does not count"
    );
    w.cut(back);
    w.cut(one);
    for _ in 0..2 {
        w.now.monotonic_ms += u64::from(DAY_S + 1) * 1000;
        w.settle();
    }
    assert_eq!(w.node.owners.user("user:a").subscriptions(), 0, "expired sessions");
}

#[test]
fn expired_and_deleted_messages_free_the_share() {
    let mut w = world(OwnerLimits {
        retained_messages: 2,
        ..OwnerLimits::NONE
    });
    let user = client(&mut w, "a", "a");
    let expiry = PublishFields {
        properties: &[Property::MessageExpiryInterval(5)],
        ..PublishFields::RETAINED
    };
    w.publish_with(user, "t/1", "1", QoS::AtLeastOnce, expiry);
    w.take(user);
    assert!(retain(&mut w, user, "t/2", "1"));
    assert!(!retain(&mut w, user, "t/3", "1"));
    w.pass(7000);
    assert!(retain(&mut w, user, "t/3", "1"), "the first message has expired");
    assert!(!retain(&mut w, user, "t/4", "1"));
    let now = w.now;
    let deleted = w
        .shards
        .iter_mut()
        .map(|shard| shard.operator(now).delete_retained("t/2"));
    assert_eq!(deleted.filter(|is_deleted| *is_deleted).count(), 1);
    assert!(retain(&mut w, user, "t/4", "1"), "an operator has deleted a message");
}

#[test]
fn client_share_limits_one_client_of_a_user() {
    let mut w = world_of(ShareLimits {
        user: OwnerLimits::NONE,
        client: OwnerLimits {
            retained_messages: 2,
            ..OwnerLimits::NONE
        },
    });
    let (one, other) = (client(&mut w, "fleet", "a"), client(&mut w, "fleet", "b"));
    let stored = |w: &mut World, client, prefix: &str| {
        (0..5)
            .filter(|n| retain(w, client, &format!("{prefix}/{n}"), "1"))
            .count()
    };
    assert_eq!(stored(&mut w, one, "one"), 2);
    assert_eq!(stored(&mut w, other, "other"), 2);
    let option = w.events.iter().find_map(|event| match event {
        ConnectionEvent::OverLimit { owner, exceeded, .. } => Some((owner.to_string(), *exceeded)),
        _ => None,
    });
    let (owner, exceeded) = option.expect("the rejection is reported");
    assert_eq!((owner.as_str(), exceeded.option), ("user:fleet", "limits.client_share"));
}

#[test]
fn rejections_are_reported_once_per_second() {
    let mut w = world(OwnerLimits {
        retained_messages: 0,
        ..OwnerLimits::NONE
    });
    let user = client(&mut w, "a", "a");
    let reports = |w: &World| {
        let is_report = |event: &&ConnectionEvent| matches!(event, ConnectionEvent::OverLimit { .. });
        w.events.iter().filter(is_report).count()
    };
    (0..20).for_each(|_| assert!(!retain(&mut w, user, "t", "1")));
    assert_eq!(reports(&w), 1);
    w.pass(1000);
    (0..20).for_each(|_| assert!(!retain(&mut w, user, "t", "1")));
    assert_eq!(reports(&w), 2);
}

#[test]
fn clients_without_user_name_share_what_their_address_may_use() {
    let mut w = world(OwnerLimits {
        retained_messages: 4,
        ..OwnerLimits::NONE
    });
    let stored = (0..12).filter(|n| {
        let (client, reason) = connect_as(&mut w, None, &format!("anonymous-{n}"), b"");
        assert_eq!(reason, "Success");
        retain(&mut w, client, &format!("t/{n}"), "1")
    });
    assert_eq!(stored.count(), 4, "a new client id gives no new share");
    let user = client(&mut w, "a", "a");
    assert!(retain(&mut w, user, "t/a", "1"));
}

/// All delayed messages of a client are on the shard of its client id. The other clients of that shard must not be
/// rejected.
#[test]
fn delayed_messages_of_one_client_leave_space_for_its_shard() {
    let limit = 40;
    let config = ShardConfig {
        max_delayed_messages: limit,
        shares: ShareLimits {
            user: OwnerLimits {
                delayed_messages: limit as u64 / 4,
                ..OwnerLimits::NONE
            },
            client: OwnerLimits::NONE,
        },
        ..ShardConfig::default()
    };
    let mut w = World::with(SHARDS, config, Arc::new(OpenAccess));
    let mut on_shard = (0..)
        .map(|n| format!("c{n}"))
        .filter(|id| tidewire_broker::home_shard(id, SHARDS) == Some(ShardId(1)));
    let (greedy, other) = (on_shard.next().unwrap(), on_shard.next().unwrap());
    let (greedy, other) = (client(&mut w, "greedy", &greedy), client(&mut w, "other", &other));
    let delay = |w: &mut World, client| publish(w, client, "$delayed/4000000/t", "1", false) != REJECTED;
    assert_eq!((0..100).filter(|_| delay(&mut w, greedy)).count(), limit / 4);
    assert_eq!(rejections(&w, OwnerLimit::DelayedMessages), 100 - limit as u64 / 4);
    assert_eq!((0..5).filter(|_| delay(&mut w, other)).count(), 5);
    assert_eq!(w.stats().delayed_messages, limit as u64 / 4 + 5);
    w.pass(0);
    assert_eq!(usage(&w, "user:greedy", Holding::Delayed).0, limit as u64 / 4);
}

#[test]
fn due_message_frees_the_share() {
    let mut w = world(OwnerLimits {
        delayed_messages: 1,
        ..OwnerLimits::NONE
    });
    let user = client(&mut w, "a", "a");
    let delay = |w: &mut World| publish(w, user, "$delayed/5/t", "1", false) != REJECTED;
    assert!(delay(&mut w));
    assert!(!delay(&mut w));
    w.pass(6000);
    assert!(delay(&mut w));
}

/// Before, the message counted as a delayed and as a retained one while it was published, so it was not retained.
#[test]
fn due_delayed_message_counts_once_when_it_is_retained() {
    let mut w = world(OwnerLimits {
        journal_bytes: 1500,
        ..OwnerLimits::NONE
    });
    let user = client(&mut w, "a", "a");
    let payload = "x".repeat(1000);
    w.publish_with(
        user,
        "$delayed/1/t",
        &payload,
        QoS::AtLeastOnce,
        PublishFields::RETAINED,
    );
    assert_eq!(usage(&w, "user:a", Holding::Delayed).0, 1);
    w.pass(2000);
    assert_eq!((w.stats().retained_messages, w.stats().delayed_messages), (1, 0));
    assert_eq!(usage(&w, "user:a", Holding::Delayed), (0, 0));
    let (messages, bytes) = usage(&w, "user:a", Holding::Retained);
    assert!(messages == 1 && (1000..1500).contains(&bytes), "{bytes} bytes");
}

#[test]
fn retained_messages_of_wills_and_delayed_ones_count_for_their_client() {
    let mut w = world(OwnerLimits {
        retained_messages: 1,
        ..OwnerLimits::NONE
    });
    let user = client(&mut w, "a", "a");
    let fields = PublishFields::RETAINED;
    for n in 0..3 {
        let topic = format!("$delayed/{}/t/{n}", n + 1);
        w.publish_with(user, &topic, "1", QoS::AtLeastOnce, fields);
    }
    w.pass(5000);
    assert_eq!((w.stats().retained_messages, w.stats().delayed_messages), (1, 0));
    assert_eq!(usage(&w, "user:a", Holding::Retained).0, 1);
    let mortal = w.open();
    let will = Will {
        qos: QoS::AtMostOnce,
        retain: true,
        properties: Properties::EMPTY,
        topic: "gone",
        payload: b"1",
    };
    let connect = Connect {
        user_name: Some("a"),
        ..connect_packet(V5, "mortal", true, Properties::EMPTY, Some(will))
    };
    w.send(mortal, &Packet::Connect(connect));
    w.cut(mortal);
    assert_eq!(w.stats().wills_published, 1);
    assert_eq!(
        w.stats().retained_messages,
        1,
        "the will is delivered, but not retained"
    );
}

#[test]
fn sessions_of_a_user_are_limited() {
    let mut w = world(OwnerLimits {
        sessions: 3,
        ..OwnerLimits::NONE
    });
    let connected = |w: &mut World, user: &str| {
        let reasons = (0..6).map(|n| connect_as(w, Some(user), &format!("{user}{n}"), b"").1);
        reasons.filter(|reason| reason == "Success").count()
    };
    assert_eq!(connected(&mut w, "greedy"), 3);
    assert_eq!(rejections(&w, OwnerLimit::Sessions), 3);
    assert_eq!(connected(&mut w, "other"), 3);
    let (_, reason) = connect_as(&mut w, Some("greedy"), "greedy1", b"");
    assert_eq!(reason, "Success", "a present session can be resumed");
    let now = w.now;
    let ended = w
        .shards
        .iter_mut()
        .map(|shard| shard.operator(now).kick("greedy0", true));
    assert_eq!(ended.filter(|is_ended| *is_ended).count(), 1);
    w.settle();
    assert_eq!(connect_as(&mut w, Some("greedy"), "greedy7", b"").1, "Success");
}

#[test]
fn client_ids_and_wills_of_a_user_are_limited() {
    let mut w = world(OwnerLimits {
        session_bytes: 5000,
        ..OwnerLimits::NONE
    });
    let will = [b'x'; 1000];
    let connected = (0..10).filter(|n| {
        let client_id = format!("{n:0>500}");
        connect_as(&mut w, Some("greedy"), &client_id, &will).1 == "Success"
    });
    assert_eq!(connected.count(), 3);
    assert_eq!(usage(&w, "user:greedy", Holding::Session).1, 3 * 1501);
    assert_eq!(rejections(&w, OwnerLimit::SessionBytes), 7);
    assert_eq!(connect_as(&mut w, Some("other"), "other", &will).1, "Success");
    // A session without its will needs less.
    let (client, reason) = connect_as(&mut w, Some("greedy"), &format!("{:0>500}", 1), &will);
    assert_eq!(reason, "Success");
    w.disconnect(client);
    assert_eq!(usage(&w, "user:greedy", Holding::Session).1, 3 * 1501 - 1001);
}

#[test]
fn large_client_id_and_will_are_rejected() {
    let config = ShardConfig {
        max_client_id_length: 30,
        max_will_bytes: 100,
        ..ShardConfig::default()
    };
    let mut w = World::with(SHARDS, config, Arc::new(OpenAccess));
    assert_eq!(connect_as(&mut w, None, &"x".repeat(30), &[b'x'; 99]).1, "Success");
    assert_eq!(connect_as(&mut w, None, "c", &[b'x'; 100]).1, "QuotaExceeded");
    assert_eq!(
        connect_as(&mut w, None, &"x".repeat(31), b"").1,
        "ClientIdentifierNotValid"
    );
    let counts = [OwnerLimit::WillBytes, OwnerLimit::ClientIdBytes].map(|limit| rejections(&w, limit));
    assert_eq!(counts, [1, 1]);
}

/// Admits each client, with an attribute.
struct WithAttribute;

struct Attribute(String);

impl LoginData for Attribute {
    fn attributes(&self) -> Vec<(&str, &str)> {
        vec![("tenant", &self.0)]
    }
}

impl AccessControl for WithAttribute {
    fn authenticate_now(&self, _: &ConnectCredentials) -> Option<AuthOutcome> {
        Some(AuthOutcome::Allow(Box::new(ClientLogin {
            grant: LoginGrant::Of(Arc::new(Attribute("x".repeat(494)))),
            ..ClientLogin::default()
        })))
    }

    fn supports_auth_method(&self, _: &str) -> bool {
        false
    }

    fn session(&self, _: &ClientIdentity) -> Option<Arc<dyn SessionAccess>> {
        None
    }
}

#[test]
fn attributes_of_a_user_are_limited() {
    let user = OwnerLimits {
        session_bytes: 2000,
        ..OwnerLimits::NONE
    };
    let shares = ShareLimits {
        user,
        client: OwnerLimits::NONE,
    };
    let config = ShardConfig {
        shares,
        ..ShardConfig::default()
    };
    let mut w = World::with(SHARDS, config, Arc::new(WithAttribute));
    let connected = (0..10).filter(|n| connect_as(&mut w, Some("greedy"), &format!("{n}"), b"").1 == "Success");
    assert_eq!(connected.count(), 3);
    assert_eq!(usage(&w, "user:greedy", Holding::Session).1, 3 * 501);
    assert_eq!(rejections(&w, OwnerLimit::SessionBytes), 7);
    // Forgotten logins have no attributes.
    let now = w.now;
    for shard in &mut w.shards {
        shard.operator(now).forget_logins(SessionSlot::FIRST, |_| true);
    }
    w.settle();
    assert_eq!(usage(&w, "user:greedy", Holding::Session), (3, 3));
}

#[test]
fn session_counts_for_the_user_that_resumes_it() {
    let config = ShardConfig {
        is_client_id_owned: false,
        ..ShardConfig::default()
    };
    let mut w = World::with(SHARDS, config, Arc::new(OpenAccess));
    client(&mut w, "one", "c");
    client(&mut w, "other", "c");
    let sessions = ["user:one", "user:other"].map(|owner| usage(&w, owner, Holding::Session).0);
    assert_eq!(sessions, [0, 1]);
}
