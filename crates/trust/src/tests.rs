//! Files in, a configuration or the one thing that is wrong out. That handshakes succeed and fail as they should is for the tests of those
//! who connect.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::path::PathBuf;

use super::*;

/// A directory with `cert.pem`, `key.pem`, the key of another one, and a file that is no certificate.
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
fn what_is_wrong_is_told_with_its_part() {
    let directory = files("wrong");
    let at = |name: &str| Some(directory.join(name));
    let cases = [
        (at("cert.pem"), None, None, None),
        (at("cert.pem"), at("cert.pem"), at("key.pem"), None),
        (at("gone.pem"), None, None, Some((Part::Ca, "cannot read"))),
        (at("text.pem"), None, None, Some((Part::Ca, "holds no certificate"))),
        (at("cert.pem"), at("cert.pem"), None, Some((Part::Key, "missing"))),
        (at("cert.pem"), None, at("key.pem"), Some((Part::Cert, "missing"))),
        (
            at("cert.pem"),
            at("cert.pem"),
            at("text.pem"),
            Some((Part::Key, "cannot read")),
        ),
        (
            at("cert.pem"),
            at("cert.pem"),
            at("other.pem"),
            Some((Part::Cert, "does not fit")),
        ),
    ];
    for (ca, cert, key, expected) in cases {
        let client = Client {
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
fn whoever_trusts_anybody_reads_no_file() {
    let nowhere = Path::new("/nowhere/ca.pem");
    assert!(matches!(Trust::of(Some(nowhere), false), Trust::Anybody));
    assert!(matches!(Trust::of(Some(nowhere), true), Trust::File(_)));
    assert!(matches!(Trust::of(None, true), Trust::System));
}
