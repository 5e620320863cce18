// Users, access rules with their tester, the configuration, one's own password.
import { Node } from "../support/node";
import { furnish, PAGES } from "../support/pages";
import { expect, open, test, watch } from "../support/test";

test("an MQTT user is added, changed and deleted", async ({ console: page, node }) => {
  await open(page, "users");
  await page.getByRole("button", { name: "New user…" }).click();
  const dialog = page.getByRole("dialog");
  await dialog.getByLabel("Name").fill("ada");
  await dialog.getByLabel("Password").fill("first password");
  await dialog.getByRole("button", { name: "Add" }).click();
  const table = page.getByRole("region", { name: "Table: Users" });
  await expect(table.getByRole("cell", { name: "ada", exact: true })).toBeVisible();
  expect(await node.publish("x", "y", "-u", "ada", "-P", "first password")).toBe(0);
  await page.getByRole("button", { name: "Change ada" }).click();
  await dialog.getByLabel("New password").fill("second password");
  await dialog.getByRole("button", { name: "Save" }).click();
  await expect(dialog).toBeHidden();
  expect(await node.publish("x", "y", "-u", "ada", "-P", "second password")).toBe(0);
  await page.getByRole("button", { name: "Delete ada" }).click();
  await dialog.getByRole("button", { name: "Delete" }).click();
  await expect(table.getByRole("cell", { name: "ada", exact: true })).toBeHidden();
});

test("access rules are tried before they are in force, and the tester names the rule", async ({ console: page, node }) => {
  await open(page, "access");
  await expect(page.getByText("There are no rules: who may connect may publish")).toBeVisible();
  const verdict = page.getByRole("main").getByRole("status").last();
  await expect(verdict).toContainText("Yes, because there are no rules");
  for (const [permission, topics] of [["deny", "demo/secret"], ["allow", "demo/#"]] as const) {
    await page.getByRole("button", { name: "Add a rule…" }).click();
    const dialog = page.getByRole("dialog");
    await dialog.getByLabel("Decision").selectOption(permission);
    await dialog.getByLabel("Topic filters, one a line").fill(topics);
    await dialog.getByRole("button", { name: "Add" }).click();
  }
  await expect(verdict).toContainText("Yes, because rule 2 matches first");
  await page.getByLabel("Topic", { exact: true }).fill("demo/secret");
  await expect(verdict).toContainText("No, because rule 1 matches first");
  await page.getByRole("button", { name: "Move rule 1 down" }).click();
  await expect(verdict).toContainText("Yes, because rule 1 matches first");
  await page.getByRole("button", { name: "Move rule 2 up" }).click();
  await page.getByRole("button", { name: "Put in force" }).click();
  await expect(page.getByText("In force, also for connected clients.")).toBeVisible();
  const acl = (await node.call("GET", "/api/v1/acl")) as { rules: unknown[] };
  expect(acl.rules).toHaveLength(2);
  await node.call("PUT", "/api/v1/acl", { rules: [] });
});

test("the configuration shows values with their origin", async ({ console: page, node }) => {
  await open(page, "configuration");
  const table = page.getByRole("region", { name: "Table: Configuration" });
  await page.getByLabel("Only what is not at its default").check();
  await expect(table.getByRole("row", { name: /node\.data_dir/ })).toContainText(node.directory);
  await expect(table.getByRole("row", { name: /node\.data_dir/ })).toContainText("--set");
  await expect(table.getByRole("row", { name: /mqtt\.max_qos/ })).toBeHidden();
  await page.getByLabel("Only what is not at its default").uncheck();
  await page.getByLabel("Search").fill("max_qos");
  await expect(table.getByRole("row", { name: /mqtt\.max_qos/ })).toContainText("default");
});

test("one changes one's own password", async ({ page }) => {
  const node = await Node.start();
  await page.goto(node.url);
  await page.getByLabel("Password").fill(node.firstPassword);
  await page.getByRole("button", { name: "Log in" }).click();
  await page.getByRole("link", { name: "Change it", exact: true }).click();
  await page.getByLabel("Present password").fill(node.firstPassword);
  await page.getByLabel("New password").fill("a password of mine");
  await page.getByLabel("Once more").fill("a password of mine");
  await page.getByRole("button", { name: "Change" }).click();
  await expect(page.getByText("The password was changed.")).toBeVisible();
  await page.getByLabel("Password").fill("a password of mine");
  await page.getByRole("button", { name: "Log in" }).click();
  await expect(page.getByRole("heading", { name: "My account" })).toBeVisible();
  await expect(page.getByText("You use the password of the first start")).toBeHidden();
  await node.stop();
});

test("a viewer sees everything and is offered no change", async ({ page }) => {
  const node = await Node.start();
  await furnish(node);
  await node.addViewer("eve", "only looking");
  const complaints = watch(page, node.url);
  await page.goto(node.url);
  await page.getByLabel("User").fill("eve");
  await page.getByLabel("Password").fill("only looking");
  await page.getByRole("button", { name: "Log in" }).click();
  await expect(page.getByText("eve (viewer)")).toBeVisible();
  for (const path of PAGES.filter((one) => !one.endsWith("/new") && !one.includes("gateway"))) {
    await open(page, path);
    await expect(page.getByText("Loading…")).toHaveCount(0);
    await expect(page.getByRole("main").getByRole("button", { name: /^(Add|Save|Delete|Disable|Purge|New|Publish…|Put in force)/ }).and(page.locator(":enabled")), path).toHaveCount(0);
    await expect(page.getByRole("alert").filter({ hasText: "role" })).toHaveCount(0);
  }
  expect(complaints).toEqual([]);
  await node.stop();
});
