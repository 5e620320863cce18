// Measures the cost of a page in the browser.
import type { Page } from "@playwright/test";

const WATCHED_MS = 5_000;

/** Waits for a fixed time. Only for tests that measure time. All others wait for a condition. */
export const pass = (ms: number): Promise<void> => new Promise((resolve) => setTimeout(resolve, ms));

/** An event of a trace, see "Trace Event Format" in Chromium's documentation. `tdur` is processor time in microseconds. */
interface TraceEvent {
  name: string;
  pid: number;
  tid: number;
  tdur?: number;
  args: { name?: string };
}

const TASK = "ThreadControllerImpl::RunTask";

/**
 * Returns the processor time of the longest task on the page's main thread until `until` resolves, in milliseconds.
 * The browser's own long-task entries are wall time: on a busy machine they also contain the time of other processes.
 */
export async function longestTask(page: Page, until: () => Promise<unknown> = () => pass(WATCHED_MS)): Promise<number> {
  const browser = page.context().browser();
  if (!browser) throw new Error("the page has no browser that can trace");
  await browser.startTracing(page, { categories: ["toplevel"] });
  let events: TraceEvent[] = [];
  try {
    await until();
  } finally {
    events = (JSON.parse((await browser.stopTracing()).toString()) as { traceEvents: TraceEvent[] }).traceEvents;
  }
  const thread = ({ pid, tid }: TraceEvent) => `${pid}/${tid}`;
  const mainThreads = new Set(events.filter((event) => event.name === "thread_name" && event.args.name === "CrRendererMain").map(thread));
  const tasks = events.filter((event) => event.name === TASK && event.tdur !== undefined && mainThreads.has(thread(event)));
  if (tasks.length === 0) throw new Error(`the trace has no ${TASK} on a main thread`);
  return tasks.reduce((longest, { tdur }) => Math.max(longest, (tdur ?? 0) / 1000), 0);
}
