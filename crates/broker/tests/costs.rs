//! What one client may cost the others: memory that it leaves behind, work that it sets off, bytes that it makes the server
//! hold.

#![allow(clippy::unwrap_used)]

mod world;

use mqtt::ProtocolVersion::V5;
use mqtt::QoS::AtMostOnce;
use mqtt::*;
use world::{World, connect_packet};

const YEAR_S: u32 = 365 * 86_400;

/// Time passes in one step, as on a machine that had nothing to do.
fn skip(w: &mut World, ms: u64) {
    w.now.monotonic_ms += ms;
    w.now.unix_ms += ms;
    w.settle();
}

fn connect_for(w: &mut World, expiry_s: u32, will_delay_s: u32) -> usize {
    let (mut properties, mut will_properties) = (Vec::new(), Vec::new());
    PropertyWriter::new(&mut properties).put(Property::SessionExpiryInterval(expiry_s));
    PropertyWriter::new(&mut will_properties).put(Property::WillDelayInterval(will_delay_s));
    let will = Will {
        qos: AtMostOnce,
        retain: false,
        properties: Properties::from_validated(&will_properties),
        topic: "will",
        payload: b"will",
    };
    let connect = Connect {
        keep_alive: u16::MAX,
        ..connect_packet(V5, "me", false, Properties::from_validated(&properties), Some(will))
    };
    let client = w.open();
    w.send(client, &Packet::Connect(connect));
    client
}

#[test]
fn a_client_that_comes_and_goes_leaves_no_timers_behind() {
    let mut w = World::new(1);
    for _ in 0..500 {
        let client = connect_for(&mut w, YEAR_S, YEAR_S / 2);
        w.cut(client);
        skip(&mut w, 10_000);
    }
    assert!(w.stats().timers < 200, "{} timers are set", w.stats().timers);
}

#[test]
fn a_session_ends_and_its_will_is_published_when_it_is_time_however_far_away() {
    let mut w = World::new(1);
    let client = connect_for(&mut w, 100_000, 50_000);
    w.cut(client);
    for (until_s, wills, sessions) in [(49_999, 0, 1), (50_001, 1, 1), (99_999, 1, 1), (100_001, 1, 0)] {
        let start = 1_000_000;
        let passed = w.now.monotonic_ms - start;
        skip(&mut w, until_s * 1000 - passed);
        assert_eq!(
            (w.stats().wills_published, w.stats().sessions),
            (wills, sessions),
            "after {until_s} s"
        );
    }
}

#[test]
fn retained_messages_that_expire_sooner_and_later_share_one_timer() {
    let mut w = World::new(1);
    let publisher = w.connect(V5, "publisher", true, &[Property::SessionExpiryInterval(u32::MAX)]);
    let retain = |w: &mut World, topic: &str, expiry_s: u32| {
        let expiry = [Property::MessageExpiryInterval(expiry_s)];
        w.publish_with(publisher, topic, "x", AtMostOnce, true, 1, false, &expiry);
    };
    retain(&mut w, "far", 10_000);
    for _ in 0..500 {
        retain(&mut w, "near", 10);
        skip(&mut w, 11_000);
        assert_eq!(w.stats().retained_messages, 1);
    }
    assert!(w.stats().timers < 100, "{} timers are set", w.stats().timers);
    skip(&mut w, 10_000 * 1000);
    assert_eq!((w.stats().retained_messages, w.stats().timers), (0, 0));
}
