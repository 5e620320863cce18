//! Runs `tidewire bench` as a user does, against a real `tidewire`. Tests exit codes, files, exact counts, Ctrl-C and
//! agents.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod agents;
mod display;
mod transports;
mod verbs;

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::Value;
use socket2::{Domain, Socket, Type};

const TIDEWIRE: &str = env!("CARGO_BIN_EXE_tidewire");
static COUNTER: AtomicU32 = AtomicU32::new(0);

/// A running broker on free ports, and a directory for files.
struct Broker {
    child: Child,
    directory: PathBuf,
    port: String,
    api_port: u16,
    /// Ports of the TLS, WebSocket, secure WebSocket and QUIC listeners.
    other_ports: [u16; 4],
}

impl Broker {
    fn start() -> Broker {
        let number = COUNTER.fetch_add(1, Ordering::Relaxed);
        let directory = std::env::temp_dir().join(format!("tidewire-bench-test-{}-{number}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let pem = directory.join("broker.pem");
        fs::write(&pem, certificate()).unwrap();
        let mut command = Command::new(TIDEWIRE);
        for listener in [
            "listeners.tcp.default",
            "listeners.tls.default",
            "listeners.ws.default",
            "listeners.wss.default",
            "listeners.quic.default",
            "api",
        ] {
            command.args(["--set", &format!("{listener}.bind=127.0.0.1:0")]);
        }
        for (key, path) in [
            ("node.data_dir", &directory),
            ("tls.cert_file", &pem),
            ("tls.key_file", &pem),
        ] {
            command.args(["--set", &format!("{key}={}", path.display())]);
        }
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap());
        let mut port_of = |scheme: &str| {
            let line = wait_for(&mut lines, &format!(" {scheme}://"));
            let digits = line.split("127.0.0.1:").nth(1).unwrap();
            let end = digits.find(|char: char| !char.is_ascii_digit()).unwrap();
            digits[..end].parse::<u16>().unwrap()
        };
        let port = port_of("mqtt").to_string();
        let other_ports = ["mqtts", "ws", "wss", "quic"].map(&mut port_of);
        let api_port = port_of("http");
        std::thread::spawn(move || lines.read_to_string(&mut String::new()));
        Broker {
            child,
            directory,
            port,
            api_port,
            other_ports,
        }
    }

    fn path(&self, name: &str) -> String {
        self.directory.join(name).display().to_string()
    }

    /// Returns the command `bench …` against this broker, which writes its result to a file.
    fn command(&self, args: &[&str]) -> Command {
        self.command_at(&self.port, args)
    }

    fn command_at(&self, port: &str, args: &[&str]) -> Command {
        let mut command = Command::new(TIDEWIRE);
        command.arg("bench").args(args);
        command.args([
            "-h",
            "127.0.0.1",
            "-p",
            port,
            "--threads",
            "1",
            "--json",
            &self.path("result.json"),
        ]);
        command
    }

    fn run(&self, args: &[&str]) -> (i32, String, Value) {
        self.run_at(&self.port, args)
    }

    fn run_at(&self, port: &str, args: &[&str]) -> (i32, String, Value) {
        let output = self.command_at(port, args).output().unwrap();
        let said = said(&output);
        (output.status.code().unwrap(), said, self.result())
    }

    fn result(&self) -> Value {
        let text = fs::read_to_string(self.path("result.json")).unwrap_or_default();
        serde_json::from_str(&text).unwrap_or_default()
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// Returns a certificate for 127.0.0.1 with its key.
fn certificate() -> String {
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_string()]).unwrap();
    made.cert.pem() + &made.signing_key.serialize_pem()
}

/// Returns a port without a listener. The returned socket reserves it.
fn silent_port() -> (Socket, String) {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    let address = socket.local_addr().unwrap().as_socket().unwrap();
    (socket, address.port().to_string())
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

fn bench(args: &[&str]) -> (i32, String) {
    let output = Command::new(TIDEWIRE).arg("bench").args(args).output().unwrap();
    (output.status.code().unwrap(), said(&output))
}

fn interrupt(child: &Child) {
    let status = Command::new("kill")
        .args(["-INT", &child.id().to_string()])
        .status()
        .unwrap();
    assert!(status.success());
}

/// Reads lines until one contains `what`.
fn wait_for(stdout: &mut BufReader<ChildStdout>, what: &str) -> String {
    let mut line = String::new();
    while !line.contains(what) {
        line.clear();
        assert!(
            stdout.read_line(&mut line).unwrap() > 0,
            "the output ended before `{what}`"
        );
    }
    line
}

/// Arguments of a run in which each pair publishes this number of messages.
fn pairs(messages: u64) -> Vec<String> {
    let sets = [
        format!("publishers.publish.messages={messages}"),
        "duration_s=60".into(),
        "warm_up_s=0".into(),
    ];
    let mut args: Vec<String> = ["run", "p2p", "--scale", "0.02"].map(String::from).into();
    args.extend(sets.into_iter().flat_map(|set| ["--set".to_string(), set]));
    args
}

fn refs(args: &[String]) -> Vec<&str> {
    args.iter().map(String::as_str).collect()
}

#[test]
fn counts_are_exact_and_thresholds_decide() {
    let broker = Broker::start();
    let args = pairs(500);
    let pid = broker.child.id().to_string();
    let more = ["--require", "lost==0", "--require", "p99<10s", "--broker-pid", &pid];
    let (code, said, result) = broker.run(&[&refs(&args)[..], &more].concat());
    assert_eq!(code, 0, "{said}");
    for (key, expected) in [
        ("expected", 10_000),
        ("received", 10_000),
        ("lost", 0),
        ("duplicated", 0),
        ("flows", 20),
    ] {
        assert_eq!(result["truth"][key], expected, "{key}: {said}");
    }
    assert_eq!(result["totals"]["published"], 10_000);
    assert_eq!(result["totals"]["acknowledged"], 10_000);
    assert_eq!(result["totals"]["received"], 10_000);
    assert_eq!(result["totals"]["connects"], 40);
    assert_eq!(result["latency"]["end_to_end"]["summary"]["count"], 10_000);
    assert_eq!(result["broker"]["name"], "tidewire");
    assert!(result["broker"]["resident_bytes"].as_u64().unwrap() > 1_000_000);

    let (code, said, result) = broker.run(&[&refs(&args)[..], &["--require", "p99<0.000001ms"]].concat());
    assert_eq!(code, 3, "{said}");
    assert_eq!(result["verdicts"][0]["is_met"], false);
}

#[test]
fn report_includes_the_resource_use_of_the_broker() {
    let broker = Broker::start();
    let args = pairs(2_000);
    let url = format!("http://127.0.0.1:{}/metrics", broker.api_port);
    let (code, said, result) = broker.run(&[&refs(&args)[..], &["--broker-metrics", &url]].concat());
    assert_eq!(code, 0, "{said}");
    let cost = &result["broker"];
    assert_eq!(cost["name"], url);
    assert!(cost["resident_bytes"].as_u64().unwrap() > 1_000_000, "{said}");
    assert!(cost["cpu_s_per_million"].as_f64().unwrap() >= 0.0);
    for absent in ["pid", "user_s", "system_s", "voluntary_switches"] {
        assert!(cost[absent].is_null(), "{absent}: {said}");
    }
    assert!(
        said.contains("not reported: separate user and system time, context switches"),
        "{said}"
    );
    // A URL that serves no metrics is rejected before the run starts.
    let url = format!("http://127.0.0.1:{}/no-such-page", broker.api_port);
    let (code, said, _) = broker.run(&[&refs(&args)[..], &["--broker-metrics", &url]].concat());
    assert_eq!(code, 2, "{said}");
    assert!(
        said.contains(&format!("--broker-metrics {url}: got `HTTP/1.1 404")),
        "{said}"
    );
}

#[test]
fn open_model_runs_for_the_given_duration() {
    let broker = Broker::start();
    let (code, said, result) = broker.run(&[
        "run",
        "fanout",
        "--scale",
        "0.02",
        "--duration",
        "2",
        "--warm-up",
        "0.5",
        "--set",
        "publishers.publish.rate=20",
    ]);
    assert_eq!(code, 0, "{said}");
    // On a busy machine, the last message is sent later than it was due.
    assert!(result["measured_s"].as_f64().unwrap() >= 2.0, "{said}");
    // 10 publishers send 20 messages/s each to 20 subscribers, for 2.5 s in total.
    assert_eq!(result["totals"]["published"], 500);
    assert_eq!(result["counts"]["due"], 400);
    assert_eq!(result["truth"]["expected"], 10_000);
    assert_eq!(result["truth"]["lost"], 0);
    assert!(result["series"].as_array().unwrap().len() >= 3, "{said}");
}

#[test]
fn retained_replay_and_offline_drain_lose_nothing() {
    let broker = Broker::start();
    for (preset, expected) in [("retained-replay", 4_000), ("offline-drain", 2_000)] {
        let (code, said, result) = broker.run(&["run", preset, "--scale", "0.02"]);
        assert_eq!(code, 0, "{said}");
        // 2 publishers of 100 retained messages for 2 late subscribers; 20 sessions with 100 messages each.
        let expected = if preset == "retained-replay" {
            2 * 100 * 2
        } else {
            expected
        };
        assert_eq!(result["truth"]["expected"], expected, "{preset}: {said}");
        assert_eq!(result["truth"]["lost"], 0, "{preset}: {said}");
        assert_eq!(result["replay"]["delivered"], expected, "{preset}: {said}");
        assert!(result["replay"]["delivered_per_s"].as_f64().unwrap() > 0.0);
    }
}

#[test]
fn storms_and_shared_subscriptions_run() {
    let broker = Broker::start();
    let (code, said, result) = broker.run(&[
        "run",
        "connect-storm",
        "--scale",
        "0.02",
        "--duration",
        "1",
        "--warm-up",
        "0",
    ]);
    assert_eq!(code, 0, "{said}");
    assert!(result["throughput"]["connects"].as_f64().unwrap() > 20.0, "{said}");
    let (code, said, result) = broker.run(&["run", "shared", "--scale", "0.1", "--duration", "1", "--warm-up", "0"]);
    assert_eq!(code, 0, "{said}");
    assert_eq!(
        (&result["truth"]["lost"], &result["truth"]["expected"]),
        (&0.into(), &1_000.into()),
        "{said}"
    );
}

#[test]
fn invalid_arguments_are_explained_before_the_run() {
    for (args, expected) in [
        (vec!["run", "fanuot"], "did you mean `fanout`?"),
        (
            vec!["run", "fanout", "--set", "publisher.clients=3"],
            "did you mean `publishers`?",
        ),
        (vec!["run", "fanout", "--require", "p98<3"], "--require"),
        (vec!["run", "fanout", "--scale", "0"], "--scale 0"),
        (vec!["run", "./no-such-file.toml"], "./no-such-file.toml"),
        (vec!["pub", "-t", "a/+"], "wildcard"),
        (vec!["agent", "--listen", "0.0.0.0:0"], "--token-file"),
        (
            vec!["run", "fanout", "--json", "/no/such/directory/x.json"],
            "/no/such/directory/x.json",
        ),
    ] {
        let (code, said) = bench(&args);
        assert_eq!(code, 2, "{args:?}: {said}");
        assert!(said.contains(expected), "{args:?}: {said}");
    }
    let (code, said) = bench(&["run", "emqx-kafka"]);
    assert_eq!(code, 2);
    assert!(said.contains("--kafka HOST:PORT"), "{said}");
    let (_held, port) = silent_port();
    let (code, said) = bench(&["run", "p2p", "-h", "127.0.0.1", "-p", &port, "--scale", "0.001"]);
    assert_eq!(code, 1, "{said}");
    assert!(said.contains("no connection was accepted"), "{said}");
    let nowhere = [
        "run",
        "connect-storm",
        "-h",
        "127.0.0.1",
        "-p",
        &port,
        "--scale",
        "0.01",
        "--duration",
        "1",
    ];
    let (code, said) = bench(&nowhere);
    assert_eq!(code, 1, "{said}");
    assert!(
        said.contains("no connection was accepted; the most common reason was: connect: "),
        "{said}"
    );
}

#[test]
fn shown_presets_run_from_a_file_and_results_compare() {
    let broker = Broker::start();
    let (code, text) = bench(&[
        "show",
        "p2p",
        "--scale",
        "0.01",
        "--set",
        "publishers.publish.messages=50",
    ]);
    assert_eq!(code, 0);
    let file = broker.path("own.toml");
    fs::write(&file, text).unwrap();
    let (html, csv) = (broker.path("report.html"), broker.path("seconds.csv"));
    let (code, said, result) = broker.run(&["run", &file, "--html", &html, "--csv", &csv]);
    assert_eq!(code, 0, "{said}");
    assert_eq!(result["truth"]["expected"], 500);
    assert!(fs::read_to_string(&html).unwrap().contains("<html"));
    assert!(fs::read_to_string(&csv).unwrap().lines().count() > 1);
    let json = broker.path("result.json");
    let (code, said) = bench(&["compare", &json, &json]);
    assert_eq!(code, 0, "{said}");
    let (code, listed) = bench(&["list"]);
    assert!(
        code == 0 && listed.contains("thingsboard-a-x10") && listed.contains("reconnect"),
        "{listed}"
    );
}
