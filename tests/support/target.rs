//! Selects the broker under test. The default is this build of tidewire. `TIDEWIRE_TEST_TARGET` selects another one:
//!
//! - `tidewire:/path/to/it`: another build of tidewire, for example a release.
//! - `mosquitto` or `mosquitto:/path/to/it`: mosquitto, started with the `mosquitto` part of each `Config`.
//! - `host:port,pid`: a broker that is already running, for tests that need no configuration.
//!
//! Another broker helps to check the tests: if an established broker fails a test, the test may be wrong.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::path::Path;

use super::server::{Config, Ports, accepts};

#[derive(Clone, Debug)]
pub enum Target {
    Tidewire { program: String },
    Mosquitto { program: String },
    Running { mqtt: SocketAddr, pid: u32 },
}

impl Target {
    pub fn from_environment() -> Target {
        let name = std::env::var("TIDEWIRE_TEST_TARGET").unwrap_or_default();
        if name.is_empty() {
            return Target::Tidewire {
                program: env!("CARGO_BIN_EXE_tidewire").to_owned(),
            };
        }
        if let Some(path) = name.strip_prefix("tidewire:") {
            return Target::Tidewire {
                program: path.to_owned(),
            };
        }
        if let Some(rest) = name.strip_prefix("mosquitto") {
            let program = rest.strip_prefix(':').unwrap_or("/usr/sbin/mosquitto").to_owned();
            return Target::Mosquitto { program };
        }
        running(&name).unwrap_or_else(|| {
            panic!("TIDEWIRE_TEST_TARGET={name}: expected tidewire:path, mosquitto[:path] or host:port,pid")
        })
    }

    pub fn is_tidewire(&self) -> bool {
        matches!(self, Target::Tidewire { .. })
    }

    /// Writes the configuration to `dir` and returns the command that starts the broker there.
    pub fn command(&self, dir: &Path, ports: &Ports, config: &Config) -> Vec<String> {
        let in_dir = |text: &str| text.replace("{dir}", &dir.display().to_string());
        let file = dir.join("config");
        let (text, mut command) = match self {
            Target::Tidewire { program } => (in_dir(&config.toml), tidewire_command(program, dir, ports)),
            Target::Mosquitto { program } => (
                mosquitto_config(ports, &in_dir(&config.mosquitto)),
                vec![program.clone()],
            ),
            Target::Running { .. } => unreachable!("nothing to start"),
        };
        std::fs::write(&file, text).expect("the server's directory is writable");
        if self.is_tidewire() {
            command.extend(config.subcommand.map(str::to_owned));
        }
        if !config.environment.is_empty() {
            let set = config.environment.iter();
            let set = set.map(|(name, value)| format!("{name}={}", in_dir(value)));
            command.splice(0..0, ["env".to_owned()].into_iter().chain(set));
        }
        if let Some(most) = config.open_files_max {
            command.splice(0..0, ["prlimit".to_owned(), format!("--nofile={most}:{most}")]);
        }
        // mosquitto has no long form of this option.
        command.extend([
            if self.is_tidewire() { "--config" } else { "-c" }.to_owned(),
            file.display().to_string(),
        ]);
        command
    }

    /// Returns whether the server reports that it is ready. For other brokers, checks that every listener answers.
    pub fn is_ready(&self, ports: &Ports) -> bool {
        let addresses = match self {
            // tidewire binds its ports before it is ready.
            Target::Tidewire { .. } => return says_ready(ports.http),
            Target::Mosquitto { .. } => vec![ports.mqtt, ports.websocket],
            Target::Running { mqtt, .. } => vec![*mqtt],
        };
        addresses.into_iter().all(accepts)
    }
}

fn says_ready(http: SocketAddr) -> bool {
    let Ok(mut stream) = TcpStream::connect(http) else {
        return false;
    };
    let mut head = [0; 12];
    let asked = stream.write_all(b"GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    asked.and_then(|()| stream.read_exact(&mut head)).is_ok() && head.ends_with(b" 200")
}

fn running(name: &str) -> Option<Target> {
    let (address, pid) = name.split_once(',')?;
    let mqtt = address.to_socket_addrs().ok()?.next()?;
    Some(Target::Running {
        mqtt,
        pid: pid.parse().ok()?,
    })
}

/// Sets the addresses and the directory on the command line, so that the configuration file contains only test options.
fn tidewire_command(program: &str, dir: &Path, ports: &Ports) -> Vec<String> {
    let settings = [
        format!("node.data_dir={}", dir.join("data").display()),
        format!("listeners.tcp.default.bind={}", ports.mqtt),
        format!("listeners.ws.default.bind={}", ports.websocket),
        format!("api.bind={}", ports.http),
    ];
    let mut command = vec![program.to_owned()];
    command.extend(settings.into_iter().flat_map(|setting| ["--set".to_owned(), setting]));
    command
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
