//! Tests reloads by SIGHUP and over the API: which changes apply at once, which need a restart, and which settings must
//! never change by accident.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::free_port;

mod api_tls;
mod changed_files;

const TIDEWIRE: &str = env!("CARGO_BIN_EXE_tidewire");
const PATIENCE: Duration = Duration::from_secs(60);

struct Server {
    child: Child,
    dir: PathBuf,
    ports: [u16; 5],
    /// The line of user `ben` in the password file.
    ben: String,
}

/// The log text that marks a completed start.
const READY: &str = " ready ";

impl Server {
    /// Starts a server with the configuration file `config`, listeners of every kind and a certificate.
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
        self.until("restarted", || starts() == before + 1);
    }

    /// Starts `tidewire sub` and returns after its SUBACK.
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

    /// Runs `tidewire pub` against a port and returns its exit code.
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

/// Returns a line of a password file.
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
fn reload_disconnects_only_removed_users() {
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

#[test]
fn reload_changes_the_publish_rate_of_a_listener() {
    const LIMITED: &str = "[listeners.tcp.default]\nmax_publish_rate = \"1/h\"\n";
    let server = Server::start("publish-rate", LIMITED);
    let ann = ["-u", "ann", "-P", "secret"];
    assert_eq!(server.publish(server.ports[0], &ann), Some(0));
    thread::scope(|scope| {
        let waits = scope.spawn(|| server.publish(server.ports[0], &ann));
        server.wait_for_log("listener:tcp.default");
        assert_eq!(
            server.publish(
                server.ports[2],
                &["-L", "ws://127.0.0.1/mqtt", "-u", "ann", "-P", "secret"]
            ),
            Some(0)
        );
        assert!(!waits.is_finished());
        server.write("tidewire.toml", "");
        server.reload();
        assert_eq!(waits.join().unwrap(), Some(0), "the reload has lifted the limit");
    });
    assert!(!server.log().contains("takes effect after a restart"));
}

#[test]
fn access_file_without_rules_denies_everything() {
    const COMMENTS: &str = "# user ann\n# topic readwrite t\n";
    let server = Server::start("no-rules", "");
    let file = server.dir.join("rules");
    let port = server.ports[0].to_string();
    let publish = || {
        let mut command = Command::new(TIDEWIRE);
        command.args([
            "pub", "-V", "5", "-p", &port, "-u", "ann", "-P", "secret", "-q", "1", "-t", "t", "-m", "x",
        ]);
        command.stderr(Stdio::null()).status().unwrap().code()
    };
    assert_eq!(publish(), Some(0), "without rules, every user may publish");

    server.write("rules", COMMENTS);
    server.write("tidewire.toml", &format!("[access]\nacl_file = {:?}\n", file.display()));
    server.reload();
    server.wait_for_log("access.acl_file contains no rule");
    server.until("denied", || publish() != Some(0));

    server.write("rules", "user ann\ntopic readwrite t\n");
    server.reload();
    server.until("allowed", || publish() == Some(0));

    server.write("rules", COMMENTS);
    server.reload();
    server.until("denied again", || publish() != Some(0));

    server.write("tidewire.toml", "");
    server.reload();
    server.wait_for_log("the last access rule was removed");
    server.until("open", || publish() == Some(0));
}

/// The listeners `tls.default` and `wss.default` have the same name but different `verify_client` settings.
#[test]
fn reload_keeps_the_tls_settings_of_each_listener() {
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
    assert_ne!(over_tls(), Some(0), "a client without a certificate is accepted");
    assert_eq!(over_wss(), before);
}

#[test]
fn invalid_reload_is_rejected_and_restart_keys_are_named() {
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
    server.wait_for_log("node.workers takes effect after a restart");
    server.wait_for_log("configuration reloaded");
    let large = "x".repeat(2000);
    assert_ne!(
        server.publish(server.ports[0], &["-m", &large]),
        Some(0),
        "the new limit applies to new connections"
    );
    assert!(TcpStream::connect(("127.0.0.1", server.ports[0])).is_ok());
}

#[test]
fn configuration_changes_over_the_api_are_persistent() {
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
    assert_ne!(known(&["-m", &large]), Some(0), "the limit applies to new connections");
    assert_eq!(known(&[]), Some(0));
    let value = shown("mqtt.max_packet_size");
    assert_eq!(
        (&value["value"], &value["is_runtime"]),
        (&json!("\"1KiB\""), &json!(true))
    );
    assert!(value["origin"].as_str().unwrap().contains("runtime.toml"), "{value}");
    server.reload();
    server.wait_for_log("configuration reloaded");
    assert_ne!(known(&["-m", &large]), Some(0), "the API setting overrides the file");

    for (key, value, because) in [
        ("mqtt.max_packet_size", "1XiB", "expected"),
        ("mqtt.max_inflight", "0", "from 1 to 65535"),
        ("mqtt.max_pakcet_size", "1KiB", "unknown key"),
        ("node.workers", "1", "restart the server"),
        ("access.password_file", "/etc/passwd", "pinned by --set"),
        ("access.acl_file", "/etc/passwd", "names a file"),
        ("access.rules", "[]", "endpoint of its own"),
        ("listeners.tls.default.cert_file", "/etc/x", "names a file"),
        ("mqtt..max_qos", "1", "is not a key"),
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
    assert_eq!(
        shown("mqtt.max_inflight")["is_default"],
        json!(true),
        "an invalid request changes nothing"
    );

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
        .map(|item| (&item["key"], &item["is_requested"]))
        .collect();
    let expected = [
        (json!("mqtt.max_packet_size"), json!(true)),
        (json!("mqtt.max_inflight"), json!(false)),
    ];
    assert_eq!(
        asked,
        expected.each_ref().map(|(key, is_asked)| (key, is_asked)),
        "the plan also names the change in the file"
    );
    assert_eq!(known(&["-m", &large]), Some(0));
    assert_eq!(shown("mqtt.max_inflight")["value"], json!("9"));

    server.write("tidewire.toml", "[mqtt]\nmax_pakcet_size = 1\n");
    assert_eq!(
        send("PUT", path, json!({ "mqtt.max_qos": "1" })).0,
        409,
        "an invalid file blocks changes over the API"
    );
    assert_eq!(shown("mqtt.max_qos")["is_default"], json!(true));
}

/// Both endpoints read `runtime.toml`, change their part and write the whole file.
#[test]
fn concurrent_settings_and_access_rules_are_both_saved() {
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
    /// Sends a request to the API. Returns status and body of the answer.
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

    /// Returns whether a client that trusts only this certificate can connect over TLS.
    fn is_shown(&self, certificate: &str) -> bool {
        self.is_shown_at(self.ports[1], certificate)
    }

    fn is_shown_at(&self, port: u16, certificate: &str) -> bool {
        self.write("trusted.pem", certificate);
        let ca = self.dir.join("trusted.pem").display().to_string();
        self.publish(port, &["-h", "localhost", "--cafile", &ca]) == Some(0)
    }
}

/// A client process that is killed when the value is dropped.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn certificate_replacement_keeps_connections_open() {
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
        "the existing connection receives the message"
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
    assert_eq!(status, 409, "the target of a link is not replaced: {problem}");
}

#[test]
fn listener_changes_over_the_api_apply_at_the_next_start() {
    let file = "[listeners.ws.other]\nbind = \"127.0.0.1:0\"\n";
    let mut server = Server::start("listeners", file);
    let token = server.login();
    let path = "/api/v1/configuration";
    let send = |server: &Server, changes: Value| server.ask("PUT", path, &token, &json!({ "changes": changes }));
    let busy = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let busy = busy.local_addr().unwrap().to_string();
    let own = format!("127.0.0.1:{}", server.ports[0]);
    // Other addresses with a port that the server itself uses.
    let (elsewhere, everywhere) = (format!("192.0.2.1:{}", server.ports[0]), server.ports[0].to_string());
    let (key, api) = ("listeners.ws.other.bind", format!("127.0.0.1:{}", server.ports[4]));
    for (bind, because) in [
        ("192.0.2.1:5000", "cannot listen on"),
        (busy.as_str(), "cannot listen on"),
        (api.as_str(), "is already used by"),
        (own.as_str(), "is already used by"),
        (elsewhere.as_str(), "cannot listen on"),
        (everywhere.as_str(), "is already used by"),
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
        (&shown["value_in_force"], &shown["fixed_reason"]),
        (&json!("\"127.0.0.1:0\""), &json!(null)),
        "{shown}"
    );
    assert!(TcpStream::connect(&free).is_err(), "the change needs a restart");
    server.child.kill().unwrap();
    server.child.wait().unwrap();
    server.child = spawn(&server.dir, server.ports);
    server.until("listening on the new address", || TcpStream::connect(&free).is_ok());
}

#[test]
fn server_stopped_during_a_restart_exits() {
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
fn listener_is_added_and_removed_over_the_api() {
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
        (json!({ "listeners.tcp.lan.bnid": &free }), "unknown key"),
        (json!({ "listeners.tcp.lan.bind": null }), "unknown key"),
        (json!({ "listeners.tcp.lan.path": "/mqtt" }), "unknown key"),
        (json!({ "listeners.udp.lan.bind": &free }), "unknown key"),
        (
            json!({ "listeners.tls.lan.bind": &free, "listeners.tls.lan.cert_file": "/etc/x" }),
            "names a file",
        ),
        (
            json!({ "listeners.tcp.lan.bind": "192.0.2.1:5000" }),
            "cannot listen on",
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
        "the plan omits the listener's defaults: {plan}"
    );
    assert!(
        items
            .iter()
            .all(|item| item["before"].is_null() && item["needs_restart"] == true)
    );
    // The server does not restart with a configuration that cannot start.
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
    assert!(TcpStream::connect(&free).is_ok(), "the change needs a restart");
    server.restart(&token);
    assert!(TcpStream::connect(&free).is_err());
    assert_eq!(server.child.id(), process);
}

#[test]
fn certificate_list_shows_open_listeners() {
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
    assert_eq!(
        shown(&token),
        ["tls.default", "wss.default"],
        "the change needs a restart"
    );
    server.restart(&token);
    let token = server.login();
    assert_eq!(shown(&token), ["tls.default", "tls.lan", "wss.default"]);
    change(&token, json!(null));
    assert_eq!(
        shown(&token),
        ["tls.default", "tls.lan", "wss.default"],
        "the removal needs a restart"
    );
    // The removed listener is still open. It uses a replaced certificate like the other listeners.
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
