// Dashboards: editing, kiosk mode, and import of ThingsBoard's dashboards.
import { readFileSync } from "node:fs";
import type { Page } from "@playwright/test";
import { boxOf } from "../support/reads";
import { expect, open, test } from "../support/test";
import { Platform } from "../support/platform";

test.use({ hasPlatform: true });

async function add(page: Page, kind: string, title: string, device: string, fields: Record<string, string>): Promise<void> {
  await page.getByRole("button", { name: "Add widget…", exact: true }).click();
  const dialog = page.getByRole("dialog");
  await dialog.getByRole("combobox", { name: "Type", exact: true }).selectOption(kind);
  await dialog.getByLabel("Title", { exact: true }).fill(title);
  if (device) await dialog.getByRole("combobox", { name: "Device", exact: true }).selectOption({ label: device });
  for (const [name, value] of Object.entries(fields)) await dialog.getByLabel(name, { exact: true }).fill(value);
  await dialog.getByRole("button", { name: "Add", exact: true }).click();
  await expect(dialog).toBeHidden();
}

test("a dashboard is edited, reloaded and shown in kiosk mode", async ({ console: page, node }) => {
  const platform = await Platform.open(node, "Main");
  await platform.device("furnace");
  expect(await node.publish("v1/devices/me/telemetry", '{"heat": 40}', "-u", "furnace", "-q", "1")).toBe(0);
  await open(page, "dashboards");
  await page.getByRole("button", { name: "New dashboard…", exact: true }).click();
  await page.getByRole("dialog").getByLabel("Title", { exact: true }).fill("Plant");
  await page.getByRole("dialog").getByRole("button", { name: "Create", exact: true }).click();
  await expect(page.getByText("Add the first widget.", { exact: true })).toBeVisible();
  await add(page, "gauge", "Heat", "furnace", { Keys: "heat", Unit: "°C", Minimum: "0", Maximum: "80" });
  await add(page, "value", "Now", "furnace", { Keys: "heat", Unit: "°C" });
  await add(page, "chart", "Course", "furnace", { Keys: "heat" });
  await add(page, "alarms", "Alarms", "", {});
  const value = page.getByRole("region", { name: "Now", exact: true });
  await value.getByRole("button", { name: "Move Now", exact: true }).press("ArrowRight");
  await value.getByRole("button", { name: "Move Now", exact: true }).press("Shift+ArrowRight");
  await expect(value).toHaveCSS("grid-column-start", "2");
  await expect(value).toHaveCSS("grid-column-end", "span 5");
  await page.getByRole("button", { name: "Save", exact: true }).click();
  await expect(page.getByRole("button", { name: "Edit", exact: true })).toBeVisible();
  await page.reload();
  const gauge = page.getByRole("meter", { name: "heat", exact: true });
  await expect(gauge).toHaveAttribute("aria-valuenow", "40");
  await expect(value).toHaveCSS("grid-column-start", "2");
  expect(await node.publish("v1/devices/me/telemetry", '{"heat": 55}', "-u", "furnace", "-q", "1")).toBe(0);
  await expect(gauge).toHaveAttribute("aria-valuenow", "55");
  await expect(value.getByText("55°C", { exact: true })).toBeVisible();
  await expect(page.getByRole("region", { name: "Course", exact: true }).getByRole("listitem").first()).toContainText("heat 55");
  await page.getByRole("button", { name: "Kiosk", exact: true }).click();
  await expect(page.getByRole("navigation", { name: "Pages", exact: true })).toBeHidden();
  await expect(gauge).toBeVisible();
  await expect(page.getByText(/^Your login expires at .+\.$/)).toBeVisible();
  await page.getByRole("button", { name: "Create screen…", exact: true }).click();
  await expect(page.getByRole("dialog", { name: "Create a screen", exact: true })).toBeVisible();
  await page.keyboard.press("Escape");
  await expect(page.getByRole("dialog")).toHaveCount(0);
  await expect(page.getByRole("navigation", { name: "Pages", exact: true })).toBeHidden();
  await page.getByRole("button", { name: "Exit", exact: true }).click();
  await expect(page.getByRole("navigation", { name: "Pages", exact: true })).toBeVisible();
});

test("unknown parts of an imported dashboard are preserved", async ({ console: page, node }) => {
  const platform = await Platform.open(node, "Main");
  const id = await platform.device("silo");
  const alias = { id: "a1", alias: "Silo", filter: { type: "singleEntity", resolveMultiple: false, singleEntity: { entityType: "DEVICE", id } } };
  const place = (row: number) => ({ sizeX: 8, sizeY: 4, row, col: 0 });
  const configuration = {
    description: "kept",
    entityAliases: { a1: alias },
    widgets: {
      w1: { typeFullFqn: "system.cards.value_card", type: "latest", id: "w1", config: { title: "Level", datasources: [{ type: "entity", entityAliasId: "a1", dataKeys: [{ name: "level", type: "timeseries", label: "Level", decimals: 1 }] }], settings: { autoScale: true } } },
      w2: { typeFullFqn: "system.maps.map", type: "latest", id: "w2", config: { title: "Map", settings: { provider: "x" } } },
    },
    states: { default: { name: "default", root: true, layouts: { main: { widgets: { w1: place(0), w2: place(4) }, gridSettings: { columns: 24 } } } } },
  };
  await node.publish("v1/devices/me/telemetry", '{"level": 7}', "-u", "silo", "-q", "1");
  await open(page, "dashboards");
  const [chooser] = await Promise.all([page.waitForEvent("filechooser"), page.getByRole("button", { name: "Import…", exact: true }).click()]);
  await chooser.setFiles({ name: "silo.json", mimeType: "application/json", buffer: Buffer.from(JSON.stringify({ title: "Silo", configuration })) });
  const notice = page.getByRole("dialog", { name: "Silo was imported", exact: true });
  await expect(notice.getByText(/widget type not supported: system\.maps\.map\.$/)).toBeVisible();
  await notice.getByRole("link", { name: "Open", exact: true }).click();
  await expect(page.getByRole("heading", { level: 1, name: "Silo", exact: true })).toBeVisible();
  await expect(page.getByRole("region", { name: "Level", exact: true }).getByText("7", { exact: true })).toBeVisible();
  await expect(page.getByText("Widget type system.maps.map is not supported.")).toBeVisible();
  await page.getByRole("button", { name: "Edit", exact: true }).click();
  await page.getByRole("button", { name: "Edit Level", exact: true }).click();
  await page.getByRole("dialog").getByLabel("Title", { exact: true }).fill("Height");
  await page.getByRole("dialog").getByRole("button", { name: "Save", exact: true }).click();
  await page.getByRole("button", { name: "Save", exact: true }).click();
  await expect(page.getByRole("button", { name: "Edit", exact: true })).toBeVisible();
  await open(page, "dashboards");
  const [file] = await Promise.all([page.waitForEvent("download"), page.getByRole("button", { name: "Export Silo", exact: true }).click()]);
  const stored = JSON.parse(readFileSync(await file.path(), "utf8")) as { configuration: typeof configuration };
  expect(stored.configuration.description).toBe("kept");
  expect(stored.configuration.widgets.w2).toEqual(configuration.widgets.w2);
  expect(stored.configuration.widgets.w1.typeFullFqn).toBe("system.cards.value_card");
  expect(stored.configuration.widgets.w1.config.title).toBe("Height");
  expect(stored.configuration.widgets.w1.config.settings.autoScale).toBe(true);
  expect(stored.configuration.widgets.w1.config.datasources[0]?.dataKeys[0]?.decimals).toBe(1);
  await page.getByRole("button", { name: "Delete Silo", exact: true }).click();
  await page.getByRole("dialog").getByLabel("Type Silo to confirm", { exact: true }).fill("Silo");
  await page.getByRole("dialog").getByRole("button", { name: "Delete", exact: true }).click();
  await expect(page.getByRole("link", { name: "Silo", exact: true })).toBeHidden();
});

test("charts and alarms show several devices", async ({ console: page, node }) => {
  const platform = await Platform.open(node, "Main");
  const ids = [await platform.device("north"), await platform.device("south")];
  for (const [name, wind] of [["north", 3], ["south", 9]] as const) expect(await node.publish("v1/devices/me/telemetry", JSON.stringify({ wind }), "-u", name, "-q", "1")).toBe(0);
  await platform.call("POST", "/api/alarm", { originator: { entityType: "DEVICE", id: ids[1] }, type: "Gale", severity: "MAJOR" });
  const source = { type: "entity", entityAliasId: "both", dataKeys: [{ name: "wind", type: "timeseries" }] };
  const widget = (typeFullFqn: string, type: string, title: string, row: number) => ({ typeFullFqn, type, row, col: 0, sizeX: 24, sizeY: 6, config: { title, datasources: [source] } });
  const configuration = {
    entityAliases: { both: { id: "both", alias: "Both", filter: { type: "entityList", resolveMultiple: true, entityType: "DEVICE", entityList: ids } } },
    widgets: { c: widget("system.time_series_chart", "timeseries", "Wind", 0), a: widget("system.alarm_widgets.alarms_table", "alarm", "Warnings", 6) },
    timewindow: { realtime: { timewindowMs: 300_000 } },
  };
  const made = (await platform.call("POST", "/api/dashboard", { title: "Weather", configuration })) as { id: { id: string } };
  await open(page, `dashboards/${made.id.id}`);
  const chart = page.getByRole("region", { name: "Wind", exact: true });
  await expect(chart.getByRole("listitem").filter({ hasText: "north wind" })).toContainText("3");
  await expect(chart.getByRole("listitem").filter({ hasText: "south wind" })).toContainText("9");
  await expect(page.getByRole("region", { name: "Warnings", exact: true }).getByRole("button", { name: "Show Gale of south", exact: true })).toBeVisible();
  await page.getByRole("button", { name: "Edit", exact: true }).click();
  for (const [before, after] of [["Wind", "Winds"], ["Warnings", "Gales"]] as const) {
    await page.getByRole("button", { name: `Edit ${before}`, exact: true }).click();
    await page.getByRole("dialog").getByLabel("Title", { exact: true }).fill(after);
    await page.getByRole("dialog").getByRole("button", { name: "Save", exact: true }).click();
  }
  await page.getByRole("button", { name: "Save", exact: true }).click();
  await expect(page.getByRole("button", { name: "Edit", exact: true })).toBeVisible();
  const stored = (await platform.call("GET", `/api/dashboard/${made.id.id}`)) as { configuration: typeof configuration };
  expect([stored.configuration.widgets.c.config.datasources[0], stored.configuration.widgets.a.config.datasources[0]?.entityAliasId]).toEqual([source, "both"]);
});

test("a dashboard changed by another user is not overwritten", async ({ console: page, node }) => {
  const platform = await Platform.open(node, "Main");
  const made = (await platform.call("POST", "/api/dashboard", { title: "Shared", configuration: {} })) as { id: { id: string } };
  await open(page, `dashboards/${made.id.id}`);
  await page.getByRole("button", { name: "Edit", exact: true }).click();
  await platform.call("POST", "/api/dashboard", { ...made, configuration: { description: "first" } });
  await page.getByRole("button", { name: "Save", exact: true }).click();
  const close = page.getByRole("button", { name: "Close message", exact: true });
  await expect(close).toBeVisible();
  await expect(page.getByRole("button", { name: "Save", exact: true })).toBeVisible();
  await close.click();
  await expect(close).toBeHidden();
});

test("widgets are dragged and resized by mouse", async ({ console: page, node }) => {
  const platform = await Platform.open(node, "Main");
  const id = await platform.device("kiln");
  await node.publish("v1/devices/me/telemetry", '{"heat": 7.25}', "-u", "kiln", "-q", "1");
  const source = { type: "entity", entityAliasId: "a", dataKeys: [] };
  const text = (title: string, row: number) => ({ typeFullFqn: "system.cards.markdown_card", type: "latest", row, col: 0, sizeX: 8, sizeY: 4, config: { title, datasources: [source], settings: { markdownTextPattern: `# ${title}\n\nIt has **\${heat:1} °C**.\n\n- one\n- two <b>bold</b>\n\n[a page](https://example.com) [a trap](javascript:alert(1))` } } });
  const configuration = {
    entityAliases: { a: { id: "a", alias: "Kiln", filter: { type: "singleEntity", singleEntity: { entityType: "DEVICE", id } } } },
    widgets: { u: text("Upper", 0), l: text("Lower", 4) },
  };
  const made = (await platform.call("POST", "/api/dashboard", { title: "Texts", configuration })) as { id: { id: string } };
  await open(page, `dashboards/${made.id.id}`);
  const [upper, lower] = [page.getByRole("region", { name: "Upper", exact: true }), page.getByRole("region", { name: "Lower", exact: true })];
  await expect(upper.getByText("7.3 °C", { exact: true })).toHaveCSS("font-weight", "700");
  await expect(upper.getByRole("listitem").nth(1)).toHaveText("two <b>bold</b>");
  await expect(upper.getByRole("link")).toHaveCount(1);
  await page.getByRole("button", { name: "Edit", exact: true }).click();
  const column = (await boxOf(page.locator(".grid"))).width / 24;
  const drag = async (from: { x: number; y: number }, dx: number, dy: number) => {
    await page.mouse.move(from.x, from.y);
    await page.mouse.down();
    for (let step = 1; step <= 5; step += 1) await page.mouse.move(from.x + (dx * step) / 5, from.y + (dy * step) / 5);
    await page.mouse.up();
  };
  const middle = async (of: typeof upper) => {
    const box = await boxOf(of);
    return { x: box.x + box.width / 2, y: box.y + box.height / 2 };
  };
  await drag(await middle(upper.getByRole("button", { name: "Move Upper", exact: true })), 4 * column, 2 * 60);
  await expect(upper).toHaveCSS("grid-column-start", "5");
  await expect(upper).toHaveCSS("grid-row-start", "3");
  await expect(lower).toHaveCSS("grid-row-start", "7");
  await expect(lower).toHaveCSS("grid-column-start", "1");
  await drag(await middle(upper.locator(".corner")), 3 * column, 60);
  await expect(upper).toHaveCSS("grid-column-end", "span 11");
  await expect(upper).toHaveCSS("grid-row-end", "span 5");
  await expect(lower).toHaveCSS("grid-row-start", "8");
  await page.getByRole("button", { name: "Save", exact: true }).click();
  await expect(page.getByRole("button", { name: "Edit", exact: true })).toBeVisible();
  const stored = (await platform.call("GET", `/api/dashboard/${made.id.id}`)) as { configuration: { widgets: Record<string, { row: number; col: number; sizeX: number; sizeY: number }> } };
  expect(stored.configuration.widgets["u"]).toMatchObject({ row: 2, col: 4, sizeX: 11, sizeY: 5 });
});

test("a map shows the positions of devices", async ({ console: page, node }) => {
  const platform = await Platform.open(node, "Main");
  const ids = [await platform.device("oslo"), await platform.device("rome"), await platform.device("nowhere")];
  for (const [name, latitude, longitude] of [["oslo", 59.91, 10.75], ["rome", 41.9, 12.5]] as const) expect(await node.publish("v1/devices/me/telemetry", JSON.stringify({ latitude, longitude }), "-u", name, "-q", "1")).toBe(0);
  const configuration = {
    entityAliases: { all: { id: "all", alias: "All", filter: { type: "entityList", resolveMultiple: true, entityType: "DEVICE", entityList: ids } } },
    widgets: { m: { typeFullFqn: "system.maps_v2.openstreetmap", type: "latest", row: 0, col: 0, sizeX: 12, sizeY: 8, config: { title: "Where", datasources: [{ type: "entity", entityAliasId: "all", dataKeys: [] }], settings: {} } } },
  };
  const made = (await platform.call("POST", "/api/dashboard", { title: "Europe", configuration })) as { id: { id: string } };
  await open(page, `dashboards/${made.id.id}`);
  const map = page.getByRole("region", { name: "Map Where", exact: true });
  const [oslo, rome] = [map.getByRole("link", { name: "oslo", exact: true }), map.getByRole("link", { name: "rome", exact: true })];
  await expect(oslo).toBeVisible();
  await expect(rome).toBeVisible();
  await expect(map.getByRole("link")).toHaveCount(2);
  const top = async (of: typeof oslo) => (await boxOf(of)).y;
  const apart = (await top(rome)) - (await top(oslo));
  expect(apart).toBeGreaterThan(50);
  await expect(map.getByText(/^\d+ km$/)).toBeVisible();
  await map.press("+");
  await expect.poll(async () => (await top(rome)) - (await top(oslo))).toBeGreaterThan(apart * 1.4);
  await map.getByRole("button", { name: "Show all", exact: true }).click();
  await oslo.click();
  await expect(page.getByRole("heading", { level: 1, name: "oslo", exact: true })).toBeVisible();
});
