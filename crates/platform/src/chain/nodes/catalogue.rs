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
use crate::ids::{TenantId, named_enum};

named_enum! {
    /// Groups of nodes, with ThingsBoard's names.
    pub enum ComponentKind {
        Filter "FILTER",
        Enrichment "ENRICHMENT",
        Transformation "TRANSFORMATION",
        Action "ACTION",
        External "EXTERNAL",
        Flow "FLOW",
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

/// Row: kind, class, title, description, connections, default configuration, parser.
macro_rules! components {
    ($($kind:ident $class:literal $title:literal $description:literal, $connections:expr, $default:literal,
       $parse:expr;)*) => {
        pub const COMPONENTS: &[Component] = &[$(Component {
            kind: ComponentKind::$kind,
            class: $class,
            title: $title,
            description: $description,
            connections: $connections,
            default_configuration: $default,
            parse: $parse,
        }),*];
    };
}

components! {
    Filter "filter.TbMsgTypeSwitchNode" "message type switch" "Routes messages by type.",
        NodeConnections::Fixed(&[
            "Post attributes", "Post telemetry", "RPC Request from Device", "RPC Request to Device", "Activity Event",
            "Inactivity Event", "Connect Event", "Disconnect Event", "Entity Created", "Entity Updated",
            "Entity Deleted", "Entity Assigned", "Entity Unassigned", "Entity Assigned From Tenant",
            "Entity Assigned To Tenant", "Attributes Updated", "Attributes Deleted", "Timeseries Updated",
            "Timeseries Deleted", "Alarm Acknowledged", "Alarm Cleared", "Alarm Assigned", "Alarm Unassigned",
            "Comment Created", "Comment Updated", "RPC Queued", "RPC Sent", "RPC Delivered", "RPC Successful",
            "RPC Timeout", "RPC Expired", "RPC Failed", "RPC Deleted", "Relation Added or Updated",
            "Relation Deleted", "All Relations Deleted", "REST API request", "Other",
        ]),
        r#"{"version": 0}"#, |_| Ok(NodeKind::TypeSwitch);
    Filter "filter.TbMsgTypeFilterNode" "message type filter" "Checks whether the message type is in a list.", YES_NO,
        r#"{"messageTypes": ["POST_TELEMETRY_REQUEST"]}"#,
        |node| Ok(NodeKind::TypeFilter(texts(&node.json["messageTypes"])));
    Filter "filter.TbJsFilterNode" "script" "Evaluates a script on the message.", YES_NO,
        r#"{"scriptLang": "JS", "jsScript": "return msg.temperature > 20;"}"#,
        |node| Ok(NodeKind::ScriptFilter(node.script(ScriptKind::Filter)?));
    Filter "filter.TbJsSwitchNode" "switch" "Routes messages to the connections that a script returns.",
        NodeConnections::Own(&["Failure"]), r#"{"scriptLang": "JS", "jsScript": "return ['one'];"}"#,
        |node| Ok(NodeKind::ScriptSwitch(node.script(ScriptKind::Switch)?));
    Filter "filter.TbCheckMessageNode" "check fields presence" "Checks whether data and metadata contain given fields.",
        YES_NO, r#"{"messageNames": ["temperature"], "metadataNames": [], "checkAllKeys": true}"#,
        |node| Ok(NodeKind::CheckFields(CheckFieldsNode {
            data: texts(&node.json["messageNames"]),
            metadata: texts(&node.json["metadataNames"]),
            wants_all: flag(node.json, "checkAllKeys"),
        }));
    Filter "filter.TbDeviceTypeSwitchNode" "device profile switch" "Routes messages by the name of the device profile.",
        NodeConnections::Own(&["default", "Failure"]), r#"{"version": 0}"#, |_| Ok(NodeKind::ProfileSwitch);
    Filter "filter.TbAssetTypeSwitchNode" "asset profile switch" "Routes messages by the name of the asset profile.",
        NodeConnections::Own(&["default", "Failure"]), r#"{"version": 0}"#, |_| Ok(NodeKind::ProfileSwitch);
    Filter "filter.TbOriginatorTypeFilterNode" "entity type filter" "Checks the type of the originator.", YES_NO,
        r#"{"originatorTypes": ["DEVICE"]}"#,
        |node| Ok(NodeKind::EntityTypeFilter(texts(&node.json["originatorTypes"])));
    Filter "filter.TbOriginatorTypeSwitchNode" "entity type switch" "Routes messages by the type of the originator.",
        NodeConnections::Own(&["Device", "Asset", "Alarm", "Failure"]), r#"{"version": 0}"#,
        |_| Ok(NodeKind::EntityTypeSwitch);
    Filter "filter.TbCheckAlarmStatusNode" "alarm status filter" "Checks the status of the alarm.", YES_NO,
        r#"{"alarmStatusList": ["ACTIVE_ACK", "ACTIVE_UNACK"]}"#,
        |node| Ok(NodeKind::AlarmStatusFilter(texts(&node.json["alarmStatusList"])));
    Filter "filter.TbCheckRelationNode" "check relation presence" "Checks whether the originator has a relation.",
        YES_NO, r#"{"direction": "FROM", "checkForSingleEntity": false, "relationType": "Contains"}"#,
        |node| Ok(NodeKind::CheckRelation(relation(node.json)?));
    Enrichment "metadata.TbGetAttributesNode" "originator attributes"
        "Adds attributes and latest values of the originator.", DONE,
        r#"{"tellFailureIfAbsent": true, "fetchTo": "METADATA", "clientAttributeNames": [], "sharedAttributeNames": [], "serverAttributeNames": [], "latestTsKeyNames": [], "getLatestValueWithTs": false}"#,
        |node| Ok(NodeKind::Attributes(attributes(node.json)));
    Enrichment "metadata.TbGetOriginatorFieldsNode" "originator fields" "Adds fields of the originator.", DONE,
        r#"{"dataMapping": {"name": "originatorName", "type": "originatorType"}, "ignoreNullStrings": false, "fetchTo": "METADATA"}"#,
        |node| Ok(NodeKind::Fields(FieldsNode {
            fields: mapping(node.json, &["dataMapping", "fieldsMapping"]),
            section: parse_section(node.json, &["fetchTo"]),
            ignores_null: flag(node.json, "ignoreNullStrings"),
        }));
    Enrichment "metadata.TbGetCustomerAttributeNode" "customer attributes"
        "Adds attributes of the originator's customer.", DONE,
        r#"{"fetchTo": "METADATA", "dataMapping": {"a": "a"}, "dataToFetch": "ATTRIBUTES"}"#,
        |node| Ok(owner_attributes(node.json, Owner::Customer));
    Enrichment "metadata.TbGetTenantAttributeNode" "tenant attributes" "Adds attributes of the tenant.", DONE,
        r#"{"fetchTo": "METADATA", "dataMapping": {"a": "a"}, "dataToFetch": "ATTRIBUTES"}"#,
        |node| Ok(owner_attributes(node.json, Owner::Tenant));
    Enrichment "metadata.CalculateDeltaNode" "calculate delta" "Adds the difference to the previous value.",
        NodeConnections::Fixed(&["Success", "Failure", "Other"]),
        r#"{"inputValueKey": "pulseCounter", "outputValueKey": "delta", "useCache": true, "addPeriodBetweenMsgs": false, "periodValueKey": "periodInMs", "round": null, "tellFailureIfDeltaIsNegative": true, "excludeZeroDeltas": false}"#,
        |node| Ok(NodeKind::Delta(delta(node.json)?));
    Transformation "transform.TbTransformMsgNode" "script" "Transforms the message with a script.", DONE,
        r#"{"scriptLang": "JS", "jsScript": "return {msg: msg, metadata: metadata, msgType: msgType};"}"#,
        |node| Ok(NodeKind::ScriptTransform(node.script(ScriptKind::Transform)?));
    Transformation "transform.TbRenameKeysNode" "rename keys" "Renames fields of data or metadata.", DONE,
        r#"{"renameIn": "DATA", "renameKeysMapping": {"temp": "temperature"}}"#,
        |node| Ok(NodeKind::Keys(KeysNode {
            section: parse_section(node.json, &["renameIn", "fromMetadata"]),
            operation: KeysOperation::Rename(mapping(node.json, &["renameKeysMapping"])),
        }));
    Transformation "transform.TbCopyKeysNode" "copy key-value pairs" "Copies fields between data and metadata.", DONE,
        r#"{"copyFrom": "DATA", "keys": []}"#,
        |node| Ok(NodeKind::Keys(KeysNode {
            section: parse_section(node.json, &["copyFrom", "fromMetadata"]),
            operation: KeysOperation::Copy(NamePatterns::parse(&texts(&node.json["keys"]), node.memory)?),
        }));
    Transformation "transform.TbDeleteKeysNode" "delete key-value pairs" "Deletes fields of data or metadata.", DONE,
        r#"{"deleteFrom": "DATA", "keys": []}"#,
        |node| Ok(NodeKind::Keys(KeysNode {
            section: parse_section(node.json, &["deleteFrom", "fromMetadata"]),
            operation: KeysOperation::Delete(NamePatterns::parse(&texts(&node.json["keys"]), node.memory)?),
        }));
    Transformation "transform.TbChangeOriginatorNode" "change originator"
        "Sets the originator to its customer, tenant, a related entity or the alarm's originator.", DONE,
        r#"{"originatorSource": "CUSTOMER"}"#, |node| Ok(NodeKind::ChangeOriginator(originator_source(node.json)?));
    Transformation "transform.TbSplitArrayMsgNode" "split array msg" "Creates a message for each array element.", DONE,
        r#"{}"#, |_| Ok(NodeKind::SplitArray);
    Action "telemetry.TbMsgTimeseriesNode" "save time series" "Stores values as history and latest values.", DONE,
        r#"{"defaultTTL": 0}"#, |node| Ok(NodeKind::SaveTimeseries(save_timeseries(node.json, node.problems)?));
    Action "telemetry.TbMsgAttributesNode" "save attributes" "Stores attributes of the originator.", DONE,
        r#"{"scope": "SERVER_SCOPE", "notifyDevice": false}"#,
        |node| Ok(NodeKind::SaveAttributes(save_attributes(node.json)?));
    Action "telemetry.TbMsgDeleteAttributesNode" "delete attributes" "Deletes attributes of the originator.", DONE,
        r#"{"scope": "SERVER_SCOPE", "keys": [], "sendAttributesDeletedNotification": false, "notifyDevice": false}"#,
        |node| Ok(NodeKind::DeleteAttributes(DeleteAttributesNode {
            scope: scope(node.json)?,
            keys: texts(&node.json["keys"]),
            notifies_device: flag(node.json, "notifyDevice"),
        }));
    Action "action.TbLogNode" "log" "Writes the result of a script to the log.", DONE,
        r#"{"scriptLang": "JS", "jsScript": "return JSON.stringify(msg);"}"#,
        |node| Ok(NodeKind::Log(log_script(node.tenant, node.json)?));
    Action "rpc.TbSendRPCRequestNode" "RPC call request"
        "Sends an RPC request to the device and continues with its response.", DONE, r#"{"timeoutInSeconds": 60}"#,
        |node| Ok(NodeKind::CallDevice {
            timeout_s: node.json["timeoutInSeconds"].as_u64().unwrap_or(60),
        });
    Action "rpc.TbSendRPCReplyNode" "RPC call reply" "Responds to an RPC request of the device.", DONE,
        r#"{"requestIdMetaDataAttribute": "requestId"}"#,
        |node| Ok(NodeKind::Reply(ReplyNode {
            request_id: text(node.json, "requestIdMetaDataAttribute").unwrap_or_else(|| "requestId".to_owned()),
        }));
    Action "profile.TbDeviceProfileNode" "device profile" "Applies the alarm rules of the device's profile.",
        NodeConnections::Fixed(&[
            "Success", "Failure", "Alarm Created", "Alarm Updated", "Alarm Severity Updated", "Alarm Cleared",
        ]),
        r#"{"persistAlarmRulesState": false, "fetchAlarmRulesStateOnStart": false}"#, |_| Ok(NodeKind::DeviceProfile);
    Action "action.TbCreateAlarmNode" "create alarm" "Creates or updates an alarm of the originator.",
        NodeConnections::Fixed(&["Created", "Updated", "False", "Failure"]),
        r#"{"scriptLang": "JS", "alarmDetailsBuildJs": "return {};", "alarmType": "General Alarm", "severity": "CRITICAL", "propagate": false, "useMessageAlarmData": false, "overwriteAlarmDetails": false, "dynamicSeverity": false, "relationTypes": []}"#,
        |node| Ok(NodeKind::CreateAlarm(Box::new(create_alarm(node.tenant, node.json)?)));
    Action "action.TbClearAlarmNode" "clear alarm" "Clears an alarm of the originator.",
        NodeConnections::Fixed(&["Cleared", "False", "Failure"]),
        r#"{"scriptLang": "JS", "alarmDetailsBuildJs": "return {};", "alarmType": "General Alarm"}"#,
        |node| Ok(NodeKind::ClearAlarm(Box::new(alarm(node.tenant, node.json)?)));
    Action "action.TbMsgCountNode" "message count" "Counts messages and stores the count as telemetry of the tenant.",
        DONE, r#"{"interval": 60, "telemetryPrefix": "messageCount"}"#,
        |node| Ok(NodeKind::Count(CountNode::new(
            text(node.json, "telemetryPrefix").unwrap_or_else(|| "messageCount".to_owned()),
            node.json["interval"].as_u64().unwrap_or(1).max(1),
        )));
    Action "debug.TbMsgGeneratorNode" "generator" "Creates messages with a script periodically.", DONE,
        r#"{"scriptLang": "JS", "jsScript": "return {msg: {temperature: 20}, metadata: {}, msgType: 'POST_TELEMETRY_REQUEST'};", "msgCount": 0, "periodInSeconds": 60, "originatorType": "TENANT"}"#,
        |node| Ok(NodeKind::Generator(Box::new(generator(node.tenant, node.json)?)));
    External "rest.TbRestApiCallNode" "REST API call" "Sends the message to a web server.", DONE,
        r#"{"restEndpointUrlPattern": "", "requestMethod": "POST", "headers": {}}"#,
        |node| Ok(NodeKind::External(Box::new(ExternalNode::rest(node.json)?)));
    External "kafka.TbKafkaNode" "Kafka" "Sends the message to Kafka.", DONE,
        r#"{"topicPattern": "telemetry", "bootstrapServers": "", "acks": "-1"}"#,
        |node| Ok(NodeKind::External(Box::new(ExternalNode::kafka(
            node.json,
            node.problems,
        )?)));
    External "mqtt.TbMqttNode" "MQTT" "Sends the message to an MQTT broker.", DONE,
        r#"{"topicPattern": "my-topic", "host": "", "port": 1883, "connectTimeoutSec": 10, "cleanSession": true, "ssl": false, "credentials": {"type": "anonymous"}}"#,
        |node| Ok(NodeKind::External(Box::new(ExternalNode::mqtt(node.json)?)));
    Flow "flow.TbCheckpointNode" "checkpoint" "Continues after earlier messages are processed.", DONE,
        r#"{"queueName": "Main"}"#,
        |node| Ok(NodeKind::Checkpoint {
            queue: text(node.json, "queueName").unwrap_or_else(|| "Main".to_owned()),
        });
    Flow "flow.TbAckNode" "acknowledge" "Passes the message on.", DONE, r#"{}"#, |_| Ok(NodeKind::Acknowledge);
    Flow "flow.TbRuleChainInputNode" "rule chain" "Runs another chain and continues at its outputs.",
        NodeConnections::Own(&["Success", "Failure"]), r#"{"ruleChainId": ""}"#,
        |node| Ok(NodeKind::Input(InputNode {
            chain: input_chain(node.json)?,
            returns: true,
        }));
    Flow "flow.TbRuleChainOutputNode" "output" "Returns to the calling chain by the name of this node.",
        NodeConnections::Fixed(&[]), r#"{}"#, |_| Ok(NodeKind::Output);
}

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
