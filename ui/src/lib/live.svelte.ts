// The node's numbers once a second, over one WebSocket for the whole console. The server leaves out what a slow viewer does
// not take. Comes back by itself.
import { session } from "./session.svelte";

export interface Sample { at_unix_ms: number; series: Record<string, number | null> }

const AGAIN_MS = 2_000;

class Live {
  sample = $state.raw<Sample | undefined>();
  isConnected = $state(false);
  #socket: WebSocket | undefined;
  #again: ReturnType<typeof setTimeout> | undefined;

  /** While a login holds; gives what ends it. */
  start(): () => void {
    this.#connect();
    return () => {
      clearTimeout(this.#again);
      const socket = this.#socket;
      this.#socket = undefined;
      socket?.close();
      this.isConnected = false;
      this.sample = undefined;
    };
  }

  #connect(): void {
    const socket = openSocket("/api/v1/live");
    this.#socket = socket;
    socket.onopen = () => { this.isConnected = true; };
    socket.onmessage = (event) => { this.sample = JSON.parse(String(event.data)) as Sample; };
    socket.onclose = () => {
      if (this.#socket !== socket) return;
      this.isConnected = false;
      this.#again = setTimeout(() => this.#connect(), AGAIN_MS);
    };
  }
}

/** A WebSocket of the API, with the login in the one place that a page has for it. */
export function openSocket(path: string): WebSocket {
  const address = new URL(path, location.href);
  address.protocol = address.protocol === "https:" ? "wss:" : "ws:";
  return new WebSocket(address, ["tidewire", `bearer.${session.token ?? ""}`]);
}

export const live = new Live();
