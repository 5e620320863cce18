// Captures one live message from a trace, as the input of a dry run.
import type { MessageFields } from "../mqtt/options";
import { noFields } from "../mqtt/options";
import { followStream } from "../lib/live.svelte";

export interface Message {
  topic: string;
  clientId: string;
  payload: string;
  qos: number;
  retain: boolean;
  fields: MessageFields;
  /** Which part of the message is missing. */ missing: string;
}

interface Traced {
  type: string;
  packet?: string;
  direction?: string;
  client_id: string;
  fields: {
    topic: string;
    payload: string;
    payload_encoding: string;
    payload_bytes: number;
    qos: number;
    retain: boolean;
    properties?: Property[];
  };
}
interface Property {
  name: string;
  value: unknown;
}

const PAYLOAD_BYTES_MAX = 4096;

/**
 * Waits for the next message that a client publishes to one of the filters. Returns a function that cancels the wait.
 */
export function nextMessage(
  filters: string[],
  take: (message: Message) => void,
  ended: (why: string) => void,
): () => void {
  const traceOf = (filter: string) => {
    const query = { topic: filter, per_second: "1", payload_bytes: String(PAYLOAD_BYTES_MAX) };
    return `/api/v1/trace?${new URLSearchParams(query)}`;
  };
  const stops = filters.map((filter) =>
    followStream(traceOf(filter), {
      begun: () => undefined,
      take: (frame) => {
        const packet = frame as Traced;
        if (packet.type !== "packet" || packet.packet !== "PUBLISH" || packet.direction !== "received") return;
        stop();
        take(messageOf(packet));
      },
      ended: (why) => {
        stop();
        ended(why);
      },
    }),
  );
  const stop = () => {
    for (const one of stops) one();
  };
  return stop;
}

function messageOf({ client_id, fields }: Traced): Message {
  const all = fields.properties ?? [];
  const text = (name: string) => String(all.find((one) => one.name === name)?.value ?? "");
  const expiry = text("message_expiry_interval");
  const isCut = fields.payload_bytes > PAYLOAD_BYTES_MAX;
  return {
    topic: fields.topic,
    clientId: client_id,
    payload: fields.payload,
    qos: fields.qos,
    retain: fields.retain,
    fields: {
      ...noFields(),
      isText: text("payload_format_indicator") === "1",
      contentType: text("content_type"),
      responseTopic: text("response_topic"),
      expiryS: expiry ? Number(expiry) : null,
      userProperties: all
        .filter((one) => one.name === "user_property")
        .map((one) => (one.value as [string, string]).join(" = "))
        .join("\n"),
    },
    missing: isCut
      ? "The trace contains only the beginning of the payload."
      : fields.payload_encoding === "base64"
        ? "The payload is binary and shown as Base64."
        : "",
  };
}
