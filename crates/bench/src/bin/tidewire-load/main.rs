//! `tidewire-load`: a first load generator, for comparing brokers on one machine.
//!
//! One thread, one readiness loop, any number of connections, so that it costs little beside the broker that shares its
//! machine. It measures deliveries per second and the broker's own CPU time (from /proc); it is not the load tool that the
//! project wants (open model, latency percentiles, verification), which will take its place.

#![allow(clippy::print_stdout, clippy::print_stderr)]

mod broker_cost;
mod client;
mod scenario;

use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use mqtt::QoS;
use scenario::{Options, Scenario};

const USAGE: &str = "tidewire-load SCENARIO [--option value]...
  fanout  --publishers 10 --subscribers 1000 --payload 66 [--rate msg/s in all, default as fast as possible]
  pairs   --pairs 1000 --qos 1 --window 20 [--rate msg/s in all]
  idle    --connections 10000 --hold 10
common    --broker 127.0.0.1:1883 --pid PID-of-the-broker --seconds 10 --qos 0";

fn main() -> ExitCode {
    match parse(std::env::args().skip(1).collect()).and_then(|options| scenario::run(&options)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("{message}");
            ExitCode::FAILURE
        }
    }
}

fn parse(args: Vec<String>) -> Result<Options, String> {
    let scenario = match args.first().map(String::as_str) {
        Some("fanout") => Scenario::FanOut,
        Some("pairs") => Scenario::Pairs,
        Some("idle") => Scenario::Idle,
        _ => return Err(USAGE.into()),
    };
    let mut options = Options {
        scenario,
        broker: SocketAddr::from(([127, 0, 0, 1], 1883)),
        pid: None,
        duration: Duration::from_secs(10),
        publishers: 10,
        subscribers: 1000,
        pairs: 1000,
        connections: 10_000,
        payload_bytes: 66,
        qos: if scenario == Scenario::Pairs {
            QoS::AtLeastOnce
        } else {
            QoS::AtMostOnce
        },
        window: 20,
        rate: None,
    };
    for pair in args[1..].chunks(2) {
        let [key, value] = pair else {
            return Err(format!("{} needs a value\n{USAGE}", pair[0]));
        };
        let number = || {
            value
                .parse::<usize>()
                .map_err(|_| format!("{key}: {value} is no number"))
        };
        match key.as_str() {
            "--broker" => {
                options.broker = value
                    .parse()
                    .map_err(|_| format!("--broker: {value} is no address:port"))?
            }
            "--pid" => options.pid = Some(number()? as u32),
            "--seconds" | "--hold" => options.duration = Duration::from_secs(number()? as u64),
            "--publishers" => options.publishers = number()?,
            "--subscribers" => options.subscribers = number()?,
            "--pairs" => options.pairs = number()?,
            "--connections" => options.connections = number()?,
            "--payload" => options.payload_bytes = number()?,
            "--window" => options.window = number()?,
            "--rate" => options.rate = Some(number()? as f64),
            "--qos" => options.qos = QoS::from_bits(number()? as u8).ok_or("--qos: 0, 1 or 2")?,
            _ => return Err(format!("{key} is no option\n{USAGE}")),
        }
    }
    Ok(options)
}
