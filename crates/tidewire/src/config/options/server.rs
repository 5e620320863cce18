//! Options of the process: node, limits, $SYS, the HTTP API and logs.

use std::path::PathBuf;
use std::time::Duration;

use auth::Cidr;

use crate::config::address::{Bind, SyslogAddress};
use crate::config::key::KeySegment::Fixed;
use crate::config::option::section;
use crate::config::options::listeners::TlsVersion;
use crate::config::units::{ByteRate, ByteSize, Rate};
use crate::config::value::{Limit, Switch, Unset, choice};

section! {
    /// The server process.
    pub struct Node at [Fixed("node")] {
        /// Name of this node in logs, metrics and the console. Empty: the host name.
        restart name: String = "";
        /// Set of defaults. `thingsboard` is for users of ThingsBoard: it sets `platform.enabled` to true and
        /// `platform.bind` to "0.0.0.0:8080", where clients of ThingsBoard expect REST and WebSocket. Options that
        /// are set have priority.
        restart profile: Profile = "tidewire";
        /// Directory of all data. The server creates it, readable for its own user only. Empty: `STATE_DIRECTORY` of
        /// systemd, otherwise `./data`.
        restart data_dir: Unset<PathBuf> = "";
        /// Number of data-plane threads. 0: one per core, at most 64.
        restart workers: u16 = "0" ["0", "64"] in "threads";
    }
}

section! {
    /// Limits of the node and of each client. The server slows down or rejects a client that reaches a limit, and
    /// counts dropped messages by reason.
    pub struct Limits at [Fixed("limits")] {
        /// Maximum number of connections on all listeners.
        restart max_connections: Limit<u64> = "unlimited" ["1", "100000000"] in "connections";
        /// Maximum rate of new connections from an address, IPv6 by its /64, on all listeners together: "10/s", or
        /// "60/m", which allows a burst of 60. The server resets and counts further connections. Behind a trusted
        /// proxy, the address of the client counts. All clients behind a NAT router have one address.
        restart max_connection_rate_per_address: Limit<Rate> = "unlimited";
        /// Maximum number of sessions, online and offline. The server rejects further clients with Quota exceeded.
        live max_sessions: Limit<u64> = "unlimited" ["1", "1000000000"] in "sessions";
        /// Maximum number of sessions of a user, online and offline. The server rejects further clients of the user
        /// with Quota exceeded. Clients without a user name count by their address, IPv6 by its /64. Empty: one session
        /// per 8 KiB of the memory that the process may use.
        live max_sessions_per_user: Unset<Limit<u64>> = "" ["1", "1000000000"] in "sessions";
        /// Maximum size of the client IDs, wills and attributes (`access.client_attrs`) of a user's sessions, online
        /// and offline. The server rejects further clients of the user with Quota exceeded. Empty: one thirty-second of
        /// the memory that the process may use.
        live max_session_bytes_per_user: Unset<Limit<ByteSize>> = "" ["64KiB", "1024GiB"];
        /// Maximum number of subscriptions of all sessions of a user, online and offline. The server rejects further
        /// subscriptions with Quota exceeded (MQTT 3.x: 0x80). Clients without a user name count by their address, IPv6
        /// by its /64. `mqtt.max_subscriptions` limits each session.
        live max_subscriptions_per_user: Limit<u64> = "unlimited" ["1", "1000000000"] in "subscriptions";
        /// Maximum size of the messages in the queues of all sessions of a user, online and offline, in memory and in
        /// the journal. At the limit, `mqtt.queue_drop` selects the message of the session that the server drops. It
        /// drops the new message if other sessions of the user use the space. Clients without a user name count by
        /// their address, IPv6 by its /64. Queues of shared subscriptions do not count. `mqtt.max_queued_bytes` limits
        /// each session.
        live max_queued_bytes_per_user: Limit<ByteSize> = "unlimited" ["64KiB", "1024GiB"];
        /// Part of the node's limits that one user can use: of the number and the size of retained messages
        /// (`retained.max_messages`, `retained.max_bytes`), of the number and the size of delayed messages
        /// (`mqtt.max_delayed_messages`), and of the journal (`durability.max_bytes`) with both together. Beyond it,
        /// the server rejects the user's further messages of this kind with Quota exceeded; the user can still replace
        /// and delete its retained messages. Clients without a user name count by their address, IPv6 by its /64. 100:
        /// one user can use everything.
        live user_share: u8 = "25" ["1", "100"] in "percent";
        /// As `user_share`, for one client. Lower it, or raise `user_share`, if many clients have the same user name.
        live client_share: u8 = "25" ["1", "100"] in "percent";
        /// Maximum size of unsent output per connection. Beyond it, the server drops QoS 0 messages to the client and
        /// queues the others.
        live output_buffer_bytes: ByteSize = "1MiB" ["4KiB", "1GiB"];
        /// Maximum size of unsent output per connection during a burst of messages, instead of `output_buffer_bytes`.
        /// It applies for one second after the client's socket has last accepted all output, and only while the unsent
        /// output of all clients of the worker is at most 64 MiB.
        live burst_buffer_bytes: ByteSize = "16MiB" ["0B", "1GiB"];
        /// Maximum memory of incomplete packets of all clients together, beyond 4 KiB per client. The server
        /// disconnects a client with Quota exceeded if its packet needs more. Empty: an eighth of the memory that the
        /// process may use: the smallest of the machine's memory, the limit of the control group and `ulimit -v`.
        restart max_incomplete_packets: Unset<ByteSize> = "" ["1MiB", "1024GiB"];
        /// Maximum memory of the windows of all QUIC connections together, beyond 32 KiB per connection. A window
        /// grows to 512 KiB for data that a client may send at once, and to 512 KiB for output that it has not
        /// acknowledged. A connection takes at most an eighth of the free part. Windows that need more do not grow:
        /// the client then sends or receives at least 16 KiB per round trip. Empty: an eighth of the memory that the
        /// process may use.
        restart max_quic_windows: Unset<ByteSize> = "" ["0B", "1024GiB"];
        /// Maximum publish rate per client: "100/s", or "10/m" for a burst of ten messages and then one every six
        /// seconds. The server slows down a faster client: it stops reading from the connection, and drops no message.
        live publish_rate: Switch<Rate> = "off";
        /// Maximum number of bytes of PUBLISH packets per time from a client: "1MiB/s". The server slows down a faster
        /// client, as with `publish_rate`. A message may be larger than the amount: the client then waits longer.
        live publish_bytes: Switch<ByteRate> = "off";
        /// As `publish_rate`, for all connections of a user together. The server reads from them in turns. Clients
        /// without a user name count by their address, IPv6 by its /64. Devices of the platform are no users.
        live publish_rate_per_user: Switch<Rate> = "off";
        /// As `publish_bytes`, for all connections of a user together.
        live publish_bytes_per_user: Switch<ByteRate> = "off";
        /// As `publish_rate`, for all connections from an address together, IPv6 by its /64. All clients behind a NAT
        /// router have one address.
        live publish_rate_per_address: Switch<Rate> = "off";
        /// As `publish_bytes`, for all connections from an address together.
        live publish_bytes_per_address: Switch<ByteRate> = "off";
        /// Maximum time at shutdown to send the remaining output to clients.
        restart shutdown_grace: Duration = "10s" ["0s", "10m"];
    }
}

choice! {
    /// Set of defaults.
    pub enum Profile {
        /// The defaults of the reference.
        Tidewire = "tidewire",
        /// The device platform, where clients of ThingsBoard look for it.
        ThingsBoard = "thingsboard",
    }
}

impl Profile {
    /// Other defaults than those of the reference, as text.
    pub const fn defaults(self) -> &'static [([&'static str; 2], &'static str)] {
        match self {
            Profile::Tidewire => &[],
            Profile::ThingsBoard => &[
                (["platform", "enabled"], "true"),
                (["platform", "bind"], "0.0.0.0:8080"),
            ],
        }
    }
}

choice! {
    /// When a message counts as durable.
    pub enum DurabilityPolicy {
        /// When it is on the disk: survives a power cut.
        Fsync = "fsync",
        /// When the operating system has it: survives the end of the process, not a power cut.
        Os = "os",
        /// Nothing is written. Sessions, queues and retained messages end with the process.
        Memory = "memory",
    }
}

choice! {
    /// Which messages the server acknowledges only after it has stored them.
    pub enum DurabilityWait {
        /// Messages that a session, retained store or rule needs after their connection ends.
        IfNeeded = "if_needed",
        /// All messages at QoS 1 and 2.
        Always = "always",
    }
}

choice! {
    /// The server's reaction to a journal failure.
    pub enum JournalFailure { Continue = "continue", Exit = "exit" }
}

section! {
    /// Persistence of sessions with a Session Expiry Interval above 0, their queues, and retained messages.
    /// The journal is in `journal/` of the data directory. The book describes the guarantees in *Concepts:
    /// Durability*.
    pub struct Durability at [Fixed("durability")] {
        /// `fsync`: acknowledged data is on the disk and survives a power failure. `os`: acknowledged data is with
        /// the operating system, which writes it within about a second; it survives a crash of the server. `memory`:
        /// nothing is stored.
        restart policy: DurabilityPolicy = "fsync";
        /// `if_needed`: the server acknowledges a QoS 1 message immediately if only sessions that end with their
        /// connections receive it. `always`: it writes each QoS 1 and QoS 2 message to the journal first.
        live wait: DurabilityWait = "if_needed";
        /// Minimum time between two syncs (`fdatasync`) of the journal, of each action's buffer on disk, and of the
        /// ingest log of the device platform. Each acknowledgement waits for the sync of its data, so a longer interval
        /// costs latency and saves writes to flash memory, such as SD cards: "200ms". 1 MiB of new data ends the
        /// interval. With the policy `os`, only the sync in the background waits.
        restart commit_interval: Duration = "0s" ["0s", "2s"];
        /// Maximum size of the journal. Beyond it, the server rejects messages that need the journal with Quota
        /// exceeded, until space is freed.
        restart max_bytes: ByteSize = "16GiB" ["1MiB", "65536GiB"];
        /// Free disk space that the journal does not use.
        restart reserve_bytes: ByteSize = "256MiB" ["0", "65536GiB"];
        /// Size of a journal file. The journal frees disk space in units of this size.
        restart segment_bytes: ByteSize = "64MiB" ["64KiB", "4GiB"];
        /// The server's reaction to a journal failure, for example an I/O error. `continue`: it serves
        /// messages that do not need the journal, and `/readyz` reports 503. `exit`: the process ends with exit code
        /// 1, so that a supervisor such as systemd or Kubernetes restarts it.
        restart on_failure: JournalFailure = "continue";
    }
}

section! {
    /// Statistics as topics below `$SYS`. The HTTP server publishes them, so `api.enabled = false` also disables
    /// them.
    pub struct Sys at [Fixed("sys")] {
        /// Interval at which the topics are published.
        restart interval: Switch<Duration> = "10s" ["1s", "1d"];
        /// Publishes the topics of Mosquitto: `$SYS/broker/clients/connected` and others.
        restart mosquitto_tree: bool = "true";
        /// Publishes the topics of EMQX: `$SYS/brokers/<node>/stats/...`, and events of clients that connect and
        /// disconnect.
        restart emqx_tree: bool = "true";
    }
}

section! {
    /// HTTP server: API, metrics, health and console.
    pub struct Api at [Fixed("api")] {
        /// Enables the HTTP server.
        restart enabled: bool = "true";
        /// Address and port. Use "0.0.0.0:18083" to allow other machines, and set a certificate.
        restart bind: Bind = "127.0.0.1:18083";
        /// Certificate chain (PEM). If set, the API uses HTTPS only.
        live cert_file: Unset<PathBuf> = "";
        /// Private key of the certificate (PEM), not encrypted.
        live key_file: Unset<PathBuf> = "";
        /// Uses the certificate of `tls.acme`: the API uses HTTPS only. Excludes `cert_file`.
        live acme: bool = "false";
        /// Whether handshakes contain an OCSP response about the certificate, as `ocsp_stapling` of listeners.
        live ocsp_stapling: bool = "false";
        /// URL of the OCSP responder. Empty: the URL in the certificate.
        live ocsp_responder_url: Unset<String> = "";
        /// Certificate of the issuer (PEM). Empty: it follows the certificate of the server in `cert_file`.
        live ocsp_issuer_file: Unset<PathBuf> = "";
        /// Minimum TLS version: "1.2" or "1.3".
        live min_tls_version: TlsVersion = "1.2";
        /// Allowed cipher suites, as in `tls.cipher_suites`. Empty: all suites of the server.
        live cipher_suites: Vec<String> = "";
        /// Users of the API and the console with hashed passwords. Empty: `admins` in the data directory. At the
        /// first start, the server creates it with the user `admin` and a random password.
        restart users_file: Unset<PathBuf> = "";
        /// Lifetime of a login.
        restart token_lifetime: Duration = "12h" ["1m", "30d"];
        /// Requires a second factor (TOTP) of all console users: a user without one can only set it up after the login.
        /// API keys and users of an identity provider (`api.oidc`) need none.
        restart require_totp: bool = "false";
        /// Allows other machines to read `/metrics` and statistics without a login. If `bind` is a loopback address,
        /// this machine can always read them.
        restart metrics_without_login: bool = "false";
        /// Additional host names, without port, that requests to an API on loopback may have: the names that a
        /// reverse proxy passes on as Host. The server rejects other names with 421, because a web page can use a
        /// name of its own that resolves to this machine.
        restart allowed_hosts: Vec<String> = "";
        /// Proxies (addresses or networks) whose header `X-Forwarded-For` names the client, for the audit log,
        /// lock-outs after failed logins and the share of concurrent requests. All clients behind another proxy on this
        /// machine have the address 0.0.0.0. They do not count as local, so they cannot read metrics without a login.
        restart trusted_proxies: Vec<Cidr> = "";
        /// Maximum number of HTTP connections from one address, or from one /64 of IPv6. The address may have the same
        /// share of the concurrent requests. 0: half of all connections, 128 if the limit of open files is at least
        /// 4096. Raise it if a reverse proxy forwards the requests of many clients.
        restart max_connections_per_address: u32 = "0" ["0", "256"] in "connections";
        /// Maximum memory of answers and WebSocket messages that clients have not received yet, without those of up to
        /// 16 KiB. A further answer is 503 with `Retry-After`. The clients of one address have at most half of it.
        /// Empty: a sixteenth of the memory that the process may use, at most 256 MiB.
        restart max_unsent_answers: Unset<ByteSize> = "" ["1MiB", "1024GiB"];
    }
}

section! {
    /// Benchmarks of this node that administrators start in the console or by the API. They do not limit `tidewire
    /// bench`.
    pub struct Benchmark at [Fixed("benchmark")] {
        /// Allows benchmarks.
        restart enabled: bool = "true";
        /// Maximum number of clients of a benchmark.
        restart max_clients: u32 = "5000" ["1", "1000000"] in "clients";
        /// Maximum duration of a benchmark.
        restart max_duration: Duration = "5m" ["1s", "1d"];
    }
}

choice! {
    /// Severity of log lines.
    pub enum LogLevel { Error = "error", Warn = "warn", Info = "info", Debug = "debug", Trace = "trace" }
}

choice! {
    /// Format of log lines.
    pub enum LogFormat {
        /// JSON where systemd's journal reads it, text otherwise.
        Auto = "auto",
        Text = "text",
        Json = "json",
    }
}

section! {
    /// The log. It contains no passwords, tokens or payloads.
    pub struct Log at [Fixed("log")] {
        /// Minimum severity. Events that a client causes are never above `info`.
        restart level: LogLevel = "info";
        /// `auto` writes JSON if the output is the journal of systemd, and text otherwise.
        restart format: LogFormat = "auto";
        /// Log file. Empty: standard error. SIGHUP reopens the file, so that it can be rotated.
        restart file: Unset<PathBuf> = "";
        /// System log that receives the lines with their fields, instead of standard error: "journald" (systemd's
        /// journal, with fields such as `TIDEWIRE_CLIENT_ID`), or RFC 5424 with structured data to a socket, such as
        /// "unix:/dev/log", or to a host, such as "udp://logs.example.com:514". The server never waits for it. It
        /// drops lines that the system log does not accept, and counts them in `tidewire_log_lines_dropped_total`.
        restart syslog: Unset<SyslogAddress> = "";
    }
}
