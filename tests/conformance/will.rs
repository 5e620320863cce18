//! Tests wills: when the server publishes or discards them, and with which properties. Chapters 3.1.2.5 to 3.1.2.7 and
//! 3.1.3.2.

use std::time::Instant;

use super::*;
use crate::support::*;

fn with_will(version: Version, will: Will) -> Connect {
    Connect::new(version, unique("testator")).will(will)
}

fn delayed(topic: &str, payload: &str, delay_s: u32) -> Will {
    Will::new(topic, payload).property(prop::u32(prop::WILL_DELAY_INTERVAL, delay_s))
}

#[test]
fn will_is_published_when_the_connection_breaks() {
    for version in ALL_VERSIONS {
        let topic = topic();
        let mut watcher = subscriber(version, &topic, 0);
        let connect = with_will(version, Will::new(&topic, "gone"));
        resume(&connect).0.abort();
        assert_eq!(watcher.receive().payload, b"gone");
        // A protocol error also publishes the will.
        let (mut peer, _) = resume(&connect);
        peer.send(&[0x00, 0x00]);
        assert_eq!(watcher.receive().payload, b"gone");
        // A session takeover also publishes the will.
        let (_peer, _) = resume(&connect);
        let (_other, _) = resume(&connect);
        assert_eq!(watcher.receive().payload, b"gone");
    }
}

#[test]
fn will_is_published_once() {
    for version in NUMBERED {
        let topic = topic();
        let mut watcher = subscriber(version, &topic, 0);
        let connect = with_will(version, Will::new(&topic, "gone")).persistent();
        resume(&connect).0.abort();
        assert_eq!(watcher.receive().payload, b"gone");
        let without = Connect {
            will: None,
            ..connect.clone()
        };
        resume(&without).0.abort();
        // Resumes the session again: a will of the previous connection would have been published before this.
        let last = with_will(version, Will::new(&topic, SENTINEL));
        resume(&Connect {
            client_id: connect.client_id,
            ..last
        })
        .0
        .abort();
        assert!(watcher.receive_until(SENTINEL).is_empty(), "{version:?}");
    }
}

#[test]
fn no_will_flag_means_no_will() {
    for version in NUMBERED {
        let topic = topic();
        let mut watcher = subscriber(version, &topic, 0);
        let connect = Connect::new(version, unique("intestate"));
        resume(&connect).0.abort();
        resume(&connect.will(Will::new(&topic, SENTINEL))).0.abort();
        assert!(watcher.receive_until(SENTINEL).is_empty());
    }
}

#[test]
fn will_qos_is_respected() {
    for version in NUMBERED {
        let topic = topic();
        let mut watcher = subscriber(version, &topic, 2);
        for qos in 0..3 {
            resume(&with_will(version, Will::new(&topic, "gone").qos(qos)))
                .0
                .abort();
            assert_eq!(watcher.receive().qos, qos);
        }
    }
}

#[test]
fn will_retain_decides_whether_it_is_stored() {
    for version in NUMBERED {
        let (passing, kept) = (topic(), topic());
        let mut watcher = subscriber(version, &passing, 1);
        watcher.subscribe(&kept, 1);
        resume(&with_will(version, Will::new(&passing, "passing").qos(1)))
            .0
            .abort();
        assert!(!watcher.receive().is_retained);
        resume(&with_will(version, Will::new(&kept, "kept").qos(1).retain()))
            .0
            .abort();
        assert!(!watcher.receive().is_retained);

        assert!(replay(version, &passing, 1).is_empty(), "{version:?}");
        let messages = replay(version, &kept, 1);
        assert_eq!(payloads(&messages), ["kept"], "{version:?}");
        assert!(messages[0].is_retained);
    }
}

#[test]
fn will_waits_for_its_delay() {
    let topic = topic();
    let mut watcher = subscriber(V5, &topic, 0);
    let connect = with_will(V5, delayed(&topic, "after a second", 1)).persistent();
    let (peer, _) = resume(&connect);
    let start = Instant::now();
    peer.abort();
    assert_eq!(watcher.receive().payload, b"after a second");
    assert!(
        start.elapsed() >= Duration::from_millis(950),
        "after {:?}",
        start.elapsed()
    );
}

/// The will of another client is due later. When it arrives, the first will has been cancelled.
#[test]
fn return_within_the_delay_cancels_the_will() {
    let topic = topic();
    let mut watcher = subscriber(V5, &topic, 0);
    let connect = with_will(V5, delayed(&topic, "should have been cancelled", 3)).persistent();
    let clock = with_will(V5, delayed(&topic, SENTINEL, 4)).persistent();
    resume(&connect).0.abort();
    let without = Connect { will: None, ..connect };
    let (_peer, session_present) = resume(&without);
    assert!(session_present);
    resume(&clock).0.abort();
    assert!(watcher.receive_until(SENTINEL).is_empty());
}

#[test]
fn will_is_sent_early_when_the_session_ends() {
    let topic = topic();
    let mut watcher = subscriber(V5, &topic, 0);
    // The expiry interval is 0, so the session ends with the connection.
    resume(&with_will(V5, delayed(&topic, "no session", 3600))).0.abort();
    assert_eq!(watcher.receive().payload, b"no session");
    // The session expires.
    let connect = with_will(V5, delayed(&topic, "expired", 3600));
    let connect = connect.property(prop::u32(prop::SESSION_EXPIRY_INTERVAL, 1));
    resume(&connect).0.abort();
    assert_eq!(watcher.receive().payload, b"expired");
    // A connection with Clean Start ends the old session.
    let connect = with_will(V5, delayed(&topic, "replaced", 3600)).persistent();
    resume(&connect).0.abort();
    let clean = Connect::new(V5, &connect.client_id);
    let (_peer, session_present) = resume(&clean);
    assert!(!session_present);
    assert_eq!(watcher.receive().payload, b"replaced");
}

#[test]
fn will_properties_are_published() {
    let topic = topic();
    let mut watcher = subscriber(V5, &topic, 1);
    let will = Will::new(&topic, "gone")
        .qos(1)
        .property(prop::byte(prop::PAYLOAD_FORMAT_INDICATOR, 1))
        .property(prop::u32(prop::MESSAGE_EXPIRY_INTERVAL, 3600))
        .property(prop::text(prop::CONTENT_TYPE, "text/plain"))
        .property(prop::text(prop::RESPONSE_TOPIC, "answers"))
        .property(prop::text(prop::CORRELATION_DATA, [0, 255]))
        .property(prop::user("z", "1"))
        .property(prop::user("a", "2"))
        .property(prop::user("z", "1"));
    resume(&with_will(V5, will)).0.abort();
    let properties = watcher.receive().properties;
    assert_eq!(properties.number(prop::PAYLOAD_FORMAT_INDICATOR), Some(1));
    let expiry = properties.number(prop::MESSAGE_EXPIRY_INTERVAL);
    assert!(matches!(expiry, Some(3599 | 3600)), "{expiry:?}");
    assert_eq!(properties.bytes(prop::CONTENT_TYPE), Some(&b"text/plain"[..]));
    assert_eq!(properties.bytes(prop::RESPONSE_TOPIC), Some(&b"answers"[..]));
    assert_eq!(properties.bytes(prop::CORRELATION_DATA), Some(&[0, 255][..]));
    assert_eq!(properties.number(prop::WILL_DELAY_INTERVAL), None);
    let pairs = [("z", "1"), ("a", "2"), ("z", "1")].map(|(name, value)| (name.to_owned(), value.to_owned()));
    assert_eq!(properties.user_properties(), pairs);
}
