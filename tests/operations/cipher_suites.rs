//! Cipher suites and TLS versions of listeners, with `openssl s_client`.

use std::net::SocketAddr;
use std::process::{Command, Stdio};

use crate::support::*;

/// Returns the cipher suite of a handshake, or `None` if the server rejects it.
fn handshake(address: SocketAddr, arguments: &[&str]) -> Option<String> {
    let run = Command::new("openssl")
        .args(["s_client", "-connect", &address.to_string()])
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .expect("openssl is installed: dev/setup.sh test");
    let output = String::from_utf8_lossy(&run.stdout).into_owned();
    let line = output.lines().find(|line| line.starts_with("New, "));
    let suite = line
        .and_then(|line| line.split("Cipher is ").nth(1))
        .unwrap_or_default();
    (suite != "(NONE)" && !suite.is_empty()).then(|| suite.to_owned())
}

#[test]
fn only_listed_suites_are_accepted() {
    let [listed, other] = [free_port(), free_port()];
    let made = rcgen::generate_simple_self_signed(["localhost".to_string()]).unwrap();
    let pem = made.cert.pem() + &made.signing_key.serialize_pem();
    let config = format!(
        "[tls]\ncert_file = \"{{dir}}/pem\"\nkey_file = \"{{dir}}/pem\"\n\
         cipher_suites = [\"TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256\", \"TLS_AES_128_GCM_SHA256\"]\n\
         [listeners.tls.default]\nbind = \"{listed}\"\n\
         [listeners.wss.default]\nenabled = false\n\
         [listeners.tls.other]\nbind = \"{other}\"\ncipher_suites = [\"ECDHE-ECDSA-CHACHA20-POLY1305\"]\n"
    );
    let _server = Server::start(&Config::new(config).file("pem", pem));
    let old = |suite: &'static str| ["-tls1_2", "-cipher", suite];
    let new = |suite: &'static str| ["-tls1_3", "-ciphersuites", suite];
    let accepts = |address, arguments: [&str; 3]| {
        let suite = handshake(address, &arguments);
        assert!(suite.as_deref().is_none_or(|suite| suite == arguments[2]), "{suite:?}");
        suite.is_some()
    };
    assert!(accepts(listed, old("ECDHE-ECDSA-AES128-GCM-SHA256")));
    assert!(accepts(listed, new("TLS_AES_128_GCM_SHA256")));
    assert!(!accepts(listed, old("ECDHE-ECDSA-AES256-GCM-SHA384")));
    assert!(!accepts(listed, new("TLS_AES_256_GCM_SHA384")));
    assert!(accepts(other, old("ECDHE-ECDSA-CHACHA20-POLY1305")));
    assert!(
        !accepts(other, new("TLS_AES_128_GCM_SHA256")),
        "no suite of TLS 1.3 is listed"
    );
}

#[test]
fn unusable_lists_are_refused_at_start() {
    let made = rcgen::generate_simple_self_signed(["localhost".to_string()]).unwrap();
    let directory = std::env::temp_dir().join(unique(&format!("tidewire-suites-{}", std::process::id())));
    std::fs::create_dir_all(&directory).unwrap();
    let pem = directory.join("pem");
    std::fs::write(&pem, made.cert.pem() + &made.signing_key.serialize_pem()).unwrap();
    let check = |listener: &str| {
        let config = directory.join("tidewire.toml");
        let pem = pem.display();
        let toml = format!("[tls]\ncert_file = \"{pem}\"\nkey_file = \"{pem}\"\n[listeners.tls.default]\n{listener}\n");
        std::fs::write(&config, toml).unwrap();
        let run = Command::new(env!("CARGO_BIN_EXE_tidewire"))
            .arg("check")
            .arg("--config")
            .arg(&config)
            .output();
        let run = run.unwrap();
        assert!(!run.status.success(), "{listener}");
        format!(
            "{}{}",
            String::from_utf8_lossy(&run.stdout),
            String::from_utf8_lossy(&run.stderr)
        )
    };
    for (listener, expected) in [
        (
            "cipher_suites = [\"RC4-SHA\"]",
            "\"RC4-SHA\" is not a cipher suite that this server has; expected TLS_AES_256_GCM_SHA384",
        ),
        (
            "min_tls_version = \"1.3\"\ncipher_suites = [\"ECDHE-ECDSA-AES128-GCM-SHA256\"]",
            "no cipher suite of the list is one of TLS 1.3",
        ),
        (
            "cipher_suites = [\"ECDHE-RSA-AES128-GCM-SHA256\"]",
            "all cipher suites of the list need an RSA key, but the certificate has an ECDSA key",
        ),
    ] {
        let output = check(listener);
        assert!(output.contains(expected), "{listener}\n{output}");
    }
    std::fs::remove_dir_all(&directory).unwrap();
}
