//! Tests of lookups in MySQL and MariaDB with a real MariaDB (`dev/mariadb`), and with servers that attack the client.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::sync::Arc;
use std::thread::JoinHandle;

use connectors::mysql::{MysqlConnection, MysqlLookup};
use connectors::sql::{LookupError, LookupRow, LookupValue};
use connectors::{Secret, TlsConfig};
use sha2::{Digest, Sha256};

use crate::support::shared::MARIADB;
use crate::support::{Directory, Server, certificates, until};

fn connection(address: &str) -> MysqlConnection {
    let (host, port) = address.rsplit_once(':').expect("HOST:PORT");
    MysqlConnection {
        host: host.to_owned(),
        port: port.parse().expect("a port"),
        database: "tidewire".to_owned(),
        user: "tidewire".to_owned(),
        password: Some(Secret::new("tidewire")),
        connections_max: 2,
        connect_timeout_ms: 10_000,
        statement_timeout_ms: 10_000,
        tls: None,
    }
}

fn lookup(connection: &MysqlConnection, query: &str) -> MysqlLookup {
    MysqlLookup::new(connection, query, &["password_hash"]).expect("a valid lookup")
}

fn sql(address: &str, user: &str, statement: &str) -> String {
    let (host, port) = address.rsplit_once(':').expect("HOST:PORT");
    let output = Command::new("mariadb")
        .args(["--no-defaults", "-h", host, "-P", port, "-N", "-u", user, "tidewire"])
        .env("MYSQL_PWD", "tidewire")
        .args(["-e", statement])
        .output()
        .expect("the client of MariaDB is installed");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{statement}: {errors}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

async fn ask(lookup: &MysqlLookup, value: &str) -> Result<Option<LookupRow>, LookupError> {
    Ok(lookup.rows(&[value.as_bytes().to_vec()], 1).await?.pop())
}

async fn reason(lookup: &MysqlLookup) -> String {
    match ask(lookup, "x").await {
        Err(LookupError::Failed(reason)) => reason,
        other => panic!("{other:?}"),
    }
}

const ECHO: &str = "SELECT ${username} AS password_hash";

#[tokio::test(flavor = "multi_thread")]
async fn values_of_all_types_are_read() {
    let connection = connection(&MARIADB.value("TIDEWIRE_MARIADB"));
    let query = "SELECT ${username} AS password_hash, 1 AS `int`, CAST(2 AS UNSIGNED) AS big, b'101' AS bits, \
                 TRUE AS yes, NULL AS nothing, x'00ff' AS bytes, 1.5e0 AS `double`, 'ä' AS text, 0.5 AS `decimal`, NOW() AS time";
    let lookup = lookup(&connection, query);
    let bytes = |value: &[u8]| LookupValue::Bytes(value.to_vec());
    for _ in 0..2 {
        let mut row = ask(&lookup, "' OR 1=1 -- \\").await.unwrap().unwrap();
        for (name, expected) in [
            ("password_hash", bytes(b"' OR 1=1 -- \\")),
            ("int", bytes(b"1")),
            ("big", bytes(b"2")),
            ("yes", bytes(b"1")),
            ("nothing", LookupValue::Null),
            ("bytes", bytes(&[0, 0xFF])),
            ("double", LookupValue::Unsupported),
            ("text", bytes("ä".as_bytes())),
            ("decimal", bytes(b"0.5")),
            ("time", LookupValue::Unsupported),
        ] {
            assert_eq!(row.take(name), Some(expected), "{name}");
        }
    }
    assert_eq!(ask(&lookup, "a\0b").await, Err(LookupError::InvalidValue));
}

#[tokio::test(flavor = "multi_thread")]
async fn texts_that_a_column_cannot_have_belong_to_no_row() {
    let address = MARIADB.value("TIDEWIRE_MARIADB");
    let table = format!("latin_{}", std::process::id());
    sql(
        &address,
        "tidewire",
        &format!(
            "CREATE TABLE {table} (name VARCHAR(20) CHARACTER SET latin1, other VARCHAR(20) CHARACTER SET utf8mb3 COLLATE \
             utf8mb3_bin, flag BIT(1), password_hash VARBINARY(20)); INSERT INTO {table} VALUES ('meter', 'meter', 1, 'x')"
        ),
    );
    for column in ["name", "other"] {
        let query = format!("SELECT password_hash, flag FROM {table} WHERE {column} = ${{username}}");
        let lookup = lookup(&connection(&address), &query);
        for name in ["\u{1F511}", "метр", "\u{FFFD}", "mé"] {
            match ask(&lookup, name).await {
                Ok(None) | Err(LookupError::InvalidValue) => {}
                other => panic!("{column} {name}: {other:?}"),
            }
        }
        let mut row = ask(&lookup, "meter").await.unwrap().unwrap();
        assert_eq!(row.take("password_hash"), Some(LookupValue::Bytes(b"x".to_vec())));
        assert_eq!(row.take("flag"), Some(LookupValue::Bytes(b"1".to_vec())));
    }
    sql(&address, "tidewire", &format!("DROP TABLE {table}"));
}

#[tokio::test(flavor = "multi_thread")]
async fn setup_errors_name_the_cause() {
    let address = MARIADB.value("TIDEWIRE_MARIADB");
    let good = connection(&address);
    let tls = Some(TlsConfig {
        verify: false,
        ..TlsConfig::default()
    });
    for (connection, query, expected) in [
        (
            MysqlConnection {
                password: Some(Secret::new("guessed-it")),
                ..good.clone()
            },
            ECHO,
            "Access denied for user 'tidewire'",
        ),
        (
            MysqlConnection {
                database: "absent".to_owned(),
                ..good.clone()
            },
            ECHO,
            "Unknown database 'absent'",
        ),
        (
            MysqlConnection { tls, ..good.clone() },
            ECHO,
            "the server does not support TLS",
        ),
        (
            good.clone(),
            "SELECT a AS password_hash FROM absent WHERE a = ${username}",
            "absent",
        ),
        (
            good.clone(),
            "SELECT ${username} AS salt",
            "the query returns no column password_hash",
        ),
        (
            good.clone(),
            "SELECT ${username} AS password_hash, :salt AS salt",
            "contains `:`",
        ),
        // It would run only if it returned the column.
        (
            good.clone(),
            "CREATE TABLE tidewire.created AS SELECT ${username} AS password_hash",
            "no column",
        ),
    ] {
        let reason = reason(&lookup(&connection, query)).await;
        assert!(
            reason.contains(expected) && reason.contains(&connection.database),
            "{query}: {reason}"
        );
        assert!(!reason.contains("guessed-it"), "{reason}");
    }
    assert_eq!(sql(&address, "tidewire", "SHOW TABLES LIKE 'created'"), "");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_server_cancels_slow_statements() {
    let address = MARIADB.value("TIDEWIRE_MARIADB");
    let connection = MysqlConnection {
        statement_timeout_ms: 50,
        ..connection(&address)
    };
    let lookup = lookup(&connection, "SELECT ${username} AS password_hash, SLEEP(600)");
    let reason = reason(&lookup).await;
    assert!(reason.contains("max_statement_time exceeded"), "{reason}");
}

/// One server for all tests that change or stop it, because it takes seconds to start.
#[tokio::test(flavor = "multi_thread")]
async fn tls_restarts_and_changed_credentials() {
    let directory = Directory::new("mariadb-tls");
    certificates(&directory);
    let readable = std::fs::Permissions::from_mode(0o644);
    std::fs::set_permissions(directory.join("key.pem"), readable).expect("permissions");
    let file = |option: &str, name: &str| format!("--{option}={}", directory.join(name).display());
    let options = [
        file("ssl-cert", "cert.pem"),
        file("ssl-key", "key.pem"),
        file("ssl-ca", "ca.pem"),
    ];
    let ca = directory.join("ca.pem");
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    let server = Arc::new(Server::start_in(directory, "mariadb", "start", &options));
    let address = server.address.clone();
    sql(
        &address,
        "tidewire",
        "CREATE USER secure IDENTIFIED BY 'tidewire' REQUIRE SSL; GRANT SELECT ON tidewire.* TO secure",
    );
    let secure = |host: &str, tls: Option<TlsConfig>| MysqlConnection {
        host: host.to_owned(),
        user: "secure".to_owned(),
        tls,
        ..connection(&address)
    };
    let trusted = Some(TlsConfig {
        ca_file: Some(ca),
        ..TlsConfig::default()
    });
    let over_tls = lookup(&secure("127.0.0.1", trusted.clone()), ECHO);
    assert!(ask(&over_tls, "x").await.unwrap().is_some());
    let version = lookup(
        &secure("localhost", trusted.clone()),
        "SELECT VARIABLE_VALUE AS password_hash FROM information_schema.SESSION_STATUS \
         WHERE VARIABLE_NAME = ${username}",
    );
    let mut row = ask(&version, "Ssl_version").await.unwrap().unwrap();
    assert_eq!(row.take("password_hash"), Some(LookupValue::Bytes(b"TLSv1.3".to_vec())));

    let other = Directory::new("mariadb-other");
    certificates(&other);
    let foreign = Some(TlsConfig {
        ca_file: Some(other.join("ca.pem")),
        ..TlsConfig::default()
    });
    let unverified = Some(TlsConfig {
        verify: false,
        ..TlsConfig::default()
    });
    for (host, tls, expected) in [
        ("127.0.0.1", None, "Access denied"),
        ("127.0.0.1", foreign, "certificate"),
        // The operating system does not trust the issuer.
        ("127.0.0.1", Some(TlsConfig::default()), "certificate"),
    ] {
        let reason = reason(&lookup(&secure(host, tls), ECHO)).await;
        assert!(reason.contains(expected), "{host}: {reason}");
    }
    assert!(
        ask(&lookup(&secure("127.0.0.1", unverified), ECHO), "x")
            .await
            .unwrap()
            .is_some()
    );
    let socket = server.directory.join("data/socket");
    let at_socket = MysqlConnection {
        host: socket.display().to_string(),
        ..connection(&address)
    };
    if std::fs::exists(&socket).unwrap_or(false) {
        assert!(ask(&lookup(&at_socket, ECHO), "x").await.unwrap().is_some());
    }

    // The password of the server's account changes, and changes back.
    let rotated = lookup(&secure("127.0.0.1", trusted), ECHO);
    sql(&address, "tidewire", "SET PASSWORD FOR secure = PASSWORD('other')");
    let refused = reason(&rotated).await;
    assert!(refused.contains("Access denied"), "{refused}");
    sql(&address, "tidewire", "SET PASSWORD FOR secure = PASSWORD('tidewire')");
    until("the password is correct again", async || {
        ask(&rotated, "x").await.is_ok()
    })
    .await;

    // Ended connections are replaced at once.
    let ended = sql(&address, "tidewire", "KILL CONNECTION USER secure");
    assert_eq!(ended, "");
    for lookup in [&over_tls, &rotated] {
        assert!(ask(lookup, "x").await.unwrap().is_some());
    }
    server.run_in_background("kill", &[]).await;
    for _ in 0..3 {
        assert!(reason(&over_tls).await.contains(&address));
    }
    server.run_in_background("start", &[]).await;
    until("the server is used again", async || ask(&over_tls, "x").await.is_ok()).await;
}

/// Accepts a connection, greets the client, reads its login and passes the connection to `attack`. Returns everything
/// that the client has sent until it closed the connection.
fn attack(attack: impl FnOnce(&mut TcpStream) -> Vec<u8> + Send + 'static) -> (String, JoinHandle<Vec<u8>>) {
    serve("mysql_native_password", attack)
}

/// The same with another authentication method.
fn serve(
    plugin: &'static str,
    attack: impl FnOnce(&mut TcpStream) -> Vec<u8> + Send + 'static,
) -> (String, JoinHandle<Vec<u8>>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("an address").to_string();
    let server = std::thread::spawn(move || {
        let (mut client, _) = listener.accept().expect("the client connects");
        let mut greeting = b"\x0a8.0.36\0\x01\0\0\0abcdefgh\0".to_vec();
        // Capabilities, character set and status.
        greeting.extend([0xff, 0xf7, 0x2d, 2, 0, 0xff, 0x01, 21]);
        greeting.extend([0; 10]);
        greeting.extend([b"ijklmnopqrst\0", plugin.as_bytes(), b"\0"].concat());
        write(&mut client, 0, &greeting);
        let mut sent = read(&mut client);
        sent.extend(attack(&mut client));
        // A client that closes the connection before it has read everything resets it.
        let _ = client.read_to_end(&mut sent);
        sent
    });
    (address, server)
}

fn write(client: &mut TcpStream, sequence: u8, payload: &[u8]) {
    let length = (payload.len() as u32).to_le_bytes();
    let packet = [&length[..3], &[sequence], payload].concat();
    client.write_all(&packet).expect("the client reads");
}

fn read(client: &mut TcpStream) -> Vec<u8> {
    let mut head = [0; 4];
    client.read_exact(&mut head).expect("the client writes");
    let mut payload = vec![0; u32::from_le_bytes([head[0], head[1], head[2], 0]) as usize];
    client.read_exact(&mut payload).expect("the client writes");
    payload
}

fn contains(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|window| window == text.as_bytes())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_gets_no_password_in_clear_text() {
    for (plugin, expected) in [
        ("mysql_clear_password", "needs `tls` and `verify`"),
        ("mysql_old_password", "mysql_old_password"),
        ("dialog", "dialog"),
    ] {
        let (address, server) = attack(move |client| {
            write(
                client,
                2,
                &[b"\xfe", plugin.as_bytes(), b"\0abcdefghijklmnopqrst\0"].concat(),
            );
            Vec::new()
        });
        let connection = MysqlConnection {
            password: Some(Secret::new("right-one")),
            ..connection(&address)
        };
        let reason = reason(&lookup(&connection, ECHO)).await;
        assert!(reason.contains(expected), "{plugin}: {reason}");
        let sent = server.join().expect("no panic");
        assert!(
            contains(&sent, "mysql_native_password") && !contains(&sent, "right-one"),
            "{plugin}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_gets_no_file() {
    let directory = Directory::new("mysql-infile");
    let file = directory.write("secrets", "content-of-the-file");
    let request = [b"\xfb", file.as_os_str().as_encoded_bytes()].concat();
    let (address, server) = attack(move |client| {
        // The login is accepted; the client sends its first statement.
        write(client, 2, &[0, 0, 0, 2, 0, 0, 0]);
        let sent = read(client);
        write(client, 1, &request);
        sent
    });
    let reason = reason(&lookup(&connection(&address), ECHO)).await;
    assert!(reason.contains("LOCAL INFILE"), "{reason}");
    let sent = server.join().expect("no panic");
    assert!(contains(&sent, "max_statement_time") && !contains(&sent, "content-of-the-file"));
}

/// MariaDB 10.11 does not have this method, so the test calculates the answer of MySQL's documentation itself.
#[tokio::test(flavor = "multi_thread")]
async fn caching_sha2_password_is_answered() {
    let (address, server) = serve("caching_sha2_password", |client| {
        // The server knows the password from an earlier login.
        write(client, 2, &[1, 3]);
        write(client, 3, &[0, 0, 0, 2, 0, 0, 0]);
        let sent = read(client);
        let _ = client.shutdown(Shutdown::Both);
        sent
    });
    let reason = reason(&lookup(&connection(&address), ECHO)).await;
    assert!(reason.contains(&format!("cannot connect to {address}")), "{reason}");
    let sent = server.join().expect("no panic");
    let password = Sha256::digest("tidewire");
    let stored = Sha256::digest(password);
    let scramble = Sha256::new()
        .chain_update(stored)
        .chain_update("abcdefghijklmnopqrst")
        .finalize();
    let expected: Vec<u8> = password.iter().zip(scramble).map(|(a, b)| a ^ b).collect();
    assert!(sent.windows(32).any(|window| window == expected), "{sent:?}");
    assert!(contains(&sent, "max_statement_time"), "the client has logged in");
}
