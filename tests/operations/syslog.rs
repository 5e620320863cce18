//! The log with `log.syslog`, as a system log receives it.

use std::io;
use std::net::UdpSocket;
use std::os::unix::net::UnixDatagram;

use super::*;
use crate::rules::bad_input::metric;

/// Reads lines until one ends with the message.
#[track_caller]
fn line(receive: impl Fn(&mut [u8]) -> io::Result<usize>, message: &str) -> String {
    let mut buffer = vec![0; 65_536];
    loop {
        let bytes = receive(&mut buffer).unwrap_or_else(|error| panic!("no line {message}: {error}"));
        let text = str::from_utf8(&buffer[..bytes]).unwrap();
        if text.ends_with(message) {
            return text.to_owned();
        }
    }
}

fn dropped(server: &Server) -> f64 {
    metric(server, "tidewire_log_lines_dropped_total", &[])
}

#[test]
fn lines_reach_a_host_with_their_fields() {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let address = socket.local_addr().unwrap();
    let server = Server::start(&Config::new(format!(
        "[node]\nname = \"gateway 1\"\n[log]\nsyslog = \"udp://{address}\"\n"
    )));
    let ready = line(|buffer| socket.recv(buffer), "] ready");
    let (header, data) = ready.split_once(" - [tidewire@32473 ").unwrap();
    let header: Vec<&str> = header.split(' ').collect();
    let pid = server.pid().to_string();
    assert_eq!(header[0], "<30>1", "{ready}");
    assert!(header[1].ends_with('Z') && header[1].contains('T'), "{ready}");
    assert_eq!(header[2..], ["gateway_1", "tidewire", pid.as_str()], "{ready}");
    assert!(data.contains(" listeners=\"2\" workers=\""), "{ready}");
    assert!(!server.log().contains(" INFO "), "{}", server.log());
}

#[test]
fn lines_without_a_reader_are_dropped_and_counted() {
    let server = Server::start(&Config::new(
        "[log]\nlevel = \"debug\"\nsyslog = \"unix:{dir}/log.socket\"\n",
    ));
    // The system log has not started yet.
    server.wait_until("lines are dropped", |server| dropped(server) > 0.0);

    // It has started, and reads nothing.
    let socket = UnixDatagram::bind(server.dir().join("log.socket")).unwrap();
    let before = dropped(&server);
    let connect = |name: &str| drop(server.session(&Connect::new(V5, name)));
    server.wait_until("lines are dropped because the queue is full", |server| {
        for _ in 0..20 {
            connect("noisy");
        }
        dropped(server) > before
    });

    // It reads again.
    socket.set_nonblocking(true).unwrap();
    let mut buffer = [0; 1];
    while socket.recv(&mut buffer).is_ok() {}
    socket.set_nonblocking(false).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let reader = std::thread::spawn(move || {
        loop {
            let line = line(|buffer| socket.recv(buffer), "] connected");
            if line.contains(" client_id=\"late\"") {
                return line;
            }
        }
    });
    server.wait_until("a line arrives", |_| {
        connect("late");
        reader.is_finished()
    });
    let late = reader.join().unwrap();
    assert!(late.starts_with("<31>1 "), "{late}");
}
