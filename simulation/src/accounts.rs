//! What an operator sees of a shard adds up, after every tick: connections that ended are counted with a reason, what was dropped is counted
//! for its client too, gauges are the sums of what the clients have, and no client has more than its limits allow.

use std::collections::BTreeMap;

use broker::{ClientFilter, ClientView, DropReason, Shard, ShardConfig, Stats};

/// What is never dropped but from a session or by one. Queues are those of groups, too.
const OF_SESSIONS: [DropReason; 4] = [
    DropReason::OfflineQoS0,
    DropReason::SlowConsumer,
    DropReason::TooLargeForClient,
    DropReason::NotAuthorizedToPublish,
];

type Drops = [u64; OF_SESSIONS.len()];

/// Of one shard, as it was after its last tick.
#[derive(Default)]
pub struct Accounts {
    clients: BTreeMap<String, Drops>,
    /// Dropped from sessions that have ended, or begun anew.
    gone: Drops,
    /// Sessions, since the last check.
    pub ended: u64,
}

impl Accounts {
    /// What does not add up.
    pub fn check(&mut self, shard: &Shard, config: &ShardConfig) -> Result<(), String> {
        let stats = shard.stats();
        let (clients, _) = shard.clients(&ClientFilter::default(), 0, usize::MAX);
        check_connections(&stats, &clients)?;
        check_gauges(&stats, &clients)?;
        for client in &clients {
            check_limits(client, config)?;
        }
        self.check_drops(&stats, &clients)
    }

    fn check_drops(&mut self, stats: &Stats, clients: &[ClientView]) -> Result<(), String> {
        let now: BTreeMap<String, Drops> = clients.iter().map(|c| (c.client_id.clone(), drops_of(c))).collect();
        let goes_on = |(id, before): (&String, &Drops)| {
            now.get(id)
                .is_some_and(|now| now.iter().zip(before).all(|(now, before)| now >= before))
        };
        // What a session has lost is forgotten with it, also if it has come and gone since the last tick.
        let is_complete = std::mem::take(&mut self.ended) == 0 && self.clients.iter().all(goes_on);
        let mut gone = Drops::default();
        for (at, reason) in OF_SESSIONS.into_iter().enumerate() {
            let counted: u64 = now.values().map(|drops| drops[at]).sum();
            let all = stats.drops[reason as usize];
            let told = || {
                format!(
                    "{all} dropped as {}, {counted} of them from sessions that are there",
                    reason.name()
                )
            };
            gone[at] = all.checked_sub(counted).ok_or_else(told)?;
            if gone[at] < self.gone[at] || is_complete && gone[at] > self.gone[at] {
                return Err(format!("{}, {} from others before", told(), self.gone[at]));
            }
        }
        (self.clients, self.gone) = (now, gone);
        Ok(())
    }
}

fn drops_of(client: &ClientView) -> Drops {
    OF_SESSIONS.map(|reason| {
        let counts = client.drops.iter().filter(|(of, _)| *of == reason);
        counts.map(|(_, count)| u64::from(*count)).sum()
    })
}

fn check_connections(stats: &Stats, clients: &[ClientView]) -> Result<(), String> {
    let connected = clients.iter().filter(|client| client.is_connected).count() as u64;
    let ended: u64 = stats.disconnects.iter().sum();
    let total = stats.connections_total;
    match total == connected + ended && stats.connections == connected {
        true => Ok(()),
        false => Err(format!(
            "{total} connections, {ended} of them ended for a reason, {connected} clients connected, {} counted",
            stats.connections
        )),
    }
}

fn check_gauges(stats: &Stats, clients: &[ClientView]) -> Result<(), String> {
    let inflight: usize = clients.iter().map(|client| client.inflight).sum();
    let subscriptions: usize = clients.iter().map(|client| client.subscriptions).sum();
    let seen = (clients.len() as u64, inflight as u64, subscriptions as u64);
    let told = (stats.sessions, stats.inflight_messages, stats.subscriptions);
    match seen == told {
        true => Ok(()),
        false => Err(format!(
            "sessions, in flight and subscriptions: {told:?} are counted, clients have {seen:?}"
        )),
    }
}

fn check_limits(client: &ClientView, config: &ShardConfig) -> Result<(), String> {
    match client.subscriptions <= config.subscriptions_max {
        true => Ok(()),
        false => Err(format!(
            "more subscriptions than {}: {client:?}",
            config.subscriptions_max
        )),
    }
}
