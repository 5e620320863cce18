//! Clients in hashes of Redis.

use super::faults::uncached;
use super::*;
use crate::rules::real_servers::Started;

/// Fields of the user `user`, whose password is `public`.
const FIELDS: [&str; 4] = ["password_hash", PUBLIC, "salt", "slat_foo123"];

/// The hashes of a Redis.
pub struct Table(Started);

impl Clients for Table {
    const PROVIDER: &'static str = "redis";

    fn empty() -> Table {
        Table(Started::new("redis", &[]))
    }

    fn insert(&self, user: &str, hash: Option<&str>, salt: &str, is_superuser: bool) {
        let mut fields = vec!["salt", salt, "is_superuser", if is_superuser { "true" } else { "0" }];
        fields.extend(hash.into_iter().flat_map(|hash| ["password_hash", hash]));
        set_user(&self.0.address, user, &fields);
    }

    fn change(&self, user: &str, hash: &str) {
        set_user(&self.0.address, user, &["password_hash", hash, "salt", "salt"]);
    }

    fn delete(&self, user: &str) {
        redis_cli(&self.0.address, &["DEL", &format!("mqtt_user:{user}")]);
    }

    fn insert_many(&self, count: u64) {
        let script = "for n = 1, tonumber(ARGV[1]) do \
                      redis.call('HSET', 'mqtt_user:meter-' .. n, 'password_hash', ARGV[2], 'salt', 'salt') end";
        redis_cli(&self.0.address, &["EVAL", script, "0", &count.to_string(), SECRET]);
    }

    fn count(&self) -> usize {
        let count = redis_cli(&self.0.address, &["DBSIZE"]);
        count.trim().parse().expect("a number")
    }

    fn address(&self) -> String {
        self.0.address.clone()
    }

    fn place(&self) -> Vec<(&'static str, String)> {
        vec![("servers", format!("[{}]", text(&self.0.address)))]
    }

    /// The key is one argument of the command.
    fn query_with_quotes(&self) -> Option<String> {
        None
    }
}

pub fn redis_cli(address: &str, arguments: &[&str]) -> String {
    let (host, port) = address.rsplit_once(':').expect("an address");
    let mut command = Command::new("redis-cli");
    command.args(["-c", "-h", host, "-p", port]).args(arguments);
    output(&mut command)
}

pub fn set_user(address: &str, name: &str, fields: &[&str]) {
    redis_cli(address, &[&["HSET", &format!("mqtt_user:{name}")], fields].concat());
}

pub fn redis_options(addresses: &str, more: &[(&str, String)]) -> String {
    let servers: Vec<String> = addresses.split(',').map(text).collect();
    let mut all = vec![("servers", format!("[{}]", servers.join(", ")))];
    if !more.iter().any(|(name, _)| *name == "password_hash_algorithm") {
        all.push(("salt_position", text("suffix")));
    }
    all.extend(more.iter().cloned());
    options("redis", &all)
}

fn start(addresses: &str, more: &[(&str, String)]) -> Server {
    Server::start(&Config::new(redis_options(addresses, more)))
}

fn fill(address: &str) {
    set_user(address, "user", &FIELDS);
    set_user(address, "root", &[&FIELDS[..], &["is_superuser", "1"]].concat());
}

#[test]
fn the_hash_of_the_user_decides() {
    let redis = Started::new("redis", &[]);
    fill(&redis.address);
    set_user(&redis.address, "nothing", &["is_superuser", "1"]);
    set_user(&redis.address, "seen", &["last_seen", "1"]);
    set_user(&redis.address, "old", &["password", FIELDS[1], "salt", FIELDS[3]]);
    redis_cli(&redis.address, &["SET", "mqtt_user:text", "public"]);
    for (command, old) in [
        ("HMGET mqtt_user:${username} password_hash salt is_superuser", 0x87),
        (
            "HMGET mqtt_user:${username} password password_hash salt is_superuser",
            ADMITTED,
        ),
        ("HGETALL mqtt_user:${username}", ADMITTED),
    ] {
        let server = start(&redis.address, &[("cmd", text(command)), ("on_failure", text("allow"))]);
        for (name, password, code) in [
            ("user", "public", ADMITTED),
            ("user", "Public", WRONG),
            ("user", "", WRONG),
            ("nobody", "public", WRONG),
            ("ann", "local", ADMITTED),
            ("nothing", "public", 0x87),
            ("seen", "public", WRONG),
            ("text", "public", WRONG),
            ("old", "public", old),
        ] {
            for _ in 0..2 {
                assert_eq!(login(&server, name, password), code, "{command} {name} {password}");
            }
        }
        assert!(is_superuser(&server, "root", "public"), "{command}");
        assert!(!is_superuser(&server, "user", "public"), "{command}");
    }
}

#[test]
fn clients_of_a_cluster_and_of_a_server_with_a_password_are_found() {
    let cluster = Started::with("redis", "cluster", &[]);
    let first = cluster.address.split(',').next().expect("an address");
    let names: Vec<String> = (0..20).map(|number| format!("user-{number}")).collect();
    for name in &names {
        set_user(first, name, &FIELDS);
    }
    let server = start(&cluster.address, &[("redis_type", text("cluster"))]);
    for name in &names {
        assert_eq!(login(&server, name, "public"), ADMITTED, "{name}");
    }
    assert_eq!(login(&server, "nobody", "public"), WRONG);

    let redis = Started::new("redis", &["--requirepass", "right-one"]);
    let server = start(&redis.address, &[("password", text("wrong-one"))]);
    assert_eq!(login(&server, "user", "public"), UNAVAILABLE);
    let log = server.log();
    assert!(log.contains(&redis.address), "{log}");
    assert!(!log.contains("wrong-one"), "{log}");
    let server = start(&redis.address, &[("password", text("right-one"))]);
    assert_eq!(login(&server, "user", "public"), WRONG);
}

#[test]
fn an_expired_hash_belongs_to_no_client() {
    let redis = Started::new("redis", &[]);
    fill(&redis.address);
    let server = start(&redis.address, &uncached());
    assert_eq!(login(&server, "user", "public"), ADMITTED);
    redis_cli(&redis.address, &["PEXPIRE", "mqtt_user:user", "1"]);
    server.wait_until("the hash has expired", |server| {
        login(server, "user", "public") == WRONG
    });
    assert_eq!(login(&server, "root", "public"), ADMITTED);
}

#[test]
fn a_changed_password_of_the_account_is_noticed() {
    let redis = Started::new("redis", &[]);
    fill(&redis.address);
    redis_cli(&redis.address, &["CONFIG", "SET", "requirepass", "right-one"]);
    let with_password = |password: &str| {
        let account = [("password", text(password))];
        start(&redis.address, &[&uncached()[..], &account].concat())
    };
    let as_user = |password: &str, command: &[&str]| {
        let login = ["-a", password, "--no-auth-warning"];
        redis_cli(&redis.address, &[&login[..], command].concat());
    };
    let server = with_password("right-one");
    assert_eq!(login(&server, "user", "public"), ADMITTED);
    as_user("right-one", &["CONFIG", "SET", "requirepass", "rotated"]);
    // Existing connections do not need the password, so they are ended.
    as_user("rotated", &["CLIENT", "KILL", "TYPE", "normal"]);
    for _ in 0..3 {
        assert_eq!(login(&server, "user", "public"), UNAVAILABLE);
    }
    let log = server.log();
    assert!(!log.contains("right-one"), "{log}");
    let server = with_password("rotated");
    assert_eq!(login(&server, "user", "public"), ADMITTED);
}
