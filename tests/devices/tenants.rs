//! What a tenant cannot have of another: its rule chains, and its devices as originators.

use platform::ids::{DeviceProfileId, RuleChainId, Uuid};
use platform::model::{DeviceProfile, RuleChain};
use platform::repository::{Change, Record};
use serde_json::{Value as Json, json};

use crate::rest::Rest;
use crate::scripts::another_tenant;
use crate::support::*;
use crate::world::{beside, login};

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
fn a_rule_chain_of_another_tenant_is_none() {
    let mut server = Server::start(&Config::new(CONFIG));
    let (first, second) = (Rest::login(&server), another_tenant(&server));
    // Whatever comes by this chain has a mark.
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

    // As if it had been stored by a version that did not look.
    let profile = DeviceProfileId(Uuid::parse(&profile).expect("a UUID"));
    let foreign = RuleChainId(Uuid::parse(id(&chain)).expect("a UUID"));
    beside(&mut server, |devices| {
        let entities = devices.entities();
        let stored: DeviceProfile = entities.get(profile.0).expect("the profile");
        let changed = DeviceProfile {
            default_rule_chain_id: Some(foreign),
            ..stored.clone()
        };
        let record = Record::of(&changed, stored.version.unwrap_or(1) + 1).expect("a record");
        let change = Change::Put { record, replaces: None };
        entities.repository().apply(&[change]).expect("a change");
    });
    let (first, second) = (Rest::login(&server), Rest::login_as(&server, "second"));
    let mut peer = server.session(&login(V4, "METER"));
    assert_eq!(peer.publish(&Publish::new(TELEMETRY, "{\"v\":1}").qos(1)), 0);
    server.wait_until("the root chain saves it", |_| {
        values(&second, &device)["v"][0]["value"] == "1"
    });
    assert_eq!(values(&second, &device)["mark"], Json::Null);

    // By way of a node of its own root chain.
    let root = second.ok("GET", "/api/ruleChains?pageSize=10&page=0", &Json::Null)["data"][0].clone();
    let enters = node("flow.TbRuleChainInputNode", &json!({"ruleChainId": id(&chain)}));
    put_nodes(&second, id(&root), &[saves.clone(), enters]);
    assert_eq!(peer.publish(&Publish::new(TELEMETRY, "{\"v\":2}").qos(1)), 0);
    let events = format!(
        "/api/events/DEVICE/{device}/ERROR?tenantId={}&pageSize=10&page=0",
        Uuid::NULL
    );
    let told = second.wait_for(&server, &events, |found| found["totalElements"] != 0);
    let error = told["data"][0]["body"]["error"].as_str().unwrap_or_default();
    assert!(error.contains("there is no rule chain"), "{told}");
    assert_eq!(values(&second, &device)["mark"], Json::Null);

    // What a generator says is of its tenant, or of nobody.
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
    server.wait_until("its own device has values", |_| {
        values(&second, &device)["forged"][0]["value"] == "1"
    });
    assert_eq!(values(&first, &victim)["forged"], Json::Null);
}

/// Without its chain, and then without any.
#[test]
fn what_devices_say_is_never_dropped_without_a_word() {
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
        beside(server, |devices| {
            let repository = devices.entities().repository();
            let mut all = Vec::new();
            let look = &mut |record: Record| all.push(record.read::<RuleChain>().expect("a rule chain"));
            repository
                .for_each(platform::ids::EntityType::RuleChain, look)
                .expect("rule chains");
            for chain in all.into_iter().filter(is_meant) {
                let id = chain.id.expect("a stored chain").entity();
                repository.apply(&[Change::Delete(id)]).expect("a change");
            }
        });
    };
    remove(&mut server, |chain| chain.name == "Mine");
    let rest = Rest::login(&server);
    let mut peer = server.session(&login(V4, "METER"));
    assert_eq!(peer.publish(&Publish::new(TELEMETRY, "{\"v\":1}").qos(1)), 0);
    server.wait_until("the root chain saves it", |_| {
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
    let told = rest.wait_for(&server, &events, |found| found["totalElements"] != 0);
    let error = told["data"][0]["body"]["error"].as_str().unwrap_or_default();
    assert!(error.contains("the tenant has no root rule chain"), "{told}");
}
