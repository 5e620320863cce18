//! The metrics. One table lists the name, kind, unit and meaning of each metric, and reads its value. `open_metrics`
//! and `opentelemetry` write them.
//!
//! Labels have few values: reasons, packet types, QoS levels, listeners, and a limited number of names from operators
//! (rules, actions). Clients and topics are never labels.

use std::fmt::Display;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use ::integration::Engine;
use auth::LoginLimiterStats;
use broker::owners::OwnerLimit;
use broker::{DisconnectReason, DropReason, PublishLimit, ShardStats};
use journal::StoreKind;
use net::{EarlyCloseReason, JournalView, ListenerInfo, NetCounters, transport_key};
use web::unix_ms;

mod auth_providers;
mod certificates;
#[cfg(feature = "platform")]
mod devices;
mod http;
mod integration;
mod open_metrics;
mod sources;

use crate::access_admin::AuthProviderFigures;
use crate::certificate_admin::{CertificateAdmin, ManagedItem};
use crate::disk::DiskView;
use crate::process::ProcessView;

use crate::telemetry::Signal;

pub use open_metrics::{CONTENT_TYPE, expose};
pub use sources::MetricSources;

/// All values, read at the same time.
pub struct MetricsSnapshot<'a> {
    pub sources: &'a MetricSources,
    pub stats: ShardStats,
    pub net: NetCounters,
    pub logins: LoginLimiterStats,
    pub auth_providers: Vec<AuthProviderFigures>,
    pub access_sources: Vec<AuthProviderFigures>,
    pub managed: Vec<ManagedItem>,
    pub listeners: Vec<ListenerInfo>,
    pub journal: Option<JournalView>,
    pub publish_ack_us: journal::HistogramCounts,
    pub process: ProcessView,
    pub disk: Option<DiskView>,
    pub integration: ::integration::Measures,
    #[cfg(feature = "platform")]
    pub devices: Option<Box<::devices::DevicesStats>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    Counter,
    Gauge,
    Histogram,
    Info,
}

pub struct Family {
    /// Name without the suffix of the kind (`_total`, `_info`).
    pub name: &'static str,
    pub kind: MetricKind,
    pub help: &'static str,
    samples: fn(&MetricsSnapshot<'_>, &mut Samples<'_>),
}

/// Defines the table of a module. Row: kind, name, help, function that writes the samples, its argument.
macro_rules! metric_families {
    ($($kind:ident $name:literal $help:literal $write:ident $value:expr;)*) => {
        pub const FAMILIES: &[$crate::metrics::Family] = &[$($crate::metrics::Family {
            name: $name,
            kind: $crate::metrics::MetricKind::$kind,
            help: $help,
            samples: |s, out| $write(s, out, $value),
        }),*];
    };
}
use metric_families;

fn one<T: Display>(s: &MetricsSnapshot<'_>, out: &mut Samples<'_>, value: fn(&MetricsSnapshot<'_>) -> T) {
    out.one(value(s));
}

fn known<T: Display>(s: &MetricsSnapshot<'_>, out: &mut Samples<'_>, value: fn(&MetricsSnapshot<'_>) -> Option<T>) {
    out.put_if_known(value(s));
}

fn samples(s: &MetricsSnapshot<'_>, out: &mut Samples<'_>, write: fn(&MetricsSnapshot<'_>, &mut Samples<'_>)) {
    write(s, out);
}

metric_families! {
    Info "tidewire_build" "Version and node." samples |s, out| {
        let node = &s.sources.node;
        out.put(&[("version", &node.version), ("node", &node.name)], 1);
    };
    Gauge "tidewire_uptime_seconds" "Time since the start." one |s| s.sources.node.uptime().as_secs_f64();
    Gauge "tidewire_start_time_seconds" "Start time, since 1970."
        one |s| unix_ms(s.sources.node.started_at) as f64 / 1000.0;
    Gauge "tidewire_ready" "1 if the server has started and is not shutting down."
        one |s| u8::from(s.sources.readiness.not_ready_reasons().is_empty());
    Gauge "tidewire_alarms" "Active alarms of the node." one |s| s.sources.alarms.active_count() as u64;
    Gauge "tidewire_broker_shards" "Shards, one per data-plane thread." one |s| s.sources.net.shards();
    Gauge "tidewire_broker_connections" "Current MQTT connections." one |s| s.stats.connections;
    Counter "tidewire_broker_connections_accepted" "CONNECT packets that were accepted."
        one |s| s.stats.connections_total;
    Counter "tidewire_broker_connections_refused" "CONNECT packets that were rejected."
        one |s| s.stats.refused_connections;
    Counter "tidewire_broker_disconnects" "Ended connections, by reason." samples |s, out| {
        for reason in DisconnectReason::ALL {
            out.put(&[("reason", reason.name())], s.stats.disconnects[reason as usize]);
        }
    };
    Counter "tidewire_broker_takeovers" "Sessions taken over by a new connection." one |s| s.stats.takeovers;
    Gauge "tidewire_broker_sessions" "Current sessions, connected or not." one |s| s.stats.sessions;
    Gauge "tidewire_broker_subscriptions" "Current subscriptions." one |s| s.stats.subscriptions;
    Gauge "tidewire_broker_shared_groups" "Current share groups." one |s| s.stats.shared_groups;
    Counter "tidewire_broker_packets_received" "MQTT packets received from clients, by type."
        samples |s, out| out.by_packet_type(&s.stats.packets_received);
    Counter "tidewire_broker_packets_sent" "MQTT packets sent to clients, by type."
        samples |s, out| out.by_packet_type(&s.stats.packets_sent);
    Counter "tidewire_broker_received_bytes" "Bytes of MQTT packets received from clients."
        one |s| s.stats.bytes_received;
    Counter "tidewire_broker_sent_bytes" "Bytes of MQTT packets sent to clients." one |s| s.stats.bytes_sent;
    Counter "tidewire_broker_messages_received" "PUBLISH packets accepted from clients, by QoS."
        samples |s, out| out.by_qos(&s.stats.messages_received);
    Counter "tidewire_broker_messages_sent" "PUBLISH packets sent to clients, by QoS."
        samples |s, out| out.by_qos(&s.stats.messages_sent);
    Counter "tidewire_broker_publish_received_bytes" "Bytes of PUBLISH packets received from clients."
        one |s| s.stats.publish_bytes_received;
    Counter "tidewire_broker_publish_sent_bytes" "Bytes of PUBLISH packets sent to clients."
        one |s| s.stats.publish_bytes_sent;
    Counter "tidewire_broker_messages_dropped" "Dropped messages, by reason." samples |s, out| {
        for reason in DropReason::ALL {
            out.put(&[("reason", reason.name())], s.stats.drops[reason as usize]);
        }
    };
    Counter "tidewire_broker_limit_rejections"
        "Connections, messages and subscriptions rejected because of a limit of a user or a client, by limit."
        samples |s, out| {
            for limit in OwnerLimit::ALL {
                out.put(&[("limit", limit.name())], s.stats.limit_rejections[limit as usize]);
            }
        };
    Counter "tidewire_broker_messages_acknowledged" "QoS 1 and 2 deliveries that clients acknowledged."
        one |s| s.stats.messages_acknowledged;
    Counter "tidewire_broker_messages_redelivered" "Messages redelivered after a reconnect or a retry interval."
        one |s| s.stats.messages_redelivered;
    Counter "tidewire_broker_messages_forwarded" "Messages forwarded from one shard to another."
        one |s| s.stats.messages_forwarded;
    Counter "tidewire_broker_wills_published" "Will messages published." one |s| s.stats.wills_published;
    Counter "tidewire_broker_publishers_slowed"
        "How often a publisher was slowed down because of a limit of its rate, by limit."
        samples |s, out| {
            for limit in PublishLimit::ALL {
                out.put(&[("limit", limit.name())], s.stats.publishers_slowed[limit as usize]);
            }
        };
    Gauge "tidewire_broker_retained_messages" "Current retained messages." one |s| s.stats.retained_messages;
    Gauge "tidewire_broker_retained_bytes" "Bytes of the retained messages." one |s| s.stats.retained_bytes;
    Gauge "tidewire_broker_queued_messages" "Messages in the queues of sessions." one |s| s.stats.queued_messages;
    Gauge "tidewire_broker_queued_bytes" "Bytes of the messages in the queues of sessions, in memory and in the journal."
        one |s| s.stats.queued_bytes;
    Gauge "tidewire_broker_delayed_messages" "Delayed messages that are not due yet." one |s| s.stats.delayed_messages;
    Gauge "tidewire_broker_inflight_messages" "Messages sent and not acknowledged." one |s| s.stats.inflight_messages;
    Gauge "tidewire_broker_output_backlog_bytes" "Bytes that wait to be written to sockets."
        one |s| s.stats.output_backlog_bytes;
    Gauge "tidewire_journal_state"
        "1 for the current state: ok, full (no records are accepted until space is freed), failed (until a restart)."
        samples |s, out| {
            let Some(journal) = &s.journal else { return };
            let at = match journal.state {
                journal::LogState::Ok => 0,
                journal::LogState::Full { .. } => 1,
                journal::LogState::Failed { .. } => 2,
            };
            for (index, name) in ["ok", "full", "failed"].into_iter().enumerate() {
                out.put(&[("state", name)], u8::from(index == at));
            }
        };
    Counter "tidewire_journal_appended_bytes" "Bytes of records appended to the journal."
        known |s| s.journal.as_ref().map(|j| j.stats.appended_bytes);
    Counter "tidewire_journal_written_bytes" "Bytes written to the journal's files."
        known |s| s.journal.as_ref().map(|j| j.stats.written_bytes);
    Counter "tidewire_journal_syncs" "Calls of fdatasync by the journal."
        known |s| s.journal.as_ref().map(|j| j.stats.syncs);
    Gauge "tidewire_journal_backlog_bytes" "Bytes appended and not committed yet."
        known |s| s.journal.as_ref().map(|j| j.backlog_bytes);
    Gauge "tidewire_journal_file_bytes" "Size of the journal's files."
        known |s| s.journal.as_ref().map(|j| j.stats.file_bytes);
    Gauge "tidewire_journal_segments" "Files of the journal." known |s| s.journal.as_ref().map(|j| j.stats.segments);
    Gauge "tidewire_journal_replay_bytes" "Bytes of the journal that the next start reads."
        known |s| s.journal.as_ref().map(|j| j.stats.next.0 - j.stats.replay_from.0);
    Counter "tidewire_journal_torn_bytes" "Bytes of an incomplete write that the start removed."
        known |s| s.journal.as_ref().map(|j| j.stats.torn_bytes_cut);
    Histogram "tidewire_publish_acknowledgement_seconds"
        "Time from reading a PUBLISH of QoS 1 or 2 to writing its acknowledgement, including the journal's commit. Excludes ticks that wait for rules or devices to store data."
        samples |s, out| out.histogram(&s.publish_ack_us, 1e6);
    Histogram "tidewire_journal_commit_seconds" "Time from the first request of a commit to its end." samples |s, out| {
        if let Some(journal) = &s.journal {
            out.histogram(&journal.commit_latency_us, 1e6);
        }
    };
    Histogram "tidewire_journal_commit_bytes" "Bytes per commit of the journal." samples |s, out| {
        if let Some(journal) = &s.journal {
            out.histogram(&journal.commit_bytes, 1.0);
        }
    };
    Gauge "tidewire_listener_connections" "Open connections, including those in their handshake." samples |s, out| {
        for listener in &s.listeners {
            out.put(&labels(listener), listener.current_connections);
        }
    };
    Gauge "tidewire_listener_connections_max" "Limit of connections of the listener." samples |s, out| {
        for listener in &s.listeners {
            out.put(&labels(listener), listener.max_connections);
        }
    };
    Counter "tidewire_listener_connections_accepted" "Connections accepted." samples |s, out| {
        for listener in &s.listeners {
            out.put(&labels(listener), listener.accepted);
        }
    };
    Counter "tidewire_listener_connections_refused" "Connections that ended before CONNECT was complete, by reason."
        samples |s, out| {
            for listener in &s.listeners {
                let [name, transport] = labels(listener);
                for refusal in EarlyCloseReason::ALL {
                    out.put(
                        &[name, transport, ("reason", refusal.name())],
                        listener.refused[refusal as usize],
                    );
                }
            }
        };
    Counter "tidewire_net_received_bytes" "Bytes read from sockets, including TLS and WebSocket framing."
        one |s| s.net.bytes_in;
    Counter "tidewire_net_sent_bytes" "Bytes written to sockets, including TLS and WebSocket framing."
        one |s| s.net.bytes_out;
    Counter "tidewire_net_reads" "Reads from sockets." one |s| s.net.reads;
    Counter "tidewire_net_writes" "Writes to sockets." one |s| s.net.writes;
    Counter "tidewire_net_writes_blocked" "Writes that a socket accepted only partly." one |s| s.net.writes_blocked;
    Counter "tidewire_net_accept_errors" "Failures of accept(2)." one |s| s.net.accept_errors;
    Counter "tidewire_net_connections_moved" "Connections moved to their session's shard after CONNECT."
        one |s| s.net.moved;
    Counter "tidewire_net_transport_errors" "Violations of the WebSocket or TLS protocol after CONNECT."
        one |s| s.net.transport_errors;
    Counter "tidewire_net_linger_timeouts" "Connections closed because the client did not read the last bytes in time."
        one |s| s.net.linger_timeouts;
    Counter "tidewire_net_authentications_checked" "Authentications that needed a password hash or another system."
        one |s| s.net.auth_submitted;
    Counter "tidewire_net_authentications_refused"
        "Authentications rejected with Server busy because the queue was full."
        one |s| s.net.auth_queue_full;
    Counter "tidewire_net_access_questions" "Times that a client was paused until other systems authorized it."
        one |s| s.net.access_questions;
    Counter "tidewire_log_lines_dropped" "Lines that the system log did not accept (log.syslog)."
        one |s| s.sources.log.dropped();
    Counter "tidewire_login_failures" "Wrong passwords, tokens and other secrets of all logins, without repeats."
        one |s| s.logins.failures;
    Counter "tidewire_login_repeated_failures"
        "Wrong credentials that a device repeated. They do not lock out its address."
        one |s| s.logins.repeated_failures;
    Counter "tidewire_login_lockouts" "Lock-outs of addresses after too many failed logins." one |s| s.logins.lockouts;
    Counter "tidewire_login_rejected"
        "Logins rejected without a check, because their address is locked out, or their user is guessed from several addresses."
        one |s| s.logins.rejected;
    Gauge "tidewire_login_locked_addresses" "Addresses that are locked out now." one |s| s.logins.locked_addresses;
    Counter "tidewire_net_quic_retries"
        "QUIC clients that had to show that they receive at their address, because many handshakes were incomplete."
        one |s| s.net.quic_retries;
    Counter "tidewire_net_quic_datagrams_dropped" "QUIC datagrams dropped because a worker was overloaded."
        one |s| s.net.quic_datagrams_dropped;
    Counter "tidewire_net_quic_streams" "Data streams of QUIC connections that were accepted."
        one |s| s.net.quic_streams;
    Counter "tidewire_net_quic_streams_rejected"
        "Data streams reset because of max_data_streams, or of a limit of sessions."
        one |s| s.net.quic_streams_rejected;
    Counter "tidewire_net_quic_streams_ended"
        "Data streams that the server ended because of a forbidden packet, a limit, or its shutdown."
        one |s| s.net.quic_streams_ended;
    Gauge "tidewire_net_quic_window_bytes"
        "Memory by which the windows of QUIC connections have grown (limits.max_quic_windows)."
        one |s| s.sources.net.quic_window_bytes();
    Counter "tidewire_net_ticks" "Iterations of the event loops." one |s| s.net.ticks;
    Counter "tidewire_net_lodgings" "How often an idle worker moved to the first worker's thread."
        one |s| s.net.worker_moves;
    Counter "tidewire_net_mail_held" "How often a message to another shard had to wait." one |s| s.net.mail_held;
    Gauge "tidewire_process_resident_bytes" "Resident memory." known |s| s.process.resident_bytes;
    Counter "tidewire_process_cpu_seconds" "Processor time, user and system." known |s| s.process.cpu_seconds;
    Gauge "tidewire_disk_free_bytes" "Bytes that may still be written to the data directory's disk."
        known |s| s.disk.map(|disk| disk.free_bytes);
    Gauge "tidewire_disk_total_bytes" "Size of the data directory's disk."
        known |s| s.disk.map(|disk| disk.total_bytes);
    Counter "tidewire_disk_written_bytes"
        "Bytes written to files of a store: journal, buffers of actions, ingest_log and timeseries of the device platform, history of the console."
        samples |_, out| {
            for store in StoreKind::ALL {
                out.put(&[("store", store.name())], store.written_bytes());
            }
        };
    Counter "tidewire_disk_syncs" "Syncs (fdatasync) of the files and directories of a store." samples |_, out| {
        for store in StoreKind::ALL {
            out.put(&[("store", store.name())], store.syncs());
        }
    };
    Counter "tidewire_process_written_bytes"
        "Bytes that the process wrote to disks, in whole pages of usually 4 KiB: stores, SQLite databases, logs, backups and all other files."
        known |s| s.process.written_bytes;
    Gauge "tidewire_process_threads" "Threads." known |s| s.process.threads;
    Gauge "tidewire_process_open_files" "Open file descriptors." known |s| s.process.open_files;
    Gauge "tidewire_process_open_files_max" "Soft limit of open file descriptors." known |s| s.process.open_files_max;
    Counter "tidewire_opentelemetry_exports" "Exports to the OpenTelemetry collector, by signal and result."
        samples |s, out| {
            for signal in Signal::ALL {
                for (result, count) in ["sent", "failed"].into_iter().zip(s.sources.exports.of(signal)) {
                    out.put(&[("signal", signal.name()), ("result", result)], count);
                }
            }
        };
    Counter "tidewire_opentelemetry_dropped_spans"
        "Spans that were not exported, because their queue was full or the collector rejected them."
        samples |s, out| out.put_counter(&s.sources.exports.dropped_spans);
}

fn labels(listener: &ListenerInfo) -> [(&'static str, &str); 2] {
    [
        ("listener", &listener.name),
        ("transport", transport_key(listener.transport)),
    ]
}

/// Packet types by their number in the fixed header; 0 is reserved.
const PACKET_TYPES: [&str; 16] = [
    "",
    "connect",
    "connack",
    "publish",
    "puback",
    "pubrec",
    "pubrel",
    "pubcomp",
    "subscribe",
    "suback",
    "unsubscribe",
    "unsuback",
    "pingreq",
    "pingresp",
    "disconnect",
    "auth",
];

/// A format of metrics.
pub trait SampleWriter {
    fn begin_family(&mut self, _: &Family) {}
    fn sample(&mut self, family: &Family, labels: &[(&str, &str)], value: &dyn Display);
    fn histogram(&mut self, family: &Family, labels: &[(&str, &str)], histogram: &Histogram);
    fn end_family(&mut self, _: &Family) {}
}

/// A histogram in the unit of its family.
pub struct Histogram {
    /// Upper bounds, and the number of values at or below each.
    pub buckets: Vec<(f64, u64)>,
    pub count: u64,
    pub sum: f64,
}

/// Receives the samples of a family.
pub struct Samples<'a> {
    family: &'a Family,
    writer: &'a mut dyn SampleWriter,
}

impl Samples<'_> {
    fn one(&mut self, value: impl Display) {
        self.put(&[], value);
    }

    fn put_if_known(&mut self, value: Option<impl Display>) {
        if let Some(value) = value {
            self.one(value);
        }
    }

    fn put_counter(&mut self, counter: &AtomicU64) {
        self.one(counter.load(Ordering::Relaxed));
    }

    fn by_qos(&mut self, counts: &[u64; 3]) {
        for (qos, count) in ["0", "1", "2"].into_iter().zip(counts) {
            self.put(&[("qos", qos)], count);
        }
    }

    fn by_packet_type(&mut self, counts: &[u64; 16]) {
        for (name, count) in PACKET_TYPES.into_iter().zip(counts).skip(1) {
            self.put(&[("type", name)], count);
        }
    }

    /// `per_unit`: number of counted units in a unit of the family. Multiplying by a fraction would print 0.0025 as
    /// 0.0024999999999999998.
    fn histogram(&mut self, counts: &journal::HistogramCounts, per_unit: f64) {
        let bounds = counts.bounds.iter().map(|bound| *bound as f64 / per_unit);
        let histogram = Histogram {
            buckets: bounds.zip(counts.cumulative).collect(),
            count: counts.count,
            sum: counts.sum as f64 / per_unit,
        };
        self.writer.histogram(self.family, &[], &histogram);
    }

    fn put(&mut self, labels: &[(&str, &str)], value: impl Display) {
        self.writer.sample(self.family, labels, &value);
    }
}

impl Family {
    /// Returns the name under which a sample appears in the text.
    pub fn full_name(&self) -> String {
        format!("{}{}", self.name, self.kind.suffix())
    }

    /// Returns the unit at the end of the name, or an empty text.
    pub fn unit(&self) -> &'static str {
        let last = self.name.rsplit('_').next();
        last.filter(|word| matches!(*word, "bytes" | "seconds"))
            .unwrap_or_default()
    }

    /// Returns the component in the metric's name: `broker` of `tidewire_broker_connections`.
    pub fn component(&self) -> &'static str {
        self.name.split('_').nth(1).unwrap_or_default()
    }
}

impl MetricKind {
    pub fn name(self) -> &'static str {
        match self {
            MetricKind::Counter => "counter",
            MetricKind::Gauge => "gauge",
            MetricKind::Histogram => "histogram",
            MetricKind::Info => "info",
        }
    }

    fn suffix(self) -> &'static str {
        match self {
            MetricKind::Counter => "_total",
            MetricKind::Gauge | MetricKind::Histogram => "",
            MetricKind::Info => "_info",
        }
    }
}

/// Returns all metrics, in the order in which `/metrics` shows them.
pub fn families() -> impl Iterator<Item = &'static Family> {
    #[cfg(feature = "platform")]
    let of_devices = devices::FAMILIES;
    #[cfg(not(feature = "platform"))]
    let of_devices: &[Family] = &[];
    let own = FAMILIES
        .iter()
        .chain(auth_providers::FAMILIES)
        .chain(certificates::FAMILIES);
    own.chain(http::FAMILIES).chain(integration::FAMILIES).chain(of_devices)
}

/// Writes all metrics, in the order of [`families`].
pub fn write_families(snapshot: &MetricsSnapshot<'_>, writer: &mut dyn SampleWriter) {
    for family in families() {
        writer.begin_family(family);
        (family.samples)(snapshot, &mut Samples { family, writer });
        writer.end_family(family);
    }
}

impl<'a> MetricsSnapshot<'a> {
    pub fn new(sources: &'a MetricSources, stats: ShardStats) -> MetricsSnapshot<'a> {
        let net = &sources.net;
        MetricsSnapshot {
            sources,
            stats,
            net: net.counters(),
            logins: sources.login_limiter.stats(Instant::now()),
            auth_providers: sources.access.auth_providers(),
            access_sources: sources.access.access_sources(),
            managed: sources
                .certificates
                .as_deref()
                .map(CertificateAdmin::managed)
                .unwrap_or_default(),
            listeners: net.listeners(),
            journal: net.journal(),
            publish_ack_us: net.publish_ack_us(),
            process: ProcessView::now(),
            disk: sources.data_directory.disk(),
            integration: sources.engine.as_ref().map(Engine::measures).unwrap_or_default(),
            #[cfg(feature = "platform")]
            devices: sources.platform.as_ref().map(|platform| Box::new(platform.stats())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_the_convention_and_are_unique() {
        let mut names = std::collections::BTreeSet::new();
        for family in families() {
            assert!(names.insert(family.name), "{} twice", family.name);
            assert!(family.name.starts_with("tidewire_"), "{}", family.name);
            assert!(!family.name.ends_with("_total"), "{}", family.name);
            assert!(
                family.help.ends_with('.') && !family.help.contains('\n'),
                "{}",
                family.name
            );
        }
    }
}
