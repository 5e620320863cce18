import { describe, expect, it } from "vitest";
import { fieldOf, label, resolve, type JsonSchema } from "./schema";

const NULL: JsonSchema = { type: "null" };

describe("field of a schema", () => {
  it.each([
    [{ type: "string" }, { kind: "text" }],
    [{ type: ["string", "null"] }, { kind: "text" }],
    [{ type: "string", format: "password" }, { kind: "secret" }],
    [{ type: "boolean" }, { kind: "boolean" }],
    [
      { type: "integer", minimum: 1 },
      { kind: "number", isWhole: true, minimum: 1, maximum: undefined },
    ],
    [
      { type: "number", maximum: 0.5 },
      { kind: "number", isWhole: false, minimum: undefined, maximum: 0.5 },
    ],
    [{ type: "array", items: { type: "string" } }, { kind: "lines" }],
    [{ type: "array", items: { type: "integer" } }, { kind: "json" }],
    [{ type: "object", additionalProperties: { type: "string" } }, { kind: "map" }],
    [{ type: "object", additionalProperties: true }, { kind: "json" }],
    [{ type: ["string", "integer"] }, { kind: "json" }],
    [{}, { kind: "json" }],
  ] as [JsonSchema, unknown][])("%j", (schema, field) => {
    expect(fieldOf(schema, {})).toEqual(field);
  });

  it("enums_and_constants_are_choices", () => {
    expect(fieldOf({ enum: ["a", 1] }, {})).toEqual({
      kind: "choice",
      choices: [
        { value: "a", description: "" },
        { value: "1", description: "" },
      ],
    });
    expect(fieldOf({ oneOf: [{ const: "a", description: "First." }, { enum: ["b"] }] }, {})).toEqual({
      kind: "choice",
      choices: [
        { value: "a", description: "First." },
        { value: "b", description: "" },
      ],
    });
  });

  it("tagged_objects_are_variants", () => {
    const plain: JsonSchema = { properties: { kind: { const: "plain" } } };
    const scram: JsonSchema = { properties: { kind: { const: "scram" }, user: { type: "string" } } };
    expect(fieldOf({ oneOf: [plain, scram] }, {})).toEqual({
      kind: "variant",
      tag: "kind",
      variants: [
        { tag: "plain", schema: plain },
        { tag: "scram", schema: scram },
      ],
    });
    expect(fieldOf({ oneOf: [plain, { properties: { user: { type: "string" } } }] }, {})).toEqual({ kind: "json" });
  });

  it("nullable_object_is_optional_and_nullable_text_is_text", () => {
    const tls: JsonSchema = { type: "object", properties: { ca: { type: "string" } } };
    expect(fieldOf({ anyOf: [{ $ref: "#/$defs/Tls" }, NULL] }, { Tls: tls })).toEqual({
      kind: "optional",
      schema: tls,
    });
    expect(fieldOf({ anyOf: [{ type: "string" }, NULL] }, {})).toEqual({ kind: "text" });
  });

  it("own_keywords_win_over_the_reference", () => {
    const defs = { A: { $ref: "#/$defs/B", description: "a" }, B: { type: "string", description: "b", default: "x" } };
    expect(resolve({ $ref: "#/$defs/A", default: "y" }, defs)).toEqual({
      type: "string",
      description: "a",
      default: "y",
    });
    expect(resolve({ $ref: "#/$defs/Missing", type: "string" }, defs)).toEqual({ type: "string" });
  });
});

describe("label", () => {
  it.each([
    ["bootstrap_hosts", "Bootstrap hosts"],
    ["linger_ms", "Linger (ms)"],
    ["max_bytes", "Max (bytes)"],
    ["tls_ca_file", "TLS ca file"],
    ["qos", "QoS"],
  ])("%s is %s", (name, text) => expect(label(name)).toBe(text));
});
