// Forms: errors appear next to the input, and unsaved input is protected.
import type { Page } from "@playwright/test";
import { drawn, isAccessible, textOf, valueOf } from "../support/reads";
import { seconds } from "../support/slow";
import { expect, open, test } from "../support/test";
import { Platform } from "../support/platform";

test.use({ hasPlatform: true });

test("an error in a dialog is shown in the dialog", async ({ console: page, node }) => {
  await node.call("POST", "/api/v1/users", { name: "taken", password: "a long password" });
  await open(page, "users");
  await page.getByRole("button", { name: "New user…", exact: true }).click();
  const dialog = page.getByRole("dialog");
  await dialog.getByLabel("Name", { exact: true }).fill("taken");
  await dialog.getByLabel("Password", { exact: true }).fill("another password");
  await dialog.getByRole("button", { name: "Add", exact: true }).click();
  const problem = dialog.getByRole("alert");
  await expect(problem).toContainText("a user with this name already exists");
  // The error is visible without scrolling, also on a phone, and only in the dialog.
  await page.setViewportSize({ width: 360, height: 400 });
  await expect(problem).toBeInViewport();
  await expect(page.getByText(await textOf(problem), { exact: true })).toHaveCount(1);
  await isAccessible(page, "a problem in a dialog");
  await dialog.getByLabel("Name", { exact: true }).fill("free");
  await dialog.getByRole("button", { name: "Add", exact: true }).click();
  await expect(dialog).toBeHidden();
  await expect(page.getByRole("row", { name: /free/ })).toBeVisible();
  // The next dialog opens without the error.
  await page.getByRole("button", { name: "New user…", exact: true }).click();
  await expect(dialog).toBeVisible();
  await expect(problem).toBeHidden();
});

/** Checks that leaving asks, and that staying preserves the input. */
async function asks(page: Page, typed: () => Promise<void>): Promise<void> {
  const before = page.url();
  const question = page.getByRole("dialog", { name: "Leave without saving?", exact: true });
  await page.getByRole("navigation", { name: "Pages", exact: true }).getByRole("link", { name: "Bans", exact: true }).click();
  await question.getByRole("button", { name: "Cancel", exact: true }).click();
  await expect(question).toBeHidden();
  await expect(page).toHaveURL(before);
  await typed();
  // The browser asks before a reload or before the tab closes.
  const leaving = page.waitForEvent("dialog");
  const reload = page.evaluate(() => location.reload());
  const asked = await leaving;
  expect(asked.type()).toBe("beforeunload");
  await asked.dismiss();
  await reload;
  await typed();
  await page.getByRole("navigation", { name: "Pages", exact: true }).getByRole("link", { name: "Bans", exact: true }).click();
  await question.getByRole("button", { name: "Leave", exact: true }).click();
  await expect(page.getByRole("heading", { level: 1, name: "Bans", exact: true })).toBeVisible();
  await page.goBack();
  await expect(page).toHaveURL(before);
}

test("leaving unsaved integration settings asks first", async ({ console: page, node }) => {
  test.setTimeout(seconds(90));
  await node.call("POST", "/api/v1/rules", { id: "kept", sql: 'SELECT topic FROM "a"', actions: [] });
  await node.call("POST", "/api/v1/connectors", { type: "http", name: "hook", config: { url: "http://127.0.0.1:9" } });
  await node.call("POST", "/api/v1/actions", { type: "console", name: "shown" });
  for (const path of ["rules/kept", "rules/new", "actions/console:shown", "actions/new", "connectors/hook", "connectors/new", "sources/new"]) {
    await open(page, path);
    const field = page.getByLabel("Description", { exact: true });
    await field.fill("mine");
    await asks(page, () => expect(field).toHaveValue("mine"));
  }
  await open(page, "access");
  await page.getByRole("button", { name: "Add rule…", exact: true }).click();
  await page.getByRole("dialog").getByLabel("Topic filters (one per line)", { exact: true }).fill("a/#");
  await page.getByRole("dialog").getByRole("button", { name: "Add", exact: true }).click();
  const undo = page.getByRole("button", { name: "Discard changes", exact: true });
  await asks(page, () => expect(undo).toBeEnabled());
});

test("leaving or discarding unsaved platform edits asks first", async ({ console: page, node }) => {
  test.setTimeout(seconds(90));
  const platform = await Platform.open(node, "Main");
  const profileData = { configuration: { type: "DEFAULT" }, transportConfiguration: { type: "DEFAULT" }, provisionConfiguration: { type: "DISABLED" }, alarms: [] };
  const profile = (await platform.call("POST", "/api/deviceProfile", { name: "pump", type: "DEFAULT", transportType: "DEFAULT", profileData })) as { id: { id: string } };
  await open(page, `profiles/${profile.id.id}`);
  const description = page.getByLabel("Description", { exact: true });
  await expect(page.getByLabel("Name", { exact: true })).toHaveValue("pump");
  await description.fill("mine");
  // Making the profile the default does not change the input.
  await page.getByRole("button", { name: "Make default", exact: true }).click();
  await expect(page.getByText("default", { exact: true })).toBeVisible();
  await expect(description).toHaveValue("mine");
  await asks(page, () => expect(description).toHaveValue("mine"));
  await description.fill("kept");
  await page.getByRole("button", { name: "Save", exact: true }).click();
  await expect(page.getByText("Saved. New messages use these settings.", { exact: true })).toBeVisible();

  const chain = (await platform.call("POST", "/api/ruleChain", { name: "unsaved", type: "CORE" })) as { id: { id: string } };
  const undo = page.getByRole("button", { name: "Discard changes", exact: true });
  const question = page.getByRole("dialog", { name: "Discard changes?", exact: true });
  // The saved profile does not ask.
  await open(page, `chains/${chain.id.id}`);
  await page.getByRole("combobox", { name: "New node", exact: true }).selectOption({ label: "log" });
  await page.getByRole("button", { name: "Add", exact: true }).click();
  await undo.click();
  await question.getByRole("button", { name: "Cancel", exact: true }).click();
  await asks(page, () => expect(undo).toBeEnabled());

  const dashboard = (await platform.call("POST", "/api/dashboard", { title: "Unsaved" })) as { id: { id: string } };
  await open(page, `dashboards/${dashboard.id.id}`);
  await page.getByRole("button", { name: "Edit", exact: true }).click();
  await page.getByRole("button", { name: "Add widget…", exact: true }).click();
  const form = page.getByRole("dialog");
  await form.getByRole("combobox", { name: "Type", exact: true }).selectOption("text");
  await form.getByLabel("Title", { exact: true }).fill("Mine");
  await form.getByLabel("Text (Markdown)", { exact: true }).fill("words");
  await form.getByRole("button", { name: "Add", exact: true }).click();
  const widget = page.getByRole("heading", { name: "Mine", exact: true });
  await undo.click();
  await question.getByRole("button", { name: "Cancel", exact: true }).click();
  await asks(page, () => expect(widget).toBeVisible());
  await page.getByRole("button", { name: "Edit", exact: true }).click();
  await undo.click();
  // Nothing was changed.
  await expect(page.getByRole("button", { name: "Edit", exact: true })).toBeVisible();
});

test("leaving without unsaved input does not ask", async ({ console: page, node }) => {
  const platform = await Platform.open(node, "Main");
  const chains = (await platform.call("GET", "/api/ruleChains?page=0&pageSize=10")) as { data: { id: { id: string } }[] };
  for (const path of ["rules/new", "actions/new", "connectors/new", "sources/new", "profiles/new", "access", `chains/${chains.data[0]?.id.id}`]) {
    await open(page, path);
    await drawn(page);
    await expect(page.getByRole("heading", { level: 1 })).toBeVisible();
    await open(page, "bans");
    await expect(page.getByRole("heading", { level: 1, name: "Bans", exact: true })).toBeVisible();
  }
  await open(page, "connectors/new");
  await page.getByRole("combobox", { name: "Type", exact: true }).selectOption("http");
  await page.getByLabel("Name", { exact: true }).fill("saved");
  await page.getByLabel("URL", { exact: true }).fill("http://127.0.0.1:9");
  await page.getByRole("button", { name: "Add", exact: true }).click();
  await expect(page.getByRole("heading", { level: 1, name: "saved", exact: true })).toBeVisible();
  await open(page, "bans");
  await expect(page.getByRole("heading", { level: 1, name: "Bans", exact: true })).toBeVisible();
});

test("selecting another type or connector counts as input", async ({ console: page, node }) => {
  for (const name of ["one", "two"]) await node.call("POST", "/api/v1/connectors", { type: "mqtt", name, config: { server: "127.0.0.1:9", client_id: name } });
  const question = page.getByRole("dialog", { name: "Leave without saving?", exact: true });
  const bans = page.getByRole("navigation", { name: "Pages", exact: true }).getByRole("link", { name: "Bans", exact: true });
  for (const [path, label, others] of [["connectors/new", "Type", ["redis"]], ["actions/new", "Type", ["mqtt"]], ["sources/new", "Connector", ["two"]]] as const) {
    await open(page, path);
    const choice = page.getByRole("combobox", { name: label, exact: true });
    if (path === "sources/new") await page.getByRole("combobox", { name: "Type", exact: true }).selectOption("mqtt");
    await drawn(page);
    const before = await valueOf(choice);
    for (const other of others) await choice.selectOption(other);
    await bans.click();
    await question.getByRole("button", { name: "Cancel", exact: true }).click();
    await expect(choice).toHaveValue(others[0]);
    if (path === "sources/new") {
      await bans.click();
      await question.getByRole("button", { name: "Leave", exact: true }).click();
    } else {
      await choice.selectOption(before);
      await bans.click();
    }
    await expect(page.getByRole("heading", { level: 1, name: "Bans", exact: true })).toBeVisible();
  }
});

test("cancelling a back navigation preserves the history", async ({ console: page }) => {
  const question = page.getByRole("dialog", { name: "Leave without saving?", exact: true });
  const field = page.getByLabel("Description", { exact: true });
  const hash = () => page.evaluate(() => location.hash);
  for (const path of ["clients", "topics", "rules/new", "bans"]) {
    await open(page, path);
    await expect(page.getByRole("heading", { level: 1 })).toBeVisible();
  }
  await page.goBack();
  await field.fill("mine");
  const length = () => page.evaluate(() => history.length);
  const before = await length();
  for (const go of [-1, -2, 1]) {
    await page.evaluate((by) => { history.go(by); }, go);
    await question.getByRole("button", { name: "Cancel", exact: true }).click();
    await expect.poll(hash).toBe("#/rules/new");
    await expect(field).toHaveValue("mine");
  }
  await expect.poll(length).toBe(before);
  // The later page is still in the history, and so are the earlier ones.
  for (const [by, to] of [[1, "#/bans"], [-1, "#/rules/new"], [-1, "#/topics"], [-1, "#/clients"], [2, "#/rules/new"]] as const) {
    await page.evaluate((way) => { history.go(way); }, by);
    if (to === "#/bans") await question.getByRole("button", { name: "Leave", exact: true }).click();
    await expect.poll(hash).toBe(to);
  }
  await expect(field).toHaveValue("");
});
