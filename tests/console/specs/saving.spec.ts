// What is typed while something is being saved, or was not saved, stays where it was typed.
import type { Page } from "@playwright/test";
import { expect, logIn, open, test } from "../support/test";
import { Platform } from "../support/platform";

test.use({ hasPlatform: true, nodeOf: "saving" });

const EMPTY_PROFILE = { configuration: { type: "DEFAULT" }, transportConfiguration: { type: "DEFAULT" }, provisionConfiguration: { type: "DISABLED" }, alarms: [] };

/** Saves, and does something before the server is asked; what is asked for with this method and address waits for it. */
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

/** It is said once. */
async function isSaved(page: Page): Promise<void> {
  const message = page.getByText("Saved. It is in force.");
  await expect(message).toBeVisible();
  await page.getByRole("button", { name: "Close the message", exact: true }).click();
  await expect(message).toBeHidden();
}

/** Who leaves is asked, and stays. */
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

test("what is typed into a definition while it is saved stays, and is saved with the next one", async ({ console: page, node }) => {
  await node.call("POST", "/api/v1/rules", { id: "typed", sql: 'SELECT topic FROM "a"', actions: [] });
  await node.call("POST", "/api/v1/connectors", { type: "http", name: "hook", config: { url: "http://127.0.0.1:9" } });
  await node.call("POST", "/api/v1/actions", { type: "console", name: "shown" });
  for (const path of ["rules/typed", "actions/console:shown", "connectors/hook"]) {
    const api = `/api/v1/${path}`;
    const kept = () => node.call("GET", api);
    await open(page, path);
    const field = page.getByLabel("Description", { exact: true });
    await field.fill("first");
    await meanwhile(page, "PUT", api.replace(":", "%3A"), () => field.fill("first and second"));
    await isSaved(page);
    expect(await kept()).toMatchObject({ description: "first" });
    await asksBeforeLeaving(page);
    await expect(field).toHaveValue("first and second");
    // Nobody else has changed it.
    await expect(page.getByText("Changed meanwhile")).toBeHidden();
    await page.getByRole("button", { name: "Save", exact: true }).click();
    await isSaved(page);
    expect(await kept()).toMatchObject({ description: "first and second" });
    await leaves(page);
  }
});

test("access rules that are changed while others are put in force stay", async ({ console: page, node }) => {
  const rules = (...topics: string[]) => ({ rules: topics.map((topic) => ({ permission: "allow", action: "all", topics: [topic] })) });
  await node.call("PUT", "/api/v1/acl", rules("a", "b", "c", "#"));
  await open(page, "access");
  const remove = page.getByRole("button", { name: "Remove rule 1", exact: true });
  await remove.click();
  await meanwhile(page, "PUT", "/api/v1/acl", () => remove.click(), "Put in force");
  await expect(page.getByText("In force, also for connected clients.")).toBeVisible();
  expect(await node.call("GET", "/api/v1/acl")).toMatchObject(rules("b", "c", "#"));
  await asksBeforeLeaving(page);
  await page.getByRole("button", { name: "Put in force", exact: true }).click();
  await expect.poll(() => node.call("GET", "/api/v1/acl")).toMatchObject(rules("c", "#"));
  await expect(page.getByRole("button", { name: "Put in force", exact: true })).toBeDisabled();
  await leaves(page);
});

test("a profile keeps what is typed while it is saved", async ({ console: page, node }) => {
  const platform = await Platform.open(node, "Main");
  const profile = (await platform.call("POST", "/api/deviceProfile", { name: "pump", type: "DEFAULT", transportType: "DEFAULT", profileData: EMPTY_PROFILE })) as { id: { id: string } };
  const kept = () => platform.call("GET", `/api/deviceProfile/${profile.id.id}`);
  await open(page, `profiles/${profile.id.id}`);
  await expect(page.getByLabel("Name", { exact: true })).toHaveValue("pump");
  const field = page.getByLabel("Description", { exact: true });
  await field.fill("first");
  await meanwhile(page, "POST", "/api/deviceProfile", () => field.fill("first and second"));
  await expect(page.getByText("Saved. It holds for the next message.", { exact: true })).toBeVisible();
  expect(await kept()).toMatchObject({ description: "first" });
  await asksBeforeLeaving(page);
  await expect(field).toHaveValue("first and second");
  await page.getByRole("button", { name: "Save", exact: true }).click();
  await expect.poll(kept).toMatchObject({ description: "first and second" });
});

test("a widget that is moved while its dashboard is saved stays there", async ({ console: page, node }) => {
  const platform = await Platform.open(node, "Main");
  const widget = { typeFullFqn: "system.cards.markdown_card", type: "latest", row: 0, col: 0, sizeX: 8, sizeY: 4, config: { title: "Note", datasources: [], settings: { markdownTextPattern: "words" } } };
  const made = (await platform.call("POST", "/api/dashboard", { title: "Moved", configuration: { widgets: { n: widget } } })) as { id: { id: string } };
  const kept = async () => ((await platform.call("GET", `/api/dashboard/${made.id.id}`)) as { configuration: { widgets: { n: { col: number } } } }).configuration.widgets.n.col;
  await open(page, `dashboards/${made.id.id}`);
  await page.getByRole("button", { name: "Edit", exact: true }).click();
  const move = page.getByRole("button", { name: "Move Note", exact: true });
  await move.press("ArrowRight");
  await meanwhile(page, "POST", "/api/dashboard", () => move.press("ArrowRight"));
  await expect(page.getByText("Saved.", { exact: true })).toBeVisible();
  expect(await kept()).toBe(1);
  await asksBeforeLeaving(page);
  await expect(page.getByRole("region", { name: "Note", exact: true })).toHaveCSS("grid-column-start", "3");
  await page.getByRole("button", { name: "Save", exact: true }).click();
  await expect(page.getByRole("button", { name: "Edit", exact: true })).toBeVisible();
  expect(await kept()).toBe(2);
});

test("a node that is moved while its chain is saved stays there, and is the same one", async ({ console: page, node }) => {
  const platform = await Platform.open(node, "Main");
  const chain = (await platform.call("POST", "/api/ruleChain", { name: "moved", type: "CORE" })) as { id: { id: string } };
  const kept = async () => (((await platform.call("GET", `/api/ruleChain/${chain.id.id}/metadata`)) as { nodes: { id: { id: string }; additionalInfo: { layoutX: number } }[] }).nodes[0]);
  await open(page, `chains/${chain.id.id}`);
  await page.getByRole("combobox", { name: "Another node", exact: true }).selectOption({ label: "log" });
  await page.getByRole("button", { name: "Add", exact: true }).click();
  const log = page.getByRole("region", { name: "Graph", exact: true }).getByRole("button", { name: "Node log", exact: true });
  await meanwhile(page, "POST", "/api/ruleChain/metadata", () => log.press("ArrowRight"));
  await expect(page.getByText("Saved. The next message goes along it.", { exact: true })).toBeVisible();
  const first = await kept();
  expect(first?.additionalInfo.layoutX).toBe(40);
  await asksBeforeLeaving(page);
  await expect(log).toHaveCSS("left", "60px");
  await page.getByRole("button", { name: "Save", exact: true }).click();
  await expect(page.getByRole("button", { name: "Save", exact: true })).toBeDisabled();
  expect(await kept()).toMatchObject({ id: first?.id, additionalInfo: { layoutX: 60 } });
});

test("a comment that was not taken is still there, and so is what is typed behind one that was", async ({ page, node }) => {
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
  await dialog.getByRole("button", { name: "Say", exact: true }).click();
  await expect(dialog.getByRole("alert")).toContainText("The disk is full");
  await expect(field).toHaveValue("filled it up");
  await page.unroute(matches);
  await meanwhile(page, "POST", path, () => field.fill("and looked for the leak"), "Say");
  await expect(dialog.getByText("filled it up", { exact: true })).toBeVisible();
  await expect(field).toHaveValue("and looked for the leak");
  await dialog.getByRole("button", { name: "Say", exact: true }).click();
  await expect(dialog.getByText("and looked for the leak", { exact: true })).toBeVisible();
  await expect(field).toHaveValue("");
});

test("JSON that is none is not saved as what was there before", async ({ console: page, node }) => {
  await node.call("POST", "/api/v1/connectors", { type: "kafka", name: "far", config: { bootstrap_hosts: "127.0.0.1:9" } });
  await node.call("POST", "/api/v1/actions", { type: "kafka", name: "sent", connector: "far", enable: false, parameters: { kafka_topic: "t" } });
  const kept = async () => ((await node.call("GET", "/api/v1/actions/kafka:sent")) as { parameters: { headers?: unknown } }).parameters.headers ?? [];
  const before = await kept();
  await open(page, "actions/kafka:sent");
  const form = page.getByRole("form", { name: "Definition", exact: true });
  const options = form.getByText(/, all with a default$/).first();
  await options.click();
  const field = form.getByLabel("Headers", { exact: true });
  await field.fill('[{"name": "unit", "value": "bar"');
  await field.blur();
  await expect(form.getByRole("alert")).toBeVisible();
  // It is as much in the way where it is not in sight.
  await options.click();
  await expect(field).toBeHidden();
  await form.getByRole("button", { name: "Save", exact: true }).click();
  await expect(field).toBeFocused();
  await expect(page.getByText("Saved. It is in force.")).toBeHidden();
  expect(await kept()).toEqual(before);
  await asksBeforeLeaving(page);
  await field.fill('[{"name": "unit", "value": "bar"}]');
  await form.getByRole("button", { name: "Save", exact: true }).click();
  await expect(page.getByText("Saved. It is in force.")).toBeVisible();
  expect(await kept()).toMatchObject([{ name: "unit", value: "bar" }]);
  await leaves(page);
});

test("the next attribute or subscription that is typed while one is saved stays", async ({ console: page, node }) => {
  const platform = await Platform.open(node, "Main");
  const id = await platform.device("typed-on");
  await open(page, `devices/${id}?tab=attributes`);
  const set = page.getByRole("form", { name: "Set an attribute", exact: true });
  await set.getByLabel("Key", { exact: true }).fill("first");
  await set.getByLabel("Value", { exact: true }).fill("1");
  await meanwhile(page, "POST", `/api/plugins/telemetry/DEVICE/${id}/attributes/SERVER_SCOPE`, () => set.getByLabel("Key", { exact: true }).fill("second"), "Set");
  await expect(page.getByRole("row", { name: /^first 1/ })).toBeVisible();
  await expect(set.getByLabel("Key", { exact: true })).toHaveValue("second");

  await node.subscriber("typed-on", "typed/first");
  await open(page, "clients/typed-on");
  const filter = page.getByRole("form", { name: "Add a subscription", exact: true }).getByLabel("Topic filter", { exact: true });
  await filter.fill("typed/second");
  await meanwhile(page, "POST", "/api/v1/clients/typed-on/subscriptions", () => filter.fill("typed/third"), "Add the subscription");
  await expect(page.getByRole("cell", { name: "typed/second", exact: true })).toBeVisible();
  await expect(filter).toHaveValue("typed/third");
});

test("attributes of another scope are not shown as those of the one that was chosen", async ({ console: page, node }) => {
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
