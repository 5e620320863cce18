//! Kills the server repeatedly while clients publish at QoS 1. All acknowledged messages must reach the web server.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use serde_json::json;

use super::web_server::WebServer;
use crate::support::api::Api;
use crate::support::*;

const KILLS: u64 = 20;

// fault: Process killed; Action buffers
#[test]
fn acknowledged_messages_arrive_despite_kills() {
    let mut server = Server::start(&Config::new("[durability]\nsegment_bytes = \"256KiB\"\n"));
    let web = WebServer::here();
    {
        let api = Api::of(&server);
        let connector = json!({"type": "http", "name": "web", "config": {"url": format!("http://{}", web.address)}});
        api.ok("POST", "/api/v1/connectors", &connector);
        let action = json!({
            "type": "http", "name": "hook", "connector": "web", "parameters": {"body": "${payload}"},
            "delivery": {"buffer": {"segment_bytes": 65_536}, "batch": {"records_max": 50}},
        });
        api.ok("POST", "/api/v1/actions", &action);
        let rule = json!({"id": "all", "sql": "SELECT payload FROM \"t/#\"", "actions": ["http:hook"]});
        api.ok("POST", "/api/v1/rules", &rule);
    }
    let mut acknowledged = HashSet::new();
    let mut next = 0;
    for round in 0..scaled(KILLS) {
        let mut client = server.session(&Connect::new(V5, "publisher"));
        let until = Instant::now() + Duration::from_millis(30 + 17 * (round % 7));
        while Instant::now() < until {
            client.publish(&Publish::new("t/1", format!("m{next}")).qos(1));
            acknowledged.insert(format!("m{next}"));
            next += 1;
        }
        server.kill();
        server.spawn_again();
        server.wait_until_ready();
    }
    let is_missing = |web: &WebServer| {
        let arrived: HashSet<String> = web.bodies().into_iter().collect();
        acknowledged.difference(&arrived).next().cloned()
    };
    server.wait_until_within(Duration::from_secs(30), "all that was acknowledged has arrived", |_| {
        is_missing(&web).is_none()
    });
    let arrived = web.bodies();
    let repeated = arrived.len() - arrived.iter().collect::<HashSet<_>>().len();
    println!(
        "{} acknowledged, {} arrived, {repeated} of them more than once",
        acknowledged.len(),
        arrived.len()
    );
    assert_eq!(is_missing(&web), None);
}
