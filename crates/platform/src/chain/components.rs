//! The nodes that run here, as an editor of rule chains shows them: by class, with what they are for and the connections that go
//! out of them.

/// Groups of nodes, as ThingsBoard names them.
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

/// Connections that go out of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Connections {
    Fixed(&'static [&'static str]),
    /// Named by whoever writes the chain.
    Own,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Component {
    pub kind: ComponentKind,
    /// Within ThingsBoard's package of nodes.
    class: &'static str,
    pub name: &'static str,
    pub description: &'static str,
    pub connections: Connections,
}

impl Component {
    /// The Java class by which chains name it.
    pub fn class(&self) -> String {
        format!("{}{}", super::nodes::PACKAGE, self.class)
    }
}

const DONE: Connections = Connections::Fixed(&["Success", "Failure"]);
const YES_NO: Connections = Connections::Fixed(&["True", "False", "Failure"]);

const fn component(
    kind: ComponentKind,
    class: &'static str,
    name: &'static str,
    connections: Connections,
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
        Connections::Fixed(&[
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
        "Sends messages on by their type.",
    ),
    component(
        Filter,
        "filter.TbMsgTypeFilterNode",
        "message type filter",
        YES_NO,
        "Whether the type is one of some.",
    ),
    component(
        Filter,
        "filter.TbJsFilterNode",
        "script",
        YES_NO,
        "What a script says of the message.",
    ),
    component(
        Filter,
        "filter.TbJsSwitchNode",
        "switch",
        Connections::Own,
        "To the connections that a script names.",
    ),
    component(
        Filter,
        "filter.TbCheckMessageNode",
        "check fields presence",
        YES_NO,
        "Whether data and metadata have some fields.",
    ),
    component(
        Filter,
        "filter.TbDeviceTypeSwitchNode",
        "device profile switch",
        Connections::Own,
        "By the name of the device's profile.",
    ),
    component(
        Filter,
        "filter.TbAssetTypeSwitchNode",
        "asset profile switch",
        Connections::Own,
        "By the name of the asset's profile.",
    ),
    component(
        Filter,
        "filter.TbOriginatorTypeFilterNode",
        "entity type filter",
        YES_NO,
        "Whether the originator is of some type.",
    ),
    component(
        Filter,
        "filter.TbOriginatorTypeSwitchNode",
        "entity type switch",
        Connections::Own,
        "By the type of the originator.",
    ),
    component(
        Filter,
        "filter.TbCheckAlarmStatusNode",
        "alarm status filter",
        YES_NO,
        "Whether the alarm has one of some statuses.",
    ),
    component(
        Filter,
        "filter.TbCheckRelationNode",
        "check relation presence",
        YES_NO,
        "Whether the originator has a relation.",
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
        Connections::Fixed(&["Success", "Failure", "Other"]),
        "Adds the difference to the value before.",
    ),
    component(
        Transformation,
        "transform.TbTransformMsgNode",
        "script",
        DONE,
        "Makes another message by a script.",
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
        "Customer, tenant, related entity or originator of the alarm.",
    ),
    component(
        Transformation,
        "transform.TbSplitArrayMsgNode",
        "split array msg",
        DONE,
        "A message for each element.",
    ),
    component(
        Action,
        "telemetry.TbMsgTimeseriesNode",
        "save time series",
        DONE,
        "Stores values in history and latest values.",
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
        "Writes what a script makes of the message to the log.",
    ),
    component(
        Action,
        "rpc.TbSendRPCRequestNode",
        "rpc call request",
        DONE,
        "Calls the device; goes on with its answer.",
    ),
    component(
        Action,
        "rpc.TbSendRPCReplyNode",
        "rpc call reply",
        DONE,
        "Answers a call of the device.",
    ),
    component(
        Action,
        "profile.TbDeviceProfileNode",
        "device profile",
        Connections::Fixed(&[
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
        Connections::Fixed(&["Created", "Updated", "False", "Failure"]),
        "Creates or updates an alarm of the originator.",
    ),
    component(
        Action,
        "action.TbClearAlarmNode",
        "clear alarm",
        Connections::Fixed(&["Cleared", "False", "Failure"]),
        "Clears an alarm of the originator.",
    ),
    component(
        Action,
        "action.TbMsgCountNode",
        "message count",
        DONE,
        "Counts, and says so as telemetry of the tenant.",
    ),
    component(
        Action,
        "debug.TbMsgGeneratorNode",
        "generator",
        DONE,
        "Makes messages by a script, now and then.",
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
        "Goes on when the messages before it are done.",
    ),
    component(Flow, "flow.TbAckNode", "acknowledge", DONE, "Goes on."),
    component(
        Flow,
        "flow.TbRuleChainInputNode",
        "rule chain",
        Connections::Own,
        "Through another chain, and back by its outputs.",
    ),
    component(
        Flow,
        "flow.TbRuleChainOutputNode",
        "output",
        Connections::Fixed(&[]),
        "Back to the chain that leads here, by the name of the node.",
    ),
];

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::chain::nodes::is_known;

    #[test]
    fn every_component_is_a_node_that_runs() {
        let mut classes = HashSet::new();
        for component in COMPONENTS {
            assert!(is_known(&component.class()), "{}", component.class());
            assert!(
                classes.insert(component.class()),
                "{} is there twice",
                component.class()
            );
        }
        assert!(!is_known("org.thingsboard.rule.engine.mail.TbSendEmailNode"));
    }
}
