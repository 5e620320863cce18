//! Slow or failing scripts of one tenant do not delay other tenants.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use serde_json::{Value as Json, json};

use super::http::request;
use super::rest::Rest;
use super::world::login;
use crate::support::*;

const CONFIG: &str = "[platform]\nenabled = true\ndemo = true\n";
const TELEMETRY: &str = "v1/devices/me/telemetry";
const SCRIPT_FILTER: &str = "org.thingsboard.rule.engine.filter.TbJsFilterNode";

/// Logs in as the administrator of a second tenant.
pub fn another_tenant(server: &Server) -> Rest {
    let admin = Rest::login_as(server, "sysadmin");
    let tenant = admin.ok("POST", "/api/tenant", &json!({"title": "Second"}));
    let user = json!({"authority": "TENANT_ADMIN", "email": "second-tenant@thingsboard.org", "tenantId": tenant["id"]});
    let user = admin.ok("POST", "/api/user?sendActivationMail=false", &user);
    let id = user["id"]["id"].as_str().expect("an identifier");
    let (status, link) = admin.raw("GET", &format!("/api/user/{id}/activationLink"), "");
    assert_eq!(status, 200, "{link}");
    let (_, token) = link.split_once("activateToken=").expect("a link with a token");
    let body = json!({"activateToken": token, "password": "second-tenant"});
    admin.ok("POST", "/api/noauth/activate", &body);
    Rest::login_as(server, "second-tenant")
}

/// Installs a root chain that runs this script for every device message of the tenant.
pub fn put_script(tenant: &Rest, script: &str) {
    let chains = tenant.ok("GET", "/api/ruleChains?pageSize=10&page=0", &Json::Null);
    let node = json!({"type": SCRIPT_FILTER, "name": "script", "additionalInfo": {}, "debugMode": false,
        "configuration": {"scriptLang": "JS", "jsScript": script}});
    let metadata = json!({"ruleChainId": chains["data"][0]["id"], "firstNodeIndex": 0, "nodes": [node], "connections": [],
        "ruleChainConnections": null});
    tenant.ok("POST", "/api/ruleChain/metadata", &metadata);
}

/// A device of a tenant with this script sends a hundred messages. Returns the delay of a message of another tenant.
fn waited(script: &str) -> Duration {
    let server = Server::start(&Config::new(CONFIG));
    let (first, second) = (Rest::login(&server), another_tenant(&server));
    let device = first.device("Quick", "QUICK");
    second.device("Slow", "SLOW");
    put_script(&second, script);
    let mut slow = server.session(&login(V4, "SLOW"));
    for _ in 0..100 {
        slow.publish(&Publish::new(TELEMETRY, "{\"v\":1}").qos(1));
    }
    let begun = Instant::now();
    let mut quick = server.session(&login(V4, "QUICK"));
    quick.publish(&Publish::new(TELEMETRY, "{\"v\":1}").qos(1));
    let latest = format!("/api/plugins/telemetry/DEVICE/{device}/values/timeseries?keys=v");
    first.wait_for(&server, &latest, |found| found["v"][0]["value"] == "1");
    begun.elapsed()
}

#[test]
fn script_with_repeated_timeouts_is_suspended() {
    let waited = waited("while (true) {}");
    assert!(waited < Duration::from_secs(5), "{waited:?}");
}

#[test]
fn slow_scripts_of_one_tenant_do_not_delay_others() {
    let waited = waited("const end = Date.now() + 300; while (Date.now() < end); return true;");
    assert!(waited < Duration::from_secs(5), "{waited:?}");
}

#[test]
fn concurrent_script_tests_of_a_tenant_are_limited() {
    let server = Server::start(&Config::new(CONFIG));
    let rest = Rest::login(&server);
    let body = json!({"script": "while (true) {}", "scriptType": "filter", "msg": "{}"});
    const AT_ONCE: usize = 12;
    let barrier = Barrier::new(AT_ONCE);
    let statuses: Vec<u16> = std::thread::scope(|scope| {
        let try_it = || {
            barrier.wait();
            rest.call("POST", "/api/ruleChain/testScript", &body).0
        };
        let all: Vec<_> = (0..AT_ONCE).map(|_| scope.spawn(try_it)).collect();
        all.into_iter().map(|each| each.join().expect("an answer")).collect()
    });
    assert!(
        statuses.iter().all(|status| [200, 429].contains(status)),
        "{statuses:?}"
    );
    assert!(statuses.contains(&200) && statuses.contains(&429), "{statuses:?}");
    // A script that closes the enclosing function is rejected without being run.
    let body = json!({"script": "return true; }); while (true) {} (function () { return true;", "scriptType": "filter", "msg": "{}"});
    let answer = rest.ok("POST", "/api/ruleChain/testScript", &body);
    let error = answer["error"].as_str().unwrap_or_default();
    assert!(error.starts_with("the script is not valid JavaScript"), "{answer}");
    assert_eq!(request(server.http(), "GET", "/metrics", "", "").0, 200);
}
