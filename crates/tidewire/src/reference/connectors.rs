//! The page of connectors, actions and sources, made from the JSON Schemas of their options.

use std::fmt::Write;

use serde_json::Value;

use integration::{CONNECTOR_KINDS, LOCAL_KINDS};

const INTRODUCTION: &str = "\
A *connector* holds the address and the credentials of another system. An *action* sends the output of rules through a
connector. A *source* reads messages through a connector, and rules read from the source. [Rules and
actions](../concepts/rules-and-actions.md) describes delivery guarantees, order, buffers and retries;
[Connector behaviour](connector-behaviour.md) what each type does with errors and with values in URLs, SQL and topics.

Define them in the console, with `tidewire connector put FILE` (`action`, `source`), over the [API](api.md#integration), or in
the [configuration file](configuration.md). A secret may be `env:NAME` or `file:PATH`: the server reads the value when the
connector starts. Definitions over the API can only use variables that begin with `integration.secrets_env_prefix`
(`TIDEWIRE_SECRET_`) and files in `integration.secrets_dir`. A *template* inserts fields of the rule's output, such as `${payload.temp}`
([templates](rule-sql.md#templates)).";

const DELIVERY: &str = "\
Options below `delivery` of every action.";

const REPUBLISH: &str = "\
Arguments of `{\"function\": \"republish\", \"args\": {…}}` among the actions of a rule, and of `publish` of a source. Texts are
templates.";

pub fn page() -> String {
    let mut page = super::head("Connectors", "the JSON Schemas in crates/connectors", INTRODUCTION);
    for kind in CONNECTOR_KINDS.iter().chain(LOCAL_KINDS) {
        let _ = write!(page, "\n## {kind}\n");
        let schemas = [
            ("connector", "config", integration::config_schema(kind)),
            ("action", "parameters", integration::parameters_schema(kind)),
            ("source", "parameters", integration::source_schema(kind)),
        ];
        for (what, field, schema) in schemas {
            if let Some(schema) = schema {
                let options = super::schema::options(&json(&schema));
                let _ = write!(page, "\n### {kind} {what}\n\nOptions below `{field}`:\n\n{options}");
            }
        }
    }
    let _ = write!(
        page,
        "\n## Delivery\n\n{DELIVERY}\n\n{}",
        super::schema::options(&json(&integration::delivery_schema()))
    );
    page.push_str(&other_defaults());
    let _ = write!(
        page,
        "\n## Republish\n\n{REPUBLISH}\n\n{}",
        super::schema::options(&json(&integration::republish_schema()))
    );
    page
}

/// Defaults of `delivery` that a type of actions changes.
fn other_defaults() -> String {
    let common = json(&connectors::DeliveryConfig::default());
    let mut text = String::new();
    for kind in CONNECTOR_KINDS {
        let mut changed = Vec::new();
        differences("", &common, &json(&integration::default_delivery(kind)), &mut changed);
        if !changed.is_empty() {
            let _ = write!(
                text,
                "\nActions of type `{kind}` have other defaults: {}.\n",
                changed.join(", ")
            );
        }
    }
    text
}

fn differences(path: &str, common: &Value, own: &Value, changed: &mut Vec<String>) {
    match (common, own) {
        (Value::Object(common), Value::Object(own)) => {
            for (name, value) in own {
                let dot = if path.is_empty() { "" } else { "." };
                differences(&format!("{path}{dot}{name}"), &common[name], value, changed);
            }
        }
        _ if common != own => changed.push(format!("`{path} = {own}`")),
        _ => {}
    }
}

fn json(value: &impl serde::Serialize) -> Value {
    serde_json::to_value(value).expect("schemas and defaults are JSON")
}
