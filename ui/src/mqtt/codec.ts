// Encodes and decodes MQTT 5 packets, as far as a client needs them. [MQTT-n] are numbers of statements in the
// standard.

export type QoS = 0 | 1 | 2;

export interface Properties {
  payloadFormatIndicator?: number;
  messageExpiryInterval?: number;
  contentType?: string;
  responseTopic?: string;
  correlationData?: Uint8Array;
  subscriptionIdentifiers?: number[];
  sessionExpiryInterval?: number;
  assignedClientId?: string;
  serverKeepAlive?: number;
  reasonString?: string;
  topicAlias?: number;
  topicAliasMaximum?: number;
  receiveMaximum?: number;
  maximumPacketSize?: number;
  willDelayInterval?: number;
  requestProblemInformation?: number;
  requestResponseInformation?: number;
  responseInformation?: string;
  authenticationMethod?: string;
  authenticationData?: Uint8Array;
  serverReference?: string;
  maximumQoS?: number;
  retainAvailable?: number;
  wildcardSubscriptionAvailable?: number;
  subscriptionIdentifiersAvailable?: number;
  sharedSubscriptionAvailable?: number;
  userProperties?: [string, string][];
}

/** The payload of a received message is a view of the receive buffer. Copy it to keep it. */
export interface Publish {
  topic: string;
  payload: Uint8Array;
  qos: QoS;
  retain: boolean;
  dup: boolean;
  packetId: number;
  properties: Properties;
}
export interface Will {
  topic: string;
  payload: Uint8Array;
  qos: QoS;
  retain: boolean;
  properties: Properties;
}
export interface Connect {
  clientId: string;
  userName?: string | undefined;
  password?: string | undefined;
  cleanStart: boolean;
  keepAliveS: number;
  properties: Properties;
  will?: Will | undefined;
}
export interface SubscribeOptions {
  filter: string;
  qos: QoS;
  noLocal: boolean;
  retainAsPublished: boolean;
  retainHandling: 0 | 1 | 2;
  identifier?: number | undefined;
}

export type Packet =
  | { type: "connack"; sessionPresent: boolean; reasonCode: number; properties: Properties }
  | ({ type: "publish" } & Publish)
  | { type: "puback" | "pubrec" | "pubrel" | "pubcomp"; packetId: number; reasonCode: number; properties: Properties }
  | { type: "suback" | "unsuback"; packetId: number; reasonCodes: number[]; properties: Properties }
  | { type: "pingresp" }
  | { type: "disconnect" | "auth"; reasonCode: number; properties: Properties };

const TYPE = {
  connect: 1,
  publish: 3,
  puback: 4,
  pubrec: 5,
  pubrel: 6,
  pubcomp: 7,
  subscribe: 8,
  unsubscribe: 10,
  pingreq: 12,
  disconnect: 14,
} as const;
const utf8 = new TextEncoder();
const text = new TextDecoder("utf-8", { fatal: false });

type Kind = "byte" | "u16" | "u32" | "varint" | "text" | "bytes" | "pair";
type Name = keyof Properties;

/** Identifier, type and name of the properties that a client sends or receives. */
const PROPERTIES: [number, Kind, Name][] = [
  [0x01, "byte", "payloadFormatIndicator"],
  [0x02, "u32", "messageExpiryInterval"],
  [0x03, "text", "contentType"],
  [0x08, "text", "responseTopic"],
  [0x09, "bytes", "correlationData"],
  [0x0b, "varint", "subscriptionIdentifiers"],
  [0x11, "u32", "sessionExpiryInterval"],
  [0x12, "text", "assignedClientId"],
  [0x13, "u16", "serverKeepAlive"],
  [0x15, "text", "authenticationMethod"],
  [0x16, "bytes", "authenticationData"],
  [0x17, "byte", "requestProblemInformation"],
  [0x18, "u32", "willDelayInterval"],
  [0x19, "byte", "requestResponseInformation"],
  [0x1a, "text", "responseInformation"],
  [0x1c, "text", "serverReference"],
  [0x1f, "text", "reasonString"],
  [0x21, "u16", "receiveMaximum"],
  [0x22, "u16", "topicAliasMaximum"],
  [0x23, "u16", "topicAlias"],
  [0x24, "byte", "maximumQoS"],
  [0x25, "byte", "retainAvailable"],
  [0x26, "pair", "userProperties"],
  [0x27, "u32", "maximumPacketSize"],
  [0x28, "byte", "wildcardSubscriptionAvailable"],
  [0x29, "byte", "subscriptionIdentifiersAvailable"],
  [0x2a, "byte", "sharedSubscriptionAvailable"],
];

class Writer {
  #bytes: number[] = [];

  byte(n: number): this {
    this.#bytes.push(n & 0xff);
    return this;
  }
  u16(n: number): this {
    return this.byte(n >> 8).byte(n);
  }
  u32(n: number): this {
    return this.u16(Math.floor(n / 65536)).u16(n % 65536);
  }
  varint(n: number): this {
    do {
      const rest = Math.floor(n / 128);
      this.byte((n % 128) | (rest > 0 ? 0x80 : 0));
      n = rest;
    } while (n > 0);
    return this;
  }
  raw(bytes: Uint8Array): this {
    for (const byte of bytes) this.#bytes.push(byte);
    return this;
  }
  data(bytes: Uint8Array): this {
    if (bytes.length > 65535) throw new Error("a text or binary field is longer than 65535 bytes");
    return this.u16(bytes.length).raw(bytes);
  }
  text(value: string): this {
    return this.data(utf8.encode(value));
  }
  bytes(): Uint8Array {
    return Uint8Array.from(this.#bytes);
  }

  properties(values: Properties): this {
    const own = new Writer();
    for (const [id, kind, name] of PROPERTIES) {
      const value = values[name];
      if (value === undefined) continue;
      for (const one of name === "userProperties" || name === "subscriptionIdentifiers"
        ? (value as unknown[])
        : [value])
        own.byte(id).value(kind, one);
    }
    const bytes = own.bytes();
    return this.varint(bytes.length).raw(bytes);
  }

  value(kind: Kind, value: unknown): this {
    switch (kind) {
      case "byte":
        return this.byte(value as number);
      case "u16":
        return this.u16(value as number);
      case "u32":
        return this.u32(value as number);
      case "varint":
        return this.varint(value as number);
      case "text":
        return this.text(value as string);
      case "bytes":
        return this.data(value as Uint8Array);
      case "pair":
        return this.text((value as [string, string])[0]).text((value as [string, string])[1]);
    }
  }
}

/** A cache of topic names, which repeat often. Building a name from bytes is much faster than TextDecoder. */
class Names {
  static readonly SLOTS = 4096;
  static readonly BYTES_MAX = 256;
  #slots: ({ bytes: Uint8Array; text: string } | undefined)[] = Array.from({ length: Names.SLOTS }, () => undefined);

  read(bytes: Uint8Array, from: number, to: number): string {
    if (to - from > Names.BYTES_MAX) return text.decode(bytes.subarray(from, to));
    let hash = to - from;
    for (let at = from; at < to; at += 1) hash = Math.imul(hash, 31) + (bytes[at] as number);
    const slot = (hash ^ (hash >>> 12)) & (Names.SLOTS - 1);
    const known = this.#slots[slot];
    if (known && isSame(known.bytes, bytes, from, to)) return known.text;
    const own = bytes.slice(from, to);
    const read = text.decode(own);
    this.#slots[slot] = { bytes: own, text: read };
    return read;
  }
}

function isSame(known: Uint8Array, bytes: Uint8Array, from: number, to: number): boolean {
  if (known.length !== to - from) return false;
  for (let at = 0; at < known.length; at += 1) if (known[at] !== bytes[from + at]) return false;
  return true;
}

const names = new Names();

/** Most messages have no properties. */
const NONE: Properties = Object.freeze({});

class Reader {
  constructor(
    readonly bytes: Uint8Array,
    public at: number,
    readonly end: number,
  ) {}

  get isAtEnd(): boolean {
    return this.at >= this.end;
  }
  byte(): number {
    if (this.at >= this.end) throw new Error("the packet ends too early");
    return this.bytes[this.at++] as number;
  }
  u16(): number {
    return this.byte() * 256 + this.byte();
  }
  u32(): number {
    return this.u16() * 65536 + this.u16();
  }
  varint(): number {
    let value = 0;
    for (let shift = 1; shift <= 128 ** 3; shift *= 128) {
      const byte = this.byte();
      value += (byte & 0x7f) * shift;
      if (byte < 0x80) return value;
    }
    throw new Error("a variable byte integer is longer than 4 bytes");
  }
  raw(length: number): Uint8Array {
    if (this.at + length > this.end) throw new Error("the packet ends too early");
    return this.bytes.subarray(this.at, (this.at += length));
  }
  data(): Uint8Array {
    return this.raw(this.u16());
  }
  text(): string {
    return text.decode(this.data());
  }
  topic(): string {
    const length = this.u16();
    const from = this.at;
    if (from + length > this.end) throw new Error("the packet ends too early");
    return names.read(this.bytes, from, (this.at += length));
  }
  rest(): Uint8Array {
    return this.raw(this.end - this.at);
  }

  properties(): Properties {
    const length = this.varint();
    if (length === 0) return NONE;
    const end = length + this.at;
    const values: Record<string, unknown> = {};
    while (this.at < end) {
      const id = this.varint();
      const found = PROPERTIES.find(([known]) => known === id);
      if (!found) throw new Error(`unknown property 0x${id.toString(16)}`);
      const [, kind, name] = found;
      const value = this.#value(kind);
      if (name === "userProperties" || name === "subscriptionIdentifiers")
        values[name] = [...((values[name] as unknown[] | undefined) ?? []), value];
      else values[name] = value;
    }
    return values as Properties;
  }

  #value(kind: Kind): unknown {
    switch (kind) {
      case "byte":
        return this.byte();
      case "u16":
        return this.u16();
      case "u32":
        return this.u32();
      case "varint":
        return this.varint();
      case "text":
        return this.text();
      case "bytes":
        return this.data().slice();
      case "pair":
        return [this.text(), this.text()];
    }
  }
}

function packet(type: number, flags: number, body: Writer): Uint8Array {
  const bytes = body.bytes();
  return new Writer()
    .byte((type << 4) | flags)
    .varint(bytes.length)
    .raw(bytes)
    .bytes();
}

export function connect(options: Connect): Uint8Array {
  const { will } = options;
  const flags =
    (options.cleanStart ? 2 : 0) |
    (will ? 4 | (will.qos << 3) | (will.retain ? 32 : 0) : 0) |
    (options.password ? 64 : 0) |
    (options.userName ? 128 : 0);
  const body = new Writer()
    .text("MQTT")
    .byte(5)
    .byte(flags)
    .u16(options.keepAliveS)
    .properties(options.properties)
    .text(options.clientId);
  if (will) body.properties(will.properties).text(will.topic).data(will.payload);
  if (options.userName) body.text(options.userName);
  if (options.password) body.text(options.password);
  return packet(TYPE.connect, 0, body);
}

export function publish(message: Publish): Uint8Array {
  const body = new Writer().text(message.topic);
  if (message.qos > 0) body.u16(message.packetId);
  body.properties(message.properties).raw(message.payload);
  return packet(TYPE.publish, (message.dup ? 8 : 0) | (message.qos << 1) | (message.retain ? 1 : 0), body);
}

export function acknowledge(type: "puback" | "pubrec" | "pubrel" | "pubcomp", packetId: number): Uint8Array {
  return packet(TYPE[type], type === "pubrel" ? 2 : 0, new Writer().u16(packetId));
}

export function subscribe(packetId: number, options: SubscribeOptions): Uint8Array {
  const properties = options.identifier ? { subscriptionIdentifiers: [options.identifier] } : {};
  const flags =
    options.qos | (options.noLocal ? 4 : 0) | (options.retainAsPublished ? 8 : 0) | (options.retainHandling << 4);
  return packet(TYPE.subscribe, 2, new Writer().u16(packetId).properties(properties).text(options.filter).byte(flags));
}

export function unsubscribe(packetId: number, filter: string): Uint8Array {
  return packet(TYPE.unsubscribe, 2, new Writer().u16(packetId).properties({}).text(filter));
}

export const ping = (): Uint8Array => packet(TYPE.pingreq, 0, new Writer());
export const disconnect = (reasonCode = 0, properties: Properties = {}): Uint8Array =>
  packet(TYPE.disconnect, 0, new Writer().byte(reasonCode).properties(properties));

/** Reassembles packets from WebSocket frames, which need not contain whole packets. */
export class Decoder {
  #pending = new Uint8Array();

  /** Yields packets one at a time and decodes each on demand. Take all of them before the next push. */
  *push(bytes: Uint8Array): Generator<Packet, void> {
    const all = this.#pending.length ? joined(this.#pending, bytes) : bytes;
    let at = 0;
    for (;;) {
      const end = endOf(all, at);
      if (end === undefined) break;
      yield decode(new Reader(all, at, end));
      at = end;
    }
    this.#pending = all.slice(at);
  }
}

function joined(a: Uint8Array, b: Uint8Array): Uint8Array {
  const all = new Uint8Array(a.length + b.length);
  all.set(a);
  all.set(b, a.length);
  return all;
}

/** Returns the end of the packet that starts at `at`, if it is complete. */
function endOf(bytes: Uint8Array, at: number): number | undefined {
  let length = 0;
  for (let index = 0; index < 4; index += 1) {
    const byte = bytes[at + 1 + index];
    if (byte === undefined) return undefined;
    length += (byte & 0x7f) * 128 ** index;
    if (byte < 0x80) {
      const end = at + 2 + index + length;
      return end <= bytes.length ? end : undefined;
    }
  }
  throw new Error("a variable byte integer is longer than 4 bytes");
}

function decode(reader: Reader): Packet {
  const first = reader.byte();
  reader.varint();
  const type = first >> 4;
  switch (type) {
    case 2:
      return {
        type: "connack",
        sessionPresent: (reader.byte() & 1) === 1,
        reasonCode: reader.byte(),
        properties: reader.properties(),
      };
    case 3:
      return decodePublish(reader, first);
    case 4:
    case 5:
    case 6:
    case 7:
      return {
        type: (["puback", "pubrec", "pubrel", "pubcomp"] as const)[type - 4] ?? "puback",
        packetId: reader.u16(),
        reasonCode: reader.isAtEnd ? 0 : reader.byte(),
        properties: reader.isAtEnd ? {} : reader.properties(),
      };
    case 9:
    case 11:
      return {
        type: type === 9 ? "suback" : "unsuback",
        packetId: reader.u16(),
        properties: reader.properties(),
        reasonCodes: [...reader.rest()],
      };
    case 13:
      return { type: "pingresp" };
    case 14:
    case 15:
      return {
        type: type === 14 ? "disconnect" : "auth",
        reasonCode: reader.isAtEnd ? 0 : reader.byte(),
        properties: reader.isAtEnd ? {} : reader.properties(),
      };
    default:
      throw new Error(`a server must not send packets of type ${type}`);
  }
}

function decodePublish(reader: Reader, first: number): Packet {
  const qos = ((first >> 1) & 3) as QoS;
  const topic = reader.topic();
  const packetId = qos > 0 ? reader.u16() : 0;
  const properties = reader.properties();
  return {
    type: "publish",
    topic,
    packetId,
    qos,
    properties,
    retain: (first & 1) === 1,
    dup: (first & 8) === 8,
    payload: reader.rest(),
  };
}
