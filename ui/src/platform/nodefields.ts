// What the configuration of each kind of node consists of, for its form: name, kind, unit, what holds without it, and what is wrong with a value.
// A field that is not here, or a node, stays as it is and is changed as JSON.
import { ruleChains, ruleQueues } from "./api";
import { SEVERITIES, type Json } from "./model";

export interface Choice { value: string; name: string; /** What has to stand beside it, unless it does. */ adds?: Json }
export interface NodeField {
  /** Where it stands in the configuration, with dots between levels. */
  at: string;
  name: string;
  kind: "text" | "secret" | "number" | "boolean" | "choice" | "choices" | "texts" | "pairs" | "json" | "entity";
  help?: string;
  unit?: string;
  /** What the node does without the field. */
  standard?: string | number | boolean;
  isNeeded?: boolean;
  min?: number;
  max?: number;
  choices?: Choice[];
  /** Others than these may be, too. */
  isOpen?: boolean;
  /** Choices that the server knows. */
  from?: (signal: AbortSignal) => Promise<Choice[]>;
  /** Of an entity: where its type stands. */
  typeAt?: string;
  /** What is wrong with a value that the kind lets through. */
  check?: (value: unknown) => string | undefined;
  /** Shown only if the field there has one of these values; none: false or nothing. */
  when?: [at: string, ...values: unknown[]];
  /** Shown only if it is there: of old releases. */
  isOld?: boolean;
}

const PREFIX = "org.thingsboard.rule.engine.";
const LIST_MAX = 1_000;
const UUID = /^[0-9a-f]{8}-([0-9a-f]{4}-){3}[0-9a-f]{12}$/i;

const some = (...values: [string, string, Json?][]): Choice[] => values.map(([value, name, adds]) => ({ value, name, ...(adds ? { adds } : {}) }));
const same = (...values: string[]): Choice[] => values.map((value) => ({ value, name: value }));
const PATTERN = "May have `${key}` of the metadata and `$[key]` of the message.";

const queues = async (signal: AbortSignal) => (await ruleQueues(signal)).data.map(({ name }) => ({ value: name, name }));
const chains = async (signal: AbortSignal) => (await ruleChains({ page: 0, pageSize: LIST_MAX, sortProperty: "name", sortOrder: "ASC" }, signal)).data.map(({ id, name }) => ({ value: id.id, name }));

const isUuid = (value: unknown) => (UUID.test(String(value)) ? undefined : "Has to be an id, such as 784f394c-42b6-435a-983c-b7beff2784f9.");
const isRegex = (value: unknown) => {
  for (const one of Array.isArray(value) ? value : []) {
    try { new RegExp(String(one)); } catch { return `\`${String(one)}\` is no regular expression.`; }
  }
  return undefined;
};
const isUrl = (value: unknown) => (/^(https?:\/\/|[$][{[])/i.test(String(value)) ? undefined : "Has to begin with http:// or https://.");
const hasNoWildcard = (value: unknown) => (/[#+]/.test(String(value)) ? "Is published to: no wildcards." : undefined);
const isSeverity = (value: unknown) => (/[$][{[]/.test(String(value)) ? undefined : "Has to name where the severity stands: `${key}` of the metadata, `$[key]` of the message.");

const ENTITIES = some(["DEVICE", "device"], ["ASSET", "asset"], ["CUSTOMER", "customer"], ["TENANT", "tenant"], ["USER", "user"], ["DASHBOARD", "dashboard"], ["RULE_CHAIN", "rule chain"], ["ALARM", "alarm"]);
const MESSAGES = same("POST_TELEMETRY_REQUEST", "POST_ATTRIBUTES_REQUEST", "TO_SERVER_RPC_REQUEST", "RPC_CALL_FROM_SERVER_TO_DEVICE", "CONNECT_EVENT", "DISCONNECT_EVENT", "ACTIVITY_EVENT", "INACTIVITY_EVENT", "ENTITY_CREATED", "ENTITY_UPDATED", "ENTITY_DELETED", "ATTRIBUTES_UPDATED", "ATTRIBUTES_DELETED", "TIMESERIES_UPDATED", "ALARM", "ALARM_ACK", "ALARM_CLEAR");
const SCOPES = some(["SERVER_SCOPE", "server: the device does not see it"], ["SHARED_SCOPE", "shared: the server sets it for the device"], ["CLIENT_SCOPE", "client: the device has said it"]);

const place = (at: string, name: string): NodeField => ({ at, name, kind: "choice", standard: "METADATA", choices: some(["DATA", "message"], ["METADATA", "metadata"]) });
const scope: NodeField = { at: "scope", name: "Scope", kind: "choice", standard: "CLIENT_SCOPE", choices: SCOPES, help: "Metadata `scope` goes before it." };
const notifies = (standard: boolean): NodeField => ({ at: "notifyDevice", name: "Tell the device", kind: "boolean", standard, when: ["scope", "SHARED_SCOPE"] });
const alarmType: NodeField = { at: "alarmType", name: "Type of the alarm", kind: "text", isNeeded: true, help: PATTERN };
const topic = (name: string): NodeField => ({ at: "topicPattern", name, kind: "text", isNeeded: true, help: PATTERN });
const plain: NodeField = { at: "parseToPlainText", name: "A text without its quotation marks", kind: "boolean", standard: false };
const ONCE = { min: 1, standard: 60, unit: "seconds", kind: "number" } as const;
const OFTEN = some(["ON_EVERY_MESSAGE", "each message"], ["DEDUPLICATE", "one message in a time", { deduplicationIntervalSecs: 60 }], ["SKIP", "none"]);
const saving = (at: string, name: string): NodeField[] => [
  { at: `processingSettings.${at}.type`, name, kind: "choice", standard: "ON_EVERY_MESSAGE", choices: OFTEN, when: ["processingSettings.type", "ADVANCED"] },
  { at: `processingSettings.${at}.deduplicationIntervalSecs`, name: `${name}: one in`, ...ONCE, when: [`processingSettings.${at}.type`, "DEDUPLICATE"] },
];
const EACH = { type: "ON_EVERY_MESSAGE" };
const credentials: NodeField[] = [
  { at: "credentials.type", name: "Logs in", kind: "choice", standard: "anonymous", choices: some(["anonymous", "without a password"], ["basic", "with user and password", { username: "", password: "" }]) },
  { at: "credentials.username", name: "User", kind: "text", isNeeded: true, when: ["credentials.type", "basic"] },
  { at: "credentials.password", name: "Password", kind: "secret", help: "Kept in the rule chain, also when that is exported.", when: ["credentials.type", "basic"] },
];
const owner: NodeField[] = [
  { at: "dataToFetch", name: "What is added", kind: "choice", standard: "ATTRIBUTES", choices: some(["ATTRIBUTES", "attributes of the server's scope"], ["LATEST_TELEMETRY", "latest values"]) },
  { at: "dataMapping", name: "Keys, and what they are called there", kind: "pairs", isNeeded: true },
  place("fetchTo", "Added to"),
];
const keys = (at: string, name: string): NodeField[] => [
  place(at, name),
  { at: "keys", name: "Keys", kind: "texts", isNeeded: true, help: "Regular expressions, each for a whole name.", check: isRegex },
];

/** In the order of the form. A node with an empty list has nothing to set. */
const FIELDS: Record<string, NodeField[]> = {
  "filter.TbMsgTypeSwitchNode": [],
  "filter.TbMsgTypeFilterNode": [{ at: "messageTypes", name: "Types that are let through", kind: "choices", choices: MESSAGES, isOpen: true, isNeeded: true }],
  "filter.TbJsFilterNode": [],
  "filter.TbJsSwitchNode": [],
  "filter.TbCheckMessageNode": [
    { at: "messageNames", name: "Fields of the message", kind: "texts" },
    { at: "metadataNames", name: "Fields of the metadata", kind: "texts" },
    { at: "checkAllKeys", name: "All of them have to be there", kind: "boolean", standard: false, help: "Otherwise one is enough." },
  ],
  "filter.TbCheckRelationNode": [
    { at: "direction", name: "Relation", kind: "choice", standard: "FROM", choices: some(["FROM", "from the other to the originator"], ["TO", "from the originator to the other"]) },
    { at: "relationType", name: "Type of the relation", kind: "text", help: "Such as `Contains`; empty: any." },
    { at: "checkForSingleEntity", name: "Only with a certain entity", kind: "boolean", standard: false },
    { at: "entityType", name: "Which is a", kind: "choice", choices: ENTITIES, isNeeded: true, when: ["checkForSingleEntity", true] },
    { at: "entityId", name: "Entity", kind: "entity", typeAt: "entityType", isNeeded: true, check: isUuid, when: ["checkForSingleEntity", true] },
  ],
  "filter.TbOriginatorTypeFilterNode": [{ at: "originatorTypes", name: "Originators that are let through", kind: "choices", choices: ENTITIES, isNeeded: true }],
  "filter.TbOriginatorTypeSwitchNode": [],
  "filter.TbDeviceTypeSwitchNode": [],
  "filter.TbAssetTypeSwitchNode": [],
  "filter.TbCheckAlarmStatusNode": [{ at: "alarmStatusList", name: "Alarms that are let through", kind: "choices", isNeeded: true, choices: some(["ACTIVE_UNACK", "active, not acknowledged"], ["ACTIVE_ACK", "active, acknowledged"], ["CLEARED_UNACK", "cleared, not acknowledged"], ["CLEARED_ACK", "cleared, acknowledged"]) }],

  "metadata.TbGetAttributesNode": [
    { at: "clientAttributeNames", name: "Client attributes", kind: "texts", help: "Come as `cs_…`." },
    { at: "sharedAttributeNames", name: "Shared attributes", kind: "texts", help: "Come as `shared_…`." },
    { at: "serverAttributeNames", name: "Server attributes", kind: "texts", help: "Come as `ss_…`." },
    { at: "latestTsKeyNames", name: "Latest values", kind: "texts", help: "Come under their own names." },
    { at: "getLatestValueWithTs", name: "Latest values with their time", kind: "boolean", standard: false },
    place("fetchTo", "Added to"),
    { at: "tellFailureIfAbsent", name: "Fails if one is not there", kind: "boolean", standard: true },
  ],
  "metadata.TbGetOriginatorFieldsNode": [
    { at: "dataMapping", name: "Fields, and what they are called there", kind: "pairs", isNeeded: true, help: "Such as `name`, `type`, `label`, `createdTime`." },
    { at: "ignoreNullStrings", name: "Without those that are empty", kind: "boolean", standard: false },
    place("fetchTo", "Added to"),
  ],
  "metadata.TbGetCustomerAttributeNode": owner,
  "metadata.TbGetTenantAttributeNode": owner,
  "metadata.CalculateDeltaNode": [
    { at: "inputValueKey", name: "Key of the reading", kind: "text", isNeeded: true },
    { at: "outputValueKey", name: "Key of the difference", kind: "text", isNeeded: true },
    { at: "round", name: "Rounded to", kind: "number", unit: "decimals", min: 0, max: 15, help: "Empty: as it is." },
    { at: "addPeriodBetweenMsgs", name: "Add the time between both", kind: "boolean", standard: false },
    { at: "periodValueKey", name: "Key of that time, in milliseconds", kind: "text", isNeeded: true, when: ["addPeriodBetweenMsgs", true] },
    { at: "tellFailureIfDeltaIsNegative", name: "Fails if it is negative", kind: "boolean", standard: false, help: "As when a meter was replaced." },
    { at: "excludeZeroDeltas", name: "Say nothing if it is 0", kind: "boolean", standard: false },
  ],

  "transform.TbTransformMsgNode": [],
  "transform.TbRenameKeysNode": [place("renameIn", "In"), { at: "renameKeysMapping", name: "Old and new names", kind: "pairs", isNeeded: true }],
  "transform.TbCopyKeysNode": keys("copyFrom", "From"),
  "transform.TbDeleteKeysNode": keys("deleteFrom", "From"),
  "transform.TbSplitArrayMsgNode": [],
  "transform.TbChangeOriginatorNode": [
    { at: "originatorSource", name: "New originator", kind: "choice", isNeeded: true, choices: some(["CUSTOMER", "the customer"], ["TENANT", "the tenant"], ["RELATED", "a related entity", { relationsQuery: { direction: "FROM", maxLevel: 1, filters: [{ relationType: "Contains", entityTypes: [] }] } }], ["ALARM_ORIGINATOR", "that of the alarm"], ["ENTITY", "an entity by its name", { entityType: "DEVICE" }]) },
    { at: "entityType", name: "Which is a", kind: "choice", choices: ENTITIES, isNeeded: true, when: ["originatorSource", "ENTITY"] },
    { at: "entityNamePattern", name: "Name of the entity", kind: "text", isNeeded: true, help: PATTERN, when: ["originatorSource", "ENTITY"] },
    { at: "relationsQuery.direction", name: "Relation", kind: "choice", standard: "FROM", choices: some(["FROM", "from the originator to it"], ["TO", "from it to the originator"]), when: ["originatorSource", "RELATED"] },
    { at: "relationsQuery.maxLevel", name: "At most so far", kind: "number", unit: "levels", min: 0, standard: 1, help: "0: without end.", when: ["originatorSource", "RELATED"] },
    { at: "relationsQuery.fetchLastLevelOnly", name: "Only the farthest", kind: "boolean", standard: false, when: ["originatorSource", "RELATED"] },
    { at: "relationsQuery.filters", name: "Relations that count", kind: "json", help: "A list of `relationType` and `entityTypes`; empty: any.", when: ["originatorSource", "RELATED"] },
  ],

  "telemetry.TbMsgTimeseriesNode": [
    { at: "processingSettings.type", name: "Keeps", kind: "choice", standard: "ON_EVERY_MESSAGE", choices: some(["ON_EVERY_MESSAGE", "each message"], ["DEDUPLICATE", "one message in a time", { deduplicationIntervalSecs: 60 }], ["WEBSOCKETS_ONLY", "nothing: shows it to who watches"], ["ADVANCED", "history, latest values, who watches: each by itself", { timeseries: EACH, latest: EACH, webSockets: EACH, calculatedFields: EACH }]) },
    { at: "processingSettings.deduplicationIntervalSecs", name: "One message in", ...ONCE, help: "Of each originator.", when: ["processingSettings.type", "DEDUPLICATE"] },
    ...saving("timeseries", "History"), ...saving("latest", "Latest values"), ...saving("webSockets", "Who watches"),
    { at: "skipLatestPersistence", name: "History only, without latest values", kind: "boolean", standard: false, isOld: true },
    { at: "defaultTTL", name: "Values end after", kind: "number", unit: "seconds", min: 0, standard: 0, help: "0: as the tenant's do. Metadata `TTL` goes before it." },
    { at: "useServerTs", name: "With the server's time, not the message's", kind: "boolean", standard: false },
  ],
  "telemetry.TbMsgAttributesNode": [scope, notifies(true), { at: "updateAttributesOnlyOnValueChange", name: "Only those that have changed", kind: "boolean", standard: false }],
  "telemetry.TbMsgDeleteAttributesNode": [{ ...scope, help: "" }, { at: "keys", name: "Keys", kind: "texts", isNeeded: true, help: PATTERN }, notifies(false)],
  "profile.TbDeviceProfileNode": [],
  "action.TbCreateAlarmNode": [
    { at: "useMessageAlarmData", name: "The message is the alarm", kind: "boolean", standard: false, help: "Its type, severity and details." },
    { ...alarmType, when: ["useMessageAlarmData"] },
    { at: "dynamicSeverity", name: "Severity from the message", kind: "boolean", standard: false, when: ["useMessageAlarmData"] },
    { at: "severity", name: "Severity", kind: "choice", standard: "CRITICAL", choices: SEVERITIES.map((value) => ({ value, name: value.toLowerCase() })), when: ["dynamicSeverity"] },
    { at: "severity", name: "Severity stands in", kind: "text", isNeeded: true, check: isSeverity, when: ["dynamicSeverity", true] },
    { at: "overwriteAlarmDetails", name: "New details each time", kind: "boolean", standard: true, help: "Otherwise an alarm keeps those that it began with." },
    { at: "propagate", name: "Shown at related entities", kind: "boolean", standard: false },
    { at: "relationTypes", name: "By these types of relations", kind: "texts", help: "Empty: by any.", when: ["propagate", true] },
    { at: "propagateToOwner", name: "Shown at the customer", kind: "boolean", standard: false },
    { at: "propagateToTenant", name: "Shown at the tenant", kind: "boolean", standard: false },
  ],
  "action.TbClearAlarmNode": [alarmType],
  "action.TbLogNode": [],
  "action.TbMsgCountNode": [
    { at: "interval", name: "Counts for", kind: "number", unit: "seconds", min: 1, standard: 1 },
    { at: "telemetryPrefix", name: "Key begins with", kind: "text", standard: "messageCount", help: "The count is telemetry of the tenant; the name of the node of the cluster follows." },
  ],
  "debug.TbMsgGeneratorNode": [
    { at: "periodInSeconds", name: "A message every", kind: "number", unit: "seconds", min: 1, standard: 1 },
    { at: "msgCount", name: "How many", kind: "number", unit: "messages", min: 0, standard: 0, help: "0: without end." },
    { at: "originatorType", name: "As if it came from", kind: "choice", standard: "TENANT", choices: ENTITIES.filter(({ value }) => ["TENANT", "DEVICE", "ASSET", "CUSTOMER"].includes(value)) },
    { at: "originatorId", name: "Entity", kind: "entity", typeAt: "originatorType", isNeeded: true, check: isUuid, when: ["originatorType", "DEVICE", "ASSET", "CUSTOMER"] },
  ],
  "rpc.TbSendRPCRequestNode": [{ at: "timeoutInSeconds", name: "Waits for an answer", kind: "number", unit: "seconds", min: 0, standard: 60, help: "Metadata `expirationTime` goes before it." }],
  "rpc.TbSendRPCReplyNode": [{ at: "requestIdMetaDataAttribute", name: "Metadata with the number of the call", kind: "text", standard: "requestId" }],

  "rest.TbRestApiCallNode": [
    { at: "restEndpointUrlPattern", name: "URL", kind: "text", isNeeded: true, help: PATTERN, check: isUrl },
    { at: "requestMethod", name: "Method", kind: "choice", standard: "POST", choices: same("GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS") },
    { at: "headers", name: "Headers", kind: "pairs", help: PATTERN },
    ...credentials,
    { at: "ignoreRequestBody", name: "Without a body", kind: "boolean", standard: false },
    plain,
    { at: "readTimeoutMs", name: "Waits for an answer", kind: "number", unit: "milliseconds", min: 0, max: 600_000, standard: 60_000, help: "0: 60,000." },
    { at: "maxInMemoryBufferSizeInKb", name: "An answer has at most", kind: "number", unit: "KiB", min: 0, max: 4096, standard: 256, help: "0: 256." },
  ],
  "kafka.TbKafkaNode": [
    { at: "bootstrapServers", name: "Bootstrap servers", kind: "text", isNeeded: true, help: "`host:port`, several with commas." },
    topic("Kafka topic"),
    { at: "keyPattern", name: "Key of the record", kind: "text", help: PATTERN },
    { at: "acks", name: "Delivered when", kind: "choice", standard: "-1", choices: some(["-1", "all replicas have it"], ["all", "all replicas have it (all)"], ["1", "the leader has it"], ["0", "it was sent"]) },
    { at: "linger", name: "Waits for more to send", kind: "number", unit: "milliseconds", min: 0, standard: 0 },
    { at: "addMetadataKeyValuesAsKafkaHeaders", name: "Metadata as headers", kind: "boolean", standard: false },
    { at: "otherProperties", name: "Other properties of the producer", kind: "pairs", help: "Such as `security.protocol`, `sasl.mechanism`, `sasl.jaas.config`, `compression.type`." },
  ],
  "mqtt.TbMqttNode": [
    { ...topic("Topic"), check: hasNoWildcard },
    { at: "host", name: "Host", kind: "text", isNeeded: true },
    { at: "port", name: "Port", kind: "number", min: 1, max: 65_535, standard: 1883 },
    { at: "ssl", name: "TLS", kind: "boolean", standard: false },
    { at: "clientId", name: "Client id", kind: "text", help: "Empty: one by chance." },
    ...credentials,
    { at: "protocolVersion", name: "MQTT version", kind: "choice", standard: "MQTT_3_1_1", choices: some(["MQTT_3_1", "3.1"], ["MQTT_3_1_1", "3.1.1"], ["MQTT_5", "5.0"]) },
    { at: "connectTimeoutSec", name: "Waits for the connection", kind: "number", unit: "seconds", min: 1, max: 200, standard: 10 },
    { at: "cleanSession", name: "Clean session", kind: "boolean", standard: true },
    { at: "retainedMessage", name: "Retained", kind: "boolean", standard: false },
    plain,
  ],

  "flow.TbRuleChainInputNode": [
    { at: "forwardMsgToDefaultRuleChain", name: "The chain of the originator's profile", kind: "boolean", standard: false },
    { at: "ruleChainId", name: "Rule chain", kind: "choice", isNeeded: true, from: chains, when: ["forwardMsgToDefaultRuleChain"] },
  ],
  "flow.TbRuleChainOutputNode": [],
  "flow.TbCheckpointNode": [{ at: "queueName", name: "Queue", kind: "choice", standard: "Main", from: queues, help: "The message goes on from there." }],
  "flow.TbAckNode": [],
};

/** What the form of a node has; none: the node is not known here. */
export const fieldsOf = (type: string): NodeField[] | undefined => (type.startsWith(PREFIX) ? FIELDS[type.slice(PREFIX.length)] : undefined);

export function valueAt(configuration: Json, at: string): unknown {
  return at.split(".").reduce<unknown>((value, name) => (typeof value === "object" && value !== null ? (value as Json)[name] : undefined), configuration);
}

/** With another value there, nothing beside it changed; undefined: without the field. */
export function withValue(configuration: Json, at: string, value: unknown): Json {
  const [name = "", ...rest] = at.split(".");
  const next = { ...configuration };
  if (rest.length) {
    const inner = configuration[name];
    next[name] = withValue(typeof inner === "object" && inner !== null && !Array.isArray(inner) ? (inner as Json) : {}, rest.join("."), value);
  } else if (value === undefined) delete next[name];
  else next[name] = value;
  return next;
}

/** A choice, and what stands beside it. */
export function chosen(configuration: Json, { at, choices }: NodeField, value: string): Json {
  const parent = at.split(".").slice(0, -1);
  let next = withValue(configuration, at, value);
  for (const [name, added] of Object.entries(choices?.find((one) => one.value === value)?.adds ?? {})) {
    const place = [...parent, name].join(".");
    next = valueAt(next, place) === undefined || valueAt(next, place) === null ? withValue(next, place, structuredClone(added)) : next;
  }
  return next;
}

export function isShown(fields: NodeField[], field: NodeField, configuration: Json): boolean {
  if (field.isOld) return valueAt(configuration, field.at) !== undefined;
  if (!field.when) return true;
  const [at, ...values] = field.when;
  const asked = fields.find((one) => one.at === at);
  if (asked && !isShown(fields, asked, configuration)) return false;
  const value = valueAt(configuration, at) ?? asked?.standard;
  return values.length ? values.includes(value) : !value;
}

const isRecord = (value: unknown): value is Json => typeof value === "object" && value !== null && !Array.isArray(value);
/** Old releases have a list of `key` and `value` in place of an object. */
const isPairList = (value: unknown): value is { key: string; value: string }[] => Array.isArray(value) && value.every((one) => isRecord(one) && typeof one["key"] === "string");
const lines = (text: string) => text.split("\n").map((line) => line.trim()).filter(Boolean);

/** A value as it is typed. */
export function typedOf({ kind }: NodeField, value: unknown): string {
  if (value === undefined || value === null) return "";
  if (kind === "texts" && Array.isArray(value)) return value.map(String).join("\n");
  if (kind === "pairs" && isPairList(value)) return value.map((one) => `${one.key} = ${one.value}`).join("\n");
  if (kind === "pairs" && isRecord(value)) return Object.entries(value).map(([key, one]) => `${key} = ${String(one)}`).join("\n");
  return typeof value === "object" ? JSON.stringify(value, null, 2) : String(value);
}

/** What was typed as a value; an error: it cannot be one. */
export function valueOf({ kind, name, standard, unit }: NodeField, text: string, before: unknown): { value: unknown } | { error: string } {
  switch (kind) {
    case "number": {
      if (!text.trim()) return { value: undefined };
      const value = Number(text.trim());
      return Number.isFinite(value) ? { value } : { error: `\`${text.trim()}\` is no number${unit ? ` of ${unit}` : ""}, and not taken.` };
    }
    case "texts": return { value: lines(text) };
    case "pairs": {
      const wrong = lines(text).find((line) => !line.includes("="));
      if (wrong) return { error: `\`${wrong}\` has no \`=\`, and is not taken.` };
      const pairs = lines(text).map((line): [string, string] => [line.slice(0, line.indexOf("=")).trim(), line.slice(line.indexOf("=") + 1).trim()]);
      return { value: isPairList(before) && before.length ? pairs.map(([key, value]) => ({ key, value })) : Object.fromEntries(pairs) };
    }
    case "json": {
      try {
        return { value: text.trim() ? JSON.parse(text) as unknown : undefined };
      } catch (error) {
        return { error: `${name} is not valid and not taken: ${error instanceof Error ? error.message : String(error)}` };
      }
    }
    default: return { value: text === "" && standard !== undefined ? undefined : text };
  }
}

const isEmpty = (value: unknown) => value === undefined || value === null || value === "" || (typeof value === "object" && Object.keys(value).length === 0);

/** What is wrong with what stands there. */
export function problemOf(field: NodeField, value: unknown): string | undefined {
  if (isEmpty(value)) return field.isNeeded ? "This is needed." : undefined;
  switch (field.kind) {
    case "number": {
      if (typeof value !== "number" || !Number.isInteger(value)) return `Has to be a whole number, not \`${JSON.stringify(value)}\`.`;
      const { min = 0, max = Infinity } = field;
      if (value < min || value > max) return max === Infinity ? `Has to be ${min} or more.` : `Has to be from ${min} to ${max}.`;
      return undefined;
    }
    case "boolean": return typeof value === "boolean" ? undefined : `Has to be true or false, not \`${JSON.stringify(value)}\`.`;
    case "texts": case "choices": return Array.isArray(value) && value.every((one) => typeof one === "string") ? field.check?.(value) : "Has to be a list of texts.";
    case "pairs": return isRecord(value) || isPairList(value) ? undefined : "Has to be names with values.";
    case "json": return undefined;
    case "choice": {
      if (typeof value !== "string") return "Has to be a text.";
      return field.choices && !field.choices.some((one) => one.value === value) ? `\`${value}\` is none that is known here.` : undefined;
    }
    default: return typeof value === "string" ? field.check?.(value) : "Has to be a text.";
  }
}

/** Of a whole node: the fields that its form shows and that are wrong. */
export function problemsOf(type: string, configuration: Json): string[] {
  const fields = fieldsOf(type) ?? [];
  return fields.filter((field) => isShown(fields, field, configuration)).flatMap((field) => {
    const problem = problemOf(field, valueAt(configuration, field.at));
    return problem ? [`${field.name}: ${problem}`] : [];
  });
}

const SCRIPTS = ["scriptLang", "jsScript", "tbelScript", "alarmDetailsBuildJs", "alarmDetailsBuildTbel"];

/** Fields that the form does not show: they stay as they are. */
export function othersOf(fields: NodeField[], configuration: Json): string[] {
  const known = new Set([...fields.map(({ at }) => at.split(".")[0]), ...SCRIPTS, "version"]);
  return Object.keys(configuration).filter((name) => !known.has(name));
}
