// The second factor: set-up, logins with a code and a recovery code, renewal, and its removal by another administrator.
import { createHmac } from "node:crypto";
import type { Page } from "@playwright/test";
import { Node } from "../support/node";
import { fits, isAccessible, textOf, textsOf } from "../support/reads";
import { expect, open, test, tokenOf, watch } from "../support/test";

const PERIOD_MS = 30_000;

/** An authenticator app (RFC 6238). */
class App {
  private key: Buffer;
  private last = 0;

  constructor(secret: string) {
    const bits = [...secret].map((letter) => "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567".indexOf(letter).toString(2).padStart(5, "0")).join("");
    this.key = Buffer.from(bits.match(/.{8}/g)?.map((byte) => parseInt(byte, 2)) ?? []);
  }

  /** Returns a code that was not used before. The server accepts the next code as well, because clocks differ. */
  code(): string {
    const now = Math.floor(Date.now() / PERIOD_MS);
    this.last = Math.max(now, this.last + 1);
    const step = Buffer.alloc(8);
    step.writeBigUInt64BE(BigInt(this.last));
    const hash = createHmac("sha1", this.key).update(step).digest();
    const offset = (hash.at(-1) ?? 0) & 0xf;
    return String((hash.readUInt32BE(offset) & 0x7fffffff) % 1_000_000).padStart(6, "0");
  }
}

const dialog = (page: Page) => page.getByRole("dialog");
const button = (page: Page, name: string) => page.getByRole("button", { name, exact: true });

/** Enters the password on the login page, which then asks for a code. */
async function enterPassword(page: Page, node: Node): Promise<void> {
  await page.getByLabel("Password", { exact: true }).fill(node.firstPassword);
  await button(page, "Log in").click();
  await expect(page.getByLabel("Code", { exact: true })).toBeFocused();
}

async function enterCode(page: Page, code: string): Promise<void> {
  await page.getByLabel("Code", { exact: true }).fill(code);
  await button(page, "Log in").click();
}

/** Completes the set-up after the password. Returns the app and the recovery codes. */
async function scan(page: Page): Promise<{ app: App; codes: string[] }> {
  await expect(page.getByRole("img", { name: "QR code of the key", exact: true })).toBeVisible();
  await isAccessible(page, "set-up of a second factor");
  const app = new App(await textOf(page.locator("form code").first()));
  await page.getByLabel("Code of the app", { exact: true }).fill(app.code());
  await button(page, "Turn on").click();
  const list = page.getByRole("list", { name: "Recovery codes", exact: true });
  const codes = await textsOf(list.getByRole("listitem"), 10);
  await isAccessible(page, "recovery codes");
  await button(page, "Done").click();
  return { app, codes };
}

const panelOf = (page: Page) => page.getByRole("region", { name: "Second factor", exact: true });

async function turnOn(page: Page, password: string): Promise<{ app: App; codes: string[] }> {
  await open(page, "account");
  await button(page, "Turn on…").click();
  await dialog(page).getByLabel("Your password", { exact: true }).fill(password);
  await button(page, "Continue").click();
  return scan(page);
}

test("a user turns the second factor on, logs in with codes, and turns it off", async ({ console: page, node }) => {
  const { app, codes: [first = "", second = ""] } = await turnOn(page, node.firstPassword);
  const panel = panelOf(page);
  await expect(panel).toContainText("10 of 10 recovery codes are unused.");

  await button(page, "Log out").click();
  await enterPassword(page, node);
  await isAccessible(page, "login with a code");
  await enterCode(page, "12345");
  await expect(page.getByRole("alert")).toContainText("the code is wrong");
  await enterCode(page, app.code());
  await expect(panel).toContainText("10 of 10 recovery codes are unused.");
  await button(page, "Log out").click();
  await enterPassword(page, node);
  await enterCode(page, first);
  await expect(panel).toContainText("9 of 10 recovery codes are unused.");

  const prove = async (action: string, code: string) => {
    await dialog(page).getByLabel("Your password", { exact: true }).fill(node.firstPassword);
    await dialog(page).getByLabel("Code", { exact: true }).fill(code);
    await dialog(page).getByRole("button", { name: action, exact: true }).click();
  };
  await button(page, "New recovery codes…").click();
  await prove("Create codes", first);
  await expect(dialog(page).getByRole("alert")).toContainText("the code is wrong");
  await prove("Create codes", second);
  const renewed = dialog(page).getByRole("listitem");
  await expect(renewed).toHaveCount(10);
  const code = await textOf(renewed.first());
  await button(page, "Done").click();
  await button(page, "Turn off…").click();
  await prove("Turn off", code);
  await expect(button(page, "Turn on…")).toBeVisible();
});

test("another administrator removes the second factor", async ({ console: page, browser, node }) => {
  await turnOn(page, node.firstPassword);
  const call = async (token: string, path: string, body: unknown) => {
    const headers = { Authorization: `Bearer ${token}`, "Content-Type": "application/json" };
    const answer = await fetch(node.url + path, { method: "POST", headers, body: JSON.stringify(body) });
    expect(answer.ok).toBe(true);
    return (await answer.json()) as { password: string; token: string };
  };
  const { password } = await call(await tokenOf(page), "/api/v1/console-users", { name: "ada", role: "admin" });
  const { token } = await call("", "/api/v1/login", { user: "ada", password });
  const own = "a password of her own";
  await call(token, "/api/v1/password", { current_password: password, new_password: own });

  const context = await browser.newContext();
  const other = await context.newPage();
  await other.goto(`${node.url}/#/console-users`);
  await other.getByLabel("User", { exact: true }).fill("ada");
  await other.getByLabel("Password", { exact: true }).fill(own);
  await button(other, "Log in").click();
  await button(other, "Remove the second factor of admin").click();
  await dialog(other).getByRole("button", { name: "Remove second factor", exact: true }).click();
  await expect(button(other, "Remove the second factor of admin")).toBeHidden();
  await context.close();
  await open(page, "clients");
  await expect(page.getByText("Your login has ended. Please log in again.")).toBeVisible();
  await page.getByLabel("Password", { exact: true }).fill(node.firstPassword);
  await button(page, "Log in").click();
  await expect(page.getByRole("heading", { name: "Clients", exact: true })).toBeVisible();
});

test("a required second factor is set up before anything else", async ({ page }) => {
  const node = await Node.start("api.require_totp=true");
  const pageErrors = watch(page, node.url);
  await page.setViewportSize({ width: 390, height: 844 });
  await page.goto(node.url);
  await page.getByLabel("Password", { exact: true }).fill(node.firstPassword);
  await button(page, "Log in").click();
  await expect(page.getByRole("heading", { name: "Set up a second factor", exact: true })).toBeVisible();
  await page.reload();
  await page.getByLabel("Your password", { exact: true }).fill("wrong password");
  await button(page, "Continue").click();
  await expect(page.getByText("password: wrong password")).toBeVisible();
  await page.getByLabel("Your password", { exact: true }).fill(node.firstPassword);
  await button(page, "Continue").click();
  await fits(page, "set-up of a second factor");
  await scan(page);
  await expect(page.getByRole("heading", { name: "Home", exact: true })).toBeVisible();
  expect(pageErrors).toEqual([]);
  await node.stop();
});
