import { describe, expect, it } from "vitest";
import { empty, fresh, keyOf, keyWord, put, settle, states, widgets, windowOf, withWindow } from "./dashboard";
import { addState, removeState, type Dashboard } from "./dashboard";
import { unsupportedParts } from "./unsupported";

const places = (dashboard: Dashboard) => widgets(dashboard).map(({ id, place }) => [id, place.row, place.col]);

/** A dashboard with value widgets `a`, `b` and so on below each other. */
function column(count: number): Dashboard {
  let dashboard = empty("Test");
  for (let n = 0; n < count; n += 1) {
    const one = { ...fresh("value", []), id: String.fromCharCode(97 + n) };
    dashboard = put(dashboard, { ...one, place: { row: n * 3, col: 0, sizeX: 6, sizeY: 3 } });
  }
  return dashboard;
}

describe("layout", () => {
  it("widgets_in_the_way_move_down", () => {
    const moved = settle(column(3), "c", { row: 1, col: 2, sizeX: 6, sizeY: 3 });
    expect(places(moved)).toEqual([
      ["c", 1, 2],
      ["a", 4, 0],
      ["b", 7, 0],
    ]);
  });

  it("widgets_next_to_each_other_stay", () => {
    const moved = settle(column(2), "b", { row: 0, col: 6, sizeX: 6, sizeY: 3 });
    expect(places(moved)).toEqual([
      ["a", 0, 0],
      ["b", 0, 6],
    ]);
    expect(settle(moved, "unknown", { row: 0, col: 0, sizeX: 1, sizeY: 1 })).toBe(moved);
  });
});

describe("states", () => {
  it("a_removed_state_takes_its_widgets_along_unless_others_show_them", () => {
    const [two, id] = addState(column(1), "Second");
    expect(states(two).map(({ name, isRoot }) => [name, isRoot])).toMatchObject([
      [expect.anything(), true],
      ["Second", false],
    ]);
    const filled = put(two, { ...fresh("value", []), id: "only-second" }, { state: id });
    expect(widgets(filled, { state: id }).map((one) => one.id)).toEqual(["only-second"]);
    const removed = removeState(filled, id);
    expect(widgets(removed).map((one) => one.id)).toEqual(["a"]);
    expect(states(removed)).toHaveLength(1);
  });
});

describe("time window", () => {
  it.each([
    ["nothing", {}, { ms: 3_600_000, fixed: undefined, aggregation: "AVG" }],
    [
      "the last minute",
      { realtime: { timewindowMs: 60_000 }, aggregation: { type: "MAX" } },
      { ms: 60_000, fixed: undefined, aggregation: "MAX" },
    ],
    [
      "fixed times",
      { selectedTab: 1, history: { historyType: 1, fixedTimewindow: { startTimeMs: 1, endTimeMs: 2 } } },
      { ms: 3_600_000, fixed: { from: 1, to: 2 }, aggregation: "AVG" },
    ],
    [
      "times in the wrong order",
      { selectedTab: 1, history: { historyType: 1, fixedTimewindow: { startTimeMs: 2, endTimeMs: 1 } } },
      { ms: 3_600_000, fixed: undefined, aggregation: "AVG" },
    ],
  ])("of %s", (_, json, expected) => expect(windowOf(json)).toEqual(expected));

  it("a_stored_window_is_read_back", () => {
    for (const time of [
      { ms: 60_000, fixed: undefined },
      { ms: 3_600_000, fixed: { from: 5, to: 9 } },
    ]) {
      const stored = withWindow(empty("Test"), time).configuration?.["timewindow"];
      expect(windowOf(stored as never)).toMatchObject(time);
    }
  });
});

describe("keys", () => {
  it.each([
    ["temperature", { name: "temperature", type: "timeseries" }],
    ["attribute:serial", { name: "serial", type: "attribute" }],
    ["field:name", { name: "name", type: "entityField" }],
    ["telemetry:field:x", { name: "field:x", type: "timeseries" }],
  ] as const)("%s", (word, key) => {
    expect(keyOf(word)).toEqual(key);
    expect(keyWord(key)).toBe(word);
  });
});

describe("imported widgets", () => {
  const imported = (json: object): Dashboard =>
    ({ ...empty("Test"), configuration: { widgets: { w: json } } }) as unknown as Dashboard;

  it("html_cards_show_only_their_text", () => {
    const cardHtml =
      "<style>b{}</style><p>1 &lt; 2 &#176;</p><script>alert(1)</script><b onclick='x'>Hall</b><!-- x -->";
    const [card] = widgets(imported({ typeFullFqn: "system.cards.html_card", config: { settings: { cardHtml } } }));
    expect(card).toMatchObject({ kind: "text", text: "1 < 2 °\n\nHall" });
  });

  it("unsupported_parts_are_named", () => {
    expect(unsupportedParts(imported({ typeFullFqn: "system.cards.unknown", config: { title: "Card" } }))).toEqual([
      { title: "Card", what: ["widget type not supported: system.cards.unknown"] },
    ]);
    const datasources = [
      { type: "function", dataKeys: [] },
      { type: "entity", entityAliasId: "gone", dataKeys: [] },
    ];
    expect(unsupportedParts(imported({ typeFullFqn: "system.cards.value_card", config: { datasources } }))).toEqual([
      {
        title: "Untitled widget",
        what: ["data source type not supported: function", "the alias is missing in the dashboard"],
      },
    ]);
  });
});
