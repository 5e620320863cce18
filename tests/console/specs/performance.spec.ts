// The console beside a node at work: the page stays quick, and what it has seen does not pile up.
import { spawn, type ChildProcess } from "node:child_process";
import { once } from "node:events";
import { connect } from "node:net";
import type { Page } from "@playwright/test";
import { longestTask, pass } from "../support/measure";
import { until, type Node } from "../support/node";
import { drawn } from "../support/reads";
import { seconds, SLOW } from "../support/slow";
import { expect, open, test } from "../support/test";

const CLIENTS = 10_000;
const MESSAGES_PER_S = 10_000;
const LONG_TASK_MS = 200;

/** The load tool against the node, until it is killed. */
function bench(node: Node, ...options: string[]): ChildProcess {
  return spawn(process.env["TIDEWIRE"] as string, ["bench", "run", ...options, "-h", "127.0.0.1", "-p", String(node.mqttPort)], { stdio: "ignore" });
}

const numbers = async (node: Node) => (await node.call("GET", "/api/v1/stats")) as { connections: { current: number } };

/** What is in use when nothing is left to be collected. */
async function heapBytes(page: Page): Promise<number> {
  const session = await page.context().newCDPSession(page);
  // What is freed in one round may free more in the next.
  for (let round = 0; round < 3; round += 1) await session.send("HeapProfiler.collectGarbage");
  const { usedSize } = await session.send("Runtime.getHeapUsage");
  await session.detach();
  return usedSize;
}

test("10,000 clients and 10,000 messages a second make no long task", async ({ console: page, node }) => {
  test.setTimeout(seconds(240));
  const loads = [bench(node, "idle", "--set", `idle.clients=${CLIENTS}`, "--duration", "200", "--threads", "1")];
  try {
    await until(async () => (await numbers(node)).connections.current >= CLIENTS);
    loads.push(bench(node, "fanin", "--set", "publishers.clients=100", "--set", `publishers.publish.rate=${MESSAGES_PER_S / 100}`, "--duration", "200", "--threads", "1"));
    const incoming = page.locator("dl > div", { has: page.getByText("Messages in", { exact: true }) }).locator("dd").first();
    await open(page, "home");
    await expect(incoming).toHaveText(/^(9,\d{3}|1\d,\d{3})\/s$/, { timeout: seconds(60) });
    for (const path of ["home", "clients", "topics"]) {
      await open(page, path);
      await drawn(page);
      if (path === "topics") await page.getByRole("button", { name: "Watch", exact: true }).click();
      expect.soft(await longestTask(page), path).toBeLessThan(LONG_TASK_MS * SLOW);
    }
  } finally {
    for (const child of loads) child.kill("SIGKILL");
  }
});

const BURST_TOPICS = 1_000_000;

/** Each topic once, as fast as the node takes them. */
async function burst(node: Node, topics: number): Promise<void> {
  const socket = connect(node.mqttPort, "127.0.0.1");
  socket.write(Buffer.from([0x10, 0x0e, 0, 4, ...Buffer.from("MQTT"), 4, 2, 0, 0, 0, 2, ...Buffer.from("bu")]));
  await once(socket, "data");
  for (let n = 0; n < topics; n += 1000) {
    const packets = Array.from({ length: 1000 }, (_, i) => {
      const topic = Buffer.from(`burst-${n + i}/value`);
      return Buffer.concat([Buffer.from([0x30, topic.length + 4, 0, topic.length]), topic, Buffer.from("42")]);
    });
    if (!socket.write(Buffer.concat(packets))) await once(socket, "drain");
  }
  socket.end(Buffer.from([0xe0, 0]));
  await once(socket, "close");
}

test("a burst of a million topics makes no long task", async ({ console: page, node }) => {
  test.setTimeout(seconds(240));
  await open(page, "topics");
  await page.getByLabel("Topic filter", { exact: true }).fill("+/value");
  await page.getByRole("button", { name: "Watch", exact: true }).click();
  await expect(page.getByRole("button", { name: "Stop", exact: true })).toBeVisible();
  const done = burst(node, BURST_TOPICS);
  expect(await longestTask(page, () => done)).toBeLessThan(LONG_TASK_MS * SLOW);
  await expect(page.getByRole("heading", { name: /^20,000 topics / })).toBeVisible();
  await expect(page.getByRole("button", { name: "19,900 more", exact: true })).toBeVisible();
});

test("what the pages use does not grow", async ({ console: page, node }) => {
  test.setTimeout(seconds(240));
  node.load("heap/temp", 500);
  await node.subscriber("heap-1", "heap/#");
  const round = async () => {
    for (const path of ["home", "clients", "topics", "subscriptions", "rules", "logs"]) {
      await open(page, path);
      await drawn(page);
      if (path === "topics") {
        await page.getByRole("button", { name: "Watch", exact: true }).click();
        // Other tests have left something that talks, too.
        await expect(page.getByRole("heading", { name: /^[1-9]\d* topics? / })).toBeVisible();
      }
    }
  };
  // Code and caches come with the first looks.
  for (let n = 0; n < 3; n += 1) await round();
  await open(page, "about");
  const before = await heapBytes(page);
  for (let n = 0; n < 12; n += 1) await round();
  await open(page, "about");
  const after = await heapBytes(page);
  expect(after - before, `${before} bytes became ${after}`).toBeLessThan(1_000_000);
});

/** HEAP_MINUTES=10 for what a release has to show. */
const HEAP_MINUTES = Number(process.env["HEAP_MINUTES"] ?? 2);

test("a page that is left open stays as small as it is", async ({ console: page, node }) => {
  test.setTimeout(seconds((HEAP_MINUTES + 2) * 60));
  node.load("left/open", 500);
  await open(page, "home");
  await drawn(page);
  const samples: number[] = [];
  const end = Date.now() + HEAP_MINUTES * 60_000;
  while (Date.now() < end) {
    await pass(5_000);
    samples.push(await heapBytes(page));
  }
  const third = Math.floor(samples.length / 3);
  const median = (of: number[]) => [...of].sort((a, b) => a - b)[Math.floor(of.length / 2)] ?? 0;
  const [before, after] = [median(samples.slice(third, 2 * third)), median(samples.slice(-third))];
  console.log(`heap of the home page over ${HEAP_MINUTES} minutes, in KiB: ${samples.map((bytes) => Math.round(bytes / 1024)).join(" ")}`);
  // Its charts fill up for ten minutes: numbers of a second, 8 bytes each.
  expect(after - before).toBeLessThan(500_000);
});

const ROUND_MS = 15_000;
const ROUNDS = 5;

/** What goes on while the viewer looks, and what the page says of it. */
const LOADS = [
  { what: "20,000 messages a second come in", scenario: ["fanin", "--set", "publishers.clients=100", "--set", "publishers.publish.rate=200"], tile: "Messages in", reads: /^(1\d|2\d),\d{3}\/s$/ },
  { what: "a million messages a second go out", scenario: ["nanomq-million", "--set", "publishers.publish.messages=0"], tile: "Messages out", reads: /^(9\d\d(\.\d)?K|1(\.\d)?M)\/s$/ },
];

// All of the server is busy with the load, and by more or less than a viewer costs: what the threads that serve the page use is told apart from that. They ask the
// shards for numbers once a second, whoever looks; what a page asks beside is the time of a request or two.
for (const { what, scenario, tile, reads } of LOADS) {
  test(`one viewer costs the server less than 5 % of a core while ${what} @measured`, async ({ console: page, node }) => {
    test.setTimeout(seconds(400));
    const cores = async () => {
      const [all, api, at] = [node.threadSeconds(), node.threadSeconds("api"), Date.now()];
      await pass(ROUND_MS);
      const seconds = (Date.now() - at) / 1000;
      return { all: (node.threadSeconds() - all) / seconds, api: (node.threadSeconds("api") - api) / seconds };
    };
    const load = bench(node, ...scenario, "--duration", "300", "--threads", "1");
    try {
      const messages = page.locator("dl > div", { has: page.getByText(tile, { exact: true }) }).locator("dd").first();
      await expect(messages).toHaveText(reads, { timeout: seconds(60) });
      type Cores = Awaited<ReturnType<typeof cores>>;
      const rounds: { without: Cores; viewed: Cores }[] = [];
      for (let round = 0; round < ROUNDS; round += 1) {
        await page.goto("about:blank");
        const without = await cores();
        await page.goto(node.url);
        await expect(messages).toHaveText(reads, { timeout: seconds(20) });
        rounds.push({ without, viewed: await cores() });
      }
      const percent = (of: number) => `${(of * 100).toFixed(1)} %`;
      const cost = (of: keyof Cores) => rounds.map(({ without, viewed }) => viewed[of] - without[of]).sort((a, b) => a - b)[Math.floor(ROUNDS / 2)] ?? 1;
      const told = (of: keyof Cores) => `${rounds.map(({ without, viewed }) => `${percent(without[of])} ${percent(viewed[of])}`).join(", ")}; the viewer costs ${percent(cost(of))} (median)`;
      console.log(`${what}; of a core, without and with a viewer: threads of the API ${told("api")}; all of the server ${told("all")}`);
      expect(cost("api")).toBeLessThan(0.05);
    } finally {
      load.kill("SIGKILL");
    }
  });
}
