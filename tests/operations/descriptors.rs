//! The limit of open files: clients cannot take the descriptors of the journal and the API.

use std::io::Read;
use std::net::TcpStream;

use crate::support::api::Api;
use crate::support::*;

const OPEN_FILES_MAX: u32 = 256;

/// More connections than the process may open.
fn crowd(server: &Server) -> Vec<TcpStream> {
    (0..OPEN_FILES_MAX + 50)
        .filter_map(|_| TcpStream::connect(server.mqtt()).ok())
        .collect()
}

#[test]
fn clients_leave_descriptors_for_the_journal_and_the_api() {
    let server = Server::start(&Config {
        open_files_max: Some(OPEN_FILES_MAX),
        ..Config::new("[listeners.tcp.default]\nhandshake_timeout = \"10m\"\n[durability]\nsegment_bytes = \"1MiB\"\n")
    });
    let api = Api::of(&server);
    let mut durable = server.session(&Connect::new(V5, "durable").persistent());
    durable.subscribe("stored/#", 1);
    durable.disconnect();
    let mut publisher = server.session(&Connect::new(V5, "publisher"));
    let clients = crowd(&server);
    server.wait_until("connections are refused for want of descriptors", |server| {
        let (status, metrics) = server.http_get("/metrics");
        assert_eq!(status, 200);
        metrics.lines().any(|line| {
            line.starts_with("tidewire_listener_connections_refused_total")
                && line.contains("reason=\"descriptor_limit\"")
                && !line.ends_with(" 0")
        })
    });
    let refused = api.get("/api/v1/refused-clients");
    assert_eq!(refused[0]["reason"], "descriptor_limit", "{refused}");
    server.wait_until("the refusal is logged", |server| {
        server
            .log()
            .contains("the limit of open files allows no more connections")
    });
    server.wait_until("an alarm is active", |_| {
        let alarms = api.get("/api/v1/alarms");
        alarms["active"]
            .as_array()
            .unwrap()
            .iter()
            .any(|alarm| alarm["name"] == "open_files")
    });
    assert_eq!(server.http_get("/readyz").0, 200);
    // Several journal segments.
    for n in 0..80 {
        publisher.publish(&Publish::new(format!("stored/{n}"), "x".repeat(50_000)).qos(1));
    }
    assert!(
        server.open_files() < OPEN_FILES_MAX as usize - 40,
        "{}",
        server.open_files()
    );
    let log = server.log();
    assert!(!log.contains("Too many open files"), "{log}");
    drop(clients);
    server.wait_until("a new client is accepted", |server| {
        let Ok(mut stream) = TcpStream::connect(server.mqtt()) else {
            return false;
        };
        stream
            .set_read_timeout(Some(std::time::Duration::from_millis(20)))
            .unwrap();
        // A refused connection is reset at once.
        matches!(stream.read(&mut [0]), Err(error) if error.kind() == std::io::ErrorKind::WouldBlock)
    });
}
