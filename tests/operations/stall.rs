//! Tests a process that is stopped for a while (SIGSTOP, a suspended virtual machine, a slow host) and then continues.

use std::thread;
use std::time::Duration;

use super::*;

const CLIENTS: usize = 20;
const PINGREQ: [u8; 2] = [0xC0, 0];

/// Seconds. The clients connect one after the other, and on a busy machine that takes a while.
const KEEP_ALIVE: u16 = 4;

/// Longer than 1.5 times the Keep Alive.
const STALL: Duration = Duration::from_millis(6_500);

#[test]
fn packets_received_during_a_stall_keep_connections_open() {
    let server = Server::start(&Config::new(""));
    let mut clients: Vec<Peer> = (0..CLIENTS)
        .map(|_| server.session(&Connect::new(V5, unique("stall")).keep_alive(KEEP_ALIVE)))
        .collect();
    server.freeze();
    for client in &mut clients {
        client.send(&PINGREQ);
    }
    thread::sleep(STALL);
    server.thaw();
    for client in &mut clients {
        client.expect(kind::PINGRESP);
    }
}
