//! A client that connects and disconnects too often is banned for a time.

use serde_json::{Value, json};

use crate::support::api::Api;
use crate::support::*;

use super::connack;

#[test]
fn flapping_client_is_banned_for_a_time() {
    let server = Server::start(&Config::new(
        "[access.flapping]\nenabled = true\nwindow = \"1h\"\nmax_count = 3\nban_time = \"1h\"\n",
    ));
    let api = Api::of(&server);
    let bans = || api.get("/api/v1/banned")["items"].as_array().unwrap().clone();
    for _ in 0..2 {
        assert_eq!((connack(&server, "unsteady"), connack(&server, "other")), (0, 0));
    }
    // The third disconnect is one too many. The ban is written shortly after it.
    assert_eq!(connack(&server, "unsteady"), 0);
    server.wait_until("the client is banned", |_| bans().len() == 1);
    let ban = &bans()[0];
    assert_eq!((&ban["kind"], &ban["who"]), (&json!("client_id"), &json!("unsteady")));
    assert_eq!(ban["reason"], "3 disconnects within 3600 s");
    assert_ne!(ban["until_unix_ms"], Value::Null);
    assert_eq!(connack(&server, "unsteady"), 0x8a);
    assert_eq!(connack(&server, "steady"), 0);
    api.ok("DELETE", "/api/v1/banned/client_id/unsteady", &Value::Null);
    assert_eq!(connack(&server, "unsteady"), 0);
}
