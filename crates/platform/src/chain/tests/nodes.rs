//! Tests of single nodes: configuration, message, connection.

use timeseries::{PointDestination, PointValue, TimedValue};

use super::host::effect;
use super::*;
use crate::alarm_rules::AlarmTransition;
use crate::model::{Alarm, AlarmSeverity, AttributeScope, Relation, RelationGroup};

#[test]
fn filters_select_a_connection() {
    let data = || json!({"t": 5, "n": null});
    let cases = [
        ("filter.TbMsgTypeSwitchNode", json!({}), "Post telemetry"),
        (
            "filter.TbMsgTypeFilterNode",
            json!({"messageTypes": ["POST_TELEMETRY_REQUEST"]}),
            "True",
        ),
        (
            "filter.TbMsgTypeFilterNode",
            json!({"messageTypes": ["ALARM"]}),
            "False",
        ),
        (
            "filter.TbCheckMessageNode",
            json!({"messageNames": ["t"], "metadataNames": ["deviceName"], "checkAllKeys": true}),
            "True",
        ),
        (
            "filter.TbCheckMessageNode",
            json!({"messageNames": ["t", "u"], "metadataNames": [], "checkAllKeys": true}),
            "False",
        ),
        (
            "filter.TbCheckMessageNode",
            json!({"messageNames": ["n"], "metadataNames": [], "checkAllKeys": false}),
            "False",
        ),
        (
            "filter.TbCheckMessageNode",
            json!({"messageNames": ["u"], "metadataNames": ["deviceType"], "checkAllKeys": false}),
            "True",
        ),
        ("filter.TbDeviceTypeSwitchNode", json!({}), "default"),
        (
            "filter.TbOriginatorTypeFilterNode",
            json!({"originatorTypes": ["DEVICE"]}),
            "True",
        ),
        (
            "filter.TbOriginatorTypeFilterNode",
            json!({"originatorTypes": ["ASSET"]}),
            "False",
        ),
        ("filter.TbOriginatorTypeSwitchNode", json!({}), "Device"),
        (
            "filter.TbCheckRelationNode",
            json!({"direction": "FROM", "relationType": "Contains"}),
            "True",
        ),
        (
            "filter.TbCheckRelationNode",
            json!({"direction": "FROM", "relationType": "Manages"}),
            "False",
        ),
        (
            "filter.TbCheckRelationNode",
            json!({"direction": "TO", "relationType": "Contains"}),
            "False",
        ),
        ("flow.TbAckNode", json!({}), "Success"),
    ];
    for (class, configuration, expected) in cases {
        let mut host = TestHost::default();
        host.relations = vec![contains(TENANT, DEVICE)];
        let tested = node(class, "n", &configuration);
        assert_eq!(
            outputs(tested, message(POST_TELEMETRY, data()), &mut host),
            [expected],
            "{class} {configuration}"
        );
    }
}

fn contains(from: EntityId, to: EntityId) -> Relation {
    Relation {
        from,
        to,
        kind: "Contains".to_owned(),
        group: RelationGroup::Common,
        additional_info: None,
    }
}

/// The node's output message as logged: data and metadata.
fn after(tested: Json, data: Json, host: &mut TestHost) -> (Json, Json) {
    let logged = outputs(tested, message(POST_TELEMETRY, data), host);
    assert_eq!(logged, ["Success"]);
    let text = host.texts.pop().unwrap();
    let (data, metadata) = text
        .trim_start_matches("\nIncoming message:\n")
        .split_once("\nIncoming metadata:\n")
        .unwrap();
    (
        serde_json::from_str(data).unwrap(),
        serde_json::from_str(metadata).unwrap(),
    )
}

fn attribute(host: &mut TestHost, entity: EntityId, scope: AttributeScope, key: &str, value: i64) {
    host.attributes
        .push((entity, scope, key.to_owned(), PointValue::Long(value)));
}

#[test]
fn attributes_are_added_with_prefixes() {
    let mut host = TestHost::default();
    attribute(&mut host, DEVICE, AttributeScope::ClientScope, "c", 1);
    attribute(&mut host, DEVICE, AttributeScope::SharedScope, "s", 2);
    attribute(&mut host, DEVICE, AttributeScope::ServerScope, "limit_D", 3);
    host.latest.push((
        "t".to_owned(),
        TimedValue {
            ts_ms: 7,
            value: PointValue::Double(1.5),
        },
    ));
    let configuration = |more: Json| {
        let mut all = json!({"clientAttributeNames": ["c"], "sharedAttributeNames": ["s"],
            "serverAttributeNames": ["limit_${deviceName}"], "latestTsKeyNames": ["t"], "tellFailureIfAbsent": false});
        all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        node("metadata.TbGetAttributesNode", "n", &all)
    };
    let (_, metadata) = after(configuration(json!({"fetchTo": "METADATA"})), json!({}), &mut host);
    assert_eq!(
        (
            &metadata["cs_c"],
            &metadata["shared_s"],
            &metadata["ss_limit_D"],
            &metadata["t"]
        ),
        (&json!("1"), &json!("2"), &json!("3"), &json!("1.5"))
    );
    let (data, _) = after(
        configuration(json!({"fetchTo": "DATA", "getLatestValueWithTs": true})),
        json!({}),
        &mut host,
    );
    assert_eq!(
        data,
        json!({"cs_c": 1, "shared_s": 2, "ss_limit_D": 3, "t": {"ts": 7, "value": 1.5}})
    );
    let missing = configuration(json!({"tellFailureIfAbsent": true, "clientAttributeNames": ["x"]}));
    assert_eq!(
        outputs(missing, message(POST_TELEMETRY, json!({})), &mut host),
        ["Failure"]
    );
}

#[test]
fn fields_and_owner_attributes_are_added() {
    let mut host = TestHost::default();
    attribute(&mut host, TENANT, AttributeScope::ServerScope, "limit", 9);
    let fields = node(
        "metadata.TbGetOriginatorFieldsNode",
        "n",
        &json!({"dataMapping": {"name": "n", "label": "l"}, "ignoreNullStrings": true, "fetchTo": "DATA"}),
    );
    assert_eq!(after(fields, json!({}), &mut host).0, json!({"n": "D"}));
    let tenant = node(
        "metadata.TbGetTenantAttributeNode",
        "n",
        &json!({"dataToFetch": "ATTRIBUTES", "dataMapping": {"limit": "max"}, "fetchTo": "DATA"}),
    );
    assert_eq!(after(tenant, json!({}), &mut host).0, json!({"max": 9}));
    let customer = EntityId {
        kind: EntityType::Customer,
        id: Uuid([4; 16]),
    };
    attribute(&mut host, customer, AttributeScope::ServerScope, "limit", 7);
    let of_customer = node(
        "metadata.TbGetCustomerAttributeNode",
        "n",
        &json!({"dataToFetch": "ATTRIBUTES", "dataMapping": {"limit": "max"}, "fetchTo": "METADATA"}),
    );
    assert_eq!(after(of_customer, json!({}), &mut host).1["max"], "7");
    let old = node(
        "metadata.TbGetTenantAttributeNode",
        "n",
        &json!({"telemetry": false, "attrMapping": {"limit": "max"}}),
    );
    assert_eq!(after(old, json!({}), &mut host).1["max"], "9");
}

#[test]
fn deltas_are_calculated() {
    let delta = |more: Json| {
        let mut all = json!({"inputValueKey": "pulse", "outputValueKey": "delta", "useCache": true,
            "addPeriodBetweenMsgs": true, "periodValueKey": "period", "round": 2});
        all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        node("metadata.CalculateDeltaNode", "n", &all)
    };
    let mut host = TestHost::default();
    let chain = chain(&[delta(json!({})), log()], &[(0, "Success", 1)]);
    for (ts_ms, pulse, expected) in [
        (1000, json!(10), (json!(0), 0)),
        (3000, json!(12.5), (json!(2.5), 2000)),
        (4000, json!(12.3456), (json!(-0.15), 1000)),
    ] {
        let mut telemetry = message(POST_TELEMETRY, json!({"pulse": pulse}));
        telemetry.ts_ms = ts_ms;
        run(&chain, telemetry, &mut host);
        let text = host.texts.pop().unwrap();
        assert!(text.contains(&format!("\"delta\":{}", expected.0)), "{text}");
        assert!(text.contains(&format!("\"period\":{}", expected.1)), "{text}");
    }
    host.logged.clear();
    host.latest.push((
        "pulse".to_owned(),
        TimedValue {
            ts_ms: 0,
            value: PointValue::Long(10),
        },
    ));
    let falling = delta(json!({"tellFailureIfDeltaIsNegative": true}));
    assert_eq!(
        outputs(falling, message(POST_TELEMETRY, json!({"pulse": 1})), &mut host),
        ["Failure"]
    );
    assert_eq!(
        outputs(delta(json!({})), message(POST_TELEMETRY, json!({"x": 1})), &mut host),
        ["Other"]
    );
    assert_eq!(
        outputs(
            delta(json!({})),
            message(POST_ATTRIBUTES, json!({"pulse": 1})),
            &mut host
        ),
        ["Other"]
    );
}

#[test]
fn keys_are_renamed_copied_and_deleted() {
    let mut host = TestHost::default();
    let mut change = |class: &str, configuration: Json| {
        after(
            node(class, "n", &configuration),
            json!({"a": 1, "ab": 2, "c": 3}),
            &mut host,
        )
    };
    let renamed = change(
        "transform.TbRenameKeysNode",
        json!({"renameIn": "DATA", "renameKeysMapping": {"a": "z"}}),
    );
    assert_eq!(renamed.0, json!({"z": 1, "ab": 2, "c": 3}));
    let deleted = change(
        "transform.TbDeleteKeysNode",
        json!({"deleteFrom": "DATA", "keys": ["a.*"]}),
    );
    assert_eq!(deleted.0, json!({"c": 3}));
    let copied = change("transform.TbCopyKeysNode", json!({"copyFrom": "DATA", "keys": ["a"]}));
    assert_eq!((&copied.1["a"], copied.1.get("ab")), (&json!("1"), None));
    let metadata = change(
        "transform.TbDeleteKeysNode",
        json!({"deleteFrom": "METADATA", "keys": ["^device[A-Z]\\w+|none$"]}),
    );
    assert_eq!(metadata.1, json!({}));
    // A regular expression, not a file name pattern: `e` any number of times.
    let changed = change(
        "transform.TbDeleteKeysNode",
        json!({"deleteFrom": "METADATA", "keys": ["device*"]}),
    );
    assert_eq!(changed.1, json!({"deviceName": "D", "deviceType": "default"}));
    let wrong = node(
        "transform.TbCopyKeysNode",
        "n",
        &json!({"copyFrom": "DATA", "keys": ["*"]}),
    );
    let warnings = chain(&[wrong], &[]).warnings().to_vec();
    assert!(
        warnings[0].problem.contains("not valid regular expressions"),
        "{warnings:?}"
    );
}

#[test]
fn originators_are_changed() {
    let cases = [
        (json!({"originatorSource": "TENANT"}), Some("TENANT")),
        (json!({"originatorSource": "CUSTOMER"}), Some("CUSTOMER")),
        (
            json!({"originatorSource": "RELATED", "relationsQuery": {"direction": "TO", "maxLevel": 1,
            "filters": [{"relationType": "Contains", "entityTypes": ["TENANT"]}]}}),
            Some("TENANT"),
        ),
        (
            json!({"originatorSource": "RELATED", "relationsQuery": {"direction": "FROM", "maxLevel": 1, "filters": []}}),
            None,
        ),
        (
            json!({"originatorSource": "RELATED", "relationsQuery": {"direction": "TO", "maxLevel": 1,
                "filters": [{"relationType": "Contains", "entityTypes": ["CUSTOMER"]}]}}),
            None,
        ),
        (
            json!({"originatorSource": "RELATED", "relationsQuery": {"direction": "TO", "maxLevel": 2,
                "filters": [{"relationType": "Contains", "entityTypes": ["CUSTOMER"]}]}}),
            Some("CUSTOMER"),
        ),
        (
            json!({"originatorSource": "RELATED", "relationsQuery": {"direction": "TO", "maxLevel": 0, "filters": []}}),
            Some("TENANT"),
        ),
        (
            json!({"originatorSource": "RELATED", "relationsQuery": {"direction": "TO", "maxLevel": 0, "fetchLastLevelOnly": true,
                "filters": []}}),
            Some("CUSTOMER"),
        ),
        (
            json!({"originatorSource": "ENTITY", "entityType": "ASSET", "entityNamePattern": "Boiler ${deviceName}"}),
            Some("ASSET"),
        ),
        (
            json!({"originatorSource": "ENTITY", "entityType": "ASSET", "entityNamePattern": "Boiler"}),
            None,
        ),
    ];
    for (configuration, expected) in cases {
        let mut host = TestHost::default();
        let customer = EntityId::new(EntityType::Customer, Uuid([8; 16]));
        host.relations = vec![contains(TENANT, DEVICE), contains(customer, TENANT)];
        let nodes = [
            node("transform.TbChangeOriginatorNode", "n", &configuration),
            node("telemetry.TbMsgTimeseriesNode", "s", &json!({})),
        ];
        let changed = run(
            &chain(&nodes, &[(0, "Success", 1)]),
            message(POST_TELEMETRY, json!({"t": 1})),
            &mut host,
        );
        match expected {
            Some(kind) => assert_eq!(host.saved, [format!("{kind} t=Long(1)@1000")]),
            None => assert_eq!(changed.failures.len(), 1),
        }
    }
}

#[test]
fn arrays_are_split() {
    let mut host = TestHost::default();
    let split = node("transform.TbSplitArrayMsgNode", "n", &json!({}));
    assert_eq!(
        outputs(
            split.clone(),
            message(POST_TELEMETRY, json!([{"a": 1}, {"b": 2}])),
            &mut host
        ),
        ["Success", "Success"]
    );
    assert!(host.texts[0].contains(r#"{"a":1}"#));
    assert_eq!(
        outputs(split, message(POST_TELEMETRY, json!({})), &mut host),
        ["Failure"]
    );
}

#[test]
fn telemetry_is_saved_by_its_strategy() {
    let every = json!({"type": "ON_EVERY_MESSAGE"});
    let once = json!({"type": "DEDUPLICATE", "deduplicationIntervalSecs": 10});
    let skip = json!({"type": "SKIP"});
    // Settings, and for messages at 1 s, 2 s and 12 s: stored (h: only history, l: only latest), shown.
    let cases = [
        (json!({}), "ss ss ss"),
        (json!({"type": "ON_EVERY_MESSAGE"}), "ss ss ss"),
        (
            json!({"type": "DEDUPLICATE", "deduplicationIntervalSecs": 10}),
            "ss -- ss",
        ),
        (json!({"type": "WEBSOCKETS_ONLY"}), "-s -s -s"),
        (
            json!({"type": "ADVANCED", "timeseries": once, "latest": once, "webSockets": every, "calculatedFields": skip}),
            "ss -s ss",
        ),
        (
            json!({"type": "ADVANCED", "timeseries": skip, "latest": skip, "webSockets": skip, "calculatedFields": skip}),
            "-- -- --",
        ),
        (
            json!({"type": "ADVANCED", "timeseries": every, "latest": skip, "webSockets": skip, "calculatedFields": skip}),
            "h- h- h-",
        ),
        (
            json!({"type": "ADVANCED", "timeseries": once, "latest": every, "webSockets": skip, "calculatedFields": skip}),
            "s- l- s-",
        ),
    ];
    for (settings, expected) in cases {
        let saving = chain(
            &[node(
                "telemetry.TbMsgTimeseriesNode",
                "n",
                &json!({"defaultTTL": 60, "processingSettings": settings}),
            )],
            &[],
        );
        assert!(saving.warnings().is_empty());
        let mut seen = Vec::new();
        for ts_ms in [1000, 2000, 12_000] {
            let mut host = TestHost::default();
            let mut telemetry = message(POST_TELEMETRY, json!({"t": 1}));
            telemetry.ts_ms = ts_ms;
            assert!(run(&saving, telemetry, &mut host).failures.is_empty());
            seen.push(host.saving.first().map_or_else(
                || "--".to_owned(),
                |saving| {
                    assert_eq!(saving.ttl_s, 60);
                    let mark = match saving.storage {
                        None => '-',
                        Some(PointDestination::HistoryAndLatest) => 's',
                        Some(PointDestination::HistoryOnly) => 'h',
                        Some(PointDestination::LatestOnly) => 'l',
                    };
                    [mark, if saving.is_shown { 's' } else { '-' }].iter().collect()
                },
            ));
        }
        assert_eq!(seen.join(" "), expected, "{settings}");
    }
}

#[test]
fn telemetry_is_saved_with_the_ttl_of_the_message() {
    let mut host = TestHost::default();
    let save = chain(
        &[node("telemetry.TbMsgTimeseriesNode", "n", &json!({"defaultTTL": 60}))],
        &[],
    );
    let mut telemetry = message(POST_TELEMETRY, json!([{"ts": 5, "values": {"a": 1}}, {"b": true}]));
    telemetry.metadata.put("TTL", "7");
    run(&save, telemetry, &mut host);
    assert_eq!(host.saved, ["DEVICE a=Long(1)@5", "DEVICE b=Bool(true)@1000"]);
    assert_eq!(host.saving[0].ttl_s, 7);
    assert_eq!(
        run(&save, message(POST_TELEMETRY, json!({})), &mut host).failures.len(),
        1
    );
    let server = chain(
        &[node(
            "telemetry.TbMsgTimeseriesNode",
            "n",
            &json!({"useServerTs": true}),
        )],
        &[],
    );
    run(&server, message(POST_TELEMETRY, json!({"c": 1})), &mut host);
    assert_eq!(host.saved[2], "DEVICE c=Long(1)@5000");
    // A chain may have changed the timestamp in the metadata.
    for (ts, saved) in [("7", "DEVICE d=Long(1)@7"), ("yesterday", "DEVICE d=Long(1)@1000")] {
        let mut moved = message(POST_TELEMETRY, json!({"d": 1}));
        moved.metadata.put("ts", ts);
        run(&save, moved, &mut host);
        assert_eq!(host.saved.last().unwrap(), saved);
    }
}

#[test]
fn attributes_are_saved_and_deleted() {
    let mut host = TestHost::default();
    let save = |more: Json| {
        let mut all = json!({"scope": "SHARED_SCOPE", "notifyDevice": true});
        all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        node("telemetry.TbMsgAttributesNode", "n", &all)
    };
    let sent = || message(POST_ATTRIBUTES, json!({"a": 1}));
    assert_eq!(outputs(save(json!({})), sent(), &mut host), ["Success"]);
    outputs(
        save(json!({"updateAttributesOnlyOnValueChange": true})),
        sent(),
        &mut host,
    );
    let mut scoped = sent();
    scoped.metadata.put("scope", "SERVER_SCOPE");
    outputs(save(json!({})), scoped, &mut host);
    outputs(
        node(
            "telemetry.TbMsgDeleteAttributesNode",
            "n",
            &json!({"scope": "SERVER_SCOPE", "keys": ["a", "${deviceName}"]}),
        ),
        sent(),
        &mut host,
    );
    assert_eq!(
        host.done,
        [
            "SHARED_SCOPE a notify=true",
            "SERVER_SCOPE a notify=false",
            "delete SERVER_SCOPE a,D"
        ]
    );
    assert_eq!(
        outputs(save(json!({})), message(POST_TELEMETRY, json!({"a": 1})), &mut host),
        ["Failure"]
    );
}

#[test]
fn profile_alarms_use_their_action_connection() {
    let profile = node("profile.TbDeviceProfileNode", "n", &json!({}));
    let mut host = TestHost::default();
    for action in [
        AlarmTransition::Created,
        AlarmTransition::Updated,
        AlarmTransition::Cleared,
    ] {
        host.alarm_effects = vec![effect(action)];
        let seen = outputs(profile.clone(), message(POST_TELEMETRY, json!({"t": 1})), &mut host);
        assert_eq!(seen, [action.label(), "Success"]);
    }
    let created = &host.texts[0];
    for part in [
        "\"isNewAlarm\":\"true\"",
        "\"alarmConditionRepeats\":\"3\"",
        "\"type\":\"hot\"",
        "\"deviceName\":\"D\"",
    ] {
        assert!(created.contains(part), "{part} in {created}");
    }
}

#[test]
fn alarms_are_created_updated_and_cleared() {
    let mut host = TestHost::default();
    let create = node(
        "action.TbCreateAlarmNode",
        "n",
        &json!({"alarmType": "hot ${deviceName}", "severity": "$[level]", "propagate": true, "relationTypes": ["Contains"]}),
    );
    let clear = node(
        "action.TbClearAlarmNode",
        "n",
        &json!({"alarmType": "hot ${deviceName}"}),
    );
    let sent = |level: &str| message(POST_TELEMETRY, json!({"level": level}));
    assert_eq!(outputs(clear.clone(), sent("MAJOR"), &mut host), ["False"]);
    assert_eq!(outputs(create.clone(), sent("MAJOR"), &mut host), ["Created"]);
    assert_eq!(outputs(create.clone(), sent("CRITICAL"), &mut host), ["Updated"]);
    let alarm = host.alarms[0].clone();
    assert_eq!(
        (alarm.kind.as_str(), alarm.severity, alarm.start_ts, alarm.end_ts),
        ("hot D", AlarmSeverity::Critical, 1000, 5000)
    );
    assert!(alarm.propagate && alarm.tenant_id.0 == TENANT.id);
    assert_eq!(outputs(create, sent("BAD"), &mut host), ["Failure"]);
    assert_eq!(outputs(clear.clone(), sent(""), &mut host), ["Cleared"]);
    assert!(host.alarms[0].cleared && host.alarms[0].clear_ts == 5000);
    assert_eq!(outputs(clear.clone(), sent(""), &mut host), ["False"]);
    let expected = ["ENTITY_CREATED hot D", "ENTITY_UPDATED hot D", "ALARM_CLEAR hot D"];
    assert_eq!(
        host.alarm_events, expected,
        "one event per change, and none for failures"
    );
    host.alarms[0].cleared = false;
    let mut of_alarm = message(POST_TELEMETRY, json!({}));
    of_alarm.originator = host.alarms[0].id.unwrap().entity();
    let other = node("action.TbClearAlarmNode", "n", &json!({"alarmType": "another"}));
    assert_eq!(
        outputs(other, of_alarm, &mut host),
        ["Cleared"],
        "the alarm type is ignored for an alarm"
    );
    let by_message = node("action.TbCreateAlarmNode", "n", &json!({"useMessageAlarmData": true}));
    let data = json!({"type": "own", "severity": "MINOR", "details": {"x": 1}});
    assert_eq!(
        outputs(by_message.clone(), message(POST_TELEMETRY, data), &mut host),
        ["Created"]
    );
    assert_eq!(
        outputs(by_message, message(POST_TELEMETRY, json!({})), &mut host),
        ["Failure"]
    );
}

#[test]
fn alarm_status_filter_uses_the_current_status() {
    let mut host = TestHost::default();
    let mut alarm: Alarm = effect(AlarmTransition::Created).alarm;
    alarm.id = Some(crate::ids::AlarmId(Uuid([8; 16])));
    let data = serde_json::to_value(&alarm).unwrap();
    alarm.cleared = true;
    host.alarms.push(alarm);
    let filter = |status: &str| {
        node(
            "filter.TbCheckAlarmStatusNode",
            "n",
            &json!({"alarmStatusList": [status]}),
        )
    };
    assert_eq!(
        outputs(filter("CLEARED_UNACK"), message(ALARM, data.clone()), &mut host),
        ["True"]
    );
    assert_eq!(
        outputs(filter("ACTIVE_UNACK"), message(ALARM, data), &mut host),
        ["False"]
    );
    assert_eq!(
        outputs(filter("ACTIVE_UNACK"), message(ALARM, json!({})), &mut host),
        ["Failure"]
    );
    let data = serde_json::to_value(&host.alarms[0]).unwrap();
    host.alarms[0].tenant_id = TenantId(Uuid([9; 16]));
    assert_eq!(
        outputs(filter("CLEARED_UNACK"), message(ALARM, data), &mut host),
        ["Failure"],
        "alarm of another tenant"
    );
}

#[test]
fn requests_and_responses_are_sent_to_devices() {
    let mut host = TestHost::default();
    let reply = node(
        "rpc.TbSendRPCReplyNode",
        "n",
        &json!({"requestIdMetaDataAttribute": "requestId"}),
    );
    let mut request = message("TO_SERVER_RPC_REQUEST", json!({"time": 1}));
    assert_eq!(outputs(reply.clone(), request.clone(), &mut host), ["Failure"]);
    request.metadata.put("requestId", "42");
    assert_eq!(outputs(reply, request, &mut host), ["Success"]);
    assert_eq!(host.done, [r#"reply 42 {"time":1}"#]);
    let call = node("rpc.TbSendRPCRequestNode", "n", &json!({}));
    assert_eq!(
        outputs(call, message(POST_TELEMETRY, json!({"method": "m"})), &mut host),
        ["Failure"]
    );
}

#[test]
fn assets_are_routed_by_profile_name() {
    let mut host = TestHost::default();
    let mut of_asset = message(POST_TELEMETRY, json!({}));
    of_asset.originator = EntityId {
        kind: EntityType::Asset,
        id: Uuid([6; 16]),
    };
    let tested = node("filter.TbAssetTypeSwitchNode", "n", &json!({}));
    assert_eq!(outputs(tested, of_asset, &mut host), ["default"]);
}

#[test]
fn patterns_are_filled_from_metadata_and_data() {
    let filled = |pattern: &str| {
        fill(
            pattern,
            &message(POST_TELEMETRY, json!({"a": {"b": 5}, "s": "x", "n": null})),
        )
        .unwrap()
    };
    for (pattern, expected) in [
        ("plain", "plain"),
        ("${deviceName}/$[a.b]/$[s]", "D/5/x"),
        ("${missing} $[a.c] $[n] $ $[a", "${missing} $[a.c] $[n] $ $[a"),
        ("$$[s]", "$x"),
    ] {
        assert_eq!(filled(pattern), expected);
    }
}

#[test]
fn filled_patterns_are_bounded() {
    let mut input = message(POST_TELEMETRY, json!({"long": "x".repeat(300_000)}));
    input.metadata.put("inner", "${deviceName}");
    input.metadata.put("none", "");
    assert_eq!(
        fill("${inner}", &input).unwrap(),
        "${deviceName}",
        "not filled recursively"
    );
    let filled = |pattern: &str| fill(pattern, &input).map(|filled| filled.len());
    assert_eq!(filled(&"$[long]".repeat(3)), Ok(900_000));
    assert_eq!(filled(&"${none}".repeat(200_000)), Ok(0));
    let refused = filled(&"$[long]".repeat(100_000)).unwrap_err();
    assert!(refused.0.contains("1 MiB"), "{refused}");
    let unknown = "${".repeat(400_000);
    assert_eq!(fill(&unknown, &input).as_ref(), Ok(&unknown));
    let call = |headers: usize| {
        let headers: serde_json::Map<String, Json> =
            (0..headers).map(|n| (format!("h{n}"), json!("$[long]"))).collect();
        let configuration = json!({"restEndpointUrlPattern": "http://h", "requestMethod": "POST", "headers": headers});
        node("rest.TbRestApiCallNode", "n", &configuration)
    };
    let mut host = TestHost::default();
    assert!(outputs(call(3), input.clone(), &mut host).is_empty());
    assert_eq!(host.sent.len(), 1);
    assert_eq!(
        outputs(call(4), input.clone(), &mut host),
        ["Failure"],
        "the total of all patterns"
    );
    assert_eq!(host.sent.len(), 1);
}
