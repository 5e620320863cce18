//! Tests TLS: client certificates, failed handshakes, certificate replacement at run time, and files.

use std::io::Write;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use broker::{AccessControl, AuthOutcome, ClientIdentity, ConnectCredentials, SessionAccess, Transport};
use net::EarlyCloseReason;
use net::tls::{ClientCertificates, TlsError, TlsFiles, server_config};

use super::client::{Client, connect, read_packet, tls};
use super::server::*;

/// Accepts all clients and records the names of their certificates and their addresses.
#[derive(Default)]
pub struct Witness {
    pub seen: Mutex<Vec<(Option<Box<str>>, std::net::IpAddr)>>,
}

impl AccessControl for Witness {
    fn authenticate_now(&self, credentials: &ConnectCredentials) -> Option<AuthOutcome> {
        self.seen
            .lock()
            .unwrap()
            .push((credentials.certificate_common_name.clone(), credentials.address));
        Some(AuthOutcome::Allow(Box::default()))
    }

    fn supports_auth_method(&self, _: &str) -> bool {
        false
    }

    fn session(&self, _: &ClientIdentity) -> Option<Arc<dyn SessionAccess>> {
        None
    }
}

fn handshake_fails(address: SocketAddr, config: Arc<rustls::ClientConfig>) -> bool {
    let mut stream = tls(address, config);
    let sent = stream.write_all(&connect("nobody")).and_then(|()| stream.flush());
    let mut byte = [0];
    sent.is_err() || std::io::Read::read(&mut stream, &mut byte).is_err()
}

#[test]
fn client_certificate_name_reaches_authentication() {
    let witness = Arc::new(Witness::default());
    let mut options = options(4);
    options.access = witness.clone();
    let mutual = options.authority.mutual_config();
    options.listener(Transport::Tls).tls = Some(mutual.clone());
    options.listener(Transport::SecureWebSocket).tls = Some(mutual);
    let running = options.start();
    let authority = &running.authority;
    let address = running.address(Transport::Tls);
    for n in 0..6 {
        let name = format!("meter-{n}");
        let config = authority.client_config_as(authority, &name);
        Client::connect(tls(address, config), &name).ping();
        assert_eq!(
            witness.seen.lock().unwrap().pop().unwrap().0.as_deref(),
            Some(name.as_str())
        );
    }
    assert!(handshake_fails(address, authority.client_config()), "no certificate");
    let stranger = authority.client_config_as(&Authority::new(), "meter-1");
    assert!(handshake_fails(address, stranger), "a certificate of another authority");
    eventually("failures are counted", || {
        running.refused(Transport::Tls, EarlyCloseReason::TlsHandshake) == 2
    });
    assert!(witness.seen.lock().unwrap().is_empty());
}

#[test]
fn garbage_on_a_tls_port_is_a_counted_failure() {
    let running = start(2);
    let mut stream = super::client::tcp(running.address(Transport::Tls));
    stream.write_all(&connect("plain")).unwrap();
    let answer = super::client::read_to_close(&mut stream);
    assert!(answer.is_empty() || answer[0] == 0x15, "an alert at most: {answer:?}");
    assert_eq!(running.handle.listeners()[1].tls_handshake_failures(), 1);
}

#[test]
fn new_certificate_applies_to_new_connections_only() {
    let running = start(2);
    let address = running.address(Transport::Tls);
    let mut old = Client::connect(tls(address, running.authority.client_config()), "old");
    let next = Authority::new();
    running.handle.reload_tls(1, next.server_config("localhost")).unwrap();
    // Workers read their mailbox in order, so a worker that answers has the new certificate.
    running.handle.call_all(super::client::PATIENCE, |_, _| ()).unwrap();
    Client::connect(tls(address, next.client_config()), "new").ping();
    assert!(
        handshake_fails(address, running.authority.client_config()),
        "the old authority does not verify the new certificate"
    );
    old.ping();
}

#[test]
fn configuration_is_created_from_pem_files() {
    let directory = std::env::temp_dir().join(format!("tidewire-net-tls-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let authority = Authority::new();
    let (_, _, certificate, key) = authority.issue("localhost");
    let path = |name: &str, text: &str| {
        let path = directory.join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let files = TlsFiles {
        certificate: path("certificate.pem", &certificate),
        key: path("key.pem", &key),
        client_authorities: Some(path("authorities.pem", &authority.pem())),
        client_certificates: ClientCertificates::Required,
        ..TlsFiles::default()
    };
    let mut options = options(1);
    options.listener(Transport::Tls).tls = Some(server_config(&files).unwrap());
    let running = options.start();
    let config = authority.client_config_as(&authority, "meter");
    let mut stream = tls(running.address(Transport::Tls), config);
    stream.write_all(&connect("meter")).unwrap();
    assert_eq!(read_packet(&mut stream).unwrap().first, 0x20);

    let broken = |change: &dyn Fn(&mut TlsFiles)| {
        let mut files = files.clone();
        change(&mut files);
        server_config(&files).unwrap_err()
    };
    let missing = directory.join("missing.pem");
    assert!(matches!(
        broken(&|files| files.key = missing.clone()),
        TlsError::File { .. }
    ));
    assert!(matches!(
        broken(&|files| files.certificate = files.key.clone()),
        TlsError::NoCertificate { .. }
    ));
    assert!(matches!(
        broken(&|files| files.client_authorities = None),
        TlsError::NoAuthorities
    ));
    let (.., other_key) = authority.issue("other");
    let other_key = path("other.pem", &other_key);
    assert!(matches!(
        broken(&|files| files.key = other_key.clone()),
        TlsError::KeyMismatch { path, .. } if path == other_key
    ));
    std::fs::remove_dir_all(&directory).unwrap();
}
