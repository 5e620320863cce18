//! Test server with devices.
//!
//! While the server is stopped, the tests create entities and read stored values directly in its data directory.

use std::sync::Arc;
use std::time::Duration;

use devices::{Devices, DevicesOptions};
use platform::ids::{DeviceId, TenantId};
use platform::model::{CredentialsType, Device, DeviceCredentials, DeviceProfile, Tenant};
use serde_json::{Value as Json, json};
use timeseries::{PointOrder, Query, TimedValue};

use crate::support::*;

pub const NOW: i64 = 1_700_000_000_000;

pub const CONFIG: &str =
    "[platform]\nenabled = true\n[durability]\nsegment_bytes = \"1MiB\"\n[limits]\nshutdown_grace = \"500ms\"\n";

pub struct World {
    pub server: Server,
    pub tenant: TenantId,
}

impl World {
    /// Starts a server with the entities that `make` creates. Also returns the result of `make`.
    pub fn new<T>(make: impl FnOnce(&Devices, TenantId) -> T) -> (World, T) {
        let mut server = Server::start(&Config::new(CONFIG));
        let (tenant, made) = while_stopped(&mut server, |devices| {
            let tenant = Tenant {
                title: "Tenant".to_owned(),
                ..Tenant::default()
            };
            let start = devices.entities().create_tenant(tenant, NOW).expect("a first tenant");
            let tenant = start.tenant.id.expect("a stored tenant");
            (tenant, make(devices, tenant))
        });
        (World { server, tenant }, made)
    }

    /// Stops the server, runs `look` on its data and starts the server again.
    pub fn while_stopped<T>(&mut self, look: impl FnOnce(&Devices) -> T) -> T {
        while_stopped(&mut self.server, look)
    }

    pub fn connect(&self, version: Version, token: &str) -> Peer {
        self.server.session(&login(version, token))
    }
}

pub fn login(version: Version, token: &str) -> Connect {
    Connect::new(version, unique("c")).user_name(token)
}

pub fn while_stopped<T>(server: &mut Server, look: impl FnOnce(&Devices) -> T) -> T {
    server.terminate(Duration::from_secs(30));
    server.kill();
    let devices = open(server);
    let made = look(&devices);
    devices.shut_down();
    drop(devices);
    server.spawn_again();
    server.wait_until_ready();
    made
}

/// Opens the data directory and waits until the whole log is processed.
pub fn open(server: &Server) -> Arc<Devices> {
    let mut options = DevicesOptions::default();
    options.log.segment_bytes = 1 << 20;
    let devices = Devices::open(&server.dir().join("data"), options).expect("the platform opens");
    server.wait_until("the log is replayed", |_| devices.stats().lag.messages == 0);
    devices
}

pub fn device(devices: &Devices, tenant: TenantId, name: &str, token: &str) -> DeviceId {
    make(devices, tenant, name, token, None)
}

pub fn gateway(devices: &Devices, tenant: TenantId, name: &str, token: &str) -> DeviceId {
    make(devices, tenant, name, token, Some(json!({"gateway": true})))
}

fn make(devices: &Devices, tenant: TenantId, name: &str, token: &str, info: Option<Json>) -> DeviceId {
    let device = Device {
        tenant_id: tenant,
        name: name.to_owned(),
        additional_info: info,
        ..Device::default()
    };
    let saved = devices.entities().save_device(device, Some(token), NOW);
    saved.expect("a device with a new name").id.expect("a stored device")
}

pub fn device_with_password(devices: &Devices, tenant: TenantId, name: &str, basic: &Json) -> DeviceId {
    let device = Device {
        tenant_id: tenant,
        name: name.to_owned(),
        ..Device::default()
    };
    let credentials = DeviceCredentials {
        credentials_type: CredentialsType::MqttBasic,
        credentials_value: Some(basic.to_string()),
        ..DeviceCredentials::default()
    };
    let saved = devices
        .entities()
        .save_device_with_credentials(device, credentials, NOW);
    saved.expect("a device with a new name").id.expect("a stored device")
}

/// Creates a profile that lets devices provision themselves.
pub fn provisioning_profile(devices: &Devices, tenant: TenantId) {
    let mut profile = DeviceProfile {
        tenant_id: tenant,
        name: "P".to_owned(),
        ..DeviceProfile::default()
    };
    let mut json = serde_json::to_value(&profile).expect("a profile is JSON");
    json["provisionType"] = json!("ALLOW_CREATE_NEW_DEVICES");
    json["provisionDeviceKey"] = json!("key");
    json["profileData"]["provisionConfiguration"] =
        json!({"type": "ALLOW_CREATE_NEW_DEVICES", "provisionDeviceSecret": "secret"});
    profile = serde_json::from_value(json).expect("a profile");
    devices
        .entities()
        .save_device_profile(profile, NOW)
        .expect("a new profile");
}

fn node(kind: &str, name: &str, configuration: Json) -> Json {
    json!({"type": format!("org.thingsboard.rule.engine.{kind}"), "name": name, "configuration": configuration})
}

/// Installs a root chain for calls from devices. `setShared` sets shared attributes. `callMe` calls the device and
/// saves its answer as a shared attribute.
pub fn talking_chain(devices: &Devices, tenant: TenantId) {
    let nodes = [
        node("filter.TbMsgTypeSwitchNode", "types", json!({"version": 0})),
        node("telemetry.TbMsgTimeseriesNode", "points", json!({"defaultTTL": 0})),
        node(
            "telemetry.TbMsgAttributesNode",
            "attributes",
            json!({"scope": "CLIENT_SCOPE", "notifyDevice": "false"}),
        ),
        node(
            "filter.TbJsFilterNode",
            "method",
            json!({"jsScript": "return msg.method == 'setShared';"}),
        ),
        node(
            "transform.TbTransformMsgNode",
            "params",
            json!({"jsScript": "return {msg: msg.params, metadata: metadata, msgType: 'POST_ATTRIBUTES_REQUEST'};"}),
        ),
        node(
            "telemetry.TbMsgAttributesNode",
            "shared",
            json!({"scope": "SHARED_SCOPE", "notifyDevice": "true"}),
        ),
        node(
            "rpc.TbSendRPCReplyNode",
            "reply",
            json!({"requestIdMetaDataAttribute": "requestId"}),
        ),
        node(
            "transform.TbTransformMsgNode",
            "call",
            json!({"jsScript": "return {msg: {method: 'reverse', params: msg.params}, metadata: metadata, msgType: msgType};"}),
        ),
        node("rpc.TbSendRPCRequestNode", "device", json!({"timeoutInSeconds": 20})),
        node(
            "transform.TbTransformMsgNode",
            "answer",
            json!({"jsScript": "return {msg: {answer: msg.said}, metadata: metadata, msgType: 'POST_ATTRIBUTES_REQUEST'};"}),
        ),
    ];
    let connections = [
        (0, 1, "Post telemetry"),
        (0, 2, "Post attributes"),
        (0, 3, "RPC Request from Device"),
        (3, 4, "True"),
        (4, 5, "Success"),
        (3, 6, "True"),
        (3, 7, "False"),
        (7, 8, "Success"),
        (8, 9, "Success"),
        (9, 5, "Success"),
    ];
    let connections = connections.map(|(from, to, kind)| json!({"fromIndex": from, "toIndex": to, "type": kind}));
    let metadata =
        json!({"firstNodeIndex": 0, "nodes": nodes, "connections": connections, "ruleChainConnections": null});
    let entities = devices.entities();
    let root = entities
        .root_chain(tenant)
        .expect("the stored entity is readable")
        .expect("a new tenant has one");
    let id = root.id.expect("the entity is stored");
    entities
        .save_rule_chain_metadata(id, metadata, NOW)
        .expect("the chain is stored");
    devices.platform().reload_chain(id, NOW).expect("the chain compiles");
}

pub fn points(devices: &Devices, device: DeviceId, key: &str) -> Vec<TimedValue> {
    let query = Query::Points {
        range: 0..i64::MAX,
        order: PointOrder::Ascending,
        limit: 10_000_000,
    };
    let found = devices.platform().store().query(device.0.into(), &[key], &query);
    found.expect("the stored entity is readable").remove(0)
}
