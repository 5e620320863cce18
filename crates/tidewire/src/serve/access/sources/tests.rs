//! Stored decisions of sources: which packet they are for, and how long they are valid.

use mqtt::QoS::{self, AtLeastOnce, AtMostOnce};

use super::*;

const TTL: Duration = Duration::from_secs(3600);

fn sources() -> SessionSources {
    let client = Credentials {
        client_id: "c".to_owned(),
        user_name: None,
        password: None,
        address: [127, 0, 0, 1].into(),
        certificate_common_name: None,
        certificate_subject: None,
        action: None,
    };
    SessionSources::new(client, false)
}

fn publish(topic: &str, qos: QoS) -> (AccessRequest<'_>, RequestedAction) {
    let retain = false;
    let action = RequestedAction::Publish {
        topic: topic.into(),
        qos,
        retain,
    };
    (AccessRequest::Publish { topic, qos, retain }, action)
}

fn subscribe(filter: &str, qos: QoS) -> (AccessRequest<'_>, RequestedAction) {
    let action = RequestedAction::Subscribe {
        filter: filter.into(),
        qos,
    };
    (AccessRequest::Subscribe { filter, qos }, action)
}

#[test]
fn a_decision_is_stored_for_the_same_action() {
    let (cache, sources) = (DecisionCache::new(8, TTL), sources());
    let (request, action) = publish("t", AtMostOnce);
    assert!(!sources.is_decided(&cache, &request));
    sources.record(&cache, &action, Decision::Allow, true);
    sources.forget_answers();
    assert_eq!(sources.decision_to_publish(&cache, &request), Some(Decision::Allow));
    for (other, _) in [
        publish("t", AtLeastOnce),
        publish("u", AtMostOnce),
        subscribe("t", AtMostOnce),
    ] {
        assert!(!sources.is_decided(&cache, &other), "{other:?}");
    }
    cache.clear();
    assert!(!sources.is_decided(&cache, &request));
}

#[test]
fn the_number_of_stored_decisions_is_bounded() {
    let (cache, sources) = (DecisionCache::new(3, TTL), sources());
    let topics: Vec<String> = (0..5).map(|n| format!("t{n}")).collect();
    for topic in &topics {
        sources.record(&cache, &publish(topic, AtMostOnce).1, Decision::Deny, true);
        // The first topic is used again and again.
        sources.record(&cache, &publish("t0", AtMostOnce).1, Decision::Deny, true);
        sources.forget_answers();
    }
    let is_stored = |topic: &String| sources.is_decided(&cache, &publish(topic, AtMostOnce).0);
    let stored: Vec<bool> = topics.iter().map(is_stored).collect();
    assert_eq!(stored, [true, false, false, true, true]);
    let long = "x".repeat(STORED_TOPIC_BYTES_MAX + 1);
    sources.record(&cache, &publish(&long, AtMostOnce).1, Decision::Allow, true);
    sources.forget_answers();
    assert!(!sources.is_decided(&cache, &publish(&long, AtMostOnce).0));
}

#[test]
fn an_answer_is_valid_for_its_packet_without_a_cache() {
    for (size, ttl) in [(0, TTL), (8, Duration::ZERO)] {
        let (cache, sources) = (DecisionCache::new(size, ttl), sources());
        for (request, action) in [publish("t", AtMostOnce), subscribe("f", AtMostOnce)] {
            sources.record(&cache, &action, Decision::Allow, true);
            assert!(sources.is_decided(&cache, &request));
        }
        sources.forget_answers();
        assert!(!sources.is_decided(&cache, &publish("t", AtMostOnce).0));
        let is_decided = sources.is_decided(&cache, &subscribe("f", AtMostOnce).0);
        assert_eq!(is_decided, !ttl.is_zero());
        // The subscription keeps its decision.
        assert_eq!(sources.decision_to_subscribe("f"), Some(Decision::Allow));
    }
}

#[test]
fn failures_are_not_stored() {
    let (cache, sources) = (DecisionCache::new(8, TTL), sources());
    for (request, action) in [publish("t", AtMostOnce), subscribe("f", AtMostOnce)] {
        sources.record(&cache, &action, Decision::Failed, true);
        assert!(sources.is_decided(&cache, &request));
        sources.forget_answers();
        assert!(!sources.is_decided(&cache, &request));
    }
    assert_eq!(sources.decision_to_subscribe("f"), None);
    assert!(!sources.has_failed());
    sources.record_login(&cache, &publish("will", AtMostOnce).1, Decision::Failed, false);
    assert!(sources.has_failed() && sources.is_login_decided(&publish("will", AtMostOnce).0));
}

#[test]
fn the_most_restrictive_decision_about_a_filter_counts() {
    let (cache, sources) = (DecisionCache::new(8, TTL), sources());
    sources.record(&cache, &subscribe("f", AtMostOnce).1, Decision::Allow, true);
    sources.record(&cache, &subscribe("f", AtLeastOnce).1, Decision::Deny, true);
    assert_eq!(sources.decision_to_subscribe("f"), Some(Decision::Deny));
    sources.forget_answers();
    assert_eq!(sources.decision_to_subscribe("f"), Some(Decision::Deny));
}

#[test]
fn messages_follow_the_decision_about_their_filter() {
    let (cache, sources) = (DecisionCache::new(8, TTL), sources());
    for (filter, decision) in [
        ("a/#", Decision::Deny),
        ("a/+", Decision::Ignore),
        ("a/1", Decision::Allow),
        ("b/#", Decision::Allow),
    ] {
        sources.record(&cache, &subscribe(filter, AtMostOnce).1, decision, true);
        sources.set_subscribed(filter, true);
    }
    for (topic, expected) in [
        ("a/1", Some(Decision::Allow)),
        ("a/2", Some(Decision::Ignore)),
        ("a/2/3", Some(Decision::Deny)),
        ("b", Some(Decision::Allow)),
        ("c", None),
    ] {
        assert_eq!(sources.decision_to_receive(topic), expected, "{topic}");
    }
    sources.forget_answers();
    sources.retain_filters(&|filter| filter == "b/#");
    assert_eq!(sources.stored_filters(), 1);
    assert_eq!(sources.decision_to_receive("a/1"), None);
}

#[test]
fn decision_about_a_removed_filter_allows_no_message() {
    let (cache, sources) = (DecisionCache::new(8, TTL), sources());
    for (filter, decision) in [
        ("#", Decision::Ignore),
        ("a/1", Decision::Allow),
        ("b/+", Decision::Allow),
    ] {
        sources.record(&cache, &subscribe(filter, AtMostOnce).1, decision, true);
    }
    sources.forget_answers();
    // A filter that was allowed, but not subscribed for another reason.
    assert_eq!(sources.decision_to_receive("a/1"), None);
    for filter in ["#", "a/1", "b/+"] {
        sources.set_subscribed(filter, true);
    }
    for filter in ["a/1", "b/+"] {
        sources.set_subscribed(filter, false);
    }
    for topic in ["a/1", "b/1"] {
        assert_eq!(sources.decision_to_receive(topic), Some(Decision::Ignore), "{topic}");
    }
    // The decision is still valid for the next SUBSCRIBE.
    assert!(sources.is_decided(&cache, &subscribe("a/1", AtMostOnce).0));
    // A new decision does not make a subscription of a filter, nor end one.
    sources.record(&cache, &subscribe("a/1", AtMostOnce).1, Decision::Allow, true);
    sources.record(&cache, &subscribe("#", AtMostOnce).1, Decision::Allow, true);
    assert_eq!(sources.decision_to_receive("a/1"), Some(Decision::Allow));
    sources.set_subscribed("#", false);
    assert_eq!(sources.decision_to_receive("a/1"), None);
    // The filters of a session that continues.
    sources.forget_answers();
    sources.retain_filters(&|filter| filter == "a/1");
    assert_eq!(sources.decision_to_receive("a/1"), Some(Decision::Allow));
    assert_eq!(sources.stored_filters(), 1);
}

#[test]
fn data_stream_has_the_same_rules_and_its_own_decisions() {
    let (cache, sources) = (DecisionCache::new(8, TTL), sources());
    sources.set_rules(Some(vec![None]));
    sources.record(&cache, &subscribe("f", AtMostOnce).1, Decision::Allow, true);
    sources.set_subscribed("f", true);
    let stream = sources.for_data_stream();
    assert_eq!(stream.rules().map(|rules| rules.len()), Some(1));
    assert!(!stream.is_decided(&cache, &subscribe("f", AtMostOnce).0));
    assert_eq!(stream.decision_to_receive("f"), None);
    stream.record(&cache, &subscribe("f", AtMostOnce).1, Decision::Allow, true);
    stream.record(&cache, &publish("t", AtMostOnce).1, Decision::Failed, true);
    stream.set_subscribed("f", true);
    // A packet, an UNSUBSCRIBE and new rules of the client concern only its own session.
    sources.forget_answers();
    sources.set_subscribed("f", false);
    sources.retain_filters(&|_| false);
    assert!(stream.is_decided(&cache, &publish("t", AtMostOnce).0));
    assert_eq!(stream.decision_to_receive("f"), Some(Decision::Allow));
    assert_eq!(sources.decision_to_receive("f"), None);
}

#[test]
fn answer_about_an_unhandled_packet_ends_no_subscription() {
    let (cache, sources) = (DecisionCache::new(8, TTL), sources());
    sources.record(&cache, &subscribe("f", AtMostOnce).1, Decision::Allow, true);
    sources.set_subscribed("f", true);
    sources.forget_answers();
    // The service does not answer about the filter again.
    sources.record(&cache, &subscribe("f", AtMostOnce).1, Decision::Failed, true);
    assert_eq!(sources.decision_to_subscribe("f"), Some(Decision::Failed));
    assert_eq!(sources.stored_decision("f"), Some(Decision::Allow));
    assert_eq!(sources.decision_to_receive("f"), Some(Decision::Allow));
    sources.forget_failures();
    assert_eq!(sources.decision_to_subscribe("f"), Some(Decision::Allow));
}

#[test]
fn new_rules_do_not_delete_the_decision_about_a_packet_that_waits() {
    let (cache, sources) = (DecisionCache::new(8, TTL), sources());
    sources.record(&cache, &subscribe("f", AtMostOnce).1, Decision::Allow, true);
    sources.retain_filters(&|_| false);
    sources.set_subscribed("f", true);
    sources.forget_answers();
    assert_eq!(sources.decision_to_receive("f"), Some(Decision::Allow));
}
