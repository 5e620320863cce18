//! `tidewire doctor`: checks the configuration, the machine and the data directory, and prints for each problem the
//! command that repairs it. It may run while the server runs, and changes no setting and no file of the server. To
//! measure fdatasync, it writes 128 KiB to a new file in the data directory and deletes the file.

mod machine;
mod network;
mod storage;

use std::fmt;
use std::process::ExitCode;

use clap::Command;

use crate::config::{self, Config, ConfigSources, listed};
use crate::output::{EXIT_FAILURE, print};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Level {
    Ok,
    /// The server works, but not as well or as safely as it could.
    Warning,
    /// The server does not start, or does not work.
    Error,
}

/// The result of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Finding {
    level: Level,
    /// Subject of the check, in one or two words.
    subject: &'static str,
    text: String,
    /// A command if there is one, else words. Empty if no repair is needed.
    repair: String,
}

impl Finding {
    fn ok(subject: &'static str, text: impl Into<String>) -> Finding {
        Finding {
            level: Level::Ok,
            subject,
            text: text.into(),
            repair: String::new(),
        }
    }

    fn warning(subject: &'static str, text: impl Into<String>, repair: impl Into<String>) -> Finding {
        Finding {
            level: Level::Warning,
            subject,
            text: text.into(),
            repair: repair.into(),
        }
    }

    fn error(subject: &'static str, text: impl Into<String>, repair: impl Into<String>) -> Finding {
        Finding {
            level: Level::Error,
            ..Finding::warning(subject, text, repair)
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let level = match self.level {
            Level::Ok => "ok",
            Level::Warning => "warning",
            Level::Error => "error",
        };
        write!(f, "{level:<9}{:<15}{}", self.subject, self.text)?;
        match self.repair.is_empty() {
            true => Ok(()),
            false => write!(f, "\n{:<9}repair: {}", "", self.repair),
        }
    }
}

pub fn command() -> Command {
    Command::new("doctor")
        .about("Check configuration, ports, limits, clock, disk and certificates, and print the repair of each problem")
}

/// Exit code 1 if there is an error. Warnings do not change the exit code.
pub fn run(sources: &ConfigSources) -> ExitCode {
    let findings = match config::load(sources) {
        Err(diagnostics) => vec![Finding::error(
            "configuration",
            listed(&diagnostics),
            "correct the named lines or variables",
        )],
        Ok(loaded) => {
            let files: Vec<String> = loaded.files.iter().map(|file| file.display().to_string()).collect();
            let read = match files.is_empty() {
                true => "no file; defaults, environment and flags apply".to_owned(),
                false => files.join(", "),
            };
            let mut findings = vec![Finding::ok("configuration", read)];
            findings.extend(check(&loaded.config));
            findings
        }
    };
    let (errors, warnings) = (count(&findings, Level::Error), count(&findings, Level::Warning));
    let lines: String = findings.iter().map(|finding| format!("{finding}\n")).collect();
    let printed = print(&format!(
        "{lines}{}, {}\n",
        plural(errors, "error"),
        plural(warnings, "warning")
    ));
    match errors {
        0 => printed,
        _ => ExitCode::from(EXIT_FAILURE),
    }
}

fn check(config: &Config) -> Vec<Finding> {
    let (mut findings, server) = network::ports(config);
    findings.push(machine::open_files(server));
    findings.push(machine::memory());
    findings.extend(machine::kernel());
    findings.extend(storage::findings(&config.data_dir));
    findings.extend(machine::clock(&config.data_dir));
    findings.extend(network::certificates(config));
    findings
}

fn count(findings: &[Finding], level: Level) -> usize {
    findings.iter().filter(|finding| finding.level == level).count()
}

fn plural(count: usize, word: &str) -> String {
    let end = if count == 1 { "" } else { "s" };
    format!("{count} {word}{end}")
}
