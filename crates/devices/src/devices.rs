//! Everything together: opened, asked by the API and by listeners, shut down.

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use broker::tap::Tap;
use journal::{Directory, LogConfig};
use platform::credentials::{MqttLogin, PROVISION_NAME};
use platform::decode::{AttributesRequest, Form, Format, OtaKind, Provision};
use platform::entities::{Entities, EntityError, Said};
use platform::ids::{DeviceId, DeviceProfileId, EntityId, EntityType, RuleChainId, RuleNodeId, TenantId, Uuid};
use platform::model::{OtaPackage, Rpc, Scope};
use platform::repository::{RepositoryError, StateKind};
use platform::{Platform, SqliteRepository};
use timeseries::ColumnStore;
use tokio::sync::oneshot;

use crate::calls::{Answer, Call, CallError, Caller, Waiting};
use crate::entry::{Entry, Kind, entity_type_number};
use crate::events::NodeEvent;
use crate::hub::{Hub, PROVISIONING, client_id, lock, unix_ms};
use crate::ingest::Ingest;
use crate::lifecycle::EntityEvent;
use crate::limits::OverLimit;
use crate::log::{Full, Kept, Log};
use crate::ota::{self, OtaError};
use crate::outlet::Out;
use crate::outward::{Courier, Outward};
use crate::sessions::Wanted;
use crate::stats::{Counters, Stats};
use crate::tap::DeviceTap;
use crate::updates::Updates;
use crate::upkeep;

/// How long a request waits for what was acknowledged before it.
const CATCH_UP: Duration = Duration::from_secs(10);

/// A call whose time is over is answered with the reason, which comes a moment later.
const SAYS_WHY: Duration = Duration::from_secs(1);

/// Within the data directory.
pub const DIRECTORY_NAME: &str = "platform";

#[derive(Clone, Debug)]
pub struct Options {
    pub platform: platform::Options,
    pub log: LogConfig,
    pub store: timeseries::Config,
    /// A device that only pings is active.
    pub pings_are_activity: bool,
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
            pings_are_activity: true,
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

/// The platform at work. Stops when it is dropped, or told to.
pub struct Devices {
    pub(crate) hub: Arc<Hub>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Devices {
    /// Opens what is in `data_dir`, or begins there; replays what the process before had not stored, on a thread of its own.
    pub fn open(data_dir: &Path, options: Options) -> Result<Arc<Devices>, OpenError> {
        Devices::open_with(data_dir, options, None)
    }

    /// With somebody who takes what rule chains send to other systems.
    pub fn open_with(
        data_dir: &Path,
        options: Options,
        courier: Option<Arc<dyn Courier>>,
    ) -> Result<Arc<Devices>, OpenError> {
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
        let hub = Arc::new(Hub::new(options, platform, log, Outward::new(courier)));
        hub.outward.returned.belongs_to(&hub);
        Counters::add(&hub.counters.appended, found.records);
        hub.counters.read_lsn.store(found.follower.next().0, Relaxed);
        hub.processed.reached(found.follower.next());
        hub.look_at_profiles();
        hub.look_at_limits();
        hub.restore_calls()
            .map_err(|error| OpenError::Repository(Box::new(error)))?;
        let repository = hub.platform.entities().repository();
        repository
            .for_each_state(StateKind::NodeEvents, &mut |node, bytes| {
                hub.restored(node, hub.events.restore(RuleNodeId(node), bytes));
            })
            .map_err(|error| OpenError::Repository(Box::new(error)))?;
        repository
            .for_each_state(StateKind::EntityEvents, &mut |entity, bytes| {
                hub.restored(entity, hub.lifecycle.restore(entity, bytes));
            })
            .map_err(|error| OpenError::Repository(Box::new(error)))?;
        tell_of_chains(&hub).map_err(|error| OpenError::Repository(Box::new(error)))?;
        let ingest = Ingest::new(Arc::clone(&hub), found);
        let of_upkeep = Arc::clone(&hub);
        let of_packages = Arc::clone(&hub);
        let threads = vec![
            spawn("devices", move || ingest.run())?,
            spawn("timeseries", move || upkeep::run(&of_upkeep))?,
            spawn("packages", move || ota::run(&of_packages))?,
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

    /// A profile was saved or deleted: it holds for whatever is said from now on.
    pub fn reload_profile(&self, id: DeviceProfileId) {
        self.hub.platform.reload_profile(id);
        self.hub.look_at_profiles();
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

    /// A call goes along the rule chain of its device, whose node calls the device as soon as that is there. What comes back is JSON: what the
    /// device answers; nothing of a call of one way, when it is on its way; the identifier of one that is kept, when it is on the disk.
    /// Runs the chain, and writes the repository if the call is to be kept, so it may wait.
    pub fn call_device(&self, device: DeviceId, call: &Call) -> WaitingCall {
        let now_ms = unix_ms();
        let tenant = self.hub.tenant_of(device);
        let request = self.entities().new_id(now_ms);
        let receiver = self.hub.callers.wait(request, tenant);
        let waiting = WaitingCall {
            receiver,
            gives_up: GiveUp {
                hub: Arc::clone(&self.hub),
                request,
            },
        };
        let news = call.message(request, device, tenant);
        self.hub.platform.tell(news, now_ms, &mut self.hub.out(now_ms));
        self.hub.go_on_with_chains();
        waiting
    }

    /// After a device was deleted: what waits for it waits no longer.
    pub fn device_deleted(&self, device: DeviceId) {
        self.platform().device_deleted(device);
        self.hub.device_deleted(device);
        self.hub.log.wake();
    }

    /// A call that is kept is forgotten, and not sent any more. Writes the repository.
    pub fn delete_call(&self, rpc: &Rpc) -> Result<(), EntityError> {
        self.hub.delete_call(rpc)?;
        self.hub.log.wake();
        Ok(())
    }

    /// Whether the device, or the gateway that speaks for it, is connected.
    pub fn is_online(&self, device: DeviceId) -> bool {
        self.hub.sessions.is_online(device.0)
    }

    /// The device is there, though it says nothing that is kept: it asks, or waits for something.
    pub fn heard(&self, device: DeviceId) {
        self.hub.heard_now(device.0, unix_ms());
    }

    /// Whether a device may say this now, by the limits of its tenant; if so, it has used up that much of them.
    pub fn check_limits(&self, entry: &Entry<'_>) -> Result<(), OverLimit> {
        let over = self.hub.limits.are_set().then(|| self.hub.over_limit(entry)).flatten();
        over.map_or(Ok(()), Err)
    }

    /// After a tenant or a profile of tenants was changed.
    pub fn limits_changed(&self) {
        self.hub.look_at_limits();
    }

    /// Something that a device said elsewhere than on a listener. It is in the log when what comes back is done.
    pub fn append(&self, entry: &Entry<'_>) -> Result<Kept, Full> {
        Counters::add(&self.hub.counters.appended, 1);
        self.hub.log.append_entry(entry)
    }

    /// Telemetry of any entity, past the rule chains: JSON as devices send it, which the caller has checked.
    /// `ttl_s`: how long it is kept; 0: as the tenant's profile says.
    pub fn save_telemetry(&self, entity: EntityId, body: &[u8], ttl_s: u32, now_ms: i64) -> Result<Kept, Full> {
        let with_ttl;
        let (kind_of_entry, body) = match ttl_s {
            0 => (Kind::Save, body),
            ttl_s => {
                with_ttl = [&ttl_s.to_le_bytes(), body].concat();
                (Kind::SaveWithTtl, &*with_ttl)
            }
        };
        self.append(&Entry {
            id: entity_type_number(entity.kind),
            ..Entry::new(kind_of_entry, entity.id, now_ms, body)
        })
    }

    /// A user saves attributes of any entity, JSON that the caller has checked: behind all that was acknowledged before. Never waits.
    pub fn save_attributes(&self, of: (EntityId, Scope), body: &[u8], now_ms: i64) -> Result<WaitingChange, Full> {
        self.change_attributes(&Entry::of_attributes(Kind::SaveAttributes, of, now_ms, body))
    }

    /// As [`Devices::save_attributes`].
    pub fn delete_attributes(
        &self,
        of: (EntityId, Scope),
        keys: &[String],
        now_ms: i64,
    ) -> Result<WaitingChange, Full> {
        let body = serde_json::json!(keys).to_string();
        let body = body.as_bytes();
        self.change_attributes(&Entry::of_attributes(Kind::DeleteAttributes, of, now_ms, body))
    }

    fn change_attributes(&self, entry: &Entry<'_>) -> Result<WaitingChange, Full> {
        let kept = self.append(entry)?;
        Ok(WaitingChange {
            entity: entry.device,
            processed: self.hub.processed.wait_for(kept.end()),
            kept,
        })
    }

    /// Done when all that has been acknowledged has been processed. `false`: that takes longer than a request can wait.
    pub async fn catch_up(&self) -> bool {
        let processed = self.hub.processed.wait_for(self.hub.log.committed());
        tokio::time::timeout(CATCH_UP, processed).await.is_ok()
    }

    /// Over HTTP: the next call of the device, or the next change of its attributes. `None`: too many wait.
    pub fn next_for(&self, device: DeviceId, wanted: Wanted) -> Option<oneshot::Receiver<String>> {
        let waits = self.hub.pollers.wait(device, wanted);
        if wanted == Wanted::RpcRequest {
            self.hub.can_be_called(device.0);
            self.hub.log.wake();
        }
        waits
    }

    /// The device answers a call of the server.
    pub fn answered(&self, device: DeviceId, id: i32, body: &[u8]) {
        self.hub.answered(device, id, body, Said::Now);
        self.hub.go_on_with_chains();
    }

    /// The device calls the server: the answer of a rule chain, as JSON, or nothing when it takes too long.
    pub async fn ask(&self, device: DeviceId, body: &[u8], timeout: Duration) -> Result<Option<String>, Full> {
        let (sender, receiver) = oneshot::channel();
        let expires_ms = unix_ms().saturating_add(timeout.as_millis() as i64);
        let asked = Call {
            method: String::new(),
            params: String::new(),
            is_one_way: false,
            expires_ms,
            keeping: None,
        };
        let tenant = self.hub.tenant_of(device);
        let id = self.hub.asked.next_id(device, tenant, &asked).map_err(|error| Full {
            because: error.to_string(),
        })?;
        let waiting = Waiting::new(tenant, asked, Caller::Outside(sender), None);
        self.hub.asked.insert(device, id, waiting);
        let entry = Entry {
            id,
            form: Form::Short(Format::Json),
            ..Entry::new(Kind::RpcRequest, device.0, unix_ms(), body)
        };
        self.append(&entry)?.await?;
        Ok(receiver.await.ok().and_then(Result::ok).flatten())
    }

    /// The device says that a user may claim it.
    pub fn claim(&self, device: DeviceId, body: &[u8]) -> Result<(), String> {
        self.hub
            .claim(device, body, (Said::Now, unix_ms()))
            .map_err(|error| error.to_string())
    }

    /// A part of the device's firmware or software of this title and version, of this size; 0 is all of it.
    pub fn ota_chunk(
        &self,
        device: DeviceId,
        kind: OtaKind,
        (title, version): (&str, &str),
        (size, chunk): (usize, usize),
    ) -> Result<(OtaPackage, Vec<u8>), OtaError> {
        let package = self.hub.ota_package(device, kind)?;
        if (package.title.as_str(), package.version.as_str()) != (title, version) {
            return Err(OtaError::NotFound);
        }
        let bytes = self.hub.ota_chunk(&package, size, chunk)?;
        Ok((package, bytes))
    }

    /// As devices are told their attributes. Reads the repository, so it may wait.
    pub fn attributes_of(&self, device: DeviceId, request: &AttributesRequest) -> Result<String, EntityError> {
        self.hub.attributes_of(device, request)
    }

    /// The answer to a request to be provisioned. Writes the repository, so it waits.
    pub fn provision(&self, body: &[u8]) -> String {
        self.hub.answer_to(Provision::decode(body), unix_ms())
    }

    /// Of a rule node of this tenant that is debugged, the newest first.
    pub fn events(&self, tenant: TenantId, node: RuleNodeId) -> Vec<NodeEvent> {
        self.hub.events.of(tenant, node)
    }

    pub fn clear_events(&self, tenant: TenantId, node: RuleNodeId) {
        self.hub.events.clear(tenant, node);
    }

    /// What happened to a rule chain, a node or a device beside messages, and what of its messages failed; the newest first.
    pub fn entity_events(&self, tenant: TenantId, entity: EntityId) -> Vec<EntityEvent> {
        let mut all = self.hub.lifecycle.of(tenant, entity);
        all.extend(self.hub.statistics.of(tenant, entity));
        all.sort_by_key(|event| std::cmp::Reverse(event.at_ms));
        all
    }

    /// What rule nodes did since the last time becomes events; done each hour.
    pub fn note_statistics(&self, now_ms: i64) {
        self.hub.note_statistics(now_ms);
    }

    pub fn clear_entity_events(&self, tenant: TenantId, entity: EntityId) {
        self.hub.lifecycle.clear(tenant, entity);
        self.hub.statistics.clear(tenant, entity);
    }

    /// After a chain was saved, made the root, or deleted.
    pub fn reload_chain(&self, tenant: TenantId, id: RuleChainId, now_ms: i64) -> Result<(), platform::OpenError> {
        let platform = &self.hub.platform;
        let before = platform.chain_nodes(id);
        platform.reload_chain(id, now_ms)?;
        let after = platform.chain_nodes(id);
        let new_id = || platform.entities().new_id(now_ms);
        let change = (before.as_ref(), after.as_ref());
        self.hub.lifecycle.chain_changed((tenant, id), change, now_ms, &new_id);
        Ok(())
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
        self.hub.chunk_requests.end();
        for thread in threads {
            // A panic has been reported by its own thread.
            let _ = thread.join();
        }
        self.hub.keep_events();
        self.hub.log.shut_down();
    }
}

impl Drop for Devices {
    fn drop(&mut self) {
        self.shut_down();
    }
}

/// A user's change of attributes, on its way.
pub struct WaitingChange {
    entity: Uuid,
    kept: Kept,
    processed: oneshot::Receiver<()>,
}

impl WaitingChange {
    /// For whoever does not wait until it is processed.
    pub fn kept(self) -> Kept {
        self.kept
    }

    /// It is kept, and to be read, unless the processing is further behind than a request can wait. An error after that time is no promise
    /// that it will not be kept.
    pub async fn done(self) -> Result<(), Full> {
        let kept = tokio::time::timeout(CATCH_UP, self.kept).await;
        kept.unwrap_or_else(|_| {
            Err(Full {
                because: "the disk takes too long".to_owned(),
            })
        })?;
        if tokio::time::timeout(CATCH_UP, self.processed).await.is_err() {
            tracing::info!(entity = %self.entity, "attributes that a user changed wait behind what devices said");
        }
        Ok(())
    }
}

/// A call on its way.
pub struct WaitingCall {
    receiver: oneshot::Receiver<Answer>,
    gives_up: GiveUp,
}

impl WaitingCall {
    /// The answer, or why there is none by then.
    pub async fn answer(self, by_ms: i64) -> Answer {
        let left_ms = u64::try_from(by_ms.saturating_sub(unix_ms())).unwrap_or(0);
        let within = Duration::from_millis(left_ms) + SAYS_WHY;
        match tokio::time::timeout(within, self.receiver).await {
            Ok(answer) => answer.unwrap_or(Err(CallError::Stopped)),
            Err(_) if self.gives_up.forget() => Err(CallError::NotCalled),
            Err(_) => Err(CallError::Timeout),
        }
    }
}

/// Nobody waits for it any more.
struct GiveUp {
    hub: Arc<Hub>,
    request: Uuid,
}

impl GiveUp {
    /// Whether no node of a chain has taken the call.
    fn forget(&self) -> bool {
        self.hub.callers.forget(self.request)
    }
}

impl Drop for GiveUp {
    fn drop(&mut self) {
        self.forget();
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

/// All chains have started.
fn tell_of_chains(hub: &Hub) -> Result<(), RepositoryError> {
    let entities = hub.platform.entities();
    let now_ms = unix_ms();
    entities.repository().for_each(EntityType::RuleChain, &mut |record| {
        let (tenant, chain) = (TenantId(record.row.tenant), RuleChainId(record.row.id));
        let nodes = hub.platform.chain_nodes(chain);
        hub.lifecycle
            .chain_changed((tenant, chain), (None, nodes.as_ref()), now_ms, &|| {
                entities.new_id(now_ms)
            });
    })
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, OpenError> {
    let thread = Builder::new().name(name.to_owned()).spawn(work);
    thread.map_err(OpenError::Thread)
}
