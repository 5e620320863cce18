// Two users edit the same object: input is preserved, and nothing is overwritten without a question.
import type { Node } from "../support/node";
import { expect, open, test } from "../support/test";

/** Sends a change as another administrator, with an API key. */
async function other(node: Node, name: string): Promise<(method: string, path: string, body?: unknown) => Promise<void>> {
  const { secret } = (await node.call("POST", "/api/v1/api-keys", { name, role: "admin" })) as { secret: string };
  return async (method, path, body) => {
    const headers = { Authorization: `Bearer ${secret}`, "Content-Type": "application/json" };
    const answer = await fetch(node.url + path, { method, headers, ...(body === undefined ? {} : { body: JSON.stringify(body) }) });
    if (!answer.ok) throw new Error(`${method} ${path}: ${answer.status} ${await answer.text()}`);
  };
}

test("an edited rule survives a change by another user", async ({ console: page, node }) => {
  const ops = await other(node, "ops");
  await node.call("POST", "/api/v1/rules", { id: "shared", sql: 'SELECT topic FROM "a"', actions: [] });
  await open(page, "rules/shared");
  const sql = page.getByRole("textbox", { name: "SQL of the rule", exact: true });
  await expect(sql).toHaveValue('SELECT topic FROM "a"');
  // Without input, the editor shows the new version.
  await ops("PUT", "/api/v1/rules/shared", { id: "shared", sql: 'SELECT topic FROM "b"', actions: [] });
  await expect(sql).toHaveValue('SELECT topic FROM "b"');
  await sql.fill('SELECT topic, qos FROM "b"');
  await ops("POST", "/api/v1/rules/shared/disable");
  const notice = page.getByRole("status").filter({ hasText: "Changed by key:ops" });
  await expect(notice).toBeVisible();
  await expect(sql).toHaveValue('SELECT topic, qos FROM "b"');
  await page.getByRole("button", { name: "Save", exact: true }).click();
  await expect(page.getByText(/was changed or deleted by another request/)).toBeVisible();
  const rule = async () => (await node.call("GET", "/api/v1/rules/shared")) as { sql: string; enable: boolean };
  expect(await rule()).toMatchObject({ sql: 'SELECT topic FROM "b"', enable: false });
  await notice.getByRole("button", { name: "Overwrite", exact: true }).click();
  await expect(page.getByText("Saved and applied.")).toBeVisible();
  await expect(notice).toBeHidden();
  // The enabled state was not part of the edit.
  expect(await rule()).toMatchObject({ sql: 'SELECT topic, qos FROM "b"', enable: false });
  await sql.fill('SELECT 1 AS one FROM "b"');
  await ops("POST", "/api/v1/rules/shared/enable");
  await notice.getByRole("button", { name: "Reload", exact: true }).click();
  await expect(sql).toHaveValue('SELECT topic, qos FROM "b"');
  await expect(notice).toBeHidden();
  // The next save needs no question.
  await sql.fill('SELECT qos FROM "b"');
  await page.getByRole("button", { name: "Save", exact: true }).click();
  await expect.poll(rule).toMatchObject({ sql: 'SELECT qos FROM "b"', enable: true });
});

test("actions, connectors and access rules are not overwritten", async ({ console: page, node }) => {
  const ops = await other(node, "second");
  await node.call("POST", "/api/v1/actions", { type: "console", name: "shown" });
  await open(page, "actions/console:shown");
  const form = page.getByRole("form", { name: "Definition", exact: true });
  const notice = page.getByRole("status").filter({ hasText: "Changed by key:second" });
  await form.getByLabel("Description", { exact: true }).fill("mine");
  // The page can see the change before its audit entry is written.
  await page.route("**/api/v1/audit?*", (route) => route.fulfill({ json: { items: [] } }), { times: 1 });
  await ops("POST", "/api/v1/actions/console:shown/disable");
  await expect(notice).toBeVisible();
  await expect(form.getByLabel("Description", { exact: true })).toHaveValue("mine");
  await form.getByRole("button", { name: "Save", exact: true }).click();
  await expect(page.getByText(/was changed or deleted by another request/)).toBeVisible();
  await notice.getByRole("button", { name: "Reload", exact: true }).click();
  await expect(form.getByLabel("Enabled", { exact: true })).not.toBeChecked();
  await expect(form.getByLabel("Description", { exact: true })).toHaveValue("");

  const connector = { type: "http", name: "hook", config: { url: "http://127.0.0.1:9" } };
  await node.call("POST", "/api/v1/connectors", connector);
  await open(page, "connectors/hook");
  await form.getByLabel("Description", { exact: true }).fill("mine");
  await ops("PUT", "/api/v1/connectors/hook", { ...connector, config: { url: "http://127.0.0.1:10" } });
  await form.getByRole("button", { name: "Save", exact: true }).click();
  await notice.getByRole("button", { name: "Overwrite", exact: true }).click();
  await expect(notice).toBeHidden();
  expect(await node.call("GET", "/api/v1/connectors/hook")).toMatchObject({ description: "mine", config: { url: "http://127.0.0.1:9" } });

  const rules = (...topics: string[]) => ({ rules: topics.map((topic) => ({ permission: "allow", action: "all", topics: [topic] })) });
  await node.call("PUT", "/api/v1/acl", rules("a/#", "#"));
  await open(page, "access");
  await page.getByRole("button", { name: "Remove rule 1", exact: true }).click();
  await ops("PUT", "/api/v1/acl", rules("a/#", "b/#", "#"));
  await page.getByRole("button", { name: "Apply", exact: true }).click();
  await expect(notice).toBeVisible();
  expect(await node.call("GET", "/api/v1/acl")).toMatchObject(rules("a/#", "b/#", "#"));
  await notice.getByRole("button", { name: "Reload", exact: true }).click();
  await expect(page.getByRole("region", { name: "Table: Access rules", exact: true }).getByRole("row")).toHaveCount(4);
  await expect(notice).toBeHidden();
  await page.getByRole("button", { name: "Remove rule 2", exact: true }).click();
  await page.getByRole("button", { name: "Apply", exact: true }).click();
  await expect(page.getByText("Applied, also to connected clients.")).toBeVisible();
  expect(await node.call("GET", "/api/v1/acl")).toMatchObject(rules("a/#", "#"));
});
