//! Tests that files lead to a configuration or to the expected problem. Handshakes are tested by the crates that
//! connect.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::path::PathBuf;

use super::*;

/// Creates a directory with `cert.pem`, `key.pem`, the key of another certificate, and a file without a certificate.
fn files(name: &str) -> PathBuf {
    let directory = std::env::temp_dir().join(format!("tidewire-trust-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let write = |name: &str, text: String| std::fs::write(directory.join(name), text).unwrap();
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    write("cert.pem", made.cert.pem());
    write("key.pem", made.signing_key.serialize_pem());
    write("other.pem", rcgen::KeyPair::generate().unwrap().serialize_pem());
    write("text.pem", "no certificate\n".to_owned());
    directory
}

#[test]
fn problem_names_the_affected_part() {
    let directory = files("wrong");
    let at = |name: &str| Some(directory.join(name));
    let cases = [
        (at("cert.pem"), None, None, None),
        (at("cert.pem"), at("cert.pem"), at("key.pem"), None),
        (at("gone.pem"), None, None, Some((TlsSetting::Ca, "cannot read"))),
        (
            at("text.pem"),
            None,
            None,
            Some((TlsSetting::Ca, "contains no certificate")),
        ),
        (at("cert.pem"), at("cert.pem"), None, Some((TlsSetting::Key, "missing"))),
        (at("cert.pem"), None, at("key.pem"), Some((TlsSetting::Cert, "missing"))),
        (
            at("cert.pem"),
            at("cert.pem"),
            at("text.pem"),
            Some((TlsSetting::Key, "cannot read")),
        ),
        (
            at("cert.pem"),
            at("cert.pem"),
            at("other.pem"),
            Some((TlsSetting::Cert, "does not fit")),
        ),
    ];
    for (ca, cert, key, expected) in cases {
        let client = ClientTls {
            trust: Trust::of(ca.as_deref(), true),
            cert_file: cert.as_deref(),
            key_file: key.as_deref(),
            versions: rustls::ALL_VERSIONS,
        };
        match (client.config(), expected) {
            (Ok(_), None) => {}
            (Err(problem), Some((part, what))) => {
                assert!(
                    problem.part == part && problem.to_string().contains(what),
                    "{client:?}: {problem:?}"
                );
            }
            (result, expected) => panic!("{client:?}: {result:?}, expected {expected:?}"),
        }
    }
    std::fs::remove_dir_all(directory).unwrap();
}

#[test]
fn trust_ignores_the_ca_file_without_verification() {
    let nowhere = Path::new("/nowhere/ca.pem");
    assert!(matches!(Trust::of(Some(nowhere), false), Trust::AnyCertificate));
    assert!(matches!(Trust::of(Some(nowhere), true), Trust::File(_)));
    assert!(matches!(Trust::of(None, true), Trust::System));
}
