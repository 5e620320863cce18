// Devices: creation, connection, telemetry, attributes, commands, alarms, relations.
import { execFileSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { boxOf, isMarked, mark, textOf } from "../support/reads";
import { seconds } from "../support/slow";
import { expect, logIn, open, test } from "../support/test";
import { Platform } from "../support/platform";
import { Node } from "../support/node";
import type { Page } from "@playwright/test";

test.describe.configure({ mode: "parallel" });
test.use({ hasPlatform: true });

const telemetry = (node: Node, token: string, values: object) => node.publish("v1/devices/me/telemetry", JSON.stringify(values), "-u", token, "-q", "1");

async function openDevice(page: Page, id: string, tab = ""): Promise<void> {
  await open(page, `devices/${id}${tab ? `?tab=${tab}` : ""}`);
}

test("the first tenant and device are created", async ({ page }) => {
  // No tenant exists yet.
  const node = await Node.start("platform.enabled=true");
  await logIn(page, node);
  await open(page, "devices");
  await page.getByRole("form", { name: "New tenant", exact: true }).getByRole("button", { name: "Create", exact: true }).click();
  await expect(page.getByText("No devices yet.")).toBeVisible();
  await page.getByRole("button", { name: "New device…", exact: true }).click();
  const dialog = page.getByRole("dialog");
  await dialog.getByLabel("Name", { exact: true }).fill("boiler");
  await dialog.getByLabel("Access token", { exact: true }).fill("boiler-token");
  await dialog.getByRole("button", { name: "Create", exact: true }).click();
  await expect(page.getByRole("heading", { level: 1, name: "boiler", exact: true })).toBeVisible();
  await expect(page.getByText(`mosquitto_pub -h 127.0.0.1 -p ${node.mqttPort} -u 'boiler-token' -q 1 -t v1/devices/me/telemetry`)).toBeVisible();
  await page.getByRole("navigation", { name: "Device", exact: true }).getByRole("link", { name: "Telemetry", exact: true }).click();
  await expect(page.getByText("No telemetry yet.")).toBeVisible();
  expect(await telemetry(node, "boiler-token", { temperature: 21.5, state: "on" })).toBe(0);
  const latest = page.getByRole("region", { name: "Table: Latest telemetry", exact: true });
  await expect(latest.getByRole("row", { name: /temperature 21\.5/ })).toBeVisible();
  expect(await telemetry(node, "boiler-token", { temperature: 22.5 })).toBe(0);
  await expect(latest.getByRole("row", { name: /temperature 22\.5/ })).toBeVisible();
  await expect(latest.getByRole("checkbox", { name: "Show state in the chart", exact: true })).toBeDisabled();
  const history = page.getByRole("region", { name: "History", exact: true });
  await expect(history.getByRole("listitem").filter({ hasText: "temperature" })).toContainText("22.5");
  // New values update the chart instead of creating it again.
  await mark(history.locator("canvas"));
  expect(await telemetry(node, "boiler-token", { temperature: 30 })).toBe(0);
  await expect(history.getByRole("listitem").filter({ hasText: "temperature" })).not.toContainText("22.5");
  await isMarked(history.locator("canvas"));
  await expect(page.getByText("active", { exact: true })).toBeVisible();
  await open(page, "devices");
  await expect(page.getByRole("region", { name: "Table: Devices", exact: true }).getByRole("row", { name: /boiler active default/ })).toBeVisible();
  await open(page, "tenant-audit");
  const log = page.getByRole("region", { name: "Table: Tenant audit log", exact: true });
  await expect(log.getByRole("row", { name: /admin \(console\) added device boiler .*done$/ })).toBeVisible();
  await log.getByText("show", { exact: true }).first().click();
  await expect(log.getByText('"name": "boiler"')).toBeVisible();
  await page.getByLabel("Action", { exact: true }).selectOption("deleted");
  await expect(page.getByText("No entry matches the filter.")).toBeVisible();
  await node.stop();
});

test("a chart shows points or aggregates and names them", async ({ console: page, node }) => {
  const platform = await Platform.open(node, "Main");
  const id = await platform.device("sparse");
  const now = Date.now();
  // Two values in an interval of six seconds. No point has their mean value.
  const at = Math.floor((now - 600_000) / 60_000) * 60_000 + 1_000;
  await platform.call("POST", `/api/plugins/telemetry/DEVICE/${id}/timeseries/ANY`, [{ ts: at, values: { level: 10 } }, { ts: at + 1_000, values: { level: 20 } }]);
  await openDevice(page, id);
  const history = page.getByRole("region", { name: "History", exact: true });
  const status = history.getByRole("status");
  await expect(status).toContainText("2 points shown, not aggregated");
  await expect(history.getByText("every point", { exact: true }).last()).toBeVisible();
  const value = history.getByRole("listitem").locator("b");
  await expect(value).toHaveText("20");
  const how = history.getByRole("combobox", { name: "Aggregation", exact: true });
  await how.selectOption("mean");
  await expect(status).toContainText("1 point shown, each the mean of 6 s");
  await expect(value).toHaveText("15");
  // A count is shown per interval, however short the time is.
  await history.getByRole("button", { name: "Zoom in", exact: true }).click();
  await history.getByRole("button", { name: "15 min", exact: true }).click();
  await how.selectOption("count");
  await expect(history.getByText(/^count of 1.5 s$/)).toBeVisible();
  await history.getByRole("button", { name: "1 min", exact: true }).click();
  await expect(history.getByText(/^count of 1 s$/)).toBeVisible();
});

test("history is zoomed, moved, compared and exported", async ({ console: page, node }) => {
  const platform = await Platform.open(node, "Main");
  const id = await platform.device("meter");
  const now = Date.now();
  const values = Array.from({ length: 3000 }, (_, n) => ({ ts: now - n * 1000, values: { power: 50 + (n % 100), water: n } }));
  await platform.call("POST", `/api/plugins/telemetry/DEVICE/${id}/timeseries/ANY`, values);
  await openDevice(page, id);
  const history = page.getByRole("region", { name: "History", exact: true });
  const status = history.getByRole("status");
  // 600 intervals of six seconds. Points cover 3,000 s of them.
  await expect(status).toContainText(/ 50\d points shown, each the mean of 6 s/);
  await expect(history.getByText("mean of 6 s", { exact: true })).toBeVisible();
  await page.getByRole("checkbox", { name: "Show water in the chart", exact: true }).check();
  await expect(status).toContainText(/ 1,00\d points shown/);
  await history.getByRole("button", { name: "1 min", exact: true }).click();
  await expect(status).not.toContainText(/ 1,00\d points shown/);
  await history.getByRole("button", { name: "1 h", exact: true }).click();
  await history.getByRole("button", { name: "Earlier", exact: true }).click();
  await expect(history.getByRole("button", { name: "Go live", exact: true })).toBeVisible();
  const plot = history.locator(".u-over");
  await expect(status).toContainText(/ shown/);
  const before = await textOf(status);
  const box = await boxOf(plot);
  await page.mouse.move(box.x + box.width * 0.6, box.y + 50);
  await page.mouse.down();
  await page.mouse.move(box.x + box.width * 0.9, box.y + 60, { steps: 5 });
  await page.mouse.up();
  await expect(status).not.toHaveText(before);
  const [csv] = await Promise.all([page.waitForEvent("download"), history.getByRole("button", { name: "CSV", exact: true }).click()]);
  expect(csv.suggestedFilename()).toBe("meter.csv");
  const lines = readFileSync(await csv.path(), "utf8").split("\n");
  expect(lines[0]).toBe("time,key,value");
  expect(lines.length).toBeGreaterThan(500);
  // The export contains all points, also beyond the limit of the chart.
  const [whole] = await Promise.all([page.waitForEvent("download"), history.getByRole("button", { name: "All points", exact: true }).click()]);
  const points = readFileSync(await whole.path(), "utf8").trimEnd().split(/\r?\n/);
  expect(points[0]).toBe("key,ts,type,value");
  expect(points.filter((line) => line.startsWith("water,")).length).toBeGreaterThan(500);
  const [parquet] = await Promise.all([page.waitForEvent("download"), history.getByRole("button", { name: "Parquet", exact: true }).click()]);
  expect(parquet.suggestedFilename()).toBe("meter.parquet");
  const file = readFileSync(await parquet.path());
  expect([file.subarray(0, 4).toString(), file.subarray(-4).toString()]).toEqual(["PAR1", "PAR1"]);
  const [png] = await Promise.all([page.waitForEvent("download"), history.getByRole("button", { name: "PNG", exact: true }).click()]);
  expect(readFileSync(await png.path()).subarray(1, 4).toString()).toBe("PNG");
});

test("every click in the history counts while it loads", async ({ console: page, node }) => {
  const platform = await Platform.open(node, "Main");
  const id = await platform.device("stepped");
  await platform.call("POST", `/api/plugins/telemetry/DEVICE/${id}/timeseries/ANY`, { level: 1 });
  await openDevice(page, id);
  const history = page.getByRole("region", { name: "History", exact: true });
  await expect(history.getByRole("status")).toContainText("1 point shown");
  // Blocks further answers, so that the chart still shows the first hour.
  const lengths: number[] = [];
  await page.route("**/values/timeseries?*", (route) => {
    const { searchParams } = new URL(route.request().url());
    lengths.push(Number(searchParams.get("endTs")) - Number(searchParams.get("startTs")));
  });
  const whole = 3_600_000;
  for (const part of [whole / 2, whole / 4]) {
    await history.getByRole("button", { name: "Zoom in", exact: true }).click();
    await expect.poll(() => lengths.at(-1)).toBe(part);
  }
  for (const [button, length] of [["1 min", 60_000], ["Zoom in", 30_000]] as const) {
    await history.getByRole("button", { name: button, exact: true }).click();
    await expect.poll(() => lengths.at(-1)).toBe(length);
  }
});

test("attributes of all scopes are edited and shared ones sent", async ({ console: page, node }) => {
  const platform = await Platform.open(node, "Main");
  const id = await platform.device("valve");
  expect(await node.publish("v1/devices/me/attributes", '{"firmware": "v1.0"}', "-u", "valve", "-q", "1")).toBe(0);
  await openDevice(page, id, "attributes");
  const table = page.getByRole("region", { name: "Table: Attributes", exact: true });
  const scopes = page.getByRole("group", { name: "Scope", exact: true });
  await scopes.getByRole("button", { name: "Client", exact: true }).click();
  await expect(table.getByRole("row", { name: /firmware v1\.0/ })).toBeVisible();
  await scopes.getByRole("button", { name: "Shared", exact: true }).click();
  const form = page.getByRole("form", { name: "Set attribute", exact: true });
  await form.getByLabel("Key", { exact: true }).fill("limit");
  await form.getByLabel("Value", { exact: true }).fill("30");
  await form.getByRole("button", { name: "Set", exact: true }).click();
  await expect(table.getByRole("row", { name: /limit 30/ })).toBeVisible();
  const read = (await platform.call("GET", `/api/plugins/telemetry/DEVICE/${id}/values/attributes/SHARED_SCOPE`)) as { key: string; value: unknown }[];
  expect(read.map(({ key, value }) => [key, value])).toEqual([["limit", 30]]);
  await table.getByRole("button", { name: "Delete limit", exact: true }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Delete", exact: true }).click();
  await expect(table.getByRole("row", { name: /limit/ })).toBeHidden();
});

test("a command reaches the device and returns its answer", async ({ console: page, node }) => {
  const platform = await Platform.open(node, "Main");
  const id = await platform.device("pump");
  await openDevice(page, id, "commands");
  const line = page.getByLabel("Method and parameters", { exact: true });
  const log = page.getByRole("log", { name: "Calls and answers", exact: true });
  await line.fill("getState");
  await line.press("Enter");
  await expect(log.locator(".bad")).toBeVisible();
  // The device polls for its next command over HTTP and answers it.
  let command: { id: number; method: string; params: unknown } | undefined;
  const answered = fetch(`${node.url}/api/v1/pump/rpc?timeout=15000`).then(async (asked) => {
    command = (await asked.json()) as NonNullable<typeof command>;
    await fetch(`${node.url}/api/v1/pump/rpc/${command.id}`, { method: "POST", headers: { "Content-Type": "application/json" }, body: '{"done": true}' });
  });
  // A call fails at once if the device is not polling.
  await expect(async () => {
    await line.fill('setValue {"pin": 7}');
    await line.press("Enter");
    await expect(log.locator("div").last()).not.toHaveText("…");
    expect(command).toBeDefined();
  }).toPass();
  await answered;
  expect([command?.method, command?.params]).toEqual(["setValue", { pin: 7 }]);
  await expect(log.getByText('{"done":true}', { exact: true })).toBeVisible();
});

test("an alarm is commented, acknowledged and cleared", async ({ console: page, node }) => {
  const platform = await Platform.open(node, "Main");
  const id = await platform.device("oven");
  await platform.call("POST", "/api/alarm", { originator: { entityType: "DEVICE", id }, type: "Overheat", severity: "CRITICAL", details: { temperature: 300 } });
  await open(page, "alarms");
  const table = page.getByRole("region", { name: "Table: Alarms", exact: true });
  await expect(table.getByRole("row", { name: /critical Show Overheat of oven oven .* active/ })).toBeVisible();
  await table.getByRole("button", { name: "Show Overheat of oven", exact: true }).click();
  const dialog = page.getByRole("dialog");
  await expect(dialog.getByText('"temperature": 300')).toBeVisible();
  await dialog.getByLabel("Comment", { exact: true }).fill("The door is open");
  await dialog.getByRole("button", { name: "Add comment", exact: true }).click();
  await expect(dialog.getByText("The door is open", { exact: true })).toBeVisible();
  await dialog.getByRole("button", { name: "Acknowledge", exact: true }).click();
  await expect(dialog.getByRole("button", { name: "Acknowledge", exact: true })).toBeHidden();
  await dialog.getByRole("button", { name: "Close", exact: true }).click();
  await expect(table.getByRole("row", { name: /Overheat of oven .* active, acknowledged/ })).toBeVisible();
  await table.getByRole("button", { name: "Clear Overheat of oven", exact: true }).click();
  await expect(table.getByRole("row", { name: /Overheat of oven .* cleared, acknowledged/ })).toBeVisible();
  await page.getByRole("combobox", { name: "State", exact: true }).selectOption("ACTIVE");
  await expect(page.getByRole("row", { name: /Overheat of oven/ })).toHaveCount(0);
});

test("an alarm is assigned and its history is recorded", async ({ console: page, node }) => {
  const platform = await Platform.open(node, "Main");
  const tenant = (await platform.call("GET", "/api/auth/user")) as { tenantId: unknown };
  await platform.call("POST", "/api/user", { email: "ann@example.com", firstName: "Ann", lastName: "Lee", authority: "TENANT_ADMIN", tenantId: tenant.tenantId });
  const id = await platform.device("press");
  expect(await telemetry(node, "press", { force: 1 })).toBe(0);
  await platform.call("POST", "/api/alarm", { originator: { entityType: "DEVICE", id }, type: "Jam", severity: "MAJOR" });
  await platform.call("POST", `/api/rpc/oneway/${id}`, { method: "release", params: { side: "left" }, persistent: true, timeout: 60_000 });
  await openDevice(page, id, "alarms");
  await page.getByRole("button", { name: "Show Jam of press", exact: true }).click();
  const dialog = page.getByRole("dialog");
  const assignee = dialog.getByRole("combobox", { name: "Assigned to", exact: true });
  // Temporary users of the console are not offered.
  await expect(assignee.getByRole("option")).not.toContainText(["console-"]);
  await assignee.selectOption({ label: "Ann Lee" });
  await expect(dialog.getByText(/^Alarm was assigned by user .* to user Ann Lee$/)).toBeVisible();
  await dialog.getByRole("button", { name: "Acknowledge", exact: true }).click();
  await expect(dialog.getByText(/^Alarm was acknowledged by user admin \(console\)$/)).toBeVisible();
  await dialog.getByRole("button", { name: "Close", exact: true }).click();
  await expect(page.getByRole("row", { name: /Jam of press .* active, acknowledged, assigned to Ann Lee/ })).toBeVisible();
  await openDevice(page, id, "events");
  const table = page.getByRole("region", { name: "Table: Events", exact: true });
  for (const event of [/alarm Jam started major$/, /alarm Jam assigned to ann@example\.com major$/, /alarm Jam acknowledged major$/, /call RPC call: release queued$/, /connection Connected most recent$/]) {
    await expect(table.getByRole("row", { name: event })).toBeVisible();
  }
  await page.getByRole("combobox", { name: "Type", exact: true }).selectOption({ label: "persistent RPC" });
  await expect(table.getByRole("row")).toHaveCount(2);
  await openDevice(page, id, "alarms");
  await page.getByRole("button", { name: "Show Jam of press", exact: true }).click();
  await assignee.selectOption({ label: "unassigned" });
  await expect(dialog.getByText(/^Alarm was unassigned by user admin \(console\)$/)).toBeVisible();
});

test("a CSV import creates devices and names faulty lines", async ({ console: page, node }) => {
  const platform = await Platform.open(node, "Main");
  await open(page, "devices");
  await page.getByRole("button", { name: "Import CSV…", exact: true }).click();
  const dialog = page.getByRole("dialog");
  // A corrected file is selected again under the same name.
  await dialog.getByLabel("CSV file", { exact: true }).setInputFiles({ name: "devices.csv", mimeType: "text/csv", buffer: Buffer.from("device\na\n") });
  await expect(dialog.getByRole("alert")).toContainText("The first line has no column name");
  const [chooser] = await Promise.all([page.waitForEvent("filechooser"), dialog.getByLabel("CSV file", { exact: true }).click()]);
  await expect(dialog.getByLabel("CSV file", { exact: true })).toHaveValue("");
  await expect(dialog.getByRole("alert")).toHaveCount(0);
  const content = 'name,label,profile,token\r\ncsv-1,"Kitchen, left",default,csv-token-1\r\ncsv-2,,nonsense,\r\ncsv-3,,,\r\n';
  await chooser.setFiles({ name: "devices.csv", mimeType: "text/csv", buffer: Buffer.from(content) });
  await dialog.getByRole("button", { name: "Import 3 devices", exact: true }).click();
  await expect(dialog.getByRole("status")).toHaveText("2 of 3 devices created, 1 failed.");
  await expect(dialog.getByText("Line 3: profile nonsense does not exist", { exact: true })).toBeVisible();
  await dialog.getByRole("button", { name: "Done", exact: true }).click();
  await page.getByLabel("Name or label", { exact: true }).fill("csv-");
  const table = page.getByRole("region", { name: "Table: Devices", exact: true });
  await expect(table.getByRole("row")).toHaveCount(3);
  await expect(table.getByRole("row", { name: /csv-1 inactive default Kitchen, left/ })).toBeVisible();
  // The filter by profile also works.
  await platform.call("POST", "/api/deviceProfile", { name: "csv-other", type: "DEFAULT", transportType: "DEFAULT", profileData: { configuration: { type: "DEFAULT" }, transportConfiguration: { type: "DEFAULT" } } });
  await page.reload();
  await page.getByRole("combobox", { name: "Profile", exact: true }).selectOption("csv-other");
  await expect(page.getByText("No device matches.", { exact: true })).toBeVisible();
  await page.getByRole("combobox", { name: "Profile", exact: true }).selectOption("default");
  await expect(table.getByRole("row", { name: /csv-1/ })).toBeVisible();
});

test("closing an import with Escape stops it", async ({ console: page, node }) => {
  const platform = await Platform.open(node, "Main");
  await open(page, "devices");
  const count = async () => ((await platform.call("GET", "/api/tenant/devices?page=0&pageSize=1&textSearch=escaped-")) as { totalElements: number }).totalElements;
  // The fourth request stays in flight until the test releases it.
  let asked = 0;
  let release: () => void = () => undefined;
  const held = new Promise<void>((resolve) => { release = resolve; });
  await page.route("**/api/device-with-credentials", async (route) => {
    asked += 1;
    if (asked === 4) await held;
    await route.fallback();
  });
  await page.getByRole("button", { name: "Import CSV…", exact: true }).click();
  const dialog = page.getByRole("dialog");
  const content = `name\n${Array.from({ length: 30 }, (_, n) => `escaped-${n}`).join("\n")}\n`;
  await dialog.getByLabel("CSV file", { exact: true }).setInputFiles({ name: "devices.csv", mimeType: "text/csv", buffer: Buffer.from(content) });
  await dialog.getByRole("button", { name: "Import 30 devices", exact: true }).click();
  await expect(dialog.getByRole("status")).toHaveText("3 of 30 devices created.");
  await expect.poll(() => asked).toBe(4);
  await page.keyboard.press("Escape");
  await expect(dialog).toBeHidden();
  await expect(page.getByText("Stopped: 3 of 30 devices created.", { exact: true })).toBeVisible();
  // The request in flight completes, and no further requests are made.
  release();
  await expect.poll(count).toBe(4);
  await page.getByLabel("Name or label", { exact: true }).fill("escaped-");
  await expect(page.getByRole("region", { name: "Table: Devices", exact: true }).getByRole("row")).toHaveCount(5);
  expect(asked).toBe(4);
  expect(await count()).toBe(4);
});

test("a chart and a file with too many points say so", async ({ console: page, node }) => {
  test.setTimeout(seconds(120));
  const platform = await Platform.open(node, "Main");
  const id = await platform.device("dense");
  const now = Date.now();
  for (let from = 0; from < 110_000; from += 10_000) {
    const values = Array.from({ length: 10_000 }, (_, n) => ({ ts: now - 60_000 - (from + n) * 20, values: { rpm: n % 100 } }));
    await platform.call("POST", `/api/plugins/telemetry/DEVICE/${id}/timeseries/ANY`, values);
  }
  await openDevice(page, id);
  const history = page.getByRole("region", { name: "History", exact: true });
  const chart = history.getByText(/^rpm: only the first 20,000 points are shown/);
  await expect(history.getByRole("status").last()).toContainText(/ points shown/);
  await expect(chart).toBeHidden();
  await history.getByRole("combobox", { name: "Aggregation", exact: true }).selectOption("every point");
  await expect(chart).toBeVisible();
  const [csv] = await Promise.all([page.waitForEvent("download"), history.getByRole("button", { name: "CSV", exact: true }).click()]);
  expect(readFileSync(await csv.path(), "utf8").split("\n")).toHaveLength(100_001);
  await expect(history.getByText(/^rpm: the file contains only the first 100,000 points\. Use All points/)).toBeVisible();
  await history.getByRole("button", { name: "1 min", exact: true }).click();
  await expect(chart).toBeHidden();
});

test("a relation is added and deleted", async ({ console: page, node }) => {
  const platform = await Platform.open(node, "Main");
  const id = await platform.device("gateway-a");
  await platform.device("sensor-a");
  await openDevice(page, id, "relations");
  const form = page.getByRole("form", { name: "Add relation", exact: true });
  await form.getByLabel("Entity", { exact: true }).selectOption({ label: "sensor-a" });
  await form.getByRole("button", { name: "Add", exact: true }).click();
  const table = page.getByRole("region", { name: "Table: Relations", exact: true });
  await expect(table.getByRole("row", { name: /this device Contains sensor-a/ })).toBeVisible();
  await table.getByRole("button", { name: "Delete the relation Contains to sensor-a", exact: true }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Delete", exact: true }).click();
  await expect(page.getByText("No relations yet. Add one below.", { exact: true })).toBeVisible();
});

test("name, label, profile and customer of a device are edited", async ({ console: page, node }) => {
  const platform = await Platform.open(node, "Main");
  const id = await platform.device("before");
  await platform.device("taken");
  await platform.call("POST", "/api/customer", { title: "Works" });
  const profileData = { configuration: { type: "DEFAULT" }, transportConfiguration: { type: "DEFAULT" }, provisionConfiguration: { type: "DISABLED" }, alarms: [] };
  await platform.call("POST", "/api/deviceProfile", { name: "changed-to", type: "DEFAULT", transportType: "DEFAULT", profileData });
  await openDevice(page, id);
  await page.getByRole("button", { name: "Edit…", exact: true }).click();
  const dialog = page.getByRole("dialog");
  const name = dialog.getByLabel("Name", { exact: true });
  await name.fill("taken");
  await dialog.getByRole("button", { name: "Save", exact: true }).click();
  await expect(dialog.getByRole("alert")).toContainText("already exists");
  await name.fill("after");
  await dialog.getByLabel("Label", { exact: true }).fill("In the cellar");
  await dialog.getByRole("combobox", { name: "Profile", exact: true }).selectOption({ label: "changed-to" });
  await dialog.getByRole("combobox", { name: "Customer", exact: true }).selectOption({ label: "Works" });
  await dialog.getByRole("checkbox", { name: /^Gateway/ }).check();
  await dialog.getByRole("button", { name: "Save", exact: true }).click();
  await expect(page.getByRole("heading", { level: 1, name: "after", exact: true })).toBeVisible();
  await expect(page.getByText(/^In the cellar, profile changed-to, customer Works, gateway, created/)).toBeVisible();
  expect(await platform.call("GET", `/api/device/info/${id}`)).toMatchObject({ name: "after", label: "In the cellar", deviceProfileName: "changed-to", customerTitle: "Works", additionalInfo: { gateway: true } });
  // Untouched fields are preserved. The customer is removed again.
  await page.getByRole("button", { name: "Edit…", exact: true }).click();
  await expect(name).toHaveValue("after");
  await dialog.getByRole("combobox", { name: "Customer", exact: true }).selectOption({ label: "none" });
  await dialog.getByRole("button", { name: "Save", exact: true }).click();
  await expect(page.getByText(/^In the cellar, profile changed-to, gateway, created/)).toBeVisible();
  expect(await node.publish("v1/devices/me/telemetry", '{"temperature": 1}', "-u", "before", "-q", "1")).toBe(0);
});

test("a device logs in with each kind of credentials", async ({ console: page, node }) => {
  const platform = await Platform.open(node, "Main");
  const id = await platform.device("login");
  await openDevice(page, id, "connection");
  const change = page.getByRole("region", { name: "Credentials", exact: true }).getByRole("button", { name: "Change credentials…", exact: true });
  const dialog = page.getByRole("dialog");
  const save = dialog.getByRole("button", { name: "Save", exact: true });
  const language = page.getByRole("combobox", { name: "Language", exact: true });
  const say = (...login: string[]) => node.publish("v1/devices/me/telemetry", '{"temperature": 1}', "-q", "1", ...login);
  await change.click();
  await dialog.getByLabel("Access token", { exact: true }).fill("it's mine");
  await save.click();
  await expect(dialog).toBeHidden();
  await expect(page.getByText("it's mine", { exact: true })).toBeVisible();
  expect(await say("-u", "login")).not.toBe(0);
  // The command is quoted for a shell.
  const line = await textOf(page.getByText(/^mosquitto_pub .*me\/telemetry/));
  execFileSync("sh", ["-c", line]);
  await expect.poll(async () => platform.call("GET", `/api/plugins/telemetry/DEVICE/${id}/values/timeseries?keys=temperature`)).toMatchObject({ temperature: [{ value: "21.5" }] });
  for (const [name, part] of [["Python", 'client.username_pw_set("it\'s mine")'], ["Node.js", 'username: "it\'s mine"'], ["ESP32 (Arduino)", 'mqtt.connect("esp32-1", "it\'s mine", nullptr)']] as const) {
    await language.selectOption(name);
    await expect(page.locator("pre").filter({ hasText: part })).toContainText("v1/devices/me/telemetry");
  }
  // The example for a device does not use this machine's loopback address.
  await expect(page.locator("pre")).toContainText(`mqtt.setServer("ADDRESS_OF_THIS_MACHINE", ${node.mqttPort});`);

  await change.click();
  await dialog.getByRole("combobox", { name: "Type", exact: true }).selectOption("MQTT_BASIC");
  await dialog.getByLabel("Client id", { exact: true }).fill("press-7");
  await dialog.getByLabel("User name", { exact: true }).fill("press");
  await dialog.getByLabel("Password", { exact: true }).fill("of the press");
  await save.click();
  await expect(dialog).toBeHidden();
  await expect(page.getByText("MQTT client id, user name and password", { exact: true })).toBeVisible();
  await language.selectOption("Python");
  await expect(page.locator("pre")).toContainText('client.username_pw_set("press", "of the press")');
  expect(await say("-i", "press-7", "-u", "press", "-P", "of the press")).toBe(0);
  expect(await say("-i", "press-7", "-u", "press", "-P", "wrong")).not.toBe(0);

  await change.click();
  await dialog.getByRole("combobox", { name: "Type", exact: true }).selectOption("X509_CERTIFICATE");
  const pem = execFileSync("openssl", ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", "/CN=press", "-keyout", "/dev/null"], { encoding: "utf8", stdio: ["ignore", "pipe", "ignore"] });
  await dialog.getByLabel("Certificate", { exact: true }).fill(pem);
  await save.click();
  await expect(dialog).toBeHidden();
  await expect(page.getByText("X.509 certificate", { exact: true })).toBeVisible();
  // This node has no TLS listener.
  await expect(page.getByText("No suitable listener: a certificate requires a listener with TLS.", { exact: true })).toBeVisible();
});

test("deleting a device requires its name", async ({ console: page, node }) => {
  const platform = await Platform.open(node, "Main");
  await openDevice(page, await platform.device("gone"));
  await page.getByRole("button", { name: "Delete…", exact: true }).click();
  await page.getByRole("dialog").getByLabel("Type gone to confirm", { exact: true }).fill("gone");
  await page.getByRole("dialog").getByRole("button", { name: "Delete", exact: true }).click();
  await expect(page.getByRole("heading", { level: 1, name: "Devices", exact: true })).toBeVisible();
});
