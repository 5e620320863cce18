import { describe, expect, it } from "vitest";
import { chosen, isShown, problemOf, typedOf, valueAt, valueOf, withValue, type NodeField } from "./nodefields";

const field = (more: Partial<NodeField>): NodeField => ({ at: "x", name: "Field", kind: "text", ...more });

describe("values by path", () => {
  it("setting_a_value_preserves_the_rest_and_the_original", () => {
    const before = { a: { b: 1, c: 2 }, d: [1] };
    expect(withValue(before, "a.b", 9)).toEqual({ a: { b: 9, c: 2 }, d: [1] });
    expect(withValue(before, "a.b", undefined)).toEqual({ a: { c: 2 }, d: [1] });
    expect(withValue(before, "d.e", 1)).toEqual({ a: { b: 1, c: 2 }, d: { e: 1 } });
    expect(before).toEqual({ a: { b: 1, c: 2 }, d: [1] });
    expect(valueAt(before, "a.c")).toBe(2);
    expect(valueAt(before, "a.c.d")).toBeUndefined();
  });

  it("a_choice_adds_missing_fields_next_to_it", () => {
    const choice = field({ at: "q.type", choices: [{ value: "A", name: "a", adds: { limit: 5, key: "k" } }] });
    expect(chosen({ q: { type: "B", key: "mine", limit: null } }, choice, "A")).toEqual({
      q: { type: "A", key: "mine", limit: 5 },
    });
  });
});

describe("typed values", () => {
  it.each([
    ["number", " 1.5 ", { value: 1.5 }],
    ["number", "", { value: undefined }],
    ["number", "1x", { error: "`1x` is not a number of s. The old value stays." }],
    ["texts", " a \n\n b", { value: ["a", "b"] }],
    ["pairs", "a = b = c", { value: { a: "b = c" } }],
    ["pairs", "a", { error: "`a` has no `=`. The old value stays." }],
    ["json", "[1]", { value: [1] }],
    ["json", " ", { value: undefined }],
    ["text", "x", { value: "x" }],
  ] as const)("%s %j", (kind, text, expected) => {
    expect(valueOf(field({ kind, unit: "s" }), text, undefined)).toEqual(expected);
  });

  it("invalid_json_names_the_field", () => {
    expect(valueOf(field({ kind: "json", name: "Headers" }), "{", undefined)).toMatchObject({
      error: expect.stringMatching(/^Headers is not valid JSON, and the old value stays: /) as string,
    });
  });

  it("pairs_stay_a_list_if_they_were_one", () => {
    const list = [{ key: "a", value: "1" }];
    expect(valueOf(field({ kind: "pairs" }), "b = 2", list)).toEqual({ value: [{ key: "b", value: "2" }] });
    expect(typedOf(field({ kind: "pairs" }), list)).toBe("a = 1");
    expect(typedOf(field({ kind: "pairs" }), { a: 1 })).toBe("a = 1");
    expect(typedOf(field({ kind: "texts" }), ["a", "b"])).toBe("a\nb");
    expect(typedOf(field({ kind: "text" }), null)).toBe("");
  });
});

describe("problems", () => {
  it.each([
    [{ isNeeded: true }, "", "Required."],
    [{}, "", undefined],
    [{ kind: "number" }, 1.5, "Must be a whole number, not `1.5`."],
    [{ kind: "number" }, -1, "Must be 0 or more."],
    [{ kind: "number", min: 1, max: 5 }, 6, "Must be from 1 to 5."],
    [{ kind: "number", min: 1, max: 5 }, 5, undefined],
    [{ kind: "boolean" }, "true", 'Must be true or false, not `"true"`.'],
    [{ kind: "texts" }, ["a", 1], "Must be a list of texts."],
    [{ kind: "pairs" }, ["a"], "Must be an object of names and values."],
    [{ kind: "choice", choices: [{ value: "A", name: "a" }] }, "B", "`B` is not a known value."],
    [{ kind: "text" }, 1, "Must be text."],
  ] as [Partial<NodeField>, unknown, string | undefined][])("%j with %j", (more, value, problem) => {
    expect(problemOf(field(more), value)).toBe(problem);
  });
});

describe("visibility", () => {
  it("a_field_depends_on_the_value_and_visibility_of_another", () => {
    const mode = field({ at: "mode", standard: "A" });
    const inner = field({ at: "inner", when: ["mode", "A"] });
    const deep = field({ at: "deep", when: ["inner"] });
    const all = [mode, inner, deep];
    expect(isShown(all, inner, {})).toBe(true);
    expect(isShown(all, inner, { mode: "B" })).toBe(false);
    // Without values, the field is visible while the other one is empty.
    expect(isShown(all, deep, {})).toBe(true);
    expect(isShown(all, deep, { inner: "x" })).toBe(false);
    expect(isShown(all, deep, { mode: "B" })).toBe(false);
  });
});
