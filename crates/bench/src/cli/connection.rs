//! Flags that say where the broker is, as `run` takes them. Names are emqtt-bench's where it has them.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::{Arg, ArgAction, ArgMatches, value_parser};

use super::Refusal;
use crate::target::{Target, Tls, Transport};

pub fn args() -> Vec<Arg> {
    vec![
        Arg::new("host")
            .short('h')
            .long("host")
            .value_name("HOST,…")
            .default_value("localhost")
            .help("Broker; connections are spread over several"),
        Arg::new("port")
            .short('p')
            .long("port")
            .value_name("PORT")
            .value_parser(value_parser!(u16).range(1..))
            .help("Its port [default: 1883, 8883 with TLS, 80 and 443 with WebSocket]"),
        flag("tls", "Connect with TLS").short('S'),
        flag("ws", "Connect with WebSocket"),
        Arg::new("path")
            .long("path")
            .value_name("PATH")
            .default_value("/mqtt")
            .help("Path of the WebSocket end point"),
        file(
            "cacertfile",
            "Trust the certificates in this file, instead of the system's",
        ),
        file("certfile", "Show this certificate to the broker").requires("keyfile"),
        file("keyfile", "Its private key").requires("certfile"),
        flag("insecure", "Accept any certificate of the broker"),
        flag("tls-resume", "Keep session tickets, so that later connections resume"),
        Arg::new("ifaddr")
            .long("ifaddr")
            .value_name("ADDRESS,…")
            .value_delimiter(',')
            .value_parser(value_parser!(IpAddr))
            .help("Connect from these local addresses in turn; each has some 28,000 ports"),
        Arg::new("receive-buffer")
            .long("receive-buffer")
            .value_name("BYTES")
            .value_parser(value_parser!(u32))
            .help("SO_RCVBUF of the connections"),
    ]
}

fn flag(name: &'static str, help: &'static str) -> Arg {
    Arg::new(name).long(name).action(ArgAction::SetTrue).help(help)
}

fn file(name: &'static str, help: &'static str) -> Arg {
    Arg::new(name)
        .long(name)
        .value_name("FILE")
        .value_parser(value_parser!(PathBuf))
        .help(help)
}

pub fn target(matches: &ArgMatches) -> Result<Target, Refusal> {
    let text = |name: &str| matches.get_one::<String>(name).cloned().unwrap_or_default();
    let path = |name: &str| matches.get_one::<PathBuf>(name).cloned();
    let transport = transport(matches.get_flag("tls"), matches.get_flag("ws"));
    Ok(Target {
        hosts: hosts(&text("host"))?,
        port: matches.get_one("port").copied().unwrap_or(default_port(transport)),
        transport,
        tls: Tls {
            ca_file: path("cacertfile"),
            cert_file: path("certfile"),
            key_file: path("keyfile"),
            is_insecure: matches.get_flag("insecure"),
            resumes: matches.get_flag("tls-resume"),
        },
        path: text("path"),
        source_addresses: matches.get_many("ifaddr").into_iter().flatten().copied().collect(),
        receive_buffer_bytes: matches.get_one("receive-buffer").copied(),
    })
}

pub fn transport(is_tls: bool, is_ws: bool) -> Transport {
    match (is_tls, is_ws) {
        (false, false) => Transport::Tcp,
        (true, false) => Transport::Tls,
        (false, true) => Transport::Ws,
        (true, true) => Transport::Wss,
    }
}

fn default_port(transport: Transport) -> u16 {
    match transport {
        Transport::Tcp => 1883,
        Transport::Tls => 8883,
        Transport::Ws => 80,
        Transport::Wss => 443,
    }
}

/// "a,b" as both.
pub fn hosts(list: &str) -> Result<Vec<String>, Refusal> {
    let hosts: Vec<String> = list.split(',').map(|host| host.trim().to_owned()).collect();
    match hosts.iter().any(String::is_empty) {
        true => Err(Refusal::usage(format!("--host {list}: a host name is empty"))),
        false => Ok(hosts),
    }
}
