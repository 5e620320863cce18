// Keyboard navigation.
import { expect, type Locator, type Page } from "@playwright/test";

const PRESSES_MAX = 150;

const isFocused = (one: Locator) => one.evaluateAll((all) => all.some((element) => element === document.activeElement));

/** Presses Tab until the element has the focus. The focus must be visible at each step. */
export async function reach(page: Page, one: Locator, key = "Tab"): Promise<void> {
  await expect(one).toBeVisible();
  for (let n = 0; n < PRESSES_MAX; n += 1) {
    if (await isFocused(one)) return;
    await page.keyboard.press(key);
    const unseen = await page.evaluate(() => {
      const at = document.activeElement;
      if (!at || at === document.body) return "";
      const { outlineStyle, outlineWidth } = getComputedStyle(at);
      const ring = (element: Element | null): boolean => !!element && getComputedStyle(element).outlineStyle !== "none" && parseFloat(getComputedStyle(element).outlineWidth) > 0;
      const { width, height } = at.getBoundingClientRect();
      return (outlineStyle !== "none" && parseFloat(outlineWidth) > 0 || ring(at.parentElement)) && width > 0 && height > 0 ? "" : at.outerHTML.slice(0, 200);
    });
    expect(unseen, "the focus is not visible").toBe("");
  }
  throw new Error(`not reached by ${key}`);
}

export async function press(page: Page, one: Locator, key = "Enter"): Promise<void> {
  await reach(page, one);
  await page.keyboard.press(key);
}
