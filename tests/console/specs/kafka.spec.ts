// A rule that forwards to a real Kafka, also after Kafka was down.
import { seconds } from "../support/slow";
import { expect, open, test } from "../support/test";
import { Kafka } from "../support/kafka";

test("a rule written in the browser sends to Kafka", async ({ console: page, node }) => {
  // Kafka runs on Java and starts twice.
  test.setTimeout(seconds(300));
  const kafka = await Kafka.start();
  await kafka.call("topic", "hot");

  await open(page, "connectors/new");
  await page.getByRole("combobox", { name: "Type", exact: true }).selectOption("kafka");
  await page.getByLabel("Name", { exact: true }).fill("plant");
  await page.getByLabel("Bootstrap hosts", { exact: true }).fill(kafka.address);
  await page.getByRole("button", { name: "Test connection", exact: true }).click();
  await expect(page.getByText(/^Connection successful/)).toBeVisible({ timeout: seconds(30) });
  await page.getByRole("button", { name: "Add", exact: true }).click();
  await expect(page.getByRole("heading", { level: 1, name: "plant", exact: true })).toBeVisible();

  await open(page, "actions/new");
  await page.getByRole("combobox", { name: "Type", exact: true }).selectOption("kafka");
  await page.getByLabel("Name", { exact: true }).fill("hot");
  await expect(page.getByRole("combobox", { name: "Connector", exact: true })).toHaveValue("plant");
  await page.getByLabel("Kafka topic", { exact: true }).fill("hot");
  await page.getByRole("button", { name: "Add", exact: true }).click();
  await expect(page.getByRole("heading", { level: 1, name: "kafka:hot", exact: true })).toBeVisible();

  await open(page, "rules/new");
  await page.getByLabel("Id", { exact: true }).fill("to-kafka");
  await page.getByRole("textbox", { name: "SQL of the rule", exact: true }).fill('SELECT clientid, payload.temp AS t FROM "kiln/#" WHERE payload.temp > 30');
  await page.getByLabel("Payload", { exact: true }).fill('{"temp": 31.5}');
  await expect(page.getByText("1 output", { exact: true })).toBeVisible();
  await page.getByRole("combobox", { name: "Add an output", exact: true }).selectOption("kafka:hot");
  await page.getByRole("button", { name: "Add", exact: true }).click();
  await page.getByRole("button", { name: "Add rule", exact: true }).click();
  await expect(page.getByRole("heading", { level: 1, name: "to-kafka", exact: true })).toBeVisible();
  // The dry run has not sent anything.
  expect(await node.publish("kiln/1", '{"temp": 3}', "-q", "1", "-i", "probe")).toBe(0);
  expect(await node.publish("kiln/1", '{"temp": 40}', "-q", "1", "-i", "probe")).toBe(0);
  expect(await kafka.records("hot", 1)).toEqual(['probe\t{"clientid":"probe","t":40}']);
  const number = (caption: string) => page.locator("dl > div", { has: page.getByText(caption, { exact: true }) }).locator("dd").first();
  await expect(number("Matched")).toHaveText("2");
  await expect(number("Passed")).toHaveText("1");

  await kafka.call("kill");
  expect(await node.publish("kiln/1", '{"temp": 41}', "-q", "1", "-i", "probe")).toBe(0);
  await open(page, "actions/kafka:hot");
  await expect(page.getByRole("main").locator("dt", { hasText: "Queued" }).locator("+ dd")).toHaveText(/^1 message,/);
  await kafka.call("start");
  await expect(page.getByRole("main").locator("dt", { hasText: "Queued" }).locator("+ dd")).toHaveText(/^0 messages/, { timeout: seconds(60) });
  expect((await kafka.records("hot", 2))[1]).toBe('probe\t{"clientid":"probe","t":41}');
  await kafka.end();
});
