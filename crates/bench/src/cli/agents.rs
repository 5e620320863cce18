//! `bench agent`, and the flag `--agents` of the commands that generate load.

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::time::Instant;

use clap::{Arg, ArgMatches, Command, value_parser};

use super::CommandFailure;
use crate::agent::proof::SharedSecret;
use crate::agent::{remote, server};
use crate::orchestrator::{RunDriver, StopFlag};
use crate::output;

#[derive(Clone, Debug, Default)]
pub struct Agents {
    pub addresses: Vec<String>,
    token: SharedSecret,
    threads: Option<u16>,
}

fn token_arg() -> Arg {
    Arg::new("token-file")
        .long("token-file")
        .value_name("FILE")
        .value_parser(value_parser!(PathBuf))
        .help("File with the secret that agents and orchestrator share; required unless on loopback")
}

pub fn orchestrator_args() -> [Arg; 2] {
    [
        Arg::new("agents")
            .long("agents")
            .value_name("HOST:PORT,…")
            .value_delimiter(',')
            .help("Let these agents generate the load"),
        token_arg(),
    ]
}

pub fn parse(matches: &ArgMatches) -> Result<Agents, CommandFailure> {
    let addresses: Vec<String> = matches.get_many("agents").into_iter().flatten().cloned().collect();
    if let Some(wrong) = addresses.iter().find(|address| !address.contains(':')) {
        return Err(CommandFailure::usage(format!("--agents {wrong}: expected host:port")));
    }
    Ok(Agents {
        addresses,
        token: token(matches)?,
        threads: matches.get_one("threads").copied(),
    })
}

fn token(matches: &ArgMatches) -> Result<SharedSecret, CommandFailure> {
    match matches.get_one::<PathBuf>("token-file") {
        None => Ok(SharedSecret::default()),
        Some(path) => SharedSecret::read(path).map_err(CommandFailure::usage),
    }
}

impl Agents {
    pub fn connect(&self, origin: Instant) -> Result<Vec<RunDriver>, String> {
        let join = |address: &String| remote::member(address, &self.token, origin, self.threads);
        self.addresses.iter().map(join).collect()
    }
}

pub fn command() -> Command {
    Command::new("agent")
        .about("Generate load for an orchestrator on another machine (--agents)")
        .disable_help_flag(true)
        .arg(
            Arg::new("help")
                .long("help")
                .action(clap::ArgAction::Help)
                .help("Print help"),
        )
        .arg(
            Arg::new("listen")
                .long("listen")
                .value_name("HOST:PORT")
                .default_value("127.0.0.1:7000")
                .help("Address to listen on; with port 0 the system chooses a free port"),
        )
        .arg(token_arg())
}

pub fn run(matches: &ArgMatches) -> Result<u8, CommandFailure> {
    let listen = matches.get_one::<String>("listen").expect("it has a default");
    let found = listen
        .to_socket_addrs()
        .map_err(|error| CommandFailure::usage(format!("--listen {listen}: {error}")))?;
    let address: SocketAddr = found
        .into_iter()
        .next()
        .ok_or_else(|| CommandFailure::usage(format!("--listen {listen}: the host has no address")))?;
    let token = token(matches)?;
    if token.is_empty() && SharedSecret::is_needed_at(address.ip()) {
        return Err(CommandFailure::usage(format!(
            "--listen {listen}: this address is reachable from other machines, so a secret is required; set --token-file"
        )));
    }
    let stop = StopFlag::on_signals()
        .map_err(|error| CommandFailure::failure(format!("cannot install the signal handlers: {error}")))?;
    let listener = server::listen(address).map_err(CommandFailure::failure)?;
    let address = listener
        .local_addr()
        .map_err(|error| CommandFailure::failure(error.to_string()))?;
    output::line(format_args!("listening on {address}"));
    server::serve(&listener, &token, &stop, &mut |what| output::line(what)).map_err(CommandFailure::failure)?;
    Ok(0)
}
