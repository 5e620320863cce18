// Two who change the same thing: what one types is kept, nobody overwrites the other unasked.
import type { Node } from "../support/node";
import { expect, open, test } from "../support/test";

/** Another administrator, with an API key. */
async function other(node: Node, name: string): Promise<(method: string, path: string, body?: unknown) => Promise<void>> {
  const { secret } = (await node.call("POST", "/api/v1/api-keys", { name, role: "admin" })) as { secret: string };
  return async (method, path, body) => {
    const headers = { Authorization: `Bearer ${secret}`, "Content-Type": "application/json" };
    const answer = await fetch(node.url + path, { method, headers, ...(body === undefined ? {} : { body: JSON.stringify(body) }) });
    if (!answer.ok) throw new Error(`${method} ${path}: ${answer.status} ${await answer.text()}`);
  };
}

test.use({ nodeOf: "meanwhile" });

test("what is typed into a rule outlives a change by somebody else, which is saved over only when asked to", async ({ console: page, node }) => {
  const ops = await other(node, "ops");
  await node.call("POST", "/api/v1/rules", { id: "shared", sql: 'SELECT topic FROM "a"', actions: [] });
  await open(page, "rules/shared");
  const sql = page.getByRole("textbox", { name: "SQL of the rule", exact: true });
  await expect(sql).toHaveValue('SELECT topic FROM "a"');
  // Who types nothing sees what is there now.
  await ops("PUT", "/api/v1/rules/shared", { id: "shared", sql: 'SELECT topic FROM "b"', actions: [] });
  await expect(sql).toHaveValue('SELECT topic FROM "b"');
  await sql.fill('SELECT topic, qos FROM "b"');
  await ops("POST", "/api/v1/rules/shared/disable");
  const told = page.getByRole("status").filter({ hasText: "Changed meanwhile by key:ops" });
  await expect(told).toBeVisible();
  await expect(sql).toHaveValue('SELECT topic, qos FROM "b"');
  await page.getByRole("button", { name: "Save", exact: true }).click();
  await expect(page.getByText(/was changed meanwhile, or deleted/)).toBeVisible();
  const rule = async () => (await node.call("GET", "/api/v1/rules/shared")) as { sql: string; enable: boolean };
  expect(await rule()).toMatchObject({ sql: 'SELECT topic FROM "b"', enable: false });
  await told.getByRole("button", { name: "Save over it", exact: true }).click();
  await expect(page.getByText("Saved. It is in force.")).toBeVisible();
  await expect(told).toBeHidden();
  // It was not in question whether it is enabled.
  expect(await rule()).toMatchObject({ sql: 'SELECT topic, qos FROM "b"', enable: false });
  await sql.fill('SELECT 1 AS one FROM "b"');
  await ops("POST", "/api/v1/rules/shared/enable");
  await told.getByRole("button", { name: "Reload", exact: true }).click();
  await expect(sql).toHaveValue('SELECT topic, qos FROM "b"');
  await expect(told).toBeHidden();
  // And it is saved again without a question.
  await sql.fill('SELECT qos FROM "b"');
  await page.getByRole("button", { name: "Save", exact: true }).click();
  await expect.poll(rule).toMatchObject({ sql: 'SELECT qos FROM "b"', enable: true });
});

test("actions, connectors and access rules are not overwritten unasked either", async ({ console: page, node }) => {
  const ops = await other(node, "second");
  await node.call("POST", "/api/v1/actions", { type: "console", name: "shown" });
  await open(page, "actions/console:shown");
  const form = page.getByRole("form", { name: "Definition", exact: true });
  const told = page.getByRole("status").filter({ hasText: "Changed meanwhile by key:second" });
  await form.getByLabel("Description", { exact: true }).fill("mine");
  await ops("POST", "/api/v1/actions/console:shown/disable");
  await expect(told).toBeVisible();
  await expect(form.getByLabel("Description", { exact: true })).toHaveValue("mine");
  await form.getByRole("button", { name: "Save", exact: true }).click();
  await expect(page.getByText(/was changed meanwhile, or deleted/)).toBeVisible();
  await told.getByRole("button", { name: "Reload", exact: true }).click();
  await expect(form.getByLabel("Enabled", { exact: true })).not.toBeChecked();
  await expect(form.getByLabel("Description", { exact: true })).toHaveValue("");

  const connector = { type: "http", name: "hook", config: { url: "http://127.0.0.1:9" } };
  await node.call("POST", "/api/v1/connectors", connector);
  await open(page, "connectors/hook");
  await form.getByLabel("Description", { exact: true }).fill("mine");
  await ops("PUT", "/api/v1/connectors/hook", { ...connector, config: { url: "http://127.0.0.1:10" } });
  await form.getByRole("button", { name: "Save", exact: true }).click();
  await told.getByRole("button", { name: "Save over it", exact: true }).click();
  await expect(told).toBeHidden();
  expect(await node.call("GET", "/api/v1/connectors/hook")).toMatchObject({ description: "mine", config: { url: "http://127.0.0.1:9" } });

  const rules = (...topics: string[]) => ({ rules: topics.map((topic) => ({ permission: "allow", action: "all", topics: [topic] })) });
  await node.call("PUT", "/api/v1/acl", rules("a/#", "#"));
  await open(page, "access");
  await page.getByRole("button", { name: "Remove rule 1", exact: true }).click();
  await ops("PUT", "/api/v1/acl", rules("a/#", "b/#", "#"));
  await page.getByRole("button", { name: "Put in force", exact: true }).click();
  await expect(told).toBeVisible();
  expect(await node.call("GET", "/api/v1/acl")).toMatchObject(rules("a/#", "b/#", "#"));
  await told.getByRole("button", { name: "Reload", exact: true }).click();
  await expect(page.getByRole("region", { name: "Table: Access rules", exact: true }).getByRole("row")).toHaveCount(4);
  await expect(told).toBeHidden();
  await page.getByRole("button", { name: "Remove rule 2", exact: true }).click();
  await page.getByRole("button", { name: "Put in force", exact: true }).click();
  await expect(page.getByText("In force, also for connected clients.")).toBeVisible();
  expect(await node.call("GET", "/api/v1/acl")).toMatchObject(rules("a/#", "#"));
});
