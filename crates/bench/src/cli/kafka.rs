//! The flags for Kafka and the broker's API, for scenarios whose messages a rule sends to Kafka.

use std::fs;
use std::path::PathBuf;

use clap::{Arg, ArgMatches, value_parser};

use super::CommandFailure;
use crate::http::HttpEndpoint;
use crate::kafka::{BrokerLogin, KafkaAccess};
use crate::scenario::Scenario;

pub fn args() -> Vec<Arg> {
    vec![
        Arg::new("kafka")
            .long("kafka")
            .value_name("HOST:PORT,…")
            .help("Kafka servers, for scenarios whose messages a rule sends to Kafka: the records are counted there"),
        Arg::new("api")
            .long("api")
            .value_name("URL")
            .requires("kafka")
            .requires("api-password-file")
            .help("Create connector, action and rule over this API, for example http://HOST:18083; without it, they must exist"),
        Arg::new("api-user")
            .long("api-user")
            .value_name("NAME")
            .default_value("admin")
            .help("User of the API"),
        Arg::new("api-password-file")
            .long("api-password-file")
            .value_name("FILE")
            .value_parser(value_parser!(PathBuf))
            .help("File with the user's password"),
    ]
}

pub fn access(scenario: &Scenario, matches: &ArgMatches) -> Result<Option<KafkaAccess>, CommandFailure> {
    let hosts: Option<&String> = matches.get_one("kafka");
    let Some(bootstrap_hosts) = hosts else {
        return match scenario.kafka.is_some() && !matches.get_flag("without-it") {
            true => Err(CommandFailure::usage(format!(
                "scenario `{}` sends its messages to Kafka: set the servers with --kafka HOST:PORT, and the API that creates the rule \
                 with --api; --without-it runs only the MQTT part",
                scenario.name
            ))),
            false => Ok(None),
        };
    };
    if scenario.kafka.is_none() {
        return Err(CommandFailure::usage(format!(
            "--kafka: scenario `{}` sends nothing to Kafka",
            scenario.name
        )));
    }
    Ok(Some(KafkaAccess {
        bootstrap_hosts: bootstrap_hosts.clone(),
        login: login(matches)?,
    }))
}

fn login(matches: &ArgMatches) -> Result<Option<BrokerLogin>, CommandFailure> {
    let Some((url, path)) = matches
        .get_one::<String>("api")
        .zip(matches.get_one::<PathBuf>("api-password-file"))
    else {
        return Ok(None);
    };
    let (endpoint, rest) = HttpEndpoint::parse(url).ok_or_else(|| {
        CommandFailure::usage(format!(
            "--api {url}: expected http://HOST:PORT, as in http://127.0.0.1:18083"
        ))
    })?;
    if rest.is_some_and(|rest| rest != "/") {
        return Err(CommandFailure::usage(format!(
            "--api {url}: expected no path after the port"
        )));
    }
    let password =
        fs::read_to_string(path).map_err(|error| CommandFailure::usage(format!("{}: {error}", path.display())))?;
    Ok(Some(BrokerLogin {
        endpoint,
        user: matches.get_one("api-user").cloned().unwrap_or_default(),
        password: password.trim().to_owned(),
    }))
}
