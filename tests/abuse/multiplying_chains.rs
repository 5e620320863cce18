//! Rule chains of one tenant multiply each message: every chain sends it into ten nested chains. The messages of
//! another tenant are measured at the same time.
//!
//! In a debug build on a busy machine with two cores, a message of the other tenant took 46 ms without the attack and
//! 85 ms during it (p99 71 and 146 ms). Before rule chains had time slices, it took more than 1.6 s during the attack.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Acquire;
use std::thread;
use std::time::Duration;

use serde_json::{Value as Json, json};

use super::tenant_scripts::{CONFIG, LONGEST, TELEMETRY, Victim};
use crate::devices::rest::Rest;
use crate::devices::scripts::another_tenant;
use crate::devices::world::login;
use crate::support::api::Api;
use crate::support::*;

/// Nested chains that each chain enters.
const BRANCHES: usize = 10;
/// Messages whose nodes take longer than the time that a tenant may use at once, also in a fast build.
const WAITING: usize = 2_000;
/// Keys of a message, which every chain renames.
const KEYS: usize = 300;

fn node(class: &str, name: &str, configuration: &Json) -> Json {
    json!({"type": format!("org.thingsboard.rule.engine.{class}"), "name": name, "additionalInfo": {},
        "debugSettings": {"failuresEnabled": true}, "configuration": configuration})
}

/// Makes the tenant's root chain pass each message to `BRANCHES` chains, and those to as many, `levels` deep.
fn put_chains(tenant: &Rest, levels: usize) {
    let rename = node(
        "transform.TbRenameKeysNode",
        "rename",
        &json!({"renameIn": "DATA", "renameKeysMapping": {"k0": "renamed"}}),
    );
    let mut inner: Option<Json> = None;
    for level in (0..=levels).rev() {
        let id = match level {
            0 => tenant.ok(
                "GET",
                "/api/ruleChains?pageSize=10&page=0&sortProperty=createdTime",
                &Json::Null,
            )["data"][0]["id"]
                .clone(),
            _ => tenant.ok("POST", "/api/ruleChain", &json!({"name": format!("Level {level}")}))["id"].clone(),
        };
        let (mut nodes, mut connections) = (vec![rename.clone()], Vec::new());
        for branch in 1..=BRANCHES {
            let Some(inner) = &inner else { break };
            nodes.push(node(
                "flow.TbRuleChainInputNode",
                &format!("enter {branch}"),
                &json!({"ruleChainId": inner["id"]}),
            ));
            connections.push(json!({"fromIndex": 0, "toIndex": branch, "type": "Success"}));
        }
        let metadata = json!({"ruleChainId": id, "firstNodeIndex": 0, "nodes": nodes, "connections": connections,
            "ruleChainConnections": null});
        tenant.ok("POST", "/api/ruleChain/metadata", &metadata);
        inner = Some(id);
    }
}

fn payload() -> String {
    let keys: Vec<String> = (0..KEYS).map(|key| format!("\"k{key}\":{key}")).collect();
    format!("{{{}}}", keys.join(","))
}

fn metric(server: &Server, name: &str) -> u64 {
    let (_, text) = server.http_get("/metrics");
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value.and_then(|value| value.parse().ok()).unwrap_or(0)
}

#[test]
fn chains_that_multiply_messages_do_not_delay_other_tenants() {
    let server = Server::start(&Config::new(CONFIG));
    let (rest, attacker) = (Rest::login(&server), another_tenant(&server));
    let mut victim = Victim::connect(&server, &rest);
    let usual = victim.usual_delay();

    // A message passes 1 + 10 + 10 + 100 + 100 + 1000 + 1000 nodes.
    put_chains(&attacker, 3);
    attacker.device("Slow", "SLOW");
    let mut slow = server.session(&login(V4, "SLOW"));
    let is_measured = AtomicBool::new(false);
    thread::scope(|scope| {
        let _measured = SetOnDrop(&is_measured);
        scope.spawn(|| {
            while !is_measured.load(Acquire) {
                slow.publish(&Publish::new(TELEMETRY, payload()).qos(1));
                thread::sleep(Duration::from_millis(20));
            }
        });
        victim.assert_not_delayed(usual, "during the attack");
    });
    // The time of the nodes counts, although no script runs. While other messages arrive, those of the tenant get at
    // most half of the time, so the budget is exceeded only when many of them wait and no other arrives.
    for _ in 0..WAITING {
        slow.publish(&Publish::new(TELEMETRY, payload()).qos(1));
    }
    let api = Api::of(&server);
    server.wait_until_within(LONGEST, "the alarm about the tenant's chains", |_| {
        let alarms = api.get("/api/v1/alarms");
        let mut active = alarms["active"].as_array().into_iter().flatten();
        active.any(|alarm| {
            alarm["name"]
                .as_str()
                .is_some_and(|name| name.starts_with("script_cpu:"))
        })
    });
}

#[test]
fn message_that_passes_too_many_nodes_fails_visibly() {
    let server = Server::start(&Config::new(CONFIG));
    let attacker = another_tenant(&server);
    put_chains(&attacker, 5);
    attacker.device("Slow", "SLOW");
    let mut slow = server.session(&login(V4, "SLOW"));
    slow.publish(&Publish::new(TELEMETRY, payload()).qos(1));
    server.wait_until_within(LONGEST, "the message fails", |server| {
        metric(server, "tidewire_platform_messages_exceeding_total") > 0
            && metric(server, "tidewire_platform_messages_failed_total") > 0
    });
    server.wait_until("the log names the tenant and the limit", |server| {
        let log = server.log();
        log.contains("message exceeded a limit of rule chains") && log.contains("tenant=")
    });
    let chains = attacker.ok("GET", "/api/ruleChains?pageSize=10&page=0", &Json::Null);
    let has_debug_event = |_: &Server| {
        let mut nodes = Vec::new();
        for chain in chains["data"].as_array().into_iter().flatten() {
            let id = chain["id"]["id"].as_str().unwrap_or_default();
            let metadata = attacker.ok("GET", &format!("/api/ruleChain/{id}/metadata"), &Json::Null);
            nodes.extend(metadata["nodes"].as_array().cloned().unwrap_or_default());
        }
        nodes.iter().any(|node| {
            let id = node["id"]["id"].as_str().unwrap_or_default();
            let path = format!("/api/events/RULE_NODE/{id}/DEBUG_RULE_NODE?page=0&pageSize=10");
            let events = attacker.ok("GET", &path, &Json::Null);
            let mut events = events["data"].as_array().into_iter().flatten();
            events.any(|event| event["body"]["error"].as_str().is_some_and(|text| !text.is_empty()))
        })
    };
    server.wait_until_within(LONGEST, "a debug event has the error", has_debug_event);
}
