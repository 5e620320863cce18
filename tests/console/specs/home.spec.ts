// Home: live numbers, and the checklist of first steps.
import { freePort } from "../support/node";
import { boxOf, fits, isMarked, mark, textOf } from "../support/reads";
import { seconds } from "../support/slow";
import { expect, open, test } from "../support/test";

test("numbers and charts are live", async ({ console: page, node }) => {
  await expect(page.getByRole("status").getByText("running", { exact: true })).toBeVisible();
  await node.subscriber("home-1", "home/#");
  const load = node.load("home/temp", 200);
  const tile = page.locator("dl > div", { has: page.getByText("Messages in", { exact: true }) });
  await expect(tile.locator("dd").first()).toHaveText(/^[1-9]\d*(\.\d)?\/s$/);
  await expect(page.getByRole("listitem").filter({ hasText: "Connect a first client" })).toContainText("Done");
  await expect(page.getByRole("listitem").filter({ hasText: "Publish a message" })).toContainText("Done");
  const figure = page.getByRole("figure").filter({ has: page.getByRole("heading", { name: "Messages", exact: true }) });
  await expect(figure.getByRole("listitem").filter({ hasText: "in" }).first()).toContainText(/in [1-9]/);
  await expect(figure.locator("canvas")).toBeVisible();
  await page.getByRole("button", { name: "6 h", exact: true }).click();
  await expect(page.getByRole("button", { name: "6 h", exact: true })).toHaveAttribute("aria-pressed", "true");
  load.kill();
});

test("acknowledgement latency shows median and 99th percentile", async ({ console: page, node }) => {
  const chart = page.getByRole("figure").filter({ hasText: "Time to acknowledge QoS 1 and 2" });
  await expect(async () => {
    await node.publish("home/acknowledged", "x", "-q", "1");
    await expect(chart).toContainText(/median\s*[\d.]+ ms[^]*99th percentile\s*[\d.]+ ms/, { timeout: seconds(1) });
  }).toPass();
});

test("dropped messages and listeners are listed", async ({ console: page, node }) => {
  await expect(page.getByRole("region", { name: "Table: Listeners", exact: true })).toContainText(`127.0.0.1:${node.mqttPort}`);
  await expect(page.getByText("acknowledged data is on the disk")).toBeVisible();
});

test("active alarms of the node are on top", async ({ console: page, node }) => {
  await node.call("POST", "/api/v1/connectors", { type: "http", name: "nowhere", config: { url: `http://127.0.0.1:${await freePort()}` } });
  await node.call("POST", "/api/v1/actions", { type: "http", name: "lost", connector: "nowhere", parameters: {} });
  await node.call("POST", "/api/v1/rules", { id: "lose", sql: 'SELECT * FROM "to-nowhere"', actions: ["http:lost"] });
  await node.publish("to-nowhere", "1", "-q", "1");
  const alarm = page.getByRole("alert").filter({ hasText: "The action http:lost has failed" });
  await expect(alarm).toBeVisible();
  // The badge is visible on every page and on a phone.
  for (const width of [1280, 360]) {
    await page.setViewportSize({ width, height: 740 });
    for (const path of ["clients", "devices"]) {
      await open(page, path);
      await expect(page.getByRole("link", { name: "1 alarm of the node", exact: true })).toBeInViewport({ ratio: 1, timeout: seconds(25) });
      await fits(page, `${path} ${width}`);
    }
    await page.getByRole("link", { name: "1 alarm of the node", exact: true }).click();
    await expect(alarm).toBeVisible();
  }
  await page.setViewportSize({ width: 1280, height: 900 });
  await node.call("DELETE", "/api/v1/rules/lose");
  await node.call("DELETE", "/api/v1/actions/http:lost");
  await expect(alarm).toBeHidden();
  const over = page.getByRole("region", { name: "Ended alarms of this node", exact: true });
  await expect(over).toContainText("The action http:lost has failed");
  await over.getByRole("button", { name: "Clear…", exact: true }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Clear", exact: true }).click();
  await expect(over).toBeHidden();
  await node.call("DELETE", "/api/v1/connectors/nowhere");
});

test("a chart shows dropped messages by reason", async ({ console: page, node }) => {
  await node.publish("no/subscriber", "x");
  await open(page, "home");
  const chart = page.getByRole("figure").filter({ hasText: "Not delivered, by reason" });
  await expect(chart.getByRole("listitem")).toContainText(["no subscriber"], { timeout: seconds(25) });
});

test("a drop reason is explained with a link", async ({ console: page, node }) => {
  await node.publish("no/subscriber", "x");
  await open(page, "home");
  const reasons = page.getByRole("region", { name: "Messages not delivered since the start", exact: true });
  await expect(reasons.getByRole("row", { name: /^No subscriber No subscription matches the topic/ })).toBeVisible();
  await reasons.getByRole("row", { name: /^No subscriber/ }).getByRole("link", { name: "Subscriptions", exact: true }).click();
  await expect(page.getByRole("heading", { level: 1, name: "Subscriptions", exact: true })).toBeVisible();
});

test("all charts share the cursor while values arrive", async ({ console: page }) => {
  const charts = page.getByRole("figure");
  const first = charts.nth(0);
  await expect(charts.nth(1).locator(".u-over")).toBeVisible();
  await mark(first.locator("canvas"));
  const moment = first.locator(".moment");
  // Waits until the charts have data.
  await expect(async () => {
    const box = await boxOf(first.locator(".u-over"));
    await page.mouse.move(box.x + box.width - 3, box.y + 20);
    await page.mouse.move(box.x + box.width - 2, box.y + 30);
    await expect(moment).toHaveText(/^\d\d:\d\d:\d\d$/, { timeout: seconds(1) });
  }).toPass();
  const others = charts.filter({ hasNot: page.locator(".moment") });
  await expect(others).toHaveCount(0);
  const before = await textOf(moment);
  await expect(moment).not.toHaveText(before);
  await expect(others).toHaveCount(0);
  await isMarked(first.locator("canvas"));
});

test("code examples use the right port", async ({ console: page, node }) => {
  const code = page.getByRole("region", { name: "Code", exact: true });
  for (const language of ["mosquitto", "Python", "Node.js", "ESP32 (Arduino)"]) {
    await page.getByRole("combobox", { name: "Language", exact: true }).selectOption({ label: language });
    await expect(code).toContainText(String(node.mqttPort));
  }
});

test("the console uses one WebSocket and few requests", async ({ console: page }) => {
  let sockets = 0;
  page.on("websocket", () => { sockets += 1; });
  await page.reload();
  await expect(page.getByRole("status").getByText("running", { exact: true })).toBeVisible();
  await open(page, "clients");
  await expect(page.getByRole("heading", { name: "Clients", exact: true })).toBeVisible();
  await open(page, "home");
  await expect(page.getByRole("heading", { name: "Home", exact: true })).toBeVisible();
  await expect.poll(() => sockets).toBe(1);
});
