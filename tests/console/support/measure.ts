// What a page costs the browser.
import type { Page } from "@playwright/test";

const WATCHED_MS = 5_000;

/** For what time itself is the question of; whoever waits for something else waits for that. */
export const pass = (ms: number): Promise<void> => new Promise((resolve) => setTimeout(resolve, ms));

/** The longest task of the page while it is looked at, in milliseconds. */
export async function longestTask(page: Page, until: () => Promise<unknown> = () => pass(WATCHED_MS)): Promise<number> {
  await page.evaluate(() => {
    const seen = { longest: 0 };
    const observer = new PerformanceObserver((list) => { for (const task of list.getEntries()) seen.longest = Math.max(seen.longest, task.duration); });
    observer.observe({ type: "longtask" });
    Object.assign(window, { tasks: { seen, observer } });
  });
  await until();
  return page.evaluate(() => {
    const { seen, observer } = (window as unknown as { tasks: { seen: { longest: number }; observer: PerformanceObserver } }).tasks;
    observer.disconnect();
    return seen.longest;
  });
}
