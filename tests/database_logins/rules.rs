//! Access rules of clients in PostgreSQL, MySQL, SQLite and Redis.

use super::redis::redis_cli;
use super::*;
use crate::rules::real_servers::Started;
use crate::support::api::Api;

for_each_database!(@ postgresql mysql sqlite:
    rows_are_rules_in_their_order,
    rules_are_read_when_a_client_connects,
    names_are_parameters_of_the_query_for_rules,
    a_client_without_its_rules_is_rejected
);

/// An SQL database with clients, which can have a table with access rules.
trait RuleClients: Clients {
    /// Definition of a column whose values ascend.
    const SERIAL: &'static str;

    /// Condition of a query that compares names exactly.
    const IS_CLIENT: &'static str = "username = ${username}";

    /// Name of the table with rules.
    fn rule_table(&self) -> String;

    fn run(&self, sql: &str);

    fn literal(text: &str) -> String {
        quoted(text)
    }
}

impl RuleClients for crate::database_logins::postgresql::Table {
    const SERIAL: &'static str = "serial";

    fn rule_table(&self) -> String {
        format!("{}_acl", self.name)
    }

    fn run(&self, sql: &str) {
        self.sql(sql);
    }
}

impl RuleClients for crate::database_logins::mysql::Table {
    const SERIAL: &'static str = "int AUTO_INCREMENT";
    const IS_CLIENT: &'static str = "BINARY username = ${username}";

    fn rule_table(&self) -> String {
        format!("{}_acl", self.name)
    }

    fn run(&self, sql: &str) {
        self.sql(sql);
    }

    fn literal(text: &str) -> String {
        crate::database_logins::mysql::escaped(text)
    }
}

impl RuleClients for crate::database_logins::sqlite::Table {
    const SERIAL: &'static str = "INTEGER";

    fn rule_table(&self) -> String {
        "mqtt_acl".to_owned()
    }

    fn run(&self, sql: &str) {
        self.connection().execute_batch(sql).expect("a valid statement");
    }
}

/// A table with access rules, as in the documentation of EMQX.
struct RuleTable<C>(C);

impl<C: RuleClients> RuleTable<C> {
    fn new() -> RuleTable<C> {
        let clients = C::new();
        clients.run(&format!(
            "CREATE TABLE {} (id {} PRIMARY KEY, username varchar(100), permission varchar(10), action varchar(10), \
             topic varchar(100), qos varchar(10), retain smallint, ipaddress varchar(100))",
            clients.rule_table(),
            C::SERIAL
        ));
        RuleTable(clients)
    }

    fn insert(&self, user: &str, permission: &str, action: &str, topic: &str) {
        self.insert_with(user, permission, action, topic, "NULL, NULL, ''");
    }

    /// `more` are `qos`, `retain` and `ipaddress`.
    fn insert_with(&self, user: &str, permission: &str, action: &str, topic: &str, more: &str) {
        self.0.run(&format!(
            "INSERT INTO {} (username, permission, action, topic, qos, retain, ipaddress) \
             VALUES ({}, '{permission}', '{action}', '{topic}', {more})",
            self.0.rule_table(),
            C::literal(user)
        ));
    }

    /// Starts a server with these clients and rules.
    fn start(&self, access: &str, more: &str) -> Server {
        let name = C::PROVIDER;
        let lines = |place: &[(&str, String)]| {
            let lines = place.iter().map(|(option, value)| format!("{option} = {value}\n"));
            lines.collect::<String>()
        };
        let clients = self.0.place();
        let mut rules = clients.clone();
        rules.retain(|(option, _)| *option != "query");
        let query = format!(
            "SELECT permission, action, topic, qos, retain, ipaddress FROM {} WHERE {} OR username = '$all' ORDER BY id",
            self.0.rule_table(),
            C::IS_CLIENT
        );
        rules.push(("query", text(&query)));
        Server::start(&Config::new(format!(
            "[access]\nanonymous = \"always\"\nunknown_users = \"reject\"\nproviders = [\"{name}\"]\n\
             sources = [\"{name}\", \"rules\"]\n{access}\n\
             [access.{name}]\nsalt_position = \"suffix\"\n{}[access.source.{name}]\n{}{more}\n",
            lines(&clients),
            lines(&rules)
        )))
    }
}

fn session(server: &Server, name: &str, password: &str) -> Peer {
    server.session(&Connect::new(V5, unique("rules")).user(name, password))
}

fn may_publish(peer: &mut Peer, topic: &str) -> bool {
    peer.publish(&Publish::new(topic, "x").qos(1)) < 0x80
}

fn may_subscribe(peer: &mut Peer, filter: &str) -> bool {
    peer.subscribe_code(filter, 0) < 0x80
}

fn rows_are_rules_in_their_order<C: RuleClients>() {
    let table = RuleTable::<C>::new();
    table.insert("user", "deny", "all", "a/secret/#");
    table.insert("user", "allow", "all", "a/#");
    table.insert("user", "allow", "publish", "own/${clientid}");
    table.insert_with("user", "allow", "publish", "q/1", "'1,2', 0, NULL");
    table.insert_with("user", "allow", "publish", "near", "NULL, NULL, '127.0.0.0/8'");
    table.insert_with("user", "allow", "publish", "far", "NULL, NULL, '192.0.2.0/24'");
    table.insert("$all", "allow", "subscribe", "news");
    let access = "rules = [{ permission = \"allow\", topics = [\"open/#\", \"a/secret/#\"] }]";
    let server = table.start(access, "");
    let connect = Connect::new(V5, unique("own")).user("user", "public");
    let own = format!("own/{}", String::from_utf8_lossy(&connect.client_id));
    let mut user = server.session(&connect);
    for (topic, expected) in [
        ("a/1", true),
        ("a/secret/1", false),
        (&own, true),
        ("own/other", false),
        ("q/1", true),
        ("near", true),
        ("far", false),
        ("open/1", true),
        ("other", false),
        ("news", false),
    ] {
        assert_eq!(may_publish(&mut user, topic), expected, "{topic}");
    }
    assert_eq!(user.publish(&Publish::new("q/1", "x").qos(1).retain()), 0x87);
    for (filter, expected) in [("a/1", true), ("a/secret/1", false), ("news", true), ("#", false)] {
        assert_eq!(may_subscribe(&mut user, filter), expected, "{filter}");
    }
    // A superuser is not checked, and a client without rows has the other sources.
    assert!(may_publish(&mut session(&server, "root", "secret"), "a/secret/1"));
    let mut anonymous = server.session(&Connect::new(V5, unique("anonymous")));
    assert!(may_publish(&mut anonymous, "open/1") && !may_publish(&mut anonymous, "a/1"));
}

fn rules_are_read_when_a_client_connects<C: RuleClients>() {
    let table = RuleTable::<C>::new();
    let server = table.start("", "cache_ttl = \"1h\"");
    let mut before = session(&server, "user", "public");
    assert!(!may_publish(&mut before, "t"));
    table.insert("user", "allow", "publish", "t");
    assert!(!may_publish(&mut session(&server, "user", "public"), "t"), "cached");
    Api::of(&server).call("DELETE", "/api/v1/acl/cache", &serde_json::Value::Null);
    assert!(may_publish(&mut session(&server, "user", "public"), "t"));
    assert!(!may_publish(&mut before, "t"), "a connected client keeps its rules");
    let (_, metrics) = server.http_get("/metrics");
    for (result, count) in [("allowed", 1), ("ignored", 1), ("cached", 1)] {
        let source = C::PROVIDER;
        let sample =
            format!("tidewire_access_source_results_total{{source=\"{source}\",result=\"{result}\"}} {count}\n");
        assert!(metrics.contains(&sample), "{sample}{metrics}");
    }
}

fn names_are_parameters_of_the_query_for_rules<C: RuleClients>() {
    let table = RuleTable::<C>::new();
    table.insert("user", "allow", "publish", "t");
    let server = table.start("", "");
    for attempt in INJECTIONS {
        table
            .0
            .insert(&format!("{attempt}!"), Some(PUBLIC), "slat_foo123", false);
        assert!(
            !may_publish(&mut session(&server, &format!("{attempt}!"), "public"), "t"),
            "{attempt}"
        );
        table.insert(&format!("{attempt}!"), "allow", "publish", "own");
    }
    Api::of(&server).call("DELETE", "/api/v1/acl/cache", &serde_json::Value::Null);
    for attempt in INJECTIONS {
        let mut peer = session(&server, &format!("{attempt}!"), "public");
        assert!(
            may_publish(&mut peer, "own") && !may_publish(&mut peer, "t"),
            "{attempt}"
        );
    }
}

fn a_client_without_its_rules_is_rejected<C: RuleClients>() {
    let table = RuleTable::<C>::new();
    table.insert("user", "allow", "connect", "t");
    let name = table.0.rule_table();
    for on_failure in ["deny", "ignore"] {
        let more = format!("on_failure = \"{on_failure}\"");
        let server = table.start("no_match = \"allow\"", &more);
        // Rules that are not understood reject the client in any case.
        assert_eq!(login(&server, "user", "public"), UNAVAILABLE, "{on_failure}");
        assert_eq!(login(&server, "root", "secret"), ADMITTED);
        let log = server.log();
        assert!(
            log.contains("access source failed") && log.contains("rule 1: action"),
            "{log}"
        );
        let server = table.start("no_match = \"allow\"", &format!("{more}\ntimeout = \"2s\""));
        table.0.run(&format!("ALTER TABLE {name} RENAME TO {name}_gone"));
        let expected = if on_failure == "deny" { UNAVAILABLE } else { ADMITTED };
        assert_eq!(login(&server, "user", "public"), expected, "{on_failure}");
        table.0.run(&format!("ALTER TABLE {name}_gone RENAME TO {name}"));
    }
}

#[test]
fn fields_of_a_hash_are_rules() {
    let redis = Started::new("redis", &[]);
    for (user, fields) in [
        (
            "user",
            &[
                "a/#",
                "all",
                "p",
                "publish",
                "own/${clientid}",
                r#"{"action":"publish","qos":[1]}"#,
            ][..],
        ),
        ("broken", &["a", "allow"]),
        ("weird *\r\nDEL x", &["w", "publish"]),
    ] {
        redis_cli(
            &redis.address,
            &[&["HSET", &format!("mqtt_acl:{user}")], fields].concat(),
        );
    }
    let server = Server::start(&Config::new(format!(
        "[access]\nanonymous = \"always\"\nunknown_users = \"anonymous\"\nsources = [\"redis\"]\n\
         [access.source.redis]\nservers = [\"{}\"]\ncmd = \"HGETALL mqtt_acl:${{clientid}}\"\n",
        redis.address
    )));
    let mut user = server.session(&Connect::new(V5, "user"));
    for (topic, expected) in [
        ("a/1", true),
        ("p", true),
        ("own/user", true),
        ("own/x", false),
        ("b", false),
    ] {
        assert_eq!(may_publish(&mut user, topic), expected, "{topic}");
    }
    assert_eq!(user.publish(&Publish::new("own/user", "x").qos(2)), 0x87);
    assert!(may_subscribe(&mut user, "a/+") && !may_subscribe(&mut user, "p"));
    assert!(!may_publish(&mut server.session(&Connect::new(V5, "nobody")), "a/1"));
    let mut weird = server.session(&Connect::new(V5, "weird *\r\nDEL x"));
    assert!(may_publish(&mut weird, "w") && !may_publish(&mut weird, "a/1"));
    assert_eq!(
        server.connect().handshake(&Connect::new(V5, "broken")).code,
        UNAVAILABLE
    );
}
