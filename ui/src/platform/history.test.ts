import { beforeEach, describe, expect, it, vi } from "vitest";
import { points, type Window } from "./api";
import { EXPORTED_MAX, lines, raw, RAW_MAX } from "./history";
import type { EntityId, Point } from "./model";

vi.mock("./api");

const ENTITY: EntityId = { entityType: "DEVICE", id: "d" };
const SOURCE = { entity: ENTITY, key: "t", label: "Temperature", unit: "°C", digits: 1 };
const HOUR = { from: 0, to: 3_600_000 };

/** Answers with `count` stored points, one per second, from the requested time on. */
function stored(count: number): Window[] {
  const asked: Window[] = [];
  vi.mocked(points).mockImplementation((_entity, [key = ""], window) => {
    asked.push(window);
    const from = Math.max(0, Math.ceil(window.startTs / 1_000));
    const length = Math.max(0, Math.min(count - from, window.limit ?? 10));
    const all = Array.from({ length }, (_, n): Point => ({ ts: (from + n) * 1_000, value: from + n }));
    return Promise.resolve({ [key]: all });
  });
  return asked;
}

describe("lines of a time range", () => {
  beforeEach(() => {
    vi.mocked(points).mockReset();
  });

  it("few_points_are_shown_as_they_are", async () => {
    const asked = stored(3);
    const [line] = await lines([SOURCE], { from: 0.4, to: 3_600_000.2 }, "AUTO");
    expect(line).toMatchObject({ label: "Temperature", unit: "°C", digits: 1, isCut: false, how: "every point" });
    expect(line?.at).toEqual([0, 1, 2]);
    expect(asked).toEqual([{ startTs: 0, endTs: 3_600_001, agg: "NONE", limit: 1_201 }]);
  });

  it("the_mean_per_interval_replaces_too_many_points", async () => {
    const asked = stored(1_201);
    const [line] = await lines([SOURCE], HOUR, "AUTO");
    // 3600 s in 600 intervals.
    expect(asked.at(-1)).toEqual({ startTs: 0, endTs: 3_600_000, agg: "AVG", interval: 6_000 });
    expect(line?.how).toBe("mean of 6 s");
  });

  it("exactly_as_many_points_as_fit_are_not_aggregated", async () => {
    const asked = stored(1_200);
    const [line] = await lines([SOURCE], HOUR, "AUTO");
    expect(asked).toHaveLength(1);
    expect(line).toMatchObject({ how: "every point", isCut: false });
    expect(line?.values).toHaveLength(1_200);
  });

  it("short_ranges_are_aggregated_only_for_sums_and_counts", async () => {
    const asked = stored(5);
    await lines([SOURCE], { from: 0, to: 60_000 }, "MAX");
    await lines([SOURCE], { from: 0, to: 60_000 }, "COUNT");
    expect(asked).toEqual([
      { startTs: 0, endTs: 60_000, agg: "NONE", limit: RAW_MAX + 1 },
      { startTs: 0, endTs: 60_000, agg: "COUNT", interval: 1_000 },
    ]);
  });

  it("points_beyond_the_limit_are_cut", async () => {
    stored(RAW_MAX + 1);
    const [line] = await lines([SOURCE], { from: 0, to: 86_400_000 }, "NONE");
    expect(line?.isCut).toBe(true);
    expect(line?.values).toHaveLength(RAW_MAX);
  });

  it("export_reads_as_many_pages_as_needed", async () => {
    const asked = stored(120_000);
    const [line] = await raw([SOURCE], { from: 0, to: 1e12 });
    expect(line?.values).toHaveLength(EXPORTED_MAX);
    expect(line?.isCut).toBe(true);
    expect(line?.values.at(-1)).toBe(EXPORTED_MAX - 1);
    expect(asked.map(({ startTs, limit }) => [startTs, limit])).toEqual([
      [0, 50_000],
      [49_999_001, 50_000],
      [99_999_001, 1],
    ]);
  });

  it("values_that_are_no_numbers_leave_gaps", async () => {
    const values = [true, "21.5", "on", null, Infinity];
    vi.mocked(points).mockResolvedValue({ t: values.map((value, ts) => ({ ts, value })) as Point[] });
    const [line] = await lines([SOURCE], HOUR, "AUTO");
    expect(line?.values).toEqual([1, 21.5, null, null, null]);
  });
});
