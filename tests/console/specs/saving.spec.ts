// Input during or after a save, successful or not, is preserved.
import type { Page } from "@playwright/test";
import { expect, logIn, open, test } from "../support/test";
import { Platform } from "../support/platform";

test.use({ hasPlatform: true });

const EMPTY_PROFILE = { configuration: { type: "DEFAULT" }, transportConfiguration: { type: "DEFAULT" }, provisionConfiguration: { type: "DISABLED" }, alarms: [] };

/** Saves and runs an action while the request with this method and path is blocked. */
async function meanwhile(page: Page, method: string, path: string, work: () => Promise<void>, button = "Save"): Promise<void> {
  let release: () => void = () => undefined;
  const held = new Promise<void>((resolve) => { release = resolve; });
  const matches = (url: URL) => url.pathname === path;
  await page.route(matches, async (route) => {
    if (route.request().method() === method) await held;
    await route.fallback();
  });
  const asked = page.waitForRequest((request) => request.method() === method && matches(new URL(request.url())));
  const answered = page.waitForResponse((answer) => answer.request().method() === method && matches(new URL(answer.url())));
  await page.getByRole("button", { name: button, exact: true }).click();
  await asked;
  await work();
  release();
  expect((await answered).ok()).toBe(true);
  await page.unroute(matches);
}

/** The notice appears once. */
async function isSaved(page: Page): Promise<void> {
  const message = page.getByText("Saved and applied.");
  await expect(message).toBeVisible();
  await page.getByRole("button", { name: "Close message", exact: true }).click();
  await expect(message).toBeHidden();
}

/** Checks that leaving asks, and stays. */
async function asksBeforeLeaving(page: Page): Promise<void> {
  await page.getByRole("navigation", { name: "Pages", exact: true }).getByRole("link", { name: "Bans", exact: true }).click();
  const question = page.getByRole("dialog", { name: "Leave without saving?", exact: true });
  await question.getByRole("button", { name: "Cancel", exact: true }).click();
  await expect(question).toBeHidden();
}

async function leaves(page: Page): Promise<void> {
  await open(page, "bans");
  await expect(page.getByRole("heading", { level: 1, name: "Bans", exact: true })).toBeVisible();
}

test("input during a save of a definition is preserved", async ({ console: page, node }) => {
  await node.call("POST", "/api/v1/rules", { id: "typed", sql: 'SELECT topic FROM "a"', actions: [] });
  await node.call("POST", "/api/v1/connectors", { type: "http", name: "hook", config: { url: "http://127.0.0.1:9" } });
  await node.call("POST", "/api/v1/actions", { type: "console", name: "shown" });
  for (const path of ["rules/typed", "actions/console:shown", "connectors/hook"]) {
    const api = `/api/v1/${path}`;
    const stored = () => node.call("GET", api);
    await open(page, path);
    const field = page.getByLabel("Description", { exact: true });
    await field.fill("first");
    await meanwhile(page, "PUT", api.replace(":", "%3A"), () => field.fill("first and second"));
    await isSaved(page);
    expect(await stored()).toMatchObject({ description: "first" });
    await asksBeforeLeaving(page);
    await expect(field).toHaveValue("first and second");
    // No other user has changed it.
    await expect(page.getByText("Your edits are not saved")).toBeHidden();
    await page.getByRole("button", { name: "Save", exact: true }).click();
    await isSaved(page);
    expect(await stored()).toMatchObject({ description: "first and second" });
    await leaves(page);
  }
});

test("access rules edited during a save are preserved", async ({ console: page, node }) => {
  const rules = (...topics: string[]) => ({ rules: topics.map((topic) => ({ permission: "allow", action: "all", topics: [topic] })) });
  await node.call("PUT", "/api/v1/acl", rules("a", "b", "c", "#"));
  await open(page, "access");
  const remove = page.getByRole("button", { name: "Remove rule 1", exact: true });
  await remove.click();
  await meanwhile(page, "PUT", "/api/v1/acl", () => remove.click(), "Apply");
  await expect(page.getByText("Applied, also to connected clients.")).toBeVisible();
  expect(await node.call("GET", "/api/v1/acl")).toMatchObject(rules("b", "c", "#"));
  await asksBeforeLeaving(page);
  await page.getByRole("button", { name: "Apply", exact: true }).click();
  await expect.poll(() => node.call("GET", "/api/v1/acl")).toMatchObject(rules("c", "#"));
  await expect(page.getByRole("button", { name: "Apply", exact: true })).toBeDisabled();
  await leaves(page);
});

test("a profile preserves input during a save", async ({ console: page, node }) => {
  const platform = await Platform.open(node, "Main");
  const profile = (await platform.call("POST", "/api/deviceProfile", { name: "pump", type: "DEFAULT", transportType: "DEFAULT", profileData: EMPTY_PROFILE })) as { id: { id: string } };
  const stored = () => platform.call("GET", `/api/deviceProfile/${profile.id.id}`);
  await open(page, `profiles/${profile.id.id}`);
  await expect(page.getByLabel("Name", { exact: true })).toHaveValue("pump");
  const field = page.getByLabel("Description", { exact: true });
  await field.fill("first");
  await meanwhile(page, "POST", "/api/deviceProfile", () => field.fill("first and second"));
  await expect(page.getByText("Saved. New messages use these settings.", { exact: true })).toBeVisible();
  expect(await stored()).toMatchObject({ description: "first" });
  await asksBeforeLeaving(page);
  await expect(field).toHaveValue("first and second");
  await page.getByRole("button", { name: "Save", exact: true }).click();
  await expect.poll(stored).toMatchObject({ description: "first and second" });
});

test("a widget moved during a save stays there", async ({ console: page, node }) => {
  const platform = await Platform.open(node, "Main");
  const widget = { typeFullFqn: "system.cards.markdown_card", type: "latest", row: 0, col: 0, sizeX: 8, sizeY: 4, config: { title: "Note", datasources: [], settings: { markdownTextPattern: "words" } } };
  const made = (await platform.call("POST", "/api/dashboard", { title: "Moved", configuration: { widgets: { n: widget } } })) as { id: { id: string } };
  const stored = async () => ((await platform.call("GET", `/api/dashboard/${made.id.id}`)) as { configuration: { widgets: { n: { col: number } } } }).configuration.widgets.n.col;
  await open(page, `dashboards/${made.id.id}`);
  await page.getByRole("button", { name: "Edit", exact: true }).click();
  const move = page.getByRole("button", { name: "Move Note", exact: true });
  await move.press("ArrowRight");
  await meanwhile(page, "POST", "/api/dashboard", () => move.press("ArrowRight"));
  await expect(page.getByText("Saved.", { exact: true })).toBeVisible();
  expect(await stored()).toBe(1);
  await asksBeforeLeaving(page);
  await expect(page.getByRole("region", { name: "Note", exact: true })).toHaveCSS("grid-column-start", "3");
  await page.getByRole("button", { name: "Save", exact: true }).click();
  await expect(page.getByRole("button", { name: "Edit", exact: true })).toBeVisible();
  expect(await stored()).toBe(2);
});

test("a node moved during a save keeps place and identity", async ({ console: page, node }) => {
  const platform = await Platform.open(node, "Main");
  const chain = (await platform.call("POST", "/api/ruleChain", { name: "moved", type: "CORE" })) as { id: { id: string } };
  const stored = async () => (((await platform.call("GET", `/api/ruleChain/${chain.id.id}/metadata`)) as { nodes: { id: { id: string }; additionalInfo: { layoutX: number } }[] }).nodes[0]);
  await open(page, `chains/${chain.id.id}`);
  await page.getByRole("combobox", { name: "New node", exact: true }).selectOption({ label: "log" });
  await page.getByRole("button", { name: "Add", exact: true }).click();
  const log = page.getByRole("region", { name: "Graph", exact: true }).getByRole("button", { name: "Node log", exact: true });
  await meanwhile(page, "POST", "/api/ruleChain/metadata", () => log.press("ArrowRight"));
  await expect(page.getByText("Saved. New messages use this version.", { exact: true })).toBeVisible();
  const first = await stored();
  expect(first?.additionalInfo.layoutX).toBe(40);
  await asksBeforeLeaving(page);
  await expect(log).toHaveCSS("left", "60px");
  await page.getByRole("button", { name: "Save", exact: true }).click();
  await expect(page.getByRole("button", { name: "Save", exact: true })).toBeDisabled();
  expect(await stored()).toMatchObject({ id: first?.id, additionalInfo: { layoutX: 60 } });
});

test("a comment that failed is not lost", async ({ page, node }) => {
  await logIn(page, node);
  const platform = await Platform.open(node, "Main");
  const originator = { entityType: "DEVICE", id: await platform.device("boiler") };
  const alarm = (await platform.call("POST", "/api/alarm", { originator, type: "Dry", severity: "MAJOR", details: {} })) as { id: { id: string } };
  await open(page, "alarms");
  await page.getByRole("button", { name: "Show Dry of boiler", exact: true }).click();
  const dialog = page.getByRole("dialog");
  const field = dialog.getByLabel("Comment", { exact: true });
  const path = `/api/alarm/${alarm.id.id}/comment`;
  const matches = (url: URL) => url.pathname === path;
  await page.route(matches, (route) => (route.request().method() === "POST" ? route.fulfill({ status: 500, json: { message: "The disk is full" } }) : route.fallback()));
  await field.fill("filled it up");
  await dialog.getByRole("button", { name: "Add comment", exact: true }).click();
  await expect(dialog.getByRole("alert")).toContainText("The disk is full");
  await expect(field).toHaveValue("filled it up");
  await page.unroute(matches);
  await meanwhile(page, "POST", path, () => field.fill("and looked for the leak"), "Add comment");
  await expect(dialog.getByText("filled it up", { exact: true })).toBeVisible();
  await expect(field).toHaveValue("and looked for the leak");
  await dialog.getByRole("button", { name: "Add comment", exact: true }).click();
  await expect(dialog.getByText("and looked for the leak", { exact: true })).toBeVisible();
  await expect(field).toHaveValue("");
});

test("invalid JSON is never saved as the old value", async ({ console: page, node }) => {
  await node.call("POST", "/api/v1/connectors", { type: "kafka", name: "far", config: { bootstrap_hosts: "127.0.0.1:9" } });
  await node.call("POST", "/api/v1/actions", { type: "kafka", name: "sent", connector: "far", enable: false, parameters: { kafka_topic: "t" } });
  const stored = async () => ((await node.call("GET", "/api/v1/actions/kafka:sent")) as { parameters: { headers?: unknown } }).parameters.headers ?? [];
  const before = await stored();
  await open(page, "actions/kafka:sent");
  const form = page.getByRole("form", { name: "Definition", exact: true });
  const options = form.getByText(/, all with defaults\)$/).first();
  await options.click();
  const field = form.getByLabel("Headers", { exact: true });
  await field.fill('[{"name": "unit", "value": "bar"');
  await field.blur();
  await expect(form.getByRole("alert")).toBeVisible();
  // A collapsed field blocks saving, too.
  await options.click();
  await expect(field).toBeHidden();
  await form.getByRole("button", { name: "Save", exact: true }).click();
  await expect(field).toBeFocused();
  await expect(page.getByText("Saved and applied.")).toBeHidden();
  expect(await stored()).toEqual(before);
  await asksBeforeLeaving(page);
  await field.fill('[{"name": "unit", "value": "bar"}]');
  await form.getByRole("button", { name: "Save", exact: true }).click();
  await expect(page.getByText("Saved and applied.")).toBeVisible();
  expect(await stored()).toMatchObject([{ name: "unit", value: "bar" }]);
  await leaves(page);
});

test("the next attribute or subscription typed is preserved", async ({ console: page, node }) => {
  const platform = await Platform.open(node, "Main");
  const id = await platform.device("typed-on");
  await open(page, `devices/${id}?tab=attributes`);
  const set = page.getByRole("form", { name: "Set attribute", exact: true });
  await set.getByLabel("Key", { exact: true }).fill("first");
  await set.getByLabel("Value", { exact: true }).fill("1");
  await meanwhile(page, "POST", `/api/plugins/telemetry/DEVICE/${id}/attributes/SERVER_SCOPE`, () => set.getByLabel("Key", { exact: true }).fill("second"), "Set");
  await expect(page.getByRole("row", { name: /^first 1/ })).toBeVisible();
  await expect(set.getByLabel("Key", { exact: true })).toHaveValue("second");

  await node.subscriber("typed-on", "typed/first");
  await open(page, "clients/typed-on");
  const filter = page.getByRole("form", { name: "Add subscription", exact: true }).getByLabel("Topic filter", { exact: true });
  await filter.fill("typed/second");
  await meanwhile(page, "POST", "/api/v1/clients/typed-on/subscriptions", () => filter.fill("typed/third"), "Add subscription");
  await expect(page.getByRole("cell", { name: "typed/second", exact: true })).toBeVisible();
  await expect(filter).toHaveValue("typed/third");
});

test("attributes of another scope are hidden while loading", async ({ console: page, node }) => {
  const platform = await Platform.open(node, "Main");
  const id = await platform.device("scoped");
  for (const scope of ["SERVER_SCOPE", "SHARED_SCOPE"]) await platform.call("POST", `/api/plugins/telemetry/DEVICE/${id}/${scope}`, { [scope === "SERVER_SCOPE" ? "room" : "limit"]: "x" });
  let release: () => void = () => undefined;
  const held = new Promise<void>((resolve) => { release = resolve; });
  await page.route(`**/api/plugins/telemetry/DEVICE/${id}/values/attributes/SHARED_SCOPE`, async (route) => {
    await held;
    await route.fallback();
  });
  await open(page, `devices/${id}?tab=attributes`);
  const remove = (key: string) => page.getByRole("button", { name: `Delete ${key}`, exact: true });
  await expect(remove("room")).toBeVisible();
  await page.getByRole("button", { name: "Shared", exact: true }).click();
  await expect(remove("room")).toBeHidden();
  release();
  await expect(remove("limit")).toBeVisible();
});
