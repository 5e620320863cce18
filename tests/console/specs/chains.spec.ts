// Rule chains: import from ThingsBoard, editing, and processing of messages.
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

test("an imported chain is edited, saved and exported", async ({ console: page, node }) => {
  const platform = await Platform.open(node, "Main");
  await open(page, "chains");
  const [chooser] = await Promise.all([page.waitForEvent("filechooser"), page.getByRole("button", { name: "Import…", exact: true }).click()]);
  await chooser.setFiles({ name: "kitchen.json", mimeType: "application/json", buffer: Buffer.from(JSON.stringify(FILE)) });
  await expect(page.getByRole("heading", { level: 1, name: "Kitchen", exact: true })).toBeVisible();
  const graph = page.getByRole("region", { name: "Graph", exact: true });
  await expect(graph.getByText("NobodyKnowsNode", { exact: true })).toBeVisible();

  await page.getByRole("combobox", { name: "New node", exact: true }).selectOption({ label: "rename keys" });
  await page.getByRole("button", { name: "Add", exact: true }).click();
  const panel = page.getByRole("region", { name: "Node", exact: true });
  await panel.getByLabel("Node name", { exact: true }).fill("Rename");
  await panel.getByText("Configuration as JSON", { exact: true }).click();
  const configuration = panel.getByLabel("Configuration (JSON)", { exact: true });
  await configuration.fill("{");
  await expect(panel.getByRole("alert")).toContainText("Not valid, not applied");
  await configuration.fill('{"renameIn": "DATA", "renameKeysMapping": {"t": "temperature"}}');
  await expect(panel.getByRole("alert")).toBeHidden();
  await panel.getByLabel("Label", { exact: true }).fill("Success");
  await panel.getByRole("combobox", { name: "To", exact: true }).selectOption({ label: "Keep" });
  await panel.getByRole("button", { name: "Connect", exact: true }).click();
  await expect(panel.getByText("Success → Keep", { exact: true })).toBeVisible();
  await panel.getByRole("button", { name: "Make first node", exact: true }).click();
  const renamed = graph.getByRole("button", { name: "Node Rename", exact: true });
  await renamed.press("ArrowRight");
  await expect(renamed).toHaveCSS("left", "60px");
  await page.getByRole("button", { name: "Save", exact: true }).click();
  await expect(page.getByText("Saved. New messages use this version.", { exact: true })).toBeVisible();
  await page.reload();
  await expect(renamed).toHaveCSS("left", "60px");

  const strange = graph.getByRole("button", { name: "Node Strange", exact: true });
  await expect(strange).toBeInViewport({ ratio: 1 });
  await page.getByRole("button", { name: "Zoom in", exact: true }).click();
  await page.getByRole("button", { name: "Fit", exact: true }).click();
  await expect(strange).toBeInViewport({ ratio: 1 });
  await renamed.click();
  await expect(panel.getByText("To see messages of this node, enable debug mode and save.", { exact: true })).toBeVisible();
  await panel.getByRole("checkbox", { name: "Debug mode: record messages of this node", exact: true }).check();
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
  const events = panel.getByRole("list", { name: "Messages of the node, newest first", exact: true });
  await expect(events.getByText(/POST_TELEMETRY_REQUEST → Success/)).toBeVisible();
  await events.getByText(/POST_TELEMETRY_REQUEST → Success/).click();
  await expect(events.getByText('"temperature": 5')).toBeVisible();
  await panel.getByRole("button", { name: "Clear", exact: true }).click();
  await expect(events).toBeHidden();

  await open(page, "chains");
  const [file] = await Promise.all([page.waitForEvent("download"), page.getByRole("button", { name: "Export Kitchen", exact: true }).click()]);
  const stored = JSON.parse(readFileSync(await file.path(), "utf8")) as typeof FILE;
  expect(stored.ruleChain.name).toBe("Kitchen");
  expect(stored.metadata.firstNodeIndex).toBe(2);
  expect(stored.metadata.nodes[1]).toMatchObject(FILE.metadata.nodes[1] ?? {});
  expect(stored.metadata.connections).toEqual([{ fromIndex: 0, toIndex: 1, type: "Success" }, { fromIndex: 2, toIndex: 0, type: "Success" }]);
});

test("removing a node removes its connections", async ({ console: page, node }) => {
  const platform = await Platform.open(node, "Main");
  const made = (await platform.call("POST", "/api/ruleChain", { name: "Attic", type: "CORE" })) as { id: { id: string } };
  await platform.call("POST", "/api/ruleChain/metadata", { ...FILE.metadata, ruleChainId: made.id });
  await open(page, `chains/${made.id.id}`);
  await page.getByRole("button", { name: "Node Keep", exact: true }).click();
  await page.getByRole("button", { name: "Remove node", exact: true }).click();
  await page.getByRole("button", { name: "Save", exact: true }).click();
  await expect(page.getByText("Saved. New messages use this version.", { exact: true })).toBeVisible();
  await expect(page.getByRole("button", { name: "Save", exact: true })).toBeDisabled();
  const stored = (await platform.call("GET", `/api/ruleChain/${made.id.id}/metadata`)) as { nodes: { name: string }[]; connections: unknown[] };
  expect(stored.nodes.map(({ name }) => name)).toEqual(["Strange"]);
  expect(stored.connections).toEqual([]);
  await open(page, "chains");
  const [chooser] = await Promise.all([page.waitForEvent("filechooser"), page.getByRole("button", { name: "Import…", exact: true }).click()]);
  await chooser.setFiles({ name: "other.json", mimeType: "application/json", buffer: Buffer.from("{}") });
  await expect(page.getByText("The file is not a rule chain export: ruleChain or metadata is missing.", { exact: true })).toBeVisible();
});

test("a script is tried on typed and recorded messages", async ({ console: page, node }) => {
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
  const stored = (await platform.call("GET", `/api/ruleChain/${made.id.id}/metadata`)) as { nodes: { id: { id: string } }[] };
  const newest = async () => ((await platform.call("GET", `/api/events/RULE_NODE/${stored.nodes[0]?.id.id}/DEBUG_RULE_NODE?page=0&pageSize=10`)) as { data: { body: { type: string; msgType: string } }[] }).data.find((one) => one.body.type === "IN")?.body.msgType;
  await expect.poll(newest).toBe("POST_TELEMETRY_REQUEST");

  await open(page, `chains/${made.id.id}`);
  await page.getByRole("button", { name: "Node Hot", exact: true }).click();
  const panel = page.getByRole("region", { name: "Node", exact: true });
  const trial = panel.getByRole("region", { name: "Dry run of the script", exact: true });
  const result = trial.getByRole("status");
  await expect(result.locator("pre")).toHaveText("True");
  await trial.getByLabel("Message (JSON)", { exact: true }).fill('{"temperature": 12}');
  await expect(result.locator("pre")).toHaveText("False");
  await trial.getByLabel("Message (JSON)", { exact: true }).fill('{"temperature": ');
  await expect(result).toHaveText(/^msg is not valid JSON: /);
  await trial.getByRole("button", { name: "Use latest message", exact: true }).click();
  await expect(trial.getByLabel("Message (JSON)", { exact: true })).toHaveValue('{"temperature":7}');
  await expect(result.locator("pre")).toHaveText("False");
  const script = panel.getByLabel("Script (JavaScript)", { exact: true });
  await script.fill("return msg.temperature <");
  await expect(result.locator(".bad")).toContainText(/[Ss]yntax|unexpected/);
  await script.fill("return metadata.deviceName === 'trial-1';");
  await expect(result.locator("pre")).toHaveText("True");
  // Edits are not stored until they are saved.
  await expect(panel.getByLabel("Configuration (JSON)", { exact: true })).toHaveValue(/trial-1/);
  await page.getByRole("button", { name: "Discard changes", exact: true }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Discard changes", exact: true }).click();
  await page.getByRole("button", { name: "Node Old", exact: true }).click();
  await expect(panel.getByText("The script is written in TBEL, which is not supported")).toBeVisible();
  await panel.getByRole("button", { name: "Convert to JavaScript", exact: true }).click();
  await expect(script).toHaveValue("return msg;");
  await expect(panel.getByLabel("Configuration (JSON)", { exact: true })).toHaveValue(/"scriptLang": "JS"/);
  await page.getByRole("combobox", { name: "New node", exact: true }).selectOption({ label: "create alarm" });
  await page.getByRole("button", { name: "Add", exact: true }).click();
  await script.fill("return {was: msg.temperature};");
  await expect(result.getByText("Alarm details", { exact: true })).toBeVisible();
  await expect(result.locator("pre")).toHaveText('{ "was": 22.5 }');
});

test("node labels fit on a 4K screen", async ({ console: page, node }) => {
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

test("the panel of a node leaves room for the graph", async ({ console: page, node }) => {
  const platform = await Platform.open(node, "Main");
  const { id } = (await platform.call("POST", "/api/ruleChain", { name: "Narrow", type: "CORE" })) as { id: { id: string } };
  await page.setViewportSize({ width: 1280, height: 900 });
  await open(page, `chains/${id.id}`);
  await page.getByRole("combobox", { name: "New node", exact: true }).selectOption("script");
  await page.getByRole("button", { name: "Add", exact: true }).click();
  // The panel narrows the graph, and the node stays visible.
  const added = page.getByRole("region", { name: "Graph", exact: true }).getByRole("button", { name: /^Node script/ });
  for (let n = 0; n < 40; n += 1) await added.press("ArrowRight");
  await page.getByRole("button", { name: "Fit", exact: true }).click();
  await page.getByRole("combobox", { name: "New node", exact: true }).selectOption("script");
  await page.getByRole("button", { name: "Add", exact: true }).click();
  await added.first().click();
  await expect(added.first()).toBeInViewport();
  const panel = page.getByRole("region", { name: "Node", exact: true });
  await expect(panel.getByText(/^org\.thingsboard\..*TbJsFilterNode$/)).toBeVisible();
  await holds(panel, "the panel");
});

test("the form of a node matches its JSON and keeps unknown fields", async ({ console: page, node }) => {
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
  const isStored = (configuration: object) => expect(async () => expect(JSON.parse(await valueOf(json))).toEqual(configuration)).toPass();

  await graph.getByRole("button", { name: "Node Keep", exact: true }).click();
  const ttl = panel.getByLabel("Time to live (seconds)", { exact: true });
  await expect(ttl).toHaveValue("60");
  await expect(panel.getByText("Not editable here, preserved: laterRelease.", { exact: true })).toBeVisible();
  await ttl.fill("3600");
  await panel.getByRole("combobox", { name: "Processing", exact: true }).selectOption("store one message per interval");
  await isStored({ version: 1, defaultTTL: 3600, laterRelease: { a: [1] }, processingSettings: { type: "DEDUPLICATE", deduplicationIntervalSecs: 60 } });
  await panel.getByLabel("Interval (seconds)", { exact: true }).fill("0");
  await expect(panel.getByRole("alert")).toHaveText("Must be 1 or more.");
  await panel.getByLabel("Interval (seconds)", { exact: true }).fill("ten");
  await expect(panel.getByRole("alert")).toHaveText("ten is not a number of seconds. The old value stays.");
  await panel.getByLabel("Interval (seconds)", { exact: true }).fill("10");
  await expect(panel.getByRole("alert")).toBeHidden();
  // Edited JSON updates the form. Invalid JSON disables it.
  await panel.getByText("Configuration as JSON", { exact: true }).click();
  await json.fill('{"defaultTTL": 5');
  await expect(ttl).toBeDisabled();
  await json.fill('["defaultTTL"]');
  await expect(panel.getByRole("alert")).toContainText("the configuration must be a JSON object");
  await json.fill('{"defaultTTL": 5, "laterRelease": 2, "useServerTs": "yes"}');
  await expect(ttl).toHaveValue("5");
  await expect(panel.getByRole("alert")).toHaveText('Must be true or false, not "yes".');
  await panel.getByRole("checkbox", { name: "Use the server's time instead of the message's", exact: true }).check();
  await expect(panel.getByRole("alert")).toBeHidden();
  await isStored({ defaultTTL: 5, laterRelease: 2, useServerTs: true });

  // A list of pairs from an older release stays a list.
  await graph.getByRole("button", { name: "Node Rename", exact: true }).click();
  const names = panel.getByLabel("Old and new key names", { exact: true });
  await expect(names).toHaveValue("t = temperature");
  await names.fill("t = temperature\nh");
  await expect(panel.getByRole("alert")).toHaveText("h has no =. The old value stays.");
  await names.fill("t = temperature\nh = humidity");
  await isStored({ renameIn: "DATA", renameKeysMapping: [{ key: "t", value: "temperature" }, { key: "h", value: "humidity" }] });

  await graph.getByRole("button", { name: "Node Types", exact: true }).click();
  await expect(panel.getByLabel("Other values", { exact: true })).toHaveValue("MY_OWN");
  await panel.getByRole("checkbox", { name: "CONNECT_EVENT", exact: true }).check();
  await panel.getByRole("checkbox", { name: "ALARM", exact: true }).uncheck();
  await isStored({ messageTypes: ["MY_OWN", "CONNECT_EVENT"] });

  // Invalid imported values are marked in the form and in the graph.
  const call = graph.getByRole("button", { name: "Node Call", exact: true });
  await expect(call).toContainText("⚠");
  await call.click();
  await expect(panel.getByRole("alert")).toHaveText(["Must start with http:// or https://.", "BREW is not a known value.", "Must be from 0 to 600000."]);
  await panel.getByLabel("URL", { exact: true }).fill("http://127.0.0.1:9/${deviceName}");
  await panel.getByRole("combobox", { name: "Method", exact: true }).selectOption("PUT");
  await panel.getByLabel("Timeout (milliseconds)", { exact: true }).fill("1000");
  await panel.getByRole("combobox", { name: "Authentication", exact: true }).selectOption("user name and password");
  await panel.getByLabel("User name", { exact: true }).fill("me");
  await expect(call).not.toContainText("⚠");

  await graph.getByRole("button", { name: "Node Other", exact: true }).click();
  await expect(panel.getByRole("alert")).toHaveText("Required.");
  await panel.getByRole("combobox", { name: "Rule chain", exact: true }).selectOption("Root Rule Chain");
  await page.getByRole("button", { name: "Save", exact: true }).click();
  await expect(page.getByText("Saved. New messages use this version.", { exact: true })).toBeVisible();
  const saved = (await platform.call("GET", `/api/ruleChain/${made.id.id}/metadata`)) as { nodes: { name: string; configuration: unknown }[] };
  const of = (name: string) => saved.nodes.find((one) => one.name === name)?.configuration;
  expect(of("Keep")).toEqual({ defaultTTL: 5, laterRelease: 2, useServerTs: true });
  expect(of("Call")).toMatchObject({ requestMethod: "PUT", credentials: { type: "basic", username: "me", password: "" } });
});

test("new external nodes have no address", async ({ console: page, node }) => {
  const platform = await Platform.open(node, "Main");
  const made = (await platform.call("POST", "/api/ruleChain", { name: "External", type: "CORE" })) as { id: { id: string } };
  await open(page, `chains/${made.id.id}`);
  const panel = page.getByRole("region", { name: "Node", exact: true });
  for (const [title, label, example] of [["Kafka", "Bootstrap servers", "kafka.example.com:9092"], ["MQTT", "Host", "mqtt.example.com"], ["REST API call", "URL", "https://api.example.com/alerts"]] as const) {
    await page.getByRole("combobox", { name: "New node", exact: true }).selectOption({ label: title });
    await page.getByRole("button", { name: "Add", exact: true }).click();
    const address = panel.getByLabel(label, { exact: true });
    await expect(address).toHaveValue("");
    await expect(address).toHaveAttribute("placeholder", example);
  }
});

test("a node that does not run shows the reason", async ({ console: page, node }) => {
  const platform = await Platform.open(node, "Main");
  const made = (await platform.call("POST", "/api/ruleChain", { name: "Broken", type: "CORE" })) as { id: { id: string } };
  const nodes = [{ type: `${PREFIX}transform.TbCopyKeysNode`, name: "Copy", configuration: { copyFrom: "DATA", keys: ["("] }, additionalInfo: { layoutX: 40, layoutY: 40 } }];
  await platform.call("POST", "/api/ruleChain/metadata", { ruleChainId: made.id, firstNodeIndex: 0, nodes, connections: [], ruleChainConnections: null });
  await open(page, `chains/${made.id.id}`);
  await page.getByRole("button", { name: "Node Copy", exact: true }).click();
  const panel = page.getByRole("region", { name: "Node", exact: true });
  await expect(panel.getByText(/^The saved node does not run: .*keys: not valid regular expressions/)).toBeVisible();
  await panel.getByLabel("Keys", { exact: true }).fill("temp.*");
  await page.getByRole("button", { name: "Save", exact: true }).click();
  await expect(panel.getByText(/^The saved node does not run/)).toBeHidden();
});
