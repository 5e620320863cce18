//! Tests with chains as JSON, messages, and a host that records its calls.

mod external;
mod flow;
mod host;
mod import;
mod nodes;
mod rows;
#[cfg(feature = "script")]
mod scripts;

use std::sync::Arc;

use serde_json::{Value as Json, json};

use super::*;
use crate::ids::{CustomerId, EntityId, EntityType, RuleChainId, TenantId, Uuid};
use host::TestHost;

const DEVICE: EntityId = EntityId {
    kind: EntityType::Device,
    id: Uuid([1; 16]),
};
const TENANT: EntityId = EntityId {
    kind: EntityType::Tenant,
    id: Uuid([2; 16]),
};
const TENANT_ID: TenantId = TenantId(Uuid([2; 16]));
const CHAIN: RuleChainId = RuleChainId(Uuid([3; 16]));

fn node(class: &str, name: &str, configuration: &Json) -> Json {
    json!({"type": format!("org.thingsboard.rule.engine.{class}"), "name": name, "configuration": configuration})
}

/// Nodes with connections as `(from, label, to)`. The chain begins at node 0.
fn chain(nodes: &[Json], connections: &[(usize, &str, usize)]) -> Arc<CompiledChain> {
    let connections = connections
        .iter()
        .map(|(from, label, to)| json!({"fromIndex": from, "toIndex": to, "type": label}));
    let metadata = json!({"firstNodeIndex": 0, "nodes": nodes, "connections": connections.collect::<Vec<_>>()});
    Arc::new(CompiledChain::compile(TENANT_ID, CHAIN, &metadata).unwrap())
}

fn message(kind: &'static str, data: Json) -> ChainMessage<'static> {
    let mut metadata = Metadata::default();
    metadata.put("deviceName", "D");
    metadata.put("deviceType", "default");
    ChainMessage {
        kind: kind.into(),
        originator: DEVICE,
        customer: CustomerId::NULL,
        metadata,
        data: MessageData::Json(data),
        ts_ms: 1000,
    }
}

fn log() -> Json {
    node("action.TbLogNode", "log", &json!({}))
}

/// Runs a message through one node. Returns the labels of its outputs, which are logged by nodes of these names.
fn outputs(tested: Json, message: ChainMessage<'static>, host: &mut TestHost) -> Vec<String> {
    const LABELS: &[&str] = &[
        "Success",
        "Failure",
        "True",
        "False",
        "Other",
        "Created",
        "Updated",
        "Cleared",
        "Post telemetry",
        "Device",
        "default",
        "Alarm Created",
        "Alarm Updated",
        "Alarm Severity Updated",
        "Alarm Cleared",
        "a",
        "b",
    ];
    let mut nodes = vec![tested];
    nodes.extend(LABELS.iter().map(|label| node("action.TbLogNode", label, &json!({}))));
    let connections: Vec<(usize, &str, usize)> = LABELS
        .iter()
        .enumerate()
        .map(|(index, label)| (0, *label, index + 1))
        .collect();
    run(&chain(&nodes, &connections), message, host);
    std::mem::take(&mut host.logged)
}
