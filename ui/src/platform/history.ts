// Points of a window of time. The server makes as many intervals as a chart has room for, so that a million points cost what a thousand do.
import { points, type Window } from "./api";
import type { Aggregation, EntityId } from "./model";

export interface Source { entity: EntityId; key: string; label: string }
export interface Span { from: number; to: number }
export interface Line { label: string; at: number[]; values: (number | null)[] }

/** Lengths of time to choose from. */
export const LENGTHS: [number, string][] = [[60_000, "1 min"], [900_000, "15 min"], [3_600_000, "1 h"], [21_600_000, "6 h"], [86_400_000, "24 h"], [604_800_000, "7 d"], [2_592_000_000, "30 d"]];

const INTERVALS = 600;
/** Below this an interval has a point or two at most: they are shown as they are. */
const FINE_MS = 1_000;
const RAW_MAX = 20_000;
const EXPORTED_MAX = 100_000;

export async function lines(sources: Source[], { from, to }: Span, agg: Aggregation, signal?: AbortSignal): Promise<Line[]> {
  const interval = Math.ceil((to - from) / INTERVALS);
  const isRaw = agg === "NONE" || interval < FINE_MS;
  const window: Window = { startTs: Math.floor(from), endTs: Math.ceil(to), ...(isRaw ? { agg: "NONE", limit: RAW_MAX } : { agg, interval }) };
  return each(sources, window, signal);
}

/** As they were sent. */
export const raw = (sources: Source[], { from, to }: Span): Promise<Line[]> => each(sources, { startTs: Math.floor(from), endTs: Math.ceil(to), agg: "NONE", limit: EXPORTED_MAX });

async function each(sources: Source[], window: Window, signal?: AbortSignal): Promise<Line[]> {
  return Promise.all(sources.map(async ({ entity, key, label }) => {
    const found = (await points(entity, [key], window, signal))[key] ?? [];
    return { label, at: found.map(({ ts }) => ts / 1000), values: found.map(({ value }) => number(value)) };
  }));
}

function number(value: unknown): number | null {
  const n = typeof value === "boolean" ? Number(value) : Number.parseFloat(String(value));
  return Number.isFinite(n) ? n : null;
}
