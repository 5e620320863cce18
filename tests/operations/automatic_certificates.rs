//! Automatic certificates with the real authority Pebble and the real binary: the first certificate, its renewal while
//! clients are connected, and the checks of the options.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::sync::{Arc, Condvar, Mutex, mpsc};

use net::certificate::describe;
use rustls::pki_types::{CertificateDer, ServerName, pem::PemObject};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use crate::rules::real_servers::Started;
use crate::support::api::Api;
use crate::support::*;

const DOMAIN: &str = "mqtt.example.org";
/// The certificate is renewed after 4 s.
const VALIDITY_S: u32 = 6;

/// The port on which the authority looks for the answer: like a router, it forwards connections to the server. It holds
/// them until the test opens it.
struct Forwarder {
    is_open: Arc<(Mutex<bool>, Condvar)>,
    arrived: mpsc::Receiver<()>,
}

impl Forwarder {
    fn start(from: SocketAddr, to: SocketAddr) -> Forwarder {
        let listener = TcpListener::bind(from).unwrap();
        let is_open = Arc::<(Mutex<bool>, Condvar)>::default();
        let (arrive, arrived) = mpsc::channel();
        let gate = is_open.clone();
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let (client, gate) = (client.unwrap(), gate.clone());
                let _ = arrive.send(());
                std::thread::spawn(move || {
                    let closed = gate.0.lock().unwrap();
                    drop(gate.1.wait_while(closed, |is_open| !*is_open).unwrap());
                    forward(client, to);
                });
            }
        });
        Forwarder { is_open, arrived }
    }

    /// Waits for a connection.
    fn wait(&self) {
        let arrived = self.arrived.recv_timeout(PATIENCE);
        arrived.expect("the authority checks the domain");
    }

    fn open(&self) {
        *self.is_open.0.lock().unwrap() = true;
        self.is_open.1.notify_all();
    }
}

fn forward(mut client: TcpStream, to: SocketAddr) {
    let mut server = TcpStream::connect(to).unwrap();
    let (mut request, mut back) = (client.try_clone().unwrap(), server.try_clone().unwrap());
    std::thread::spawn(move || io::copy(&mut request, &mut server));
    // Either side may end the connection.
    let _ = io::copy(&mut back, &mut client);
}

/// A TLS connection, or why there is none: no certificate, or one that is about to be renewed and has expired.
fn connect(
    address: SocketAddr,
    root: &CertificateDer<'static>,
) -> io::Result<StreamOwned<ClientConnection, TcpStream>> {
    let mut roots = RootCertStore::empty();
    roots.add(root.clone()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from(DOMAIN).unwrap();
    let mut tls = ClientConnection::new(Arc::new(config), name).unwrap();
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    tls.complete_io(&mut stream)?;
    Ok(StreamOwned::new(tls, stream))
}

fn serial(stream: &StreamOwned<ClientConnection, TcpStream>) -> String {
    describe(&stream.conn.peer_certificates().unwrap()[0]).unwrap().serial
}

/// Fetches from the management port of the authority, whose certificate curl does not know.
fn root(pebble: &Started) -> CertificateDer<'static> {
    let environment = pebble.file("env");
    let url = environment
        .lines()
        .find_map(|line| line.strip_prefix("TIDEWIRE_PEBBLE_MANAGEMENT="))
        .unwrap();
    let run = Command::new("curl")
        .args(["-sSk", &format!("{url}/roots/0")])
        .output()
        .unwrap();
    assert!(run.status.success(), "{url}: {run:?}");
    CertificateDer::from_pem_slice(&run.stdout).unwrap()
}

#[test]
fn certificate_is_obtained_and_renewed_while_clients_are_connected() {
    let [mqtts, challenge, outside] = [free_port(), free_port(), free_port()];
    let forwarder = Forwarder::start(outside, challenge);
    let options = [format!("http={}", outside.port()), format!("validity={VALIDITY_S}")];
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    let pebble = Started::new("pebble", &options);
    let root = root(&pebble);
    let config = format!(
        "[tls.acme]\ndomains = [\"{DOMAIN}\"]\nagree_to_terms = true\ncontact = [\"mailto:ops@example.org\"]\n\
         directory = \"{}\"\nhttp_bind = \"{challenge}\"\nca_file = \"{{dir}}/ca.pem\"\n\
         [listeners.tls.default]\nbind = \"{mqtts}\"\n[listeners.wss.default]\nenabled = false\n",
        pebble.address
    );
    let server = Server::start(&Config::new(config).file("ca.pem", pebble.file("ca.pem")));
    let api = Api::of(&server);

    // The server runs without a certificate, and says why TLS clients cannot connect.
    forwarder.wait();
    connect(mqtts, &root).expect_err("there is no certificate");
    server.wait_until("the API lists the reason", |_| {
        let refused = api.get("/api/v1/refused-clients").to_string();
        refused.contains("the server has no certificate yet")
    });
    let listed = api.get("/api/v1/certificates")["items"][0].clone();
    assert_eq!(
        (&listed["chain"], &listed["on_disk"]),
        (&serde_json::json!([]), &"same".into())
    );
    forwarder.open();
    let mut before = None;
    server.wait_until("the certificate", |_| {
        before = connect(mqtts, &root).ok();
        before.is_some()
    });
    let mut before = before.unwrap();
    before.write_all(&Connect::new(V5, "stays").bytes()).unwrap();
    let mut connack = [0; 4];
    before.read_exact(&mut connack).unwrap();
    assert_eq!(connack[0], 0x20);
    let (_, metrics) = server.http_get("/metrics");
    let sample = |name: &str| metrics.lines().any(|line| line.starts_with(name));
    assert!(sample("tidewire_certificates_acme_remaining_seconds "), "{metrics}");
    assert!(sample("tidewire_certificates_acme_failures_total 0"), "{metrics}");
    let (status, problem) = api.call(
        "PUT",
        "/api/v1/certificates/tls.default",
        &serde_json::json!({ "certificate": "x", "key": "y" }),
    );
    assert_eq!(status, 409, "{problem}");

    // The renewal: the open connection stays.
    let first = serial(&before);
    server.wait_until("a new certificate", |_| {
        connect(mqtts, &root).is_ok_and(|stream| serial(&stream) != first)
    });
    before.write_all(&[0xc0, 0]).unwrap();
    let mut rest = Vec::new();
    while !rest.ends_with(&[0xd0, 0]) {
        let mut byte = [0];
        before.read_exact(&mut byte).expect("PINGRESP on the old connection");
        rest.push(byte[0]);
    }
    check_backup(&server);
}

/// A backup and a restored directory contain the account and the certificate, for the user of the server only.
fn check_backup(server: &Server) {
    for arguments in [
        ["backup", "--data-dir", "data", "--to", "copy"],
        ["restore", "--data-dir", "restored", "--from", "copy"],
    ] {
        let run = Command::new(env!("CARGO_BIN_EXE_tidewire"))
            .args(arguments)
            .current_dir(server.dir())
            .output()
            .unwrap();
        let errors = String::from_utf8_lossy(&run.stderr);
        assert!(run.status.success(), "{arguments:?}: {errors}");
    }
    let mode = |path: &std::path::Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    let restored = server.dir().join("restored/acme");
    assert_eq!(mode(&restored), 0o700);
    let mut names = Vec::new();
    for entry in std::fs::read_dir(&restored).unwrap() {
        let entry = entry.unwrap();
        assert_eq!(mode(&entry.path()), 0o600, "{}", entry.path().display());
        names.push(entry.file_name().into_string().unwrap());
    }
    let account = names.iter().find(|name| name.starts_with("account-")).unwrap();
    let read = |directory: &str| std::fs::read(server.dir().join(directory).join(account)).unwrap();
    assert_eq!(read("data/acme"), read("restored/acme"));
    assert!(names.iter().any(|name| name == "certificate.pem"), "{names:?}");
}

#[test]
fn contradicting_options_are_refused() {
    let directory = std::env::temp_dir().join(unique(&format!("tidewire-acme-{}", std::process::id())));
    std::fs::create_dir_all(&directory).unwrap();
    let key = directory.join("eab");
    std::fs::write(&key, "not base64!").unwrap();
    let eab = format!("eab_key_id = \"kid\"\neab_key_file = \"{}\"", key.display());
    let good = "domains = [\"mqtt.example.org\"]\nagree_to_terms = true\n";
    for (toml, expected) in [
        (
            "[tls.acme]\ndomains = [\"mqtt.example.org\"]".to_owned(),
            "tls.acme.agree_to_terms: must be true",
        ),
        (
            "[tls.acme]\nagree_to_terms = true".to_owned(),
            "tls.acme.domains: is missing",
        ),
        (
            "[tls.acme]\nagree_to_terms = true\ndomains = [\"*.example.org\"]".to_owned(),
            "names with * need a challenge by DNS",
        ),
        (
            "[tls.acme]\nagree_to_terms = true\ndomains = [\"192.0.2.1\"]".to_owned(),
            "a certificate for an address is not supported",
        ),
        (
            format!("[tls.acme]\n{good}directory = \"http://ca.example\""),
            "expected a URL with https",
        ),
        (
            format!("[tls.acme]\n{good}contact = [\"ops@example.org\"]"),
            "mailto:ops@example.org",
        ),
        (
            format!("[tls.acme]\n{good}eab_key_id = \"kid\""),
            "an external account has",
        ),
        (
            format!("[tls.acme]\n{good}{eab}"),
            "does not contain a key in base64url",
        ),
        (
            format!("[tls]\ncert_file = \"a\"\n[tls.acme]\n{good}"),
            "excludes `tls.cert_file`",
        ),
        (
            format!("[tls.acme]\n{good}challenge = \"tls-alpn-01\"\n[listeners.wss.default]\nbind = \"0.0.0.0:443\""),
            "is already used by",
        ),
        ("[api]\nacme = true".to_owned(), "set `tls.acme.domains`"),
    ] {
        let file = directory.join("tidewire.toml");
        std::fs::write(&file, &toml).unwrap();
        let run = Command::new(env!("CARGO_BIN_EXE_tidewire"))
            .arg("check")
            .arg("--config")
            .arg(&file)
            .output();
        let run = run.unwrap();
        let output = format!(
            "{}{}",
            String::from_utf8_lossy(&run.stdout),
            String::from_utf8_lossy(&run.stderr)
        );
        assert!(!run.status.success() && output.contains(expected), "{toml}\n{output}");
        assert!(!output.contains("not base64!"), "{output}");
    }
    std::fs::remove_dir_all(&directory).unwrap();
}
