//! Tests packets that another system must authorize: the connection is paused at the packet, and continues in order.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use crate::world::{PublishFields, World, connect_packet};
use mqtt::ProtocolVersion::{V3_1_1, V5};
use mqtt::QoS::{AtLeastOnce, AtMostOnce, ExactlyOnce};
use mqtt::*;
use tidewire_broker::*;

/// Decisions by topic or filter. Others must be asked for.
#[derive(Default)]
struct Decisions {
    known: Mutex<HashMap<String, bool>>,
    handled: Mutex<usize>,
    /// Filters that the session has, or no longer has.
    subscribed: Mutex<Vec<(String, bool)>>,
}

/// Every client has the same decisions. With `prepares`, those about its will and its filters are needed before it is
/// admitted.
struct Asking {
    decisions: Arc<Decisions>,
    prepares: bool,
}

struct AskingRights(Arc<Decisions>);

impl Decisions {
    fn get(&self, topic: &str) -> Option<bool> {
        self.known.lock().unwrap().get(topic).copied()
    }

    fn set(&self, topic: &str, is_allowed: bool) {
        self.known.lock().unwrap().insert(topic.into(), is_allowed);
    }

    fn question(&self, requests: &[AccessRequest<'_>]) -> Option<AccessQuestion> {
        let topics = requests.iter().map(|request| match request {
            AccessRequest::Publish { topic, .. } => *topic,
            AccessRequest::Subscribe { filter, .. } => *filter,
        });
        let unknown: Vec<String> = topics
            .filter(|topic| self.get(topic).is_none())
            .map(Into::into)
            .collect();
        (!unknown.is_empty()).then(|| AccessQuestion(Box::new(unknown)))
    }
}

impl AccessControl for Asking {
    fn authenticate_now(&self, _: &ConnectCredentials) -> Option<AuthOutcome> {
        Some(AuthOutcome::Allow(Box::default()))
    }

    fn supports_auth_method(&self, _: &str) -> bool {
        false
    }

    fn must_prepare(&self, _: &LoginGrant) -> bool {
        self.prepares
    }

    fn admission(&self, who: &ClientIdentity, requests: &[AccessRequest<'_>]) -> AdmissionStep {
        if self.decisions.get(&format!("login of {}", who.client_id)) == Some(false) {
            let (reason, detail) = (ReasonCode::ServerUnavailable, "no answer");
            return AdmissionStep::Deny { reason, detail };
        }
        self.decisions
            .question(requests)
            .map_or(AdmissionStep::Admit, AdmissionStep::Ask)
    }

    fn session(&self, _: &ClientIdentity) -> Option<Arc<dyn SessionAccess>> {
        Some(Arc::new(AskingRights(self.decisions.clone())))
    }
}

impl SessionAccess for AskingRights {
    fn can_publish(&self, topic: &str, _: QoS, _: bool) -> bool {
        self.0.get(topic) == Some(true)
    }

    fn can_subscribe(&self, filter: &str) -> SubscribeAccess {
        match self.0.get(filter) {
            Some(true) => SubscribeAccess::Allowed,
            _ => SubscribeAccess::Denied,
        }
    }

    fn can_receive(&self, _: &str) -> bool {
        true
    }

    fn asks(&self) -> bool {
        true
    }

    fn question(&self, requests: &[AccessRequest<'_>]) -> Option<AccessQuestion> {
        self.0.question(requests)
    }

    fn packet_handled(&self) {
        *self.0.handled.lock().unwrap() += 1;
    }

    fn stored_filters(&self) -> usize {
        self.0.known.lock().unwrap().len()
    }

    fn set_subscribed(&self, filter: &str, is_subscribed: bool) {
        self.0.subscribed.lock().unwrap().push((filter.into(), is_subscribed));
    }
}

fn world_with(config: ShardConfig, prepares: bool) -> (World, Arc<Decisions>) {
    let decisions = Arc::new(Decisions::default());
    let access = Asking {
        decisions: decisions.clone(),
        prepares,
    };
    (World::with(1, config, Arc::new(access)), decisions)
}

fn world() -> (World, Arc<Decisions>) {
    world_with(ShardConfig::default(), false)
}

/// Answers the only open question with these decisions. Returns the topics of the question.
fn answer(w: &mut World, decisions: &Decisions, is_allowed: bool) -> Vec<String> {
    assert_eq!(w.questions.len(), 1, "open questions");
    let (client, epoch, question) = w.questions.remove(0);
    let topics = *question.0.downcast::<Vec<String>>().expect("a list of topics");
    topics.iter().for_each(|topic| decisions.set(topic, is_allowed));
    w.answered(client, epoch, true);
    topics
}

/// A subscriber to `#`.
fn reader(w: &mut World, decisions: &Decisions) -> usize {
    decisions.set("#", true);
    let reader = w.connect(V5, "reader", true, &[]);
    w.subscribe(reader, "#", AtLeastOnce);
    w.take(reader);
    reader
}

fn publish_bytes(topic: &str, payload: &str, qos: QoS, id: u16) -> Vec<u8> {
    let mut bytes = Vec::new();
    let publish = Publish {
        dup: false,
        qos,
        retain: false,
        topic,
        packet_id: (qos != AtMostOnce).then(|| PacketId::new(id).unwrap()),
        properties: Properties::EMPTY,
        payload: payload.as_bytes(),
    };
    Packet::Publish(publish).encode(V5, &mut bytes);
    bytes
}

#[test]
fn packets_behind_a_question_wait_and_stay_in_order() {
    for qos in [AtMostOnce, AtLeastOnce, ExactlyOnce] {
        let (mut w, decisions) = world();
        let reader = reader(&mut w, &decisions);
        decisions.set("known", true);
        let client = w.connect(V5, "client", true, &[]);
        let topics = ["known", "asked", "known", "other", "asked"];
        let packets = (1..)
            .zip(topics)
            .map(|(id, topic)| publish_bytes(topic, &format!("{id}"), qos, id));
        let mut bytes: Vec<u8> = packets.flatten().collect();
        Packet::PingReq.encode(V5, &mut bytes);
        w.send_bytes(client, &bytes);
        assert_eq!(w.payloads(reader), ["1"], "{qos:?}");
        assert_eq!(answer(&mut w, &decisions, true), ["asked"]);
        assert_eq!(w.payloads(reader), ["2", "3"], "{qos:?}");
        assert!(!w.take(client).contains(&"PINGRESP".to_owned()));
        assert_eq!(answer(&mut w, &decisions, false), ["other"]);
        assert_eq!(w.payloads(reader), ["5"], "{qos:?}");
        let packets = w.take(client);
        assert_eq!(packets.last().map(String::as_str), Some("PINGRESP"), "{packets:?}");
        let denied = packets.iter().filter(|packet| packet.contains("NotAuthorized")).count();
        assert_eq!(denied, usize::from(qos != AtMostOnce), "{packets:?}");
        // A packet that was decided at once needs no call.
        assert_eq!(*decisions.handled.lock().unwrap(), 2);
        assert!(w.questions.is_empty());
    }
}

#[test]
fn question_pauses_only_its_data_stream() {
    let (mut w, decisions) = world();
    let client = w.connect(V5, "client", true, &[]);
    let stream = w.open_stream(client).unwrap();
    w.publish(stream, "asked", "x", AtLeastOnce);
    assert!(w.take(stream).is_empty());
    w.send(client, &Packet::PingReq);
    assert_eq!(w.take(client), ["PINGRESP"]);
    assert_eq!(answer(&mut w, &decisions, true), ["asked"]);
    assert_eq!(w.take(stream), ["PUBACK 1 NoMatchingSubscribers"]);
}

#[test]
fn a_paused_client_receives_messages() {
    let (mut w, decisions) = world();
    decisions.set("#", true);
    decisions.set("known", true);
    let client = w.connect(V5, "client", true, &[]);
    w.subscribe(client, "#", AtMostOnce);
    w.publish(client, "asked", "x", AtLeastOnce);
    w.take(client);
    let publisher = w.connect(V5, "publisher", true, &[]);
    w.publish(publisher, "known", "y", AtLeastOnce);
    assert_eq!(w.take(publisher), ["PUBACK 1 Success"]);
    assert_eq!(w.payloads(client), ["y"]);
    answer(&mut w, &decisions, true);
    assert_eq!(w.take(client), ["PUBLISH asked x q0 id=0", "PUBACK 1 Success"]);
}

#[test]
fn one_question_has_all_filters_of_a_subscribe() {
    let (mut w, decisions) = world();
    decisions.set("a", true);
    let client = w.connect(V5, "client", true, &[]);
    let filter = |filter| SubscribeFilter {
        filter,
        options: SubscriptionOptions::default(),
    };
    let mut bytes = Vec::new();
    let list = ["a", "b/#", "$share/g/c", "$exclusive/d", "b/#"].map(filter);
    let filters = SubscribeFilters::encode(list, V5, &mut bytes);
    let packet_id = PacketId::new(7).unwrap();
    let properties = Properties::EMPTY;
    w.send(
        client,
        &Packet::Subscribe(Subscribe {
            packet_id,
            properties,
            filters,
        }),
    );
    assert_eq!(w.take(client), [""; 0]);
    assert_eq!(answer(&mut w, &decisions, true), ["b/#", "c", "d", "b/#"]);
    assert_eq!(w.take(client), ["SUBACK 7 [00, 00, 00, 00, 00]"]);
}

#[test]
fn rights_learn_which_filters_the_session_has() {
    let (mut w, decisions) = world();
    decisions.set("t", true);
    decisions.set("no", false);
    let client = w.connect(V5, "client", true, &[]);
    let changes = |w: &mut World| {
        w.settle();
        std::mem::take(&mut *decisions.subscribed.lock().unwrap())
    };
    let all = ["t", "$exclusive/t", "$share/a/t", "$share/b/t", "$queue/t"];
    for filter in all {
        w.subscribe(client, filter, AtMostOnce);
    }
    w.subscribe(client, "no", AtMostOnce);
    assert_eq!(changes(&mut w), vec![("t".to_owned(), true); all.len()]);
    let (last, others) = all.split_last().expect("there are filters");
    for filter in others {
        w.unsubscribe(client, filter);
        assert!(changes(&mut w).is_empty(), "the session still has {last}");
    }
    w.unsubscribe(client, last);
    assert_eq!(changes(&mut w), [("t".to_owned(), false)]);
    // By an operator.
    w.subscribe(client, "t", AtMostOnce);
    let now = w.now;
    let removed = w.shards[0].operator(now).unsubscribe_client("client", "t");
    assert_eq!(removed, Some(true));
    assert_eq!(changes(&mut w), [("t".to_owned(), true), ("t".to_owned(), false)]);
}

#[test]
fn operator_asks_before_it_subscribes_a_client() {
    let (mut w, decisions) = world();
    let client = w.connect(V5, "client", true, &[]);
    let now = w.now;
    let filter = "$share/g/t";
    let question = |w: &mut World, client_id: &str| {
        let operator = w.shards[0].operator(now);
        operator.subscription_question(client_id, filter, AtLeastOnce)
    };
    let subscribe = |w: &mut World| {
        let options = SubscriptionOptions::default();
        w.shards[0].operator(now).subscribe_client("client", filter, options)
    };
    assert_eq!(subscribe(&mut w), Some(ReasonCode::NotAuthorized));
    let asked = question(&mut w, "client").expect("another system decides");
    assert_eq!(*asked.0.downcast::<Vec<String>>().expect("a list of topics"), ["t"]);
    assert!(question(&mut w, "missing").is_none());
    decisions.set("t", true);
    assert!(question(&mut w, "client").is_none());
    *decisions.handled.lock().unwrap() = 0;
    assert_eq!(subscribe(&mut w), Some(ReasonCode::Success));
    assert_eq!(*decisions.handled.lock().unwrap(), 1);
    // The answers for a packet of the client that waits are still needed.
    w.publish(client, "asked", "x", AtLeastOnce);
    assert_eq!(subscribe(&mut w), Some(ReasonCode::Success));
    assert_eq!(*decisions.handled.lock().unwrap(), 1);
    answer(&mut w, &decisions, true);
    assert_eq!(*decisions.handled.lock().unwrap(), 2);
}

#[test]
fn topic_of_a_question_is_without_delay_and_alias() {
    let (mut w, decisions) = world();
    let client = w.connect(V5, "client", true, &[]);
    w.publish(client, "$delayed/5/late", "x", AtLeastOnce);
    assert_eq!(answer(&mut w, &decisions, true), ["late"]);
    assert_eq!(w.take(client), ["PUBACK 1 Success"]);
    let alias = PublishFields {
        id: 2,
        properties: &[Property::TopicAlias(3)],
        ..PublishFields::default()
    };
    w.publish_with(client, "aliased", "x", AtLeastOnce, alias);
    assert_eq!(answer(&mut w, &decisions, true), ["aliased"]);
    decisions.known.lock().unwrap().clear();
    w.publish_with(client, "", "x", AtLeastOnce, PublishFields { id: 3, ..alias });
    assert_eq!(answer(&mut w, &decisions, false), ["aliased"]);
    let packets = w.take(client);
    assert_eq!(packets.last().map(String::as_str), Some("PUBACK 3 NotAuthorized"));
    // An unknown alias is a violation and needs no answer.
    let unknown = PublishFields {
        id: 4,
        properties: &[Property::TopicAlias(9)],
        ..PublishFields::default()
    };
    w.publish_with(client, "", "x", AtLeastOnce, unknown);
    assert!(w.is_closed(client) && w.questions.is_empty());
}

#[test]
fn a_repeated_exactly_once_message_is_not_asked_for_again() {
    let (mut w, decisions) = world();
    let client = w.connect(V5, "client", true, &[]);
    w.publish(client, "t", "x", ExactlyOnce);
    answer(&mut w, &decisions, true);
    decisions.known.lock().unwrap().clear();
    let again = PublishFields {
        dup: true,
        ..PublishFields::default()
    };
    w.publish_with(client, "t", "x", ExactlyOnce, again);
    assert!(w.questions.is_empty());
    assert_eq!(w.take(client).len(), 2);
}

#[test]
fn an_answer_for_a_closed_connection_is_ignored() {
    let (mut w, decisions) = world();
    let reader = reader(&mut w, &decisions);
    let client = w.connect(V5, "client", true, &[]);
    w.publish(client, "t", "x", AtLeastOnce);
    w.cut(client);
    let (_, epoch, _) = w.questions.remove(0);
    decisions.set("t", true);
    // Another connection has the slot.
    let next = w.connect(V5, "next", true, &[]);
    w.publish(next, "u", "y", AtLeastOnce);
    w.answered(next, epoch, true);
    w.answered(next, epoch, false);
    assert_eq!((w.questions.len(), w.payloads(reader).len()), (1, 0));
    assert!(!w.is_closed(next));
    assert_eq!(answer(&mut w, &decisions, true), ["u"]);
    assert_eq!(w.payloads(reader), ["y"]);
}

#[test]
fn a_takeover_drops_the_paused_packet() {
    let (mut w, decisions) = world();
    let reader = reader(&mut w, &decisions);
    let old = w.connect(V5, "client", true, &[Property::SessionExpiryInterval(100)]);
    w.publish(old, "t", "old", AtLeastOnce);
    let (_, epoch, _) = w.questions.remove(0);
    let new = w.connect(V5, "client", true, &[]);
    assert!(w.is_closed(old));
    decisions.set("t", true);
    w.answered(old, epoch, true);
    w.publish(new, "t", "new", AtLeastOnce);
    assert_eq!(w.payloads(reader), ["new"]);
}

#[test]
fn keep_alive_does_not_run_while_a_question_is_open() {
    let (mut w, decisions) = world();
    let client = w.connect(V5, "client", true, &[]);
    w.publish(client, "t", "x", AtLeastOnce);
    // Three times as long as the keep alive of 60 s and its tolerance.
    w.pass(270_000);
    assert!(!w.is_closed(client));
    answer(&mut w, &decisions, true);
    assert_eq!(w.take(client), ["PUBACK 1 NoMatchingSubscribers"]);
    w.pass(80_000);
    assert!(!w.is_closed(client));
    w.pass(20_000);
    assert!(w.is_closed(client));
}

#[test]
fn a_resumed_connection_waits_for_its_answer() {
    let (mut w, decisions) = world();
    let client = w.connect(V5, "client", true, &[]);
    w.publish(client, "t", "x", AtLeastOnce);
    // More bytes of the client, and a resume for another reason.
    w.publish_with(
        client,
        "t",
        "y",
        AtLeastOnce,
        PublishFields {
            id: 2,
            ..PublishFields::default()
        },
    );
    w.shards[0].reconfigure(w.now, Arc::new(ShardConfig::default()));
    w.settle();
    assert_eq!((w.take(client).len(), w.questions.len()), (0, 1));
    answer(&mut w, &decisions, true);
    assert_eq!(w.take(client).len(), 2);
}

#[test]
fn an_interrupted_question_disconnects_the_client() {
    let (mut w, _) = world();
    let client = w.connect(V5, "client", true, &[]);
    w.publish(client, "t", "x", AtLeastOnce);
    let (_, epoch, _) = w.questions.remove(0);
    w.answered(client, epoch, false);
    assert!(w.is_closed(client));
    assert!(w.take(client)[0].starts_with("DISCONNECT ServerBusy"));
}

#[test]
fn denied_packets_disconnect_if_configured() {
    let config = ShardConfig {
        disconnect_denied: true,
        ..ShardConfig::default()
    };
    for version in [V3_1_1, V5] {
        let (mut w, decisions) = world_with(config.clone(), false);
        decisions.set("no", false);
        let publisher = w.connect(version, "publisher", true, &[]);
        w.publish(publisher, "no", "x", AtMostOnce);
        assert!(w.is_closed(publisher));
        let subscriber = w.connect(version, "subscriber", true, &[]);
        w.subscribe(subscriber, "no", AtMostOnce);
        assert!(w.is_closed(subscriber));
        if version == V5 {
            assert!(w.take(publisher)[0].starts_with("DISCONNECT NotAuthorized"));
            assert!(w.take(subscriber)[0].starts_with("DISCONNECT NotAuthorized"));
        }
        let disconnects = w.stats().disconnects[DisconnectReason::NotAuthorized as usize];
        assert_eq!(
            (
                disconnects,
                w.stats().drops[DropReason::NotAuthorizedToPublish as usize]
            ),
            (2, 1)
        );
    }
}

fn send_connect(w: &mut World, client_id: &str, clean_start: bool, will: Option<Will<'_>>) -> usize {
    let client = w.open();
    let mut expiry = Vec::new();
    PropertyWriter::new(&mut expiry).put(Property::SessionExpiryInterval(1000));
    let properties = Properties::from_validated(&expiry);
    let connect = connect_packet(V5, client_id, clean_start, properties, will);
    w.send(client, &Packet::Connect(connect));
    client
}

#[test]
fn will_is_decided_before_the_client_is_admitted() {
    for is_allowed in [true, false] {
        let (mut w, decisions) = world_with(ShardConfig::default(), true);
        let reader = reader(&mut w, &decisions);
        let will = Will {
            topic: "will",
            payload: b"gone",
            qos: AtMostOnce,
            retain: false,
            properties: Properties::EMPTY,
        };
        let client = send_connect(&mut w, "client", true, Some(will));
        // Packets behind the CONNECT wait with it.
        decisions.set("t", true);
        w.publish(client, "t", "x", AtLeastOnce);
        assert_eq!(w.take(client), [""; 0]);
        assert_eq!(answer(&mut w, &decisions, is_allowed), ["will"]);
        let packets = w.take(client);
        assert!(
            packets[0].contains("CONNACK Success") && packets[1].starts_with("PUBACK"),
            "{packets:?}"
        );
        w.cut(client);
        w.pass(1_001_000);
        let expected: &[&str] = if is_allowed { &["x", "gone"] } else { &["x"] };
        assert_eq!(w.payloads(reader), expected);
    }
}

#[test]
fn filters_of_a_session_are_decided_before_it_continues() {
    let (mut w, decisions) = world_with(ShardConfig::default(), true);
    for filter in ["a", "b"] {
        decisions.set(filter, true);
    }
    let client = send_connect(&mut w, "client", true, None);
    w.subscribe(client, "a", AtLeastOnce);
    w.subscribe(client, "b", AtLeastOnce);
    w.cut(client);
    let publisher = w.connect(V5, "publisher", true, &[]);
    w.publish(publisher, "a", "1", AtLeastOnce);
    decisions.known.lock().unwrap().clear();
    decisions.set("a", true);
    let client = send_connect(&mut w, "client", false, None);
    assert_eq!(w.take(client), [""; 0]);
    assert_eq!(answer(&mut w, &decisions, false), ["b"]);
    let packets = w.take(client);
    assert!(packets[0].contains("present=true"), "{packets:?}");
    assert_eq!(packets.len(), 2, "the queued message follows: {packets:?}");
    let filters = w.shards[0]
        .inspect()
        .client("client")
        .map(|client| client.subscriptions);
    assert_eq!(filters, Some(1), "the denied subscription is removed");
    // Clean Start has no filters to ask for.
    decisions.known.lock().unwrap().clear();
    let client = send_connect(&mut w, "client", true, None);
    assert!(w.take(client)[0].contains("present=false"));
}

#[test]
fn a_client_without_an_answer_is_rejected() {
    let (mut w, decisions) = world_with(ShardConfig::default(), true);
    let will = Will {
        topic: "will",
        payload: b"",
        qos: AtMostOnce,
        retain: false,
        properties: Properties::EMPTY,
    };
    let client = send_connect(&mut w, "client", true, Some(will.clone()));
    let (_, epoch, _) = w.questions.remove(0);
    decisions.set("login of client", false);
    w.answered(client, epoch, true);
    assert!(w.take(client)[0].starts_with("CONNACK ServerUnavailable") && w.is_closed(client));
    let other = send_connect(&mut w, "other", true, Some(will.clone()));
    let (_, epoch, _) = w.questions.remove(0);
    w.answered(other, epoch, false);
    assert!(w.take(other)[0].starts_with("CONNACK ServerUnavailable") && w.is_closed(other));
    // A client that is gone is not admitted by a late answer.
    let gone = send_connect(&mut w, "gone", true, Some(will));
    let (_, epoch, _) = w.questions.remove(0);
    w.cut(gone);
    decisions.set("will", true);
    w.answered(gone, epoch, true);
    assert!(w.shards[0].inspect().client("gone").is_none());
}
