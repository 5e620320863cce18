//! Tests what a login brings with it: the user name of the session, a grant for the access rules, and an end.

use std::sync::Arc;

use crate::world::{World, connect_packet};
use mqtt::ProtocolVersion::{V3_1_1, V5};
use mqtt::QoS::AtLeastOnce;
use mqtt::*;
use tidewire_broker::*;

const METHOD: &str = "TOKEN";

/// Grant of a login: the only topic that the client may use.
struct Topic(&'static str);

impl LoginData for Topic {}

/// Makes no decision immediately. The grant of a login is the only topic that the client may use.
struct Granted;

struct OneTopic(&'static str);

impl AccessControl for Granted {
    fn authenticate_now(&self, _: &ConnectCredentials) -> Option<AuthOutcome> {
        None
    }

    fn supports_auth_method(&self, method: &str) -> bool {
        method == METHOD
    }

    fn session(&self, who: &ClientIdentity) -> Option<Arc<dyn SessionAccess>> {
        let Topic(topic) = who.grant.data()?;
        Some(Arc::new(OneTopic(topic)))
    }
}

impl SessionAccess for OneTopic {
    fn can_publish(&self, topic: &str, _: QoS, _: bool) -> bool {
        topic == self.0
    }

    fn can_subscribe(&self, filter: &str) -> SubscribeAccess {
        match filter == self.0 {
            true => SubscribeAccess::Allowed,
            false => SubscribeAccess::Denied,
        }
    }

    fn can_receive(&self, topic: &str) -> bool {
        topic == self.0
    }
}

fn world() -> World {
    World::with(1, ShardConfig::default(), Arc::new(Granted))
}

fn login(topic: Option<&'static str>, expires_in_ms: Option<u64>, world: &World) -> AuthOutcome {
    AuthOutcome::Allow(Box::new(ClientLogin {
        user_name: Some("alice".into()),
        grant: topic.map_or(LoginGrant::None, |topic| LoginGrant::Of(Arc::new(Topic(topic)))),
        expires_at_unix_ms: expires_in_ms.map(|ms| world.now.unix_ms + ms),
        ..ClientLogin::default()
    }))
}

/// Answers the pending question.
fn decide(world: &mut World, outcome: AuthOutcome) {
    let (client, attempt, _) = world.authentications.pop().expect("a pending question");
    world.decide(client, attempt, outcome);
}

/// Connects with the login, and keeps the session for an hour.
fn connect(world: &mut World, version: ProtocolVersion, clean_start: bool, outcome: AuthOutcome) -> usize {
    let client = world.open();
    let mut bytes = Vec::new();
    let mut writer = PropertyWriter::new(&mut bytes);
    if version == V5 {
        writer.put(Property::SessionExpiryInterval(3600));
        writer.put(Property::AuthenticationMethod(METHOD));
    }
    let properties = writer.finish();
    let connect = Connect {
        keep_alive: 0,
        ..connect_packet(version, "c", clean_start, properties, None)
    };
    world.send(client, &Packet::Connect(connect));
    decide(world, outcome);
    assert!(world.take(client)[0].contains("Success"));
    client
}

fn reauthenticate(world: &mut World, client: usize, outcome: AuthOutcome) {
    let mut bytes = Vec::new();
    let mut writer = PropertyWriter::new(&mut bytes);
    writer.put(Property::AuthenticationMethod(METHOD));
    let properties = writer.finish();
    let reason = ReasonCode::ReAuthenticate;
    world.send(client, &Packet::Auth(Auth { reason, properties }));
    decide(world, outcome);
}

fn user_name(world: &World) -> Option<String> {
    world.shards[0].inspect().client("c")?.user_name
}

#[test]
fn login_names_the_user_of_the_session() {
    let mut world = world();
    let outcome = login(None, None, &world);
    connect(&mut world, V5, true, outcome);
    assert_eq!(user_name(&world).as_deref(), Some("alice"));
}

#[test]
fn new_login_applies_to_data_streams() {
    let mut world = world();
    let outcome = login(Some("a"), None, &world);
    let client = connect(&mut world, V5, true, outcome);
    let stream = world.open_stream(client).unwrap();
    world.subscribe(stream, "a", AtLeastOnce);
    assert_eq!(world.take(stream), ["SUBACK 7 [01]"]);
    let outcome = login(Some("b"), None, &world);
    reauthenticate(&mut world, client, outcome);
    assert_eq!(world.stats().subscriptions, 0);
    world.subscribe(stream, "a", AtLeastOnce);
    world.subscribe(stream, "b", AtLeastOnce);
    assert_eq!(world.take(stream), ["SUBACK 7 [87]", "SUBACK 7 [01]"]);
}

#[test]
fn expired_login_ends_the_connection() {
    for version in [V3_1_1, V5] {
        let mut world = world();
        let outcome = login(None, Some(400_000), &world);
        let client = connect(&mut world, version, true, outcome);
        world.pass(399_000);
        assert!(!world.is_closed(client));
        world.pass(2_000);
        assert!(world.is_closed(client));
        let packets = world.take(client);
        match version {
            V5 => assert!(
                packets.iter().any(|packet| packet.contains("MaximumConnectTime")),
                "{packets:?}"
            ),
            _ => assert_eq!(packets, [""; 0]),
        }
    }
}

#[test]
fn expiry_of_an_earlier_connection_is_ignored() {
    let mut world = world();
    let outcome = login(None, Some(10_000), &world);
    let first = connect(&mut world, V5, true, outcome);
    world.cut(first);
    let outcome = login(None, None, &world);
    let second = connect(&mut world, V5, false, outcome);
    world.pass(60_000);
    assert!(!world.is_closed(second));
}

#[test]
fn reauthentication_renews_rights_and_expiry() {
    let mut world = world();
    let outcome = login(Some("first"), Some(10_000), &world);
    let client = connect(&mut world, V5, true, outcome);
    world.subscribe(client, "first", AtLeastOnce);
    let outcome = login(Some("second"), Some(60_000), &world);
    reauthenticate(&mut world, client, outcome);
    world.take(client);
    world.publish(client, "first", "x", AtLeastOnce);
    let packets = world.take(client);
    assert!(packets.iter().all(|packet| !packet.contains("PUBLISH")), "{packets:?}");
    world.subscribe(client, "second", AtLeastOnce);
    world.publish(client, "second", "y", AtLeastOnce);
    assert_eq!(world.payloads(client), ["y"]);
    world.pass(30_000);
    assert!(!world.is_closed(client));
    world.pass(31_000);
    assert!(world.is_closed(client));
}

#[test]
fn login_that_has_expired_already_ends_at_once() {
    let mut world = world();
    let outcome = login(None, Some(0), &world);
    let client = connect(&mut world, V5, true, outcome);
    world.pass(1);
    assert!(world.is_closed(client));
}

/// A restart forgets the grant, so the will must not wait for its publication.
#[test]
fn will_that_the_grant_denies_is_dropped_at_once() {
    for (topic, published) in [("allowed", true), ("denied", false)] {
        let mut world = world();
        let client = world.open();
        let mut bytes = Vec::new();
        PropertyWriter::new(&mut bytes).put(Property::SessionExpiryInterval(3600));
        let will = Will {
            qos: AtLeastOnce,
            retain: false,
            properties: Properties::EMPTY,
            topic,
            payload: b"gone",
        };
        let properties = Properties::from_validated(&bytes);
        let connect = connect_packet(V5, "c", true, properties, Some(will));
        world.send(client, &Packet::Connect(connect));
        let outcome = login(Some("allowed"), None, &world);
        decide(&mut world, outcome);
        assert_eq!(
            world.stats().drops[DropReason::NotAuthorizedToPublish as usize],
            u64::from(!published)
        );
        world.cut(client);
        world.pass(1);
        assert_eq!(world.stats().wills_published, u64::from(published), "{topic}");
    }
}

#[test]
fn forgotten_login_is_decided_at_the_next_one() {
    for (topic, subscriptions) in [("old", 1), ("new", 0)] {
        let mut world = world();
        let outcome = login(Some("old"), None, &world);
        let client = connect(&mut world, V5, true, outcome);
        world.subscribe(client, "old", AtLeastOnce);
        world.take(client);
        let now = world.now;
        let mut operator = world.shards[0].operator(now);
        let next = operator.forget_logins(SessionSlot::FIRST, |who| who.user_name.as_deref() == Some("bob"));
        assert_eq!(next, None);
        operator.forget_logins(SessionSlot::FIRST, |who| who.user_name.as_deref() == Some("alice"));
        // The rights of a forgotten login are unknown, so nothing is removed.
        operator.access_changed();
        world.settle();
        assert!(world.is_closed(client));
        assert!(world.take(client)[0].starts_with("DISCONNECT AdministrativeAction"));
        let count = |world: &World| world.shards[0].inspect().client("c").map(|client| client.subscriptions);
        assert_eq!(count(&world), Some(1));
        let outcome = login(Some(topic), None, &world);
        connect(&mut world, V5, false, outcome);
        assert_eq!(count(&world), Some(subscriptions), "{topic}");
    }
}
