// Logins with an identity provider, at a real provider.
import type { Page } from "@playwright/test";
import { IdentityProvider } from "../support/identity";
import type { Node } from "../support/node";
import { isAccessible } from "../support/reads";
import { expect, open, test } from "../support/test";

let provider: IdentityProvider;
let node: Node;

test.beforeAll(async () => {
  ({ provider, node } = await IdentityProvider.withNode());
});

test.afterAll(async () => {
  await node.stop();
  await provider.stop();
});

const button = (page: Page) => page.getByRole("link", { name: "Sign in with Plant SSO", exact: true });

/** Opens a page of the console without a login, and goes to the provider. */
async function begin(page: Page, path = "home"): Promise<void> {
  // The login page of the provider asks for a font of another server.
  await page.route("https://**", (route) => route.abort());
  await page.goto(`${node.url}/#/${path}`);
  await button(page).click();
}

test("local users log in while the provider does not answer", async ({ page }) => {
  await begin(page);
  await expect(page.getByRole("alert")).toContainText("The identity provider does not answer as expected.");
  await isAccessible(page, "login page with a provider");
  await page.getByLabel("Password", { exact: true }).fill(node.firstPassword);
  await page.getByRole("button", { name: "Log in", exact: true }).click();
  await expect(page.getByRole("heading", { name: "Home", exact: true })).toBeVisible();
  await provider.come(node, { ada: ["owners"], vera: ["watchers"] });
  // The server asks a provider that failed again after two seconds.
  await expect.poll(async () => (await fetch(`${node.url}/api/v1/oidc/login`, { redirect: "manual" })).headers.get("location")).toContain(provider.issuer);
});

test("an administrator of the provider logs in and out", async ({ page }) => {
  await page.setViewportSize({ width: 390, height: 844 });
  await begin(page, "clients");
  await provider.logIn(page, "ada");
  await expect(page.getByRole("heading", { name: "Clients", exact: true })).toBeVisible();
  await expect(page).toHaveURL(`${node.url}/#/clients`);
  await page.setViewportSize({ width: 1280, height: 900 });
  await expect(page.getByRole("link", { name: "oidc:ada", exact: true })).toBeVisible();
  await open(page, "account");
  await expect(page.getByText("The identity provider manages your password.", { exact: true })).toBeVisible();
  const logins = async () => ((await node.call("GET", "/api/v1/logins?user=oidc%3Aada")) as { items: unknown[] }).items.length;
  expect(await logins()).toBe(1);
  await page.getByRole("button", { name: "Log out", exact: true }).click();
  await expect(button(page)).toBeVisible();
  await expect(page.getByLabel("User", { exact: true })).toHaveValue("admin");
  expect(await logins()).toBe(0);
});

test("a viewer of the provider cannot change anything", async ({ page }) => {
  await begin(page);
  await provider.logIn(page, "vera");
  await expect(page.getByRole("link", { name: "oidc:vera (viewer)", exact: true })).toBeVisible();
  await open(page, "account");
  await expect(page.getByRole("heading", { name: "My account", exact: true })).toBeVisible();
  // The page is reloaded with the same login.
  await page.reload();
  await expect(page.getByRole("link", { name: "oidc:vera (viewer)", exact: true })).toBeVisible();
});

test("users without a role, and refused logins, stay on the login page", async ({ page }) => {
  await begin(page);
  await provider.logIn(page, "nick");
  await expect(page.getByRole("alert")).toHaveText("Your account has no role on this server. Ask an administrator.");
  await page.context().clearCookies();
  await begin(page);
  await page.getByRole("link", { name: "[ Cancel ]", exact: true }).click();
  await expect(page.getByRole("alert")).toHaveText("The identity provider refused the login.");
  // A text in the address is not shown.
  await page.goto(`${node.url}/?x#/single-sign-on?problem=call%20555`);
  await expect(page.getByRole("alert")).toHaveText("The login failed.");
});
