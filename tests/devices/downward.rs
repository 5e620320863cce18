//! Messages from the server to devices: attribute updates, RPC calls and answers.

use super::world::{World, device, talking_chain};
use crate::support::*;

struct Names {
    attributes: &'static str,
    calls: &'static str,
    answer: &'static str,
    ask: &'static str,
    answers: &'static str,
}

const LONG: Names = Names {
    attributes: "v1/devices/me/attributes",
    calls: "v1/devices/me/rpc/request/",
    answer: "v1/devices/me/rpc/response/",
    ask: "v1/devices/me/rpc/request/",
    answers: "v1/devices/me/rpc/response/",
};

const SHORT: Names = Names {
    attributes: "v2/a",
    calls: "v2/r/req/",
    answer: "v2/r/res/",
    ask: "v2/r/req/",
    answers: "v2/r/res/",
};

#[test]
fn attributes_are_pushed_and_calls_work_in_both_directions() {
    let (world, ()) = World::new(|devices, tenant| {
        talking_chain(devices, tenant);
        device(devices, tenant, "A", "TOKEN");
    });
    for (version, names) in [(V3, &LONG), (V4, &SHORT), (V5, &LONG)] {
        let mut peer = world.connect(version, "TOKEN");
        peer.subscribe(names.attributes, 1);
        peer.subscribe(format!("{}+", names.answers), 1);
        let ask = format!("{}7", names.ask);
        peer.publish(&Publish::new(&ask, r#"{"method":"setShared","params":{"limit":5}}"#).qos(1));
        let mut both = [peer.receive(), peer.receive()];
        both.sort_by_key(|delivery| delivery.topic.len());
        assert_eq!(both[0].topic_str(), names.attributes);
        assert_eq!(both[0].payload_str(), r#"{"limit":5}"#);
        assert_eq!(both[1].topic_str(), format!("{}7", names.answers));
        assert_eq!(both[1].payload_str(), r#"{"method":"setShared","params":{"limit":5}}"#);

        peer.subscribe(format!("{}+", names.calls), 0);
        peer.publish(&Publish::new(&ask, r#"{"method":"callMe","params":{"text":"abc"}}"#).qos(1));
        let call = peer.receive();
        assert_eq!(
            (call.qos, call.payload_str()),
            (0, r#"{"method":"reverse","params":{"text":"abc"}}"#)
        );
        let id = call
            .topic_str()
            .strip_prefix(names.calls)
            .expect("the topic of calls")
            .to_owned();
        peer.publish(&Publish::new(format!("{}{id}", names.answer), r#"{"said":"cba"}"#).qos(1));
        let answer = peer.receive();
        assert_eq!(answer.topic_str(), names.attributes);
        assert_eq!(answer.payload_str(), r#"{"answer":"cba"}"#);
    }
}

#[test]
fn device_can_request_its_session_limits() {
    let (world, ()) = World::new(|devices, tenant| {
        device(devices, tenant, "A", "TOKEN");
    });
    let mut peer = world.connect(V4, "TOKEN");
    peer.subscribe("v1/devices/me/rpc/response/+", 1);
    let ask = r#"{"method":"getSessionLimits","params":{}}"#;
    peer.publish(&Publish::new("v1/devices/me/rpc/request/1", ask).qos(1));
    let answer = peer.receive();
    assert_eq!(answer.topic_str(), "v1/devices/me/rpc/response/1");
    assert!(answer.payload_str().contains("\"maxPayloadSize\":65536"));
}

/// ThingsBoard's SDK requests firmware without a subscription to the response topic.
#[test]
fn requests_are_answered_without_a_subscription() {
    let (world, ()) = World::new(|devices, tenant| {
        device(devices, tenant, "A", "TOKEN");
    });
    for version in [V3, V4, V5] {
        let mut peer = world.connect(version, "TOKEN");
        let cases = [
            (
                "v1/devices/me/attributes/request/1",
                "v1/devices/me/attributes/response/1",
            ),
            ("v2/a/req/2", "v2/a/res/2"),
            ("v2/fw/request/3/chunk/0", "v2/fw/error"),
        ];
        for (asked, answered) in cases {
            peer.publish(&Publish::new(asked, r#"{"clientKeys":"none"}"#).qos(1));
            let answer = peer.receive();
            assert_eq!((answer.topic_str(), answer.qos), (answered, 1), "{asked}");
        }
        let limits = Publish::new(
            "v1/devices/me/rpc/request/4",
            r#"{"method":"getSessionLimits","params":{}}"#,
        );
        peer.publish(&limits.qos(1));
        assert_eq!(peer.receive().topic_str(), "v1/devices/me/rpc/response/4");
    }
}
