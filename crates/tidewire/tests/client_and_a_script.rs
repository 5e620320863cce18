//! `tidewire pub` and `tidewire sub` against servers that do what no broker should: say nothing, take nothing, go.

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

    /// The next connection, after its CONNECT.
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
    assert!(head[1] < 0x80, "short packets only");
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
                "it ended before `{what}`"
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
fn an_interrupted_pub_says_that_messages_are_not_acknowledged() {
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
fn a_second_signal_ends_pub_while_it_cannot_write() {
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
    // It is in the write when the socket has been full for a while: what it has written does not grow any more.
    let io = format!("/proc/{}/io", client.child.id());
    let mut before = String::new();
    let end = Instant::now() + PATIENCE;
    loop {
        let now = std::fs::read_to_string(&io).unwrap();
        if now == before && state(&client.child) == 'S' {
            break;
        }
        before = now;
        assert!(Instant::now() < end, "it goes on writing");
        std::thread::sleep(Duration::from_millis(100));
    }
    client.signal("INT");
    client.signal("TERM");
    let code = client.end();
    assert!(matches!(code, Some(130 | 143)), "{code:?}");
}

/// The state of a process as in proc(5).
fn state(child: &Child) -> char {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
    stat.rsplit_once(") ").unwrap().1.chars().next().unwrap()
}

#[test]
fn messages_that_never_left_are_a_failure_at_qos0_too() {
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
    // With unread bytes, closing resets the connection.
    drop(stream);
    assert_eq!(client.end(), Some(1));
}

#[test]
fn sub_comes_back_to_a_server_that_said_it_would_shut_down() {
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
fn sub_ends_in_time_while_messages_never_stop() {
    let server = Server::start();
    let client = Client::start(&["sub", "-p", &server.port, "-t", "t", "-W", "1"]);
    let mut stream = server.connection();
    stream.write_all(&[0x20, 2, 0, 0]).unwrap();
    assert_eq!(packet(&mut stream), 0x82);
    let messages = [0x30, 4, 0, 1, b't', b'x'].repeat(10_000);
    while stream.write_all(&messages).is_ok() {}
    assert_eq!(client.end(), Some(27));
}
