//! Certificates over the API: contents, permissions and errors. The binary's tests check the files.

use std::sync::{Arc, Mutex};

use api::{CertificateAdmin, CertificateError, CertificateField, DiskState, ServerCertificate};
use base64ct::{Base64, Encoding};
use net::tls::ClientCertificates;
use serde_json::json;

use super::node::Node;

/// Two listeners with one certificate file.
struct TestBackend {
    chain: Vec<Vec<u8>>,
    calls: Mutex<Vec<String>>,
}

impl CertificateAdmin for TestBackend {
    fn list(&self) -> Vec<ServerCertificate> {
        let one = |listener: &str, key_file: &str, on_disk: DiskState| ServerCertificate {
            listener: listener.into(),
            certificate_file: "/etc/cert.pem".into(),
            key_file: key_file.into(),
            client_certificates: ClientCertificates::Optional,
            is_renewed: false,
            chain: self.chain.clone(),
            on_disk,
        };
        let reason = "gone".into();
        vec![
            one("tls.default", "/etc/key.pem", DiskState::Same),
            one("api", "/etc/api.pem", DiskState::Unusable { reason }),
        ]
    }

    fn replace(&self, listener: &str, certificate_pem: &[u8], key_pem: &[u8]) -> Result<(), CertificateError> {
        let (certificate, key) = (
            str::from_utf8(certificate_pem).unwrap(),
            str::from_utf8(key_pem).unwrap(),
        );
        self.calls
            .lock()
            .unwrap()
            .push(format!("{listener} {certificate} {key}"));
        let reason = "no".to_owned();
        match certificate {
            "good" => Ok(()),
            "linked" => Err(CertificateError::ExternallyManaged { reason }),
            "half" => Err(CertificateError::Workers { reason }),
            "bad key" => Err(CertificateError::Rejected {
                field: CertificateField::Key,
                reason,
            }),
            _ => Err(CertificateError::Unknown),
        }
    }

    fn reload(&self) -> Result<(), CertificateError> {
        Err(CertificateError::Files {
            reason: "api.cert_file: gone".into(),
        })
    }
}

fn kept() -> Arc<TestBackend> {
    let made = rcgen::generate_simple_self_signed(["mqtt.example".to_owned()]).unwrap();
    Arc::new(TestBackend {
        chain: vec![made.cert.der().to_vec()],
        calls: Mutex::default(),
    })
}

#[test]
fn certificates_are_shown_and_replaced_without_keys() {
    let kept = kept();
    let held = kept.clone();
    let node = Node::start_with(1, |config| config.certificates = Some(held)).with_login();
    let shown = node.get("/api/v1/certificates").ok().json();
    let (tls, api) = (&shown["items"][0], &shown["items"][1]);
    assert_eq!(
        (&tls["listener"], &tls["shared_with"]),
        (&json!("tls.default"), &json!(["api"]))
    );
    assert_eq!(
        (&tls["on_disk"], &tls["client_certificates"]),
        (&json!("same"), &json!("optional"))
    );
    assert_eq!((&api["on_disk"], &api["problem"]), (&json!("unusable"), &json!("gone")));
    let certificate = &tls["chain"][0];
    assert_eq!(certificate["names"], json!(["mqtt.example"]));
    assert_eq!(certificate["fingerprint"].as_str().unwrap().len(), 64);
    assert!(certificate["not_before_unix_ms"].as_i64() < certificate["not_after_unix_ms"].as_i64());

    assert_eq!(tls["has_authority"], true);
    let authority = node.get("/api/v1/certificates/tls.default/authority.pem").ok().body;
    let inner: String = authority.lines().filter(|line| !line.starts_with("-----")).collect();
    assert_eq!(Base64::decode_vec(&inner).unwrap(), kept.chain[0]);
    assert!(authority.starts_with("-----BEGIN CERTIFICATE-----\n") && authority.lines().all(|line| line.len() <= 64));
    node.get("/api/v1/certificates/missing/authority.pem").problem(404);

    let put = |certificate: &str| {
        let body = json!({ "certificate": certificate, "key": "SESAME" });
        node.send("PUT", "/api/v1/certificates/tls.default", &body)
    };
    put("good").ok();
    assert_eq!(put("bad key").problem(422)["field"], "key");
    put("linked").problem(409);
    put("missing").problem(404);
    put("half").problem(500);
    node.send("POST", "/api/v1/certificates/reload", &json!(null))
        .problem(409);
    node.send("PUT", "/api/v1/certificates/api", &json!({ "certificate": "good" }))
        .problem(400);
    assert_eq!(kept.calls.lock().unwrap()[0], "tls.default good SESAME");
    let log = node.all_pages("/api/v1/audit", 100);
    assert_eq!(
        log.iter()
            .filter(|entry| entry["operation"] == "replace_certificate")
            .count(),
        6
    );
    assert!(!json!(log).to_string().contains("SESAME"));
}

#[test]
fn viewer_reads_but_cannot_change_certificates() {
    let node = Node::start(1).with_viewer("eve", "only looking");
    assert_eq!(node.get("/api/v1/certificates").ok().json(), json!({ "items": [] }));
    let body = json!({ "certificate": "c", "key": "k" });
    node.send("PUT", "/api/v1/certificates/tls.default", &body).problem(403);
    node.send("POST", "/api/v1/certificates/reload", &json!(null))
        .problem(403);
}
