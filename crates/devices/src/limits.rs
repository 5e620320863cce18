//! Rate limits and monthly quotas of device messages, from the tenants' profiles. Checked when a message arrives,
//! before it is logged. Without limits the check is one load of a flag.
//!
//! A message over a limit is dropped without an acknowledgement, and the connection is closed, as in ThingsBoard.

use std::fmt;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};

use hashbrown::HashMap;
use mqtt::ReasonCode;
use platform::decode::{DecodeLimits, Telemetry, attributes, gateway_parts};
use platform::ids::{DeviceId, TenantId, Uuid};
use platform::{ApiFeature, ApiState, Bucket, Platform, RateLimit, TenantLimits, TransportRates};

use crate::entry::{EntryKind, IngestEntry};
use crate::mutex::lock;
use crate::session_id::is_provisioning;
use crate::stats::DeviceCounters;

type LimitMap<K, V> = HashMap<K, V, foldhash::fast::RandomState>;

/// The limit that was exceeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OverLimit {
    /// The tenant's monthly quota is used up.
    Month,
    Tenant,
    Device,
    /// Too many messages of the tenant wait for its rule chains.
    Scripts,
}

impl OverLimit {
    pub fn description(self) -> &'static str {
        match self {
            OverLimit::Month => "the monthly message quota of the tenant profile is used up",
            OverLimit::Tenant => "the tenant's devices exceed the tenant rate limit of the tenant profile",
            OverLimit::Device => "the device exceeds the device rate limit of its tenant profile",
            OverLimit::Scripts => "too many messages of the tenant wait for its rule chains",
        }
    }

    /// The MQTT 5 reason code.
    pub fn reason(self) -> ReasonCode {
        match self {
            OverLimit::Month | OverLimit::Scripts => ReasonCode::QuotaExceeded,
            OverLimit::Tenant | OverLimit::Device => ReasonCode::MessageRateTooHigh,
        }
    }
}

impl fmt::Display for OverLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.description())
    }
}

impl std::error::Error for OverLimit {}

pub struct TransportLimits {
    platform: Arc<Platform>,
    counters: Arc<DeviceCounters>,
    are_set: AtomicBool,
    inner: Mutex<LimitState>,
}

#[derive(Default)]
struct LimitState {
    version: u64,
    tenants: LimitMap<TenantId, TenantBuckets>,
    /// Tenants with too many messages that wait for rule chains.
    behind_scripts: Vec<TenantId>,
    /// Buckets of recently active devices. A full bucket is removed.
    devices: LimitMap<Uuid, RateBuckets>,
}

struct TenantBuckets {
    limits: Arc<TenantLimits>,
    is_off: bool,
    buckets: RateBuckets,
}

#[derive(Default)]
struct RateBuckets {
    tenant: TenantId,
    messages: Option<Bucket>,
    telemetry_messages: Option<Bucket>,
    telemetry_points: Option<Bucket>,
}

/// Kind of message: telemetry and attributes with the number of values if that is limited, or anything else.
#[derive(Clone, Copy)]
enum MessageKind {
    Values(u64),
    Message,
}

impl TransportLimits {
    pub fn new(platform: Arc<Platform>, counters: Arc<DeviceCounters>) -> TransportLimits {
        TransportLimits {
            platform,
            counters,
            are_set: AtomicBool::new(false),
            inner: Mutex::default(),
        }
    }

    pub fn are_set(&self) -> bool {
        self.are_set.load(Relaxed)
    }

    /// Removes the buckets of inactive devices. Called regularly.
    pub fn remove_full_buckets(&self, now_ms: i64) {
        if self.are_set() {
            let inner = &mut *lock(&self.inner);
            let tenants = &inner.tenants;
            inner.devices.retain(|_, buckets| {
                let limits = tenants.get(&buckets.tenant).map(|tenant| &tenant.limits.device);
                limits.is_some_and(|rates| !buckets.are_full(rates, now_ms))
            });
        }
    }

    /// Reloads the limits, and which tenants have used up their monthly quota.
    pub fn reload(&self) {
        let behind_scripts = self.platform.tenants_behind_scripts();
        let mut inner = lock(&self.inner);
        inner.behind_scripts = behind_scripts;
        let are_set = !inner.tenants.is_empty() || !inner.behind_scripts.is_empty();
        self.are_set.store(are_set, Relaxed);
        drop(inner);
        let version = self.platform.entities().directory().limits_version();
        if !self.are_set() && lock(&self.inner).version == version {
            return;
        }
        if lock(&self.inner).version != version {
            let directory = self.platform.entities().directory();
            let all = directory
                .all_limits()
                .filter(|(_, limits)| limits.has_transport_limits());
            let mut inner = lock(&self.inner);
            inner.version = directory.limits_version();
            inner.tenants = all
                .map(|(tenant, limits)| {
                    let of_tenant = TenantBuckets {
                        limits: Arc::clone(limits),
                        is_off: false,
                        buckets: RateBuckets::default(),
                    };
                    (tenant, of_tenant)
                })
                .collect();
            inner.devices.clear();
            let are_set = !inner.tenants.is_empty() || !inner.behind_scripts.is_empty();
            self.are_set.store(are_set, Relaxed);
        }
        let tenants: Vec<TenantId> = lock(&self.inner).tenants.keys().copied().collect();
        for tenant in tenants {
            let is_off = self.platform.api_state(tenant, ApiFeature::Transport) == ApiState::Disabled;
            if let Some(known) = lock(&self.inner).tenants.get_mut(&tenant) {
                known.is_off = is_off;
            }
        }
    }

    /// Returns the limit that this message exceeds. If there is none, counts the message against the limits.
    pub fn check(&self, entry: &IngestEntry<'_>) -> Option<OverLimit> {
        if !self.are_set() || is_provisioning(entry.device) {
            return None;
        }
        let device = DeviceId(entry.device);
        let tenant = self.platform.entities().directory().device(device)?.tenant;
        let mut inner = lock(&self.inner);
        if inner.behind_scripts.contains(&tenant) {
            DeviceCounters::add(&self.counters.over_limit_messages, 1);
            return Some(OverLimit::Scripts);
        }
        let LimitState { tenants, devices, .. } = &mut *inner;
        let of_tenant = tenants.get_mut(&tenant)?;
        let limits = &of_tenant.limits;
        let counts_values = limits.tenant.telemetry_points.is_some() || limits.device.telemetry_points.is_some();
        let kind = message_kind(entry, counts_values);
        let own = devices.entry(entry.device).or_default();
        own.tenant = tenant;
        let over = if of_tenant.is_off {
            OverLimit::Month
        } else if !of_tenant.buckets.take(&limits.tenant, kind, entry.received_ms) {
            OverLimit::Tenant
        } else if !own.take(&limits.device, kind, entry.received_ms) {
            OverLimit::Device
        } else {
            return None;
        };
        DeviceCounters::add(&self.counters.over_limit_messages, 1);
        Some(over)
    }
}

impl RateBuckets {
    fn parts(&mut self) -> [&mut Option<Bucket>; 3] {
        [
            &mut self.messages,
            &mut self.telemetry_messages,
            &mut self.telemetry_points,
        ]
    }

    fn are_full(&mut self, rates: &TransportRates, now_ms: i64) -> bool {
        let limits = [&rates.messages, &rates.telemetry_messages, &rates.telemetry_points];
        self.parts()
            .into_iter()
            .zip(limits)
            .all(|(bucket, limit)| match (bucket, limit) {
                (Some(bucket), Some(limit)) => bucket.is_full(limit, now_ms),
                _ => true,
            })
    }

    /// Takes tokens for a message. Returns false if too few are left.
    fn take(&mut self, rates: &TransportRates, kind: MessageKind, now_ms: i64) -> bool {
        let take = |bucket: &mut Option<Bucket>, limit: &Option<RateLimit>, count| {
            limit.as_ref().is_none_or(|limit| {
                bucket
                    .get_or_insert_with(|| Bucket::new(limit, now_ms))
                    .take(limit, count, now_ms)
            })
        };
        match kind {
            MessageKind::Message => take(&mut self.messages, &rates.messages, 1),
            MessageKind::Values(count) => {
                take(&mut self.telemetry_messages, &rates.telemetry_messages, 1)
                    && take(&mut self.telemetry_points, &rates.telemetry_points, count)
            }
        }
    }
}

/// A payload that cannot be decoded counts as one value.
fn message_kind(entry: &IngestEntry<'_>, counts_values: bool) -> MessageKind {
    let limits = DecodeLimits::default();
    let count = |counted: Option<usize>| MessageKind::Values(counted.unwrap_or(1).max(1) as u64);
    match entry.kind {
        EntryKind::OwnTopic => MessageKind::Values(1),
        EntryKind::Telemetry | EntryKind::Attributes | EntryKind::GatewayTelemetry | EntryKind::GatewayAttributes
            if !counts_values =>
        {
            MessageKind::Values(1)
        }
        EntryKind::Telemetry => {
            let telemetry = Telemetry::decode(entry.body, entry.received_ms, &limits).ok();
            count(telemetry.map(|telemetry| telemetry.point_count()))
        }
        EntryKind::Attributes => count(attributes(entry.body, &limits).ok().map(|values| values.len())),
        EntryKind::GatewayTelemetry => count(gateway_parts(entry.body).ok().map(|parts| {
            let telemetry = parts
                .iter()
                .filter_map(|part| part.telemetry(entry.received_ms, &limits).ok());
            telemetry.map(|telemetry| telemetry.point_count()).sum()
        })),
        EntryKind::GatewayAttributes => count(gateway_parts(entry.body).ok().map(|parts| {
            let attributes = parts.iter().filter_map(|part| part.attributes(&limits).ok());
            attributes.map(|values| values.len()).sum()
        })),
        _ => MessageKind::Message,
    }
}
