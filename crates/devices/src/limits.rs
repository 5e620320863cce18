//! Rates and monthly amounts of what devices say, by the profiles of their tenants: looked at when a message comes, before it is in
//! the log. Without limits that is one load of a flag.
//!
//! A device that is over a limit is not heard: its message is dropped without an acknowledgement and its connection ends, as
//! ThingsBoard does it.

use std::fmt;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hashbrown::HashMap;
use mqtt::ReasonCode;
use platform::decode::{Limits, Telemetry, attributes, gateway_parts};
use platform::ids::{DeviceId, TenantId, Uuid};
use platform::{ApiFeature, ApiState, Bucket, RateLimit, TenantLimits, TransportRates};

use crate::entry::{Entry, Kind};
use crate::hub::{Hub, is_provisioning};
use crate::stats::Counters;

type Map<K, V> = HashMap<K, V, foldhash::fast::RandomState>;

/// Which limit it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OverLimit {
    /// What the tenant may use this month is used.
    Month,
    Tenant,
    Device,
}

impl OverLimit {
    pub fn because(self) -> &'static str {
        match self {
            OverLimit::Month => "the devices of the tenant may say nothing more this month (tenant profile)",
            OverLimit::Tenant => "the devices of the tenant say more than the rate limit of its tenant profile",
            OverLimit::Device => "the device says more than the rate limit of its tenant profile",
        }
    }

    /// Of MQTT 5.
    pub fn reason(self) -> ReasonCode {
        match self {
            OverLimit::Month => ReasonCode::QuotaExceeded,
            OverLimit::Tenant | OverLimit::Device => ReasonCode::MessageRateTooHigh,
        }
    }
}

impl fmt::Display for OverLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.because())
    }
}

impl std::error::Error for OverLimit {}

#[derive(Default)]
pub struct TransportLimits {
    are_set: AtomicBool,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    version: u64,
    tenants: Map<TenantId, OfTenant>,
    /// Of devices that have said something of late: a bucket that is full again is forgotten.
    devices: Map<Uuid, Buckets>,
}

struct OfTenant {
    limits: Arc<TenantLimits>,
    is_off: bool,
    buckets: Buckets,
}

#[derive(Default)]
struct Buckets {
    tenant: TenantId,
    messages: Option<Bucket>,
    telemetry_messages: Option<Bucket>,
    telemetry_points: Option<Bucket>,
}

/// Telemetry and attributes, with the number of values if it matters; or anything else.
#[derive(Clone, Copy)]
enum Said {
    Values(u64),
    Message,
}

impl TransportLimits {
    pub fn are_set(&self) -> bool {
        self.are_set.load(Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Called now and then.
    pub fn forget_full(&self, now_ms: i64) {
        if self.are_set() {
            let inner = &mut *self.lock();
            let tenants = &inner.tenants;
            inner.devices.retain(|_, buckets| {
                let limits = tenants.get(&buckets.tenant).map(|tenant| &tenant.limits.device);
                limits.is_some_and(|rates| !buckets.are_full(rates, now_ms))
            });
        }
    }
}

impl Buckets {
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

    /// Whether that much is left.
    fn take(&mut self, rates: &TransportRates, said: Said, now_ms: i64) -> bool {
        let take = |bucket: &mut Option<Bucket>, limit: &Option<RateLimit>, count| {
            limit.as_ref().is_none_or(|limit| {
                bucket
                    .get_or_insert_with(|| Bucket::new(limit, now_ms))
                    .take(limit, count, now_ms)
            })
        };
        match said {
            Said::Message => take(&mut self.messages, &rates.messages, 1),
            Said::Values(count) => {
                take(&mut self.telemetry_messages, &rates.telemetry_messages, 1)
                    && take(&mut self.telemetry_points, &rates.telemetry_points, count)
            }
        }
    }
}

impl Hub {
    /// What limits are in force, and which tenants have used up their month.
    pub fn look_at_limits(&self) {
        let version = self.platform.entities().directory().limits_version();
        if !self.limits.are_set() && self.limits.lock().version == version {
            return;
        }
        if self.limits.lock().version != version {
            let directory = self.platform.entities().directory();
            let all = directory
                .all_limits()
                .filter(|(_, limits)| limits.has_transport_limits());
            let mut inner = self.limits.lock();
            inner.version = directory.limits_version();
            inner.tenants = all
                .map(|(tenant, limits)| {
                    let of_tenant = OfTenant {
                        limits: Arc::clone(limits),
                        is_off: false,
                        buckets: Buckets::default(),
                    };
                    (tenant, of_tenant)
                })
                .collect();
            inner.devices.clear();
            self.limits.are_set.store(!inner.tenants.is_empty(), Relaxed);
        }
        let tenants: Vec<TenantId> = self.limits.lock().tenants.keys().copied().collect();
        for tenant in tenants {
            let is_off = self.platform.api_state(tenant, ApiFeature::Transport) == ApiState::Disabled;
            if let Some(known) = self.limits.lock().tenants.get_mut(&tenant) {
                known.is_off = is_off;
            }
        }
    }

    /// Whether the device that says this is over a limit; if not, it has used up that much.
    pub fn over_limit(&self, entry: &Entry<'_>) -> Option<OverLimit> {
        if is_provisioning(entry.device) {
            return None;
        }
        let device = DeviceId(entry.device);
        let tenant = self.platform.entities().directory().device(device)?.tenant;
        let mut inner = self.limits.lock();
        let Inner { tenants, devices, .. } = &mut *inner;
        let of_tenant = tenants.get_mut(&tenant)?;
        let limits = &of_tenant.limits;
        let counts_values = limits.tenant.telemetry_points.is_some() || limits.device.telemetry_points.is_some();
        let said = said(entry, counts_values);
        let own = devices.entry(entry.device).or_default();
        own.tenant = tenant;
        let over = if of_tenant.is_off {
            OverLimit::Month
        } else if !of_tenant.buckets.take(&limits.tenant, said, entry.received_ms) {
            OverLimit::Tenant
        } else if !own.take(&limits.device, said, entry.received_ms) {
            OverLimit::Device
        } else {
            return None;
        };
        Counters::add(&self.counters.over_limit_messages, 1);
        Some(over)
    }
}

/// What is not understood, and a payload that is not JSON, counts as one value.
fn said(entry: &Entry<'_>, counts_values: bool) -> Said {
    let limits = Limits::default();
    let count = |counted: Option<usize>| Said::Values(counted.unwrap_or(1).max(1) as u64);
    match entry.kind {
        Kind::OwnTopic => Said::Values(1),
        Kind::Telemetry | Kind::Attributes | Kind::GatewayTelemetry | Kind::GatewayAttributes if !counts_values => {
            Said::Values(1)
        }
        Kind::Telemetry => {
            let telemetry = Telemetry::decode(entry.body, entry.received_ms, &limits).ok();
            count(telemetry.map(|telemetry| telemetry.point_count()))
        }
        Kind::Attributes => count(attributes(entry.body, &limits).ok().map(|values| values.len())),
        Kind::GatewayTelemetry => count(gateway_parts(entry.body).ok().map(|parts| {
            let telemetry = parts
                .iter()
                .filter_map(|part| part.telemetry(entry.received_ms, &limits).ok());
            telemetry.map(|telemetry| telemetry.point_count()).sum()
        })),
        Kind::GatewayAttributes => count(gateway_parts(entry.body).ok().map(|parts| {
            let attributes = parts.iter().filter_map(|part| part.attributes(&limits).ok());
            attributes.map(|values| values.len()).sum()
        })),
        _ => Said::Message,
    }
}
