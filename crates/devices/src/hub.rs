//! The components of the platform, shared by all threads, and the work that needs several of them.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use platform::{ChainEvent, Platform};

use crate::activity::ActiveDevices;
use crate::callers::Callers;
use crate::clock::unix_ms;
use crate::delivery::RpcDelivery;
use crate::device_requests::DeviceRequests;
use crate::downlinks::Downlinks;
use crate::external_requests::{ExternalRequests, ExternalSender};
use crate::limits::TransportLimits;
use crate::log::IngestLog;
use crate::options::DevicesOptions;
use crate::ota::OtaPackages;
use crate::outlet::DeviceOutlet;
use crate::pollers::Pollers;
use crate::processed::ProcessedPosition;
use crate::provisioners::Provisioners;
use crate::recorded_events::RecordedEvents;
use crate::sessions::DeviceSessions;
use crate::stats::{DeviceCounters, DevicesStats, Lag};
use crate::stop_signal::StopSignal;
use crate::store_failures::StoreFailures;
use crate::transports::ProfileTransports;
use crate::updates::Watchers;

pub struct Hub {
    options: DevicesOptions,
    platform: Arc<Platform>,
    log: Arc<IngestLog>,
    counters: Arc<DeviceCounters>,
    processed: ProcessedPosition,
    store_failures: StoreFailures,
    stop: StopSignal,
    activity: ActiveDevices,
    limits: TransportLimits,
    transports: Arc<ProfileTransports>,
    sessions: Arc<DeviceSessions>,
    downlinks: Arc<Downlinks>,
    pollers: Arc<Pollers>,
    watchers: Arc<Watchers>,
    rpcs: RpcDelivery,
    callers: Callers,
    device_requests: DeviceRequests,
    external_requests: ExternalRequests,
    events: RecordedEvents,
    packages: OtaPackages,
    provisioners: Provisioners,
}

impl Hub {
    pub fn new(
        options: DevicesOptions,
        platform: Arc<Platform>,
        log: Arc<IngestLog>,
        counters: Arc<DeviceCounters>,
        sender: Option<Arc<dyn ExternalSender>>,
    ) -> Hub {
        let entities = platform.entities();
        let transports = Arc::new(ProfileTransports::new(Arc::clone(entities)));
        let sessions: Arc<DeviceSessions> = Arc::default();
        let downlinks = Arc::new(Downlinks::new(Arc::clone(&sessions), Arc::clone(&counters)));
        let pollers: Arc<Pollers> = Arc::default();
        let rpcs = RpcDelivery::new(
            Arc::clone(entities),
            Arc::clone(&sessions),
            Arc::clone(&transports),
            Arc::clone(&downlinks),
            Arc::clone(&pollers),
        );
        let packages = OtaPackages::new(
            Arc::clone(entities),
            Arc::clone(&sessions),
            Arc::clone(&downlinks),
            Arc::clone(&counters),
        );
        Hub {
            processed: ProcessedPosition::default(),
            store_failures: StoreFailures::default(),
            stop: StopSignal::default(),
            activity: ActiveDevices::default(),
            limits: TransportLimits::new(Arc::clone(&platform), Arc::clone(&counters)),
            watchers: Arc::default(),
            callers: Callers::default(),
            device_requests: DeviceRequests::new(Arc::clone(entities)),
            external_requests: ExternalRequests::new(sender, &log),
            events: RecordedEvents::new(Arc::clone(&platform), Arc::clone(&counters)),
            provisioners: Provisioners::new(Arc::clone(&options.login_limiter)),
            options,
            transports,
            sessions,
            downlinks,
            pollers,
            rpcs,
            packages,
            platform,
            log,
            counters,
        }
    }

    pub fn options(&self) -> &DevicesOptions {
        &self.options
    }

    pub fn platform(&self) -> &Arc<Platform> {
        &self.platform
    }

    pub fn log(&self) -> &IngestLog {
        &self.log
    }

    pub fn counters(&self) -> &DeviceCounters {
        &self.counters
    }

    pub fn processed(&self) -> &ProcessedPosition {
        &self.processed
    }

    pub fn store_failures(&self) -> &StoreFailures {
        &self.store_failures
    }

    pub fn stop(&self) -> &StopSignal {
        &self.stop
    }

    pub fn activity(&self) -> &ActiveDevices {
        &self.activity
    }

    pub fn limits(&self) -> &TransportLimits {
        &self.limits
    }

    pub fn transports(&self) -> &ProfileTransports {
        &self.transports
    }

    pub fn sessions(&self) -> &DeviceSessions {
        &self.sessions
    }

    pub fn downlinks(&self) -> &Downlinks {
        &self.downlinks
    }

    pub fn pollers(&self) -> &Pollers {
        &self.pollers
    }

    pub fn watchers(&self) -> &Arc<Watchers> {
        &self.watchers
    }

    pub fn rpcs(&self) -> &RpcDelivery {
        &self.rpcs
    }

    pub fn callers(&self) -> &Callers {
        &self.callers
    }

    pub fn device_requests(&self) -> &DeviceRequests {
        &self.device_requests
    }

    pub fn external_requests(&self) -> &ExternalRequests {
        &self.external_requests
    }

    pub fn events(&self) -> &RecordedEvents {
        &self.events
    }

    pub fn packages(&self) -> &OtaPackages {
        &self.packages
    }

    pub fn provisioners(&self) -> &Provisioners {
        &self.provisioners
    }

    /// Collects the messages of a platform call, and sends them when it is dropped.
    pub fn outlet(&self, now_ms: i64) -> DeviceOutlet<'_> {
        DeviceOutlet::new(self, now_ms)
    }

    /// Sends an event to the rule chain of its entity.
    pub fn send_event(&self, event: ChainEvent, now_ms: i64) {
        self.platform.send_event(event, now_ms, &mut self.outlet(now_ms));
    }

    /// Resumes rule chains whose RPC requests, external requests or scripts were answered.
    pub fn resume_chains(&self) {
        let now_ms = unix_ms();
        self.platform.take_script_answers(now_ms, &mut self.outlet(now_ms));
        loop {
            let answered = self.rpcs.take_chain_answers();
            let returned = self.external_requests.take_results();
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

    /// Resumes rule chains after a response timeout. Needed while the platform's clock is blocked.
    pub fn expire_waiting_chains(&self) {
        let now_ms = unix_ms();
        self.platform.expire_calls(now_ms, &mut self.outlet(now_ms));
    }

    /// Handles RPC events that occur without a request: new sessions, delivery reports, timeouts.
    pub fn handle_call_events(&self) {
        self.rpcs.deliver_to_new_sessions();
        self.rpcs.take_reports();
        self.rpcs.expire(unix_ms());
        self.send_call_changes_to_chains();
        self.resume_chains();
        self.device_requests.expire();
    }

    /// Sends status changes of persistent requests to the rule chains.
    fn send_call_changes_to_chains(&self) {
        let now_ms = unix_ms();
        for rpc in self.rpcs.take_changed() {
            let event = ChainEvent {
                kind: rpc.status.message_type(),
                entity: rpc.device_id.entity(),
                tenant: rpc.tenant_id,
                metadata: Vec::new(),
                data: serde_json::to_value(&rpc).unwrap_or_default(),
            };
            self.send_event(event, now_ms);
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
            waiting_calls: self.rpcs.count() as u64,
            log_bytes: log.file_bytes,
            log_health: self.log.health(),
            failed_stores: self.store_failures.list(&**self.platform.entities().repository()).len() as u64,
            appended_records_total: counters.appended.load(Relaxed),
            refused_messages_total: counters.refused_messages.load(Relaxed),
            unknown_topics_total: counters.unknown_topics.load(Relaxed),
            dropped_messages_total: counters.dropped_messages.load(Relaxed),
            over_limit_messages_total: counters.over_limit_messages.load(Relaxed),
            sent_downlinks_total: counters.sent_downlinks.load(Relaxed),
            dropped_downlinks_total: counters.dropped_downlinks.load(Relaxed),
            closed_sessions_total: counters.closed_sessions.load(Relaxed),
            failed_batches_total: counters.failed_batches.load(Relaxed),
            dropped_updates_total: self.watchers.dropped_total.load(Relaxed),
            refused_targets_total: self.external_requests.refused_targets_total(),
            unreadable_events_total: counters.unreadable_events.load(Relaxed),
        }
    }
}
