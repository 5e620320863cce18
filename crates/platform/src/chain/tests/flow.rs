//! Failures, cycles, nested chains, delayed answers.

use super::*;

const OTHER: RuleChainId = RuleChainId(Uuid([9; 16]));

fn input() -> Json {
    node("flow.TbRuleChainInputNode", "in", &json!({"ruleChainId": OTHER.0}))
}

#[test]
fn failure_uses_its_connection_or_fails_the_message() {
    let failing = node("telemetry.TbMsgTimeseriesNode", "save", &json!({}));
    let mut host = TestHost::default();
    let handled = run(
        &chain(&[failing.clone(), log()], &[(0, "Failure", 1)]),
        message("OTHER", json!({})),
        &mut host,
    );
    assert!(handled.failures.is_empty());
    assert!(
        host.texts[0].contains("\"error\":\"Unsupported msg type: OTHER\""),
        "{}",
        host.texts[0]
    );
    let failed = run(&chain(&[failing], &[]), message("OTHER", json!({})), &mut host);
    let expected = NodeFailure {
        chain: CHAIN,
        node: "save".to_owned(),
        error: "Unsupported msg type: OTHER".to_owned(),
        at: None,
    };
    assert_eq!(failed.failures, [expected]);
}

#[test]
fn cycles_end() {
    let circle = chain(&[log()], &[(0, "Success", 0)]);
    let mut host = TestHost::default();
    let ended = run(&circle, message(POST_TELEMETRY, json!({})), &mut host);
    assert_eq!(ended.executions, STEPS_MAX as u64);
    assert!(ended.failures[0].error.contains("check the chains for a cycle"));
    let mut host = TestHost::default();
    let itself =
        Arc::new(CompiledChain::compile(TENANT_ID, OTHER, &json!({"firstNodeIndex": 0, "nodes": [input()]})).unwrap());
    host.chains.insert(OTHER, Arc::clone(&itself));
    let ended = run(&itself, message(POST_TELEMETRY, json!({})), &mut host);
    assert!(ended.failures[0].error.contains("nested more than"));
}

#[test]
fn message_over_its_time_limit_ends() {
    let circle = chain(&[log()], &[(0, "Success", 0), (0, "Failure", 0)]);
    let mut host = TestHost::default();
    host.logs_in_time = Some(20);
    let ended = run(&circle, message(POST_TELEMETRY, json!({})), &mut host);
    assert!((20..100).contains(&ended.executions), "{ended:?}");
    assert_eq!(ended.failures.len(), 1);
    assert!(ended.failures[0].error.contains("time limit"), "{ended:?}");
    // A later run for the same message.
    let ended = run(&circle, message(POST_TELEMETRY, json!({})), &mut host);
    assert_eq!((ended.executions, ended.failures.len()), (0, 1));
}

#[test]
fn paused_run_continues_where_it_was() {
    let named = |name: usize| node("action.TbLogNode", &name.to_string(), &json!({}));
    let nodes: Vec<Json> = (0..60).map(named).collect();
    // Two branches, which share the message.
    let mut connections: Vec<(usize, &str, usize)> = (0..29).map(|from| (from, "Success", from + 1)).collect();
    connections.push((0, "Success", 30));
    connections.extend((30..59).map(|from| (from, "Success", from + 1)));
    let tree = chain(&nodes, &connections);
    let mut host = TestHost::default();
    host.chains.insert(CHAIN, Arc::clone(&tree));
    host.logs_in_slice = Some(10);
    let mut done = run(&tree, message(POST_TELEMETRY, json!({"a": 1})), &mut host);
    let (mut pauses, mut executions) = (0, done.executions);
    while let Some(paused) = done.paused.take() {
        assert!(paused.weight() < 2000, "the message is shared");
        host.logs_in_slice = Some(host.logged.len() + 10);
        pauses += 1;
        done = run_on(*paused, &mut host);
        executions += done.executions;
    }
    let all: Vec<String> = (0..60).map(|name| name.to_string()).collect();
    assert_eq!(host.logged, all);
    assert!(
        pauses >= 3 && executions == 60 && done.failures.is_empty(),
        "{pauses} {executions}"
    );
    // A chain without the node fails the rest.
    host.logged.clear();
    host.logs_in_slice = Some(10);
    let paused = run(&tree, message(POST_TELEMETRY, json!({})), &mut host)
        .paused
        .unwrap();
    host.chains.insert(CHAIN, chain(&[log()], &[]));
    let failed = run_on(*paused, &mut host);
    assert!(failed.failures[0].error.contains("was changed"), "{failed:?}");
}

#[test]
fn node_that_would_make_too_many_messages_fails() {
    let split = node("transform.TbSplitArrayMsgNode", "split", &json!({}));
    let mut host = TestHost::default();
    let elements = vec![1; STEPS_MAX + 1];
    let failed = run(
        &chain(std::slice::from_ref(&split), &[]),
        message(POST_TELEMETRY, json!(elements)),
        &mut host,
    );
    assert!(failed.failures[0].error.contains("the limit is 10000"), "{failed:?}");
    let mut large = message(POST_TELEMETRY, json!(vec![1; 1000]));
    large.metadata.put("large", "x".repeat(100_000));
    let failed = run(&chain(&[split], &[]), large, &mut host);
    assert!(failed.failures[0].error.contains("exceed 16 MiB"), "{failed:?}");
}

#[test]
fn message_with_too_many_branches_ends() {
    let many: Vec<(usize, &str, usize)> = (0..9_000).map(|_| (0, "Success", 0)).collect();
    let mut host = TestHost::default();
    let ended = run(&chain(&[log()], &many), message(POST_TELEMETRY, json!({})), &mut host);
    assert!(
        ended.executions < 10 && ended.failures[0].error.contains("check the chains for a cycle"),
        "{ended:?}"
    );
    let too_many: Vec<Json> = (0..10_001)
        .map(|_| json!({"fromIndex": 0, "toIndex": 0, "type": "Success"}))
        .collect();
    for metadata in [
        json!({"firstNodeIndex": 0, "nodes": [log()], "connections": too_many}),
        json!({"nodes": [1], "connections": []}),
        json!({"nodes": [log(), "x"], "connections": []}),
    ] {
        assert!(CompiledChain::compile(TENANT_ID, CHAIN, &metadata).is_err());
    }
}

#[test]
fn branches_run_in_connection_order() {
    let named = |name: &str| node("action.TbLogNode", name, &json!({}));
    let nodes = [named("0"), named("1"), named("2"), named("3"), named("4")];
    let tree = chain(
        &nodes,
        &[
            (0, "Success", 1),
            (0, "Success", 2),
            (1, "Success", 3),
            (2, "Success", 4),
        ],
    );
    let mut host = TestHost::default();
    run(&tree, message(POST_TELEMETRY, json!({})), &mut host);
    assert_eq!(host.logged, ["0", "1", "3", "2", "4"]);
}

#[test]
fn nested_chains_return_to_their_caller() {
    let nodes = [
        node("filter.TbMsgTypeFilterNode", "filter", &json!({"messageTypes": ["A"]})),
        node("flow.TbRuleChainOutputNode", "Passed", &json!({})),
    ];
    let metadata =
        json!({"firstNodeIndex": 0, "nodes": nodes, "connections": [{"fromIndex": 0, "toIndex": 1, "type": "True"}]});
    let mut host = TestHost::default();
    host.chains.insert(
        OTHER,
        Arc::new(CompiledChain::compile(TENANT_ID, OTHER, &metadata).unwrap()),
    );
    let outer = chain(&[input(), log()], &[(0, "Passed", 1)]);
    run(&outer, message("B", json!({})), &mut host);
    assert!(host.logged.is_empty());
    run(&outer, message("A", json!({})), &mut host);
    assert_eq!(host.logged, ["log"]);
    host.chains.clear();
    assert_eq!(run(&outer, message("A", json!({})), &mut host).failures.len(), 1);
}

#[test]
fn chain_of_another_tenant_is_not_entered() {
    let theirs = json!({"firstNodeIndex": 0, "nodes": [log()]});
    let stranger = TenantId(Uuid([0xee; 16]));
    let mut host = TestHost::default();
    host.chains.insert(
        OTHER,
        Arc::new(CompiledChain::compile(stranger, OTHER, &theirs).unwrap()),
    );
    let outer = chain(&[input()], &[]);
    let done = run(&outer, message("A", json!({})), &mut host);
    assert_eq!(
        done.failures[0].error,
        format!("rule chain {OTHER} does not exist in this tenant")
    );
    assert!(host.logged.is_empty());
}

#[test]
#[cfg(feature = "script")]
fn generator_uses_only_its_own_tenants_entities() {
    for (originator, failures) in [(Uuid([0xee; 16]), 1), (DEVICE.id, 0)] {
        let configuration = json!({"msgCount": 2, "periodInSeconds": 5, "originatorId": originator, "originatorType": "DEVICE",
            "jsScript": "return {msg: {}, metadata: {}, msgType: 'POST_TELEMETRY_REQUEST'};"});
        let mut generator = node("debug.TbMsgGeneratorNode", "n", &configuration);
        generator["debugMode"] = json!(true);
        let mut host = TestHost::default();
        let made = chain(&[generator, log()], &[(0, "Success", 1)]);
        let done = tick(&made, 0, TENANT.id, "node-1", &mut host);
        assert_eq!((done.failures.len(), host.logged.len()), (failures, 1 - failures));
        let foreign = "n Failure DEVICE eeeeeeee-eeee-eeee-eeee-eeeeeeeeeeee does not exist in this tenant";
        assert_eq!(host.debugged, [if failures == 1 { foreign } else { "n Success " }]);
    }
}

#[test]
#[cfg(feature = "script")]
fn failed_generator_uses_its_failure_connection() {
    let broken = json!({"msgCount": 0, "periodInSeconds": 5, "jsScript": "throw new Error('broken');"});
    let nodes = [node("debug.TbMsgGeneratorNode", "n", &broken), log()];
    let mut host = TestHost::default();
    let done = tick(&chain(&nodes, &[(0, "Failure", 1)]), 0, TENANT.id, "node-1", &mut host);
    assert!(done.failures.is_empty());
    assert!(host.texts[0].contains("broken"), "{}", host.texts[0]);
}

#[test]
fn old_files_connect_directly_to_other_chains() {
    let metadata = json!({"firstNodeIndex": 0, "nodes": [log()], "connections": [],
        "ruleChainConnections": [{"fromIndex": 0, "type": "Success", "targetRuleChainId": {"entityType": "RULE_CHAIN", "id": OTHER.0}}]});
    let outer = Arc::new(CompiledChain::compile(TENANT_ID, CHAIN, &metadata).unwrap());
    let mut host = TestHost::default();
    let inner = json!({"firstNodeIndex": 0, "nodes": [node("action.TbLogNode", "inner", &json!({}))]});
    host.chains.insert(
        OTHER,
        Arc::new(CompiledChain::compile(TENANT_ID, OTHER, &inner).unwrap()),
    );
    run(&outer, message("A", json!({})), &mut host);
    assert_eq!(host.logged, ["log", "inner"]);
}

#[test]
fn rpc_requests_continue_with_the_response() {
    let nodes = [
        node("rpc.TbSendRPCRequestNode", "call", &json!({"timeoutInSeconds": 60})),
        log(),
    ];
    let calling = chain(&nodes, &[(0, "Success", 1)]);
    let mut host = TestHost::default();
    host.chains.insert(CHAIN, Arc::clone(&calling));
    run(
        &calling,
        message("A", json!({"method": "set", "params": {"on": true}})),
        &mut host,
    );
    let call = &host.calls[0];
    assert_eq!(
        (call.method.as_str(), call.params.as_str(), call.expires_ms),
        ("set", r#"{"on":true}"#, 65_000)
    );
    assert!(host.logged.is_empty());
    let then = host.continuations.remove(0);
    resume(then, "Success", Some(json!({"ok": 1})), &mut host);
    assert!(host.texts[0].contains(r#"{"ok":1}"#));
}

#[test]
fn checkpoint_continues_from_its_queue() {
    let nodes = [
        node("flow.TbCheckpointNode", "point", &json!({"queueName": "HighPriority"})),
        log(),
    ];
    let queued = chain(&nodes, &[(0, "Success", 1)]);
    let mut host = TestHost::default();
    host.chains.insert(CHAIN, Arc::clone(&queued));
    run(&queued, message("A", json!({})), &mut host);
    assert_eq!(
        (host.done.as_slice(), host.logged.len()),
        (&["enqueue HighPriority".to_owned()][..], 0)
    );
    let then = host.continuations.remove(0);
    resume(then, "Success", None, &mut host);
    assert_eq!(host.logged, ["log"]);
}

#[test]
fn message_counts_become_telemetry_of_the_tenant() {
    let nodes = [
        node(
            "action.TbMsgCountNode",
            "count",
            &json!({"interval": 10, "telemetryPrefix": "messageCount"}),
        ),
        node("telemetry.TbMsgTimeseriesNode", "save", &json!({"defaultTTL": 0})),
    ];
    let counting = chain(&nodes, &[(0, "Success", 1)]);
    assert_eq!(counting.periodic_nodes().collect::<Vec<_>>(), [(0, 10)]);
    let mut host = TestHost::default();
    for _ in 0..3 {
        run(&counting, message(POST_TELEMETRY, json!({"t": 1})), &mut host);
    }
    assert!(host.saved.is_empty());
    tick(&counting, 0, TENANT.id, "node-1", &mut host);
    tick(&counting, 0, TENANT.id, "node-1", &mut host);
    assert_eq!(
        host.saved,
        [
            "TENANT messageCount_node-1=Long(3)@5000",
            "TENANT messageCount_node-1=Long(0)@5000"
        ]
    );
}

#[test]
fn debug_events_show_inputs_and_outputs() {
    let mut debugged = log();
    debugged["debugSettings"] = json!({"allEnabled": true});
    let mut failing = node("telemetry.TbMsgTimeseriesNode", "save", &json!({}));
    failing["debugMode"] = json!(true);
    let mut host = TestHost::default();
    run(
        &chain(&[debugged, failing], &[(0, "Success", 1)]),
        message("A", json!({})),
        &mut host,
    );
    assert_eq!(
        host.debugged,
        [
            "log In ",
            "log Success ",
            "save In ",
            "save Failure Unsupported msg type: A"
        ]
    );
}
