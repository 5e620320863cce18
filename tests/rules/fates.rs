//! Tests events for rejected and dropped messages. Rules see each event under both names that EMQX has for it, with
//! EMQX's words for the reasons where they exist.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::api::Api;
use crate::support::*;

/// Password file made by `mosquitto_passwd -b`: the password of alice is `wonderland`.
const PASSWORDS: &str = "alice:$7$101$MN7fbLzX3QMSv09F$2mupi6/RSIbhkRn3Ycmtaz8QRQekZzDtYe+WpDH9Ap7E6AmSN5IuvBFXtpndE9vBP26IHoP91q77KnaAvAAOVw==\n";
const RIGHTS: &str = "user alice\ntopic readwrite alice/#\n";

/// Writes the event into one file for each of its names.
fn watch(server: &Server, names: [&str; 2], condition: &str) {
    let api = Api::of(server);
    for (number, name) in names.iter().enumerate() {
        let id = format!("seen{number}");
        let parameters = json!({"directory": server.dir(), "name": id});
        let file = json!({"type": "file", "name": id, "parameters": parameters});
        api.ok("POST", "/api/v1/actions", &file);
        let sql = format!("SELECT * FROM \"{name}\" WHERE {condition}");
        let rule = json!({"id": id, "sql": sql, "actions": [format!("file:{id}")]});
        api.ok("POST", "/api/v1/rules", &rule);
    }
}

/// Waits for `count` lines and returns these columns of each. Asserts that both files have the same events.
fn seen<const N: usize>(server: &Server, count: usize, columns: [&str; N]) -> Vec<[Value; N]> {
    let [first, second] = [0, 1].map(|number| {
        let path = server.dir().join(format!("seen{number}.jsonl"));
        let text = || std::fs::read_to_string(&path).unwrap_or_default();
        server.wait_until(&format!("{count} events are in the file"), |_| {
            text().lines().count() >= count
        });
        let row = |line: &str| {
            let line: Value = serde_json::from_str(line).expect("a line is JSON");
            columns.map(|column| line[column].clone())
        };
        text().lines().map(row).collect::<Vec<_>>()
    });
    assert_eq!(first, second, "both names give the same events");
    assert_eq!(first.len(), count, "{first:?}");
    first
}

#[test]
fn each_authorization_check_is_an_event() {
    let toml = "[access]\nanonymous = \"never\"\npassword_file = \"{dir}/passwords\"\nacl_file = \"{dir}/rights\"\n";
    let config = Config::new(toml)
        .file("passwords", PASSWORDS.to_owned())
        .file("rights", RIGHTS.to_owned());
    let server = Server::start(&config);
    let names = [
        "$events/auth/check_authz_complete",
        "$events/client_check_authz_complete",
    ];
    watch(&server, names, "clientid = 'lamp'");
    let mut lamp = server.session(&Connect::new(V5, "lamp").user("alice", "wonderland"));
    lamp.publish(&Publish::new("alice/1", "x").qos(1));
    assert_eq!(lamp.publish(&Publish::new("bob/1", "x").qos(1)), 0x87);
    assert_eq!(lamp.subscribe_code("alice/#", 1), 1);
    assert_eq!(lamp.subscribe_code("bob/#", 1), 0x87);
    let columns = ["event", "username", "action", "topic", "result", "authz_source"];
    let expected = |action: &str, topic: &str, result: &str| {
        let event = "client.check_authz_complete";
        [event, "alice", action, topic, result, "rules"].map(|text| json!(text))
    };
    assert_eq!(
        seen(&server, 4, columns),
        [
            expected("publish", "alice/1", "allow"),
            expected("publish", "bob/1", "deny"),
            expected("subscribe", "alice/#", "allow"),
            expected("subscribe", "bob/#", "deny"),
        ]
    );
}

#[test]
fn messages_without_subscribers_are_events() {
    let server = Server::start(&Config::new(""));
    watch(&server, ["$events/message/dropped", "$events/message_dropped"], "true");
    let mut meter = server.session(&Connect::new(V5, "meter"));
    meter.subscribe("wanted", 0);
    assert_eq!(meter.publish(&Publish::new("wanted", "x").qos(1)), 0);
    assert_eq!(meter.publish(&Publish::new("unwanted", "of QoS 1").qos(1)), 0x10);
    meter.publish(&Publish::new("unwanted", "of QoS 0"));
    meter.publish(&Publish::new("unwanted", "of QoS 2").qos(2));
    let columns = ["event", "reason", "clientid", "topic", "payload", "qos"];
    let expected = |qos: u8| {
        let payload = format!("of QoS {qos}");
        [
            json!("message.dropped"),
            json!("no_subscribers"),
            json!("meter"),
            json!("unwanted"),
            json!(payload),
            json!(qos),
        ]
    };
    assert_eq!(seen(&server, 3, columns), [expected(1), expected(0), expected(2)]);
}

#[test]
fn each_delivery_drop_event_has_its_reason() {
    let toml = "[mqtt]\nmax_queued_messages = 2\n[durability]\npolicy = \"memory\"\n";
    let server = Server::start(&Config::new(toml));
    let names = ["$events/message/delivery_dropped", "$events/delivery_dropped"];
    watch(&server, names, "from_clientid = 'meter' OR clientid = 'away'");
    let mut meter = server.session(&Connect::new(V5, "meter"));
    let away = Connect::new(V5, "away").persistent();
    let mut client = server.session(&away);
    client.subscribe("t", 1);
    client.subscribe("t0", 0);
    client.disconnect();
    // The queue holds two messages, so the oldest is dropped.
    for payload in ["first", "second", "third"] {
        meter.publish(&Publish::new("t", payload).qos(1));
    }
    meter.publish(&Publish::new("t0", "of QoS 0"));
    let columns = ["reason", "clientid", "topic"];
    let event = |reason: &str, topic: &str| [reason, "away", topic].map(|text| json!(text));
    let mut expected = vec![event("queue_full", "t"), event("qos0_msg", "t0")];
    assert_eq!(seen(&server, 2, columns), expected);
    // Queued messages are discarded with the session.
    server.session(&Connect::new(V5, "away")).disconnect();
    expected.extend([event("session_ended", "t"), event("session_ended", "t")]);
    assert_eq!(seen(&server, 4, columns), expected);
    // The message expires in the queue.
    let mut client = server.session(&away);
    client.subscribe("t", 1);
    client.disconnect();
    let expiry = property::u32(property::MESSAGE_EXPIRY_INTERVAL, 1);
    meter.publish(&Publish::new("t", "soon too late").qos(1).property(expiry));
    sleep(Duration::from_millis(1500));
    let mut client = server.session(&away);
    expected.push(event("expired", "t"));
    assert_eq!(seen(&server, 5, columns), expected);
    client.ping_alone();
    client.disconnect();
    // The message exceeds the Maximum Packet Size of the client.
    let mut client = server.session(&away.property(property::u32(property::MAXIMUM_PACKET_SIZE, 60)));
    meter.publish(&Publish::new("t", "x".repeat(100)).qos(1));
    expected.push(event("too_large", "t"));
    assert_eq!(seen(&server, 6, columns), expected);
    client.ping_alone();
}

/// The server does not read the message from the journal for the event.
#[test]
fn drop_events_of_journal_messages_have_client_and_reason() {
    let server = Server::start(&Config::new("[mqtt]\nmax_queued_messages = 2\n"));
    let names = ["$events/message/delivery_dropped", "$events/delivery_dropped"];
    watch(&server, names, "true");
    let mut client = server.session(&Connect::new(V5, "away").persistent());
    client.subscribe("t", 1);
    client.disconnect();
    let mut meter = server.session(&Connect::new(V5, "meter"));
    for payload in ["first", "second", "third"] {
        meter.publish(&Publish::new("t", payload).qos(1));
    }
    let columns = ["event", "reason", "clientid", "topic"];
    let expected = ["delivery.dropped", "queue_full", "away", "undefined"];
    assert_eq!(seen(&server, 1, columns), [expected.map(|text| json!(text))]);
}

/// Each drop causes an event, also a drop because of a full output buffer.
#[test]
fn each_qos_0_drop_for_a_slow_reader_is_an_event() {
    const PAYLOAD_BYTES: usize = 16 * 1024;
    let server = Server::start(&Config::new(
        "[limits]\noutput_buffer_bytes = \"4KiB\"\nburst_buffer_bytes = \"0B\"\n",
    ));
    let names = ["$events/message/delivery_dropped", "$events/delivery_dropped"];
    watch(&server, names, "clientid = 'slow'");
    // The client stops reading. The size of the kernel's socket buffers is unknown.
    let mut slow = server.session(&Connect::new(V5, "slow"));
    slow.subscribe("t", 0);
    let mut meter = server.session(&Connect::new(V5, "meter"));
    let dropped = || dropped(&server, "slow_consumer");
    let deadline = Instant::now() + PATIENCE;
    while dropped() < 100 {
        assert!(Instant::now() < deadline, "nothing is dropped");
        for _ in 0..100 {
            meter.send(&Publish::new("t", "x".repeat(PAYLOAD_BYTES)).bytes(V5));
        }
        meter.ping_alone();
    }
    let columns = ["reason", "clientid", "topic", "from_clientid", "qos"];
    let expected = [
        json!("slow_consumer"),
        json!("slow"),
        json!("t"),
        json!("meter"),
        json!(0),
    ];
    let events = seen(&server, dropped() as usize, columns);
    assert!(events.iter().all(|row| *row == expected), "{:?}", events[0]);
}

/// The subscription covers topics that the access rules do not allow the client to read.
#[test]
fn unauthorized_delivery_is_an_event_with_the_message() {
    let toml = "[access]\npassword_file = \"{dir}/passwords\"\nacl_file = \"{dir}/rights\"\n";
    // Access rules before the first user apply to anonymous clients.
    let rights = "topic write house/#\nuser alice\ntopic read house/#\ntopic deny house/safe\n";
    let config = Config::new(toml)
        .file("passwords", PASSWORDS.to_owned())
        .file("rights", rights.to_owned());
    let server = Server::start(&config);
    let names = ["$events/message/delivery_dropped", "$events/delivery_dropped"];
    watch(&server, names, "true");
    let mut reader = server.session(&Connect::new(V5, "reader").user("alice", "wonderland"));
    assert_eq!(reader.subscribe_code("house/#", 1), 1);
    let mut house = server.session(&Connect::new(V5, "house"));
    house.publish(&Publish::new("house/safe", "open").qos(1));
    house.publish(&Publish::new("house/door", "shut").qos(1));
    assert_eq!(reader.receive().topic_str(), "house/door");
    let columns = ["reason", "clientid", "topic", "from_clientid", "payload", "qos"];
    let expected = ["not_authorized_to_receive", "reader", "house/safe", "house", "open"].map(|text| json!(text));
    let [reason, client, topic, from, payload] = expected;
    assert_eq!(
        seen(&server, 1, columns),
        [[reason, client, topic, from, payload, json!(1)]]
    );
    assert_eq!(dropped(&server, "not_authorized_to_receive"), 1);
}

/// The disk returns corrupted bytes. The event then has only the receiver of the message.
#[test]
fn unreadable_messages_are_events_and_others_are_delivered() {
    // The queue of a session holds 1,000 messages. The last message may arrive before the others are sent.
    const MESSAGES: usize = 900;
    let server = Server::start(&Config::new(""));
    let names = ["$events/message/delivery_dropped", "$events/delivery_dropped"];
    watch(&server, names, "true");
    let away = Connect::new(V5, "away").persistent();
    let mut client = server.session(&away);
    client.subscribe("t", 1);
    client.disconnect();
    let mut meter = server.session(&Connect::new(V5, "meter"));
    let payload = |number: usize| format!("message-{number:06}");
    for number in 0..MESSAGES {
        meter.publish(&Publish::new("t", payload(number)).qos(1));
    }
    // The message is far back in the queue, so its only copy is in the journal.
    let victim = payload(MESSAGES - 100);
    flip(&server, victim.as_bytes());
    let mut client = server.session(&away);
    meter.publish(&Publish::new("t", "end").qos(1));
    let received = client.receive_until("end");
    let received: Vec<&str> = received.iter().map(|delivery| delivery.payload_str()).collect();
    let expected: Vec<String> = (0..MESSAGES).map(payload).filter(|it| *it != victim).collect();
    assert!(received == expected, "{} messages arrived", received.len());
    let expected = ["delivery.dropped", "damaged", "away", "undefined"];
    let columns = ["event", "reason", "clientid", "topic"];
    assert_eq!(seen(&server, 1, columns), [expected.map(|text| json!(text))]);
    assert_eq!(dropped(&server, "damaged"), 1);
}

/// Changes a bit in the only occurrence of this text in the journal.
fn flip(server: &Server, text: &[u8]) {
    let entries = std::fs::read_dir(server.dir().join("data/journal")).expect("there is a journal");
    let mut found = 0;
    for entry in entries {
        let path = entry.expect("a file of the journal").path();
        let bytes = std::fs::read(&path).expect("a file of the journal");
        let Some(at) = bytes.windows(text.len()).position(|window| window == text) else {
            continue;
        };
        let file = OpenOptions::new()
            .write(true)
            .open(&path)
            .expect("a file of the journal");
        file.write_all_at(&[bytes[at] ^ 1], at as u64)
            .expect("a file of the journal");
        found += 1;
    }
    assert_eq!(found, 1, "occurrences in the journal");
}

/// Returns the server's count of messages dropped for this reason.
fn dropped(server: &Server, reason: &str) -> u64 {
    let (_, metrics) = server.http_get("/metrics");
    let begin = format!("tidewire_broker_messages_dropped_total{{reason=\"{reason}\"}} ");
    let value = metrics.lines().find_map(|line| line.strip_prefix(&begin));
    value.and_then(|value| value.parse().ok()).expect("a counter")
}
