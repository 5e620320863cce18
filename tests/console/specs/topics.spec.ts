// Limits of the topics page: bounded memory, and a pause when messages arrive too fast.
import { once } from "node:events";
import { connect, type Socket } from "node:net";
import type { Page } from "@playwright/test";
import { until, type Node } from "../support/node";
import { textOf } from "../support/reads";
import { seconds } from "../support/slow";
import { expect, open, test } from "../support/test";

async function publisher(node: Node): Promise<Socket> {
  const socket = connect(node.mqttPort, "127.0.0.1");
  socket.write(Buffer.from([0x10, 0x0e, 0, 4, ...Buffer.from("MQTT"), 4, 2, 0, 0, 0, 2, ...Buffer.from("pu")]));
  await once(socket, "data");
  return socket;
}

function publish(topic: string, payload: Buffer): Buffer {
  const name = Buffer.from(topic);
  const length: number[] = [];
  for (let rest = name.length + 2 + payload.length; length.length === 0 || rest > 0; rest = Math.floor(rest / 128)) length.push((rest % 128) | (rest >= 128 ? 0x80 : 0));
  return Buffer.concat([Buffer.from([0x30, ...length, name.length >> 8, name.length & 255]), name, payload]);
}

/** Counts the bytes that the page receives over WebSockets. */
function received(page: Page): () => number {
  let bytes = 0;
  page.on("websocket", (socket) => socket.on("framereceived", ({ payload }) => { bytes += payload.length; }));
  return () => bytes;
}

async function watchTopics(page: Page, filter: string): Promise<void> {
  await open(page, "topics");
  await page.getByLabel("Topic filter", { exact: true }).fill(filter);
  await page.getByRole("button", { name: "Watch", exact: true }).click();
  await expect(page.getByRole("button", { name: "Stop", exact: true })).toBeVisible();
}

test("payload memory is bounded and later payloads are cut", async ({ console: page, node }) => {
  const bytes = received(page);
  await watchTopics(page, "large/#");
  const socket = await publisher(node);
  for (let n = 0; n < 900; n += 1) {
    if (!socket.write(publish(`large/${n}`, Buffer.alloc(60_000, 97 + (n % 26))))) await once(socket, "drain");
    // A subscriber that is too slow misses messages, so the page receives these first.
    if (n % 10 === 9) await until(async () => bytes() >= (n + 1) * 60_000);
  }
  await expect(page.getByRole("heading", { name: /^900 topics / })).toBeVisible();
  const show = async (topic: string) => {
    await page.getByLabel("Search topics", { exact: true }).fill(topic);
    await page.getByRole("list", { name: "Topics found", exact: true }).getByRole("button").first().click();
    await expect(page.locator("dl").getByText(topic, { exact: true })).toBeVisible();
  };
  await show("large/5");
  await expect(page.getByText("59 KiB", { exact: true })).toBeVisible();
  await show("large/899");
  await expect(page.getByText("Only the beginning of 59 KiB is shown.")).toBeVisible();
  await expect(page.getByText("256 B", { exact: true })).toBeVisible();
  // Replaced payloads free memory.
  for (let n = 0; n < 50; n += 1) socket.write(publish(`large/${n}`, Buffer.from("short")));
  socket.write(publish("large/899", Buffer.alloc(60_000, 98)));
  await expect(page.getByText("59 KiB", { exact: true })).toBeVisible();
  socket.destroy();
});

test("topic memory is bounded and excess topics are counted", async ({ console: page, node }) => {
  await watchTopics(page, "deep/#");
  const socket = await publisher(node);
  const below = Array.from({ length: 90 }, () => "level").join("/");
  const list = page.locator("section", { has: page.getByRole("heading", { name: /^[\d,]+ topics? / }) });
  /** Number of shown topics, and of messages and topics that are not shown. */
  const counts = async (): Promise<[number, number, number]> => {
    const said = (await textOf(list)).replaceAll(",", "").replace(/\s+/g, " ");
    const [, messages, others] = /\(limit 64 MiB\)\. (\d+) messages? of about (\d+) other topics? (?:is|are) not shown\./.exec(said) ?? [];
    return [Number(/(\d+) topics? /.exec(said)?.[1]), Number(messages ?? 0), Number(others ?? 0)];
  };
  const sum = async () => (await counts()).slice(0, 2).reduce((a, b) => a + b, 0);
  for (let n = 0; n < 3000; n += 1) {
    if (!socket.write(publish(`deep/${n}/${below}`, Buffer.from("1")))) await once(socket, "drain");
    if (n % 500 === 499) await expect.poll(sum).toBe(n + 1);
  }
  const [stored, messages, others] = await counts();
  expect(stored).toBeGreaterThan(300);
  expect(stored).toBeLessThan(1500);
  expect(stored + messages).toBe(3000);
  expect(Math.abs(others - messages)).toBeLessThan(messages * 0.02);
  socket.destroy();
});

test("an overloaded page pauses and continues", async ({ console: page }) => {
  // A server that sends more at once than the page can buffer. No real server is that much faster than a browser.
  await page.addInitScript(() => {
    let connections = 0;
    class Flood {
      static readonly OPEN = 1;
      readyState = 1;
      onopen: (() => void) | null = null;
      onmessage: ((event: { data: ArrayBuffer }) => void) | null = null;
      readonly isFirst = (connections += 1) === 1;
      constructor() { setTimeout(() => this.onopen?.()); }
      say(...bytes: number[]) { this.onmessage?.({ data: Uint8Array.from(bytes).buffer }); }
      publish(name: string) { this.say(0x30, name.length + 3, 0, name.length, ...[...name].map((letter) => letter.charCodeAt(0)), 0); }
      send(bytes: Uint8Array) {
        if (bytes[0] === 0x10) this.say(0x20, 3, 0, 0, 0);
        if (bytes[0] !== 0x82) return;
        this.say(0x90, 4, bytes[2] ?? 0, bytes[3] ?? 0, 0, 0);
        this.publish(this.isFirst ? "before" : "after");
        if (this.isFirst) setTimeout(() => { for (let n = 0; n < 100; n += 1) this.onmessage?.({ data: new ArrayBuffer(1024 * 1024) }); }, 1500);
      }
      close() { this.readyState = 3; }
    }
    const Real = WebSocket;
    window.WebSocket = new Proxy(Real, { construct: (target, [address, protocols]: [string | URL, string[]]) => (String(address).endsWith("/api/v1/mqtt") ? new Flood() : new target(address, protocols)) });
  });
  await page.reload();
  await open(page, "topics");
  await page.getByRole("button", { name: "Watch", exact: true }).click();
  await expect(page.getByText(/^Messages arrived faster than this page can process them \(6\d MiB behind\)\. The page pauses/)).toBeVisible();
  const tree = page.getByRole("list", { name: "Topics", exact: true });
  await expect(tree.getByText("before", { exact: true })).toBeVisible();
  // Editing the filter postpones the restart.
  await page.getByLabel("Topic filter", { exact: true }).fill("narrow/#");
  await expect(tree.getByText("after", { exact: true })).toBeVisible({ timeout: seconds(20) });
  await expect(tree.getByText("before", { exact: true })).toBeVisible();
  await expect(page.getByText(/^Messages arrived faster than this page can process them/)).toBeHidden();
  await page.getByRole("button", { name: "Stop", exact: true }).click();
  await expect(page.getByRole("button", { name: "Watch", exact: true })).toBeVisible();
});

const clients = async (node: Node) => ((await node.call("GET", "/api/v1/clients")) as { items: { client_id: string }[] }).items;

test("a refused subscription closes the connection", async ({ console: page, node }) => {
  await node.call("PUT", "/api/v1/acl", { rules: [{ permission: "deny", action: "subscribe", topics: ["eq #"] }] });
  let opened = 0;
  page.on("websocket", (socket) => { if (socket.url().endsWith("/api/v1/mqtt")) opened += 1; });
  await open(page, "topics");
  const refused = page.getByText("Not authorized");
  for (let n = 0; n < 3; n += 1) {
    await page.getByRole("button", { name: "Watch", exact: true }).click();
    await expect(refused).toBeVisible();
    await page.getByRole("button", { name: "Close message", exact: true }).click();
    await expect(refused).toBeHidden();
  }
  expect(opened).toBe(3);
  await expect.poll(() => clients(node)).toEqual([]);
  await node.call("PUT", "/api/v1/acl", { rules: [] });
});

test("leaving a page closes its pending connection", async ({ console: page, node }) => {
  const [CONNACK, SUBACK] = [0x20, 0x90];
  let kind = CONNACK;
  const held: (() => void)[] = [];
  await page.routeWebSocket(/\/api\/v1\/mqtt$/, (client) => {
    const server = client.connectToServer();
    server.onMessage((message) => {
      if (Buffer.from(message as Buffer)[0] === kind) held.push(() => client.send(message));
      else client.send(message);
    });
  });
  await page.reload();
  for (const [path, button, packet] of [["topics", "Watch", CONNACK], ["topics", "Watch", SUBACK], ["mqtt", "Connect", CONNACK]] as const) {
    kind = packet;
    await open(page, path);
    await page.getByRole("button", { name: button, exact: true }).click();
    await expect.poll(() => held.length).toBe(1);
    expect(await clients(node)).toHaveLength(1);
    await open(page, "bans");
    await expect(page.getByRole("heading", { level: 1, name: "Bans", exact: true })).toBeVisible();
    held.pop()?.();
    await expect.poll(() => clients(node)).toEqual([]);
  }
});
