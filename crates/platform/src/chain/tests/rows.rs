//! The documented behaviour of ThingsBoard's rule nodes, row by row: message, configuration, output connection.
//!
//! | nodes | file |
//! |---|---|
//! | message types and their connections | here |
//! | filters, enrichment, transformation, save, log, alarms, external | `nodes.rs`; failures, rare settings here |
//! | message count, checkpoint, nested chains | `flow.rs`; edge cases here |
//! | script, switch, transformation, generator | `scripts.rs` |
//! | unsupported nodes | here: all of them, by class |

use timeseries::{PointValue, TimedValue};

use super::host::effect;
use super::*;
use crate::alarm_rules::AlarmTransition;
use crate::model::{AlarmSeverity, AttributeScope, Relation, RelationGroup};

#[test]
fn message_types_use_their_connections() {
    let rows = [
        ("POST_TELEMETRY_REQUEST", "Post telemetry"),
        ("POST_ATTRIBUTES_REQUEST", "Post attributes"),
        ("TO_SERVER_RPC_REQUEST", "RPC Request from Device"),
        ("RPC_CALL_FROM_SERVER_TO_DEVICE", "RPC Request to Device"),
        ("ACTIVITY_EVENT", "Activity Event"),
        ("INACTIVITY_EVENT", "Inactivity Event"),
        ("CONNECT_EVENT", "Connect Event"),
        ("DISCONNECT_EVENT", "Disconnect Event"),
        ("ENTITY_CREATED", "Entity Created"),
        ("ENTITY_UPDATED", "Entity Updated"),
        ("ENTITY_DELETED", "Entity Deleted"),
        ("ENTITY_ASSIGNED", "Entity Assigned"),
        ("ENTITY_UNASSIGNED", "Entity Unassigned"),
        ("ENTITY_ASSIGNED_FROM_TENANT", "Entity Assigned From Tenant"),
        ("ENTITY_ASSIGNED_TO_TENANT", "Entity Assigned To Tenant"),
        ("ATTRIBUTES_UPDATED", "Attributes Updated"),
        ("ATTRIBUTES_DELETED", "Attributes Deleted"),
        ("TIMESERIES_UPDATED", "Timeseries Updated"),
        ("TIMESERIES_DELETED", "Timeseries Deleted"),
        ("ALARM_ACK", "Alarm Acknowledged"),
        ("ALARM_CLEAR", "Alarm Cleared"),
        ("ALARM_ASSIGNED", "Alarm Assigned"),
        ("ALARM_UNASSIGNED", "Alarm Unassigned"),
        ("COMMENT_CREATED", "Comment Created"),
        ("COMMENT_UPDATED", "Comment Updated"),
        ("RPC_QUEUED", "RPC Queued"),
        ("RPC_SENT", "RPC Sent"),
        ("RPC_DELIVERED", "RPC Delivered"),
        ("RPC_SUCCESSFUL", "RPC Successful"),
        ("RPC_TIMEOUT", "RPC Timeout"),
        ("RPC_EXPIRED", "RPC Expired"),
        ("RPC_FAILED", "RPC Failed"),
        ("RPC_DELETED", "RPC Deleted"),
        ("RELATION_ADD_OR_UPDATE", "Relation Added or Updated"),
        ("RELATION_DELETED", "Relation Deleted"),
        ("RELATIONS_DELETED", "All Relations Deleted"),
        ("REST_API_REQUEST", "REST API request"),
        // These have no connection of their own.
        ("ALARM", "Other"),
        ("ALARM_DELETE", "Other"),
        ("ENTITY_ASSIGNED_TO_EDGE", "Other"),
        ("PROVISION_SUCCESS", "Other"),
        ("PROVISION_FAILURE", "Other"),
        ("SEND_EMAIL", "Other"),
        ("whatever", "Other"),
    ];
    let switch = COMPONENTS
        .iter()
        .find(|component| component.title == "message type switch");
    let NodeConnections::Fixed(shown) = switch.unwrap().connections else {
        panic!("unexpected connections")
    };
    for (kind, connection) in rows {
        let nodes = [node("filter.TbMsgTypeSwitchNode", "n", &json!({})), log()];
        let mut host = TestHost::default();
        run(
            &chain(&nodes, &[(0, connection, 1)]),
            message(kind, json!({})),
            &mut host,
        );
        assert_eq!(host.logged, ["log"], "{kind} by {connection}");
        assert!(shown.contains(&connection), "the editor offers {connection}");
    }
}

/// Input that fails each node. "gone" is a host without the originator.
#[test]
fn invalid_input_fails() {
    let here = [
        (
            "metadata.TbGetAttributesNode",
            json!({"serverAttributeNames": ["x"]}),
            "t",
        ),
        (
            "metadata.TbGetAttributesNode",
            json!({"latestTsKeyNames": ["x"], "tellFailureIfAbsent": true}),
            "t",
        ),
        ("metadata.CalculateDeltaNode", json!({"outputValueKey": "d"}), "t"),
        (
            "transform.TbChangeOriginatorNode",
            json!({"originatorSource": "ENTITY", "entityType": "ASSET"}),
            "t",
        ),
        (
            "transform.TbChangeOriginatorNode",
            json!({"originatorSource": "ALARM_ORIGINATOR"}),
            "t",
        ),
        (
            "transform.TbChangeOriginatorNode",
            json!({"originatorSource": "RELATED", "relationsQuery": {"maxLevel": 2}}),
            "t",
        ),
        (
            "telemetry.TbMsgTimeseriesNode",
            json!({"processingSettings": {"type": "SOMETIMES"}}),
            "t",
        ),
        ("telemetry.TbMsgTimeseriesNode", json!({}), "a"),
        ("telemetry.TbMsgAttributesNode", json!({"scope": "MY_SCOPE"}), "a"),
        ("telemetry.TbMsgAttributesNode", json!({}), "t"),
        ("rpc.TbSendRPCReplyNode", json!({}), "t"),
        ("flow.TbRuleChainInputNode", json!({"ruleChainId": "no id"}), "t"),
        (
            "flow.TbRuleChainInputNode",
            json!({"forwardMsgToDefaultRuleChain": true}),
            "t",
        ),
        (
            "filter.TbCheckRelationNode",
            json!({"checkForSingleEntity": true, "entityType": "DEVICE", "entityId": "?"}),
            "t",
        ),
        (
            "filter.TbCheckAlarmStatusNode",
            json!({"alarmStatusList": ["ACTIVE_UNACK"]}),
            "t",
        ),
    ];
    let gone = [
        ("filter.TbDeviceTypeSwitchNode", json!({}), "t"),
        ("filter.TbAssetTypeSwitchNode", json!({}), "t"),
        (
            "metadata.TbGetOriginatorFieldsNode",
            json!({"dataMapping": {"name": "n"}}),
            "t",
        ),
        (
            "metadata.TbGetCustomerAttributeNode",
            json!({"dataMapping": {"a": "a"}}),
            "t",
        ),
        (
            "metadata.TbGetTenantAttributeNode",
            json!({"dataMapping": {"a": "a"}}),
            "t",
        ),
        (
            "transform.TbChangeOriginatorNode",
            json!({"originatorSource": "CUSTOMER"}),
            "t",
        ),
        ("profile.TbDeviceProfileNode", json!({}), "t"),
    ];
    let rows = here
        .map(|row| (row, false))
        .into_iter()
        .chain(gone.map(|row| (row, true)));
    for ((class, configuration, kind), is_empty) in rows {
        let mut host = TestHost::default();
        host.is_empty = is_empty;
        let kind = if kind == "t" { POST_TELEMETRY } else { POST_ATTRIBUTES };
        let tested = node(class, "n", &configuration);
        let seen = outputs(tested, message(kind, json!({"x": 1})), &mut host);
        assert_eq!(seen, ["Failure"], "{class} {configuration}");
        assert!(host.texts[0].contains("\"error\":\""), "{}", host.texts[0]);
    }
}

/// The message after a node's Success: its data, or a member of its metadata.
#[test]
fn successful_nodes_change_the_message() {
    let metadata = |name: &str| Some(name.to_owned());
    let rows = [
        // Originator attributes: missing ones are skipped unless that is a failure.
        (
            "metadata.TbGetAttributesNode",
            json!({"clientAttributeNames": ["c", "no"], "tellFailureIfAbsent": false, "fetchTo": "DATA"}),
            None,
            json!({"t": 1, "cs_c": 5}),
        ),
        (
            "metadata.TbGetAttributesNode",
            json!({"clientAttributeNames": ["c"], "fetchToData": false}),
            metadata("cs_c"),
            json!("5"),
        ),
        (
            "metadata.TbGetAttributesNode",
            json!({"latestTsKeyNames": ["l"], "getLatestValueWithTs": true}),
            metadata("l"),
            json!("{\"ts\":7,\"value\":9}"),
        ),
        // Originator fields: null is a string, or skipped.
        (
            "metadata.TbGetOriginatorFieldsNode",
            json!({"dataMapping": {"label": "l", "name": "n"}, "fetchTo": "DATA"}),
            None,
            json!({"t": 1, "l": "null", "n": "D"}),
        ),
        (
            "metadata.TbGetOriginatorFieldsNode",
            json!({"fieldsMapping": {"customerId": "owner"}}),
            metadata("owner"),
            json!(Uuid([4; 16])),
        ),
        // Owner attributes, including latest telemetry.
        (
            "metadata.TbGetCustomerAttributeNode",
            json!({"dataToFetch": "LATEST_TELEMETRY", "dataMapping": {"l": "x_${deviceName}"}, "fetchTo": "DATA"}),
            None,
            json!({"t": 1, "x_D": 9}),
        ),
        (
            "metadata.TbGetTenantAttributeNode",
            json!({"telemetry": true, "attrMapping": {"l": "x", "no": "y"}}),
            metadata("x"),
            json!("9"),
        ),
        // Keys: missing ones change nothing.
        (
            "transform.TbRenameKeysNode",
            json!({"renameIn": "DATA", "renameKeysMapping": {"no": "x", "t": "u"}}),
            None,
            json!({"u": 1}),
        ),
        (
            "transform.TbRenameKeysNode",
            json!({"fromMetadata": true, "renameKeysMapping": {"deviceName": "who"}}),
            metadata("who"),
            json!("D"),
        ),
        (
            "transform.TbCopyKeysNode",
            json!({"copyFrom": "METADATA", "keys": ["deviceN.*"]}),
            None,
            json!({"t": 1, "deviceName": "D"}),
        ),
        (
            "transform.TbCopyKeysNode",
            json!({"fromMetadata": false, "keys": ["t"]}),
            metadata("t"),
            json!("1"),
        ),
        (
            "transform.TbDeleteKeysNode",
            json!({"fromMetadata": false, "keys": ["no", "t"]}),
            None,
            json!({}),
        ),
    ];
    for (class, configuration, member, expected) in rows {
        let mut host = TestHost::default();
        host.attributes
            .push((DEVICE, AttributeScope::ClientScope, "c".to_owned(), PointValue::Long(5)));
        let value = TimedValue {
            ts_ms: 7,
            value: PointValue::Long(9),
        };
        host.latest.push(("l".to_owned(), value));
        let seen = outputs(
            node(class, "n", &configuration),
            message(POST_TELEMETRY, json!({"t": 1})),
            &mut host,
        );
        assert_eq!(seen, ["Success"], "{class} {configuration}");
        let text = host.texts[0].trim_start_matches("\nIncoming message:\n");
        let (data, all) = text.split_once("\nIncoming metadata:\n").unwrap();
        let found: Json = match &member {
            None => serde_json::from_str(data).unwrap(),
            Some(name) => serde_json::from_str::<Json>(all).unwrap()[name].clone(),
        };
        assert_eq!(found, expected, "{class} {configuration}");
    }
}

/// Consecutive pulses and the results: the delta, `=` for an unchanged message, `!` for a failure.
#[test]
fn pulse_counter_deltas_are_calculated() {
    let rows = [
        (json!({}), [10.0, 12.0, 12.0, 11.0], ["0", "2", "0", "-1"]),
        (
            json!({"tellFailureIfDeltaIsNegative": true}),
            [10.0, 12.0, 12.0, 11.0],
            ["0", "2", "0", "!"],
        ),
        (
            json!({"excludeZeroDeltas": true}),
            [10.0, 12.0, 12.0, 11.0],
            ["=", "2", "=", "-1"],
        ),
        (json!({"round": 1}), [1.0, 1.25, 1.5, 3.0], ["0", "0.3", "0.3", "1.5"]),
        (json!({"round": 0}), [1.0, 1.6, 1.6, 9.0], ["0", "1", "0", "7"]),
    ];
    for (more, pulses, expected) in rows {
        let mut configuration = json!({"inputValueKey": "pulse", "outputValueKey": "delta", "useCache": true});
        configuration
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        let delta = node("metadata.CalculateDeltaNode", "n", &configuration);
        let delta = chain(&[delta, log()], &[(0, "Success", 1)]);
        let mut host = TestHost::default();
        let seen = pulses.map(|pulse| {
            let counted = message(POST_TELEMETRY, json!({"pulse": pulse}));
            let done = run(&delta, counted, &mut host);
            if !done.failures.is_empty() {
                return "!".to_owned();
            }
            let text = host.texts.pop().unwrap();
            match text.split_once("\"delta\":") {
                None => "=".to_owned(),
                Some((_, rest)) => rest[..rest.find([',', '}']).unwrap()].to_owned(),
            }
        });
        assert_eq!(seen, expected, "{more}");
    }
}

#[test]
fn originator_is_selected_by_its_source() {
    let alarm = EntityId {
        kind: EntityType::Alarm,
        id: Uuid([8; 16]),
    };
    let mut of_alarm = effect(AlarmTransition::Created).alarm;
    of_alarm.id = Some(crate::ids::AlarmId(alarm.id));
    let asset = EntityId {
        kind: EntityType::Asset,
        id: Uuid([6; 16]),
    };
    let related = |direction: &str, kind: &str, types: &[&str]| {
        json!({"originatorSource": "RELATED", "relationsQuery":
            {"direction": direction, "maxLevel": 1, "filters": [{"relationType": kind, "entityTypes": types}]}})
    };
    let rows = [
        (DEVICE, json!({"originatorSource": "CUSTOMER"}), Some("CUSTOMER")),
        (DEVICE, json!({"originatorSource": "TENANT"}), Some("TENANT")),
        (TENANT, json!({"originatorSource": "TENANT"}), Some("TENANT")),
        (alarm, json!({"originatorSource": "ALARM_ORIGINATOR"}), Some("DEVICE")),
        (DEVICE, related("FROM", "Contains", &["ASSET"]), Some("ASSET")),
        (DEVICE, related("FROM", "Contains", &["DEVICE"]), None),
        (DEVICE, related("FROM", "Manages", &[]), None),
        (DEVICE, related("TO", "Contains", &[]), None),
        (asset, related("TO", "Contains", &["DEVICE"]), Some("DEVICE")),
    ];
    for (originator, configuration, expected) in rows {
        let mut host = TestHost::default();
        host.alarms.push(of_alarm.clone());
        host.relations.push(Relation {
            from: DEVICE,
            to: asset,
            kind: "Contains".to_owned(),
            group: RelationGroup::Common,
            additional_info: None,
        });
        let nodes = [
            node("transform.TbChangeOriginatorNode", "n", &configuration),
            node("telemetry.TbMsgTimeseriesNode", "s", &json!({})),
        ];
        let from = ChainMessage {
            originator,
            ..message(POST_TELEMETRY, json!({"t": 1}))
        };
        let done = run(&chain(&nodes, &[(0, "Success", 1)]), from, &mut host);
        let expected: Vec<String> = expected.iter().map(|kind| format!("{kind} t=Long(1)@1000")).collect();
        assert_eq!(host.saved, expected, "{configuration}");
        assert_eq!(done.failures.is_empty(), !expected.is_empty(), "{configuration}");
    }
}

/// Scope of the node and metadata of the message; expected effect and connection.
#[test]
fn attributes_are_saved_in_their_scope() {
    let rows = [
        (json!({}), [("", "")], "CLIENT_SCOPE a notify=false", "Success"),
        (
            json!({"scope": "SERVER_SCOPE"}),
            [("", "")],
            "SERVER_SCOPE a notify=false",
            "Success",
        ),
        (
            json!({"scope": "SHARED_SCOPE"}),
            [("", "")],
            "SHARED_SCOPE a notify=true",
            "Success",
        ),
        (
            json!({"scope": "SHARED_SCOPE", "notifyDevice": false}),
            [("", "")],
            "SHARED_SCOPE a notify=true",
            "Success",
        ),
        (
            json!({"scope": "SHARED_SCOPE", "notifyDevice": false}),
            [("notifyDevice", "false")],
            "SHARED_SCOPE a notify=false",
            "Success",
        ),
        (
            json!({"scope": "SHARED_SCOPE", "notifyDevice": false}),
            [("notifyDevice", "true")],
            "SHARED_SCOPE a notify=true",
            "Success",
        ),
        (
            json!({"scope": "CLIENT_SCOPE"}),
            [("scope", "SHARED_SCOPE")],
            "SHARED_SCOPE a notify=true",
            "Success",
        ),
        (json!({}), [("scope", "NO_SCOPE")], "", "Failure"),
    ];
    for (configuration, metadata, expected, label) in rows {
        let mut host = TestHost::default();
        let mut sent = message(POST_ATTRIBUTES, json!({"a": 1}));
        for (name, value) in metadata {
            sent.metadata.put(name, value);
        }
        let tested = node("telemetry.TbMsgAttributesNode", "n", &configuration);
        assert_eq!(outputs(tested, sent, &mut host), [label], "{configuration}");
        assert_eq!(host.done.join("; "), expected, "{configuration}");
    }
}

/// Data and metadata of a request; method, parameters, one-way, persistent, deadline, retries, or `None` for a
/// failure.
#[test]
fn rpc_requests_to_devices_are_parsed() {
    type MetadataRow = &'static [(&'static str, &'static str)];
    let rows: [(Json, MetadataRow, Option<&str>); 10] = [
        (
            json!({"method": "m", "params": {"a": 1}}),
            &[],
            Some(r#"m {"a":1} false false 35000 None"#),
        ),
        (
            json!({"method": "m", "params": "x"}),
            &[],
            Some(r#"m "x" false false 35000 None"#),
        ),
        // A string that contains JSON.
        (
            json!({"method": "m", "params": " {\"a\": 1}"}),
            &[],
            Some(r#"m {"a":1} false false 35000 None"#),
        ),
        (
            json!({"method": "m", "params": 5}),
            &[("oneway", "true")],
            Some("m 5 true false 35000 None"),
        ),
        (
            json!({"method": "m", "params": 5}),
            &[("persistent", "true"), ("retries", "3")],
            Some("m 5 false true 35000 Some(3)"),
        ),
        (
            json!({"method": "m", "params": 5}),
            &[("expirationTime", "777000")],
            Some("m 5 false false 777000 None"),
        ),
        (
            json!({"method": "m", "params": 5}),
            &[("expirationTime", "soon"), ("oneway", "no")],
            Some("m 5 false false 35000 None"),
        ),
        (json!({"params": 5}), &[], None),
        (json!({"method": "m"}), &[], None),
        (json!([]), &[], None),
    ];
    let call = node("rpc.TbSendRPCRequestNode", "n", &json!({"timeoutInSeconds": 30}));
    for (data, metadata, expected) in rows {
        let mut host = TestHost::default();
        let mut request = message("RPC_CALL_FROM_SERVER_TO_DEVICE", data.clone());
        for (name, value) in metadata {
            request.metadata.put(*name, *value);
        }
        let seen = outputs(call.clone(), request, &mut host);
        let made = host.calls.first().map(|call| {
            format!(
                "{} {} {} {} {} {:?}",
                call.method, call.params, call.is_one_way, call.is_persistent, call.expires_ms, call.retries
            )
        });
        assert_eq!(made.as_deref(), expected, "{data}");
        let failed: &[&str] = if expected.is_none() { &["Failure"] } else { &[] };
        assert_eq!(seen, failed, "{data}");
    }
}

#[test]
fn rpc_nodes_require_a_device_originator() {
    let rows: [(&str, EntityId, &str, &[&str]); 6] = [
        ("rpc.TbSendRPCRequestNode", DEVICE, "7", &[]),
        ("rpc.TbSendRPCRequestNode", TENANT, "7", &["Failure"]),
        ("rpc.TbSendRPCReplyNode", DEVICE, "7", &["Success"]),
        ("rpc.TbSendRPCReplyNode", DEVICE, "seven", &["Failure"]),
        ("rpc.TbSendRPCReplyNode", DEVICE, "", &["Failure"]),
        ("rpc.TbSendRPCReplyNode", TENANT, "7", &["Failure"]),
    ];
    for (class, originator, number, expected) in rows {
        let mut request = message("TO_SERVER_RPC_REQUEST", json!({"method": "m", "params": {}}));
        request.originator = originator;
        request.metadata.put("requestId", number);
        let seen = outputs(node(class, "n", &json!({})), request, &mut TestHost::default());
        assert_eq!(seen, expected, "{class} {originator:?} {number:?}");
    }
}

/// The connection of a changed alarm, and the flags in the metadata.
#[test]
fn profile_alarms_have_action_flags() {
    const FLAGS: [&str; 4] = ["isNewAlarm", "isExistingAlarm", "isSeverityUpdated", "isClearedAlarm"];
    let rows: [(AlarmTransition, &str, &[&str]); 4] = [
        (AlarmTransition::Created, "Alarm Created", &["isNewAlarm"]),
        (AlarmTransition::Updated, "Alarm Updated", &["isExistingAlarm"]),
        (
            AlarmTransition::SeverityUpdated,
            "Alarm Severity Updated",
            &["isExistingAlarm", "isSeverityUpdated"],
        ),
        (AlarmTransition::Cleared, "Alarm Cleared", &["isClearedAlarm"]),
    ];
    let profile = node("profile.TbDeviceProfileNode", "n", &json!({}));
    for (action, label, flags) in rows {
        let mut host = TestHost::default();
        host.alarm_effects = vec![effect(action)];
        let seen = outputs(profile.clone(), message(POST_TELEMETRY, json!({"t": 1})), &mut host);
        assert_eq!(seen, [label, "Success"]);
        for flag in FLAGS {
            let is_there = host.texts[0].contains(&format!("\"{flag}\":\"true\""));
            assert_eq!(is_there, flags.contains(&flag), "{label} {flag}");
        }
        assert!(!host.texts[1].contains("Alarm\""), "the message continues unchanged");
    }
    let none = outputs(
        profile,
        message(POST_TELEMETRY, json!({"t": 1})),
        &mut TestHost::default(),
    );
    assert_eq!(none, ["Success"], "no alarm changed");
}

/// Alarms that a node creates, updates and clears, and the alarm afterwards.
#[test]
fn alarm_nodes_change_alarms() {
    let create = |more: Json| {
        let mut all = json!({"alarmType": "hot", "severity": "MAJOR"});
        all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        node("action.TbCreateAlarmNode", "n", &all)
    };
    let clear = || node("action.TbClearAlarmNode", "n", &json!({"alarmType": "hot"}));
    // Node, connection; for the alarm: severity, cleared, propagated to relations, owner, tenant.
    let rows = [
        (clear(), "False", None),
        (
            create(json!({})),
            "Created",
            Some((AlarmSeverity::Major, false, [false; 3])),
        ),
        (
            create(json!({"severity": "MINOR", "propagateToOwner": true})),
            "Updated",
            Some((AlarmSeverity::Minor, false, [false, true, false])),
        ),
        (
            create(json!({"severity": "${level}", "propagate": true, "propagateToTenant": true})),
            "Updated",
            Some((AlarmSeverity::Warning, false, [true, false, true])),
        ),
        (
            create(json!({"severity": "${no}"})),
            "Failure",
            Some((AlarmSeverity::Warning, false, [true, false, true])),
        ),
        (
            clear(),
            "Cleared",
            Some((AlarmSeverity::Warning, true, [true, false, true])),
        ),
        (
            clear(),
            "False",
            Some((AlarmSeverity::Warning, true, [true, false, true])),
        ),
    ];
    let mut host = TestHost::default();
    for (tested, label, expected) in rows {
        let mut sent = message(POST_TELEMETRY, json!({"t": 1}));
        sent.metadata.put("level", "WARNING");
        assert_eq!(outputs(tested.clone(), sent, &mut host), [label], "{tested}");
        let found = host.alarms.first().map(|alarm| {
            let propagated = [alarm.propagate, alarm.propagate_to_owner, alarm.propagate_to_tenant];
            (alarm.severity, alarm.cleared, propagated)
        });
        assert_eq!(found, expected, "{tested}");
    }
    assert_eq!(host.alarms.len(), 1, "one per type");
    host.texts.clear();
    outputs(create(json!({})), message(POST_TELEMETRY, json!({"t": 1})), &mut host);
    assert!(host.texts[0].contains("\"isNewAlarm\":\"true\""), "{}", host.texts[0]);
    assert_eq!(host.alarms.len(), 2, "a new one after the first was cleared");
}

/// Configuration, and the stored key and number of the second tick after two messages.
#[test]
fn message_counts_are_stored() {
    let rows = [
        (
            json!({"interval": 10, "telemetryPrefix": "n"}),
            10,
            "TENANT n_s1=Long(2)@5000",
            "10000",
        ),
        (json!({}), 1, "TENANT messageCount_s1=Long(2)@5000", "1000"),
        (
            json!({"interval": 0, "telemetryPrefix": ""}),
            1,
            "TENANT messageCount_s1=Long(2)@5000",
            "1000",
        ),
    ];
    for (configuration, interval_s, expected, delta) in rows {
        let nodes = [
            node("action.TbMsgCountNode", "count", &configuration),
            node("telemetry.TbMsgTimeseriesNode", "save", &json!({})),
            log(),
        ];
        let counting = chain(&nodes, &[(0, "Success", 1), (1, "Success", 2)]);
        assert_eq!(counting.periodic_nodes().collect::<Vec<_>>(), [(0, interval_s)]);
        let mut host = TestHost::default();
        for _ in 0..2 {
            let done = run(&counting, message(POST_ATTRIBUTES, json!({"a": 1})), &mut host);
            assert_eq!(
                (done.executions, done.failures.len()),
                (1, 0),
                "the message ends without a failure"
            );
        }
        tick(&counting, 0, TENANT.id, "s1", &mut host);
        assert_eq!(host.saved, [expected]);
        assert!(
            host.texts[0].contains(&format!("\"delta\":\"{delta}\"")),
            "{}",
            host.texts[0]
        );
    }
}

#[test]
fn flow_nodes_handle_edge_cases() {
    let other = RuleChainId(Uuid([9; 16]));
    let output = json!({"firstNodeIndex": 0, "nodes": [node("flow.TbRuleChainOutputNode", "a", &json!({}))]});
    // Class, configuration, expected effect, connection.
    let rows = [
        (
            "flow.TbCheckpointNode",
            json!({"queueName": "HighPriority"}),
            "enqueue HighPriority",
            None,
        ),
        ("flow.TbCheckpointNode", json!({"queueName": ""}), "enqueue Main", None),
        ("flow.TbAckNode", json!({}), "", Some("Success")),
        (
            "flow.TbRuleChainInputNode",
            json!({"ruleChainId": other.0}),
            "",
            Some("a"),
        ),
        (
            "flow.TbRuleChainInputNode",
            json!({"ruleChainId": CHAIN.0}),
            "",
            Some("Failure"),
        ),
        // The chain was not entered from another one, so the message ends.
        ("flow.TbRuleChainOutputNode", json!({}), "", None),
    ];
    for (class, configuration, expected, label) in rows {
        let mut host = TestHost::default();
        host.chains.insert(
            other,
            Arc::new(CompiledChain::compile(TENANT_ID, other, &output).unwrap()),
        );
        let seen = outputs(
            node(class, "n", &configuration),
            message(POST_TELEMETRY, json!({"t": 1})),
            &mut host,
        );
        assert_eq!(seen, label.into_iter().collect::<Vec<_>>(), "{class} {configuration}");
        assert_eq!(host.done.join("; "), expected, "{class} {configuration}");
    }
}

/// All 77 nodes of ThingsBoard are supported, or imported as disabled with a warning.
#[test]
fn unsupported_nodes_are_disabled() {
    let run_here: Vec<String> = COMPONENTS.iter().map(Component::class).collect();
    assert_eq!(run_here.len(), 40);
    let not_here = [
        "geo.TbGpsGeofencingFilterNode",
        "metadata.TbGetCustomerDetailsNode",
        "metadata.TbGetTenantDetailsNode",
        "metadata.TbGetRelatedAttributeNode",
        "metadata.TbGetDeviceAttrNode",
        "metadata.TbGetTelemetryNode",
        "metadata.TbFetchDeviceCredentialsNode",
        "transform.TbJsonPathNode",
        "deduplication.TbMsgDeduplicationNode",
        "mail.TbMsgToEmailNode",
        "action.TbDeviceStateNode",
        "math.TbMathNode",
        "action.TbCreateRelationNode",
        "action.TbDeleteRelationNode",
        "action.TbAssignToCustomerNode",
        "action.TbUnassignFromCustomerNode",
        "telemetry.TbCalculatedFieldsNode",
        "geo.TbGpsGeofencingActionNode",
        "action.TbCopyAttributesToEntityViewNode",
        "action.TbSaveToCustomCassandraTableNode",
        "rest.TbSendRestApiCallReplyNode",
        "edge.TbMsgPushToEdgeNode",
        "edge.TbMsgPushToCloudNode",
        "delay.TbMsgDelayNode",
        "transaction.TbSynchronizationBeginNode",
        "transaction.TbSynchronizationEndNode",
        "mail.TbSendEmailNode",
        "sms.TbSendSmsNode",
        "notification.TbNotificationNode",
        "notification.TbSlackNode",
        "rabbitmq.TbRabbitMqNode",
        "aws.sns.TbSnsNode",
        "aws.sqs.TbSqsNode",
        "aws.lambda.TbAwsLambdaNode",
        "gcp.pubsub.TbPubSubNode",
        "mqtt.azure.TbAzureIotHubNode",
        "ai.TbAiNode",
    ];
    assert_eq!(run_here.len() + not_here.len(), 77);
    for class in not_here {
        let tested = chain(&[node(class, "n", &json!({}))], &[]);
        let warnings: Vec<String> = tested.warnings().iter().map(ToString::to_string).collect();
        assert_eq!(warnings, [format!("node \"n\" is disabled: {class} is not supported")]);
    }
}
