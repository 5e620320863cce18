//! Tests the reasons in events for rejected clients and closed connections: rules see EMQX's reason names.

use serde_json::{Value, json};

use crate::support::api::Api;
use crate::support::*;

/// Password file in which the password is `wonderland`.
const PASSWORDS: &str = "alice:$7$101$MN7fbLzX3QMSv09F$2mupi6/RSIbhkRn3Ycmtaz8QRQekZzDtYe+WpDH9Ap7E6AmSN5IuvBFXtpndE9vBP26IHoP91q77KnaAvAAOVw==\n";

/// Returns a server that requires credentials and writes these client events to the file `seen.jsonl`.
fn server(events: &str) -> Server {
    let config = Config::new("[access]\nanonymous = \"never\"\npassword_file = \"{dir}/passwords\"\n");
    let server = Server::start(&config.file("passwords", PASSWORDS.to_owned()));
    let api = Api::of(&server);
    let file = json!({"type": "file", "name": "seen", "parameters": {"directory": server.dir(), "name": "seen"}});
    api.ok("POST", "/api/v1/actions", &file);
    let rule = json!({"id": "r", "sql": format!("SELECT * FROM {events}"), "actions": ["file:seen"]});
    api.ok("POST", "/api/v1/rules", &rule);
    server
}

/// Waits for events of a client and returns them.
#[track_caller]
fn seen(server: &Server, event: &str, client_id: &str) -> Value {
    let path = server.dir().join("seen.jsonl");
    let mut found = Value::Null;
    server.wait_until(&format!("{event} of {client_id} is reported"), |_| {
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
        let mut lines = whole
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).expect("a line is JSON"));
        found = lines
            .find(|line| line["event"] == event && line["clientid"] == client_id)
            .unwrap_or_default();
        !found.is_null()
    });
    found
}

fn alice(client_id: &str) -> Connect {
    Connect::new(V5, client_id).user("alice", "wonderland")
}

#[test]
fn disconnect_events_have_emqx_reasons() {
    let server = server("\"$events/client/disconnected\"");
    let api = Api::of(&server);
    server.session(&alice("normal")).disconnect();
    for (client_id, code) in [
        ("disconnect_with_will_message", 0x04),
        ("unspecified_error", 0x80),
        ("quota_exceeded", 0x97),
        ("administrative_action", 0x98),
    ] {
        let mut client = server.session(&alice(client_id));
        client.send(&packet::disconnect(code, &[]));
        client.expect_closed(PATIENCE);
    }
    server.session(&alice("tcp_closed")).abort();
    let mut quiet = server.session(&alice("keepalive_timeout").keep_alive(1));
    quiet.expect_disconnect(0x8D);
    let mut first = server.session(&alice("takenover").persistent());
    let _second = server.session(&alice("takenover").persistent());
    first.expect_disconnect(0x8E);
    let mut first = server.session(&alice("discarded").persistent());
    let _clean = server.session(&alice("discarded").clean(true));
    first.expect_disconnect(0x8E);
    let mut kicked = server.session(&alice("kicked"));
    api.ok("DELETE", "/api/v1/clients/kicked", &Value::Null);
    kicked.expect_disconnect(0x98);
    let mut twice = server.session(&alice("protocol_error"));
    twice.send(&alice("protocol_error").bytes());
    twice.expect_disconnect(0x82);
    for reason in [
        "normal",
        "disconnect_with_will_message",
        "unspecified_error",
        "quota_exceeded",
        "administrative_action",
        "tcp_closed",
        "keepalive_timeout",
        "takenover",
        "discarded",
        "kicked",
        "protocol_error",
    ] {
        assert_eq!(seen(&server, "client.disconnected", reason)["reason"], reason);
    }
}

#[test]
fn rejecting_connack_event_has_the_connect_fields() {
    let server = server("\"$events/client/connack\", \"$events/auth/check_authn_complete\"");
    for version in [V4, V5] {
        let id = format!("guest-{version:?}");
        let mut connect = Connect::new(version, &id)
            .user("alice", "guessed-it")
            .clean(false)
            .keep_alive(33);
        if version == V5 {
            connect = connect
                .property(property::u32(property::SESSION_EXPIRY_INTERVAL, 77))
                .property(property::user("room", "kitchen"));
        }
        let mut peer = server.connect();
        peer.send(&connect.bytes());
        peer.expect_closed(PATIENCE);
        let connack = seen(&server, "client.connack", &id);
        assert_eq!(connack["reason_code"], "bad_username_or_password", "{connack:#}");
        assert_eq!(
            (&connack["clean_start"], &connack["keepalive"]),
            (&json!(false), &json!(33)),
            "{connack:#}"
        );
        if version == V5 {
            assert_eq!(connack["expiry_interval"], 77);
            assert_eq!(connack["conn_props"]["Session-Expiry-Interval"], 77);
            assert_eq!(connack["conn_props"]["User-Property"], json!({"room": "kitchen"}));
        }
        let checked = seen(&server, "client.check_authn_complete", &id);
        assert_eq!(checked["reason_code"], "bad_username_or_password");
    }
    let _taken = server.session(&alice("host"));
    assert_eq!(seen(&server, "client.connack", "host")["reason_code"], "success");
    // A malformed CONNECT provides no columns.
    let mut peer = server.connect();
    peer.send(&packet::connect_raw("MQTT", 9, 0x02, 60, &packet::string("strange")));
    peer.expect_closed(PATIENCE);
    let connack = seen(&server, "client.connack", "");
    assert_eq!(connack["reason_code"], "unsupported_protocol_version");
    for column in ["clean_start", "keepalive", "expiry_interval"] {
        assert_eq!(connack[column], "undefined", "{connack:#}");
    }
}
