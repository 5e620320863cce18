// Options of the MQTT client page: as typed, as stored in the browser, and as MQTT packets.
import { encode, typed, type Format } from "../lib/payload";
import type { Connect, Properties, QoS, Will } from "./codec";

/** Properties that messages and wills have in common. */
export interface MessageFields {
  isText: boolean;
  contentType: string;
  responseTopic: string;
  correlation: string;
  expiryS: number | null;
  userProperties: string;
}

export interface WillFields {
  topic: string;
  payload: string;
  format: Format;
  qos: QoS;
  retain: boolean;
  delayS: number | null;
  message: MessageFields;
}

export interface Options {
  address: string;
  userName: string;
  /** Stored only if the user asked for it. */
  password: string;
  clientId: string;
  cleanStart: boolean;
  keepAliveS: number;
  sessionExpiryS: number;
  receiveMaximum: number | null;
  maximumPacketBytes: number | null;
  topicAliasMaximum: number | null;
  wantsResponseInformation: boolean;
  wantsProblemInformation: boolean;
  authenticationMethod: string;
  authenticationData: string;
  userProperties: string;
  will: WillFields;
}

export const noFields = (): MessageFields => ({
  isText: false,
  contentType: "",
  responseTopic: "",
  correlation: "",
  expiryS: null,
  userProperties: "",
});

export function fresh(): Options {
  return {
    address: "",
    userName: "",
    password: "",
    clientId: `console-${Math.random().toString(36).slice(2, 8)}`,
    cleanStart: true,
    keepAliveS: 60,
    sessionExpiryS: 0,
    receiveMaximum: null,
    maximumPacketBytes: null,
    topicAliasMaximum: null,
    wantsResponseInformation: false,
    wantsProblemInformation: true,
    authenticationMethod: "",
    authenticationData: "",
    userProperties: "",
    will: { topic: "", payload: "", format: "text", qos: 0, retain: false, delayS: null, message: noFields() },
  };
}

/** Fills in options that an older version of the console did not store. */
function withDefaults(stored: Partial<Options>): Options {
  const first = fresh();
  const will = { ...first.will, ...stored.will };
  return { ...first, ...stored, will: { ...will, message: { ...noFields(), ...will.message } } };
}

const LAST_KEY = "tidewire-mqtt-connection";
const SAVED_KEY = "tidewire-mqtt-connections";

function read(key: string): Record<string, unknown> {
  try {
    return (JSON.parse(localStorage.getItem(key) ?? "{}") ?? {}) as Record<string, unknown>;
  } catch {
    return {};
  }
}

export const last = (): Options => withDefaults(read(LAST_KEY));
export const storeLast = (options: Options): void =>
  localStorage.setItem(LAST_KEY, JSON.stringify({ ...options, password: "" }));

/** Stored connections by name. */
export const saved = (): Map<string, Options> =>
  new Map(Object.entries(read(SAVED_KEY)).map(([name, one]) => [name, withDefaults(one as Partial<Options>)]));
export const storeSaved = (all: Map<string, Options>): void =>
  localStorage.setItem(SAVED_KEY, JSON.stringify(Object.fromEntries(all)));

/** Parses `name = value`, one per line. */
export function pairs(lines: string): [string, string][] {
  return lines
    .split("\n")
    .filter((line) => line.includes("="))
    .map((line) => [line.slice(0, line.indexOf("=")).trim(), line.slice(line.indexOf("=") + 1).trim()]);
}

export function messageProperties(fields: MessageFields): Properties {
  const made: Properties = {};
  if (fields.isText) made.payloadFormatIndicator = 1;
  if (fields.contentType) made.contentType = fields.contentType;
  if (fields.responseTopic) made.responseTopic = fields.responseTopic;
  if (fields.correlation) made.correlationData = encode(fields.correlation);
  if (fields.expiryS !== null) made.messageExpiryInterval = fields.expiryS;
  const user = pairs(fields.userProperties);
  if (user.length) made.userProperties = user;
  return made;
}

const decoder = new TextDecoder();

/** Returns properties as readable names and values. */
export function readableProperties(properties: Properties): [string, string][] {
  return Object.entries(properties).flatMap(([name, value]): [string, string][] => {
    if (name === "userProperties") return value as [string, string][];
    return [
      [
        name.replace(/[A-Z]/g, (letter) => ` ${letter.toLowerCase()}`).replace("qo s", "QoS"),
        value instanceof Uint8Array ? decoder.decode(value) : String(value),
      ],
    ];
  });
}

export function connectPacket(options: Options): Connect {
  return {
    clientId: options.clientId,
    userName: options.userName || undefined,
    password: options.password || undefined,
    cleanStart: options.cleanStart,
    keepAliveS: options.keepAliveS,
    properties: connectProperties(options),
    will: will(options.will),
  };
}

function connectProperties(options: Options): Properties {
  const made: Properties = { sessionExpiryInterval: options.sessionExpiryS };
  if (options.receiveMaximum !== null) made.receiveMaximum = options.receiveMaximum;
  if (options.maximumPacketBytes !== null) made.maximumPacketSize = options.maximumPacketBytes;
  if (options.topicAliasMaximum !== null) made.topicAliasMaximum = options.topicAliasMaximum;
  if (options.wantsResponseInformation) made.requestResponseInformation = 1;
  if (!options.wantsProblemInformation) made.requestProblemInformation = 0;
  // Authentication data without a method is a protocol error. [MQTT5 3.1.2.11.10]
  if (options.authenticationMethod) made.authenticationMethod = options.authenticationMethod;
  if (options.authenticationMethod && options.authenticationData)
    made.authenticationData = encode(options.authenticationData);
  const user = pairs(options.userProperties);
  if (user.length) made.userProperties = user;
  return made;
}

function will(fields: WillFields): Will | undefined {
  if (!fields.topic) return undefined;
  const delay: Properties = fields.delayS === null ? {} : { willDelayInterval: fields.delayS };
  return {
    topic: fields.topic,
    payload: typed(fields.payload, fields.format),
    qos: fields.qos,
    retain: fields.retain,
    properties: { ...delay, ...messageProperties(fields.message) },
  };
}
