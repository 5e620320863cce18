//! Flags that say where Kafka and the broker's API are, for scenarios whose messages a rule takes to Kafka.

use std::fs;
use std::path::PathBuf;

use clap::{Arg, ArgMatches, value_parser};

use super::Refusal;
use crate::http::Endpoint;
use crate::kafka::{Access, Login};
use crate::scenario::Scenario;

pub fn args() -> Vec<Arg> {
    vec![
        Arg::new("kafka")
            .long("kafka")
            .value_name("HOST:PORT,…")
            .help("Kafka, where the messages of a scenario that a rule takes there are counted"),
        Arg::new("api")
            .long("api")
            .value_name("URL")
            .requires("kafka")
            .requires("api-password-file")
            .help("Make connector, action and rule over this API, for example http://HOST:18083; without, the broker has them"),
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

pub fn access(scenario: &Scenario, matches: &ArgMatches) -> Result<Option<Access>, Refusal> {
    let hosts: Option<&String> = matches.get_one("kafka");
    let Some(bootstrap_hosts) = hosts else {
        return match scenario.kafka.is_some() && !matches.get_flag("without-it") {
            true => Err(Refusal::usage(format!(
                "scenario `{}` takes its messages to Kafka: say where that is with --kafka HOST:PORT, and with --api where the rule \
                 for it is made; --without-it runs the MQTT side alone",
                scenario.name
            ))),
            false => Ok(None),
        };
    };
    if scenario.kafka.is_none() {
        return Err(Refusal::usage(format!(
            "--kafka: scenario `{}` takes nothing to Kafka",
            scenario.name
        )));
    }
    Ok(Some(Access {
        bootstrap_hosts: bootstrap_hosts.clone(),
        login: login(matches)?,
    }))
}

fn login(matches: &ArgMatches) -> Result<Option<Login>, Refusal> {
    let Some((url, path)) = matches
        .get_one::<String>("api")
        .zip(matches.get_one::<PathBuf>("api-password-file"))
    else {
        return Ok(None);
    };
    let (endpoint, rest) = Endpoint::parse(url).ok_or_else(|| {
        Refusal::usage(format!(
            "--api {url}: expected http://HOST:PORT, as in http://127.0.0.1:18083"
        ))
    })?;
    if rest.is_some_and(|rest| rest != "/") {
        return Err(Refusal::usage(format!("--api {url}: expected no path behind the port")));
    }
    let password = fs::read_to_string(path).map_err(|error| Refusal::usage(format!("{}: {error}", path.display())))?;
    Ok(Some(Login {
        endpoint,
        user: matches.get_one("api-user").cloned().unwrap_or_default(),
        password: password.trim().to_owned(),
    }))
}
