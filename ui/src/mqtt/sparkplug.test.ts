import { expect, it } from "vitest";
import { isSparkplug, sparkplugOf } from "./sparkplug";

const decoded = (...bytes: number[]): unknown => {
  const text = sparkplugOf(Uint8Array.from(bytes));
  return text === undefined ? undefined : JSON.parse(text);
};

it("topics_of_birth_death_data_and_command", () => {
  expect(isSparkplug("spBv1.0/group/NBIRTH/edge")).toBe(true);
  expect(isSparkplug("spBv1.0/group/DDATA/edge/device")).toBe(true);
  expect(isSparkplug("spBv1.0/STATE/host")).toBe(false);
  expect(isSparkplug("spBv1.0/group/NDATA")).toBe(false);
  expect(isSparkplug("x/spBv1.0/group/NDATA/edge")).toBe(false);
});

it("metrics_with_values_of_each_wire_type", () => {
  // timestamp 150, metric {name "a", int_value 2^32-1}, metric {float_value 1.5}, metric {boolean_value}, seq 0
  expect(
    decoded(
      ...[0x08, 0x96, 0x01],
      ...[0x12, 0x09, 0x0a, 0x01, 0x61, 0x50, 0xff, 0xff, 0xff, 0xff, 0x0f],
      ...[0x12, 0x05, 0x65, 0x00, 0x00, 0xc0, 0x3f],
      ...[0x12, 0x02, 0x70, 0x01],
      ...[0x18, 0x00],
    ),
  ).toEqual({
    timestamp: 150,
    metrics: [{ name: "a", int_value: 4_294_967_295 }, { float_value: 1.5 }, { boolean_value: true }],
    seq: 0,
  });
});

it("integers_above_2_53_are_text", () => {
  expect(decoded(0x08, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01)).toEqual({
    timestamp: "18446744073709551615",
  });
});

it("unknown_fields_are_skipped", () => {
  // Field 15 as text, then seq 7.
  expect(decoded(0x7a, 0x02, 0x61, 0x62, 0x18, 0x07)).toEqual({ seq: 7 });
});

it("other_payloads_are_not_decoded", () => {
  expect(decoded(...new TextEncoder().encode('{"a":1}'))).toBeUndefined();
  expect(decoded(0x12, 0x05, 0x0a)).toBeUndefined();
});
