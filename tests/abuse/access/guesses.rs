//! Attackers guess passwords and access tokens on many connections.
//!
//! Before guesses were limited, 60 connections guessed 57 passwords per second or 5,900 tokens per second for ever, the
//! first login of another user took seconds, and messages of other clients were late.

use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::devices::rest::Rest;
use crate::support::api::Api;
use crate::support::http::request;
use crate::support::*;

/// Parallel connections of an attacker.
const CONNECTIONS: usize = 60;

/// Deliveries that are measured during an attack.
const MESSAGES: usize = 500;

/// The attacker's address. Other clients use 127.0.0.1.
const ATTACKER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

const QUOTA_EXCEEDED: u8 = 0x97;

const PASSWORD: &str = "correct horse battery";

fn server(more: &str) -> Server {
    // The attacks are over before the first lock-out ends.
    let access = "[access]\nanonymous = \"always\"\nlogin_lockout = \"10m\"\n";
    Server::start(&Config::new(format!("{access}{more}")))
}

/// Adds MQTT users with the password `PASSWORD`.
fn add_users(server: &Server, names: &[&str]) {
    let api = Api::of(server);
    for name in names {
        api.ok("POST", "/api/v1/users", &json!({"name": name, "password": PASSWORD}));
    }
}

pub fn connect_from(source: Ipv4Addr, to: SocketAddr) -> Peer {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).expect("a socket");
    socket
        .bind(&SocketAddr::from((source, 0)).into())
        .expect("each 127.0.0.0/8 address is local");
    socket.connect(&to.into()).expect("the server listens");
    Peer::over(TcpStream::from(socket))
}

/// Sends one CONNECT from an address and returns the code of the CONNACK.
fn login_from(source: Ipv4Addr, server: &Server, connect: &Connect) -> u8 {
    connect_from(source, server.mqtt()).handshake(connect).code
}

/// Returns a CONNECT with wrong credentials. Each number makes another one.
fn wrong_password(number: u64) -> Connect {
    Connect::new(V5, unique("guess")).user("ann", format!("guess-{number}"))
}

fn wrong_token(number: u64) -> Connect {
    Connect::new(V5, unique("guess")).user_name(format!("token-{number}"))
}

/// Connections that guess until they are stopped.
struct Attack {
    is_stopped: Arc<AtomicBool>,
    /// Guesses that the server has checked, and those that it has refused to check.
    checked: Arc<AtomicU64>,
    refused: Arc<AtomicU64>,
    threads: Vec<JoinHandle<()>>,
    start: Instant,
}

impl Attack {
    fn start(server: &Server, guess: fn(u64) -> Connect) -> Attack {
        let (is_stopped, numbers) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (checked, refused) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let address = server.mqtt();
        let threads = (0..CONNECTIONS).map(|_| {
            let (is_stopped, numbers) = (is_stopped.clone(), numbers.clone());
            let (checked, refused) = (checked.clone(), refused.clone());
            thread::spawn(move || {
                while !is_stopped.load(Acquire) {
                    let connect = guess(numbers.fetch_add(1, Relaxed));
                    match connect_from(ATTACKER, address).handshake(&connect).code {
                        QUOTA_EXCEEDED => refused.fetch_add(1, Relaxed),
                        code => {
                            assert_ne!(code, 0, "a wrong guess was accepted");
                            checked.fetch_add(1, Relaxed)
                        }
                    };
                    // A real attacker is on another machine: leaves the server its share of this one.
                    thread::sleep(Duration::from_millis(10));
                }
            })
        });
        let threads = threads.collect();
        let attack = Attack {
            is_stopped,
            checked,
            refused,
            threads,
            start: Instant::now(),
        };
        wait_until("the attack has begun", || {
            attack.checked.load(Relaxed) + attack.refused.load(Relaxed) >= CONNECTIONS as u64
        });
        attack
    }

    /// Returns the number of checked guesses, the number of refused ones and the time.
    fn stop(self) -> (u64, u64, Duration) {
        self.is_stopped.store(true, Release);
        for thread in self.threads {
            thread.join().expect("every guess is answered");
        }
        let taken = self.start.elapsed();
        (self.checked.load(Relaxed), self.refused.load(Relaxed), taken)
    }
}

#[track_caller]
fn wait_until(what: &str, is_reached: impl Fn() -> bool) {
    let start = Instant::now();
    while !is_reached() {
        assert!(start.elapsed() < PATIENCE, "not reached: {what}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Returns p50 and p99 of the time from a publish to its delivery.
fn delivery_times(server: &Server) -> (Duration, Duration) {
    let topic = unique("delivery");
    let mut subscriber = server.session(&Connect::new(V5, unique("subscriber")));
    subscriber.subscribe(&topic, 0);
    let mut publisher = server.session(&Connect::new(V5, unique("publisher")));
    let mut times: Vec<Duration> = (0..MESSAGES)
        .map(|_| {
            let start = Instant::now();
            publisher.publish(&Publish::new(&topic, "x"));
            subscriber.receive();
            start.elapsed()
        })
        .collect();
    times.sort_unstable();
    (times[MESSAGES / 2], times[MESSAGES * 99 / 100])
}

/// Attacks a server and returns the number of checked guesses. Prints the delays of other clients.
fn guess_at_length(server: &Server, what: &str, guess: fn(u64) -> Connect) -> u64 {
    let quiet = delivery_times(server);
    let attack = Attack::start(server, guess);
    let start = Instant::now();
    let bob = Connect::new(V5, unique("bob")).user("bob", PASSWORD);
    assert_eq!(login_from(Ipv4Addr::LOCALHOST, server, &bob), 0);
    let first_login = start.elapsed();
    let busy = delivery_times(server);
    let (checked, refused, taken) = attack.stop();
    let per_second = |guesses: u64| guesses as f64 / taken.as_secs_f64();
    println!(
        "{what}: {checked} guesses checked ({:.1}/s), {refused} refused ({:.0}/s) in {taken:.1?}; first login of \
         another user {first_login:.1?}; delivery p50/p99 {:.1?}/{:.1?} before, {:.1?}/{:.1?} during the attack",
        per_second(checked),
        per_second(refused),
        quiet.0,
        quiet.1,
        busy.0,
        busy.1,
    );
    assert!(refused > 0, "no guess was refused");
    checked
}

/// The failures that an address may have, and the guesses that were checked at the same time.
const CHECKED_MAX: u64 = 20;

#[test]
fn guessed_passwords_are_limited() {
    let server = server("");
    add_users(&server, &["ann", "bob"]);
    let checked = guess_at_length(&server, "passwords", wrong_password);
    assert!(checked < CHECKED_MAX, "{checked} passwords were checked");
    // The guesser does not lock out the user at other addresses.
    let ann = Connect::new(V4, unique("ann")).user("ann", PASSWORD);
    assert_eq!(login_from(Ipv4Addr::LOCALHOST, &server, &ann), 0);
    assert_eq!(login_from(ATTACKER, &server, &ann), 3, "MQTT 3.1.1: server unavailable");
    server.wait_until("the lock-out is logged", |server| {
        server.log().contains("address locked out after too many failed logins")
    });
    let api = Api::of(&server);
    server.wait_until("the alarm is active", |_| {
        api.get("/api/v1/alarms").to_string().contains("password_guessing")
    });
    let metrics = server.http_get("/metrics").1;
    let line = metrics
        .lines()
        .find(|line| line.starts_with("tidewire_login_rejected_total "));
    assert!(line.is_some_and(|line| !line.ends_with(" 0")), "{line:?}");
    let refused = api.get("/api/v1/refused-clients");
    assert!(
        refused.to_string().contains("too many failed logins from this address"),
        "{refused}"
    );
}

#[test]
fn guessed_tokens_are_limited_in_mqtt_and_http() {
    let server = server("[platform]\nenabled = true\ndemo = true\n");
    add_users(&server, &["bob"]);
    let rest = Rest::login(&server);
    rest.device("known", "KNOWN-TOKEN");
    rest.device("new", "NEW-TOKEN");
    let device = |token: &str| Connect::new(V5, unique("device")).user_name(token);
    assert_eq!(login_from(ATTACKER, &server, &device("KNOWN-TOKEN")), 0);
    let checked = guess_at_length(&server, "tokens", wrong_token);
    assert!(checked < CHECKED_MAX, "{checked} tokens were checked");
    // A device behind the same NAT is known. A right guess of another token is not.
    assert_eq!(login_from(ATTACKER, &server, &device("KNOWN-TOKEN")), 0);
    assert_eq!(login_from(ATTACKER, &server, &device("NEW-TOKEN")), QUOTA_EXCEEDED);
    assert_eq!(login_from(Ipv4Addr::LOCALHOST, &server, &device("NEW-TOKEN")), 0);
    // HTTP requests come from 127.0.0.1.
    let post = |token: &str| {
        let path = format!("/api/v1/{token}/telemetry");
        request(
            server.http(),
            "POST",
            &path,
            "Content-Type: application/json\r\n",
            "{\"t\":1}",
        )
        .0
    };
    assert_eq!(post("KNOWN-TOKEN"), 200);
    let statuses: Vec<u16> = (0..50).map(|n| post(&format!("http-{n}"))).collect();
    let checked = statuses.iter().filter(|status| **status == 401).count() as u64;
    assert!(checked < CHECKED_MAX && statuses[49] == 429, "{statuses:?}");
    assert_eq!((post("KNOWN-TOKEN"), post("NEW-TOKEN")), (200, 200));
}

#[test]
fn repeated_wrong_password_locks_out_nobody() {
    let server = server("");
    add_users(&server, &["ann", "bob"]);
    let wrong = || Connect::new(V4, unique("loop")).user("ann", "old password");
    for _ in 0..50 {
        assert_eq!(login_from(ATTACKER, &server, &wrong()), 4, "bad user name or password");
    }
    let bob = Connect::new(V4, unique("bob")).user("bob", PASSWORD);
    assert_eq!(login_from(ATTACKER, &server, &bob), 0);
    // The owner sets the password that the device sends.
    Api::of(&server).ok("PUT", "/api/v1/users/ann", &json!({"password": "old password"}));
    assert_eq!(login_from(ATTACKER, &server, &wrong()), 0);
}

/// A login for provisioning tests no credentials, so it does not make a guess a known login.
#[test]
fn login_for_provisioning_tests_no_guess() {
    let server = server("[platform]\nenabled = true\ndemo = true\n");
    add_users(&server, &["ann"]);
    Rest::login(&server).device("meter", "METER-TOKEN");
    for number in 0..20 {
        let guess = Connect::new(V5, "provision").user("ann", format!("guess-{number}"));
        assert_eq!(login_from(ATTACKER, &server, &guess), 0);
    }
    // A right token gives no session of the device either.
    let mut peer = connect_from(ATTACKER, server.mqtt());
    let token = Connect::new(V5, "provision").user_name("METER-TOKEN");
    assert_eq!(peer.handshake(&token).code, 0);
    let telemetry = Publish::new("v1/devices/me/telemetry", "{\"v\":1}").qos(1).id(1);
    peer.send(&telemetry.bytes(V5));
    match peer.read(PATIENCE) {
        Reading::Packet(packet) => assert!(packet.reason() >= 0x80, "{packet:?}"),
        Reading::Closed => {}
        Reading::Silence => panic!("no answer"),
    }
    let codes: Vec<u8> = (0..20)
        .map(|number| login_from(ATTACKER, &server, &wrong_password(number)))
        .collect();
    // The address is allowed another failure every few seconds.
    let checked = codes.iter().filter(|code| **code != QUOTA_EXCEEDED).count() as u64;
    assert!(checked < CHECKED_MAX && codes[19] == QUOTA_EXCEEDED, "{codes:?}");
}
