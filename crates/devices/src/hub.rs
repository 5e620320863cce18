//! State shared by all threads of the platform, and the operations on it.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use broker::ShardId;
use journal::Lsn;
use platform::Platform;
use platform::decode::{
    DecodeLimits, DeviceSubscription, PayloadFormat, ProfileTransport, Telemetry, TopicForm, attributes, gateway_parts,
};
use platform::ids::{DeviceId, DeviceProfileId, Uuid};
use platform::model::{DeviceProfile, Rpc};
use serde_json::Value as Json;

use crate::callers::Callers;
use crate::calls::DeviceRpcs;
use crate::delivery::DeliveryReport;
use crate::devices::DevicesOptions;
use crate::downloads::Downloads;
use crate::entry::{EntryKind, IngestEntry};
use crate::events::NodeDebugEvents;
use crate::external_requests::ExternalRequests;
use crate::lifecycle::Lifecycle;
use crate::limits::TransportLimits;
use crate::log::IngestLog;
use crate::ota::{ChunkRequests, OtaCache};
use crate::outlet::DeviceOutlet;
use crate::pollers::Pollers;
use crate::processed::ProcessedPosition;
use crate::provisioners::Provisioners;
use crate::sessions::DeviceSessions;
use crate::stats::{DeviceCounters, DevicesStats, Lag};
use crate::store_failures::StoreFailures;
use crate::updates::Watchers;

/// Devices with unreported activity. Beyond that, activity of further devices is not recorded.
const ACTIVE_MAX: usize = 1_000_000;

/// Longest time that shutdown waits for the log to be processed.
const STOP_MAX: Duration = Duration::from_secs(20);

/// A profile, and the transport settings parsed from it.
type ParsedProfile = (Arc<DeviceProfile>, Arc<ProfileTransport>);

/// State shared by all threads.
pub struct Hub {
    pub options: DevicesOptions,
    pub platform: Arc<Platform>,
    pub log: IngestLog,
    pub store_failures: StoreFailures,
    pub processed: ProcessedPosition,
    pub sessions: DeviceSessions,
    pub callers: Callers,
    pub calls: DeviceRpcs,
    /// RPC requests of devices over HTTP that wait for a rule chain. Their ids do not overlap with those of devices.
    pub device_requests: DeviceRpcs,
    pub watchers: Arc<Watchers>,
    pub pollers: Pollers,
    pub counters: Arc<DeviceCounters>,
    pub events: NodeDebugEvents,
    pub lifecycle: Lifecycle,
    /// Hourly statistics events. Separate, so that they do not evict other events; lost at a restart.
    pub statistics: Lifecycle,
    pub limits: TransportLimits,
    pub ota: OtaCache,
    pub downloads: Downloads,
    pub chunk_requests: ChunkRequests,
    pub net: OnceLock<net::ServerHandle>,
    /// True if some profile defines its own topics or payloads.
    pub has_own_topics: AtomicBool,
    pub is_flush_wanted: AtomicBool,
    pub is_stopping: AtomicBool,
    pub stop_started_at: OnceLock<Instant>,
    active: Mutex<HashMap<Uuid, i64, foldhash::fast::RandomState>>,
    /// Responses for waiting rule chains.
    chain_responses: Mutex<Vec<(u64, Result<Json, &'static str>)>>,
    pub external_requests: ExternalRequests,
    /// Held while RPC requests are sent or their progress is stored.
    pub delivering: Mutex<()>,
    pub reports: Arc<Mutex<Vec<DeliveryReport>>>,
    /// Status changes of persistent RPC requests, for rule chains.
    pub changed_calls: Mutex<Vec<Rpc>>,
    /// Sessions that recently subscribed to RPC requests.
    new_sessions: Mutex<HashSet<Uuid, foldhash::fast::RandomState>>,
    pub provisioning: AtomicU64,
    pub provisioners: Provisioners,
    /// Cached transport settings, with the profile they were parsed from.
    transports: Mutex<HashMap<DeviceProfileId, ParsedProfile>>,
    paused: Mutex<()>,
    pub resume: Condvar,
}

/// Client id prefixes of device sessions. No other client of the broker may use them.
pub const DEVICE_PREFIX: &str = "$device/";
pub const PROVISION_PREFIX: &str = "$provision/";

/// First half of the id of a provisioning session. No UUID begins like this.
pub const PROVISIONING: Uuid = Uuid([255; 16]);

pub fn is_provisioning(session: Uuid) -> bool {
    session.0[..8] == PROVISIONING.0[..8]
}

/// The client id of a device session or provisioning session.
pub fn client_id(session: Uuid) -> String {
    match is_provisioning(session) {
        false => format!("{DEVICE_PREFIX}{session}"),
        true => {
            let mut number = [0; 8];
            number.copy_from_slice(&session.0[8..]);
            format!("{PROVISION_PREFIX}{}", u64::from_be_bytes(number))
        }
    }
}

pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub fn unix_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

impl Hub {
    pub fn new(options: DevicesOptions, platform: Arc<Platform>, log: IngestLog, outward: ExternalRequests) -> Hub {
        let provisioners = Provisioners::new(Arc::clone(&options.login_limiter));
        Hub {
            store_failures: StoreFailures::default(),
            options,
            platform,
            log,
            processed: ProcessedPosition::default(),
            sessions: DeviceSessions::default(),
            callers: Callers::default(),
            calls: DeviceRpcs::default(),
            device_requests: DeviceRpcs::from(1 << 30),
            watchers: Arc::default(),
            pollers: Pollers::default(),
            counters: Arc::default(),
            events: NodeDebugEvents::default(),
            lifecycle: Lifecycle::default(),
            statistics: Lifecycle::default(),
            limits: TransportLimits::default(),
            ota: OtaCache::default(),
            downloads: Downloads::default(),
            chunk_requests: ChunkRequests::default(),
            net: OnceLock::new(),
            has_own_topics: AtomicBool::new(false),
            is_flush_wanted: AtomicBool::new(false),
            is_stopping: AtomicBool::new(false),
            stop_started_at: OnceLock::new(),
            active: Mutex::default(),
            chain_responses: Mutex::default(),
            external_requests: outward,
            delivering: Mutex::default(),
            reports: Arc::default(),
            changed_calls: Mutex::default(),
            new_sessions: Mutex::default(),
            provisioning: AtomicU64::new(0),
            provisioners,
            transports: Mutex::default(),
            paused: Mutex::new(()),
            resume: Condvar::new(),
        }
    }

    pub fn outlet(&self, now_ms: i64) -> DeviceOutlet<'_> {
        DeviceOutlet::new(self, now_ms)
    }

    pub fn lock_chain_responses(&self) -> MutexGuard<'_, Vec<(u64, Result<Json, &'static str>)>> {
        lock(&self.chain_responses)
    }

    /// Resumes rule chains whose RPC requests, external requests or scripts were answered.
    pub fn resume_chains(&self) {
        let now_ms = unix_ms();
        self.platform.take_script_answers(now_ms, &mut self.outlet(now_ms));
        loop {
            let answered = std::mem::take(&mut *self.lock_chain_responses());
            let returned = self.external_requests.returned.take();
            if answered.is_empty() && returned.is_empty() {
                return;
            }
            let now_ms = unix_ms();
            for (number, result) in returned {
                self.platform.returned(number, result, now_ms, &mut self.outlet(now_ms));
            }
            for (number, answer) in answered {
                self.platform.answer(number, answer, now_ms, &mut self.outlet(now_ms));
            }
        }
    }

    /// Records that a session subscribed to RPC requests, or polls for one. Never waits.
    pub fn can_be_called(&self, session: Uuid) {
        if self.calls.count() > 0 {
            lock(&self.new_sessions).insert(session);
        }
    }

    /// Handles RPC events that occur without a request: new sessions, delivery reports, timeouts.
    pub fn handle_call_events(&self) {
        for session in std::mem::take(&mut *lock(&self.new_sessions)) {
            self.deliver_calls(DeviceId(session));
            for device in self.sessions.gateway_devices(session) {
                self.deliver_calls(device);
            }
        }
        self.take_reports();
        self.expire_calls(unix_ms());
        self.send_call_changes_to_chains();
        self.resume_chains();
    }

    /// Resumes rule chains after a response timeout. Needed while the platform's clock is blocked.
    pub fn expire_waiting_chains(&self) {
        let now_ms = unix_ms();
        self.platform.expire_calls(now_ms, &mut self.outlet(now_ms));
    }

    /// Records activity of devices that sent nothing that is stored.
    pub fn record_activity(&self, sessions: &mut Vec<(Uuid, i64)>) {
        let mut active = lock(&self.active);
        for (session, at_ms) in sessions.drain(..) {
            if active.len() >= ACTIVE_MAX && !active.contains_key(&session) {
                DeviceCounters::add(&self.counters.dropped_alive, 1);
                continue;
            }
            active.insert(session, at_ms);
        }
    }

    pub fn record_activity_now(&self, session: Uuid, at_ms: i64) {
        self.record_activity(&mut vec![(session, at_ms)]);
    }

    pub fn take_active(&self) -> Vec<(DeviceId, i64)> {
        let active = std::mem::take(&mut *lock(&self.active));
        active
            .into_iter()
            .map(|(session, at_ms)| (DeviceId(session), at_ms))
            .collect()
    }

    /// Returns true if any profile defines its own topics or payloads.
    pub fn refresh_own_topics(&self) -> bool {
        let directory = self.platform.entities().directory();
        let has_own = directory.profiles().any(|profile| {
            let transport = profile.transport();
            transport["transportPayloadTypeConfiguration"]["transportPayloadType"] == "PROTOBUF"
                || transport["deviceTelemetryTopic"].is_string()
                || transport["deviceAttributesTopic"].is_string()
                || transport["deviceAttributesSubscribeTopic"].is_string()
        });
        self.has_own_topics.store(has_own, Relaxed);
        has_own
    }

    /// The transport settings of a device's profile, if messages to the device in this form are Protobuf.
    pub fn protobuf_of(&self, device: Uuid, form: TopicForm) -> Option<Arc<ProfileTransport>> {
        self.transport_of(device)
            .filter(|transport| transport.sends_protobuf(form))
    }

    /// The transport settings of a gateway's profile, if its payloads are Protobuf.
    pub fn protobuf_of_gateway(&self, gateway: Uuid) -> Option<Arc<ProfileTransport>> {
        self.transport_of(gateway).filter(|transport| transport.is_protobuf())
    }

    /// The subscription of the device API that the profile's own filter stands for, if it has one.
    pub fn own_subscription(&self, device: Uuid, filter: &str) -> Option<DeviceSubscription> {
        let transport = self.transport_of(device)?;
        transport
            .is_for_attributes(filter)
            .then_some(DeviceSubscription::Attributes(TopicForm::Long))
    }

    /// The transport settings of a device's profile, or `None` if no profile has any. Must not call the platform,
    /// which may be sending to the device at this moment.
    fn transport_of(&self, device: Uuid) -> Option<Arc<ProfileTransport>> {
        if !self.has_own_topics.load(Relaxed) {
            return None;
        }
        let profile = {
            let directory = self.platform.entities().directory();
            let id = directory.device(DeviceId(device))?.profile;
            Arc::clone(directory.profile(id)?)
        };
        let id = profile.id?;
        let mut known = lock(&self.transports);
        if let Some((of, transport)) = known.get(&id)
            && Arc::ptr_eq(of, &profile)
        {
            return Some(Arc::clone(transport));
        }
        // Saving a profile rejects settings that cannot be parsed.
        let transport = Arc::new(ProfileTransport::of(&profile).ok()?);
        known.insert(id, (profile, Arc::clone(&transport)));
        Some(transport)
    }

    /// Returns false if the payload is invalid. Checks only kinds whose publisher can get an immediate answer.
    pub fn is_decodable(&self, entry: &IngestEntry<'_>) -> bool {
        let limits = DecodeLimits::default();
        let is_json = match entry.kind {
            EntryKind::Telemetry => Telemetry::decode(entry.body, entry.received_ms, &limits).is_ok(),
            EntryKind::Attributes => attributes(entry.body, &limits).is_ok(),
            EntryKind::GatewayTelemetry => gateway_parts(entry.body).is_ok_and(|parts| {
                let mut parts = parts.iter();
                parts.all(|part| part.telemetry(entry.received_ms, &limits).is_ok())
            }),
            EntryKind::GatewayAttributes => {
                gateway_parts(entry.body).is_ok_and(|parts| parts.iter().all(|part| part.attributes(&limits).is_ok()))
            }
            _ => true,
        };
        is_json
            || (entry.form != TopicForm::Short(PayloadFormat::Json)
                && self
                    .transport_of(entry.device)
                    .is_some_and(|transport| transport.is_protobuf()))
    }

    /// Counts a message that could not be decoded. Before MQTT 5 the connection is closed, unless the profile says
    /// otherwise.
    pub fn refused(&self, session: Uuid, problem: &str) {
        DeviceCounters::add(&self.counters.refused_messages, 1);
        tracing::debug!(device = %session, problem, "device message rejected");
        let keeps_connection = {
            let directory = self.platform.entities().directory();
            let device = directory.device(DeviceId(session));
            let profile = device.and_then(|device| directory.profile(device.profile));
            profile.is_some_and(|profile| profile.transport()["sendAckOnValidationException"] == true)
        };
        if !keeps_connection && !self.sessions.is_v5(session) {
            self.close(session, "the message could not be decoded");
        }
    }

    pub fn close(&self, session: Uuid, reason: &'static str) {
        let (Some(shard), Some(net)) = (self.sessions.shard_of(session), self.net.get()) else {
            return;
        };
        DeviceCounters::add(&self.counters.closed_sessions, 1);
        let client_id = client_id(session);
        let device_requests = net.call_async(ShardId(shard), move |shard, now| {
            shard.close_device(now, &client_id, reason)
        });
        if let Err(error) = device_requests {
            tracing::warn!(device = %session, %error, "closing the connection of a device failed");
        }
    }

    pub fn append_mark(&self, now_ms: i64) {
        let mark = IngestEntry::new(EntryKind::Mark, Uuid::NULL, now_ms, &[]);
        if self.log.append_entry(&mark).is_ok() {
            DeviceCounters::add(&self.counters.appended, 1);
        }
    }

    /// Returns true if everything has been read, or shutdown has taken too long.
    pub fn must_stop(&self, read: Lsn) -> bool {
        let waited = self.stop_started_at.get().map(Instant::elapsed);
        let log = self.log.stats();
        // Waiting does not help a full log: it writes no more records.
        let is_done = read >= log.next || (self.log.is_full() && read >= log.committed);
        waited.is_some_and(|waited| is_done || waited > STOP_MAX)
    }

    /// Waits until the time has passed or the hub is stopped.
    pub fn pause(&self, time: Duration) {
        let guard = lock(&self.paused);
        if !self.is_stopping.load(Relaxed) {
            drop(self.resume.wait_timeout(guard, time));
        }
    }

    fn lag(&self, log: &journal::LogStats) -> Lag {
        let counters = &self.counters;
        let messages = counters
            .appended
            .load(Relaxed)
            .saturating_sub(counters.ingested.load(Relaxed));
        let bytes = log.next.0.saturating_sub(counters.read_lsn.load(Relaxed));
        let last_ms = counters.read_received_ms.load(Relaxed);
        let age_ms = match messages {
            0 => 0,
            _ => (unix_ms().max(0) as u64).saturating_sub(last_ms),
        };
        Lag {
            messages,
            bytes,
            age_ms: if last_ms == 0 { 0 } else { age_ms },
        }
    }

    pub fn stats(&self) -> DevicesStats {
        let counters = &self.counters;
        let log = self.log.stats();
        let (devices, directory_bytes) = {
            let directory = self.platform.entities().directory();
            (directory.device_count() as u64, directory.bytes() as u64)
        };
        DevicesStats {
            platform: self.platform.stats(),
            store: self.platform.store().stats(),
            lag: self.lag(&log),
            devices,
            directory_bytes,
            sessions: self.sessions.count() as u64,
            waiting_calls: self.calls.count() as u64,
            watched_entities: self.watchers.count() as u64,
            log_bytes: log.file_bytes,
            log_health: self.log.health(),
            failed_stores: self.store_failures.list(&**self.platform.entities().repository()).len() as u64,
            appended_records_total: counters.appended.load(Relaxed),
            ingested_records_total: counters.ingested.load(Relaxed),
            refused_messages_total: counters.refused_messages.load(Relaxed),
            unknown_topics_total: counters.unknown_topics.load(Relaxed),
            dropped_messages_total: counters.dropped_messages.load(Relaxed),
            over_limit_messages_total: counters.over_limit_messages.load(Relaxed),
            sent_downlinks_total: counters.sent_downlinks.load(Relaxed),
            dropped_downlinks_total: counters.dropped_downlinks.load(Relaxed),
            closed_sessions_total: counters.closed_sessions.load(Relaxed),
            failed_batches_total: counters.failed_batches.load(Relaxed),
            dropped_updates_total: self.watchers.dropped_total.load(Relaxed),
            dropped_alive_total: counters.dropped_alive.load(Relaxed),
            refused_targets_total: self.external_requests.refused_targets_total(),
            failed_rules_total: counters.failed_rules.load(Relaxed),
            unreadable_events_total: counters.unreadable_events.load(Relaxed),
        }
    }
}
