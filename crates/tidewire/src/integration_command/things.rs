//! Connectors, actions and sources: the same commands for all, each with its own table.

use std::process::ExitCode;

use clap::{ArgMatches, Command};
use serde_json::Value;

use super::show::show;
use super::table::TextTable;
use super::{finish, id, joined, named_subcommand, print_json, read_definition, text, word};
use crate::config::ConfigSources;
use crate::output::{EXIT_FAILURE, print, print_error};
use crate::remote::{ApiClient, ApiError, args, path_part};

/// One sort of things that are defined over the API.
pub struct DefinitionSort {
    pub name: &'static str,
    about: &'static str,
    /// In paths: `/api/v1/…`.
    collection: &'static str,
    value: &'static str,
    /// Words that stand for themselves in the API: `POST …/{id}/pause`.
    orders: &'static [(&'static str, &'static str)],
    /// Fields of the response that are not part of the definition.
    view_only: &'static [&'static str],
    head: &'static [&'static str],
    row: fn(&Value) -> Vec<String>,
}

pub const CONNECTORS: DefinitionSort = DefinitionSort {
    name: "connector",
    about: "Connectors of a running server: where actions send to and sources take from",
    collection: "connectors",
    value: "NAME",
    orders: &[
        ("enable", "Let actions and sources use it again"),
        ("disable", "Stop all that use it"),
    ],
    view_only: &["problems", "actions", "sources", "pinned_by"],
    head: &["NAME", "TYPE", "STATE", "ACTIONS", "SOURCES"],
    row: |it| {
        let state = state(it, None);
        vec![
            text(it, "name").into(),
            text(it, "type").into(),
            state,
            joined(&it["actions"]),
            joined(&it["sources"]),
        ]
    },
};

pub const ACTIONS: DefinitionSort = DefinitionSort {
    name: "action",
    about: "Actions of a running server: what rules send, with their buffers",
    collection: "actions",
    value: "TYPE:NAME",
    orders: &[
        ("pause", "Send nothing; messages wait in its buffer"),
        ("resume", "Resume sending"),
        ("restart", "Reconnect; queued messages stay"),
        ("purge", "Delete all messages in its buffer"),
        ("enable", "Let it take and send messages again"),
        ("disable", "Stop accepting and sending messages; queued messages stay"),
    ],
    view_only: &["id", "problems", "is_paused", "health", "metrics", "rules", "pinned_by"],
    head: &[
        "ID",
        "STATE",
        "QUEUED",
        "SENT",
        "FAILED",
        "RETRIED",
        "DROPPED",
        "RULES",
        "LAST ERROR",
    ],
    row: |it| {
        let metrics = &it["metrics"];
        let count = |name: &str| metrics[name].to_string().replace("null", "-");
        let dropped = metrics["dropped"].as_object().into_iter().flat_map(|by| by.values());
        let dropped: u64 = dropped.filter_map(Value::as_u64).sum();
        vec![
            text(it, "id").into(),
            state(it, it["is_paused"].as_bool()),
            count("queued_messages"),
            count("sent"),
            count("failed"),
            count("retried"),
            dropped.to_string(),
            joined(&it["rules"]),
            text(&it["health"], "last_error").into(),
        ]
    },
};

pub const SOURCES: DefinitionSort = DefinitionSort {
    name: "source",
    about: "Sources of a running server, which receive messages from other systems",
    collection: "sources",
    value: "TYPE:NAME",
    orders: &[("enable", "Fetch messages again"), ("disable", "Fetch nothing")],
    view_only: &["id", "from", "problems", "health", "metrics", "pinned_by"],
    head: &["ID", "CONNECTOR", "STATE", "FROM", "LAST ERROR"],
    row: |it| {
        vec![
            text(it, "id").into(),
            text(it, "connector").into(),
            state(it, None),
            it["from"][0].as_str().unwrap_or_default().into(),
            text(&it["health"], "last_error").into(),
        ]
    },
};

/// How it goes, in a word or a sentence.
fn state(it: &Value, is_paused: Option<bool>) -> String {
    let problems = joined(&it["problems"]);
    match text(&it["health"], "state") {
        _ if it["enable"] == false => "disabled".into(),
        _ if !problems.is_empty() => problems,
        _ if is_paused == Some(true) => "paused".into(),
        "" => "enabled".into(),
        health => health.into(),
    }
}

impl DefinitionSort {
    pub fn command(&self) -> Command {
        let command = Command::new(self.name)
            .about(self.about)
            .subcommand_required(true)
            .arg_required_else_help(true)
            .args(args())
            .subcommand(Command::new("list").about("All of them, and how they go"))
            .subcommand(named_subcommand("show", self.value, "One of them in full"))
            .subcommand(Command::new("put").about("Add or change one").arg(word(
                "file",
                "FILE",
                "Its definition: JSON, TOML (.toml), or - for JSON from standard input",
            )))
            .subcommand(named_subcommand("delete", self.value, "Delete one"));
        let orders = self.orders.iter();
        let command = orders.fold(command, |command, (name, about)| {
            command.subcommand(named_subcommand(name, self.value, about))
        });
        if self.name != CONNECTORS.name {
            return command;
        }
        command
            .subcommand(named_subcommand(
                "test",
                self.value,
                "Ask its target whether it is there and takes us",
            ))
            .subcommand(Command::new("types").about("List the types of connectors and their options"))
    }

    pub fn run(&self, matches: &ArgMatches, sources: impl FnOnce(&ArgMatches) -> ConfigSources) -> ExitCode {
        let (name, own) = matches.subcommand().expect("clap requires it");
        let run = |api: ApiClient| match name {
            "list" => self.list(&api, own),
            "put" => self.put(&api, own),
            "delete" => self.delete(&api, own),
            "show" => shown(&api.get(&self.path(id(own)))?, own),
            "types" => types(&api, own),
            "test" => test(&api, &self.path(id(own)), own),
            order => {
                let it = api.call("POST", &format!("{}/{order}", self.path(id(own))), None)?;
                self.print_result(order, &it, own)
            }
        };
        finish(ApiClient::connect(own, &sources(own)).and_then(run))
    }

    fn path(&self, id: &str) -> String {
        format!("/api/v1/{}/{}", self.collection, path_part(id))
    }

    fn list(&self, api: &ApiClient, own: &ArgMatches) -> Result<ExitCode, ApiError> {
        let all = api.get(&format!("/api/v1/{}", self.collection))?;
        if own.get_flag("json") {
            return Ok(print_json(&all));
        }
        let mut table = TextTable::new(self.head);
        let all = all.as_array().into_iter().flatten();
        all.for_each(|it| table.row((self.row)(it)));
        Ok(print(&table.render()))
    }

    fn put(&self, api: &ApiClient, own: &ArgMatches) -> Result<ExitCode, ApiError> {
        let file: &String = own.get_one("file").expect("clap requires it");
        let definition = read_definition(file, self.view_only)?;
        let name = text(&definition, "name");
        let is_connector = self.name == CONNECTORS.name;
        for field in ["name", "type"].into_iter().take(if is_connector { 1 } else { 2 }) {
            if text(&definition, field).is_empty() {
                return Err(ApiError::Usage(format!("{file}: the definition has no `{field}`")));
            }
        }
        let key = match is_connector {
            true => name.to_owned(),
            false => format!("{}:{name}", text(&definition, "type")),
        };
        let it = api.call("PUT", &self.path(&key), Some(&definition))?;
        self.print_result("put", &it, own)
    }

    fn delete(&self, api: &ApiClient, own: &ArgMatches) -> Result<ExitCode, ApiError> {
        api.call("DELETE", &self.path(id(own)), None)?;
        Ok(print(&format!("{} {} deleted\n", self.name, id(own))))
    }

    /// How it goes after an order.
    fn print_result(&self, order: &str, it: &Value, own: &ArgMatches) -> Result<ExitCode, ApiError> {
        if own.get_flag("json") {
            return Ok(print_json(it));
        }
        let name = [text(it, "id"), text(it, "name")]
            .into_iter()
            .find(|name| !name.is_empty());
        let name = name.unwrap_or_default();
        let state = state(it, it["is_paused"].as_bool());
        Ok(print(&format!("{} {name}: {order} done, {state}\n", self.name)))
    }
}

fn shown(it: &Value, own: &ArgMatches) -> Result<ExitCode, ApiError> {
    Ok(match own.get_flag("json") {
        true => print_json(it),
        false => print(&show(it)),
    })
}

fn test(api: &ApiClient, path: &str, own: &ArgMatches) -> Result<ExitCode, ApiError> {
    let result = api.call("POST", &format!("{path}/test"), None)?;
    if own.get_flag("json") {
        print_json(&result);
    } else if result["is_reachable"] == true {
        return Ok(print(&format!("reachable, in {} ms\n", result["took_ms"])));
    } else {
        print_error(&format!(
            "connector {} is not reachable: {}",
            id(own),
            text(&result, "error")
        ));
    }
    Ok(match result["is_reachable"] == true {
        true => ExitCode::SUCCESS,
        false => ExitCode::from(EXIT_FAILURE),
    })
}

/// The options of the connectors, actions and sources of each type, by name.
fn types(api: &ApiClient, own: &ArgMatches) -> Result<ExitCode, ApiError> {
    let types = api.get("/api/v1/connector-types")?;
    if own.get_flag("json") {
        return Ok(print_json(&types));
    }
    let mut table = TextTable::new(&["TYPE", "OPTION", "NEEDED", "MEANING"]);
    for (kind, schemas) in types.as_object().into_iter().flatten() {
        for part in ["config", "parameters", "source"] {
            let schema = &schemas[part];
            let needed: Vec<&str> = schema["required"]
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(Value::as_str)
                .collect();
            for (name, option) in schema["properties"].as_object().into_iter().flatten() {
                let is_needed = if needed.contains(&name.as_str()) { "yes" } else { "" };
                let meaning = text(option, "description").replace('\n', " ");
                table.row(vec![kind.clone(), format!("{part}.{name}"), is_needed.into(), meaning]);
            }
        }
    }
    Ok(print(&table.render()))
}
