import { describe, expect, it } from "vitest";
import { connected, edges, identified, moved, size, without, type Metadata, type Node } from "./chain";

const node = (name: string, id?: string): Node => ({
  ...(id ? { id: { entityType: "RULE_NODE", id } } : {}),
  type: "t",
  name,
  configuration: {},
  additionalInfo: null,
});
const chain = (nodes: Node[], connections: [number, number, string][], firstNodeIndex: number | null): Metadata => ({
  ruleChainId: { entityType: "RULE_CHAIN", id: "c" },
  firstNodeIndex,
  nodes,
  connections: connections.map(([fromIndex, toIndex, type]) => ({ fromIndex, toIndex, type })),
  ruleChainConnections: null,
});

describe("removing a node", () => {
  const before = chain(
    [node("a"), node("b"), node("c")],
    [
      [0, 1, "x"],
      [1, 2, "y"],
      [0, 2, "z"],
    ],
    2,
  );

  it("renumbers_connections_and_the_first_node", () => {
    const after = without(before, 1);
    expect(after.nodes.map(({ name }) => name)).toEqual(["a", "c"]);
    expect(after.connections).toEqual([{ fromIndex: 0, toIndex: 1, type: "z" }]);
    expect(after.firstNodeIndex).toBe(1);
    expect(before.nodes).toHaveLength(3);
  });

  it("removing_the_first_node_leaves_none", () => {
    expect(without(before, 2).firstNodeIndex).toBeNull();
  });
});

describe("connections", () => {
  it("the_same_connection_is_added_once", () => {
    const one = { fromIndex: 0, toIndex: 1, type: "x" };
    const first = connected({ ...chain([node("a"), node("b")], [], 0), connections: null }, one);
    expect(first.connections).toEqual([one]);
    expect(connected(first, { ...one })).toBe(first);
    expect(connected(first, { ...one, type: "y" }).connections).toHaveLength(2);
  });

  it("edges_merge_the_labels_of_two_nodes", () => {
    const [a, b] = [node("a"), node("b")];
    // The last connection points to a node that does not exist.
    const all = edges(
      chain(
        [a, b],
        [
          [0, 1, "x"],
          [0, 1, "y"],
          [1, 0, "z"],
          [1, 5, "w"],
        ],
        0,
      ),
    );
    expect(all).toEqual([
      { from: a, to: b, labels: "x / y" },
      { from: b, to: a, labels: "z" },
    ]);
  });
});

describe("ids of saved nodes", () => {
  it("new_nodes_get_the_id_that_the_server_gave", () => {
    const [old, fresh] = [node("old", "1"), node("fresh")];
    const sent = chain([old, fresh], [], 0);
    const saved = chain([node("old", "1"), node("fresh", "2")], [], 0);
    expect(identified(sent, sent, saved).nodes.map(({ id }) => id?.id)).toEqual(["1", "2"]);
  });

  it("a_node_that_was_edited_while_saving_gets_its_id", () => {
    const sent = chain([node("fresh")], [], 0);
    const edited = chain([{ ...node("renamed") }], [], 0);
    expect(identified(edited, sent, chain([node("fresh", "2")], [], 0)).nodes[0]?.id?.id).toBe("2");
  });

  it("a_node_that_was_added_while_saving_has_no_id", () => {
    const sent = chain([node("fresh")], [], 0);
    const more = chain([...sent.nodes, node("later")], [], 0);
    const found = identified(more, sent, chain([node("fresh", "2")], [], 0));
    expect(found.nodes.map(({ id }) => id?.id)).toEqual(["2", undefined]);
  });
});

describe("layout", () => {
  it("positions_snap_to_the_grid_and_stay_visible", () => {
    expect(moved(node("a"), 29, 31).additionalInfo).toEqual({ layoutX: 20, layoutY: 40 });
    expect(moved(node("a"), -50, 10).additionalInfo).toEqual({ layoutX: 0, layoutY: 20 });
  });

  it("drawing_contains_all_nodes", () => {
    expect(size([])).toEqual({ width: 600, height: 320 });
    expect(size([moved(node("a"), 1_000, 0)])).toEqual({ width: 1_206, height: 320 });
  });
});
