// The test function of all specs: a node, another one for specs that want something on every page, and a page that is logged in. A page that complains in its console, or
// asks anybody but the node, fails its test.
import { expect, test as base, type Page } from "@playwright/test";
import { readFileSync } from "node:fs";
import { gunzipSync } from "node:zlib";
import { Node } from "./node";
import { address, furnish } from "./pages";
import { slowDown } from "./slow";

/** A directory with a console that is newer than the one in the binary. */
const dist = process.env["CONSOLE_DIST"];

export { expect };

export const test = base.extend<{ console: Page }, { isFurnished: boolean; hasPlatform: boolean; nodeOf: string; node: Node }>({
  isFurnished: [false, { option: true, scope: "worker" }],
  hasPlatform: [false, { option: true, scope: "worker" }],
  // Specs that leave behind what others would stumble over, or that want nothing of others, name themselves and have a node of their own.
  nodeOf: ["all", { option: true, scope: "worker" }],
  node: [async ({ isFurnished, hasPlatform, nodeOf: _ }, use) => {
    const node = await Node.start(...(isFurnished || hasPlatform ? ["platform.enabled=true"] : []));
    if (isFurnished) await furnish(node);
    await use(node);
    await node.stop();
  }, { scope: "worker" }],
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
    const complaints = watch(page, node.url);
    await logIn(page, node);
    await use(page);
    expect(complaints).toEqual([]);
  },
});

export async function logIn(page: Page, node: Pick<Node, "url" | "firstPassword">): Promise<void> {
  await page.goto(node.url);
  await page.getByLabel("Password", { exact: true }).fill(node.firstPassword);
  await page.getByRole("button", { name: "Log in", exact: true }).click();
  await expect(page.getByRole("heading", { name: "Home", exact: true })).toBeVisible();
}

/** Goes to a page. When this returns, the page before is gone; what this one asks the server for may still be on its way: see `drawn`. */
export async function open(page: Page, path: string): Promise<void> {
  await page.evaluate(async (hash) => {
    const before = location.hash;
    // The console hears of it first, and draws what has changed before any task that is begun then.
    const heard = new Promise<void>((resolve) => addEventListener("hashchange", () => {
      const { port1, port2 } = new MessageChannel();
      port1.onmessage = () => resolve();
      port2.postMessage(null);
    }, { once: true }));
    location.hash = hash;
    // Without a change nobody hears of it.
    if (location.hash !== before) await heard;
  }, `#/${address(path)}`);
}

/** With which the page asks the API. */
export const tokenOf = (page: Page): Promise<string> => page.evaluate(() => (JSON.parse(sessionStorage.getItem("tidewire-login") ?? "{}") as { token: string }).token);

/** What goes wrong without anybody seeing it. */
export function watch(page: Page, url: string): string[] {
  const complaints: string[] = [];
  page.on("pageerror", (error) => complaints.push(`error: ${error.message}`));
  page.on("console", (message) => {
    // A refused request is what several tests are about.
    if (message.type() === "error" && !message.text().includes("the server responded with a status of 4")) complaints.push(`console: ${message.text()}`);
  });
  page.on("request", (request) => {
    if (!request.url().startsWith(url) && !request.url().startsWith("blob:")) complaints.push(`request: ${request.url()}`);
  });
  return complaints;
}

async function serveFrom(page: Page, directory: string): Promise<void> {
  await page.route((url) => url.pathname.startsWith("/assets/"), (route) => {
    const name = new URL(route.request().url()).pathname;
    const contentType = name.endsWith(".css") ? "text/css" : "text/javascript";
    return route.fulfill({ contentType, body: gunzipSync(readFileSync(`${directory}${name}.gz`)) });
  });
  await page.route((url) => url.pathname === "/", async (route) => {
    // A name that only the browser knows is this machine.
    const asked = new URL(route.request().url());
    const machine = asked.hostname.startsWith("[") ? asked.hostname : "127.0.0.1";
    const response = await route.fetch({ url: `http://${machine}:${asked.port}/`, headers: { ...route.request().headers(), host: asked.host } });
    return route.fulfill({ response, body: readFileSync(`${directory}/index.html`) });
  });
}
