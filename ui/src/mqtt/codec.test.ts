// Packets byte by byte, as the MQTT 5.0 standard lays them out. Section numbers refer to it.
import { describe, expect, it } from "vitest";
import * as codec from "./codec";
import { Decoder, type Packet } from "./codec";

const bytes = (text: string): Uint8Array =>
  Uint8Array.from(text.match(/[0-9a-f]{2}/g) ?? [], (one) => parseInt(one, 16));
const hex = (packet: Uint8Array): string => [...packet].map((byte) => byte.toString(16).padStart(2, "0")).join(" ");
const utf8 = (text: string): Uint8Array => new TextEncoder().encode(text);
const decoded = (text: string): Packet[] => [...new Decoder().push(bytes(text))];
const MESSAGE = {
  topic: "a/b",
  payload: utf8("hi"),
  qos: 0,
  retain: false,
  dup: false,
  packetId: 0,
  properties: {},
} as const;

describe("encoding", () => {
  const CONNECT = { clientId: "c", cleanStart: true, keepAliveS: 60, properties: {} };

  it("connect_without_login_has_only_clean_start", () => {
    // 3.1: protocol name and version, flags, keep alive, property length, client id.
    expect(hex(codec.connect(CONNECT))).toBe("10 0e 00 04 4d 51 54 54 05 02 00 3c 00 00 01 63");
  });

  it("connect_orders_will_user_name_and_password", () => {
    const packet = codec.connect({
      ...CONNECT,
      cleanStart: false,
      userName: "u",
      password: "p",
      properties: { sessionExpiryInterval: 300 },
      will: { topic: "w", payload: utf8("x"), qos: 1, retain: true, properties: { willDelayInterval: 5 } },
    });
    expect(hex(packet)).toBe(
      "10 25 00 04 4d 51 54 54 05 ec 00 3c 05 11 00 00 01 2c 00 01 63 " +
        "05 18 00 00 00 05 00 01 77 00 01 78 00 01 75 00 01 70",
    );
  });

  it.each([
    ["QoS 0 has no packet identifier", { ...MESSAGE }, "30 08 00 03 61 2f 62 00 68 69"],
    ["QoS 1", { ...MESSAGE, qos: 1, packetId: 10 } as const, "32 0a 00 03 61 2f 62 00 0a 00 68 69"],
    [
      "QoS 2, DUP and RETAIN",
      { ...MESSAGE, qos: 2, packetId: 0xffff, dup: true, retain: true } as const,
      "3d 0a 00 03 61 2f 62 ff ff 00 68 69",
    ],
    ["empty payload", { ...MESSAGE, payload: utf8("") }, "30 06 00 03 61 2f 62 00"],
  ])("publish: %s", (_, message, expected) => {
    expect(hex(codec.publish(message))).toBe(expected);
  });

  it.each([
    // 1.5.5: the largest value of each length.
    [127, "7f"],
    [128, "80 01"],
    [16_383, "ff 7f"],
    [16_384, "80 80 01"],
    [2_097_151, "ff ff 7f"],
    [2_097_152, "80 80 80 01"],
  ])("remaining length %i is %s", (length, expected) => {
    // A PUBLISH with topic `t` has four bytes before its payload.
    const packet = codec.publish({ ...MESSAGE, topic: "t", payload: new Uint8Array(length - 4) });
    expect(hex(packet.subarray(1, 1 + expected.split(" ").length))).toBe(expected);
    expect(packet.length).toBe(1 + expected.split(" ").length + length);
  });

  it("properties_have_the_identifiers_of_the_standard", () => {
    const properties = {
      payloadFormatIndicator: 1,
      messageExpiryInterval: 0x01020304,
      contentType: "t",
      responseTopic: "r",
      correlationData: Uint8Array.of(0xff),
      userProperties: [
        ["k", "1"],
        ["k", "2"],
      ] as [string, string][],
    };
    expect(hex(codec.publish({ ...MESSAGE, topic: "t", payload: utf8(""), properties }))).toBe(
      "30 25 00 01 74 21 01 01 02 01 02 03 04 03 00 01 74 08 00 01 72 09 00 01 ff " +
        "26 00 01 6b 00 01 31 26 00 01 6b 00 01 32",
    );
  });

  it("subscribe_packs_all_options_into_one_byte", () => {
    const options = { filter: "a/#", qos: 1, noLocal: true, retainAsPublished: true, retainHandling: 2 } as const;
    expect(hex(codec.subscribe(7, options))).toBe("82 09 00 07 00 00 03 61 2f 23 2d");
    expect(hex(codec.subscribe(7, { ...options, identifier: 300 }))).toBe("82 0c 00 07 03 0b ac 02 00 03 61 2f 23 2d");
  });

  it("acknowledgements_and_small_packets", () => {
    expect(hex(codec.acknowledge("puback", 258))).toBe("40 02 01 02");
    expect(hex(codec.acknowledge("pubrec", 1))).toBe("50 02 00 01");
    // 3.6.1: the flags of PUBREL are 0010.
    expect(hex(codec.acknowledge("pubrel", 1))).toBe("62 02 00 01");
    expect(hex(codec.acknowledge("pubcomp", 1))).toBe("70 02 00 01");
    expect(hex(codec.unsubscribe(9, "a"))).toBe("a2 06 00 09 00 00 01 61");
    expect(hex(codec.ping())).toBe("c0 00");
    expect(hex(codec.disconnect(4, { reasonString: "x" }))).toBe("e0 06 04 04 1f 00 01 78");
  });

  it("text_longer_than_its_length_field_is_refused", () => {
    expect(() => codec.unsubscribe(1, "a".repeat(65_535))).not.toThrow();
    expect(() => codec.unsubscribe(1, "a".repeat(65_536))).toThrow("longer than 65535 bytes");
    // The limit counts bytes, not characters.
    expect(() => codec.unsubscribe(1, "é".repeat(32_768))).toThrow("longer than 65535 bytes");
  });
});

describe("decoding", () => {
  it("connack_with_properties", () => {
    expect(decoded("20 0d 01 00 0a 12 00 02 69 64 21 00 0a 24 01")).toEqual([
      {
        type: "connack",
        sessionPresent: true,
        reasonCode: 0,
        properties: { assignedClientId: "id", receiveMaximum: 10, maximumQoS: 1 },
      },
    ]);
  });

  it("publish_that_was_encoded_is_the_same", () => {
    const message = {
      topic: "räume/1",
      payload: Uint8Array.of(0, 255),
      qos: 2,
      retain: true,
      dup: true,
      packetId: 0xfffe,
      properties: { userProperties: [["k", "ü"]] as [string, string][], subscriptionIdentifiers: [1, 268_435_455] },
    } as const;
    expect([...new Decoder().push(codec.publish(message as unknown as codec.Publish))]).toEqual([
      { type: "publish", ...message },
    ]);
  });

  it("acknowledgement_without_reason_code_means_success", () => {
    expect(decoded("40 02 00 05 50 03 00 06 10 62 04 00 07 92 00 e0 00")).toEqual([
      { type: "puback", packetId: 5, reasonCode: 0, properties: {} },
      { type: "pubrec", packetId: 6, reasonCode: 0x10, properties: {} },
      { type: "pubrel", packetId: 7, reasonCode: 0x92, properties: {} },
      { type: "disconnect", reasonCode: 0, properties: {} },
    ]);
  });

  it("suback_has_a_reason_code_per_filter", () => {
    expect(decoded("90 06 00 01 00 00 02 87 b0 04 00 02 00 11 d0 00")).toEqual([
      { type: "suback", packetId: 1, reasonCodes: [0, 2, 0x87], properties: {} },
      { type: "unsuback", packetId: 2, reasonCodes: [0x11], properties: {} },
      { type: "pingresp" },
    ]);
  });

  it("packets_cut_at_every_byte_are_reassembled", () => {
    const all = bytes("40 02 00 05 d0 00 30 08 00 03 61 2f 62 00 68 69 e0 01 8b");
    for (let cut = 0; cut <= all.length; cut += 1) {
      const decoder = new Decoder();
      const found = [...decoder.push(all.slice(0, cut)), ...decoder.push(all.slice(cut))];
      expect(
        found.map(({ type }) => type),
        `cut at ${cut}`,
      ).toEqual(["puback", "pingresp", "publish", "disconnect"]);
    }
  });

  it.each([
    ["a length of more than four bytes", "30 ff ff ff ff 01", "longer than 4 bytes"],
    ["a topic longer than the packet", "30 04 00 05 61 62", "ends too early"],
    ["an unknown property", "30 06 00 01 61 02 7e 00", "unknown property 0x7e"],
    ["a property longer than the packet", "30 07 00 01 61 05 03 00 09", "ends too early"],
    ["a packet of a client", "c0 00", "type 12"],
  ])("refuses %s", (_, packet, error) => {
    expect(() => decoded(packet)).toThrow(error);
  });

  it("topics_that_share_a_cache_slot_stay_apart", () => {
    const decoder = new Decoder();
    for (let n = 0; n < 10_000; n += 1) {
      const topic = `t/${n}`;
      const [packet] = decoder.push(codec.publish({ ...MESSAGE, topic }));
      expect(packet).toMatchObject({ topic });
    }
    const long = "l".repeat(300);
    expect([...decoder.push(codec.publish({ ...MESSAGE, topic: long }))]).toMatchObject([{ topic: long }]);
  });
});
