//! Reads the node's numbers once a second and turns totals into rates, for `history.rs`.
//!
//! One reading serves every viewer. It asks each shard for numbers that it has at hand; a shard that does not answer makes
//! a gap.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use broker::{DropReason, Stats};
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval};
use tracing::warn;

use crate::app::{App, unix_ms};
use crate::history::{Ended, Sample};
use crate::history_store::HistoryStore;
use crate::process::ProcessView;

const EVERY: Duration = Duration::from_secs(1);

/// What a crash forgets of the coarse points.
const FLUSH_EVERY: Duration = Duration::from_secs(300);

/// The series but those of drops by reason, which follow: what a name says is its unit, too.
pub const SERIES: [&str; 18] = [
    "messages_received_per_s",
    "messages_sent_per_s",
    "messages_dropped_per_s",
    "bytes_received_per_s",
    "bytes_sent_per_s",
    "connections",
    "sessions",
    "subscriptions",
    "retained_messages",
    "queued_messages",
    "inflight_messages",
    "cpu_cores",
    "memory_bytes",
    "journal_backlog_bytes",
    "journal_file_bytes",
    "journal_commit_ms",
    "publish_ack_p50_ms",
    "publish_ack_p99_ms",
];

/// The names of all series, in the order of a sample's values.
pub fn names() -> impl Iterator<Item = String> {
    let drops = DropReason::ALL.into_iter();
    let drops = drops.map(|reason| format!("dropped_per_s.{}", reason.name()));
    SERIES.into_iter().map(str::to_owned).chain(drops)
}

/// Until told to stop.
pub async fn sample(app: App, mut stopped: watch::Receiver<bool>) {
    let mut ticks = interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let store = open_store(&app).await;
    let mut flushed = Instant::now();
    let mut last: Option<Reading> = None;
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            _ = stopped.wait_for(|is_stopped| *is_stopped) => break,
        }
        let Ok(stats) = app.stats().await else { continue };
        let reading = Reading::now(&app, stats);
        if let Some(last) = &last {
            let ended = app.history().push(Sample {
                at_unix_ms: unix_ms(SystemTime::now()),
                values: reading.since(last),
            });
            let is_flush_due = flushed.elapsed() >= FLUSH_EVERY;
            if is_flush_due {
                flushed = Instant::now();
            }
            keep(&app, store.as_ref(), ended, is_flush_due).await;
        }
        last = Some(reading);
    }
    keep(&app, store.as_ref(), Vec::new(), true).await;
}

/// What the process before has left is in the history when it returns. Where it cannot be had, the history begins anew.
async fn open_store(app: &App) -> Option<Arc<HistoryStore>> {
    let data_dir = app.config().data_dir.clone()?;
    let own = app.clone();
    let opened = app.block(move || {
        let store = HistoryStore::open(&data_dir).map_err(|error| error.to_string())?;
        let now = unix_ms(SystemTime::now());
        let load = |tier| {
            store.load(tier, now).unwrap_or_else(|error| {
                warn!(%error, "a part of the history of the console's charts cannot be read");
                Vec::new()
            })
        };
        let ended = own.history().restore(load);
        store.write(&ended).map_err(|error| error.to_string())?;
        Ok(store)
    });
    let because: String = match opened.await {
        Ok(Ok(store)) => return Some(Arc::new(store)),
        Ok(Err(because)) => because,
        Err(_) => return None,
    };
    warn!(because, "the history of the console's charts is in memory only");
    None
}

async fn keep(app: &App, store: Option<&Arc<HistoryStore>>, ended: Vec<Ended>, is_flush_due: bool) {
    let Some(store) = store.filter(|_| is_flush_due || !ended.is_empty()).cloned() else {
        return;
    };
    let write = move || {
        if let Err(error) = store.write(&ended) {
            warn!(%error, "points of the console's charts are not kept");
        }
        if is_flush_due && let Err(error) = store.flush(unix_ms(SystemTime::now())) {
            warn!(%error, "the history of the console's charts is not on the disk; it is tried again");
        }
    };
    // A panic there has been told.
    let _ = app.block(write).await;
}

/// Totals at a time.
struct Reading {
    at: Instant,
    stats: Stats,
    process: ProcessView,
    journal: Option<net::JournalView>,
    publish_ack_us: journal::HistogramCounts,
}

impl Reading {
    fn now(app: &App, stats: Stats) -> Reading {
        Reading {
            at: Instant::now(),
            stats,
            process: ProcessView::without_files(),
            journal: app.net().journal(),
            publish_ack_us: app.net().publish_ack_us(),
        }
    }

    /// In the order of `names`.
    fn since(&self, last: &Reading) -> Box<[f32]> {
        let seconds = (self.at - last.at).as_secs_f64().max(1e-3);
        let rate = |now: u64, before: u64| (now.saturating_sub(before) as f64 / seconds) as f32;
        let (s, before) = (&self.stats, &last.stats);
        let sum = |counts: &[u64]| counts.iter().sum::<u64>();
        let mut values = vec![
            rate(sum(&s.messages_received), sum(&before.messages_received)),
            rate(sum(&s.messages_sent), sum(&before.messages_sent)),
            rate(sum(&s.drops), sum(&before.drops)),
            rate(s.bytes_received, before.bytes_received),
            rate(s.bytes_sent, before.bytes_sent),
            s.connections as f32,
            s.sessions as f32,
            s.subscriptions as f32,
            s.retained_messages as f32,
            s.queued_messages as f32,
            s.inflight_messages as f32,
            self.cores_since(last, seconds),
            known(self.process.resident_bytes),
            known(self.journal.as_ref().map(|journal| journal.backlog_bytes as u64)),
            known(self.journal.as_ref().map(|journal| journal.stats.file_bytes)),
            self.commit_ms_since(last),
            self.ack_ms_since(last, 0.5),
            self.ack_ms_since(last, 0.99),
        ];
        let drops = DropReason::ALL.into_iter().map(|reason| reason as usize);
        values.extend(drops.map(|reason| rate(s.drops[reason], before.drops[reason])));
        values.into()
    }

    /// How many cores were busy.
    fn cores_since(&self, last: &Reading, seconds: f64) -> f32 {
        match (self.process.cpu_seconds, last.process.cpu_seconds) {
            (Some(now), Some(before)) => ((now - before) / seconds) as f32,
            _ => f32::NAN,
        }
    }

    /// What this share of the messages that were acknowledged meanwhile did not wait longer than.
    fn ack_ms_since(&self, last: &Reading, share: f64) -> f32 {
        let between = self.publish_ack_us.since(&last.publish_ack_us);
        between.quantile(share).map_or(f32::NAN, |us| (us / 1000.0) as f32)
    }

    /// The mean of the commits that ended meanwhile.
    fn commit_ms_since(&self, last: &Reading) -> f32 {
        let (Some(now), Some(before)) = (&self.journal, &last.journal) else {
            return f32::NAN;
        };
        let (now, before) = (&now.commit_latency_us, &before.commit_latency_us);
        match now.count.saturating_sub(before.count) {
            0 => f32::NAN,
            commits => (now.sum.saturating_sub(before.sum) as f64 / commits as f64 / 1000.0) as f32,
        }
    }
}

fn known(value: Option<u64>) -> f32 {
    value.map_or(f32::NAN, |value| value as f32)
}
