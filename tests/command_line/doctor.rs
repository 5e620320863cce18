//! `tidewire doctor` on a good machine, while the server runs, and with several problems.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::fs::{self, File};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

use crate::support::{Config, Server, free_port, unique};

struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Scratch {
        let path = std::env::temp_dir().join(unique(&format!("tidewire-doctor-{}", std::process::id())));
        fs::create_dir_all(path.join("data")).unwrap();
        let scratch = Scratch(path);
        scratch.set_mode(0o700);
        scratch
    }

    fn data(&self) -> PathBuf {
        self.0.join("data")
    }

    fn set_mode(&self, mode: u32) {
        fs::set_permissions(self.data(), fs::Permissions::from_mode(mode)).unwrap();
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Returns the exit code and the printed text.
fn doctor(data_dir: &Path, mqtt: SocketAddr, api: SocketAddr, more: &[String]) -> (Option<i32>, String) {
    let mut set = vec![
        format!("node.data_dir={}", data_dir.display()),
        format!("listeners.tcp.default.bind={mqtt}"),
        "listeners.ws.default.enabled=false".to_owned(),
        format!("api.bind={api}"),
    ];
    set.extend_from_slice(more);
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidewire"));
    command.arg("doctor").current_dir(data_dir);
    for assignment in set {
        command.args(["--set", &assignment]);
    }
    let output = command.output().unwrap();
    let (printed, errors) = (output.stdout, output.stderr);
    assert_eq!(String::from_utf8(errors).unwrap(), "");
    (output.status.code(), String::from_utf8(printed).unwrap())
}

/// Returns the line that begins with these words, and the line with its repair.
fn finding<'a>(printed: &'a str, level: &str, subject: &str) -> (&'a str, &'a str) {
    let mut lines = printed.lines();
    let begin = format!("{level:<9}{subject:<15}");
    let found = lines.find(|line| line.starts_with(&begin));
    (
        found.unwrap_or_else(|| panic!("no line {begin:?}:\n{printed}")),
        lines.next().unwrap_or_default(),
    )
}

#[test]
fn nothing_is_wrong_with_a_good_configuration() {
    let scratch = Scratch::new();
    let (code, printed) = doctor(&scratch.data(), free_port(), free_port(), &[]);
    assert_eq!(code, Some(0), "{printed}");
    for subject in ["configuration", "port", "data"] {
        finding(&printed, "ok", subject);
    }
    // A slow disk and a full one are warnings here.
    for subject in ["open files", "memory", "disk", "fdatasync"] {
        assert!(printed.contains(subject), "{subject}:\n{printed}");
    }
    assert!(
        printed
            .lines()
            .last()
            .is_some_and(|line| line.starts_with("0 errors, ")),
        "{printed}"
    );
    let left: Vec<_> = fs::read_dir(scratch.data()).unwrap().collect();
    assert!(left.is_empty(), "the check left {left:?}");
}

#[test]
fn ports_of_the_running_server_are_no_problem() {
    let server = Server::start(&Config::default());
    let (code, printed) = doctor(&server.dir().join("data"), server.mqtt(), server.http(), &[]);
    assert_eq!(code, Some(0), "{printed}");
    let used = format!("{} is used by tidewire, process {}", server.mqtt(), server.pid());
    assert!(printed.contains(&used), "{used}:\n{printed}");
    assert!(printed.contains("the server may open"), "{printed}");
    server.assert_alive();
}

#[test]
fn server_of_another_data_directory_is_an_error() {
    let scratch = Scratch::new();
    let server = Server::start(&Config::default());
    let (code, printed) = doctor(&scratch.data(), server.mqtt(), free_port(), &[]);
    assert_eq!(code, Some(1), "{printed}");
    let (line, repair) = finding(&printed, "error", "port");
    let used = format!("{} is used by process {} (", server.mqtt(), server.pid());
    assert!(line.contains(&used), "{used}:\n{line}");
    let not_ours = format!("is not the server of {} (", scratch.data().display());
    assert!(line.contains(&not_ours), "{line}");
    assert!(repair.contains(&format!("kill {}", server.pid())), "{repair}");
    server.assert_alive();
}

#[test]
fn server_without_a_journal_may_be_another_one() {
    let scratch = Scratch::new();
    let memory = "durability.policy=memory".to_owned();
    let server = Server::start(&Config::new("[durability]\npolicy = \"memory\"\n"));
    let (code, printed) = doctor(&scratch.data(), server.mqtt(), free_port(), &[memory]);
    assert_eq!(code, Some(0), "{printed}");
    let (line, repair) = finding(&printed, "warning", "port");
    assert!(
        line.contains(&format!("{} is used by process {}", server.mqtt(), server.pid())),
        "{line}"
    );
    assert!(repair.contains(&format!("ps -fp {}", server.pid())), "{repair}");
    server.assert_alive();
}

#[test]
fn each_problem_is_named_with_its_repair() {
    let scratch = Scratch::new();
    scratch.set_mode(0o755);
    let newest = SystemTime::now() + Duration::from_secs(24 * 60 * 60);
    File::create(scratch.data().join("segment"))
        .unwrap()
        .set_modified(newest)
        .unwrap();
    let certificate = expired_certificate(&scratch.0);
    let other = TcpListener::bind(free_port()).unwrap();
    let address = other.local_addr().unwrap();
    let (code, printed) = doctor(&scratch.data(), address, free_port(), &certificate);
    assert_eq!(code, Some(1), "{printed}");

    let (line, repair) = finding(&printed, "error", "port");
    assert!(line.contains(&format!("{address} is used by process")), "{line}");
    assert!(
        repair.contains("repair: kill ") && repair.contains("listeners.tcp.default.bind"),
        "{repair}"
    );
    let (line, repair) = finding(&printed, "warning", "data");
    assert!(line.ends_with("(mode 755)"), "{line}");
    assert_eq!(repair.trim(), format!("repair: chmod 700 {}", scratch.data().display()));
    let (line, repair) = finding(&printed, "error", "clock");
    assert!(line.contains("a file of the server was written at"), "{line}");
    assert!(repair.contains("timedatectl"), "{repair}");
    let (line, repair) = finding(&printed, "error", "certificate");
    assert!(line.contains("has expired at 2001-01-01T00:00:00Z"), "{line}");
    assert!(repair.contains("systemctl reload tidewire"), "{repair}");
    assert!(printed.ends_with('\n') && printed.contains("\n3 errors, "), "{printed}");
}

/// Writes a certificate that has expired, and returns the options of a listener with it.
fn expired_certificate(directory: &Path) -> Vec<String> {
    let key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    params.not_before = rcgen::date_time_ymd(2000, 1, 1);
    params.not_after = rcgen::date_time_ymd(2001, 1, 1);
    let (cert_file, key_file) = (directory.join("server.crt"), directory.join("server.key"));
    fs::write(&cert_file, params.self_signed(&key).unwrap().pem()).unwrap();
    fs::write(&key_file, key.serialize_pem()).unwrap();
    fs::set_permissions(&key_file, fs::Permissions::from_mode(0o600)).unwrap();
    vec![
        "listeners.tls.default.enabled=true".to_owned(),
        format!("listeners.tls.default.bind={}", free_port()),
        format!("listeners.tls.default.cert_file={}", cert_file.display()),
        format!("listeners.tls.default.key_file={}", key_file.display()),
    ]
}

#[test]
fn wrong_configuration_is_one_error() {
    let scratch = Scratch::new();
    let wrong = ["mqtt.max_qos=7".to_owned()];
    let (code, printed) = doctor(&scratch.data(), free_port(), free_port(), &wrong);
    assert_eq!(code, Some(1), "{printed}");
    let (line, _) = finding(&printed, "error", "configuration");
    assert!(line.contains("1 error in the configuration"), "{line}");
    assert!(printed.contains("mqtt.max_qos"), "{printed}");
}
