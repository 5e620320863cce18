//! Tests topic names, topic filters and their matching. Chapter 4.7.

use super::*;
use crate::support::*;

#[test]
fn wildcard_in_a_topic_name_is_refused() {
    for version in ALL_VERSIONS {
        for name in ["#", "+", "a/+/b", "a/#", "a+b", "a#"] {
            for qos in [0, 1] {
                let bytes = Publish::new(name, "payload").qos(qos).bytes(version);
                closes(version, &bytes, &[0x90, MALFORMED_PACKET, PROTOCOL_ERROR], name);
            }
        }
    }
}

#[test]
fn misplaced_wildcards_are_not_granted() {
    for version in NUMBERED {
        for filter in ["a#", "#/a", "a/#/b", "a/b#", "##", "a+", "+a", "a/+b/c", "a/b+", "++"] {
            assert_never_granted(version, filter);
        }
    }
}

#[test]
fn empty_names_and_filters_are_refused() {
    for version in NUMBERED {
        assert_never_granted(version, "");
        let bytes = Publish::new("", "payload").bytes(version);
        closes(
            version,
            &bytes,
            &[PROTOCOL_ERROR, MALFORMED_PACKET, 0x90, 0x94],
            "an empty topic name",
        );
    }
}

/// Filters, each with the topics that it matches. All are relative to a root that only this test uses.
const TOPICS: [&str; 9] = ["", "/", "/a", "/a/", "/a/b", "/a/b/c", "/b", "//b", "/A"];
const MATCHES: [(&str, &[&str]); 12] = [
    ("", &[""]),
    ("/#", &TOPICS),
    ("/+", &["/", "/a", "/b", "/A"]),
    ("/+/+", &["/a/", "/a/b", "//b"]),
    ("/+/b", &["/a/b", "//b"]),
    ("/a", &["/a"]),
    ("/a/#", &["/a", "/a/", "/a/b", "/a/b/c"]),
    ("/a/+", &["/a/", "/a/b"]),
    ("/a/+/#", &["/a/", "/a/b", "/a/b/c"]),
    ("/+/b/+", &["/a/b/c"]),
    ("//+", &["//b"]),
    ("/a/", &["/a/"]),
];

#[test]
fn filters_match_by_level() {
    for version in NUMBERED {
        let (root, end) = (topic(), topic());
        let mut subscribers = MATCHES.map(|(filter, _)| {
            let mut peer = subscriber(version, &format!("{root}{filter}"), 1);
            peer.subscribe(&end, 1);
            peer
        });
        let mut publisher = client(version);
        for topic in TOPICS {
            publisher.publish(&Publish::new(format!("{root}{topic}"), topic).qos(1));
        }
        publisher.publish(&Publish::new(&end, SENTINEL).qos(1));
        for (peer, (filter, expected)) in subscribers.iter_mut().zip(MATCHES) {
            let messages = peer.receive_until(SENTINEL);
            assert_eq!(payloads(&messages), expected, "{version:?} {filter:?}");
            for message in &messages {
                assert_eq!(message.topic_str(), format!("{root}{}", message.payload_str()));
            }
        }
    }
}

/// Uses a server with access rules, because by default no client may use a `$` topic.
#[test]
fn leading_wildcard_does_not_match_dollar_topics() {
    for version in NUMBERED {
        let root = unique("dollar");
        let hidden = format!("$hidden/{root}");
        let session = || super::access::server().session(&super::access::carol(version));
        let mut peer = session();
        for filter in ["#", &format!("+/{root}"), &format!("+/{root}/#")] {
            peer.subscribe(filter, 0);
        }
        let mut explicit = session();
        explicit.subscribe(&hidden, 0);
        let mut publisher = session();
        publisher.publish(&Publish::new(&hidden, "hidden"));
        publisher.publish(&Publish::new(format!("open/{root}"), SENTINEL));
        // `#` also matches messages of other tests, so only the order of these two matters.
        loop {
            let message = peer.receive();
            assert!(!message.topic.starts_with(b"$"), "{version:?}: {}", message.topic_str());
            if message.topic_str() == format!("open/{root}") {
                break;
            }
        }
        assert_eq!(
            explicit.receive().payload,
            b"hidden",
            "{version:?}: an explicit filter matches"
        );
    }
}

#[test]
fn longest_topic_is_carried() {
    for version in NUMBERED {
        let start = topic();
        let longest = format!("{start}{}", "x".repeat(65_535 - start.len()));
        let mut subscriber = subscriber(version, &longest, 1);
        client(version).publish(&Publish::new(&longest, "payload").qos(1));
        assert_eq!(subscriber.receive().topic, longest.as_bytes());
    }
}

#[test]
fn topics_are_compared_byte_by_byte() {
    let root = topic();
    // Topics differ in Unicode composition, case, a trailing or doubled separator, spaces, dots or escapes.
    let different = [
        "\u{e9}",
        "e\u{301}",
        "a",
        "A",
        "a/",
        "/a",
        " a",
        "a ",
        "./a",
        "b/../a",
        "%61",
        "a\u{200b}",
    ];
    for version in NUMBERED {
        let mut publisher = client(version);
        for filter in different {
            let mut peer = subscriber(version, &format!("{root}{filter}"), 1);
            for topic in different {
                publisher.publish(&Publish::new(format!("{root}{topic}"), topic).qos(1));
            }
            let end = topic();
            peer.subscribe(&end, 1);
            publisher.publish(&Publish::new(&end, SENTINEL).qos(1));
            assert_eq!(payloads(&peer.receive_until(SENTINEL)), [filter], "{version:?}");
        }
    }
}
