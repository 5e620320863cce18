// Where this node speaks MQTT over WebSocket, as seen from this page.
import type { ListenerView } from "../api/generated";
import { session } from "./session.svelte";

const PATH = "/mqtt";
const OWN_PATH = "/api/v1/mqtt";

export interface Place { address: string; name: string }

/** This page's own port first: where it came from it gets back to, by whatever name and through whatever proxy. Then the listeners that the browser lets it reach. */
export function places(listeners: ListenerView[]): Place[] {
  const isSecure = location.protocol === "https:";
  // The page's policy cannot name an IPv6 address.
  const isNamed = !location.hostname.startsWith("[");
  const others = listeners
    .filter((listener) => !listener.is_api && isNamed && (listener.transport === "wss" || (listener.transport === "ws" && !isSecure)))
    .map((listener) => `${listener.transport}://${location.hostname}:${listener.address.slice(listener.address.lastIndexOf(":") + 1)}${PATH}`);
  return [{ address: own(), name: "This page's port" }, ...others.map((address) => ({ address, name: address }))];
}

export function own(): string {
  const address = new URL(OWN_PATH, location.href);
  address.protocol = address.protocol === "https:" ? "wss:" : "ws:";
  return address.href;
}

/** The login goes to this page's own port and nowhere else. */
export function subProtocols(address: string): string[] {
  return address === own() ? ["mqtt", `bearer.${session.token ?? ""}`] : ["mqtt"];
}
