//! Tests `tidewire pub` and `tidewire sub` against a real Mosquitto, and compares their output with mosquitto_sub.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStderr, Command, Output, Stdio};

use super::mosquitto::{Mosquitto, tool};
use crate::support::free_port;

const TIDEWIRE: &str = env!("CARGO_BIN_EXE_tidewire");

fn tidewire(args: &[&str]) -> Output {
    Command::new(TIDEWIRE).args(args).output().unwrap()
}

fn tidewire_with_input(args: &[&str], input: &[u8]) -> Output {
    let mut child = Command::new(TIDEWIRE)
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input).unwrap();
    child.wait_with_output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn ok(output: &Output) -> String {
    assert!(output.status.success(), "{}: {}", output.status, text(&output.stderr));
    text(&output.stdout)
}

/// A running `tidewire sub` whose subscriptions are acknowledged.
struct Subscriber {
    child: Child,
    stderr: BufReader<ChildStderr>,
}

impl Subscriber {
    fn start(args: &[&str]) -> Subscriber {
        let mut child = Command::new(TIDEWIRE)
            .args(["sub", "-d"])
            .args(args)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let mut subscriber = Subscriber { child, stderr };
        subscriber.wait_for("received SUBACK");
        subscriber
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

    fn end(mut self) -> (Option<i32>, String) {
        let mut rest = Vec::new();
        self.stderr.read_to_end(&mut rest).unwrap();
        let output = self.child.wait_with_output().unwrap();
        (output.status.code(), text(&output.stdout))
    }
}

fn signal(child: &Child, name: &str) {
    let status = Command::new("kill")
        .args([format!("-{name}"), child.id().to_string()])
        .status()
        .unwrap();
    assert!(status.success());
}

/// A persistent session of mosquitto_sub. The broker queues its messages until `read`.
struct Mailbox<'a> {
    port: String,
    id: &'a str,
}

impl Mailbox<'_> {
    fn open<'a>(broker: &Mosquitto, id: &'a str, filter: &str) -> Mailbox<'a> {
        let port = broker.port.to_string();
        ok(&tool(
            "mosquitto_sub",
            &["-p", &port, "-i", id, "-c", "-q", "2", "-t", filter, "-E"],
        ));
        Mailbox { port, id }
    }

    fn read(&self, count: usize, filter: &str, format: &str) -> String {
        let count = count.to_string();
        let args = [
            "-p", &self.port, "-i", self.id, "-c", "-q", "2", "-t", filter, "-C", &count, "-W", "20", "-F", format,
        ];
        ok(&tool("mosquitto_sub", &args))
    }
}

#[test]
fn every_kind_of_payload_arrives_in_every_version_and_qos() {
    let broker = Mosquitto::start();
    let port = broker.port.to_string();
    let file = broker.path("payload");
    std::fs::write(&file, "from a file").unwrap();
    for version in ["31", "311", "5"] {
        for qos in ["1", "2"] {
            let mailbox = Mailbox::open(&broker, "mailbox", "p/#");
            let common = ["pub", "-p", &port, "-V", version, "-q", qos, "-t", "p/x"];
            let run =
                |args: &[&str], input: &str| ok(&tidewire_with_input(&[&common[..], args].concat(), input.as_bytes()));
            run(&["-m", "-1 text"], "");
            run(&["-f", &file], "");
            run(&["-n"], "");
            run(&["-s"], "all\nof it\n");
            run(&["-l"], "one\r\ntwo\n\nthree");
            run(&["-m", "again", "--repeat", "2", "--repeat-delay", "0.01"], "");
            let payloads = mailbox.read(10, "p/#", "%q|%p");
            let expected = [
                "-1 text",
                "from a file",
                "",
                "all\nof it\n",
                "one\r",
                "two",
                "",
                "three",
                "again",
                "again",
            ];
            let expected: String = expected.map(|payload| format!("{qos}|{payload}\n")).concat();
            assert_eq!(payloads, expected, "version {version}");
        }
    }
}

#[test]
fn ten_thousand_lines_keep_their_order() {
    let broker = Mosquitto::start();
    let port = broker.port.to_string();
    let lines: String = (0..10_000).map(|number| format!("{number}\n")).collect();
    // Mosquitto 2.0.11 disconnects a client with more than 20 QoS 2 messages in flight. Each round has a session of its
    // own: mosquitto_sub exits at its last message without waiting until its acknowledgements are processed. The broker
    // may deliver printed messages to the session again.
    for (qos, inflight, session) in [("1", "100", "many-1"), ("2", "20", "many-2")] {
        let mailbox = Mailbox::open(&broker, session, "many");
        ok(&tidewire_with_input(
            &["pub", "-p", &port, "-q", qos, "-t", "many", "-l", "-M", inflight],
            lines.as_bytes(),
        ));
        assert!(mailbox.read(10_000, "many", "%p") == lines, "QoS {qos}");
    }
    let subscriber = Subscriber::start(&["-p", &port, "-t", "many", "-C", "10000", "-W", "20"]);
    ok(&tidewire_with_input(
        &["pub", "-p", &port, "-t", "many", "-l"],
        lines.as_bytes(),
    ));
    assert!(subscriber.end() == (Some(0), lines), "QoS 0");
}

/// Formats that mosquitto_sub 2.0.11 prints as its manual describes.
const FORMATS: &[&str] = &[
    "%t|%p|%q|%r|%l|%%|@@|\\t\\\\|\\0",
    "%A|%C|%D|%E|%F|%P|%R|%S",
    "%10l|%-10l|%010l|%-010l",
    "%20t|%-20t|%5.3t|%.3t",
    "%20p|%-20p|%x|%X",
    "%06E|%5C|%3.2C|%06F|%4S",
    "%10r|%5q|%2P|%.2R",
];

#[test]
fn output_equals_that_of_mosquitto_sub() {
    let broker = Mosquitto::start();
    let port = broker.port.to_string();
    let properties = "content-type text/plain|correlation-data xyz|payload-format-indicator 1|response-topic r/t|\
                      user-property k1 v1|user-property k2 v2";
    let mut publish: Vec<&str> = vec!["pub", "-p", &port, "-t", "o/one", "-r", "-q", "1", "-m", "hé\"llo"];
    for property in properties.split('|') {
        publish.extend(["-D", "publish"]);
        publish.extend(property.split(' '));
    }
    ok(&tidewire(&publish));
    ok(&tidewire(&[
        "pub",
        "-p",
        &port,
        "-t",
        "o/two",
        "-r",
        "-m",
        "{\"x\":[1,2]}",
    ]));
    let formats = FORMATS
        .iter()
        .flat_map(|format| [vec!["-F", format], vec!["-V", "5", "-F", format]]);
    let others = [
        vec![],
        vec!["-v"],
        vec!["-N"],
        vec!["-v", "-N"],
        vec!["-v", "-T", "o/two"],
        vec!["-v", "-q", "2"],
    ];
    for args in formats.chain(others) {
        for topic in ["o/one", "o/two"] {
            // The first run ends at the message. The second run shows that no other message arrives.
            let all: Vec<&str> = [&["-p", &port, "-t", topic, "-W", "1"], &args[..]].concat();
            let is_filtered = args.contains(&"-T") && topic == "o/two";
            let all = if is_filtered {
                all
            } else {
                [&all[..], &["-C", "1"]].concat()
            };
            let theirs = tool("mosquitto_sub", &all);
            let ours = tidewire(&[&["sub"], &all[..]].concat());
            assert_eq!(text(&ours.stdout), text(&theirs.stdout), "{all:?}");
            assert_eq!(ours.status.code(), theirs.status.code(), "{all:?}");
        }
    }
}

/// Ignores the time, because mosquitto_sub 2.0.11 prints it with two time zones.
#[test]
fn json_equals_that_of_mosquitto_sub() {
    let broker = Mosquitto::start();
    let port = broker.port.to_string();
    let publish = [
        "-p",
        &port,
        "-t",
        "j",
        "-r",
        "-q",
        "1",
        "-m",
        "{\"x\":\"é\"}",
        "-D",
        "publish",
        "content-type",
        "a",
    ];
    ok(&tidewire(&[&["pub"], &publish[..]].concat()));
    for version in ["311", "5"] {
        for format in ["%j", "%J"] {
            let args = [
                "-p", &port, "-V", version, "-t", "j", "-q", "1", "-C", "1", "-W", "5", "-F", format,
            ];
            let parse = |output: Output| {
                let mut value: serde_json::Value = serde_json::from_str(&ok(&output)).unwrap();
                assert!(value.as_object_mut().unwrap().remove("tst").unwrap().is_string());
                value
            };
            assert_eq!(
                parse(tidewire(&[&["sub"], &args[..]].concat())),
                parse(tool("mosquitto_sub", &args))
            );
        }
    }
    ok(&tidewire(&["pub", "-p", &port, "-t", "j", "-r", "-m", "not json"]));
    let output = tidewire(&["sub", "-p", &port, "-t", "j", "-C", "1", "-F", "%J"]);
    assert_eq!(
        text(&output.stderr),
        "tidewire: the payload on topic j is not valid JSON\n"
    );
}

#[test]
fn every_transport_works() {
    let broker = Mosquitto::start();
    let ca = broker.path("ca.pem");
    let own = broker.path("self.pem");
    let socket = broker.path("socket");
    let tls_port = broker.tls_port.to_string();
    let tcp = format!("mqtt://127.0.0.1:{}/way/tcp", broker.port);
    let ws = format!("ws://127.0.0.1:{}", broker.ws_port);
    let wss = format!("wss://localhost:{}", broker.wss_port);
    let mqtts = format!("mqtts://localhost:{tls_port}/way/mqtts");
    let ways: &[&[&str]] = &[
        &["-L", &tcp],
        &["--unix", &socket, "-t", "way/unix"],
        &["-L", &ws, "-t", "way/ws"],
        &["-L", &ws, "-t", "way/ws31", "-V", "31"],
        &["-p", &tls_port, "--cafile", &ca, "-t", "way/tls"],
        &[
            "-p",
            &tls_port,
            "--cafile",
            &ca,
            "-t",
            "way/tls12",
            "--tls-version",
            "tlsv1.2",
        ],
        &["-L", &mqtts, "--cafile", &ca],
        &[
            "-h",
            "127.0.0.1",
            "-p",
            &tls_port,
            "--cafile",
            &ca,
            "--insecure",
            "-t",
            "way/name",
        ],
        &["-L", &wss, "--cafile", &own, "-t", "way/wss", "-V", "5"],
    ];
    let large = "x".repeat(300_000);
    let file = broker.path("large");
    std::fs::write(&file, &large).unwrap();
    for way in ways {
        ok(&tidewire(&[&["pub", "-q", "1", "-r", "-f", &file], *way].concat()));
        let received = ok(&tidewire(
            &[&["sub", "-q", "1", "-C", "1", "-W", "20", "-N"], *way].concat(),
        ));
        assert!(received == large, "{way:?}: {} bytes", received.len());
    }
}

#[test]
fn untrusted_certificate_ends_the_connection() {
    let broker = Mosquitto::start();
    let port = broker.tls_port.to_string();
    // The certificate is not signed by an authority of the system, nor by the one of --cafile.
    let other = Mosquitto::start();
    for args in [
        &["--tls-use-os-certs"][..],
        &["--cafile", &other.path("ca.pem")],
        &["--cafile", &other.path("ca.pem"), "--insecure"],
    ] {
        let output = tidewire(&[&["pub", "-p", &port, "-t", "a", "-m", "b"], args].concat());
        assert_eq!(output.status.code(), Some(1), "{args:?}");
        let message = text(&output.stderr);
        assert!(
            message.starts_with("tidewire: TLS with ") && message.contains("certificate"),
            "{message}"
        );
    }
}

#[test]
fn failures_have_distinct_exit_codes_and_messages() {
    let broker = Mosquitto::start();
    let (port, login) = (broker.port.to_string(), broker.login_port.to_string());
    let unused = free_port().port().to_string();
    let refused = format!("tidewire: cannot connect to 127.0.0.1:{unused}: Connection refused (os error 111)\n");
    let not_authorized = "tidewire: connection refused: not authorized (code 5)\n";
    let cases: &[(&[&str], i32, &str)] = &[
        (
            &["pub", "-h", "127.0.0.1", "-p", &unused, "-t", "a", "-m", "b"],
            1,
            &refused,
        ),
        (
            &["pub", "-h", "127.0.0.1", "-p", &unused, "-t", "a", "-m", "b", "--quiet"],
            1,
            "",
        ),
        (&["pub", "-p", &login, "-t", "a", "-m", "b"], 5, not_authorized),
        (
            &["sub", "-p", &login, "-t", "a", "-u", "alice", "-P", "wrong"],
            5,
            not_authorized,
        ),
        (
            &["pub", "-p", &login, "-t", "a", "-m", "b", "-V", "5"],
            135,
            "tidewire: connection refused: Not authorized (code 135)\n",
        ),
        (
            &["pub", "-p", &login, "-t", "a", "-m", "b", "-u", "alice", "-P", "secret"],
            0,
            "",
        ),
        (
            &["sub", "-p", &port, "-t", "a", "-W", "0.2"],
            27,
            "tidewire: timed out\n",
        ),
        (
            &["sub", "-p", &port, "-t", "a/#/b"],
            2,
            "tidewire: -t: `a/#/b` is not a topic filter: # must be the last level and the only character in it\n",
        ),
        (
            &["pub", "-p", &port, "-t", "a/+", "-m", "b"],
            2,
            "tidewire: -t: `a/+` is not a topic name; it must not be empty or contain + or #\n",
        ),
        (
            &["pub", "-p", &port, "-m", "b"],
            2,
            "tidewire: a topic is needed (-t)\n",
        ),
        (
            &["sub", "-p", &port, "-t", "a", "-c"],
            2,
            "tidewire: -c needs a client id (-i)\n",
        ),
        (
            &["sub", "-p", &port, "-t", "a", "-V", "4"],
            2,
            "tidewire: -V: `4` is not a protocol version; use mqttv31, mqttv311 or mqttv5\n",
        ),
        (
            &["sub", "-p", &port, "-t", "a", "-V", "311", "-x", "5"],
            2,
            "tidewire: -D and -x need MQTT 5 (-V mqttv5)\n",
        ),
        (
            &["sub", "-p", &port, "-t", "a", "-F", "%k"],
            2,
            "tidewire: -F: `%k` is not a field\n",
        ),
    ];
    for (args, code, message) in cases {
        let output = tidewire(args);
        assert_eq!(
            (output.status.code(), text(&output.stderr).as_str()),
            (Some(*code), *message),
            "{args:?}"
        );
    }
    let output = tidewire(&["pub", "-p", &port, "-t", "a"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("--message"), "{output:?}");
}

#[test]
fn retained_messages_are_filtered_and_cleared() {
    let broker = Mosquitto::start();
    let port = broker.port.to_string();
    for topic in ["r/1", "r/2", "r/keep"] {
        ok(&tidewire(&["pub", "-p", &port, "-t", topic, "-r", "-m", topic]));
    }
    let fresh = Subscriber::start(&["-p", &port, "-t", "r/#", "-R", "-C", "1", "-W", "20"]);
    let retained = Subscriber::start(&["-p", &port, "-t", "r/#", "--retained-only", "-W", "20"]);
    ok(&tidewire(&["pub", "-p", &port, "-t", "r/live", "-m", "live"]));
    assert_eq!(fresh.end(), (Some(0), "live\n".into()));
    let (code, output) = retained.end();
    let mut lines: Vec<&str> = output.lines().collect();
    lines.sort_unstable();
    assert_eq!((code, lines), (Some(0), vec!["r/1", "r/2", "r/keep"]));

    let clear = [
        "sub",
        "-p",
        &port,
        "-t",
        "r/#",
        "--remove-retained",
        "-T",
        "r/keep",
        "-C",
        "2",
        "-W",
        "20",
    ];
    ok(&tidewire(&clear));
    assert_eq!(
        ok(&tidewire(&["sub", "-p", &port, "-t", "r/#", "-C", "1", "-W", "20"])),
        "r/keep\n"
    );
    let all = tidewire(&["sub", "-p", &port, "-t", "r/#", "-W", "0.5"]);
    assert_eq!((all.status.code(), text(&all.stdout)), (Some(27), "r/keep\n".into()));
}

#[test]
fn messages_beyond_the_count_stay_queued() {
    let broker = Mosquitto::start();
    let port = broker.port.to_string();
    for (version, qos) in [("5", "1"), ("5", "2"), ("311", "1"), ("311", "2")] {
        let id = format!("count-{version}-{qos}");
        let session = ["sub", "-p", &port, "-V", version, "-i", &id, "-c", "-q", qos, "-t", &id];
        let run = |more: &[&str]| tidewire(&[&session[..], more].concat());
        ok(&run(&["-E"]));
        for n in 0..10 {
            let text = n.to_string();
            ok(&tidewire(&["pub", "-p", &port, "-q", qos, "-t", &id, "-m", &text]));
        }
        let mut printed = Vec::new();
        for count in ["3", "1", "6"] {
            let lines = ok(&run(&["-C", count, "-W", "20"]));
            printed.extend(lines.lines().map(str::to_owned));
        }
        let expected: Vec<String> = (0..10).map(|n| n.to_string()).collect();
        assert_eq!(printed, expected, "{id}");
    }
}

/// `sub` acknowledges a message after it has printed it, so a kill loses none. It may print some again.
#[test]
fn killed_sub_loses_no_message() {
    const MESSAGES: usize = 500;
    // More than a pipe holds, so that `sub` waits for its reader.
    const LINE: usize = 1_000;
    let broker = Mosquitto::start();
    let port = broker.port.to_string();
    for qos in ["1", "2"] {
        let id = format!("killed-{qos}");
        let session = ["sub", "-p", &port, "-V", "5", "-i", &id, "-c", "-q", qos, "-t", &id];
        ok(&tidewire(&[&session[..], &["-E"]].concat()));
        let numbers: String = (0..MESSAGES).map(|number| format!("{number:0LINE$}\n")).collect();
        let sent = tidewire_with_input(&["pub", "-p", &port, "-q", qos, "-t", &id, "-l"], numbers.as_bytes());
        assert!(sent.status.success(), "{}", text(&sent.stderr));
        let mut printed = String::new();
        for _ in 0..3 {
            let mut command = Command::new(env!("CARGO_BIN_EXE_tidewire"));
            let mut sub = command
                .args(session)
                .stdout(Stdio::piped())
                .spawn()
                .expect("the program starts");
            let mut output = BufReader::new(sub.stdout.take().expect("the output is a pipe"));
            for _ in 0..40 {
                output.read_line(&mut printed).expect("the output is text");
            }
            signal(&sub, "KILL");
            sub.wait().expect("the process has ended");
            output.read_to_string(&mut printed).expect("the output is text");
            // The kill may cut the last line off, which was then not acknowledged.
            printed.truncate(printed.rfind('\n').map_or(0, |end| end + 1));
        }
        let rest = tidewire(&[&session[..], &["-W", "2"]].concat());
        printed.push_str(&text(&rest.stdout));
        let mut seen: Vec<&str> = printed.lines().collect();
        seen.sort_unstable();
        seen.dedup();
        assert!(
            seen.iter().copied().eq(numbers.lines()),
            "QoS {qos}: {} of {MESSAGES}",
            seen.len()
        );
    }
}

#[test]
fn session_expiry_and_unsubscribe_options_work() {
    let broker = Mosquitto::start();
    let port = broker.port.to_string();
    for version in ["311", "5"] {
        let session = ["sub", "-p", &port, "-V", version, "-i", "kept", "-c", "-q", "2"];
        let with = |args: &[&str]| tidewire(&[&session, args].concat());
        ok(&with(&["-t", "s/a", "-t", "s/b", "-E"]));
        ok(&with(&["-U", "s/b"]));
        for topic in ["s/a", "s/b", "s/a"] {
            ok(&tidewire(&["pub", "-p", &port, "-q", "2", "-t", topic, "-m", topic]));
        }
        assert_eq!(ok(&with(&["-C", "2", "-W", "20", "-v"])), "s/a s/a\ns/a s/a\n");
        let left = tidewire(&["sub", "-p", &port, "-V", version, "-i", "kept", "-t", "x", "-W", "0.2"]);
        assert_eq!((left.status.code(), text(&left.stdout)), (Some(27), String::new()));
    }
}

#[test]
fn will_is_published_on_kill_and_not_on_interrupt() {
    let broker = Mosquitto::start();
    let port = broker.port.to_string();
    let watcher = Subscriber::start(&["-p", &port, "-t", "will/#", "-C", "1", "-W", "20", "-F", "%t %p %r"]);
    for (name, topic) in [("INT", "will/int"), ("TERM", "will/term"), ("KILL", "will/kill")] {
        let args = [
            "-p",
            &port,
            "-t",
            "x",
            "--will-topic",
            topic,
            "--will-payload",
            "gone",
            "--will-qos",
            "1",
        ];
        let subscriber = Subscriber::start(&args);
        signal(&subscriber.child, name);
        let (code, _) = subscriber.end();
        assert_eq!(code, if name == "KILL" { None } else { Some(0) }, "{name}");
    }
    assert_eq!(watcher.end(), (Some(0), "will/kill gone 0\n".into()));
}

#[test]
fn sub_reconnects_after_a_broker_restart() {
    let mut broker = Mosquitto::start();
    let port = broker.port.to_string();
    let mut subscriber = Subscriber::start(&["-p", &port, "-t", "back", "-C", "1", "-W", "60"]);
    broker.stop();
    subscriber.wait_for("trying again");
    broker.restart();
    subscriber.wait_for("received SUBACK");
    ok(&tidewire(&["pub", "-p", &port, "-t", "back", "-m", "again"]));
    assert_eq!(subscriber.end(), (Some(0), "again\n".into()));
}

#[test]
fn closed_standard_output_ends_sub() {
    let broker = Mosquitto::start();
    let port = broker.port.to_string();
    ok(&tidewire(&["pub", "-p", &port, "-t", "pipe", "-r", "-m", "x"]));
    let mut child = Command::new(TIDEWIRE)
        .args(["sub", "-p", &port, "-t", "pipe"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(1), String::new()));
}
