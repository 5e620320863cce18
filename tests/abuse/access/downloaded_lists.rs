//! Revocation lists that the server downloads. OpenSSL creates them, and a client with a revoked certificate must not
//! connect, whatever happens to the download.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};

use rcgen::DnType;

use super::client_certificates::{Authority, BY_NAME, PROVIDERS, Shown, World, utf8};
use crate::support::api::Api;
use crate::support::*;

/// An HTTP server that sends a list, or answers 404 without one.
struct ListServer {
    address: SocketAddr,
    list: Arc<Mutex<Option<Vec<u8>>>>,
}

impl ListServer {
    fn start() -> ListServer {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let list = Arc::<Mutex<Option<Vec<u8>>>>::default();
        let sent = list.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let mut head = [0; 4096];
                // One packet contains the whole request.
                let _ = stream.read(&mut head);
                let (status, body) = match sent.lock().unwrap().clone() {
                    Some(list) => ("200 OK", list),
                    None => ("404 Not Found", Vec::new()),
                };
                let head = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n", body.len());
                let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&body));
            }
        });
        ListServer { address, list }
    }

    fn send(&self, list: Option<Vec<u8>>) {
        *self.list.lock().unwrap() = list;
    }

    fn option(&self) -> String {
        format!("{BY_NAME}crl_urls = [\"http://{}/ca.crl\"]\n", self.address)
    }
}

/// `openssl ca` with the key of an authority.
struct OpensslAuthority {
    directory: std::path::PathBuf,
}

impl OpensslAuthority {
    fn new(authority: &Authority) -> OpensslAuthority {
        let directory = std::env::temp_dir().join(unique(&format!("tidewire-lists-{}", std::process::id())));
        std::fs::create_dir_all(&directory).unwrap();
        let write = |name: &str, text: &str| std::fs::write(directory.join(name), text).unwrap();
        write("ca.pem", &authority.0.pem());
        write("ca.key", &authority.0.key().serialize_pem());
        write("index.txt", "");
        write("crlnumber", "01\n");
        write(
            "openssl.cnf",
            "[ca]\ndefault_ca = own\n[own]\ndatabase = index.txt\ncrlnumber = crlnumber\ncertificate = ca.pem\n\
             private_key = ca.key\ndefault_md = sha256\n",
        );
        OpensslAuthority { directory }
    }

    fn run(&self, arguments: &[&str]) {
        let run = Command::new("openssl")
            .args(["ca", "-config", "openssl.cnf"])
            .args(arguments)
            .current_dir(&self.directory)
            .output()
            .expect("openssl is installed: dev/setup.sh test");
        assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    }

    fn revoke(&self, shown: &Shown) {
        std::fs::write(self.directory.join("revoked.pem"), &shown.0).unwrap();
        self.run(&["-revoke", "revoked.pem"]);
    }

    /// Creates a list with the revoked certificates, DER.
    fn list(&self, validity: &[&str]) -> Vec<u8> {
        self.run(&[&["-gencrl", "-out", "list.pem"], validity].concat());
        pem_to_der(&self.directory.join("list.pem"))
    }
}

impl Drop for OpensslAuthority {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

fn pem_to_der(file: &Path) -> Vec<u8> {
    let text = std::fs::read_to_string(file).unwrap();
    let base64: String = text.lines().filter(|line| !line.starts_with('-')).collect();
    <base64ct::Base64 as base64ct::Encoding>::decode_vec(&base64).unwrap()
}

fn issue(authority: &Authority, name: &str, serial: u8) -> Shown {
    authority.issue(|params| {
        params.distinguished_name.push(DnType::CommonName, utf8(name));
        params.serial_number = Some(vec![serial].into());
    })
}

fn is_admitted(world: &World, shown: &Shown, name: &str) -> bool {
    world.is_known_as(shown, name, "c", &["-i", "c"])
}

#[test]
fn revoked_certificates_are_refused_by_a_downloaded_list() {
    let (authority, http) = (Authority::new(), ListServer::start());
    let openssl = OpensslAuthority::new(&authority);
    let (bad, good) = (issue(&authority, "bad", 1), issue(&authority, "good", 2));
    openssl.revoke(&bad);
    let listener = format!("{}[tls.crl]\nrefresh_interval = \"1s\"\n", http.option());
    let mut world = World::new(&authority, PROVIDERS, &listener);
    // Without a list, no client can connect.
    assert!(!is_admitted(&world, &good, "good") && !is_admitted(&world, &bad, "bad"));
    let refused = world.refused();
    assert!(refused.contains("no revocation list"), "{refused}");
    let api = Api::of(&world.server);
    world.server.wait_until("an alarm", |_| {
        let alarms = api.get("/api/v1/alarms").to_string();
        alarms.contains("crl:http://") && alarms.contains("404 Not Found") && alarms.contains("No list is stored")
    });
    let (_, metrics) = world.server.http_get("/metrics");
    let failures = format!(
        "tidewire_certificates_list_failures_total{{url=\"http://{}/ca.crl\"}}",
        http.address
    );
    assert!(metrics.contains(&failures), "{metrics}");

    http.send(Some(openssl.list(&["-crldays", "1"])));
    world
        .server
        .wait_until("the list", |_| is_admitted(&world, &good, "good"));
    assert!(!is_admitted(&world, &bad, "bad"));

    // A client that connected before is not asked again; a new connection is.
    openssl.revoke(&good);
    http.send(Some(openssl.list(&["-crldays", "1"])));
    world
        .server
        .wait_until("the next list", |_| !is_admitted(&world, &good, "good"));

    // The stored list applies after a restart, also if the server of the list is down.
    let third = issue(&authority, "third", 3);
    http.send(None);
    world.server.kill();
    world.server.spawn_again();
    world.server.wait_until_ready();
    assert!(is_admitted(&world, &third, "third") && !is_admitted(&world, &good, "good"));
}

#[test]
fn expired_list_denies_unless_it_is_allowed() {
    let (authority, http) = (Authority::new(), ListServer::start());
    let openssl = OpensslAuthority::new(&authority);
    let (bad, good) = (issue(&authority, "bad", 1), issue(&authority, "good", 2));
    openssl.revoke(&bad);
    let validity = [
        "-crl_lastupdate",
        "20200101000000Z",
        "-crl_nextupdate",
        "20210101000000Z",
    ];
    http.send(Some(openssl.list(&validity)));
    for (missing, is_allowed) in [("deny", false), ("allow", true)] {
        let listener = format!("{}[tls.crl]\nmissing = \"{missing}\"\n", http.option());
        let world = World::new(&authority, PROVIDERS, &listener);
        let api = Api::of(&world.server);
        world.server.wait_until("an alarm", |_| {
            let alarms = api.get("/api/v1/alarms").to_string();
            alarms.contains("the list has expired at 2021-01-01")
        });
        assert_eq!(is_admitted(&world, &good, "good"), is_allowed, "{missing}");
        assert!(!is_admitted(&world, &bad, "bad"), "{missing}");
    }
}
