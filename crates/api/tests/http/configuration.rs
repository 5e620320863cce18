//! The configuration over the API: shown, checked, changed, rejected. The binary's tests check the effects of changes.

use std::io::Write;
use std::net::TcpStream;
use std::sync::{Arc, Barrier, Mutex};
use std::time::Duration;

use api::{ConfigAdmin, ConfigChangeError, ConfigChanges, ConfigDifference, ConfigValue};
use serde_json::{Value, json};

use super::node::Node;

struct TestBackend {
    applied: Mutex<Vec<ConfigChanges>>,
    begun: Barrier,
}

impl Default for TestBackend {
    fn default() -> TestBackend {
        TestBackend {
            applied: Mutex::default(),
            begun: Barrier::new(2),
        }
    }
}

fn value(key: &str, value: &str) -> ConfigValue {
    ConfigValue {
        key: key.into(),
        value: value.into(),
        origin: "default".into(),
        is_default: true,
        is_pinned: false,
        needs_restart: false,
        description: "Highest QoS.".into(),
        type_name: "QoS".into(),
        choices: vec!["0".into(), "1".into(), "2".into()],
        fixed_reason: None,
        is_runtime: false,
        value_in_force: None,
    }
}

impl ConfigAdmin for TestBackend {
    fn check_access_options(&self, options: &str) -> Result<Vec<(String, String)>, ConfigChangeError> {
        match options {
            "fine" => Ok(vec![("access.http.url".to_owned(), "--set".to_owned())]),
            _ => Err(ConfigChangeError::Rejected(vec![
                ("access.http.url".to_owned(), "is empty".to_owned()),
                (String::new(), "line 1: no".to_owned()),
            ])),
        }
    }

    fn plan(&self, changes: &ConfigChanges) -> Result<Vec<ConfigDifference>, ConfigChangeError> {
        let reason = "no".to_owned();
        if changes.contains_key("files") {
            return Err(ConfigChangeError::Files { reason });
        }
        if changes.contains_key("workers") {
            return Err(ConfigChangeError::Workers { reason });
        }
        let wrong = |key: &&String| !key.starts_with("mqtt.");
        let errors: Vec<_> = changes
            .keys()
            .filter(wrong)
            .map(|key| (key.clone(), "is unknown".to_owned()))
            .collect();
        if !errors.is_empty() {
            return Err(ConfigChangeError::Rejected(errors));
        }
        let difference = |(key, after): (&String, &Option<String>)| ConfigDifference {
            key: key.clone(),
            before: Some("2".into()),
            after: after.clone(),
            origin: "runtime.toml:2".into(),
            is_requested: true,
            needs_restart: false,
        };
        Ok(changes.iter().map(difference).collect())
    }

    fn apply(
        &self,
        changes: &ConfigChanges,
        tell: &dyn Fn(Vec<ConfigValue>),
    ) -> Result<Vec<ConfigDifference>, ConfigChangeError> {
        let planned = self.plan(changes)?;
        if changes.contains_key("mqtt.slow") {
            // The test knows that the change has started, and lets it continue.
            self.begun.wait();
            self.begun.wait();
        }
        self.applied.lock().unwrap().push(changes.clone());
        tell(vec![value("mqtt.max_qos", "1")]);
        if changes.contains_key("mqtt.late") {
            let reason = "a worker does not answer".to_owned();
            return Err(ConfigChangeError::Workers { reason });
        }
        Ok(planned)
    }

    fn restart(&self) -> Result<(), ConfigChangeError> {
        let reason = "listeners.tcp.default.bind: it is taken".to_owned();
        Err(ConfigChangeError::Files { reason })
    }
}

#[test]
fn change_is_checked_applied_and_audited() {
    let kept = Arc::new(TestBackend::default());
    let admin = kept.clone();
    let node = Node::start_with(1, |config| config.configuration = Some(admin)).with_login();
    let change = json!({ "changes": { "mqtt.max_qos": "1" } });
    let tried = node.send("POST", "/api/v1/configuration/check", &change).ok().json();
    assert_eq!(
        (&tried["items"][0]["before"], &tried["items"][0]["after"]),
        (&json!("2"), &json!("1"))
    );
    assert!(kept.applied.lock().unwrap().is_empty());
    assert_eq!(node.get("/api/v1/configuration").ok().json(), json!([]));
    assert_eq!(node.send("PUT", "/api/v1/configuration", &change).ok().json(), tried);
    assert_eq!(kept.applied.lock().unwrap().len(), 1);
    let shown = node.get("/api/v1/configuration").ok().json();
    assert_eq!(
        (&shown[0]["value"], &shown[0]["fixed_reason"]),
        (&json!("1"), &Value::Null)
    );
    let log = node.all_pages("/api/v1/audit?operation=change_configuration", 10);
    assert_eq!((log.len(), &log[0]["body"]), (1, &change));
    assert!(
        node.all_pages("/api/v1/audit?operation=check_configuration", 10)
            .is_empty()
    );
}

#[test]
fn change_is_audited_after_the_client_disconnects() {
    let kept = Arc::new(TestBackend::default());
    let admin = kept.clone();
    let node = Node::start_with(1, |config| config.configuration = Some(admin)).with_login();
    let body = json!({ "changes": { "mqtt.slow": "1" } }).to_string();
    let mut stream = TcpStream::connect(node.address).unwrap();
    write!(
        stream,
        "PUT /api/v1/configuration HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {}\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n{body}",
        node.token,
        body.len()
    )
    .unwrap();
    kept.begun.wait();
    drop(stream);
    // Gives the server time to notice the disconnection. The test does not depend on it.
    std::thread::sleep(Duration::from_millis(100));
    kept.begun.wait();
    let entries = || node.all_pages("/api/v1/audit?operation=change_configuration", 10);
    node.wait_for("the entry", || entries().len() == 1);
    assert_eq!(entries()[0]["status"], 200);
    assert_eq!(kept.applied.lock().unwrap().len(), 1);
}

#[test]
fn failing_restart_is_rejected_with_its_reason() {
    let node = Node::start_with(1, |config| {
        config.configuration = Some(Arc::new(TestBackend::default()))
    })
    .with_login();
    let problem = node.send("POST", "/api/v1/restart", &json!(null)).problem(409);
    assert!(problem["detail"].as_str().unwrap().contains("it is taken"), "{problem}");
}

#[test]
fn partly_applied_configuration_is_shown() {
    let node = Node::start_with(1, |config| {
        config.configuration = Some(Arc::new(TestBackend::default()))
    })
    .with_login();
    let change = json!({ "changes": { "mqtt.late": "1" } });
    node.send("PUT", "/api/v1/configuration", &change).problem(500);
    assert_eq!(node.get("/api/v1/configuration").ok().json()[0]["value"], "1");
}

#[test]
fn invalid_change_is_reported_with_its_keys() {
    let node = Node::start_with(1, |config| {
        config.configuration = Some(Arc::new(TestBackend::default()))
    })
    .with_login();
    for (method, path) in [
        ("POST", "/api/v1/configuration/check"),
        ("PUT", "/api/v1/configuration"),
    ] {
        let refused = |changes: Value, status| node.send(method, path, &json!({ "changes": changes })).problem(status);
        assert_eq!(refused(json!({ "a": "1" }), 422)["field"], "changes.a");
        let two = refused(json!({ "a": "1", "b": null }), 422);
        assert_eq!(
            two["errors"][1],
            json!({ "field": "changes.b", "detail": "is unknown" })
        );
        assert_eq!(refused(json!({}), 422)["field"], "changes");
        refused(json!({ "a": 1 }), 400);
        refused(json!({ "files": "1" }), 409);
        refused(json!({ "workers": "1" }), 500);
        node.send(method, path, &json!({ "changes": { "mqtt.a": "1" }, "force": true }))
            .problem(400);
    }
}

#[test]
fn only_administrators_change_the_configuration() {
    let mut node = Node::start(1).with_login();
    let change = json!({ "changes": { "mqtt.max_qos": "1" } });
    node.send("PUT", "/api/v1/configuration", &change).problem(409);
    let key = json!({ "name": "look", "role": "viewer" });
    let secret = node.send("POST", "/api/v1/api-keys", &key).json()["secret"]
        .as_str()
        .unwrap()
        .to_owned();
    for (token, status) in [(secret, 403), (String::new(), 401)] {
        node.token = token;
        node.send("PUT", "/api/v1/configuration", &change).problem(status);
        node.send("POST", "/api/v1/configuration/check", &change)
            .problem(status);
    }
}

#[test]
fn checked_options_are_audited_without_secrets() {
    let node = Node::start_with(1, |config| {
        config.configuration = Some(Arc::new(TestBackend::default()))
    })
    .with_login();
    let check = |options: &str| node.send("POST", "/api/v1/access/check", &json!({ "options": options }));
    let overridden = json!({ "overridden": [{ "key": "access.http.url", "origin": "--set" }] });
    assert_eq!(check("fine").ok().json(), overridden);
    let refused = check("sesame").problem(422);
    assert_eq!(refused["errors"][0]["field"], "options.access.http.url");
    assert_eq!(refused["errors"][1]["field"], "options");
    assert_eq!(check(&"x".repeat(70_000)).problem(422)["field"], "options");
    let log = node.all_pages("/api/v1/audit?operation=check_access_options", 10);
    let statuses: Vec<_> = log.iter().filter_map(|entry| entry["status"].as_u64()).collect();
    assert_eq!(statuses, [422, 422, 200], "the newest first");
    for entry in &log {
        assert_eq!(entry["body"], json!({ "options": "***" }));
    }
    let text = json!(log).to_string();
    assert!(!text.contains("sesame") && !text.contains("fine"), "{text}");
}
