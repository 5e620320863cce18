import { beforeEach, describe, expect, it } from "vitest";
import { connectPacket, fresh, last, messageProperties, noFields, pairs, readableProperties, saved } from "./options";
import { storeLast, storeSaved } from "./options";
import { OF_CLIENTS, reason } from "./reasons";

describe("properties", () => {
  it("pairs_split_at_the_first_equals_sign", () => {
    expect(pairs("a = 1\n\n no sign \n b=x=y\n = empty name\nc=")).toEqual([
      ["a", "1"],
      ["b", "x=y"],
      ["", "empty name"],
      ["c", ""],
    ]);
  });

  it("empty_fields_add_no_property", () => {
    expect(messageProperties(noFields())).toEqual({});
  });

  it("an_expiry_of_zero_is_sent", () => {
    expect(messageProperties({ ...noFields(), expiryS: 0, isText: true })).toEqual({
      messageExpiryInterval: 0,
      payloadFormatIndicator: 1,
    });
  });

  it("names_are_readable", () => {
    const properties = {
      maximumQoS: 1,
      correlationData: new TextEncoder().encode("id"),
      userProperties: [["myKey", "v"]] as [string, string][],
    };
    expect(readableProperties(properties)).toEqual([
      ["maximum QoS", "1"],
      ["correlation data", "id"],
      ["myKey", "v"],
    ]);
  });
});

describe("connect", () => {
  it("authentication_data_needs_a_method", () => {
    const options = { ...fresh(), authenticationData: "secret" };
    expect(connectPacket(options).properties.authenticationData).toBeUndefined();
    const { properties } = connectPacket({ ...options, authenticationMethod: "SCRAM" });
    expect(properties.authenticationData).toEqual(new TextEncoder().encode("secret"));
  });

  it("will_without_topic_is_left_out", () => {
    const options = fresh();
    options.will.payload = "bye";
    expect(connectPacket(options).will).toBeUndefined();
    options.will = { ...options.will, topic: "will", format: "hex", payload: "00 ff", delayS: 0 };
    expect(connectPacket(options).will).toEqual({
      topic: "will",
      payload: Uint8Array.of(0, 255),
      qos: 0,
      retain: false,
      properties: { willDelayInterval: 0 },
    });
  });

  it("an_invalid_will_payload_is_an_error", () => {
    const options = fresh();
    options.will = { ...options.will, topic: "will", format: "hex", payload: "0" };
    expect(() => connectPacket(options)).toThrow("not hexadecimal");
  });
});

describe("stored options", () => {
  beforeEach(() => localStorage.clear());

  it("last_connection_is_stored_without_its_password", () => {
    storeLast({ ...fresh(), clientId: "mine", password: "secret" });
    expect(last()).toMatchObject({ clientId: "mine", password: "" });
    expect(JSON.stringify(localStorage.getItem(localStorage.key(0) ?? ""))).not.toContain("secret");
  });

  it("missing_fields_of_an_older_version_get_defaults", () => {
    storeSaved(new Map([["old", { address: "ws://x", will: { topic: "w" } } as never]]));
    const old = saved().get("old");
    expect(old).toMatchObject({ address: "ws://x", keepAliveS: 60 });
    expect(old?.will).toMatchObject({ topic: "w", qos: 0, message: noFields() });
  });

  it("unreadable_storage_is_treated_as_empty", () => {
    storeLast(fresh());
    localStorage.setItem(localStorage.key(0) ?? "", "{");
    expect(last().keepAliveS).toBe(60);
    expect(saved().size).toBe(0);
  });
});

describe("reason codes", () => {
  it("reason_shows_name_and_code", () => {
    expect(reason(0)).toBe("Success (0x00)");
    expect(reason(0x8e)).toBe("Session taken over (0x8e)");
    expect(reason(0x7f)).toBe("Unknown reason (0x7f)");
  });

  it("all_codes_that_a_client_sends_have_names", () => {
    for (const code of OF_CLIENTS) expect(reason(code)).not.toContain("Unknown");
  });
});
