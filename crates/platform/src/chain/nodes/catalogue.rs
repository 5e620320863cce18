//! The catalogue of rule nodes: class, purpose, connections, default configuration and parser of each.
//!
//! `parse_node` and the component descriptions of the API read this table. The console reads a copy as JSON
//! (`console_catalogue`); a test compares them.

use serde_json::{Value as Json, json};

use super::action::CountNode;
use super::external::ExternalNode;
use super::keys::{NamePatterns, PatternMemory};
use super::parse::*;
use super::save::DeleteAttributesNode;
use super::{CheckFieldsNode, FieldsNode, InputNode, KeysNode, KeysOperation, NodeKind, Owner, ReplyNode};
use crate::chain::script::{Script, ScriptKind};
use crate::ids::TenantId;

/// Groups of nodes, with ThingsBoard's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ComponentKind {
    Filter,
    Enrichment,
    Transformation,
    Action,
    External,
    Flow,
}

impl ComponentKind {
    pub fn name(self) -> &'static str {
        match self {
            ComponentKind::Filter => "FILTER",
            ComponentKind::Enrichment => "ENRICHMENT",
            ComponentKind::Transformation => "TRANSFORMATION",
            ComponentKind::Action => "ACTION",
            ComponentKind::External => "EXTERNAL",
            ComponentKind::Flow => "FLOW",
        }
    }
}

/// Outgoing connections of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeConnections {
    Fixed(&'static [&'static str]),
    /// Named in the chain. Editors suggest these.
    Own(&'static [&'static str]),
}

#[derive(Clone, Copy, Debug)]
pub struct Component {
    pub kind: ComponentKind,
    /// Class name within ThingsBoard's package of nodes.
    class: &'static str,
    pub title: &'static str,
    pub description: &'static str,
    pub connections: NodeConnections,
    /// Configuration of a new node in the console, as JSON.
    default_configuration: &'static str,
    parse: fn(&mut NodeInput<'_>) -> Result<NodeKind, String>,
}

/// A node to be parsed.
pub(super) struct NodeInput<'a> {
    pub tenant: TenantId,
    /// The configuration.
    pub json: &'a Json,
    pub memory: &'a mut PatternMemory,
    /// Receives warnings for the operator.
    pub problems: &'a mut Vec<String>,
}

impl NodeInput<'_> {
    fn script(&self, kind: ScriptKind) -> Result<Script, String> {
        Script::parse(self.tenant, self.json, ["jsScript", "tbelScript"], kind)
    }
}

impl Component {
    /// The full Java class name, as used in chains.
    pub fn class(&self) -> String {
        format!("{PACKAGE}{}", self.class)
    }

    /// The name in ThingsBoard's component descriptions.
    pub fn name(&self) -> String {
        self.title.to_lowercase()
    }

    pub fn default_configuration(&self) -> Json {
        serde_json::from_str(self.default_configuration).expect("a test parses all of them")
    }

    /// Labels of outgoing connections that editors offer.
    pub fn labels(&self) -> &'static [&'static str] {
        match self.connections {
            NodeConnections::Fixed(labels) | NodeConnections::Own(labels) => labels,
        }
    }
}

pub(super) const PACKAGE: &str = "org.thingsboard.rule.engine.";

/// Parses a node. An error disables the node.
pub(in crate::chain) fn parse_node(
    tenant: TenantId,
    class: &str,
    json: &Json,
    memory: &mut PatternMemory,
    problems: &mut Vec<String>,
) -> Result<NodeKind, String> {
    let Some(name) = class.strip_prefix(PACKAGE) else {
        return Err(format!("{class:?} is not a ThingsBoard node"));
    };
    let component = COMPONENTS.iter().find(|component| component.class == name);
    let component = component.ok_or_else(|| format!("{name} is not supported"))?;
    (component.parse)(&mut NodeInput {
        tenant,
        json,
        memory,
        problems,
    })
}

/// Returns the catalogue for the console: `ui/src/platform/nodecatalogue.json`.
pub fn console_catalogue() -> Json {
    let nodes = COMPONENTS.iter().map(|component| {
        json!({
            "type": component.class(),
            "title": component.title,
            "kind": component.kind.name().to_lowercase(),
            "labels": component.labels(),
            "configuration": component.default_configuration(),
        })
    });
    nodes.collect()
}

const DONE: NodeConnections = NodeConnections::Fixed(&["Success", "Failure"]);
const YES_NO: NodeConnections = NodeConnections::Fixed(&["True", "False", "Failure"]);

use ComponentKind::{Action, Enrichment, External, Filter, Flow, Transformation};

pub const COMPONENTS: &[Component] = &[
    Component {
        kind: Filter,
        class: "filter.TbMsgTypeSwitchNode",
        title: "message type switch",
        description: "Routes messages by type.",
        connections: NodeConnections::Fixed(&[
            "Post attributes",
            "Post telemetry",
            "RPC Request from Device",
            "RPC Request to Device",
            "Activity Event",
            "Inactivity Event",
            "Connect Event",
            "Disconnect Event",
            "Entity Created",
            "Entity Updated",
            "Entity Deleted",
            "Entity Assigned",
            "Entity Unassigned",
            "Entity Assigned From Tenant",
            "Entity Assigned To Tenant",
            "Attributes Updated",
            "Attributes Deleted",
            "Timeseries Updated",
            "Timeseries Deleted",
            "Alarm Acknowledged",
            "Alarm Cleared",
            "Alarm Assigned",
            "Alarm Unassigned",
            "Comment Created",
            "Comment Updated",
            "RPC Queued",
            "RPC Sent",
            "RPC Delivered",
            "RPC Successful",
            "RPC Timeout",
            "RPC Expired",
            "RPC Failed",
            "RPC Deleted",
            "Relation Added or Updated",
            "Relation Deleted",
            "All Relations Deleted",
            "REST API request",
            "Other",
        ]),
        default_configuration: r#"{"version": 0}"#,
        parse: |_| Ok(NodeKind::TypeSwitch),
    },
    Component {
        kind: Filter,
        class: "filter.TbMsgTypeFilterNode",
        title: "message type filter",
        description: "Checks whether the message type is in a list.",
        connections: YES_NO,
        default_configuration: r#"{"messageTypes": ["POST_TELEMETRY_REQUEST"]}"#,
        parse: |node| Ok(NodeKind::TypeFilter(texts(&node.json["messageTypes"]))),
    },
    Component {
        kind: Filter,
        class: "filter.TbJsFilterNode",
        title: "script",
        description: "Evaluates a script on the message.",
        connections: YES_NO,
        default_configuration: r#"{"scriptLang": "JS", "jsScript": "return msg.temperature > 20;"}"#,
        parse: |node| Ok(NodeKind::ScriptFilter(node.script(ScriptKind::Filter)?)),
    },
    Component {
        kind: Filter,
        class: "filter.TbJsSwitchNode",
        title: "switch",
        description: "Routes messages to the connections that a script returns.",
        connections: NodeConnections::Own(&["Failure"]),
        default_configuration: r#"{"scriptLang": "JS", "jsScript": "return ['one'];"}"#,
        parse: |node| Ok(NodeKind::ScriptSwitch(node.script(ScriptKind::Switch)?)),
    },
    Component {
        kind: Filter,
        class: "filter.TbCheckMessageNode",
        title: "check fields presence",
        description: "Checks whether data and metadata contain given fields.",
        connections: YES_NO,
        default_configuration: r#"{"messageNames": ["temperature"], "metadataNames": [], "checkAllKeys": true}"#,
        parse: |node| {
            Ok(NodeKind::CheckFields(CheckFieldsNode {
                data: texts(&node.json["messageNames"]),
                metadata: texts(&node.json["metadataNames"]),
                wants_all: flag(node.json, "checkAllKeys"),
            }))
        },
    },
    Component {
        kind: Filter,
        class: "filter.TbDeviceTypeSwitchNode",
        title: "device profile switch",
        description: "Routes messages by the name of the device profile.",
        connections: NodeConnections::Own(&["default", "Failure"]),
        default_configuration: r#"{"version": 0}"#,
        parse: |_| Ok(NodeKind::ProfileSwitch),
    },
    Component {
        kind: Filter,
        class: "filter.TbAssetTypeSwitchNode",
        title: "asset profile switch",
        description: "Routes messages by the name of the asset profile.",
        connections: NodeConnections::Own(&["default", "Failure"]),
        default_configuration: r#"{"version": 0}"#,
        parse: |_| Ok(NodeKind::ProfileSwitch),
    },
    Component {
        kind: Filter,
        class: "filter.TbOriginatorTypeFilterNode",
        title: "entity type filter",
        description: "Checks the type of the originator.",
        connections: YES_NO,
        default_configuration: r#"{"originatorTypes": ["DEVICE"]}"#,
        parse: |node| Ok(NodeKind::EntityTypeFilter(texts(&node.json["originatorTypes"]))),
    },
    Component {
        kind: Filter,
        class: "filter.TbOriginatorTypeSwitchNode",
        title: "entity type switch",
        description: "Routes messages by the type of the originator.",
        connections: NodeConnections::Own(&["Device", "Asset", "Alarm", "Failure"]),
        default_configuration: r#"{"version": 0}"#,
        parse: |_| Ok(NodeKind::EntityTypeSwitch),
    },
    Component {
        kind: Filter,
        class: "filter.TbCheckAlarmStatusNode",
        title: "alarm status filter",
        description: "Checks the status of the alarm.",
        connections: YES_NO,
        default_configuration: r#"{"alarmStatusList": ["ACTIVE_ACK", "ACTIVE_UNACK"]}"#,
        parse: |node| Ok(NodeKind::AlarmStatusFilter(texts(&node.json["alarmStatusList"]))),
    },
    Component {
        kind: Filter,
        class: "filter.TbCheckRelationNode",
        title: "check relation presence",
        description: "Checks whether the originator has a relation.",
        connections: YES_NO,
        default_configuration: r#"{"direction": "FROM", "checkForSingleEntity": false, "relationType": "Contains"}"#,
        parse: |node| Ok(NodeKind::CheckRelation(relation(node.json)?)),
    },
    Component {
        kind: Enrichment,
        class: "metadata.TbGetAttributesNode",
        title: "originator attributes",
        description: "Adds attributes and latest values of the originator.",
        connections: DONE,
        default_configuration: r#"{"tellFailureIfAbsent": true, "fetchTo": "METADATA", "clientAttributeNames": [], "sharedAttributeNames": [], "serverAttributeNames": [], "latestTsKeyNames": [], "getLatestValueWithTs": false}"#,
        parse: |node| Ok(NodeKind::Attributes(attributes(node.json))),
    },
    Component {
        kind: Enrichment,
        class: "metadata.TbGetOriginatorFieldsNode",
        title: "originator fields",
        description: "Adds fields of the originator.",
        connections: DONE,
        default_configuration: r#"{"dataMapping": {"name": "originatorName", "type": "originatorType"}, "ignoreNullStrings": false, "fetchTo": "METADATA"}"#,
        parse: |node| {
            Ok(NodeKind::Fields(FieldsNode {
                fields: mapping(node.json, &["dataMapping", "fieldsMapping"]),
                section: parse_section(node.json, &["fetchTo"]),
                ignores_null: flag(node.json, "ignoreNullStrings"),
            }))
        },
    },
    Component {
        kind: Enrichment,
        class: "metadata.TbGetCustomerAttributeNode",
        title: "customer attributes",
        description: "Adds attributes of the originator's customer.",
        connections: DONE,
        default_configuration: r#"{"fetchTo": "METADATA", "dataMapping": {"a": "a"}, "dataToFetch": "ATTRIBUTES"}"#,
        parse: |node| Ok(owner_attributes(node.json, Owner::Customer)),
    },
    Component {
        kind: Enrichment,
        class: "metadata.TbGetTenantAttributeNode",
        title: "tenant attributes",
        description: "Adds attributes of the tenant.",
        connections: DONE,
        default_configuration: r#"{"fetchTo": "METADATA", "dataMapping": {"a": "a"}, "dataToFetch": "ATTRIBUTES"}"#,
        parse: |node| Ok(owner_attributes(node.json, Owner::Tenant)),
    },
    Component {
        kind: Enrichment,
        class: "metadata.CalculateDeltaNode",
        title: "calculate delta",
        description: "Adds the difference to the previous value.",
        connections: NodeConnections::Fixed(&["Success", "Failure", "Other"]),
        default_configuration: r#"{"inputValueKey": "pulseCounter", "outputValueKey": "delta", "useCache": true, "addPeriodBetweenMsgs": false, "periodValueKey": "periodInMs", "round": null, "tellFailureIfDeltaIsNegative": true, "excludeZeroDeltas": false}"#,
        parse: |node| Ok(NodeKind::Delta(delta(node.json)?)),
    },
    Component {
        kind: Transformation,
        class: "transform.TbTransformMsgNode",
        title: "script",
        description: "Transforms the message with a script.",
        connections: DONE,
        default_configuration: r#"{"scriptLang": "JS", "jsScript": "return {msg: msg, metadata: metadata, msgType: msgType};"}"#,
        parse: |node| Ok(NodeKind::ScriptTransform(node.script(ScriptKind::Transform)?)),
    },
    Component {
        kind: Transformation,
        class: "transform.TbRenameKeysNode",
        title: "rename keys",
        description: "Renames fields of data or metadata.",
        connections: DONE,
        default_configuration: r#"{"renameIn": "DATA", "renameKeysMapping": {"temp": "temperature"}}"#,
        parse: |node| {
            Ok(NodeKind::Keys(KeysNode {
                section: parse_section(node.json, &["renameIn", "fromMetadata"]),
                operation: KeysOperation::Rename(mapping(node.json, &["renameKeysMapping"])),
            }))
        },
    },
    Component {
        kind: Transformation,
        class: "transform.TbCopyKeysNode",
        title: "copy key-value pairs",
        description: "Copies fields between data and metadata.",
        connections: DONE,
        default_configuration: r#"{"copyFrom": "DATA", "keys": []}"#,
        parse: |node| {
            Ok(NodeKind::Keys(KeysNode {
                section: parse_section(node.json, &["copyFrom", "fromMetadata"]),
                operation: KeysOperation::Copy(NamePatterns::parse(&texts(&node.json["keys"]), node.memory)?),
            }))
        },
    },
    Component {
        kind: Transformation,
        class: "transform.TbDeleteKeysNode",
        title: "delete key-value pairs",
        description: "Deletes fields of data or metadata.",
        connections: DONE,
        default_configuration: r#"{"deleteFrom": "DATA", "keys": []}"#,
        parse: |node| {
            Ok(NodeKind::Keys(KeysNode {
                section: parse_section(node.json, &["deleteFrom", "fromMetadata"]),
                operation: KeysOperation::Delete(NamePatterns::parse(&texts(&node.json["keys"]), node.memory)?),
            }))
        },
    },
    Component {
        kind: Transformation,
        class: "transform.TbChangeOriginatorNode",
        title: "change originator",
        description: "Sets the originator to its customer, tenant, a related entity or the alarm's originator.",
        connections: DONE,
        default_configuration: r#"{"originatorSource": "CUSTOMER"}"#,
        parse: |node| Ok(NodeKind::ChangeOriginator(originator_source(node.json)?)),
    },
    Component {
        kind: Transformation,
        class: "transform.TbSplitArrayMsgNode",
        title: "split array msg",
        description: "Creates a message for each array element.",
        connections: DONE,
        default_configuration: r#"{}"#,
        parse: |_| Ok(NodeKind::SplitArray),
    },
    Component {
        kind: Action,
        class: "telemetry.TbMsgTimeseriesNode",
        title: "save time series",
        description: "Stores values as history and latest values.",
        connections: DONE,
        default_configuration: r#"{"defaultTTL": 0}"#,
        parse: |node| Ok(NodeKind::SaveTimeseries(save_timeseries(node.json, node.problems)?)),
    },
    Component {
        kind: Action,
        class: "telemetry.TbMsgAttributesNode",
        title: "save attributes",
        description: "Stores attributes of the originator.",
        connections: DONE,
        default_configuration: r#"{"scope": "SERVER_SCOPE", "notifyDevice": false}"#,
        parse: |node| Ok(NodeKind::SaveAttributes(save_attributes(node.json)?)),
    },
    Component {
        kind: Action,
        class: "telemetry.TbMsgDeleteAttributesNode",
        title: "delete attributes",
        description: "Deletes attributes of the originator.",
        connections: DONE,
        default_configuration: r#"{"scope": "SERVER_SCOPE", "keys": [], "sendAttributesDeletedNotification": false, "notifyDevice": false}"#,
        parse: |node| {
            Ok(NodeKind::DeleteAttributes(DeleteAttributesNode {
                scope: scope(node.json)?,
                keys: texts(&node.json["keys"]),
                notifies_device: flag(node.json, "notifyDevice"),
            }))
        },
    },
    Component {
        kind: Action,
        class: "action.TbLogNode",
        title: "log",
        description: "Writes the result of a script to the log.",
        connections: DONE,
        default_configuration: r#"{"scriptLang": "JS", "jsScript": "return JSON.stringify(msg);"}"#,
        parse: |node| Ok(NodeKind::Log(log_script(node.tenant, node.json)?)),
    },
    Component {
        kind: Action,
        class: "rpc.TbSendRPCRequestNode",
        title: "RPC call request",
        description: "Sends an RPC request to the device and continues with its response.",
        connections: DONE,
        default_configuration: r#"{"timeoutInSeconds": 60}"#,
        parse: |node| {
            Ok(NodeKind::CallDevice {
                timeout_s: node.json["timeoutInSeconds"].as_u64().unwrap_or(60),
            })
        },
    },
    Component {
        kind: Action,
        class: "rpc.TbSendRPCReplyNode",
        title: "RPC call reply",
        description: "Responds to an RPC request of the device.",
        connections: DONE,
        default_configuration: r#"{"requestIdMetaDataAttribute": "requestId"}"#,
        parse: |node| {
            Ok(NodeKind::Reply(ReplyNode {
                request_id: text(node.json, "requestIdMetaDataAttribute").unwrap_or_else(|| "requestId".to_owned()),
            }))
        },
    },
    Component {
        kind: Action,
        class: "profile.TbDeviceProfileNode",
        title: "device profile",
        description: "Applies the alarm rules of the device's profile.",
        connections: NodeConnections::Fixed(&[
            "Success",
            "Failure",
            "Alarm Created",
            "Alarm Updated",
            "Alarm Severity Updated",
            "Alarm Cleared",
        ]),
        default_configuration: r#"{"persistAlarmRulesState": false, "fetchAlarmRulesStateOnStart": false}"#,
        parse: |_| Ok(NodeKind::DeviceProfile),
    },
    Component {
        kind: Action,
        class: "action.TbCreateAlarmNode",
        title: "create alarm",
        description: "Creates or updates an alarm of the originator.",
        connections: NodeConnections::Fixed(&["Created", "Updated", "False", "Failure"]),
        default_configuration: r#"{"scriptLang": "JS", "alarmDetailsBuildJs": "return {};", "alarmType": "General Alarm", "severity": "CRITICAL", "propagate": false, "useMessageAlarmData": false, "overwriteAlarmDetails": false, "dynamicSeverity": false, "relationTypes": []}"#,
        parse: |node| Ok(NodeKind::CreateAlarm(Box::new(create_alarm(node.tenant, node.json)?))),
    },
    Component {
        kind: Action,
        class: "action.TbClearAlarmNode",
        title: "clear alarm",
        description: "Clears an alarm of the originator.",
        connections: NodeConnections::Fixed(&["Cleared", "False", "Failure"]),
        default_configuration: r#"{"scriptLang": "JS", "alarmDetailsBuildJs": "return {};", "alarmType": "General Alarm"}"#,
        parse: |node| Ok(NodeKind::ClearAlarm(Box::new(alarm(node.tenant, node.json)?))),
    },
    Component {
        kind: Action,
        class: "action.TbMsgCountNode",
        title: "message count",
        description: "Counts messages and stores the count as telemetry of the tenant.",
        connections: DONE,
        default_configuration: r#"{"interval": 60, "telemetryPrefix": "messageCount"}"#,
        parse: |node| {
            Ok(NodeKind::Count(CountNode::new(
                text(node.json, "telemetryPrefix").unwrap_or_else(|| "messageCount".to_owned()),
                node.json["interval"].as_u64().unwrap_or(1).max(1),
            )))
        },
    },
    Component {
        kind: Action,
        class: "debug.TbMsgGeneratorNode",
        title: "generator",
        description: "Creates messages with a script periodically.",
        connections: DONE,
        default_configuration: r#"{"scriptLang": "JS", "jsScript": "return {msg: {temperature: 20}, metadata: {}, msgType: 'POST_TELEMETRY_REQUEST'};", "msgCount": 0, "periodInSeconds": 60, "originatorType": "TENANT"}"#,
        parse: |node| Ok(NodeKind::Generator(Box::new(generator(node.tenant, node.json)?))),
    },
    Component {
        kind: External,
        class: "rest.TbRestApiCallNode",
        title: "REST API call",
        description: "Sends the message to a web server.",
        connections: DONE,
        default_configuration: r#"{"restEndpointUrlPattern": "", "requestMethod": "POST", "headers": {}}"#,
        parse: |node| Ok(NodeKind::External(Box::new(ExternalNode::rest(node.json)?))),
    },
    Component {
        kind: External,
        class: "kafka.TbKafkaNode",
        title: "Kafka",
        description: "Sends the message to Kafka.",
        connections: DONE,
        default_configuration: r#"{"topicPattern": "telemetry", "bootstrapServers": "", "acks": "-1"}"#,
        parse: |node| {
            Ok(NodeKind::External(Box::new(ExternalNode::kafka(
                node.json,
                node.problems,
            )?)))
        },
    },
    Component {
        kind: External,
        class: "mqtt.TbMqttNode",
        title: "MQTT",
        description: "Sends the message to an MQTT broker.",
        connections: DONE,
        default_configuration: r#"{"topicPattern": "my-topic", "host": "", "port": 1883, "connectTimeoutSec": 10, "cleanSession": true, "ssl": false, "credentials": {"type": "anonymous"}}"#,
        parse: |node| Ok(NodeKind::External(Box::new(ExternalNode::mqtt(node.json)?))),
    },
    Component {
        kind: Flow,
        class: "flow.TbCheckpointNode",
        title: "checkpoint",
        description: "Continues after earlier messages are processed.",
        connections: DONE,
        default_configuration: r#"{"queueName": "Main"}"#,
        parse: |node| {
            Ok(NodeKind::Checkpoint {
                queue: text(node.json, "queueName").unwrap_or_else(|| "Main".to_owned()),
            })
        },
    },
    Component {
        kind: Flow,
        class: "flow.TbAckNode",
        title: "acknowledge",
        description: "Passes the message on.",
        connections: DONE,
        default_configuration: r#"{}"#,
        parse: |_| Ok(NodeKind::Acknowledge),
    },
    Component {
        kind: Flow,
        class: "flow.TbRuleChainInputNode",
        title: "rule chain",
        description: "Runs another chain and continues at its outputs.",
        connections: NodeConnections::Own(&["Success", "Failure"]),
        default_configuration: r#"{"ruleChainId": ""}"#,
        parse: |node| {
            Ok(NodeKind::Input(InputNode {
                chain: input_chain(node.json)?,
                returns: true,
            }))
        },
    },
    Component {
        kind: Flow,
        class: "flow.TbRuleChainOutputNode",
        title: "output",
        description: "Returns to the calling chain by the name of this node.",
        connections: NodeConnections::Fixed(&[]),
        default_configuration: r#"{}"#,
        parse: |_| Ok(NodeKind::Output),
    },
];

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_component_is_listed_once_and_has_a_configuration() {
        let mut classes = HashSet::new();
        for component in COMPONENTS {
            assert!(
                classes.insert(component.class()),
                "{} is listed twice",
                component.class()
            );
            assert!(component.default_configuration().is_object(), "{}", component.class());
        }
    }

    /// `UPDATE=1` writes the file.
    #[test]
    fn console_has_the_same_catalogue() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../ui/src/platform/nodecatalogue.json");
        let nodes = console_catalogue();
        if std::env::var_os("UPDATE").is_some() {
            std::fs::write(file, format!("{nodes:#}\n")).unwrap();
        }
        let shown: Json = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
        assert_eq!(shown, nodes, "run this test with UPDATE=1 to write {file}");
    }
}
