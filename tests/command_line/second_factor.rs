//! Tests commands for a user of the console with a second factor.

use std::process::{Command, Output, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

use auth::TotpSecret;
use serde_json::json;

use crate::support::api::Api;
use crate::support::*;

fn tidewire(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidewire"));
    let output = command.args(args).stdin(Stdio::null()).output();
    output.expect("the program starts")
}

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Turns the second factor of `admin` on.
fn set_up(server: &Server) {
    let api = Api::of(server);
    let path = server.dir().join("data/admin-password");
    let password = std::fs::read_to_string(path).expect("the first start writes a password");
    let begun = api.ok("POST", "/api/v1/totp", &json!({ "password": password.trim() }));
    let secret = TotpSecret::of_base32(begun["secret"].as_str().expect("a secret")).expect("base32");
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
    let code = secret.code_at(now.as_secs());
    api.ok("POST", "/api/v1/totp/confirm", &json!({ "code": *code }));
}

#[test]
fn second_factor_is_explained_and_removed_on_the_command_line() {
    let mut server = Server::start(&Config::default());
    set_up(&server);
    let data = server.dir().join("data");
    let (url, password) = (
        format!("http://{}", server.http()),
        data.join("admin-password").display().to_string(),
    );
    let list = [
        "rule",
        "list",
        "--api",
        &url,
        "--user",
        "admin",
        "--password-file",
        &password,
    ];
    let refused = tidewire(&list);
    assert!(!refused.status.success());
    let text = errors(&refused);
    assert!(
        text.contains("second factor") && text.contains("TIDEWIRE_API_TOKEN"),
        "{text}"
    );

    server.kill();
    let file = data.join("admins").display().to_string();
    let remove = ["passwd", &file, "admin", "--remove-totp"];
    let removed = tidewire(&remove);
    assert!(removed.status.success(), "{}", errors(&removed));
    let again = tidewire(&remove);
    assert!(errors(&again).contains("has no second factor"), "{}", errors(&again));
    server.spawn_again();
    server.wait_until_ready();
    let listed = tidewire(&list);
    assert!(listed.status.success(), "{}", errors(&listed));
    let log = Api::of(&server).ok("GET", "/api/v1/audit?operation=remove_console_totp", &json!(null));
    let entry = &log["items"][0];
    assert_eq!(
        (&entry["user"], &entry["body"]["name"]),
        (&json!("command line"), &json!("admin"))
    );
}
