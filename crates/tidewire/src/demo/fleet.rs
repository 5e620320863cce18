//! The entities of a demo: profiles with alarm rules, devices, the building that contains them, and a dashboard. All
//! names begin with [`PREFIX`], by which they are found again.

use serde_json::{Value, json};

use super::rest::DemoSession;
use super::simulation::{DemoDevice, DemoDeviceKind};

const PREFIX: &str = "Demo ";
const STORES: u32 = 6;
const METERS: u32 = 4;

/// Lists of the created entities, and the paths for deleting them: devices before their profiles.
const KINDS: [(&str, &str, &str); 4] = [
    ("/api/tenant/dashboards", "title", "/api/dashboard"),
    ("/api/tenant/devices", "name", "/api/device"),
    ("/api/tenant/assets", "name", "/api/asset"),
    ("/api/deviceProfiles", "name", "/api/deviceProfile"),
];

pub fn make(session: &DemoSession) -> Result<Vec<DemoDevice>, String> {
    let store = id(&session.post("/api/deviceProfile", &store_profile())?)?;
    let meter = id(&session.post("/api/deviceProfile", &meter_profile())?)?;
    let building = session.post(
        "/api/asset",
        &json!({"name": format!("{PREFIX}warehouse"), "type": "default", "label": "All simulated devices"}),
    )?;
    let mut devices = Vec::new();
    let mut ids: Vec<(DemoDeviceKind, String)> = Vec::new();
    for (kind, what, count, profile) in [
        (DemoDeviceKind::ColdStore, "cold store", STORES, &store),
        (DemoDeviceKind::Meter, "water meter", METERS, &meter),
    ] {
        for number in 1..=count {
            let name = format!("{PREFIX}{what} {number}");
            let token = format!("demo-{}-{number}", what.replace(' ', "-"));
            let device = json!({
                "name": name,
                "label": format!("Simulated {what}"),
                "deviceProfileId": {"entityType": "DEVICE_PROFILE", "id": profile},
            });
            let made = session.post(&format!("/api/device?accessToken={token}"), &device)?;
            let relation = json!({"from": building["id"], "to": made["id"], "type": "Contains", "typeGroup": "COMMON"});
            session.post("/api/relation", &relation)?;
            ids.push((kind, id(&made)?));
            devices.push(DemoDevice { kind, number, token });
        }
    }
    session.post("/api/dashboard", &dashboard(&ids))?;
    Ok(devices)
}

/// How many devices there were.
pub fn remove(session: &DemoSession) -> Result<usize, String> {
    let mut count = 0;
    for (list, name, path) in KINDS {
        let search = PREFIX.trim_end();
        let all = session.get(&format!("{list}?pageSize=1000&page=0&textSearch={search}"))?;
        for entity in all["data"].as_array().into_iter().flatten() {
            if entity[name].as_str().is_some_and(|name| name.starts_with(PREFIX)) {
                session.delete(&format!("{path}/{}", id(entity)?))?;
                count += usize::from(path == "/api/device");
            }
        }
    }
    Ok(count)
}

fn id(entity: &Value) -> Result<String, String> {
    let id = entity["id"]["id"].as_str().map(str::to_owned);
    id.ok_or_else(|| format!("an entity without an identifier: {entity}"))
}

fn condition(key: &str, operation: &str, than: f64) -> Value {
    json!({
        "key": {"type": "TIME_SERIES", "key": key},
        "valueType": "NUMERIC",
        "predicate": {"type": "NUMERIC", "operation": operation, "value": {"defaultValue": than}},
    })
}

fn rule(condition: &Value, spec: &Value, details: &str) -> Value {
    json!({"condition": {"condition": [condition], "spec": spec}, "alarmDetails": details})
}

fn profile(name: &str, description: &str, alarms: &Value) -> Value {
    json!({
        "name": format!("{PREFIX}{name}"),
        "description": description,
        "type": "DEFAULT",
        "transportType": "DEFAULT",
        "provisionType": "DISABLED",
        "profileData": {
            "configuration": {"type": "DEFAULT"},
            "transportConfiguration": {"type": "DEFAULT"},
            "provisionConfiguration": {"type": "DISABLED", "provisionDeviceSecret": null},
            "alarms": alarms,
        },
    })
}

/// A temperature that is too high for some seconds raises a major alarm; a much higher one raises a critical alarm
/// immediately. The alarm is cleared when the store is cold again.
fn store_profile() -> Value {
    let lasting = json!({
        "type": "DURATION",
        "unit": "SECONDS",
        "predicate": {"defaultValue": 3, "userValue": null, "dynamicValue": null},
    });
    let simple = json!({"type": "SIMPLE"});
    let alarms = json!([{
        "id": "demo-too-warm",
        "alarmType": "Too warm",
        "createRules": {
            "CRITICAL": rule(&condition("temperature", "GREATER", 8.6), &simple, "${temperature} °C"),
            "MAJOR": rule(&condition("temperature", "GREATER", 7.5), &lasting, "${temperature} °C"),
        },
        "clearRule": rule(&condition("temperature", "LESS", 6.0), &simple, "${temperature} °C"),
        "propagate": true,
    }]);
    profile("cold store", "Temperature, humidity and a door", &alarms)
}

fn meter_profile() -> Value {
    let simple = json!({"type": "SIMPLE"});
    let repeating = json!({
        "type": "REPEATING",
        "predicate": {"defaultValue": 3, "userValue": null, "dynamicValue": null},
    });
    let alarms = json!([
        {
            "id": "demo-battery",
            "alarmType": "Battery low",
            "createRules": {"WARNING": rule(&condition("batteryLevel", "LESS_OR_EQUAL", 20.0), &simple, "${batteryLevel} %")},
            "clearRule": rule(&condition("batteryLevel", "GREATER", 20.0), &simple, ""),
        },
        {
            "id": "demo-leak",
            "alarmType": "Leak",
            "createRules": {"CRITICAL": rule(&condition("flow", "GREATER", 40.0), &repeating, "${flow} l/min")},
            "clearRule": rule(&condition("flow", "LESS", 30.0), &simple, ""),
        },
    ]);
    profile("water meter", "A pulse counter, flow and a battery", &alarms)
}

/// In ThingsBoard's form. An alias has all devices of its kind; who shows one shows the first.
fn dashboard(devices: &[(DemoDeviceKind, String)]) -> Value {
    let alias = |id: &str, name: &str, kind: DemoDeviceKind| {
        let of_kind = devices.iter().filter(|(known, _)| *known == kind);
        let ids: Vec<&String> = of_kind.map(|(_, id)| id).collect();
        json!({
            "id": id,
            "alias": name,
            "filter": {"type": "entityList", "resolveMultiple": true, "entityType": "DEVICE", "entityList": ids},
        })
    };
    let widgets = json!({
        "temperatures": widget("system.time_series_chart", "timeseries", "Cold stores", "°C", ("stores", &["temperature"])),
        "flows": widget("system.time_series_chart", "timeseries", "Water meters", "l/min", ("meters", &["flow"])),
        "humidity": widget("system.cards.value_card", "latest", "Humidity", "%", ("stores", &["humidity"])),
        "battery": widget("system.gauge", "latest", "Battery", "%", ("meters", &["batteryLevel"])),
        "alarms": widget("system.alarm_widgets.alarms_table", "alarm", "Alarms", "", ("stores", &[])),
    });
    let place =
        |row: u32, col: u32, width: u32, height: u32| json!({"row": row, "col": col, "sizeX": width, "sizeY": height});
    json!({
        "title": format!("{PREFIX}warehouse"),
        "configuration": {
            "description": "Cold stores and water meters of the demonstration",
            "entityAliases": {
                "stores": alias("stores", "Cold stores", DemoDeviceKind::ColdStore),
                "meters": alias("meters", "Water meters", DemoDeviceKind::Meter),
            },
            "widgets": widgets,
            "states": {"default": {"name": "Warehouse", "root": true, "layouts": {"main": {
                "widgets": {
                    "temperatures": place(0, 0, 9, 6),
                    "flows": place(0, 9, 9, 6),
                    "humidity": place(0, 18, 6, 3),
                    "battery": place(3, 18, 6, 3),
                    "alarms": place(6, 0, 24, 6),
                },
                "gridSettings": {"columns": 24, "margin": 10},
            }}}},
            "timewindow": {"realtime": {"timewindowMs": 300_000, "interval": 1000}, "aggregation": {"type": "NONE", "limit": 5000}},
        },
    })
}

/// Shows some series of an alias.
fn widget(name: &str, kind: &str, title: &str, unit: &str, (alias, keys): (&str, &[&str])) -> Value {
    let keys = keys
        .iter()
        .map(|key| json!({"name": key, "type": "timeseries", "label": key, "settings": {}}));
    let source = json!({"type": "entity", "entityAliasId": alias, "dataKeys": keys.collect::<Vec<_>>()});
    json!({
        "typeFullFqn": name,
        "type": kind,
        "sizeX": 8,
        "sizeY": 6,
        "config": {
            "title": title,
            "showTitle": true,
            "units": unit,
            "settings": {"minValue": 0, "maxValue": 100},
            "datasources": [source.clone()],
            "alarmSource": source,
        },
    })
}
