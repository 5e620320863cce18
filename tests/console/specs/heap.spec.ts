// The memory of a page does not grow during use or over time. HEAP_MINUTES=10 is for releases.
import type { Page } from "@playwright/test";
import { pass } from "../support/measure";
import { drawn } from "../support/reads";
import { seconds } from "../support/slow";
import { expect, open, test } from "../support/test";

/** Returns the bytes in use after garbage collection. */
async function heapBytes(page: Page): Promise<number> {
  const session = await page.context().newCDPSession(page);
  // One collection can make more objects unreachable, so collect several times.
  for (let round = 0; round < 3; round += 1) await session.send("HeapProfiler.collectGarbage");
  const { usedSize } = await session.send("Runtime.getHeapUsage");
  await session.detach();
  return usedSize;
}

test("using the pages does not leak memory", async ({ console: page, node }) => {
  test.setTimeout(seconds(240));
  node.load("heap/temp", 500);
  await node.subscriber("heap-1", "heap/#");
  const round = async () => {
    for (const path of ["home", "clients", "topics", "subscriptions", "rules", "logs"]) {
      await open(page, path);
      await drawn(page);
      if (path === "topics") {
        await page.getByRole("button", { name: "Watch", exact: true }).click();
        await expect(page.getByRole("heading", { name: /^[1-9]\d* topics? / })).toBeVisible();
      }
    }
  };
  // The first visits load code and fill caches.
  for (let n = 0; n < 3; n += 1) await round();
  await open(page, "about");
  const before = await heapBytes(page);
  for (let n = 0; n < 12; n += 1) await round();
  await open(page, "about");
  const after = await heapBytes(page);
  expect(after - before, `${before} bytes became ${after}`).toBeLessThan(1_000_000);
});

const HEAP_MINUTES = Number(process.env["HEAP_MINUTES"] ?? 2);

test("an open page does not leak memory", async ({ console: page, node }) => {
  test.setTimeout(seconds((HEAP_MINUTES + 2) * 60));
  node.load("left/open", 500);
  await open(page, "home");
  await drawn(page);
  const samples: number[] = [];
  const end = Date.now() + HEAP_MINUTES * 60_000;
  while (Date.now() < end) {
    await pass(5_000);
    samples.push(await heapBytes(page));
  }
  const third = Math.floor(samples.length / 3);
  const median = (of: number[]) => [...of].sort((a, b) => a - b)[Math.floor(of.length / 2)] ?? 0;
  const [before, after] = [median(samples.slice(third, 2 * third)), median(samples.slice(-third))];
  console.log(`heap of the home page over ${HEAP_MINUTES} minutes, in KiB: ${samples.map((bytes) => Math.round(bytes / 1024)).join(" ")}`);
  // The charts fill for ten minutes: numbers per second, 8 bytes each.
  expect(after - before).toBeLessThan(500_000);
});
