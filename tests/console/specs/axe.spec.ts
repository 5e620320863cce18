// Accessibility of all pages in light and dark colours, and their width on phones and 4K screens.
import type { Locator, Page } from "@playwright/test";
import { address, PAGES } from "../support/pages";
import { drawn, fits, haveTexts, holds, isAccessible } from "../support/reads";
import { seconds } from "../support/slow";
import { expect, open, test } from "../support/test";

test.describe.configure({ mode: "parallel" });
test.use({ isPopulated: true });

const AT_ONCE = 8;

for (const colorScheme of ["light", "dark"] as const) {
  for (let from = 0; from < PAGES.length; from += AT_ONCE) {
    const pages = PAGES.slice(from, from + AT_ONCE);
    test(`axe finds nothing in ${colorScheme} colours, ${pages[0]} and on`, async ({ console: page }) => {
      test.setTimeout(seconds(240));
      await page.emulateMedia({ colorScheme });
      for (const one of pages) {
        await open(page, one);
        await isAccessible(page, one);
      }
    });
  }
}

test("dialogs pass axe", async ({ console: page }) => {
  test.setTimeout(seconds(240));
  const dialogs: [string, string][] = [
    ["bans", "New ban…"], ["users", "New user…"], ["access", "Add rule…"], ["console-users", "New user…"], ["keys", "New key…"], ["devices", "New device…"], ["devices", "Import CSV…"], ["retained", "Publish…"],
    ["dashboards", "New dashboard…"], ["dashboards/{plant}", "Screen…"], ["alarms", "Show Overheat of boiler"],
    ["dashboards/{plant}?edit", "Add widget…"], ["dashboards/{plant}?edit", "Rename…"], ["devices/{boiler}", "Edit…"], ["devices/{boiler}?tab=connection", "Change credentials…"],
  ];
  for (const colorScheme of ["light", "dark"] as const) {
    await page.emulateMedia({ colorScheme });
    for (const [path, name] of dialogs) {
      await open(page, path);
      await page.getByRole("button", { name, exact: true }).click();
      await expect(page.getByRole("dialog")).toBeVisible();
      await isAccessible(page, name, "dialog");
      await page.keyboard.press("Escape");
      await expect(page.getByRole("dialog")).toHaveCount(0);
    }
  }
});

test("pages fit a phone", async ({ console: page }) => {
  test.setTimeout(seconds(120));
  await page.setViewportSize({ width: 360, height: 740 });
  for (const one of PAGES) {
    await open(page, one);
    await drawn(page);
    await fits(page, one);
  }
});

const DEVICE = ["Edit…", "Delete…"];
/** All buttons that open a dialog, by page. */
const ASKING: Record<string, string[]> = {
  benchmarks: ["Run benchmark…"], "clients/gateway-1": ["Ban…"], refused: ["Set password…"], bans: ["New ban…"], retained: ["Publish…", "Delete all…"], mqtt: ["Remember…"],
  devices: ["Import CSV…", "New device…"], "devices/{boiler}?tab=telemetry": [...DEVICE, "Add to dashboard…"], "devices/{boiler}?tab=connection": [...DEVICE, "Change credentials…", "New token…"],
  ...Object.fromEntries(["attributes", "commands", "alarms", "events", "relations"].map((tab) => [`devices/{boiler}?tab=${tab}`, DEVICE])),
  dashboards: ["Import…", "New dashboard…"], "dashboards/{plant}": ["Screen…"], "profiles/{furnace}": ["Delete…"], chains: ["Import…", "New rule chain…"], "chains/{root}": ["Rename…"],
  "rules/hot": ["Reset counters…"], "actions/http:alert": ["Purge…", "Delete…"], users: ["New user…", "Edit…"], access: ["Add rule…", "Edit…"], "console-users": ["New user…", "Change role…", "End…"], keys: ["New key…"],
  authentication: ["Add or change…"],
  account: ["Turn on…", "End all others…", "End…"],
  listeners: ["Restart server…", "Add listener…"], configuration: ["Restart server…", "Change…"],
};

/** Buttons that open a file chooser instead of a dialog. */
const WITHOUT_DIALOG: Record<string, (page: Page, button: Locator) => Promise<void>> = {
  "Import…": async (page, button) => { await Promise.all([page.waitForEvent("filechooser"), button.click()]); },
};

test("dialogs fit a phone", async ({ console: page }) => {
  test.setTimeout(seconds(240));
  await page.setViewportSize({ width: 360, height: 740 });
  const dialog = page.getByRole("dialog");
  for (const one of PAGES) {
    await open(page, one);
    await drawn(page);
    // This button exists on each platform page and leaves the page.
    const buttons = page.locator("main button:enabled", { hasText: /…$/, hasNotText: "Switch tenant…" }).filter({ visible: true });
    const names = ASKING[one] ?? [];
    await haveTexts(buttons, names, one);
    for (const name of names) {
      const button = buttons.filter({ hasText: new RegExp(`^\\s*${name}\\s*$`) }).first();
      const asks = WITHOUT_DIALOG[name];
      if (asks) {
        await asks(page, button);
        continue;
      }
      await button.click();
      await expect(dialog).toBeVisible();
      await holds(dialog, `${one}: ${name}`);
      await fits(page, `${one}: ${name}`);
      await page.keyboard.press("Escape");
      await expect(dialog).toHaveCount(0);
    }
  }
  expect(Object.keys(ASKING).filter((one) => !PAGES.includes(one))).toEqual([]);
});

test("rule conditions are added and removed on a phone", async ({ console: page }) => {
  await page.setViewportSize({ width: 360, height: 740 });
  await open(page, "profiles/{furnace}");
  await page.getByRole("button", { name: "Add condition", exact: true }).first().click();
  const second = page.getByRole("button", { name: "Remove condition 2", exact: true });
  await expect(second).toBeVisible();
  await fits(page, "a rule with two conditions");
  await second.click();
  await expect(second).toHaveCount(0);
});

test("pages fill a 4K screen with larger text", async ({ console: page }) => {
  await page.setViewportSize({ width: 3840, height: 2160 });
  for (const one of ["home", "devices/{boiler}?tab=telemetry", "dashboards/{plant}", "profiles/{furnace}"]) {
    await open(page, one);
    await drawn(page);
    await expect.poll(() => page.evaluate(() => document.querySelector("main")?.getBoundingClientRect().right ?? 0), one).toBeGreaterThan(3840 * 0.9);
    await expect.poll(() => page.evaluate(() => Number.parseFloat(getComputedStyle(document.body).fontSize)), one).toBeGreaterThanOrEqual(24);
  }
});

test("the login page passes axe", async ({ page, node }) => {
  await page.goto(node.url);
  await expect(page.getByRole("button", { name: "Log in", exact: true })).toBeVisible();
  await isAccessible(page, "login");
  // The button must be readable also under the pointer.
  for (const colorScheme of ["light", "dark"] as const) {
    await page.emulateMedia({ colorScheme });
    await page.getByRole("button", { name: "Log in", exact: true }).hover();
    await isAccessible(page, "login with the pointer on its button");
  }
});

test("dashboards pass axe in edit and kiosk mode and on a screen", async ({ console: page, node }) => {
  test.setTimeout(seconds(120));
  const made = (await node.call("POST", "/api/v1/api-keys", { name: "axe-screen", role: "viewer", dashboard: address("{plant}") })) as { secret: string };
  const fault = async (name: string) => {
    await isAccessible(page, name);
    await fits(page, name);
  };
  for (const [colorScheme, width] of [["light", 1280], ["dark", 360]] as const) {
    await page.emulateMedia({ colorScheme });
    await page.setViewportSize({ width, height: 900 });
    await open(page, "dashboards/{plant}?edit");
    await expect(page.getByRole("button", { name: "Add widget…", exact: true })).toBeVisible();
    await fault("edit");
    await open(page, "dashboards/{plant}?kiosk");
    await expect(page.getByRole("button", { name: "Exit", exact: true })).toBeVisible();
    await fault("kiosk");
    await open(page, `screen/{plant}?key=${made.secret}`);
    await expect(page.getByRole("button", { name: "Exit", exact: true })).toHaveCount(0);
    await expect(page.getByRole("heading", { level: 1, name: "Plant", exact: true })).toBeVisible();
    await fault("screen");
    await open(page, "screen/{plant}");
    await expect(page.getByRole("heading", { level: 1, name: "Screen not available", exact: true })).toBeVisible();
    await fault("screen without a key");
    await open(page, "home");
  }
});

test("the page for the first password passes axe", async ({ page, node }) => {
  const made = (await node.call("POST", "/api/v1/console-users", { name: "axe", role: "viewer" })) as { password: string };
  await page.goto(node.url);
  await page.getByLabel("User", { exact: true }).fill("axe");
  await page.getByLabel("Password", { exact: true }).fill(made.password);
  await page.getByRole("button", { name: "Log in", exact: true }).click();
  await expect(page.getByRole("heading", { name: "Set your own password", exact: true })).toBeVisible();
  for (const colorScheme of ["light", "dark"] as const) {
    await page.emulateMedia({ colorScheme });
    await isAccessible(page, "first password");
  }
});
