//! Databases that fail, are slow or change.

use std::io::{Read, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::redis::{redis_options, set_user};
use super::*;
use crate::rules::real_servers::Started;

pub fn uncached() -> Vec<(&'static str, String)> {
    vec![("cache_allowed", text("0s")), ("cache_denied", text("0s"))]
}

/// Kills a database and starts it again.
pub fn check_restart(database: &Started, server: &Server, user: &str, password: &str) {
    assert_eq!(login(server, user, password), ADMITTED);
    database.call("kill", &[]).expect("the script runs");
    for _ in 0..5 {
        assert_eq!(login(server, user, password), UNAVAILABLE);
        // The next provider does not decide either: `ann` could be a user of the database.
        assert_eq!(login(server, "ann", "local"), UNAVAILABLE);
    }
    let output = database.call("start", &[]).expect("the script runs");
    assert!(output.status.success(), "{output:?}");
    server.wait_until("clients are admitted again", |server| {
        login(server, user, password) == ADMITTED
    });
    assert_eq!(login(server, user, "wrong"), WRONG);
    assert_eq!(login(server, "ann", "local"), ADMITTED);
    let log = server.log();
    assert!(log.contains(&database.address), "{log}");
}

#[test]
fn a_postgresql_that_was_killed_is_used_again() {
    let database = Started::new("postgres", &[]);
    let table = postgresql::Table::with_root(database.address.clone());
    let server = table.start(&uncached());
    check_restart(&database, &server, "root", "secret");
    assert!(!server.log().contains("tidewire@"), "{}", server.log());
}

#[test]
fn a_mariadb_that_was_killed_is_used_again() {
    let database = Started::new("mariadb", &[]);
    let table = mysql::Table::with_root(database.address.clone());
    let server = table.start(&uncached());
    check_restart(&database, &server, "root", "secret");
    // The password of the account changes. Existing connections do not need it, so they are ended.
    let others = "SELECT CONCAT('KILL ', ID, ';') FROM information_schema.PROCESSLIST \
                  WHERE USER = 'tidewire' AND ID <> CONNECTION_ID()";
    let kill = table.sql(others);
    table.sql(&format!("SET PASSWORD FOR tidewire = PASSWORD('rotated'); {kill}"));
    assert_eq!(login(&server, "root", "secret"), UNAVAILABLE);
    // The log of the first server has few lines about failures. That of a new one has the reason.
    let server = table.start(&uncached());
    assert_eq!(login(&server, "root", "secret"), UNAVAILABLE);
    let log = server.log();
    assert!(log.contains("Access denied for user 'tidewire'"), "{log}");
}

#[test]
fn a_redis_that_was_killed_is_used_again() {
    let database = Started::new("redis", &["--appendonly", "yes", "--appendfsync", "always"]);
    set_user(&database.address, "root", &["password_hash", SECRET, "salt", "salt"]);
    let server = Server::start(&Config::new(redis_options(&database.address, &uncached())));
    check_restart(&database, &server, "root", "secret");
}

#[test]
fn a_database_that_never_answers_delays_no_other_client() {
    let silent = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = silent.local_addr().expect("an address");
    let account = format!("port = {}\ndatabase = \"d\"\nuser = \"u\"", address.port());
    for (provider, place) in [
        ("postgresql", account.clone()),
        ("mysql", account),
        ("redis", format!("servers = [\"{address}\"]")),
        ("mongodb", format!("servers = [\"{address}\"]\ndatabase = \"d\"")),
        (
            "ldap",
            format!("servers = [\"ldap://{address}\"]\nbase_dn = \"dc=example\""),
        ),
    ] {
        let server = Server::start(&Config::new(format!(
            "[access]\nanonymous = \"loopback\"\nproviders = [\"{provider}\"]\n[access.{provider}]\ntimeout = \"1m\"\n{place}\n"
        )));
        let mut waiting: Vec<Peer> = Vec::new();
        for number in 0..50 {
            let mut client = server.connect().speak(V5);
            let connect = Connect::new(V5, unique("waiting")).user(format!("user-{number}"), "secret");
            client.send(&connect.bytes());
            waiting.push(client);
        }
        // The server has asked.
        let _asked = silent.accept().expect("the server connects");
        let mut publisher = server.session(&Connect::new(V5, unique("publisher")));
        for number in 0..200 {
            assert!(publisher.publish(&Publish::new("t", number.to_string()).qos(1)) < 0x80);
        }
        for client in &mut waiting {
            client.expect_nothing(Duration::from_millis(1));
        }
    }
}

/// Answers that are in no protocol of a database.
pub const GARBAGE: [&[u8]; 4] = [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", &[0; 64], &[0xFF; 64]];

#[test]
fn a_database_that_answers_garbage_admits_no_client() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("an address");
    std::thread::spawn(move || {
        for (mut connection, garbage) in listener
            .incoming()
            .map_while(Result::ok)
            .zip(GARBAGE.into_iter().cycle())
        {
            let _ = connection.write_all(garbage);
        }
    });
    let account = format!("port = {}\ndatabase = \"d\"\nuser = \"u\"", address.port());
    for (provider, place) in [
        ("postgresql", account.clone()),
        ("mysql", account),
        ("redis", format!("servers = [\"{address}\"]")),
        ("mongodb", format!("servers = [\"{address}\"]\ndatabase = \"d\"")),
    ] {
        let server = Server::start(&Config::new(format!(
            "[access]\nanonymous = \"never\"\nproviders = [\"{provider}\", \"users\"]\nmax_login_failures = 0\n\
             [access.users]\n{NEXT_PROVIDER}\n[access.{provider}]\ntimeout = \"1s\"\n{place}\n"
        )));
        for _ in 0..2 * GARBAGE.len() {
            assert_eq!(login(&server, "user", "public"), UNAVAILABLE, "{provider}");
        }
        // The next provider does not decide either.
        assert_eq!(login(&server, "ann", "local"), UNAVAILABLE, "{provider}");
        let log = server.log();
        assert!(server.is_running() && !log.contains("panicked"), "{provider}: {log}");
    }
}

/// Forwards connections to an address. While it is paused, nothing passes.
pub struct Proxy {
    pub address: String,
    is_paused: Arc<AtomicBool>,
}

impl Proxy {
    pub fn new(target: String) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("an address").to_string();
        let is_paused = Arc::new(AtomicBool::new(false));
        let paused = is_paused.clone();
        std::thread::spawn(move || {
            for incoming in listener.incoming().flatten() {
                let outgoing = TcpStream::connect(&target).expect("the database runs");
                for (from, to) in [(&incoming, &outgoing), (&outgoing, &incoming)] {
                    let [from, to] = [from, to].map(|stream| stream.try_clone().expect("a socket"));
                    let paused = paused.clone();
                    std::thread::spawn(move || forward(from, to, &paused));
                }
            }
        });
        Proxy { address, is_paused }
    }

    pub fn pause(&self, is_paused: bool) {
        self.is_paused.store(is_paused, Ordering::Relaxed);
    }
}

fn forward(mut from: TcpStream, mut to: TcpStream, is_paused: &AtomicBool) {
    let mut buffer = [0; 4096];
    while let Ok(read @ 1..) = from.read(&mut buffer) {
        while is_paused.load(Ordering::Relaxed) {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        if to.write_all(&buffer[..read]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(std::net::Shutdown::Both);
}

/// Checks a query without the column.
fn check_missing_column<C: Clients>() {
    let clients = C::new();
    let query = "SELECT salt FROM (SELECT 'x' AS salt, 'user' AS username) AS clients WHERE username = ${username}";
    let server = clients.start(&[("query", text(query))]);
    assert_eq!(login(&server, "user", "public"), UNAVAILABLE);
    assert_eq!(login(&server, "nobody", "public"), UNAVAILABLE);
    let log = server.log();
    assert!(log.contains("the query returns no column password_hash"), "{log}");
    assert!(log.contains(&clients.address()), "{log}");
}

#[test]
fn a_query_without_password_hash_admits_nobody_and_says_why() {
    check_missing_column::<postgresql::Table>();
    check_missing_column::<mysql::Table>();
}
