// The MQTT client page: saved connections, MQTT 5 options, and broken connections.
import type { Page } from "@playwright/test";
import { seconds } from "../support/slow";
import { expect, open, test } from "../support/test";

const section = (page: Page, name: string | RegExp) => page.locator("section", { has: page.getByRole("heading", { name }) });

async function connect(page: Page): Promise<void> {
  await page.getByRole("button", { name: "Connect", exact: true }).click();
  await expect(page.getByText(/^Connected as /)).toBeVisible();
}

const [CONNECT, DISCONNECT] = [0x10, 0xe0];

/** Records the last packet of a type that the page sends over WebSockets, as hexadecimal. */
function sent(page: Page): (kind: number) => string {
  const frames: Buffer[] = [];
  page.on("websocket", (socket) => socket.on("framesent", ({ payload }) => { if (typeof payload !== "string") frames.push(payload); }));
  return (kind) => frames.findLast((frame) => frame[0] === kind)?.toString("hex") ?? "";
}

const hex = (text: string) => Buffer.from(text).toString("hex");

test("connections are saved by name in the browser", async ({ console: page }) => {
  const stored = () => page.evaluate(() => JSON.stringify(localStorage));
  await open(page, "mqtt");
  await page.getByLabel("Client id", { exact: true }).fill("kitchen-1");
  await page.getByLabel("MQTT user", { exact: true }).fill("cook");
  await page.getByLabel("Password", { exact: true }).fill("salt and pepper");
  await page.getByText("Session", { exact: true }).click();
  await page.getByLabel("Keep alive (s)", { exact: true }).fill("33");
  await page.getByRole("button", { name: "Remember…", exact: true }).click();
  const dialog = page.getByRole("dialog");
  await expect(dialog.getByText("The password is not saved.")).toBeVisible();
  await dialog.getByLabel("Name", { exact: true }).fill("kitchen");
  await dialog.getByRole("button", { name: "Remember", exact: true }).click();
  await expect(dialog).toBeHidden();
  await expect.poll(stored).not.toContain("salt and pepper");
  await page.reload();
  await page.getByLabel("Client id", { exact: true }).fill("another");
  await page.getByRole("combobox", { name: "Saved connections", exact: true }).selectOption("kitchen");
  await expect(page.getByLabel("Client id", { exact: true })).toHaveValue("kitchen-1");
  await expect(page.getByLabel("MQTT user", { exact: true })).toHaveValue("cook");
  await expect(page.getByLabel("Password", { exact: true })).toHaveValue("");
  await page.getByText("Session", { exact: true }).click();
  await expect(page.getByLabel("Keep alive (s)", { exact: true })).toHaveValue("33");
  // Another name, with the password.
  await page.getByLabel("Password", { exact: true }).fill("salt and pepper");
  await page.getByRole("button", { name: "Remember…", exact: true }).click();
  await dialog.getByLabel("Name", { exact: true }).fill("larder");
  await dialog.getByLabel("Save the password", { exact: true }).check();
  await expect(dialog.getByText(/is stored unencrypted/)).toBeVisible();
  await dialog.getByRole("button", { name: "Remember", exact: true }).click();
  await expect(dialog).toBeHidden();
  await expect.poll(stored).toContain("salt and pepper");
  await page.reload();
  await expect(page.getByLabel("Password", { exact: true })).toHaveValue("");
  await page.getByRole("combobox", { name: "Saved connections", exact: true }).selectOption("larder");
  await expect(page.getByLabel("Password", { exact: true })).toHaveValue("salt and pepper");
  await page.getByRole("button", { name: "Delete larder", exact: true }).click();
  await dialog.getByRole("button", { name: "Delete", exact: true }).click();
  await expect(page.getByRole("combobox", { name: "Saved connections", exact: true }).getByRole("option")).toHaveText(["–", "kitchen"]);
  await expect.poll(stored).not.toContain("salt and pepper");
});

test("CONNECT carries the MQTT 5 options", async ({ console: page, node }) => {
  const packet = sent(page);
  await open(page, "mqtt");
  await page.getByText("Limits and properties", { exact: true }).click();
  await page.getByLabel("Receive maximum", { exact: true }).fill("7");
  await page.getByLabel("Maximum packet size (bytes)", { exact: true }).fill("4096");
  await page.getByLabel("Topic alias maximum", { exact: true }).fill("5");
  await page.getByLabel("User properties of the connection", { exact: true }).fill("room = attic");
  await page.getByLabel("Request response information", { exact: true }).check();
  await page.getByLabel("Request problem information", { exact: true }).uncheck();
  await connect(page);
  await expect.poll(() => packet(CONNECT)).not.toBe("");
  const bytes = packet(CONNECT);
  for (const [what, property] of [["receive maximum", "210007"], ["maximum packet size", "2700001000"], ["topic alias maximum", "220005"], ["request response information", "1901"], ["request problem information", "1700"]] as const) expect(bytes, what).toContain(property);
  expect(bytes).toContain(`260004${hex("room")}0005${hex("attic")}`);
  await page.getByText("Server's answer (CONNACK)", { exact: true }).click();
  await expect(page.getByText("topic alias maximum", { exact: true })).toBeVisible();
  const subscribe = section(page, "Subscribe");
  await subscribe.getByLabel("Topic filter", { exact: true }).fill("alias/#");
  await subscribe.getByRole("button", { name: "Subscribe", exact: true }).click();
  await expect(subscribe.getByRole("listitem")).toBeVisible();
  for (const payload of ["one", "two", "x".repeat(5000), "three"]) await node.publish("alias/long/enough/to/be/worth/it", payload, "-q", "1");
  const log = section(page, /^Messages/);
  // The large message exceeds the client's maximum packet size.
  await expect(log.getByRole("listitem")).toHaveCount(3);
  await expect(log.getByRole("listitem").filter({ hasText: "alias/long/enough/to/be/worth/it" })).toHaveCount(3);
  await expect(log.getByRole("listitem").first()).toContainText("three");
});

test("an unknown authentication method is refused", async ({ console: page }) => {
  const packet = sent(page);
  await open(page, "mqtt");
  await page.getByText("Limits and properties", { exact: true }).click();
  await page.getByLabel("Authentication method", { exact: true }).fill("GS2-KRB5");
  await page.getByLabel("Authentication data", { exact: true }).fill("ticket");
  await page.getByRole("button", { name: "Connect", exact: true }).click();
  await expect(page.getByText(/Bad authentication method \(0x8c\)/)).toBeVisible();
  await expect.poll(() => packet(CONNECT)).toContain(`160006${hex("ticket")}`);
});

test("wills and DISCONNECT carry their MQTT 5 options", async ({ console: page, node }) => {
  const retained = async () => ((await node.call("GET", "/api/v1/retained?filter=wills/%23")) as { items: unknown[] }).items;
  const packet = sent(page);
  await open(page, "mqtt");
  await page.getByText("Will", { exact: true }).click();
  await page.getByLabel("Will topic", { exact: true }).fill("wills/attic");
  await page.getByLabel("Will payload", { exact: true }).fill("67 6f 6e 65");
  await page.getByLabel("Will payload as", { exact: true }).selectOption("hexadecimal");
  await page.getByLabel("Retain will", { exact: true }).check();
  await page.getByLabel("Will delay (s)", { exact: true }).fill("1");
  const form = page.getByRole("form", { name: "Connection", exact: true });
  await form.getByLabel("Content type", { exact: true }).fill("text/plain");
  await form.getByLabel("User properties", { exact: true }).fill("floor = 3");
  // Without a session the server would not delay the will.
  await page.getByText("Session", { exact: true }).click();
  await page.getByLabel("Session expiry interval (s)", { exact: true }).fill("60");
  await connect(page);
  await expect.poll(() => packet(CONNECT)).toContain("1800000001");
  await page.getByRole("button", { name: "Disconnect", exact: true }).click();
  await expect(page.getByText("Disconnected.", { exact: true })).toBeVisible();
  await connect(page);
  expect(await retained()).toEqual([]);
  await page.getByText("Disconnect options", { exact: true }).click();
  await page.getByRole("combobox", { name: "Reason code", exact: true }).selectOption("Disconnect with will (0x04)");
  await page.getByLabel("Reason string", { exact: true }).fill("going home");
  await page.getByRole("button", { name: "Disconnect", exact: true }).click();
  // The length and the reason string.
  await expect.poll(() => packet(DISCONNECT)).toMatch(new RegExp(`^e0..04.*${hex("going home")}`));
  await expect.poll(retained).toHaveLength(1);
  await open(page, "retained");
  await page.getByLabel("Topic filter", { exact: true }).fill("wills/#");
  await page.getByRole("button", { name: "Show wills/attic", exact: true }).click();
  const dialog = page.getByRole("dialog");
  await expect(dialog.getByRole("region", { name: "Payload", exact: true })).toHaveText("gone");
  await expect(dialog.getByText("text/plain", { exact: true })).toBeVisible();
  await expect(dialog.getByText("floor", { exact: true })).toBeVisible();
});

test("the list shows the filter that was subscribed", async ({ console: page }) => {
  const SUBACK = 0x90;
  let release: (() => void) | undefined;
  await page.routeWebSocket(/\/mqtt$/, (client) => {
    const server = client.connectToServer();
    server.onMessage((message) => {
      if (Buffer.from(message as Buffer)[0] === SUBACK) release = () => client.send(message);
      else client.send(message);
    });
  });
  await page.reload();
  await open(page, "mqtt");
  await connect(page);
  const subscribe = section(page, "Subscribe");
  const filter = subscribe.getByLabel("Topic filter", { exact: true });
  await filter.fill("asked/#");
  await subscribe.getByRole("button", { name: "Subscribe", exact: true }).click();
  await expect.poll(() => release !== undefined).toBe(true);
  await filter.fill("typed/later");
  release?.();
  await expect(subscribe.getByRole("listitem")).toContainText("asked/# QoS");
  await expect(filter).toHaveValue("typed/later");
});

test("payload formats and topic aliases work", async ({ console: page }) => {
  await open(page, "mqtt");
  await connect(page);
  const subscribe = section(page, "Subscribe");
  await subscribe.getByLabel("Topic filter", { exact: true }).fill("typed/#");
  await subscribe.getByRole("button", { name: "Subscribe", exact: true }).click();
  await expect(subscribe.getByRole("listitem")).toBeVisible();
  const publish = section(page, "Publish");
  const log = section(page, /^Messages/);
  const send = async (format: string, payload: string) => {
    await publish.getByLabel("Payload as", { exact: true }).selectOption(format);
    await publish.getByLabel("Payload", { exact: true }).fill(payload);
    await publish.getByRole("button", { name: "Publish", exact: true }).click();
  };
  await publish.getByText("MQTT 5 properties").click();
  await publish.getByLabel("Topic alias", { exact: true }).fill("3");
  await publish.getByLabel("Mark the payload as UTF-8 text", { exact: true }).check();
  await publish.getByLabel("Topic", { exact: true }).fill("typed/aliased");
  await send("JSON", "{temp: 1}");
  await expect(page.getByText(/^The payload is not JSON/)).toBeVisible();
  await send("JSON", '{"temp": 1}');
  await expect(log.getByRole("button", { name: /^in .*typed\/aliased.*"temp": 1/ })).toBeVisible();
  await publish.getByLabel("Topic", { exact: true }).fill("");
  await send("hexadecimal", "68 65 7");
  await expect(page.getByText(/^The payload is not hexadecimal/)).toBeVisible();
  await send("hexadecimal", "68 65 78");
  await expect(log.getByRole("button", { name: /^in .*typed\/aliased.*hex/ })).toBeVisible();
  await send("Base64", "YmFzZQ==");
  const last = log.getByRole("button", { name: /^in .*typed\/aliased.*base/ });
  await last.click();
  await expect(log.getByText("payload format indicator", { exact: true })).toBeVisible();
});

test("a missing PINGRESP ends the connection", async ({ console: page, node }) => {
  await open(page, "mqtt");
  await page.getByText("Session", { exact: true }).click();
  await page.getByLabel("Keep alive (s)", { exact: true }).fill("2");
  await connect(page);
  node.freeze();
  try {
    await expect(page.getByRole("status").getByText("Disconnected: The connection is broken: the server has not answered PINGREQ for 10 s.")).toBeVisible({ timeout: seconds(25) });
  } finally {
    node.thaw();
  }
});
