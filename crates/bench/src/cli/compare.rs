//! `bench compare a.json b.json`.

use std::fs;
use std::path::PathBuf;

use clap::{Arg, ArgMatches, Command, value_parser};

use super::CommandFailure;
use crate::output;
use crate::report::compare::{NamedResult, compare};
use crate::result::{FORMAT, RunResult};

/// Largest file that is read as a result.
const FILE_BYTES_MAX: u64 = 512 * 1024 * 1024;

pub fn command() -> Command {
    Command::new("compare")
        .about("Show results side by side, compared with the first one")
        .arg(
            Arg::new("file")
                .value_name("FILE")
                .num_args(2..)
                .required(true)
                .value_parser(value_parser!(PathBuf))
                .help("Files that --json has written"),
        )
}

pub fn run(matches: &ArgMatches) -> Result<u8, CommandFailure> {
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
    let named = results
        .iter()
        .zip(&names)
        .map(|(result, name)| NamedResult { name, result });
    output::print(&compare(&named.collect::<Vec<_>>()));
    Ok(0)
}

fn read(path: &PathBuf) -> Result<RunResult, CommandFailure> {
    let fail = |message: String| CommandFailure::failure(format!("{}: {message}", path.display()));
    let about = fs::metadata(path).map_err(|error| fail(error.to_string()))?;
    if about.len() > FILE_BYTES_MAX {
        return Err(fail("the file is too large for a result".into()));
    }
    let text = fs::read_to_string(path).map_err(|error| fail(error.to_string()))?;
    let result: RunResult = serde_json::from_str(&text).map_err(|error| fail(input_errors::plain(&error)))?;
    match result.format {
        FORMAT => Ok(result),
        other => Err(fail(format!(
            "the file has format {other}; this version reads format {FORMAT}"
        ))),
    }
}
