//! Runs the load against Mosquitto. An independent broker must confirm every count.

#![allow(clippy::unwrap_used, reason = "tests")]

use crate::support;
use crate::support::mosquitto::Mosquitto;
use crate::support::{Report, publishers, run, scenario, subscribers, target, truth};
use bench::scenario::{ClientGroup, GroupPresence, Payload};
use bench::target::{LoadTarget, TargetTls, TargetTransport};

fn groups(qos: u8, version: u8) -> Vec<ClientGroup> {
    let mut groups = vec![subscribers(20, "t/#", qos), publishers(5, "t/%i", qos, 100)];
    groups.iter_mut().for_each(|group| group.version = version);
    groups
}

/// Returns a scenario with 20 subscribers and 5 publishers of 100 messages each.
fn assert_exact(report: &Report, qos: u8, about: &str) {
    assert_eq!(
        truth(report),
        (100, 10_000, 0, 0, 0, 0, 0),
        "{about}: {:?}",
        report.outcome
    );
    assert_eq!(
        (report.totals.published, report.totals.received),
        (500, 10_000),
        "{about}"
    );
    assert_eq!(report.totals.acknowledged, if qos > 0 { 500 } else { 0 }, "{about}");
    assert_eq!(
        (
            report.totals.connects,
            report.totals.connects_failed,
            report.totals.disconnects
        ),
        (25, 0, 0),
        "{about}"
    );
    assert!(report.outcome.errors.is_empty(), "{about}: {:?}", report.outcome.errors);
}

#[test]
fn every_qos_and_version_is_exact() {
    let mosquitto = Mosquitto::start();
    for qos in 0..=2 {
        for version in 3..=5 {
            let report = run(scenario(groups(qos, version)), target(mosquitto.port), 2);
            assert_exact(&report, qos, &format!("QoS {qos}, version {version}"));
            assert!(report.totals.segments_in > 0 && report.totals.cpu_ns > 0);
        }
    }
}

#[test]
fn tls_and_websockets_are_exact() {
    let mosquitto = Mosquitto::start();
    let all = [
        (TargetTransport::Tls, mosquitto.tls_port),
        (TargetTransport::Ws, mosquitto.ws_port),
        (TargetTransport::Wss, mosquitto.wss_port),
    ];
    for (transport, port) in all {
        let target = LoadTarget {
            transport,
            tls: TargetTls {
                ca_file: Some(mosquitto.directory.join("ca.pem")),
                ..TargetTls::default()
            },
            path: "/mqtt".into(),
            ..target(port)
        };
        for qos in [0, 2] {
            let report = run(scenario(groups(qos, 4)), target.clone(), 2);
            assert_exact(&report, qos, &format!("{transport:?}, QoS {qos}"));
        }
    }
}

#[test]
fn tls_sessions_resume_where_wanted() {
    let mosquitto = Mosquitto::start();
    for resumes in [false, true] {
        let tls = TargetTls {
            is_insecure: true,
            resumes,
            ..TargetTls::default()
        };
        let target = LoadTarget {
            transport: TargetTransport::Tls,
            tls,
            ..target(mosquitto.tls_port)
        };
        let mut group = ClientGroup {
            name: "idle".into(),
            clients: 40,
            ..ClientGroup::default()
        };
        group.keep_alive_s = 60;
        let mut scenario = scenario(vec![group]);
        scenario.connecting_max = 1;
        let report = run(scenario, target, 1);
        let resumed = report.totals.tls_resumed;
        assert!(
            if resumes { resumed >= 30 } else { resumed == 0 },
            "{resumed} of 40 resumed"
        );
    }
}

#[test]
fn untrusted_certificate_is_rejected() {
    let mosquitto = Mosquitto::start();
    let target = LoadTarget {
        transport: TargetTransport::Tls,
        ..target(mosquitto.tls_port)
    };
    let failure = support::try_run(scenario(groups(0, 4)), target, 1).err().unwrap();
    assert!(failure.contains("certificate"), "{failure}");
}

#[test]
fn large_messages_are_exact() {
    let mosquitto = Mosquitto::start();
    let mut groups = vec![subscribers(2, "t/#", 1), publishers(2, "t/%i", 1, 5)];
    groups[1].publish.as_mut().unwrap().payload = Payload::Bytes(700_000);
    let report = run(scenario(groups), target(mosquitto.port), 2);
    assert_eq!(truth(&report), (4, 20, 0, 0, 0, 0, 0), "{:?}", report.outcome);
}

#[test]
fn shared_subscriptions_are_exact() {
    let mosquitto = Mosquitto::start();
    let mut groups = groups(1, 5);
    groups[0].subscribe[0].filter = "$share/crew/t/#".into();
    let report = run(scenario(groups), target(mosquitto.port), 2);
    assert_eq!(truth(&report), (5, 500, 0, 0, 0, 0, 0), "{:?}", report.outcome);
    assert_eq!(report.totals.received, 500);
}

#[test]
fn persistent_sessions_queue_messages_while_offline() {
    let mosquitto = Mosquitto::start();
    for (qos, version) in [(1, 4), (2, 4), (1, 5), (2, 5)] {
        let mut groups = groups(qos, version);
        (groups[0].clean_start, groups[0].session_expiry_s) = (false, 600);
        groups[0].presence = GroupPresence::AwayWhilePublishing;
        groups[0].client_id = format!("away-{qos}-{version}-%i");
        let report = run(scenario(groups), target(mosquitto.port), 2);
        assert_eq!(
            truth(&report),
            (100, 10_000, 0, 0, 0, 0, 0),
            "QoS {qos}, version {version}: {:?}",
            report.outcome
        );
        assert_eq!((report.totals.received, report.totals.connects), (10_000, 45));
    }
}

#[test]
fn retained_messages_are_exact() {
    let mosquitto = Mosquitto::start();
    let mut groups = vec![subscribers(10, "t/#", 1), publishers(50, "t/%i", 1, 3)];
    groups[0].presence = GroupPresence::AfterPublishing;
    groups[1].publish.as_mut().unwrap().retain = true;
    let report = run(scenario(groups), target(mosquitto.port), 2);
    assert_eq!(truth(&report), (500, 500, 0, 0, 0, 0, 0), "{:?}", report.outcome);
    assert_eq!(report.totals.received, 500);
}
