//! Certificates from Pebble: challenges, renewal, restarts.

use std::fs;
use std::io::Read;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use certificates::acme::ChallengeKind;
use net::certificate::describe;
use net::tls::{TlsFiles, server_config};
use rustls::RootCertStore;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};

use crate::pebble::{Client, Pebble};
use crate::support::Directory;

fn chain(pem: &str) -> Vec<CertificateDer<'static>> {
    CertificateDer::pem_slice_iter(pem.as_bytes())
        .collect::<Result<_, _>>()
        .unwrap()
}

/// Verifies the chain as a client does.
fn verify(pebble: &Pebble, pem: &str, domain: &'static str) {
    let mut roots = RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_slice(&pebble.root()).unwrap())
        .unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = WebPkiServerVerifier::builder_with_provider(roots.into(), provider)
        .build()
        .unwrap();
    let chain = chain(pem);
    // The clock of the verification is inside the short lifetime.
    let begin = describe(&chain[0]).unwrap().not_before_unix_s as u64 + 1;
    let now = UnixTime::since_unix_epoch(std::time::Duration::from_secs(begin));
    let name = ServerName::try_from(domain).unwrap();
    verifier
        .verify_server_cert(&chain[0], &chain[1..], &name, &[], now)
        .unwrap();
}

pub fn account_file(files: &Path) -> PathBuf {
    let mut entries = fs::read_dir(files).unwrap().map(|entry| entry.unwrap().path());
    let is_account = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_string_lossy();
        name.starts_with("account-") && name.ends_with(".json")
    };
    entries.find(is_account).expect("an account file")
}

#[test]
fn http_01_certificate_is_obtained_and_renewed() {
    let (pebble, directory) = (Pebble::shared(), Directory::new());
    let files = directory.path().join("acme");
    let _port = pebble.http();
    let client = Client::start(pebble.config(&files, &["mqtt.example", "api.example"]));
    let first = client.issued(1).remove(0);
    verify(&pebble, &first, "mqtt.example");
    verify(&pebble, &first, "api.example");
    let described = describe(&chain(&first)[0]).unwrap();
    assert_eq!(client.status.get().expires_at_unix_s, Some(described.not_after_unix_s));
    let account = fs::read_to_string(account_file(&files)).unwrap();
    let certificate = files.join("certificate.pem");
    for file in [&certificate, &account_file(&files)] {
        let mode = fs::metadata(file).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o600, "{}", file.display());
    }
    let usable = TlsFiles {
        certificate: certificate.clone(),
        key: certificate,
        ..TlsFiles::default()
    };
    server_config(&usable).unwrap();

    let second = client.issued(2).remove(1);
    let renewed = describe(&chain(&second)[0]).unwrap();
    assert_ne!(renewed.serial, described.serial);
    let pause_s = renewed.not_before_unix_s - described.not_before_unix_s;
    let lifetime_s = described.not_after_unix_s - described.not_before_unix_s;
    assert!(
        pause_s >= lifetime_s * 2 / 3,
        "renewed after {pause_s} of {lifetime_s} s"
    );
    drop(client);

    // A restart keeps the account, whose file has not changed.
    let client = Client::start(pebble.config(&files, &["mqtt.example", "api.example"]));
    client.issued(1);
    assert_eq!(fs::read_to_string(account_file(&files)).unwrap(), account);
    drop(client);

    // Other domains need a new certificate at once, other contacts a request.
    let mut config = pebble.config(&files, &["other.example"]);
    config.contact = vec!["mailto:other@example.org".to_owned()];
    let client = Client::start(config);
    let issued = client.issued(1).remove(0);
    assert_eq!(describe(&chain(&issued)[0]).unwrap().names, ["other.example"]);
    assert!(
        fs::read_to_string(account_file(&files))
            .unwrap()
            .contains("other@example.org")
    );
}

#[test]
fn tls_alpn_01_certificate_is_obtained() {
    let (pebble, directory) = (Pebble::shared(), Directory::new());
    let mut config = pebble.config(directory.path(), &["alpn.example", "second.example"]);
    config.challenge = ChallengeKind::TlsAlpn01;
    config.bind.set_port(pebble.tls_port);
    let client = Client::start(config);
    let issued = client.issued(1).remove(0);
    verify(&pebble, &issued, "alpn.example");
    verify(&pebble, &issued, "second.example");
}

#[test]
fn restart_in_the_middle_of_an_order_obtains_a_certificate() {
    const DOMAIN: &str = "middle.example";
    let (pebble, directory) = (Pebble::shared(), Directory::new());
    let _port = pebble.http();
    // The challenge arrives here, and is not answered.
    pebble.resolve(DOMAIN, "127.0.0.3");
    let silent = TcpListener::bind(("127.0.0.3", pebble.http_port)).unwrap();
    let client = Client::start(pebble.config(directory.path(), &[DOMAIN]));
    let (mut challenge, _) = silent.accept().unwrap();
    let mut request = [0; 27];
    challenge.read_exact(&mut request).unwrap();
    assert_eq!(&request, b"GET /.well-known/acme-chall");
    drop(client);
    drop((challenge, silent));
    pebble.resolve(DOMAIN, "127.0.0.1");
    let client = Client::start(pebble.config(directory.path(), &[DOMAIN]));
    verify(&pebble, &client.issued(1)[0], DOMAIN);
}

#[test]
fn damaged_files_are_reported() {
    let (pebble, directory) = (Pebble::shared(), Directory::new());
    let _port = pebble.http();
    let files = directory.path();
    let client = Client::start(pebble.config(files, &["damaged.example"]));
    client.issued(1);
    drop(client);

    // A new account could exceed limits of the authority, so a damaged one is never replaced.
    let account = account_file(files);
    let good = fs::read(&account).unwrap();
    let certificate = files.join("certificate.pem");
    fs::remove_file(&certificate).unwrap();
    for text in ["", "{\"contact\": [], \"credentials\": \"secret\"}"] {
        fs::write(&account, text).unwrap();
        let client = Client::start(pebble.config(files, &["damaged.example"]));
        let error = client.error("damaged");
        assert!(error.contains(&account.display().to_string()), "{error}");
        assert!(
            error.contains("restore the file from a backup") && !error.contains("secret"),
            "{error}"
        );
        assert_eq!(fs::read_to_string(&account).unwrap(), text);
    }

    // A damaged certificate is replaced.
    fs::write(&account, good).unwrap();
    fs::write(&certificate, "-----BEGIN nothing").unwrap();
    certificates::acme::discard_damaged(files).unwrap();
    assert!(!certificate.exists());
    // An administrator does not want to wait.
    fs::remove_file(files.join("attempt.json")).unwrap();
    let client = Client::start(pebble.config(files, &["damaged.example"]));
    verify(&pebble, &client.issued(1)[0], "damaged.example");
}
