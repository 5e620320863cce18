//! Tests of the PostgreSQL action with a real PostgreSQL (`dev/postgres`).

use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use connectors::postgres::{
    PostgresActionConfig, PostgresColumn, PostgresConnector, PostgresConnectorConfig, PostgresCopyConfig, PostgresSink,
};
use connectors::{BatchOutcome, DeliveryFailure, Secret, Sink, TlsConfig};
use tokio_postgres::{Client, NoTls, SimpleQueryMessage};

use crate::support;
use crate::support::shared::POSTGRES;
use crate::support::{Directory, Server, certificates, deliver, free_port, numbered, text};

struct Database {
    port: u16,
    name: String,
}

impl Database {
    /// Creates an empty database on the shared server of all tests.
    async fn new() -> Database {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let address = POSTGRES.value("TIDEWIRE_POSTGRES");
        let (_, port) = address.rsplit_once(':').expect("HOST:PORT");
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let first = Database {
            port: port.parse().expect("a port"),
            name: "postgres".to_owned(),
        };
        let name = format!("connectors_{}_{number}", std::process::id());
        run(&client(&first).await, &format!("CREATE DATABASE {name}")).await;
        Database { name, ..first }
    }

    /// Returns the first database of the caller's own server.
    fn of(server: &Server) -> Database {
        Database {
            port: server.port(),
            name: "postgres".to_owned(),
        }
    }
}

fn connector(database: &Database) -> PostgresConnectorConfig {
    PostgresConnectorConfig {
        host: "127.0.0.1".to_owned(),
        port: database.port,
        database: database.name.clone(),
        user: "postgres".to_owned(),
        password: Some(Secret::new("tidewire")),
        connections_max: 4,
        connect_timeout_ms: 5_000,
        statement_timeout_ms: 30_000,
        tls: None,
    }
}

fn sql(sql: &str) -> PostgresActionConfig {
    PostgresActionConfig {
        sql: Some(sql.to_owned()),
        copy: None,
    }
}

fn copy(table: &str, columns: &[&str]) -> PostgresActionConfig {
    let column = |name: &&str| PostgresColumn {
        name: (*name).to_owned(),
        value: format!("${{{name}}}"),
    };
    PostgresActionConfig {
        sql: None,
        copy: Some(PostgresCopyConfig {
            table: table.to_owned(),
            columns: columns.iter().map(column).collect(),
        }),
    }
}

fn sink(connector: &PostgresConnectorConfig, action: &PostgresActionConfig) -> PostgresSink {
    let connector = Arc::new(PostgresConnector::new(connector).expect("a valid connector"));
    PostgresSink::new(connector, action).expect("a valid action")
}

async fn client(database: &Database) -> Client {
    let Database { port, name } = database;
    let parameters = format!("host=127.0.0.1 port={port} user=postgres password=tidewire dbname={name}");
    let (client, task) = tokio_postgres::connect(&parameters, NoTls).await.expect("a connection");
    tokio::spawn(task);
    client
}

async fn run(client: &Client, sql: &str) {
    client.batch_execute(sql).await.expect(sql);
}

/// Returns the first column of every row as text.
async fn column(client: &Client, sql: &str) -> Vec<String> {
    let answer = client.simple_query(sql).await.expect(sql);
    let text = |message: SimpleQueryMessage| match message {
        SimpleQueryMessage::Row(row) => Some(row.get(0).unwrap_or("null").to_owned()),
        _ => None,
    };
    answer.into_iter().filter_map(text).collect()
}

fn refused(outcome: &BatchOutcome) -> Vec<usize> {
    let is_refused = |index: &usize| matches!(outcome[*index], Err(DeliveryFailure::Refused(_)));
    (0..outcome.len()).filter(is_refused).collect()
}

const TYPES: &str = "CREATE TYPE mood AS ENUM ('fine'); CREATE TABLE types (i int, f double precision, n numeric, b boolean, \
    t text, j jsonb, u uuid, at timestamptz, m mood, a int[], raw bytea)";
const COLUMNS: [&str; 11] = ["i", "f", "n", "b", "t", "j", "u", "at", "m", "a", "raw"];

#[tokio::test(flavor = "multi_thread")]
async fn values_are_converted_to_the_column_types() {
    let database = Database::new().await;
    let client = client(&database).await;
    run(&client, TYPES).await;
    let values = |_| {
        let mut values: Vec<Option<Vec<u8>>> = [
            "-7",
            "1.5e3",
            "12345678901234567890.5",
            "true",
            "it's; DROP TABLE types --\t\\",
            "{\"a\": [1]}",
            "0b2f4ad8-3f5c-4b0c-8d7a-7a1a3f0e9a11",
            "2026-01-02 03:04:05+00",
            "fine",
            "{1,2}",
        ]
        .map(text)
        .into();
        values.push(None);
        values
    };
    let names = COLUMNS.map(|name| format!("${{{name}}}")).join(", ");
    let insert = sink(
        &connector(&database),
        &sql(&format!("INSERT INTO types VALUES ({names})")),
    );
    assert_eq!(insert.templates().len(), 11);
    assert_eq!(insert.send(&numbered(0..1, values)).await, vec![Ok(())]);
    let copied = sink(&connector(&database), &copy("public.types", &COLUMNS));
    assert_eq!(copied.send(&numbered(0..1, values)).await, vec![Ok(())]);
    let rows = column(
        &client,
        "SET timezone = 'UTC'; SELECT row_to_json(types)::text FROM types",
    )
    .await;
    let expected = r#"{"i":-7,"f":1500,"n":12345678901234567890.5,"b":true,"t":"it's; DROP TABLE types --\t\\","j":{"a": [1]},"u":"0b2f4ad8-3f5c-4b0c-8d7a-7a1a3f0e9a11","at":"2026-01-02T03:04:05+00:00","m":"fine","a":[1,2],"raw":null}"#;
    assert_eq!(rows, [expected, expected]);
    // Bytes are stored unchanged, even if they look like escapes.
    let bytes = sink(
        &connector(&database),
        &sql("INSERT INTO types (raw) VALUES (${payload})"),
    );
    let outcome = bytes
        .send(&numbered(0..1, |_| vec![Some(b"\\x00\xff\0".to_vec())]))
        .await;
    assert_eq!(outcome, vec![Ok(())]);
    let raw = column(&client, "SELECT encode(raw, 'hex') FROM types WHERE raw IS NOT NULL").await;
    assert_eq!(raw, ["5c783030ff00"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_rows_do_not_block_others() {
    let database = Database::new().await;
    let client = client(&database).await;
    // The last constraint is deferred to the end of the transaction, where the database names no row.
    let table =
        "(at serial, id int PRIMARY KEY, small int CHECK (small < 300), UNIQUE (small) DEFERRABLE INITIALLY DEFERRED)";
    run(
        &client,
        &format!("CREATE TABLE inserted {table}; CREATE TABLE copied {table}"),
    )
    .await;
    let values = |number: u32| {
        let id = if number == 20 { 19 } else { number };
        let small = match number {
            7 => "not a number".to_owned(),
            150 => "1000".to_owned(),
            199 => "42".to_owned(),
            _ => number.to_string(),
        };
        vec![text(id.to_string()), text(small)]
    };
    let records = numbered(0..200, values);
    for (table, action) in [
        (
            "inserted",
            sql("INSERT INTO inserted (id, small) VALUES (${id}, '${small}')"),
        ),
        ("copied", copy("copied", &["id", "small"])),
    ] {
        let outcome = sink(&connector(&database), &action).send(&records).await;
        assert_eq!(refused(&outcome), [7, 20, 150, 199], "{table}");
        let reason = |index: usize| outcome[index].as_ref().expect_err("refused").reason();
        assert!(
            reason(7).contains("not a number") && reason(7).contains("22P02"),
            "{}",
            reason(7)
        );
        assert!(reason(20).contains("duplicate key"), "{}", reason(20));
        assert!(reason(150).contains("check constraint"), "{}", reason(150));
        assert!(reason(199).contains("small"), "{}", reason(199));
        let ids = column(&client, &format!("SELECT id FROM {table} ORDER BY at")).await;
        let expected: Vec<String> = (0..200)
            .filter(|id| ![7, 20, 150, 199].contains(id))
            .map(|id| id.to_string())
            .collect();
        assert_eq!(ids, expected, "{table}: once each, in order");
    }
}

/// Each bad row costs several transactions. Finished rows must be reported before the time of a batch is over;
/// otherwise every attempt would begin with the first row and never finish.
#[tokio::test(flavor = "multi_thread")]
async fn many_bad_rows_with_a_slow_database_finish() {
    let database = Database::new().await;
    let client = client(&database).await;
    run(&client, "CREATE TABLE slow (at serial, id int PRIMARY KEY)").await;
    let insert = sql("INSERT INTO slow (id) SELECT '${id}'::int FROM pg_sleep(0.05)");
    let sink = sink(&connector(&database), &insert);
    let is_bad = |number: u32| number % 3 == 1;
    let mut waiting = numbered(0..120, |number| match is_bad(number) {
        true => vec![text("bad")],
        false => vec![text(number.to_string())],
    });
    let (mut rounds, mut refused) = (0, 0);
    while !waiting.is_empty() {
        let outcome = sink.send(&waiting).await;
        rounds += 1;
        let before = waiting.len();
        refused += self::refused(&outcome).len();
        let left = waiting.into_iter().zip(outcome);
        waiting = left
            .filter_map(|(record, result)| match result {
                Ok(()) | Err(DeliveryFailure::Refused(_)) => None,
                Err(DeliveryFailure::NotSent) => Some(record),
                Err(other) => panic!("{other:?}"),
            })
            .collect();
        assert!(waiting.len() < before, "each round makes progress");
    }
    assert!(rounds > 1, "more than one round is needed");
    assert_eq!(refused, 40);
    let ids = column(&client, "SELECT id FROM slow ORDER BY at").await;
    let expected: Vec<String> = (0..120).filter(|id| !is_bad(*id)).map(|id| id.to_string()).collect();
    assert_eq!(ids, expected, "once each, in order");
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_wait_until_a_failing_statement_is_corrected() {
    let database = Database::new().await;
    let records = numbered(0..3, |number| vec![text(number.to_string())]);
    for action in [sql("INSERT INTO later VALUES (${id})"), copy("later", &["id"])] {
        let sink = sink(&connector(&database), &action);
        let outcome = sink.send(&records).await;
        let names_the_table = |result: &Result<(), DeliveryFailure>| matches!(result, Err(DeliveryFailure::Unreachable(reason)) if reason.contains("\"later\""));
        assert!(outcome.iter().all(names_the_table), "{outcome:?}");
        let client = client(&database).await;
        run(&client, "CREATE TABLE later (id int)").await;
        assert_eq!(sink.send(&records).await, vec![Ok(()); 3]);
        // A prepared statement of the old table does not block later rows.
        run(&client, "DROP TABLE later; CREATE TABLE later (x text, id int)").await;
        assert_eq!(deliver(&sink, &numbered(0..1, |_| vec![text("5")]), |_| ()).await, 0);
        run(&client, "DROP TABLE later").await;
    }
    let error = sink(&connector(&database), &sql("INSERT INTO nowhere VALUES (${id})"))
        .check()
        .await;
    assert!(error.expect_err("no such table").contains("nowhere"));
}

#[tokio::test(flavor = "multi_thread")]
async fn no_row_is_lost_when_the_server_is_killed() {
    let server = Arc::new(Server::start("postgres", "start", &[]));
    let database = Database::of(&server);
    run(&client(&database).await, "CREATE TABLE load (id int)").await;
    for action in [sql("INSERT INTO load VALUES (${id})"), copy("load", &["id"])] {
        run(&client(&database).await, "TRUNCATE load").await;
        let sink = sink(&connector(&database), &action);
        let fault = async {
            let client = client(&database).await;
            support::until("some rows", async || {
                column(&client, "SELECT count(*) > 1000 FROM load").await == ["t"]
            })
            .await;
            Server::crash_and_return(&server).await;
        };
        let (sent, failures) =
            support::deliver_during(fault, &sink, 100, |number| vec![text(number.to_string())]).await;
        assert!(failures > 0, "the server was down for a while");
        let client = client(&database).await;
        let counts = column(&client, "SELECT count(DISTINCT id) || ' ' || count(*) FROM load").await;
        let (distinct, all) = counts[0].split_once(' ').expect("two numbers");
        assert_eq!(distinct, sent.to_string());
        let duplicates = all.parse::<u32>().expect("a number") - sent;
        assert!(
            duplicates <= 100,
            "only the batch in flight can be stored twice, not {duplicates}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_credentials_and_addresses_are_reported() {
    let database = Database::new().await;
    let action = sql("INSERT INTO t VALUES (${id})");
    let records = numbered(0..2, |_| vec![text("1")]);
    let wrong = |change: &dyn Fn(&mut PostgresConnectorConfig)| {
        let mut config = connector(&database);
        change(&mut config);
        sink(&config, &action)
    };
    let free = free_port().port();
    for (sink, expected) in [
        (
            wrong(&|config| config.password = Some(Secret::new("guessed-it"))),
            "password authentication failed",
        ),
        (
            wrong(&|config| config.database = "nothere".to_owned()),
            "\"nothere\" does not exist",
        ),
        (wrong(&|config| config.port = free), "Connection refused"),
        (
            wrong(&|config| config.host = "no-such-host.invalid".to_owned()),
            "no-such-host.invalid",
        ),
        (
            wrong(&|config| {
                config.tls = Some(TlsConfig {
                    verify: false,
                    ..TlsConfig::default()
                })
            }),
            "TLS",
        ),
    ] {
        let outcome = sink.send(&records).await;
        let Err(DeliveryFailure::Unreachable(reason)) = &outcome[1] else {
            panic!("{outcome:?}");
        };
        assert!(reason.contains(expected) && !reason.contains("guessed-it"), "{reason}");
        assert!(sink.check().await.expect_err("not usable").contains(expected));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tls_checks_the_certificate() {
    let directory = Directory::new("postgres-tls");
    certificates(&directory);
    let private = std::fs::Permissions::from_mode(0o600);
    std::fs::set_permissions(directory.join("key.pem"), private).expect("permissions");
    let file = |name: &str| format!("'{}'", directory.join(name).display());
    let settings = [
        "ssl=on".to_owned(),
        format!("ssl_cert_file={}", file("cert.pem")),
        format!("ssl_key_file={}", file("key.pem")),
    ];
    let ca = directory.join("ca.pem");
    let settings: Vec<&str> = settings.iter().map(String::as_str).collect();
    let server = Server::start_in(directory, "postgres", "start", &settings);
    let database = Database::of(&server);
    let with = |tls: TlsConfig| PostgresConnectorConfig {
        tls: Some(tls),
        ..connector(&database)
    };
    let trusted = TlsConfig {
        ca_file: Some(ca),
        ..TlsConfig::default()
    };
    let connector = PostgresConnector::new(&with(trusted)).expect("a valid connector");
    let sink_over_tls =
        PostgresSink::new(Arc::new(connector), &sql("SELECT set_config('a.b', ${id}, false)")).expect("a valid action");
    assert_eq!(
        sink_over_tls.send(&numbered(0..1, |_| vec![text("1")])).await,
        vec![Ok(())]
    );
    let other = Directory::new("postgres-other");
    certificates(&other);
    let foreign = TlsConfig {
        ca_file: Some(other.join("ca.pem")),
        ..TlsConfig::default()
    };
    let error = sink(&with(foreign), &sql("SELECT ${id}"))
        .check()
        .await
        .expect_err("not trusted");
    assert!(error.contains("certificate"), "{error}");
}

#[test]
fn problems_name_the_field() {
    for (json, field) in [
        (r#"{}"#, "sql"),
        (r#"{"sql": "INSERT INTO t VALUES ('x ${a}')"}"#, "sql"),
        (r#"{"copy": {"table": "", "columns": []}}"#, "copy.table"),
        (r#"{"copy": {"table": "t", "columns": []}}"#, "copy.columns"),
    ] {
        let config: PostgresActionConfig = serde_json::from_str(json).expect("the right types");
        let problems = config.problems().join("\n");
        assert!(problems.contains(field), "{json}: {problems}");
    }
    let json = r#"{"host": "", "database": "d", "user": "u", "password": "pw", "connections_max": 0}"#;
    let config: PostgresConnectorConfig = serde_json::from_str(json).expect("the right types");
    let problems = config.problems().join("\n");
    assert!(
        problems.contains("host") && problems.contains("connections_max"),
        "{problems}"
    );
    assert!(!format!("{config:?} {}", serde_json::to_string(&config).expect("JSON")).contains("pw\""));
}
