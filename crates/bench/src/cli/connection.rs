//! The flags of `run` for the connection to the broker. Their names are those of emqtt-bench where it has the same
//! flag.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::{Arg, ArgAction, ArgMatches, value_parser};

use super::CommandFailure;
use crate::target::{LoadTarget, TargetTls, TargetTransport};

pub fn args() -> Vec<Arg> {
    vec![
        Arg::new("host")
            .short('h')
            .long("host")
            .value_name("HOST,…")
            .default_value("localhost")
            .help("Host of the broker; connections are spread over several hosts"),
        Arg::new("port")
            .short('p')
            .long("port")
            .value_name("PORT")
            .value_parser(value_parser!(u16).range(1..))
            .help("Port of the broker [default: 1883, 8883 with TLS, 80 and 443 with WebSocket, 14567 with QUIC]"),
        flag("tls", "Connect with TLS").short('S'),
        flag("ws", "Connect with WebSocket"),
        flag("quic", "Connect with QUIC").conflicts_with_all(["tls", "ws"]),
        Arg::new("path")
            .long("path")
            .value_name("PATH")
            .default_value("/mqtt")
            .help("Path of the WebSocket endpoint"),
        file(
            "cacertfile",
            "Trust the certificates in this file, instead of those of the system",
        ),
        file("certfile", "Client certificate").requires("keyfile"),
        file("keyfile", "Private key of the client certificate").requires("certfile"),
        flag("insecure", "Accept any certificate of the broker"),
        flag(
            "tls-resume",
            "Keep session tickets, so that later connections resume a TLS session",
        ),
        Arg::new("ifaddr")
            .long("ifaddr")
            .value_name("ADDRESS,…")
            .value_delimiter(',')
            .value_parser(value_parser!(IpAddr))
            .help("Connect from these local addresses in turn; each has about 28,000 ports"),
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

pub fn target(matches: &ArgMatches) -> Result<LoadTarget, CommandFailure> {
    let text = |name: &str| matches.get_one::<String>(name).cloned().unwrap_or_default();
    let path = |name: &str| matches.get_one::<PathBuf>(name).cloned();
    let transport = match matches.get_flag("quic") {
        true => TargetTransport::Quic,
        false => transport(matches.get_flag("tls"), matches.get_flag("ws")),
    };
    Ok(LoadTarget {
        hosts: hosts(&text("host"))?,
        port: matches.get_one("port").copied().unwrap_or(default_port(transport)),
        transport,
        tls: TargetTls {
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

pub fn transport(is_tls: bool, is_ws: bool) -> TargetTransport {
    match (is_tls, is_ws) {
        (false, false) => TargetTransport::Tcp,
        (true, false) => TargetTransport::Tls,
        (false, true) => TargetTransport::Ws,
        (true, true) => TargetTransport::Wss,
    }
}

fn default_port(transport: TargetTransport) -> u16 {
    match transport {
        TargetTransport::Tcp => 1883,
        TargetTransport::Tls => 8883,
        TargetTransport::Ws => 80,
        TargetTransport::Wss => 443,
        TargetTransport::Quic => 14567,
    }
}

/// Splits "a,b" into host names.
pub fn hosts(list: &str) -> Result<Vec<String>, CommandFailure> {
    let hosts: Vec<String> = list.split(',').map(|host| host.trim().to_owned()).collect();
    match hosts.iter().any(String::is_empty) {
        true => Err(CommandFailure::usage(format!("--host {list}: a host name is empty"))),
        false => Ok(hosts),
    }
}
