//! Tests a data directory whose chart history is damaged. The server starts without the history and logs the remedy.

use std::fs;
use std::time::Duration;

use crate::support::*;

#[test]
fn damaged_chart_history_is_logged_with_its_remedy() {
    let mut server = Server::start(&Config::new(""));
    let manifest = server.dir().join("data/history/manifest");
    server.wait_until("the history has a manifest", |_| manifest.exists());
    server.terminate(Duration::from_secs(60));
    server.kill();
    let mut bytes = fs::read(&manifest).expect("the manifest is readable");
    let last = bytes.last_mut().expect("the manifest is not empty");
    *last ^= 1;
    fs::write(&manifest, &bytes).expect("the manifest is writable");
    let before = server.log().len();
    server.spawn_again();
    server.wait_until_ready();
    server.wait_until("the log names the file and the remedy", |server| {
        let log = server.log().split_off(before);
        let mut lines = log.lines();
        lines.any(|line| line.contains("history/manifest") && line.contains("--accept-loss"))
    });
    server.assert_alive();
}
