//! Chains exported by ThingsBoard.

use super::*;

fn root(shape: RootShape) -> Arc<CompiledChain> {
    Arc::new(CompiledChain::compile(TENANT_ID, CHAIN, &root_metadata(shape)).unwrap())
}

/// Message type, expected effects, and the number of passed nodes with and without the device profile node.
#[test]
fn root_chains_of_all_releases_work() {
    let cases = [
        ("POST_TELEMETRY_REQUEST", json!({"t": 5}), "DEVICE t=Long(5)@1000", 2),
        (
            "POST_ATTRIBUTES_REQUEST",
            json!({"a": 1}),
            "CLIENT_SCOPE a notify=false",
            2,
        ),
        (
            "TO_SERVER_RPC_REQUEST",
            json!({"method": "m", "params": {}}),
            "Log RPC from Device",
            2,
        ),
        (
            "RPC_CALL_FROM_SERVER_TO_DEVICE",
            json!({"method": "m", "params": {}}),
            "call m",
            2,
        ),
        ("CONNECT_EVENT", json!({}), "", 1),
        ("SOMETHING_ELSE", json!({}), "Log Other", 2),
    ];
    for (shape, more) in [(RootShape::Plain, 0), (RootShape::WithDeviceProfile, 1)] {
        for (kind, data, expected, executions) in &cases {
            let chain = root(shape);
            assert!(chain.warnings().is_empty(), "{:?}", chain.warnings());
            let mut host = TestHost::default();
            let done = run(&chain, message(kind, data.clone()), &mut host);
            assert_eq!((done.executions, done.failures.len()), (executions + more, 0), "{kind}");
            let mut all = host.saved;
            all.extend(host.done);
            all.extend(host.logged);
            all.extend(host.calls.iter().map(|call| format!("call {}", call.method)));
            assert_eq!(all.join("; "), *expected, "{kind}");
        }
    }
}

#[test]
fn decoded_telemetry_is_saved_without_json() {
    let values = crate::decode::attributes(br#"{"a":1.0,"b":"x"}"#, &crate::decode::DecodeLimits::default()).unwrap();
    let mut host = TestHost::default();
    let telemetry = ChainMessage {
        data: MessageData::Values(&values),
        ..message(POST_TELEMETRY, Json::Null)
    };
    run(&root(RootShape::WithDeviceProfile), telemetry, &mut host);
    assert_eq!(host.saved, ["DEVICE a=Double(1.0)@1000", "DEVICE b=String(\"x\")@1000"]);
}

#[test]
fn unknown_nodes_are_disabled_with_a_warning() {
    let unknown = node("geo.TbGpsGeofencingFilterNode", "fence", &json!({}));
    let foreign = json!({"type": "com.example.MyNode", "name": "mine"});
    let mut host = TestHost::default();
    for (tested, problem) in [
        (unknown, "geo.TbGpsGeofencingFilterNode is not supported"),
        (foreign, "\"com.example.MyNode\" is not a ThingsBoard node"),
    ] {
        let chain = chain(std::slice::from_ref(&tested), &[]);
        let [warning] = chain.warnings() else {
            panic!("{:?}", chain.warnings())
        };
        assert!(warning.is_disabled);
        assert_eq!(warning.problem, problem);
        let failed = run(&chain, message(POST_TELEMETRY, json!({})), &mut host);
        assert_eq!(failed.failures[0].error, format!("the node is disabled: {problem}"));
        assert_eq!(
            outputs(tested, message(POST_TELEMETRY, json!({})), &mut host),
            ["Failure"]
        );
    }
}

#[test]
fn invalid_configurations_have_warnings() {
    let cases = [
        (
            node(
                "filter.TbJsFilterNode",
                "n",
                &json!({"scriptLang": "TBEL", "tbelScript": "return msg.t > 1;", "jsScript": "return true;"}),
            ),
            true,
        ),
        (
            node("filter.TbJsFilterNode", "n", &json!({"jsScript": "return ("})),
            true,
        ),
        (
            node(
                "action.TbCreateAlarmNode",
                "n",
                &json!({"alarmType": "a", "severity": "BAD"}),
            ),
            true,
        ),
        (
            node("telemetry.TbMsgTimeseriesNode", "n", &json!({"defaultTTL": -5})),
            false,
        ),
    ];
    for (tested, is_disabled) in cases {
        let chain = chain(std::slice::from_ref(&tested), &[]);
        assert_eq!(
            chain
                .warnings()
                .iter()
                .map(|warning| warning.is_disabled)
                .collect::<Vec<_>>(),
            [is_disabled],
            "{tested}"
        );
        assert!(chain.warnings()[0].to_string().starts_with("node \"n\""));
    }
}

#[test]
fn invalid_chains_are_rejected() {
    let cases = [
        json!({"firstNodeIndex": 1, "nodes": [log()]}),
        json!({"firstNodeIndex": 0, "nodes": [log()], "connections": [{"fromIndex": 0, "toIndex": 7, "type": "x"}]}),
        json!({"firstNodeIndex": 0, "nodes": [log()], "connections": [{"fromIndex": 0, "toIndex": 0}]}),
    ];
    for metadata in cases {
        assert!(
            CompiledChain::compile(TENANT_ID, CHAIN, &metadata).is_err(),
            "{metadata}"
        );
    }
    let export = json!({"ruleChain": {"name": "R"}, "metadata": root_metadata(RootShape::Plain)});
    assert_eq!(Export::parse(&export).unwrap().name, "R");
    assert!(Export::parse(&json!({"ruleChain": {}})).is_err());
}

#[test]
fn expressions_of_a_chain_are_limited_in_memory() {
    let copies = |pattern: &str, count: usize| {
        let node = json!({"type": "org.thingsboard.rule.engine.transform.TbCopyKeysNode", "name": "copy",
            "configuration": {"copyFrom": "DATA", "keys": [pattern]}});
        let metadata = json!({"firstNodeIndex": 0, "nodes": vec![node; count]});
        let chain = CompiledChain::compile(TENANT_ID, CHAIN, &metadata).unwrap();
        chain.warnings().iter().filter(|warning| warning.is_disabled).count()
    };
    assert_eq!(copies("temperature.*", 500), 0);
    let disabled = copies("[a-z]{1,100}[0-9]{1,1000}", 2_000);
    assert!(disabled > 1_500, "{disabled}");
}
