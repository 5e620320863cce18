// The node's MQTT-over-WebSocket addresses as seen from this page.
import type { ListenerView } from "../api/generated";
import { session } from "../lib/session.svelte";

const PATH = "/mqtt";
const OWN_PATH = "/api/v1/mqtt";

export interface Place {
  address: string;
  name: string;
}

/**
 * Lists addresses that the browser can reach. The page's own port comes first, because it works with any host name and
 * behind any proxy. The node's WebSocket listeners follow.
 */
export function places(listeners: ListenerView[]): Place[] {
  const isSecure = location.protocol === "https:";
  // The content security policy of the page cannot name an IPv6 address.
  const isNamed = !location.hostname.startsWith("[");
  const others = listeners
    .filter(
      (listener) =>
        !listener.is_api && isNamed && (listener.transport === "wss" || (listener.transport === "ws" && !isSecure)),
    )
    .map(({ transport, address }) => {
      const port = address.slice(address.lastIndexOf(":") + 1);
      return `${transport}://${location.hostname}:${port}${PATH}`;
    });
  return [{ address: own(), name: "This page's port" }, ...others.map((address) => ({ address, name: address }))];
}

export function own(): string {
  const address = new URL(OWN_PATH, location.href);
  address.protocol = address.protocol === "https:" ? "wss:" : "ws:";
  return address.href;
}

/** Sends the login token only to the page's own port. */
export function subProtocols(address: string): string[] {
  return address === own() ? ["mqtt", `bearer.${session.token ?? ""}`] : ["mqtt"];
}
