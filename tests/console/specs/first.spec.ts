// The first five minutes, as docs/first-five-minutes.md has them: from the start of the binary to a device's chart on a dashboard. A person needs longer for each step
// than a script: that is counted in.
import { execFileSync } from "node:child_process";
import type { Locator } from "@playwright/test";
import { textOf } from "../support/reads";
import { seconds } from "../support/slow";
import { expect, logIn, test, watch } from "../support/test";
import { Node } from "../support/node";

/** To find a button and click it, to fill in a field, to go to the terminal, paste and come back. */
const PERSON_S = { click: 6, fill: 8, paste: 15 };
const LIMIT_S = 180;

test("from the start of the binary to a device's chart on a dashboard in three minutes", async ({ page }) => {
  const begin = Date.now();
  let person_s = 0;
  const click = async (what: Locator) => { person_s += PERSON_S.click; await what.click(); };
  const fill = async (what: Locator, text: string) => { person_s += PERSON_S.fill; await what.fill(text); };
  const node = await Node.start("platform.enabled=true");
  const complaints = watch(page, node.url);
  // The terminal says where the password is.
  person_s += PERSON_S.paste + PERSON_S.fill + PERSON_S.click;
  await logIn(page, node);
  for (const step of ["Make a first device", "Have it send telemetry"]) await expect(page.getByRole("listitem").filter({ hasText: step })).toContainText("To do:");
  // Nobody has connected yet: how to begin is seen without scrolling.
  await expect(page.getByRole("link", { name: "a device, with its chart on a dashboard", exact: true })).toBeInViewport();
  await click(page.getByRole("link", { name: "a device, with its chart on a dashboard", exact: true }));
  await click(page.getByRole("form", { name: "New tenant", exact: true }).getByRole("button", { name: "Create", exact: true }));
  await click(page.getByRole("button", { name: "New device…", exact: true }));
  await fill(page.getByRole("dialog").getByLabel("Name", { exact: true }), "boiler");
  await click(page.getByRole("dialog").getByRole("button", { name: "Create", exact: true }));
  // The first line to paste is what a shell can run.
  const line = await textOf(page.getByText(/^mosquitto_pub .*telemetry/));
  person_s += PERSON_S.paste;
  execFileSync("sh", ["-c", line], { timeout: seconds(30) });
  // Without a terminal it is a click.
  await click(page.getByRole("button", { name: "Send a temperature from here", exact: true }));
  await expect(page.getByText(/^It said temperature \d+(\.\d)?\. Telemetry shows it\.$/)).toBeVisible();
  await click(page.getByRole("link", { name: "Telemetry", exact: true }));
  await click(page.getByRole("button", { name: "On a dashboard…", exact: true }));
  const dialog = page.getByRole("dialog");
  await expect(dialog.getByLabel("Title of the dashboard", { exact: true })).toHaveValue("boiler");
  await click(dialog.getByRole("button", { name: "Add", exact: true }));
  await expect(page.getByRole("heading", { level: 1, name: "boiler", exact: true })).toBeVisible();
  const chart = page.getByRole("region", { name: "boiler: temperature", exact: true });
  await expect(chart.getByRole("listitem").first()).toContainText(/temperature \d/);
  const took_s = (Date.now() - begin) / 1000;
  console.log(`the browser took ${took_s.toFixed(1)} s; with ${person_s} s for a person: ${(took_s + person_s).toFixed(0)} s`);
  expect(took_s + person_s).toBeLessThan(LIMIT_S);
  // The checklist has heard of it.
  await page.getByRole("link", { name: "Home", exact: true }).click();
  const checklist = page.getByRole("region", { name: "Getting started", exact: true });
  for (const step of ["Make a first device", "Have it send telemetry"]) await expect(checklist.getByRole("listitem").filter({ hasText: step })).toContainText("Done:");
  // By now charts say more.
  await expect(checklist).not.toBeInViewport();
  await page.goBack();
  await expect(chart).toBeVisible();
  // A second chart goes to the same dashboard, below the first.
  await page.goBack();
  await page.getByRole("button", { name: "On a dashboard…", exact: true }).click();
  await dialog.getByRole("combobox", { name: "Dashboard", exact: true }).selectOption({ label: "boiler" });
  await dialog.getByLabel("Title of the chart", { exact: true }).fill("Again");
  await dialog.getByRole("button", { name: "Add", exact: true }).click();
  await expect(page.getByRole("region", { name: "Again", exact: true })).toHaveCSS("grid-row-start", "7");
  // Keys are chosen, not remembered.
  await page.getByRole("button", { name: "Edit", exact: true }).click();
  await page.getByRole("button", { name: "Add a widget…", exact: true }).click();
  await dialog.getByRole("combobox", { name: "Device", exact: true }).selectOption({ label: "boiler" });
  await dialog.getByRole("button", { name: "Key temperature", exact: true }).click();
  await expect(dialog.getByLabel("Keys", { exact: true })).toHaveValue("temperature");
  expect(complaints).toEqual([]);
  await node.stop();
});
