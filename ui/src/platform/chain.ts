// A rule chain in ThingsBoard's format: nodes by index, connections with labels.
import type { EntityId, Json } from "./model";

export interface RuleChain extends Json {
  id: EntityId;
  createdTime: number;
  name: string;
  root: boolean;
}
export interface Node extends Json {
  id?: EntityId;
  type: string;
  name: string;
  debugMode?: boolean;
  configuration: Json;
  additionalInfo: ({ layoutX?: number; layoutY?: number } & Json) | null;
}
export interface Connection {
  fromIndex: number;
  toIndex: number;
  type: string;
}
export interface Metadata extends Json {
  ruleChainId: EntityId;
  firstNodeIndex: number | null;
  nodes: Node[];
  connections: Connection[] | null;
  ruleChainConnections: unknown;
}

export const NODE = { width: 176, height: 54 };
const STEP = 20;
const MARGIN = 30;

/** Position of a node. ThingsBoard leaves room for the input at the left. */
export const at = (node: Node): { x: number; y: number } => ({
  x: Math.max(0, node.additionalInfo?.layoutX ?? 0),
  y: Math.max(0, node.additionalInfo?.layoutY ?? 0),
});

export function moved(node: Node, x: number, y: number): Node {
  const snap = (n: number) => Math.max(0, Math.round(n / STEP) * STEP);
  return { ...node, additionalInfo: { ...node.additionalInfo, layoutX: snap(x), layoutY: snap(y) } };
}

export function size(nodes: Node[]): { width: number; height: number } {
  const places = nodes.map(at);
  return {
    width: Math.max(600, ...places.map(({ x }) => x + NODE.width + MARGIN)),
    height: Math.max(320, ...places.map(({ y }) => y + NODE.height + MARGIN)),
  };
}

/** Removes a node and renumbers the nodes after it. */
export function without(chain: Metadata, index: number): Metadata {
  const after = (n: number) => (n > index ? n - 1 : n);
  const first = chain.firstNodeIndex;
  return {
    ...chain,
    nodes: chain.nodes.filter((_, n) => n !== index),
    connections: (chain.connections ?? [])
      .filter(({ fromIndex, toIndex }) => fromIndex !== index && toIndex !== index)
      .map((one) => ({ ...one, fromIndex: after(one.fromIndex), toIndex: after(one.toIndex) })),
    firstNodeIndex: first === null || first === index ? null : after(first),
  };
}

/** Adds a connection, unless it exists. */
export function connected(chain: Metadata, one: Connection): Metadata {
  const all = chain.connections ?? [];
  const isThere = all.some(
    (known) => known.fromIndex === one.fromIndex && known.toIndex === one.toIndex && known.type === one.type,
  );
  return isThere ? chain : { ...chain, connections: [...all, one] };
}

/**
 * Adds the ids that the server gave to new nodes when it saved `sent`, so that the next save updates the same nodes.
 */
export function identified(chain: Metadata, sent: Metadata, saved: Metadata): Metadata {
  const given = new Map(sent.nodes.map((node, index) => [node, saved.nodes[index]?.id]));
  const nodes = chain.nodes.map((node, index) => {
    // A node that was edited since is a different object at the same index.
    const before = sent.nodes[index];
    const isSame = before !== undefined && !before.id && before.type === node.type && !chain.nodes.includes(before);
    const id = node.id ?? given.get(node) ?? (isSame ? given.get(before) : undefined);
    return id ? { ...node, id } : node;
  });
  return { ...chain, nodes };
}

/** Merges connections between the same two nodes into one edge with all labels. */
export function edges(chain: Metadata): { from: Node; to: Node; labels: string }[] {
  const all = new Map<string, string[]>();
  for (const { fromIndex, toIndex, type } of chain.connections ?? []) {
    const key = `${fromIndex} ${toIndex}`;
    all.set(key, [...(all.get(key) ?? []), type]);
  }
  return [...all].flatMap(([key, labels]) => {
    const [from, to] = key.split(" ").map((n) => chain.nodes[Number(n)]);
    return from && to ? [{ from, to, labels: labels.join(" / ") }] : [];
  });
}
