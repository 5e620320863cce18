// A server process for the tests, and MQTT clients for it. It uses the real binary and free ports.
import { execFileSync, spawn, type ChildProcess } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { seconds } from "./slow";

/** Linux clock ticks per second. */
const TICKS_PER_S = 100;

const binary = process.env["TIDEWIRE"];
if (!binary) throw new Error("TIDEWIRE names the binary to test; dev/ui test sets it");

export class Node {
  private clients: ChildProcess[] = [];

  private constructor(private process: ChildProcess, private options: string[], readonly directory: string, readonly url: string, readonly mqttPort: number, readonly firstPassword: string) {}

  static start(...more: string[]): Promise<Node> {
    return Node.startAt("127.0.0.1", ...more);
  }

  /** Starts a node with the API at this address. `{url}` in an option is the address of the console. */
  static async startAt(host: string, ...more: string[]): Promise<Node> {
    const directory = mkdtempSync(join(tmpdir(), "tidewire-console-"));
    const [api, tcp, ws] = [await freePort(), await freePort(), await freePort()];
    const options = [`node.data_dir=${directory}`, `api.bind=${host}:${api}`, `listeners.tcp.default.bind=127.0.0.1:${tcp}`, `listeners.ws.default.bind=127.0.0.1:${ws}`, "sys.interval=1s", ...more.map((option) => option.replace("{url}", `http://${host}:${api}`))];
    const url = `http://${host}:${api}`;
    const child = await serve(options, url);
    return new Node(child, options, directory, url, tcp, readFileSync(join(directory, "admin-password"), "utf8").trim());
  }

  /** Adds a viewer and restarts the server. */
  addViewer(name: string, password: string): Promise<void> {
    return this.addUser(name, password, "viewer");
  }

  /** Adds a console user and restarts the server. */
  async addUser(name: string, password: string, role: string): Promise<void> {
    this.process.kill();
    await once(this.process, "exit");
    execFileSync(binary as string, ["passwd", "-b", join(this.directory, "admins"), name, password, "--role", role]);
    this.process = await serve(this.options, this.url);
  }

  /** CPU seconds of the server's threads with this name, or of all threads. */
  threadSeconds(name?: string): number {
    const tasks = `/proc/${this.process.pid}/task`;
    const ticks = readdirSync(tasks).map((task) => {
      // The name is in brackets and may contain spaces.
      const [, comm = "", rest = ""] = /\((.*)\) (.*)/.exec(readFileSync(`${tasks}/${task}/stat`, "utf8")) ?? [];
      const fields = rest.split(" ");
      return name === undefined || comm === name ? Number(fields[11]) + Number(fields[12]) : 0;
    });
    return ticks.reduce((a, b) => a + b, 0) / TICKS_PER_S;
  }

  /** Stops the process like a pulled cable: connections stay open without traffic. */
  freeze(): void {
    this.process.kill("SIGSTOP");
  }

  thaw(): void {
    this.process.kill("SIGCONT");
  }

  async stop(): Promise<void> {
    for (const client of this.clients) client.kill();
    this.process.kill();
    if (this.process.exitCode === null) await once(this.process, "exit");
    rmSync(this.directory, { recursive: true });
  }

  /** Runs `tidewire sub` until the node stops. Returns after it has subscribed. */
  async subscriber(clientId: string, filter: string, ...more: string[]): Promise<ChildProcess> {
    const child = this.client(["sub", "-i", clientId, "-t", filter, ...more]);
    await this.connected(clientId);
    return child;
  }

  /** For a client id that cannot be requested. */
  async subscriberByList(clientId: string, filter: string): Promise<ChildProcess> {
    const child = this.client(["sub", "-i", clientId, "-t", filter]);
    await until(async () => ((await this.call("GET", "/api/v1/clients?limit=1000")) as { items: { client_id: string }[] }).items.some((one) => one.client_id === clientId));
    return child;
  }

  async connected(clientId: string): Promise<void> {
    const token = await this.token();
    await until(async () => {
      const answer = await fetch(`${this.url}/api/v1/clients/${encodeURIComponent(clientId)}/subscriptions`, { headers: { Authorization: `Bearer ${token}` } });
      return answer.ok && ((await answer.json()) as unknown[]).length > 0;
    });
  }

  /** Runs `tidewire pub` and returns its exit code. */
  async publish(topic: string, payload: string, ...more: string[]): Promise<number> {
    const child = this.client(["pub", "-t", topic, "-m", payload, ...more]);
    const [code] = (await once(child, "exit")) as [number];
    return code;
  }

  /** Publishes at a rate until it is killed. */
  load(topic: string, perSecond: number): ChildProcess {
    const script = `let n = 0; setInterval(() => { for (let i = 0; i < ${Math.ceil(perSecond / 10)}; i += 1) console.log(JSON.stringify({ temp: 20 + (n++ % 15), n })); }, 100)`;
    const source = spawn(process.execPath, ["-e", script], { stdio: ["ignore", "pipe", "inherit"] });
    const publisher = spawn(binary as string, ["pub", "-p", String(this.mqttPort), "-i", "load", "-t", topic, "-l"], { stdio: [source.stdout, "ignore", "inherit"] });
    this.clients.push(source, publisher);
    return source;
  }

  get hasPlatform(): boolean {
    return this.options.includes("platform.enabled=true");
  }

  /** Returns whether the server accepts the token. */
  async accepts(token: string): Promise<boolean> {
    return (await fetch(`${this.url}/api/v1/stats`, { headers: { Authorization: `Bearer ${token}` } })).ok;
  }

  async call(method: string, path: string, body?: unknown): Promise<unknown> {
    const headers: Record<string, string> = { Authorization: `Bearer ${await this.token()}`, "Content-Type": "application/json" };
    const answer = await fetch(this.url + path, { method, headers, ...(body === undefined ? {} : { body: JSON.stringify(body) }) });
    const text = await answer.text();
    if (!answer.ok) throw new Error(`${method} ${path}: ${answer.status} ${text}`);
    return text ? JSON.parse(text) : undefined;
  }

  private stored: string | undefined;
  private async token(): Promise<string> {
    if (this.stored) return this.stored;
    const body = JSON.stringify({ user: "admin", password: this.firstPassword });
    const answer = await fetch(`${this.url}/api/v1/login`, { method: "POST", headers: { "Content-Type": "application/json" }, body });
    return (this.stored = ((await answer.json()) as { token: string }).token);
  }

  private client(options: string[]): ChildProcess {
    const [command, ...rest] = options;
    const child = spawn(binary as string, [command as string, "-p", String(this.mqttPort), ...rest], { stdio: "ignore" });
    this.clients.push(child);
    return child;
  }
}

async function serve(options: string[], url: string): Promise<ChildProcess> {
  const child = spawn(binary as string, options.flatMap((option) => ["--set", option]), { stdio: ["ignore", "ignore", "inherit"], env: { ...process.env, TIDEWIRE__LOG__LEVEL: "error" } });
  try {
    await until(async () => (await fetch(`${url}/readyz`)).ok, () => child.exitCode === null);
  } catch (problem) {
    child.kill("SIGKILL");
    throw problem;
  }
  return child;
}

/** Waits until the condition holds. Fails after half a minute, or if it can no longer hold. */
export async function until(isSo: () => Promise<boolean>, isPossible: () => boolean = () => true): Promise<void> {
  const end = Date.now() + seconds(30);
  while (Date.now() < end && isPossible()) {
    if (await isSo().catch(() => false)) return;
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  throw new Error("the condition did not hold in time");
}

/** Each worker has ports of its own, outside the ephemeral range, so that no outgoing connection takes one first. */
const FIRST_PORT = 14_000 + 600 * Number(process.env["TEST_PARALLEL_INDEX"] ?? 0);
let nextPort = Math.floor(Math.random() * 600);

/** Returns a free port. */
export async function freePort(): Promise<number> {
  for (;;) {
    const port = FIRST_PORT + (nextPort++ % 600);
    const server = createServer().listen(port, "127.0.0.1");
    const isFree = await once(server, "listening").then(() => true, () => false);
    if (!isFree) continue;
    server.close();
    await once(server, "close");
    return port;
  }
}
