// What the page shows, as a value. A page is drawn when it is, not when a spec comes to the next line: each of these waits for what it reads, and specs read in no other way
// (dev/lint). What can be said with `expect(…)` alone, which waits by itself, is said so.
import AxeBuilder from "@axe-core/playwright";
import { expect, type Locator, type Page } from "@playwright/test";

/** Goes on with the test, which fails all the same. */
const gently = expect.configure({ soft: true });

/** Nothing is still on its way to the page that is in sight. */
export async function drawn(page: Page): Promise<void> {
  await expect(page.getByText("Loading…", { exact: true })).toHaveCount(0);
}

/** Its text, once there is some. */
export async function textOf(one: Locator): Promise<string> {
  await expect(one).toHaveText(/\S/);
  return (await one.textContent()) ?? "";
}

/** Their texts, once there are enough. */
export async function textsOf(all: Locator, atLeast: number): Promise<string[]> {
  await expect(all.nth(atLeast - 1)).toBeAttached();
  return all.allTextContents();
}

/** They say this and nothing else, in any order, however often. */
export async function haveTexts(all: Locator, texts: string[], what: string): Promise<void> {
  await expect.poll(async () => [...new Set((await all.allInnerTexts()).map((text) => text.trim()))].sort(), what).toEqual([...texts].sort());
}

/** What stands in a field, once something does. */
export async function valueOf(field: Locator): Promise<string> {
  await expect(field).toHaveValue(/[^]/);
  return field.inputValue();
}

export interface Box { x: number; y: number; width: number; height: number }

/** Where it is, once it stays there from one look to the next. */
export async function boxOf(one: Locator): Promise<Box> {
  let box: Box | null = null;
  await expect(async () => {
    const before = box;
    box = await one.boundingBox();
    expect(box).not.toBeNull();
    expect(box).toEqual(before);
  }).toPass();
  return box as unknown as Box;
}

/** Has a mark that is gone when it is made anew: see isMarked. */
export async function mark(one: Locator): Promise<void> {
  await one.evaluate((element) => { element.setAttribute("data-marked", ""); });
}

export const isMarked = (one: Locator): Promise<void> => expect(one).toHaveAttribute("data-marked", "");

/** Nothing of the page is beyond the right edge of the window. */
export async function fits(page: Page, what: string): Promise<void> {
  await gently.poll(() => page.evaluate(() => document.documentElement.scrollWidth - innerWidth), what).toBeLessThanOrEqual(0);
}

/** Nothing of it is beyond its own right edge. */
export async function holds(one: Locator, what: string): Promise<void> {
  await gently.poll(() => one.evaluate((place) => place.scrollWidth - place.clientWidth), what).toBeLessThanOrEqual(0);
}

/** What had the focus may have gone: it is somewhere, not at the beginning of the page. */
export async function keepsFocus(page: Page): Promise<void> {
  await expect.poll(() => page.evaluate(() => document.activeElement !== document.body)).toBe(true);
}

/** axe finds nothing in the page, or in this part of it, when all of it is there. */
export async function isAccessible(page: Page, what: string, part?: string): Promise<void> {
  await drawn(page);
  const axe = new AxeBuilder({ page });
  const { violations } = await (part ? axe.include(part) : axe).analyze();
  gently(violations.map((violation) => `${what}: ${violation.id}: ${violation.nodes.map((node) => node.html).slice(0, 3).join(" ")}`)).toEqual([]);
}
