// Dashboards as ThingsBoard exports them: several datasources, attributes, aliases that the server has to look for, and what the console says it does not show.
import { expect, open, test } from "../support/test";
import { Platform } from "../support/platform";

test.use({ hasPlatform: true, nodeOf: "imported" });

type Key = { name: string; type?: string; [other: string]: unknown };
const source = (alias: string, keys: Key[], more: object = {}) => ({ type: "entity", entityAliasId: alias, dataKeys: keys.map((key) => ({ type: "timeseries", label: key.name, ...key })), ...more });

test("all datasources, attributes and aliases of a dashboard are shown, and what is not is told widget by widget", async ({ console: page, node }) => {
  test.setTimeout(90_000);
  const platform = await Platform.open(node, "Main");
  const [hall, a, b] = [await platform.device("hall"), await platform.device("meter-a"), await platform.device("meter-b")];
  const device = (id: string) => ({ entityType: "DEVICE", id });
  for (const [id, name, room] of [[a, "meter-a", "cellar"], [b, "meter-b", "attic"]] as const) {
    expect(await node.publish("v1/devices/me/telemetry", `{"heat": ${name === "meter-a" ? 20 : 30}}`, "-u", name, "-q", "1")).toBe(0);
    expect(await node.publish("v1/devices/me/attributes", `{"firmware": "${name}-1.0"}`, "-u", name, "-q", "1")).toBe(0);
    await platform.call("POST", `/api/plugins/telemetry/DEVICE/${id}/SERVER_SCOPE`, { room });
    await platform.call("POST", `/api/plugins/telemetry/DEVICE/${id}/SHARED_SCOPE`, { limit: 75 });
    await platform.call("POST", "/api/relation", { from: device(hall), to: device(id), type: "Contains", typeGroup: "COMMON" });
  }
  const widgets = Object.fromEntries([
    ["Course", "system.time_series_chart", "timeseries", [source("a", [{ name: "heat" }]), source("b", [{ name: "heat" }])]],
    ["Named", "system.cards.attributes_card", "latest", [source("named", [{ name: "heat" }, { name: "room", type: "attribute" }, { name: "firmware", type: "attribute" }])]],
    ["Typed", "system.cards.attributes_card", "latest", [source("typed", [{ name: "limit", type: "attribute", label: "Limit" }])]],
    ["Every", "system.cards.attributes_card", "latest", [source("every", [{ name: "heat" }])]],
    ["Related", "system.cards.attributes_card", "latest", [source("related", [{ name: "room", type: "attribute" }], { filterId: "f" })]],
    ["Room", "system.cards.value_card", "latest", [source("b", [{ name: "room", type: "attribute" }, { name: "owner", type: "strange" }])]],
    ["Strange", "system.scada.pump", "latest", [source("a", [{ name: "heat" }])]],
    ["Group", "system.cards.value_card", "latest", [source("group", [{ name: "heat" }])]],
    ["Drawn", "system.time_series_chart", "timeseries", [{ type: "function", dataKeys: [{ name: "f(x)", type: "function" }] }]],
  ].map(([title, typeFullFqn, type, datasources], n) => [String(title), { typeFullFqn, type, row: n * 4, col: 0, sizeX: 12, sizeY: 4, config: { title, datasources } }]));
  const alias = (id: string, filter: object) => [id, { id, alias: id, filter: { resolveMultiple: true, ...filter } }];
  const entityAliases = Object.fromEntries([
    alias("a", { type: "singleEntity", singleEntity: device(a) }), alias("b", { type: "singleEntity", singleEntity: device(b) }),
    alias("named", { type: "entityName", entityType: "DEVICE", entityNameFilter: "meter" }),
    alias("typed", { type: "deviceType", deviceTypes: ["default"], deviceNameFilter: "meter-b" }),
    alias("every", { type: "entityType", entityType: "DEVICE", resolveMultiple: false }),
    alias("related", { type: "relationsQuery", rootStateEntity: true, defaultStateEntity: device(hall), direction: "FROM", maxLevel: 1, fetchLastLevelOnly: false, filters: [{ relationType: "Contains", entityTypes: ["DEVICE"] }] }),
    alias("group", { type: "entityGroup", groupType: "DEVICE" }),
  ]);
  await open(page, "dashboards");
  await page.locator("input[type=file]").setInputFiles({ name: "d.json", mimeType: "application/json", buffer: Buffer.from(JSON.stringify({ title: "From elsewhere", configuration: { widgets, entityAliases, filters: {} } })) });
  const dialog = page.getByRole("dialog", { name: "From elsewhere is imported", exact: true });
  await expect(dialog.getByRole("listitem")).toHaveText([
    "Drawn: its datasource is of type function; its key f(x) is of type function.",
    "Group: its alias group is of type entityGroup.",
    "Related: its filter is not in the dashboard: all entities of the alias are shown.",
    "Room: its key owner is of type strange.",
    "Strange: the console has no widget of type system.scada.pump.",
  ]);
  await dialog.getByRole("link", { name: "Open it", exact: true }).click();
  const widget = (name: string) => page.getByRole("region", { name, exact: true });
  await expect(widget("Course").getByRole("listitem")).toHaveText([/^meter-a heat 20$/, /^meter-b heat 30$/]);
  const rows = (name: string) => widget(name).getByRole("row");
  await expect(rows("Named")).toHaveText([/meter-a ?heat ?20/, /meter-a ?room ?cellar/, /meter-a ?firmware ?meter-a-1\.0/, /meter-b ?heat ?30/, /meter-b ?room ?attic/, /meter-b ?firmware ?meter-b-1\.0/]);
  await expect(rows("Typed")).toHaveText([/^Limit ?75/]);
  // Of an alias that is one entity, the first.
  await expect(rows("Every")).toHaveText([/^heat ?–/]);
  await expect(rows("Related")).toHaveText([/cellar/, /attic/]);
  await expect(widget("Room").getByText("attic", { exact: true })).toBeVisible();
  // Attributes come as they change.
  await platform.call("POST", `/api/plugins/telemetry/DEVICE/${b}/SERVER_SCOPE`, { room: "roof" });
  await expect(widget("Room").getByText("roof", { exact: true })).toBeVisible();
  await expect(rows("Related")).toHaveText([/cellar/, /roof/]);
  // A widget that is changed keeps its other datasources, and keys that are attributes.
  await page.getByRole("button", { name: "Edit", exact: true }).click();
  for (const name of ["Course", "Typed"]) {
    await page.getByRole("button", { name: `Change ${name}`, exact: true }).click();
    await page.getByRole("dialog").getByLabel("Title", { exact: true }).fill(`${name} now`);
    await page.getByRole("dialog").getByRole("button", { name: "Change", exact: true }).click();
  }
  await page.getByRole("button", { name: "Save", exact: true }).click();
  await expect(widget("Course now").getByRole("listitem")).toHaveText([/^meter-a heat 20$/, /^meter-b heat 30$/]);
  await expect(rows("Typed now")).toHaveText([/^Limit ?75/]);
});

test("fields of entities, units, digits and filters of a dashboard from ThingsBoard are shown; functions are said not to be run", async ({ console: page, node }) => {
  test.setTimeout(90_000);
  const platform = await Platform.open(node, "Main");
  const device = (id: string) => ({ entityType: "DEVICE", id });
  const ids = [await platform.device("tank-1"), await platform.device("tank-2"), await platform.device("tank-3")];
  const level = (name: string, value: number) => node.publish("v1/devices/me/telemetry", `{"level": ${value}}`, "-u", name, "-q", "1");
  for (const [n, value] of [12.3456, 55, 80].entries()) expect(await level(`tank-${n + 1}`, value)).toBe(0);
  const key = (name: string, type: string, more: object = {}) => ({ name, type, label: name, ...more });
  const units = { units: "m³", decimals: 1 };
  const widgets = Object.fromEntries([
    ["All", "system.cards.entities_table", [source("all", [key("name", "entityField"), key("type", "entityField", { label: "Kind" }), key("label", "entityField"), key("level", "timeseries", units)])]],
    ["Full", "system.cards.entities_table", [source("all", [key("name", "entityField"), key("level", "timeseries", units)], { filterId: "full" })]],
    ["Listed", "system.cards.value_card", [source("listed", [key("level", "timeseries", { label: "Level of ${entityName}" })], { filterId: "full" })]],
    ["Made", "system.cards.value_card", [source("one", [key("level", "timeseries", { usePostProcessing: true, postFuncBody: "return value * 2;" })])]],
    ["Cells", "system.cards.entities_table", [source("one", [key("level", "timeseries", { settings: { useCellContentFunction: true, cellContentFunction: "return value;" } })])]],
    ["Words", "system.cards.markdown_card", [source("one", [key("level", "timeseries", units)])]],
  ].map(([title, typeFullFqn, datasources], n) => [String(title), { typeFullFqn, type: "latest", row: n * 4, col: 0, sizeX: 12, sizeY: 4, config: { title, datasources, settings: title === "Words" ? { useMarkdownTextFunction: true, markdownTextPattern: "**${entityName}** has ${level:1}", markdownTextFunction: "return '';" } : {} } }]));
  const entityAliases = Object.fromEntries([
    ["all", { type: "entityName", entityType: "DEVICE", entityNameFilter: "tank" }], ["listed", { type: "entityList", entityType: "DEVICE", entityList: ids }], ["one", { type: "singleEntity", singleEntity: device(ids[0] ?? "") }],
  ].map(([id, filter]) => [id, { id, alias: id, filter: { resolveMultiple: true, ...(filter as object) } }]));
  // As ThingsBoard's form keeps them.
  const more = (value: number) => ({ keyFilterPredicate: { type: "NUMERIC", operation: "GREATER", value: { defaultValue: value, dynamicValue: null } }, userInfo: { editable: true, label: "", autogeneratedLabel: true, order: 0 } });
  const less = { keyFilterPredicate: { type: "NUMERIC", operation: "LESS", value: { defaultValue: 100, dynamicValue: null } }, userInfo: { editable: false } };
  const predicates = [{ keyFilterPredicate: { type: "COMPLEX", operation: "AND", predicates: [more(50), less] }, userInfo: { editable: true } }, more(60)];
  const filters = { full: { id: "full", filter: "Full ones", editable: true, keyFilters: [{ key: { type: "TIME_SERIES", key: "level" }, valueType: "NUMERIC", predicates }] } };
  await open(page, "dashboards");
  await page.locator("input[type=file]").setInputFiles({ name: "t.json", mimeType: "application/json", buffer: Buffer.from(JSON.stringify({ title: "Tanks", configuration: { widgets, entityAliases, filters } })) });
  const dialog = page.getByRole("dialog", { name: "Tanks is imported", exact: true });
  await expect(dialog.getByRole("listitem")).toHaveText([
    "Cells: its key level is shown without the function of its cells.",
    "Made: its key level is shown without its post-processing function.",
    "Words: its text is made by a function, which is not run.",
  ]);
  await dialog.getByRole("link", { name: "Open it", exact: true }).click();
  const widget = (name: string) => page.getByRole("region", { name, exact: true });
  const rows = (name: string) => widget(name).getByRole("row");
  const of = (n: number, value: string) => [`tank-${n} ?name ?tank-${n}`, `tank-${n} ?Kind ?default`, `tank-${n} ?label ?–`, `tank-${n} ?level ?${value} m³`].map((row) => new RegExp(row));
  await expect(rows("All")).toHaveText([...of(1, "12\\.3"), ...of(2, "55"), ...of(3, "80")]);
  await expect(rows("Full")).toHaveText([/^name ?tank-3/, /^level ?80 m³/]);
  await expect(widget("Listed").getByText(/^Level of tank-3/)).toBeVisible();
  await expect(widget("Words")).toContainText("tank-1 has 12.3");
  // What a filter lets through follows the values.
  expect(await level("tank-2", 70)).toBe(0);
  await expect(rows("Full")).toHaveText([/tank-2/, /tank-2 ?level ?70/, /tank-3/, /tank-3/], { timeout: 20_000 });
});
