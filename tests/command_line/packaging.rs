//! Tests the commands that packages and containers need: `health`, `man`, `passwd --initial`.

use std::fs;
use std::process::{Command, Output};

use crate::support::*;

fn tidewire(args: &[&str]) -> Output {
    let output = Command::new(env!("CARGO_BIN_EXE_tidewire")).args(args).output();
    output.expect("the program starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn health_succeeds_while_the_server_is_ready() {
    let mut server = Server::start(&Config::default());
    let api = format!("http://{}", server.http());
    for args in [vec!["health", "--api", &api], vec!["health", "--live", "--api", &api]] {
        let output = tidewire(&args);
        assert!(output.status.success(), "{args:?}: {output:?}");
    }
    server.kill();
    let output = tidewire(&["health", "--api", &api]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(text(&output.stderr).contains(&server.http().to_string()), "{output:?}");
}

#[test]
fn health_reads_the_address_from_the_configuration() {
    let server = Server::start(&Config::default());
    let bind = format!("api.bind={}", server.http());
    let output = tidewire(&["health", "--set", &bind]);
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn man_pages_describe_each_command() {
    let directory = std::env::temp_dir().join(unique(&format!("tidewire-man-{}", std::process::id())));
    let output = tidewire(&["man", &directory.display().to_string()]);
    assert!(output.status.success(), "{output:?}");
    let page = |name: &str| fs::read_to_string(directory.join(name)).unwrap_or_default();
    assert!(page("tidewire.1").contains("health"), "{}", page("tidewire.1"));
    assert!(page("tidewire-journal-verify.1").starts_with(".ie"));
    // Hidden commands have no page.
    assert_eq!(page("tidewire-man.1"), "");
    fs::remove_dir_all(&directory).expect("the directory exists");
}

#[test]
fn initial_password_is_printed_if_it_exists() {
    let server = Server::start(&Config::default());
    let data = format!("node.data_dir={}", server.dir().join("data").display());
    let output = tidewire(&["passwd", "--initial", "--set", &data]);
    let stored = fs::read_to_string(server.dir().join("data/admin-password")).expect("the first start writes it");
    assert_eq!(text(&output.stdout).trim_end(), stored.trim_end(), "{output:?}");
    let missing = format!("node.data_dir={}", server.dir().join("other").display());
    let output = tidewire(&["passwd", "--initial", "--set", &missing]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
}
