// Form fields of each rule node type: name, kind, unit, default and validation. Unknown fields and nodes are preserved
// and edited as JSON.
import { ruleChains, ruleQueues } from "./api";
import { SEVERITIES, type Json } from "./model";

export interface Choice {
  value: string;
  name: string;
  /** Fields that this choice needs, added if missing. */ adds?: Json;
}
export interface NodeField {
  /** Path in the configuration, with dots between levels. */
  at: string;
  name: string;
  kind: "text" | "secret" | "number" | "boolean" | "choice" | "choices" | "texts" | "pairs" | "json" | "entity";
  help?: string;
  unit?: string;
  /** The server's default if the field is missing. */
  standard?: string | number | boolean;
  /** An example in an empty input. */
  placeholder?: string;
  isNeeded?: boolean;
  min?: number;
  max?: number;
  choices?: Choice[];
  /** Other values than the choices are allowed. */
  isOpen?: boolean;
  /** Choices loaded from the server. */
  from?: (signal: AbortSignal) => Promise<Choice[]>;
  /** For entities: path of the entity type. */
  typeAt?: string;
  /** Additional validation. Returns what is wrong. */
  check?: (value: unknown) => string | undefined;
  /** Shown only if the field at this path has one of these values, or without values, if it is false or missing. */
  when?: [at: string, ...values: unknown[]];
  /** Shown only if it is set: a field of older ThingsBoard releases. */
  isOld?: boolean;
}

const PREFIX = "org.thingsboard.rule.engine.";
const LIST_MAX = 1_000;
const UUID = /^[0-9a-f]{8}-([0-9a-f]{4}-){3}[0-9a-f]{12}$/i;

const some = (...values: [string, string, Json?][]): Choice[] =>
  values.map(([value, name, adds]) => ({ value, name, ...(adds ? { adds } : {}) }));
const same = (...values: string[]): Choice[] => values.map((value) => ({ value, name: value }));
const PATTERN = "`${key}` inserts a metadata value, `$[key]` a message field.";

const queues = async (signal: AbortSignal) =>
  (await ruleQueues(signal)).data.map(({ name }) => ({ value: name, name }));
const chains = async (signal: AbortSignal) =>
  (await ruleChains({ page: 0, pageSize: LIST_MAX, sortProperty: "name", sortOrder: "ASC" }, signal)).data.map(
    ({ id, name }) => ({ value: id.id, name }),
  );

const isUuid = (value: unknown) =>
  UUID.test(String(value)) ? undefined : "Must be a UUID such as 784f394c-42b6-435a-983c-b7beff2784f9.";
const isRegex = (value: unknown) => {
  for (const one of Array.isArray(value) ? value : []) {
    try {
      new RegExp(String(one));
    } catch {
      return `\`${String(one)}\` is not a valid regular expression.`;
    }
  }
  return undefined;
};
const isUrl = (value: unknown) =>
  /^(https?:\/\/|[$][{[])/i.test(String(value)) ? undefined : "Must start with http:// or https://.";
const hasNoWildcard = (value: unknown) =>
  /[#+]/.test(String(value)) ? "A topic name must not contain wildcards." : undefined;
const isSeverity = (value: unknown) =>
  /[$][{[]/.test(String(value))
    ? undefined
    : "Must contain `${key}` for a metadata value or `$[key]` for a message field.";

const ENTITIES = some(
  ["DEVICE", "device"],
  ["ASSET", "asset"],
  ["CUSTOMER", "customer"],
  ["TENANT", "tenant"],
  ["USER", "user"],
  ["DASHBOARD", "dashboard"],
  ["RULE_CHAIN", "rule chain"],
  ["ALARM", "alarm"],
);
const MESSAGES = same(
  "POST_TELEMETRY_REQUEST",
  "POST_ATTRIBUTES_REQUEST",
  "TO_SERVER_RPC_REQUEST",
  "RPC_CALL_FROM_SERVER_TO_DEVICE",
  "CONNECT_EVENT",
  "DISCONNECT_EVENT",
  "ACTIVITY_EVENT",
  "INACTIVITY_EVENT",
  "ENTITY_CREATED",
  "ENTITY_UPDATED",
  "ENTITY_DELETED",
  "ATTRIBUTES_UPDATED",
  "ATTRIBUTES_DELETED",
  "TIMESERIES_UPDATED",
  "ALARM",
  "ALARM_ACK",
  "ALARM_CLEAR",
);
const SCOPES = some(
  ["SERVER_SCOPE", "server: not visible to the device"],
  ["SHARED_SCOPE", "shared: set by the server, read by the device"],
  ["CLIENT_SCOPE", "client: reported by the device"],
);

const place = (at: string, name: string): NodeField => ({
  at,
  name,
  kind: "choice",
  standard: "METADATA",
  choices: some(["DATA", "message"], ["METADATA", "metadata"]),
});
const scope: NodeField = {
  at: "scope",
  name: "Scope",
  kind: "choice",
  standard: "CLIENT_SCOPE",
  choices: SCOPES,
  help: "The metadata key `scope` overrides it.",
};
const notifies = (standard: boolean): NodeField => ({
  at: "notifyDevice",
  name: "Notify the device",
  kind: "boolean",
  standard,
  when: ["scope", "SHARED_SCOPE"],
});
const alarmType: NodeField = { at: "alarmType", name: "Alarm type", kind: "text", isNeeded: true, help: PATTERN };
const topic = (name: string): NodeField => ({ at: "topicPattern", name, kind: "text", isNeeded: true, help: PATTERN });
const plain: NodeField = {
  at: "parseToPlainText",
  name: "Text payload without quotation marks",
  kind: "boolean",
  standard: false,
};
const ONCE = { min: 1, standard: 60, unit: "seconds", kind: "number" } as const;
const OFTEN = some(
  ["ON_EVERY_MESSAGE", "every message"],
  ["DEDUPLICATE", "one message per interval", { deduplicationIntervalSecs: 60 }],
  ["SKIP", "never"],
);
const saving = (at: string, name: string): NodeField[] => [
  {
    at: `processingSettings.${at}.type`,
    name,
    kind: "choice",
    standard: "ON_EVERY_MESSAGE",
    choices: OFTEN,
    when: ["processingSettings.type", "ADVANCED"],
  },
  {
    at: `processingSettings.${at}.deduplicationIntervalSecs`,
    name: `${name}: interval`,
    ...ONCE,
    when: [`processingSettings.${at}.type`, "DEDUPLICATE"],
  },
];
const EACH = { type: "ON_EVERY_MESSAGE" };
const credentials: NodeField[] = [
  {
    at: "credentials.type",
    name: "Authentication",
    kind: "choice",
    standard: "anonymous",
    choices: some(["anonymous", "anonymous"], ["basic", "user name and password", { username: "", password: "" }]),
  },
  { at: "credentials.username", name: "User name", kind: "text", isNeeded: true, when: ["credentials.type", "basic"] },
  {
    at: "credentials.password",
    name: "Password",
    kind: "secret",
    help: "Stored in the rule chain in plain text, and part of its export.",
    when: ["credentials.type", "basic"],
  },
];
const owner: NodeField[] = [
  {
    at: "dataToFetch",
    name: "Source",
    kind: "choice",
    standard: "ATTRIBUTES",
    choices: some(["ATTRIBUTES", "server attributes"], ["LATEST_TELEMETRY", "latest telemetry"]),
  },
  { at: "dataMapping", name: "Source keys and target names", kind: "pairs", isNeeded: true },
  place("fetchTo", "Target"),
];
const keys = (at: string, name: string): NodeField[] => [
  place(at, name),
  {
    at: "keys",
    name: "Keys",
    kind: "texts",
    isNeeded: true,
    help: "Regular expressions that match whole key names.",
    check: isRegex,
  },
];

/** Fields in the order of the form. An empty list: the node has no settings. */
const FIELDS: Record<string, NodeField[]> = {
  "filter.TbMsgTypeSwitchNode": [],
  "filter.TbMsgTypeFilterNode": [
    {
      at: "messageTypes",
      name: "Accepted message types",
      kind: "choices",
      choices: MESSAGES,
      isOpen: true,
      isNeeded: true,
    },
  ],
  "filter.TbJsFilterNode": [],
  "filter.TbJsSwitchNode": [],
  "filter.TbCheckMessageNode": [
    { at: "messageNames", name: "Message fields", kind: "texts" },
    { at: "metadataNames", name: "Metadata keys", kind: "texts" },
    {
      at: "checkAllKeys",
      name: "Require all fields",
      kind: "boolean",
      standard: false,
      help: "Otherwise one field is enough.",
    },
  ],
  "filter.TbCheckRelationNode": [
    {
      at: "direction",
      name: "Direction",
      kind: "choice",
      standard: "FROM",
      choices: some(
        ["FROM", "from the other entity to the originator"],
        ["TO", "from the originator to the other entity"],
      ),
    },
    { at: "relationType", name: "Relation type", kind: "text", help: "For example `Contains`. Empty: any type." },
    { at: "checkForSingleEntity", name: "Check a specific entity", kind: "boolean", standard: false },
    {
      at: "entityType",
      name: "Entity type",
      kind: "choice",
      choices: ENTITIES,
      isNeeded: true,
      when: ["checkForSingleEntity", true],
    },
    {
      at: "entityId",
      name: "Entity",
      kind: "entity",
      typeAt: "entityType",
      isNeeded: true,
      check: isUuid,
      when: ["checkForSingleEntity", true],
    },
  ],
  "filter.TbOriginatorTypeFilterNode": [
    { at: "originatorTypes", name: "Accepted originator types", kind: "choices", choices: ENTITIES, isNeeded: true },
  ],
  "filter.TbOriginatorTypeSwitchNode": [],
  "filter.TbDeviceTypeSwitchNode": [],
  "filter.TbAssetTypeSwitchNode": [],
  "filter.TbCheckAlarmStatusNode": [
    {
      at: "alarmStatusList",
      name: "Accepted alarm states",
      kind: "choices",
      isNeeded: true,
      choices: some(
        ["ACTIVE_UNACK", "active, not acknowledged"],
        ["ACTIVE_ACK", "active, acknowledged"],
        ["CLEARED_UNACK", "cleared, not acknowledged"],
        ["CLEARED_ACK", "cleared, acknowledged"],
      ),
    },
  ],

  "metadata.TbGetAttributesNode": [
    { at: "clientAttributeNames", name: "Client attributes", kind: "texts", help: "Added with the prefix `cs_`." },
    { at: "sharedAttributeNames", name: "Shared attributes", kind: "texts", help: "Added with the prefix `shared_`." },
    { at: "serverAttributeNames", name: "Server attributes", kind: "texts", help: "Added with the prefix `ss_`." },
    { at: "latestTsKeyNames", name: "Latest telemetry", kind: "texts", help: "Added without a prefix." },
    { at: "getLatestValueWithTs", name: "Include timestamps of latest telemetry", kind: "boolean", standard: false },
    place("fetchTo", "Target"),
    { at: "tellFailureIfAbsent", name: "Fail if a key is missing", kind: "boolean", standard: true },
  ],
  "metadata.TbGetOriginatorFieldsNode": [
    {
      at: "dataMapping",
      name: "Entity fields and target names",
      kind: "pairs",
      isNeeded: true,
      help: "For example `name`, `type`, `label`, `createdTime`.",
    },
    { at: "ignoreNullStrings", name: "Skip empty fields", kind: "boolean", standard: false },
    place("fetchTo", "Target"),
  ],
  "metadata.TbGetCustomerAttributeNode": owner,
  "metadata.TbGetTenantAttributeNode": owner,
  "metadata.CalculateDeltaNode": [
    { at: "inputValueKey", name: "Input key", kind: "text", isNeeded: true },
    { at: "outputValueKey", name: "Output key", kind: "text", isNeeded: true },
    { at: "round", name: "Rounding", kind: "number", unit: "decimals", min: 0, max: 15, help: "Empty: no rounding." },
    { at: "addPeriodBetweenMsgs", name: "Add the time between the readings", kind: "boolean", standard: false },
    {
      at: "periodValueKey",
      name: "Key of the time (milliseconds)",
      kind: "text",
      isNeeded: true,
      when: ["addPeriodBetweenMsgs", true],
    },
    {
      at: "tellFailureIfDeltaIsNegative",
      name: "Fail if the difference is negative",
      kind: "boolean",
      standard: false,
      help: "For example after a meter was replaced.",
    },
    { at: "excludeZeroDeltas", name: "Omit a difference of 0", kind: "boolean", standard: false },
  ],

  "transform.TbTransformMsgNode": [],
  "transform.TbRenameKeysNode": [
    place("renameIn", "Rename keys in"),
    { at: "renameKeysMapping", name: "Old and new key names", kind: "pairs", isNeeded: true },
  ],
  "transform.TbCopyKeysNode": keys("copyFrom", "Copy from"),
  "transform.TbDeleteKeysNode": keys("deleteFrom", "Delete from"),
  "transform.TbSplitArrayMsgNode": [],
  "transform.TbChangeOriginatorNode": [
    {
      at: "originatorSource",
      name: "New originator",
      kind: "choice",
      isNeeded: true,
      choices: some(
        ["CUSTOMER", "customer"],
        ["TENANT", "tenant"],
        [
          "RELATED",
          "related entity",
          {
            relationsQuery: {
              direction: "FROM",
              maxLevel: 1,
              filters: [{ relationType: "Contains", entityTypes: [] }],
            },
          },
        ],
        ["ALARM_ORIGINATOR", "originator of the alarm"],
        ["ENTITY", "entity by name", { entityType: "DEVICE" }],
      ),
    },
    {
      at: "entityType",
      name: "Entity type",
      kind: "choice",
      choices: ENTITIES,
      isNeeded: true,
      when: ["originatorSource", "ENTITY"],
    },
    {
      at: "entityNamePattern",
      name: "Entity name",
      kind: "text",
      isNeeded: true,
      help: PATTERN,
      when: ["originatorSource", "ENTITY"],
    },
    {
      at: "relationsQuery.direction",
      name: "Direction",
      kind: "choice",
      standard: "FROM",
      choices: some(["FROM", "from the originator"], ["TO", "to the originator"]),
      when: ["originatorSource", "RELATED"],
    },
    {
      at: "relationsQuery.maxLevel",
      name: "Maximum depth",
      kind: "number",
      unit: "levels",
      min: 0,
      standard: 1,
      help: "0: unlimited.",
      when: ["originatorSource", "RELATED"],
    },
    {
      at: "relationsQuery.fetchLastLevelOnly",
      name: "Only entities at the last level",
      kind: "boolean",
      standard: false,
      when: ["originatorSource", "RELATED"],
    },
    {
      at: "relationsQuery.filters",
      name: "Relation filters",
      kind: "json",
      help: "A list of objects with `relationType` and `entityTypes`. Empty: all relations.",
      when: ["originatorSource", "RELATED"],
    },
  ],

  "telemetry.TbMsgTimeseriesNode": [
    {
      at: "processingSettings.type",
      name: "Processing",
      kind: "choice",
      standard: "ON_EVERY_MESSAGE",
      choices: some(
        ["ON_EVERY_MESSAGE", "store every message"],
        ["DEDUPLICATE", "store one message per interval", { deduplicationIntervalSecs: 60 }],
        ["WEBSOCKETS_ONLY", "live view only, not stored"],
        [
          "ADVANCED",
          "separate settings for history, latest values and live view",
          { timeseries: EACH, latest: EACH, webSockets: EACH, calculatedFields: EACH },
        ],
      ),
    },
    {
      at: "processingSettings.deduplicationIntervalSecs",
      name: "Interval",
      ...ONCE,
      help: "Applies per originator.",
      when: ["processingSettings.type", "DEDUPLICATE"],
    },
    ...saving("timeseries", "History"),
    ...saving("latest", "Latest values"),
    ...saving("webSockets", "Live view"),
    {
      at: "skipLatestPersistence",
      name: "Store history only, not the latest values",
      kind: "boolean",
      standard: false,
      isOld: true,
    },
    {
      at: "defaultTTL",
      name: "Time to live",
      kind: "number",
      unit: "seconds",
      min: 0,
      standard: 0,
      help: "0: the tenant's default. The metadata key `TTL` overrides it.",
    },
    { at: "useServerTs", name: "Use the server's time instead of the message's", kind: "boolean", standard: false },
  ],
  "telemetry.TbMsgAttributesNode": [
    scope,
    notifies(true),
    { at: "updateAttributesOnlyOnValueChange", name: "Save only changed values", kind: "boolean", standard: false },
  ],
  "telemetry.TbMsgDeleteAttributesNode": [
    { ...scope, help: "" },
    { at: "keys", name: "Keys", kind: "texts", isNeeded: true, help: PATTERN },
    notifies(false),
  ],
  "profile.TbDeviceProfileNode": [],
  "action.TbCreateAlarmNode": [
    {
      at: "useMessageAlarmData",
      name: "Take the alarm from the message",
      kind: "boolean",
      standard: false,
      help: "The message contains type, severity and details.",
    },
    { ...alarmType, when: ["useMessageAlarmData"] },
    {
      at: "dynamicSeverity",
      name: "Severity from the message",
      kind: "boolean",
      standard: false,
      when: ["useMessageAlarmData"],
    },
    {
      at: "severity",
      name: "Severity",
      kind: "choice",
      standard: "CRITICAL",
      choices: SEVERITIES.map((value) => ({ value, name: value.toLowerCase() })),
      when: ["dynamicSeverity"],
    },
    {
      at: "severity",
      name: "Severity pattern",
      kind: "text",
      isNeeded: true,
      check: isSeverity,
      when: ["dynamicSeverity", true],
    },
    {
      at: "overwriteAlarmDetails",
      name: "Update the details of an active alarm",
      kind: "boolean",
      standard: true,
      help: "Otherwise the alarm keeps its first details.",
    },
    { at: "propagate", name: "Propagate to related entities", kind: "boolean", standard: false },
    {
      at: "relationTypes",
      name: "Relation types",
      kind: "texts",
      help: "Empty: all types.",
      when: ["propagate", true],
    },
    { at: "propagateToOwner", name: "Propagate to the customer", kind: "boolean", standard: false },
    { at: "propagateToTenant", name: "Propagate to the tenant", kind: "boolean", standard: false },
  ],
  "action.TbClearAlarmNode": [alarmType],
  "action.TbLogNode": [],
  "action.TbMsgCountNode": [
    { at: "interval", name: "Counting interval", kind: "number", unit: "seconds", min: 1, standard: 1 },
    {
      at: "telemetryPrefix",
      name: "Key prefix",
      kind: "text",
      standard: "messageCount",
      help: "The count is stored as telemetry of the tenant. The server appends its node name to the key.",
    },
  ],
  "debug.TbMsgGeneratorNode": [
    { at: "periodInSeconds", name: "Interval", kind: "number", unit: "seconds", min: 1, standard: 1 },
    {
      at: "msgCount",
      name: "Number of messages",
      kind: "number",
      unit: "messages",
      min: 0,
      standard: 0,
      help: "0: unlimited.",
    },
    {
      at: "originatorType",
      name: "Originator type",
      kind: "choice",
      standard: "TENANT",
      choices: ENTITIES.filter(({ value }) => ["TENANT", "DEVICE", "ASSET", "CUSTOMER"].includes(value)),
    },
    {
      at: "originatorId",
      name: "Originator",
      kind: "entity",
      typeAt: "originatorType",
      isNeeded: true,
      check: isUuid,
      when: ["originatorType", "DEVICE", "ASSET", "CUSTOMER"],
    },
  ],
  "rpc.TbSendRPCRequestNode": [
    {
      at: "timeoutInSeconds",
      name: "Timeout",
      kind: "number",
      unit: "seconds",
      min: 0,
      standard: 60,
      help: "The metadata key `expirationTime` overrides it.",
    },
  ],
  "rpc.TbSendRPCReplyNode": [
    { at: "requestIdMetaDataAttribute", name: "Metadata key of the request id", kind: "text", standard: "requestId" },
  ],

  "rest.TbRestApiCallNode": [
    {
      at: "restEndpointUrlPattern",
      name: "URL",
      kind: "text",
      isNeeded: true,
      placeholder: "https://api.example.com/alerts",
      help: PATTERN,
      check: isUrl,
    },
    {
      at: "requestMethod",
      name: "Method",
      kind: "choice",
      standard: "POST",
      choices: same("GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS"),
    },
    { at: "headers", name: "Headers", kind: "pairs", help: PATTERN },
    ...credentials,
    { at: "ignoreRequestBody", name: "Send no body", kind: "boolean", standard: false },
    plain,
    {
      at: "readTimeoutMs",
      name: "Timeout",
      kind: "number",
      unit: "milliseconds",
      min: 0,
      max: 600_000,
      standard: 60_000,
      help: "0: the default, 60,000.",
    },
    {
      at: "maxInMemoryBufferSizeInKb",
      name: "Maximum response size",
      kind: "number",
      unit: "KiB",
      min: 0,
      max: 4096,
      standard: 256,
      help: "0: the default, 256.",
    },
  ],
  "kafka.TbKafkaNode": [
    {
      at: "bootstrapServers",
      name: "Bootstrap servers",
      kind: "text",
      isNeeded: true,
      placeholder: "kafka.example.com:9092",
      help: "`host:port`, separated by commas.",
    },
    topic("Kafka topic"),
    { at: "keyPattern", name: "Record key", kind: "text", help: PATTERN },
    {
      at: "acks",
      name: "Acknowledgement",
      kind: "choice",
      standard: "-1",
      choices: some(
        ["-1", "from all replicas"],
        ["all", "from all replicas (all)"],
        ["1", "from the leader"],
        ["0", "none"],
      ),
    },
    { at: "linger", name: "Batching delay", kind: "number", unit: "milliseconds", min: 0, standard: 0 },
    { at: "addMetadataKeyValuesAsKafkaHeaders", name: "Send metadata as headers", kind: "boolean", standard: false },
    {
      at: "otherProperties",
      name: "Other producer properties",
      kind: "pairs",
      help: "For example `security.protocol`, `sasl.mechanism`, `sasl.jaas.config`, `compression.type`.",
    },
  ],
  "mqtt.TbMqttNode": [
    { ...topic("Topic"), check: hasNoWildcard },
    { at: "host", name: "Host", kind: "text", isNeeded: true, placeholder: "mqtt.example.com" },
    { at: "port", name: "Port", kind: "number", min: 1, max: 65_535, standard: 1883 },
    { at: "ssl", name: "TLS", kind: "boolean", standard: false },
    { at: "clientId", name: "Client id", kind: "text", help: "Empty: a random one." },
    ...credentials,
    {
      at: "protocolVersion",
      name: "MQTT version",
      kind: "choice",
      standard: "MQTT_3_1_1",
      choices: some(["MQTT_3_1", "3.1"], ["MQTT_3_1_1", "3.1.1"], ["MQTT_5", "5.0"]),
    },
    {
      at: "connectTimeoutSec",
      name: "Connection timeout",
      kind: "number",
      unit: "seconds",
      min: 1,
      max: 200,
      standard: 10,
    },
    { at: "cleanSession", name: "Clean session", kind: "boolean", standard: true },
    { at: "retainedMessage", name: "Retained", kind: "boolean", standard: false },
    plain,
  ],

  "flow.TbRuleChainInputNode": [
    {
      at: "forwardMsgToDefaultRuleChain",
      name: "Use the rule chain of the originator's profile",
      kind: "boolean",
      standard: false,
    },
    {
      at: "ruleChainId",
      name: "Rule chain",
      kind: "choice",
      isNeeded: true,
      from: chains,
      when: ["forwardMsgToDefaultRuleChain"],
    },
  ],
  "flow.TbRuleChainOutputNode": [],
  "flow.TbCheckpointNode": [
    {
      at: "queueName",
      name: "Queue",
      kind: "choice",
      standard: "Main",
      from: queues,
      help: "The message continues in this queue.",
    },
  ],
  "flow.TbAckNode": [],
};

/** Returns the form fields of a node, or undefined for an unknown node. */
export const fieldsOf = (type: string): NodeField[] | undefined =>
  type.startsWith(PREFIX) ? FIELDS[type.slice(PREFIX.length)] : undefined;

export function valueAt(configuration: Json, at: string): unknown {
  return at
    .split(".")
    .reduce<unknown>(
      (value, name) => (typeof value === "object" && value !== null ? (value as Json)[name] : undefined),
      configuration,
    );
}

/** Sets one value and preserves the rest. Undefined removes the field. */
export function withValue(configuration: Json, at: string, value: unknown): Json {
  const [name = "", ...rest] = at.split(".");
  const next = { ...configuration };
  if (rest.length) {
    const inner = configuration[name];
    next[name] = withValue(
      typeof inner === "object" && inner !== null && !Array.isArray(inner) ? (inner as Json) : {},
      rest.join("."),
      value,
    );
  } else if (value === undefined) delete next[name];
  else next[name] = value;
  return next;
}

/** Selects a choice and adds the fields that it needs. */
export function chosen(configuration: Json, { at, choices }: NodeField, value: string): Json {
  const parent = at.split(".").slice(0, -1);
  let next = withValue(configuration, at, value);
  for (const [name, added] of Object.entries(choices?.find((one) => one.value === value)?.adds ?? {})) {
    const place = [...parent, name].join(".");
    next =
      valueAt(next, place) === undefined || valueAt(next, place) === null
        ? withValue(next, place, structuredClone(added))
        : next;
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

const isRecord = (value: unknown): value is Json =>
  typeof value === "object" && value !== null && !Array.isArray(value);
/** Older releases store a list of `key` and `value` instead of an object. */
const isPairList = (value: unknown): value is { key: string; value: string }[] =>
  Array.isArray(value) && value.every((one) => isRecord(one) && typeof one["key"] === "string");
const lines = (text: string) =>
  text
    .split("\n")
    .map((line) => line.trim())
    .filter(Boolean);

/** Formats a value for its input. */
export function typedOf({ kind }: NodeField, value: unknown): string {
  if (value === undefined || value === null) return "";
  if (kind === "texts" && Array.isArray(value)) return value.map(String).join("\n");
  if (kind === "pairs" && isPairList(value)) return value.map((one) => `${one.key} = ${one.value}`).join("\n");
  if (kind === "pairs" && isRecord(value))
    return Object.entries(value)
      .map(([key, one]) => `${key} = ${String(one)}`)
      .join("\n");
  return typeof value === "object" ? JSON.stringify(value, null, 2) : String(value);
}

/** Parses an input. Returns an error if the text is not a valid value. */
export function valueOf(
  { kind, name, standard, unit }: NodeField,
  text: string,
  before: unknown,
): { value: unknown } | { error: string } {
  switch (kind) {
    case "number": {
      if (!text.trim()) return { value: undefined };
      const value = Number(text.trim());
      return Number.isFinite(value)
        ? { value }
        : { error: `\`${text.trim()}\` is not a number${unit ? ` of ${unit}` : ""}. The old value stays.` };
    }
    case "texts":
      return { value: lines(text) };
    case "pairs": {
      const wrong = lines(text).find((line) => !line.includes("="));
      if (wrong) return { error: `\`${wrong}\` has no \`=\`. The old value stays.` };
      const pairs = lines(text).map((line): [string, string] => [
        line.slice(0, line.indexOf("=")).trim(),
        line.slice(line.indexOf("=") + 1).trim(),
      ]);
      return {
        value:
          isPairList(before) && before.length
            ? pairs.map(([key, value]) => ({ key, value }))
            : Object.fromEntries(pairs),
      };
    }
    case "json": {
      try {
        return { value: text.trim() ? (JSON.parse(text) as unknown) : undefined };
      } catch (error) {
        return {
          error:
            `${name} is not valid JSON, and the old value stays: ` +
            `${error instanceof Error ? error.message : String(error)}`,
        };
      }
    }
    default:
      return { value: text === "" && standard !== undefined ? undefined : text };
  }
}

const isEmpty = (value: unknown) =>
  value === undefined ||
  value === null ||
  value === "" ||
  (typeof value === "object" && Object.keys(value).length === 0);

/** Returns what is wrong with a value. */
export function problemOf(field: NodeField, value: unknown): string | undefined {
  if (isEmpty(value)) return field.isNeeded ? "Required." : undefined;
  switch (field.kind) {
    case "number": {
      if (typeof value !== "number" || !Number.isInteger(value))
        return `Must be a whole number, not \`${JSON.stringify(value)}\`.`;
      const { min = 0, max = Infinity } = field;
      if (value < min || value > max)
        return max === Infinity ? `Must be ${min} or more.` : `Must be from ${min} to ${max}.`;
      return undefined;
    }
    case "boolean":
      return typeof value === "boolean" ? undefined : `Must be true or false, not \`${JSON.stringify(value)}\`.`;
    case "texts":
    case "choices":
      return Array.isArray(value) && value.every((one) => typeof one === "string")
        ? field.check?.(value)
        : "Must be a list of texts.";
    case "pairs":
      return isRecord(value) || isPairList(value) ? undefined : "Must be an object of names and values.";
    case "json":
      return undefined;
    case "choice": {
      if (typeof value !== "string") return "Must be text.";
      return field.choices && !field.choices.some((one) => one.value === value)
        ? `\`${value}\` is not a known value.`
        : undefined;
    }
    default:
      return typeof value === "string" ? field.check?.(value) : "Must be text.";
  }
}

/** Returns the names of visible fields with an error. */
export function problemsOf(type: string, configuration: Json): string[] {
  const fields = fieldsOf(type) ?? [];
  return fields
    .filter((field) => isShown(fields, field, configuration))
    .flatMap((field) => {
      const problem = problemOf(field, valueAt(configuration, field.at));
      return problem ? [`${field.name}: ${problem}`] : [];
    });
}

const SCRIPTS = ["scriptLang", "jsScript", "tbelScript", "alarmDetailsBuildJs", "alarmDetailsBuildTbel"];

/** Returns fields of the configuration that the form does not show. They are preserved. */
export function othersOf(fields: NodeField[], configuration: Json): string[] {
  const known = new Set([...fields.map(({ at }) => at.split(".")[0]), ...SCRIPTS, "version"]);
  return Object.keys(configuration).filter((name) => !known.has(name));
}
