//! The device platform as one object: opened once, used by the API and the listeners, shut down.

use std::net::IpAddr;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use broker::inbox::Inbox;
use journal::{LogState, StorageDirectory};
use platform::credentials::{MqttLogin, PROVISION_NAME};
use platform::decode::{AttributesRequest, OtaKind, PayloadFormat, Provision, TopicForm};
use platform::entities::{Entities, EntityError, ReceptionMode};
use platform::ids::{DeviceId, DeviceProfileId, EntityId, RuleChainId, RuleNodeId, TenantId, Uuid};
use platform::model::{AttributeScope, OtaPackage, Rpc};
use platform::{Platform, SqliteRepository};
use timeseries::ColumnStore;
use tokio::sync::oneshot;
use tokio::sync::oneshot::error::TryRecvError;

use crate::calls::{DeviceRpc, RpcAnswer, RpcError};
use crate::clock::unix_ms;
use crate::entry::{EntryKind, IngestEntry, entity_type_number};
use crate::error_chain::error_chain;
use crate::events::NodeEvent;
use crate::external_requests::ExternalSender;
use crate::follow_up::{self, OtaNotificationError};
use crate::hub::Hub;
use crate::inbox::DeviceInbox;
use crate::ingest::Ingest;
use crate::lifecycle::EntityEvent;
use crate::limits::OverLimit;
use crate::log::{IngestLog, LogFull, PendingAppend};
use crate::mutex::lock;
use crate::open_error::DevicesOpenError;
use crate::options::{DIRECTORY_NAME, DevicesOptions};
use crate::ota::OtaError;
use crate::outlet::DeviceOutlet;
use crate::requests::RequestHandler;
use crate::session_id::client_id;
use crate::sessions::DownlinkKind;
use crate::stats::{DeviceCounters, DevicesStats};
use crate::updates::Updates;
use crate::upkeep;

/// Longest time that a request waits for earlier acknowledged messages to be processed.
const CATCH_UP: Duration = Duration::from_secs(10);
/// Time between looks of a blocking caller at whether its change is processed.
const PROCESSED_POLL: Duration = Duration::from_millis(5);

/// Extra wait after a request's deadline, so that the caller gets the reason for the failure.
const REASON_WAIT: Duration = Duration::from_secs(1);

/// The identity of a connecting device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceLogin {
    pub session: Uuid,
    /// Unique among all sessions of the broker.
    pub client_id: Box<str>,
    /// Display name; never a secret.
    pub name: Box<str>,
}

/// The running device platform. Stops on [`Devices::shut_down`] or when dropped.
pub struct Devices {
    hub: Arc<Hub>,
    requests: RequestHandler,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Devices {
    /// Opens or creates the platform in `data_dir`. Replays unprocessed log records on a separate thread.
    pub fn open(data_dir: &Path, options: DevicesOptions) -> Result<Arc<Devices>, DevicesOpenError> {
        Devices::open_with(data_dir, options, None)
    }

    /// As [`Devices::open`], with a sender for the external requests of rule chains.
    pub fn open_with(
        data_dir: &Path,
        options: DevicesOptions,
        sender: Option<Arc<dyn ExternalSender>>,
    ) -> Result<Arc<Devices>, DevicesOpenError> {
        let directory = data_dir.join(DIRECTORY_NAME);
        std::fs::create_dir_all(&directory).map_err(|error| DevicesOpenError::Directory(Box::new(error)))?;
        let platform = open_platform(&directory, &options)?;
        let counters: Arc<DeviceCounters> = Arc::default();
        let (log, found) = IngestLog::open(&directory, options.log.clone(), Arc::clone(&counters))?;
        let needed = platform.replay_position().max(platform.applied_position());
        if found.next.0 + 1 < needed.0 {
            return Err(DevicesOpenError::LogIsOlder {
                ends_at: found.next.0,
                needed: needed.0,
                data_dir: data_dir.to_owned(),
            });
        }
        let hub = Arc::new(Hub::new(options, platform, Arc::new(log), counters, sender));
        hub.counters().read_lsn.store(found.follower.next().0, Relaxed);
        hub.processed().set_processed(found.follower.next());
        hub.transports().refresh();
        hub.limits().reload();
        hub.rpcs()
            .restore()
            .map_err(|error| DevicesOpenError::Repository(Box::new(error)))?;
        let events = hub.events();
        events
            .restore()
            .and_then(|()| events.record_chain_starts())
            .map_err(|error| DevicesOpenError::Repository(Box::new(error)))?;
        let is_flush_wanted: Arc<AtomicBool> = Arc::default();
        let ingest = Ingest::new(Arc::clone(&hub), found, Arc::clone(&is_flush_wanted));
        let of_upkeep = Arc::clone(&hub);
        let of_packages = Arc::clone(&hub);
        let threads = vec![
            spawn("devices", move || ingest.run())?,
            spawn("timeseries", move || upkeep::run(&of_upkeep, &is_flush_wanted))?,
            spawn("packages", move || of_packages.packages().run())?,
        ];
        Ok(Arc::new(Devices {
            requests: RequestHandler::new(Arc::clone(&hub)),
            hub,
            threads: Mutex::new(threads),
        }))
    }

    pub fn platform(&self) -> &Arc<Platform> {
        self.hub.platform()
    }

    pub fn entities(&self) -> &Arc<Entities> {
        self.hub.platform().entities()
    }

    /// Applies a saved or deleted profile to messages from now on.
    pub fn reload_profile(&self, id: DeviceProfileId) {
        self.hub.platform().reload_profile(id);
        self.hub.transports().refresh();
    }

    /// Sets the network handle, so that messages can be sent to devices.
    pub fn serve(&self, net: net::ServerHandle) {
        self.hub.log().serve(net.clone());
        self.hub.downlinks().serve(net);
    }

    /// Notifies devices whose packages differ after a device or a device profile was saved.
    pub fn notify_ota(&self, id: Uuid) -> Result<(), OtaNotificationError> {
        follow_up::notify_ota(&self.hub, id, false)
    }

    /// Makes the inbox of a shard for messages of devices.
    pub fn inbox(&self, shard: u16) -> Box<dyn Inbox> {
        Box::new(DeviceInbox::new(Arc::clone(&self.hub), shard))
    }

    /// Returns an outlet for platform calls. Dropping it sends the collected messages, which may block briefly.
    pub fn outlet(&self) -> DeviceOutlet<'_> {
        self.hub.outlet(unix_ms())
    }

    /// Returns the device's identity if the login is that of a device.
    pub fn device_login(&self, login: &MqttLogin<'_>) -> Option<DeviceLogin> {
        let directory = self.entities().directory();
        let device = directory.authenticate(login)?;
        device_login(device, &directory)
    }

    /// Authenticates by the SHA3 hash of the client certificate ([`platform::credentials::sha3_hash`]).
    pub fn certificate_login(&self, hash: &str) -> Option<DeviceLogin> {
        let directory = self.entities().directory();
        let device = directory.device_of_certificate(hash)?;
        device_login(device, &directory)
    }

    /// Returns a session that may only send provisioning requests. Wrong secrets are limited per address.
    pub fn provision_login(&self, login: &MqttLogin<'_>, address: IpAddr) -> Option<DeviceLogin> {
        if login.user_name != Some(PROVISION_NAME) && login.client_id != PROVISION_NAME {
            return None;
        }
        let session = self.hub.provisioners().new_session(address);
        Some(DeviceLogin {
            session,
            client_id: client_id(session).into(),
            name: PROVISION_NAME.into(),
        })
    }

    /// Returns a subscription to changes of entities.
    pub fn subscribe(&self, queue: usize) -> Updates {
        Updates::new(self.hub.watchers(), queue)
    }

    /// Sends an RPC request along the device's rule chain, whose node sends it to the device once it is connected.
    ///
    /// The answer is JSON: the device's response; nothing for a one-way request, once it is sent; the id of a
    /// persistent request, once it is stored. Runs the chain, and writes the repository for a persistent request, so
    /// it may block.
    pub fn call_device(&self, device: DeviceId, call: &DeviceRpc) -> PendingCall {
        let now_ms = unix_ms();
        let tenant = self.entities().directory().tenant_of(device).unwrap_or_default();
        let request = self.entities().new_id(now_ms);
        let receiver = self.hub.callers().wait(request, tenant);
        let waiting = PendingCall {
            receiver,
            begun_ms: now_ms,
            begun_at: Instant::now(),
            guard: CallerGuard {
                hub: Arc::clone(&self.hub),
                request,
            },
        };
        let event = call.message(request, device, tenant);
        self.hub.send_event(event, now_ms);
        self.hub.resume_chains();
        waiting
    }

    /// Wakes the thread that continues rule chains, because scripts have answered.
    pub fn wake(&self) {
        self.hub.log().wake();
    }

    /// Drops work that waits for a deleted device.
    pub fn device_deleted(&self, device: DeviceId) {
        self.platform().device_deleted(device);
        self.hub.rpcs().device_deleted(device);
        self.hub.log().wake();
    }

    /// Deletes a persistent request, which is then not sent. Writes the repository.
    pub fn delete_call(&self, rpc: &Rpc) -> Result<(), EntityError> {
        self.hub.rpcs().delete(rpc)?;
        self.hub.log().wake();
        Ok(())
    }

    /// Whether the device itself has a connected session.
    pub fn is_online(&self, device: DeviceId) -> bool {
        self.hub.sessions().is_online(device.0)
    }

    /// Records activity of a device that sends nothing to be stored, for example a request or a poll.
    pub fn record_activity(&self, device: DeviceId) {
        self.hub.activity().record([(device.0, unix_ms())]);
    }

    /// Checks the limits of the device's tenant, and counts the message against them.
    pub fn check_limits(&self, entry: &IngestEntry<'_>) -> Result<(), OverLimit> {
        self.hub.limits().check(entry).map_or(Ok(()), Err)
    }

    /// Applies a changed tenant or tenant profile.
    pub fn limits_changed(&self) {
        self.hub.limits().reload();
    }

    /// Appends a record that did not come from a listener. The returned future completes when the record is durable.
    pub fn append(&self, entry: &IngestEntry<'_>) -> Result<PendingAppend, LogFull> {
        self.hub.log().append_entry(entry)
    }

    /// Stores telemetry of any entity without running a rule chain. The caller has validated the JSON. `ttl_s`: time
    /// to live; 0 uses the tenant profile's.
    pub fn save_telemetry(
        &self,
        entity: EntityId,
        body: &[u8],
        ttl_s: u32,
        now_ms: i64,
    ) -> Result<PendingAppend, LogFull> {
        let with_ttl;
        let (kind_of_entry, body) = match ttl_s {
            0 => (EntryKind::Save, body),
            ttl_s => {
                with_ttl = [&ttl_s.to_le_bytes(), body].concat();
                (EntryKind::SaveWithTtl, &*with_ttl)
            }
        };
        self.append(&IngestEntry {
            id: entity_type_number(entity.kind),
            ..IngestEntry::new(kind_of_entry, entity.id, now_ms, body)
        })
    }

    /// Saves a user's attribute change of any entity, after all earlier acknowledged messages. The caller has
    /// validated the JSON. Never waits.
    pub fn save_attributes(
        &self,
        of: (EntityId, AttributeScope),
        body: &[u8],
        now_ms: i64,
    ) -> Result<WaitingChange, LogFull> {
        self.change_attributes(&IngestEntry::of_attributes(EntryKind::SaveAttributes, of, now_ms, body))
    }

    /// As [`Devices::save_attributes`].
    pub fn delete_attributes(
        &self,
        of: (EntityId, AttributeScope),
        keys: &[String],
        now_ms: i64,
    ) -> Result<WaitingChange, LogFull> {
        let body = serde_json::json!(keys).to_string();
        let body = body.as_bytes();
        self.change_attributes(&IngestEntry::of_attributes(
            EntryKind::DeleteAttributes,
            of,
            now_ms,
            body,
        ))
    }

    fn change_attributes(&self, entry: &IngestEntry<'_>) -> Result<WaitingChange, LogFull> {
        let pending = self.append(entry)?;
        Ok(WaitingChange {
            entity: entry.device,
            processed: self.hub.processed().wait_for_records(pending.range()),
            pending,
        })
    }

    /// Waits until everything acknowledged so far is processed. Returns false if that takes longer than a request can
    /// wait.
    pub async fn wait_until_processed(&self) -> bool {
        let processed = self.hub.processed().wait_for(self.hub.log().committed());
        tokio::time::timeout(CATCH_UP, processed).await.is_ok()
    }

    /// Long poll over HTTP: the device's next RPC request or attribute change. `None`: too many clients wait.
    pub fn poll_next(&self, device: DeviceId, wanted: DownlinkKind) -> Option<oneshot::Receiver<String>> {
        let waits = self.hub.pollers().wait(device, wanted);
        if wanted == DownlinkKind::RpcRequest {
            self.hub.rpcs().add_session(device.0);
            self.hub.log().wake();
        }
        waits
    }

    /// Handles a device's response to an RPC request.
    pub fn handle_response(&self, device: DeviceId, id: i32, body: &[u8]) {
        self.hub.rpcs().handle_response(device, id, body, ReceptionMode::Live);
        self.hub.resume_chains();
    }

    /// Sends a device's RPC request to the rule chain. Returns the chain's JSON response, or `None` on timeout.
    pub async fn ask(&self, device: DeviceId, body: &[u8], timeout: Duration) -> Result<Option<String>, LogFull> {
        let added = self.hub.device_requests().add(device, timeout);
        let (id, receiver) = added.map_err(|error| LogFull {
            reason: error.to_string(),
        })?;
        let entry = IngestEntry {
            id,
            form: TopicForm::Short(PayloadFormat::Json),
            ..IngestEntry::new(EntryKind::RpcRequest, device.0, unix_ms(), body)
        };
        self.append(&entry)?.await?;
        Ok(receiver.await.ok().and_then(Result::ok).flatten())
    }

    /// Allows a user to claim the device.
    pub fn claim(&self, device: DeviceId, body: &[u8]) -> Result<(), String> {
        self.requests
            .claim(device, body, (ReceptionMode::Live, unix_ms()))
            .map_err(|error| error.to_string())
    }

    /// Returns a chunk of the device's package with this title and version. A size of 0 means the whole package.
    pub fn ota_chunk(
        &self,
        device: DeviceId,
        kind: OtaKind,
        (title, version): (&str, &str),
        (size, chunk): (usize, usize),
    ) -> Result<(OtaPackage, Vec<u8>), OtaError> {
        let package = self.hub.packages().package(device, kind)?;
        if (package.title.as_str(), package.version.as_str()) != (title, version) {
            return Err(OtaError::NotFound);
        }
        let bytes = self.hub.packages().chunk(&package, size, chunk)?;
        Ok((package, bytes))
    }

    /// Returns the device's attributes in the device API's JSON format. Reads the repository, so it may block.
    pub fn attributes_of(&self, device: DeviceId, request: &AttributesRequest) -> Result<String, EntityError> {
        self.requests.attributes_of(device, request)
    }

    /// Answers a provisioning request. Also returns whether its key and secret are known. Writes the repository, so it
    /// blocks.
    pub fn provision(&self, request: &Provision) -> (String, Option<bool>) {
        self.requests.answer_provisioning(request, unix_ms())
    }

    /// Returns the debug events of a rule node of this tenant, newest first.
    pub fn events(&self, tenant: TenantId, node: RuleNodeId) -> Vec<NodeEvent> {
        self.hub.events().of_node(tenant, node)
    }

    pub fn clear_events(&self, tenant: TenantId, node: RuleNodeId) {
        self.hub.events().clear_node(tenant, node);
    }

    /// Returns lifecycle, error and statistics events of a rule chain, node or device, newest first.
    pub fn entity_events(&self, tenant: TenantId, entity: EntityId) -> Vec<EntityEvent> {
        self.hub.events().of_entity(tenant, entity)
    }

    /// Turns rule node counters since the last call into statistics events. Runs every hour.
    pub fn record_statistics(&self, now_ms: i64) {
        self.hub.events().record_statistics(now_ms);
    }

    pub fn clear_entity_events(&self, tenant: TenantId, entity: EntityId) {
        self.hub.events().clear_entity(tenant, entity);
    }

    /// Applies a rule chain that was saved, made the root, or deleted.
    pub fn reload_chain(
        &self,
        tenant: TenantId,
        id: RuleChainId,
        now_ms: i64,
    ) -> Result<(), platform::PlatformOpenError> {
        let platform = self.platform();
        let before = platform.chain_nodes(id);
        platform.reload_chain(id, now_ms)?;
        self.hub.events().chain_changed(tenant, id, before.as_ref(), now_ms);
        Ok(())
    }

    /// Closes the connection of a device that was deleted, or whose credentials changed.
    pub fn disconnect(&self, device: DeviceId) {
        let reason = "the device or its credentials were changed";
        self.hub.downlinks().close(device.0, reason);
    }

    pub fn stats(&self) -> DevicesStats {
        self.hub.stats()
    }

    /// State of the ingest log.
    pub fn log_state(&self) -> LogState {
        self.hub.log().state()
    }

    /// Returns a sentence for each store of the platform whose last write failed, with the error. The ingest log is not
    /// included.
    pub fn failed_stores(&self) -> Vec<String> {
        let repository = self.hub.platform().entities().repository();
        self.hub.store_failures().list(&**repository)
    }

    /// Processes and writes everything received. Call after the listeners have stopped. A second call does nothing.
    pub fn shut_down(&self) {
        let threads = std::mem::take(&mut *lock(&self.threads));
        if threads.is_empty() {
            return;
        }
        self.hub.stop().set();
        self.hub.log().wake();
        self.hub.packages().end();
        for thread in threads {
            // The panicking thread has already reported its panic.
            let _ = thread.join();
        }
        self.hub.events().save();
        upkeep::checkpoint_entities(&self.hub);
        self.hub.log().shut_down();
    }
}

impl Drop for Devices {
    fn drop(&mut self) {
        self.shut_down();
    }
}

/// A user's attribute change that is not processed yet.
pub struct WaitingChange {
    entity: Uuid,
    pending: PendingAppend,
    processed: oneshot::Receiver<Option<String>>,
}

/// A user's attribute change was not applied as a whole.
#[derive(Debug)]
pub enum AttributeChangeError {
    Log(LogFull),
    /// Some or all attributes were not stored.
    Refused(String),
}

impl WaitingChange {
    /// Blocks until the change is durable, and until it is readable or the time has come. After that a refusal is not
    /// reported.
    pub fn wait_until(mut self, until: Instant) -> Result<(), AttributeChangeError> {
        self.pending.wait().map_err(AttributeChangeError::Log)?;
        loop {
            match self.processed.try_recv() {
                Ok(Some(reason)) => return Err(AttributeChangeError::Refused(reason)),
                Err(TryRecvError::Empty) if Instant::now() < until => std::thread::sleep(PROCESSED_POLL),
                _ => return Ok(()),
            }
        }
    }

    /// Waits until the change is durable and readable. Returns without an error if only the processing takes longer
    /// than a request can wait. After an error the change may still be applied.
    pub async fn done(self) -> Result<(), AttributeChangeError> {
        let pending = tokio::time::timeout(CATCH_UP, self.pending).await;
        let committed = pending.unwrap_or_else(|_| {
            Err(LogFull {
                reason: "the disk did not complete the write in time".to_owned(),
            })
        });
        committed.map_err(AttributeChangeError::Log)?;
        match tokio::time::timeout(CATCH_UP, self.processed).await {
            Ok(Ok(Some(reason))) => return Err(AttributeChangeError::Refused(reason)),
            Ok(_) => {}
            Err(_) => {
                tracing::info!(entity = %self.entity, "attribute change of a user is waiting behind device messages");
            }
        }
        Ok(())
    }
}

/// An RPC request that waits for its answer.
pub struct PendingCall {
    receiver: oneshot::Receiver<RpcAnswer>,
    /// When the call began, by both clocks. The system's clock may be set back while the call waits.
    begun_ms: i64,
    begun_at: Instant,
    guard: CallerGuard,
}

impl PendingCall {
    /// Returns the answer, or the reason why there is none by the deadline.
    pub async fn answer(self, by_ms: i64) -> RpcAnswer {
        let within = time_left(by_ms, self.begun_ms, self.begun_at.elapsed()) + REASON_WAIT;
        match tokio::time::timeout(within, self.receiver).await {
            Ok(answer) => answer.unwrap_or(Err(RpcError::Stopped)),
            Err(_) if self.guard.forget() => Err(RpcError::NotSent),
            Err(_) => Err(RpcError::Timeout),
        }
    }
}

/// Returns the time until the deadline of a call that began at `begun_ms`.
fn time_left(by_ms: i64, begun_ms: i64, elapsed: Duration) -> Duration {
    let limit_ms = u64::try_from(by_ms.saturating_sub(begun_ms)).unwrap_or(0);
    Duration::from_millis(limit_ms).saturating_sub(elapsed)
}

/// Removes the caller of a request when it stops waiting.
struct CallerGuard {
    hub: Arc<Hub>,
    request: Uuid,
}

impl CallerGuard {
    /// Returns true if no node of a rule chain has taken the request.
    fn forget(&self) -> bool {
        self.hub.callers().forget(self.request)
    }
}

impl Drop for CallerGuard {
    fn drop(&mut self) {
        self.forget();
    }
}

fn device_login(device: DeviceId, directory: &platform::DeviceDirectory) -> Option<DeviceLogin> {
    Some(DeviceLogin {
        session: device.0,
        client_id: client_id(device.0).into(),
        name: directory.device(device)?.name.clone(),
    })
}

fn open_platform(directory: &Path, options: &DevicesOptions) -> Result<Arc<Platform>, DevicesOpenError> {
    let repository =
        SqliteRepository::open(directory).map_err(|error| DevicesOpenError::Repository(Box::new(error)))?;
    let check = repository.integrity_check();
    tracing::info!(
        took_ms = check.took.as_millis() as u64,
        is_complete = check.is_complete,
        "entity database checked"
    );
    let entities =
        Entities::open(Arc::new(repository)).map_err(|error| DevicesOpenError::Repository(Box::new(error)))?;
    let disk = StorageDirectory::open(directory, timeseries::DIRECTORY_NAME)
        .map_err(|error| DevicesOpenError::Directory(Box::new(error)))?
        .counted_as(timeseries::StoreKind::Timeseries);
    let mut seed = [0; 8];
    getrandom::fill(&mut seed).map_err(|error| DevicesOpenError::Store(error.to_string().into()))?;
    let config = timeseries::StoreConfig {
        hash_seed: u64::from_ne_bytes(seed),
        ..options.store
    };
    let store = ColumnStore::open(Arc::new(disk), config).map_err(|error| match error.is_loss() {
        true => DevicesOpenError::SeriesLost {
            problem: error_chain(&error),
            data_dir: directory.parent().unwrap_or(Path::new(".")).to_owned(),
        },
        false => DevicesOpenError::Store(Box::new(error)),
    })?;
    let platform = Platform::open(Arc::new(entities), Arc::new(store), options.platform.clone());
    platform.map(Arc::new).map_err(DevicesOpenError::Platform)
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, DevicesOpenError> {
    let thread = Builder::new().name(name.to_owned()).spawn(work);
    thread.map_err(DevicesOpenError::Thread)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_left_of_a_call_is_measured_by_the_monotonic_clock() {
        let second = Duration::from_secs(1);
        assert_eq!(time_left(15_000, 10_000, Duration::ZERO), 5 * second);
        assert_eq!(time_left(15_000, 10_000, 2 * second), 3 * second);
        assert_eq!(time_left(15_000, 10_000, 6 * second), Duration::ZERO);
        assert_eq!(time_left(9000, 10_000, Duration::ZERO), Duration::ZERO);
    }
}
