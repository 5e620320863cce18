//! Runs a real Mosquitto for tests, on free ports, with plain, WebSocket, TLS and Unix listeners. Dropping it kills
//! the process.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::support::free_port;

pub struct Mosquitto {
    child: Option<Child>,
    pub directory: PathBuf,
    pub port: u16,
    pub ws_port: u16,
    pub tls_port: u16,
    pub wss_port: u16,
    /// The port that requires user `alice` with password `secret`.
    pub login_port: u16,
}

static COUNTER: AtomicU32 = AtomicU32::new(0);

impl Mosquitto {
    pub fn start() -> Mosquitto {
        let number = COUNTER.fetch_add(1, Ordering::Relaxed);
        let directory = std::env::temp_dir().join(format!("tidewire-mosquitto-{}-{number}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        make_certificates(&directory);
        make_password_file(&directory);
        let [port, ws_port, tls_port, wss_port, login_port] = std::array::from_fn(|_| free_port().port());
        let mut mosquitto = Mosquitto {
            child: None,
            directory,
            port,
            ws_port,
            tls_port,
            wss_port,
            login_port,
        };
        mosquitto.write_config();
        mosquitto.restart();
        mosquitto
    }

    pub fn path(&self, name: &str) -> String {
        self.directory.join(name).display().to_string()
    }

    pub fn stop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Starts or restarts the process on the same ports. Returns when it listens.
    pub fn restart(&mut self) {
        self.stop();
        let mut command = program("mosquitto");
        command
            .arg("-c")
            .arg(self.path("mosquitto.conf"))
            .stderr(Stdio::piped())
            .stdout(Stdio::null());
        let mut child = command
            .spawn()
            .unwrap_or_else(|error| panic!("{}: {error}", missing("mosquitto")));
        let mut log = BufReader::new(child.stderr.take().unwrap());
        let mut seen = String::new();
        while !seen.contains(" running") {
            assert!(log.read_line(&mut seen).unwrap() > 0, "mosquitto ended: {seen}");
        }
        std::thread::spawn(move || log.read_to_end(&mut Vec::new()));
        self.child = Some(child);
    }

    fn write_config(&self) {
        let tls = |name: &str| {
            format!(
                "certfile {}\nkeyfile {}\n",
                self.path(&format!("{name}.pem")),
                self.path(&format!("{name}.key"))
            )
        };
        let (signed, own) = (tls("server"), tls("self"));
        // Without `user root`, a Mosquitto started by root switches to a user that cannot write to the directory.
        let config = format!(
            "user root\nper_listener_settings true\nlog_dest stderr\nmax_queued_messages 100000\n\
             listener {} 127.0.0.1\nallow_anonymous true\n\
             listener {} 127.0.0.1\nprotocol websockets\nallow_anonymous true\n\
             listener {} 127.0.0.1\nallow_anonymous true\n{signed}\
             listener {} 127.0.0.1\nprotocol websockets\nallow_anonymous true\n{own}\
             listener {} 127.0.0.1\nallow_anonymous false\npassword_file {}\n\
             listener 0 {}\nallow_anonymous true\n",
            self.port,
            self.ws_port,
            self.tls_port,
            self.wss_port,
            self.login_port,
            self.path("passwd"),
            self.path("socket"),
        );
        fs::write(self.directory.join("mosquitto.conf"), config).unwrap();
    }
}

impl Drop for Mosquitto {
    fn drop(&mut self) {
        self.stop();
        let _ = fs::remove_dir_all(&self.directory);
    }
}

fn missing(name: &str) -> String {
    format!("`{name}` is needed by this test; install it with: apt-get install mosquitto mosquitto-clients")
}

/// Debian installs the broker in a directory that is only on the PATH of root.
fn program(name: &str) -> Command {
    let mut command = Command::new(name);
    let path = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("{path}:/usr/sbin:/usr/local/sbin"));
    command
}

/// Runs a tool of Mosquitto and returns its output.
pub fn tool(name: &str, args: &[&str]) -> Output {
    let output = program(name).args(args).output();
    output.unwrap_or_else(|error| panic!("{}: {error}", missing(name)))
}

/// Creates two certificates: `server`, for localhost, signed by `ca`; and `self`, self-signed like those of
/// `openssl req -x509`.
fn make_certificates(directory: &Path) {
    let write = |name: &str, text: String| fs::write(directory.join(name), text).unwrap();
    let params = |name: &str, is_ca: bool| {
        let mut params = rcgen::CertificateParams::new(vec!["localhost".to_string()]).unwrap();
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        if is_ca {
            params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        }
        params
    };
    let ca_key = rcgen::KeyPair::generate().unwrap();
    let ca = rcgen::CertifiedIssuer::self_signed(params("authority", true), ca_key).unwrap();
    let server_key = rcgen::KeyPair::generate().unwrap();
    let server = params("server", false).signed_by(&server_key, &ca).unwrap();
    let self_key = rcgen::KeyPair::generate().unwrap();
    let own = params("self", true).self_signed(&self_key).unwrap();
    write("ca.pem", ca.pem());
    write("server.pem", server.pem());
    write("server.key", server_key.serialize_pem());
    write("self.pem", own.pem());
    write("self.key", self_key.serialize_pem());
}

fn make_password_file(directory: &Path) {
    let file = directory.join("passwd").display().to_string();
    let output = tool("mosquitto_passwd", &["-c", "-b", &file, "alice", "secret"]);
    assert!(output.status.success(), "{output:?}");
}
