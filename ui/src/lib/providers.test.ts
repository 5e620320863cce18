import { describe, expect, test } from "vitest";
import type { AccessProvider, ProviderFigures } from "../api/generated";
import { duration, figuresOf, milliseconds, originOf, pairsOf, stateOf, verdictOf } from "./providers";

const figures: ProviderFigures = {
  questions: 7,
  allowed: 3,
  denied: 2,
  ignored: 0,
  failed: 1,
  timed_out: 1,
  overloaded: 0,
  cache_hits: 0,
  shared: 0,
  cached_answers: 0,
  cache_size: 0,
  waiting: 0,
  in_progress: 0,
  mean_ms: 2,
  p50_ms: 2,
  p99_ms: 5,
  timeout_ms: 5000,
  on_failure: "deny",
};

describe("figures", () => {
  test("failures are marked, and rare counters appear only above zero", () => {
    const labels = (more: Partial<ProviderFigures>, isSource = false) =>
      figuresOf({ ...figures, ...more }, isSource).map((one) => (one.isBad ? `${one.label}!` : one.label));
    expect(labels({})).toEqual(["Questions", "Admitted", "Refused", "Unknown clients", "Failures!", "Time-outs!"]);
    expect(labels({ failed: 0, timed_out: 0, overloaded: 3, waiting: 1 }, true)).toEqual([
      "Questions",
      "Allowed",
      "Refused",
      "Undecided",
      "Failures",
      "Time-outs",
      "Waiting now",
      "Denied, overload!",
    ]);
  });

  test("a state has a text and a colour", () => {
    const one: AccessProvider = { kind: "http", address: null, state: "failing", last_failure: null, figures };
    expect(stateOf(one)).toEqual({ text: "failing", kind: "bad" });
    expect(stateOf({ ...one, state: "local" })).toEqual({ text: "built in", kind: "" });
  });
});

describe("steps", () => {
  test.each([
    ["asked", 12.4, "asked now, 12 ms"],
    ["cache", 0.01, "from the cache, under 1 ms"],
    [null, 1.25, "1.3 ms"],
    [null, null, ""],
  ])("the origin %s after %s ms is described", (origin, took_ms, text) =>
    expect(originOf({ origin, took_ms })).toBe(text),
  );

  test("verdicts that decide nothing are not coloured", () => {
    const step = { provider: "http", reason: "", origin: null, took_ms: null };
    expect(verdictOf({ ...step, verdict: "not_applicable" })).toEqual({ text: "skipped", kind: "" });
    expect(verdictOf({ ...step, verdict: "wrong" }).kind).toBe("bad");
  });

  test("times have the digits that matter", () => {
    expect([0.4, 3.14, 99.6].map(milliseconds)).toEqual(["under 1 ms", "3.1 ms", "100 ms"]);
    expect([500, 1500, 60_000].map(duration)).toEqual(["500 ms", "1.5 s", "60 s"]);
  });
});

test("attributes are lines", () => {
  expect(pairsOf("site = a\n\n role=b=c ")).toEqual({ site: "a", role: "b=c" });
  expect(pairsOf("site = a\nrole")).toEqual({ malformed: "role" });
});
