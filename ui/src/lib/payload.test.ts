import { describe, expect, it } from "vitest";
import { encode, fromBase64, hexOf, jsonOf, preview, textOf, typed } from "./payload";

describe("kind of a payload", () => {
  it("control_characters_and_invalid_utf8_are_binary", () => {
    expect(textOf(encode("tab\tnew line\r\nü"))).toBe("tab\tnew line\r\nü");
    expect(textOf(Uint8Array.of(0x61, 0x00))).toBeUndefined();
    expect(textOf(Uint8Array.of(0x1b, 0x5b))).toBeUndefined();
    expect(textOf(Uint8Array.of(0xc3))).toBeUndefined();
  });

  it.each([
    ['{"a":1}', '{\n  "a": 1\n}'],
    [" [1,2]", "[\n  1,\n  2\n]"],
    ["-1.50", "-1.5"],
    ["true", "true"],
    ["null", "null"],
    ["on", undefined],
    ["{a:1}", undefined],
    ["", undefined],
    [undefined, undefined],
  ])("JSON of %s is %s", (text, expected) => expect(jsonOf(text)).toBe(expected));
});

describe("hex dump", () => {
  it("line_has_offset_bytes_and_characters", () => {
    expect(hexOf(encode("0123456789abcdef~\n"))).toBe(
      "0000  30 31 32 33 34 35 36 37 38 39 61 62 63 64 65 66  0123456789abcdef\n" + `0010  7e 0a${" ".repeat(42)}  ~·`,
    );
  });

  it("long_dump_ends_with_the_number_of_missing_bytes", () => {
    const lines = hexOf(new Uint8Array(4_099)).split("\n");
    expect(lines).toHaveLength(257);
    expect(lines.at(-1)).toBe("… 3 more bytes");
    expect(hexOf(new Uint8Array(4_096)).split("\n")).toHaveLength(256);
  });
});

describe("preview", () => {
  it("is_one_line_of_bounded_length", () => {
    expect(preview(encode(""))).toBe("(empty)");
    expect(preview(encode('{\n  "a": 1\n}'))).toBe('{ "a": 1 }');
    expect(preview(encode("x".repeat(121)))).toBe(`${"x".repeat(120)}…`);
    expect(preview(encode("x".repeat(120)))).toBe("x".repeat(120));
  });

  it("binary_payload_is_shown_in_hex", () => {
    expect(preview(Uint8Array.of(0, 255))).toBe("00 ff");
  });

  it("character_at_the_cut_does_not_make_text_binary", () => {
    // 480 bytes are read. The last of them is the first byte of `é`.
    expect(preview(encode(`${"x".repeat(479)}é`))).toBe(`${"x".repeat(64)}`);
  });
});

describe("typed payload", () => {
  it("accepts_each_format", () => {
    expect(typed("ü", "text")).toEqual(Uint8Array.of(0xc3, 0xbc));
    expect(typed(" 1 ", "json")).toEqual(encode(" 1 "));
    expect(typed("0x00, FF:7f", "hex")).toEqual(Uint8Array.of(0, 255, 127));
    expect(typed("", "hex")).toEqual(new Uint8Array());
    expect(typed("AP\n8=", "base64")).toEqual(Uint8Array.of(0, 255));
  });

  it.each([
    ["{", "json", "The payload is not JSON"],
    ["abc", "hex", "The payload is not hexadecimal"],
    ["gg", "hex", "The payload is not hexadecimal"],
    ["*", "base64", "The payload is not Base64"],
  ] as const)("refuses %s as %s", (text, format, error) => {
    expect(() => typed(text, format)).toThrow(error);
  });

  it("base64_bytes_above_127_are_preserved", () => {
    expect(fromBase64("gP8=")).toEqual(Uint8Array.of(0x80, 0xff));
  });
});
