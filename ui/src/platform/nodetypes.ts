// Node types that the server runs, with a default configuration and the output labels. Nodes of other types are
// preserved.
import type { Json } from "./model";

export interface NodeType {
  type: string;
  title: string;
  kind: "filter" | "enrichment" | "transformation" | "action" | "external" | "flow";
  labels: string[];
  configuration: Json;
}

const PREFIX = "org.thingsboard.rule.engine.";
const DONE = ["Success", "Failure"];
const js = (name: string, script: string): Json => ({ scriptLang: "JS", [name]: script });

export const NODE_TYPES: NodeType[] = (
  [
    [
      "filter.TbMsgTypeSwitchNode",
      "message type switch",
      "filter",
      [
        "Post telemetry",
        "Post attributes",
        "RPC Request from Device",
        "RPC Request to Device",
        "Activity Event",
        "Inactivity Event",
        "Connect Event",
        "Disconnect Event",
        "Other",
      ],
      { version: 0 },
    ],
    [
      "filter.TbMsgTypeFilterNode",
      "message type filter",
      "filter",
      ["True", "False", "Failure"],
      { messageTypes: ["POST_TELEMETRY_REQUEST"] },
    ],
    [
      "filter.TbJsFilterNode",
      "script",
      "filter",
      ["True", "False", "Failure"],
      js("jsScript", "return msg.temperature > 20;"),
    ],
    ["filter.TbJsSwitchNode", "switch", "filter", ["Failure"], js("jsScript", "return ['one'];")],
    [
      "filter.TbCheckMessageNode",
      "check fields presence",
      "filter",
      ["True", "False", "Failure"],
      { messageNames: ["temperature"], metadataNames: [], checkAllKeys: true },
    ],
    [
      "filter.TbCheckRelationNode",
      "check relation presence",
      "filter",
      ["True", "False", "Failure"],
      { direction: "FROM", checkForSingleEntity: false, relationType: "Contains" },
    ],
    [
      "filter.TbOriginatorTypeFilterNode",
      "entity type filter",
      "filter",
      ["True", "False", "Failure"],
      { originatorTypes: ["DEVICE"] },
    ],
    [
      "filter.TbOriginatorTypeSwitchNode",
      "entity type switch",
      "filter",
      ["Device", "Asset", "Alarm", "Failure"],
      { version: 0 },
    ],
    ["filter.TbDeviceTypeSwitchNode", "device profile switch", "filter", ["default", "Failure"], { version: 0 }],
    ["filter.TbAssetTypeSwitchNode", "asset profile switch", "filter", ["default", "Failure"], { version: 0 }],
    [
      "filter.TbCheckAlarmStatusNode",
      "alarm status filter",
      "filter",
      ["True", "False", "Failure"],
      { alarmStatusList: ["ACTIVE_ACK", "ACTIVE_UNACK"] },
    ],
    [
      "metadata.TbGetAttributesNode",
      "originator attributes",
      "enrichment",
      DONE,
      {
        tellFailureIfAbsent: true,
        fetchTo: "METADATA",
        clientAttributeNames: [],
        sharedAttributeNames: [],
        serverAttributeNames: [],
        latestTsKeyNames: [],
        getLatestValueWithTs: false,
      },
    ],
    [
      "metadata.TbGetOriginatorFieldsNode",
      "originator fields",
      "enrichment",
      DONE,
      {
        dataMapping: { name: "originatorName", type: "originatorType" },
        ignoreNullStrings: false,
        fetchTo: "METADATA",
      },
    ],
    [
      "metadata.TbGetCustomerAttributeNode",
      "customer attributes",
      "enrichment",
      DONE,
      { fetchTo: "METADATA", dataMapping: { a: "a" }, dataToFetch: "ATTRIBUTES" },
    ],
    [
      "metadata.TbGetTenantAttributeNode",
      "tenant attributes",
      "enrichment",
      DONE,
      { fetchTo: "METADATA", dataMapping: { a: "a" }, dataToFetch: "ATTRIBUTES" },
    ],
    [
      "metadata.CalculateDeltaNode",
      "calculate delta",
      "enrichment",
      ["Success", "Other", "Failure"],
      {
        inputValueKey: "pulseCounter",
        outputValueKey: "delta",
        useCache: true,
        addPeriodBetweenMsgs: false,
        periodValueKey: "periodInMs",
        round: null,
        tellFailureIfDeltaIsNegative: true,
        excludeZeroDeltas: false,
      },
    ],
    [
      "transform.TbTransformMsgNode",
      "script",
      "transformation",
      DONE,
      js("jsScript", "return {msg: msg, metadata: metadata, msgType: msgType};"),
    ],
    [
      "transform.TbRenameKeysNode",
      "rename keys",
      "transformation",
      DONE,
      { renameIn: "DATA", renameKeysMapping: { temp: "temperature" } },
    ],
    ["transform.TbCopyKeysNode", "copy key-value pairs", "transformation", DONE, { copyFrom: "DATA", keys: [] }],
    ["transform.TbDeleteKeysNode", "delete key-value pairs", "transformation", DONE, { deleteFrom: "DATA", keys: [] }],
    ["transform.TbSplitArrayMsgNode", "split array", "transformation", DONE, {}],
    ["transform.TbChangeOriginatorNode", "change originator", "transformation", DONE, { originatorSource: "CUSTOMER" }],
    ["telemetry.TbMsgTimeseriesNode", "save time series", "action", DONE, { defaultTTL: 0 }],
    [
      "telemetry.TbMsgAttributesNode",
      "save attributes",
      "action",
      DONE,
      { scope: "SERVER_SCOPE", notifyDevice: false },
    ],
    [
      "telemetry.TbMsgDeleteAttributesNode",
      "delete attributes",
      "action",
      DONE,
      { scope: "SERVER_SCOPE", keys: [], sendAttributesDeletedNotification: false, notifyDevice: false },
    ],
    [
      "profile.TbDeviceProfileNode",
      "device profile",
      "action",
      ["Success", "Alarm Created", "Alarm Updated", "Alarm Severity Updated", "Alarm Cleared", "Failure"],
      { persistAlarmRulesState: false, fetchAlarmRulesStateOnStart: false },
    ],
    [
      "action.TbCreateAlarmNode",
      "create alarm",
      "action",
      ["Created", "Updated", "False", "Failure"],
      {
        ...js("alarmDetailsBuildJs", "return {};"),
        alarmType: "General Alarm",
        severity: "CRITICAL",
        propagate: false,
        useMessageAlarmData: false,
        overwriteAlarmDetails: false,
        dynamicSeverity: false,
        relationTypes: [],
      },
    ],
    [
      "action.TbClearAlarmNode",
      "clear alarm",
      "action",
      ["Cleared", "False", "Failure"],
      { ...js("alarmDetailsBuildJs", "return {};"), alarmType: "General Alarm" },
    ],
    ["action.TbLogNode", "log", "action", DONE, js("jsScript", "return JSON.stringify(msg);")],
    ["action.TbMsgCountNode", "message count", "action", DONE, { interval: 60, telemetryPrefix: "messageCount" }],
    [
      "debug.TbMsgGeneratorNode",
      "generator",
      "action",
      DONE,
      {
        ...js("jsScript", "return {msg: {temperature: 20}, metadata: {}, msgType: 'POST_TELEMETRY_REQUEST'};"),
        msgCount: 0,
        periodInSeconds: 60,
        originatorType: "TENANT",
      },
    ],
    ["rpc.TbSendRPCRequestNode", "RPC call request", "action", DONE, { timeoutInSeconds: 60 }],
    ["rpc.TbSendRPCReplyNode", "RPC call reply", "action", DONE, { requestIdMetaDataAttribute: "requestId" }],
    [
      "rest.TbRestApiCallNode",
      "REST API call",
      "external",
      DONE,
      { restEndpointUrlPattern: "", requestMethod: "POST", headers: {} },
    ],
    ["kafka.TbKafkaNode", "Kafka", "external", DONE, { topicPattern: "telemetry", bootstrapServers: "", acks: "-1" }],
    [
      "mqtt.TbMqttNode",
      "MQTT",
      "external",
      DONE,
      {
        topicPattern: "my-topic",
        host: "",
        port: 1883,
        connectTimeoutSec: 10,
        cleanSession: true,
        ssl: false,
        credentials: { type: "anonymous" },
      },
    ],
    ["flow.TbRuleChainInputNode", "rule chain", "flow", DONE, { ruleChainId: "" }],
    ["flow.TbRuleChainOutputNode", "output", "flow", [], {}],
    ["flow.TbCheckpointNode", "checkpoint", "flow", DONE, { queueName: "Main" }],
    ["flow.TbAckNode", "acknowledge", "flow", DONE, {}],
  ] as [string, string, NodeType["kind"], string[], Json][]
).map(([name, title, kind, labels, configuration]) => ({ type: PREFIX + name, title, kind, labels, configuration }));

export const typeOf = (type: string): NodeType | undefined => NODE_TYPES.find((one) => one.type === type);

/** Field of a node's script, and ThingsBoard's name of its kind. */
const SCRIPTS: Record<string, [string, ScriptType]> = {
  "filter.TbJsFilterNode": ["jsScript", "filter"],
  "filter.TbJsSwitchNode": ["jsScript", "switch"],
  "transform.TbTransformMsgNode": ["jsScript", "update"],
  "action.TbLogNode": ["jsScript", "string"],
  "action.TbCreateAlarmNode": ["alarmDetailsBuildJs", "json"],
  "action.TbClearAlarmNode": ["alarmDetailsBuildJs", "json"],
  "debug.TbMsgGeneratorNode": ["jsScript", "generate"],
};
export type ScriptType = "filter" | "switch" | "update" | "string" | "json" | "generate";
export const scriptOf = (type: string): { field: string; kind: ScriptType } | undefined => {
  const [field, kind] = SCRIPTS[type.slice(PREFIX.length)] ?? [];
  return type.startsWith(PREFIX) && field && kind ? { field, kind } : undefined;
};
