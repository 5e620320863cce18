// What a tenant uses is counted as it happens.
import { expect, open, test } from "../support/test";
import { Platform } from "../support/platform";

test.use({ hasPlatform: true });

test("messages and points of devices are counted for the tenant", async ({ console: page, node }) => {
  const platform = await Platform.open(node, "Main");
  await platform.device("counter");
  for (let n = 0; n < 3; n += 1) expect(await node.publish("v1/devices/me/telemetry", '{"a": 1, "b": 2}', "-u", "counter", "-q", "1")).toBe(0);
  await open(page, "usage");
  const tile = (name: string) => page.locator("dl.tiles > div", { has: page.getByText(name, { exact: true }) }).locator("dd").first();
  await expect(tile("Messages")).toHaveText("3");
  await expect(tile("Points sent")).toHaveText("6");
  await expect(tile("Points stored")).toHaveText("6");
  await expect(page.getByRole("region", { name: "Messages per hour", exact: true })).toBeVisible();
});
