//! What a tenant uses, and what the platform is.

use axum::Json;
use platform::Counter;
use platform::model::{Asset, Customer, Dashboard, Device, Entity, RuleChain, User};
use serde_json::{Value, json};

use super::call::Call;
use super::operation::{NoQuery, Outcome, get};
use crate::endpoint::Endpoint;
use crate::guard::Who;

pub fn endpoints() -> Vec<Endpoint> {
    let all = vec![
        get("/api/usage", "get_usage", Who::TENANT_ADMIN, usage)
            .says(
                "What the tenant uses",
                "Entities, and what was counted this month; `max…` is what the tenant profile allows, 0 for no limit.",
            )
            .returns_json("The numbers."),
        get("/api/system/info", "get_system_info", Who::SYS_ADMIN, system)
            .says("What the platform runs on", "The version of this program.")
            .returns_json("The information."),
    ];
    all.into_iter().map(|endpoint| endpoint.tag("Usage")).collect()
}

fn usage(call: &Call, (): (), _: NoQuery, (): ()) -> Outcome<Value> {
    let repository = call.entities().repository();
    let own = call.own();
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
        "transportMessages": used(Counter::TransportMessages), "maxTransportMessages": monthly(Counter::TransportMessages),
        "transportDataPoints": used(Counter::TransportPoints), "maxTransportDataPoints": monthly(Counter::TransportPoints),
        "storageDataPoints": used(Counter::StoredPoints), "maxStorageDataPoints": monthly(Counter::StoredPoints),
        "ruleEngineExecutions": used(Counter::RuleNodes), "maxRuleEngineExecutions": monthly(Counter::RuleNodes),
        "jsExecutions": used(Counter::Scripts), "maxJsExecutions": monthly(Counter::Scripts),
        "alarms": used(Counter::CreatedAlarms), "maxAlarms": monthly(Counter::CreatedAlarms),
        "emails": 0, "maxEmails": 0, "sms": 0, "maxSms": 0,
    })))
}

fn system(call: &Call, (): (), _: NoQuery, (): ()) -> Outcome<Value> {
    Ok(Json(
        json!({"version": call.app.node().version, "artifact": "tidewire", "type": "CE"}),
    ))
}
