//! Tests the topic prefix of clients: tenants with the same topics do not see each other's messages.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use crate::tap::recorder::Recorder;
use crate::world::{PublishFields, World, connect_packet};
use mqtt::ProtocolVersion::{V3_1_1, V5};
use mqtt::QoS::{AtLeastOnce, AtMostOnce, ExactlyOnce};
use mqtt::*;
use tidewire_broker::tap::TapEventMask;
use tidewire_broker::*;

const METHOD: &str = "TOKEN";

/// Gives a client the prefix `tenants/{tenant}/`. Its id is `{tenant}-{name}`. Clients of `root` have no prefix. A
/// client id in the map has that tenant.
#[derive(Default)]
struct Tenants(Mutex<BTreeMap<String, &'static str>>);

impl Tenants {
    fn set(&self, client_id: &str, tenant: &'static str) {
        self.0.lock().unwrap().insert(client_id.into(), tenant);
    }
}

fn prefix(tenant: &str) -> Option<Mountpoint> {
    (tenant != "root").then(|| Mountpoint::new(&format!("tenants/{tenant}/")).unwrap())
}

impl AccessControl for Tenants {
    fn authenticate_now(&self, credentials: &ConnectCredentials) -> Option<AuthOutcome> {
        let known = self.0.lock().unwrap().get(&*credentials.client_id).copied();
        let tenant = known.or(credentials.client_id.split('-').next());
        Some(AuthOutcome::Allow(Box::new(ClientLogin {
            mountpoint: prefix(tenant.unwrap_or_default()),
            ..ClientLogin::default()
        })))
    }

    fn supports_auth_method(&self, method: &str) -> bool {
        method == METHOD
    }

    /// Rejects `forbidden` of the tenant `acme`.
    fn session(&self, _: &ClientIdentity) -> Option<Arc<dyn SessionAccess>> {
        Some(Arc::new(FullTopics))
    }
}

struct FullTopics;

impl SessionAccess for FullTopics {
    fn can_publish(&self, topic: &str, _: QoS, _: bool) -> bool {
        topic != "tenants/acme/forbidden"
    }

    fn can_subscribe(&self, filter: &str) -> SubscribeAccess {
        match filter == "tenants/acme/forbidden" {
            true => SubscribeAccess::Denied,
            false => SubscribeAccess::Allowed,
        }
    }

    fn can_receive(&self, _: &str) -> bool {
        true
    }
}

fn world(shards: u16) -> World {
    World::with(shards, ShardConfig::default(), Arc::new(Tenants::default()))
}

fn stay() -> [Property<'static>; 1] {
    [Property::SessionExpiryInterval(3600)]
}

fn topics(w: &mut World, client: usize) -> Vec<String> {
    w.messages(client).into_iter().map(|message| message.topic).collect()
}

/// Drops the answers that a client has received.
fn clear(w: &mut World, clients: &[usize]) {
    clients.iter().for_each(|client| drop(w.take_bytes(*client)));
}

#[test]
fn tenants_with_the_same_topics_are_separate() {
    for shards in [1, 3] {
        for version in [V3_1_1, V5] {
            for qos in [AtMostOnce, AtLeastOnce, ExactlyOnce] {
                let mut w = world(shards);
                let clients = ["acme-1", "acme-2", "blue-1", "root-1"].map(|id| w.connect(version, id, true, &[]));
                let [sender, acme, blue, root] = clients;
                for client in [acme, blue] {
                    w.subscribe(client, "s/#", qos);
                    w.subscribe(client, "+/1", qos);
                }
                w.subscribe(root, "#", qos);
                clear(&mut w, &clients);
                w.publish(sender, "s/1", "x", qos);
                if qos == ExactlyOnce {
                    w.ack(sender, PacketType::PubRel, 1);
                }
                let context = format!("{shards} shards, {version:?}, {qos:?}");
                assert_eq!(topics(&mut w, acme), ["s/1"], "{context}");
                assert_eq!(topics(&mut w, blue), [""; 0], "{context}");
                assert_eq!(topics(&mut w, root), ["tenants/acme/s/1"], "{context}");
                w.publish(root, "tenants/blue/s/1", "y", AtMostOnce);
                assert_eq!(topics(&mut w, blue), ["s/1"], "{context}");
                assert_eq!(topics(&mut w, acme), [""; 0], "{context}");
            }
        }
    }
}

#[test]
fn prefix_follows_the_words_of_the_server() {
    let mut w = world(3);
    let clients = ["acme-1", "acme-2", "blue-1", "root-1"].map(|id| w.connect(V5, id, true, &[]));
    let [acme, other, blue, root] = clients;
    for client in [acme, other, blue] {
        w.subscribe(client, "$share/g/jobs", AtLeastOnce);
        w.subscribe(client, "$queue/work", AtLeastOnce);
    }
    w.subscribe(blue, "$exclusive/lock", AtLeastOnce);
    let got = w.take(blue);
    assert!(got.iter().all(|packet| packet.ends_with("[01]")), "{got:?}");
    w.subscribe(acme, "$exclusive/lock", AtLeastOnce);
    let got = w.take(acme);
    assert!(
        got.iter().all(|packet| packet.ends_with("[01]")),
        "another tenant holds another topic: {got:?}"
    );
    clear(&mut w, &clients);
    let count = 6;
    for id in 0..count {
        w.publish(root, "tenants/acme/jobs", "x", AtMostOnce);
        w.publish(root, "tenants/acme/work", "x", AtMostOnce);
        w.publish(root, "$delayed/1/tenants/blue/jobs", "x", AtMostOnce);
        let fields = PublishFields {
            id: id + 1,
            ..PublishFields::default()
        };
        w.publish_with(blue, "$delayed/1/lock", "x", AtLeastOnce, fields);
    }
    let (mut first, second) = (topics(&mut w, acme), topics(&mut w, other));
    assert!(!first.is_empty() && !second.is_empty());
    first.extend(second);
    first.sort();
    assert_eq!(
        first,
        [vec!["jobs"; usize::from(count)], vec!["work"; usize::from(count)]].concat()
    );
    clear(&mut w, &[blue]);
    w.pass(1_100);
    let mut got = topics(&mut w, blue);
    got.sort();
    assert_eq!(
        got,
        [vec!["jobs"; usize::from(count)], vec!["lock"; usize::from(count)]].concat()
    );
    w.unsubscribe(blue, "$exclusive/lock");
    w.unsubscribe(blue, "$share/g/jobs");
    let answers = w.take(blue);
    assert_eq!(answers, ["UNSUBACK 8 [00]", "UNSUBACK 8 [00]"]);
}

#[test]
fn topics_of_the_server_are_out_of_reach() {
    let mut w = world(1);
    let acme = w.connect(V5, "acme-1", true, &[]);
    let root = w.connect(V5, "root-1", true, &[]);
    for filter in ["$SYS/#", "#", "$share/g/$SYS/#"] {
        w.subscribe(acme, filter, AtMostOnce);
    }
    let now = w.now;
    let message = ServerMessage {
        topic: "$SYS/brokers/x",
        payload: b"x",
        ..ServerMessage::default()
    };
    w.shards[0].server_publisher(now).publish(message);
    w.settle();
    assert_eq!(topics(&mut w, acme), [""; 0]);
    w.subscribe(root, "$SYS/#", AtMostOnce);
    w.publish(acme, "$SYS/brokers/x", "forged", AtMostOnce);
    assert_eq!(topics(&mut w, root), [""; 0]);
}

/// `tenants/acme/#` also matches `tenants/acme`, and `tenants/acme/+` matches `tenants/acme/`.
#[test]
fn topic_without_a_rest_is_not_delivered() {
    for qos in [AtMostOnce, AtLeastOnce] {
        let mut w = world(1);
        let acme = w.connect(V5, "acme-1", true, &[]);
        let root = w.connect(V5, "root-1", true, &[]);
        w.subscribe(acme, "#", qos);
        w.subscribe(acme, "+", qos);
        clear(&mut w, &[acme]);
        for topic in ["tenants/acme", "tenants/acme/", "tenants/acme/x"] {
            w.publish_with(root, topic, "x", qos, PublishFields::RETAINED);
        }
        let topics = topics(&mut w, acme);
        assert!(
            !topics.is_empty() && topics.iter().all(|topic| topic == "x"),
            "{topics:?}"
        );
        let dropped = w.stats().drops[DropReason::NotAuthorizedToReceive as usize];
        assert_eq!(dropped, 2, "{qos:?}");
    }
}

#[test]
fn retained_messages_and_wills_have_the_prefix() {
    let mut w = world(3);
    let acme = w.connect(V5, "acme-1", true, &[]);
    w.publish_with(acme, "state", "on", AtLeastOnce, PublishFields::RETAINED);
    let will = Will {
        qos: AtLeastOnce,
        retain: true,
        properties: Properties::EMPTY,
        topic: "gone",
        payload: b"bye",
    };
    let dying = w.open();
    let connect = connect_packet(V5, "acme-2", true, Properties::EMPTY, Some(will));
    w.send(dying, &Packet::Connect(connect));
    w.cut(dying);
    for (client, expected) in [
        ("acme-3", vec!["gone", "state"]),
        ("blue-1", vec![]),
        ("root-1", vec!["tenants/acme/gone", "tenants/acme/state"]),
    ] {
        let reader = w.connect(V5, client, true, &[]);
        w.subscribe(reader, "#", AtLeastOnce);
        let mut got = topics(&mut w, reader);
        got.sort();
        assert_eq!(got, expected, "{client}");
    }
    w.publish_with(acme, "state", "", AtLeastOnce, PublishFields::RETAINED);
    let reader = w.connect(V5, "acme-4", true, &[]);
    w.subscribe(reader, "state", AtLeastOnce);
    assert_eq!(topics(&mut w, reader), [""; 0]);
}

#[test]
fn topic_aliases_work_in_both_directions() {
    let config = ShardConfig {
        max_topic_alias_in: 5,
        max_topic_alias_out: 5,
        ..ShardConfig::default()
    };
    let mut w = World::with(1, config, Arc::new(Tenants::default()));
    let sender = w.connect(V5, "acme-1", true, &[]);
    let reader = w.connect(V5, "acme-2", true, &[Property::TopicAliasMaximum(5)]);
    let root = w.connect(V5, "root-1", true, &[]);
    w.subscribe(reader, "#", AtLeastOnce);
    w.subscribe(root, "#", AtLeastOnce);
    clear(&mut w, &[sender, reader, root]);
    for topic in ["long/topic", ""] {
        let fields = PublishFields {
            properties: &[Property::TopicAlias(3)],
            ..PublishFields::default()
        };
        w.publish_with(sender, topic, "x", AtMostOnce, fields);
    }
    let got = w.take(reader);
    assert!(
        got[0].starts_with("PUBLISH long/topic x") && got[0].contains("TopicAlias(1)"),
        "{got:?}"
    );
    assert!(
        got[1].starts_with("PUBLISH  x") && got[1].contains("TopicAlias(1)"),
        "{got:?}"
    );
    assert_eq!(topics(&mut w, root), ["tenants/acme/long/topic"; 2]);
}

#[test]
fn access_rules_and_taps_see_full_topics() {
    let mut w = world(1);
    let recorder = Recorder::keeping("stored/");
    w.shards[0].set_tap(Box::new(recorder.clone()));
    let all = TapEventMask::MESSAGES | TapEventMask::SUBSCRIBED | TapEventMask::UNSUBSCRIBED | TapEventMask::DELIVERED;
    recorder.wants(&mut w, all);
    let acme = w.connect(V5, "acme-1", true, &[]);
    w.publish(acme, "forbidden", "x", AtLeastOnce);
    w.subscribe(acme, "forbidden", AtLeastOnce);
    assert_eq!(w.take(acme), ["PUBACK 1 NotAuthorized", "SUBACK 7 [87]"]);
    w.subscribe(acme, "$share/g/t", AtMostOnce);
    w.publish(acme, "t", "x", AtMostOnce);
    w.unsubscribe(acme, "$share/g/t");
    assert_eq!(
        recorder.seen(),
        [
            "acme-1: subscribed $share/g/tenants/acme/t 0",
            "acme-1 tenants/acme/t x",
            "acme-1: delivered acme-1/- tenants/acme/t x q0",
            "acme-1: unsubscribed $share/g/tenants/acme/t",
        ]
    );
}

#[test]
fn session_with_another_prefix_does_not_continue() {
    let access = Arc::new(Tenants::default());
    let mut w = World::with(1, ShardConfig::default(), access.clone());
    let root = w.connect(V5, "root-1", true, &[]);
    for (before, after) in [("acme", "blue"), ("acme", "root"), ("root", "acme"), ("acme", "acme")] {
        access.set("c", before);
        let client = w.connect(V5, "c", false, &stay());
        w.subscribe(client, "t", AtLeastOnce);
        w.cut(client);
        let topic = prefix(before).map_or("t".to_owned(), |prefix| format!("{}t", prefix.as_str()));
        w.publish(root, &topic, "queued", AtLeastOnce);
        access.set("c", after);
        let client = w.open();
        let mut bytes = Vec::new();
        PropertyWriter::new(&mut bytes).put(stay()[0]);
        let connect = connect_packet(V5, "c", false, Properties::from_validated(&bytes), None);
        w.send(client, &Packet::Connect(connect));
        let got = w.take(client);
        let is_resumed = before == after;
        assert!(
            got[0].contains(&format!("present={is_resumed}")),
            "{before} {after}: {got:?}"
        );
        assert_eq!(got.len(), if is_resumed { 2 } else { 1 }, "{before} {after}: {got:?}");
        w.publish(root, &topic, "live", AtMostOnce);
        assert_eq!(
            topics(&mut w, client).len(),
            usize::from(is_resumed),
            "{before} {after}"
        );
        w.cut(client);
        let now = w.now;
        assert!(w.shards[0].operator(now).kick("c", true));
        clear(&mut w, &[root]);
    }
}

#[test]
fn resent_message_has_no_prefix() {
    let mut w = world(1);
    let sender = w.connect(V5, "acme-1", true, &[]);
    let reader = w.connect(V5, "acme-2", false, &stay());
    w.subscribe(reader, "t", AtLeastOnce);
    w.publish(sender, "t", "x", AtLeastOnce);
    assert_eq!(topics(&mut w, reader), ["t"]);
    w.cut(reader);
    let reader = w.open();
    let mut bytes = Vec::new();
    PropertyWriter::new(&mut bytes).put(stay()[0]);
    let connect = connect_packet(V5, "acme-2", false, Properties::from_validated(&bytes), None);
    w.send(reader, &Packet::Connect(connect));
    let got = w.messages(reader);
    assert_eq!(
        got.iter().map(|got| (&*got.topic, got.dup)).collect::<Vec<_>>(),
        [("t", true)]
    );
}

#[test]
fn reauthentication_cannot_change_the_prefix() {
    for (tenant, is_kept) in [("acme", true), ("blue", false), ("root", false)] {
        let access = Arc::new(Tenants::default());
        let mut w = World::with(1, ShardConfig::default(), access.clone());
        access.set("c", "acme");
        let client = w.connect(V5, "c", true, &[Property::AuthenticationMethod(METHOD)]);
        access.set("c", tenant);
        let mut bytes = Vec::new();
        PropertyWriter::new(&mut bytes).put(Property::AuthenticationMethod(METHOD));
        let properties = Properties::from_validated(&bytes);
        let reason = ReasonCode::ReAuthenticate;
        w.send(client, &Packet::Auth(Auth { reason, properties }));
        assert_eq!(w.is_closed(client), !is_kept, "{tenant}");
    }
}

#[test]
fn full_topics_have_the_limits_of_topics() {
    let mut w = world(1);
    let acme = w.connect(V5, "acme-1", true, &[]);
    let longest = "x".repeat(65_535 - "tenants/acme/".len());
    for (topic, is_valid) in [(longest.clone(), true), (format!("{longest}x"), false)] {
        w.publish(acme, &topic, "x", AtLeastOnce);
        w.subscribe(acme, &topic, AtMostOnce);
        let got = w.take(acme);
        assert_eq!(got[0].contains("TopicNameInvalid"), !is_valid, "{}", got[0]);
        assert_eq!(got[1], if is_valid { "SUBACK 7 [00]" } else { "SUBACK 7 [8f]" });
        let will = Will {
            qos: AtMostOnce,
            retain: false,
            properties: Properties::EMPTY,
            topic: &topic,
            payload: b"",
        };
        let client = w.open();
        let connect = connect_packet(V5, "acme-2", true, Properties::EMPTY, Some(will));
        w.send(client, &Packet::Connect(connect));
        let got = w.take(client);
        assert_eq!(got[0].contains("TopicNameInvalid"), !is_valid, "{got:?}");
    }
}

#[test]
fn operator_uses_full_filters() {
    let mut w = world(1);
    let acme = w.connect(V5, "acme-1", true, &[]);
    let now = w.now;
    let mut subscribe = |filter: &str| {
        let options = SubscriptionOptions::default();
        w.shards[0].operator(now).subscribe_client("acme-1", filter, options)
    };
    assert_eq!(subscribe("t"), Some(ReasonCode::TopicFilterInvalid));
    assert_eq!(subscribe("tenants/+/t"), Some(ReasonCode::TopicFilterInvalid));
    assert_eq!(subscribe("tenants/acme/t"), Some(ReasonCode::Success));
    w.publish(acme, "t", "x", AtMostOnce);
    assert_eq!(topics(&mut w, acme), ["t"]);
    w.unsubscribe(acme, "t");
    assert_eq!(w.take(acme), ["UNSUBACK 8 [00]"]);
}
