// Rule chains: one of ThingsBoard is imported, edited as a picture, saved; messages go along it as it is then.
import { readFileSync } from "node:fs";
import { holds, valueOf } from "../support/reads";
import { expect, open, test } from "../support/test";
import { Platform } from "../support/platform";

test.use({ hasPlatform: true });

const PREFIX = "org.thingsboard.rule.engine.";
const FILE = {
  ruleChain: { name: "Kitchen", type: "CORE", additionalInfo: { description: "of a kitchen" }, root: false },
  metadata: {
    firstNodeIndex: 0,
    nodes: [
      { type: `${PREFIX}telemetry.TbMsgTimeseriesNode`, name: "Keep", debugMode: false, configuration: { defaultTTL: 0 }, additionalInfo: { layoutX: 400, layoutY: 100 } },
      { type: `${PREFIX}custom.NobodyKnowsNode`, name: "Strange", debugMode: true, configuration: { secret: [1, 2] }, additionalInfo: { layoutX: 700, layoutY: 100, description: "kept" } },
    ],
    connections: [{ fromIndex: 0, toIndex: 1, type: "Success" }],
    ruleChainConnections: null,
  },
};

test("a chain is imported, edited, saved and exported; messages go along it", async ({ console: page, node }) => {
  const platform = await Platform.open(node, "Main");
  await open(page, "chains");
  const [chooser] = await Promise.all([page.waitForEvent("filechooser"), page.getByRole("button", { name: "Import…", exact: true }).click()]);
  await chooser.setFiles({ name: "kitchen.json", mimeType: "application/json", buffer: Buffer.from(JSON.stringify(FILE)) });
  await expect(page.getByRole("heading", { level: 1, name: "Kitchen", exact: true })).toBeVisible();
  const graph = page.getByRole("region", { name: "Graph", exact: true });
  await expect(graph.getByText("NobodyKnowsNode", { exact: true })).toBeVisible();

  await page.getByRole("combobox", { name: "Another node", exact: true }).selectOption({ label: "rename keys" });
  await page.getByRole("button", { name: "Add", exact: true }).click();
  const panel = page.getByRole("region", { name: "Node", exact: true });
  await panel.getByLabel("Node name", { exact: true }).fill("Rename");
  await panel.getByText("Configuration as JSON", { exact: true }).click();
  const configuration = panel.getByLabel("Configuration (JSON)", { exact: true });
  await configuration.fill("{");
  await expect(panel.getByRole("alert")).toContainText("This is not valid and not taken");
  await configuration.fill('{"renameIn": "DATA", "renameKeysMapping": {"t": "temperature"}}');
  await expect(panel.getByRole("alert")).toBeHidden();
  await panel.getByLabel("Label", { exact: true }).fill("Success");
  await panel.getByRole("combobox", { name: "To", exact: true }).selectOption({ label: "Keep" });
  await panel.getByRole("button", { name: "Connect", exact: true }).click();
  await expect(panel.getByText("Success → Keep", { exact: true })).toBeVisible();
  await panel.getByRole("button", { name: "Begin here", exact: true }).click();
  const renamed = graph.getByRole("button", { name: "Node Rename", exact: true });
  await renamed.press("ArrowRight");
  await expect(renamed).toHaveCSS("left", "60px");
  await page.getByRole("button", { name: "Save", exact: true }).click();
  await expect(page.getByText("Saved. The next message goes along it.", { exact: true })).toBeVisible();
  await page.reload();
  await expect(renamed).toHaveCSS("left", "60px");

  const strange = graph.getByRole("button", { name: "Node Strange", exact: true });
  await expect(strange).toBeInViewport({ ratio: 1 });
  await page.getByRole("button", { name: "Larger", exact: true }).click();
  await page.getByRole("button", { name: "Fit", exact: true }).click();
  await expect(strange).toBeInViewport({ ratio: 1 });
  await renamed.click();
  await expect(panel.getByText("Debug the node, and save, to see the messages that go through it.", { exact: true })).toBeVisible();
  await panel.getByRole("checkbox", { name: "Debug: keep the messages that go through it", exact: true }).check();
  await page.getByRole("button", { name: "Save", exact: true }).click();
  await expect(page.getByRole("button", { name: "Save", exact: true })).toBeDisabled();

  const chains = (await platform.call("GET", "/api/ruleChains?page=0&pageSize=100")) as { data: { name: string; id: unknown }[] };
  const profileData = { configuration: { type: "DEFAULT" }, transportConfiguration: { type: "DEFAULT" }, provisionConfiguration: { type: "DISABLED" } };
  const profile = (await platform.call("POST", "/api/deviceProfile", { name: "kitchen", type: "DEFAULT", transportType: "DEFAULT", profileData, defaultRuleChainId: chains.data.find((one) => one.name === "Kitchen")?.id })) as { id: unknown };
  const device = (await platform.call("POST", "/api/device-with-credentials", { device: { name: "stove", deviceProfileId: profile.id }, credentials: { credentialsType: "ACCESS_TOKEN", credentialsId: "stove" } })) as { id: { id: string } };
  expect(await node.publish("v1/devices/me/telemetry", '{"t": 5}', "-u", "stove", "-q", "1")).toBe(0);
  await open(page, `devices/${device.id.id}`);
  await expect(page.getByRole("region", { name: "Table: Latest telemetry", exact: true }).getByRole("row", { name: /temperature 5/ })).toBeVisible();
  await open(page, `chains/${(chains.data.find((one) => one.name === "Kitchen")?.id as { id: string }).id}`);
  await renamed.click();
  const events = panel.getByRole("list", { name: "Messages of the node, the newest first", exact: true });
  await expect(events.getByText(/POST_TELEMETRY_REQUEST → Success/)).toBeVisible();
  await events.getByText(/POST_TELEMETRY_REQUEST → Success/).click();
  await expect(events.getByText('"temperature": 5')).toBeVisible();
  await panel.getByRole("button", { name: "Clear", exact: true }).click();
  await expect(events).toBeHidden();

  await open(page, "chains");
  const [file] = await Promise.all([page.waitForEvent("download"), page.getByRole("button", { name: "Export Kitchen", exact: true }).click()]);
  const kept = JSON.parse(readFileSync(await file.path(), "utf8")) as typeof FILE;
  expect(kept.ruleChain.name).toBe("Kitchen");
  expect(kept.metadata.firstNodeIndex).toBe(2);
  expect(kept.metadata.nodes[1]).toMatchObject(FILE.metadata.nodes[1] ?? {});
  expect(kept.metadata.connections).toEqual([{ fromIndex: 0, toIndex: 1, type: "Success" }, { fromIndex: 2, toIndex: 0, type: "Success" }]);
});

test("a node is removed with its lines, and a file that is no chain is refused", async ({ console: page, node }) => {
  const platform = await Platform.open(node, "Main");
  const made = (await platform.call("POST", "/api/ruleChain", { name: "Attic", type: "CORE" })) as { id: { id: string } };
  await platform.call("POST", "/api/ruleChain/metadata", { ...FILE.metadata, ruleChainId: made.id });
  await open(page, `chains/${made.id.id}`);
  await page.getByRole("button", { name: "Node Keep", exact: true }).click();
  await page.getByRole("button", { name: "Remove the node", exact: true }).click();
  await page.getByRole("button", { name: "Save", exact: true }).click();
  await expect(page.getByText("Saved. The next message goes along it.", { exact: true })).toBeVisible();
  const kept = (await platform.call("GET", `/api/ruleChain/${made.id.id}/metadata`)) as { nodes: { name: string }[]; connections: unknown[] };
  expect(kept.nodes.map(({ name }) => name)).toEqual(["Strange"]);
  expect(kept.connections).toEqual([]);
  await open(page, "chains");
  const [chooser] = await Promise.all([page.waitForEvent("filechooser"), page.getByRole("button", { name: "Import…", exact: true }).click()]);
  await chooser.setFiles({ name: "other.json", mimeType: "application/json", buffer: Buffer.from("{}") });
  await expect(page.getByText("This is no rule chain: it has no ruleChain or no metadata.", { exact: true })).toBeVisible();
});

test("the script of a node is tried on a message, also on the newest that came", async ({ console: page, node }) => {
  const platform = await Platform.open(node, "Main");
  const made = (await platform.call("POST", "/api/ruleChain", { name: "Trial", type: "CORE" })) as { id: { id: string } };
  const nodes = [
    { type: `${PREFIX}filter.TbJsFilterNode`, name: "Hot", debugMode: true, configuration: { scriptLang: "JS", jsScript: "return msg.temperature > 20;" }, additionalInfo: { layoutX: 40, layoutY: 40 } },
    { type: `${PREFIX}transform.TbTransformMsgNode`, name: "Old", debugMode: false, configuration: { scriptLang: "TBEL", tbelScript: "return msg;" }, additionalInfo: { layoutX: 300, layoutY: 40 } },
  ];
  await platform.call("POST", "/api/ruleChain/metadata", { ruleChainId: made.id, firstNodeIndex: 0, nodes, connections: [], ruleChainConnections: null });
  const profileData = { configuration: { type: "DEFAULT" }, transportConfiguration: { type: "DEFAULT" }, provisionConfiguration: { type: "DISABLED" } };
  const profile = (await platform.call("POST", "/api/deviceProfile", { name: "trial", type: "DEFAULT", transportType: "DEFAULT", profileData, defaultRuleChainId: made.id })) as { id: unknown };
  await platform.call("POST", "/api/device-with-credentials", { device: { name: "trial-1", deviceProfileId: profile.id }, credentials: { credentialsType: "ACCESS_TOKEN", credentialsId: "trial-1" } });
  const sent = await fetch(`${node.url}/api/v1/trial-1/telemetry`, { method: "POST", headers: { "Content-Type": "application/json" }, body: '{"temperature": 7}' });
  expect(sent.status).toBe(200);
  const kept = (await platform.call("GET", `/api/ruleChain/${made.id.id}/metadata`)) as { nodes: { id: { id: string } }[] };
  const newest = async () => ((await platform.call("GET", `/api/events/RULE_NODE/${kept.nodes[0]?.id.id}/DEBUG_RULE_NODE?page=0&pageSize=10`)) as { data: { body: { type: string; msgType: string } }[] }).data.find((one) => one.body.type === "IN")?.body.msgType;
  await expect.poll(newest).toBe("POST_TELEMETRY_REQUEST");

  await open(page, `chains/${made.id.id}`);
  await page.getByRole("button", { name: "Node Hot", exact: true }).click();
  const panel = page.getByRole("region", { name: "Node", exact: true });
  const trial = panel.getByRole("region", { name: "Try the script", exact: true });
  const result = trial.getByRole("status");
  await expect(result.locator("pre")).toHaveText("True");
  await trial.getByLabel("Message (JSON)", { exact: true }).fill('{"temperature": 12}');
  await expect(result.locator("pre")).toHaveText("False");
  await trial.getByLabel("Message (JSON)", { exact: true }).fill('{"temperature": ');
  await expect(result).toHaveText(/^msg is no JSON: /);
  await trial.getByRole("button", { name: "Take the newest message", exact: true }).click();
  await expect(trial.getByLabel("Message (JSON)", { exact: true })).toHaveValue('{"temperature":7}');
  await expect(result.locator("pre")).toHaveText("False");
  const script = panel.getByLabel("Script (JavaScript)", { exact: true });
  await script.fill("return msg.temperature <");
  await expect(result.locator(".bad")).toContainText(/[Ss]yntax|unexpected/);
  await script.fill("return metadata.deviceName === 'trial-1';");
  await expect(result.locator("pre")).toHaveText("True");
  // Nothing of it is kept unless it is saved.
  await expect(panel.getByLabel("Configuration (JSON)", { exact: true })).toHaveValue(/trial-1/);
  await page.getByRole("button", { name: "Undo all", exact: true }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Undo all", exact: true }).click();
  await page.getByRole("button", { name: "Node Old", exact: true }).click();
  await expect(panel.getByText("Its script is in TBEL, which is not supported")).toBeVisible();
  await panel.getByRole("button", { name: "Write it in JavaScript", exact: true }).click();
  await expect(script).toHaveValue("return msg;");
  await expect(panel.getByLabel("Configuration (JSON)", { exact: true })).toHaveValue(/"scriptLang": "JS"/);
  await page.getByRole("combobox", { name: "Another node", exact: true }).selectOption({ label: "create alarm" });
  await page.getByRole("button", { name: "Add", exact: true }).click();
  await script.fill("return {was: msg.temperature};");
  await expect(result.getByText("Details of the alarm", { exact: true })).toBeVisible();
  await expect(result.locator("pre")).toHaveText('{ "was": 22.5 }');
});

test("what stands on nodes is whole on a screen of 4K, too", async ({ console: page, node }) => {
  const platform = await Platform.open(node, "Main");
  const made = (await platform.call("POST", "/api/ruleChain", { name: "Loft", type: "CORE" })) as { id: { id: string } };
  await platform.call("POST", "/api/ruleChain/metadata", { ...FILE.metadata, ruleChainId: made.id });
  for (const [width, height] of [[1280, 900], [3840, 2160]] as const) {
    await page.setViewportSize({ width, height });
    await open(page, "chains");
    await open(page, `chains/${made.id.id}`);
    const box = page.getByRole("button", { name: "Node Keep", exact: true });
    await expect(box).toBeVisible();
    await expect(page.getByText("100 %", { exact: true })).toBeVisible();
    const cut = () => box.evaluate((place) => Math.max(place.scrollHeight - place.clientHeight, place.scrollWidth - place.clientWidth, ...[...place.children].map((line) => line.scrollWidth - line.clientWidth)));
    await expect.poll(cut, `${width}`).toBeLessThanOrEqual(0);
  }
});

test("what is said of a node has room beside the picture, whatever it is called", async ({ console: page, node }) => {
  const platform = await Platform.open(node, "Main");
  const { id } = (await platform.call("POST", "/api/ruleChain", { name: "Narrow", type: "CORE" })) as { id: { id: string } };
  await page.setViewportSize({ width: 1280, height: 900 });
  await open(page, `chains/${id.id}`);
  await page.getByRole("combobox", { name: "Another node", exact: true }).selectOption("script");
  await page.getByRole("button", { name: "Add", exact: true }).click();
  // The node stays in the picture, of which this takes a part.
  const added = page.getByRole("region", { name: "Graph", exact: true }).getByRole("button", { name: /^Node script/ });
  for (let n = 0; n < 40; n += 1) await added.press("ArrowRight");
  await page.getByRole("button", { name: "Fit", exact: true }).click();
  await page.getByRole("combobox", { name: "Another node", exact: true }).selectOption("script");
  await page.getByRole("button", { name: "Add", exact: true }).click();
  await added.first().click();
  await expect(added.first()).toBeInViewport();
  const panel = page.getByRole("region", { name: "Node", exact: true });
  await expect(panel.getByText(/^org\.thingsboard\..*TbJsFilterNode$/)).toBeVisible();
  await holds(panel, "the panel");
});

test("a node is configured in a form, which is in step with its JSON and leaves what it does not know", async ({ console: page, node }) => {
  const platform = await Platform.open(node, "Main");
  const made = (await platform.call("POST", "/api/ruleChain", { name: "Forms", type: "CORE" })) as { id: { id: string } };
  const at = (n: number) => ({ layoutX: 40, layoutY: 40 + n * 80 });
  const nodes = [
    { type: `${PREFIX}telemetry.TbMsgTimeseriesNode`, name: "Keep", configuration: { version: 1, defaultTTL: 60, laterRelease: { a: [1] } }, additionalInfo: at(0) },
    { type: `${PREFIX}transform.TbRenameKeysNode`, name: "Rename", configuration: { renameIn: "DATA", renameKeysMapping: [{ key: "t", value: "temperature" }] }, additionalInfo: at(1) },
    { type: `${PREFIX}filter.TbMsgTypeFilterNode`, name: "Types", configuration: { messageTypes: ["ALARM", "MY_OWN"] }, additionalInfo: at(2) },
    { type: `${PREFIX}rest.TbRestApiCallNode`, name: "Call", configuration: { restEndpointUrlPattern: "example.com", requestMethod: "BREW", readTimeoutMs: 700_000, headers: {} }, additionalInfo: at(3) },
    { type: `${PREFIX}flow.TbRuleChainInputNode`, name: "Other", configuration: { ruleChainId: "" }, additionalInfo: at(4) },
  ];
  await platform.call("POST", "/api/ruleChain/metadata", { ruleChainId: made.id, firstNodeIndex: 0, nodes, connections: [], ruleChainConnections: null });
  await open(page, `chains/${made.id.id}`);
  const graph = page.getByRole("region", { name: "Graph", exact: true });
  const panel = page.getByRole("region", { name: "Node", exact: true });
  const json = panel.getByLabel("Configuration (JSON)", { exact: true });
  const isKept = (configuration: object) => expect(async () => expect(JSON.parse(await valueOf(json))).toEqual(configuration)).toPass();

  await graph.getByRole("button", { name: "Node Keep", exact: true }).click();
  const ttl = panel.getByLabel("Values end after (seconds)", { exact: true });
  await expect(ttl).toHaveValue("60");
  await expect(panel.getByText("Not in this form, and kept as it is: laterRelease.", { exact: true })).toBeVisible();
  await ttl.fill("3600");
  await panel.getByRole("combobox", { name: "Keeps", exact: true }).selectOption("one message in a time");
  await isKept({ version: 1, defaultTTL: 3600, laterRelease: { a: [1] }, processingSettings: { type: "DEDUPLICATE", deduplicationIntervalSecs: 60 } });
  await panel.getByLabel("One message in (seconds)", { exact: true }).fill("0");
  await expect(panel.getByRole("alert")).toHaveText("Has to be 1 or more.");
  await panel.getByLabel("One message in (seconds)", { exact: true }).fill("ten");
  await expect(panel.getByRole("alert")).toHaveText("ten is no number of seconds, and not taken.");
  await panel.getByLabel("One message in (seconds)", { exact: true }).fill("10");
  await expect(panel.getByRole("alert")).toBeHidden();
  // What is typed as JSON is in the form, which waits while it is none.
  await panel.getByText("Configuration as JSON", { exact: true }).click();
  await json.fill('{"defaultTTL": 5');
  await expect(ttl).toBeDisabled();
  await json.fill('["defaultTTL"]');
  await expect(panel.getByRole("alert")).toContainText("a configuration is an object");
  await json.fill('{"defaultTTL": 5, "laterRelease": 2, "useServerTs": "yes"}');
  await expect(ttl).toHaveValue("5");
  await expect(panel.getByRole("alert")).toHaveText('Has to be true or false, not "yes".');
  await panel.getByRole("checkbox", { name: "With the server's time, not the message's", exact: true }).check();
  await expect(panel.getByRole("alert")).toBeHidden();
  await isKept({ defaultTTL: 5, laterRelease: 2, useServerTs: true });

  // A list of pairs of an old release stays one.
  await graph.getByRole("button", { name: "Node Rename", exact: true }).click();
  const names = panel.getByLabel("Old and new names", { exact: true });
  await expect(names).toHaveValue("t = temperature");
  await names.fill("t = temperature\nh");
  await expect(panel.getByRole("alert")).toHaveText("h has no =, and is not taken.");
  await names.fill("t = temperature\nh = humidity");
  await isKept({ renameIn: "DATA", renameKeysMapping: [{ key: "t", value: "temperature" }, { key: "h", value: "humidity" }] });

  await graph.getByRole("button", { name: "Node Types", exact: true }).click();
  await expect(panel.getByLabel("Others", { exact: true })).toHaveValue("MY_OWN");
  await panel.getByRole("checkbox", { name: "CONNECT_EVENT", exact: true }).check();
  await panel.getByRole("checkbox", { name: "ALARM", exact: true }).uncheck();
  await isKept({ messageTypes: ["MY_OWN", "CONNECT_EVENT"] });

  // Wrong as it came: said beside the fields, and in the picture.
  const call = graph.getByRole("button", { name: "Node Call", exact: true });
  await expect(call).toContainText("⚠");
  await call.click();
  await expect(panel.getByRole("alert")).toHaveText(["Has to begin with http:// or https://.", "BREW is none that is known here.", "Has to be from 0 to 600000."]);
  await panel.getByLabel("URL", { exact: true }).fill("http://127.0.0.1:9/${deviceName}");
  await panel.getByRole("combobox", { name: "Method", exact: true }).selectOption("PUT");
  await panel.getByLabel("Waits for an answer (milliseconds)", { exact: true }).fill("1000");
  await panel.getByRole("combobox", { name: "Logs in", exact: true }).selectOption("with user and password");
  await panel.getByLabel("User", { exact: true }).fill("me");
  await expect(call).not.toContainText("⚠");

  await graph.getByRole("button", { name: "Node Other", exact: true }).click();
  await expect(panel.getByRole("alert")).toHaveText("This is needed.");
  await panel.getByRole("combobox", { name: "Rule chain", exact: true }).selectOption("Root Rule Chain");
  await page.getByRole("button", { name: "Save", exact: true }).click();
  await expect(page.getByText("Saved. The next message goes along it.", { exact: true })).toBeVisible();
  const saved = (await platform.call("GET", `/api/ruleChain/${made.id.id}/metadata`)) as { nodes: { name: string; configuration: unknown }[] };
  const of = (name: string) => saved.nodes.find((one) => one.name === name)?.configuration;
  expect(of("Keep")).toEqual({ defaultTTL: 5, laterRelease: 2, useServerTs: true });
  expect(of("Call")).toMatchObject({ requestMethod: "PUT", credentials: { type: "basic", username: "me", password: "" } });
});

test("a node that does not run says why", async ({ console: page, node }) => {
  const platform = await Platform.open(node, "Main");
  const made = (await platform.call("POST", "/api/ruleChain", { name: "Broken", type: "CORE" })) as { id: { id: string } };
  const nodes = [{ type: `${PREFIX}transform.TbCopyKeysNode`, name: "Copy", configuration: { copyFrom: "DATA", keys: ["("] }, additionalInfo: { layoutX: 40, layoutY: 40 } }];
  await platform.call("POST", "/api/ruleChain/metadata", { ruleChainId: made.id, firstNodeIndex: 0, nodes, connections: [], ruleChainConnections: null });
  await open(page, `chains/${made.id.id}`);
  await page.getByRole("button", { name: "Node Copy", exact: true }).click();
  const panel = page.getByRole("region", { name: "Node", exact: true });
  await expect(panel.getByText(/^The node does not run, as it was saved: .*keys have to be regular expressions/)).toBeVisible();
  await panel.getByLabel("Keys", { exact: true }).fill("temp.*");
  await page.getByRole("button", { name: "Save", exact: true }).click();
  await expect(panel.getByText(/^The node does not run/)).toBeHidden();
});
