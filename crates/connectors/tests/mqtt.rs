//! Tests of the MQTT bridge with a real Mosquitto, in both directions.

use std::collections::{BTreeMap, HashSet};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use connectors::mqtt::{
    LOOP_PROPERTY, MqttActionConfig, MqttConnector, MqttConnectorConfig, MqttSink, MqttSource, MqttSourceConfig,
    MqttVersion, PublishUserProperties,
};
use connectors::{
    BoxFuture, DeliveryFailure, Receiver, Secret, Sink, Source, SourceMessage, SourceOrigin, StopHandle, TlsConfig,
    sample, stop,
};
use mqtt::{Decoded, PacketType, Properties, PropertyContext, ProtocolVersion, decode};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use crate::support::{Directory, certificates, deliver, deliver_during, free_port, numbered, text, until};

/// A Mosquitto with a configuration of the test.
struct Mosquitto {
    directory: Directory,
    port: u16,
    process: Mutex<Child>,
}

impl Mosquitto {
    async fn start(more: &str) -> Mosquitto {
        let directory = Directory::new("mosquitto");
        Mosquitto::start_in(directory, more).await
    }

    async fn start_in(directory: Directory, more: &str) -> Mosquitto {
        let port = free_port().port();
        let location = directory.path().display();
        let settings = format!(
            "listener {port} 127.0.0.1\n{more}\nuser root\npersistence true\npersistence_location {location}/\nmax_queued_messages 0\nmax_inflight_messages 0\n"
        );
        let access = if more.contains("allow_anonymous") {
            ""
        } else {
            "allow_anonymous true\n"
        };
        directory.write("mosquitto.conf", format!("{settings}{access}"));
        let process = Mutex::new(spawn(&directory));
        let mosquitto = Mosquitto {
            directory,
            port,
            process,
        };
        mosquitto.wait_until_up().await;
        mosquitto
    }

    async fn wait_until_up(&self) {
        until("Mosquitto listens", async || {
            TcpStream::connect(("127.0.0.1", self.port)).await.is_ok()
        })
        .await;
    }

    /// Stops Mosquitto cleanly, so that it saves its state. It saves nothing in a crash.
    fn stop(&self) {
        let mut process = self.process.lock().expect("no panic");
        let _ = Command::new("kill").arg(process.id().to_string()).status();
        process.wait().expect("Mosquitto ends");
    }

    async fn restart(&self) {
        self.stop();
        tokio::time::sleep(Duration::from_millis(200)).await;
        *self.process.lock().expect("no panic") = spawn(&self.directory);
        self.wait_until_up().await;
    }

    fn server(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    fn publish(&self, topic: &str, qos: u8, lines: &[String]) {
        use std::io::Write as _;
        let (port, qos) = (self.port.to_string(), qos.to_string());
        let mut publisher = Command::new("mosquitto_pub")
            .args(["-p", &port, "-t", topic, "-q", &qos, "-l"])
            .stdin(Stdio::piped())
            .spawn()
            .expect("mosquitto_pub is installed");
        let mut input = publisher.stdin.take().expect("a pipe");
        input
            .write_all((lines.join("\n") + "\n").as_bytes())
            .expect("mosquitto_pub reads");
        drop(input);
        assert!(publisher.wait().expect("mosquitto_pub ends").success());
    }
}

impl Drop for Mosquitto {
    fn drop(&mut self) {
        let process = self.process.get_mut().expect("no panic");
        let _ = process.kill();
        let _ = process.wait();
    }
}

fn spawn(directory: &Directory) -> Child {
    let path = std::env::var("PATH").unwrap_or_default();
    Command::new("mosquitto")
        .env("PATH", format!("{path}:/usr/sbin:/usr/local/sbin"))
        .arg("-c")
        .arg(directory.join("mosquitto.conf"))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("mosquitto is installed: dev/setup.sh test")
}

fn config(server: &str, client_id: &str, version: MqttVersion) -> MqttConnectorConfig {
    let json = serde_json::json!({
        "server": server, "client_id": client_id,
        "reconnect": { "first_ms": 20, "longest_ms": 200 },
    });
    MqttConnectorConfig {
        version,
        ..serde_json::from_value(json).expect("a configuration")
    }
}

fn connector(config: &MqttConnectorConfig) -> Arc<MqttConnector> {
    Arc::new(MqttConnector::new(config).expect("a valid connector"))
}

fn sink(connector: &Arc<MqttConnector>) -> MqttSink {
    MqttSink::new(Arc::clone(connector), &MqttActionConfig::default()).expect("a valid action")
}

fn source_config(filter: &str, qos: u8) -> MqttSourceConfig {
    let json = serde_json::json!({ "subscriptions": [{ "filter": filter, "qos": qos }] });
    serde_json::from_value(json).expect("a configuration")
}

/// Collects the messages of a source, after rejecting some batches.
#[derive(Clone, Default)]
struct Collector {
    messages: Arc<Mutex<Vec<SourceMessage>>>,
    refusals_left: Arc<Mutex<u32>>,
}

impl Receiver for Collector {
    fn receive<'a>(&'a self, batch: &'a [SourceMessage]) -> BoxFuture<'a, Result<(), String>> {
        Box::pin(async {
            let mut left = self.refusals_left.lock().expect("no panic");
            if *left > 0 {
                *left -= 1;
                return Err("not now".to_owned());
            }
            self.messages.lock().expect("no panic").extend_from_slice(batch);
            Ok(())
        })
    }
}

impl Collector {
    fn payloads(&self) -> Vec<String> {
        let messages = self.messages.lock().expect("no panic");
        let payload =
            |message: &SourceMessage| String::from_utf8(message.payload.clone().unwrap_or_default()).expect("text");
        messages.iter().map(payload).collect()
    }

    async fn has(&self, count: usize) {
        until("messages arrive", async || {
            self.messages.lock().expect("no panic").len() >= count
        })
        .await;
    }
}

/// A running source.
struct Running {
    collector: Collector,
    stopper: StopHandle,
    task: JoinHandle<()>,
}

impl Running {
    fn start(connector: &Arc<MqttConnector>, config: &MqttSourceConfig, collector: Collector) -> Running {
        let source = MqttSource::new(Arc::clone(connector), config).expect("a valid source");
        let (stopper, stop) = stop();
        let receiver = collector.clone();
        let task = tokio::spawn(async move { source.run(&receiver, stop).await });
        Running {
            collector,
            stopper,
            task,
        }
    }

    async fn end(self) {
        self.stopper.stop();
        self.task.await.expect("no panic");
    }
}

async fn subscribed(server: &Mosquitto, filter: &str, qos: u8) -> (Running, Arc<MqttConnector>) {
    let name = format!("observer-{}", filter.replace(['/', '#', '+', '$'], "-"));
    let connector = connector(&config(&server.server(), &name, MqttVersion::V5));
    let running = Running::start(&connector, &source_config(filter, qos), Collector::default());
    // The probe arrives only after the broker has processed the subscription.
    let probe = sink(&self::connector(&config(
        &server.server(),
        &format!("{name}-probe"),
        MqttVersion::V5,
    )));
    let topic = filter.trim_start_matches("$share/g/").replace('#', "probe");
    until("the subscription exists", async || {
        let records = numbered(0..1, |_| vec![text(topic.clone()), text("probe"), text("1"), None]);
        probe.send(&records).await;
        !running.collector.messages.lock().expect("no panic").is_empty()
    })
    .await;
    (running, connector)
}

fn without_probes(payloads: Vec<String>) -> Vec<String> {
    payloads.into_iter().filter(|payload| payload != "probe").collect()
}

fn message(topic: &'static str, qos: u8) -> impl Fn(u32) -> Vec<Option<Vec<u8>>> {
    move |number| {
        vec![
            text(topic),
            text(number.to_string()),
            text(qos.to_string()),
            text("false"),
        ]
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_arrive_in_order_at_every_version_and_qos() {
    let server = Mosquitto::start("").await;
    let (observer, _connector) = subscribed(&server, "out/#", 2).await;
    let mut expected = Vec::new();
    for version in [MqttVersion::V3_1, MqttVersion::V3_1_1, MqttVersion::V5] {
        let sink = sink(&connector(&config(&server.server(), "bridge", version)));
        for qos in [0, 1, 2] {
            let records = numbered(0..2500, message("out/x", qos));
            assert_eq!(deliver(&sink, &records, |_| ()).await, 0, "{version:?} {qos}");
            expected.extend((0..2500).map(|number| number.to_string()));
        }
        // Mosquitto forwards QoS 2 messages after PUBREL, and the order of different clients is undefined.
        until("all arrive", async || {
            without_probes(observer.collector.payloads()).len() >= expected.len()
        })
        .await;
    }
    assert_eq!(without_probes(observer.collector.payloads()), expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn templates_apply_and_bad_records_do_not_block() {
    let server = Mosquitto::start("").await;
    let connector = connector(&config(&server.server(), "bridge", MqttVersion::V5));
    let site = BTreeMap::from([("site".to_owned(), "${site}".to_owned())]);
    let action = MqttActionConfig {
        user_properties: PublishUserProperties::Each(site),
        ..MqttActionConfig::default()
    };
    let sink = MqttSink::new(Arc::clone(&connector), &action).expect("a valid action");
    let records = numbered(0..4, |number| match number {
        0 => vec![text("kept/a"), text("A"), text("1"), text("true"), text("north")],
        1 => vec![text("kept/+"), text("B"), text("1"), text("true"), None],
        2 => vec![text("kept/c"), text("C"), text("7"), text("true"), None],
        _ => vec![text("kept/d"), text("D"), text("1"), text("1"), None],
    });
    let outcome = sink.send(&records).await;
    assert!(outcome[0].is_ok() && outcome[3].is_ok(), "{outcome:?}");
    assert!(
        matches!(&outcome[1], Err(DeliveryFailure::Refused(reason)) if reason.starts_with("topic")),
        "{outcome:?}"
    );
    assert!(
        matches!(&outcome[2], Err(DeliveryFailure::Refused(reason)) if reason.starts_with("qos")),
        "{outcome:?}"
    );
    let other = self::connector(&config(&server.server(), "other", MqttVersion::V5));
    let rewritten = MqttSourceConfig {
        strip_prefix: "kept/".to_owned(),
        add_prefix: "site/".to_owned(),
        ..source_config("kept/#", 1)
    };
    let running = Running::start(&other, &rewritten, Collector::default());
    running.collector.has(2).await;
    let messages = running.collector.messages.lock().expect("no panic").clone();
    let first = messages
        .iter()
        .find(|message| message.topic == "site/a")
        .expect("the message is retained");
    assert_eq!(
        first.origin,
        SourceOrigin::Mqtt {
            qos: 1,
            is_retained: true,
            is_duplicate: false,
        }
    );
    assert_eq!(first.headers[0], ("site".to_owned(), text("north")));
    assert!(messages.iter().any(|message| message.topic == "site/d"));
    running.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_is_forwarded_with_its_properties() {
    let server = Mosquitto::start("").await;
    let (observer, _connector) = subscribed(&server, "out/#", 1).await;
    let connector = connector(&config(&server.server(), "bridge", MqttVersion::V5));
    let sink = MqttSink::new(Arc::clone(&connector), &MqttActionConfig::default()).expect("a valid action");
    // The values of the default templates: user properties, content type, correlation data, expiry, payload format,
    // response topic.
    let pairs = r#"[{"key": "a", "value": "1"}, {"key": "a", "value": "2"}, {"key": "tidewire-bridge", "value": "x"}]"#;
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .expect("not before 1970")
        .as_millis() as u64;
    let record = |payload: &str, unix_ms: u64, expiry: &str, response: &str| {
        let fields = [
            "out/p",
            payload,
            "1",
            "false",
            pairs,
            "text/plain",
            "\u{1}\u{2}",
            expiry,
            "1",
            response,
        ];
        sample(unix_ms, &[&fields.map(|field| Some(field.as_bytes()))])
    };
    let mut batch = record("all", now - 10_000, "60", "answers/1");
    batch.extend(record("late", now - 61_000, "60", "answers/1"));
    batch.extend(record("wrong", now, "60", "answers/+"));
    let outcome = sink.send(&batch).await;
    assert!(outcome[0].is_ok(), "{outcome:?}");
    for (outcome, problem) in outcome[1..]
        .iter()
        .zip(["Message-Expiry-Interval: expired", "Response-Topic: `answers/+`"])
    {
        assert!(
            matches!(outcome, Err(DeliveryFailure::Refused(reason)) if reason.contains(problem)),
            "{outcome:?}"
        );
    }
    let sent = |message: &&SourceMessage| message.payload.as_deref() == Some(b"all");
    let found = || {
        observer
            .collector
            .messages
            .lock()
            .expect("no panic")
            .iter()
            .find(sent)
            .cloned()
    };
    until("the message arrives", async || found().is_some()).await;
    let message = found().expect("the message");
    let properties = Properties::parse(&message.properties, PropertyContext::Publish).expect("properties of a packet");
    assert_eq!(properties.content_type(), Some("text/plain"));
    assert_eq!(properties.response_topic(), Some("answers/1"));
    assert_eq!(properties.correlation_data(), Some(&b"\x01\x02"[..]));
    assert!(
        matches!(properties.message_expiry_interval(), Some(45..=50)),
        "{properties:?}"
    );
    let users: Vec<_> = properties
        .user_properties()
        .filter(|(name, _)| *name != LOOP_PROPERTY)
        .collect();
    assert_eq!(users, [("a", "1"), ("a", "2")]);
    observer.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_message_is_lost_while_the_source_is_down_or_fails() {
    for version in [MqttVersion::V3_1_1, MqttVersion::V5] {
        for qos in [1, 2] {
            let server = Mosquitto::start("").await;
            let config = config(&server.server(), "bridge", version);
            let first = connector(&config);
            let running = Running::start(&first, &source_config("in/#", qos), Collector::default());
            until("the bridge is connected", async || sink(&first).check().await.is_ok()).await;
            server.publish("in/x", qos, &lines(0..100));
            running.collector.has(100).await;
            assert_eq!(running.collector.payloads(), lines(0..100));
            running.end().await;
            drop(first);
            // While the source does not exist the broker stores messages. Then a receiver fails at first.
            server.publish("in/x", qos, &lines(100..3000));
            let failing = Collector::default();
            *failing.refusals_left.lock().expect("no panic") = 3;
            let second = connector(&config);
            let running = Running::start(&second, &source_config("in/#", qos), failing);
            running.collector.has(2900).await;
            // While the broker is down nothing arrives. Its stored messages follow.
            server.restart().await;
            until("the bridge is connected again", async || {
                sink(&second).check().await.is_ok()
            })
            .await;
            server.publish("in/x", qos, &lines(3000..3100));
            until("the last arrives", async || {
                running.collector.payloads().last().is_some_and(|last| last == "3099")
            })
            .await;
            let mut payloads = running.collector.payloads();
            // Messages that were unacknowledged when the broker stopped arrive twice.
            let mut seen = HashSet::new();
            payloads.retain(|payload| seen.insert(payload.clone()));
            let count = payloads.len();
            assert!(payloads == lines(100..3100), "{version:?} QoS {qos}: {count} messages");
            running.end().await;
        }
    }
}

/// A proxy between a bridge and its broker, which closes all connections on request.
struct Proxy {
    address: String,
    cut: tokio::sync::watch::Sender<u32>,
}

impl Proxy {
    async fn start(target: String) -> Proxy {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address").to_string();
        let (cut, cuts) = tokio::sync::watch::channel(0);
        tokio::spawn(async move {
            while let Ok((mut near, _)) = listener.accept().await {
                let (target, mut cuts) = (target.clone(), cuts.clone());
                cuts.mark_unchanged();
                tokio::spawn(async move {
                    let Ok(mut far) = TcpStream::connect(target).await else {
                        return;
                    };
                    tokio::select! {
                        _ = tokio::io::copy_bidirectional(&mut near, &mut far) => {}
                        _ = cuts.changed() => {}
                    }
                });
            }
        });
        Proxy { address, cut }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn qos_2_messages_arrive_once_over_lost_connections() {
    for version in [MqttVersion::V3_1_1, MqttVersion::V5] {
        let server = Mosquitto::start("").await;
        let proxy = Proxy::start(server.server()).await;
        let bridge = connector(&config(&proxy.address, "bridge", version));
        let failing = Collector::default();
        *failing.refusals_left.lock().expect("no panic") = 2;
        let running = Running::start(&bridge, &source_config("in/#", 2), failing);
        until("the bridge is connected", async || sink(&bridge).check().await.is_ok()).await;
        for round in 0..5 {
            server.publish("in/x", 2, &lines(round * 1000..round * 1000 + 1000));
            proxy.cut.send_modify(|number| *number += 1);
        }
        until("the last arrives", async || {
            running.collector.payloads().contains(&"4999".to_owned())
        })
        .await;
        let payloads = running.collector.payloads();
        let count = payloads.len();
        assert!(payloads == lines(0..5000), "{version:?}: {count} messages");
        running.end().await;
    }
}

fn lines(numbers: std::ops::Range<u32>) -> Vec<String> {
    numbers.map(|number| number.to_string()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn no_message_is_lost_when_the_broker_restarts() {
    for qos in [1, 2] {
        let server = Mosquitto::start("").await;
        let (observer, observers_connector) = subscribed(&server, "load/#", qos).await;
        let bridge = connector(&config(&server.server(), "bridge", MqttVersion::V5));
        let sink = sink(&bridge);
        let fault = async {
            observer.collector.has(1000).await;
            server.restart().await;
        };
        let (sent, failures) = deliver_during(fault, &sink, 100, message("load/x", qos)).await;
        assert!(failures > 0, "the broker was down for a while");
        let last = (sent - 1).to_string();
        until("the last arrives", async || {
            observer.collector.payloads().contains(&last)
        })
        .await;
        let mut received: Vec<u32> = without_probes(observer.collector.payloads())
            .iter()
            .map(|payload| payload.parse().expect("a number"))
            .collect();
        let all = received.len();
        received.sort_unstable();
        received.dedup();
        assert_eq!(received, (0..sent).collect::<Vec<u32>>());
        let duplicates = all - received.len();
        assert!(
            duplicates <= 200,
            "only messages in flight can arrive twice, not {duplicates}"
        );
        drop(observers_connector);
    }
}

/// Before MQTT 5 Mosquitto can reject an oversized packet only by closing the connection.
#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_closes_the_connection_does_not_block() {
    let server = Mosquitto::start("max_packet_size 2000").await;
    let (observer, _connector) = subscribed(&server, "out/#", 1).await;
    for qos in [1, 2] {
        observer.collector.messages.lock().expect("no panic").clear();
        let sink = sink(&connector(&config(&server.server(), "bridge", MqttVersion::V3_1_1)));
        let large = "x".repeat(4000);
        let mut waiting = numbered(0..500, |number| {
            let payload = if number == 250 {
                large.clone()
            } else {
                number.to_string()
            };
            vec![text("out/x"), text(payload), text(qos.to_string()), text("false")]
        });
        let mut rejected = None;
        until("all others are sent", async || {
            let outcome = sink.send(&waiting).await;
            let mut left = Vec::new();
            for (record, result) in waiting.iter().zip(outcome) {
                match result {
                    Ok(()) => {}
                    Err(DeliveryFailure::Temporary(reason)) => rejected = Some((record.clone(), reason)),
                    Err(DeliveryFailure::Unreachable(_) | DeliveryFailure::NotSent) => left.push(record.clone()),
                    Err(DeliveryFailure::Refused(reason)) => panic!("{reason}"),
                }
            }
            waiting = left;
            waiting.is_empty()
        })
        .await;
        let (record, reason) = rejected.expect("the large message is rejected");
        assert_eq!(record.field(1), Some(large.as_bytes()));
        assert!(reason.contains("only this message in flight"), "{reason}");
        let numbers = || -> HashSet<String> { without_probes(observer.collector.payloads()).into_iter().collect() };
        until("the others arrive", async || numbers().len() == 499).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn own_messages_are_not_received_again() {
    for version in [MqttVersion::V3_1_1, MqttVersion::V5] {
        let server = Mosquitto::start("").await;
        let bridge = connector(&config(&server.server(), "bridge", version));
        let running = Running::start(&bridge, &source_config("#", 1), Collector::default());
        let sink = sink(&bridge);
        sink.check().await.expect("the bridge is connected");
        assert_eq!(deliver(&sink, &numbered(0..10, message("both/x", 1)), |_| ()).await, 0);
        server.publish("both/y", 1, &["theirs".to_owned()]);
        running.collector.has(1).await;
        assert_eq!(running.collector.payloads(), ["theirs"], "{version:?}");
        // Shared subscriptions do not support No Local; the user property identifies own messages there.
        if version == MqttVersion::V5 {
            let shared = Running::start(&bridge, &source_config("$share/g/shared/#", 1), Collector::default());
            until("the message has returned", async || {
                let records = numbered(0..1, message("shared/x", 1));
                deliver(&sink, &records, |_| ()).await;
                bridge.counters().dropped_loop > 0
            })
            .await;
            assert_eq!(shared.collector.payloads(), Vec::<String>::new());
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shared_subscription_distributes_messages() {
    let server = Mosquitto::start("").await;
    let (one, _first) = subscribed(&server, "$share/g/work/#", 1).await;
    let other = connector(&config(&server.server(), "second", MqttVersion::V5));
    let two = Running::start(&other, &source_config("$share/g/work/#", 1), Collector::default());
    until("both receive messages", async || {
        server.publish("work/x", 1, &lines(0..20));
        let has_some = |running: &Running| running.collector.payloads().len() > 5;
        has_some(&one) && has_some(&two)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_credentials_and_addresses_are_reported() {
    let directory = Directory::new("mosquitto");
    let passwords = directory.join("passwords");
    let made = Command::new("mosquitto_passwd")
        .arg("-c")
        .arg("-b")
        .arg(&passwords)
        .args(["me", "right"])
        .status();
    assert!(made.expect("mosquitto_passwd is installed").success());
    let settings = format!("allow_anonymous false\npassword_file {}", passwords.display());
    let server = Mosquitto::start_in(directory, &settings).await;
    let records = numbered(0..2, message("t", 1));
    for version in [MqttVersion::V3_1_1, MqttVersion::V5] {
        let with = |password: &str| MqttConnectorConfig {
            user: Some("me".to_owned()),
            password: Some(Secret::new(password)),
            ..config(&server.server(), "bridge", version)
        };
        assert_eq!(sink(&connector(&with("right"))).send(&records).await, vec![Ok(()); 2]);
        let wrong = sink(&connector(&with("guessed-it")));
        let outcome = wrong.send(&records).await;
        let Err(DeliveryFailure::Unreachable(reason)) = &outcome[0] else {
            panic!("{outcome:?}")
        };
        assert!(
            reason.to_lowercase().contains("not authorized") && !reason.contains("guessed-it"),
            "{reason}"
        );
        wrong.check().await.expect_err("not usable");
    }
    let unused = free_port().to_string();
    let outcome = sink(&connector(&config(&unused, "bridge", MqttVersion::V5)))
        .send(&records)
        .await;
    assert!(
        matches!(&outcome[1], Err(DeliveryFailure::Unreachable(reason)) if reason.contains(&unused)),
        "{outcome:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn tls_checks_the_certificate() {
    let directory = Directory::new("mosquitto");
    certificates(&directory);
    let file = |name: &str| directory.join(name).display().to_string();
    let settings = format!("certfile {}\nkeyfile {}", file("cert.pem"), file("key.pem"));
    let ca = directory.join("ca.pem");
    let server = Mosquitto::start_in(directory, &settings).await;
    let with = |tls: TlsConfig| MqttConnectorConfig {
        tls: Some(tls),
        ..config(&server.server(), "bridge", MqttVersion::V5)
    };
    let trusted = TlsConfig {
        ca_file: Some(ca),
        ..TlsConfig::default()
    };
    for qos in [0, 1] {
        let outcome = sink(&connector(&with(trusted.clone())))
            .send(&numbered(0..50, message("t", qos)))
            .await;
        assert_eq!(outcome, vec![Ok(()); 50]);
    }
    let other = Directory::new("mosquitto-other");
    certificates(&other);
    let foreign = TlsConfig {
        ca_file: Some(other.join("ca.pem")),
        ..TlsConfig::default()
    };
    let error = sink(&connector(&with(foreign))).check().await.expect_err("not trusted");
    assert!(error.contains("certificate"), "{error}");
}

#[test]
fn problems_name_the_field() {
    for (json, field) in [
        (r#"{"server": "localhost", "client_id": "x"}"#, "server"),
        (r#"{"server": "a:1", "client_id": ""}"#, "client_id"),
        (
            r#"{"server": "a:1", "client_id": "x", "in_flight_max": 0}"#,
            "in_flight_max",
        ),
        (
            r#"{"server": "a:1", "client_id": "x", "receive_max": 0}"#,
            "receive_max",
        ),
        (
            r#"{"server": "a:1", "client_id": "x", "version": "3.1.1", "password": "p"}"#,
            "user",
        ),
    ] {
        let config: MqttConnectorConfig = serde_json::from_str(json).expect("the right types");
        let problems = MqttConnector::new(&config).err().expect("problems").join("\n");
        assert!(problems.contains(field), "{json}: {problems}");
    }
    assert!(source_config("a/#/b", 1).problems()[0].contains("a/#/b"));
    let action = MqttActionConfig {
        qos: "9".to_owned(),
        ..MqttActionConfig::default()
    };
    assert!(action.problems()[0].starts_with("qos"));
}

/// The broker's side of a connection, controlled by the test: no broker withholds a SUBACK when asked.
struct Remote {
    stream: TcpStream,
    input: Vec<u8>,
}

impl Remote {
    /// Accepts the connector's connection and answers CONNECT.
    async fn accept(listener: &TcpListener, is_session_present: bool) -> Remote {
        let (stream, _) = listener.accept().await.expect("a connection");
        let mut remote = Remote {
            stream,
            input: Vec::new(),
        };
        remote.next(PacketType::Connect).await;
        remote.send(&[0x20, 3, u8::from(is_session_present), 0, 0]).await;
        remote
    }

    /// Returns the next packet, which has this type, without its first byte and length.
    async fn next(&mut self, expected: PacketType) -> Vec<u8> {
        loop {
            match decode(&self.input, ProtocolVersion::V5, 1 << 20).expect("a valid packet") {
                Decoded::Incomplete { .. } => {
                    let count = self.stream.read_buf(&mut self.input).await.expect("a read");
                    assert_ne!(count, 0, "the connector has closed the connection");
                }
                Decoded::Complete { packet, size } => {
                    assert_eq!(packet.packet_type(), expected);
                    let rest = self.input.split_off(size);
                    return std::mem::replace(&mut self.input, rest).split_off(2);
                }
            }
        }
    }

    async fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).await.expect("a write");
    }
}

/// The body of an UNSUBSCRIBE without its packet identifier: no properties, one filter.
const FILTER_T: [u8; 4] = [0, 0, 1, b't'];

#[tokio::test(flavor = "multi_thread")]
async fn source_removed_before_suback_is_unsubscribed() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let server = listener.local_addr().expect("an address").to_string();
    let connector = connector(&config(&server, "removed", MqttVersion::V5));
    let source = MqttSource::new(Arc::clone(&connector), &source_config("t", 1)).expect("a valid source");
    let (checked, mut remote) = tokio::join!(source.check(), Remote::accept(&listener, false));
    assert_eq!(checked, Ok(()));
    remote.next(PacketType::Subscribe).await;
    source.unsubscribe();
    assert_eq!(remote.next(PacketType::Unsubscribe).await[2..], FILTER_T);
}

#[tokio::test(flavor = "multi_thread")]
async fn source_removed_after_a_lost_suback_is_unsubscribed() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let server = listener.local_addr().expect("an address").to_string();
    let connector = connector(&config(&server, "lost", MqttVersion::V5));
    let source = MqttSource::new(Arc::clone(&connector), &source_config("t", 1)).expect("a valid source");
    let (checked, mut remote) = tokio::join!(source.check(), Remote::accept(&listener, false));
    assert_eq!(checked, Ok(()));
    remote.next(PacketType::Subscribe).await;
    drop(remote);
    until("the connector has noticed", async || source.check().await.is_err()).await;
    source.unsubscribe();
    let mut remote = Remote::accept(&listener, true).await;
    assert_eq!(remote.next(PacketType::Unsubscribe).await[2..], FILTER_T);
}
