//! Tests a backup of a running server: a restore brings back the definitions and the messages buffered for actions.

use serde_json::{Value, json};

use super::command_line::tidewire;
use super::web_server::WebServer;
use crate::support::api::Api;
use crate::support::*;

const MESSAGES: usize = 50;

#[test]
fn buffered_messages_are_restored_from_a_backup() {
    let mut server = Server::start(&Config::new(""));
    let web = WebServer::away();
    {
        let api = Api::of(&server);
        let url = format!("http://{}", web.address);
        api.ok(
            "POST",
            "/api/v1/connectors",
            &json!({"type": "http", "name": "web", "config": {"url": url}}),
        );
        let action = json!({"type": "http", "name": "out", "connector": "web", "parameters": {"body": "${payload}"}});
        api.ok("POST", "/api/v1/actions", &action);
        let rule = json!({"id": "r", "sql": "SELECT payload FROM \"m/#\"", "actions": ["http:out"]});
        api.ok("POST", "/api/v1/rules", &rule);
    }
    let mut client = server.session(&Connect::new(V4, "c"));
    for number in 0..MESSAGES {
        client.publish(&Publish::new("m/1", number.to_string()).qos(1));
    }
    let output = tidewire(server.dir(), &["backup", "--data-dir", "data", "--to", "copy"]).ok();
    assert!(
        output.contains("integration/definitions.json") && output.contains("of actions: 1 buffer"),
        "{output}"
    );

    server.kill();
    std::fs::remove_dir_all(server.dir().join("data")).expect("the server is gone");
    tidewire(server.dir(), &["restore", "--data-dir", "data", "--from", "copy"]).ok();
    server.spawn_again();
    server.wait_until_ready();
    web.come();
    server.wait_until("all messages have arrived", |_| web.bodies().len() >= MESSAGES);
    let expected: Vec<String> = (0..MESSAGES).map(|number| number.to_string()).collect();
    assert_eq!(web.bodies(), expected);
    assert_eq!(Api::of(&server).get("/api/v1/rules")[0]["id"], Value::from("r"));
}
