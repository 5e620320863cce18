//! The seam between the orchestrator and who makes the load: this process, or an agent on another machine.
//!
//! A driver gets a [`Job`] and then commands in the order of [`Command`]; it answers with events. Both travel to agents as one
//! line of JSON each. Times are nanoseconds on the *run clock*, which starts at 0 when the orchestrator starts; a driver knows what
//! to add to its own clock (`Job::clock_offset_ns`; 0 in this process).

use std::ops::{AddAssign, Range};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::histogram::Histogram;
use crate::scenario::Scenario;
use crate::target::Target;

/// Makes load. Implementations: worker threads in this process, and an agent reached over TCP.
pub trait Driver {
    /// A name for messages: "this process", "10.0.0.7:7000".
    fn name(&self) -> &str;
    fn command(&mut self, command: Command) -> Result<(), String>;
    /// The next event, if one comes in time. An error is final.
    fn event(&mut self, patience: Duration) -> Result<Option<Event>, String>;
    /// Asked after the outcome: by how much its times may be wrong, where it has a clock of its own.
    fn clock_error_ns(&mut self) -> Option<u64> {
        None
    }
}

/// A share of a scenario.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Job {
    pub scenario: Scenario,
    pub target: Target,
    /// Distinguishes the messages and client ids of this run from those of another.
    pub run: u16,
    /// For each group, which of its clients (0-based) this driver is.
    pub clients: Vec<Range<u32>>,
    pub threads: u16,
    /// Its share of the connects per second.
    pub connect_rate: f64,
    /// Run clock minus the driver's own clock.
    pub clock_offset_ns: i64,
    /// Nanoseconds since 1970 at 0 of the run clock, as the orchestrator has it: the same for all drivers.
    #[serde(default)]
    pub epoch_ns: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Command {
    /// Connect and subscribe whoever is present from the beginning. Answer: `Progress` every second, from now until the outcome; `Ready`.
    Connect(Box<Job>),
    /// Begin the schedule at this time (the same for all drivers), publish through warm-up and duration, stop by itself.
    /// Intervals end at the start, every second after it, at the end of the warm-up and at the end of the duration. Answer: `Progress`,
    /// `Sent` when the last message has left and, with QoS 1 and 2, is acknowledged or given up.
    Publish { start_ns: u64 },
    /// Everybody has sent; connect those who waited for this. Answer: `Progress` as before, `Ready` when they are connected.
    Return,
    /// Ends publishing before its time (Ctrl-C). Answer: as for `Publish`.
    Stop,
    /// How many messages every publisher has sent, over all drivers. Wait for what is missing (until nothing has come for the drain time),
    /// compare, disconnect. Answer: `Outcome`.
    Reconcile { sent: Vec<Sent> },
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// All clients of this driver that should be connected are or were given up (see `Counts::connects_failed`), and their subscriptions
    /// are answered. The interval is what came after the last `Progress`.
    Ready(Box<Interval>),
    Progress(Box<Interval>),
    Sent {
        sent: Vec<Sent>,
    },
    Outcome(Box<Outcome>),
    /// The driver cannot go on: why.
    Failed(String),
}

/// What the clients `first..first + counts.len()` of a publishing group have sent: sequence numbers 0..count.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sent {
    pub group: u16,
    pub first: u32,
    pub counts: Vec<u64>,
    /// What of these the broker has refused or never acknowledged, so that nobody may rely on its delivery.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unaccepted: Vec<Unaccepted>,
}

/// Sequence numbers `from..to` of a client of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unaccepted {
    pub client: u32,
    pub from: u64,
    pub to: u64,
}

/// What happened between two reports of one driver.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// End of the interval, on the run clock.
    pub end_ns: u64,
    pub length_ns: u64,
    pub counts: Counts,
    /// From when a message was due to when a subscriber had it.
    pub end_to_end: Histogram,
    /// From when a message was due to PUBACK or PUBCOMP.
    pub acknowledgement: Histogram,
    /// From the first SYN to CONNACK.
    pub connect: Histogram,
    /// The part of `connect` until the transport stood: TCP, TLS and WebSocket handshakes.
    pub handshake: Histogram,
    pub subscribe: Histogram,
    /// By how much a message left after it was due, because the generator came late; not the waiting for a full window or socket.
    pub lateness: Histogram,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Counts {
    /// Connected now, not a difference.
    pub connected: u64,
    pub connects: u64,
    pub connects_failed: u64,
    /// Connections that were lost though nobody here closed them.
    pub disconnects: u64,
    /// TLS handshakes with a certificate, and those that a ticket of an earlier one has shortened.
    pub tls_full: u64,
    pub tls_resumed: u64,
    pub subscribes: u64,
    pub subscribes_failed: u64,
    /// Messages that were due by the schedule (open model only).
    pub due: u64,
    pub published: u64,
    pub acknowledged: u64,
    /// Acknowledgements with a reason code of 0x80 and above.
    pub refused: u64,
    pub received: u64,
    pub bytes_out: u64,
    pub bytes_in: u64,
    /// Data segments that the kernel received (TCP_INFO), for the mean size of the broker's writes.
    pub segments_in: u64,
    /// Data segments that it sent.
    pub segments_out: u64,
    /// CPU time of the driver's threads.
    pub cpu_ns: u64,
    /// CPU time of its busiest thread.
    pub busiest_thread_cpu_ns: u64,
    /// How long the thread that waited longest could have run but had no core; 0 where the kernel does not say.
    pub longest_wait_ns: u64,
}

/// What the comparison of sent and received says.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    pub truth: Truth,
    /// The first few findings in words: which subscriber missed what of whom.
    pub examples: Vec<String>,
    /// Reasons of lost connections, failed connects and refused packets, with their counts.
    pub errors: Vec<(String, u64)>,
    /// When the last message came to any subscriber, on the run clock; 0 without.
    #[serde(default)]
    pub last_arrival_ns: u64,
    /// Of shared subscriptions with members on several machines; `load::conclude_shares` puts those of all drivers together.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shares: Vec<ShareReceipt>,
}

/// What has come of one publisher to the members of a shared subscription that one driver has.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShareReceipt {
    /// The whole filter, `$share/…`.
    pub filter: String,
    /// The publisher.
    pub group: u16,
    pub client: u32,
    /// Sequence numbers, as ranges `from..to`.
    pub received: Vec<(u32, u32)>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Truth {
    /// Pairs of a publisher and a subscriber (or a shared subscription) that were compared. A job without publishers follows those of other
    /// runs: of such a pair is expected what lies between its first and its last message.
    pub flows: u64,
    pub expected: u64,
    /// Distinct messages received of these.
    pub received: u64,
    pub lost: u64,
    pub duplicated: u64,
    /// Messages that came after a later one of the same flow, first deliveries only.
    pub reordered: u64,
    /// Payload, topic or sender not as sent.
    pub corrupt: u64,
    /// Messages that carry no proof (templates without `${truth}`, payloads under 16 bytes), or one of another run that is not followed.
    pub unverified: u64,
}

impl AddAssign<&Truth> for Truth {
    fn add_assign(&mut self, other: &Truth) {
        let Truth {
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
