//! `tidewire bench`: what can be typed, and what then runs.
//!
//! Exit codes: 0 when the run came to its end and every `--require` is met; 1 when it could not be made or ended early;
//! 2 for mistakes in the command line or a scenario; 3 when a `--require` is not met; 130 when Ctrl-C ended a run before its time.

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

/// What happened is no mistake in how the command was typed.
pub const EXIT_FAILURE: u8 = 1;
pub const EXIT_USAGE: u8 = 2;
pub const EXIT_REQUIRED: u8 = 3;
pub const EXIT_INTERRUPTED: u8 = 130;

pub fn command() -> Command {
    // Defined when it is asked for: a broker that starts has no use for a hundred flags.
    Command::new("bench")
        .about("Load any MQTT broker, and check what comes of it")
        .defer(define)
}

fn define(command: Command) -> Command {
    command
        .long_about(
            "Load any MQTT broker, and check what comes of it.\n\n\
             `run` plays a scenario: a preset (`list` shows them) or a TOML file. `conn`, `pub` and `sub` take the flags of emqtt-bench.",
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
            crate::output::complain(&refusal.message);
            ExitCode::from(refusal.code)
        }
    }
}

/// Why a command does not run.
#[derive(Debug)]
struct Refusal {
    code: u8,
    message: String,
}

impl Refusal {
    fn usage(message: impl Into<String>) -> Refusal {
        Refusal {
            code: EXIT_USAGE,
            message: message.into(),
        }
    }

    fn failure(message: impl Into<String>) -> Refusal {
        Refusal {
            code: EXIT_FAILURE,
            message: message.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    /// What clap says about definitions only when they are used.
    #[test]
    fn definitions_are_consistent() {
        super::define(clap::Command::new("bench")).debug_assert();
    }
}
