//! Tests Kerberos in builds that include it:
//! `dev/cargo test --workspace --features tidewire/gssapi --test it kerberos`.

use serde_json::{Value, json};

use crate::support::api::Api;
use crate::support::kafka::Kafka;
use crate::support::*;

#[test]
fn keytab_authenticates_and_a_wrong_keytab_is_reported() {
    let kafka = Kafka::start_with(1, &["kerberos"]);
    kafka.create_topic("telemetry", 1);
    let realm = kafka.kerberos.clone().expect("the script prints the realm");
    let file = |name: &str| realm.join(name).to_string_lossy().into_owned();
    let server = Server::start(&Config::new("").environment("KRB5_CONFIG", file("krb5.conf")));
    let api = Api::of(&server);
    let connector = |name: &str, keytab: &str| {
        let authentication = json!({
            "mechanism": "gssapi", "service_name": "kafka", "principal": "tidewire@TIDEWIRE.TEST", "keytab_file": file(keytab),
        });
        let config = json!({"bootstrap_hosts": kafka.sasl, "authentication": authentication});
        json!({"type": "kafka", "name": name, "config": config})
    };
    // This keytab has the key of another principal, which gets no ticket.
    api.ok("POST", "/api/v1/connectors", &connector("wrong", "kafka.keytab"));
    let tried = api.ok("POST", "/api/v1/connectors/wrong/test", &Value::Null);
    assert_eq!(tried["is_reachable"], false, "{tried}");
    let error = tried["error"].as_str().expect("a text");
    assert!(error.contains("No Kerberos credentials available"), "{error}");

    api.ok("POST", "/api/v1/connectors", &connector("right", "tidewire.keytab"));
    let parameters = json!({"kafka_topic": "telemetry", "key": "${clientid}", "value": "${payload}"});
    let action = json!({"type": "kafka", "name": "out", "connector": "right", "parameters": parameters});
    api.ok("POST", "/api/v1/actions", &action);
    let rule = json!({"id": "out", "sql": "SELECT clientid, payload FROM \"up/#\"", "actions": ["kafka:out"]});
    api.ok("POST", "/api/v1/rules", &rule);
    let mut meter = server.session(&Connect::new(V5, "meter"));
    assert_eq!(meter.publish(&Publish::new("up/1", "hello").qos(1)), 0x10);
    server.wait_until("Kafka has the message", |_| {
        api.get("/api/v1/actions/kafka:out")["metrics"]["sent"] == 1
    });
    let found = kafka.read("telemetry");
    assert_eq!(
        (found.len(), found[0].key.as_str(), found[0].value.as_str()),
        (1, "meter", "hello")
    );
}
