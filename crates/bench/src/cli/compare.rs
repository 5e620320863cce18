//! `bench compare a.json b.json`.

use std::fs;
use std::path::PathBuf;

use clap::{Arg, ArgMatches, Command, value_parser};

use super::Refusal;
use crate::output;
use crate::report::compare::{Named, compare};
use crate::result::{FORMAT, RunResult};

/// Beyond this it is no result of ours.
const FILE_BYTES_MAX: u64 = 512 * 1024 * 1024;

pub fn command() -> Command {
    Command::new("compare")
        .about("Show results side by side, each against the first")
        .arg(
            Arg::new("file")
                .value_name("FILE")
                .num_args(2..)
                .required(true)
                .value_parser(value_parser!(PathBuf))
                .help("What --json has written"),
        )
}

pub fn run(matches: &ArgMatches) -> Result<u8, Refusal> {
    let paths: Vec<&PathBuf> = matches.get_many("file").into_iter().flatten().collect();
    let results: Vec<RunResult> = paths.iter().map(|path| read(path)).collect::<Result<_, _>>()?;
    let names: Vec<String> = paths
        .iter()
        .map(|path| {
            path.file_stem()
                .unwrap_or(path.as_os_str())
                .to_string_lossy()
                .into_owned()
        })
        .collect();
    let named = results.iter().zip(&names).map(|(result, name)| Named { name, result });
    output::print(&compare(&named.collect::<Vec<_>>()));
    Ok(0)
}

fn read(path: &PathBuf) -> Result<RunResult, Refusal> {
    let fail = |message: String| Refusal::failure(format!("{}: {message}", path.display()));
    let about = fs::metadata(path).map_err(|error| fail(error.to_string()))?;
    if about.len() > FILE_BYTES_MAX {
        return Err(fail("too large for a result".into()));
    }
    let text = fs::read_to_string(path).map_err(|error| fail(error.to_string()))?;
    let result: RunResult = serde_json::from_str(&text).map_err(|error| fail(error.to_string()))?;
    match result.format {
        FORMAT => Ok(result),
        other => Err(fail(format!("format {other}; this tool reads format {FORMAT}"))),
    }
}
