// The node's live numbers, once a second over one WebSocket for the whole console. The server skips frames for slow
// viewers. Reconnects by itself, also after a connection that has been silent for too long.
import { RequestError, request } from "../api/request";
import { session } from "./session.svelte";

export interface Sample {
  at_unix_ms: number;
  series: Record<string, number | null>;
}

const AGAIN_MS = 2_000;
const SILENT_MS = 6_000;
const LOOK_MS = 1_000;

class Live {
  sample = $state.raw<Sample | undefined>();
  isConnected = $state(false);
  #socket: WebSocket | undefined;
  #heardAt = 0;
  #again: ReturnType<typeof setTimeout> | undefined;

  /** Runs while a login is valid. Returns a function that stops it. */
  start(): () => void {
    this.#connect();
    const look = setInterval(() => {
      if (this.#socket && performance.now() - this.#heardAt > SILENT_MS) this.#giveUp();
    }, LOOK_MS);
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
    socket.onclose = () => {
      if (this.#socket === socket) this.#giveUp();
    };
  }

  #giveUp(): void {
    this.#drop();
    this.#again = setTimeout(() => this.#connect(), AGAIN_MS);
  }

  /** Drops the socket without waiting for its close event, which may never come. */
  #drop(): void {
    const socket = this.#socket;
    this.#socket = undefined;
    this.isConnected = false;
    socket?.close();
  }
}

/** Opens a WebSocket of the API. The login goes into the sub-protocol, the only header that a page can set. */
export function openSocket(path: string): WebSocket {
  const address = new URL(path, location.href);
  address.protocol = address.protocol === "https:" ? "wss:" : "ws:";
  return new WebSocket(address, ["tidewire", `bearer.${session.token ?? ""}`]);
}

/** Follows a stream until it ends and reports why. Returns a function that stops it without a report. */
export function followStream(
  path: string,
  handlers: { begun: () => void; take: (frame: unknown) => void; ended: (why: string) => void },
): () => void {
  const socket = openSocket(path);
  let hasBegun = false;
  let why = "";
  socket.onopen = () => {
    hasBegun = true;
    handlers.begun();
  };
  socket.onmessage = (event) => {
    const frame = JSON.parse(String(event.data)) as { type?: string; reason?: string };
    if (frame.type === "end") why = `The stream ended: ${frame.reason ?? "the server gave no reason"}.`;
    else handlers.take(frame);
  };
  socket.onclose = async (event) => {
    why ||= hasBegun ? closed(event) : await refusal(path);
    // The viewer has stopped in between.
    if (socket.onclose) handlers.ended(why);
  };
  return () => {
    socket.onclose = null;
    socket.close();
  };
}

const closed = ({ code, reason }: CloseEvent): string =>
  code === CODE.policy
    ? "The stream ended: your login has expired."
    : code === CODE.lost
      ? "The connection to the server was lost."
      : `The server closed the stream${reason ? `: ${reason}` : "."}`;
const CODE = { policy: 1008, lost: 1006 };

/** Browsers hide why a WebSocket was refused. The same address without an upgrade returns the reason. */
async function refusal(path: string): Promise<string> {
  const because = await request("GET", path).then(
    () => "",
    (error: unknown) => (error instanceof RequestError && error.status !== UPGRADE_REQUIRED ? error.message : ""),
  );
  return `The stream did not start: ${because || "the limit of viewers is reached, or a proxy blocks WebSockets"}.`;
}
const UPGRADE_REQUIRED = 426;

export const live = new Live();
