//! What all threads of the platform share, and what each of them does with it.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use broker::ShardId;
use journal::Lsn;
use platform::Platform;
use platform::decode::{Form, Format, Limits, Subscription, Telemetry, Transport, attributes, gateway_parts};
use platform::ids::{DeviceId, DeviceProfileId, Uuid};
use platform::model::{DeviceProfile, Rpc};
use serde_json::Value as Json;

use crate::callers::Callers;
use crate::calls::Calls;
use crate::delivery::Report;
use crate::devices::Options;
use crate::downloads::Downloads;
use crate::entry::{Entry, Kind};
use crate::events::Events;
use crate::lifecycle::Lifecycle;
use crate::limits::TransportLimits;
use crate::log::Log;
use crate::ota::{ChunkRequests, OtaCache};
use crate::outlet::Out;
use crate::outward::Outward;
use crate::pollers::Pollers;
use crate::processed::Processed;
use crate::sessions::Sessions;
use crate::stats::{Counters, Lag, Stats};
use crate::updates::Watchers;

/// Devices that were heard of and about which the platform has not been told yet; more are not remembered.
const HEARD_MAX: usize = 1_000_000;

/// How long a stop waits for what is in the log.
const STOP_MAX: Duration = Duration::from_secs(20);

/// A profile as it was when its transport was read.
type Read = (Arc<DeviceProfile>, Arc<Transport>);

/// What all threads share.
pub struct Hub {
    pub options: Options,
    pub platform: Arc<Platform>,
    pub log: Log,
    pub processed: Processed,
    pub sessions: Sessions,
    pub callers: Callers,
    pub calls: Calls,
    /// Calls of devices over HTTP that wait for a rule chain; their numbers are none that devices use.
    pub asked: Calls,
    pub watchers: Arc<Watchers>,
    pub pollers: Pollers,
    pub counters: Arc<Counters>,
    pub events: Events,
    pub lifecycle: Lifecycle,
    /// By themselves, so that they push nothing else out; not kept for a restart.
    pub statistics: Lifecycle,
    pub limits: TransportLimits,
    pub ota: OtaCache,
    pub downloads: Downloads,
    pub chunk_requests: ChunkRequests,
    pub net: OnceLock<net::Handle>,
    /// Some profile has topics of its own.
    pub has_own_topics: AtomicBool,
    pub is_flush_wanted: AtomicBool,
    pub is_stopping: AtomicBool,
    pub stop_begun: OnceLock<Instant>,
    heard: Mutex<HashMap<Uuid, i64, foldhash::fast::RandomState>>,
    /// Answers that rule chains wait for.
    answered: Mutex<Vec<(u64, Result<Json, &'static str>)>>,
    pub outward: Outward,
    /// Whoever sends calls or keeps how far they are holds it.
    pub delivering: Mutex<()>,
    pub reports: Arc<Mutex<Vec<Report>>>,
    /// What became of calls that are kept, for rule chains.
    pub changed_calls: Mutex<Vec<Rpc>>,
    /// Sessions that can be called since a moment ago.
    came: Mutex<HashSet<Uuid, foldhash::fast::RandomState>>,
    pub provisioning: AtomicU64,
    /// By profiles as they were when they were read.
    transports: Mutex<HashMap<DeviceProfileId, Read>>,
    paused: Mutex<()>,
    pub resume: Condvar,
}

/// Names of sessions of devices among those of all clients: no client of the broker may have such a client id.
pub const DEVICE_PREFIX: &str = "$device/";
pub const PROVISION_PREFIX: &str = "$provision/";

/// The first half of what stands for the device in a session that provisions one; no UUID begins like this.
pub const PROVISIONING: Uuid = Uuid([255; 16]);

pub fn is_provisioning(session: Uuid) -> bool {
    session.0[..8] == PROVISIONING.0[..8]
}

/// Of the session of a device, or of one that provisions.
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
    pub fn new(options: Options, platform: Arc<Platform>, log: Log, outward: Outward) -> Hub {
        Hub {
            options,
            platform,
            log,
            processed: Processed::default(),
            sessions: Sessions::default(),
            callers: Callers::default(),
            calls: Calls::default(),
            asked: Calls::from(1 << 30),
            watchers: Arc::default(),
            pollers: Pollers::default(),
            counters: Arc::default(),
            events: Events::default(),
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
            stop_begun: OnceLock::new(),
            heard: Mutex::default(),
            answered: Mutex::default(),
            outward,
            delivering: Mutex::default(),
            reports: Arc::default(),
            changed_calls: Mutex::default(),
            came: Mutex::default(),
            provisioning: AtomicU64::new(0),
            transports: Mutex::default(),
            paused: Mutex::new(()),
            resume: Condvar::new(),
        }
    }

    pub fn out(&self, now_ms: i64) -> Out<'_> {
        Out::new(self, now_ms)
    }

    pub fn lock_answered(&self) -> MutexGuard<'_, Vec<(u64, Result<Json, &'static str>)>> {
        lock(&self.answered)
    }

    /// Chains go on whose calls were answered, and to whom other systems have said something.
    pub fn go_on_with_chains(&self) {
        loop {
            let answered = std::mem::take(&mut *self.lock_answered());
            let returned = self.outward.returned.take();
            if answered.is_empty() && returned.is_empty() {
                return;
            }
            let now_ms = unix_ms();
            for (number, said) in returned {
                self.platform.returned(number, said, now_ms, &mut self.out(now_ms));
            }
            for (number, answer) in answered {
                self.platform.answer(number, answer, now_ms, &mut self.out(now_ms));
            }
        }
    }

    /// It has subscribed to calls, or asks for one; never waits.
    pub fn can_be_called(&self, session: Uuid) {
        if self.calls.count() > 0 {
            lock(&self.came).insert(session);
        }
    }

    /// Everything that happens to calls without a request.
    pub fn attend_to_calls(&self) {
        for session in std::mem::take(&mut *lock(&self.came)) {
            self.deliver_calls(DeviceId(session));
            for device in self.sessions.all_behind(session) {
                self.deliver_calls(device);
            }
        }
        self.take_reports();
        self.expire_calls(unix_ms());
        self.tell_of_calls();
        self.go_on_with_chains();
    }

    /// Chains go on that have waited too long for an answer, while the platform's clock stands still.
    pub fn expire_waiting_chains(&self) {
        let now_ms = unix_ms();
        self.platform.expire_calls(now_ms, &mut self.out(now_ms));
    }

    /// Devices that are there without having said anything that is kept.
    pub fn heard(&self, sessions: &mut Vec<(Uuid, i64)>) {
        let mut heard = lock(&self.heard);
        for (session, at_ms) in sessions.drain(..) {
            if heard.len() >= HEARD_MAX && !heard.contains_key(&session) {
                Counters::add(&self.counters.dropped_alive, 1);
                continue;
            }
            heard.insert(session, at_ms);
        }
    }

    pub fn heard_now(&self, session: Uuid, at_ms: i64) {
        self.heard(&mut vec![(session, at_ms)]);
    }

    pub fn take_heard(&self) -> Vec<(DeviceId, i64)> {
        let heard = std::mem::take(&mut *lock(&self.heard));
        heard
            .into_iter()
            .map(|(session, at_ms)| (DeviceId(session), at_ms))
            .collect()
    }

    /// Whether any profile has topics or payloads of its own.
    pub fn look_at_profiles(&self) -> bool {
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

    /// What a device's profile says of payloads, if what it is told in this form is Protobuf.
    pub fn protobuf_of(&self, device: Uuid, form: Form) -> Option<Arc<Transport>> {
        self.transport_of(device)
            .filter(|transport| transport.tells_protobuf(form))
    }

    /// What a gateway's profile says of payloads, if they are Protobuf.
    pub fn protobuf_of_gateway(&self, gateway: Uuid) -> Option<Arc<Transport>> {
        self.transport_of(gateway).filter(|transport| transport.is_protobuf())
    }

    /// The device's own filter, if its profile has one, in the words of the device interface.
    pub fn own_subscription(&self, device: Uuid, filter: &str) -> Option<Subscription> {
        let transport = self.transport_of(device)?;
        transport
            .is_for_attributes(filter)
            .then_some(Subscription::Attributes(Form::Long))
    }

    /// What a device's profile says of topics and payloads, if any profile says something. Never asks the platform, which may be telling
    /// the device something right now.
    fn transport_of(&self, device: Uuid) -> Option<Arc<Transport>> {
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
        // Saving a profile refuses what cannot be parsed.
        let transport = Arc::new(Transport::of(&profile).ok()?);
        known.insert(id, (profile, Arc::clone(&transport)));
        Some(transport)
    }

    /// Whether values have the form that they have to have: looked at for those that can be told at once.
    pub fn is_understood(&self, entry: &Entry<'_>) -> bool {
        let limits = Limits::default();
        let is_json = match entry.kind {
            Kind::Telemetry => Telemetry::decode(entry.body, entry.received_ms, &limits).is_ok(),
            Kind::Attributes => attributes(entry.body, &limits).is_ok(),
            Kind::GatewayTelemetry => gateway_parts(entry.body).is_ok_and(|parts| {
                let mut parts = parts.iter();
                parts.all(|part| part.telemetry(entry.received_ms, &limits).is_ok())
            }),
            Kind::GatewayAttributes => {
                gateway_parts(entry.body).is_ok_and(|parts| parts.iter().all(|part| part.attributes(&limits).is_ok()))
            }
            _ => true,
        };
        is_json
            || (entry.form != Form::Short(Format::Json)
                && self
                    .transport_of(entry.device)
                    .is_some_and(|transport| transport.is_protobuf()))
    }

    /// A message was not understood. Before MQTT 5 the connection is closed, unless the profile says otherwise.
    pub fn refused(&self, session: Uuid, problem: &str) {
        Counters::add(&self.counters.refused_messages, 1);
        tracing::debug!(device = %session, problem, "a message of a device was not understood");
        let keeps_on = {
            let directory = self.platform.entities().directory();
            let device = directory.device(DeviceId(session));
            let profile = device.and_then(|device| directory.profile(device.profile));
            profile.is_some_and(|profile| profile.transport()["sendAckOnValidationException"] == true)
        };
        if !keeps_on && !self.sessions.is_v5(session) {
            self.close(session, "the message was not understood");
        }
    }

    pub fn close(&self, session: Uuid, because: &'static str) {
        let (Some(shard), Some(net)) = (self.sessions.shard_of(session), self.net.get()) else {
            return;
        };
        Counters::add(&self.counters.closed_sessions, 1);
        let client_id = client_id(session);
        let asked = net.ask(ShardId(shard), move |shard, now| {
            shard.close_device(now, &client_id, because)
        });
        if let Err(error) = asked {
            tracing::warn!(device = %session, %error, "the connection of a device cannot be closed");
        }
    }

    pub fn append_mark(&self, now_ms: i64) {
        let mark = Entry::new(Kind::Mark, Uuid::NULL, now_ms, &[]);
        if self.log.append_entry(&mark).is_ok() {
            Counters::add(&self.counters.appended, 1);
        }
    }

    /// Everything has been read, or a stop has taken long enough.
    pub fn must_stop(&self, read: Lsn) -> bool {
        let waited = self.stop_begun.get().map(Instant::elapsed);
        let log = self.log.stats();
        // What a full log has not written is not written by waiting.
        let is_done = read >= log.next || (self.log.is_full() && read >= log.committed);
        waited.is_some_and(|waited| is_done || waited > STOP_MAX)
    }

    /// Until the time has passed or the hub is stopped.
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

    pub fn stats(&self) -> Stats {
        let counters = &self.counters;
        let log = self.log.stats();
        let (devices, directory_bytes) = {
            let directory = self.platform.entities().directory();
            (directory.device_count() as u64, directory.bytes() as u64)
        };
        Stats {
            platform: self.platform.stats(),
            store: self.platform.store().stats(),
            lag: self.lag(&log),
            devices,
            directory_bytes,
            sessions: self.sessions.count() as u64,
            waiting_calls: self.calls.count() as u64,
            watched_entities: self.watchers.count() as u64,
            log_bytes: log.file_bytes,
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
            failed_rules_total: counters.failed_rules.load(Relaxed),
            unreadable_events_total: counters.unreadable_events.load(Relaxed),
        }
    }
}
