// Where the node's WebSocket listeners are, as seen from this page.
import type { ListenerView } from "../api/generated";

const PATH = "/mqtt";

/** Those that the browser lets a page of this scheme reach. */
export function addresses(listeners: ListenerView[]): string[] {
  const isSecure = location.protocol === "https:";
  return listeners
    .filter((listener) => listener.transport === "wss" || (listener.transport === "ws" && !isSecure))
    .map((listener) => `${listener.transport}://${location.hostname}:${listener.address.slice(listener.address.lastIndexOf(":") + 1)}${PATH}`);
}
