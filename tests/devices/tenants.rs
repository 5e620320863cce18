//! A tenant can use neither the rule chains of another tenant nor its devices as originators.

use platform::ids::{DeviceProfileId, RuleChainId, Uuid};
use platform::model::{DeviceProfile, RuleChain};
use platform::repository::{EntityRecord, RepositoryChange};
use serde_json::{Value as Json, json};

use super::rest::Rest;
use super::scripts::another_tenant;
use super::world::{login, while_stopped};
use crate::support::*;

const CONFIG: &str = "[platform]\nenabled = true\ndemo = true\n";
const TELEMETRY: &str = "v1/devices/me/telemetry";

fn id(entity: &Json) -> &str {
    entity["id"]["id"].as_str().expect("an identifier")
}

fn node(class: &str, configuration: &Json) -> Json {
    json!({"type": format!("org.thingsboard.rule.engine.{class}"), "name": class, "additionalInfo": {}, "debugMode": false,
        "configuration": configuration})
}

fn put_nodes(tenant: &Rest, chain: &str, nodes: &[Json]) {
    let ends = nodes.len().saturating_sub(1);
    let connections: Vec<Json> = (0..ends)
        .map(|index| json!({"fromIndex": index, "toIndex": index + 1, "type": "Success"}))
        .collect();
    let metadata = json!({"ruleChainId": {"entityType": "RULE_CHAIN", "id": chain}, "firstNodeIndex": 0, "nodes": nodes,
        "connections": connections, "ruleChainConnections": null});
    tenant.ok("POST", "/api/ruleChain/metadata", &metadata);
}

fn values(tenant: &Rest, device: &str) -> Json {
    tenant.ok(
        "GET",
        &format!("/api/plugins/telemetry/DEVICE/{device}/values/timeseries"),
        &Json::Null,
    )
}

#[test]
fn rule_chain_of_another_tenant_is_not_found() {
    let mut server = Server::start(&Config::new(CONFIG));
    let (first, second) = (Rest::login(&server), another_tenant(&server));
    // This chain adds a mark to every message.
    let chain = first.ok("POST", "/api/ruleChain", &json!({"name": "Marking"}));
    let script = "msg.mark = 1; return {msg: msg, metadata: metadata, msgType: msgType};";
    let marks = node(
        "transform.TbTransformMsgNode",
        &json!({"scriptLang": "JS", "jsScript": script}),
    );
    let saves = node("telemetry.TbMsgTimeseriesNode", &json!({"defaultTTL": 0}));
    put_nodes(&first, id(&chain), &[marks, saves.clone()]);
    let device = second.device("Meter", "METER");
    let profiles = second.ok("GET", "/api/deviceProfiles?pageSize=10&page=0", &Json::Null);
    let profile = id(&profiles["data"][0]).to_owned();

    // Write the profile directly, as if a version without the check had stored it.
    let profile = DeviceProfileId(Uuid::parse(&profile).expect("a UUID"));
    let foreign = RuleChainId(Uuid::parse(id(&chain)).expect("a UUID"));
    while_stopped(&mut server, |devices| {
        let entities = devices.entities();
        let stored: DeviceProfile = entities.get(profile.0).expect("the profile");
        let changed = DeviceProfile {
            default_rule_chain_id: Some(foreign),
            ..stored.clone()
        };
        let record = EntityRecord::of(&changed, stored.version.unwrap_or(1) + 1).expect("a record");
        let change = RepositoryChange::Put { record, replaces: None };
        entities.repository().apply(&[change]).expect("a change");
    });
    let (first, second) = (Rest::login(&server), Rest::login_as(&server, "second-tenant"));
    let mut peer = server.session(&login(V4, "METER"));
    assert_eq!(peer.publish(&Publish::new(TELEMETRY, "{\"v\":1}").qos(1)), 0);
    server.wait_until("the root chain saves the value", |_| {
        values(&second, &device)["v"][0]["value"] == "1"
    });
    assert_eq!(values(&second, &device)["mark"], Json::Null);

    // A node of the tenant's own root chain refers to the foreign chain.
    let root = second.ok("GET", "/api/ruleChains?pageSize=10&page=0", &Json::Null)["data"][0].clone();
    let enters = node("flow.TbRuleChainInputNode", &json!({"ruleChainId": id(&chain)}));
    put_nodes(&second, id(&root), &[saves.clone(), enters]);
    assert_eq!(peer.publish(&Publish::new(TELEMETRY, "{\"v\":2}").qos(1)), 0);
    let events = format!(
        "/api/events/DEVICE/{device}/ERROR?tenantId={}&pageSize=10&page=0",
        Uuid::NULL
    );
    let page = second.wait_for(&server, &events, |found| found["totalElements"] != 0);
    let error = page["data"][0]["body"]["error"].as_str().unwrap_or_default();
    assert!(error.contains("does not exist in this tenant"), "{page}");
    assert_eq!(values(&second, &device)["mark"], Json::Null);

    // A generator node cannot send messages in the name of another tenant's device.
    let victim = first.device("Victim", "VICTIM");
    let said = "return {msg: {forged: 1}, metadata: {}, msgType: 'POST_TELEMETRY_REQUEST'};";
    let generator = |originator: &str| {
        let configuration = json!({"msgCount": 0, "periodInSeconds": 1, "originatorType": "DEVICE", "originatorId": originator,
            "scriptLang": "JS", "jsScript": said});
        node("debug.TbMsgGeneratorNode", &configuration)
    };
    let forging = second.ok("POST", "/api/ruleChain", &json!({"name": "Forging"}));
    put_nodes(&second, id(&forging), &[generator(&victim), saves.clone()]);
    let honest = second.ok("POST", "/api/ruleChain", &json!({"name": "Honest"}));
    put_nodes(&second, id(&honest), &[generator(&device), saves]);
    server.wait_until("the tenant's own device has values", |_| {
        values(&second, &device)["forged"][0]["value"] == "1"
    });
    assert_eq!(values(&first, &victim)["forged"], Json::Null);
}

/// First the profile's rule chain is missing, then the tenant has no rule chain at all.
#[test]
fn message_without_a_rule_chain_is_reported() {
    let mut server = Server::start(&Config::new(CONFIG));
    let rest = Rest::login(&server);
    let device = rest.device("Meter", "METER");
    let profile = rest.ok("GET", "/api/deviceProfileInfo/default", &Json::Null);
    let profile = rest.ok("GET", &format!("/api/deviceProfile/{}", id(&profile)), &Json::Null);
    let chain = rest.ok("POST", "/api/ruleChain", &json!({"name": "Mine"}));
    let mut with_chain = profile;
    with_chain["defaultRuleChainId"] = chain["id"].clone();
    rest.ok("POST", "/api/deviceProfile", &with_chain);
    let (status, refusal) = rest.call("DELETE", &format!("/api/ruleChain/{}", id(&chain)), &Json::Null);
    assert_eq!(status, 400, "{refusal}");
    let remove = |server: &mut Server, is_meant: fn(&RuleChain) -> bool| {
        while_stopped(server, |devices| {
            let repository = devices.entities().repository();
            let mut all = Vec::new();
            let look = &mut |record: EntityRecord| all.push(record.read::<RuleChain>().expect("a rule chain"));
            repository
                .for_each(platform::ids::EntityType::RuleChain, look)
                .expect("rule chains");
            for chain in all.into_iter().filter(is_meant) {
                let id = chain.id.expect("a stored chain").entity();
                repository.apply(&[RepositoryChange::Delete(id)]).expect("a change");
            }
        });
    };
    remove(&mut server, |chain| chain.name == "Mine");
    let rest = Rest::login(&server);
    let mut peer = server.session(&login(V4, "METER"));
    assert_eq!(peer.publish(&Publish::new(TELEMETRY, "{\"v\":1}").qos(1)), 0);
    server.wait_until("the root chain saves the value", |_| {
        values(&rest, &device)["v"][0]["value"] == "1"
    });
    remove(&mut server, |chain| chain.root);
    let rest = Rest::login(&server);
    let mut peer = server.session(&login(V4, "METER"));
    assert_eq!(peer.publish(&Publish::new(TELEMETRY, "{\"v\":2}").qos(1)), 0);
    let events = format!(
        "/api/events/DEVICE/{device}/ERROR?tenantId={}&pageSize=10&page=0",
        Uuid::NULL
    );
    let page = rest.wait_for(&server, &events, |found| found["totalElements"] != 0);
    let error = page["data"][0]["body"]["error"].as_str().unwrap_or_default();
    assert!(error.contains("the tenant has no root rule chain"), "{page}");
}
