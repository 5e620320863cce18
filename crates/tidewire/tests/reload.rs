//! SIGHUP and the API's way to new certificates, seen from outside: what changes at once, what waits for a restart, and what must never change by accident.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

#[path = "../../../tests/support/ports.rs"]
mod ports;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use ports::free_port;

const TIDEWIRE: &str = env!("CARGO_BIN_EXE_tidewire");
const PATIENCE: Duration = Duration::from_secs(60);

struct Server {
    child: Child,
    dir: PathBuf,
    ports: [u16; 5],
    /// His line in the password file.
    ben: String,
}

/// The end of a start, in the log.
const READY: &str = " ready ";

impl Server {
    /// `config` is the file; listeners of every kind and a certificate are there besides.
    fn start(name: &str, config: &str) -> Server {
        let dir = std::env::temp_dir().join(format!("tidewire-reload-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(&dir).unwrap();
        let made = rcgen::generate_simple_self_signed(["localhost".to_string()]).unwrap();
        fs::write(dir.join("cert.pem"), made.cert.pem()).unwrap();
        fs::write(dir.join("key.pem"), made.signing_key.serialize_pem()).unwrap();
        let ben = user("ben");
        fs::write(dir.join("users"), user("ann") + &ben).unwrap();
        fs::write(dir.join("tidewire.toml"), config).unwrap();
        let ports = std::array::from_fn(|_| free_port().port());
        let child = spawn(&dir, ports);
        let server = Server { child, dir, ports, ben };
        server.wait_for_log(READY);
        server
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.dir.join(name), text).unwrap();
    }

    fn reload(&self) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args(["-HUP", &pid]).status().unwrap().success());
    }

    fn log(&self) -> String {
        fs::read_to_string(self.dir.join("log")).unwrap()
    }

    fn wait_for_log(&self, words: &str) {
        self.until(words, || self.log().contains(words));
    }

    fn until(&self, what: &str, is_so: impl Fn() -> bool) {
        let end = Instant::now() + PATIENCE;
        while !is_so() {
            assert!(Instant::now() < end, "not `{what}`:\n{}", self.log());
            thread::sleep(Duration::from_millis(10));
        }
    }

    fn restart(&self, token: &str) {
        let starts = || self.log().matches(READY).count();
        let before = starts();
        let (status, answer) = self.ask("POST", "/api/v1/restart", token, &json!(null));
        assert_eq!(status, 204, "{answer}");
        self.until("started anew", || starts() == before + 1);
    }

    /// `tidewire sub`, subscribed.
    fn subscriber(&self, user: &str) -> Child {
        let port = self.ports[0].to_string();
        let mut child = Command::new(TIDEWIRE)
            .args([
                "sub", "-d", "-V", "5", "-p", &port, "-u", user, "-P", "secret", "-t", "t",
            ])
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.as_mut().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().contains("received SUBACK")));
        child
    }

    /// The exit code of `tidewire pub` to a port.
    fn publish(&self, port: u16, more: &[&str]) -> Option<i32> {
        let port = port.to_string();
        let mut command = Command::new(TIDEWIRE);
        command
            .args(["pub", "-V", "311", "-p", &port, "-q", "1", "-t", "t"])
            .args(more);
        if !more.contains(&"-m") {
            command.args(["-m", "x"]);
        }
        command.stderr(Stdio::null()).status().unwrap().code()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.dir);
    }
}

fn spawn(dir: &Path, ports: [u16; 5]) -> Child {
    let file = |name: &str| dir.join(name).display().to_string();
    let kinds = ["tcp", "tls", "ws", "wss"];
    let mut sets: Vec<String> = kinds
        .iter()
        .zip(ports)
        .map(|(kind, port)| format!("listeners.{kind}.default.bind=127.0.0.1:{port}"))
        .collect();
    sets.push(format!("api.bind=127.0.0.1:{}", ports[4]));
    for (key, name) in [
        ("node.data_dir", "data"),
        ("log.file", "log"),
        ("tls.cert_file", "cert.pem"),
        ("tls.key_file", "key.pem"),
        ("tls.ca_file", "cert.pem"),
        ("access.password_file", "users"),
    ] {
        sets.push(format!("{key}={}", file(name)));
    }
    let mut command = Command::new(TIDEWIRE);
    command.args(["--quiet", "--config", &file("tidewire.toml")]);
    command.args(sets.iter().flat_map(|set| ["--set", set]));
    fs::write(dir.join("log"), "").unwrap();
    command.spawn().unwrap()
}

/// A line of a password file.
fn user(name: &str) -> String {
    let file = std::env::temp_dir().join(format!(
        "tidewire-reload-{}-{name}-{:?}",
        std::process::id(),
        thread::current().id()
    ));
    let _ = fs::remove_file(&file);
    let mut child = Command::new(TIDEWIRE)
        .arg("passwd")
        .arg("-c")
        .arg(&file)
        .arg(name)
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"secret\n").unwrap();
    assert!(child.wait().unwrap().success());
    let text = fs::read_to_string(&file).unwrap();
    fs::remove_file(&file).unwrap();
    let line = text.lines().find(|line| line.starts_with(name)).unwrap();
    format!("{line}\n")
}

#[test]
fn a_user_that_is_gone_is_disconnected_and_others_are_not() {
    let server = Server::start("users", "");
    let mut ann = server.subscriber("ann");
    let mut ben = server.subscriber("ben");
    server.write("users", &(user("cid") + &server.ben));
    server.reload();
    server.wait_for_log("configuration reloaded");
    assert!(!ann.wait().unwrap().success());
    assert_eq!(server.publish(server.ports[0], &["-u", "ann", "-P", "secret"]), Some(4));
    assert_eq!(server.publish(server.ports[0], &["-u", "cid", "-P", "secret"]), Some(0));
    assert_eq!(ben.try_wait().unwrap(), None);
    ben.kill().unwrap();
    ben.wait().unwrap();
}

/// `tls.default` and `wss.default` have the same name and not the same demands.
#[test]
fn a_listener_keeps_its_own_demands() {
    let server = Server::start("tls", "[listeners.tls.default]\nverify_client = \"required\"\n");
    let ca = server.dir.join("cert.pem").display().to_string();
    let over_tls = || server.publish(server.ports[1], &["--cafile", &ca, "--insecure"]);
    let over_wss = || {
        let url = format!("wss://localhost:{}/mqtt", server.ports[3]);
        let mut command = Command::new(TIDEWIRE);
        command.args([
            "pub",
            "-L",
            &format!("{url}/t"),
            "-m",
            "x",
            "--cafile",
            &ca,
            "--insecure",
        ]);
        command.stderr(Stdio::null()).status().unwrap().code()
    };
    assert_ne!(over_tls(), Some(0));
    let before = over_wss();
    server.reload();
    server.wait_for_log("configuration reloaded");
    assert_ne!(over_tls(), Some(0), "a client without a certificate is let in");
    assert_eq!(over_wss(), before);
}

#[test]
fn a_mistake_changes_nothing_and_what_waits_for_a_restart_is_named() {
    let server = Server::start("mistake", "");
    let known = ["-u", "ann", "-P", "secret"];
    server.write("tidewire.toml", "[mqtt]\nmax_pakcet_size = 10\n");
    server.write("users", "");
    server.reload();
    server.wait_for_log("the configuration was not reloaded; nothing has changed");
    assert_eq!(server.publish(server.ports[0], &known), Some(0));
    server.write(
        "tidewire.toml",
        "[node]\nworkers = 1\n[mqtt]\nmax_packet_size = \"1KiB\"\n",
    );
    server.reload();
    server.wait_for_log("node.workers waits for a restart");
    server.wait_for_log("configuration reloaded");
    let large = "x".repeat(2000);
    assert_ne!(
        server.publish(server.ports[0], &["-m", &large]),
        Some(0),
        "the new limit holds for new connections"
    );
    assert!(TcpStream::connect(("127.0.0.1", server.ports[0])).is_ok());
}

#[test]
fn the_configuration_is_changed_over_the_api_and_kept() {
    let server = Server::start("configure", "[mqtt]\nmax_packet_size = \"64KiB\"\n");
    let token = server.login();
    let known = |more: &[&str]| server.publish(server.ports[0], &[&["-u", "ann", "-P", "secret"], more].concat());
    let (path, check) = ("/api/v1/configuration", "/api/v1/configuration/check");
    let send =
        |method: &str, path: &str, changes: Value| server.ask(method, path, &token, &json!({ "changes": changes }));
    let shown = |key: &str| {
        let (_, all) = server.ask("GET", path, &token, &json!(null));
        let found = all.as_array().unwrap().iter().find(|one| one["key"] == key).cloned();
        found.unwrap()
    };
    let large = "x".repeat(2000);
    assert_eq!(known(&["-m", &large]), Some(0));

    let wanted = json!({ "mqtt.max_packet_size": "1KiB" });
    let (status, plan) = send("POST", check, wanted.clone());
    assert_eq!(status, 200, "{plan}");
    let item = &plan["items"][0];
    assert_eq!(
        (&item["before"], &item["after"]),
        (&json!("\"64KiB\""), &json!("\"1KiB\""))
    );
    assert_eq!(plan["items"].as_array().unwrap().len(), 1, "{plan}");
    assert!(!server.dir.join("data/runtime.toml").exists() && known(&["-m", &large]) == Some(0));

    assert_eq!(send("PUT", path, wanted), (200, plan));
    assert_ne!(known(&["-m", &large]), Some(0), "it holds for whoever connects now");
    assert_eq!(known(&[]), Some(0));
    let value = shown("mqtt.max_packet_size");
    assert_eq!(
        (&value["value"], &value["is_runtime"]),
        (&json!("\"1KiB\""), &json!(true))
    );
    assert!(value["origin"].as_str().unwrap().contains("runtime.toml"), "{value}");
    server.reload();
    server.wait_for_log("configuration reloaded");
    assert_ne!(known(&["-m", &large]), Some(0), "it beats the file");

    for (key, value, because) in [
        ("mqtt.max_packet_size", "1XiB", "expected"),
        ("mqtt.max_inflight", "0", "from 1 to 65535"),
        ("mqtt.max_pakcet_size", "1KiB", "no such value"),
        ("node.workers", "1", "start the server again"),
        ("access.password_file", "/etc/passwd", "pinned by --set"),
        ("access.acl_file", "/etc/passwd", "names a file"),
        ("access.rules", "[]", "page of its own"),
        ("listeners.tls.default.cert_file", "/etc/x", "names a file"),
        ("mqtt..max_qos", "1", "is no key"),
    ] {
        for (method, path) in [("POST", check), ("PUT", path)] {
            let (status, problem) = send(method, path, json!({ key: value }));
            assert_eq!(
                (status, &problem["field"]),
                (422, &json!(format!("changes.{key}"))),
                "{problem}"
            );
            assert!(
                problem["detail"].as_str().unwrap().contains(because),
                "{key}: {problem}"
            );
        }
    }
    let (status, problem) = send("PUT", path, json!({ "mqtt.max_inflight": "7", "mqtt.max_qos": "9" }));
    assert_eq!(
        (status, &problem["field"]),
        (422, &json!("changes.mqtt.max_qos")),
        "{problem}"
    );
    assert_eq!(shown("mqtt.max_inflight")["is_default"], json!(true), "all or nothing");

    server.write(
        "tidewire.toml",
        "[mqtt]\nmax_packet_size = \"64KiB\"\nmax_inflight = 9\n",
    );
    let (status, plan) = send("PUT", path, json!({ "mqtt.max_packet_size": null }));
    assert_eq!(status, 200, "{plan}");
    let asked: Vec<_> = plan["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| (&item["key"], &item["is_asked_for"]))
        .collect();
    let expected = [
        (json!("mqtt.max_packet_size"), json!(true)),
        (json!("mqtt.max_inflight"), json!(false)),
    ];
    assert_eq!(
        asked,
        expected.each_ref().map(|(key, is_asked)| (key, is_asked)),
        "what the file says is told, too"
    );
    assert_eq!(known(&["-m", &large]), Some(0));
    assert_eq!(shown("mqtt.max_inflight")["value"], json!("9"));

    server.write("tidewire.toml", "[mqtt]\nmax_pakcet_size = 1\n");
    assert_eq!(
        send("PUT", path, json!({ "mqtt.max_qos": "1" })).0,
        409,
        "the file has to be mended first"
    );
    assert_eq!(shown("mqtt.max_qos")["is_default"], json!(true));
}

/// Each reads `runtime.toml`, changes its part and writes all of it.
#[test]
fn settings_and_access_rules_changed_at_the_same_time_are_both_kept() {
    let server = Server::start("at-once", "");
    let token = server.login();
    for round in 1..=10 {
        let inflight = json!({ "changes": { "mqtt.max_inflight": round.to_string() } });
        let qos = json!({ "changes": { "mqtt.max_qos": (round % 2).to_string() } });
        let topic = format!("round/{round}");
        let rules = json!({ "rules": [{ "permission": "deny", "action": "publish", "topics": [topic] }] });
        let all = [
            ("/api/v1/configuration", inflight),
            ("/api/v1/configuration", qos),
            ("/api/v1/acl", rules),
        ];
        let together = Barrier::new(all.len());
        thread::scope(|scope| {
            for (path, body) in &all {
                scope.spawn(|| {
                    together.wait();
                    let (status, answer) = server.ask("PUT", path, &token, body);
                    assert_eq!(status, 200, "{answer}");
                });
            }
        });
        let kept = fs::read_to_string(server.dir.join("data/runtime.toml")).unwrap();
        let kept: toml::Table = kept.parse().unwrap();
        assert_eq!(kept["mqtt"]["max_inflight"].as_integer(), Some(round), "{kept}");
        assert_eq!(kept["mqtt"]["max_qos"].as_integer(), Some(round % 2), "{kept}");
        assert_eq!(
            kept["access"]["rules"][0]["topics"][0].as_str(),
            Some(&*topic),
            "{kept}"
        );
    }
}

fn pair() -> (String, String) {
    let made = rcgen::generate_simple_self_signed(["localhost".to_string()]).unwrap();
    (made.cert.pem(), made.signing_key.serialize_pem())
}

impl Server {
    /// Status and body of the API's answer.
    fn ask(&self, method: &str, path: &str, token: &str, body: &Value) -> (u16, Value) {
        let body = body.to_string();
        let mut stream = TcpStream::connect(("127.0.0.1", self.ports[4])).unwrap();
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
            body.len()
        )
        .unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let body = match body {
            "" => Value::Null,
            body => serde_json::from_str(body).unwrap(),
        };
        (status, body)
    }

    fn login(&self) -> String {
        let password = fs::read_to_string(self.dir.join("data/admin-password")).unwrap();
        let body = json!({ "user": "admin", "password": password.trim() });
        let (status, answer) = self.ask("POST", "/api/v1/login", "", &body);
        assert_eq!(status, 200, "{answer}");
        answer["token"].as_str().unwrap().to_owned()
    }

    /// Whether a client that trusts this certificate alone gets in by TLS.
    fn is_shown(&self, certificate: &str) -> bool {
        self.is_shown_at(self.ports[1], certificate)
    }

    fn is_shown_at(&self, port: u16, certificate: &str) -> bool {
        self.write("trusted.pem", certificate);
        let ca = self.dir.join("trusted.pem").display().to_string();
        self.publish(port, &["-h", "localhost", "--cafile", &ca]) == Some(0)
    }
}

/// A client that does not outlive its test.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_certificate_is_replaced_over_the_api_and_connections_stay() {
    let server = Server::start("certificates", "");
    let token = server.login();
    let old = fs::read_to_string(server.dir.join("cert.pem")).unwrap();
    assert!(server.is_shown(&old));
    let port = server.ports[1].to_string();
    let ca = server.dir.join("trusted.pem").display().to_string();
    let child = Command::new(TIDEWIRE)
        .args([
            "sub",
            "-d",
            "-h",
            "localhost",
            "-p",
            &port,
            "--cafile",
            &ca,
            "-t",
            "over/tls",
            "-C",
            "1",
        ])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut child = Ended(child);
    let mut lines = BufReader::new(child.0.stderr.as_mut().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains("received SUBACK")));

    let (certificate, key) = pair();
    let put = |certificate: &str, key: &str| {
        let body = json!({ "certificate": certificate, "key": key });
        server.ask("PUT", "/api/v1/certificates/tls.default", &token, &body)
    };
    for (certificate, key, field) in [
        (certificate.as_str(), pair().1.as_str(), "key"),
        ("no PEM", &key, "certificate"),
        (&certificate, "no PEM", "key"),
    ] {
        let (status, problem) = put(certificate, key);
        assert_eq!((status, &problem["field"]), (422, &json!(field)), "{problem}");
    }
    assert_eq!(fs::read_to_string(server.dir.join("cert.pem")).unwrap(), old);
    assert!(server.is_shown(&old));

    let (status, answer) = put(&certificate, &key);
    assert_eq!(status, 200, "{answer}");
    assert_eq!(answer["items"].as_array().unwrap().len(), 2);
    for (item, other) in [(0, "wss.default"), (1, "tls.default")] {
        let item = &answer["items"][item];
        assert_eq!(
            (&item["on_disk"], &item["shared_with"]),
            (&json!("same"), &json!([other]))
        );
        assert_eq!(item["chain"][0]["names"], json!(["localhost"]));
    }
    assert!(!answer.to_string().contains("PRIVATE"));
    assert!(server.is_shown(&certificate) && !server.is_shown(&old));
    assert_eq!(
        fs::read_dir(&server.dir)
            .unwrap()
            .filter(|file| file
                .as_ref()
                .unwrap()
                .path()
                .extension()
                .is_some_and(|end| end == "new"))
            .count(),
        0
    );
    let port = server.ports[0].to_string();
    let published = Command::new(TIDEWIRE)
        .args(["pub", "-p", &port, "-q", "1", "-t", "over/tls", "-m", "x"])
        .status()
        .unwrap();
    assert!(published.success());
    assert!(
        child.0.wait().unwrap().success(),
        "the connection from before has got it"
    );

    let (renewed, key) = pair();
    server.write("cert.pem", &renewed);
    let state = || server.ask("GET", "/api/v1/certificates", &token, &json!(null)).1["items"][0]["on_disk"].clone();
    assert_eq!(state(), "unusable");
    let (status, problem) = server.ask("POST", "/api/v1/certificates/reload", &token, &json!(null));
    assert_eq!(status, 409, "{problem}");
    server.write("key.pem", &key);
    assert_eq!(state(), "changed");
    assert_eq!(
        server
            .ask("POST", "/api/v1/certificates/reload", &token, &json!(null))
            .0,
        200
    );
    assert_eq!(state(), "same");
    assert!(server.is_shown(&renewed));

    fs::rename(server.dir.join("cert.pem"), server.dir.join("real.pem")).unwrap();
    std::os::unix::fs::symlink(server.dir.join("real.pem"), server.dir.join("cert.pem")).unwrap();
    let (status, problem) = put(&certificate, &key);
    assert_eq!(status, 409, "what a link points to is somebody else's: {problem}");
}

#[test]
fn listeners_are_changed_over_the_api_for_the_next_start() {
    let file = "[listeners.ws.other]\nbind = \"127.0.0.1:0\"\n";
    let mut server = Server::start("listeners", file);
    let token = server.login();
    let path = "/api/v1/configuration";
    let send = |server: &Server, changes: Value| server.ask("PUT", path, &token, &json!({ "changes": changes }));
    let busy = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let busy = busy.local_addr().unwrap().to_string();
    let own = format!("127.0.0.1:{}", server.ports[0]);
    // With a port that the server has itself.
    let (elsewhere, everywhere) = (format!("192.0.2.1:{}", server.ports[0]), server.ports[0].to_string());
    let (key, api) = ("listeners.ws.other.bind", format!("127.0.0.1:{}", server.ports[4]));
    for (bind, because) in [
        ("192.0.2.1:5000", "cannot be listened on"),
        (busy.as_str(), "cannot be listened on"),
        (api.as_str(), "is taken by"),
        (own.as_str(), "is taken by"),
        (elsewhere.as_str(), "cannot be listened on"),
        (everywhere.as_str(), "is taken by"),
        ("nowhere", "expected"),
    ] {
        let (status, problem) = send(&server, json!({ key: bind }));
        let detail = problem["detail"].as_str().unwrap();
        assert!(status == 422 && detail.contains(because), "{bind}: {problem}");
    }
    assert!(!server.dir.join("data/runtime.toml").exists());

    let free = free_port().to_string();
    let (status, plan) = send(&server, json!({ key: free }));
    assert_eq!(
        (status, &plan["items"][0]["needs_restart"]),
        (200, &json!(true)),
        "{plan}"
    );
    let (_, all) = server.ask("GET", path, &token, &json!(null));
    let shown = all.as_array().unwrap().iter().find(|one| one["key"] == key).unwrap();
    assert_eq!(
        (&shown["until_restart"], &shown["fixed_because"]),
        (&json!("\"127.0.0.1:0\""), &json!(null)),
        "{shown}"
    );
    assert!(TcpStream::connect(&free).is_err(), "not before the restart");
    server.child.kill().unwrap();
    server.child.wait().unwrap();
    server.child = spawn(&server.dir, server.ports);
    server.until("listening there", || TcpStream::connect(&free).is_ok());
}

#[test]
fn a_server_that_is_stopped_while_it_starts_anew_stops() {
    let mut server = Server::start("stopped", "");
    let token = server.login();
    let (status, answer) = server.ask("POST", "/api/v1/restart", &token, &json!(null));
    assert_eq!(status, 204, "{answer}");
    let pid = server.child.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    let end = Instant::now() + PATIENCE;
    while server.child.try_wait().unwrap().is_none() {
        assert!(Instant::now() < end, "{}", server.log());
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_listener_is_added_and_removed_over_the_api_and_the_server_restarted() {
    let server = Server::start("added", "");
    let process = server.child.id();
    let token = server.login();
    let path = "/api/v1/configuration";
    let send = |token: &str, changes: Value| server.ask("PUT", path, token, &json!({ "changes": changes }));
    let free = free_port().to_string();
    for (changes, because) in [
        (
            json!({ "listeners.tcp.lan.backlog": "9" }),
            "is missing: a listener needs an address",
        ),
        (json!({ "listeners.tcp.lan.bnid": &free }), "there is no such value"),
        (json!({ "listeners.tcp.lan.bind": null }), "there is no such value"),
        (json!({ "listeners.tcp.lan.path": "/mqtt" }), "there is no such value"),
        (json!({ "listeners.udp.lan.bind": &free }), "there is no such value"),
        (
            json!({ "listeners.tls.lan.bind": &free, "listeners.tls.lan.cert_file": "/etc/x" }),
            "names a file",
        ),
        (
            json!({ "listeners.tcp.lan.bind": "192.0.2.1:5000" }),
            "cannot be listened on",
        ),
    ] {
        let (status, problem) = send(&token, changes.clone());
        let detail = problem["detail"].as_str().unwrap_or_default();
        assert!(status == 422 && detail.contains(because), "{changes}: {problem}");
    }
    assert!(!server.dir.join("data/runtime.toml").exists());

    let added = json!({ "listeners.tcp.lan.bind": &free, "listeners.tcp.lan.max_connections": "5" });
    let (status, plan) = send(&token, added);
    let items = plan["items"].as_array().unwrap();
    assert_eq!(
        (status, items.len()),
        (200, 2),
        "not the defaults of the others: {plan}"
    );
    assert!(
        items
            .iter()
            .all(|item| item["before"].is_null() && item["needs_restart"] == true)
    );
    // What would not start is not begun.
    let busy = std::net::TcpListener::bind(&free).unwrap();
    let (status, problem) = server.ask("POST", "/api/v1/restart", &token, &json!(null));
    assert_eq!(status, 409, "{problem}");
    assert!(
        problem["detail"].as_str().unwrap().contains("listeners.tcp.lan.bind: "),
        "{problem}"
    );
    drop(busy);
    server.restart(&token);
    assert!(TcpStream::connect(&free).is_ok());

    let token = server.login();
    let removed = json!({ "listeners.tcp.lan.bind": null, "listeners.tcp.lan.max_connections": null });
    let (status, plan) = send(&token, removed);
    assert_eq!((status, plan["items"].as_array().unwrap().len()), (200, 2), "{plan}");
    assert!(TcpStream::connect(&free).is_ok(), "not before the restart");
    server.restart(&token);
    assert!(TcpStream::connect(&free).is_err());
    assert_eq!(server.child.id(), process);
}

#[test]
fn certificates_are_those_of_listeners_that_are_open() {
    let server = Server::start("open", "");
    let token = server.login();
    let free = free_port();
    let change = |token: &str, bind: Value| {
        let changes = json!({ "changes": { "listeners.tls.lan.bind": bind } });
        let (status, answer) = server.ask("PUT", "/api/v1/configuration", token, &changes);
        assert_eq!(status, 200, "{answer}");
    };
    let shown = |token: &str| {
        let (_, answer) = server.ask("GET", "/api/v1/certificates", token, &json!(null));
        let items = answer["items"].as_array().unwrap().clone();
        let mut labels: Vec<String> = items
            .iter()
            .map(|one| one["listener"].as_str().unwrap().to_owned())
            .collect();
        labels.sort();
        labels
    };
    change(&token, json!(free.to_string()));
    assert_eq!(shown(&token), ["tls.default", "wss.default"], "not before the restart");
    server.restart(&token);
    let token = server.login();
    assert_eq!(shown(&token), ["tls.default", "tls.lan", "wss.default"]);
    change(&token, json!(null));
    assert_eq!(
        shown(&token),
        ["tls.default", "tls.lan", "wss.default"],
        "until the restart"
    );
    // It is open, and shows what is put in place of the others' files, too.
    let (certificate, key) = pair();
    let body = json!({ "certificate": certificate, "key": key });
    let (status, answer) = server.ask("PUT", "/api/v1/certificates/tls.default", &token, &body);
    assert_eq!(status, 200, "{answer}");
    assert!(server.is_shown(&certificate) && server.is_shown_at(free.port(), &certificate));
    let (certificate, key) = pair();
    server.write("cert.pem", &certificate);
    server.write("key.pem", &key);
    let (status, answer) = server.ask("POST", "/api/v1/certificates/reload", &token, &json!(null));
    assert_eq!(status, 200, "{answer}");
    assert!(server.is_shown(&certificate) && server.is_shown_at(free.port(), &certificate));
    server.restart(&token);
    let token = server.login();
    assert_eq!(shown(&token), ["tls.default", "wss.default"]);
}
