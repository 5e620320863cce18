// Selects the form field for a JSON Schema. Supports only what the server's schemas use. All other values are edited as
// JSON.

export interface JsonSchema {
  $ref?: string;
  $defs?: Record<string, JsonSchema>;
  type?: string | string[];
  description?: string;
  default?: unknown;
  const?: unknown;
  enum?: unknown[];
  oneOf?: JsonSchema[];
  anyOf?: JsonSchema[];
  properties?: Record<string, JsonSchema>;
  additionalProperties?: boolean | JsonSchema;
  required?: string[];
  items?: JsonSchema;
  format?: string;
  minimum?: number;
  maximum?: number;
}

export interface Choice {
  value: string;
  description: string;
}
export interface Variant {
  tag: string;
  schema: JsonSchema;
}

export type Field =
  | { kind: "text" | "secret" | "boolean" | "lines" | "map" | "json" }
  | { kind: "number"; isWhole: boolean; minimum: number | undefined; maximum: number | undefined }
  | { kind: "choice"; choices: Choice[] }
  | { kind: "object"; schema: JsonSchema }
  | { kind: "variant"; tag: string; variants: Variant[] }
  | { kind: "optional"; schema: JsonSchema };

export type Defs = Record<string, JsonSchema>;

/** Resolves a reference. Keywords next to the reference take precedence. */
export function resolve(schema: JsonSchema, defs: Defs): JsonSchema {
  if (!schema.$ref) return schema;
  const { $ref, ...own } = schema;
  const target = defs[$ref.split("/").pop() ?? ""] ?? {};
  return { ...resolve(target, defs), ...own };
}

export function fieldOf(given: JsonSchema, defs: Defs): Field {
  const schema = resolve(given, defs);
  const choices = schema.oneOf ?? schema.anyOf;
  if (choices)
    return fieldOfChoices(
      choices.map((one) => resolve(one, defs)),
      defs,
    );
  if (schema.enum)
    return { kind: "choice", choices: schema.enum.map((value) => ({ value: String(value), description: "" })) };
  const types = [schema.type ?? []].flat().filter((type) => type !== "null");
  switch (types.length === 1 ? types[0] : "") {
    case "string":
      return { kind: schema.format === "password" ? "secret" : "text" };
    case "boolean":
      return { kind: "boolean" };
    case "integer":
    case "number":
      return { kind: "number", isWhole: types[0] === "integer", minimum: schema.minimum, maximum: schema.maximum };
    case "array":
      return schema.items && resolve(schema.items, defs).type === "string" ? { kind: "lines" } : { kind: "json" };
    case "object":
      return schema.properties
        ? { kind: "object", schema }
        : isTextMap(schema, defs)
          ? { kind: "map" }
          : { kind: "json" };
    default:
      return { kind: "json" };
  }
}

function isTextMap(schema: JsonSchema, defs: Defs): boolean {
  return (
    typeof schema.additionalProperties === "object" && resolve(schema.additionalProperties, defs).type === "string"
  );
}

function fieldOfChoices(all: JsonSchema[], defs: Defs): Field {
  const real = all.filter((one) => one.type !== "null");
  const [only] = real;
  if (real.length === 1 && only && real.length < all.length) {
    const inner = fieldOf(only, defs);
    return inner.kind === "object" || inner.kind === "variant" ? { kind: "optional", schema: only } : inner;
  }
  const choices = real.flatMap((one) =>
    one.const !== undefined
      ? [{ value: String(one.const), description: one.description ?? "" }]
      : (one.enum ?? []).map((value) => ({ value: String(value), description: "" })),
  );
  if (choices.length > 0 && real.every((one) => one.const !== undefined || one.enum))
    return { kind: "choice", choices };
  const tag = Object.entries(only?.properties ?? {}).find(([, property]) => property.const !== undefined)?.[0];
  const variants = tag
    ? real.flatMap((schema) => {
        const value = schema.properties?.[tag]?.const;
        return typeof value === "string" ? [{ tag: value, schema }] : [];
      })
    : [];
  return tag && variants.length === real.length ? { kind: "variant", tag, variants } : { kind: "json" };
}

/** Turns `bootstrap_hosts` into a label. A unit stays at the end. */
export function label(name: string): string {
  const unit = /_(ms|s|bytes)$/.exec(name)?.[1];
  const text = (unit ? name.slice(0, -unit.length - 1) : name).replaceAll("_", " ");
  const words = text.replace(/\b(url|tls|sql|id|qos)\b/g, (word) => (word === "qos" ? "QoS" : word.toUpperCase()));
  return `${words.charAt(0).toUpperCase()}${words.slice(1)}${unit ? ` (${unit})` : ""}`;
}
