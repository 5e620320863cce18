// Widgets made in the console: several devices, time windows, switches.
import { boxOf } from "../support/reads";
import { seconds } from "../support/slow";
import { expect, open, test } from "../support/test";
import { Platform } from "../support/platform";

test.use({ hasPlatform: true });

async function made(platform: Platform, title: string): Promise<string> {
  return ((await platform.call("POST", "/api/dashboard", { title })) as { id: { id: string } }).id.id;
}

interface Stored { title: string; configuration: { timewindow: unknown; widgets: Record<string, { config: { title: string; settings: Record<string, unknown> } }>; entityAliases: Record<string, { filter: Record<string, unknown> }> } }
const stored = async (platform: Platform, id: string) => (await platform.call("GET", `/api/dashboard/${id}`)) as Stored;

test("a chart shows several devices found by search", async ({ console: page, node }) => {
  test.setTimeout(seconds(90));
  const platform = await Platform.open(node, "Main");
  const ids: string[] = [];
  // More devices than the list shows at once.
  for (let n = 0; n < 110; n += 1) ids.push(await platform.device(`pump-${String(n).padStart(3, "0")}`));
  for (const n of [7, 108]) expect(await node.publish("v1/devices/me/telemetry", `{"flow": ${n}}`, "-u", `pump-${String(n).padStart(3, "0")}`, "-q", "1")).toBe(0);
  const id = await made(platform, "Before");
  await open(page, `dashboards/${id}`);
  await page.getByRole("button", { name: "Edit", exact: true }).click();
  await page.getByRole("button", { name: "Rename…", exact: true }).click();
  const dialog = page.getByRole("dialog");
  await dialog.getByLabel("Title", { exact: true }).fill("After");
  await dialog.getByRole("button", { name: "Rename", exact: true }).click();
  await expect(page.getByRole("heading", { level: 1, name: "After", exact: true })).toBeVisible();
  await page.getByRole("button", { name: "Add widget…", exact: true }).click();
  await dialog.getByLabel("Title", { exact: true }).fill("Flow");
  const choice = dialog.getByRole("combobox", { name: "Device", exact: true });
  await choice.selectOption({ label: "pump-007" });
  await expect(dialog.getByText("The first 100 by name; search for others.", { exact: true })).toBeVisible();
  await dialog.getByRole("searchbox", { name: "Search: Device", exact: true }).fill("108");
  await choice.selectOption({ label: "pump-108" });
  await expect(dialog.getByRole("list", { name: "Selected: Device", exact: true }).getByRole("listitem")).toHaveCount(2);
  await dialog.getByRole("button", { name: "Key flow", exact: true }).click();
  await dialog.getByRole("button", { name: "Add", exact: true }).click();
  const lines = page.getByRole("region", { name: "Flow", exact: true }).getByRole("listitem");
  await expect(lines.filter({ hasText: "pump-007 flow" })).toContainText("7");
  await expect(lines.filter({ hasText: "pump-108 flow" })).toContainText("108");
  await page.getByRole("button", { name: "Save", exact: true }).click();
  await expect(page.getByRole("button", { name: "Edit", exact: true })).toBeVisible();
  const one = await stored(platform, id);
  expect(one.title).toBe("After");
  expect(Object.values(one.configuration.entityAliases).map(({ filter }) => filter)).toEqual([{ type: "entityList", resolveMultiple: true, entityType: "DEVICE", entityList: [ids[7], ids[108]] }]);
  // The form shows their names, also of devices beyond the first page.
  await page.getByRole("button", { name: "Edit", exact: true }).click();
  await page.getByRole("button", { name: "Edit Flow", exact: true }).click();
  await dialog.getByRole("button", { name: "Remove pump-007", exact: true }).click();
  await expect(dialog.getByRole("button", { name: "Remove pump-108", exact: true })).toBeVisible();
  await dialog.getByRole("button", { name: "Save", exact: true }).click();
  await expect(lines).toHaveCount(1);
  await expect(lines).toContainText("108");
});

test("dashboards and charts show a fixed interval", async ({ console: page, node }) => {
  const platform = await Platform.open(node, "Main");
  const device = await platform.device("archive");
  const at = (time: string) => new Date(time).getTime();
  await platform.call("POST", `/api/plugins/telemetry/DEVICE/${device}/timeseries/ANY`, [{ ts: at("2024-03-01T12:00"), values: { level: 41 } }, { ts: at("2024-04-01T12:00"), values: { level: 42 } }]);
  const id = await made(platform, "Then");
  await open(page, `dashboards/${id}`);
  await page.getByRole("button", { name: "Edit", exact: true }).click();
  const dialog = page.getByRole("dialog");
  for (const title of ["Level", "Own"]) {
    await page.getByRole("button", { name: "Add widget…", exact: true }).click();
    await dialog.getByLabel("Title", { exact: true }).fill(title);
    await dialog.getByRole("combobox", { name: "Device", exact: true }).selectOption({ label: "archive" });
    await dialog.getByLabel("Keys", { exact: true }).fill("level");
    if (title === "Own") {
      await dialog.getByRole("combobox", { name: "Time range", exact: true }).selectOption("fixed interval");
      await dialog.getByLabel("From", { exact: true }).fill("2024-03-31T00:00");
      await dialog.getByLabel("To", { exact: true }).fill("2024-04-02T00:00");
    }
    await dialog.getByRole("button", { name: "Add", exact: true }).click();
    await expect(dialog).toBeHidden();
  }
  await page.getByRole("button", { name: "Save", exact: true }).click();
  await expect(page.getByRole("button", { name: "Edit", exact: true })).toBeVisible();
  const line = (title: string) => page.getByRole("region", { name: title, exact: true }).getByRole("listitem");
  await expect(line("Own")).toContainText("42");
  await expect(line("Level")).not.toContainText("4");
  // While viewing, and saved.
  const choose = async () => {
    await page.getByRole("combobox", { name: "Time", exact: true }).selectOption("fixed interval…");
    await dialog.getByLabel("To", { exact: true }).fill("2024-03-02T00:00");
    await dialog.getByLabel("From", { exact: true }).fill("2024-02-29T00:00");
    await dialog.getByRole("button", { name: "Show", exact: true }).click();
    await expect(line("Level")).toContainText("41");
    await expect(line("Own")).toContainText("42");
  };
  await choose();
  expect((await stored(platform, id)).configuration.timewindow).not.toMatchObject({ selectedTab: 1 });
  await page.getByRole("button", { name: "Edit", exact: true }).click();
  await choose();
  await page.getByRole("button", { name: "Save", exact: true }).click();
  await expect(page.getByRole("button", { name: "Edit", exact: true })).toBeVisible();
  const fixedTimewindow = { startTimeMs: at("2024-02-29T00:00"), endTimeMs: at("2024-03-02T00:00") };
  expect((await stored(platform, id)).configuration.timewindow).toMatchObject({ selectedTab: 1, history: { historyType: 1, fixedTimewindow } });
  await page.reload();
  await expect(line("Level")).toContainText("41");
});

test("a switch reads its state from an attribute or by RPC", async ({ console: page, node }) => {
  const platform = await Platform.open(node, "Main");
  const device = await platform.device("a-valve");
  const share = (open: boolean) => platform.call("POST", `/api/plugins/telemetry/DEVICE/${device}/SHARED_SCOPE`, { open });
  await share(true);
  // The device polls for commands over HTTP and answers them.
  let stands = false;
  const end = new AbortController();
  const lives = (async () => {
    while (!end.signal.aborted) {
      const asked = await fetch(`${node.url}/api/v1/a-valve/rpc?timeout=5000`, { signal: end.signal });
      if (asked.status !== 200) continue;
      const { id, method, params } = (await asked.json()) as { id: number; method: string; params: boolean };
      if (method === "setValue") stands = params;
      else await fetch(`${node.url}/api/v1/a-valve/rpc/${id}`, { method: "POST", headers: { "Content-Type": "application/json" }, body: String(stands) });
    }
  })().catch(() => undefined);

  const id = await made(platform, "Switches");
  await open(page, `dashboards/${id}`);
  await page.getByRole("button", { name: "Edit", exact: true }).click();
  const dialog = page.getByRole("dialog");
  for (const [title, how] of [["Told", "not read"], ["Kept", "shared attribute"], ["Asked", "RPC call"]] as const) {
    await page.getByRole("button", { name: "Add widget…", exact: true }).click();
    await dialog.getByRole("combobox", { name: "Type", exact: true }).selectOption("switch");
    await dialog.getByLabel("Title", { exact: true }).fill(title);
    await dialog.getByRole("combobox", { name: "Device", exact: true }).selectOption({ label: "a-valve" });
    await dialog.getByRole("combobox", { name: "State source", exact: true }).selectOption(how);
    if (title === "Kept") await dialog.getByLabel("State key", { exact: true }).fill("open");
    await dialog.getByRole("button", { name: "Add", exact: true }).click();
    await expect(dialog).toBeHidden();
  }
  await page.getByRole("button", { name: "Save", exact: true }).click();
  await expect(page.getByRole("button", { name: "Edit", exact: true })).toBeVisible();
  const settings = Object.values((await stored(platform, id)).configuration.widgets).find((one) => one.config.title === "Kept")?.config.settings;
  // The format of ThingsBoard.
  expect(settings).toMatchObject({ initialState: { action: "GET_ATTRIBUTE", getAttribute: { scope: "SHARED_SCOPE", key: "open" } }, onUpdateState: { action: "EXECUTE_RPC", executeRpc: { method: "setValue" } } });
  const one = (title: string) => page.getByRole("switch", { name: title, exact: true });
  await expect(one("Told")).toHaveText("unknown");
  await expect(one("Kept")).toHaveText("on");
  await share(false);
  await expect(one("Kept")).toHaveText("off");
  await page.reload();
  await expect(one("Asked")).toHaveText("off");
  await one("Asked").click();
  await expect(one("Asked")).toHaveText("on");
  expect(stands).toBe(true);
  await one("Told").click();
  await expect(one("Told")).toHaveText("on");
  end.abort();
  await lives;
});

test("values, gauges and tables show several devices", async ({ console: page, node }) => {
  const platform = await Platform.open(node, "Main");
  for (const [name, speed] of [["a-fan-1", 10], ["a-fan-2", 20.5]] as const) {
    await platform.device(name);
    expect(await node.publish("v1/devices/me/telemetry", `{"speed": ${speed}}`, "-u", name, "-q", "1")).toBe(0);
  }
  const id = await made(platform, "Fans");
  await open(page, `dashboards/${id}`);
  await page.getByRole("button", { name: "Edit", exact: true }).click();
  const dialog = page.getByRole("dialog");
  for (const kind of ["value", "gauge", "table"]) {
    await page.getByRole("button", { name: "Add widget…", exact: true }).click();
    await dialog.getByRole("combobox", { name: "Type", exact: true }).selectOption(kind);
    await dialog.getByLabel("Title", { exact: true }).fill(kind);
    for (const label of ["a-fan-1", "a-fan-2"]) await dialog.getByRole("combobox", { name: "Device", exact: true }).selectOption({ label });
    await dialog.getByRole("button", { name: "Key speed", exact: true }).click();
    if (kind !== "table") await dialog.getByLabel("Unit", { exact: true }).fill("rpm");
    await dialog.getByRole("button", { name: "Add", exact: true }).click();
    await expect(dialog).toBeHidden();
  }
  await page.getByRole("button", { name: "Save", exact: true }).click();
  await expect(page.getByRole("button", { name: "Edit", exact: true })).toBeVisible();
  await page.reload();
  const widget = (name: string) => page.getByRole("region", { name, exact: true });
  await expect(widget("value")).toContainText(/a-fan-1\s*10\s*rpm\s*speed.*a-fan-2\s*20\.5\s*rpm/s);
  await expect(widget("gauge").getByRole("meter", { name: "a-fan-1 speed", exact: true })).toHaveAttribute("aria-valuetext", "10 rpm");
  await expect(widget("gauge").getByRole("meter", { name: "a-fan-2 speed", exact: true })).toHaveAttribute("aria-valuetext", "20.5 rpm");
  await expect(widget("table").getByRole("row")).toHaveText([/^Name ?speed/, /^a-fan-1 ?10/, /^a-fan-2 ?20\.5/]);
});

test("a chart with many lines keeps its height on a phone", async ({ console: page, node }) => {
  const platform = await Platform.open(node, "Main");
  const entityList: string[] = [];
  for (const name of ["a", "b", "c", "d"]) entityList.push(await platform.device(`a-telephone-with-a-long-name-${name}`));
  const datasources = [{ type: "entity", entityAliasId: "l", dataKeys: [{ name: "temperature", type: "timeseries" }] }];
  const configuration = {
    widgets: { w: { typeFullFqn: "system.time_series_chart", type: "timeseries", row: 0, col: 0, sizeX: 12, sizeY: 5, config: { title: "Many", datasources } } },
    entityAliases: { l: { id: "l", alias: "l", filter: { type: "entityList", resolveMultiple: true, entityType: "DEVICE", entityList } } },
  };
  const one = (await platform.call("POST", "/api/dashboard", { title: "Telephone", configuration })) as { id: { id: string } };
  await page.setViewportSize({ width: 360, height: 740 });
  await open(page, `dashboards/${one.id.id}`);
  const widget = page.getByRole("region", { name: "Many", exact: true });
  await expect(widget.getByRole("listitem")).toHaveCount(4);
  const height = async () => (await boxOf(widget)).height;
  const before = await height();
  // Each answer draws the chart again.
  for (let n = 0; n < 2; n += 1) await page.waitForResponse((answer) => answer.url().includes("/values/timeseries"));
  expect(await height()).toBe(before);
  expect(before).toBeLessThan(400);
});

test("a switch writes attributes or telemetry", async ({ console: page, node }) => {
  const platform = await Platform.open(node, "Main");
  const device = await platform.device("a-lamp");
  const attribute = async (scope: string, key: string) => ((await platform.call("GET", `/api/plugins/telemetry/DEVICE/${device}/values/attributes/${scope}?keys=${key}`)) as { value: unknown }[]).map(({ value }) => value);
  const constant = (value: unknown) => ({ valueToData: { type: "CONSTANT", constantValue: value } });
  const set = (scope: string, key: string) => ({ action: "SET_ATTRIBUTE", setAttribute: { scope, key } });
  const get = (scope: string, key: string, on: unknown) => ({ action: "GET_ATTRIBUTE", getAttribute: { scope, key }, dataToValue: { type: "NONE", compareToValue: on } });
  const widgets = Object.fromEntries([
    ["Lamp", "system.single_switch", { initialState: get("SHARED_SCOPE", "lamp", "LIT"), onUpdateState: { ...set("SHARED_SCOPE", "lamp"), ...constant("LIT") }, offUpdateState: { ...set("SHARED_SCOPE", "lamp"), ...constant("DARK") } }],
    ["Mode", "system.power_button", { initialState: get("SERVER_SCOPE", "mode", true), onUpdateState: { ...set("SERVER_SCOPE", "mode"), ...constant(true) }, offUpdateState: { ...set("SERVER_SCOPE", "mode"), valueToData: { type: "FUNCTION", valueToDataFunction: "return false;" } } }],
  ].map(([title, typeFullFqn, settings], n) => [String(title), { typeFullFqn, type: "rpc", row: n * 4, col: 0, sizeX: 6, sizeY: 3, config: { title, targetDevice: { type: "entity", entityAliasId: "a" }, settings } }]));
  const entityAliases = { a: { id: "a", alias: "a", filter: { type: "singleEntity", singleEntity: { entityType: "DEVICE", id: device } } } };
  await open(page, "dashboards");
  await page.locator("input[type=file]").setInputFiles({ name: "l.json", mimeType: "application/json", buffer: Buffer.from(JSON.stringify({ title: "Lamps", configuration: { widgets, entityAliases } })) });
  const dialog = page.getByRole("dialog");
  await expect(dialog.getByRole("listitem")).toHaveText(["Mode: the function that converts the sent value is not run: the switch sends true or false."]);
  await dialog.getByRole("link", { name: "Open", exact: true }).click();
  const one = (title: string) => page.getByRole("switch", { name: title, exact: true });
  await expect(one("Lamp")).toHaveText("unknown");
  for (const [text, lamp] of [["on", "LIT"], ["off", "DARK"]] as const) {
    await one("Lamp").click();
    await expect(one("Lamp")).toHaveText(text);
    expect(await attribute("SHARED_SCOPE", "lamp")).toEqual([lamp]);
  }
  await one("Mode").click();
  await expect(one("Mode")).toHaveText("on");
  expect(await attribute("SERVER_SCOPE", "mode")).toEqual([true]);
  // A switch made in the console.
  await page.getByRole("button", { name: "Edit", exact: true }).click();
  for (const [title, what, key] of [["Pump", "set a shared attribute", "pump"], ["Mark", "save telemetry", "mark"]] as const) {
    await page.getByRole("button", { name: "Add widget…", exact: true }).click();
    await dialog.getByRole("combobox", { name: "Type", exact: true }).selectOption("switch");
    await dialog.getByLabel("Title", { exact: true }).fill(title);
    await dialog.getByRole("combobox", { name: "Device", exact: true }).selectOption({ label: "a-lamp" });
    await dialog.getByRole("combobox", { name: "Action", exact: true }).selectOption(what);
    await dialog.getByLabel("Key", { exact: true }).fill(key);
    await expect(dialog.getByLabel("State key", { exact: true })).toHaveValue(key);
    await dialog.getByRole("button", { name: "Add", exact: true }).click();
    await expect(dialog).toBeHidden();
  }
  await page.getByRole("button", { name: "Save", exact: true }).click();
  await expect(page.getByRole("button", { name: "Edit", exact: true })).toBeVisible();
  for (const title of ["Pump", "Mark"]) {
    await one(title).click();
    await expect(one(title)).toHaveText("on");
  }
  expect(await attribute("SHARED_SCOPE", "pump")).toEqual([true]);
  const all = Object.values(((await platform.call("GET", `/api/dashboard/${new URL(page.url()).hash.split("/")[2]}`)) as Stored).configuration.widgets);
  const settings = (title: string) => all.find((widget) => widget.config.title === title)?.config.settings;
  // The format of ThingsBoard. The imported switch is unchanged.
  expect(settings("Pump")).toMatchObject({ initialState: { action: "GET_ATTRIBUTE", getAttribute: { scope: "SHARED_SCOPE", key: "pump" } }, onUpdateState: { action: "SET_ATTRIBUTE", setAttribute: { scope: "SHARED_SCOPE", key: "pump" }, valueToData: { type: "CONSTANT", constantValue: true } } });
  expect(settings("Lamp")).toEqual(widgets["Lamp"]?.config.settings);
});

test("widgets use attribute and field keys, charts telemetry only", async ({ console: page, node }) => {
  const platform = await Platform.open(node, "Main");
  const device = await platform.device("a-cooler");
  await platform.call("POST", `/api/plugins/telemetry/DEVICE/${device}/SERVER_SCOPE`, { room: "cellar" });
  for (const cold of [3, 4]) expect(await node.publish("v1/devices/me/telemetry", `{"cold": ${cold}, "setup": {"fan": 2}}`, "-u", "a-cooler", "-q", "1")).toBe(0);
  const id = await made(platform, "Coolers");
  await open(page, `dashboards/${id}`);
  await page.getByRole("button", { name: "Edit", exact: true }).click();
  const dialog = page.getByRole("dialog");
  const begin = async (kind: string) => {
    await page.getByRole("button", { name: "Add widget…", exact: true }).click();
    await dialog.getByRole("combobox", { name: "Type", exact: true }).selectOption(kind);
    await dialog.getByLabel("Title", { exact: true }).fill(kind);
    await dialog.getByRole("combobox", { name: "Device", exact: true }).selectOption({ label: "a-cooler" });
  };
  const add = async () => {
    await dialog.getByRole("button", { name: "Add", exact: true }).click();
    await expect(dialog).toBeHidden();
  };
  await begin("table");
  for (const key of ["attribute:room", "setup", "field:name", "cold"]) await dialog.getByRole("button", { name: `Key ${key}`, exact: true }).click();
  await expect(dialog.getByLabel("Keys", { exact: true })).toHaveValue("attribute:room, setup, field:name, cold");
  await add();
  await begin("chart");
  await expect(dialog.getByRole("button", { name: "Key attribute:room", exact: true })).toHaveCount(0);
  await dialog.getByLabel("Keys", { exact: true }).fill("cold, attribute:room");
  await dialog.getByRole("button", { name: "Add", exact: true }).click();
  await expect(dialog.getByRole("alert")).toHaveText("attribute:room: only telemetry has a history.");
  await dialog.getByLabel("Keys", { exact: true }).fill("cold");
  await dialog.getByLabel("Unit", { exact: true }).fill("°C");
  await add();
  await begin("log");
  await dialog.getByRole("button", { name: "Key cold", exact: true }).click();
  await add();
  await page.getByRole("button", { name: "Save", exact: true }).click();
  await expect(page.getByRole("button", { name: "Edit", exact: true })).toBeVisible();
  await page.reload();
  const widget = (name: string) => page.getByRole("region", { name, exact: true });
  await expect(widget("table").getByRole("row")).toHaveText([/^room ?cellar/, /^setup ?\{"fan":2\}/, /^name ?a-cooler/, /^cold ?4/]);
  await expect(widget("chart").getByRole("listitem")).toHaveText([/^cold [\d.]+ °C every point$/]);
  await expect(widget("log").getByRole("row")).toHaveText([/^Time ?cold/, /4/, /3/]);
  const keys = Object.values((await stored(platform, id)).configuration.widgets).find((one) => one.config.title === "table") as unknown as { config: { datasources: { dataKeys: { name: string; type: string }[] }[] } };
  expect(keys.config.datasources[0]?.dataKeys.map(({ name, type }) => `${type} ${name}`)).toEqual(["attribute room", "timeseries setup", "entityField name", "timeseries cold"]);
  // The form shows the same keys when it is opened again.
  await page.getByRole("button", { name: "Edit", exact: true }).click();
  await page.getByRole("button", { name: "Edit table", exact: true }).click();
  await expect(dialog.getByLabel("Keys", { exact: true })).toHaveValue("attribute:room, setup, field:name, cold");
});
