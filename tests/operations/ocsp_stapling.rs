//! OCSP stapling with `openssl ocsp` as the responder and `openssl s_client` as the client.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::api::Api;
use crate::support::*;

/// Entries of the responder's database. OpenSSL requires that their subjects differ, and does not compare them.
pub const GOOD: &str = "V\t21001231000000Z\t\t01\tunknown\t/CN=first\n\
                    V\t21001231000000Z\t\t02\tunknown\t/CN=second\n";
const REVOKED: &str = "R\t21001231000000Z\t261101120000Z\t01\tunknown\t/CN=first\n";

/// How long a slow responder takes. It exceeds `tls.ocsp.timeout`.
const SLOW: Duration = Duration::from_secs(10);

/// An authority with the port of its responder.
pub struct Authority {
    pub directory: PathBuf,
    responder: SocketAddr,
}

impl Authority {
    pub fn new() -> Authority {
        let directory = std::env::temp_dir().join(unique(&format!("tidewire-ocsp-{}", std::process::id())));
        fs::create_dir_all(&directory).unwrap();
        let authority = Authority {
            directory,
            responder: free_port(),
        };
        authority.create_key("ca");
        authority.openssl("req -x509 -new -key ca.key -subj /CN=authority -days 30 -out ca.pem");
        authority
    }

    fn openssl(&self, arguments: &str) {
        let run = Command::new("openssl")
            .args(arguments.split(' '))
            .current_dir(&self.directory)
            .output()
            .expect("openssl is installed: dev/setup.sh test");
        assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    }

    fn create_key(&self, name: &str) {
        self.openssl(&format!(
            "genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out {name}.key"
        ));
    }

    /// Issues a certificate that names the responder. Returns it with the certificate of the authority, and the key.
    pub fn issue(&self, serial: u8) -> (String, String) {
        self.create_key("server");
        let extension = format!("authorityInfoAccess=OCSP;URI:http://{}/\n", self.responder);
        fs::write(self.directory.join("extensions"), extension).unwrap();
        self.openssl("req -new -key server.key -subj /CN=localhost -out server.csr");
        self.openssl(&format!(
            "x509 -req -in server.csr -CA ca.pem -CAkey ca.key -set_serial {serial} -days 30 -extfile extensions \
             -out server.pem"
        ));
        let read = |name: &str| fs::read_to_string(self.directory.join(name)).unwrap();
        (read("server.pem") + &read("ca.pem"), read("server.key"))
    }

    /// Starts the responder with a database.
    pub fn respond(&self, database: &str) -> Responder {
        fs::write(self.directory.join("index.txt"), database).unwrap();
        let arguments = "ocsp -index index.txt -CA ca.pem -rsigner ca.pem -rkey ca.key -ndays 7 -port";
        let child = Command::new("openssl")
            .args(arguments.split(' '))
            .arg(self.responder.port().to_string())
            .current_dir(&self.directory)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        Responder(child.unwrap())
    }
}

impl Drop for Authority {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// A running `openssl ocsp`.
pub struct Responder(Child);

impl Drop for Responder {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A server with stapling on a TLS and a WebSocket listener.
struct World {
    server: Server,
    tls: SocketAddr,
    wss: SocketAddr,
}

impl World {
    fn new(authority: &Authority, listener: &str) -> World {
        let [tls, wss] = [free_port(), free_port()];
        let (certificate, key) = authority.issue(1);
        let toml = format!(
            "[tls]\ncert_file = \"{{dir}}/cert.pem\"\nkey_file = \"{{dir}}/key.pem\"\n\
             [tls.ocsp]\nrefresh_interval = \"1s\"\ntimeout = \"2s\"\n\
             [listeners.tls.default]\nbind = \"{tls}\"\nocsp_stapling = true\n{listener}\
             [listeners.wss.default]\nbind = \"{wss}\"\nocsp_stapling = true\n{listener}"
        );
        let config = Config::new(toml).file("cert.pem", certificate).file("key.pem", key);
        let server = Server::start(&config);
        World { server, tls, wss }
    }

    fn wait_for_alarm(&self, part: &str) {
        let api = Api::of(&self.server);
        self.server.wait_until(part, |_| {
            let alarms = api.get("/api/v1/alarms").to_string();
            alarms.contains("ocsp:/") && alarms.contains(part)
        });
    }

    fn wait_for_staple(&self) {
        self.server.wait_until("a stapled response", |_| is_good(self.tls));
    }

    /// Files of stored responses.
    fn stored(&self) -> usize {
        let directory = self.server.dir().join("data/ocsp");
        fs::read_dir(directory).map_or(0, Iterator::count)
    }
}

/// Returns the output of a client that asks for the status of the certificate.
pub fn handshake(address: SocketAddr, version: &str) -> String {
    let run = Command::new("openssl")
        .args(["s_client", "-status", version, "-connect", &address.to_string()])
        .stdin(Stdio::null())
        .output()
        .expect("openssl is installed: dev/setup.sh test");
    String::from_utf8_lossy(&run.stdout).into_owned()
}

pub fn is_good(address: SocketAddr) -> bool {
    handshake(address, "-tls1_3").contains("Cert Status: good")
}

/// Checks that the handshake succeeds without a response.
#[track_caller]
pub fn assert_not_stapled(address: SocketAddr) {
    let output = handshake(address, "-tls1_3");
    assert!(output.contains("OCSP response: no response sent"), "{output}");
    assert!(output.contains("New, TLSv1.3"), "{output}");
}

#[test]
fn response_is_stapled_when_the_responder_is_up_and_after_a_restart() {
    let authority = Authority::new();
    let mut world = World::new(&authority, "");
    world.wait_for_alarm("cannot connect");
    assert_not_stapled(world.tls);
    let (_, metrics) = world.server.http_get("/metrics");
    assert!(
        metrics.contains("tidewire_certificates_ocsp_failures_total{certificate=\""),
        "{metrics}"
    );

    let responder = authority.respond(GOOD);
    world.wait_for_staple();
    world.server.wait_until("the other listener", |_| is_good(world.wss));
    assert!(handshake(world.tls, "-tls1_2").contains("Cert Status: good"));
    let api = Api::of(&world.server);
    world.server.wait_until("no alarm", |_| {
        let active = api.get("/api/v1/alarms")["active"].to_string();
        !active.contains("ocsp:/")
    });
    let (_, metrics) = world.server.http_get("/metrics");
    assert!(
        metrics.contains("tidewire_certificates_ocsp_remaining_seconds{certificate=\""),
        "{metrics}"
    );

    // The stored response is used at once, also without the responder.
    drop(responder);
    world.server.kill();
    world.server.spawn_again();
    world.server.wait_until_ready();
    assert!(is_good(world.tls) && is_good(world.wss));
}

#[test]
fn response_of_a_revoked_certificate_is_not_stapled() {
    let authority = Authority::new();
    let world = World::new(&authority, "");
    let responder = authority.respond(GOOD);
    world.wait_for_staple();
    assert_eq!(world.stored(), 1);
    drop(responder);
    let _responder = authority.respond(REVOKED);
    world.wait_for_alarm("has revoked the certificate of the server on 2026-11-01");
    // Each worker applies the change when it reads its mailbox.
    world
        .server
        .wait_until("no stapled response", |_| !is_good(world.tls) && !is_good(world.wss));
    assert_not_stapled(world.tls);
    assert_not_stapled(world.wss);
    assert_eq!(world.stored(), 0);
}

#[test]
fn reload_of_another_certificate_drops_its_response() {
    let authority = Authority::new();
    let world = World::new(&authority, "");
    let responder = authority.respond(GOOD);
    world.wait_for_staple();
    drop(responder);
    let (certificate, key) = authority.issue(2);
    fs::write(world.server.dir().join("cert.pem"), certificate).unwrap();
    fs::write(world.server.dir().join("key.pem"), key).unwrap();
    // Before the reload, the previous certificate has its response.
    assert!(is_good(world.tls));
    let api = Api::of(&world.server);
    api.ok("POST", "/api/v1/certificates/reload", &Value::Null);
    world.server.wait_until("the certificate", |_| {
        handshake(world.tls, "-tls1_3").contains("no response sent")
    });
    let _responder = authority.respond(GOOD);
    world.wait_for_staple();
    let output = handshake(world.tls, "-tls1_3");
    assert!(output.contains("Serial Number: 02"), "{output}");
}

/// Reads the head of a request, and the body up to a length that each OCSP request has.
fn read_request(stream: &mut TcpStream) {
    const BODY_MIN: usize = 50;
    let mut request = Vec::new();
    let mut part = [0; 1024];
    let is_complete = |request: &[u8]| {
        let head = request.windows(4).position(|window| window == b"\r\n\r\n");
        head.is_some_and(|head| request.len() >= head + 4 + BODY_MIN)
    };
    while !is_complete(&request) {
        match stream.read(&mut part) {
            Ok(0) | Err(_) => return,
            Ok(length) => request.extend_from_slice(&part[..length]),
        }
    }
}

/// A server that accepts requests and sends this answer after a pause.
fn bad_responder(answer: &'static [u8], after: Duration) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            read_request(&mut stream);
            std::thread::sleep(after);
            let _ = stream.write_all(answer);
        }
    });
    url
}

#[test]
fn garbage_and_slow_answers_do_not_affect_handshakes() {
    let garbage = b"HTTP/1.1 200 OK\r\nContent-Length: 13\r\n\r\n<html></html>";
    let refusal = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n\x30\x03\x0a\x01\x03";
    for (answer, after, reason) in [
        (&garbage[..], Duration::ZERO, "it is not a complete OCSP response"),
        (&refusal[..], Duration::ZERO, "the responder answered tryLater"),
        (&garbage[..], SLOW, "within 2000 ms"),
    ] {
        let authority = Authority::new();
        let url = bad_responder(answer, after);
        let world = World::new(&authority, &format!("ocsp_responder_url = \"{url}\"\n"));
        let begin = Instant::now();
        assert_not_stapled(world.tls);
        assert!(begin.elapsed() < SLOW, "{reason}");
        world.wait_for_alarm(reason);
        assert_not_stapled(world.wss);
        assert_eq!(world.stored(), 0, "{reason}");
    }
}

#[test]
fn unusable_stapling_options_are_refused_at_start() {
    let made = rcgen::generate_simple_self_signed(["localhost".to_string()]).unwrap();
    let directory = std::env::temp_dir().join(unique(&format!("tidewire-ocsp-options-{}", std::process::id())));
    fs::create_dir_all(&directory).unwrap();
    let (pem, config) = (directory.join("pem"), directory.join("tidewire.toml"));
    fs::write(&pem, made.cert.pem() + &made.signing_key.serialize_pem()).unwrap();
    for (options, expected) in [
        (
            "ocsp_stapling = true\nocsp_responder_url = \"ldap://ca.example/\"",
            "expected http://host:port/path",
        ),
        (
            "ocsp_responder_url = \"http://ca.example/\"",
            "needs `ocsp_stapling = true`",
        ),
        (
            "ocsp_stapling = true\nocsp_issuer_file = \"/missing/ca.pem\"",
            "cannot read /missing/ca.pem",
        ),
        (
            concat!(
                "ocsp_stapling = true\nocsp_issuer_file = \"",
                env!("CARGO_MANIFEST_DIR"),
                "/Cargo.toml\""
            ),
            "contains no certificate",
        ),
        ("[api]\nocsp_stapling = true", "needs a certificate"),
    ] {
        let pem = pem.display();
        let toml = format!("[tls]\ncert_file = \"{pem}\"\nkey_file = \"{pem}\"\n[listeners.tls.default]\n{options}\n");
        fs::write(&config, toml).unwrap();
        let run = Command::new(env!("CARGO_BIN_EXE_tidewire"))
            .arg("check")
            .arg("--config")
            .arg(&config)
            .output()
            .expect("the program starts");
        let [stdout, stderr] = [&run.stdout, &run.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
        assert!(!run.status.success(), "{options}");
        assert!(
            stdout.contains(expected) || stderr.contains(expected),
            "{options}: {stdout}{stderr}"
        );
    }
    let _ = fs::remove_dir_all(&directory);
}
