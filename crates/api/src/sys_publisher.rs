//! Publishes `$SYS`: statistics at each interval, and connect and disconnect events of clients.
//!
//! Statistics are retained, and published when they have changed. Events are not retained. The shards' threads send
//! them through a bounded queue, which drops events when it is full.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use broker::{
    ConnectionEvent, EventTopic, LoadAverages, Shard, ShardId, SysInfo, emqx_tree, event_topic, mosquitto_tree,
};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, MissedTickBehavior, interval};
use web::unix_ms;

use crate::config::{NodeInfo, SysConfig};
use crate::process::ProcessView;
use crate::shards::Shards;

/// Limit of queued events.
pub(crate) const EVENTS_MAX: usize = 4096;
/// Topics that a shard publishes in one visit.
const TOPICS_PER_VISIT: usize = 64;

/// The shards' end of the queue, called from a `net::Observer`. Cheap; never blocks.
#[derive(Clone)]
pub struct ClientEventSender {
    node: Arc<str>,
    queue: mpsc::Sender<EventTopic>,
    dropped: Arc<AtomicU64>,
}

/// The publisher's end, for `ApiHandle::publish_client_events`.
pub struct ClientEvents {
    queue: mpsc::Receiver<EventTopic>,
}

/// Creates a queue for the connect and disconnect events of EMQX's topics.
pub fn client_events(node_name: &str) -> (ClientEventSender, ClientEvents) {
    let (sender, receiver) = mpsc::channel(EVENTS_MAX);
    let sender = ClientEventSender {
        node: topic_level(node_name).into(),
        queue: sender,
        dropped: Arc::default(),
    };
    (sender, ClientEvents { queue: receiver })
}

impl ClientEventSender {
    pub fn offer(&self, event: &ConnectionEvent) {
        let Ok(place) = self.queue.try_reserve() else {
            self.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        };
        if let Some(event) = event_topic(&self.node, event, unix_ms(SystemTime::now())) {
            place.send(event);
        }
    }

    /// Number of events that were dropped because the queue was full.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}

/// Converts a name to one topic level.
pub fn topic_level(name: &str) -> String {
    let level: String = name
        .chars()
        .map(|c| if "/+#\0".contains(c) { '_' } else { c })
        .collect();
    if level.is_empty() { "tidewire".into() } else { level }
}

/// Runs until `stopped` is set.
pub async fn publish_statistics(mut publisher: SysPublisher, mut stopped: watch::Receiver<bool>) {
    let mut ticks = interval(publisher.config.interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            _ = stopped.wait_for(|is_stopped| *is_stopped) => return,
        }
        publisher.publish().await;
    }
}

/// Runs until `stopped` is set or all senders are dropped.
pub async fn publish_events(shards: Shards, mut events: ClientEvents, mut stopped: watch::Receiver<bool>) {
    loop {
        let mut batch = Vec::new();
        tokio::select! {
            count = events.queue.recv_many(&mut batch, TOPICS_PER_VISIT) => if count == 0 { return },
            _ = stopped.wait_for(|is_stopped| *is_stopped) => return,
        }
        let visit = move |shard: &mut Shard, now| {
            let mut server = shard.server_publisher(now);
            for event in &batch {
                server.publish_sys(&event.topic, &event.payload, false);
            }
        };
        // One shard publishes all events, so that they stay in order. A busy shard may not publish them.
        let _ = shards.on_shard(ShardId(0), visit).await;
    }
}

/// Publishes the statistics below `$SYS`.
pub struct SysPublisher {
    shards: Shards,
    net: net::ServerHandle,
    node: Arc<NodeInfo>,
    config: SysConfig,
    loads: LoadAverages,
    last: Instant,
    /// The retained messages, by topic.
    published: HashMap<String, String>,
}

impl SysPublisher {
    pub fn new(shards: Shards, net: net::ServerHandle, node: Arc<NodeInfo>, config: SysConfig) -> SysPublisher {
        SysPublisher {
            shards,
            net,
            node,
            config,
            loads: LoadAverages::default(),
            last: Instant::now(),
            published: HashMap::new(),
        }
    }

    async fn publish(&mut self) {
        // If a shard does not answer, the next interval tries again.
        let Ok(stats) = self.shards.stats().await else { return };
        let info = self.info();
        let now = Instant::now();
        self.loads.update(&stats, &info, (now - self.last).as_secs_f64());
        self.last = now;
        let mut topics = Vec::new();
        if self.config.mosquitto_tree {
            topics.extend(mosquitto_tree(&stats, &self.loads, &info));
        }
        if self.config.emqx_tree {
            topics.extend(emqx_tree(&stats, &info));
        }
        topics.retain(|(topic, payload)| self.published.get(topic) != Some(payload));
        while !topics.is_empty() {
            let rest = topics.split_off(topics.len().min(TOPICS_PER_VISIT));
            self.publish_topics(std::mem::replace(&mut topics, rest)).await;
        }
    }

    async fn publish_topics(&mut self, topics: Vec<(String, String)>) {
        let batch = topics.clone();
        let visit = move |shard: &mut Shard, now| {
            let mut server = shard.server_publisher(now);
            for (topic, payload) in &batch {
                server.publish_sys(topic, payload, true);
            }
        };
        if self.shards.on_shard(ShardId(0), visit).await.is_ok() {
            self.published.extend(topics);
        }
    }

    fn info(&self) -> SysInfo {
        SysInfo {
            node: topic_level(&self.node.name),
            version: self.node.version.clone(),
            uptime_ms: self.node.uptime().as_millis() as u64,
            unix_ms: unix_ms(SystemTime::now()),
            sockets_total: self.net.counters().accepted,
            resident_bytes: ProcessView::without_files().resident_bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_name_becomes_one_topic_level() {
        assert_eq!(topic_level("tidewire@host"), "tidewire@host");
        assert_eq!(topic_level("a/b+#"), "a_b__");
        assert_eq!(topic_level(""), "tidewire");
    }

    #[test]
    fn full_queue_drops_and_counts_events() {
        let (sender, _events) = client_events("n");
        let event = ConnectionEvent::Connected {
            client_id: "c".into(),
            user_name: None,
            address: "127.0.0.1:1".parse().unwrap(),
            session_present: false,
        };
        for _ in 0..EVENTS_MAX + 3 {
            sender.offer(&event);
        }
        assert_eq!(sender.dropped(), 3);
    }
}
