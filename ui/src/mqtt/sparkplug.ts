// Decodes Sparkplug B payloads to JSON with the field names of sparkplug_b.proto, like the rule function
// `sparkplug_decode`. Returns nothing for other payloads.

type Kind = "uint32" | "uint64" | "bool" | "float" | "double" | "text" | "bytes" | Layout;
type Layout = () => Record<number, [name: string, kind: Kind, isRepeated?: boolean]>;
interface Reader {
  bytes: Uint8Array;
  at: number;
}

const DEPTH_MAX = 20;
const [VARINT, FIXED64, LENGTH, FIXED32] = [0, 1, 2, 5];

/** Matches `spBv1.0/<group>/<kind>/<edge node>[/<device>]`. STATE messages are JSON. */
export const isSparkplug = (topic: string): boolean => /^spBv1\.0\/[^/]+\/(N|D)(BIRTH|DEATH|DATA|CMD)\//.test(topic);

const PAYLOAD: Layout = () => ({
  1: ["timestamp", "uint64"],
  2: ["metrics", METRIC, true],
  3: ["seq", "uint64"],
  4: ["uuid", "text"],
  5: ["body", "bytes"],
});
const METRIC: Layout = () => ({
  1: ["name", "text"],
  2: ["alias", "uint64"],
  3: ["timestamp", "uint64"],
  4: ["datatype", "uint32"],
  5: ["is_historical", "bool"],
  6: ["is_transient", "bool"],
  7: ["is_null", "bool"],
  8: ["metadata", METADATA],
  9: ["properties", PROPERTIES],
  ...VALUE(10),
  17: ["dataset_value", DATASET],
  18: ["template_value", TEMPLATE],
});
const VALUE = (from: number): ReturnType<Layout> => ({
  [from]: ["int_value", "uint32"],
  [from + 1]: ["long_value", "uint64"],
  [from + 2]: ["float_value", "float"],
  [from + 3]: ["double_value", "double"],
  [from + 4]: ["boolean_value", "bool"],
  [from + 5]: ["string_value", "text"],
  ...(from === 10 ? { 16: ["bytes_value", "bytes"] as [string, Kind] } : {}),
});
const METADATA: Layout = () => ({
  1: ["is_multi_part", "bool"],
  2: ["content_type", "text"],
  3: ["size", "uint64"],
  4: ["seq", "uint64"],
  5: ["file_name", "text"],
  6: ["file_type", "text"],
  7: ["md5", "text"],
  8: ["description", "text"],
});
const PROPERTIES: Layout = () => ({ 1: ["keys", "text", true], 2: ["values", PROPERTY, true] });
const PROPERTY: Layout = () => ({
  1: ["type", "uint32"],
  2: ["is_null", "bool"],
  3: ["int_value", "uint32"],
  4: ["long_value", "uint64"],
  5: ["float_value", "float"],
  6: ["double_value", "double"],
  7: ["boolean_value", "bool"],
  8: ["string_value", "text"],
  9: ["propertyset_value", PROPERTIES],
  10: ["propertysets_value", PROPERTY_SETS],
});
const PROPERTY_SETS: Layout = () => ({ 1: ["propertyset", PROPERTIES, true] });
const DATASET: Layout = () => ({
  1: ["num_of_columns", "uint64"],
  2: ["columns", "text", true],
  3: ["types", "uint32", true],
  4: ["rows", ROW, true],
});
const ROW: Layout = () => ({ 1: ["elements", ELEMENT, true] });
const ELEMENT: Layout = () => VALUE(1);
const TEMPLATE: Layout = () => ({
  1: ["version", "text"],
  2: ["metrics", METRIC, true],
  3: ["parameters", PARAMETER, true],
  4: ["template_ref", "text"],
  5: ["is_definition", "bool"],
});
const PARAMETER: Layout = () => ({ 1: ["name", "text"], 2: ["type", "uint32"], ...VALUE(3) });

/** Returns indented JSON. */
export function sparkplugOf(bytes: Uint8Array): string | undefined {
  try {
    return JSON.stringify(
      message({ bytes, at: 0 }, PAYLOAD, 0),
      (_, value: unknown) => (typeof value === "bigint" ? plain(value) : value),
      2,
    );
  } catch {
    return undefined;
  }
}

/** Returns a number if it is exact, otherwise text. */
const plain = (value: bigint): number | string =>
  value <= BigInt(Number.MAX_SAFE_INTEGER) ? Number(value) : String(value);

function message(reader: Reader, layout: Layout, depth: number): Record<string, unknown> {
  if (depth > DEPTH_MAX) throw new Error("nested too deeply");
  const fields = layout();
  const found: Record<string, unknown> = {};
  while (reader.at < reader.bytes.length) {
    const key = Number(varint(reader));
    const [number, wire] = [Math.floor(key / 8), key % 8];
    const field = fields[number];
    if (!field) {
      if (number === 0) throw new Error("field number 0");
      skip(reader, wire);
      continue;
    }
    const [name, kind, isRepeated] = field;
    const value = read(reader, kind, wire, isRepeated ?? false, depth);
    found[name] = isRepeated
      ? [...((found[name] as unknown[] | undefined) ?? []), ...(Array.isArray(value) ? value : [value])]
      : value;
  }
  return found;
}

function read(reader: Reader, kind: Kind, wire: number, isRepeated: boolean, depth: number): unknown {
  if (typeof kind === "string" && wire === VARINT) {
    const value = varint(reader);
    if (kind === "uint32") return BigInt.asUintN(32, value);
    if (kind === "uint64") return value;
    if (kind === "bool") return value !== 0n;
  }
  if (kind === "float" && wire === FIXED32) return number(view(take(reader, 4)).getFloat32(0, true));
  if (kind === "double" && wire === FIXED64) return number(view(take(reader, 8)).getFloat64(0, true));
  if (wire !== LENGTH) throw new Error("unexpected wire type");
  const bytes = take(reader, Number(varint(reader)));
  if (typeof kind === "function") return message({ bytes, at: 0 }, kind, depth + 1);
  if (kind === "text") return new TextDecoder("utf-8", { fatal: true }).decode(bytes);
  if (kind === "bytes") return btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join(""));
  if (kind === "uint32" && isRepeated) {
    const packed: Reader = { bytes, at: 0 };
    const all: bigint[] = [];
    while (packed.at < bytes.length) all.push(BigInt.asUintN(32, varint(packed)));
    return all;
  }
  throw new Error("unexpected wire type");
}

/** JSON has no NaN and no infinity. */
const number = (value: number): number | string => (Number.isFinite(value) ? value : String(value));
const view = (bytes: Uint8Array): DataView => new DataView(bytes.buffer, bytes.byteOffset, bytes.length);

function take(reader: Reader, length: number): Uint8Array {
  const end = reader.at + length;
  if (end > reader.bytes.length) throw new Error("unexpected end");
  const bytes = reader.bytes.subarray(reader.at, end);
  reader.at = end;
  return bytes;
}

function varint(reader: Reader): bigint {
  let value = 0n;
  for (let shift = 0n; shift < 70n; shift += 7n) {
    const byte = take(reader, 1)[0] ?? 0;
    value |= BigInt(byte & 0x7f) << shift;
    if (byte < 0x80) return BigInt.asUintN(64, value);
  }
  throw new Error("integer too long");
}

function skip(reader: Reader, wire: number): void {
  if (wire === VARINT) varint(reader);
  else if (wire === FIXED64) take(reader, 8);
  else if (wire === FIXED32) take(reader, 4);
  else if (wire === LENGTH) take(reader, Number(varint(reader)));
  else throw new Error("unknown wire type");
}
