// A chart of a million points of one key: shown, zoomed and moved without blocking the page.
import { longestTask } from "../support/measure";
import { boxOf, textOf } from "../support/reads";
import { seconds, SLOW } from "../support/slow";
import { expect, open, test } from "../support/test";
import { Platform } from "../support/platform";

test.use({ hasPlatform: true });

const POINTS = 1_000_000;
const AT_ONCE = 10_000;
const EVERY_MS = 2_500;
const LONG_TASK_MS = 200;
/** Limit from a click to the updated chart. The server aggregates a million points for it. */
const ANSWER_MS = 2_000;

test("a chart of a million points stays responsive @quiet", async ({ console: page, node }) => {
  test.setTimeout(seconds(300));
  const platform = await Platform.open(node, "Main");
  const id = await platform.device("turbine");
  const begin = Date.now() - POINTS * EVERY_MS;
  for (let from = 0; from < POINTS; from += AT_ONCE) {
    const values = Array.from({ length: AT_ONCE }, (_, n) => ({ ts: begin + (from + n) * EVERY_MS, values: { power: (from + n) % 1000 } }));
    await platform.call("POST", `/api/plugins/telemetry/DEVICE/${id}/timeseries/ANY`, values);
  }
  await open(page, `devices/${id}?tab=telemetry`);
  const history = page.getByRole("region", { name: "History", exact: true });
  const said = history.getByRole("status").last();
  const button = (name: string) => history.getByRole("button", { name, exact: true });
  const took: number[] = [];
  /** Waits until the chart shows another time with points. */
  const step = async (act: () => Promise<unknown>) => {
    const before = await textOf(said);
    const at = Date.now();
    await act();
    await expect(said).not.toHaveText(before);
    await expect(said).toContainText(/[1-9][\d,]* points? shown/);
    took.push(Date.now() - at);
  };
  await expect(said).toContainText(/[1-9][\d,]* points? shown/);
  /** Selects the aggregation and waits for the chart. */
  const choose = async (text: string, agg: string) => {
    const at = Date.now();
    const [answer] = await Promise.all([
      page.waitForResponse((one) => one.url().includes("/values/timeseries") && one.url().includes(`agg=${agg}`)),
      history.getByRole("combobox", { name: "Aggregation", exact: true }).selectOption(text),
    ]);
    const { power } = (await answer.json()) as { power: { value: number }[] };
    took.push(Date.now() - at);
    return power;
  };
  const longest = await longestTask(page, async () => {
    await step(() => button("30 d").click());
    // The count includes all points.
    const counts = await choose("count", "COUNT");
    expect(counts.reduce((sum, { value }) => sum + value, 0)).toBe(POINTS);
    await choose("mean", "AVG");
    for (const name of ["Zoom in", "Earlier", "Zoom in", "Zoom in", "Earlier", "Later", "Zoom out", "Zoom out"]) await step(() => button(name).click());
    const plot = history.locator(".u-over");
    await plot.hover();
    for (const delta of [-100, -100, -100, 100]) await step(() => page.mouse.wheel(0, delta));
    const box = await boxOf(plot);
    const drag = async (from: number, to: number, isMove: boolean) => {
      if (isMove) await page.keyboard.down("Shift");
      await page.mouse.move(box.x + box.width * from, box.y + 50);
      await page.mouse.down();
      await page.mouse.move(box.x + box.width * to, box.y + 50, { steps: 20 });
      await page.mouse.up();
      if (isMove) await page.keyboard.up("Shift");
    };
    await step(() => drag(0.6, 0.3, true));
    await step(() => drag(0.3, 0.5, false));
    await choose("every point", "NONE");
  });
  console.log(`longest task ${longest.toFixed(0)} ms, slowest answer ${Math.max(...took)} ms of ${took.map((ms) => Math.round(ms)).join(" ")}`);
  expect(longest).toBeLessThan(LONG_TASK_MS * SLOW);
  expect(Math.max(...took)).toBeLessThan(ANSWER_MS * SLOW);
});
