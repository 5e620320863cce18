//! A job prepared for execution: groups with their numbers, topics and payloads, addresses, and what the workers share.
//!
//! Read-only once the workers run, except for the counters in [`SharedCounters`].

use std::collections::HashMap;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use mio::Waker;
use mqtt::{ProtocolVersion, QoS, SharedFilter};

use super::clock::RunClock;
use super::pattern::{PatternValues, TopicTemplate, expand};
use super::payload::PayloadMaker;
use super::sources::{SenderRanges, TopicTree};
use super::truth::{SENDERS_MAX, SenderNumber};
use crate::driver::{ClientIndex, DriverJob};
use crate::scenario::{ClientGroup, GroupPresence};
use crate::target::TargetTransport;

const PROBE: Duration = Duration::from_secs(2);

pub struct LoadPlan {
    pub job: DriverJob,
    pub clock: RunClock,
    /// Milliseconds since 1970 at time 0 of the run clock.
    pub epoch_ms: u64,
    pub threads: u32,
    pub groups: Vec<GroupPlan>,
    pub endpoints: Vec<BrokerEndpoint>,
    pub tls: Option<Arc<rustls::ClientConfig>>,
    /// By sender number.
    pub topics: Vec<TopicTemplate>,
    pub tree: TopicTree,
    pub shares: Vec<SharedFilterPlan>,
    share_ids: HashMap<String, u32>,
    pub shared: SharedCounters,
}

pub struct GroupPlan {
    pub group: ClientGroup,
    pub version: ProtocolVersion,
    pub local: Range<u32>,
    pub publishing: Option<Publishing>,
}

pub struct Publishing {
    pub first_sender: SenderNumber,
    pub qos: QoS,
    pub payload: PayloadMaker,
    pub is_open: bool,
    /// Time from one message of the group to the next (open model).
    pub period_ns: f64,
    /// Length of a burst; 0 if messages are evenly spread.
    pub burst_ns: u64,
    /// QoS 0 with a window: deliveries are counted.
    pub counts_deliveries: bool,
}

pub struct BrokerEndpoint {
    pub address: SocketAddr,
    pub host: String,
}

/// A shared subscription; `key` is the complete filter.
pub struct SharedFilterPlan {
    pub key: String,
    pub sources: SenderRanges,
}

/// Counters that the workers share while they run.
pub struct SharedCounters {
    pub ever_connected: AtomicU64,
    /// When the last message arrived, and when the last missing message arrived.
    pub last_arrival_ns: AtomicU64,
    pub last_progress_ns: AtomicU64,
    /// Deliveries of QoS 0 messages of closed-model publishers, by sender; empty if no group needs them.
    pub delivered: Vec<AtomicU64>,
    /// The number of subscriptions in this process that receive from a sender.
    pub receivers: Vec<AtomicU32>,
    /// Distinct messages of each shared subscription, counted per receiving thread (a message that reached two threads
    /// counts twice).
    pub share_received: Vec<AtomicU64>,
    pub signals: Vec<WorkerSignal>,
}

/// Wakes a worker from another worker.
pub struct WorkerSignal {
    pub waker: Waker,
    pub has_deliveries: AtomicBool,
}

impl LoadPlan {
    pub fn new(job: DriverJob, origin: std::time::Instant, wakers: Vec<Waker>) -> Result<LoadPlan, String> {
        let clock = RunClock::new(origin, job.clock_offset_ns);
        let groups = plan_groups(&job)?;
        let mut topics = Vec::new();
        let mut tree = TopicTree::new();
        for group in groups.iter().filter(|group| group.publishing.is_some()) {
            for index in (0..group.group.clients).map(ClientIndex) {
                let topic = group.topic(index, job.run)?;
                tree.add(&topic, SenderNumber(topics.len() as u32));
                topics.push(topic);
            }
        }
        let is_counted = |group: &GroupPlan| {
            group
                .publishing
                .as_ref()
                .is_some_and(|publishing| publishing.counts_deliveries)
        };
        let counted = if groups.iter().any(is_counted) { topics.len() } else { 0 };
        let mut plan = LoadPlan {
            clock,
            epoch_ms: wall_clock_ms().saturating_sub(clock.now_ns() / 1_000_000),
            threads: wakers.len() as u32,
            endpoints: resolve(&job)?,
            tls: match job.target.transport {
                TargetTransport::Tls | TargetTransport::Wss | TargetTransport::Quic => {
                    Some(super::tls::config(&job.target.tls)?)
                }
                TargetTransport::Tcp | TargetTransport::Ws => None,
            },
            topics,
            tree,
            shares: Vec::new(),
            share_ids: HashMap::new(),
            shared: SharedCounters {
                ever_connected: AtomicU64::new(0),
                last_arrival_ns: AtomicU64::new(0),
                last_progress_ns: AtomicU64::new(0),
                delivered: (0..counted).map(|_| AtomicU64::new(0)).collect(),
                receivers: (0..counted).map(|_| AtomicU32::new(0)).collect(),
                share_received: Vec::new(),
                signals: wakers
                    .into_iter()
                    .map(|waker| WorkerSignal {
                        waker,
                        has_deliveries: AtomicBool::new(false),
                    })
                    .collect(),
            },
            groups,
            job,
        };
        plan.collect_shared_filters()?;
        plan.shared.share_received = plan.shares.iter().map(|_| AtomicU64::new(0)).collect();
        Ok(plan)
    }

    fn collect_shared_filters(&mut self) -> Result<(), String> {
        let run = self.job.run;
        for group in &self.groups {
            if !group
                .group
                .subscribe
                .iter()
                .any(|subscribe| subscribe.filter.starts_with("$share/"))
            {
                continue;
            }
            for index in group.local.clone().map(ClientIndex) {
                for filter in group.filters(index, run) {
                    let shared = SharedFilter::parse(&filter).map_err(|error| format!("{filter}: {error}"))?;
                    let Some(shared) = shared.filter(|_| !self.share_ids.contains_key(&filter)) else {
                        continue;
                    };
                    let sources = self.tree.senders_for([shared.filter].into_iter());
                    self.share_ids.insert(filter.clone(), self.shares.len() as u32);
                    for sender in sources.iter() {
                        if let Some(count) = self.shared.receivers.get_mut(sender.index()) {
                            *count.get_mut() += 1;
                        }
                    }
                    self.shares.push(SharedFilterPlan { key: filter, sources });
                }
            }
        }
        Ok(())
    }

    /// Converts a time on the run clock to the wall clock of the verification headers, which other processes share.
    #[inline]
    pub fn stamp(&self, run_ns: u64) -> u64 {
        self.job.epoch_ns.wrapping_add(run_ns)
    }

    /// Whether messages of other runs are compared: only if the job has no publishers of its own.
    #[inline]
    pub fn compares_other_runs(&self) -> bool {
        self.topics.is_empty()
    }

    pub fn share_id(&self, filter: &str) -> Option<u32> {
        self.share_ids.get(filter).copied()
    }

    /// Returns the publishing group of a sender, and the sender's index in it.
    pub fn publisher(&self, sender: SenderNumber) -> Option<(&GroupPlan, ClientIndex)> {
        self.groups.iter().find_map(|group| {
            let index = sender.0.checked_sub(group.publishing.as_ref()?.first_sender.0)?;
            (index < group.group.clients).then_some((group, ClientIndex(index)))
        })
    }
}

impl Publishing {
    /// Returns the number of the group's client with this index.
    pub fn sender(&self, index: ClientIndex) -> SenderNumber {
        SenderNumber(self.first_sender.0 + index.0)
    }
}

impl GroupPlan {
    pub fn number(&self, index: ClientIndex) -> u64 {
        u64::from(self.group.start_number) + u64::from(index.0)
    }

    /// Returns the group and number of a client, as in "publishers-17".
    pub fn label(&self, index: ClientIndex) -> String {
        format!("{}-{}", self.group.name, self.number(index))
    }

    pub fn client_id(&self, index: ClientIndex, run: u16) -> String {
        let mut names = self.base_names(index, run);
        let user_name = self.group.user_name.as_deref().map(|pattern| expand(pattern, &names));
        names.user_name = user_name.as_deref().unwrap_or_default();
        expand(&self.group.client_id, &names)
    }

    fn base_names(&self, index: ClientIndex, run: u16) -> PatternValues<'_> {
        PatternValues {
            number: self.number(index),
            group: &self.group.name,
            run,
            ..PatternValues::default()
        }
    }

    /// Calls `with` with all pattern values of a client.
    pub fn with_names<R>(&self, index: ClientIndex, run: u16, with: impl FnOnce(&PatternValues<'_>) -> R) -> R {
        let client_id = self.client_id(index, run);
        let mut names = self.base_names(index, run);
        names.client_id = &client_id;
        let user_name = self.group.user_name.as_deref().map(|pattern| expand(pattern, &names));
        names.user_name = user_name.as_deref().unwrap_or_default();
        with(&names)
    }

    pub fn filters(&self, index: ClientIndex, run: u16) -> Vec<String> {
        let subscribe = &self.group.subscribe;
        self.with_names(index, run, |names| {
            subscribe.iter().map(|one| expand(&one.filter, names)).collect()
        })
    }

    fn topic(&self, index: ClientIndex, run: u16) -> Result<TopicTemplate, String> {
        let pattern = self.group.publish.as_ref().map_or("", |publish| &publish.topic);
        let topic = self.with_names(index, run, |names| TopicTemplate::new(pattern, names));
        let mut scratch = String::new();
        topic
            .of(0, &mut scratch, mqtt::validate_topic_name)
            .map_err(|error| format!("group `{}`: topic `{pattern}`: {error}", self.group.name))?;
        if topic.longest() > mqtt::MAXIMUM_TOPIC_BYTES {
            return Err(format!(
                "group `{}`: topic `{pattern}` is longer than {} bytes",
                self.group.name,
                mqtt::MAXIMUM_TOPIC_BYTES
            ));
        }
        Ok(topic)
    }

    pub fn max_subscribe_qos(&self) -> u8 {
        self.group
            .subscribe
            .iter()
            .map(|subscribe| subscribe.qos)
            .max()
            .unwrap_or(0)
    }

    pub fn keeps_session(&self) -> bool {
        !self.group.clean_start && (self.version != ProtocolVersion::V5 || self.group.session_expiry_s > 0)
    }

    pub fn is_initially_connected(&self) -> bool {
        self.group.presence != GroupPresence::AfterPublishing && self.group.cycle.is_none()
    }
}

fn plan_groups(job: &DriverJob) -> Result<Vec<GroupPlan>, String> {
    let mut next_sender = 0u64;
    let mut groups = Vec::new();
    if job.clients.len() != job.scenario.group.len() {
        return Err("the job does not have one range of clients per group".into());
    }
    for (group, local) in job.scenario.group.iter().zip(&job.clients) {
        let about = |what: &str| format!("group `{}`: {what}", group.name);
        let version = ProtocolVersion::from_level(group.version).ok_or_else(|| about("`version` must be 3, 4 or 5"))?;
        if group.subscribe.iter().any(|subscribe| subscribe.qos > 2) {
            return Err(about("QoS must be 0, 1 or 2"));
        }
        let publishing = match &group.publish {
            // A client that comes and goes, or is absent while others publish, does not publish.
            Some(_) if group.cycle.is_some() || group.presence != GroupPresence::Always => None,
            None => None,
            Some(publish) => {
                let qos = QoS::from_bits(publish.qos).ok_or_else(|| about("QoS must be 0, 1 or 2"))?;
                let first_sender = SenderNumber(next_sender as u32);
                next_sender += u64::from(group.clients);
                let rate = publish.rate.map(|rate| rate * f64::from(group.clients.max(1)));
                if rate.is_some_and(|rate| !rate.is_finite() || rate <= 0.0) {
                    return Err(about("`rate` must be above 0"));
                }
                Some(Publishing {
                    first_sender,
                    qos,
                    payload: PayloadMaker::new(&publish.payload).map_err(|error| about(&error))?,
                    is_open: rate.is_some(),
                    period_ns: rate.map_or(0.0, |rate| 1e9 / rate),
                    burst_ns: (publish.burst_s * 1e9) as u64,
                    counts_deliveries: rate.is_none() && qos == QoS::AtMostOnce && publish.window > 0,
                })
            }
        };
        groups.push(GroupPlan {
            group: group.clone(),
            version,
            local: local.clone(),
            publishing,
        });
    }
    if next_sender > SENDERS_MAX {
        return Err(format!(
            "the scenario has {next_sender} publishers; at most {SENDERS_MAX} are possible"
        ));
    }
    Ok(groups)
}

fn resolve(job: &DriverJob) -> Result<Vec<BrokerEndpoint>, String> {
    let target = &job.target;
    let resolve_one = |host: &String| {
        let found = (host.as_str(), target.port).to_socket_addrs();
        let found: Vec<SocketAddr> = found.map_err(|error| format!("{host}: {error}"))?.collect();
        // A name can have several addresses, and some may have no listener: `localhost` is ::1 and 127.0.0.1.
        let answers = |address: &&SocketAddr| TcpStream::connect_timeout(address, PROBE).is_ok();
        let address = match &*found {
            [] => return Err(format!("{host} has no address")),
            [only] => *only,
            [first, ..] => *found.iter().find(answers).unwrap_or(first),
        };
        Ok(BrokerEndpoint {
            address,
            host: host.clone(),
        })
    };
    let endpoints: Result<Vec<BrokerEndpoint>, String> = target.hosts.iter().map(resolve_one).collect();
    endpoints.and_then(|endpoints| match endpoints.is_empty() {
        true => Err("the target has no host".into()),
        false => Ok(endpoints),
    })
}

fn wall_clock_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_millis() as u64)
}
