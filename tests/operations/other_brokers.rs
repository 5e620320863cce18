//! Options that select the behaviour of other brokers.

use crate::support::*;

const NOT_AUTHORIZED: u8 = 0x87;
const BAD_USER_NAME_OR_PASSWORD: u8 = 0x86;
const TOPIC_NAME_INVALID: u8 = 0x90;
const TOPIC_FILTER_INVALID: u8 = 0x8F;

fn connack(server: &Server, connect: &Connect) -> u8 {
    server.connect().handshake(connect).code
}

#[test]
fn unknown_users_are_anonymous_if_the_option_says_so() {
    let rules = "rules = [{ permission = \"allow\", action = \"all\", topics = [\"open/#\"], anonymous = true },\
                 { permission = \"allow\", action = \"all\", topics = [\"bob/#\"], users = [\"bob\"] }]\n";
    let config = |unknown: &str| {
        let access = format!("[access]\nunknown_users = \"{unknown}\"\n{rules}password_file = \"{{dir}}/passwords\"\n");
        // No password has this hash.
        let alice = format!("alice:$sha256$salt${}\n", "0".repeat(64));
        Config::new(access).file("passwords", alice)
    };
    let bob = Connect::new(V5, "bob").user("bob", "any");
    let server = Server::start(&config("reject"));
    assert_eq!(connack(&server, &bob), BAD_USER_NAME_OR_PASSWORD);
    let server = Server::start(&config("anonymous"));
    let alice = Connect::new(V5, "alice");
    assert_eq!(
        connack(&server, &alice.clone().user("alice", "wrong")),
        BAD_USER_NAME_OR_PASSWORD
    );
    assert_eq!(connack(&server, &alice.user_name("alice")), NOT_AUTHORIZED);
    let mut peer = server.session(&bob);
    assert!(peer.publish(&Publish::new("open/door", "x").qos(1)) < 0x80);
    // The name is not verified, so rules for it do not apply.
    assert_eq!(peer.publish(&Publish::new("bob/door", "x").qos(1)), NOT_AUTHORIZED);
}

#[test]
fn control_characters_are_rejected_if_the_option_says_so() {
    let topic = "line\nfeed";
    let connect = Connect::new(V5, "c");
    let will = Connect::new(V5, "w").will(Will::new(topic, "x"));
    let server = Server::start(&Config::new(""));
    let mut peer = server.session(&connect);
    peer.subscribe("other\nline/+", 1);
    assert!(peer.publish(&Publish::new(topic, "x").qos(1)) < 0x80);
    assert_eq!(connack(&server, &will), 0);
    let server = Server::start(&Config::new("[mqtt]\ncontrol_characters = false\n"));
    let mut peer = server.session(&connect);
    assert_eq!(peer.publish(&Publish::new(topic, "x").qos(1)), TOPIC_NAME_INVALID);
    assert_eq!(
        peer.publish(&Publish::new("next\u{85}line", "x").qos(1)),
        TOPIC_NAME_INVALID
    );
    assert_eq!(peer.subscribe_code("other\nline/+", 1), TOPIC_FILTER_INVALID);
    assert_eq!(connack(&server, &will), TOPIC_NAME_INVALID);
    assert!(peer.publish(&Publish::new("Straße/\u{a0}", "x").qos(1)) < 0x80);
}

#[test]
fn topics_may_have_more_levels_if_the_option_says_so() {
    let deep = vec!["l"; 200].join("/");
    let server = Server::start(&Config::new(""));
    let publish = Publish::new(&deep, "x").qos(1);
    assert_eq!(
        server.session(&Connect::new(V5, "c")).publish(&publish),
        TOPIC_NAME_INVALID
    );
    let server = Server::start(&Config::new("[mqtt]\nmax_topic_levels = 65535\n"));
    let mut peer = server.session(&Connect::new(V5, "c"));
    peer.subscribe(&deep, 0);
    peer.publish(&publish);
    assert_eq!(peer.receive().topic_str(), deep);
}
