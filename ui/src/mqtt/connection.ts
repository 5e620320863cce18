// An MQTT 5 client over a WebSocket: connects, keeps alive, subscribes, publishes with any QoS, and acknowledges.
import { own, subProtocols } from "../lib/address";
import { bytes as inBytes } from "../lib/format";
import * as codec from "./codec";
import type { Connect, Packet, Properties, Publish, QoS, SubscribeOptions } from "./codec";
import { reason } from "./reasons";

export interface Handlers {
  message: (message: Publish) => void;
  /** Before what the payloads of messages lie in goes away, and the page draws. */
  settled?: () => void;
  /** Why, in words; empty when it was asked for. Where more came than the page could take, it may be tried again. */
  closed: (why: string, wasTooMuch: boolean) => void;
}

export interface NewMessage { topic: string; payload: Uint8Array; qos: QoS; retain: boolean; properties: Properties }

const ANSWER_MS = 10_000;
/** What comes is gathered for so long, a frame of the screen: what is done once for many messages is done less often. */
const GATHER_MS = 16;
/** What has come is worked on for so long at a time; in between the page draws and listens to its user. */
const SLICE_MS = 25;
/** So many packets between two looks at the clock, which costs as much as a packet. */
const UNTIMED_PACKETS = 64;
/** A page that is so far behind does not catch up. */
const WAITING_BYTES_MAX = 64 * 1024 * 1024;

interface Waiting { resolve: (packet: Packet) => void; reject: (error: Error) => void; timer: ReturnType<typeof setTimeout> }

export class Connection {
  #socket: WebSocket;
  #decoder = new codec.Decoder();
  #waiting = new Map<string, Waiting>();
  #packetId = 0;
  /** QoS 2 that came and is not released. */
  #received = new Set<number>();
  /** Topics that the server gave an alias, if the client allowed it. */
  #aliases = new Map<number, string>();
  #ping: ReturnType<typeof setInterval> | undefined;
  #pong: ReturnType<typeof setTimeout> | undefined;
  #why = "";
  /** What has come and is not yet looked at. */
  #heap: Uint8Array[] = [];
  #heapBytes = 0;
  #isWorking = false;
  #hasEnded = false;
  /** Its owner was told, and hears nothing more. */
  #isOver = false;

  private constructor(private readonly address: string, readonly handlers: Handlers) {
    this.#socket = new WebSocket(address, subProtocols(address));
    this.#socket.binaryType = "arraybuffer";
    this.#socket.onmessage = (event) => this.#heard(new Uint8Array(event.data as ArrayBuffer));
    this.#socket.onclose = () => {
      this.#hasEnded = true;
      if (!this.#isWorking) this.#ended();
    };
  }

  static async open(address: string, options: Connect, handlers: Handlers): Promise<{ connection: Connection; sessionPresent: boolean; properties: Properties }> {
    const own = new Connection(address, handlers);
    try {
      await own.#opened();
      const answer = own.#answer("connack");
      own.#send(codec.connect(options));
      const connack = await answer;
      if (connack.type === "auth") throw new Error("The server wants more for this authentication method (AUTH) than this page can say.");
      if (connack.type !== "connack") throw new Error("the server answered with something else than CONNACK");
      if (connack.reasonCode >= 0x80) throw new Error(said(connack));
      own.#keepAlive(connack.properties.serverKeepAlive ?? options.keepAliveS);
      return { connection: own, sessionPresent: connack.sessionPresent, properties: connack.properties };
    } catch (error) {
      own.#socket.onclose = null;
      own.#socket.close();
      throw error;
    }
  }

  /** The QoS that was granted. */
  async subscribe(options: SubscribeOptions): Promise<number> {
    const id = this.#nextId();
    const answer = this.#answer(`suback ${id}`);
    this.#send(codec.subscribe(id, options));
    return this.#granted(await answer);
  }

  async unsubscribe(filter: string): Promise<void> {
    const id = this.#nextId();
    const answer = this.#answer(`unsuback ${id}`);
    this.#send(codec.unsubscribe(id, filter));
    this.#granted(await answer);
  }

  /** Returns when the server has taken it over. */
  async publish(message: NewMessage): Promise<void> {
    const packetId = message.qos > 0 ? this.#nextId() : 0;
    const bytes = codec.publish({ ...message, dup: false, packetId });
    if (message.qos === 0) return this.#send(bytes);
    const first = this.#answer(`${message.qos === 1 ? "puback" : "pubrec"} ${packetId}`);
    this.#send(bytes);
    const taken = await first;
    if ("reasonCode" in taken && taken.reasonCode >= 0x80) throw new Error(said(taken));
    if (message.qos === 2) {
      const last = this.#answer(`pubcomp ${packetId}`);
      this.#send(codec.acknowledge("pubrel", packetId));
      await last;
    }
  }

  /** With a reason other than 0 if the server is to publish the will, or to be told of a fault. */
  close(reasonCode = 0, properties: Properties = {}): void {
    this.#tell(codec.disconnect(reasonCode, properties));
    this.#heap = [];
    this.#why = "";
    this.#socket.onmessage = null;
    this.#socket.onclose = null;
    this.#socket.close();
    this.#ended();
  }

  #granted(packet: Packet): number {
    const code = packet.type === "suback" || packet.type === "unsuback" ? (packet.reasonCodes[0] ?? 0x80) : 0x80;
    if (code >= 0x80) throw new Error(reason(code));
    return code;
  }

  #opened(): Promise<void> {
    return new Promise((resolve, reject) => {
      this.#socket.onopen = () => resolve();
      this.#socket.onerror = () => reject(new Error(this.address === own()
        ? "The node does not answer here, or takes no more connections; a proxy in between has to let WebSockets through."
        : "The listener does not answer, or does not let pages of this name in: its allowed_origins say which it does."));
    });
  }

  #answer(name: string): Promise<Packet> {
    return new Promise((resolve, reject) => {
      const timer = setTimeout(() => { this.#waiting.delete(name); reject(new Error(`No answer within ${ANSWER_MS / 1000} s.`)); }, ANSWER_MS);
      this.#waiting.set(name, { resolve, reject, timer });
    });
  }

  #send(bytes: Uint8Array): void {
    if (this.#socket.readyState !== WebSocket.OPEN) throw new Error("There is no connection.");
    this.#socket.send(bytes as Uint8Array<ArrayBuffer>);
  }

  /** What nobody waits for. What came before the end is worked on after it, and then there is nobody to acknowledge it to. */
  #tell(bytes: Uint8Array): void {
    if (this.#socket.readyState === WebSocket.OPEN) this.#send(bytes);
  }

  #heard(bytes: Uint8Array): void {
    clearTimeout(this.#pong);
    this.#pong = undefined;
    this.#heap.push(bytes);
    this.#heapBytes += bytes.length;
    if (this.#heapBytes > WAITING_BYTES_MAX) this.#giveUp(`More came than this page can take: it was ${inBytes(this.#heapBytes)} behind.`, true);
    else if (!this.#isWorking) void this.#work();
  }

  /** In order, a slice at a time. */
  async #work(): Promise<void> {
    this.#isWorking = true;
    await pause(GATHER_MS);
    let end = performance.now() + SLICE_MS;
    let packets = 0;
    try {
      for (let bytes = this.#heap.shift(); bytes; bytes = this.#heap.shift()) {
        this.#heapBytes -= bytes.length;
        for (const packet of this.#decoder.push(bytes)) {
          if (this.#isOver) return;
          this.#take(packet);
          packets += 1;
          if (packets % UNTIMED_PACKETS === 0 && performance.now() > end) {
            this.handlers.settled?.();
            await pause();
            end = performance.now() + SLICE_MS;
          }
        }
      }
    } catch (error) {
      this.#why ||= error instanceof Error ? `The server sent something wrong: ${error.message}.` : String(error);
      this.#heap = [];
      this.#socket.close();
    }
    this.handlers.settled?.();
    this.#isWorking = false;
    if (this.#hasEnded) this.#ended();
  }

  #take(packet: Packet): void {
    switch (packet.type) {
      case "publish": return this.#delivered(packet);
      case "pubrel":
        this.#received.delete(packet.packetId);
        return this.#tell(codec.acknowledge("pubcomp", packet.packetId));
      case "disconnect":
        this.#why = said(packet);
        return;
      case "pingresp": return;
      case "connack": case "auth": return this.#settle("connack", packet);
      default: this.#settle(`${packet.type} ${packet.packetId}`, packet);
    }
  }

  #delivered(packet: Publish): void {
    const message = this.#named(packet);
    if (message.qos === 1) this.#tell(codec.acknowledge("puback", message.packetId));
    if (message.qos === 2) {
      this.#tell(codec.acknowledge("pubrec", message.packetId));
      if (this.#received.has(message.packetId)) return;
      this.#received.add(message.packetId);
    }
    this.handlers.message(message);
  }

  /** With the topic that an alias stands for. [MQTT-3.3.2-7] */
  #named(message: Publish): Publish {
    const alias = message.properties.topicAlias;
    if (alias === undefined) return message;
    if (message.topic) this.#aliases.set(alias, message.topic);
    const topic = this.#aliases.get(alias);
    if (topic === undefined) throw new Error(`the topic alias ${alias} stands for nothing`);
    return { ...message, topic };
  }

  #settle(name: string, packet: Packet): void {
    const waiting = this.#waiting.get(name);
    if (!waiting) return;
    clearTimeout(waiting.timer);
    this.#waiting.delete(name);
    waiting.resolve(packet);
  }

  #keepAlive(seconds: number): void {
    if (seconds === 0) return;
    this.#ping = setInterval(() => {
      this.#tell(codec.ping());
      this.#pong ??= setTimeout(() => this.#broken(), ANSWER_MS);
    }, seconds * 750);
  }

  /** What comes at all is an answer: PINGRESP may wait behind messages. */
  #broken(): void {
    this.#giveUp(`The connection is broken: the server has not answered PINGREQ for ${ANSWER_MS / 1000} s.`);
  }

  /** At once: a socket to nobody, or one that brings more and more, takes long to close. */
  #giveUp(why: string, wasTooMuch = false): void {
    this.#why = why;
    this.#heap = [];
    this.#socket.onmessage = null;
    this.#socket.onclose = null;
    this.#socket.close();
    this.#ended(wasTooMuch);
  }

  #ended(wasTooMuch = false): void {
    if (this.#isOver) return;
    this.#isOver = true;
    clearInterval(this.#ping);
    clearTimeout(this.#pong);
    for (const waiting of this.#waiting.values()) {
      clearTimeout(waiting.timer);
      waiting.reject(new Error(this.#why || "The connection was closed."));
    }
    this.#waiting.clear();
    this.handlers.closed(this.#why, wasTooMuch);
  }

  #nextId(): number {
    this.#packetId = (this.#packetId % 65535) + 1;
    return this.#packetId;
  }
}

/** Until the page has done what else there is to do. A page that is not seen draws nothing, and its timers are slowed down. */
function pause(ms = 0): Promise<void> {
  return new Promise((resolve) => {
    if (!document.hidden) return void setTimeout(resolve, ms);
    const { port1, port2 } = new MessageChannel();
    port1.onmessage = () => { port1.close(); resolve(); };
    port2.postMessage(0);
  });
}

function said(packet: { reasonCode: number; properties: Properties }): string {
  const more = packet.properties.reasonString;
  return `${reason(packet.reasonCode)}${more ? `: ${more}` : ""}`;
}
