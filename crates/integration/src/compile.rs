//! Compiles the definition of a rule.

use std::sync::Arc;

use connectors::mqtt::PublishUserProperties;
use mqtt::QoS;
use rules::{FromEntry, Rule, RuleLimits, Template};
use serde_json::Value;

use crate::cause::hash;
use crate::definition::{RepublishArguments, RuleActionDefinition, RuleDefinition, RuleFunction};
use crate::kinds::{self, Problems};
use crate::metrics::RuleMetrics;
use crate::set::{FixedOrTemplate, LiveRule, Republish, RuleOutput};
use crate::tail::RuleTail;
use crate::timing::Timing;

/// State of a rule that is preserved when this rule or another definition changes.
#[derive(Clone, Debug, Default)]
pub struct RuleState {
    pub metrics: Arc<RuleMetrics>,
    pub tail: Arc<RuleTail>,
    /// Replaced when the text of the rule changes.
    pub timing: Arc<Timing>,
    compiled: Option<Arc<Rule>>,
}

impl RuleState {
    /// Compiles the rule, unless its text is unchanged.
    pub fn prepare(&mut self, definition: &RuleDefinition) -> Result<(), Problems> {
        if self.compiled.as_ref().is_none_or(|rule| rule.sql() != definition.sql) {
            self.compiled = Some(self.compile(definition)?);
            self.timing = Arc::default();
        }
        Ok(())
    }

    /// Returns the names in FROM.
    pub fn from(&self) -> Vec<String> {
        let sources = self.compiled.iter().flat_map(|rule| rule.sources());
        sources.map(name_of).collect()
    }

    /// Returns the compiled rule, if there is one.
    pub fn rule(&self) -> Option<&Rule> {
        self.compiled.as_deref()
    }

    fn compile(&self, definition: &RuleDefinition) -> Result<Arc<Rule>, Problems> {
        let rule = Rule::compile(&definition.sql, &limits()).map_err(|error| vec![format!("sql: {error}")])?;
        Ok(Arc::new(rule.with_id(&definition.id)))
    }

    fn compiled(&self, definition: &RuleDefinition) -> Result<Arc<Rule>, Problems> {
        match &self.compiled {
            Some(rule) if rule.sql() == definition.sql => Ok(rule.clone()),
            _ => self.compile(definition),
        }
    }
}

fn name_of(source: &FromEntry) -> String {
    match source {
        FromEntry::Topic(name) | FromEntry::Bridge(name) => name.clone(),
        FromEntry::Event(kind) => kind.topics().first().copied().unwrap_or_default().to_owned(),
    }
}

pub fn limits() -> RuleLimits {
    RuleLimits::default()
}

/// Compiles a rule. `action` returns the index of an action by its id `type:name`. A missing action is not an error,
/// because it may be created later.
pub fn compile(
    definition: &RuleDefinition,
    state: &RuleState,
    action: impl Fn(&str) -> Option<usize>,
) -> Result<LiveRule, Problems> {
    let rule = state.compiled(definition)?;
    let (mut outputs, mut problems) = (Vec::new(), Vec::new());
    for (index, target) in definition.actions.iter().enumerate() {
        match target {
            RuleActionDefinition::Action(id) if !is_action_id(id) => problems.push(format!(
                "actions[{index}]: {id:?} is not type:name with one of the types {}",
                kinds::CONNECTOR_KINDS
                    .iter()
                    .chain(kinds::LOCAL_KINDS)
                    .copied()
                    .collect::<Vec<_>>()
                    .join(", ")
            )),
            RuleActionDefinition::Action(id) => outputs.push(match action(id) {
                Some(index) => RuleOutput::Action(index),
                None => RuleOutput::OutOfService(id.clone()),
            }),
            RuleActionDefinition::Function(RuleFunction::Console) => outputs.push(RuleOutput::Console),
            RuleActionDefinition::Function(RuleFunction::Republish(arguments)) => match republish(arguments) {
                Ok(republish) => outputs.push(RuleOutput::Republish(Box::new(republish))),
                Err(problem) => problems.push(format!("actions[{index}].args.{problem}")),
            },
        }
    }
    if !problems.is_empty() {
        return Err(problems);
    }
    Ok(LiveRule {
        id: definition.id.clone(),
        mark: (hash(definition.id.as_bytes()) as u32).max(1),
        rule,
        outputs,
        metrics: state.metrics.clone(),
        tail: state.tail.clone(),
        timing: state.timing.clone(),
    })
}

fn is_action_id(id: &str) -> bool {
    id.split_once(':')
        .is_some_and(|(kind, name)| kinds::is_kind(kind) && !name.is_empty())
}

pub fn republish(arguments: &RepublishArguments) -> Result<Republish, String> {
    let user = |(name, value): (&String, &String)| {
        Ok((template("user_properties", name)?, template("user_properties", value)?))
    };
    let (user_properties, more_user_properties) = match &arguments.user_properties {
        PublishUserProperties::Each(each) => (each.iter().map(user).collect::<Result<_, String>>()?, None),
        PublishUserProperties::All(text) if text.is_empty() => (Vec::new(), None),
        PublishUserProperties::All(text) => (Vec::new(), Some(template("user_properties", text)?)),
    };
    let payload = match arguments.payload.as_str() {
        "" => "${.}",
        payload => payload,
    };
    let [
        content_type,
        response_topic,
        correlation_data,
        payload_format,
        message_expiry,
    ] = properties(arguments)?;
    Ok(Republish {
        topic: topic(&arguments.topic)?,
        payload: document("payload", payload)?,
        qos: qos(&arguments.qos)?,
        retain: boolean("retain", &arguments.retain)?,
        user_properties,
        user_properties_map: more_user_properties,
        content_type,
        response_topic,
        correlation_data,
        payload_format,
        message_expiry,
        direct_dispatch: boolean("direct_dispatch", &arguments.direct_dispatch)?,
    })
}

/// Compiles what a source publishes. By default it has the properties of the received message.
pub fn published(arguments: &RepublishArguments) -> Result<Republish, String> {
    let mut arguments = arguments.clone();
    if arguments.user_properties == PublishUserProperties::default() {
        arguments.user_properties = connectors::mqtt::message_user_properties();
    }
    for (name, text) in connectors::mqtt::message_properties() {
        arguments.mqtt_properties.entry(name).or_insert(text);
    }
    republish(&arguments)
}

/// Compiles content type, response topic, correlation data, payload format and expiry, by our names or by EMQX's.
fn properties(arguments: &RepublishArguments) -> Result<[Option<Template>; 5], String> {
    let all = [
        ("content_type", "Content-Type", &arguments.content_type),
        ("response_topic", "Response-Topic", &arguments.response_topic),
        ("correlation_data", "Correlation-Data", &arguments.correlation_data),
        ("mqtt_properties", "Payload-Format-Indicator", &None),
        ("mqtt_properties", "Message-Expiry-Interval", &None),
    ];
    let given = &arguments.mqtt_properties;
    if let Some(unknown) = given.keys().find(|name| !all.iter().any(|(_, known, _)| known == name)) {
        let known = all.map(|(_, known, _)| known).join(", ");
        return Err(format!(
            "mqtt_properties: {unknown:?} is unknown, must be one of {known}"
        ));
    }
    let mut templates = [const { None }; 5];
    for (template, (field, name, text)) in templates.iter_mut().zip(all) {
        *template = optional(field, text.as_ref().or(given.get(name)))?;
    }
    Ok(templates)
}

pub fn template(field: &str, text: &str) -> Result<Template, String> {
    Template::compile(text).map_err(|error| format!("{field}: {error}"))
}

/// Compiles the template of a payload, which may be JSON.
pub fn document(field: &str, text: &str) -> Result<Template, String> {
    Template::compile_document(text).map_err(|error| format!("{field}: {error}"))
}

fn optional(field: &str, text: Option<&String>) -> Result<Option<Template>, String> {
    text.map(|text| template(field, text)).transpose()
}

fn topic(text: &str) -> Result<Template, String> {
    let topic = template("topic", text)?;
    if topic.is_constant() {
        mqtt::validate_topic_name(text).map_err(|error| format!("topic: {text:?}: {error}"))?;
    }
    Ok(topic)
}

fn qos(value: &Value) -> Result<FixedOrTemplate<QoS>, String> {
    let invalid = || format!("qos: {value} is not 0, 1, 2 or a template");
    match value {
        Value::Null => Ok(FixedOrTemplate::Fixed(QoS::AtMostOnce)),
        Value::String(text) if text.contains("${") => Ok(FixedOrTemplate::Template(template("qos", text)?)),
        Value::Number(number) => match number.as_u64() {
            Some(0) => Ok(FixedOrTemplate::Fixed(QoS::AtMostOnce)),
            Some(1) => Ok(FixedOrTemplate::Fixed(QoS::AtLeastOnce)),
            Some(2) => Ok(FixedOrTemplate::Fixed(QoS::ExactlyOnce)),
            _ => Err(invalid()),
        },
        _ => Err(invalid()),
    }
}

fn boolean(field: &str, value: &Value) -> Result<FixedOrTemplate<bool>, String> {
    match value {
        Value::Null => Ok(FixedOrTemplate::Fixed(false)),
        Value::Bool(retain) => Ok(FixedOrTemplate::Fixed(*retain)),
        Value::String(text) if text.contains("${") => Ok(FixedOrTemplate::Template(template(field, text)?)),
        _ => Err(format!("{field}: {value} is not true, false or a template")),
    }
}
