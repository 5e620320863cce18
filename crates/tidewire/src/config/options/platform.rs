//! Options of the device platform.

use std::time::Duration;

use crate::config::address::Bind;
use crate::config::key::Segment::Fixed;
use crate::config::option::section;
use crate::config::units::ByteSize;
use crate::config::value::Unset;

section! {
    /// Devices as ThingsBoard has them: what they send is kept as time series and attributes, rules make alarms of it. docs/platform.md says what
    /// there is. All of it is in `platform/` of the data directory.
    pub struct Platform at [Fixed("platform")] {
        /// Clients that connect with the credentials of a device are devices: they have topics of their own, which no other client
        /// sees.
        restart enabled: bool = "false";
        /// Where ThingsBoard's REST and WebSocket interface is, besides `api.bind`, and nothing else: "0.0.0.0:8080" is where its
        /// clients look for it. With `api.cert_file` it is HTTPS here, too. Empty: nowhere.
        restart bind: Unset<Bind> = "";
        /// Makes the users of ThingsBoard's demonstration at the start, if they are not there: sysadmin@thingsboard.org,
        /// tenant@thingsboard.org and customer@thingsboard.org. Their passwords, which everybody knows, are what stands before
        /// the at sign: for trying out only. `tidewire --demo` sets this and `enabled`. Without it an administrator of the API creates tenants and users.
        restart demo: bool = "false";
        /// Bytes that the log of devices may use: what they said and what is not stored yet. When it is full devices are not
        /// read from. What is kept when a device is told that its message was received is `durability.policy`; with `memory` it
        /// is `os` here.
        restart max_log_bytes: ByteSize = "4GiB" ["64MiB", "65536GiB"];
        /// Memory for values that are not on the disk yet.
        restart head_bytes: ByteSize = "64MiB" ["1MiB", "64GiB"];
        /// A device from which nothing was heard for so long is inactive. Its server attribute `inactivityTimeout` (milliseconds) wins.
        restart inactivity_timeout: Duration = "10m" ["1s", "365d"];
        /// Whether a device that only pings is active. If not, one that stays connected and says nothing for `inactivity_timeout` is inactive.
        restart pings_are_activity: bool = "true";
        /// Days for which telemetry is kept, of tenants whose profile does not say (`defaultStorageTtlDays` is null). 0: for ever.
        restart telemetry_days: u32 = "0" ["0", "36500"] in "days";
        /// Days for which is kept what tenants used, per hour and month. 0: for ever.
        restart usage_days: u32 = "730" ["0", "36500"] in "days";
    }
}
