// Pages that stay open over a silent or slow server and an ended login.
import { seconds } from "../support/slow";
import { expect, logIn, open, test, tokenOf } from "../support/test";
import type { Page } from "@playwright/test";

test.use({ hasPlatform: true });

/** Ends the login, as a logout in another window does. */
async function endLogin(page: Page, url: string): Promise<void> {
  const token = await tokenOf(page);
  const answer = await fetch(`${url}/api/v1/logout`, { method: "POST", headers: { Authorization: `Bearer ${token}` } });
  expect(answer.ok).toBe(true);
}

test("a silent server is reported on every page", async ({ page, node }) => {
  test.setTimeout(seconds(90));
  await logIn(page, node);
  await expect(page.getByRole("status").getByText("running", { exact: true })).toBeVisible();
  const silent = page.getByRole("alert").getByText("The server has not answered since");
  node.freeze();
  try {
    await expect(silent).toBeVisible({ timeout: seconds(20) });
    await expect(page.getByText("no answer", { exact: true })).toBeVisible();
    await open(page, "rules");
    await expect(silent).toBeVisible();
  } finally {
    node.thaw();
  }
  await expect(silent).toBeHidden({ timeout: seconds(20) });
  await expect(page.getByText("running", { exact: true })).toBeVisible({ timeout: seconds(20) });
  await expect(page.getByRole("heading", { name: "Rules", exact: true })).toBeVisible();
});

test("a request without an answer ends with an error", async ({ page, node }) => {
  await page.clock.install();
  await logIn(page, node);
  await page.route("**/api/v1/rules", () => undefined);
  await open(page, "rules");
  await expect(page.getByText("Loading…")).toBeVisible();
  await expect(page.getByText("The server does not answer.")).toBeVisible({ timeout: seconds(20) });
});

test("an answer slower than the refresh period arrives", async ({ console: page, node }) => {
  await node.subscriber("patient", "any/#");
  await page.route("**/api/v1/clients?*", async (route) => {
    await new Promise((resolve) => setTimeout(resolve, 6_500));
    await route.continue().catch(() => undefined);
  });
  await open(page, "clients");
  await expect(page.getByRole("link", { name: "patient", exact: true })).toBeVisible();
});

test("input survives an expired login", async ({ page, node }) => {
  test.setTimeout(seconds(60));
  await logIn(page, node);
  await open(page, "rules/new");
  await page.getByRole("textbox", { name: "Id", exact: true }).fill("kept");
  await page.getByLabel("Description", { exact: true }).fill("written before");
  await endLogin(page, node.url);
  await expect(page.getByText("Your login has ended.")).toBeVisible({ timeout: seconds(20) });
  await expect(page.getByRole("textbox", { name: "Id", exact: true })).toBeHidden();
  await page.getByLabel("Password", { exact: true }).fill(node.firstPassword);
  await page.getByRole("button", { name: "Log in", exact: true }).click();
  await expect(page.getByLabel("Description", { exact: true })).toHaveValue("written before");
  await page.getByRole("button", { name: "Add rule", exact: true }).click();
  await expect(page.getByRole("heading", { name: "kept", exact: true })).toBeVisible();
  await node.call("DELETE", "/api/v1/rules/kept");
});

test("an open dialog survives an expired login", async ({ page, node }) => {
  test.setTimeout(seconds(60));
  await logIn(page, node);
  await open(page, "console-users");
  await page.getByRole("button", { name: "New user…", exact: true }).click();
  const dialog = page.getByRole("dialog");
  await dialog.getByLabel("Name", { exact: true }).fill("typed");
  await endLogin(page, node.url);
  await expect(page.getByText("Your login has ended.")).toBeVisible({ timeout: seconds(20) });
  await expect(dialog).toBeHidden();
  // By mouse, and by keyboard from there.
  await page.getByLabel("User", { exact: true }).click();
  await page.keyboard.press("Tab");
  await page.keyboard.type("not the password");
  await page.keyboard.press("Enter");
  // The error appears in the login form, not in the dialog.
  await expect(page.getByRole("alert")).toBeVisible();
  await page.getByLabel("Password", { exact: true }).fill(node.firstPassword);
  await page.getByRole("button", { name: "Log in", exact: true }).click();
  await expect(dialog.getByLabel("Name", { exact: true })).toHaveValue("typed");
  await expect(page.locator("dialog:modal")).toBeVisible();
  await page.keyboard.press("Escape");
  await expect(dialog).toBeHidden();
  await expect(page.getByRole("button", { name: "New user…", exact: true })).toBeFocused();
});

test("the next user in a tab sees nothing of the previous one", async ({ page, node }) => {
  test.setTimeout(seconds(60));
  const made = (await node.call("POST", "/api/v1/console-users", { name: "next", role: "viewer" })) as { password: string };
  await logIn(page, node);
  await open(page, "devices");
  await page.getByRole("button", { name: "Create", exact: true }).click();
  await expect(page.getByRole("button", { name: "New device…", exact: true })).toBeVisible();
  await endLogin(page, node.url);
  await expect(page.getByText("Your login has ended.")).toBeVisible({ timeout: seconds(20) });
  await page.getByLabel("User", { exact: true }).fill("next");
  await page.getByLabel("Password", { exact: true }).fill(made.password);
  await page.getByRole("button", { name: "Log in", exact: true }).click();
  await expect(page.getByRole("heading", { name: "Set your own password", exact: true })).toBeVisible();
  await page.getByLabel("Current password", { exact: true }).fill(made.password);
  await page.getByLabel("New password", { exact: true }).fill("a long password");
  await page.getByLabel("Repeat new password", { exact: true }).fill("a long password");
  await page.getByRole("button", { name: "Change password", exact: true }).click();
  await page.getByLabel("User", { exact: true }).fill("next");
  await page.getByLabel("Password", { exact: true }).fill("a long password");
  await page.getByRole("button", { name: "Log in", exact: true }).click();
  await open(page, "devices");
  await expect(page.getByText("next (viewer)")).toBeVisible();
  await expect(page.getByRole("button", { name: "Log in", exact: true })).toBeVisible();
  await expect(page.getByRole("button", { name: "New device…", exact: true })).toBeHidden();
});
