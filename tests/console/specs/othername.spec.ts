// The console under another name than that of this machine, where no WebSocket listener lets its pages in: Topics and the MQTT client go over the port that the page came from.
import config from "../playwright.config";
import { Node } from "../support/node";
import { textOf } from "../support/reads";
import { expect, logIn, open, test, watch } from "../support/test";

const own = config.use?.launchOptions;
test.use({ launchOptions: { ...own, args: [...(own?.args ?? []), "--host-resolver-rules=MAP broker.lan 127.0.0.1"] } });

test("under a name, Topics shows what is published and the MQTT client connects", async ({ page }) => {
  const node = await Node.start('api.allowed_hosts=["broker.lan"]');
  const url = node.url.replace("127.0.0.1", "broker.lan");
  const complaints = watch(page, url);
  await logIn(page, { url, firstPassword: node.firstPassword });
  await open(page, "topics");
  await page.getByLabel("Topic filter", { exact: true }).fill("house/#");
  await page.getByRole("button", { name: "Watch", exact: true }).click();
  await expect(page.getByText("Nothing was published yet.")).toBeVisible();
  await node.publish("house/attic", '{"value": 21.5}');
  await page.getByRole("list", { name: "Topics", exact: true }).getByText("attic", { exact: true }).click();
  await expect(page.getByRole("region", { name: "Payload", exact: true })).toContainText('"value": 21.5');
  const connections = async () => ((await node.call("GET", "/api/v1/listeners")) as { is_api: boolean; connections: number }[]).find((one) => one.is_api)?.connections;
  await expect.poll(connections).toBe(1);
  await open(page, "mqtt");
  await page.getByRole("button", { name: "Connect", exact: true }).click();
  await expect(page.getByText(/^Connected as console-/)).toBeVisible();
  // A listener of the node lets pages of a name in that it was told of; the page says what to do.
  const listener = await textOf(page.getByLabel("Listener", { exact: true }).locator("option").nth(1));
  expect(listener).toMatch(/^ws:\/\/broker\.lan:\d+\/mqtt$/);
  await page.getByRole("button", { name: "Disconnect", exact: true }).click();
  expect(complaints).toEqual([]);
  await page.getByLabel("Listener", { exact: true }).selectOption(listener);
  await page.getByRole("button", { name: "Connect", exact: true }).click();
  await expect(page.getByText(/its allowed_origins say which/)).toBeVisible();
  await node.stop();
});

test("at an IPv6 address, and without any WebSocket listener, Topics shows what is published", async ({ page }) => {
  const node = await Node.startAt("[::1]", "listeners.ws.default.enabled=false");
  const complaints = watch(page, node.url);
  await logIn(page, node);
  await open(page, "topics");
  await page.getByRole("button", { name: "Watch", exact: true }).click();
  await expect(page.getByText("Nothing was published yet.")).toBeVisible();
  await expect(page.getByLabel("Listener", { exact: true }).locator("option")).toHaveCount(1);
  await node.publish("attic", "21.5");
  await expect(page.getByRole("list", { name: "Topics", exact: true }).getByText("attic", { exact: true })).toBeVisible();
  expect(complaints).toEqual([]);
  await node.stop();
});

test("a viewer needs an MQTT user there, also on the node's own machine", async ({ page }) => {
  const node = await Node.start();
  await node.call("POST", "/api/v1/users", { name: "watcher", password: "a watcher's password" });
  await node.addViewer("eve", "only looking around");
  await page.goto(node.url);
  await page.getByLabel("User", { exact: true }).fill("eve");
  await page.getByLabel("Password", { exact: true }).fill("only looking around");
  await page.getByRole("button", { name: "Log in", exact: true }).click();
  await expect(page.getByRole("heading", { name: "Home", exact: true })).toBeVisible();
  await open(page, "topics");
  await expect(page.getByText("A viewer needs an MQTT user here")).toBeVisible();
  await page.getByRole("button", { name: "Watch", exact: true }).click();
  await expect(page.getByText(/Not authorized \(0x87\)/)).toBeVisible();
  await page.getByLabel("MQTT user", { exact: true }).fill("watcher");
  await page.getByLabel("Password", { exact: true }).fill("a watcher's password");
  await page.getByRole("button", { name: "Watch", exact: true }).click();
  await expect(page.getByText("Nothing was published yet.")).toBeVisible();
  await node.stop();
});
