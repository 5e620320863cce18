// Alarm rules of a device profile in ThingsBoard's format. Parts that the form cannot show are preserved.
import type { Json, Severity } from "./model";

export const OPERATIONS = {
  NUMERIC: [
    ["GREATER", ">"],
    ["GREATER_OR_EQUAL", "≥"],
    ["LESS", "<"],
    ["LESS_OR_EQUAL", "≤"],
    ["EQUAL", "="],
    ["NOT_EQUAL", "≠"],
  ],
  STRING: [
    ["EQUAL", "is"],
    ["NOT_EQUAL", "is not"],
    ["CONTAINS", "contains"],
    ["NOT_CONTAINS", "does not contain"],
    ["STARTS_WITH", "starts with"],
    ["ENDS_WITH", "ends with"],
  ],
  BOOLEAN: [
    ["EQUAL", "is"],
    ["NOT_EQUAL", "is not"],
  ],
} as const;
export type ValueType = keyof typeof OPERATIONS;
export const UNITS = ["SECONDS", "MINUTES", "HOURS", "DAYS"] as const;

export interface Value extends Json {
  defaultValue: unknown;
  dynamicValue?: unknown;
}
export interface Filter extends Json {
  key: { type: string; key: string };
  valueType: string;
  predicate: { type: string; operation: string; value?: Value; predicates?: unknown } & Json;
}
export interface Spec extends Json {
  type: "SIMPLE" | "DURATION" | "REPEATING";
  unit?: string;
  predicate?: Value;
}
/** Milliseconds since midnight in the time zone. An end of 0 is the end of the day. Monday is day 1. */
export interface Times extends Json {
  startsOn: number;
  endsOn: number;
}
export interface Schedule extends Json {
  type: "ANY_TIME" | "SPECIFIC_TIME" | "CUSTOM";
  timezone?: string;
  daysOfWeek?: number[];
  startsOn?: number;
  endsOn?: number;
  items?: (Times & { enabled: boolean; dayOfWeek: number })[];
  dynamicValue?: unknown;
}
export interface Rule extends Json {
  condition: { condition: Filter[]; spec: Spec };
  schedule: Schedule | null;
  alarmDetails: string | null;
}
export interface AlarmRule extends Json {
  id: string;
  alarmType: string;
  createRules: Partial<Record<Severity, Rule>>;
  clearRule: Rule | null;
}

export const filter = (): Filter => ({
  key: { type: "TIME_SERIES", key: "" },
  valueType: "NUMERIC",
  value: null,
  predicate: { type: "NUMERIC", operation: "GREATER", value: { defaultValue: 0, userValue: null, dynamicValue: null } },
});
export const rule = (): Rule => ({
  condition: { condition: [filter()], spec: { type: "SIMPLE" } },
  schedule: null,
  alarmDetails: null,
  dashboardId: null,
});
export const alarm = (id: string): AlarmRule => ({
  id,
  alarmType: "",
  createRules: { CRITICAL: rule() },
  clearRule: null,
  propagate: false,
  propagateToOwner: false,
  propagateToTenant: false,
  propagateRelationTypes: null,
});

/** Whether the form can show the whole condition. */
export const isPlain = (one: Filter): boolean =>
  one.predicate.type !== "COMPLEX" &&
  one.predicate.type in OPERATIONS &&
  !hasSource(one.predicate.value) &&
  ["TIME_SERIES", "ATTRIBUTE"].includes(one.key.type);
export const isPlainSpec = (spec: Spec): boolean => !hasSource(spec.predicate);

export const isPlainSchedule = (one: Schedule | null): boolean =>
  !one ||
  (["ANY_TIME", "SPECIFIC_TIME", "CUSTOM"].includes(one.type) &&
    !hasSource({ defaultValue: null, dynamicValue: one.dynamicValue }));

export const DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"] as const;
const HOUR_MS = 3_600_000;
const WORK: Times = { startsOn: 8 * HOUR_MS, endsOn: 18 * HOUR_MS };
const isWorkday = (day: number) => day <= 5;

export function scheduleOf(type: Schedule["type"], timezone: string): Schedule | null {
  const days = DAYS.map((_, at) => at + 1);
  if (type === "SPECIFIC_TIME")
    return { type, timezone, daysOfWeek: days.filter(isWorkday), ...WORK, dynamicValue: null };
  return type === "CUSTOM"
    ? {
        type,
        timezone,
        items: days.map((dayOfWeek) => ({ enabled: isWorkday(dayOfWeek), dayOfWeek, ...WORK })),
        dynamicValue: null,
      }
    : null;
}

const two = (n: number): string => String(n).padStart(2, "0");
/** Formats a time as `08:30` for time inputs. */
export const clock = (ms: number | undefined): string =>
  `${two(Math.floor((ms ?? 0) / HOUR_MS) % 24)}:${two(Math.floor((ms ?? 0) / 60_000) % 60)}`;
export function fromClock(text: string): number {
  const [hours = 0, minutes = 0] = text.split(":").map(Number);
  return hours * HOUR_MS + minutes * 60_000;
}

function hasSource(value: Value | undefined): boolean {
  const source = value?.dynamicValue as { sourceType?: unknown } | null | undefined;
  return Boolean(source?.sourceType);
}

/** Changes the value type, and with it the predicate. */
export function ofType(one: Filter, type: ValueType): Filter {
  const defaultValue = type === "NUMERIC" ? 0 : type === "BOOLEAN" ? true : "";
  return {
    ...one,
    valueType: type,
    predicate: {
      type,
      operation: OPERATIONS[type][0][0],
      ...(type === "STRING" ? { ignoreCase: false } : {}),
      value: { defaultValue, userValue: null, dynamicValue: null },
    },
  };
}

export function specOf(type: Spec["type"]): Spec {
  if (type === "SIMPLE") return { type };
  const predicate = { defaultValue: type === "DURATION" ? 60 : 3, userValue: null, dynamicValue: null };
  return type === "DURATION" ? { type, unit: "SECONDS", predicate } : { type, predicate };
}
