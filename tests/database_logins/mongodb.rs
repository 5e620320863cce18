//! Clients and access rules in MongoDB. The server is FerretDB, which has its protocol: see `dev/mongodb`.

use connectors::Secret;
use connectors::mongodb::{Bson, BsonDocument, MongoClient, MongoConnectorConfig, MongoKind, MongoReadMode};

use super::faults::{check_restart, uncached};
use super::*;
use crate::ldap_logins::tls::Certificates;
use crate::rules::real_servers::Started;
use crate::support::api::Api;
use crate::support::shared::MONGODB;

/// A collection with clients.
pub struct Table {
    collection: String,
    address: String,
}

impl Table {
    fn at(address: &str) -> Table {
        Table {
            collection: unique(&format!("clients_{}", std::process::id())).replace('-', "_"),
            address: address.to_owned(),
        }
    }

    /// A collection with the superuser `root` in another server.
    fn with_root(address: &str) -> Table {
        let table = Table::at(address);
        table.insert("root", Some(SECRET), "salt", true);
        table
    }

    fn add(&self, documents: Vec<BsonDocument>) {
        add(&self.address, &self.collection, documents);
    }
}

impl Clients for Table {
    const PROVIDER: &'static str = "mongodb";

    fn empty() -> Table {
        Table::at(&MONGODB.value("TIDEWIRE_MONGODB"))
    }

    fn insert(&self, user: &str, hash: Option<&str>, salt: &str, is_superuser: bool) {
        self.add(vec![client(user, hash, salt, is_superuser)]);
    }

    fn change(&self, user: &str, hash: &str) {
        let fields = BsonDocument::new().with("password_hash", hash).with("salt", "salt");
        let update = BsonDocument::new()
            .with("q", BsonDocument::new().with("username", user))
            .with("u", BsonDocument::new().with("$set", fields));
        let command = BsonDocument::new()
            .with("update", self.collection.as_str())
            .with("updates", vec![Bson::from(update)]);
        assert_eq!(changed(&run(&self.address, "mqtt", command)), 1.0, "{user}");
    }

    fn delete(&self, user: &str) {
        let delete = BsonDocument::new()
            .with("q", BsonDocument::new().with("username", user))
            .with("limit", 1);
        let command = BsonDocument::new()
            .with("delete", self.collection.as_str())
            .with("deletes", vec![Bson::from(delete)]);
        assert_eq!(changed(&run(&self.address, "mqtt", command)), 1.0, "{user}");
    }

    fn insert_many(&self, count: u64) {
        let client = |number: u64| client(&format!("meter-{number}"), Some(SECRET), "salt", false);
        self.add((1..=count).map(client).collect());
    }

    fn count(&self) -> usize {
        let command = BsonDocument::new().with("count", self.collection.as_str());
        changed(&run(&self.address, "mqtt", command)) as usize
    }

    fn address(&self) -> String {
        self.address.clone()
    }

    fn place(&self) -> Vec<(&'static str, String)> {
        vec![
            ("servers", format!("[{}]", text(&self.address))),
            ("database", text("mqtt")),
            ("user", text("tidewire")),
            ("password", text("tidewire")),
            ("collection", text(&self.collection)),
        ]
    }

    /// Values of a filter are never in quotes.
    fn query_with_quotes(&self) -> Option<String> {
        None
    }
}

/// The document of EMQX's documentation.
fn client(user: &str, hash: Option<&str>, salt: &str, is_superuser: bool) -> BsonDocument {
    BsonDocument::new()
        .with("username", user)
        .with("password_hash", hash.map_or(Bson::Null, Bson::from))
        .with("salt", salt)
        .with("is_superuser", is_superuser)
}

/// Number of documents that a command has changed or counted.
fn changed(answer: &BsonDocument) -> f64 {
    answer.get("n").and_then(Bson::as_f64).expect("a number")
}

/// Executes a command as the administrator.
fn run(address: &str, database: &str, command: BsonDocument) -> BsonDocument {
    let config = MongoConnectorConfig {
        kind: MongoKind::Single,
        servers: vec![address.to_owned()],
        replica_set: None,
        read_mode: MongoReadMode::Primary,
        database: database.to_owned(),
        user: Some("tidewire".to_owned()),
        password: Some(Secret::new("tidewire")),
        auth_source: "admin".to_owned(),
        connections_max: 1,
        connect_timeout_ms: 60_000,
        tls: None,
    };
    let client = MongoClient::new(&config)
        .map_err(|problems| problems.join("; "))
        .expect("valid");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let answer = runtime.expect("a runtime").block_on(client.command(command));
    answer.unwrap_or_else(|error| panic!("{error}"))
}

fn add(address: &str, collection: &str, documents: Vec<BsonDocument>) {
    let expected = documents.len() as f64;
    let documents: Vec<Bson> = documents.into_iter().map(Bson::from).collect();
    let command = BsonDocument::new()
        .with("insert", collection)
        .with("documents", documents);
    assert_eq!(changed(&run(address, "mqtt", command)), expected);
}

#[test]
fn a_filter_selects_the_first_document() {
    let table = Table::empty();
    table.add(vec![
        BsonDocument::new()
            .with("_id", 1)
            .with("names", vec![Bson::from("ann"), Bson::from("user")])
            .with("device", "d 1")
            .with("hash", Bson::Binary(PUBLIC.as_bytes().to_vec()))
            .with("pepper", "slat_foo123")
            .with("level", 1),
        BsonDocument::new()
            .with("_id", 2)
            .with("names", "user")
            .with("hash", SECRET)
            .with("pepper", "salt"),
        BsonDocument::new()
            .with("_id", 3)
            .with("names", "number")
            .with("hash", 5),
        BsonDocument::new()
            .with("_id", 4)
            .with("names", "nothing")
            .with("level", true),
        BsonDocument::new()
            .with("_id", 5)
            .with("names", "disabled")
            .with("hash", SECRET)
            .with("is_off", true),
    ]);
    let filter = r#"{"names": "${username}", "is_off": {"$ne": true}, "$or": [{"device": {"$in": ["d ${clientid}"]}}, {"device": null}]}"#;
    let server = table.start(&[
        ("filter", text(filter)),
        ("password_hash_field", text("hash")),
        ("salt_field", text("pepper")),
        ("is_superuser_field", text("level")),
        ("on_failure", text("allow")),
    ]);
    let connect_as = |client: &str, name: &str, password: &str| {
        let connect = Connect::new(V5, client).user(name, password);
        server.connect().handshake(&connect).code
    };
    for (client, name, password, code) in [
        ("1", "user", "public", ADMITTED),
        ("1", "user", "secret", WRONG),
        // The first document belongs to another client ID.
        ("2", "user", "secret", ADMITTED),
        ("2", "user", "public", WRONG),
        // Rejected as well if failures admit clients: the document is no failure of the database.
        ("2", "number", "public", UNAVAILABLE),
        ("2", "nothing", "public", 0x87),
        ("2", "disabled", "secret", WRONG),
        ("2", "ann", "local", ADMITTED),
    ] {
        assert_eq!(connect_as(client, name, password), code, "{client} {name} {password}");
    }
    let mut superuser = server.session(&Connect::new(V5, "1").user("user", "public"));
    assert_eq!(superuser.subscribe_code("closed/door", 0), 0);
    let mut user = server.session(&Connect::new(V5, "2").user("user", "secret"));
    assert_eq!(user.subscribe_code("closed/door", 0), 0x87);
    let log = server.log();
    assert!(log.contains("the field hash of a document"), "{log}");
}

#[test]
fn a_replica_set_and_users_with_sha1_work() {
    let database = Started::new("mongodb", &["--repl-set-name=rs0"]);
    let table = Table::with_root(&database.address);
    let user = BsonDocument::new()
        .with("createUser", "old")
        .with("pwd", "p%40,=")
        .with("mechanisms", vec![Bson::from("SCRAM-SHA-1")])
        .with("roles", Vec::new());
    run(&database.address, "mqtt", user);
    let (servers, rs) = (
        ("servers", format!("['127.0.0.1:1', '{}']", database.address)),
        ("mongo_type", text("rs")),
    );
    let server = table.start(&[
        servers.clone(),
        rs.clone(),
        ("replica_set_name", text("rs0")),
        ("user", text("old")),
        ("password", text("p%40,=")),
        ("auth_source", text("mqtt")),
    ]);
    assert_eq!(login(&server, "root", "secret"), ADMITTED, "{}", server.log());
    assert_eq!(login(&server, "root", "public"), WRONG);
    let server = table.start(&[servers, rs, ("replica_set_name", text("rs1"))]);
    assert_eq!(login(&server, "root", "secret"), UNAVAILABLE);
    let log = server.log();
    assert!(log.contains("is a member of the replica set"), "{log}");
}

#[test]
fn a_mongodb_that_was_killed_is_used_again() {
    let database = Started::new("mongodb", &[]);
    let table = Table::with_root(&database.address);
    let reader = |command: &str, password: &str| {
        let user = BsonDocument::new().with(command, "reader").with("pwd", password);
        run(&database.address, "admin", user.with("roles", Vec::new()));
    };
    reader("createUser", "right-one");
    let as_reader = |password: &str| {
        table.start(
            &[
                &uncached()[..],
                &[("user", text("reader")), ("password", text(password))],
            ]
            .concat(),
        )
    };
    let server = as_reader("right-one");
    check_restart(&database, &server, "root", "secret");
    let wrong = as_reader("wrong-one");
    assert_eq!(login(&wrong, "root", "secret"), UNAVAILABLE);
    let log = wrong.log();
    assert!(log.contains("the login with user and password failed"), "{log}");
    assert!(!log.contains("wrong-one"), "{log}");
    // The password changes. Existing connections do not need it, so they are ended.
    reader("updateUser", "wrong-one");
    for verb in ["kill", "start"] {
        database.call(verb, &[]).expect("the script runs");
    }
    wrong.wait_until("clients are admitted with the new password", |server| {
        login(server, "root", "secret") == ADMITTED
    });
    assert_eq!(login(&server, "root", "secret"), UNAVAILABLE);
}

#[test]
fn connections_with_tls_verify_the_server() {
    let certificates = Certificates::new();
    // Documents are added without TLS.
    let plain = Started::new("mongodb", &[]);
    let table = Table::with_root(&plain.address);
    plain.call("kill", &[]).expect("the script runs");
    let option = format!("--tls={}", certificates.0.display());
    let output = plain.call("start", &[&option]).expect("the script runs");
    assert!(output.status.success(), "{output:?}");
    let by_name = plain.address.replace("127.0.0.1", "localhost");
    let tls = ("tls", "true".to_owned());
    for (servers, options, code, reason) in [
        (
            &plain.address,
            vec![tls.clone(), ("ca_file", certificates.path("ca.pem"))],
            ADMITTED,
            "",
        ),
        (
            &plain.address,
            vec![tls.clone(), ("verify", "false".to_owned())],
            ADMITTED,
            "",
        ),
        (
            &plain.address,
            vec![tls.clone(), ("ca_file", certificates.path("other.pem"))],
            UNAVAILABLE,
            "TLS handshake with 127.0.0.1",
        ),
        (
            &by_name,
            vec![tls.clone(), ("ca_file", certificates.path("ca.pem"))],
            UNAVAILABLE,
            "TLS handshake with localhost",
        ),
        (&plain.address, vec![], UNAVAILABLE, "mongodb"),
    ] {
        let servers = ("servers", format!("['{servers}']"));
        let server = table.start(&[&[servers][..], &options].concat());
        assert_eq!(login(&server, "root", "secret"), code, "{options:?}: {}", server.log());
        assert!(server.log().contains(reason), "{options:?}: {}", server.log());
    }
}

/// A collection with access rules.
struct RuleCollection(Table);

impl RuleCollection {
    fn new() -> RuleCollection {
        RuleCollection(Table::new())
    }

    fn insert(&self, user: &str, permission: &str, action: &str, topics: &[&str], more: BsonDocument) {
        let topics: Vec<Bson> = topics.iter().map(|topic| Bson::from(*topic)).collect();
        let rule = BsonDocument::new()
            .with("username", user)
            .with("permission", permission)
            .with("action", action)
            .with("topics", topics);
        let rule = more
            .into_fields()
            .into_iter()
            .fold(rule, |rule, (name, value)| rule.with(&name, value));
        add(&self.0.address, &self.name(), vec![rule]);
    }

    fn allow(&self, user: &str, topic: &str) {
        self.insert(user, "allow", "publish", &[topic], BsonDocument::new());
    }

    fn name(&self) -> String {
        format!("{}_acl", self.0.collection)
    }

    fn start(&self, access: &str, more: &str) -> Server {
        self.start_at(&self.0.address, access, more)
    }

    /// Starts a server whose rules are at another address than its clients.
    fn start_at(&self, rules_address: &str, access: &str, more: &str) -> Server {
        let address = &self.0.address;
        let account = "database = 'mqtt'\nuser = 'tidewire'\npassword = 'tidewire'";
        let (users, rules) = (&self.0.collection, self.name());
        let filter = r#"{"username": {"$in": ["${username}", "$all"]}}"#;
        Server::start(&Config::new(format!(
            "[access]\nanonymous = 'always'\nunknown_users = 'reject'\nproviders = ['mongodb']\n{access}\n\
             [access.mongodb]\nservers = ['{address}']\n{account}\ncollection = '{users}'\nsalt_position = 'suffix'\n\
             [access.source.mongodb]\nservers = ['{rules_address}']\n{account}\ncollection = '{rules}'\n\
             filter = '{filter}'\n{more}\n"
        )))
    }
}

fn session(server: &Server, name: &str, password: &str) -> Peer {
    server.session(&Connect::new(V5, unique("rules")).user(name, password))
}

fn may_publish(peer: &mut Peer, topic: &str) -> bool {
    peer.publish(&Publish::new(topic, "x").qos(1)) < 0x80
}

#[test]
fn documents_are_rules_in_their_order() {
    let rules = RuleCollection::new();
    let none = BsonDocument::new;
    rules.insert("user", "deny", "all", &["a/secret/#", "a/closed"], none());
    rules.insert("user", "allow", "all", &["a/#"], none());
    rules.insert("user", "allow", "publish", &["own/${clientid}"], none());
    let levels = vec![Bson::Double(1.0), Bson::Int32(2)];
    rules.insert(
        "user",
        "allow",
        "publish",
        &["q/1"],
        none().with("qos", levels).with("retain", 0),
    );
    rules.insert(
        "user",
        "allow",
        "publish",
        &["near"],
        none().with("ipaddress", "127.0.0.0/8"),
    );
    rules.insert(
        "user",
        "allow",
        "publish",
        &["far"],
        none().with("ipaddress", "192.0.2.0/24"),
    );
    rules.insert("$all", "allow", "subscribe", &["news"], none());
    rules.insert("other", "allow", "all", &["#"], none());
    let access =
        "sources = ['mongodb', 'rules']\nrules = [{ permission = 'allow', topics = ['open/#', 'a/secret/#'] }]";
    let server = rules.start(access, "");
    let connect = Connect::new(V5, unique("own")).user("user", "public");
    let own = format!("own/{}", String::from_utf8_lossy(&connect.client_id));
    let mut user = server.session(&connect);
    for (topic, expected) in [
        ("a/1", true),
        ("a/secret/1", false),
        ("a/closed", false),
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
        assert_eq!(user.subscribe_code(filter, 0) < 0x80, expected, "{filter}");
    }
    assert!(may_publish(&mut session(&server, "root", "secret"), "a/secret/1"));
    let mut anonymous = server.session(&Connect::new(V5, unique("anonymous")));
    assert!(may_publish(&mut anonymous, "open/1") && !may_publish(&mut anonymous, "a/1"));
    // In the opposite order, the rule that allows comes first.
    let server = rules.start(access, "sort = ['-_id']");
    assert!(may_publish(&mut session(&server, "user", "public"), "a/secret/1"));
}

#[test]
fn rules_are_read_when_a_client_connects() {
    let rules = RuleCollection::new();
    let server = rules.start("sources = ['mongodb']", "cache_ttl = '1h'");
    let mut before = session(&server, "user", "public");
    assert!(!may_publish(&mut before, "t"));
    rules.allow("user", "t");
    assert!(!may_publish(&mut session(&server, "user", "public"), "t"), "cached");
    Api::of(&server).call("DELETE", "/api/v1/acl/cache", &serde_json::Value::Null);
    assert!(may_publish(&mut session(&server, "user", "public"), "t"));
    assert!(!may_publish(&mut before, "t"), "a connected client keeps its rules");
    let (_, metrics) = server.http_get("/metrics");
    for (result, count) in [("allowed", 1), ("ignored", 1), ("cached", 1)] {
        let sample =
            format!("tidewire_access_source_results_total{{source=\"mongodb\",result=\"{result}\"}} {count}\n");
        assert!(metrics.contains(&sample), "{sample}{metrics}");
    }
    for attempt in INJECTIONS {
        let name = format!("{attempt}!");
        rules.0.insert(&name, Some(PUBLIC), "slat_foo123", false);
        rules.allow(&name, "own");
        let mut peer = session(&server, &name, "public");
        assert!(
            may_publish(&mut peer, "own") && !may_publish(&mut peer, "t"),
            "{attempt}"
        );
    }
}

#[test]
fn a_client_without_its_rules_is_rejected() {
    let rules = RuleCollection::new();
    rules.allow("user", "t");
    rules.insert("user", "allow", "connect", &["t"], BsonDocument::new());
    for on_failure in ["deny", "ignore"] {
        let access = "sources = ['mongodb']\nno_match = 'allow'";
        let more = format!("on_failure = '{on_failure}'");
        let server = rules.start(access, &more);
        // Rules that are not understood reject the client in any case.
        assert_eq!(login(&server, "user", "public"), UNAVAILABLE, "{on_failure}");
        assert_eq!(login(&server, "root", "secret"), ADMITTED);
        let log = server.log();
        assert!(
            log.contains("access source failed") && log.contains("rule 2: action"),
            "{log}"
        );
        // No database is at this address.
        let server = rules.start_at("127.0.0.1:1", access, &more);
        let expected = if on_failure == "deny" { UNAVAILABLE } else { ADMITTED };
        assert_eq!(login(&server, "user", "public"), expected, "{on_failure}");
    }
}
