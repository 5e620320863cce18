// One message as it is published, out of a trace: for whoever wants to try something on a real one.
import type { MessageFields } from "../mqtt/options";
import { noFields } from "../mqtt/options";
import { lookOn } from "./live.svelte";

export interface Message { topic: string; clientId: string; payload: string; qos: number; retain: boolean; fields: MessageFields; /** What of it is not there. */ lack: string }

interface Traced { type: string; packet?: string; direction?: string; client_id: string; fields: { topic: string; payload: string; payload_encoding: string; payload_bytes: number; qos: number; retain: boolean; properties?: Property[] } }
interface Property { name: string; value: unknown }

const PAYLOAD_BYTES_MAX = 4096;

/** The next one that a client publishes to a topic of the filters; gives what ends the waiting. */
export function nextMessage(filters: string[], take: (message: Message) => void, ended: (why: string) => void): () => void {
  const stops = filters.map((filter) => lookOn(`/api/v1/trace?${new URLSearchParams({ topic: filter, per_second: "1", payload_bytes: String(PAYLOAD_BYTES_MAX) })}`, {
    begun: () => undefined,
    take: (frame) => {
      const packet = frame as Traced;
      if (packet.type !== "packet" || packet.packet !== "PUBLISH" || packet.direction !== "received") return;
      stop();
      take(messageOf(packet));
    },
    ended: (why) => { stop(); ended(why); },
  }));
  const stop = () => { for (const one of stops) one(); };
  return stop;
}

function messageOf({ client_id, fields }: Traced): Message {
  const all = fields.properties ?? [];
  const text = (name: string) => String(all.find((one) => one.name === name)?.value ?? "");
  const expiry = text("message_expiry_interval");
  const isCut = fields.payload_bytes > PAYLOAD_BYTES_MAX;
  return {
    topic: fields.topic, clientId: client_id, payload: fields.payload, qos: fields.qos, retain: fields.retain,
    fields: {
      ...noFields(), isText: text("payload_format_indicator") === "1",
      contentType: text("content_type"), responseTopic: text("response_topic"), expiryS: expiry ? Number(expiry) : null,
      userProperties: all.filter((one) => one.name === "user_property").map((one) => (one.value as [string, string]).join(" = ")).join("\n"),
    },
    lack: isCut ? "Its payload is longer than what can be taken: this is the beginning." : fields.payload_encoding === "base64" ? "Its payload is no text: it stands here as Base64." : "",
  };
}
