//! Sources of access rules that fail, are slow or change. `rules` and `mongodb` have tests of the rules.

use std::fs;
use std::io::Write as _;
use std::net::TcpListener;

use super::faults::{GARBAGE, Proxy};
use super::redis::redis_cli;
use super::*;
use crate::rules::real_servers::Started;
use crate::support::shared::{MARIADB, MONGODB, POSTGRES};

/// Sources that a network leads to.
const SOURCES: [&str; 4] = ["postgresql", "mysql", "mongodb", "redis"];

/// Options of a source whose system needs no tables: SQL databases return a rule for each client, the others none.
pub fn options(source: &str, address: &str, more: &str) -> String {
    account(source, address, "postgres", "tidewire", more)
}

/// With a user and a password of PostgreSQL. Those of MySQL and MongoDB are fixed, and the others have none.
fn account(source: &str, address: &str, user: &str, password: &str, more: &str) -> String {
    let (host, port) = address.rsplit_once(':').unwrap_or_default();
    let place = match source {
        "postgresql" => format!(
            "host = \"{host}\"\nport = {port}\ndatabase = \"postgres\"\nuser = \"{user}\"\npassword = \"{password}\"\n\
             query = \"SELECT 'allow' AS permission, 'all' AS action, '#' AS topic WHERE ${{username}} <> ''\""
        ),
        "mysql" => format!(
            "host = \"{host}\"\nport = {port}\ndatabase = \"tidewire\"\nuser = \"tidewire\"\n\
             password = \"tidewire\"\n\
             query = \"SELECT 'allow' AS permission, 'all' AS action, '#' AS topic FROM DUAL WHERE ${{username}} <> ''\""
        ),
        "sqlite" => format!(
            "file = \"{address}\"\n\
             query = \"SELECT 'allow' AS permission, 'all' AS action, '#' AS topic \
             WHERE (SELECT count(*) FROM mqtt_user) = 0 AND ${{username}} <> ''\""
        ),
        "mongodb" => format!(
            "servers = [\"{address}\"]\ndatabase = \"mqtt\"\nuser = \"tidewire\"\npassword = \"tidewire\"\n\
             collection = \"rules_of_no_client\""
        ),
        _ => format!("servers = [\"{address}\"]\ncmd = \"HGETALL mqtt_acl:${{username}}\""),
    };
    format!("[access.source.{source}]\n{place}\n{more}\n")
}

/// Starts a server with one source. Clients without rules may do everything, so that only failures reject them.
fn start(source: &str, options: &str) -> Server {
    Server::start(&Config::new(format!(
        "[access]\nanonymous = \"never\"\nmax_login_failures = 0\nsources = [\"{source}\"]\nno_match = \"allow\"\n\
         [access.users]\n{NEXT_PROVIDER}\n{options}"
    )))
}

fn code(server: &Server) -> u8 {
    login(server, "ann", "local")
}

#[test]
fn a_source_that_is_down_slow_or_broken_admits_no_client() {
    let closed = free_port().to_string();
    let [silent, broken] = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").expect("a free port"));
    let [slow, garbage] = [&silent, &broken].map(|listener| listener.local_addr().expect("an address").to_string());
    std::thread::spawn(move || {
        for (mut connection, garbage) in broken.incoming().map_while(Result::ok).zip(GARBAGE.into_iter().cycle()) {
            let _ = connection.write_all(garbage);
        }
    });
    for source in SOURCES {
        for (address, count) in [(&closed, 2), (&slow, 2), (&garbage, 2 * GARBAGE.len())] {
            let server = start(source, &options(source, address, "timeout = \"500ms\""));
            for _ in 0..count {
                assert_eq!(code(&server), UNAVAILABLE, "{source} {address}");
            }
            let log = server.log();
            assert!(log.contains("access source failed"), "{source} {address}: {log}");
            assert!(
                server.is_running() && !log.contains("panicked"),
                "{source} {address}: {log}"
            );
        }
    }
}

#[test]
fn a_slow_source_is_used_again_when_it_answers() {
    let redis = Started::new("redis", &[]);
    for (source, address) in [
        ("postgresql", POSTGRES.value("TIDEWIRE_POSTGRES")),
        ("mysql", MARIADB.value("TIDEWIRE_MARIADB")),
        ("mongodb", MONGODB.value("TIDEWIRE_MONGODB")),
        ("redis", redis.address.clone()),
    ] {
        let proxy = Proxy::new(address);
        let uncached = "timeout = \"1s\"\ncache_ttl = \"0s\"";
        let server = start(source, &options(source, &proxy.address, uncached));
        server.wait_until("the source answers in time", |server| code(server) == ADMITTED);
        proxy.pause(true);
        for _ in 0..2 {
            assert_eq!(code(&server), UNAVAILABLE, "{source}");
        }
        proxy.pause(false);
        server.wait_until("the source answers again", |server| code(server) == ADMITTED);
        let (_, metrics) = server.http_get("/metrics");
        let sample = format!("tidewire_access_source_failing{{source=\"{source}\"}} 0\n");
        assert!(metrics.contains(&sample), "{source}: {metrics}");
    }
}

#[test]
fn a_file_of_rules_that_is_locked_missing_or_damaged_admits_no_client() {
    let table = sqlite::Table::empty();
    let uncached = "timeout = \"1s\"\ncache_ttl = \"0s\"";
    let server = start("sqlite", &options("sqlite", &table.address(), uncached));
    assert_eq!(code(&server), ADMITTED);

    let writer = table.connection();
    writer.execute_batch("BEGIN EXCLUSIVE").expect("a lock");
    assert_eq!(code(&server), UNAVAILABLE);
    writer.execute_batch("COMMIT").expect("the end of the lock");
    assert_eq!(code(&server), ADMITTED);

    let moved = table.file.with_extension("moved");
    fs::rename(&table.file, &moved).expect("the file exists");
    assert_eq!(code(&server), UNAVAILABLE);
    fs::write(&table.file, "garbage ".repeat(1000)).expect("a file can be written");
    assert_eq!(code(&server), UNAVAILABLE);
    fs::rename(&moved, &table.file).expect("the file exists");
    assert_eq!(code(&server), ADMITTED);
}

#[test]
fn a_deleted_rule_is_unknown_at_the_next_login() {
    let redis = Started::new("redis", &[]);
    redis_cli(&redis.address, &["HSET", "mqtt_acl:ann", "a", "publish"]);
    let denied = options("redis", &redis.address, "cache_ttl = \"0s\"");
    let server = Server::start(&Config::new(format!(
        "[access]\nanonymous = \"never\"\nsources = [\"redis\"]\n[access.users]\n{NEXT_PROVIDER}\n{denied}"
    )));
    let may_publish = || {
        let mut ann = server.session(&Connect::new(V5, unique("ann")).user("ann", "local"));
        ann.publish(&Publish::new("a", "x").qos(1)) < 0x80
    };
    assert!(may_publish());
    redis_cli(&redis.address, &["HDEL", "mqtt_acl:ann", "a"]);
    assert!(!may_publish());
    // Redis deletes the rules at their end.
    redis_cli(&redis.address, &["HSET", "mqtt_acl:ann", "a", "publish"]);
    assert!(may_publish());
    redis_cli(&redis.address, &["PEXPIRE", "mqtt_acl:ann", "1"]);
    server.wait_until("the rules have expired", |_| !may_publish());
}

#[test]
fn a_changed_password_of_a_source_is_noticed() {
    let redis = Started::new("redis", &[]);
    let uncached = "cache_ttl = \"0s\"";
    let as_user = |password: &str, command: &[&str]| {
        let login = ["-a", password, "--no-auth-warning"];
        redis_cli(&redis.address, &[&login[..], command].concat());
    };
    let of_redis = |password: &str| {
        let more = format!("password = \"{password}\"\n{uncached}");
        start("redis", &options("redis", &redis.address, &more))
    };
    redis_cli(&redis.address, &["CONFIG", "SET", "requirepass", "right-one"]);
    let server = of_redis("right-one");
    assert_eq!(code(&server), ADMITTED);
    as_user("right-one", &["CONFIG", "SET", "requirepass", "rotated"]);
    // Existing connections do not need the password, so they are ended.
    as_user("rotated", &["CLIENT", "KILL", "TYPE", "normal"]);
    assert_eq!(code(&server), UNAVAILABLE);
    assert!(!server.log().contains("right-one"), "{}", server.log());
    assert_eq!(code(&of_redis("rotated")), ADMITTED);

    let table = postgresql::Table::empty();
    let reader = format!("{}_rules", table.name);
    table.sql(&format!("CREATE ROLE {reader} LOGIN PASSWORD 'right-one'"));
    let of_postgresql = |password: &str| {
        let place = account("postgresql", &table.address, &reader, password, uncached);
        start("postgresql", &place)
    };
    let server = of_postgresql("right-one");
    assert_eq!(code(&server), ADMITTED);
    table.sql(&format!("ALTER ROLE {reader} PASSWORD 'rotated'"));
    table.sql(&format!(
        "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE usename = '{reader}'"
    ));
    assert_eq!(code(&server), UNAVAILABLE);
    assert!(!server.log().contains("right-one"), "{}", server.log());
    assert_eq!(code(&of_postgresql("rotated")), ADMITTED);
}
