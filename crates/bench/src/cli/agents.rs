//! `bench agent`, and `--agents` of the commands that make load.

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::time::Instant;

use clap::{Arg, ArgMatches, Command, value_parser};

use super::Refusal;
use crate::agent::proof::Token;
use crate::agent::{remote, server};
use crate::orchestrator::{Member, Stop};
use crate::output;

#[derive(Clone, Debug, Default)]
pub struct Agents {
    pub addresses: Vec<String>,
    token: Token,
    threads: Option<u16>,
}

fn token_arg() -> Arg {
    Arg::new("token-file")
        .long("token-file")
        .value_name("FILE")
        .value_parser(value_parser!(PathBuf))
        .help("File with the secret that agents and orchestrator share; needed unless on loopback")
}

pub fn orchestrator_args() -> [Arg; 2] {
    [
        Arg::new("agents")
            .long("agents")
            .value_name("HOST:PORT,…")
            .value_delimiter(',')
            .help("Let these agents make the load"),
        token_arg(),
    ]
}

pub fn parse(matches: &ArgMatches) -> Result<Agents, Refusal> {
    let addresses: Vec<String> = matches.get_many("agents").into_iter().flatten().cloned().collect();
    if let Some(wrong) = addresses.iter().find(|address| !address.contains(':')) {
        return Err(Refusal::usage(format!("--agents {wrong}: expected host:port")));
    }
    Ok(Agents {
        addresses,
        token: token(matches)?,
        threads: matches.get_one("threads").copied(),
    })
}

fn token(matches: &ArgMatches) -> Result<Token, Refusal> {
    match matches.get_one::<PathBuf>("token-file") {
        None => Ok(Token::default()),
        Some(path) => Token::read(path).map_err(Refusal::usage),
    }
}

impl Agents {
    pub fn connect(&self, origin: Instant) -> Result<Vec<Member>, String> {
        let join = |address: &String| remote::member(address, &self.token, origin, self.threads);
        self.addresses.iter().map(join).collect()
    }
}

pub fn command() -> Command {
    Command::new("agent")
        .about("Wait for a run with --agents on another machine, and make its load")
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
                .help("Where to wait; port 0 takes a free one"),
        )
        .arg(token_arg())
}

pub fn run(matches: &ArgMatches) -> Result<u8, Refusal> {
    let listen = matches.get_one::<String>("listen").expect("it has a default");
    let found = listen
        .to_socket_addrs()
        .map_err(|error| Refusal::usage(format!("--listen {listen}: {error}")))?;
    let address: SocketAddr = found
        .into_iter()
        .next()
        .ok_or_else(|| Refusal::usage(format!("--listen {listen}: no such host")))?;
    let token = token(matches)?;
    if token.is_empty() && Token::is_needed_at(address.ip()) {
        return Err(Refusal::usage(format!(
            "--listen {listen}: whoever reaches this could make this machine attack others; give a secret with --token-file"
        )));
    }
    let stop = Stop::on_signals().map_err(|error| Refusal::failure(format!("cannot listen for signals: {error}")))?;
    let listener = server::listen(address).map_err(Refusal::failure)?;
    let address = listener
        .local_addr()
        .map_err(|error| Refusal::failure(error.to_string()))?;
    output::line(format_args!("listening on {address}"));
    server::serve(&listener, &token, &stop, &mut |what| output::line(what)).map_err(Refusal::failure)?;
    Ok(0)
}
