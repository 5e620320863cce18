//! `tidewire health`: asks a running server whether it is ready, for health checks of containers without a shell.

use std::process::ExitCode;

use clap::{Arg, ArgAction, ArgMatches, Command};
use mqtt_client::HttpRequest;
use serde_json::Value;

use crate::config::ConfigSources;
use crate::output::{EXIT_FAILURE, fail, print};
use crate::remote::{ApiAddress, address_args, send};

pub fn command() -> Command {
    Command::new("health")
        .about("Exit with 0 if the server is ready, for health checks of containers")
        .args(address_args())
        .arg(
            Arg::new("live")
                .long("live")
                .action(ArgAction::SetTrue)
                .help("Check only that the server responds; it may still be starting or shutting down"),
        )
}

pub fn run(matches: &ArgMatches, sources: &ConfigSources) -> ExitCode {
    let (target, tls) = match ApiAddress::server(matches, sources) {
        Ok(server) => server,
        Err(error) => return error.report(),
    };
    let path = if matches.get_flag("live") { "/livez" } else { "/readyz" };
    let request = HttpRequest {
        method: "GET",
        accept: "application/json",
        token: None,
        body: None,
    };
    match send(&target, &tls, path, &request) {
        Ok(answer) if answer.status == 200 => print(&format!("{target}{path}: 200\n")),
        Ok(answer) => fail(
            EXIT_FAILURE,
            &format!("{target}{path}: {}{}", answer.status, reasons(&answer.body)),
        ),
        Err(error) => fail(EXIT_FAILURE, &error),
    }
}

/// Returns the reasons in the body of a response of `/readyz`, for the end of a line.
fn reasons(body: &[u8]) -> String {
    let body: Value = serde_json::from_slice(body).unwrap_or_default();
    let reasons = body["reasons"].as_array().into_iter().flatten();
    let reasons: Vec<&str> = reasons.filter_map(Value::as_str).collect();
    match reasons.is_empty() {
        true => String::new(),
        false => format!(" ({})", reasons.join("; ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_of_a_server_that_is_not_ready_are_joined() {
        let body = br#"{"status": "not ready", "reasons": ["the server is starting", "the journal is read"]}"#;
        assert_eq!(reasons(body), " (the server is starting; the journal is read)");
        assert_eq!(reasons(b"no JSON"), "");
    }
}
