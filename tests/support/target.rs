//! Which broker a suite drives. The project's own unless `TIDEWIRE_TEST_TARGET` says otherwise:
//!
//! - `mosquitto` or `mosquitto:/path/to/it`: started by us, with the `mosquitto` part of each `Config`;
//! - `host:port,pid`: a broker that is running already, for tests that need no configuration.
//!
//! This is for checking the tests: where a broker of good standing fails one, either of the two may be wrong.

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::Path;

use super::server::{Config, Ports, accepts};

#[derive(Clone, Debug)]
pub enum Target {
    Tidewire,
    Mosquitto { program: String },
    Running { mqtt: SocketAddr, pid: u32 },
}

impl Target {
    pub fn from_environment() -> Target {
        let Ok(name) = std::env::var("TIDEWIRE_TEST_TARGET") else {
            return Target::Tidewire;
        };
        if name.is_empty() || name == "tidewire" {
            return Target::Tidewire;
        }
        if let Some(rest) = name.strip_prefix("mosquitto") {
            let program = rest.strip_prefix(':').unwrap_or("/usr/sbin/mosquitto").to_owned();
            return Target::Mosquitto { program };
        }
        running(&name)
            .unwrap_or_else(|| panic!("TIDEWIRE_TEST_TARGET={name}: expected mosquitto[:path] or host:port,pid"))
    }

    pub fn is_tidewire(&self) -> bool {
        matches!(self, Target::Tidewire)
    }

    /// The command that starts the broker in `dir`, with its configuration written there.
    pub fn command(&self, dir: &Path, ports: &Ports, config: &Config) -> Vec<String> {
        let in_dir = |text: &str| text.replace("{dir}", &dir.display().to_string());
        let file = dir.join("config");
        let (program, text, flag) = match self {
            Target::Tidewire => (
                env!("CARGO_BIN_EXE_tidewire").to_owned(),
                tidewire_config(dir, ports, &in_dir(&config.toml)),
                "--config",
            ),
            Target::Mosquitto { program } => (
                program.clone(),
                mosquitto_config(ports, &in_dir(&config.mosquitto)),
                "--config-file",
            ),
            Target::Running { .. } => unreachable!("nothing to start"),
        };
        std::fs::write(&file, text).expect("the server's directory is writable");
        vec![program, flag.to_owned(), file.display().to_string()]
    }

    /// Whether every listener answers.
    pub fn is_ready(&self, ports: &Ports) -> bool {
        let addresses = match self {
            Target::Tidewire => vec![ports.mqtt, ports.websocket, ports.http],
            Target::Mosquitto { .. } => vec![ports.mqtt, ports.websocket],
            Target::Running { mqtt, .. } => vec![*mqtt],
        };
        addresses.into_iter().all(accepts)
    }
}

fn running(name: &str) -> Option<Target> {
    let (address, pid) = name.split_once(',')?;
    let mqtt = address.to_socket_addrs().ok()?.next()?;
    Some(Target::Running {
        mqtt,
        pid: pid.parse().ok()?,
    })
}

/// `extra` is whole tables, none of those here.
fn tidewire_config(dir: &Path, ports: &Ports, extra: &str) -> String {
    let Ports { mqtt, websocket, http } = ports;
    let dir = dir.join("data").display().to_string();
    format!(
        "[listeners.tcp]\nbind = \"{mqtt}\"\n\n[listeners.websocket]\nbind = \"{websocket}\"\n\n\
         [http]\nbind = \"{http}\"\n\n[storage]\ndir = \"{dir}\"\n\n{extra}\n"
    )
}

fn mosquitto_config(ports: &Ports, extra: &str) -> String {
    let Ports { mqtt, websocket, .. } = ports;
    let anonymous = if extra.contains("allow_anonymous") {
        ""
    } else {
        "allow_anonymous true\n"
    };
    format!(
        "listener {} 127.0.0.1\nlistener {} 127.0.0.1\nprotocol websockets\n\
         {anonymous}user root\nlog_type error\nlog_type warning\n{extra}\n",
        mqtt.port(),
        websocket.port()
    )
}
