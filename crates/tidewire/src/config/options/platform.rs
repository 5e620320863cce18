//! Options of the device platform.

use std::time::Duration;

use auth::Cidr;

use crate::config::address::Bind;
use crate::config::key::KeySegment::Fixed;
use crate::config::option::section;
use crate::config::units::ByteSize;
use crate::config::value::Unset;

section! {
    /// Device platform, compatible with ThingsBoard: stores telemetry and attributes, runs rule chains, raises
    /// alarms. Its data is in `platform/` of the data directory.
    pub struct Platform at [Fixed("platform")] {
        /// Enables the platform. Clients that connect with the credentials of a device are devices. They use the
        /// device topics, which other clients cannot access.
        restart enabled: bool = "false";
        /// Additional address that serves only the REST and WebSocket API of ThingsBoard. Clients of ThingsBoard
        /// expect "0.0.0.0:8080". With `api.cert_file` it uses HTTPS. Empty: only `api.bind` serves it.
        restart bind: Unset<Bind> = "";
        /// Creates the demo users of ThingsBoard at the start if they are missing: sysadmin@thingsboard.org,
        /// tenant@thingsboard.org and customer@thingsboard.org. Their passwords are public (the part before the at
        /// sign): do not use this in production. `tidewire --demo` sets this option and `enabled`. Without it, an
        /// administrator creates tenants and users by the API.
        restart demo: bool = "false";
        /// Maximum size of the ingest log: device messages that are not stored in the database yet. If it is full,
        /// the server stops reading from devices. `durability.policy` also applies to this log; `memory` counts as
        /// `os`.
        restart max_log_bytes: ByteSize = "4GiB" ["64MiB", "65536GiB"];
        /// Maximum memory for values that are not in a file yet.
        restart head_bytes: ByteSize = "64MiB" ["1MiB", "64GiB"];
        /// A device becomes inactive if it sends nothing for this time. Its server attribute `inactivityTimeout`
        /// (milliseconds) has priority.
        restart inactivity_timeout: Duration = "10m" ["1s", "365d"];
        /// Counts MQTT pings as activity. If false, a connected device that sends only pings becomes inactive after
        /// `inactivity_timeout`.
        restart pings_are_activity: bool = "true";
        /// Days after which telemetry is deleted, for tenants whose profile does not set it (`defaultStorageTtlDays`
        /// is null). 0: never.
        restart telemetry_days: u32 = "0" ["0", "36500"] in "days";
        /// Days after which the usage statistics of tenants (per hour and per month) are deleted. 0: never.
        restart usage_days: u32 = "730" ["0", "36500"] in "days";
        /// Maximum number of telemetry keys of a device or other entity, and of its attributes. Values with further
        /// new keys are refused and counted, and the log and an event of the device name the key. Known keys are not
        /// affected. The default is far above what devices use, and bounds the memory that one device can occupy.
        restart max_keys: u16 = "10000" ["1", "65535"] in "keys";
        /// Time after which users of the platform must log in again, however often their tokens were refreshed.
        restart login_max_age: Duration = "30d" ["1h", "3650d"];
        /// Time for which the activation link of a new user is valid. Afterwards an administrator can get a new link.
        restart activation_link_max_age: Duration = "24h" ["1m", "365d"];
        /// CPU time that the scripts of one tenant may use, in percent of one core. A tenant may use the CPU time of 10
        /// seconds at once. Then its scripts and messages wait, and the alarm `script_cpu:<tenant>` begins. The
        /// default leaves time for other tenants on a machine with two cores. With 100, scripts of a tenant never wait
        /// for CPU time, because only one of them runs at a time. If there are several tenants, the time of messages
        /// whose other rule nodes take longer than 200 µs counts as well.
        restart script_cpu_percent: u32 = "50" ["1", "100"] in "percent";
        /// Slow scripts that run at the same time, each of another tenant. Each has a process with lower priority.
        restart script_processes: u32 = "2" ["1", "64"] in "processes";
        /// Networks that REST, MQTT and Kafka nodes of rule chains can connect to, in addition to the internet, for
        /// example `["10.1.0.0/16", "fd00:1::/32"]`. Tenants define these nodes. The default protects this machine
        /// and its network: loopback, private, link-local and other reserved addresses, cloud metadata services and
        /// the addresses of this machine are refused unless they are listed. Connectors are not limited, because
        /// server administrators define them.
        restart outbound_networks: Vec<Cidr> = "";
    }
}
