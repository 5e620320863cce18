// Authentication providers and sources of access rules: state, tested logins and actions, and the configuration. An
// HTTP service of the test decides.
import { once } from "node:events";
import { writeFileSync } from "node:fs";
import { createServer, type Server } from "node:http";
import type { AddressInfo } from "node:net";
import type { Page } from "@playwright/test";
import { Node } from "../support/node";
import { isAccessible } from "../support/reads";
import { expect, logIn, open, test, watch } from "../support/test";

let service: Server;
let node: Node;
let isDown = false;

test.beforeAll(async () => {
  service = createServer((request, response) => {
    let text = "";
    request.on("data", (part) => { text += String(part); });
    request.on("end", () => {
      const asked = JSON.parse(text) as { username: string; password?: string; topic?: string };
      const isLogin = request.url === "/auth";
      const result = isLogin ? (asked.username !== "ada" ? "ignore" : asked.password === "lovelace" ? "allow" : "deny") : asked.topic === "open/1" ? "allow" : "deny";
      response.writeHead(isDown ? 503 : 200, { "Content-Type": "application/json" });
      response.end(JSON.stringify({ result, ...(isLogin ? { client_attrs: { site: "north" } } : {}) }));
    });
  });
  service.listen(0, "127.0.0.1");
  await once(service, "listening");
  const url = `http://127.0.0.1:${(service.address() as AddressInfo).port}`;
  const fields = ["username", "password"].map((name) => `access.http.body.${name}=\${${name}}`);
  const ofSource = ["username", "topic", "action"].map((name) => `access.source.http.body.${name}=\${${name}}`);
  node = await Node.start('access.providers=["http", "users"]', `access.http.url=${url}/auth`, "access.http.cache_denied=0s", ...fields, 'access.sources=["rules", "http"]', `access.source.http.url=${url}/acl`, ...ofSource);
});

test.afterAll(async () => {
  await node.stop();
  service.closeAllConnections();
  service.close();
});

async function enter(page: Page): Promise<string[]> {
  const pageErrors = watch(page, node.url);
  await logIn(page, node);
  return pageErrors;
}

const provider = (page: Page, index: number) => page.getByRole("list", { name: "Authentication providers", exact: true }).getByRole("listitem").nth(index);

test("the state of a provider follows its answers", async ({ page }) => {
  const pageErrors = await enter(page);
  await open(page, "authentication");
  await expect(provider(page, 0)).toContainText("HTTP service");
  await expect(provider(page, 0)).toContainText("not asked yet");
  await expect(provider(page, 1)).toContainText("Users of this server");
  isDown = true;
  expect(await node.publish("open/1", "x", "-u", "ada", "-P", "lovelace")).not.toBe(0);
  await expect(provider(page, 0)).toContainText("failing");
  await expect(provider(page, 0)).toContainText("503");
  isDown = false;
  expect(await node.publish("open/1", "x", "-u", "ada", "-P", "lovelace")).toBe(0);
  await expect(provider(page, 0)).toContainText("working");
  await expect(provider(page, 0)).toContainText("Last failure");
  await isAccessible(page, "authentication");
  expect(pageErrors).toEqual([]);
});

test("a tested login shows the verdict of each provider", async ({ page }) => {
  const pageErrors = await enter(page);
  await open(page, "authentication");
  const steps = page.getByRole("list", { name: "Verdicts of the providers", exact: true }).getByRole("listitem");
  const attempt = async (user: string, password: string) => {
    await page.getByLabel("User name", { exact: true }).fill(user);
    await page.getByLabel("Password or token", { exact: true }).fill(password);
    await page.getByRole("button", { name: "Try", exact: true }).click();
  };
  await attempt("ada", "lovelace");
  await expect(page.getByText("Admitted: http admits the client.")).toBeVisible();
  await expect(page.getByText("attributes site = north")).toBeVisible();
  await expect(steps.nth(2)).toContainText("not asked");
  await attempt("bob", "builder");
  await expect(steps.nth(1)).toContainText("unknown");
  await expect(steps.nth(2)).toContainText("this server has no user with this name");
  await expect(page.getByText("Rejected: no provider knows this client.")).toBeVisible();
  const log = JSON.stringify(await node.call("GET", "/api/v1/audit?operation=test_login"));
  expect(log).toContain("ada");
  expect(log).not.toContain("lovelace");
  expect(pageErrors).toEqual([]);
});

test("an access test asks the sources on request", async ({ page }) => {
  const pageErrors = await enter(page);
  await open(page, "access");
  await expect(page.getByText("Sources of access rules in their order")).toBeVisible();
  const verdict = page.getByRole("main").getByRole("status").last();
  const steps = page.getByRole("list", { name: "Decisions of the sources", exact: true }).getByRole("listitem");
  await page.clock.install();
  await page.getByLabel("Topic", { exact: true }).fill("open/1");
  await page.getByRole("button", { name: "Ask the sources", exact: true }).click();
  await expect(verdict).toContainText("Allowed: the source http decides.");
  // Longer than the delay after typing, which must not remove the answer.
  await page.clock.runFor(1000);
  await expect(verdict).toContainText("Allowed: the source http decides.");
  await expect(steps.nth(0)).toContainText("no rule matches");
  await expect(steps.nth(1)).toContainText("the service answers allow");
  await page.getByLabel("Topic", { exact: true }).fill("closed/1");
  await expect(verdict).toBeEmpty();
  await page.getByRole("button", { name: "Ask the sources", exact: true }).click();
  await expect(verdict).toContainText("Denied: the source http decides.");
  expect(pageErrors).toEqual([]);
});

test("a new provider becomes a checked configuration", async ({ page }) => {
  const pageErrors = await enter(page);
  await open(page, "authentication");
  await page.getByRole("button", { name: "Add or change…", exact: true }).click();
  const dialog = page.getByRole("dialog");
  const toml = dialog.locator("pre");
  await dialog.getByRole("combobox", { name: "Add a provider", exact: true }).selectOption("SQLite");
  await dialog.getByRole("button", { name: "Add", exact: true }).first().click();
  const own = dialog.getByRole("listitem").filter({ has: page.getByRole("button", { name: "Remove provider SQLite", exact: true }) });
  await own.getByText("More options", { exact: true }).click();
  const timeout = own.getByLabel("timeout", { exact: true });
  await timeout.fill("soon");
  await dialog.getByRole("button", { name: "Check", exact: true }).click();
  await expect(dialog.getByRole("alert")).toContainText("access.sqlite.timeout");
  await timeout.fill("2s");
  await own.getByLabel("file", { exact: true }).fill("/nowhere/users.db");
  await dialog.getByRole("button", { name: "Check", exact: true }).click();
  await expect(dialog.getByRole("alert")).toContainText("cannot read /nowhere/users.db");
  // SQLite accepts an empty file as a database without tables.
  const file = `${node.directory}/users.db`;
  writeFileSync(file, "");
  await own.getByLabel("file", { exact: true }).fill(file);
  await dialog.getByRole("button", { name: "Move provider SQLite up", exact: true }).click();
  await expect(toml).toContainText(`file = "${file}"`);
  await dialog.getByRole("button", { name: "Check", exact: true }).click();
  // The options of the command line take precedence.
  await expect(dialog.getByText("access.providers has no effect: --set sets another value.")).toBeVisible();
  await isAccessible(page, "provider setup");
  // The draft survives the dialog.
  await dialog.getByRole("button", { name: "Close", exact: true }).click();
  await page.getByRole("button", { name: "Add or change…", exact: true }).click();
  await expect(toml).toContainText("access.sqlite");
  expect(pageErrors).toEqual([]);
});

test("a viewer sees the state and cannot test logins", async ({ page }) => {
  await node.addViewer("eve", "only looking around");
  await page.goto(node.url);
  await page.getByLabel("User", { exact: true }).fill("eve");
  await page.getByLabel("Password", { exact: true }).fill("only looking around");
  await page.getByRole("button", { name: "Log in", exact: true }).click();
  await expect(page.getByRole("heading", { name: "Home", exact: true })).toBeVisible();
  await open(page, "authentication");
  await expect(provider(page, 0)).toContainText("HTTP service");
  await expect(page.getByRole("heading", { name: "Try a login", exact: true })).toBeHidden();
  await expect(page.getByRole("button", { name: "Add or change…", exact: true })).toBeHidden();
});
