//! Rule chains: export, import with new IDs, validation.

use serde_json::{Value, json};

use super::server::{Server, id, refused};

#[test]
fn export_is_imported_with_its_references() {
    let server = Server::start();
    let inner = server
        .post("/api/ruleChain/device/default", json!({"name": "inner"}))
        .ok()
        .json();
    let outer = server.post("/api/ruleChain", json!({"name": "outer"})).ok().json();
    let metadata = json!({"ruleChainId": outer["id"], "firstNodeIndex": 0, "nodes": [
        {"type": "org.thingsboard.rule.engine.flow.TbRuleChainInputNode", "name": "to inner",
         "configuration": {"ruleChainId": id(&inner)}, "additionalInfo": {}}], "connections": [], "ruleChainConnections": null});
    server.post("/api/ruleChain/metadata", metadata).ok();
    let exported = server.get("/api/ruleChains/export?limit=100").ok().json();
    assert_eq!(exported["ruleChains"].as_array().unwrap().len(), 3);
    assert_eq!(exported["metadata"].as_array().unwrap().len(), 3);
    let results = server
        .post("/api/ruleChains/import?overwrite=false", exported.clone())
        .ok()
        .json();
    let new = |name: &str| {
        let all = results.as_array().unwrap();
        let found = all.iter().find(|result| result["ruleChainName"] == name).unwrap();
        assert_eq!((&found["updated"], &found["error"]), (&json!(false), &Value::Null));
        found["ruleChainId"]["id"].as_str().unwrap().to_owned()
    };
    assert_ne!(new("outer"), id(&outer));
    let metadata = server
        .get(&format!("/api/ruleChain/{}/metadata", new("outer")))
        .ok()
        .json();
    assert_eq!(
        metadata["nodes"][0]["configuration"]["ruleChainId"],
        new("inner").as_str()
    );
    let again = server
        .post("/api/ruleChains/import?overwrite=true", exported)
        .ok()
        .json();
    assert!(again.as_array().unwrap().iter().all(|result| result["updated"] == true));
    let chains = server.get("/api/ruleChains?pageSize=10&page=0").ok().json();
    assert_eq!(chains["totalElements"], 6);
    assert!(!chains.to_string().contains("metadata"));
}

#[test]
fn invalid_chains_are_rejected() {
    let server = Server::start();
    let chain = server.post("/api/ruleChain", json!({"name": "c"})).ok().json();
    let empty = server
        .get(&format!("/api/ruleChain/{}/metadata", id(&chain)))
        .ok()
        .json();
    assert_eq!(empty["nodes"], json!([]));
    let connection = json!({"fromIndex": 0, "toIndex": 7, "type": "Success"});
    let broken = json!({"ruleChainId": chain["id"], "firstNodeIndex": 0, "nodes": [{"type": "a.B", "name": "n", "configuration": {}}],
        "connections": [connection]});
    refused(&server.post("/api/ruleChain/metadata", broken), 400, 31);
    refused(&server.post("/api/ruleChain/metadata", json!({"nodes": []})), 400, 31);
    refused(&server.post("/api/ruleChain", json!({"name": ""})), 400, 31);
    // A node of an unknown type is stored.
    let unknown = json!({"ruleChainId": chain["id"], "firstNodeIndex": 0, "nodes": [{"type": "a.B", "name": "n", "configuration": {}}],
        "connections": []});
    assert_eq!(
        server.post("/api/ruleChain/metadata", unknown).ok().json()["nodes"][0]["type"],
        "a.B"
    );
}
