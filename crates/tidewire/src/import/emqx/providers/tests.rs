//! The documented authenticators of EMQX, and those that cannot be imported.

use super::super::users::{Authentication, UserTables};
use super::*;
use crate::import::hocon::Hocon;
use crate::import::report::Report;

const SECRET: &str = "hush-0123456789-0123456789-0123456789";

/// Imports the list of authenticators.
fn imported_at(version: u32, authenticators: &str) -> (Setup, String) {
    let text = format!("authentication = [{authenticators}]");
    let hocon = Hocon::parse("cluster.hocon", &text, &|_| Err(String::new())).expect("valid");
    let (mut setup, report) = (Setup::new().expect("random bytes"), Report::default());
    let root = Setting::root(&hocon, &report);
    let authentication = Authentication {
        authenticators: root.get("authentication"),
        is_by_listener: false,
    };
    let tables = UserTables::default();
    authentication.import(&tables, &mut Providers::new(version), &mut setup, &report);
    root.finish();
    let report = report.text("title");
    assert!(!report.contains("hush"), "{report}");
    (setup, report)
}

fn imported(authenticators: &str) -> (Setup, String) {
    imported_at(5, authenticators)
}

/// Checks parts of the options of a provider, and that everything is imported and valid.
#[track_caller]
fn assert_provider(authenticator: &str, kind: &str, parts: &[&str]) {
    let (setup, report) = imported(authenticator);
    assert_eq!(setup.list("access.providers"), [kind], "{report}");
    assert_eq!(setup.option("access.anonymous"), Some("never"));
    let options = setup.table_text(&format!("access.{kind}"));
    for part in parts {
        assert!(options.contains(part), "{part}\n{options}\n{report}");
    }
    assert!(!report.contains("tidewire has no such option"), "{report}");
    setup.install(None, "title", &Report::default()).expect("valid");
}

fn jwt(more: &str) -> String {
    format!("{{mechanism = jwt, algorithm = \"hmac-based\", secret = \"{SECRET}\"{more}}}")
}

const HTTP: &str =
    r#"{mechanism = password_based, backend = http, method = post, url = "http://127.0.0.1:32333/auth"}"#;

const POSTGRESQL: &str = r#"{
  mechanism = password_based
  backend = postgresql
  password_hash_algorithm {name = sha256, salt_position = suffix}
  database = mqtt
  username = postgres
  password = "hush-pg"
  server = "127.0.0.1:5432"
  query = "SELECT password_hash, salt, is_superuser FROM users where username = ${username} LIMIT 1"
}"#;

#[test]
fn documented_tokens_are_imported() {
    assert_provider(
        &jwt(
            ", from = password, verify_claims {username = \"${username}\"}, disconnect_after_expire = false, enable = true",
        ),
        "jwt",
        &[
            SECRET,
            "secret_base64_encoded = false",
            "from = \"password\"",
            "username = \"${username}\"",
            "disconnect_after_expire = true",
            "leeway = \"0s\"",
            "require_expiry = false",
        ],
    );
    assert_provider(
        r#"{mechanism = jwt, use_jwks = true, algorithm = "public-key", endpoint = "https://id.example/jwks.json",
            refresh_interval = 600, pool_size = 8, ssl {enable = true, verify = verify_peer, server_name_indication = disable},
            headers {"Accept" = "application/json"}, acl_claim_name = permissions,
            verify_claims = [{name = sub, value = "${clientid}"}], on_missing_jwt = ignore}"#,
        "jwt",
        &[
            "jwks_url = \"https://id.example/jwks.json\"",
            "refresh_interval = \"600s\"",
            "acl_claim_name = \"permissions\"",
            "sub = \"${clientid}\"",
        ],
    );
    let certificate = public_key();
    let (setup, report) = imported(&format!(
        "{{mechanism = jwt, algorithm = \"public-key\", use_jwks = false, public_key = \"\"\"{certificate}\"\"\"}}"
    ));
    assert_eq!(setup.list("access.providers"), ["jwt"], "{report}");
    assert!(setup.option("access.jwt.public_key_file").is_some(), "{report}");
    setup.install(None, "title", &Report::default()).expect("valid");
}

/// A public key with Ed25519, that of RFC 8410.
fn public_key() -> &'static str {
    "-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VwAyEAGb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE=\n-----END PUBLIC KEY-----\n"
}

#[test]
fn documented_services_are_imported() {
    assert_provider(
        r#"{
          mechanism = password_based
          backend = http
          enable = true
          method = post
          url = "http://127.0.0.1:32333/auth/${clientid}?user=${username}"
          body {username = "${username}", password = "${password}"}
          headers {
            accept = "application/json"
            "cache-control" = "no-cache"
            connection = "keep-alive"
            "content-type" = "application/x-www-form-urlencoded"
            "keep-alive" = "timeout=30, max=1000"
            "X-Request-Source" = "hush-EMQX"
          }
          connect_timeout = 15s
          enable_pipelining = 100
          pool_size = 8
          request_timeout = 2s
          ssl {enable = false, verify = verify_none}
        }"#,
        "http",
        &[
            "url = \"http://127.0.0.1:32333/auth/${clientid}?user=${username}\"",
            "method = \"post\"",
            "body_format = \"form\"",
            "password = \"${password}\"",
            "timeout = \"2s\"",
            "{ X-Request-Source = \"hush-EMQX\" }",
        ],
    );
    assert_provider(
        r#"{mechanism = password_based, backend = http, method = get, url = "https://auth.example/mqtt",
            body {name = "${username}"}, ssl {enable = true, verify = verify_none}, request_timeout = 5m}"#,
        "http",
        &["method = \"get\"", "verify = false", "timeout = \"1m\""],
    );
}

#[test]
fn documented_databases_are_imported() {
    let sql = [
        "host = \"127.0.0.1\"",
        "database = \"mqtt\"",
        "password_hash_algorithm = \"sha256\"",
        "salt_position = \"suffix\"",
        "where username = ${username} LIMIT 1",
        "password = \"hush-pg\"",
        "tls = false",
    ];
    let with_tls = |sql: &str| {
        sql.replace(
            "server =",
            "ssl {enable = false, verify = verify_peer}\n  pool_size = 500\n  server =",
        )
    };
    let postgresql = [&sql[..6], &["user = \"postgres\"", "port = 5432", "pool_size = 256"]].concat();
    assert_provider(&with_tls(POSTGRESQL), "postgresql", &postgresql);
    let mysql = POSTGRESQL
        .replace("= postgresql", "= mysql")
        .replace("username = postgres", "query_timeout = 5s")
        .replace(":5432", "")
        .replace(
            "{name = sha256, salt_position = suffix}",
            "{name = pbkdf2, mac_fun = sha512, iterations = 1000, dk_length = 64}",
        );
    let expected = [
        "user = \"root\"",
        "port = 3306",
        "timeout = \"5s\"",
        "mac_fun = \"sha512\"",
        "dk_length = 64",
    ];
    assert_provider(&mysql, "mysql", &expected);
    assert_provider(
        r#"{
          mechanism = password_based
          backend = redis
          redis_type = sentinel
          servers = "10.123.13.11:6379,10.123.13.12"
          sentinel = mymaster
          sentinel_password = "hush-sentinel"
          password_hash_algorithm {name = sha256, salt_position = suffix}
          cmd = "HMGET mqtt_user:${username} password_hash salt is_superuser"
          database = 1
          password = "hush-redis"
          auto_reconnect = true
        }"#,
        "redis",
        &[
            "redis_type = \"sentinel\"",
            "servers = [\"10.123.13.11:6379\", \"10.123.13.12:6379\"]",
            "sentinel_master = \"mymaster\"",
            "sentinel_password = \"hush-sentinel\"",
            "database = 1",
        ],
    );
}

#[test]
fn documented_directories_are_imported() {
    let ldap = |method: &str| {
        format!(
            r#"{{
              backend = "ldap"
              mechanism = "password_based"
              method {{{method}}}
              server = "127.0.0.1:389"
              query_timeout = "5s"
              username = "cn=root,dc=emqx,dc=io"
              password = "hush-root"
              pool_size = 8
              base_dn = "uid=${{username}},ou=testdevice,dc=emqx,dc=io"
              filter = "(objectClass=mqttUser)"
            }}"#
        )
    };
    assert_provider(
        &ldap("type = hash, password_attribute = userPassword, is_superuser_attribute = isSuperuser"),
        "ldap",
        &[
            "servers = [\"ldap://127.0.0.1\"]",
            "method = \"hash\"",
            "base_dn = \"uid=${username},ou=testdevice,dc=emqx,dc=io\"",
            "filter = \"(&(objectClass=mqttUser)(|(isEnabled=TRUE)(!(isEnabled=*))))\"",
            "is_superuser_attribute = \"isSuperuser\"",
            "password = \"hush-root\"",
        ],
    );
    assert_provider(
        &ldap("type = bind, bind_password = \"${password}\""),
        "ldap",
        &["method = \"bind\"", "filter = \"(objectClass=mqttUser)\""],
    );
}

#[test]
fn the_order_is_that_of_emqx() {
    let order = |authenticators: &[&str]| {
        let (setup, _) = imported(&authenticators.join(","));
        setup
            .list("access.providers")
            .iter()
            .map(|kind| (*kind).to_owned())
            .collect::<Vec<_>>()
    };
    let jwt = jwt("");
    assert_eq!(order(&[HTTP, &jwt, POSTGRESQL]), ["http", "jwt", "postgresql"]);
    assert_eq!(order(&[POSTGRESQL, &jwt, HTTP]), ["postgresql", "jwt", "http"]);
    let disabled = POSTGRESQL.replace("backend", "enable = false\n  backend");
    assert_eq!(order(&[&disabled, HTTP]), ["http"]);
}

#[test]
fn nothing_is_imported_behind_an_authenticator_that_could_reject() {
    let broken = POSTGRESQL.replace("${username}", "${cert_pem}");
    for (first, part) in [
        (
            "{mechanism = password_based, backend = cassandra}",
            "does not authenticate clients with password_based cassandra",
        ),
        ("{mechanism = gssapi, backend = kerberos}", "set access.kerberos"),
        (broken.as_str(), "unknown placeholder ${cert_pem}"),
        ("{enable = maybe, mechanism = jwt}", "neither true nor false"),
        (
            "{mechanism = jwt, algorithm = \"hmac-based\", secret = short}",
            "found a secret with 5 bytes",
        ),
        // The archive of this test has no users.
        (
            "{mechanism = password_based, backend = built_in_database}",
            "does not contain its users",
        ),
    ] {
        let (setup, report) = imported(&format!("{first}, {HTTP}"));
        assert!(
            !setup.has("access.providers") && !setup.has("access.http.url"),
            "{first}\n{report}"
        );
        assert!(report.contains(part), "{part}\n{report}");
        assert!(report.contains("to ask it, add it to access.providers"), "{report}");
        setup.install(None, "title", &Report::default()).expect("valid");
    }
    // It ignores clients with a password.
    let (setup, report) = imported(&format!("{{mechanism = scram, backend = http}}, {HTTP}"));
    assert_eq!(setup.list("access.providers"), ["http"], "{report}");
}

#[test]
fn an_authenticator_that_differs_is_left_out() {
    let http = |more: &str| HTTP.replace("method = post", &format!("method = post, {more}"));
    let with = |from: &str, to: &str| POSTGRESQL.replace(from, to);
    for (authenticator, part) in [
        (http("precondition = \"x\""), "precondition"),
        (http("oauth2 {enable = true}"), "oauth2"),
        (http("headers {host = other}"), "it sends a header host"),
        (
            http("headers {\"content-type\" = \"text/plain\"}"),
            "neither JSON nor a form",
        ),
        (http("body {a = {b = c}}"), "is not text"),
        (
            http("body {a = \"${client_attrs.x}\"}"),
            "has no value before the login",
        ),
        (
            HTTP.replace("127.0.0.1", "${clientid}.example"),
            "placeholder in the host",
        ),
        (HTTP.replace("127.0.0.1", "u:hush@h"), "its URL contains a user name"),
        (HTTP.replace("http://", "ftp://"), "begins with neither"),
        (with("sha256", "ripemd"), "no password hashes of type ripemd"),
        (with("sha256", "pbkdf2"), "mac_fun"),
        (with("127.0.0.1:5432", "a:5432,b:5432"), "several servers"),
        (with("username = ${username}", "TRUE"), "its query has no placeholder"),
        (with("database = mqtt", ""), "its database is missing"),
        (
            with(
                "database",
                "ssl {enable = true, certfile = \"/missing/c.pem\"}\n  database",
            ),
            "ssl.certfile",
        ),
        (
            jwt(", verify_claims {a = \"${peerport}\"}"),
            "unknown placeholder ${peerport}",
        ),
        (jwt(", from = topic"), "neither password nor username"),
    ] {
        let (setup, report) = imported(&authenticator);
        assert!(!setup.has("access.providers"), "{authenticator}\n{report}");
        assert!(report.contains(part), "{part}\n{report}");
        for row in report.lines().filter(|row| row.contains("authentication[1]")) {
            assert!(row.contains("not supported"), "{row}");
        }
    }
}

#[test]
fn one_provider_of_a_kind_is_imported() {
    let other = HTTP.replace("/auth", "/other");
    let (setup, report) = imported(&format!("{HTTP}, {other}, {}", jwt("")));
    assert_eq!(setup.list("access.providers"), ["http"], "{report}");
    assert!(
        report.contains("tidewire has one provider http, and authentication[1] has other settings"),
        "{report}"
    );
}

#[test]
fn a_service_is_not_asked_about_clients_without_a_required_token() {
    for (version, more, is_asked) in [
        (5, "", true),
        (5, ", on_missing_jwt = deny", false),
        (6, "", false),
        (6, ", on_missing_jwt = ignore", true),
    ] {
        let (setup, report) = imported_at(version, &format!("{}, {HTTP}", jwt(more)));
        assert_eq!(setup.has("access.http.url"), is_asked, "{more}\n{report}");
    }
    let (setup, report) = imported(&format!("{}, {POSTGRESQL}", jwt(", on_missing_jwt = deny")));
    assert_eq!(setup.list("access.providers"), ["jwt", "postgresql"], "{report}");
}

#[test]
fn scram_users_with_other_authenticators_are_left_out() {
    let scram = "{mechanism = scram, backend = built_in_database}";
    for authenticators in [format!("{scram}, {HTTP}"), format!("{HTTP}, {scram}")] {
        let (setup, report) = imported(&authenticators);
        assert_eq!(setup.list("access.providers"), ["http"], "{report}");
        assert!(!setup.has("access.scram"), "{report}");
        assert!(report.contains("there are other authenticators"), "{report}");
    }
}

#[test]
fn providers_are_left_out_if_emqx_decides_with_something_else() {
    let text = format!("authentication = [{HTTP}]");
    let hocon = Hocon::parse("cluster.hocon", &text, &|_| Err(String::new())).expect("valid");
    let (mut setup, report) = (Setup::new().expect("random bytes"), Report::default());
    let root = Setting::root(&hocon, &report);
    let mut providers = Providers::new(5);
    providers.close("EMQX sets the client ID");
    for authenticator in root.get("authentication").items() {
        let added = providers.add(&authenticator, &mut setup);
        assert_eq!(added, Err("EMQX sets the client ID".to_owned()));
    }
    assert!(!setup.has_table("access.http"));
}

/// The authenticator of EMQX's documentation.
const MONGODB: &str = r#"{
  mechanism = password_based
  backend = mongodb
  enable = true
  password_hash_algorithm {name = sha256, salt_position = suffix}
  collection = "mqtt_user"
  filter { username = "${username}" }
  mongo_type = single
  server = "127.0.0.1:27017"
  database = "mqtt"
  username = "emqx"
  password = "hush-mongo"
}"#;

#[test]
fn documented_collections_are_imported() {
    assert_provider(
        MONGODB,
        "mongodb",
        &[
            "mongo_type = \"single\"",
            "servers = [\"127.0.0.1:27017\"]",
            "database = \"mqtt\"",
            "collection = \"mqtt_user\"",
            "user = \"emqx\"",
            "hush-mongo",
            "username",
            "salt_position = \"suffix\"",
            "tls = false",
        ],
    );
    assert_provider(
        r#"{
          mechanism = password_based, backend = mongodb, mongo_type = rs
          servers = "10.123.12.10:27017,10.123.12.11,[::1]:27018", replica_set_name = rs0, r_mode = slave_ok
          database = mqtt, collection = users, auth_source = mqtt, pool_size = 4, srv_record = false
          use_legacy_protocol = auto, w_mode = unsafe, topology {connect_timeout_ms = 20s}
          filter {"$or" = [{user = "${username}", level = 5}, {client = "${clientid}"}]}
          password_hash_field = hash, salt_field = pepper, is_superuser_field = root
          password_hash_algorithm {name = bcrypt}, ssl {enable = true, verify = verify_peer}
        }"#,
        "mongodb",
        &[
            "servers = [\"10.123.12.10:27017\", \"10.123.12.11:27017\", \"[::1]:27018\"]",
            "replica_set_name = \"rs0\"",
            "r_mode = \"slave_ok\"",
            "auth_source = \"mqtt\"",
            "pool_size = 4",
            "{\"$or\":[{\"level\":5,\"user\":\"${username}\"},{\"client\":\"${clientid}\"}]}",
            "password_hash_field = \"hash\"",
            "salt_field = \"pepper\"",
            "is_superuser_field = \"root\"",
            "tls = true",
        ],
    );
}

#[test]
fn collections_that_could_admit_others_are_left_out() {
    for (from, to, part) in [
        (
            "filter { username = \"${username}\" }",
            "",
            "its filter has no placeholder",
        ),
        (
            "username = \"${username}\"",
            "\"$where\" = \"${username}\"",
            "$where has a placeholder",
        ),
        (
            "username = \"${username}\"",
            "\"${username}\" = 1",
            "only values may have placeholders",
        ),
        ("${username}", "${cert_pem}", "unknown placeholder ${cert_pem}"),
        (
            "mongo_type = single",
            "mongo_type = single, srv_record = true",
            "srv_record",
        ),
        (
            "mongo_type = single",
            "mongo_type = single, use_legacy_protocol = true",
            "3.6",
        ),
        ("mongo_type = single", "mongo_type = other", "its mongo_type is unknown"),
        ("mongo_type = single", "mongo_type = rs", "its server is missing"),
        ("database = \"mqtt\"", "", "its database is missing"),
        ("password = \"hush-mongo\"", "", "its username or password is missing"),
    ] {
        assert!(MONGODB.contains(from), "{from}");
        let (setup, report) = imported(&format!("{}, {HTTP}", MONGODB.replace(from, to)));
        assert!(!setup.has("access.providers"), "{to}: {report}");
        assert!(report.contains(part), "{part}\n{report}");
    }
}

#[test]
fn rules_of_collections_are_imported_in_the_order_of_emqx() {
    let source = |more: &str| {
        let text = format!(
            "{{type = mongodb, mongo_type = single, server = \"db:27017\", database = mqtt, collection = acl, \
             filter {{username = \"${{username}}\"}}{more}}}"
        );
        let hocon = Hocon::parse("cluster.hocon", &format!("s = {text}"), &|_| Err(String::new())).expect("valid");
        let (mut setup, report) = (Setup::new().expect("random bytes"), Report::default());
        let draft = super::source("mongodb", &Setting::root(&hocon, &report).get("s"))?;
        draft.install(&mut setup);
        Ok::<_, String>(setup.table_text("access.source.mongodb"))
    };
    let options = source(", limit = 1000, skip = 0").unwrap();
    for part in ["sort = [\"-_id\"]", "collection = \"acl\"", "servers = [\"db:27017\"]"] {
        assert!(options.contains(part), "{part}\n{options}");
    }
    assert!(source(", skip = 1").unwrap_err().contains("skips documents"));
    assert!(source(", limit = 10").unwrap_err().contains("could leave out rules"));
}
