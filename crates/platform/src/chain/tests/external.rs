//! Nodes for external systems: their requests, and how messages continue with the results.

use super::*;
use crate::chain::host::{ExternalCall, RestUrlPart};

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

fn sent_by(tested: Json, data: Json) -> ExternalCall {
    let mut host = TestHost::default();
    let labels = outputs(tested, message(POST_TELEMETRY, data), &mut host);
    assert_eq!(labels, Vec::<String>::new(), "the message waits for the result");
    assert_eq!(host.continuations.len(), 1);
    host.sent.remove(0)
}

#[test]
fn rest_call_patterns_are_filled() {
    let ExternalCall::Rest(call) = sent_by(rest(&json!({})), json!({"t": 1})) else {
        panic!()
    };
    assert_eq!((call.method.as_str(), call.server.as_str()), ("POST", "http://h"));
    let (literal, value) = (
        |text: &str| RestUrlPart::Literal(text.to_owned()),
        |text: &str| RestUrlPart::Value(text.to_owned()),
    );
    assert_eq!(call.path, [literal("/"), value("D"), literal("?t="), value("1")]);
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
        let ExternalCall::Rest(call) = sent_by(rest(&more), json!({"t": 1})) else {
            panic!()
        };
        assert_eq!(call.body.as_deref(), body, "{more}");
    }
    let ExternalCall::Rest(call) = sent_by(rest(&json!({"parseToPlainText": true})), json!("text")) else {
        panic!()
    };
    assert_eq!(call.body.as_deref(), Some("text"));
    let basic = json!({"credentials": {"type": "basic", "username": "u", "password": "p"}});
    let ExternalCall::Rest(call) = sent_by(rest(&basic), json!({})) else {
        panic!()
    };
    assert!(
        call.headers
            .contains(&("Authorization".to_owned(), "Basic dTpw".to_owned()))
    );
}

#[test]
fn values_are_inserted_only_in_path_and_query() {
    for (url, server, path) in [
        ("http://h", "http://h", vec![]),
        (
            "https://h:8443?a",
            "https://h:8443",
            vec![RestUrlPart::Literal("?a".to_owned())],
        ),
        (
            "http://[::1]/x",
            "http://[::1]",
            vec![RestUrlPart::Literal("/x".to_owned())],
        ),
        (
            "http://h/${none}$",
            "http://h",
            vec![RestUrlPart::Literal("/${none}$".to_owned())],
        ),
        (
            "http://h/$[t]$[t]x",
            "http://h",
            vec![
                RestUrlPart::Literal("/".to_owned()),
                RestUrlPart::Value("@e:80/../${deviceName}".to_owned()),
                RestUrlPart::Value("@e:80/../${deviceName}".to_owned()),
                RestUrlPart::Literal("x".to_owned()),
            ],
        ),
    ] {
        let tested = rest(&json!({"restEndpointUrlPattern": url}));
        let ExternalCall::Rest(call) = sent_by(tested, json!({"t": "@e:80/../${deviceName}"})) else {
            panic!()
        };
        assert_eq!((call.server.as_str(), call.path), (server, path));
    }
}

#[test]
fn node_with_a_pattern_in_its_target_is_disabled() {
    for (more, expected) in [
        (json!({"restEndpointUrlPattern": "http://${host}/x"}), "found a pattern"),
        (json!({"restEndpointUrlPattern": "http://h$[x]/x"}), "found a pattern"),
        (json!({"restEndpointUrlPattern": "http://h${a/b}"}), "found a pattern"),
        (
            json!({"restEndpointUrlPattern": "http://h:${port}/"}),
            "found a pattern",
        ),
        (json!({"restEndpointUrlPattern": "$[scheme]://h/"}), "found a pattern"),
        (json!({"restEndpointUrlPattern": "${url}"}), "found a pattern"),
        (json!({"restEndpointUrlPattern": "h/x"}), "is not an http or https URL"),
        (json!({"restEndpointUrlPattern": "http://h:99999/x"}), "found the port"),
        (json!({"restEndpointUrlPattern": "http://h:/x"}), "found the port"),
        (json!({"restEndpointUrlPattern": "http://h:abc"}), "found the port"),
        (json!({"headers": {"Host": "${host}"}}), "headers.Host: found a pattern"),
        (json!({"readTimeoutMs": "soon"}), "readTimeoutMs is"),
        (json!({"readTimeoutMs": -1}), "readTimeoutMs is"),
    ] {
        let disabled = chain(std::slice::from_ref(&rest(&more)), &[]);
        let warnings = disabled.warnings();
        assert!(
            warnings
                .iter()
                .any(|warning| warning.is_disabled && warning.problem.contains(expected)),
            "{more}: {warnings:?}"
        );
    }
}

#[test]
fn message_cannot_set_the_host_header() {
    let tested = rest(&json!({"headers": {"$[name]": "evil"}}));
    let mut host = TestHost::default();
    let input = message(POST_TELEMETRY, json!({"name": "hOST"}));
    assert_eq!(outputs(tested.clone(), input, &mut host), ["Failure"]);
    assert!(host.sent.is_empty());
    let ExternalCall::Rest(call) = sent_by(tested, json!({"name": "x-host"})) else {
        panic!()
    };
    assert!(call.headers.contains(&("x-host".to_owned(), "evil".to_owned())));
}

#[test]
fn kafka_and_mqtt_patterns_are_filled() {
    let ExternalCall::Kafka(record) = sent_by(kafka(&json!({})), json!({"t": 1})) else {
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
    let ExternalCall::Mqtt(sent) = sent_by(mqtt(&json!({})), json!({"t": 1})) else {
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
fn unsupported_configurations_are_disabled() {
    let certificate = json!({"credentials": {"type": "cert.PEM"}});
    for tested in [
        rest(&json!({"restEndpointUrlPattern": ""})),
        rest(&json!({"requestMethod": "FETCH"})),
        rest(&json!({"enableProxy": true})),
        rest(&certificate),
        mqtt(&certificate),
        mqtt(&json!({"host": ""})),
        mqtt(&json!({"port": 70000})),
        mqtt(&json!({"port": 0})),
        mqtt(&json!({"port": "abc"})),
        mqtt(&json!({"port": -1})),
        mqtt(&json!({"connectTimeoutSec": "soon"})),
        mqtt(&json!({"protocolVersion": "MQTT_4"})),
        kafka(&json!({"linger": "x"})),
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
fn message_continues_with_the_result() {
    for tested in [rest(&json!({})), kafka(&json!({})), mqtt(&json!({}))] {
        let asking = chain(
            &[tested, log(), node("action.TbLogNode", "bad", &json!({}))],
            &[(0, "Success", 1), (0, "Failure", 2)],
        );
        let mut host = TestHost::default();
        host.chains.insert(CHAIN, Arc::clone(&asking));
        run(&asking, message(POST_TELEMETRY, json!({"t": 1})), &mut host);
        let then = host.continuations.remove(0);
        let metadata_of = |name: &str, value: &str| vec![(name.to_owned(), value.to_owned())];
        let answer = ExternalAnswer {
            data: Some(json!({"ok": true})),
            metadata: metadata_of("statusCode", "200"),
        };
        let done = returned(then.clone(), Ok(answer), &mut host);
        assert_eq!(
            (done.failures.len(), host.logged.as_slice()),
            (0, &["log".to_owned()][..])
        );
        assert!(host.texts[0].contains(r#"{"ok":true}"#) && host.texts[0].contains(r#""statusCode":"200""#));
        let refusal = ExternalError {
            error: "busy".to_owned(),
            metadata: metadata_of("statusCode", "503"),
        };
        let done = returned(then, Err(refusal), &mut host);
        assert_eq!((done.failures.len(), host.logged[1].as_str()), (0, "bad"));
        assert!(host.texts[1].contains(r#"{"t":1}"#) && host.texts[1].contains(r#""error":"busy""#));
        assert!(host.texts[1].contains(r#""statusCode":"503""#));
        host.fails_external = true;
        run(&asking, message(POST_TELEMETRY, json!({"t": 1})), &mut host);
        assert_eq!(host.logged[2], "bad", "rejected by the host");
    }
}

#[test]
fn rejection_without_failure_connection_fails() {
    let asking = chain(&[rest(&json!({}))], &[]);
    let mut host = TestHost::default();
    host.chains.insert(CHAIN, Arc::clone(&asking));
    run(&asking, message(POST_TELEMETRY, json!({"t": 1})), &mut host);
    let then = host.continuations.remove(0);
    let done = returned(then, Err(ExternalError::new("busy")), &mut host);
    assert_eq!(done.failures[0].error, "busy");
    let calling = chain(&[node("rpc.TbSendRPCRequestNode", "call", &json!({}))], &[]);
    host.chains.insert(CHAIN, Arc::clone(&calling));
    run(&calling, message("A", json!({"method": "m", "params": 1})), &mut host);
    let then = host.continuations.remove(0);
    let done = resume(then, "Failure", Some(json!({"error": "TIMEOUT"})), &mut host);
    assert_eq!(done.failures[0].error, "TIMEOUT", "also for an RPC request to a device");
}

/// A message that waits within a nested chain can still leave it.
#[test]
fn outputs_after_a_wait_reach_the_outer_chain() {
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
        let outer = Arc::new(CompiledChain::compile(TENANT_ID, OUTER, &metadata).unwrap());
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
