// The first five minutes as described in docs/get-started/first-device.md: from the first start to a chart on a
// dashboard. The time that a person needs for each step is added.
import { execFileSync } from "node:child_process";
import type { Locator } from "@playwright/test";
import { textOf } from "../support/reads";
import { seconds } from "../support/slow";
import { expect, logIn, test, watch } from "../support/test";
import { Node } from "../support/node";

/** Seconds of a person to find and click a button, fill in a field, or paste into a terminal and return. */
const PERSON_S = { click: 6, fill: 8, paste: 15 };
const LIMIT_S = 180;

test("the first chart on a dashboard takes under three minutes", async ({ page }) => {
  const begin = Date.now();
  let person_s = 0;
  const click = async (what: Locator) => { person_s += PERSON_S.click; await what.click(); };
  const fill = async (what: Locator, text: string) => { person_s += PERSON_S.fill; await what.fill(text); };
  const node = await Node.start("platform.enabled=true");
  const pageErrors = watch(page, node.url);
  // The terminal shows where the password is.
  person_s += PERSON_S.paste + PERSON_S.fill + PERSON_S.click;
  await logIn(page, node);
  for (const step of ["Create a device", "Send telemetry"]) await expect(page.getByRole("listitem").filter({ hasText: step })).toContainText("To do:");
  // Without clients, the first steps are visible without scrolling.
  await expect(page.getByRole("link", { name: "create a device and put its chart on a dashboard", exact: true })).toBeInViewport();
  await click(page.getByRole("link", { name: "create a device and put its chart on a dashboard", exact: true }));
  await click(page.getByRole("form", { name: "New tenant", exact: true }).getByRole("button", { name: "Create", exact: true }));
  await click(page.getByRole("button", { name: "New device…", exact: true }));
  await fill(page.getByRole("dialog").getByLabel("Name", { exact: true }), "boiler");
  await click(page.getByRole("dialog").getByRole("button", { name: "Create", exact: true }));
  // A shell can run the first example.
  const line = await textOf(page.getByText(/^mosquitto_pub .*telemetry/));
  person_s += PERSON_S.paste;
  execFileSync("sh", ["-c", line], { timeout: seconds(30) });
  // Without a terminal, a button sends a value.
  await click(page.getByRole("button", { name: "Send test temperature", exact: true }));
  await expect(page.getByText(/^Temperature \d+(\.\d)? sent\. See the Telemetry tab\.$/)).toBeVisible();
  await click(page.getByRole("link", { name: "Telemetry", exact: true }));
  await click(page.getByRole("button", { name: "Add to dashboard…", exact: true }));
  const dialog = page.getByRole("dialog");
  await expect(dialog.getByLabel("Dashboard title", { exact: true })).toHaveValue("boiler");
  await click(dialog.getByRole("button", { name: "Add", exact: true }));
  await expect(page.getByRole("heading", { level: 1, name: "boiler", exact: true })).toBeVisible();
  const chart = page.getByRole("region", { name: "boiler: temperature", exact: true });
  await expect(chart.getByRole("listitem").first()).toContainText(/temperature \d/);
  const took_s = (Date.now() - begin) / 1000;
  console.log(`the browser took ${took_s.toFixed(1)} s; with ${person_s} s for a person: ${(took_s + person_s).toFixed(0)} s`);
  expect(took_s + person_s).toBeLessThan(LIMIT_S);
  // The checklist shows the device as done.
  await page.getByRole("link", { name: "Home", exact: true }).click();
  const checklist = page.getByRole("region", { name: "Getting started", exact: true });
  for (const step of ["Create a device", "Send telemetry"]) await expect(checklist.getByRole("listitem").filter({ hasText: step })).toContainText("Done:");
  // The charts have data now, so they come first.
  await expect(checklist).not.toBeInViewport();
  await page.goBack();
  await expect(chart).toBeVisible();
  // A second chart is added below the first on the same dashboard.
  await page.goBack();
  await page.getByRole("button", { name: "Add to dashboard…", exact: true }).click();
  await dialog.getByRole("combobox", { name: "Dashboard", exact: true }).selectOption({ label: "boiler" });
  await dialog.getByLabel("Chart title", { exact: true }).fill("Again");
  await dialog.getByRole("button", { name: "Add", exact: true }).click();
  await expect(page.getByRole("region", { name: "Again", exact: true })).toHaveCSS("grid-row-start", "7");
  // Known keys are offered as buttons.
  await page.getByRole("button", { name: "Edit", exact: true }).click();
  await page.getByRole("button", { name: "Add widget…", exact: true }).click();
  await dialog.getByRole("combobox", { name: "Device", exact: true }).selectOption({ label: "boiler" });
  await dialog.getByRole("button", { name: "Key temperature", exact: true }).click();
  await expect(dialog.getByLabel("Keys", { exact: true })).toHaveValue("temperature");
  expect(pageErrors).toEqual([]);
  await node.stop();
});
