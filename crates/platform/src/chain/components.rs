//! Supported rule nodes, as shown in a rule chain editor: class, purpose and connections.

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
    /// Named in the chain.
    Own,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Component {
    pub kind: ComponentKind,
    /// Class name within ThingsBoard's package of nodes.
    class: &'static str,
    pub name: &'static str,
    pub description: &'static str,
    pub connections: NodeConnections,
}

impl Component {
    /// The full Java class name, as used in chains.
    pub fn class(&self) -> String {
        format!("{}{}", super::nodes::PACKAGE, self.class)
    }
}

const DONE: NodeConnections = NodeConnections::Fixed(&["Success", "Failure"]);
const YES_NO: NodeConnections = NodeConnections::Fixed(&["True", "False", "Failure"]);

const fn component(
    kind: ComponentKind,
    class: &'static str,
    name: &'static str,
    connections: NodeConnections,
    description: &'static str,
) -> Component {
    Component {
        kind,
        class,
        name,
        description,
        connections,
    }
}

use ComponentKind::{Action, Enrichment, External, Filter, Flow, Transformation};

pub const COMPONENTS: &[Component] = &[
    component(
        Filter,
        "filter.TbMsgTypeSwitchNode",
        "message type switch",
        NodeConnections::Fixed(&[
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
        "Routes messages by type.",
    ),
    component(
        Filter,
        "filter.TbMsgTypeFilterNode",
        "message type filter",
        YES_NO,
        "Checks whether the message type is in a list.",
    ),
    component(
        Filter,
        "filter.TbJsFilterNode",
        "script",
        YES_NO,
        "Evaluates a script on the message.",
    ),
    component(
        Filter,
        "filter.TbJsSwitchNode",
        "switch",
        NodeConnections::Own,
        "Routes messages to the connections that a script returns.",
    ),
    component(
        Filter,
        "filter.TbCheckMessageNode",
        "check fields presence",
        YES_NO,
        "Checks whether data and metadata contain given fields.",
    ),
    component(
        Filter,
        "filter.TbDeviceTypeSwitchNode",
        "device profile switch",
        NodeConnections::Own,
        "Routes messages by the name of the device profile.",
    ),
    component(
        Filter,
        "filter.TbAssetTypeSwitchNode",
        "asset profile switch",
        NodeConnections::Own,
        "Routes messages by the name of the asset profile.",
    ),
    component(
        Filter,
        "filter.TbOriginatorTypeFilterNode",
        "entity type filter",
        YES_NO,
        "Checks the type of the originator.",
    ),
    component(
        Filter,
        "filter.TbOriginatorTypeSwitchNode",
        "entity type switch",
        NodeConnections::Own,
        "Routes messages by the type of the originator.",
    ),
    component(
        Filter,
        "filter.TbCheckAlarmStatusNode",
        "alarm status filter",
        YES_NO,
        "Checks the status of the alarm.",
    ),
    component(
        Filter,
        "filter.TbCheckRelationNode",
        "check relation presence",
        YES_NO,
        "Checks whether the originator has a relation.",
    ),
    component(
        Enrichment,
        "metadata.TbGetAttributesNode",
        "originator attributes",
        DONE,
        "Adds attributes and latest values of the originator.",
    ),
    component(
        Enrichment,
        "metadata.TbGetOriginatorFieldsNode",
        "originator fields",
        DONE,
        "Adds fields of the originator.",
    ),
    component(
        Enrichment,
        "metadata.TbGetCustomerAttributeNode",
        "customer attributes",
        DONE,
        "Adds attributes of the originator's customer.",
    ),
    component(
        Enrichment,
        "metadata.TbGetTenantAttributeNode",
        "tenant attributes",
        DONE,
        "Adds attributes of the tenant.",
    ),
    component(
        Enrichment,
        "metadata.CalculateDeltaNode",
        "calculate delta",
        NodeConnections::Fixed(&["Success", "Failure", "Other"]),
        "Adds the difference to the previous value.",
    ),
    component(
        Transformation,
        "transform.TbTransformMsgNode",
        "script",
        DONE,
        "Transforms the message with a script.",
    ),
    component(
        Transformation,
        "transform.TbRenameKeysNode",
        "rename keys",
        DONE,
        "Renames fields of data or metadata.",
    ),
    component(
        Transformation,
        "transform.TbCopyKeysNode",
        "copy key-value pairs",
        DONE,
        "Copies fields between data and metadata.",
    ),
    component(
        Transformation,
        "transform.TbDeleteKeysNode",
        "delete key-value pairs",
        DONE,
        "Deletes fields of data or metadata.",
    ),
    component(
        Transformation,
        "transform.TbChangeOriginatorNode",
        "change originator",
        DONE,
        "Sets the originator to its customer, tenant, a related entity or the alarm's originator.",
    ),
    component(
        Transformation,
        "transform.TbSplitArrayMsgNode",
        "split array msg",
        DONE,
        "Creates a message for each array element.",
    ),
    component(
        Action,
        "telemetry.TbMsgTimeseriesNode",
        "save time series",
        DONE,
        "Stores values as history and latest values.",
    ),
    component(
        Action,
        "telemetry.TbMsgAttributesNode",
        "save attributes",
        DONE,
        "Stores attributes of the originator.",
    ),
    component(
        Action,
        "telemetry.TbMsgDeleteAttributesNode",
        "delete attributes",
        DONE,
        "Deletes attributes of the originator.",
    ),
    component(
        Action,
        "action.TbLogNode",
        "log",
        DONE,
        "Writes the result of a script to the log.",
    ),
    component(
        Action,
        "rpc.TbSendRPCRequestNode",
        "rpc call request",
        DONE,
        "Sends an RPC request to the device and continues with its response.",
    ),
    component(
        Action,
        "rpc.TbSendRPCReplyNode",
        "rpc call reply",
        DONE,
        "Responds to an RPC request of the device.",
    ),
    component(
        Action,
        "profile.TbDeviceProfileNode",
        "device profile",
        NodeConnections::Fixed(&[
            "Success",
            "Failure",
            "Alarm Created",
            "Alarm Updated",
            "Alarm Severity Updated",
            "Alarm Cleared",
        ]),
        "Applies the alarm rules of the device's profile.",
    ),
    component(
        Action,
        "action.TbCreateAlarmNode",
        "create alarm",
        NodeConnections::Fixed(&["Created", "Updated", "False", "Failure"]),
        "Creates or updates an alarm of the originator.",
    ),
    component(
        Action,
        "action.TbClearAlarmNode",
        "clear alarm",
        NodeConnections::Fixed(&["Cleared", "False", "Failure"]),
        "Clears an alarm of the originator.",
    ),
    component(
        Action,
        "action.TbMsgCountNode",
        "message count",
        DONE,
        "Counts messages and stores the count as telemetry of the tenant.",
    ),
    component(
        Action,
        "debug.TbMsgGeneratorNode",
        "generator",
        DONE,
        "Creates messages with a script periodically.",
    ),
    component(
        External,
        "rest.TbRestApiCallNode",
        "rest api call",
        DONE,
        "Sends the message to a web server.",
    ),
    component(
        External,
        "kafka.TbKafkaNode",
        "kafka",
        DONE,
        "Sends the message to Kafka.",
    ),
    component(
        External,
        "mqtt.TbMqttNode",
        "mqtt",
        DONE,
        "Sends the message to an MQTT broker.",
    ),
    component(
        Flow,
        "flow.TbCheckpointNode",
        "checkpoint",
        DONE,
        "Continues after earlier messages are processed.",
    ),
    component(Flow, "flow.TbAckNode", "acknowledge", DONE, "Passes the message on."),
    component(
        Flow,
        "flow.TbRuleChainInputNode",
        "rule chain",
        NodeConnections::Own,
        "Runs another chain and continues at its outputs.",
    ),
    component(
        Flow,
        "flow.TbRuleChainOutputNode",
        "output",
        NodeConnections::Fixed(&[]),
        "Returns to the calling chain by the name of this node.",
    ),
];

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::chain::nodes::is_known;

    #[test]
    fn every_component_is_supported() {
        let mut classes = HashSet::new();
        for component in COMPONENTS {
            assert!(is_known(&component.class()), "{}", component.class());
            assert!(
                classes.insert(component.class()),
                "{} is listed twice",
                component.class()
            );
        }
        assert!(!is_known("org.thingsboard.rule.engine.mail.TbSendEmailNode"));
    }
}
