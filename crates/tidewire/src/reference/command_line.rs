//! The page of all commands, made from their definitions for clap.

use std::fmt::Write;

use clap::{Arg, Command};

const INTRODUCTION: &str = "\
Without a command, `tidewire` starts the server. `tidewire COMMAND --help` prints the options of a command. A script for the
completion of a shell comes from `tidewire completion bash` (also `zsh`, `fish`, `elvish`, `powershell`).

Exit codes: 0 means success, 1 that the command failed, 2 that the command line or the configuration is not valid. Commands
that differ say so below. Options of a command apply to its subcommands as well.";

pub fn page() -> String {
    let mut page = super::head("Command line", "crates/tidewire/src/cli.rs", INTRODUCTION);
    let mut root = crate::cli::command();
    root.build();
    describe(&root, "", &[], &mut page);
    page
}

/// `path`: the names of the parent commands, each followed by a space. `inherited`: the options of the parent commands,
/// which also apply to this command.
fn describe(command: &Command, path: &str, inherited: &[&str], page: &mut String) {
    let name = format!("{path}{}", command.get_name());
    let level = if path.matches(' ').count() > 1 { "###" } else { "##" };
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    let _ = write!(page, "\n{level} {name}\n\n{}\n", super::sentence(&about));
    if let Some(long) = command.get_long_about().or_else(|| command.get_after_help()) {
        let text = long.to_string();
        if text != about {
            let _ = write!(page, "\n{}\n", paragraphs(&text, &about));
        }
    }
    let usage = command.clone().render_usage().to_string();
    let _ = write!(page, "\n```text\n{}\n```\n", usage.trim_start_matches("Usage: ").trim());
    let is_new = |arg: &&Arg| is_shown(arg) && !inherited.contains(&arg.get_id().as_str());
    let arguments: Vec<&Arg> = command.get_arguments().filter(is_new).collect();
    if !arguments.is_empty() {
        page.push('\n');
    }
    for arg in arguments {
        page.push_str(&item(arg));
    }
    let path = format!("{name} ");
    let globals = command.get_arguments().filter(|arg| arg.is_global_set());
    let globals: Vec<&str> = globals.map(|arg| arg.get_id().as_str()).collect();
    for subcommand in command.get_subcommands().filter(|command| !command.is_hide_set()) {
        if subcommand.get_name() != "help" {
            describe(subcommand, &path, &globals, page);
        }
    }
}

/// Returns the long description without its first line, if that is the short one.
fn paragraphs(long: &str, about: &str) -> String {
    let rest = long.strip_prefix(about).unwrap_or(long).trim_start_matches('.').trim();
    rest.split("\n\n").map(super::prose).collect::<Vec<_>>().join("\n\n")
}

fn is_shown(arg: &Arg) -> bool {
    !arg.is_hide_set() && !matches!(arg.get_id().as_str(), "help" | "version")
}

fn item(arg: &Arg) -> String {
    let mut names = Vec::new();
    names.extend(arg.get_short().map(|short| format!("-{short}")));
    names.extend(arg.get_long().map(|long| format!("--{long}")));
    let values: Vec<&str> = arg
        .get_value_names()
        .into_iter()
        .flatten()
        .map(|name| name.as_str())
        .collect();
    let takes_values = arg.get_action().takes_values();
    if names.is_empty() {
        names.push(values.join(" "));
    } else if takes_values {
        let last = names.len() - 1;
        let _ = write!(names[last], " {}", values.join(" "));
    }
    let names: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
    let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
    let mut text = super::sentence(&help);
    let default: Vec<String> = arg
        .get_default_values()
        .iter()
        .map(|value| format!("`{}`", value.to_string_lossy()))
        .collect();
    if takes_values && !default.is_empty() {
        let _ = write!(text, " Default: {}.", default.join(", "));
    }
    if takes_values && !arg.is_hide_possible_values_set() {
        let choices: Vec<String> = arg
            .get_possible_values()
            .iter()
            .filter(|value| !value.is_hide_set())
            .map(|value| format!("`{}`", value.get_name()))
            .collect();
        if !choices.is_empty() {
            let _ = write!(text, " One of {}.", choices.join(", "));
        }
    }
    let colon = if text.is_empty() { "" } else { ": " };
    format!("- {}{colon}{}\n", names.join(", "), text.trim())
}
