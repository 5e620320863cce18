// Dashboards exported by ThingsBoard: data sources, attributes, aliases, and the list of unsupported parts.
import { boxOf } from "../support/reads";
import { seconds } from "../support/slow";
import { expect, open, test } from "../support/test";
import { Platform } from "../support/platform";

test.use({ hasPlatform: true });

type Key = { name: string; type?: string; [other: string]: unknown };
const source = (alias: string, keys: Key[], more: object = {}) => ({ type: "entity", entityAliasId: alias, dataKeys: keys.map((key) => ({ type: "timeseries", label: key.name, ...key })), ...more });

test("data sources, attributes and aliases are shown", async ({ console: page, node }) => {
  test.setTimeout(seconds(90));
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
  const dialog = page.getByRole("dialog", { name: "From elsewhere was imported", exact: true });
  await expect(dialog.getByRole("listitem")).toHaveText([
    "Drawn: data source type not supported: function; type of key f(x) not supported: function.",
    "Group: type of alias group not supported: entityGroup.",
    "Related: the filter is missing in the dashboard: all entities of the alias are shown.",
    "Room: type of key owner not supported: strange.",
    "Strange: widget type not supported: system.scada.pump.",
  ]);
  await dialog.getByRole("link", { name: "Open", exact: true }).click();
  const widget = (name: string) => page.getByRole("region", { name, exact: true });
  await expect(widget("Course").getByRole("listitem")).toHaveText([/^meter-a heat 20 every point$/, /^meter-b heat 30 every point$/]);
  const rows = (name: string) => widget(name).getByRole("row");
  await expect(rows("Named")).toHaveText([/^Name ?heat ?room ?firmware/, /^meter-a ?20 ?cellar ?meter-a-1\.0/, /^meter-b ?30 ?attic ?meter-b-1\.0/]);
  await expect(rows("Typed")).toHaveText([/^Limit ?75/]);
  // An alias that is one entity uses the first.
  await expect(rows("Every")).toHaveText([/^heat ?–/]);
  await expect(rows("Related")).toHaveText([/room/, /cellar/, /attic/]);
  await expect(widget("Room").getByText("attic", { exact: true })).toBeVisible();
  // Attributes update live.
  await platform.call("POST", `/api/plugins/telemetry/DEVICE/${b}/SERVER_SCOPE`, { room: "roof" });
  await expect(widget("Room").getByText("roof", { exact: true })).toBeVisible();
  await expect(rows("Related")).toHaveText([/room/, /cellar/, /roof/]);
  // An edited widget keeps its other data sources and its attribute keys.
  await page.getByRole("button", { name: "Edit", exact: true }).click();
  for (const name of ["Course", "Typed"]) {
    await page.getByRole("button", { name: `Edit ${name}`, exact: true }).click();
    await page.getByRole("dialog").getByLabel("Title", { exact: true }).fill(`${name} now`);
    await page.getByRole("dialog").getByRole("button", { name: "Save", exact: true }).click();
  }
  await page.getByRole("button", { name: "Save", exact: true }).click();
  await expect(widget("Course now").getByRole("listitem")).toHaveText([/^meter-a heat 20 every point$/, /^meter-b heat 30 every point$/]);
  await expect(rows("Typed now")).toHaveText([/^Limit ?75/]);
});

test("fields, units and filters are shown, functions reported", async ({ console: page, node }) => {
  test.setTimeout(seconds(90));
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
  // The format of ThingsBoard's form.
  const more = (value: number) => ({ keyFilterPredicate: { type: "NUMERIC", operation: "GREATER", value: { defaultValue: value, dynamicValue: null } }, userInfo: { editable: true, label: "", autogeneratedLabel: true, order: 0 } });
  const less = { keyFilterPredicate: { type: "NUMERIC", operation: "LESS", value: { defaultValue: 100, dynamicValue: null } }, userInfo: { editable: false } };
  const predicates = [{ keyFilterPredicate: { type: "COMPLEX", operation: "AND", predicates: [more(50), less] }, userInfo: { editable: true } }, more(60)];
  const filters = { full: { id: "full", filter: "Full ones", editable: true, keyFilters: [{ key: { type: "TIME_SERIES", key: "level" }, valueType: "NUMERIC", predicates }] } };
  await open(page, "dashboards");
  await page.locator("input[type=file]").setInputFiles({ name: "t.json", mimeType: "application/json", buffer: Buffer.from(JSON.stringify({ title: "Tanks", configuration: { widgets, entityAliases, filters } })) });
  const dialog = page.getByRole("dialog", { name: "Tanks was imported", exact: true });
  await expect(dialog.getByRole("listitem")).toHaveText([
    "Cells: the cell function of key level is not run.",
    "Made: the post-processing function of key level is not run.",
    "Words: the text function is not run.",
  ]);
  await dialog.getByRole("link", { name: "Open", exact: true }).click();
  const widget = (name: string) => page.getByRole("region", { name, exact: true });
  const rows = (name: string) => widget(name).getByRole("row");
  const of = (n: number, value: string) => new RegExp(`^tank-${n} ?tank-${n} ?default ?– ?${value} m³`);
  await expect(rows("All")).toHaveText([/^Name ?name ?Kind ?label ?level/, of(1, "12\\.3"), of(2, "55"), of(3, "80")]);
  // Columns sort numbers as numbers.
  await widget("All").getByRole("button", { name: "level", exact: true }).click();
  await widget("All").getByRole("button", { name: /^level/ }).click();
  await expect(widget("All").getByRole("columnheader", { name: /^level/ })).toHaveAttribute("aria-sort", "descending");
  await expect(rows("All")).toHaveText([/level/, of(3, "80"), of(2, "55"), of(1, "12\\.3")]);
  await expect(rows("Full")).toHaveText([/^name ?tank-3/, /^level ?80 m³/]);
  await expect(widget("Listed").getByText(/^Level of tank-3/)).toBeVisible();
  await expect(widget("Words")).toContainText("tank-1 has 12.3");
  // The filter follows the values.
  expect(await level("tank-2", 70)).toBe(0);
  await expect(rows("Full")).toHaveText([/level/, /tank-2 ?70 m³/, /tank-3 ?80 m³/], { timeout: seconds(20) });
});

test("tables, maps and HTML cards of ThingsBoard are shown", async ({ console: page, node }) => {
  test.setTimeout(seconds(90));
  const platform = await Platform.open(node, "Main");
  for (const [n, name] of ["stove-1", "stove-2"].entries()) {
    const id = await platform.device(name);
    await platform.call("POST", `/api/plugins/telemetry/DEVICE/${id}/SERVER_SCOPE`, { latitude: 37.4 + n / 10, longitude: -122.1 });
    for (const heat of [20 + n, 30 + n]) expect(await node.publish("v1/devices/me/telemetry", `{"heat": ${heat}}`, "-u", name, "-q", "1")).toBe(0);
  }
  const heat = { name: "heat", type: "timeseries", label: "{i18n:stoves.present-heat}", units: "°C" };
  const of = (entityAliasId: string) => [{ type: "entity", entityAliasId, dataKeys: [heat] }];
  const widget = (id: string, typeFullFqn: string, type: string, config: object) => [id, { id, typeFullFqn, type, config }] as const;
  const marker = { dsType: "entity", dsEntityAliasId: "all", xKey: { name: "latitude", type: "attribute" }, yKey: { name: "longitude", type: "attribute" }, additionalDataKeys: [{ ...heat, usePostProcessing: true }] };
  const widgets = Object.fromEntries([
    widget("t", "system.cards.entities_table", "latest", { title: "New Entities table", showTitle: false, datasources: of("all"), settings: { entitiesTitle: "Stoves" }, actions: {
      headerButton: [{ name: "Where", type: "openDashboardState", targetDashboardStateId: "where", setEntityId: false }],
      actionCellButton: [{ name: "Course", type: "openDashboardState", targetDashboardStateId: "one", setEntityId: true }],
    } }),
    widget("m", "system.map", "latest", { title: "Map", datasources: [], settings: { mapType: "geoMap", markers: [marker] } }),
    widget("h", "system.cards.html_card", "static", { title: "Hint", settings: { cardHtml: "<style>p { color: red; }</style><p style=\"color: red\">Call <b>Ada</b></p><img src=x onerror=alert(1)><p>at 20&nbsp;&deg;C</p>" } }),
    widget("c", "system.time_series_chart", "timeseries", { title: "Chart", datasources: of("one") }),
    widget("l", "system.cards.timeseries_table", "timeseries", { title: "Log", datasources: of("one") }),
  ]);
  const at = (row: number) => ({ row, col: 0, sizeX: 12, sizeY: 5 });
  const states = {
    default: { name: "{i18n:stoves.all-stoves}", root: true, layouts: { main: { widgets: { t: at(0), h: at(5) } } } },
    one: { name: "${entityName}", root: false, layouts: { main: { widgets: { c: at(0), l: at(5) } } } },
    where: { name: "Where", root: false, layouts: { main: { widgets: { m: at(0) } } } },
  };
  const entityAliases = { all: { id: "all", alias: "Stoves", filter: { type: "entityName", resolveMultiple: true, entityType: "DEVICE", entityNameFilter: "stove" } }, one: { id: "one", alias: "Stove", filter: { type: "stateEntity", resolveMultiple: false } } };
  await open(page, "dashboards");
  await page.locator("input[type=file]").setInputFiles({ name: "s.json", mimeType: "application/json", buffer: Buffer.from(JSON.stringify({ title: "Stoves at home", configuration: { widgets, states, entityAliases, filters: {} } })) });
  const dialog = page.getByRole("dialog");
  await expect(dialog.getByRole("listitem")).toHaveText(["Hint: only the text of the HTML is shown."]);
  await dialog.getByRole("link", { name: "Open", exact: true }).click();
  const region = (name: string) => page.getByRole("region", { name, exact: true });
  const parts = page.getByRole("navigation", { name: "States", exact: true }).getByRole("link");
  await expect(parts).toHaveText(["All stoves", "one device", "Where"]);
  await expect(region("Stoves").getByRole("row")).toHaveText([/^Name ?Present heat/, /^stove-1 ?30 °C ?Course/, /^stove-2 ?31 °C ?Course/]);
  await expect(region("Hint")).toContainText(/Call Ada\s*at 20 °C/);
  await expect(region("Hint").locator("img")).toHaveCount(0);
  // The action of the second row opens the state for the second device.
  await region("Stoves").getByRole("button", { name: "Course: stove-2", exact: true }).click();
  await expect(parts).toHaveText(["All stoves", "stove-2", "Where"]);
  await expect(region("Chart").getByRole("listitem")).toHaveText([/^Present heat [\d.]+ °C every point$/]);
  await expect(region("Log").getByRole("row")).toHaveText([/^Time ?Present heat/, /31 °C/, /21 °C/]);
  await parts.filter({ hasText: "Where" }).click();
  await expect(region("Map").getByRole("link")).toHaveText(["stove-1", "stove-2"]);
  // The edited map stays a map.
  await page.getByRole("button", { name: "Edit", exact: true }).click();
  await page.getByRole("button", { name: "Edit Map", exact: true }).click();
  await dialog.getByLabel("Title", { exact: true }).fill("Where they are");
  await dialog.getByRole("button", { name: "Save", exact: true }).click();
  await page.getByRole("button", { name: "Save", exact: true }).click();
  await expect(region("Where they are").getByRole("link")).toHaveText(["stove-1", "stove-2"]);
  const found = (await platform.call("GET", "/api/tenant/dashboards?page=0&pageSize=100&textSearch=Stoves")) as { data: { id: { id: string } }[] };
  const stored = (await platform.call("GET", `/api/dashboard/${found.data[0]?.id.id}`)) as { configuration: { widgets: Record<string, { typeFullFqn: string; config: { settings: object } }> } };
  expect(stored.configuration.widgets["m"]).toMatchObject({ typeFullFqn: "system.map", config: { settings: { markers: [{ dsEntityAliasId: "all", xKey: { name: "latitude" }, additionalDataKeys: [{ name: "heat" }] }] } } });
});

test("a long legend does not hide the axis of a chart", async ({ console: page, node }) => {
  const platform = await Platform.open(node, "Main");
  const id = await platform.device("many-words");
  const keys = ["a-key-with-a-long-name-1", "a-key-with-a-long-name-2", "a-key-with-a-long-name-3", "a-key-with-a-long-name-4"];
  await platform.call("POST", `/api/plugins/telemetry/DEVICE/${id}/timeseries/ANY`, Object.fromEntries(keys.map((key) => [key, 1])));
  const datasources = [{ type: "device", deviceId: id, dataKeys: keys.map((name) => ({ name, type: "timeseries" })) }];
  const widgets = { w: { typeFullFqn: "system.time_series_chart", type: "timeseries", row: 0, col: 0, sizeX: 8, sizeY: 5, config: { title: "Words", datasources } } };
  const one = (await platform.call("POST", "/api/dashboard", { title: "Words", configuration: { widgets } })) as { id: { id: string } };
  await open(page, `dashboards/${one.id.id}`);
  const chart = page.getByRole("region", { name: "Words", exact: true });
  await expect(chart.getByRole("listitem")).toHaveCount(4);
  await expect(async () => {
    const [frame, canvas] = [await boxOf(chart), await boxOf(chart.locator("canvas"))];
    expect(canvas.y + canvas.height).toBeLessThanOrEqual(frame.y + frame.height);
    expect(canvas.height).toBeGreaterThan(100);
  }).toPass();
});
