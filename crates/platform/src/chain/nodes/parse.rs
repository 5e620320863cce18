//! Parses parts of node configurations as written by ThingsBoard's editor, in the formats of all releases.

use serde_json::Value as Json;

use super::action::GeneratorNode;
use super::save::SaveStrategy;
use super::{
    AlarmNode, AttributesNode, DeltaNode, MessageSection, NodeKind, OriginatorSource, Owner, OwnerAttributesNode,
    RelatedEntities, RelationNode, SaveAttributesNode, SaveTimeseriesNode,
};
use crate::chain::script::{Script, ScriptKind};
use crate::ids::{EntityId, EntityType, RuleChainId, TenantId, Uuid};
use crate::model::{AlarmSeverity, AttributeScope};

pub(super) fn text(json: &Json, name: &str) -> Option<String> {
    json[name].as_str().filter(|text| !text.is_empty()).map(str::to_owned)
}

pub(super) fn texts(json: &Json) -> Vec<String> {
    json.as_array()
        .into_iter()
        .flatten()
        .filter_map(Json::as_str)
        .map(str::to_owned)
        .collect()
}

pub(super) fn flag(json: &Json, name: &str) -> bool {
    json[name].as_bool().unwrap_or(false)
}

/// Parses `{"from":"to"}`, or a list of `{"key":"from","value":"to"}`.
pub(super) fn mapping(json: &Json, names: &[&str]) -> Vec<(String, String)> {
    let Some(found) = names.iter().map(|name| &json[*name]).find(|found| !found.is_null()) else {
        return Vec::new();
    };
    let pairs = found.as_object().into_iter().flatten();
    let pairs = pairs.filter_map(|(from, to)| Some((from.clone(), to.as_str()?.to_owned())));
    let list = found.as_array().into_iter().flatten();
    let list = list.filter_map(|pair| Some((text(pair, "key")?, text(pair, "value")?)));
    pairs.chain(list).collect()
}

/// Parses `"DATA"` or `"METADATA"`, or the flag for metadata of old releases.
pub(super) fn parse_section(json: &Json, names: &[&str]) -> MessageSection {
    let found = names.iter().map(|name| &json[*name]).find(|found| !found.is_null());
    match found {
        Some(Json::String(text)) if text == "DATA" => MessageSection::Data,
        Some(Json::Bool(false)) => MessageSection::Data,
        _ => MessageSection::Metadata,
    }
}

pub(super) fn scope(json: &Json) -> Result<AttributeScope, String> {
    let name = json["scope"].as_str().unwrap_or("CLIENT_SCOPE");
    AttributeScope::parse(name).ok_or_else(|| format!("{name:?} is not an attribute scope"))
}

pub(super) fn entity_type(name: &str) -> Result<EntityType, String> {
    EntityType::parse(name).ok_or_else(|| format!("entities of type {name:?} are not supported"))
}

pub(super) fn relation(json: &Json) -> Result<RelationNode, String> {
    let single = if flag(json, "checkForSingleEntity") {
        let kind = entity_type(json["entityType"].as_str().unwrap_or_default())?;
        let id = json["entityId"]
            .as_str()
            .and_then(Uuid::parse)
            .ok_or("entityId is not a UUID")?;
        Some(EntityId::new(kind, id))
    } else {
        None
    };
    Ok(RelationNode {
        is_from_entity: json["direction"].as_str() != Some("TO"),
        kind: text(json, "relationType"),
        single,
    })
}

pub(super) fn attributes(json: &Json) -> AttributesNode {
    let old_place = json["fetchToData"].as_bool().map(|to_data| {
        if to_data {
            MessageSection::Data
        } else {
            MessageSection::Metadata
        }
    });
    AttributesNode {
        client: texts(&json["clientAttributeNames"]),
        shared: texts(&json["sharedAttributeNames"]),
        server: texts(&json["serverAttributeNames"]),
        latest: texts(&json["latestTsKeyNames"]),
        fails_if_absent: json["tellFailureIfAbsent"].as_bool().unwrap_or(true),
        has_time: flag(json, "getLatestValueWithTs"),
        section: old_place.unwrap_or_else(|| parse_section(json, &["fetchTo"])),
    }
}

pub(super) fn owner_attributes(json: &Json, owner: Owner) -> NodeKind {
    let is_latest = json["dataToFetch"].as_str() == Some("LATEST_TELEMETRY") || flag(json, "telemetry");
    NodeKind::OwnerAttributes(OwnerAttributesNode {
        owner,
        is_latest,
        keys: mapping(json, &["dataMapping", "attrMapping"]),
        section: parse_section(json, &["fetchTo"]),
    })
}

pub(super) fn delta(json: &Json) -> Result<DeltaNode, String> {
    let wanted = |name: &str| text(json, name).ok_or_else(|| format!("{name} should be specified"));
    let has_period = flag(json, "addPeriodBetweenMsgs");
    Ok(DeltaNode::new(
        wanted("inputValueKey")?,
        wanted("outputValueKey")?,
        if has_period {
            Some(wanted("periodValueKey")?)
        } else {
            None
        },
        json["round"].as_u64().and_then(|round| u32::try_from(round).ok()),
        flag(json, "tellFailureIfDeltaIsNegative"),
        flag(json, "excludeZeroDeltas"),
    ))
}

pub(super) fn originator_source(json: &Json) -> Result<OriginatorSource, String> {
    Ok(match json["originatorSource"].as_str().unwrap_or_default() {
        "CUSTOMER" => OriginatorSource::Customer,
        "TENANT" => OriginatorSource::Tenant,
        "ALARM_ORIGINATOR" => OriginatorSource::Alarm,
        "RELATED" => OriginatorSource::Related(related(&json["relationsQuery"])),
        "ENTITY" => OriginatorSource::Named {
            kind: entity_type(json["entityType"].as_str().unwrap_or_default())?,
            name: text(json, "entityNamePattern").ok_or("entityNamePattern should be specified")?,
        },
        other => return Err(format!("originatorSource {other:?} is not supported")),
    })
}

pub(super) fn related(query: &Json) -> RelatedEntities {
    let filters = query["filters"].as_array().into_iter().flatten();
    let filters = filters.map(|filter| (text(filter, "relationType"), texts(&filter["entityTypes"])));
    RelatedEntities {
        is_from_entity: query["direction"].as_str() != Some("TO"),
        levels: query["maxLevel"].as_u64().unwrap_or(1),
        last_level_only: flag(query, "fetchLastLevelOnly"),
        filters: filters.collect(),
    }
}

pub(super) fn save_timeseries(json: &Json, problems: &mut Vec<String>) -> Result<SaveTimeseriesNode, String> {
    let settings = &json["processingSettings"];
    let seconds = |json: &Json| json["deduplicationIntervalSecs"].as_u64().unwrap_or(60).max(1);
    let strategy = |json: &Json| match json["type"].as_str() {
        None | Some("ON_EVERY_MESSAGE") => Ok(SaveStrategy::every()),
        Some("DEDUPLICATE") => Ok(SaveStrategy::once_in(seconds(json))),
        Some("SKIP") => Ok(SaveStrategy::never()),
        Some(other) => Err(format!("processing strategy {other:?} is not supported")),
    };
    let (history, latest, shown) = match settings["type"].as_str() {
        Some("WEBSOCKETS_ONLY") => (SaveStrategy::never(), None, SaveStrategy::every()),
        Some("ADVANCED") => (
            strategy(&settings["timeseries"])?,
            Some(strategy(&settings["latest"])?),
            strategy(&settings["webSockets"])?,
        ),
        _ => (strategy(settings)?, None, strategy(settings)?),
    };
    // Old releases have this flag instead.
    let skips_latest = settings.is_null() && flag(json, "skipLatestPersistence");
    let latest = if skips_latest {
        Some(SaveStrategy::never())
    } else {
        latest
    };
    let ttl_s = json["defaultTTL"].as_u64();
    if ttl_s.is_none() && !json["defaultTTL"].is_null() {
        problems.push(format!(
            "defaultTTL is {}, expected a whole number of seconds: the tenant's time to live is used",
            json["defaultTTL"]
        ));
    }
    Ok(SaveTimeseriesNode {
        ttl_s: ttl_s.unwrap_or(0),
        uses_server_time: flag(json, "useServerTs"),
        history,
        latest,
        shown,
    })
}

pub(super) fn save_attributes(json: &Json) -> Result<SaveAttributesNode, String> {
    Ok(SaveAttributesNode {
        scope: scope(json)?,
        notifies_device: json["notifyDevice"].as_bool().unwrap_or(true),
        only_changed: flag(json, "updateAttributesOnlyOnValueChange"),
    })
}

/// Returns `None` for the editor's default script, which does the same as the node without a script.
pub(super) fn log_script(tenant: TenantId, json: &Json) -> Result<Option<Script>, String> {
    let source = match json["scriptLang"].as_str() {
        Some("TBEL") => &json["tbelScript"],
        _ => &json["jsScript"],
    };
    let source: String = source.as_str().unwrap_or_default().split_whitespace().collect();
    let is_standard = source.is_empty()
        || source
            == r"return'\nIncomingmessage:\n'+JSON.stringify(msg)+'\nIncomingmetadata:\n'+JSON.stringify(metadata);";
    if is_standard {
        return Ok(None);
    }
    Script::parse(tenant, json, ["jsScript", "tbelScript"], ScriptKind::Text).map(Some)
}

pub(super) fn alarm(tenant: TenantId, json: &Json) -> Result<AlarmNode, String> {
    Ok(AlarmNode {
        kind: text(json, "alarmType").unwrap_or_default(),
        details: details_script(tenant, json)?,
        severity: String::new(),
        uses_message: flag(json, "useMessageAlarmData"),
        keeps_details: json["overwriteAlarmDetails"].as_bool() == Some(false),
        propagate: flag(json, "propagate"),
        propagate_to_owner: flag(json, "propagateToOwner"),
        propagate_to_tenant: flag(json, "propagateToTenant"),
        relation_types: texts(&json["relationTypes"]),
    })
}

pub(super) fn create_alarm(tenant: TenantId, json: &Json) -> Result<AlarmNode, String> {
    let node = alarm(tenant, json)?;
    let severity = text(json, "severity").unwrap_or_else(|| "CRITICAL".to_owned());
    if !severity.contains('$') && !node.uses_message && AlarmSeverity::parse(&severity).is_none() {
        return Err(format!("{severity:?} is not an alarm severity"));
    }
    Ok(AlarmNode { severity, ..node })
}

/// Parses the details script. The editor's default script keeps existing details, and sets none for a new alarm.
pub(super) fn details_script(tenant: TenantId, json: &Json) -> Result<Option<Script>, String> {
    let source = json["alarmDetailsBuildJs"].as_str().unwrap_or_default();
    let source = if json["scriptLang"].as_str() == Some("TBEL") {
        json["alarmDetailsBuildTbel"].as_str().unwrap_or_default()
    } else {
        source
    };
    if source.trim().is_empty() {
        return Ok(None);
    }
    let names = ["alarmDetailsBuildJs", "alarmDetailsBuildTbel"];
    Script::parse(tenant, json, names, ScriptKind::Details).map(Some)
}

pub(super) fn generator(tenant: TenantId, json: &Json) -> Result<GeneratorNode, String> {
    let originator = match json["originatorId"].as_str().and_then(Uuid::parse) {
        Some(id) => Some(EntityId::new(
            entity_type(json["originatorType"].as_str().unwrap_or("DEVICE"))?,
            id,
        )),
        None => None,
    };
    Ok(GeneratorNode::new(
        originator,
        json["periodInSeconds"].as_u64().unwrap_or(1).max(1),
        json["msgCount"].as_u64().unwrap_or(0),
        Script::parse(tenant, json, ["jsScript", "tbelScript"], ScriptKind::Generator)?,
    ))
}

pub(super) fn input_chain(json: &Json) -> Result<Option<RuleChainId>, String> {
    if flag(json, "forwardMsgToDefaultRuleChain") {
        return Ok(None);
    }
    let id = json["ruleChainId"].as_str().and_then(Uuid::parse);
    Ok(Some(RuleChainId(id.ok_or("ruleChainId is not a UUID")?)))
}
