// The link of each page to its page of the book. crates/book checks the links of all routes against docs/SUMMARY.md.
import { PAGES } from "../support/pages";
import { hrefOf } from "../support/reads";
import { seconds } from "../support/slow";
import { expect, logIn, open, test } from "../support/test";

test.use({ isPopulated: true });

test("every page links to an existing section of the book", async ({ console: page, node, request }) => {
  test.setTimeout(seconds(120));
  const link = page.getByRole("link", { name: "Documentation of this page", exact: true });
  const links = new Set<string>();
  for (const one of PAGES.filter((path) => path !== "nowhere")) {
    await open(page, one);
    await expect(link, one).toHaveCount(1);
    links.add(await hrefOf(link));
  }
  for (const one of links) {
    const [path, anchor] = one.split("#");
    const answer = await request.get(`${node.url}${path}`);
    expect(answer.status(), one).toBe(200);
    if (anchor) expect(await answer.text(), one).toContain(` id="${anchor}"`);
  }
});

test("the documentation opens in a new tab and needs no login", async ({ page, node, context }) => {
  await page.goto(node.url);
  const [book] = await Promise.all([context.waitForEvent("page"), page.getByRole("link", { name: "Documentation of this page", exact: true }).click()]);
  await expect(book.getByRole("heading", { name: "Log in", exact: true })).toBeInViewport();
  await logIn(page, node);
  await page.getByRole("link", { name: "Documentation of this page", exact: true }).focus();
  const [next] = await Promise.all([context.waitForEvent("page"), page.keyboard.press("Enter")]);
  await expect(next.getByRole("heading", { name: "What to watch", exact: true })).toBeInViewport();
});

test("wall screens and the kiosk mode have no link", async ({ console: page }) => {
  await open(page, "dashboards/{plant}?kiosk");
  await expect(page.getByRole("button", { name: "Exit", exact: true })).toBeVisible();
  await expect(page.getByRole("link", { name: "Documentation of this page", exact: true })).toHaveCount(0);
});
