// Test fixtures: a node or a populated node for each spec file, and a logged-in page. A page that logs errors or
// requests anything from another server fails its test.
import { expect, test as base, type Page } from "@playwright/test";
import { readFileSync } from "node:fs";
import { Node } from "./node";
import { address, populate } from "./pages";
import { seconds, slowDown } from "./slow";

/** A directory with a newer console than the one in the binary. */
const dist = process.env["CONSOLE_DIST"];

export { expect };

/** The node of the spec file that a worker runs. It ends with the file. */
class NodeOfFile {
  private file = "";
  private node: Node | undefined;

  async of(file: string, start: () => Promise<Node>): Promise<Node> {
    if (this.node && this.file === file) return this.node;
    await this.stop();
    this.file = file;
    return (this.node = await start());
  }

  async stop(): Promise<void> {
    const node = this.node;
    this.node = undefined;
    await node?.stop();
  }
}

interface Fixtures { console: Page; isPopulated: boolean; hasPlatform: boolean; node: Node }

// No option has the scope of a worker. Files with different values of such an option would each need another worker,
// with another browser.
export const test = base.extend<Fixtures, { nodeOfFile: NodeOfFile }>({
  isPopulated: [false, { option: true }],
  hasPlatform: [false, { option: true }],
  nodeOfFile: [async ({}, use) => {
    const nodeOfFile = new NodeOfFile();
    await use(nodeOfFile);
    await nodeOfFile.stop();
  }, { scope: "worker" }],
  // The start does not count as time of the file's first test.
  node: [async ({ isPopulated, hasPlatform, nodeOfFile }, use, { file }) => {
    await use(await nodeOfFile.of(file, async () => {
      const node = await Node.start(...(isPopulated || hasPlatform ? ["platform.enabled=true"] : []));
      if (isPopulated) await populate(node);
      return node;
    }));
  }, { timeout: seconds(90) }],
  browser: [async ({ browser }, use) => {
    const newContext = browser.newContext.bind(browser);
    browser.newContext = async (...options) => {
      const context = await newContext(...options);
      await slowDown(context);
      return context;
    };
    await use(browser);
  }, { scope: "worker" }],
  context: async ({ context }, use) => {
    await slowDown(context);
    await use(context);
  },
  page: async ({ page }, use) => {
    if (dist) await serveFrom(page, dist);
    await use(page);
  },
  console: async ({ page, node }, use) => {
    const pageErrors = watch(page, node.url);
    await enter(page, node);
    await use(page);
    expect(pageErrors).toEqual([]);
  },
});

export async function logIn(page: Page, node: Pick<Node, "url" | "firstPassword">): Promise<void> {
  await page.goto(node.url);
  await page.getByLabel("Password", { exact: true }).fill(node.firstPassword);
  await page.getByRole("button", { name: "Log in", exact: true }).click();
  await expect(page.getByRole("heading", { name: "Home", exact: true })).toBeVisible();
}

/** Session storage after the login, by node. */
const logins = new WeakMap<Node, Record<string, string>>();

/**
 * Opens the console and reuses the login of an earlier test of the same node. Logs in with the form if there is none or
 * if the server no longer accepts it.
 */
async function enter(page: Page, node: Node): Promise<void> {
  const stored = logins.get(node);
  if (!stored || !(await node.accepts(tokenIn(stored)))) {
    await logIn(page, node);
    const wanted = ["tidewire-login", ...(node.hasPlatform ? ["tidewire-devices"] : [])];
    await expect.poll(() => page.evaluate(() => Object.keys(sessionStorage))).toEqual(expect.arrayContaining(wanted));
    logins.set(node, await page.evaluate(() => ({ ...sessionStorage }) as Record<string, string>));
    return;
  }
  await page.goto(`${node.url}/favicon.svg`);
  await page.evaluate((entries) => { for (const [key, value] of entries) sessionStorage.setItem(key, value); }, Object.entries(stored));
  await page.goto(node.url);
  await expect(page.getByRole("heading", { name: "Home", exact: true })).toBeVisible();
}

/** Opens a page and waits until the previous one is gone. The new page may still be loading: see `drawn`. */
export async function open(page: Page, path: string): Promise<void> {
  await page.evaluate(async (hash) => {
    const before = location.hash;
    // The console handles the event first. It has drawn the change before a task that starts now.
    const heard = new Promise<void>((resolve) => addEventListener("hashchange", () => {
      const { port1, port2 } = new MessageChannel();
      port1.onmessage = () => resolve();
      port2.postMessage(null);
    }, { once: true }));
    location.hash = hash;
    // Without a change there is no event.
    if (location.hash !== before) await heard;
  }, `#/${address(path)}`);
}

/** The API token of the page. */
export const tokenOf = async (page: Page): Promise<string> => tokenIn(await page.evaluate(() => ({ ...sessionStorage }) as Record<string, string>));

const tokenIn = (storage: Record<string, string>): string => (JSON.parse(storage["tidewire-login"] ?? "{}") as { token: string }).token;

/** Collects errors that are not visible on the page. */
export function watch(page: Page, url: string): string[] {
  const pageErrors: string[] = [];
  page.on("pageerror", (error) => pageErrors.push(`error: ${error.message}`));
  page.on("console", (message) => {
    if (message.type() !== "error") return;
    const [text, from] = [message.text(), message.location().url];
    // Several tests cause refused requests on purpose. Status 503 of `/readyz` is a valid answer: a shard is late.
    const isExpected = text.includes("the server responded with a status of 4") || (text.includes("a status of 503") && from.endsWith("/readyz"));
    if (!isExpected) pageErrors.push(`console: ${text} (${from})`);
  });
  page.on("request", (request) => {
    if (!request.url().startsWith(url) && !request.url().startsWith("blob:")) pageErrors.push(`request: ${request.url()}`);
  });
  return pageErrors;
}

async function serveFrom(page: Page, directory: string): Promise<void> {
  await page.route((url) => url.pathname.startsWith("/assets/"), (route) => {
    const name = new URL(route.request().url()).pathname;
    const contentType = name.endsWith(".css") ? "text/css" : "text/javascript";
    return route.fulfill({ contentType, body: readFileSync(`${directory}${name}`) });
  });
  await page.route((url) => url.pathname === "/", async (route) => {
    // Maps a name that only the browser knows to this machine.
    const asked = new URL(route.request().url());
    const machine = asked.hostname.startsWith("[") ? asked.hostname : "127.0.0.1";
    const response = await route.fetch({ url: `http://${machine}:${asked.port}/`, headers: { ...route.request().headers(), host: asked.host } });
    return route.fulfill({ response, body: readFileSync(`${directory}/index.html`) });
  });
}
