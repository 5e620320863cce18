//! The interface between the orchestrator and the drivers, which generate the load: this process, or an agent on
//! another machine.
//!
//! A driver gets a [`DriverJob`] and then commands in the order of [`DriverCommand`]; it answers with events. Both
//! travel to agents as one line of JSON each. Times are nanoseconds on the *run clock*, which starts at 0 when the
//! orchestrator starts; a driver adds `DriverJob::clock_offset_ns` to its own clock (0 in this process).

use std::ops::{AddAssign, Range};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::histogram::Histogram;
use crate::scenario::Scenario;
use crate::target::LoadTarget;

/// Generates load. Implementations: worker threads in this process, and an agent reached over TCP.
pub trait Driver {
    /// The name of the driver in messages: "this process", "10.0.0.7:7000".
    fn name(&self) -> &str;
    fn command(&mut self, command: DriverCommand) -> Result<(), String>;
    /// Waits for the next event for at most `timeout`. An error is final.
    fn event(&mut self, timeout: Duration) -> Result<Option<DriverEvent>, String>;
    /// Measures, after the outcome, by how much the driver's times may be wrong; `None` if it has no clock of its own.
    fn clock_error_ns(&mut self) -> Option<u64> {
        None
    }
}

/// The part of a scenario that one driver executes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DriverJob {
    pub scenario: Scenario,
    pub target: LoadTarget,
    /// Distinguishes the messages and client ids of this run from those of another run.
    pub run: u16,
    /// For each group, the range of its clients (0-based) that this driver runs.
    pub clients: Vec<Range<u32>>,
    pub threads: u16,
    /// The driver's part of the connects per second.
    pub connect_rate: f64,
    /// Run clock minus the driver's own clock.
    pub clock_offset_ns: i64,
    /// Nanoseconds since 1970 at time 0 of the run clock, by the orchestrator's clock: the same value for all drivers.
    #[serde(default)]
    pub epoch_ns: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DriverCommand {
    /// Connect and subscribe the clients that are present from the beginning. Answer: `Progress` every second, from now
    /// until the outcome; `Ready`.
    Connect(Box<DriverJob>),
    /// Start the schedule at this time (the same for all drivers), publish during warm-up and duration, and stop
    /// without a command. Intervals end at the start, every second after it, at the end of the warm-up and at the end
    /// of the duration. Answer: `Progress`; `SentCounts` when the last message is sent and, with QoS 1 and 2, is
    /// acknowledged or given up.
    Publish { start_ns: u64 },
    /// All drivers have sent; connect the clients that wait for this. Answer: `Progress` as before, `Ready` when they
    /// are connected.
    Return,
    /// End publishing early (Ctrl-C). Answer: as for `Publish`.
    Stop,
    /// The command carries the number of messages that each publisher has sent, over all drivers. Wait for missing
    /// messages (until none has arrived for the drain time), compare, disconnect. Answer: `ReconcileOutcome`.
    Reconcile { sent: Vec<SentCounts> },
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DriverEvent {
    /// All clients of this driver that should be connected are connected or were given up (see
    /// `LoadCounts::connects_failed`), and their subscriptions are answered. The interval begins at the last
    /// `Progress`.
    Ready(Box<LoadInterval>),
    Progress(Box<LoadInterval>),
    Sent {
        sent: Vec<SentCounts>,
    },
    Outcome(Box<ReconcileOutcome>),
    /// The driver cannot go on, for this reason.
    Failed(String),
}

/// Position of a group in the scenario.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct GroupIndex(u16);

impl GroupIndex {
    /// A scenario has far fewer groups than 65,536.
    pub fn new(position: usize) -> GroupIndex {
        GroupIndex(position as u16)
    }

    pub fn position(self) -> usize {
        usize::from(self.0)
    }
}

/// Number of a client in its group, from 0, over all machines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ClientIndex(pub u32);

/// The number of messages that each of the clients `first..first + counts.len()` of a group has sent: sequence numbers
/// 0..count.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SentCounts {
    pub group: GroupIndex,
    pub first: ClientIndex,
    pub counts: Vec<u64>,
    /// The messages among these that the broker refused or never acknowledged, so that their delivery is not
    /// guaranteed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unaccepted: Vec<Unaccepted>,
}

/// The sequence numbers `from..to` of a client of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unaccepted {
    pub client: ClientIndex,
    pub from: u64,
    pub to: u64,
}

/// Counts and latencies between two reports of one driver.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LoadInterval {
    /// End of the interval, on the run clock.
    pub end_ns: u64,
    pub length_ns: u64,
    pub counts: LoadCounts,
    /// Time from when a message was due until a subscriber received it.
    pub end_to_end: Histogram,
    /// Time from when a message was due until PUBACK or PUBCOMP.
    pub acknowledgement: Histogram,
    /// Time from the first SYN to CONNACK.
    pub connect: Histogram,
    /// The part of `connect` until the transport was established: TCP, TLS and WebSocket handshakes.
    pub handshake: Histogram,
    pub subscribe: Histogram,
    /// Delay of a message after its due time that the generator caused; waiting for a full window or socket is not
    /// included.
    pub lateness: Histogram,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LoadCounts {
    /// Connections at the end of the interval; a level, not a difference.
    pub connected: u64,
    pub connects: u64,
    pub connects_failed: u64,
    /// Connections that ended although the client did not close them.
    pub disconnects: u64,
    /// Full TLS handshakes with a certificate, and handshakes that a ticket of an earlier one shortened.
    pub tls_full: u64,
    pub tls_resumed: u64,
    pub subscribes: u64,
    pub subscribes_failed: u64,
    /// Messages that were due by the schedule (open model only).
    pub due: u64,
    pub published: u64,
    pub acknowledged: u64,
    /// Acknowledgements with a reason code of 0x80 or above.
    pub refused: u64,
    pub received: u64,
    pub bytes_out: u64,
    pub bytes_in: u64,
    /// Data segments that the kernel received (TCP_INFO), for the mean size of the broker's writes.
    pub segments_in: u64,
    /// Data segments that the kernel sent.
    pub segments_out: u64,
    /// CPU time of all threads of the driver.
    pub cpu_ns: u64,
    /// CPU time of the busiest thread of the driver.
    pub busiest_thread_cpu_ns: u64,
    /// The longest time for which one thread was ready to run but had no core; 0 if the kernel does not report it.
    pub longest_wait_ns: u64,
}

/// The result of comparing the messages that were sent and received.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ReconcileOutcome {
    pub truth: ReconciledCounts,
    /// The first few findings in words: which subscriber did not receive what from which publisher.
    pub examples: Vec<String>,
    /// The reasons of lost connections, failed connects and refused packets, with their counts.
    pub errors: Vec<(String, u64)>,
    /// Time on the run clock at which a subscriber received the last message; 0 if none arrived.
    #[serde(default)]
    pub last_arrival_ns: u64,
    /// Receipts of shared subscriptions with members on several machines; `load::conclude_shares` combines those of all
    /// drivers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shares: Vec<ShareReceipt>,
}

/// The messages of one publisher that reached those members of a shared subscription that one driver has.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShareReceipt {
    /// The complete filter, `$share/…`.
    pub filter: String,
    /// The group of the publisher.
    pub group: GroupIndex,
    pub client: ClientIndex,
    /// Sequence numbers as ranges `from..to`.
    pub received: Vec<(u32, u32)>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ReconciledCounts {
    /// Pairs of a publisher and a subscriber (or a shared subscription) that were compared. A job without publishers
    /// compares the messages of other runs: it expects every sequence number between the first and the last that a pair
    /// received.
    pub flows: u64,
    pub expected: u64,
    /// Distinct messages received of the expected ones.
    pub received: u64,
    pub lost: u64,
    pub duplicated: u64,
    /// Messages that arrived after a later one of the same flow; only first deliveries count.
    pub reordered: u64,
    /// Messages whose payload, topic or sender differs from the published one.
    pub corrupt: u64,
    /// Messages that cannot be checked: templates without `${truth}`, payloads under 16 bytes, and those of another run
    /// that this job does not compare.
    pub unverified: u64,
}

impl AddAssign<&ReconciledCounts> for ReconciledCounts {
    fn add_assign(&mut self, other: &ReconciledCounts) {
        let ReconciledCounts {
            flows,
            expected,
            received,
            lost,
            duplicated,
            reordered,
            corrupt,
            unverified,
        } = *other;
        self.flows += flows;
        self.expected += expected;
        self.received += received;
        self.lost += lost;
        self.duplicated += duplicated;
        self.reordered += reordered;
        self.corrupt += corrupt;
        self.unverified += unverified;
    }
}
