// Wall screens: an address with an API key shows a dashboard read-only without a login.
import { until } from "../support/node";
import { textOf } from "../support/reads";
import { seconds } from "../support/slow";
import { expect, logIn, open, test, watch } from "../support/test";
import { Platform } from "../support/platform";

test.use({ hasPlatform: true });

test("a screen works without a login while its key is valid", async ({ page, node }) => {
  test.setTimeout(seconds(120));
  const pageErrors = watch(page, node.url);
  const platform = await Platform.open(node, "Main");
  const device = await platform.device("furnace");
  await platform.call("POST", "/api/alarm", { originator: { entityType: "DEVICE", id: device }, type: "Overheat", severity: "CRITICAL" });
  const widget = (name: string, typeFullFqn: string, type: string, row: number) => [name, {
    id: name, typeFullFqn, type, row, col: 0, sizeX: 12, sizeY: 4,
    config: { title: name, targetDevice: { entityAliasId: "a" }, datasources: type === "alarm" ? [] : [{ type: "entity", entityAliasId: "a", dataKeys: [{ name: "heat", type: "timeseries" }] }] },
  }] as const;
  const widgets = Object.fromEntries([
    widget("Heat", "system.cards.value_card", "latest", 0), widget("Course", "system.time_series_chart", "timeseries", 4),
    widget("Burner", "system.single_switch", "rpc", 8), widget("Alarms", "system.alarm_widgets.alarms_table", "alarm", 12),
  ]);
  const configuration = { widgets, entityAliases: { a: { id: "a", alias: "Furnace", filter: { type: "singleEntity", singleEntity: { entityType: "DEVICE", id: device } } } } };
  const { id } = (await platform.call("POST", "/api/dashboard", { title: "Hall 1", configuration })) as { id: { id: string } };
  const say = (heat: number) => node.publish("v1/devices/me/telemetry", JSON.stringify({ heat }), "-u", "furnace", "-q", "1");

  await logIn(page, node);
  await open(page, `dashboards/${id.id}`);
  await page.getByRole("button", { name: "Screen…", exact: true }).click();
  const dialog = page.getByRole("dialog");
  await expect(dialog.getByLabel("Key name", { exact: true })).toHaveValue("screen-hall-1");
  await dialog.getByRole("button", { name: "Create", exact: true }).click();
  await expect(page.getByRole("dialog", { name: "Address of screen-hall-1", exact: true })).toBeVisible();
  const address = await textOf(dialog.locator("code").first());
  expect(address).toMatch(/^http:\/\/.+\/#\/screen\/.+\?key=twk_/);
  await dialog.getByRole("button", { name: "Done", exact: true }).click();
  await open(page, "keys");
  await expect(page.getByRole("row", { name: /screen-hall-1/ }).getByRole("link", { name: "a screen", exact: true })).toBeVisible();

  // The browser on the wall has no login.
  await page.evaluate(() => { sessionStorage.clear(); localStorage.clear(); });
  await page.goto("about:blank");
  await page.goto(address);
  await expect(page.getByRole("heading", { name: "Hall 1", exact: true })).toBeVisible();
  await expect(page.getByRole("navigation", { name: "Pages", exact: true })).toHaveCount(0);
  expect(await say(40)).toBe(0);
  const value = page.getByRole("region", { name: "Heat", exact: true });
  await expect(value.getByText("40", { exact: true })).toBeVisible();
  expect(await say(55)).toBe(0);
  await expect(value.getByText("55", { exact: true })).toBeVisible();
  await expect(page.getByRole("region", { name: "Course", exact: true }).getByRole("listitem").first()).toContainText(/heat [45]\d/);
  await expect(page.getByRole("switch")).toHaveCount(0);
  await expect(page.getByRole("region", { name: "Burner", exact: true })).toContainText("Not available on a screen");
  const alarms = page.getByRole("region", { name: "Alarms", exact: true });
  await expect(alarms.getByText("Overheat", { exact: true })).toBeVisible();
  await expect(alarms.getByRole("button")).toHaveCount(0);
  for (const name of ["Edit", "Kiosk", "Exit", "Screen…"]) await expect(page.getByRole("button", { name, exact: true })).toHaveCount(0);
  await expect.poll(() => page.evaluate(() => [sessionStorage.length, localStorage.length])).toEqual([0, 0]);

  // The screen follows changes of the dashboard, and disabling and enabling of the key.
  await node.call("PUT", "/api/v1/api-keys/screen-hall-1", { enabled: false });
  await page.reload();
  await expect(page.getByRole("alert")).toContainText("The key of this screen was deleted, disabled or has expired");
  await node.call("PUT", "/api/v1/api-keys/screen-hall-1", { enabled: true });
  await expect(value.getByText("55", { exact: true })).toBeVisible({ timeout: seconds(45) });
  await node.call("DELETE", "/api/v1/api-keys/screen-hall-1");
  await page.reload();
  await expect(page.getByRole("alert")).toContainText("The key of this screen");
  await expect(page.getByRole("region", { name: "Heat", exact: true })).toBeHidden();
  expect(pageErrors).toEqual([]);
});

test("a tab shows one screen after another", async ({ page, node }) => {
  const platform = await Platform.open(node, "Main");
  await page.goto("about:blank");
  for (const title of ["Hall 2", "Hall 3", "Hall 2"]) {
    const { id } = (await platform.call("POST", "/api/dashboard", { title, configuration: { widgets: {} } })) as { id: { id: string } };
    const name = `wall-${id.id}`;
    const { secret } = (await node.call("POST", "/api/v1/api-keys", { name, role: "viewer", dashboard: id.id })) as { secret: string };
    // Only the fragment of the address changes, so the page is not reloaded.
    await page.goto(`${node.url}/#/screen/${id.id}?key=${secret}`);
    await expect(page.getByRole("heading", { name: title, exact: true })).toBeVisible();
  }
});

test("screens do not share a connection", async ({ page, node }) => {
  const platform = await Platform.open(node, "Main");
  const sockets: { isClosed: boolean; said: string }[] = [];
  page.on("websocket", (socket) => {
    const one = { isClosed: false, said: "" };
    sockets.push(one);
    socket.on("framesent", ({ payload }) => { one.said += String(payload); });
    socket.on("close", () => { one.isClosed = true; });
  });
  await page.goto("about:blank");
  const keys: string[] = [];
  for (const [name, heat] of [["east", 41], ["west", 42]] as const) {
    const device = await platform.device(name);
    const source = { type: "entity", entityAliasId: "a", dataKeys: [{ name: "heat", type: "timeseries" }] };
    const widget = { id: "w", typeFullFqn: "system.cards.value_card", type: "latest", row: 0, col: 0, sizeX: 12, sizeY: 4, config: { title: name, datasources: [source] } };
    const alias = { id: "a", alias: name, filter: { type: "singleEntity", singleEntity: { entityType: "DEVICE", id: device } } };
    const { id } = (await platform.call("POST", "/api/dashboard", { title: name, configuration: { widgets: { w: widget }, entityAliases: { a: alias } } })) as { id: { id: string } };
    const { secret } = (await node.call("POST", "/api/v1/api-keys", { name, role: "viewer", dashboard: id.id })) as { secret: string };
    keys.push(secret);
    expect(await node.publish("v1/devices/me/telemetry", JSON.stringify({ heat }), "-u", name, "-q", "1")).toBe(0);
    await page.goto(`${node.url}/#/screen/${id.id}?key=${secret}`);
    await expect(page.getByRole("region", { name, exact: true }).getByText(String(heat), { exact: true })).toBeVisible();
  }
  const [east, west] = keys.map((key) => sockets.filter((one) => one.said.includes(key)));
  expect([east?.length, west?.length]).toEqual([1, 1]);
  await until(async () => east?.every((one) => one.isClosed) ?? false);
  expect(west?.[0]?.isClosed).toBe(false);
});

test("a screen shows several devices with their names", async ({ page, node }) => {
  const platform = await Platform.open(node, "Main");
  const entityList = [await platform.device("mill-1"), await platform.device("mill-2")];
  for (const name of ["mill-1", "mill-2"]) expect(await node.publish("v1/devices/me/telemetry", '{"heat": 12}', "-u", name, "-q", "1")).toBe(0);
  for (const one of entityList) await platform.call("POST", `/api/plugins/telemetry/DEVICE/${one}/attributes/SERVER_SCOPE`, { hall: "north", pin: "1234" });
  const datasources = [{ type: "entity", entityAliasId: "l", dataKeys: [{ name: "type", type: "entityField", label: "Kind" }, { name: "heat", type: "timeseries", label: "heat" }, { name: "hall", type: "attribute", label: "hall" }] }];
  const configuration = {
    widgets: { w: { typeFullFqn: "system.cards.entities_table", type: "latest", row: 0, col: 0, sizeX: 12, sizeY: 5, config: { title: "Mills", datasources } } },
    entityAliases: { l: { id: "l", alias: "l", filter: { type: "entityList", resolveMultiple: true, entityType: "DEVICE", entityList } } },
  };
  const { id } = (await platform.call("POST", "/api/dashboard", { title: "Mills", configuration })) as { id: { id: string } };
  const { secret } = (await node.call("POST", "/api/v1/api-keys", { name: "mills", role: "viewer", dashboard: id.id })) as { secret: string };
  await page.goto("about:blank");
  await page.goto(`${node.url}/#/screen/${id.id}?key=${secret}`);
  await expect(page.getByRole("region", { name: "Mills", exact: true }).getByRole("row")).toHaveText([/^Name ?Kind ?heat ?hall/, /^mill-1 ?default ?12 ?north/, /^mill-2 ?default ?12 ?north/]);
});

test("a screen resolves aliases and follows new entities", async ({ page, node }) => {
  const platform = await Platform.open(node, "Main");
  const kiln = async (name: string, heat: number) => {
    await platform.call("POST", "/api/device-with-credentials", { device: { name, type: "kiln" }, credentials: { credentialsType: "ACCESS_TOKEN", credentialsId: name } });
    expect(await node.publish("v1/devices/me/telemetry", JSON.stringify({ heat }), "-u", name, "-q", "1")).toBe(0);
  };
  await kiln("kiln-1", 61);
  await kiln("kiln-2", 62);
  const datasources = [{ type: "entity", entityAliasId: "k", dataKeys: [{ name: "heat", type: "timeseries", label: "heat" }] }];
  const configuration = {
    widgets: { w: { typeFullFqn: "system.cards.entities_table", type: "latest", row: 0, col: 0, sizeX: 12, sizeY: 5, config: { title: "Kilns", datasources } } },
    entityAliases: { k: { id: "k", alias: "k", filter: { type: "deviceType", resolveMultiple: true, deviceTypes: ["kiln"] } } },
  };
  const { id } = (await platform.call("POST", "/api/dashboard", { title: "Kilns", configuration })) as { id: { id: string } };
  const { secret } = (await node.call("POST", "/api/v1/api-keys", { name: "kilns", role: "viewer", dashboard: id.id })) as { secret: string };
  await page.goto("about:blank");
  await page.goto(`${node.url}/#/screen/${id.id}?key=${secret}`);
  const rows = page.getByRole("region", { name: "Kilns", exact: true }).getByRole("row");
  await expect(rows).toHaveText([/^Name ?heat/, /^kiln-1 ?61/, /^kiln-2 ?62/]);
  await kiln("kiln-3", 63);
  await expect(rows).toHaveText([/^Name ?heat/, /^kiln-1 ?61/, /^kiln-2 ?62/, /^kiln-3 ?63/], { timeout: seconds(30) });
});
