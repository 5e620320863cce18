// Operation of a node: traces, bans, queues, API keys, audit log, log.
import { textOf } from "../support/reads";
import { expect, open, test } from "../support/test";

test("a client is traced and banned, and the ban is lifted", async ({ console: page, node }) => {
  await node.subscriber("traced-1", "traced/#");
  await open(page, "clients/traced-1");
  await page.getByRole("button", { name: "Start trace", exact: true }).click();
  await expect(page.getByText(/^Tracing, at most 100 packets/)).toBeVisible();
  await node.publish("traced/t", "hello there");
  const packets = page.getByRole("list", { name: "Packets, newest first", exact: true });
  await expect(packets.getByRole("listitem").filter({ hasText: "PUBLISH" })).toContainText("hello there");

  await page.getByRole("button", { name: "Ban…", exact: true }).click();
  const dialog = page.getByRole("dialog");
  await expect(dialog.getByLabel("Value", { exact: true })).toHaveValue("traced-1");
  await dialog.getByLabel("Reason", { exact: true }).fill("too loud");
  await dialog.getByRole("button", { name: "Ban", exact: true }).click();
  await expect(packets.getByRole("listitem").filter({ hasText: "DISCONNECT" })).not.toHaveCount(0);

  await open(page, "bans");
  const bans = page.getByRole("region", { name: "Table: Bans", exact: true });
  await expect(bans.getByRole("row", { name: /traced-1 too loud/ })).toBeVisible();
  expect(await node.publish("x", "y", "-i", "traced-1")).not.toBe(0);
  await open(page, "refused");
  await expect(page.getByRole("region", { name: "Table: Refused clients", exact: true }).getByRole("row", { name: /traced-1/ }).first()).toContainText(/banned/i);

  await open(page, "bans");
  await bans.getByRole("button", { name: "Lift the ban of traced-1", exact: true }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Lift", exact: true }).click();
  await expect(page.getByText("No bans.")).toBeVisible();
  expect(await node.publish("x", "y", "-i", "traced-1")).toBe(0);
});

test("the queue of a disconnected client is shown", async ({ console: page, node }) => {
  const sleeper = await node.subscriber("sleeper", "wake/#", "-q", "1", "-c", "-V", "5", "-x", "3600");
  await open(page, "clients/sleeper");
  await expect(page.getByText("The queue is empty.")).toBeVisible();
  sleeper.kill();
  await expect(page.getByText("disconnected", { exact: true })).toBeVisible();
  await node.publish("wake/up", "good morning", "-q", "1");
  await expect(page.getByRole("heading", { name: "Queue 1 message", exact: true })).toBeVisible();
  // The message is only in the journal.
  await expect(page.getByRole("region", { name: "Table: Queue", exact: true }).getByRole("row", { name: /1 wake\/up good morning 12 B/ })).toBeVisible();
});

test("an API key is created, disabled and deleted", async ({ console: page, node }) => {
  await open(page, "keys");
  await page.getByRole("button", { name: "New key…", exact: true }).click();
  const dialog = page.getByRole("dialog");
  await dialog.getByLabel("Name", { exact: true }).fill("grafana");
  await dialog.getByRole("button", { name: "Create", exact: true }).click();
  const secret = await textOf(dialog.getByText(/^twk_/));
  const asks = async () => (await fetch(`${node.url}/api/v1/clients`, { headers: { Authorization: `Bearer ${secret}` } })).status;
  expect(await asks()).toBe(200);
  await dialog.getByRole("button", { name: "Done", exact: true }).click();
  await page.getByRole("button", { name: "Disable grafana", exact: true }).click();
  await expect(page.getByRole("cell", { name: "disabled", exact: true })).toBeVisible();
  expect(await asks()).toBe(401);
  await page.getByRole("button", { name: "Delete grafana", exact: true }).click();
  await dialog.getByLabel("Type grafana to confirm", { exact: true }).fill("grafana");
  await dialog.getByRole("button", { name: "Delete", exact: true }).click();
  await expect(page.getByText("No API keys.")).toBeVisible();

  await open(page, "audit");
  await page.getByLabel("Contains", { exact: true }).fill("grafana");
  const log = page.getByRole("region", { name: "Table: Audit log", exact: true });
  await expect(log.getByRole("row")).toHaveCount(4);
  await expect(log.getByRole("row", { name: /Remove API key/ })).toContainText("204");
  await expect(log).not.toContainText("twk_");
});

test("an API key with scopes cannot do anything else", async ({ console: page, node }) => {
  await open(page, "keys");
  await page.getByRole("button", { name: "New key…", exact: true }).click();
  const dialog = page.getByRole("dialog");
  await dialog.getByLabel("Name", { exact: true }).fill("exporter");
  await dialog.getByRole("checkbox", { name: /^monitoring/ }).check();
  await dialog.getByRole("button", { name: "Create", exact: true }).click();
  const secret = await textOf(dialog.getByText(/^twk_/));
  const status = async (path: string) => (await fetch(`${node.url}${path}`, { headers: { Authorization: `Bearer ${secret}` } })).status;
  expect(await status("/api/v1/alarms")).toBe(200);
  expect(await status("/api/v1/clients")).toBe(403);
  await dialog.getByRole("button", { name: "Done", exact: true }).click();
  await expect(page.getByRole("row", { name: /exporter/ })).toContainText("for monitoring");
  await page.getByRole("button", { name: "Delete exporter", exact: true }).click();
  await dialog.getByLabel("Type exporter to confirm", { exact: true }).fill("exporter");
  await dialog.getByRole("button", { name: "Delete", exact: true }).click();
  await expect(page.getByText("No API keys.")).toBeVisible();
});

test("the log is searched", async ({ console: page }) => {
  await open(page, "logs");
  await expect(page.getByRole("heading", { level: 1, name: "Logs", exact: true })).toBeVisible();
  await page.getByLabel("Contains", { exact: true }).fill("nobody has said this");
  await expect(page.getByText("No line matches the filter.")).toBeVisible();
});
