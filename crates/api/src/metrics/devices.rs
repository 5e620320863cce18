//! Metrics of the device platform. Without it they have no samples.

use devices::DevicesStats;
use journal::LogHealth;

use super::{MetricsSnapshot, Samples, metric_families, samples};

/// Listed tenants.
const TENANTS_LISTED_MAX: usize = 1000;

metric_families! {
    Gauge "tidewire_platform_devices" "Devices of all tenants." put |it| it.devices as f64;
    Gauge "tidewire_platform_sessions" "Connected devices." put |it| it.sessions as f64;
    Gauge "tidewire_platform_lag_messages" "Records of the device log that are not processed yet."
        put |it| it.lag.messages as f64;
    Gauge "tidewire_platform_lag_bytes" "Bytes of the device log that are not processed yet."
        put |it| it.lag.bytes as f64;
    Gauge "tidewire_platform_lag_seconds" "Processing delay: age of the last processed record."
        put |it| it.lag.age_ms as f64 / 1000.0;
    Gauge "tidewire_platform_log_bytes" "Files of the device log." put |it| it.log_bytes as f64;
    Gauge "tidewire_platform_failed_stores"
        "Stores of the device platform whose last write failed: entity database, time series. The ingest log has its own metric."
        put |it| it.failed_stores as f64;
    Gauge "tidewire_platform_log_state"
        "1 for the current state of the device log: ok, full (no records are accepted until space is freed), failed (until a restart)."
        samples |s, out| {
            let Some(devices) = &s.devices else { return };
            let states = [
                ("ok", LogHealth::Ok),
                ("full", LogHealth::Full),
                ("failed", LogHealth::Failed),
            ];
            for (name, health) in states {
                out.put(&[("state", name)], u8::from(devices.log_health == health));
            }
        };
    Counter "tidewire_platform_log_appended" "Records appended to the device log: messages, connections, requests."
        put |it| it.appended_records_total as f64;
    Counter "tidewire_platform_messages" "Processed messages of devices." put |it| it.platform.messages_total as f64;
    Counter "tidewire_platform_points" "Telemetry values in processed messages."
        put |it| it.platform.points_total as f64;
    Counter "tidewire_platform_messages_refused" "Messages of devices that could not be decoded."
        put |it| it.refused_messages_total as f64;
    Counter "tidewire_platform_messages_over_limit"
        "Messages of devices above a limit of their tenant. The device is disconnected."
        put |it| it.over_limit_messages_total as f64;
    Counter "tidewire_platform_messages_dropped"
        "QoS 0 messages dropped because the device log was full, and requests for package chunks above the limit of a device."
        put |it| it.dropped_messages_total as f64;
    Counter "tidewire_platform_messages_unknown_topic"
        "Messages of devices to topics that are not part of the device API."
        put |it| it.unknown_topics_total as f64;
    Counter "tidewire_platform_messages_retried" "Retries of messages that had failed in a rule chain."
        put |it| it.platform.retried_messages_total as f64;
    Gauge "tidewire_platform_retries_waiting"
        "Messages that wait for their retry in a rule chain, or for the retry of an earlier message."
        put |it| it.platform.waiting_retries as f64;
    Counter "tidewire_platform_messages_failed" "Messages that failed in a rule chain."
        put |it| it.platform.failed_messages_total as f64;
    Counter "tidewire_platform_keys_refused"
        "Values that were not stored, because the device has platform.max_keys keys of telemetry or attributes."
        put |it| it.platform.refused_keys_total as f64;
    Counter "tidewire_platform_messages_exceeding"
        "Messages that failed in a rule chain, because they passed too many nodes, made too many or too large messages, or took too long."
        put |it| it.platform.exceeding_messages_total as f64;
    Counter "tidewire_platform_rule_nodes" "Executions of rule nodes." put |it| it.platform.rule_nodes_total as f64;
    Counter "tidewire_platform_scripts" "Executions of scripts." put |it| it.platform.scripts_total as f64;
    Counter "tidewire_platform_script_cpu_seconds"
        "CPU time of the scripts of a tenant. Only the tenants with the most time are listed."
        samples |s, out| {
            let Some(devices) = &s.devices else { return };
            let mut tenants = devices.platform.script_usage.tenants.clone();
            tenants.sort_unstable_by_key(|usage| std::cmp::Reverse(usage.cpu));
            for usage in tenants.iter().take(TENANTS_LISTED_MAX) {
                out.put(&[("tenant", &usage.tenant.0.to_string())], usage.cpu.as_secs_f64());
            }
        };
    Gauge "tidewire_platform_script_over_budget_tenants"
        "Tenants whose scripts and rule chains wait, or waited in the last 10 seconds, because they used the CPU time of platform.script_cpu_percent."
        samples |s, out| {
            put(s, out, |it| {
                let tenants = it.platform.script_usage.tenants.iter();
                tenants.filter(|usage| usage.is_over_budget).count() as f64
            })
        };
    Gauge "tidewire_platform_scripts_waiting"
        "Executions of scripts that wait for a process, or for CPU time of their tenant."
        put |it| it.platform.script_usage.waiting as f64;
    Counter "tidewire_platform_script_processes_killed"
        "Processes that were killed because their script could not be interrupted."
        put |it| it.platform.script_usage.killed_total as f64;
    Counter "tidewire_platform_targets_refused"
        "Connections of rule chains rejected because platform.outbound_networks does not contain the address."
        put |it| it.refused_targets_total as f64;
    Counter "tidewire_platform_alarms_created" "Alarms created by rules."
        put |it| it.platform.alarms_created_total as f64;
    Counter "tidewire_platform_batches_failed" "Retries of batches that could not be stored."
        put |it| it.failed_batches_total as f64;
    Counter "tidewire_platform_downlinks_sent" "Messages sent to devices." put |it| it.sent_downlinks_total as f64;
    Counter "tidewire_platform_downlinks_dropped" "Messages for devices that were disconnected or did not accept them."
        put |it| it.dropped_downlinks_total as f64;
    Counter "tidewire_platform_sessions_closed" "Devices disconnected by the platform."
        put |it| it.closed_sessions_total as f64;
    Counter "tidewire_platform_updates_dropped" "Updates dropped because a subscriber's queue was full."
        put |it| it.dropped_updates_total as f64;
    Counter "tidewire_platform_events_unreadable"
        "Entities and rule nodes whose stored events could not be read at the start."
        put |it| it.unreadable_events_total as f64;
    Gauge "tidewire_platform_calls_waiting" "RPC calls to devices that wait for an answer."
        put |it| it.waiting_calls as f64;
    Gauge "tidewire_platform_state_bytes" "Memory of the device states and of the directory of credentials." put |it| {
        (it.platform.device_state_bytes + it.directory_bytes) as f64
    };
    Gauge "tidewire_timeseries_series" "Time series with values." put |it| it.store.series as f64;
    Gauge "tidewire_timeseries_stored_points" "Values stored on disk." put |it| it.store.stored_points as f64;
    Gauge "tidewire_timeseries_stored_bytes" "Bytes of the values stored on disk."
        put |it| it.store.stored_bytes as f64;
    Gauge "tidewire_timeseries_head_bytes" "Values in memory that are not on disk yet."
        put |it| it.store.head_bytes as f64;
    Counter "tidewire_timeseries_points_written" "Values written." put |it| it.store.written_points_total as f64;
    Counter "tidewire_timeseries_points_refused" "Rejected values: too many series, or a text that is too long."
        put |it| it.store.rejected_points_total as f64;
    Counter "tidewire_timeseries_flush_errors" "Failed flushes, which are retried."
        put |it| it.store.flush_errors_total as f64;
}

fn put(snapshot: &MetricsSnapshot<'_>, out: &mut Samples<'_>, of: fn(&DevicesStats) -> f64) {
    out.put_if_known(snapshot.devices.as_deref().map(of));
}
