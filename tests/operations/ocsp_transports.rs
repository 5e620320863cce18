//! OCSP stapling on the port of the API and over QUIC. `openssl s_client` of the distributions has no QUIC, so the
//! client of `tidewire pub` receives the response, and OpenSSL verifies it.

use std::fs;
use std::net::{SocketAddr, UdpSocket};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use mqtt_client::{ClientQuic, DATAGRAM_BYTES};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{WebPkiSupportedAlgorithms, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, SignatureScheme};

use super::ocsp_stapling::{Authority, GOOD, assert_not_stapled, handshake, is_good};
use crate::support::*;

/// Without the default TLS listeners, whose ports other servers could have.
const OPTIONS: &str = "[listeners.tls.default]\nenabled = false\n[listeners.wss.default]\nenabled = false\n\
                       [tls]\ncert_file = \"{dir}/cert.pem\"\nkey_file = \"{dir}/key.pem\"\n\
                       [tls.ocsp]\nrefresh_interval = \"1s\"\ntimeout = \"2s\"\n";

/// Longest wait for a datagram. The client also has deadlines.
const TURN: Duration = Duration::from_millis(10);

fn config(authority: &Authority, toml: String) -> Config {
    let (certificate, key) = authority.issue(1);
    Config::new(toml).file("cert.pem", certificate).file("key.pem", key)
}

/// Accepts every certificate, and stores the stapled response.
#[derive(Debug)]
struct StapleReader {
    algorithms: WebPkiSupportedAlgorithms,
    response: Mutex<Vec<u8>>,
}

impl ServerCertVerifier for StapleReader {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        ocsp_response: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        *self.response.lock().unwrap() = ocsp_response.to_vec();
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signed, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signed, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

/// Connects over QUIC. Returns the stapled response, which is empty if there is none.
fn quic_response(address: SocketAddr) -> Vec<u8> {
    let provider = Arc::new(ring::default_provider());
    let reader = Arc::new(StapleReader {
        algorithms: provider.signature_verification_algorithms,
        response: Mutex::default(),
    });
    let tls = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(reader.clone())
        .with_no_client_auth();
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.connect(address).unwrap();
    socket.set_read_timeout(Some(TURN)).unwrap();
    let end = Instant::now() + PATIENCE;
    let mut quic = ClientQuic::new(&tls, "localhost", address, Instant::now()).unwrap();
    let mut datagram = vec![0; DATAGRAM_BYTES];
    while !quic.is_open() {
        assert_eq!(quic.error(), None);
        assert!(Instant::now() < end, "the handshake is not complete");
        send(&mut quic, &socket);
        // Without a datagram, the deadline of the connection decides.
        if let Ok(length) = socket.recv(&mut datagram) {
            quic.receive(Instant::now(), &datagram[..length]);
        }
        if quic.deadline().is_some_and(|deadline| deadline <= Instant::now()) {
            quic.handle_deadline(Instant::now());
        }
    }
    quic.close(Instant::now());
    send(&mut quic, &socket);
    let response = reader.response.lock().unwrap();
    response.clone()
}

fn send(quic: &mut ClientQuic, socket: &UdpSocket) {
    while let Some(datagram) = quic.next_datagram(Instant::now()) {
        socket.send(datagram).unwrap();
    }
}

#[test]
fn quic_listener_staples_the_response() {
    let authority = Authority::new();
    let quic = free_port();
    let listener = format!("[listeners.quic.default]\nbind = \"{quic}\"\nocsp_stapling = true\n");
    let server = Server::start(&config(&authority, format!("{OPTIONS}{listener}")));
    assert_eq!(quic_response(quic), b"");
    let _responder = authority.respond(GOOD);
    let mut response = Vec::new();
    server.wait_until("a stapled response", |_| {
        response = quic_response(quic);
        !response.is_empty()
    });
    fs::write(authority.directory.join("stapled.der"), response).unwrap();
    let arguments = "ocsp -issuer ca.pem -CAfile ca.pem -cert server.pem -no_nonce -respin stapled.der";
    let run = Command::new("openssl")
        .args(arguments.split(' '))
        .current_dir(&authority.directory)
        .output()
        .unwrap();
    let [stdout, stderr] = [&run.stdout, &run.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
    assert!(stdout.contains("server.pem: good"), "{stdout}{stderr}");
    assert!(stderr.contains("Response verify OK"), "{stdout}{stderr}");
}

/// The server starts without a certificate of the API: the harness reads its state over plain HTTP.
#[test]
fn api_staples_the_response_after_a_reload() {
    let authority = Authority::new();
    let server = Server::start(&config(&authority, OPTIONS.to_owned()));
    let api = "[api]\ncert_file = \"{dir}/cert.pem\"\nkey_file = \"{dir}/key.pem\"\nocsp_stapling = true\n";
    let toml = format!("{OPTIONS}{api}").replace("{dir}", &server.dir().display().to_string());
    fs::write(server.dir().join("config"), toml).unwrap();
    let pid = server.pid().to_string();
    assert!(Command::new("kill").args(["-HUP", &pid]).status().unwrap().success());
    server.wait_until("HTTPS", |server| {
        handshake(server.http(), "-tls1_3").contains("New, TLSv1.3")
    });
    assert_not_stapled(server.http());
    let _responder = authority.respond(GOOD);
    server.wait_until("a stapled response", |server| is_good(server.http()));
    assert!(handshake(server.http(), "-tls1_2").contains("Cert Status: good"));
}
