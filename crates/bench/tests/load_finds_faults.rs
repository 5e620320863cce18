//! Runs the load against a broker that loses, duplicates, reorders, corrupts or rejects messages. The tool must report
//! exactly these faults, and none for a correct broker.

#![allow(clippy::unwrap_used, reason = "tests")]

use crate::support::broker::{Broker, Faultless, Faults, Message, Taking};
use crate::support::ports::free_port;
use crate::support::{Drive, RUN, publishers, run, scenario, subscribers, target, truth, try_run, try_run_spread};
use bench::driver::DriverCommand;
use bench::scenario::{ClientGroup, ConnectCycle, GroupPresence, Payload, PublishSpec, Stall};
use mqtt::ReasonCode;

/// Changes the messages that the broker delivers.
struct Deliveries<F>(F);

impl<F: FnMut(&str, u32, Message) -> Vec<Message> + Send> Faults for Deliveries<F> {
    fn deliver(&mut self, client_id: &str, number: u32, message: Message) -> Vec<Message> {
        (self.0)(client_id, number, message)
    }
}

/// Changes how the broker handles received PUBLISH packets.
struct Takings<F>(F);

impl<F: FnMut(&str, u32) -> Taking + Send> Faults for Takings<F> {
    fn publish(&mut self, client_id: &str, number: u32) -> Taking {
        (self.0)(client_id, number)
    }
}

/// Changes the answer to CONNECT.
struct Answers<F>(F);

impl<F: FnMut(&str, u32) -> Option<ReasonCode> + Send> Faults for Answers<F> {
    fn connack(&mut self, client_id: &str, attempt: u32) -> Option<ReasonCode> {
        (self.0)(client_id, attempt)
    }
}

fn fan_out(qos: u8) -> Vec<ClientGroup> {
    vec![subscribers(3, "t/#", qos), publishers(4, "t/%i", qos, 50)]
}

fn publish_of(group: &mut ClientGroup) -> &mut PublishSpec {
    group.publish.as_mut().unwrap()
}

#[test]
fn correct_broker_causes_no_findings() {
    for qos in 0..=2 {
        for version in 3..=5 {
            for threads in [1, 3] {
                let broker = Broker::start(Faultless);
                let mut groups = fan_out(qos);
                groups.iter_mut().for_each(|group| group.version = version);
                let report = run(scenario(groups), target(broker.port), threads);
                let about = format!("QoS {qos}, version {version}, {threads} threads");
                assert_eq!(
                    truth(&report),
                    (12, 600, 0, 0, 0, 0, 0),
                    "{about}: {:?}",
                    report.outcome
                );
                let totals = report.totals;
                assert_eq!((totals.published, totals.received), (200, 600), "{about}");
                assert_eq!(totals.acknowledged, if qos > 0 { 200 } else { 0 }, "{about}");
                assert_eq!((totals.connects, totals.subscribes), (7, 3), "{about}");
                assert_eq!(
                    (totals.connects_failed, totals.disconnects, totals.refused),
                    (0, 0, 0),
                    "{about}"
                );
                assert_eq!((report.end_to_end.count(), report.connect.count()), (600, 7), "{about}");
                assert_eq!(report.connected_at_most, 7);
                let seen = broker.seen();
                assert_eq!((seen.disconnects, seen.dups), (7, 0), "{about}");
                assert!(report.outcome.errors.is_empty(), "{:?}", report.outcome.errors);
            }
        }
    }
}

#[test]
fn lost_messages_are_named() {
    let mut seen = 0;
    let broker = Broker::start(Deliveries(move |client_id: &str, _, message: Message| {
        if client_id == "bench-5eed-subscribers-1" && message.topic == "t/2" {
            seen += 1;
            if (11..=13).contains(&seen) {
                return Vec::new();
            }
        }
        vec![message]
    }));
    let report = run(scenario(fan_out(1)), target(broker.port), 2);
    assert_eq!(truth(&report), (12, 600, 3, 0, 0, 0, 0));
    assert_eq!(
        report.outcome.examples,
        ["bench-5eed-subscribers-1 missed 3 messages of publishers-2: 10..12"]
    );
}

#[test]
fn lost_last_messages_are_detected() {
    let broker = Broker::start(Deliveries(|client_id: &str, number, message| {
        let is_late = client_id.ends_with("subscribers-0") && number >= 195;
        if is_late { Vec::new() } else { vec![message] }
    }));
    let report = run(scenario(fan_out(0)), target(broker.port), 1);
    assert_eq!(truth(&report), (12, 600, 5, 0, 0, 0, 0));
}

#[test]
fn duplicates_are_counted() {
    let broker = Broker::start(Deliveries(|_: &str, number, message: Message| match number {
        20 => vec![message.clone(), message],
        30 => vec![message.clone(), message.clone(), message],
        _ => vec![message],
    }));
    let report = run(scenario(fan_out(1)), target(broker.port), 2);
    assert_eq!(truth(&report), (12, 600, 0, 9, 0, 0, 0));
    assert!(
        report
            .outcome
            .examples
            .iter()
            .all(|example| example.contains("more than once")),
        "{:?}",
        report.outcome.examples
    );
}

#[test]
fn messages_out_of_order_are_counted() {
    let mut held = None;
    let broker = Broker::start(Deliveries(move |client_id: &str, _, message: Message| {
        if client_id != "bench-5eed-subscribers-0" || message.topic != "t/0" {
            return vec![message];
        }
        // Every fifth message is swapped with the next.
        let sequence = u32::from_be_bytes(message.payload[5..9].try_into().unwrap());
        match (sequence % 5, held.take()) {
            (0, None) => {
                held = Some(message);
                Vec::new()
            }
            (_, Some(earlier)) => vec![message, earlier],
            (_, None) => vec![message],
        }
    }));
    let report = run(scenario(fan_out(0)), target(broker.port), 1);
    assert_eq!(truth(&report), (12, 600, 0, 0, 10, 0, 0));
    let example = "bench-5eed-subscribers-0 got message 0 of publishers-0 after a later one";
    assert!(
        report.outcome.examples.contains(&example.to_string()),
        "{:?}",
        report.outcome.examples
    );
}

#[test]
fn changed_bytes_are_detected_at_every_position() {
    let broker = Broker::start(Deliveries(|client_id: &str, number, mut message: Message| {
        if client_id == "bench-5eed-subscribers-2" {
            match number {
                10 => message.payload[39] ^= 1,
                20 => message.payload[3] ^= 0x40,
                30 => drop(message.payload.pop()),
                40 => message.topic = "t/3/else".into(),
                _ => {}
            }
        }
        vec![message]
    }));
    let report = run(scenario(fan_out(0)), target(broker.port), 1);
    // A damaged message also counts as lost.
    let (_, expected, lost, _, _, corrupt, _) = truth(&report);
    assert_eq!((expected, lost, corrupt), (600, 4, 4), "{:?}", report.outcome);
}

#[test]
fn refused_messages_are_not_expected() {
    let broker = Broker::start(Takings(|_: &str, number| match number {
        7 | 8 | 20 => Taking::Refuse(ReasonCode::QuotaExceeded),
        _ => Taking::Accept,
    }));
    for qos in [1, 2] {
        let mut groups = fan_out(qos);
        groups.iter_mut().for_each(|group| group.version = 5);
        groups[1].client_id = format!("refused-{qos}-%i");
        let report = run(scenario(groups), target(broker.port), 2);
        assert_eq!(truth(&report), (12, 3 * (200 - 12), 0, 0, 0, 0, 0), "QoS {qos}");
        assert_eq!((report.totals.refused, report.totals.acknowledged), (12, 188));
        assert_eq!(report.outcome.errors, [("refused: Quota exceeded".to_string(), 12)]);
        let unaccepted: u64 = report
            .sent
            .iter()
            .flat_map(|sent| &sent.unaccepted)
            .map(|range| range.to - range.from)
            .sum();
        assert_eq!(unaccepted, 12);
    }
}

#[test]
fn broker_that_rejects_all_clients_is_reported_as_failure() {
    let broker = Broker::start(Answers(|_: &str, _| Some(ReasonCode::NotAuthorized)));
    let failure = try_run(scenario(fan_out(0)), target(broker.port), 2).err().unwrap();
    assert!(failure.contains("Not authorized"), "{failure}");
    let port = free_port().port();
    let failure = try_run(scenario(fan_out(0)), target(port), 1).err().unwrap();
    assert!(failure.contains("refused"), "{failure}");
}

#[test]
fn failed_connect_is_retried() {
    let broker = Broker::start(Answers(|_: &str, attempt| match attempt {
        1 => None,
        2 => Some(ReasonCode::ServerUnavailable),
        _ => Some(ReasonCode::Success),
    }));
    let report = run(scenario(fan_out(0)), target(broker.port), 2);
    assert_eq!(truth(&report), (12, 600, 0, 0, 0, 0, 0));
    assert_eq!((report.totals.connects, report.totals.connects_failed), (7, 14));
    let errors = [
        ("connect: CONNACK: Server unavailable".to_string(), 7),
        ("connect: the server closed the connection".to_string(), 7),
    ];
    assert_eq!(report.outcome.errors, errors);
}

#[test]
fn clients_that_never_connect_are_given_up() {
    let broker = Broker::start(Answers(|client_id: &str, _| match client_id {
        "bench-5eed-subscribers-1" => Some(ReasonCode::BadUserNameOrPassword),
        _ => Some(ReasonCode::Success),
    }));
    let report = run(scenario(fan_out(0)), target(broker.port), 2);
    // Two subscribers remain, and they receive all messages.
    assert_eq!(truth(&report), (8, 400, 0, 0, 0, 0, 0));
    assert_eq!((report.totals.connects, report.totals.connects_failed), (6, 1));
}

struct RefusesSubscription;

impl Faults for RefusesSubscription {
    fn suback(&mut self, client_id: &str, qos: u8) -> u8 {
        if client_id.ends_with("subscribers-0") {
            0x80
        } else {
            qos
        }
    }
}

#[test]
fn refused_subscriptions_are_counted_and_expect_nothing() {
    let broker = Broker::start(RefusesSubscription);
    let report = run(scenario(fan_out(1)), target(broker.port), 1);
    assert_eq!(truth(&report), (8, 400, 0, 0, 0, 0, 0));
    assert_eq!((report.totals.subscribes, report.totals.subscribes_failed), (2, 1));
}

fn persistent(mut groups: Vec<ClientGroup>, version: u8) -> Vec<ClientGroup> {
    for group in &mut groups {
        (
            group.version,
            group.clean_start,
            group.session_expiry_s,
            group.reconnects,
        ) = (version, false, 600, true);
    }
    groups
}

#[test]
fn unacknowledged_messages_are_resent_on_the_session() {
    for (qos, version) in [(1, 4), (1, 5), (2, 4), (2, 5)] {
        let broker = Broker::start(Takings(|client_id: &str, number| match number {
            20 | 40 if client_id.contains("publishers") => Taking::Close,
            _ => Taking::Accept,
        }));
        let report = run(scenario(persistent(fan_out(qos), version)), target(broker.port), 2);
        assert_eq!(
            truth(&report),
            (12, 600, 0, 0, 0, 0, 0),
            "QoS {qos}, version {version}: {:?}",
            report.outcome
        );
        assert_eq!((report.totals.published, report.totals.acknowledged), (200, 200));
        assert_eq!(report.totals.disconnects, 8);
        assert!(broker.seen().dups >= 8, "messages were in flight");
    }
}

#[test]
fn exactly_once_survives_a_lost_acknowledgement() {
    let broker = Broker::start(Takings(|client_id: &str, number| match number {
        20 | 40 if client_id.contains("publishers") => Taking::AcceptAndClose,
        _ => Taking::Accept,
    }));
    let report = run(scenario(persistent(fan_out(2), 4)), target(broker.port), 1);
    assert_eq!(truth(&report), (12, 600, 0, 0, 0, 0, 0), "{:?}", report.outcome);
    // At QoS 1 the same fault causes duplicates, which QoS 1 permits.
    let broker = Broker::start(Takings(|client_id: &str, number| match number {
        20 if client_id.contains("publishers") => Taking::AcceptAndClose,
        _ => Taking::Accept,
    }));
    let report = run(scenario(persistent(fan_out(1), 4)), target(broker.port), 1);
    assert_eq!(truth(&report), (12, 600, 0, 12, 0, 0, 0), "{:?}", report.outcome);
}

#[test]
fn messages_of_a_lost_connection_are_not_expected() {
    let broker = Broker::start(Takings(|client_id: &str, number| match number {
        20 if client_id.ends_with("publishers-3") => Taking::Close,
        _ => Taking::Accept,
    }));
    let report = run(scenario(fan_out(1)), target(broker.port), 1);
    assert_eq!(
        truth(&report),
        (12, 3 * (150 + 20), 0, 0, 0, 0, 0),
        "{:?}",
        report.outcome
    );
    assert_eq!(report.totals.disconnects, 1);
    assert_eq!(
        report.outcome.errors,
        [("lost: the server closed the connection".to_string(), 1)]
    );
}

#[test]
fn run_ends_despite_unacknowledged_messages() {
    let broker = Broker::start(Takings(|client_id: &str, number| match number {
        45 if client_id.ends_with("publishers-1") => Taking::Ignore,
        _ => Taking::Accept,
    }));
    let report = run(scenario(fan_out(1)), target(broker.port), 1);
    assert_eq!(truth(&report), (12, 597, 0, 0, 0, 0, 0), "{:?}", report.outcome);
    assert_eq!(report.totals.acknowledged, 199);
}

#[test]
fn inflight_limits_of_scenario_and_server_are_respected() {
    let broker = Broker::start_with(Faultless, Some(4));
    let mut groups = fan_out(2);
    groups.iter_mut().for_each(|group| group.version = 5);
    let report = run(scenario(groups), target(broker.port), 1);
    assert_eq!(truth(&report).1, 600);
    let seen = broker.seen().in_flight_max;
    assert!((1..=4).contains(&seen), "{seen} in flight");
}

#[test]
fn open_model_keeps_its_rate_and_counts_due_messages() {
    let broker = Broker::start(Faultless);
    let mut groups = fan_out(0);
    let publish = publish_of(&mut groups[1]);
    (publish.messages, publish.rate) = (0, Some(100.0));
    let mut scenario = scenario(groups);
    (scenario.warm_up_s, scenario.duration_s) = (0.2, 0.8);
    let report = run(scenario, target(broker.port), 3);
    // Four clients publish a hundred messages per second each, for one second.
    assert_eq!((report.totals.due, report.totals.published), (400, 400));
    assert_eq!(truth(&report), (12, 1200, 0, 0, 0, 0, 0));
    assert_eq!(report.end_to_end.count(), 1200);
}

/// Stops reading from one publisher for a while.
struct Stalls;

impl Faults for Stalls {
    fn publish(&mut self, _client_id: &str, number: u32) -> Taking {
        if number == 20 {
            // This holds the broker's lock, so all clients are blocked.
            std::thread::sleep(std::time::Duration::from_millis(300));
        }
        Taking::Accept
    }
}

#[test]
fn latency_is_measured_from_the_due_time() {
    let broker = Broker::start(Stalls);
    let mut groups = vec![subscribers(1, "t/#", 1), publishers(1, "t/%i", 1, 0)];
    let publish = publish_of(&mut groups[1]);
    (publish.window, publish.rate) = (1, Some(200.0));
    let report = run(scenario(groups), target(broker.port), 1);
    assert_eq!((report.totals.due, report.totals.published), (100, 100));
    assert_eq!(truth(&report), (1, 100, 0, 0, 0, 0, 0));
    let (end_to_end, ack) = (report.end_to_end.summary(), report.acknowledgement.summary());
    // About sixty messages became due while the broker was blocked. Half of them waited more than half of that time.
    assert!(
        end_to_end.max_ms >= 280.0 && end_to_end.p90_ms >= 150.0,
        "{end_to_end:?}"
    );
    assert!(ack.max_ms >= 280.0 && ack.p90_ms >= 150.0, "{ack:?}");
}

#[test]
fn stalled_subscriber_gets_all_messages_later() {
    let broker = Broker::start(Faultless);
    let mut groups = fan_out(0);
    groups[0].stall = Some(Stall {
        after_s: 0.1,
        for_s: 0.3,
    });
    let publish = publish_of(&mut groups[1]);
    (publish.messages, publish.rate) = (0, Some(100.0));
    let report = run(scenario(groups), target(broker.port), 2);
    assert_eq!(truth(&report), (12, 600, 0, 0, 0, 0, 0));
    assert!(report.end_to_end.summary().max_ms >= 250.0);
}

#[test]
fn qos0_window_survives_lost_messages() {
    let broker = Broker::start(Deliveries(
        |_: &str, number, message| if number % 100 == 50 { Vec::new() } else { vec![message] },
    ));
    let mut groups = fan_out(0);
    publish_of(&mut groups[1]).window = 1;
    let mut scenario = scenario(groups);
    scenario.drain_s = 3.0;
    let report = run(scenario, target(broker.port), 2);
    assert_eq!(truth(&report), (12, 600, 6, 0, 0, 0, 0));
}

#[test]
fn shared_subscriptions_are_compared_as_one() {
    let groups = || {
        let mut groups = vec![subscribers(5, "$share/crew/t/#", 1), publishers(4, "t/%i", 1, 100)];
        groups[0].name = "crew".into();
        groups
    };
    let broker = Broker::start(Faultless);
    let report = run(scenario(groups()), target(broker.port), 3);
    assert_eq!(truth(&report), (4, 400, 0, 0, 0, 0, 0));
    assert_eq!(report.totals.received, 400);

    // One member loses a message, and another receives a message that a different member has already received.
    let mut taken = None;
    let broker = Broker::start(Deliveries(move |client_id: &str, number, message: Message| {
        match (client_id.chars().last(), number) {
            (Some('1'), 10) => Vec::new(),
            (Some('2'), 10) => {
                taken = Some(message.clone());
                vec![message]
            }
            (Some('3'), 30) => taken.take().into_iter().chain([message]).collect(),
            _ => vec![message],
        }
    }));
    let report = run(scenario(groups()), target(broker.port), 3);
    let (flows, expected, lost, duplicated, ..) = truth(&report);
    assert_eq!((flows, expected, lost, duplicated), (4, 400, 1, 1));
    let example = "no subscriber of $share/crew/t/# got 1 message of publishers-";
    let examples = &report.outcome.examples;
    assert!(examples.iter().any(|found| found.starts_with(example)), "{examples:?}");
}

#[test]
fn several_drivers_share_a_scenario() {
    for qos in 0..=2 {
        let broker = Broker::start(Faultless);
        let report = try_run_spread(scenario(fan_out(qos)), target(broker.port), 2, 3).unwrap();
        assert_eq!(truth(&report), (12, 600, 0, 0, 0, 0, 0), "{:?}", report.outcome);
        assert_eq!((report.totals.published, report.totals.received), (200, 600));
    }
    let mut lost = false;
    let broker = Broker::start(Deliveries(move |_: &str, number, message| {
        if number == 17 && !std::mem::replace(&mut lost, true) {
            Vec::new()
        } else {
            vec![message]
        }
    }));
    let groups = vec![subscribers(6, "$share/crew/t/#", 1), publishers(4, "t/%i", 1, 100)];
    let report = try_run_spread(scenario(groups), target(broker.port), 2, 2).unwrap();
    assert_eq!(truth(&report), (4, 400, 1, 0, 0, 0, 0), "{:?}", report.outcome);
    assert!(report.outcome.examples[0].starts_with("no subscriber of $share/crew/t/# got 1 message of publishers-"));
}

#[test]
fn run_can_be_stopped_at_any_time() {
    let broker = Broker::start(Faultless);
    let mut groups = fan_out(1);
    let publish = publish_of(&mut groups[1]);
    (publish.messages, publish.rate) = (0, Some(500.0));
    let mut scenario = scenario(groups);
    scenario.duration_s = 3_600.0;
    // The run is stopped while clients connect, and while they publish.
    for reads_ready in [false, true] {
        let mut drive = Drive::begin(scenario.clone(), target(broker.port), 2, 1).unwrap();
        if reads_ready {
            drive.wait(|drive| drive.ready).unwrap();
            let start_ns = drive.origin.elapsed().as_nanos() as u64;
            drive.command(|| DriverCommand::Publish { start_ns }).unwrap();
            drive.wait(|drive| usize::from(drive.sum.counts.received > 0)).unwrap();
        }
        drive.command(|| DriverCommand::Stop).unwrap();
        drive.wait(|drive| drive.sent_answers).unwrap();
        let sent = drive.sent.clone();
        drive
            .command(|| DriverCommand::Reconcile { sent: sent.clone() })
            .unwrap();
        drive.wait(|drive| drive.outcomes).unwrap();
        let report = drive.into_report();
        let (_, expected, lost, ..) = truth(&report);
        assert_eq!((expected > 0, lost), (reads_ready, 0), "{:?}", report.outcome);
    }
}

#[test]
fn queued_messages_are_delivered_after_reconnect() {
    for qos in [1, 2] {
        let broker = Broker::start(Faultless);
        let mut groups = persistent(fan_out(qos), 4);
        groups[0].presence = GroupPresence::AwayWhilePublishing;
        let report = run(scenario(groups), target(broker.port), 2);
        assert_eq!(truth(&report), (12, 600, 0, 0, 0, 0, 0));
        assert_eq!((report.totals.connects, report.totals.disconnects), (10, 0));
    }
}

#[test]
fn retained_messages_reach_later_subscribers() {
    let broker = Broker::start(Faultless);
    let mut groups = vec![
        subscribers(3, "t/#", 1),
        publishers(4, "t/%i", 1, 5),
        publishers(2, "t/each/%i/%s", 1, 7),
    ];
    groups[2].name = "each".into();
    groups[0].presence = GroupPresence::AfterPublishing;
    groups[1..].iter_mut().for_each(|group| publish_of(group).retain = true);
    let report = run(scenario(groups), target(broker.port), 2);
    // Each of three subscribers receives the last message of each of the first four topics, and all later messages.
    assert_eq!(truth(&report), (18, 3 * (4 + 14), 0, 0, 0, 0, 0));
    assert_eq!(report.totals.received, 54);
}

#[test]
fn storm_connects_and_disconnects_continuously() {
    for is_abrupt in [false, true] {
        let broker = Broker::start(Faultless);
        let storm = ClientGroup {
            name: "storm".into(),
            clients: 5,
            cycle: Some(ConnectCycle {
                stay_s: 0.01,
                is_abrupt,
            }),
            ..ClientGroup::default()
        };
        let report = run(scenario(vec![storm]), target(broker.port), 2);
        let connects = report.totals.connects;
        assert!(connects > 20, "{connects} connects");
        assert_eq!((report.totals.connects_failed, report.totals.disconnects), (0, 0));
        let seen = broker.seen();
        assert_eq!(u64::from(seen.connects), connects);
        let said = u64::from(seen.disconnects);
        // Clients that are still connected at the end of the run send DISCONNECT.
        assert!(
            if is_abrupt { said <= 5 } else { said == connects },
            "{said} of {connects} said DISCONNECT"
        );
    }
}

#[test]
fn connect_rate_is_respected() {
    let broker = Broker::start(Faultless);
    let mut scenario = scenario(vec![ClientGroup {
        name: "idle".into(),
        clients: 40,
        ..ClientGroup::default()
    }]);
    scenario.connect_rate = 100.0;
    scenario.duration_s = 0.1;
    let before = std::time::Instant::now();
    let report = run(scenario, target(broker.port), 2);
    assert!(before.elapsed().as_secs_f64() >= 0.35);
    assert_eq!(report.totals.connects, 40);
}

#[test]
fn unverifiable_and_foreign_messages_are_counted() {
    let broker = Broker::start(Faultless);
    let mut groups = vec![
        subscribers(2, "t/#", 0),
        publishers(2, "t/%i", 0, 10),
        publishers(2, "t/proven/%i", 0, 10),
    ];
    publish_of(&mut groups[1]).payload = Payload::Template(r#"{"n":${counter}}"#.into());
    publish_of(&mut groups[2]).payload = Payload::Template(r#"{"n":${counter},"proof":"${truth}"}"#.into());
    groups[2].name = "proven".into();
    let report = run(scenario(groups), target(broker.port), 1);
    assert_eq!(truth(&report), (4, 40, 0, 0, 0, 0, 40), "{:?}", report.outcome);
    assert_eq!(report.totals.received, 80);
}

#[test]
fn remote_publishers_are_verified_between_received_messages() {
    let broker = Broker::start(Deliveries(|client_id: &str, number, message: Message| {
        match (client_id.ends_with("subscribers-0"), number) {
            (true, 0 | 30..=32) => Vec::new(),
            (true, 50) => vec![message.clone(), message],
            _ => vec![message],
        }
    }));
    let alone = |group: ClientGroup| {
        let mut scenario = scenario(vec![group]);
        scenario.duration_s = 3_600.0;
        scenario
    };
    let mut listening = Drive::begin(alone(subscribers(2, "t/#", 1)), target(broker.port), 2, 1).unwrap();
    listening.wait(|drive| drive.ready).unwrap();
    let start_ns = listening.origin.elapsed().as_nanos() as u64;
    listening.command(|| DriverCommand::Publish { start_ns }).unwrap();
    // One publisher, so that all dropped messages are in one flow.
    let report = run(alone(publishers(1, "t/%i", 1, 100)), target(broker.port), 1);
    assert_eq!((report.totals.acknowledged, truth(&report).0), (100, 0));
    // The broker drops four messages of the first publisher and duplicates one.
    listening
        .wait(|drive| usize::from(drive.sum.counts.received >= 197))
        .unwrap();
    listening.command(|| DriverCommand::Stop).unwrap();
    listening.wait(|drive| drive.sent_answers).unwrap();
    listening
        .command(|| DriverCommand::Reconcile { sent: Vec::new() })
        .unwrap();
    listening.wait(|drive| drive.outcomes).unwrap();
    let report = listening.into_report();
    // Messages before the first received message of a flow are not counted, so the flow that begins late hides losses.
    assert_eq!(truth(&report), (2, 199, 3, 1, 0, 0, 0), "{:?}", report.outcome);
    assert_eq!(report.end_to_end.count(), 197);
    let example = "bench-5eed-subscribers-0 missed 3 messages of publisher 0 of run 5eed: 30..32";
    assert_eq!(report.outcome.examples, [example]);
}

#[test]
fn patterns_reach_the_broker() {
    let broker = Broker::start(Faultless);
    let group = ClientGroup {
        name: "devices".into(),
        clients: 2,
        start_number: 10,
        client_id: "%r/%g/%i/%u".into(),
        user_name: Some("user-%i".into()),
        password: Some("%%".into()),
        ..ClientGroup::default()
    };
    run(scenario(vec![group]), target(broker.port), 1);
    let mut seen = broker.seen();
    seen.client_ids.sort();
    seen.user_names.sort();
    assert_eq!(
        seen.client_ids,
        [10, 11].map(|n| format!("{RUN:04x}/devices/{n}/user-{n}"))
    );
    assert_eq!(seen.user_names, ["user-10", "user-11"]);
}

#[test]
fn keep_alive_pings_an_idle_server() {
    let broker = Broker::start(Faultless);
    let mut scenario = scenario(vec![ClientGroup {
        name: "idle".into(),
        clients: 2,
        keep_alive_s: 1,
        ..ClientGroup::default()
    }]);
    scenario.duration_s = 2.5;
    let report = run(scenario, target(broker.port), 1);
    assert_eq!(report.totals.disconnects, 0);
    let pings = broker.seen().pings;
    assert!((4..=8).contains(&pings), "{pings} pings");
}
