// Simulates a slow machine, to find specs that pass only on a fast one (CONSOLE_SLOW in dev/ui).
import type { BrowserContext, Page, Route } from "@playwright/test";

/** Slowdown factor. 1 means none. */
export const SLOW = Number(process.env["CONSOLE_SLOW"] ?? 1);
/** Seed of the delays. */
export const SEED = Number(process.env["CONSOLE_SEED"] ?? 1);
const DELAY_MAX_MS = 300;

if (!(SLOW >= 1)) throw new Error("CONSOLE_SLOW must be a number of at least 1");

/** Converts seconds of a fast machine to milliseconds of this one. All timeouts of tests use it. */
export const seconds = (count: number): number => count * 1000 * SLOW;

const slowed = new WeakSet<BrowserContext>();

/** Throttles the CPU of all pages and delays answers by different times, so that they overtake each other. */
export async function slowDown(context: BrowserContext): Promise<void> {
  if (SLOW === 1 || slowed.has(context)) return;
  slowed.add(context);
  const random = numbers(SEED);
  context.on("page", (page) => void throttle(page));
  await Promise.all(context.pages().map(throttle));
  await context.route(/^http/, (route) => late(route, random() * DELAY_MAX_MS));
}

async function throttle(page: Page): Promise<void> {
  try {
    const session = await page.context().newCDPSession(page);
    await session.send("Emulation.setCPUThrottlingRate", { rate: SLOW });
  } catch (problem) {
    if (!page.isClosed()) throw problem;
  }
}

async function late(route: Route, ms: number): Promise<void> {
  await new Promise((resolve) => setTimeout(resolve, ms));
  // The page may have closed in the meantime.
  await route.fallback().catch(() => undefined);
}

/** Pseudo-random numbers between 0 and 1 from a seed (mulberry32). */
function numbers(seed: number): () => number {
  let state = seed | 0;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}
