// No page has a fault that axe finds, light or dark, nor is one too wide for a telephone.
import AxeBuilder from "@axe-core/playwright";
import { address, PAGES } from "../support/pages";
import { expect, open, test } from "../support/test";

test.use({ isFurnished: true });

const AT_ONCE = 8;

for (const colorScheme of ["light", "dark"] as const) {
  for (let from = 0; from < PAGES.length; from += AT_ONCE) {
    const pages = PAGES.slice(from, from + AT_ONCE);
    test(`axe finds nothing in ${colorScheme} colours, ${pages[0]} and on`, async ({ console: page }) => {
      test.setTimeout(240_000);
      await page.emulateMedia({ colorScheme });
      for (const one of pages) {
        await open(page, one);
        await expect(page.getByText("Loading…")).toHaveCount(0);
        const { violations } = await new AxeBuilder({ page }).analyze();
        expect.soft(violations.map((violation) => `${one}: ${violation.id}: ${violation.nodes.map((node) => node.html).slice(0, 3).join(" ")}`)).toEqual([]);
      }
    });
  }
}

test("axe finds nothing in dialogs", async ({ console: page }) => {
  test.setTimeout(240_000);
  const dialogs: [string, string][] = [
    ["bans", "New ban…"], ["users", "New user…"], ["access", "Add a rule…"], ["console-users", "New user…"], ["keys", "New key…"], ["devices", "New device…"], ["devices", "Import CSV…"], ["retained", "Publish…"],
    ["dashboards", "New dashboard…"], ["dashboards/{plant}", "Screen…"], ["alarms", "Show Overheat of boiler"],
    ["dashboards/{plant}?edit", "Add a widget…"], ["dashboards/{plant}?edit", "Title…"], ["devices/{boiler}", "Change…"], ["devices/{boiler}?tab=connection", "Other credentials…"],
  ];
  for (const colorScheme of ["light", "dark"] as const) {
    await page.emulateMedia({ colorScheme });
    for (const [path, name] of dialogs) {
      await open(page, path);
      await page.getByRole("button", { name, exact: true }).click();
      await expect(page.getByRole("dialog")).toBeVisible();
      await expect(page.getByText("Loading…")).toHaveCount(0);
      const { violations } = await new AxeBuilder({ page }).include("dialog").analyze();
      expect.soft(violations.map((violation) => `${name}: ${violation.id}: ${violation.nodes.map((node) => node.html).slice(0, 3).join(" ")}`)).toEqual([]);
      await page.keyboard.press("Escape");
      await expect(page.getByRole("dialog")).toHaveCount(0);
    }
  }
});

test("no page with something on it is wider than a telephone", async ({ console: page }) => {
  test.setTimeout(120_000);
  await page.setViewportSize({ width: 360, height: 740 });
  for (const one of PAGES) {
    await open(page, one);
    await expect(page.getByText("Loading…")).toHaveCount(0);
    expect.soft(await page.evaluate(() => document.documentElement.scrollWidth - innerWidth), one).toBeLessThanOrEqual(0);
  }
});

test("no dialog is wider than a telephone", async ({ console: page }) => {
  test.setTimeout(240_000);
  await page.setViewportSize({ width: 360, height: 740 });
  let opened = 0;
  for (const one of PAGES) {
    await open(page, one);
    await expect(page.getByText("Loading…")).toHaveCount(0);
    const names = await page.locator("main button:enabled", { hasText: /…$/ }).allInnerTexts();
    for (const name of new Set(names)) {
      const button = page.locator("main button:enabled").getByText(name, { exact: true }).first();
      if (!await button.isVisible()) continue;
      await button.click();
      const dialog = page.getByRole("dialog");
      // Some have no dialog.
      if (await dialog.count() === 0) continue;
      opened += 1;
      const over = await dialog.evaluate((shown) => [shown.scrollWidth - shown.clientWidth, document.documentElement.scrollWidth - innerWidth]);
      expect.soft(Math.max(...over), `${one}: ${name}`).toBeLessThanOrEqual(0);
      await page.keyboard.press("Escape");
      await expect(dialog).toHaveCount(0);
    }
  }
  expect(opened).toBeGreaterThan(10);
});

test("on a screen of 4K pages fill it, and letters are larger", async ({ console: page }) => {
  await page.setViewportSize({ width: 3840, height: 2160 });
  for (const one of ["home", "devices/{boiler}?tab=telemetry", "dashboards/{plant}", "profiles/{furnace}"]) {
    await open(page, one);
    await expect(page.getByText("Loading…")).toHaveCount(0);
    const [right, letters] = await page.evaluate(() => [document.querySelector("main")?.getBoundingClientRect().right ?? 0, Number.parseFloat(getComputedStyle(document.body).fontSize)]);
    expect.soft(right, one).toBeGreaterThan(3840 * 0.9);
    expect.soft(letters, one).toBeGreaterThanOrEqual(24);
  }
});

test("axe finds nothing on the login page", async ({ page, node }) => {
  await page.goto(node.url);
  await expect(page.getByRole("button", { name: "Log in", exact: true })).toBeVisible();
  expect((await new AxeBuilder({ page }).analyze()).violations).toEqual([]);
  // What is on a button can be read when the pointer is over it, too.
  for (const colorScheme of ["light", "dark"] as const) {
    await page.emulateMedia({ colorScheme });
    await page.getByRole("button", { name: "Log in", exact: true }).hover();
    expect.soft((await new AxeBuilder({ page }).analyze()).violations).toEqual([]);
  }
});

test("axe finds nothing where dashboards are edited, in kiosk and on a screen", async ({ console: page, node }) => {
  test.setTimeout(120_000);
  const made = (await node.call("POST", "/api/v1/api-keys", { name: "axe-screen", role: "viewer", dashboard: address("{plant}") })) as { secret: string };
  const fault = async (name: string) => {
    await expect(page.getByText("Loading…")).toHaveCount(0);
    const { violations } = await new AxeBuilder({ page }).analyze();
    expect.soft(violations.map((violation) => `${name}: ${violation.id}: ${violation.nodes.map((one) => one.html).slice(0, 3).join(" ")}`)).toEqual([]);
    expect.soft(await page.evaluate(() => document.documentElement.scrollWidth - innerWidth), name).toBeLessThanOrEqual(0);
  };
  for (const [colorScheme, width] of [["light", 1280], ["dark", 360]] as const) {
    await page.emulateMedia({ colorScheme });
    await page.setViewportSize({ width, height: 900 });
    await open(page, "dashboards/{plant}?edit");
    await expect(page.getByRole("button", { name: "Add a widget…", exact: true })).toBeVisible();
    await fault("edit");
    await open(page, "dashboards/{plant}?kiosk");
    await expect(page.getByRole("button", { name: "Leave", exact: true })).toBeVisible();
    await fault("kiosk");
    await open(page, `screen/{plant}?key=${made.secret}`);
    await expect(page.getByRole("button", { name: "Leave", exact: true })).toHaveCount(0);
    await expect(page.getByRole("heading", { level: 1, name: "Plant", exact: true })).toBeVisible();
    await fault("screen");
    await open(page, "screen/{plant}");
    await expect(page.getByRole("heading", { level: 1, name: "Nothing is shown here", exact: true })).toBeVisible();
    await fault("screen without a key");
    await open(page, "home");
  }
});

test("axe finds nothing on the page for the first password", async ({ page, node }) => {
  const made = (await node.call("POST", "/api/v1/console-users", { name: "axe", role: "viewer" })) as { password: string };
  await page.goto(node.url);
  await page.getByLabel("User", { exact: true }).fill("axe");
  await page.getByLabel("Password", { exact: true }).fill(made.password);
  await page.getByRole("button", { name: "Log in", exact: true }).click();
  await expect(page.getByRole("heading", { name: "Set a password of your own", exact: true })).toBeVisible();
  for (const colorScheme of ["light", "dark"] as const) {
    await page.emulateMedia({ colorScheme });
    expect.soft((await new AxeBuilder({ page }).analyze()).violations).toEqual([]);
  }
});
