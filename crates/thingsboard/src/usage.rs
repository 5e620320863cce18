//! Resource usage of a tenant, and information about the platform.

use axum::Json;
use platform::UsageCounter;
use platform::model::{Asset, Customer, Dashboard, Device, Entity, RuleChain, User};
use serde_json::{Value, json};

use super::authorities::Authorities;
use super::call::ApiCall;
use super::operation::{HandlerResult, NoQuery, get};
use crate::services::Endpoint;

pub fn endpoints() -> Vec<Endpoint> {
    let all = vec![
        get("/api/usage", "get_usage", Authorities::TENANT_ADMIN, usage)
            .describe(
                "Read the tenant's usage",
                "Numbers of entities, and the counters of this month. `max…` is the limit of the tenant profile; 0: no limit.",
            )
            .returns_json("The usage."),
        get("/api/system/info", "get_system_info", Authorities::SYS_ADMIN, system)
            .describe("Read system information", "The version of this server.")
            .returns_json("The information."),
    ];
    all.into_iter().map(|endpoint| endpoint.tag("Usage")).collect()
}

fn usage(call: &ApiCall, (): (), _: NoQuery, (): ()) -> HandlerResult<Value> {
    let repository = call.entities().repository();
    let own = call.own_entities();
    let count = |kind| repository.count(kind, &own);
    let used = |counter| call.platform().usage(call.tenant(), counter);
    let limits = call.platform().limits(call.tenant()).unwrap_or_default();
    let most = |kind| limits.entities(kind);
    let monthly = |counter| limits.monthly(counter);
    Ok(Json(json!({
        "devices": count(Device::KIND)?, "maxDevices": most(Device::KIND),
        "assets": count(Asset::KIND)?, "maxAssets": most(Asset::KIND),
        "customers": count(Customer::KIND)?, "maxCustomers": most(Customer::KIND),
        "users": count(User::KIND)?, "maxUsers": most(User::KIND),
        "dashboards": count(Dashboard::KIND)?, "maxDashboards": most(Dashboard::KIND),
        "ruleChains": count(RuleChain::KIND)?, "maxRuleChains": most(RuleChain::KIND),
        "transportMessages": used(UsageCounter::TransportMessages), "maxTransportMessages": monthly(UsageCounter::TransportMessages),
        "transportDataPoints": used(UsageCounter::TransportPoints), "maxTransportDataPoints": monthly(UsageCounter::TransportPoints),
        "storageDataPoints": used(UsageCounter::StoredPoints), "maxStorageDataPoints": monthly(UsageCounter::StoredPoints),
        "ruleEngineExecutions": used(UsageCounter::RuleNodes), "maxRuleEngineExecutions": monthly(UsageCounter::RuleNodes),
        "jsExecutions": used(UsageCounter::Scripts), "maxJsExecutions": monthly(UsageCounter::Scripts),
        "alarms": used(UsageCounter::CreatedAlarms), "maxAlarms": monthly(UsageCounter::CreatedAlarms),
        "emails": 0, "maxEmails": 0, "sms": 0, "maxSms": 0,
    })))
}

fn system(call: &ApiCall, (): (), _: NoQuery, (): ()) -> HandlerResult<Value> {
    Ok(Json(
        json!({"version": &*call.services.version, "artifact": "tidewire", "type": "CE"}),
    ))
}
