// Dry runs of a rule on event examples, live messages and typed messages.
import type { Page } from "@playwright/test";
import { valueOf } from "../support/reads";
import { seconds } from "../support/slow";
import { expect, open, test } from "../support/test";

async function write(page: Page, sql: string): Promise<void> {
  await open(page, "rules/new");
  await page.getByLabel("SQL of the rule", { exact: true }).fill(sql);
}

test("an event is tried on an editable example", async ({ console: page }) => {
  await write(page, 'SELECT clientid, reason FROM "$events/client/disconnected"');
  const event = page.getByLabel("Event (JSON)", { exact: true });
  await expect(event).toHaveValue(/"clientid": "c_example"/);
  await expect(event).toHaveValue(/"disconnected_at": \d+/);
  const output = page.getByRole("region", { name: "Dry run", exact: true }).locator("pre");
  await expect(output).toHaveText(/"clientid": "c_example",\s+"reason": "normal"/);
  await event.fill((await valueOf(event)).replace("c_example", "c_mine"));
  await expect(output).toHaveText(/"clientid": "c_mine"/);
  await event.fill("{");
  await expect(page.getByText(/^The event is not valid JSON/)).toBeVisible();
  // An edited event stays when the event type changes.
  await page.getByLabel("SQL of the rule", { exact: true }).fill('SELECT topic FROM "$events/session/subscribed"');
  await expect(page.getByText("An example of $events/session/subscribed.")).toBeVisible();
  await expect(event).toHaveValue("{");
  await event.fill("");
  await page.getByLabel("SQL of the rule", { exact: true }).fill('SELECT topic, qos FROM "$events/session/unsubscribed"');
  await expect(event).toHaveValue(/"topic": "t\/a"/);
});

test("a live message is captured for a dry run", async ({ console: page, node }) => {
  await write(page, 'SELECT payload.heat AS heat, clientid, qos, flags.retain AS kept, pub_props FROM "tryout/a/#", "tryout/b/+"');
  await page.getByRole("button", { name: "Capture live message", exact: true }).click();
  const stop = page.getByRole("button", { name: "Cancel", exact: true });
  await expect(stop).toBeVisible();
  const area = page.getByRole("region", { name: "Dry run", exact: true });
  await expect(async () => {
    await node.publish("tryout/elsewhere", '{"heat": 1}');
    await node.publish("tryout/b/attic", '{"heat": 77}', "-i", "oven-3", "-q", "1");
    await expect(area.getByLabel("Topic", { exact: true })).toHaveValue("tryout/b/attic", { timeout: seconds(0.5) });
  }).toPass();
  await expect(stop).toBeHidden();
  await expect(area.getByLabel("Client id", { exact: true })).toHaveValue("oven-3");
  await expect(area.locator("pre")).toHaveText(/"clientid": "oven-3",\s+"heat": 77,\s+"kept": false,\s+"pub_props": \{\},\s+"qos": 1/);
});

test("a dry run accepts all properties of a message", async ({ console: page }) => {
  await write(page, "SELECT username, qos, flags.retain AS kept, pub_props.'User-Property'.room AS room, pub_props.'Content-Type' AS kind FROM \"tryout/#\"");
  const area = page.getByRole("region", { name: "Dry run", exact: true });
  await area.getByText("User, QoS, retain and properties", { exact: true }).click();
  await area.getByLabel("User", { exact: true }).fill("cook");
  await area.getByRole("combobox", { name: "QoS", exact: true }).selectOption("2");
  await area.getByLabel("Retained", { exact: true }).check();
  await area.getByLabel("Content type", { exact: true }).fill("text/plain");
  await area.getByLabel("User properties", { exact: true }).fill("room = kitchen");
  await expect(area.locator("pre")).toHaveText(/"kept": true,\s+"kind": "text\/plain",\s+"qos": 2,\s+"room": "kitchen",\s+"username": "cook"/);
});
