//! Publishes `$SYS`: statistics every interval, clients coming and going as they do.
//!
//! Statistics are retained and published when they have changed. Events are not retained; they come from the shards' threads
//! through a bounded queue that drops rather than waits.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use broker::{Event, EventTopic, Loads, Shard, ShardId, SysInfo, emqx_tree, event_topic, mosquitto_tree};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::app::{App, unix_ms};
use crate::process::ProcessView;

/// Events that may wait.
const EVENTS_MAX: usize = 4096;
/// Topics handed to a shard in one go.
const TOPICS_PER_VISIT: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SysConfig {
    pub interval: Duration,
    pub is_mosquitto_tree: bool,
    pub is_emqx_tree: bool,
}

/// The shards' end of the queue: call it from a `net::Observer`. Cheap, never waits.
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

/// A queue for the connected and disconnected events of EMQX's tree.
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
    pub fn offer(&self, event: &Event) {
        let Ok(place) = self.queue.try_reserve() else {
            self.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        };
        if let Some(event) = event_topic(&self.node, event, unix_ms(SystemTime::now())) {
            place.send(event);
        }
    }

    /// Events that found the queue full.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}

/// A name as one level of a topic.
pub fn topic_level(name: &str) -> String {
    let level: String = name
        .chars()
        .map(|c| if "/+#\0".contains(c) { '_' } else { c })
        .collect();
    if level.is_empty() { "tidewire".into() } else { level }
}

/// Until told to stop.
pub async fn publish_statistics(app: App, config: SysConfig, mut stopped: watch::Receiver<bool>) {
    let mut ticks = interval(config.interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut publisher = Publisher::new(app, config);
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            _ = stopped.wait_for(|is_stopped| *is_stopped) => return,
        }
        publisher.publish().await;
    }
}

/// Until told to stop, or until nobody can send any more.
pub async fn publish_events(app: App, mut events: ClientEvents, mut stopped: watch::Receiver<bool>) {
    loop {
        let mut batch = Vec::new();
        tokio::select! {
            count = events.queue.recv_many(&mut batch, TOPICS_PER_VISIT) => if count == 0 { return },
            _ = stopped.wait_for(|is_stopped| *is_stopped) => return,
        }
        let visit = move |shard: &mut Shard, now| {
            for event in &batch {
                shard.publish_sys(now, &event.topic, &event.payload, false);
            }
        };
        // One shard for all of them, so that they stay in order. What a busy shard does not take is lost.
        let _ = app.on_shard(ShardId(0), visit).await;
    }
}

struct Publisher {
    app: App,
    config: SysConfig,
    loads: Loads,
    last: Instant,
    /// What is retained.
    published: HashMap<String, String>,
}

impl Publisher {
    fn new(app: App, config: SysConfig) -> Publisher {
        Publisher {
            app,
            config,
            loads: Loads::default(),
            last: Instant::now(),
            published: HashMap::new(),
        }
    }

    async fn publish(&mut self) {
        // A shard that does not answer has other troubles; the next interval tries again.
        let Ok(stats) = self.app.stats().await else { return };
        let info = self.info();
        let now = Instant::now();
        self.loads.update(&stats, &info, (now - self.last).as_secs_f64());
        self.last = now;
        let mut topics = Vec::new();
        if self.config.is_mosquitto_tree {
            topics.extend(mosquitto_tree(&stats, &self.loads, &info));
        }
        if self.config.is_emqx_tree {
            topics.extend(emqx_tree(&stats, &info));
        }
        topics.retain(|(topic, payload)| self.published.get(topic) != Some(payload));
        while !topics.is_empty() {
            let rest = topics.split_off(topics.len().min(TOPICS_PER_VISIT));
            self.hand_over(std::mem::replace(&mut topics, rest)).await;
        }
    }

    async fn hand_over(&mut self, topics: Vec<(String, String)>) {
        let batch = topics.clone();
        let visit = move |shard: &mut Shard, now| {
            for (topic, payload) in &batch {
                shard.publish_sys(now, topic, payload, true);
            }
        };
        if self.app.on_shard(ShardId(0), visit).await.is_ok() {
            self.published.extend(topics);
        }
    }

    fn info(&self) -> SysInfo {
        let node = self.app.node();
        SysInfo {
            node: topic_level(&node.name),
            version: node.version.clone(),
            uptime_ms: self.app.uptime().as_millis() as u64,
            unix_ms: unix_ms(SystemTime::now()),
            sockets_total: self.app.net().counters().accepted,
            resident_bytes: ProcessView::without_files().resident_bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_name_becomes_one_topic_level() {
        assert_eq!(topic_level("tidewire@host"), "tidewire@host");
        assert_eq!(topic_level("a/b+#"), "a_b__");
        assert_eq!(topic_level(""), "tidewire");
    }

    #[test]
    fn a_full_queue_drops_and_counts() {
        let (sender, _events) = client_events("n");
        let event = Event::Connected {
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
