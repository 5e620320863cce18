//! Everything together: opened, asked by the API and by listeners, shut down.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use broker::ShardId;
use broker::tap::Tap;
use journal::{Directory, LogConfig, Lsn};
use platform::credentials::{MqttLogin, PROVISION_NAME};
use platform::decode::AttributesRequest;
use platform::entities::{Entities, EntityError};
use platform::ids::{DeviceId, EntityId, EntityType, Uuid};
use platform::{Platform, SqliteRepository};
use serde_json::Value as Json;
use timeseries::ColumnStore;
use tokio::sync::oneshot;

use crate::calls::{Call, CallError, Caller, Calls};
use crate::entry::{Entry, Kind};
use crate::ingest::Ingest;
use crate::log::{Full, Kept, Log};
use crate::outlet::Out;
use crate::pollers::Pollers;
use crate::sessions::{Sessions, Wanted};
use crate::stats::{Counters, Lag, Stats};
use crate::tap::DeviceTap;
use crate::updates::{Updates, Watchers};
use crate::upkeep;

/// Within the data directory.
pub const DIRECTORY_NAME: &str = "platform";

/// Devices that were heard of and about which the platform has not been told yet; more are not remembered.
const HEARD_MAX: usize = 1_000_000;

/// How long a stop waits for what is in the log.
const STOP_MAX: Duration = Duration::from_secs(20);

#[derive(Clone, Debug)]
pub struct Options {
    pub platform: platform::Options,
    pub log: LogConfig,
    pub store: timeseries::Config,
}

impl Default for Options {
    fn default() -> Options {
        let log = LogConfig {
            max_bytes: 4 << 30,
            ..LogConfig::default()
        };
        Options {
            platform: platform::Options::default(),
            log,
            store: timeseries::Config::default(),
        }
    }
}

#[derive(Debug)]
pub enum OpenError {
    Directory(Box<dyn std::error::Error + Send + Sync>),
    Log(Box<dyn std::error::Error + Send + Sync>),
    /// It ends before what the platform has of it.
    LogIsOlder {
        ends_at: u64,
        needed: u64,
    },
    Repository(Box<dyn std::error::Error + Send + Sync>),
    Store(Box<dyn std::error::Error + Send + Sync>),
    Platform(platform::OpenError),
    Thread(io::Error),
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpenError::Directory(_) => f.write_str("the platform's directory cannot be used"),
            OpenError::Log(_) => f.write_str("the log of devices cannot be opened"),
            OpenError::LogIsOlder { ends_at, needed } => write!(
                f,
                "the log of devices ends at {ends_at}, but the platform's data is of {needed}: {DIRECTORY_NAME}/log does not belong to the rest of {DIRECTORY_NAME}; restore both from one backup"
            ),
            OpenError::Repository(_) => f.write_str("the platform's entities cannot be read"),
            OpenError::Store(_) => f.write_str("the time series cannot be opened"),
            OpenError::Platform(_) => f.write_str("the platform cannot be opened"),
            OpenError::Thread(_) => f.write_str("no thread for the platform"),
        }
    }
}

impl std::error::Error for OpenError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(match self {
            OpenError::Directory(error)
            | OpenError::Log(error)
            | OpenError::Repository(error)
            | OpenError::Store(error) => &**error,
            OpenError::LogIsOlder { .. } => return None,
            OpenError::Platform(error) => error,
            OpenError::Thread(error) => error,
        })
    }
}

/// Who connects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Login {
    pub session: Uuid,
    /// Of the session, among all sessions of the broker.
    pub client_id: Box<str>,
    /// For people; never a secret.
    pub name: Box<str>,
}

/// What all threads share.
pub struct Hub {
    pub options: Options,
    pub platform: Arc<Platform>,
    pub log: Log,
    pub sessions: Sessions,
    pub calls: Calls,
    /// Calls of devices over HTTP that wait for a rule chain; their numbers are none that devices use.
    pub asked: Calls,
    pub watchers: Arc<Watchers>,
    pub pollers: Pollers,
    pub counters: Arc<Counters>,
    pub net: OnceLock<net::Handle>,
    /// Some profile has topics of its own.
    pub has_own_topics: AtomicBool,
    pub is_flush_wanted: AtomicBool,
    pub is_stopping: AtomicBool,
    stop_begun: OnceLock<Instant>,
    heard: Mutex<HashMap<Uuid, i64, foldhash::fast::RandomState>>,
    /// Answers that rule chains wait for.
    answered: Mutex<Vec<(u64, Json)>>,
    provisioning: AtomicU64,
    paused: Mutex<()>,
    resume: Condvar,
}

/// The platform at work. Stops when it is dropped, or told to.
pub struct Devices {
    hub: Arc<Hub>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Devices {
    /// Opens what is in `data_dir`, or begins there; replays what the process before had not stored, on a thread of its own.
    pub fn open(data_dir: &Path, options: Options) -> Result<Arc<Devices>, OpenError> {
        let directory = data_dir.join(DIRECTORY_NAME);
        std::fs::create_dir_all(&directory).map_err(|error| OpenError::Directory(Box::new(error)))?;
        let platform = open_platform(&directory, &options)?;
        let (log, found) = Log::open(&directory, options.log.clone())?;
        let needed = platform.replay_position().max(platform.applied_position());
        if found.next.0 + 1 < needed.0 {
            return Err(OpenError::LogIsOlder {
                ends_at: found.next.0,
                needed: needed.0,
            });
        }
        let hub = Arc::new(Hub::new(options, platform, log));
        Counters::add(&hub.counters.appended, found.records);
        hub.counters.read_lsn.store(found.follower.next().0, Relaxed);
        hub.look_at_profiles();
        let ingest = Ingest::new(Arc::clone(&hub), found);
        let of_upkeep = Arc::clone(&hub);
        let threads = vec![
            spawn("devices", move || ingest.run())?,
            spawn("timeseries", move || upkeep::run(&of_upkeep))?,
        ];
        Ok(Arc::new(Devices {
            hub,
            threads: Mutex::new(threads),
        }))
    }

    pub fn platform(&self) -> &Arc<Platform> {
        &self.hub.platform
    }

    pub fn entities(&self) -> &Arc<Entities> {
        self.hub.platform.entities()
    }

    /// What is told to devices goes there from now on.
    pub fn serve(&self, net: net::Handle) {
        self.hub.log.serve(net.clone());
        let _ = self.hub.net.set(net);
    }

    /// Of a shard, before that of rules.
    pub fn tap(&self, shard: u16, rules: Box<dyn Tap>) -> Box<dyn Tap> {
        Box::new(DeviceTap::new(Arc::clone(&self.hub), shard, rules))
    }

    /// For calls of the platform that tell somebody: what it gathers is sent when it is dropped, which may wait a moment.
    pub fn outlet(&self) -> Out<'_> {
        self.hub.out(unix_ms())
    }

    /// Who this is, if it is a device.
    pub fn device_login(&self, login: &MqttLogin<'_>) -> Option<Login> {
        let directory = self.entities().directory();
        let device = directory.authenticate(login)?;
        device_login(device, &directory)
    }

    /// By the SHA3 hash of its certificate ([`platform::credentials::sha3_hash`]).
    pub fn certificate_login(&self, hash: &str) -> Option<Login> {
        let directory = self.entities().directory();
        let device = directory.device_of_certificate(hash)?;
        device_login(device, &directory)
    }

    /// A session that may do nothing but provision a device.
    pub fn provision_login(&self, login: &MqttLogin<'_>) -> Option<Login> {
        if login.user_name != Some(PROVISION_NAME) && login.client_id != PROVISION_NAME {
            return None;
        }
        let number = self.hub.provisioning.fetch_add(1, Relaxed);
        let mut session = PROVISIONING;
        session.0[8..].copy_from_slice(&number.to_be_bytes());
        Some(Login {
            session,
            client_id: client_id(session).into(),
            name: PROVISION_NAME.into(),
        })
    }

    /// What changes of the entities that are watched with it.
    pub fn subscribe(&self, queue: usize) -> Updates {
        Updates::new(&self.hub.watchers, queue)
    }

    /// Calls a device and waits for its answer, which is JSON; a call of one way is answered with `None` when it is on its way.
    pub async fn call_device(&self, device: DeviceId, call: &Call) -> Result<Option<String>, CallError> {
        let (sender, receiver) = oneshot::channel();
        let caller = match call.is_one_way {
            true => Caller::None,
            false => Caller::Outside(sender),
        };
        let waits = GiveUp {
            hub: &self.hub,
            device,
            id: self.hub.out(unix_ms()).call(device, call, caller)?,
        };
        if call.is_one_way {
            return Ok(None);
        }
        let answer = receiver.await.unwrap_or(Err(CallError::Stopped));
        drop(waits);
        answer.map(Some)
    }

    /// Whether the device, or the gateway that speaks for it, is connected.
    pub fn is_online(&self, device: DeviceId) -> bool {
        self.hub.sessions.is_online(device.0)
    }

    /// Something that a device said elsewhere than on a listener. It is in the log when what comes back is done.
    pub fn append(&self, entry: &Entry<'_>) -> Result<Kept, Full> {
        Counters::add(&self.hub.counters.appended, 1);
        self.hub.log.append_entry(entry)
    }

    /// Telemetry of any entity, past the rule chains: JSON as devices send it, which the caller has checked.
    pub fn save_telemetry(&self, entity: EntityId, body: &[u8], now_ms: i64) -> Result<Kept, Full> {
        let kind = EntityType::ALL
            .iter()
            .position(|kind| *kind == entity.kind)
            .unwrap_or_default();
        self.append(&Entry {
            id: kind as i32,
            ..Entry::new(Kind::Save, entity.id, now_ms, body)
        })
    }

    /// Over HTTP: the next call of the device, or the next change of its attributes. `None`: too many wait.
    pub fn next_for(&self, device: DeviceId, wanted: Wanted) -> Option<oneshot::Receiver<String>> {
        self.hub.pollers.wait(device, wanted)
    }

    /// The device answers a call of the server.
    pub fn answered(&self, device: DeviceId, id: i32, body: &[u8]) {
        self.hub.answered(device, id, body);
        self.hub.go_on_with_chains();
    }

    /// The device calls the server: the answer of a rule chain, as JSON, or nothing when it takes too long.
    pub async fn ask(&self, device: DeviceId, body: &[u8], timeout: Duration) -> Result<Option<String>, Full> {
        let (sender, receiver) = oneshot::channel();
        let expires_ms = unix_ms().saturating_add(timeout.as_millis() as i64);
        let begun = self.hub.asked.begin(device, Caller::Outside(sender), expires_ms);
        let id = begun.map_err(|error| Full {
            because: error.to_string(),
        })?;
        let entry = Entry {
            id,
            ..Entry::new(Kind::RpcRequest, device.0, unix_ms(), body)
        };
        self.append(&entry)?.await?;
        Ok(receiver.await.ok().and_then(Result::ok))
    }

    /// The device says that a user may claim it.
    pub fn claim(&self, device: DeviceId, body: &[u8]) -> Result<(), String> {
        self.hub
            .claim(device, body, unix_ms())
            .map_err(|error| error.to_string())
    }

    /// As devices are told their attributes. Reads the repository, so it may wait.
    pub fn attributes_of(&self, device: DeviceId, request: &AttributesRequest) -> Result<String, EntityError> {
        self.hub.attributes_of(device, request)
    }

    /// The answer to a request to be provisioned. Writes the repository, so it waits.
    pub fn provision(&self, body: &[u8]) -> String {
        self.hub.provisioned(body, unix_ms())
    }

    /// Ends the connection of a device: it was deleted, or its credentials were changed.
    pub fn disconnect(&self, device: DeviceId) {
        self.hub.close(device.0, "the device or its credentials were changed");
    }

    pub fn stats(&self) -> Stats {
        self.hub.stats()
    }

    /// After the listeners: everything that was said is processed and written. A second call does nothing.
    pub fn shut_down(&self) {
        let threads = std::mem::take(&mut *lock(&self.threads));
        if threads.is_empty() {
            return;
        }
        let _ = self.hub.stop_begun.set(Instant::now());
        self.hub.is_stopping.store(true, Relaxed);
        self.hub.log.wake();
        self.hub.resume.notify_all();
        for thread in threads {
            // A panic has been reported by its own thread.
            let _ = thread.join();
        }
        self.hub.log.shut_down();
    }
}

impl Drop for Devices {
    fn drop(&mut self) {
        self.shut_down();
    }
}

/// A call that nobody waits for any more is forgotten.
struct GiveUp<'h> {
    hub: &'h Hub,
    device: DeviceId,
    id: i32,
}

impl Drop for GiveUp<'_> {
    fn drop(&mut self) {
        self.hub.calls.give_up(self.device, self.id);
    }
}

/// Names of sessions of devices among those of all clients: no client of the broker may have such a client id.
pub const DEVICE_PREFIX: &str = "$device/";
pub const PROVISION_PREFIX: &str = "$provision/";

/// The first half of what stands for the device in a session that provisions one; no UUID begins like this.
const PROVISIONING: Uuid = Uuid([255; 16]);

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

fn device_login(device: DeviceId, directory: &platform::Directory) -> Option<Login> {
    Some(Login {
        session: device.0,
        client_id: client_id(device.0).into(),
        name: directory.device(device)?.name.clone(),
    })
}

fn open_platform(directory: &Path, options: &Options) -> Result<Arc<Platform>, OpenError> {
    let repository = SqliteRepository::open(directory).map_err(|error| OpenError::Repository(Box::new(error)))?;
    let entities = Entities::open(Arc::new(repository)).map_err(|error| OpenError::Repository(Box::new(error)))?;
    let disk = Directory::open(directory, timeseries::DIRECTORY_NAME)
        .map_err(|error| OpenError::Directory(Box::new(error)))?;
    let mut seed = [0; 8];
    getrandom::fill(&mut seed).map_err(|error| OpenError::Store(error.to_string().into()))?;
    let config = timeseries::Config {
        hash_seed: u64::from_ne_bytes(seed),
        ..options.store
    };
    let store = ColumnStore::open(Arc::new(disk), config).map_err(|error| OpenError::Store(Box::new(error)))?;
    let platform = Platform::open(Arc::new(entities), Arc::new(store), options.platform.clone());
    platform.map(Arc::new).map_err(OpenError::Platform)
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, OpenError> {
    let thread = Builder::new().name(name.to_owned()).spawn(work);
    thread.map_err(OpenError::Thread)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub fn unix_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

impl Hub {
    fn new(options: Options, platform: Arc<Platform>, log: Log) -> Hub {
        Hub {
            options,
            platform,
            log,
            sessions: Sessions::default(),
            calls: Calls::default(),
            asked: Calls::from(1 << 30),
            watchers: Arc::default(),
            pollers: Pollers::default(),
            counters: Arc::default(),
            net: OnceLock::new(),
            has_own_topics: AtomicBool::new(false),
            is_flush_wanted: AtomicBool::new(false),
            is_stopping: AtomicBool::new(false),
            stop_begun: OnceLock::new(),
            heard: Mutex::default(),
            answered: Mutex::default(),
            provisioning: AtomicU64::new(0),
            paused: Mutex::new(()),
            resume: Condvar::new(),
        }
    }

    pub fn out(&self, now_ms: i64) -> Out<'_> {
        Out::new(self, now_ms)
    }

    pub fn lock_answered(&self) -> MutexGuard<'_, Vec<(u64, Json)>> {
        lock(&self.answered)
    }

    /// Chains whose calls were answered go on.
    pub fn go_on_with_chains(&self) {
        loop {
            let answered = std::mem::take(&mut *self.lock_answered());
            if answered.is_empty() {
                return;
            }
            let now_ms = unix_ms();
            for (number, body) in answered {
                self.platform.answer(number, Ok(body), now_ms, &mut self.out(now_ms));
            }
        }
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
        });
        self.has_own_topics.store(has_own, Relaxed);
        has_own
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
        waited.is_some_and(|waited| read >= self.log.stats().next || waited > STOP_MAX)
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

    fn stats(&self) -> Stats {
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
            sent_downlinks_total: counters.sent_downlinks.load(Relaxed),
            dropped_downlinks_total: counters.dropped_downlinks.load(Relaxed),
            closed_sessions_total: counters.closed_sessions.load(Relaxed),
            failed_batches_total: counters.failed_batches.load(Relaxed),
            dropped_updates_total: self.watchers.dropped_total.load(Relaxed),
            dropped_alive_total: counters.dropped_alive.load(Relaxed),
            failed_rules_total: counters.failed_rules.load(Relaxed),
        }
    }
}
