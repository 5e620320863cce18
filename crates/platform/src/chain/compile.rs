//! Compiles ThingsBoard's JSON of a rule chain to a graph. Nodes are identified by the last part of their Java class.
//! A node that is unknown, or cannot run with its configuration, is disabled and has a warning.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use serde_json::Value as Json;

use super::nodes::{NodeKind, PatternMemory, parse_node};
use crate::ids::{RuleChainId, RuleNodeId, TenantId, Uuid};

/// Chains with more nodes are rejected.
pub const NODES_MAX: usize = 10_000;
const CONNECTIONS_MAX: usize = 10_000;

#[derive(Debug)]
pub struct CompiledChain {
    pub id: RuleChainId,
    pub tenant: TenantId,
    pub(super) nodes: Vec<CompiledNode>,
    /// `None` drops all messages.
    pub(super) first: Option<usize>,
    warnings: Vec<Warning>,
}

#[derive(Debug)]
pub(super) struct CompiledNode {
    pub name: Box<str>,
    pub kind: NodeKind,
    pub id: Option<RuleNodeId>,
    pub debugging: DebugSettings,
    pub counts: NodeCounts,
    /// Label and target, in the order of the JSON.
    pub next: Vec<(Box<str>, usize)>,
}

/// Counters of a node since they were last taken by [`Chain::take_statistics`].
#[derive(Debug, Default)]
pub(super) struct NodeCounts {
    messages: AtomicU64,
    errors: AtomicU64,
}

impl NodeCounts {
    pub fn message(&self) {
        self.messages.fetch_add(1, Relaxed);
    }

    pub fn error(&self) {
        self.errors.fetch_add(1, Relaxed);
    }
}

/// A node's counters of a period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeStatistics {
    pub node: RuleNodeId,
    pub messages: u64,
    /// Messages that failed or left by the Failure connection.
    pub errors: u64,
}

/// Messages of a node that create debug events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct DebugSettings {
    /// All messages until this time.
    all_until_ms: i64,
    failures: bool,
}

impl DebugSettings {
    fn parse(json: &Json) -> DebugSettings {
        let settings = &json["debugSettings"];
        let is_always = json["debugMode"].as_bool() == Some(true) || settings["allEnabled"].as_bool() == Some(true);
        let until_ms = settings["allEnabledUntil"].as_i64().unwrap_or(0);
        DebugSettings {
            all_until_ms: if is_always { i64::MAX } else { until_ms },
            failures: settings["failuresEnabled"].as_bool() == Some(true),
        }
    }

    /// Whether all messages create events. `now_ms` is called only for nodes with debug settings.
    pub fn records_all(self, now_ms: impl FnOnce() -> i64) -> bool {
        self.all_until_ms != 0 && now_ms() < self.all_until_ms
    }

    pub fn wants_failures(self, now_ms: impl FnOnce() -> i64) -> bool {
        self.failures || self.records_all(now_ms)
    }
}

/// Nodes of a chain, each with the reason why it is disabled, if it is.
pub type ChainNodes = Vec<(RuleNodeId, Option<String>)>;

/// A problem of an imported chain, for operators.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    pub node: String,
    /// The node is disabled: messages leave by its Failure connection.
    pub is_disabled: bool,
    pub problem: String,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = if self.is_disabled { " is disabled" } else { "" };
        write!(f, "node \"{}\"{state}: {}", self.node, self.problem)
    }
}

/// The JSON is not a valid rule chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChainError {
    pub problem: String,
}

impl fmt::Display for ChainError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Invalid rule chain metadata: {}", self.problem)
    }
}

impl std::error::Error for ChainError {}

fn invalid(problem: impl Into<String>) -> ChainError {
    ChainError {
        problem: problem.into(),
    }
}

/// Contents of an exported file.
#[derive(Clone, Debug, PartialEq)]
pub struct Export {
    pub name: String,
    pub metadata: Json,
}

impl Export {
    /// Parses `{"ruleChain":{…},"metadata":{…}}`.
    pub fn parse(json: &Json) -> Result<Export, ChainError> {
        let name = json["ruleChain"]["name"]
            .as_str()
            .ok_or_else(|| invalid("ruleChain has no name"))?;
        if !json["metadata"].is_object() {
            return Err(invalid("metadata is missing"));
        }
        Ok(Export {
            name: name.to_owned(),
            metadata: json["metadata"].clone(),
        })
    }
}

impl CompiledChain {
    /// Compiles the `metadata` of the REST API and of exported files.
    pub fn compile(tenant: TenantId, id: RuleChainId, metadata: &Json) -> Result<CompiledChain, ChainError> {
        let empty = Vec::new();
        let list = metadata["nodes"].as_array().unwrap_or(&empty);
        if list.len() > NODES_MAX {
            return Err(invalid(format!("more than {NODES_MAX} nodes")));
        }
        if let Some(other) = list.iter().find(|node| !node.is_object()) {
            return Err(invalid(format!("a node is {other}, expected an object")));
        }
        let connections =
            ["connections", "ruleChainConnections"].map(|name| metadata[name].as_array().map_or(0, Vec::len));
        if connections.iter().sum::<usize>() > CONNECTIONS_MAX {
            return Err(invalid(format!("more than {CONNECTIONS_MAX} connections")));
        }
        let mut warnings = Vec::new();
        let mut memory = PatternMemory::default();
        let mut nodes: Vec<CompiledNode> = list
            .iter()
            .map(|json| compile_node(tenant, json, &mut memory, &mut warnings))
            .collect();
        connect(&mut nodes, &metadata["connections"])?;
        connect_chains(&mut nodes, &metadata["ruleChainConnections"])?;
        let first = match &metadata["firstNodeIndex"] {
            Json::Null => None,
            index => Some(index_of(index, nodes.len(), "firstNodeIndex")?),
        };
        if first.is_none() && !nodes.is_empty() {
            warnings.push(Warning {
                node: String::new(),
                is_disabled: false,
                problem: "the chain has no first node: it drops all messages".to_owned(),
            });
        }
        Ok(CompiledChain {
            id,
            tenant,
            nodes,
            first,
            warnings,
        })
    }

    pub fn node_states(&self) -> ChainNodes {
        let problem = |node: &CompiledNode| match &node.kind {
            NodeKind::Disabled { problem } => Some(problem.to_string()),
            _ => None,
        };
        let nodes = self.nodes.iter();
        nodes.filter_map(|node| Some((node.id?, problem(node)))).collect()
    }

    /// Takes the counters of nodes since the last call.
    pub fn take_statistics(&self) -> Vec<NodeStatistics> {
        let all = self.nodes.iter().filter_map(|node| {
            Some(NodeStatistics {
                node: node.id?,
                messages: node.counts.messages.swap(0, Relaxed),
                errors: node.counts.errors.swap(0, Relaxed),
            })
        });
        all.filter(|of| of.messages > 0 || of.errors > 0).collect()
    }

    pub fn warnings(&self) -> &[Warning] {
        &self.warnings
    }

    pub fn node_count(&self) -> usize {
        self.nodes.len()
    }

    pub fn node_name(&self, node: usize) -> Option<&str> {
        self.nodes.get(node).map(|node| &*node.name)
    }

    pub(super) fn targets<'a>(&'a self, node: usize, label: &'a str) -> impl Iterator<Item = usize> + 'a {
        let next = self.nodes[node].next.iter();
        next.filter(move |(known, _)| known.eq_ignore_ascii_case(label))
            .map(|(_, target)| *target)
    }

    pub(crate) fn has_device_profile_node(&self) -> bool {
        self.nodes
            .iter()
            .any(|node| matches!(node.kind, NodeKind::DeviceProfile))
    }

    /// Returns the device profile nodes. Messages about alarms that rules change without a message start there.
    pub(crate) fn device_profile_nodes(&self) -> impl Iterator<Item = usize> + '_ {
        let nodes = self.nodes.iter().enumerate();
        nodes
            .filter(|(_, node)| matches!(node.kind, NodeKind::DeviceProfile))
            .map(|(index, _)| index)
    }

    pub(crate) fn entered_chains(&self) -> impl Iterator<Item = RuleChainId> + '_ {
        self.nodes.iter().filter_map(|node| match &node.kind {
            NodeKind::Input(input) => input.chain,
            _ => None,
        })
    }

    /// Nodes that create messages periodically (generators and counters), with their period in seconds.
    pub fn periodic_nodes(&self) -> impl Iterator<Item = (usize, u64)> + '_ {
        self.nodes
            .iter()
            .enumerate()
            .filter_map(|(index, node)| Some((index, node.kind.period_s()?)))
    }
}

fn compile_node(
    tenant: TenantId,
    json: &Json,
    memory: &mut PatternMemory,
    warnings: &mut Vec<Warning>,
) -> CompiledNode {
    let class = json["type"].as_str().unwrap_or_default();
    let name = json["name"].as_str().unwrap_or(class);
    let mut problems = Vec::new();
    let kind = parse_node(tenant, class, &json["configuration"], memory, &mut problems).unwrap_or_else(|problem| {
        warnings.push(Warning {
            node: name.to_owned(),
            is_disabled: true,
            problem: problem.clone(),
        });
        NodeKind::Disabled { problem }
    });
    warnings.extend(problems.into_iter().map(|problem| Warning {
        node: name.to_owned(),
        is_disabled: false,
        problem,
    }));
    CompiledNode {
        name: name.into(),
        kind,
        id: json["id"]["id"].as_str().and_then(Uuid::parse).map(RuleNodeId),
        debugging: DebugSettings::parse(json),
        counts: NodeCounts::default(),
        next: Vec::new(),
    }
}

fn index_of(json: &Json, count: usize, what: &str) -> Result<usize, ChainError> {
    let index = json.as_u64().and_then(|index| usize::try_from(index).ok());
    let index = index.filter(|index| *index < count);
    index.ok_or_else(|| invalid(format!("{what} is {json}, expected the index of one of {count} nodes")))
}

fn connect(nodes: &mut [CompiledNode], connections: &Json) -> Result<(), ChainError> {
    for connection in connections.as_array().into_iter().flatten() {
        let from = index_of(&connection["fromIndex"], nodes.len(), "fromIndex")?;
        let to = index_of(&connection["toIndex"], nodes.len(), "toIndex")?;
        let label = connection["type"]
            .as_str()
            .ok_or_else(|| invalid("a connection has no type"))?;
        nodes[from].next.push((label.into(), to));
    }
    Ok(())
}

/// Old files connect a node directly to another chain. Inserts a rule chain node for each such connection.
fn connect_chains(nodes: &mut Vec<CompiledNode>, connections: &Json) -> Result<(), ChainError> {
    // A vector cannot grow during iteration, so the new nodes are appended to a taken copy.
    let mut nodes_with_targets = std::mem::take(nodes);
    let count = nodes_with_targets.len();
    for connection in connections.as_array().into_iter().flatten() {
        let from = index_of(&connection["fromIndex"], count, "fromIndex")?;
        let target = connection["targetRuleChainId"]["id"].as_str().and_then(Uuid::parse);
        let target = target.ok_or_else(|| invalid("a connection to a rule chain has no targetRuleChainId"))?;
        let label = connection["type"]
            .as_str()
            .ok_or_else(|| invalid("a connection has no type"))?;
        let to = nodes_with_targets.len();
        nodes_with_targets[from].next.push((label.into(), to));
        nodes_with_targets.push(CompiledNode {
            name: "Rule Chain".into(),
            kind: NodeKind::Input(super::nodes::InputNode {
                chain: Some(RuleChainId(target)),
                returns: false,
            }),
            id: None,
            debugging: DebugSettings::default(),
            counts: NodeCounts::default(),
            next: Vec::new(),
        });
    }
    *nodes = nodes_with_targets;
    Ok(())
}
