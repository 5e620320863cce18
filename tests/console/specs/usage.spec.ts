// What a tenant uses is counted as it happens.
import { expect, open, test } from "../support/test";
import { Platform } from "../support/platform";

test.use({ hasPlatform: true });

interface Usage { transportMessages: number; transportDataPoints: number }

test("messages and points of devices are counted for the tenant", async ({ console: page, node }) => {
  const platform = await Platform.open(node, "Main");
  // Other tests have used something of the same tenant.
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
