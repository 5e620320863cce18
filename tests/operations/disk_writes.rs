//! Tests `durability.commit_interval`, and the metrics of disk writes that show its effect.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use super::*;

const INTERVAL: Duration = Duration::from_secs(1);
const MESSAGES: u64 = 50;
/// Zeros that the journal writes ahead of small commits, at most once per this number of bytes.
const ZEROS: u64 = 64 << 10;

fn metric(server: &Server, sample: &str) -> u64 {
    let (_, metrics) = server.http_get("/metrics");
    let value = metrics.lines().find_map(|line| line.strip_prefix(sample));
    value.expect("the metric exists").trim().parse().unwrap()
}

fn written_bytes(server: &Server) -> u64 {
    metric(server, "tidewire_disk_written_bytes_total{store=\"journal\"}")
}

fn syncs(server: &Server) -> u64 {
    metric(server, "tidewire_disk_syncs_total{store=\"journal\"}")
}

/// Returns the size of the segments without the zeros at their ends, which are reserved space.
fn used_bytes(journal: &Path) -> u64 {
    let paths = fs::read_dir(journal).unwrap().map(|entry| entry.unwrap().path());
    let segments = paths.filter(|path| path.extension().is_some_and(|extension| extension == "log"));
    let used = segments.map(|path| {
        let bytes = fs::read(path).unwrap();
        bytes
            .iter()
            .rposition(|byte| *byte != 0)
            .map_or(0, |last| last as u64 + 1)
    });
    used.sum()
}

#[test]
fn messages_within_the_commit_interval_share_a_sync() {
    let server = Server::start(&Config::new(
        "[durability]\ncommit_interval = \"1s\"\nsegment_bytes = \"1MiB\"\n",
    ));
    let mut subscriber = server.session(&Connect::new(V5, "subscriber").persistent());
    subscriber.subscribe("stored", 1);
    subscriber.disconnect();
    let mut publisher = server.session(&Connect::new(V5, "publisher"));
    let message = Publish::new("stored", "x".repeat(2000)).qos(1);
    let journal = server.dir().join("data/journal");

    let (syncs_before, bytes_before, used_before) = (syncs(&server), written_bytes(&server), used_bytes(&journal));
    let begun = Instant::now();
    publisher.publish(&message);
    for _ in 0..MESSAGES {
        let id = publisher.packet_id();
        publisher.send(&message.clone().id(id).bytes(V5));
        // Each message is appended before the next one is sent.
        publisher.send(&packet::PINGREQ);
        publisher.expect(kind::PINGRESP);
    }
    for _ in 0..MESSAGES {
        publisher.expect(kind::PUBACK);
    }
    let elapsed = begun.elapsed();
    assert!(elapsed >= INTERVAL, "the second sync came after {elapsed:?}");
    // Two syncs may belong to commits that began before the first message.
    let syncs = syncs(&server) - syncs_before;
    let elapsed = begun.elapsed();
    let syncs_max = 3 + elapsed.as_millis() / INTERVAL.as_millis();
    assert!(u128::from(syncs) <= syncs_max, "{syncs} syncs in {elapsed:?}");

    let used = used_bytes(&journal) - used_before;
    let written = written_bytes(&server) - bytes_before;
    assert!(used >= MESSAGES * 2000, "{used} bytes more in the journal");
    // The last record may end with zeros.
    assert!(
        (used - 1000..=2 * used + 2 * ZEROS).contains(&written),
        "{written} bytes written, {used} bytes more in the journal"
    );
}
