//! The initial root rule chain of a tenant, in the shapes of ThingsBoard's releases.

use serde_json::{Value, json};

use crate::ids::TenantId;
use crate::model::RuleChain;

/// The releases that use a shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RootShape {
    /// 3.3 to 4.2: the profile's alarm rules are a node of the chain.
    WithDeviceProfile,
    /// Since 4.3: alarm rules are evaluated separately from the chain.
    Plain,
}

/// Uses the older shape, in which the profile's alarm rules run without further setup.
pub fn default_root_chain(tenant_id: TenantId) -> RuleChain {
    RuleChain {
        tenant_id,
        name: "Root Rule Chain".to_owned(),
        kind: Some("CORE".to_owned()),
        root: true,
        metadata: Some(root_metadata(RootShape::WithDeviceProfile)),
        ..RuleChain::default()
    }
}

pub fn root_metadata(shape: RootShape) -> Value {
    let mut nodes = vec![
        node(
            "telemetry.TbMsgTimeseriesNode",
            "Save Timeseries",
            &json!({"defaultTTL": 0}),
            824,
            156,
        ),
        node(
            "telemetry.TbMsgAttributesNode",
            "Save Client Attributes",
            &json!({"scope": "CLIENT_SCOPE", "notifyDevice": false}),
            825,
            52,
        ),
        node(
            "filter.TbMsgTypeSwitchNode",
            "Message Type Switch",
            &json!({"version": 0}),
            347,
            149,
        ),
        node(
            "action.TbLogNode",
            "Log RPC from Device",
            &log_configuration(),
            825,
            266,
        ),
        node("action.TbLogNode", "Log Other", &log_configuration(), 825, 379),
        node(
            "rpc.TbSendRPCRequestNode",
            "RPC Call Request",
            &json!({"timeoutInSeconds": 60}),
            825,
            468,
        ),
    ];
    let mut connections = vec![
        connection(2, 0, "Post telemetry"),
        connection(2, 1, "Post attributes"),
        connection(2, 3, "RPC Request from Device"),
        connection(2, 4, "Other"),
        connection(2, 5, "RPC Request to Device"),
    ];
    let mut first = 2;
    if shape == RootShape::WithDeviceProfile {
        let configuration = json!({"persistAlarmRulesState": false, "fetchAlarmRulesStateOnStart": false});
        nodes.push(node(
            "profile.TbDeviceProfileNode",
            "Device Profile Node",
            &configuration,
            204,
            240,
        ));
        connections.push(connection(6, 2, "Success"));
        first = 6;
    }
    json!({"firstNodeIndex": first, "nodes": nodes, "connections": connections, "ruleChainConnections": null})
}

fn log_configuration() -> Value {
    json!({
        "scriptLang": "JS",
        "jsScript": "return '\\nIncoming message:\\n' + JSON.stringify(msg) + '\\nIncoming metadata:\\n' + JSON.stringify(metadata);",
    })
}

fn node(class: &str, name: &str, configuration: &Value, x: i32, y: i32) -> Value {
    json!({
        "type": format!("org.thingsboard.rule.engine.{class}"),
        "name": name,
        "debugMode": false,
        "configuration": configuration,
        "additionalInfo": {"layoutX": x, "layoutY": y},
    })
}

fn connection(from: usize, to: usize, label: &str) -> Value {
    json!({"fromIndex": from, "toIndex": to, "type": label})
}
