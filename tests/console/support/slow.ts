// A slow machine, for finding specs that only pass on a fast one (CONSOLE_SLOW in dev/ui).
import type { BrowserContext, Page, Route } from "@playwright/test";

/** How many times as slow: 1 is as the machine is. */
export const SLOW = Number(process.env["CONSOLE_SLOW"] ?? 1);
/** What the delays of answers come from. */
export const SEED = Number(process.env["CONSOLE_SEED"] ?? 1);
const DELAY_MAX_MS = 300;

if (!(SLOW >= 1)) throw new Error("CONSOLE_SLOW is a number from 1 on");

/** So many seconds of a fast machine, in milliseconds of this one: every limit of a test is told like this. */
export const seconds = (count: number): number => count * 1000 * SLOW;

const slowed = new WeakSet<BrowserContext>();

/** All its pages get less of the processor, and each answer comes late by another while, so that answers overtake each other. */
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
  // Nobody waits any more when the page has gone meanwhile.
  await route.fallback().catch(() => undefined);
}

/** Evenly between 0 and 1, the same ones for the same seed (mulberry32). */
function numbers(seed: number): () => number {
  let state = seed | 0;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}
