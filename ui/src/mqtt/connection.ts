// An MQTT 5 client over a WebSocket: connects, keeps alive, subscribes, publishes with any QoS, and acknowledges.
import { own, subProtocols } from "./address";
import { bytes as inBytes } from "../lib/format";
import * as codec from "./codec";
import type { Connect, Packet, Properties, Publish, QoS, SubscribeOptions } from "./codec";
import { reason } from "./reasons";

export interface Handlers {
  message: (message: Publish) => void;
  /** Called before the receive buffers are released and the page is drawn. */
  settled?: () => void;
  /** The reason in words, empty for a requested close. `wasOverloaded`: the page was too slow and may connect again. */
  closed: (why: string, wasOverloaded: boolean) => void;
}

export interface NewMessage {
  topic: string;
  payload: Uint8Array;
  qos: QoS;
  retain: boolean;
  properties: Properties;
}

const ANSWER_MS = 10_000;
/** Received frames are collected for this time, one screen refresh. Larger batches cost less per message. */
const GATHER_MS = 16;
/** Longest time of one processing step. Between steps the page draws and handles input. */
const SLICE_MS = 25;
/** Packets between two readings of the clock, which costs as much as a packet. */
const UNTIMED_PACKETS = 64;
/** A page that is this far behind does not catch up. */
const PENDING_BYTES_MAX = 64 * 1024 * 1024;

interface Waiting {
  resolve: (packet: Packet) => void;
  reject: (error: Error) => void;
  timer: ReturnType<typeof setTimeout>;
}

export class Connection {
  #socket: WebSocket;
  #decoder = new codec.Decoder();
  #waiting = new Map<string, Waiting>();
  #packetId = 0;
  /** Packet ids of received QoS 2 messages without PUBREL yet. */
  #receivedQos2 = new Set<number>();
  /** Topic aliases set by the server, if the client allowed them. */
  #aliases = new Map<number, string>();
  #ping: ReturnType<typeof setInterval> | undefined;
  #pong: ReturnType<typeof setTimeout> | undefined;
  #why = "";
  /** Received frames that are not processed yet. */
  #pendingFrames: Uint8Array[] = [];
  #pendingBytes = 0;
  #isProcessing = false;
  #hasEnded = false;
  /** The owner has been notified of the end and receives nothing more. */
  #isOver = false;

  private constructor(
    private readonly address: string,
    readonly handlers: Handlers,
  ) {
    this.#socket = new WebSocket(address, subProtocols(address));
    this.#socket.binaryType = "arraybuffer";
    this.#socket.onmessage = (event) => this.#receive(new Uint8Array(event.data as ArrayBuffer));
    this.#socket.onclose = () => {
      this.#hasEnded = true;
      if (!this.#isProcessing) this.#ended();
    };
  }

  static async open(
    address: string,
    options: Connect,
    handlers: Handlers,
  ): Promise<{ connection: Connection; sessionPresent: boolean; properties: Properties }> {
    const own = new Connection(address, handlers);
    try {
      await own.#whenOpen();
      const answer = own.#answer("connack");
      own.#send(codec.connect(options));
      const connack = await answer;
      if (connack.type === "auth")
        throw new Error("The server continued the authentication with AUTH, which this page does not support.");
      if (connack.type !== "connack") throw new Error("The server did not answer with CONNACK.");
      if (connack.reasonCode >= 0x80) throw new Error(reasonText(connack));
      own.#keepAlive(connack.properties.serverKeepAlive ?? options.keepAliveS);
      return { connection: own, sessionPresent: connack.sessionPresent, properties: connack.properties };
    } catch (error) {
      own.#socket.onclose = null;
      own.#socket.close();
      throw error;
    }
  }

  /** Returns the granted QoS. */
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

  /** Returns when the server has acknowledged the message. */
  async publish(message: NewMessage): Promise<void> {
    const packetId = message.qos > 0 ? this.#nextId() : 0;
    const bytes = codec.publish({ ...message, dup: false, packetId });
    if (message.qos === 0) return this.#send(bytes);
    const first = this.#answer(`${message.qos === 1 ? "puback" : "pubrec"} ${packetId}`);
    this.#send(bytes);
    const taken = await first;
    if ("reasonCode" in taken && taken.reasonCode >= 0x80) throw new Error(reasonText(taken));
    if (message.qos === 2) {
      const last = this.#answer(`pubcomp ${packetId}`);
      this.#send(codec.acknowledge("pubrel", packetId));
      await last;
    }
  }

  /** Closes with a reason code. A code other than 0 makes the server publish the will or report an error. */
  close(reasonCode = 0, properties: Properties = {}): void {
    this.#sendIfOpen(codec.disconnect(reasonCode, properties));
    this.#pendingFrames = [];
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

  #whenOpen(): Promise<void> {
    return new Promise((resolve, reject) => {
      this.#socket.onopen = () => resolve();
      this.#socket.onerror = () =>
        reject(
          new Error(
            this.address === own()
              ? "The node does not answer or has reached its connection limit. A proxy in between must " +
                  "allow WebSockets."
              : "The listener does not answer, or its allowed_origins do not include the address of this page.",
          ),
        );
    });
  }

  #answer(name: string): Promise<Packet> {
    return new Promise((resolve, reject) => {
      const timer = setTimeout(() => {
        this.#waiting.delete(name);
        reject(new Error(`No answer within ${ANSWER_MS / 1000} s.`));
      }, ANSWER_MS);
      this.#waiting.set(name, { resolve, reject, timer });
    });
  }

  #send(bytes: Uint8Array): void {
    if (this.#socket.readyState !== WebSocket.OPEN) throw new Error("The client is not connected.");
    this.#socket.send(bytes as Uint8Array<ArrayBuffer>);
  }

  /** Sends a packet without a reply. Does nothing on a closed socket, where late acknowledgements would fail. */
  #sendIfOpen(bytes: Uint8Array): void {
    if (this.#socket.readyState === WebSocket.OPEN) this.#send(bytes);
  }

  #receive(bytes: Uint8Array): void {
    clearTimeout(this.#pong);
    this.#pong = undefined;
    this.#pendingFrames.push(bytes);
    this.#pendingBytes += bytes.length;
    if (this.#pendingBytes > PENDING_BYTES_MAX)
      this.#abort(
        `Messages arrived faster than this page can process them (${inBytes(this.#pendingBytes)} behind).`,
        true,
      );
    else if (!this.#isProcessing) void this.#process();
  }

  /** Processes frames in order, one slice at a time. */
  async #process(): Promise<void> {
    this.#isProcessing = true;
    await pause(GATHER_MS);
    let end = performance.now() + SLICE_MS;
    let packets = 0;
    try {
      for (let bytes = this.#pendingFrames.shift(); bytes; bytes = this.#pendingFrames.shift()) {
        this.#pendingBytes -= bytes.length;
        for (const packet of this.#decoder.push(bytes)) {
          if (this.#isOver) return;
          this.#handle(packet);
          packets += 1;
          if (packets % UNTIMED_PACKETS === 0 && performance.now() > end) {
            this.handlers.settled?.();
            await pause();
            end = performance.now() + SLICE_MS;
          }
        }
      }
    } catch (error) {
      this.#why ||= error instanceof Error ? `The server sent an invalid packet: ${error.message}.` : String(error);
      this.#pendingFrames = [];
      this.#socket.close();
    }
    this.handlers.settled?.();
    this.#isProcessing = false;
    if (this.#hasEnded) this.#ended();
  }

  #handle(packet: Packet): void {
    switch (packet.type) {
      case "publish":
        return this.#handlePublish(packet);
      case "pubrel":
        this.#receivedQos2.delete(packet.packetId);
        return this.#sendIfOpen(codec.acknowledge("pubcomp", packet.packetId));
      case "disconnect":
        this.#why = reasonText(packet);
        return;
      case "pingresp":
        return;
      case "connack":
      case "auth":
        return this.#settle("connack", packet);
      default:
        this.#settle(`${packet.type} ${packet.packetId}`, packet);
    }
  }

  #handlePublish(packet: Publish): void {
    const message = this.#withTopic(packet);
    if (message.qos === 1) this.#sendIfOpen(codec.acknowledge("puback", message.packetId));
    if (message.qos === 2) {
      this.#sendIfOpen(codec.acknowledge("pubrec", message.packetId));
      if (this.#receivedQos2.has(message.packetId)) return;
      this.#receivedQos2.add(message.packetId);
    }
    this.handlers.message(message);
  }

  /** Replaces a topic alias with its topic. [MQTT-3.3.2-7] */
  #withTopic(message: Publish): Publish {
    const alias = message.properties.topicAlias;
    if (alias === undefined) return message;
    if (message.topic) this.#aliases.set(alias, message.topic);
    const topic = this.#aliases.get(alias);
    if (topic === undefined) throw new Error(`undefined topic alias ${alias}`);
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
      this.#sendIfOpen(codec.ping());
      this.#pong ??= setTimeout(() => this.#pingTimedOut(), ANSWER_MS);
    }, seconds * 750);
  }

  /** Any received packet counts as an answer, because PINGRESP may wait behind messages. */
  #pingTimedOut(): void {
    this.#abort(`The connection is broken: the server has not answered PINGREQ for ${ANSWER_MS / 1000} s.`);
  }

  /** Ends at once, without waiting for the close handshake of a dead or overloaded socket. */
  #abort(why: string, wasOverloaded = false): void {
    this.#why = why;
    this.#pendingFrames = [];
    this.#socket.onmessage = null;
    this.#socket.onclose = null;
    this.#socket.close();
    this.#ended(wasOverloaded);
  }

  #ended(wasOverloaded = false): void {
    if (this.#isOver) return;
    this.#isOver = true;
    clearInterval(this.#ping);
    clearTimeout(this.#pong);
    for (const waiting of this.#waiting.values()) {
      clearTimeout(waiting.timer);
      waiting.reject(new Error(this.#why || "The connection was closed."));
    }
    this.#waiting.clear();
    this.handlers.closed(this.#why, wasOverloaded);
  }

  #nextId(): number {
    this.#packetId = (this.#packetId % 65535) + 1;
    return this.#packetId;
  }
}

/** Yields to the browser. Hidden pages use a message channel, because browsers slow down their timers. */
function pause(ms = 0): Promise<void> {
  return new Promise((resolve) => {
    if (!document.hidden) return void setTimeout(resolve, ms);
    const { port1, port2 } = new MessageChannel();
    port1.onmessage = () => {
      port1.close();
      resolve();
    };
    port2.postMessage(0);
  });
}

function reasonText(packet: { reasonCode: number; properties: Properties }): string {
  const more = packet.properties.reasonString;
  return `${reason(packet.reasonCode)}${more ? `: ${more}` : ""}`;
}
