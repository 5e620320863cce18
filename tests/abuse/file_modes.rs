//! Another user of the machine reads the server's files, or changes the users and access rules.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::Duration;

use crate::support::*;

#[test]
fn files_with_wide_permissions_are_restricted_at_the_start() {
    let mut server = Server::start(&Config::new("[platform]\nenabled = true\n"));
    server.terminate(Duration::from_secs(30));
    server.kill();
    let data = server.dir().join("data");
    let wide = [
        ("platform", 0o755),
        ("platform/entities.sqlite", 0o644),
        ("journal", 0o777),
        ("stores.json", 0o666),
    ];
    for (name, mode) in wide {
        fs::set_permissions(data.join(name), Permissions::from_mode(mode)).expect("a file of the server");
    }
    server.spawn_again();
    server.wait_until_ready();
    for (name, _) in wide {
        let mode = fs::metadata(data.join(name))
            .expect("a file of the server")
            .permissions()
            .mode();
        assert_eq!(mode & 0o077, 0, "{name}: {mode:o}");
    }
    let log = server.log();
    let warning = log
        .lines()
        .find(|line| line.contains("accessible to other users of this machine"));
    let warning = warning.unwrap_or_else(|| panic!("no warning in {log}"));
    assert!(warning.contains("entities.sqlite"), "{warning}");
}

#[test]
fn password_file_that_everybody_can_change_is_refused() {
    let dir = std::env::temp_dir().join(unique("tidewire-modes"));
    fs::create_dir_all(&dir).expect("a directory");
    let (passwords, config) = (dir.join("passwords"), dir.join("config.toml"));
    fs::write(&passwords, "").expect("a file");
    let text = format!("[access]\npassword_file = {:?}\n", passwords.display().to_string());
    fs::write(&config, text).expect("a file");
    let check = |mode: u32| {
        fs::set_permissions(&passwords, Permissions::from_mode(mode)).expect("a file");
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidewire"));
        let output = command
            .arg("check")
            .arg("--config")
            .arg(&config)
            .output()
            .expect("the program runs");
        (
            output.status.success(),
            String::from_utf8_lossy(&output.stderr).into_owned(),
        )
    };
    let (is_accepted, text) = check(0o666);
    assert!(
        !is_accepted && text.contains("every user of this machine can change"),
        "{text}"
    );
    let (is_accepted, text) = check(0o600);
    assert!(is_accepted, "{text}");
    fs::remove_dir_all(&dir).expect("a directory");
}

#[test]
fn password_file_that_everybody_can_read_is_reported() {
    let config = Config::new("[access]\npassword_file = \"{dir}/passwords\"\n").file("passwords", "");
    let mut server = Server::start(&config);
    let warnings = |server: &Server| {
        let log = server.log();
        log.matches("every user of this machine can read a file with secrets")
            .count()
    };
    for (mode, expected) in [(0o600, 0), (0o644, 1)] {
        server.terminate(Duration::from_secs(30));
        server.kill();
        let before = warnings(&server);
        fs::set_permissions(server.dir().join("passwords"), Permissions::from_mode(mode)).expect("a file");
        server.spawn_again();
        server.wait_until_ready();
        assert_eq!(warnings(&server) - before, expected, "mode {mode:o}");
    }
}
