//! The documented configurations of mosquitto-go-auth.

use super::super::tests::try_import;
use crate::import::report::Report;
use crate::import::setup::Setup;

const PLUGIN: &str = "listener 1884 127.0.0.1\nauth_plugin /etc/mosquitto/conf.d/go-auth.so\n";
const DENY_ALL: &str = "deny All # $SYS/#\n";

/// After the README: the backend `postgres` with bcrypt.
const POSTGRES: &str = "auth_opt_backends postgres\nauth_opt_pg_hasher bcrypt\nauth_opt_pg_hasher_cost 10\n\
                        auth_opt_pg_host localhost\nauth_opt_pg_port 5432\nauth_opt_pg_dbname appserver\n\
                        auth_opt_pg_user appserver\nauth_opt_pg_password hush-pg\nauth_opt_pg_connect_tries 5\n\
                        auth_opt_pg_sslmode disable\n\
                        auth_opt_pg_userquery select password_hash from \"user\" where username = $1 and is_active = true limit 1\n\
                        auth_opt_pg_superquery select count(*) from \"user\" where username = $1 and is_admin = true\n";
const LDAP: &str = "auth_opt_backends ldap\nauth_opt_ldap_url ldap://localhost:389\n\
                    auth_opt_ldap_user_dn ou=users,dc=example,dc=org\nauth_opt_ldap_bind_dn cn=admin,dc=example,dc=org\n\
                    auth_opt_ldap_bind_password hush-ldap\nauth_opt_ldap_user_filter (&(objectClass=posixAccount)(uid=%s))\n\
                    auth_opt_ldap_superuser_filter (&(uid=%s)(memberOf=cn=admins,dc=example,dc=org))\n";
const HTTP: &str = "auth_opt_backends http\nauth_opt_http_host auth.example\nauth_opt_http_port 3000\n\
                    auth_opt_http_getuser_uri /user\nauth_opt_http_superuser_uri /superuser\n\
                    auth_opt_http_aclcheck_uri /acl\nauth_opt_http_response_mode status\nauth_opt_http_params_mode form\n\
                    auth_opt_http_with_tls true\nauth_opt_http_timeout 7\n";

/// Imports the options behind the line of the plug-in. Each line is in the report.
#[track_caller]
fn imported_with(options: &str, others: &[(&str, &str)]) -> (Setup, String) {
    let conf = format!("{PLUGIN}{options}");
    let (setup, report) = try_import(&conf, others).expect("imported");
    for (at, line) in conf.lines().enumerate() {
        let place = format!("mosquitto.conf:{} ", at + 1);
        assert!(report.lines().any(|row| row.starts_with(&place)), "{line}\n{report}");
    }
    assert!(!report.contains("hush"), "{report}");
    assert_eq!(setup.option("access.anonymous"), Some("never"), "{report}");
    (setup, report)
}

#[track_caller]
fn imported(options: &str) -> (Setup, String) {
    imported_with(options, &[])
}

#[track_caller]
fn assert_parts(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part}\n{text}");
    }
}

#[test]
fn documented_database_is_imported() {
    let (setup, report) = imported(POSTGRES);
    assert_eq!(setup.list("access.providers"), ["postgresql"], "{report}");
    assert_parts(
        &setup.table_text("access.postgresql"),
        &[
            "host = \"localhost\"",
            "port = 5432",
            "tls = false",
            "password = \"hush-pg\"",
            "password_hash_algorithm = \"bcrypt\"",
            "WITH go_auth_user (password_hash) AS (select password_hash",
            "username = ${username} and is_active = true limit 1",
            "(SELECT number FROM go_auth_super LIMIT 1) > 0 AS is_superuser",
        ],
    );
    // Without a query of topics, the plug-in allows everything.
    assert_eq!(setup.rules_text(), "allow All # $SYS/#\n", "{report}");
    setup.install(None, "title", &Report::default()).expect("valid");

    let query = "auth_opt_pg_aclquery select topic from acl where username = $1 and rw & $2 > 0\n";
    let (setup, report) = imported(&format!("{POSTGRES}{query}auth_opt_disable_superuser true\n"));
    assert_eq!(setup.list("access.sources"), ["postgresql"], "{report}");
    assert_eq!(setup.option("access.no_match"), Some("deny"));
    assert_eq!(setup.rules_text(), "");
    assert!(!setup.table_text("access.postgresql").contains("go_auth_super"));
    assert_parts(
        &setup.table_text("access.source.postgresql"),
        &["rw & 4 > 0", "IN (SELECT"],
    );
    setup.install(None, "title", &Report::default()).expect("valid");
}

/// After the README: the backends `mysql` and `sqlite`.
#[test]
fn queries_of_mysql_and_sqlite_become_sources() {
    let mysql = "auth_opt_backends mysql\nauth_opt_mysql_hasher bcrypt\nauth_opt_mysql_host localhost\n\
                 auth_opt_mysql_port 3306\nauth_opt_mysql_dbname go_auth_test\nauth_opt_mysql_user go_auth_test\n\
                 auth_opt_mysql_password hush-mysql\nauth_opt_mysql_allow_native_passwords true\n\
                 auth_opt_mysql_userquery SELECT password_hash FROM test_user WHERE username = ? limit 1\n\
                 auth_opt_mysql_aclquery SELECT topic FROM test_acl WHERE (username = ?) AND rw >= ?\n";
    let (setup, report) = imported(mysql);
    assert_eq!(setup.list("access.sources"), ["mysql"], "{report}");
    assert_eq!(setup.option("access.no_match"), Some("deny"));
    assert_parts(
        &setup.table_text("access.source.mysql"),
        &[
            "host = \"localhost\"",
            "database = \"go_auth_test\"",
            "password = \"hush-mysql\"",
            "tls = false",
            "(username = ${username}) AND rw >= 4",
        ],
    );
    setup.install(None, "title", &Report::default()).expect("valid");

    let sqlite = "auth_opt_backends sqlite\nauth_opt_sqlite_hasher bcrypt\nauth_opt_sqlite_source clients.db\n\
                  auth_opt_sqlite_userquery SELECT password_hash FROM account WHERE username = ? limit 1\n\
                  auth_opt_sqlite_aclquery SELECT topic FROM acl WHERE username = ? AND rw & ? > 0\n";
    let (setup, report) = imported_with(sqlite, &[("clients.db", "")]);
    assert_eq!(setup.list("access.sources"), ["sqlite"], "{report}");
    assert_parts(
        &setup.table_text("access.source.sqlite"),
        &["clients.db", "username = ${username} AND rw & 4 > 0", "instr("],
    );
}

#[test]
fn documented_directory_is_imported() {
    let (setup, report) = imported(LDAP);
    assert_eq!(setup.list("access.providers"), ["ldap"], "{report}");
    assert_parts(
        &setup.table_text("access.ldap"),
        &[
            "filter = \"(&(objectClass=posixAccount)(uid=${username}))\"",
            "method = \"bind\"",
            "hush-ldap",
        ],
    );
    assert_eq!(setup.rules_text(), "allow All # $SYS/#\n", "{report}");
    setup.install(None, "title", &Report::default()).expect("valid");
}

#[test]
fn documented_service_decides_about_logins_only() {
    let (setup, report) = imported(HTTP);
    assert_eq!(setup.list("access.providers"), ["http"], "{report}");
    assert_parts(
        &setup.table_text("access.http"),
        &[
            "url = \"https://auth.example:3000/user\"",
            "body_format = \"form\"",
            "answer = \"status\"",
            "timeout = \"7s\"",
            "${password}",
        ],
    );
    assert_parts(&report, &["sends no number of the access"]);
    assert_eq!(setup.rules_text(), DENY_ALL, "{report}");
    setup.install(None, "title", &Report::default()).expect("valid");
    for mode in ["json", "text"] {
        let (setup, report) = imported(&HTTP.replace("mode status", &format!("mode {mode}")));
        assert!(!setup.has_table("access.http"), "{report}");
    }
}

/// The password is `hush-ann`, with the salt `salt-of-12-by`.
const PASSWORDS: &str = "ann:PBKDF2$sha512$1$b2xk$b2xk\nann:PBKDF2$sha512$1000$c2FsdC1vZi0xMi1ieQ==$lnwkBU9nScSY1223i+0ZRnx/YlkLZcNHGYbDorSZoG//kDOWADQqiiprsTYxm60TgERM5K/6PpARniWb4hT2uA==\nbob:$2a$10$x\nbad line\n";
const ACL: &str = "topic read news/#\npattern write in/%u/%c\nuser ann\ntopic test/topic\ntopic deny test/secret\n\
                   topic read #\nuser carol\ntopic write all/#\n";

#[test]
fn files_become_users_and_rules() {
    let options = "auth_opt_backends files\nauth_opt_files_password_path passwords\nauth_opt_files_acl_path acls\n";
    let (setup, report) = imported_with(options, &[("passwords", PASSWORDS), ("acls", ACL)]);
    let password = |text: &str| auth::Password::new(text.as_bytes().to_vec());
    assert!(setup.verifies("ann", &password("hush-ann")), "{report}");
    assert!(!setup.verifies("ann", &password("other")) && !setup.verifies("bob", &password("other")));
    let expected = "deny users=ann All test/secret\nallow Subscribe news/#\nallow Publish in/%u/%c\n\
                    allow users=ann All test/topic\ndeny users=ann Subscribe eq #\nallow users=ann Subscribe #\n";
    assert_eq!(setup.rules_text(), expected, "{report}");
    assert_parts(
        &report,
        &[
            "user bob",
            "a later line of the user replaces it",
            "the line is not a name and a hash",
            "the password file does not contain the user",
        ],
    );
    setup.install(None, "title", &Report::default()).expect("valid");
}

#[test]
fn what_no_imported_backend_allows_is_denied() {
    let pbkdf2 = POSTGRES.replace("hasher bcrypt", "hasher pbkdf2");
    let pbkdf2 = pbkdf2.replace("disable\n", "disable\nauth_opt_pg_register user\n");
    let get = format!("{HTTP}auth_opt_http_method GET\n");
    for (options, part) in [
        (
            "auth_opt_backends jwt\nauth_opt_jwt_mode local\nauth_opt_jwt_secret hush\n",
            "set access.jwt",
        ),
        (
            "auth_opt_backends redis\nauth_opt_redis_host localhost\n",
            "hashes of Redis",
        ),
        (
            "auth_opt_backends mongo\nauth_opt_mongo_host localhost\n",
            "no provider for the backend mongo",
        ),
        (pbkdf2.as_str(), "PBKDF2$"),
        (get.as_str(), "only with the method POST"),
    ] {
        let (setup, report) = imported(options);
        assert!(!setup.has("access.providers"), "{options}\n{report}");
        assert_eq!(setup.rules_text(), DENY_ALL, "{options}\n{report}");
        assert!(report.contains(part), "{part}\n{report}");
        setup.install(None, "title", &Report::default()).expect("valid");
    }
}

#[test]
fn a_plug_in_that_is_not_understood_denies_everything() {
    for (more, part) in [
        ("auth_opt_check_prefix true\n", "check_prefix"),
        ("auth_opt_use_clientid_as_username true\n", "use_clientid_as_username"),
        ("password_file users\n", "together with password_file"),
        ("plugin other.so\n", "together with another line of a plug-in"),
        ("auth_opt_backends \n", "the option backends is missing"),
        ("auth_opt_backends http, other\n", "unknown backend \"other\""),
    ] {
        let (setup, report) = imported_with(&format!("{POSTGRES}{more}"), &[("users", "")]);
        assert!(!setup.has("access.providers"), "{more}\n{report}");
        assert!(setup.rules_text().starts_with(DENY_ALL), "{more}\n{report}");
        assert!(report.contains(part), "{part}\n{report}");
        assert!(report.contains("the first rule denies all topics"), "{report}");
    }
    let conf = format!("per_listener_settings true\n{PLUGIN}{POSTGRES}");
    let (setup, report) = try_import(&conf, &[]).expect("imported");
    assert!(setup.rules_text().starts_with(DENY_ALL), "{report}");
}
