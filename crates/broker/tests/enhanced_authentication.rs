//! Tests enhanced authentication of MQTT 5 with an authenticator that needs two steps: CONNECT, AUTH, AUTH, CONNACK.
//! The same exchange is also tested while connected. The test makes the decisions in place of the driver.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use crate::world::{World, connect_packet};
use mqtt::ProtocolVersion::V5;
use mqtt::*;
use tidewire_broker::owners::OwnerLimit;
use tidewire_broker::*;

const METHOD: &str = "CHALLENGE";

/// Supports two methods and makes no decision immediately.
struct Asks;

impl AccessControl for Asks {
    fn authenticate_now(&self, credentials: &ConnectCredentials) -> Option<AuthOutcome> {
        let open = AuthOutcome::Allow(Box::default());
        credentials.method.is_none().then_some(open)
    }

    fn supports_auth_method(&self, method: &str) -> bool {
        [METHOD, "OTHER"].contains(&method)
    }

    fn session(&self, _: &ClientIdentity) -> Option<Arc<dyn SessionAccess>> {
        None
    }
}

fn world() -> World {
    World::with(1, ShardConfig::default(), Arc::new(Asks))
}

fn properties<'a>(method: Option<&'a str>, data: Option<&'a [u8]>, bytes: &'a mut Vec<u8>) -> Properties<'a> {
    let mut writer = PropertyWriter::new(bytes);
    if let Some(method) = method {
        writer.put(Property::AuthenticationMethod(method));
    }
    if let Some(data) = data {
        writer.put(Property::AuthenticationData(data));
    }
    writer.finish()
}

/// Sends a CONNECT that names the method.
fn begin(world: &mut World, client_id: &str) -> usize {
    begin_with(world, client_id, b"hello")
}

fn begin_with(world: &mut World, client_id: &str, data: &[u8]) -> usize {
    let client = world.open();
    let mut bytes = Vec::new();
    let properties = properties(Some(METHOD), Some(data), &mut bytes);
    world.send(
        client,
        &Packet::Connect(connect_packet(V5, client_id, true, properties, None)),
    );
    client
}

fn auth(world: &mut World, client: usize, reason: ReasonCode, method: Option<&str>, data: &[u8]) {
    let mut bytes = Vec::new();
    let properties = properties(method, Some(data), &mut bytes);
    world.send(client, &Packet::Auth(Auth { reason, properties }));
}

/// Answers the pending authentication with `outcome`. Returns its authentication data.
#[track_caller]
fn decide(world: &mut World, outcome: AuthOutcome) -> Vec<u8> {
    let (client, attempt, credentials) = world.authentications.pop().expect("a pending authentication");
    assert_eq!(credentials.method.as_deref(), Some(METHOD));
    world.decide(client, attempt, outcome);
    credentials.data.map(Vec::from).unwrap_or_default()
}

fn allow(data: &[u8]) -> AuthOutcome {
    AuthOutcome::Allow(Box::new(ClientLogin {
        data: Some(data.into()),
        ..ClientLogin::default()
    }))
}

fn ask(data: &[u8]) -> AuthOutcome {
    AuthOutcome::Continue {
        data: data.into(),
        exchange: None,
    }
}

/// Asks the client, with a state that the server passes back.
fn ask_with(state: u32) -> AuthOutcome {
    AuthOutcome::Continue {
        data: b"again".as_slice().into(),
        exchange: Some(AuthExchange(Arc::new(state))),
    }
}

/// Returns the state that the pending authentication has.
#[track_caller]
fn state(world: &World) -> Option<u32> {
    let (_, _, credentials) = world.authentications.last().expect("a pending authentication");
    let AuthExchange(state) = credentials.exchange.as_ref()?;
    Some(*state.downcast_ref().unwrap())
}

fn deny() -> AuthOutcome {
    AuthOutcome::Deny {
        reason: ReasonCode::NotAuthorized,
        detail: "the answer is wrong",
    }
}

/// Returns type, reason code and properties of the only packet that the client has received.
#[track_caller]
fn only_packet(world: &mut World, client: usize) -> (PacketType, ReasonCode, Vec<String>) {
    let bytes = world.take_bytes(client);
    let Ok(Decoded::Complete { packet, size }) = decode(&bytes, V5, usize::MAX) else {
        panic!("not a packet: {bytes:02x?}");
    };
    assert_eq!(size, bytes.len(), "more than one packet: {bytes:02x?}");
    let (reason, properties) = match &packet {
        Packet::Auth(auth) => (auth.reason, auth.properties),
        Packet::ConnAck(connack) => (connack.reason, connack.properties),
        Packet::Disconnect(disconnect) => (disconnect.reason, disconnect.properties),
        other => panic!("{other:?}"),
    };
    let properties = properties.iter().map(|property| format!("{property:?}")).collect();
    (packet.packet_type(), reason, properties)
}

fn method_and_data(data: &[u8]) -> Vec<String> {
    let both = [
        Property::AuthenticationMethod(METHOD),
        Property::AuthenticationData(data),
    ];
    both.iter().map(|property| format!("{property:?}")).collect()
}

/// Returns a client that has completed the exchange.
fn connected(world: &mut World, client_id: &str) -> usize {
    let client = begin(world, client_id);
    decide(world, allow(b"welcome"));
    assert_eq!(only_packet(world, client).1, ReasonCode::Success);
    client
}

/// AUTH has the method and the data, and no other property [MQTT-3.15.2-2], [MQTT-3.15.2-3].
#[test]
fn every_step_names_the_method_of_connect() {
    let mut world = world();
    let client = begin(&mut world, "c");
    assert!(world.take_bytes(client).is_empty(), "nothing is sent before a decision");
    assert_eq!(decide(&mut world, ask(b"challenge")), b"hello");
    let asked = (
        PacketType::Auth,
        ReasonCode::ContinueAuthentication,
        method_and_data(b"challenge"),
    );
    assert_eq!(only_packet(&mut world, client), asked);

    auth(
        &mut world,
        client,
        ReasonCode::ContinueAuthentication,
        Some(METHOD),
        b"it is me",
    );
    assert_eq!(decide(&mut world, allow(b"welcome")), b"it is me");
    let (packet_type, reason, properties) = only_packet(&mut world, client);
    assert_eq!((packet_type, reason), (PacketType::ConnAck, ReasonCode::Success));
    for expected in method_and_data(b"welcome") {
        assert!(properties.contains(&expected), "{properties:?}");
    }
}

#[test]
fn rejection_closes_at_any_step() {
    let mut world = world();
    for steps in 0..3 {
        let client = begin(&mut world, "c");
        for _ in 0..steps {
            decide(&mut world, ask(b"again"));
            world.take_bytes(client);
            auth(
                &mut world,
                client,
                ReasonCode::ContinueAuthentication,
                Some(METHOD),
                b"answer",
            );
        }
        decide(&mut world, deny());
        let (packet_type, reason, _) = only_packet(&mut world, client);
        assert_eq!((packet_type, reason), (PacketType::ConnAck, ReasonCode::NotAuthorized));
        assert!(world.is_closed(client));
    }
}

#[test]
fn client_must_continue_with_its_method_and_0x18() {
    let continues = ReasonCode::ContinueAuthentication;
    for (reason, method) in [
        (continues, Some("OTHER")),
        (continues, None),
        (ReasonCode::ReAuthenticate, Some(METHOD)),
        (ReasonCode::Success, Some(METHOD)),
    ] {
        let mut world = world();
        let client = begin(&mut world, "c");
        decide(&mut world, ask(b"challenge"));
        world.take_bytes(client);
        auth(&mut world, client, reason, method, b"it is me");
        assert!(world.is_closed(client), "{reason:?} {method:?}");
        let (packet_type, code, _) = only_packet(&mut world, client);
        assert_eq!(
            packet_type,
            PacketType::ConnAck,
            "no DISCONNECT before a successful CONNACK [MQTT-3.14.0-1]"
        );
        assert!(code.is_error());
        assert!(world.authentications.is_empty());
    }
}

#[test]
fn only_auth_and_disconnect_are_taken_before_connack() {
    let mut world = world();
    let client = begin(&mut world, "early");
    decide(&mut world, ask(b"challenge"));
    world.take_bytes(client);
    let publish = [0x30, 0x05, 0x00, 0x01, b't', 0x00, b'x'];
    world.send_bytes(client, &publish);
    assert!(world.is_closed(client));
    assert!(only_packet(&mut world, client).1.is_error());

    let client = begin(&mut world, "gives up");
    decide(&mut world, ask(b"challenge"));
    world.take_bytes(client);
    world.disconnect(client);
    assert!(world.is_closed(client));
    assert!(world.take_bytes(client).is_empty());
    assert_eq!(world.stats().sessions, 0);
}

#[test]
fn client_can_reauthenticate_while_messages_flow() {
    let mut world = world();
    let client = connected(&mut world, "c");
    world.subscribe(client, "t", QoS::AtMostOnce);
    let publisher = world.connect(V5, "plain", true, &[]);
    world.take_bytes(client);
    auth(
        &mut world,
        client,
        ReasonCode::ReAuthenticate,
        Some(METHOD),
        b"me again",
    );
    world.publish(publisher, "t", "meanwhile", QoS::AtMostOnce);
    assert_eq!(world.payloads(client), ["meanwhile"]);
    assert_eq!(decide(&mut world, ask(b"really?")), b"me again");
    let asked = (
        PacketType::Auth,
        ReasonCode::ContinueAuthentication,
        method_and_data(b"really?"),
    );
    assert_eq!(only_packet(&mut world, client), asked);
    auth(
        &mut world,
        client,
        ReasonCode::ContinueAuthentication,
        Some(METHOD),
        b"yes",
    );
    decide(&mut world, allow(b"fine"));
    let done = (PacketType::Auth, ReasonCode::Success, method_and_data(b"fine"));
    assert_eq!(only_packet(&mut world, client), done);
    assert!(!world.is_closed(client));
}

#[test]
fn failed_reauthentication_closes_the_connection() {
    let mut world = world();
    let client = connected(&mut world, "c");
    auth(
        &mut world,
        client,
        ReasonCode::ReAuthenticate,
        Some(METHOD),
        b"me again",
    );
    decide(&mut world, deny());
    let (packet_type, reason, _) = only_packet(&mut world, client);
    assert_eq!(
        (packet_type, reason),
        (PacketType::Disconnect, ReasonCode::NotAuthorized)
    );
    assert!(world.is_closed(client));
}

#[test]
fn reauthentication_requires_the_method_of_connect() {
    let mut world = world();
    for (method, is_plain) in [(Some("OTHER"), false), (None, false), (Some(METHOD), true)] {
        let client = if is_plain {
            world.connect(V5, "plain", true, &[])
        } else {
            connected(&mut world, "c")
        };
        auth(&mut world, client, ReasonCode::ReAuthenticate, method, b"me again");
        let (packet_type, reason, _) = only_packet(&mut world, client);
        assert_eq!(
            (packet_type, reason),
            (PacketType::Disconnect, ReasonCode::ProtocolError)
        );
        assert!(world.is_closed(client) && world.authentications.is_empty());
    }
}

#[test]
fn second_auth_during_a_step_is_rejected() {
    let mut world = world();
    for reason in [ReasonCode::ReAuthenticate, ReasonCode::ContinueAuthentication] {
        let client = connected(&mut world, "c");
        auth(
            &mut world,
            client,
            ReasonCode::ReAuthenticate,
            Some(METHOD),
            b"me again",
        );
        auth(&mut world, client, reason, Some(METHOD), b"and again");
        assert!(world.is_closed(client));
        let (packet_type, code, _) = only_packet(&mut world, client);
        assert_eq!((packet_type, code), (PacketType::Disconnect, ReasonCode::ProtocolError));
        assert_eq!(
            world.authentications.len(),
            1,
            "only the first AUTH reached the authenticator"
        );
        world.authentications.clear();
    }
}

#[test]
fn state_of_an_exchange_is_passed_back_once() {
    let mut world = world();
    let client = begin(&mut world, "c");
    let continues = ReasonCode::ContinueAuthentication;
    assert_eq!(state(&world), None);
    for step in 0..3 {
        decide(&mut world, ask_with(step));
        auth(&mut world, client, continues, Some(METHOD), b"answer");
        assert_eq!(state(&world), Some(step));
    }
    decide(&mut world, ask(b"without a state"));
    auth(&mut world, client, continues, Some(METHOD), b"answer");
    assert_eq!(state(&world), None);
    decide(&mut world, allow(b"welcome"));

    world.take_bytes(client);
    auth(
        &mut world,
        client,
        ReasonCode::ReAuthenticate,
        Some(METHOD),
        b"me again",
    );
    assert_eq!(state(&world), None);
    decide(&mut world, ask_with(7));
    auth(&mut world, client, continues, Some(METHOD), b"answer");
    assert_eq!(state(&world), Some(7));
    decide(&mut world, allow(b"fine"));
    assert!(!world.is_closed(client));
}

#[test]
fn abandoned_exchange_is_rejected_in_time() {
    let mut world = world();
    let client = begin(&mut world, "slow");
    decide(&mut world, ask(b"challenge"));
    world.pass(15_000);
    auth(
        &mut world,
        client,
        ReasonCode::ContinueAuthentication,
        Some(METHOD),
        b"half",
    );
    decide(&mut world, ask(b"challenge"));
    world.take_bytes(client);
    world.pass(14_000);
    assert!(!world.is_closed(client));
    world.pass(2_000);
    assert!(world.is_closed(client), "a further step does not extend the time");
    let (packet_type, reason, _) = only_packet(&mut world, client);
    assert_eq!((packet_type, reason), (PacketType::ConnAck, ReasonCode::NotAuthorized));
    assert_eq!(world.stats().sessions, 0);
}

#[test]
fn time_of_the_exchange_ends_with_connack() {
    let mut world = world();
    let client = begin(&mut world, "quick");
    decide(&mut world, ask(b"challenge"));
    world.take_bytes(client);
    world.pass(20_000);
    auth(
        &mut world,
        client,
        ReasonCode::ContinueAuthentication,
        Some(METHOD),
        b"it is me",
    );
    decide(&mut world, allow(b"welcome"));
    assert_eq!(only_packet(&mut world, client).0, PacketType::ConnAck);
    // Nor does it apply to a re-authentication.
    auth(
        &mut world,
        client,
        ReasonCode::ReAuthenticate,
        Some(METHOD),
        b"me again",
    );
    decide(&mut world, ask(b"challenge"));
    world.pass(40_000);
    assert!(!world.is_closed(client));
}

#[test]
fn user_name_of_the_login_is_that_of_the_session() {
    let mut world = world();
    let client = begin(&mut world, "c");
    let login = |user_name: &str| {
        AuthOutcome::Allow(Box::new(ClientLogin {
            user_name: Some(user_name.into()),
            ..ClientLogin::default()
        }))
    };
    decide(&mut world, login("alice"));
    world.take_bytes(client);
    auth(
        &mut world,
        client,
        ReasonCode::ReAuthenticate,
        Some(METHOD),
        b"me again",
    );
    let (_, _, credentials) = world.authentications.last().unwrap();
    assert_eq!(credentials.user_name.as_deref(), Some("alice"));
    decide(&mut world, login("alice"));
    assert_eq!(only_packet(&mut world, client).1, ReasonCode::Success);
    auth(&mut world, client, ReasonCode::ReAuthenticate, Some(METHOD), b"not me");
    decide(&mut world, login("bob"));
    let (packet_type, reason, _) = only_packet(&mut world, client);
    assert_eq!(
        (packet_type, reason),
        (PacketType::Disconnect, ReasonCode::NotAuthorized)
    );
    assert!(world.is_closed(client));
}

/// Decides each step at once: a challenge for CONNECT and for a re-authentication, and success for the answer.
struct DecidesAtOnce;

impl AccessControl for DecidesAtOnce {
    fn authenticate_now(&self, credentials: &ConnectCredentials) -> Option<AuthOutcome> {
        Some(match credentials.data.as_deref() {
            Some(b"hello") => ask(b"challenge"),
            Some(b"answer") => allow(b"welcome"),
            _ => deny(),
        })
    }

    fn supports_auth_method(&self, method: &str) -> bool {
        method == METHOD
    }

    fn session(&self, _: &ClientIdentity) -> Option<Arc<dyn SessionAccess>> {
        None
    }
}

#[test]
fn steps_that_are_decided_at_once_ask_no_thread() {
    let mut world = World::with(1, ShardConfig::default(), Arc::new(DecidesAtOnce));
    let client = begin(&mut world, "c");
    assert_eq!(only_packet(&mut world, client).1, ReasonCode::ContinueAuthentication);
    let continued = ReasonCode::ContinueAuthentication;
    auth(&mut world, client, continued, Some(METHOD), b"answer");
    assert_eq!(only_packet(&mut world, client).0, PacketType::ConnAck);
    // The same exchange while connected.
    auth(&mut world, client, ReasonCode::ReAuthenticate, Some(METHOD), b"hello");
    assert_eq!(only_packet(&mut world, client).1, ReasonCode::ContinueAuthentication);
    auth(&mut world, client, continued, Some(METHOD), b"answer");
    assert_eq!(only_packet(&mut world, client).1, ReasonCode::Success);
    auth(&mut world, client, ReasonCode::ReAuthenticate, Some(METHOD), b"wrong");
    assert!(world.is_closed(client));
    assert!(world.authentications.is_empty());
}

/// Begins large exchanges until the server rejects one. Returns the clients of the others.
fn fill(world: &mut World) -> Vec<usize> {
    let mut clients = Vec::new();
    while clients.len() < 99 {
        let client = begin_with(world, &format!("c{:02}", clients.len()), &[b'x'; 2048]);
        if world.is_closed(client) {
            let (packet_type, reason, _) = only_packet(world, client);
            assert_eq!((packet_type, reason), (PacketType::ConnAck, ReasonCode::ServerBusy));
            return clients;
        }
        decide(world, ask(b"challenge"));
        clients.push(client);
    }
    panic!("the memory of exchanges has no limit");
}

fn answer(world: &mut World, client: usize) {
    auth(
        world,
        client,
        ReasonCode::ContinueAuthentication,
        Some(METHOD),
        b"it is me",
    );
}

#[test]
fn memory_of_exchanges_is_bounded_and_released() {
    let config = ShardConfig {
        max_exchange_bytes: 50_000,
        ..ShardConfig::default()
    };
    let mut world = World::with(2, config, Arc::new(Asks));
    let clients = fill(&mut world);
    assert!(clients.len() > 2, "{}", clients.len());
    world.connect(V5, "plain", true, &[]);
    let small = begin(&mut world, "small");
    assert!(!world.is_closed(small), "small exchanges do not count");
    decide(&mut world, ask(b"challenge"));
    for client in &clients {
        world.cut(*client);
    }
    let ends: [fn(&mut World, usize); 5] = [
        |world, client| world.disconnect(client),
        |world, client| world.send_bytes(client, &[0xC0, 0x00]),
        |world, client| {
            answer(world, client);
            world.cut(client);
            world.authentications.clear();
        },
        |world, client| {
            answer(world, client);
            decide(world, deny());
        },
        |world, client| {
            answer(world, client);
            decide(world, allow(b"welcome"));
        },
    ];
    for (round, end) in ends.into_iter().enumerate() {
        let again = fill(&mut world);
        assert_eq!(again.len(), clients.len(), "after end {round}");
        for client in again {
            end(&mut world, client);
        }
    }
    assert_eq!(fill(&mut world).len(), clients.len());
    world.pass(31_000);
    assert_eq!(fill(&mut world).len(), clients.len(), "after the time of an exchange");
    assert_eq!(world.stats().limit_rejections[OwnerLimit::ExchangeBytes as usize], 8);
}
