// Device profiles: alarm rules raise and clear the alarms of devices.
import { execFileSync } from "node:child_process";
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { textOf } from "../support/reads";
import { expect, open, test } from "../support/test";
import { Platform } from "../support/platform";

test.use({ hasPlatform: true });

test("an alarm rule raises and clears an alarm", async ({ console: page, node }) => {
  const platform = await Platform.open(node, "Main");
  await open(page, "profiles/new");
  const form = page.getByRole("form", { name: "Profile", exact: true });
  await form.getByLabel("Name", { exact: true }).fill("kiln");
  await form.getByRole("button", { name: "Add alarm", exact: true }).click();
  await form.getByLabel("Alarm type", { exact: true }).fill("Too hot");
  const raise = form.getByRole("region", { name: "Raises critical", exact: true });
  await raise.getByLabel("Key", { exact: true }).fill("temperature");
  await raise.getByLabel("Value", { exact: true }).fill("900");
  await form.getByRole("button", { name: "Add clear rule", exact: true }).click();
  const clear = form.getByRole("region", { name: "Clear rule", exact: true });
  await expect(raise.getByRole("combobox", { name: "Raise", exact: true })).toHaveValue("SIMPLE");
  await expect(clear.getByRole("combobox", { name: "Clear", exact: true })).toHaveValue("SIMPLE");
  await clear.getByLabel("Key", { exact: true }).fill("temperature");
  await clear.getByRole("combobox", { name: "Comparison", exact: true }).selectOption("LESS");
  await clear.getByLabel("Value", { exact: true }).fill("800");
  await form.getByRole("combobox", { name: "Queue", exact: true }).selectOption("HighPriority");
  await form.getByRole("button", { name: "Create", exact: true }).click();
  await expect(page.getByRole("heading", { level: 1, name: "kiln", exact: true })).toBeVisible();
  await page.reload();
  await expect(form.getByRole("combobox", { name: "Queue", exact: true })).toHaveValue("HighPriority");

  const profiles = (await platform.call("GET", "/api/deviceProfileInfos?page=0&pageSize=100")) as { data: { name: string; id: unknown }[] };
  const deviceProfileId = profiles.data.find((one) => one.name === "kiln")?.id;
  await platform.call("POST", "/api/device-with-credentials", { device: { name: "kiln-1", deviceProfileId }, credentials: { credentialsType: "ACCESS_TOKEN", credentialsId: "kiln-1" } });
  const say = (temperature: number) => node.publish("v1/devices/me/telemetry", JSON.stringify({ temperature }), "-u", "kiln-1", "-q", "1");
  expect(await say(950)).toBe(0);
  await open(page, "alarms");
  const table = page.getByRole("region", { name: "Table: Alarms", exact: true });
  await expect(table.getByRole("row", { name: /critical Show Too hot of kiln-1 .* active/ })).toBeVisible();
  await table.getByRole("button", { name: "Acknowledge Too hot of kiln-1", exact: true }).click();
  await expect(table.getByRole("row", { name: /Too hot of kiln-1 .* active, acknowledged/ })).toBeVisible();
  expect(await say(700)).toBe(0);
  await expect(table.getByRole("row", { name: /Too hot of kiln-1 .* cleared, acknowledged/ })).toBeVisible();
});

test("unknown parts of an alarm rule are preserved", async ({ console: page, node }) => {
  const platform = await Platform.open(node, "Main");
  const value = (defaultValue: number) => ({ defaultValue, userValue: null, dynamicValue: { sourceType: "CURRENT_DEVICE", sourceAttribute: "limit", inherit: false } });
  const filter = { key: { type: "TIME_SERIES", key: "rpm" }, valueType: "NUMERIC", value: null, predicate: { type: "NUMERIC", operation: "GREATER", value: value(5) } };
  const alarms = [{ id: "a", alarmType: "Fast", propagate: true, createRules: { MAJOR: { condition: { condition: [filter], spec: { type: "SIMPLE" } }, schedule: null, alarmDetails: "${rpm}" } }, clearRule: null }];
  const profileData = { configuration: { type: "DEFAULT" }, transportConfiguration: { type: "DEFAULT" }, provisionConfiguration: { type: "DISABLED" }, alarms };
  const made = (await platform.call("POST", "/api/deviceProfile", { name: "rotor", type: "DEFAULT", transportType: "DEFAULT", profileData })) as { id: { id: string } };
  await open(page, `profiles/${made.id.id}`);
  await expect(page.getByText("rpm: nested conditions and dynamic values are not editable here and stay unchanged:")).toBeVisible();
  await page.getByLabel("Description", { exact: true }).fill("turns");
  await page.getByRole("button", { name: "Save", exact: true }).click();
  await expect(page.getByText("Saved. New messages use these settings.", { exact: true })).toBeVisible();
  const stored = (await platform.call("GET", `/api/deviceProfile/${made.id.id}`)) as { description: string; profileData: { alarms: unknown } };
  expect(stored.description).toBe("turns");
  expect(stored.profileData.alarms).toEqual(alarms);
});

test("alarm rules follow their schedules", async ({ console: page, node }) => {
  const platform = await Platform.open(node, "Main");
  await open(page, "profiles/new");
  const form = page.getByRole("form", { name: "Profile", exact: true });
  await form.getByLabel("Name", { exact: true }).fill("shift");
  await form.getByRole("button", { name: "Add alarm", exact: true }).click();
  await form.getByLabel("Alarm type", { exact: true }).fill("Loud");
  const rule = (severity: string) => form.getByRole("region", { name: `Raises ${severity}`, exact: true });
  const when = (severity: string) => rule(severity).getByRole("group", { name: "Schedule", exact: true });
  for (const severity of ["major", "minor"]) await form.getByRole("combobox", { name: "Add severity", exact: true }).selectOption(severity);
  for (const severity of ["critical", "major", "minor"]) {
    await rule(severity).getByLabel("Key", { exact: true }).fill("noise");
    await rule(severity).getByLabel("Value", { exact: true }).fill("80");
  }
  // The first two rules are active on no day, the third is always active.
  await when("critical").getByRole("combobox", { name: "Schedule", exact: true }).selectOption("SPECIFIC_TIME");
  for (const day of ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday"]) await when("critical").getByRole("checkbox", { name: day, exact: true }).uncheck();
  await expect(when("critical").getByText("Select at least one day. Otherwise the rule is never active.", { exact: true })).toBeVisible();
  await when("critical").getByLabel("From", { exact: true }).fill("06:30");
  await when("critical").getByLabel("To", { exact: true }).fill("00:00");
  await when("critical").getByLabel("Time zone", { exact: true }).fill("Europe/Vienna");
  await when("major").getByRole("combobox", { name: "Schedule", exact: true }).selectOption("CUSTOM");
  for (const day of ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday"]) await when("major").getByRole("checkbox", { name: day, exact: true }).uncheck();
  await expect(when("major").getByLabel("Monday from", { exact: true })).toBeDisabled();
  await when("major").getByLabel("Time zone", { exact: true }).fill("UTC");
  await form.getByRole("button", { name: "Create", exact: true }).click();
  await expect(page.getByRole("heading", { level: 1, name: "shift", exact: true })).toBeVisible();

  const infos = (await platform.call("GET", "/api/deviceProfileInfos?page=0&pageSize=100")) as { data: { name: string; id: { id: string } }[] };
  const deviceProfileId = infos.data.find((one) => one.name === "shift")?.id;
  interface Stored { profileData: { alarms: { createRules: Record<string, { schedule: unknown }> }[] } }
  const stored = (await platform.call("GET", `/api/deviceProfile/${deviceProfileId?.id}`)) as Stored;
  const rules = stored.profileData.alarms[0]?.createRules;
  expect(rules?.["CRITICAL"]?.schedule).toEqual({ type: "SPECIFIC_TIME", timezone: "Europe/Vienna", daysOfWeek: [], startsOn: 23_400_000, endsOn: 0, dynamicValue: null });
  const items = Array.from({ length: 7 }, (_, day) => ({ enabled: false, dayOfWeek: day + 1, startsOn: 28_800_000, endsOn: 64_800_000 }));
  expect(rules?.["MAJOR"]?.schedule).toEqual({ type: "CUSTOM", timezone: "UTC", items, dynamicValue: null });
  expect(rules?.["MINOR"]?.schedule).toBeNull();
  await platform.call("POST", "/api/device-with-credentials", { device: { name: "shift-1", deviceProfileId }, credentials: { credentialsType: "ACCESS_TOKEN", credentialsId: "shift-1" } });
  expect(await node.publish("v1/devices/me/telemetry", '{"noise": 90}', "-u", "shift-1", "-q", "1")).toBe(0);
  await open(page, "alarms");
  await expect(page.getByRole("row", { name: /minor Show Loud of shift-1 .* active/ })).toBeVisible();
});

test("devices send Protobuf and provision themselves", async ({ console: page, node }) => {
  const platform = await Platform.open(node, "Main");
  await open(page, "profiles/new");
  const form = page.getByRole("form", { name: "Profile", exact: true });
  await form.getByLabel("Name", { exact: true }).fill("binary");
  await form.getByRole("combobox", { name: "Topics and format", exact: true }).selectOption("MQTT");
  await form.getByLabel("Telemetry topic", { exact: true }).fill("plant/+/t");
  await form.getByRole("combobox", { name: "Format", exact: true }).selectOption("PROTOBUF");
  await form.getByLabel("Schema: Telemetry", { exact: true }).fill("message {");
  await form.getByRole("combobox", { name: "Device provisioning", exact: true }).selectOption("ALLOW_CREATE_NEW_DEVICES");
  await form.getByLabel("Provision key", { exact: true }).fill("the-key");
  await form.getByLabel("Provision secret", { exact: true }).fill("the-secret");
  await form.getByRole("button", { name: "Create", exact: true }).click();
  await expect(page.getByText(/deviceTelemetryProtoSchema: /)).toBeVisible();
  await form.getByLabel("Schema: Telemetry", { exact: true }).fill('syntax = "proto3"; message T { optional double heat = 1; }');
  await form.getByRole("button", { name: "Create", exact: true }).click();
  await expect(page.getByRole("heading", { level: 1, name: "binary", exact: true })).toBeVisible();

  const line = await textOf(page.getByText(/^curl .*\/api\/v1\/provision/));
  const answer = JSON.parse(execFileSync("sh", ["-c", line.replace("NAME", "binary-1").replace("curl", "curl -s")], { encoding: "utf8" })) as { status: string; credentialsValue: string };
  expect(answer.status).toBe("SUCCESS");
  const file = join(node.directory, "payload");
  // heat: 22.5
  writeFileSync(file, Buffer.from([0x09, 0, 0, 0, 0, 0, 0x80, 0x36, 0x40]));
  execFileSync("mosquitto_pub", ["-h", "127.0.0.1", "-p", String(node.mqttPort), "-u", answer.credentialsValue, "-q", "1", "-t", "plant/7/t", "-f", file]);
  await open(page, "devices");
  await page.getByRole("link", { name: "binary-1", exact: true }).click();
  await expect(page.getByRole("row", { name: /heat 22\.5/ })).toBeVisible();

  // Disabled provisioning is refused.
  const infos = (await platform.call("GET", "/api/deviceProfileInfos?page=0&pageSize=100")) as { data: { name: string; id: { id: string } }[] };
  await open(page, `profiles/${infos.data.find((one) => one.name === "binary")?.id.id}`);
  const provisions = form.getByRole("combobox", { name: "Device provisioning", exact: true });
  await expect(provisions).toHaveValue("ALLOW_CREATE_NEW_DEVICES");
  await expect(form.getByLabel("Provision secret", { exact: true })).toHaveValue("the-secret");
  await provisions.selectOption("DISABLED");
  await form.getByRole("button", { name: "Save", exact: true }).click();
  await expect(page.getByText("Saved. New messages use these settings.", { exact: true })).toBeVisible();
  const refused = JSON.parse(execFileSync("sh", ["-c", line.replace("NAME", "binary-2").replace("curl", "curl -s")], { encoding: "utf8" })) as { status: string };
  expect(refused.status).not.toBe("SUCCESS");
});
