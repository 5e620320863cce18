//! Reads the node's statistics once a second and converts totals into rates, for `history.rs`.
//!
//! All viewers share one reading. It asks each shard for its current statistics; if a shard does not answer, the
//! history has
//! a gap.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use axum::extract::FromRef;
use broker::{DropReason, ShardStats};
use timeseries::StoreError;
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval};
use tracing::warn;
use web::unix_ms;

use crate::app::App;
use crate::disk::DataDirectory;
use crate::history::{CompletePoint, History, Sample};
use crate::history_store::HistoryStore;
use crate::process::ProcessView;
use crate::shards::Shards;

const EVERY: Duration = Duration::from_secs(1);

/// A crash loses the coarse points of this time.
const FLUSH_EVERY: Duration = Duration::from_secs(300);

/// All series except the drops by reason, which follow them. A name ends in its unit.
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

/// Names of all series, in the order of a sample's values.
pub fn names() -> impl Iterator<Item = String> {
    let drops = DropReason::ALL.into_iter();
    let drops = drops.map(|reason| format!("dropped_per_s.{}", reason.name()));
    SERIES.into_iter().map(str::to_owned).chain(drops)
}

/// Reads the statistics and adds them to the history.
pub struct Sampler {
    shards: Shards,
    net: net::ServerHandle,
    history: Arc<History>,
    data_directory: DataDirectory,
}

impl FromRef<App> for Sampler {
    fn from_ref(app: &App) -> Sampler {
        Sampler {
            shards: app.part(),
            net: app.part(),
            history: app.part(),
            data_directory: app.part(),
        }
    }
}

impl Sampler {
    /// Runs until `stopped` is set.
    pub async fn sample(self, mut stopped: watch::Receiver<bool>) {
        let mut ticks = interval(EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let store = self.open_store().await;
        let mut flushed = Instant::now();
        let mut last: Option<SampledTotals> = None;
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                _ = stopped.wait_for(|is_stopped| *is_stopped) => break,
            }
            let Ok(stats) = self.shards.stats().await else { continue };
            let reading = SampledTotals::now(&self.net, stats);
            if let Some(last) = &last {
                let ended = self.history.push(Sample {
                    at_unix_ms: unix_ms(SystemTime::now()),
                    values: reading.since(last),
                });
                let is_flush_due = flushed.elapsed() >= FLUSH_EVERY;
                if is_flush_due {
                    flushed = Instant::now();
                }
                store_points(store.as_ref(), ended, is_flush_due).await;
            }
            last = Some(reading);
        }
        store_points(store.as_ref(), Vec::new(), true).await;
    }

    /// Restores the history of the previous process. If that fails, the history starts empty.
    async fn open_store(&self) -> Option<Arc<HistoryStore>> {
        let data_dir = self.data_directory.path()?.to_owned();
        let history = self.history.clone();
        let opened = web::block(move || {
            let store = HistoryStore::open(&data_dir).map_err(|error| reason_with_remedy(&*error, &data_dir))?;
            let now = unix_ms(SystemTime::now());
            let load = |tier| {
                store.load(tier, now).unwrap_or_else(|error| {
                    warn!(%error, "reading a part of the chart history failed");
                    Vec::new()
                })
            };
            let ended = history.restore(load);
            store.write(&ended).map_err(|error| error.to_string())?;
            Ok(store)
        });
        let reason: String = match opened.await {
            Ok(Ok(store)) => return Some(Arc::new(store)),
            Ok(Err(reason)) => reason,
            Err(_) => return None,
        };
        warn!(error = reason, "opening the chart history failed; it is only in memory");
        None
    }
}

/// Returns why the store does not open, and what to do if its files are damaged.
fn reason_with_remedy(error: &(dyn std::error::Error + 'static), data_dir: &Path) -> String {
    let mut reason = error.to_string();
    let sources = std::iter::successors(error.source(), |error| error.source());
    sources.for_each(|source| reason.push_str(&format!(": {source}")));
    if error.downcast_ref::<StoreError>().is_some_and(StoreError::is_loss) {
        let data_dir = data_dir.display();
        reason.push_str(&format!(
            ". Restore a backup, or accept the loss while the server is stopped: tidewire journal repair --accept-loss \
             --data-dir {data_dir}"
        ));
    }
    reason
}

async fn store_points(store: Option<&Arc<HistoryStore>>, ended: Vec<CompletePoint>, is_flush_due: bool) {
    let Some(store) = store.filter(|_| is_flush_due || !ended.is_empty()).cloned() else {
        return;
    };
    let write = move || {
        if let Err(error) = store.write(&ended) {
            warn!(%error, "writing points of the chart history failed");
        }
        if is_flush_due && let Err(error) = store.flush(unix_ms(SystemTime::now())) {
            warn!(%error, "flushing the chart history failed, retrying");
        }
    };
    // `block` has already reported a panic.
    let _ = web::block(write).await;
}

/// Totals at one time.
struct SampledTotals {
    at: Instant,
    stats: ShardStats,
    process: ProcessView,
    journal: Option<net::JournalView>,
    publish_ack_us: journal::HistogramCounts,
}

impl SampledTotals {
    fn now(net: &net::ServerHandle, stats: ShardStats) -> SampledTotals {
        SampledTotals {
            at: Instant::now(),
            stats,
            process: ProcessView::without_files(),
            journal: net.journal(),
            publish_ack_us: net.publish_ack_us(),
        }
    }

    /// Returns the values in the order of `names`.
    fn since(&self, last: &SampledTotals) -> Box<[f32]> {
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
            or_nan(self.process.resident_bytes),
            or_nan(self.journal.as_ref().map(|journal| journal.backlog_bytes as u64)),
            or_nan(self.journal.as_ref().map(|journal| journal.stats.file_bytes)),
            self.commit_ms_since(last),
            self.ack_ms_since(last, 0.5),
            self.ack_ms_since(last, 0.99),
        ];
        let drops = DropReason::ALL.into_iter().map(|reason| reason as usize);
        values.extend(drops.map(|reason| rate(s.drops[reason], before.drops[reason])));
        values.into()
    }

    /// Average number of busy cores.
    fn cores_since(&self, last: &SampledTotals, seconds: f64) -> f32 {
        match (self.process.cpu_seconds, last.process.cpu_seconds) {
            (Some(now), Some(before)) => ((now - before) / seconds) as f32,
            _ => f32::NAN,
        }
    }

    /// Latency quantile `share` of the acknowledgements since `last`.
    fn ack_ms_since(&self, last: &SampledTotals, share: f64) -> f32 {
        let between = self.publish_ack_us.since(&last.publish_ack_us);
        between.quantile(share).map_or(f32::NAN, |us| (us / 1000.0) as f32)
    }

    /// Mean duration of the commits since `last`.
    fn commit_ms_since(&self, last: &SampledTotals) -> f32 {
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

fn or_nan(value: Option<u64>) -> f32 {
    value.map_or(f32::NAN, |value| value as f32)
}
