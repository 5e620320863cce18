// Points of a time window. The server aggregates them into as many intervals as a chart can show, so that a million
// points cost as much as a thousand.
import { span as words } from "../lib/format";
import { points, type Window } from "./api";
import type { Aggregation, EntityId, Point } from "./model";

export interface Source {
  entity: EntityId;
  key: string;
  label: string;
  /** Unit of the values, if known. */ unit?: string;
  /** Decimal digits. */ digits?: number | undefined;
}
export interface Span {
  from: number;
  to: number;
}
export interface Line {
  label: string;
  unit: string;
  digits: number | undefined;
  at: number[];
  values: (number | null)[];
  /** The server has more points. */ isCut: boolean;
  /** What a point stands for, in words: a stored point or an aggregate. */ how: string;
}
/** `AUTO`: every point if they fit, otherwise the mean per interval. */
export type Way = Aggregation | "AUTO";

/** Selectable lengths. */
export const LENGTHS: [number, string][] = [
  [60_000, "1 min"],
  [900_000, "15 min"],
  [3_600_000, "1 h"],
  [21_600_000, "6 h"],
  [86_400_000, "24 h"],
  [604_800_000, "7 d"],
  [2_592_000_000, "30 d"],
];

const INTERVALS = 600;
/** Shorter intervals contain at most one or two points, so they are not aggregated. */
const FINE_MS = 1_000;
export const RAW_MAX = 20_000;
/** The server returns at most this many points per request. */
const ANSWER_MAX = 50_000;
export const EXPORTED_MAX = 100_000;

/** With `AUTO`, up to this many points per key are shown without aggregation. */
const FITTING_MAX = 2 * INTERVALS;
const HOW: Record<Aggregation, string> = {
  NONE: "every point",
  AVG: "mean",
  MIN: "minimum",
  MAX: "maximum",
  SUM: "sum",
  COUNT: "count",
};

export async function lines(sources: Source[], { from, to }: Span, way: Way, signal?: AbortSignal): Promise<Line[]> {
  const times = { startTs: Math.floor(from), endTs: Math.ceil(to) };
  const interval = Math.ceil((to - from) / INTERVALS);
  // Sums and counts always need intervals.
  const isCounted = way === "SUM" || way === "COUNT";
  if (way === "NONE" || (interval < FINE_MS && !isCounted))
    return each(sources, { ...times, agg: "NONE", limit: RAW_MAX + 1 }, signal);
  const agg = way === "AUTO" ? "AVG" : way;
  const window: Window = { ...times, agg, interval: Math.max(interval, FINE_MS) };
  if (way !== "AUTO") return each(sources, window, signal);
  const all = await each(sources, { ...times, agg: "NONE", limit: FITTING_MAX + 1 }, signal);
  return Promise.all(
    all.map(async (line, n) =>
      line.isCut ? ((await each(sources.slice(n, n + 1), window, signal))[0] ?? line) : line,
    ),
  );
}

const lasting = (ms: number) => (ms < 60_000 ? `${Number((ms / 1000).toPrecision(2))} s` : words(ms / 1000));

/** Points without aggregation. */
export const raw = (sources: Source[], { from, to }: Span): Promise<Line[]> =>
  each(sources, { startTs: Math.floor(from), endTs: Math.ceil(to), agg: "NONE", limit: EXPORTED_MAX + 1 });

async function each(sources: Source[], window: Window, signal?: AbortSignal): Promise<Line[]> {
  return Promise.all(
    sources.map(async ({ entity, key, label, unit = "", digits }) => {
      const found = await all(entity, key, window, signal);
      // One more point is requested than used, to know whether there are more.
      const max = window.limit === undefined ? found.length : window.limit - 1;
      const taken = found.slice(0, max);
      return {
        label,
        unit,
        digits,
        isCut: found.length > max,
        how: window.agg === "NONE" ? HOW.NONE : `${HOW[window.agg]} of ${lasting(window.interval ?? 0)}`,
        at: taken.map(({ ts }) => ts / 1000),
        values: taken.map(({ value }) => number(value)),
      };
    }),
  );
}

/** Reads points up to the limit, oldest first, in as many requests as needed. */
async function all(entity: EntityId, key: string, window: Window, signal?: AbortSignal): Promise<Point[]> {
  const found: Point[] = [];
  for (let { startTs } = window; ;) {
    const limit = window.limit === undefined ? undefined : Math.min(ANSWER_MAX, window.limit - found.length);
    const answer =
      (await points(entity, [key], { ...window, startTs, ...(limit === undefined ? {} : { limit }) }, signal))[key] ??
      [];
    for (const point of answer) found.push(point);
    const last = answer.at(-1);
    if (limit === undefined || !last || answer.length < limit || found.length === window.limit) return found;
    startTs = last.ts + 1;
  }
}

function number(value: unknown): number | null {
  const n = typeof value === "boolean" ? Number(value) : Number.parseFloat(String(value));
  return Number.isFinite(n) ? n : null;
}
