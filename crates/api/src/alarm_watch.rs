//! Looks every second (less often for what is costly) for what is wrong with the node, and tells of alarms that begin and end: the log, `$SYS` as EMQX does,
//! rules on `$events/sys/alarm_activated`, the API.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::{Duration, Instant, SystemTime};

use broker::{DropReason, Shard, ShardId, rfc3339};
use integration::{AlarmEvent, NodeEvents};
use net::certificate;
use serde_json::json;
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval, timeout};

use crate::alarms::{Alarm, Condition};
use crate::app::{App, unix_ms};
use crate::process::ProcessView;
use crate::sys_publisher::topic_level;

const EVERY: Duration = Duration::from_secs(1);

/// Certificates last for months, and listing them reads files.
const CERTIFICATES_EVERY: Duration = Duration::from_secs(60);

/// Counting them takes a look at each: a hundred thousand connections are not to be counted every second.
const OPEN_FILES_EVERY: Duration = Duration::from_secs(10);

/// A certificate that ends within this time should have a successor.
const EXPIRES_WITHIN_MS: i64 = 14 * 24 * 3_600_000;

/// Each shard is asked.
const DAMAGE_EVERY: Duration = Duration::from_secs(10);

/// Of the files the process may have open, in percent: connections are refused at 100.
const OPEN_FILES_PERCENT: u64 = 90;

/// A shard that has no time for `$SYS` must not keep alarms from being told elsewhere.
const PUBLISHED_WITHIN: Duration = Duration::from_secs(2);

/// Until told to stop.
pub async fn watch(app: App, mut stopped: watch::Receiver<bool>) {
    let mut ticks = interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut watch = Watch {
        events: app
            .config()
            .engine
            .as_ref()
            .map(|engine| engine.node_events(app.net().clone())),
        app,
        held_back: HashMap::new(),
        open_files: None,
        open_files_at: None,
        damaged: 0,
        damaged_at: None,
        certificates: Vec::new(),
        certificates_at: None,
    };
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            _ = stopped.wait_for(|is_stopped| *is_stopped) => return,
        }
        watch.look().await;
    }
}

struct Watch {
    app: App,
    events: Option<NodeEvents>,
    /// By action.
    held_back: HashMap<String, u64>,
    open_files: Option<Condition>,
    open_files_at: Option<Instant>,
    /// Messages, since the start.
    damaged: u64,
    damaged_at: Option<Instant>,
    certificates: Vec<Condition>,
    certificates_at: Option<Instant>,
}

impl Watch {
    async fn look(&mut self) {
        let (mut found, unsure) = self.integration();
        found.extend(self.journal());
        found.extend(self.damage().await);
        found.extend(self.open_files());
        found.extend(self.certificates().await);
        let changed = self.app.alarms().look(found, &unsure, unix_ms(SystemTime::now()));
        for alarm in &changed {
            log(alarm);
        }
        self.publish(&changed).await;
        if let Some(events) = &mut self.events {
            let told: Vec<AlarmEvent> = changed.into_iter().map(event).collect();
            events.tell(&told).await;
        }
    }

    fn journal(&self) -> Option<Condition> {
        let (name, message, because) = match self.app.net().journal()?.state {
            journal::State::Ok => return None,
            journal::State::Full { because } => (
                "journal_full",
                "The journal is full: what would have to be kept is refused or waits. Free space, or raise durability.max_bytes",
                because,
            ),
            journal::State::Failed { because } => (
                "journal_failed",
                "The disk does not keep what it is given: nothing that has to be kept is acknowledged any more. \
                 Restart when the disk is sound",
                because,
            ),
        };
        Some(condition(
            name,
            format!("{message}: {because}"),
            &[("reason", &because)],
        ))
    }

    /// What the journal has lost stays an alarm until the restart: there is no moment in which it is over.
    async fn damage(&mut self) -> Option<Condition> {
        if self.damaged_at.is_none_or(|at| at.elapsed() >= DAMAGE_EVERY)
            && let Ok(stats) = self.app.stats().await
        {
            self.damaged_at = Some(Instant::now());
            self.damaged = stats.drops[DropReason::Damaged as usize];
        }
        damage(self.damaged)
    }

    fn integration(&mut self) -> (Vec<Condition>, HashSet<String>) {
        let Some(engine) = &self.app.config().engine else {
            return (Vec::new(), HashSet::new());
        };
        let troubles = engine.troubles();
        let mut found: Vec<Condition> = troubles
            .found
            .into_iter()
            .map(|trouble| {
                let what = trouble.name.replacen(':', " ", 1);
                let message = format!("The {what} does not work: {}", trouble.because);
                condition(&trouble.name, message, &[("reason", &trouble.because)])
            })
            .collect();
        for (action, times) in &troubles.held_back {
            if self.held_back.get(action).is_some_and(|before| before < times) {
                let message =
                    format!("The buffer of the action {action} is full: those who publish for it are held back");
                found.push(condition(&format!("buffer:{action}"), message, &[]));
            }
        }
        self.held_back = troubles.held_back.into_iter().collect();
        (found, troubles.unsure.into_iter().collect())
    }

    fn open_files(&mut self) -> Option<Condition> {
        if self.open_files_at.is_none_or(|at| at.elapsed() >= OPEN_FILES_EVERY) {
            self.open_files_at = Some(Instant::now());
            self.open_files = open_files(&ProcessView::now());
        }
        self.open_files.clone()
    }

    async fn certificates(&mut self) -> Vec<Condition> {
        let is_due = self.certificates_at.is_none_or(|at| at.elapsed() >= CERTIFICATES_EVERY);
        if let Some(admin) = self.app.config().certificates.clone().filter(|_| is_due) {
            self.certificates_at = Some(Instant::now());
            // A panic there has been told.
            if let Ok(held) = self.app.block(move || admin.list()).await {
                let now = unix_ms(SystemTime::now()) as i64;
                let own = |chain: &[Vec<u8>]| Some(certificate::describe(chain.first()?)?.not_after_unix_s);
                self.certificates = held
                    .iter()
                    .filter_map(|one| expiry(&one.listener, own(&one.chain)?.saturating_mul(1000), now))
                    .collect();
            }
        }
        self.certificates.clone()
    }

    /// To `$SYS/brokers/<node>/alarms/…`.
    async fn publish(&self, alarms: &[Alarm]) {
        let is_told = self.app.config().sys.is_some_and(|sys| sys.is_emqx_tree);
        if !is_told || alarms.is_empty() {
            return;
        }
        let node = topic_level(&self.app.node().name);
        let told: Vec<(String, String)> = alarms.iter().map(|alarm| sys_topic(&node, alarm)).collect();
        let visit = move |shard: &mut Shard, now| {
            for (topic, payload) in &told {
                shard.publish_sys(now, topic, payload, false);
            }
        };
        // What a busy shard does not take is lost.
        let _ = timeout(PUBLISHED_WITHIN, self.app.on_shard(ShardId(0), visit)).await;
    }
}

fn condition(name: &str, message: String, details: &[(&str, &str)]) -> Condition {
    let details = details.iter();
    Condition {
        name: name.to_owned(),
        message,
        details: details
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect(),
    }
}

fn open_files(process: &ProcessView) -> Option<Condition> {
    let (open, max) = (process.open_files?, process.open_files_max?);
    if open * 100 < max * OPEN_FILES_PERCENT {
        return None;
    }
    let message = format!(
        "{open} of {max} files are open: further clients will be refused. Raise the limit (LimitNOFILE, ulimit -n)"
    );
    let details = [("open", &*open.to_string()), ("max", &*max.to_string())];
    Some(condition("open_files", message, &details))
}

fn expiry(listener: &str, not_after_unix_ms: i64, now_unix_ms: i64) -> Option<Condition> {
    let left_ms = not_after_unix_ms - now_unix_ms;
    if left_ms > EXPIRES_WITHIN_MS {
        return None;
    }
    let end = rfc3339(u64::try_from(not_after_unix_ms).unwrap_or_default());
    let message = match left_ms {
        ..=0 => format!(
            "The certificate of the listener {listener} has expired on {end}: clients that check it do not connect"
        ),
        _ => format!("The certificate of the listener {listener} expires on {end}"),
    };
    Some(condition(
        &format!("certificate:{listener}"),
        message,
        &[("not_after", &end)],
    ))
}

fn log(alarm: &Alarm) {
    let Alarm { name, message, .. } = alarm;
    match alarm.deactivated_at_unix_ms {
        None => tracing::warn!(name, message, "alarm"),
        Some(_) => tracing::info!(name, "an alarm is over"),
    }
}

fn damage(messages: u64) -> Option<Condition> {
    let message = format!(
        "The disk gave back other bytes than were written: {messages} messages that the journal had are lost. The log names files and \
         places; `tidewire journal verify` finds what else is damaged"
    );
    (messages > 0).then(|| condition("journal_damaged", message, &[("messages", &messages.to_string())]))
}

fn event(alarm: Alarm) -> AlarmEvent {
    AlarmEvent {
        name: alarm.name,
        message: alarm.message,
        details: alarm.details.into_iter().collect(),
        activated_unix_ms: alarm.activated_at_unix_ms,
        deactivated_unix_ms: alarm.deactivated_at_unix_ms,
    }
}

/// EMQX's topic and payload.
fn sys_topic(node: &str, alarm: &Alarm) -> (String, String) {
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
    fn a_certificate_is_spoken_of_two_weeks_before_it_expires() {
        assert_eq!(expiry("tls.default", 15 * DAY_MS, 0), None);
        let soon = expiry("tls.default", 13 * DAY_MS, 0).unwrap();
        assert_eq!(soon.name, "certificate:tls.default");
        assert!(soon.message.contains("expires on 1970-01-14"), "{}", soon.message);
        let over = expiry("tls.default", DAY_MS, 2 * DAY_MS).unwrap();
        assert!(over.message.contains("has expired on 1970-01-02"), "{}", over.message);
    }

    #[test]
    fn open_files_are_spoken_of_before_there_are_none_left() {
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
    fn what_is_lost_is_spoken_of() {
        assert_eq!(damage(0), None);
        let lost = damage(3).unwrap();
        assert_eq!(lost.name, "journal_damaged");
        assert!(lost.message.contains("3 messages"), "{}", lost.message);
    }

    #[test]
    fn the_topics_are_emqxs() {
        let mut alarm = Alarm {
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
