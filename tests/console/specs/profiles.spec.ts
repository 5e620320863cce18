// Device profiles: an alarm rule is built, and the alarm of a device is raised, acknowledged and cleared by it.
import { expect, open, test } from "../support/test";
import { Platform } from "../support/platform";

test.use({ hasPlatform: true });

test("an alarm rule is built; a device of the profile raises the alarm, and clears it", async ({ console: page, node }) => {
  const platform = await Platform.open(node, "Main");
  await open(page, "profiles/new");
  const form = page.getByRole("form", { name: "Profile", exact: true });
  await form.getByLabel("Name", { exact: true }).fill("kiln");
  await form.getByRole("button", { name: "Add an alarm", exact: true }).click();
  await form.getByLabel("Alarm type", { exact: true }).fill("Too hot");
  const raise = form.getByRole("region", { name: "Raises critical", exact: true });
  await raise.getByLabel("Key", { exact: true }).fill("temperature");
  await raise.getByLabel("Value", { exact: true }).fill("900");
  await form.getByRole("button", { name: "Clear by a rule…", exact: true }).click();
  const clear = form.getByRole("region", { name: "Clears", exact: true });
  await clear.getByLabel("Key", { exact: true }).fill("temperature");
  await clear.getByRole("combobox", { name: "Comparison", exact: true }).selectOption("LESS");
  await clear.getByLabel("Value", { exact: true }).fill("800");
  await form.getByRole("button", { name: "Create", exact: true }).click();
  await expect(page.getByRole("heading", { level: 1, name: "kiln", exact: true })).toBeVisible();

  const profiles = (await platform.call("GET", "/api/deviceProfileInfos?page=0&pageSize=100")) as { data: { name: string; id: unknown }[] };
  const deviceProfileId = profiles.data.find((one) => one.name === "kiln")?.id;
  await platform.call("POST", "/api/device-with-credentials", { device: { name: "kiln-1", deviceProfileId }, credentials: { credentialsType: "ACCESS_TOKEN", credentialsId: "kiln-1" } });
  const say = (temperature: number) => node.publish("v1/devices/me/telemetry", JSON.stringify({ temperature }), "-u", "kiln-1", "-q", "1");
  expect(await say(950)).toBe(0);
  await open(page, "alarms");
  const table = page.getByRole("region", { name: "Table: Alarms", exact: true });
  await expect(table.getByRole("row", { name: /^critical Show Too hot of kiln-1 .* active/ })).toBeVisible();
  await table.getByRole("button", { name: "Acknowledge Too hot of kiln-1", exact: true }).click();
  await expect(table.getByRole("row", { name: /Too hot of kiln-1 .* active, acknowledged/ })).toBeVisible();
  expect(await say(700)).toBe(0);
  await expect(table.getByRole("row", { name: /Too hot of kiln-1 .* cleared, acknowledged/ })).toBeVisible();
});

test("what the form of an alarm rule does not know stays as it was", async ({ console: page, node }) => {
  const platform = await Platform.open(node, "Main");
  const value = (defaultValue: number) => ({ defaultValue, userValue: null, dynamicValue: { sourceType: "CURRENT_DEVICE", sourceAttribute: "limit", inherit: false } });
  const filter = { key: { type: "TIME_SERIES", key: "rpm" }, valueType: "NUMERIC", value: null, predicate: { type: "NUMERIC", operation: "GREATER", value: value(5) } };
  const alarms = [{ id: "a", alarmType: "Fast", propagate: true, createRules: { MAJOR: { condition: { condition: [filter], spec: { type: "SIMPLE" } }, schedule: null, alarmDetails: "${rpm}" } }, clearRule: null }];
  const profileData = { configuration: { type: "DEFAULT" }, transportConfiguration: { type: "DEFAULT" }, provisionConfiguration: { type: "DISABLED" }, alarms };
  const made = (await platform.call("POST", "/api/deviceProfile", { name: "rotor", type: "DEFAULT", transportType: "DEFAULT", profileData })) as { id: { id: string } };
  await open(page, `profiles/${made.id.id}`);
  await expect(page.getByText("rpm: nested conditions, or a value from elsewhere.")).toBeVisible();
  await page.getByLabel("Description", { exact: true }).fill("turns");
  await page.getByRole("button", { name: "Save", exact: true }).click();
  await expect(page.getByText("Saved. It holds for the next message.", { exact: true })).toBeVisible();
  const kept = (await platform.call("GET", `/api/deviceProfile/${made.id.id}`)) as { description: string; profileData: { alarms: unknown } };
  expect(kept.description).toBe("turns");
  expect(kept.profileData.alarms).toEqual(alarms);
});
