// The node's numbers once a second, over one WebSocket for the whole console. The server leaves out what a slow viewer does
// not take. Comes back by itself, also when the connection has broken without a word: one that says nothing for a while is given up.
import { session } from "./session.svelte";

export interface Sample { at_unix_ms: number; series: Record<string, number | null> }

const AGAIN_MS = 2_000;
const SILENT_MS = 6_000;
const LOOK_MS = 1_000;

class Live {
  sample = $state.raw<Sample | undefined>();
  isConnected = $state(false);
  #socket: WebSocket | undefined;
  #heardAt = 0;
  #again: ReturnType<typeof setTimeout> | undefined;

  /** While a login holds; gives what ends it. */
  start(): () => void {
    this.#connect();
    const look = setInterval(() => { if (this.#socket && performance.now() - this.#heardAt > SILENT_MS) this.#giveUp(); }, LOOK_MS);
    return () => {
      clearInterval(look);
      clearTimeout(this.#again);
      this.#drop();
      this.sample = undefined;
    };
  }

  #connect(): void {
    const socket = openSocket("/api/v1/live");
    this.#socket = socket;
    this.#heardAt = performance.now();
    socket.onmessage = (event) => {
      if (this.#socket !== socket) return;
      this.#heardAt = performance.now();
      this.isConnected = true;
      this.sample = JSON.parse(String(event.data)) as Sample;
    };
    socket.onclose = () => { if (this.#socket === socket) this.#giveUp(); };
  }

  #giveUp(): void {
    this.#drop();
    this.#again = setTimeout(() => this.#connect(), AGAIN_MS);
  }

  /** Its end may never come. */
  #drop(): void {
    const socket = this.#socket;
    this.#socket = undefined;
    this.isConnected = false;
    socket?.close();
  }
}

/** A WebSocket of the API, with the login in the one place that a page has for it. */
export function openSocket(path: string): WebSocket {
  const address = new URL(path, location.href);
  address.protocol = address.protocol === "https:" ? "wss:" : "ws:";
  return new WebSocket(address, ["tidewire", `bearer.${session.token ?? ""}`]);
}

export const live = new Live();
