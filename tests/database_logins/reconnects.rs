//! Many clients that connect at once, as after a restart of the server: no provider has a cached answer.

use std::io::{Read, Write as _};
use std::net::TcpStream;
use std::sync::{Mutex, PoisonError};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::*;
use crate::rules::real_servers::Started;
use crate::support::peer::connect_tcp;
use crate::support::shared::{MARIADB, MONGODB, POSTGRES};

/// Code of a CONNACK.
const SERVER_BUSY: u8 = 0x89;

/// The clients of a provider, and the most in any test: a limit of 20,000 open files allows no more. A debug build
/// admits 2,000 to 3,000 clients per second, so 10,000 take 4 to 5 seconds. A second round would take as long.
const CLIENTS_MAX: u64 = 10_000;

/// The clients of a source of access rules, which cost a login and a question. From 8,192 questions of one address on,
/// the server rejects its clients.
const CLIENTS_OF_SOURCES: u64 = 2_000;
const CLIENTS_OF_SOURCES_MAX: u64 = 8_000;

/// The users of these clients: each is a question, which takes about 1 ms in a debug build, and 3 ms with FerretDB.
const USERS: u64 = 400;

/// PostgreSQL is asked more questions than the other systems.
const USERS_OF_POSTGRESQL: u64 = 1_000;

/// A question waits at most 30 seconds for its turn, also with a slow database.
const USERS_MAX: u64 = 5_000;

/// SHA-256 of `saltsecret`.
const SALTED_SECRET: &str = "$sha256$salt$bede90386d450cea8b77b822f8887065e4e5abf132c2f9dccfcc7fbd4cba5e35";

/// Two of these tests at a time would open too many files.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// The clients of a test, and the number of different users among them.
pub struct Crowd {
    clients: u64,
    pub users: u64,
}

impl Crowd {
    /// 10,000 clients. `TIDEWIRE_TEST_SCALE` multiplies the number of users.
    pub fn of_users(users: u64) -> Crowd {
        Crowd {
            clients: CLIENTS_MAX,
            users: scaled(users).min(USERS_MAX),
        }
    }

    fn of_source() -> Crowd {
        Crowd {
            clients: scaled(CLIENTS_OF_SOURCES).min(CLIENTS_OF_SOURCES_MAX),
            ..Crowd::of_users(USERS)
        }
    }
}

impl Default for Crowd {
    fn default() -> Crowd {
        Crowd::of_users(USERS)
    }
}

/// Starts a server, and connects the clients at once: all have sent CONNECT before the first CONNACK is read. Each is
/// admitted, and stays connected until the last one is. The users are `meter-1`, `meter-2` and so on.
#[track_caller]
pub fn reconnect_at_once(mut config: Config, crowd: &Crowd, password: impl Fn(u64) -> String) -> Server {
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    raise_file_limit();
    // With a full backlog, the kernel repeats an attempt to connect after a second.
    config.toml.push_str("\n[listeners.tcp.default]\nbacklog = 4096\n");
    let server = Server::start(&config);
    let passwords: Vec<String> = (1..=crowd.users).map(password).collect();
    let connect = |client: u64| {
        let user = client % crowd.users;
        let name = format!("meter-{}", user + 1);
        let connect = Connect::new(V5, format!("client-{client}")).user(name, &passwords[user as usize]);
        let mut stream = connect_tcp(server.mqtt());
        stream.write_all(&connect.bytes()).expect("the server reads CONNECT");
        (client, stream)
    };
    let mut connected = Vec::new();
    let mut waiting: Vec<(u64, TcpStream)> = (0..crowd.clients).map(connect).collect();
    // The server may ask some of them to come back, because its queue of logins is full.
    while !waiting.is_empty() {
        let mut busy = Vec::new();
        for (client, mut stream) in waiting {
            match connack_code(&mut stream) {
                ADMITTED => connected.push(stream),
                SERVER_BUSY => busy.push(client),
                code => panic!("client-{client}: code {code:#x}; {}", server.log()),
            }
        }
        waiting = busy.into_iter().map(connect).collect();
    }
    drop(connected);
    server
}

/// Reads a CONNACK. The buffer of a `Peer` is too large for thousands of clients.
#[track_caller]
fn connack_code(stream: &mut TcpStream) -> u8 {
    stream
        .set_read_timeout(Some(PATIENCE))
        .expect("a socket accepts a timeout");
    let mut bytes = Vec::new();
    let mut part = [0; 256];
    loop {
        let count = stream.read(&mut part).expect("the server answers");
        assert!(count > 0, "the server has closed the connection after {bytes:02x?}");
        bytes.extend_from_slice(&part[..count]);
        if let Some((packet, _)) = Packet::cut(&bytes) {
            return packet.connack(V5).code;
        }
    }
}

fn raise_file_limit() {
    let limit = getrlimit(Resource::Nofile).maximum;
    let raised = Rlimit {
        current: limit,
        maximum: limit,
    };
    setrlimit(Resource::Nofile, raised).expect("a process may raise its limit to the maximum");
}

for_each_database!(@ mysql sqlite mongodb redis: clients_that_reconnect_at_once_are_all_admitted);

fn clients_that_reconnect_at_once_are_all_admitted<C: Clients>() {
    let (clients, crowd) = (C::new(), Crowd::default());
    clients.insert_many(crowd.users);
    let config = Config::new(clients.options(&[("timeout", text("1m"))]));
    reconnect_at_once(config, &crowd, |_| "secret".to_owned());
}

#[test]
fn clients_that_reconnect_at_once_share_few_connections() {
    let (table, crowd) = (postgresql::Table::new(), Crowd::of_users(USERS_OF_POSTGRESQL));
    table.insert_many(crowd.users);
    let config = Config::new(table.options(&[("timeout", text("1m"))]));
    let _server = reconnect_at_once(config, &crowd, |_| "secret".to_owned());
    let connections = table.sql(&format!(
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'tidewire' AND query LIKE '%{}%'",
        table.name
    ));
    let connections: u32 = connections.trim().parse().expect("a number");
    assert!(
        (1..=8).contains(&connections),
        "{connections} connections with pool_size = 8"
    );
}

/// Options of a server that knows the users of a crowd itself.
fn own_users(crowd: &Crowd, access: &str) -> String {
    let mut toml = format!("[access]\nanonymous = \"never\"\nmax_login_failures = 0\n{access}\n[access.users]\n");
    for number in 1..=crowd.users {
        writeln!(toml, "meter-{number} = \"{SALTED_SECRET}\"").expect("a string grows");
    }
    toml
}

#[test]
fn users_that_reconnect_at_once_are_all_admitted() {
    let crowd = Crowd::default();
    let config = Config::new(own_users(&crowd, ""));
    reconnect_at_once(config, &crowd, |_| "secret".to_owned());
}

#[test]
fn sources_know_clients_that_reconnect_at_once() {
    let (crowd, redis) = (Crowd::of_source(), Started::new("redis", &[]));
    let file = super::sqlite::Table::empty();
    for (source, address) in [
        ("postgresql", POSTGRES.value("TIDEWIRE_POSTGRES")),
        ("mysql", MARIADB.value("TIDEWIRE_MARIADB")),
        ("sqlite", file.address()),
        ("mongodb", MONGODB.value("TIDEWIRE_MONGODB")),
        ("redis", redis.address.clone()),
    ] {
        let options = sources::options(source, &address, "timeout = \"1m\"");
        let toml = own_users(&crowd, &format!("sources = [\"{source}\"]\nno_match = \"allow\"")) + &options;
        let server = reconnect_at_once(Config::new(toml), &crowd, |_| "secret".to_owned());
        // Each user is asked for once.
        let (_, metrics) = server.http_get("/metrics");
        let asked = |result: &str| -> u64 {
            let sample = format!("tidewire_access_source_results_total{{source=\"{source}\",result=\"{result}\"}} ");
            let count = metrics
                .lines()
                .find_map(|line| line.strip_prefix(&*sample)?.parse().ok());
            count.unwrap_or_else(|| panic!("{sample}{metrics}"))
        };
        let answered = asked("allowed") + asked("ignored");
        assert_eq!((answered, asked("failed")), (crowd.users, 0), "{source}: {metrics}");
    }
}
