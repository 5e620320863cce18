//! Attacks on what all clients need: the journal, the delayed messages and the memory. The attacker has one account.
//! During each attack, the QoS 1 messages of another user to a durable session are acknowledged with success.
//!
//! Each attack on messages also runs with a share of 100 %, which shows that it reaches the limit of the node.

use super::Growth;
use super::access::access_control::PASSWORDS;
use crate::support::api::Api;
use crate::support::*;

const QUOTA_EXCEEDED: u8 = 0x97;
/// Delay that lasts longer than any test.
const DELAY_S: u32 = 4_000_000;

fn start(limits: &str) -> Server {
    let toml = format!(
        "{limits}[access]\nanonymous = \"never\"\npassword_file = \"{{dir}}/users\"\n\
         [durability]\nmax_bytes = \"64MiB\"\nsegment_bytes = \"1MiB\"\n"
    );
    Server::start(&Config::new(toml).file("users", PASSWORDS))
}

fn share_of(percent: u8) -> String {
    format!("[limits]\nuser_share = {percent}\nclient_share = {percent}\n")
}

pub fn connect_as(user: &str) -> Connect {
    Connect::new(V5, unique(user)).user(user, "secret")
}

/// Another user: a publisher and its subscriber with a durable session.
struct Bystander {
    publisher: Peer,
    subscriber: Peer,
    sent: u32,
    rejected: u32,
}

impl Bystander {
    fn of(server: &Server) -> Bystander {
        let mut subscriber = server.session(&connect_as("bob").persistent());
        subscriber.subscribe("bob", 1);
        Bystander {
            publisher: server.session(&connect_as("bob")),
            subscriber,
            sent: 0,
            rejected: 0,
        }
    }

    /// Publishes a message and counts it. If it is acknowledged with success, the subscriber must receive it.
    fn publish(&mut self) {
        self.sent += 1;
        let text = format!("message {}", self.sent);
        if self.publisher.publish(&Publish::new("bob", &text).qos(1)) == 0 {
            assert_eq!(self.subscriber.receive().payload_str(), text);
        } else {
            self.rejected += 1;
        }
    }

    #[track_caller]
    fn assert_all_acknowledged(&self) {
        println!("{} of {} messages of the other user rejected", self.rejected, self.sent);
        assert_eq!(self.rejected, 0, "messages of the other user were rejected");
    }
}

/// Sends retained messages of 200 kB and returns how many were accepted, and the other user.
fn fill_with_retained(server: &Server, count: usize) -> (usize, Bystander) {
    let mut bystander = Bystander::of(server);
    let mut attacker = server.session(&connect_as("alice"));
    let payload = noise(1, 200_000);
    let mut accepted = 0;
    for n in 0..count {
        let reason = attacker.publish(&Publish::new(format!("fill/{n}"), &payload).qos(1).retain());
        assert!(reason < 0x80 || reason == QUOTA_EXCEEDED, "{reason:#04x}");
        accepted += usize::from(reason < 0x80);
        if n % 10 == 0 {
            bystander.publish();
        }
    }
    bystander.publish();
    println!("{accepted} of {count} retained messages accepted");
    (accepted, bystander)
}

#[test]
fn retained_messages_of_one_client_leave_the_journal_to_others() {
    let mut server = start("");
    let (accepted, bystander) = fill_with_retained(&server, 762);
    bystander.assert_all_acknowledged();
    // A quarter of 64 MiB.
    assert!((40..=84).contains(&accepted), "{accepted}");
    server.wait_until("the log names the user and the option", |server| {
        let log = server.log();
        let names = ["user:alice", "client_id=", "journal_bytes", "limits.user_share"];
        names.into_iter().all(|name| log.contains(name))
    });
    drop(bystander);
    server.kill();
    server.spawn_again();
    server.wait_until_ready();
    let mut attacker = server.session(&connect_as("alice"));
    let more = Publish::new("more", noise(1, 200_000)).qos(1).retain();
    assert_eq!(
        attacker.publish(&more),
        QUOTA_EXCEEDED,
        "the share is used after a restart too"
    );
    let mut bystander = Bystander::of(&server);
    bystander.publish();
    bystander.assert_all_acknowledged();
    (0..10).for_each(|n| _ = attacker.publish(&Publish::new(format!("fill/{n}"), "").qos(1).retain()));
    assert!(attacker.publish(&more) < 0x80, "deleting frees the share");
}

#[test]
fn share_of_100_percent_lets_one_client_fill_the_journal() {
    let server = start(&share_of(100));
    let (_, bystander) = fill_with_retained(&server, 762);
    println!(
        "{} of {} messages of the other user rejected",
        bystander.rejected, bystander.sent
    );
    assert!(
        bystander.rejected > 0,
        "the attack does not reach the limit of the journal"
    );
}

/// Subscribes with a session that never ends and never connects again. Then publishes 320 messages of 200 kB to it.
/// Returns the client id, the payload and the other user.
fn fill_a_queue(server: &Server) -> (Connect, Vec<u8>, Bystander) {
    let mut bystander = Bystander::of(server);
    let endless = connect_as("alice").clean(false);
    let endless = endless.property(prop::u32(prop::SESSION_EXPIRY_INTERVAL, u32::MAX));
    let mut subscriber = server.session(&endless);
    subscriber.subscribe("fill", 1);
    subscriber.disconnect();
    let mut attacker = server.session(&connect_as("alice"));
    let payload = noise(4, 200_000);
    for n in 0..320 {
        let reason = attacker.publish(&Publish::new("fill", &payload).qos(1));
        assert!(reason < 0x80 || reason == QUOTA_EXCEEDED, "{reason:#04x}");
        if n % 10 == 0 {
            bystander.publish();
        }
    }
    bystander.publish();
    (endless, payload, bystander)
}

/// Returns the number of messages that were dropped for a reason.
fn dropped(server: &Server, reason: &str) -> u64 {
    let (_, metrics) = server.http_get("/metrics");
    let name = format!("tidewire_broker_messages_dropped_total{{reason=\"{reason}\"}} ");
    let value = metrics.split(&name).nth(1).and_then(|rest| rest.lines().next());
    value.and_then(|n| n.parse().ok()).expect("the metric exists")
}

/// Returns the number and the bytes of the queued messages of all sessions.
fn queued(server: &Server) -> (u64, u64) {
    let totals = Api::of(server).get("/api/v1/stats")["queued"].clone();
    let number = |name: &str| totals[name].as_u64().expect("a number");
    (number("messages"), number("bytes"))
}

#[test]
fn queue_of_an_offline_session_leaves_the_journal_to_others() {
    const LIMIT: u64 = 16 << 20;
    let mut server = start("[mqtt]\nmax_session_expiry = \"unlimited\"\nmax_queued_bytes = \"16MiB\"\n");
    let (endless, payload, bystander) = fill_a_queue(&server);
    bystander.assert_all_acknowledged();
    let before = queued(&server);
    println!("{} messages are queued, {} bytes", before.0, before.1);
    // The size is rounded up by at most an eighth.
    assert!((70..=83).contains(&before.0), "{before:?}");
    assert!(before.1 <= LIMIT && before.1 >= before.0 * 200_000, "{before:?}");
    assert_eq!(
        dropped(&server, "queue_full_by_bytes"),
        320 - before.0,
        "dropped messages are counted"
    );
    drop(bystander);
    server.kill();
    server.spawn_again();
    server.wait_until_ready();
    assert_eq!(queued(&server), before, "the queue counts the same after a restart");
    let mut attacker = server.session(&connect_as("alice"));
    assert_eq!(attacker.publish(&Publish::new("fill", &payload).qos(1)), 0);
    assert_eq!(queued(&server), before, "another message replaces the oldest");
    let mut subscriber = server.session(&endless);
    for _ in 0..before.0 {
        assert_eq!(subscriber.receive().payload, payload);
    }
    server.wait_until("nothing is queued", |server| queued(server) == (0, 0));
}

#[test]
fn queues_of_all_sessions_of_a_user_leave_the_journal_to_others() {
    const LIMIT: u64 = 16 << 20;
    let mut server =
        start("[mqtt]\nmax_session_expiry = \"unlimited\"\n[limits]\nmax_queued_bytes_per_user = \"16MiB\"\n");
    let mut bystander = Bystander::of(&server);
    // The queue of each session could have 64 MiB.
    for n in 0..4 {
        let endless = connect_as("alice").clean(false);
        let endless = endless.property(prop::u32(prop::SESSION_EXPIRY_INTERVAL, u32::MAX));
        let mut subscriber = server.session(&endless);
        subscriber.subscribe(format!("fill/{n}"), 1);
        subscriber.disconnect();
    }
    let mut attacker = server.session(&connect_as("alice"));
    let payload = noise(5, 200_000);
    for n in 0..320 {
        assert_eq!(
            attacker.publish(&Publish::new(format!("fill/{}", n % 4), &payload).qos(1)),
            0
        );
        if n % 10 == 0 {
            bystander.publish();
        }
    }
    bystander.publish();
    bystander.assert_all_acknowledged();
    server.wait_until("all messages are queued or dropped", |server| {
        queued(server).0 + dropped(server, "user_queue_full") == 320
    });
    let before = queued(&server);
    println!("{} messages are queued, {} bytes", before.0, before.1);
    assert!((70..=83).contains(&before.0), "{before:?}");
    assert!(before.1 <= LIMIT && before.1 >= before.0 * 200_000, "{before:?}");
    drop(bystander);
    server.kill();
    server.spawn_again();
    server.wait_until_ready();
    assert_eq!(queued(&server), before, "the queues count the same after a restart");
    let mut attacker = server.session(&connect_as("alice"));
    assert_eq!(attacker.publish(&Publish::new("fill/0", &payload).qos(1)), 0);
    server.wait_until("another message replaces the oldest of its session", |server| {
        dropped(server, "user_queue_full") == 1 && queued(server) == before
    });
}

#[test]
fn unlimited_queue_lets_one_client_fill_the_journal() {
    let server = start("[mqtt]\nmax_session_expiry = \"unlimited\"\nmax_queued_bytes = \"unlimited\"\n");
    let (_, _, bystander) = fill_a_queue(&server);
    println!(
        "{} of {} messages of the other user rejected",
        bystander.rejected, bystander.sent
    );
    assert!(
        bystander.rejected > 0,
        "the attack does not reach the limit of the journal"
    );
}

/// Fills the delayed messages. Returns the number of accepted ones, and how many of 16 other clients could delay one.
fn fill_with_delayed(server: &Server) -> (usize, usize) {
    let mut attacker = server.session(&connect_as("alice"));
    let delayed = |n: usize| Publish::new(format!("$delayed/{DELAY_S}/t/{n}"), "x").qos(1);
    let accepted = (0..5000).filter(|n| attacker.publish(&delayed(*n)) < 0x80).count();
    // The clients are on all workers.
    let others = (0..16).filter(|n| server.session(&connect_as("bob")).publish(&delayed(*n)) < 0x80);
    let others = others.count();
    println!("{accepted} of 5000 delayed messages accepted, then one from {others} of 16 other clients");
    (accepted, others)
}

const DELAYED_MAX: &str = "[mqtt]\nmax_delayed_messages = 4000\n";

#[test]
fn delayed_messages_of_one_client_leave_space_for_others() {
    let server = start(DELAYED_MAX);
    let mut bystander = Bystander::of(&server);
    bystander.publish();
    assert_eq!(fill_with_delayed(&server), (1000, 16));
    bystander.publish();
    bystander.assert_all_acknowledged();
}

#[test]
fn share_of_100_percent_lets_one_client_use_all_delayed_messages() {
    let server = start(&format!("{DELAYED_MAX}{}", share_of(100)));
    assert_eq!(fill_with_delayed(&server), (4000, 0));
}

#[test]
fn retained_messages_of_one_client_use_bounded_memory() {
    let server = start("[retained]\nmax_bytes = \"32MiB\"\n[limits]\nuser_share = 25\n");
    let mut bystander = Bystander::of(&server);
    let mut attacker = server.session(&connect_as("alice"));
    let mut growth = Growth::of(&server);
    let payload = noise(2, 256_000);
    let accepted = (0..1000).filter(|n| {
        if n % 50 == 0 {
            bystander.publish();
            growth.look();
        }
        attacker.publish(&Publish::new(format!("fill/{n}"), &payload).qos(1).retain()) < 0x80
    });
    let accepted = accepted.count();
    println!("{accepted} of 1000 retained messages accepted");
    assert!((16..=32).contains(&accepted), "{accepted}");
    // A quarter of the limit, and what a burst of large messages needs.
    growth.assert_below_mib(64);
    bystander.assert_all_acknowledged();
}

#[test]
fn endless_sessions_of_one_user_use_bounded_memory() {
    let server = start("[mqtt]\nmax_session_expiry = \"unlimited\"\n[limits]\nmax_session_bytes_per_user = \"8MiB\"\n");
    let mut bystander = Bystander::of(&server);
    let mut growth = Growth::of(&server);
    let will = noise(3, 60_000);
    let accepted = (0..2000).filter(|n| {
        if n % 100 == 0 {
            bystander.publish();
            growth.look();
        }
        let connect = Connect::new(V5, format!("{n:0>60000}")).user("alice", "secret");
        let endless = connect
            .property(prop::u32(prop::SESSION_EXPIRY_INTERVAL, u32::MAX))
            .will(Will::new("will", &will).property(prop::u32(prop::WILL_DELAY_INTERVAL, 100_000)));
        let connack = server.connect().handshake(&endless);
        assert!([0, QUOTA_EXCEEDED].contains(&connack.code), "{:#04x}", connack.code);
        connack.code == 0
    });
    let accepted = accepted.count();
    println!("{accepted} of 2000 sessions accepted");
    assert!(accepted < 200, "{accepted}");
    growth.assert_below_mib(64);
    bystander.assert_all_acknowledged();
    server.session(&connect_as("bob"));
}
