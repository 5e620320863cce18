// What the server's reasons mean, and what helps: why a message was not delivered, and why a connection ended.
import { words } from "./format";

export interface Reason {
  title: string;
  /** What has happened, and what helps. */
  about: string;
  /** Where to look, if there is such a page. */
  href?: string;
  link?: string;
}

type Told = Omit<Reason, "title">;

const option = (key: string, text = key): Pick<Reason, "href" | "link"> => ({ href: `#/configuration?text=${encodeURIComponent(key)}`, link: text });
const QUEUES = { href: "#/clients?sort=queued&order=desc", link: "Clients with most in their queues" };

const DROPS: Record<string, Told> = {
  offline_qos0: { about: "QoS 0 for a client that was away. QoS 1 is kept for it, and QoS 0 too with mqtt.queue_qos0.", ...option("mqtt.queue_qos0") },
  slow_consumer: { about: "QoS 0 for a client that reads more slowly than messages come; its buffer, limits.output_buffer_bytes, was full.", ...option("limits.output_buffer_bytes") },
  queue_full_by_count: { about: "As many messages waited for a client as may, mqtt.max_queued_messages. It is away, or does not acknowledge fast enough.", ...QUEUES },
  queue_full_by_bytes: { about: "As many bytes waited for a client as may, mqtt.max_queued_bytes. It is away, or does not acknowledge fast enough.", ...QUEUES },
  expired: { about: "Its Message Expiry Interval was over before the client could take it." },
  too_large_for_client: { about: "Larger than the Maximum Packet Size that the client takes." },
  not_authorized_to_receive: { about: "An access rule forbids the subscriber to read this topic.", href: "#/access", link: "Access rules" },
  not_authorized_to_publish: { about: "An access rule forbids the publisher to write to this topic.", href: "#/access", link: "Access rules" },
  session_ended: { about: "The session ended, or was ended, while messages waited in its queue." },
  retained_full: { about: "Not kept as a retained message: there are as many as may be, or it is too large. Subscribers have got it.", ...option("retained.", "retained.…") },
  delayed_full: { about: "As many delayed messages waited as may, mqtt.max_delayed_messages.", ...option("mqtt.max_delayed_messages") },
  no_shared_member: { about: "No member of a shared group could take it.", href: "#/subscriptions", link: "Shared groups" },
  no_subscriber: { about: "Nobody has subscribed to its topic. Nothing is wrong, unless somebody should have.", href: "#/subscriptions", link: "Subscriptions" },
  journal_full: { about: "It had to be kept, and the journal is full or has failed. The publisher was told.", ...option("durability.max_bytes") },
  damaged: { about: "It was kept, and the journal could not give it back: the disk or its files are damaged.", href: "#/logs?level=warn", link: "Logs" },
  buffer_full: { about: "A rule or the device platform had to keep it, and the buffer was full. The publisher was told.", href: "#/actions", link: "Actions" },
  over_limit: { about: "A device said more than its tenant may. The publisher was told.", href: "#/usage", link: "Usage" },
  not_understood: { about: "What a device said has not the form that it has to have: no JSON, or not as its profile wants it.", href: "#/devices", link: "Devices" },
};

const ENDS: Record<string, string> = {
  by_client: "It said DISCONNECT: nothing is wrong.",
  by_client_with_will: "It said DISCONNECT and asked for its will to be published.",
  connection_lost: "The network connection closed without a DISCONNECT: the client crashed, was switched off, or lost its network.",
  keep_alive_timeout: "It said nothing for longer than its keep alive allows: it hangs, or its network is gone.",
  taken_over: "Another connection came with the same client id. If this goes on, two clients have one id.",
  protocol_error: "It said something that MQTT forbids; its trace shows what.",
  malformed_packet: "It sent bytes that are no MQTT packet; its trace shows what.",
  packet_too_large: "It sent a packet larger than mqtt.max_packet_size.",
  receive_maximum_exceeded: "It had more messages unacknowledged at once than mqtt.receive_maximum.",
  topic_alias_invalid: "It used a topic alias that it had not set, or that is too large.",
  topic_name_invalid: "It published to a topic that is none.",
  not_authorized: "It did what it may not do.",
  quota_exceeded: "It was over a limit.",
  re_authentication_failed: "It proved who it is once more, and failed.",
  kicked: "It was disconnected from here: by an administrator, because it is banned, or because its user or device was changed or removed.",
  server_shutting_down: "This node was stopped.",
  transport_error: "TLS or WebSocket below MQTT broke.",
  journal_failed: "It wanted something kept, and the journal has failed.",
};

/** Why a message was not delivered. */
export const dropOf = (name: string): Reason => ({ title: words(name), ...(DROPS[name] ?? { about: "" }) });

/** Why a connection ended; empty for a reason that is not known here. */
export const endOf = (name: string): string => ENDS[name] ?? "";
