//! The command `tidewire bench`: its command line, and the execution of the commands.
//!
//! Exit codes: 0 if the run completed and every `--require` is met; 1 if the run failed or ended early; 2 for errors in
//! the command line or the scenario; 3 if a `--require` is not met; 130 if Ctrl-C ended a run early.

mod agents;
mod compare;
mod connection;
mod emqtt;
mod execute;
mod kafka;
mod lines;
mod live;
mod outputs;
mod platform;
mod scenarios;

use std::process::ExitCode;

use clap::{ArgMatches, Command};

/// The command line was correct, but the command failed.
pub const EXIT_FAILURE: u8 = 1;
pub const EXIT_USAGE: u8 = 2;
pub const EXIT_REQUIRED: u8 = 3;
pub const EXIT_INTERRUPTED: u8 = 130;

pub fn command() -> Command {
    // The arguments are defined when they are needed: the start of a broker does not need a hundred flags.
    Command::new("bench")
        .about("Generate load for any MQTT broker, and check the deliveries")
        .defer(define)
}

fn define(command: Command) -> Command {
    command
        .long_about(
            "Generate load for any MQTT broker, and check the deliveries.\n\n\
             `run` executes a scenario: a preset (`list` shows them) or a TOML file. `conn`, `pub` and `sub` take the flags of emqtt-bench.",
        )
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(scenarios::run_command())
        .subcommand(scenarios::list_command())
        .subcommand(scenarios::show_command())
        .subcommands(emqtt::commands())
        .subcommand(compare::command())
        .subcommand(agents::command())
}

pub fn run(matches: &ArgMatches) -> ExitCode {
    let done = match matches.subcommand() {
        Some(("run", own)) => scenarios::run(own),
        Some(("list", _)) => scenarios::list(),
        Some(("show", own)) => scenarios::show(own),
        Some(("compare", own)) => compare::run(own),
        Some(("agent", own)) => agents::run(own),
        Some((verb @ ("conn" | "pub" | "sub"), own)) => emqtt::run(verb, own),
        other => unreachable!("clap knows no command {other:?}"),
    };
    match done {
        Ok(code) => ExitCode::from(code),
        Err(refusal) => {
            crate::output::error(&refusal.message);
            ExitCode::from(refusal.code)
        }
    }
}

/// Why a command is not executed or has failed.
#[derive(Debug)]
struct CommandFailure {
    code: u8,
    message: String,
}

impl CommandFailure {
    fn usage(message: impl Into<String>) -> CommandFailure {
        CommandFailure {
            code: EXIT_USAGE,
            message: message.into(),
        }
    }

    fn failure(message: impl Into<String>) -> CommandFailure {
        CommandFailure {
            code: EXIT_FAILURE,
            message: message.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    /// Makes clap check the definitions, which it otherwise does only when they are used.
    #[test]
    fn definitions_are_consistent() {
        super::define(clap::Command::new("bench")).debug_assert();
    }
}
