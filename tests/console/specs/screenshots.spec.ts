// Saves a screenshot of each page to target/screenshots for review. `dev/ui screenshots` runs it, and no test compares
// the files. ONLY=rules selects pages whose path starts with it. WIDE=1 adds screenshots of a 4K screen.
import type { Node } from "../support/node";
import { populate, PAGES } from "../support/pages";
import { pass } from "../support/measure";
import { drawn } from "../support/reads";
import { seconds } from "../support/slow";
import { expect, open, test } from "../support/test";

const DIRECTORY = "../../target/screenshots";
/** Pages with more content than others. */
const TALL = ["home", "dashboards/{plant}"];

test.use({ hasPlatform: true });

/** All tests use one node. */
let furnished: Node | undefined;
async function furnishOnce(node: Node): Promise<void> {
  if (furnished !== node) await populate(node);
  furnished = node;
}

for (const colorScheme of ["light", "dark"] as const) {
  test(`pictures in ${colorScheme} colours @screenshots`, async ({ console: page, node }) => {
    test.setTimeout(seconds(600));
    await furnishOnce(node);
    await page.emulateMedia({ colorScheme });
    await page.evaluate(() => {
      const login = JSON.parse(sessionStorage.getItem("tidewire-login") ?? "{}");
      sessionStorage.setItem("tidewire-login", JSON.stringify({ ...login, has_first_password: false }));
    });
    await page.reload();
    // Home comes last, so that its charts have data.
    const wanted = PAGES.filter((path) => path !== "nowhere" && path.startsWith(process.env["ONLY"] ?? "")).sort((a, b) => Number(a === "home") - Number(b === "home"));
    for (const one of wanted) {
      await open(page, one);
      await drawn(page);
      if (one === "topics") await page.getByRole("button", { name: "Watch", exact: true }).click();
      if (one === "mqtt") await talk(page);
      // Creates live data.
      await pass(one === "home" ? 4000 : 1500);
      if (one === "topics") await page.getByRole("button", { name: "temp", exact: true }).click();
      await page.evaluate(() => scrollTo(0, 0));
      await page.screenshot({ path: `${DIRECTORY}/${one.replace(/\W+/g, "-")}-${colorScheme}.png`, clip: { x: 0, y: 0, width: 1280, height: TALL.includes(one) ? 1200 : 800 }, fullPage: true });
    }
  });
}

test("pictures on a screen of 4K @screenshots", async ({ console: page, node }) => {
  test.setTimeout(seconds(400));
  if (!process.env["WIDE"]) test.skip();
  await furnishOnce(node);
  await page.setViewportSize({ width: 3840, height: 2160 });
  for (const one of PAGES.filter((path) => path.startsWith(process.env["ONLY"] ?? ""))) {
    await open(page, one);
    await drawn(page);
    await pass(700);
    await page.screenshot({ path: `${DIRECTORY}/${one.replace(/\W+/g, "-")}-4k.png` });
  }
});

async function talk(page: Parameters<typeof open>[0]): Promise<void> {
  await page.getByRole("button", { name: "Connect", exact: true }).click();
  await expect(page.getByText(/^Connected as/)).toBeVisible();
  await page.getByRole("button", { name: "Subscribe", exact: true }).click();
  await expect(page.getByText("Subscribed with QoS")).toBeVisible();
  await page.getByRole("button", { name: "Publish", exact: true }).click();
  await page.getByRole("button", { name: /^in .*demo\/hello/ }).click();
}
