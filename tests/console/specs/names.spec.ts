// Names that were not made for pages: as long as they may be, without a gap, and with the letters of markup.
import { expect, open, test } from "../support/test";
import { Platform } from "../support/platform";

test.use({ hasPlatform: true, nodeOf: "names" });

const LONG = "x".repeat(255);

test("names of any length leave the columns beside them in sight", async ({ console: page, node }) => {
  const platform = await Platform.open(node, "Main");
  const id = { entityType: "DEVICE", id: await platform.device(LONG) };
  await platform.call("POST", "/api/alarm", { originator: id, type: LONG, severity: "MAJOR", details: {} });
  await platform.call("POST", "/api/dashboard", { title: LONG, configuration: {} });
  await platform.call("POST", "/api/ruleChain", { name: LONG, type: "CORE" });
  const profileData = { configuration: { type: "DEFAULT" }, transportConfiguration: { type: "DEFAULT" }, provisionConfiguration: { type: "DISABLED" }, alarms: [] };
  await platform.call("POST", "/api/deviceProfile", { name: LONG, type: "DEFAULT", transportType: "DEFAULT", description: LONG, profileData });
  // With a label of that kind.
  const { id: labelled } = (await platform.call("POST", "/api/device", { name: `${LONG.slice(1)}y`, label: LONG })) as { id: { id: string } };
  await node.call("POST", "/api/v1/connectors", { type: "http", name: "hook", config: { url: "http://127.0.0.1:9" }, description: LONG });
  await node.call("POST", "/api/v1/rules", { id: "long", description: LONG, sql: 'SELECT * FROM "nothing/#"', actions: [] });
  await node.subscriber(LONG, "any/#");
  await page.setViewportSize({ width: 1440, height: 900 });
  for (const path of ["devices", "alarms", "dashboards", "chains", "profiles", "connectors", "rules", "clients"]) {
    await open(page, path);
    await expect(page.getByText(LONG).filter({ visible: true }).first()).toBeVisible();
    const excess = await page.locator(".scroll").first().evaluate((place) => place.scrollWidth - place.clientWidth);
    expect.soft(excess, path).toBeLessThanOrEqual(0);
  }
  await open(page, `devices/${labelled.id}`);
  await expect(page.getByText(`${LONG}, profile default`)).toBeVisible();
  expect(await page.evaluate(() => document.documentElement.scrollWidth - innerWidth)).toBeLessThanOrEqual(0);
});

test("markup in names and payloads is text", async ({ console: page, node }) => {
  const markup = "<img src=x onerror=alert(1)>";
  let dialogs = 0;
  page.on("dialog", (dialog) => { dialogs += 1; void dialog.dismiss(); });
  const platform = await Platform.open(node, "Main");
  // The platform takes none in names of its own; what devices say is theirs.
  await expect(platform.device(markup)).rejects.toThrow("malformed");
  const id = await platform.device("plain");
  await platform.call("POST", `/api/plugins/telemetry/DEVICE/${id}/timeseries/ANY`, { text: markup });
  await node.subscriber(markup, "any/#");
  await node.publish(markup, markup, "-r");
  for (const path of [`devices/${id}`, "clients", `clients/${encodeURIComponent(markup)}`, "retained"]) {
    await open(page, path);
    await expect(page.getByText(markup).first()).toBeVisible();
  }
  expect(dialogs).toBe(0);
});

test("a client whose name no address can hold says so", async ({ console: page, node }) => {
  const child = await node.subscriberUnseen("..", "any/#");
  await open(page, "clients");
  await page.getByRole("link", { name: "..", exact: true }).click();
  await expect(page.getByText("No browser can ask for something that is called “..”.")).toBeVisible();
  child.kill();
});
