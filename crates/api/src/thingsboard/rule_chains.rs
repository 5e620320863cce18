//! Rule chains: what they are called, what is in them, which one is the root; import and export.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use axum::Json;
use axum::http::StatusCode;
use platform::Page;
use platform::chain::{Chain, Data, Message, Metadata, RootShape, Script, ScriptKind, root_metadata};
use platform::ids::{RuleChainId, RuleNodeId, TenantId, Uuid};
use platform::model::RuleChain;
use platform::repository::Selection;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use super::call::{Call, Verb};
use super::failure::{Code, Failure};
use super::lists::{self, list_query};
use super::operation::{Body, NoQuery, Outcome, delete, get, post};
use crate::endpoint::Endpoint;
use crate::guard::Who;

/// Chains of one export.
const EXPORTED_MAX: usize = 1000;

pub fn endpoints() -> Vec<Endpoint> {
    let all = vec![
        get("/api/ruleChains", "get_rule_chains", Who::TENANT_ADMIN, list)
            .says("List rule chains", "Without what is in them.")
            .returns_json("A page of rule chains."),
        post("/api/ruleChain", "save_rule_chain", Who::TENANT_ADMIN, save)
            .says("Create or change a rule chain", "What is in it is saved as its metadata.")
            .returns_json("The rule chain."),
        post("/api/ruleChain/device/default", "save_default_rule_chain", Who::TENANT_ADMIN, save_default)
            .says("Create a rule chain like the first root chain", "With the name in the body.")
            .returns_json("The rule chain."),
        get("/api/ruleChain/{ruleChainId}", "get_rule_chain", Who::TENANT_ADMIN, read)
            .says("Read a rule chain", "Without what is in it.")
            .returns_json("The rule chain."),
        delete("/api/ruleChain/{ruleChainId}", "delete_rule_chain", Who::TENANT_ADMIN, remove)
            .says("Delete a rule chain", "Not the root, and none that a device profile begins with.")
            .returns_empty("Deleted."),
        get("/api/ruleChain/{ruleChainId}/metadata", "get_rule_chain_metadata", Who::TENANT_ADMIN, metadata)
            .says("Read what is in a rule chain", "Its nodes and connections.")
            .returns_json("The metadata."),
        get("/api/ruleChain/tbelEnabled", "is_tbel_enabled", Who::TENANT_ADMIN, is_tbel_enabled)
            .says("Whether scripts may be written in TBEL", "They may not: JavaScript is what runs.")
            .returns_json("`false`."),
        get(
            "/api/ruleChain/{ruleChainId}/output/labels",
            "get_rule_chain_output_labels",
            Who::TENANT_ADMIN,
            output_labels,
        )
        .says("List a rule chain's outputs", "Names of its output nodes, by which another chain goes on.")
        .returns_json("The names."),
        get(
            "/api/ruleChain/{ruleChainId}/output/labels/usage",
            "get_rule_chain_output_labels_usage",
            Who::TENANT_ADMIN,
            output_labels_usage,
        )
        .says("List where a rule chain's outputs are used", "Nodes that lead into it, and the connections that go on from them.")
        .returns_json("Per node its chain, name and labels."),
        post("/api/ruleChain/testScript", "test_script", Who::TENANT_ADMIN, test_script)
            .says(
                "Try a script",
                "With a message, as a node of the kind would run it. What it gives is `output`, why it fails is `error`.",
            )
            .returns_json("`{\"output\": \"…\", \"error\": \"\"}`")
            .fails(StatusCode::TOO_MANY_REQUESTS),
        post("/api/ruleChain/metadata", "save_rule_chain_metadata", Who::TENANT_ADMIN, save_metadata)
            .says("Save what is in a rule chain", "It runs at once. Nodes that cannot run are kept, disabled.")
            .returns_json("The metadata, with identifiers of nodes."),
        post("/api/ruleChain/{ruleChainId}/root", "set_root_rule_chain", Who::TENANT_ADMIN, set_root)
            .says("Make a rule chain the root", "Where messages of devices begin whose profile names no other.")
            .returns_json("The rule chain."),
        get("/api/ruleChains/export", "export_rule_chains", Who::TENANT_ADMIN, export)
            .says("Export rule chains", "All of the tenant, at most `limit`.")
            .returns_json("`ruleChains` and their `metadata`."),
        post("/api/ruleChains/import", "import_rule_chains", Who::TENANT_ADMIN, import)
            .says("Import rule chains", "What an export has; references between them are kept. With `overwrite` those of the same name are changed.")
            .returns_json("Per chain what became of it."),
    ];
    all.into_iter().map(|endpoint| endpoint.tag("Rule chains")).collect()
}

list_query!(ChainQuery {
    /// Only of this type: CORE.
    #[serde(rename = "type")]
    kind: Option<String>,
});

#[derive(Deserialize, JsonSchema)]
struct LimitQuery {
    /// Chains at most.
    limit: i64,
}

#[derive(Deserialize, JsonSchema)]
struct OverwriteQuery {
    /// Chains of the same name are changed.
    overwrite: Option<bool>,
}

/// Without what is in it, as answers have it.
fn shown(chain: RuleChain) -> RuleChain {
    RuleChain {
        metadata: None,
        ..chain
    }
}

fn list(call: &Call, (): (), query: ChainQuery, (): ()) -> Outcome<Page<RuleChain>> {
    let selection = Selection {
        subtype: lists::filled(query.kind.clone()),
        ..call.own()
    };
    let page = call.entities().page::<RuleChain>(&selection, &query.link()?)?;
    Ok(Json(page.try_map(|chain| Ok::<_, Failure>(shown(chain)))?))
}

fn save(call: &Call, (): (), _: NoQuery, Body(mut chain): Body<RuleChain>) -> Outcome<RuleChain> {
    if let Some(id) = chain.id {
        let stored: RuleChain = call.entity(id.0, Verb::Write)?;
        chain.first_rule_node_id = stored.first_rule_node_id;
    } else {
        (chain.first_rule_node_id, chain.metadata) = (None, None);
    }
    chain.tenant_id = call.tenant();
    let saved = call.entities().save_rule_chain(chain, call.now_ms)?;
    reload(call, &saved)?;
    Ok(Json(shown(saved)))
}

fn reload(call: &Call, chain: &RuleChain) -> Result<(), Failure> {
    Ok(call
        .world
        .devices()
        .reload_chain(chain.tenant_id, chain.id.unwrap_or_default(), call.now_ms)?)
}

#[derive(Deserialize)]
struct NameBody {
    name: String,
}

fn save_default(call: &Call, (): (), _: NoQuery, Body(body): Body<NameBody>) -> Outcome<RuleChain> {
    let chain = RuleChain {
        tenant_id: call.tenant(),
        name: body.name,
        ..RuleChain::default()
    };
    let saved = call.entities().save_rule_chain(chain, call.now_ms)?;
    let id = saved.id.unwrap_or_default();
    Ok(Json(shown(put_metadata(
        call,
        id,
        root_metadata(RootShape::WithDeviceProfile),
    )?)))
}

fn read(call: &Call, id: Uuid, _: NoQuery, (): ()) -> Outcome<RuleChain> {
    Ok(Json(shown(call.entity(id, Verb::Read)?)))
}

fn remove(call: &Call, id: Uuid, _: NoQuery, (): ()) -> Result<(), Failure> {
    let chain: RuleChain = call.entity(id, Verb::Delete)?;
    call.entities().delete_rule_chain(RuleChainId(id))?;
    reload(call, &chain)
}

#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct LanguageQuery {
    /// JS; TBEL is not supported.
    script_lang: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ScriptBody {
    script: String,
    script_type: String,
    /// JSON.
    msg: String,
    #[serde(default)]
    metadata: Value,
    #[serde(default)]
    msg_type: String,
}

fn test_script(call: &Call, (): (), query: LanguageQuery, Body(body): Body<ScriptBody>) -> Outcome<Value> {
    let tenant = call.person.tenant;
    let _trial = Trial::begin(tenant)?;
    let (output, error) = match tried(tenant, &query, &body) {
        Ok(output) => (output, String::new()),
        Err(error) => (String::new(), error),
    };
    Ok(Json(json!({"output": output, "error": error})))
}

/// A tenant tries few scripts at a time: each may take half a second.
struct Trial(TenantId);

const TRIALS_MAX: usize = 2;
static TRIALS: Mutex<Vec<TenantId>> = Mutex::new(Vec::new());

impl Trial {
    fn begin(tenant: TenantId) -> Result<Trial, Failure> {
        let mut trials = TRIALS.lock().unwrap_or_else(PoisonError::into_inner);
        if trials.iter().filter(|trial| **trial == tenant).count() >= TRIALS_MAX {
            let message = format!("{TRIALS_MAX} scripts of this tenant are being tried: try this one after them");
            return Err(Failure::new(Code::TooManyRequests, message).retry_after(1));
        }
        trials.push(tenant);
        Ok(Trial(tenant))
    }
}

impl Drop for Trial {
    fn drop(&mut self) {
        let mut trials = TRIALS.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(index) = trials.iter().position(|trial| *trial == self.0) {
            trials.swap_remove(index);
        }
    }
}

fn tried(tenant: TenantId, query: &LanguageQuery, body: &ScriptBody) -> Result<String, String> {
    if query.script_lang.as_deref().is_some_and(|language| language != "JS") {
        return Err("scripts in TBEL are not supported: write them in JavaScript".to_owned());
    }
    let kind =
        ScriptKind::parse(&body.script_type).ok_or_else(|| format!("Unsupported script type: {}", body.script_type))?;
    let data = serde_json::from_str(&body.msg).map_err(|error| format!("msg is no JSON: {error}"))?;
    let message = Message {
        kind: body.msg_type.as_str().into(),
        originator: RuleNodeId::NULL.entity(),
        customer: platform::ids::CustomerId::NULL,
        metadata: Metadata::from_json(&body.metadata),
        data: Data::Json(data),
        ts_ms: 0,
    };
    let output = Script::new(tenant, &body.script, kind)?
        .run(&message)
        .map_err(|error| error.0)?;
    Ok(match output {
        Value::String(text) if kind == ScriptKind::Text => text,
        output => output.to_string(),
    })
}

fn metadata(call: &Call, id: Uuid, _: NoQuery, (): ()) -> Outcome<Value> {
    let chain: RuleChain = call.entity(id, Verb::Read)?;
    Ok(Json(metadata_json(&chain)))
}

fn metadata_json(chain: &RuleChain) -> Value {
    let empty = json!({"firstNodeIndex": null, "nodes": [], "connections": [], "ruleChainConnections": null});
    let mut metadata = chain.metadata.clone().filter(Value::is_object).unwrap_or(empty);
    metadata["ruleChainId"] = json!(chain.id);
    metadata["version"] = json!(chain.version);
    metadata
}

fn is_tbel_enabled(_: &Call, (): (), _: NoQuery, (): ()) -> Outcome<bool> {
    Ok(Json(false))
}

fn nodes_of<'a>(chain: &'a RuleChain, class: &str) -> impl Iterator<Item = (usize, &'a Value)> {
    let nodes = chain
        .metadata
        .as_ref()
        .and_then(|metadata| metadata["nodes"].as_array());
    let class = class.to_owned();
    let nodes = nodes.into_iter().flatten().enumerate();
    nodes.filter(move |(_, node)| {
        node["type"]
            .as_str()
            .is_some_and(|kind| kind.rsplit('.').next() == Some(class.as_str()))
    })
}

fn output_labels(call: &Call, id: Uuid, _: NoQuery, (): ()) -> Outcome<BTreeSet<String>> {
    let chain: RuleChain = call.entity(id, Verb::Read)?;
    let names = nodes_of(&chain, "TbRuleChainOutputNode").filter_map(|(_, node)| node["name"].as_str());
    Ok(Json(names.map(str::to_owned).collect()))
}

fn output_labels_usage(call: &Call, id: Uuid, _: NoQuery, (): ()) -> Outcome<Vec<Value>> {
    call.entity::<RuleChain>(id, Verb::Read)?;
    let mut usage = Vec::new();
    lists::for_each::<RuleChain>(call, &call.own(), &mut |chain| {
        let of_chain = id.to_string();
        for (index, node) in nodes_of(&chain, "TbRuleChainInputNode") {
            if node["configuration"]["ruleChainId"] != of_chain.as_str() {
                continue;
            }
            let connections = chain
                .metadata
                .as_ref()
                .and_then(|metadata| metadata["connections"].as_array());
            let connections = connections.into_iter().flatten();
            let labels: BTreeSet<&str> = connections
                .filter(|connection| connection["fromIndex"] == index)
                .filter_map(|connection| connection["type"].as_str())
                .collect();
            usage.push(
                json!({"ruleChainId": chain.id, "ruleNodeId": node["id"], "ruleChainName": chain.name,
                "ruleNodeName": node["name"], "labels": labels}),
            );
        }
        Ok(())
    })?;
    Ok(Json(usage))
}

fn save_metadata(call: &Call, (): (), _: NoQuery, Body(metadata): Body<Value>) -> Outcome<Value> {
    let id = metadata["ruleChainId"]["id"].as_str().and_then(Uuid::parse);
    let id = id.ok_or_else(|| Failure::bad_request("Rule chain id is not specified!"))?;
    call.entity::<RuleChain>(id, Verb::Write)?;
    Ok(Json(metadata_json(&put_metadata(call, RuleChainId(id), metadata)?)))
}

fn node_id(node: &Value) -> Option<Uuid> {
    node["id"]["id"].as_str().and_then(Uuid::parse)
}

/// Checked, with an identifier for each node, saved and running.
fn put_metadata(call: &Call, id: RuleChainId, mut metadata: Value) -> Result<RuleChain, Failure> {
    Chain::compile(call.person.tenant, id, &metadata).map_err(|error| Failure::bad_request(error.to_string()))?;
    let before: RuleChain = call.entities().get(id.0)?;
    let before = before.metadata.unwrap_or_default();
    let known = before["nodes"].as_array().into_iter().flatten();
    let known: Vec<Uuid> = known.filter_map(node_id).collect();
    call.entities().identify_nodes(&mut metadata, &known, call.now_ms);
    for node in metadata["nodes"].as_array_mut().into_iter().flatten() {
        node["ruleChainId"] = json!(id);
    }
    if let Some(fields) = metadata.as_object_mut() {
        fields.remove("ruleChainId");
        fields.remove("version");
    }
    let first = metadata["firstNodeIndex"]
        .as_u64()
        .and_then(|index| usize::try_from(index).ok());
    let first = first.and_then(|index| node_id(&metadata["nodes"][index]));
    call.entities().save_rule_chain_metadata(id, metadata, call.now_ms)?;
    let stored: RuleChain = call.entities().get(id.0)?;
    let chain = RuleChain {
        first_rule_node_id: first.map(RuleNodeId),
        version: None,
        ..stored
    };
    let saved = call.entities().save_rule_chain(chain, call.now_ms)?;
    reload(call, &saved)?;
    Ok(saved)
}

fn set_root(call: &Call, id: Uuid, _: NoQuery, (): ()) -> Outcome<RuleChain> {
    call.entity::<RuleChain>(id, Verb::Write)?;
    let before = call.entities().root_chain(call.tenant())?;
    let root = call.entities().set_root_chain(RuleChainId(id), call.now_ms)?;
    // Devices go on talking: the new one is there before the old one goes.
    reload(call, &root)?;
    if let Some(before) = before.filter(|before| before.id != root.id) {
        reload(call, &before)?;
    }
    Ok(Json(shown(root)))
}

fn export(call: &Call, (): (), query: LimitQuery, (): ()) -> Outcome<Value> {
    let limit = usize::try_from(query.limit).unwrap_or(0).min(EXPORTED_MAX);
    let page = call
        .entities()
        .page::<RuleChain>(&call.own(), &platform::PageLink::new(limit.max(1), 0))?;
    let metadata: Vec<Value> = page.data.iter().map(metadata_json).collect();
    let chains: Vec<RuleChain> = page.data.into_iter().map(shown).collect();
    Ok(Json(json!({"ruleChains": chains, "metadata": metadata})))
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ImportBody {
    rule_chains: Vec<RuleChain>,
    metadata: Vec<Value>,
}

fn import(call: &Call, (): (), query: OverwriteQuery, Body(body): Body<ImportBody>) -> Outcome<Vec<Value>> {
    if body.rule_chains.len() > EXPORTED_MAX {
        return Err(Failure::bad_request(format!("More than {EXPORTED_MAX} rule chains")));
    }
    let is_overwriting = query.overwrite == Some(true);
    let (mut results, mut ids) = (Vec::new(), Vec::new());
    for chain in body.rule_chains {
        let old = chain.id;
        let (saved, is_updated) = import_one(call, chain, is_overwriting)?;
        let id = saved.id.unwrap_or_default();
        ids.extend(old.map(|old| (old, id)));
        results.push(
            json!({"tenantId": call.tenant(), "ruleChainId": id, "ruleChainName": saved.name,
            "updated": is_updated, "error": null}),
        );
    }
    for metadata in body.metadata {
        let old = metadata["ruleChainId"]["id"].as_str().and_then(Uuid::parse);
        let new = old.and_then(|old| ids.iter().find(|(known, _)| known.0 == old));
        let Some((_, id)) = new else {
            return Err(Failure::bad_request(
                "Metadata of a rule chain that is not in the import",
            ));
        };
        if let Err(failure) = put_metadata(call, *id, renamed(&metadata, &ids)?) {
            let of_chain = |result: &&mut Value| result["ruleChainId"]["id"] == id.to_string().as_str();
            if let Some(result) = results.iter_mut().find(of_chain) {
                result["error"] = failure.message().into();
            }
        }
    }
    Ok(Json(results))
}

fn import_one(call: &Call, mut chain: RuleChain, is_overwriting: bool) -> Result<(RuleChain, bool), Failure> {
    let known: Option<RuleChain> = call.entities().find_by_name(call.tenant().0, &chain.name)?;
    let known = known.filter(|_| is_overwriting);
    chain.id = known.as_ref().and_then(|known| known.id);
    (chain.version, chain.metadata, chain.first_rule_node_id) = (None, None, None);
    chain.tenant_id = call.tenant();
    Ok((call.entities().save_rule_chain(chain, call.now_ms)?, known.is_some()))
}

/// With the identifiers that chains have here, and none of nodes.
fn renamed(metadata: &Value, ids: &[(RuleChainId, RuleChainId)]) -> Result<Value, Failure> {
    let mut text = metadata.to_string();
    for (old, new) in ids {
        text = text.replace(&old.to_string(), &new.to_string());
    }
    let mut metadata: Value = serde_json::from_str(&text).map_err(|error| Failure::bad_request(error.to_string()))?;
    for node in metadata["nodes"].as_array_mut().into_iter().flatten() {
        if let Some(fields) = node.as_object_mut() {
            fields.insert("id".to_owned(), Value::Null);
        }
    }
    Ok(metadata)
}
