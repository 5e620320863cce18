// Names of the MQTT 5 reason codes.

const REASONS: Record<number, string> = {
  0x00: "Success",
  0x04: "Disconnect with will",
  0x10: "No matching subscribers",
  0x11: "No subscription existed",
  0x80: "Unspecified error",
  0x81: "Malformed packet",
  0x82: "Protocol error",
  0x83: "Implementation specific error",
  0x84: "Unsupported protocol version",
  0x85: "Client identifier not valid",
  0x86: "Bad user name or password",
  0x87: "Not authorized",
  0x88: "Server unavailable",
  0x89: "Server busy",
  0x8a: "Banned",
  0x8b: "Server shutting down",
  0x8c: "Bad authentication method",
  0x8d: "Keep alive timeout",
  0x8e: "Session taken over",
  0x8f: "Topic filter invalid",
  0x90: "Topic name invalid",
  0x91: "Packet identifier in use",
  0x92: "Packet identifier not found",
  0x93: "Receive maximum exceeded",
  0x94: "Topic alias invalid",
  0x95: "Packet too large",
  0x96: "Message rate too high",
  0x97: "Quota exceeded",
  0x98: "Administrative action",
  0x99: "Payload format invalid",
  0x9a: "Retain not supported",
  0x9b: "QoS not supported",
  0x9c: "Use another server",
  0x9d: "Server moved",
  0x9e: "Shared subscriptions not supported",
  0x9f: "Connection rate exceeded",
  0xa0: "Maximum connect time",
  0xa1: "Subscription identifiers not supported",
  0xa2: "Wildcard subscriptions not supported",
};

export const reason = (code: number): string =>
  `${REASONS[code] ?? "Unknown reason"} (0x${code.toString(16).padStart(2, "0")})`;

/** Reason codes that a client may send in DISCONNECT. [MQTT5 3.14.2.1] */
export const OF_CLIENTS = [0x00, 0x04, 0x80, 0x81, 0x82, 0x83, 0x90, 0x93, 0x94, 0x95, 0x96, 0x97, 0x98, 0x99];
