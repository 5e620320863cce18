//! The outputs at the end of a run: the table, files, and whether `--require` is met.

use std::fs;
use std::path::{Path, PathBuf};

use clap::{Arg, ArgAction, ArgMatches, value_parser};

use super::CommandFailure;
use crate::report::threshold::Threshold;
use crate::report::{csv, html, table};
use crate::result::RunResult;
use crate::{ceiling, output};

#[derive(Clone, Debug, Default)]
pub struct Outputs {
    json: Option<PathBuf>,
    csv: Option<PathBuf>,
    html: Option<PathBuf>,
    required: Vec<Threshold>,
    measures_ceiling: bool,
}

pub fn args() -> Vec<Arg> {
    let file = |name: &'static str, help: &'static str| {
        Arg::new(name)
            .long(name)
            .value_name("FILE")
            .value_parser(value_parser!(PathBuf))
            .help(help)
    };
    vec![
        file("json", "Write all measurements to this file, as JSON"),
        file("csv", "Write one line per second to this file"),
        file("html", "Write a report in HTML to this file"),
        Arg::new("require")
            .long("require")
            .value_name("RULE")
            .action(ArgAction::Append)
            .help("Exit with 3 unless it is met, for example 'p99<10ms' or 'lost==0'; can be repeated"),
        Arg::new("ceiling")
            .long("ceiling")
            .action(ArgAction::SetTrue)
            .requires("broker-cost")
            .help("After the run, measure what bare sockets or a plain Kafka producer need for the same bytes"),
    ]
}

pub fn parse(matches: &ArgMatches) -> Result<Outputs, CommandFailure> {
    let rules = matches.get_many::<String>("require").into_iter().flatten();
    let required = rules.map(|rule| {
        let parsed = rule.parse::<Threshold>();
        parsed.map_err(|error| CommandFailure::usage(format!("--require:\n{error}")))
    });
    let file = |name| matches.get_one::<PathBuf>(name).cloned();
    Ok(Outputs {
        json: file("json"),
        csv: file("csv"),
        html: file("html"),
        required: required.collect::<Result<_, _>>()?,
        measures_ceiling: matches.get_flag("ceiling"),
    })
}

impl Outputs {
    /// Fails before the run if a file could not be written after it.
    pub fn check(&self) -> Result<(), CommandFailure> {
        for path in [&self.json, &self.csv, &self.html].into_iter().flatten() {
            let opened = fs::OpenOptions::new().create(true).append(true).open(path);
            opened.map_err(|error| CommandFailure::usage(format!("{}: {error}", path.display())))?;
        }
        Ok(())
    }

    pub fn measures_ceiling(&self) -> bool {
        self.measures_ceiling
    }

    /// Adds the measurements that follow a run, prints the table and writes the files. Returns whether every
    /// `--require` is met.
    pub fn conclude(&self, result: &mut RunResult) -> Result<bool, CommandFailure> {
        if self.measures_ceiling && !result.is_interrupted {
            match ceiling::of(result) {
                Ok(ceiling) => result.ceiling = ceiling,
                Err(reason) => output::error(reason),
            }
        }
        let verdicts: Vec<_> = self
            .required
            .iter()
            .map(|threshold| threshold.verdict(result))
            .collect();
        let is_met = verdicts.iter().all(|verdict| verdict.is_met);
        result.verdicts.splice(0..0, verdicts);
        output::print(&table::render(result));
        if let Some(path) = &self.json {
            let mut text = serde_json::to_string(result).expect("a result can be written as JSON");
            text.push('\n');
            write(path, &text)?;
        }
        if let Some(path) = &self.csv {
            write(path, &csv::seconds(result))?;
        }
        if let Some(path) = &self.html {
            write(path, &html::render(result))?;
        }
        Ok(is_met)
    }
}

fn write(path: &Path, text: &str) -> Result<(), CommandFailure> {
    fs::write(path, text).map_err(|error| CommandFailure::failure(format!("{}: {error}", path.display())))
}
