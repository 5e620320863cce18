//! A user takes the client id of another user's device.

use serde_json::{Value as Json, json};

use crate::support::api::Api;
use crate::support::*;

const PASSWORD: &str = "correct horse battery";
const NEVER: u32 = u32::MAX;
const CLIENT_ID_NOT_VALID: u8 = 0x85;
const NOT_AUTHORIZED: u8 = 0x87;

fn server(rules: &str) -> Server {
    let server = Server::start(&Config::new(format!("[access]\n{rules}\n")));
    for name in ["ann", "bob"] {
        let user = json!({"name": name, "password": PASSWORD});
        Api::of(&server).ok("POST", "/api/v1/users", &user);
    }
    server
}

fn connect(server: &Server, version: Version, client_id: &str, user: &str) -> Connack {
    let connect = Connect::new(version, client_id).clean(false).user(user, PASSWORD);
    let connect = match version {
        V5 => connect.property(prop::u32(prop::SESSION_EXPIRY_INTERVAL, NEVER)),
        _ => connect,
    };
    let mut peer = server.connect();
    let connack = peer.handshake(&connect);
    match connack.code {
        0 => peer.disconnect(),
        _ => drop(peer),
    }
    connack
}

#[test]
fn rules_bind_client_ids_to_users() {
    let server = server(r#"rules = [{ permission = "allow", action = "connect", clients = ["%u", "%u:*"] }]"#);
    for version in [V4, V5] {
        let stolen = connect(&server, version, "ann:device", "bob");
        let expected = if version == V5 { CLIENT_ID_NOT_VALID } else { 2 };
        assert_eq!(stolen.code, expected);
        if version == V5 {
            let reason = b"the access rules do not allow this client id for this user";
            assert_eq!(stolen.properties.bytes(prop::REASON_STRING), Some(&reason[..]));
        }
        for (client_id, user) in [("ann:device", "ann"), ("ann", "ann"), ("bob:device", "bob")] {
            assert_eq!(connect(&server, version, client_id, user).code, 0, "{client_id}");
        }
    }
    let refused = Api::of(&server).get("/api/v1/refused-clients").to_string();
    assert!(
        refused.contains("the access rules do not allow this client id"),
        "{refused}"
    );
    // Rules for connecting do not restrict topics.
    let mut bob = server.session(&Connect::new(V5, "bob").user("bob", PASSWORD));
    bob.subscribe("ann/#", 1);
    bob.publish(&Publish::new("ann/1", "x").qos(1));
    assert_eq!(bob.receive().topic_str(), "ann/1");
}

#[test]
fn administrator_frees_a_taken_client_id() {
    let server = server("");
    let taken = connect(&server, V5, "device", "bob");
    assert_eq!(taken.code, 0);
    // No session is endless by default.
    let thirty_days = 30 * 24 * 60 * 60;
    assert_eq!(
        taken.properties.number(prop::SESSION_EXPIRY_INTERVAL),
        Some(thirty_days)
    );
    let owner = connect(&server, V5, "device", "ann");
    assert_eq!(owner.code, NOT_AUTHORIZED);
    let reason = b"the client id belongs to a session of another user; an administrator can delete it";
    assert_eq!(owner.properties.bytes(prop::REASON_STRING), Some(&reason[..]));
    Api::of(&server).ok("DELETE", "/api/v1/clients/device?end_session=true", &Json::Null);
    assert_eq!(connect(&server, V5, "device", "ann").code, 0);
}
