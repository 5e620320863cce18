//! Devices authenticate with client certificates over a TLS listener. The tests generate all certificates.

use std::process::Command;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair};
use serde_json::{Value as Json, json};

use super::rest::Rest;
use crate::support::*;

/// Certificate authority that issues the server certificate and the device certificates.
struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    fn new() -> Authority {
        let mut params = CertificateParams::new(Vec::<String>::new()).expect("no names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        Authority(CertifiedIssuer::self_signed(params, key).expect("a certificate"))
    }

    /// Returns the certificate and its key in PEM format.
    fn issue(&self, name: &str, usage: ExtendedKeyUsagePurpose) -> (String, String) {
        let mut params = CertificateParams::new(vec![name.to_owned()]).expect("a name");
        params.extended_key_usages = vec![usage];
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.0).expect("a certificate");
        (certificate.pem(), key.serialize_pem())
    }
}

struct World {
    server: Server,
    rest: Rest,
    port: u16,
}

impl World {
    fn new(authority: &Authority) -> World {
        let bind = free_port();
        let (certificate, key) = authority.issue("127.0.0.1", ExtendedKeyUsagePurpose::ServerAuth);
        let toml = format!(
            "[platform]\nenabled = true\ndemo = true\n[listeners.tls.devices]\nbind = \"{bind}\"\ncert_file = \"{{dir}}/cert.pem\"\n\
             key_file = \"{{dir}}/key.pem\"\nca_file = \"{{dir}}/ca.pem\"\nverify_client = \"optional\"\n"
        );
        let config = Config::new(toml)
            .file("cert.pem", certificate)
            .file("key.pem", key)
            .file("ca.pem", authority.0.pem());
        let server = Server::start(&config);
        let rest = Rest::login(&server);
        World {
            server,
            rest,
            port: bind.port(),
        }
    }

    /// Creates a device whose credentials are this certificate. Returns the device identifier.
    fn device(&self, name: &str, certificate: &str) -> String {
        let credentials = json!({"credentialsType": "X509_CERTIFICATE", "credentialsValue": certificate});
        let device = json!({"name": name, "type": "default"});
        let body = json!({"device": device, "credentials": credentials});
        let device = self.rest.ok("POST", "/api/device-with-credentials", &body);
        device["id"]["id"].as_str().expect("an identifier").to_owned()
    }

    /// Returns whether the server accepts a message from a client with this certificate.
    fn publish(&self, shown: Option<&(String, String)>, more: &[&str], body: &str) -> bool {
        let dir = self.server.dir();
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidewire"));
        command
            .args([
                "pub",
                "--host",
                "127.0.0.1",
                "--port",
                &self.port.to_string(),
                "--qos",
                "1",
            ])
            .args(["--topic", "v1/devices/me/telemetry", "--message", body])
            .arg("--cafile")
            .arg(dir.join("ca.pem"))
            .args(more);
        if let Some((certificate, key)) = shown {
            std::fs::write(dir.join("shown.pem"), certificate).expect("the directory is writable");
            std::fs::write(dir.join("shown.key"), key).expect("the directory is writable");
            command.arg("--cert").arg(dir.join("shown.pem"));
            command.arg("--key").arg(dir.join("shown.key"));
        }
        let done = command.output().expect("the program runs");
        println!(
            "{}{}",
            String::from_utf8_lossy(&done.stdout),
            String::from_utf8_lossy(&done.stderr)
        );
        done.status.success()
    }

    fn wait_for_value(&self, id: &str, key: &str, value: &str) {
        let path = format!("/api/plugins/telemetry/DEVICE/{id}/values/timeseries?keys={key}");
        self.rest
            .wait_for(&self.server, &path, |latest| latest[key][0]["value"] == value);
    }
}

#[test]
fn device_is_identified_by_its_certificate() {
    let authority = Authority::new();
    let world = World::new(&authority);
    let client = |name: &str| authority.issue(name, ExtendedKeyUsagePurpose::ClientAuth);
    let (first, second, unknown) = (client("first"), client("second"), client("unknown"));
    let one = world.device("One", &first.0);
    let two = world.device("Two", &second.0);
    let with_token = world.rest.device("Three", "TOKEN");
    assert!(world.publish(Some(&first), &[], "{\"a\":1}"));
    world.wait_for_value(&one, "a", "1");
    // The certificate takes precedence over the user name.
    assert!(world.publish(Some(&second), &["--username", "TOKEN"], "{\"a\":2}"));
    world.wait_for_value(&two, "a", "2");
    // With a valid certificate that belongs to no device, the token identifies the device.
    assert!(world.publish(Some(&unknown), &["--username", "TOKEN"], "{\"a\":3}"));
    world.wait_for_value(&with_token, "a", "3");
    assert!(!world.publish(Some(&unknown), &["--username", "NO-TOKEN"], "{\"a\":4}"));
    assert!(!world.publish(None, &["--username", "NO-TOKEN"], "{\"a\":4}"));
    // The listener does not trust the authority of this certificate.
    let stranger = Authority::new().issue("first", ExtendedKeyUsagePurpose::ClientAuth);
    assert!(!world.publish(Some(&stranger), &["--username", "TOKEN"], "{\"a\":4}"));
    // Duplicate credentials and an invalid certificate are rejected.
    let again = json!({"device": {"name": "Four"}, "credentials": {"credentialsType": "X509_CERTIFICATE", "credentialsValue": first.0}});
    let (status, refused) = world.rest.call("POST", "/api/device-with-credentials", &again);
    assert_eq!((status, &refused["errorCode"]), (400, &json!(31)), "{refused}");

    // After the credentials change, the old certificate is rejected.
    let third = client("third");
    let path = format!("/api/device/{one}/credentials");
    let mut credentials = world.rest.ok("GET", &path, &Json::Null);
    assert_eq!(credentials["credentialsType"], "X509_CERTIFICATE");
    credentials["credentialsValue"] = json!(third.0);
    world.rest.ok("POST", "/api/device/credentials", &credentials);
    assert!(world.publish(Some(&third), &[], "{\"a\":5}"));
    world.wait_for_value(&one, "a", "5");
    assert!(!world.publish(Some(&first), &["--username", "NO-TOKEN"], "{\"a\":6}"));
}
