//! Tests that an import keeps the systems that another broker asks for users and permissions.
//!
//! The configurations are written after the documentation of EMQX and of mosquitto-go-auth.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value as Json, json};

use super::archive;
use super::{
    Directory, ImportedServer, NOT_AUTHORIZED, SECRET, assert_accounted, assert_options_accounted, import, report_of,
};
use crate::database_logins::mysql;
use crate::database_logins::postgresql::Table;
use crate::jwt::{base64, claims, part};
use crate::providers::service::{Reply, Service};
use crate::support::shared::{MARIADB, POSTGRES};
use crate::support::{Connect, Publish, V5, free_port};

const JWT: &str = include_str!("emqx-jwt.hocon");
const HTTP: &str = include_str!("emqx-http.hocon");
const POSTGRESQL: &str = include_str!("emqx-postgresql.hocon");
const LDAP: &str = include_str!("emqx-ldap.hocon");
const GO_AUTH_POSTGRES: &str = include_str!("mosquitto-go-auth-postgres.conf");
const GO_AUTH_LDAP: &str = include_str!("mosquitto-go-auth-ldap.conf");
const GO_AUTH_HTTP: &str = include_str!("mosquitto-go-auth-http.conf");

/// The secret of the tokens in the configurations.
const TOKEN_SECRET: &str = "hush-secret-0123456789-0123456789";

/// The result of an import, with the options in the form of TOML.
struct Imported {
    directory: Directory,
    report: String,
    options: toml::Table,
    secrets: toml::Table,
}

impl Imported {
    fn setup(&self) -> PathBuf {
        self.directory.0.join("setup")
    }

    fn option(&self, key: &str) -> toml::Value {
        let of = |table: &toml::Table| {
            let mut words = key.split('.');
            let first = table.get(words.next()?)?;
            words.try_fold(first, |value, word| value.get(word)).cloned()
        };
        let found = of(&self.options).or_else(|| of(&self.secrets));
        found.unwrap_or_else(|| panic!("{key} is not set: {}", self.options))
    }

    #[track_caller]
    fn assert_options(&self, expected: &[(&str, toml::Value)]) {
        for (key, value) in expected {
            assert_eq!(self.option(key), *value, "{key}\n{}", self.report);
        }
    }
}

/// Imports a configuration. No file but that of the secrets contains a secret, and `tidewire check` accepts it.
#[track_caller]
fn imported(broker: &str, config: &str) -> Imported {
    let directory = Directory::new();
    let file = match broker {
        "emqx" => directory.file("a.tar.gz", archive::of_emqx("5.8.4", config, &[])),
        _ => directory.file("mosquitto.conf", config),
    };
    let setup = directory.0.join("setup");
    let report = report_of(&import(broker, &file, &["--to", setup.to_str().unwrap()]));
    match broker {
        "emqx" => assert_accounted(&report, "cluster.hocon", config),
        _ => assert_options_accounted(&report, "mosquitto.conf", config),
    }
    let table = |path: &Path| -> toml::Table {
        let text = fs::read_to_string(path).unwrap_or_default();
        text.parse().unwrap()
    };
    let options = table(&setup.join("tidewire.toml"));
    assert!(!options.to_string().contains(SECRET), "{options}");
    let check = Command::new(env!("CARGO_BIN_EXE_tidewire"))
        .args(["check", "--config"])
        .arg(setup.join("tidewire.toml"))
        .output()
        .unwrap();
    report_of(&check);
    Imported {
        secrets: table(&setup.join("conf.d/secrets.toml")),
        options,
        report,
        directory,
    }
}

/// Signs a token with the shared secret.
fn token(secret: &str, claims: &Json) -> String {
    let signed = format!("{}.{}", part(&json!({"alg": "HS256", "typ": "JWT"})), part(claims));
    let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, secret.as_bytes());
    format!(
        "{signed}.{}",
        base64(ring::hmac::sign(&key, signed.as_bytes()).as_ref())
    )
}

fn login(server: &ImportedServer, user: &str, password: &str) -> u8 {
    server.connack_code(&Connect::new(V5, user).user(user, password))
}

fn words(list: &[&str]) -> toml::Value {
    list.to_vec().into()
}

#[test]
fn emqx_tokens_log_in_at_the_imported_server() {
    let mqtt = free_port();
    let imported = imported("emqx", &JWT.replace("{mqtt}", &mqtt.to_string()));
    imported.assert_options(&[
        ("access.providers", words(&["jwt"])),
        ("access.anonymous", "never".into()),
        ("access.jwt.from", "password".into()),
        ("access.jwt.secret", TOKEN_SECRET.into()),
        ("access.jwt.verify_claims.username", "${username}".into()),
        ("access.jwt.disconnect_after_expire", true.into()),
        ("access.jwt.require_expiry", false.into()),
        ("access.jwt.acl_claim_name", "acl".into()),
        ("access.no_match", "deny".into()),
    ]);
    let server = ImportedServer::start(&imported.setup(), mqtt);
    let rule = json!({"permission": "allow", "action": "publish", "topic": "meters/${username}"});
    let good = claims("meter", json!({"username": "meter", "acl": [rule]}));
    let connect = Connect::new(V5, "c").user("meter", token(TOKEN_SECRET, &good));
    let mut meter = server.session(&connect);
    assert_eq!(meter.publish(&Publish::new("meters/meter", "1").qos(1)) & 0x80, 0);
    assert_eq!(meter.publish(&Publish::new("meters/other", "1").qos(1)), NOT_AUTHORIZED);
    for (user, secret, claims) in [
        ("other", TOKEN_SECRET, &good),
        ("meter", "hush-another-0123456789-0123456789", &good),
        (
            "meter",
            TOKEN_SECRET,
            &json!({"username": "meter", "exp": 1_000_000_000}),
        ),
    ] {
        assert_ne!(login(&server, user, &token(secret, claims)), 0, "{user} {claims}");
    }
    assert_ne!(login(&server, "meter", "password"), 0);
    assert_ne!(server.connack_code(&Connect::new(V5, "anonymous")), 0);
}

/// Answers both questions of the configuration.
fn service() -> Service {
    Service::start(|request| {
        let result = match (request["password"].as_str(), request["topic"].as_str()) {
            (Some("good"), _) => "allow",
            (Some(_), _) => "deny",
            (None, Some("open/closed")) => "deny",
            (None, Some("own")) => "allow",
            _ => "ignore",
        };
        Reply::Json(json!({ "result": result }))
    })
}

#[test]
fn emqx_services_decide_at_the_imported_server() {
    let (service, mqtt, gate) = (service(), free_port(), free_port());
    let config = HTTP
        .replace("{service}", &service.address.to_string())
        .replace("{mqtt}", &mqtt.to_string())
        .replace("{gate}", &gate.to_string());
    let imported = imported("emqx", &config);
    imported.assert_options(&[
        ("access.providers", words(&["http"])),
        ("access.http.url", format!("http://{}/auth", service.address).into()),
        ("access.http.method", "post".into()),
        ("access.http.body_format", "json".into()),
        ("access.http.timeout", "5s".into()),
        ("access.http.body.clientid", "${clientid}".into()),
        ("access.http.headers.X-Api-Key", "hush-key".into()),
        ("access.sources", words(&["http", "rules"])),
        ("access.source.http.body.action", "${action}".into()),
        ("access.source.http.cache_size", 32.into()),
        ("access.deny_action", "ignore".into()),
        ("listeners.tcp.gate.providers", words(&["jwt"])),
        ("access.jwt.verify_claims.sub", "${username}".into()),
    ]);
    let server = ImportedServer::start(&imported.setup(), mqtt);
    assert_ne!(login(&server, "meter", "bad"), 0);
    let mut meter = server.session(&Connect::new(V5, "c").user("meter", "good"));
    assert_eq!(meter.publish(&Publish::new("own", "1").qos(1)) & 0x80, 0);
    // The service ignores it, and the rules allow it.
    assert_eq!(meter.publish(&Publish::new("open/x", "1").qos(1)) & 0x80, 0);
    let request = service.requests_of("meter").pop().unwrap();
    assert_eq!(
        (&request["topic"], &request["action"]),
        (&json!("open/x"), &json!("publish"))
    );
    // The service denies it before the rules could allow it.
    assert_eq!(meter.publish(&Publish::new("open/closed", "1").qos(1)), NOT_AUTHORIZED);
    // The other listener accepts tokens only.
    let gate = ImportedServer::connack_code_at(gate);
    assert_ne!(gate(&Connect::new(V5, "d").user("meter", "good")), 0);
    let good = token(TOKEN_SECRET, &claims("meter", json!({})));
    assert_eq!(gate(&Connect::new(V5, "d").user("meter", good)), 0);
}

#[test]
fn emqx_databases_and_directories_are_imported() {
    let postgresql = imported("emqx", POSTGRESQL);
    postgresql.assert_options(&[
        ("access.providers", words(&["postgresql"])),
        ("access.postgresql.host", "127.0.0.1".into()),
        ("access.postgresql.port", 5432.into()),
        ("access.postgresql.user", "postgres".into()),
        ("access.postgresql.password", "hush-public".into()),
        ("access.postgresql.salt_position", "suffix".into()),
        ("access.sources", words(&["postgresql", "redis"])),
        ("access.source.redis.servers", words(&["127.0.0.1:6379"])),
        ("access.source.redis.password", "hush-redis".into()),
        (
            "access.source.postgresql.query",
            "SELECT permission, action, topic FROM mqtt_acl WHERE username = ${username}".into(),
        ),
    ]);
    let ldap = imported("emqx", LDAP);
    ldap.assert_options(&[
        ("access.providers", words(&["ldap", "mongodb"])),
        ("access.mongodb.servers", words(&["127.0.0.1:27017"])),
        ("access.mongodb.password", "hush-mongo".into()),
        ("access.mongodb.filter", r#"{"username":"${username}"}"#.into()),
        ("access.ldap.servers", words(&["ldap://127.0.0.1"])),
        ("access.ldap.method", "hash".into()),
        ("access.ldap.password", "hush-root".into()),
        ("access.no_match", "deny".into()),
    ]);
    let part = "tidewire has no source of access rules of type ldap";
    assert!(ldap.report.contains(part), "{}", ldap.report);
}

#[test]
fn mosquitto_go_auth_backends_are_imported() {
    let postgres = imported("mosquitto", GO_AUTH_POSTGRES);
    postgres.assert_options(&[
        ("access.providers", words(&["postgresql"])),
        ("access.postgresql.database", "appserver".into()),
        ("access.postgresql.password", "hush-appserver".into()),
        ("access.postgresql.password_hash_algorithm", "bcrypt".into()),
        ("access.sources", words(&["postgresql"])),
        ("access.source.postgresql.tls", false.into()),
        ("access.no_match", "deny".into()),
    ]);
    let ldap = imported("mosquitto", GO_AUTH_LDAP);
    ldap.assert_options(&[
        ("access.providers", words(&["ldap"])),
        ("access.ldap.base_dn", "ou=users,dc=example,dc=org".into()),
        (
            "access.ldap.filter",
            "(&(objectClass=inetOrgPerson)(uid=${username}))".into(),
        ),
        ("access.ldap.password", "hush-admin".into()),
        ("access.no_match", "deny".into()),
    ]);
    assert!(
        ldap.report.contains("tidewire reads no access rules from ldap"),
        "{}",
        ldap.report
    );
}

#[test]
fn mosquitto_go_auth_service_decides_about_logins() {
    let mqtt = free_port();
    let service = Service::start(|request| match request["password"].as_str() {
        Some("good") => Reply::Raw("200 OK", "the status decides"),
        _ => Reply::Raw("403 Forbidden", ""),
    });
    let config = GO_AUTH_HTTP
        .replace("{port}", &mqtt.port().to_string())
        .replace("{service}", &service.address.port().to_string());
    let imported = imported("mosquitto", &config);
    imported.assert_options(&[
        ("access.providers", words(&["http"])),
        ("access.http.url", format!("http://{}/user", service.address).into()),
    ]);
    let server = ImportedServer::start(&imported.setup(), mqtt);
    assert_ne!(login(&server, "meter", "bad"), 0);
    let mut meter = server.session(&Connect::new(V5, "c").user("meter", "good"));
    assert_eq!(meter.publish(&Publish::new("a", "1").qos(1)), NOT_AUTHORIZED);
    assert_eq!(meter.subscribe_code("a", 1), NOT_AUTHORIZED);
}

/// Hash of `password`, in the format of the hasher `argon2id`.
const ARGON2ID: &str = "$argon2id$v=19$m=256,t=2,p=1$c29tZXNhbHQ$nf65EOgLrQMR/uIPnA4rEsF5h7TKyQwu9U1bMCHGi/4";

/// Topics of `ann` with their accesses.
const TOPICS: &str = "('ann', 'all/%c/#', 7), ('ann', 'write/%u', 2), ('ann', 'read/#', 1), ('ann', 'Case/x', 1), \
                      ('ann', 'case/x', 4)";

/// Imports a backend with the user `ann` and her topics, and checks what she may do.
#[track_caller]
fn start_go_auth(backend: &str) -> (Imported, ImportedServer) {
    let mqtt = free_port();
    let config = format!("listener {} 127.0.0.1\nauth_plugin go-auth.so\n{backend}", mqtt.port());
    let imported = imported("mosquitto", &config);
    let server = ImportedServer::start(&imported.setup(), mqtt);
    assert_ne!(login(&server, "ann", "wrong"), 0);
    assert_ne!(login(&server, "nobody", "password"), 0);
    let mut ann = server.session(&Connect::new(V5, "c").user("ann", "password"));
    for (topic, may_publish, may_subscribe) in [
        ("all/c/x", true, true),
        ("all/d/x", false, false),
        ("write/ann", true, false),
        ("write/bob", false, false),
        ("read/x", false, false),
        // Names of topics are compared exactly.
        ("Case/x", false, false),
        ("case/x", false, false),
    ] {
        let code = ann.publish(&Publish::new(topic, "1").qos(1));
        assert_eq!(code < 0x80, may_publish, "{topic}");
        assert_eq!(ann.subscribe_code(topic, 1) < 0x80, may_subscribe, "{topic}");
    }
    (imported, server)
}

#[test]
fn mosquitto_go_auth_queries_work_with_postgresql() {
    let table = Table::with_root(POSTGRES.value("TIDEWIRE_POSTGRES"));
    let name = &table.name;
    let user = |user: &str, is_super: bool| {
        format!(
            "INSERT INTO {name} (username, password_hash, is_superuser) VALUES ('{user}', '{ARGON2ID}', {is_super})"
        )
    };
    table.sql(&user("ann", false));
    table.sql(&user("chief", true));
    table.sql(&format!(
        "CREATE TABLE {name}_acl (username text, topic text, rw integer)"
    ));
    table.sql(&format!("INSERT INTO {name}_acl VALUES {TOPICS}"));
    let (host, port) = table.address.rsplit_once(':').unwrap();
    let (_imported, server) = start_go_auth(&format!(
        "auth_opt_backends postgres\nauth_opt_pg_hasher argon2id\n\
         auth_opt_pg_host {host}\nauth_opt_pg_port {port}\nauth_opt_pg_dbname postgres\nauth_opt_pg_user postgres\n\
         auth_opt_pg_password tidewire\nauth_opt_pg_sslmode disable\n\
         auth_opt_pg_userquery SELECT password_hash FROM {name} WHERE username = $1 LIMIT 1\n\
         auth_opt_pg_superquery SELECT count(*) FROM {name} WHERE username = $1 AND is_superuser\n\
         auth_opt_pg_aclquery SELECT topic FROM {name}_acl WHERE username = $1 AND rw & $2 > 0\n"
    ));
    let mut chief = server.session(&Connect::new(V5, "d").user("chief", "password"));
    assert_eq!(chief.publish(&Publish::new("write/bob", "1").qos(1)) & 0x80, 0);
}

#[test]
fn mosquitto_go_auth_queries_work_with_mysql() {
    let table = mysql::Table::with_root(MARIADB.value("TIDEWIRE_MARIADB"));
    let name = &table.name;
    table.sql(&format!(
        "INSERT INTO {name} (username, password_hash) VALUES ('ann', '{ARGON2ID}')"
    ));
    table.sql(&format!(
        "CREATE TABLE {name}_acl (username varchar(100), topic varchar(100), rw int)"
    ));
    table.sql(&format!("INSERT INTO {name}_acl VALUES {TOPICS}"));
    let (host, port) = table.address.rsplit_once(':').unwrap();
    let (_imported, _server) = start_go_auth(&format!(
        "auth_opt_backends mysql\nauth_opt_mysql_hasher argon2id\n\
         auth_opt_mysql_host {host}\nauth_opt_mysql_port {port}\nauth_opt_mysql_dbname tidewire\n\
         auth_opt_mysql_user tidewire\nauth_opt_mysql_password tidewire\n\
         auth_opt_mysql_userquery SELECT password_hash FROM {name} WHERE username = ? LIMIT 1\n\
         auth_opt_mysql_aclquery SELECT topic FROM {name}_acl WHERE username = ? AND rw & ? > 0\n"
    ));
}

#[test]
fn mosquitto_go_auth_queries_work_with_sqlite() {
    let directory = Directory::new();
    let file = directory.0.join("clients.db");
    let connection = rusqlite::Connection::open(&file).unwrap();
    connection
        .execute_batch(&format!(
            "CREATE TABLE account (username TEXT, password_hash TEXT);
             INSERT INTO account VALUES ('ann', '{ARGON2ID}');
             CREATE TABLE acl (username TEXT, topic TEXT COLLATE NOCASE, rw INTEGER);
             INSERT INTO acl VALUES {TOPICS};"
        ))
        .unwrap();
    let file = file.display();
    let (_imported, _server) = start_go_auth(&format!(
        "auth_opt_backends sqlite\nauth_opt_sqlite_hasher argon2id\nauth_opt_sqlite_source {file}\n\
         auth_opt_sqlite_userquery SELECT password_hash FROM account WHERE username = ? LIMIT 1\n\
         auth_opt_sqlite_aclquery SELECT topic FROM acl WHERE username = ? AND rw & ? > 0\n"
    ));
}
