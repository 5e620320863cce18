// Explains the server's reasons: why a message was not delivered, and why a connection ended.
import { words } from "./format";

export interface Reason {
  title: string;
  /** What happened, and what helps. */
  about: string;
  /** Address of a page that helps, if there is one. */
  href?: string;
  link?: string;
}

type Explanation = Omit<Reason, "title">;

const option = (key: string, text = key): Pick<Reason, "href" | "link"> => ({
  href: `#/configuration?text=${encodeURIComponent(key)}`,
  link: text,
});
const QUEUES = { href: "#/clients?sort=queued&order=desc", link: "Clients with the longest queues" };

const DROPS: Record<string, Explanation> = {
  offline_qos0: {
    about:
      "The client was offline and the message had QoS 0. To queue QoS 0 messages for offline clients, " +
      "set mqtt.queue_qos0.",
    ...option("mqtt.queue_qos0"),
  },
  slow_consumer: {
    about:
      "The message had QoS 0 and the client's send buffer was full (limits.output_buffer_bytes). The " +
      "client reads too slowly.",
    ...option("limits.output_buffer_bytes"),
  },
  queue_full_by_count: {
    about: "The client's queue reached mqtt.max_queued_messages. The client is offline or acknowledges too slowly.",
    ...QUEUES,
  },
  queue_full_by_bytes: {
    about: "The client's queue reached mqtt.max_queued_bytes. The client is offline or acknowledges too slowly.",
    ...QUEUES,
  },
  user_queue_full: {
    about:
      "The queues of all sessions of the user reached limits.max_queued_bytes_per_user. Its clients are offline or " +
      "acknowledge too slowly.",
    ...option("limits.max_queued_bytes_per_user"),
  },
  expired: { about: "The Message Expiry Interval passed before the client could receive the message." },
  too_large_for_client: { about: "The message exceeds the client's Maximum Packet Size." },
  not_authorized_to_receive: {
    about: "An access rule does not allow the subscriber to receive this topic.",
    href: "#/access",
    link: "Access rules",
  },
  not_authorized_to_publish: {
    about: "An access rule does not allow the client to publish to this topic.",
    href: "#/access",
    link: "Access rules",
  },
  session_ended: { about: "The session expired or was deleted with messages in its queue." },
  retained_full: {
    about:
      "Not stored as a retained message: the limit is reached, or the message is too large. Subscribers received it.",
    ...option("retained.", "retained.…"),
  },
  delayed_full: {
    about: "The number of delayed messages reached mqtt.max_delayed_messages.",
    ...option("mqtt.max_delayed_messages"),
  },
  over_share: {
    about:
      "The user or client has used its share of the retained messages, the delayed messages or the journal " +
      "(limits.user_share, limits.client_share). The publisher received an error.",
    ...option("_share", "limits.user_share, limits.client_share"),
  },
  no_shared_member: {
    about: "No member of the shared group could receive the message.",
    href: "#/subscriptions",
    link: "Shared groups",
  },
  no_subscriber: {
    about: "No subscription matches the topic. This is no error unless you expect a subscriber.",
    href: "#/subscriptions",
    link: "Subscriptions",
  },
  journal_full: {
    about: "The message had to be durable, but the journal is full or has failed. The publisher received an error.",
    ...option("durability.max_bytes"),
  },
  damaged: {
    about: "The journal could not read the message: the disk or a journal file is damaged.",
    href: "#/logs?level=warn",
    link: "Logs",
  },
  buffer_full: {
    about: "The buffer of an action or of the device platform was full. The publisher received an error.",
    href: "#/actions",
    link: "Actions",
  },
  over_limit: {
    about: "The tenant's rate limit or quota is exceeded. The publisher received an error.",
    href: "#/usage",
    link: "Usage",
  },
  not_understood: {
    about: "The payload of the device is not valid JSON, or does not match the device profile.",
    href: "#/devices",
    link: "Devices",
  },
};

const ENDS: Record<string, string> = {
  by_client: "The client sent DISCONNECT. This is normal.",
  by_client_with_will: "The client sent DISCONNECT with reason code 0x04, so its will was published.",
  connection_lost:
    "The network connection closed without DISCONNECT: the client crashed, was switched off, or lost its network.",
  keep_alive_timeout:
    "The client sent nothing for longer than its keep alive allows: it hangs, or its network is down.",
  taken_over: "Another connection used the same client id. If this repeats, two clients share one id.",
  protocol_error: "The client violated the MQTT protocol. A trace shows the packet.",
  malformed_packet: "The client sent a malformed packet. A trace shows the bytes.",
  packet_too_large: "The client sent a packet larger than mqtt.max_packet_size.",
  receive_maximum_exceeded: "The client had more than mqtt.receive_maximum unacknowledged messages in flight.",
  topic_alias_invalid: "The client used an undefined topic alias, or one above the limit.",
  topic_name_invalid: "The client published to an invalid topic name.",
  not_authorized: "The client was not authorized for the operation.",
  quota_exceeded: "The client exceeded a limit.",
  re_authentication_failed: "The client's re-authentication failed.",
  login_expired: "The client's login expired, for example its token.",
  kicked:
    "The server disconnected the client: an administrator did it, the client was banned, or its user or " +
    "device was changed or removed.",
  server_shutting_down: "The node was shut down.",
  transport_error: "The TLS or WebSocket layer reported an error.",
  journal_failed: "The client sent a message that had to be durable, but the journal has failed.",
};

/** Explains why a message was not delivered. */
export const dropOf = (name: string): Reason => ({ title: words(name), ...(DROPS[name] ?? { about: "" }) });

/** Explains why a connection ended. Empty for unknown reasons. */
export const endOf = (name: string): string => ENDS[name] ?? "";
