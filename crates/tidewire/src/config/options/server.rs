//! Options of the process: node, limits, $SYS, the HTTP API and logs.

use std::path::PathBuf;
use std::time::Duration;

use crate::config::address::Bind;
use crate::config::key::Segment::Fixed;
use crate::config::option::section;
use crate::config::units::{ByteRate, ByteSize, Rate};
use crate::config::value::{Limit, Switch, Unset, choice};

section! {
    /// The process itself.
    pub struct Node at [Fixed("node")] {
        /// Name of this node in logs, metrics and the console. Empty: the host name.
        restart name: String = "";
        /// Other defaults, which everything that is set beats. `thingsboard` is for who comes from ThingsBoard: `platform.enabled` is true and
        /// `platform.bind` "0.0.0.0:8080", the port of its REST and WebSocket interface. The API and the console stay at `api.bind`.
        restart profile: Profile = "tidewire";
        /// Directory for everything that is kept: the admin password, changes made at run time. Made for the server's user alone.
        /// Empty: what systemd gives in `STATE_DIRECTORY`, or else `./data`.
        restart data_dir: Unset<PathBuf> = "";
        /// Data-plane threads. 0: one per core, 64 at most.
        restart workers: u16 = "0" ["0", "64"] in "threads";
    }
}

section! {
    /// Bounds of the whole node and of one client. A client that reaches one is slowed or refused with a reason; what
    /// it lost is counted.
    pub struct Limits at [Fixed("limits")] {
        /// Connections at the same time, over all listeners.
        restart max_connections: Limit<u64> = "unlimited" ["1", "100000000"] in "connections";
        /// Sessions, connected or not. A new client beyond it is refused with Quota exceeded. Each worker has an equal share of
        /// the number, and a client belongs to one by its client id: some are refused when their worker's share is taken, a
        /// little before all of them are.
        live max_sessions: Limit<u64> = "unlimited" ["1", "1000000000"] in "sessions";
        /// Bytes that may wait to be written to one connection before QoS 0 messages to it are dropped and others queue.
        live output_buffer_bytes: ByteSize = "1MiB" ["4KiB", "1GiB"];
        /// Messages that one client may publish: "100/s", or "10/m", which lets ten through at once and then one every
        /// six seconds. A faster one is slowed by not reading from it.
        live publish_rate: Switch<Rate> = "off";
        /// Bytes that one client may send. A faster one is slowed by not reading from it.
        live publish_bytes: Switch<ByteRate> = "off";
        /// How long clients have to take what is in their buffers when the node stops. It is never exceeded.
        restart shutdown_grace: Duration = "10s" ["0s", "10m"];
    }
}

choice! {
    /// Which defaults there are.
    pub enum Profile {
        /// Those of the reference.
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
    /// When a message counts as kept.
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
    /// Which messages are acknowledged only after they have been kept.
    pub enum DurabilityWait {
        /// Those of which something outlives a connection: docs/durability.md has the rule.
        IfNeeded = "if_needed",
        /// All at QoS 1 and 2, whoever gets them.
        Always = "always",
    }
}

section! {
    /// What survives a restart: sessions that outlive their connection, their queues, retained messages. They are in
    /// `journal/` of the data directory. docs/durability.md says what is promised.
    pub struct Durability at [Fixed("durability")] {
        /// `fsync`: acknowledged is on the disk. `os`: acknowledged is with the operating system, which writes it within about
        /// a second. `memory`: nothing is kept.
        restart policy: DurabilityPolicy = "fsync";
        /// `if_needed`: a message at QoS 1 that only clients get whose sessions end with their connections is acknowledged at once, as there
        /// is nothing to keep. `always`: every message at QoS 1 and 2 is in the journal before it is acknowledged.
        live wait: DurabilityWait = "if_needed";
        /// Bytes that all of the journal may use. What would need more is refused (Quota exceeded) until something has been
        /// delivered or has expired.
        restart max_bytes: ByteSize = "16GiB" ["1MiB", "65536GiB"];
        /// Free space of the disk that is left alone.
        restart reserve_bytes: ByteSize = "256MiB" ["0", "65536GiB"];
        /// Size of one file. Space is taken back in such pieces.
        restart segment_bytes: ByteSize = "64MiB" ["64KiB", "4GiB"];
    }
}

section! {
    /// Statistics as topics below `$SYS`. They are published by the HTTP side, so that `api.enabled = false` ends them too.
    pub struct Sys at [Fixed("sys")] {
        /// How often the topics are published.
        restart interval: Switch<Duration> = "10s" ["1s", "1d"];
        /// Mosquitto's tree: `$SYS/broker/clients/connected` and so on.
        restart mosquitto_tree: bool = "true";
        /// EMQX's tree: `$SYS/brokers/<node>/stats/...` and the connected and disconnected events of clients.
        restart emqx_tree: bool = "true";
    }
}

section! {
    /// The HTTP side: API, metrics, health and the console.
    pub struct Api at [Fixed("api")] {
        /// Turns all of it on or off.
        restart enabled: bool = "true";
        /// Where to listen. Open it to others with "0.0.0.0:18083", and give it a certificate then.
        restart bind: Bind = "127.0.0.1:18083";
        /// Certificate chain (PEM). With it the API speaks HTTPS only.
        live cert_file: Unset<PathBuf> = "";
        /// Private key of the certificate (PEM), not encrypted.
        live key_file: Unset<PathBuf> = "";
        /// Users of the API and the console, with hashed passwords. Empty: `admins` in the data directory,
        /// made at the first start with one user `admin` and a random password.
        restart users_file: Unset<PathBuf> = "";
        /// How long a login is good for.
        restart token_lifetime: Duration = "12h" ["1m", "30d"];
        /// Whether `/metrics` and the statistics can be read without a login from other machines too, when `bind` is not on
        /// loopback. From this machine they always can.
        restart metrics_without_login: bool = "false";
        /// Names, without a port, under which an API on loopback may be asked besides `localhost` and addresses of loopback: those
        /// that a reverse proxy passes on as Host. Other names are refused (421), because a web page can give itself a name
        /// that leads to this machine. Behind a proxy every request comes from loopback: metrics and statistics are then
        /// open to whoever the proxy lets through, and failed logins of all of them count as those of one address.
        restart allowed_hosts: Vec<String> = "";
    }
}

section! {
    /// Benchmarks of this node that the console and the API start, for administrators only. `tidewire bench` on the command line is not
    /// bound by this.
    pub struct Benchmark at [Fixed("benchmark")] {
        /// Whether any can be started.
        restart enabled: bool = "true";
        /// Clients that one may have.
        restart max_clients: u32 = "5000" ["1", "1000000"] in "clients";
        /// How long one may publish.
        restart max_duration: Duration = "5m" ["1s", "1d"];
    }
}

choice! {
    /// How loud the log is.
    pub enum LogLevel { Error = "error", Warn = "warn", Info = "info", Debug = "debug", Trace = "trace" }
}

choice! {
    /// How a log line looks.
    pub enum LogFormat {
        /// JSON where systemd's journal reads it, text otherwise.
        Auto = "auto",
        Text = "text",
        Json = "json",
    }
}

section! {
    /// The log. It never holds passwords, tokens or payloads.
    pub struct Log at [Fixed("log")] {
        /// Least severity that is written. What a client caused is never above `info`.
        restart level: LogLevel = "info";
        /// `auto` writes JSON where systemd's journal reads it, and text otherwise.
        restart format: LogFormat = "auto";
        /// File to append to. Empty: standard error. SIGHUP opens it anew, for who has moved it away.
        restart file: Unset<PathBuf> = "";
    }
}
