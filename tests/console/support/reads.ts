// Reads page content as values. Each function waits for the content, because a page may not be drawn yet. Specs must
// not read in other ways (dev/lint). Prefer plain `expect(…)`, which also waits.
import axe from "axe-core";
import { expect, type Locator, type Page } from "@playwright/test";

/** Records a failure and continues the test. */
const softExpect = expect.configure({ soft: true });

/** Waits until the page has loaded its data. */
export async function drawn(page: Page): Promise<void> {
  await expect(page.getByText("Loading…", { exact: true })).toHaveCount(0);
}

/** Returns the text when it is not empty. */
export async function textOf(one: Locator): Promise<string> {
  await expect(one).toHaveText(/\S/);
  return (await one.textContent()) ?? "";
}

/** Returns the texts when there are enough. */
export async function textsOf(all: Locator, atLeast: number): Promise<string[]> {
  await expect(all.nth(atLeast - 1)).toBeAttached();
  return all.allTextContents();
}

/** Waits until the distinct texts are exactly these, in any order. */
export async function haveTexts(all: Locator, texts: string[], what: string): Promise<void> {
  await expect.poll(async () => [...new Set((await all.allInnerTexts()).map((text) => text.trim()))].sort(), what).toEqual([...texts].sort());
}

/** Returns the value of a field when it is not empty. */
export async function valueOf(field: Locator): Promise<string> {
  await expect(field).toHaveValue(/[^]/);
  return field.inputValue();
}

/** Returns the address of a link. */
export async function hrefOf(link: Locator): Promise<string> {
  await expect(link).toHaveAttribute("href", /./);
  return (await link.getAttribute("href")) ?? "";
}

export interface Box { x: number; y: number; width: number; height: number }

/** Returns the position when it no longer changes. */
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

/** Marks an element, to detect later whether it was replaced: see isMarked. */
export async function mark(one: Locator): Promise<void> {
  await one.evaluate((element) => { element.setAttribute("data-marked", ""); });
}

export const isMarked = (one: Locator): Promise<void> => expect(one).toHaveAttribute("data-marked", "");

/** Checks that the page is not wider than the window. */
export async function fits(page: Page, what: string): Promise<void> {
  await softExpect.poll(() => page.evaluate(() => document.documentElement.scrollWidth - innerWidth), what).toBeLessThanOrEqual(0);
}

/** Checks that the content of an element is not wider than the element. */
export async function holds(one: Locator, what: string): Promise<void> {
  await softExpect.poll(() => one.evaluate((place) => place.scrollWidth - place.clientWidth), what).toBeLessThanOrEqual(0);
}

/** Checks that the focus is on an element of the page, although the focused element was removed. */
export async function keepsFocus(page: Page): Promise<void> {
  await expect.poll(() => page.evaluate(() => document.activeElement !== document.body)).toBe(true);
}

/** Checks a loaded page, or a part of it, with axe. */
export async function isAccessible(page: Page, what: string, part?: string): Promise<void> {
  await drawn(page);
  // Once per document: the script has half a megabyte, and compiled functions stay fast. `@axe-core/playwright` would
  // send it twice per check.
  if (!(await page.evaluate(() => "axe" in window))) await page.evaluate(axe.source);
  const violations = await page.evaluate(async (part) => {
    const { axe: inPage } = window as unknown as { axe: typeof axe };
    return (await inPage.run(part ?? document, { resultTypes: ["violations"] })).violations;
  }, part);
  softExpect(violations.map((violation) => `${what}: ${violation.id}: ${violation.nodes.map((node) => node.html).slice(0, 3).join(" ")}`)).toEqual([]);
}
