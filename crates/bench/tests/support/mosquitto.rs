//! Runs a real Mosquitto on free ports, with plain, TLS and WebSocket listeners.

#![allow(clippy::unwrap_used, dead_code, reason = "a helper of tests")]

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use super::ports::free_port;

pub struct Mosquitto {
    child: Child,
    pub directory: PathBuf,
    pub port: u16,
    pub ws_port: u16,
    pub tls_port: u16,
    pub wss_port: u16,
}

static COUNTER: AtomicU32 = AtomicU32::new(0);

impl Mosquitto {
    /// Starts the process and returns when it listens.
    pub fn start() -> Mosquitto {
        let number = COUNTER.fetch_add(1, Ordering::Relaxed);
        let directory = std::env::temp_dir().join(format!("tidewire-bench-mosquitto-{}-{number}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        make_certificates(&directory);
        let [port, ws_port, tls_port, wss_port] = std::array::from_fn(|_| free_port().port());
        let path = |name: &str| directory.join(name).display().to_string();
        let tls = format!("certfile {}\nkeyfile {}\n", path("server.pem"), path("server.key"));
        // `user root`: otherwise Mosquitto, if started by root, switches to a user without read permission here.
        // The queues are unbounded, so that a lost message is an error of the load tool.
        let config = format!(
            "user root\nallow_anonymous true\nlog_dest stderr\nmax_queued_messages 0\nmax_inflight_messages 0\n\
             listener {port} 127.0.0.1\nlistener {ws_port} 127.0.0.1\nprotocol websockets\n\
             listener {tls_port} 127.0.0.1\n{tls}listener {wss_port} 127.0.0.1\nprotocol websockets\n{tls}",
        );
        fs::write(directory.join("mosquitto.conf"), config).unwrap();
        Mosquitto {
            child: spawn(&directory),
            directory,
            port,
            ws_port,
            tls_port,
            wss_port,
        }
    }
}

fn spawn(directory: &Path) -> Child {
    // Debian installs the broker in a directory that is only on the PATH of root.
    let search = format!(
        "{}:/usr/sbin:/usr/local/sbin",
        std::env::var("PATH").unwrap_or_default()
    );
    let mut command = Command::new("mosquitto");
    command
        .env("PATH", search)
        .arg("-c")
        .arg(directory.join("mosquitto.conf"));
    let spawned = command.stderr(Stdio::piped()).stdout(Stdio::null()).spawn();
    let mut child =
        spawned.unwrap_or_else(|error| panic!("mosquitto is needed by this test (apt-get install mosquitto): {error}"));
    let mut log = BufReader::new(child.stderr.take().unwrap());
    let mut seen = String::new();
    while !seen.contains(" running") {
        assert!(log.read_line(&mut seen).unwrap() > 0, "mosquitto ended: {seen}");
    }
    std::thread::spawn(move || log.read_to_end(&mut Vec::new()));
    child
}

impl Drop for Mosquitto {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.directory);
    }
}

fn make_certificates(directory: &Path) {
    let write = |name: &str, text: String| fs::write(directory.join(name), text).unwrap();
    let mut authority = rcgen::CertificateParams::new(Vec::new()).unwrap();
    authority.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let authority = rcgen::CertifiedIssuer::self_signed(authority, rcgen::KeyPair::generate().unwrap()).unwrap();
    let key = rcgen::KeyPair::generate().unwrap();
    let names = vec!["localhost".to_string(), "127.0.0.1".to_string()];
    let server = rcgen::CertificateParams::new(names)
        .unwrap()
        .signed_by(&key, &authority)
        .unwrap();
    write("ca.pem", authority.pem());
    write("server.pem", server.pem());
    write("server.key", key.serialize_pem());
}
