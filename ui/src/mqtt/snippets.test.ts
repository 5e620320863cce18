import { describe, expect, it } from "vitest";
import type { ListenerView } from "../api/generated";
import { own, places, subProtocols } from "./address";
import { mosquitto, placeOf, snippets } from "./snippets";

const listener = (transport: string, address: string): ListenerView =>
  ({ transport, address, name: "default", is_api: false }) as ListenerView;
const TCP = listener("tcp", "0.0.0.0:1883");
const TLS = listener("tls", "[::]:8883");
const NO_LOGIN = { clientId: "", userName: "", password: "", hasCertificate: false };

describe("place", () => {
  it("plain_tcp_is_preferred_unless_there_is_a_certificate", () => {
    expect(placeOf("host", [TLS, TCP])).toMatchObject({ port: "1883", isTls: false });
    expect(placeOf("[::1]", [TLS, TCP], true)).toEqual({
      host: "::1",
      port: "8883",
      isTls: true,
      listener: "tls.default",
    });
    expect(placeOf("host", [])).toBeUndefined();
  });

  it("examples_for_this_machine_need_no_login", () => {
    const shell = (host: string) => snippets(host, [TCP])[0];
    expect(shell("127.0.0.1")?.code).not.toContain("-u");
    expect(shell("broker.example")?.code).toContain("-u ");
    expect(snippets("host", [])).toEqual([]);
  });
});

describe("shell command", () => {
  it("quotes_cannot_leave_their_argument", () => {
    const place = { host: "h", port: "1883", isTls: false, listener: "tcp.default" };
    expect(mosquitto(place, { ...NO_LOGIN, password: "it's $(x)" })).toBe("-h h -p 1883 -P 'it'\\''s $(x)'");
    expect(mosquitto({ ...place, isTls: true }, { ...NO_LOGIN, hasCertificate: true })).toBe(
      "-h h -p 1883 --cafile ca.pem --cert device.pem --key device.key",
    );
  });

  it("ipv6_addresses_have_brackets_in_urls", () => {
    const node = snippets("[2001:db8::1]", [TCP]).find(({ name }) => name === "Node.js");
    expect(node?.code).toContain('mqtt.connect("mqtt://[2001:db8::1]:1883"');
  });
});

describe("WebSocket addresses", () => {
  it("own_port_comes_first_and_gets_the_token", () => {
    const [first, second] = places([TCP, listener("ws", "0.0.0.0:8083"), listener("wss", "[::]:8084")]);
    expect(first?.address).toBe("ws://broker.example:18083/api/v1/mqtt");
    expect(first?.address).toBe(own());
    expect(second?.address).toBe("ws://broker.example:8083/mqtt");
    expect(subProtocols(own())).toHaveLength(2);
    expect(subProtocols("ws://broker.example:8083/mqtt")).toEqual(["mqtt"]);
  });
});
