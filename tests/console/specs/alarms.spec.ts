// Announcements of new alarms, and bulk actions on alarms.
import { expect, open, test } from "../support/test";
import { Platform } from "../support/platform";

test.use({ hasPlatform: true, permissions: ["notifications"] });

test("only new alarms are announced by sound and notification", async ({ console: page, node }) => {
  const platform = await Platform.open(node, "Main");
  const originator = { entityType: "DEVICE", id: await platform.device("kiln") };
  const raise = (type: string) => platform.call("POST", "/api/alarm", { originator, type, severity: "CRITICAL", details: {} });
  await raise("Before");
  // Records notifications and sounds instead of showing and playing them.
  await page.addInitScript(() => {
    const notice: string[] = [];
    Object.assign(window, { notice });
    window.Notification = class { static permission = "granted"; static requestPermission = () => Promise.resolve("granted"); constructor(_: string, options: { body: string }) { notice.push(options.body); } } as unknown as typeof Notification;
    const start = OscillatorNode.prototype.start;
    OscillatorNode.prototype.start = function (when?: number) { notice.push("beep"); start.call(this, when); };
  });
  await page.reload();
  await open(page, "alarms");
  await expect(page.getByRole("button", { name: "Show Before of kiln", exact: true })).toBeVisible();
  const notice = () => page.evaluate(() => (window as unknown as { notice: string[] }).notice);
  await page.getByRole("checkbox", { name: "notification", exact: true }).check();
  await page.getByRole("checkbox", { name: "sound", exact: true }).check();
  await expect.poll(notice).toEqual(["beep", "beep"]);
  // The setting is stored and applies on other pages.
  await page.reload();
  const asked = page.waitForResponse((answer) => answer.url().includes("/api/v2/alarms") && answer.url().includes("sortProperty=createdTime"));
  await open(page, "home");
  await asked;
  await raise("Overheat");
  await expect(page.getByText("New alarm: critical: Overheat of kiln")).toBeVisible();
  await expect.poll(notice).toEqual(["beep", "beep", "critical: Overheat of kiln"]);
  await open(page, "alarms");
  await page.getByRole("checkbox", { name: "notification", exact: true }).uncheck();
  await page.getByRole("checkbox", { name: "sound", exact: true }).uncheck();
});

test("alarms are filtered by creation time", async ({ console: page, node }) => {
  const platform = await Platform.open(node, "Main");
  const originator = { entityType: "DEVICE", id: await platform.device("oven") };
  await platform.call("POST", "/api/alarm", { originator, type: "Burnt", severity: "MAJOR", details: {} });
  await open(page, "alarms");
  const asked = page.waitForRequest((request) => request.url().includes("/api/v2/alarms") && request.url().includes("startTime="));
  await page.getByRole("combobox", { name: "Created", exact: true }).selectOption("in the last 1 h");
  const startTime = Number(new URL((await asked).url()).searchParams.get("startTime"));
  expect(Math.abs(Date.now() - 3_600_000 - startTime)).toBeLessThan(60_000);
  await expect(page.getByRole("button", { name: "Show Burnt of oven", exact: true })).toBeVisible();
  // The audit log shows the alarm as an alarm of the device.
  await open(page, "tenant-audit");
  const log = page.getByRole("region", { name: "Table: Tenant audit log", exact: true });
  await expect(log.getByRole("row", { name: /alarm Burnt of a device/ })).toBeVisible();
});

test("several alarms are acknowledged, assigned and cleared", async ({ console: page, node }) => {
  const platform = await Platform.open(node, "Main");
  const originator = { entityType: "DEVICE", id: await platform.device("furnace") };
  for (const type of ["Smoke", "Heat", "Noise"]) await platform.call("POST", "/api/alarm", { originator, type, severity: "MAJOR", details: {} });
  await platform.call("POST", "/api/alarm", { originator: { entityType: "DEVICE", id: await platform.device("other") }, type: "Rust", severity: "MINOR", details: {} });
  const ada = (await platform.call("POST", "/api/user", { email: "ada@example.com", firstName: "Ada", authority: "TENANT_ADMIN" })) as { id: { id: string } };
  expect(ada.id.id).toBeTruthy();
  await open(page, "alarms");
  await expect(page.getByRole("checkbox", { name: "Select Rust of other", exact: true })).toBeVisible();
  await page.getByLabel("Type", { exact: true }).fill("Smoke,Heat,Noise");
  const table = page.getByRole("region", { name: "Table: Alarms", exact: true });
  const state = (type: string) => table.getByRole("row", { name: new RegExp(`Show ${type} of furnace`) });
  await expect(table.getByRole("row")).toHaveCount(4);
  for (const type of ["Smoke", "Heat"]) await table.getByRole("checkbox", { name: `Select ${type} of furnace`, exact: true }).check();
  const bar = page.getByRole("group", { name: "Bulk actions", exact: true });
  await expect(bar.getByText("2 selected", { exact: true })).toBeVisible();
  await bar.getByRole("button", { name: "Acknowledge 2", exact: true }).click();
  await expect(page.getByText("2 alarms acknowledged.", { exact: true })).toBeVisible();
  await expect(state("Smoke")).toContainText("active, acknowledged");
  await expect(state("Heat")).toContainText("active, acknowledged");
  await expect(state("Noise")).not.toContainText("acknowledged");

  await table.getByRole("checkbox", { name: "Select all rows on this page", exact: true }).check();
  await expect(bar.getByRole("button", { name: "Acknowledge 1", exact: true })).toBeVisible();
  await bar.getByRole("combobox", { name: "Assignee", exact: true }).selectOption("to Ada");
  await bar.getByRole("button", { name: "Assign", exact: true }).click();
  await expect(page.getByText("3 alarms assigned to Ada.", { exact: true })).toBeVisible();
  await expect(state("Noise")).toContainText("active, assigned to Ada");
  await table.getByRole("checkbox", { name: "Select Heat of furnace", exact: true }).check();
  await bar.getByRole("combobox", { name: "Assignee", exact: true }).selectOption("unassigned");
  await bar.getByRole("button", { name: "Assign", exact: true }).click();
  await expect(state("Heat")).not.toContainText("assigned");

  await page.getByRole("combobox", { name: "Assigned to", exact: true }).selectOption("Ada");
  await expect(table.getByRole("row")).toHaveCount(3);
  await table.getByRole("checkbox", { name: "Select all rows on this page", exact: true }).check();
  await bar.getByRole("button", { name: "Clear 2…", exact: true }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Cancel", exact: true }).click();
  await expect(state("Smoke")).toContainText("active");
  await bar.getByRole("button", { name: "Clear 2…", exact: true }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Clear", exact: true }).click();
  await expect(page.getByText("2 alarms cleared.", { exact: true })).toBeVisible();
  await expect(state("Smoke")).toContainText("cleared, acknowledged, assigned to Ada");
  // Actions that are no longer possible are disabled with a reason.
  await table.getByRole("checkbox", { name: "Select Smoke of furnace", exact: true }).check();
  await expect(bar.getByRole("button", { name: "Clear 0…", exact: true })).toBeDisabled();
});
