//! A listener can have authentication providers of its own.

use serde_json::json;

use crate::support::api::Api;
use crate::support::*;

const ACCEPTED: u8 = 0;
const SERVER_UNAVAILABLE: u8 = 0x88;

#[test]
fn listener_asks_its_own_providers() {
    let other = free_port();
    // Nothing listens at this URL, so the provider of the other listener always fails.
    let server = Server::start(&Config::new(format!(
        "[access]\nanonymous = \"never\"\n[access.http]\nurl = \"http://127.0.0.1:1/\"\n\
         [listeners.tcp.other]\nbind = \"{other}\"\nproviders = [\"http\"]\n"
    )));
    let user = json!({ "name": "alice", "password": "correct-horse-1" });
    Api::of(&server).ok("POST", "/api/v1/users", &user);
    let alice = Connect::new(V5, "c").user("alice", "correct-horse-1");
    assert_eq!(server.connect().handshake(&alice).code, ACCEPTED);
    assert_eq!(Peer::connect(other).handshake(&alice).code, SERVER_UNAVAILABLE);
}
