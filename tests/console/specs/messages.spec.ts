// Messages: retained messages, the live topic tree, and the MQTT client page.
import { until } from "../support/node";
import { expect, open, test } from "../support/test";

test("a retained message is published, found and deleted", async ({ console: page }) => {
  await open(page, "retained");
  await page.getByRole("button", { name: "Publish…", exact: true }).click();
  const form = page.getByRole("form", { name: "Publish a message", exact: true });
  await form.getByLabel("Topic", { exact: true }).fill("settings/kitchen");
  await form.getByLabel("Payload", { exact: true }).fill('{"interval": 30}');
  await form.getByLabel("Retain", { exact: true }).check();
  await form.getByRole("button", { name: "Publish", exact: true }).click();
  // The page behind an open dialog is inert.
  await expect(page.getByRole("dialog")).toBeHidden();
  await page.getByLabel("Topic filter", { exact: true }).fill("settings/+");
  const table = page.getByRole("region", { name: "Table: Retained messages", exact: true });
  await expect(table.getByRole("cell", { name: "settings/kitchen", exact: true })).toBeVisible();
  await page.getByRole("button", { name: "Show settings/kitchen", exact: true }).click();
  const dialog = page.getByRole("dialog");
  await expect(dialog.getByRole("region", { name: "Payload", exact: true })).toHaveText(/"interval": 30/);
  await dialog.getByRole("button", { name: "Hex", exact: true }).click();
  await expect(dialog.getByRole("region", { name: "Payload", exact: true })).toContainText("7b 22 69 6e");
  await dialog.getByRole("button", { name: "Close", exact: true }).click();
  await page.getByRole("button", { name: "Delete settings/kitchen", exact: true }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Delete", exact: true }).click();
  await expect(page.getByText("No retained message matches.")).toBeVisible();
});

test("several retained messages are deleted at once", async ({ console: page, node }) => {
  for (const topic of ["others/a", "many/a/x", "many/a/y", "many/b/x", "many/b/y", "many/c"]) await node.publish(topic, "1", "-r");
  const stored = async () => ((await node.call("GET", "/api/v1/retained?filter=many/%23")) as { items: { topic: string }[] }).items.map(({ topic }) => topic).sort();
  await open(page, "retained");
  await expect(page.getByRole("checkbox", { name: "Select others/a", exact: true })).toBeVisible();
  await page.getByLabel("Topic filter", { exact: true }).fill("many/#");
  const table = page.getByRole("region", { name: "Table: Retained messages", exact: true });
  await expect(table.getByRole("row")).toHaveCount(6);
  const dialog = page.getByRole("dialog");
  const all = table.getByRole("checkbox", { name: "Select all rows on this page", exact: true });
  await all.check();
  await expect(page.getByText("5 selected", { exact: true })).toBeVisible();
  for (const topic of ["many/b/x", "many/b/y", "many/c"]) await table.getByRole("checkbox", { name: `Select ${topic}`, exact: true }).uncheck();
  await expect(all).not.toBeChecked();
  await page.getByRole("button", { name: "Delete 2 messages…", exact: true }).click();
  await expect(dialog).toContainText("New subscribers will no longer receive: many/a/x, many/a/y.");
  await dialog.getByRole("button", { name: "Cancel", exact: true }).click();
  expect(await stored()).toHaveLength(5);
  await page.getByRole("button", { name: "Delete 2 messages…", exact: true }).click();
  await dialog.getByRole("button", { name: "Delete", exact: true }).click();
  await expect(page.getByText("2 retained messages deleted.", { exact: true })).toBeVisible();
  expect(await stored()).toEqual(["many/b/x", "many/b/y", "many/c"]);

  await page.getByLabel("Topic filter", { exact: true }).fill("many/b/+");
  await expect(table.getByRole("row")).toHaveCount(3);
  await page.getByRole("button", { name: "Delete all matches…", exact: true }).click();
  await expect(dialog).toContainText("Delete 2 retained messages?");
  await expect(dialog.getByRole("button", { name: "Delete", exact: true })).toBeDisabled();
  await dialog.getByLabel("Type many/b/+ to confirm", { exact: true }).fill("many/b/+");
  await dialog.getByRole("button", { name: "Delete", exact: true }).click();
  await expect(page.getByText("No retained message matches.")).toBeVisible();
  expect(await stored()).toEqual(["many/c"]);
});

test("the topic tree shows rates and payloads", async ({ console: page, node }) => {
  await open(page, "topics");
  await page.getByLabel("Topic filter", { exact: true }).fill("tree/#");
  await page.getByRole("button", { name: "Watch", exact: true }).click();
  await expect(page.getByText("No messages yet.")).toBeVisible();
  await node.publish("tree/house/kitchen/temp", '{"value": 21.5}', "-r");
  const load = node.load("tree/house/attic", 50);
  const tree = page.getByRole("list", { name: "Topics", exact: true });
  await expect(tree.getByText("house", { exact: true })).toBeVisible();
  await tree.getByRole("button", { name: "Close tree/house", exact: true }).click();
  await expect(tree.getByText("attic")).toBeHidden();
  await tree.getByRole("button", { name: "Open tree/house", exact: true }).click();
  await expect(tree.getByText("attic")).toBeVisible();
  await expect(page.getByText(/^[1-9]\d* messages\/s/)).toBeVisible();
  await page.getByLabel("Search topics", { exact: true }).fill("KITCHEN");
  await page.getByRole("list", { name: "Topics found", exact: true }).getByRole("button").click();
  await expect(page.getByRole("region", { name: "Payload", exact: true })).toContainText('"value": 21.5');
  await page.getByRole("button", { name: "Stop", exact: true }).click();
  await expect(page.getByRole("button", { name: "Watch", exact: true })).toBeVisible();
  // Further messages do not arrive after the stop. Earlier ones stay.
  await until(async () => ((await node.call("GET", "/api/v1/subscriptions?filter=tree/")) as { items: unknown[] }).items.length === 0);
  await node.publish("tree/house/kitchen/temp", '{"value": 99}', "-q", "1");
  await expect(page.getByRole("region", { name: "Payload", exact: true })).toContainText('"value": 21.5');
  load.kill();
});

test("the topic tree is sorted by name", async ({ console: page, node }) => {
  for (const n of [10, 2, 1]) await node.publish(`order/room-${n}`, "x", "-r");
  await open(page, "topics");
  await page.getByLabel("Topic filter", { exact: true }).fill("order/#");
  await page.getByRole("button", { name: "Watch", exact: true }).click();
  await expect(page.getByRole("list", { name: "Topics", exact: true }).locator("button.name")).toHaveText(["order", "room-1", "room-2", "room-10"]);
});

test("the MQTT client subscribes and publishes with any QoS", async ({ console: page }) => {
  await open(page, "mqtt");
  await page.getByRole("button", { name: "Connect", exact: true }).click();
  await expect(page.getByText(/^Connected as console-/)).toBeVisible();
  const subscribe = page.locator("section", { has: page.getByRole("heading", { name: "Subscribe", exact: true }) });
  await subscribe.getByRole("combobox", { name: "QoS", exact: true }).selectOption("2");
  await subscribe.getByRole("button", { name: "Subscribe", exact: true }).click();
  await expect(subscribe.getByRole("listitem")).toContainText("demo/# QoS 2");
  const publish = page.locator("section", { has: page.getByRole("heading", { name: "Publish", exact: true }) });
  await publish.getByText("MQTT 5 properties").click();
  await publish.getByLabel("Content type", { exact: true }).fill("application/json");
  await publish.getByLabel("User properties", { exact: true }).fill("room = kitchen");
  for (const qos of ["0", "1", "2"]) {
    await publish.getByRole("combobox", { name: "QoS", exact: true }).selectOption(qos);
    await publish.getByLabel("Topic", { exact: true }).fill(`demo/qos${qos}`);
    await publish.getByRole("button", { name: "Publish", exact: true }).click();
  }
  const log = page.locator("section", { has: page.getByRole("heading", { name: /Messages/ }) });
  await expect(log.getByRole("heading")).toContainText("6 total");
  const received = log.getByRole("button", { name: /^in .*demo\/qos2 QoS 2/ });
  await received.click();
  await expect(log.getByText("room", { exact: true })).toBeVisible();
  await expect(log.getByText("application/json", { exact: true })).toBeVisible();
  await page.getByRole("button", { name: "Disconnect", exact: true }).click();
  await expect(page.getByText("Disconnected.", { exact: true })).toBeVisible();
});

test("a refused connection shows the reason", async ({ console: page }) => {
  await open(page, "mqtt");
  await page.getByLabel("MQTT user", { exact: true }).fill("nobody");
  await page.getByLabel("Password", { exact: true }).fill("wrong");
  await page.getByRole("button", { name: "Connect", exact: true }).click();
  await expect(page.getByText(/Bad user name or password \(0x86\)|Not authorized \(0x87\)/)).toBeVisible();
});

test("a Sparkplug B payload is decoded", async ({ console: page, node }) => {
  await open(page, "topics");
  await page.getByLabel("Topic filter", { exact: true }).fill("spBv1.0/#");
  await page.getByRole("button", { name: "Watch", exact: true }).click();
  await expect(page.getByText("No messages yet.")).toBeVisible();
  // seq 88, and one metric: name "t", datatype 10 (double), 21.5
  const metric = [0x0a, 1, 0x74, 0x20, 10, 0x69, 0, 0, 0, 0, 0, 0x80, 0x35, 0x40];
  const payload = Buffer.from([0x12, metric.length, ...metric, 0x18, 88]).toString("base64");
  await node.call("POST", "/api/v1/publish", { topic: "spBv1.0/plant/NDATA/edge", payload, payload_encoding: "base64" });
  await page.getByRole("button", { name: "edge", exact: true }).click();
  const shown = page.getByRole("region", { name: "Payload", exact: true });
  await expect(page.getByRole("list", { name: "Topics", exact: true })).toContainText('{ "metrics": [ { "name": "t",');
  await expect(shown).toHaveText(/"metrics": \[\s*\{\s*"name": "t",\s*"datatype": 10,\s*"double_value": 21\.5\s*\}\s*\],\s*"seq": 88/);
  await page.getByRole("button", { name: "Hex", exact: true }).click();
  await expect(shown).toContainText("12 0e 0a 01 74");
});
