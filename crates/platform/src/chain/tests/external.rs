//! Nodes for other systems: what they send, and how the message goes on with what is said.

use super::*;
use crate::chain::host::Outbound;

const OUTER: RuleChainId = RuleChainId(Uuid([9; 16]));

fn rest(more: &Json) -> Json {
    let mut configuration = json!({"restEndpointUrlPattern": "http://h/${deviceName}?t=$[t]", "requestMethod": "POST",
        "headers": {"X-Type": "${deviceType}"}, "readTimeoutMs": 0});
    configuration
        .as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    node("rest.TbRestApiCallNode", "n", &configuration)
}

fn mqtt(more: &Json) -> Json {
    let mut configuration = json!({"topicPattern": "a/${deviceName}", "host": "h", "port": 1884, "clientId": "c", "retainedMessage": true,
        "credentials": {"type": "basic", "username": "u", "password": "p"}});
    configuration
        .as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    node("mqtt.TbMqttNode", "n", &configuration)
}

fn kafka(more: &Json) -> Json {
    let mut configuration = json!({"topicPattern": "t-${deviceName}", "keyPattern": "$[t]", "bootstrapServers": "h:9092", "acks": "1",
        "linger": 5, "addMetadataKeyValuesAsKafkaHeaders": true});
    configuration
        .as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    node("kafka.TbKafkaNode", "n", &configuration)
}

fn sent_by(tested: Json, data: Json) -> Outbound {
    let mut host = TestHost::default();
    let labels = outputs(tested, message(POST_TELEMETRY, data), &mut host);
    assert_eq!(labels, Vec::<String>::new(), "it waits for what is said");
    assert_eq!(host.continuations.len(), 1);
    host.sent.remove(0)
}

#[test]
fn a_rest_call_has_everything_filled_in() {
    let Outbound::Rest(call) = sent_by(rest(&json!({})), json!({"t": 1})) else {
        panic!()
    };
    assert_eq!((call.method.as_str(), call.url.as_str()), ("POST", "http://h/D?t=1"));
    assert_eq!(call.body.as_deref(), Some(r#"{"t":1}"#));
    let headers = [("X-Type", "default"), ("Content-Type", "application/json")];
    assert_eq!(
        call.headers,
        headers.map(|(name, value)| (name.to_owned(), value.to_owned()))
    );
    assert_eq!((call.timeout_ms, call.answer_bytes_max), (60_000, 256 << 10));
    let rows = [
        (json!({"requestMethod": "GET"}), None),
        (json!({"ignoreRequestBody": true}), None),
        (json!({"requestMethod": "DELETE"}), Some(r#"{"t":1}"#)),
    ];
    for (more, body) in rows {
        let Outbound::Rest(call) = sent_by(rest(&more), json!({"t": 1})) else {
            panic!()
        };
        assert_eq!(call.body.as_deref(), body, "{more}");
    }
    let Outbound::Rest(call) = sent_by(rest(&json!({"parseToPlainText": true})), json!("text")) else {
        panic!()
    };
    assert_eq!(call.body.as_deref(), Some("text"));
    let basic = json!({"credentials": {"type": "basic", "username": "u", "password": "p"}});
    let Outbound::Rest(call) = sent_by(rest(&basic), json!({})) else {
        panic!()
    };
    assert!(
        call.headers
            .contains(&("Authorization".to_owned(), "Basic dTpw".to_owned()))
    );
}

#[test]
fn records_and_messages_have_everything_filled_in() {
    let Outbound::Kafka(record) = sent_by(kafka(&json!({})), json!({"t": 1})) else {
        panic!()
    };
    assert_eq!((record.topic.as_str(), record.key.as_deref()), ("t-D", Some("1")));
    assert_eq!(record.value, r#"{"t":1}"#);
    assert_eq!((record.server.acks.as_str(), record.server.linger_ms), ("1", 5));
    assert!(
        record
            .headers
            .contains(&("tb_msg_md_deviceName".to_owned(), "D".to_owned()))
    );
    let Outbound::Mqtt(sent) = sent_by(mqtt(&json!({})), json!({"t": 1})) else {
        panic!()
    };
    assert_eq!(
        (sent.topic.as_str(), sent.payload.as_str(), sent.is_retained),
        ("a/D", r#"{"t":1}"#, true)
    );
    assert_eq!((sent.server.host.as_str(), sent.server.port), ("h", 1884));
    assert_eq!(
        (sent.server.user.as_deref(), sent.server.password.as_deref()),
        (Some("u"), Some("p"))
    );
    assert_eq!(
        (sent.server.client_id.as_str(), sent.server.version.as_str()),
        ("c", "MQTT_3_1_1")
    );
}

#[test]
fn what_cannot_be_sent_so_is_disabled() {
    let certificate = json!({"credentials": {"type": "cert.PEM"}});
    for tested in [
        rest(&json!({"restEndpointUrlPattern": ""})),
        rest(&json!({"requestMethod": "FETCH"})),
        rest(&json!({"enableProxy": true})),
        rest(&certificate),
        mqtt(&certificate),
        mqtt(&json!({"host": ""})),
        mqtt(&json!({"port": 70000})),
        kafka(&json!({"bootstrapServers": null})),
        kafka(&json!({"acks": "2"})),
        kafka(&json!({"otherProperties": {"ssl.keystore.location": "/k"}})),
    ] {
        let disabled = chain(std::slice::from_ref(&tested), &[]);
        assert!(
            disabled.warnings().iter().any(|warning| warning.is_disabled),
            "{tested}"
        );
    }
    let strange = chain(&[kafka(&json!({"otherProperties": {"x.y": "1"}}))], &[]);
    let warnings: Vec<(bool, &str)> = strange
        .warnings()
        .iter()
        .map(|w| (w.is_disabled, &*w.problem))
        .collect();
    assert_eq!(warnings, [(false, "the property x.y has no effect")]);
}

#[test]
fn a_message_goes_on_with_what_is_said() {
    for tested in [rest(&json!({})), kafka(&json!({})), mqtt(&json!({}))] {
        let asking = chain(
            &[tested, log(), node("action.TbLogNode", "bad", &json!({}))],
            &[(0, "Success", 1), (0, "Failure", 2)],
        );
        let mut host = TestHost::default();
        host.chains.insert(CHAIN, Arc::clone(&asking));
        run(&asking, message(POST_TELEMETRY, json!({"t": 1})), &mut host);
        let then = host.continuations.remove(0);
        let said = |name: &str, value: &str| vec![(name.to_owned(), value.to_owned())];
        let answer = Answer {
            data: Some(json!({"ok": true})),
            metadata: said("statusCode", "200"),
        };
        let done = returned(then.clone(), Ok(answer), &mut host);
        assert_eq!(
            (done.failures.len(), host.logged.as_slice()),
            (0, &["log".to_owned()][..])
        );
        assert!(host.texts[0].contains(r#"{"ok":true}"#) && host.texts[0].contains(r#""statusCode":"200""#));
        let refusal = Refusal {
            error: "busy".to_owned(),
            metadata: said("statusCode", "503"),
        };
        let done = returned(then, Err(refusal), &mut host);
        assert_eq!((done.failures.len(), host.logged[1].as_str()), (0, "bad"));
        assert!(host.texts[1].contains(r#"{"t":1}"#) && host.texts[1].contains(r#""error":"busy""#));
        assert!(host.texts[1].contains(r#""statusCode":"503""#));
        host.fails_external = true;
        run(&asking, message(POST_TELEMETRY, json!({"t": 1})), &mut host);
        assert_eq!(host.logged[2], "bad", "not taken over");
    }
}

#[test]
fn a_refusal_that_nobody_takes_is_a_failure() {
    let asking = chain(&[rest(&json!({}))], &[]);
    let mut host = TestHost::default();
    host.chains.insert(CHAIN, Arc::clone(&asking));
    run(&asking, message(POST_TELEMETRY, json!({"t": 1})), &mut host);
    let then = host.continuations.remove(0);
    let done = returned(then, Err(Refusal::new("busy")), &mut host);
    assert_eq!(done.failures[0].error, "busy");
    let calling = chain(&[node("rpc.TbSendRPCRequestNode", "call", &json!({}))], &[]);
    host.chains.insert(CHAIN, Arc::clone(&calling));
    run(&calling, message("A", json!({"method": "m", "params": 1})), &mut host);
    let then = host.continuations.remove(0);
    let done = resume(then, "Failure", Some(json!({"error": "TIMEOUT"})), &mut host);
    assert_eq!(done.failures[0].error, "TIMEOUT", "of a call to a device, too");
}

/// What waits within another chain comes out of it all the same.
#[test]
fn outputs_behind_what_waits_reach_the_outer_chain() {
    let waiting = [
        rest(&json!({})),
        node("flow.TbCheckpointNode", "n", &json!({"queueName": "Main"})),
        node("rpc.TbSendRPCRequestNode", "n", &json!({})),
    ];
    for first in waiting {
        let inner = chain(
            &[first, node("flow.TbRuleChainOutputNode", "done", &json!({}))],
            &[(0, "Success", 1)],
        );
        let enter = node(
            "flow.TbRuleChainInputNode",
            "in",
            &json!({"ruleChainId": CHAIN.0.to_string()}),
        );
        let metadata = json!({"firstNodeIndex": 0, "nodes": [enter, log()],
            "connections": [{"fromIndex": 0, "toIndex": 1, "type": "done"}]});
        let outer = Arc::new(Chain::compile(TENANT_ID, OUTER, &metadata).unwrap());
        let mut host = TestHost::default();
        host.chains.insert(CHAIN, inner);
        host.chains.insert(OUTER, Arc::clone(&outer));
        run(
            &outer,
            message(POST_TELEMETRY, json!({"method": "m", "params": 1})),
            &mut host,
        );
        assert!(host.logged.is_empty());
        let then = host.continuations.remove(0);
        resume(then, "Success", None, &mut host);
        assert_eq!(host.logged, ["log"]);
    }
}
