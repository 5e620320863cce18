// Metrics over a time window: the server's history, followed by live values at the finest resolution.
import { untrack } from "svelte";
import { history, type HistoryView } from "../api/generated";
import { live } from "./live.svelte";
import { resource } from "./resource.svelte";

export interface Columns {
  at: number[];
  of: (name: string) => (number | null)[];
  names: string[];
}

const FINE_STEP_MS = 1_000;
const COARSE_EVERY_MS = 15_000;

/** Call it while a component is created. `windowS` is evaluated again on each change. */
export function series(windowS: () => number): { readonly columns: Columns | undefined; readonly error: string } {
  let view = $state.raw<HistoryView | undefined>();
  const asked = resource((signal) => history({ window_s: windowS() }, signal), COARSE_EVERY_MS);
  $effect(() => {
    view = asked.value;
  });

  $effect(() => {
    const sample = live.sample;
    if (!sample || document.hidden) return;
    view = appended(sample.at_unix_ms, sample.series, windowS());
  });

  function appended(at: number, values: Record<string, number | null>, window: number): HistoryView | undefined {
    const before = peek();
    if (!before || before.step_ms !== FINE_STEP_MS || at <= (before.at_unix_ms.at(-1) ?? 0)) return before;
    const from = before.at_unix_ms.findIndex((one) => one > at - window * 1000);
    const start = from < 0 ? before.at_unix_ms.length : from;
    const columns: HistoryView["series"] = {};
    for (const name of new Set([...Object.keys(before.series), ...Object.keys(values)])) {
      const old = before.series[name] ?? before.at_unix_ms.map(() => 0);
      columns[name] = [...old.slice(start), values[name] ?? (name.includes(".") ? 0 : null)];
    }
    return { step_ms: before.step_ms, at_unix_ms: [...before.at_unix_ms.slice(start), at], series: columns };
  }

  const columns = $derived.by(() => {
    const now = view;
    if (!now) return undefined;
    return {
      at: now.at_unix_ms.map((ms) => ms / 1000),
      of: (name: string) => (now.series[name] ?? []) as (number | null)[],
      names: Object.keys(now.series),
    };
  });

  // Reads the value without tracking it.
  function peek(): HistoryView | undefined {
    return untrack(() => view);
  }

  return {
    get columns() {
      return columns;
    },
    get error() {
      return asked.error;
    },
  };
}
