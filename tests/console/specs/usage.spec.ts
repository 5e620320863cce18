// Usage counters of a tenant.
import { seconds } from "../support/slow";
import { expect, open, test } from "../support/test";
import { Platform } from "../support/platform";

test.use({ hasPlatform: true });

interface Usage { transportMessages: number; transportDataPoints: number }

test("messages and points of a tenant are counted", async ({ console: page, node }) => {
  const platform = await Platform.open(node, "Main");
  // Other tests use the same tenant.
  const used = async () => (await platform.call("GET", "/api/usage")) as Usage;
  const before = await used();
  await platform.device("counter");
  for (let n = 0; n < 3; n += 1) expect(await node.publish("v1/devices/me/telemetry", '{"a": 1, "b": 2}', "-u", "counter", "-q", "1")).toBe(0);
  await expect.poll(async () => (await used()).transportMessages).toBeGreaterThanOrEqual(before.transportMessages + 3);
  await expect.poll(async () => (await used()).transportDataPoints).toBeGreaterThanOrEqual(before.transportDataPoints + 6);
  await open(page, "usage");
  const tile = (name: string) => page.locator("dl.tiles > div", { has: page.getByText(name, { exact: true }) }).locator("dd").first();
  const { transportMessages, transportDataPoints } = await used();
  await expect(tile("Messages")).toHaveText(String(transportMessages));
  await expect(tile("Points sent")).toHaveText(String(transportDataPoints));
  await expect(page.getByRole("region", { name: "Messages per hour", exact: true })).toBeVisible();
});

test("queue statistics show the last failure", async ({ console: page, node }) => {
  test.setTimeout(seconds(120));
  const platform = await Platform.open(node, "Main");
  const [chain] = ((await platform.call("GET", "/api/ruleChains?pageSize=10&page=0")) as { data: { id: object; name: string }[] }).data;
  const choosy = { type: "org.thingsboard.rule.engine.filter.TbJsFilterNode", name: "Picky", additionalInfo: {}, configuration: { scriptLang: "JS", jsScript: "return msg.no.such;" } };
  await platform.call("POST", "/api/ruleChain/metadata", { ruleChainId: chain!.id, firstNodeIndex: 0, nodes: [choosy], connections: [], ruleChainConnections: null });
  await platform.device("failing");
  expect(await node.publish("v1/devices/me/telemetry", '{"a": 1}', "-u", "failing", "-q", "1")).toBe(0);
  await open(page, "usage");
  const failures = page.getByRole("table", { name: "Failures in queue Main" });
  // The counters update every minute.
  await expect(failures.getByRole("row", { name: /Root Rule Chain Picky .*such/ }).first()).toBeVisible({ timeout: seconds(90) });
  await expect(page.getByRole("region", { name: "Messages per minute in queue Main", exact: true })).toBeVisible();
});
