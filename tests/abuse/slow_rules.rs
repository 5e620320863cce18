//! Slow rules delay only their own publishers, not other clients.
//!
//! The rules count to the `n` of the payload `{"seq": …, "n": …}`. `work` searches for an `n` that takes long. The
//! tests compare with the time of this evaluation, so that they depend little on the load of the machine.

use std::collections::HashSet;
use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use crate::support::*;

/// More iterations exceed the limits of a rule.
const WORK_MAX: u32 = 100_000;

/// `work` stops at an evaluation that takes this long.
const LONG: Duration = Duration::from_millis(60);

/// A server with one data-plane thread and two rules: `slow/#` goes to a file, `again/#` to the topic `out`.
fn server() -> Server {
    Server::start(&Config::new(
        r#"
[node]
workers = 1
[integration]
rule_time_max = "10s"
[actions.out]
type = "file"
parameters = { directory = "{dir}", name = "lines" }
[rules.slow]
sql = """SELECT payload.seq AS seq, jq('reduce range(.n) as $i (0; . + 1)', payload) AS done FROM 'slow/#'"""
actions = ["file:out"]
[rules.again]
sql = """SELECT payload.seq AS seq, jq('reduce range(.n) as $i (0; . + 1)', payload) AS done FROM 'again/#'"""
actions = [{ function = "republish", args = { topic = "out", payload = "${seq}", qos = 1 } }]
"#,
    ))
}

fn message(topic: &str, seq: u32, n: u32) -> Publish {
    Publish::new(topic, format!(r#"{{"seq": {seq}, "n": {n}}}"#)).qos(1)
}

/// Returns an expensive `n` and its evaluation time.
fn work(server: &Server, topic: &str) -> (u32, Duration) {
    let mut publisher = server.session(&Connect::new(V5, unique("work")));
    let mut time_of = |n: u32| {
        let start = Instant::now();
        assert!(publisher.publish(&message(topic, 0, n)) < 0x80);
        start.elapsed()
    };
    let mut n = 1000;
    loop {
        // The shortest of four, because the machine may be busy.
        let took = (0..4).map(|_| time_of(n)).min().expect("four times");
        if took >= LONG || n == WORK_MAX {
            return (n, took);
        }
        n = (n * 2).min(WORK_MAX);
    }
}

/// Returns an expensive `n` after the rule `slow` has become slow.
fn slow_work(server: &Server) -> u32 {
    let (n, _) = work(server, "slow/a");
    server.wait_until("the rule is slow", |server| {
        metric_of(server, "tidewire_rule_slow", "slow") == 1.0
    });
    n
}

fn metric_of(server: &Server, name: &str, rule: &str) -> f64 {
    let (_, text) = server.http_get("/metrics");
    let start = format!("{name}{{rule=\"{rule}\"}} ");
    let value = text.lines().find_map(|line| line.strip_prefix(&start));
    value.and_then(|value| value.parse().ok()).unwrap_or(0.0)
}

/// Sends messages without waiting for answers.
fn send_all(peer: &mut Peer, messages: impl Iterator<Item = Publish>) {
    for message in messages {
        let message = message.id(peer.packet_id());
        peer.send(&message.bytes(peer.version()));
    }
}

#[test]
fn slow_rule_does_not_delay_other_publishers() {
    const MESSAGES: u32 = 20;
    /// Acknowledgements of another client during an evaluation. A client that waited for the evaluation got one or two.
    const ACKNOWLEDGED_MIN: usize = 4;
    let server = server();
    let (n, evaluation) = work(&server, "slow/a");
    let mut other = server.session(&Connect::new(V5, unique("other")));
    let mut busy = server.session(&Connect::new(V5, unique("busy")));
    let begin = Instant::now();
    send_all(&mut busy, (0..MESSAGES).map(|seq| message("slow/a", seq, n)));
    let busy = thread::spawn(move || {
        let acknowledged = (0..MESSAGES).map(|_| {
            assert!(busy.expect(kind::PUBACK).reason() < 0x80);
            Instant::now()
        });
        acknowledged.collect::<Vec<Instant>>()
    });
    let mut times = Vec::new();
    while !busy.is_finished() {
        let start = Instant::now();
        assert!(other.publish(&Publish::new("other", "x").qos(1)) < 0x80);
        times.push((start, Instant::now()));
    }
    let ends = busy.join().expect("every message of the slow rule is acknowledged");
    let begins = std::iter::once(begin).chain(ends.iter().copied());
    let acknowledged_between = |from: Instant, to: Instant| {
        let is_between = |(start, end): &&(Instant, Instant)| *start >= from && *end <= to;
        times.iter().filter(is_between).count()
    };
    // Several evaluations can be acknowledged at once.
    let mut counts: Vec<usize> = begins
        .zip(&ends)
        .filter(|(from, to)| to.duration_since(*from) >= evaluation / 2)
        .map(|(from, to)| acknowledged_between(from, *to))
        .collect();
    counts.sort_unstable();
    println!("acknowledgements per evaluation of {evaluation:?}: {counts:?}");
    assert!(
        counts
            .get(counts.len() / 2)
            .is_some_and(|count| *count >= ACKNOWLEDGED_MIN),
        "other clients waited for most evaluations of {evaluation:?}: {counts:?}"
    );
}

#[test]
fn messages_of_a_rule_stay_in_order_when_it_becomes_slow() {
    let server = server();
    let (n, _) = work(&server, "slow/a");
    let mut subscriber = server.session(&Connect::new(V5, unique("subscriber")));
    subscriber.subscribe("out", 1);
    let mut publisher = server.session(&Connect::new(V5, unique("publisher")));
    // The order is: cheap messages, messages that make the rule slow, cheap messages that must not overtake them.
    let work_of = |seq: u32| if (40..46).contains(&seq) { n } else { 1 };
    send_all(
        &mut publisher,
        (0..100).map(|seq| message("again/1", seq, work_of(seq))),
    );
    let received: Vec<String> = (0..100)
        .map(|_| subscriber.receive().payload_str().to_owned())
        .collect();
    let expected: Vec<String> = (0..100).map(|seq| seq.to_string()).collect();
    assert_eq!(received, expected);
    for _ in 0..100 {
        assert!(publisher.expect(kind::PUBACK).reason() < 0x80);
    }
}

#[test]
fn full_queue_of_a_slow_rule_rejects_with_quota_exceeded() {
    let server = server();
    let n = slow_work(&server);
    let mut publisher = server.session(&Connect::new(V5, unique("publisher")));
    // 16 MiB may be queued.
    let padding = "x".repeat(900_000);
    let large = |seq: u32| {
        let payload = format!(r#"{{"seq": {seq}, "n": {n}, "padding": "{padding}"}}"#);
        Publish::new("slow/a", payload).qos(1)
    };
    send_all(&mut publisher, (0..60).map(large));
    let reasons: Vec<u8> = (0..60).map(|_| publisher.expect(kind::PUBACK).reason()).collect();
    assert!(reasons.contains(&0x97), "{reasons:02x?}");
    assert!(
        reasons.iter().all(|reason| *reason < 0x80 || *reason == 0x97),
        "{reasons:02x?}"
    );
    assert!(server.log().contains("queue of a slow rule is full"));
    // The server accepts messages again when the queue has space.
    server.wait_until("the queue is empty", |server| {
        metric_of(server, "tidewire_rule_queued", "slow") == 0.0
    });
    assert!(publisher.publish(&message("slow/a", 1000, 1)) < 0x80);
    assert_eq!(metric_of(&server, "tidewire_rule_queue_full", "slow"), 0.0);
}

#[test]
fn kill_loses_no_acknowledged_message_of_a_slow_rule() {
    let mut server = server();
    let n = slow_work(&server);
    let mut publisher = server.session(&Connect::new(V5, unique("publisher")));
    send_all(&mut publisher, (1..=40).map(|seq| message("slow/a", seq, n)));
    let acknowledged = 8;
    for _ in 0..acknowledged {
        assert!(publisher.expect(kind::PUBACK).reason() < 0x80);
    }
    server.kill();
    server.spawn_again();
    server.wait_until_ready();
    let written = |server: &Server| -> HashSet<u32> {
        let lines = fs::read_to_string(server.dir().join("lines.jsonl")).unwrap_or_default();
        let lines = lines
            .lines()
            .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
        lines.filter_map(|line| Some(line["seq"].as_u64()? as u32)).collect()
    };
    server.wait_until("every acknowledged message is in the file", |server| {
        let written = written(server);
        (1..=acknowledged).all(|seq| written.contains(&seq))
    });
}
