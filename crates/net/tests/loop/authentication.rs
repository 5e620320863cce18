//! Tests slow authentication: it must not block a worker, and its result must not apply to another connection.

use std::io::Write;
use std::num::NonZeroU16;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};

use broker::{AccessControl, AuthOutcome, ClientIdentity, ConnectCredentials, SessionAccess, Transport};
use net::{AuthQuestion, Authenticator};

use super::client::*;
use super::server::*;

/// Sends users to the authentication pool and accepts anonymous clients immediately.
struct AskUsers;

impl AccessControl for AskUsers {
    fn authenticate_now(&self, credentials: &ConnectCredentials) -> Option<AuthOutcome> {
        credentials.user_name.is_none().then_some(allow())
    }

    fn supports_auth_method(&self, _: &str) -> bool {
        false
    }

    fn session(&self, _: &ClientIdentity) -> Option<Arc<dyn SessionAccess>> {
        None
    }
}

fn allow() -> AuthOutcome {
    AuthOutcome::Allow(Box::default())
}

const DENY: AuthOutcome = AuthOutcome::Deny {
    reason: mqtt::ReasonCode::NotAuthorized,
    detail: "denied by the test",
};

/// Decides when the test requests it.
struct OnCue {
    asked: SyncSender<Box<str>>,
    cues: Mutex<Receiver<AuthOutcome>>,
}

impl Authenticator for OnCue {
    fn authenticate(&self, question: AuthQuestion) {
        let _ = self.asked.send(question.credentials().client_id.clone());
        let outcome = self.cues.lock().unwrap().recv().unwrap_or(DENY);
        question.answer(outcome);
    }
}

fn server(queue_max: usize) -> (Running, Receiver<Box<str>>, SyncSender<AuthOutcome>) {
    server_with_memory(queue_max, usize::MAX / 2)
}

fn server_with_memory(
    queue_max: usize,
    queue_bytes_max: usize,
) -> (Running, Receiver<Box<str>>, SyncSender<AuthOutcome>) {
    let (asked, questions) = sync_channel(100);
    let (cue, cues) = sync_channel(100);
    let mut options = options(2);
    options.config.auth_threads = NonZeroU16::new(1);
    options.config.auth_queue_max = queue_max;
    options.config.auth_queue_bytes_max = queue_bytes_max;
    options.access = Arc::new(AskUsers);
    options.authenticator = Arc::new(OnCue {
        asked,
        cues: Mutex::new(cues),
    });
    (options.start(), questions, cue)
}

#[test]
fn slow_authentication_delays_only_its_connection() {
    let (running, questions, cue) = server(10);
    let mut waiting = running.tcp();
    waiting
        .write_all(&[connect_as("waiting", "ann"), PINGREQ.to_vec()].concat())
        .unwrap();
    assert_eq!(&*questions.recv().unwrap(), "waiting");
    running.client(Transport::Tcp, "anonymous").ping();
    cue.send(allow()).unwrap();
    assert_eq!(read_packet(&mut waiting).unwrap().body, [0, 0]);
    assert_eq!(read_packet(&mut waiting).unwrap().first, PINGRESP);
}

#[test]
fn packets_after_a_denied_connect_are_ignored() {
    let (running, _questions, cue) = server(10);
    let mut watcher = running.client(Transport::Tcp, "watcher");
    watcher.subscribe("#");
    cue.send(DENY).unwrap();
    let mut denied = running.tcp();
    denied
        .write_all(&[connect_as("denied", "ann"), publish("t", b"x")].concat())
        .unwrap();
    assert_eq!(read_packet(&mut denied).unwrap().body, [0, 5]);
    assert_eq!(read_packet(&mut denied), None);
    watcher.ping();
}

#[test]
fn full_authentication_queue_answers_server_busy() {
    let (running, questions, cue) = server(1);
    let mut first = running.tcp();
    first.write_all(&connect_as("first", "ann")).unwrap();
    questions.recv().unwrap();
    let mut second = running.tcp();
    second.write_all(&connect_as("second", "ann")).unwrap();
    eventually("the second waits in the queue", || {
        running.handle.counters().auth_submitted >= 2
    });
    // So the server rejects one of the later clients.
    let mut third = running.tcp();
    eventually("the queue is full", || {
        third = running.tcp();
        third.write_all(&connect_as("third", "ann")).unwrap();
        third
            .set_read_timeout(Some(std::time::Duration::from_millis(50)))
            .unwrap();
        let mut byte = [0];
        std::io::Read::read(&mut third, &mut byte).is_ok()
    });
    eventually("it is counted", || running.handle.counters().auth_queue_full >= 1);
    for _ in 0..50 {
        cue.try_send(allow()).unwrap();
    }
    assert_eq!(read_packet(&mut first).unwrap().body, [0, 0]);
    assert_eq!(read_packet(&mut second).unwrap().body, [0, 0]);
}

/// An MQTT 5 CONNECT with a User Property of 16 to 64 KiB.
fn connect_with_user_property(client_id: &str, value: &str) -> Vec<u8> {
    let property = [&[38][..], &text("n"), &text(value)].concat();
    let length = property.len();
    let length = [length as u8 | 0x80, (length >> 7) as u8 | 0x80, (length >> 14) as u8];
    let parts = [
        &b"\x00\x04MQTT\x05\xC2\x00\x00"[..],
        &length,
        &property,
        &text(client_id),
        &text("ann"),
        &text("secret"),
    ];
    packet(0x10, &parts.concat())
}

/// Each waiting connection stores its CONNECT.
#[test]
fn large_connects_fill_the_authentication_queue() {
    let (running, questions, cue) = server_with_memory(100, 100_000);
    let mut first = running.tcp();
    first.write_all(&connect_as("first", "ann")).unwrap();
    questions.recv().unwrap();
    let large = "x".repeat(40_000);
    let mut clients: Vec<_> = ["second", "third"]
        .into_iter()
        .map(|id| {
            let mut client = running.tcp();
            client.write_all(&connect_with_user_property(id, &large)).unwrap();
            client
        })
        .collect();
    eventually("one of them does not fit", || {
        let counters = running.handle.counters();
        (counters.auth_submitted, counters.auth_queue_full) == (2, 1)
    });
    for _ in 0..2 {
        cue.send(allow()).unwrap();
    }
    assert_eq!(read_packet(&mut first).unwrap().body, [0, 0]);
    let mut codes: Vec<u8> = clients
        .iter_mut()
        .map(|client| read_packet(client).unwrap().body[1])
        .collect();
    codes.sort_unstable();
    assert_eq!(codes, [0, 0x89]);
}

#[test]
fn flood_of_logins_runs_one_authentication_per_thread() {
    const CLIENTS: u64 = 40;
    let (running, questions, cue) = server(10);
    let clients: Vec<_> = (0..CLIENTS)
        .map(|n| {
            let mut client = running.tcp();
            client.write_all(&connect_as(&format!("flood-{n}"), "ann")).unwrap();
            client
        })
        .collect();
    eventually("all logins are queued or rejected", || {
        let counters = running.handle.counters();
        counters.auth_submitted + counters.auth_queue_full >= CLIENTS
    });
    questions.recv().unwrap();
    assert!(questions.try_recv().is_err(), "a second login is being authenticated");
    for _ in 0..CLIENTS {
        cue.send(allow()).unwrap();
    }
    drop(clients);
}

/// Clients that guess passwords wait behind clients that do not.
#[test]
fn addresses_with_failed_logins_have_low_priority() {
    let (running, questions, cue) = server(10);
    let address = running.address(Transport::Tcp);
    let from = |source: [u8; 4], id: &str| {
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        socket.bind(&std::net::SocketAddr::from((source, 0)).into()).unwrap();
        socket.connect(&address.into()).unwrap();
        let mut stream = std::net::TcpStream::from(socket);
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(&connect_as(id, "ann")).unwrap();
        stream
    };
    for n in 0..6 {
        let mut guess = from([127, 0, 0, 2], &format!("guess-{n}"));
        cue.send(DENY).unwrap();
        assert_eq!(read_packet(&mut guess).unwrap().body, [0, 5]);
        questions.recv().unwrap();
    }
    let busy = from([127, 0, 0, 1], "busy");
    assert_eq!(&*questions.recv().unwrap(), "busy");
    let guess = from([127, 0, 0, 2], "one more guess");
    let honest = from([127, 0, 0, 1], "honest");
    // Both requests must be queued before the thread takes the next one.
    eventually("all are in their queues", || {
        running.handle.counters().auth_submitted >= 9
    });
    cue.send(allow()).unwrap();
    assert_eq!(&*questions.recv().unwrap(), "honest");
    cue.send(allow()).unwrap();
    assert_eq!(&*questions.recv().unwrap(), "one more guess");
    drop((busy, guess, honest));
}

#[test]
fn late_decision_does_not_affect_a_reused_slot() {
    let (running, questions, cue) = server(10);
    for n in 0..10 {
        let mut gone = running.tcp();
        gone.write_all(&connect_as(&format!("gone-{n}"), "ann")).unwrap();
        questions.recv().unwrap();
        reset(gone);
        eventually("the connection is gone", || running.handle.connections() == 0);
        // This client has the same worker and, because the table is dense, the same slot.
        let mut next = running.tcp();
        next.write_all(&connect_as(&format!("gone-{n}"), "bob")).unwrap();
        eventually("the next one is there", || running.handle.connections() == 1);
        cue.send(allow()).unwrap();
        questions.recv().unwrap();
        cue.send(DENY).unwrap();
        assert_eq!(
            read_packet(&mut next).unwrap().body,
            [0, 5],
            "the result for the first client accepted the second"
        );
        assert_eq!(read_packet(&mut next), None);
        drop(next);
        eventually("all are gone", || running.handle.connections() == 0);
    }
}

fn reset(stream: std::net::TcpStream) {
    socket2::SockRef::from(&stream)
        .set_linger(Some(std::time::Duration::ZERO))
        .unwrap();
}

/// Keeps its questions for the test.
struct Keeps(SyncSender<AuthQuestion>);

impl Authenticator for Keeps {
    fn authenticate(&self, question: AuthQuestion) {
        let _ = self.0.send(question);
    }
}

fn server_that_keeps_questions() -> (Running, Receiver<AuthQuestion>) {
    let (sender, questions) = sync_channel(100);
    let mut options = options(2);
    options.config.auth_threads = NonZeroU16::new(1);
    options.access = Arc::new(AskUsers);
    options.authenticator = Arc::new(Keeps(sender));
    (options.start(), questions)
}

#[test]
fn kept_question_occupies_no_thread() {
    let (running, questions) = server_that_keeps_questions();
    let mut first = running.tcp();
    first.write_all(&connect_as("first", "ann")).unwrap();
    let kept = questions.recv().unwrap();
    assert_eq!((&*kept.credentials().client_id, kept.step()), ("first", 0));
    let mut second = running.tcp();
    second.write_all(&connect_as("second", "ann")).unwrap();
    // The pool has one thread.
    questions.recv().unwrap().answer(allow());
    assert_eq!(read_packet(&mut second).unwrap().body, [0, 0]);
    kept.answer(allow());
    assert_eq!(read_packet(&mut first).unwrap().body, [0, 0]);
}

#[test]
fn continued_question_returns_with_its_step() {
    let (running, questions) = server_that_keeps_questions();
    let mut client = running.tcp();
    client.write_all(&connect_as("client", "ann")).unwrap();
    questions.recv().unwrap().continue_at(2);
    let again = questions.recv().unwrap();
    assert_eq!((&*again.credentials().client_id, again.step()), ("client", 2));
    again.answer(DENY);
    assert_eq!(read_packet(&mut client).unwrap().body, [0, 5]);
}

#[test]
fn dropped_question_rejects_the_client() {
    let (running, questions) = server_that_keeps_questions();
    let mut client = running.tcp();
    client.write_all(&connect_as("client", "ann")).unwrap();
    drop(questions.recv().unwrap());
    assert_eq!(read_packet(&mut client).unwrap().body, [0, 3], "server unavailable");
}

#[test]
fn server_stops_while_a_question_is_open() {
    let (running, questions) = server_that_keeps_questions();
    let mut client = running.tcp();
    client.write_all(&connect_as("client", "ann")).unwrap();
    let kept = questions.recv().unwrap();
    drop(running);
    kept.answer(allow());
}

#[test]
fn question_learns_that_its_client_is_gone() {
    let (running, questions) = server_that_keeps_questions();
    for is_reset in [true, false] {
        let mut client = running.tcp();
        client.write_all(&connect_as("gone", "ann")).unwrap();
        let kept = questions.recv().unwrap();
        let (sender, gone) = sync_channel(2);
        let again = sender.clone();
        kept.on_gone(move || sender.send(()).unwrap());
        assert!(gone.try_recv().is_err() && !kept.is_client_gone());
        match is_reset {
            true => reset(client),
            false => drop(client),
        }
        gone.recv_timeout(PATIENCE).expect("the question learns it");
        assert!(kept.is_client_gone());
        kept.on_gone(move || again.send(()).unwrap());
        gone.try_recv().expect("a later question learns it at once");
        eventually("the connection is gone", || running.handle.connections() == 0);
        kept.answer(allow());
    }
    running.client(Transport::Tcp, "anonymous").ping();
}

#[test]
fn queued_login_of_a_closed_connection_is_not_verified() {
    let (running, questions, cue) = server(10);
    let mut first = running.tcp();
    first.write_all(&connect_as("first", "ann")).unwrap();
    assert_eq!(&*questions.recv().unwrap(), "first");
    let mut second = running.tcp();
    second.write_all(&connect_as("second", "ann")).unwrap();
    eventually("the second waits in the queue", || {
        running.handle.counters().auth_submitted >= 2
    });
    reset(second);
    eventually("the second is gone", || running.handle.connections() == 1);
    let mut third = running.tcp();
    third.write_all(&connect_as("third", "ann")).unwrap();
    eventually("the third waits in the queue", || {
        running.handle.counters().auth_submitted >= 3
    });
    cue.send(allow()).unwrap();
    cue.send(allow()).unwrap();
    assert_eq!(&*questions.recv().unwrap(), "third");
    assert_eq!(read_packet(&mut first).unwrap().body, [0, 0]);
    assert_eq!(read_packet(&mut third).unwrap().body, [0, 0]);
}

#[test]
fn packets_behind_a_connect_are_handled_although_the_client_is_gone() {
    let (running, questions) = server_that_keeps_questions();
    let mut watcher = running.client(Transport::Tcp, "watcher");
    watcher.subscribe("t");
    let mut client = running.tcp();
    client.end_with(&[connect_as("brief", "ann"), publish("t", b"x")].concat());
    questions.recv().unwrap().answer(allow());
    assert_eq!(watcher.read().message(), ("t", &b"x"[..]));
}
