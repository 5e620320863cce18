//! `bench conn`, `bench pub` and `bench sub`: emqtt-bench's flags, defaults and lines, turned into a scenario.
//!
//! The load itself is ours, so that some things differ on purpose, and a line says so when a flag asks for them: publishing begins when
//! everybody is connected, the schedule does not wait for a slow broker (open model), every payload carries its proof.

mod args;
mod convert;
#[cfg(test)]
mod tests;

use clap::{ArgMatches, Command};

use super::execute::{self, Display, Order};
use super::{Refusal, outputs};
use crate::output;

pub fn commands() -> [Command; 3] {
    args::commands().map(|command| command.args(execute::args()).args(outputs::args()))
}

pub fn run(verb: &str, matches: &ArgMatches) -> Result<u8, Refusal> {
    let converted = convert::convert(verb, matches)?;
    let is_quiet = matches.get_one::<String>("log_to").is_some_and(|to| to == "null");
    if !is_quiet {
        output::line(&converted.start_line);
        for note in &converted.notes {
            output::note(note);
        }
    }
    execute::run(Order {
        kafka: None,
        platform: None,
        scenario: converted.scenario,
        target: converted.target,
        options: execute::options(matches)?,
        outputs: outputs::parse(matches)?,
        display: if is_quiet { Display::QuietVerb } else { Display::Verb },
    })
}
