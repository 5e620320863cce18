//! Rule chains: properties, metadata (nodes and connections), the root chain, import and export.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use axum::Json;
use axum::http::StatusCode;
use platform::PageData;
use platform::chain::{
    ChainMessage, CompiledChain, MessageData, Metadata, RootShape, Script, ScriptKind, root_metadata,
};
use platform::ids::{RuleChainId, RuleNodeId, TenantId, Uuid};
use platform::model::RuleChain;
use platform::repository::Selection;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use super::authorities::Authorities;
use super::call::{ApiCall, Verb};
use super::failure::{ThingsboardError, ThingsboardErrorCode};
use super::lists::{self, list_query};
use super::operation::{HandlerResult, JsonBody, NoQuery, delete, get, post};
use crate::services::Endpoint;

/// Limit of rule chains in an export or import.
const EXPORTED_MAX: usize = 1000;

pub fn endpoints() -> Vec<Endpoint> {
    let all = vec![
        get("/api/ruleChains", "get_rule_chains", Authorities::TENANT_ADMIN, list)
            .describe("List rule chains", "Without their metadata.")
            .returns_json("A page of rule chains."),
        post("/api/ruleChain", "save_rule_chain", Authorities::TENANT_ADMIN, save)
            .describe("Create or change a rule chain", "Its nodes and connections are saved as metadata.")
            .returns_json("The rule chain."),
        post("/api/ruleChain/device/default", "save_default_rule_chain", Authorities::TENANT_ADMIN, save_default)
            .describe("Create a default rule chain", "A copy of the initial root chain, with the name in the body.")
            .returns_json("The rule chain."),
        get("/api/ruleChain/{ruleChainId}", "get_rule_chain", Authorities::TENANT_ADMIN, read)
            .describe("Read a rule chain", "Without its metadata.")
            .returns_json("The rule chain."),
        delete("/api/ruleChain/{ruleChainId}", "delete_rule_chain", Authorities::TENANT_ADMIN, remove)
            .describe("Delete a rule chain", "Fails for the root chain, and for chains that device profiles use.")
            .returns_empty("Deleted."),
        get("/api/ruleChain/{ruleChainId}/metadata", "get_rule_chain_metadata", Authorities::TENANT_ADMIN, metadata)
            .describe("Read the metadata of a rule chain", "Its nodes and connections.")
            .returns_json("The metadata."),
        get("/api/ruleChain/tbelEnabled", "is_tbel_enabled", Authorities::TENANT_ADMIN, is_tbel_enabled)
            .describe("Whether TBEL scripts are supported", "Always `false`: only JavaScript is supported.")
            .returns_json("`false`."),
        get(
            "/api/ruleChain/{ruleChainId}/output/labels",
            "get_rule_chain_output_labels",
            Authorities::TENANT_ADMIN,
            output_labels,
        )
        .describe("List a rule chain's outputs", "Names of its output nodes, which are connections in chains that use it.")
        .returns_json("The names."),
        get(
            "/api/ruleChain/{ruleChainId}/output/labels/usage",
            "get_rule_chain_output_labels_usage",
            Authorities::TENANT_ADMIN,
            output_labels_usage,
        )
        .describe("List uses of a rule chain's outputs", "Nodes that lead into this chain, and the connections that follow them.")
        .returns_json("Rule chain, name and labels of each node."),
        post("/api/ruleChain/testScript", "test_script", Authorities::TENANT_ADMIN, test_script)
            .describe(
                "Test a script",
                "Runs the script with a message, like a node of this type. The result is in `output`, or the error in `error`.",
            )
            .returns_json("`{\"output\": \"…\", \"error\": \"\"}`")
            .fails(StatusCode::TOO_MANY_REQUESTS),
        post("/api/ruleChain/metadata", "save_rule_chain_metadata", Authorities::TENANT_ADMIN, save_metadata)
            .describe("Save the metadata of a rule chain", "It runs at once. Nodes that cannot run are stored as disabled.")
            .returns_json("The metadata with the IDs of its nodes."),
        post("/api/ruleChain/{ruleChainId}/root", "set_root_rule_chain", Authorities::TENANT_ADMIN, set_root)
            .describe("Set the root rule chain", "It processes messages of devices whose profile names no other chain.")
            .returns_json("The rule chain."),
        get("/api/ruleChains/export", "export_rule_chains", Authorities::TENANT_ADMIN, export)
            .describe("Export rule chains", "All rule chains of the tenant, at most `limit`.")
            .returns_json("`ruleChains` and their `metadata`."),
        post("/api/ruleChains/import", "import_rule_chains", Authorities::TENANT_ADMIN, import)
            .describe("Import rule chains", "The contents of an export. References between the chains are preserved. With `overwrite`, chains with the same name are changed.")
            .returns_json("Result for each rule chain."),
    ];
    all.into_iter().map(|endpoint| endpoint.tag("Rule chains")).collect()
}

list_query!(ChainQuery {
    /// Only rule chains of this type: CORE.
    #[serde(rename = "type")]
    kind: Option<String>,
});

#[derive(Deserialize, JsonSchema)]
struct LimitQuery {
    /// Highest number of rule chains.
    limit: i64,
}

#[derive(Deserialize, JsonSchema)]
struct OverwriteQuery {
    /// Change existing rule chains with the same name.
    overwrite: Option<bool>,
}

/// Returns the chain without its metadata, for answers.
fn without_metadata(chain: RuleChain) -> RuleChain {
    RuleChain {
        metadata: None,
        ..chain
    }
}

fn list(call: &ApiCall, (): (), query: ChainQuery, (): ()) -> HandlerResult<PageData<RuleChain>> {
    let selection = Selection {
        subtype: lists::non_empty(query.kind.clone()),
        ..call.own_entities()
    };
    let page = call.entities().page::<RuleChain>(&selection, &query.link()?)?;
    Ok(Json(
        page.try_map(|chain| Ok::<_, ThingsboardError>(without_metadata(chain)))?,
    ))
}

fn save(call: &ApiCall, (): (), _: NoQuery, JsonBody(mut chain): JsonBody<RuleChain>) -> HandlerResult<RuleChain> {
    if let Some(id) = chain.id {
        let stored: RuleChain = call.entity(id.0, Verb::Write)?;
        chain.first_rule_node_id = stored.first_rule_node_id;
    } else {
        (chain.first_rule_node_id, chain.metadata) = (None, None);
    }
    chain.tenant_id = call.tenant();
    let saved = call.entities().save_rule_chain(chain, call.now_ms)?;
    reload(call, &saved)?;
    Ok(Json(without_metadata(saved)))
}

fn reload(call: &ApiCall, chain: &RuleChain) -> Result<(), ThingsboardError> {
    Ok(call
        .platform_access
        .devices()
        .reload_chain(chain.tenant_id, chain.id.unwrap_or_default(), call.now_ms)?)
}

#[derive(Deserialize)]
struct NameBody {
    name: String,
}

fn save_default(call: &ApiCall, (): (), _: NoQuery, JsonBody(body): JsonBody<NameBody>) -> HandlerResult<RuleChain> {
    let chain = RuleChain {
        tenant_id: call.tenant(),
        name: body.name,
        ..RuleChain::default()
    };
    let saved = call.entities().save_rule_chain(chain, call.now_ms)?;
    let id = saved.id.unwrap_or_default();
    Ok(Json(without_metadata(put_metadata(
        call,
        id,
        root_metadata(RootShape::WithDeviceProfile),
    )?)))
}

fn read(call: &ApiCall, id: Uuid, _: NoQuery, (): ()) -> HandlerResult<RuleChain> {
    Ok(Json(without_metadata(call.entity(id, Verb::Read)?)))
}

fn remove(call: &ApiCall, id: Uuid, _: NoQuery, (): ()) -> Result<(), ThingsboardError> {
    let chain: RuleChain = call.entity(id, Verb::Delete)?;
    call.entities().delete_rule_chain(RuleChainId(id))?;
    reload(call, &chain)
}

#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct LanguageQuery {
    /// JS. TBEL is not supported.
    script_lang: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ScriptBody {
    script: String,
    script_type: String,
    /// The message data as JSON.
    msg: String,
    #[serde(default)]
    metadata: Value,
    #[serde(default)]
    msg_type: String,
}

fn test_script(
    call: &ApiCall,
    (): (),
    query: LanguageQuery,
    JsonBody(body): JsonBody<ScriptBody>,
) -> HandlerResult<Value> {
    let tenant = call.principal.tenant;
    let _trial = ScriptTest::begin(tenant)?;
    let (output, error) = match run_script(call, &query, &body) {
        Ok(output) => (output, String::new()),
        Err(error) => (String::new(), error),
    };
    Ok(Json(json!({"output": output, "error": error})))
}

/// Limits concurrent script tests of a tenant, because each may take a second.
struct ScriptTest(TenantId);

const SCRIPT_TESTS_MAX: usize = 2;
static SCRIPT_TESTS: Mutex<Vec<TenantId>> = Mutex::new(Vec::new());

impl ScriptTest {
    fn begin(tenant: TenantId) -> Result<ScriptTest, ThingsboardError> {
        let mut trials = SCRIPT_TESTS.lock().unwrap_or_else(PoisonError::into_inner);
        if trials.iter().filter(|trial| **trial == tenant).count() >= SCRIPT_TESTS_MAX {
            let message = format!("{SCRIPT_TESTS_MAX} scripts of this tenant are being tested; try again later");
            return Err(ThingsboardError::new(ThingsboardErrorCode::TooManyRequests, message).retry_after(1));
        }
        trials.push(tenant);
        Ok(ScriptTest(tenant))
    }
}

impl Drop for ScriptTest {
    fn drop(&mut self) {
        let mut trials = SCRIPT_TESTS.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(index) = trials.iter().position(|trial| *trial == self.0) {
            trials.swap_remove(index);
        }
    }
}

fn run_script(call: &ApiCall, query: &LanguageQuery, body: &ScriptBody) -> Result<String, String> {
    if query.script_lang.as_deref().is_some_and(|language| language != "JS") {
        return Err("scripts in TBEL are not supported: write them in JavaScript".to_owned());
    }
    let kind =
        ScriptKind::parse(&body.script_type).ok_or_else(|| format!("Unsupported script type: {}", body.script_type))?;
    let data = serde_json::from_str(&body.msg).map_err(|error| format!("msg is not valid JSON: {error}"))?;
    let message = ChainMessage {
        kind: body.msg_type.as_str().into(),
        originator: RuleNodeId::NULL.entity(),
        customer: platform::ids::CustomerId::NULL,
        metadata: Metadata::from_json(&body.metadata),
        data: MessageData::Json(data),
        ts_ms: 0,
    };
    let script = Script::new(call.principal.tenant, &body.script, kind)?;
    let output = call.platform().run_script(&script, &message).map_err(|error| error.0)?;
    Ok(match output {
        Value::String(text) if kind == ScriptKind::Text => text,
        output => output.to_string(),
    })
}

fn metadata(call: &ApiCall, id: Uuid, _: NoQuery, (): ()) -> HandlerResult<Value> {
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

fn is_tbel_enabled(_: &ApiCall, (): (), _: NoQuery, (): ()) -> HandlerResult<bool> {
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

fn output_labels(call: &ApiCall, id: Uuid, _: NoQuery, (): ()) -> HandlerResult<BTreeSet<String>> {
    let chain: RuleChain = call.entity(id, Verb::Read)?;
    let names = nodes_of(&chain, "TbRuleChainOutputNode").filter_map(|(_, node)| node["name"].as_str());
    Ok(Json(names.map(str::to_owned).collect()))
}

fn output_labels_usage(call: &ApiCall, id: Uuid, _: NoQuery, (): ()) -> HandlerResult<Vec<Value>> {
    call.entity::<RuleChain>(id, Verb::Read)?;
    let mut usage = Vec::new();
    lists::for_each::<RuleChain>(call, &call.own_entities(), &mut |chain| {
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

fn save_metadata(call: &ApiCall, (): (), _: NoQuery, JsonBody(metadata): JsonBody<Value>) -> HandlerResult<Value> {
    let id = metadata["ruleChainId"]["id"].as_str().and_then(Uuid::parse);
    let id = id.ok_or_else(|| ThingsboardError::bad_request("Rule chain id is not specified!"))?;
    call.entity::<RuleChain>(id, Verb::Write)?;
    Ok(Json(metadata_json(&put_metadata(call, RuleChainId(id), metadata)?)))
}

fn node_id(node: &Value) -> Option<Uuid> {
    node["id"]["id"].as_str().and_then(Uuid::parse)
}

/// Checks the metadata, assigns an ID to each node, saves the chain and runs it.
fn put_metadata(call: &ApiCall, id: RuleChainId, mut metadata: Value) -> Result<RuleChain, ThingsboardError> {
    CompiledChain::compile(call.principal.tenant, id, &metadata)
        .map_err(|error| ThingsboardError::bad_request(error.to_string()))?;
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

fn set_root(call: &ApiCall, id: Uuid, _: NoQuery, (): ()) -> HandlerResult<RuleChain> {
    call.entity::<RuleChain>(id, Verb::Write)?;
    let before = call.entities().root_chain(call.tenant())?;
    let root = call.entities().set_root_chain(RuleChainId(id), call.now_ms)?;
    // Start the new root before the old one stops, because devices keep sending messages.
    reload(call, &root)?;
    if let Some(before) = before.filter(|before| before.id != root.id) {
        reload(call, &before)?;
    }
    Ok(Json(without_metadata(root)))
}

fn export(call: &ApiCall, (): (), query: LimitQuery, (): ()) -> HandlerResult<Value> {
    let limit = usize::try_from(query.limit).unwrap_or(0).min(EXPORTED_MAX);
    let page = call
        .entities()
        .page::<RuleChain>(&call.own_entities(), &platform::PageLink::new(limit.max(1), 0))?;
    let metadata: Vec<Value> = page.data.iter().map(metadata_json).collect();
    let chains: Vec<RuleChain> = page.data.into_iter().map(without_metadata).collect();
    Ok(Json(json!({"ruleChains": chains, "metadata": metadata})))
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ImportBody {
    rule_chains: Vec<RuleChain>,
    metadata: Vec<Value>,
}

fn import(
    call: &ApiCall,
    (): (),
    query: OverwriteQuery,
    JsonBody(body): JsonBody<ImportBody>,
) -> HandlerResult<Vec<Value>> {
    if body.rule_chains.len() > EXPORTED_MAX {
        return Err(ThingsboardError::bad_request(format!(
            "More than {EXPORTED_MAX} rule chains"
        )));
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
            return Err(ThingsboardError::bad_request(
                "Metadata of a rule chain that is not part of the import",
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

fn import_one(
    call: &ApiCall,
    mut chain: RuleChain,
    is_overwriting: bool,
) -> Result<(RuleChain, bool), ThingsboardError> {
    let known: Option<RuleChain> = call.entities().find_by_name(call.tenant().0, &chain.name)?;
    let known = known.filter(|_| is_overwriting);
    chain.id = known.as_ref().and_then(|known| known.id);
    (chain.version, chain.metadata, chain.first_rule_node_id) = (None, None, None);
    chain.tenant_id = call.tenant();
    Ok((call.entities().save_rule_chain(chain, call.now_ms)?, known.is_some()))
}

/// Replaces the IDs of chains by those of this server, and removes the IDs of nodes.
fn renamed(metadata: &Value, ids: &[(RuleChainId, RuleChainId)]) -> Result<Value, ThingsboardError> {
    let mut text = metadata.to_string();
    for (old, new) in ids {
        text = text.replace(&old.to_string(), &new.to_string());
    }
    let mut metadata: Value =
        serde_json::from_str(&text).map_err(|error| ThingsboardError::bad_request(error.to_string()))?;
    for node in metadata["nodes"].as_array_mut().into_iter().flatten() {
        if let Some(fields) = node.as_object_mut() {
            fields.insert("id".to_owned(), Value::Null);
        }
    }
    Ok(metadata)
}
