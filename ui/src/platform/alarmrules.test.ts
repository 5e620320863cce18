import { describe, expect, it } from "vitest";
import { clock, filter, fromClock, isPlain, isPlainSchedule, ofType, scheduleOf, specOf } from "./alarmrules";

describe("times", () => {
  it.each([
    [0, "00:00"],
    [30_600_000, "08:30"],
    [86_340_000, "23:59"],
    // An end of 24:00 is the end of the day.
    [86_400_000, "00:00"],
    [undefined, "00:00"],
  ])("%s ms is %s", (ms, text) => expect(clock(ms)).toBe(text));

  it("a_typed_time_is_milliseconds_since_midnight", () => {
    expect(fromClock("08:30")).toBe(30_600_000);
    expect(fromClock("00:00")).toBe(0);
    expect(clock(fromClock("23:59"))).toBe("23:59");
  });
});

describe("schedules", () => {
  it("new_schedules_are_active_on_workdays", () => {
    expect(scheduleOf("ANY_TIME", "UTC")).toBeNull();
    expect(scheduleOf("SPECIFIC_TIME", "UTC")).toMatchObject({ daysOfWeek: [1, 2, 3, 4, 5], timezone: "UTC" });
    expect(scheduleOf("CUSTOM", "UTC")?.items?.map(({ dayOfWeek, enabled }) => enabled && dayOfWeek)).toEqual([
      1,
      2,
      3,
      4,
      5,
      false,
      false,
    ]);
  });

  it("schedules_from_attributes_are_not_editable", () => {
    expect(isPlainSchedule(null)).toBe(true);
    expect(isPlainSchedule({ type: "CUSTOM", dynamicValue: { sourceType: null } })).toBe(true);
    expect(isPlainSchedule({ type: "CUSTOM", dynamicValue: { sourceType: "CURRENT_DEVICE" } })).toBe(false);
  });
});

describe("conditions", () => {
  it("another_type_has_its_own_operation_and_value", () => {
    const text = ofType({ ...filter(), key: { type: "ATTRIBUTE", key: "mode" } }, "STRING");
    expect(text.key).toEqual({ type: "ATTRIBUTE", key: "mode" });
    expect(text.predicate).toMatchObject({ operation: "EQUAL", ignoreCase: false, value: { defaultValue: "" } });
    expect(ofType(text, "NUMERIC").predicate).not.toHaveProperty("ignoreCase");
    expect(ofType(text, "BOOLEAN").predicate.value?.defaultValue).toBe(true);
  });

  it("only_conditions_with_one_constant_are_plain", () => {
    expect(isPlain(filter())).toBe(true);
    const { predicate, ...rest } = filter();
    expect(isPlain({ ...rest, predicate: { ...predicate, type: "COMPLEX" } })).toBe(false);
    const value = { defaultValue: 0, dynamicValue: { sourceType: "CURRENT_TENANT" } };
    expect(isPlain({ ...rest, predicate: { ...predicate, value } })).toBe(false);
    expect(isPlain({ ...rest, predicate, key: { type: "CONSTANT", key: "k" } })).toBe(false);
  });

  it("durations_have_a_unit_and_repetitions_have_none", () => {
    expect(specOf("SIMPLE")).toEqual({ type: "SIMPLE" });
    expect(specOf("DURATION")).toMatchObject({ unit: "SECONDS", predicate: { defaultValue: 60 } });
    expect(specOf("REPEATING")).not.toHaveProperty("unit");
  });
});
