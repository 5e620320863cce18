//! `tidewire bench` as a user runs it, against a real `tidewire`: exit codes, files, exact counts, Ctrl-C, agents.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;

const TIDEWIRE: &str = env!("CARGO_BIN_EXE_tidewire");
static COUNTER: AtomicU32 = AtomicU32::new(0);

/// A broker on a port of its own, and a directory for files.
struct Broker {
    child: Child,
    directory: PathBuf,
    port: String,
    api_port: u16,
    /// Of TLS, of WebSocket, and of both.
    other_ports: [u16; 3],
}

impl Broker {
    fn start() -> Broker {
        let number = COUNTER.fetch_add(1, Ordering::Relaxed);
        let directory = std::env::temp_dir().join(format!("tidewire-bench-test-{}-{number}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let (port, api_port) = (free_port(), free_port());
        let other_ports = [free_port(), free_port(), free_port()];
        let pem = directory.join("broker.pem");
        fs::write(&pem, certificate()).unwrap();
        let mut command = Command::new(TIDEWIRE);
        command.arg("--quiet");
        for set in [
            format!("listeners.tcp.default.bind=127.0.0.1:{port}"),
            format!("listeners.tls.default.bind=127.0.0.1:{}", other_ports[0]),
            format!("listeners.ws.default.bind=127.0.0.1:{}", other_ports[1]),
            format!("listeners.wss.default.bind=127.0.0.1:{}", other_ports[2]),
            format!("tls.cert_file={}", pem.display()),
            format!("tls.key_file={}", pem.display()),
            format!("api.bind=127.0.0.1:{api_port}"),
            format!("node.data_dir={}", directory.display()),
        ] {
            command.args(["--set", &set]);
        }
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let end = Instant::now() + Duration::from_secs(20);
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(Instant::now() < end, "the broker does not listen");
            std::thread::yield_now();
        }
        Broker {
            child,
            directory,
            port: port.to_string(),
            api_port,
            other_ports,
        }
    }

    fn path(&self, name: &str) -> String {
        self.directory.join(name).display().to_string()
    }

    /// `bench …` against this broker, the result in a file.
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

/// For the address that the tests connect to, with its key.
fn certificate() -> String {
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_string()]).unwrap();
    made.cert.pem() + &made.signing_key.serialize_pem()
}

fn free_port() -> u16 {
    let probe = TcpListener::bind("127.0.0.1:0").unwrap();
    probe.local_addr().unwrap().port()
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

/// Reads lines until one has `what` in it.
fn wait_for(stdout: &mut BufReader<ChildStdout>, what: &str) -> String {
    let mut line = String::new();
    while !line.contains(what) {
        line.clear();
        assert!(stdout.read_line(&mut line).unwrap() > 0, "it ended before `{what}`");
    }
    line
}

/// Pairs that publish so many messages each and end.
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
fn the_brokers_own_metrics_say_what_it_uses() {
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
        said.contains("absent there: user and system time apart, context switches"),
        "{said}"
    );
    // What is no page of metrics is refused before anything runs.
    let url = format!("http://127.0.0.1:{}/no-such-page", broker.api_port);
    let (code, said, _) = broker.run(&[&refs(&args)[..], &["--broker-metrics", &url]].concat());
    assert_eq!(code, 2, "{said}");
    assert!(
        said.contains(&format!("--broker-metrics {url}: got `HTTP/1.1 404")),
        "{said}"
    );
}

#[test]
fn an_open_model_is_measured_for_its_time() {
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
    assert_eq!(result["measured_s"], 2.0);
    // 10 publishers of 20 messages/s to 20 subscribers, for 2.5 s in all.
    assert_eq!(result["totals"]["published"], 500);
    assert_eq!(result["counts"]["due"], 400);
    assert_eq!(result["truth"]["expected"], 10_000);
    assert_eq!(result["truth"]["lost"], 0);
    assert!(result["series"].as_array().unwrap().len() >= 3, "{said}");
}

#[test]
fn late_subscribers_and_sessions_that_return_get_what_waits_for_them() {
    let broker = Broker::start();
    for (preset, expected) in [("retained-replay", 4_000), ("offline-drain", 2_000)] {
        let (code, said, result) = broker.run(&["run", preset, "--scale", "0.02"]);
        assert_eq!(code, 0, "{said}");
        // 2 publishers of 100 retained messages for 2 late ones; 20 sessions with 100 messages each.
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
fn nothing_is_lost_over_tls_and_web_sockets() {
    let broker = Broker::start();
    let ca = broker.path("broker.pem");
    let messages = pairs(200);
    let [tls, ws, wss] = broker.other_ports.map(|port| port.to_string());
    for (port, flags, handshakes) in [
        (&tls, &["--tls", "--cacertfile", &ca][..], 40),
        (&ws, &["--ws"], 0),
        (&wss, &["--tls", "--ws", "--cacertfile", &ca], 40),
    ] {
        let (code, said, result) = broker.run_at(port, &[&refs(&messages)[..], flags].concat());
        assert_eq!(code, 0, "{flags:?}: {said}");
        let (truth, totals) = (&result["truth"], &result["totals"]);
        let found = [
            &truth["expected"],
            &truth["received"],
            &truth["lost"],
            &truth["corrupt"],
        ];
        assert_eq!(found, [4_000, 4_000, 0, 0], "{flags:?}: {said}");
        let found = [
            &totals["connects"],
            &totals["tls_full"],
            &totals["tls_resumed"],
            &totals["disconnects"],
        ];
        assert_eq!(found, [40, handshakes, 0, 0], "{flags:?}: {said}");
        assert_eq!(result["errors"].as_array().unwrap().len(), 0, "{flags:?}: {said}");
    }
    // As emqtt-bench is told, which verifies nobody.
    let verb = [
        "pub", "-c", "4", "-i", "1", "-I", "5", "-L", "40", "-q", "2", "-t", "tls/%i", "-S",
    ];
    let (code, said, result) = broker.run_at(&tls, &verb);
    assert_eq!((code, &result["totals"]["acknowledged"]), (0, &40.into()), "{said}");
    let (code, said, result) = broker.run_at(&wss, &[&verb[..], &["--ws"]].concat());
    assert_eq!((code, &result["totals"]["acknowledged"]), (0, &40.into()), "{said}");
}

#[test]
fn a_storm_over_tls_counts_full_and_resumed_handshakes() {
    let broker = Broker::start();
    let (ca, port) = (broker.path("broker.pem"), broker.other_ports[0].to_string());
    let storm = [
        "run",
        "connect-storm",
        "--scale",
        "0.02",
        "--duration",
        "1",
        "--warm-up",
        "0",
        "--tls",
    ];
    let storm = [&storm[..], &["--cacertfile", &ca]].concat();
    let (code, said, result) = broker.run_at(&port, &storm);
    assert_eq!(code, 0, "{said}");
    let of = |result: &Value, part: &str, key: &str| result[part][key].as_f64().unwrap();
    assert!(
        of(&result, "totals", "tls_full") >= of(&result, "totals", "connects"),
        "{said}"
    );
    assert!(
        of(&result, "throughput", "tls_full") > 0.0 && said.contains("TLS in full"),
        "{said}"
    );
    assert_eq!(result["totals"]["tls_resumed"], 0, "{said}");

    let (code, said, result) = broker.run_at(&port, &[&storm[..], &["--tls-resume"]].concat());
    assert_eq!(code, 0, "{said}");
    let (full, resumed) = (of(&result, "totals", "tls_full"), of(&result, "totals", "tls_resumed"));
    // The first of each of the 20 clients at least; who finds no ticket makes another in full.
    assert!(
        full >= 1.0 && resumed > full,
        "{full} in full, {resumed} resumed: {said}"
    );
    assert!(
        of(&result, "throughput", "tls_resumed") > 0.0 && said.contains("TLS resumed"),
        "{said}"
    );
}

#[test]
fn verbs_of_emqtt_bench_run_and_print_its_lines() {
    let broker = Broker::start();
    let mut sub = broker
        .command(&["sub", "-c", "5", "-i", "1", "-t", "verbs/#", "-q", "1"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(sub.stdout.take().unwrap());
    wait_for(&mut lines, " sub total=5 ");
    let output = Command::new(TIDEWIRE)
        .args([
            "bench",
            "pub",
            "-h",
            "127.0.0.1",
            "-p",
            &broker.port,
            "-c",
            "3",
            "-i",
            "1",
            "-I",
            "10",
        ])
        .args(["-t", "verbs/%i", "-q", "1", "-L", "100", "--threads", "1"])
        .args(["--json", &broker.path("published.json")])
        .output()
        .unwrap();
    let published = said(&output);
    assert!(output.status.success(), "{published}");
    assert!(
        published.contains("Start with 3 workers") && published.contains("publish complete"),
        "{published}"
    );
    // Over before the first second was: measured by its own length.
    let text = fs::read_to_string(broker.path("published.json")).unwrap();
    let result: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(result["totals"]["published"], 100, "{published}");
    for (part, key) in [
        ("counts", "published"),
        ("counts", "acknowledged"),
        ("throughput", "published"),
    ] {
        assert!(result[part][key].as_f64().unwrap() > 0.0, "{part} {key}: {published}");
    }
    wait_for(&mut lines, " recv total=500 ");
    interrupt(&sub);
    let mut rest = String::new();
    lines.read_to_string(&mut rest).unwrap();
    assert_eq!(sub.wait().unwrap().code(), Some(0), "{rest}");
    let result = broker.result();
    assert_eq!(result["totals"]["received"], 500);
    assert_eq!(result["is_interrupted"], true);
    // What the other process has sent is verified here: 3 publishers to 5 subscribers.
    for (key, expected) in [
        ("flows", 15),
        ("expected", 500),
        ("received", 500),
        ("lost", 0),
        ("duplicated", 0),
        ("reordered", 0),
        ("corrupt", 0),
        ("unverified", 0),
    ] {
        assert_eq!(result["truth"][key], expected, "{key}: {rest}");
    }
    let latency = &result["latency"]["end_to_end"]["summary"];
    assert_eq!(latency["count"], 500);
    // Both processes read the same clock; what passed in between cannot have taken longer than the test.
    assert!(latency["max_ms"].as_f64().unwrap() < 60_000.0, "{rest}");
}

#[test]
fn random_topics_of_another_process_are_verified_and_shared_ones_timed() {
    let broker = Broker::start();
    for (filter, flows, received, unverified) in [("rand/+/+", 6, 180, 0), ("$share/crew/rand/#", 0, 0, 60)] {
        let mut sub = broker
            .command(&["sub", "-c", "3", "-i", "1", "-t", filter, "-q", "1"])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(sub.stdout.take().unwrap());
        wait_for(&mut lines, " sub total=3 ");
        let output = Command::new(TIDEWIRE)
            .args([
                "bench",
                "pub",
                "-h",
                "127.0.0.1",
                "-p",
                &broker.port,
                "-c",
                "2",
                "-i",
                "1",
                "-I",
                "10",
            ])
            .args(["-t", "rand/%rand_10/%i", "-q", "1", "-L", "60", "--threads", "1"])
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", said(&output));
        wait_for(&mut lines, &format!(" recv total={} ", received + unverified));
        interrupt(&sub);
        let mut rest = String::new();
        lines.read_to_string(&mut rest).unwrap();
        assert_eq!(sub.wait().unwrap().code(), Some(0), "{rest}");
        let result = broker.result();
        let truth = &result["truth"];
        let found = [
            &truth["flows"],
            &truth["received"],
            &truth["unverified"],
            &truth["lost"],
        ];
        assert_eq!(found, [flows, received, unverified, 0], "{filter}: {rest}");
        assert_eq!(
            result["latency"]["end_to_end"]["summary"]["count"],
            received + unverified
        );
    }
}

#[test]
fn ctrl_c_ends_a_run_with_its_report() {
    let broker = Broker::start();
    let mut run = broker
        .command(&[
            "run",
            "p2p",
            "--scale",
            "0.02",
            "--duration",
            "600",
            "--warm-up",
            "0",
            "--set",
            "publishers.publish.rate=10",
        ])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(run.stdout.take().unwrap());
    wait_for(&mut lines, "measuring");
    while wait_for(&mut lines, " delivered/s").contains(" 0 delivered/s") {}
    interrupt(&run);
    let mut rest = String::new();
    lines.read_to_string(&mut rest).unwrap();
    assert_eq!(run.wait().unwrap().code(), Some(130), "{rest}");
    let result = broker.result();
    assert_eq!(result["is_interrupted"], true);
    assert_eq!(result["truth"]["lost"], 0, "{rest}");
    assert_eq!(result["truth"]["expected"], result["totals"]["published"]);
}

/// Both ends of a terminal.
fn terminal() -> (fs::File, fs::File) {
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    let own = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&own).unwrap();
    unlockpt(&own).unwrap();
    let name = ptsname(&own, Vec::new()).unwrap().into_string().unwrap();
    let other = fs::File::options().read(true).write(true).open(name).unwrap();
    (own.into(), other)
}

/// What the program has written; a terminal that nobody holds any more ends with an error.
fn read_terminal(terminal: &mut fs::File, seen: &mut String) -> bool {
    let mut buffer = [0; 4096];
    let size = terminal.read(&mut buffer).unwrap_or(0);
    seen.push_str(&String::from_utf8_lossy(&buffer[..size]));
    size > 0
}

#[test]
fn a_terminal_shows_a_bar_and_ctrl_c_still_reports() {
    let broker = Broker::start();
    let (mut own, other) = terminal();
    let mut command = broker.command(&["run", "p2p", "--scale", "0.02", "--duration", "600", "--warm-up", "0"]);
    command
        .args(["--set", "publishers.publish.rate=10"])
        .env("TERM", "xterm");
    command.stdout(other.try_clone().unwrap()).stderr(other);
    let mut run = command.spawn().unwrap();
    // Holds the other end of the terminal, too.
    drop(command);
    let mut seen = String::new();
    while !(seen.contains("measuring · ") && seen.contains(" delivered/s · p50 ")) {
        assert!(read_terminal(&mut own, &mut seen), "{seen}");
    }
    assert!(seen.contains("─") && seen.contains("s to go · 0 errors"), "{seen}");
    interrupt(&run);
    seen.clear();
    while read_terminal(&mut own, &mut seen) {}
    assert_eq!(run.wait().unwrap().code(), Some(130), "{seen}");
    let report = seen.rsplit("p2p: ").next().unwrap();
    assert!(
        report.contains("interrupted") && report.contains("nothing lost"),
        "{seen}"
    );
    assert!(!report.contains('─'), "the bar is drawn over the report: {seen}");
}

/// An agent as a process of its own.
struct AgentProcess {
    child: Child,
    address: String,
}

impl AgentProcess {
    fn start(args: &[&str]) -> AgentProcess {
        let mut child = Command::new(TIDEWIRE)
            .args(["bench", "agent", "--listen", "127.0.0.1:0"])
            .args(args)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap());
        let line = wait_for(&mut lines, "listening on ");
        std::thread::spawn(move || lines.read_to_string(&mut String::new()));
        let address = line.trim().rsplit(' ').next().unwrap().to_string();
        AgentProcess { child, address }
    }
}

impl Drop for AgentProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn three_agents_share_a_run() {
    let broker = Broker::start();
    let token = broker.path("token");
    fs::write(&token, "a secret of some length\n").unwrap();
    let agents = [0; 3].map(|_| AgentProcess::start(&["--token-file", &token]));
    let addresses: Vec<&str> = agents.iter().map(|agent| agent.address.as_str()).collect();
    let list = addresses.join(",");
    let args = pairs(200);
    let more = ["--agents", &list, "--token-file", &token];
    let (code, said, result) = broker.run(&[&refs(&args)[..], &more].concat());
    assert_eq!(code, 0, "{said}");
    assert_eq!(
        (&result["truth"]["expected"], &result["truth"]["lost"]),
        (&4_000.into(), &0.into()),
        "{said}"
    );
    assert_eq!(result["totals"]["received"], 4_000);
    let reported = result["agents"].as_array().unwrap();
    let clients: Vec<u64> = reported
        .iter()
        .map(|agent| agent["clients"].as_u64().unwrap())
        .collect();
    assert_eq!((clients.len(), clients.iter().sum::<u64>()), (3, 40));
    assert!(
        reported
            .iter()
            .all(|agent| agent["clock_error_ms"].as_f64().unwrap() < 100.0),
        "{reported:?}"
    );
    assert!(!result.to_string().contains("a secret"), "the token is in the result");

    // Fan-out crosses the agents: each has subscribers of publishers elsewhere.
    let fan = [
        "run",
        "fanout",
        "--scale",
        "0.03",
        "--duration",
        "1",
        "--warm-up",
        "0",
        "--set",
        "publishers.publish.rate=10",
    ];
    let (code, said, result) = broker.run(&[&fan[..], &more].concat());
    assert_eq!(code, 0, "{said}");
    assert_eq!(
        (&result["truth"]["expected"], &result["truth"]["lost"]),
        (&3_000.into(), &0.into()),
        "{said}"
    );

    let other = broker.path("other");
    fs::write(&other, "another secret, as long").unwrap();
    let (code, said, _) = broker.run(&[&refs(&args)[..], &["--agents", &list, "--token-file", &other]].concat());
    assert_eq!(code, 1);
    assert!(said.contains("token is not the same"), "{said}");
}

#[test]
fn an_agent_that_dies_ends_the_run_with_what_is_known() {
    let broker = Broker::start();
    let mut agents = [0; 3].map(|_| AgentProcess::start(&[]));
    let list = agents
        .iter()
        .map(|agent| agent.address.as_str())
        .collect::<Vec<_>>()
        .join(",");
    let mut run = broker
        .command(&[
            "run",
            "p2p",
            "--scale",
            "0.02",
            "--duration",
            "600",
            "--warm-up",
            "0",
            "--agents",
            &list,
        ])
        .args(["--set", "publishers.publish.rate=10"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(run.stdout.take().unwrap());
    wait_for(&mut lines, "measuring");
    while wait_for(&mut lines, " delivered/s").contains(" 0 delivered/s") {}
    agents[1].child.kill().unwrap();
    let mut rest = String::new();
    lines.read_to_string(&mut rest).unwrap();
    let output = run.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{rest}");
    let complaint = said(&output);
    assert!(
        complaint.contains(&format!("{}: closed the connection", agents[1].address)),
        "{complaint}"
    );
    let result = broker.result();
    assert_eq!(result["is_interrupted"], true);
    assert!(result["totals"]["received"].as_u64().unwrap() > 0);
}

#[test]
fn mistakes_are_explained_before_anything_runs() {
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
    assert_eq!(code, 1);
    assert!(said.contains("a rule that takes the messages to Kafka"), "{said}");
    let (code, said) = bench(&[
        "run",
        "p2p",
        "-h",
        "127.0.0.1",
        "-p",
        &free_port().to_string(),
        "--scale",
        "0.001",
    ]);
    assert_eq!(code, 1, "{said}");
    assert!(said.contains("no connection was accepted"), "{said}");
    let port = free_port().to_string();
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
        said.contains("no connection was accepted; the commonest reason was: connect: "),
        "{said}"
    );
}

#[test]
fn what_show_prints_runs_from_a_file_and_results_compare() {
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
