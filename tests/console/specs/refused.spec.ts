// Refused clients: one row per client and reason, with the action that helps.
import { expect, open, test } from "../support/test";

test("refused clients are grouped, searched and unbanned", async ({ console: page, node }) => {
  const wrong = ["-i", "meter-7", "-u", "meter", "-P", "not it"];
  for (let n = 0; n < 3; n += 1) expect(await node.publish("x", "y", ...wrong)).not.toBe(0);
  await node.call("POST", "/api/v1/banned", { kind: "client_id", who: "noisy-1", reason: "too much" });
  expect(await node.publish("x", "y", "-i", "noisy-1")).not.toBe(0);
  await open(page, "refused");
  const rows = page.getByRole("region", { name: "Table: Refused clients", exact: true }).getByRole("row");
  await expect(rows).toHaveCount(3);
  await expect(rows.filter({ hasText: "meter-7" }).getByRole("cell").nth(1)).toHaveText("3");
  await page.getByLabel("Client, user, address or reason", { exact: true }).fill("BANNED");
  await expect(rows).toHaveCount(2);
  await page.getByRole("button", { name: "Lift the ban of noisy-1", exact: true }).click();
  const dialog = page.getByRole("dialog");
  await expect(dialog.getByText("noisy-1 was banned by admin: too much.")).toBeVisible();
  await dialog.getByRole("button", { name: "Lift", exact: true }).click();
  await expect(page.getByText("Ban lifted.", { exact: true })).toBeVisible();
  expect(await node.publish("x", "y", "-i", "noisy-1")).toBe(0);
  await page.getByLabel("Client, user, address or reason", { exact: true }).fill("no such client");
  await expect(page.getByText(/^None of the last \d+ refusals matches\.$/)).toBeVisible();
});

test("a failed handshake is listed without a reason code", async ({ console: page }) => {
  const now = Date.now();
  await page.route("**/api/v1/refused-clients?*", (route) => route.fulfill({ json: [{ at_unix_ms: now, first_at_unix_ms: now - 60_000, times: 12, listener: "lan", client_id: "", user_name: null, address: "192.0.2.9:5000", transport: "tls", reason: "tls_handshake", reason_code: null, detail: "the client does not speak TLS" }] }));
  await open(page, "refused");
  const row = page.getByRole("region", { name: "Table: Refused clients", exact: true }).getByRole("row").nth(1);
  await expect(row.getByRole("cell").nth(1)).toHaveText("12");
  await expect(row).toContainText("192.0.2.9 tls.lan");
  await expect(row).toContainText("(before CONNECT)");
});

test("changing an existing password asks first", async ({ console: page, node }) => {
  await node.call("POST", "/api/v1/users", { name: "shared", password: "used by many" });
  const login = (password: string) => node.publish("x", "y", "-i", "late-1", "-u", "shared", "-P", password);
  expect(await login("not it")).not.toBe(0);
  await open(page, "refused");
  await page.getByRole("button", { name: "Set a password for late-1", exact: true }).click();
  const form = page.getByRole("dialog", { name: "Set a password for this client", exact: true });
  await form.getByLabel("Password", { exact: true }).fill("another one");
  const question = page.getByRole("dialog", { name: "Change this user's password?", exact: true });
  await form.getByRole("button", { name: "Set password", exact: true }).click();
  await question.getByRole("button", { name: "Cancel", exact: true }).click();
  await expect(form.getByRole("button", { name: "Set password", exact: true })).toBeVisible();
  expect(await login("used by many")).toBe(0);
  await form.getByRole("button", { name: "Set password", exact: true }).click();
  await question.getByRole("button", { name: "Change password", exact: true }).click();
  await expect(form.getByText("The password is not shown again.")).toBeVisible();
  expect(await login("another one")).toBe(0);
});

test("an unauthorized client opens the access rule tester", async ({ console: page }) => {
  await page.route("**/api/v1/refused-clients?*", (route) => route.fulfill({ json: [{ at_unix_ms: Date.now(), first_at_unix_ms: Date.now(), times: 1, listener: "default", client_id: "taken-1", user_name: "owner", address: "192.0.2.7:5000", transport: "tcp", reason: "not_authorized", reason_code: 0x87, detail: "refused by policy" }] }));
  await open(page, "refused");
  await page.getByRole("link", { name: "Access rules for taken-1", exact: true }).click();
  await expect(page.getByLabel("Client id", { exact: true })).toHaveValue("taken-1");
  await expect(page.getByLabel("User", { exact: true })).toHaveValue("owner");
  await expect(page.getByLabel("Address", { exact: true })).toHaveValue("192.0.2.7");
});
