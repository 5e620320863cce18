// The console under a host name that no WebSocket listener allows: its MQTT pages use the port of the page.
import { Node } from "../support/node";
import { textOf } from "../support/reads";
import { expect, logIn, open, test, watch } from "../support/test";

test("MQTT pages work under another host name", async ({ page }) => {
  // Only the browser knows this name: see playwright.config.ts.
  const node = await Node.start('api.allowed_hosts=["broker.lan"]');
  const url = node.url.replace("127.0.0.1", "broker.lan");
  const pageErrors = watch(page, url);
  await logIn(page, { url, firstPassword: node.firstPassword });
  await open(page, "topics");
  await page.getByLabel("Topic filter", { exact: true }).fill("house/#");
  await page.getByRole("button", { name: "Watch", exact: true }).click();
  await expect(page.getByText("No messages yet.")).toBeVisible();
  await node.publish("house/attic", '{"value": 21.5}');
  await page.getByRole("list", { name: "Topics", exact: true }).getByText("attic", { exact: true }).click();
  await expect(page.getByRole("region", { name: "Payload", exact: true })).toContainText('"value": 21.5');
  const connections = async () => ((await node.call("GET", "/api/v1/listeners")) as { is_api: boolean; connections: number }[]).find((one) => one.is_api)?.connections;
  await expect.poll(connections).toBe(1);
  await open(page, "mqtt");
  await page.getByRole("button", { name: "Connect", exact: true }).click();
  await expect(page.getByText(/^Connected as console-/)).toBeVisible();
  // A listener allows only configured host names. The page shows the option.
  const listener = await textOf(page.getByLabel("Listener", { exact: true }).locator("option").nth(1));
  expect(listener).toMatch(/^ws:\/\/broker\.lan:\d+\/mqtt$/);
  await page.getByRole("button", { name: "Disconnect", exact: true }).click();
  expect(pageErrors).toEqual([]);
  await page.getByLabel("Listener", { exact: true }).selectOption(listener);
  await page.getByRole("button", { name: "Connect", exact: true }).click();
  await expect(page.getByText(/its allowed_origins do not include/)).toBeVisible();
  await node.stop();
});

test("MQTT pages work at an IPv6 address without a listener", async ({ page }) => {
  const node = await Node.startAt("[::1]", "listeners.ws.default.enabled=false");
  const pageErrors = watch(page, node.url);
  await logIn(page, node);
  await open(page, "topics");
  await page.getByRole("button", { name: "Watch", exact: true }).click();
  await expect(page.getByText("No messages yet.")).toBeVisible();
  await expect(page.getByLabel("Listener", { exact: true }).locator("option")).toHaveCount(1);
  await node.publish("attic", "21.5");
  await expect(page.getByRole("list", { name: "Topics", exact: true }).getByText("attic", { exact: true })).toBeVisible();
  expect(pageErrors).toEqual([]);
  await node.stop();
});

test("an operator needs an MQTT user on the node's machine", async ({ page }) => {
  const node = await Node.start();
  await node.call("POST", "/api/v1/users", { name: "watcher", password: "a watcher's password" });
  await node.addUser("eve", "only looking around", "operator");
  await page.goto(node.url);
  await page.getByLabel("User", { exact: true }).fill("eve");
  await page.getByLabel("Password", { exact: true }).fill("only looking around");
  await page.getByRole("button", { name: "Log in", exact: true }).click();
  await expect(page.getByRole("heading", { name: "Home", exact: true })).toBeVisible();
  await open(page, "topics");
  await expect(page.getByText("Operators need an MQTT user")).toBeVisible();
  await page.getByRole("button", { name: "Watch", exact: true }).click();
  await expect(page.getByText(/Not authorized \(0x87\)/)).toBeVisible();
  await page.getByLabel("MQTT user", { exact: true }).fill("watcher");
  await page.getByLabel("Password", { exact: true }).fill("a watcher's password");
  await page.getByRole("button", { name: "Watch", exact: true }).click();
  await expect(page.getByText("No messages yet.")).toBeVisible();
  await node.stop();
});
