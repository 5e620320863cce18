//! TLS and StartTLS.

use std::fs;
use std::path::PathBuf;

use super::*;

/// A directory with certificates for `127.0.0.1`, and with another authority.
pub struct Certificates(pub PathBuf);

impl Certificates {
    pub fn new() -> Certificates {
        let directory = std::env::temp_dir().join(unique(&format!("tidewire-login-tls-{}", std::process::id())));
        fs::create_dir_all(&directory).expect("the directory for temporary files can be written to");
        let write = |name: &str, text: String| fs::write(directory.join(name), text).expect("a file can be written");
        let authority = || {
            let mut params = rcgen::CertificateParams::new(Vec::new()).expect("no names");
            params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
            params.distinguished_name.push(rcgen::DnType::CommonName, "authority");
            let key = rcgen::KeyPair::generate().expect("a key");
            rcgen::CertifiedIssuer::self_signed(params, key).expect("a certificate")
        };
        let ca = authority();
        let key = rcgen::KeyPair::generate().expect("a key");
        let params = rcgen::CertificateParams::new(vec!["127.0.0.1".to_owned()]).expect("an address");
        let certificate = params.signed_by(&key, &ca).expect("a certificate");
        write("ca.pem", ca.pem());
        write("other.pem", authority().pem());
        write("cert.pem", certificate.pem());
        write("key.pem", key.serialize_pem());
        Certificates(directory)
    }

    pub fn path(&self, name: &str) -> String {
        format!("'{}'", self.0.join(name).display())
    }
}

impl Drop for Certificates {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The same server by another name, with TLS from the beginning.
fn with_tls(address: &str) -> String {
    let (host, port) = address.rsplit_once(':').expect("an address");
    let port: u16 = port.parse().expect("a port");
    format!("ldaps://{host}:{}", port + 1)
}

#[test]
fn connections_are_encrypted_and_servers_verified() {
    let certificates = Certificates::new();
    let directory = Directory {
        server: Started::new("ldap", &[&certificates.0.display().to_string()]),
    };
    let (plain, tls) = (directory.url(), with_tls(&directory.server.address));
    let by_name = plain.replace("127.0.0.1", "localhost");
    let (ca, other) = (certificates.path("ca.pem"), certificates.path("other.pem"));
    // `mqtt` is the only user: no tool without TLS can add one.
    let name = [("user_dn", "'cn=${username},dc=example,dc=org'")];
    let starttls = ("starttls", "true");
    for (url, options, code, reason) in [
        (&tls, &[("ca_file", ca.as_str())][..], ADMITTED, ""),
        (&plain, &[("ca_file", ca.as_str()), starttls], ADMITTED, ""),
        (&tls, &[("verify", "false")], ADMITTED, ""),
        (
            &tls,
            &[("ca_file", other.as_str())],
            UNAVAILABLE,
            "TLS handshake with 127.0.0.1",
        ),
        (
            &plain,
            &[("ca_file", other.as_str()), starttls],
            UNAVAILABLE,
            "TLS handshake with 127.0.0.1",
        ),
        (
            &by_name,
            &[("ca_file", ca.as_str()), starttls],
            UNAVAILABLE,
            "TLS handshake with localhost",
        ),
        (
            &plain,
            &[],
            UNAVAILABLE,
            "the server requires TLS: write ldaps:// or set starttls",
        ),
    ] {
        let server = Server::start(&Config::new(options_of(url, &[&name, options].concat())));
        assert_eq!(
            login(&server, "mqtt", "mqtt"),
            code,
            "{url} {options:?}: {}",
            server.log()
        );
        assert!(server.log().contains(reason), "{url} {options:?}: {}", server.log());
        if code == ADMITTED {
            assert_eq!(login(&server, "mqtt", "guess"), WRONG, "{url} {options:?}");
        }
    }
}

fn options_of(url: &str, more: &[(&str, &str)]) -> String {
    options(&[url.to_owned()], more)
}

#[test]
fn a_server_that_refuses_starttls_is_not_used() {
    let directory = Directory::new();
    directory.add("meter", SECRET, "");
    let server = directory.start(&[("starttls", "true"), ("verify", "false")]);
    assert_eq!(login(&server, "meter", "secret"), UNAVAILABLE);
    assert!(server.log().contains("the server refuses StartTLS"), "{}", server.log());
}

#[test]
fn remote_servers_without_tls_are_logged() {
    let remote = "ldap://ldap.example.org".to_owned();
    let server = Server::start(&Config::new(options(&[remote], &[])));
    let log = server.log();
    assert!(log.contains("ldap://ldap.example.org has no TLS"), "{log}");
    let directory = Directory::new();
    let server = directory.start(&[]);
    assert!(!server.log().contains("has no TLS"), "{}", server.log());
}
