//! Checks the node for problems every second (expensive checks less often), and reports alarms that begin or end:
//! in the log, on `$SYS` like EMQX, to rules on `$events/sys/alarm_activated`, and over the API.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use auth::LoginLimiter;
use axum::extract::FromRef;
use broker::{DropReason, Shard, ShardId, rfc3339};
use integration::{AlarmEvent, Engine, NodeEvents};
use net::certificate;
use serde_json::json;
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval, timeout};
use web::audit::{Audit, AuditFailure};
use web::unix_ms;

use crate::alarms::{AlarmCondition, Alarms, NodeAlarm};
use crate::app::App;
use crate::certificate_admin::{CertificateAdmin, ManagedItem, ManagedKind, ServerCertificate};
use crate::config::{NodeInfo, SysConfig};
use crate::device_platform::DevicePlatform;
use crate::process::ProcessView;
use crate::shards::Shards;
use crate::sys_publisher::topic_level;

const EVERY: Duration = Duration::from_secs(1);

/// Certificates are valid for months, and listing them reads files.
const CERTIFICATES_EVERY: Duration = Duration::from_secs(60);

/// Counting the open files reads an entry of /proc for each: too expensive to do every second with 100,000 connections.
const OPEN_FILES_EVERY: Duration = Duration::from_secs(10);

/// A certificate that expires within this time needs a replacement.
const EXPIRES_WITHIN_MS: i64 = 14 * 24 * 3_600_000;

/// The check queries every shard.
const DAMAGE_EVERY: Duration = Duration::from_secs(10);

/// Alarm threshold in percent of the limit of open files, and of the connections that it allows.
const OPEN_FILES_PERCENT: u64 = 90;

/// Tenants with an alarm about their scripts.
const SCRIPT_ALARMS_MAX: usize = 100;

/// Limits how long a busy shard can delay the other reports of an alarm.
const PUBLISHED_WITHIN: Duration = Duration::from_secs(2);

/// Checks the node and reports its alarms.
pub struct AlarmWatcher {
    alarms: Arc<Alarms>,
    shards: Shards,
    net: net::ServerHandle,
    platform: Option<DevicePlatform>,
    engine: Option<Engine>,
    login_limiter: Arc<LoginLimiter>,
    certificate_admin: Option<Arc<dyn CertificateAdmin>>,
    audit: Arc<Audit>,
    /// Topic level of the node, if alarms are published on `$SYS`.
    sys_node: Option<String>,
    events: Option<NodeEvents>,
    /// Previous counter of held-back publishers, by action.
    held_back: HashMap<String, u64>,
    /// Previous counter of failures at a limit, by rule.
    failed_at_limit: HashMap<String, u64>,
    open_files: Option<AlarmCondition>,
    open_files_at: Option<Instant>,
    /// Number of damaged messages since the start.
    damaged: u64,
    damaged_at: Option<Instant>,
    certificates: Vec<AlarmCondition>,
    certificates_at: Option<Instant>,
}

impl FromRef<App> for AlarmWatcher {
    fn from_ref(app: &App) -> AlarmWatcher {
        let (engine, net): (Option<Engine>, net::ServerHandle) = (app.part(), app.part());
        let (sys, node): (Option<SysConfig>, Arc<NodeInfo>) = (app.part(), app.part());
        let is_on_sys = sys.is_some_and(|sys| sys.emqx_tree);
        AlarmWatcher {
            alarms: app.part(),
            shards: app.part(),
            platform: app.part(),
            login_limiter: app.part(),
            certificate_admin: app.part(),
            audit: app.part(),
            sys_node: is_on_sys.then(|| topic_level(&node.name)),
            events: engine.as_ref().map(|engine| engine.node_events(net.clone())),
            net,
            engine,
            held_back: HashMap::new(),
            failed_at_limit: HashMap::new(),
            open_files: None,
            open_files_at: None,
            damaged: 0,
            damaged_at: None,
            certificates: Vec::new(),
            certificates_at: None,
        }
    }
}

impl AlarmWatcher {
    /// Runs until `stopped` is set.
    pub async fn watch(mut self, mut stopped: watch::Receiver<bool>) {
        let mut ticks = interval(EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                _ = stopped.wait_for(|is_stopped| *is_stopped) => return,
            }
            self.check_all().await;
        }
    }

    async fn check_all(&mut self) {
        let (mut found, unsure) = self.integration();
        found.extend(self.journal());
        found.extend(self.ingest_log());
        found.extend(self.platform_stores());
        found.extend(self.scripts());
        found.extend(self.journal_damage().await);
        found.extend(self.locked_addresses());
        found.extend(self.open_files());
        found.extend(self.certificates().await);
        found.extend(self.managed());
        found.extend(self.audit_log().await);
        let changed = self.alarms.update(found, &unsure, unix_ms(SystemTime::now()));
        for alarm in &changed {
            log(alarm);
        }
        self.publish(&changed).await;
        if let Some(events) = &mut self.events {
            let events_of_changes: Vec<AlarmEvent> = changed.into_iter().map(event).collect();
            events.send(&events_of_changes).await;
        }
    }

    /// Also writes the entries that wait.
    async fn audit_log(&self) -> Option<AlarmCondition> {
        let audit = self.audit.clone();
        web::block(move || audit.retry())
            .await
            .ok()?
            .map(|failure| audit_condition(&failure))
    }

    fn journal(&self) -> Option<AlarmCondition> {
        let (name, message, reason) = match self.net.journal()?.state {
            journal::LogState::Ok => return None,
            journal::LogState::Full { reason } => (
                "journal_full",
                "The journal is full: messages that must be stored are rejected or wait. Free disk space, or raise durability.max_bytes",
                reason,
            ),
            journal::LogState::Failed { reason } => (
                "journal_failed",
                "Writing the journal failed: messages that must be stored are no longer acknowledged. \
                 Restart after the disk is repaired",
                reason,
            ),
        };
        Some(condition(name, format!("{message}: {reason}"), &[("reason", &reason)]))
    }

    fn ingest_log(&self) -> Option<AlarmCondition> {
        let (name, message, reason) = match self.platform.as_ref()?.log_state() {
            journal::LogState::Ok => return None,
            journal::LogState::Full { reason } => (
                "ingest_log_full",
                "The ingest log of the device platform is full: messages of devices are rejected or wait. Free disk \
                 space, or raise platform.max_log_bytes",
                reason,
            ),
            journal::LogState::Failed { reason } => (
                "ingest_log_failed",
                "Writing the ingest log of the device platform failed: messages of devices are no longer acknowledged. \
                 Restart after the disk is repaired",
                reason,
            ),
        };
        Some(condition(name, format!("{message}: {reason}"), &[("reason", &reason)]))
    }

    /// The stores of the device platform behind the ingest log.
    fn platform_stores(&self) -> Option<AlarmCondition> {
        let failures = self.platform.as_ref()?.failed_stores();
        if failures.is_empty() {
            return None;
        }
        let reason = failures.join("; ");
        let message = format!(
            "A store of the device platform fails, and the work is retried. Free disk space, or check the disk: {reason}"
        );
        Some(condition("platform_store_failed", message, &[("reason", &reason)]))
    }

    /// Tenants whose scripts and rule nodes use more CPU time than they may.
    fn scripts(&self) -> Vec<AlarmCondition> {
        let Some(platform) = &self.platform else {
            return Vec::new();
        };
        let over = platform.tenants_over_script_budget().into_iter();
        over.take(SCRIPT_ALARMS_MAX)
            .map(|tenant| {
                let message = format!(
                    "The scripts and rule nodes of the tenant {tenant} use more CPU time than platform.script_cpu_percent \
                     allows: its messages wait"
                );
                condition(&format!("script_cpu:{tenant}"), message, &[("tenant", &tenant)])
            })
            .collect()
    }

    /// Damage of the journal stays an alarm until a restart, because lost messages cannot be recovered.
    async fn journal_damage(&mut self) -> Option<AlarmCondition> {
        if self.damaged_at.is_none_or(|at| at.elapsed() >= DAMAGE_EVERY)
            && let Ok(stats) = self.shards.stats().await
        {
            self.damaged_at = Some(Instant::now());
            self.damaged = stats.drops[DropReason::Damaged as usize];
        }
        journal_damage_condition(self.damaged)
    }

    fn integration(&mut self) -> (Vec<AlarmCondition>, HashSet<String>) {
        let Some(engine) = &self.engine else {
            return (Vec::new(), HashSet::new());
        };
        let troubles = engine.troubles();
        let mut found: Vec<AlarmCondition> = troubles
            .found
            .into_iter()
            .map(|trouble| {
                let what = trouble.name.replacen(':', " ", 1);
                let message = format!("The {what} has failed: {}", trouble.reason);
                condition(&trouble.name, message, &[("reason", &trouble.reason)])
            })
            .collect();
        for (action, reason) in &troubles.full {
            let message = format!("The buffer of the action {action} is full: its publishers wait, because {reason}");
            found.push(condition(&format!("buffer:{action}"), message, &[("reason", reason)]));
        }
        for (action, times) in &troubles.held_back {
            let has_waited = self.held_back.get(action).is_some_and(|before| before < times);
            if has_waited && !troubles.full.iter().any(|(full, _)| full == action) {
                let message = format!("The buffer of the action {action} was full for a moment: its publishers waited");
                found.push(condition(&format!("buffer:{action}"), message, &[]));
            }
        }
        self.held_back = troubles.held_back.into_iter().collect();
        for (rule, messages) in &troubles.failed_at_limit {
            if self.failed_at_limit.get(rule).unwrap_or(&0) < messages {
                let message = format!(
                    "The rule {rule} fails for messages that exceed the limits of a rule for time, steps or memory. \
                     docs/reference/limits.md lists the limits"
                );
                found.push(condition(&format!("rule_limit:{rule}"), message, &[]));
            }
        }
        self.failed_at_limit = troubles.failed_at_limit.into_iter().collect();
        (found, troubles.undecided.into_iter().collect())
    }

    /// Short lock-outs are no alarm: a person who mistypes a password causes one.
    fn locked_addresses(&self) -> Option<AlarmCondition> {
        let addresses = self.login_limiter.stats(Instant::now()).long_locked_addresses;
        let message = format!(
            "Clients guess passwords or tokens: {addresses} addresses are locked out for a minute or more. The log \
             names them"
        );
        (addresses > 0).then(|| condition("password_guessing", message, &[]))
    }

    fn open_files(&mut self) -> Option<AlarmCondition> {
        if self.open_files_at.is_none_or(|at| at.elapsed() >= OPEN_FILES_EVERY) {
            self.open_files_at = Some(Instant::now());
            self.open_files = open_files(&ProcessView::now());
        }
        let net = &self.net;
        self.open_files
            .clone()
            .or_else(|| clients_at_limit(net.connections(), net.descriptor_limit()?))
    }

    async fn certificates(&mut self) -> Vec<AlarmCondition> {
        let is_due = self.certificates_at.is_none_or(|at| at.elapsed() >= CERTIFICATES_EVERY);
        if let Some(admin) = self.certificate_admin.clone().filter(|_| is_due) {
            self.certificates_at = Some(Instant::now());
            // `block` has already reported a panic.
            if let Ok(held) = web::block(move || admin.list()).await {
                let now = unix_ms(SystemTime::now()) as i64;
                self.certificates = held.iter().filter_map(|one| expiry_of(one, now)).collect();
            }
        }
        self.certificates.clone()
    }

    fn managed(&self) -> Vec<AlarmCondition> {
        let now_unix_s = (unix_ms(SystemTime::now()) / 1000) as i64;
        let items = self.certificate_admin.as_ref().map(|admin| admin.managed());
        let items = items.unwrap_or_default();
        items.iter().filter_map(|item| managed(item, now_unix_s)).collect()
    }

    /// Publishes alarms to `$SYS/brokers/<node>/alarms/…`.
    async fn publish(&self, alarms: &[NodeAlarm]) {
        let Some(node) = self.sys_node.as_ref().filter(|_| !alarms.is_empty()) else {
            return;
        };
        let messages: Vec<(String, String)> = alarms.iter().map(|alarm| sys_topic(node, alarm)).collect();
        let visit = move |shard: &mut Shard, now| {
            let mut server = shard.server_publisher(now);
            for (topic, payload) in &messages {
                server.publish_sys(topic, payload, false);
            }
        };
        // A busy shard may not publish it; alarms on `$SYS` are best effort.
        let _ = timeout(PUBLISHED_WITHIN, self.shards.on_shard(ShardId(0), visit)).await;
    }
}

fn condition(name: &str, message: String, details: &[(&str, &str)]) -> AlarmCondition {
    let details = details.iter();
    AlarmCondition {
        name: name.to_owned(),
        message,
        details: details
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect(),
    }
}

fn open_files(process: &ProcessView) -> Option<AlarmCondition> {
    let (open, max) = (process.open_files?, process.open_files_max?);
    if open * 100 < max * OPEN_FILES_PERCENT {
        return None;
    }
    let message = format!(
        "{open} of {max} files are open: new clients will be rejected. Raise the limit (LimitNOFILE, ulimit -n)"
    );
    let details = [("open", &*open.to_string()), ("max", &*max.to_string())];
    Some(condition("open_files", message, &details))
}

/// Listeners refuse clients before the process has no descriptor left for its own files.
fn clients_at_limit(connections: usize, limit: usize) -> Option<AlarmCondition> {
    if (connections as u64) * 100 < limit as u64 * OPEN_FILES_PERCENT {
        return None;
    }
    let message = format!(
        "{connections} of the {limit} connections that the limit of open files allows are in use: further clients are \
         rejected. Raise the limit (LimitNOFILE, ulimit -n)"
    );
    let details = [("connections", &*connections.to_string()), ("max", &*limit.to_string())];
    Some(condition("open_files", message, &details))
}

/// A certificate that the server renews itself may live for a few days only: its alarm is `acme`.
fn expiry_of(one: &ServerCertificate, now_unix_ms: i64) -> Option<AlarmCondition> {
    let described = certificate::describe(one.chain.first()?)?;
    let end_unix_ms = described.not_after_unix_s.saturating_mul(1000);
    let alarm = expiry(&one.listener, end_unix_ms, now_unix_ms)?;
    (!one.is_renewed || end_unix_ms <= now_unix_ms).then_some(alarm)
}

fn expiry(listener: &str, not_after_unix_ms: i64, now_unix_ms: i64) -> Option<AlarmCondition> {
    let left_ms = not_after_unix_ms - now_unix_ms;
    if left_ms > EXPIRES_WITHIN_MS {
        return None;
    }
    let end = rfc3339(u64::try_from(not_after_unix_ms).unwrap_or_default());
    let message = match left_ms {
        ..=0 => format!(
            "The certificate of the listener {listener} has expired on {end}: clients that verify it cannot connect"
        ),
        _ => format!("The certificate of the listener {listener} expires on {end}"),
    };
    Some(condition(
        &format!("certificate:{listener}"),
        message,
        &[("not_after", &end)],
    ))
}

/// The last attempt to obtain a certificate, a revocation list or an OCSP response failed, or a list or a response has
/// expired before the next attempt, for example while the machine slept, or the list of a file expires. The listeners
/// report expired certificates ([`expiry_of`]).
fn managed(item: &ManagedItem, now_unix_s: i64) -> Option<AlarmCondition> {
    let Some(reason) = &item.last_error else {
        return expiring(item, now_unix_s);
    };
    let name = &item.name;
    let end = item.expires_at_unix_s;
    let end_text = end.map(|end| rfc3339(u64::try_from(end).unwrap_or_default() * 1000));
    let (key, what) = match item.kind {
        ManagedKind::Certificate => ("acme".to_owned(), format!("Obtaining the certificate of {name} failed")),
        ManagedKind::RevocationList | ManagedKind::RevocationFile => (
            format!("crl:{name}"),
            format!("Downloading the revocation list {name} failed"),
        ),
        ManagedKind::Staple => (
            format!("ocsp:{name}"),
            format!("Obtaining the OCSP response for the certificate {name} failed"),
        ),
    };
    let stored = match (item.kind, &end_text) {
        (ManagedKind::Certificate, None) => "TLS clients cannot connect before the server has one".to_owned(),
        (ManagedKind::RevocationList | ManagedKind::RevocationFile, None) => "No list is stored".to_owned(),
        (ManagedKind::Staple, None) => "Clients get no stapled response".to_owned(),
        (_, Some(text)) if end.is_some_and(|end| end <= now_unix_s) => format!("The present one has expired on {text}"),
        (_, Some(text)) => format!("The present one stays in use until {text}"),
    };
    Some(condition(
        &key,
        format!("{what}: {reason}. {stored}"),
        &[("reason", reason)],
    ))
}

fn expiring(item: &ManagedItem, now_unix_s: i64) -> Option<AlarmCondition> {
    let end_unix_s = item.expires_at_unix_s?;
    let begin_unix_s = item.notice_at_unix_s.unwrap_or(end_unix_s).min(end_unix_s);
    if now_unix_s < begin_unix_s {
        return None;
    }
    let (name, end) = (
        &item.name,
        rfc3339(u64::try_from(end_unix_s).unwrap_or_default() * 1000),
    );
    let has_expired = end_unix_s <= now_unix_s;
    let (key, what) = match item.kind {
        ManagedKind::Staple => (format!("ocsp:{name}"), "response"),
        _ => (format!("crl:{name}"), "list"),
    };
    let message = match item.kind {
        ManagedKind::Certificate => return None,
        ManagedKind::Staple => format!(
            "The OCSP response for the certificate {name} has expired on {end}. Clients get no stapled response until \
             the server has obtained a new one"
        ),
        ManagedKind::RevocationList => {
            format!("The revocation list {name} has expired on {end}. The server has not downloaded it since then")
        }
        ManagedKind::RevocationFile if has_expired => format!(
            "The revocation list {name} has expired on {end}: clients with certificates of its authority may be \
             rejected. Replace the file"
        ),
        ManagedKind::RevocationFile => {
            format!("The revocation list {name} expires on {end}. Replace the file before then")
        }
    };
    let reason = match has_expired {
        true => format!("the {what} has expired at {end}"),
        false => format!("the {what} expires at {end}"),
    };
    Some(condition(&key, message, &[("reason", &reason)]))
}

fn log(alarm: &NodeAlarm) {
    let NodeAlarm { name, message, .. } = alarm;
    match alarm.deactivated_at_unix_ms {
        None => tracing::warn!(name, message, "alarm"),
        Some(_) => tracing::info!(name, "alarm ended"),
    }
}

fn journal_damage_condition(messages: u64) -> Option<AlarmCondition> {
    let message = format!(
        "Stored messages are damaged: {messages} messages of the journal are lost. The log names the files and \
         offsets; `tidewire journal verify` finds further damage"
    );
    (messages > 0).then(|| condition("journal_damaged", message, &[("messages", &messages.to_string())]))
}

fn audit_condition(failure: &AuditFailure) -> AlarmCondition {
    let message = format!(
        "Writing the audit log failed: changes over the API are only in the server log and in memory. Free disk space, or \
         check the disk: {failure}"
    );
    condition("audit_log_failed", message, &[("reason", &failure.reason)])
}

fn event(alarm: NodeAlarm) -> AlarmEvent {
    AlarmEvent {
        name: alarm.name,
        message: alarm.message,
        details: alarm.details.into_iter().collect(),
        activated_unix_ms: alarm.activated_at_unix_ms,
        deactivated_unix_ms: alarm.deactivated_at_unix_ms,
    }
}

/// Returns topic and payload as EMQX defines them.
fn sys_topic(node: &str, alarm: &NodeAlarm) -> (String, String) {
    let end = alarm.deactivated_at_unix_ms;
    let level = if end.is_some() { "deactivate" } else { "activate" };
    let mut payload = json!({
        "node": node,
        "name": alarm.name,
        "message": alarm.message,
        "details": BTreeMap::clone(&alarm.details),
        "duration": end.map_or(0, |end| end.saturating_sub(alarm.activated_at_unix_ms)),
        "activate_at": rfc3339(alarm.activated_at_unix_ms),
    });
    if let Some(end) = end {
        payload["deactivate_at"] = rfc3339(end).into();
    }
    (format!("$SYS/brokers/{node}/alarms/{level}"), payload.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY_MS: i64 = 24 * 3_600_000;

    #[test]
    fn certificate_alarm_begins_two_weeks_before_expiry() {
        assert_eq!(expiry("tls.default", 15 * DAY_MS, 0), None);
        let soon = expiry("tls.default", 13 * DAY_MS, 0).unwrap();
        assert_eq!(soon.name, "certificate:tls.default");
        assert!(soon.message.contains("expires on 1970-01-14"), "{}", soon.message);
        let over = expiry("tls.default", DAY_MS, 2 * DAY_MS).unwrap();
        assert!(over.message.contains("has expired on 1970-01-02"), "{}", over.message);
    }

    #[test]
    fn failed_attempt_to_obtain_a_certificate_raises_an_alarm() {
        let mut item = ManagedItem {
            kind: ManagedKind::Certificate,
            name: "a.example".into(),
            expires_at_unix_s: Some(100),
            notice_at_unix_s: None,
            failures: 1,
            last_error: None,
        };
        assert_eq!(managed(&item, 0), None);
        item.last_error = Some("no route".into());
        let alarm = managed(&item, 0).unwrap();
        assert_eq!(alarm.name, "acme");
        assert_eq!(
            alarm.message,
            "Obtaining the certificate of a.example failed: no route. The present one stays in use until \
             1970-01-01T00:01:40.000Z"
        );
        assert!(managed(&item, 100).unwrap().message.contains("has expired on"));
        item.kind = ManagedKind::RevocationList;
        item.expires_at_unix_s = None;
        let alarm = managed(&item, 0).unwrap();
        assert_eq!(alarm.name, "crl:a.example");
        assert!(alarm.message.ends_with("No list is stored"), "{}", alarm.message);
        item.kind = ManagedKind::Staple;
        let alarm = managed(&item, 0).unwrap();
        assert_eq!(alarm.name, "ocsp:a.example");
        assert!(
            alarm.message.ends_with("no route. Clients get no stapled response"),
            "{}",
            alarm.message
        );
    }

    #[test]
    fn list_that_expires_without_a_failed_download_raises_an_alarm() {
        let mut item = ManagedItem {
            kind: ManagedKind::RevocationList,
            name: "http://a/ca.crl".into(),
            expires_at_unix_s: Some(100),
            notice_at_unix_s: None,
            failures: 0,
            last_error: None,
        };
        assert_eq!(managed(&item, 99), None);
        let alarm = managed(&item, 100).unwrap();
        assert_eq!(alarm.name, "crl:http://a/ca.crl");
        assert_eq!(
            alarm.message,
            "The revocation list http://a/ca.crl has expired on 1970-01-01T00:01:40.000Z. The server has not \
             downloaded it since then"
        );
        // The alarm of the listener reports it.
        item.kind = ManagedKind::Certificate;
        assert_eq!(managed(&item, 100), None);
        item.kind = ManagedKind::Staple;
        assert_eq!(managed(&item, 99), None);
        let alarm = managed(&item, 100).unwrap();
        assert_eq!(alarm.name, "ocsp:http://a/ca.crl");
        assert!(
            alarm.message.contains("Clients get no stapled response until"),
            "{}",
            alarm.message
        );
    }

    #[test]
    fn list_of_a_file_raises_an_alarm_before_it_expires() {
        let item = ManagedItem {
            kind: ManagedKind::RevocationFile,
            name: "/etc/ca.crl".into(),
            expires_at_unix_s: Some(100),
            notice_at_unix_s: Some(90),
            failures: 0,
            last_error: None,
        };
        assert_eq!(managed(&item, 89), None);
        let soon = managed(&item, 90).unwrap();
        assert_eq!(soon.name, "crl:/etc/ca.crl");
        assert!(
            soon.message.contains("expires on 1970-01-01T00:01:40.000Z"),
            "{}",
            soon.message
        );
        let over = managed(&item, 100).unwrap();
        assert_eq!(over.name, soon.name);
        assert!(
            over.message.contains("has expired on 1970-01-01T00:01:40.000Z"),
            "{}",
            over.message
        );
    }

    #[test]
    fn open_files_alarm_begins_before_the_limit() {
        let process = |open| ProcessView {
            open_files: Some(open),
            open_files_max: Some(1000),
            ..ProcessView::default()
        };
        assert_eq!(open_files(&process(899)), None);
        assert!(
            open_files(&process(900))
                .unwrap()
                .message
                .starts_with("900 of 1000 files")
        );
        assert_eq!(open_files(&ProcessView::default()), None);
    }

    #[test]
    fn lost_messages_raise_an_alarm() {
        assert_eq!(journal_damage_condition(0), None);
        let lost = journal_damage_condition(3).unwrap();
        assert_eq!(lost.name, "journal_damaged");
        assert!(lost.message.contains("3 messages"), "{}", lost.message);
    }

    #[test]
    fn failed_audit_log_raises_an_alarm() {
        let failure = AuditFailure {
            reason: "disk full".into(),
            waiting: 2,
            lost: 0,
        };
        let alarm = audit_condition(&failure);
        assert_eq!(
            (&*alarm.name, &*alarm.details["reason"]),
            ("audit_log_failed", "disk full")
        );
        assert!(
            alarm
                .message
                .ends_with("disk full (2 entries wait, 0 are only in the server log)"),
            "{}",
            alarm.message
        );
    }

    #[test]
    fn topics_and_payloads_match_emqx() {
        let mut alarm = NodeAlarm {
            name: "journal_full".into(),
            message: "m".into(),
            details: [("reason".to_owned(), "r".to_owned())].into(),
            activated_at_unix_ms: 1_000,
            deactivated_at_unix_ms: None,
        };
        let (topic, payload) = sys_topic("n", &alarm);
        assert_eq!(topic, "$SYS/brokers/n/alarms/activate");
        let payload: serde_json::Value = serde_json::from_str(&payload).unwrap();
        assert_eq!(
            payload,
            json!({"node": "n", "name": "journal_full", "message": "m", "details": {"reason": "r"}, "duration": 0,
                   "activate_at": "1970-01-01T00:00:01.000Z"})
        );
        alarm.deactivated_at_unix_ms = Some(3_500);
        let (topic, payload) = sys_topic("n", &alarm);
        assert_eq!(topic, "$SYS/brokers/n/alarms/deactivate");
        assert!(
            payload.contains("\"duration\":2500") && payload.contains("1970-01-01T00:00:03.500Z"),
            "{payload}"
        );
    }
}
