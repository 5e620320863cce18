// Unusual names: very long, without spaces, or with markup.
import { freePort, Node } from "../support/node";
import { fits, holds } from "../support/reads";
import { expect, logIn, open, test } from "../support/test";
import { Platform } from "../support/platform";

test.use({ hasPlatform: true });

const LONG = "x".repeat(255);

test("long names leave the other columns visible", async ({ console: page, node }) => {
  const platform = await Platform.open(node, "Main");
  const id = { entityType: "DEVICE", id: await platform.device(LONG) };
  await platform.call("POST", "/api/alarm", { originator: id, type: LONG, severity: "MAJOR", details: {} });
  await platform.call("POST", "/api/dashboard", { title: LONG, configuration: {} });
  await platform.call("POST", "/api/ruleChain", { name: LONG, type: "CORE" });
  const profileData = { configuration: { type: "DEFAULT" }, transportConfiguration: { type: "DEFAULT" }, provisionConfiguration: { type: "DISABLED" }, alarms: [] };
  await platform.call("POST", "/api/deviceProfile", { name: LONG, type: "DEFAULT", transportType: "DEFAULT", description: LONG, profileData });
  // The label is long as well.
  const { id: labelled } = (await platform.call("POST", "/api/device", { name: `${LONG.slice(1)}y`, label: LONG })) as { id: { id: string } };
  await node.call("POST", "/api/v1/connectors", { type: "http", name: "hook", config: { url: "http://127.0.0.1:9" }, description: LONG });
  await node.call("POST", "/api/v1/rules", { id: "long", description: LONG, sql: 'SELECT * FROM "nothing/#"', actions: [] });
  await node.subscriber(LONG, "any/#");
  await page.setViewportSize({ width: 1440, height: 900 });
  for (const path of ["devices", "alarms", "dashboards", "chains", "profiles", "connectors", "rules", "clients"]) {
    await open(page, path);
    await expect(page.getByText(LONG).filter({ visible: true }).first()).toBeVisible();
    await holds(page.locator(".scroll").first(), path);
  }
  await open(page, `devices/${labelled.id}`);
  await expect(page.getByText(`${LONG}, profile default`)).toBeVisible();
  await fits(page, "a label");
});

test("markup in names and payloads is shown as text", async ({ console: page, node }) => {
  const markup = "<img src=x onerror=alert(1)>";
  let dialogs = 0;
  page.on("dialog", (dialog) => { dialogs += 1; void dialog.dismiss(); });
  const platform = await Platform.open(node, "Main");
  // The platform rejects markup in entity names, but devices can send it.
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

test("a client with an unrequestable id shows an error", async ({ console: page, node }) => {
  const child = await node.subscriberByList("..", "any/#");
  await open(page, "clients");
  await page.getByRole("link", { name: "..", exact: true }).click();
  await expect(page.getByText("Browsers cannot request an object with the name “..”.")).toBeVisible();
  child.kill();
});

test("a listener name may contain quotes and backslashes", async ({ page }) => {
  const [port, another] = [await freePort(), await freePort()];
  const node = await Node.start(`listeners.tcp.'a"b\\c.d'.bind=127.0.0.1:${port}`);
  try {
    await logIn(page, node);
    await open(page, "listeners");
    const own = page.getByRole("region", { name: 'tcp.a"b\\c.d', exact: true });
    await expect(own.getByText(/^Options: /)).toBeVisible();
    await expect(page.getByText("will be removed at the next restart")).toBeHidden();
    // This listener and the default one.
    await expect(page.getByRole("heading", { level: 2, name: /^tcp\./ })).toHaveCount(2);
    const name = 'next "one\\" \u00e4.b';
    await page.getByRole("button", { name: "Add listener…", exact: true }).click();
    const dialog = page.getByRole("dialog");
    await dialog.getByLabel("Name", { exact: true }).fill(name);
    await dialog.getByLabel("Address", { exact: true }).fill(`127.0.0.1:${another}`);
    await dialog.getByRole("button", { name: "Add", exact: true }).click();
    await expect(dialog).toBeHidden();
    const values = (await node.call("GET", "/api/v1/configuration")) as { key: string; value: string }[];
    const added = values.find((one) => one.key.endsWith(".bind") && one.value.includes(String(another)));
    expect(added?.key).toBe(`listeners.tcp.${JSON.stringify(name)}.bind`);
    await page.getByRole("button", { name: "Add listener…", exact: true }).click();
    await dialog.getByLabel("Name", { exact: true }).fill(name);
    await expect(dialog.getByText("A tcp listener with this name exists already.")).toBeVisible();
  } finally {
    await node.stop();
  }
});

test("objects named new have pages of their own", async ({ console: page, node }) => {
  await node.call("POST", "/api/v1/rules", { id: "new", sql: 'SELECT topic FROM "a"', actions: [], description: "is there" });
  const sure = page.getByRole("dialog");
  const remove = async () => {
    await page.getByRole("button", { name: "Delete", exact: true }).click();
    await sure.getByLabel("Type new to confirm", { exact: true }).fill("new");
    await sure.getByRole("button", { name: "Delete", exact: true }).click();
    await expect(sure).toBeHidden();
  };
  await open(page, "rules");
  await page.getByRole("table").getByRole("link", { name: "new", exact: true }).click();
  await expect(page.getByRole("heading", { level: 1, name: "new", exact: true })).toBeVisible();
  await page.reload();
  await expect(page.getByLabel("Description", { exact: true })).toHaveValue("is there");
  await page.getByLabel("Description", { exact: true }).fill("is changed");
  await page.getByRole("button", { name: "Save", exact: true }).click();
  await expect(page.getByText("Saved and applied.")).toBeVisible();
  expect(await node.call("GET", "/api/v1/rules/new")).toMatchObject({ description: "is changed" });
  await remove();
  await expect.poll(() => node.call("GET", "/api/v1/rules")).not.toContainEqual(expect.objectContaining({ id: "new" }));
  // Saving a new one opens its page.
  await open(page, "connectors/new");
  await page.getByRole("combobox", { name: "Type", exact: true }).selectOption("http");
  await page.getByLabel("Name", { exact: true }).fill("new");
  await page.getByLabel("URL", { exact: true }).fill("http://127.0.0.1:9");
  await page.getByRole("button", { name: "Add", exact: true }).click();
  await expect(page.getByRole("heading", { level: 1, name: "new", exact: true })).toBeVisible();
  await open(page, "connectors");
  await page.getByRole("table").getByRole("link", { name: "new", exact: true }).click();
  await expect(page.getByRole("heading", { level: 1, name: "new", exact: true })).toBeVisible();
  await remove();
  await expect.poll(() => node.call("GET", "/api/v1/connectors")).not.toContainEqual(expect.objectContaining({ name: "new" }));
});
