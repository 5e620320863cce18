//! Tests of the Redis action with a real Redis, cluster and sentinel (`dev/redis`).

use std::sync::Arc;

use connectors::redis::{RedisActionConfig, RedisConnector, RedisConnectorConfig, RedisMode, RedisSink};
use connectors::{BatchOutcome, DeliveryFailure, Secret, Sink, TlsConfig};

use crate::support::{Directory, Server, certificates, deliver, deliver_during, free_port, numbered, text, until};

fn connector(addresses: &str) -> RedisConnectorConfig {
    let servers: Vec<&str> = addresses.split(',').collect();
    serde_json::from_value(serde_json::json!({ "servers": servers })).expect("a configuration")
}

/// Reduces the response timeout, so that an outage of a second is a failure. The cluster client retries until the
/// timeout.
fn impatient(connector: RedisConnectorConfig) -> RedisConnectorConfig {
    RedisConnectorConfig {
        answer_timeout_ms: 300,
        ..connector
    }
}

fn sink(connector: &RedisConnectorConfig, command: &[&str]) -> RedisSink {
    let connector = Arc::new(RedisConnector::new(connector).expect("a valid connector"));
    RedisSink::new(connector, &action(command)).expect("a valid action")
}

fn action(command: &[&str]) -> RedisActionConfig {
    RedisActionConfig {
        command: command.iter().map(|part| (*part).to_owned()).collect(),
    }
}

async fn ask<T: redis::FromRedisValue>(url: &str, command: &[&str]) -> T {
    try_ask(url, command).await.expect("an answer")
}

/// Runs a command. Fails if the server changes its role, because it then closes its connections.
async fn try_ask<T: redis::FromRedisValue>(url: &str, command: &[&str]) -> redis::RedisResult<T> {
    let mut connection = redis::Client::open(url)?.get_multiplexed_async_connection().await?;
    let mut ask = redis::cmd(command[0]);
    ask.arg(&command[1..]);
    ask.query_async(&mut connection).await
}

fn url(server: &Server) -> String {
    format!("redis://{}/", server.address)
}

fn reason(outcome: &BatchOutcome, index: usize) -> &str {
    outcome[index].as_ref().expect_err("a failure").reason()
}

#[tokio::test(flavor = "multi_thread")]
async fn each_record_is_a_command_and_bad_records_do_not_block() {
    let server = Server::start("redis", "start", &[]);
    let _: String = ask(&url(&server), &["SET", "taken", "a string"]).await;
    let sink = sink(&connector(&server.address), &["RPUSH", "${key}", "${payload}"]);
    let fields: Vec<&str> = sink
        .templates()
        .iter()
        .map(|template| template.field.as_str())
        .collect();
    assert_eq!(fields, ["command[1]", "command[2]"]);
    sink.check().await.expect("the server is reachable");
    let values = |number: u32| {
        let key = if number == 50 { "taken" } else { "list" };
        vec![text(key), text(format!("{number} \"'\r\nQUIT"))]
    };
    let outcome = sink.send(&numbered(0..100, values)).await;
    let failed: Vec<usize> = (0..100).filter(|&index| outcome[index].is_err()).collect();
    assert_eq!(failed, [50]);
    assert!(
        matches!(&outcome[50], Err(DeliveryFailure::Refused(reason)) if reason.starts_with("WRONGTYPE")),
        "{outcome:?}"
    );
    let list: Vec<String> = ask(&url(&server), &["LRANGE", "list", "0", "-1"]).await;
    let expected: Vec<String> = (0..100)
        .filter(|&n| n != 50)
        .map(|n| format!("{n} \"'\r\nQUIT"))
        .collect();
    assert_eq!(list, expected);
}

/// The list is the JSON text of an array, as templates render it.
#[tokio::test(flavor = "multi_thread")]
async fn list_of_fields_becomes_arguments_of_hset() {
    let server = Server::start("redis", "start", &[]);
    let sink = sink(
        &connector(&server.address),
        &["HMSET", "${key}", "fixed", "1", "${fields}"],
    );
    let lists = [
        r#"["a","1","b c","\"QUIT\"","n",2.5,"is",true]"#,
        "no list",
        r#"["odd"]"#,
        "[]",
        r#"["nested",["x"]]"#,
        r#"["last","2"]"#,
    ];
    let records = numbered(0..6, |number| {
        vec![text(format!("h{number}")), text(lists[number as usize])]
    });
    let outcome = sink.send(&records).await;
    let refused = |index: usize| matches!(&outcome[index], Err(DeliveryFailure::Refused(_)));
    assert!(
        outcome[0].is_ok() && outcome[5].is_ok() && (1..5).all(refused),
        "{outcome:?}"
    );
    assert!(
        reason(&outcome, 1).contains("command[4]: expected a list"),
        "{outcome:?}"
    );
    let fields: Vec<String> = ask(&url(&server), &["HGETALL", "h0"]).await;
    assert_eq!(
        fields,
        ["fixed", "1", "a", "1", "b c", "\"QUIT\"", "n", "2.5", "is", "true"]
    );
    let keys: Vec<String> = ask(&url(&server), &["KEYS", "*"]).await;
    assert_eq!(keys.len(), 2, "{keys:?}");
}

#[test]
fn hset_needs_pairs_or_a_list() {
    let problems = |command: &[&str]| action(command).problems().len();
    for command in [
        &["HSET", "key", "field", "value"][..],
        &["HSET", "key", "${fields}"],
        &["hmset", "key", "field", "${value}", "${fields}"],
        &["HGET", "key", "field"],
    ] {
        assert_eq!(problems(command), 0, "{command:?}");
    }
    for command in [
        &["HSET"][..],
        &["HSET", "key"],
        &["HSET", "key", "field"],
        &["HSET", "key", "${a}${b}"],
        &["HSET", "${key}"],
    ] {
        assert_eq!(problems(command), 1, "{command:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn records_wait_for_a_read_only_or_full_server() {
    let server = Server::start("redis", "start", &[]);
    let url = url(&server);
    let sink = sink(&connector(&server.address), &["SET", "${key}", "${payload}"]);
    let records = numbered(0..3, |number| vec![text(number.to_string()), text("x")]);
    let replica: &[&str] = &["REPLICAOF", "127.0.0.1", "1"];
    let full: &[&str] = &["CONFIG", "SET", "maxmemory", "1"];
    for (fault, repair, expected) in [
        (replica, &["REPLICAOF", "NO", "ONE"][..], "READONLY"),
        (full, &["CONFIG", "SET", "maxmemory", "0"], "OOM"),
    ] {
        let _: String = ask(&url, fault).await;
        let outcome = sink.send(&records).await;
        assert!(
            matches!(&outcome[2], Err(DeliveryFailure::Unreachable(reason)) if reason.contains(expected)),
            "{outcome:?}"
        );
        let _: String = ask(&url, repair).await;
        assert_eq!(deliver(&sink, &records, |_| ()).await, 0);
    }
    let unknown = self::sink(&connector(&server.address), &["STE", "${key}"]);
    assert!(unknown.check().await.expect_err("no such command").contains("STE"));
}

#[tokio::test(flavor = "multi_thread")]
async fn no_record_is_lost_when_the_server_is_killed() {
    let durable = ["--appendonly", "yes", "--appendfsync", "always"];
    let server = Arc::new(Server::start("redis", "start", &durable));
    let url = url(&server);
    let sink = sink(&connector(&server.address), &["RPUSH", "load", "${id}"]);
    let fault = async {
        until("some records", async || {
            ask::<u32>(&url, &["LLEN", "load"]).await > 1000
        })
        .await;
        Server::crash_and_return(&server).await;
    };
    let (sent, failures) = deliver_during(fault, &sink, 100, |number| vec![text(number.to_string())]).await;
    assert!(failures > 0, "the server was down for a while");
    let mut list: Vec<u32> = ask(&url, &["LRANGE", "load", "0", "-1"]).await;
    let all = list.len();
    list.sort_unstable();
    list.dedup();
    assert_eq!(list, (0..sent).collect::<Vec<u32>>());
    let duplicates = all - list.len();
    assert!(
        duplicates <= 100,
        "only the batch in flight can be stored twice, not {duplicates}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_stores_each_key_on_its_node() {
    let server = Arc::new(Server::start("redis", "cluster", &[]));
    let config = RedisConnectorConfig {
        mode: RedisMode::Cluster,
        ..connector(&server.address)
    };
    let sink = sink(&config, &["SET", "${key}", "${payload}", "${more}"]);
    let values = |number: u32| {
        let option = if number == 30 { "NONSENSE" } else { "KEEPTTL" };
        vec![text(format!("key{number}")), text("x"), text(option)]
    };
    let outcome = sink.send(&numbered(0..200, values)).await;
    let failed: Vec<usize> = (0..200).filter(|&index| outcome[index].is_err()).collect();
    assert_eq!(failed, [30], "{outcome:?}");
    assert!(
        matches!(&outcome[30], Err(DeliveryFailure::Refused(reason)) if reason.contains("syntax")),
        "{outcome:?}"
    );
    let mut sizes = Vec::new();
    for node in server.address.split(',') {
        sizes.push(ask::<u32>(&format!("redis://{node}/"), &["DBSIZE"]).await);
    }
    assert_eq!(sizes.iter().sum::<u32>(), 199);
    assert!(sizes.iter().all(|&size| size > 20), "{sizes:?}");
    // The nodes lose their data in the crash. The test checks only that the client reconnects.
    let sink = self::sink(&impatient(config), &["SET", "${key}", "${payload}", "${more}"]);
    let fault = Server::crash_and_return(&server);
    let (_, failures) = deliver_during(fault, &sink, 10, |_| vec![text("k"), text("x"), text("KEEPTTL")]).await;
    assert!(failures > 0, "the cluster was down for a while");
    let single = self::sink(
        &connector(server.address.split(',').next().expect("a node")),
        &["SET", "${key}", "x"],
    );
    let outcome = single
        .send(&numbered(0..20, |number| vec![text(number.to_string()), text("x")]))
        .await;
    assert!(
        outcome
            .iter()
            .any(|result| matches!(result, Err(DeliveryFailure::Unreachable(reason)) if reason.contains("MOVED"))),
        "{outcome:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sentinel_provides_the_master() {
    let master = Server::start("redis", "start", &[]);
    let sentinel = Server::start("redis", "sentinel", &[&master.port().to_string()]);
    let config = |name: &str| RedisConnectorConfig {
        mode: RedisMode::Sentinel,
        sentinel_master: Some(name.to_owned()),
        ..connector(&sentinel.address)
    };
    let records = numbered(0..1, |_| vec![text("here")]);
    let found = sink(&config("mymaster"), &["SET", "${key}", "x"]);
    assert_eq!(deliver(&found, &records, |_| ()).await, 0);
    assert_eq!(ask::<u32>(&url(&master), &["EXISTS", "here"]).await, 1);
    let outcome = sink(&config("other"), &["SET", "${key}", "x"]).send(&records).await;
    assert!(
        matches!(outcome[0], Err(DeliveryFailure::Unreachable(_))),
        "{outcome:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn sentinels_have_their_own_password() {
    let master = Server::start("redis", "start", &["--requirepass", "of-master"]);
    let port = master.port().to_string();
    let lines = ["requirepass of-sentinel", "sentinel auth-pass mymaster of-master"];
    let sentinel = Server::start("redis", "sentinel", &[&port, lines[0], lines[1]]);
    let with = |sentinel_password: Option<&str>| RedisConnectorConfig {
        mode: RedisMode::Sentinel,
        sentinel_master: Some("mymaster".to_owned()),
        sentinel_password: sentinel_password.map(Secret::new),
        password: Some(Secret::new("of-master")),
        ..connector(&sentinel.address)
    };
    let records = numbered(0..1, |_| vec![text("here")]);
    let command = ["SET", "${key}", "x"];
    let right = sink(&with(Some("of-sentinel")), &command);
    assert_eq!(deliver(&right, &records, |_| ()).await, 0);
    for wrong in [None, Some("of-master")] {
        let outcome = sink(&with(wrong), &command).send(&records).await;
        assert!(
            matches!(outcome[0], Err(DeliveryFailure::Unreachable(_))),
            "{outcome:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sentinels_are_asked_over_tls() {
    let files = Directory::new("redis-sentinel-tls");
    certificates(&files);
    let file = |name: &str| files.join(name).display().to_string();
    let (ca, cert, key) = (file("ca.pem"), file("cert.pem"), file("key.pem"));
    let tls_port = free_port().port().to_string();
    let master = [
        ["--tls-port", &*tls_port],
        ["--tls-auth-clients", "no"],
        ["--tls-ca-cert-file", &*ca],
        ["--tls-cert-file", &*cert],
        ["--tls-key-file", &*key],
    ];
    let _master = Server::start("redis", "start", &master.concat());
    let lines = [
        "tls-replication yes".to_owned(),
        "tls-auth-clients no".to_owned(),
        format!("tls-ca-cert-file {ca}"),
        format!("tls-cert-file {cert}"),
        format!("tls-key-file {key}"),
    ];
    let mut arguments = vec![&*tls_port];
    arguments.extend(lines.iter().map(String::as_str));
    let sentinel = Server::start("redis", "sentinel", &arguments);
    let config = RedisConnectorConfig {
        mode: RedisMode::Sentinel,
        sentinel_master: Some("mymaster".to_owned()),
        tls: Some(TlsConfig {
            ca_file: Some(files.join("ca.pem")),
            ..TlsConfig::default()
        }),
        ..connector(&sentinel.address)
    };
    let records = numbered(0..1, |_| vec![text("here")]);
    assert_eq!(
        deliver(&sink(&config, &["SET", "${key}", "x"]), &records, |_| ()).await,
        0
    );
}

/// The master is killed under load, and a sentinel promotes the replica.
#[tokio::test(flavor = "multi_thread")]
async fn the_client_follows_a_failover() {
    let master = Arc::new(Server::start("redis", "start", &[]));
    let port = master.port().to_string();
    let replica = Server::start("redis", "start", &["--replicaof", "127.0.0.1", &port]);
    until("the replica follows", async || {
        let info: String = ask(&url(&replica), &["INFO", "replication"]).await;
        info.contains("master_link_status:up")
    })
    .await;
    let sentinel = Server::start("redis", "sentinel", &[&port]);
    let sentinel_url = url(&sentinel);
    until("the sentinel knows the replica", async || {
        let info: String = ask(&sentinel_url, &["INFO", "sentinel"]).await;
        info.contains("slaves=1")
    })
    .await;
    let config = RedisConnectorConfig {
        mode: RedisMode::Sentinel,
        sentinel_master: Some("mymaster".to_owned()),
        ..connector(&sentinel.address)
    };
    let sink = sink(&config, &["RPUSH", "${key}", "${id}"]);
    let fields = |key: &'static str| move |number: u32| vec![text(key), text(number.to_string())];
    let fault = async {
        until("some records", async || {
            ask::<u32>(&url(&master), &["LLEN", "load"]).await > 1000
        })
        .await;
        master.run_in_background("kill", &[]).await;
        until("the replica is master", async || {
            let info: redis::RedisResult<String> = try_ask(&url(&replica), &["INFO", "replication"]).await;
            info.is_ok_and(|info| info.contains("role:master"))
        })
        .await;
    };
    let (sent, failures) = deliver_during(fault, &sink, 100, fields("load")).await;
    assert!(failures > 0, "there was no master for a while");
    assert_eq!(deliver(&sink, &numbered(0..50, fields("after")), |_| ()).await, 0);
    assert_eq!(ask::<u32>(&url(&replica), &["LLEN", "after"]).await, 50);
    // Redis loses records that the old master confirmed before replicating them.
    let mut stored: Vec<u32> = ask(&url(&replica), &["LRANGE", "load", "0", "-1"]).await;
    stored.sort_unstable();
    stored.dedup();
    assert_eq!(stored.last(), Some(&(sent - 1)));
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_credentials_and_addresses_are_reported() {
    let server = Server::start("redis", "start", &["--requirepass", "right"]);
    let right = RedisConnectorConfig {
        password: Some(Secret::new("right")),
        ..connector(&server.address)
    };
    let records = numbered(0..2, |_| vec![text("k")]);
    let command = ["SET", "${key}", "x"];
    assert_eq!(deliver(&sink(&right, &command), &records, |_| ()).await, 0);
    let wrong = RedisConnectorConfig {
        password: Some(Secret::new("guessed-it")),
        ..connector(&server.address)
    };
    let unused = free_port().to_string();
    let tls = RedisConnectorConfig {
        tls: Some(TlsConfig {
            verify: false,
            ..TlsConfig::default()
        }),
        ..right.clone()
    };
    for (config, expected) in [
        (wrong, "authentication failed"),
        (connector(&server.address), "uthentication"),
        (connector(&unused), "refused"),
        (tls, "cannot connect"),
    ] {
        let sink = sink(&config, &command);
        let outcome = sink.send(&records).await;
        assert!(
            matches!(outcome[1], Err(DeliveryFailure::Unreachable(_))),
            "{outcome:?}"
        );
        assert!(
            reason(&outcome, 1).contains(expected) && !reason(&outcome, 1).contains("guessed-it"),
            "{outcome:?}"
        );
        assert!(
            sink.check().await.expect_err("not usable").contains(expected),
            "{expected}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tls_checks_the_certificate() {
    let directory = Directory::new("redis-tls");
    certificates(&directory);
    let file = |name: &str| directory.join(name).display().to_string();
    let port = free_port().port();
    let (cert, key, ca) = (file("cert.pem"), file("key.pem"), directory.join("ca.pem"));
    let port = port.to_string();
    let options = [
        "--tls-port",
        &port,
        "--tls-cert-file",
        &cert,
        "--tls-key-file",
        &key,
        "--tls-auth-clients",
        "no",
    ];
    let ca_file = ca.display().to_string();
    let options: Vec<&str> = options.into_iter().chain(["--tls-ca-cert-file", &ca_file]).collect();
    let _server = Server::start_in(directory, "redis", "start", &options);
    let with = |tls: TlsConfig| RedisConnectorConfig {
        tls: Some(tls),
        ..connector(&format!("127.0.0.1:{port}"))
    };
    let records = numbered(0..1, |_| vec![text("k")]);
    let trusted = TlsConfig {
        ca_file: Some(ca),
        ..TlsConfig::default()
    };
    let unchecked = TlsConfig {
        verify: false,
        ..TlsConfig::default()
    };
    for tls in [trusted, unchecked] {
        assert_eq!(
            sink(&with(tls), &["SET", "${key}", "x"]).send(&records).await,
            vec![Ok(())]
        );
    }
    let other = Directory::new("redis-other");
    certificates(&other);
    let foreign = TlsConfig {
        ca_file: Some(other.join("ca.pem")),
        ..TlsConfig::default()
    };
    let error = sink(&with(foreign), &["SET", "${key}", "x"])
        .check()
        .await
        .expect_err("not trusted");
    assert!(error.contains("certificate"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_over_tls_reconnects_after_a_crash() {
    let directory = Directory::new("redis-cluster-tls");
    certificates(&directory);
    let files = directory.path().display().to_string();
    let server = Arc::new(Server::start("redis", "cluster", &[&files]));
    let with = |tls: TlsConfig| RedisConnectorConfig {
        mode: RedisMode::Cluster,
        tls: Some(tls),
        ..connector(&server.address)
    };
    // The server requests no client certificate, but accepts ours.
    let trusted = TlsConfig {
        ca_file: Some(directory.join("ca.pem")),
        cert_file: Some(directory.join("cert.pem")),
        key_file: Some(directory.join("key.pem")),
        verify: true,
    };
    let unchecked = TlsConfig {
        verify: false,
        ..TlsConfig::default()
    };
    for tls in [trusted.clone(), unchecked] {
        let sink = sink(&with(tls), &["SET", "${key}", "x"]);
        let outcome = sink
            .send(&numbered(0..200, |number| vec![text(number.to_string())]))
            .await;
        assert!(outcome.iter().all(Result::is_ok), "{outcome:?}");
    }
    let sink = sink(&impatient(with(trusted)), &["SET", "${key}", "x"]);
    let fault = Server::crash_and_return(&server);
    let (_, failures) = deliver_during(fault, &sink, 10, |_| vec![text("k")]).await;
    assert!(failures > 0, "the cluster was down for a while");
    let other = Directory::new("redis-cluster-other");
    certificates(&other);
    let foreign = TlsConfig {
        ca_file: Some(other.join("ca.pem")),
        ..TlsConfig::default()
    };
    let strict = self::sink(&with(foreign), &["SET", "${key}", "x"]);
    let error = strict.check().await.expect_err("not trusted");
    assert!(error.contains("certificate"), "{error}");
}

#[test]
fn problems_name_the_field() {
    for (json, field) in [
        (r#"{"servers": []}"#, "servers"),
        (r#"{"servers": ["localhost"]}"#, "servers"),
        (r#"{"servers": ["a:1", "b:1"]}"#, "servers"),
        (r#"{"servers": ["a:1"], "mode": "sentinel"}"#, "sentinel_master"),
        (r#"{"servers": ["a:1"], "mode": "cluster", "database": 1}"#, "database"),
        (r#"{"servers": ["a:1"], "user": "u"}"#, "password"),
        (r#"{"servers": ["a:1"], "sentinel_password": "p"}"#, "sentinel_password"),
        (
            r#"{"servers": ["a:1"], "mode": "sentinel", "sentinel_master": "m", "sentinel_username": "u"}"#,
            "sentinel_password",
        ),
        (r#"{"servers": ["a:1"], "tls": {"cert_file": "x"}}"#, "tls.key_file"),
    ] {
        let config: RedisConnectorConfig = serde_json::from_str(json).expect("the right types");
        let problems = RedisConnector::new(&config).err().expect("problems").join("\n");
        assert!(problems.contains(field), "{json}: {problems}");
    }
    for command in [&[][..], &["${x}"], &["subscribe", "x"]] {
        assert!(
            action(command).problems().join("").starts_with("command"),
            "{command:?}"
        );
    }
}
