// The page stays responsive under load. These tests measure time, so dev/ui runs them alone (@quiet).
import { spawn, type ChildProcess } from "node:child_process";
import { once } from "node:events";
import { connect } from "node:net";
import { longestTask, pass } from "../support/measure";
import { until, type Node } from "../support/node";
import { drawn } from "../support/reads";
import { seconds, SLOW } from "../support/slow";
import { expect, open, test } from "../support/test";

const CLIENTS = 10_000;
const MESSAGES_PER_S = 10_000;
const LONG_TASK_MS = 200;

/** Runs the load tool against the node until it is killed. */
function bench(node: Node, ...options: string[]): ChildProcess {
  return spawn(process.env["TIDEWIRE"] as string, ["bench", "run", ...options, "-h", "127.0.0.1", "-p", String(node.mqttPort)], { stdio: "ignore" });
}

const numbers = async (node: Node) => (await node.call("GET", "/api/v1/stats")) as { connections: { current: number } };

test("10,000 messages per second do not block the page @quiet", async ({ console: page, node }) => {
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

/** Publishes once to each of the topics from number `first` on, as fast as the node accepts. */
async function burst(node: Node, topics: number, first = 0): Promise<void> {
  const socket = connect(node.mqttPort, "127.0.0.1");
  socket.write(Buffer.from([0x10, 0x0e, 0, 4, ...Buffer.from("MQTT"), 4, 2, 0, 0, 0, 2, ...Buffer.from("bu")]));
  await once(socket, "data");
  for (let n = first; n < first + topics; n += 1000) {
    const packets = Array.from({ length: 1000 }, (_, i) => {
      const topic = Buffer.from(`burst-${n + i}/value`);
      return Buffer.concat([Buffer.from([0x30, topic.length + 4, 0, topic.length]), topic, Buffer.from("42")]);
    });
    if (!socket.write(Buffer.concat(packets))) await once(socket, "drain");
  }
  socket.end(Buffer.from([0xe0, 0]));
  await once(socket, "close");
}

test("a burst of a million topics does not block the page @quiet", async ({ console: page, node }) => {
  test.setTimeout(seconds(240));
  await open(page, "topics");
  await page.getByLabel("Topic filter", { exact: true }).fill("+/value");
  await page.getByRole("button", { name: "Watch", exact: true }).click();
  await expect(page.getByRole("button", { name: "Stop", exact: true })).toBeVisible();
  const done = burst(node, BURST_TOPICS);
  expect(await longestTask(page, () => done)).toBeLessThan(LONG_TASK_MS * SLOW);
  // The node drops messages for a page that reads too slowly, so on a busy machine the burst may show fewer topics.
  let first = BURST_TOPICS;
  await expect(async () => {
    await burst(node, 2000, first);
    first += 2000;
    await expect(page.getByRole("heading", { name: /^20,000 topics / })).toBeVisible({ timeout: seconds(2) });
  }).toPass({ timeout: seconds(60) });
  await expect(page.getByRole("button", { name: "19,900 more", exact: true })).toBeVisible();
});

const ROUND_MS = 15_000;
const ROUNDS = 5;

/** Loads for the measurement, with the tile that shows them. */
const LOADS = [
  { what: "20,000 messages a second come in", scenario: ["fanin", "--set", "publishers.clients=100", "--set", "publishers.publish.rate=200"], tile: "Messages in", reads: /^(1\d|2\d),\d{3}\/s$/ },
  { what: "a million messages a second go out", scenario: ["nanomq-million", "--set", "publishers.publish.messages=0"], tile: "Messages out", reads: /^(9\d\d(\.\d)?K|1(\.\d)?M)\/s$/ },
];

// The load keeps the whole server busy and varies by more than the cost of a viewer. So the threads that serve the page
// are measured separately. They collect numbers from the shards once a second, independent of viewers. The page adds
// the time of one or two requests.
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
      const formatted = (of: keyof Cores) => `${rounds.map(({ without, viewed }) => `${percent(without[of])} ${percent(viewed[of])}`).join(", ")}; the viewer costs ${percent(cost(of))} (median)`;
      console.log(`${what}; of a core, without and with a viewer: threads of the API ${formatted("api")}; all of the server ${formatted("all")}`);
      expect(cost("api")).toBeLessThan(0.05);
    } finally {
      load.kill("SIGKILL");
    }
  });
}
