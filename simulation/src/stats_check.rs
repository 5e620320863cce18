//! Checks the statistics of a shard after every tick: disconnects and drops are counted with a reason, drops of a
//! client are part of the node's drops, gauges are the sums over all clients, and no client exceeds its limits.

use std::collections::BTreeMap;

use broker::{ClientFilter, ClientView, DropReason, NodeState, SessionSlot, Shard, ShardConfig, ShardStats};

/// Drop reasons that always concern a session. Queue reasons also occur in groups.
const OF_SESSIONS: [DropReason; 4] = [
    DropReason::OfflineQoS0,
    DropReason::SlowConsumer,
    DropReason::TooLargeForClient,
    DropReason::NotAuthorizedToPublish,
];

type DropTotals = [u64; OF_SESSIONS.len()];

/// State of one shard after its last tick.
#[derive(Default)]
pub struct StatsCheck {
    clients: BTreeMap<String, DropTotals>,
    /// Drops of sessions that have ended or were replaced.
    gone: DropTotals,
    /// Number of sessions that ended since the last check.
    pub ended: u64,
}

impl StatsCheck {
    /// Returns an error for the first inconsistency.
    pub fn check(&mut self, shard: &Shard, config: &ShardConfig) -> Result<(), String> {
        let stats = shard.inspect().stats();
        let (clients, _) = shard
            .inspect()
            .clients(&ClientFilter::default(), SessionSlot::FIRST, usize::MAX);
        check_connections(&stats, &clients)?;
        check_gauges(&stats, &clients)?;
        check_queued_bytes(shard, &stats, &clients)?;
        for client in &clients {
            check_limits(client, config)?;
        }
        self.check_drops(&stats, &clients)
    }

    fn check_drops(&mut self, stats: &ShardStats, clients: &[ClientView]) -> Result<(), String> {
        let now: BTreeMap<String, DropTotals> = clients.iter().map(|c| (c.client_id.clone(), drops_of(c))).collect();
        let goes_on = |(id, before): (&String, &DropTotals)| {
            now.get(id)
                .is_some_and(|now| now.iter().zip(before).all(|(now, before)| now >= before))
        };
        // The drops of a session are forgotten with it, even if it was created and ended since the last check.
        let is_complete = std::mem::take(&mut self.ended) == 0 && self.clients.iter().all(goes_on);
        let mut gone = DropTotals::default();
        for (at, reason) in OF_SESSIONS.into_iter().enumerate() {
            let counted: u64 = now.values().map(|drops| drops[at]).sum();
            let all = stats.drops[reason as usize];
            let reported = || {
                format!(
                    "{all} dropped as {}, {counted} of them from existing sessions",
                    reason.name()
                )
            };
            gone[at] = all.checked_sub(counted).ok_or_else(reported)?;
            if gone[at] < self.gone[at] || is_complete && gone[at] > self.gone[at] {
                return Err(format!("{}; {} from former sessions before", reported(), self.gone[at]));
            }
        }
        (self.clients, self.gone) = (now, gone);
        Ok(())
    }
}

fn drops_of(client: &ClientView) -> DropTotals {
    OF_SESSIONS.map(|reason| {
        let counts = client.drops.iter().filter(|(of, _)| *of == reason);
        counts.map(|(_, count)| u64::from(*count)).sum()
    })
}

fn check_connections(stats: &ShardStats, clients: &[ClientView]) -> Result<(), String> {
    let connected = clients.iter().filter(|client| client.is_connected).count() as u64;
    let ended: u64 = stats.disconnects.iter().sum();
    let total = stats.connections_total;
    match total == connected + ended && stats.connections == connected {
        true => Ok(()),
        false => Err(format!(
            "{total} connections, {ended} disconnects with a reason, {connected} clients connected, gauge {}",
            stats.connections
        )),
    }
}

fn check_gauges(stats: &ShardStats, clients: &[ClientView]) -> Result<(), String> {
    let inflight: usize = clients.iter().map(|client| client.inflight).sum();
    let subscriptions: usize = clients.iter().map(|client| client.subscriptions).sum();
    let seen = (clients.len() as u64, inflight as u64, subscriptions as u64);
    let gauges = (stats.sessions, stats.inflight_messages, stats.subscriptions);
    match seen == gauges {
        true => Ok(()),
        false => Err(format!(
            "sessions, in flight, subscriptions: gauges {gauges:?}, sums over clients {seen:?}"
        )),
    }
}

/// Compares the counted bytes with the sums over all queued messages, whether they are in memory or in the journal.
fn check_queued_bytes(shard: &Shard, stats: &ShardStats, clients: &[ClientView]) -> Result<(), String> {
    let sessions: usize = clients.iter().map(|client| client.queued_bytes).sum();
    let groups = shard.inspect().shared_groups(usize::MAX);
    let groups: usize = groups.iter().map(|group| group.queued_bytes).sum();
    let seen = ((sessions + groups) as u64, shard.inspect().sum_of_queued_bytes());
    match seen == (stats.queued_bytes, stats.queued_bytes) {
        true => Ok(()),
        false => Err(format!(
            "queued bytes: gauge {}, sums over sessions and groups, and over their messages {seen:?}",
            stats.queued_bytes
        )),
    }
}

/// All clients have no user name and this address, so they are one owner.
const OWNER: &str = "address:127.0.0.1";

/// Compares the counted bytes of all sessions together with the sum over their queued messages on all shards.
pub fn check_owner<'a>(state: &NodeState, shards: impl Iterator<Item = &'a Shard>) -> Result<(), String> {
    let sum: u64 = shards.map(|shard| shard.inspect().sum_of_queued_bytes_of(OWNER)).sum();
    let counted = state.owners.user(OWNER).queued_bytes();
    match counted == sum {
        true => Ok(()),
        false => Err(format!(
            "queued bytes of {OWNER}: {counted} counted, sum over messages {sum}"
        )),
    }
}

fn check_limits(client: &ClientView, config: &ShardConfig) -> Result<(), String> {
    match client.subscriptions <= config.max_subscriptions {
        true => Ok(()),
        false => Err(format!(
            "subscription limit {} exceeded: {client:?}",
            config.max_subscriptions
        )),
    }
}
