//! What a tenant uses, and what the platform is.

use axum::Json;
use platform::Counter;
use platform::model::{Asset, Customer, Dashboard, Device, Entity, User};
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
                "Entities, and what was counted this month. There are no limits: `max…` is 0.",
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
    Ok(Json(json!({
        "devices": count(Device::KIND)?, "maxDevices": 0,
        "assets": count(Asset::KIND)?, "maxAssets": 0,
        "customers": count(Customer::KIND)?, "maxCustomers": 0,
        "users": count(User::KIND)?, "maxUsers": 0,
        "dashboards": count(Dashboard::KIND)?, "maxDashboards": 0,
        "transportMessages": used(Counter::TransportMessages), "maxTransportMessages": 0,
        "transportDataPoints": used(Counter::TransportPoints),
        "storageDataPoints": used(Counter::StoredPoints),
        "ruleEngineExecutions": used(Counter::RuleNodes),
        "jsExecutions": used(Counter::Scripts), "maxJsExecutions": 0,
        "alarms": used(Counter::CreatedAlarms), "maxAlarms": 0,
        "emails": 0, "maxEmails": 0, "sms": 0, "maxSms": 0,
    })))
}

fn system(call: &Call, (): (), _: NoQuery, (): ()) -> Outcome<Value> {
    Ok(Json(
        json!({"version": call.app.node().version, "artifact": "tidewire", "type": "CE"}),
    ))
}
