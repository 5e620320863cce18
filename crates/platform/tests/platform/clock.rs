//! Activity of devices while the clock of the server is set back.

use platform::IngestMessage;
use serde_json::Value as Json;

use super::fixture::fixture;
use super::{activity, event_chain};

const HOUR_MS: i64 = 3_600_000;

#[test]
fn inactivity_is_found_after_the_clock_was_set_back() {
    let mut f = fixture();
    event_chain(&f);
    assert!(f.tick(0).is_empty());
    let device = f.device("D", "", Json::Null);
    f.publish(device, -HOUR_MS, IngestMessage::Connected);
    f.publish(device, -HOUR_MS, IngestMessage::Alive);
    assert!(f.tick(-HOUR_MS).is_empty());
    assert_eq!(f.tick(-HOUR_MS + 700_000), ["log Inactivity Event"]);
}

#[test]
fn activity_is_recorded_after_the_clock_was_set_back() {
    let mut f = fixture();
    event_chain(&f);
    let device = f.device("D", "", Json::Null);
    f.publish(device, HOUR_MS, IngestMessage::Connected);
    f.publish(device, HOUR_MS, IngestMessage::Alive);
    f.publish(device, HOUR_MS, IngestMessage::Disconnected);
    assert_eq!(f.publish(device, 10, IngestMessage::Connected), ["log Connect Event"]);
    assert!(f.publish(device, 11, IngestMessage::Alive).is_empty());
    assert_eq!(
        f.publish(device, 12, IngestMessage::Disconnected),
        ["log Disconnect Event"]
    );
    let recorded = [
        "active Bool(true)",
        "inactivityAlarmTime Long(0)",
        "lastActivityTime 11",
        "lastConnectTime 10",
        "lastDisconnectTime 12",
    ];
    assert_eq!(activity(&f, device), recorded);
    assert_eq!(f.tick(700_000), ["log Inactivity Event"]);
}
