//! Metrics of the device platform; without one they have no samples.

use devices::Stats;

use super::{Family, Samples, Snapshot, counter, gauge};

pub const FAMILIES: &[Family] = &[
    gauge("tidewire_platform_devices", "Devices that exist.", |s, out| {
        put(s, out, |it| it.devices as f64)
    }),
    gauge("tidewire_platform_sessions", "Devices that are connected.", |s, out| {
        put(s, out, |it| it.sessions as f64)
    }),
    gauge(
        "tidewire_platform_lag_messages",
        "Records of the log of devices that are not processed yet.",
        |s, out| put(s, out, |it| it.lag.messages as f64),
    ),
    gauge("tidewire_platform_lag_bytes", "What they weigh.", |s, out| {
        put(s, out, |it| it.lag.bytes as f64)
    })
    .bytes(),
    gauge(
        "tidewire_platform_lag_seconds",
        "How far the processing is behind, by the time at which what was processed last had come.",
        |s, out| put(s, out, |it| it.lag.age_ms as f64 / 1000.0),
    )
    .seconds(),
    gauge(
        "tidewire_platform_log_bytes",
        "Files of the log of devices.",
        |s, out| put(s, out, |it| it.log_bytes as f64),
    )
    .bytes(),
    counter(
        "tidewire_platform_log_appended",
        "Records that the log of devices was given: messages, connections, requests.",
        |s, out| put(s, out, |it| it.appended_records_total as f64),
    ),
    counter(
        "tidewire_platform_messages",
        "Messages that were processed.",
        |s, out| put(s, out, |it| it.platform.messages_total as f64),
    ),
    counter("tidewire_platform_points", "Values of telemetry in them.", |s, out| {
        put(s, out, |it| it.platform.points_total as f64)
    }),
    counter(
        "tidewire_platform_messages_refused",
        "Messages that were not understood.",
        |s, out| put(s, out, |it| it.refused_messages_total as f64),
    ),
    counter(
        "tidewire_platform_messages_over_limit",
        "Messages of devices over a limit of their tenant, whose connection was ended.",
        |s, out| put(s, out, |it| it.over_limit_messages_total as f64),
    ),
    counter(
        "tidewire_platform_messages_dropped",
        "Messages that came at QoS 0 while the log took nothing, and chunks that were asked for beyond what waits for a device.",
        |s, out| put(s, out, |it| it.dropped_messages_total as f64),
    ),
    counter(
        "tidewire_platform_messages_unknown_topic",
        "Messages to topics that no device has.",
        |s, out| put(s, out, |it| it.unknown_topics_total as f64),
    ),
    counter(
        "tidewire_platform_messages_retried",
        "Tries of messages that had failed in a rule chain.",
        |s, out| put(s, out, |it| it.platform.retried_messages_total as f64),
    ),
    gauge(
        "tidewire_platform_retries_waiting",
        "Messages that wait for their next try in a rule chain, or behind one that does.",
        |s, out| put(s, out, |it| it.platform.waiting_retries as f64),
    ),
    counter(
        "tidewire_platform_messages_failed",
        "Messages that failed in a rule chain.",
        |s, out| put(s, out, |it| it.platform.failed_messages_total as f64),
    ),
    counter(
        "tidewire_platform_rule_nodes",
        "Rule nodes that were executed.",
        |s, out| put(s, out, |it| it.platform.rule_nodes_total as f64),
    ),
    counter("tidewire_platform_scripts", "Scripts that were executed.", |s, out| {
        put(s, out, |it| it.platform.scripts_total as f64)
    }),
    counter(
        "tidewire_platform_alarms_created",
        "Alarms that were created by rules.",
        |s, out| put(s, out, |it| it.platform.alarms_created_total as f64),
    ),
    counter(
        "tidewire_platform_batches_failed",
        "Batches that a store did not take and that were tried again.",
        |s, out| put(s, out, |it| it.failed_batches_total as f64),
    ),
    counter(
        "tidewire_platform_downlinks_sent",
        "Messages that were sent to devices.",
        |s, out| put(s, out, |it| it.sent_downlinks_total as f64),
    ),
    counter(
        "tidewire_platform_downlinks_dropped",
        "Messages for devices that were gone or took nothing.",
        |s, out| put(s, out, |it| it.dropped_downlinks_total as f64),
    ),
    counter(
        "tidewire_platform_sessions_closed",
        "Connections of devices that the platform ended.",
        |s, out| put(s, out, |it| it.closed_sessions_total as f64),
    ),
    counter(
        "tidewire_platform_updates_dropped",
        "Updates that had no room in the queue of a watcher.",
        |s, out| put(s, out, |it| it.dropped_updates_total as f64),
    ),
    counter(
        "tidewire_platform_events_unreadable",
        "Entities and rule nodes whose events could not be read at the start.",
        |s, out| put(s, out, |it| it.unreadable_events_total as f64),
    ),
    gauge(
        "tidewire_platform_calls_waiting",
        "Calls to devices that wait for an answer.",
        |s, out| put(s, out, |it| it.waiting_calls as f64),
    ),
    gauge(
        "tidewire_platform_state_bytes",
        "Memory of states of devices and of the directory of credentials.",
        |s, out| {
            put(s, out, |it| {
                (it.platform.device_state_bytes + it.directory_bytes) as f64
            })
        },
    )
    .bytes(),
    gauge("tidewire_timeseries_series", "Series that have values.", |s, out| {
        put(s, out, |it| it.store.series as f64)
    }),
    gauge("tidewire_timeseries_stored_points", "Values on the disk.", |s, out| {
        put(s, out, |it| it.store.stored_points as f64)
    }),
    gauge("tidewire_timeseries_stored_bytes", "What they take there.", |s, out| {
        put(s, out, |it| it.store.stored_bytes as f64)
    })
    .bytes(),
    gauge(
        "tidewire_timeseries_head_bytes",
        "Values in memory, not yet on the disk.",
        |s, out| put(s, out, |it| it.store.head_bytes as f64),
    )
    .bytes(),
    counter(
        "tidewire_timeseries_points_written",
        "Values that were written.",
        |s, out| put(s, out, |it| it.store.written_points_total as f64),
    ),
    counter(
        "tidewire_timeseries_points_refused",
        "Values that were not stored: too many series, a text too long.",
        |s, out| put(s, out, |it| it.store.refused_points_total as f64),
    ),
    counter(
        "tidewire_timeseries_flush_errors",
        "Flushes that failed and were tried again.",
        |s, out| put(s, out, |it| it.store.flush_errors_total as f64),
    ),
];

fn put(snapshot: &Snapshot<'_>, out: &mut Samples<'_>, of: fn(&Stats) -> f64) {
    out.known(snapshot.devices.as_deref().map(of));
}
