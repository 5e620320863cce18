// Live changes of entities over one WebSocket for all platform pages. Reconnects by itself and repeats the
// subscriptions.
import type { EntityId, Point } from "./model";
import { tenancy } from "./tenancy.svelte";

interface Frame {
  subscriptionId?: number;
  errorCode: number;
  errorMsg: string | null;
  data: Record<string, [number, unknown][]> | null;
}
interface Subscription {
  command: Record<string, unknown>;
  take: (frame: Frame) => void;
}

const AGAIN_MS = 2_000;
/** An unused connection stays open this long for the next page. */
const IDLE_MS = 3_000;

class Watcher {
  #socket: WebSocket | undefined;
  #all = new Map<number, Subscription>();
  #next = 1;
  /** The identity that opened the connection. */
  #identity = -1;
  #timer: ReturnType<typeof setTimeout> | undefined;

  /** Returns a function that ends the subscription. */
  subscribe(command: Record<string, unknown>, take: (frame: Frame) => void): () => void {
    const id = this.#next++;
    this.#all.set(id, { command, take });
    clearTimeout(this.#timer);
    if (this.#identity !== tenancy.identity) this.#drop();
    if (!this.#socket) void this.#connect();
    else if (this.#socket.readyState === WebSocket.OPEN) this.#say({ cmds: [{ ...command, cmdId: id }] });
    return () => this.#unsubscribe(id);
  }

  #unsubscribe(id: number): void {
    const ended = this.#all.get(id);
    this.#all.delete(id);
    if (ended && this.#socket?.readyState === WebSocket.OPEN)
      this.#say({ cmds: [{ ...ended.command, cmdId: id, unsubscribe: true }] });
    if (this.#all.size === 0) this.#timer = setTimeout(() => this.#socket?.close(), IDLE_MS);
  }

  #drop(): void {
    if (!this.#socket) return;
    this.#socket.onclose = this.#socket.onmessage = this.#socket.onopen = null;
    this.#socket.close();
    this.#socket = undefined;
  }

  async #connect(): Promise<void> {
    this.#identity = tenancy.identity;
    const address = new URL("/api/ws", location.href);
    address.protocol = address.protocol === "https:" ? "wss:" : "ws:";
    const socket = new WebSocket(address);
    this.#socket = socket;
    socket.onclose = () => {
      this.#socket = undefined;
      if (this.#all.size > 0)
        this.#timer = setTimeout(() => {
          if (!this.#socket) void this.#connect();
        }, AGAIN_MS);
    };
    socket.onmessage = (event) => {
      const frame = JSON.parse(String(event.data)) as Frame;
      if (frame.subscriptionId !== undefined) this.#all.get(frame.subscriptionId)?.take(frame);
    };
    const token = await tenancy.token().catch(() => "");
    if (this.#socket !== socket) return;
    const begin = () =>
      this.#say({
        authCmd: { cmdId: 0, token },
        cmds: [...this.#all].map(([cmdId, { command }]) => ({ ...command, cmdId })),
      });
    if (socket.readyState === WebSocket.OPEN) begin();
    else socket.onopen = begin;
  }

  #say(message: unknown): void {
    this.#socket?.send(JSON.stringify(message));
  }
}

const watcher = new Watcher();

function taken(before: Map<string, Point>, frame: Frame): Map<string, Point> {
  const next = new Map(before);
  for (const [key, all] of Object.entries(frame.data ?? {})) {
    const newest = all[0];
    if (newest && newest[0] >= (next.get(key)?.ts ?? 0)) next.set(key, { ts: newest[0], value: newest[1] });
  }
  return next;
}

/** The latest value of each key, live. Call it while a component is created. */
export function latest(entity: () => EntityId | undefined): {
  readonly values: Map<string, Point>;
  readonly error: string;
  readonly isThere: boolean;
} {
  let values = $state.raw(new Map<string, Point>());
  let error = $state("");
  let isThere = $state(false);
  $effect(() => {
    const one = entity();
    values = new Map();
    isThere = false;
    if (!one) return;
    return watcher.subscribe(
      { type: "TIMESERIES", entityType: one.entityType, entityId: one.id, scope: "LATEST_TELEMETRY" },
      (frame) => {
        isThere = true;
        error = frame.errorCode ? (frame.errorMsg ?? "The server does not offer live values for this entity.") : "";
        values = taken(values, frame);
      },
    );
  });
  return {
    get values() {
      return values;
    },
    get error() {
      return error;
    },
    get isThere() {
      return isThere;
    },
  };
}

/** Values of an entity: its telemetry, or its attributes of all scopes. `keys` limits them. */
export interface Wanted {
  entity: EntityId;
  isAttribute: boolean;
  keys?: string[];
}

const placeOf = ({ entity, isAttribute }: Wanted): string =>
  `${isAttribute ? "ATTRIBUTES" : "TIMESERIES"} ${entity.entityType} ${entity.id}`;

/** Groups subscriptions. Each has a key in a stable order. */
function commandsOf(all: Wanted[]): [place: string, command: Record<string, unknown>][] {
  const places = [...new Set(all.map(placeOf))].sort();
  return places.map((place) => {
    const [type, entityType, entityId] = place.split(" ");
    const keys = all.filter((one) => placeOf(one) === place).map((one) => one.keys);
    const named = keys.includes(undefined) ? [] : [...new Set(keys.flatMap((some) => some ?? []))].sort();
    // The command separates keys by commas, so keys that contain one need a subscription to all keys.
    const isListed = named.length > 0 && !named.some((key) => key.includes(","));
    return [
      place,
      {
        type,
        entityType,
        entityId,
        ...(type === "TIMESERIES" ? { scope: "LATEST_TELEMETRY" } : {}),
        ...(isListed ? { keys: named.join(",") } : {}),
      },
    ];
  });
}

/** The same for several entities. Subscribes again only if the set changes. */
export function latestOf(wanted: () => Wanted[]): (one: Wanted) => Map<string, Point> {
  let values = $state.raw(new Map<string, Map<string, Point>>());
  const asked = $derived(JSON.stringify(commandsOf(wanted())));
  $effect(() => {
    values = new Map();
    const ends = (JSON.parse(asked) as ReturnType<typeof commandsOf>).map(([place, command]) =>
      watcher.subscribe(command, (frame) => {
        values = new Map(values).set(place, taken(values.get(place) ?? new Map(), frame));
      }),
    );
    return () => {
      for (const end of ends) end();
    };
  });
  return (one) => values.get(placeOf(one)) ?? new Map();
}
