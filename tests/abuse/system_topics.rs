//! Group D: `$SYS` topics, and leaks between sessions.

use crate::support::*;

#[test]
fn d01_wildcards_at_the_first_level_do_not_match_system_topics() {
    // [MQTT-4.7.2-1]
    let server = Server::start(&Config::new("[sys]\ninterval = \"1s\"\n").mosquitto("sys_interval 1"));
    let filters = [
        "#",
        "+/#",
        "+/+/#",
        "+/+/+",
        "+/broker/#",
        "$share/g/#",
        "$share/g/+/broker/version",
    ];
    let mut watchers: Vec<Peer> = filters
        .iter()
        .map(|filter| {
            let mut watcher = server.session(&Connect::new(V5, unique("d01")));
            watcher.subscribe(filter, 0);
            watcher
        })
        .collect();
    // Wildcards receive no retained system topics. Live system topics are checked with a subscriber that skips retained
    // messages.
    let mut system = server.session(&Connect::new(V5, unique("d01")));
    assert_eq!(system.subscribe_code("$SYS/#", 0x20), 0);
    for _ in 0..5 {
        assert!(system.expect_publish().topic_str().starts_with("$SYS/"));
    }
    for watcher in &mut watchers {
        let before = watcher.ping();
        assert!(before.is_empty(), "{before:?}");
    }
    let mut publisher = server.session(&Connect::new(V4, unique("d01")));
    publisher.publish(&Publish::new("d01/broker/version", "sentinel").qos(1));
    let (ordinary, shared) = watchers.split_at_mut(5);
    for watcher in ordinary {
        assert_eq!(watcher.receive_until("sentinel"), []);
    }
    assert!(
        shared
            .iter_mut()
            .flat_map(Peer::ping)
            .all(|packet| packet.delivery(V5).payload == b"sentinel")
    );
}

#[test]
fn d02_clients_cannot_write_system_topics() {
    // 4.7.2
    let server = Server::shared();
    let marker = unique("d02");
    let mut watcher = server.session(&Connect::new(V4, unique("d02")));
    watcher.subscribe("$SYS/#", 0);
    watcher.subscribe(&marker, 0);
    for topic in ["$SYS/broker/version", "$SYS/fake"] {
        for qos in 0..=2 {
            let mut peer = server.session(&Connect::new(V4, unique("d02")));
            peer.send(&Publish::new(topic, "forged").qos(qos).retain().bytes(V4));
            // The broker may close the connection. Otherwise an answer shows that it has processed the message.
            peer.half_close();
            peer.expect_closed(PATIENCE);
        }
    }
    server
        .session(&Connect::new(V4, unique("d02")))
        .publish(&Publish::new(&marker, &marker));
    let is_forged = |message: &Delivery| message.payload == b"forged";
    assert!(!watcher.receive_until(&marker).iter().any(is_forged), "delivered");
    let mut late = server.session(&Connect::new(V4, unique("d02")));
    late.subscribe("$SYS/#", 0);
    assert!(
        !late.ping().iter().any(|packet| is_forged(&packet.delivery(V4))),
        "retained"
    );
}

#[test]
fn d03_clean_session_has_no_state_of_the_previous_session() {
    // [MQTT-3.1.2-6]
    let server = Server::shared();
    for version in ALL_VERSIONS {
        let topic = unique("d03");
        let connect = Connect::new(version, unique("d03")).persistent();
        let mut peer = server.session(&connect);
        peer.subscribe(&topic, 1);
        peer.disconnect();
        let mut publisher = server.session(&Connect::new(V4, unique("d03")));
        publisher.publish(&Publish::new(&topic, "queued").qos(1));
        let mut clean = server.connect();
        let connack = clean.handshake(&Connect::new(version, &connect.client_id));
        assert_eq!((connack.code, connack.session_present), (0, false));
        publisher.publish(&Publish::new(&topic, "after").qos(1));
        clean.ping_alone();
        clean.subscribe(&topic, 1);
        publisher.publish(&Publish::new(&topic, "sentinel").qos(1));
        assert_eq!(clean.receive_until("sentinel"), []);
        clean.disconnect();
        let mut again = server.connect();
        let connack = again.handshake(&connect);
        assert_eq!((connack.code, connack.session_present), (0, false), "{version:?}");
        again.ping_alone();
    }
}
