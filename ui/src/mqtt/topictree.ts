// A tree of received topics with counts and the last message of each. Topics and bytes are bounded: what exceeds the
// limits is counted, not stored.
import type { Publish } from "./codec";

export const TOPICS_MAX = 20_000;
/** Bound for names, nodes and payloads together. */
export const STORED_BYTES_MAX = 64 * 1024 * 1024;
/** Bound for payload bytes beyond the stored beginnings. The rest stays free for new topics. */
const LONG_BYTES_MAX = (STORED_BYTES_MAX / 4) * 3;
const PAYLOAD_BYTES_MAX = 64 * 1024;
/** Bytes stored of every payload. */
const BEGINNING_BYTES = 256;
/** Estimated size of a node without its names. */
const NODE_BYTES = 400;

export interface Node {
  name: string;
  topic: string;
  parent: Node | undefined;
  children: Map<string, Node>;
  /** Messages of this topic and all topics below it. */
  messages: number;
  /** Rate over the last second. */
  perSecond: number;
  own: Last | undefined;
  before: number;
  /** Messages since the last `settle`: their count and the last of them. */
  fresh: number;
  last: Publish | undefined;
}

export interface Last {
  messages: number;
  at: number;
  payload: Uint8Array;
  payloadBytes: number;
  qos: number;
  isRetained: boolean;
}

/** More children than this stay unsorted. Users search such levels. */
const SORTED_MAX = 1000;
const names = new Intl.Collator("en", { numeric: true });

/** Sorts children for display: `room-2` before `room-10`. */
export function byName(children: Map<string, Node>): Node[] {
  const all = [...children.values()];
  return all.length > SORTED_MAX ? all : all.sort((a, b) => names.compare(a.name, b.name));
}

export class TopicTree {
  root = node("", "", undefined);
  topics = 0;
  /** Estimated size of the stored data. */
  bytes = 0;
  /** Messages of topics beyond the limit, and an estimate of the number of these topics. */
  leftOut = 0;
  #othersSeen = new Distinct();
  #longBytes = 0;
  /** Nodes of topics that have had a message. */
  #byTopic = new Map<string, Node>();
  #fresh: Node[] = [];

  /** Adds a message. Call `settle` before the buffer of the payload is reused. */
  add(message: Publish): void {
    const found = this.#byTopic.get(message.topic) ?? this.#created(message.topic);
    if (!found) {
      this.leftOut += 1;
      this.#othersSeen.add(message.topic);
      return;
    }
    if (found.fresh === 0) this.#fresh.push(found);
    found.fresh += 1;
    found.last = message;
  }

  /** Stores the last message of each topic that received some since the previous call. */
  settle(): void {
    const at = Date.now();
    for (const node of this.#fresh) {
      if (node.last) this.#storeLast(node, node.last, at);
      for (let one: Node | undefined = node; one; one = one.parent) one.messages += node.fresh;
      node.fresh = 0;
      node.last = undefined;
    }
    this.#fresh = [];
  }

  #storeLast(node: Node, message: Publish, at: number): void {
    this.#weigh(-long(node.own?.payload.length ?? 0));
    const payload = this.#copied(message.payload);
    this.#weigh(long(payload.length));
    node.own = {
      messages: (node.own?.messages ?? 0) + node.fresh,
      at,
      payload,
      payloadBytes: message.payload.length,
      qos: message.qos,
      isRetained: message.retain,
    };
  }

  #weigh(longBytes: number): void {
    this.#longBytes += longBytes;
    this.bytes += longBytes;
  }

  /** An estimate. */
  get topicsLeftOut(): number {
    return this.#othersSeen.count;
  }

  /** Updates the rates. Call it once a second. */
  tick(): void {
    const pending = [this.root];
    for (let one = pending.pop(); one; one = pending.pop()) {
      one.perSecond = one.messages - one.before;
      one.before = one.messages;
      pending.push(...one.children.values());
    }
  }

  find(topic: string): Node | undefined {
    let at: Node | undefined = this.root;
    for (const level of topic.split("/")) at = at?.children.get(level);
    return at;
  }

  /** Returns topics with a message that contain the text, ignoring case. */
  search(text: string, max: number): { found: Node[]; isMore: boolean } {
    const wanted = text.toLowerCase();
    const found: Node[] = [];
    const pending = [this.root];
    for (let one = pending.pop(); one; one = pending.pop()) {
      if (one.own && one.topic.toLowerCase().includes(wanted)) {
        if (found.length === max) return { found, isMore: true };
        found.push(one);
      }
      pending.push(...[...one.children.values()].reverse());
    }
    return { found, isMore: false };
  }

  /** Creates the node of a topic and its missing parents: all or none. */
  #created(topic: string): Node | undefined {
    const levels = topic.split("/");
    let at = this.root;
    let depth = 0;
    for (const level of levels) {
      const next = at.children.get(level);
      if (!next) break;
      at = next;
      depth += 1;
    }
    const missing = levels.slice(depth);
    let length = at === this.root ? -1 : at.topic.length;
    let weight = BEGINNING_BYTES;
    for (const level of missing) {
      length += 1 + level.length;
      weight += NODE_BYTES + 2 * (length + level.length);
    }
    if (this.topics >= TOPICS_MAX || this.bytes + weight > STORED_BYTES_MAX) return undefined;
    for (const level of missing) {
      const made = node(level, at === this.root ? level : `${at.topic}/${level}`, at);
      if (at.children === NO_CHILDREN) at.children = new Map();
      at.children.set(level, made);
      at = made;
    }
    this.topics += 1;
    this.bytes += weight;
    this.#byTopic.set(topic, at);
    return at;
  }

  /** Copies the payload, because it is part of a larger buffer. */
  #copied(payload: Uint8Array): Uint8Array {
    const wanted = Math.min(payload.length, PAYLOAD_BYTES_MAX);
    const isRoom = this.#longBytes + long(wanted) <= LONG_BYTES_MAX && this.bytes + long(wanted) <= STORED_BYTES_MAX;
    return payload.slice(0, isRoom ? wanted : BEGINNING_BYTES);
  }
}

/** Bytes beyond the beginning, which is always stored. */
const long = (payloadBytes: number): number => Math.max(0, payloadBytes - BEGINNING_BYTES);

/**
 * Shared by all topics without children, so that the garbage collector does not visit one map per topic. Never changed.
 */
const NO_CHILDREN: Map<string, Node> = new Map();

function node(name: string, topic: string, parent: Node | undefined): Node {
  return {
    name,
    topic,
    parent,
    children: NO_CHILDREN,
    messages: 0,
    perSecond: 0,
    own: undefined,
    before: 0,
    fresh: 0,
    last: undefined,
  };
}

/**
 * Estimates the number of distinct texts in 128 KiB with linear counting. The error stays within 1 % up to some
 * millions.
 */
class Distinct {
  #bits: Uint32Array | undefined;
  #set = 0;

  add(text: string): void {
    this.#bits ??= new Uint32Array(32 * 1024);
    let hash = 0x811c9dc5;
    for (let at = 0; at < text.length; at += 1) hash = Math.imul(hash ^ text.charCodeAt(at), 0x01000193);
    hash ^= hash >>> 15;
    const word = (hash >>> 5) % this.#bits.length;
    const bit = 1 << (hash & 31);
    const old = this.#bits[word] ?? 0;
    if (old & bit) return;
    this.#bits[word] = old | bit;
    this.#set += 1;
  }

  get count(): number {
    const all = 32 * 32 * 1024;
    return Math.round(-all * Math.log(1 - Math.min(this.#set, all - 1) / all));
  }
}
