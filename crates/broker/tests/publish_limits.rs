//! Tests the limits of the rate at which clients publish: of a client, a user, an address and a listener, on several
//! shards and in virtual time.

use std::sync::Arc;

use mqtt::ProtocolVersion::V5;
use mqtt::QoS::{AtLeastOnce, AtMostOnce, ExactlyOnce};
use mqtt::*;
use tidewire_broker::*;

use crate::world::{PublishFields, World, connect_packet};

const SHARDS: u16 = 2;

fn per_second(amount: u64) -> Option<TokenRate> {
    Some(TokenRate {
        amount,
        period_ms: 1000,
    })
}

fn messages(amount: u64) -> PublishRates {
    PublishRates {
        messages: per_second(amount),
        bytes: None,
    }
}

fn bytes(amount: u64) -> PublishRates {
    PublishRates {
        messages: None,
        bytes: per_second(amount),
    }
}

fn of_user(user: PublishRates) -> PublishLimits {
    PublishLimits {
        user,
        ..PublishLimits::default()
    }
}

fn config(publish_limits: PublishLimits) -> ShardConfig {
    ShardConfig {
        publish_limits,
        ..ShardConfig::default()
    }
}

fn world(limits: PublishLimits) -> World {
    World::with(SHARDS, config(limits), Arc::new(OpenAccess))
}

/// Connects clients of a user, as many on each shard.
fn clients(w: &mut World, user: &str, count: usize) -> Vec<usize> {
    let mut found = Vec::new();
    let mut on_shard = [0; SHARDS as usize];
    for n in 0.. {
        let id = format!("{user} {n}");
        let shard = usize::from(home_shard(&id, SHARDS).unwrap().0);
        if on_shard[shard] == count / usize::from(SHARDS) {
            continue;
        }
        on_shard[shard] += 1;
        let client = w.open();
        let connect = Connect {
            user_name: Some(user),
            ..connect_packet(V5, &id, true, Properties::EMPTY, None)
        };
        w.send(client, &Packet::Connect(connect));
        assert!(w.take(client)[0].starts_with("CONNACK Success"));
        found.push(client);
        if found.len() == count {
            break;
        }
    }
    found
}

/// Queues `count` QoS 1 messages on the connection of each client, in one write.
fn flood(w: &mut World, clients: &[usize], count: u16, payload: &str) {
    let mut all = Vec::new();
    for id in 1..=count {
        let publish = Publish {
            dup: false,
            qos: AtLeastOnce,
            retain: false,
            topic: "t",
            packet_id: PacketId::new(id),
            properties: Properties::EMPTY,
            payload: payload.as_bytes(),
        };
        Packet::Publish(publish).encode(V5, &mut all);
    }
    clients.iter().for_each(|client| w.send_bytes(*client, &all));
}

/// Returns the number of acknowledgements that each client has received since the last call.
fn acknowledged(w: &mut World, clients: &[usize]) -> Vec<usize> {
    clients.iter().map(|client| w.take(*client).len()).collect()
}

fn sum(counts: &[usize]) -> usize {
    counts.iter().sum()
}

#[test]
fn connections_of_a_user_share_its_rate_on_all_shards() {
    let mut w = world(of_user(messages(1000)));
    let alice = clients(&mut w, "alice", 4);
    let bob = clients(&mut w, "bob", 2);
    flood(&mut w, &alice, 8000, "x");
    let burst = acknowledged(&mut w, &alice);
    assert_eq!(sum(&burst), 1000, "one second's worth at once: {burst:?}");
    for _ in 0..10 {
        w.pass(1000);
        flood(&mut w, &bob, 1, "x");
        assert_eq!(acknowledged(&mut w, &bob), [1, 1], "another user is not slowed down");
    }
    let counts = acknowledged(&mut w, &alice);
    assert!((9_700..=10_100).contains(&sum(&counts)), "{counts:?}");
    assert!(
        counts.iter().all(|count| (2_000..=3_000).contains(count)),
        "a fair part for each connection: {counts:?}"
    );
    let slowed = w.stats().publishers_slowed;
    assert!(slowed[PublishLimit::UserMessages as usize] > 0);
    assert_eq!(slowed.iter().filter(|count| **count > 0).count(), 1);
}

#[test]
fn many_connections_of_a_slow_user_take_turns() {
    let mut w = world(of_user(messages(10)));
    let alice = clients(&mut w, "alice", 20);
    flood(&mut w, &alice, 200, "x");
    w.pass(1000);
    acknowledged(&mut w, &alice);
    w.pass(20_000);
    let counts = acknowledged(&mut w, &alice);
    assert!((196..=202).contains(&sum(&counts)), "{counts:?}");
    assert!(counts.iter().all(|count| (8..=12).contains(count)), "{counts:?}");
}

#[test]
fn bytes_of_a_user_include_messages_above_the_burst() {
    let mut w = world(of_user(bytes(10_000)));
    let alice = clients(&mut w, "alice", 2);
    flood(&mut w, &alice[..1], 1, &"x".repeat(50_000));
    assert_eq!(acknowledged(&mut w, &alice), [1, 0], "the bucket was full");
    flood(&mut w, &alice[1..], 3, &"x".repeat(40_000));
    w.pass(4_900);
    assert_eq!(acknowledged(&mut w, &alice), [0, 0]);
    w.pass(200);
    assert_eq!(acknowledged(&mut w, &alice), [0, 1], "after the debt");
    flood(&mut w, &alice[..1], 5, "small");
    w.pass(4_100);
    let small = acknowledged(&mut w, &alice);
    assert_eq!(small[1], 1, "{small:?}");
    w.pass(5_000);
    assert_eq!(sum(&acknowledged(&mut w, &alice)) + small[0], 6, "all have passed");
}

#[test]
fn client_and_user_limits_apply_together() {
    let limits = PublishLimits {
        client: messages(100),
        ..of_user(messages(150))
    };
    let mut w = world(limits);
    let alice = clients(&mut w, "alice", 2);
    flood(&mut w, &alice, 2000, "x");
    w.pass(1000);
    acknowledged(&mut w, &alice);
    w.pass(10_000);
    let both = acknowledged(&mut w, &alice);
    assert!((1450..=1520).contains(&sum(&both)), "the limit of the user: {both:?}");
    assert!(both.iter().all(|count| (600..=900).contains(count)), "{both:?}");
    w.cut(alice[1]);
    // The client has not used its whole rate before.
    w.pass(3000);
    acknowledged(&mut w, &alice[..1]);
    w.pass(4_000);
    let one = acknowledged(&mut w, &alice[..1]);
    assert!((390..=410).contains(&one[0]), "the limit of the client: {one:?}");
}

#[test]
fn address_and_listener_limit_all_users_together() {
    let listener = ListenerRates {
        label: "tcp.default".into(),
        rates: messages(100),
    };
    let of_listener = PublishLimits {
        listeners: vec![listener],
        ..PublishLimits::default()
    };
    let of_address = PublishLimits {
        address: messages(100),
        ..PublishLimits::default()
    };
    let cases = [
        (of_listener, PublishLimit::ListenerMessages, "listener:tcp.default"),
        (of_address, PublishLimit::AddressMessages, "address:10.0.0.1"),
    ];
    for (limits, expected, owner_name) in cases {
        let mut w = world(limits);
        let mut all = clients(&mut w, "alice", 2);
        all.extend(clients(&mut w, "bob", 2));
        flood(&mut w, &all, 1000, "x");
        assert_eq!(sum(&acknowledged(&mut w, &all)), 100);
        w.pass(10_000);
        let counts = acknowledged(&mut w, &all);
        assert!((960..=1010).contains(&sum(&counts)), "{counts:?}");
        assert!(w.stats().publishers_slowed[expected as usize] > 0);
        let reports: Vec<_> = w
            .events
            .iter()
            .filter_map(|event| match event {
                ConnectionEvent::Throttled { owner, limit, .. } => Some((&**owner, *limit)),
                _ => None,
            })
            .collect();
        assert_eq!(reports, [(owner_name, expected)], "one report per minute");
    }
}

#[test]
fn reconnecting_client_gets_no_new_burst_of_its_user() {
    let mut w = world(of_user(messages(100)));
    let mut passed = 0;
    for _ in 0..5 {
        let alice = clients(&mut w, "alice", 2);
        flood(&mut w, &alice, 300, "x");
        passed += sum(&acknowledged(&mut w, &alice));
        alice.iter().for_each(|client| w.cut(*client));
    }
    assert_eq!(passed, 100, "tokens that a closed connection has reserved are returned");
    w.pass(500);
    let alice = clients(&mut w, "alice", 2);
    flood(&mut w, &alice, 300, "x");
    assert_eq!(sum(&acknowledged(&mut w, &alice)), 50);
}

#[test]
fn other_packets_pass_and_the_client_is_shown_as_throttled() {
    let mut w = world(of_user(messages(1)));
    let alice = clients(&mut w, "alice", 2);
    let publish = |w: &mut World, client, id, qos| {
        let fields = PublishFields {
            id,
            ..PublishFields::default()
        };
        w.publish_with(client, "t", "x", qos, fields);
    };
    publish(&mut w, alice[0], 1, ExactlyOnce);
    w.send(alice[0], &Packet::PingReq);
    assert_eq!(w.take(alice[0]).len(), 2, "PUBREC and PINGRESP");
    publish(&mut w, alice[1], 1, AtMostOnce);
    let throttled = |w: &World| {
        let shards = w.shards.iter();
        let views = shards.flat_map(|shard| shard.inspect().clients(&ClientFilter::default(), SessionSlot(0), 10).0);
        let mut all: Vec<_> = views.filter_map(|view| view.throttled_by).collect();
        all.dedup();
        all
    };
    assert_eq!(throttled(&w), [PublishLimit::UserMessages]);
    w.pass(1100);
    assert_eq!(throttled(&w), []);
    assert_eq!(w.stats().messages_received, [1, 0, 1], "no message was dropped");
}

#[test]
fn changed_limits_apply_to_connected_clients_at_once() {
    let mut w = world(of_user(messages(1)));
    let alice = clients(&mut w, "alice", 2);
    flood(&mut w, &alice, 1000, "x");
    assert_eq!(sum(&acknowledged(&mut w, &alice)), 1);
    let apply = |w: &mut World, limits: PublishLimits| {
        let config = Arc::new(config(limits));
        w.shards
            .iter_mut()
            .for_each(|shard| shard.reconfigure(w.now, config.clone()));
        w.settle();
    };
    apply(&mut w, of_user(messages(100)));
    assert_eq!(sum(&acknowledged(&mut w, &alice)), 100);
    w.pass(1000);
    let counts = acknowledged(&mut w, &alice);
    assert!((97..=102).contains(&sum(&counts)), "{counts:?}");
    apply(&mut w, PublishLimits::default());
    let counts = acknowledged(&mut w, &alice);
    assert!(
        sum(&counts) >= 2000 - 1 - 202,
        "without a limit, the rest passes: {counts:?}"
    );
    assert_eq!(w.stats().messages_received[1], 2000);
}

#[test]
fn raised_limit_does_not_end_the_keep_alive_time_of_a_paused_client() {
    let hourly = PublishRates {
        messages: Some(TokenRate {
            amount: 1,
            period_ms: 3_600_000,
        }),
        bytes: None,
    };
    let mut w = world(of_user(hourly));
    let alice = clients(&mut w, "alice", 2);
    flood(&mut w, &alice, 10, "x");
    w.pass(1_000_000);
    // The timers run before the server reads what the clients have sent.
    w.now.monotonic_ms += 200_000;
    let config = Arc::new(config(PublishLimits::default()));
    for shard in &mut w.shards {
        shard.reconfigure(w.now, config.clone());
        shard.run_timers(w.now);
    }
    w.settle();
    assert!(alice.iter().all(|client| !w.is_closed(*client)));
    assert_eq!(sum(&acknowledged(&mut w, &alice)), 20);
}
