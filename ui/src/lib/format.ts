// Formats numbers with units, times and durations.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const compact = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const clock = new Intl.DateTimeFormat([], { timeStyle: "medium", hourCycle: "h23" });
const dateTime = new Intl.DateTimeFormat([], { dateStyle: "medium", timeStyle: "medium", hourCycle: "h23" });

export const NONE = "–";
/** Above any real limit: the value means that no limit is set. */
export const UNLIMITED = 1e12;
/** Larger numbers would round to 10.0. */
const ONE_DECIMAL_BELOW = 9.95;
type Maybe<T> = T | null | undefined;

export function count(n: Maybe<number>): string {
  if (n === null || n === undefined) return NONE;
  return n < 100_000 ? whole.format(n) : compact.format(n);
}

export const exact = (n: Maybe<number>): string => (n === null || n === undefined ? NONE : whole.format(n));

export function rate(n: Maybe<number>): string {
  if (n === null || n === undefined) return NONE;
  return n > 0 && n < ONE_DECIMAL_BELOW ? n.toFixed(1) : count(n);
}

export function plural(n: number, word: string): string {
  return `${count(n)} ${word}${n === 1 ? "" : "s"}`;
}

/** Like `plural`, with all digits. */
export const exactly = (n: Maybe<number>, word: string): string => `${exact(n)} ${word}${n === 1 ? "" : "s"}`;

export function bytes(n: Maybe<number>): string {
  if (n === null || n === undefined) return NONE;
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  // Compares the rounded value: 1023.9 KiB would be shown as 1024 KiB.
  while (Math.round(n) >= 1024 && at < units.length - 1) {
    n /= 1024;
    at += 1;
  }
  return `${n < ONE_DECIMAL_BELOW && at > 0 ? n.toFixed(1) : Math.round(n)} ${units[at]}`;
}

export function span(seconds: Maybe<number>): string {
  if (seconds === null || seconds === undefined) return NONE;
  const [d, h, m, s] = [
    Math.floor(seconds / 86400),
    Math.floor(seconds / 3600) % 24,
    Math.floor(seconds / 60) % 60,
    Math.floor(seconds) % 60,
  ];
  // The two largest units. A zero in the second one is left out.
  const of = (large: string, n: number, unit: string) => (n ? `${large} ${n} ${unit}` : large);
  if (d) return of(`${d} d`, h, "h");
  if (h) return of(`${h} h`, m, "min");
  return m ? of(`${m} min`, s, "s") : `${s} s`;
}

/** Time only for today, otherwise with the date. */
export function time(unixMs: Maybe<number>): string {
  if (!unixMs) return NONE;
  const at = new Date(unixMs);
  return at.toDateString() === new Date().toDateString() ? clock.format(at) : dateTime.format(at);
}

export const fullTime = (unixMs: Maybe<number>): string => (unixMs ? dateTime.format(new Date(unixMs)) : NONE);

/** Turns `queue_full` into words. */
export function words(name: string): string {
  const text = name
    .replaceAll("_", " ")
    .replace("qos0", "QoS 0")
    .replace(/\bapi\b/, "API");
  return text.charAt(0).toUpperCase() + text.slice(1);
}

/** Describes when a session expires. */
export const expiry = (seconds: number): string =>
  seconds === 0 ? "with its connection" : seconds >= 4294967295 ? "never" : `after ${span(seconds)}`;

const plain = new Intl.NumberFormat("en", { maximumSignificantDigits: 6 });

/** Formats a number without a unit. */
export const plainNumber = (n: Maybe<number>): string => (n === null || n === undefined ? NONE : plain.format(n));

const axisMinute = new Intl.DateTimeFormat("en", { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
const axisSecond = new Intl.DateTimeFormat("en", {
  hour: "2-digit",
  minute: "2-digit",
  second: "2-digit",
  hourCycle: "h23",
});
const axisDay = new Intl.DateTimeFormat("en", { month: "short", day: "numeric" });

/**
 * Labels of a time axis, in seconds since 1970. Adds the day if the axis spans several, and seconds if the ticks are
 * close.
 */
export function axisTimes(ticks: number[]): string[] {
  const all = (ticks.at(-1) ?? 0) - (ticks[0] ?? 0);
  const clock = all < 60 * (ticks.length - 1) ? axisSecond : axisMinute;
  return ticks.map((tick) => {
    const at = new Date(tick * 1000);
    const isDay = all > 2 * 86_400 || (at.getHours() === 0 && at.getMinutes() === 0 && at.getSeconds() === 0);
    return (isDay ? axisDay : clock).format(at);
  });
}
