//! Tests `tidewire pub` and `tidewire sub` against servers that misbehave: no answer, no reads, closed connections.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(20);

struct Server {
    listener: TcpListener,
    port: String,
}

impl Server {
    fn start() -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port().to_string();
        Server { listener, port }
    }

    /// Accepts the next connection and reads its CONNECT.
    fn connection(&self) -> TcpStream {
        let (mut stream, _) = self.listener.accept().unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        assert_eq!(packet(&mut stream), 0x10);
        stream
    }
}

/// Reads a packet; returns its first byte.
fn packet(stream: &mut TcpStream) -> u8 {
    let mut head = [0; 2];
    stream.read_exact(&mut head).unwrap();
    assert!(head[1] < 0x80, "only short packets are supported");
    stream.read_exact(&mut vec![0; usize::from(head[1])]).unwrap();
    head[0]
}

struct Client {
    child: Child,
    stderr: BufReader<ChildStderr>,
}

impl Client {
    fn start(args: &[&str]) -> Client {
        let mut child = Command::new(env!("CARGO_BIN_EXE_tidewire"))
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        Client { child, stderr }
    }

    fn signal(&self, name: &str) {
        let arguments = [format!("-{name}"), self.child.id().to_string()];
        assert!(Command::new("kill").args(arguments).status().unwrap().success());
    }

    fn wait_for(&mut self, what: &str) {
        let mut line = String::new();
        while !line.contains(what) {
            line.clear();
            assert!(
                self.stderr.read_line(&mut line).unwrap() > 0,
                "the output ended before `{what}`"
            );
        }
    }

    fn end(mut self) -> Option<i32> {
        let mut rest = String::new();
        self.stderr.read_to_string(&mut rest).unwrap();
        self.child.wait().unwrap().code()
    }
}

#[test]
fn interrupted_pub_reports_unacknowledged_messages() {
    let server = Server::start();
    let mut client = Client::start(&["pub", "-p", &server.port, "-t", "t", "-q", "1", "-m", "x"]);
    let mut stream = server.connection();
    stream.write_all(&[0x20, 2, 0, 0]).unwrap();
    assert_eq!(packet(&mut stream) & 0xF0, 0x30);
    client.signal("INT");
    client.wait_for("interrupted: 1 messages are not acknowledged");
    drop(stream);
    assert_eq!(client.end(), Some(130));
}

#[test]
fn second_signal_ends_a_pub_that_blocks_in_a_write() {
    let server = Server::start();
    let payload = "x".repeat(60_000);
    let client = Client::start(&[
        "pub",
        "-p",
        &server.port,
        "-t",
        "t",
        "--repeat",
        "10000",
        "-m",
        &payload,
    ]);
    let mut stream = server.connection();
    stream.write_all(&[0x20, 2, 0, 0]).unwrap();
    // Waits until the number of written bytes stops growing: then the socket is full and the client blocks in a write.
    let io = format!("/proc/{}/io", client.child.id());
    let mut before = String::new();
    let end = Instant::now() + PATIENCE;
    loop {
        let now = std::fs::read_to_string(&io).unwrap();
        if now == before && state(&client.child) == 'S' {
            break;
        }
        before = now;
        assert!(Instant::now() < end, "the client still writes");
        std::thread::sleep(Duration::from_millis(100));
    }
    client.signal("INT");
    client.signal("TERM");
    let code = client.end();
    assert!(matches!(code, Some(130 | 143)), "{code:?}");
}

/// Returns the state of a process, as in proc(5).
fn state(child: &Child) -> char {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
    stat.rsplit_once(") ").unwrap().1.chars().next().unwrap()
}

#[test]
fn unsent_qos_0_messages_are_a_failure() {
    let server = Server::start();
    let client = Client::start(&[
        "pub",
        "-p",
        &server.port,
        "-t",
        "t",
        "--repeat",
        "100000",
        "-m",
        "some text",
    ]);
    let mut stream = server.connection();
    stream.write_all(&[0x20, 2, 0, 0]).unwrap();
    assert_eq!(packet(&mut stream), 0x30);
    // Closing a socket with unread bytes resets the connection.
    drop(stream);
    assert_eq!(client.end(), Some(1));
}

#[test]
fn sub_reconnects_after_a_server_shutdown() {
    let server = Server::start();
    let mut client = Client::start(&["sub", "-V", "5", "-p", &server.port, "-t", "t", "-C", "1"]);
    let mut stream = server.connection();
    stream.write_all(&[0x20, 3, 0, 0, 0]).unwrap();
    assert_eq!(packet(&mut stream), 0x82);
    stream.write_all(&[0xE0, 1, 0x8B]).unwrap();
    drop(stream);
    client.wait_for("trying again");
    let mut stream = server.connection();
    stream.write_all(&[0x20, 3, 0, 0, 0]).unwrap();
    assert_eq!(packet(&mut stream), 0x82);
    stream.write_all(&[0x30, 4, 0, 1, b't', 0]).unwrap();
    assert_eq!(packet(&mut stream), 0xE0);
    drop(stream);
    assert_eq!(client.end(), Some(0));
}

#[test]
fn sub_ends_at_its_timeout_despite_constant_messages() {
    let server = Server::start();
    let client = Client::start(&["sub", "-p", &server.port, "-t", "t", "-W", "1"]);
    let mut stream = server.connection();
    stream.write_all(&[0x20, 2, 0, 0]).unwrap();
    assert_eq!(packet(&mut stream), 0x82);
    let messages = [0x30, 4, 0, 1, b't', b'x'].repeat(10_000);
    while stream.write_all(&messages).is_ok() {}
    assert_eq!(client.end(), Some(27));
}
