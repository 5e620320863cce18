//! What people and chains change while messages come: no message falls between before and after.

use platform::Said;
use platform::model::RuleChain;
use serde_json::{Value as Json, json};

use crate::fixture::{NOW, fixture};

fn node(class: &str, name: &str, configuration: &Json) -> Json {
    json!({"type": format!("org.thingsboard.rule.engine.{class}"), "name": name, "configuration": configuration})
}

#[test]
fn a_message_finds_a_root_chain_while_another_one_becomes_it() {
    let mut f = fixture();
    let device = f.device("D", "", Json::Null);
    let entities = f.platform.entities();
    let old = entities.root_chain(f.tenant).unwrap().unwrap().id.unwrap();
    let chain = RuleChain {
        tenant_id: f.tenant,
        name: "New".to_owned(),
        ..RuleChain::default()
    };
    let new = entities.save_rule_chain(chain, NOW).unwrap().id.unwrap();
    let metadata = json!({"firstNodeIndex": 0, "nodes": [node("action.TbLogNode", "new", &json!({}))]});
    entities.save_rule_chain_metadata(new, metadata, NOW).unwrap();
    entities.set_root_chain(new, NOW).unwrap();
    f.platform.reload_chain(old, NOW).unwrap();
    let said = f.say(device, 1, Said::Telemetry(br#"{"a":1}"#));
    assert_eq!(
        said,
        ["telemetry 1 a"],
        "the old one, as long as the new one does not run"
    );
    f.platform.reload_chain(new, NOW).unwrap();
    assert_eq!(f.say(device, 2, Said::Telemetry(br#"{"a":2}"#)), ["log new"]);
    f.platform.reload_chain(old, NOW).unwrap();
    assert_eq!(f.say(device, 3, Said::Telemetry(br#"{"a":3}"#)), ["log new"]);
}
