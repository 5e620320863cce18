//! The flags for the device platform, for scenarios whose clients are its devices.

use std::fs;
use std::path::PathBuf;

use clap::{Arg, ArgMatches, value_parser};

use super::CommandFailure;
use crate::fleet::PlatformLogin;
use crate::http::HttpEndpoint;
use crate::scenario::Scenario;

/// The password of the tenant administrator of the demonstration.
const DEMO_PASSWORD: &str = "tenant";

pub fn args() -> Vec<Arg> {
    vec![
        Arg::new("platform")
            .long("platform")
            .value_name("URL")
            .help("Create the devices of the scenario and count their points over this REST interface (ThingsBoard's), for example http://HOST:18083"),
        Arg::new("platform-user")
            .long("platform-user")
            .value_name("NAME")
            .default_value("tenant@thingsboard.org")
            .help("User name of a tenant administrator"),
        Arg::new("platform-password-file")
            .long("platform-password-file")
            .value_name("FILE")
            .value_parser(value_parser!(PathBuf))
            .help("File with the administrator's password [default: that of the demonstration]"),
    ]
}

pub fn access(scenario: &Scenario, matches: &ArgMatches) -> Result<Option<PlatformLogin>, CommandFailure> {
    let Some(url) = matches.get_one::<String>("platform") else {
        return match scenario.platform.is_some() && !matches.get_flag("without-it") {
            true => Err(CommandFailure::usage(format!(
                "the clients of scenario `{}` are devices: set the platform's address with --platform http://HOST:PORT; --without-it runs \
                 only the MQTT part",
                scenario.name
            ))),
            false => Ok(None),
        };
    };
    if scenario.platform.is_none() {
        return Err(CommandFailure::usage(format!(
            "--platform: the clients of scenario `{}` are not devices",
            scenario.name
        )));
    }
    let (endpoint, rest) = HttpEndpoint::parse(url).ok_or_else(|| {
        CommandFailure::usage(format!(
            "--platform {url}: expected http://HOST:PORT, as in http://127.0.0.1:18083"
        ))
    })?;
    if rest.is_some_and(|rest| rest != "/") {
        return Err(CommandFailure::usage(format!(
            "--platform {url}: expected no path after the port"
        )));
    }
    let password = match matches.get_one::<PathBuf>("platform-password-file") {
        Some(path) => {
            fs::read_to_string(path).map_err(|error| CommandFailure::usage(format!("{}: {error}", path.display())))?
        }
        None => DEMO_PASSWORD.to_owned(),
    };
    Ok(Some(PlatformLogin {
        endpoint,
        user: matches.get_one("platform-user").cloned().unwrap_or_default(),
        password: password.trim().to_owned(),
    }))
}
