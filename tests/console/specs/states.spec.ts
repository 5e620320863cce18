// Dashboards with several states, and the time windows of charts.
import { expect, open, test } from "../support/test";
import { Platform } from "../support/platform";

test.use({ hasPlatform: true });

const place = (row: number) => ({ sizeX: 12, sizeY: 5, row, col: 0 });
const HOUR_MS = 3_600_000;

test("states of an imported dashboard are shown and preserved", async ({ console: page, node }) => {
  const platform = await Platform.open(node, "Main");
  const [north, south] = [await platform.device("north-mill"), await platform.device("south-mill")];
  const now = Date.now();
  for (const [id, speed] of [[north, 3], [south, 9]] as const) {
    // One and a half hours ago, and now.
    await platform.call("POST", `/api/plugins/telemetry/DEVICE/${id}/timeseries/ANY`, [{ ts: now - 1.5 * HOUR_MS, values: { speed: speed + 100 } }, { ts: now - 5_000, values: { speed } }]);
  }
  const source = (entityAliasId: string) => [{ type: "entity", entityAliasId, dataKeys: [{ name: "speed", type: "timeseries" }] }];
  const leads = { headerButton: [{ id: "1", name: "Details", icon: "more", type: "openDashboardState", targetDashboardStateId: "detail", setEntityId: true, stateEntityParamName: null }] };
  const chart = (title: string, alias: string, more: object) => ({ typeFullFqn: "system.time_series_chart", type: "timeseries", config: { title, datasources: source(alias), ...more } });
  const configuration = {
    entityAliases: {
      s: { id: "s", alias: "South", filter: { type: "singleEntity", resolveMultiple: false, singleEntity: { entityType: "DEVICE", id: south } } },
      e: { id: "e", alias: "Whichever", filter: { type: "stateEntity", resolveMultiple: false, stateEntityParamName: null, defaultStateEntity: { entityType: "DEVICE", id: north } } },
    },
    widgets: {
      v: { typeFullFqn: "system.cards.value_card", type: "latest", config: { title: "South", datasources: source("s"), actions: leads } },
      d: { typeFullFqn: "system.cards.value_card", type: "latest", config: { title: "Speed", datasources: source("e") } },
      own: chart("Last two hours", "e", { useDashboardTimewindow: false, timewindow: { selectedTab: 0, realtime: { interval: 1000, timewindowMs: 2 * HOUR_MS }, aggregation: { type: "MAX", limit: 500 } } }),
      past: chart("Then", "e", { useDashboardTimewindow: false, timewindow: { selectedTab: 1, history: { historyType: 1, fixedTimewindow: { startTimeMs: now - 2 * HOUR_MS, endTimeMs: now - HOUR_MS } }, aggregation: { type: "NONE", limit: 500 } } }),
      all: chart("Now", "e", { useDashboardTimewindow: true }),
    },
    states: {
      detail: { name: "Detail", root: false, layouts: { main: { widgets: { d: place(0), own: place(5), past: place(10) }, gridSettings: { columns: 24 } }, right: { widgets: { all: place(20) }, gridSettings: { columns: 24 } } } },
      default: { name: "Overview", root: true, layouts: { main: { widgets: { v: place(0) }, gridSettings: { columns: 24 } } } },
    },
    timewindow: { selectedTab: 0, realtime: { timewindowMs: 600_000 } },
  };
  const made = (await platform.call("POST", "/api/dashboard", { title: "Mills", configuration })) as { id: { id: string } };
  await open(page, `dashboards/${made.id.id}`);
  const widget = (title: string) => page.getByRole("region", { name: title, exact: true });
  const states = page.getByRole("navigation", { name: "States", exact: true });
  await expect(states.getByRole("link")).toHaveText(["Overview", "Detail"]);
  await expect(widget("South").getByText("9", { exact: true })).toBeVisible();
  await expect(widget("Speed")).toBeHidden();
  // The state has a default entity, and the button selects another.
  await states.getByRole("link", { name: "Detail", exact: true }).click();
  await expect(widget("Speed").getByText("3", { exact: true })).toBeVisible();
  await expect(widget("South")).toBeHidden();
  await states.getByRole("link", { name: "Overview", exact: true }).click();
  await widget("South").getByRole("button", { name: "Details", exact: true }).click();
  await expect(widget("Speed").getByText("9", { exact: true })).toBeVisible();
  await expect(states.getByRole("link", { name: "Detail", exact: true })).toHaveAttribute("aria-current", "page");
  await page.reload();
  await expect(widget("Speed").getByText("9", { exact: true })).toBeVisible();
  // The legend shows the latest value in the time window.
  await expect(widget("Then").getByRole("listitem").first()).toHaveText(/speed 109/);
  await expect(widget("Now").getByRole("listitem").first()).toHaveText(/speed 9/);
  await expect(widget("Last two hours").getByRole("listitem").first()).toHaveText(/speed 9/);

  await page.getByRole("button", { name: "Edit", exact: true }).click();
  await page.getByRole("button", { name: "Edit Speed", exact: true }).click();
  await page.getByRole("dialog").getByLabel("Title", { exact: true }).fill("Turns");
  await page.getByRole("dialog").getByRole("button", { name: "Save", exact: true }).click();
  await page.getByRole("button", { name: "Edit Last two hours", exact: true }).click();
  const time = page.getByRole("dialog").getByRole("combobox", { name: "Time range", exact: true });
  await expect(time.getByRole("option", { selected: true })).toHaveText("2 h");
  await page.getByRole("dialog").getByLabel("Title", { exact: true }).fill("Two hours");
  await page.getByRole("dialog").getByRole("button", { name: "Save", exact: true }).click();
  await page.getByRole("button", { name: "Save", exact: true }).click();
  await expect(page.getByRole("button", { name: "Edit", exact: true })).toBeVisible();
  await expect(widget("Turns").getByText("9", { exact: true })).toBeVisible();
  type Stored = { configuration: typeof configuration };
  const stored = ((await platform.call("GET", `/api/dashboard/${made.id.id}`)) as Stored).configuration;
  expect(stored.states).toEqual(configuration.states);
  expect(stored.entityAliases).toEqual(configuration.entityAliases);
  expect(stored.widgets.v).toEqual(configuration.widgets.v);
  expect(stored.widgets.past).toEqual(configuration.widgets.past);
  expect(stored.widgets.own.config).toMatchObject({ ...configuration.widgets.own.config, title: "Two hours" });
  expect(stored.timewindow).toEqual(configuration.timewindow);
});

test("a state with its own chart is added, renamed and removed", async ({ console: page, node }) => {
  const platform = await Platform.open(node, "Main");
  const id = await platform.device("lathe");
  const now = Date.now();
  await platform.call("POST", `/api/plugins/telemetry/DEVICE/${id}/timeseries/ANY`, [{ ts: now - 10 * HOUR_MS, values: { load: 55 } }]);
  await open(page, "dashboards");
  await page.getByRole("button", { name: "New dashboard…", exact: true }).click();
  const dialog = page.getByRole("dialog");
  await dialog.getByLabel("Title", { exact: true }).fill("Shop");
  await dialog.getByRole("button", { name: "Create", exact: true }).click();
  await page.getByRole("button", { name: "Add state…", exact: true }).click();
  await dialog.getByLabel("Name", { exact: true }).fill("Night shift");
  await dialog.getByRole("button", { name: "Add", exact: true }).click();
  const states = page.getByRole("navigation", { name: "States", exact: true });
  await expect(states.getByRole("link", { name: "Night shift", exact: true })).toHaveAttribute("aria-current", "page");
  const add = async (title: string, time: string) => {
    await page.getByRole("button", { name: "Add widget…", exact: true }).click();
    await dialog.getByLabel("Title", { exact: true }).fill(title);
    await dialog.getByRole("combobox", { name: "Device", exact: true }).selectOption({ label: "lathe" });
    await dialog.getByRole("button", { name: "Key load", exact: true }).click();
    await dialog.getByRole("combobox", { name: "Time range", exact: true }).selectOption({ label: time });
    await dialog.getByRole("button", { name: "Add", exact: true }).click();
    await expect(dialog).toBeHidden();
  };
  await add("Own", "24 h");
  await add("Common", "same as the dashboard");
  const line = (title: string) => page.getByRole("region", { name: title, exact: true }).getByRole("listitem").first();
  await expect(line("Own")).toHaveText(/load 55/);
  await expect(line("Common")).not.toHaveText(/load 55/);
  // A time chosen in edit mode is saved.
  await page.getByRole("combobox", { name: "Time", exact: true }).selectOption({ label: "24 h" });
  await expect(line("Common")).toHaveText(/load 55/);
  await page.getByRole("button", { name: "Save", exact: true }).click();
  await expect(page.getByRole("button", { name: "Edit", exact: true })).toBeVisible();
  await page.reload();
  await expect(line("Common")).toHaveText(/load 55/);
  // A time chosen while viewing is not saved, and does not affect widgets with their own time.
  await page.getByRole("combobox", { name: "Time", exact: true }).selectOption({ label: "15 min" });
  await expect(line("Common")).not.toHaveText(/load 55/);
  await expect(line("Own")).toHaveText(/load 55/);
  await page.reload();
  await expect(line("Common")).toHaveText(/load 55/);

  await page.getByRole("button", { name: "Edit", exact: true }).click();
  await page.getByRole("button", { name: "Rename state…", exact: true }).click();
  await dialog.getByLabel("Name", { exact: true }).fill("Night");
  await dialog.getByRole("button", { name: "Rename", exact: true }).click();
  await expect(states.getByRole("link")).toHaveText(["Shop", "Night"]);
  await page.getByRole("button", { name: "Remove state…", exact: true }).click();
  await expect(dialog.getByText("Its widgets (2) are removed")).toBeVisible();
  await dialog.getByRole("button", { name: "Remove", exact: true }).click();
  await expect(states.getByRole("link")).toHaveText(["Shop"]);
  await page.getByRole("button", { name: "Save", exact: true }).click();
  await expect(page.getByRole("button", { name: "Edit", exact: true })).toBeVisible();
  const found = (await platform.call("GET", "/api/tenant/dashboards?page=0&pageSize=100")) as { data: { title: string; id: { id: string } }[] };
  const stored = (await platform.call("GET", `/api/dashboard/${found.data.find((one) => one.title === "Shop")?.id.id}`)) as { configuration: { widgets: object; states: object } };
  expect([Object.keys(stored.configuration.widgets), Object.keys(stored.configuration.states)]).toEqual([[], ["default"]]);
});
