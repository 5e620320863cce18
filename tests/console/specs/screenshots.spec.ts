// Takes the pictures of docs/screenshots; `dev/ui screenshots` runs it, and `ONLY=rules dev/ui screenshots` for pages that begin so; with WIDE=1 also those
// of a screen of 4K, into target/console-4k. They are for people to look at,
// not compared.
import type { Node } from "../support/node";
import { furnish, PAGES } from "../support/pages";
import { pass } from "../support/measure";
import { drawn } from "../support/reads";
import { seconds } from "../support/slow";
import { expect, open, test } from "../support/test";

const DIRECTORY = "../../docs/screenshots";
/** What has more on it than others. */
const TALL = ["home", "dashboards/{plant}"];

test.use({ hasPlatform: true });

/** All of them look at one. */
let furnished: Node | undefined;
async function furnishOnce(node: Node): Promise<void> {
  if (furnished !== node) await furnish(node);
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
    // Home comes last: its charts have something to show by then.
    const wanted = PAGES.filter((path) => path !== "nowhere" && path.startsWith(process.env["ONLY"] ?? "")).sort((a, b) => Number(a === "home") - Number(b === "home"));
    for (const one of wanted) {
      await open(page, one);
      await drawn(page);
      if (one === "topics") await page.getByRole("button", { name: "Watch", exact: true }).click();
      if (one === "mqtt") await talk(page);
      // What is live has something to show.
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
    await page.screenshot({ path: `../../target/console-4k/${one.replace(/\W+/g, "-")}.png` });
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
