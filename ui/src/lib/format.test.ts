import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import * as format from "./format";

describe("numbers", () => {
  it.each([
    [undefined, "–"],
    [null, "–"],
    [0, "0"],
    [1_234, "1,234"],
    [99_999, "99,999"],
    [100_000, "100K"],
    [1_250_000, "1.3M"],
  ])("count of %s is %s", (n, text) => expect(format.count(n)).toBe(text));

  it.each([
    [0, "0"],
    [0.04, "0.0"],
    [9.94, "9.9"],
    [9.96, "10"],
    [10.4, "10"],
  ])("rate of %s is %s", (n, text) => expect(format.rate(n)).toBe(text));

  it("only_one_is_singular", () => {
    expect(format.plural(0, "client")).toBe("0 clients");
    expect(format.plural(1, "client")).toBe("1 client");
    expect(format.exactly(1_234_567, "client")).toBe("1,234,567 clients");
  });

  it("plain_numbers_have_six_digits", () => {
    expect(format.plainNumber(1 / 3)).toBe("0.333333");
    expect(format.plainNumber(1_234_567.8)).toBe("1,234,570");
    expect(format.plainNumber(null)).toBe("–");
  });
});

describe("bytes", () => {
  it.each([
    [0, "0 B"],
    [1_023, "1023 B"],
    [1_024, "1.0 KiB"],
    [10 * 1_024, "10 KiB"],
    [1_048_575, "1.0 MiB"],
    [1_048_576, "1.0 MiB"],
    [10_239, "10 KiB"],
    [5 * 2 ** 50, "5120 TiB"],
    [undefined, "–"],
  ])("%s bytes are %s", (n, text) => expect(format.bytes(n)).toBe(text));
});

describe("durations", () => {
  it.each([
    [0, "0 s"],
    [59.9, "59 s"],
    [60, "1 min"],
    [61, "1 min 1 s"],
    [3_600, "1 h"],
    [3_659, "1 h"],
    [86_399, "23 h 59 min"],
    [86_400, "1 d"],
    [90_000, "1 d 1 h"],
    [undefined, "–"],
  ])("%s seconds are %s", (seconds, text) => expect(format.span(seconds)).toBe(text));

  it("expiry_knows_zero_and_the_largest_interval", () => {
    expect(format.expiry(0)).toBe("with its connection");
    expect(format.expiry(3_600)).toBe("after 1 h");
    expect(format.expiry(0xffffffff)).toBe("never");
  });
});

describe("times", () => {
  beforeEach(() => vi.useFakeTimers({ now: Date.UTC(2026, 10, 28, 12, 0, 0) }));
  afterEach(() => vi.useRealTimers());

  it("time_of_another_day_has_a_date", () => {
    const midnight = Date.UTC(2026, 10, 28);
    expect(format.time(midnight)).not.toContain("2026");
    expect(format.time(midnight - 1)).toContain("2026");
    expect(format.time(0)).toBe("–");
    expect(format.fullTime(midnight)).toContain("2026");
  });

  it("axis_shows_seconds_only_for_close_ticks", () => {
    const noon = Date.UTC(2026, 10, 28, 12) / 1000;
    expect(format.axisTimes([noon, noon + 60])).toEqual(["12:00", "12:01"]);
    expect(format.axisTimes([noon, noon + 30])).toEqual(["12:00:00", "12:00:30"]);
    expect(format.axisTimes([])).toEqual([]);
  });

  it("axis_shows_the_day_at_midnight_and_over_several_days", () => {
    const midnight = Date.UTC(2026, 10, 28) / 1000;
    expect(format.axisTimes([midnight - 3_600, midnight, midnight + 3_600])).toEqual(["23:00", "Nov 28", "01:00"]);
    expect(format.axisTimes([midnight + 3_600, midnight + 3 * 86_400])).toEqual(["Nov 28", "Dec 1"]);
  });
});

describe("words", () => {
  it("names_become_words", () => {
    expect(format.words("queue_full")).toBe("Queue full");
    expect(format.words("offline_qos0")).toBe("Offline QoS 0");
    expect(format.words("add_api_key")).toBe("Add API key");
  });
});
