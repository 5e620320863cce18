//! Limits of the process: threads and memory.

use std::fs;

use crate::crash::faulty_disk::library;
use crate::support::packet::{string, variable_byte_integer};
use crate::support::*;

#[test]
fn too_few_threads_are_reported_at_the_start() {
    let config = Config::new("")
        .environment("LD_PRELOAD", library("operations/few_threads").display().to_string())
        .environment("TIDEWIRE_TEST_THREADS", "{dir}/threads");
    let mut server = Server::start(&config);
    let limit = server.dir().join("threads");
    for (start, threads) in [1, 3, 10, 30, 40].into_iter().enumerate() {
        server.kill();
        fs::write(&limit, threads.to_string()).expect("the server's directory is writable");
        server.spawn_again();
        server.wait_until("the process has ended", |server| !server.is_running());
        let log = server.log();
        assert!(!log.contains("panicked"), "{threads} threads: {log}");
        assert_eq!(log.matches("raise the limit of threads").count(), start + 1, "{log}");
    }
    server.kill();
    fs::write(&limit, "1000").expect("the server's directory is writable");
    server.spawn_again();
    server.wait_until_ready();
}

#[test]
fn incomplete_packets_use_bounded_memory() {
    const MIB: usize = 1024 * 1024;
    let server = Server::start(&Config::new(
        "[mqtt]\nmax_packet_size = \"64MiB\"\n[limits]\nmax_incomplete_packets = \"8MiB\"\n",
    ));
    let begin = |name: &str| {
        let mut peer = server.session(&Connect::new(V5, name));
        let mut begun = vec![0x30];
        begun.extend(variable_byte_integer(60 * MIB));
        begun.extend(string("large"));
        peer.send(&begun);
        peer
    };
    // An announced packet takes no memory.
    let mut peers: Vec<Peer> = (0..20).map(|n| begin(&format!("large-{n}"))).collect();
    let mut greedy = peers.remove(0);
    let part = vec![0; MIB];
    // The server closes the connection while the client is sending.
    while greedy.try_send(&part).is_ok() {}
    let closed = greedy.expect_closed(PATIENCE);
    assert!(
        matches!(closed.disconnect_reason(), None | Some(0x97)),
        "{:?}",
        closed.disconnect_reason()
    );
    server.wait_until("the reason is counted", |server| {
        server
            .http_get("/metrics")
            .1
            .contains("tidewire_broker_disconnects_total{reason=\"quota_exceeded\"} 1")
    });
    // The memory is free again.
    let mut subscriber = server.session(&Connect::new(V5, "subscriber"));
    subscriber.subscribe("whole", 0);
    let mut publisher = server.session(&Connect::new(V5, "publisher"));
    publisher.send(&Publish::new("whole", vec![7; 3 * MIB]).bytes(V5));
    assert_eq!(subscriber.receive().payload.len(), 3 * MIB);
}
