//! Every metric there is: one table of name, kind, unit, meaning, and where its value comes from; and the OpenMetrics text.
//!
//! Labels have few values: reasons, packet types, QoS, listeners, and names that operators give (rules, actions), of which so many are
//! listed. Never a client or a topic.

use std::fmt::{Display, Write};
use std::sync::atomic::{AtomicU64, Ordering};

use broker::{DisconnectReason, DropReason, Stats};
use net::{JournalView, ListenerInfo, NetCounters, Refusal, transport_key};

mod devices;
mod integration;

use crate::app::{App, unix_ms};
use crate::disk::DiskView;
use crate::process::ProcessView;

pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Everything that the values are taken from, read together.
pub struct Snapshot<'a> {
    pub app: &'a App,
    pub stats: Stats,
    pub net: NetCounters,
    pub listeners: Vec<ListenerInfo>,
    pub journal: Option<JournalView>,
    pub publish_ack_us: journal::HistogramCounts,
    pub process: ProcessView,
    pub disk: Option<DiskView>,
    pub integration: ::integration::Measures,
    pub devices: Option<Box<::devices::Stats>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Counter,
    Gauge,
    Histogram,
    Info,
}

pub struct Family {
    /// Without the suffix of its kind (`_total`, `_info`).
    pub name: &'static str,
    pub kind: Kind,
    /// The end of the name, if it is a unit.
    pub unit: &'static str,
    pub help: &'static str,
    samples: fn(&Snapshot<'_>, &mut Samples<'_>),
}

type Read = fn(&Snapshot<'_>, &mut Samples<'_>);

const fn counter(name: &'static str, help: &'static str, samples: Read) -> Family {
    Family {
        name,
        kind: Kind::Counter,
        unit: "",
        help,
        samples,
    }
}

const fn gauge(name: &'static str, help: &'static str, samples: Read) -> Family {
    Family {
        name,
        kind: Kind::Gauge,
        unit: "",
        help,
        samples,
    }
}

const fn histogram(name: &'static str, help: &'static str, samples: Read) -> Family {
    Family {
        name,
        kind: Kind::Histogram,
        unit: "",
        help,
        samples,
    }
}

const fn info(name: &'static str, help: &'static str, samples: Read) -> Family {
    Family {
        name,
        kind: Kind::Info,
        unit: "",
        help,
        samples,
    }
}

impl Family {
    const fn bytes(mut self) -> Family {
        self.unit = "bytes";
        self
    }

    const fn seconds(mut self) -> Family {
        self.unit = "seconds";
        self
    }
}

pub const FAMILIES: &[Family] = &[
    info("tidewire_build", "Version and node.", |s, out| {
        let node = s.app.node();
        out.put(&[("version", &node.version), ("node", &node.name)], 1);
    }),
    gauge("tidewire_uptime_seconds", "Time since the start.", |s, out| {
        out.one(s.app.uptime().as_secs_f64())
    })
    .seconds(),
    gauge(
        "tidewire_start_time_seconds",
        "When it started, since 1970.",
        |s, out| {
            out.one(unix_ms(s.app.node().started_at) as f64 / 1000.0);
        },
    )
    .seconds(),
    gauge(
        "tidewire_ready",
        "1 when /readyz would say ready as far as the server's life is concerned.",
        |s, out| {
            out.one(u8::from(s.app.readiness().reasons().is_empty()));
        },
    ),
    gauge("tidewire_alarms", "Alarms of the node that are active.", |s, out| {
        out.one(s.app.alarms().active_count() as u64);
    }),
    gauge(
        "tidewire_broker_shards",
        "Shards, one per data-plane thread.",
        |s, out| out.one(s.app.net().shards()),
    ),
    gauge("tidewire_broker_connections", "MQTT connections now.", |s, out| {
        out.one(s.stats.connections)
    }),
    counter(
        "tidewire_broker_connections_accepted",
        "CONNECTs answered with success.",
        |s, out| {
            out.one(s.stats.connections_total);
        },
    ),
    counter(
        "tidewire_broker_connections_refused",
        "CONNECTs answered with an error.",
        |s, out| {
            out.one(s.stats.refused_connections);
        },
    ),
    counter(
        "tidewire_broker_disconnects",
        "Connections that ended, by reason.",
        |s, out| {
            for reason in DisconnectReason::ALL {
                out.put(&[("reason", reason.name())], s.stats.disconnects[reason as usize]);
            }
        },
    ),
    counter(
        "tidewire_broker_takeovers",
        "Sessions taken over by a new connection.",
        |s, out| out.one(s.stats.takeovers),
    ),
    gauge(
        "tidewire_broker_sessions",
        "Sessions now, connected or not.",
        |s, out| out.one(s.stats.sessions),
    ),
    gauge("tidewire_broker_subscriptions", "Subscriptions now.", |s, out| {
        out.one(s.stats.subscriptions)
    }),
    gauge(
        "tidewire_broker_shared_groups",
        "Groups of shared subscriptions now.",
        |s, out| out.one(s.stats.shared_groups),
    ),
    counter(
        "tidewire_broker_packets_received",
        "MQTT packets from clients, by type.",
        |s, out| {
            out.by_packet_type(&s.stats.packets_received);
        },
    ),
    counter(
        "tidewire_broker_packets_sent",
        "MQTT packets to clients, by type.",
        |s, out| {
            out.by_packet_type(&s.stats.packets_sent);
        },
    ),
    counter(
        "tidewire_broker_received_bytes",
        "Bytes of MQTT packets from clients.",
        |s, out| out.one(s.stats.bytes_received),
    )
    .bytes(),
    counter(
        "tidewire_broker_sent_bytes",
        "Bytes of MQTT packets to clients.",
        |s, out| out.one(s.stats.bytes_sent),
    )
    .bytes(),
    counter(
        "tidewire_broker_messages_received",
        "PUBLISH accepted from clients, by QoS.",
        |s, out| {
            out.by_qos(&s.stats.messages_received);
        },
    ),
    counter(
        "tidewire_broker_messages_sent",
        "PUBLISH handed to connections, by QoS.",
        |s, out| {
            out.by_qos(&s.stats.messages_sent);
        },
    ),
    counter(
        "tidewire_broker_publish_received_bytes",
        "Bytes of PUBLISH from clients.",
        |s, out| {
            out.one(s.stats.publish_bytes_received);
        },
    )
    .bytes(),
    counter(
        "tidewire_broker_publish_sent_bytes",
        "Bytes of PUBLISH to clients.",
        |s, out| out.one(s.stats.publish_bytes_sent),
    )
    .bytes(),
    counter(
        "tidewire_broker_messages_dropped",
        "Messages not delivered, by reason.",
        |s, out| {
            for reason in DropReason::ALL {
                out.put(&[("reason", reason.name())], s.stats.drops[reason as usize]);
            }
        },
    ),
    counter(
        "tidewire_broker_messages_acknowledged",
        "QoS 1 and 2 deliveries that clients completed.",
        |s, out| {
            out.one(s.stats.messages_acknowledged);
        },
    ),
    counter(
        "tidewire_broker_messages_redelivered",
        "Deliveries repeated after a reconnect or a retry interval.",
        |s, out| {
            out.one(s.stats.messages_redelivered);
        },
    ),
    counter(
        "tidewire_broker_messages_forwarded",
        "Messages that went from one shard to another.",
        |s, out| {
            out.one(s.stats.messages_forwarded);
        },
    ),
    counter(
        "tidewire_broker_wills_published",
        "Will messages published.",
        |s, out| out.one(s.stats.wills_published),
    ),
    counter(
        "tidewire_broker_publishers_slowed",
        "Times that a publisher had to wait because of its quota.",
        |s, out| {
            out.one(s.stats.publishers_slowed);
        },
    ),
    gauge(
        "tidewire_broker_retained_messages",
        "Retained messages now.",
        |s, out| out.one(s.stats.retained_messages),
    ),
    gauge("tidewire_broker_retained_bytes", "What they weigh.", |s, out| {
        out.one(s.stats.retained_bytes)
    })
    .bytes(),
    gauge(
        "tidewire_broker_queued_messages",
        "Messages that wait in sessions now.",
        |s, out| out.one(s.stats.queued_messages),
    ),
    gauge("tidewire_broker_queued_bytes", "What they weigh.", |s, out| {
        out.one(s.stats.queued_bytes)
    })
    .bytes(),
    gauge(
        "tidewire_broker_delayed_messages",
        "Messages that wait for their delay to pass.",
        |s, out| out.one(s.stats.delayed_messages),
    ),
    gauge(
        "tidewire_broker_inflight_messages",
        "Messages sent and not acknowledged now.",
        |s, out| out.one(s.stats.inflight_messages),
    ),
    gauge(
        "tidewire_broker_output_backlog_bytes",
        "Bytes that wait for sockets now.",
        |s, out| {
            out.one(s.stats.output_backlog_bytes);
        },
    )
    .bytes(),
    gauge(
        "tidewire_journal_state",
        "1 for the state in force: ok, full (nothing more is taken until there is space), failed (for good).",
        |s, out| {
            let Some(journal) = &s.journal else { return };
            let at = match journal.state {
                journal::State::Ok => 0,
                journal::State::Full { .. } => 1,
                journal::State::Failed { .. } => 2,
            };
            for (index, name) in ["ok", "full", "failed"].into_iter().enumerate() {
                out.put(&[("state", name)], u8::from(index == at));
            }
        },
    ),
    counter(
        "tidewire_journal_appended_bytes",
        "Bytes of records handed to the journal.",
        |s, out| out.known(s.journal.as_ref().map(|j| j.stats.appended_bytes)),
    )
    .bytes(),
    counter("tidewire_journal_written_bytes", "Bytes that it wrote.", |s, out| {
        out.known(s.journal.as_ref().map(|j| j.stats.written_bytes))
    })
    .bytes(),
    counter("tidewire_journal_syncs", "Calls of fdatasync.", |s, out| {
        out.known(s.journal.as_ref().map(|j| j.stats.syncs))
    }),
    gauge(
        "tidewire_journal_backlog_bytes",
        "Appended and not yet kept.",
        |s, out| out.known(s.journal.as_ref().map(|j| j.backlog_bytes)),
    )
    .bytes(),
    gauge(
        "tidewire_journal_file_bytes",
        "What its files take on the disk.",
        |s, out| out.known(s.journal.as_ref().map(|j| j.stats.file_bytes)),
    )
    .bytes(),
    gauge("tidewire_journal_segments", "Its files.", |s, out| {
        out.known(s.journal.as_ref().map(|j| j.stats.segments))
    }),
    gauge(
        "tidewire_journal_replay_bytes",
        "What the next start has to read.",
        |s, out| out.known(s.journal.as_ref().map(|j| j.stats.next.0 - j.stats.replay_from.0)),
    )
    .bytes(),
    counter(
        "tidewire_journal_torn_bytes",
        "Bytes of an unfinished write that were cut off at the start.",
        |s, out| out.known(s.journal.as_ref().map(|j| j.stats.torn_bytes_cut)),
    )
    .bytes(),
    histogram(
        "tidewire_publish_acknowledgement_seconds",
        "From reading a PUBLISH of QoS 1 or 2 to having written its acknowledgement, the journal's commit included. Ticks at whose end rules or devices have something to keep first are left out.",
        |s, out| out.histogram(&s.publish_ack_us, 1e-6),
    )
    .seconds(),
    histogram(
        "tidewire_journal_commit_seconds",
        "From when a commit is first waited for to its end.",
        |s, out| {
            if let Some(journal) = &s.journal {
                out.histogram(&journal.commit_latency_us, 1e-6);
            }
        },
    )
    .seconds(),
    histogram("tidewire_journal_commit_bytes", "Bytes of a commit.", |s, out| {
        if let Some(journal) = &s.journal {
            out.histogram(&journal.commit_bytes, 1.0);
        }
    })
    .bytes(),
    gauge(
        "tidewire_listener_connections",
        "Open connections, those in their handshake included.",
        |s, out| {
            for listener in &s.listeners {
                out.put(&labels(listener), listener.current_connections);
            }
        },
    ),
    gauge("tidewire_listener_connections_max", "Its limit.", |s, out| {
        for listener in &s.listeners {
            out.put(&labels(listener), listener.max_connections);
        }
    }),
    counter(
        "tidewire_listener_connections_accepted",
        "Connections accepted.",
        |s, out| {
            for listener in &s.listeners {
                out.put(&labels(listener), listener.accepted);
            }
        },
    ),
    counter(
        "tidewire_listener_connections_refused",
        "Connections that ended before their CONNECT was complete, by reason.",
        |s, out| {
            for listener in &s.listeners {
                let [name, transport] = labels(listener);
                for refusal in Refusal::ALL {
                    out.put(
                        &[name, transport, ("reason", refusal.name())],
                        listener.refused[refusal as usize],
                    );
                }
            }
        },
    ),
    counter(
        "tidewire_net_received_bytes",
        "Bytes read from sockets, TLS and WebSocket framing included.",
        |s, out| out.one(s.net.bytes_in),
    )
    .bytes(),
    counter(
        "tidewire_net_sent_bytes",
        "Bytes written to sockets, TLS and WebSocket framing included.",
        |s, out| out.one(s.net.bytes_out),
    )
    .bytes(),
    counter("tidewire_net_reads", "Reads from sockets.", |s, out| {
        out.one(s.net.reads)
    }),
    counter("tidewire_net_writes", "Writes to sockets.", |s, out| {
        out.one(s.net.writes)
    }),
    counter(
        "tidewire_net_writes_blocked",
        "Writes that the socket did not take in full.",
        |s, out| out.one(s.net.writes_blocked),
    ),
    counter("tidewire_net_accept_errors", "Failures of accept(2).", |s, out| {
        out.one(s.net.accept_errors)
    }),
    counter(
        "tidewire_net_connections_moved",
        "Connections that went to their home shard after CONNECT.",
        |s, out| out.one(s.net.moved),
    ),
    counter(
        "tidewire_net_transport_errors",
        "Violations of WebSocket or TLS framing after CONNECT.",
        |s, out| out.one(s.net.transport_errors),
    ),
    counter(
        "tidewire_net_linger_timeouts",
        "Connections cut because the peer did not read its last bytes in time.",
        |s, out| out.one(s.net.linger_timeouts),
    ),
    counter(
        "tidewire_net_authentications_checked",
        "Authentications that took more than a look: a password had to be hashed.",
        |s, out| out.one(s.net.auth_submitted),
    ),
    counter(
        "tidewire_net_authentications_refused",
        "Authentications answered with Server busy because the queue was full.",
        |s, out| out.one(s.net.auth_queue_full),
    ),
    counter("tidewire_net_ticks", "Turns of the event loops.", |s, out| {
        out.one(s.net.ticks)
    }),
    counter(
        "tidewire_net_lodgings",
        "Times that a worker moved in with the first one's thread because there was little to do.",
        |s, out| out.one(s.net.lodgings),
    ),
    counter(
        "tidewire_net_mail_held",
        "Times that mail had to wait for another shard.",
        |s, out| out.one(s.net.mail_held),
    ),
    gauge("tidewire_api_connections", "HTTP connections now.", |s, out| {
        out.counted(&s.app.counters().open_connections)
    }),
    counter(
        "tidewire_api_connections_accepted",
        "HTTP connections accepted.",
        |s, out| out.counted(&s.app.counters().connections),
    ),
    counter(
        "tidewire_api_connections_refused",
        "HTTP connections turned away because there were too many.",
        |s, out| {
            out.counted(&s.app.counters().connections_refused);
        },
    ),
    counter(
        "tidewire_api_requests",
        "HTTP requests answered, by class of status.",
        |s, out| {
            for (class, answers) in s.app.counters().answers.iter().enumerate().skip(2) {
                out.put(&[("status", &format!("{class}xx"))], answers.load(Ordering::Relaxed));
            }
        },
    ),
    counter(
        "tidewire_api_requests_refused",
        "HTTP requests refused because too many were being answered.",
        |s, out| {
            out.counted(&s.app.counters().requests_refused);
        },
    ),
    counter("tidewire_api_logins", "Logins, by outcome.", |s, out| {
        let counters = s.app.counters();
        for (outcome, count) in [
            ("success", &counters.logins),
            ("failure", &counters.logins_failed),
            ("limited", &counters.logins_limited),
        ] {
            out.put(&[("outcome", outcome)], count.load(Ordering::Relaxed));
        }
    }),
    gauge("tidewire_api_tokens", "Logins that have not ended.", |s, out| {
        out.one(s.app.logins().len())
    }),
    gauge("tidewire_process_resident_bytes", "Resident memory.", |s, out| {
        out.known(s.process.resident_bytes)
    })
    .bytes(),
    counter(
        "tidewire_process_cpu_seconds",
        "Processor time, user and system.",
        |s, out| out.known(s.process.cpu_seconds),
    )
    .seconds(),
    gauge("tidewire_disk_free_bytes", "Of the disk of the data directory: what may still be written.", |s, out| {
        out.known(s.disk.map(|disk| disk.free_bytes))
    })
    .bytes(),
    gauge("tidewire_disk_total_bytes", "Size of the disk of the data directory.", |s, out| {
        out.known(s.disk.map(|disk| disk.total_bytes))
    })
    .bytes(),
    gauge("tidewire_process_threads", "Threads.", |s, out| {
        out.known(s.process.threads)
    }),
    gauge("tidewire_process_open_files", "Open file descriptors.", |s, out| {
        out.known(s.process.open_files)
    }),
    gauge("tidewire_process_open_files_max", "Their soft limit.", |s, out| {
        out.known(s.process.open_files_max)
    }),
];

fn labels(listener: &ListenerInfo) -> [(&'static str, &str); 2] {
    [
        ("listener", &listener.name),
        ("transport", transport_key(listener.transport)),
    ]
}

/// By the number of the type in the fixed header; 0 does not exist.
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

/// Where a family writes its samples.
pub struct Samples<'a> {
    family: &'a Family,
    text: &'a mut String,
}

impl Samples<'_> {
    fn one(&mut self, value: impl Display) {
        self.put(&[], value);
    }

    fn known(&mut self, value: Option<impl Display>) {
        if let Some(value) = value {
            self.one(value);
        }
    }

    fn counted(&mut self, counter: &AtomicU64) {
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

    /// `scale`: of a counted value in the unit of the family.
    fn histogram(&mut self, counts: &journal::HistogramCounts, scale: f64) {
        let name = self.family.name;
        for (bound, count) in counts.bounds.iter().zip(counts.cumulative) {
            let bound = *bound as f64 * scale;
            writeln!(self.text, "{name}_bucket{{le=\"{bound}\"}} {count}").expect("a String takes everything");
        }
        let (count, sum) = (counts.count, counts.sum as f64 * scale);
        writeln!(
            self.text,
            "{name}_bucket{{le=\"+Inf\"}} {count}\n{name}_count {count}\n{name}_sum {sum}"
        )
        .expect("a String takes everything");
    }

    fn put(&mut self, labels: &[(&str, &str)], value: impl Display) {
        self.text.push_str(self.family.name);
        self.text.push_str(self.family.kind.suffix());
        for (index, (name, value)) in labels.iter().enumerate() {
            self.text.push(if index == 0 { '{' } else { ',' });
            let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            write!(self.text, "{name}=\"{value}\"").expect("a String takes everything");
        }
        let end = if labels.is_empty() { "" } else { "}" };
        writeln!(self.text, "{end} {value}").expect("a String takes everything");
    }
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
            Kind::Info => "info",
        }
    }

    fn suffix(self) -> &'static str {
        match self {
            Kind::Counter => "_total",
            Kind::Gauge | Kind::Histogram => "",
            Kind::Info => "_info",
        }
    }
}

fn families() -> impl Iterator<Item = &'static Family> {
    FAMILIES.iter().chain(integration::FAMILIES).chain(devices::FAMILIES)
}

/// OpenMetrics 1.0.
pub fn expose(snapshot: &Snapshot<'_>) -> String {
    let mut text = String::with_capacity(32 * 1024);
    for family in families() {
        let Family {
            name, kind, unit, help, ..
        } = family;
        writeln!(text, "# TYPE {name} {}", kind.name()).expect("a String takes everything");
        if !unit.is_empty() {
            writeln!(text, "# UNIT {name} {unit}").expect("a String takes everything");
        }
        writeln!(text, "# HELP {name} {help}").expect("a String takes everything");
        (family.samples)(
            snapshot,
            &mut Samples {
                family,
                text: &mut text,
            },
        );
    }
    text.push_str("# EOF\n");
    text
}

impl<'a> Snapshot<'a> {
    pub fn new(app: &'a App, stats: Stats) -> Snapshot<'a> {
        Snapshot {
            app,
            stats,
            net: app.net().counters(),
            listeners: app.net().listeners(),
            journal: app.net().journal(),
            publish_ack_us: app.net().publish_ack_us(),
            process: ProcessView::now(),
            disk: app.disk(),
            integration: app
                .config()
                .engine
                .as_ref()
                .map(::integration::Engine::measures)
                .unwrap_or_default(),
            devices: app.config().devices.as_ref().map(|devices| Box::new(devices.stats())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_the_rule_and_occur_once() {
        let mut names = std::collections::BTreeSet::new();
        for family in families() {
            assert!(names.insert(family.name), "{} twice", family.name);
            assert!(family.name.starts_with("tidewire_"), "{}", family.name);
            assert!(!family.name.ends_with("_total"), "{}", family.name);
            assert!(family.name.ends_with(family.unit), "{}", family.name);
            let has_unit = family.name.ends_with("_bytes") || family.name.ends_with("_seconds");
            assert_eq!(has_unit, !family.unit.is_empty(), "{}", family.name);
            assert!(
                family.help.ends_with('.') && !family.help.contains('\n'),
                "{}",
                family.name
            );
        }
    }

    #[test]
    fn the_documentation_lists_every_metric() {
        let page = include_str!("../../../docs/api.md");
        for family in families() {
            let name = format!("`{}{}`", family.name, family.kind.suffix());
            assert!(page.contains(&name), "docs/api.md lacks {name}");
        }
    }
}
