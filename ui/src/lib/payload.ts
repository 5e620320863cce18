// Detects the kind of a payload (JSON, text, binary) and formats it.
import { isSparkplug, sparkplugOf } from "../mqtt/sparkplug";

export type View = "sparkplug" | "json" | "text" | "hex";

const strict = new TextDecoder("utf-8", { fatal: true });
const HEX_BYTES_MAX = 4096;

export function fromBase64(base64: string): Uint8Array {
  return Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
}

export function textOf(bytes: Uint8Array): string | undefined {
  try {
    const text = strict.decode(bytes);
    // Control characters mark binary data, even if it decodes as UTF-8.
    return /[\u0000-\u0008\u000e-\u001f]/.test(text) ? undefined : text;
  } catch {
    return undefined;
  }
}

export function jsonOf(text: string | undefined): string | undefined {
  if (text === undefined || !/^\s*[[{"\dtfn-]/.test(text)) return undefined;
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return undefined;
  }
}

/** Hex dump with 16 bytes per line: offset, hexadecimal, characters. */
export function hexOf(bytes: Uint8Array): string {
  const lines: string[] = [];
  for (let at = 0; at < Math.min(bytes.length, HEX_BYTES_MAX); at += 16) {
    const row = [...bytes.subarray(at, at + 16)];
    const hex = row
      .map((byte) => byte.toString(16).padStart(2, "0"))
      .join(" ")
      .padEnd(47);
    const letters = row.map((byte) => (byte >= 32 && byte < 127 ? String.fromCharCode(byte) : "·")).join("");
    lines.push(`${at.toString(16).padStart(4, "0")}  ${hex}  ${letters}`);
  }
  if (bytes.length > HEX_BYTES_MAX) lines.push(`… ${bytes.length - HEX_BYTES_MAX} more bytes`);
  return lines.join("\n");
}

/** One-line preview. The topic identifies Sparkplug B payloads. */
export function preview(bytes: Uint8Array, charactersMax = 120, topic = ""): string {
  if (bytes.length === 0) return "(empty)";
  const sparkplug = isSparkplug(topic) ? sparkplugOf(bytes)?.replace(/\s+/g, " ") : undefined;
  if (sparkplug !== undefined)
    return sparkplug.length > charactersMax ? `${sparkplug.slice(0, charactersMax)}…` : sparkplug;
  const text = textOf(bytes.subarray(0, charactersMax * 4)) ?? textOf(bytes.subarray(0, 64));
  const line =
    text?.replace(/\s+/g, " ") ??
    [...bytes.subarray(0, 24)].map((byte) => byte.toString(16).padStart(2, "0")).join(" ");
  return line.length > charactersMax ? `${line.slice(0, charactersMax)}…` : line;
}

/** The input format of a payload field. */
export type Format = "text" | "json" | "hex" | "base64";

/** Returns the bytes of a payload field. Throws an error that says what is wrong with the input. */
export function typed(value: string, format: Format): Uint8Array {
  switch (format) {
    case "text":
      return encode(value);
    case "json":
      try {
        JSON.parse(value);
      } catch (error) {
        throw new Error(`The payload is not JSON: ${error instanceof Error ? error.message : String(error)}.`);
      }
      return encode(value);
    case "hex": {
      const digits = value.replace(/0x|[\s:,]/gi, "");
      if (!/^([0-9a-f]{2})*$/i.test(digits))
        throw new Error("The payload is not hexadecimal. Use pairs of 0–9 and a–f, with or without spaces.");
      return Uint8Array.from(digits.match(/../g) ?? [], (pair) => Number.parseInt(pair, 16));
    }
    case "base64":
      try {
        return fromBase64(value.replace(/\s/g, ""));
      } catch {
        throw new Error("The payload is not Base64.");
      }
  }
}

export const encode = (text: string): Uint8Array => new TextEncoder().encode(text);
