// Rules, connectors, actions and sources: editing, dry runs, rollback, buffers.
import { createServer, type Server } from "node:http";
import { once } from "node:events";
import { boxOf, drawn, textsOf } from "../support/reads";
import { expect, open, test } from "../support/test";
import { freePort } from "../support/node";

test("an SQL error is marked and a valid rule is tried", async ({ console: page }) => {
  await open(page, "rules/new");
  const editor = page.getByRole("textbox", { name: "SQL of the rule", exact: true });
  await editor.fill('SELECT payload.temp AS t FORM "m/#"');
  await expect(page.getByRole("alert").filter({ hasText: "Line 1, column 26" })).toBeVisible();
  await expect(page.locator(".wrong")).toHaveText("FORM");
  await editor.fill('SELECT payload.temp AS t FROM "m/#" WHERE payload.temp > 30');
  await expect(page.locator(".wrong")).toHaveCount(0);
  await page.getByLabel("Topic", { exact: true }).fill("elsewhere");
  await expect(page.getByText("No match: the topic does not match FROM.")).toBeVisible();
  await page.getByLabel("Topic", { exact: true }).fill("m/1");
  await expect(page.getByText("1 output")).toBeVisible();
  await page.getByLabel("Payload", { exact: true }).fill('{"temp": 3}');
  await expect(page.getByText("No output: WHERE is not true.")).toBeVisible();
});

test("Tab completes words in the rule editor", async ({ console: page }) => {
  await open(page, "rules/new");
  const editor = page.getByRole("textbox", { name: "SQL of the rule", exact: true });
  await editor.fill("SEL");
  await editor.press("End");
  await editor.pressSequentially("E");
  await page.keyboard.press("Tab");
  await expect(editor).toHaveValue("SELECT");
});

test("an example does not replace typed SQL without a question", async ({ console: page }) => {
  await open(page, "rules/new");
  const editor = page.getByRole("textbox", { name: "SQL of the rule", exact: true });
  const examples = page.getByRole("combobox", { name: "Example", exact: true });
  await examples.selectOption({ label: "A connection ended" });
  await expect(editor).toHaveValue(/FROM "\$events\/client\/disconnected"/);
  await examples.selectOption({ label: "Conditional values" });
  await expect(page.getByRole("region", { name: "Dry run", exact: true }).locator("pre")).toHaveText(/"state": "hot"/);
  await editor.fill('SELECT clientid FROM "$events/session/sub');
  await editor.press("End");
  await editor.pressSequentially("s");
  await page.keyboard.press("Tab");
  await expect(editor).toHaveValue('SELECT clientid FROM "$events/session/subscribed');
  await examples.selectOption({ label: "Conditional values" });
  await page.getByRole("dialog").getByRole("button", { name: "Cancel", exact: true }).click();
  await expect(editor).toHaveValue('SELECT clientid FROM "$events/session/subscribed');
});

test("every example is a valid rule", async ({ console: page }) => {
  await open(page, "rules/new");
  const titles = await textsOf(page.getByRole("combobox", { name: "Example", exact: true }).locator("option"), 16);
  const area = page.getByRole("region", { name: "Dry run", exact: true });
  for (const label of titles.slice(1)) {
    await page.getByRole("combobox", { name: "Example", exact: true }).selectOption({ label });
    // The payload of the dry run has no list for this example.
    if (label === "One output per list element") await area.getByLabel("Payload", { exact: true }).fill('{"temp": 31.5, "sensors": [{"name": "a", "value": 1}]}');
    await expect(area.getByText("1 output"), label).toBeVisible();
    await expect(page.locator(".wrong"), label).toHaveCount(0);
  }
});

test("a rule shows warnings and evaluation errors", async ({ console: page, node }) => {
  await node.call("POST", "/api/v1/rules", { id: "early", sql: 'SELECT * FROM "$sources/mqtt:not-yet"' });
  await node.call("POST", "/api/v1/rules", { id: "adds", sql: 'SELECT payload.a + 1 AS b FROM "adds/#"' });
  await open(page, "rules");
  await expect(page.getByRole("row", { name: /early/ }).getByText("warnings")).toBeVisible();
  await open(page, "rules/early");
  await expect(page.getByText(/mqtt:not-yet.*the source does not exist/)).toBeVisible();
  await open(page, "rules/adds");
  await expect(page.getByRole("alert").filter({ hasText: "column" })).toHaveText(/^Line 1, column \d+: \+ requires two numbers, .*\(for the dry-run message\)$/);
  await expect(page.getByText(/^Error: \+ requires two numbers/)).toBeVisible();
  await node.call("DELETE", "/api/v1/rules/early");
  await node.call("DELETE", "/api/v1/rules/adds");
});

test("a rule is added, watched, changed and rolled back", async ({ console: page, node }) => {
  await open(page, "rules/new");
  await page.getByLabel("Id", { exact: true }).fill("warm");
  await page.getByRole("textbox", { name: "SQL of the rule", exact: true }).fill('SELECT clientid, payload.temp AS t FROM "live/#" WHERE payload.temp > 30');
  await page.getByRole("combobox", { name: "Add an output", exact: true }).selectOption("republish");
  await page.getByRole("button", { name: "Add", exact: true }).click();
  await page.getByLabel("Publish to topic", { exact: true }).fill("alarms/${clientid}");
  await page.getByRole("button", { name: "Add rule", exact: true }).click();
  await expect(page.getByRole("heading", { level: 1, name: "warm", exact: true })).toBeVisible();
  await page.getByRole("button", { name: "Watch", exact: true }).click();
  await expect(page.getByText("at most 10 samples per second")).toBeVisible();
  await node.publish("live/1", '{"temp": 31}', "-i", "probe");
  await expect(page.getByText('→ {"clientid":"probe","t":31}')).toBeVisible();
  const matched = page.locator("dl > div", { has: page.getByText("Matched", { exact: true }) });
  await expect(matched.locator("dd").first()).toHaveText("1");

  const editor = page.getByRole("textbox", { name: "SQL of the rule", exact: true });
  await editor.fill('SELECT clientid, payload.temp AS t FROM "live/#" WHERE payload.temp > 40');
  await page.getByRole("button", { name: "Save", exact: true }).click();
  await expect(page.getByText("Version 2")).toBeVisible();
  await page.getByRole("button", { name: "Compare", exact: true }).click();
  await expect(page.locator(".removed")).toContainText("> 30");
  await expect(page.locator(".new")).toContainText("> 40");
  await page.getByRole("button", { name: "Roll back", exact: true }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Roll back", exact: true }).click();
  await expect(editor).toHaveValue(/> 30$/);

  await open(page, "rules");
  await page.getByRole("button", { name: "Disable warm", exact: true }).click();
  await expect(page.getByRole("button", { name: "Enable warm", exact: true })).toBeVisible();
  await open(page, "rules/warm");
  await page.getByRole("button", { name: "Delete", exact: true }).click();
  await page.getByRole("dialog").getByLabel("Type warm to confirm", { exact: true }).fill("warm");
  await page.getByRole("dialog").getByRole("button", { name: "Delete", exact: true }).click();
  await expect(page.getByRole("heading", { level: 1, name: "Rules", exact: true })).toBeVisible();
  await drawn(page);
  await expect(page.getByRole("button", { name: /able warm$/ })).toHaveCount(0);
});

test("the buffer of an action is paused, purged and resumed", async ({ console: page, node }) => {
  const [target, bodies] = await webServer();
  const address = target.address();
  const port = typeof address === "object" && address ? address.port : 0;

  await open(page, "connectors/new");
  await page.getByRole("combobox", { name: "Type", exact: true }).selectOption("http");
  await page.getByLabel("Name", { exact: true }).fill("hook");
  await page.getByLabel("URL", { exact: true }).fill(`http://127.0.0.1:${await freePort()}`);
  await page.getByRole("button", { name: "Test connection", exact: true }).click();
  await expect(page.getByText(/^Connection failed: /)).toBeVisible();
  await page.getByLabel("URL", { exact: true }).fill(`http://127.0.0.1:${port}`);
  await page.getByRole("button", { name: "Test connection", exact: true }).click();
  await expect(page.getByText(/^Connection successful/)).toBeVisible();
  await page.getByRole("button", { name: "Add", exact: true }).click();
  await expect(page.getByRole("heading", { level: 1, name: "hook", exact: true })).toBeVisible();

  await open(page, "actions/new");
  await page.getByRole("combobox", { name: "Type", exact: true }).selectOption("http");
  await page.getByLabel("Name", { exact: true }).fill("post");
  await expect(page.getByRole("combobox", { name: "Connector", exact: true })).toHaveValue("hook");
  await page.getByRole("button", { name: "Add", exact: true }).click();
  await expect(page.getByRole("heading", { level: 1, name: "http:post", exact: true })).toBeVisible();

  await node.call("POST", "/api/v1/rules", { id: "forward", sql: 'SELECT payload.n AS n FROM "to-web/#"', actions: ["http:post"] });
  await node.publish("to-web/1", '{"n": 1}', "-q", "1");
  await expect.poll(() => bodies).toEqual(['{"n":1}']);
  const main = page.getByRole("main");
  await expect(main.getByText(/^1 message, /)).toBeVisible();
  await expect(main.getByText("Used by rule forward.")).toBeVisible();

  await page.getByRole("button", { name: "Pause", exact: true }).click();
  await expect(main.getByText("paused", { exact: true })).toBeVisible();
  await node.publish("to-web/1", '{"n": 2}', "-q", "1");
  await expect(main.locator("dt", { hasText: "Queued" }).locator("+ dd")).toHaveText(/^1 message, /);
  await page.getByRole("button", { name: "Purge…", exact: true }).click();
  await page.getByRole("dialog").getByLabel("Type http:post to confirm", { exact: true }).fill("http:post");
  await page.getByRole("dialog").getByRole("button", { name: "Purge", exact: true }).click();
  await expect(main.locator("dt", { hasText: "Queued" }).locator("+ dd")).toHaveText(/^0 messages/);
  await expect(page.getByRole("button", { name: "Purge…", exact: true })).toBeDisabled();
  await expect(page.getByRole("button", { name: "Purge…", exact: true })).toHaveAttribute("title", "The buffer is empty");
  await page.getByRole("button", { name: "Resume", exact: true }).click();
  await node.publish("to-web/1", '{"n": 3}', "-q", "1");
  await expect.poll(() => bodies).toEqual(['{"n":1}', '{"n":3}']);

  await open(page, "actions");
  await expect(page.getByRole("region", { name: "Table: Actions", exact: true }).getByRole("link", { name: "http:post", exact: true })).toBeVisible();
  target.close();
});

test("a source connects to its remote broker", async ({ console: page, node }) => {
  // Connections of the server are never anonymous.
  await node.call("POST", "/api/v1/users", { name: "loop", password: "a long password" });
  const config = { server: `127.0.0.1:${node.mqttPort}`, client_id: "self", user: "loop", password: "a long password" };
  await node.call("POST", "/api/v1/connectors", { type: "mqtt", name: "self", config });
  await open(page, "sources/new");
  await page.getByRole("combobox", { name: "Type", exact: true }).selectOption("mqtt");
  await page.getByLabel("Name", { exact: true }).fill("loop");
  await expect(page.getByRole("combobox", { name: "Connector", exact: true })).toHaveValue("self");
  await page.getByLabel("Subscriptions", { exact: true }).fill('[{"filter": "outside/#", "qos": 1}]');
  await page.getByLabel("Publish to topic (template)", { exact: true }).fill("inside/${topic}");
  await page.getByRole("button", { name: "Add", exact: true }).click();
  await expect(page.getByRole("heading", { level: 1, name: "mqtt:loop", exact: true })).toBeVisible();
  await expect(page.getByText("connected", { exact: true })).toBeVisible();
  // The name that rules use in FROM.
  await expect(page.getByRole("region", { name: "Counters", exact: true })).toContainText('"$sources/mqtt:loop"');
});

async function webServer(): Promise<[Server, string[]]> {
  const bodies: string[] = [];
  const server = createServer((request, response) => {
    let body = "";
    request.on("data", (chunk) => { body += String(chunk); });
    request.on("end", () => {
      if (request.method === "POST") bodies.push(body);
      response.end();
    });
  }).listen(0, "127.0.0.1");
  await once(server, "listening");
  return [server, bodies];
}

test("the flow picture connects inputs, rules and outputs", async ({ console: page, node }) => {
  await node.call("POST", "/api/v1/connectors", { type: "http", name: "far", config: { url: "http://127.0.0.1:9" } });
  await node.call("POST", "/api/v1/actions", { type: "http", name: "call", connector: "far" });
  await node.call("POST", "/api/v1/rules", { id: "flows", sql: 'SELECT * FROM "flow/#", "$events/client_connected"', actions: ["http:call", { function: "republish", args: { topic: "flow-out/x" } }] });
  await open(page, "rules");
  const flow = page.getByRole("region", { name: "Flow", exact: true });
  await expect(flow.getByRole("list", { name: "Inputs", exact: true }).getByText("$events/client/connected", { exact: true })).toBeVisible();
  const into = flow.getByRole("list", { name: "Outputs", exact: true });
  await expect(into.getByText("publish to flow-out/x", { exact: true })).toBeVisible();
  await flow.getByRole("link", { name: "flows", exact: true }).click();
  // One rule with two inputs and two outputs.
  await expect(page.getByRole("heading", { name: "flows", exact: true })).toBeVisible();
  await expect(flow.locator("path")).toHaveCount(4);
  expect((await boxOf(flow)).height).toBeLessThan(200);
  await into.getByRole("link", { name: "http:call", exact: true }).click();
  await expect(page.getByRole("heading", { name: "http:call", exact: true })).toBeVisible();
  await node.call("DELETE", "/api/v1/rules/flows");
});
