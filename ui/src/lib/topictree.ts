// Topics as they are seen: a tree with counts, and the last message of each. Bounded: what is beyond is counted, not kept.
import type { Publish } from "../mqtt/codec";

export const TOPICS_MAX = 20_000;
const PAYLOAD_BYTES_MAX = 64 * 1024;

export interface Node {
  name: string;
  topic: string;
  children: Map<string, Node>;
  /** Messages of this topic and of all below it. */
  messages: number;
  /** As of the last second. */
  perSecond: number;
  own: Last | undefined;
  before: number;
}

export interface Last { messages: number; at: number; payload: Uint8Array; payloadBytes: number; qos: number; isRetained: boolean }

export class TopicTree {
  root = node("", "");
  topics = 0;
  /** Messages of topics beyond the limit. */
  leftOut = 0;

  add(message: Publish): void {
    const path = this.#path(message.topic);
    if (!path) {
      this.leftOut += 1;
      return;
    }
    for (const one of path) one.messages += 1;
    const leaf = path.at(-1);
    if (!leaf) return;
    if (!leaf.own) this.topics += 1;
    leaf.own = {
      messages: (leaf.own?.messages ?? 0) + 1,
      at: Date.now(),
      payload: message.payload.length > PAYLOAD_BYTES_MAX ? message.payload.slice(0, PAYLOAD_BYTES_MAX) : message.payload,
      payloadBytes: message.payload.length,
      qos: message.qos,
      isRetained: message.retain,
    };
  }

  /** Once a second. */
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

  /** Topics that have a message and contain the text, ignoring case. */
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

  #path(topic: string): Node[] | undefined {
    const path = [this.root];
    let at = this.root;
    let name = "";
    for (const [index, level] of topic.split("/").entries()) {
      name = index === 0 ? level : `${name}/${level}`;
      let next = at.children.get(level);
      if (!next) {
        if (this.topics >= TOPICS_MAX) return undefined;
        next = node(level, name);
        at.children.set(level, next);
      }
      path.push(next);
      at = next;
    }
    return path;
  }
}

function node(name: string, topic: string): Node {
  return { name, topic, children: new Map(), messages: 0, perSecond: 0, own: undefined, before: 0 };
}
