// Made by scripts/client.mjs from the server's OpenAPI document; `dev/ui client` makes it anew.

import { part, request } from "./request";

/** Whether it may, and why. */
export type AccessAnswer = {
  because: string;
  /** The subscription is granted, and what the rules deny is left out of its deliveries. */
  filters_deliveries: boolean;
  is_allowed: boolean;
  /** Which rule decided, counted from 0. `null`: none of the list. */
  rule: (number | null);
};

/** Who wants to do what. */
export type AccessQuestion = {
  /** `publish` or `subscribe`. */
  action: RuleAction;
  /** Of the client; 127.0.0.1 if it is not given. */
  address?: (string | null);
  client_id?: string;
  qos?: number;
  retain?: boolean;
  /** Rules to try instead of those in force. */
  rules?: (AclRule[] | null);
  /** A topic name, or a topic filter when it is about a subscription. */
  topic: string;
  /** Absent: without one. */
  user_name?: (string | null);
};

/** From reading a PUBLISH of QoS 1 or 2 to having written its acknowledgement, the journal's commit included. */
export type AckWait = {
  /** Half of them did not wait longer. */
  p50_ms: number;
  /** 99 of 100 did not wait longer. */
  p99_ms: number;
};

/** A rule. A condition that is absent holds for everybody; an empty list is an error. */
export type AclRule = {
  action: RuleAction;
  /** Networks or addresses: `10.0.0.0/8`, `::1`. */
  addresses?: (string[] | null);
  /** `true`: only clients without user name; `false`: only clients with one. */
  anonymous?: (boolean | null);
  /** Client ids. */
  clients?: (string[] | null);
  permission: RulePermission;
  /** Only messages of these QoS; with `publish` only. */
  qos?: (number[] | null);
  /** Only messages with or without RETAIN; with `publish` only. */
  retain?: (boolean | null);
  /** Topic filters; `%c` is the client id, `%u` the user name, `eq ` before one takes it literally. */
  topics: string[];
  /** User names. */
  users?: (string[] | null);
};

/** The rules in force. The first that matches decides. */
export type AclView = {
  /** When no rule matches. */
  no_match: RulePermission;
  /** What happens to a subscription of which the rules allow only a part. */
  partial_subscription: PartialView;
  /** Where the rules are set, when they cannot be changed here. */
  pinned_by: (string | null);
  rules: AclRule[];
};

/** What is sent there. */
export type ActionDefinition = {
  /** The connector's name. */
  connector?: string;
  /** How it buffers and sends; what is not said is what suits the type. */
  delivery?: DeliveryConfig;
  description?: string;
  enable?: boolean;
  /** What is done with what this one gives up: what its target refuses for good, what was tried too often, what is too old. */
  fallback_actions?: FallbackAction[];
  name: string;
  /** What the type needs: templates, how to send. */
  parameters?: unknown;
  /** That of its connector, or `console`, which needs none. */
  type: string;
};

/** The numbers of an action at one moment. Counters count from the start of the process. */
export type ActionStats = {
  dropped: Dropped;
  /** Messages that the target has refused for good, or that were tried too often. */
  failed: number;
  /** Of those that failed or were dropped, messages that a fallback action could not take; for each of these. */
  fallback_lost: number;
  /** Of those that failed or were dropped, messages that fallback actions have taken; for each of these. */
  fallen_back: number;
  /** Of the buffer on the disk. */
  file_bytes: number;
  /** How often publishers were held back because the buffer was full. */
  held_back: number;
  /** Messages that were sent and are not yet confirmed. */
  in_flight: number;
  latency: LatencyBucket[];
  latency_sum_us: number;
  /** Messages that were given to the action. */
  matched: number;
  /** Of the oldest message that was read from the buffer and is not confirmed. */
  oldest_age_ms: number;
  queued_bytes: number;
  /** Messages that wait or are being sent. */
  queued_messages: number;
  /** Messages that were sent once more. */
  retried: number;
  /** Messages that the target has confirmed. */
  sent: number;
  sent_bytes: number;
};

/** What is sent there. */
export type ActionView = {
  /** The connector's name. */
  connector: string;
  /** How it buffers and sends; what is not said is what suits the type. */
  delivery: DeliveryConfig;
  description: string;
  enable: boolean;
  /** What is done with what this one gives up: what its target refuses for good, what was tried too often, what is too old. */
  fallback_actions?: FallbackAction[];
  /** Actions that have it as a fallback. */
  fallback_of: string[];
  health: (Health2 | null);
  id: string;
  is_paused: boolean;
  metrics: (ActionStats | null);
  /** Fallback actions that it names and that do not exist or do not run. */
  missing_fallback_actions: string[];
  name: string;
  /** What the type needs: templates, how to send. */
  parameters: unknown;
  /** Where the configuration sets it, if it does: the API does not change it then. */
  pinned_by: (string | null);
  /** Why it does not run, though it is enabled. */
  problems: string[];
  /** Rules that use it. */
  rules: string[];
  /** That of its connector, or `console`, which needs none. */
  type: string;
};

/** One alarm of the node. */
export type Alarm = {
  activated_at_unix_ms: number;
  /** `null`: it is active. */
  deactivated_at_unix_ms: (number | null);
  details: Record<string, string>;
  /** What is wrong, in words; of an active alarm as it is now. */
  message: string;
  /** What it is about: `journal_full`, `action:http:orders`, … */
  name: string;
};

/** An API key, without its secret. */
export type ApiKey = {
  /** Who has made it. */
  by: string;
  created_at_unix_ms: number;
  /** Of a screen: the only dashboard that the key shows. `null`: a key for this API. */
  dashboard: (string | null);
  description: string;
  enabled: boolean;
  /** `null`: never. */
  expires_at_unix_ms: (number | null);
  is_expired: boolean;
  /** `null`: not since the server started. */
  last_used_unix_ms: (number | null);
  name: string;
  role: Role;
};

/** What is absent stays as it is. */
export type ApiKeyChange = {
  description?: (string | null);
  enabled?: (boolean | null);
  /** 0: it never expires. */
  expires_at_unix_ms?: (number | null);
  role?: (Role | null);
};

/** Something that was done, or tried. */
export type AuditEntry = {
  /** Where the request came from. */
  address: string;
  at_unix_ms: number;
  /** What was sent, without secrets; long texts are cut. */
  body?: unknown;
  method: string;
  /** Entries are numbered. */
  number: number;
  /** As the OpenAPI document has it. */
  operation: string;
  path: string;
  /** HTTP status of the answer: 2xx when it was done. */
  status: number;
  /** The user, or `key:` and the name of an API key. */
  user: string;
};

/** A finished one. */
export type Backup = {
  bytes: number;
  /** What is in it, in words. */
  holds: string;
  made_at_unix_ms: number;
  name: string;
};

/** Backups and the one that is being made. */
export type Backups = {
  /** Of the server's machine. */
  directory: string;
  /** Of the last one that did not come to its end. */
  failure: (FailedBackup | null);
  /** The newest first. */
  items: Backup[];
  /** The one that is on its way to be restored. */
  restore: (Restore | null);
  /** What became of the last restore. */
  restored: (RestoreOutcome | null);
  running: (RunningBackup | null);
  /** Data that was in force before a restore, the newest first. */
  set_aside: SetAside[];
};

/** What a ban goes by. */
export type BanKind = ("client_id" | "user_name" | "user_name_pattern" | "address" | "client_id_pattern" | "network");

export type Banned = {
  at_unix_ms: number;
  /** Who has banned it. */
  by: string;
  kind: BanKind;
  reason: string;
  /** `null`: for good. */
  until_unix_ms: (number | null);
  /** The client id, user name, address, pattern or network. */
  who: string;
};

/** What is sent together. A batch goes when one of the limits is reached. */
export type BatchConfig = {
  /** Bytes. A longer message is a batch of its own. */
  bytes_max?: number;
  /** How long the first message waits for others, in milliseconds. */
  linger_ms?: number;
  /** Messages. */
  records_max?: number;
};

export type Benchmark = {
  at_unix_ms: number;
  duration_s: number;
  /** Nothing was lost, nothing came twice, and the rest of what the load tool asks for by itself. */
  is_good: boolean;
  /** It was stopped before its time. */
  is_interrupted: boolean;
  name: string;
  scale: number;
  scenario: string;
};

export type BenchmarkErrors = {
  count: number;
  what: string;
};

/** One number; two results have the same ones in the same order. */
export type BenchmarkMeasure = {
  about: string;
  /** `more`, `less` or `neither`. */
  better: string;
  name: string;
  /** `count`, `per_second`, `milliseconds`, `seconds`, `bytes`, `share` or `cores`. */
  unit: string;
  /** `null`: not measured. */
  value: (number | null);
};

/** Which scenario, and how large. */
export type BenchmarkOrder = {
  /** Has to be `true`: the load slows down whatever else this node does. */
  confirmed?: boolean;
  /** Seconds for which publishing is measured. */
  duration_s: number;
  /** Multiplies the clients. */
  scale?: number;
  /** One of those that are listed. */
  scenario: string;
};

/** What came of one. */
export type BenchmarkResult = {
  about: string;
  clients: number;
  errors: BenchmarkErrors[];
  is_interrupted: boolean;
  measured_s: number;
  measures: BenchmarkMeasure[];
  name: string;
  scenario: string;
  started_at: string;
  verdicts: BenchmarkVerdict[];
};

/** A scenario as it is without a scale. */
export type BenchmarkScenario = {
  about: string;
  clients: number;
  duration_s: number;
  name: string;
  publishers: number;
};

/** One second of a run, as the load tool tells it. */
export type BenchmarkSecond = {
  /** That are to be connected. */
  clients: number;
  connected: number;
  delivered_per_s: number;
  elapsed_s: number;
  /** Refused connections, subscriptions and messages, and lost connections, since the beginning. */
  errors: number;
  /** Latency from when a message was due to when a subscriber had it. */
  p50_ms: number;
  p99_ms: number;
  /** `connecting`, `warm_up`, `measuring`, `returning` or `comparing`. */
  phase: string;
  published_per_s: number;
  /** Until publishing ends. */
  remaining_s: (number | null);
};

export type BenchmarkVerdict = {
  found: string;
  is_met: boolean;
  rule: string;
};

/** What can be run, what runs, and what came of it. */
export type Benchmarks = {
  clients_max: number;
  duration_max_s: number;
  /** Of the last one that gave no report. */
  failure: (FailedBenchmark | null);
  /** The newest first. */
  items: Benchmark[];
  /** Why none can be run here. */
  off_because: (string | null);
  running: (RunningBenchmark | null);
  scenarios: BenchmarkScenario[];
};

/** Where messages wait for the target. */
export type BufferConfig = {
  /** Bytes that may wait, in memory or on the disk. */
  max_bytes?: number;
  /** Bytes of what waits that are kept in memory: with `disk`, so that they need not be read again; with `hybrid`, before
   * messages go to the disk. */
  memory_bytes?: number;
  mode?: BufferMode;
  /** What happens to a message when that is reached. */
  overflow?: Overflow;
  /** Bytes of one file of the buffer, at most a quarter of `max_bytes`. Space is taken and given back in files; two are there from the start. */
  segment_bytes?: number;
  /** When a message counts as written to the disk. */
  sync?: SyncMode;
};

export type BufferMode = ("memory" | "disk" | "hybrid");

export type ByQoS = {
  qos0: number;
  qos1: number;
  qos2: number;
};

/** One certificate of a chain. */
export type Certificate = {
  /** SHA-256 of the whole, hexadecimal. */
  fingerprint: string;
  issuer: string;
  /** Host names and addresses that it is good for. */
  names: string[];
  not_after_unix_ms: number;
  not_before_unix_ms: number;
  /** Hexadecimal. */
  serial: string;
  /** `CN=mqtt.example.org, O=Example`; may be empty. */
  subject: string;
};

/** `changed` waits for a reload; `unusable` would make a reload or a start fail. */
export type CertificateFileState = "same" | "changed" | "unusable";

/** The listeners that have certificates. */
export type Certificates = {
  items: ListenerCertificate[];
};

/** A session and, if it has one, its connection. */
export type Client = {
  /** Of the present or last connection. */
  address: string;
  /** QoS 2 messages received whose PUBREL has not come. */
  awaiting_release: number;
  bytes_received: number;
  bytes_sent: number;
  clean_start: boolean;
  client_id: string;
  connected: boolean;
  connected_at_unix_ms: number;
  created_at_unix_ms: number;
  disconnected_at_unix_ms: (number | null);
  /** Messages it did not get (or could not publish), by reason. */
  drops: DropCount[];
  has_will: boolean;
  /** Sent and not acknowledged. */
  inflight: number;
  is_bridge: boolean;
  keep_alive_s: number;
  /** Why its last connection ended. */
  last_disconnect_reason: (string | null);
  last_drop: (LastDrop | null);
  /** Name of the listener. */
  listener: (string | null);
  messages_received: number;
  messages_sent: number;
  /** Bytes that wait for the socket. */
  output_backlog_bytes: number;
  /** `3.1`, `3.1.1` or `5.0`. */
  protocol_version: string;
  queued: number;
  queued_bytes: number;
  receive_maximum: number;
  /** 4294967295 never expires. */
  session_expiry_interval_s: number;
  subscriptions: number;
  /** `null` without a connection. */
  transport: (TransportView | null);
  user_name: (string | null);
};

export type ClientCertificates = "none" | "optional" | "required";

/** A client with what is too much for a list. */
export type ClientDetails = {
  /** Of the present or last connection. */
  address: string;
  /** QoS 2 messages received whose PUBREL has not come. */
  awaiting_release: number;
  bytes_received: number;
  bytes_sent: number;
  /** Of the certificate that it showed, while it is connected. */
  certificate_common_name: (string | null);
  clean_start: boolean;
  client_id: string;
  connected: boolean;
  connected_at_unix_ms: number;
  created_at_unix_ms: number;
  disconnected_at_unix_ms: (number | null);
  /** Messages it did not get (or could not publish), by reason. */
  drops: DropCount[];
  has_will: boolean;
  /** Sent and not acknowledged. */
  inflight: number;
  is_bridge: boolean;
  keep_alive_s: number;
  /** Why its last connection ended. */
  last_disconnect_reason: (string | null);
  last_drop: (LastDrop | null);
  /** Name of the listener. */
  listener: (string | null);
  /** Maximum Packet Size of CONNECT; `null`: it takes all, or is not connected. */
  maximum_packet_size: (number | null);
  messages_received: number;
  messages_sent: number;
  /** Bytes that wait for the socket. */
  output_backlog_bytes: number;
  /** `3.1`, `3.1.1` or `5.0`. */
  protocol_version: string;
  queued: number;
  queued_bytes: number;
  receive_maximum: number;
  /** 4294967295 never expires. */
  session_expiry_interval_s: number;
  subscriptions: number;
  /** `null` without a connection. */
  transport: (TransportView | null);
  user_name: (string | null);
  /** Of CONNECT, the first 4096 bytes of them, while it is connected. */
  user_properties: UserProperty[];
  /** What is published for it when its connection ends without DISCONNECT. */
  will: (Will | null);
};

/** What clients are sorted by. */
export type ClientSort = ("client_id" | "subscriptions" | "queued" | "messages_received" | "messages_sent" | "dropped" | "since");

/** One value that is another then. */
export type ConfigDifference = {
  /** `null`: it will not be set. */
  after: (string | null);
  /** As it is in force; `null`: it is not set, and has no default. */
  before: (string | null);
  /** False: the file says so since it was read last, and it is taken over along with the rest. */
  is_asked_for: boolean;
  key: string;
  /** It is written down and waits for a restart. */
  needs_restart: boolean;
  /** Where the value will come from. */
  origin: string;
};

/** One value of the configuration, for the operator to see. */
export type ConfigValue = {
  /** All values that there are, where they can be counted. */
  choices: string[];
  description: string;
  /** Why it cannot be changed over the API; `null`: it can. */
  fixed_because: (string | null);
  is_default: boolean;
  /** Written down outside; the API does not override it. */
  is_pinned: boolean;
  /** Changed over the API, which can be forgotten again. */
  is_runtime: boolean;
  /** As in the file: `mqtt.max_qos`. */
  key: string;
  /** Whether a change waits for a restart. */
  needs_restart: boolean;
  /** Where it comes from: a file and its line, a variable, the command line, or the default. */
  origin: string;
  /** `duration`, `integer`, `list of network`. */
  type: string;
  /** What is in force until the restart that the value waits for; `null`: the value is in force. */
  until_restart: (string | null);
  /** As in the file; a secret is `***`. */
  value: string;
};

export type ConfigurationChange = {
  /** By key the new value, as it is typed after `--set key=`: `15s`, `["a", "b"]`. `null` forgets what was changed at run time, so that
   * the file or the default holds again. */
  changes: Record<string, (string | null)>;
};

/** What is another value then. */
export type ConfigurationPlan = {
  /** In the order of the reference. Empty: nothing changes. */
  items: ConfigDifference[];
};

/** MQTT connections. */
export type Connections = {
  current: number;
  /** The most at the same time. */
  maximum: number;
  /** CONNECTs that were answered with an error. */
  refused: number;
  /** Accepted but not past CONNECT yet, as well as connected. */
  sockets: number;
  takeovers: number;
  total: number;
};

/** Where something outside is. */
export type ConnectorDefinition = {
  /** What the type needs: address, credentials. */
  config?: unknown;
  description?: string;
  enable?: boolean;
  name: string;
  /** `kafka`, `http`, `postgresql`, `redis`, `mqtt` or `file`. */
  type: string;
};

/** Whether the target of a connector answers. */
export type ConnectorTest = {
  /** Why not. */
  error: (string | null);
  /** It can be reached and takes our credentials. */
  is_reachable: boolean;
  took_ms: number;
};

/** What a type of connector, its actions and its sources are configured with, as JSON Schema: forms are made from it. */
export type ConnectorType = {
  /** Of a connector's `config`; null: actions of the type need no connector. */
  config: (Schema | null);
  /** Of an action's `parameters`. */
  parameters: (Schema | null);
  /** Of a source's `parameters`; null: the type has no sources. */
  source: (Schema | null);
};

/** Where something outside is. */
export type ConnectorView = {
  /** Actions that use it, as `type:name`. */
  actions: string[];
  /** What the type needs: address, credentials. */
  config: unknown;
  description: string;
  enable: boolean;
  name: string;
  /** Where the configuration sets it, if it does: the API does not change it then. */
  pinned_by: (string | null);
  /** Why it does not run, though it is enabled. */
  problems: string[];
  /** Sources that use it, as `type:name`. */
  sources: string[];
  /** `kafka`, `http`, `postgresql`, `redis`, `mqtt` or `file`. */
  type: string;
};

/** Who may log in to the console. */
export type ConsoleUser = {
  /** Nobody has changed the password that the first start made. */
  has_first_password: boolean;
  /** Somebody else has made the password: it has to be changed before anything else. */
  has_one_time_password: boolean;
  /** The one who asks. */
  is_self: boolean;
  name: string;
  role: Role;
};

export type ConsoleUserChange = {
  role: Role;
};

export type DeletedRetained = {
  deleted: number;
};

/** How an action buffers and sends. */
export type DeliveryConfig = {
  batch?: BatchConfig;
  buffer?: BufferConfig;
  /** How often the target is asked whether it is there while nothing is sent, in milliseconds. */
  health_check_interval_ms?: number;
  /** Batches that are sent and not yet confirmed. With several, records of one ordering key are never in two of them,
   * unless the target keeps the order itself. */
  in_flight?: number;
  /** Template. Messages for which it gives the same text are sent in their order. */
  ordering_key?: string;
  /** When a publisher's QoS 1 or 2 message is acknowledged. */
  query_mode?: QueryMode;
  /** How long the target may take to answer a request, in milliseconds. Then the request is sent again. */
  request_timeout_ms?: number;
  /** A message that waits longer than this is dropped as expired, in milliseconds. None: it waits for ever. */
  request_ttl_ms?: (number | null);
  retry?: RetryConfig;
};

/** The disk on which the data directory is. */
export type DiskView = {
  /** What this process may still write. */
  free_bytes: number;
  total_bytes: number;
};

export type DropCount = {
  messages: number;
  reason: string;
};

/** Messages that were given up without having been refused by the target, by reason. */
export type Dropped = {
  /** As they came, because the disk took no more. */
  disk: number;
  /** They had waited longer than they may. */
  expired: number;
  /** As they came, because the buffer was full. */
  overflow_newest: number;
  /** The oldest, because the buffer was full. */
  overflow_oldest: number;
  /** An operator had the buffer emptied. */
  purged: number;
};

/** SQL and what to try it on. */
export type DryRun = {
  /** Columns of the event by name, such as `topic`, `clientid`, `qos`, `payload`. A payload that is not a string is taken as its
   * JSON. What is not given is that of an example of the rule's first source. */
  event?: unknown;
  sql: string;
};

export type DryRunResult = {
  /** What would be counted as a failure of the rule. */
  error: (string | null);
  /** Where in the SQL the error is. */
  error_position: (ErrorPosition | null);
  /** The event's topic and kind are among what FROM names. */
  is_matched: boolean;
  /** WHERE held, and there is output. */
  is_passed: boolean;
  outputs: unknown[];
};

/** From 1; columns are characters. */
export type ErrorPosition = {
  column: number;
  line: number;
};

export type FailedBackup = {
  at_unix_ms: number;
  because: string;
  name: string;
};

export type FailedBenchmark = {
  at_unix_ms: number;
  because: string;
  name: string;
};

/** It gets what was given up as if the rule had named it. */
export type FallbackAction = (string | FallbackKind);

export type FallbackKind = ({
  kind: "reference";
  name: string;
  type: string;
} | {
  args: RepublishArguments;
  kind: "republish";
});

/** One of several errors in a body. */
export type FieldError = {
  /** What is wrong there. */
  detail: string;
  /** Where in the body, such as `rules[3]`. */
  field: string;
};

/** What the client got. */
export type Granted = {
  qos: number;
};

/** Whether traffic should come to this node. */
export type Health = {
  /** Why not, if not. */
  reasons: string[];
  status: HealthStatus;
};

export type Health2 = {
  /** What last went wrong, also when it goes well now. */
  last_error: (string | null);
  last_error_unix_ms: (number | null);
  /** When it came into this state. */
  since_unix_ms: number;
  state: HealthState;
};

export type HealthState = "connected" | "connecting" | "disconnected";

export type HealthStatus = "ready" | "not_ready";

/** Columns of one length: a time, and a value of each series at it. */
export type HistoryView = {
  at_unix_ms: number[];
  /** By name, which ends in the unit; `null` where a value is not known. Messages dropped per second have a series for each
   * reason, too, if there were any: `dropped_per_s.<reason>`. */
  series: Record<string, (number | null)[]>;
  /** How far points are apart. */
  step_ms: number;
};

/** The journal, which has what has to survive a crash. */
export type JournalNumbers = {
  /** Not on the disk yet. */
  backlog_bytes: number;
  /** Of its files. */
  file_bytes: number;
};

/** Messages that are kept, and what they weigh. */
export type Kept = {
  bytes: number;
  messages: number;
};

export type LastDrop = {
  at_unix_ms: number;
  reason: string;
};

/** One bucket of the time from sending to confirmation. */
export type LatencyBucket = {
  /** Messages in this bucket alone. */
  messages: number;
  /** None: no upper end. */
  up_to_us: (number | null);
};

/** A number that goes up and down, and its highest value. */
export type Level = {
  current: number;
  maximum: number;
};

/** What a listener shows to its clients. */
export type ListenerCertificate = {
  certificate_file: string;
  /** In force: the listener's own, then those up to an authority. */
  chain: Certificate[];
  /** Whether clients have to show one. */
  client_certificates: ClientCertificates;
  /** The chain ends with what clients have to trust: an authority of one's own, or a certificate that is nobody's but its own. It is at
   * `authority.pem`. Otherwise the authority is elsewhere, such as a public one, which clients trust already. */
  has_authority: boolean;
  key_file: string;
  /** `tls.default`; `api` is the port of this API. */
  listener: string;
  /** The files, compared with what is in force. */
  on_disk: CertificateFileState;
  /** Why the files are unusable. */
  problem?: (string | null);
  /** Others that have one of these files, too. */
  shared_with: string[];
};

/** A listener and what happened at it. */
export type ListenerView = {
  accepted: number;
  /** As bound. */
  address: string;
  /** Open now, those in their handshake included. */
  connections: number;
  connections_max: number;
  /** It is the API's own port, where a console's MQTT comes in (`/api/v1/mqtt`). */
  is_api: boolean;
  name: string;
  /** Connections that ended before their CONNECT was complete, by reason. */
  refused: Record<string, number>;
  transport: TransportView;
};

/** From what matters most. */
export type LogLevel = "error" | "warn" | "info" | "debug" | "trace";

export type LogLine = {
  at_unix_ms: number;
  level: LogLevel;
  /** Lines are numbered from the start of the server. */
  number: number;
  /** Which part of the server says it. */
  target: string;
  /** The message, and its fields as `name=value`. */
  text: string;
};

/** A login: send the token as `Authorization: Bearer <token>`. */
export type LoginAnswer = {
  expires_at_unix_ms: number;
  /** The password is the one of the first start, which lies readable in the data directory until it is changed. */
  has_first_password: boolean;
  /** Somebody else has made the password: nothing but `change_password` is allowed until it is another. */
  must_change_password: boolean;
  role: Role;
  token: string;
  user: string;
};

/** Who wants to log in. */
export type LoginRequest = {
  password: Secret;
  user: string;
};

/** A key that was just made. */
export type MadeApiKey = {
  key: ApiKey;
  /** Send it as `Authorization: Bearer <secret>`. It is shown here and never again. */
  secret: string;
};

/** A password that was just made. */
export type MadePassword = {
  name: string;
  /** It is shown here and never again, and is good for one thing: setting another. */
  password: string;
};

/** MQTT 5 properties of a message. */
export type MessageProperties = {
  content_type?: (string | null);
  /** Base64 with padding. */
  correlation_data?: (string | null);
  /** Seconds. */
  message_expiry_interval?: (number | null);
  /** 1: the payload is UTF-8. */
  payload_format_indicator?: (number | null);
  response_topic?: (string | null);
  user_properties?: UserProperty[];
};

/** Application messages (PUBLISH). */
export type Messages = {
  acknowledged: number;
  /** Went from one shard to another. */
  forwarded: number;
  /** Times that a publisher was slowed because of its quota. */
  publishers_slowed: number;
  received: ByQoS;
  redelivered: number;
  sent: ByQoS;
  wills: number;
};

/** The whole list, in order. */
export type NewAcl = {
  rules: AclRule[];
};

export type NewApiKey = {
  /** Makes it the key of a screen, which is good for this dashboard of the device platform and nothing else: it reads the dashboard, telemetry of the
   * entities that it names, and alarms. The role has to be `viewer`. */
  dashboard?: (string | null);
  description?: string;
  enabled?: boolean;
  /** Without it, never. */
  expires_at_unix_ms?: (number | null);
  /** Letters, digits, hyphens, underscores and dots. */
  name: string;
  role: Role;
};

export type NewBan = {
  kind: BanKind;
  /** For other operators. */
  reason?: string;
  /** When it ends by itself; without it, never. */
  until_unix_ms?: (number | null);
  who: string;
};

/** A new certificate and its key. */
export type NewCertificate = {
  /** PEM: the listener's own first, then those up to an authority. */
  certificate: string;
  /** PEM, without a pass phrase. */
  key: Secret;
};

export type NewConsoleUser = {
  name: string;
  role: Role;
};

/** A message to publish. */
export type NewMessage = {
  payload?: string;
  payload_encoding?: PayloadEncoding;
  properties?: MessageProperties;
  qos?: number;
  /** An empty payload with it deletes the retained message. */
  retain?: boolean;
  /** Topic name. `$SYS/` and `$share/` are not for messages. */
  topic: string;
};

export type NewMessages = {
  /** Published in this order, as far as they have the same topic. */
  messages: NewMessage[];
};

/** A subscription to make for a client. */
export type NewSubscription = {
  /** Topic filter. */
  filter: string;
  no_local?: boolean;
  /** Maximum QoS. */
  qos?: number;
  retain_as_published?: boolean;
  /** 0: send retained messages; 1: only if the subscription is new; 2: never. */
  retain_handling?: number;
};

export type NewUser = {
  is_superuser?: boolean;
  name: string;
  /** In plain text; either this or `password_hash`. */
  password?: (Secret | null);
  /** In one of the forms that password files have. */
  password_hash?: (string | null);
};

/** Of one node. */
export type NodeAlarms = {
  /** The newest first. */
  active: Alarm[];
  /** The last to end first. */
  ended: Alarm[];
};

/** The node these numbers are of. */
export type NodeView = {
  /** What survives a crash, in a sentence. */
  durability: string;
  name: string;
  shards: number;
  started_at_unix_ms: number;
  uptime_s: number;
  version: string;
};

export type Overflow = ("back-pressure" | "drop-oldest" | "drop-newest");

/** A part of a list. */
export type Page = {
  /** Send it as `cursor` to get what follows; absent at the end. A page may be short and still have one. */
  cursor?: (string | null);
  items: ConsoleUser[];
};

/** A part of a list. */
export type Page2 = {
  /** Send it as `cursor` to get what follows; absent at the end. A page may be short and still have one. */
  cursor?: (string | null);
  items: ApiKey[];
};

/** A part of a list. */
export type Page3 = {
  /** Send it as `cursor` to get what follows; absent at the end. A page may be short and still have one. */
  cursor?: (string | null);
  items: AuditEntry[];
};

/** A part of a list. */
export type Page4 = {
  /** Send it as `cursor` to get what follows; absent at the end. A page may be short and still have one. */
  cursor?: (string | null);
  items: LogLine[];
};

/** A part of a list. */
export type Page5 = {
  /** Send it as `cursor` to get what follows; absent at the end. A page may be short and still have one. */
  cursor?: (string | null);
  items: Client[];
};

/** A part of a list. */
export type Page6 = {
  /** Send it as `cursor` to get what follows; absent at the end. A page may be short and still have one. */
  cursor?: (string | null);
  items: Subscription[];
};

/** A part of a list. */
export type Page7 = {
  /** Send it as `cursor` to get what follows; absent at the end. A page may be short and still have one. */
  cursor?: (string | null);
  items: RetainedMessage[];
};

/** A part of a list. */
export type Page8 = {
  /** Send it as `cursor` to get what follows; absent at the end. A page may be short and still have one. */
  cursor?: (string | null);
  items: User[];
};

/** A part of a list. */
export type Page9 = {
  /** Send it as `cursor` to get what follows; absent at the end. A page may be short and still have one. */
  cursor?: (string | null);
  items: Banned[];
};

export type PartialView = "refuse" | "filter";

export type PasswordChange = {
  current_password: Secret;
  /** At least 8 characters. */
  new_password: Secret;
};

/** How a payload stands in JSON. */
export type PayloadEncoding = ("base64" | "plain");

/** An error [RFC 9457]. */
export type Problem = {
  /** What happened this time. */
  detail: string;
  /** Everything that is wrong, when several things are. */
  errors?: FieldError[];
  /** What would have been right there. */
  expected?: (string | null);
  /** Where in the body, the query or the path. */
  field?: (string | null);
  /** Configuration that pins a value: its key and where it is set. */
  source?: (string | null);
  /** HTTP status code. */
  status: number;
  /** The kind in words; the same for every problem of the kind. */
  title: string;
  /** Kind of problem, as a URN. */
  type: string;
};

/** This process as the operating system sees it; `null` where it does not say. */
export type ProcessView = {
  /** Processor time used, of all threads, user and system. */
  cpu_seconds: (number | null);
  open_files: (number | null);
  /** Soft limit of open files. */
  open_files_max: (number | null);
  /** Resident memory. */
  resident_bytes: (number | null);
  threads: (number | null);
};

/** What became of a message. */
export type Published = {
  /** Whether anyone is known to have subscribed. */
  matched: boolean;
};

export type PublishedAll = {
  /** In the order of the request. */
  results: Published[];
};

export type QueryMode = ("async" | "sync");

/** A connection that was turned away. */
export type RefusedClient = {
  address: string;
  at_unix_ms: number;
  /** What only the operator is told. */
  because: string;
  client_id: string;
  /** As it was told to the client. */
  reason: string;
  reason_code: number;
  transport: TransportView;
  user_name: (string | null);
};

/** Templates of a message: `${payload.x}` is a field of what the rule puts out. */
export type RepublishArguments = {
  content_type?: (string | null);
  correlation_data?: (string | null);
  /** A boolean, or a template. True: to subscribers only; no rule sees it, and it is not retained. */
  direct_dispatch?: unknown;
  /** EMQX's way to give `Content-Type`, `Response-Topic`, `Correlation-Data`, `Payload-Format-Indicator` and `Message-Expiry-Interval`. */
  mqtt_properties?: Record<string, string>;
  /** Empty: all of what the rule puts out, as JSON. */
  payload?: string;
  /** A number, or a template. */
  qos?: unknown;
  response_topic?: (string | null);
  /** A boolean, or a template. */
  retain?: unknown;
  topic: string;
  user_properties?: UserProperties;
};

export type Restore = {
  copied_bytes: number;
  /** Of the backup. */
  name: string;
  /** Since when it is in that state. */
  since_unix_ms: number;
  state: RestoreState;
  total_bytes: number;
};

export type RestoreOutcome = {
  at_unix_ms: number;
  /** Why the data of before is in force. Without one the backup was restored. */
  failure: (string | null);
  /** Of the backup. */
  name: string;
  /** Where the data of before is, below `set-aside` of the data directory. */
  set_aside: (string | null);
};

export type RestoreState = ("preparing" | "prepared");

/** A retained message. */
export type RetainedMessage = {
  /** In a listing no more than its first 256 bytes. */
  payload: string;
  /** Of the whole payload. */
  payload_bytes: number;
  payload_encoding: PayloadEncoding;
  properties: MessageProperties;
  qos: number;
  topic: string;
};

/** What happens to what could not be sent. */
export type RetryConfig = {
  /** The first pause, in milliseconds. Each one after it is twice as long, give or take a fifth. */
  first_ms?: number;
  /** No pause is longer, in milliseconds. */
  longest_ms?: number;
  /** How often a message is tried that the target turns away while it takes others. Then it is dropped as failed. None: for
   * ever. While the target cannot be reached at all, tries do not count. */
  tries_max?: (number | null);
};

/** What a login may do. An admin may do everything, a viewer may only look. */
export type Role = "viewer" | "admin";

export type RollBack = {
  /** One of the rule's history. */
  version: number;
};

export type RuleAction = "publish" | "subscribe" | "all";

export type RuleAction2 = (string | RuleFunction);

/** Counted by one thread, added to the rule's metrics once per tick. */
export type RuleCounts = {
  /** Outputs of messages that had gone out through the action's connector before: they would go round for ever. */
  "actions.came_back": number;
  /** Outputs that were given up because the action's buffer was full. */
  "actions.discarded": number;
  /** Outputs for which an action's templates could not be filled in, or that it did not take. */
  "actions.failed": number;
  /** Of those that failed, outputs for an action that does not exist or is not enabled. */
  "actions.failed.out_of_service": number;
  /** Outputs that an action has taken. */
  "actions.success": number;
  /** Outputs given to actions. */
  "actions.total": number;
  /** Of them, those that could not be evaluated. */
  failed: number;
  /** Of them, those that WHERE refused, or that had no output. */
  "failed.no_result": number;
  /** Messages and events from the rule's sources. */
  matched: number;
  /** Of them, those that had at least one output. */
  passed: number;
};

/** A rule and what is done with what it puts out. */
export type RuleDefinition = {
  actions?: RuleAction2[];
  description?: string;
  enable?: boolean;
  id: string;
  name?: string;
  sql: string;
};

export type RuleFunction = ({
  args: RepublishArguments;
  function: "republish";
} | {
  function: "console";
});

export type RulePermission = "allow" | "deny";

/** A rule and what is done with what it puts out. */
export type RuleView = {
  actions: RuleAction2[];
  description: string;
  enable: boolean;
  /** What FROM names. */
  from: string[];
  id: string;
  last_error: (string | null);
  metrics: RuleCounts;
  /** Actions that it names and that do not exist or do not run. */
  missing_actions: string[];
  name: string;
  /** Where the configuration sets it, if it does: the API does not change it then. */
  pinned_by: (string | null);
  sql: string;
  version: number;
  /** What will not work as things are now: sources in FROM that do not exist, a topic that SELECT does not give. */
  warnings: string[];
};

export type RunningBackup = {
  copied_bytes: number;
  name: string;
  started_at_unix_ms: number;
  /** As far as can be told beforehand. */
  total_bytes: number;
};

export type RunningBenchmark = {
  duration_s: number;
  is_stopping: boolean;
  name: string;
  /** `connecting`, `warm_up`, `measuring`, `returning` or `comparing`. */
  phase: string;
  scale: number;
  scenario: string;
  seconds: BenchmarkSecond[];
  started_at_unix_ms: number;
};

export type Schema = (Record<string, unknown> | boolean);

/** Text that is wiped when it goes, and that nothing prints. */
export type Secret = string;

export type SetAside = {
  at_unix_ms: number;
  bytes: number;
  name: string;
};

/** Members of a shared subscription that live in one shard. */
export type SharedGroup = {
  filter: string;
  members: number;
  online: number;
  /** Messages that wait for a member. */
  queued: number;
  share_name: string;
};

/** A member of a shared subscription; the numbers are of its whole session, which may have other subscriptions. */
export type SharedMember = {
  client_id: string;
  /** Sent and not acknowledged. */
  inflight: number;
  is_connected: boolean;
  messages_sent: number;
  /** Maximum QoS. */
  qos: number;
  /** Messages that wait for it. */
  queued: number;
  queued_bytes: number;
  /** Of these it takes so many at the same time. */
  receive_maximum: number;
};

/** Members of a group, those first for which most waits. */
export type SharedMembers = {
  items: SharedMember[];
  /** How many there are. The first 2,000 that came are looked at. */
  members: number;
};

export type SortOrder = "asc" | "desc";

/** What a source has brought. */
export type SourceCounts = {
  /** Of them, those that could not be published as the source says. */
  failed: number;
  /** Messages. */
  received: number;
  /** Times that a batch was not taken yet: it comes again. */
  refused_batches: number;
};

/** What is taken from there. */
export type SourceDefinition = {
  connector: string;
  description?: string;
  enable?: boolean;
  name: string;
  parameters?: unknown;
  /** How a message from there is published here. None: rules see it, nobody else. */
  publish?: (RepublishArguments | null);
  type: string;
};

/** What is taken from there. */
export type SourceView = {
  connector: string;
  description: string;
  enable: boolean;
  /** What may stand in FROM of rules for its messages. */
  from: string[];
  health: (Health2 | null);
  id: string;
  metrics: SourceCounts;
  name: string;
  parameters: unknown;
  /** Where the configuration sets it, if it does: the API does not change it then. */
  pinned_by: (string | null);
  /** Why it does not run, though it is enabled, or does not get all that it subscribes to. */
  problems: string[];
  /** How a message from there is published here. None: rules see it, nobody else. */
  publish: (RepublishArguments | null);
  type: string;
};

export type StartedBackup = {
  name: string;
};

export type StartedBenchmark = {
  name: string;
};

/** Numbers of the node. Totals count from its start. */
export type StatsView = {
  /** Names of the node's alarms that are active. */
  alarms: string[];
  /** When these numbers were read, in milliseconds since 1970. */
  at_unix_ms: number;
  /** MQTT packets as bytes. */
  bytes_received: number;
  bytes_sent: number;
  connections: Connections;
  delayed_messages: number;
  /** Connections that ended, by reason. */
  disconnects: Record<string, number>;
  /** That of the data directory; `null`: there is none, or it is not known. */
  disk: (DiskView | null);
  /** Messages not delivered, by reason. */
  drops: Record<string, number>;
  inflight_messages: number;
  /** `null`: nothing is on the disk. */
  journal: (JournalNumbers | null);
  messages: Messages;
  node: NodeView;
  /** Bytes that wait for sockets. */
  output_backlog_bytes: number;
  process: ProcessView;
  /** How long publishers waited for acknowledgements in the last second; `null`: there were none that count, see `/metrics`. */
  publish_ack: (AckWait | null);
  /** Messages that wait in sessions. */
  queued: Kept;
  retained: Kept;
  /** Sessions, connected or not. */
  sessions: Level;
  shared_groups: number;
  subscriptions: Level;
};

/** A subscription of a session. */
export type Subscription = {
  client_id: string;
  /** Topic filter as the client wrote it, `$share/<name>/` included. */
  filter: string;
  /** Subscription Identifier. */
  identifier: (number | null);
  no_local: boolean;
  /** Maximum QoS. */
  qos: number;
  retain_as_published: boolean;
  retain_handling: number;
};

export type SyncMode = ("fsync" | "os");

export type TransportView = "tcp" | "tls" | "ws" | "wss";

/** An MQTT user. */
export type User = {
  /** The hash is weaker than one made now; setting the password again mends that. */
  is_outdated: boolean;
  /** No access rule applies to it. */
  is_superuser: boolean;
  name: string;
  /** How the password is hashed. */
  scheme: string;
};

/** What is absent stays as it is. */
export type UserChange = {
  /** Ends connections of this user, so that they have to log in again. */
  disconnect?: boolean;
  is_superuser?: (boolean | null);
  /** In plain text. */
  password?: (Secret | null);
  password_hash?: (string | null);
};

/** Of a message. */
export type UserProperties = (Record<string, string> | string);

export type UserProperty = {
  name: string;
  value: string;
};

/** A rule as it was from a time on. */
export type Version = {
  /** None: the rule was deleted. */
  rule: (RuleDefinition | null);
  since_unix_ms: number;
  /** From 1. */
  version: number;
};

/** A message that waits. */
export type Waiting = {
  /** At QoS 2: PUBREC has come and PUBCOMP has not, so the message itself is gone. */
  is_released: boolean;
  /** `null`: it is gone, or deep in the journal (8 MiB of it are read for one page), or not written there yet. */
  message: (WaitingMessage | null);
  /** `null` at QoS 0, and where it is still open. */
  packet_id: (number | null);
  qos: number;
  retain: boolean;
};

export type WaitingMessage = {
  expires_in_s: (number | null);
  /** What keeping the message costs. */
  kept_bytes: number;
  /** Its beginning. */
  payload: string;
  /** Of all of it. */
  payload_bytes: number;
  payload_encoding: PayloadEncoding;
  topic: string;
};

/** A part of the messages that wait, oldest first. */
export type WaitingPage = {
  /** Send it as `cursor` to get what follows; absent at the end. What was acknowledged meanwhile moves the list. */
  cursor?: (string | null);
  items: Waiting[];
  /** All that wait. */
  messages: number;
  /** Of them, those deep in the journal, which are not listed. */
  unlisted: number;
};

export type Will = {
  /** Seconds between the end of the connection and the publication. */
  delay_s: number;
  encoding: PayloadEncoding;
  /** The first 4096 bytes. */
  payload: string;
  /** Of all of it. */
  payload_bytes: number;
  properties: MessageProperties;
  qos: number;
  retain: boolean;
  topic: string;
};

/** This document */
export const openapi = (signal?: AbortSignal): Promise<unknown> =>
  request("GET", "/api/openapi.json", { signal });

/** Access rules */
export const acl = (signal?: AbortSignal): Promise<AclView> =>
  request("GET", "/api/v1/acl", { signal });

/** Replace the access rules */
export const setAcl = (body: NewAcl, ifMatch?: string, signal?: AbortSignal): Promise<AclView> =>
  request("PUT", "/api/v1/acl", { body, ifMatch, signal });

/** Try the access rules */
export const testAcl = (body: AccessQuestion, signal?: AbortSignal): Promise<AccessAnswer> =>
  request("POST", "/api/v1/acl/test", { body, signal });

/** All actions */
export const actions = (signal?: AbortSignal): Promise<ActionView[]> =>
  request("GET", "/api/v1/actions", { signal });

/** Add an action */
export const addAction = (body: ActionDefinition, signal?: AbortSignal): Promise<ActionView> =>
  request("POST", "/api/v1/actions", { body, signal });

/** Delete an action */
export const deleteAction = (id: string, signal?: AbortSignal): Promise<void> =>
  request("DELETE", `/api/v1/actions/${part(id)}`, { signal });

/** One action */
export const action = (id: string, signal?: AbortSignal): Promise<ActionView> =>
  request("GET", `/api/v1/actions/${part(id)}`, { signal });

/** Add or change an action */
export const putAction = (id: string, body: ActionDefinition, ifMatch?: string, signal?: AbortSignal): Promise<ActionView> =>
  request("PUT", `/api/v1/actions/${part(id)}`, { body, ifMatch, signal });

/** Disable an action */
export const disableAction = (id: string, signal?: AbortSignal): Promise<ActionView> =>
  request("POST", `/api/v1/actions/${part(id)}/disable`, { signal });

/** Enable an action */
export const enableAction = (id: string, signal?: AbortSignal): Promise<ActionView> =>
  request("POST", `/api/v1/actions/${part(id)}/enable`, { signal });

/** Pause an action */
export const pauseAction = (id: string, signal?: AbortSignal): Promise<ActionView> =>
  request("POST", `/api/v1/actions/${part(id)}/pause`, { signal });

/** Empty an action's buffer */
export const purgeAction = (id: string, signal?: AbortSignal): Promise<ActionView> =>
  request("POST", `/api/v1/actions/${part(id)}/purge`, { signal });

/** Restart an action */
export const restartAction = (id: string, signal?: AbortSignal): Promise<ActionView> =>
  request("POST", `/api/v1/actions/${part(id)}/restart`, { signal });

/** Resume an action */
export const resumeAction = (id: string, signal?: AbortSignal): Promise<ActionView> =>
  request("POST", `/api/v1/actions/${part(id)}/resume`, { signal });

/** Forget the alarms that have ended */
export const forgetEndedAlarms = (signal?: AbortSignal): Promise<void> =>
  request("DELETE", "/api/v1/alarms", { signal });

/** The node's alarms */
export const alarms = (signal?: AbortSignal): Promise<NodeAlarms> =>
  request("GET", "/api/v1/alarms", { signal });

/** API keys, page by page */
export const apiKeys = (query?: { cursor?: string | undefined; limit?: number | undefined }, signal?: AbortSignal): Promise<Page2> =>
  request("GET", "/api/v1/api-keys", { query, signal });

/** Make an API key */
export const addApiKey = (body: NewApiKey, signal?: AbortSignal): Promise<MadeApiKey> =>
  request("POST", "/api/v1/api-keys", { body, signal });

/** Remove an API key */
export const removeApiKey = (name: string, signal?: AbortSignal): Promise<void> =>
  request("DELETE", `/api/v1/api-keys/${part(name)}`, { signal });

/** Change an API key */
export const changeApiKey = (name: string, body: ApiKeyChange, signal?: AbortSignal): Promise<ApiKey> =>
  request("PUT", `/api/v1/api-keys/${part(name)}`, { body, signal });

/** Who changed what over the API */
export const audit = (query?: { cursor?: string | undefined; from_unix_ms?: number | undefined; limit?: number | undefined; operation?: string | undefined; text?: string | undefined; until_unix_ms?: number | undefined; user?: string | undefined }, signal?: AbortSignal): Promise<Page3> =>
  request("GET", "/api/v1/audit", { query, signal });

/** Backups */
export const backups = (signal?: AbortSignal): Promise<Backups> =>
  request("GET", "/api/v1/backups", { signal });

/** Make a backup */
export const startBackup = (signal?: AbortSignal): Promise<StartedBackup> =>
  request("POST", "/api/v1/backups", { signal });

/** Delete a backup */
export const removeBackup = (name: string, signal?: AbortSignal): Promise<void> =>
  request("DELETE", `/api/v1/backups/${part(name)}`, { signal });

/** Take a backup along */
export const downloadBackup = (name: string, signal?: AbortSignal): Promise<string> =>
  request("GET", `/api/v1/backups/${part(name)}/download`, { signal });

/** Restore a backup */
export const restoreBackup = (name: string, signal?: AbortSignal): Promise<StartedBackup> =>
  request("POST", `/api/v1/backups/${part(name)}/restore`, { signal });

/** Bans, page by page */
export const banned = (query?: { cursor?: string | undefined; kind?: BanKind | undefined; limit?: number | undefined; who?: string | undefined }, signal?: AbortSignal): Promise<Page9> =>
  request("GET", "/api/v1/banned", { query, signal });

/** Ban clients */
export const ban = (body: NewBan, signal?: AbortSignal): Promise<Banned> =>
  request("POST", "/api/v1/banned", { body, signal });

/** Lift a ban */
export const liftBan = (kind: string, who: string, signal?: AbortSignal): Promise<void> =>
  request("DELETE", `/api/v1/banned/${part(kind)}/${part(who)}`, { signal });

/** Benchmarks of this node */
export const benchmarks = (signal?: AbortSignal): Promise<Benchmarks> =>
  request("GET", "/api/v1/benchmarks", { signal });

/** Run a benchmark against this node */
export const startBenchmark = (body: BenchmarkOrder, signal?: AbortSignal): Promise<StartedBenchmark> =>
  request("POST", "/api/v1/benchmarks", { body, signal });

/** Stop the benchmark that runs */
export const stopBenchmark = (signal?: AbortSignal): Promise<void> =>
  request("POST", "/api/v1/benchmarks/stop", { signal });

/** Delete a report */
export const removeBenchmark = (name: string, signal?: AbortSignal): Promise<void> =>
  request("DELETE", `/api/v1/benchmarks/${part(name)}`, { signal });

/** What came of a benchmark */
export const benchmark = (name: string, signal?: AbortSignal): Promise<BenchmarkResult> =>
  request("GET", `/api/v1/benchmarks/${part(name)}`, { signal });

/** The report of a benchmark as a page */
export const benchmarkReport = (name: string, signal?: AbortSignal): Promise<string> =>
  request("GET", `/api/v1/benchmarks/${part(name)}/report`, { signal });

/** Certificates of listeners */
export const certificates = (signal?: AbortSignal): Promise<Certificates> =>
  request("GET", "/api/v1/certificates", { signal });

/** Load certificates anew */
export const reloadCertificates = (signal?: AbortSignal): Promise<Certificates> =>
  request("POST", "/api/v1/certificates/reload", { signal });

/** Replace a listener's certificate */
export const replaceCertificate = (listener: string, body: NewCertificate, signal?: AbortSignal): Promise<Certificates> =>
  request("PUT", `/api/v1/certificates/${part(listener)}`, { body, signal });

/** What clients have to trust */
export const authority = (listener: string, signal?: AbortSignal): Promise<string> =>
  request("GET", `/api/v1/certificates/${part(listener)}/authority.pem`, { signal });

/** Clients, page by page */
export const clients = (query?: { address?: string | undefined; client_id?: string | undefined; connected?: boolean | undefined; cursor?: string | undefined; limit?: number | undefined; order?: SortOrder | undefined; sort?: ClientSort | undefined; user_name?: string | undefined }, signal?: AbortSignal): Promise<Page5> =>
  request("GET", "/api/v1/clients", { query, signal });

/** Disconnect a client */
export const kickClient = (clientId: string, query?: { end_session?: boolean | undefined }, signal?: AbortSignal): Promise<void> =>
  request("DELETE", `/api/v1/clients/${part(clientId)}`, { query, signal });

/** One client */
export const client = (clientId: string, signal?: AbortSignal): Promise<ClientDetails> =>
  request("GET", `/api/v1/clients/${part(clientId)}`, { signal });

/** What a client has not acknowledged */
export const clientInflight = (clientId: string, query?: { cursor?: string | undefined; limit?: number | undefined; payload_bytes?: number | undefined }, signal?: AbortSignal): Promise<WaitingPage> =>
  request("GET", `/api/v1/clients/${part(clientId)}/inflight`, { query, signal });

/** What waits for a client */
export const clientQueue = (clientId: string, query?: { cursor?: string | undefined; limit?: number | undefined; payload_bytes?: number | undefined }, signal?: AbortSignal): Promise<WaitingPage> =>
  request("GET", `/api/v1/clients/${part(clientId)}/queue`, { query, signal });

/** Unsubscribe a client */
export const unsubscribeClient = (clientId: string, query: { filter: string | undefined }, signal?: AbortSignal): Promise<void> =>
  request("DELETE", `/api/v1/clients/${part(clientId)}/subscriptions`, { query, signal });

/** Subscriptions of a client */
export const clientSubscriptions = (clientId: string, signal?: AbortSignal): Promise<Subscription[]> =>
  request("GET", `/api/v1/clients/${part(clientId)}/subscriptions`, { signal });

/** Subscribe a client */
export const subscribeClient = (clientId: string, body: NewSubscription, signal?: AbortSignal): Promise<Granted> =>
  request("POST", `/api/v1/clients/${part(clientId)}/subscriptions`, { body, signal });

/** The configuration in force */
export const configuration = (signal?: AbortSignal): Promise<ConfigValue[]> =>
  request("GET", "/api/v1/configuration", { signal });

/** Change the configuration */
export const changeConfiguration = (body: ConfigurationChange, signal?: AbortSignal): Promise<ConfigurationPlan> =>
  request("PUT", "/api/v1/configuration", { body, signal });

/** Try a change of the configuration */
export const checkConfiguration = (body: ConfigurationChange, signal?: AbortSignal): Promise<ConfigurationPlan> =>
  request("POST", "/api/v1/configuration/check", { body, signal });

/** Test a connector that is not defined yet */
export const tryConnector = (body: ConnectorDefinition, signal?: AbortSignal): Promise<ConnectorTest> =>
  request("POST", "/api/v1/connector-test", { body, signal });

/** Types of connectors, actions and sources */
export const connectorTypes = (signal?: AbortSignal): Promise<Record<string, ConnectorType>> =>
  request("GET", "/api/v1/connector-types", { signal });

/** All connectors */
export const connectors = (signal?: AbortSignal): Promise<ConnectorView[]> =>
  request("GET", "/api/v1/connectors", { signal });

/** Add a connector */
export const addConnector = (body: ConnectorDefinition, signal?: AbortSignal): Promise<ConnectorView> =>
  request("POST", "/api/v1/connectors", { body, signal });

/** Delete a connector */
export const deleteConnector = (name: string, signal?: AbortSignal): Promise<void> =>
  request("DELETE", `/api/v1/connectors/${part(name)}`, { signal });

/** One connector */
export const connector = (name: string, signal?: AbortSignal): Promise<ConnectorView> =>
  request("GET", `/api/v1/connectors/${part(name)}`, { signal });

/** Add or change a connector */
export const putConnector = (name: string, body: ConnectorDefinition, ifMatch?: string, signal?: AbortSignal): Promise<ConnectorView> =>
  request("PUT", `/api/v1/connectors/${part(name)}`, { body, ifMatch, signal });

/** Disable a connector */
export const disableConnector = (name: string, signal?: AbortSignal): Promise<ConnectorView> =>
  request("POST", `/api/v1/connectors/${part(name)}/disable`, { signal });

/** Enable a connector */
export const enableConnector = (name: string, signal?: AbortSignal): Promise<ConnectorView> =>
  request("POST", `/api/v1/connectors/${part(name)}/enable`, { signal });

/** Test a connector */
export const testConnector = (name: string, signal?: AbortSignal): Promise<ConnectorTest> =>
  request("POST", `/api/v1/connectors/${part(name)}/test`, { signal });

/** Users of the console, page by page */
export const consoleUsers = (query?: { cursor?: string | undefined; limit?: number | undefined }, signal?: AbortSignal): Promise<Page> =>
  request("GET", "/api/v1/console-users", { query, signal });

/** Add a user of the console */
export const addConsoleUser = (body: NewConsoleUser, signal?: AbortSignal): Promise<MadePassword> =>
  request("POST", "/api/v1/console-users", { body, signal });

/** Remove a user of the console */
export const removeConsoleUser = (name: string, signal?: AbortSignal): Promise<void> =>
  request("DELETE", `/api/v1/console-users/${part(name)}`, { signal });

/** Change the role of a user of the console */
export const changeConsoleUser = (name: string, body: ConsoleUserChange, signal?: AbortSignal): Promise<ConsoleUser> =>
  request("PUT", `/api/v1/console-users/${part(name)}`, { body, signal });

/** Make a new password for a user of the console */
export const resetConsolePassword = (name: string, signal?: AbortSignal): Promise<MadePassword> =>
  request("POST", `/api/v1/console-users/${part(name)}/password`, { signal });

/** The node's numbers over time */
export const history = (query?: { window_s?: number | undefined }, signal?: AbortSignal): Promise<HistoryView> =>
  request("GET", "/api/v1/history", { query, signal });

/** Listeners and their connections */
export const listeners = (signal?: AbortSignal): Promise<ListenerView[]> =>
  request("GET", "/api/v1/listeners", { signal });

/** Log in */
export const login = (body: LoginRequest, signal?: AbortSignal): Promise<LoginAnswer> =>
  request("POST", "/api/v1/login", { body, signal });

/** Log out */
export const logout = (signal?: AbortSignal): Promise<void> =>
  request("POST", "/api/v1/logout", { signal });

/** The last lines of the log */
export const logs = (query?: { cursor?: string | undefined; level?: LogLevel | undefined; limit?: number | undefined; text?: string | undefined }, signal?: AbortSignal): Promise<Page4> =>
  request("GET", "/api/v1/logs", { query, signal });

/** Change one's own password */
export const changePassword = (body: PasswordChange, signal?: AbortSignal): Promise<void> =>
  request("POST", "/api/v1/password", { body, signal });

/** Provision a device */
export const provisionDevice = (body: unknown, signal?: AbortSignal): Promise<unknown> =>
  request("POST", "/api/v1/provision", { body, signal });

/** Publish a message */
export const publish = (body: NewMessage, signal?: AbortSignal): Promise<Published> =>
  request("POST", "/api/v1/publish", { body, signal });

/** Publish up to 1000 messages */
export const publishBulk = (body: NewMessages, signal?: AbortSignal): Promise<PublishedAll> =>
  request("POST", "/api/v1/publish/bulk", { body, signal });

/** Who was turned away last */
export const refusedClients = (query?: { limit?: number | undefined }, signal?: AbortSignal): Promise<RefusedClient[]> =>
  request("GET", "/api/v1/refused-clients", { query, signal });

/** Restart the server */
export const restart = (signal?: AbortSignal): Promise<void> =>
  request("POST", "/api/v1/restart", { signal });

/** Do not restore */
export const cancelRestore = (signal?: AbortSignal): Promise<void> =>
  request("DELETE", "/api/v1/restore", { signal });

/** Restart and restore */
export const restoreNow = (signal?: AbortSignal): Promise<StartedBackup> =>
  request("POST", "/api/v1/restore/restart", { signal });

/** Delete the retained messages of a filter */
export const deleteRetainedMessages = (query: { filter: string | undefined }, signal?: AbortSignal): Promise<DeletedRetained> =>
  request("DELETE", "/api/v1/retained", { query, signal });

/** Retained messages by filter, page by page */
export const retainedMessages = (query?: { cursor?: string | undefined; filter?: string | undefined; limit?: number | undefined }, signal?: AbortSignal): Promise<Page7> =>
  request("GET", "/api/v1/retained", { query, signal });

/** Delete the retained message of a topic */
export const deleteRetainedMessage = (topic: string, signal?: AbortSignal): Promise<void> =>
  request("DELETE", `/api/v1/retained/${part(topic)}`, { signal });

/** The retained message of a topic */
export const retainedMessage = (topic: string, signal?: AbortSignal): Promise<RetainedMessage> =>
  request("GET", `/api/v1/retained/${part(topic)}`, { signal });

/** All rules */
export const rules = (signal?: AbortSignal): Promise<RuleView[]> =>
  request("GET", "/api/v1/rules", { signal });

/** Add a rule */
export const addRule = (body: RuleDefinition, signal?: AbortSignal): Promise<RuleView> =>
  request("POST", "/api/v1/rules", { body, signal });

/** Try a rule */
export const testRule = (body: DryRun, signal?: AbortSignal): Promise<DryRunResult> =>
  request("POST", "/api/v1/rules/test", { body, signal });

/** Delete a rule */
export const deleteRule = (id: string, signal?: AbortSignal): Promise<void> =>
  request("DELETE", `/api/v1/rules/${part(id)}`, { signal });

/** One rule */
export const rule = (id: string, signal?: AbortSignal): Promise<RuleView> =>
  request("GET", `/api/v1/rules/${part(id)}`, { signal });

/** Add or change a rule */
export const putRule = (id: string, body: RuleDefinition, ifMatch?: string, signal?: AbortSignal): Promise<RuleView> =>
  request("PUT", `/api/v1/rules/${part(id)}`, { body, ifMatch, signal });

/** Disable a rule */
export const disableRule = (id: string, signal?: AbortSignal): Promise<RuleView> =>
  request("POST", `/api/v1/rules/${part(id)}/disable`, { signal });

/** Enable a rule */
export const enableRule = (id: string, signal?: AbortSignal): Promise<RuleView> =>
  request("POST", `/api/v1/rules/${part(id)}/enable`, { signal });

/** What a rule has been */
export const ruleHistory = (id: string, signal?: AbortSignal): Promise<Version[]> =>
  request("GET", `/api/v1/rules/${part(id)}/history`, { signal });

/** Set a rule's counters to 0 */
export const resetRuleMetrics = (id: string, signal?: AbortSignal): Promise<RuleView> =>
  request("POST", `/api/v1/rules/${part(id)}/reset-metrics`, { signal });

/** Go back to an earlier version of a rule */
export const rollBackRule = (id: string, body: RollBack, signal?: AbortSignal): Promise<RuleView> =>
  request("POST", `/api/v1/rules/${part(id)}/roll-back`, { body, signal });

/** Delete data of before a restore */
export const removeSetAside = (name: string, signal?: AbortSignal): Promise<void> =>
  request("DELETE", `/api/v1/set-aside/${part(name)}`, { signal });

/** Groups of shared subscriptions */
export const sharedGroups = (query?: { limit?: number | undefined }, signal?: AbortSignal): Promise<SharedGroup[]> =>
  request("GET", "/api/v1/shared-groups", { query, signal });

/** Members of a shared subscription */
export const sharedMembers = (query: { filter: string | undefined; limit?: number | undefined; share_name: string | undefined }, signal?: AbortSignal): Promise<SharedMembers> =>
  request("GET", "/api/v1/shared-groups/members", { query, signal });

/** All sources */
export const sources = (signal?: AbortSignal): Promise<SourceView[]> =>
  request("GET", "/api/v1/sources", { signal });

/** Add a source */
export const addSource = (body: SourceDefinition, signal?: AbortSignal): Promise<SourceView> =>
  request("POST", "/api/v1/sources", { body, signal });

/** Delete a source */
export const deleteSource = (id: string, signal?: AbortSignal): Promise<void> =>
  request("DELETE", `/api/v1/sources/${part(id)}`, { signal });

/** One source */
export const source = (id: string, signal?: AbortSignal): Promise<SourceView> =>
  request("GET", `/api/v1/sources/${part(id)}`, { signal });

/** Add or change a source */
export const putSource = (id: string, body: SourceDefinition, ifMatch?: string, signal?: AbortSignal): Promise<SourceView> =>
  request("PUT", `/api/v1/sources/${part(id)}`, { body, ifMatch, signal });

/** Disable a source */
export const disableSource = (id: string, signal?: AbortSignal): Promise<SourceView> =>
  request("POST", `/api/v1/sources/${part(id)}/disable`, { signal });

/** Enable a source */
export const enableSource = (id: string, signal?: AbortSignal): Promise<SourceView> =>
  request("POST", `/api/v1/sources/${part(id)}/enable`, { signal });

/** Numbers of the node */
export const stats = (signal?: AbortSignal): Promise<StatsView> =>
  request("GET", "/api/v1/stats", { signal });

/** Subscriptions of all clients, page by page */
export const subscriptions = (query?: { cursor?: string | undefined; filter?: string | undefined; limit?: number | undefined }, signal?: AbortSignal): Promise<Page6> =>
  request("GET", "/api/v1/subscriptions", { query, signal });

/** MQTT users, page by page */
export const users = (query?: { cursor?: string | undefined; limit?: number | undefined }, signal?: AbortSignal): Promise<Page8> =>
  request("GET", "/api/v1/users", { query, signal });

/** Add an MQTT user */
export const addUser = (body: NewUser, signal?: AbortSignal): Promise<User> =>
  request("POST", "/api/v1/users", { body, signal });

/** Remove an MQTT user */
export const removeUser = (name: string, signal?: AbortSignal): Promise<void> =>
  request("DELETE", `/api/v1/users/${part(name)}`, { signal });

/** Change an MQTT user */
export const changeUser = (name: string, body: UserChange, signal?: AbortSignal): Promise<User> =>
  request("PUT", `/api/v1/users/${part(name)}`, { body, signal });

/** Ask for attributes */
export const getDeviceAttributes = (token: string, query?: { clientKeys?: string | undefined; sharedKeys?: string | undefined }, signal?: AbortSignal): Promise<unknown> =>
  request("GET", `/api/v1/${part(token)}/attributes`, { query, signal });

/** Send attributes */
export const postDeviceAttributes = (token: string, body: unknown, signal?: AbortSignal): Promise<void> =>
  request("POST", `/api/v1/${part(token)}/attributes`, { body, signal });

/** Wait for shared attributes */
export const waitForAttributes = (token: string, query?: { timeout?: number | undefined }, signal?: AbortSignal): Promise<unknown> =>
  request("GET", `/api/v1/${part(token)}/attributes/updates`, { query, signal });

/** Allow to be claimed */
export const claimDevice = (token: string, body: unknown, signal?: AbortSignal): Promise<void> =>
  request("POST", `/api/v1/${part(token)}/claim`, { body, signal });

/** Fetch firmware */
export const getDeviceFirmware = (token: string, query: { chunk?: number | undefined; size?: number | undefined; title: string | undefined; version: string | undefined }, signal?: AbortSignal): Promise<string> =>
  request("GET", `/api/v1/${part(token)}/firmware`, { query, signal });

/** Wait for a call */
export const waitForCall = (token: string, query?: { timeout?: number | undefined }, signal?: AbortSignal): Promise<unknown> =>
  request("GET", `/api/v1/${part(token)}/rpc`, { query, signal });

/** Call the server */
export const callServer = (token: string, body: unknown, signal?: AbortSignal): Promise<unknown> =>
  request("POST", `/api/v1/${part(token)}/rpc`, { body, signal });

/** Answer a call */
export const answerCall = (token: string, id: string, body: unknown, signal?: AbortSignal): Promise<void> =>
  request("POST", `/api/v1/${part(token)}/rpc/${part(id)}`, { body, signal });

/** Fetch software */
export const getDeviceSoftware = (token: string, query: { chunk?: number | undefined; size?: number | undefined; title: string | undefined; version: string | undefined }, signal?: AbortSignal): Promise<string> =>
  request("GET", `/api/v1/${part(token)}/software`, { query, signal });

/** Send telemetry */
export const postDeviceTelemetry = (token: string, body: unknown, signal?: AbortSignal): Promise<void> =>
  request("POST", `/api/v1/${part(token)}/telemetry`, { body, signal });

/** Is the process alive */
export const livez = (signal?: AbortSignal): Promise<string> =>
  request("GET", "/livez", { signal });

/** Metrics */
export const metrics = (signal?: AbortSignal): Promise<string> =>
  request("GET", "/metrics", { signal });

/** Should traffic come here */
export const readyz = (signal?: AbortSignal): Promise<Health> =>
  request("GET", "/readyz", { signal });

/** Should traffic come here: another name for `/readyz` */
export const status = (signal?: AbortSignal): Promise<Health> =>
  request("GET", "/status", { signal });
