//! `tidewire man`: writes the man pages of all commands, from their definitions for clap. Packages contain these pages.

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Arg, ArgMatches, Command, value_parser};

use crate::output::{EXIT_FAILURE, fail};

pub fn command() -> Command {
    Command::new("man")
        .hide(true)
        .about("Write the man pages of all commands to a directory")
        .arg(
            Arg::new("directory")
                .value_name("DIR")
                .required(true)
                .value_parser(value_parser!(PathBuf)),
        )
}

/// `program`: the commands to describe.
pub fn run(matches: &ArgMatches, program: Command) -> ExitCode {
    let directory: &PathBuf = matches.get_one("directory").expect("clap requires it");
    match write(directory, program) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(
            EXIT_FAILURE,
            &format!("cannot write man pages to {}: {error}", directory.display()),
        ),
    }
}

fn write(directory: &Path, program: Command) -> io::Result<()> {
    std::fs::create_dir_all(directory)?;
    // `help` would get a page for each command as well.
    clap_mangen::generate_to(program.disable_help_subcommand(true), directory)
}
