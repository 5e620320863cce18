// The node's numbers once a second, over one WebSocket for the whole console. The server leaves out what a slow viewer does
// not take. Comes back by itself, also when the connection has broken without a word: one that says nothing for a while is given up.
import { Refused, request } from "../api/request";
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

/** Looks on at something until it ends, and says why; gives what ends it, of which nothing is said. */
export function lookOn(path: string, said: { begun: () => void; take: (frame: unknown) => void; ended: (why: string) => void }): () => void {
  const socket = openSocket(path);
  let hasBegun = false;
  let why = "";
  socket.onopen = () => { hasBegun = true; said.begun(); };
  socket.onmessage = (event) => {
    const frame = JSON.parse(String(event.data)) as { type?: string; reason?: string };
    if (frame.type === "end") why = `It has ended: ${frame.reason ?? "the server gave no reason"}.`;
    else said.take(frame);
  };
  socket.onclose = async (event) => {
    why ||= hasBegun ? closed(event) : await refusal(path);
    // Stopped meanwhile.
    if (socket.onclose) said.ended(why);
  };
  return () => { socket.onclose = null; socket.close(); };
}

const closed = ({ code, reason }: CloseEvent): string => (code === CODE.policy ? "It has ended: your login holds no more." : code === CODE.lost ? "The connection to the server has broken." : `The server has closed it${reason ? `: ${reason}` : "."}`);
const CODE = { policy: 1008, lost: 1006 };

/** A page is not told why a WebSocket was refused. The same address, asked for without one, says it, unless there is nothing else against it. */
async function refusal(path: string): Promise<string> {
  const because = await request("GET", path).then(() => "", (error: unknown) => (error instanceof Refused && error.status !== UPGRADE_REQUIRED ? error.message : ""));
  return `It did not begin: ${because || "too many watch already, or something on the way lets no WebSockets through"}.`;
}
const UPGRADE_REQUIRED = 426;

export const live = new Live();
